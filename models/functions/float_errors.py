"""Refuses functions that turn floating-point errors into exceptions or calls while they run.

A program raises none, so that its results would be those of calls without such an error, whatever the values are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.trace_states import TraceStates
from ...errors import TraceError

#: (kind, handling) of NumPy's error state and the filters that make warnings errors
_Raising = frozenset[Any]

_before: TraceStates[_Raising] = TraceStates("before")


def _raising() -> _Raising:
    state = ((kind, how) for kind, how in np.geterr().items() if how in ("raise", "call"))
    return frozenset((*state, *(f for f in warnings.filters if f[0] == "error")))


@contextmanager
def as_before() -> Iterator[None]:
    """Context manager in which a function is traced: `refuse_changed` compares with the handling of errors now."""
    with _before.added(_raising()):
        yield


def refuse_changed() -> None:
    """Raise TraceError if the function in trace has made errors of operations raise or call something."""
    before = _before.present
    if before is not None and not _raising() <= before:
        refuse_value(
            TraceError(
                "the function makes floating-point errors raise or call something, which a program does not do",
                hint="test the values: np.where(np.isfinite(y), y, ...)",
            )
        )


__all__ = ["as_before", "refuse_changed"]
