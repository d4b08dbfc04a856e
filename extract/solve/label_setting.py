"""Solves problems with a narrow frontier (few e-classes needed at a time), such as kernel covers of tensor graphs, by
label-setting search.

A label is a set of classes that are still needed. The search always resolves the topologically last class of the set,
so the future of a label depends on the set alone and one label per set suffices (a shortest path over sets). With a
bounded number of labels per step the search is a beam search; its lower bound stays valid because it includes the
dropped labels."""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..model.scc import strongly_connected_components
from .problem import ProblemRows

BEAM_WIDTHS = (30, 300, 3000)
"""Beam widths, tried in this order until one loses no label that matters."""

MAX_RELAXATION_DEPTH = 4
MAX_RELAXATION_STATES = 60_000
"""Largest number of states in the relaxation's table."""

MAX_LABEL_BYTES, LABEL_OVERHEAD_BYTES = 512 << 20, 200
"""Memory limit in bytes of labels and of relaxation moves; bytes per label beside its bitset."""

Label = tuple[float, int, int]  # (cost so far, predecessor label, row that resolved the predecessor's last class)
Bucket = dict[int, Label]
States = dict[int, list[tuple[float, int]]]  # state -> (cost, successor state) of each move


@dataclass(frozen=True)
class LabelSearchResult:
    """Result of a label-setting search.

    `chosen`: rows (ways to compute a class; None: none cheaper than `upper`). `cost`: their cost. `lower`: valid lower
    bound. `exact`: whether the rows are proven optimal (or, without rows, that nothing is cheaper than `upper`).
    `labels`: number of labels (sets of needed classes) expanded.
    """

    chosen: list[int] | None
    cost: float
    lower: float
    exact: bool
    labels: int


def topological(rows: ProblemRows, prefer: list[int] | None = None) -> tuple[list[int], bool]:
    """Topological order of classes, as (position of each class, whether every row's children have lower positions). A
    row is one way to compute a class from its children.

    A cyclic problem has no such order. Then the classes of a strongly connected component are ordered as in `prefer`
    (the rows of a solution, children first; None: none), and the others by index. Rows that contradict the order are
    dropped, so that the result of a search proves no optimum.
    """
    graph: list[list[int]] = [[] for _ in range(rows.n_classes)]
    for c, children in zip(rows.cls, rows.children):
        graph[c].extend(children)
    _, order = strongly_connected_components(graph)
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


def _as_early_as_possible(rows: ProblemRows, graph: list[list[int]], order: list[int]) -> list[int]:
    """Positions assigned from the top down: a class is ready when all its parents are placed.

    Among ready classes, those with one row come first (they leave the frontier without branching: kernels with several
    outputs), then the last one in `order`.
    """
    rank = [0] * len(order)
    for n, c in enumerate(order):
        rank[c] = n
    children = [set(row) for row in graph]
    waiting = [0] * len(order)
    for row in children:
        for k in row:
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


class LabelSetting:
    """Label-setting search of a problem, with any beam width.

    `acyclic`: whether every row's children precede its class in the order, so that no row (a way to compute a class)
    had to be left out.
    """

    def __init__(self, rows: ProblemRows, prefer: list[int] | None = None) -> None:
        self.rows = rows
        position, self.acyclic = topological(rows, prefer)
        bit = [1 << p for p in position]
        self.moves: list[list[tuple[float, int, int]]] = [[] for _ in position]
        for row, (c, children) in enumerate(zip(rows.cls, rows.children)):
            mask = sum([bit[k] for k in children])
            if mask < bit[c]:
                self.moves[position[c]].append((rows.cost[row], mask, row))
        self.start = sum({bit[r] for r in rows.roots})

    @property
    def set_bytes(self) -> int:
        """Estimated memory of a label (set of needed classes) in bytes."""
        return len(self.moves) // 8 + LABEL_OVERHEAD_BYTES

    @cached_property
    def relaxed(self) -> RelaxedBounds:
        """Lower bounds on the remaining cost of labels (sets of needed classes)."""
        return RelaxedBounds(self.moves, self.start)

    @cached_property
    def shares(self) -> BeamRanking:
        """Estimated remaining costs that rank labels in a beam."""
        return BeamRanking(self.moves)

    def search(
        self,
        width: int | None = None,
        *,
        max_labels: float = math.inf,
        upper: float = math.inf,
        deadline: float = math.inf,
        stop: Callable[[], bool] | None = None,
    ) -> LabelSearchResult:
        """Search with at most `width` labels (sets of needed classes) per step (None: all). Labels that cannot lead to
        a cost below `upper` are dropped, which loses no better solution.

        The result has no solution and only the relaxation's bound if more than `max_labels` are expanded, labels take
        more than MAX_LABEL_BYTES bytes, `deadline` (time.perf_counter()) passes or `stop` returns True.
        """
        if not self.start:
            return LabelSearchResult([], 0.0, 0.0, True, 0)
        floor = self.relaxed.of(self.start) if self.acyclic else 0.0
        buckets: list[Bucket] = [{} for _ in self.moves]
        buckets[self.start.bit_length() - 1][self.start] = (0.0, 0, -1)
        best, dropped, count = upper, math.inf, 0
        room = MAX_LABEL_BYTES // self.set_bytes
        ends: Bucket = {}
        for v in range(len(self.moves) - 1, -1, -1):
            bucket = buckets[v]
            if not bucket:
                continue
            count += len(bucket) if width is None else min(width, len(bucket))
            if count > max_labels or room < 0 or time.perf_counter() > deadline or (stop is not None and stop()):
                return LabelSearchResult(None, math.inf, min(floor, upper), False, count)
            if width is not None and len(bucket) > width:
                buckets[v], lost = _strongest(bucket, width, self.shares, self.relaxed, v)
                dropped = min(dropped, lost)
            best, more = _expand(buckets, v, self.moves[v], ends, best, self.relaxed)
            room -= more
        lower = max(min(floor, best), min(best, dropped)) if self.acyclic else 0.0
        exact = self.acyclic and dropped >= best
        if not ends:
            return LabelSearchResult(None, math.inf, lower, exact, count)
        chosen = _trace(ends, buckets)
        return LabelSearchResult(chosen, self.rows.total(chosen), lower, exact, count)


