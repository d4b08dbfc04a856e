"""Holds axioms about elementwise functions for SMT proofs over the reals, instantiated at the terms that occur.

A function is uninterpreted except for these facts: odd and even functions, the sign of increasing odd functions, exp
turns sums into products and is positive, log is its inverse and maps a reciprocal to a negation, and a square root is
the nonnegative number with the given square. Powers with small integer or half-integer exponents are products,
reciprocals and roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...egraph.ops.ops import OPS
from .sums import factors, product_of, sum_of

MAX_EXPANDED_EXPONENT = 8  # magnitude of integer exponents, and of integer coefficients inside exp


class Functions:
    """Encoding of elementwise functions as real-valued z3 terms.

    Methods append axioms about the terms they create to `axioms`, and conditions under which the value is not finite to
    `undefined`.
    """

    def __init__(self, z: Any) -> None:
        self.z = z
        self.exponents: dict[
            int, tuple[Any, Any]
        ] = {}  # operand of each exponential by z3 term id; holding the term keeps its id valid

    def of(self, name: str) -> Callable[..., Any] | None:
        """Function (z3 operand, axioms, undefined) -> z3 term that encodes the op `name`; None if no facts are known
        about it.

        `axioms` and `undefined` are lists that a call appends to, as the class says.
        """
        symmetry = OPS[name].symmetry
        if symmetry == "odd":
            return lambda x, axioms, undefined: self.odd(name, x, axioms)
        if symmetry == "even":
            return lambda x, axioms, undefined: self.unknown(name, self.magnitude(x))
        laws: dict[str, Callable[..., Any]] = {"exp": self.exp, "log": self.log, "sqrt": self.sqrt, "rsqrt": self.rsqrt}
        if name == "expm1":
            return lambda x, axioms, undefined: self.z.If(x == 0, self.z.RealVal(0), self.exp(x, axioms, undefined) - 1)
        return laws.get(name)

    def unknown(self, name: str, x: Any) -> Any:
        """z3 term of the uninterpreted real function of x that stands for the op `name`."""
        real = self.z.RealSort()
        return self.z.Function(f"real {name}", real, real)(x)

    def magnitude(self, x: Any) -> Any:
        """z3 term of the absolute value of x."""
        return self.z.If(x >= 0, x, -x)

    def odd(self, name: str, x: Any, axioms: list[Any]) -> Any:
        """z3 term of the odd op `name` of x, uninterpreted at positive arguments and defined by them elsewhere. Appends
        to `axioms` that a monotone one is positive there."""
        z, value = self.z, self.unknown(name, self.magnitude(x))
        if OPS[name].monotone:
            axioms.append(z.Implies(x != 0, value > 0))
        return z.If(x > 0, value, z.If(x < 0, -value, z.RealVal(0)))

    def exp(self, x: Any, axioms: list[Any], undefined: list[Any]) -> Any:
        """z3 term of exp(x) as a product: each summand of x contributes a power of an uninterpreted positive number."""
        z = self.z
        whole = z.simplify(x, som=True)
        found = z.RealVal(1)
        for part in whole.children() if z.is_add(whole) else [whole]:
            count, base = self.multiple(part)
            undone = z.is_app(base) and base.decl().name() == "real log"
            value = base.arg(0) if undone else self.unknown("exp", base)
            axioms.append(z.BoolVal(True) if undone else z.And(value > 0, z.Implies(base == 0, value == 1)))
            for _ in range(abs(count)):
                found = found * value if count > 0 else found / value
        self.exponents[found.get_id()] = (found, x)
        return found

    def multiple(self, part: Any) -> tuple[int, Any]:
        """The term `part` as (integer factor, other factors); 1 unless a small integer coefficient can be split off."""
        z = self.z
        if z.is_mul(part) and len(part.children()) == 2 and z.is_rational_value(part.arg(0)):
            factor = part.arg(0).as_fraction()
            if factor.denominator == 1 and 0 < abs(factor) <= MAX_EXPANDED_EXPONENT:
                return int(factor), part.arg(1)
        if z.is_app_of(part, z.Z3_OP_UMINUS):
            return -1, part.arg(0)
        return 1, part

    def log(self, x: Any, axioms: list[Any], undefined: list[Any]) -> Any:
        """z3 term of log(x): exponents of exponential factors plus an uninterpreted logarithm of the others.

        The uninterpreted logarithm is normalized to arguments of at least 1.
        """
        z = self.z
        if x.get_id() in self.exponents:
            return self.exponents[x.get_id()][1]
        parts = self.cancelled(factors(z, x))
        powers = [(e, p) for p in parts if (e := self.exponent(p[0])) is not None]
        rest = [p for p in parts if not any(p is q for _, q in powers)]
        found = sum_of(z, [(e, up) for e, (_, up) in powers])
        turned = bool(rest) and all(up < 0 for _, up in rest)
        inner = z.simplify(product_of(z, [(e, -up) for e, up in rest] if turned else rest))
        undefined.append(inner <= 0)
        value = self.unknown("log", inner)
        axioms.append(z.Implies(inner == 1, value == 0))
        axioms.append(z.Implies(z.And(inner > 0, inner < 1), value == -self.unknown("log", 1 / inner)))
        return found - value if turned else found + value

    def exponent(self, x: Any) -> Any:
        """If the z3 term x is a product of exponentials, the sum of their exponents, else None."""
        parts = factors(self.z, x)
        known = all(self.z.is_app(e) and e.decl().name() == "real exp" for e, _ in parts)
        return sum_of(self.z, [(e.arg(0), up) for e, up in parts]) if parts and known else None

    def cancelled(self, parts: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """The pairs (factor, exponent) of a product, `parts`, without those that cancel, x and 1/x.

        That is sound: where the quotient is defined, x is not zero.
        """
        found: list[tuple[Any, int]] = []
        for e, up in parts:
            twin = next((p for p in found if p[0].eq(e) and p[1] == -up), None)
            found = [p for p in found if p is not twin] if twin else [*found, (e, up)]
        return found

    def sqrt(self, x: Any, axioms: list[Any], undefined: list[Any]) -> Any:
        """z3 term of the square root of x; undefined below zero."""
        undefined.append(x < 0)
        return self.root(x, axioms)

    def rsqrt(self, x: Any, axioms: list[Any], undefined: list[Any]) -> Any:
        """z3 term of the reciprocal square root of x; undefined at and below zero."""
        undefined.append(x <= 0)
        return 1 / self.root(x, axioms)

    def root(self, x: Any, axioms: list[Any]) -> Any:
        """z3 term of an uninterpreted square root, with its axiom: nonnegative, and its square is the argument."""
        value = self.unknown("sqrt", x)
        axioms.append(self.z.Implies(x >= 0, self.z.And(value >= 0, value * value == x)))
        return value

    def power(self, x: Any, exponent: Any, axioms: list[Any], undefined: list[Any]) -> Any:
        """z3 term of a power with a known exponent, as products, reciprocals or roots; None for other exponents.

        Conditions that hold are added to `axioms`, those under which the power has no value to `undefined`.
        """
        z = self.z
        if not z.is_rational_value(exponent):
            return None
        number = exponent.as_fraction()
        if number in (0.5, -0.5):
            return self.sqrt(x, axioms, undefined) if number > 0 else self.rsqrt(x, axioms, undefined)
        if number.denominator != 1 or abs(number) > MAX_EXPANDED_EXPONENT:
            return None
        if number < 0:
            undefined.append(x == 0)
        found: Any = z.RealVal(1)
        for _ in range(abs(int(number))):
            found = found * x
        return found if number >= 0 else 1 / found


def is_whole(values: Sequence[float]) -> bool:
    """Whether all numbers are integers or NaN, so that they mean the same in every ring."""
    return all(v == int(v) for v in values if v == v and abs(v) != float("inf")) and all(
        abs(v) != float("inf") for v in values
    )
