"""Decides which kernels a search measures next (acquisition policy).

Each round has two plans. The *optimistic* plan is the cheapest with unmeasured kernels at the lower ends of their price
intervals, the plan that could turn out to be the best. The *pessimistic* plan is the cheapest with them at the upper
ends; it would be returned if the search ended now.

A kernel's *stake* is the number of µs of a plan's time that its next measurement may save. For an unmeasured kernel of
the plan it is the time of the cheapest measured way to its results, less the lower end of its price interval; without
such a way it is the predicted time. For an alternative, and for more tuning, it is the largest possible gain. In the
short form of a deep model (a smaller graph with fewer instances of each layer) a stake counts as often as the model has
the layer (`Hypergraph.repeats`).

A *first look* is the first measurement of a kernel, in a few schedules (tuning parameters) only. The next request, in
this order:

1. In the first round: unmeasured kernels of the cheapest plan without compiled kernels, if there are any, and library
   kernels that replace several of them; then kernels of the plan that is cheapest at predicted prices. The latter come
   first on a CPU, where no compiler works ahead of the measurements, and where that plan is predicted to be far
   cheaper: all its kernels then, since a plan with a few of them unmeasured is not chosen.
2. Unmeasured kernels of the pessimistic plan with large stakes. (A kernel whose predicted time is far too low may be in
   this plan and in no optimistic plan.)
3. Tuning of the pessimistic plan's kernels, if fewer schedules were measured for tuning than its share; the shares of
   tuning and of first looks are proportional to their possible gains. (Otherwise first looks of ever new optimistic
   plans could leave no time for tuning.)
4. The optimistic plan: first looks at its unmeasured kernels and at alternatives that may be faster; tuning, once no
   first look has a large stake; then first looks and tuning with small stakes.

The thresholds below were compared on simulated searches (`python -m benchmarks.search.replay`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice

from ...errors import NoPlanError
from ..candidates.hypergraph import Hypergraph
from ..model.kernel import Candidate
from ..model.pricing import Priced
from ..solve.extraction import Extraction
from .cutoff import CallToken, call_token, measured_costs, tree_costs
from .measurement_state import (
    SCHEDULES,
    SHARE_AFTER_MORE_TUNING,
    SHARE_AFTER_TUNING,
    MeasurementRequest,
    MeasurementState,
    per_call,
)  # fmt: skip
from .plan_solver import PlanSolver

MOST_GROWTH = 4  # multiple of ROUND_KERNELS up to which a round grows if measuring it takes less than solving
SHORT_SOLVE_S = 0.2  # a solve so short needs no larger rounds
LARGE_STAKE = 0.03  # share of the plan's cost; smaller stakes wait
# kernels looked at per round, if there are as many: a round costs a solve, and at its end compilers idle
ROUND_KERNELS = 16
TUNED = 8  # kernels tuned per round: each takes as long as five first looks, and the plan may change meanwhile
NARROW = 4.0  # ratio of the ends of a prediction interval, up to which the first round relies on the prediction
# If the plan that is cheapest at predicted prices costs at most this share of the plan without compiled kernels, its
# kernels are measured first; number of kernels of the other plan that are measured before, while compilers start.
FAR_CHEAPER, MEANWHILE = 0.75, 4
# of `library_rivals`: how many are added; largest ratio of a kernel's lower bound of time to the predicted time of the
# kernels that it replaces (library kernels take 1.1 to 2.5 times that bound)
MAX_RIVALS, RIVAL = 2, 1.25
MAX_ALTERNATIVES = 8  # alternatives measured, or tuned, with each kernel of a plan, if they may become faster

Stakes = dict[int, float]  # candidate -> stake in µs, largest first


@dataclass
class AcquisitionPolicy:
    """Chooses measurement requests from the state of a search and its plans.

    `growth`: size of a request for first looks as a multiple of ROUND_KERNELS.
    """

    state: MeasurementState
    plans: PlanSolver
    growth: int = 1

    def fit_round(self, solving_s: float, measuring_s: float) -> None:
        """Set the size of the next requests by the seconds of the last round: double if measuring took less time than
        solving, during which processes finish half of what they have begun, and then wait; half if it took far more."""
        if solving_s > SHORT_SOLVE_S and measuring_s < solving_s / 2:
            self.growth = min(2 * self.growth, MOST_GROWTH)
        elif measuring_s > 3 * solving_s:
            self.growth = max(1, self.growth // 2)

    @property
    def hypergraph(self) -> Hypergraph:
        """The candidate kernels of the search."""
        return self.state.hypergraph

    def optimistic_round(
        self, prices: Sequence[Priced], costs: Sequence[float]
    ) -> tuple[Extraction, MeasurementRequest]:  # fmt: skip
        """Solve for the optimistic plan at `costs`; returns (its extraction, the request for it).

        A longer solve is used only if the search would end otherwise, or if the shorter one finds no plan within the
        budgets.
        """
        for limit in self.plans.limits:
            try:
                found = self.plans.solve_optimistic(costs, limit)
            except NoPlanError:
                if not self.plans.budgets or limit == self.plans.limits[-1]:
                    raise
                continue
            request = self.optimistic_request(self.plans.chosen, prices)
            if request.now or self.state.in_flight or found.optimal:
                break
        return found, request

    def request(self, prices: Sequence[Priced], optimistic: MeasurementRequest, *, first: bool) -> MeasurementRequest:
        """The next candidates to measure, given the request of the optimistic plan.

        `first`: whether this is the first round.
        """
        if first:
            sure = self.first_kernels(prices) if optimistic.first_look else []
        elif self.plans.solve_pessimistic(prices):
            sure = self.unmeasured(self.plans.pessimistic, prices, LARGE_STAKE)
        else:
            sure = []
        candidates = self.hypergraph.candidates
        if sure:
            waiting = [
                i for i in optimistic.now
                if not optimistic.first_look or (first and candidates[i].template.space is not None)
            ]  # fmt: skip
            later = [*((candidates[i], optimistic.first_look) for i in waiting), *optimistic.later]
            rest = [i for i in optimistic.now if i not in set(waiting)]
            return MeasurementRequest(rest, later=later).preceded_by(sure)
        if not first and optimistic.first_look and (tuned := self.tuned_before_looks(prices)):
            later = [*((candidates[i], True) for i in optimistic.now), *optimistic.later]
            return MeasurementRequest(tuned, first_look=False, later=later)
        return optimistic

    def first_kernels(self, prices: Sequence[Priced]) -> list[int]:
        """Candidates of the first round: the cheapest plan without compiled kernels, while compilers start, and the one
        that is likely the cheapest. Without compilers that work ahead the latter is first; so it is where it is far
        cheaper (FAR_CHEAPER), as of a model of which most kernels compute several ops: measuring each op's library
        kernel would take a small budget, for a plan that is not returned."""
        sure = self.without_compiler(prices)
        plan, known = self.likely_plan(prices)
        likely = [i for i in self.unmeasured(plan, prices, LARGE_STAKE) if i in known]
        assert self.state.measurer is not None
        if not self.state.measurer.ahead:
            return list(dict.fromkeys([*likely, *sure]))
        if not self.is_far_cheaper(plan, known, prices):
            return [*sure, *likely]
        return list(dict.fromkeys([*sure[:MEANWHILE], *self.unmeasured(plan, prices), *sure]))

    def is_far_cheaper(self, plan: Sequence[int], known: Set[int], prices: Sequence[Priced]) -> bool:
        """Whether a plan, with kernels outside of `known` at the upper ends of their intervals, is far cheaper than the
        plan without compiled kernels (`PlanSolver.pessimistic`) at expected times."""
        times, sure = self.hypergraph.weights, self.plans.pessimistic
        cost = sum(times[i] * (prices[i].us if i in known else prices[i].high) for i in plan)
        return bool(plan) and cost <= FAR_CHEAPER * sum(times[i] * prices[i].us for i in sure)

    def without_compiler(self, prices: Sequence[Priced]) -> list[int]:
        """Unmeasured candidates of the cheapest plan without compiled kernels, then library kernels that replace
        several kernels of that plan.

        The latter are included because unmeasured kernels are priced at lower bounds, at which two kernels may seem
        cheaper than the one that replaces them.
        """
        plan = self.plans.solve_without_compiler(prices)
        sure = self.unmeasured(plan, prices)
        return [*sure, *islice(self.library_rivals(plan, prices), MAX_RIVALS)] if sure else []

    def library_rivals(self, plan: Sequence[int], prices: Sequence[Priced]) -> list[int]:
        """Unmeasured library kernels that replace several kernels of a plan, the largest savings first.

        Only those whose optimistic time is at most RIVAL times the predicted time of the replaced kernels; equal calls
        once.
        """
        candidates, numbered, own = self.hypergraph.candidates, self.hypergraph.numbered, set(plan)
        costs = [p.us if c.is_view or i in own else math.inf for i, (c, p) in enumerate(zip(candidates, prices))]
        tree, last = tree_costs(self.hypergraph, costs), {numbered.made[i]: prices[i].us for i in plan}
        found: dict[CallToken, tuple[float, int]] = {}
        for i, c in enumerate(candidates):
            if c.template.space is not None or not self.state.is_open(c, prices[i]):
                continue
            replaced = tree[numbered.made[i]] - sum(tree[v] for v in numbered.needs[i])
            several = last.get(numbered.made[i], math.inf) < replaced < math.inf
            if several and prices[i].low <= RIVAL * replaced:
                found.setdefault(call_token(c), (prices[i].low - replaced, i))
        return [i for _, i in sorted(found.values())]

    def likely_plan(self, prices: Sequence[Priced]) -> tuple[list[int], set[int]]:
        """(the plan that is cheapest at predicted prices, candidates whose predictions are relied on): those that rest
        on measurements of the same kernel elsewhere or of related kernels, with a narrow interval. The plan is empty if
        there are none. Unlike the optimistic plan, this one changes little from round to round."""
        known = {i for i, p in enumerate(prices) if p.origin in ("shipped", "predicted") and p.high <= NARROW * p.low}
        if not known:
            return [], known
        return self.plans.solve_likely(prices), known

    def unmeasured(self, plan: Iterable[int], prices: Sequence[Priced], min_share: float = 0.0) -> list[int]:
        """Unmeasured candidates of a plan, most expensive first; only those that take at least `min_share` of the
        plan's predicted time."""
        plan, times = list(plan), self.hypergraph.weights
        candidates, total = self.hypergraph.candidates, sum(times[i] * prices[i].us for i in plan)
        open_ = (i for i in plan if self.state.is_open(candidates[i], prices[i]))
        stakes = _summed(candidates, ((i, times[i] * prices[i].us) for i in open_))
        return [i for i in stakes if stakes[i] >= min_share * total]

    def optimistic_request(self, plan: Sequence[int], prices: Sequence[Priced]) -> MeasurementRequest:
        """The measurement request for the optimistic plan (cheapest at the lower ends of all prices), which `plan`
        gives by the indices of its candidates; empty if no measurement could change that plan."""
        if self.state.measurer is None:
            return MeasurementRequest(first_look=False)
        candidates, times = self.hypergraph.candidates, self.hypergraph.weights
        total = sum(times[i] * prices[i].us for i in plan)
        looks, tuning = self.first_look_stakes(plan, prices), self.tuning_stakes(plan, prices)
        for min_stake in (LARGE_STAKE * total, 0.0):
            for stakes, first_look in ((looks, True), (tuning, False)):
                if now := _batch(stakes, min_stake, self.growth * ROUND_KERNELS):
                    now = now if first_look else now[:TUNED]
                    later = [(candidates[i], first_look) for i in stakes if i not in now]
                    later += [(candidates[i], False) for i in tuning if first_look]
                    now.sort(key=lambda i: first_look and candidates[i].template.space is not None)
                    return MeasurementRequest(now, first_look, later)
        return MeasurementRequest(first_look=False)

    def first_look_stakes(self, plan: Sequence[int], prices: Sequence[Priced]) -> Stakes:
        """Candidates for first looks (a few schedules) with their stakes (µs of a plan that a measurement may change):
        unmeasured ones of a plan, and unmeasured alternatives that may be faster.

        Equal calls once; alternatives must fit into the plan. The stake of a candidate of the plan is the difference
        between the cheapest measured way to its results and the low end of its interval, or its predicted time if there
        is no such way. So a cheap kernel in place of a slow measured one comes before another form of a large kernel
        that is measured already. The stake of an alternative is the possible saving divided by its rank: only one
        alternative is used.
        """
        candidates, times = self.hypergraph.candidates, self.hypergraph.weights
        open_, fits = per_call(self.hypergraph, prices, self.state.is_open), self.fits_into(plan)
        makers, outputs = self.state.index.by_vertex, self.hypergraph.numbered.outputs
        wanted = [i for i in plan if open_[i]]
        costs = measured_costs(self.hypergraph, prices, self.state.index)
        now = {i: costs.without(i) for i in wanted}
        gains = {i: prices[i].us if us == math.inf else max(0.0, us - prices[i].low) for i, us in now.items()}
        stakes = _summed(candidates, ((i, times[i] * gains[i]) for i in wanted))
        known = {call_token(candidates[i]) for i in stakes}
        savings: dict[int, float] = {}
        for i in wanted:
            for v in outputs(i):
                most = min(prices[i].us, now[i])
                faster = [j for j in makers[v] if open_[j] and prices[j].low <= most and fits(j)]
                nearest = nsmallest(MAX_ALTERNATIVES, faster, key=lambda j: prices[j].low)
                for rank, j in enumerate(nearest, 1):
                    if call_token(candidates[j]) not in known:
                        saving = times[i] * (most - prices[j].low) / rank
                        savings[j] = max(savings.get(j, 0.0), saving)
        return _largest_first({**stakes, **_largest_per_call(candidates, savings)})

    def tuning_stakes(self, plan: Sequence[int], prices: Sequence[Priced]) -> Stakes:
        """Candidates for tuning with their stakes (µs of a plan that tuning may change): those of a plan with untried
        schedules, and their nearest alternatives.

        Untried schedules are left after a first look, an interrupted tuning, or a tuning cut off by the cost cutoff.
        """
        state, measurer, candidates = self.state, self.state.measurer, self.hypergraph.candidates
        if measurer is None:
            return {}
        gain: Callable[[int], float] = lambda i: (
            1 - (SHARE_AFTER_MORE_TUNING if call_token(candidates[i]) in state.tuned else SHARE_AFTER_TUNING)
        )
        times = self.hypergraph.weights
        stakes = _summed(candidates, ((i, times[i] * gain(i) * prices[i].us) for i in plan))
        unique, ended = {call_token(candidates[i]): i for i in stakes}, state.requested - state.looked - state.tuned
        open_ = {i for token, i in unique.items() if token not in ended and measurer.unfinished(candidates[i])}
        if not open_:
            return {}
        fits = self.fits_into(plan)
        may_gain: Callable[[int], bool] = lambda j: state.expected_share(candidates[j]) < 1.0 and fits(j)
        found: Stakes = {}
        for i in stakes:
            if i in open_:
                found[i] = stakes[i]
            alike = filter(may_gain, state.index.by_output[self.hypergraph.numbered.made[i]])
            for j in nsmallest(MAX_ALTERNATIVES + 1, alike, key=lambda j: prices[j].us):
                saving = 1 - prices[j].us * state.expected_share(candidates[j]) / prices[i].us
                if saving > 0 and unique.setdefault(call_token(candidates[j]), j) == j:
                    found.setdefault(j, stakes[i] * min(1.0, saving / gain(i)))
        return _largest_first(found)

    def tuned_before_looks(self, prices: Sequence[Priced]) -> list[int]:
        """Kernels of the pessimistic plan to tune before unmeasured kernels get a first look (first measurement): those
        with the largest possible gains, and alternatives.

        Empty if tuning has had its share of the schedules tried so far. The shares of tuning and of first looks are
        proportional to their possible gains.
        """
        plan, times = self.plans.pessimistic, self.hypergraph.weights
        total = sum(times[i] * prices[i].us for i in plan)
        hoped = sum(
            times[i] * (prices[i].us if prices[i].source == "measured" else prices[i].low) for i in self.plans.chosen
        )
        look_gain = max(0.0, total - hoped)
        tuned, looked = self.state.schedules[False], self.state.schedules[True]
        due: Callable[[int, float], bool] = lambda kernels, tuning_gain: (
            (tuned + SCHEDULES[False] * kernels) * look_gain <= looked * tuning_gain
        )
        if not due(1, (1 - SHARE_AFTER_TUNING) * total):  # the stakes take longer to compute
            return []
        stakes, own = self.tuning_stakes(plan, prices), set(plan)
        found = sorted(stakes, key=lambda i: i not in own)[:TUNED]
        tuning_gain = sum(stakes[i] for i in found if i in own) or max((stakes[i] for i in found), default=0.0)
        return found if tuning_gain >= LARGE_STAKE * total and due(len(found), tuning_gain) else []

    def fits_into(self, plan: Iterable[int]) -> Callable[[int], bool]:
        """Predicate: whether a candidate could replace another one in a plan, with the rest of the plan unchanged.

        Its inputs must be values of the plan or views of them. Otherwise its time cannot be compared: the last of three
        kernels that together replace one kernel is faster than that kernel, but belongs to a plan with all three.
        """
        needs, free = self.hypergraph.numbered.needs, [math.inf] * len(self.hypergraph.candidates)
        for i in chain(self.hypergraph.views, plan):
            free[i] = 0.0
        available = tree_costs(self.hypergraph, free)
        return lambda j: all(available[v] < math.inf for v in needs[j])


