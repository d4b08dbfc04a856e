"""Lowers a graph to egglog input, one table of integers per op, read by loader rules, and decodes attributes.

A node's id is its index in the graph's topological order; nodes of composite decompositions follow, each composite
being united with its decomposition. Tables cost 2.5 microseconds per node; building terms from egglog text or objects
is a hundred times slower and grows faster than linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ...errors import ShapeError
from ..blocks.block_order import weight_only
from ..composites.recurrent import parts_of
from ..ir.graph import Graph
from ..ir.tensor import LEAVES, Tensor, topological
from ..ops.ops import OPS, Attrs
from ..types import dtypes
from ..types.dims import Shape, concrete
from .language import SNAP, Interner
from .term_cost import Pricing, tree_costs

Row = tuple[int, ...]  # node ids of node and operands, then attribute ids (dims: index into `LoweredGraph.dims`)


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A graph as egglog input tables.

    `nodes`: its nodes, whose indices are the ids; `interner` maps attribute values to ids. `rows[op]` holds (node,
    *operands, *attributes). `facts` holds (node, dims, dtype, active, tree cost) for every node; `active` is 0 for a
    node that depends on weights alone, else 1. `leaves`, `weights` (weight-only nodes of the graph) and `roots` are
    node ids. `equal` holds pairs of node ids with the same value. `dims`: size vectors by id. `known`: (op, attribute
    ids) of the graph's nodes -> their attributes.
    """

    graph: Graph
    nodes: list[Tensor]
    own: int  # number of leading `nodes` that belong to the graph itself
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
        """Ranks of all values, sorted."""
        return sorted({n.rank for n in self.nodes})

    @property
    def ops(self) -> set[str]:
        """Ops of the nodes that have an egglog constructor of their own: all but leaves bound by name or data."""
        return set(self.rows)

    def tables(self) -> dict[str, str]:
        """Input tables of the graph for egglog: table name -> tab-separated text."""
        found = {f"i_{op}": _text(rows) for op, rows in self.rows.items()}
        for name, numbers in (("i_leaf", self.leaves), ("i_weight", self.weights)):
            if numbers:
                found[name] = _text([(n,) for n in numbers])
        if self.equal:
            found["i_equal"] = _text(self.equal)
        return found | {"i_fact": _text(self.facts)}

    def decode(self, op: str, values: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """Attributes of an e-node of the op `op` from their ids `values` (dims are given as tuples). Attributes of the
        graph's own nodes are returned unchanged."""
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
    """Attributes of a fill with the value in the Python type of its dtype, as the builders create it."""
    kind = float if dtypes.is_float(attrs["dtype"]) else int
    return tuple((k, kind(v) if k == "value" else v) for k, v in attrs.items())


def _text(rows: Sequence[Row]) -> str:
    """Rows of integers, all of the same length, as tab-separated lines. One combined format string halves the time."""
    if not rows:
        return ""
    line = "\t".join(["%d"] * len(rows[0])) + "\n"
    return line * len(rows) % tuple(chain.from_iterable(rows))


def with_parts(graph: Graph) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Nodes of a graph and of the decompositions of its composite ops, and the pairs (composite, decomposition).

    Not decomposed are pointwise composites (activations), and the quantization and dequantization of values other than
    weights. All terms for them cost the same once fused, and rules would find very many equal terms for their
    arithmetic.
    """
    nodes, pairs = graph.nodes(), list[tuple[Tensor, Tensor]]()
    fixed = weight_only(nodes)

    def whole(n: Tensor) -> bool:
        return n.entry.pointwise or (n.entry.law in ("quantize", "dequantize") and n not in fixed)

    done, start = set(nodes), 0
    while start < len(nodes):
        fresh = [(n, parts_of(n)) for n in nodes[start:] if not whole(n)]
        start = len(nodes)
        for composite, parts in fresh:
            if parts is not None and parts.type == composite.type:
                pairs.append((composite, parts))
                nodes += [n for n in topological([parts]) if n not in done]
                done.update(nodes[start:])
    return nodes, pairs


class _Lowering:
    """State of one lowering: ids of nodes and dims, and the rows of each op's table."""

    def __init__(self, nodes: list[Tensor], interner: Interner, constants: Sequence[float]) -> None:
        self.interner, self.constants = interner, sorted(constants)
        self.nodes = nodes
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.dims: dict[tuple[int, ...], int] = {}
        self.checked: dict[Shape, int] = {}
        self.rows: dict[str, list[Row]] = {}
        self.known: dict[tuple[str, tuple[Any, ...]], tuple[tuple[str, Any], ...]] = {}

    def dims_id(self, sizes: Shape) -> int:
        """Id of a vector of concrete sizes."""
        found = self.checked.get(sizes)
        if found is None:
            found = self.checked[sizes] = self.dims.setdefault(concrete(sizes), len(self.dims))
        return found

    def snap(self, node: Tensor) -> None:
        """Give a fill the id of a rule's constant if the fill's value is that constant rounded to the fill's dtype."""
        value = node.attrs[0][1]
        if not dtypes.is_float(node.dtype) or self.interner.has_number(value):
            return
        for constant in self.constants:
            if constant and abs(value - constant) <= SNAP * abs(constant):
                self.interner.alias(value, self.interner.encode("float", constant))
                return

    def add(self, node: Tensor) -> None:
        """Add a node's row to the table of its op."""
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
        """The row of the fact table for a node. `weight`: it depends on weights alone. `cost`: its cost in ns."""
        dtype = self.interner.encode("dtype", node.dtype)
        return (self.number[node], self.dims_id(node.shape), dtype, int(not weight), cost)


def lower(
    graph: Graph,
    interner: Interner | None = None,
    constants: Sequence[float] = (),
    pricing: Pricing | None = None,
    parts: bool = False,
) -> LoweredGraph:
    """Convert a graph to egglog input tables.

    `interner` holds the ids that rules use and is extended: pass a copy. `constants` are the scalar constants of the
    rules. `pricing` gives the tree costs; None: all are 0. `parts`: unite composites with their decompositions. Raises
    ShapeError if a dimension is symbolic or a size is 0 (the rules for result types do not cover empty values).
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
    return LoweredGraph(
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


__all__ = ["LoweredGraph", "lower", "with_parts"]
