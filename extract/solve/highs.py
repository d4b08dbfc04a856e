"""Solves extraction as a mixed-integer program with HiGHS, called through OR-tools' MathOpt.

There are no level variables: cycles are excluded by cutting planes, separated exactly at fractional points (shortest
paths over the reads) and lazily after each integer solution.
MathOpt is used because the `highspy` package and OR-tools cannot be loaded into one process.
"""

from __future__ import annotations

import datetime
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..model.scc import strongly_connected_components
from .cpsat import MIN_TOTAL, SolverAnswer, units
from .dominators import class_graph, items_of, must_implications, rows_by_child
from .greedy import best_greedy, bottom_up, discounted, one_pass
from .problem import LIMIT_ROUNDING, ProblemRows

INCUMBENT_OBJECTIVE = 1e4
"""Objective value of the incumbent in the program: HiGHS's tolerances are absolute."""

BOUND_MARGIN = 1e-7
"""Relative margin subtracted from HiGHS's bounds for its floating-point tolerances."""

MAX_CUTS = 400
MAX_STALLED_ROUNDS = 6

Cut = dict[int, float]  # variable -> coefficient of the constraint: sum <= 0


class Relaxation:
    """Linear relaxation of an extraction problem in HiGHS, with its cutting planes.

    Variables 0..n_classes-1 are classes; the rows (ways to compute a class) of classes with several rows follow.
    """

    def __init__(self, rows: ProblemRows, upper: float) -> None:
        from ortools.math_opt.python import mathopt

        self.rows = rows
        self.scale = INCUMBENT_OBJECTIVE / max(upper, MIN_TOTAL) if 0 < upper < math.inf else 1.0
        self.model = mathopt.Model()
        members = rows.members
        self.vars = [self.model.add_variable(lb=0.0, ub=1.0) for _ in range(rows.n_classes)]
        self.x: list[int] = []
        objective = [0.0] * rows.n_classes
        for c, cost in zip(rows.cls, rows.cost):
            if len(members[c]) == 1:
                self.x.append(c)
                objective[c] = cost * self.scale
            else:
                self.x.append(len(self.vars))
                self.vars.append(self.model.add_variable(lb=0.0, ub=1.0))
                objective.append(cost * self.scale)
        self.model.minimize(sum(v * o for v, o in zip(self.vars, objective) if o))
        for root in rows.roots:
            self.vars[root].lower_bound = 1.0
        self.component, _ = strongly_connected_components(class_graph(items_of(rows)))
        self.reads = rows_by_child(rows)
        self.bound, self.status = 0.0, ""
        self.unit, self.integral_costs = units(rows.cost, upper)
        self.n_cuts = 0
        self._add_rows()

    def taken(self, c: int, k: int) -> list[int]:
        """Variables whose sum is 1 if and only if class c has child k in the solution."""
        readers = self.reads[c, k]
        return [c] if len(readers) == len(self.rows.members[c]) else [self.x[r] for r in readers]

    def add(self, cut: Cut) -> None:
        """Add a cutting plane, given as coefficient by variable: the weighted sum is at most 0."""
        row = self.model.add_linear_constraint(ub=0.0)
        for v, a in cut.items():
            if a:
                row.set_coefficient(self.vars[v], a)

    def _add_rows(self) -> None:
        for c, row in enumerate(self.rows.members):
            if len(row) > 1:
                choice = self.model.add_linear_constraint(lb=0.0, ub=0.0)
                choice.set_coefficient(self.vars[c], -1.0)
                for r in row:
                    choice.set_coefficient(self.vars[self.x[r]], 1.0)
        for c, k in self.reads:
            self.add({**dict.fromkeys(self.taken(c, k), 1.0), k: -1.0})
        for c, k in must_implications(self.rows):
            self.add({c: 1.0, k: -1.0})
        for c, k in self.reads:
            if c < k and (k, c) in self.reads and self.component[c] == self.component[k]:
                for head in (c, k):
                    self.add(_sum([*self.taken(c, k), *self.taken(k, c)], [head]))

    def limit(self, use: Sequence[float], most: float) -> None:
        """Constrain the sum of `use` (one number per row) over the chosen rows to at most `most`, up to rounding and
        HiGHS's tolerance; callers check the result."""
        top = most * (1 + LIMIT_ROUNDING)
        row = self.model.add_linear_constraint(ub=1.0 + LIMIT_ROUNDING)
        for x, u in zip(self.x, use):
            if u > top:
                self.add({x: 1.0})
            elif u > 0:
                row.set_coefficient(self.vars[x], u / most)

    def cycle_cut(self, cycle: Sequence[int]) -> Cut:
        """Cutting plane that excludes a cycle of an integer solution, given as classes, each a child of the one before.

        Sum of its edges <= number of its classes in the solution, not counting the class with the fewest rows.
        """
        free = min(range(len(cycle)), key=lambda i: len(self.rows.members[cycle[i]]))
        reads = [v for i, c in enumerate(cycle) for v in self.taken(c, cycle[(i + 1) % len(cycle)])]
        return _sum(reads, [c for i, c in enumerate(cycle) if i != free])

    def separate(self, value: Sequence[float]) -> list[Cut]:
        """Cycle cuts that a fractional point violates, by shortest paths.

        `value`: the point, by variable. The edge from class c to child k weighs y_c minus the share of its rows that
        read k; a cycle through class j that weighs less than y_j violates the cut without y_j.
        """
        arcs: dict[int, list[tuple[int, float]]] = {}
        for c, k in self.reads:
            if self.component[c] == self.component[k] and value[c] > 1e-6:
                taken = sum([value[v] for v in self.taken(c, k)])
                if taken > 1e-6:
                    arcs.setdefault(c, []).append((k, max(value[c] - taken, 0.0)))
        cuts: list[Cut] = []
        covered: set[int] = set()
        for j in sorted(arcs, key=lambda c: -value[c]):
            if j in covered or len(cuts) >= MAX_CUTS:
                continue
            cycle = _lightest_cycle(j, arcs, value[j] - 1e-4)
            if cycle:
                covered.update(cycle)
                reads = [v for i, c in enumerate(cycle) for v in self.taken(c, cycle[(i + 1) % len(cycle)])]
                cuts.append(_sum(reads, cycle[1:]))
        return cuts

    def solve(self, seconds: float, hint: Sequence[int] | None = None) -> Any:
        """Call HiGHS once, for at most `seconds`, with an optional warm start `hint` (chosen rows, ways to compute a
        class); returns MathOpt's result."""
        from ortools.math_opt.python import mathopt

        limits = mathopt.SolveParameters(
            time_limit=datetime.timedelta(seconds=max(seconds, 0.01)), relative_gap_tolerance=BOUND_MARGIN / 2
        )
        extra = mathopt.ModelSolveParameters()
        if hint is not None:
            values = dict.fromkeys(self.vars, 0.0)
            for r in hint:
                values[self.vars[self.rows.cls[r]]] = values[self.vars[self.x[r]]] = 1.0
            extra.solution_hints.append(mathopt.SolutionHint(variable_values=values))
        return mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=limits, model_params=extra)

    def raise_bound(self, value: float) -> None:
        """Raise the lower bound to `value`, a dual bound of the integer program in the units of its objective."""
        if math.isfinite(value):
            bound = value / self.scale * (1 - BOUND_MARGIN)
            if self.integral_costs:
                bound = math.ceil(bound * self.unit - 1e-3) / self.unit
            self.bound = max(self.bound, bound)

    def tighten(self, deadline: float, upper: float) -> list[float]:
        """Run the cutting-plane loop at the root and return the last fractional solution.

        Ends at `deadline` (time.perf_counter), when no cut is violated, or when the bound stalls or meets `upper`, the
        cost of a known solution.
        """
        value: list[float] = []
        idle, last = 0, -math.inf
        while (left := deadline - time.perf_counter()) > 0 and idle < MAX_STALLED_ROUNDS:
            result = self.solve(left)
            self.status = result.termination.reason.name
            if self.status != "OPTIMAL":
                break
            objective = result.objective_value()
            self.raise_bound(objective)
            value = result.variable_values(self.vars)
            if upper - self.bound <= 2 * BOUND_MARGIN * upper:
                break
            cuts = self.separate(value)
            if not cuts:
                break
            for cut in cuts:
                self.add(cut)
            self.n_cuts += len(cuts)
            idle = idle + 1 if objective <= last + 1e-6 * abs(last) else 0
            last = max(last, objective)
        return value

    def rounded(self, value: Sequence[float]) -> list[list[int]]:
        """Greedy integer solutions near a fractional one, each as the chosen row of every class (-1: none).

        `value`: the fractional solution, by variable. A row whose variable is x costs (1 - x) times its cost.
        """
        price = [cost * max(0.0, 1.0 - value[x]) for cost, x in zip(self.rows.cost, self.x)]
        return [c for c in (bottom_up(self.rows, price), one_pass(self.rows, price)) if c is not None]

    def integral(self) -> None:
        """Require integer values of the variables that choose rows (ways to compute a class); those that say whether a
        class is computed are then integers, too."""
        for v in set(self.x):
            self.vars[v].integer = True


