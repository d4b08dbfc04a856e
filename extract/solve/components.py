"""Splits an extraction problem into independent components, and detects identical ones, which are solved once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .problem import IntArray, ProblemRows


@dataclass(frozen=True)
class Component:
    """One independent component of a problem, and the places where components equal to it occur in the problem.

    `copies[i][r]`: row (way to compute a class) of the problem that is row r in occurrence i. `key`: canonical
    encoding of `rows`; components with equal keys are the same problem, row by row.
    """

    key: bytes
    rows: ProblemRows
    copies: list[list[int]]


def split_components(rows: ProblemRows) -> list[Component]:
    """Independent components of a problem; identical ones (same structure and costs after renumbering) are merged.

    Renumbering sorts classes by a colour derived from structure and costs (a few rounds of Weisfeiler-Leman hashing),
    then by index. A hash collision can only prevent a merge: whole arrays are compared."""
    if not len(rows):
        return []
    flat = _FlatRows(rows)
    label = flat.labels()
    parts: dict[bytes, Component] = {}
    for key, build, members in flat.forms(label):
        part = parts.get(key)
        if part is None:
            parts[key] = Component(key, build(), [members])
        else:
            part.copies.append(members)
    return list(parts.values())


def colours(rows: ProblemRows, costs: Sequence[float], rounds: int = 5) -> list[tuple[int, ...]]:
    """Colours of each class after 1..rounds rounds of Weisfeiler-Leman hashing, at the given costs.

    Equal for classes in equal surroundings, and almost never for others.
    """
    flat = _FlatRows(rows)
    flat.cost = np.array(costs, np.float64)
    return list(zip(*[colour.tolist() for colour, _ in flat.rounds(rounds)]))


class _FlatRows:
    """Rows as arrays, to hash and split all components at once."""

    def __init__(self, rows: ProblemRows) -> None:
        self.rows = rows
        self.n = rows.n_classes
        self.cls: IntArray = np.array(rows.cls, np.int32)
        self.count = np.fromiter(map(len, rows.children), np.int64, len(rows))
        self.owner = np.repeat(np.arange(len(rows)), self.count)
        self.child: IntArray = np.fromiter(chain.from_iterable(rows.children), np.int32, len(self.owner))
        self.cost = np.array(rows.cost)
        self.root = np.zeros(self.n, np.uint64)
        self.root[list(rows.roots)] = 1

    def labels(self) -> npt.NDArray[np.int64]:
        """Connected component of each class: its least class index (label propagation with pointer jumping)."""
        label = np.arange(self.n)
        a, b = self.cls[self.owner], self.child
        while True:
            new = label.copy()
            low = np.minimum(label[a], label[b])
            np.minimum.at(new, label[a], low)
            np.minimum.at(new, label[b], low)
            while True:
                jumped = new[new]
                if (jumped == new).all():
                    break
                new = jumped
            if (new == label).all():
                return label
            label = new

    def rounds(self, count: int) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]:
        """(structure hash of each class, of each row) after each of `count` rounds of Weisfeiler-Leman hashing."""
        colour = _mix(self.root)
        cost = _mix(self.cost.view(np.uint64))
        reader = self.cls[self.owner]
        for _ in range(count):
            row = cost.copy()
            np.add.at(row, self.owner, _mix(colour[self.child]))
            row = _mix(row)
            fresh = _mix(colour)
            np.add.at(fresh, self.cls, row)
            np.add.at(fresh, self.child, _mix(row[self.owner] ^ colour[reader]))
            colour = _mix(fresh)
            yield colour, row

    def forms(self, label: npt.NDArray[np.int64]) -> list[tuple[bytes, _Build, list[int]]]:
        """Per component: (canonical bytes, function that builds its rows, its row indices in canonical order)."""
        *_, (colour, row_colour) = self.rounds(4)
        order = np.lexsort((np.arange(self.n), colour, label))
        start = np.flatnonzero(np.r_[True, np.diff(label[order]) != 0])
        size = np.diff(np.r_[start, self.n])
        rank = np.empty(self.n, np.int64)
        rank[order] = np.arange(self.n) - np.repeat(start, size)
        row_label = label[self.cls]
        row_order = np.lexsort((np.arange(len(self.cls)), row_colour, rank[self.cls], row_label))
        row_place = np.empty(len(self.cls), np.int64)
        row_place[row_order] = np.arange(len(self.cls))
        edge_order = np.lexsort((rank[self.child], row_place[self.owner]))
        child = rank[self.child[edge_order]]
        count = self.count[row_order]
        off = np.r_[0, np.cumsum(count)]
        owner, cost = rank[self.cls[row_order]], self.cost[row_order]
        edges = np.append(label[order[start]], self.n)
        bounds = np.searchsorted(row_label[row_order], edges)
        found: list[tuple[bytes, _Build, list[int]]] = []
        firsts: list[int] = start.tolist()
        for i, first in enumerate(firsts):
            a, b = int(bounds[i]), int(bounds[i + 1])
            if a == b:
                continue
            n = int(size[i])
            here = order[first : first + n]
            roots = np.flatnonzero(self.root[here] == 1)
            piece = (owner[a:b], count[a:b], child[off[a] : off[b]], cost[a:b], roots)
            found.append(
                (b"|".join([b"%d" % n, *(p.tobytes() for p in piece)]), _Build(piece, n), row_order[a:b].tolist())
            )
        return found


class _Build:
    """Builds the rows of a component on demand: copies never need them."""

    def __init__(self, source: tuple[npt.NDArray[Any], ...], n: int) -> None:
        self.source, self.n = source, n

    def __call__(self) -> ProblemRows:
        owner, count, child, cost, roots = (p.tolist() for p in self.source)
        children, at = [], 0
        for length in count:
            children.append(tuple(child[at : at + length]))
            at += length
        return ProblemRows(owner, children, cost, self.n, roots)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64-bit mixing function (the constants of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
