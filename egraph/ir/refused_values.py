"""Keeps the errors of code that asks an expression for values, or for a result that cannot be traced, while a function
is traced.

Expressions have no values, so such code gets an error. If it catches the error and goes on, the graph is that of the
branch for errors, whatever the values are at a call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NoReturn

from ...errors import TensorGraphsError, TraceError


@dataclass(eq=False)
class _Asked:
    """Errors of one trace. `others`: the threads that were alive when it began."""

    errors: list[TensorGraphsError] = field(default_factory=list)
    others: frozenset[int] = field(default_factory=lambda: frozenset(t.ident or 0 for t in threading.enumerate()))


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)
_traces: list[_Asked] = []  # all that are in progress


def refuse_value(error: TensorGraphsError) -> NoReturn:
    """Raise `error`. If the traced code catches it, it is raised again at the end of the trace (`uncaught`).

    In a thread without a trace of its own, the error counts for the traces of other threads: all if it is a TraceError,
    which only traced arrays raise; else those during which the thread was started.
    """
    asked = _asked.get()
    for trace in (asked,) if asked is not None else tuple(_traces):
        if trace is asked or isinstance(error, TraceError) or threading.get_ident() not in trace.others:
            trace.errors.append(error)
    raise error


@contextmanager
def uncaught() -> Iterator[None]:
    """Context manager in which a function is called with expressions. Raises the first error of `refuse_value` at its
    end if the function caught it."""
    asked = _Asked()
    token = _asked.set(asked)
    _traces.append(asked)
    try:
        yield
    finally:
        _asked.reset(token)
        _traces.remove(asked)
    if asked.errors:
        error = asked.errors[0]
        error.hint = "the function caught this error and went on; " + error.hint
        raise error


__all__ = ["refuse_value", "uncaught"]