def solve_highs(
    rows: ProblemRows,
    start: Sequence[int] | None,
    *,
    seconds: float,
    root_ratio: float = 0.0,
    stop: Callable[[], bool] | None = None,
    limits: Sequence[tuple[Sequence[float], float]] = (),
) -> SolverAnswer:
    """Answer of HiGHS to minimizing the DAG cost over `rows` within `seconds`, from a solution `start` (rows, that is
    ways to compute a class, children first).

    Ends after the root relaxation if its bound is below `root_ratio` times the cost. `limits`: (use of each row, upper
    limit of the sum over the chosen rows); with limits `start` may be None, and `stats["status"]` is INFEASIBLE if no
    extraction satisfies the limits.

    HiGHS checks its time limit rarely: it runs in a daemon thread, which is abandoned (and ends by itself soon after)
    if it overruns or `stop` returns True.
    """
    search = _BranchAndBound(rows, start, time.perf_counter() + 0.9 * seconds, root_ratio, limits)
    thread = threading.Thread(target=search.run, daemon=True)
    ends = time.perf_counter() + seconds
    thread.start()
    while thread.is_alive() and time.perf_counter() < ends and not (stop is not None and stop()):
        thread.join(min(0.02, max(0.0, ends - time.perf_counter())))
    search.cancelled = True
    if search.error is not None:
        raise search.error
    return search.answer


