"""Seconds that a C compiler may take: the time left of the call that needs it, but at least what a source of its length
needs on a busy machine, so that a compiler that hangs costs seconds, not minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LONGEST_S = 120.0  # seconds of any compiler, and of those outside of a call with a budget
# at load 17 on two cores a compiler took 0.4 s for a line, and a second for 20,000 characters
LEAST_S, CHARACTERS_PER_S = 8.0, 5000.0

_left: ContextVar[Callable[[], float] | None] = ContextVar("seconds left for compilers", default=None)


@contextmanager
def compilers_within(left: Callable[[], float]) -> Iterator[None]:
    """Context in which compilers end within `left()`, the seconds left of the call, or shortly after."""
    token = _left.set(left)
    try:
        yield
    finally:
        _left.reset(token)


def compiler_seconds(characters: int) -> float:
    """Seconds that a compiler may take from now on for a source of so many characters."""
    left = _left.get()
    least = LEAST_S + characters / CHARACTERS_PER_S
    return LONGEST_S if left is None else min(LONGEST_S, max(least, left()))


__all__ = ["compiler_seconds", "compilers_within"]
