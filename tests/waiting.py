"""Waits, with a limit, for what another thread or process must do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0  # seconds for what must happen


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises AssertionError if it does not within WAIT_S."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.001)


__all__ = ["WAIT_S", "wait_for"]
