"""Lowers ops that read or write at indices in memory to the kernel IR: gather, gather_elements and scatter_elements of
one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ..ir.expr import Builder, Expr
from ..ir.index import Index
from ..ir.kernel import Buffer
from ..ir.simplify import as_index
from ..ir.unfusable import Unfusable

if TYPE_CHECKING:
    from .op_rules import TermLowering


def from_the_start(b: Builder, where: Expr, size: int) -> Expr:
    """Expression, made by `b`, of the index that `where` means along an axis of `size` elements, where negative values
    count from the end."""
    if where.op in ("index", "const"):
        return b.index(as_index(where) + size) if as_index(where).range[1] < 0 else where
    zero = b.const(0, "int")
    if where.op == "where" and where.args[0].op == "lt" and where.args[0].args == (where.args[2], zero):
        return where  # the expression counts from the start already
    return b.pointwise(
        "where", (b.pointwise("lt", (where, zero)), b.pointwise("add", (where, b.const(size, "int"))), where)
    )


def gather(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    table, picks = t.args
    if table not in r.of:
        raise Unfusable("a gather from a value that is not in memory")
    a, buffer = t.attr("axis"), r.buffers[r.of[table]]
    where = r.value(picks, at[a : a + picks.rank], guards)
    rest = (*at[:a], *at[a + picks.rank :])
    strides = (*buffer.strides[:a], *buffer.strides[a + 1 :])
    sizes = (*buffer.shape[:a], *buffer.shape[a + 1 :])
    place = Index()
    for i, stride, size in zip(rest, strides, sizes, strict=True):
        place = place + i * stride if size > 1 else place
    return r.b.load(r.of[table], place, buffer.dtype, _picked(where, buffer, a), guards)


def _picked(where: Expr, buffer: Buffer, axis: int) -> tuple[tuple[Expr, int], ...]:
    """The data-dependent part of a load's position (`Builder.load`): an index along an axis, with the axis's stride.
    Empty if the axis has one element: its stride may be that of another axis, whose size would bound the index."""
    return ((where, buffer.strides[axis]),) if buffer.shape[axis] != 1 else ()


def gather_elements(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    table, picks = t.args
    while (
        table not in r.of
        and table.op == "cast"
        and dtypes.category(table.dtype) == dtypes.category(table.args[0].dtype) == "float"
    ):
        table = table.args[0]
    if table not in r.of:
        raise Unfusable("gather_elements from a value that is not in memory")
    a, buffer = t.attr("axis"), r.buffers[r.of[table]]
    place = Index()
    for k, (i, stride, size) in enumerate(zip(at, buffer.strides, buffer.shape, strict=True)):
        place = place + i * stride if k != a and size > 1 else place
    where = from_the_start(r.b, r.value(picks, at, guards), buffer.shape[a])
    return r.b.load(r.of[table], place, buffer.dtype, _picked(where, buffer, a), guards)


def scatter_elements(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """Expression of a scatter of one row that the kernel writes itself: the new row at its place, else the operand.

    What is loaded at the place of the new row is not used, so it does not matter whether that row is written before or
    after the load (ir/row_update.py).
    """
    base, places, row = t.args
    axis, sizes = t.attr("axis"), concrete(t.shape)
    if t not in r.written or t.attr("mode") != "set" or concrete(row.shape) != (*sizes[:axis], 1, *sizes[axis + 1 :]):
        raise Unfusable("a scatter that is read, other than of one row that the kernel writes")
    own = (*at[:axis], Index(), *at[axis + 1 :])
    place = from_the_start(r.b, r.value(places, own, guards), sizes[axis])
    if place.op in ("index", "const"):
        raise Unfusable("a scatter to a known place that is read")
    new, old = r.value(row, own, guards), r.value(base, at, guards)
    return r.b.pointwise("where", (r.b.pointwise("eq", (r.b.index(at[axis]), place)), new, old))
