"""Seconds of a measuring process on a GPU by step: `python -m benchmarks.gpu.worker_seconds [--only TEXT] [--schedules
N] [--profile]`.

For kernels of decode steps (`benchmarks.decoding.kernels`), in CUDA C++: milliseconds of opening the kernel (operands,
float64 reference), and, for each of its first schedules, of compiling and loading it, of a trial (run, check, a few
samples) and of timing it in full. `--profile` lists the functions that take the most time of all trials. `--device cpu`
opens kernels on the host only.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tensor_graphs.backends.generate.kernel_text import kernel_text
from tensor_graphs.backends.tuning.gpu_bench import Bench
from tensor_graphs.backends.tuning.gpu_device import device_of
from tensor_graphs.backends.tuning.gpu_worker import rehearse, warm_up_clock
from tensor_graphs.costdb.keys.device import GPU_KIND

from ..decoding.kernels import kernels

CASES = ("8b-gate-up x 1 int4", "8b-gate-up x 1 fp8", "8b-head x 1 int4", "8b-o x 1 int4", "8b-gate-up x 1 plain")
FUNCTIONS = 40  # of a profile
T = TypeVar("T")


def main() -> None:
    """Print one line a kernel and one a schedule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose names contain this text")
    parser.add_argument("--schedules", type=int, default=3)
    parser.add_argument("--device", default=GPU_KIND, choices=(GPU_KIND, "cpu"))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    device, profile = device_of(options.device), cProfile.Profile()
    if device.name == GPU_KIND:
        rehearse(device)

    def timed(work: Callable[[], T]) -> tuple[T, float]:
        begun = time.perf_counter()
        found = work()
        device.synchronize()
        return found, 1e3 * (time.perf_counter() - begun)

    def tried(bench: Bench, number: int, one: Any) -> dict[str, Any]:
        warm_up_clock(device)
        return bench.attempt(number, one)

    for case in CASES:
        for name, backend, template, call in kernels(case) if options.only in case else ():
            if name != case or backend != "nvrtc":
                continue
            bench, opened = timed(lambda: Bench(device, template.pattern, call))  # noqa: B023
            again = timed(lambda: Bench(device, template.pattern, call))[1]  # noqa: B023
            print(f"{name}: open {opened:.0f} ms, again {again:.0f} ms, {bench.nbytes / 1e6:.0f} MB", flush=True)
            schedules = list(template.space(call)) if template.space is not None and device.name == GPU_KIND else []
            for number, schedule in enumerate(schedules[: options.schedules]):
                text = kernel_text(template, replace(call, schedule=schedule))
                one, loaded = timed(lambda: bench.loaded(text))  # noqa: B023
                profile.enable()
                reply, first = timed(lambda: tried(bench, number, one))  # noqa: B023
                second = timed(lambda: tried(bench, number, one))[1]  # noqa: B023
                profile.disable()
                full = timed(lambda: bench.measure(number))[1]  # noqa: B023
                us = f"{one.us:.1f} µs, error {reply['accuracy']['rel_fro']:.1e}"
                print(f"  load {loaded:.0f}, try {first:.0f}, again {second:.0f}, time {full:.0f} ms; {us} {schedule}")
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(FUNCTIONS)


if __name__ == "__main__":
    main()
