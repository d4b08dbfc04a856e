"""Plans of a search (optimistic, pessimistic, compiler-free), each solved within the remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...errors import ExtractionError, NoPlanError
from ..candidates.candidates import Hypergraph
from ..model.clock import Clock
from ..model.gc_pause import gc_paused
from ..model.kernel import Candidate, Priced
from ..solve.budgets import Budget
from ..solve.problem import Extraction
from ..solve.solve import solve
from .encoding import Rows
from .state import HOPE, LITTLE, MUCH, WORK, Known, Wanted, each
from .warm_start import warm_solve

# seconds of a solve that is followed by measuring: more rounds find more than longer solves, at equal total time
QUICK_S = 0.1
# least seconds of a solve, and seconds of a pessimistic solve: with less, a solve ends with a greedy plan
LAST_S = 0.25
BEYOND = 0.15  # share of the search's seconds by which solves may exceed them
BELIEVING = 0.1  # share of the time that pessimistic solves may take
DEEPER = 0.6  # share of the time after which tuning of the pessimistic plan comes before first looks
LONG_S = 0.7  # seconds of solving and pricing per round above which rounds are filled with negligible kernels
DEAREST = 4  # largest number of kernels tuned together for the pessimistic plan
CLOSE_S = 1.5  # seconds, at most those of the search, for measuring the final plan's unmeasured kernels
# Upper estimates of unmeasured kernels, as multiples of the prediction: library kernels, and generated kernels of
# families predicted well.
KNOWN, GUESSED = 4, 6
SURE, LATE_US = 1.3, 10.0  # a library's large GEMM runs near the machine's peak: factor, and absolute excess in µs
SIMPLE = ("pointwise", "reduction")
# factor on the upper estimate of a generated GEMM that was never run: its schedules are guesses, and may not compile
UNTRIED = 4


@dataclass
class Plans:
    """The plans of one search: each solve starts from the previous plan and is limited by the remaining time."""

    hypergraph: Hypergraph
    budgets: Sequence[Budget]
    seconds: float  # time limit of the whole search
    limits: Sequence[float]  # time limits of a solve: of the first attempt, and of the next
    deterministic: bool
    stop: Callable[[], bool]
    clock: Clock
    chosen: list[int] = field(default_factory=list)
    trusted: list[int] = field(default_factory=list)  # the pessimistic plan
    believing: float = 0.0  # seconds spent on pessimistic solves
    rounds: int = 0
    start: float = field(default_factory=lambda: time.monotonic())
    until: float = -math.inf

    def ended(self) -> bool:
        """Whether regular measuring is over."""
        return self.stop() or time.monotonic() - self.start > self.seconds

    def close(self) -> None:
        """Start the closing phase: only unmeasured kernels of the final plan are measured, for at most CLOSE_S more."""
        self.until = time.monotonic() + min(CLOSE_S, self.seconds)

    def closed(self) -> bool:
        """Whether the closing phase is over too."""
        return self.stop() or time.monotonic() > self.until

    def solve(self, cost: Sequence[float], limit: float, known: Sequence[int]) -> tuple[list[int], Extraction]:
        """The cheapest plan at the given costs, warm-started from a known one: (candidates in execution order,
        extraction). NoPlanError if none exists or none was found in time."""
        pressed = self.stop()  # if already stopped, this solve must still produce a plan
        if not self.deterministic:
            left = 0.0 if pressed else (1 + BEYOND) * self.seconds - (time.monotonic() - self.start)
            limit = max(min(LAST_S, limit), min(limit, left))
        halted = None if pressed else self.stop
        with self.clock.running("solve"):
            return _solve(self.hypergraph, cost, limit, self.deterministic, self.budgets, known, halted)

    def next(
        self, known: Known, prices: Sequence[Priced], hopes: Sequence[float]
    ) -> tuple[Extraction, Wanted]:  # fmt: skip
        """(optimistic plan, measurement request for it). A longer solve is used only if the search would end otherwise,
        or if the shorter one finds no plan within the budgets."""
        self.rounds += 1
        spent: Callable[[str], float] = lambda name: self.clock.seconds.get(name, 0.0)
        for limit in self.limits:
            try:
                self.chosen, found = self.solve(hopes, limit, self.chosen)
            except NoPlanError:
                if not self.budgets or limit == self.limits[-1]:
                    raise
                continue
            wanted = known.lacking(self.chosen, prices, sum(map(spent, ("price", "solve"))) > LONG_S * self.rounds)
            if wanted.now or known.under_way or found.optimal:
                break
        return found, wanted

    def uncompiled(self, known: Known, prices: Sequence[Priced]) -> list[int]:
        """Unmeasured kernels of the cheapest plan without compiled kernels, if compiled ones are to be measured as
        well: its times are soon known, everything else is compared with it, and it is the fallback if the time is
        short."""
        waiting = each(self.hypergraph, prices, lambda c, p: c.template.space is not None and p.source != "measured")
        if not any(waiting):
            return []
        try:
            self.trusted, _ = self.solve([math.inf if wait else p.us for wait, p in zip(waiting, prices)], LAST_S, ())
        except NoPlanError:
            return []
        return known.unmeasured(self.trusted, prices)

    def believed(self, known: Known, prices: Sequence[Priced]) -> list[int]:
        """Unmeasured kernels with large stakes of the pessimistic plan, and their alternatives; empty if pessimistic
        solves have taken more than their share of the time."""
        began = time.monotonic()
        if self.believing > BELIEVING * (began - self.start):
            return []
        try:
            self.trusted, _ = self.solve(self.doubted(prices), LAST_S, self.trusted)
        except NoPlanError:
            return []
        finally:
            self.believing += time.monotonic() - began
        much = known.unmeasured(self.trusted, prices, MUCH)
        return list(dict.fromkeys([*much, *known.beside(much, prices)]))

    def likely(self, known: Known, prices: Sequence[Priced]) -> list[int]:
        """Unmeasured kernels of the plan that is cheapest if well-predicted kernels take their expected time, if it is
        cheaper than the pessimistic plan: pessimism rejects such a plan, and optimism prefers others."""
        began = time.monotonic()
        if self.believing > BELIEVING * (began - self.start):
            return []
        try:
            plan, found = self.solve(each(self.hypergraph, prices, expected), self.limits[0], self.trusted)
        except NoPlanError:
            return []
        finally:
            self.believing += time.monotonic() - began
        return known.unmeasured(plan, prices, LITTLE) if found.cost < (1 - LITTLE) * self._whole(prices) else []

    def deeper(self, known: Known, prices: Sequence[Priced], looking: bool) -> list[int]:
        """Kernels of the pessimistic plan with large stakes that had only a first look, the most expensive few, then
        their alternatives. They are tuned before further first looks if tuning has had less than its share, or most of
        the time has passed. (The optimistic plan may require first looks forever. The shares are proportional to the
        possible gains of tuning and of first looks.)"""
        whole, late = self._whole(prices), time.monotonic() - self.start >= DEEPER * self.seconds
        hoped = 0.0 if late else self._hoped(prices)
        due: Callable[[int, float], bool] = lambda kernels, gain: (
            (known.asked[False] + WORK[False] * kernels) * hoped <= known.asked[True] * gain
        )
        if not (late or looking) or not due(1, (1 - HOPE) * whole):  # asking more takes longer
            return []
        stakes, own = known.unfinished(self.trusted, prices), set(self.trusted)
        found = sorted((i for i in stakes if stakes[i] >= LITTLE * whole), key=lambda i: i not in own)[:DEAREST]
        gain = sum(stakes[i] for i in found if i in own) or max((stakes[i] for i in found), default=0.0)
        return found if gain >= MUCH * whole and due(len(found), gain) else []

    def _whole(self, prices: Sequence[Priced]) -> float:
        """Cost of the pessimistic plan in µs."""
        return sum(prices[i].us for i in self.trusted)

    def _hoped(self, prices: Sequence[Priced]) -> float:
        """By how many µs kernels never run may make the optimistic plan faster than the pessimistic one."""
        hoped = (p.us if p.source == "measured" else p.low for p in (prices[i] for i in self.chosen))
        return max(0.0, self._whole(prices) - sum(hoped))

    def surest(self, known: Known, prices: Sequence[Priced], wanted: Wanted, first: bool) -> Wanted:
        """The request preceded by unmeasured kernels of the pessimistic plan or, in the first round, of the
        compiler-free plan."""
        if not first:
            sure = self.believed(known, prices)
        elif not (wanted.look and (sure := self.uncompiled(known, prices))):
            return wanted
        if not sure:
            if first or not (now := self.deeper(known, prices, wanted.look)):
                return wanted if first or not wanted.look else wanted.after(self.likely(known, prices))
            return Wanted(
                now, False, [*((self.hypergraph.candidates[i], wanted.look) for i in wanted.now), *wanted.later]
            )
        candidates = self.hypergraph.candidates
        waiting = [i for i in wanted.now if not wanted.look or (first and candidates[i].template.space is not None)]
        later = [*((candidates[i], wanted.look) for i in waiting), *wanted.later]
        return Wanted([i for i in wanted.now if i not in set(waiting)], later=later).after(sure)

    def doubted(self, prices: Sequence[Priced]) -> list[float]:
        """Pessimistic cost of each candidate, if nothing more is measured."""
        return each(self.hypergraph, prices, doubted)

    def without_hope(
        self, prices: Sequence[Priced], hoped: Extraction, limit: float, *, settled: bool = False
    ) -> Extraction:  # fmt: skip
        """The final plan, at pessimistic costs. With `settled`, unmeasured kernels outside the last plan are excluded,
        if that leaves a plan. The lower bound is the minimum with that of the optimistic prices."""
        cost, own = self.doubted(prices), set(self.chosen)
        sure = [c if p.source == "measured" or i in own else math.inf for i, (c, p) in enumerate(zip(cost, prices))]
        try:
            self.chosen, found = self.solve(sure if settled else cost, limit, self.chosen)
        except NoPlanError:
            if not settled:
                raise
            self.chosen, found = self.solve(cost, limit, self.chosen)
        bound = min(found.lower_bound, hoped.lower_bound)
        return replace(found, lower_bound=bound, optimal=found.optimal and bound >= found.cost * (1 - 1e-9))


def expected(candidate: Candidate, price: Priced) -> float:
    """Expected time in µs of a candidate predicted well, otherwise its pessimistic time."""
    well = candidate.template.space is None or candidate.template.family in SIMPLE
    return min(doubted(candidate, price), SURE * price.us) if well else doubted(candidate, price)


def doubted(candidate: Candidate, price: Priced) -> float:
    """Pessimistic time in µs of a candidate used unmeasured: slightly above the prediction for a library kernel, more
    for a generated kernel without a GEMM, much more for one with a GEMM."""
    if price.source == "measured":
        return price.us
    if candidate.is_view or candidate.template.space is None:
        return min(price.high, SURE * price.us + min((KNOWN - SURE) * price.us, LATE_US))
    return min(price.high, GUESSED * price.us) if candidate.template.family in SIMPLE else price.high * UNTRIED


@gc_paused()
def _solve(
    hypergraph: Hypergraph, cost: Sequence[float], seconds: float, deterministic: bool, budgets: Sequence[Budget],
    known: Sequence[int], stop: Callable[[], bool] | None = None,
) -> tuple[list[int], Extraction]:  # fmt: skip
    try:
        rows, found = warm_solve(
            lambda prices: Rows(hypergraph, prices, budgets), hypergraph, cost, partial(solve, stop=stop), seconds=seconds,
            deterministic=deterministic, known=known,
        )  # fmt: skip
    except ExtractionError as error:
        if budgets and not error.message.startswith("a root"):
            raise NoPlanError(f"no plan: {error.message}", where=error.where, hint=error.hint) from None
        raise NoPlanError(f"no kernels cover the outputs: {error.message}", hint="allow another backend") from None
    return rows.ordered(found), found


__all__ = ["LAST_S", "QUICK_S", "Plans", "doubted"]
