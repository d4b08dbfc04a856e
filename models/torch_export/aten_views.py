"""Functions that build the graph of ATen overloads that view tensors: slices, axes, sliding windows, strided memory.
They take the arguments of the ATen schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, volume
from ...errors import UnsupportedError

_END = (1 << 63) - 1  # PyTorch's value for "to the end"


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """x with an axis of size 1 inserted at `dim`."""
    return t.expand_dims(x, dim)


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1: the named ones, or all."""
    if dim is None:
        return t.squeeze(x)
    axes = [d % max(x.rank, 1) for d in ((dim,) if isinstance(dim, int) else dim)]
    return t.squeeze(x, [a for a in axes if x.rank and isinstance(x.shape[a], int) and x.shape[a] == 1])


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Return x with the axes `a` and `b` swapped."""
    return t.swapaxes(x, a, b) if x.rank else x


def t_(x: Tensor) -> Tensor:
    """Transpose a matrix; vectors are returned unchanged."""
    return t.transpose(x) if x.rank == 2 else x


def expand(x: Tensor, size: Sequence[Dim], implicit: bool = False) -> Tensor:
    """x broadcast along axes of size 1; -1 keeps an axis's size."""
    lead = len(size) - x.rank
    sizes = [x.shape[i - lead] if isinstance(d, int) and d == -1 else d for i, d in enumerate(size)]
    return t.broadcast_to(x, sizes)


def bound(value: Dim | None, size: Dim, default: Dim) -> Dim:
    """An index bound `value` as a position in 0..size.

    None stands for `default`; negative bounds count from the end.
    """
    if value is None or (isinstance(value, int) and value >= _END):
        return default
    if isinstance(value, int) and value < 0:
        value = value + size
    if isinstance(value, int) and isinstance(size, int):
        return min(max(value, 0), size)
    return value


def slice_(x: Tensor, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> Tensor:
    """Return the elements start, start + step, … before end along the axis `dim`. Out-of-range bounds are clamped."""
    axis = dim % x.rank
    size = x.shape[axis]
    lo, hi = bound(start, size, 0), bound(end, size, size)
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
    """Return the memory of dense x as a dense tensor of other sizes and strides.

    `strides` and `first`: strides and offset of x. `size`, `wanted`, `offset`: sizes, strides and offset of the result.
    Raises UnsupportedError unless the result covers all of the memory of x, densely.
    """
    if offset not in (None, first) or volume(x.shape) != volume(tuple(size)):
        raise UnsupportedError("a part of a tensor's memory")
    source, target = _memory_order(x.shape, strides), _memory_order(size, wanted)
    flat = t.reshape(t.permute(x, source), [size[i] for i in target])
    return t.permute(flat, [target.index(i) for i in range(len(target))])


def narrow(x: Tensor, dim: int, start: Dim, length: Dim) -> Tensor:
    """Return `length` elements of the axis `dim` from `start` on."""
    start = start + x.shape[dim] if isinstance(start, int) and start < 0 else start
    return t.slice_axis(x, dim, start, start + length)


def select(x: Tensor, dim: int, index: Dim) -> Tensor:
    """Return the slice of x at one position of the axis `dim`, without that axis."""
    axis = dim % x.rank
    at = index + x.shape[axis] if isinstance(index, int) and index < 0 else index
    piece = t.slice_axis(x, axis, at, at + 1)
    return t.reshape(piece, (*x.shape[:axis], *x.shape[axis + 1 :]))


def split(x: Tensor, size: Dim | Sequence[Dim], dim: int = 0) -> list[Tensor]:
    """The pieces of the axis `dim`: of one size (the last may be smaller), or of the listed sizes. Raises
    UnsupportedError if the number of pieces depends on a free size."""
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
    """At most `chunks` pieces of equal size of the axis `dim` (the last may be smaller)."""
    total = x.shape[dim]
    return split(x, (total + chunks - 1) // chunks if isinstance(total, int) else total // chunks, dim)


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Return the slices of x at every position of the axis `dim`, each without that axis. Raises UnsupportedError for a
    free axis."""
    count = x.shape[dim]
    if not isinstance(count, int):
        raise UnsupportedError(f"unbind over the free dimension {count}", hint="bind it: dims={...}")
    return [select(x, dim, i) for i in range(count)]


def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    """Return x with the axes `start` to `end` (inclusive) merged into one."""
    if not x.rank:
        return t.reshape(x, (1,))
    a, b = start % x.rank, end % x.rank
    return t.reshape(x, (*x.shape[:a], volume(x.shape[a : b + 1]), *x.shape[b + 1 :]))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements of the diagonal `offset` of the axes `dim1` and `dim2`, as a new last axis in place of the
    two. Raises UnsupportedError for free sizes."""
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
    """Return sliding windows of `size` elements along the axis `dim`, `step` apart. The window elements form a new last
    axis."""
    return t.windows(x, dim, size, step) if x.rank else t.reshape(x, (1,))


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """x[..., C r r, H, W] rearranged to [..., C, H r, W r], r being `factor`."""
    *lead, channels, rows, columns = x.shape
    n = len(lead)
    x = t.reshape(x, (*lead, channels // (factor * factor), factor, factor, rows, columns))
    x = t.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return t.reshape(x, (*lead, channels // (factor * factor), rows * factor, columns * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """x[..., C, H r, W r] rearranged to [..., C r r, H, W], r being `factor`."""
    *lead, channels, rows, columns = x.shape
    n = len(lead)
    x = t.reshape(x, (*lead, channels, rows // factor, factor, columns // factor, factor))
    x = t.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return t.reshape(x, (*lead, channels * (factor * factor), rows // factor, columns // factor))
