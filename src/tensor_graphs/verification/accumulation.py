"""Bounds the relative error that a different order of the same sums may cause."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..backends.verification.compare import UNITS
from ..egraph.evaluate.interpret import expand_all
from ..egraph.ir.tensor import Tensor, topological
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from ..extract.model.work import node_flops

SUMS = ("reduction", "contraction")  # kinds of ops that add terms


def summation_error(roots: Sequence[Tensor]) -> list[float]:
    """For each root, twice the largest relative error of sums that are taken term by term in their own dtypes: terms
    times unit roundoff, added up along the path with most terms. 0 for a graph without sums.

    Sizes must be known. Cancellation is not included: see `backends/verification/rounding_noise.py`.
    """
    expanded = expand_all(list(roots))
    longest: dict[int, float] = {}
    for node in topological(expanded):
        below = max((longest[id(a)] for a in node.args), default=0.0)
        longest[id(node)] = below + 2 * _terms(node) * UNITS.get(node.dtype, 0.0)
    return [longest[id(root)] for root in expanded]


def _terms(node: Tensor) -> float:
    """Number of terms of each element of a sum; 0 for values that are no sums of floats."""
    if node.entry.kind not in SUMS or node.entry.rounding == "never" or not dtypes.is_float(node.dtype):
        return 0.0
    if node.op == "cumsum":
        return float(concrete(node.shape)[node.attr("axis")])
    return node_flops(node) / max(1, prod(concrete(node.shape)))


__all__ = ["summation_error"]
