"""Filters the e-nodes of a saturation to a smaller beam (e-nodes per e-class) and slack (added cost).

Kept are the e-nodes that in some round were among the cheapest of their e-class and close to its best cost. The filter
is monotone: smaller limits keep a subset of what larger limits keep, and e-nodes kept after few rounds are kept after
more rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..ops.ops import OPS
from ..view.view import Bools, EGraphView
from .term_cost import Pricing, node_prices

FARTHEST = 1e9  # launches; larger than any slack in use


@dataclass(frozen=True)
class CostFilter:
    """A filter of e-nodes by rank and cost within their e-class.

    `beam`: keep the `beam` cheapest e-nodes of each e-class and the cheapest of each op (0 keeps all). `slack`: keep
    e-nodes at most this many launches more expensive than the best of their e-class. For views and pointwise ops the
    unit is the op's own price in place of a launch.
    """

    beam: int = 0
    slack: float = inf

    def keeps(self, view: EGraphView, pricing: Pricing, lacking: bool = False) -> Bools:
        """Boolean mask, one value per e-node of `view`: whether the filter keeps the e-node.

        The original graph's e-nodes and the cheapest of each e-class (by the cost of its term under `pricing`) are
        always kept. With `lacking`, ops that backends may have no kernel of (`Op.kernels_may_lack`) cost more than any
        other term.
        """
        price = node_prices(view, pricing)
        if lacking:
            price = [FARTHEST * pricing.launch if _may_lack(op) else p for op, p in zip(view.op, price)]
        best, _ = view.cheapest(price)
        found = np.zeros(len(view), np.bool_) if view.original_nodes is None else view.original_nodes.copy()
        rank = [price[i] + sum(best[k] for k in view.children(i).tolist()) for i in range(len(view))]
        for c in range(view.n_classes):
            rows = sorted(view.nodes_of(c).tolist(), key=lambda i: (rank[i], view.op[i], i))
            first: dict[str, int] = {}
            for n, i in enumerate(rows):
                narrow = not self.beam or n < self.beam or first.setdefault(view.op[i], i) == i
                first.setdefault(view.op[i], i)
                entry = OPS.get(view.op[i])
                unit = price[i] if entry is not None and (entry.pointwise or entry.kind == "view") else pricing.launch
                found[i] |= narrow and (not n or rank[i] <= best[c] + min(self.slack, FARTHEST) * unit)
        return found


def _may_lack(op: str) -> bool:
    entry = OPS.get(op)
    return entry is not None and entry.kernels_may_lack


def kept(last: EGraphView, rounds: Sequence[EGraphView], narrow: CostFilter, pricing: Pricing) -> EGraphView:
    """The e-graph `last` with only those e-nodes that the filter `narrow` keeps in at least one of `rounds`.

    `rounds` are the e-graphs after each round of one saturation; each contains the e-nodes of earlier rounds. Without
    rounds all e-nodes are kept. `pricing`: the settings for estimating the costs that the filter compares.
    """
    if not rounds:
        return last
    marked = narrow.keeps(last, pricing)
    table = {(last.label(i), *last.children(i).tolist()): i for i in range(len(last))}
    for view in rounds[:-1]:
        marks = narrow.keeps(view, pricing)
        of = [-1] * view.n_classes
        for value, c in view.classes.items():
            of[c] = last.classes.get(value, -1)
        rest = list(range(len(view)))
        while rest:
            later = []
            for i in rest:
                children = [of[k] for k in view.children(i).tolist()]
                if -1 in children:
                    later.append(i)
                elif (at := table.get((view.label(i), *children))) is not None:
                    of[view.cls[i]] = int(last.cls[at])
                    marked[at] |= marks[i]
            if len(later) == len(rest):
                break
            rest = later
    return last.only(marked)


CHEAP_LAUNCHES = 1.0
"""Slack of `cheap_terms`: without any, plans of a speech encoder were 7 % dearer than those of all terms, with it
equal."""


def cheap_terms(view: EGraphView, pricing: Pricing) -> EGraphView:
    """The e-graph with the original graph's e-nodes and those of each e-class that are at most CHEAP_LAUNCHES dearer
    than its cheapest one, as far as the roots reach them: the terms from which most plans are made.

    Where backends may have no kernel of an op, also the cheap ones without it.
    """
    filtered = CostFilter(slack=CHEAP_LAUNCHES)
    marked = filtered.keeps(view, pricing)
    if any(map(_may_lack, set(view.op))):
        marked |= filtered.keeps(view, pricing, lacking=True)
    of: dict[int, list[int]] = {}
    for i in np.flatnonzero(marked).tolist():
        of.setdefault(int(view.cls[i]), []).append(i)
    reached, todo = {*view.roots}, [*view.roots]
    while todo:
        for k in {k for i in of.get(todo.pop(), ()) for k in view.children(i).tolist()} - reached:
            reached.add(k)
            todo.append(k)
    return view.only(marked & np.isin(view.cls, [*reached]))


__all__ = ["CostFilter", "cheap_terms", "kept"]
