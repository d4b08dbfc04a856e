"""Extracts from any e-graph: one function that calls several solvers, with a proven lower bound and hard time limits.

The steps: greedy extractions and local search give a first solution; cheap reductions; the split into independent
components, of which identical ones are solved once; for each component greedy extractions, full presolve and another
split; for each of these leaves the frontier DP, HiGHS and CP-SAT, or, if it is too large, local search alternating with
exact solutions of its most promising part. Finally the parts are combined and evaluated on the original e-graph."""

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
from . import leaf_search
from .beam_widths import best_of_widths
from .components import Component, split_components
from .extraction import COST_TIE, Extraction, relative_gap
from .frontier_dp import FrontierDP
from .greedy import best_greedy, bottom_up, discounted, one_pass, path_bounds
from .leaf_search import Leaf, LeafSearch
from .limited import solve_limited
from .local_search import local_search
from .presolve import presolve
from .presolver import PresolvedRows
from .problem import IntArray, Problem, ProblemRows, evaluate, reachable
from .solve_clock import SolveClock
from .structures import Structures

Method = Literal["auto", "greedy", "cp-sat", "highs", "frontier"]
METHODS: tuple[Method, ...] = ("auto", "greedy", "cp-sat", "highs", "frontier")

POLISH_SHARE = 0.6
POLISH_GAIN = 0.005
"""Share of the time for local search on the whole e-graph, and least relative gain per pass for it to continue."""

LAST_POLISH_S, POLISH_PASSES = 0.2, 8
"""Seconds of local search at the end of a solve; a pass of it, in passes that compute bounds."""

FINISH_PASSES = 2
"""Time reserved for the final evaluation of the solution, in multiples of the first measured pass over the rows."""

FRONTIER_DP_PARTS = 40
FRONTIER_DP_FIRST_SHARE = 0.7
"""Limits of the frontier DP on the whole problem, where it is tried first: distinct components, share of the time."""


