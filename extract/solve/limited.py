"""Solves extraction under limits on sums over the chosen kernels (rounding errors, memory).

The unlimited optimum is solved first: if it satisfies the limits it is the answer, otherwise its bound is still valid.
Then greedy extractions and local search, at costs plus a growing price for each unit of the limited sum, give a
feasible solution, which HiGHS and CP-SAT improve in turn, over reductions that lose no solution; problems too large for
these are searched in part. The search of frontier_dp.py (each of its states would need one cost per amount used) and
the split into independent components (a limit couples them) are not used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ExtractionError
from .cpsat import SolverAnswer, solve_cpsat
from .extraction import Extraction, relative_gap
from .greedy import bottom_up, one_pass
from .highs import solve_highs
from .local_search import local_search, promising_rows
from .presolve import detach, presolve
from .presolver import PresolvedRows
from .problem import LIMIT_ROUNDING, IntArray, Problem, ProblemRows, evaluate, reachable

Flags = npt.NDArray[np.bool_]

PRICE_STEPS = 24
"""Number of prices per unit of use that are tried, each twice the one before."""

SKIPPED = "limits: no frontier search, no split into components"

HIGHS_SHARE = 0.4
"""HiGHS's share of the time of both exact solvers."""

SMALL_ROWS = 100
"""CP-SAT alone solves problems up to this number of rows in milliseconds."""

PART_ROWS = 4_000
"""Number of rows passed to the exact solvers if the problem is too large for them."""


def within_limits(problem: Problem, choice: Sequence[int] | IntArray) -> bool:
    """Whether a valid choice satisfies all limits of its problem."""
    nodes = reachable(problem, choice) if problem.limits else []
    return all(limit.allows(nodes) for limit in problem.limits)


@dataclass(frozen=True)
class LimitedReduction:
    """A problem after reductions that keep every solution up to a certain cost.

    `limits`: the side constraints (`Limit`) as (use of each row of the reduced problem, maximum total use).
    """

    problem: Problem
    reduced: PresolvedRows
    limits: list[tuple[list[float], float]]

    @classmethod
    def of(cls, problem: Problem, upper: float, pinned: Flags | None = None) -> LimitedReduction:
        """Reduction of a problem that keeps all extractions of cost <= `upper`.

        A node that counts towards a limit (`Limit.use` > 0), or that is flagged in `pinned` (bool[n_nodes]), keeps a
        row (a way to compute a class) of its own in the reduced problem, unless none of these extractions contains it.
        """
        light = detach(problem.rows)
        assert light is not None  # some solution exists
        node = [problem.live[at] for at in light.origin]
        kept = {r for r, n in enumerate(node) if any(limit.use[n] > 0 for limit in problem.limits)}
        if pinned is not None:
            kept |= {r for r, n in enumerate(node) if pinned[n]}
        inner = presolve(light.rows, upper - light.constant, keep_all=True, pinned=kept)
        reduced = PresolvedRows(
            inner.rows,
            [light.origin[r] for r in inner.origin],
            light.fixed + [light.origin[r] for r in inner.fixed],
            light.constant + inner.constant,
        )
        rows = [problem.live[at] for at in reduced.origin]
        return cls(problem, reduced, [(limit.use[rows].tolist(), limit.most) for limit in problem.limits])

    def rows_of(self, choice: IntArray) -> list[int]:
        """The rows (ways to compute a class) of the reduced problem that a choice contains."""
        taken = {int(i) for i in choice if i >= 0}
        return [r for r, at in enumerate(self.reduced.origin) if self.problem.live[at] in taken]

    def choice_of(self, rows: Sequence[int]) -> IntArray:
        """The choice of the given rows (ways to compute a class) of the reduced problem, restricted to classes
        reachable from the roots."""
        choice = self.problem.choice_of(self.reduced.restore(rows))
        used = reachable(self.problem, choice)
        choice[:] = -1
        choice[self.problem.cls[used]] = used
        return choice


