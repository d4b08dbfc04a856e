"""The read-only view of an e-graph: arrays of e-nodes and e-classes, cheapest terms, and gluing of block views."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from ...errors import ExtractionError
from ..ir.blocks import BlockInstance, Blocks, weight_only
from ..ir.graph import LEAVES, Graph, Tensor, make
from ..ir.ops import Type

Ints = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
INFINITY = float("inf")


@dataclass(frozen=True)
class SaturationReport:
    """Report of a saturation.

    `stopped` is one of: saturated, iterations, nodes, seconds, bytes, interrupted, worker-died. `sizes`: live e-nodes
    after each iteration (first entry: the original block). `matches` and `rule_seconds`: totals per rule (rules that
    cannot occur are omitted). `kept`: iteration whose view was kept. `extractable`: whether every root of the last
    round was extractable (if not, an earlier round was kept).
    """

    stopped: str = "saturated"
    iterations: int = 0
    sizes: tuple[int, ...] = ()
    matches: Mapping[str, int] = field(default_factory=dict)
    rule_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    kept: int = 0
    extractable: bool = True
    message: str = ""  # error message of a worker that died

    def rule_table(self, count: int = 15) -> str:
        """Table of the `count` slowest rules with their matches, and the total time of rules without matches."""
        return rule_table({n: (m, self.rule_seconds.get(n, 0.0)) for n, m in self.matches.items()}, count)

    def __str__(self) -> str:
        return (
            f"{self.stopped} after {self.iterations} iterations in {self.seconds:.2f} s, "
            f"{self.sizes[-1] if self.sizes else 0} e-nodes, {sum(self.matches.values())} matches"
        )


SHOWN_S = 5e-5  # seconds from which a rule without matches is shown in the table


def rule_table(rules: Mapping[str, tuple[int, float]], count: int = 15) -> str:
    """Table of rules (matches, seconds): the slowest ones, then the total and the share of rules without matches."""
    ranked = sorted(rules.items(), key=lambda r: (-r[1][1], r[0]))
    lines = [f"{1e3 * s:>9.1f} ms  {m:>7} matches  {name}" for name, (m, s) in ranked[:count] if m or s >= SHOWN_S]
    idle = [s for m, s in rules.values() if not m]
    total = sum(s for _, s in rules.values())
    lines.append(
        f"{1e3 * total:>9.1f} ms  {sum(m for m, _ in rules.values()):>7} matches  {len(rules)} rules, "
        f"{len(idle)} of which matched nothing in {1e3 * sum(idle):.1f} ms"
    )
    return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class EGraphView:
    """E-nodes and e-classes as arrays. E-node i is `op[i]` with `attrs[i]` over the e-classes `kid[off[i]:off[i+1]]`.

    `cls` is the e-class per e-node. `types` and `weight` are per e-class (`weight`: depends on params and constants
    only). `tensors` maps leaf e-nodes to their leaf, `classes` maps every node of the original graph to its e-class.
    """

    op: list[str]
    attrs: list[tuple[tuple[str, Any], ...]]
    cls: Ints
    off: Ints
    kid: Ints
    types: list[Type]
    weight: Bools
    roots: tuple[int, ...]
    report: SaturationReport
    tensors: Mapping[int, Tensor]
    classes: Mapping[Tensor, int]
    # glued views only: e-classes of values inside blocks, which `classes` does not contain
    stamped: Bools | None = None
    age: Ints | None = None  # per e-class the round in which it appeared, 0 for values of the graph (None: unknown)
    own: Bools | None = None  # per e-node, whether the original graph contains it (None: unknown)
    # glued views only: (block, e-class of each e-class of the block's view, -1 for none) of each instance
    instances: tuple[tuple[int, Ints], ...] = ()

    @cached_property
    def original(self) -> Bools:
        """Per e-class, whether it is a value of the original graph."""
        found = np.zeros(self.n_classes, np.bool_) if self.stamped is None else self.stamped.copy()
        found[list(self.classes.values())] = True
        return found

    @property
    def n_classes(self) -> int:
        """Number of e-classes."""
        return len(self.types)

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def _by_class(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.cls, kind="stable").astype(np.int32)
        start = np.searchsorted(self.cls[order], np.arange(self.n_classes + 1)).astype(np.int32)
        return order, start

    def nodes_of(self, cls: int) -> Ints:
        """The e-nodes of an e-class, in ascending order."""
        order, start = self._by_class
        return order[start[cls] : start[cls + 1]]

    def kids(self, node: int) -> Ints:
        """The operand e-classes of an e-node."""
        return self.kid[self.off[node] : self.off[node + 1]]

    def what(self, node: int) -> object:
        """Label of an e-node without operands: its leaf tensor, or its op and attributes."""
        return self.tensors.get(node, (self.op[node], self.attrs[node]))

    def only(self, nodes: Bools) -> EGraphView:
        """The view with a subset of its e-nodes (boolean mask) and all e-classes."""
        kept = np.flatnonzero(nodes).tolist()
        width = np.diff(self.off)
        return replace(
            self, op=[self.op[i] for i in kept], attrs=[self.attrs[i] for i in kept], cls=self.cls[nodes],
            off=np.concatenate([[0], np.cumsum(width[nodes])]).astype(np.int32), kid=self.kid[np.repeat(nodes, width)],
            tensors={n: self.tensors[i] for n, i in enumerate(kept) if i in self.tensors},
            own=None if self.own is None else self.own[nodes],
        )  # fmt: skip

    def cheapest(self, price: Sequence[float]) -> tuple[list[float], list[int]]:
        """Least tree cost of each e-class, and the e-node that attains it (-1 if the e-class has no finite term).

        Knuth's generalization of Dijkstra's algorithm. Ties go to the lower e-class, then to the lower e-node.
        """
        return _cheapest(self, price)

    def extractable(self) -> bool:
        """Whether every root has a finite term."""
        choice = self.cheapest([1.0] * len(self))[1]
        return all(choice[r] >= 0 for r in self.roots)

    def term(self, choice: Sequence[int] | Mapping[int, int], cls: int) -> Tensor:
        """The term of an e-class under a choice of one e-node per e-class.

        ExtractionError on a cycle or a missing choice.
        """
        built: dict[int, Tensor] = {}
        return _build(self, choice, cls, built)

    def terms(self, choice: Sequence[int] | Mapping[int, int], classes: Sequence[int]) -> list[Tensor]:
        """`term` for several e-classes; shared subterms are built once."""
        built: dict[int, Tensor] = {}
        return [_build(self, choice, c, built) for c in classes]

    def node_tensor(self, node: int, operands: Sequence[Tensor]) -> Tensor:
        """The tensor of an e-node over given operands."""
        leaf = self.tensors.get(node)
        return leaf if leaf is not None else make(self.op[node], operands, dict(self.attrs[node]))

    def to_json(self, cost: Sequence[float] | None = None) -> dict[str, Any]:
        """The egraph-serialize format: nodes (op, children's ids, eclass, cost) and e-classes with types."""
        names = [f"n{i}" for i in range(len(self))]
        first = [int(self.nodes_of(c)[0]) if len(self.nodes_of(c)) else -1 for c in range(self.n_classes)]
        nodes = {
            names[i]: {
                "op": _label(self, i),
                "children": [names[first[k]] for k in self.kids(i).tolist()],
                "eclass": f"c{self.cls[i]}",
                "cost": 1.0 if cost is None else float(cost[i]),
            }
            for i in range(len(self))
        }
        data = {f"c{c}": {"type": str(t)} for c, t in enumerate(self.types)}
        return {"nodes": nodes, "root_eclasses": [f"c{r}" for r in self.roots], "class_data": data}

    def dumps(self, cost: Sequence[float] | None = None) -> str:
        """The view in the egraph-serialize format, as JSON text."""
        return json.dumps(self.to_json(cost), indent=1)

    def html(self, page: int = 0, per_page: int = 50) -> str:
        """HTML table of e-classes with their e-nodes, `per_page` e-classes per page; roots first."""
        order = [*dict.fromkeys([*self.roots, *range(self.n_classes)])]
        pages = max(1, -(-len(order) // per_page))
        shown = order[page * per_page : (page + 1) * per_page]
        rows = "".join(
            f"<tr><td>c{c}{' root' if c in self.roots else ''}</td><td>{escape(str(self.types[c]))}</td>"
            f"<td>{'<br>'.join(escape(_spelled(self, i)) for i in self.nodes_of(c).tolist())}</td></tr>"
            for c in shown
        )
        head = (
            f"{len(self)} e-nodes in {self.n_classes} classes, {escape(str(self.report))}; page {page + 1} of {pages}"
        )
        return f"<p>{head}</p><table><tr><th>class</th><th>type</th><th>e-nodes</th></tr>{rows}</table>"

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"EGraphView({len(self)} e-nodes, {self.n_classes} classes, {self.report})"


def _label(view: EGraphView, node: int) -> str:
    attrs = ", ".join(f"{k}={v}" for k, v in view.attrs[node] if k != "digest")
    return f"{view.op[node]}[{attrs}]" if attrs else view.op[node]


def _spelled(view: EGraphView, node: int) -> str:
    return f"{_label(view, node)}({', '.join(f'c{k}' for k in view.kids(node).tolist())})"


def _parents(view: EGraphView) -> tuple[list[int], list[int]]:
    """CSR arrays (e-nodes, offsets): the e-nodes that use each e-class, once per use."""
    owner = np.repeat(np.arange(len(view), dtype=np.int32), np.diff(view.off))
    order = np.argsort(view.kid, kind="stable")
    start = np.searchsorted(view.kid[order], np.arange(view.n_classes + 1))
    return owner[order].tolist(), start.tolist()


def _cheapest(view: EGraphView, price: Sequence[float]) -> tuple[list[float], list[int]]:
    """See `EGraphView.cheapest`."""
    users, start = _parents(view)
    cls, off, kid = view.cls.tolist(), view.off.tolist(), view.kid.tolist()
    left = np.diff(view.off).tolist()
    best, choice = [INFINITY] * view.n_classes, [-1] * view.n_classes
    done = bytearray(view.n_classes)
    heap: list[tuple[float, int, int]] = [(price[i], cls[i], i) for i, n in enumerate(left) if not n]
    heapq.heapify(heap)
    while heap:
        value, c, node = heapq.heappop(heap)
        if done[c]:
            continue
        done[c], best[c], choice[c] = 1, value, node
        for user in users[start[c] : start[c + 1]]:
            left[user] -= 1
            if not left[user] and not done[cls[user]]:
                total = price[user] + sum(best[k] for k in kid[off[user] : off[user + 1]])
                heapq.heappush(heap, (total, cls[user], user))
    return best, choice


def _build(view: EGraphView, choice: Sequence[int] | Mapping[int, int], cls: int, built: dict[int, Tensor]) -> Tensor:
    """Build the term of an e-class iteratively; `built` holds the terms built so far."""
    stack, open_classes = [cls], set[int]()
    while stack:
        c = stack[-1]
        if c in built:
            stack.pop()
            continue
        node = choice[c] if not isinstance(choice, Mapping) else choice.get(c, -1)
        if node < 0:
            raise ExtractionError(f"class {c} has no chosen e-node")
        kids = view.kids(node).tolist()
        missing = [k for k in kids if k not in built]
        if missing:
            if c in open_classes:
                raise ExtractionError(f"the chosen e-nodes form a cycle through class {c}")
            open_classes.add(c)
            stack.extend(reversed(missing))
            continue
        built[c] = view.node_tensor(node, [built[k] for k in kids])
        stack.pop()
    return built[cls]


def view_of(graph: Graph, report: SaturationReport | None = None) -> EGraphView:
    """A graph as an unsaturated view: one e-node per e-class, in topological order."""
    nodes = graph.nodes()
    number = {n: i for i, n in enumerate(nodes)}
    fixed = weight_only(nodes)
    kids = [[number[a] for a in n.args] for n in nodes]
    return EGraphView(
        op=[n.op for n in nodes],
        attrs=[n.attrs for n in nodes],
        cls=np.arange(len(nodes), dtype=np.int32),
        off=np.cumsum([0, *map(len, kids)]).astype(np.int32),
        kid=np.array([k for row in kids for k in row], np.int32),
        types=[n.type for n in nodes],
        weight=np.array([n in fixed for n in nodes], np.bool_),
        roots=tuple(number[r] for r in graph.roots),
        report=report or SaturationReport(sizes=(len(nodes),)),
        tensors={i: n for i, n in enumerate(nodes) if n.op in LEAVES},
        classes=number,
        age=np.zeros(len(nodes), np.int32),
        own=np.ones(len(nodes), np.bool_),
    )


# ---------------------------------------------------------------- one view of the whole model
_SEAMS = (("input", "in", "inputs"), ("param", "w", "params"), ("state", "s", "states"))


class _Glue:
    """Union-find over the e-classes of all block instances and of the model's own values."""

    def __init__(self, blocks: Blocks, views: Sequence[EGraphView]) -> None:
        self.blocks, self.views = blocks, views
        self.size = 0
        self.up: dict[int, int] = {}
        self.of: dict[Tensor, int] = {}  # e-class of the model's values
        self.types: list[Type] = []
        self.weights: list[Bools] = []
        self.originals: list[Bools] = []
        self.ages: list[Ints] = []
        self.ops: list[str] = []
        self.attrs: list[tuple[tuple[str, Any], ...]] = []
        self.cls: list[Ints] = []
        self.width: list[Ints] = []
        self.kid: list[Ints] = []
        self.own: list[Bools] = []
        self.tensors: dict[int, Tensor] = {}
        self.placed: list[tuple[int, int, int]] = []  # (block, first e-class, number of e-classes) of each instance
        self.templates = [self._template(v) for v in views]

    def find(self, c: int) -> int:
        """The representative of an e-class."""
        root = c
        while root in self.up:
            root = self.up[root]
        while c != root:
            self.up[c], c = root, self.up[c]
        return root

    def join(self, a: int, b: int) -> None:
        """Merge two e-classes; the lower number becomes the representative."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.up[max(a, b)] = min(a, b)

    def name(self, value: Tensor, c: int) -> None:
        """Record that an e-class holds a value of the model."""
        known = self.of.setdefault(value, c)
        self.join(known, c)

    @staticmethod
    def _template(view: EGraphView) -> _Template:
        """The part of a block's view to copy per instance: all except leaves that stand for values of the model."""
        seams = {v.attr("name"): view.classes[v] for v in view.tensors.values() if v.op in LEAVES[:3]}
        own = {i: v for i, v in view.tensors.items() if v.op not in LEAVES[:3]}
        keep = np.array([i for i in range(len(view)) if i not in view.tensors or i in own], np.int64)
        place = {int(i): k for k, i in enumerate(keep)}
        width = np.diff(view.off)
        return _Template(
            ops=[view.op[i] for i in keep.tolist()],
            attrs=[view.attrs[i] for i in keep.tolist()],
            cls=view.cls[keep],
            width=width[keep],
            kid=view.kid[np.repeat(np.isin(np.arange(len(view)), keep), width)],
            own=view.own[keep] if view.own is not None else np.zeros(len(keep), np.bool_),
            seams=seams,
            constants={place[i]: v for i, v in own.items()},
        )

    def stamp(self, instance: BlockInstance) -> None:
        """Add one instance: a copy of its block's template, merged with the model's values."""
        view, template = self.views[instance.block], self.templates[instance.block]
        first, base = self.size, len(self.ops)
        self.placed.append((instance.block, first, view.n_classes))
        self.size += view.n_classes
        self.types += view.types
        self.weights.append(view.weight)
        self.originals.append(view.original)
        self.ages.append(view.age if view.age is not None else np.zeros(view.n_classes, np.int32))
        self.ops += template.ops
        self.attrs += template.attrs
        self.cls.append(template.cls + first)
        self.width.append(template.width)
        self.kid.append(template.kid + first)
        self.own.append(template.own)
        for place, constant in template.constants.items():
            self.tensors[base + place] = constant
            self.name(constant, first + int(template.cls[place]))
        for _, prefix, values in _SEAMS:
            for k, value in enumerate(getattr(instance, values)):
                if f"{prefix}{k}" in template.seams:
                    self.name(value, first + template.seams[f"{prefix}{k}"])
        for value, root in zip(instance.outputs, view.roots):
            self.name(value, first + root)

    def fill(self) -> None:
        """Add the model's own e-nodes for values that no block computes: leaves and shared weight-only expressions."""
        computed = {v for i in self.blocks.instances for v in i.outputs}
        computed |= set(self.tensors.values())
        ends = dict.fromkeys([*(v for v in self.of if v not in computed), *self.blocks.graph.roots])
        fixed = weight_only(self.blocks.graph.nodes())
        stack, order = [v for v in reversed(ends) if v not in computed], dict[Tensor, None]()
        while stack:
            value = stack.pop()
            if value in computed or value in order:
                continue
            order[value] = None
            stack += reversed(value.args)
        for value in order:
            if value not in self.of:
                self.of[value] = self.size
                self.size += 1
                self.types.append(value.type)
                self.weights.append(np.array([value in fixed], np.bool_))
                self.originals.append(np.ones(1, np.bool_))
                self.ages.append(np.zeros(1, np.int32))
        for value in order:
            if value.op in LEAVES:
                self.tensors[len(self.ops)] = value
            self.ops.append(value.op)
            self.attrs.append(value.attrs)
            self.cls.append(np.array([self.of[value]], np.int32))
            self.width.append(np.array([len(value.args)], np.int32))
            self.kid.append(np.array([self.of[a] for a in value.args], np.int32))
            self.own.append(np.ones(1, np.bool_))

    def view(self) -> EGraphView:
        """The glued view, e-classes renumbered."""
        old = np.arange(self.size)
        for c in list(self.up):
            old[c] = self.find(c)
        rows = np.concatenate([np.zeros(0, np.int32), *self.cls])
        kids = np.concatenate([np.zeros(0, np.int32), *self.kid])
        used = np.unique(old[np.concatenate([rows, kids, [self.of[r] for r in self.blocks.graph.roots]])])
        number = np.full(self.size, -1, np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        number = number[old]

        def flagged(flags: Sequence[Bools]) -> Bools:
            """A merged e-class has a flag if any of its parts has the flag."""
            found = np.zeros(len(used), np.bool_)
            found[number[(number >= 0) & np.concatenate([np.zeros(0, np.bool_), *flags])]] = True
            return found

        ages = np.concatenate([np.zeros(0, np.int32), *self.ages])
        age = np.full(len(used), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(age, number[number >= 0], ages[number >= 0])
        return EGraphView(
            op=self.ops,
            attrs=self.attrs,
            cls=number[rows],
            off=np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int32), *self.width]))]).astype(np.int32),
            kid=number[kids],
            types=[self.types[c] for c in used.tolist()],
            weight=flagged(self.weights),
            roots=tuple(int(number[self.of[r]]) for r in self.blocks.graph.roots),
            report=merged(self.views),
            tensors=self.tensors,
            classes={v: int(number[c]) for v, c in self.of.items() if number[c] >= 0},
            stamped=flagged(self.originals),
            age=age,
            own=np.concatenate([np.zeros(0, np.bool_), *self.own]),
            instances=tuple((block, number[first : first + size]) for block, first, size in self.placed),
        )


