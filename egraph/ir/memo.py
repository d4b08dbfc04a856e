"""LRU caches (memo tables) of functions over terms and kernels, cleared at the end of every optimization.

The cached values are trees of hundreds of objects (a few kB to a MB each) that are of no use after the program is
built. Each cache is bounded while an optimization runs; `forget` clears all caches. Clearing is safe while another
thread optimizes: that thread recomputes the values it still needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_tables: list[Any] = []


def memo(size: int) -> Callable[[F], F]:
    """Decorator that caches up to `size` results of a function (LRU); `forget` clears the cache."""

    def decorated(function: F) -> F:
        _tables.append(lru_cache(size)(function))
        return cast(F, _tables[-1])

    return decorated


def forget() -> None:
    """Clear the caches of all functions decorated with `memo`."""
    for table in _tables:
        table.cache_clear()


__all__ = ["forget", "memo"]
