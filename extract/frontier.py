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
from functools import cached_property
from typing import Any

from .problem import Rows
from .scc import components

WIDTHS = (30, 300, 3000)
"""Beam widths tried in turn until one is exact."""

DEPTHS = 4
STATES = 60_000
"""Largest table of the relaxation."""

MEMORY, SET_BYTES = 512 << 20, 200
"""Bytes that labels, and the moves of the relaxation, may take; those of one beside the set of classes in it."""

Label = tuple[float, int, int]  # cost so far, the label it came from, the row that resolved it
Bucket = dict[int, Label]
States = dict[int, list[tuple[float, int]]]  # state -> (cost, state afterwards) of each move


@dataclass(frozen=True)
class Cover:
    """Result: rows chosen (None: none cheaper than the given limit), their cost, a valid lower bound, whether that is
    proven optimal (or, without rows, that nothing is cheaper than the limit), labels expanded."""

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
    if len(order) == rows.n_classes:
        return _as_early_as_possible(rows, graph, [c for (c,) in order]), True
    place = {rows.cls[row]: n for n, row in enumerate(prefer or [])}
    position = [0] * rows.n_classes
    at = 0
    for member in order:
        for c in sorted(member, key=lambda c: (place.get(c, len(place)), c)) if len(member) > 1 else member:
            position[c] = at
            at += 1
    return position, False


def _as_early_as_possible(rows: Rows, graph: list[list[int]], order: list[int]) -> list[int]:
    """Positions from the top down: a class comes when all its readers have come; among those, one without a choice first
    (it leaves the frontier at no cost: kernels with several outputs), then the last in `order`."""
    rank = [0] * len(order)
    for n, c in enumerate(order):
        rank[c] = n
    children = [set(kids) for kids in graph]
    waiting = [0] * len(order)
    for kids in children:
        for k in kids:
            waiting[k] += 1
    ready = [(len(rows.members[c]) > 1, -rank[c], c) for c, left in enumerate(waiting) if not left]
    heapq.heapify(ready)
    position = [0] * len(order)
    for at in range(len(order) - 1, -1, -1):
        _, _, c = heapq.heappop(ready)
        position[c] = at
        for k in children[c]:
            waiting[k] -= 1
            if not waiting[k]:
                heapq.heappush(ready, (len(rows.members[k]) > 1, -rank[k], k))
    return position


class Frontier:
    """A problem prepared for searches of several widths. `acyclic`: its order loses no row."""

    def __init__(self, rows: Rows, prefer: list[int] | None = None) -> None:
        self.rows = rows
        position, self.acyclic = topological(rows, prefer)
        bit = [1 << p for p in position]
        self.moves: list[list[tuple[float, int, int]]] = [[] for _ in position]
        for row, (c, kids) in enumerate(zip(rows.cls, rows.kids)):
            mask = sum([bit[k] for k in kids])
            if mask < bit[c]:
                self.moves[position[c]].append((rows.cost[row], mask, row))
        self.start = sum({bit[r] for r in rows.roots})

    @property
    def set_bytes(self) -> int:
        """Bytes of a label."""
        return len(self.moves) // 8 + SET_BYTES

    @cached_property
    def relaxed(self) -> Relaxed:
        """Lower bounds of labels."""
        return Relaxed(self.moves, self.start)

    @cached_property
    def shares(self) -> Shares:
        """Ranks of labels."""
        return Shares(self.moves)

    def search(
        self,
        width: int | None = None,
        *,
        max_labels: float = math.inf,
        upper: float = math.inf,
        deadline: float = math.inf,
        stop: Callable[[], bool] | None = None,
    ) -> Cover:
        """Search with at most `width` labels per step (None: all). Labels that cannot beat `upper` are dropped soundly.

        When `max_labels` are exceeded, labels take more than MEMORY, `deadline` (on time.perf_counter()) passes or `stop` says so, the answer has no
        solution, only the bound of the relaxation.
        """
        if not self.start:
            return Cover([], 0.0, 0.0, True, 0)
        floor = self.relaxed.of(self.start) if self.acyclic else 0.0
        buckets: list[Bucket] = [{} for _ in self.moves]
        buckets[self.start.bit_length() - 1][self.start] = (0.0, 0, -1)
        best, dropped, count = upper, math.inf, 0
        room = MEMORY // self.set_bytes
        ends: Bucket = {}
        for v in range(len(self.moves) - 1, -1, -1):
            bucket = buckets[v]
            if not bucket:
                continue
            count += len(bucket) if width is None else min(width, len(bucket))
            if count > max_labels or room < 0 or time.perf_counter() > deadline or (stop is not None and stop()):
                return Cover(None, math.inf, min(floor, upper), False, count)
            if width is not None and len(bucket) > width:
                buckets[v], lost = _strongest(bucket, width, self.shares, self.relaxed, v)
                dropped = min(dropped, lost)
            best, more = _expand(buckets, v, self.moves[v], ends, best, self.relaxed)
            room -= more
        lower = max(min(floor, best), min(best, dropped)) if self.acyclic else 0.0
        exact = self.acyclic and dropped >= best
        if not ends:
            return Cover(None, math.inf, lower, exact, count)
        chosen = _trace(ends, buckets)
        return Cover(chosen, self.rows.total(chosen), lower, exact, count)


