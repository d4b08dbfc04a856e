"""Extraction of any e-graph: a solver portfolio behind one function, with a proven lower bound and hard time limits.

Greedies and local search; cheap reductions; independent components, identical ones once; per component greedies, full
presolve and another split; per leaf frontier search, HiGHS and CP-SAT, or for too large leaves local search alternating
with exact solutions of their most promising part; finally the parts are combined and re-evaluated on the original
e-graph."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ...errors import ExtractionError, UsageError
from ..model.gc_pause import gc_paused
from .components import Component, split_components
from .cpsat import SolverAnswer, solve_cpsat
from .frontier_dp import FrontierDP
from .greedy import best_greedy, bottom_up, discounted, one_pass, path_bounds
from .highs import solve_highs
from .label_setting import BEAM_WIDTHS, LabelSearchResult, LabelSetting
from .limited import solve_limited
from .local_search import local_search, promising_rows
from .presolve import PresolvedRows, presolve
from .problem import COST_TIE, Extraction, IntArray, Problem, ProblemRows, evaluate, reachable, relative_gap
from .structures import Structures

Method = Literal["auto", "greedy", "cp-sat", "highs", "frontier"]
METHODS: tuple[Method, ...] = ("auto", "greedy", "cp-sat", "highs", "frontier")

EXACT_ROWS = 20_000
"""Largest number of rows passed to an integer program: building a larger one would take seconds."""

RESTRICTED_ROWS = 4_000
"""Rows of a larger leaf, beside those of its solution, that are offered to the exact solvers at a time; doubled when
they bring no improvement."""

POLISH_SHARE = 0.6
POLISH_GAIN = 0.005
"""Share of the time for local search on the whole e-graph, and least relative gain per pass for it to continue."""

STEP_PASSES = 6
"""Duration of a whole step (detach, presolve), in multiples of the first measured pass over the rows: no step begins
with less time left."""

FINISH_PASSES = 2
"""The same for the final evaluation of the solution."""

MIN_LEAF_SECONDS = 0.5
"""Least time slice in seconds for one leaf."""

BUILD_SECONDS = 1e-4
BUILD_PASSES = 60
"""Time to build CP-SAT's program, in seconds per row and in measured passes over the rows; CP-SAT is not started with
less time left."""

TINY_ROWS = 100
"""CP-SAT alone solves leaves up to this number of rows in milliseconds."""

HIGHS_SHARE = 0.75
STRONG_ROOT = 0.5
"""HiGHS runs first, for at most this share of the time; if its root bound is below STRONG_ROOT times the incumbent,
branching would not close the gap and CP-SAT takes over at once."""

MAX_UNBOUNDED_LABELS = 20_000
"""Label limit of the unbounded frontier search; beyond it the search continues as a beam."""

FRONTIER_DP_ROWS = 60_000
FRONTIER_DP_PARTS = 40
FRONTIER_DP_LEAF_SHARE = 0.4
FRONTIER_DP_FIRST_SHARE = 0.7
"""Limits of the frontier DP: rows, distinct components, and shares of the time on leaves and on the whole
problem, where it is tried first."""

FRONTIER_DP_BEAM_ROWS, FRONTIER_DP_BEAMS, FRONTIER_DP_WIDE_BEAM = 4_000, (10, 100), 400
FRONTIER_DP_HASTY_BEAMS = 10, 40
"""Rows of a component from which beams of these widths are searched before the whole problem, and the beam width where
the whole problem is too wide; with `hasty`, the widths of the only beams: on 8 problems of a decode step as prices
change, plans are 0.05 % dearer than with 100, in 0.6 of the time."""

SAME_ROWS_SHARE = 0.9
"""A leaf with at least this share of the rows of a component that the frontier DP did not prove is not tried again."""

LABEL_SETTING_ROWS = 20_000
LABEL_SETTING_SHARE = 0.25
"""Acyclic leaves up to this number of rows get a frontier search before integer programs, for this share of the
time."""


@dataclass
class _Leaf:
    """A component after presolve: rows, best known solution, lower bound, and the method that found or proved it."""

    rows: ProblemRows
    cost: float
    chosen: list[int]
    lower: float
    method: str
    proven: bool = False

    def take(self, answer: SolverAnswer, method: str) -> None:
        """Keep a solver's answer where it improves the incumbent or the bound."""
        if answer.chosen is not None and answer.cost < self.cost:
            self.cost, self.chosen, self.method = answer.cost, answer.chosen, method
        if answer.proven or answer.lower > self.lower:
            self.lower = min(max(self.lower, answer.lower), self.cost)
            self.method = method
        self.proven = self.proven or answer.proven or self.cost - self.lower <= COST_TIE * self.cost


