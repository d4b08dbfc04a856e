"""Derives the size conditions of a graph with symbolic dimensions: dimension ranges and the constraints of its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..types.dims import Dim, DimExpr, bounds, symbols, volume
from .graph import Graph
from .tensor import Tensor

NO_LIMIT = 1 << 31  # a dimension `max` of at least this means unbounded


def _slice(node: Tensor) -> Iterator[tuple[Dim, Dim]]:
    size = node.args[0].shape[node.attr("axis")]
    yield from ((0, node.attr("start")), (node.attr("start"), node.attr("stop")), (node.attr("stop"), size))


def _pad(node: Tensor) -> Iterator[tuple[Dim, Dim]]:
    yield from ((0, node.attr("lo")), (0, node.attr("hi")))


def _windows(node: Tensor) -> Iterator[tuple[Dim, Dim]]:
    for d in node.shape:
        yield 1, d


#: op -> pairs (low, high) of dimensions that must satisfy low <= high.
NEEDS: dict[str, Callable[[Tensor], Iterator[tuple[Dim, Dim]]]] = {
    "slice": _slice, "pad": _pad, "windows": _windows, "conv": _windows, "max_pool": _windows, "avg_pool": _windows,
}  # fmt: skip


def conditions(graph: Graph) -> list[str]:
    """The conditions under which the graph is valid at given sizes, as Python expressions over the dimension names.

    Each is listed once. Conditions that hold for all sizes in the declared ranges are omitted.
    """
    found: dict[str, None] = {}
    for name, atom in sorted({n: a for i in graph.inputs for d in i.shape for n, a in symbols(d).items()}.items()):
        found[f"{atom.min} <= {name}{f' <= {atom.max}' if atom.max < NO_LIMIT else ''}"] = None
    for node in graph.nodes():
        for low, high in NEEDS[node.op](node) if node.op in NEEDS else ():
            gap = high - low
            if isinstance(gap, DimExpr) and bounds(gap)[0] < 0:
                found[f"{low} <= {high}"] = None
        if node.op == "reshape":
            have, want = volume(node.args[0].shape), volume(node.shape)
            if have != want:
                found[f"{have} == {want}"] = None
    return list(found)


__all__ = ["NEEDS", "conditions"]
