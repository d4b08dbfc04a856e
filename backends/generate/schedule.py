"""Defines how schedules (tuning parameters of kernels) are declared: frozen dataclasses whose fields declare domain,
default, search moves and stored name.

A schedule class (`Schedule`) belongs to one strategy (generate/strategy.py). Everything that depends on which
parameters exist is derived from its fields: the stored form (parameter name -> integer, in cost stores, job files and
plans), the domain part of legality, the moves of the schedule search, and the table of docs/schedules.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

from ..ir.kernel import Kernel
from ..ir.tiling import Shape

Numbers = Mapping[str, int]  # the stored form of a schedule: parameter name -> integer
Key = tuple[tuple[str, int], ...]  # hashable stored form, sorted by name
Steps = Literal["scale", "step", "none"]
Kind = Literal["number", "flag", "depths", "sides"]


class Move(NamedTuple):
    """One step of the schedule search from a schedule to a neighbour: the parameter that changes, whether it grows (1)
    or shrinks (-1), and the new schedule (parameter name -> integer)."""

    parameter: str
    direction: int
    schedule: dict[str, int]


@dataclass(frozen=True)
class Domain:
    """Legal values of a schedule parameter, from `low` to `high` (None: unbounded) or one of `values`, and how the
    schedule search changes them.

    `powers`: only powers of two. `steps`: a move (one change that the search tries) doubles or halves the value
    ("scale"), adds or subtracts one ("step"), or keeps it ("none").
    """

    low: int = 1
    high: int | None = None
    powers: bool = False
    values: tuple[int, ...] = ()
    steps: Steps = "scale"

    def __contains__(self, value: int) -> bool:
        if self.values and value not in self.values:
            return False
        if value < self.low or (self.high is not None and value > self.high):
            return False
        return not self.powers or value & (value - 1) == 0

    def neighbours(self, value: int) -> tuple[int, ...]:
        """The values that one move of the schedule search leads to from `value`, the larger one first; they may be
        outside of the domain."""
        if self.steps == "none":
            return ()
        return (value + 1, value - 1) if self.steps == "step" else (2 * value, value // 2)

    def __str__(self) -> str:
        if self.values:
            return ", ".join(map(str, self.values))
        kind = "powers of two" if self.powers else "integers"
        return f"{kind} from {self.low}" + (f" to {self.high}" if self.high is not None else "")


@dataclass(frozen=True)
class Parameter:
    """Declaration of a schedule parameter: `meaning`, a text for the documentation, and `domain`, its legal values.

    `kind`: "number"; "flag" (stored as 1 or not at all); "depths", one number per reduction axis (`k0`, `k1`, …); or
    "sides", one number for any of rows, columns and reduction axes (`tm`, `tn`, `t0`, …). `drops`: a move (one change
    that the schedule search tries) to 1 removes the parameter and the flags `companions`; the domain then begins at 2.
    `starts`: the value that a move gives a schedule without the parameter; the move also sets the flags `companions`.
    None: no move adds the parameter. `form`: whether the parameter selects another structure of the kernel's code (such
    as loads by TMA), which kernels with equal loops may not support. `common`: whether kernels with and without the
    parameter are about as fast, so that prices of one are predicted from measurements of the other
    (`COMMON` of costdb/price/related_kernels.py lists the same names).
    """

    meaning: str
    domain: Domain
    kind: Kind = "number"
    drops: bool = False
    starts: int | None = None
    companions: tuple[str, ...] = ()
    form: bool = False
    common: bool = False
    stored: str = ""  # name in the stored form (of families: the prefix); set by `declared`
    field: str = ""  # name of the dataclass field; set by `declared`
    required: bool = False  # whether every stored schedule has the parameter


FLAG = Domain(1, 1, steps="none")


def number(meaning: str, domain: Domain, *, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Field of a schedule class: a number that every stored schedule has (type int).

    `meaning`: text for the documentation. `domain`: its legal values. `default`: default of the dataclass field.
    `more`: further fields of `Parameter`.
    """
    return field(default=default, metadata={"parameter": Parameter(meaning, domain, required=True, **more)})


def optional(meaning: str, domain: Domain, **more: Any) -> Any:
    """Field of a schedule class: a number that may be absent (type int | None).

    `meaning`: text for the documentation. `domain`: its legal values. `more`: further fields of `Parameter`.
    """
    return field(default=None, metadata={"parameter": Parameter(meaning, domain, **more)})


def flag(meaning: str, *, fixed: bool = False, **more: Any) -> Any:
    """Field of a schedule class: a flag (type bool). The schedule search toggles it, unless it is `fixed`.

    `meaning`: text for the documentation. `more`: further fields of `Parameter`.
    """
    domain = FLAG if fixed else dataclasses.replace(FLAG, steps="scale")
    return field(default=False, metadata={"parameter": Parameter(meaning, domain, "flag", **more)})


