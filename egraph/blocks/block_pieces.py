"""Cuts a sequence of compute nodes into intervals at points where few values are live, and merges two neighbouring
intervals if their structures nearly always occur side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..ir.tensor import Tensor, attrs_key
from .block_order import NodeOrder

#: Half size, in nodes, of the neighborhood that decides where the order is cut.
WINDOW = 6
#: Number of different lengths of repeated pieces that are searched for in pieces that occur once.
MATCHED = 16


def cut(listing: NodeOrder, max_nodes: int) -> list[tuple[int, int]]:
    """Cut the listing into consecutive intervals (start, end) of at most `max_nodes` nodes, at places where few values
    are live."""
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


def _widths(listing: NodeOrder, reach: int) -> tuple[list[int], list[int]]:
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


@dataclass
class BlockPiece:
    """The nodes of an ordered list (`NodeOrder`) from index `start` up to `end` (exclusive).

    `kind` is equal for pieces of equal structure. `inputs` and `weights` are the values that the piece reads from
    outside, `outputs` those of its values that are used after it or are roots.
    """

    start: int
    end: int
    kind: int
    inputs: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]

    def __len__(self) -> int:
        return self.end - self.start


def _gives(listing: NodeOrder, value: Tensor, end: int) -> bool:
    """Whether a value is used at or after index `end`, or is a root."""
    return value in listing.roots or listing.readers[value][-1] >= end


def _piece(listing: NodeOrder, names: dict[Any, int], start: int, end: int) -> BlockPiece:
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
    return BlockPiece(start, end, names.setdefault(tuple(kind), len(names)), list(inputs), list(weights), outputs)


def merge(listing: NodeOrder, stretches: list[tuple[int, int]], max_nodes: int) -> list[BlockPiece]:
    """The intervals `stretches` of a listing, (start, end), as pieces: neighbours are merged where pieces of their two
    structures (`BlockPiece.kind`) always occur together.

    First those pairs are merged in which at least two values of the left piece are used after it, up to `max_nodes`
    nodes, then the others, up to half of that. Merged pieces are also searched for in pieces that occur once, such as a
    layer's first part after the embedding.
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


def _matched(listing: NodeOrder, names: dict[Any, int], pieces: list[BlockPiece]) -> list[BlockPiece]:
    """Split pieces that occur once where they begin or end with a repeated piece.

    The first and last repeat are often merged with their surroundings.
    """
    uses = Counter(p.kind for p in pieces)
    common = sorted((p for p in pieces if len(p) >= WINDOW // 2), key=lambda p: (-uses[p.kind], -len(p)))
    lengths = list(dict.fromkeys(len(p) for p in common))[:MATCHED]
    found: list[BlockPiece] = []
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


def _merge_once(
    listing: NodeOrder, pieces: list[BlockPiece], least: int, limit: int, names: dict[Any, int]
) -> list[BlockPiece]:
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
    found: list[BlockPiece] = []
    for i, piece in enumerate(pieces):
        if i in heads:
            found.append(_piece(listing, names, piece.start, pieces[i + 1].end))
        elif i - 1 not in heads:
            found.append(piece)
    return found


def _bond(listing: NodeOrder, piece: BlockPiece) -> int:
    """Number of a piece's inputs and outputs that are used after it; 1 if only a narrow stream leaves the piece."""
    touched = dict.fromkeys([*piece.inputs, *piece.outputs])
    return sum(1 for v in touched if v not in listing.everywhere and listing.readers.get(v, (0,))[-1] >= piece.end)


def _wiring(listing: NodeOrder, a: BlockPiece, b: BlockPiece) -> tuple[Any, ...]:
    """Positions in piece a of b's inputs and of b's weights (-1 if not in a), and of a's outputs that are used after b.

    Part of the kind of the pair; all pairs of one kind are merged, or none is.
    """
    known = {v: k for k, v in enumerate([*a.inputs, *a.outputs, *a.weights])}
    outside = tuple(k for k, v in enumerate(a.outputs) if _gives(listing, v, b.end))
    return (tuple(known.get(v, -1) for v in b.inputs), tuple(known.get(v, -1) for v in b.weights), outside)


__all__ = ["MATCHED", "WINDOW", "BlockPiece", "cut", "merge"]
