"""Calls the solvers for a search, each within the remaining time: for the optimistic plan (unmeasured kernels at the
low ends of their predicted times), the pessimistic plan (at the high ends), and a plan that needs no compiler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ...errors import ExtractionError, NoPlanError
from ..candidates.hypergraph import Hypergraph
from ..model.clock import Clock
from ..model.gc_pause import gc_paused
from ..model.kernel import Candidate
from ..model.pricing import Priced
from ..solve.budgets import Budget
from ..solve.extraction import Extraction
from ..solve.solve import solve
from ..solve.structures import Structures
from .encoding import EncodedHypergraph
from .measurement_state import per_call
from .warm_start import warm_solve

# seconds of a solve that is followed by measuring: more rounds find more than longer solves, at equal total time
QUICK_SOLVE_S = 0.1
# and seconds for each candidate, if that is more: a plan of a large graph that no exact solver has seen is far from the
# cheapest one, and its kernels would be measured in vain
QUICK_SOLVE_S_PER_CANDIDATE = 6e-5
# least seconds of a solve, and seconds of a pessimistic solve: with less, a solve ends with a greedy plan
MIN_SOLVE_S = 0.25
SOLVE_OVERTIME = 0.15  # share of the search's seconds by which solves may exceed them
PESSIMISTIC_SHARE = 0.1  # share of the time that pessimistic solves may take
MAX_STARTING_S = 8.0  # seconds, at most, that a search waits for the measuring processes to start
# a plan of the model's short form is carried over by a solve in which all other kernels cost this much more
OTHERS_FACTOR = 10.0
CLOSING_S = 1.5  # seconds, at most, for measuring the final plan's unmeasured kernels
# Pessimistic time of an unmeasured kernel: multiple of the prediction for library kernels and packed products
# (`is_predictable`), and for generated pointwise and reduction kernels; multiple of the upper end of the interval for
# other generated kernels, whose schedules are guesses and may not compile.
LIBRARY_FACTOR, SIMPLE_FACTOR, GENERATED_FACTOR = 1.3, 6.0, 4.0
SEARCHING = 1.1  # see `PlanSolver.first_costs`
SIMPLE_FAMILIES = ("pointwise", "reduction")


def quick_solve_seconds(hypergraph: Hypergraph, at_most: float) -> float:
    """Time limit in seconds of a solve that is followed by measuring: larger for more candidates, at most `at_most`."""
    return min(max(QUICK_SOLVE_S, QUICK_SOLVE_S_PER_CANDIDATE * len(hypergraph.candidates)), at_most)


@dataclass
class PlanSolver:
    """Solver of the plans of one search, each warm-started from the plan before and limited by the remaining time.

    `seconds`: time limit of the whole search. `limits`: time limits in seconds of a solve: of the first attempt, and of
    the next. `chosen`: the cheapest plan if unmeasured kernels take as little as predicted, in the end the plan to
    return. `pessimistic`: the cheapest plan if unmeasured kernels take as long as predicted at most: the plan to return
    if nothing more were measured. Plans are candidate indices in execution order.
    """

    hypergraph: Hypergraph
    budgets: Sequence[Budget]
    seconds: float
    limits: Sequence[float]
    deterministic: bool
    stop: Callable[[], bool]
    clock: Clock
    nested: bool = True  # whether the longest solves may start from smaller problems (warm_start.py)
    structures: Structures = field(default_factory=Structures)
    chosen: list[int] = field(default_factory=list)
    pessimistic: list[int] = field(default_factory=list)
    pessimistic_s: float = 0.0  # seconds spent on pessimistic solves
    start: float = field(default_factory=lambda: time.monotonic())
    closing: float = CLOSING_S  # seconds of the closing phase
    last_s: float = MIN_SOLVE_S  # seconds of the solve for the plan to return, even if the time is up
    closing_until: float = -math.inf
    ahead_s: float = 0.0  # seconds before the end of the closing phase in which no other kernel is begun
    over_since: float | None = None  # when the time for measuring was first seen to be over
    least: float = 0.0  # seconds of measuring in any case, from when the measuring processes have started
    starting: Callable[[], bool] = lambda: False  # whether these processes are still starting
    started: float | None = None  # time at which the measuring processes were first seen to have started

    @property
    def _short(self) -> float:
        """Time limit in seconds of a pessimistic solve."""
        return max(MIN_SOLVE_S, quick_solve_seconds(self.hypergraph, self.limits[-1]) / 2)

    def ended(self) -> bool:
        """Whether the time for measuring is over; the closing phase (`start_closing`) has time of its own."""
        elapsed = time.monotonic() - self.start
        over = elapsed > self.seconds and (not self.least or self._measured_enough(elapsed))
        if over and self.over_since is None:
            self.over_since = self.start + elapsed
        return self.stop() or over

    @property
    def overtime(self) -> float:
        """Seconds since the time for measuring was over; 0 if it is not."""
        return 0.0 if self.over_since is None else time.monotonic() - self.over_since

    def leaves_no_round(self, seconds: float) -> bool:
        """Whether a further round of solving and measuring is not worth starting: after `seconds` of solving, the time
        for measuring would be over (`ended`)."""
        if self.deterministic:
            return False
        elapsed = time.monotonic() - self.start + seconds
        return elapsed > self.seconds and (not self.least or self._measured_enough(elapsed - seconds))

    def _measured_enough(self, elapsed: float) -> bool:
        """Whether the processes had `least` seconds, or did not start within MAX_STARTING_S."""
        if self.started is None and not self.starting():
            self.started = elapsed
        if self.started is None:
            return elapsed > MAX_STARTING_S
        return elapsed > min(self.started, MAX_STARTING_S) + self.least

    def start_closing(self, used: float = 0.0) -> None:
        """Start the closing phase: unmeasured kernels of the final plan are measured, for at most `closing`.

        `used`: seconds of it that a kernel which ran at the end of measuring has taken already.
        """
        self.closing_until = time.monotonic() + self.closing - used

    def closing_ended(self) -> bool:
        """Whether the closing phase is over, or will be in `ahead_s`."""
        return self.stop() or time.monotonic() + self.ahead_s > self.closing_until

    def solve(
        self, cost: Sequence[float], limit: float, known: Sequence[int], least: float = MIN_SOLVE_S
    ) -> tuple[list[int], Extraction]:
        """The cheapest plan at given costs in µs, as (candidates in execution order, extraction).

        Warm-started from the plan `known`; found within `limit` seconds, or within `least` if less is left.

        Raises NoPlanError if none exists or none was found in time.
        """
        # measuring that follows a shorter solve tells more than a longer solve
        beam_only = not self.deterministic and (not self.nested or limit < self.limits[-1])
        pressed = self.stop()  # if already stopped, this solve must still produce a plan
        if not self.deterministic:
            left = 0.0 if pressed else (1 + SOLVE_OVERTIME) * self.seconds - (time.monotonic() - self.start)
            limit = max(min(least, limit), min(limit, left))
        halted = None if pressed else self.stop
        with self.clock.running("solve"):
            nested = self.nested and limit >= self.limits[-1]
            return _solve(
                self.hypergraph,
                cost,
                limit,
                self.deterministic,
                self.budgets,
                known,
                halted,
                nested=nested,
                beam_only=beam_only,
                structures=self.structures,
            )

    def start_from(self, carried: Collection[int], costs: Sequence[float]) -> None:
        """Warm-start the first solves from a plan that uses as many of the candidates `carried` as possible, and for
        values that these do not compute the cheapest kernels at `costs`."""
        own = {*carried}
        dearer = [c if i in own else OTHERS_FACTOR * c for i, c in enumerate(costs)]
        with suppress(NoPlanError):  # the solve that follows reports it
            self.chosen, _ = self.solve(dearer, self._short, ())
            self.pessimistic = self.chosen

    def solve_optimistic(self, costs: Sequence[float], limit: float) -> Extraction:
        """Set `chosen` to the cheapest plan at optimistic costs, return its extraction. `limit`: seconds. Raises
        NoPlanError if no plan exists or none was found in time."""
        self.chosen, found = self.solve(costs, limit, self.chosen)
        return found

    def solve_without_compiler(self, prices: Sequence[Priced]) -> list[int]:
        """Set and return `pessimistic`: the cheapest plan of kernels that are measured or need no compiler.

        Empty if there is none, or if no candidate needs a compiler. Such a plan can be measured at once: other plans
        are compared with it, and it is the fallback if time is short.
        """
        waits = per_call(self.hypergraph, prices, lambda c, p: c.template.space is not None and p.source != "measured")
        if not any(waits):
            return []
        costs = [math.inf if wait else us for wait, us in zip(waits, self.first_costs(prices))]
        try:
            self.pessimistic, _ = self.solve(costs, self._short, ())
        except NoPlanError:
            return []
        return self.pessimistic

    def first_costs(self, prices: Sequence[Priced]) -> list[float]:
        """Expected time of each candidate in µs, of unmeasured kernels that search among a library's algorithms
        SEARCHING times as much: one that does not is measured first, in a fifth of the time."""
        slow: Callable[[Candidate, Priced], bool] = lambda c, p: c.template.searches and p.source != "measured"
        return per_call(self.hypergraph, prices, lambda c, p: p.us * (SEARCHING if slow(c, p) else 1.0))

    def solve_likely(self, prices: Sequence[Priced]) -> list[int]:
        """The cheapest plan at the expected times of all kernels (neither optimistic nor pessimistic), as candidate
        indices; empty if none was found in time."""
        try:
            return self.solve(self.first_costs(prices), QUICK_SOLVE_S, self.chosen)[0]
        except NoPlanError:
            return []

    def solve_pessimistic(self, prices: Sequence[Priced]) -> bool:
        """Set `pessimistic` to the plan that would be returned if nothing more were measured; returns False if it was
        left unchanged.

        That is so if these solves have taken more than their share of the time, or if no plan was found.
        """
        began = time.monotonic()
        if self.pessimistic_s > PESSIMISTIC_SHARE * (began - self.start):
            return False
        try:
            self.pessimistic, _ = self.solve(self.pessimistic_costs(prices), self._short, self.pessimistic)
        except NoPlanError:
            return False
        finally:
            self.pessimistic_s += time.monotonic() - began
        return True

    def solve_final(
        self, prices: Sequence[Priced], optimistic: Extraction, limit: float, *, settled: bool = False,
        least: float = MIN_SOLVE_S,
    ) -> Extraction:  # fmt: skip
        """Set `chosen` to the plan to return, the cheapest at pessimistic costs, and return its extraction.

        The solve starts from the cheaper one of `chosen` and `pessimistic`: on a busy machine it may end before it has
        found another. `optimistic`: the last extraction at optimistic costs. The result's lower bound is at most that
        of `optimistic`, so that it also bounds plans whose unmeasured kernels turn out fast. `limit`, `least`: seconds
        (`solve`). With `settled`, unmeasured kernels outside the last plan are excluded, if that leaves a plan.
        """
        cost, own = self.pessimistic_costs(prices), set(self.chosen)
        sure = [c if p.source == "measured" or i in own else math.inf for i, (c, p) in enumerate(zip(cost, prices))]
        used = sure if settled else cost
        known = min(
            filter(None, (self.chosen, self.pessimistic)), key=lambda plan: sum(used[i] for i in plan), default=[]
        )
        try:
            self.chosen, found = self.solve(used, limit, known, least)
        except NoPlanError:
            if not settled:
                raise
            self.chosen, found = self.solve(cost, limit, known, least)
        bound = min(found.lower_bound, optimistic.lower_bound)
        return replace(found, lower_bound=bound, optimal=found.optimal and bound >= found.cost * (1 - 1e-9))

    def pessimistic_costs(self, prices: Sequence[Priced]) -> list[float]:
        """Cost of each candidate in µs if nothing more is measured (`pessimistic_us`)."""
        return per_call(self.hypergraph, prices, pessimistic_us)


def is_predictable(candidate: Candidate) -> bool:
    """Whether a plan may rely on a candidate's predicted time: a view, a library kernel, or a product alone with packed
    weights on a CPU."""
    return candidate.is_view or candidate.template.space is None or candidate.template.is_packed_product


def pessimistic_us(candidate: Candidate, price: Priced) -> float:
    """Time in µs to be expected at worst of a candidate that is used unmeasured; of a measured one its measured
    time."""
    if price.source == "measured":
        return price.us
    if is_predictable(candidate):
        return min(price.high, LIBRARY_FACTOR * price.us)
    if candidate.template.family in SIMPLE_FAMILIES:
        return min(price.high, SIMPLE_FACTOR * price.us)
    return GENERATED_FACTOR * price.high


@gc_paused()
def _solve(
    hypergraph: Hypergraph, cost: Sequence[float], seconds: float, deterministic: bool, budgets: Sequence[Budget],
    known: Sequence[int], stop: Callable[[], bool] | None = None, *, nested: bool = True, beam_only: bool = False,
    structures: Structures | None = None,
) -> tuple[list[int], Extraction]:  # fmt: skip
    try:
        rows, found = warm_solve(
            lambda prices: EncodedHypergraph(hypergraph, prices, budgets), hypergraph, cost, partial(solve, stop=stop, structures=structures),
            seconds=seconds, deterministic=deterministic, known=known, nested=nested, beam_only=beam_only,
        )  # fmt: skip
    except ExtractionError as error:
        if budgets and not error.message.startswith("a root"):
            raise NoPlanError(f"no plan: {error.message}", where=error.where, hint=error.hint) from None
        raise NoPlanError(f"no kernels cover the outputs: {error.message}", hint="allow another backend") from None
    return rows.ordered(found), found


__all__ = [
    "CLOSING_S",
    "MIN_SOLVE_S",
    "QUICK_SOLVE_S",
    "SOLVE_OVERTIME",
    "PlanSolver",
    "is_predictable",
    "pessimistic_us",
    "quick_solve_seconds",
]
