"""Chooses what is compared of outputs whose float64 reference would take far longer than a verification may.

Such outputs are compared in strips (strips.py): runs of indices along the axis whose strips are the cheapest. A strip
of rows of an attention layer needs all keys, but few queries. An output every strip of which needs nearly the whole
graph, such as the mean over all positions, is left out, if others are compared; the verdict says so.
"""

from __future__ import annotations

from ..egraph.evaluate.strips import StripAxes, all_axes_of
from ..egraph.ir.graph import Graph
from ..extract.model.work import graph_flops
from .reference import expected_run_seconds

#: Multiple of the allowed seconds up to which whole outputs are compared: estimates are accurate to a factor of two.
FAR_OVER = 2.0


def run_seconds(graph: Graph) -> float:
    """Estimate of the seconds that comparing whole outputs with their references on one input takes on the host."""
    return expected_run_seconds(graph, graph_flops(list(graph.roots)), on_gpu=False)


def strip_seconds(axes: StripAxes, count: int) -> float:
    """Estimate of the seconds that comparing a strip of `count` indices takes on the host."""
    return run_seconds(Graph.of(axes.strip(count).term))


def takes_too_long(graph: Graph, allowed_s: float) -> bool:
    """Whether comparing whole outputs is expected to take far longer than `allowed_s` seconds on the host."""
    return run_seconds(graph) > FAR_OVER * allowed_s


def affordable_cuts(graph: Graph, allowed_s: float) -> list[StripAxes | None] | None:
    """For each root of a graph the axis whose strips are the cheapest; None for a root that is left out, so that one
    strip of each other root takes at most `allowed_s` seconds together. None if no root is left.
    """
    cheapest: list[tuple[float, int, StripAxes]] = []
    for k, root in enumerate(graph.roots):
        ways = [(strip_seconds(axes, 1), j, axes) for j, axes in enumerate(all_axes_of(root))]
        if ways:
            seconds, _, axes = min(ways, key=lambda way: way[:2])
            cheapest.append((seconds, k, axes))
    found: list[StripAxes | None] = [None] * len(graph.roots)
    for seconds, k, axes in sorted(cheapest, key=lambda one: one[:2]):
        allowed_s -= seconds
        if allowed_s < 0:
            break
        found[k] = axes
    return found if any(found) else None


__all__ = ["FAR_OVER", "affordable_cuts", "run_seconds", "strip_seconds", "takes_too_long"]
