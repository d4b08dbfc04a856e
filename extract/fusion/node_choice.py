"""Chooses the e-nodes that fusion groups may start at and continue through.

Per class the few cheapest e-nodes start groups (by the tree cost that saturation prunes with); inside a group each
class is its cheapest e-node of an admitted kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from ...egraph.ops.ops import OPS
from ...egraph.saturate.term_cost import Pricing, Roofline, node_prices
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from .growth import MAX_GROUP_NODES
from .policy import MAX_NARROW_COLUMNS, UNLIMITED_PRODUCTS, FusionPolicy
from .uses import ChosenConsumers
from .view_facts import MAX_WINDOW_FLOPS, ViewFacts

MAX_START_NODES = 4  # largest number of e-nodes of a class that start groups
START_COST_RATIO = 1.5  # cost limit of a starting e-node, relative to the cheapest of its class
# the same inside a group; larger where statistics are leaves, whose cost is not the group's
NODE_COST_RATIO, NODE_COST_RATIO_STATISTICS = 2, 16


@dataclass
class NodeChoice:
    """The e-nodes of an e-graph (`view`) that fusion groups may have.

    `given`: e-classes in memory before any kernel runs. `pricing`: costs by which the cheapest e-nodes are chosen.
    """

    view: EGraphView
    given: frozenset[int]
    pricing: Pricing = field(default_factory=Roofline)
    _insides: dict[tuple[int, int, bool], set[int]] = field(default_factory=dict, init=False)
    _below: dict[int, set[int]] = field(default_factory=dict, init=False)
    _attend: dict[int, bool] = field(default_factory=dict, init=False)
    _admitted: dict[FusionPolicy, dict[tuple[int, int, bool, bool], list[int]]] = field(
        default_factory=dict, init=False
    )

    @cached_property
    def facts(self) -> ViewFacts:
        """Properties of the e-graph's e-nodes and e-classes that do not depend on prices."""
        return ViewFacts(self.view, self.given)

    @cached_property
    def _costs(self) -> tuple[list[float], list[float], list[int]]:
        """(price per e-node, tree cost per class, cheapest e-node per class)."""
        price = node_prices(self.view, self.pricing)
        best, choice = self.view.cheapest(price)
        return price, best, choice

    @cached_property
    def _node_costs(self) -> list[float]:
        price, best, _ = self._costs
        return [p + sum([best[k] for k in children]) for p, children in zip(price, self.facts.children)]

    @cached_property
    def stored_classes(self) -> set[int]:
        """E-classes that are in memory before any kernel runs: given ones, and casts of these."""
        return {c for c in range(self.view.n_classes) if self.stored(c)}

    @property
    def choice(self) -> list[int]:
        """Cheapest e-node of each e-class, -1 for an e-class without a finite term."""
        return self._costs[2]

    @property
    def costs(self) -> list[float]:
        """Tree cost of each e-class: the cost of its cheapest term, in which shared parts are paid at each use."""
        return self._costs[1]

    def _cost(self, node: int) -> float:
        return self._node_costs[node]

    @cached_property
    def uses(self) -> ChosenConsumers:
        """Consumers and dominators of e-classes, over the cheapest e-node of each."""
        return ChosenConsumers(self.view, self.choice)

    @cached_property
    def _by_class(self) -> dict[int, list[int]]:
        """E-nodes per class, cheapest first."""
        found: dict[int, list[int]] = {}
        for node, cls in enumerate(self.view.cls.tolist()):
            found.setdefault(cls, []).append(node)
        return {c: sorted(nodes, key=self._cost) for c, nodes in found.items()}

    def stored(self, cls: int) -> bool:
        """Whether an e-class is in memory before any kernel runs: a given one (input, state, weight), or a cast of
        one."""
        node = self.choice[cls]
        return cls in self.given or (
            node >= 0 and self.view.op[node] == "cast" and self.facts.children[node][0] in self.given
        )

    def below(self, cls: int) -> set[int]:
        """The e-classes from which an e-class is computed by reductions, elementwise operations and views, through the
        cheapest e-node of each."""
        if cls not in self._below:
            choice, todo, found = self.choice, [cls], set[int]()
            while todo:
                node = choice[todo.pop()]
                if node >= 0 and self.facts.kinds[node] in ("rows", "cheap"):
                    todo += [k for k in self.facts.children[node] if k not in found and k not in self.given]
                    found.update(self.facts.children[node])
            self._below[cls] = found
        return self._below[cls]

    def whole_attention(self, node: int) -> bool:
        """Whether an e-node is a fused attention operation, or a view of an e-class that only such operations
        compute."""
        found = self._attend.get(node)
        if found is None:
            entry = OPS[self.view.op[node]]
            children = self.facts.children[node] if entry.kind == "view" else ()
            found = entry.law == "attention" or any(
                all(OPS[self.view.op[n]].law == "attention" for n in self._by_class[k]) for k in children
            )
            self._attend[node] = found
        return found

    def inside(self, node: int, products: int, scans: bool) -> set[int]:
        """E-classes that a fusion group starting at the e-node `node` may contain, with at most `products` matrix
        products on a path. `scans`: whether running sums are among them."""
        key, never = (node, products, scans), ("opaque", "written") if scans else ("opaque", "written", "scan")
        if key not in self._insides:
            choice, found = self.choice, dict[int, int]()  # class -> fewest products on a path to it, itself included
            first = self.facts.kinds[node] == "product"
            todo = [(k, int(first)) for k in self.facts.children[node]]
            while todo and len(found) < 4 * MAX_GROUP_NODES:
                cls, used = todo.pop()
                if cls in self.given or choice[cls] < 0:
                    continue
                kind = self.facts.kinds[choice[cls]]
                used += kind == "product"
                if kind not in never and used <= min(products, found.get(cls, UNLIMITED_PRODUCTS) - 1):
                    found[cls] = used
                    todo += [(k, used) for k in self.facts.children[choice[cls]]]
            self._insides[key] = set(found)
        return self._insides[key]

    def admitted(self, policy: FusionPolicy) -> dict[tuple[int, int, bool, bool], list[int]]:
        """Cache of the results of `admissible` for a policy; the keys are its other arguments."""
        return self._admitted.setdefault(policy, {})

    def admissible(self, cls: int, policy: FusionPolicy, products: int, below: bool, lean: bool) -> list[int]:
        """E-nodes of an e-class that a fusion group under a policy may inline, cheapest first.

        `products`: number of matrix products on the path from the output. `below`: whether the e-class is computed for
        an operand of a product. `lean`: whether statistics (reductions that are broadcast) are leaves.
        """
        return list(self._admissible(cls, policy, products, below, lean))

    def _admissible(self, cls: int, policy: FusionPolicy, products: int, below: bool, lean: bool) -> Iterator[int]:
        nodes, op = self._by_class[cls], self.view.op
        kinds = {"cheap"} if policy.pointwise_below or not below or cls in self.facts.inlined_classes else set()
        rows = policy.rows_below if below and products >= policy.products else policy.rows_above
        if products < UNLIMITED_PRODUCTS and (rows or (policy.rows_beside and not below)) and not lean:
            kinds.add("rows")
        if products < policy.products:
            kinds.add("product")
        if policy.scans and not below:
            kinds.add("scan")
        if policy.layers and concrete(self.view.types[cls].shape)[-1:] > (MAX_NARROW_COLUMNS,):
            kinds.discard("product")
        # attention as two products instead of one operation, since the scores may be needed as well
        fused = policy.products == 2
        dearest = (NODE_COST_RATIO_STATISTICS if lean else NODE_COST_RATIO) * self._costs[1][cls] + 1000
        if fused and any(map(self.whole_attention, nodes)):  # the single operation is cheaper than two stored products
            dearest = inf
        for n in nodes:
            kind = self.facts.kinds[n]
            if (
                kind not in kinds
                or self._cost(n) > dearest
                or (policy.layers and kind == "product" and OPS[op[n]].law not in ("matmul", "linear"))
                or (fused and self.whole_attention(n))
                or (products >= UNLIMITED_PRODUCTS and OPS[op[n]].flops > MAX_WINDOW_FLOPS)
                or (below and self.facts.reduces_several_axes(n))
            ):
                continue
            yield n

    def plausible(self, cls: int) -> list[int]:
        """The e-nodes of a class with near-minimal cost, which a good plan may use."""
        limit = START_COST_RATIO * self._costs[1][cls] + 100
        return [n for n in self._by_class[cls][: 2 * MAX_START_NODES] if self._cost(n) * self._share(n) <= limit]

    def _share(self, node: int) -> float:
        """Share of its operand that a slice is; 1 for other e-nodes.

        The other slices may be needed too, and then share the operand's cost.
        """
        if self.view.op[node] != "slice":
            return 1.0
        return self.facts.elements(int(self.view.cls[node])) / max(self.facts.elements(self.facts.children[node][0]), 1)

    def starts(self, cls: int) -> list[int]:
        """The few cheapest e-nodes of an e-class, at which its fusion groups start."""
        nodes = [n for n in self._by_class[cls] if self.facts.kinds[n] != "opaque"]
        if not nodes:
            return []
        limit = START_COST_RATIO * self._cost(nodes[0]) + 100
        kept, seen = [], set()
        for n in nodes:
            key = self.facts.kinds[n]
            if self._cost(n) <= limit or key not in seen:
                kept.append(n)
                seen.add(key)
        return kept[:MAX_START_NODES]
