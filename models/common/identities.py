"""Composes elementary functions and integer division of primitive ops, without overflow and accurate near zeros.

"Without intermediate overflow" means that no intermediate value overflows unless the result itself does.
"""

from __future__ import annotations

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor

#: Coefficients of log(erfc(x) * exp(x * x) / s) with s = 2 / (2 + x), for x >= 0: its Chebyshev series over u = 2 s - 1
#: in [-1, 1], truncated where the error is below the dtype's rounding error, rewritten as a polynomial in u (constant
#: term first). ERFC is for float32, ERFC_DOUBLE for float64.
ERFC = (
    -0.6717940916807759, 0.6726422171554879, 0.047343887612987114, -0.04687488817886134, -0.009880019324020219,
    0.008703812035218805, 0.0017940662497394012, -0.002048734760496573, -0.00022791096599906392, 0.00033373589390861395,
    8.000738161697865e-06,
)  # fmt: skip
ERFC_DOUBLE = (
    -0.6717940840566923, 0.6726432239776567, 0.04734330684190443, -0.0468956102311753, -0.009872689366389959,
    0.008824938557060623, 0.001758933557799016, -0.002345812500482853, -0.00014624686337800336, 0.000673678795580235,
    -9.37350311709817e-05, -0.0001743029472030762, 7.14010141275703e-05, 3.17451797494374e-05, -3.0187884551394243e-05,
    1.3772664134464417e-07, 8.562623420121286e-06, -2.947986876998259e-06, -1.27231190486887e-06, 1.2500276612569754e-06,
    -1.6849800720653297e-07, -2.495832761719667e-07, 1.5334345920908177e-07, 1.4448658046252676e-09, -3.9171820510271855e-08,
    1.1172352263623759e-08, 4.06088214696972e-09, -1.8902306008944537e-09,
)  # fmt: skip
LARGE = 8.0  # threshold: larger arguments use a formula without intermediate overflow


def keep_zero_sign(x: Tensor, y: Tensor) -> Tensor:
    """Return f(x) for an odd function f, given y = f(|x|): y * sign(x), but x itself where x is 0.0 or -0.0."""
    return t.where(t.ne(x, 0.0), t.mul(y, t.sign(x)), x)


def asin(x: Tensor) -> Tensor:
    """Return asin(x) as 2 atan(x / (1 + sqrt(1 - x**2))), which stays accurate at both ends of [-1, 1]."""
    return t.atan(x / (t.sqrt((1.0 - x) * (x + 1.0)) + 1.0)) * 2.0


def acos(x: Tensor) -> Tensor:
    """Return acos(x) as 2 atan(sqrt((1 - x) / (1 + x)))."""
    return t.atan(t.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def _half_exp(a: Tensor) -> Tensor:
    """Return exp(a) / 2. It is finite wherever the result is at most the dtype's largest number."""
    root = t.exp(a * 0.5)
    return root * 0.5 * root


def sinh(x: Tensor) -> Tensor:
    """Return (exp(x) - exp(-x)) / 2."""
    a = t.abs(x)
    e, far = t.expm1(t.minimum(a, LARGE)), t.exp(-a) * 0.5
    return keep_zero_sign(x, t.where(t.lt(a, LARGE), (e + e / (e + 1.0)) * 0.5, _half_exp(a) - far))


def cosh(x: Tensor) -> Tensor:
    """Return (exp(x) + exp(-x)) / 2."""
    a = t.abs(x)
    return _half_exp(a) + t.exp(-a) * 0.5


def asinh(x: Tensor) -> Tensor:
    """Return log(x + sqrt(x**2 + 1))."""
    a = t.abs(x)
    low = t.minimum(a, 1.0)
    near = t.log1p(low + low * low / (t.sqrt(low * low + 1.0) + 1.0))
    return keep_zero_sign(x, t.where(t.lt(a, 1.0), near, _log_of_sum(t.maximum(a, 1.0), 1.0)))


def acosh(x: Tensor) -> Tensor:
    """Return log(x + sqrt(x**2 - 1)); NaN below 1.

    The square root is computed as sqrt(x - 1) * sqrt(x + 1): for x < -1 each factor's root is NaN, but the root of the
    product is a number.
    """
    d = t.minimum(x, LARGE) - 1.0
    near = t.log1p(d + t.sqrt(d) * t.sqrt(d + 2.0))
    return t.where(t.lt(x, LARGE), near, _log_of_sum(t.maximum(x, LARGE), -1.0))


def _log_of_sum(x: Tensor, one: float) -> Tensor:
    """Return log(x + sqrt(x**2 + one)) for x >= 1, computed without squaring x, so that nothing overflows."""
    r = t.recip(x)
    return t.log(x) + t.log1p(t.sqrt(r * r * one + 1.0))


def atanh(x: Tensor) -> Tensor:
    """Return log((1 + x) / (1 - x)) / 2."""
    return t.log1p(x * 2.0 / (1.0 - x)) * 0.5


def erfc(x: Tensor) -> Tensor:
    """Return 1 - erf(x) for any float dtype; 16-bit dtypes are computed in float32.

    The relative error is the rounding error of x * x, also where the result is tiny (2e-45 at x = 10 in float64).
    """
    if x.dtype in ("float16", "bfloat16"):
        return t.cast(erfc(t.cast(x, "float32")), x.dtype)
    a = t.abs(x)
    s = 2.0 / (a + 2.0)
    u = s * 2.0 - 1.0
    *lower, total = ERFC_DOUBLE if x.dtype == "float64" else ERFC
    above: Tensor | float = total
    for coefficient in reversed(lower):
        above = u * above + coefficient
    tail = s * t.exp(above - a * a)
    return t.where(t.lt(x, 0.0), 2.0 - tail, tail)


def whole_quotient(x: Tensor, y: Tensor) -> Tensor:
    """Return the integer quotient x / y rounded towards zero, as in C.

    Floor division rounds a negative inexact quotient down; such a quotient is increased by one.
    """
    quotient = t.floordiv(x, y)
    if x.dtype.startswith("uint"):
        return quotient
    inexact = t.logical_and(t.ne(t.mul(quotient, y), x), t.lt(quotient, 0))
    return t.add(quotient, t.cast(inexact, x.dtype))


def whole_remainder(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of the division `whole_quotient` (x / y rounded towards zero), with the sign of x.

    No absolute value is taken: that of the least integer overflows.
    """
    rest = t.mod(x, y)
    if x.dtype.startswith("uint"):
        return rest
    apart = t.logical_and(t.ne(rest, 0), t.logical_xor(t.lt(x, 0), t.lt(y, 0)))
    return t.where(apart, t.sub(rest, y), rest)


__all__ = [
    "acos", "acosh", "asin", "asinh", "atanh", "cosh", "erfc", "keep_zero_sign", "sinh", "whole_quotient", "whole_remainder",
]  # fmt: skip
