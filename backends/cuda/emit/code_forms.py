"""Recognizes encodings of quantized numbers that are converted several at a time in registers, by evaluating
expressions.

A *code* is the bytes of a quantized number, the encoding is the function from codes to numbers. An expression over one
load of bytes is a `CodeForm` if its values for all 256 bytes are those of a known encoding, and if its elements along K
are stored as the encoding requires: 16 contiguous bytes hold 16 elements, or 32 elements of 4 bits, of which the first
16 are in the low halves of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....egraph.ops.ops import OPS
from ....egraph.types import dtypes
from ...ir.expr import Expr, walk
from ...ir.index import Axis, Index, index
from ...ir.op_texts import SAME

Array = np.ndarray[Any, Any]
BYTES = 16  # of a vector load
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@dataclass(frozen=True)
class CodeForm:
    """An encoding of quantized numbers in bytes, and the load that reads them.

    `name`: the conversion in cuda_library.cuh (`nibbles`, `e2m1`, `unsigned_bytes`, `signed_bytes`, `float8`). `load`:
    the load of the bytes. `span`: how many numbers 16 bytes hold (16 or 32). `offset`: added to each integer after
    conversion.
    """

    name: str
    load: Expr
    span: int
    offset: float = 0.0


def code_form(e: Expr, axis: Axis) -> CodeForm | None:
    """The encoding by which the expression `e` decodes numbers from loaded bytes, with its elements along `axis` (K);
    None if it does not load bytes or the encoding is unknown."""
    loads = [x for x in walk([e]) if x.op == "load"]
    if len(loads) != 1 or loads[0].value[3] not in ("uint8", "int8") or loads[0].args or e.kind != "float":
        return None
    (load,) = loads
    for span in (BYTES, 2 * BYTES):
        if (
            axis.size % span == 0
            and _advances_by_vector(e, load, axis, span)
            and _is_contiguous(load.value[1], axis, span)
        ):
            table = _table(e, load, axis, span)
            found = _known_form(table, load) if table is not None else None
            if found is not None and (found.span == span):
                return found
    return None


def _advances_by_vector(e: Expr, load: Expr, axis: Axis, span: int) -> bool:
    """Whether a step of `span` elements along an axis moves the load by 16 bytes and changes no other index in the
    expression."""
    later = {axis: index(axis) + span}
    others = [x.value for x in walk([e]) if x.op == "index"]
    at: Index = load.value[1]
    return all(i.axes <= {axis} and i.replaced(later) == i for i in others) and (
        at.replaced(later) - at == index(BYTES))  # fmt: skip


def _is_contiguous(at: Index, axis: Axis, span: int) -> bool:
    """Whether the first `span` elements along an axis are read from 16 contiguous, 16-byte aligned bytes.

    With a span of 32, the second 16 elements read the same bytes again.
    """
    here = [_index_values(at, {axis: np.array(k)}) for k in range(span)]
    own = at.replaced({axis: index(0)})
    aligned = own.const % BYTES == 0 and all(c % BYTES == 0 for _, c in own.terms)
    return aligned and [int(v - here[0]) for v in here] == [k % BYTES for k in range(span)]


def _index_values(at: Index, where: Mapping[Axis, Array]) -> Array:
    """Values of an index at given coordinates along axes (arrays that broadcast). Other axes are at 0."""
    found = np.array(at.const)
    for atom, c in at.terms:
        if isinstance(atom, Axis):
            found = found + c * where.get(atom, np.array(0))
        else:
            inner = _index_values(atom.index, where)
            found = found + c * (inner % atom.by if atom.rest else inner // atom.by)
    return found


def _table(e: Expr, load: Expr, axis: Axis, span: int) -> Array | None:
    """Values of an expression, float64 [256, span], for each byte value and each of `span` elements along an axis.

    None if an operation cannot be evaluated.
    """
    codes = np.arange(256, dtype=np.uint8).view(dtypes.numpy_dtype(load.value[3]))[:, None]
    known: dict[Expr, Array] = {load: codes}
    where = {axis: np.arange(span)[None, :]}
    with np.errstate(all="ignore"):
        for x in _ordered(e):
            if x in known:
                continue
            args = [known[a] for a in x.args]
            if x.op == "const":
                known[x] = np.array(x.value)
            elif x.op == "index":
                known[x] = _index_values(x.value, where)
            elif x.op == "cast":
                known[x] = args[0].astype(np.float64 if dtypes.is_float(x.value) else dtypes.numpy_dtype(x.value))
            elif (function := OPS[SAME.get(x.op, x.op)].numpy) is not None and x.op != "reduce":
                known[x] = np.asarray(function({}, *args))
            else:
                return None
    return np.broadcast_to(known[e], (256, span)).astype(np.float64)


def _ordered(e: Expr) -> list[Expr]:
    """An expression's nodes, operands first."""
    found: dict[Expr, None] = {}
    stack = [(e, False)]
    while stack:
        x, ready = stack.pop()
        if ready:
            found[x] = None
        elif x not in found:
            stack.append((x, True))
            stack += [(a, False) for a in x.args]
    return list(found)


def _known_form(table: Array, load: Expr) -> CodeForm | None:
    """The known encoding with these values [256, span] (see `_table`); None if there is none."""
    whole = np.arange(256)
    if table.shape[1] == 2 * BYTES:
        low, high = table[:16, 0], table[::16, BYTES]
        if (table[:, :BYTES] != low[whole % 16, None]).any() or (table[:, BYTES:] != high[whole // 16, None]).any():
            return None
        if (low != high).any():
            return None
        if (low - low[0] == np.arange(16)).all() and _small(low[0], 100):
            return CodeForm("nibbles", load, 2 * BYTES, float(low[0]))
        return CodeForm("e2m1", load, 2 * BYTES) if (low == [*E2M1, *-E2M1]).all() else None
    if not (np.equal(table, table[:, :1]) | (np.isnan(table) & np.isnan(table[:, :1]))).all():
        return None
    own = table[:, 0]
    if (own - own[0] == whole).all() and _small(own[0], 256):
        return CodeForm("unsigned_bytes", load, BYTES, float(own[0]))
    signed = whole.astype(np.uint8).view(np.int8).astype(np.float64)
    if (own - own[0] == signed).all() and _small(own[0], 1):
        return CodeForm("signed_bytes", load, BYTES, float(own[0]))
    return CodeForm("float8", load, BYTES) if np.array_equal(own, _float8(), equal_nan=True) else None


def _small(offset: float, limit: int) -> bool:
    """Whether an offset is an integer of magnitude below `limit`, so that its sums with codes are exact in 16 bits."""
    return float(offset).is_integer() and abs(offset) < limit


def _float8() -> Array:
    """Values of the 8-bit float e4m3fn."""
    return np.asarray(OPS["from_float8"].numpy({"dtype": "float32"}, np.arange(256, dtype=np.uint8)), np.float64)  # type: ignore[misc]


__all__ = ["BYTES", "CodeForm", "code_form"]
