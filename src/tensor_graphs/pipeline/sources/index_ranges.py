"""Ranges of whole numbers that values of a graph are in, whatever its inputs are."""

from __future__ import annotations

import math

import numpy as np

from ...egraph.ir.tensor import Tensor
from ...egraph.simplify.casts import lossless
from ...egraph.simplify.fills import number
from ...egraph.types import dtypes

Range = tuple[float, float]
ANYTHING: Range = (-math.inf, math.inf)
SAME = ("reshape", "permute", "broadcast_to", "flip")  # views that have all elements of their operand
_SELECT = ("gather", "gather_elements", "max", "min", "reshape", "permute", "broadcast_to", "slice", "flip", "windows")


def range_of(x: Tensor, left: int = 10) -> Range:
    """Least and largest value of a tensor of integers or bools, found from operations at most `left` steps before it.
    Floats and operations that are not known here have any value of their dtype."""
    least, most = _of_dtype(x.dtype)
    low, high = _found(x, left - 1) if left else ANYTHING
    return (low, high) if least <= low and high <= most else (least, most)  # integers wrap


def _of_dtype(dtype: str) -> Range:
    if dtype == "bool":
        return 0, 1
    return (dtypes.least(dtype), dtypes.greatest(dtype)) if dtypes.category(dtype) == "int" else ANYTHING


def _found(x: Tensor, left: int) -> Range:
    if x.op == "constant" and x.data is not None:
        data = np.asarray(x.data)
        return (float(data.min()), float(data.max())) if data.size and data.dtype.kind in "iub" else ANYTHING
    if x.op == "full":
        value = float(x.attr("value"))
        return ANYTHING if dtypes.is_float(x.dtype) else (value, value)
    if x.op == "iota":
        size = x.shape[int(x.attr("axis"))]
        return (0, size - 1) if isinstance(size, int) else (0, math.inf)
    if x.op in ("argmax", "argmin", "argsort"):
        size = x.args[0].shape[int(x.attr("axis"))]
        return (0, size - 1) if isinstance(size, int) else (0, math.inf)
    if not x.args or dtypes.is_float(x.args[0].dtype):
        return ANYTHING
    if x.op == "where":
        return _chosen(x, left)
    ranges = [range_of(a, left) for a in x.args]
    if x.op in _SELECT or x.op == "cast":
        return ranges[0]
    if x.op == "concat":
        return min(r[0] for r in ranges), max(r[1] for r in ranges)
    return _computed(x.op, ranges)


def _computed(op: str, ranges: list[Range]) -> Range:
    (a, b), (c, d) = ranges[0], ranges[-1]
    if op == "add":
        return a + c, b + d
    if op == "sub":
        return a - d, b - c
    if op in ("mul", "floordiv"):
        if math.inf in (b, d) or -math.inf in (a, c) or (op == "floordiv" and c <= 0):
            return ANYTHING
        ends = [p * q if op == "mul" else p // q for p in (a, b) for q in (c, d)]
        return min(ends), max(ends)
    if op == "mod":
        return (0, d - 1) if c > 0 else ANYTHING
    if op == "maximum":
        return max(a, c), max(b, d)
    if op == "minimum":
        return min(a, c), min(b, d)
    if op == "abs":
        return 0, max(abs(a), abs(b))
    return ANYTHING


def _chosen(x: Tensor, left: int) -> Range:
    """Range of `where(test, a, b)`; of `where(i < n, i + m, i)` the tested i is below n in a and from n on in b."""
    test, first, second = x.args
    (a, b), (c, d) = range_of(first, left), range_of(second, left)
    border = number(without_views(test.args[1])) if test.op == "lt" else None
    if border is not None and math.isfinite(border):
        limit = math.ceil(border)
        tested = uncast(test.args[0])
        if equal(uncast(second), tested):
            c = max(c, limit)
        if first.op == "add" and any(equal(uncast(v), tested) for v in first.args):
            added = [number(without_views(v)) for v in first.args if not equal(uncast(v), tested)]
            if len(added) == 1 and added[0] is not None:
                b = min(b, limit - 1 + added[0])
    return min(a, c), max(b, d)


def without_views(x: Tensor) -> Tensor:
    """The value of which `x` has all elements, with the same numbers."""
    while x.op in SAME or (x.op == "cast" and lossless(x.args[0].dtype, x.dtype)):
        x = x.args[0]
    return x


def selected_from(x: Tensor) -> Tensor:
    """The value of which `x` has some or all elements, with the same numbers."""
    while x.op in _SELECT or (x.op == "cast" and lossless(x.args[0].dtype, x.dtype)):
        x = x.args[0]
    return x


def uncast(x: Tensor) -> Tensor:
    """The value of which `x` has the numbers, at the same places."""
    while x.op == "cast" and lossless(x.args[0].dtype, x.dtype):
        x = x.args[0]
    return x


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether two values are the same one, or the same views of it."""
    while x is not y and x.op == y.op and x.op in SAME and x.attrs == y.attrs:
        x, y = uncast(x.args[0]), uncast(y.args[0])
    return x is y


__all__ = ["ANYTHING", "SAME", "equal", "range_of", "selected_from", "uncast", "without_views"]
