"""Seconds that a C compiler may take: the time left of the call that needs it, but at least what a source of its length
needs on a busy machine, so that a compiler that hangs costs seconds, not minutes. And seconds that one is expected to
take: compilations of this process tell how much slower than an idle machine this one is at present."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LONGEST_S = 120.0  # seconds of any compiler, and of those outside of a call with a budget
# at load 17 on two cores a compiler took 0.4 s for a line, and a second for 20,000 characters
LEAST_S, CHARACTERS_PER_S = 8.0, 5000.0

# an idle machine takes so long for a line with its headers, and for a source of so many characters a second more
IDLE_S, IDLE_CHARACTERS_PER_S = 0.1, 30_000.0
MOST_SLOWED = 20.0  # largest factor that is believed of compilations that have ended

_slowed = 1.0  # time of the latest compilation of this process, as a multiple of that of an idle machine
_left: ContextVar[Callable[[], float] | None] = ContextVar("seconds left for compilers", default=None)


@contextmanager
def compilers_within(left: Callable[[], float]) -> Iterator[None]:
    """Context in which compilers end within `left()`, the seconds left of the call, or shortly after."""
    token = _left.set(left)
    try:
        yield
    finally:
        _left.reset(token)


def is_bounded() -> bool:
    """Whether compilers end with the call that needs them (`compilers_within`)."""
    return _left.get() is not None


def compiler_seconds(characters: int) -> float:
    """Seconds that a compiler may take from now on for a source of so many characters."""
    left = _left.get()
    least = LEAST_S + characters / CHARACTERS_PER_S
    return LONGEST_S if left is None else min(LONGEST_S, max(least, left()))


class CompileWatch:
    """Gives compilers their time (`seconds`, to be asked when one starts), and notes how long they took together
    (`ended`)."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began, self._characters = now, 0.0, 0

    def seconds(self, characters: int) -> float:
        """`compiler_seconds` of a source that is about to be compiled."""
        self._began = self._began if self._characters else self._now()
        self._characters += characters
        return compiler_seconds(characters)

    def ended(self) -> None:
        """Note that all compilers have ended. Nothing is learned if there were none, as of kernels kept on disk."""
        global _slowed
        if self._characters:
            idle = IDLE_S + self._characters / IDLE_CHARACTERS_PER_S
            _slowed = min(MOST_SLOWED, max(1.0, (self._now() - self._began) / idle))


def expected_compile_seconds(idle: float) -> float:
    """Seconds that compiling is expected to take now which takes `idle` seconds on an idle machine."""
    return idle * _slowed


__all__ = ["CompileWatch", "compiler_seconds", "compilers_within", "expected_compile_seconds", "is_bounded"]
