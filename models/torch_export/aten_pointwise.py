"""Functions that build the graph of elementwise ATen overloads. They take the arguments of the ATen schema, with
tensors as tensor expressions.

As in PyTorch's type promotion, numbers and 0-d tensors are weakly typed: they change the dtype only if their category
(bool, int, float) is higher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import log as _log
from math import pi
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.builders.operand_alignment import align
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr
from ..common import identities as of
from ..common.sizes import size_tensor

_RANK = {"bool": 0, "int": 1, "float": 2}
Value = Any  # a Tensor or a Python number


def _scalar_dtype(value: Value) -> str:
    return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int | DimExpr) else "float32"


def result_dtype(*operands: Value) -> str:
    """Dtype that PyTorch promotes operands to.

    Tensors with axes come first, then 0-d tensors, then numbers; each group changes the dtype only by a higher
    category.
    """
    found: str | None = None
    tensors = [o for o in operands if isinstance(o, Tensor)]
    for group in (
        [o.dtype for o in tensors if o.rank],
        [o.dtype for o in tensors if not o.rank],
        [_scalar_dtype(o) for o in operands if not isinstance(o, Tensor) and o is not None],
    ):
        if group:
            common = reduce(dtypes.promote, group)
            if found is None or _RANK[dtypes.category(common)] > _RANK[dtypes.category(found)]:
                found = common
    return found or "float32"


def number(value: Value) -> Value:
    """Scalar operand of an overload: a free size is lowered to a tensor, other values are unchanged."""
    return size_tensor(value) if isinstance(value, DimExpr) else value


def lift(*operands: Value, dtype: str | None = None, scales: bool = False) -> list[Tensor]:
    """Operands converted to tensors of equal rank and of PyTorch's promoted dtype (or `dtype`).

    Numbers are rounded to a 16-bit dtype, except factors and divisors (`scales`), as in PyTorch's kernels.
    """
    common = dtype or result_dtype(*operands)
    rounded = [dtypes.nearest(o, common) if isinstance(o, float) and not scales else o for o in operands]
    return align(*map(number, rounded), dtype=common)


def product(x: Value, y: Value) -> Tensor:
    """Return x * y."""
    return t.mul(*lift(x, y, scales=True))


def as_float(x: Tensor) -> Tensor:
    """Integers and bools cast to float32, PyTorch's default dtype; floats unchanged."""
    return x if dtypes.is_float(x.dtype) else t.cast(x, "float32")


def binary(build: Callable[[Any, Any], Tensor]) -> Callable[[Value, Value], Tensor]:
    """Return a function of two operands, which are first brought to equal rank and dtype (`lift`) and then passed to
    `build`."""
    return lambda x, y: build(*lift(x, y))


