"""Matrix-vector products as reductions along one axis, and outer products as elementwise operations.

A GEMM kernel computes tiles on tensor cores. A short GEMV (the product of a state-space model's state and a row of C, a
query times a state) is an ordinary reduction, and an outer product is elementwise: both can be fused with the producers
of their operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

MAX_VECTOR_REDUCTION = 64  # longest reduction that counts as short: one tile holds all of it


def vector_product_extent(left: Sequence[int], right: Sequence[int]) -> tuple[int, int, int] | None:
    """(number of results, reduction length, stride in elements between reduced elements) of a `matmul` that can be
    fused as a reduction; None if it cannot. `left`, `right`: shapes of the operands. One operand must be a vector and
    the reduction at most MAX_VECTOR_REDUCTION long, or the reduction has length 1 (an outer product).
    """
    rows, depth, columns = left[-2], left[-1], right[-1]
    if not 1 <= depth <= MAX_VECTOR_REDUCTION or (depth > 1 and columns > 1 and rows > 1):
        return None
    return max(prod(left[:-2]), prod(right[:-2])) * rows * columns, depth, columns
