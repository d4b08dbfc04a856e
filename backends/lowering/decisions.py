"""Finds decisions (rounding to whole numbers, comparisons, casts to integers) whose float a kernel would compute in
another width than the graph does.

A kernel computes all floats in float64 if a buffer has it, else in float32, and drops casts between floats. So a
comparison in float64 of float32 values would be one in float32, and a float32 product that is compared in float64 would
have digits that the function's has not.
"""

from __future__ import annotations

from collections.abc import Container

from ...egraph.ir.tensor import Tensor
from ...egraph.simplify.jumps import COMPARISONS, PASSING, REMAINDERS, STEPS, UNROUNDED, behind_views
from ...egraph.types import dtypes

DECISIONS = STEPS | COMPARISONS | REMAINDERS | {"cast"}


def decided_by_another_width(node: Tensor, operands: Container[Tensor], computed_in: str) -> bool:
    """Whether the result of `node`, an op of `DECISIONS`, depends on arithmetic of a float dtype other than
    `computed_in`, the one in which its kernel computes. `operands`: tensors that the kernel reads from memory.

    Comparisons with 0 do not, because rounding keeps the sign; nor do products of matrices and sums, whose order
    decides.
    """
    if node.op == "cast" and dtypes.is_float(node.dtype):
        return False
    if node.op in COMPARISONS and any(a.op == "full" and not a.attr("value") for a in map(behind_views, node.args)):
        return False
    stack, seen = [a for a in node.args if dtypes.is_float(a.dtype)], set[Tensor]()
    while stack:
        x = stack.pop()
        if x in seen or x in operands or not (x.entry.pointwise or x.entry.moves):
            continue
        seen.add(x)
        if x.op not in UNROUNDED and x.entry.pointwise and x.dtype != computed_in:
            return True
        if x.op not in STEPS and x.op != "round":
            stack += [a for a in x.args if dtypes.is_float(a.dtype)]
    return False


def is_rounded_arithmetic(x: Tensor, operands: Container[Tensor]) -> bool:
    """Whether a kernel that reads `operands` computes the value `x`, behind ops that move it, by elementwise arithmetic
    that rounds."""
    while x not in operands and (x.entry.moves or x.op in PASSING) and x.args:
        x = x.args[0]
    return x not in operands and x.entry.pointwise and x.op not in UNROUNDED


__all__ = ["DECISIONS", "decided_by_another_width", "is_rounded_arithmetic"]
