"""Functions that build contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..ir.tensor import Tensor, make
from ..types import dtypes
from .elementwise_builders import add
from .layout_builders import expand_dims, flip, pad, slice_axis, swapaxes
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


__all__ = ["conv", "matmul"]
