"""The k cheapest extractions, one after another, in rising cost.

One integer program is solved again and again; each solution found is cut off by a row that asks for at least
`min_distance` other choices. Demand rows keep classes that nobody reads out of the program, so two solutions of it never
are the same extraction.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..errors import UsageError
from .cpsat import Encoding, run, solver
from .presolve import Reduced, detach, presolve
from .problem import Extraction, Problem, evaluate, reachable, relative_gap
from .solve import solve


def k_best(
    problem: Problem,
    *,
    count: int,
    max_gap: float = 0.05,
    min_distance: int = 1,
    time_limit: float = 10.0,
    workers: int = 8,
    deterministic: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Extraction]:
    """At most `count` distinct extractions in rising cost, none dearer than (1 + max_gap) times the first.

    min_distance: classes in which each must choose differently from every earlier one (a class left unused counts).
    `proven_rank` says that no extraction allowed by the rows above was missed; `lower_bound` bounds all that are left.
    Ends early when the window is exhausted or `time_limit` seconds (over all, the caller's own time left out) are used.
    Raises what `solve` raises, and UsageError for counts below 1 or a negative window.
    """
    if count < 1 or min_distance < 1 or not max_gap >= 0:
        raise UsageError(
            f"count={count}, min_distance={min_distance}, max_gap={max_gap} make no sequence",
            where="k_best",
            hint="count and min_distance are at least 1, max_gap at least 0",
        )
    return _generate(problem, count, max_gap, min_distance, time_limit, workers, deterministic, stop)


def _generate(
    problem: Problem,
    count: int,
    max_gap: float,
    min_distance: int,
    time_limit: float,
    workers: int,
    deterministic: bool,
    stop: Callable[[], bool] | None,
) -> Iterator[Extraction]:
    first = solve(problem, time_limit=time_limit / 2, gap=1e-9, workers=workers, deterministic=deterministic, stop=stop)
    left = time_limit - first.seconds
    began = time.perf_counter()
    window = _Window(problem, first, max_gap, min_distance)
    left -= time.perf_counter() - began
    exact = relative_gap(first.cost, first.lower_bound) <= 1e-6
    yield replace(first, proven_rank=exact)
    for _ in range(count - 1):
        began = time.perf_counter()
        if left <= 0 or (stop is not None and stop()):
            return
        found = window.next(left, workers, deterministic, stop)
        left -= 0.0 if deterministic else time.perf_counter() - began
        if found is None or found.cost > first.cost * (1 + max_gap) * (1 + 1e-9):
            return
        exact = exact and found.proven_rank
        yield replace(found, proven_rank=exact)


class _Window:
    """All extractions up to a cost, as one growing program."""

    def __init__(self, problem: Problem, first: Extraction, max_gap: float, min_distance: int) -> None:
        self.problem, self.min_distance = problem, min_distance
        upper = first.cost * (1 + max_gap) if max_gap < math.inf else math.inf
        light = detach(problem.rows)
        assert light is not None  # `first` exists
        inner = presolve(light.rows, upper - light.constant, keep_all=True)
        self.reduced = Reduced(
            inner.rows,
            [light.origin[r] for r in inner.origin],
            light.fixed + [light.origin[r] for r in inner.fixed],
            light.constant + inner.constant,
        )
        self.rows = inner.rows
        self.encoding = Encoding(self.rows)
        self._demand()
        room = max(0.0, upper - self.reduced.constant) + 1e-9 * upper  # the constant carries rounding of its own
        self.scale = self.encoding.minimize(room)
        if upper < math.inf:
            limit = math.floor(room * self.scale)
            self.encoding.model.add(self.encoding.objective <= limit)
        self.exclude(first)

    def _demand(self) -> None:
        """A class is built only if it is a root or some chosen row reads it."""
        m, encoding = self.encoding.model, self.encoding
        readers: dict[int, list[int]] = defaultdict(list)
        for (_, k), rows in encoding.reads.items():
            readers[k] += rows
        roots = set(self.rows.roots)
        for c, y in enumerate(encoding.y):
            if y is not None and c not in roots:
                m.add_bool_or([encoding.x[r] for r in readers[c]] + [y.negated()])

    def exclude(self, extraction: Extraction) -> None:
        """Ask for at least `min_distance` other choices than this extraction's."""
        taken = {int(i) for i in extraction.choice if i >= 0}
        live, rows = self.problem.live, self.rows
        chosen = [r for r, at in enumerate(self.reduced.origin) if live[at] in taken]
        # always-on classes with one row are the same everywhere
        free = [r for r in chosen if len(rows.members[rows.cls[r]]) > 1 or rows.cls[r] not in rows.roots]
        literals = [self.encoding.x[r] for r in free]
        self.encoding.model.add(sum(literals) <= len(free) - self.min_distance)

    def next(
        self, seconds: float, workers: int, deterministic: bool, stop: Callable[[], bool] | None
    ) -> Extraction | None:
        """The cheapest extraction that no row forbids, and forbid it; None if there is none or it was not found."""
        from ortools.sat.python import cp_model

        began = time.perf_counter()
        engine = solver(seconds, workers, deterministic)
        status = run(engine, self.encoding.model, stop)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        picked = [r for r, x in enumerate(self.encoding.x) if engine.boolean_value(x)]
        choice = self.problem.choice_of(self.reduced.restore(picked))
        used = reachable(self.problem, choice)
        choice[:] = -1
        choice[self.problem.cls[used]] = used
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
