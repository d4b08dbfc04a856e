"""Solves linear equations between unknown integer sizes: affine, with rational coefficients, incrementally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

Rational = int | Fraction  # integral values are ints: most values are, and ints are faster


def quotient(a: Rational, b: Rational) -> Rational:
    """a / b, as an int if it is integral, else as a Fraction."""
    if type(a) is int and type(b) is int and b and a % b == 0:
        return a // b
    found = Fraction(a) / Fraction(b)
    return int(found) if found.denominator == 1 else found


@dataclass(frozen=True)
class Affine:
    """An affine expression: constant + sum of coefficient × unknown.

    `terms` is sorted by unknown and has no zero coefficients.
    """

    terms: tuple[tuple[int, Rational], ...]
    constant: Rational

    @staticmethod
    def of(value: Affine | int) -> Affine:
        """The expression for an int; an Affine is returned unchanged."""
        return value if isinstance(value, Affine) else Affine((), value)

    @staticmethod
    def unknown(number: int) -> Affine:
        """The expression that is the unknown with this number."""
        return Affine(((number, 1),), 0)

    def __add__(self, other: Affine | int) -> Affine:
        return self.plus(Affine.of(other), 1)

    def __sub__(self, other: Affine | int) -> Affine:
        return self.plus(Affine.of(other), -1)

    def __mul__(self, factor: Rational) -> Affine:
        return ZERO.plus(self, factor)

    def plus(self, other: Affine, factor: Rational) -> Affine:
        """The expression `self + factor × other`."""
        if not other.terms:
            return Affine(self.terms, self.constant + factor * other.constant) if other.constant else self
        if not self.terms and factor == 1:
            return Affine(other.terms, self.constant + other.constant) if self.constant else other
        total = dict(self.terms)
        for u, c in other.terms:
            total[u] = total.get(u, 0) + factor * c
        terms = [t for t in total.items() if t[1]]
        if len(terms) > 1:
            terms.sort()
        return Affine(tuple(terms), self.constant + factor * other.constant)

    @property
    def number(self) -> Rational | None:
        """The value if no unknown occurs, else None."""
        return None if self.terms else self.constant

    def at(self, values: Mapping[int, int]) -> Rational:
        """Value of the expression for given values of the unknowns."""
        found = self.constant
        for u, c in self.terms:
            found += c * values[u]
        return found

    def ratio(self, other: Affine) -> Rational | None:
        """Factor f with self == f × other; None if there is none or other is zero."""
        lead = other.terms[0] if other.terms else None
        if lead is None:
            return quotient(self.constant, other.constant) if other.constant and not self.terms else None
        factor = quotient(dict(self.terms).get(lead[0], 0), lead[1])
        return factor if self == other * factor else None


ZERO = Affine((), 0)


class Inconsistent(Exception):
    """Raised when the equations have no solution."""


class System:
    """A system of linear equations over integer unknowns, kept solved: each equation eliminates one unknown."""

    def __init__(self) -> None:
        self.count = 0
        self.given: dict[int, Affine] = {}  # eliminated unknowns, in terms of the free ones
        self.eager: set[int] = set()  # unknowns to eliminate first
        self.least: dict[int, int] = {}  # smallest value of each unknown
        self.most: dict[int, int] = {}  # largest value, for bounded unknowns (remainders)

    def fresh(self, *, least: int = 1, most: int | None = None, eager: bool = False) -> Affine:
        """Add a new integer unknown between `least` and `most` and return it; `eager` unknowns are eliminated before
        others."""
        number = self.count
        self.count += 1
        self.least[number] = least
        if most is not None:
            self.most[number] = most
        if eager:
            self.eager.add(number)
        return Affine.unknown(number)

    def reduce(self, expr: Affine) -> Affine:
        """The expression with each eliminated unknown replaced by its solution in terms of the others."""
        given = self.given
        if given.keys().isdisjoint([u for u, _ in expr.terms]):
            return expr
        constant, total = expr.constant, dict[int, Rational]()
        for u, c in expr.terms:
            if (known := given.get(u)) is None:
                total[u] = total.get(u, 0) + c
                continue
            constant += c * known.constant
            for v, k in known.terms:
                total[v] = total.get(v, 0) + c * k
        return Affine(tuple(sorted([t for t in total.items() if t[1]])), constant)

    def equate(self, a: Affine | int, b: Affine | int) -> None:
        """Add the equation a = b. Raises Inconsistent if the system then has no integer solution."""
        rest = self.reduce(Affine.of(a) - Affine.of(b))
        if not rest.terms:
            if rest.constant:
                raise Inconsistent
            return
        scale = lcm(*(c.denominator for _, c in rest.terms))
        if (rest.constant * scale) % gcd(*(int(c * scale) for _, c in rest.terms)):
            raise Inconsistent  # the unknowns are integers
        # pivot order: eager unknowns, then coefficients ±1 (other unknowns stay integral), no remainders if possible,
        # newest first
        pivot, factor = min(
            rest.terms, key=lambda t: (t[0] not in self.eager, abs(t[1]) != 1, t[0] in self.most, -t[0])
        )
        value = Affine(tuple(t for t in rest.terms if t[0] != pivot), rest.constant) * quotient(-1, factor)
        for u, expr in self.given.items():
            c = dict(expr.terms).get(pivot)
            if c is not None:
                self.given[u] = Affine(tuple(t for t in expr.terms if t[0] != pivot), expr.constant).plus(value, c)
        self.given[pivot] = value

    def settle(self) -> None:
        """Propagate the bounds of remainders: from 2 n - r = 2 m - s with r, s < 2 follow r = s and n = m.

        Raises Inconsistent if no solution is left.
        """
        while any(self._settled(u) for u in list(self.given)):
            pass
        for u, expr in self.given.items():
            value = expr.number
            if value is not None and not self.least[u] <= value <= self.most.get(u, value):
                raise Inconsistent

    def _settled(self, unknown: int) -> bool:
        """Splits one equation into bounded and unbounded parts; returns whether this gave a new equation.

        All unbounded terms are multiples of their gcd. If only one such multiple is within reach of the bounded part,
        both parts are fixed.
        """
        zero = Affine.unknown(unknown) - self.given[unknown]
        scale = lcm(*(c.denominator for _, c in zero.terms), zero.constant.denominator)
        terms = [(u, int(c * scale)) for u, c in zero.terms]
        small, constant = [(u, c) for u, c in terms if u in self.most], int(zero.constant * scale)
        step = gcd(*(c for u, c in terms if u not in self.most))
        if not small or step < 2:
            return False
        low = constant + sum(c * (self.least if c > 0 else self.most)[u] for u, c in small)
        high = constant + sum(c * (self.most if c > 0 else self.least)[u] for u, c in small)
        first, last = -(-low // step), high // step
        if first > last:
            raise Inconsistent
        part = self.reduce(Affine(tuple(small), constant - first * step))
        if first == last:
            self.equate(part, 0)
        return first == last and bool(part.terms)

    @property
    def free(self) -> list[int]:
        """Unknowns that are not eliminated."""
        return [u for u in range(self.count) if u not in self.given]