class _BranchAndBound:
    def __init__(
        self, rows: ProblemRows, start: Sequence[int] | None, deadline: float, root_ratio: float,
        limits: Sequence[tuple[Sequence[float], float]],
    ) -> None:  # fmt: skip
        self.rows, self.deadline, self.root_ratio, self.limits = rows, deadline, root_ratio, limits
        self.answer = SolverAnswer(None, math.inf, 0.0, False)
        if start is not None:
            self.answer = SolverAnswer(list(start), rows.total(start), 0.0, False)
        self.cancelled = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # re-raised in the caller's thread
            self.error = error

    def _run(self) -> None:
        relaxation = Relaxation(self.rows, min(self.answer.cost, math.fsum(self.rows.cost)))
        for use, most in self.limits:
            relaxation.limit(use, most)
        began = time.perf_counter()
        value = relaxation.tighten(began + 0.5 * (self.deadline - began), self.answer.cost)
        for choice in [None, *relaxation.rounded(value)] if value else [None]:
            self._publish(relaxation, choice)
        if self._impossible(relaxation.status):
            return
        if relaxation.bound < self.root_ratio * self.answer.cost:
            return
        relaxation.integral()
        while not self.answer.proven and not self.cancelled and time.perf_counter() < self.deadline:
            result = relaxation.solve(self.deadline - time.perf_counter(), self.answer.chosen)
            relaxation.raise_bound(result.dual_bound())
            if not result.has_primal_feasible_solution():
                self._impossible(result.termination.reason.name)
                break
            value = result.variable_values(relaxation.vars)
            choice = [-1] * self.rows.n_classes
            for r, v in enumerate(relaxation.x):
                if value[v] > 0.5:
                    choice[self.rows.cls[r]] = r
            cycles = _cycles(self.rows, choice)
            self._publish(relaxation, choice if not cycles else self._repaired(choice))
            if not cycles:
                break
            for cycle in cycles:
                relaxation.add(relaxation.cycle_cut(cycle))
            relaxation.n_cuts += len(cycles)

    def _impossible(self, status: str) -> bool:
        """Whether the status means that the limits are infeasible; then records that as the answer."""
        if status != "INFEASIBLE" or self.answer.chosen is not None:
            return False
        self.answer = SolverAnswer(None, math.inf, 0.0, True, {"status": status})
        return True

    def _repaired(self, choice: list[int]) -> list[int] | None:
        price = discounted(self.rows, [r for r in choice if r >= 0])
        known = [c for c in (bottom_up(self.rows, price), one_pass(self.rows, price)) if c is not None]
        _, chosen, _ = best_greedy(self.rows, known)
        found = [-1] * self.rows.n_classes
        for r in chosen:
            found[self.rows.cls[r]] = r
        return found

    def _allowed(self, chosen: Sequence[int]) -> bool:
        return all(math.fsum([use[r] for r in chosen]) <= most * (1 + LIMIT_ROUNDING) for use, most in self.limits)

    def _publish(self, relaxation: Relaxation, choice: Sequence[int] | None) -> None:
        best, cost = self.answer.chosen, self.answer.cost
        chosen = self.rows.walk(choice) if choice is not None else None
        if chosen is not None and (total := self.rows.total(chosen)) < cost and self._allowed(chosen):
            best, cost = chosen, total
        lower = min(relaxation.bound, cost)
        proven = best is not None and cost - lower <= 4 * BOUND_MARGIN * cost
        self.answer = SolverAnswer(best, cost, lower, proven, {"cuts": relaxation.n_cuts})


