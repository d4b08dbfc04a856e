"""Finds other kernels for the places of a choice's kernels: the same kernel with another schedule, or another kernel
that computes the same values from the same operands. All equal kernels of a choice are exchanged together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..model.kernel import Candidate
from ..model.pricing import Priced
from .search import Choice

Measured = Callable[[Candidate], Sequence[Priced]]  # the prices of a candidate's measured schedules, fastest first
Wanted = Callable[[Candidate], bool]
FAR = 2  # schedules that differ in so many parameters from all before them come first
ONCE = 0.1  # share of a model's time from which a kernel that occurs once counts
LAUNCHING = frozenset(["early", "warm"])  # parameters of the launch, which are not counted as differences


@dataclass(frozen=True)
class Swap:
    """Other kernels in the places of some equal kernels of a choice, all with one schedule.

    `places`: index of a chosen candidate -> index of the candidate in its place, which may be the same. `price`: price
    of the latter, with its schedule.
    """

    places: Mapping[int, int]
    price: Priced

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Key that is equal for equal exchanges in one choice: the places of the kernels, and the new schedule."""
        return (*sorted(self.places.values()), self.price.schedule)

    def applied(self, choice: Choice) -> Choice:
        """The choice with the kernels exchanged."""
        prices = list(choice.prices)
        for i in self.places.values():
            prices[i] = self.price
        made = replace(choice, chosen=[self.places.get(i, i) for i in choice.chosen], prices=prices)
        return replace(made, extraction=replace(choice.extraction, cost=made.cost, optimal=False))

    def text(self, choice: Choice) -> str:
        """Number and name of the kernels, type of their result, and schedule."""
        made = choice.hypergraph.candidates[next(iter(self.places.values()))]
        schedule = " ".join(f"{k}={v}" for k, v in self.price.schedule)
        return f"{len(self.places)} x {made.template.name} {made.call.output.type}: {schedule}"


class Swaps:
    """Other kernels for the kernels of choices of one hypergraph."""

    def __init__(self, choice: Choice) -> None:
        self.candidates = choice.hypergraph.candidates
        self.makers: dict[int, list[int]] = defaultdict(list)  # e-class -> the candidates that make it
        for i, c in enumerate(self.candidates):
            for vertex in c.outputs:
                self.makers[vertex.cls].append(i)

    def groups(self, choice: Choice, share: float) -> list[list[int]]:
        """The kernels of a choice, as lists of equal ones, those that take most time first; without those that take
        less than a `share` of it together, or than `ONCE` of it if they occur once. Empty if none occurs several times.
        """
        found: dict[Any, list[int]] = defaultdict(list)
        for i in choice.chosen:
            if not self.candidates[i].is_view:
                found[_kernel(self.candidates[i])].append(i)
        times = choice.hypergraph.weights  # of a short form's kernels, how often the whole model has them
        timed = [(sum(times[i] * choice.prices[i].us for i in g), sum(times[i] for i in g), g) for g in found.values()]
        total = sum(us for us, _, _ in timed)
        wanted = [
            (count, g) for us, count, g in sorted(timed, reverse=True) if us >= (share if count > 1 else ONCE) * total
        ]
        return [g for _, g in wanted] if any(count > 1 for count, _ in wanted) else []

    def others(self, group: Sequence[int]) -> list[dict[int, int]]:
        """For each kernel that can be in the places of a group: its index for each index of the group. The kernel of
        the group comes first."""
        made = [{i: i for i in group}]
        kernels = {i: {_kernel(self.candidates[j]): j for j in self._in_place_of(i)} for i in group}
        for kernel, other in kernels[group[0]].items():
            alike = {i: known[kernel] for i, known in kernels.items() if kernel in known}
            made += [alike] if other != group[0] and len(alike) == len(group) else []
        return made

    def _in_place_of(self, index: int) -> list[int]:
        """The candidates that read and make the same vertices as one of them."""
        place = _place(self.candidates[index])
        return [j for j in self.makers[self.candidates[index].output.cls] if _place(self.candidates[j]) == place]

    def unmeasured(
        self, choice: Choice, group: Sequence[int], measured: Measured, wanted: Wanted, gap: float
    ) -> list[int]:  # fmt: skip
        """The candidates, equal ones, that are predicted to be the fastest of the `wanted` ones that can be in the
        places of a group. Empty if wanted ones were measured, or if all take over (1 + `gap`) times the time of the
        group's kernel."""
        first, us = group[0], choice.prices
        known = [o for o in self.others(group) if wanted(self.candidates[o[first]])]
        best = min(known, key=lambda o: us[o[first]].us, default=None)
        if best is None or any(measured(self.candidates[o[first]]) for o in known):
            return []
        return list(best.values()) if us[best[first]].us <= (1 + gap) * us[first].us else []

    def swaps(
        self, choice: Choice, group: Sequence[int], measured: Measured, *, count: int,
        gap: float, rank: Callable[[Candidate, Priced], int] = lambda candidate, price: 0,
        tried: Collection[tuple[Hashable, ...]] = (),
    ) -> list[Swap]:  # fmt: skip
        """At most `count` exchanges of a group of equal kernels for measured ones that take at most (1 + `gap`) times
        the time of the fastest of them: such that differ much from all before them first, each in the order of their
        `rank`, then of their times; without those whose `key` is among the `tried` ones."""
        known = [Swap(o, p) for o in self.others(group) for p in measured(self.candidates[o[group[0]]])]
        now = Swap({i: i for i in group}, choice.prices[group[0]])
        limit = (1 + gap) * min((s.price.us for s in known), default=0.0)
        near = [s for s in known if s.price.us <= limit and s.key != now.key and s.key not in tried]
        near.sort(key=lambda s: (rank(self.candidates[s.places[group[0]]], s.price), s.price.us))
        return list(islice(_diverse(near, group[0], now), count))


def _diverse(swaps: Sequence[Swap], first: int, now: Swap) -> Iterator[Swap]:
    """Yields the exchanges that differ much from all before them and from `now`, then the others, both in the order
    given."""
    before, rest = [now], list[Swap]()
    for s in swaps:
        if all(s.places[first] != b.places[first] or _distance(s, b) >= FAR for b in before):
            before.append(s)
            yield s
        else:
            rest.append(s)
    yield from rest


def _distance(one: Swap, other: Swap) -> int:
    """Number of parameters in which two schedules differ."""
    return len({name for name, _ in set(one.price.schedule) ^ set(other.price.schedule)} - LAUNCHING)


def _kernel(candidate: Candidate) -> Any:
    """Key of a kernel call, equal wherever in the graph the call is."""
    call = candidate.call
    return candidate.template.identity, tuple((o.type, o.strides) for o in call.buffers.values()), repr(call.attrs)


def _place(candidate: Candidate) -> Any:
    """The vertices that a candidate reads and makes."""
    return frozenset(candidate.outputs), frozenset(v for _, v in candidate.inputs)


__all__ = ["Measured", "Swap", "Swaps"]
