"""Lazy measuring: solve with optimistic prices, measure what the winning plan lacks, solve again.

An unmeasured kernel enters at the low end of its predicted interval, so it is tried before it is believed. What is tried gets a
first look: a kernel with schedules runs in a few of them, and enters below its time by what the others may bring. When every
kernel of the winner has been looked at, those are searched that it hangs on. What is at stake decides the order: the dearest
first, and what can bring only little waits until all that can bring much was looked at and searched. The loop ends when the
winner's kernels were searched, or when the budget ends; what optimism remains is reported.

Beside the plan that is hoped for there is in each round the plan that would be returned if it were the last one, where what was not
measured counts as much as it may take. What that plan believes unmeasured is measured before all else, the dearest first: a prediction
that is far too low wins there, while the hoped-for plans have others in its place. When the time is up, such kernels are measured
still, for a little longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..errors import ExtractionError, NoPlanError
from .budgets import Budget
from .candidates import Hypergraph
from .clock import Clock
from .collection import no_collection
from .kbest import k_best
from .kernel import Candidate, Measurer, Priced, Pricer, Vertex
from .late import Prices
from .problem import Extraction
from .rows import Rows
from .solve import solve
from .warm import warm_solve
from .worth import Token, Worth, token

CERTAIN = 0.85  # a measured interval that begins below this share of its value is measured once more
RIVALS = 8  # unmeasured alternatives measured together with each kernel that the winner lacks: a round costs a solve
QUICK_S = 0.1  # seconds of a solve that more measuring follows: more rounds find more than longer solves (of the same seconds)
LAST_S = 0.25  # seconds that a solve has whatever else: without any it would end with a greedy plan
BEYOND = 0.15  # share of the seconds for measuring that solves may take beyond them
CLOSE_S = 1.5  # seconds, and at most as many as the whole search has, for measuring what the plan believes in the end
BELIEVING = 0.1  # share of the time that may be spent on what would be returned now, beside what is hoped for
LITTLE = 0.01  # of the plan's cost: what is believed of less need not be measured before it is returned
NEXT = 2  # alternatives searched together with each kernel of the winner, if they may become faster than it is
MUCH = 0.03  # of the plan's cost: less at stake waits for more
LEAST = 16  # kernels of a round, if there are so many: it costs a solve, and at its end compilers wait for each other
UNKNOWN = 4  # times its bound that is at stake where nothing else is known of a kernel of the winner
UNTRIED = 4  # times the most it may take that a product with schedules counts that was never run: they were guessed, and may not even compile
# Times what is expected that an unmeasured kernel may take: a library's, and a generated one of a family that is guessed well.
KNOWN, GUESSED = 4, 6
SURE, LATE_US = 1.3, 10.0  # a library's large product is near what the machine can do: so many times, and µs
SIMPLE = ("pointwise", "reduction")
HOPE = 0.75  # of its time after a first look: what a kernel may take when its schedules have been searched. (On an H200 the best of
# three guesses took 1.04 to 1.1 times as long as the best of 16 in Triton, 1.6 times in CUDA C++.)


@dataclass
class Choice:
    """A solved hypergraph: the chosen candidates in an order in which they can run, and how good that is known to be."""

    hypergraph: Hypergraph
    chosen: list[int]  # indices into hypergraph.candidates
    prices: list[Priced]
    extraction: Extraction
    rounds: int = 1
    measured: int = 0  # candidates measured by this search
    optimism_us: float = 0.0  # how much cheaper the unmeasured kernels were taken to be than predicted
    stopped: str = "measured"  # measured | budget | prices only
    seconds: dict[str, float] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()

    @property
    def cost(self) -> float:
        """Sum of the chosen candidates' prices in µs."""
        return float(sum(self.prices[i].us for i in self.chosen))

    @property
    def sources(self) -> dict[str, int]:
        """How many of the chosen kernels were measured, predicted, bounded."""
        found: dict[str, int] = {}
        for i in self.chosen:
            if not self.hypergraph.candidates[i].is_view:
                found[self.prices[i].source] = found.get(self.prices[i].source, 0) + 1
        return found


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


