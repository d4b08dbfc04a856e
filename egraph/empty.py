"""Values without elements: nothing is computed for them, and the largest of no numbers is minus infinity."""

from __future__ import annotations

from . import dtypes
from .dims import Dim
from .graph import Graph, Tensor, make, rebuild


def without_empty(graph: Graph) -> Graph:
    """The graph at concrete sizes with every value of no elements, and every max or min over none, given as it is.

    Kernels need not know what to do with nothing: NumPy and Torch refuse such reductions.
    """
    return graph.with_roots(rebuild(graph.roots, _change))


def _change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    if node.is_leaf or node.op == "full":
        return None
    if _none(node.shape):
        return _full(node, 0)
    if node.op in ("max", "min") and any(_none(a.shape) for a in args):
        return _full(node, dtypes.least(node.dtype) if node.op == "max" else dtypes.greatest(node.dtype))
    return None


def _none(shape: tuple[Dim, ...]) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape)


def _full(node: Tensor, value: float | int) -> Tensor:
    kind = float(value) if dtypes.is_float(node.dtype) else int(value)
    return make("full", (), {"value": kind, "shape": node.shape, "dtype": node.dtype})


__all__ = ["without_empty"]
