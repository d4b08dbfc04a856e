"""Determines the ranges of sizes that a graph's free dimensions may have."""

from __future__ import annotations

from collections.abc import Mapping

from ...backends.program.emit.emit_any_size import sources
from ...egraph.ir.graph import Graph
from ...egraph.ir.size_conditions import NO_LIMIT
from ...egraph.types.dims import Atom, Dim, DimExpr, dim
from ...errors import ShapeError, UsageError

Sizes = dict[str, int]


def ranges(graph: Graph) -> dict[str, Atom]:
    """Free dimensions of a graph by name, sorted by name; each has its least and largest size (`min`, `max`)."""
    return dict(sorted(graph.free_dims.items()))


def within(graph: Graph, searched: Mapping[str, int]) -> Graph:
    """Graph with its dimensions narrowed to the ranges that its ops allow, found by bisection.

    While one dimension is tested, the others have their `searched` sizes. Example: a table of 512 positions limits the
    sequence length to 512. Size 0 is excluded, since kernels need not handle empty tensors.
    """

    def means(name: str, size: int) -> bool:
        try:
            graph.bind({**searched, name: size})
        except ShapeError:
            return False
        return True

    fresh: dict[str, Dim] = {}
    for name, atom in ranges(graph).items():
        ends = []
        for end in (max(1, atom.min), atom.max):
            good, bad = searched[name], end
            while not means(name, end) and abs(bad - good) > 1:
                middle = (good + bad) // 2
                good, bad = (middle, bad) if means(name, middle) else (good, middle)
            ends.append(end if means(name, end) else good)
        fresh[name] = dim(name, min=ends[0], max=ends[1])
    return graph.bind(fresh)


def why_fixed(graph: Graph) -> str:
    """Reason why a graph cannot be compiled for free sizes; "" if it can."""
    for leaf in (*graph.leaves("state"), *graph.leaves("param")):
        if any(isinstance(d, DimExpr) for d in leaf.shape):
            return f"the {leaf.op} {leaf.attr('name')!r} has free sizes"
    try:
        sources([leaf.shape for leaf in graph.inputs], list(graph.free_dims))
    except UsageError as error:
        return error.message
    return ""


def range_text(low: int, high: int, searched: int) -> str:
    """Text of the sizes from `low` to `high` (left open beyond any limit), such as `1..2048 (searched at 128)`."""
    return f"{low}..{high if high < NO_LIMIT else ''} (searched at {searched})"


__all__ = ["Sizes", "range_text", "ranges", "why_fixed", "within"]
