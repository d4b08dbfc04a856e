"""The read-only view of an e-graph: arrays of e-nodes and classes, and what is read off them without a solver."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from ..errors import ExtractionError
from .graph import Tensor, make
from .ops import Type

Ints = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
INFINITY = float("inf")


@dataclass(frozen=True)
class SaturationReport:
    """What a saturation did. `stopped`: saturated, iterations, nodes, seconds, bytes, interrupted or worker-died.

    `sizes` holds the live e-nodes after each iteration (the first entry is the block as it came), `matches` and
    `rule_seconds` the totals per rule, `kept` the iteration whose view was kept, `extractable` whether every root of
    the last round was still extractable (if not, an earlier round was kept).
    """

    stopped: str = "saturated"
    iterations: int = 0
    sizes: tuple[int, ...] = ()
    matches: Mapping[str, int] = field(default_factory=dict)
    rule_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    kept: int = 0
    extractable: bool = True
    message: str = ""  # of the worker, where it died

    def __str__(self) -> str:
        return (
            f"{self.stopped} after {self.iterations} iterations in {self.seconds:.2f} s, "
            f"{self.sizes[-1] if self.sizes else 0} e-nodes, {sum(self.matches.values())} matches"
        )


@dataclass(frozen=True, eq=False)
class EGraphView:
    """E-nodes and their classes. E-node i is `op[i]` with `attrs[i]` over the classes `kid[off[i]:off[i+1]]`.

    `types` and `weight` are per class (`weight`: depends on params and constants only). `tensors` gives the leaf behind
    each leaf e-node, `classes` the class of every node of the graph that the view was made from.
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

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.types)

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def _by_class(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.cls, kind="stable").astype(np.int32)
        start = np.searchsorted(self.cls[order], np.arange(self.n_classes + 1)).astype(np.int32)
        return order, start

    def nodes_of(self, cls: int) -> Ints:
        """The e-nodes of a class, in rising order."""
        order, start = self._by_class
        return order[start[cls] : start[cls + 1]]

    def kids(self, node: int) -> Ints:
        """The child classes of an e-node."""
        return self.kid[self.off[node] : self.off[node + 1]]

    def types_of(self, node: int) -> list[Type]:
        """The types of an e-node's operands."""
        return [self.types[k] for k in self.kids(node).tolist()]

    def cheapest(self, price: Sequence[float]) -> tuple[list[float], list[int]]:
        """Least tree cost per class and the e-node that has it (-1: the class has no finite term).

        Knuth's generalisation of Dijkstra's algorithm; ties go to the lower class, then to the lower e-node.
        """
        return _cheapest(self, price)

    def extractable(self) -> bool:
        """Whether every root has a finite term."""
        choice = self.cheapest([1.0] * len(self))[1]
        return all(choice[r] >= 0 for r in self.roots)

    def dag_cost(self, price: Sequence[float], choice: Sequence[int]) -> float:
        """Cost of a choice of e-nodes: every class reached from the roots counts once. Weight-only classes are free."""
        seen: set[int] = set()
        stack, total = list(self.roots), 0.0
        while stack:
            c = stack.pop()
            if c in seen or self.weight[c]:
                continue
            seen.add(c)
            node = choice[c]
            if node < 0:
                return INFINITY
            total += price[node]
            stack.extend(self.kids(node).tolist())
        return total

    def best_terms(self, price: Callable[[int], float] | None = None) -> list[Tensor]:
        """The roots' terms of least tree cost (default: fewest e-nodes)."""
        cost = [1.0 if price is None else price(i) for i in range(len(self))]
        choice = self.cheapest(cost)[1]
        return [self.term(choice, r) for r in self.roots]

    def term(self, choice: Sequence[int] | Mapping[int, int], cls: int) -> Tensor:
        """The tensor that a choice of one e-node per class means for a class. ExtractionError on a cycle or a gap."""
        built: dict[int, Tensor] = {}
        return _build(self, choice, cls, built)

    def terms(self, choice: Sequence[int] | Mapping[int, int], classes: Sequence[int]) -> list[Tensor]:
        """`term` for several classes, shared parts built once."""
        built: dict[int, Tensor] = {}
        return [_build(self, choice, c, built) for c in classes]

    def node_tensor(self, node: int, operands: Sequence[Tensor]) -> Tensor:
        """The tensor of an e-node over given operands."""
        leaf = self.tensors.get(node)
        return leaf if leaf is not None else make(self.op[node], operands, dict(self.attrs[node]))

    def to_json(self, cost: Sequence[float] | None = None) -> dict[str, Any]:
        """The egraph-serialize form: nodes with op, children (node ids), eclass and cost; classes with their type."""
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
        """`to_json` as text."""
        return json.dumps(self.to_json(cost), indent=1)

    def html(self, page: int = 0, per_page: int = 50) -> str:
        """A table of classes with their e-nodes, `per_page` classes from page `page` on; roots first."""
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
    """CSR of the e-nodes that use each class, once per use."""
    owner = np.repeat(np.arange(len(view), dtype=np.int32), np.diff(view.off))
    order = np.argsort(view.kid, kind="stable")
    start = np.searchsorted(view.kid[order], np.arange(view.n_classes + 1))
    return owner[order].tolist(), start.tolist()


def _cheapest(view: EGraphView, price: Sequence[float]) -> tuple[list[float], list[int]]:
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


__all__ = ["EGraphView", "SaturationReport"]
