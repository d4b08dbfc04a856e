"""Functions that translate ONNX gather, scatter and selection operators."""

from __future__ import annotations

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, DimExpr, volume
from ...errors import ShapeError
from ..common.sizes import size_tensor
from .node import Node, Result, operator, resolve


def wrap(n: Node, index: Tensor, size: Dim) -> Tensor:
    """Return the indices as non-negative ones, which the gather ops require: negative ones count from the end of the
    axis.

    Raises ShapeError for a known index outside the axis. `size`: of the axis. `n`: the node that uses the indices.
    """
    if index.dtype.startswith("uint") or index.op in ("iota", "argmax", "argmin", "argsort"):
        return index
    found = n.context.known(index)
    if found is not None:
        if not isinstance(size, DimExpr) and found.size and (found.min() < -size or found.max() >= size):
            raise ShapeError(f"an index from {found.min()} to {found.max()} is outside size {size}")
        if not found.size or found.min() >= 0:
            return index
        if isinstance(size, int):
            return n.context.constant(np.where(found < 0, found + size, found).astype(found.dtype))
    end: Tensor | int = size if isinstance(size, int) else t.cast(size_tensor(size), index.dtype)
    return t.where(t.lt(index, 0), t.add(index, end), index)


def _taken(n: Node, x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The elements of x at the indices of an axis. Where the axis is free and the indices are known, they are taken
    from the slice that they need, so that sizes without them are refused."""
    size, found = x.shape[axis], n.context.known(index)
    if isinstance(size, DimExpr) and found is not None and found.dtype != object and found.size:
        low, high = int(found.min()), int(found.max())
        if low >= 0:
            return t.gather(t.slice_axis(x, axis, 0, high + 1), index, axis)
        if high < 0:
            line = n.context.constant((found - low).astype(found.dtype))
            return t.gather(t.slice_axis(x, axis, size + low, size), line, axis)
    return t.gather(x, wrap(n, index, size), axis)


@operator("Gather")
def _gather(n: Node) -> Result:
    x, index = n.x(0), n.x(1)
    axis = n.axis(0, x.rank)
    found = n.known(1)
    if found is not None and found.dtype != object and found.size == 1:  # a single index: a slice, which is a view
        at = int(found.reshape(-1)[0])
        size = x.shape[axis]
        if isinstance(size, int) and not -size <= at < size:
            raise ShapeError(f"index {at} is outside size {size}")
        start = at + size if at < 0 else at
        picked = t.slice_axis(x, axis, start, start + 1)
        return t.reshape(picked, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    return _taken(n, x, index, axis)


@operator("GatherElements")
def _gather_elements(n: Node) -> Result:
    x, index = n.x(0), n.x(1)
    axis = n.axis(0, x.rank)
    return t.gather_elements(x, wrap(n, index, x.shape[axis]), axis)


def _linear(n: Node, index: Tensor, sizes: tuple[Dim, ...]) -> Tensor:
    """Flatten index tuples (last axis of `index`) into linear indices over the axes `sizes`. Drops the last axis."""
    index = t.cast(index, "int64")
    total: Tensor | None = None
    for i, size in enumerate(sizes):
        part = t.squeeze(t.slice_axis(index, -1, i, i + 1), index.rank - 1)
        part = wrap(n, part, size)
        stride = volume(sizes[i + 1 :])
        part = t.mul(part, t.with_rank(size_tensor(stride), part.rank)) if stride != 1 else part
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def _tuple_length(index: Tensor) -> int:
    length = index.shape[-1] if index.rank else 0
    if not isinstance(length, int) or length < 1:
        raise ShapeError(f"the last axis of the indices has size {length}, but is a tuple of at least one index")
    return length


@operator("GatherND")
def _gather_nd(n: Node) -> Result:
    x, index, batch = n.x(0), n.x(1), n.attr("batch_dims", 0)
    k = _tuple_length(index)
    if batch >= min(x.rank, index.rank) or batch + k > x.rank or x.shape[:batch] != index.shape[:batch]:
        raise ShapeError(f"index tuples {index.type} into {x.type}, which share {batch} axes")
    lead, sizes, rest = x.shape[:batch], x.shape[batch : batch + k], x.shape[batch + k :]
    flat = _linear(n, index, sizes)
    if batch:  # one more index level: the position in the flattened batch axes
        rows = volume(lead)
        line = t.reshape(t.arange(rows), (*lead, *((1,) * (flat.rank - batch))))
        flat = t.add(flat, t.mul(line, t.with_rank(size_tensor(volume(sizes)), flat.rank)))
    table = t.reshape(x, (volume(lead) * volume(sizes), volume(rest)))
    return t.reshape(t.gather(table, flat, 0), (*index.shape[:-1], *rest))


_MODES = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@operator("ScatterElements", "Scatter")
def _scatter_elements(n: Node) -> Result:
    x, index, updates = n.x(0), n.x(1), n.x(2)
    axis = n.axis(0, x.rank)
    return t.scatter_elements(x, wrap(n, index, x.shape[axis]), updates, axis, _MODES[n.choice("reduction", *_MODES)])


@operator("ScatterND")
def _scatter_nd(n: Node) -> Result:
    x, index, updates = n.x(0), n.x(1), n.x(2)
    k = _tuple_length(index)
    if k > x.rank:
        raise ShapeError(f"index tuples have {k} numbers, but the value has rank {x.rank}")
    n.shaped(2, (*index.shape[:-1], *x.shape[k:]))
    rows, width = volume(index.shape[:-1]), volume(x.shape[k:])
    flat = t.reshape(_linear(n, index, x.shape[:k]), (rows, 1))
    table = t.reshape(x, (volume(x.shape[:k]), width))
    mode = _MODES[n.choice("reduction", *_MODES)]
    out = t.scatter_elements(table, t.broadcast_to(flat, (rows, width)), t.reshape(updates, (rows, width)), 0, mode)
    return t.reshape(out, x.shape)


@operator("TensorScatter")
def _tensor_scatter(n: Node) -> Result:
    past, update = n.x(0), n.x(1)
    axis = n.axis(-2, past.rank)
    place = t.iota([update.shape[axis] if i == axis else 1 for i in range(past.rank)], axis)
    if n.has(2):
        place = t.add(place, t.reshape(t.cast(n.x(2), "int64"), (past.shape[0], *((1,) * (past.rank - 1)))))
    if n.choice("mode", "linear", "circular") == "circular":
        place = t.mod(place, t.reshape(size_tensor(past.shape[axis]), (1,) * past.rank))
    return t.scatter_elements(past, t.broadcast_to(place, update.shape), update, axis)


@operator("OneHot", limits="depth that depends on data")
def _one_hot(n: Node) -> Result:
    index, values = n.x(0), n.x(2)
    (depth,) = n.dims(1)
    n.shaped(2, (2,))
    axis = resolve(n.attr("axis", -1), index.rank + 1)
    index = t.cast(index, "int64")
    end = size_tensor(depth)
    index = t.expand_dims(t.where(t.lt(index, 0), t.add(index, end), index), axis)
    places = t.iota([depth if i == axis else 1 for i in range(index.rank)], axis)
    off, on = (t.reshape(t.slice_axis(values, 0, i, i + 1), (1,) * index.rank) for i in (0, 1))
    return t.where(t.eq(index, places), on, off)


@operator("Compress", limits="conditions that depend on data")
def _compress(n: Node) -> Result:
    x, axis = n.x(0), 0
    if "axis" in n.attrs:
        axis = n.axis(0, x.rank)
    else:
        x = t.reshape(x, (volume(x.shape),))
    keep = n.context.constant(np.flatnonzero(n.array(1)))
    return _taken(n, x, keep, axis)


@operator(
    "NonZero",
    limits="values that depend on data, except masked elementwise reads and writes (with GatherND, ScatterND)",
)
def _non_zero(n: Node) -> Result:
    return n.context.constant(np.stack(np.nonzero(n.array(0))).astype(np.int64))


@operator("ReverseSequence")
def _reverse_sequence(n: Node) -> Result:
    x = n.x(0)
    batch, time = n.axis(1, x.rank, "batch_axis"), n.axis(0, x.rank, "time_axis")
    if batch == time:
        raise ShapeError(f"the batch axis and the time axis are both {time}")
    lengths = n.shaped(1, x.shape[batch : batch + 1])
    return reversed_within(x, lengths, batch, time)


def reversed_within(x: Tensor, lengths: Tensor, batch: int, time: int) -> Tensor:
    """x with the first elements along the axis `time` in reverse order: of each sample along `batch`, as many as
    `lengths` [batch] says."""
    place, length = places(x, lengths, batch, time)
    source = t.where(t.lt(place, length), t.sub(t.sub(length, 1), place), place)
    return t.gather_elements(x, t.broadcast_to(source, x.shape), time)


def places(x: Tensor, lengths: Tensor, batch: int, time: int) -> tuple[Tensor, Tensor]:
    """Places along the axis `time` of x, and the lengths of the samples along `batch`: int64, of sizes 1 elsewhere."""
    length = t.reshape(t.cast(lengths, "int64"), [x.shape[i] if i == batch else 1 for i in range(x.rank)])
    return t.iota([x.shape[i] if i == time else 1 for i in range(x.rank)], time), length


__all__ = ["places", "reversed_within", "wrap"]
