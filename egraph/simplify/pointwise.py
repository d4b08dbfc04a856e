"""Holds simplification rules of pointwise ops: operand order, broadcasts, identities of arithmetic, logic and
selection."""

from __future__ import annotations

from math import frexp, isfinite
from typing import Any

import numpy as np

from ..ir.tensor import Tensor, make
from ..ops.law_text import broadcast
from ..ops.ops import OPS
from ..types import dtypes
from .fills import fill, is_fill_of, is_plus_zero, is_zero, number, unit_fill
from .simplifier import Simplifier


def operand_order(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The commutative op with its operands in canonical order: a fill second, otherwise the order seen first.

    None if nothing changes, and for maximum and minimum where no bit may change (`Simplifier.exact`): max(0.0, -0.0)
    returns the first operand.
    """
    if not OPS[op].commutative or len(args) != 2 or (s.exact and op in ("maximum", "minimum")):
        return None
    x, y = args
    if (x.op == "full") != (y.op == "full"):
        return s.build(op, (y, x), attrs) if x.op == "full" else None
    key = (op, *sorted((id(x), id(y))))
    first = s.spelling.setdefault(key, make(op, (x, y), attrs))
    return None if first.args[0] is x and first.args[1] is y else s.build(op, first.args, attrs)


def without_broadcasts(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The op applied before its operands are broadcast, so that it computes fewer elements; if all operands were
    broadcast, the result is broadcast instead.

    None if nothing changes.
    """
    inner = tuple(a.args[0] if a.op == "broadcast_to" else unit_fill(a) for a in args)
    if all(a is b for a, b in zip(inner, args)):
        return None
    shape, small = broadcast(*(a.shape for a in args)), broadcast(*(a.shape for a in inner))
    if small == shape:
        return s.build(op, inner, attrs)
    if any(a.op == "broadcast_to" for a in args):
        return s.stretched(s.build(op, inner, attrs), shape)
    return None


def _whole(s: Simplifier, x: Tensor, *others: Tensor) -> Tensor:
    """x broadcast to the result shape of a pointwise op with the other operands."""
    return s.stretched(x, broadcast(x.shape, *(o.shape for o in others)))


def simplify_add(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A simpler sum: without a zero operand, as a difference in place of adding a negation, or with constants merged.

    None if nothing changes.
    """
    x, y = args
    floats = dtypes.is_float(x.dtype)
    if is_zero(y) and (not floats or not s.exact or is_fill_of(y, 0.0, negative_zero=True)):  # -0.0 + 0.0 is 0.0
        return _whole(s, x, y)
    if y.op == "neg":
        return s.build("sub", (x, y.args[0]))
    if x.op == "neg":
        return s.build("sub", (y, x.args[0]))
    return _gather_numbers(s, op, args)


def _gather_numbers(s: Simplifier, op: str, args: tuple[Tensor, ...]) -> Tensor | None:
    """Merge constants: (x + a) + b and (x * a) * b with numbers a and b."""
    x, b = args
    if (
        ((s.exact or s.at_sharp) and dtypes.is_float(x.dtype))
        or x.op != op
        or number(b) is None
        or number(x.args[1]) is None
    ):
        return None
    both = s.build(op, (x.args[1], b))
    value = number(both)
    if value is None or not isfinite(value) or (value == 0 and op == "mul") or not _representable(value, x.dtype):
        return None
    return s.build(op, (x.args[0], both))


def _representable(value: float, dtype: str) -> bool:
    """Whether a number neither overflows nor underflows to zero in a dtype."""
    if not dtypes.is_float(dtype):
        return True
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.asarray(value).astype(dtypes.numpy_dtype(dtype)))
    return isfinite(rounded) and (rounded != 0 or value == 0)


def simplify_sub(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A simpler difference: without a zero operand, or as a sum in place of subtracting a negation or a number.

    None if nothing changes.
    """
    x, y = args
    floats = dtypes.is_float(x.dtype)
    if is_zero(y) and (not floats or not s.exact or is_fill_of(y, 0.0)):
        return _whole(s, x, y)
    if is_zero(x) and (not floats or not s.exact or is_fill_of(x, 0.0, negative_zero=True)):
        return _whole(s, s.build("neg", (y,)), x)
    if y.op == "neg":
        return s.build("add", (x, y.args[0]))
    if not s.exact and floats and number(y) is not None:
        return s.build("add", (x, fill(y.shape, -float(number(y) or 0.0), y.dtype)))
    return None


def simplify_mul(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A simpler product: factors 1, -1 and (integers only) 0 folded, two negations cancelled, constants merged.

    None if nothing changes.
    """
    x, y = args
    if x.dtype == "bool":
        return None
    if is_fill_of(y, 1):
        return _whole(s, x, y)
    if is_fill_of(y, -1) and not x.dtype.startswith("u"):
        return _whole(s, s.build("neg", (x,)), y)
    if is_zero(y) and not dtypes.is_float(x.dtype):
        return s.stretched(s.scalar(0, x), broadcast(x.shape, y.shape))
    if x.op == "neg" and y.op == "neg":
        return s.build("mul", (x.args[0], y.args[0]))
    found = _gather_numbers(s, op, args)
    return _mask(s, args) if found is None else found


HUGE = 1e4  # a sum with a number of this magnitude loses significant digits


def _mask(s: Simplifier, args: tuple[Tensor, ...]) -> Tensor | None:
    """Protect an additive mask (1 − m)·huge by rewriting it as where(1 − m = 0, 0, 1 − m)·huge.

    This prevents distributing into huge − m·huge, whose terms would absorb the other summands before they cancel.
    """
    x, by = args[0], number(args[1])
    base = x
    while base.args and base.entry.kind == "view":
        base = base.args[0]
    if s.exact or by is None or not HUGE <= abs(by) < float("inf") or base.op not in ("add", "sub"):
        return None
    zero = s.scalar(0, x)
    return s.build("mul", (s.build("where", (s.build("eq", (x, zero)), zero, x)), args[1]))


def simplify_div(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A product with the reciprocal, in place of a division by a number or a square root: only with one that is exact
    where the quotient's rounding decides a whole number or a truth value. None if nothing changes."""
    x, y = args
    by = number(y)
    if y.op == "sqrt" and not (s.exact or s.at_sharp):  # rsqrt of a row's variance is computed once for the row
        return s.build("mul", (x, s.build("rsqrt", y.args)))
    if by is None or not by or not isfinite(by) or not _representable(by, y.dtype):
        return None
    if is_fill_of(y, 1):
        return _whole(s, x, y)
    inverse = 1.0 / by
    if not _representable(inverse, y.dtype) or ((s.exact or s.at_sharp) and abs(frexp(by)[0]) != 0.5):
        return None
    return s.build("mul", (x, fill(y.shape, inverse, y.dtype)))


def simplify_pow(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Products, roots and reciprocals in place of the powers 1 to 4, 1/2, -1/2 and -1. None for other powers."""
    x, y = args
    floats, power = dtypes.is_float(x.dtype), number(y)
    if is_fill_of(y, 1) and not (floats and s.exact):  # NumPy's pow(x, 1.0) is off by one bit for some x
        return _whole(s, x, y)
    if power is None or (floats and s.exact) or x.dtype == "bool":
        return None
    if floats and s.at_sharp and power in (3, 4, -0.5):  # each product, root or quotient rounds, the power once
        return None
    if power in (2, 3, 4):
        square = s.build("mul", (x, x))
        found = square if power == 2 else s.build("mul", (square, x if power == 3 else square))
        return _whole(s, found, y)
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1: "recip"}
    return _whole(s, s.build(roots[power], (x,)), y) if floats and power in roots else None


def applied_twice(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """x or f(x) in place of f(f(x)) where they are equal: -(-x), |(|x|)|, floor(floor(x)) and similar.

    None otherwise.
    """
    (x,) = args
    if x.op == op:
        return x.args[0] if OPS[op].twice == "operand" else x
    if op == "abs" and x.op == "neg" and not x.dtype.startswith("u"):
        return s.build("abs", x.args)
    return None


def equal_operands(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The operand in place of an op on two equal operands; None for different operands."""
    return args[0] if args[0] is args[1] else None


def simplify_logic(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """An operand or a constant in place of `and` or `or` of equal operands, or with a constant bool. None otherwise."""
    x, y = args
    if x is y:
        return x
    if x.dtype != "bool" or number(y) is None:
        return None
    neutral = op == "and"
    shape = broadcast(x.shape, y.shape)
    return s.stretched(x if bool(number(y)) == neutral else s.scalar(not neutral, x), shape)


def simplify_where(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The branch of a selection with a constant condition or equal branches; the selection without a negated condition.

    None if nothing changes.
    """
    condition, x, y = args
    if number(condition) is not None:
        chosen = x if number(condition) else y
        return s.stretched(chosen, broadcast(*(a.shape for a in args)))
    if x is y:
        return s.stretched(x, broadcast(*(a.shape for a in args)))
    return s.build("where", (condition.args[0], y, x)) if condition.op == "not" else None


def simplify_clip(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The operand of a clip without limits; relu for the lower limit +0.0 without an upper limit.

    None for other limits.
    """
    if attrs["lo"] == float("-inf") and attrs["hi"] == float("inf"):
        return args[0]
    return s.build("relu", args) if attrs["hi"] == float("inf") and is_plus_zero(attrs["lo"]) else None


__all__ = [
    "HUGE",
    "applied_twice",
    "equal_operands",
    "operand_order",
    "simplify_add",
    "simplify_clip",
    "simplify_div",
    "simplify_logic",
    "simplify_mul",
    "simplify_pow",
    "simplify_sub",
    "simplify_where",
    "without_broadcasts",
]
