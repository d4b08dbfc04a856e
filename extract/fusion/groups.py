"""Finds fusion groups: subgraphs of a saturated e-graph that one generated kernel could compute.

A fusion group has an output e-class and a term over leaf e-classes, whose values are in memory; everything between is
computed inside the kernel (inlined). Groups grow from the output towards the leaves, always through elementwise
operations and views, and through reductions and products as far as the fusion policy allows. Backends decide whether
they can lower a group; extraction decides whether it is used.

Limits: per class the few cheapest e-nodes start groups (by the tree cost that saturation prunes with); inside a group
each class is its cheapest e-node of an admitted kind. Groups end at values with other consumers (a residual stream): a
group is grown up to the first such value on each path, and up to the next one behind.

A value read by many others (the statistics of a norm, a scale per channel) may be stored although only one group needs
it: for example if its rows are too few or too long for one kernel, or if every tile of queries would recompute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import inf

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import OPS, Type
from ...egraph.saturate.term_cost import Pricing, Roofline, node_prices
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from .growth import MAX_GROUP_NODES, FusionGrowth
from .policy import (
    FUSION_POLICIES,
    MAX_NARROW_COLUMNS,
    UNLIMITED_PRODUCTS,
    FusionGroup,
    FusionPolicy,
    with_packed,
)
from .repeated_blocks import RepeatedBlocks
from .repeats import OutlineStep, RepeatedSubgraphs
from .uses import ChosenConsumers
from .view_facts import MAX_WINDOW_FLOPS, ViewFacts

MAX_START_NODES = 4  # largest number of e-nodes of a class that start groups
# number of classes of one colour, the latest ones, whose groups are tried for another class: classes of many constants
# all differ
MAX_REUSED_CLASSES = 32
START_COST_RATIO = 1.5  # cost limit of a starting e-node, relative to the cheapest of its class
# the same inside a group; larger where statistics are leaves, whose cost is not the group's
NODE_COST_RATIO, NODE_COST_RATIO_STATISTICS = 2, 16
GROUPS_CACHE_ATTRIBUTE = "_grown"  # attribute of a view that caches its groups while candidates are built
MAX_SHARED_ON_PATH = 1  # largest number of values with other consumers on a path inside a group


@dataclass(frozen=True)
class _ClassGroups:
    """The fusion groups of a class.

    steps: e-nodes of the groups, in the order of growth, by which the groups are mapped to similar classes · shared:
    classes that growing these groups added to `FusionGroups.shared`.
    """

    cls: int
    groups: tuple[FusionGroup, ...]
    steps: list[OutlineStep]
    shared: frozenset[int]

    def moved(self, to: Mapping[int, int]) -> Iterator[FusionGroup]:
        """The fusion groups with each class replaced by its image in the map `to`."""
        for r in self.groups:
            yield replace(
                r, cls=to[r.cls], leaves=tuple([(t, to[c]) for t, c in r.leaves]), inner=tuple([(t, to[c]) for t, c in r.inner]),
                statistics=tuple([to[c] for c in r.statistics]),
            )  # fmt: skip


@dataclass
class FusionGroups:
    """All fusion groups (terms that one generated kernel could compute) of an e-graph (`view`).

    `given`: e-classes in memory before any kernel runs. `pricing`: costs by which the cheapest e-nodes are chosen.
    `policies`: limits under which groups are grown, one after another.
    """

    view: EGraphView
    given: frozenset[int]
    pricing: Pricing = field(default_factory=Roofline)
    policies: tuple[FusionPolicy, ...] = FUSION_POLICIES
    beside: dict[int, set[int]] = field(default_factory=dict)  # class -> statistics that some group reads together
    settled: set[int] = field(
        default_factory=set
    )  # classes in large maximal fusion groups (fusion/maximal.py): only the cheapest e-node is considered
    unstarted: set[int] = field(default_factory=set)  # subset of settled: no group starts here
    unread: set[int] = field(default_factory=set)  # subset of settled: no group reads these
    shared: set[int] = field(default_factory=set)  # statistics with readers outside the groups
    seen: set[Tensor] = field(default_factory=set)  # terms found for the current class
    _yielded: list[FusionGroup] = field(default_factory=list)
    _tensors: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _insides: dict[tuple[int, int, bool], set[int]] = field(default_factory=dict)
    _below: dict[int, set[int]] = field(default_factory=dict)
    # (colour, shared) -> results of classes
    _groups_by_colour: dict[tuple[int, bool], list[_ClassGroups]] = field(default_factory=dict)
    _attend: dict[int, bool] = field(default_factory=dict)
    _admitted: dict[FusionPolicy, dict[tuple[int, int, bool, bool], list[int]]] = field(default_factory=dict)

    @cached_property
    def facts(self) -> ViewFacts:
        """Properties of the e-graph's e-nodes and e-classes that do not depend on prices."""
        return ViewFacts(self.view, self.given)

    @cached_property
    def repeats(self) -> RepeatedSubgraphs:
        """The repeated subgraphs of the e-graph `view`: e-classes grouped by colour refinement. Two e-classes are in
        one group if they and their neighbours agree in every property on which the fusion groups there depend (type,
        roots, weight-only values, e-classes in memory and others)."""
        view, roots = self.view, {*self.view.roots}
        marks = [
            (
                t.dtype,
                t.shape,
                weight,
                original,
                c in self.given,
                c in self.facts.inlined_classes,
                c in self.facts.elementwise_classes,
                c in self.settled,
                c in roots,
            )
            for c, (t, weight, original) in enumerate(
                zip(view.types, view.weight.tolist(), view.original_classes.tolist())
            )
        ]
        return RepeatedSubgraphs(view, marks, self.given - self.facts.packed.keys())

    @cached_property
    def _costs(self) -> tuple[list[float], list[float], list[int]]:
        """(price per e-node, tree cost per class, cheapest e-node per class)."""
        price = node_prices(self.view, self.pricing)
        best, choice = self.view.cheapest(price)
        return price, best, choice

    @cached_property
    def _node_costs(self) -> list[float]:
        price, best, _ = self._costs
        return [p + sum([best[k] for k in kids]) for p, kids in zip(price, self.facts.kids)]

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

    def inside(self, node: int, products: int, scans: bool) -> set[int]:
        """E-classes that a fusion group starting at the e-node `node` may contain, with at most `products` matrix
        products on a path. `scans`: whether running sums are among them."""
        key, never = (node, products, scans), ("opaque", "written") if scans else ("opaque", "written", "scan")
        if key not in self._insides:
            choice, found = self.choice, dict[int, int]()  # class -> fewest products on a path to it, itself included
            first = self.facts.kinds[node] == "product"
            todo = [(k, int(first)) for k in self.facts.kids[node]]
            while todo and len(found) < 4 * MAX_GROUP_NODES:
                cls, used = todo.pop()
                if cls in self.given or choice[cls] < 0:
                    continue
                kind = self.facts.kinds[choice[cls]]
                used += kind == "product"
                if kind not in never and used <= min(products, found.get(cls, UNLIMITED_PRODUCTS) - 1):
                    found[cls] = used
                    todo += [(k, used) for k in self.facts.kids[choice[cls]]]
            self._insides[key] = set(found)
        return self._insides[key]

    def stored(self, cls: int) -> bool:
        """Whether an e-class is in memory before any kernel runs: a given one (input, state, weight), or a cast of
        one."""
        node = self.choice[cls]
        return cls in self.given or (
            node >= 0 and self.view.op[node] == "cast" and self.facts.kids[node][0] in self.given
        )

    def _plausible(self, cls: int) -> list[int]:
        """The e-nodes of a class with near-minimal cost, which a good plan may use."""
        limit = START_COST_RATIO * self._costs[1][cls] + 100
        return [n for n in self._by_class[cls][: 2 * MAX_START_NODES] if self._cost(n) * self._share(n) <= limit]

    def _share(self, node: int) -> float:
        """Share of its operand that a slice is; 1 for other e-nodes.

        The other slices may be needed too, and then share the operand's cost.
        """
        if self.view.op[node] != "slice":
            return 1.0
        return self.facts.elements(int(self.view.cls[node])) / max(self.facts.elements(self.facts.kids[node][0]), 1)

    @cached_property
    def _by_class(self) -> dict[int, list[int]]:
        """E-nodes per class, cheapest first."""
        found: dict[int, list[int]] = {}
        for node, cls in enumerate(self.view.cls.tolist()):
            found.setdefault(cls, []).append(node)
        return {c: sorted(nodes, key=self._cost) for c, nodes in found.items()}

    def below(self, cls: int) -> set[int]:
        """The e-classes from which an e-class is computed by reductions, elementwise operations and views, through the
        cheapest e-node of each."""
        if cls not in self._below:
            choice, todo, found = self.choice, [cls], set[int]()
            while todo:
                node = choice[todo.pop()]
                if node >= 0 and self.facts.kinds[node] in ("rows", "cheap"):
                    todo += [k for k in self.facts.kids[node] if k not in found and k not in self.given]
                    found.update(self.facts.kids[node])
            self._below[cls] = found
        return self._below[cls]

    def whole_attention(self, node: int) -> bool:
        """Whether an e-node is a fused attention operation, or a view of an e-class that only such operations
        compute."""
        found = self._attend.get(node)
        if found is None:
            entry = OPS[self.view.op[node]]
            kids = self.facts.kids[node] if entry.kind == "view" else ()
            found = entry.law == "attention" or any(
                all(OPS[self.view.op[n]].law == "attention" for n in self._by_class[k]) for k in kids
            )
            self._attend[node] = found
        return found

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

    def placeholder(self, number: int, kind: Type) -> Tensor:
        """The input tensor of type `kind` that stands for leaf `number` in the terms of fusion groups."""
        key = number, kind
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = placeholder(f"x{number}", kind.shape, kind.dtype)
        return found

    def tensor(self, node: int, args: tuple[Tensor, ...]) -> Tensor:
        """The tensor that applies the op of an e-node, with its attributes, to the operands `args`. Cached, since
        repeated layers share attributes."""
        view = self.view
        if (leaf := view.tensors.get(node)) is not None:
            return leaf
        key = view.op[node], id(view.attrs[node]), args
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = make(view.op[node], args, dict(view.attrs[node]))
        return found

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

    def reachable(self) -> list[int]:
        """E-classes that the roots need through e-nodes of near-minimal cost, roots first. Left out are given e-classes
        (in memory before any kernel runs), index formulas, and e-classes that only these need."""
        order: dict[int, None] = {}
        stack = list(reversed(self.view.roots))
        while stack:
            cls = stack.pop()
            if cls in order or cls in self.given or cls in self.facts.formulas:
                continue
            order[cls] = None
            nodes = [self.choice[cls]] if cls in self.settled else self._plausible(cls)
            stack += [k for n in nodes for k in self.facts.kids[n]]
        return list(order)

    @property
    def grown(self) -> FusionGroups:
        """The first `FusionGroups` object of this view with equal parameters, whose groups may be grown already; this
        object if it is the first.

        It is cached on the view (the arrays of the e-graph), so that the generators of several backends share the grown
        groups.
        """
        kept: dict[object, FusionGroups] = self.view.__dict__.setdefault(GROUPS_CACHE_ATTRIBUTE, {})
        key = self.given, self.policies, *map(frozenset, (self.settled, self.unstarted, self.unread))
        return kept.setdefault(key, self)

    def until(self, enough: Callable[[], bool]) -> Iterator[FusionGroup]:
        """Yields every fusion group once, growing further ones as they are asked for; ends early when `enough` returns
        True."""
        for place in count():
            if place == len(self._yielded):
                if enough() or (group := next(self._growing, None)) is None:
                    return
                self._yielded.append(group)
            yield self._yielded[place]

    @cached_property
    def _growing(self) -> Iterator[FusionGroup]:
        return iter(self)

    def __iter__(self) -> Iterator[FusionGroup]:
        """Yield every group, each term once; statistics that groups read get groups as well.

        Of repeated blocks only the groups of active instances (repeated_blocks.py).
        """
        order = dict.fromkeys(self.reachable())
        starts = RepeatedBlocks.of(self.view).is_active
        todo = [c for c in order if c not in self.unstarted and starts(c)]
        while todo:
            statistics: dict[int, None] = {}
            for group in (r for cls in todo for r in self._of(cls)):
                if not self.unread.isdisjoint(c for _, c in group.leaves):
                    continue
                if group.statistics:
                    statistics |= dict.fromkeys(group.statistics)
                    for c in group.statistics:
                        self.beside.setdefault(c, set()).update(group.statistics)
                yield group
            todo = [c for c in statistics if c not in order and starts(c)]
            order |= dict.fromkeys(todo)

    def _of(self, cls: int) -> Iterator[FusionGroup]:
        """The fusion groups of a class: those of a class of equal colour mapped to its e-nodes, otherwise grown."""
        key = self.repeats.colours[cls], cls in self.beside and cls in self.shared
        alike = self._groups_by_colour.setdefault(key, [])
        for known in alike[-MAX_REUSED_CLASSES:]:
            to = self.repeats.image(known.steps, known.cls, cls)
            if to is not None and known.shared <= to.keys():
                self.shared |= {to[c] for c in known.shared}
                yield from known.moved(to)
                return
        before, nodes = set(self.shared), dict[int, None]()
        found: dict[Tensor, FusionGroup] = {}
        self.seen = set[Tensor]()
        for node in self.starts(cls):
            packed = set[FusionPolicy]()  # policies whose groups come to a packed weight: others have no packed form
            for policy in self._applicable_policies:
                if policy.packed and self._unpacked_form[policy] not in packed:
                    continue
                for growth, group in self._grown(cls, node, policy):
                    if growth.met_packed:
                        packed.add(policy)
                    if group is not None and group.term not in found:
                        self.seen.add(group.term)
                        found[group.term] = group
                        nodes |= dict.fromkeys(growth.inlined)
        yield from found.values()
        alike.append(
            _ClassGroups(cls, (*found.values(),), self.repeats.outline(nodes), frozenset(self.shared - before))
        )

    @cached_property
    def _applicable_policies(self) -> list[FusionPolicy]:
        """The fusion policies to try on this view: without products in the view, only policies without products."""
        products, scans = "product" in self.facts.kinds, "scan" in self.facts.kinds
        policies = with_packed(self.policies) if self.facts.packed else self.policies
        return [r for r in policies if (not r.products or products) and (not r.scans or scans)]

    @cached_property
    def _unpacked_form(self) -> dict[FusionPolicy, FusionPolicy]:
        """Policy that inlines packed weights -> the policy of which it is a copy."""
        every = with_packed(self.policies)
        return dict(zip(every[len(self.policies) :], self.policies, strict=True))

    def _grown(self, cls: int, node: int, policy: FusionPolicy) -> Iterator[tuple[FusionGrowth, FusionGroup | None]]:
        """(growth, its group, None without one) under one policy, the largest groups first: with at most
        MAX_SHARED_ON_PATH values with other consumers on a path, then with fewer."""
        # a larger one is not used; but where statistics are leaves, its growth tells which ones other groups share
        most = UNLIMITED_PRODUCTS if policy.spread_bare else MAX_SHARED_ON_PATH
        whole = FusionGrowth(self, cls, policy, most_met=most)
        found = whole.grown(node)
        yield whole, found if whole.met <= MAX_SHARED_ON_PATH else None
        for recomputed in reversed(range(min(whole.met, MAX_SHARED_ON_PATH + 1))):
            less = FusionGrowth(self, cls, policy, recomputed)
            yield less, less.grown(node)
