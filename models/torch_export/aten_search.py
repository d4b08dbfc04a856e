"""Functions that build the graph of searches in sorted values: bucketize, searchsorted, membership.

Elements are compared with all values if these are few, which one kernel does; otherwise by a binary search, whose steps
are gathers. So the memory of a search is a few times that of its elements.
"""

from __future__ import annotations

from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete, volume
from .aten_pointwise import lift, result_dtype

#: Most values with which each element is compared, and most comparisons in all; beyond them the search is binary. Free
#: sizes are taken for small.
FEW, COMPARISONS = 32, 1 << 22


def _compares_all(x: Tensor, values: Tensor) -> bool:
    count, size = values.shape[-1], volume(x.shape)
    return not isinstance(count, int) or (
        count <= FEW and (count < 2 or not isinstance(size, int) or size * count <= COMPARISONS)
    )


def _take(values: Tensor, place: Tensor) -> Tensor:
    """Elements of `values` at places of their last axis, of the row that corresponds to the place's if rank > 1."""
    return t.gather(values, place) if values.rank == 1 else t.gather_elements(values, place, -1)


def _below(border: Tensor, x: Tensor, right: bool) -> Tensor:
    below = t.le(border, x) if right else t.lt(border, x)
    return t.logical_or(below, t.is_nan(x)) if dtypes.is_float(x.dtype) else below


def _count_below(x: Tensor, borders: Tensor, right: bool) -> Tensor:
    """Binary search: the number of sorted borders (at least one) below each element, int64."""
    first, left = t.zeros(x.shape, "int64"), borders.shape[-1]
    assert isinstance(left, int)
    while left > 1:  # the first `left` borders from `first` on are undecided
        half = left // 2
        first = t.where(_below(_take(borders, first + (half - 1)), x, right), first + half, first)
        left -= half
    return first + t.cast(_below(_take(borders, first), x, right), "int64")


def bucketize(x: Tensor, borders: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return for each element the number of sorted borders below it (`right`: below or equal): of all borders if their
    rank is 1, of its own row of them otherwise. All are below a NaN. `out_int32`: the result's dtype is int32, not
    int64."""
    dtype = result_dtype(x, borders)
    a, b = t.cast(x, dtype), t.cast(borders, dtype)
    if _compares_all(a, b):
        pairs, rows = t.expand_dims(a, -1), b if b.rank == 1 else t.expand_dims(b, -2)
        found = t.sum(t.cast(_below(rows, pairs, right), "int64"), -1)
    else:
        found = _count_below(a, b, right)
    return t.cast(found, "int32" if out_int32 else "int64")


def searchsorted(
    borders: Tensor,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Tensor:
    """Return for each element of x the number of borders below it, in the corresponding row of `borders` (sorted).
    `right` (or `side` "right"): the number of borders below or equal. `out_int32`: the result's dtype is int32, not
    int64."""
    if sorter is not None:
        borders = t.gather_elements(borders, sorter, -1)
    (x,) = lift(x, dtype=borders.dtype) if not isinstance(x, Tensor) else (x,)
    return bucketize(x, borders, out_int32, right or side == "right")


def is_member(x: Tensor, values: Tensor) -> Tensor:
    """Return for each element whether it equals one of `values` (rank 1, of x's dtype, in any order). A NaN equals
    none."""
    if _compares_all(x, values):
        return t.any(t.eq(t.expand_dims(x, -1), values), -1)
    order = t.gather(values, t.argsort(values))
    place = _count_below(x, order, right=False)
    (count,) = concrete(values.shape)
    last = t.full((), count - 1, "int64")  # a larger element has a place beyond it, and differs from the last value
    return t.eq(_take(order, t.minimum(place, last)), x)