def solve_limited(
    problem: Problem,
    unlimited: Extraction,
    *,
    seconds: float,
    gap: float,
    workers: int,
    deterministic: bool,
    exact_rows: int,
    solvers: Sequence[str] = ("highs", "cp-sat"),
    hint: Sequence[int] | IntArray | None = None,
    stop: Callable[[], bool] | None = None,
) -> Extraction:
    """The cheapest extraction found that satisfies the problem's limits. `unlimited` is the answer without limits.

    With more than `exact_rows` rows (0: no exact search) only a part goes to the `solvers`, in their order. `seconds`:
    time limit. `gap`: relative difference of cost and bound that counts as optimal. `workers`: CP-SAT workers.
    `deterministic`: equal inputs give equal answers. `hint`: choice array to start from. `stop`: polled; True ends the
    search. Raises ExtractionError if the limits are infeasible, or no feasible extraction was found in time.
    """
    began = time.perf_counter()
    if within_limits(problem, unlimited.choice):
        return unlimited

    def left() -> float:
        if stop is not None and stop():
            return 0.0
        return seconds if deterministic else began + seconds - time.perf_counter()

    found = Incumbent(problem, unlimited.lower_bound)
    found.offer(_cheapest(problem, _hinted(problem, hint) + _greedies(problem, lambda: left() <= 0.5 * seconds)))
    stats: dict[str, Any] = {**unlimited.stats, "skipped": SKIPPED, "limited_greedy": found.cost}
    kept = LimitedReduction.of(problem, found.cost)
    rows = kept.reduced.rows
    whole = len(rows) <= exact_rows
    if len(rows) <= SMALL_ROWS or deterministic:  # HiGHS has no deterministic time limit
        solvers = solvers[-1:]
    for name in solvers if exact_rows else ():
        if left() <= 0 or found.within(gap):
            break
        share = HIGHS_SHARE if name != solvers[-1] else 1.0
        answer = _solved(name, kept, found.choice, whole, share * left(), workers, deterministic, stop)
        if answer.stats.get("status") == "INFEASIBLE" and found.choice is None and whole:
            raise _impossible(problem)
        found.take(answer, kept, whole, name)
    if found.choice is None:
        raise ExtractionError(
            "no extraction that satisfies the limits was found in time",
            where=", ".join(limit.name for limit in problem.limits),
            hint="give it more time, or relax the limits",
        )
    took = unlimited.seconds + time.perf_counter() - began
    lower = min(found.lower, found.cost)
    return Extraction(found.choice, found.cost, lower, found.within(gap), took, found.method, stats)


@dataclass
class Incumbent:
    """The cheapest choice within a problem's limits that was found so far, and the best lower bound of the cost.

    `used`: names of the solvers that improved one of them.
    """

    problem: Problem
    lower: float
    choice: IntArray | None = None
    cost: float = math.inf
    used: list[str] = field(default_factory=list)

    def offer(self, choice: IntArray | None) -> bool:
        """Keep a choice within the limits if it is cheaper; returns whether it is. None: no choice."""
        cost = math.inf if choice is None else evaluate(self.problem, choice)
        if cost >= self.cost:
            return False
        self.choice, self.cost = choice, cost
        return True

    def within(self, gap: float) -> bool:
        """Whether a choice is known whose cost is proven to exceed the optimum by at most `gap`, relative."""
        return self.choice is not None and relative_gap(self.cost, min(self.lower, self.cost)) <= gap

    def take(self, answer: SolverAnswer, kept: LimitedReduction, whole: bool, name: str) -> None:
        """Use the answer of the solver `name`; `whole`: it saw all rows (ways to compute a class), so that its bound
        holds."""
        if answer.chosen is not None:
            choice = kept.choice_of(answer.chosen)
            if within_limits(self.problem, choice) and self.offer(choice):
                self.used.append(name)
        if whole and (answer.chosen is not None or answer.proven or answer.lower > 0):
            bound = min(kept.reduced.constant + answer.lower, self.cost)
            if bound > self.lower:
                self.lower = bound
                self.used.append(name)

    @property
    def method(self) -> str:
        """Text that names the solvers that gave the result."""
        if not self.used:
            return "greedy at prices of the limits"
        return " + ".join(["presolve", *dict.fromkeys(self.used)]) + " under limits"