@dataclass(frozen=True)
class _Template:
    """The part of a block's view that every instance copies; `seams` maps leaf names to e-classes."""

    ops: list[str]
    attrs: list[tuple[tuple[str, Any], ...]]
    cls: Ints
    width: Ints
    kid: Ints
    own: Bools
    seams: dict[str, int]
    constants: dict[int, Tensor]


#: Reasons to stop, worst first.
_REASONS = ("interrupted", "worker-died", "bytes", "seconds", "nodes", "iterations", "saturated")


def merged(views: Sequence[EGraphView]) -> SaturationReport:
    """Report of several blocks together: sums, worst reason for stopping, all rules."""
    reports = [v.report for v in views]
    matches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for r in reports:
        for name, count in r.matches.items():
            matches[name] = matches.get(name, 0) + count
        for name, t in r.rule_seconds.items():
            seconds[name] = seconds.get(name, 0.0) + t
    longest = max((len(r.sizes) for r in reports), default=0)
    return SaturationReport(
        stopped=min((r.stopped for r in reports), key=_REASONS.index, default="saturated"),
        iterations=max((r.iterations for r in reports), default=0),
        sizes=tuple(sum(r.sizes[min(i, len(r.sizes) - 1)] for r in reports if r.sizes) for i in range(longest)),
        matches=matches,
        rule_seconds=seconds,
        seconds=sum(r.seconds for r in reports),
        kept=max((r.kept for r in reports), default=0),
        extractable=all(r.extractable for r in reports),
        message="; ".join(dict.fromkeys(r.message for r in reports if r.message)),
    )


def glue(blocks: Blocks, views: Sequence[EGraphView]) -> EGraphView:
    """The view of the whole model, joined from views of its blocks.

    Each occurrence of a block gets a copy of the block's view.

    Shared values are merged. Linear in the size of the result. The roots are those of `blocks.graph`. Values that no
    block computes (leaves, weight-only expressions that several blocks share) get the model's own e-nodes. Congruence
    closure is not applied; see `union.congruent`.
    """
    work = _Glue(blocks, views)
    for instance in blocks.instances:
        work.stamp(instance)
    work.fill()
    return work.view()


__all__ = ["EGraphView", "SaturationReport", "glue", "merged", "rule_table", "view_of"]
