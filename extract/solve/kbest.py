"""Finds the k cheapest extractions in rising cost.

One integer program is solved repeatedly. Each solution found is excluded by a constraint that requires at least
`min_distance` other choices, and by one that requires a share of other kernels. Further constraints exclude classes
that no chosen row (a way to compute a class) reads, so two solutions of the integer program are never the same
extraction.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import UsageError
from .cpsat import Encoding, run, solver
from .extraction import Extraction, relative_gap
from .limited import Flags, LimitedReduction, within_limits
from .problem import Problem, evaluate
from .solve import solve

DIVERSITY_UNITS = 10_000
"""Resolution: `diversity` is rounded up to a multiple of 1 / DIVERSITY_UNITS."""


@dataclass(frozen=True)
class _KBestOptions:
    """Arguments of `k_best`."""

    count: int
    max_gap: float
    min_distance: int
    diversity: float
    kernels: Flags
    time_limit: float
    workers: int
    deterministic: bool
    stop: Callable[[], bool] | None


def k_best(
    problem: Problem,
    *,
    count: int,
    max_gap: float = 0.05,
    min_distance: int = 1,
    diversity: float = 0.0,
    kernels: Sequence[bool] | Flags | None = None,
    time_limit: float = 10.0,
    workers: int = 8,
    deterministic: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Extraction]:
    """Yields at most `count` distinct extractions in rising cost, none more expensive than (1 + `max_gap`) times the
    first.

    `min_distance`: number of classes whose choice must differ from every earlier extraction (a class that only one of
    them uses counts). `diversity`: minimum difference from every earlier extraction, in 0..1, as a share of the nodes
    flagged by `kernels` (bool, one entry per node; by default the nodes with nonzero cost). All extractions satisfy the
    problem's limits. `proven_rank` of a result: no extraction allowed by these constraints was missed; `lower_bound`
    bounds all remaining ones. Ends early when the cost window is exhausted or `time_limit` seconds (in total, without
    the caller's own time) are used. `workers`: CP-SAT workers. `deterministic`: equal inputs give equal answers.
    `stop`: polled; True ends the search. Raises the errors that `solve.solve` raises, and UsageError for counts below
    1, a negative window or a diversity outside 0..1.
    """
    if count < 1 or min_distance < 1 or not max_gap >= 0 or not 0 <= diversity <= 1:
        raise UsageError(
            f"count={count}, min_distance={min_distance}, max_gap={max_gap}, diversity={diversity} are not valid",
            where="k_best",
            hint="count and min_distance are at least 1, max_gap at least 0, diversity is in 0..1",
        )
    counted = np.asarray(problem.cost > 0 if kernels is None else kernels, bool)
    if counted.shape != (problem.n_nodes,):
        raise UsageError(f"{counted.size} flags for {problem.n_nodes} nodes", where="k_best: kernels")
    return _generate(
        problem,
        _KBestOptions(count, max_gap, min_distance, diversity, counted, time_limit, workers, deterministic, stop),
    )


def _generate(problem: Problem, options: _KBestOptions) -> Iterator[Extraction]:
    first = solve(
        problem, time_limit=options.time_limit / 2, gap=1e-9, workers=options.workers, deterministic=options.deterministic,
        stop=options.stop,
    )  # fmt: skip
    left = options.time_limit - first.seconds
    exact = relative_gap(first.cost, first.lower_bound) <= 1e-6
    yield replace(first, proven_rank=exact)
    if options.count == 1:
        return
    began = time.perf_counter()
    window = _CostWindow(problem, first, options)
    left -= time.perf_counter() - began
    for _ in range(options.count - 1):
        began = time.perf_counter()
        if left <= 0 or (options.stop is not None and options.stop()):
            return
        found = window.next(left)
        left -= 0.0 if options.deterministic else time.perf_counter() - began
        if found is None or found.cost > first.cost * (1 + options.max_gap) * (1 + 1e-9):
            return
        exact = exact and found.proven_rank
        yield replace(found, proven_rank=exact)


class _CostWindow:
    """All extractions up to a cost, as an integer program that gains a constraint per solution."""

    def __init__(self, problem: Problem, first: Extraction, options: _KBestOptions) -> None:
        self.problem, self.options = problem, options
        upper = first.cost * (1 + options.max_gap) if options.max_gap < math.inf else math.inf
        self.kept = LimitedReduction.of(problem, upper, options.kernels if options.diversity else None)
        self.reduced = self.kept.reduced
        self.rows = self.reduced.rows
        self.encoding = Encoding(self.rows)
        for use, most in self.kept.limits:
            self.encoding.limit(use, most)
        self._demand()
        room = max(0.0, upper - self.reduced.constant) + 1e-9 * upper  # the constant carries rounding of its own
        self.scale = self.encoding.minimize(room)
        if upper < math.inf and (limit := math.floor(room * self.scale)) < 1 << 63:
            self.encoding.model.add(self.encoding.objective <= limit)
        self.counted = [bool(options.kernels[problem.live[at]]) for at in self.reduced.origin]
        # cost of the previous extraction, in objective units
        self.last = math.floor(max(0.0, first.cost - self.reduced.constant) * self.scale + 1e-6)
        self.exclude(first)

    def _demand(self) -> None:
        """Constrain: a class is built only if it is a root or a child of some chosen row."""
        m, encoding = self.encoding.model, self.encoding
        readers: dict[int, list[int]] = defaultdict(list)
        for (_, k), rows in encoding.reads.items():
            readers[k] += rows
        roots = set(self.rows.roots)
        for c, y in enumerate(encoding.y):
            if y is not None and c not in roots:
                m.add_bool_or([encoding.x[r] for r in readers[c]] + [y.negated()])

    def exclude(self, extraction: Extraction) -> None:
        """Exclude extractions closer to this one than `min_distance` choices or a `diversity` share of kernels."""
        rows, x, model = self.rows, self.encoding.x, self.encoding.model
        chosen = self.kept.rows_of(extraction.choice)
        # always-on classes with one row are equal in all extractions
        free = [r for r in chosen if len(rows.members[rows.cls[r]]) > 1 or rows.cls[r] not in rows.roots]
        model.add(sum([x[r] for r in free]) <= len(free) - self.options.min_distance)
        if not self.options.diversity:
            return
        # largest number of shared kernels, per DIVERSITY_UNITS
        common = DIVERSITY_UNITS - math.ceil(self.options.diversity * DIVERSITY_UNITS - 1e-9)
        kernels = [r for r, counted in enumerate(self.counted) if counted]
        taken = set(chosen)
        model.add(sum([x[r] * (common - DIVERSITY_UNITS * (r in taken)) for r in kernels]) >= 0)

    def next(self, seconds: float) -> Extraction | None:
        """The cheapest extraction not yet excluded, which is then excluded.

        None if there is none or the time was too short.
        """
        from ortools.sat.python import cp_model

        began = time.perf_counter()
        engine = solver(seconds, self.options.workers, self.options.deterministic)
        status = run(engine, self.encoding.model, self.options.stop)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        value = round(engine.objective_value)
        if value > self.last:  # CP-SAT has claimed an optimum above an existing solution: confirm a rise in cost
            again = self.encoding.model.clone()
            again.add(self.encoding.objective <= self.last)
            second = solver(seconds, self.options.workers, self.options.deterministic)
            if run(second, again, self.options.stop) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                engine, value = second, round(second.objective_value)
        self.last = value
        choice = self.kept.choice_of([r for r, x in enumerate(self.encoding.x) if engine.boolean_value(x)])
        if not within_limits(self.problem, choice):
            return None
        cost = evaluate(self.problem, choice)
        lower = self.reduced.constant + (engine.best_objective_bound - 1e-6) / self.scale
        proven = status == cp_model.OPTIMAL
        found = Extraction(
            choice,
            cost,
            min(lower, cost),
            False,
            time.perf_counter() - began,
            "k-best",
            {"status": status.name},
            proven,
        )
        self.exclude(found)
        return found
