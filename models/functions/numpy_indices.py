"""Implements NumPy's indexing of traced arrays, as expressions: elements at an index, and assignment to an index.

An index is the list of its components, in which traced arrays are expressions. NumPy itself is asked what an index of
known sizes selects, so that shapes and errors are NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.builders.numpy_indexing import getitem
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, volume
from ...errors import TraceError
from ..torch_export import aten_index


def static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Return a shape as ints. Raises TraceError, which names `what`, if a dimension is free (has no known size)."""
    if not all(isinstance(d, int) for d in shape):
        raise TraceError(
            f"{what} of an array with free sizes {tuple(shape)} cannot be traced",
            hint="give an example with known sizes",
        )
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


def _is_array(key: Any) -> bool:
    """Return whether an index triggers NumPy's advanced indexing."""
    return isinstance(key, Tensor | np.ndarray | list | tuple | bool | np.bool_)


def _stand_in(keys: Sequence[Any]) -> tuple[Any, ...]:
    """Replace expressions in an index by zero arrays of the same shapes."""
    return tuple(
        np.zeros(static(k.shape, "an index"), dtypes.numpy_dtype(k.dtype)) if isinstance(k, Tensor) else k for k in keys
    )


def _checked(shape: tuple[int, ...], keys: tuple[Any, ...], array: Any = None) -> Any:
    """Return NumPy's result of `array[keys]`; without `array`, of a dummy of this shape.

    Raises TraceError where NumPy raises.
    """
    try:
        return np.asarray((np.broadcast_to(np.zeros((), np.bool_), shape) if array is None else array)[keys])
    except (IndexError, ValueError, TypeError) as error:
        raise TraceError(f"the index {keys!r} of an array of shape {shape}: {error}") from None


def picked(x: Tensor, keys: list[Any]) -> tuple[Tensor, bool]:
    """Return (elements of x at an index, whether the index is basic, so that NumPy's result is a view).

    `keys`: components of the index, with traced arrays as expressions. Raises TraceError for indices that cannot be
    traced.
    """
    arrays = [k for k in keys if _is_array(k)]
    basic = not arrays
    if any(isinstance(k, Tensor) and k.dtype == "bool" for k in keys):
        refuse_value(TraceError("how many elements a mask picks depends on values", hint="np.where(mask, x, 0)"))
    if not all(isinstance(d, int) for d in x.shape):
        if len(arrays) > 1 or (arrays and any(isinstance(k, int | np.integer) for k in keys)):
            raise TraceError(
                "several indices into an array with free sizes cannot be traced", hint="one array as an index at a time"
            )
        return getitem(x, tuple(keys)), basic
    shape = static(x.shape, "an index")
    wanted = _checked(shape, _stand_in(keys)).shape
    alone = len(arrays) == 1 and not any(isinstance(k, int | np.integer) for k in keys)
    if basic or (alone and isinstance(arrays[0], Tensor | np.ndarray | list) and _plain(arrays[0])):
        found = getitem(x, tuple(keys))
    elif not any(isinstance(k, Tensor) for k in keys):
        places = _checked(shape, tuple(keys), np.arange(prod(shape)).reshape(shape))
        found = t.gather(t.reshape(x, (-1,)), t.constant(places.astype(np.int64)), 0)
    else:
        found = _paired(x, keys)
    if found.shape != wanted:
        raise TraceError(
            f"an index of an array of shape {shape} gives the shape {found.shape} when it is traced, and {wanted} in NumPy"
        )
    return found, basic


def _plain(key: Any) -> bool:
    """Return whether an array index addresses a single axis, that is, is not a mask of several axes."""
    return isinstance(key, Tensor) or np.asarray(key).dtype != np.bool_ or np.asarray(key).ndim == 1


def _paired(x: Tensor, keys: list[Any]) -> Tensor:
    """Lower advanced indexing with several index arrays, some of which are traced."""
    spots = [i for i, k in enumerate(keys) if _is_array(k) or isinstance(k, int | np.integer)]
    between = keys[spots[0] : spots[-1]]
    if any(k is None or k is Ellipsis for k in between) or any(k is None for k in keys):
        raise TraceError(
            "several index arrays with new axes or ... between them cannot be traced", hint="one index after the other"
        )
    used = len(keys) - sum(k is Ellipsis for k in keys)
    full: list[Any] = []
    for k in keys:
        full += [slice(None)] * (x.rank - used) if k is Ellipsis else [k]
    full += [slice(None)] * (x.rank - len(full))
    if any(
        isinstance(k, bool | np.bool_) or np.asarray(k).dtype == np.bool_
        for k in full
        if isinstance(k, np.ndarray | list | bool | np.bool_)
    ):
        raise TraceError("a mask beside traced indices cannot be traced", hint="one index after the other")
    x = getitem(x, tuple(k if isinstance(k, slice) else slice(None) for k in full))
    indices = [None if isinstance(k, slice) else t.as_tensor(k) for k in full]
    return aten_index.index(x, indices)


