"""Label-setting search for problems with a narrow frontier, such as kernel covers of tensor graphs.

A label is the set of classes still needed; its topologically last class is always resolved next, so a label's future
depends on the set alone and one label per set suffices (a shortest path in the graph of sets). With a bounded number
of labels per step it is a beam, which still gives a valid lower bound from what it dropped.
"""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .presolve import components
from .problem import Rows

WIDTHS = (30, 300, 3000)
"""Beam widths tried in turn until one is exact."""

Label = tuple[float, int, int]  # cost so far, the label it came from, the row that resolved it
Bucket = dict[int, Label]


@dataclass(frozen=True)
class Cover:
    """Result: rows chosen (None: none found), their cost, a valid lower bound, whether nothing was dropped."""

    chosen: list[int] | None
    cost: float
    lower: float
    exact: bool
    labels: int


def topological(rows: Rows, prefer: list[int] | None = None) -> tuple[list[int], bool]:
    """Position of each class, children lower, and whether that is a true order of all rows.

    In cyclic problems classes of one component stand in the order of `prefer` (a solution, children first), or by
    number; rows against the order are then lost, so nothing found is proven.
    """
    graph: list[list[int]] = [[] for _ in range(rows.n_classes)]
    for c, kids in zip(rows.cls, rows.kids):
        graph[c].extend(kids)
    _, order = components(graph)
    place = {rows.cls[row]: n for n, row in enumerate(prefer or [])}
    position = [0] * rows.n_classes
    at = 0
    for member in order:
        for c in sorted(member, key=lambda c: (place.get(c, len(place)), c)) if len(member) > 1 else member:
            position[c] = at
            at += 1
    return position, len(order) == rows.n_classes


def cover(
    rows: Rows,
    width: int | None = None,
    *,
    max_labels: float = math.inf,
    upper: float = math.inf,
    prefer: list[int] | None = None,
    deadline: float = math.inf,
    stop: Callable[[], bool] | None = None,
) -> Cover:
    """Search with at most `width` labels per step (None: all). Labels that cannot beat `upper` are dropped soundly.

    When `max_labels` are exceeded, `deadline` (on time.perf_counter()) passes or `stop` says so, the answer has no
    solution and the bound 0.
    """
    position, acyclic = topological(rows, prefer)
    bit = [1 << p for p in position]
    moves: list[list[tuple[float, int, int]]] = [[] for _ in position]
    for row, (c, kids) in enumerate(zip(rows.cls, rows.kids)):
        mask = sum([bit[k] for k in kids])
        if mask < bit[c]:
            moves[position[c]].append((rows.cost[row], mask, row))
    potential = _Potential(moves)
    start = sum({bit[r] for r in rows.roots})
    buckets: list[Bucket] = [{} for _ in moves]
    if not start:
        return Cover([], 0.0, 0.0, True, 0)
    buckets[start.bit_length() - 1][start] = (0.0, 0, -1)
    best, last, dropped, count = upper, -1, math.inf, 0
    ends: Bucket = {}
    for v in range(len(moves) - 1, -1, -1):
        bucket = buckets[v]
        if not bucket:
            continue
        waiting = len(bucket) if width is None else min(width, len(bucket))
        if count + waiting > max_labels or time.perf_counter() > deadline or (stop is not None and stop()):
            return Cover(None, math.inf, 0.0, False, count)
        if width is not None and len(bucket) > width:
            bucket, lost = _strongest(bucket, width, potential, v)
            dropped = min(dropped, lost)
            buckets[v] = bucket
        count += len(bucket)
        best, last = _expand(bucket, v, moves[v], buckets, ends, best, last, potential.least)
    exact = acyclic and dropped == math.inf
    lower = min(best, dropped) if acyclic else 0.0
    if not ends:
        return Cover(None, math.inf, lower, exact, count)
    chosen = _trace(ends, buckets)
    return Cover(chosen, rows.total(chosen), lower, exact, count)


def _expand(
    bucket: Bucket,
    v: int,
    moves: list[tuple[float, int, int]],
    buckets: list[Bucket],
    ends: Bucket,
    best: float,
    last: int,
    least: list[float],
) -> tuple[float, int]:
    """Resolve class v in every label; returns the best complete cost and its row."""
    for need, (cost, _, _) in bucket.items():
        rest = need ^ (1 << v)
        for price, mask, row in moves:
            after = rest | mask
            total = cost + price
            if total >= best:
                continue
            if not after:
                best, last = total, row
                ends[0] = (total, need, row)
                continue
            at = after.bit_length() - 1
            if total + least[at] >= best:
                continue
            known = buckets[at].get(after)
            if known is None or total < known[0]:
                buckets[at][after] = (total, need, row)
    return best, last


def _trace(ends: Bucket, buckets: list[Bucket]) -> list[int]:
    _, need, row = ends[0]
    chosen = []
    while row >= 0:
        chosen.append(row)
        _, need, row = buckets[need.bit_length() - 1][need]
    return chosen


class _Potential:
    """Lower bounds on what a label still costs.

    `least[v]`: cheapest derivation of position v along one path. `share[v]`: a dual solution in which every class
    spreads its cost evenly over its possible readers; resolved readers have paid for nothing yet, so their part of
    every needed class is still due.
    """

    def __init__(self, moves: list[list[tuple[float, int, int]]]) -> None:
        n = len(moves)
        self.readers: list[list[int]] = [[] for _ in range(n)]
        for v, rows in enumerate(moves):
            union = 0
            for _, mask, _ in rows:
                union |= mask
            for k in bits_of(union):
                self.readers[k].append(v)
        self.least = [0.0] * n
        self.share = [0.0] * n
        for v, rows in enumerate(moves):
            kids = [(price, bits_of(mask)) for price, mask, _ in rows]
            self.least[v] = min([p + max([self.least[k] for k in ks], default=0.0) for p, ks in kids], default=math.inf)
            self.share[v] = min(
                [p + sum([self.share[k] / len(self.readers[k]) for k in ks]) for p, ks in kids], default=math.inf
            )

    def due(self, need: int, v: int) -> float:
        """Lower bound on the cost of completing the label `need` whose last class is v."""
        total = 0.0
        for k in bits_of(need):
            readers = self.readers[k]
            if k == v or not readers:
                total += self.share[k]
            else:
                total += self.share[k] * (len(readers) - bisect_right(readers, v)) / len(readers)
        return total


def _strongest(bucket: Bucket, width: int, potential: _Potential, v: int) -> tuple[Bucket, float]:
    """The `width` labels of least cost plus cost still due, and the least such sum among the others."""
    scored: list[tuple[float, int, Any]] = [
        (label[0] + potential.due(need, v), i, (need, label)) for i, (need, label) in enumerate(bucket.items())
    ]
    kept = heapq.nsmallest(width + 1, scored)
    return dict(entry for _, _, entry in kept[:width]), kept[width][0]


def bits_of(mask: int) -> list[int]:
    """Positions of the set bits, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
