"""PICKS: single places of what lies in memory, as an unrolled program reads a sequence step by step.

Such a place is a view, which costs nothing. A region that reads the sequence itself at place 7 is a kernel for that step alone; one
that reads the view is the same kernel at every step: grown, compiled and measured once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..egraph.dims import concrete
from ..egraph.ops import Type
from ..egraph.view import EGraphView

MANY = 8  # places of one value from which on a program counts as unrolled


def picks(view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> frozenset[int]:
    """The classes that are one place along an axis of something given that has at least `MANY` such, also without that axis, or
    in a wider type that lies in memory as the same."""
    same = {c: c for c in given}  # what is something given, in another type: that
    found: dict[int, int] = {}  # a place of something given: that
    views = [(n, view.op[n]) for n in range(len(view)) if view.op[n] in ("slice", "cast", "reshape")]
    while True:
        known = len(same) + len(found)
        for n, op in views:
            cls, kid = int(view.cls[n]), int(view.kids(n)[0])
            shape, inner = concrete(view.types[cls].shape), concrete(view.types[kid].shape)
            if op == "cast" and types[cls].dtype == types[kid].dtype:
                for into in (same, found):
                    if kid in into:
                        into.setdefault(cls, into[kid])
            elif op == "slice" and kid in same and shape[(axis := dict(view.attrs[n])["axis"])] == 1 < inner[axis]:
                found.setdefault(cls, same[kid])
            elif op == "reshape" and kid in found and [d for d in shape if d > 1] == [d for d in inner if d > 1]:
                found.setdefault(cls, found[kid])
        if len(same) + len(found) == known:
            break
    sliced = [found[c] for c in {int(view.cls[n]) for n, op in views if op == "slice"} if c in found]
    return frozenset(c for c, base in found.items() if sliced.count(base) >= MANY and c not in given)
