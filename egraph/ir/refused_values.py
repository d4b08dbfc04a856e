"""Keeps the errors of code that asks an expression for values, or for a result that cannot be traced, while a function
is traced.

Expressions have no values, so such code gets an error. If it catches the error and goes on, the graph is that of the
branch for errors, whatever the values are at a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

from ...errors import TensorGraphsError

_asked: ContextVar[list[TensorGraphsError] | None] = ContextVar("asked", default=None)


def refuse_value(error: TensorGraphsError) -> NoReturn:
    """Raise `error`. If the traced code catches it, it is raised again at the end of the trace (`uncaught`)."""
    asked = _asked.get()
    if asked is not None:
        asked.append(error)
    raise error


@contextmanager
def uncaught() -> Iterator[None]:
    """Context manager in which a function is called with expressions. Raises the first error of `refuse_value` at its
    end if the function caught it."""
    asked: list[TensorGraphsError] = []
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)
    if asked:
        asked[0].hint = "the function caught this error and went on; " + asked[0].hint
        raise asked[0]


__all__ = ["refuse_value", "uncaught"]
