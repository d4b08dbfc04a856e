"""Blocks: detection of the repeated regions of a graph, so that each unique region is saturated once.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .graph import Graph, Tensor, attrs_key, make, rebuild, topological

#: Larger constants (in bytes) are passed to their block as parameters instead of being part of it.
CONSTANT_BYTES = 1024
#: Half size, in nodes, of the neighborhood that decides where the order is cut.
WINDOW = 6
#: Two readers of one value, one depending on the other, that are at least this many nodes apart belong to different
#: repeats.
APART = 8
#: Number of different lengths of repeated pieces that are searched for in pieces that occur once.
MATCHED = 16
#: Depth assumed below inputs and states.
HEAD = 32


@dataclass(frozen=True)
class Block:
    """A unique region. Its graph names inputs in0, in1, …, params w0, …, states s0, … and outputs o0, …."""

    graph: Graph


@dataclass(frozen=True)
class BlockInstance:
    """One occurrence of a block: the model's values for the block's leaves and outputs.

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
    and constants alone is inside the block that uses it, or a parameter of the blocks if several use it.
    """

    graph: Graph
    unique: tuple[Block, ...]
    instances: tuple[BlockInstance, ...]

    def __repr__(self) -> str:
        uses = Counter(i.block for i in self.instances)
        sizes = [f"{uses[k]} x {len(compute_nodes(b.graph))}" for k, b in enumerate(self.unique)]
        return f"{len(self.instances)} instances of {len(self.unique)} blocks (times x nodes: {', '.join(sizes)})"


def weight_only(nodes: Iterable[Tensor]) -> set[Tensor]:
    """The nodes that depend on params, constants, fills and iotas alone. Operands must come before users."""
    found: set[Tensor] = set()
    for node in nodes:
        if node.op not in ("input", "state") and all(a in found for a in node.args):
            found.add(node)
    return found


def compute_nodes(graph: Graph) -> list[Tensor]:
    """Nodes that must be computed at each call: neither leaves nor weight-only."""
    nodes = graph.nodes()
    fixed = weight_only(nodes)
    return [n for n in nodes if n not in fixed and not n.is_leaf]


def find_blocks(graph: Graph, *, max_nodes: int = 96) -> Blocks:
    """Partition a graph into blocks of at most `max_nodes` compute nodes (not counting inlined weight expressions)."""
    listing = _Listing.of(graph, max_nodes)
    pieces = _merge(listing, _cut(listing, max_nodes), max_nodes)
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


# ---------------------------------------------------------------- order
@dataclass
class _Listing:
    """The compute nodes in order, with the index of each definition and its readers (inputs are defined before index
    0).
    """

    order: list[Tensor]
    fixed: set[Tensor]
    roots: set[Tensor]
    at: dict[Tensor, int]
    readers: dict[Tensor, list[int]]
    everywhere: set[Tensor] = field(default_factory=set)  # values not counted in widths
    early: list[int] = field(default_factory=list)  # indices of values listed ahead of the repeats that read them

    @staticmethod
    def of(graph: Graph, max_nodes: int) -> _Listing:
        """The listing of a graph, with shared values moved ahead of the repeats."""
        nodes = graph.nodes()
        fixed = weight_only(nodes)
        depth = _depths(nodes, fixed, ())
        first = _Listing._make(_deep_first(graph.roots, depth), fixed, graph.roots)
        shared = first._shared(max_nodes)
        early = _early(nodes, shared, first)
        early += _parts(first, early)
        depth = _depths(nodes, fixed, early)
        order = _deep_first([*early, *graph.roots], depth)
        listing = _Listing._make(_beside(order, max(graph.roots, key=depth.__getitem__)), fixed, graph.roots)
        far = (v for v, reads in listing.readers.items() if reads[-1] - listing.at.get(v, -1) > max_nodes)
        listing.everywhere = {*early, *far}
        listing.early = [listing.at[v] for v in early if v in listing.at]
        return listing

    @staticmethod
    def _make(nodes: list[Tensor], fixed: set[Tensor], roots: Sequence[Tensor]) -> _Listing:
        """The compute nodes of a topological order with their readers."""
        order = [n for n in nodes if n not in fixed and not n.is_leaf]
        readers: dict[Tensor, list[int]] = {}
        for i, node in enumerate(order):
            for a in node.args:
                if a not in fixed:
                    readers.setdefault(a, []).append(i)
        return _Listing(order, fixed, set(roots), {n: i for i, n in enumerate(order)}, readers)

    def _shared(self, max_nodes: int) -> list[Tensor]:
        """Values that several repeats read in the same way.

        At two distant indices of which one depends on the other, or far from the definition.
        """
        found = []
        for value, reads in self.readers.items():
            if reads[-1] - reads[0] < APART:
                continue
            alike: dict[tuple[str, int], list[int]] = {}
            for i in reads:
                slot = next(k for k, a in enumerate(self.order[i].args) if a is value)
                alike.setdefault((self.order[i].op, slot), []).append(i)
            distant = reads[-1] - self.at.get(value, -1) > max_nodes
            for group in alike.values():
                later = [i for i in group if i - group[0] >= APART]
                if later and (distant or any(self._depends(i, group[0]) for i in (later[0], later[-1]))):
                    found.append(value)
                    break
        return found

    def _depends(self, late: int, early: int) -> bool:
        """Whether the node at index `late` depends on the node at index `early`."""
        stack, seen = [late], {late}
        while stack:
            for a in self.order[stack.pop()].args:
                i = self.at.get(a, -1)
                if i == early:
                    return True
                if i > early and i not in seen:
                    seen.add(i)
                    stack.append(i)
        return False


def _early(nodes: list[Tensor], shared: list[Tensor], listing: _Listing) -> list[Tensor]:
    """Shared values in listing order: longest live range first, each after the shared values it depends on."""
    span = {v: listing.readers[v][-1] - listing.at.get(v, -1) for v in shared}
    ranked = sorted(shared, key=lambda v: (-span[v], listing.at.get(v, -1)))
    bit = {v: 1 << i for i, v in enumerate(ranked)}
    needs: dict[Tensor, int] = {}
    for node in nodes if bit else ():
        below = bit.get(node, 0)
        for a in node.args:
            below |= needs[a]
        needs[node] = below
    found: dict[Tensor, None] = {}
    for start in ranked:
        stack = [start]
        while stack:
            value = stack[-1]
            missing = next((v for v in _members(needs[value] & ~bit[value], ranked) if v not in found), None)
            if missing is None:
                found.setdefault(stack.pop(), None)
            else:
                stack.append(missing)
    return list(found)


def _parts(listing: _Listing, shared: list[Tensor]) -> list[Tensor]:
    """Slices of shared values at different offsets (one step's input, one layer's row), which would make repeats
    differ.
    """
    found: list[Tensor] = []
    for value in shared:
        slices = dict.fromkeys(listing.order[i] for i in listing.readers[value] if listing.order[i].op == "slice")
        found += slices if len(slices) > 1 else []
    return found


def _members(bits: int, ranked: list[Tensor]) -> Iterable[Tensor]:
    """The elements of `ranked` whose bits are set."""
    while bits:
        low = bits & -bits
        yield ranked[low.bit_length() - 1]
        bits ^= low


def _depths(nodes: list[Tensor], fixed: set[Tensor], early: Iterable[Tensor]) -> dict[Tensor, int]:
    """Longest path to a leaf per node.

    Values listed early and weight-only nodes count 0. Inputs count HEAD + 1, so that the residual stream is the deepest
    operand in the first repeat as in all others.
    """
    depth = dict.fromkeys(early, 0)
    for node in nodes:
        if node in fixed:
            depth[node] = 0
        elif node not in depth:
            depth[node] = 1 + max((depth[a] for a in node.args), default=HEAD)
    return depth


def _deep_first(roots: Sequence[Tensor], depth: dict[Tensor, int]) -> list[Tensor]:
    """Topological order, deepest operand first: what only one repeat needs is listed when that repeat is reached."""
    order: list[Tensor] = []
    done: set[Tensor] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            deepest_first = sorted((a for a in node.args if a not in done), key=lambda a: -depth[a])
            stack += [(a, False) for a in reversed(deepest_first)]
    return order


def _beside(nodes: list[Tensor], main: Tensor) -> list[Tensor]:
    """The order with nodes that the main root does not need (state updates, early heads) moved directly after their
    last operand.
    """
    kept = set(topological([main]))
    place: dict[Tensor, int] = {}
    for i, node in enumerate(nodes):
        place[node] = i if node in kept or node.is_leaf else max((place[a] for a in node.args), default=i)
    return sorted(nodes, key=place.__getitem__)


# ---------------------------------------------------------------- cut
def _cut(listing: _Listing, max_nodes: int) -> list[tuple[int, int]]:
    """The order as consecutive intervals (start, end) of at most `max_nodes` nodes."""
    widths, seams = _widths(listing, max_nodes // 2)
    n = len(listing.order)
    near = {j for i in seams for j in range(i - WINDOW, i + WINDOW + 1)}
    dips = [i for i in range(n - 1) if i not in near and _is_dip(widths, i)]
    bounds = sorted({0, n, *(i + 1 for i in (*seams, *dips, *listing.early))})
    found: list[tuple[int, int]] = []
    stack = list(pairwise(bounds))[::-1]
    while stack:
        a, b = stack.pop()
        if b - a <= max_nodes:
            found.append((a, b))
            continue
        quarter = (b - a) // 4
        middle = min(range(a + quarter, b - max(quarter, 1)), key=lambda i: (widths[i], abs(2 * i - a - b)))
        stack += [(middle + 1, b), (a, middle + 1)]
    return found


def _is_dip(widths: list[int], i: int) -> bool:
    """Whether the width falls to a minimum of its neighborhood."""
    near = widths[max(0, i - WINDOW) : i + WINDOW + 1]
    return widths[i - 1 if i else 0] > widths[i] == min(near)


def _widths(listing: _Listing, reach: int) -> tuple[list[int], list[int]]:
    """Returns (widths, seams): the number of values live after each index, and the indices after which no value is
    live, or only one that is unread and has several readers.

    Only readers within `reach` nodes extend a live range, because long-range uses (skip connections) are not local.
    """
    last: dict[Tensor, int] = {}
    for value, reads in listing.readers.items():
        made = listing.at.get(value, -1)
        if value not in listing.everywhere:
            last[value] = max((i for i in reads if i - made <= reach), default=made)
    alive = {v for v in last if v not in listing.at}
    widths, seams = [], []
    for i, node in enumerate(listing.order):
        if last.get(node, i) > i:
            alive.add(node)
        alive.difference_update([a for a in node.args if last.get(a) == i])
        widths.append(len(alive))
        if not alive:
            seams.append(i)
        elif len(alive) == 1:
            reads = listing.readers[next(iter(alive))]
            if reads[0] > i and reads[0] != reads[-1]:
                seams.append(i)
    return widths, seams


# ---------------------------------------------------------------- merge
@dataclass
class _Piece:
    """An interval of the order. `kind` is equal for equal structure; `inputs` and `weights` are its operands."""

    start: int
    end: int
    kind: int
    inputs: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]

    def __len__(self) -> int:
        return self.end - self.start


def _gives(listing: _Listing, value: Tensor, end: int) -> bool:
    """Whether a value is used at or after index `end`, or is a root."""
    return value in listing.roots or listing.readers[value][-1] >= end


def _piece(listing: _Listing, names: dict[Any, int], start: int, end: int) -> _Piece:
    """The piece of the order between two indices. `names` interns kinds."""
    outputs = [v for v in listing.order[start:end] if _gives(listing, v, end)]
    inputs: dict[Tensor, int] = {}
    weights: dict[Tensor, int] = {}
    place: dict[Tensor, int] = {}
    kind: list[Any] = []
    stack = outputs[::-1]
    while stack:
        node = stack[-1]
        missing = [a for a in node.args if listing.at.get(a, -1) >= start and a not in place]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if node in place:
            continue
        place[node] = len(place)
        refs: list[Any] = []
        for a in node.args:
            if a in place:
                refs.append(place[a])
            elif a in listing.fixed:
                refs.append(("w", weights.setdefault(a, len(weights)), a.op, a.type))
            else:
                refs.append(("in", inputs.setdefault(a, len(inputs)), a.type))
        kind.append((node.op, attrs_key(node.attrs), *refs))
    kind.append(tuple(place[v] for v in outputs))
    return _Piece(start, end, names.setdefault(tuple(kind), len(names)), list(inputs), list(weights), outputs)


def _merge(listing: _Listing, stretches: list[tuple[int, int]], max_nodes: int) -> list[_Piece]:
    """Merge adjacent intervals.

    Strongly connected ones up to the limit, then weakly connected ones up to half the limit.

    Merged pieces are then searched for in pieces that occur once, such as a layer's first part after the embedding.
    """
    names: dict[Any, int] = {}
    pieces = [_piece(listing, names, a, b) for a, b in stretches]
    for least, limit in ((2, max_nodes), (2, max_nodes), (0, max_nodes // 2)):
        pieces = _matched(listing, names, pieces) if least else pieces
        while True:
            merged = _merge_once(listing, pieces, least, limit, names)
            if len(merged) == len(pieces):
                break
            pieces = merged
    return pieces


def _matched(listing: _Listing, names: dict[Any, int], pieces: list[_Piece]) -> list[_Piece]:
    """Split pieces that occur once where they begin or end with a repeated piece.

    The first and last repeat are often merged with their surroundings.
    """
    uses = Counter(p.kind for p in pieces)
    common = sorted((p for p in pieces if len(p) >= WINDOW // 2), key=lambda p: (-uses[p.kind], -len(p)))
    lengths = list(dict.fromkeys(len(p) for p in common))[:MATCHED]
    found: list[_Piece] = []
    for piece in pieces:
        start, end = piece.start, piece.end
        for length in lengths if uses[piece.kind] == 1 else ():
            for a, b in ((start, start + length), (end - length, end)):
                if length < len(piece) and uses[_piece(listing, names, a, b).kind]:
                    spots = sorted({start, a, b, end})
                    found += [_piece(listing, names, p, q) for p, q in pairwise(spots)]
                    break
            else:
                continue
            break
        else:
            found.append(piece)
    return found


def _merge_once(listing: _Listing, pieces: list[_Piece], least: int, limit: int, names: dict[Any, int]) -> list[_Piece]:
    """One round of merging: each kind takes part in at most one kind of pair, strongest connection first."""
    uses = Counter(p.kind for p in pieces)
    pairs: dict[Any, list[int]] = {}
    bond: dict[Any, int] = {}
    for i, (a, b) in enumerate(pairwise(pieces)):
        if a.kind == b.kind or len(a) + len(b) > limit:
            continue
        strength = _bond(listing, a)
        if strength >= least:
            pair = (a.kind, b.kind, *_wiring(listing, a, b))
            pairs.setdefault(pair, []).append(i)
            bond[pair] = strength
    taken: set[Any] = set()
    heads: dict[int, Any] = {}
    size = {pair: len(pieces[at[0]]) + len(pieces[at[0] + 1]) for pair, at in pairs.items()}
    for pair in sorted(pairs, key=lambda p: (-bond[p], size[p], pairs[p][0])):
        a, b, count = pieces[pairs[pair][0]], pieces[pairs[pair][0] + 1], len(pairs[pair])
        left = sum(len(p) for p in (a, b) if uses[p.kind] != count)  # nodes that would remain in separate blocks
        if left <= (size[pair] // 3 if least and count > 1 else 0) and not taken & {a.kind, b.kind}:
            taken |= {pair[0], pair[1]}
            heads.update((i, pair) for i in pairs[pair])
    found: list[_Piece] = []
    for i, piece in enumerate(pieces):
        if i in heads:
            found.append(_piece(listing, names, piece.start, pieces[i + 1].end))
        elif i - 1 not in heads:
            found.append(piece)
    return found


def _bond(listing: _Listing, piece: _Piece) -> int:
    """Number of a piece's inputs and outputs that are used after it; 1 if only a narrow stream leaves the piece."""
    touched = dict.fromkeys([*piece.inputs, *piece.outputs])
    return sum(1 for v in touched if v not in listing.everywhere and listing.readers.get(v, (0,))[-1] >= piece.end)


def _wiring(listing: _Listing, a: _Piece, b: _Piece) -> tuple[Any, ...]:
    """How piece b uses the values of piece a, and which outputs of a are used after b; part of the pair's kind."""
    known = {v: k for k, v in enumerate([*a.inputs, *a.outputs, *a.weights])}
    outside = tuple(k for k, v in enumerate(a.outputs) if _gives(listing, v, b.end))
    return (tuple(known.get(v, -1) for v in b.inputs), tuple(known.get(v, -1) for v in b.weights), outside)


# ---------------------------------------------------------------- key
def _owners(listing: _Listing, pieces: list[_Piece]) -> dict[Tensor, int]:
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

    def __init__(self, listing: _Listing, owner: dict[Tensor, int], number: int, piece: _Piece) -> None:
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


__all__ = ["Block", "BlockInstance", "Blocks", "compute_nodes", "find_blocks", "stamp", "weight_only"]
