"""MOMENTS: a sum of squared distances from the mean, in one walk over what is summed.

sum((a - m)²) with m the mean of a waits for the whole of sum(a). For any number c, with t = sum(a - c), the mean is c + t / n and
the sum is sum((a - c)²) - t² / n: two sums that share one walk and that parts of a row can compute on their own. With c an
element of the row itself (its first), both terms are small where the row's spread is, so that no digits are lost to its mean.
"""

from __future__ import annotations

from .index import Axis, Index
from .kir import Expr, Kernel, walk


def in_one_walk(kernel: Kernel, axis: Axis) -> Kernel:
    """The kernel with such sums over an axis in one walk; as it was where there are none."""
    found = {e: total for e in kernel.reductions if (total := _mean_within(e, axis)) is not None}
    if not found:
        return kernel
    b, size = kernel.builder, axis.size
    change: dict[Expr, Expr] = {}
    for e, total in found.items():
        body = total.args[0]
        (first,) = b.substituted([body], {axis: Index()})
        off = b.pointwise("sub", (body, first))
        moved, squares = (b.make("reduce", (x,), ("sum", axis), "float") for x in (off, b.mul(off, off)))
        change[total] = b.pointwise("add", (moved, b.mul(first, b.const(size))))
        spread = b.pointwise("sub", (squares, b.mul(b.mul(moved, moved), b.const(1.0 / size))))
        change[e] = b.pointwise("maximum", (spread, b.const(0.0)))
    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], lambda e, args: change.get(e)))


def _mean_within(e: Expr, axis: Axis) -> Expr | None:
    """The sum whose mean a sum of squared distances is from, None where it is another kind of reduction."""
    if e.value != ("sum", axis) or e.args[0].op != "mul" or e.args[0].args[0] is not e.args[0].args[1]:
        return None
    off = e.args[0].args[0]
    if off.op != "sub" or off.args[1].op != "mul":
        return None
    body, (total, share) = off.args[0], off.args[1].args
    fits = total.op == "reduce" and total.value == ("sum", axis) and total.args[0] is body
    plain = all(x.op != "reduce" for x in walk([body]))
    return total if fits and plain and share.op == "const" and abs(share.value * axis.size - 1.0) < 1e-6 else None
