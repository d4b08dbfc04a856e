"""Times kernels on the CPU: stopwatches of wall-clock and CPU time, and samples that no other process
disturbed."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from ...costdb.keys.device import cores
from .single_kernel import Bound

WALL, BUSY = "wall", "busy"  # values of a job's "clock"


Stopwatch = Callable[[], Callable[[], int]]  # starts a watch; what it returns reads ns since then


def wall() -> Callable[[], int]:
    """Start a stopwatch of wall-clock time: a function that returns the ns since this call."""
    start = time.perf_counter_ns()
    return lambda: time.perf_counter_ns() - start


def busy() -> Callable[[], int]:
    """Start a stopwatch of CPU time: a function that returns the ns since this call, the larger of the calling thread's
    time and of all threads' time divided by the number of cores. If waiting threads sleep (OMP_WAIT_POLICY=PASSIVE),
    this is about the wall-clock time on an otherwise idle machine."""
    own, every, count = time.thread_time_ns(), time.process_time_ns(), cores()
    return lambda: max(time.thread_time_ns() - own, (time.process_time_ns() - every) // count)


WATCHES: dict[str, Stopwatch] = {WALL: wall, BUSY: busy}


class DisturbanceProbe:
    """Detector of timing samples that other processes disturbed: it times a small kernel of its own, always the same,
    and counts involuntary context switches."""

    def __init__(self) -> None:
        self.a, self.b = np.ones(1 << 14, np.float32), np.empty(1 << 14, np.float32)
        self.seen: list[float] = []

    def __call__(self) -> tuple[float, int]:
        start = time.perf_counter_ns()
        for _ in range(3):
            np.add(self.a, self.a, out=self.b)
        took = (time.perf_counter_ns() - start) / 3
        self.seen.append(took)
        return took, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def usual(self) -> float:
        """Lower quartile, in ns, of the last 400 times of the probe's own small kernel; a longer time shows a disturbed
        machine."""
        return float(np.quantile(self.seen[-400:], 0.25))


_probe = DisturbanceProbe()


def timed(
    runs: list[Bound], seconds: float, watch: Stopwatch = wall
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Time a kernel; returns µs of a call as (accepted samples, all samples).

    `runs`: the kernel bound to each operand set, called in turn; short kernels repeat within a sample.

    Samples without disturbance by other processes are accepted. If these are too few, sampling takes up to four times
    `seconds`, and the faster half of all samples is accepted, since disturbance only adds time. `watch` starts the
    stopwatch of a sample.
    """
    for run in runs:
        run()
    elapsed = wall()
    runs[0]()
    once = max(elapsed(), 50)
    repeats = max(1, int(150_000 // once))
    clean: list[float] = []
    every: list[float] = []
    begin, turn = time.perf_counter(), 0
    _probe()
    while True:
        before, switches = _probe()
        elapsed = watch()
        for _ in range(repeats):
            runs[turn % len(runs)]()
            turn += 1
        took = elapsed() / repeats / 1000
        after, later = _probe()
        every.append(took)
        if switches == later and max(before, after) < 1.5 * _probe.usual():
            clean.append(took)
        spent = time.perf_counter() - begin
        if (spent > seconds and len(clean) >= 5) or (spent > 4 * seconds and len(every) >= 7) or len(every) >= 200:
            return (clean if len(clean) >= 3 else sorted(every)[: (len(every) + 1) // 2]), every
