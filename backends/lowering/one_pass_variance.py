"""The MOMENTS transformation: one-pass variance (shifted sums, as in Welford's and Chan's methods).

sum((a - m)²) with the mean m of a must wait for all of sum(a). For any constant c, with t = sum(a - c), the mean is c +
t / n and the sum of squares is sum((a - c)²) - t² / n. The two sums share one loop, and parts of a row can be summed
independently. c is the first element of the row, so that both terms are of the order of the row's variance and a large
mean causes no cancellation.
"""

from __future__ import annotations

from ..ir.expr import Expr, walk
from ..ir.index import Axis, Index
from ..ir.kernel import Kernel


def in_one_pass(kernel: Kernel, axis: Axis) -> Kernel:
    """`kernel` with its sums of squared deviations along `axis` computed in one pass; `kernel` itself if there are no
    such sums."""
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
    """The sum of which the mean in a sum of squared deviations is computed; None for other reductions."""
    if e.value != ("sum", axis) or e.args[0].op != "mul" or e.args[0].args[0] is not e.args[0].args[1]:
        return None
    off = e.args[0].args[0]
    if off.op != "sub" or off.args[1].op != "mul":
        return None
    body, (total, share) = off.args[0], off.args[1].args
    fits = total.op == "reduce" and total.value == ("sum", axis) and total.args[0] is body
    plain = all(x.op != "reduce" for x in walk([body]))
    return total if fits and plain and share.op == "const" and abs(share.value * axis.size - 1.0) < 1e-6 else None
