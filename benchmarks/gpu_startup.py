"""Seconds until a measuring process of a GPU is ready, by part: `python -m benchmarks.gpu_startup [--processes 1 3]`.

Parts: importing this package's worker, importing PyTorch, the CUDA context, the first kernels (`gpu_worker.rehearse`),
Triton's driver. With `--early`, the context is made in a thread while PyTorch is imported. Several processes start at
once, as searches start them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

CODE = """
import json, sys, time
marks = [time.monotonic()]
mark = lambda: marks.append(time.monotonic())
import tensor_graphs.backends.tuning.gpu_worker as worker
mark()
if "early" in sys.argv:
    from tensor_graphs.backends.gpu_context import begin_context
    begin_context()
import torch
mark()
device = worker.device_of("cuda")
torch.zeros(1, device="cuda")
device.synchronize()
mark()
worker.rehearse(device)
mark()
from tensor_graphs.backends.gpu_context import _load_compiler
_load_compiler()
mark()
worker.load_kernels()
mark()
names = ("package", "torch", "context", "first kernels", "triton", "a kernel of each compiler")
print(json.dumps({n: round(b - a, 2) for n, a, b in zip(names, marks, marks[1:])} | {"all": round(marks[-1] - marks[0], 2)}))
"""


def main() -> None:
    """Start the processes, and print the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 3], help="started at once")
    for count in parser.parse_args().processes:
        for how in ("late", "early"):
            command = [sys.executable, "-c", CODE, how]
            started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
            for process in started:
                message = process.communicate(timeout=60)[0].strip()
                print(f"{count} at once, {how} context: {json.loads(message) if message else 'failed'}", flush=True)


if __name__ == "__main__":
    main()
