"""Typed terms of text rules (with a symbolic size for each axis), and backtracking over choices that the rule leaves
open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isqrt
from typing import Any

from .linear_equations import Affine
from .text_rule import Param

FACTORINGS = 12  # limit on factorizations per reshaped value


class Untypable(Exception):
    """Raised when a side has no value under the current choices, whatever the sizes."""


# ---------------------------------------------------------------- axes and typed terms
@dataclass(eq=False)
class TermAxis:
    """One axis of a term of a text rule: its size, and the two parts (`cut`) if it is a concatenation.

    `open`: a split of unknown position may still divide it into two parts, once.
    """

    size: Affine
    cut: tuple[TermAxis, TermAxis] | None = None
    open: bool = False
    same: tuple[TermAxis, ...] = ()  # the operands' axes that this axis stems from

    def cuts(self) -> list[tuple[TermAxis, TermAxis]]:
        """All concatenations from which this axis comes, directly or through its operands' axes, as (left part, right
        part)."""
        return [self.cut] if self.cut else [c for a in self.same for c in a.cuts()]

    def openings(self) -> list[TermAxis]:
        """The open axes (that a split may still divide) from which this axis comes, directly or through its operands'
        axes."""
        return [self] if self.open else [o for a in self.same for o in a.openings()]


@dataclass(eq=False)
class Typed:
    """A term of a text rule with a symbolic size for each axis. `numbers` holds further sizes that its semantics need
    (a cut, paddings)."""

    op: str
    axes: list[TermAxis]
    args: tuple[Typed, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Affine] = field(default_factory=dict)

    @property
    def sizes(self) -> list[Affine]:
        """Sizes of the axes."""
        return [a.size for a in self.axes]


def subterms(terms: Iterable[Typed]) -> list[Typed]:
    """The terms and all their subterms, each once."""
    found: dict[int, Typed] = {}
    rest = list(terms)
    while rest:
        term = rest.pop()
        if id(term) not in found:
            found[id(term)] = term
            rest += term.args
    return list(found.values())


# ---------------------------------------------------------------- choices
class Choices:
    """Backtracking enumeration: `choose` answers questions that are asked in the same order every time; `next` moves to
    the next untried combination of answers."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.sizes: list[int] = []
        self.at = 0

    def choose(self, options: Sequence[Any]) -> Any:
        """The answer to the next question: one of the options, by the current combination. Raises Untypable without
        options."""
        if not options:
            raise Untypable("no option is left")
        if self.at == len(self.taken):
            self.taken.append(0)
            self.sizes.append(len(options))
        found = options[self.taken[self.at]]
        self.at += 1
        return found

    def next(self) -> bool:
        """Move to the next combination of answers; returns False at the end."""
        del self.taken[self.at :], self.sizes[self.at :]
        self.at = 0
        while self.taken and self.taken[-1] + 1 == self.sizes[-1]:
            self.taken.pop()
            self.sizes.pop()
        if not self.taken:
            return False
        self.taken[-1] += 1
        return True


def factorings(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Factorizations of a number into `count` factors, balanced ones first; at most FACTORINGS for each first
    factor.
    """
    if count < 2:
        yield from [(number,) * count] if count or number == 1 else []
        return
    small = [d for d in range(1, min(isqrt(number), 1 << 12) + 1) if number % d == 0]
    each = number ** (1 / count)
    for first in sorted({*small, *(number // d for d in small)}, key=lambda d: (d == 1, max(d / each, each / d))):
        yield from ((first, *rest) for rest in islice(factorings(number // first, count - 1), FACTORINGS))


def perm_of(value: Param) -> tuple[int, ...] | None:
    """A permutation written as d1_d2…, as decimal digits, or as TASO's number (digits to the base of the rank).

    None if the value is not a permutation.
    """
    if isinstance(value, tuple):
        return value if sorted(value) == list(range(len(value))) else None
    assert isinstance(value, int)
    found = tuple(map(int, str(value)))
    if len(found) > 1 and sorted(found) == list(range(len(found))):
        return found
    for base in (2, 3, 4, 5):
        digits, rest = [], value
        for _ in range(base):
            rest, digit = divmod(rest, base)
            digits.append(digit)
        if not rest and sorted(digits) == list(range(base)):
            return tuple(digits[::-1])
    return None


__all__ = ["FACTORINGS", "Choices", "TermAxis", "Typed", "Untypable", "factorings", "perm_of", "subterms"]
