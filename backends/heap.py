"""The C library's heap: freed memory that it keeps for later is given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any


def trim() -> None:
    """Give back what was freed and is still held: weights of some MiB, one by one, leave hundreds of MiB behind. Nothing is done
    where the C library has no such call (glibc has)."""
    found = _malloc_trim()
    if found is not None:
        found(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no handle of the program itself: not a POSIX system
        return None


__all__ = ["trim"]
