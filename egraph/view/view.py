"""Defines the read-only view of an e-graph: arrays of e-nodes and e-classes, and cheapest terms."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import count
from typing import Any

import numpy as np

from ...errors import ExtractionError
from ..blocks.block_order import weight_only
from ..composites.composite import expand
from ..ir.graph import Graph
from ..ir.tensor import LEAVES, Tensor, make, topological
from ..ops.ops import Type
from .saturation_report import SaturationReport

Ints = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
INFINITY = float("inf")


@dataclass(frozen=True, eq=False)
class EGraphView:
    """E-nodes and e-classes as arrays. E-node i is `op[i]` with `attrs[i]` over the e-classes `child[off[i]:off[i+1]]`.

    `cls` is the e-class per e-node. `types` and `weight` are per e-class (`weight`: depends on params and constants
    only). `report`: how saturation went. `tensors` maps leaf e-nodes to their leaf, `classes` maps every node of the
    original graph to its e-class (in a joined view: those outside of blocks). `roots`: e-classes of the outputs, then
    of the state updates.

    Invariants: `off` ascends from 0 to `len(child)`. All e-nodes of a class have its type and compute equal values.
    E-nodes are in no particular order, and a class may have none (`only` drops e-nodes and keeps the numbers of
    classes). No invariant: classes may be cyclic (`extractable` checks the roots), and only the view of one saturation
    has each e-node (op, attributes, operand classes) once; joined blocks and lifted sizes may repeat some in other
    classes.
    """

    op: list[str]
    attrs: list[tuple[tuple[str, Any], ...]]
    cls: Ints
    off: Ints
    child: Ints
    types: list[Type]
    weight: Bools
    roots: tuple[int, ...]
    report: SaturationReport
    tensors: Mapping[int, Tensor]
    classes: Mapping[Tensor, int]
    # joined views only: per e-class, whether it is a value of the original graph inside a block
    block_classes: Bools | None = None
    age: Ints | None = None  # per e-class the round in which it appeared, 0 for values of the graph (None: unknown)
    original_nodes: Bools | None = None  # per e-node, whether the original graph contains it (None: unknown)
    # joined views only: (block, e-class of each e-class of the block's view, -1 for none) of each instance
    instances: tuple[tuple[int, Ints], ...] = ()

    @cached_property
    def original_classes(self) -> Bools:
        """Per e-class, whether it is a value of the original graph."""
        found = np.zeros(self.n_classes, np.bool_) if self.block_classes is None else self.block_classes.copy()
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

    def children(self, node: int) -> Ints:
        """The operand e-classes of an e-node."""
        return self.child[self.off[node] : self.off[node + 1]]

    def label(self, node: int) -> object:
        """Label of an e-node without its operands: the leaf tensor, or (op, attributes)."""
        return self.tensors.get(node, (self.op[node], self.attrs[node]))

    def only(self, nodes: Bools) -> EGraphView:
        """The e-graph with a subset of its e-nodes (boolean mask) and all e-classes."""
        kept = np.flatnonzero(nodes).tolist()
        width = np.diff(self.off)
        return replace(
            self, op=[self.op[i] for i in kept], attrs=[self.attrs[i] for i in kept], cls=self.cls[nodes],
            off=np.concatenate([[0], np.cumsum(width[nodes])]).astype(np.int32), child=self.child[np.repeat(nodes, width)],
            tensors={n: self.tensors[i] for n, i in enumerate(kept) if i in self.tensors},
            original_nodes=None if self.original_nodes is None else self.original_nodes[nodes],
        )  # fmt: skip

    def cheapest(self, price: Sequence[float]) -> tuple[list[float], list[int]]:
        """(least tree cost of each e-class, e-node that attains it; -1 if the e-class has no finite term).

        `price`: of each e-node. Knuth's generalization of Dijkstra's algorithm. Ties go to the lower e-class, then to
        the lower e-node.
        """
        return _cheapest(self, price)

    def extractable(self) -> bool:
        """Whether every root has a finite term, that is, one without a cycle."""
        choice = self.cheapest([1.0] * len(self))[1]
        return all(choice[r] >= 0 for r in self.roots)

    def term(self, choice: Sequence[int] | Mapping[int, int], cls: int) -> Tensor:
        """The term of an e-class under a choice of one e-node per e-class.

        Raises ExtractionError on a cycle or a missing choice.
        """
        built: dict[int, Tensor] = {}
        return _build(self, choice, cls, built)

    def terms(self, choice: Sequence[int] | Mapping[int, int], classes: Sequence[int]) -> list[Tensor]:
        """The terms of several e-classes, each as `term` gives it, under one choice (the chosen e-node per e-class).
        Shared subterms are built once."""
        built: dict[int, Tensor] = {}
        return [_build(self, choice, c, built) for c in classes]

    def node_tensor(self, node: int, operands: Sequence[Tensor]) -> Tensor:
        """The tensor of an e-node over given operands."""
        leaf = self.tensors.get(node)
        return leaf if leaf is not None else make(self.op[node], operands, dict(self.attrs[node]))

    def to_json(self, cost: Sequence[float] | None = None) -> dict[str, Any]:
        """The e-graph as JSON values of the egraph-serialize format: nodes (op, children's ids, eclass, cost) and
        e-classes with types. `cost`: of each e-node; None: 1 each."""
        names = [f"n{i}" for i in range(len(self))]
        first = [int(self.nodes_of(c)[0]) if len(self.nodes_of(c)) else -1 for c in range(self.n_classes)]
        nodes = {
            names[i]: {
                "op": _label(self, i),
                "children": [names[first[k]] for k in self.children(i).tolist()],
                "eclass": f"c{self.cls[i]}",
                "cost": 1.0 if cost is None else float(cost[i]),
            }
            for i in range(len(self))
        }
        data = {f"c{c}": {"type": str(t)} for c, t in enumerate(self.types)}
        return {"nodes": nodes, "root_eclasses": [f"c{r}" for r in self.roots], "class_data": data}

    def dumps(self, cost: Sequence[float] | None = None) -> str:
        """The e-graph in the egraph-serialize format, as JSON text."""
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
    return f"{_label(view, node)}({', '.join(f'c{k}' for k in view.children(node).tolist())})"


def _parents(view: EGraphView) -> tuple[list[int], list[int]]:
    """CSR arrays (e-nodes, offsets): the e-nodes that use each e-class, once per use."""
    owner = np.repeat(np.arange(len(view), dtype=np.int32), np.diff(view.off))
    order = np.argsort(view.child, kind="stable")
    start = np.searchsorted(view.child[order], np.arange(view.n_classes + 1))
    return owner[order].tolist(), start.tolist()


def _cheapest(view: EGraphView, price: Sequence[float]) -> tuple[list[float], list[int]]:
    """(price of the cheapest term of each e-class, its e-node), infinite and -1 without a finite term
    (`EGraphView.cheapest`)."""
    users, start = _parents(view)
    cls, off, child = view.cls.tolist(), view.off.tolist(), view.child.tolist()
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
                total = price[user] + sum(best[k] for k in child[off[user] : off[user + 1]])
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
        children = view.children(node).tolist()
        missing = [k for k in children if k not in built]
        if missing:
            if c in open_classes:
                raise ExtractionError(f"the chosen e-nodes form a cycle through class {c}")
            open_classes.add(c)
            stack.extend(reversed(missing))
            continue
        built[c] = view.node_tensor(node, [built[k] for k in children])
        stack.pop()
    return built[cls]


def _add(node: Tensor, number: dict[Tensor, int], unused: Iterator[int]) -> None:
    """Number the e-class of a node whose operands are numbered, and the classes of its decompositions if no library may
    have a kernel of it."""
    if node in number:
        return
    forms = [node]
    while forms[-1].entry.kernels_may_lack:
        forms.append(expand(forms[-1]))
        for inner in topological(forms[-1:]):
            if inner is not forms[-1]:
                _add(inner, number, unused)
    known = [number[form] for form in forms if form in number]
    cls = known[0] if known else next(unused)
    for form in forms:
        number.setdefault(form, cls)


def view_of(graph: Graph, report: SaturationReport | None = None) -> EGraphView:
    """A graph as an unsaturated e-graph: one e-node per e-class, in topological order; `report`: its
    saturation report. Composite ops that no library may have a kernel of (`Op.kernels_may_lack`) share an
    e-class with their decompositions."""
    own = dict.fromkeys(graph.nodes())
    number: dict[Tensor, int] = {}  # node -> e-class
    unused = count()
    for node in own:
        _add(node, number, unused)
    nodes, classes = list(number), next(unused)
    first = {number[n]: n for n in reversed(nodes)}
    fixed = weight_only(nodes)
    children = [[number[a] for a in n.args] for n in nodes]
    return EGraphView(
        op=[n.op for n in nodes],
        attrs=[n.attrs for n in nodes],
        cls=np.array([number[n] for n in nodes], np.int32),
        off=np.cumsum([0, *map(len, children)]).astype(np.int32),
        child=np.array([k for row in children for k in row], np.int32),
        types=[first[c].type for c in range(classes)],
        weight=np.array([first[c] in fixed for c in range(classes)], np.bool_),
        roots=tuple(number[r] for r in graph.roots),
        report=report or SaturationReport(sizes=(len(nodes),)),
        tensors={i: n for i, n in enumerate(nodes) if n.op in LEAVES},
        classes={n: number[n] for n in own},
        age=np.zeros(classes, np.int32),
        original_nodes=np.array([n in own for n in nodes], np.bool_),
    )


__all__ = ["EGraphView", "view_of"]
