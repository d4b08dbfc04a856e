"""Regions: parts of a saturated e-graph that one generated kernel could compute.

A region has an output class, a term over leaf classes that lie in memory, and everything in between inlined. Regions grow from
their output towards the leaves, through pointwise operations and views always, through reductions and products as far as a
reach allows. What a kernel can do with a region is the backend's business; what it is worth is decided by extraction.

Growth is bounded: per class the few cheapest e-nodes start regions (by the tree cost that saturation prunes with), inside a
region each class is its cheapest e-node of the kind that the reach admits. A value that is needed beside the region (a
residual stream) is where regions end: each is grown up to the first ones on its paths, and up to the next ones behind them.

A value that many others read (the statistics of a norm, a scale of each channel) may lie in memory although it is computed nowhere
else: that of rows too few or too long for one kernel, that of keys which every tile of queries would compute anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import inf, prod

from ..egraph.api import input as placeholder
from ..egraph.dims import concrete
from ..egraph.graph import Tensor, make, topological
from ..egraph.ops import OPS, Type
from ..egraph.pricing import Pricing, Roofline, node_prices
from ..egraph.view import EGraphView
from .repeats import Repeats, Step
from .uses import Uses

ROWS = frozenset(("sum", "max", "min", "mean", "softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm",
                  "max_pool", "avg_pool"))  # fmt: skip
AGAIN = frozenset(("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm"))
"""Reductions that walk their rows more than once: what is computed below them is computed anew each time."""

PRODUCTS = frozenset(("matmul", "linear", "attention", "masked_attention", "conv"))
ATTENTION = frozenset(("attention", "masked_attention"))
INDEXED = frozenset(("cast", "where", "gather", "gather_elements", "broadcast_to", "concat", "pad", "rope", "full", "iota", "permute", "reshape", "slice", "flip", "windows", "batch_norm"))  # fmt: skip
STARTS = 4  # e-nodes of a class that start regions
SLACK = 1.5  # how much dearer than the class' cheapest an e-node may be to start one
DEARER, DEARER_LEAN = 2, 16  # the same inside one; where statistics are read, what they cost is not the region's
MAX_NODES, MAX_LEAVES = 48, 10
ALL = 99  # products on a path beyond which there are no more
NARROW = 256  # columns of a layer that one kernel computes with the layers behind it, each row of it held whole
DEAR = 2  # operations of an element beyond which it is not computed anew for every window that it is in
GROWN = "_grown"  # under what name a view keeps its regions while kernels are looked for
BESIDE = 1  # most values on a path in a region that are needed beside it: another kernel may have stored them


@dataclass(frozen=True)
class Reach:
    """How far a region goes: products on a path from its output, and whether reductions are inlined above them
    (between the output and a product), at a product's operands, and beside no product at all. `left_only`: operands of a
    product other than the first, which programs for other rows read again, are read as they lie in memory. `rows_bare`: so are
    rows that are walked more than once. `spread_bare`: so are values spread over more elements that no pointwise operations
    alone compute; of the operands that `left_only` names, these and nothing else. `layers`: products are those of matrices, with
    at most `NARROW` columns where another one follows."""

    name: str
    products: int
    rows_above: bool
    rows_below: bool
    pointwise_below: bool = True
    left_only: bool = False
    rows_bare: bool = False
    spread_bare: bool = False
    layers: bool = False


#: From the smallest to the largest.
REACHES = (
    Reach("pointwise", 0, False, False),
    Reach("rows", 0, True, True),
    Reach("rows as they lie", 0, True, True, rows_bare=True),
    Reach("product", 1, False, False, pointwise_below=False),
    Reach("product, prologue", 1, False, False),
    Reach("product, row prologue", 1, False, True),
    Reach("product, row prologue on the left", 1, False, True, left_only=True),
    Reach("two products", 2, True, False, pointwise_below=True),
    Reach("two products, row prologue", 2, True, True),
    Reach("three narrow layers", 3, False, False, layers=True),
    Reach("pointwise, statistics as they lie", 0, False, False, spread_bare=True),
    Reach("product, spread as it lies", 1, False, False, pointwise_below=False, spread_bare=True),
    Reach(
        "product, row prologue on the left, statistics as they lie", 1, False, True, left_only=True, spread_bare=True
    ),
)


@dataclass(frozen=True)
class Region:
    """A class as a term over leaves; `leaves` maps the term's inputs to their classes, in order of first use; `inner` are
    the classes that the term computes on its way, with their terms; `statistics` those leaves that are spread over more
    elements and read as they lie for that."""

    cls: int
    term: Tensor
    leaves: tuple[tuple[Tensor, int], ...]
    reach: str
    inner: tuple[tuple[Tensor, int], ...] = ()
    statistics: tuple[int, ...] = ()

    @property
    def classes(self) -> tuple[int, ...]:
        """What a kernel for it makes."""
        return (self.cls,)

    @property
    def terms(self) -> tuple[Tensor, ...]:
        """The term of each class that it makes."""
        return (self.term,)


@dataclass(frozen=True)
class _Grown:
    """The regions of a class, a way to all of their e-nodes, and what came to be known as shared meanwhile."""

    cls: int
    regions: tuple[Region, ...]
    steps: list[Step]
    shared: frozenset[int]

    def moved(self, to: Mapping[int, int]) -> Iterator[Region]:
        """The same where other classes are in these places."""
        for r in self.regions:
            yield replace(
                r, cls=to[r.cls], leaves=tuple([(t, to[c]) for t, c in r.leaves]), inner=tuple([(t, to[c]) for t, c in r.inner]),
                statistics=tuple([to[c] for c in r.statistics]),
            )  # fmt: skip


@dataclass
class Regions:
    """All regions of a view. `given` are classes that lie in memory from the start."""

    view: EGraphView
    given: frozenset[int]
    pricing: Pricing = field(default_factory=Roofline)
    reaches: tuple[Reach, ...] = REACHES
    beside: dict[int, set[int]] = field(default_factory=dict)  # statistics that some region reads together
    settled: set[int] = field(
        default_factory=set
    )  # classes that large kernels hold (whole.py): one form of each is looked at
    unstarted: set[int] = field(default_factory=set)  # those of them that no region starts from
    unread: set[int] = field(default_factory=set)  # those that no region reads
    shared: set[int] = field(default_factory=set)  # of which they are, and that is read beside them
    seen: set[Tensor] = field(default_factory=set)  # terms of the class that is looked at
    _so_far: list[Region] = field(default_factory=list)
    _tensors: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _insides: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    _below: dict[int, set[int]] = field(default_factory=dict)
    _grown_of: dict[tuple[int, bool], list[_Grown]] = field(default_factory=dict)  # of classes of one colour
    _attend: dict[int, bool] = field(default_factory=dict)
    _admitted: dict[Reach, dict[tuple[int, int, bool, bool], list[int]]] = field(default_factory=dict)

    @cached_property
    def repeats(self) -> Repeats:
        """Which classes are alike, as far as regions are concerned."""
        view, roots = self.view, {*self.view.roots}
        marks = [
            (
                t.dtype,
                t.shape,
                weight,
                original,
                c in self.given,
                c in self.at_once,
                c in self.flat,
                c in self.settled,
                c in roots,
            )
            for c, (t, weight, original) in enumerate(zip(view.types, view.weight.tolist(), view.original.tolist()))
        ]
        return Repeats(view, marks, self.given)

    @cached_property
    def _kids(self) -> list[list[int]]:
        off, kid = self.view.off.tolist(), self.view.kid.tolist()
        return [kid[off[n] : off[n + 1]] for n in range(len(self.view))]

    @cached_property
    def _kinds(self) -> list[str]:
        """Per e-node, what it is for regions."""
        return [_kind(op) for op in self.view.op]

    @cached_property
    def _sizes(self) -> list[int]:
        """Per class, how many elements it has."""
        return [prod(concrete(t.shape)) for t in self.view.types]

    @cached_property
    def _costs(self) -> tuple[list[float], list[float], list[int]]:
        """Price per e-node, tree cost per class, cheapest e-node per class."""
        price = node_prices(self.view, self.pricing)
        best, choice = self.view.cheapest(price)
        return price, best, choice

    @cached_property
    def _node_costs(self) -> list[float]:
        price, best, _ = self._costs
        return [p + sum([best[k] for k in kids]) for p, kids in zip(price, self._kids)]

    @property
    def costs(self) -> list[float]:
        """Tree cost of each class: that of its cheapest e-node and all below."""
        return self._costs[1]

    def _cost(self, node: int) -> float:
        return self._node_costs[node]

    @cached_property
    def uses(self) -> Uses:
        """What values are needed for, as the cheapest e-nodes have it."""
        return Uses(self.view, self._costs[2])

    def inside(self, node: int, products: int) -> set[int]:
        """The classes that a region from an e-node may come to compute, with so many products on a path."""
        key = node, products
        if key not in self._insides:
            choice, found = self._costs[2], dict[int, int]()  # class -> fewest products on a way to it, itself included
            first = self._kinds[node] == "product"
            todo = [(k, int(first)) for k in self._kids[node]]
            while todo and len(found) < 4 * MAX_NODES:
                cls, used = todo.pop()
                if cls in self.given or choice[cls] < 0:
                    continue
                kind = self._kinds[choice[cls]]
                used += kind == "product"
                if kind not in ("opaque", "written") and used <= min(products, found.get(cls, ALL) - 1):
                    found[cls] = used
                    todo += [(k, used) for k in self._kids[choice[cls]]]
            self._insides[key] = set(found)
        return self._insides[key]

    def stored(self, cls: int) -> bool:
        """Whether a class lies in memory from the start, as it is or behind a cast."""
        node = self._costs[2][cls]
        return cls in self.given or (node >= 0 and self.view.op[node] == "cast" and self._kids[node][0] in self.given)

    def _plausible(self, cls: int) -> list[int]:
        """The e-nodes of a class that a good plan may use."""
        limit = SLACK * self._costs[1][cls] + 100
        return [n for n in self._by_class[cls][: 2 * STARTS] if self._cost(n) * self._share(n) <= limit]

    def _share(self, node: int) -> float:
        """What part of its operand a slice is: its neighbours may be needed as well, and then pay for theirs."""
        if self.view.op[node] != "slice":
            return 1.0
        return self.elements(int(self.view.cls[node])) / max(self.elements(self._kids[node][0]), 1)

    @cached_property
    def _by_class(self) -> dict[int, list[int]]:
        """E-nodes per class, cheapest first."""
        found: dict[int, list[int]] = {}
        for node, cls in enumerate(self.view.cls.tolist()):
            found.setdefault(cls, []).append(node)
        return {c: sorted(nodes, key=self._cost) for c, nodes in found.items()}

    @cached_property
    def formulas(self) -> set[int]:
        """Classes that are index formulas: made of numbers and counters alone, computed where they are needed."""
        return self._cheap_from(set())

    @cached_property
    def at_once(self) -> set[int]:
        """Classes that are computed where they are needed, for that costs less than reading them: index formulas, and what is
        cheap to make of them and of single numbers in memory (a mask of the places up to one)."""
        single = {c for c in self.given if self.elements(c) == 1}
        return self._cheap_from(self.formulas | single, DEAR) - single | self.formulas

    @cached_property
    def flat(self) -> set[int]:
        """Classes that pointwise operations and views compute from what is given."""
        return self._cheap_from(set(self.given))

    def _cheap_from(self, known: set[int], dearest: float = inf) -> set[int]:
        """These classes, and all that pointwise operations and views compute from them, from numbers and from counters, with at
        most so many operations an element each."""
        found = set(known)
        grown = True
        while grown:
            grown = False
            for node, op in enumerate(self.view.op):
                cls = int(self.view.cls[node])
                made = op not in ("input", "param", "state", "constant") and self._kinds[node] == "cheap"
                if cls not in found and made and OPS[op].flops <= dearest:
                    if all(k in found for k in self._kids[node]):
                        found.add(cls)
                        grown = True
        return found

    def below(self, cls: int) -> set[int]:
        """The classes that a class is computed from by reductions, pointwise operations and views."""
        if cls not in self._below:
            choice, todo, found = self._costs[2], [cls], set[int]()
            while todo:
                node = choice[todo.pop()]
                if node >= 0 and self._kinds[node] in ("rows", "cheap"):
                    todo += [k for k in self._kids[node] if k not in found and k not in self.given]
                    found.update(self._kids[node])
            self._below[cls] = found
        return self._below[cls]

    def elements(self, cls: int) -> int:
        """How many elements a class has."""
        return self._sizes[cls]

    def slides(self, node: int) -> bool:
        """Whether an e-node reads its operand through windows of more than one element."""
        op = self.view.op[node]
        if op == "conv":
            return any(d != 1 for d in self.view.types[self._kids[node][1]].shape[2:])
        return op in ("max_pool", "avg_pool", "windows")

    def whole_attention(self, node: int) -> bool:
        """Whether an e-node is attention in one operation, or a view of what nothing else makes."""
        found = self._attend.get(node)
        if found is None:
            op = self.view.op
            kids = self._kids[node] if OPS[op[node]].kind == "view" else ()
            found = op[node] in ATTENTION or any(all(op[n] in ATTENTION for n in self._by_class[k]) for k in kids)
            self._attend[node] = found
        return found

    def admitted(self, cls: int, reach: Reach, products: int, below: bool, lean: bool) -> list[int]:
        """The e-nodes that may stand for a class inside a region of a reach, cheapest first: above or `below` a product, of which
        there are so many on the path, and where statistics are read as they lie (`lean`)."""
        known = self._admitted.setdefault(reach, {})
        key = cls, products, below, lean
        if key not in known:
            known[key] = list(self._admissible(cls, reach, products, below, lean))
        return known[key]

    def _admissible(self, cls: int, reach: Reach, products: int, below: bool, lean: bool) -> Iterator[int]:
        nodes, op = self._by_class[cls], self.view.op
        kinds = {"cheap"} if reach.pointwise_below or not below or cls in self.at_once else set()
        rows = reach.rows_below if below and products >= reach.products else reach.rows_above
        if products < ALL and rows and not lean:
            kinds.add("rows")
        if products < reach.products:
            kinds.add("product")
        if reach.layers and concrete(self.view.types[cls].shape)[-1:] > (NARROW,):
            kinds.discard("product")
        fused = reach.products == 2  # attention's two products instead of it, whose scores may be needed as well
        dearest = (DEARER_LEAN if lean else DEARER) * self._costs[1][cls] + 1000
        if fused and any(map(self.whole_attention, nodes)):  # which costs less than its products stored
            dearest = inf
        for n in nodes:
            kind = self._kinds[n]
            if (
                kind not in kinds
                or self._cost(n) > dearest
                or (reach.layers and kind == "product" and op[n] not in ("matmul", "linear"))
                or (fused and self.whole_attention(n))
                or (products >= ALL and OPS[op[n]].flops > DEAR)
                or (below and self.spreads(n))
            ):
                continue
            yield n

    def spreads(self, node: int) -> bool:
        """Whether an e-node reduces over several axes: no statistic of the rows that a product tiles."""
        axes = dict(self.view.attrs[node]).get("axes", ())
        return self.view.op[node] in ("group_norm", "max_pool", "avg_pool") or len(axes) > 1

    def placeholder(self, number: int, kind: Type) -> Tensor:
        """What stands for a class of a type that is read, as the so many-th."""
        key = number, kind
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = placeholder(f"x{number}", kind.shape, kind.dtype)
        return found

    def tensor(self, node: int, args: tuple[Tensor, ...]) -> Tensor:
        """The tensor of an e-node over given operands. Layers that are repeated share their attributes, and their tensors then."""
        view = self.view
        if (leaf := view.tensors.get(node)) is not None:
            return leaf
        key = view.op[node], id(view.attrs[node]), args
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = make(view.op[node], args, dict(view.attrs[node]))
        return found

    def starts(self, cls: int) -> list[int]:
        """The e-nodes of a class that regions start from."""
        nodes = [n for n in self._by_class[cls] if self._kinds[n] != "opaque"]
        if not nodes:
            return []
        limit = SLACK * self._cost(nodes[0]) + 100
        kept, seen = [], set()
        for n in nodes:
            key = self._kinds[n]
            if self._cost(n) <= limit or key not in seen:
                kept.append(n)
                seen.add(key)
        return kept[:STARTS]

    def reachable(self) -> list[int]:
        """Classes that a good plan may need, roots first."""
        order: dict[int, None] = {}
        stack = list(reversed(self.view.roots))
        while stack:
            cls = stack.pop()
            if cls in order or cls in self.given or cls in self.formulas:
                continue
            order[cls] = None
            nodes = [self._costs[2][cls]] if cls in self.settled else self._plausible(cls)
            stack += [k for n in nodes for k in self._kids[n]]
        return list(order)

    @property
    def grown(self) -> Regions:
        """These regions, or the same ones that were asked for of this view before, as by another generator: growing them takes
        longer than all else that is done with repeated layers."""
        kept: dict[object, Regions] = self.view.__dict__.setdefault(GROWN, {})
        key = self.given, self.reaches, *map(frozenset, (self.settled, self.unstarted, self.unread))
        return kept.setdefault(key, self)

    def until(self, enough: Callable[[], bool]) -> Iterator[Region]:
        """Every region, or those that were grown before `enough` said so; each is grown once."""
        for place in count():
            if place == len(self._so_far):
                if enough() or (region := next(self._growing, None)) is None:
                    return
                self._so_far.append(region)
            yield self._so_far[place]

    @cached_property
    def _growing(self) -> Iterator[Region]:
        return iter(self)

    def __iter__(self) -> Iterator[Region]:
        """Every region, each term once; statistics that regions read are made by regions as well."""
        order = dict.fromkeys(self.reachable())
        todo = [c for c in order if c not in self.unstarted]
        while todo:
            statistics: dict[int, None] = {}
            for region in (r for cls in todo for r in self._of(cls)):
                if not self.unread.isdisjoint(c for _, c in region.leaves):
                    continue
                if region.statistics:
                    statistics |= dict.fromkeys(region.statistics)
                    for c in region.statistics:
                        self.beside.setdefault(c, set()).update(region.statistics)
                yield region
            todo = [c for c in statistics if c not in order]
            order |= dict.fromkeys(todo)

    def _of(self, cls: int) -> Iterator[Region]:
        """The regions of a class: those of one that is alike, moved there, or grown."""
        key = self.repeats.colours[cls], cls in self.beside and cls in self.shared
        alike = self._grown_of.setdefault(key, [])
        for known in alike:
            to = self.repeats.image(known.steps, known.cls, cls)
            if to is not None and known.shared <= to.keys():
                self.shared |= {to[c] for c in known.shared}
                yield from known.moved(to)
                return
        before, nodes = set(self.shared), dict[int, None]()
        found: dict[Tensor, Region] = {}
        self.seen = set[Tensor]()
        for node in self.starts(cls):
            for reach in self._of_use:
                for growth, region in self._grown(cls, node, reach):
                    if region is not None and region.term not in found:
                        self.seen.add(region.term)
                        found[region.term] = region
                        nodes |= dict.fromkeys(growth.inlined)
        yield from found.values()
        alike.append(_Grown(cls, (*found.values(),), self.repeats.outline(nodes), frozenset(self.shared - before)))

    @cached_property
    def _of_use(self) -> list[Reach]:
        """The reaches that find something here: those of products where there are any."""
        ops = {*self.view.op}
        return [r for r in self.reaches if not r.products or ops & PRODUCTS]

    def _grown(self, cls: int, node: int, reach: Reach) -> Iterator[tuple[_Growth, Region | None]]:
        """Regions of one reach, the largest first: up to as many values as may be that are needed beside, and up to fewer."""
        whole = _Growth(self, cls, reach)
        found = whole.grown(node)
        if whole.met <= BESIDE:
            yield whole, found
        for room in reversed(range(min(whole.met, BESIDE + 1))):
            less = _Growth(self, cls, reach, room)
            yield less, less.grown(node)


def _kind(op: str) -> str:
    if op in ROWS:
        return "rows"
    if op in PRODUCTS:
        return "product"
    if op == "scatter_elements":  # a region may end with it: values go to places of what is in memory
        return "written"
    return "cheap" if op in INDEXED or OPS[op].pointwise else "opaque"


class _Large(Exception):
    """The region is larger than a kernel should be."""


@dataclass(eq=False)
class _Part:
    """An e-node inside a region, over other parts and leaf classes."""

    node: int
    parts: list[_Part | int]


@dataclass
class _Growth:
    regions: Regions
    cls: int
    reach: Reach
    room: int = ALL  # how many values that are needed beside may be computed on a path
    leaves: dict[int, Tensor | None] = field(default_factory=dict)
    spread: dict[int, None] = field(default_factory=dict)  # leaves that are spread over more elements
    done: dict[tuple[int, int, int, bool, bool], _Part | int] = field(default_factory=dict)
    made: dict[_Part, Tensor] = field(default_factory=dict)
    root: _Part | None = None
    nodes: int = 0
    used: int = 0  # most products on a path
    met: int = 0  # most values on a path that are needed beside
    open: set[tuple[int, int, int, bool, bool]] = field(default_factory=set)  # what is being looked at, or was
    inside: set[int] = field(default_factory=set)

    def grown(self, node: int) -> Region | None:
        """The region that starts with an e-node; None if it is too large, trivial or not of this reach."""
        self.inside = self.regions.inside(node, self.reach.products) | {self.cls}
        try:
            root = self.root = self._node(node, 0, 0, False, self.reach.spread_bare)
        except _Large:
            return None
        if self.cls in self.leaves or not root.parts or self.used != self.reach.products:
            return None
        if self.reach.spread_bare and not self.spread:  # the same as without
            return None
        term = self._term(root)
        if term in self.regions.seen:
            return None
        order = {leaf: cls for cls, leaf in self.leaves.items()}
        leaves = tuple((t, order[t]) for t in topological([term]) if t in order)
        inner = {c: self._term(part) for (c, *_), part in self.done.items() if not isinstance(part, int)}
        return Region(
            self.cls, term, leaves, self.reach.name, tuple((t, c) for c, t in inner.items()), tuple(self.spread)
        )

    @property
    def inlined(self) -> Iterator[int]:
        """The e-nodes of the region that was grown, from above to below."""
        todo, seen = [self.root], set[_Part]()
        while todo:
            part = todo.pop()
            if part is not None and part not in seen:
                seen.add(part)
                yield part.node
                todo += [p for p in reversed(part.parts) if not isinstance(p, int)]

    def _term(self, part: _Part | int) -> Tensor:
        """The tensor of a part. Most regions turn out too large before one is made."""
        view = self.regions.view
        if isinstance(part, int):
            found = self.leaves[part]
            if found is None:
                found = self.leaves[part] = self.regions.placeholder(list(self.leaves).index(part), view.types[part])
            return found
        if part not in self.made:
            self.made[part] = self.regions.tensor(part.node, tuple([self._term(p) for p in part.parts]))
        return self.made[part]

    def _node(self, node: int, beside: int, products: int, below: bool, lean: bool) -> _Part:
        """`lean`: what is spread over the node's elements is read as it lies, and so are rows."""
        view = self.regions.view
        op = view.op[node]
        self.nodes += int(view.cls[node]) not in self.regions.formulas  # positions are no values
        if self.nodes > MAX_NODES:
            raise _Large
        kind = self.regions._kinds[node]
        if kind == "product":
            products, below = products + 1, True
            self.used = max(self.used, products)
        if self.regions.slides(node):  # each value below is needed many times: nothing dear is computed there
            products, below = ALL, True
        product, bare_spread = kind == "product", self.reach.spread_bare
        others = self.reach.left_only and product and not bare_spread
        first = self.reach.rows_bare and op in AGAIN
        size = self.regions.elements(int(view.cls[node])) if lean and OPS[op].pointwise else 0
        kids, r = self.regions._kids[node], self.regions
        spread = [k for k in kids if size and k not in r.flat and r.elements(k) < size]
        self.spread |= dict.fromkeys(spread)
        parts = []
        for i, k in enumerate(kids):
            thin = bool(i) or not self.reach.rows_below if product and bare_spread else lean
            bare = k in spread or (others if i else first or kind == "written")
            parts.append(self._class(k, beside, products, below, bare, thin))
        return _Part(node, parts)

    def _class(self, cls: int, beside: int, products: int, below: bool, bare: bool, lean: bool) -> _Part | int:
        if bare and cls not in self.regions.at_once:
            return self._leaf(cls)
        key = (cls, beside, products, below, lean)
        found = self.done.get(key)
        if found is None:
            if key in self.open:  # made of itself by what costs nothing
                raise _Large
            self.open.add(key)
            node = self._inlined(cls, products, below, lean)
            if node is not None and self._needed_beside(cls):
                beside += 1
                self.met = max(self.met, beside)
                node = node if beside <= self.room else None
            found = self.done[key] = (
                self._leaf(cls) if node is None else self._node(node, beside, products, below, lean)
            )
        return found

    def _inlined(self, cls: int, products: int, below: bool, lean: bool) -> int | None:
        """The e-node that stands for a class inside the region, None where the class is read from memory."""
        r = self.regions
        if cls == self.cls or (cls in r.given and cls not in r.at_once):
            return None
        admitted = r.admitted(cls, self.reach, products, below, lean)
        return next((n for n in admitted if self.cls not in r._kids[n]), None)

    def _needed_beside(self, cls: int) -> bool:
        """Whether something that this region cannot compute reads a class as well."""
        r = self.regions
        if r.stored(cls) or cls in r.at_once:
            return False
        shows = OPS[r.view.op[r._costs[2][cls]]].kind == "view"
        if r.view.original[cls] and not shows and any(cls in r.below(k) for k in self.spread):
            r.shared.add(cls)
            return True
        if self.cls in r.beside and cls in r.shared:
            return True
        return r.uses.count.get(cls, 0) >= 2 and not r.uses.readers[cls] <= self.inside

    def _leaf(self, cls: int) -> int:
        if cls not in self.leaves:
            if len(self.leaves) >= MAX_LEAVES:
                raise _Large
            self.leaves[cls] = None
        return cls
