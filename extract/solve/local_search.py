"""Improves an extraction by local search, for problems too large for a proof and before proofs.

A move gives one class of the solution another row (a way to compute a class). Its cost change is computed, not
estimated: classes that only the old row needed are released, classes that the new row lacks are added along default
derivations (of least tree cost, with used rows free).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .greedy import bottom_up, discounted, tree_costs
from .problem import ProblemRows

MAX_SWEEPS = 20
NEW_POSITION_SHARE = 0.1
"""Position of a newly added class, as a share of the gap between its children and the class being changed."""

MAX_MOVE_READS = 300
"""Largest number of reads that a move may follow; without a limit a pass over a long chain takes quadratic time."""

LEAST_GAIN = 1e-12
"""Least gain, relative to the cost of the solution; smaller gains are rounding."""


def local_search(
    rows: ProblemRows, chosen: Sequence[int], expired: Callable[[], bool] = lambda: False, least: float = 0.0
) -> list[int]:
    """A solution no dearer than `chosen`, by local search; both are rows (ways to compute a class), children first.

    Makes at most MAX_SWEEPS passes; ends after a pass that gained less than a share `least` of the cost, or when
    `expired` (polled) returns True.
    """
    best = list(chosen)
    idle = 0
    for sweep in range(MAX_SWEEPS):
        if expired() or idle == 2:
            break
        found = _Swaps(rows, best, upwards=sweep % 2 == 0).run(expired)
        before = rows.total(best)
        gain = before - rows.total(found) if found is not None else 0.0
        if found is not None and gain > 0:
            best = found
        idle = 0 if gain > 0 else idle + 1
        if gain < least * before:
            break
    return best


def promising_rows(rows: ProblemRows, chosen: Sequence[int], most: int) -> list[int]:
    """Rows (ways to compute a class) worth offering to an exact solver, in row order: those of the solution `chosen`,
    and at most `most` others.

    The others are those whose tree cost exceeds that of the best row of their class by the least, where the rows of the
    solution cost nothing.
    """
    price = discounted(rows, chosen)
    best, _ = tree_costs(rows, price)
    tree = np.array([p + sum([best[k] for k in children]) for p, children in zip(price, rows.children)])
    with np.errstate(invalid="ignore"):  # classes without a term: inf - inf
        more = tree - np.array(best)[rows.cls]
    more[list(chosen)] = -1.0
    kept = np.argsort(more, kind="stable")[: len(chosen) + most]
    return sorted(kept[np.isfinite(more[kept])].tolist())


class _Swaps:
    """One pass of local search over the classes of a solution (`run`).

    `count[c]`: rows of the solution (and roots) that read class c; `place`: topological position in the solution.

    A row is tried only if its children lie below its class in that order, which keeps the solution acyclic. Passes
    alternate between orders that place classes as low and as high as possible, because each forbids other moves.
    """

    def __init__(self, rows: ProblemRows, chosen: Sequence[int], *, upwards: bool) -> None:
        self.rows, self.cost, self.children = rows, rows.cost, rows.children
        self.choice = bottom_up(rows, discounted(rows, chosen))
        for row in chosen:
            self.choice[rows.cls[row]] = row
        self.count = [0] * rows.n_classes
        for c in [*rows.roots, *(k for row in chosen for k in rows.children[row])]:
            self.count[c] += 1
        self.used = [rows.cls[row] for row in chosen]
        self.place = _levels(rows, chosen, upwards)
        self.least = LEAST_GAIN * rows.total(chosen)

    def run(self, expired: Callable[[], bool]) -> list[int] | None:
        """Try every class of the solution once, from the roots down; returns the new solution."""
        for n, c in enumerate(reversed(self.used)):
            if not n & 63 and expired():
                break
            if self.count[c] and len(self.rows.members[c]) > 1:
                self._improve(c)
        return self.rows.walk(self.choice)

    def _improve(self, c: int) -> None:
        """Give class c its cheapest row, with the rest of the solution fixed."""
        count, old = self.count, self.choice[c]
        released: list[int] = []
        most = self.cost[old] + self._release(self.children[old], released)
        for k in released:
            count[k] += 1
        best, gain = old, self.least
        for row in self.rows.members[c]:
            if row == old or self.cost[row] >= most:
                continue
            added: list[int] = []
            released = []
            change = self._add(row, self.place[c], most, added)
            if change < most:
                change -= self.cost[old] + self._release(self.children[old], released)
                if -change > gain and len(released) < MAX_MOVE_READS:
                    best, gain = row, -change
            for k in released:
                count[k] += 1
            for k in added:
                count[k] -= 1
        if best != old:
            self._add(best, self.place[c], most, [])
            self._release(self.children[old], [])
            self.choice[c] = best

    def _release(self, children: Sequence[int], released: list[int]) -> float:
        """Remove reads, and recursively those of classes without remaining readers (noted in `released`).

        Returns the cost saved, inf if more than MAX_MOVE_READS classes are affected.
        """
        count, choice, cost = self.count, self.choice, self.cost
        saved = 0.0
        todo = list(children)
        while todo:
            if len(released) >= MAX_MOVE_READS:
                return math.inf
            k = todo.pop()
            count[k] -= 1
            released.append(k)
            if not count[k]:
                saved += cost[choice[k]]
                todo += self.children[choice[k]]
        return saved

    def _add(self, row: int, top: float, limit: float, added: list[int]) -> float:
        """Add the reads of a row and recursively of all classes to be made for it (noted in `added`).

        Returns the cost, inf if it reaches `limit`, or a class has no derivation or lies at `top` or above. New classes
        get positions below `top`.

        A class being added has position infinity until all its children have one: cyclic defaults are refused.
        """
        count, choice, place, children, cost = self.count, self.choice, self.place, self.children, self.cost
        total = cost[row]
        stack: list[tuple[int, Iterator[int]]] = [(-1, iter(children[row]))]
        while stack:
            c, rest = stack[-1]
            for k in rest:
                count[k] += 1
                added.append(k)
                if count[k] == 1:
                    if choice[k] < 0 or len(added) >= MAX_MOVE_READS:
                        return math.inf
                    total += cost[choice[k]]
                    if total >= limit:
                        return math.inf
                    place[k] = math.inf
                    stack.append((k, iter(children[choice[k]])))
                    break
                if place[k] >= top:
                    return math.inf
            else:
                stack.pop()
                if c >= 0:
                    below = max([place[k] for k in children[choice[c]]], default=-1.0)
                    place[c] = below + (top - below) * NEW_POSITION_SHARE
        return total


def _levels(rows: ProblemRows, chosen: Sequence[int], upwards: bool) -> list[float]:
    """Position of each class of a solution: as low as its children allow, or as high as its readers allow."""
    level = dict.fromkeys([rows.cls[row] for row in chosen], 0)
    for row in chosen if upwards else reversed(chosen):
        c = rows.cls[row]
        if upwards:
            level[c] = 1 + max([level[k] for k in rows.children[row]], default=0)
        else:
            for k in rows.children[row]:
                level[k] = min(level[k], level[c] - 1)
    place = [math.inf] * rows.n_classes
    for n, c in enumerate(sorted(level, key=level.__getitem__)):
        place[c] = float(n)
    return place
