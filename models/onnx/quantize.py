"""Functions that translate ONNX quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from math import prod

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from .node import FourBits, Node, Result, operator, resolve
from .packed import BlockLayout, dequantized, leaves


def per_axis(n: Node, x: Tensor, value: Tensor, axis: int) -> Tensor:
    """The scale or zero point `value`, reshaped to broadcast against x: per tensor, per index of an axis, or per block
    of an axis.

    The block size is an attribute of the node.
    """
    if value.rank == 0 or (value.rank == 1 and value.shape[0] == 1):
        return t.reshape(value, (1,) * x.rank)
    if value.rank == 1:
        return t.reshape(value, [value.shape[0] if i == axis else 1 for i in range(x.rank)])
    block = n.attr("block_size", 0)
    if not block or value.rank != x.rank:
        raise n.unsupported("scale of this rank")
    wide = t.expand_dims(value, axis + 1)
    wide = t.broadcast_to(wide, [*wide.shape[: axis + 1], block, *wide.shape[axis + 2 :]])
    wide = t.reshape(wide, [*value.shape[:axis], value.shape[axis] * block, *value.shape[axis + 1 :]])
    return t.slice_axis(wide, axis, 0, x.shape[axis])


def saturate(x: Tensor, dtype: str) -> Tensor:
    """Integral floats clipped to an integer dtype's range and cast to it."""
    limits = np.iinfo(dtype)
    return t.cast(t.minimum(t.maximum(x, float(limits.min)), float(limits.max)), dtype)


@operator("QuantizeLinear", limits="8- and 4-bit floats, 4- and 2-bit ints")
def _quantize(n: Node) -> Result:
    x, scale, zero = n.x(0), n.x(1), n.opt(2)
    axis = resolve(n.attr("axis", 1), max(x.rank, 2))
    kind = zero.dtype if zero is not None else n.dtype("output_dtype", 2) if n.attr("output_dtype", 0) else "uint8"
    if dtypes.category(kind) != "int":
        raise n.unsupported(f"to {kind}")
    precise = "float32"
    scaled = t.round(t.cast(x, precise) / per_axis(n, x, t.cast(scale, precise), axis))
    if zero is not None:
        scaled = scaled + per_axis(n, x, t.cast(zero, precise), axis)
    return saturate(scaled, kind)


@operator("DequantizeLinear", limits="8- and 4-bit floats, 2-bit ints; 4-bit ints that are no initializers")
def _dequantize(n: Node) -> Result:
    if isinstance(n.value(0), FourBits):
        return _dequantize_four_bits(n)
    x, scale, zero = n.x(0), n.x(1), n.opt(2)
    axis = resolve(n.attr("axis", 1), max(x.rank, 2))
    kind = n.dtype("output_dtype") if n.attr("output_dtype", 0) else scale.dtype
    centred = t.cast(x, "int32" if dtypes.category(x.dtype) == "int" else "float32")
    if zero is not None:
        centred = t.sub(centred, per_axis(n, x, t.cast(zero, centred.dtype), axis))
    return t.cast(t.cast(centred, "float32") * per_axis(n, x, t.cast(scale, "float32"), axis), kind)


def _dequantize_four_bits(n: Node) -> Tensor:
    """A dequantized initializer of 4-bit integers: one scale, one per index of an axis, or one per block of it."""
    x, scale, kind = n.value(0), n.x(1), n.x(1).dtype
    assert isinstance(x, FourBits)
    rank = len(x.shape)
    block, axis = n.attr("block_size", 0), resolve(n.attr("axis", 1), max(rank, 2))
    if not block and scale.shape in ((), (1,)):  # one row
        rows, inputs, turned = 1, prod(x.shape), False
    elif rank != 2:
        raise n.unsupported(f"{x.kind} of rank {rank}")
    else:  # without blocks, all of the other axis shares a scale
        along = axis if block else 1 - axis
        rows, inputs, turned = x.shape[1 - along], x.shape[along], along == 0
    signed = x.kind == "int4"
    layout = BlockLayout(
        4, rows, inputs, block or inputs, 8 if signed else 0, signed=signed, apart=False, by_inputs=turned
    )
    if layout.width % 2:
        raise n.unsupported(f"{x.kind} with an odd number of elements that share a scale")
    found = leaves(n, layout, 0, 1, 2)
    if found is None:
        raise n.unsupported(f"{x.kind} with a scale or zero point that is no initializer")
    whole = dequantized(layout, found)
    out = t.transpose(whole) if turned else t.reshape(whole, x.shape)
    return t.cast(out, n.dtype("output_dtype") if n.attr("output_dtype", 0) else kind)


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(n: Node) -> Result:
    return dynamic_quantize(n.x())


def dynamic_quantize(x: Tensor) -> list[Tensor]:
    """[codes (uint8), scale, zero point (uint8)] of x by its smallest and its largest value."""
    low, high = t.minimum(t.min(x), 0.0), t.maximum(t.max(x), 0.0)
    scale = t.div(high - low, 255.0)
    scale = t.where(t.eq(scale, 0.0), 1.0 / 255.0, scale)  # the input is all zeros
    zero = saturate(t.round(-low / scale), "uint8")
    shifted = t.round(x / scale) + t.cast(zero, x.dtype)
    return [saturate(shifted, "uint8"), scale, zero]


__all__ = ["dynamic_quantize", "per_axis", "saturate"]
