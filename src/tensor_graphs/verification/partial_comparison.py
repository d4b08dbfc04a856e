"""Chooses what is compared of outputs whose float64 reference would take far longer than a verification may.

Such outputs are compared in strips (strips.py): runs of indices along the axis whose strips are the cheapest. A strip
of rows of an attention layer needs all keys, but few queries. An output every strip of which needs nearly the whole
graph, such as the mean over all positions, is left out, if others are compared; the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from ..egraph.evaluate.interpret import expand_all
from ..egraph.evaluate.strips import StripAxes, axes_of_expanded, operand_axes
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor, topological
from ..egraph.types.dims import concrete
from ..extract.model.work import graph_flops, node_flops
from .reference import expected_run_seconds, run_seconds_of

#: Multiple of the allowed seconds up to which whole outputs are compared: estimates are accurate to a factor of two.
FAR_OVER = 2.0
#: Number of axes of an output that strips are considered along, the longest ones.
WAYS = 2


def run_seconds(graph: Graph) -> float:
    """Estimate of the seconds that comparing whole outputs with their references on one input takes on the host."""
    return expected_run_seconds(graph, graph_flops(list(graph.roots)), on_gpu=False)


def strip_seconds(axes: StripAxes, count: int) -> float:
    """Estimate of the seconds that comparing a strip of `count` indices takes on the host."""
    return run_seconds(Graph.of(axes.strip(count).term))


def takes_too_long(graph: Graph, allowed_s: float) -> bool:
    """Whether comparing whole outputs is expected to take far longer than `allowed_s` seconds on the host."""
    return run_seconds(graph) > FAR_OVER * allowed_s


@dataclass
class _Prices:
    """Estimates for strips of the roots of one graph without composite ops. `seconds`: by node, for all of it."""

    poll: Callable[[], object]
    seconds: dict[Tensor, float] = field(default_factory=dict)

    def of_node(self, node: Tensor) -> float:
        """Seconds of one node, computed as a whole."""
        if node not in self.seconds:
            self.seconds[node] = 0.0 if not node.args else run_seconds_of(node_flops(node), node.type.nbytes, False)
        return self.seconds[node]

    def of_strip(self, axes: StripAxes, most: float) -> float:
        """Seconds of a strip of one index; infinite if more than `most`.

        A node's work is taken to grow with the length of the axis along which it is cut.
        """
        seconds, whole = 0.0, dict[Tensor, None]()
        for node, axis in reversed(axes.order):
            seconds += self.of_node(node) / concrete(node.shape)[axis]
            if seconds > most:
                return math.inf
            if node.args:
                below = operand_axes(node, axis) or ()
                whole |= {a: None for a, k in zip(node.args, below) if k is None}
        seconds += sum(map(self.of_node, topological(whole)))
        return seconds if seconds <= most else math.inf

    def cheapest(self, root: Tensor, most: float) -> tuple[float, StripAxes | None]:
        """(seconds, axis) of the cheapest strip of one index along one of the longest WAYS axes; infinite seconds and
        None if there is none that takes at most `most`."""
        best: tuple[float, StripAxes | None] = math.inf, None
        for axes in islice(axes_of_expanded(root), WAYS):
            self.poll()
            if (seconds := self.of_strip(axes, min(most, best[0]))) < best[0]:
                best = seconds, axes
        return best


def affordable_cuts(
    graph: Graph, allowed_s: float, poll: Callable[[], object] = lambda: None
) -> list[StripAxes | None] | None:
    """For each root of a graph the axis whose strips are the cheapest, of the longest WAYS; None for a root that is
    left out, so that one strip of each other root takes at most `allowed_s` seconds together. None if no root is left.

    `poll` is called before each estimate and may raise. Roots are looked at from the first to the last computed one,
    which depends on the most values, until one does not fit where most of `allowed_s` is used up.
    """
    roots = expand_all(graph.roots, wide_means=True)
    place = {node: k for k, node in enumerate(topological(roots))}
    prices, left = _Prices(poll), allowed_s
    found: list[StripAxes | None] = [None] * len(roots)
    for k in sorted(range(len(roots)), key=lambda k: place[roots[k]]):
        seconds, axes = prices.cheapest(roots[k], left)
        if axes is not None:
            found[k] = axes
            left -= seconds
        elif left < allowed_s / 2 and next(axes_of_expanded(roots[k]), None):
            break
    return found if any(found) else None


__all__ = ["FAR_OVER", "affordable_cuts", "run_seconds", "strip_seconds", "takes_too_long"]
