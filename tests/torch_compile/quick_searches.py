"""Options of searches that take a fraction of a second, and made-up timings for the comparison of a program with eager
execution (`judge.timed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

IN_C = {"wait": True, "measure": False, "effort": 0, "budget": 1, "verify": False}
"""Options of a search with all backends of the CPU. Its products, convolutions and recurrent layers may be C kernels,
which take one or two seconds to compile."""

QUICK = {**IN_C, "backend": "torch"}
"""Options of a search among PyTorch's kernels only, which nothing compiles."""


def timed(eager: float, program: float) -> Callable[..., dict[str, list[float]]]:
    """A timer that calls each function once and reports the given times in µs."""

    def run(calls: dict[str, Callable[[], Any]], device: str, first: Callable[[], None]) -> dict[str, list[float]]:
        for call in calls.values():
            first()
            call()
        return {"eager": [eager] * 5, "program": [program] * 5}

    return run
