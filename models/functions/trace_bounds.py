"""Bounds the tracing of a function: number of traced arrays, and seconds.

Each operation makes traced arrays, and both bounds are checked where one is made. Code that makes none, like a loop
over plain numbers, takes the time that it takes without tracing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ... import settings
from ...egraph.ir.trace_states import TraceStates
from ...errors import ExportTimeError
from ..files.limits import check_count

#: Traced arrays for each operation that the setting `max_nodes` allows: views, scalars and results that are not used.
SPARE = 4


@dataclass(eq=False)
class _Bound:
    """State of one bounded trace."""

    title: str
    seconds: float
    end: float
    most: int
    made: int = 0


_bounds: TraceStates[_Bound] = TraceStates("trace_bound")


@contextmanager
def bounded(title: str, seconds: float) -> Iterator[None]:
    """Context manager in which a function is traced within bounds; `title` names it in errors.

    Inside it `count` raises TooLargeError for more than SPARE times `max_nodes` arrays, ExportTimeError after
    `seconds`. Arrays that are made in a thread of the function's own count for the latest trace.
    """
    bound = _Bound(title, seconds, time.monotonic() + seconds, SPARE * settings.current().max_nodes)
    with _bounds.added(bound):
        yield


def count() -> None:
    """Count one traced array of the trace in progress. Raises TooLargeError or ExportTimeError at its bounds."""
    bound = _bounds.present
    if bound is None:
        return
    bound.made += 1
    if bound.made > bound.most:
        check_count(bound.made, where=bound.title, most=bound.most // SPARE)
    if time.monotonic() > bound.end:
        raise ExportTimeError(
            f"tracing the function took more than {bound.seconds:g} s",
            where=bound.title,
            hint="a Python loop is traced step by step: write it with NumPy's functions of whole arrays, or give a larger"
            " budget or TENSOR_GRAPHS_EXPORT_SECONDS (settings.override(export_seconds=...))",
        )


__all__ = ["SPARE", "bounded", "count"]
