"""What proofs over the reals know of elementwise functions, said of the terms at which they are met.

A function is an unknown one of its name but for this: odd and even ones forget a sign, increasing odd ones keep it, exp turns sums
into products and is positive, log undoes it and turns a reciprocal into a sign, a root is the number that is not negative and has
that square. Powers by small whole numbers and halves are products, reciprocals and roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ODD = ("tanh", "erf", "sin", "atan")
EVEN = ("cos",)
INCREASING = ("tanh", "erf", "atan", "exp", "expm1")
ZERO_AT_ZERO = ("expm1", "log1p")
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
        if name in ZERO_AT_ZERO and name != "log1p":
            return lambda x, said, undefined: self.z.If(x == 0, self.z.RealVal(0), self.unknown(name, x))
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
            value = self.unknown("exp", base)
            said.append(value > 0)
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
        """A logarithm by its values at numbers from 1 on."""
        z = self.z
        if x.get_id() in self.exponents:
            return self.exponents[x.get_id()][1]
        undefined.append(x <= 0)
        return z.If(x == 1, z.RealVal(0), z.If(x > 1, self.unknown("log", x), -self.unknown("log", 1 / x)))

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
