"""Recognizes attention of few query rows (decode steps) in kernel IR: its two products, its softmax, its loads of keys
and values."""

from __future__ import annotations

from dataclasses import dataclass

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, factors, walk
from ...ir.index import Axis, index
from ...ir.kernel import Kernel
from ...ir.loop_fusion import shared_maximum
from ...ir.row_update import row_update
from ...ir.tiling import Shape
from ..emit.thread_layout import is_vectorizable
from .new_rows import NewRow, new_rows

ROWS = 16  # maximum query rows


@dataclass(frozen=True)
class DecodeAttention:
    """The parts of an attention kernel in the IR.

    `scores`: the product of queries and keys; `query`: its left operand; `maximum`, `total`, `result`: the reductions
    over the axis `positions`, namely the softmax's maximum and sum, and the product with the values; `keys`, `values`:
    the loads of keys and values; `head`, `column`: axes of their head sizes; `rows`: the new rows that the kernel
    writes into keys and values.
    """

    scores: Expr
    query: Expr
    maximum: Expr
    total: Expr
    result: Expr
    keys: Expr
    values: Expr
    positions: Axis
    head: Axis
    column: Axis
    rows: tuple[NewRow, ...] = ()


def attention_of(kernel: Kernel, shape: Shape) -> DecodeAttention | None:
    """The parts of `kernel` if it is attention of at most `ROWS` query rows over keys and values of two bytes an
    element, each contiguous along the head size, and possibly writes a row of each; None for other kernels. `shape`:
    roles of the kernel's axes (row, column, batch, reduction)."""
    if shape.kind != "attention" or shape.walks or shape.joined or not 1 <= shape.m <= ROWS or len(shape.cols) != 1:
        return None
    results = [e for e in shape.dots if e.axis in shape.outer and any(x in shape.dots for x in walk(e.args))]
    if len(results) != 1:
        return None
    (result,) = results
    positions, column = result.axis, shape.cols[0]
    maximum = shared_maximum(result, positions)
    products = [x for x in walk(maximum.args) if x in shape.dots] if maximum is not None else []
    own = [e for e in kernel.reductions if e.axis == positions and products and products[0] in walk(e.args)]
    if maximum is None or len(own) != 3 or maximum not in own:
        return None
    (total,) = (e for e in own if e not in (maximum, result))
    weights, under = factors(result.args[0])
    values = [e for e in weights if column in e.axes]
    rest = [e for e in weights if e not in values]
    if len(products) != 1 or under or len(values) != 1 or rest != [total.args[0]] or total.value[0] != "sum":
        return None
    (scores,) = products
    dot, value = shape.dots[scores], values[0]
    if len(dot.right) != 1:
        return None
    head = scores.axis
    rows = new_rows(kernel, {"keys": (dot.right[0], head), "values": (value, column)}, positions, shape)
    if rows is None:
        return None
    key, value = (u.load if (u := row_update(e)) is not None else e for e in (dot.right[0], value))
    for e, axis in ((key, head), (value, column)):
        if e.op != "load" or e.args or e.value[3] not in HALVES or e.value[3] != key.value[3]:
            return None
        if e.axes - {axis, positions, *shape.batch} or not is_vectorizable(e.value[1], axis, 8, 2):
            return None
        step = e.value[1].coefficient(positions)
        rest_of = e.value[1] - index(axis) - index(positions) * step
        if rest_of.axes - {*shape.batch} or step < axis.size or step % 8:
            return None
    query = kernel.builder.product(dot.left, ())
    if positions in query.axes or column in query.axes or head.size % 8 or column.size % 8:
        return None
    return DecodeAttention(scores, query, maximum, total, result, key, value, positions, head, column, rows)
