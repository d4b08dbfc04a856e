"""Cost cutoff of measuring: the time above which a kernel is in no best plan, from kernels with measured times.

A kernel slower than the cheapest measured way to produce its outputs from values in memory and its own inputs is in no
best plan: replacing it makes any plan cheaper. (That way is another measured kernel with the same outputs, plus a
measured tree for each input that only that kernel reads; the cost of a tree is at least what it adds to a plan.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..candidates.hypergraph import Hypergraph
from ..model.kernel import Candidate
from ..model.pricing import Priced, Pricer

CallToken = tuple[int, int]  # identities of template and call: candidates share equal calls


def call_token(candidate: Candidate) -> CallToken:
    """Identity of a candidate's kernel call; equal for equal calls."""
    return id(candidate.template), id(candidate.call)


class CandidateIndex:
    """Index of a hypergraph's candidates by call token and by output."""

    def __init__(self, hypergraph: Hypergraph) -> None:
        self.by_call: dict[CallToken, list[int]] = {}
        self.by_output: dict[int, list[int]] = {}  # output vertex or bundle -> candidates that write it
        self.by_vertex: dict[int, list[int]] = {}  # vertex -> candidates that write it, alone or in a bundle
        for i, (candidate, made) in enumerate(zip(hypergraph.candidates, hypergraph.numbered.made)):
            self.by_call.setdefault(call_token(candidate), []).append(i)
            self.by_output.setdefault(made, []).append(i)
            for vertex in hypergraph.numbered.outputs(i):
                self.by_vertex.setdefault(vertex, []).append(i)


class CostCutoff:
    """Cost cutoffs of candidates in µs (a slower kernel is in no best plan), which fall while others are measured.

    Calling the object returns a candidate's cutoff. `register` adds a measurement in flight. `ended`: whether measuring
    is over. `limited`: plans have budgets, which may need a slow kernel, so cutoffs are infinite. `index`: index of the
    hypergraph, if it exists already.
    """

    def __init__(
        self, hypergraph: Hypergraph, pricer: Pricer, prices: Sequence[Priced],
        ended: Callable[[], bool] = lambda: False, limited: bool = False, index: CandidateIndex | None = None,
    ) -> None:  # fmt: skip
        self.hypergraph, self.pricer, self.ended, self.limited = hypergraph, pricer, ended, limited
        self.measured_us = [p.us if p.origin == "measured" else math.inf for p in prices]
        self.index = index or CandidateIndex(hypergraph)
        self._in_flight: list[Candidate] = []
        self._tree_costs: list[float] | None = None

    def register(self, candidate: Candidate) -> None:
        """Register that a candidate is being measured, so that its result lowers the cutoffs of others."""
        self._in_flight.append(candidate)

    def __call__(self, candidate: Candidate) -> float:
        """Time in µs above which the candidate is in no best plan; 0 after the deadline."""
        if self.ended():
            return 0.0
        if self.limited:
            return math.inf
        self._refresh()
        return max([self._of_candidate(i) for i in self.index.by_call.get(call_token(candidate), ())], default=0.0)

    def _refresh(self) -> None:
        prices = self.pricer.price(self._in_flight) if self._in_flight else []
        for candidate, price in zip(list(self._in_flight), prices):
            if price.origin == "measured" or price.us == math.inf:
                self._in_flight.remove(candidate)
                for i in self.index.by_call[call_token(candidate)]:
                    self.measured_us[i] = price.us
                self._tree_costs = None
        if self._tree_costs is None:
            self._tree_costs = tree_costs(self.hypergraph, self.measured_us)

    def _of_candidate(self, candidate: int) -> float:
        """Cutoff in µs of one candidate: the cheapest measured way to produce its outputs, given its own inputs."""
        numbered, own = self.hypergraph.numbered, call_token(self.hypergraph.candidates[candidate])
        made, reads, tree = numbered.made[candidate], set(numbered.needs[candidate]), self._tree_costs
        assert tree is not None
        outputs = numbered.bundles[made - len(numbered.vertices)] if made >= len(numbered.vertices) else (made,)
        rivals = [
            self.measured_us[i] + sum(tree[v] for v in numbered.needs[i] if v not in reads) for i in self.index.by_output[made]
            if self.measured_us[i] < math.inf and call_token(self.hypergraph.candidates[i]) != own
        ]  # fmt: skip
        return min([sum(tree[v] for v in outputs), *rivals])


def tree_costs(hypergraph: Hypergraph, cost: Sequence[float]) -> list[float]:
    """Least tree cost of each vertex and bundle (outputs of one kernel) from the values that are in memory from the
    start, by Knuth's generalisation of Dijkstra's algorithm; inf if they cannot be computed.

    `cost`: of each candidate; inf leaves it out.
    """
    numbered = hypergraph.numbered
    made, needs = numbered.made, numbered.needs
    nodes = [(made[i], needs[i], cost[i]) for i in np.flatnonzero(np.array(cost) < math.inf).tolist()]
    nodes += [
        (v, (len(numbered.vertices) + b,), 0.0) for b, bundle in enumerate(numbered.bundles) for v in bundle
    ]  # fmt: skip
    missing, sums = [len(kids) for _, kids, _ in nodes], [c for _, _, c in nodes]
    found = [math.inf] * numbered.size
    readers: list[list[int] | None] = [None] * numbered.size
    for i, (_, kids, _) in enumerate(nodes):
        for v in kids:
            if (known := readers[v]) is None:
                readers[v] = [i]
            else:
                known.append(i)
    heap = [(sums[i], made) for i, (made, _, _) in enumerate(nodes) if not missing[i]]
    heapq.heapify(heap)
    while heap:
        total, vertex = heapq.heappop(heap)
        if found[vertex] <= total:
            continue
        found[vertex] = total
        for i in readers[vertex] or ():
            missing[i] -= 1
            sums[i] += total
            if not missing[i]:
                heapq.heappush(heap, (sums[i], nodes[i][0]))
    return found
