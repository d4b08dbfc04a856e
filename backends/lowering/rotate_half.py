"""Splits an axis in two if each half of the results reads reductions of the other half (the HALVES transformation,
rotate-half split).

Rotary position embedding computes every element from two columns of a product that are half a head apart, or adjacent;
a condition on the element's index selects the second column. Computed as written, these are two products, which read
the matrix twice. In a kernel over half of the axis, with one result per half, both results need the same two columns,
which are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir.axes import normalized
from ..ir.expr import Builder, Expr, walk
from ..ir.index import Axis, Index, index
from ..ir.kernel import Kernel, OutputStore


def halved_kernel(kernel: Kernel) -> Kernel:
    """`kernel` after `with_split_axes`, its axes in normal form; `kernel` itself if no axis is split."""
    found = with_split_axes(kernel)
    return kernel if found is kernel else normalized(found)


def with_split_axes(kernel: Kernel) -> Kernel:
    """`kernel` with every axis split in two whose halves read each other's reductions; `kernel` itself if there are
    none."""
    for axis in kernel.axes:
        if axis.size % 2 == 0 and _turns(kernel, axis):
            kernel.builder.transformations.add("HALVES")
            return with_split_axes(_cut(kernel, axis))
    return kernel


def _turns(kernel: Kernel, axis: Axis) -> bool:
    """Whether loads inside a reduction depend on the half of an axis."""
    first = [
        e for e in kernel.exprs
        if e.op == "lt" and e.args[0].op == "index" and e.args[0].value == index(axis)
        and e.args[1].op == "const" and 2 * e.args[1].value == axis.size
    ]  # fmt: skip
    sides = {*first, *(e for e in kernel.exprs if e.op == "not" and e.args[0] in first)}
    sides -= {g for s in kernel.stores for g in s.guards}  # these guards separate results
    return bool(sides) and any(
        x.op == "load" and not sides.isdisjoint(x.args) for r in kernel.reductions for x in walk(r.args)
    )


def _cut(kernel: Kernel, axis: Axis) -> Kernel:
    """The kernel over half of an axis, with every store twice, once per half."""
    half = Axis(f"{axis.name}h", axis.size // 2)
    stores: list[OutputStore] = []
    for store in kernel.stores:
        for start in (0, half.size):
            change = {axis: index(half) + start}
            moved = store.moved(store.at.replaced(change), simplified(kernel.builder, store.exprs, change))
            if all(g.op != "const" or g.value for g in moved.guards):
                stores.append(replace(moved, guards=tuple(g for g in moved.guards if g.op != "const")))
    axes = tuple(half if a == axis else a for a in kernel.axes)
    return replace(kernel, axes=tuple(a for a in axes if a.size > 1), stores=tuple(stores))


def simplified(b: Builder, roots: Sequence[Expr], change: Mapping[Axis, Index]) -> list[Expr]:
    """The expressions `roots` rebuilt in builder `b` with each axis in `change` replaced by its index; conditions that
    become constant are folded."""

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op == "index":
            return b.index(e.value.replaced(change))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            guards = args[len(steps) :]
            if any(g.op == "const" and not g.value for g in guards):
                return b.const(0, e.kind)
            kept = (g for g in guards if g.op != "const")
            return b.make("load", (*args[: len(steps)], *kept), (operand, at.replaced(change), steps, dtype), e.kind)
        if args == e.args:
            return None
        if e.op == "reduce":
            return b.reduce(e.value[0], e.axis, args[0])
        return None if e.op == "cast" else b.pointwise(e.op, args)

    return b.rebuilt(roots, one)
