"""Functions that translate operators of ONNX Runtime (domain com.microsoft) on quantized values: packed weights, and
integers with scales and zero points."""

from __future__ import annotations

from functools import partial

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import DimExpr, concrete
from ...errors import ShapeError
from .contract import line, multiply_integers, requantize
from .names import MICROSOFT
from .node import Node, Result, operator, resolve
from .packed import BlockLayout, dequantized, leaves
from .quantize import dynamic_quantize
from .values import FourBits

microsoft = partial(operator, domain=MICROSOFT)


def _bits(n: Node) -> int:
    """The attribute `bits`. Raises UnsupportedError for other numbers than 2, 4 and 8."""
    found: int = n.attr("bits", 4)
    if found not in (2, 4, 8):
        raise n.unsupported(f"bits={found}")
    return found


def _block(n: Node, default: int) -> int:
    """The attribute `block_size`, a power of two. Raises ShapeError for other numbers."""
    found: int = n.attr("block_size", default)
    if found < 16 or found & (found - 1):
        raise ShapeError(f"block_size={found} is no power of two from 16 on")
    return found


# ---------------------------------------------------------------- packed weights
@microsoft(
    "MatMulNBits",
    limits="weights that are no initializers, g_idx, weight_prepacked; products are exact for every accuracy_level",
)
def _matmul_bits(n: Node) -> Result:
    x, bits = n.x(0), _bits(n)
    if n.has(4):
        raise n.unsupported("operand g_idx")
    if n.attr("weight_prepacked", 0):
        raise n.unsupported("weight_prepacked")
    if 0 in n.x(1).shape:
        raise n.unsupported("an empty weight")
    layout = BlockLayout(bits, n.attr("N"), n.attr("K"), _block(n, 0), 1 << (bits - 1), padded=True)
    found = leaves(n, layout, 1, 2, 3, float_zeros=True)
    if found is None:
        raise n.unsupported("operand B, scales or zero_points is no initializer")
    product = t.matmul(x, t.transpose(dequantized(layout, found)))
    return t.cast(product if not n.has(5) else t.add(product, n.x(5)), x.dtype)


@microsoft(
    "GatherBlockQuantized",
    limits="tables that are no initializers or not of rank 2, gather_axis other than 0, quantize_axis other than 1, 8- and 4-bit floats",
)
def _gather_blocks(n: Node) -> Result:
    table = n.value(0)
    typed = isinstance(table, FourBits)
    shape = table.shape if isinstance(table, FourBits) else n.x(0).shape
    if len(shape) != 2 or any(isinstance(d, DimExpr) for d in shape):
        raise n.unsupported(f"data of shape {list(shape)}")
    axes = {name: resolve(n.attr(name, i), 2) for i, name in enumerate(("gather_axis", "quantize_axis"))}
    for i, (name, axis) in enumerate(axes.items()):
        if axis != i:
            raise n.unsupported(f"{name}={axis}")
    bits = 4 if typed else _bits(n)
    if not typed and n.x(0).dtype != "uint8":
        raise n.unsupported(f"data of {n.x(0).dtype}")
    rows, width = concrete(shape)
    inputs = width * (1 if typed else 8 // bits)
    signed = isinstance(table, FourBits) and table.kind == "int4"
    zero = (8 if signed else 0) if typed else 1 << (bits - 1)
    layout = BlockLayout(bits, rows, inputs, min(_block(n, 128), inputs), zero, signed, apart=not typed)
    found = leaves(n, layout, 0, 2, 3)
    if found is None:
        raise n.unsupported("operand data, scales or zero_points is no initializer")
    index = t.cast(n.x(1), "int64")
    index = t.where(t.lt(index, 0), t.add(index, rows), index)
    inside = t.logical_and(t.le(0, index), t.lt(index, rows))
    picked = {part: t.gather(leaf, t.where(inside, index, 0), 0) for part, leaf in found.items()}
    row = dequantized(layout, picked)
    return t.where(t.expand_dims(inside, index.rank), row, t.zeros((1,) * row.rank, row.dtype))  # none for others


# ---------------------------------------------------------------- products of integers
def _line(n: Node, position: int, rank: int, axis: int) -> Tensor:
    """The scale at `position`, one number or one per index of an axis, so that it broadcasts with `rank` axes. Raises
    UnsupportedError for one of several axes."""
    if n.x(position).rank > 1:
        raise n.unsupported(f"operand {position} of rank {n.x(position).rank}")
    return line(n.x(position), rank, axis)


@microsoft("MatMulIntegerToFloat")
def _matmul_to_float(n: Node) -> Result:
    total = multiply_integers(n.x(0), n.x(1), n.opt(4), n.opt(5))
    return _scaled(n, total, _line(n, 2, total.rank, -2) * _line(n, 3, total.rank, -1), 6, n.x(2).dtype)


@microsoft("DynamicQuantizeMatMul")
def _dynamic_matmul(n: Node) -> Result:
    codes, scale, zero = dynamic_quantize(n.x(0))
    total = multiply_integers(codes, n.x(1), zero, n.opt(3))
    return _scaled(n, total, t.with_rank(scale, total.rank) * _line(n, 2, total.rank, -1), 4, n.x(0).dtype)


def _scaled(n: Node, total: Tensor, scale: Tensor, bias: int, kind: str) -> Tensor:
    """An integer product times a scale, plus the operand at `bias`, if there is one."""
    out = t.cast(total, "float32") * scale
    out = out if not n.has(bias) else t.add(out, t.cast(n.x(bias), "float32"))
    return t.cast(out, kind)


@microsoft("QGemm")
def _qgemm(n: Node) -> Result:
    turned_a, turned_b = n.attr("transA", 0), n.attr("transB", 0)
    a, b = (t.transpose(v) if turned else v for v, turned in ((n.x(0), turned_a), (n.x(3), turned_b)))
    total = multiply_integers(a, b, n.opt(2), n.opt(5))
    total = t.add(total, n.x(6)) if n.has(6) else total
    scale: Tensor = _line(n, 1, 2, -2) * _line(n, 4, 2, -1) * n.attr("alpha", 1.0)
    if not n.has(7):
        return t.cast(total, "float32") * scale
    return requantize(total, scale / _line(n, 7, 2, -1), n.x(8))