def _expand(
    buckets: list[Bucket], v: int, moves: list[tuple[float, int, int]], ends: Bucket, best: float, relaxed: Relaxed
) -> tuple[float, int]:
    """Resolve class v in every label; returns the best complete cost and how many labels were added."""
    added = 0
    for need, (cost, _, _) in buckets[v].items():
        rest = need ^ (1 << v)
        for price, mask, row in moves:
            after = rest | mask
            total = cost + price
            if total >= best:
                continue
            if not after:
                best = total
                ends[0] = (total, need, row)
                continue
            bucket = buckets[after.bit_length() - 1]
            known = bucket.get(after)
            if known is None:
                if total + relaxed.of(after) < best:
                    added += 1
                    bucket[after] = (total, need, row)
            elif total < known[0]:
                bucket[after] = (total, need, row)
    return best, added


def _trace(ends: Bucket, buckets: list[Bucket]) -> list[int]:
    _, need, row = ends[0]
    chosen = []
    while row >= 0:
        chosen.append(row)
        _, need, row = buckets[need.bit_length() - 1][need]
    return chosen


class Relaxed:
    """Lower bounds on what a label still costs, by state-space relaxation: only the last few needed classes are kept.

    `of(need)` is exact for the problem in which all but the topologically last `depth` needed classes are forgotten
    after every step; forgetting can only make a problem cheaper. Tables are deepened while they stay below STATES.
    """

    def __init__(self, moves: list[list[tuple[float, int, int]]], start: int) -> None:
        self.moves = moves
        self.table: dict[int, float] = {0: 0.0}
        self.depth = 0
        for depth in range(1, DEPTHS + 1):
            states = self._reachable(start, depth)
            if states is None:
                break
            self.depth = depth
            self._solve(states)

    def of(self, need: int) -> float:
        """Lower bound on completing a label."""
        state = last_bits(need, self.depth)
        while state:
            found = self.table.get(state)
            if found is not None:
                return found
            state &= state - 1  # the table of one class less
        return 0.0

    def _reachable(self, start: int, depth: int) -> list[States] | None:
        """The states of one depth by last class, each with its moves; None if there are too many."""
        buckets: list[States] = [{} for _ in self.moves]
        state = last_bits(start, depth)
        buckets[state.bit_length() - 1][state] = []
        count, steps = 0, 0
        most = MEMORY // (len(self.moves) // 8 + SET_BYTES)
        for v in range(len(self.moves) - 1, -1, -1):
            count += len(buckets[v])
            steps += len(buckets[v]) * len(self.moves[v])
            if count > STATES or steps > most:
                return None
            moves = [(price, mask) for price, mask, _ in self.moves[v]]
            for state, ways in buckets[v].items():
                rest = state ^ (1 << v)
                for price, mask in moves:
                    after = last_bits(rest | mask, depth)
                    ways.append((price, after))
                    if after:
                        buckets[after.bit_length() - 1].setdefault(after, [])
        return buckets

    def _solve(self, buckets: list[States]) -> None:
        table: dict[int, float] = {0: 0.0}
        for states in buckets:
            for state, steps in states.items():
                table[state] = min([price + table[after] for price, after in steps], default=math.inf)
        self.table.update(table)


def last_bits(mask: int, count: int) -> int:
    """The `count` highest set bits."""
    extra = mask.bit_count() - count
    if extra <= count:  # most often one or two too many: drop the lowest
        for _ in range(extra):
            mask &= mask - 1
        return mask
    rest = mask
    for _ in range(count):
        if not rest:
            return mask
        rest ^= 1 << (rest.bit_length() - 1)
    return mask ^ rest


class Shares:
    """What a label still owes, for ranking labels in a beam: every class spreads its cost evenly over its possible
    readers; the readers already resolved have paid nothing yet, so their part of each needed class is due."""

    def __init__(self, moves: list[list[tuple[float, int, int]]]) -> None:
        self.readers: list[list[int]] = [[] for _ in moves]
        for v, rows in enumerate(moves):
            union = 0
            for _, mask, _ in rows:
                union |= mask
            for k in bits_of(union):
                self.readers[k].append(v)
        self.share = [0.0] * len(moves)
        for v, rows in enumerate(moves):
            sums = [p + sum([self.share[k] / len(self.readers[k]) for k in bits_of(mask)]) for p, mask, _ in rows]
            self.share[v] = min(sums, default=math.inf)

    def due(self, need: int, v: int) -> float:
        """Estimate of the cost of completing the label `need`, whose last class is v."""
        total = 0.0
        for k in bits_of(need):
            readers = self.readers[k]
            part = 1.0 if k == v or not readers else (len(readers) - bisect_right(readers, v)) / len(readers)
            total += self.share[k] * part
        return total


def _strongest(bucket: Bucket, width: int, shares: Shares, relaxed: Relaxed, v: int) -> tuple[Bucket, float]:
    """The `width` labels that look cheapest, and a lower bound on completing any of the others."""
    scored: list[tuple[float, int, Any]] = [
        (label[0] + shares.due(need, v), i, (need, label)) for i, (need, label) in enumerate(bucket.items())
    ]
    kept = dict(entry for _, _, entry in heapq.nsmallest(width, scored))
    return kept, min(label[0] + relaxed.of(need) for need, label in bucket.items() if need not in kept)


def bits_of(mask: int) -> list[int]:
    """Positions of the set bits, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
