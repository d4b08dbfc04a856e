"""Searches with lazy measurement: solves at optimistic prices, measures the best plan's kernels, solves again.

An unmeasured kernel is priced at the low end of its prediction interval, so it is measured before a plan relies on it.
The first measurement is a first look: a kernel with several schedules (tuning parameters) runs in a few of them, and is
priced below its time by the expected gain of tuning. The acquisition policy (policy.py) chooses what to measure next.
The search ends when the kernels of the best plan are tuned, or at the deadline. The plan returned is the cheapest one
with unmeasured kernels at pessimistic times; after the deadline, kernels of that plan that are still unmeasured are
measured for a short time. On a CPU, what that leaves of this time is for kernels that may make the plan faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ...errors import NoPlanError, Unpicklable
from ...wording import counted
from ..candidates.hypergraph import Hypergraph
from ..model.clock import Clock
from ..model.gc_pause import gc_paused
from ..model.pricing import Measurer, Priced, Pricer
from ..solve.budgets import Budget
from ..solve.extraction import Extraction
from .cutoff import CostCutoff, call_token
from .lazy_pricing import LazyPrices
from .measurement_state import MeasurementRequest, MeasurementState
from .plan_solver import CLOSING_S, MIN_SOLVE_S, PlanSolver, pessimistic_us, quick_solve_seconds
from .policy import AcquisitionPolicy

MAX_AHEAD_SOLVE_S = 2.5  # longest solve of `measure_ahead`


@dataclass
class Choice(Unpicklable):
    """A solved hypergraph: the chosen candidates in execution order, the prices of all candidates, and the solver's
    result.

    `rounds`: number of rounds of solving and measuring. `seconds`: time of the search by activity. `budgets`: limits
    that the plan satisfies.
    """

    hypergraph: Hypergraph
    chosen: list[int]  # indices into hypergraph.candidates
    prices: list[Priced]
    extraction: Extraction
    rounds: int = 1
    measured: int = 0  # number of calls measured by this search
    optimism_us: float = 0.0  # µs by which the unmeasured chosen kernels' optimistic prices are below their predictions
    stopped: str = "measured"  # measured | budget | beaten | prices only
    seconds: dict[str, float] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    # the best plan over time: (monotonic seconds, µs at optimistic prices, µs at current prices) after each solve
    curve: tuple[tuple[float, float, float], ...] = ()
    launching: str = ""  # how the kernels of its program follow each other: `Plan.launching`
    # if kernels were chosen by the time of the whole program: the choice before, whose kernels were the fastest alone
    alone: Choice | None = None

    @property
    def cost(self) -> float:
        """Sum of the chosen candidates' prices in µs."""
        return float(sum(self.prices[i].us for i in self.chosen))

    @property
    def pessimistic_cost(self) -> float:
        """The cost in µs with unmeasured kernels at their pessimistic times."""
        return float(sum(pessimistic_us(self.hypergraph.candidates[i], self.prices[i]) for i in self.chosen))

    @property
    def sources(self) -> dict[str, int]:
        """Number of chosen kernels by origin of their price (measured, shipped, predicted, bound)."""
        found: dict[str, int] = {}
        for i in self.chosen:
            if not self.hypergraph.candidates[i].is_view:
                found[self.prices[i].origin] = found.get(self.prices[i].origin, 0) + 1
        return found


@gc_paused()  # rounds allocate many objects, and collections over a large model's candidates take seconds
def search(
    hypergraph: Hypergraph,
    pricer: Pricer,
    measurer: Measurer | None = None,
    *,
    seconds: float = 60.0,
    least: float = 0.0,
    solve_seconds: float = 2.5,
    deterministic: bool = False,
    doubt: bool = False,
    budgets: Sequence[Budget] = (),
    progress: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    carried: Collection[int] = (),
    beaten: float = math.inf,
    closing: float | None = None,
    last_solve: float = MIN_SOLVE_S,
) -> Choice:
    """The cheapest known set of kernels within the budgets, measured as far as time allows.

    Measures through `measurer` (None: prices only) for at most `seconds`, but for `least` seconds after the measuring
    processes have started (they may be starting when the search begins); the final plan's unmeasured kernels get at
    most `closing` more (default: as many, at most `CLOSING_S`), and solving may take a little longer
    (`SOLVE_OVERTIME`, `MIN_SOLVE_S`; with `deterministic`, as long as it needs). `solve_seconds`: time limit of one
    solve. `progress`: called with a message as each round begins to measure. `stop` is polled: when it returns True,
    measuring ends, and a running solve ends with its incumbent. `doubt`: without a measurer too, unmeasured kernels
    count at the upper ends of their prediction intervals. `clock`: records the seconds per phase. `carried`: candidates
    of a good plan, from which the first solves start. `beaten`: the search ends once its plan costs more than these µs
    at optimistic times. `last_solve`: seconds of the solve for the plan to return, even if the time is up.

    Raises NoPlanError if the backends' kernels cannot produce some output, or not within the budgets.
    """
    clock = clock or Clock()
    for name in ("price", "solve", "measure"):
        clock.add(name, 0.0)
    quick = quick_solve_seconds(hypergraph, solve_seconds)
    limits = (solve_seconds,) if measurer is None or deterministic else (quick, solve_seconds)
    plans = PlanSolver(hypergraph, budgets, seconds, limits, deterministic, stop, clock)
    plans.closing = min(CLOSING_S, seconds) if closing is None else closing
    plans.last_s = max(MIN_SOLVE_S, last_solve)
    if measurer is not None and least:
        plans.least, plans.starting = least, lambda: not measurer.ready
    run = _SearchRun(
        hypergraph, pricer, MeasurementState(hypergraph, measurer), plans, clock, progress, carried, beaten
    )
    while run.round():
        pass
    if run.is_beaten:
        run.pricing.end()
    elif measurer is not None or doubt:
        run.close(limits[-1])
    return run.choice()