def floating(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that casts its first operand to float and passes all operands to `build`."""
    return lambda x, *more, **named: build(as_float(x), *more, **named)


def whole(build: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that applies the rounding `build` to floats and leaves integers unchanged."""
    return lambda x: build(x) if dtypes.is_float(x.dtype) else x


# ---------------------------------------------------------------- arithmetic
def add(x: Value, y: Value, alpha: Any = 1) -> Tensor:
    """Return x + alpha * y."""
    a, b = lift(x, y)
    return t.add(a, b if alpha == 1 else t.mul(b, number(alpha)))


def sub(x: Value, y: Value, alpha: Any = 1) -> Tensor:
    """Return x - alpha * y."""
    a, b = lift(x, y)
    return t.sub(a, b if alpha == 1 else t.mul(b, number(alpha)))


def rsub(x: Value, y: Value, alpha: Any = 1) -> Tensor:
    """Return y - alpha * x."""
    return sub(y, x, alpha)


def trunc(x: Tensor) -> Tensor:
    """Return x rounded towards zero."""
    return t.where(t.lt(x, 0), t.ceil(x), t.floor(x)) if dtypes.is_float(x.dtype) else x


def div(x: Value, y: Value, rounding_mode: str | None = None) -> Tensor:
    """Return x / y, or its floor or truncation (`rounding_mode` "floor" or "trunc")."""
    a, b = lift(x, y, scales=True)
    if rounding_mode == "floor":
        return t.floordiv(a, b)
    if rounding_mode == "trunc":
        if dtypes.is_float(a.dtype):
            return trunc(t.div(a, b))
        return of.whole_quotient(a, b)
    return t.div(as_float(a), as_float(b))


def fmod(x: Value, y: Value) -> Tensor:
    """Return the remainder of x / y, with the sign of x."""
    a, b = lift(x, y)
    if not dtypes.is_float(a.dtype):
        return of.whole_remainder(a, b)
    undefined = t.logical_or(t.eq(b, 0), t.is_nan(b))
    of_zero = t.where(undefined, float("nan"), a)  # keeps the sign of a zero
    return t.where(t.eq(a, 0), of_zero, t.mul(t.sign(a), t.mod(t.abs(a), t.abs(b))))


def shift(left: bool) -> Callable[[Value, Value], Tensor]:
    """Return a function that builds bit shifts to the left (`left`) or right, as multiplication or floor division by
    powers of two."""

    def build(x: Value, y: Value) -> Tensor:
        a, b = lift(x, y)
        width = 8 * dtypes.itemsize(a.dtype)
        near = t.minimum(b, width - 2)
        moved = t.mul(a, t.pow(2, near)) if left else t.floordiv(a, t.pow(2, near))
        more = t.gt(b, near)  # 2 ** (width - 1) overflows: the last bit is a separate step
        moved = t.where(more, t.mul(moved, 2) if left else t.floordiv(moved, 2), moved)
        return t.where(t.ge(b, width), 0, moved) if left or a.dtype.startswith("u") else moved

    return build


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: t.sqrt, -0.5: t.rsqrt, -1.0: t.recip, -2.0: lambda x: t.recip(x * x),
}  # fmt: skip
_WHOLE_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    1.0: lambda x: x, 2.0: lambda x: x * x, 3.0: lambda x: x * x * x,
}  # fmt: skip


def power(x: Value, y: Value) -> Tensor:
    """Return x ** y. Small integer powers become products."""
    dtype = result_dtype(x, y)
    if isinstance(x, Tensor) and not isinstance(y, Tensor | DimExpr):
        table = _WHOLE_POWERS | (_POWERS if dtypes.is_float(dtype) else {})
        if float(y) in table:
            return table[float(y)](t.cast(x, dtype))
    a, b = lift(x, y)
    known = not isinstance(y, Tensor | DimExpr) and y >= 0
    if known or dtypes.is_float(a.dtype) or a.dtype == "bool" or a.dtype.startswith("uint"):
        return t.pow(a, b)
    odd = t.where(t.eq(t.mod(b, 2), 0), 1, -1)  # negative powers are nonzero integers only for 1 and -1
    below = t.where(t.eq(a, 1), 1, t.where(t.eq(a, -1), odd, 0))
    return t.where(t.lt(b, 0), t.cast(below, a.dtype), t.pow(a, t.maximum(b, 0)))


def clamp(x: Tensor, lo: Value = None, hi: Value = None) -> Tensor:
    """x limited to bounds. Either bound may be absent, a number or a tensor."""
    dtype = result_dtype(x, lo, hi)
    x = t.cast(x, dtype)
    plain = not any(isinstance(v, Tensor | DimExpr) for v in (lo, hi))
    if plain and dtypes.is_float(dtype):
        if lo == 0 and hi is None:
            return c.relu(x)
        bounds = {k: dtypes.nearest(float(v), dtype) for k, v in (("lo", lo), ("hi", hi)) if v is not None}
        return c.clip(x, **bounds)
    if lo is not None:
        x = t.maximum(*lift(x, lo, dtype=dtype))
    return x if hi is None else t.minimum(*lift(x, hi, dtype=dtype))


def clamp_max(x: Tensor, hi: Value) -> Tensor:
    """Return the minimum of x and `hi`."""
    return clamp(x, None, hi)


def bitwise_not(x: Tensor) -> Tensor:
    """Return logical not of bools, -x - 1 of integers."""
    return t.logical_not(x) if x.dtype == "bool" else t.sub(t.neg(x), 1)


def logical(build: Callable[[Any, Any], Tensor]) -> Callable[[Value, Value], Tensor]:
    """Return a function of two operands, which are cast to bool and passed to `build`."""
    return lambda x, y: build(*lift(x, y, dtype="bool"))


