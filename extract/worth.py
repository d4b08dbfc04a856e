"""Up to which time a kernel is worth measuring on: what the same values cost by kernels whose times are certain.

A kernel that takes longer than the cheapest certain way to make its outputs from what is given and from what it reads is in
no best plan: exchanging it for that way makes any plan cheaper. (The way is another certain kernel that makes the same, with a
certain tree for each value that only that one reads; a tree's cost is never less than what it adds to a plan.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from .candidates import Hypergraph
from .kernel import Candidate, Priced, Pricer

Token = tuple[int, int]  # a template and a call, by identity: candidates share equal calls


def token(candidate: Candidate) -> Token:
    """What candidates with equal calls share."""
    return id(candidate.template), id(candidate.call)


class Places:
    """Where calls are in a hypergraph: by their token, and by what they make."""

    def __init__(self, hypergraph: Hypergraph) -> None:
        self.of: dict[Token, list[int]] = {}
        self.alike: dict[int, list[int]] = {}  # what is made: the candidates that make it
        for i, (candidate, made) in enumerate(zip(hypergraph.candidates, hypergraph.numbered.made)):
            self.of.setdefault(token(candidate), []).append(i)
            self.alike.setdefault(made, []).append(i)


class Worth:
    """Bounds that tighten while candidates are measured: `taken` notes that one is under way, calling gives its bound in µs.
    `ended`: nothing is worth measuring any more. `limited`: plans must keep budgets, for which a dear kernel may be needed: then
    there are no bounds. `places`: those of the hypergraph, if they are known."""

    def __init__(
        self, hypergraph: Hypergraph, pricer: Pricer, prices: Sequence[Priced],
        ended: Callable[[], bool] = lambda: False, limited: bool = False, places: Places | None = None,
    ) -> None:  # fmt: skip
        self.hypergraph, self.pricer, self.ended, self.limited = hypergraph, pricer, ended, limited
        self.certain = [p.us if p.source == "measured" else math.inf for p in prices]
        self.places = places or Places(hypergraph)
        self._waiting: list[Candidate] = []
        self._tree: list[float] | None = None

    def taken(self, candidate: Candidate) -> None:
        """Note that a candidate is being measured."""
        self._waiting.append(candidate)

    def __call__(self, candidate: Candidate) -> float:
        """µs from which on the candidate is of no use anywhere; 0 when the time is up."""
        if self.ended():
            return 0.0
        if self.limited:
            return math.inf
        self._refresh()
        return max([self._at(i) for i in self.places.of.get(token(candidate), ())], default=0.0)

    def _refresh(self) -> None:
        prices = self.pricer.price(self._waiting) if self._waiting else []
        for candidate, price in zip(list(self._waiting), prices):
            if price.source == "measured" or price.us == math.inf:
                self._waiting.remove(candidate)
                for i in self.places.of[token(candidate)]:
                    self.certain[i] = price.us
                self._tree = None
        if self._tree is None:
            self._tree = tree_costs(self.hypergraph, self.certain)

    def _at(self, place: int) -> float:
        numbered, own = self.hypergraph.numbered, token(self.hypergraph.candidates[place])
        made, reads, tree = numbered.made[place], set(numbered.needs[place]), self._tree
        assert tree is not None
        outputs = numbered.bundles[made - len(numbered.vertices)] if made >= len(numbered.vertices) else (made,)
        rivals = [
            self.certain[i] + sum(tree[v] for v in numbered.needs[i] if v not in reads) for i in self.places.alike[made]
            if self.certain[i] < math.inf and token(self.hypergraph.candidates[i]) != own
        ]  # fmt: skip
        return min([sum(tree[v] for v in outputs), *rivals])


def tree_costs(hypergraph: Hypergraph, cost: Sequence[float]) -> list[float]:
    """Of each number of a hypergraph, the least summed cost of a tree of candidates that makes it from what is given (Knuth's
    form of Dijkstra's algorithm); infinite where there is none."""
    numbered = hypergraph.numbered
    nodes = [(m, n, c) for m, n, c in zip(numbered.made, numbered.needs, cost) if c < math.inf]
    nodes += [
        (v, (len(numbered.vertices) + b,), 0.0) for b, bundle in enumerate(numbered.bundles) for v in bundle
    ]  # fmt: skip
    readers: dict[int, list[int]] = {}
    missing, sums = [len(needs) for _, needs, _ in nodes], [c for _, _, c in nodes]
    for i, (_, needs, _) in enumerate(nodes):
        for v in needs:
            readers.setdefault(v, []).append(i)
    found = [math.inf] * (len(numbered.vertices) + len(numbered.bundles))
    heap = [(sums[i], made) for i, (made, _, _) in enumerate(nodes) if not missing[i]]
    heapq.heapify(heap)
    while heap:
        total, vertex = heapq.heappop(heap)
        if found[vertex] <= total:
            continue
        found[vertex] = total
        for i in readers.get(vertex, ()):
            missing[i] -= 1
            sums[i] += total
            if not missing[i]:
                heapq.heappush(heap, (sums[i], nodes[i][0]))
    return found