def _solved(
    name: str, kept: LimitedReduction, best: IntArray | None, whole: bool, seconds: float, workers: int, deterministic: bool,
    stop: Callable[[], bool] | None,
) -> SolverAnswer:  # fmt: skip
    """Answer of one exact solver over all rows or, with `whole` False, over the most promising ones."""
    rows, limits = kept.reduced.rows, kept.limits
    start = rows.walk(_as_choice(rows, kept.rows_of(best))) if best is not None else None
    part = list(range(len(rows)))
    if not whole:
        part = promising_rows(rows, start or rows.walk(bottom_up(rows)) or [], PART_ROWS)
        rows = ProblemRows(
            [rows.cls[r] for r in part],
            [rows.children[r] for r in part],
            [rows.cost[r] for r in part],
            rows.n_classes,
            rows.roots,
        )
        limits = [([use[r] for r in part], most) for use, most in limits]
        at = {r: n for n, r in enumerate(part)}
        start = [at[r] for r in start] if start is not None else None
    if name == "highs":
        answer = solve_highs(rows, start, seconds=seconds, stop=stop, limits=limits)
    else:
        answer = solve_cpsat(
            rows, start, seconds=seconds, workers=workers, deterministic=deterministic, stop=stop, limits=limits
        )
    return replace(answer, chosen=None if answer.chosen is None else [part[r] for r in answer.chosen])


def _impossible(problem: Problem) -> ExtractionError:
    """The error for infeasible limits; names the least use of each limit in a tree-cost greedy."""
    least = []
    for limit in problem.limits:
        rows = problem.rows
        priced = ProblemRows(rows.cls, rows.children, limit.use[problem.live].tolist(), rows.n_classes, rows.roots)
        chosen = rows.walk(bottom_up(priced)) or []
        least.append(f"{limit.name} {limit.of(problem.live[r] for r in chosen):.6g} of at most {limit.most:.6g}")
    return ExtractionError(
        "no extraction satisfies the limits", where="least by tree: " + ", ".join(least), hint="relax the limits"
    )


def _hinted(problem: Problem, hint: Sequence[int] | IntArray | None) -> list[IntArray]:
    if hint is None:
        return []
    try:
        used = reachable(problem, hint)
    except ExtractionError:
        return []
    choice = np.full(problem.n_classes, -1, np.int32)
    choice[problem.cls[used]] = used
    return [choice]


def _cheapest(problem: Problem, choices: Sequence[IntArray]) -> IntArray | None:
    """The cheapest choice that satisfies the limits; None if there is none."""
    allowed = [(evaluate(problem, c), i) for i, c in enumerate(choices) if within_limits(problem, c)]
    return choices[min(allowed)[1]] if allowed else None


def _greedies(problem: Problem, expired: Callable[[], bool]) -> list[IntArray]:
    """Greedy solutions at cost + price * use (as a share of each limit), over a ladder of prices.

    Nodes that exceed a limit alone are left out, and the last rung minimizes use alone.
    """
    rows = problem.rows
    live = np.array(problem.live)
    share = np.zeros(len(live))
    for limit in problem.limits:
        use = limit.use[live]
        share += np.where(use > limit.most * (1 + LIMIT_ROUNDING), np.inf, use / max(limit.most, 1e-280))
    cost = np.array(rows.cost)
    unit = max(float(cost.mean()), 1e-300) if len(cost) else 1.0
    found: list[IntArray] = []
    for step in range(PRICE_STEPS + 1):
        if expired() and step < PRICE_STEPS:  # minimal use is always tried: the most likely to be feasible
            continue
        price = unit * 2.0 ** (step - PRICE_STEPS // 3)
        total = cost + price * share if step < PRICE_STEPS else share + 1e-9 * cost / unit
        keep = np.flatnonzero(total < np.inf)
        priced = ProblemRows(
            [rows.cls[r] for r in keep],
            [rows.children[r] for r in keep],
            total[keep].tolist(),
            rows.n_classes,
            rows.roots,
        )
        for choice in (bottom_up(priced), one_pass(priced)):
            chosen = priced.walk(choice) if choice is not None else None
            if chosen is not None:
                found.append(problem.choice_of([int(keep[r]) for r in local_search(priced, chosen, expired)]))
    return found


def _as_choice(rows: ProblemRows, picked: Sequence[int]) -> list[int]:
    choice = [-1] * rows.n_classes
    for row in picked:
        choice[rows.cls[row]] = row
    return choice
