"""Computes the cost cutoff of measuring, the time above which a kernel is in no best plan, from the kernels whose times
are measured.

A kernel slower than the cheapest measured way to produce its outputs from values in memory and its own inputs is in no
best plan: replacing it makes any plan cheaper. (That way is another measured kernel with the same outputs, plus a
measured tree for each input that only that kernel reads; the cost of a tree is at least what it adds to a plan.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import cached_property

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


class MeasuredCosts:
    """Costs in µs of producing values by measured kernels only. `measured_us`: of each candidate; inf for an unmeasured
    one."""

    def __init__(self, hypergraph: Hypergraph, measured_us: list[float], index: CandidateIndex) -> None:
        self.hypergraph, self.measured_us, self.index = hypergraph, measured_us, index

    @cached_property
    def tree(self) -> list[float]:
        """Least tree cost of each vertex and bundle (outputs of one kernel)."""
        return tree_costs(self.hypergraph, self.measured_us)

    def without(self, candidate: int) -> float:
        """Cost of the cheapest measured way to produce the outputs of one candidate without its call, given its own
        inputs; inf if there is none."""
        numbered, own = self.hypergraph.numbered, call_token(self.hypergraph.candidates[candidate])
        made, reads, tree = numbered.made[candidate], set(numbered.needs[candidate]), self.tree
        outputs = numbered.bundles[made - len(numbered.vertices)] if made >= len(numbered.vertices) else (made,)
        rivals = [
            self.measured_us[i] + sum(tree[v] for v in numbered.needs[i] if v not in reads) for i in self.index.by_output[made]
            if self.measured_us[i] < math.inf and call_token(self.hypergraph.candidates[i]) != own
        ]  # fmt: skip
        return min([sum(tree[v] for v in outputs), *rivals])


class CostCutoff:
    """Cost cutoffs of candidate kernels. The object is called with a candidate, and returns the time in µs above which
    it is in no best plan. Cutoffs fall as more kernels are measured.

    `ended`: returns True when measuring is over; cutoffs are 0 then. `limited`: plans have budgets (limits on other
    costs than time), which may need a slow kernel, so that cutoffs are infinite. `index`: the hypergraph's index by
    call and output, or None: it is made. `register` adds a candidate whose measurement has begun.
    """

    def __init__(
        self, hypergraph: Hypergraph, pricer: Pricer, prices: Sequence[Priced],
        ended: Callable[[], bool] = lambda: False, limited: bool = False, index: CandidateIndex | None = None,
    ) -> None:  # fmt: skip
        self.pricer, self.ended, self.limited = pricer, ended, limited
        self.costs = measured_costs(hypergraph, prices, index or CandidateIndex(hypergraph))
        self._in_flight: list[Candidate] = []

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
        alike = self.costs.index.by_call.get(call_token(candidate), ())
        return max([self.costs.without(i) for i in alike], default=0.0)

    def _refresh(self) -> None:
        prices = self.pricer.price(self._in_flight) if self._in_flight else []
        known = self.costs
        for candidate, price in zip(list(self._in_flight), prices):
            if price.origin == "measured" or price.us == math.inf:
                self._in_flight.remove(candidate)
                for i in known.index.by_call[call_token(candidate)]:
                    known.measured_us[i] = price.us
                self.costs = MeasuredCosts(known.hypergraph, known.measured_us, known.index)


def measured_costs(hypergraph: Hypergraph, prices: Sequence[Priced], index: CandidateIndex) -> MeasuredCosts:
    """Costs by the kernels whose `prices` are times measured on this machine."""
    return MeasuredCosts(hypergraph, [p.us if p.origin == "measured" else math.inf for p in prices], index)


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
    missing, sums = [len(children) for _, children, _ in nodes], [c for _, _, c in nodes]
    found = [math.inf] * numbered.size
    readers: list[list[int] | None] = [None] * numbered.size
    for i, (_, children, _) in enumerate(nodes):
        for v in children:
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
