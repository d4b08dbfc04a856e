"""The plans of a search: what is hoped for, what would be returned now, what needs no compiler; each within what is left of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..errors import ExtractionError, NoPlanError
from .budgets import Budget
from .candidates import Hypergraph
from .clock import Clock
from .collection import no_collection
from .kernel import Candidate, Priced
from .known import HOPE, LITTLE, MUCH, WORK, Known, Wanted, each
from .problem import Extraction
from .rows import Rows
from .solve import solve
from .warm import warm_solve

QUICK_S = 0.1  # seconds of a solve that more measuring follows: more rounds find more than longer solves (of the same seconds)
LAST_S = 0.25  # seconds that a solve has whatever else, or that says what would be returned: with less it would end with a greedy plan
BEYOND = 0.15  # share of the seconds for measuring that solves may take beyond them
BELIEVING = 0.1  # share of the time that may be spent on what would be returned now, beside what is hoped for
DEEPER = 0.6  # share of the time after which what would be returned is searched before all else, though there may be others to look at
LONG_S = 0.7  # seconds of solving and pricing from which on a round is filled with kernels that hardly matter
DEAREST = 4  # kernels that are so searched together
CLOSE_S = 1.5  # seconds, and at most as many as the whole search has, for measuring what the plan believes in the end
# Times what is expected that an unmeasured kernel may take: a library's, and a generated one of a family that is guessed well.
KNOWN, GUESSED = 4, 6
SURE, LATE_US = 1.3, 10.0  # a library's large product is near what the machine can do: so many times, and µs
SIMPLE = ("pointwise", "reduction")
UNTRIED = 4  # times the most it may take that a product with schedules counts that was never run: they were guessed, and may not even compile


@dataclass
class Plans:
    """The plans of one search: each is solved for from the one before, within what is left of the time."""

    hypergraph: Hypergraph
    budgets: Sequence[Budget]
    seconds: float  # of the whole search
    limits: Sequence[float]  # seconds of a solve: of the first try, and of the next
    deterministic: bool
    stop: Callable[[], bool]
    clock: Clock
    chosen: list[int] = field(default_factory=list)
    trusted: list[int] = field(default_factory=list)  # what would be returned now
    believing: float = 0.0  # seconds that it took to find that
    rounds: int = 0
    start: float = field(default_factory=time.monotonic)
    until: float = -math.inf

    def ended(self) -> bool:
        """Whether nothing more is to be measured but what is believed."""
        return self.stop() or time.monotonic() - self.start > self.seconds

    def close(self) -> None:
        """From now on only what is believed is to be measured, for a little longer."""
        self.until = time.monotonic() + min(CLOSE_S, self.seconds)

    def closed(self) -> bool:
        """Whether nothing at all is to be measured any more."""
        return self.stop() or time.monotonic() > self.until

    def solve(self, cost: Sequence[float], limit: float, known: Sequence[int]) -> tuple[list[int], Extraction]:
        """The cheapest plan at the given costs, from a known one. NoPlanError if there is none, or none was found in time."""
        pressed = self.stop()  # before: then this solve is what the best so far is made by
        if not self.deterministic:
            left = 0.0 if pressed else (1 + BEYOND) * self.seconds - (time.monotonic() - self.start)
            limit = max(min(LAST_S, limit), min(limit, left))
        halted = None if pressed else self.stop
        with self.clock.running("solve"):
            return _solve(self.hypergraph, cost, limit, self.deterministic, self.budgets, known, halted)

    def next(
        self, known: Known, prices: Sequence[Priced], hopes: Sequence[float]
    ) -> tuple[Extraction, Wanted]:  # fmt: skip
        """A plan at the costs that are hoped for, and what to measure for it: with more time only where the search would end, or where
        budgets are not kept within less."""
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
        """What was not measured of the cheapest plan of kernels that no compiler must be waited for, where others are to be measured
        as well: what is known of them soon is what all others are compared with, and all there is where the time is short."""
        waiting = each(self.hypergraph, prices, lambda c, p: c.template.space is not None and p.source != "measured")
        if not any(waiting):
            return []
        try:
            self.trusted, _ = self.solve([math.inf if wait else p.us for wait, p in zip(waiting, prices)], LAST_S, ())
        except NoPlanError:
            return []
        return known.unmeasured(self.trusted, prices)

    def believed(self, known: Known, prices: Sequence[Priced]) -> list[int]:
        """What has much at stake and was not measured of the plan that would be returned now, and what may take its place; nothing where
        asking has taken too much of the time."""
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
        """What was not measured of the plan that is the cheapest where kernels that are guessed well take what is expected, if they do:
        for the worst of them the plan that would be returned gives up a cheaper one, and what is hoped for has others."""
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
        """What the plan that would be returned hangs on and was only looked at, the few dearest, then what may take their place: while
        others are looked at, where searching them leaves searches no more than their share, or most of the time has gone. (What is
        hoped for may have kernels to be looked at for ever. The shares are as what searching may bring to what looking may.)"""
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
        """What the plan that would be returned takes, in µs."""
        return sum(prices[i].us for i in self.trusted)

    def _hoped(self, prices: Sequence[Priced]) -> float:
        """How much faster than that the plan that is hoped for may be by kernels that were never run."""
        hoped = (p.us if p.source == "measured" else p.low for p in (prices[i] for i in self.chosen))
        return max(0.0, self._whole(prices) - sum(hoped))

    def surest(self, known: Known, prices: Sequence[Priced], wanted: Wanted, first: bool) -> Wanted:
        """What is wanted, after what is believed: of the plan that would be returned now, or, at first, of the one without compilers."""
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
        """What each candidate may take where nothing more is measured."""
        return each(self.hypergraph, prices, doubted)

    def without_hope(
        self, prices: Sequence[Priced], hoped: Extraction, limit: float, *, settled: bool = False
    ) -> Extraction:  # fmt: skip
        """The plan where the time is up: what was not measured counts as much as it may take; where things are `settled`, no more of it
        is taken than the last plan has, if there is such a plan. The bound is that of the prices that were hoped for."""
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
    """What a candidate most likely takes where that is guessed well, else what it may take."""
    well = candidate.template.space is None or candidate.template.family in SIMPLE
    return min(doubted(candidate, price), SURE * price.us) if well else doubted(candidate, price)


def doubted(candidate: Candidate, price: Priced) -> float:
    """What a candidate may take if it is not measured before it is used: a library's little more than is expected, what was generated
    without a product some more, and with one far more."""
    if price.source == "measured":
        return price.us
    if candidate.is_view or candidate.template.space is None:
        return min(price.high, SURE * price.us + min((KNOWN - SURE) * price.us, LATE_US))
    return min(price.high, GUESSED * price.us) if candidate.template.family in SIMPLE else price.high * UNTRIED


@no_collection()
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
