"""PIECES: results that are put together are computed piece by piece, in one kernel.

Which value an element of a concatenation is depends on its place. As one expression that is a choice between all of them, and
every element computes all it may be: of sixteen steps of a recurrence, stacked, each element all sixteen. Where the pieces are of
one size and there is much to compute, the kernel runs over the elements of one of them and stores each piece in its place, so
that what they share is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from ..egraph.dims import concrete
from ..egraph.graph import Tensor, make, topological
from ..egraph.ops import OPS

MOST = 256  # pieces of a result
WORTH = 3.0  # operations for each piece of an element, beyond which computing all of them for each is dear


class Piece(NamedTuple):
    """A part of a result, of which `term` computes an element of each axis from `start` on."""

    root: Tensor
    term: Tensor
    start: tuple[int, ...]


def pieces(roots: Sequence[Tensor]) -> list[Piece] | None:
    """The pieces of some results, all with as many elements or one value along some axes; None where they have no such pieces or
    little is computed in them."""
    nodes = topological(roots)
    if any(t.op in ("matmul", "conv", "scatter_elements") for t in nodes):
        return None
    found = [p for t in roots for p in _cut(t)]
    work = sum(OPS[t.op].flops for t in nodes if t.entry.kind in ("pointwise", "reduction") and t.op != "cast")
    if len(found) == len(roots) or work < WORTH * len(found):
        return None
    shapes = [concrete(p.term.shape) for p in found]
    widest = max(shapes, key=prod)
    return found if all(prod(s) == prod(widest) or _within(s, widest) for s in shapes) else None


def _within(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(own) == len(shape) and all(d in (1, whole) for d, whole in zip(own, shape))


def _cut(root: Tensor) -> list[Piece]:
    """The pieces of a result along the axes of the concatenations that it is made of, all of one size."""
    shape, ends = concrete(root.shape), _ends(root)
    steps = [gcd(size, *ends.get(axis, ())) for axis, size in enumerate(shape)]
    if not ends or prod(size // step for size, step in zip(shape, steps)) > MOST:
        return [Piece(root, root, (0,) * root.rank)]
    found = []
    for start in product(*(range(0, size, step) for size, step in zip(shape, steps))):
        term = root
        for axis in ends:
            place = {"axis": axis, "start": start[axis], "stop": start[axis] + steps[axis], "step": 1}
            term = make("slice", (term,), place)
        found.append(Piece(root, term, start))
    return found


def _ends(root: Tensor) -> dict[int, set[int]]:
    """Where pieces meet, along each axis: of concatenations that pointwise operations read, and of those that these put together,
    also as axes of one element come and go."""
    ends: dict[int, set[int]] = {}
    seen: set[tuple[Tensor, tuple[int, ...]]] = set()
    here = (0,) * root.rank
    stack = [(root, tuple(range(root.rank)), here, False)]  # which axis of the root each axis is, where it begins there
    while stack:
        t, axes, before, inside = stack.pop()
        if (t, before) in seen:
            continue
        seen.add((t, before))
        if t.op == "concat" and axes[t.attr("axis")] >= 0:
            (x, y), axis = t.args, axes[t.attr("axis")]
            middle = before[axis] + concrete(x.shape)[t.attr("axis")]
            ends.setdefault(axis, set()).add(middle)
            after = (*before[:axis], middle, *before[axis + 1 :])
            stack += [(x, axes, before, True), (y, axes, after, True)]
        elif t.op == "reshape" and (moved := _moved(t, axes)) is not None:
            stack.append((t.args[0], moved, before, inside))
        elif not inside and (t.entry.pointwise or t.op == "cast"):
            stack += [(a, axes, before, False) for a in t.args if a.shape == t.shape]
    return ends


def _moved(t: Tensor, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which axes of the root those of a reshaped tensor's operand are (-1: none); None where others than axes of one element
    come or go."""
    own, inner = concrete(t.shape), concrete(t.args[0].shape)
    kept = [a for a, size in zip(axes, own) if size > 1]
    if [d for d in own if d > 1] != [d for d in inner if d > 1]:
        return None
    rest = iter(kept)
    return tuple(next(rest) if d > 1 else -1 for d in inner)
