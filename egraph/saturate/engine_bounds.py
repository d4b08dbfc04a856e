"""Defines the limits of one request to the engine, and the errors that end a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class EngineError(Exception):
    """Raised when egglog rejects a command."""


class Deadline(Exception):
    """Raised when a request exceeded its time limit and its worker process was killed."""


class MemoryLimit(Exception):
    """Raised when the worker exceeded its memory limit and ended."""


class Stopped(Exception):
    """Raised when the caller requested a stop and the worker process was killed."""


Stop = Callable[[], bool]


def never() -> bool:
    """Default `stop` callback: returns False."""
    return False


@dataclass(frozen=True)
class Bounds:
    """Limits of one request: wall-clock seconds, resident bytes of the worker, and a callback that requests a stop."""

    seconds: float
    bytes: int
    stop: Stop = never