@gc_paused()
def measure_ahead(
    hypergraph: Hypergraph, pricer: Pricer, measurer: Measurer, *, seconds: float, stop: Callable[[], bool], clock: Clock,
    progress: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Measure the kernels that a search would, so that a later search finds the results.

    Returns the number of calls measured.

    Ends after `seconds` or when `stop` returns True. `progress` is called at the start of each round's measuring.
    Raises NoPlanError as `search` does.
    """
    quick = quick_solve_seconds(hypergraph, MAX_AHEAD_SOLVE_S)
    plans = PlanSolver(hypergraph, (), seconds, (quick, quick), False, stop, clock, nested=False)
    run = _SearchRun(hypergraph, pricer, MeasurementState(hypergraph, measurer), plans, clock, progress)
    while run.round():
        pass
    run.pricing.end()
    run.collect_in_flight()
    return len(run.state.requested)


@dataclass
class _SearchRun:
    """One search: its measurement state, plans and policy."""

    hypergraph: Hypergraph
    pricer: Pricer
    state: MeasurementState
    plans: PlanSolver
    clock: Clock
    progress: Callable[[str], None] | None
    carried: Collection[int] = ()  # see `search`
    beaten: float = math.inf  # see `search`
    rounds: int = 0
    over: bool = False  # whether the deadline ended the search
    overtime: float = 0.0  # seconds after the deadline when the last kernel measured before it ended
    is_beaten: bool = False  # whether `beaten` ended the search
    solve_s: float = 0.0  # seconds of the last round's optimistic solve
    kernel_s: float = 0.0  # seconds that a kernel of the last measuring took on average
    curve: list[tuple[float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = AcquisitionPolicy(self.state, self.plans)
        with self.clock.running("price"):
            self.pricing = LazyPrices(self.hypergraph, self.pricer, later=self.state.measurer is not None)

    @property
    def one_by_one(self) -> bool:
        """Whether kernels are measured one after another while nothing else happens, as on a CPU."""
        return self.state.measurer is not None and not self.state.measurer.ahead

    def update_prices(self) -> list[Priced]:
        """Update and return the prices of all candidates."""
        with self.clock.running("price"):
            self.prices = self.pricing()
        return self.prices

    def round(self) -> bool:
        """Solve, and measure the best plan's kernels; returns whether another round is needed."""
        state, plans = self.state, self.plans
        if self.rounds and state.measurer is not None and plans.leaves_no_round(self.solve_s):
            self.collect_in_flight()
            self.update_prices()
            self.over = True
            return False
        self.rounds += 1
        started = time.monotonic()
        prices = self.update_prices()
        optimistic_us, began = state.optimistic_us(prices), time.monotonic()
        if self.rounds == 1 and self.carried:
            plans.start_from(self.carried, optimistic_us)
        try:
            self.found, request = self.policy.optimistic_round(prices, optimistic_us)
        except NoPlanError:
            if self.pricing.wait():
                return True
            raise
        self.solve_s = time.monotonic() - began
        self.note_cost(optimistic_us)
        if state.measurer is not None and sum(optimistic_us[i] for i in plans.chosen) > self.beaten:
            self.is_beaten = True
            return False
        if state.measurer is None or not (request.now or state.in_flight):
            more = self.pricing.wait(plans.ended)
            self.over = self.pricing.incomplete
            return more
        if not plans.ended():
            if self.pricing.incomplete:
                request = request.preceded_by(self.policy.unmeasured(plans.chosen, prices))
            else:
                request = self.policy.request(prices, request, first=self.rounds == 1)
            self.pricing.start_background()
            solved = time.monotonic()
            self.measure(f"round {self.rounds}", request, optimistic_us)
            if self.rounds > 1 and not plans.deterministic:
                self.policy.fit_round(solved - started, time.monotonic() - solved)
            if not plans.ended():
                return True
            self.collect_in_flight()
            self.update_prices()
        self.over = True
        return False

    def note_cost(self, optimistic_us: Sequence[float]) -> None:
        """Record the cost of the plan of the last solve."""
        chosen = self.plans.chosen
        costs = sum(optimistic_us[i] for i in chosen), sum(self.prices[i].us for i in chosen)
        self.curve.append((time.monotonic(), *costs))

    def collect_in_flight(self) -> None:
        """Collect the measurements in flight after the deadline."""
        if self.state.in_flight:
            self.measure("", MeasurementRequest(first_look=False), self.state.optimistic_us(self.prices))

    def measure(
        self, when: str, request: MeasurementRequest, optimistic_us: Sequence[float], *, last: bool = False
    ) -> None:  # fmt: skip
        """Measure candidates below their cost cutoff, or all if none is. With `last`, nothing stays in flight."""
        candidates, ended = self.hypergraph.candidates, self.plans.closing_ended if last else self.plans.ended
        if self.progress and request.now:
            what = f"{'measuring' if request.first_look else 'searching'} {counted(len(request.now), 'kernel')}"
            self.progress(f"{when}: {sum(optimistic_us[i] for i in self.plans.chosen):.1f} µs, {what}")
        with self.clock.running("measure"):
            limited = bool(self.plans.budgets)
            cutoff = CostCutoff(self.hypergraph, self.pricer, self.prices, ended, limited, self.state.index)
            useful = [i for i in request.now if optimistic_us[i] <= cutoff(candidates[i])]
            now = [candidates[i] for i in useful or request.now]
            known, began = len(self.state.requested), time.monotonic()
            hoped = {call_token(candidates[i]): optimistic_us[i] for i in useful if self.one_by_one}
            self.state.measure(now, cutoff, request.first_look, request.later, leave=not last, hoped=hoped)
            if count := len(self.state.requested) - known:
                self.kernel_s = (time.monotonic() - began) / count
        self.overtime = self.overtime if last else self.plans.overtime

    def close(self, seconds: float) -> None:
        """Final phase: choose the pessimistic plan and, in its own time, measure its unmeasured kernels.

        `seconds` limits the last solve.
        """
        state, plans = self.state, self.plans
        self.pricing.end()
        if not self.over and all(state.is_final(i, self.prices[i]) for i in plans.chosen):
            return
        answered = not (self.over and state.forget_unanswered(self.prices))
        if answered:
            plans.start_closing(self.overtime)
        for n, limit in enumerate((MIN_SOLVE_S, seconds)[not self.over :]):
            settled = answered and n > 0 and plans.closing_ended()
            least = plans.last_s if n else MIN_SOLVE_S
            self.found = plans.solve_final(self.prices, self.found, limit, settled=settled, least=least)
            self.measure_last()
            if self.over and n == 0 and self.one_by_one:
                self.measure_rest()

    def measure_last(self) -> None:
        """In the closing phase: measure unmeasured kernels of the plan to return, and choose again."""
        plans = self.plans
        while not plans.closing_ended() and (wanted := self.policy.unmeasured(plans.chosen, self.prices)):
            self.measure("at last", MeasurementRequest(wanted), self.state.optimistic_us(self.prices), last=True)
            prices = self.update_prices()
            self.found = plans.solve_final(prices, self.found, MIN_SOLVE_S, settled=plans.closing_ended())

    def measure_rest(self) -> None:
        """For the rest of the closing phase, when the plan to return is measured: measure what may make it faster, as
        before the deadline, unless it would end later. (On a GPU, timing of the finalists and of launch overlaps has
        that time.)"""
        plans, more = self.plans, True
        plans.ahead_s = self.kernel_s
        while more and not plans.closing_ended():
            final, optimistic_us = plans.chosen, self.state.optimistic_us(self.prices)
            found, request = self.policy.optimistic_round(self.prices, optimistic_us)
            if more := bool(request.now):
                self.measure("at last", replace(request, later=()), optimistic_us, last=True)
            plans.chosen, plans.ahead_s = final, self.kernel_s
            self.found = plans.solve_final(self.update_prices(), found, MIN_SOLVE_S, settled=plans.closing_ended())
            self.measure_last()

    def choice(self) -> Choice:
        """The result of the search."""
        prices, chosen, measurer = self.prices, self.plans.chosen, self.state.measurer
        stopped = "beaten" if self.is_beaten else "budget" if self.over else "measured" if measurer else "prices only"
        optimism = sum(prices[i].us - prices[i].low for i in chosen if prices[i].source != "measured")
        self.note_cost([p.us for p in prices])
        return Choice(
            self.hypergraph, chosen, prices, self.found, self.rounds, len(self.state.requested), optimism, stopped,
            self.clock.seconds, tuple(self.plans.budgets), tuple(self.curve),
        )  # fmt: skip