@no_collection()  # rounds make many objects, and walks over those of a large model's candidates take seconds
def search(
    hypergraph: Hypergraph,
    pricer: Pricer,
    measurer: Measurer | None = None,
    *,
    seconds: float = 60.0,
    solve_seconds: float = 2.5,
    deterministic: bool = False,
    doubt: bool = False,
    budgets: Sequence[Budget] = (),
    progress: Callable[[str], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Choice:
    """The cheapest known set of kernels that keeps the budgets. Measures through `measurer` (none: prices only) for at
    most `seconds`; what the plan believes in the end is measured in at most `CLOSE_S` more, and solving may take a little longer
    (`BEYOND`, `LAST_S`; when `deterministic`, always all it needs). `stop` is polled: nothing is measured any more, and a solve under
    way ends with the best so far. `doubt`: kernels were to be measured, and cannot be; what was not counts as much as it may take.

    NoPlanError if some output cannot be made by the backends' kernels, or not within the budgets.
    """
    clock = Clock(dict.fromkeys(("price", "solve", "measure"), 0.0))
    known, rounds, stopped = _Known(hypergraph, measurer), 0, "measured" if measurer else "prices only"
    limits = (solve_seconds,) if measurer is None or deterministic else (min(QUICK_S, solve_seconds), solve_seconds)
    plans = _Plans(hypergraph, budgets, seconds, limits, deterministic, stop, clock)
    with clock.running("price"):
        pricing = Prices(hypergraph, pricer, later=measurer is not None)

    def measure(wanted: Wanted, ended: Callable[[], bool]) -> None:
        with clock.running("measure"):
            worth = Worth(hypergraph, pricer, prices, ended, limited=bool(budgets))
            useful = [i for i in wanted.now if hopes[i] <= worth(hypergraph.candidates[i])]
            known.measure([hypergraph.candidates[i] for i in useful or wanted.now], worth, wanted.look, wanted.later)

    def say(when: str, us: Sequence[float], wanted: Wanted) -> None:
        if progress and wanted.now:
            what = f"{'measuring' if wanted.look else 'searching'} {len(wanted.now)} kernels"
            progress(f"{when}: {sum(us[i] for i in plans.chosen):.1f} µs, {what}")

    while True:
        rounds += 1
        with clock.running("price"):
            prices = pricing()
        hopes = known.hopes(prices)
        try:
            found, wanted = plans.next(known, prices, hopes)
        except NoPlanError:
            if not pricing.partial:
                raise
            pricing.wait()
            continue
        if measurer is None or not (wanted.now or known.under_way):
            if not pricing.partial:
                break
            pricing.wait()
            continue
        if plans.ended():
            stopped = "budget"
            break
        if pricing.partial:
            wanted = wanted.after(known.unmeasured(plans.chosen, prices))
        else:
            wanted = plans.surest(known, prices, wanted, rounds == 1)
        say(f"round {rounds}", hopes, wanted)
        pricing.go_on()
        measure(wanted, plans.ended)
        if plans.ended():
            stopped = "budget"
            if known.under_way:  # it is given up
                measure(Wanted(look=False), plans.ended)
            with clock.running("price"):
                prices = pricing()
            break
    pricing.end()
    if stopped == "budget":
        known.forget_cut(prices)
        plans.close()
    doubtful = stopped == "budget" or any(known.hoped(i, prices[i]) for i in plans.chosen)
    for limit in (LAST_S, limits[-1])[stopped != "budget" :] if doubtful and (measurer is not None or doubt) else ():
        found = plans.without_hope(prices, found, limit)
        while not plans.closed() and (believed := known.unmeasured(plans.chosen, prices, LITTLE)):
            wanted, hopes = Wanted(believed), known.hopes(prices)
            say("at last", hopes, wanted)
            measure(wanted, plans.closed)
            with clock.running("price"):
                prices = pricing()
            found = plans.without_hope(prices, found, LAST_S)
    optimism = sum(prices[i].us - prices[i].low for i in plans.chosen if prices[i].source != "measured")
    return Choice(
        hypergraph, plans.chosen, prices, found, rounds, len(known.done), optimism, stopped, clock.seconds, tuple(budgets)
    )  # fmt: skip


Later = Sequence[tuple[Candidate, bool]]  # and whether a first look is enough


@dataclass(frozen=True)
class Wanted:
    """What to measure next, by number, whether a first look is enough, and what may come after that."""

    now: list[int] = field(default_factory=list)
    look: bool = True
    later: Later = ()

    def after(self, first: Iterable[int]) -> Wanted:
        """This, and something before it."""
        return replace(self, now=list(dict.fromkeys([*first, *self.now])))


@dataclass
class _Plans:
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
    start: float = field(default_factory=time.monotonic)
    until: float = math.inf

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
        self, known: _Known, prices: Sequence[Priced], hopes: Sequence[float]
    ) -> tuple[Extraction, Wanted]:  # fmt: skip
        """A plan at the costs that are hoped for, and what to measure for it: with more time only where the search would end, or where
        budgets are not kept within less."""
        for limit in self.limits:
            try:
                self.chosen, found = self.solve(hopes, limit, self.chosen)
            except NoPlanError:
                if not self.budgets or limit == self.limits[-1]:
                    raise
                continue
            wanted = known.lacking(self.chosen, prices)
            if wanted.now or known.under_way or found.optimal:
                break
        return found, wanted

    def uncompiled(self, known: _Known, prices: Sequence[Priced]) -> list[int]:
        """What was not measured of the cheapest plan of kernels that no compiler must be waited for, where others are to be measured
        as well: what is known of them soon is what all others are compared with, and all there is where the time is short."""
        candidates = self.hypergraph.candidates
        waiting = [c.template.space is not None and p.source != "measured" for c, p in zip(candidates, prices)]
        if not any(waiting):
            return []
        try:
            self.trusted, _ = self.solve([math.inf if wait else p.us for wait, p in zip(waiting, prices)], LAST_S, ())
        except NoPlanError:
            return []
        return known.unmeasured(self.trusted, prices)

    def believed(self, known: _Known, prices: Sequence[Priced]) -> list[int]:
        """What has much at stake and was not measured of the plan that would be returned now, and what may take its place; nothing where
        asking has taken too much of the time."""
        began = time.monotonic()
        if self.believing > BELIEVING * (began - self.start):
            return []
        try:
            self.trusted, _ = self.solve(self.doubted(prices), self.limits[0], self.trusted)
        except NoPlanError:
            return []
        finally:
            self.believing += time.monotonic() - began
        much = known.unmeasured(self.trusted, prices, MUCH)
        return list(dict.fromkeys([*much, *known.beside(much, prices)]))

    def surest(self, known: _Known, prices: Sequence[Priced], wanted: Wanted, first: bool) -> Wanted:
        """What is wanted, after what is believed: of the plan that would be returned now, or, at first, of the one without compilers."""
        if not first:
            sure = self.believed(known, prices)
        elif not (wanted.look and (sure := self.uncompiled(known, prices))):
            return wanted
        if not sure:
            return wanted
        candidates = self.hypergraph.candidates
        waiting = [i for i in wanted.now if not wanted.look or (first and candidates[i].template.space is not None)]
        later = [*((candidates[i], wanted.look) for i in waiting), *wanted.later]
        return Wanted([i for i in wanted.now if i not in set(waiting)], later=later).after(sure)

    def doubted(self, prices: Sequence[Priced]) -> list[float]:
        """What each candidate may take where nothing more is measured."""
        return [_doubted(c, p) for c, p in zip(self.hypergraph.candidates, prices)]

    def without_hope(self, prices: Sequence[Priced], hoped: Extraction, limit: float) -> Extraction:
        """The plan where the time is up: what was not measured counts as much as it may take. The bound is that of the prices that
        were hoped for."""
        self.chosen, found = self.solve(self.doubted(prices), limit, self.chosen)
        bound = min(found.lower_bound, hoped.lower_bound)
        return replace(found, lower_bound=bound, optimal=found.optimal and bound >= found.cost * (1 - 1e-9))


def _doubted(candidate: Candidate, price: Priced) -> float:
    """What a candidate may take if it is not measured before it is used: a library's little more than is expected, what was generated
    without a product some more, and with one far more."""
    if price.source == "measured":
        return price.us
    if candidate.is_view or candidate.template.space is None:
        return min(price.high, SURE * price.us + min((KNOWN - SURE) * price.us, LATE_US))
    return min(price.high, GUESSED * price.us) if candidate.template.family in SIMPLE else price.high * UNTRIED


@dataclass
class _Known:
    """What a search has measured: calls that are `done`, and of them those that were only `looked` at and have schedules left."""

    hypergraph: Hypergraph
    measurer: Measurer | None
    done: set[Token] = field(default_factory=set)
    looked: set[Token] = field(default_factory=set)
    under_way: dict[Token, tuple[Candidate, bool]] = field(default_factory=dict)  # and whether it is looked at

    def hopes(self, prices: Sequence[Priced]) -> list[float]:
        """What each candidate may cost at best, in µs."""
        return [
            p.low if self.is_open(c, p) else p.us * HOPE if token(c) in self.looked else p.us
            for c, p in zip(self.hypergraph.candidates, prices)
        ]

    def hoped(self, i: int, price: Priced) -> bool:
        """Whether a candidate counts for less than what is known of it."""
        return price.source != "measured" or token(self.hypergraph.candidates[i]) in self.looked

    def is_open(self, candidate: Candidate, price: Priced) -> bool:
        """Whether a first look could still show the candidate to be cheaper: it was never measured, or so unevenly (on a busy
        machine, say) that once more is worth it before it wins or loses by that number."""
        if self.measurer is None or candidate.is_view or math.isinf(price.us) or token(candidate) in self.done:
            return False
        return price.source != "measured" or price.low < CERTAIN * price.us

    def unmeasured(self, chosen: Iterable[int], prices: Sequence[Priced], least: float = 0.0) -> list[int]:
        """What a plan believes without a measurement, the most µs in all first, as far as that is not less than a share of the plan."""
        candidates, whole = self.hypergraph.candidates, sum(prices[i].us for i in chosen)
        stakes = _summed(candidates, ((i, prices[i].us) for i in chosen if self.is_open(candidates[i], prices[i])))
        return [i for i in sorted(stakes, key=lambda i: -stakes[i]) if stakes[i] >= least * whole]

    def beside(self, dear: Iterable[int], prices: Sequence[Priced]) -> list[int]:
        """Of each of some dear candidates, the next few that make the same without a compiler: if it surprises, one of them is next."""
        candidates, made = self.hypergraph.candidates, self.hypergraph.numbered.made
        rivals: dict[int, list[int]] = {made[i]: [] for i in dear}
        for i, (c, p) in enumerate(zip(candidates, prices) if rivals else ()):
            if made[i] in rivals and c.template.space is None and self.is_open(c, p):
                rivals[made[i]].append(i)
        near = (sorted(rivals[made[i]], key=lambda j: prices[j].us)[: NEXT + 1] for i in dear)
        return list(_largest(candidates, dict.fromkeys((j for found in near for j in found), 1.0)))

    def forget_cut(self, prices: Sequence[Priced]) -> None:
        """What the end of the time kept from being measured may be asked for again."""
        unknown = (c for c, p in zip(self.hypergraph.candidates, prices) if p.source != "measured" and p.us < math.inf)
        self.done -= set(map(token, unknown))

    def lacking(self, chosen: Sequence[int], prices: Sequence[Priced]) -> Wanted:
        """What to measure next: first looks while kernels of the winner had none, but what has little at stake is looked at when
        what has much was searched. And what may come after that."""
        if self.measurer is None:
            return Wanted(look=False)
        candidates, much = self.hypergraph.candidates, MUCH * sum(prices[i].us for i in chosen)
        open_ = [self.is_open(c, p) for c, p in zip(candidates, prices)]
        looks = _lacking(self.hypergraph, chosen, prices, open_)
        searches = self._unfinished(self.measurer, chosen, prices)
        for least, stakes, look in [
            (least, *one) for least in (much, 0.0) for one in ((looks, True), (searches, False))
        ]:
            if now := _first(stakes, least):
                later = [(candidates[i], look) for i in stakes if i not in now]
                later += [(candidates[i], False) for i in searches if look]
                return Wanted(sorted(now, key=lambda i: look and candidates[i].template.space is not None), look, later)
        return Wanted(look=False)

    def _unfinished(self, measurer: Measurer, chosen: Sequence[int], prices: Sequence[Priced]) -> dict[int, float]:
        """Chosen candidates that were measured, but not to the end, with what is at stake in µs, most first: they were only looked
        at, a search was cut, or found them hopeless beside others. Behind each, what was only looked at and may be faster."""
        candidates, made = self.hypergraph.candidates, self.hypergraph.numbered.made
        stakes = _summed(candidates, ((i, (1 - HOPE) * prices[i].us) for i in chosen))
        dearest = sorted(stakes, key=lambda i: -stakes[i])
        unique, ended = {token(candidates[i]): i for i in dearest}, self.done - self.looked
        open_ = {i for key, i in unique.items() if key not in ended and measurer.unfinished(candidates[i])}
        rivals: dict[int, list[int]] = {}
        for i, candidate in enumerate(candidates) if open_ else ():
            if token(candidate) in self.looked:
                rivals.setdefault(made[i], []).append(i)
        found: dict[int, float] = {}
        for i in dearest:
            if i in open_:
                found[i] = stakes[i]
            for j in sorted(rivals.get(made[i], ()), key=lambda j: prices[j].us)[: NEXT + 1]:
                if prices[j].us * HOPE < prices[i].us and unique.setdefault(token(candidates[j]), j) == j:
                    found.setdefault(j, stakes[i])
        return found

    def measure(self, wanted: Sequence[Candidate], worth: Worth, look: bool, later: Later) -> None:
        """Have candidates measured until the time is up; `later` may come after them. What takes longest, of these and of those
        before, is left under way while there are other things to measure."""
        assert self.measurer is not None
        for candidate, _ in self.under_way.values():
            worth.taken(candidate)
        asked = {**self.under_way, **{token(c): (c, look) for c in wanted}}
        self.looked -= asked.keys()
        some = _until(worth, wanted, self.done)
        left = self.measurer.measure(
            some, worth=worth, look=look, later=later, leave=bool(wanted) and not worth.ended()
        )
        self.under_way = {token(c): asked[token(c)] for c in left}
        for key in asked.keys() & self.done - self.under_way.keys():
            if asked[key][1] and self.measurer.unfinished(asked[key][0]):
                self.looked.add(key)


def _until(worth: Worth, wanted: Iterable[Candidate], done: set[Token]) -> Iterator[Candidate]:
    """Candidates one by one, noted as done, until the time is up."""
    for candidate in wanted:
        if worth.ended():
            return
        done.add(token(candidate))
        worth.taken(candidate)
        yield candidate


def _lacking(
    hypergraph: Hypergraph, chosen: Iterable[int], prices: Sequence[Priced], open_: Sequence[bool]
) -> dict[int, float]:
    """Open candidates of the winner, and those of their open rivals that may take less than the winner is expected to: with what is
    at stake in µs, most first; equal calls once. Of the winner's own that is what they may cost, of rivals what they may save."""
    candidates = hypergraph.candidates
    makers: dict[Vertex, list[int]] = {}
    for i, c in enumerate(candidates):
        if open_[i]:
            for v in c.outputs:
                makers.setdefault(v, []).append(i)
    wanted = [i for i in chosen if open_[i]]
    stakes = _summed(candidates, ((i, min(prices[i].high, UNKNOWN * prices[i].us)) for i in wanted))
    beside: dict[int, float] = {}
    for i in wanted:
        for v in candidates[i].outputs:
            better = [j for j in makers[v] if prices[j].low <= prices[i].us]
            for j in sorted(better, key=lambda j: prices[j].low)[:RIVALS]:
                beside[j] = max(beside.get(j, 0.0), prices[i].us - prices[j].low)
    known = {token(candidates[i]) for i in stakes}
    beside = {j: stake for j, stake in beside.items() if token(candidates[j]) not in known}
    found = {**stakes, **_largest(candidates, beside)}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _first(stakes: Mapping[int, float], much: float) -> list[int]:
    """What has much at stake, and the next of the others where that is little work for a round; none where nothing has much."""
    large = sum(stake >= much for stake in stakes.values())
    return list(stakes)[: max(large, LEAST)] if large else []


def _summed(candidates: Sequence[Candidate], stakes: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Stakes of candidates, summed over those with equal calls, of which the first stands for all."""
    first: dict[Token, int] = {}
    found: dict[int, float] = {}
    for i, stake in stakes:
        i = first.setdefault(token(candidates[i]), i)
        found[i] = found.get(i, 0.0) + stake
    return found


def _largest(candidates: Sequence[Candidate], stakes: Mapping[int, float]) -> dict[int, float]:
    """The largest stake of each call."""
    found: dict[Token, int] = {}
    for i, stake in stakes.items():
        key = token(candidates[i])
        if stake > stakes.get(found.setdefault(key, i), 0.0):
            found[key] = i
    return {i: stakes[i] for i in found.values()}


def alternatives(
    choice: Choice, count: int, *, max_gap: float = 0.2, seconds: float = 10.0, diversity: float = 0.0
) -> Iterator[Choice]:
    """Distinct complete choices in rising estimated cost, the best first, within the choice's budgets. diversity: least
    share of each one's kernels (views are none) that every earlier one does without."""
    rows = Rows(choice.hypergraph, [p.us for p in choice.prices], choice.budgets, every=diversity > 0)
    kernels = [i >= 0 and not choice.hypergraph.candidates[i].is_view for i in rows.candidate]
    for found in k_best(
        rows.problem, count=count, max_gap=max_gap, time_limit=seconds, diversity=diversity, kernels=kernels
    ):
        yield replace(choice, chosen=rows.ordered(found), extraction=found, rounds=0, measured=0)
