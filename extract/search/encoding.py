"""Converts a hypergraph of candidate kernels to the arrays of an extraction problem, and the problem's solutions back
to kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..candidates.hypergraph import Hypergraph
from ..solve.budgets import Budget, undominated
from ..solve.extraction import Extraction
from ..solve.problem import FloatArray, Problem


class EncodedHypergraph:
    """A kernel hypergraph as a plain extraction problem (`problem`).

    One class per vertex, and one per bundle (the outputs of a multi-output kernel), which its vertices read at no cost.
    Of candidates with equal inputs and outputs only the cheapest is kept; with budgets, the Pareto-optimal ones; with
    `every`, the cheapest of each template name.
    """

    def __init__(
        self, hypergraph: Hypergraph, cost: Sequence[float], budgets: Sequence[Budget] = (), *, every: bool = False
    ) -> None:
        numbered, alike = hypergraph.numbered, hypergraph.alike
        self.vertices, self.bundles, self.roots = numbered.vertices, numbered.bundles, numbered.roots
        us = np.array(cost, np.float64)
        picked = _cheapest_of_groups(hypergraph, us)
        uses = [budget.use(hypergraph.candidates) for budget in budgets]
        if every:
            first: dict[tuple[int, str], int] = {}
            for i in sorted(range(len(cost)), key=cost.__getitem__):
                if cost[i] < math.inf:
                    first.setdefault((alike[i], hypergraph.candidates[i].template.name), i)
            picked = np.array(sorted(first.values()), np.int64)
        elif budgets:
            groups: list[list[int]] = [[] for _ in range(max(alike, default=-1) + 1)]
            for i, group in enumerate(alike):
                if cost[i] < math.inf:
                    groups[group].append(i)
            picked = np.array([i for same in groups for i in undominated(same, cost, uses)], np.int64)
        self.candidate: list[int] = picked.tolist()
        more: list[tuple[int, tuple[int, ...]]] = []  # nodes that cost nothing: (class, children)
        for root, number in zip(dict.fromkeys(hypergraph.roots), self.roots):
            if hypergraph.given.get(root.cls) == root.strides:
                more.append((number, ()))
        more += [(vertex, (bundle,)) for vertex, bundle in numbered.parts]  # projections of multi-output kernels
        self.candidate += [-1] * len(more)
        limits = [budget.limit(use, self.candidate) for budget, use in zip(budgets, uses)]
        made, off, child = hypergraph.flat
        counts = np.diff(off)[picked]
        ends = np.cumsum(counts)
        reads = child[np.repeat(off[picked] - (ends - counts), counts) + np.arange(counts.sum())]
        self.problem = Problem(
            np.append(made[picked], [c for c, _ in more]).astype(np.int32),
            np.concatenate([[0], ends, ends[-1:].sum() + np.cumsum([len(children) for _, children in more])]).astype(
                np.int32
            ),
            np.append(reads, [k for _, children in more for k in children]).astype(np.int32),
            np.append(us[picked], np.zeros(len(more))),
            numbered.size,
            tuple(self.roots),
            limits=tuple(limits),
        )

    def ordered(self, extraction: Extraction) -> list[int]:
        """Indices of the candidates that an extraction chose, producers before consumers."""
        order: list[int] = []
        done: set[int] = set()
        choice = extraction.choice
        off, child = self.problem.off, self.problem.child
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
                stack += [(int(k), False) for k in reversed(child[off[node] : off[node + 1]])]
        return order


def _cheapest_of_groups(hypergraph: Hypergraph, us: FloatArray) -> npt.NDArray[np.int64]:
    """The cheapest candidate of each group of equal inputs and outputs, the first of equals; none where all cost
    infinity."""
    order, starts = hypergraph.grouped
    if not len(order):
        return order
    price = np.where(us < math.inf, us, math.inf)[order]
    least = np.minimum.reduceat(price, starts)
    sizes = np.diff(np.append(starts, len(order)))
    at = np.flatnonzero(price == np.repeat(least, sizes))
    group = np.repeat(np.arange(len(starts)), sizes)[at]
    first = at[np.append(True, group[1:] != group[:-1])]
    picked: npt.NDArray[np.int64] = order[first[least < math.inf]]
    return picked


__all__ = ["EncodedHypergraph"]
