"""Symbolic sums, maxima and minima of terms over bound index variables, which represent elements of tensors in SMT
proofs (smt/prove.py).

A parameter `z` is the z3 module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from .solver import OutOfScope

TERMS = 64  # per sum


@dataclass(frozen=True)
class Total:
    """Symbolic sum of terms (bound, body): the expression `body` summed over the (index variable, size) pairs of
    `bound`, each index from 0 to size - 1."""

    terms: tuple[tuple[tuple[tuple[Any, Any], ...], Any], ...]

    @staticmethod
    def of(value: Any) -> Total:
        """The value as a sum: a z3 expression becomes a sum of one term without summation indices."""
        return value if isinstance(value, Total) else Total((((), value),))

    def map(self, f: Callable[[Any], Any]) -> Total:
        """The sum with a linear function `f` applied to the summand (body) of each term: f(sum of a) is the sum of
        f(a)."""
        return Total(tuple((bound, f(body)) for bound, body in self.terms))

    def plus(self, other: Total) -> Total:
        """Sum of two symbolic sums."""
        return Total(self.terms + other.terms)

    def times(self, other: Total) -> Total:
        """Product of two symbolic sums, term by term; their index variables must be distinct.

        Raises OutOfScope if there are too many terms.
        """
        if len(self.terms) * len(other.terms) > TERMS:
            raise OutOfScope("too many products")
        return Total(tuple((a + b, x * y) for a, x in self.terms for b, y in other.terms))

    def over(self, *indices: tuple[Any, Any]) -> Total:
        """The sum over further (index variable, size) pairs."""
        return Total(tuple((indices + bound, body) for bound, body in self.terms))


@dataclass(frozen=True)
class Extreme:
    """Symbolic maximum (`most`) or minimum of a set of values.

    Each term is (bound, condition, body): the values of the body at all indices that satisfy the condition. `some`
    means that the set is known to be nonempty.
    """

    most: bool
    terms: tuple[tuple[tuple[tuple[Any, Any], ...], Any, Any], ...]
    some: bool = False

    def map(self, f: Callable[[Any], Any], turned: bool = False) -> Extreme:
        """The maximum with an increasing function `f` applied to every value; with `turned`, `f` is decreasing, and the
        maximum becomes a minimum."""
        return Extreme(
            self.most != turned, tuple((bound, condition, f(body)) for bound, condition, body in self.terms), self.some
        )

    def only(self, z: Any, condition: Any) -> Extreme:
        """The same maximum or minimum over only those values that also satisfy `condition`."""
        return Extreme(self.most, tuple((bound, z.And(c, condition), body) for bound, c, body in self.terms))


Many = Total | Extreme


# ---------------------------------------------------------------- z3 terms
def factors(z: Any, expr: Any, up: int = 1) -> list[tuple[Any, int]]:
    """The factors of the z3 term `expr`, each with its exponent: `up`, or `-up` for divisors."""
    if z.is_mul(expr):
        return [f for e in expr.children() for f in factors(z, e, up)]
    if z.is_div(expr):
        return factors(z, expr.arg(0), up) + factors(z, expr.arg(1), -up)
    return [] if z.is_rational_value(expr) and expr.as_fraction() == 1 else [(expr, up)]


def summands(z: Any, expr: Any, sign: int = 1) -> list[tuple[Any, int]]:
    """The summands of the z3 term `expr`, each with its sign (times `sign`)."""
    if z.is_add(expr):
        return [f for e in expr.children() for f in summands(z, e, sign)]
    if z.is_sub(expr):
        first, *others = expr.children()
        return summands(z, first, sign) + [f for e in others for f in summands(z, e, -sign)]
    if z.is_app_of(expr, z.Z3_OP_UMINUS):
        return summands(z, expr.arg(0), -sign)
    if (
        z.is_mul(expr)
        and expr.num_args() == 2
        and z.is_rational_value(expr.arg(0))
        and abs(expr.arg(0).as_fraction()) == 1
    ):
        return summands(z, expr.arg(1), sign * int(expr.arg(0).as_fraction()))
    return [] if z.is_rational_value(expr) and expr.as_fraction() == 0 else [(expr, sign)]


def product_of(z: Any, parts: Sequence[tuple[Any, int]]) -> Any:
    """The z3 product of pairs (factor, exponent) as `factors` gives them; a negative exponent divides."""
    return reduce(lambda found, p: found * p[0] if p[1] > 0 else found / p[0], parts, z.RealVal(1))


def sum_of(z: Any, parts: Sequence[tuple[Any, int]]) -> Any:
    """The z3 sum of pairs (summand, sign) as `summands` gives them."""
    return reduce(lambda found, p: found + p[0] if p[1] > 0 else found - p[0], parts, z.RealVal(0))


def bodies(value: Many) -> list[Any]:
    """All z3 expressions in a symbolic sum or maximum: conditions, bodies and sizes."""
    return [e for bound, *rest in value.terms for e in (*rest, *(n for _, n in bound))]


def subterms(expr: Any) -> Iterator[Any]:
    """A z3 expression and all its subexpressions, each once."""
    rest, seen = [expr], set[int]()
    while rest:
        e = rest.pop()
        if e.get_id() not in seen:
            seen.add(e.get_id())
            rest += e.children()
            yield e


def unknowns(z: Any, expr: Any) -> list[str]:
    """Names of the unknowns in the z3 term `expr`."""
    below = subterms(expr) if z.is_expr(expr) else ()
    return list(dict.fromkeys(str(e) for e in below if z.is_const(e) and e.decl().kind() == z.Z3_OP_UNINTERPRETED))


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are syntactically equal."""
    return bool(a.eq(b)) if hasattr(a, "eq") and hasattr(b, "eq") else a is b or (isinstance(a, int) and a == b)
