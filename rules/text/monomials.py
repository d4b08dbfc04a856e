"""Polynomials over symbolic elements: monomials whose factors are elements at symbolic indices, summed over some of
these indices (see `symbolic.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .linear_equations import ZERO, Affine

CONDITIONS = ("delta", "guard")  # factors with value 0 or 1


@dataclass(frozen=True)
class IndexPolynomial:
    """An affine symbolic index: `offset` plus the sum over `parts`, pairs (index variable, coefficient), of their
    products."""

    offset: Affine
    parts: tuple[tuple[int, int], ...] = ()

    def plus(self, other: IndexPolynomial, factor: int = 1) -> IndexPolynomial:
        """self + factor × other."""
        total = dict(self.parts)
        for v, c in other.parts:
            total[v] = total.get(v, 0) + factor * c
        return IndexPolynomial(
            self.offset + other.offset * factor, tuple(sorted((v, c) for v, c in total.items() if c))
        )

    def put(self, variable: int, value: IndexPolynomial) -> IndexPolynomial:
        """The index with `value` substituted for the index variable `variable`."""
        c = dict(self.parts).get(variable)
        if c is None:
            return self
        return IndexPolynomial(self.offset, tuple(p for p in self.parts if p[0] != variable)).plus(value, c)


@dataclass(frozen=True)
class Factor:
    """A factor of a monomial.

    `kind`: input (an element of an input), f (a scalar function of sums), max (maximum of sums), delta (1 where index =
    0, else 0), guard (1 where 0 <= index < size, else 0). `name`: of an input or function. `indices`: of an input's
    element, a delta or a guard. `sums`: operands of f or max, each a sum of monomials.
    """

    kind: str
    name: str = ""
    indices: tuple[IndexPolynomial, ...] = ()
    sums: tuple[Sum, ...] = ()
    bound: tuple[int, ...] = ()  # index variables of a maximum
    size: Affine = ZERO

    def put(self, variable: int, value: IndexPolynomial) -> Factor:
        """The factor with `value` substituted for the index variable `variable`."""
        indices = tuple(i.put(variable, value) for i in self.indices)
        sums = tuple(tuple(m.put(variable, value) for m in s) for s in self.sums)
        return Factor(self.kind, self.name, indices, sums, self.bound, self.size)


@dataclass(frozen=True)
class Monomial:
    """A product: coefficient × factors, summed over the index variables `bound` (summation indices)."""

    coefficient: Fraction
    factors: tuple[Factor, ...] = ()
    bound: tuple[int, ...] = ()

    def times(self, other: Monomial) -> Monomial:
        """The product of two monomials."""
        return Monomial(self.coefficient * other.coefficient, self.factors + other.factors, self.bound + other.bound)

    def put(self, variable: int, value: IndexPolynomial) -> Monomial:
        """The monomial with `value` substituted for the index variable `variable`."""
        return Monomial(self.coefficient, tuple(f.put(variable, value) for f in self.factors), self.bound)


Sum = tuple[Monomial, ...]


def never_negative(terms: Sum) -> bool:
    """Whether a sum is nonnegative by its form: its coefficients are positive, its factors values of relu or sigmoid,
    and squares."""

    def alone(factor: Factor) -> bool:
        if factor.kind == "max":
            return never_negative(factor.sums[0])
        return factor.kind in CONDITIONS or (factor.kind == "f" and factor.name in ("relu", "sigmoid"))

    return all(m.coefficient > 0 and all(alone(f) or m.factors.count(f) % 2 == 0 for f in m.factors) for m in terms)


def variables_of(factor: Factor) -> set[int]:
    """Index variables that occur in a factor of a monomial."""
    inner = {v for s in factor.sums for m in s for f in m.factors for v in variables_of(f)}
    return inner | {v for i in factor.indices for v, _ in i.parts}


def shared(terms: Sum) -> list[Factor]:
    """The delta and guard factors that all monomials share, on indices that are not bound."""
    first, *others = terms
    return [f for f in first.factors if f.kind in CONDITIONS and all(f in m.factors for m in others)
            and not any(v in m.bound for m in terms for i in f.indices for v, _ in i.parts)]  # fmt: skip


def without(factors: tuple[Factor, ...], some: Sequence[Factor]) -> tuple[Factor, ...]:
    """The factors that are not among `some`."""
    return tuple(f for f in factors if f not in some)


__all__ = [
    "CONDITIONS",
    "Factor",
    "IndexPolynomial",
    "Monomial",
    "Sum",
    "never_negative",
    "shared",
    "variables_of",
    "without",
]
