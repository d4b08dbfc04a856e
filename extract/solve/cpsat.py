"""Solves extraction as an integer program with CP-SAT, in which level variables exclude cycles.

Its Boolean variables: y_c, whether class c is needed, and x_r, whether row r (a way to compute a class) is chosen. The
rows of class c that have child k form one aggregated constraint (sum of their x_r <= y_k). Classes of a strongly
connected component have level variables that decrease along chosen rows. See `must_implications` for the constraints
that strengthen the linear relaxation."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model.scc import strongly_connected_components
from .dominators import class_graph, items_of, must_implications, rows_by_child
from .problem import LIMIT_ROUNDING, ProblemRows

MIN_WORKERS = 8
"""CP-SAT workers run different strategies: fewer than the default number prove much less, even on one core."""

FEW_CORES = ("core", "objective_lb_search", "max_lp", "quick_restart")
"""Strategies used instead of the default ones where there are fewer cores than workers. On two busy cores these proved
both a hardware and a tensor e-graph in 8 s; the 8 default strategies on the same cores had no proof after 10 s."""

UNITS_A_SECOND = 0.25
"""CP-SAT's deterministic units of time that count as a second: one takes 2 to 6 s of the strategies' time."""

OBJECTIVE_UNITS = 1e9
"""Value of the incumbent in integer objective units, if costs are not decimal numbers with few digits."""

DECIMAL_ROUNDING = 1e-14
"""Relative rounding error of a decimal number as a float, and of its product with a power of ten."""

MIN_TOTAL = 1e-280
"""Totals below this count as 0."""

MAX_INTEGER_TOTAL = 1e15
"""Upper limit of the sum of all integer prices, far from int64 overflow."""


@dataclass
class SolverAnswer:
    """Result of a solver.

    `chosen`: rows (ways to compute a class), children first (None: no solution). `cost`: sum of the costs of these
    rows. `lower`: valid lower bound. `proven`: whether the search was exhaustive. `stats`: the solver's own numbers,
    among them its `status` by name.
    """

    chosen: list[int] | None
    cost: float
    lower: float
    proven: bool
    stats: dict[str, Any] = field(default_factory=dict)


MAX_CONSTRAINT_SUM = 1e18
"""Upper limit of the sum of the terms of one constraint."""


class Encoding:
    """CP-SAT model of an extraction problem without an objective: variables, constraints, and integer levels of
    e-classes that exclude cycles. k-best extraction uses it, too.
    """

    def __init__(self, rows: ProblemRows, *, implications: bool = True) -> None:
        from ortools.sat.python import cp_model

        self.rows = rows
        self.model = m = cp_model.CpModel()
        members = rows.members
        self.y = [m.new_bool_var("") if row else None for row in members]
        self.x: list[Any] = [self.y[c] if len(members[c]) == 1 else m.new_bool_var("") for c in rows.cls]
        for root in rows.roots:
            m.add_bool_and(self.y[root])
        for c, row in enumerate(members):
            if len(row) > 1:
                m.add(cp_model.LinearExpr.sum([self.x[r] for r in row]) == self.y[c])
        self.reads = rows_by_child(rows)
        for (c, k), readers in self.reads.items():
            if len(readers) == len(members[c]):
                m.add_implication(self.y[c], self.y[k])
            elif len(readers) == 1:
                m.add_implication(self.x[readers[0]], self.y[k])
            else:
                m.add(cp_model.LinearExpr.sum([self.x[r] for r in readers]) <= self.y[k])
        for c, k in must_implications(rows) if implications else ():
            m.add_implication(self.y[c], self.y[k])
        self.level: dict[int, Any] = {}
        self._forbid_cycles()

    def _forbid_cycles(self) -> None:
        m, rows = self.model, self.rows
        of, groups = strongly_connected_components(class_graph(items_of(rows)))
        for (c, k), readers in self.reads.items():
            if of[c] != of[k]:
                continue
            for q in (c, k):
                if q not in self.level:
                    self.level[q] = m.new_int_var(0, len(groups[of[q]]) - 1, "")
            taken = [self.y[c]] if len(readers) == len(rows.members[c]) else [self.x[r] for r in readers]
            for literal in taken:
                m.add(self.level[c] >= self.level[k] + 1).only_enforce_if(literal)
            back = self.reads.get((k, c))
            if back is not None and c < k:
                both = [self.x[r] for r in readers] + [self.x[r] for r in back]
                m.add(sum(both) <= self.y[c])
                m.add(sum(both) <= self.y[k])

    def hint(self, chosen: Sequence[int]) -> None:
        """Give the solver a solution to start from: `chosen`, rows (ways to compute a class), children first."""
        m, rows = self.model, self.rows
        m.clear_hints()
        taken = set(chosen)
        on = {rows.cls[r] for r in chosen}
        for c, y in enumerate(self.y):
            if y is not None:
                m.add_hint(y, c in on)
        for r, x in enumerate(self.x):
            if len(rows.members[rows.cls[r]]) > 1:
                m.add_hint(x, r in taken)
        depth: dict[int, int] = {}
        for r in chosen:
            c = rows.cls[r]
            inside = [depth[k] + 1 for k in rows.children[r] if k in depth]
            if c in self.level:
                depth[c] = max(inside, default=0)
                m.add_hint(self.level[c], depth[c])

    def limit(self, use: Sequence[float], most: float) -> None:
        """Constrain the sum of `use` (one number per row) over the chosen rows (ways to compute a class) to at most
        `most`.

        Uses are floored to fine integer units: no allowed solution is lost, but a found one may exceed the limit by
        rounding; callers check.
        """
        for x, u in zip(self.x, use):
            if u > most * (1 + LIMIT_ROUNDING):
                self.model.add_bool_and(x.negated())
        fits = [u if u <= most * (1 + LIMIT_ROUNDING) else 0.0 for u in use]
        if most <= 0 or not any(fits):
            return
        scale = min(MAX_INTEGER_TOTAL / most, MAX_CONSTRAINT_SUM / math.fsum(fits))
        terms = [(x, math.floor(u * scale)) for x, u in zip(self.x, fits) if u]
        self.model.add(sum(x * u for x, u in terms) <= math.floor(most * (1 + LIMIT_ROUNDING / 2) * scale))

    def minimize(self, upper: float) -> float:
        """Set the solver's objective: the sum of the chosen rows' costs; rows (ways to compute a class) that cost more
        than `upper` are excluded.

        Returns the integer objective units per unit of cost. Costs are rounded down, so lower bounds stay valid.
        """
        from ortools.sat.python import cp_model

        rows = self.rows
        hopeless = [c > upper * (1 + 1e-9) for c in rows.cost]
        cost = [0.0 if too_dear else c for c, too_dear in zip(rows.cost, hopeless)]
        for x, too_dear in zip(self.x, hopeless):
            if too_dear:
                self.model.add_bool_and(x.negated())
        scale, exact = units(cost, upper)
        self.prices = [round(c * scale) if exact else math.floor(c * scale) for c in cost]
        terms: list[tuple[Any, int]] = []
        # each class's least price goes on y_c: unsat cores are found on classes first
        for c, row in enumerate(rows.members):
            least = min([self.prices[r] for r in row], default=0)
            terms.append((self.y[c], least))
            terms += [(self.x[r], self.prices[r] - least) for r in row]
        terms = [(v, price) for v, price in terms if price]
        self.objective = cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [p for _, p in terms])
        self.model.minimize(self.objective)
        return scale


def units(cost: Sequence[float], upper: float) -> tuple[float, bool]:
    """Scale of the integer objective: (objective units per cost unit, whether every cost is an integer number of them).

    The least power of ten that makes all costs integers, if a small one does; otherwise the power of ten that scales
    `upper` to about OBJECTIVE_UNITS.
    """
    total = math.fsum(cost)
    scale = 1.0
    while scale <= 1e6 and scale * total < MAX_INTEGER_TOTAL:
        if all(abs(c * scale - round(c * scale)) <= DECIMAL_ROUNDING * c * scale for c in cost):
            return scale, True
        scale *= 10
    base = min(upper, total) if upper > 0 else total
    finest = min(OBJECTIVE_UNITS / max(base, MIN_TOTAL), MAX_INTEGER_TOTAL / max(total, MIN_TOTAL))
    return 10.0 ** math.floor(math.log10(finest)), False


def solver(seconds: float, workers: int, deterministic: bool) -> Any:
    """A new CP-SAT solver configured for extraction, with `workers` threads. `seconds`: time limit, as counted work
    with `deterministic`."""
    from ortools.sat.python import cp_model

    found = cp_model.CpSolver()
    p = found.parameters
    p.num_workers = max(workers, MIN_WORKERS)
    if not deterministic and cores() < p.num_workers:
        p.num_workers = len(FEW_CORES)
        p.subsolvers.extend(FEW_CORES)
    p.random_seed = 0
    p.catch_sigint_signal = False  # CP-SAT's handler would replace the Python one and not restore it
    p.relative_gap_limit = 0.0
    if deterministic:
        p.interleave_search = True
        p.max_deterministic_time = UNITS_A_SECOND * seconds
    else:
        p.max_time_in_seconds = max(0.95 * seconds - 0.05, 0.01)  # CP-SAT ends slightly after its limit
    return found


def cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(engine: Any, model: Any, stop: Callable[[], bool] | None) -> Any:
    """Solve a CP-SAT model with the solver `engine` (`solver`); returns CP-SAT's status, such as `cp_model.OPTIMAL`.

    A second thread polls `stop` and ends the search when it returns True.
    """
    if stop is None:
        return engine.solve(model)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.02):
            if stop():
                engine.stop_search()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        return engine.solve(model)
    finally:
        finished.set()
        thread.join()


def solve_cpsat(
    rows: ProblemRows,
    start: Sequence[int] | None,
    *,
    seconds: float,
    workers: int = MIN_WORKERS,
    deterministic: bool = False,
    stop: Callable[[], bool] | None = None,
    limits: Sequence[tuple[Sequence[float], float]] = (),
) -> SolverAnswer:
    """Answer of CP-SAT, with `workers` threads, to minimizing the DAG cost over `rows` within `seconds`, from a
    solution `start` (rows, that is ways to compute a class, children first; None: no solution is known).

    With `deterministic`, the limit is counted work (UNITS_A_SECOND). `stop`: polled; True ends the search.
    `limits`: (use of each row, upper limit of the sum over the chosen rows).
    """
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    encoding = Encoding(rows)
    for use, most in limits:
        encoding.limit(use, most)
    upper = rows.total(start) if start is not None else math.fsum(rows.cost)
    scale = encoding.minimize(upper)
    if start is not None:
        encoding.hint(start)
    built = time.perf_counter() - began
    engine = solver(seconds if deterministic else seconds - built, workers, deterministic)
    status = run(engine, encoding.model, stop)
    stats = {"build_seconds": built, "status": status.name, "branches": engine.num_branches}
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return SolverAnswer(None, math.inf, 0.0, False, stats)
    lower = max(0.0, math.ceil(engine.best_objective_bound - 1e-6) / scale)
    choice = [-1] * rows.n_classes
    for row, x in enumerate(encoding.x):
        if engine.boolean_value(x):
            choice[rows.cls[row]] = row
    chosen = rows.walk(choice)
    if chosen is None:
        return SolverAnswer(None, math.inf, lower, False, stats)
    cost = rows.total(chosen)
    return SolverAnswer(chosen, cost, min(lower, cost), status == cp_model.OPTIMAL, stats)
