"""Where the time goes: seconds by name, and when they were spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

JOIN_S = 0.05  # a pause between two spans of one name that is not shown: there are hundreds of short ones


class Halted(Exception):
    """Work was ended before it had a result, by whoever was polled meanwhile."""


@dataclass
class Clock:
    """Wall-clock seconds by name, in the order in which the names first came up; and the spans of `time.monotonic` in which they
    were spent, those that follow each other at once as one."""

    seconds: dict[str, float] = field(default_factory=dict)
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds (negative ones take back) under a name."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def spent(self, name: str, start: float, end: float) -> None:
        """Count what lay between two moments under a name."""
        self.add(name, end - start)
        known = self.spans.setdefault(name, [])
        if known and start - known[-1][1] < JOIN_S:
            first, last = known.pop()
            start, end = min(start, first), max(end, last)
        known.append((start, end))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Count the block's time under a name, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent(name, start, time.monotonic())


__all__ = ["JOIN_S", "Clock", "Halted"]
