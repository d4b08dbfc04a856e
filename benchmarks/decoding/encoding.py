"""Milliseconds of quantizing a weight on the host and on a GPU: `python -m benchmarks.decoding.encoding [--device
cpu]`.

A bfloat16 weight of Llama-3-8B's gate projection, in each form; the third time of three on the device counts. Printed
too is whether codes and scales of the device have the bits of those of the host, and the time of copying the weight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tensor_graphs.backends.runtime.cpu_tensors import array_of, tensor_of
from tensor_graphs.backends.tuning.gpu_device import device_of
from tensor_graphs.costdb.keys.device import GPU_KIND
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.models.common.quantization import FORMS, encoded, encoded_on

SHAPE = (14336, 4096)


def main() -> None:
    """Print one line a form."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default=GPU_KIND, choices=(GPU_KIND, "cpu"))
    options = parser.parse_args()
    device = device_of(options.device)
    weight = np.random.default_rng(0).standard_normal(SHAPE, np.float32).astype(numpy_dtype("bfloat16"))

    def timed(work: Callable[[], Any], times: int = 1) -> tuple[Any, float]:
        for _ in range(times):
            begun = time.perf_counter()
            found = work()
            device.synchronize()
        return found, 1e3 * (time.perf_counter() - begun)

    copied = timed(lambda: tensor_of(weight).to(options.device), 3)[1]
    print(f"copy of {weight.nbytes / 1e6:.0f} MB: {copied:.1f} ms")
    for form in FORMS:
        here, host = timed(lambda: encoded(weight, form, "bfloat16"))  # noqa: B023
        there, near = timed(lambda: encoded_on(weight, form, "bfloat16", True, options.device), 3)  # noqa: B023
        same = all(np.array_equal(array_of(there[n]).view(np.uint8), x.view(np.uint8)) for n, x in here.items())
        print(f"{form:6} host {host:6.1f} ms, device {near:6.1f} ms with the copy, equal bits: {same}", flush=True)


if __name__ == "__main__":
    main()
