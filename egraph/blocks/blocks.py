"""Detects blocks, the repeated regions of a graph, so that each unique region is saturated once.

The method; every step is linear in the graph:

1. *Order.* Compute nodes (those that depend on inputs or states) are listed depth first from the outputs. Values that
   many repeats read (masks, position tables, conditioning) are listed before the repeats, side outputs directly after
   the values they depend on. Repeats become repeated intervals of the list; any partition of a topological order into
   intervals is acyclic.
2. *Cut.* The width at a position is the number of values live across it; values read everywhere do not count. The list
   is cut where a single, still unread value with several readers is live (the residual stream) and at local minima of
   the width. Both tests look only at a bounded neighborhood, so equal repeats are cut alike, as in content-defined
   chunking.
3. *Merge.* Adjacent pieces whose kinds always occur together are merged, strongest connection first, up to the size
   limit: pieces grow as long as no repeat is lost.
4. *Key.* Each piece is written as a function of its inputs, weights and states, numbered by first use. Pieces with
   equal texts are the same block. The key is the complete structure, not a hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Graph
from ..ir.tensor import Tensor, attrs_key, make, rebuild, topological
from .block_order import NodeOrder, compute_nodes
from .block_pieces import BlockPiece, cut, merge

#: Larger constants (in bytes) are passed to their block as parameters instead of being part of it.
CONSTANT_BYTES = 1024


@dataclass(frozen=True)
class Block:
    """A unique region of a model. Its graph names inputs in0, in1, …, params w0, …, states s0, … and outputs o0, …."""

    graph: Graph


@dataclass(frozen=True)
class BlockInstance:
    """One occurrence of a block (repeated subgraph): the model's values for the block's inputs, params and states (its
    leaves), and for its outputs, each in the order of the block.

    `block` is an index into `Blocks.unique`.
    """

    block: int
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Blocks:
    """The unique regions of a graph and their occurrences in topological order.

    Every compute node (one that depends on an input or a state) is in exactly one instance. An expression of weights
    and constants alone is inside the block (repeated subgraph) that uses it, or a parameter of the blocks if several
    use it.
    """

    graph: Graph
    unique: tuple[Block, ...]
    instances: tuple[BlockInstance, ...]

    def __repr__(self) -> str:
        uses = Counter(i.block for i in self.instances)
        sizes = [f"{uses[k]} x {len(compute_nodes(b.graph))}" for k, b in enumerate(self.unique)]
        return f"{len(self.instances)} instances of {len(self.unique)} blocks (times x nodes: {', '.join(sizes)})"


def find_blocks(graph: Graph, *, max_nodes: int = 96) -> Blocks:
    """The blocks (repeated subgraphs) of a graph, each of at most `max_nodes` compute nodes (not counting inlined
    weight expressions)."""
    listing = NodeOrder.of(graph, max_nodes)
    pieces = merge(listing, cut(listing, max_nodes), max_nodes)
    owner = _owners(listing, pieces)
    keys: dict[Any, int] = {}
    unique: list[Block] = []
    instances: list[BlockInstance] = []
    for number, piece in enumerate(pieces):
        text = _Text(listing, owner, number, piece)
        index = keys.setdefault(text.key(), len(unique))
        if index == len(unique):
            unique.append(Block(text.build(f"block{index}")))
        states = tuple(text.states)
        instances.append(BlockInstance(index, tuple(text.inputs), tuple(text.params), tuple(text.outputs), states))
    return Blocks(graph, tuple(unique), tuple(instances))


def compute_nodes_of(instance: BlockInstance) -> Iterator[Tensor]:
    """The values of the model that one occurrence of a block (repeated subgraph) computes, outputs first."""
    seen = {*instance.inputs, *instance.params, *instance.states}
    stack = list(instance.outputs)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += node.args


def stamp(body: Graph, instance: BlockInstance, known: dict[Tensor, Tensor] | None = None) -> list[Tensor]:
    """Instantiate a block's graph (or an equivalent graph) with one instance's values; returns its outputs.

    `known` replaces values of the model, for example by outputs of instances stamped before.
    """
    replace = known or {}
    actual: dict[tuple[str, str], Tensor] = {}
    for op, prefix, values in _LEAF_GROUPS:
        for k, value in enumerate(getattr(instance, values)):
            actual[op, f"{prefix}{k}"] = replace.get(value, value)

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        return actual[node.op, node.attr("name")] if node.op in ("input", "param", "state") else None

    return rebuild(body.outputs, change)


_LEAF_GROUPS = (("input", "in", "inputs"), ("param", "w", "params"), ("state", "s", "states"))


def _owners(listing: NodeOrder, pieces: list[BlockPiece]) -> dict[Tensor, int]:
    """For each weight-only node the index of the only piece that uses it (directly or not), or -1 if several do."""
    owner: dict[Tensor, int] = {}
    readers: list[Tensor] = []
    for number, piece in enumerate(pieces):
        for value in piece.weights:
            if owner.setdefault(value, number) != number:
                owner[value] = -1
            readers.append(value)
    owner.update((r, -1) for r in listing.roots if r in listing.fixed)
    for node in reversed(topological(readers)):
        for a in node.args:
            if owner.setdefault(a, owner[node]) != owner[node]:
                owner[a] = -1
    return owner


class _Text:
    """A piece as a function of its inputs, params and states, each numbered by first use."""

    def __init__(self, listing: NodeOrder, owner: dict[Tensor, int], number: int, piece: BlockPiece) -> None:
        self.listing, self.owner, self.number = listing, owner, number
        self.start, self.outputs = piece.start, piece.outputs
        self.inputs: dict[Tensor, int] = {}
        self.params: dict[Tensor, int] = {}
        self.states: dict[Tensor, int] = {}
        self.place: dict[Tensor, int] = {}
        self.lines: list[Any] = []
        for node in piece.outputs:
            self._write(node)

    def _write(self, start: Tensor) -> None:
        """Append a node after the nodes of this piece that it depends on. Iterative."""
        stack = [start]
        while stack:
            node = stack[-1]
            if node in self.place:
                stack.pop()
                continue
            missing = [] if self._leaf(node) is not None else [a for a in node.args if a not in self.place]
            if missing:
                stack += reversed(missing)
            else:
                self.place[stack.pop()] = len(self.lines)
                self.lines.append(self._line(node))

    def _leaf(self, node: Tensor) -> dict[Tensor, int] | None:
        """The leaf group to which a node belongs, or None if the node itself is part of the block."""
        if node in self.listing.fixed:
            if node.op in ("full", "iota"):
                return None
            if node.op == "constant":
                return self.params if node.type.nbytes > CONSTANT_BYTES else None
            return self.params if node.op == "param" or self.owner[node] != self.number else None
        if node.op == "state":
            return self.states
        return self.inputs if self.listing.at.get(node, -1) < self.start else None

    def _line(self, node: Tensor) -> Any:
        """One node as text: op, attributes and operand indices, or a numbered leaf."""
        group = self._leaf(node)
        if group is None:
            return (node.op, attrs_key(node.attrs), *(self.place[a] for a in node.args))
        kind = "in" if group is self.inputs else "w" if group is self.params else "s"
        return (kind, group.setdefault(node, len(group)), node.type)

    def key(self) -> Any:
        """Hashable key; equal exactly for isomorphic pieces listed in the same order."""
        return (*self.lines, tuple(self.place[v] for v in self.outputs))

    def build(self, name: str) -> Graph:
        """The piece as a graph over renamed leaves."""
        new: dict[Tensor, Tensor] = {}
        for node in self.place:
            group = self._leaf(node)
            if group is None:
                new[node] = make(node.op, [new[a] for a in node.args], dict(node.attrs), data=node.data)
            else:
                op, prefix = ("input", "in") if group is self.inputs else ("param", "w")
                op, prefix = ("state", "s") if group is self.states else (op, prefix)
                attrs = {"name": f"{prefix}{group[node]}", "shape": node.shape, "dtype": node.dtype}
                new[node] = make(op, (), attrs)
        outputs = {f"o{k}": new[v] for k, v in enumerate(self.outputs)}
        return Graph.of(outputs, inputs=[new[v] for v in self.inputs], name=name)


__all__ = ["Block", "BlockInstance", "Blocks", "compute_nodes_of", "find_blocks", "stamp"]
