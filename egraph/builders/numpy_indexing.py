"""Indexes tensor expressions as NumPy does: ints, slices, None, `...`, masks and one array of indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ShapeError, UsageError
from ..ir.tensor import Tensor, constant
from ..types.dims import Dim
from .builders import add, cast, flip, gather, lt, ones, reshape, slice_axis, where
from .builders import sum as total


def getitem(x: Tensor, key: Any) -> Tensor:
    """NumPy's basic indexing: ints, slices, None and `...`, plus gathering by one integer tensor, array or list.

    Negative indices count from the end (`gather` itself clamps them to the first element). Raises ShapeError for
    indices that do not fit the shape, UsageError for other kinds of indices.
    """
    keys = [_known_key(k) for k in (key if isinstance(key, tuple) else [key])]
    used = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if used > x.rank:
        raise ShapeError(f"{used} indices are too many for a rank-{x.rank} value")
    # NumPy would broadcast several index arrays together
    if sum(isinstance(k, Tensor | np.ndarray) for k in keys) > 1:
        raise UsageError("at most one index may be an array", hint="tg.gather_elements, or one index after the other")
    if any(k is Ellipsis for k in keys):
        spot = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[spot : spot + 1] = [slice(None)] * (x.rank - used)
    axis = 0
    kept: list[int | None] = []  # the result's axes: axes of x, or None for a new axis
    for k in keys:
        if k is None:
            kept.append(None)
            continue
        if isinstance(k, np.ndarray):
            k = _index(k, x.shape[axis])
        span = k.rank if isinstance(k, Tensor) else 1
        if isinstance(k, Tensor):
            if k.dtype == "bool":
                raise UsageError(
                    "the number of elements that a mask selects depends on values", hint="tg.where(mask, x, 0)"
                )
            x = gather(x, from_end(k, x.shape[axis]), axis)
        elif isinstance(k, slice):
            x = _slice_key(x, axis, k)
        else:
            at = k + x.shape[axis] if isinstance(k, int) and k < 0 else k
            x = slice_axis(x, axis, at, at + 1)
        kept += range(axis, axis + span) if isinstance(k, Tensor | slice) else ()
        axis += span
    kept += range(axis, x.rank)
    return reshape(x, [1 if a is None else x.shape[a] for a in kept])


def _known_key(key: Any) -> Any:
    """A key of `getitem` in canonical form: lists as arrays, NumPy ints as ints. Raises UsageError for invalid keys."""
    if isinstance(key, np.ndarray | list):
        array = np.asarray(key)
        if array.dtype.kind not in "iub" and array.size:
            raise UsageError(f"an array of {array.dtype} is no index", hint="ints, or bools for a whole axis")
        return array if array.size or array.dtype.kind in "iub" else array.astype(np.int64)
    if isinstance(key, bool | str | float):
        raise UsageError(f"{key!r} is no index", hint="an int, a slice, None, ..., or an array of ints")
    return int(key) if isinstance(key, np.integer) else key


def from_end(index: Tensor, size: Dim) -> Tensor:
    """Index tensor in which negative indices count from the end of the axis.

    Results of ops that produce only valid positions are returned unchanged.
    """
    known = index.data
    if index.dtype.startswith("u") or index.op in ("iota", "argmax", "argmin", "argsort"):
        return index
    if (index.op == "full" and index.attr("value") >= 0) or (
        known is not None and (known.size == 0 or known.min() >= 0)
    ):
        return index
    index = index if index.dtype in ("int32", "int64") else cast(index, "int64")
    end = size if isinstance(size, int) else total(ones((size,), "int64"))
    return where(lt(index, 0), add(index, end), index)


def _index(key: np.ndarray[Any, Any], size: Dim) -> Tensor:
    """A constant index array along an axis: bools select, negative indices count from the end, as in NumPy."""
    if key.dtype == bool:
        if key.shape != (size,):
            raise ShapeError(f"a mask of shape {key.shape} does not fit an axis of size {size}")
        return constant(np.flatnonzero(key))
    if not isinstance(size, int):
        if key.size and key.min() < 0:
            raise ShapeError(f"indices along the free size {size} cannot be negative", hint="bind the size: dims={...}")
        return constant(key)
    if key.size and not -size <= key.min() <= key.max() < size:
        raise ShapeError(f"indices {key.min()} to {key.max()} are outside size {size}")
    return constant(np.where(key < 0, key + size, key))


def _slice_key(x: Tensor, axis: int, key: slice) -> Tensor:
    size, step = x.shape[axis], key.step or 1
    if isinstance(size, int) and all(v is None or isinstance(v, int) for v in (key.start, key.stop)):
        start, stop, step = key.indices(size)
        if step < 0:
            picked = range(start, stop, step)
            if not len(picked):
                return slice_axis(x, axis, 0, 0)
            return flip(slice_axis(x, axis, picked[-1], picked[0] + 1, -step), axis)
        return slice_axis(x, axis, start, max(start, stop), step)
    first: Dim = 0 if key.start is None else key.start
    end: Dim = size if key.stop is None else key.stop
    first, end = (v + size if isinstance(v, int) and v < 0 else v for v in (first, end))
    return slice_axis(x, axis, first, end, step)


__all__ = ["from_end", "getitem"]
