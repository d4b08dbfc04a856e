"""Builders of ATen overloads that create, view, move or index tensors. Arguments follow the ATen schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import dtypes
from ...egraph.ir.dims import Dim, Expr, volume
from ...egraph.ir.graph import Tensor
from ...errors import UnsupportedError
from .aten_pointwise import lift, number, result_dtype


class Missing:
    """Placeholder for an operator result without a builder.

    `what` names it in the error raised on use; empty if reported.
    """

    def __init__(self, what: str) -> None:
        self.what = what


_END = (1 << 63) - 1  # PyTorch's value for "to the end"


# ---------------------------------------------------------------- creation
def _full(size: Sequence[Dim], value: Any, dtype: str) -> Tensor:
    found = number(value)
    return t.broadcast_to(t.cast(found, dtype), size) if isinstance(found, Tensor) else t.full(size, found, dtype)


def full(size: Sequence[Dim], value: Any, dtype: str | None = None) -> Tensor:
    """Tensor of a size filled with a value; the dtype is that of the value unless given."""
    return _full(size, value, dtype or result_dtype(value))


def filled(value: Any) -> Callable[..., Tensor]:
    """Return a builder of constant tensors with a given size."""
    return lambda size, dtype=None: t.full(size, value, dtype or "float32")


def filled_like(value: Any) -> Callable[..., Tensor]:
    """Return a builder of constant tensors shaped like another tensor."""
    return lambda x, dtype=None: t.full(x.shape, value, dtype or x.dtype)


def new_filled(value: Any) -> Callable[..., Tensor]:
    """Return a builder of constant tensors with a given size and another tensor's dtype."""
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
    """Return a number as a 0-d tensor."""
    return _full((), value, dtype or "float32")


