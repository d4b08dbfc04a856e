"""Keeps the errors of code that asks an expression for values, or for a result that cannot be traced, while a function
is traced.

Expressions have no values, so such code gets an error. If it catches the error and goes on, the graph is that of the
branch for errors, whatever the values are at a call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from ...errors import TensorGraphsError, TraceError
from .trace_states import TraceStates


@dataclass(eq=False)
class _Asked:
    """Errors of one trace. `others`: the threads that were alive when it began."""

    errors: list[TensorGraphsError] = field(default_factory=list)
    others: frozenset[int] = field(default_factory=lambda: frozenset(t.ident or 0 for t in threading.enumerate()))


_traces: TraceStates[_Asked] = TraceStates("asked")


def refuse_value(error: TensorGraphsError) -> NoReturn:
    """Raise `error`. If the traced code catches it, it is raised again at the end of the trace (`uncaught`).

    In a thread without a trace of its own, the error counts for the traces of other threads: all if it is a TraceError,
    which only traced arrays raise; else those during which the thread was started.
    """
    own = _traces.own
    for trace in (own,) if own is not None else _traces.all():
        if trace is own or isinstance(error, TraceError) or threading.get_ident() not in trace.others:
            trace.errors.append(error)
    raise error


@contextmanager
def uncaught() -> Iterator[None]:
    """Context manager in which a function is called with expressions. Raises the first error of `refuse_value` at its
    end if the function caught it."""
    asked = _Asked()
    with _traces.added(asked):
        yield
    if asked.errors:
        error = asked.errors[0]
        error.hint = "the function caught this error and went on; " + error.hint
        raise error


__all__ = ["refuse_value", "uncaught"]
