"""Computes polynomial approximations of erf for 16-bit results, at a quarter to a third of the cost of the exact erf.

erf(x) = y * p(u) with y = clamp(x, -limit, limit) and u = y * y * scale - 1 in [-1, 1]. The coefficients minimise the
largest relative error (Lawson's iteratively reweighted least squares over Chebyshev points). The error is below `error`
for every x, in float32 arithmetic too. In a GEMM epilogue erf takes measurable time, so the polynomial's degree is only
as high as the dtype needs.

x/2 * (1 + erf(x / sqrt(2))) is shorter still: a saturating addition clamps erf to [-1, 1], and constant factors are
folded into the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose, prod, sqrt

from .expr import Expr, factors


@dataclass(frozen=True)
class ShortErf:
    """A polynomial approximation of erf: erf(x) = y * p(u) with y = clamp(x, -limit, limit) and u = y * y * scale - 1.

    `limit`: bound of the clamp. `error`: largest relative error. `coefficients`: of p, constant term first.
    """

    limit: float
    error: float
    coefficients: tuple[float, ...]

    @property
    def scale(self) -> float:
        """The factor that maps y * y, for y between -limit and limit, to [0, 2], so that y * y * scale - 1 lies in [-1,
        1]."""
        return 2.0 / (self.limit * self.limit)

    def horner(self, u: str, times: float = 1.0) -> str:
        """Source text of `times` * p(u), computed by Horner's scheme; p is this polynomial, `u` the name of the
        variable with u."""
        coefficients = [float(f"{times * c:.9g}") for c in self.coefficients]
        text = repr(coefficients[-1])
        for c in coefficients[-2::-1]:
            text = f"({text} * {u} + {c!r})" if c >= 0 else f"({text} * {u} - {-c!r})"
        return text[1:-1]


FINE = ShortErf(3.2, 7e-6, (
    0.441334575, -0.217305765, 0.154334098, -0.113674589, 0.0808037519, -0.0546147525, 0.0326668955, -0.0153631102,
    0.00856594555, -0.00698080473, 0.00273253839,
))  # fmt: skip
"""For float16: error is a hundredth of its resolution."""

COARSE = ShortErf(2.65, 1.9e-4, (
    0.529382338, -0.248433747, 0.156265264, -0.0907419927, 0.0522595405, -0.0362496953, 0.0148688906,
))  # fmt: skip
"""For bfloat16: error is a tenth of its rounding."""


def gelu_of(e: Expr) -> Expr | None:
    """The x if `e` is a GELU x/2 * (1 + erf(x / sqrt(2))), factors in any order; None for other expressions."""
    numbers, (*rest,) = _parted(e)
    if not isclose(numbers, 0.5) or len(rest) != 2:
        return None
    for x, y in (rest, rest[::-1]):
        erf = [a for a in y.args if a.op == "erf"]
        ones = [a for a in y.args if a.op == "const" and a.value == 1]
        if y.op == "add" and len(erf) == len(ones) == 1:
            scale, inner = _parted(erf[0].args[0])
            if isclose(scale, sqrt(0.5), rel_tol=1e-6) and inner == [x]:
                return x
    return None


def _parted(e: Expr) -> tuple[float, list[Expr]]:
    """(constant factor of a product or quotient, other factors). The constant is 0 if a divisor is not constant or
    zero."""
    over, under = factors(e)
    numbers = [f.value for f in over if f.op == "const"]
    divisor = prod(f.value if f.op == "const" else 0.0 for f in under)
    return prod(numbers) / divisor if divisor else 0.0, [f for f in over if f.op != "const"]
