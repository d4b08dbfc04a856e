"""Returns freed heap memory of the C library to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any


def trim() -> None:
    """Return freed heap memory of the C library to the system (malloc_trim).

    A no-op if the C library has no malloc_trim.

    Weights of some MiB freed one by one leave hundreds of MiB in the heap.
    """
    found = _malloc_trim()
    if found is not None:
        found(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no handle of the process itself: not a POSIX system
        return None


__all__ = ["trim"]