@dataclass
class _SolvedComponent:
    """One distinct component of the whole e-graph and its leaves, each with its row indices per copy."""

    part: Component
    cost: float
    chosen: list[int]
    reduced: PresolvedRows
    leaves: list[tuple[_Leaf, list[list[int]]]]
    proven: float = math.inf  # lower bound of every solution if presolve left nothing to search

    def answer(self) -> tuple[float, float, list[int]]:
        """(cost, lower bound, rows) of the better of the greedy solution and the combined leaves."""
        total = math.fsum([self.reduced.constant, *(leaf.cost * len(copies) for leaf, copies in self.leaves)])
        lower = math.fsum([self.reduced.constant, *(leaf.lower * len(copies) for leaf, copies in self.leaves)])
        if total >= self.cost:
            return self.cost, min(lower, self.cost, self.proven), self.chosen
        rows = [copy[row] for leaf, copies in self.leaves for copy in copies for row in leaf.chosen]
        return total, min(lower, total), self.reduced.restore(rows)


def solve(
    problem: Problem,
    *,
    method: Method = "auto",
    time_limit: float = 10.0,
    gap: float = 1e-6,
    workers: int = 8,
    deterministic: bool = False,
    hint: Sequence[int] | IntArray | None = None,
    stop: Callable[[], bool] | None = None,
    hasty: bool = False,
    structures: Structures | None = None,
) -> Extraction:
    """The cheapest extraction found within `time_limit` seconds, with a lower bound on all extractions.

    method: "auto", or one solver for what presolve leaves ("greedy" skips presolve and proves almost nothing).
    gap: relative difference of cost and bound that counts as optimal.
    workers: CP-SAT workers, at least 8 are used.
    deterministic: equal inputs give equal answers; limits are then counted work, which `time_limit` scales.
    hint: a choice array as a warm start; ignored if it is not a valid extraction.
    stop: polled; True ends the search early with the incumbent. The problem's limits are satisfied (see `limited`; not
    supported by "frontier").
    hasty: a large problem without limits ends with the beams of the frontier DP: for solutions whose costs are about to
    change.
    structures: keeps what does not depend on costs for the next solve of the same e-graph.
    Raises ExtractionError if a root has no finite term or the limits are infeasible, UsageError for an unknown method.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}", where="solve", hint="one of " + ", ".join(METHODS))
    if math.isnan(time_limit) or time_limit < 0:
        raise UsageError(f"time_limit must be >= 0 seconds, not {time_limit}", where="solve")
    if not problem.limits:
        kept = structures or Structures()
        run = _Portfolio(problem, method, time_limit, gap, workers, deterministic, stop, hasty=hasty, structures=kept)
        return run.run(hint)
    if method == "frontier":
        raise UsageError(f"{method} does not support limits", where="solve", hint="use auto, cp-sat, highs or greedy")
    free = replace(problem, limits=())
    first = _Portfolio(free, method, time_limit / 2, gap, workers, deterministic, stop).run(hint)
    return solve_limited(
        problem, first, seconds=max(0.0, time_limit - first.seconds), gap=gap, workers=workers,
        deterministic=deterministic, exact_rows=0 if method == "greedy" else EXACT_ROWS, hint=hint, stop=stop,
        solvers=("highs", "cp-sat") if method == "auto" else (method,),
    )  # fmt: skip


@dataclass
class _Portfolio:
    problem: Problem
    method: Method
    time_limit: float
    gap: float
    workers: int
    deterministic: bool
    stop: Callable[[], bool] | None
    began: float = field(default_factory=time.perf_counter)
    stats: dict[str, Any] = field(default_factory=dict)
    memo: dict[bytes, _Leaf] = field(default_factory=dict)
    pace: float = 0.0  # measured seconds per row of one pass
    finish: float = 0.0  # seconds reserved for the final evaluation
    start: str = ""  # method that found the leaves' initial solution
    piece: bool = False  # whether the problem is a part of a too large leaf: no further parts are taken
    hasty: bool = False  # whether the beams of the frontier DP are enough
    structures: Structures = field(default_factory=Structures)
    tried: int = sys.maxsize  # rows of the smallest component that the frontier DP did not prove

    @property
    def left(self) -> float:
        """Seconds left for searching; 0 when `stop` returns True. Deterministic runs ignore the clock."""
        if self.stop is not None and self.stop():
            return 0.0
        if self.deterministic:
            return self.time_limit
        return self.began + self.time_limit - self.finish - time.perf_counter()

    def _expired(self) -> bool:
        return self.left <= 0

    @gc_paused()
    def run(self, hint: Sequence[int] | IntArray | None) -> Extraction:
        """The whole pipeline; see `solve`."""
        rows = self.structures.rows(self.problem)
        lower = self._cheap_bound(rows)
        known = self._hints(hint)
        self.stats.update(nodes=self.problem.n_nodes, classes=self.problem.n_classes)
        reduced, parts = None, None
        if self.method in ("auto", "frontier") and len(rows) <= FRONTIER_DP_ROWS and not self._lacks_time_for(rows)():
            reduced = self.structures.detached(rows, self._lacks_time_for(rows))
            if reduced is not None and not self._expired():
                parts = split_components(reduced.rows)
                if not (self.hasty and known):
                    known += [choice] if (choice := one_pass(rows, expired=self._expired)) is not None else []
                early = self._frontier_dp(rows, reduced, parts, known)
                if early is not None and early[1] >= 0:
                    return self._finish(early[0], max(early[1], lower), "presolve + frontier DP")
                known += [_as_choice(rows, early[0])] if early is not None else []
        enough = self.hasty and self.tried < sys.maxsize
        cost, chosen, name = best_greedy(rows, known, given_only=enough, expired=self._expired)
        self.stats["greedy"] = cost
        if self.method == "greedy" or cost <= lower or self.left <= 0 or enough:
            return self._finish(chosen, lower, name)
        least = (1 - POLISH_SHARE) * self.time_limit
        chosen = local_search(rows, chosen, lambda: self.left <= least, POLISH_GAIN)
        self.start = name = "local search" if rows.total(chosen) < cost else name
        if reduced is None and not self._lacks_time_for(rows)():
            reduced = self.structures.detached(rows, self._lacks_time_for(rows))
        self.stats["detach_seconds"] = time.perf_counter() - self.began
        if reduced is None or self._expired():
            chosen = local_search(rows, chosen, self._expired)
            return self._finish(chosen, lower, "local search" if rows.total(chosen) < cost else name)
        kept = set(chosen)
        blocks = [self._block(part, kept, reduced) for part in parts or split_components(reduced.rows)]
        self._count(blocks)
        self._search()
        picked = list(reduced.fixed)
        bound = reduced.constant
        for block in blocks:
            _, low, best = block.answer()
            bound += low * len(block.part.copies)
            picked += [reduced.origin[copy[row]] for copy in block.part.copies for row in best]
        names = dict.fromkeys(leaf.method for block in blocks for leaf, _ in block.leaves)
        return self._finish(picked, max(bound, lower), " + ".join(["presolve", *names]))

    def _frontier_dp(
        self, rows: ProblemRows, reduced: PresolvedRows, parts: list[Component], known: list[list[int]]
    ) -> tuple[list[int], float] | None:
        """(rows, lower bound) from the frontier DP on each component.

        Bound -1 if some component was solved without a proof. None if a component is too wide, or there are too many.
        """
        if len(parts) > FRONTIER_DP_PARTS:
            return None
        self.stats.update(components=sum(len(part.copies) for part in parts), distinct_components=len(parts))
        kept = set(best_greedy(rows, known, quick=True, given_only=self.hasty and bool(known))[1])
        prepared = []
        for part in parts:
            upper = rows.total(r for at in part.copies[0] if (r := reduced.origin[at]) in kept)
            prepared.append(FrontierDP(part.rows, upper))
            if not prepared[-1].fits or self._expired():
                return None
        picked, lower, proved = list(reduced.fixed), reduced.constant, True
        ends = time.perf_counter() + FRONTIER_DP_FIRST_SHARE * self.left
        for part, frontier_dp in zip(parts, prepared):
            found = self._best_of_widths(part, frontier_dp, ends)
            if not found.exact:
                self.tried = min(self.tried, len(part.rows))
            if found.chosen is None:
                return None
            proved &= found.exact
            lower += found.lower * len(part.copies)
            picked += [reduced.origin[copy[row]] for copy in part.copies for row in found.chosen]
        return picked, lower if proved else -1.0

    def _best_of_widths(self, part: Component, frontier_dp: FrontierDP, ends: float) -> LabelSearchResult:
        """The frontier DP's result for a component by the time `ends`: an exact search, for a large component after
        beam searches. The exact search may not end in time, and beams often find the optimum. With `hasty`, a large
        component gets narrow beams only.
        """
        if self.deterministic or len(part.rows) <= FRONTIER_DP_BEAM_ROWS:
            return frontier_dp.search(deadline=math.inf if self.deterministic else ends, stop=self.stop)
        last = time.perf_counter() + self.left
        beams = FRONTIER_DP_HASTY_BEAMS if self.hasty else FRONTIER_DP_BEAMS
        found = [frontier_dp.search(width, deadline=last, stop=self.stop) for width in beams]
        if not self.hasty:
            found.append(frontier_dp.search(deadline=ends, stop=self.stop, drops=False))
            if not found[-1].exact:
                found.append(frontier_dp.search(FRONTIER_DP_WIDE_BEAM, deadline=last, stop=self.stop))
        return min(found, key=lambda one: (not one.exact, one.cost))

    def _cheap_bound(self, rows: ProblemRows) -> float:
        """A cheap lower bound, which also measures the time per row. ExtractionError if a root has no finite term."""
        began = time.perf_counter()
        bounds = path_bounds(rows)
        if not self.deterministic:
            seconds = time.perf_counter() - began
            self.pace, self.finish = seconds / max(len(rows), 1), FINISH_PASSES * seconds
        lower = max(bounds[r] for r in rows.roots)
        if lower < math.inf:
            return lower
        root = next(r for r in rows.roots if bounds[r] == math.inf)
        raise ExtractionError(
            "a root class has no finite acyclic term",
            where=f"class {self.problem.class_name(root)}",
            hint="every node of it is deleted, cyclic, or reads a class without a term",
        )

    def _lacks_time_for(self, rows: ProblemRows) -> Callable[[], bool]:
        """A predicate: whether too little time is left for a whole step over the rows."""
        need = STEP_PASSES * self.pace * len(rows)
        return lambda: self.left <= need

    @property
    def _build_seconds(self) -> float:
        return max(BUILD_SECONDS, BUILD_PASSES * self.pace)

    def _hints(self, hint: Sequence[int] | IntArray | None) -> list[list[int]]:
        """The hint as rows per class, if it is a valid extraction of this problem."""
        if hint is None:
            return []
        try:
            nodes = reachable(self.problem, hint)
        except ExtractionError as error:
            self.stats["hint"] = f"ignored: {error.message}"
            return []
        row_of = {node: row for row, node in enumerate(self.problem.live)}
        choice = [-1] * self.problem.n_classes
        for node in nodes:
            choice[int(self.problem.cls[node])] = row_of[node]
        self.stats["hint"] = "used"
        return [choice]

    def _block(self, part: Component, chosen: set[int], parent: PresolvedRows) -> _SolvedComponent:
        """Greedies, presolve and split of one distinct component; `chosen`: a solution of the whole e-graph."""
        rows = part.rows
        known = [
            _as_choice(rows, [r for r, at in enumerate(copy) if parent.origin[at] in chosen]) for copy in part.copies
        ]
        if self._lacks_time_for(rows)():
            return self._unreduced(part, known[0])
        cost, best, _ = best_greedy(rows, known[:8], quick=len(rows) > EXACT_ROWS, expired=self._expired)
        reduced = presolve(rows, cost, expired=self._lacks_time_for(rows))
        leaves: list[tuple[_Leaf, list[list[int]]]] = []
        if reduced.constant >= cost * (1 - COST_TIE):  # the lower bound meets the greedy cost
            return _SolvedComponent(
                part, cost, best, PresolvedRows(reduced.rows, [], [], cost), leaves, reduced.constant
            )
        kept = set(best)
        for piece in split_components(reduced.rows):
            leaf = self.memo.get(piece.key)
            if leaf is None:
                seed = [r for r, at in enumerate(piece.copies[0]) if reduced.origin[at] in kept]
                leaf = self.memo[piece.key] = self._leaf(piece.rows, seed)
            leaves.append((leaf, piece.copies))
        return _SolvedComponent(part, cost, best, reduced, leaves)

    def _unreduced(self, part: Component, choice: list[int]) -> _SolvedComponent:
        """An unreduced component with a known solution, as a single leaf."""
        rows = part.rows
        chosen = rows.walk(choice)
        assert chosen is not None  # a solution of the whole is complete on each component
        cost = rows.total(chosen)
        leaf = self.memo[part.key] = _Leaf(rows, cost, chosen, 0.0, self.start)
        same = [list(range(len(rows)))]
        return _SolvedComponent(part, cost, chosen, PresolvedRows(rows, same[0], [], 0.0), [(leaf, same)])

    def _leaf(self, rows: ProblemRows, seed: list[int]) -> _Leaf:
        """A leaf with its initial solution: greedies, also at prices at which the rows of `seed` are free."""
        extra = [_as_choice(rows, seed)]
        if seed and len(rows) <= EXACT_ROWS:
            price = discounted(rows, seed)
            extra += [c for c in (bottom_up(rows, price), one_pass(rows, price)) if c is not None]
        start, chosen, name = best_greedy(rows, extra, quick=len(rows) > EXACT_ROWS, expired=self._expired)
        if len(rows) <= EXACT_ROWS:
            chosen = local_search(rows, chosen, self._expired)
        cost = rows.total(chosen)
        name = "local search" if cost < start else name
        bounds = path_bounds(rows)
        lower = max(bounds[r] for r in rows.roots)
        return _Leaf(rows, cost, chosen, lower, self.start if name == "hint" else name, cost <= lower)

    def _count(self, blocks: list[_SolvedComponent]) -> None:
        sizes = sorted((len(leaf.rows) for leaf in self.memo.values()), reverse=True)
        self.stats.update(
            presolve_seconds=time.perf_counter() - self.began,
            components=sum(len(b.part.copies) for b in blocks),
            distinct_components=len(blocks),
            leaves=len(sizes),
            largest_leaf=sizes[0] if sizes else 0,
            reduced_nodes=sum(sizes),
        )

    def _search(self) -> None:
        """Exact search of the distinct leaves, small ones first.

        Each gets a share of the remaining time, and unused time goes to the leaves still open.
        """
        for again in (False, True):
            todo = sorted(
                (leaf for leaf in self.memo.values() if not self._done(leaf)), key=lambda leaf: len(leaf.rows)
            )
            weight = [len(leaf.rows) ** 1.5 for leaf in todo]
            for i, leaf in enumerate(todo):
                left = self.left
                if left <= 0 or (again and self.deterministic):
                    return
                share = left * weight[i] / sum(weight if self.deterministic else weight[i:])
                self._solve_leaf(leaf, min(left, max(share, MIN_LEAF_SECONDS)), again)

    def _solve_leaf(self, leaf: _Leaf, seconds: float, again: bool) -> None:
        ends = time.perf_counter() + seconds
        if self.method in ("auto", "frontier") and not again:
            self._try_frontier_dp(leaf, seconds)
            if not self._done(leaf):
                left = ends - time.perf_counter()
                self._try_label_setting(leaf, left if self.method == "frontier" else LABEL_SETTING_SHARE * left)
        if self._done(leaf) or self.method == "frontier":
            return
        if len(leaf.rows) > EXACT_ROWS:
            if not self.piece:
                self._restricted(leaf, ends)
            return
        if self.method == "highs":
            leaf.take(solve_highs(leaf.rows, leaf.chosen, seconds=ends - time.perf_counter(), stop=self.stop), "highs")
            return
        if self.method == "auto" and not self.deterministic and not again and len(leaf.rows) > TINY_ROWS:
            share = (ends - time.perf_counter()) * HIGHS_SHARE
            found = solve_highs(leaf.rows, leaf.chosen, seconds=share, root_ratio=STRONG_ROOT, stop=self.stop)
            leaf.take(found, "highs")
        rest = seconds if self.deterministic else min(self.left, ends - time.perf_counter())
        if self._done(leaf) or rest <= len(leaf.rows) * self._build_seconds:
            return
        answer = solve_cpsat(
            leaf.rows,
            leaf.chosen,
            seconds=rest,
            workers=self.workers,
            deterministic=self.deterministic,
            stop=self.stop,
        )
        leaf.take(answer, "cp-sat")

    def _restricted(self, leaf: _Leaf, ends: float) -> None:
        """Local search alternating with exact solutions of the most promising rows, until neither helps or the time is
        up.

        Only solutions are used: a lower bound of a part is not a bound of the whole."""
        rows, most = leaf.rows, RESTRICTED_ROWS

        def left() -> float:
            return min(self.left, math.inf if self.deterministic else ends - time.perf_counter())

        while left() > 0:
            before = leaf.cost
            chosen = local_search(rows, leaf.chosen, lambda: left() <= 0)
            leaf.take(SolverAnswer(chosen, rows.total(chosen), 0.0, False), "local search")
            if left() <= most * self._build_seconds:
                return
            chosen = self._solve_part(rows, leaf.chosen, left(), most)
            leaf.take(SolverAnswer(chosen, rows.total(chosen), 0.0, False), "exact search of a part")
            if leaf.cost >= before * (1 - self.gap):
                if most >= min(EXACT_ROWS, len(rows)):
                    return
                most *= 2

    def _solve_part(self, rows: ProblemRows, chosen: list[int], seconds: float, most: int) -> list[int]:
        """The best solution found within `seconds` among the rows of `chosen` and the `most` most promising others."""
        kept = promising_rows(rows, chosen, most)
        nodes = [(rows.cls[r], rows.kids[r], rows.cost[r]) for r in kept]
        part = Problem.build(nodes, rows.roots, n_classes=rows.n_classes)
        seed = set(chosen)
        hint = part.choice_of([at for at, r in enumerate(kept) if r in seed])
        inner = _Portfolio(
            part, self.method, seconds, self.gap, self.workers, self.deterministic, self.stop, piece=True
        )  # fmt: skip
        found = inner.run(hint)
        answer = rows.walk([kept[at] if at >= 0 else -1 for at in found.choice.tolist()])
        assert answer is not None  # every solution of the part is one of the whole
        return answer

    def _done(self, leaf: _Leaf) -> bool:
        """Whether the leaf's gap is within the requested one, which then holds for the total."""
        return leaf.proven or relative_gap(leaf.cost, leaf.lower) <= self.gap

    def _try_frontier_dp(self, leaf: _Leaf, seconds: float) -> None:
        rows = leaf.rows
        if len(rows) > FRONTIER_DP_ROWS or (len(rows) > EXACT_ROWS and self._lacks_time_for(rows)()):
            return
        if len(rows) >= SAME_ROWS_SHARE * self.tried:
            return
        frontier_dp = FrontierDP(rows, leaf.cost)
        if frontier_dp.fits:
            deadline = math.inf if self.deterministic else time.perf_counter() + FRONTIER_DP_LEAF_SHARE * seconds
            found = frontier_dp.search(deadline=deadline, stop=self.stop)
            leaf.take(
                SolverAnswer(found.chosen, found.cost, found.lower, found.exact),
                "frontier DP" if found.exact else "frontier DP beam",
            )

    def _try_label_setting(self, leaf: _Leaf, seconds: float) -> None:
        alone = self.method == "frontier"
        if not alone and len(leaf.rows) > LABEL_SETTING_ROWS:
            return
        frontier = LabelSetting(leaf.rows, leaf.chosen)
        if not alone and not frontier.acyclic:
            return
        deadline = math.inf if self.deterministic else time.perf_counter() + seconds
        widths: tuple[int | None, ...] = (BEAM_WIDTHS[0], None, *BEAM_WIDTHS[1:]) if alone else (BEAM_WIDTHS[0], None)
        for width in widths:
            found = frontier.search(
                width,
                max_labels=MAX_UNBOUNDED_LABELS if width is None else math.inf,
                upper=leaf.cost,
                deadline=deadline,
                stop=self.stop,
            )
            found_by = "frontier" if found.exact or width is None else f"frontier beam of {width}"
            leaf.take(SolverAnswer(found.chosen, found.cost, found.lower, found.exact), found_by)
            if found.exact:
                return

    def _finish(self, rows: Sequence[int], lower: float, method: str) -> Extraction:
        problem = self.problem
        choice = problem.choice_of(rows)
        used = reachable(problem, choice)
        tight = np.full(problem.n_classes, -1, np.int32)
        tight[problem.cls[used]] = used
        cost = evaluate(problem, tight)
        lower = min(lower, cost)
        return Extraction(
            choice=tight,
            cost=cost,
            lower_bound=lower,
            optimal=relative_gap(cost, lower) <= self.gap,
            seconds=time.perf_counter() - self.began,
            method=method,
            stats=self.stats,
        )


def _as_choice(rows: ProblemRows, picked: Sequence[int]) -> list[int]:
    choice = [-1] * rows.n_classes
    for row in picked:
        choice[rows.cls[row]] = row
    return choice
