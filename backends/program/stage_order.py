"""Order of the stages of a persistent kernel: which stages each one waits for.

A stage conflicts with an earlier one if one of them writes memory that the other one reads or writes. Each of these pairs
must be ordered by a chain of waits: stages of a persistent kernel that do not wait for each other run at the same time. A wait
covers what the awaited stage itself waited for, because reports and waits are releases and acquires.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Bytes from `start` to before `stop` of a memory, such as the workspace."""

    memory: Hashable
    start: int = 0
    stop: int = 1

    def overlaps(self, other: Span) -> bool:
        """Whether both have a byte in common."""
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class Accesses:
    """Memory that a stage reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    def conflicts(self, later: Accesses) -> bool:
        """Whether a later stage must wait for this one."""
        return any(
            a.overlaps(b)
            for first, second in ((self.writes, later.reads), (self.writes, later.writes), (self.reads, later.writes))
            for a in first
            for b in second
        )


@dataclass(frozen=True)
class StageOrder:
    """`waits`: for each stage the earlier stages that it waits for."""

    waits: tuple[tuple[int, ...], ...]

    @property
    def most(self) -> int:
        """Largest number of stages that one waits for."""
        return max(map(len, self.waits), default=0)

    def before(self) -> list[set[int]]:
        """For each stage all stages that have ended when it begins."""
        found: list[set[int]] = []
        for waits in self.waits:
            found.append(set(waits).union(*(found[j] for j in waits)))
        return found


def order_of(stages: Sequence[Accesses]) -> StageOrder:
    """The fewest waits that order every conflict."""
    waits: list[tuple[int, ...]] = []
    before: list[set[int]] = []
    for i, stage in enumerate(stages):
        own: list[int] = []
        known: set[int] = set()
        for j in reversed(range(i)):  # later ones first: they cover earlier ones
            if j not in known and stages[j].conflicts(stage):
                own.append(j)
                known |= {j} | before[j]
        waits.append(tuple(own))
        before.append(known)
    found = StageOrder(tuple(waits))
    check_order(stages, found)
    return found


def check_order(stages: Sequence[Accesses], order: StageOrder) -> None:
    """Raise AssertionError if two conflicting stages are not ordered by waits."""
    for j, i in unordered(stages, order):
        raise AssertionError(f"stages {j} and {i} of a persistent kernel use the same memory without an order")


def unordered(stages: Sequence[Accesses], order: StageOrder) -> Iterable[tuple[int, int]]:
    """Pairs (earlier, later) of conflicting stages that waits do not order."""
    for i, before in enumerate(order.before()):
        for j in range(i):
            if j not in before and stages[j].conflicts(stages[i]):
                yield j, i
