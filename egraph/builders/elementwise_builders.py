"""Functions that build elementwise ops: arithmetic, comparisons, logic, and choices between elements."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.tensor import Tensor, make
from ..ops.ops import OPS, Op
from ..types import dtypes
from .operand_alignment import Operand, align, as_operand, as_tensor, cast, with_rank


def elementwise(name: str) -> Callable[..., Tensor]:
    """The function that builds nodes of the elementwise op `name`, which has no attributes.

    Of one operand: integers and bools of an op for floats are cast to float32 first. Of two: ranks and dtypes are
    aligned.
    """
    if OPS[name].arity == 2:
        return _binary(name)

    def build(x: Tensor) -> Tensor:
        x = as_tensor(x)
        if OPS[name].floats_only and not dtypes.is_float(x.dtype):
            x = cast(x, "float32")
        return make(name, (x,))

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


def float_functions() -> list[Op]:
    """The elementwise ops of one float operand, without attributes, that round their result: exp, sqrt, silu, ..."""
    return [
        o for o in OPS.values()
        if o.law == "pointwise" and o.arity == 1 and o.floats_only and not o.attrs and o.rounding != "never"
    ]  # fmt: skip


def _binary(name: str) -> Callable[[Operand, Operand], Tensor]:
    def build(x: Operand, y: Operand) -> Tensor:
        return make(name, align(x, y))

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


neg, abs, sign, exp, log, log1p, expm1 = map(elementwise, ("neg", "abs", "sign", "exp", "log", "log1p", "expm1"))
sqrt, rsqrt, recip, tanh, erf, sin, cos = map(elementwise, ("sqrt", "rsqrt", "recip", "tanh", "erf", "sin", "cos"))
atan, floor, ceil, round, is_nan, is_inf = map(elementwise, ("atan", "floor", "ceil", "round", "is_nan", "is_inf"))
add, sub, mul, mod, pow = map(_binary, ("add", "sub", "mul", "mod", "pow"))
floordiv, maximum, minimum = map(_binary, ("floordiv", "maximum", "minimum"))
logical_and, logical_or, logical_xor = map(_binary, ("and", "or", "xor"))


def _comparison(name: str) -> Callable[[Operand, Operand], Tensor]:
    plain = _binary(name)

    def build(x: Operand, y: Operand) -> Tensor:
        kinds = [o.dtype if isinstance(o, Tensor) else "" for o in (x, y)]
        signed = [k.startswith("int") for k in kinds]
        if "uint64" not in kinds or not any(signed):
            return plain(x, y)
        low = make("lt", align(x if signed[0] else y, 0))  # negative numbers are below all unsigned ones
        found = plain(*align(x, y, dtype="uint64"))
        return logical_or(low, found) if signed[0] and name != "eq" else logical_and(logical_not(low), found)

    build.__name__, build.__doc__ = name, f"{OPS[name].doc}; exact between uint64 and signed integers"
    return build


eq, lt, le = map(_comparison, ("eq", "lt", "le"))


def div(x: Operand, y: Operand) -> Tensor:
    """x / y; integers and bools are cast to floating point first."""
    x, y = as_operand(x), as_operand(y)
    whole = not any(dtypes.is_float(o.dtype) if isinstance(o, Tensor) else isinstance(o, float) for o in (x, y))
    return make("div", align(x, y, dtype="float32" if whole else None))


def gt(x: Operand, y: Operand) -> Tensor:
    """Elementwise x > y as bool, with broadcasting."""
    return lt(y, x)


def ge(x: Operand, y: Operand) -> Tensor:
    """Elementwise x >= y as bool, with broadcasting."""
    return le(y, x)


def logical_not(x: Tensor) -> Tensor:
    """Elementwise negation of truth values."""
    return make("not", (cast(x, "bool"),))


def ne(x: Operand, y: Operand) -> Tensor:
    """Elementwise x != y as bool, with broadcasting."""
    return logical_not(eq(x, y))


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Elementwise choice: x where the condition holds, else y."""
    (a, b), condition = align(x, y), as_tensor(condition)
    rank = max(condition.rank, a.rank)
    return make("where", (with_rank(cast(condition, "bool"), rank), with_rank(a, rank), with_rank(b, rank)))


def square(x: Tensor) -> Tensor:
    """x * x, elementwise."""
    return mul(x, x)


__all__ = [
    "abs", "add", "atan", "ceil", "cos", "div", "eq", "erf", "exp", "expm1", "floor", "floordiv", "ge", "gt",
    "is_inf", "is_nan", "le", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "lt",
    "maximum", "minimum", "mod", "mul", "ne", "neg", "pow", "recip", "round", "rsqrt", "sign", "sin", "sqrt",
    "square", "sub", "tanh", "where",
]  # fmt: skip
