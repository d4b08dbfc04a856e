"""What is kept of a saturation where less than its beam and slack is asked for.

Kept are the e-nodes that were in some round among the cheapest of their class, and near to its best. What is kept for smaller
limits is a part of what is kept for larger ones, and what fewer rounds keep is kept after more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from .ops import OPS
from .pricing import Pricing, node_prices
from .view import Bools, EGraphView

FARTHEST = 1e9  # launches: more than any slack


@dataclass(frozen=True)
class Narrow:
    """What is kept of a saturation: e-nodes among the `beam` cheapest of their class or the cheapest of their op (all if 0),
    dearer than the class's best by at most `slack` launches."""

    beam: int = 0
    slack: float = inf

    def keeps(self, view: EGraphView, pricing: Pricing) -> Bools:
        """Which e-nodes of a view. The graph's own and the best of each class always are."""
        price = node_prices(view, pricing)
        best, _ = view.cheapest(price)
        found = np.zeros(len(view), np.bool_) if view.own is None else view.own.copy()
        rank = [price[i] + sum(best[k] for k in view.kids(i).tolist()) for i in range(len(view))]
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


def kept(last: EGraphView, rounds: Sequence[EGraphView], narrow: Narrow, pricing: Pricing) -> EGraphView:
    """The view after the last of some rounds, with the e-nodes that are kept of any of them. Each round's view holds those
    before."""
    if not rounds:
        return last
    marked = narrow.keeps(last, pricing)
    table = {(last.what(i), *last.kids(i).tolist()): i for i in range(len(last))}
    for view in rounds[:-1]:
        marks = narrow.keeps(view, pricing)
        of = [-1] * view.n_classes
        for value, c in view.classes.items():
            of[c] = last.classes.get(value, -1)
        rest = list(range(len(view)))
        while rest:
            later = []
            for i in rest:
                kids = [of[k] for k in view.kids(i).tolist()]
                if -1 in kids:
                    later.append(i)
                elif (at := table.get((view.what(i), *kids))) is not None:
                    of[view.cls[i]] = int(last.cls[at])
                    marked[at] |= marks[i]
            if len(later) == len(rest):
                break
            rest = later
    return last.only(marked)


__all__ = ["Narrow", "kept"]