def _expand(
    buckets: list[Bucket],
    v: int,
    moves: list[tuple[float, int, int]],
    ends: Bucket,
    best: float,
    relaxed: RelaxedBounds,
) -> tuple[float, int]:
    """Resolve class v in every label of its bucket; returns (best complete cost, number of labels added)."""
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


class RelaxedBounds:
    """Lower bounds on the remaining cost of a label, by state-space relaxation.

    `of(need)` is the exact cost of a relaxed problem in which all but the topologically last `depth` needed classes are
    dropped after every step. Dropping classes only lowers the cost. The depth grows while the table stays below
    MAX_RELAXATION_STATES.
    """

    def __init__(self, moves: list[list[tuple[float, int, int]]], start: int) -> None:
        self.moves = moves
        self.table: dict[int, float] = {0: 0.0}
        self.depth = 0
        for depth in range(1, MAX_RELAXATION_DEPTH + 1):
            states = self._reachable(start, depth)
            if states is None:
                break
            self.depth = depth
            self._solve(states)

    def of(self, need: int) -> float:
        """Lower bound on the cost of completing the label `need` (bitset of the classes that are still needed)."""
        state = last_bits(need, self.depth)
        while state:
            found = self.table.get(state)
            if found is not None:
                return found
            state &= state - 1  # fall back to the table of smaller depth
        return 0.0

    def _reachable(self, start: int, depth: int) -> list[States] | None:
        """The reachable states of one depth by their last class, each with its moves; None if there are too many."""
        buckets: list[States] = [{} for _ in self.moves]
        state = last_bits(start, depth)
        buckets[state.bit_length() - 1][state] = []
        count, steps = 0, 0
        most = MAX_LABEL_BYTES // (len(self.moves) // 8 + LABEL_OVERHEAD_BYTES)
        for v in range(len(self.moves) - 1, -1, -1):
            count += len(buckets[v])
            steps += len(buckets[v]) * len(self.moves[v])
            if count > MAX_RELAXATION_STATES or steps > most:
                return None
            moves = [(price, mask) for price, mask, _ in self.moves[v]]
            for state, moves_on in buckets[v].items():
                rest = state ^ (1 << v)
                for price, mask in moves:
                    after = last_bits(rest | mask, depth)
                    moves_on.append((price, after))
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
    """`mask` with only its `count` highest set bits."""
    extra = mask.bit_count() - count
    if extra <= count:  # usually one or two too many: clear the lowest
        for _ in range(extra):
            mask &= mask - 1
        return mask
    rest = mask
    for _ in range(count):
        if not rest:
            return mask
        rest ^= 1 << (rest.bit_length() - 1)
    return mask ^ rest


class BeamRanking:
    """Estimated remaining cost of a label, for beam ranking.

    Each class splits its cost evenly among its possible parents; the shares of parents already resolved are still
    unpaid, so they are charged to the needed class.
    """

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
        """Estimated cost of completing the label `need` (bitset of needed classes), whose last class is `v`."""
        total = 0.0
        for k in bits_of(need):
            readers = self.readers[k]
            part = 1.0 if k == v or not readers else (len(readers) - bisect_right(readers, v)) / len(readers)
            total += self.share[k] * part
        return total


def _strongest(bucket: Bucket, width: int, shares: BeamRanking, relaxed: RelaxedBounds, v: int) -> tuple[Bucket, float]:
    """(the `width` labels with the least estimated cost, a lower bound on completing any other label of the bucket)."""
    scored: list[tuple[float, int, Any]] = [
        (label[0] + shares.due(need, v), i, (need, label)) for i, (need, label) in enumerate(bucket.items())
    ]
    kept = dict(entry for _, _, entry in heapq.nsmallest(width, scored))
    return kept, min(label[0] + relaxed.of(need) for need, label in bucket.items() if need not in kept)


def bits_of(mask: int) -> list[int]:
    """Positions of the set bits of `mask`, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
