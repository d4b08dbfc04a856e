"""Fills the memory of a bound GPU program with NaN (poisons it), so that a call that reads memory which it has not
written yet reads NaN.

After a call, the workspace and recycled results hold the right values of that call. A kernel that runs too early,
writes to another place or not at all would therefore go unnoticed in a second call on the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def poisoned(bound: Any) -> Iterator[None]:
    """Context manager in which the next call of a bound GPU program finds 0xff bytes (NaN, -1) wherever it must write
    before it reads: in the workspace, in memory for results, and in copies of inputs. Calls of a program at fixed
    sizes record no launches in it, so that a recorded launch that uses memory of the call that recorded it is seen in a
    call on other values.

    `bound`: a `Calls` or a `CallsBySize` of an emitted program. The workspace of a program that an older version saved
    is not known.
    """
    every = _calls(bound)
    before = [(calls.fresh, calls.wanted) for calls in every]
    for x in (*_workspaces(bound), *(place for calls in every for place in calls.places.values())):
        filled(x)
    for calls, (makers, _) in zip(every, before, strict=True):
        calls.fresh, calls.wanted = [partial(_made, make) for make in makers], False
    try:
        yield
    finally:
        for calls, (makers, wanted) in zip(every, before, strict=True):
            calls.fresh, calls.wanted = makers, wanted


def filled(x: Any) -> Any:
    """A tensor whose whole memory is set to 0xff: NaN in floats, -1 in integers."""
    import torch

    torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()).fill_(255)
    return x


def _made(make: Any) -> Any:
    return filled(make())


def _calls(bound: Any) -> Sequence[Any]:
    """The `Calls` of a bound program: one, or one for each choice of sizes."""
    return list(bound.kept.values()) if hasattr(bound, "kept") else [bound] if hasattr(bound, "fresh") else []


def _workspaces(bound: Any) -> list[Any]:
    """Memory of intermediate values, which all calls of a program share."""
    if hasattr(bound, "kept"):
        views = getattr(bound.workspace, "views", {})
        return list(views.values())[:1]
    memory = getattr(bound, "memory", None)
    return [] if memory is None else [memory]


__all__ = ["filled", "poisoned"]
