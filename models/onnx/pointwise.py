"""Functions that translate elementwise ONNX operators: arithmetic, activations, comparisons, logic, casts,
quantization."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import pi

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import volume
from ..common import identities as of
from .node import Node, Result, operator, simple


def _not_bits(x: Tensor) -> Tensor:
    return t.sub(-1 if x.dtype.startswith("int") else int(np.iinfo(x.dtype).max), x)


# Operators that are elementwise ops of the op table are registered in ops.py.
simple({
    "Tan": lambda x: t.sin(x) / t.cos(x), "Asin": of.asin, "Acos": of.acos, "Sinh": of.sinh, "Asinh": of.asinh,
    "Cosh": of.cosh, "Acosh": of.acosh, "Atanh": of.atanh, "BitwiseNot": _not_bits,
    "Softsign": lambda x: x / (t.abs(x) + 1.0),
}, 1)  # fmt: skip
simple({"Greater": t.gt, "GreaterOrEqual": t.ge}, 2)
simple({"Where": t.where}, 3)


@operator("Relu")
def _relu(n: Node) -> Result:
    x = n.x()
    return c.relu(x) if dtypes.is_float(x.dtype) else t.maximum(x, 0)


@operator("Erf")
def _erf(n: Node) -> Result:
    x = n.x()
    return t.erf(x) if dtypes.is_float(x.dtype) else t.cast(t.erf(t.cast(x, "float64")), x.dtype)


@operator("IsInf")
def _is_inf(n: Node) -> Result:
    x = n.x()
    signs: dict[tuple[int, int], Tensor] = {(1, 1): t.is_inf(x), (1, 0): t.logical_and(t.is_inf(x), t.lt(x, 0.0)),
             (0, 1): t.logical_and(t.is_inf(x), t.gt(x, 0.0)), (0, 0): t.zeros(x.shape, "bool")}  # fmt: skip
    return signs[bool(n.attr("detect_negative", 1)), bool(n.attr("detect_positive", 1))]


@operator("Div")
def _div(n: Node) -> Result:
    x, y = n.x(0), n.x(1)
    if dtypes.is_float(x.dtype):
        return t.div(x, y)
    return of.whole_quotient(x, y)


@operator("Mod")
def _mod(n: Node) -> Result:
    x, y = n.x(0), n.x(1)
    if not n.attr("fmod", 0):
        return t.mod(x, y)
    if not dtypes.is_float(x.dtype):
        return of.whole_remainder(x, y)
    size = t.mod(t.abs(x), t.abs(y))
    return t.where(t.lt(x, 0), t.neg(size), size)


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    1.0: lambda x: x, 2.0: t.square, 3.0: lambda x: x * x * x, 0.5: t.sqrt, -0.5: t.rsqrt, -1.0: t.recip,
}  # fmt: skip


@operator("Pow")
def _pow(n: Node) -> Result:
    x, y = n.x(0), n.x(1)
    exponent = n.known(1)
    if exponent is not None and exponent.size == 1 and y.rank <= x.rank and dtypes.is_float(x.dtype):
        special = _POWERS.get(float(exponent.reshape(-1)[0]))
        if special is not None:
            return special(x)
    if dtypes.is_float(y.dtype) and not dtypes.is_float(x.dtype):
        wide = "float64" if dtypes.itemsize(x.dtype) > 2 else "float32"
        return t.cast(t.pow(t.cast(x, wide), t.cast(y, wide)), x.dtype)
    wide = _wider(x.dtype, y.dtype)  # a rounded exponent may be whole, or another number if it wraps
    return t.cast(t.pow(t.cast(x, wide), t.cast(y, wide)), x.dtype)


def _wider(base: str, exponent: str) -> str:
    """The dtype in which a power is computed: that of the base, unless one of its kind with more bits has to hold the
    exponent."""
    if base != exponent and {base, exponent} <= {*dtypes.HALVES}:
        return "float32"
    alike = dtypes.is_float(base) == dtypes.is_float(exponent)
    return exponent if alike and dtypes.itemsize(exponent) > dtypes.itemsize(base) else base


@operator("BitShift")
def _bit_shift(n: Node) -> Result:
    x = n.x(0)
    shift, width = n.x(1), 8 * dtypes.itemsize(x.dtype)
    signed = x.dtype.startswith("int")
    gone = t.logical_or(t.ge(shift, width), t.lt(shift, 0)) if signed else t.ge(shift, width)
    near = t.where(gone, width - 1, shift)
    # Two steps, because 2 ** (width - 1) overflows a signed integer.
    powers = [t.pow(2, part) for part in (t.floordiv(near, 2), t.sub(near, t.floordiv(near, 2)))]
    if n.choice("direction", "LEFT", "RIGHT") == "LEFT":
        return t.where(gone, 0, t.mul(t.mul(x, powers[0]), powers[1]))
    down = t.floordiv(t.floordiv(x, powers[0]), powers[1])
    return down if signed else t.where(gone, 0, down)


@operator("Max", "Min", "Sum", "Mean")
def _variadic(n: Node) -> Result:
    parts = n.tensors()
    if n.op in ("Max", "Min"):
        return reduce(t.maximum if n.op == "Max" else t.minimum, parts)
    total = reduce(t.add, parts)
    return total if n.op == "Sum" else total * (1.0 / len(parts))


@operator("Cast", limits="8- and 4-bit floats, 4- and 2-bit ints, strings")
def _cast(n: Node) -> Result:
    return t.cast(n.x(), n.dtype("to"))


@operator("CastLike", limits="8- and 4-bit floats, 4- and 2-bit ints, strings")
def _cast_like(n: Node) -> Result:
    return t.cast(n.x(0), n.x(1).dtype)


@operator("Dropout", limits="training mode")
def _dropout(n: Node) -> Result:
    training = n.known(2)
    if n.has(2) and (training is None or bool(training)):
        ratio = n.known(1)
        if ratio is None or float(ratio) != 0.0:
            raise n.unsupported("training mode")
    return [n.x(), t.ones(n.x().shape, "bool")]


# ---------------------------------------------------------------- activations
@operator("Gelu")
def _gelu(n: Node) -> Result:
    return c.gelu_tanh(n.x()) if n.choice("approximate", "none", "tanh") == "tanh" else c.gelu(n.x())


@operator("Elu")
def _elu(n: Node) -> Result:
    return c.elu(n.x(), alpha=n.attr("alpha", 1.0))


@operator("Celu")
def _celu(n: Node) -> Result:
    x, alpha = n.x(), n.attr("alpha", 1.0)
    return t.maximum(x, 0.0) + t.minimum(t.expm1(x * (1.0 / alpha)) * alpha, 0.0)


@operator("Selu")
def _selu(n: Node) -> Result:
    alpha, gamma = n.attr("alpha", 1.6732632423543772), n.attr("gamma", 1.0507009873554805)
    return t.mul(c.elu(n.x(), alpha=alpha), gamma)


@operator("LeakyRelu")
def _leaky(n: Node) -> Result:
    return c.leaky_relu(n.x(), alpha=n.attr("alpha", 0.01))


@operator("PRelu")
def _prelu(n: Node) -> Result:
    x = n.x()
    return t.where(t.lt(x, 0), t.mul(x, n.fitting(1, x.shape)), x)


@operator("ThresholdedRelu")
def _thresholded(n: Node) -> Result:
    return t.where(t.gt(n.x(), n.attr("alpha", 1.0)), n.x(), 0.0)


@operator("HardSigmoid")
def _hard_sigmoid(n: Node) -> Result:
    return c.hard_sigmoid(n.x(), alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


@operator("Swish")
def _swish(n: Node) -> Result:
    x, alpha = n.x(), n.attr("alpha", 1.0)
    return c.silu(x) if alpha == 1.0 else x * c.sigmoid(x * alpha)


@operator("SwiGLU")
def _swiglu(n: Node) -> Result:
    alpha, gate = n.attr("alpha", 1.0), n.x(0)
    return t.mul(c.silu(gate) if alpha == 1.0 else gate * c.sigmoid(gate * alpha), n.x(1))


@operator("Shrink")
def _shrink(n: Node) -> Result:
    x, bias, limit = n.x(), n.attr("bias", 0.0), n.attr("lambd", 0.5)
    kind = x.dtype
    wide = x if dtypes.is_float(kind) else t.cast(x, "float64")
    inner = t.where(t.gt(wide, limit), wide - bias, 0.0)
    return t.cast(t.where(t.lt(wide, -limit), wide + bias, inner), kind)


@operator("Clip")
def _clip(n: Node) -> Result:
    x = n.x()
    ends = [n.known(i) for i in (1, 2)]
    known = all(e is not None or not n.has(i) for i, e in enumerate(ends, 1))
    if known and dtypes.is_float(x.dtype) and any(e is not None for e in ends):
        lo, hi = (d if e is None else float(e.reshape(())) for e, d in zip(ends, (float("-inf"), float("inf"))))
        if lo <= hi:
            return c.clip(x, lo=lo, hi=hi)
    x = t.maximum(x, n.x(1)) if n.has(1) else x
    return t.minimum(x, n.x(2)) if n.has(2) else x


def _along_axis(n: Node, build: Callable[[Tensor, int], Tensor]) -> Tensor:
    """`build` of (operand, axis). Before opset 13, all axes from that of the node on count as one."""
    x = n.x()
    axis = n.axis(-1 if n.opset >= 13 else 1, x.rank)
    if x.shape[axis] == 0 or (n.opset < 13 and volume(x.shape[axis:]) == 0):
        return x
    if n.opset >= 13:
        return build(x, axis)
    flat = t.reshape(x, (*x.shape[:axis], volume(x.shape[axis:])))
    return t.reshape(build(flat, axis), x.shape)


@operator("Softmax", "LogSoftmax")
def _softmax(n: Node) -> Result:
    softmax = c.softmax if n.op == "Softmax" else c.log_softmax
    return _along_axis(n, lambda x, axis: softmax(x, axis=axis))


@operator("Hardmax")
def _hardmax(n: Node) -> Result:
    return _along_axis(n, _largest)


def _largest(x: Tensor, axis: int) -> Tensor:
    """1 at the first largest element along the axis, 0 elsewhere."""
    shape = [x.shape[axis] if i == axis else 1 for i in range(x.rank)]
    return t.cast(t.eq(t.iota(shape, axis), t.argmax(x, axis, True)), x.dtype)


@operator("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(n: Node) -> Result:
    (size,) = n.dims(0)
    kind = n.dtype("output_datatype", 1)
    weights = {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 21 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }
    if not isinstance(size, int):
        raise n.unsupported("free size")
    turn = t.arange(size, "float64") * (2 * pi / (size if n.attr("periodic", 1) else max(size - 1, 1)))
    a, b, d = weights[n.op]
    return t.cast(t.cos(turn) * -b + t.cos(turn * 2.0) * d + a, kind)
