"""Functions that translate operators of ONNX Runtime (domain com.microsoft) on quantized values, whose results are
quantized, too: integers with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import volume
from .names import MICROSOFT
from .node import OPERATORS, Node, Result, operator, resolve
from .quantize import BYTES, plain, quantized, saturate

microsoft = partial(operator, domain=MICROSOFT)


def _plain(n: Node, position: int) -> Tensor:
    """The float32 value of the quantized operand at `position`, whose scale and zero point follow."""
    x = n.x(position)
    zero = n.opt(position + 2)
    scale = _scalar(n.x(position + 1), x.rank)
    if x.dtype in BYTES and (zero is None or zero.dtype == x.dtype):
        return plain(x, scale, None if zero is None else t.reshape(zero, (1,) * x.rank))
    return (t.cast(x, "float32") if zero is None else t.cast(x, "float32") - _scalar(zero, x.rank)) * scale


def _scalar(x: Tensor, rank: int) -> Tensor:
    return t.reshape(t.cast(x, "float32"), (1,) * rank)


def _quantized(n: Node, x: Tensor, position: int, kind: str) -> Tensor:
    """x quantized by the scale at `position` and the zero point after it."""
    zero = n.opt(position + 1)
    scale = _scalar(n.x(position), x.rank)
    if zero is None or zero.dtype == kind:
        return quantized(x, scale, None if zero is None else t.reshape(zero, (1,) * x.rank), kind)
    return saturate(t.round(x / scale) + _scalar(zero, x.rank), kind)


@microsoft("QLinearAdd", "QLinearMul")
def _qlinear_two(n: Node) -> Result:
    a, b = _plain(n, 0), _plain(n, 3)
    return _quantized(n, t.mul(a, b) if n.op.endswith("Mul") else t.add(a, b), 6, n.x(0).dtype)


@microsoft("QLinearSigmoid", "QLinearLeakyRelu")
def _qlinear_one(n: Node) -> Result:
    x = _plain(n, 0)
    y = c.sigmoid(x) if n.op.endswith("Sigmoid") else c.leaky_relu(x, alpha=n.attr("alpha", 0.01))
    return _quantized(n, y, 3, n.x(0).dtype)


@microsoft("QLinearSoftmax")
def _qlinear_softmax(n: Node) -> Result:
    x = _plain(n, 0)
    axis = resolve(n.attr("axis", -1), x.rank)
    if n.attr("opset") >= 13:
        y = c.softmax(x, axis=axis)
    else:  # all axes from this one on share a softmax
        flat = t.reshape(x, (*x.shape[:axis], volume(x.shape[axis:])))
        y = t.reshape(c.softmax(flat, axis=axis), x.shape)
    return _quantized(n, y, 3, n.x(0).dtype)


@microsoft("QLinearConcat")
def _qlinear_concat(n: Node) -> Result:
    kind = n.x(1).dtype
    parts = []
    for i in range(2, len(n.inputs), 3):
        x = t.cast(n.x(i), "float32")
        parts.append((x - _scalar(n.x(i + 2), x.rank)) * _scalar(n.x(i + 1), x.rank))
    if any(dtypes.is_float(n.x(i).dtype) for i in range(2, len(n.inputs), 3)):
        raise n.unsupported("float operands")
    return _quantized(n, t.concat(parts, resolve(n.attr("axis"), parts[0].rank)), 0, kind)


@microsoft("QLinearWhere")
def _qlinear_where(n: Node) -> Result:
    return _quantized(n, t.where(n.x(0), _plain(n, 1), _plain(n, 4)), 7, n.x(1).dtype)


# ---------------------------------------------------------------- windows
def _with_channels_second(n: Node, x: Tensor, build: Callable[[Tensor], Tensor]) -> Tensor:
    """`build` of x with the channels as axis 1; with `channels_last`, they are the last axis of x and of the result."""
    if not n.attr("channels_last", 0):
        return build(x)
    out = build(t.permute(x, (0, x.rank - 1, *range(1, x.rank - 1))))
    return t.permute(out, (0, *range(2, x.rank), 1))


def _default(n: Node, name: str, *operands: Tensor | None) -> Tensor:
    """The result of the operator `name` of the default domain with these operands and the attributes of the node."""
    found = OPERATORS[name].build(replace(n, op=name, inputs=operands, outputs=n.outputs[:1]))
    assert isinstance(found, Tensor)
    return found


@microsoft("QLinearGlobalAveragePool", "QLinearAveragePool", limits="ceil_mode with count_include_pad")
def _qlinear_pool(n: Node) -> Result:
    if n.attr("ceil_mode", 0) and n.attr("count_include_pad", 0):
        raise n.unsupported("ceil_mode with count_include_pad")  # padding is counted otherwise than by AveragePool
    name = n.op.removeprefix(f"{MICROSOFT}.QLinear")
    y = _with_channels_second(n, _plain(n, 0), lambda x: _default(n, name, x))
    return _quantized(n, y, 3, n.x(0).dtype)


@microsoft("NhwcMaxPool")
def _nhwc_max_pool(n: Node) -> Result:
    last = replace(n, attrs={**n.attrs, "channels_last": 1})
    return _with_channels_second(last, n.x(0), lambda x: _default(n, "MaxPool", x))


@microsoft("QLinearConv")
def _qlinear_conv(n: Node) -> Result:
    rest = [n.opt(i) for i in range(1, 9)]
    return _with_channels_second(n, n.x(0), lambda x: _default(n, "QLinearConv", x, *rest))
