"""Removes empty tensors (0 elements), reductions over them and products with them, so that kernels never see these."""

from __future__ import annotations

from ..ir.graph import Graph
from ..ir.tensor import Tensor, make, rebuild
from ..types import dtypes
from ..types.dims import Dim

#: Op -> its result over 0 elements.
OVER_NOTHING = {"sum": 0, "prod": 1, "matmul": 0, "conv": 0}


def without_empty(graph: Graph) -> Graph:
    """The graph (concrete sizes) with fills for every empty value and every reduction or contraction over 0 elements.

    The max over 0 elements is -inf (or the smallest integer), the min is inf (or the largest integer). Kernels do not
    handle empty operands: NumPy and Torch raise an error for such extremes, MKL and oneDNN cannot pack empty weights.
    """
    return graph.with_roots(rebuild(graph.roots, _change))


def _change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    if node.is_leaf or node.op == "full":
        return None
    if _none(node.shape):
        return _full(node, 0)
    if node.op in ("max", "min") and any(_none(a.shape) for a in args):
        return _full(node, dtypes.least(node.dtype) if node.op == "max" else dtypes.greatest(node.dtype))
    if node.op in OVER_NOTHING and any(_none(a.shape) for a in args):
        return _full(node, OVER_NOTHING[node.op])
    return None


def _none(shape: tuple[Dim, ...]) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape)


def _full(node: Tensor, value: float | int) -> Tensor:
    kind = float(value) if dtypes.is_float(node.dtype) else int(value)
    return make("full", (), {"value": kind, "shape": node.shape, "dtype": node.dtype})


__all__ = ["without_empty"]