@dataclass
class _SolvedComponent:
    """One distinct component of the whole e-graph and its leaves, each with its row indices per copy."""

    part: Component
    cost: float
    chosen: list[int]
    reduced: PresolvedRows
    leaves: list[tuple[Leaf, list[list[int]]]]
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
    beam_only: bool = False,
    structures: Structures | None = None,
) -> Extraction:
    """The cheapest extraction found within `time_limit` seconds, with a lower bound on all extractions.

    The problem's limits are satisfied (see `limited.py`; not supported by the method "frontier").

    method: "auto", or one solver for what presolve leaves ("greedy" skips presolve and proves almost nothing).
    gap: relative difference of cost and bound that counts as optimal.
    workers: CP-SAT workers, at least 8 are used.
    deterministic: equal inputs give equal answers; limits are then counted work, which `time_limit` scales.
    hint: a choice array as a warm start; ignored if it is not a valid extraction.
    stop: polled; True ends the search early with the incumbent.
    beam_only: a large problem without limits ends after the beam search of the frontier DP.
    structures: cache of the steps that do not depend on costs, for the next solve of the same e-graph.

    Raises ExtractionError if a root has no finite term or the limits are infeasible, UsageError for an unknown method.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}", where="solve", hint="one of " + ", ".join(METHODS))
    if math.isnan(time_limit) or time_limit < 0:
        raise UsageError(f"time_limit must be >= 0 seconds, not {time_limit}", where="solve")
    if not problem.limits:
        kept = structures or Structures()
        clock = SolveClock(time_limit, deterministic, stop)
        return _Portfolio(problem, method, gap, workers, clock, beam_only=beam_only, structures=kept).run(hint)
    if method == "frontier":
        raise UsageError(f"{method} does not support limits", where="solve", hint="use auto, cp-sat, highs or greedy")
    free = replace(problem, limits=())
    first = _Portfolio(free, method, gap, workers, SolveClock(time_limit / 2, deterministic, stop)).run(hint)
    return solve_limited(
        problem, first, seconds=max(0.0, time_limit - first.seconds), gap=gap, workers=workers,
        deterministic=deterministic, exact_rows=0 if method == "greedy" else leaf_search.EXACT_ROWS, hint=hint, stop=stop,
        solvers=("highs", "cp-sat") if method == "auto" else (method,),
    )  # fmt: skip


@dataclass
class _Portfolio:
    problem: Problem
    method: Method
    gap: float
    workers: int
    clock: SolveClock
    stats: dict[str, Any] = field(default_factory=dict)
    memo: dict[bytes, Leaf] = field(default_factory=dict)
    start: str = ""  # method that found the leaves' initial solution
    piece: bool = False  # whether the problem is a part of a too large leaf: no further parts are taken
    beam_only: bool = False  # whether the beams of the frontier DP are enough
    structures: Structures = field(default_factory=Structures)

    def __post_init__(self) -> None:
        solve_part = None if self.piece else self._solve_part
        self.leaf_search = LeafSearch(self.clock, self.method, self.gap, self.workers, solve_part)

    def _solve_part(self, problem: Problem, seconds: float, hint: IntArray) -> Extraction:
        """The cheapest extraction of a part of a leaf, without a search of its parts."""
        clock = SolveClock(seconds, self.clock.deterministic, self.clock.stop)
        return _Portfolio(problem, self.method, self.gap, self.workers, clock, piece=True).run(hint)

    @gc_paused()
    def run(self, hint: Sequence[int] | IntArray | None) -> Extraction:
        """The extraction that the whole portfolio finds, with a lower bound; arguments and errors as for `solve`."""
        rows = self.structures.rows(self.problem)
        lower = self._cheap_bound(rows)
        known = self._hints(hint)
        self.stats.update(nodes=self.problem.n_nodes, classes=self.problem.n_classes)
        reduced, parts = None, None
        if (
            self.method in ("auto", "frontier")
            and len(rows) <= leaf_search.FRONTIER_DP_ROWS
            and not self.clock.lacks_time_for(rows)()
        ):
            reduced = self.structures.detached(rows, self.clock.lacks_time_for(rows))
            if reduced is not None and not self.clock.expired():
                parts = split_components(reduced.rows)
                if not (self.beam_only and known):
                    known += [choice] if (choice := one_pass(rows, expired=self.clock.expired)) is not None else []
                early = self._frontier_dp(rows, reduced, parts, known)
                if early is not None and early[1] >= 0:
                    return self._finish(early[0], max(early[1], lower), "presolve + frontier DP")
                known += [_as_choice(rows, early[0])] if early is not None else []
        enough = self.beam_only and self.leaf_search.unproved < sys.maxsize
        cost, chosen, name = best_greedy(rows, known, given_only=enough, expired=self.clock.expired)
        self.stats["greedy"] = cost
        if self.method == "greedy" or cost <= lower:
            return self._finish(chosen, lower, name)
        if self.clock.left <= 0 or enough:
            return self._finish_polished(rows, chosen, lower, name)
        least = (1 - POLISH_SHARE) * self.clock.time_limit
        chosen = local_search(rows, chosen, lambda: self.clock.left <= least, POLISH_GAIN)
        self.start = name = "local search" if rows.total(chosen) < cost else name
        if reduced is None and not self.clock.lacks_time_for(rows)():
            reduced = self.structures.detached(rows, self.clock.lacks_time_for(rows))
        self.stats["detach_seconds"] = time.perf_counter() - self.clock.began
        if reduced is None or self.clock.expired():
            chosen = local_search(rows, chosen, self.clock.expired)
            return self._finish(chosen, lower, "local search" if rows.total(chosen) < cost else name)
        kept = set(chosen)
        blocks = [self._block(part, kept, reduced) for part in parts or split_components(reduced.rows)]
        self._count(blocks)
        self.leaf_search.run(self.memo.values())
        picked = list(reduced.fixed)
        bound = reduced.constant
        for block in blocks:
            _, low, best = block.answer()
            bound += low * len(block.part.copies)
            picked += [reduced.origin[copy[row]] for copy in block.part.copies for row in best]
        names = dict.fromkeys(leaf.method for block in blocks for leaf, _ in block.leaves)
        whole = rows.walk(_as_choice(rows, picked))
        return self._finish_polished(rows, whole or picked, max(bound, lower), " + ".join(["presolve", *names]))

    def _frontier_dp(
        self, rows: ProblemRows, reduced: PresolvedRows, parts: list[Component], known: list[list[int]]
    ) -> tuple[list[int], float] | None:
        """(rows, lower bound) from the frontier DP on each component.

        Bound -1 if some component was solved without a proof. None if a component is too wide, or there are too many.
        """
        if len(parts) > FRONTIER_DP_PARTS:
            return None
        self.stats.update(components=sum(len(part.copies) for part in parts), distinct_components=len(parts))
        kept = set(best_greedy(rows, known, quick=True, given_only=self.beam_only and bool(known))[1])
        prepared = []
        for part in parts:
            upper = rows.total(r for at in part.copies[0] if (r := reduced.origin[at]) in kept)
            prepared.append(FrontierDP(part.rows, upper, self.structures))
            if not prepared[-1].fits or self.clock.expired():
                return None
        picked, lower, proved = list(reduced.fixed), reduced.constant, True
        ends = time.perf_counter() + FRONTIER_DP_FIRST_SHARE * self.clock.left
        total = left = sum(len(part.rows) for part in parts)
        for part, frontier_dp in zip(parts, prepared):
            labels, share = self.clock.labels * len(part.rows) / total, len(part.rows) / left
            left -= len(part.rows)
            until = (1 - share) * time.perf_counter() + share * ends
            found = best_of_widths(frontier_dp, self.clock, ends=until, labels=labels)
            self.stats["labels"] = self.stats.get("labels", 0) + found.labels
            if not found.exact:
                self.leaf_search.unproved = min(self.leaf_search.unproved, len(part.rows))
            if found.chosen is None:
                return None
            proved &= found.exact
            lower += found.lower * len(part.copies)
            picked += [reduced.origin[copy[row]] for copy in part.copies for row in found.chosen]
        return picked, lower if proved else -1.0

    def _cheap_bound(self, rows: ProblemRows) -> float:
        """A cheap lower bound; computing it also measures the time per row.

        Raises ExtractionError if a root has no finite term.
        """
        began = time.perf_counter()
        bounds = path_bounds(rows)
        if not self.clock.deterministic:
            seconds = time.perf_counter() - began
            self.clock.pace, self.clock.finish = seconds / max(len(rows), 1), FINISH_PASSES * seconds
        lower = max(bounds[r] for r in rows.roots)
        if lower < math.inf:
            return lower
        root = next(r for r in rows.roots if bounds[r] == math.inf)
        raise ExtractionError(
            "a root class has no finite acyclic term",
            where=f"class {self.problem.class_name(root)}",
            hint="every node of it is deleted, cyclic, or reads a class without a term",
        )

    def _hints(self, hint: Sequence[int] | IntArray | None) -> list[list[int]]:
        """The hint as rows per class, in a list of one; empty if it is no valid extraction of this problem."""
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
        if self.clock.lacks_time_for(rows)():
            return self._unreduced(part, known[0])
        cost, best, _ = best_greedy(
            rows, known[:8], quick=len(rows) > leaf_search.EXACT_ROWS, expired=self.clock.expired
        )
        reduced = presolve(rows, cost, expired=self.clock.lacks_time_for(rows))
        leaves: list[tuple[Leaf, list[list[int]]]] = []
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
        leaf = self.memo[part.key] = Leaf(rows, cost, chosen, 0.0, self.start)
        same = [list(range(len(rows)))]
        return _SolvedComponent(part, cost, chosen, PresolvedRows(rows, same[0], [], 0.0), [(leaf, same)])

    def _leaf(self, rows: ProblemRows, seed: list[int]) -> Leaf:
        """A leaf with its initial solution: greedies, also at prices at which the rows of `seed` are free."""
        extra = [_as_choice(rows, seed)]
        if seed and len(rows) <= leaf_search.EXACT_ROWS:
            price = discounted(rows, seed)
            extra += [c for c in (bottom_up(rows, price), one_pass(rows, price)) if c is not None]
        start, chosen, name = best_greedy(
            rows, extra, quick=len(rows) > leaf_search.EXACT_ROWS, expired=self.clock.expired
        )
        if len(rows) <= leaf_search.EXACT_ROWS:
            chosen = local_search(rows, chosen, self.clock.expired)
        cost = rows.total(chosen)
        name = "local search" if cost < start else name
        bounds = path_bounds(rows)
        lower = max(bounds[r] for r in rows.roots)
        return Leaf(rows, cost, chosen, lower, self.start if name == "hint" else name, cost <= lower)

    def _count(self, blocks: list[_SolvedComponent]) -> None:
        sizes = sorted((len(leaf.rows) for leaf in self.memo.values()), reverse=True)
        self.stats.update(
            presolve_seconds=time.perf_counter() - self.clock.began,
            components=sum(len(b.part.copies) for b in blocks),
            distinct_components=len(blocks),
            leaves=len(sizes),
            largest_leaf=sizes[0] if sizes else 0,
            reduced_nodes=sum(sizes),
        )

    def _finish_polished(self, rows: ProblemRows, chosen: list[int], lower: float, method: str) -> Extraction:
        """`_finish` after local search for LAST_POLISH_S at most, even if the time is up: without it a solution that
        was found in a hurry computes values twice, which costs a third more in decode steps. Not where one pass would
        take longer, nor if counted work is the limit."""
        quick = self.clock.pace * len(rows) * POLISH_PASSES <= LAST_POLISH_S
        if quick and not self.clock.deterministic and rows.total(chosen) > lower * (1 + self.gap):
            until = time.perf_counter() + LAST_POLISH_S
            better = local_search(rows, chosen, lambda: time.perf_counter() > until)
            if rows.total(better) < rows.total(chosen):
                chosen, method = better, f"{method} + local search"
        return self._finish(chosen, lower, method)

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
            seconds=time.perf_counter() - self.clock.began,
            method=method,
            stats=self.stats,
        )


def _as_choice(rows: ProblemRows, picked: Sequence[int]) -> list[int]:
    choice = [-1] * rows.n_classes
    for row in picked:
        choice[rows.cls[row]] = row
    return choice
