"""VECTORS: products with a vector, which are sums along one axis of what they read, and of two vectors, which are no sums at all.

A product of matrices wants tiles of its own and a matrix unit. A short one with a vector (a state read out by a row of C, a query
over a state) is a reduction like any other, an outer product is a pointwise operation: both belong into one kernel with what they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

SHORT = 64  # longest sum that counts as one: a tile holds it whole


def vector_product(left: Sequence[int], right: Sequence[int]) -> tuple[int, int, int] | None:
    """(results, elements of each, distance of neighbouring elements) of `matmul` of such shapes if one side is a vector and the
    sum is short, or it has one element (an outer product); None otherwise."""
    rows, depth, columns = left[-2], left[-1], right[-1]
    if not 1 <= depth <= SHORT or (depth > 1 and columns > 1 and rows > 1):
        return None
    return max(prod(left[:-2]), prod(right[:-2])) * rows * columns, depth, columns
