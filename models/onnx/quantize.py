"""Functions that translate ONNX quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import quantized_ops
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import ShapeError
from .node import Node, Result, operator, resolve
from .packed import BlockLayout, as_bytes, dequantized, leaves
from .values import FourBits


def per_axis(n: Node, x: Tensor, value: Tensor, axis: int) -> Tensor:
    """The scale or zero point `value`, reshaped to broadcast against x: per tensor, per index of an axis, or per block
    of an axis.

    The block size is an attribute of the node.
    """
    block = n.attr("block_size", 0)
    if block and value.rank != x.rank:
        raise ShapeError(f"scales or zero points {value.type} for blocks of {x.type}")
    if value.rank == 0 or (value.rank == 1 and value.shape[0] == 1):
        return t.reshape(value, (1,) * x.rank)
    if not block and value.rank == 1:
        if value.shape[0] != x.shape[axis]:
            raise ShapeError(f"{value.shape[0]} scales or zero points for axis {axis} of {x.type}")
        return t.reshape(value, [value.shape[0] if i == axis else 1 for i in range(x.rank)])
    if not block:
        raise n.unsupported("scale of this rank")
    blocks = [-(-d // block) if i == axis else d for i, d in enumerate(x.shape)]
    if list(value.shape) != blocks:
        raise ShapeError(f"scales or zero points {value.type} for blocks of {block} along axis {axis} of {x.type}")
    wide = t.expand_dims(value, axis + 1)
    wide = t.broadcast_to(wide, [*wide.shape[: axis + 1], block, *wide.shape[axis + 2 :]])
    wide = t.reshape(wide, [*value.shape[:axis], value.shape[axis] * block, *value.shape[axis + 1 :]])
    return t.slice_axis(wide, axis, 0, x.shape[axis])


BYTES = ("uint8", "int8")


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, kind: str) -> Tensor:
    """x / scale rounded to whole numbers, plus the zero point (None: 0), as integers of `kind`; scale and zero point
    have x's rank."""
    if kind in BYTES and sum(d != 1 for d in scale.shape) <= 1:  # not for blocks
        return _before_views(x, scale, t.full((1,) * x.rank, 0, kind) if zero is None else zero)
    scaled = t.round(x / scale)
    return saturate(scaled if zero is None else scaled + t.cast(zero, x.dtype), kind)