def assigned(x: Tensor, keys: list[Any], new: Tensor) -> Tensor:
    """Return x with the value `new`, which has its dtype, assigned at the index `keys`.

    Raises TraceError for a traced mask beside other indices or assigned several values, and if the shapes do not match.
    """
    masks = [k for k in keys if isinstance(k, Tensor)]
    if masks and not any(k.dtype == "bool" for k in masks):
        return written_at(x, keys, new, "set")
    if masks:
        if len(keys) > 1:
            raise TraceError(
                "an assignment at a traced mask and other indices cannot be traced", hint="np.where with a mask"
            )
        if masks[0].shape != x.shape[: masks[0].rank]:
            raise TraceError(f"a mask of shape {masks[0].shape} does not fit an array of shape {x.shape}")
        if volume(new.shape) != 1:
            raise TraceError(
                "assigning several values at a mask has a data-dependent result", hint="np.where(mask, values, x)"
            )
        mask = t.reshape(masks[0], (*masks[0].shape, *(1,) * (x.rank - masks[0].rank)))
        return t.where(mask, t.reshape(new, (1,) * x.rank), x)
    if len(keys) == 1 and (keys[0] is Ellipsis or (isinstance(keys[0], slice) and keys[0] == slice(None) and x.rank)):
        return t.broadcast_to(_leading_dropped(new, x.rank), x.shape)
    shape = static(x.shape, "an assignment to a part")
    places = _checked(shape, tuple(keys), np.arange(prod(shape), dtype=np.int64).reshape(shape))
    new = _leading_dropped(new, places.ndim)
    sizes = static(new.shape, "an assignment")
    if len(sizes) > places.ndim or any(a not in (1, b) for a, b in zip(sizes[::-1], places.shape[::-1])):
        raise TraceError(f"values of shape {sizes} cannot be assigned to an indexed part of shape {places.shape}")
    if not places.size:
        return x
    source = np.full(prod(shape), -1, np.int64)
    source[places.reshape(-1)] = np.arange(places.size)  # of duplicate writes the last one wins, as in NumPy
    mask_ = t.constant((source >= 0).reshape(shape))
    if volume(new.shape) == 1:
        return t.where(mask_, t.reshape(new, (1,) * x.rank), x)
    flat = t.reshape(t.broadcast_to(new, places.shape), (-1,))
    return t.where(mask_, t.gather(flat, t.constant(np.maximum(source, 0).reshape(shape)), 0), x)


def written_at(x: Tensor, keys: list[Any], new: Tensor, mode: str) -> Tensor:
    """Return x with the values `new`, of its dtype, written at an index with traced integers: `mode` "set", or "add",
    "mul", "max", "min", which combine them with x's elements in turn. Of several values set in one place the last one
    wins, as in NumPy. Raises TraceError if the shapes do not match."""
    shape = static(x.shape, "an assignment at traced indices")
    flat, count = t.reshape(x, (prod(shape),)), prod(shape)
    spots, _ = picked(t.reshape(t.iota((count,), 0), shape), keys)
    new = _leading_dropped(new, spots.rank)
    sizes = static(new.shape, "an assignment")
    if any(a not in (1, b) for a, b in zip(sizes[::-1], static(spots.shape, "an index")[::-1])):
        raise TraceError(f"values of shape {sizes} cannot be assigned to an indexed part of shape {spots.shape}")
    number = volume(spots.shape)
    assert isinstance(number, int)
    if not number:
        return x
    rows, places = t.reshape(t.broadcast_to(new, spots.shape), (number,)), t.reshape(spots, (number,))
    if mode != "set" or prod(sizes) == 1 or _distinct(keys, shape):
        return t.reshape(t.scatter_elements(flat, places, rows, 0, mode), shape)
    last = t.scatter_elements(t.full((count,), -1, "int64"), places, t.iota((number,), 0), 0, "max")
    found = t.where(t.ge(last, 0), t.gather(rows, t.maximum(last, 0), 0), flat)
    return t.reshape(found, shape)


def _distinct(keys: list[Any], shape: tuple[int, ...]) -> bool:
    """Whether no place occurs twice in an index: one of its arrays is known and has no number twice."""
    arrays = [k if isinstance(k, Tensor) else np.asarray(k) for k in keys if _is_array(k)]
    count = prod(np.broadcast_shapes(*(static(k.shape, "an index") for k in arrays)))
    axes = [i for i, k in enumerate(keys) if _is_array(k)]
    if any(k is None or k is Ellipsis for k in keys):
        return False
    return any(
        isinstance(k, np.ndarray) and k.dtype.kind in "iu" and len(np.unique(k % shape[axis])) == k.size == count
        for axis, k in zip(axes, arrays)
    )


def _leading_dropped(x: Tensor, rank: int) -> Tensor:
    """Drop leading size-1 axes beyond `rank`, as NumPy assignments do.

    Raises TraceError if the rank is still larger.
    """
    while x.rank > rank and x.shape[0] == 1:
        x = t.reshape(x, x.shape[1:])
    if x.rank > rank:
        raise TraceError(f"values of shape {x.shape} cannot be assigned to an indexed part of rank {rank}")
    return x


__all__ = ["assigned", "picked", "static", "written_at"]
