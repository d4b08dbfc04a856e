"""Rows that a kernel writes into an operand that it also reads: the keys and values of a decode step's token.

A kernel may read an operand and also write a row of it if it uses no element that it overwrites: each load occurs in
`where(position == place, row, load)`, where `place` is the position that the row is written to. Then the order of loads
and stores, also of other thread blocks, does not matter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from .expr import Expr
from .index import Index, index
from .kernel import Kernel, OutputStore


class RowUpdate(NamedTuple):
    """A read of an operand with one row replaced: `load` at all positions but `place`, `row` there.

    `position`: index of the element along the axis of the rows.
    """

    load: Expr
    row: Expr
    place: Expr
    position: Index


def row_update(e: Expr) -> RowUpdate | None:
    """The parts of `e` if it reads an operand with one row replaced: where(position == place, row, load); None for
    other expressions."""
    if e.op != "where" or e.args[0].op != "eq" or e.args[2].op != "load":
        return None
    at, place = e.args[0].args
    if at.op != "index" or place.op in ("index", "const") or len(at.value.axes) != 1 or at.value.axes & place.axes:
        return None
    return RowUpdate(e.args[2], e.args[1], place, at.value)


def reads_overwritten(kernel: Kernel) -> bool:
    """Whether `kernel` reads an operand into which it also writes a row."""
    places = {place for store in kernel.stores for place, _ in store.parts}
    return bool(places) and any((u := row_update(e)) is not None and u.place in places for e in kernel.exprs)


def uses_overwritten(kernel: Kernel, buffers: Collection[str], stores: Collection[OutputStore]) -> bool:
    """Whether a kernel may use elements that it overwrites: elements of the operands `buffers`, of which `stores`
    write rows.

    It does not if every load of such an operand is the `load` of a `RowUpdate` whose `place` is that of one of the
    stores.
    """
    places = {part for store in stores for part in store.parts}
    covered: set[Expr] = set()
    for e in kernel.exprs:
        found = row_update(e)
        if found is not None and not found.load.args:
            (axis,) = found.position.axes
            step = found.load.value[1].coefficient(axis)
            rows = found.load.value[1] - found.position * step
            if found.position == index(axis) and axis not in rows.axes and (found.place, step) in places:
                covered.add(e)
    loads = {e for e in kernel.exprs if e.op == "load" and e.value[0] in buffers}
    others = (e for e in kernel.exprs if e not in covered)
    if any(a in loads for e in others for a in e.args) or any(x in loads for s in kernel.stores for x in s.exprs):
        return True
    return any(a in loads for e in covered for a in e.args[:2])


__all__ = ["RowUpdate", "reads_overwritten", "row_update", "uses_overwritten"]
