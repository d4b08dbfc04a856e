"""Which schedules of a kernel to measure: good guesses first, then single-parameter moves from the best that were measured.

The guesses are the best ranked ones (the template's `space`) and what was best for the same kernel in other shapes. Each further
round takes the neighbours of the two fastest: one parameter halved or doubled (`stages`: one more or less), the neighbours of
parameters that have moved well first. A first look at a kernel is fewer guesses and no more than that: one of each form (with
roles, without), and the others only where that one is not far from being of use; or, where kernels like it were measured, what
was best in them. The search ends when `COUNT` schedules are measured, when nothing is left to try, or when the kernel is so far from `worth` (the µs from which on it is of no use) that what
is left will not bring it there.

A search is a function of what is known: from the same results it proposes the same, so that one that was cut goes on later, and
one that had ended proposes nothing. It never proposes a schedule twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

Schedule = Mapping[str, int]
Key = tuple[tuple[str, int], ...]

COUNT = 16  # schedules of a kernel and shape that are measured
SEEDS = 5  # ranked guesses that are measured first
LOOK = 3  # of them in a first look
ROUND = 7  # schedules proposed together after that: as many as compile side by side in the time that the slowest takes
CENTRES = 2  # measured schedules whose neighbours are tried in turn
NEAR = 1.15  # times the fastest one's time that others may take whose neighbours are tried
SLACK = 0.75  # share above `worth` that is hoped for at first; less with every schedule measured. (On an H200 the best of five
# guesses took 1.07 times as long as the best of 24 on average, 1.7 times at most.)
FAR = 1.5  # times `worth` from which on a first guess ends a look. (On an H200 the first guess took at most 1.5 times as long as the
# best of 16, 1.14 times on average.)
FIXED = ("join", "precision")  # parameters that stay as they are
SWITCHES = ("boxes", "inside", "walk", "early", "beside")  # parameters that are there or not


def key_of_schedule(schedule: Schedule) -> Key:
    """The schedule as a key: equal for equal schedules."""
    return tuple(sorted(schedule.items()))


def moves(schedule: Schedule) -> Iterator[Schedule]:
    """All schedules one step away, legal or not: switches turned (first: what they gain holds for most other steps too), each
    parameter doubled and halved, `stages` by one. Depths (k0, k1, …) that are equal also move together, and the columns with
    them if they are equal too: kernels whose loops are shared need that. Where nothing is split, two parts are a step away; parts
    are joined by the last program."""
    for name in SWITCHES:
        yield {k: v for k, v in schedule.items() if k != name} if name in schedule else {**schedule, name: 1}
    for name, value in schedule.items():
        if name in FIXED or name in SWITCHES:
            continue
        for other in (value + 1, value - 1) if name == "stages" else (2 * value, value // 2):
            if other == 1 and name == "split":
                yield {k: v for k, v in schedule.items() if k not in ("split", "join")}
            elif other >= 1:
                yield {**schedule, name: other}
    deepest = max((v for k, v in schedule.items() if k[0] == "k"), default=1)
    depths = [k for k, v in schedule.items() if k[0] == "k" and v == deepest]
    for names in (depths, [*depths, "n"]) if depths else ():
        if len(names) > 1 and all(schedule.get(k) == deepest for k in names):
            yield {**schedule, **dict.fromkeys(names, 2 * deepest)}
            if deepest > 1:
                yield {**schedule, **dict.fromkeys(names, deepest // 2)}
    if "split" not in schedule:
        yield {**schedule, "split": 2, "join": 1}


@dataclass
class ScheduleSearch:
    """The search of one kernel in one shape.

    `ranked`: guesses, the best first. `fits` says of any schedule whether it is legal; None: only ranked ones are. `near`: what
    was best in other shapes; `like`: what was best in kernels whose loops are the same. `known`: µs of each schedule measured so far, infinite for those that failed.
    """

    ranked: Sequence[Schedule]
    fits: Callable[[Schedule], bool] | None = None
    near: Sequence[Schedule] = ()
    count: int = COUNT
    known: dict[Key, float] = field(default_factory=dict)
    proposed: set[Key] = field(default_factory=set)
    like: Sequence[Schedule] = ()

    @property
    def measured(self) -> list[tuple[float, Key]]:
        """(µs, schedule) of what did not fail, the fastest first."""
        return sorted((us, key) for key, us in self.known.items() if us < math.inf)

    def told(self, schedule: Schedule, us: float) -> None:
        """What a schedule takes; infinite: it failed."""
        self.known[key_of_schedule(schedule)] = us

    def more(self, worth: float = math.inf, *, look: bool = False) -> list[Schedule]:
        """The schedules to measure now, none when the search has ended; what was proposed before is told by now, or lost. With
        `look`, it ends with the first guesses, if anything is known then of how fast the kernel is."""
        return self._noted(self._looked(worth) if look else self._wanted(worth), self.room)

    @property
    def room(self) -> int:
        """How many schedules more may be measured; of those that fail, as many again."""
        return min(self.count - len(self.measured), 2 * self.count - len(self.known))

    @property
    def unfinished(self) -> bool:
        """Whether there is something to propose."""
        return self.room > 0 and (any(map(self._open, self.ranked)) or bool(self._wanted(math.inf)))

    def ahead(self) -> list[Schedule]:
        """What may be proposed next, by what is known already: worth getting ready, not measuring. Nothing is noted."""
        under_way = len(self.proposed - self.known.keys())
        return self._wanted(math.inf)[: max(0, self.room - under_way)] if self.measured else []

    def _looked(self, worth: float) -> list[Schedule]:
        """The best guess of each form; then the other first guesses, if what is known makes them worth it."""
        if worth <= 0:
            return []
        guesses = [*self.like[:1], *self.near, *self.ranked[:LOOK]][: LOOK + bool(self.near)]
        left = [s for s in guesses if self._open(s)]
        if self.measured:
            further = not self.like and len(left) < len(guesses) and self.measured[0][0] <= FAR * worth
            return left if further else []
        if self.known or not left:  # what was tried has failed
            return left or self._wanted(worth)
        if self.like:
            return left[:1]
        first: dict[bool, Schedule] = {}
        for s in left:
            first.setdefault(bool(s.get("roles")), s)
        return list(first.values())

    def _noted(self, wanted: Iterable[Schedule], room: int) -> list[Schedule]:
        found: list[Schedule] = []
        for schedule in wanted:
            key = key_of_schedule(schedule)
            if len(found) < room and key not in self.known and key not in self.proposed:
                self.proposed.add(key)
                found.append(dict(schedule))
        return found

    def _wanted(self, worth: float) -> list[Schedule]:
        if worth <= 0 or self._hopeless(worth):
            return []
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
        """Whether the fastest one is further from `worth` than the schedules left can be hoped to make good."""
        found = self.measured
        return bool(found) and found[0][0] > worth * (1 + SLACK * (1 - len(found) / self.count))

    def _neighbours(self) -> Iterator[Schedule]:
        """Legal, untried schedules one step from the fastest, in turn with those of the second one if it is near; then of the next two,
        and so on."""
        found = self.measured
        near = iter([dict(key) for us, key in found if us <= NEAR * found[0][0]])
        seen: set[Key] = set()
        while ways := [self._around(centre) for centre in islice(near, CENTRES)]:
            yield from self._in_turn(ways, seen)

    def _in_turn(self, ways: list[Iterator[Schedule]], seen: set[Key]) -> Iterator[Schedule]:
        """One of each way, again and again; none twice."""
        while ways:
            for way in list(ways):
                step = next(way, None)
                if step is None:
                    ways.remove(way)
                elif key_of_schedule(step) not in seen:
                    seen.add(key_of_schedule(step))
                    yield step

    def _around(self, centre: Schedule) -> Iterator[Schedule]:
        """A centre's legal untried neighbours; those whose parameter and direction were tried elsewhere with most gain first."""
        assert self.fits is not None
        gains = self._gains()
        steps = sorted(filter(self._open, moves(centre)), key=lambda s: gains.get(_step(centre, s), 0.0))
        return filter(self.fits, steps)

    def _gains(self) -> dict[tuple[str, int], float]:
        """(parameter, direction) -> mean log of the times after and before, over all pairs measured that are a step apart."""
        pairs: dict[tuple[str, int], list[float]] = {}
        for key, us in self.known.items():
            if us == math.inf:
                continue
            for other in moves(dict(key)):
                then = self.known.get(key_of_schedule(other), math.inf)
                if then < math.inf:
                    pairs.setdefault(_step(dict(key), other), []).append(math.log(then / us))
        return {step: sum(found) / len(found) for step, found in pairs.items()}


def _step(before: Schedule, after: Schedule) -> tuple[str, int]:
    """Which parameter a move changes, and whether it grows."""
    for name in dict.fromkeys((*before, *after)):
        absent = 0 if name in SWITCHES else 1
        was, now = before.get(name, absent), after.get(name, absent)
        if name not in FIXED and was != now:
            return name, 1 if now > was else -1
    return "", 0