def _sum(plus: Iterable[int], minus: Iterable[int]) -> Cut:
    cut: Cut = {}
    for v in plus:
        cut[v] = cut.get(v, 0.0) + 1.0
    for v in minus:
        cut[v] = cut.get(v, 0.0) - 1.0
    return cut


def _lightest_cycle(j: int, arcs: dict[int, list[tuple[int, float]]], limit: float) -> list[int]:
    """A cycle through j lighter than `limit`, starting at j; empty if there is none (Dijkstra)."""
    distance = {j: 0.0}
    before: dict[int, int] = {}
    heap = [(0.0, j)]
    while heap:
        far, c = heapq.heappop(heap)
        if far > distance[c]:
            continue
        for k, weight in arcs.get(c, ()):
            new = far + weight
            if new >= limit:
                continue
            if k == j:
                cycle = [c]
                while cycle[-1] != j:
                    cycle.append(before[cycle[-1]])
                return cycle[::-1]
            if new < distance.get(k, math.inf):
                distance[k], before[k] = new, c
                heapq.heappush(heap, (new, k))
    return []


def _cycles(rows: ProblemRows, choice: Sequence[int]) -> list[list[int]]:
    """Disjoint cycles among the chosen rows reachable from the roots, at least one per cyclic component."""
    seen: set[int] = set(rows.roots)
    todo = list(rows.roots)
    while todo:
        r = choice[todo.pop()]
        for k in rows.children[r] if r >= 0 else ():
            if k not in seen:
                seen.add(k)
                todo.append(k)
    graph = [rows.children[choice[c]] if c in seen and choice[c] >= 0 else () for c in range(rows.n_classes)]
    found = []
    for member in strongly_connected_components(graph)[1]:
        inside = set(member) if len(member) > 1 else set()
        while inside:
            cycle = _lightest_cycle(min(inside), {c: [(k, 1.0) for k in graph[c] if k in inside] for c in inside}, 1e9)
            if not cycle:
                inside.discard(min(inside))
                continue
            found.append(cycle)
            inside -= set(cycle)
    return found
