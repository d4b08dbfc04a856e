"""Computes greedy extractions without proof, from which every exact solver starts.

All take `ProblemRows`, at other costs of rows (ways to compute a class) if `cost` is given, and return one row per
class (-1: no finite term); the caller collects what the roots reach (`ProblemRows.walk`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from .problem import ProblemRows

MAX_BITSET_BYTES = 400 << 20
"""Memory limit of the class sets of the one-pass greedy; larger problems get tree cost only."""

MAX_TREE_COST = 1e300
"""Cap of tree costs: they double with every level of a deep shared term and would overflow to infinity."""

QUEUE_ROWS = 60_000
SET_UPDATES, SET_UPDATES_PER_ROW = 3_000_000, 12
"""Work limits of the queue greedy, in set elements touched: its time is quadratic on deep graphs. Above QUEUE_ROWS rows
the limit is per row: enough for shallow graphs, soon exceeded on others."""


def bottom_up(rows: ProblemRows, cost: Sequence[float] | None = None) -> list[int]:
    """Row (a way to compute a class) of least tree cost in each class; -1 for classes without a finite term. `cost`:
    costs of the rows, if not `rows.cost`."""
    return tree_costs(rows, cost)[1]


def tree_costs(rows: ProblemRows, cost: Sequence[float] | None = None) -> tuple[list[float], list[int]]:
    """Least tree cost of each class and the row (a way to compute a class) that attains it, by Knuth's generalisation
    of Dijkstra's algorithm.

    O(size log size).
    """
    price = rows.cost if cost is None else cost
    best = [np.inf] * rows.n_classes
    choice = [-1] * rows.n_classes
    done = bytearray(rows.n_classes)
    cls, children, parents = rows.cls, rows.children, rows.parents
    left = [len(k) for k in children]
    heap: list[tuple[float, int]] = []
    for row, missing in enumerate(left):
        if not missing and price[row] < best[cls[row]]:
            best[cls[row]], choice[cls[row]] = price[row], row
            heap.append((price[row], cls[row]))
    heapq.heapify(heap)
    while heap:
        value, c = heapq.heappop(heap)
        if done[c]:
            continue
        done[c] = 1
        for row in parents[c]:
            left[row] -= 1
            owner = cls[row]
            if left[row] or done[owner]:
                continue
            value = min(price[row] + sum([best[k] for k in children[row]]), MAX_TREE_COST)
            if value < best[owner]:
                best[owner], choice[owner] = value, row
                heapq.heappush(heap, (value, owner))
    return best, choice


def path_bounds(rows: ProblemRows, cost: Sequence[float] | None = None) -> list[float]:
    """Lower bound per class: the minimum over its rows (ways to compute a class) of own cost plus the largest child
    bound.

    inf for classes without a finite term.
    """
    price = rows.cost if cost is None else cost
    bound = [np.inf] * rows.n_classes
    left = [len(k) for k in rows.children]
    cls, parents = rows.cls, rows.parents
    heap = [(price[row], cls[row]) for row, missing in enumerate(left) if not missing]
    heapq.heapify(heap)
    while heap:
        value, c = heapq.heappop(heap)
        if bound[c] < np.inf:
            continue
        bound[c] = value
        for row in parents[c]:
            left[row] -= 1
            if not left[row] and bound[cls[row]] == np.inf:
                heapq.heappush(heap, (price[row] + value, cls[row]))
    return bound


class _Weights:
    """Sum of per-class prices over a bitset of classes."""

    def __init__(self, n: int) -> None:
        self.bytes = (n + 7) // 8
        self.price = [0.0] * (self.bytes * 8)
        self.table = np.zeros((self.bytes, 8))  # the same prices, indexed by byte and bit
        self.few = 48 if n < 4_000 else 8  # bit-by-bit loops are slow on wide bitsets

    def set(self, c: int, price: float) -> None:
        self.price[c] = self.table[c >> 3, c & 7] = price

    def of(self, bits: int) -> float:
        if bits.bit_count() > self.few:
            packed = np.frombuffer(bits.to_bytes(self.bytes, "little"), np.uint8)
            at = packed.nonzero()[0]
            spread = np.unpackbits(packed[at], bitorder="little").reshape(-1, 8)
            return float((spread * self.table[at]).sum())
        total = 0.0
        price = self.price
        while bits:
            top = bits.bit_length() - 1
            total += price[top]
            bits ^= 1 << top
        return total


def one_pass(
    rows: ProblemRows, cost: Sequence[float] | None = None, expired: Callable[[], bool] = lambda: False
) -> list[int] | None:
    """Row (a way to compute a class) of each class by greedy DAG cost: classes are finalised in order of DAG cost. -1:
    no finite term.

    Each row is costed once, from bitset differences of its children.

    None if the bitsets would exceed MAX_BITSET_BYTES, or when `expired` (polled every 512 classes) returns True.
    """
    n = rows.n_classes
    if n * n // 8 > MAX_BITSET_BYTES:
        return None
    price = rows.cost if cost is None else cost
    cls, children, parents = rows.cls, rows.children, rows.parents
    total = [np.inf] * n
    choice = [-1] * n
    used = [0] * n
    done = bytearray(n)
    weights = _Weights(n)
    left = [len(k) for k in children]
    heap: list[tuple[float, int]] = []
    for row, missing in enumerate(left):
        if not missing and price[row] < total[cls[row]]:
            total[cls[row]], choice[cls[row]] = price[row], row
            heap.append((price[row], cls[row]))
    heapq.heapify(heap)
    finished = 0
    while heap:
        value, c = heapq.heappop(heap)
        if done[c]:
            continue
        done[c] = 1
        finished += 1
        if not finished & 511 and expired():
            return None
        used[c] |= 1 << c
        weights.set(c, price[choice[c]])
        for row in parents[c]:
            left[row] -= 1
            owner = cls[row]
            if left[row] or done[owner]:
                continue
            value, bits = _joined(children[row], price[row], total[owner], total, used, weights)
            if value < total[owner]:
                total[owner], choice[owner], used[owner] = value, row, bits
                heapq.heappush(heap, (value, owner))
    return choice


def _joined(
    children: tuple[int, ...], own: float, limit: float, total: list[float], used: list[int], weights: _Weights
) -> tuple[float, int]:
    """(DAG cost, class set) of a row from its children's sets; (inf, 0) as soon as the cost reaches `limit`."""
    big = max(children, key=total.__getitem__)
    value, bits = own + total[big], used[big]
    for k in children:
        if value >= limit:
            return np.inf, 0
        new = used[k] & ~bits
        if new:
            value += weights.of(new)
            bits |= new
    return value, bits


