"""Finds sequence slices: single positions of a value in memory, which an unrolled program reads step by step.

Such a slice is a view, at no cost. A fusion group (term for one kernel) that reads the sequence itself at position 7 is
a kernel for that step alone; a group that reads the view is the same kernel at every step: generated, compiled and
measured once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView

MIN_UNROLLED_POSITIONS = 8  # least number of positions of one value for a program to count as unrolled


def sequence_slice_classes(view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> frozenset[int]:
    """E-classes that are one position along an axis of a value of `given` (in memory before any kernel runs); only of
    values of which at least `MIN_UNROLLED_POSITIONS` positions are used. `types`: storage type of each e-class.

    Includes slices with the axis removed, or cast to a dtype with the same storage dtype.
    """
    same = {c: c for c in given}  # class -> the given value that it equals up to dtype
    found: dict[int, int] = {}  # class -> the given value of which it is one position
    views = [(n, view.op[n]) for n in range(len(view)) if view.op[n] in ("slice", "cast", "reshape")]
    while True:
        known = len(same) + len(found)
        for n, op in views:
            cls, child = int(view.cls[n]), int(view.children(n)[0])
            shape, inner = concrete(view.types[cls].shape), concrete(view.types[child].shape)
            if op == "cast" and types[cls].dtype == types[child].dtype:
                for into in (same, found):
                    if child in into:
                        into.setdefault(cls, into[child])
            elif op == "slice" and child in same and shape[(axis := dict(view.attrs[n])["axis"])] == 1 < inner[axis]:
                found.setdefault(cls, same[child])
            elif op == "reshape" and child in found and [d for d in shape if d > 1] == [d for d in inner if d > 1]:
                found.setdefault(cls, found[child])
        if len(same) + len(found) == known:
            break
    sliced = [found[c] for c in {int(view.cls[n]) for n, op in views if op == "slice"} if c in found]
    return frozenset(c for c, base in found.items() if sliced.count(base) >= MIN_UNROLLED_POSITIONS and c not in given)