def _batch(stakes: Stakes, min_stake: float, count: int) -> list[int]:
    """Candidates with a stake of at least `min_stake`, filled up to `count` with the next ones.

    Empty if none has such a stake.
    """
    large = sum(stake >= min_stake for stake in stakes.values())
    return list(stakes)[: max(large, count)] if large else []


def _summed(candidates: Sequence[Candidate], stakes: Iterable[tuple[int, float]]) -> Stakes:
    """Stakes summed over candidates with equal calls; the first candidate represents the call."""
    first: dict[CallToken, int] = {}
    found: dict[int, float] = {}
    for i, stake in stakes:
        i = first.setdefault(call_token(candidates[i]), i)
        found[i] = found.get(i, 0.0) + stake
    return _largest_first(found)


def _largest_per_call(candidates: Sequence[Candidate], stakes: Mapping[int, float]) -> Stakes:
    """For each call, the candidate with the largest stake."""
    found: dict[CallToken, int] = {}
    for i, stake in stakes.items():
        token = call_token(candidates[i])
        if stake > stakes.get(found.setdefault(token, i), 0.0):
            found[token] = i
    return {i: stakes[i] for i in found.values()}


def _largest_first(stakes: Mapping[int, float]) -> Stakes:
    return dict(sorted(stakes.items(), key=lambda pair: -pair[1]))


__all__ = ["MAX_ALTERNATIVES", "AcquisitionPolicy"]