def arange(start: Any, end: Any, step: Any = 1, dtype: str | None = None) -> Tensor:
    """Return start, start + step, … below end.

    For integer dtypes fractions of start and step are truncated, as in PyTorch.
    """
    exact = (
        dtype is not None and not dtypes.is_float(dtype) and not any(isinstance(v, Expr) for v in (start, end, step))
    )
    if exact and any(isinstance(v, float) for v in (start, end, step)):
        first, by = int(start), int(step)
        count = -(-(int(end) - first) // by) if dtype == "int64" else ceil((end - start) / step)
        return t.constant((np.arange(count) * by + first).astype(dtypes.numpy_dtype(dtype)))
    if any(isinstance(v, float) for v in (start, end, step)):
        if any(isinstance(v, Expr) for v in (start, end, step)):
            raise UnsupportedError("steps of a fraction up to a free size")
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
    """Return equally spaced numbers, both ends included."""
    return t.constant(np.linspace(start, end, steps).astype(dtypes.numpy_dtype(dtype or "float32")))


def eye(rows: Dim, columns: Dim | None = None, dtype: str | None = None) -> Tensor:
    """Return the identity matrix."""
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
    """Return a builder of the indices [2, n] of a triangle of a matrix."""

    def build(rows: int, columns: int, offset: int = 0, dtype: str | None = None) -> Tensor:
        return t.constant(np.stack(indices(rows, offset, columns)).astype(dtypes.numpy_dtype(dtype or "int64")))

    return build


# ---------------------------------------------------------------- dtypes and copies
def same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """x itself: copies, aliases and detach are the identity on values."""
    return x


def to_copy(x: Tensor, dtype: str | None = None) -> Tensor:
    """Return x in another dtype."""
    return t.cast(x, dtype or x.dtype)


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return source broadcast to x's shape and cast to x's dtype."""
    return t.broadcast_to(t.cast(source, x.dtype), x.shape)


# ---------------------------------------------------------------- views
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Insert an axis of size 1."""
    return t.expand_dims(x, dim)


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Remove axes of size 1: the named ones, or all."""
    if dim is None:
        return t.squeeze(x)
    axes = [d % max(x.rank, 1) for d in ((dim,) if isinstance(dim, int) else dim)]
    return t.squeeze(x, [a for a in axes if x.rank and isinstance(x.shape[a], int) and x.shape[a] == 1])


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Return x with two axes swapped."""
    return t.swapaxes(x, a, b) if x.rank else x


def t_(x: Tensor) -> Tensor:
    """Transpose a matrix; vectors are returned unchanged."""
    return t.transpose(x) if x.rank == 2 else x


def expand(x: Tensor, size: Sequence[Dim], implicit: bool = False) -> Tensor:
    """Broadcast axes of size 1; -1 keeps an axis's size."""
    lead = len(size) - x.rank
    sizes = [x.shape[i - lead] if isinstance(d, int) and d == -1 else d for i, d in enumerate(size)]
    return t.broadcast_to(x, sizes)


def _bound(value: Dim | None, size: Dim, default: Dim) -> Dim:
    if value is None or (isinstance(value, int) and value >= _END):
        return default
    if isinstance(value, int) and value < 0:
        value = value + size
    if isinstance(value, int) and isinstance(size, int):
        return min(max(value, 0), size)
    return value


def slice_(x: Tensor, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> Tensor:
    """Return the elements start, start + step, … before end. Out-of-range bounds are clamped."""
    axis = dim % x.rank
    size = x.shape[axis]
    lo, hi = _bound(start, size, 0), _bound(end, size, size)
    if isinstance(lo, int) and isinstance(hi, int):
        hi = max(lo, hi)
    return t.slice_axis(x, axis, lo, hi, step)


def _memory_order(shape: Sequence[Any], strides: Sequence[Any]) -> list[int]:
    """Return the axes of a dense tensor from the outermost to the innermost in memory.

    Raises UnsupportedError for free sizes and for elements that overlap or leave gaps.
    """
    if not all(type(d) is int for d in (*shape, *strides)):
        raise UnsupportedError("strides over free dimensions")
    order = sorted((i for i, d in enumerate(shape) if d != 1), key=lambda i: -strides[i])
    step = 1
    for i in reversed(order):
        if strides[i] != step:
            raise UnsupportedError("strides of a tensor that overlaps itself or has gaps")
        step *= shape[i]
    return [*(i for i, d in enumerate(shape) if d == 1), *order]


def as_strided(
    x: Tensor, strides: Sequence[Any], first: Any, size: Sequence[Any], wanted: Sequence[Any], offset: Any = None
) -> Tensor:
    """Return the memory of dense x, whose strides and offset are given, as a dense tensor of other sizes and strides."""
    if offset not in (None, first) or volume(x.shape) != volume(tuple(size)):
        raise UnsupportedError("a part of a tensor's memory")
    source, target = _memory_order(x.shape, strides), _memory_order(size, wanted)
    flat = t.reshape(t.permute(x, source), [size[i] for i in target])
    return t.permute(flat, [target.index(i) for i in range(len(target))])


def narrow(x: Tensor, dim: int, start: Dim, length: Dim) -> Tensor:
    """Return `length` elements of an axis from start on."""
    start = start + x.shape[dim] if isinstance(start, int) and start < 0 else start
    return t.slice_axis(x, dim, start, start + length)


def select(x: Tensor, dim: int, index: Dim) -> Tensor:
    """Return one position of an axis; the axis is removed."""
    axis = dim % x.rank
    at = index + x.shape[axis] if isinstance(index, int) and index < 0 else index
    piece = t.slice_axis(x, axis, at, at + 1)
    return t.reshape(piece, (*x.shape[:axis], *x.shape[axis + 1 :]))


def split(x: Tensor, size: Dim | Sequence[Dim], dim: int = 0) -> list[Tensor]:
    """Split an axis into pieces of one size (the last may be smaller) or of the listed sizes."""
    if isinstance(size, Sequence):
        return t.split(x, size, dim)
    total = x.shape[dim]
    count = (total + size - 1) // size if isinstance(total, int) and isinstance(size, int) else total // size
    if not isinstance(count, int):
        raise UnsupportedError(f"a split of {total} into pieces of {size} has a free number of pieces")
    stops = [min(total, (i + 1) * size) if isinstance(total, int) and isinstance(size, int) else (i + 1) * size
             for i in range(max(count, 1))]  # fmt: skip
    return [t.slice_axis(x, dim, i * size, stop) for i, stop in enumerate(stops)]


def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """Split an axis into at most `chunks` pieces of equal size."""
    total = x.shape[dim]
    return split(x, (total + chunks - 1) // chunks if isinstance(total, int) else total // chunks, dim)


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Return every position of an axis."""
    count = x.shape[dim]
    if not isinstance(count, int):
        raise UnsupportedError(f"unbind over the free dimension {count}", hint="bind it: dims={...}")
    return [select(x, dim, i) for i in range(count)]


def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    """Return x with consecutive axes merged into one."""
    if not x.rank:
        return t.reshape(x, (1,))
    a, b = start % x.rank, end % x.rank
    return t.reshape(x, (*x.shape[:a], volume(x.shape[a : b + 1]), *x.shape[b + 1 :]))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a diagonal of two axes as a new last axis."""
    a, b = dim1 % x.rank, dim2 % x.rank
    rest = [i for i in range(x.rank) if i not in (a, b)]
    x = t.permute(x, (*rest, a, b))
    rows, columns = x.shape[-2:]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        raise UnsupportedError("the diagonal of a free dimension")
    first = offset if offset >= 0 else -offset * columns
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    flat = t.reshape(x, (*x.shape[:-2], rows * columns))
    if not count:
        return t.slice_axis(flat, -1, 0, 0)
    return t.slice_axis(flat, -1, first, first + (count - 1) * (columns + 1) + 1, columns + 1)


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Return sliding windows along an axis; the window elements form a new last axis."""
    return t.windows(x, dim, size, step) if x.rank else t.reshape(x, (1,))


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """Rearrange x[..., C r r, H, W] to [..., C, H r, W r]."""
    *lead, channels, rows, columns = x.shape
    n = len(lead)
    x = t.reshape(x, (*lead, channels // (factor * factor), factor, factor, rows, columns))
    x = t.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return t.reshape(x, (*lead, channels // (factor * factor), rows * factor, columns * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """Rearrange x[..., C, H r, W r] to [..., C r r, H, W]."""
    *lead, channels, rows, columns = x.shape
    n = len(lead)
    x = t.reshape(x, (*lead, channels, rows // factor, factor, columns // factor, factor))
    x = t.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return t.reshape(x, (*lead, channels * (factor * factor), rows // factor, columns // factor))


# ---------------------------------------------------------------- layout
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate. Empty vectors are ignored, as in PyTorch."""
    dtype = result_dtype(*tensors)
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    return t.concat([t.cast(x, dtype) for x in kept], dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Stack along a new axis."""
    dtype = result_dtype(*tensors)
    return t.stack([t.cast(x, dtype) for x in tensors], dim)


def _spread(x: Tensor, factors: Sequence[Dim], after: bool) -> Tensor:
    """Repeat every axis: element by element if `after`, otherwise as a whole."""
    inner: list[Dim] = []
    wide: list[Dim] = []
    for size, factor in zip(x.shape, factors, strict=True):
        one = isinstance(factor, int) and factor == 1
        inner += [size] if one else [size, 1] if after else [1, size]
        wide += [size] if one else [size, factor] if after else [factor, size]
    final = [size * factor for size, factor in zip(x.shape, factors)]
    return t.reshape(t.broadcast_to(t.reshape(x, inner), wide), final)


def repeat(x: Tensor, repeats: Sequence[Dim]) -> Tensor:
    """Tile the whole tensor along each axis; leading axes are added."""
    x = t.with_rank(x, len(repeats))
    return _spread(x, [1] * (x.rank - len(repeats)) + list(repeats), after=False)


def repeat_interleave(x: Tensor, repeats: Dim, dim: int | None = None, output_size: Any = None) -> Tensor:
    """Repeat each element of an axis consecutively."""
    x, dim = (t.reshape(x, (-1,)), 0) if dim is None else (x, dim % x.rank)
    return _spread(x, [repeats if i == dim else 1 for i in range(x.rank)], after=True)


def upsample(x: Tensor, factors: Sequence[int]) -> Tensor:
    """Nearest-neighbour upsampling of the spatial axes by integer factors."""
    return _spread(x, [1, 1, *factors], after=True)


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    """Return x rotated along axes (NumPy's roll)."""
    if volume(x.shape) == 0:
        return x
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        return t.reshape(roll(t.reshape(x, (-1,)), moves[0], 0), x.shape)
    for shift, axis in zip(moves, axes, strict=True):
        size = x.shape[axis]
        cut = (-shift) % size if isinstance(size, int) and size else -shift if shift <= 0 else size - shift
        if not (isinstance(cut, int) and cut == 0):
            x = t.concat([t.slice_axis(x, axis, cut, size), t.slice_axis(x, axis, 0, cut)], axis)
    return x


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x with axes reversed."""
    for axis in dims:
        x = t.flip(x, axis) if x.rank else x
    return x


def _cut(width: Dim) -> int:
    """Return the number of elements that a negative padding width removes."""
    return -width if isinstance(width, int) and width < 0 else 0


def constant_pad(x: Tensor, widths: Sequence[Dim], value: float = 0) -> Tensor:
    """Pad with a constant. Widths are pairs from the last axis on; negative widths crop."""
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
    for back, (lo, hi) in enumerate(pairs):
        axis = x.rank - 1 - back
        x = t.slice_axis(x, axis, _cut(lo), x.shape[axis] - _cut(hi))
        x = t.pad(x, [(lo + _cut(lo), hi + _cut(hi)) if a == axis else (0, 0) for a in range(x.rank)], value)
    return x


def edge_pad(mode: str) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Return a builder of non-constant padding; `mode` is NumPy's, such as 'reflect', 'edge' or 'wrap'."""

    def build(x: Tensor, widths: Sequence[int]) -> Tensor:
        for back in range(len(widths) // 2):
            axis, lo, hi = x.rank - 1 - back, widths[2 * back], widths[2 * back + 1]
            size = x.shape[axis]
            if not isinstance(size, int):
                raise UnsupportedError(f"{mode} padding of the free dimension {size}", hint="bind it: dims={...}")
            line = np.pad(np.arange(size), (max(lo, 0), max(hi, 0)), mode=mode)  # type: ignore[call-overload]
            line = line[max(-lo, 0) : len(line) - max(-hi, 0)]
            x = t.gather(x, t.constant(line.astype(np.int64)), axis)
        return x

    return build


def slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Tensor:
    """Return x with a slice replaced."""
    axis = dim % x.rank
    size = x.shape[axis]
    lo, hi = _bound(start, size, 0), _bound(end, size, size)
    source = t.cast(source, x.dtype)
    if step == 1:
        parts = [t.slice_axis(x, axis, 0, lo), source, t.slice_axis(x, axis, hi, size)]
        kept = [p for p in parts if not (isinstance(p.shape[axis], int) and p.shape[axis] == 0)]
        return t.concat(kept or parts[:1], axis)
    index = t.iota(source.shape, axis) * step + number(lo)
    return t.scatter_elements(x, index, source, axis)


def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Return x with one position of an axis replaced."""
    at = index + x.shape[dim] if index < 0 else index
    return slice_scatter(x, t.expand_dims(source, dim % x.rank), dim, at, at + 1)


# ---------------------------------------------------------------- indexing
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of a table, gathered by indices."""
    return t.gather(weight, indices, 0)


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0, sparse: bool = False,
    shares: Tensor | None = None, include_last: bool = False, padding_idx: int = -1,
) -> list[Any]:  # fmt: skip
    """Table rows reduced by bag: sum (mode 0), mean (1) or maximum (2). Each offset starts a bag.

    Indices equal to `padding_idx` are ignored. The other results are not computed.
    """
    rows = t.gather(weight, indices, 0)
    bags = offsets.shape[0] - 1 if include_last else offsets.shape[0]
    starts = t.expand_dims(t.slice_axis(offsets, 0, 0, bags), 0)
    places = t.expand_dims(t.iota(indices.shape, 0, offsets.dtype), 1)
    bag = t.sum(t.cast(t.ge(places, starts), "int64"), 1) - 1
    counted = t.ne(indices, padding_idx) if padding_idx >= 0 else t.full(indices.shape, 1, "bool")
    if shares is not None:
        rows = rows * t.expand_dims(shares, 1)
    spot = t.broadcast_to(t.expand_dims(bag, 1), rows.shape)
    shape = (bags, weight.shape[1])
    sizes = t.scatter_elements(t.zeros((bags,), "int64"), bag, t.cast(counted, "int64"), 0, "add")
    if mode == 2:
        rows = t.where(t.expand_dims(counted, 1), rows, float("-inf"))
        out = t.scatter_elements(t.full(shape, float("-inf"), weight.dtype), spot, rows, 0, "max")
        out = t.where(t.expand_dims(t.gt(sizes, 0), 1), out, 0.0)
    else:
        rows = t.where(t.expand_dims(counted, 1), rows, 0.0) if padding_idx >= 0 else rows
        out = t.scatter_elements(t.zeros(shape, weight.dtype), spot, rows, 0, "add")
    if mode == 1:
        out = t.div(out, t.cast(t.expand_dims(t.maximum(sizes, 1), 1), weight.dtype))
    return [out, *[Missing("the bookkeeping of embedding_bag")] * 3]


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Positions of an axis, gathered by indices."""
    if not x.rank:
        return x
    return t.gather(x, index if index.rank else t.reshape(index, (1,)), dim)


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Elements along an axis, gathered by one index per result element."""
    if volume(index.shape) == 0:
        return t.zeros(index.shape, x.dtype)
    if not x.rank:
        return t.broadcast_to(x, index.shape)
    return t.gather_elements(x, index, dim)


_MODES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def scatter(
    x: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None = None, include_self: bool = True
) -> Tensor:
    """Return x with numbers or elements of another tensor written (or reduced) at the index along an axis."""
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


def neutral(smallest: bool, dtype: str) -> float:
    """Return the smallest (`smallest`) or largest value of a dtype."""
    if dtypes.is_float(dtype):
        return float("-inf") if smallest else float("inf")
    limits = np.iinfo(dtypes.numpy_dtype(dtype)) if dtype != "bool" else None
    return int(limits.min if smallest else limits.max) if limits is not None else int(not smallest)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return x plus another tensor's elements at the index along an axis."""
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
        index = t.add(*t.align(index * number(size), part))
    x = t.reshape(x, (*x.shape[:start], volume(sizes), *x.shape[start + len(axes) :]))
    return x, index, start, len(axes)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements at integer index tensors along some axes (NumPy's advanced indexing). Masks raise UnsupportedError."""
    if all(v is None for v in indices):
        return x
    x, spot, axis, _ = _one_index(x, indices)
    return t.gather(x, spot, axis)


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with values written (or added) at integer index tensors, or with one value written at a mask."""
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
    """Return x plus slices of another tensor at positions of an axis."""
    source = source if alpha == 1 else source * number(alpha)
    return _along(x, dim, index, source, "add")


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return x with positions of an axis replaced."""
    return _along(x, dim, index, source, "set")


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Return x with positions of an axis set to a number."""
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
    """Return x with a diagonal of two axes replaced."""
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
