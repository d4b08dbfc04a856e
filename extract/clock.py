"""Where the time goes: seconds by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Halted(Exception):
    """Work was ended before it had a result, by whoever was polled meanwhile."""


@dataclass
class Clock:
    """Wall-clock seconds by name, in the order in which the names first came up."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds (negative ones take back) under a name."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Count the block's time under a name, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)


__all__ = ["Clock", "Halted"]
