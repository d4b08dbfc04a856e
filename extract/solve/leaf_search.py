"""Searches leaves exactly: the components of a problem that remain after presolve (its reductions).

Each leaf is searched by dynamic programming (frontier_dp.py) and label setting (label_setting.py), then by HiGHS and
CP-SAT; a leaf that is too large for integer programs by local search, alternating with exact solutions of its most
promising rows (ways to compute a class).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .cpsat import SolverAnswer, solve_cpsat
from .extraction import COST_TIE, Extraction, relative_gap
from .frontier_dp import FrontierDP
from .highs import solve_highs
from .label_setting import BEAM_WIDTHS, LabelSetting
from .local_search import local_search, promising_rows
from .problem import IntArray, Problem, ProblemRows
from .solve_clock import SolveClock

EXACT_ROWS = 20_000
"""Largest number of rows passed to an integer program: building a larger one would take seconds."""

RESTRICTED_ROWS = 4_000
"""Rows of a larger leaf, beside those of its solution, that are offered to the exact solvers at a time; doubled when
they bring no improvement."""

MIN_LEAF_SECONDS = 0.5
"""Least time slice in seconds for one leaf."""

TINY_ROWS = 100
"""CP-SAT alone solves leaves up to this number of rows in milliseconds."""

HIGHS_SHARE = 0.75
STRONG_ROOT = 0.5
"""HiGHS runs first, for at most this share of the time; if its root bound is below STRONG_ROOT times the incumbent,
branching would not close the gap and CP-SAT takes over at once."""

MAX_UNBOUNDED_LABELS = 20_000
"""Label limit of the unbounded frontier search; beyond it the search continues as a beam."""

SAME_ROWS_SHARE = 0.9
"""A leaf with at least this share of the rows of a component that the frontier DP did not prove is not tried again."""

LABEL_SETTING_ROWS = 20_000
LABEL_SETTING_SHARE = 0.25
"""Acyclic leaves up to this number of rows get a frontier search before integer programs, for this share of the
time."""

FRONTIER_DP_ROWS = 60_000
FRONTIER_DP_LEAF_SHARE = 0.4
"""Largest number of rows of a problem for the frontier DP, and its share of the time on a leaf."""


@dataclass
class Leaf:
    """A component after presolve: its rows (ways to compute a class), the best known solution `chosen` (rows, children
    first) with its `cost`, a lower bound `lower` of any solution's cost, and the `method` that found or proved it.
    `proven`: whether no solution is cheaper."""

    rows: ProblemRows
    cost: float
    chosen: list[int]
    lower: float
    method: str
    proven: bool = False

    def take(self, answer: SolverAnswer, method: str) -> None:
        """Replace the best known solution or the lower bound by that of a solver's answer where it is better, and note
        `method`."""
        if answer.chosen is not None and answer.cost < self.cost:
            self.cost, self.chosen, self.method = answer.cost, answer.chosen, method
        if answer.proven or answer.lower > self.lower:
            self.lower = min(max(self.lower, answer.lower), self.cost)
            self.method = method
        self.proven = self.proven or answer.proven or self.cost - self.lower <= COST_TIE * self.cost


@dataclass
class LeafSearch:
    """Exact search of leaves (components after presolve) by a method (`solve.METHODS`), until the optimality gap is at
    most `gap`.

    `clock`: the remaining time. `workers`: number of CP-SAT's threads. `solve`: function that extracts from a problem
    within given seconds, with a choice array as a warm start; used for parts of leaves that are too large (None: no
    parts are solved). `unproved`: number of rows (ways to compute a class) of the smallest component that the frontier
    DP did not solve to proven optimality.
    """

    clock: SolveClock
    method: str
    gap: float
    workers: int
    solve: Callable[[Problem, float, IntArray], Extraction] | None
    unproved: int = sys.maxsize

    def run(self, leaves: Collection[Leaf]) -> None:
        """Search the distinct leaves, small ones first, and store results in them.

        Each gets a share of the remaining time; time left over goes to the leaves that are not proved optimal.
        """
        for again in (False, True):
            todo = sorted((leaf for leaf in leaves if not self._done(leaf)), key=lambda leaf: len(leaf.rows))
            weight = [len(leaf.rows) ** 1.5 for leaf in todo]
            for i, leaf in enumerate(todo):
                left = self.clock.left
                if left <= 0 or (again and self.clock.deterministic):
                    return
                share = left * weight[i] / sum(weight if self.clock.deterministic else weight[i:])
                self._solve_leaf(leaf, min(left, max(share, MIN_LEAF_SECONDS)), again)

    def _solve_leaf(self, leaf: Leaf, seconds: float, again: bool) -> None:
        ends = time.perf_counter() + seconds
        if self.method in ("auto", "frontier") and not again:
            self._try_frontier_dp(leaf, seconds)
            if not self._done(leaf):
                left = ends - time.perf_counter()
                self._try_label_setting(leaf, left if self.method == "frontier" else LABEL_SETTING_SHARE * left)
        if self._done(leaf) or self.method == "frontier":
            return
        if len(leaf.rows) > EXACT_ROWS:
            if self.solve is not None:
                self._restricted(leaf, ends)
            return
        if self.method == "highs":
            leaf.take(
                solve_highs(leaf.rows, leaf.chosen, seconds=ends - time.perf_counter(), stop=self.clock.stop), "highs"
            )
            return
        if self.method == "auto" and not self.clock.deterministic and not again and len(leaf.rows) > TINY_ROWS:
            share = (ends - time.perf_counter()) * HIGHS_SHARE
            found = solve_highs(leaf.rows, leaf.chosen, seconds=share, root_ratio=STRONG_ROOT, stop=self.clock.stop)
            leaf.take(found, "highs")
        rest = seconds if self.clock.deterministic else min(self.clock.left, ends - time.perf_counter())
        if self._done(leaf) or rest <= len(leaf.rows) * self.clock.build_seconds:
            return
        answer = solve_cpsat(
            leaf.rows,
            leaf.chosen,
            seconds=rest,
            workers=self.workers,
            deterministic=self.clock.deterministic,
            stop=self.clock.stop,
        )
        leaf.take(answer, "cp-sat")

    def _restricted(self, leaf: Leaf, ends: float) -> None:
        """Local search alternating with exact solutions of the most promising rows, until neither helps or the time is
        up.

        Only solutions are used: a lower bound of a part is not a bound of the whole."""
        rows, most = leaf.rows, RESTRICTED_ROWS

        def left() -> float:
            return min(self.clock.left, math.inf if self.clock.deterministic else ends - time.perf_counter())

        while left() > 0:
            before = leaf.cost
            chosen = local_search(rows, leaf.chosen, lambda: left() <= 0)
            leaf.take(SolverAnswer(chosen, rows.total(chosen), 0.0, False), "local search")
            if left() <= most * self.clock.build_seconds:
                return
            chosen = self._solve_part(rows, leaf.chosen, left(), most)
            leaf.take(SolverAnswer(chosen, rows.total(chosen), 0.0, False), "exact search of a part")
            if leaf.cost >= before * (1 - self.gap):
                if most >= min(EXACT_ROWS, len(rows)):
                    return
                most *= 2

    def _solve_part(self, rows: ProblemRows, chosen: list[int], seconds: float, most: int) -> list[int]:
        """The best solution found within `seconds` among the rows of `chosen` and the `most` most promising others."""
        assert self.solve is not None
        kept = promising_rows(rows, chosen, most)
        nodes = [(rows.cls[r], rows.children[r], rows.cost[r]) for r in kept]
        part = Problem.build(nodes, rows.roots, n_classes=rows.n_classes)
        seed = set(chosen)
        hint = part.choice_of([at for at, r in enumerate(kept) if r in seed])
        found = self.solve(part, seconds, hint)
        answer = rows.walk([kept[at] if at >= 0 else -1 for at in found.choice.tolist()])
        assert answer is not None  # every solution of the part is one of the whole
        return answer

    def _done(self, leaf: Leaf) -> bool:
        """Whether the leaf's gap is within the requested one, which then holds for the total."""
        return leaf.proven or relative_gap(leaf.cost, leaf.lower) <= self.gap

    def _try_frontier_dp(self, leaf: Leaf, seconds: float) -> None:
        rows = leaf.rows
        if len(rows) > FRONTIER_DP_ROWS or (len(rows) > EXACT_ROWS and self.clock.lacks_time_for(rows)()):
            return
        if len(rows) >= SAME_ROWS_SHARE * self.unproved:
            return
        frontier_dp = FrontierDP(rows, leaf.cost)
        if frontier_dp.fits:
            deadline = math.inf if self.clock.deterministic else time.perf_counter() + FRONTIER_DP_LEAF_SHARE * seconds
            found = frontier_dp.search(deadline=deadline, stop=self.clock.stop, most_labels=self.clock.labels)
            leaf.take(
                SolverAnswer(found.chosen, found.cost, found.lower, found.exact),
                "frontier DP" if found.exact else "frontier DP beam",
            )

    def _try_label_setting(self, leaf: Leaf, seconds: float) -> None:
        alone = self.method == "frontier"
        if not alone and len(leaf.rows) > LABEL_SETTING_ROWS:
            return
        frontier = LabelSetting(leaf.rows, leaf.chosen)
        if not alone and not frontier.acyclic:
            return
        deadline = math.inf if self.clock.deterministic else time.perf_counter() + seconds
        widths: tuple[int | None, ...] = (BEAM_WIDTHS[0], None, *BEAM_WIDTHS[1:]) if alone else (BEAM_WIDTHS[0], None)
        for width in widths:
            found = frontier.search(
                width,
                max_labels=MAX_UNBOUNDED_LABELS if width is None else math.inf,
                upper=leaf.cost,
                deadline=deadline,
                stop=self.clock.stop,
            )
            found_by = "frontier" if found.exact or width is None else f"frontier beam of {width}"
            leaf.take(SolverAnswer(found.chosen, found.cost, found.lower, found.exact), found_by)
            if found.exact:
                return
