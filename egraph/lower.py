"""From a graph to what egglog loads: one table of numbers per op, read by loader rules, and the way back.

A node's number is its place in the graph's topological order. Tables cost 2.5 microseconds a node; building terms
through egglog's own text or objects costs a hundred times that and grows faster than linearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ShapeError
from . import dtypes
from .blocks import weight_only
from .dims import Shape, concrete
from .graph import LEAVES, Graph, Tensor
from .language import SNAP, Interner
from .ops import OPS, Attrs
from .pricing import Pricing, tree_costs

Row = tuple[int, ...]  # operand classes or node numbers, then attribute numbers (dims: index into `Lowered.dims`)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph as tables: `rows[op]` holds (node, *operands, *attributes); `facts` (node, dims, dtype, active, tree cost)
    of every node; `leaves` and `weights` (those that depend on weights alone) node numbers."""

    graph: Graph
    nodes: list[Tensor]
    rows: dict[str, list[Row]]
    facts: list[Row]
    leaves: list[int]
    weights: list[int]
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
                found[name] = _text((n,) for n in numbers)
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


def _text(rows: Iterable[Row]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


class _Lowering:
    def __init__(self, graph: Graph, interner: Interner, constants: Sequence[float]) -> None:
        self.interner, self.constants = interner, sorted(constants)
        self.nodes = graph.nodes()
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
) -> Lowered:
    """The graph as tables. `interner` holds the numbers that rules use (it is extended: pass a copy); `constants` are
    the scalar constants of the rules. ShapeError where a dimension is free or a size is 0 (no law holds there)."""
    work = _Lowering(graph, interner if interner is not None else Interner(), constants)
    weights = weight_only(work.nodes)
    for node in work.nodes:
        if 0 in node.shape:
            raise ShapeError(f"{node} is empty", hint="simplify the graph first: empty values are constants")
        if node.op not in LEAVES:
            work.add(node)
    costs = tree_costs(work.nodes, weights, pricing) if pricing is not None else [0] * len(work.nodes)
    return Lowered(
        graph=graph,
        nodes=work.nodes,
        rows=work.rows,
        facts=[work.fact(n, n in weights, cost) for n, cost in zip(work.nodes, costs)],
        leaves=[work.number[n] for n in work.nodes if n.op in LEAVES],
        weights=[work.number[n] for n in work.nodes if n in weights],
        roots=tuple(work.number[r] for r in graph.roots),
        dims=list(work.dims),
        interner=work.interner,
        known=work.known,
    )


__all__ = ["Lowered", "lower"]
