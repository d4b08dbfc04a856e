"""From a graph to what egglog loads: one table of numbers per op, read by loader rules, and the way back.

A node's number is its place in the graph's topological order; the parts of its composite ops follow, each composite
being equal to its decomposition. Tables cost 2.5 microseconds a node; building terms
through egglog's own text or objects costs a hundred times that and grows faster than linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..errors import ShapeError
from . import dtypes
from .blocks import weight_only
from .dims import Shape, concrete
from .graph import LEAVES, Graph, Tensor, topological
from .language import SNAP, Interner
from .ops import OPS, Attrs
from .pricing import Pricing, tree_costs
from .recurrent import parts_of

Row = tuple[int, ...]  # operand classes or node numbers, then attribute numbers (dims: index into `Lowered.dims`)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph as tables: `rows[op]` holds (node, *operands, *attributes); `facts` (node, dims, dtype, active, tree cost)
    of every node; `leaves` and `weights` (the graph's own that depend on weights alone) node numbers; `equal` pairs of
    nodes of one value."""

    graph: Graph
    nodes: list[Tensor]
    own: int  # how many of the nodes are the graph's
    rows: dict[str, list[Row]]
    facts: list[Row]
    leaves: list[int]
    weights: list[int]
    equal: list[tuple[int, int]]
    roots: tuple[int, ...]
    dims: list[tuple[int, ...]]
    interner: Interner
    known: dict[tuple[str, tuple[Any, ...]], tuple[tuple[str, Any], ...]] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The ranks of all values."""
        return sorted({n.rank for n in self.nodes})

    @property
    def ops(self) -> set[str]:
        """The ops that have a constructor."""
        return set(self.rows)

    def tables(self) -> dict[str, str]:
        """Table name -> tab-separated text."""
        found = {f"i_{op}": _text(rows) for op, rows in self.rows.items()}
        for name, numbers in (("i_leaf", self.leaves), ("i_weight", self.weights)):
            if numbers:
                found[name] = _text([(n,) for n in numbers])
        if self.equal:
            found["i_equal"] = _text(self.equal)
        return found | {"i_fact": _text(self.facts)}

    def decode(self, op: str, values: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """The attributes behind numbers (dims come as tuples). Those of the graph's own nodes come back unchanged."""
        key = (op, tuple(values))
        found = self.known.get(key)
        if found is None:
            found = tuple(
                (name, tuple(value) if kind == "dims" else self.interner.decode(kind, value))
                for (name, kind), value in zip(OPS[op].attrs.items(), values)
            )
            if op == "full":
                found = _fitting(dict(found))
            self.known[key] = found
        return found


def _fitting(attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    """A fill's value in the Python type of its dtype, as the builders make it."""
    kind = float if dtypes.is_float(attrs["dtype"]) else int
    return tuple((k, kind(v) if k == "value" else v) for k, v in attrs.items())


def _text(rows: Sequence[Row]) -> str:
    """Rows of integers, all of one length: a line each, tabs between. One format for all takes half the time of many."""
    if not rows:
        return ""
    line = "\t".join(["%d"] * len(rows[0])) + "\n"
    return line * len(rows) % tuple(chain.from_iterable(rows))


def with_parts(graph: Graph) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """The graph's nodes followed by those of its composites' decompositions, and the pairs (composite, its parts).

    Activations stay whole: all their forms cost the same once fused, and their arithmetic has very many.
    """
    nodes, pairs = graph.nodes(), list[tuple[Tensor, Tensor]]()
    done, start = set(nodes), 0
    while start < len(nodes):
        fresh = [(n, parts_of(n)) for n in nodes[start:] if not n.entry.pointwise]
        start = len(nodes)
        for composite, parts in fresh:
            if parts is not None and parts.type == composite.type:
                pairs.append((composite, parts))
                nodes += [n for n in topological([parts]) if n not in done]
                done.update(nodes[start:])
    return nodes, pairs


class _Lowering:
    def __init__(self, nodes: list[Tensor], interner: Interner, constants: Sequence[float]) -> None:
        self.interner, self.constants = interner, sorted(constants)
        self.nodes = nodes
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.dims: dict[tuple[int, ...], int] = {}
        self.checked: dict[Shape, int] = {}
        self.rows: dict[str, list[Row]] = {}
        self.known: dict[tuple[str, tuple[Any, ...]], tuple[tuple[str, Any], ...]] = {}

    def dims_id(self, sizes: Shape) -> int:
        """The number of a vector of concrete sizes."""
        found = self.checked.get(sizes)
        if found is None:
            found = self.checked[sizes] = self.dims.setdefault(concrete(sizes), len(self.dims))
        return found

    def snap(self, node: Tensor) -> None:
        """A fill that is a rule's constant rounded to the fill's dtype gets that constant's number."""
        value = node.attrs[0][1]
        if not dtypes.is_float(node.dtype) or self.interner.knows(value):
            return
        for constant in self.constants:
            if constant and abs(value - constant) <= SNAP * abs(constant):
                self.interner.alias(value, self.interner.encode("float", constant))
                return

    def add(self, node: Tensor) -> None:
        if node.op == "full":
            self.snap(node)
        kinds = node.entry.attrs
        numbers = [
            self.dims_id(value) if kinds[name] == "dims" else self.interner.encode(kinds[name], value)
            for name, value in node.attrs
        ]
        if numbers:
            values = tuple(v if kinds[k] == "dims" else n for (k, v), n in zip(node.attrs, numbers))
            self.known.setdefault((node.op, values), node.attrs)
        row = (self.number[node], *[self.number[a] for a in node.args], *numbers)
        self.rows.setdefault(node.op, []).append(row)

    def fact(self, node: Tensor, weight: bool, cost: int) -> Row:
        dtype = self.interner.encode("dtype", node.dtype)
        return (self.number[node], self.dims_id(node.shape), dtype, int(not weight), cost)


def lower(
    graph: Graph,
    interner: Interner | None = None,
    constants: Sequence[float] = (),
    pricing: Pricing | None = None,
    parts: bool = False,
) -> Lowered:
    """The graph as tables. `interner` holds the numbers that rules use (it is extended: pass a copy); `constants` are
    the scalar constants of the rules; with `parts` composites are united with their decompositions.

    ShapeError where a dimension is free or a size is 0 (no law holds there).
    """
    own = graph.nodes()
    nodes, pairs = with_parts(graph) if parts else (own, [])
    work = _Lowering(nodes, interner if interner is not None else Interner(), constants)
    weights = weight_only(nodes)
    for node in nodes:
        if 0 in node.shape:
            raise ShapeError(f"{node} is empty", hint="simplify the graph first: empty values are constants")
        if node.op not in LEAVES:
            work.add(node)
    costs = tree_costs(nodes, weights, pricing) if pricing is not None else [0] * len(nodes)
    return Lowered(
        graph=graph,
        nodes=nodes,
        own=len(own),
        rows=work.rows,
        facts=[work.fact(n, n in weights, cost) for n, cost in zip(nodes, costs)],
        leaves=[work.number[n] for n in nodes if n.op in LEAVES],
        weights=[work.number[n] for n in own if n in weights],
        equal=[(work.number[a], work.number[b]) for a, b in pairs],
        roots=tuple(work.number[r] for r in graph.roots),
        dims=list(work.dims),
        interner=work.interner,
        known=work.known,
    )


__all__ = ["Lowered", "lower", "with_parts"]
