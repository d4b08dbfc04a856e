"""Memo tables of functions over terms and kernels: emptied at the end of every optimization.

What such a table holds are trees of hundreds of objects, a few kB to a MB each, that nothing asks for again once the program is built.
A table is bounded while an optimization runs; `forget` empties all of them. They are only caches: where another thread's
optimization is under way, it computes again what it still needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_tables: list[Any] = []


def memo(size: int) -> Callable[[F], F]:
    """A decorator: keep the results of a function for up to `size` arguments, the latest used, until `forget`."""

    def decorated(function: F) -> F:
        _tables.append(lru_cache(size)(function))
        return cast(F, _tables[-1])

    return decorated


def forget() -> None:
    """Empty all tables."""
    for table in _tables:
        table.cache_clear()


__all__ = ["forget", "memo"]
