"""Functions that build the graph of a NumPy call on traced arrays: products, norms, convolutions, covariances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.axes import axis_of
from ...egraph.types.dims import volume
from ...errors import TraceError
from ..common.einsum import einsum
from .numpy_array import is_traced, traced
from .numpy_builders import Axes, Build, as_dtype, ints, promoted_arrays, refuse_many_pairs
from .numpy_ufuncs import common_dtype


def _norm(x: Any, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:
    x = x.astype(np.float64) if x.dtype.kind in "iub" else x
    vector = ord is None or x.ndim == 1 if axis is None else isinstance(axis, int | np.integer) or len(axis) == 1
    if ord in (None, "fro") or (ord == 2 and vector):
        return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))
    if not vector:
        rows, columns = (x.ndim - 2, x.ndim - 1) if axis is None else (axis_of(a, x.ndim) for a in axis)
        along = {1: rows, -1: rows, np.inf: columns, -np.inf: columns}.get(ord)
        if along is None:
            raise TraceError(
                f"np.linalg.norm of order {ord} of matrices cannot be traced", hint="fro, 1, -1, inf or -inf can"
            )
        sums = np.sum(np.abs(x), along, keepdims=True)
        found = (np.max if ord > 0 else np.min)(sums, (rows, columns), keepdims=True)
        return found if keepdims else np.squeeze(found, (rows, columns))
    return _vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)


def _vector_norm(x: Any, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> Any:
    x = np.abs(x.astype(np.float64) if x.dtype.kind in "iub" else x)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(x, axis, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis, keepdims=keepdims)
    if ord == 1:
        return np.sum(x, axis, keepdims=keepdims)
    if ord == 2:
        return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))
    if not isinstance(ord, int | float):
        raise TraceError(f"a norm of order {ord!r} cannot be traced")
    return np.sum(x ** float(ord), axis, keepdims=keepdims) ** (1.0 / float(ord))


def _contraction(build: Callable[..., Tensor]) -> Build:
    """Return a builder for contractions over operands of their common dtype.

    Bools are contracted as int32 and the result is cast back to bool.
    """

    def run(a: Any, b: Any, *more: Any, **named: Any) -> Any:
        (x, y), dtype = promoted_arrays(a, b)
        if dtype == "bool":
            x, y = t.cast(x, "int32"), t.cast(y, "int32")
        return traced(t.cast(build(x, y, *more, **named), dtype), scalar=True)

    return run


def _dot(a: Tensor, b: Tensor) -> Tensor:
    if not a.rank or not b.rank:
        return t.mul(a, b)
    return t.matmul(a, b) if b.rank < 3 else _tensordot(a, b, ([a.rank - 1], [b.rank - 2]))


def _tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    if isinstance(axes, int | np.integer):
        axes = (list(range(a.rank - int(axes), a.rank)), list(range(int(axes))))
    ours, theirs = (ints(v) for v in axes)
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    left, right = [next(letters) for _ in range(a.rank)], [next(letters) for _ in range(b.rank)]
    for i, j in zip(ours, theirs, strict=True):
        right[axis_of(j, b.rank)] = left[axis_of(i, a.rank)]
    kept = [v for v in left if v not in right] + [v for v in right if v not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", [a, b])


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return _tensordot(a, b, (-1, -1)) if a.rank and b.rank else t.mul(a, b)


def _vdot(a: Tensor, b: Tensor) -> Tensor:
    product = t.mul(t.reshape(a, (volume(a.shape),)), t.reshape(b, (volume(b.shape),)))
    return t.sum(product, dtype=product.dtype)


def _kron(a: Any, b: Any) -> Any:
    rank = max(np.ndim(a), np.ndim(b))
    a, b = (np.reshape(v, (1,) * (rank - np.ndim(v)) + np.shape(v)) for v in (a, b))
    left = np.reshape(a, [s for d in a.shape for s in (d, 1)])
    right = np.reshape(b, [s for d in b.shape for s in (1, d)])
    return np.reshape(left * right, [x * y for x, y in zip(a.shape, b.shape)])


def _cross(a: Any, b: Any, axis: int = -1) -> Any:
    a, b = np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise TraceError("np.cross of vectors without three components cannot be traced")
    (a0, a1, a2), (b0, b1, b2) = ([v[..., i] for i in range(3)] for v in (a, b))
    return np.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis)


def _einsum(*operands: Any, optimize: Any = False) -> Any:
    equation, values = operands[0], operands[1:]
    if not isinstance(equation, str):
        raise TraceError("np.einsum with lists of axes cannot be traced", hint='give the equation as text: "ij,jk->ik"')
    nodes, dtype = promoted_arrays(*values)
    if dtype == "bool":
        nodes = [t.cast(n, "int32") for n in nodes]
    return traced(t.cast(einsum(equation, nodes), dtype), scalar=True)


def _multi_dot(arrays: Sequence[Any]) -> Any:
    if len(arrays) == 3 and all(is_traced(v) or isinstance(v, np.ndarray) for v in arrays):
        (rows, inner), (outer, columns) = (1, *arrays[0].shape)[-2:], (*arrays[2].shape, 1)[:2]
        if rows * outer * (inner + columns) >= inner * columns * (rows + outer):  # NumPy's order: integers wrap by it
            return np.dot(arrays[0], np.dot(arrays[1], arrays[2]))
    elif len(arrays) > 3 and any(np.dtype(common_dtype(v)).kind in "iub" for v in arrays):
        raise TraceError(
            "np.linalg.multi_dot of more than three arrays of integers cannot be traced",
            hint="np.dot in the wanted order",
        )
    found = arrays[0]
    for other in arrays[1:]:
        found = np.dot(found, other)
    return found


def _matrix_power(a: Any, n: int) -> Any:
    if n < 1:
        raise TraceError(f"np.linalg.matrix_power to {n} cannot be traced", hint="powers from 1 on can")
    found, square = None, a  # the power of the bits of n that were read, and a to the power of the next bit
    while True:
        if n & 1:
            found = square if found is None else np.matmul(found, square)
        if not (n := n >> 1):
            return found
        square = np.matmul(square, square)


def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return np.sum(np.diagonal(a, offset, axis1, axis2), -1, dtype=dtype)


def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    a, v = (a, v) if np.size(a) >= np.size(v) else (v, a)
    size, width = int(np.size(a)), int(np.size(v))
    hint = "torch.nn.functional.conv1d, or shorter pieces of the longer array"
    refuse_many_pairs(f"a convolution of {size} by {width} elements", width, size + width - 1, hint)
    dtype = np.dtype(common_dtype(a, v))
    a, v = as_dtype(a, dtype), as_dtype(v, dtype)
    wide = np.pad(a, (width - 1, width - 1))
    rows = np.stack([wide[i : i + size + width - 1] for i in range(width)], 1)
    if mode == "valid" or dtype.kind != "f":
        full = rows @ v[::-1]
    else:  # padding times infinity is not a number
        inside = _windows_inside(size, width)
        full = np.sum(np.where(inside, rows * v[::-1], dtype.type(0)), 1, dtype=dtype)
    cut = {"full": 0, "same": (width - 1) // 2, "valid": width - 1}[mode]
    length = {"full": size + width - 1, "same": size, "valid": size - width + 1}[mode]
    return full[cut : cut + length]


def _windows_inside(size: int, width: int) -> Any:
    """[size + width - 1, width] bool: whether place k of window i, which begins at i - (width - 1), is in
    range(size)."""
    place = np.arange(size + width - 1)[:, None] + np.arange(width) - (width - 1)
    return (place >= 0) & (place < size)


def _correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    if np.size(v) > np.size(a):
        raise TraceError("np.correlate with the longer array second cannot be traced")
    return _convolve(a, v[::-1] if is_traced(v) else np.asarray(v)[::-1], mode)


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    y = np.moveaxis(y, axis, -1)
    step = dx if x is None else np.diff(np.moveaxis(x, axis, -1) if np.ndim(x) > 1 else x)
    return np.sum(step * (y[..., 1:] + y[..., :-1]) / 2.0, -1)


def _variables(m: Any, rowvar: bool) -> Any:
    """An array of observations in float64, a variable for each row."""
    x = np.atleast_2d(as_dtype(m, np.float64))
    return x if rowvar or np.ndim(m) == 1 else x.T


def _cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None) -> Any:
    if any(np.ndim(v) > 2 for v in (m, y) if v is not None):
        raise TraceError("np.cov of an array with more than two axes cannot be traced")
    rows = [_variables(v, rowvar) for v in (m, y) if v is not None]
    x = np.concatenate(rows) if len(rows) > 1 else rows[0]
    count = x.shape[1] - ((0 if bias else 1) if ddof is None else ddof)
    gap = x - np.mean(x, 1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.squeeze(np.matmul(gap, gap.T) * np.true_divide(1, np.float64(max(count, 0))))


def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    width = len(x) if N is None else N
    x = x.astype(np.promote_types(x.dtype, np.int64)) if x.dtype.kind in "iub" else x
    powers = [x**i if i else np.ones_like(x) for i in range(width)]
    return np.stack(powers if increasing else powers[::-1], 1)


#: Builders over traced arrays by qualified name; NumPy operators and functions determine the dtypes.
PRODUCTS: dict[str, Build] = {
    "linalg.norm": _norm, "linalg.vector_norm": _vector_norm, "dot": _contraction(_dot), "inner": _contraction(_inner),
    "vdot": _contraction(_vdot), "tensordot": _contraction(_tensordot),
    "linalg.tensordot": lambda x1, x2, axes=2: np.tensordot(x1, x2, axes),
    "linalg.matrix_norm": lambda x, ord="fro", keepdims=False: _norm(x, ord, (-2, -1), keepdims),
    "linalg.matmul": lambda x1, x2: np.matmul(x1, x2),
    "linalg.vecdot": lambda x1, x2, axis=-1: np.vecdot(np.moveaxis(x1, axis, -1), np.moveaxis(x2, axis, -1)),
    "outer": lambda a, b: np.ravel(a)[:, None] * np.ravel(b)[None, :],
    "linalg.outer": lambda x1, x2: np.asanyarray(x1)[:, None] * x2[None, :] if not is_traced(x1) else x1[:, None] * x2[None, :],
    "kron": _kron, "cross": _cross, "linalg.cross": lambda x1, x2, axis=-1: _cross(x1, x2, axis), "einsum": _einsum,
    "linalg.multi_dot": _multi_dot, "linalg.matrix_power": _matrix_power, "trace": _trace,
    "linalg.trace": lambda x, offset=0, dtype=None: _trace(x, offset, -2, -1, dtype), "convolve": _convolve,
    "correlate": _correlate, "trapezoid": _trapezoid, "cov": _cov, "vander": _vander,
}  # fmt: skip