def queued(
    rows: ProblemRows,
    cost: Sequence[float] | None = None,
    budget: int = SET_UPDATES,
    expired: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Row (a way to compute a class) of each class by greedy DAG cost, with a work queue and re-evaluation (the idea of
    "faster greedy DAG" in extraction-gym). -1: no finite term.

    Stops after `budget` set elements were touched, or when `expired` (polled every 1024 rows) returns True; the partial
    result is still valid.
    """
    price = rows.cost if cost is None else cost
    cls, children, parents = rows.cls, rows.children, rows.parents
    sets: list[dict[int, float] | None] = [None] * rows.n_classes
    total = [np.inf] * rows.n_classes
    choice = [-1] * rows.n_classes
    left = [len(k) for k in children]
    queue = deque(row for row, missing in enumerate(left) if not missing)
    waiting = bytearray(len(rows))
    popped = 0
    while queue and budget > 0:
        popped += 1
        if not popped & 1023 and expired():
            break
        row = queue.popleft()
        waiting[row] = 0
        c = cls[row]
        if children[row] and price[row] + max([total[k] for k in children[row]]) >= total[c]:
            continue
        found = [s for k in children[row] if (s := sets[k]) is not None]
        if any(c in s for s in found):
            continue
        found.sort(key=len, reverse=True)
        merged = dict(found[0]) if found else {}
        for s in found[1:]:
            merged.update(s)
        merged[c] = price[row]
        budget -= len(merged)
        value = sum(merged.values())
        if value >= total[c]:
            continue
        fresh = sets[c] is None
        sets[c], total[c], choice[c] = merged, value, row
        for parent in parents[c]:
            left[parent] -= fresh
            if left[parent] <= 0 and not waiting[parent]:
                waiting[parent] = 1
                queue.append(parent)
    return choice


def discounted(rows: ProblemRows, chosen: Collection[int]) -> list[float]:
    """Costs of all rows (ways to compute a class), with those of the solution `chosen` set to 0: a greedy extraction at
    these costs repairs or refines the solution."""
    price = list(rows.cost)
    for row in chosen:
        price[row] = 0.0
    return price


def best_greedy(
    rows: ProblemRows,
    extra: Sequence[Sequence[int]] = (),
    *,
    quick: bool = False,
    given_only: bool = False,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[float, list[int], str]:
    """The cheapest of several greedy extractions and of the choices `extra`, as (cost, rows children first, method's
    name).

    `quick`: of the greedy methods only the one by tree cost. `given_only`: only `extra` if one of them is a solution.
    `expired`: polled; True cuts the slower methods short. Returns (inf, [], "") if a root has no finite term.
    """
    candidates: list[tuple[str, Sequence[int] | None]] = [("hint", choice) for choice in extra]
    if given_only and (best := _cheapest(rows, candidates))[1]:
        return best
    candidates.append(("bottom-up", bottom_up(rows)))
    if not quick:
        candidates.append(("one-pass", one_pass(rows, expired=expired)))
    if not quick and not (len(rows) > QUEUE_ROWS and expired()):
        budget = SET_UPDATES if len(rows) <= QUEUE_ROWS else SET_UPDATES_PER_ROW * len(rows)
        candidates.append(("queue", queued(rows, budget=budget, expired=expired)))
    return _cheapest(rows, candidates)


def _cheapest(
    rows: ProblemRows, candidates: Sequence[tuple[str, Sequence[int] | None]]
) -> tuple[float, list[int], str]:
    """The cheapest of named choices that are solutions; (inf, [], "") if none is."""
    best: tuple[float, list[int], str] = (np.inf, [], "")
    for name, choice in candidates:
        chosen = rows.walk(choice) if choice is not None else None
        if chosen is not None and (total := rows.total(chosen)) < best[0]:
            best = (total, chosen, name)
    return best