def where(condition: Tensor, x: Value, y: Value) -> Tensor:
    """Return x where the condition holds, else y."""
    return t.where(condition, *lift(x, y))


def masked_fill(x: Tensor, mask: Tensor, value: Value) -> Tensor:
    """Return x with the number `value` where the mask holds."""
    (filled,) = lift(value, dtype=x.dtype)
    return t.where(mask, filled, x)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1; 0 for NaN (NumPy and ONNX return NaN). Bools are unchanged."""
    if x.dtype == "bool":
        return x
    return t.where(t.is_nan(x), 0, t.sign(x)) if dtypes.is_float(x.dtype) else t.sign(x)


def is_nan(x: Tensor) -> Tensor:
    """Return whether x is NaN; False for integers."""
    return t.is_nan(x) if dtypes.is_float(x.dtype) else t.full(x.shape, False, "bool")


def is_inf(x: Tensor) -> Tensor:
    """Return whether x is infinite; False for integers."""
    return t.is_inf(x) if dtypes.is_float(x.dtype) else t.full(x.shape, False, "bool")


def is_finite(x: Tensor) -> Tensor:
    """Return whether x is neither NaN nor infinite."""
    return t.logical_not(t.logical_or(is_nan(x), is_inf(x)))


def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with the given numbers in place of NaN and infinities (default: 0 and the dtype's extremes)."""
    if not dtypes.is_float(x.dtype):
        return x
    import ml_dtypes

    info: Any = ml_dtypes.finfo(dtypes.numpy_dtype(x.dtype))
    high, low = (float(info.max) if posinf is None else posinf), (float(info.min) if neginf is None else neginf)
    found = t.where(t.is_nan(x), 0.0 if nan is None else nan, x)
    found = t.where(t.eq(x, float("inf")), high, found)
    return t.where(t.eq(x, float("-inf")), low, found)


def fmax(x: Value, y: Value) -> Tensor:
    """Return the larger of x and y elementwise; where one is NaN, the other."""
    a, b = lift(x, y)
    return t.where(is_nan(a), b, t.where(is_nan(b), a, t.maximum(a, b)))


def fmin(x: Value, y: Value) -> Tensor:
    """Return the smaller of x and y elementwise; where one is NaN, the other."""
    a, b = lift(x, y)
    return t.where(is_nan(a), b, t.where(is_nan(b), a, t.minimum(a, b)))


def signbit(x: Tensor) -> Tensor:
    """Return whether x is negative or -0.0; False for NaN."""
    below = t.lt(x, 0)
    return t.logical_or(below, t.lt(t.recip(x), 0)) if dtypes.is_float(x.dtype) else below


def copysign(x: Value, y: Value) -> Tensor:
    """Return |x| with the sign of y."""
    a, b = (as_float(v) for v in lift(x, y))
    return t.where(signbit(b), -t.abs(a), t.abs(a))


def fake_quantize(x: Tensor, scale: Value, zero: Value, low: int, high: int) -> list[Tensor]:
    """Return [x quantized to low..high and dequantized, mask of the elements inside this range]."""
    step = t.cast(scale, x.dtype) if isinstance(scale, Tensor) else number(scale)
    base = t.cast(zero, x.dtype) if isinstance(zero, Tensor) else number(zero)
    spot = t.round(x * (t.recip(step) if isinstance(step, Tensor) else 1.0 / step)) + base
    held = t.logical_and(t.ge(spot, low), t.le(spot, high))
    return [(clamp(spot, low, high) - base) * step, held]


def fake_quantize_channels(x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int) -> list[Tensor]:
    """Results of `fake_quantize`, clipped to `low` … `high`, with a scale and zero point per index of an axis."""
    line = [scale.shape[0] if i == axis % x.rank else 1 for i in range(x.rank)]
    return fake_quantize(x, t.reshape(scale, line), t.reshape(zero, line), low, high)


def round_decimals(x: Tensor, decimals: int = 0) -> Tensor:
    """x rounded to a number of decimals."""
    scale = 10.0 ** abs(decimals)
    return t.div(t.round(x * scale), scale) if decimals > 0 else t.round(t.div(x, scale)) * scale


