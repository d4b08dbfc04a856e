"""Holds the rules by which the graph simplification rewrites casts."""

from __future__ import annotations

from typing import Any

from ..ir.tensor import Tensor
from ..types import dtypes
from .simplifier import Simplifier

#: Significand bits per float dtype: integers up to 2**n are exact.
_WHOLE = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WIDER = {("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("float16", "float64"),
          ("bfloat16", "float64")}  # fmt: skip


def lossless(source: str, target: str) -> bool:
    """Whether every value of the source dtype is exactly representable in the target dtype."""
    if source == target or (source, target) in _WIDER or source == "bool":
        return True
    if dtypes.category(source) != "int" or target == "bool":
        return False
    bits, signed = 8 * dtypes.itemsize(source), not source.startswith("u")
    if dtypes.is_float(target):
        return bits - signed <= _WHOLE[target]
    if target.startswith("u"):
        return not signed and bits <= 8 * dtypes.itemsize(target)
    return bits - signed <= 8 * dtypes.itemsize(target) - 1


def simplify_cast(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The operand in place of a cast to its own dtype; one cast in place of a cast of a lossless cast.

    None if nothing changes.
    """
    (x,), target = args, attrs["dtype"]
    if x.dtype == target:
        return x
    if x.op == "cast" and lossless(x.args[0].dtype, x.dtype):
        source = x.args[0].dtype
        if dtypes.is_float(source) or not dtypes.is_float(target) or lossless(source, target):
            return s.build("cast", x.args, attrs)
    return None


__all__ = ["lossless", "simplify_cast"]
