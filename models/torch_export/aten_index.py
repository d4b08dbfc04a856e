"""Functions that build the graph of ATen overloads that gather and scatter elements by index. They take the arguments
of the ATen schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.builders.operand_alignment import align
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, volume
from ...errors import UnsupportedError
from .aten_create import fill, neutral
from .aten_pointwise import lift, number
from .aten_views import diagonal
from .missing import Missing


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of the table `weight`, gathered by indices. The other arguments only matter for gradients and are
    ignored."""
    return t.gather(weight, indices, 0)


Reduction = Callable[[Tensor], Tensor]  # of a tensor along axis 0, by bag


def _bags_by_offsets(indices: Tensor, offsets: Tensor, bags: Dim) -> tuple[Reduction, Reduction]:
    """(sum, maximum) of the elements of each bag, which begin anywhere."""
    starts = t.expand_dims(t.slice_axis(offsets, 0, 0, bags), 0)
    places = t.expand_dims(t.iota(indices.shape, 0, offsets.dtype), 1)
    bag = t.sum(t.cast(t.ge(places, starts), "int64"), 1) - 1

    def scattered(x: Tensor, first: float, mode: str) -> Tensor:
        spot = t.broadcast_to(t.reshape(bag, (*bag.shape, *(1 for _ in x.shape[1:]))), x.shape)
        return t.scatter_elements(t.full((bags, *x.shape[1:]), first, x.dtype), spot, x, 0, mode)

    return lambda x: scattered(x, 0, "add"), lambda x: scattered(x, float("-inf"), "max")


def _bags_of_one_size(indices: Tensor, offsets: Tensor, bags: Dim) -> tuple[Reduction, Reduction] | None:
    """(sum, maximum) of the elements of each bag, if all have the same size, as where indices have two axes: `offsets`
    are a range with a constant step then. None otherwise."""
    line, step = offsets, offsets if offsets.op == "iota" else None
    if offsets.op == "mul":
        line, step = sorted(offsets.args, key=lambda x: x.op != "iota")
    if step is None or line.op != "iota" or line.rank != 1 or (step is not offsets and step.op != "full"):
        return None
    size = 1 if step is offsets else step.attr("value")
    if not isinstance(size, int) or size < 1 or bags * size != indices.shape[0]:
        return None

    def split(x: Tensor) -> Tensor:
        return t.reshape(x, (bags, size, *x.shape[1:]))

    return lambda x: t.sum(split(x), 1), lambda x: t.max(split(x), 1)


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0, sparse: bool = False,
    shares: Tensor | None = None, include_last: bool = False, padding_idx: int = -1,
) -> list[Any]:  # fmt: skip
    """Return [table rows reduced by bag: sum (mode 0), mean (1) or maximum (2), three placeholders].

    Each offset starts a bag; with `include_last`, the last offset ends the last bag. `shares`: weights of the rows.
    Indices equal to `padding_idx` are ignored. The placeholders stand for ATen's bookkeeping results.
    """
    rows = t.gather(weight, indices, 0)
    bags = offsets.shape[0] - 1 if include_last else offsets.shape[0]
    counted = t.ne(indices, padding_idx) if padding_idx >= 0 else t.full(indices.shape, 1, "bool")
    if shares is not None:
        rows = rows * t.expand_dims(shares, 1)
    add_up, largest = _bags_of_one_size(indices, offsets, bags) or _bags_by_offsets(indices, offsets, bags)
    sizes = add_up(t.cast(counted, "int64"))
    if mode == 2:
        out = largest(t.where(t.expand_dims(counted, 1), rows, float("-inf")))
        out = t.where(t.expand_dims(t.gt(sizes, 0), 1), out, 0.0)
    else:
        out = add_up(t.where(t.expand_dims(counted, 1), rows, 0.0) if padding_idx >= 0 else rows)
    if mode == 1:
        out = t.div(out, t.cast(t.expand_dims(t.maximum(sizes, 1), 1), weight.dtype))
    return [out, *[Missing("the bookkeeping of embedding_bag")] * 3]


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the slices of x at the 1-D `index` along the axis `dim`."""
    if not x.rank:
        return x
    return t.gather(x, index if index.rank else t.reshape(index, (1,)), dim)


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Return elements of x along the axis `dim`; `index` has the result's shape and one index per element."""
    if volume(index.shape) == 0:
        return t.zeros(index.shape, x.dtype)
    if not x.rank:
        return t.broadcast_to(x, index.shape)
    return t.gather_elements(x, index, dim)


