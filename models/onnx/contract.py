"""Functions that translate ONNX contractions: matrix products, convolutions and einsum, also of quantized operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.composites.quantized_ops import integer_conv, integer_matmul
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, Shape, concrete
from ...errors import ShapeError
from ..common.einsum import einsum
from .node import Node, Result, operator
from .quantize import BYTES, quantized, saturate

operator("MatMul")(lambda n: t.matmul(n.x(0), n.x(1)))


@operator("Gemm")
def _gemm(n: Node) -> Result:
    return gemm(n)


def gemm(n: Node) -> Tensor:
    """The matrix product of a Gemm node, with bias and factors."""
    a, b = n.x(0), n.x(1)
    if a.rank != 2 or b.rank != 2:
        raise ShapeError(f"{a.type} and {b.type} are not two matrices")
    a = t.transpose(a) if n.attr("transA", 0) else a
    b = t.transpose(b) if n.attr("transB", 0) else b
    alpha, beta, bias = n.attr("alpha", 1.0), n.attr("beta", 1.0), n.opt(2)
    if bias is not None and alpha == beta == 1.0 and bias.shape == b.shape[1:] and dtypes.is_float(a.dtype):
        return c.linear(a, b, bias)
    product = _weighed(t.matmul(a, b), alpha)
    return product if bias is None else t.add(product, _weighed(n.fitting(2, product.shape), beta))


def _weighed(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    return t.mul(x, factor if dtypes.is_float(x.dtype) else int(factor))


# ---------------------------------------------------------------- convolutions
def same_pads(
    n: Node, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the pads (all low, then all high) of a convolution or pooling by windows of the sizes `kernel` over
    spatial axes of the sizes `sizes`.

    They are those of the attribute `pads`, or follow from `auto_pad`.
    """
    mode = n.choice("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode == "NOTSET":
        return _not_negative(n, "pads", 2 * len(kernel))
    if mode == "VALID":
        return [0] * (2 * len(kernel))
    low, high = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        reach = (k - 1) * dilation + 1
        if isinstance(size, DimExpr):
            if stride != 1:
                raise n.unsupported(f"auto_pad {mode} with stride and a free dimension")
            total = reach - 1
        else:
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        less, more = total // 2, total - total // 2
        low.append(less if mode == "SAME_UPPER" else more)
        high.append(more if mode == "SAME_UPPER" else less)
    return low + high


def _not_negative(n: Node, name: str, count: int) -> list[int]:
    """Return the attribute `name`: `count` numbers that are not negative (all 0 if it is missing).

    Raises ShapeError for another count or other numbers.
    """
    found = n.numbers(name, count)
    if any(v < 0 for v in found):
        raise ShapeError(f"{name}={found} has negative numbers")
    return found


def spatial(n: Node, name: str, count: int, default: int = 1) -> list[int]:
    """Return the attribute `name`: one positive number for each of `count` spatial axes (all `default` if it is
    missing).

    Raises ShapeError for another count or other numbers.
    """
    found = n.numbers(name, count, default)
    if any(v < 1 for v in found):
        raise ShapeError(f"{name}={found} for {count} spatial axes")
    return found


def _kernel(n: Node, w: Tensor) -> list[int]:
    """Return the window of a convolution, the spatial sizes of its weight. Raises ShapeError if the attribute
    `kernel_shape` is another one."""
    kernel = list(concrete(w.shape[2:]))
    if list(n.attr("kernel_shape", kernel)) != kernel:
        raise ShapeError(f"kernel_shape {n.attr('kernel_shape')} is not that of the weight {w.type}")
    return kernel


def geometry(n: Node, x: Tensor, w: Tensor) -> dict[str, Any]:
    """Strides, pads, dilations and groups of a convolution of x [N, C, ...] with w, by the attributes of the node."""
    count = x.rank - 2
    kernel = _kernel(n, w)
    strides, dilations = spatial(n, "strides", count), spatial(n, "dilations", count)
    pads = same_pads(n, x.shape[2:], kernel, strides, dilations)
    return {"strides": strides, "pads": pads, "dilations": dilations, "groups": n.attr("group", 1)}


def convolve(n: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """The convolution of x [N, C, ...] with w and bias b by the attributes of the node."""
    return t.conv(x, w, b, **geometry(n, x, w))


def convolve_integers(n: Node, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None) -> Tensor:
    """The convolution in int32 of x and w without their zero points (None: 0): one number, or one for each channel of x
    and for each output channel."""
    if {x.dtype, w.dtype} <= set(BYTES) and (x_zero is None or x_zero.shape in ((), (1,))) and w.rank == x.rank > 2:
        points = (t.full((1,) * x.rank, 0, x.dtype), t.full((1,) * w.rank, 0, w.dtype))
        if x_zero is not None:
            points = (t.reshape(t.cast(x_zero, x.dtype), (1,) * x.rank), points[1])
        if w_zero is not None:
            if w_zero.shape not in ((), (1,), w.shape[:1]):
                raise ShapeError(f"zero points {w_zero.type} of {w.type}")
            size = w_zero.shape[0] if w_zero.rank else 1
            points = (points[0], t.reshape(t.cast(w_zero, w.dtype), (size, *(1,) * (w.rank - 1))))
        return integer_conv(x, w, *points, **geometry(n, x, w))
    return convolve(n, centred(x, x_zero, 1), centred(w, w_zero, 0))


@operator("Conv")
def _conv(n: Node) -> Result:
    return convolve(n, n.x(0), n.x(1), n.shaped(2, n.x(1).shape[:1]) if n.has(2) else None)


def _spread(x: Tensor, axis: int, stride: int) -> Tensor:
    """Dilate an axis: insert stride - 1 zeros between neighbours."""
    if stride == 1:
        return x
    wide = t.expand_dims(x, axis + 1)
    wide = t.pad(wide, [(0, stride - 1) if i == axis + 1 else (0, 0) for i in range(wide.rank)])
    size = x.shape[axis]
    wide = t.reshape(wide, (*x.shape[:axis], size * stride, *x.shape[axis + 1 :]))
    return t.slice_axis(wide, axis, 0, size * stride - (stride - 1))


def _transposed_pads(
    n: Node, x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return (low, high) pads of a transposed convolution, with output_padding and output_shape applied."""
    count = len(kernel)
    extra = _not_negative(n, "output_padding", count)
    mode = n.choice("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    asked = n.numbers("output_shape", count) if "output_shape" in n.attrs else None
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if asked is None and mode in ("NOTSET", "VALID"):
        pads = _not_negative(n, "pads", 2 * count) if mode == "NOTSET" else [0] * (2 * count)
        return pads[:count], [p - e for p, e in zip(pads[count:], extra)]
    if any(isinstance(d, DimExpr) for d in x.shape[2:]):
        raise n.unsupported("output_shape or auto_pad with free dimensions")
    sizes = concrete(x.shape[2:])
    wanted = asked if asked is not None else [s * d for s, d in zip(strides, sizes)]
    low, high = [], []
    for i in range(count):
        total = strides[i] * (sizes[i] - 1) + extra[i] + reach[i] - wanted[i]
        less = total // 2 if mode == "SAME_UPPER" else total - total // 2
        low.append(less)
        high.append(total - less - extra[i])
    return low, high


@operator("ConvTranspose")
def _conv_transpose(n: Node) -> Result:
    # The gradient of a convolution: dilate the input by the stride, convolve with the flipped, transposed weight.
    x, w, groups = n.x(0), n.x(1), n.attr("group", 1)
    count = x.rank - 2
    kernel = _kernel(n, w)
    strides, dilations = spatial(n, "strides", count), spatial(n, "dilations", count)
    low, high = _transposed_pads(n, x, kernel, strides, dilations)
    sizes = [
        s * (size - 1) + d * (k - 1) + 1 - p - q
        for size, k, s, d, p, q in zip(x.shape[2:], kernel, strides, dilations, low, high)
    ]
    if any(size == 0 for size in sizes if isinstance(size, int)):  # the pads cut off everything
        return t.zeros((x.shape[0], groups * w.shape[1], *sizes), x.dtype)
    for i in range(count):
        x = _spread(x, 2 + i, strides[i])
        w = t.flip(w, 2 + i)
    inside, outside = w.shape[0] // groups, w.shape[1]
    w = t.swapaxes(t.reshape(w, (groups, inside, outside, *kernel)), 1, 2)
    w = t.reshape(w, (groups * outside, inside, *kernel))
    pads = [d * (k - 1) - p for side in (low, high) for k, d, p in zip(kernel, dilations, side)]
    for i in range(count):
        start, stop = max(-pads[i], 0), max(-pads[count + i], 0)
        x = t.slice_axis(x, 2 + i, start, x.shape[2 + i] - stop)
    padded = [max(p, 0) for p in pads]
    bias = n.shaped(2, (groups * outside,)) if n.has(2) else None
    return t.conv(x, w, bias, strides=[1] * count, pads=padded, dilations=dilations, groups=groups)


# ---------------------------------------------------------------- integer and quantized
def centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Return x minus its zero point as int32. The zero point is a scalar or has one element per index of an axis."""
    x = t.cast(x, "int32")
    if zero is None:
        return x
    zero = t.cast(zero, "int32")
    if zero.rank == 1 and zero.shape[0] not in (1, x.shape[axis]):
        raise ShapeError(f"{zero.shape[0]} zero points for axis {axis} of {x.type}")
    if zero.rank == 1:
        zero = t.reshape(zero, [zero.shape[0] if i == axis % x.rank else 1 for i in range(x.rank)])
    return t.sub(x, zero)


def multiply_integers(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """The product in int32 of a and b without their zero points (None: 0): one number, or one for each row of a and for
    each column of b."""
    single = a_zero is None or a_zero.shape in ((), (1,))
    if {a.dtype, b.dtype} <= set(BYTES) and single and a.rank >= 2 and b.rank in (2, a.rank):
        if b_zero is None or b_zero.shape in ((), (1,), b.shape[-1:]):
            points = (_point(a_zero, a, (1,)), _point(b_zero, b, () if b_zero is None else b_zero.shape))
            return integer_matmul(a, b, *points)
    return t.matmul(centred(a, a_zero, -2), centred(b, b_zero, -1))


def _point(zero: Tensor | None, x: Tensor, size: Shape) -> Tensor:
    """Zero points of x in its dtype and rank: one number (None: 0), or one for each index of the last axis."""
    if zero is None:
        return t.full((1,) * x.rank, 0, x.dtype)
    return t.reshape(t.cast(zero, x.dtype), (*(1,) * (x.rank - 1), *(size or (1,))))


@operator("MatMulInteger")
def _matmul_integer(n: Node) -> Result:
    return multiply_integers(n.x(0), n.x(1), n.opt(2), n.opt(3))


@operator("ConvInteger")
def _conv_integer(n: Node) -> Result:
    return convolve_integers(n, n.x(0), n.x(1), n.opt(2), n.opt(3))


def requantize(total: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """total * scale, rounded, plus the zero point, saturated to the zero point's dtype."""
    scaled = t.cast(total, "float32") * scale
    if zero.dtype in BYTES and zero.rank <= 1 and zero.shape in ((), (1,)):
        one = (1,) * scaled.rank
        return quantized(scaled, t.full(one, 1.0), t.reshape(zero, one), zero.dtype)
    return saturate(t.add(t.round(scaled), t.cast(zero, "float32")), zero.dtype)


def line(x: Tensor, rank: int, axis: int) -> Tensor:
    """A scale as float32 that broadcasts with a value of `rank` axes: a scalar, or one number per index of `axis`."""
    x = t.cast(x, "float32")
    return (
        t.reshape(x, [x.shape[0] if x.rank == 1 and i == axis % rank else 1 for i in range(rank)]) if x.rank <= 1 else x
    )


@operator("QLinearMatMul", limits="8-bit floats")
def _qlinear_matmul(n: Node) -> Result:
    total = multiply_integers(n.x(0), n.x(3), n.x(2), n.x(5))
    scale = line(n.x(1), total.rank, -2) * line(n.x(4), total.rank, -1) / line(n.x(6), total.rank, -1)
    return requantize(total, scale, n.x(7))


@operator("QLinearConv")
def _qlinear_conv(n: Node) -> Result:
    total = convolve_integers(n, n.x(0), n.x(3), n.x(2), n.x(5))
    if n.has(8):
        bias = n.shaped(8, total.shape[1:2])
        total = t.add(total, t.reshape(bias, (1, total.shape[1], *(1,) * (total.rank - 2))))
    scale = line(n.x(1), total.rank, 1) * line(n.x(4), total.rank, 1) / line(n.x(6), total.rank, 1)
    return requantize(total, scale, n.x(7))


@operator("Einsum")
def _einsum(n: Node) -> Result:
    return einsum(n.attr("equation"), n.tensors())


__all__ = ["centred", "convolve", "gemm", "line", "multiply_integers", "requantize", "same_pads", "spatial"]
