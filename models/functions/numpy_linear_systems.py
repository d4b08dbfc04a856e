"""Functions that build the graph of a NumPy call on traced arrays: determinants, inverses and linear systems of small
matrices, by Gaussian elimination with partial pivoting, written out step by step as in LAPACK's getrf."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...egraph.builders import builders as t
from ...errors import TraceError
from .numpy_array import is_traced, traced
from .numpy_builders import OUTSIDE, Build, as_dtype
from .numpy_ufuncs import common_dtype

#: Most rows of a matrix, since each row is some fifteen operations.
MOST_ROWS = 8


class Eliminated(NamedTuple):
    """A matrix after elimination. `rows`: row k of the upper triangle, from column k on. `right`: the rows of the right
    sides. `sign`: 1 if an even number of rows was swapped, -1 if an odd one."""

    rows: list[Any]
    right: list[Any]
    sign: Any


def _matrix(name: str, a: Any) -> Any:
    """A traced or plain array [..., n, n] in the dtype in which NumPy's LAPACK computes."""
    kind = np.dtype(common_dtype(a, *([np.float64(0)] if np.dtype(common_dtype(a)).kind in "iub" else [])))
    shape = np.shape(a)
    if kind not in (np.float32, np.float64):
        raise TraceError(f"np.linalg.{name} of {kind} cannot be traced")
    if len(shape) < 2 or shape[-1] != shape[-2] or not isinstance(shape[-1], int):
        raise TraceError(f"np.linalg.{name} takes square matrices, not an array of the shape {shape}")
    if not 0 < shape[-1] <= MOST_ROWS:
        raise TraceError(
            f"np.linalg.{name} of matrices of {shape[-1]} rows cannot be traced", hint=f"1 to {MOST_ROWS} rows"
        )
    return as_dtype(a, kind)


def _eliminated(a: Any, b: Any = None) -> Eliminated:
    """Elimination of a [..., n, n] with right sides b [..., n, m]."""
    size = a.shape[-1]
    sign: Any = 1
    rows, right = [], []
    for _ in range(size):
        place = np.argmax(np.abs(a[..., 0]), -1, keepdims=True)
        chosen = (np.arange(a.shape[-2]) == place)[..., None]
        sign = np.where(place[..., 0] == 0, sign, -sign)
        row, a = _swapped(a, chosen)
        pivot = row[..., :1]
        factor = a[..., :1] / np.where(pivot == 0, pivot.dtype.type(1), pivot)
        rows.append(row[..., 0, :])
        if b is not None:
            value, b = _swapped(b, chosen)
            right.append(value[..., 0, :])
            b = b - factor * value
        a = a[..., 1:] - factor * row[..., 1:]
    return Eliminated(rows, right, sign)


def _swapped(a: Any, chosen: Any) -> tuple[Any, Any]:
    """(The chosen row, the others with the first one in its place); selected, since `a` may have infinities."""
    row = np.sum(np.where(chosen, a, a.dtype.type(0)), -2, keepdims=True)
    return row, np.where(chosen, a[..., :1, :], a)[..., 1:, :]


def _det(a: Any) -> Any:
    a = _matrix("det", a)
    rows, _, sign = _eliminated(a)
    pivots = np.stack([row[..., 0] for row in rows], -1)
    singular, one = np.any(pivots == 0, -1), a.dtype.type(1)
    sign = np.where(np.sum(pivots < 0, -1) % 2 == 0, sign, -sign).astype(a.dtype)
    size = np.exp(np.sum(np.log(np.abs(np.where(singular[..., None], one, pivots))), -1))
    return np.where(singular, a.dtype.type(0), sign * size)


def _solve(a: Any, b: Any) -> Any:
    a = _matrix("solve", a)
    kind = np.dtype(common_dtype(a, b))
    a, b = as_dtype(a, kind), as_dtype(b, kind)
    size, vector = a.shape[-1], b.ndim == 1
    b = b[:, None] if vector else b
    if b.ndim < 2 or b.shape[-2] != size:
        raise TraceError(f"right sides of the shape {b.shape} do not fit np.linalg.solve of matrices of {size} rows")
    stacks = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, (*stacks, size, size)), np.broadcast_to(b, (*stacks, size, b.shape[-1]))
    rows, right, _ = _eliminated(
        a if is_traced(a) else traced(t.constant(a)), b if is_traced(b) else traced(t.constant(b))
    )
    found: list[Any] = []
    for row, value in zip(reversed(rows), reversed(right)):
        for k, other in enumerate(reversed(found)):
            value = value - row[..., k + 1, None] * other
        found.append(value / row[..., :1])
    pivots = np.stack([row[..., 0] for row in rows])
    result = np.where(_refusing(np.any(pivots == 0)), a.dtype.type(np.nan), np.stack(found[::-1], -2))
    return result[..., 0] if vector else result


def _refusing(singular: Any) -> Any:
    """A condition for which NumPy raises an error: where it holds, the program takes an element that is outside of a
    table, which is an error of its call on a CPU if it is checked."""
    table = traced(t.full((1,), False, "bool"))
    return singular | table[np.where(singular, OUTSIDE, 0)]


def _inv(a: Any) -> Any:
    a = _matrix("inv", a)
    return _solve(a, np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape))


#: Builders over traced arrays by qualified name.
SYSTEMS: dict[str, Build] = {"linalg.det": _det, "linalg.inv": _inv, "linalg.solve": _solve}

__all__ = ["SYSTEMS"]
