"""Holds types and helpers for the functions that build the graph of a NumPy call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.axes import axis_of
from ...errors import TooLargeError
from .numpy_array import is_traced, traced
from .numpy_ufuncs import common_dtype, operand

Axes = Any
Build = Callable[..., Any]


#: Most pairs of elements of functions that are traced as a table of all of them.
PAIRS = 1 << 26
#: An index that is outside of every axis, so that reading there is an error of the program's call, if it is checked.
OUTSIDE = np.int64(dtypes.least("int64"))


def refuse_many_pairs(what: str, first: Any, second: Any, hint: str) -> None:
    """Raise TooLargeError if a table of all pairs of two numbers of elements is too large; free sizes are not looked
    at. `what`: the function and the sizes, for the message."""
    if isinstance(first, int) and isinstance(second, int) and (pairs := first * second) > PAIRS:
        raise TooLargeError(f"{what} is traced as a table of {pairs} pairs, more than {PAIRS}", hint=hint)


def ints(value: Any) -> Any:
    """One integer as a list of it, a sequence of integers as a list."""
    return [value] if isinstance(value, int | np.integer) else list(value)


def named_axes(axis: Axes, rank: int) -> list[int]:
    """The axes, counted from 0, that NumPy's argument `axis` names for an array of `rank` axes: all for None."""
    return [axis_of(v, rank) for v in (range(rank) if axis is None else ints(axis))]


def axes_joined(a: Any, axes: Sequence[int]) -> Any:
    """The array `a` with the axes `axes` joined as its last one, after the others; all of them joined keep their
    order."""
    rest = [i for i in range(a.ndim) if i not in axes]
    if not rest:
        return np.ravel(a)
    return np.reshape(np.transpose(a, [*rest, *axes]), (*[a.shape[i] for i in rest], -1))


def axes_kept(reduced: Any, shape: Sequence[Any], axes: Sequence[int]) -> Any:
    """NumPy's `keepdims=True`: an array of shape `shape` reduced over `axes`, with sizes of 1 in their places."""
    return np.reshape(reduced, [1 if i in axes else d for i, d in enumerate(shape)])


def as_dtype(value: Any, dtype: Any) -> Any:
    """Convert a traced array or other value to an array of a dtype."""
    return value.astype(dtype) if is_traced(value) else np.asarray(value, dtype)


def in_range(indices: Any, size: Any, mode: str) -> Any:
    """Indices of an axis of `size` elements after NumPy's `mode`: "clip" and "wrap" move those outside of the axis into
    it, others leave them as they are. Computed in int64, since `size` may be too large for the indices' own dtype."""
    if mode not in ("clip", "wrap"):
        return indices
    indices = indices if is_traced(indices) else np.asarray(indices)
    indices = as_dtype(indices, np.int64) if indices.dtype.kind in "iu" else indices
    return np.clip(indices, 0, size - 1) if mode == "clip" else indices % size


def numbers(count: Any) -> Any:
    """np.arange(count) as a traced array. Used as a lookup table: a traced index outside of range(count) is an error of
    the program, as it is in NumPy."""
    return traced(t.iota((count,), 0))


def promoted(*values: Any) -> tuple[list[Tensor], str]:
    """(operands as expressions of their common dtype, that dtype)."""
    dtype = common_dtype(*values)
    return [operand(v, dtype) for v in values], dtype


def promoted_arrays(*values: Any) -> tuple[list[Tensor], str]:
    """(operands as expressions of their common dtype, that dtype), by the promotion of NumPy's products, for which
    Python numbers are arrays of 64 bits."""
    return promoted(*(np.asarray(v) if type(v) in (bool, int, float) else v for v in values))
