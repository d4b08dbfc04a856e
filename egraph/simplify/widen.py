"""Converts 16-bit graphs to float32, so that rewrite rules may reassociate.

A model exported in bfloat16 or float16 casts before and after every product, and casts block algebraic rewriting. The
widened graph computes those values in float32: casts among 16-bit floats and float32 vanish, each 16-bit leaf is cast
once, and outputs and state updates are cast back to their declared dtypes. Gathers from 16-bit tables stay 16-bit.
Evaluated in float64 both graphs have the same values. Casts to and from float64, integers and bool stay, and so does
the rounding to 16 bits of values that decide a whole number, a truth value or an order (`floor(x * 1.5)`).
"""

from __future__ import annotations

from functools import partial

from ..ir.graph import Graph
from ..ir.tensor import Tensor, make, rebuild
from ..types.dtypes import HALVES, is_float
from .casts import lossless
from .jumps import rounded_before_jumps

WIDE = "float32"


def widen(graph: Graph, *, in_place: bool = False, rounds: bool = False) -> Graph:
    """The graph with float32 in place of 16-bit floats; the same object if the graph has no 16-bit floats.

    `in_place`: values that elements are written into (scatters, as into key-value caches) stay 16-bit. On a CPU, whose
    kernels store widened values in float32, a cache would otherwise be converted as a whole, twice a step.
    `rounds`: a graph without 16-bit leaves (a float32 model under autocast) keeps its casts of float32 values to 16
    bits, since nothing else says which of its values are stored in 16 bits (`extract/model/storage_dtypes.py`).
    """
    if all(n.dtype not in HALVES for n in graph.nodes()):
        return graph
    rounds = rounds and not any(n.is_leaf and n.dtype in HALVES for n in graph.nodes())
    decides = frozenset(n for n in rounded_before_jumps(graph.roots) if n.dtype in HALVES)
    wide = rebuild(graph.roots, partial(_change, in_place=in_place, rounds=rounds, decides=decides))
    return graph.with_roots([as_dtype(w, r.dtype) for w, r in zip(wide, graph.roots, strict=True)])


def float32_values(graph: Graph, *, in_place: bool = False) -> list[Tensor]:
    """Values of `widen(graph)` that a graph with 16-bit leaves computes in float32 itself, and that are no value of its
    16-bit floats as well: sums and logarithms that a model widens on purpose. Empty for other graphs."""
    if not any(n.is_leaf and n.dtype in HALVES for n in graph.nodes()):
        return []
    nodes = [n for n in graph.nodes() if n.dtype == WIDE or n.dtype in HALVES]
    decides = frozenset(n for n in rounded_before_jumps(graph.roots) if n.dtype in HALVES)
    images = rebuild(nodes, partial(_change, in_place=in_place, rounds=False, decides=decides))
    narrow = {image for node, image in zip(nodes, images, strict=True) if node.dtype in HALVES}
    return [image for image in dict.fromkeys(images) if image not in narrow and not image.is_leaf]


def as_dtype(x: Tensor, dtype: str) -> Tensor:
    """The value in a dtype: unchanged, the operand of the cast that produced the value, or a new cast.

    A cast is undone if it is lossless or between floats, whose rounding the tolerance judges; a cast to bool or an
    integer dtype is kept."""
    if x.dtype == dtype:
        return x
    if x.op == "cast" and x.args[0].dtype == dtype:
        between_floats = is_float(dtype) and is_float(x.dtype)
        if between_floats or lossless(dtype, x.dtype):
            return x.args[0]
    return make("cast", (x,), {"dtype": dtype})


def _narrow(x: Tensor) -> str:
    """The 16-bit dtype that a value is widened from; "" for other values."""
    return x.args[0].dtype if x.op == "cast" and x.args[0].dtype in HALVES else ""


def _change(
    node: Tensor, args: tuple[Tensor, ...], *, in_place: bool, rounds: bool, decides: frozenset[Tensor]
) -> Tensor | None:
    """The node rebuilt over widened operands; rounded to its 16 bits if it is in `decides`."""
    wide = _widened(node, args, in_place=in_place, rounds=rounds)
    if node not in decides or wide is None or _narrow(wide) == node.dtype:
        return wide
    return make(f"to_{node.dtype}", (wide,))


def _widened(node: Tensor, args: tuple[Tensor, ...], *, in_place: bool, rounds: bool) -> Tensor | None:
    attrs = dict(node.attrs)
    if (
        rounds
        and node.op == "cast"
        and node.dtype in HALVES
        and node.args[0].dtype == WIDE
        and not _narrow(node.args[0])
    ):
        return make("cast", (make("cast", args, attrs),), {"dtype": WIDE})
    if attrs.get("dtype") in HALVES and node.op not in ("input", "param", "state", "constant"):
        attrs["dtype"] = WIDE
    if node.op == "cast":
        return as_dtype(args[0], attrs["dtype"])
    if node.op in ("gather", "gather_elements") and node.dtype in HALVES and _narrow(args[0]):
        # gather from the 16-bit table, then cast the result
        return as_dtype(make(node.op, (args[0].args[0], args[1]), attrs), WIDE)
    if in_place and node.op == "scatter_elements" and attrs["mode"] == "set" and _narrow(args[0]) == node.dtype:
        stored = make(node.op, (args[0].args[0], args[1], as_dtype(args[2], node.dtype)), attrs)
        return as_dtype(stored, WIDE)
    new = make(node.op, args, attrs, data=node.data)
    return as_dtype(new, WIDE) if node.is_leaf and node.dtype in HALVES else new


__all__ = ["as_dtype", "float32_values", "widen"]
