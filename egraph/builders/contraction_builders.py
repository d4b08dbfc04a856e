"""Functions that build contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..ir.tensor import Tensor, make
from ..types import dtypes
from .elementwise_builders import add
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


__all__ = ["conv", "matmul"]
