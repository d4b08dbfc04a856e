"""PIECES: results that are put together are computed piece by piece, in one kernel.

Which value an element of a concatenation is depends on its place. As one expression that is a choice between all of them, and
every element computes all it may be: of sixteen steps of a recurrence, stacked, each element all sixteen. Where the pieces are of
one size and there is much to compute, the kernel runs over the elements of one of them and stores each piece in its place, so
that what they share is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

from ..egraph.dims import concrete
from ..egraph.graph import Tensor, make, topological
from ..egraph.ops import OPS

MOST = 256  # pieces of a result
WORTH = 3.0  # operations for each piece of an element, beyond which computing all of them for each is dear


class Piece(NamedTuple):
    """A part of a result along an axis, from `start` on; `term` computes it. `axis` is -1 where it is all of it."""

    root: Tensor
    term: Tensor
    axis: int = -1
    start: int = 0


def pieces(roots: Sequence[Tensor]) -> list[Piece] | None:
    """The pieces of some results, all with as many elements or one value along some axes; None where they have no such pieces or
    little is computed in them."""
    nodes = topological(roots)
    if any(t.op in ("matmul", "conv", "scatter_elements") for t in nodes):
        return None
    found = [_cut(t) for t in roots]
    count = sum(map(len, found))
    work = sum(_work(t) for t in nodes)
    if all(len(f) == 1 for f in found) or work < WORTH * count:
        return None
    shapes = [concrete(p.term.shape) for f in found for p in f]
    widest = max(shapes, key=prod)
    if any(prod(s) != prod(widest) and not _within(s, widest) for s in shapes):
        return None
    return [p for f in found for p in f]


def _within(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(own) == len(shape) and all(d in (1, whole) for d, whole in zip(own, shape))


def _work(t: Tensor) -> float:
    """Operations for an element; a reduction counts as many as there is in one of its results."""
    if t.entry.kind in ("pointwise", "reduction"):
        return 0.0 if t.op == "cast" else OPS[t.op].flops
    return 0.0


def _cut(root: Tensor) -> list[Piece]:
    """The pieces of a result along the axis of the concatenations that it is made of by pointwise operations, all of one size."""
    ends: dict[int, set[int]] = {}
    seen: set[Tensor] = set()
    stack = [(root, 0, -1)]
    while stack:
        t, before, axis = stack.pop()
        if t in seen and axis < 0:
            continue
        seen.add(t)
        if t.op == "concat" and axis in (-1, t.attr("axis")):
            along, (x, y) = t.attr("axis"), t.args
            middle = before + int(x.shape[along])
            ends.setdefault(along, set()).add(middle)
            stack += [(x, before, along), (y, middle, along)]
        elif axis < 0 and t.entry.pointwise:
            stack += [(a, 0, -1) for a in t.args if a.shape == root.shape]
    if not ends:
        return [Piece(root, root)]
    axis = max(ends, key=lambda a: len(ends[a]))
    size = concrete(root.shape)[axis]
    step = gcd(size, *ends[axis])
    if size // step > MOST:
        return [Piece(root, root)]
    starts = range(0, size, step)
    return [
        Piece(root, make("slice", (root,), {"axis": axis, "start": s, "stop": s + step, "step": 1}), axis, s)
        for s in starts
    ]
