"""Functions by those that are ops: elementary ones, each without an overflow before its value has one, and accurate near its zeros; quotients of integers."""

from __future__ import annotations

from ..egraph import api as t
from ..egraph.graph import Tensor

LARGE = 8.0  # an argument from which on functions have a form that does not overflow before its value does


def keep_zero_sign(x: Tensor, y: Tensor) -> Tensor:
    """y with the sign of x (of an odd function computed on |x|)."""
    return t.mul(y, t.sign(x))


def asin(x: Tensor) -> Tensor:
    """2 atan(x / (1 + sqrt(1 - x**2))), which keeps its accuracy at both ends of [-1, 1]"""
    return t.atan(x / (t.sqrt((1.0 - x) * (x + 1.0)) + 1.0)) * 2.0


def acos(x: Tensor) -> Tensor:
    """2 atan(sqrt((1 - x) / (1 + x)))"""
    return t.atan(t.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def _half_exp(a: Tensor) -> Tensor:
    """exp(a) / 2, finite where it is no larger than the dtype's largest number."""
    root = t.exp(a * 0.5)
    return root * 0.5 * root


def sinh(x: Tensor) -> Tensor:
    """(exp(x) - exp(-x)) / 2"""
    a = t.abs(x)
    e, far = t.expm1(t.minimum(a, LARGE)), t.exp(-a) * 0.5
    return keep_zero_sign(x, t.where(t.lt(a, LARGE), (e + e / (e + 1.0)) * 0.5, _half_exp(a) - far))


def cosh(x: Tensor) -> Tensor:
    """(exp(x) + exp(-x)) / 2"""
    a = t.abs(x)
    return _half_exp(a) + t.exp(-a) * 0.5


def asinh(x: Tensor) -> Tensor:
    """log(x + sqrt(x**2 + 1))"""
    a = t.abs(x)
    low = t.minimum(a, 1.0)
    near = t.log1p(low + low * low / (t.sqrt(low * low + 1.0) + 1.0))
    return keep_zero_sign(x, t.where(t.lt(a, 1.0), near, _log_of_sum(t.maximum(a, 1.0), 1.0)))


def acosh(x: Tensor) -> Tensor:
    """log(x + sqrt(x**2 - 1)); NaN below 1, where the root of each factor is, but not that of both"""
    d = t.minimum(x, LARGE) - 1.0
    near = t.log1p(d + t.sqrt(d) * t.sqrt(d + 2.0))
    return t.where(t.lt(x, LARGE), near, _log_of_sum(t.maximum(x, LARGE), -1.0))


def _log_of_sum(x: Tensor, one: float) -> Tensor:
    """log(x + sqrt(x**2 + one)) for x >= 1, no square of which overflows."""
    r = t.recip(x)
    return t.log(x) + t.log1p(t.sqrt(r * r * one + 1.0))


def atanh(x: Tensor) -> Tensor:
    """log((1 + x) / (1 - x)) / 2"""
    return t.log1p(x * 2.0 / (1.0 - x)) * 0.5


def whole_quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y of integers towards zero, as in C: one more where floor went below an inexact negative quotient"""
    quotient = t.floordiv(x, y)
    if x.dtype.startswith("uint"):
        return quotient
    inexact = t.logical_and(t.ne(t.mul(quotient, y), x), t.lt(quotient, 0))
    return t.add(quotient, t.cast(inexact, x.dtype))


def whole_remainder(x: Tensor, y: Tensor) -> Tensor:
    """What that leaves, with the sign of x; nothing is made of the least integer's absolute value"""
    rest = t.mod(x, y)
    if x.dtype.startswith("uint"):
        return rest
    apart = t.logical_and(t.ne(rest, 0), t.logical_xor(t.lt(x, 0), t.lt(y, 0)))
    return t.where(apart, t.sub(rest, y), rest)


__all__ = [
    "acos", "acosh", "asin", "asinh", "atanh", "cosh", "keep_zero_sign", "sinh", "whole_quotient", "whole_remainder",
]  # fmt: skip
