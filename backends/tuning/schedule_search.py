"""Searches over the schedules (tuning parameters) of one kernel: ranked guesses first, then local search by
single-parameter moves.

Guesses are the first entries of the template's `space` and the best schedules of the same kernel at other shapes. Each
further round tries neighbours of the fastest two, by the moves that the schedule declares (generate/schedule.py);
parameters that paid off before come first. A kernel's first measurement (first look) tries only a few guesses: one with
and one without warp specialization, then the other first guesses if the result is not far above the cutoff. If similar
kernels were measured, it tries only their best schedule.

The search ends when `COUNT` schedules are measured, when nothing is left to try, or when the kernel is so far above the
cost cutoff `worth` (µs above which it is useless) that the remaining schedules are unlikely to reach it.

A search depends only on known results: an interrupted search can continue later, and a finished one proposes nothing.
No schedule is proposed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

Schedule = Mapping[str, int]  # in stored form (generate/schedule.py)
Key = tuple[tuple[str, int], ...]
Moves = Callable[[Schedule], Iterable[tuple[str, int, Schedule]]]  # (parameter, 1 grows or -1 shrinks, schedule)

COUNT = 16  # schedules measured per kernel and shape
SEEDS = 5  # ranked guesses measured first
LOOK = 3  # ranked guesses in a first look
ROUND = 7  # proposals per later round: as many as compile in parallel while the slowest one compiles
CENTRES = 2  # number of fastest schedules whose neighbours are tried in turn
NEAR = 1.15  # a schedule is also a centre if it takes at most this multiple of the fastest time
# Hoped-for improvement above the cutoff at the start; shrinks with every measured schedule. (On an H200 the best of
# five guesses took 1.07 times as long as the best of 24 on average, 1.7 times at most.)
SLACK = 0.75
# Multiple of the cutoff above which the first guess ends a look. (On an H200 the first guess took at most 1.5 times as
# long as the best of 16, 1.14 times on average.)
FAR = 1.5


def key_of_schedule(schedule: Schedule) -> Key:
    """Hashable form of a schedule, equal for equal schedules."""
    return tuple(sorted(schedule.items()))


@dataclass
class ScheduleSearch:
    """Autotuning search for one kernel at one shape.

    `ranked`: guesses, best first. `count`: number of schedules to measure. `fits`: legality of any schedule; None means
    only ranked ones are legal. `near`: best schedules at other shapes. `like`: best schedules of kernels with the same
    loops. `known`: µs of measured schedules, infinite for failures; `proposed`: schedules proposed so far. `moves`:
    neighbours of a schedule, legal or not; None means none. `form`: function from a schedule to its kind of code (with
    warp specialization or without); a first look tries one of each. `confirm`: schedules that were the fastest on
    another machine; tried before all others.
    """

    ranked: Sequence[Schedule]
    fits: Callable[[Schedule], bool] | None = None
    near: Sequence[Schedule] = ()
    count: int = COUNT
    known: dict[Key, float] = field(default_factory=dict)
    proposed: set[Key] = field(default_factory=set)
    like: Sequence[Schedule] = ()
    moves: Moves | None = None
    form: Callable[[Schedule], Hashable] | None = None
    confirm: Sequence[Schedule] = ()

    @property
    def measured(self) -> list[tuple[float, Key]]:
        """Successful measurements, fastest first, as (µs, schedule key)."""
        return sorted((us, key) for key, us in self.known.items() if us < math.inf)

    def record(self, schedule: Schedule, us: float) -> None:
        """Record the time of a schedule; infinite µs means failure."""
        self.known[key_of_schedule(schedule)] = us

    def more(self, worth: float = math.inf, *, look: bool = False) -> list[Schedule]:
        """Propose the schedules to measure next; none when the search has ended.

        Results of earlier proposals must be recorded (`record`) before. `worth`: cost cutoff in µs. With `look`, the
        search ends after the first guesses if one of them succeeded.
        """
        return self._noted(self._first_look(worth) if look else self._wanted(worth), self.remaining)

    @property
    def remaining(self) -> int:
        """Number of schedules that may still be proposed. Up to `count` failures do not count towards `count`."""
        return min(self.count - len(self.measured), 2 * self.count - len(self.known))

    @property
    def unfinished(self) -> bool:
        """Whether schedules are left to propose."""
        return self.remaining > 0 and (any(map(self._open, self.ranked)) or bool(self._wanted(math.inf)))

    def ahead(self) -> list[Schedule]:
        """Likely next proposals given current results, to be compiled early. They do not count as proposed."""
        under_way = len(self.proposed - self.known.keys())
        return self._wanted(math.inf)[: max(0, self.remaining - under_way)] if self.measured else []

    def _first_look(self, worth: float) -> list[Schedule]:
        """The schedules of a first look: the best guess of each kind of code (`form`), then the other first guesses if
        the fastest result is not far above the cutoff `worth`.
        """
        if worth <= 0:
            return []
        if again := list(filter(self._open, self.confirm)):
            return again
        guesses = [*self.like[:1], *self.near, *self.ranked[:LOOK]][: LOOK + bool(self.near)]
        left = [s for s in guesses if self._open(s)]
        if self.measured:
            further = not self.like and len(left) < len(guesses) and self.measured[0][0] <= FAR * worth
            return left if further else []
        if self.known or not left:  # all trials failed so far
            return left or self._wanted(worth)
        if self.like:
            return left[:1]
        first: dict[Hashable, Schedule] = {}
        for s in left:
            first.setdefault(self.form(s) if self.form is not None else None, s)
        return list(first.values())

    def _noted(self, wanted: Iterable[Schedule], most: int) -> list[Schedule]:
        found: list[Schedule] = []
        for schedule in wanted:
            key = key_of_schedule(schedule)
            if len(found) < most and key not in self.known and key not in self.proposed:
                self.proposed.add(key)
                found.append(dict(schedule))
        return found

    def _wanted(self, worth: float) -> list[Schedule]:
        if worth <= 0 or self._hopeless(worth):
            return []
        if again := list(filter(self._open, self.confirm)):
            return again
        guesses = self.ranked[: SEEDS - len(self.like)]
        seeds = [s for s in (*self.like, *self.near, *guesses) if self._open(s)]
        if not self.measured and seeds:
            return seeds
        moved = islice(self._neighbours(), ROUND) if self.fits else ()
        return list(islice(chain(seeds, moved, filter(self._open, self.ranked)), ROUND))

    def _open(self, schedule: Schedule) -> bool:
        key = key_of_schedule(schedule)
        return key not in self.known and key not in self.proposed

    def _hopeless(self, worth: float) -> bool:
        """Whether the fastest schedule is too far above the cutoff for the remaining schedules to reach it."""
        found = self.measured
        return bool(found) and found[0][0] > worth * (1 + SLACK * (1 - len(found) / self.count))

    def _neighbours(self) -> Iterator[Schedule]:
        """Legal untried neighbours of the two fastest schedules in turn, then of the next two, and so on."""
        found = self.measured
        near = iter([dict(key) for us, key in found if us <= NEAR * found[0][0]])
        seen: set[Key] = set()
        gains = self._gains()
        while neighbours := [self._around(centre, gains) for centre in islice(near, CENTRES)]:
            yield from self._in_turn(neighbours, seen)

    def _in_turn(self, found: list[Iterator[Schedule]], seen: set[Key]) -> Iterator[Schedule]:
        """Round-robin over the iterators, without duplicates."""
        while found:
            for neighbours in list(found):
                step = next(neighbours, None)
                if step is None:
                    found.remove(neighbours)
                elif key_of_schedule(step) not in seen:
                    seen.add(key_of_schedule(step))
                    yield step

    def _around(self, centre: Schedule, gains: Mapping[tuple[str, int], float]) -> Iterator[Schedule]:
        """Legal untried neighbours of a schedule, ordered by the gain of their move (`_gains`), smallest log ratio
        first."""
        assert self.fits is not None
        steps = [move for move in self._moves(centre) if self._open(move[2])]
        steps.sort(key=lambda move: gains.get(move[:2], 0.0))
        return filter(self.fits, (schedule for *_, schedule in steps))

    def _moves(self, schedule: Schedule) -> Iterable[tuple[str, int, Schedule]]:
        return self.moves(schedule) if self.moves is not None else ()

    def _gains(self) -> dict[tuple[str, int], float]:
        """Mean log ratio of the times after and before a move, by (parameter, direction), over measured pairs of
        schedules that are one move apart."""
        pairs: dict[tuple[str, int], list[float]] = {}
        for key, us in self.known.items():
            if us == math.inf:
                continue
            for parameter, direction, other in self._moves(dict(key)):
                then = self.known.get(key_of_schedule(other), math.inf)
                if then < math.inf:
                    pairs.setdefault((parameter, direction), []).append(math.log(then / us))
        return {step: sum(found) / len(found) for step, found in pairs.items()}
