"""Linear equations between unknown sizes: affine expressions with rational coefficients, solved as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm


@dataclass(frozen=True)
class Affine:
    """constant + sum of coefficient × unknown; `terms` is sorted and holds no zero."""

    terms: tuple[tuple[int, Fraction], ...]
    constant: Fraction

    @staticmethod
    def of(value: Affine | int) -> Affine:
        """An expression for a number."""
        return value if isinstance(value, Affine) else Affine((), Fraction(value))

    @staticmethod
    def unknown(number: int) -> Affine:
        """One unknown."""
        return Affine(((number, Fraction(1)),), Fraction(0))

    def __add__(self, other: Affine | int) -> Affine:
        return self.plus(Affine.of(other), Fraction(1))

    def __sub__(self, other: Affine | int) -> Affine:
        return self.plus(Affine.of(other), Fraction(-1))

    def __mul__(self, factor: int | Fraction) -> Affine:
        return Affine((), Fraction(0)).plus(self, Fraction(factor))

    def plus(self, other: Affine, factor: Fraction) -> Affine:
        """self + factor × other."""
        total = dict(self.terms)
        for u, c in other.terms:
            total[u] = total.get(u, Fraction(0)) + factor * c
        return Affine(tuple(sorted((u, c) for u, c in total.items() if c)), self.constant + factor * other.constant)

    @property
    def number(self) -> Fraction | None:
        """The value, if no unknown is left."""
        return None if self.terms else self.constant

    def at(self, values: Mapping[int, int]) -> Fraction:
        """The value at numbers for the unknowns."""
        return sum((c * values[u] for u, c in self.terms), self.constant)

    def ratio(self, other: Affine) -> Fraction | None:
        """The factor by which this is the other, None if they are not proportional or the other is zero."""
        lead = other.terms[0] if other.terms else None
        if lead is None:
            return self.constant / other.constant if other.constant and not self.terms else None
        factor = dict(self.terms).get(lead[0], Fraction(0)) / lead[1]
        return factor if self == other * factor else None


class Inconsistent(Exception):
    """The equations have no solution."""


class System:
    """Unknowns, and the equations between them: each equation eliminates one unknown."""

    def __init__(self) -> None:
        self.count = 0
        self.given: dict[int, Affine] = {}  # eliminated unknowns, in terms of the free ones
        self.eager: set[int] = set()  # unknowns that are eliminated first
        self.least: dict[int, int] = {}  # smallest value of an unknown

    def fresh(self, *, least: int = 1, eager: bool = False) -> Affine:
        """A new unknown."""
        number = self.count
        self.count += 1
        self.least[number] = least
        if eager:
            self.eager.add(number)
        return Affine.unknown(number)

    def reduce(self, expr: Affine) -> Affine:
        """The expression over free unknowns."""
        if not any(u in self.given for u, _ in expr.terms):
            return expr
        total = Affine((), expr.constant)
        for u, c in expr.terms:
            total = total.plus(self.given.get(u, Affine.unknown(u)), c)
        return total

    def equate(self, a: Affine | int, b: Affine | int) -> None:
        """a = b. Inconsistent if that cannot be."""
        rest = self.reduce(Affine.of(a) - Affine.of(b))
        if not rest.terms:
            if rest.constant:
                raise Inconsistent
            return
        scale = lcm(*(c.denominator for _, c in rest.terms))
        if (rest.constant * scale / gcd(*(int(c * scale) for _, c in rest.terms))).denominator != 1:
            raise Inconsistent  # the unknowns are whole numbers
        # eager ones first, then those with a factor of 1 (the others stay whole), the newest first
        pivot, factor = min(rest.terms, key=lambda t: (t[0] not in self.eager, abs(t[1]) != 1, -t[0]))
        value = Affine(tuple(t for t in rest.terms if t[0] != pivot), rest.constant) * (-1 / factor)
        for u, expr in self.given.items():
            c = dict(expr.terms).get(pivot)
            if c is not None:
                self.given[u] = Affine(tuple(t for t in expr.terms if t[0] != pivot), expr.constant).plus(value, c)
        self.given[pivot] = value

    @property
    def free(self) -> list[int]:
        """Unknowns that no equation gives."""
        return [u for u in range(self.count) if u not in self.given]