def depths(meaning: str, domain: Domain, stored: str = "k") -> Any:
    """Field of a schedule class: one number per reduction axis (type tuple[int, ...]).

    `meaning`: text for the documentation. `domain`: legal values of each. `stored`: prefix of the names of the stored
    parameters (`k0`, `k1`, …).
    """
    return field(default=(), metadata={"parameter": Parameter(meaning, domain, "depths", stored=stored)})


def sides(meaning: str, domain: Domain, stored: str) -> Any:
    """Field of a schedule class: a number for any of rows (`m`), columns (`n`) and reduction axes (by index), as
    (dimension, number) pairs.

    `meaning`: text for the documentation. `domain`: legal values of each. `stored`: prefix of the names of the stored
    parameters (`tm`, `tn`, `t0`, …).
    """
    return field(default=(), metadata={"parameter": Parameter(meaning, domain, "sides", stored=stored)})


@dataclass(frozen=True)
class Schedule:
    """Base of schedules, the tuning parameters of a generated kernel. Subclasses are frozen dataclasses, one for each
    strategy (way to write kernels).

    `tag`: stored name, always with the value 1, that marks the schedules of one strategy; empty if the parameters'
    names suffice. `warp_specialized`: whether warps of a kernel have different roles; the first look of a search tries
    a schedule with and one without.
    """

    tag: ClassVar[str] = ""
    warp_specialized: ClassVar[bool] = False

    @classmethod
    def parse(cls, numbers: Numbers) -> Self | None:
        """The schedule of this class with the stored parameters `numbers` (name -> integer); None if a name is not a
        parameter of this class, or a required parameter is missing. Values need not be in their domains (`valid`)."""
        known = declared(cls)
        if cls.tag and numbers.get(cls.tag) != 1:
            return None
        found: dict[str, Any] = {}
        families: dict[str, dict[str, int]] = {}
        for name, value in numbers.items():
            if name == cls.tag:
                continue
            p = known.get(name)
            if p is not None and p.kind == "number":
                found[p.field] = value
            elif p is not None and p.kind == "flag" and value == 1:
                found[p.field] = True
            elif (p := known.get(name[:1])) is not None and p.kind in ("depths", "sides") and _suffix(p, name[1:]):
                families.setdefault(p.field, {})[name[1:]] = value
            else:
                return None
        for p in known.values():
            if p.kind == "depths":
                of = families.pop(p.field, {})
                if set(of) != {str(i) for i in range(len(of))}:
                    return None
                found[p.field] = tuple(of[str(i)] for i in range(len(of)))
            elif p.kind == "sides":
                found[p.field] = tuple(sorted(families.pop(p.field, {}).items()))
            elif p.required and p.field not in found:
                return None
        return cls(**found)

    def numbers(self) -> dict[str, int]:
        """The schedule as it is stored: parameter name -> integer, sorted by name."""
        return dict(self.key)

    @property
    def key(self) -> Key:
        """The schedule as it is stored, as a hashable tuple of (parameter name, integer)."""
        own, found = self.__dict__, [(self.tag, 1)] if self.tag else []
        for name, stored, kind in _layout(cast(Any, type(self))):
            value = own[name]
            if value is None or value is False:
                continue
            if kind == "depths":
                found += [(f"{stored}{i}", v) for i, v in enumerate(value)]
            elif kind == "sides":
                found += [(stored + d, v) for d, v in value]
            else:
                found.append((stored, int(value)))
        return tuple(sorted(found))

    def but(self, **changes: Any) -> Self:
        """A copy of the schedule with some fields changed; `dataclasses.replace` without its checks, since ranking
        models make many."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changes)
        return made

    @property
    def valid(self) -> bool:
        """Whether all values are in their domains: the part of legality that depends on no kernel."""
        for p in declared(type(self)).values():
            value = self.__dict__[p.field]
            if p.kind == "number":
                if value is not None and value not in p.domain:
                    return False
            elif p.kind != "flag":
                if any(v not in p.domain for v in (value if p.kind == "depths" else dict(value).values())):
                    return False
        return True

    # ------------------------------------------------------------ what other modules ask of any schedule
    @property
    def scratch_parts(self) -> int:
        """Number of parts of a split reduction whose partial results go through scratch memory; 1: not split."""
        return 1

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of a program's tile in a kernel with the axes that `shape` describes, from which
        recomputation is estimated.

        By default the fields `m` and `n`, or 1 where the schedule has no such field.
        """
        return self.__dict__.get("m", 1), self.__dict__.get("n", 1)

    def again(self, kernel: Kernel) -> float:
        """Flops of expensive elementwise values that `kernel` computes once more in a later pass over a row; by default
        0."""
        return 0.0

    @property
    def forms(self) -> frozenset[str]:
        """Names, as in stored measurements, of the parameters set in this schedule that select another structure of the
        kernel's code (`Parameter.form`); of a warp-specialized schedule its `tag`, too."""
        names = {p.stored for p in declared(type(self)).values() if p.form and self.__dict__[p.field]}
        return frozenset({*names, self.tag} if self.warp_specialized else names)

    # ------------------------------------------------------------ moves of the search
    def moves(self) -> Iterator[Move]:
        """Yields all schedules one move of the schedule search away, legal or not.

        Flags first, because their gain carries over to most other schedules; then each number; then equal depths of
        loops together; then parameters that are absent.
        """
        base, known = self.numbers(), declared(type(self))
        yield from _toggled(base, known.values())
        for name in base:
            p = known.get(name) or known.get(name[:1])
            if p is not None and p.kind != "flag":
                yield from _scaled(base, name, p)
        yield from self._deepened(base)
        for p in known.values():
            if p.starts is not None and p.stored not in base:
                yield Move(p.stored, 1, {**base, p.stored: p.starts, **dict.fromkeys(p.companions, 1)})

    def _deepened(self, base: dict[str, int]) -> Iterator[Move]:
        """Moves that double or halve all parameters of the largest depth together, also with `n` if it is equal;
        kernels with shared loops need equal depths."""
        family = next((p for p in declared(type(self)).values() if p.kind == "depths"), None)
        own = self.__dict__[family.field] if family is not None else ()
        deepest = max(own, default=1)
        names = [f"k{i}" for i, v in enumerate(own) if v == deepest]
        for group in (names, [*names, "n"]) if names else ():
            if len(group) > 1 and all(base.get(k) == deepest for k in group):
                first = min(group)
                yield Move(first, 1, {**base, **dict.fromkeys(group, 2 * deepest)})
                if deepest > 1:
                    yield Move(first, -1, {**base, **dict.fromkeys(group, deepest // 2)})


def _toggled(base: dict[str, int], known: Iterable[Parameter]) -> Iterator[Move]:
    """Moves that set or clear one flag."""
    for p in known:
        if p.kind == "flag" and p.domain.steps != "none":
            without = {k: v for k, v in base.items() if k != p.stored}
            yield Move(p.stored, -1, without) if p.stored in base else Move(p.stored, 1, {**base, p.stored: 1})


def _scaled(base: dict[str, int], name: str, p: Parameter) -> Iterator[Move]:
    """Moves to neighbouring values of one number."""
    value = base[name]
    for other in p.domain.neighbours(value):
        direction = 1 if other > value else -1
        if other == 1 and p.drops:
            yield Move(name, direction, {k: v for k, v in base.items() if k != name and k not in p.companions})
        elif other >= 1:
            yield Move(name, direction, {**base, name: other})


def _suffix(p: Parameter, text: str) -> bool:
    """Whether a text is a legal suffix of a stored name of a family: an index, or for "sides" also `m` or `n`."""
    return (text.isascii() and text.isdigit()) or (p.kind == "sides" and text in ("m", "n"))


def declared(schedule: type[Schedule]) -> dict[str, Parameter]:
    """The parameters that the class `schedule` declares, by stored name (several parameters of one field by their
    prefix), in the order of the fields."""
    return _declared(cast(Any, schedule))


@cache
def _declared(schedule: Any) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for f in dataclasses.fields(schedule):
        p: Parameter = f.metadata["parameter"]
        p = dataclasses.replace(p, stored=p.stored or f.name, field=f.name)
        found[p.stored] = p
    return found


@cache
def _layout(schedule: Any) -> tuple[tuple[str, str, Kind], ...]:
    """(field, stored name, kind) of each parameter."""
    return tuple((p.field, p.stored, p.kind) for p in declared(schedule).values())


class SplitSchedule(Schedule):
    """Base of schedules with a field `split`: the number of parts of a split reduction (split-K, split-KV), or None."""

    @property
    def scratch_parts(self) -> int:
        """Number of parts of a split reduction whose partial results go through scratch memory; 1: not split."""
        return self.__dict__["split"] or 1


__all__ = [
    "Domain",
    "Key",
    "Move",
    "Numbers",
    "Parameter",
    "Schedule",
    "SplitSchedule",
    "declared",
    "depths",
    "flag",
    "number",
    "optional",
    "sides",
]