_MODES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def scatter(
    x: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None = None, include_self: bool = True
) -> Tensor:
    """Return x with each element of `source` (a tensor or a number) written at its index along the axis `dim`.

    `index`: one index per element of `source`. `reduce`: how elements at the same index are combined: "sum" or "add",
    "prod" or "multiply", "amax", "amin", "mean"; None: one of them replaces the element of x. `include_self`: whether
    the element of x is combined, too. Raises UnsupportedError for another `reduce`, or for a 0-d tensor x.
    """
    mode = "set" if reduce is None else "add" if reduce == "mean" else _MODES.get(reduce, "")
    if not mode:
        raise UnsupportedError(f"scatter with reduce={reduce!r} is not supported")
    if not x.rank:
        raise UnsupportedError("scatter into a 0-d tensor is not supported")
    (source,) = lift(source, dtype=x.dtype)
    if source.rank == index.rank:
        for axis, size in enumerate(index.shape):
            source = t.slice_axis(source, axis, 0, size)
    count: Tensor | None = None
    if reduce == "mean" or not include_self:
        count = t.scatter_elements(t.zeros(x.shape, "int64"), index, t.ones(index.shape, "int64"), dim, "add")
    if count is not None and not include_self:
        x = t.where(
            t.gt(count, 0), neutral(mode == "max", x.dtype) if mode in ("max", "min") else int(mode == "mul"), x
        )
    out = t.scatter_elements(x, index, t.broadcast_to(source, index.shape), dim, mode)
    if reduce != "mean":
        return out
    assert count is not None
    parts = t.cast(t.maximum(count + int(include_self), 1), x.dtype)
    return t.div(out, parts) if dtypes.is_float(x.dtype) else t.floordiv(out, parts)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return x with each element of `source` added at its index along the axis `dim`."""
    return scatter(x, dim, index, source, "add")


def _plain_index(index: Tensor, size: Dim) -> Tensor:
    """Normalize negative indices to non-negative ones. Iotas and constants known to be non-negative stay unchanged."""
    if index.dtype == "bool":
        raise UnsupportedError("indexing with a bool mask has a size that depends on data", hint="use where")
    index = index if index.dtype in ("int64", "int32") else t.cast(index, "int64")
    known = index.data
    if index.op == "iota" or (known is not None and (known.size == 0 or known.min() >= 0)):
        return index
    if index.op == "full" and index.attr("value") >= 0:
        return index
    if known is not None and isinstance(size, int):
        return t.constant(np.where(known < 0, known + size, known))
    return t.where(t.lt(index, 0), index + number(size), index)


def _one_index(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, int, int]:
    """Merge the indexed axes of x. Returns (x, index into the merged axis, that axis, number of merged axes).

    Indexed axes that are not adjacent move to the front, where PyTorch and NumPy put the index axes of the result.
    """
    axes = [i for i, v in enumerate(indices) if v is not None]
    if axes != list(range(axes[0], axes[-1] + 1)):
        x = t.permute(x, (*axes, *(i for i in range(x.rank) if i not in axes)))
        start = 0
    else:
        start = axes[0]
    given = [v for v in indices if v is not None]
    sizes = x.shape[start : start + len(axes)]
    parts = [_plain_index(v, d) for v, d in zip(given, sizes)]
    index = parts[0]
    for part, size in zip(parts[1:], sizes[1:]):
        index = t.add(*align(index * number(size), part))
    x = t.reshape(x, (*x.shape[:start], volume(sizes), *x.shape[start + len(axes) :]))
    return x, index, start, len(axes)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements at integer index tensors along some axes (NumPy's advanced indexing). Masks raise UnsupportedError."""
    if all(v is None for v in indices):
        return x
    x, spot, axis, _ = _one_index(x, indices)
    return t.gather(x, spot, axis)


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with values written (added with `accumulate`) at integer index tensors, or with one value written at a
    mask.

    Raises UnsupportedError for several values at a mask.
    """
    used = [v for v in indices if v is not None]
    values = t.cast(values, x.dtype)
    if len(used) == 1 and used[0].dtype == "bool" and indices[0] is used[0]:
        mask = used[0]
        if volume(values.shape) != 1 or accumulate:
            raise UnsupportedError("writing several values at a bool mask depends on data", hint="use where")
        mask = t.reshape(mask, (*mask.shape, *(1,) * (x.rank - mask.rank)))
        return t.where(mask, t.reshape(values, (1,) * x.rank), x)
    if not used:
        return t.broadcast_to(values, x.shape)
    axes = [i for i, v in enumerate(indices) if v is not None]
    order = (*axes, *(i for i in range(x.rank) if i not in axes))
    neighbours = axes == list(range(axes[0], axes[-1] + 1))
    moved = t.permute(x, order)
    flat, spot, _, _ = _one_index(moved, used)
    rest = flat.shape[1:]
    lead = len(order) - len(axes) if not neighbours else axes[0]
    block = (*spot.shape, *rest) if not neighbours else (*x.shape[:lead], *spot.shape, *x.shape[axes[-1] + 1 :])
    spread = t.broadcast_to(values, block)
    if neighbours:  # the index axes are in place of the indexed axes: move them to the front
        front = range(lead, lead + spot.rank)
        spread = t.permute(spread, (*front, *(i for i in range(len(block)) if i not in front)))
    count = volume(spot.shape)
    rows = t.reshape(spread, (count, *rest))
    where = t.broadcast_to(t.reshape(spot, (count, *(1,) * len(rest))), (count, *rest))
    out = t.scatter_elements(flat, where, rows, 0, "add" if accumulate else "set")
    out = t.reshape(out, moved.shape)
    return t.permute(out, [order.index(i) for i in range(x.rank)])


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """Return x with the slices of `source`, times `alpha`, added at the 1-D `index` along the axis `dim`."""
    source = source if alpha == 1 else source * number(alpha)
    return _along(x, dim, index, source, "add")


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return x with the slices at the 1-D `index` along the axis `dim` replaced by those of `source`."""
    return _along(x, dim, index, source, "set")


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Return x with the slices at the 1-D `index` along the axis `dim` filled with a number."""
    if not x.rank:
        return fill(x, value)
    size = (*x.shape[:dim], volume(index.shape), *x.shape[dim % x.rank + 1 :])
    return _along(x, dim, index, t.broadcast_to(lift(value, dtype=x.dtype)[0], size), "set")


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return x with the elements under the mask replaced by consecutive elements of the source."""
    shape = mask.shape if mask.rank > x.rank else x.shape
    x, mask = t.broadcast_to(x, shape), t.broadcast_to(mask, shape)
    flat = t.cast(t.reshape(mask, (volume(shape),)), "int64")
    order = t.reshape(t.cumsum(flat, 0) - 1, shape)  # out of range only where the mask is False
    return t.where(mask, t.gather(t.reshape(source, (volume(source.shape),)), t.maximum(order, 0), 0), x)


def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return x with the diagonal `offset` of the axes `dim1` and `dim2` replaced by `source`."""
    places = t.reshape(t.iota((volume(x.shape),), 0), x.shape)
    spots = diagonal(places, offset, dim1, dim2)
    flat, count = t.reshape(x, (volume(x.shape),)), (volume(spots.shape),)
    written = t.scatter_elements(flat, t.reshape(spots, count), t.reshape(t.cast(source, x.dtype), count), 0, "set")
    return t.reshape(written, x.shape)


def _along(x: Tensor, dim: int, index: Tensor, source: Tensor, mode: str) -> Tensor:
    if not x.rank:
        raise UnsupportedError("writing into positions of a 0-d tensor is not supported")
    axis = dim % x.rank
    line = [volume(index.shape) if i == axis else 1 for i in range(x.rank)]
    spot = t.broadcast_to(t.reshape(_plain_index(index, x.shape[axis]), line), source.shape)
    return t.scatter_elements(x, spot, t.cast(source, x.dtype), axis, mode)
