"""Rewrites index counters (iota) to a canonical form, and eliminates `any` reductions over comparisons of positions.

A mask over cache positions compares positions with a bound (`position <= now`). Attention also needs to know whether a
row sees any position, a reduction over the whole mask. Two scalar comparisons give the same answer: some number of
0..n-1 lies in [low, high] if and only if low <= high, low <= n-1 and 0 <= high.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.tensor import Tensor, make
from ..ops.atomic_numpy import Array
from ..types import dtypes
from ..types.dims import Dim, Shape

Build = Callable[[str, tuple[Tensor, ...], dict[str, Any]], Tensor]  # make a simplified node


def counter(array: Array) -> Tensor | None:
    """The `iota` node that equals an integer array; None if the array is not a counter along one axis."""
    axes = [a for a, d in enumerate(array.shape) if d > 1]
    name = dtypes.name_of(array.dtype)
    if dtypes.category(name) != "int" or not axes or array.reshape(-1)[0] != 0:
        return None
    for axis in axes:
        line = np.arange(array.shape[axis]).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        if np.array_equal(array, np.broadcast_to(line, array.shape)):
            return make("iota", (), {"axis": axis, "shape": array.shape, "dtype": name})
    return None


def reshaped(x: Tensor, shape: Shape) -> Tensor | None:
    """A counter reshaped to a shape that differs only in axes of size 1; None for other shapes."""
    axis = _same_axis(x.shape, shape, x.attr("axis"))
    return None if axis is None else make("iota", (), {**dict(x.attrs), "axis": axis, "shape": shape})


def any_of(x: Tensor, axis: int, build: Build) -> Tensor | None:
    """Bounds check that equals the reduction `any` of a mask along an axis (kept with size 1); None if the mask is not
    a conjunction of comparisons of positions along that axis with values that are constant along it.

    `build` makes its nodes.
    """
    size = x.shape[axis]
    if not isinstance(size, int) or size < 2:
        return None
    if x.op == "reshape":
        inner = _same_axis(x.shape, x.args[0].shape, axis)
        found = None if inner is None else any_of(x.args[0], inner, build)
        return None if found is None else _shaped("reshape", found, _without(x.shape, axis), build)
    if x.op == "broadcast_to":
        found = any_of(x.args[0], axis, build)
        return None if found is None else _shaped("broadcast_to", found, _without(x.shape, axis), build)
    known, lows, highs = _bounds(x, axis)
    if not lows and not highs:
        return None
    dtype = (lows + highs)[0][0].dtype
    ends = [make("full", (), {"value": v, "shape": (1,) * x.rank, "dtype": dtype}) for v in (0, size - 1)]
    met = [_below(low, high, build) for low in lows for high in highs]
    met += [_below(low, (ends[1], False), build) for low in lows] + [_below((ends[0], False), h, build) for h in highs]
    found = known[0] if known else met.pop(0)
    for other in (*known[1:], *met):
        found = build("and", (found, other), {})
    return _shaped("broadcast_to", found, _without(x.shape, axis), build)


Bound = tuple[Tensor, bool]  # (value compared with, whether the comparison is strict)


def _bounds(x: Tensor, axis: int) -> tuple[list[Tensor], list[Bound], list[Bound]]:
    """Split a conjunction of conditions on positions along an axis.

    Returns (conditions independent of the position, lower bounds, upper bounds); three empty lists if there are other
    conditions.
    """
    known: list[Tensor] = []
    lows: list[Bound] = []
    highs: list[Bound] = []
    todo = [x]
    while todo:
        part = todo.pop()
        turned = part.op == "not" and part.args[0].op in ("lt", "le")  # for integers, not (a < b) is b <= a
        test = part.args[0] if turned else part
        if part.shape[axis] == 1:
            known.append(part)
        elif part.op == "and":
            todo += reversed(part.args)
        elif test.op in ("lt", "le") and dtypes.category(test.args[0].dtype) == "int":
            a, b = reversed(test.args) if turned else test.args
            strict = (test.op == "lt") != turned
            if _counts(a, axis) and b.shape[axis] == 1:
                highs.append((b, strict))
            elif _counts(b, axis) and a.shape[axis] == 1:
                lows.append((a, strict))
            else:
                return [], [], []
        else:
            return [], [], []
    return known, lows, highs


def _counts(x: Tensor, axis: int) -> bool:
    return x.op == "iota" and x.attr("axis") == axis and x.shape[axis] != 1


def _below(low: Bound, high: Bound, build: Build) -> Tensor:
    """Condition that an integer exists between two bounds."""
    (a, above), (b, under) = low, high
    if above and under:  # both strict: low + 1 < high
        one = make("full", (), {"value": 1, "shape": (1,) * a.rank, "dtype": a.dtype})
        return build("lt", (build("add", (a, one), {}), b), {})
    return build("lt" if above or under else "le", (a, b), {})


def _shaped(op: str, x: Tensor, shape: Shape, build: Build) -> Tensor:
    return x if x.shape == shape else build(op, (x,), {"shape": shape})


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _same_axis(a: Shape, b: Shape, axis: int) -> int | None:
    """Index in `b` of an axis of `a` longer than 1, where the shapes differ only in axes of size 1; otherwise None."""

    def long(shape: Shape) -> list[tuple[int, Dim]]:
        return [(n, d) for n, d in enumerate(shape) if d != 1]

    one, other = long(a), long(b)
    if [d for _, d in one] != [d for _, d in other] or a[axis] == 1:
        return None
    return other[[n for n, _ in one].index(axis)][0]
