"""Computes ranges of integer expressions of the kernel IR, and arithmetic that wraps at the width of a dtype.

The kernel IR has integers without a width; emitters compute them in 32 or 64 bits. Where a result may leave the range
of its dtype, a cast to the dtype follows, and small operands whose result may leave 32 bits are widened first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...egraph.types import dtypes
from ...egraph.types.dtypes import greatest, least
from .expr import Builder, Expr

Range = tuple[int, int]

WIDE: Range = (-(1 << 63), (1 << 63) - 1)
INT32: Range = (-(1 << 31), (1 << 31) - 1)


def _corners(op: Callable[[int, int], int]) -> Callable[[Sequence[Range]], Range]:
    """Range of an op of two operands that has its extremes where both operands have one."""

    def found(given: Sequence[Range]) -> Range:
        values = [op(a, b) for a in given[0] for b in given[1]]
        return min(values), max(values)

    return found


def _magnitude(x: Range) -> int:
    return max(abs(x[0]), abs(x[1]))


def _floordiv(given: Sequence[Range]) -> Range:
    (low, high), (least_divisor, _) = given
    if least_divisor > 0:
        return _corners(lambda a, b: a // b)(given)
    most = _magnitude((low, high))
    return -most, most


def _bits(given: Sequence[Range]) -> Range:
    """Range of a bitwise op: that of the fewest bits that both operands have."""
    bits = max(x.bit_length() if x >= 0 else (~x).bit_length() for pair in given for x in pair)
    return (0 if all(low >= 0 for low, _ in given) else -(1 << bits), (1 << bits) - 1)


def _and(given: Sequence[Range]) -> Range:
    positive = [high for low, high in given if low >= 0]
    return (0, min(positive)) if positive else _bits(given)


#: op on integers -> range of its result, from the ranges of its operands
RANGES: dict[str, Callable[[Sequence[Range]], Range]] = {
    "add": _corners(lambda a, b: a + b), "sub": _corners(lambda a, b: a - b), "mul": _corners(lambda a, b: a * b),
    "maximum": _corners(max), "minimum": _corners(min), "floordiv": _floordiv,
    "mod": lambda g: (min(0, g[1][0] + 1), max(0, g[1][1] - 1)),
    "neg": lambda g: (-g[0][1], -g[0][0]), "sign": lambda g: (-1, 1),
    "abs": lambda g: (0 if g[0][0] <= 0 <= g[0][1] else min(map(abs, g[0])), _magnitude(g[0])),
    "and": _and, "or": _bits, "xor": _bits,
    "where": lambda g: (min(g[1][0], g[2][0]), max(g[1][1], g[2][1])),
}  # fmt: skip


class IntegerRanges:
    """Ranges of integer expressions of one kernel, each computed once, and casts where a range exceeds a dtype's."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.known: dict[Expr, Range] = {}

    def of(self, e: Expr) -> Range:
        """(least, greatest) value that the integer or boolean expression `e` may have if it is computed without
        wrapping at fewer than 64 bits."""
        found = self.known.get(e)
        if found is None:
            found = self._found(e)
            self.known[e] = found = found if _within(found, WIDE) else WIDE
        return found

    def _found(self, e: Expr) -> Range:
        if e.kind == "bool":
            return 0, 1
        if e.op == "const":
            return int(e.value), int(e.value)
        if e.op == "index":
            return INT32  # a kernel for all sizes is lowered at small ones
        if e.op == "load":
            return _of_dtype(e.value[3])
        if e.op == "cast":
            whole = _of_dtype(e.value)
            given = self.of(e.args[0]) if e.args[0].kind != "float" else whole
            return given if _within(given, whole) else whole
        if e.op in ("reduce", "scan"):
            low, high = self.of(e.args[0])
            most = INT32[1]  # elements of an axis, at any size
            return {"max": (low, high), "min": (low, high), "sum": (most * min(low, 0), most * max(high, 0))}.get(
                e.value[0], WIDE
            )
        rule = RANGES.get(e.op)
        return rule([self.of(a) for a in e.args]) if rule is not None else WIDE

    def wrapped(self, e: Expr, dtype: str) -> Expr:
        """The integer expression `e`, which has just been made, as a value of `dtype`: its operands are widened to 64
        bits where 32 do not suffice, and a cast follows where the value may leave the dtype's range."""
        if e.kind != "int" or dtypes.category(dtype) != "int":
            return e
        found = self.of(e)
        alone = e.op in ("index", "const", "load", "cast", "scan")  # a scan of integers is computed in 64 bits
        if dtypes.itemsize(dtype) == 8 and not _within(found, INT32) and not alone:
            e = self.b.make(e.op, [self._widened(a) for a in e.args], e.value, e.kind)
        if dtypes.itemsize(dtype) == 8 or _within(found, _of_dtype(dtype)):
            return e
        return self.constant(e.value, dtype) if e.op == "const" else self.b.make("cast", (e,), dtype, "int")

    def as_dtype(self, e: Expr, source: str, dtype: str) -> Expr:
        """The term `e` of a sum or product, cast to the result's `dtype` if the terms have another integer dtype
        (`source`)."""
        same = source == dtype or e.kind != "int" or dtypes.category(dtype) != "int" or e.op in ("index", "const")
        return e if same else self.b.make("cast", (e,), dtype, "int")

    def constant(self, value: int, dtype: str) -> Expr:
        """The constant expression of the integer `value` in `dtype`: it wraps as casts do."""
        kind = dtypes.category(dtype)
        if kind == "int":
            low, high = _of_dtype(dtype)
            value = (value - low) % (high - low + 1) + low
        return self.b.const(value, kind)

    def _widened(self, e: Expr) -> Expr:
        """An operand that emitters may compute in 32 bits, in 64."""
        small = e.kind == "int" and (e.op == "index" or (e.op == "cast" and dtypes.itemsize(e.value) < 8))
        return self.b.make("cast", (e,), "int64", "int") if small else e


def _within(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _of_dtype(dtype: str) -> Range:
    """Range of an integer dtype in the 64 bits in which it is computed; uint64 has the bits of int64."""
    if dtypes.category(dtype) == "bool":
        return 0, 1
    return WIDE if dtypes.itemsize(dtype) == 8 else (int(least(dtype)), int(greatest(dtype)))


__all__ = ["INT32", "IntegerRanges"]
