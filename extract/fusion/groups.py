"""Finds fusion groups: subgraphs of a saturated e-graph that one generated kernel could compute.

A fusion group has an output e-class and a term over leaf e-classes, whose values are in memory; everything between is
computed inside the kernel (inlined). Groups grow from the output towards the leaves, always through elementwise
operations and views, and through reductions and products as far as the fusion policy allows. Backends decide whether
they can lower a group; extraction decides whether it is used.

Limits: only a few e-nodes of a class start or continue groups (node_choice.py). Groups end at values with other
consumers (a residual stream): a group is grown up to the first such value on each path, and up to the next one behind.

A value read by many others (the statistics of a norm, a scale per channel) may be stored although only one group needs
it: for example if its rows are too few or too long for one kernel, or if every tile of queries would recompute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import Type
from .growth import FusionGrowth
from .node_choice import NodeChoice
from .policy import FUSION_POLICIES, PACKED_PRODUCT, UNLIMITED_PRODUCTS, FusionGroup, FusionPolicy, with_packed
from .repeated_blocks import RepeatedBlocks
from .repeats import OutlineStep, RepeatedSubgraphs

# number of classes of one colour, the latest ones, whose groups are tried for another class: classes of many constants
# all differ
MAX_REUSED_CLASSES = 32
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
class FusionGroups(NodeChoice):
    """All fusion groups (terms that one generated kernel could compute) of an e-graph.

    `policies`: limits under which groups are grown, one after another.
    """

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
    # (colour, shared) -> results of classes
    _groups_by_colour: dict[tuple[int, bool], list[_ClassGroups]] = field(default_factory=dict)

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
            nodes = [self.choice[cls]] if cls in self.settled else self.plausible(cls)
            stack += [k for n in nodes for k in self.facts.children[n]]
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

    def packed_products(self) -> Iterator[FusionGroup]:
        """Yields, for each product with a weight that is computed from fewer bytes, one group: the product alone, with
        that weight inlined. Of repeated blocks only in active instances (repeated_blocks.py)."""
        facts, starts = self.facts, RepeatedBlocks.of(self.view).is_active
        for cls in filter(starts, self.reachable() if facts.packed else ()):
            nodes = [n for n in self._by_class[cls] if facts.kinds[n] == "product"]
            packed = [n for n in nodes if not facts.packed.keys().isdisjoint(facts.children[n])]
            grown = (FusionGrowth(self, cls, PACKED_PRODUCT).grown(n) for n in packed)
            yield from islice((group for group in grown if group is not None), 1)

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
