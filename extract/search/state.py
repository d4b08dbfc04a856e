"""Measurement state of a search, and the acquisition policy: which kernels of a plan to measure next, largest stake
first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import chain, islice
from typing import TypeVar

from ..candidates.candidates import Hypergraph
from ..model.kernel import Candidate, Measurer, Priced, Vertex
from .cutoff import Places, Token, Worth, token, tree_costs

CERTAIN = 0.85  # a measured interval whose low end is below this share of its value is measured once more
# unmeasured alternatives measured together with each unmeasured kernel of the best plan: a round costs a solve
RIVALS = 8
NEXT = 2  # alternatives tuned together with each kernel of the best plan, if they may become faster than it
MUCH = 0.03  # share of the plan's cost; smaller stakes wait
LITTLE = 0.01  # share of the plan's cost; a smaller unmeasured cost or possible gain hardly matters
LEAST = 16  # kernels per round, if there are as many: a round costs a solve, and at its end compilers idle
UNKNOWN = 4  # times its lower bound: the stake of an unmeasured kernel of the best plan without other information
# Expected time after tuning, as a share of the time after a first look. (On an H200 the best of three guesses took 1.04 to
# 1.1 times as long as the best of 16 in Triton, 1.6 times in CUDA C++.)
HOPE = 0.75
# the same after tuning of the usual length. (On average the best of 16 takes 0.9 % longer than the best there is, 11 %
# at most.)
FURTHER = 0.97
WORK = {True: 2, False: 13}  # approximate number of schedules measured by a first look, and by the rest of the tuning


T = TypeVar("T")
Later = Sequence[tuple[Candidate, bool]]  # (candidate, whether a first look is enough)


@dataclass(frozen=True)
class Wanted:
    """Measurement request: candidate indices to measure now, whether a first look (few schedules) is enough, and what
    may come later."""

    now: list[int] = field(default_factory=list)
    look: bool = True
    later: Later = ()

    def after(self, first: Iterable[int]) -> Wanted:
        """This request, with other candidates put first."""
        return replace(self, now=list(dict.fromkeys([*first, *self.now])))


@dataclass
class Known:
    """Measurement state of a search: calls that are `done`, the subset that had only a first look (`looked`), and the
    subset tuned to the usual length (`searched`); both subsets have untried schedules."""

    hypergraph: Hypergraph
    measurer: Measurer | None
    done: set[Token] = field(default_factory=set)
    looked: set[Token] = field(default_factory=set)
    searched: set[Token] = field(default_factory=set)
    # approximate number of schedules requested, by first look (True) and tuning (False)
    under_way: dict[Token, tuple[Candidate, bool]] = field(default_factory=dict)
    asked: dict[bool, int] = field(
        default_factory=lambda: {True: 0, False: 0}
    )  # schedules, about, in first looks and in searches
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.hypergraph)

    def hopes(self, prices: Sequence[Priced]) -> list[float]:
        """Optimistic price of each candidate, in µs."""
        return each(
            self.hypergraph, prices,
            lambda c, p: p.low if self.is_open(c, p) else p.us * self.hope(c),
        )  # fmt: skip

    def hope(self, candidate: Candidate) -> float:
        """Expected remaining time of a measured candidate after more tuning, as a share of its measured time."""
        key = token(candidate)
        return HOPE if key in self.looked else FURTHER if key in self.searched else 1.0

    def hoped(self, i: int, price: Priced) -> bool:
        """Whether a candidate's optimistic price is below its known price."""
        return price.source != "measured" or self.hope(self.hypergraph.candidates[i]) < 1.0

    def is_open(self, candidate: Candidate, price: Priced) -> bool:
        """Whether a first look could lower the candidate's price: it was never measured, or so unevenly (on a busy
        machine, say) that it should be measured once more before the plan depends on the value."""
        if self.measurer is None or candidate.is_view or math.isinf(price.us) or token(candidate) in self.done:
            return False
        return price.source != "measured" or price.low < CERTAIN * price.us

    def unmeasured(self, chosen: Iterable[int], prices: Sequence[Priced], least: float = 0.0) -> list[int]:
        """Unmeasured candidates of a plan, largest predicted time first, that account for at least the share `least` of
        the plan's cost."""
        candidates, whole = self.hypergraph.candidates, sum(prices[i].us for i in chosen)
        stakes = _summed(candidates, ((i, prices[i].us) for i in chosen if self.is_open(candidates[i], prices[i])))
        return [i for i in sorted(stakes, key=lambda i: -stakes[i]) if stakes[i] >= least * whole]

    def beside(self, dear: Iterable[int], prices: Sequence[Priced]) -> list[int]:
        """The next few alternatives of each of the given expensive candidates that need no compiler: if its measurement
        disappoints, one of them is next."""
        candidates = self.hypergraph.candidates
        ready = lambda j: candidates[j].template.space is None and self.is_open(candidates[j], prices[j])
        near = (j for i in dear for j in self._nearest(i, prices, ready))
        return list(_largest(candidates, dict.fromkeys(near, 1.0)))

    def fitting(self, chosen: Iterable[int]) -> Callable[[int], bool]:
        """A predicate: whether a candidate could replace another one in the plan unchanged: its inputs are values of
        the plan or views of them. (The last of three kernels that replace one is faster than that one; a plan with all
        three is a different plan.)"""
        own, candidates, needs = set(chosen), self.hypergraph.candidates, self.hypergraph.numbered.needs
        there = tree_costs(
            self.hypergraph, [0.0 if c.is_view or i in own else math.inf for i, c in enumerate(candidates)]
        )
        return lambda j: all(there[v] < math.inf for v in needs[j])

    def _nearest(self, i: int, prices: Sequence[Priced], which: Callable[[int], bool]) -> list[int]:
        """The cheapest few among a candidate and its alternatives (same output) that satisfy a predicate."""
        alike = self.places.alike[self.hypergraph.numbered.made[i]]
        return nsmallest(NEXT + 1, filter(which, alike), key=lambda j: prices[j].us)

    def cut(self, prices: Sequence[Priced]) -> bool:
        """Allow candidates whose measurement the deadline prevented to be requested again. True if no request was ever
        answered."""
        calls = ((self.hypergraph.candidates[i], prices[i]) for i in self.hypergraph.calls[0])
        asked = bool(self.done)
        self.done -= {token(c) for c, p in calls if p.source != "measured" and p.us < math.inf}
        return asked and not self.done

    def lacking(self, chosen: Sequence[int], prices: Sequence[Priced], fill: bool = False) -> Wanted:
        """The next measurement request: first looks while kernels of the best plan had none, tuning where the stakes
        are large, then first looks and tuning for small stakes. With `fill`, a round includes candidates with
        negligible stakes."""
        if self.measurer is None:
            return Wanted(look=False)
        candidates, whole = self.hypergraph.candidates, sum(prices[i].us for i in chosen)
        open_ = each(self.hypergraph, prices, self.is_open)
        looks = _lacking(self.hypergraph, chosen, prices, open_, self.fitting(chosen))
        searches = self.unfinished(chosen, prices)
        for part, stakes, look in [(part, *one) for part in (whole, 0.0) for one in ((looks, True), (searches, False))]:
            if now := _first(stakes, MUCH * part, 0.0 if fill else LITTLE * part):
                later = [(candidates[i], look) for i in stakes if i not in now]
                later += [(candidates[i], False) for i in searches if look]
                return Wanted(sorted(now, key=lambda i: look and candidates[i].template.space is not None), look, later)
        return Wanted(look=False)

    def unfinished(self, chosen: Sequence[int], prices: Sequence[Priced]) -> dict[int, float]:
        """Chosen candidates with untried schedules -> stake in µs, largest first: after a first look, an interrupted
        tuning, or a tuning cut off by the cost cutoff. Each is followed by its alternatives that may become faster."""
        measurer, candidates = self.measurer, self.hypergraph.candidates
        if measurer is None:
            return {}
        share: Callable[[int], float] = lambda i: 1 - (FURTHER if token(candidates[i]) in self.searched else HOPE)
        stakes = _summed(candidates, ((i, share(i) * prices[i].us) for i in chosen))
        dearest = sorted(stakes, key=lambda i: -stakes[i])
        unique, ended = {token(candidates[i]): i for i in dearest}, self.done - self.looked - self.searched
        open_ = {i for key, i in unique.items() if key not in ended and measurer.unfinished(candidates[i])}
        fits = self.fitting(chosen) if open_ else bool
        left = lambda j: self.hope(candidates[j]) < 1.0 and fits(j)
        found: dict[int, float] = {}
        for i in dearest if open_ else ():
            if i in open_:
                found[i] = stakes[i]
            for j in self._nearest(i, prices, left):
                gain = 1 - prices[j].us * self.hope(candidates[j]) / prices[i].us
                if gain > 0 and unique.setdefault(token(candidates[j]), j) == j:
                    found.setdefault(j, stakes[i] * min(1.0, gain / share(i)))
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def measure(
        self, wanted: Sequence[Candidate], worth: Worth, look: bool, later: Later, leave: bool = True
    ) -> None:  # fmt: skip
        """Measure candidates until the deadline; `later` may come after them. With `leave`, the slowest measurements,
        of this and of earlier calls, stay in flight while there is other work."""
        assert self.measurer is not None
        for candidate, _ in self.under_way.values():
            worth.taken(candidate)
        asked = {**self.under_way, **{token(c): (c, look) for c in wanted}}
        self.asked[look] += WORK[look] * len(wanted)
        self.looked -= asked.keys()
        self.searched -= asked.keys()
        some = _until(worth, wanted, self.done)
        left = self.measurer.measure(
            some, worth=worth, look=look, later=later, leave=leave and bool(wanted) and not worth.ended()
        )
        self.under_way = {token(c): asked[token(c)] for c in left if token(c) in asked}
        for key in asked.keys() & self.done - self.under_way.keys():
            candidate, looked = asked[key]
            if looked and self.measurer.unfinished(candidate):
                self.looked.add(key)
            elif not looked and self.measurer.further(candidate):
                self.searched.add(key)


