"""Functions that build views and copies in another layout: permuted, broadcast, sliced, joined and padded tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError, UsageError
from ..ir.tensor import Tensor, make
from ..ops.ops import dims_of
from ..types.axes import axes_of, axis_of
from ..types.dims import Dim
from .operand_alignment import align_dtypes, as_tensor, reshape, with_rank


def permute(x: Tensor, perm: Sequence[int]) -> Tensor:
    """x with permuted axes: axis i of the result is axis perm[i] of x."""
    perm = tuple(axis_of(p, x.rank) for p in perm)
    return x if perm == tuple(range(x.rank)) else make("permute", (x,), {"perm": perm})


def swapaxes(x: Tensor, a: int, b: int) -> Tensor:
    """x with the axes `a` and `b` exchanged."""
    perm = list(range(x.rank))
    a, b = axis_of(a, x.rank), axis_of(b, x.rank)
    perm[a], perm[b] = perm[b], perm[a]
    return permute(x, perm)


def transpose(x: Tensor) -> Tensor:
    """x with its last two axes exchanged."""
    return swapaxes(x, -1, -2)


def broadcast_to(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """x broadcast to a shape: sizes of 1 stretch, leading axes are added."""
    shape = dims_of(shape)
    x = with_rank(x, len(shape))
    return x if x.shape == shape else make("broadcast_to", (x,), {"shape": shape})


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """x with an axis of size 1 inserted before `axis`; negative axes count from the end of the result."""
    a = axis_of(axis, x.rank + 1)
    return reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1 (the given ones, or all)."""
    axes = axes_of(axis, x.rank) if axis is not None else tuple(i for i, d in enumerate(x.shape) if d == 1)
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def slice_axis(x: Tensor, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tensor:
    """Elements start, start + step, … below stop along one axis."""
    axis = axis_of(axis, x.rank)
    if not x.rank:
        raise ShapeError("a value of rank 0 has no axis to slice")
    if start == 0 and stop == x.shape[axis] and step == 1:
        return x
    return make("slice", (x,), {"axis": axis, "start": start, "stop": stop, "step": step})


def flip(x: Tensor, axis: int) -> Tensor:
    """x with the elements along an axis in reverse order."""
    return make("flip", (x,), {"axis": axis_of(axis, x.rank)})


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors joined along an existing axis; the other sizes must be equal. Dtypes are promoted.

    Raises UsageError without tensors.
    """
    parts = align_dtypes(*tensors)
    if not parts:
        raise UsageError("concat needs at least one tensor")
    found = parts[0]
    for part in parts[1:]:
        found = make("concat", (found, part), {"axis": axis_of(axis, found.rank)})
    return found


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    return concat([expand_dims(as_tensor(t), axis) for t in tensors], axis)


def split(x: Tensor, sizes: Sequence[Dim], axis: int = 0) -> list[Tensor]:
    """The consecutive pieces of x with the given sizes along an axis. Raises UsageError if `sizes` is an int."""
    if isinstance(sizes, int):
        raise UsageError(f"split takes the sizes of the pieces, not {sizes}", hint=f"[{sizes}, {sizes}, ...]")
    found: list[Tensor] = []
    start: Dim = 0
    for size in dims_of(sizes):
        found.append(slice_axis(x, axis, start, start + size))
        start = start + size
    return found


def pad(x: Tensor, widths: Sequence[tuple[Dim, Dim]], value: float = 0.0) -> Tensor:
    """x padded with a constant `value`; `widths`: (elements before, elements after) for each axis."""
    try:
        pairs = [(lo, hi) for lo, hi in widths]
    except (TypeError, ValueError):
        raise ShapeError(
            f"{widths!r} are no widths of a pad", hint="give a pair (before, after) for each axis"
        ) from None
    for axis, (lo, hi) in enumerate(pairs):
        if (lo, hi) != (0, 0):
            x = make("pad", (x,), {"axis": axis, "lo": lo, "hi": hi, "value": value})
    return x


def windows(x: Tensor, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Tensor:
    """Sliding windows along an axis; the elements of a window are a new last axis of `size` elements.

    `stride`: distance of neighbouring windows. `dilation`: distance of neighbouring elements in a window.
    """
    return make("windows", (x,), {"axis": axis_of(axis, x.rank), "size": size, "stride": stride, "dilation": dilation})


__all__ = [
    "broadcast_to", "concat", "expand_dims", "flip", "pad", "permute", "slice_axis", "split", "squeeze", "stack",
    "swapaxes", "transpose", "windows",
]  # fmt: skip
