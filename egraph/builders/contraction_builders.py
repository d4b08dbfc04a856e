"""Functions that build contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...errors import ShapeError
from ..ir.tensor import Tensor, make
from ..types import dtypes
from ..types.dims import concrete
from .elementwise_builders import add
from .layout_builders import expand_dims, flip, pad, permute, slice_axis, swapaxes
from .operand_alignment import as_tensor, cast, reshape, with_rank


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matmul for operands of rank >= 1. Raises ShapeError for rank 0 and for sizes that do not fit."""
    a, b = as_tensor(a), as_tensor(b)
    dtype = dtypes.promote(a.dtype, b.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    if a.rank == 0 or b.rank == 0:
        raise ShapeError("matmul needs operands of rank >= 1")
    row, column = a.rank == 1, b.rank == 1
    a = reshape(a, (1, *a.shape)) if row else a
    b = reshape(b, (*b.shape, 1)) if column else b
    if b.rank != 2 or a.rank < 2:
        rank = max(a.rank, b.rank)
        a, b = with_rank(a, rank), with_rank(b, rank)
    out = make("matmul", (a, b))
    keep = [d for i, d in enumerate(out.shape) if not ((row and i == out.rank - 2) or (column and i == out.rank - 1))]
    return reshape(out, keep) if row or column else out


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, dilations: Sequence[int] | None = None, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of x[N, C, *S] with w[O, C/groups, *K], plus b[O]; pads = all low sides, then all high sides.

    `dilations`: distances of the window's elements. Default: strides and dilations 1, no padding.
    """
    n = x.rank - 2
    attrs = {"strides": strides or (1,) * n, "pads": pads or (0,) * (2 * n), "dilations": dilations or (1,) * n}
    out = make("conv", (x, w), {**attrs, "groups": groups})
    return out if b is None else add(out, reshape(b, (1, b.shape[0]) + (1,) * n))


def dilated(x: Tensor, strides: Sequence[int]) -> Tensor:
    """x[N, C, *S] with stride - 1 zeros between neighbours on each spatial axis: the operand of a transposed
    convolution as that of a plain one."""
    for i, stride in enumerate(strides):
        if stride > 1:
            axis, size = 2 + i, x.shape[2 + i]
            wide = pad(
                expand_dims(x, axis + 1), [(0, stride - 1) if a == axis + 1 else (0, 0) for a in range(x.rank + 1)]
            )
            flat = reshape(wide, (*x.shape[:axis], size * stride, *x.shape[axis + 1 :]))
            x = slice_axis(flat, axis, 0, (size - 1) * stride + 1)
    return x


def transposed_weight(w: Tensor, groups: int) -> Tensor:
    """The weight of a transposed convolution as that of a plain one, or the reverse, mirrored on the spatial axes:
    [A, B / groups, *K] -> [B, A / groups, *K]."""
    for axis in range(2, w.rank):
        w = flip(w, axis)
    before, after = w.shape[:2]
    parts = swapaxes(reshape(w, (groups, before // groups, after, *w.shape[2:])), 1, 2)
    return reshape(parts, (after * groups, before // groups, *w.shape[2:]))


def transposed_conv(
    x: Tensor, w: Tensor, b: Tensor | None, strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    dilations: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Transposed convolution of x[N, C, *S] with w[C, O / groups, *K], plus b[O].

    `low`, `high`: how many results are cut off before and after each spatial axis; negative numbers add zeros. Each
    result reads only every stride-th number of the window, so that results with the same remainder of their position
    are one convolution: that of all remainders computes them as channels, which are then interleaved. With groups or
    dilated strides, zeros are put between the numbers of x instead.
    """
    n = x.rank - 2
    strided = any(s > 1 for s in strides)
    if strided and groups == 1 and min(low) >= 0 and all(s == 1 or d == 1 for s, d in zip(strides, dilations)):
        return _by_remainder(x, w, b, strides, low, high, dilations)
    x, w = dilated(x, strides), transposed_weight(w, groups)
    reach = [d * (k - 1) for d, k in zip(dilations, concrete(w.shape[2:]))]
    edges = [[r - cut for r, cut in zip(reach, side)] for side in (low, high)]
    for i, (before, after) in enumerate(zip(*edges)):
        x = slice_axis(x, 2 + i, max(-before, 0), x.shape[2 + i] - max(-after, 0))
    pads = [max(edge, 0) for side in edges for edge in side]
    return conv(x, w, b, strides=(1,) * n, pads=pads, dilations=dilations, groups=groups)


def _by_remainder(
    x: Tensor, w: Tensor, b: Tensor | None, strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    dilations: Sequence[int],
) -> Tensor:  # fmt: skip
    """`transposed_conv` by one convolution with a channel for each result channel and remainder of positions."""
    n, (c, o), kernel = x.rank - 2, concrete(w.shape[:2]), concrete(w.shape[2:])
    taps = [-(-k // s) for k, s in zip(kernel, strides)]
    w = pad(w, [(0, 0), (0, 0), *((0, t * s - k) for t, s, k in zip(taps, strides, kernel))])
    parts = reshape(w, (c, o, *(size for pair in zip(taps, strides) for size in pair)))
    parts = permute(parts, (*range(3, 3 + 2 * n, 2), 1, 0, *range(2, 2 + 2 * n, 2)))  # [remainders, O, C, taps]
    for axis in range(n + 2, 2 * n + 2):
        parts = flip(parts, axis)
    channels = o * prod(strides)
    reach = [d * (t - 1) for d, t in zip(dilations, taps)]
    # results that the sums behind the last number of x do not reach
    span = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    more = [max(0, -(-(m - s - cut - s * r) // s)) for m, s, cut, r in zip(span, strides, high, reach)]
    found = conv(
        x, reshape(parts, (channels, c, *taps)), pads=[*reach, *map(sum, zip(reach, more))], dilations=dilations
    )
    sizes = found.shape[2:]
    split = reshape(found, (x.shape[0], *strides, o, *sizes))
    order = (0, 1 + n, *(axis for i in range(n) for axis in (2 + n + i, 1 + i)))
    whole = reshape(permute(split, order), (x.shape[0], o, *(size * s for size, s in zip(sizes, strides))))
    for i, (before, after) in enumerate(zip(low, high)):
        size = (x.shape[2 + i] - 1) * strides[i] + span[i] - before - after
        whole = slice_axis(whole, 2 + i, before, before + size)
    return whole if b is None else add(whole, reshape(b, (1, o) + (1,) * n))


__all__ = ["conv", "matmul", "transposed_conv"]
