"""Functions that translate ONNX sequence operators. Sequences have a known length and exist only at load time."""

from __future__ import annotations

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import DimExpr
from ...errors import ShapeError
from .node import Node, Result, operator, resolve
from .values import KnownSequence, SymbolicInts


def _place(n: Node, position: int, length: int, default: int) -> int:
    """Return an index in 0..length (negative ones count from the end); `default` if the operand is absent."""
    (found,) = n.ints(position) if n.has(position) else (default,)
    if not -length <= found <= length:
        raise ShapeError(f"position {found} is outside of a sequence of {length}")
    return found + length if found < 0 else found


@operator("SequenceEmpty")
def _empty(n: Node) -> Result:
    return KnownSequence(())


@operator("SequenceConstruct")
def _construct(n: Node) -> Result:
    return KnownSequence(tuple(n.plain(i) for i in range(len(n.inputs))))


@operator("SequenceInsert", limits="positions that depend on data")
def _insert(n: Node) -> Result:
    items = n.listed()
    at = _place(n, 2, len(items), len(items))
    return KnownSequence((*items[:at], n.plain(1), *items[at:]))


@operator("SequenceErase", limits="positions that depend on data")
def _erase(n: Node) -> Result:
    items = n.listed()
    at = _place(n, 1, len(items), len(items) - 1)
    return KnownSequence((*items[:at], *items[at + 1 :]))


@operator("SequenceAt", limits="positions that depend on data")
def _at(n: Node) -> Result:
    items = n.listed()
    at = _place(n, 1, len(items), 0)
    if at == len(items):
        raise ShapeError(f"position {at} is outside of a sequence of {at}")
    return items[at]


@operator("SequenceLength")
def _length(n: Node) -> Result:
    return t.full((), len(n.listed()), "int64")


@operator("SplitToSequence", limits="sizes that depend on data, free numbers of pieces")
def _split(n: Node) -> Result:
    x = n.x()
    axis = n.axis(0, x.rank)
    size = x.shape[axis]
    given = n.known(1)
    if n.has(1) and given is not None and given.ndim:
        return KnownSequence(tuple(t.split(x, n.dims(1), axis)))
    step = n.dims(1)[0] if n.has(1) else 1
    if isinstance(size, DimExpr) or isinstance(step, DimExpr):
        raise n.unsupported(f"a free number of pieces of {size}")
    parts = [t.slice_axis(x, axis, i, min(i + step, size)) for i in range(0, size, max(step, 1))]
    flat = not n.has(1) and not n.attr("keepdims", 1)
    return KnownSequence(tuple(t.squeeze(p, axis) if flat else p for p in parts))


@operator("ConcatFromSequence")
def _concat(n: Node) -> Result:
    parts: list[Tensor] = [v.tensor() if isinstance(v, SymbolicInts) else v for v in n.listed()]
    if not parts:
        raise ShapeError("an empty sequence cannot be concatenated")
    new = bool(n.attr("new_axis", 0))
    axis = resolve(n.attr("axis"), parts[0].rank + new)
    return t.stack(parts, axis) if new else t.concat(parts, axis)
