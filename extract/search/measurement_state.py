"""Holds the state of a search's measurements: which kernel calls were requested, were measured in a few schedules
(first look), were tuned, or are being measured now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeVar

from ..candidates.hypergraph import Hypergraph
from ..model.kernel import Candidate
from ..model.pricing import Measurer, Priced
from .cutoff import CallToken, CandidateIndex, CostCutoff, call_token

MIN_CERTAINTY = 0.85  # a measured interval whose low end is below this share of its value is measured once more
# Expected time after tuning, as a share of the time after a first look. (On an H200 the best of three guesses took 1.04
# to 1.1 times as long as the best of 16 in Triton, 1.6 times in CUDA C++.)
SHARE_AFTER_TUNING = 0.75
# Expected time after further tuning, as a share of the time after tuning of the usual length. (On average the best of
# 16 takes 0.9 % longer than the best there is, 11 % at most.)
SHARE_AFTER_MORE_TUNING = 0.97
# approximate number of schedules measured by a first look (True), and by the tuning that follows (False)
SCHEDULES = {True: 2, False: 13}

T = TypeVar("T")
Later = Sequence[tuple[Candidate, bool]]  # (candidate, whether a first look is enough)


@dataclass(frozen=True)
class MeasurementRequest:
    """Candidates to measure next.

    `now`: their indices. `first_look`: whether a few schedules of each suffice. `later`: (candidate, whether a first
    look) pairs that a later request may contain, which idle compilers prepare.
    """

    now: list[int] = field(default_factory=list)
    first_look: bool = True
    later: Later = ()

    def preceded_by(self, first: Iterable[int]) -> MeasurementRequest:
        """This request with other candidates put first."""
        return replace(self, now=list(dict.fromkeys([*first, *self.now])))


@dataclass
class MeasurementState:
    """Measurement state of the kernel calls of a hypergraph's candidates.

    `requested`: calls measured, or asked for at least once. `looked`: measured in a few schedules only (first look), so
    that untried schedules are left. `tuned`: tuned to the usual length, untried schedules are left. `in_flight`: call
    -> (candidate, whether for a first look) while the measurer works on it. `schedules`: approximate number of
    schedules requested so far, by first looks (True) and by tuning (False). `measurer` None: nothing is measured.
    `index`: the candidates by call and by output.
    """

    hypergraph: Hypergraph
    measurer: Measurer | None
    requested: set[CallToken] = field(default_factory=set)
    looked: set[CallToken] = field(default_factory=set)
    tuned: set[CallToken] = field(default_factory=set)
    in_flight: dict[CallToken, tuple[Candidate, bool]] = field(default_factory=dict)
    schedules: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    index: CandidateIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = CandidateIndex(self.hypergraph)

    def optimistic_us(self, prices: Sequence[Priced]) -> list[float]:
        """Optimistic price of each candidate in µs: the low end of its prediction interval until it is measured, then
        the time expected after tuning."""
        return per_call(
            self.hypergraph, prices, lambda c, p: p.low if self.is_open(c, p) else p.us * self.expected_share(c)
        )

    def expected_share(self, candidate: Candidate) -> float:
        """Expected time of a measured candidate after more tuning, as a share of its measured time."""
        token = call_token(candidate)
        if token in self.looked:
            return SHARE_AFTER_TUNING
        return SHARE_AFTER_MORE_TUNING if token in self.tuned else 1.0

    def is_final(self, index: int, price: Priced) -> bool:
        """Whether the candidate with this index is measured and not expected to become faster by tuning."""
        return price.source == "measured" and self.expected_share(self.hypergraph.candidates[index]) == 1.0

    def is_open(self, candidate: Candidate, price: Priced) -> bool:
        """Whether a candidate still needs a measurement that could lower its price.

        It was never measured, or its samples scattered so much (on a busy machine, say) that it should be measured once
        more before the plan depends on them. `price`: its present estimate.
        """
        if (
            self.measurer is None
            or candidate.is_view
            or math.isinf(price.us)
            or call_token(candidate) in self.requested
        ):
            return False
        return price.source != "measured" or price.low < MIN_CERTAINTY * price.us

    def forget_unanswered(self, prices: Sequence[Priced]) -> bool:
        """Mark the calls that were requested, but not measured before the deadline, as not requested.

        Returns True if there were requests and none of them was measured.
        """
        calls = ((self.hypergraph.candidates[i], prices[i]) for i in self.hypergraph.calls[0])
        any_requested = bool(self.requested)
        self.requested -= {call_token(c) for c, p in calls if p.source != "measured" and p.us < math.inf}
        return any_requested and not self.requested

    def measure(
        self, wanted: Sequence[Candidate], cutoff: CostCutoff, first_look: bool, later: Later, leave: bool = True,
        hoped: Mapping[CallToken, float] = {},
    ) -> None:  # fmt: skip
        """Measure the candidates `wanted` until the deadline; with `first_look`, in a few schedules only.

        `cutoff`: above its µs a candidate is not measured further. `later`: candidates that may be asked for next, as
        (candidate, whether a first look). With `leave`, the slowest measurements, of this and of earlier calls, stay in
        flight while there is other work. `hoped`: optimistic times of candidates in µs; once others are measured, those
        above their cutoff are left out.
        """
        assert self.measurer is not None
        for candidate, _ in self.in_flight.values():
            cutoff.register(candidate)
        asked = {**self.in_flight, **{call_token(c): (c, first_look) for c in wanted}}
        self.schedules[first_look] += SCHEDULES[first_look] * len(wanted)
        self.looked -= asked.keys()
        self.tuned -= asked.keys()
        left = self.measurer.measure(
            self._until_deadline(wanted, cutoff, hoped), worth=cutoff, look=first_look, later=later,
            leave=leave and bool(wanted) and not cutoff.ended(),
        )  # fmt: skip
        self.in_flight = {call_token(c): asked[call_token(c)] for c in left if call_token(c) in asked}
        for token in asked.keys() & self.requested - self.in_flight.keys():
            candidate, looked = asked[token]
            if looked and self.measurer.unfinished(candidate):
                self.looked.add(token)
            elif not looked and self.measurer.further(candidate):
                self.tuned.add(token)

    def _until_deadline(
        self, wanted: Iterable[Candidate], cutoff: CostCutoff, hoped: Mapping[CallToken, float]
    ) -> Iterator[Candidate]:
        """Yield candidates until the deadline, marking each as requested. After the first one, those are left out whose
        optimistic times `hoped` are above their cutoff by then: no best plan can contain them."""
        for n, candidate in enumerate(wanted):
            if cutoff.ended():
                return
            if n and hoped.get(call_token(candidate), 0.0) > cutoff(candidate):
                continue
            self.requested.add(call_token(candidate))
            cutoff.register(candidate)
            yield candidate


def per_call(hypergraph: Hypergraph, prices: Sequence[Priced], function: Callable[[Candidate, Priced], T]) -> list[T]:
    """The value `function(candidate, price)` of every candidate; evaluated once for equal kernel calls, and once for
    all views."""
    candidates, (calls, which) = hypergraph.candidates, hypergraph.calls
    views = islice((i for i, k in enumerate(which) if k < 0), 1)
    found = [function(candidates[i], prices[i]) for i in chain(calls, views)]
    return [found[k] for k in which]


__all__ = ["MeasurementRequest", "MeasurementState", "per_call"]
