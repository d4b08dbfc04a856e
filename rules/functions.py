"""What proofs over the reals know of elementwise functions, said of the terms at which they are met.

A function is an unknown one of its name but for this: odd and even ones forget a sign, increasing odd ones keep it, exp turns sums
into products and is positive, log undoes it and turns a reciprocal into a sign, a root is the number that is not negative and has
that square. Powers by small whole numbers and halves are products, reciprocals and roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .sums import factors, product_of, sum_of

ODD = ("tanh", "erf", "sin", "atan")
EVEN = ("cos",)
INCREASING = ("tanh", "erf", "atan", "exp", "expm1")
LARGEST = 8  # exponent of a power that is a product, coefficient in an exponent that is a power


class Functions:
    """Elementwise functions of real terms. `said` takes what is known of a term that is made, `undefined` where it has no finite
    value."""

    def __init__(self, z: Any) -> None:
        self.z = z
        self.exponents: dict[
            int, tuple[Any, Any]
        ] = {}  # of each exponential, by the number of its term, which is kept alive

    def of(self, name: str) -> Callable[..., Any] | None:
        """The law of a function, None for one of which nothing is known."""
        if name in ODD:
            return lambda x, said, undefined: self.odd(name, x, said)
        if name in EVEN:
            return lambda x, said, undefined: self.unknown(name, self.size(x))
        laws: dict[str, Callable[..., Any]] = {"exp": self.exp, "log": self.log, "sqrt": self.sqrt, "rsqrt": self.rsqrt}
        if name == "expm1":
            return lambda x, said, undefined: self.z.If(x == 0, self.z.RealVal(0), self.exp(x, said, undefined) - 1)
        return laws.get(name)

    def unknown(self, name: str, x: Any) -> Any:
        """An unknown function's value."""
        real = self.z.RealSort()
        return self.z.Function(f"real {name}", real, real)(x)

    def size(self, x: Any) -> Any:
        """The absolute value."""
        return self.z.If(x >= 0, x, -x)

    def odd(self, name: str, x: Any, said: list[Any]) -> Any:
        """An odd function by its values at positive numbers."""
        z, value = self.z, self.unknown(name, self.size(x))
        if name in INCREASING:
            said.append(z.Implies(x != 0, value > 0))
        return z.If(x > 0, value, z.If(x < 0, -value, z.RealVal(0)))

    def exp(self, x: Any, said: list[Any], undefined: list[Any]) -> Any:
        """A product with a power of an unknown positive number for each summand."""
        z = self.z
        whole = z.simplify(x, som=True)
        found = z.RealVal(1)
        for part in whole.children() if z.is_add(whole) else [whole]:
            count, base = self.multiple(part)
            undone = z.is_app(base) and base.decl().name() == "real log"
            value = base.arg(0) if undone else self.unknown("exp", base)
            said.append(z.BoolVal(True) if undone else z.And(value > 0, z.Implies(base == 0, value == 1)))
            for _ in range(abs(count)):
                found = found * value if count > 0 else found / value
        self.exponents[found.get_id()] = (found, x)
        return found

    def multiple(self, part: Any) -> tuple[int, Any]:
        """A term as a small whole multiple of another."""
        z = self.z
        if z.is_mul(part) and len(part.children()) == 2 and z.is_rational_value(part.arg(0)):
            factor = part.arg(0).as_fraction()
            if factor.denominator == 1 and 0 < abs(factor) <= LARGEST:
                return int(factor), part.arg(1)
        if z.is_app_of(part, z.Z3_OP_UMINUS):
            return -1, part.arg(0)
        return 1, part

    def log(self, x: Any, said: list[Any], undefined: list[Any]) -> Any:
        """A logarithm: a sum over the factors that are exponentials, and for the others by its values at numbers from 1 on."""
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
        said.append(z.Implies(inner == 1, value == 0))
        said.append(z.Implies(z.And(inner > 0, inner < 1), value == -self.unknown("log", 1 / inner)))
        return found - value if turned else found + value

    def exponent(self, x: Any) -> Any:
        """Of what a term that is a product of exponentials is the exponential, None for any other."""
        parts = factors(self.z, x)
        known = all(self.z.is_app(e) and e.decl().name() == "real exp" for e, _ in parts)
        return sum_of(self.z, [(e.arg(0), up) for e, up in parts]) if parts and known else None

    def cancelled(self, parts: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Factors without those by which it is divided as well: they are not zero where the quotient is defined."""
        found: list[tuple[Any, int]] = []
        for e, up in parts:
            twin = next((p for p in found if p[0].eq(e) and p[1] == -up), None)
            found = [p for p in found if p is not twin] if twin else [*found, (e, up)]
        return found

    def sqrt(self, x: Any, said: list[Any], undefined: list[Any]) -> Any:
        """The root."""
        undefined.append(x < 0)
        return self.root(x, said)

    def rsqrt(self, x: Any, said: list[Any], undefined: list[Any]) -> Any:
        """The reciprocal root."""
        undefined.append(x <= 0)
        return 1 / self.root(x, said)

    def root(self, x: Any, said: list[Any]) -> Any:
        """The number that is not negative and has this square, where there is one."""
        value = self.unknown("sqrt", x)
        said.append(self.z.Implies(x >= 0, self.z.And(value >= 0, value * value == x)))
        return value

    def power(self, x: Any, exponent: Any, said: list[Any], undefined: list[Any]) -> Any:
        """A power by a number that is known, None if it is none of those that are made of other functions."""
        z = self.z
        if not z.is_rational_value(exponent):
            return None
        number = exponent.as_fraction()
        if number in (0.5, -0.5):
            return self.sqrt(x, said, undefined) if number > 0 else self.rsqrt(x, said, undefined)
        if number.denominator != 1 or abs(number) > LARGEST:
            return None
        if number < 0:
            undefined.append(x == 0)
        found: Any = z.RealVal(1)
        for _ in range(abs(int(number))):
            found = found * x
        return found if number >= 0 else 1 / found


def is_whole(values: Sequence[float]) -> bool:
    """Whether numbers are whole, so that they mean the same in every ring."""
    return all(v == int(v) for v in values if v == v and abs(v) != float("inf")) and all(
        abs(v) != float("inf") for v in values
    )
