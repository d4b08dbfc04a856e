"""Defines strategies, the ways in which an emitter writes kernels, as a list of data that the emitter iterates over.

A strategy names its schedule class (generate/schedule.py), says for which kernels it offers candidate schedules, ranks
them, decides legality, and emits. `StrategyEmitter` derives from the list the methods that templates (kernels' patterns
and code) and the schedule search call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from ...errors import UsageError
from ..ir.kernel import PROBE, Kernel
from ..ir.precision import IEEE, Precision
from ..ir.row_update import reads_overwritten
from ..ir.tiling import Shape
from ..ir.unfusable import if_fusable
from .emitter import EmitterBase, Launch, Lowered
from .schedule import Move, Numbers, Schedule

COUNT = 16  # candidate schedules of a kernel
S = TypeVar("S", bound=Schedule)
Merge = Callable[[Sequence[Schedule], Sequence[Schedule], int], Sequence[Schedule]]


@dataclass(frozen=True)
class Request:
    """Request for the candidate schedules of `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction).

    `splits`: whether its longest reduction may be split (split-K). `precision`: input precision of float32 matrix
    products.
    """

    kernel: Kernel
    shape: Shape
    splits: bool
    precision: Precision = IEEE


def earlier_first(found: Sequence[Schedule], own: Sequence[Schedule], count: int) -> Sequence[Schedule]:
    """Merge the candidate schedules of earlier strategies (`found`; ways to write kernels) and of the present one
    (`own`): first the earlier ones. The last of `found` are dropped so that at most `count` schedules remain."""
    return [*found[: count - len(own)], *own]


def alternating(found: Sequence[Schedule], own: Sequence[Schedule], count: int) -> Sequence[Schedule]:
    """Merge the candidate schedules of earlier strategies (`found`; ways to write kernels) and of the present one
    (`own`): they alternate, so that a short search tries both. `count` does not limit the result."""
    return [s for pair in zip_longest(found, own) for s in pair if s is not None]


def every_third(found: Sequence[Schedule], own: Sequence[Schedule], count: int) -> Sequence[Schedule]:
    """Merge the candidate schedules of earlier strategies (`found`; ways to write kernels) and of the present one
    (`own`): two of the former, then one of the latter, and so on; at most `count` in all."""
    threes = zip_longest(found[::2], found[1::2], own)
    return [s for three in threes for s in three if s is not None][:count]


def ask_all(count: int, found: int) -> int:
    """How many candidate schedules to ask a strategy (way to write kernels) for: `count`, although earlier strategies
    gave `found` already."""
    return count


def ask_rest(count: int, found: int) -> int:
    """How many candidate schedules to ask a strategy (way to write kernels) for: `count` less the `found` ones that
    earlier strategies gave."""
    return count - found


def ask_if_none(count: int, found: int) -> int:
    """How many candidate schedules to ask a strategy (way to write kernels) for: `count` if earlier strategies gave
    none (`found` is 0), else 0."""
    return 0 if found else count


@dataclass(frozen=True)
class Strategy(Generic[S]):
    """One way to write kernels.

    `name` and `meaning` (a sentence) describe it in docs/schedules.md. `schedule`: its schedule class. `applies`:
    whether candidates are offered for a kernel. `ranked(request, count)`: at most `count` candidate schedules, the best
    guess of the ranking model first; raises Unfusable if the kernel cannot be written at all. `legal(kernel, shape,
    schedule, splits)`: whether any schedule of the class is legal. `emit(lowered, schedule, name)`: its launches, in
    execution order; raises Unfusable if the kernel cannot be emitted. `precisions`: names of the supported input
    precisions of float32 products. `wanted(count, found)`: number of candidates to ask for if earlier strategies found
    `found`; `merge(found, own, count)`: merges them with those of earlier strategies. `alone`: later strategies are not
    asked if this one has candidates. `masked`: whether the text for extents that a schedule's tiles do not divide is
    also right for extents below a tile. `sides`: whether results along a reduction axis (`Kernel.stored_sides`) can be
    stored. `updates`: whether kernels can be emitted that write a row into an operand which they read
    (ir/row_update.py). `adds`: whether results that are added to memory (`Kernel.adds`) can be emitted.
    `scans`: whether kernels with running sums (`Kernel.scans`) can be emitted; others are not offered to such a
    strategy. `tested`:
    whether `ranked` has emitted each of its schedules, or one that differs in numbers only, so that all of them can be
    emitted.
    """

    name: str
    meaning: str
    schedule: type[S]
    applies: Callable[[Kernel, Shape], bool]
    ranked: Callable[[Request, int], Sequence[S]]
    legal: Callable[[Kernel, Shape, S, bool], bool]
    emit: Callable[[Lowered, S, str], Sequence[Launch]]
    precisions: tuple[str, ...] = (IEEE.name,)
    wanted: Callable[[int, int], int] = ask_all
    merge: Merge = earlier_first
    alone: bool = False
    masked: Callable[[S], bool] = lambda schedule: False
    sides: bool = False
    updates: bool = False
    adds: bool = False
    scans: bool = False
    tested: bool = False


@dataclass
class StrategyEmitter(EmitterBase):
    """Emitter (generate/emitter.py) whose kernels are written by a list of strategies (ways to write kernels).

    A stored schedule belongs to the first strategy whose schedule class parses it.
    """

    strategies: tuple[Strategy[Any], ...] = field(default=(), kw_only=True)

    def candidates(self, request: Request, count: int = COUNT) -> Sequence[Schedule]:
        """At most `count` candidate schedules for the kernel of a request, best guess first; empty if no strategy
        applies."""
        found: Sequence[Schedule] = ()
        updates = reads_overwritten(request.kernel)
        for strategy in self.strategies:
            wanted = strategy.wanted(count, len(found))
            if wanted < 1 or request.precision.name not in strategy.precisions:
                continue
            if (request.kernel.stored_sides and not strategy.sides) or (updates and not strategy.updates):
                continue
            if (request.kernel.adds and not strategy.adds) or bool(request.kernel.scans) != strategy.scans:
                continue
            if strategy.applies(request.kernel, request.shape):
                own = strategy.ranked(request, wanted)
                found = strategy.merge(found, own, count) if own else found
                if own and strategy.alone:
                    break
        return found

    def find(self, schedule: Numbers) -> tuple[Strategy[Any], Schedule] | None:
        """(strategy, typed schedule) for `schedule` (parameter name -> integer): the way to write kernels that has
        these parameters; None if there is none."""
        for strategy in self.strategies:
            if (parsed := strategy.schedule.parse(schedule)) is not None:
                return strategy, parsed
        return None

    def parse(self, schedule: Numbers) -> Schedule:
        """The typed form of `schedule` (parameter name -> integer). Raises UsageError if its parameters are those of no
        strategy."""
        return self._found(schedule)[1]

    def _found(self, schedule: Numbers) -> tuple[Strategy[Any], Schedule]:
        found = self.find(schedule)
        if found is None:
            raise UsageError(
                f"no strategy has a schedule with the parameters {', '.join(sorted(schedule)) or '(none)'}",
                where=type(self).__name__,
                hint="docs/schedules.md lists the parameters of each strategy",
            )
        return found

    # ------------------------------------------------------------ Emitter
    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[dict[str, int]]:
        """Candidate schedules (parameter name -> integer) of `kernel`, best guess first; `shape`: roles of its axes
        (row, column, batch, reduction). `splits`: whether split reduction (split-K) is legal."""
        return self.rounding(kernel, shape, splits, IEEE)

    def rounding(self, kernel: Kernel, shape: Shape, splits: bool, precision: Precision) -> Sequence[dict[str, int]]:
        """Candidate schedules of float32 matrix products whose operands are rounded to the input `precision`; best
        guess first. `shape`: roles of the kernel's axes (row, column, batch, reduction). `splits`: whether split
        reduction (split-K) is legal."""
        return [s.numbers() for s in self.candidates(Request(kernel, shape, splits, precision))]

    def fits(self, kernel: Kernel, shape: Shape, schedule: Numbers, splits: bool) -> bool:
        """Whether `schedule` (parameter name -> integer) is legal: its parameters are those of a strategy, its values
        are in their domains, and that strategy accepts the kernel. `splits`: whether split reduction is legal."""
        found = self.find(schedule)
        if found is None or not found[1].valid or (kernel.adds and not found[0].adds):
            return False
        if bool(kernel.scans) != found[0].scans:
            return False
        return found[0].legal(kernel, shape, found[1], splits)

    def launches(self, found: Lowered, schedule: Mapping[str, int], name: str) -> Sequence[Launch]:
        """Emit the lowered kernel `found` in `schedule` (parameter name -> integer); returns its launches
        (`Emitter.launches`).

        Raises UsageError if no strategy has its parameters, Unfusable if the kernel cannot be emitted.
        """
        strategy, parsed = self._found(schedule)
        return strategy.emit(found, parsed, name)

    def emits(self, found: Lowered, schedule: Numbers) -> bool:
        """Whether the lowered kernel `found` can be emitted in `schedule` (`Emitter.emits`)."""
        strategy, parsed = self._found(schedule)
        return strategy.tested or if_fusable(strategy.emit, found, parsed, PROBE) is not None

    def moves(self, schedule: Numbers) -> Iterator[Move]:
        """Yields the changes of one parameter that the schedule search tries from `schedule`, legal or not; none if no
        strategy has its parameters."""
        found = self.find(schedule)
        return iter(()) if found is None else found[1].moves()

    def warp_specialized(self, schedule: Numbers) -> bool:
        """Whether warps have different roles (producers, consumers) in a kernel with this schedule."""
        found = self.find(schedule)
        return found is not None and found[1].warp_specialized

    def masked(self, schedule: Numbers) -> bool:
        """Whether the text emitted with `schedule` is also right for extents smaller than a tile (`Emitter.masked`)."""
        found = self.find(schedule)
        return found is not None and found[0].masked(found[1])


__all__ = [
    "COUNT",
    "Request",
    "Strategy",
    "StrategyEmitter",
    "alternating",
    "ask_all",
    "ask_if_none",
    "ask_rest",
    "earlier_first",
    "every_third",
]
