"""Functions that build the graph of a NumPy call on traced arrays: elements moved to places that NumPy itself finds,
and functions that write into an array that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.types.axes import axis_of
from ...egraph.types.dims import volume
from ...errors import TraceError
from .numpy_array import TracedArray, expression, is_traced, traced
from .numpy_builders import Build, in_range, ints
from .numpy_indices import static
from .numpy_ufuncs import common_dtype, operand, written


def _labelled(arrays: Sequence[Any], dtype: str, call: Callable[..., Any]) -> TracedArray:
    """Result, in a dtype, of a function of NumPy that only moves elements of arrays.

    `call` runs on arrays of element numbers instead, and its result says which element goes where; number 0 is a zero
    that the function adds.
    """
    nodes = [operand(a, dtype) for a in arrays]
    flat, labels, first = [t.zeros((1,), dtype)], [], 1
    for node in nodes:
        shape = static(node.shape, "elements that are moved")
        count = int(np.prod(shape))
        labels.append(np.arange(first, first + count, dtype=np.int64).reshape(shape))
        flat.append(t.reshape(node, (count,)))
        first += count
    places = np.asarray(call(*labels))
    return traced(t.gather(t.concat(flat, 0), t.constant(places.astype(np.int64)), 0))


def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    if is_traced(obj):
        raise TraceError("np.insert at traced places: where elements go depends on values", hint="np.where")
    dtype = common_dtype(arr if is_traced(arr) else np.asarray(arr))
    return _labelled([arr, values], dtype, lambda a, v: np.insert(a, obj, v, axis))


def _diagflat(v: Any, k: int = 0) -> Any:
    return _labelled([v], common_dtype(v), lambda a: np.diagflat(a, k))


def _compress(condition: Any, a: Any, axis: int | None = None) -> Any:
    if is_traced(condition):
        raise TraceError("how many elements a mask picks depends on values", hint="np.where(mask, x, 0)")
    return _labelled([a], common_dtype(a), lambda x: np.compress(condition, x, axis))


def _resize(a: Any, new_shape: Any) -> Any:
    flat: Any = np.ravel(a)
    shape = tuple(ints(new_shape))
    size, count = int(np.prod(shape)), static(flat._node.shape, "np.resize")[0]
    if any(d < 0 for d in shape):
        raise TraceError(f"np.resize to {shape} is not possible: a size is negative")
    if not size or not count:
        return np.zeros_like(flat, shape=shape)
    repeats = -(-size // count)
    rows = t.reshape(t.broadcast_to(t.reshape(flat._node, (1, count)), (repeats, count)), (repeats * count,))
    return traced(t.reshape(t.slice_axis(rows, 0, 0, size), shape))


def _block(arrays: Any) -> Any:
    if not isinstance(arrays, list):
        return +arrays
    depth, inner = 0, arrays
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0]

    def joined(part: Any, level: int) -> Any:
        if not isinstance(part, list):
            shape = np.shape(part)
            return np.reshape(part, (1,) * (rank - len(shape)) + tuple(shape))
        return np.concatenate([joined(p, level + 1) for p in part], axis=level - depth)

    rank = max(depth, max(np.ndim(leaf) for leaf in _leaves(arrays)))
    return joined(arrays, 0)


def _leaves(part: Any) -> list[Any]:
    return [leaf for p in part for leaf in _leaves(p)] if isinstance(part, list) else [part]


# ---------------------------------------------------------------- written in place
def _into(array: Any, name: str) -> TracedArray:
    """The array that the function np.`name` writes into. Raises TraceError if it is not a traced one."""
    if not is_traced(array):
        raise TraceError(
            f"np.{name} changes an array that is not traced, which a program cannot do",
            hint="make it a traced one: np.array(table, like=x)",
        )
    return array  # type: ignore[no-any-return]


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    mask = np.zeros(static(_into(a, "fill_diagonal")._node.shape, "np.fill_diagonal"), bool)
    np.fill_diagonal(mask, True, wrap)
    if np.size(val) == 1:
        a[mask] = np.reshape(val, ())
        return
    source = np.zeros(mask.shape, np.int64)
    np.fill_diagonal(source, np.arange(np.size(val)), wrap)
    written(operand(np.ravel(val)[source], a.dtype.name), a, mask)


def _putmask(a: Any, mask: Any, values: Any) -> None:
    shape = static(_into(a, "putmask")._node.shape, "np.putmask")
    if not np.size(values):
        return
    written(operand(np.resize(values, shape), a.dtype.name), a, np.reshape(mask, shape))


def _place(arr: Any, mask: Any, vals: Any) -> None:
    if is_traced(mask) and np.size(vals) != 1:
        raise TraceError("np.place of several values at a mask has a data-dependent result", hint="np.where")
    if is_traced(mask):
        written(operand(np.reshape(vals, ()), _into(arr, "place").dtype.name), arr, np.reshape(mask, arr.shape))
        return
    places = np.flatnonzero(mask)
    _put(_into(arr, "place"), places, np.resize(vals, places.shape))


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    size: Any = volume(_into(a, "put")._node.shape)
    if not np.size(v):
        return
    ind = in_range(ind, size, mode)
    flat: Any = np.ravel(a).copy()
    flat[np.ravel(ind)] = np.resize(v, (np.size(ind),)).astype(a.dtype)
    written(expression(np.reshape(flat, a.shape)), a)


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    _into(arr, "put_along_axis")
    if axis is None:
        _put(arr, indices, np.broadcast_to(values, np.shape(indices)))
        return
    axis = axis_of(axis, arr.ndim)
    shape = tuple(s if i == axis else d for i, (d, s) in enumerate(zip(arr.shape, np.shape(indices), strict=True)))
    spots = [np.arange(d).reshape([-1 if i == a else 1 for i in range(arr.ndim)]) for a, d in enumerate(shape)]
    spots[axis] = np.broadcast_to(indices, shape)
    arr[tuple(spots)] = np.broadcast_to(values, shape)


#: Builders over traced arrays by qualified name.
MOVES: dict[str, Build] = {
    "insert": _insert, "diagflat": _diagflat, "compress": _compress, "resize": _resize, "block": _block, "fill_diagonal": _fill_diagonal,
    "putmask": _putmask, "place": _place, "put": _put, "put_along_axis": _put_along_axis,
}  # fmt: skip

__all__ = ["MOVES"]
