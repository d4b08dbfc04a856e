"""Functions that build the graph of ATen overloads that create, cast or copy tensors. They take the arguments of the
ATen schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr
from ...errors import UnsupportedError
from .aten_pointwise import lift, number, result_dtype


def _full(size: Sequence[Dim], value: Any, dtype: str) -> Tensor:
    found = number(value)
    if isinstance(found, Tensor):
        return t.broadcast_to(t.cast(found, dtype), size)
    return t.full(size, dtypes.nearest(found, dtype) if isinstance(found, float) else found, dtype)


def full(size: Sequence[Dim], value: Any, dtype: str | None = None) -> Tensor:
    """Tensor of a size filled with a value; the dtype is that of the value unless given."""
    return _full(size, value, dtype or result_dtype(value))


def filled(value: Any) -> Callable[..., Tensor]:
    """Return a function (size, dtype) that builds tensors filled with `value`; float32 by default."""
    return lambda size, dtype=None: t.full(size, value, dtype or "float32")


def filled_like(value: Any) -> Callable[..., Tensor]:
    """Return a function (tensor, dtype) that builds tensors filled with `value`, of the given tensor's shape."""
    return lambda x, dtype=None: t.full(x.shape, value, dtype or x.dtype)


def new_filled(value: Any) -> Callable[..., Tensor]:
    """Return a function (tensor, size, dtype) that builds tensors of that size filled with `value`; the dtype is by
    default that of the given tensor."""
    return lambda x, size, dtype=None: t.full(size, value, dtype or x.dtype)


def full_like(x: Tensor, value: Any, dtype: str | None = None) -> Tensor:
    """Return a tensor of x's shape filled with one value."""
    return _full(x.shape, value, dtype or x.dtype)


def fill(x: Tensor, value: Any) -> Tensor:
    """Tensor with x's shape and dtype, filled with a value, which may be a 0-d tensor."""
    return t.broadcast_to(lift(value, dtype=x.dtype)[0], x.shape)


def new_full(x: Tensor, size: Sequence[Dim], value: Any, dtype: str | None = None) -> Tensor:
    """Tensor of a given size and x's dtype, filled with a value."""
    return _full(size, value, dtype or x.dtype)


def scalar_tensor(value: Any, dtype: str | None = None) -> Tensor:
    """Return the number `value` as a 0-d tensor."""
    return _full((), value, dtype or "float32")


def arange(start: Any, end: Any, step: Any = 1, dtype: str | None = None) -> Tensor:
    """Return start, start + step, … below end.

    For integer dtypes fractions of start and step are truncated, as in PyTorch. Raises UnsupportedError for fractional
    steps with free sizes.
    """
    exact = (
        dtype is not None and not dtypes.is_float(dtype) and not any(isinstance(v, DimExpr) for v in (start, end, step))
    )
    if exact and any(isinstance(v, float) for v in (start, end, step)):
        first, by = int(start), int(step)
        count = -(-(int(end) - first) // by) if dtype == "int64" else ceil((end - start) / step)
        return t.constant((np.arange(count) * by + first).astype(dtypes.numpy_dtype(dtype)))
    if any(isinstance(v, float) for v in (start, end, step)):
        if any(isinstance(v, DimExpr) for v in (start, end, step)):
            raise UnsupportedError("fractional steps up to a free size")
        count = ceil((end - start) / step)
        line = np.arange(count, dtype=np.float64) * step + start
        return t.constant(line.astype(dtypes.numpy_dtype(dtype or "float32")))
    count = (end - start + step - (1 if step > 0 else -1)) // step
    out = t.arange(max(count, 0) if isinstance(count, int) else count, dtype or "int64")
    out = out if step == 1 else out * step
    return out if isinstance(start, int) and start == 0 else out + number(start)


def arange_end(end: Any, dtype: str | None = None) -> Tensor:
    """Return 0, 1, … below end."""
    return arange(0, end, 1, dtype)


def linspace(start: float, end: float, steps: int, dtype: str | None = None) -> Tensor:
    """Return `steps` equally spaced numbers from `start` to `end`, both included."""
    return t.constant(np.linspace(start, end, steps).astype(dtypes.numpy_dtype(dtype or "float32")))


def eye(rows: Dim, columns: Dim | None = None, dtype: str | None = None) -> Tensor:
    """Return the identity matrix, of `columns` columns if given, else square."""
    shape = (rows, rows if columns is None or isinstance(columns, str) else columns)
    return t.cast(t.eq(t.iota(shape, 0), t.iota(shape, 1)), dtype or "float32")


def _ahead(x: Tensor) -> Tensor:
    shape = x.shape[-2:]
    return t.iota(shape, 1) - t.iota(shape, 0)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the lower triangle of x: elements above the diagonal become 0."""
    return t.where(t.le(_ahead(x), diagonal), x, t.full((1,) * x.rank, 0, x.dtype))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the upper triangle of x: elements below the diagonal become 0."""
    return t.where(t.ge(_ahead(x), diagonal), x, t.full((1,) * x.rank, 0, x.dtype))


def triangle(indices: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function (rows, columns, offset, dtype) that builds the indices [2, n] of a triangle of a matrix;
    `indices`: NumPy's `tril_indices` or `triu_indices`."""

    def build(rows: int, columns: int, offset: int = 0, dtype: str | None = None) -> Tensor:
        return t.constant(np.stack(indices(rows, offset, columns)).astype(dtypes.numpy_dtype(dtype or "int64")))

    return build


def same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """x itself: copies, aliases and detach are the identity on values."""
    return x


def to_copy(x: Tensor, dtype: str | None = None) -> Tensor:
    """Return x in another dtype."""
    return t.cast(x, dtype or x.dtype)


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return source broadcast to x's shape and cast to x's dtype."""
    return t.broadcast_to(t.cast(source, x.dtype), x.shape)


def neutral(smallest: bool, dtype: str) -> float:
    """Return the smallest (with `smallest`) or the largest value of a dtype, the identity element of max or min."""
    if dtypes.is_float(dtype):
        return float("-inf") if smallest else float("inf")
    limits = np.iinfo(dtypes.numpy_dtype(dtype)) if dtype != "bool" else None
    return int(limits.min if smallest else limits.max) if limits is not None else int(not smallest)
