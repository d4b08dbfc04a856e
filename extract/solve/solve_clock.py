"""Measures the time that is left for solving one extraction problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass, field

STEP_PASSES = 6
"""Duration of a whole step (detach, presolve), in multiples of the first measured pass over the rows: no step begins
with less time left."""

BUILD_SECONDS = 1e-4
BUILD_PASSES = 60
"""Time to build CP-SAT's program, in seconds per row and in measured passes over the rows; CP-SAT is not started with
less time left."""

LABELS_A_SECOND = 100_000
"""Labels of the frontier DP that count as a second where limits are counted work: it makes 60,000 to 200,000 a
second."""


@dataclass
class SolveClock:
    """Time limit of a solve in seconds, and the measured seconds per row (a way to compute a class) of a pass over the
    problem.

    `deterministic`: the clock is ignored, and limits are counted work. `stop`: polled; True ends the search. `began`:
    `time.perf_counter()` at the start.
    """

    time_limit: float
    deterministic: bool
    stop: Callable[[], bool] | None
    began: float = field(default_factory=time.perf_counter)
    pace: float = 0.0  # measured seconds per row of one pass
    finish: float = 0.0  # seconds reserved for the final evaluation

    @property
    def left(self) -> float:
        """Seconds left for searching; 0 when `stop` returns True. Deterministic runs ignore the clock."""
        if self.stop is not None and self.stop():
            return 0.0
        if self.deterministic:
            return self.time_limit
        return self.began + self.time_limit - self.finish - time.perf_counter()

    @property
    def labels(self) -> float:
        """Most labels of an exact frontier DP; without `deterministic` the time is what limits it."""
        return LABELS_A_SECOND * self.time_limit if self.deterministic else math.inf

    def expired(self) -> bool:
        """Whether no time is left (`left`)."""
        return self.left <= 0

    def lacks_time_for(self, rows: Sized) -> Callable[[], bool]:
        """A predicate, to be polled: whether less time is left than a step that passes over the rows (ways to compute a
        class) several times needs."""
        need = STEP_PASSES * self.pace * len(rows)
        return lambda: self.left <= need

    @property
    def build_seconds(self) -> float:
        """Estimated seconds per row (a way to compute a class) of building CP-SAT's program."""
        return max(BUILD_SECONDS, BUILD_PASSES * self.pace)
