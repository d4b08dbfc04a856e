"""Recognizes kernels that multiply a few rows with packed weights, whose numbers are unpacked once for all rows."""

from __future__ import annotations

from ...ir.expr import walk
from ...ir.index import Axis
from ...ir.kernel import Kernel

PACKED_ROWS = 8  # maximum rows: digits of all rows stay in caches
# maximum numbers of the rows of all products of a kernel: their digits and sums, up to 4 bytes each, are on the stack
PACKED_NUMBERS = 1 << 18
PACKED_DTYPES = ("uint8", "int8")  # of packed numbers


def few_rows(kernel: Kernel) -> Axis | None:
    """The axis over the rows (2 to `PACKED_ROWS`) of a kernel all of whose reductions are sums over products of these
    rows with packed weights, which do not depend on the row; None for other kernels, and if the rows of all products
    together have more than `PACKED_NUMBERS` numbers (products of the same rows may still split them differently)."""
    found = set[Axis]()
    for e in kernel.reductions:
        packed = [x for x in walk(e.args) if x.op == "load" and x.value[3] in PACKED_DTYPES and e.axis in x.axes]
        free = e.axes.difference(*(x.axes for x in packed)) if packed else frozenset()
        if e.value[0] != "sum" or len(free) != 1:
            return None
        found |= free
    rows = found.pop() if len(found) == 1 else None
    if rows is None or rows not in kernel.axes or not 1 < rows.size <= PACKED_ROWS:
        return None
    return rows if rows.size * sum(e.axis.size for e in kernel.reductions) <= PACKED_NUMBERS else None


__all__ = ["PACKED_DTYPES", "PACKED_NUMBERS", "PACKED_ROWS", "few_rows"]