def _before_views(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """quantize(x, scale, zero), applied before the reshapes and permutations at the end of x, so that it follows the
    operations that compute the elements. If x is dequantized bytes of the same scale and zero point: these bytes.

    QDQ models hold such pairs around each view. Both changes are exact: quantize works on each element, and
    q * scale / scale differs from q by less than a half.
    """
    single = scale.shape == zero.shape == (1,) * x.rank
    if single and x.op in ("reshape", "permute"):
        (inner,) = x.args
        one = (1,) * inner.rank
        y = _before_views(inner, t.reshape(scale, one), t.reshape(zero, one))
        return t.reshape(y, x.shape) if x.op == "reshape" else t.permute(y, x.attr("perm"))
    if single and x.op == "dequantize" and x.args[0].dtype == zero.dtype and _same_number(x.args[1], scale):
        if _same_number(x.args[2], zero) and SMALLEST < abs(_unreshaped(scale).attr("value")) < 1 / SMALLEST:
            return x.args[0]
    return quantized_ops.quantize(x, scale, zero)


SMALLEST = 1e-30  # scales from this one to its reciprocal: products with bytes are normal numbers


def _unreshaped(x: Tensor) -> Tensor:
    """The operand of the reshapes with which x ends."""
    while x.op == "reshape":
        (x,) = x.args
    return x


def _same_number(x: Tensor, y: Tensor) -> bool:
    """Whether both are the same known number."""
    x, y = _unreshaped(x), _unreshaped(y)
    return x.op == y.op == "full" and x.dtype == y.dtype and x.attr("value") == y.attr("value")


def plain(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The value of bytes x with a scale and a zero point (None: 0) of its rank."""
    return quantized_ops.dequantize(x, scale, t.full((1,) * x.rank, 0, x.dtype) if zero is None else zero)


def saturate(x: Tensor, dtype: str) -> Tensor:
    """Integral floats clipped to an integer dtype's range and cast to it."""
    limits = np.iinfo(dtype)
    return t.cast(t.minimum(t.maximum(x, float(limits.min)), float(limits.max)), dtype)


def _points(n: Node, scale: Tensor) -> Tensor:
    """The zero points of the node, in the shape of the scales. A vector of one number may stand for a scalar, and the
    other way round, as ONNX Runtime's quantizer writes for biases."""
    zero = n.x(2)
    if zero.shape in ((), (1,)) and scale.shape in ((), (1,)):
        return t.reshape(zero, scale.shape)
    return n.shaped(2, scale.shape)


def _axis(n: Node, rank: int) -> int:
    """The axis of several scales. Its default, 1, lies outside of vectors, which have one scale then."""
    axis = n.attr("axis", 1)
    return resolve(axis, max(rank, 1 if axis < 0 else 2))


@operator("QuantizeLinear", limits="8- and 4-bit floats, 4- and 2-bit ints")
def _quantize(n: Node) -> Result:
    x, scale, zero = n.x(0), n.x(1), n.opt(2)
    axis = _axis(n, x.rank)
    zero = None if zero is None else _points(n, scale)
    asked = n.dtype("output_dtype") if n.attr("output_dtype", 0) else ""
    kind = asked or ("uint8" if zero is None else zero.dtype)
    if zero is not None and kind != zero.dtype:
        raise ShapeError(f"output_dtype is {kind}, but the zero point is {zero.dtype}")
    if dtypes.category(kind) != "int":
        raise n.unsupported(f"to {kind}")
    precise = n.dtype("precision") if n.attr("precision", 0) else scale.dtype if n.opset >= 23 else "float32"
    zero = None if zero is None else per_axis(n, x, zero, axis)
    x, scale = t.cast(x, precise), per_axis(n, x, t.cast(scale, precise), axis)
    if precise in dtypes.HALVES:  # the quotient is rounded to 16 bits before it is rounded to a whole number
        x, scale = t.cast(t.div(x, scale), "float32"), t.full(scale.shape, 1.0, "float32")
    return quantized(x, scale, zero, kind)


@operator("DequantizeLinear", limits="8- and 4-bit floats, 2-bit ints; 4-bit ints that are no initializers")
def _dequantize(n: Node) -> Result:
    stored = n.value(0)
    if isinstance(stored, FourBits):
        whole = _packed_weight(n, stored.shape, stored.kind)
        if whole is not None:
            return whole
        n = replace(n, inputs=[as_bytes(n, v) if isinstance(v, FourBits) else v for v in n.inputs])
    elif n.x(0).op == "param" and n.x(0).rank == 2 and n.x(0).dtype in PACKED:
        whole = _packed_weight(n, concrete(n.x(0).shape), n.x(0).dtype)
        if whole is not None:
            return whole
    x, scale, zero = n.x(0), n.x(1), n.opt(2)
    axis = _axis(n, x.rank)
    zero = None if zero is None else _points(n, scale)
    kind = n.dtype("output_dtype") if n.attr("output_dtype", 0) else scale.dtype
    if x.dtype in BYTES:
        zero = None if zero is None else per_axis(n, x, zero, axis)
        return t.cast(plain(x, per_axis(n, x, t.cast(scale, "float32"), axis), zero), kind)
    centred = t.cast(x, "int32" if dtypes.category(x.dtype) == "int" else "float32")
    if zero is not None:
        centred = t.sub(centred, per_axis(n, x, t.cast(zero, centred.dtype), axis))
    return t.cast(t.cast(centred, "float32") * per_axis(n, x, t.cast(scale, "float32"), axis), kind)


#: dtype of initializers that stay packed -> bits, value of a zero point 0 as an unsigned number.
PACKED = {"int4": (4, 8), "uint4": (4, 0), "int8": (8, 128), "uint8": (8, 0)}


def _layout(n: Node, shape: tuple[int, ...], kind: str) -> BlockLayout | None:
    """The layout of a dequantized initializer: one scale, one per index of an axis, or one per block of it.

    None for tensors of other ranks than 2 with several scales, and for numbers that do not fill bytes.
    """
    rank, scale, (bits, zero) = len(shape), n.x(1), PACKED[kind]
    block, axis = n.attr("block_size", 0), _axis(n, rank)
    single = not block and scale.shape in ((), (1,))
    along = axis if block else 0 if single else 1 - axis  # the axis whose numbers share scales
    if rank != 2 and not single:
        return None
    rows, inputs = (shape[1 - along], shape[along]) if rank == 2 else (prod(shape[:1]), prod(shape[1:]))
    if rank < 2:
        rows, inputs = 1, rows
    found = BlockLayout(
        bits, rows, inputs, min(block or inputs, inputs), zero, signed=not kind.startswith("u"), apart=False,
        by_inputs=rank == 2 and along == 0, single=single,
    )  # fmt: skip
    return found if inputs and found.width * bits % 8 == 0 else None


def _packed_weight(n: Node, shape: tuple[int, ...], kind: str) -> Tensor | None:
    """A dequantized initializer whose numbers stay packed.

    None if a scale or zero point is no initializer, or the shape has no layout.
    """
    layout = _layout(n, shape, kind)
    if layout is None:
        return None
    zeros = n.known(2)  # symmetric weights often have zero points, all of them 0
    centred = zeros is not None and layout.bits == 8 and layout.signed and not zeros.any()
    found = leaves(n, layout, 0, 1, None if centred else 2)
    if found is None:
        return None
    whole = dequantized(layout, found)
    out = t.transpose(whole) if layout.by_inputs else t.reshape(whole, shape)
    return t.cast(out, n.dtype("output_dtype") if n.attr("output_dtype", 0) else n.x(1).dtype)


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(n: Node) -> Result:
    return dynamic_quantize(n.x())


def dynamic_quantize(x: Tensor) -> list[Tensor]:
    """[codes (uint8), scale, zero point (uint8)] of x by its smallest and its largest value."""
    low, high = (t.reshape(v, (1,) * x.rank) for v in (t.min(x), t.max(x)))
    low, high = t.minimum(low, 0.0), t.maximum(high, 0.0)
    scale = t.div(high - low, 255.0)
    scale = t.where(t.eq(scale, 0.0), 1.0 / 255.0, scale)  # the input is all zeros
    zero = saturate(t.round(-low / scale), "uint8")
    return [quantized(x, scale, zero, "uint8"), t.reshape(scale, ()), t.reshape(zero, ())]


__all__ = ["BYTES", "dynamic_quantize", "per_axis", "plain", "quantized", "saturate"]
