"""Declares composite ops of quantized values: `unpack` (packed 2-bit and 4-bit numbers), `dequantize` and `quantize`
(scales and zero points), `integer_conv` and `integer_matmul` (convolutions and products of matrices of bytes).

Numbers are packed along one axis in units of `block` bytes. With n = 8 // bits numbers a byte, the first `block`
numbers of a unit are the lowest bits of its bytes, the next `block` numbers the next bits, and so on. `block=1`
therefore keeps neighbouring numbers in one byte; with `block=16` and 4 bits, a vector register of 16 bytes holds 32
numbers in two halves, each of which a single `and` selects.

Decompositions need no shifts: bits are selected in place and multiplied by a power of two, which is exact. Neither
`unpack` nor `dequantize` counts as arithmetic in rooflines: kernels convert numbers in few instructions, or multiply
integers without converting them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..builders import builders as t
from ..ir.tensor import Tensor, make
from ..ops import op_flops
from ..types.dims import Dim, Shape
from .composite import composite

#: Forms of packed numbers: unsigned and signed integers (two's complement), and the 4-bit float e2m1.
FORMS = ("unsigned", "signed", "e2m1")


def _split(shape: Shape, axis: int, parts: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """A shape with one axis replaced by several."""
    return (*shape[:axis], *parts, *shape[axis + 1 :])


def _by_part(rank: int, axis: int, values: list[float], dtype: str) -> Tensor:
    """One value for each part of a byte, along `axis` of a tensor of size 1 elsewhere."""
    count = len(values)
    shape = tuple(count if a == axis else 1 for a in range(rank))
    part = t.iota(shape, axis)
    found = t.full((1,) * rank, values[-1], dtype)
    for n in reversed(range(count - 1)):
        found = t.where(t.lt(part, n + 1), t.full((1,) * rank, values[n], dtype), found)
    return found


def _e2m1(u: Tensor) -> Tensor:
    """Value of each code 0..15 of the float e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6, then the negative ones)."""
    negative = t.le(8.0, u)
    m = t.where(negative, u - 8.0, u)
    size = t.where(t.le(m, 4.0), m * 0.5, t.where(t.le(7.0, m), 6.0, m - 2.0))
    return t.where(negative, -size, size)


@composite(
    "unpack", 1, "unpack",
    {"bits": "int", "form": "str", "axis": "int", "block": "int", "dtype": "dtype"}, {"block": 1, "dtype": "float32"}, fused_as="cheap", flops=0,
    floats_only=False,
)  # fmt: skip
def unpack(x: Tensor, bits: int, form: str, axis: int, block: int, dtype: str) -> Tensor:
    """Numbers of `bits` bits (2 or 4) that the bytes of x hold along `axis`, as floats.

    Each run of `block` bytes along the axis gives first the numbers in the lowest bits of its bytes, then those in the
    next bits, and so on. `form`: "unsigned", "signed" or "e2m1" (4-bit floats).

    x: uint8 [..., n, ...] -> `dtype` [..., n * (8 // bits), ...]; n is a multiple of `block`.
    """
    count, size = 8 // bits, x.shape[axis]
    signs = sum(1 << (bits * n + bits - 1) for n in range(count))
    if form == "signed":  # adding half of the range makes the numbers unsigned
        x = make("xor", (x, t.full((1,) * x.rank, signs, "uint8")))
    bytes_ = t.reshape(x, _split(x.shape, axis, (size // block, 1, block)))
    mask = _by_part(bytes_.rank, axis + 1, [((1 << bits) - 1) << (bits * n) for n in range(count)], "uint8")
    factor = _by_part(bytes_.rank, axis + 1, [2.0 ** -(bits * n) for n in range(count)], dtype)
    whole = t.broadcast_to(bytes_, _split(x.shape, axis, (size // block, count, block)))
    numbers = t.cast(make("and", (whole, mask)), dtype) * factor
    if form == "signed":
        numbers = numbers - float(1 << (bits - 1))
    numbers = _e2m1(numbers) if form == "e2m1" else numbers
    return t.reshape(numbers, _split(x.shape, axis, (size * count,)))


def _spread(value: Tensor, shape: Shape) -> Tensor:
    """Values of blocks repeated for every element: sizes that divide those of `shape` are stretched."""
    split: list[Dim] = []
    wide: list[Dim] = []
    for have, want in zip(value.shape, shape, strict=True):
        own = have == 1 or have == want
        split += [have] if own else [have, 1]
        wide += [have] if own else [have, want // have]
    if len(split) == value.rank:
        return value
    joined = tuple(have if have == 1 else want for have, want in zip(value.shape, shape, strict=True))
    return t.reshape(t.broadcast_to(t.reshape(value, split), wide), joined)


@composite("dequantize", 3, "dequantize", fused_as="cheap", flops=0, floats_only=False)
def dequantize(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """(q - zero) * scale; each size of scale and zero divides that of q: one value per tensor, channel, group or block.

    q: integers or floats [...]; scale: floats of equal rank, whose dtype is the result's; zero: any dtype, shaped like
    scale or of size 1 along every axis.
    """
    number = t.cast(q, scale.dtype)
    offset = _spread(t.cast(zero, scale.dtype), q.shape)
    return (number - offset) * _spread(scale, q.shape)


@composite("quantize", 3, "quantize", fused_as="cheap", flops=6, floats_only=False, wide_operands=True,
           onnx=("QuantizeLinear",))  # fmt: skip
def quantize(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """x / scale rounded to whole numbers (ties to even), plus zero, clipped to the range of zero's dtype

    x: float32 or float64 [...]; scale: floats of equal rank and size 1, or one number for each index of an axis; zero:
    uint8 or int8, shaped like scale or of size 1 along every axis. The result is [...] in the dtype of zero.
    """
    limits = np.iinfo(zero.dtype)
    whole = t.round(x / scale) + t.cast(zero, x.dtype)
    return t.cast(t.minimum(t.maximum(whole, float(limits.min)), float(limits.max)), zero.dtype)


@composite("integer_conv", 4, "integer_conv", {"strides": "dims", "pads": "dims", "dilations": "dims", "groups": "int"},
           fused_as="opaque", work=op_flops.convolution, floats_only=False, kernels_may_lack=True, onnx=("ConvInteger",))  # fmt: skip
def integer_conv(
    x: Tensor, w: Tensor, x_zero: Tensor, w_zero: Tensor, strides: Sequence[int], pads: Sequence[int],
    dilations: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Convolution of x - x_zero with w - w_zero in int32, which wraps around; padding is 0 (x is its zero point there)

    x: uint8 or int8 [N, C, ...]; w: uint8 or int8 [O, C / groups, ...]; x_zero: one number of x's dtype, of x's rank;
    w_zero: one number of w's dtype or [O, 1, ...], of w's rank. pads = all low sides, then all high sides.
    """
    a, b = (t.sub(t.cast(v, "int32"), t.cast(z, "int32")) for v, z in ((x, x_zero), (w, w_zero)))
    return t.conv(a, b, strides=strides, pads=pads, dilations=dilations, groups=groups)


@composite(
    "integer_matmul",
    4,
    "integer_matmul",
    fused_as="opaque",
    work=op_flops.product,
    floats_only=False,
    kernels_may_lack=True,
    onnx=("MatMulInteger",),
)
def integer_matmul(x: Tensor, w: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    """Product of x - x_zero with w - w_zero in int32, which wraps around

    x: uint8 or int8 [..., M, K]; w: uint8 or int8 [K, N], or [..., K, N] of x's rank; x_zero: one number of x's dtype,
    of x's rank; w_zero: one number of w's dtype or [..., 1, N], of w's rank.
    """
    a, b = (t.sub(t.cast(v, "int32"), t.cast(z, "int32")) for v, z in ((x, x_zero), (w, w_zero)))
    return t.matmul(a, b)
