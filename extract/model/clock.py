"""Wall-clock accounting: seconds and time spans by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MERGE_SPANS_S = 0.05  # two spans of one name with a shorter pause between are merged: there are hundreds of short spans


class Halted(Exception):
    """Raised when a polled `stop` callback returned True before the computation had a result."""


@dataclass
class Clock:
    """Wall-clock seconds by activity, in order of first use, and the time spans in which they were spent.

    Spans are (start, end) of `time.monotonic`; spans of one activity with less than MERGE_SPANS_S between them are
    merged.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds (negative: subtract) to the activity `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def spent(self, name: str, start: float, end: float) -> None:
        """Add the time span from `start` to `end` (time.monotonic) to the activity `name`."""
        self.add(name, end - start)
        known = self.spans.setdefault(name, [])
        if known and start - known[-1][1] < MERGE_SPANS_S:
            first, last = known.pop()
            start, end = min(start, first), max(end, last)
        known.append((start, end))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Context manager: add the block's time to the activity `name`, also when the block raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent(name, start, time.monotonic())


__all__ = ["MERGE_SPANS_S", "Clock", "Halted"]
