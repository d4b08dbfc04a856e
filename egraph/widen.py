"""16-bit models as float32 graphs, for rewriting that may reassociate.

A model exported in bfloat16 or float16 casts before and after every product, and an opaque cast stops all algebra. The
widened graph carries those values in float32: casts among 16-bit floats and float32 vanish, each 16-bit leaf is read
through one cast, and outputs and state updates are cast back to the dtypes they were declared with. In float64 the
meaning is the same. Casts to and from float64, integers and bool stay.
"""

from __future__ import annotations

from .dtypes import HALVES
from .graph import Graph, Tensor, make, rebuild
from .simplify import lossless

WIDE = "float32"


def widen(graph: Graph) -> Graph:
    """The graph with 16-bit floats carried in float32; the graph itself where it has none."""
    if all(n.dtype not in HALVES for n in graph.nodes()):
        return graph
    wide = rebuild(graph.roots, _change)
    return graph.with_roots([as_dtype(w, r.dtype) for w, r in zip(wide, graph.roots, strict=True)])


def as_dtype(x: Tensor, dtype: str) -> Tensor:
    """The value in a dtype: itself, what it was cast from where that cast lost nothing, or its cast."""
    if x.dtype == dtype:
        return x
    if x.op == "cast" and x.args[0].dtype == dtype and lossless(dtype, x.dtype):  # a 16-bit leaf that goes to an output
        return x.args[0]
    return make("cast", (x,), {"dtype": dtype})


def _change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    """The node over widened operands."""
    attrs = dict(node.attrs)
    if attrs.get("dtype") in HALVES and node.op not in ("input", "param", "state", "constant"):
        attrs["dtype"] = WIDE
    if node.op == "cast":
        return as_dtype(args[0], attrs["dtype"])
    if (
        node.op in ("gather", "gather_elements")
        and node.dtype in HALVES
        and args[0].op == "cast"
        and args[0].args[0].dtype in HALVES
    ):
        return as_dtype(make(node.op, (args[0].args[0], args[1]), attrs), WIDE)  # a table is gathered, then cast
    new = make(node.op, args, attrs, data=node.data)
    return as_dtype(new, WIDE) if node.is_leaf and node.dtype in HALVES else new


__all__ = ["as_dtype", "widen"]
