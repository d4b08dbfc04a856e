"""End-to-end times of a few callables, interleaved so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any


def interleaved(
    calls: Mapping[str, Callable[[], Any]], *, seconds: float = 2.0, least: int = 5, most: int = 200
) -> dict[str, float]:
    """Median µs of each call. Rounds of one call each, in turn, after two warm-up rounds, for about `seconds`."""
    samples: dict[str, list[float]] = {n: [] for n in calls}
    start = time.perf_counter()
    for turn in range(most + 2):
        for name, call in calls.items():
            began = time.perf_counter_ns()
            call()
            if turn >= 2:
                samples[name].append((time.perf_counter_ns() - began) / 1e3)
        if turn >= least + 2 and time.perf_counter() - start > seconds:
            break
    return {n: median(s) for n, s in samples.items()}