# ---------------------------------------------------------------- composed functions
def scaled_log(base: float) -> Callable[[Tensor], Tensor]:
    """Return a function that builds the logarithm to the base `base`, which is whole for whole powers of the base."""

    def build(x: Tensor) -> Tensor:
        found = t.log(x) * (1.0 / _log(base))
        return t.where(t.eq(t.pow(base, t.round(found)), x), t.round(found), found)

    return floating(build)


def atan2(y: Value, x: Value) -> Tensor:
    """Return the angle of the point (x, y), as C defines it for signed zeros and infinities."""
    b, a = (as_float(v) for v in lift(y, x))
    upright = t.logical_and(t.eq(a, 0), t.ne(b, 0))
    origin = t.logical_and(t.eq(a, 0), t.eq(b, 0))
    diagonal = t.logical_and(is_inf(a), is_inf(b))  # treated as (±1, ±1)
    slope = t.where(diagonal, t.mul(t.sign(a), t.sign(b)), t.div(b, t.where(t.eq(a, 0), 1, a)))
    ahead = t.where(upright, t.sign(b) * (pi / 2), t.where(origin, b, t.atan(slope)))
    half = t.where(signbit(b), t.full((), -pi, a.dtype), t.full((), pi, a.dtype))
    behind = t.logical_and(signbit(a), t.logical_not(upright))
    return t.where(behind, ahead + half, ahead)


#: Magnitudes between which a square neither overflows nor loses digits.
_SQUARED = {"float64": (1e-140, 1e150), "float32": (1e-15, 1e18), "bfloat16": (1e-15, 1e18), "float16": (0.1, 100.0)}


def hypot(x: Value, y: Value) -> Tensor:
    """Return sqrt(x**2 + y**2), which is 5 for 3 and 4; scaled by the larger operand where the squares would overflow
    or underflow."""
    a, b = (t.abs(as_float(v)) for v in lift(x, y))
    top, low = t.maximum(a, b), t.minimum(a, b)
    least, most = _SQUARED[a.dtype]
    ratio = t.div(low, t.where(t.eq(top, 0), 1.0, top))
    fits = t.logical_and(t.gt(top, least), t.lt(top, most))
    length = t.where(fits, t.sqrt(a * a + b * b), top * t.sqrt(ratio * ratio + 1.0))
    return t.where(t.logical_or(is_inf(a), is_inf(b)), float("inf"), length)  # also beside NaN


def ldexp(x: Value, y: Value) -> Tensor:
    """Return x * 2**y."""
    a, b = (as_float(v) for v in lift(x, y))
    return a * t.pow(2.0, b)


IDENTITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tan": lambda x: t.div(t.sin(x), t.cos(x)),
    "sinh": of.sinh, "cosh": of.cosh, "asin": of.asin, "acos": of.acos, "asinh": of.asinh, "acosh": of.acosh, "atanh": of.atanh,
    "exp2": lambda x: t.pow(2.0, x),  # exp(x * log(2)) is off where the result is a whole number
    "erfc": of.erfc,
    "frac": lambda x: x - trunc(x),
    "deg2rad": lambda x: x * (pi / 180),
    "rad2deg": lambda x: x * (180 / pi),
}  # fmt: skip


# ---------------------------------------------------------------- ternary operators
def addcmul(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    """Return x + value * a * b."""
    product = t.mul(*lift(a, b))
    return add(x, product, value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    """Return x + value * a / b."""
    return add(x, div(a, b), value)


def lerp(x: Tensor, y: Tensor, weight: Value) -> Tensor:
    """Return x + weight * (y - x), computed from the nearer end: y - (1 - weight) * (y - x) for weights from 0.5 on."""
    gap, w = t.sub(y, x), number(weight)
    far = t.sub(1, w) if isinstance(w, Tensor) else 1 - w
    from_x, from_y = t.add(x, t.mul(gap, w)), t.sub(y, t.mul(gap, far))
    if isinstance(w, Tensor):
        return t.where(t.lt(t.abs(w), 0.5), from_x, from_y)
    return from_x if abs(w) < 0.5 else from_y


def xlogy(x: Value, y: Value) -> Tensor:
    """Return x * log(y), 0 where x is 0 (NaN where y is NaN)."""
    a, b = (as_float(v) for v in lift(x, y))
    return t.where(is_nan(b), b, t.where(t.eq(a, 0), 0.0, a * t.log(b)))
