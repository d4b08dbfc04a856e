"""Finds the inputs that a graph uses as indices, and how many elements they index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from .ties import behind_views

GIVEN = ("input", "state")  # leaves that a call provides
#: Ops besides those that move elements which indices pass through.
PASSED = {"cast", "where", "add", "minimum", "maximum"}


def sources(node: Tensor) -> Iterable[Tensor]:
    """The leaf from which a value is derived by unary views and casts, as a sequence of one; empty if there is none."""
    while (node.entry.moves or node.op == "cast") and len(node.args) == 1:
        node = node.args[0]
    return () if node.args else (node,)


def index_bounds(graph: Graph, kinds: Sequence[str] = GIVEN) -> dict[str, int]:
    """Name of each input and state (or leaf of other `kinds`) used as indices, also through views, casts and index
    arithmetic -> number of elements that it indexes.

    The smallest one, if it is used several times. In an index i * k + j of an axis that several axes were merged to, j
    counts to k.
    """
    bounds: dict[str, int] = {}
    seen: dict[int, int] = {}
    for node in graph.nodes():
        if node.entry.index_operand is not None:
            size = node.entry.indexed_size(node.args[0].shape, dict(node.attrs))
            if isinstance(size, int):
                _bound(node.args[node.entry.index_operand], size, kinds, bounds, seen)
    return bounds


def _bound(node: Tensor, size: int, kinds: Sequence[str], bounds: dict[str, int], seen: dict[int, int]) -> None:
    """Add the bounds of the leaves from which the index `node` of `size` elements is computed. `seen`: sizes of nodes
    that were visited, by id."""
    stack = [(node, size)]
    while stack:
        node, size = stack.pop()
        if seen.get(id(node), size + 1) <= size:
            continue
        seen[id(node)] = size
        if node.op in kinds:
            name = str(node.attr("name"))
            bounds[name] = min(bounds.get(name, size), size)
        elif node.op == "add" and (steps := [k for k in map(_step, node.args) if k is not None]):
            stack += [(a, size if _step(a) is not None else min(size, min(steps))) for a in node.args]
        elif (step := _step(node)) is not None:
            stack += [(a, max(size // step, 1)) for a in node.args]
        elif node.op in PASSED or node.entry.moves:
            stack += [(a, size) for a in node.args]


def _step(node: Tensor) -> int | None:
    """The constant above 1 by which an index is multiplied, also behind views; None if it is not multiplied by one."""
    node = behind_views(node)
    if node.op != "mul":
        return None
    constants = [n for a in node.args for n in sources(a) if n.op == "full"]
    value = constants[0].attr("value") if len(constants) == 1 else 0
    return int(value) if value > 1 and value == int(value) else None


__all__ = ["GIVEN", "index_bounds", "sources"]
