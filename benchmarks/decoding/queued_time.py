"""Time of calls that are queued one behind another on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def timed(call: Callable[[], object], wait: Callable[[], object], *, calls: int = 12, rounds: int = 7) -> float:
    """µs of a call: the median of rounds of `calls` calls; `wait` returns when the device is done."""
    call()
    wait()
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        found.append((time.perf_counter() - begun) / calls * 1e6)
    return median(found)
