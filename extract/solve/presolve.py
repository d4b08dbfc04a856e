"""Presolve: which reductions of an extraction problem (`Presolver`) are applied, in which order and how often."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from ..model.scc import strongly_connected_components
from .dominators import class_graph
from .presolver import PresolvedRows, Presolver
from .problem import ProblemRows

MUST_CLASSES = 50_000
"""Must sets take classes^2 / 8 bytes: above this number of classes only the roots' sets are computed."""

LARGE_ROWS = 50_000
MAX_PRESOLVE_ROUNDS = 6
LAST_ROUND_SHARE = 0.99
"""Presolve ends when a round leaves more than this share of classes, rows and reads."""

RENUMBER_SHARE = 0.7
"""Classes are renumbered when fewer than this share are left."""


def detach(rows: ProblemRows, expired: Callable[[], bool] = lambda: False) -> PresolvedRows | None:
    """First, cheap reduction of a whole e-graph; keeps all acyclic solutions.

    Drops rows (ways to compute a class) that read a class without a finite term, classes that no root reaches, and
    reads of classes that every solution contains. None if a root has no finite term. When `expired` (polled) returns
    True, the classes that every solution contains are found by a weaker test.
    """
    work = Presolver(rows)
    work.keep_reachable()
    work.derive()
    if not all(work.items[c] for c in work.on):
        return None
    work.keep_reachable()
    few = sum(map(bool, work.items)) <= MUST_CLASSES
    work.find_always_on(few, expired, of_roots=not few)
    work.drop_always_on_reads()
    work.keep_reachable()
    return work.compact()


def presolve(
    rows: ProblemRows,
    upper: float = np.inf,
    *,
    rounds: int = MAX_PRESOLVE_ROUNDS,
    keep_all: bool = False,
    pinned: Collection[int] = (),
    expired: Callable[[], bool] = lambda: False,
) -> PresolvedRows:
    """A problem after all reductions, repeated until none applies.

    Every root must have a finite term. `upper`: cost of a known solution (inf: none).

    `keep_all`: keep every solution of cost <= `upper`, not only an optimal one (for k-best and under limits); `pinned`
    rows (ways to compute a class) are then never replaced by their children, so that they remain visible in solutions.
    `expired`: polled; True ends the reductions early. Above LARGE_ROWS there is one round, without must sets.
    """
    work = Presolver(rows, pinned)
    work.derive()
    work.keep_reachable()
    large = len(rows) > LARGE_ROWS
    for turn in range(1 if large else rounds):
        if expired():
            break
        if sum([1 for row in work.items if row]) < RENUMBER_SHARE * len(work.items):
            work.renumber()
        before = work.size
        work.find_always_on(not large and before[0] <= (MUST_CLASSES if turn < 2 else MUST_CLASSES // 4), expired)
        work.drop_always_on_reads()
        if expired():
            break
        if not keep_all:
            work.drop_dominated(expired)
        if expired():
            break
        if upper < np.inf:
            work.prune_by_bound(upper)
            work.derive()
        work.move_costs(keep_all)
        work.collapse()
        work.derive()
        work.keep_reachable()
        if work.constant >= upper * (1 - 1e-12) or sum(work.size) >= LAST_ROUND_SHARE * sum(before):
            break
    if not large:
        work.component, _ = strongly_connected_components(class_graph(work.items))
        work.drop_always_on_reads()
    work.keep_reachable()  # reads may have been dropped last, also when the deadline interrupted a round
    return work.compact()
