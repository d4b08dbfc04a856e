"""What a constant array is made of: equal numbers, zeros around a smaller array, repeats, a unit matrix.

Rules speak of ops, not of numbers in an array. Saying a constant by ops, bit for bit the same, lets them see that a kernel
is the unit matrix with a rim of zeros, or a matrix full of ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..egraph import api
from ..egraph.dtypes import name_of
from ..egraph.graph import Tensor, constant, make, rebuild

Array = np.ndarray[Any, Any]
LARGEST = 1 << 16  # elements of arrays that are looked into


def spelled_out(roots: list[Tensor]) -> list[Tensor]:
    """The roots with every constant said by ops as far as possible. Values stay the same, bit for bit."""
    return rebuild(roots, lambda node, args: said(node.data) if node.op == "constant" else None)


def said(data: Any) -> Tensor | None:
    """An expression for an array of at most `LARGEST` floats; None where nothing is known of it."""
    if not isinstance(data, np.ndarray) or not 0 < data.size <= LARGEST or data.dtype.kind in "iub":
        return None
    found = _expression(data)
    return None if found.op == "constant" else found


def _expression(x: Array) -> Tensor:
    dtype, number = name_of(x.dtype), x.flat[0]
    if _same(x, np.full_like(x, number)):
        return api.full(x.shape, float(number), dtype)
    for axis, size in enumerate(x.shape):
        zero = [_same(part, np.zeros_like(part)) for part in np.moveaxis(x, axis, 0)]
        lo, hi = zero.index(False), zero[::-1].index(False)
        if lo and hi:  # one-sided zeros are as well the corner of something else
            inner = _expression(x.take(range(lo, size - hi), axis))
            return make("pad", (inner,), {"axis": axis, "lo": lo, "hi": hi, "value": 0.0})
    unit = np.eye(*x.shape[:2], dtype=x.dtype) if x.ndim > 1 else x
    if x.ndim > 1 and _same(x, np.broadcast_to(unit.reshape(*unit.shape, *(1,) * (x.ndim - 2)), x.shape)):
        first, second = (make("iota", (), {"axis": i, "shape": x.shape, "dtype": "int64"}) for i in (0, 1))
        return make("cast", (make("eq", (first, second)),), {"dtype": dtype})
    for axis, size in enumerate(x.shape):
        if size > 1 and _same(x, np.broadcast_to(x.take([0], axis), x.shape)):
            return make("broadcast_to", (_expression(x.take([0], axis)),), {"shape": x.shape})
    return constant(x)


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b)) and bool(np.array_equal(np.signbit(a), np.signbit(b)))
