"""Lowers running sums to scans of the kernel IR, and brings the scans of a kernel into the form in which one loop over
positions computes them.

In the IR a scan has an axis of its own, so that a term can be lowered at any position (reversed by a `flip`, split into
chunks by a `reshape`). `over_positions` finds the order of positions that all scans of a kernel have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...egraph.ir.tensor import Tensor
from ..ir.expr import Builder, Expr, walk
from ..ir.index import Axis, Index, index
from ..ir.kernel import Kernel
from ..ir.unfusable import Unfusable

if TYPE_CHECKING:
    from .op_rules import TermLowering

# ops of a kernel whose scans are in one loop over positions:
RUNNING = "running"  # sum of the first operand over the positions so far
TOTAL = "total"  # sum over all positions, which is known after the loop
ALONG = "along"  # name of the axis of positions


def running_sum(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """Expression of an element of a running sum `t`: a scan up to the index `at` along its axis.

    Raises Unfusable under `guards`, which say where elements exist, not which of them the sum needs.
    """
    x, along = t.args[0], t.attr("axis")
    if x.shape[along] == 1:
        return r.value(x, at, guards)
    if guards:
        raise Unfusable("a running sum that is computed at some positions only")
    axis = r.fresh(int(x.shape[along]), at, guards, "s")
    inner = (*at[:along], index(axis), *at[along + 1 :])
    body = r.ranges.as_dtype(r.value(x, inner), x.dtype, t.dtype)
    return r.b.make("scan", (body, r.b.index(at[along])), ("sum", axis), body.kind)


@dataclass(frozen=True)
class PositionLoop:
    """Results of a kernel in terms of the order in which its scans add elements.

    `axis`: positions in this order. `others`: the kernel's other axes. `change`: the kernel's axes -> indices over
    these. `roots`: expressions of all stores, in which `RUNNING` stands for each scan. `totals`: whether the results
    are for all positions together, and `TOTAL` stands for sums over them; if not, they are for each position.
    """

    axis: Axis
    others: tuple[Axis, ...]
    change: dict[Axis, Index]
    roots: list[Expr]
    totals: bool = False


def over_positions(kernel: Kernel, b: Builder) -> PositionLoop:
    """The kernel's stores with their scans in one loop over positions, as expressions of the builder `b`.

    The positions are elements of the results, or those that a sum adds up. Raises Unfusable if scans have different
    orders of positions, or one is needed at some positions only.
    """
    sizes: set[int] = set()

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op != "scan":
            return b.make(e.op, args, e.value, e.kind)
        body, at = args
        if at.op != "index":
            raise Unfusable("one element of a running sum")
        sizes.add(e.axis.size)
        return b.make(RUNNING, (*b.substituted([body], {e.axis: at.value}), at), e.value[0], e.kind)

    roots = b.rebuilt([e for s in kernel.stores for e in s.exprs], one)
    places = {e.args[1].value for e in walk(roots) if e.op == RUNNING}
    if len(places) != 1 or len(sizes) != 1:
        raise Unfusable("running sums over different positions")
    (place,), (size,) = places, sizes
    axis, change = Axis(ALONG, size), dict[Axis, Index]()
    terms = sorted(place.terms, key=lambda term: abs(term[1]))
    digits = [(a, abs(c)) for a, c in terms if isinstance(a, Axis)]
    sign = 1 if place.const == 0 else -1
    whole = [1, *(c * a.size for a, c in digits)]
    if (
        len(digits) != len(terms) or place.const not in (0, size - 1) or any(c * sign < 0 for _, c in terms)
        or [c for _, c in digits] != whole[:-1] or whole[-1] != size
    ):  # fmt: skip
        raise Unfusable("a running sum of which some positions are needed")
    ascending = index(axis) if sign > 0 else index(axis) * -1 + (size - 1)
    for a, c in digits:
        change[a] = (ascending // c) % a.size
    if change.keys() <= {*kernel.axes}:
        return PositionLoop(axis, tuple(a for a in kernel.axes if a not in change), change, roots)
    ((reduced, _),) = digits if len(digits) == 1 else [(None, 0)]
    return PositionLoop(axis, kernel.axes, change, _with_totals(b, roots, reduced), True)


def _with_totals(b: Builder, roots: Sequence[Expr], axis: Axis | None) -> list[Expr]:
    """The expressions `roots` with `TOTAL` in place of the sums along the reduction axis `axis`, to which the positions
    of all scans belong. Raises Unfusable for other reductions along it, and for sums within sums."""

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op != "reduce" or e.axis != axis:
            return b.make(e.op, args, e.value, e.kind)
        if e.value[0] != "sum":
            raise Unfusable("a reduction of running sums that is no sum")
        return b.make(TOTAL, args, e.value[0], e.kind)

    found = b.rebuilt(roots, one)
    inside = walk(a for e in walk(found) if e.op in (TOTAL, RUNNING) for a in e.args)
    outside = [e for e in walk(found, [e for e in walk(found) if e.op == TOTAL]) if e.op == RUNNING]
    if any(e.op == TOTAL for e in inside) or outside:
        raise Unfusable("a sum over positions within another one")
    return found


__all__ = ["RUNNING", "TOTAL", "PositionLoop", "over_positions", "running_sum"]
