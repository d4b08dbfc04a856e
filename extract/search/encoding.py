"""The extraction problem of a kernel hypergraph."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..candidates.hypergraph import Hypergraph
from ..solve.budgets import Budget, undominated
from ..solve.problem import Extraction, Problem


class EncodedHypergraph:
    """A kernel hypergraph as a plain extraction problem.

    One class per vertex, and one per bundle of outputs of a multi-output kernel, which its vertices read at no cost. Of
    candidates with equal inputs and outputs only the cheapest is kept; with budgets, the Pareto-optimal ones; with
    `every`, the cheapest of each template name.
    """

    def __init__(
        self, hypergraph: Hypergraph, cost: Sequence[float], budgets: Sequence[Budget] = (), *, every: bool = False
    ) -> None:
        numbered, alike = hypergraph.numbered, hypergraph.alike
        self.vertices, self.bundles, self.roots = numbered.vertices, numbered.bundles, numbered.roots
        best = [-1] * (max(alike, default=-1) + 1)
        for i, (group, price) in enumerate(zip(alike, cost)):
            if price < math.inf and (best[group] < 0 or price < cost[best[group]]):
                best[group] = i
        self.candidate = [i for i in best if i >= 0]
        uses = [budget.use(hypergraph.candidates) for budget in budgets]
        if every:
            first: dict[tuple[int, str], int] = {}
            for i in sorted(range(len(cost)), key=cost.__getitem__):
                if cost[i] < math.inf:
                    first.setdefault((alike[i], hypergraph.candidates[i].template.name), i)
            self.candidate = sorted(first.values())
        elif budgets:
            groups: list[list[int]] = [[] for _ in best]
            for i, group in enumerate(alike):
                if cost[i] < math.inf:
                    groups[group].append(i)
            self.candidate = [i for same in groups for i in undominated(same, cost, uses)]
        nodes = [(numbered.made[i], numbered.needs[i], cost[i]) for i in self.candidate]
        for root, number in zip(dict.fromkeys(hypergraph.roots), self.roots):
            if hypergraph.given.get(root.cls) == root.strides:
                nodes.append((number, (), 0.0))
                self.candidate.append(-1)
        for vertex, bundle in numbered.parts:  # projections of multi-output kernels
            nodes.append((vertex, (bundle,), 0.0))
            self.candidate.append(-1)
        limits = [budget.limit(use, self.candidate) for budget, use in zip(budgets, uses)]
        self.problem = Problem.build(nodes, self.roots, n_classes=numbered.size, limits=limits)

    def ordered(self, extraction: Extraction) -> list[int]:
        """Candidates that an extraction chose, producers before consumers."""
        order: list[int] = []
        done: set[int] = set()
        choice = extraction.choice
        off, kid = self.problem.off, self.problem.kid
        stack = [(r, False) for r in reversed(self.roots)]
        while stack:
            cls, ready = stack.pop()
            if ready:
                node = int(choice[cls])
                if self.candidate[node] >= 0:
                    order.append(self.candidate[node])
            elif cls not in done:
                done.add(cls)
                stack.append((cls, True))
                node = int(choice[cls])
                stack += [(int(k), False) for k in reversed(kid[off[node] : off[node + 1]])]
        return order


__all__ = ["EncodedHypergraph"]