def each(hypergraph: Hypergraph, prices: Sequence[Priced], of: Callable[[Candidate, Priced], T]) -> list[T]:
    """Apply a function to each (candidate, price); evaluated once for equal calls, and once for all views."""
    candidates, (calls, which) = hypergraph.candidates, hypergraph.calls
    views = islice((i for i, k in enumerate(which) if k < 0), 1)
    found = [of(candidates[i], prices[i]) for i in chain(calls, views)]
    return [found[k] for k in which]


def _until(worth: Worth, wanted: Iterable[Candidate], done: set[Token]) -> Iterator[Candidate]:
    """Yield candidates until the deadline, marking each as done."""
    for candidate in wanted:
        if worth.ended():
            return
        done.add(token(candidate))
        worth.taken(candidate)
        yield candidate


def _lacking(
    hypergraph: Hypergraph,
    chosen: Iterable[int],
    prices: Sequence[Priced],
    open_: Sequence[bool],
    fits: Callable[[int], bool],
) -> dict[int, float]:
    """Open candidates of the best plan, and their open alternatives that fit in and may be faster -> stake in µs,
    largest first; equal calls once. The stake of a candidate of the plan is its possible cost, that of an alternative
    the possible saving divided by its rank: only one alternative is used."""
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
            better = [j for j in makers[v] if prices[j].low <= prices[i].us and fits(j)]
            for n, j in enumerate(nsmallest(RIVALS, better, key=lambda j: prices[j].low), 1):
                beside[j] = max(beside.get(j, 0.0), (prices[i].us - prices[j].low) / n)
    known = {token(candidates[i]) for i in stakes}
    beside = {j: stake for j, stake in beside.items() if token(candidates[j]) not in known}
    found = {**stakes, **_largest(candidates, beside)}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _first(stakes: Mapping[int, float], much: float, little: float) -> list[int]:
    """Candidates with a stake of at least `much`, filled up to LEAST with those of at least `little`; empty if none has
    `much`."""
    large = sum(stake >= much for stake in stakes.values())
    some = sum(stake >= little for stake in stakes.values())
    return list(stakes)[: max(large, min(LEAST, some))] if large else []


def _summed(candidates: Sequence[Candidate], stakes: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Stakes summed over candidates with equal calls; the first candidate represents the call."""
    first: dict[Token, int] = {}
    found: dict[int, float] = {}
    for i, stake in stakes:
        i = first.setdefault(token(candidates[i]), i)
        found[i] = found.get(i, 0.0) + stake
    return found


def _largest(candidates: Sequence[Candidate], stakes: Mapping[int, float]) -> dict[int, float]:
    """For each call, the candidate with the largest stake."""
    found: dict[Token, int] = {}
    for i, stake in stakes.items():
        key = token(candidates[i])
        if stake > stakes.get(found.setdefault(key, i), 0.0):
            found[key] = i
    return {i: stakes[i] for i in found.values()}


__all__ = ["HOPE", "LITTLE", "MUCH", "RIVALS", "WORK", "Known", "Wanted", "each"]
