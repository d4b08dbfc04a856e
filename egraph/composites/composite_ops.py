"""Declares the composite ops (composite.py) of activations, reductions, norms, attention, pooling and losses."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from ..builders import builders as t
from ..builders.reduction_builders import count
from ..ir.tensor import Tensor
from ..ops import op_flops
from ..ops.ops import OutFunction
from ..types.dims import Dim, DimExpr, volume
from .composite import composite


def inverse(n: Dim) -> float:
    """1 / n as a float; NaN for n = 0. Raises ValueError for a symbolic n."""
    if isinstance(n, DimExpr):
        raise ValueError("a mean over a free dimension decomposes only once it is bound")
    return 1.0 / n if n else float("nan")


def _line(x: Tensor, value: Tensor) -> Tensor:
    """A vector along the last axis, reshaped to x's rank."""
    return t.with_rank(value, x.rank)


def over_channels(x: Tensor, value: Tensor) -> Tensor:
    """A vector along channel axis 1, reshaped to x's rank."""
    return t.reshape(value, (1, value.shape[0]) + (1,) * (x.rank - 2))


def by_group(x: Tensor, groups: int) -> Tensor:
    """x[N, C, ...] as [N, groups, elements of a group]."""
    return t.reshape(x, (x.shape[0], groups, volume(x.shape[1:]) // groups))


# ---------------------------------------------------------------- activations
@composite(
    "relu",
    1,
    "pointwise",
    twice="once",
    monotone=True,
    nonnegative=True,
    fixed=(0.0, 1.0),
    onnx=("Relu",),
    aten=("relu",),
)
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return t.maximum(x, 0.0)


@composite("sigmoid", 1, "pointwise", flops=10, monotone=True, nonnegative=True, onnx=("Sigmoid",), aten=("sigmoid",),
           torch_function=OutFunction("sigmoid"))  # fmt: skip
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    return t.recip(t.exp(-x) + 1.0)


@composite("silu", 1, "pointwise", flops=11, onnx=("Swish",), aten=("silu",))
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)"""
    return x * sigmoid(x)


@composite("gelu", 1, "pointwise", flops=14, onnx=("Gelu",), aten=("gelu",))
def gelu(x: Tensor) -> Tensor:
    """x * (1 + erf(x / sqrt 2)) / 2"""
    return x * 0.5 * (t.erf(x * sqrt(0.5)) + 1.0)


@composite("gelu_tanh", 1, "pointwise", flops=16)
def gelu_tanh(x: Tensor) -> Tensor:
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))) / 2"""
    return x * 0.5 * (t.tanh((x + x * x * x * 0.044715) * sqrt(2 / pi)) + 1.0)


@composite("softplus", 1, "pointwise", flops=18, onnx=("Softplus",), aten=("softplus",))
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow"""
    return t.maximum(x, 0.0) + t.log1p(t.exp(-t.abs(x)))


@composite("mish", 1, "pointwise", flops=30, onnx=("Mish",), aten=("mish",))
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))"""
    return x * t.tanh(softplus(x))


@composite("elu", 1, "pointwise", {"alpha": "float"}, {"alpha": 1.0}, flops=10, onnx=("Elu",), aten=("elu",))
def elu(x: Tensor, alpha: float) -> Tensor:
    """x where positive, else alpha * (exp(x) - 1)"""
    return t.where(t.gt(x, 0.0), x, t.expm1(t.minimum(x, 0.0)) * alpha)


@composite("leaky_relu", 1, "pointwise", {"alpha": "float"}, {"alpha": 0.01}, onnx=("LeakyRelu",), aten=("leaky_relu",))
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """x where positive, else alpha * x"""
    return t.where(t.gt(x, 0.0), x, x * alpha)


@composite("hard_sigmoid", 1, "pointwise", {"alpha": "float", "beta": "float"}, {"alpha": 1 / 6, "beta": 0.5},
           onnx=("HardSigmoid",), aten=("hardsigmoid",))  # fmt: skip
def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha * x + beta, clipped to [0, 1]"""
    return t.minimum(t.maximum(x * alpha + beta, 0.0), 1.0)


@composite("hard_swish", 1, "pointwise", onnx=("HardSwish",), aten=("hardswish",))
def hard_swish(x: Tensor) -> Tensor:
    """x * clip(x / 6 + 1/2, 0, 1)"""
    return x * hard_sigmoid(x)


@composite("clip", 1, "pointwise", {"lo": "float", "hi": "float"}, {"lo": float("-inf"), "hi": float("inf")},
           onnx=("Clip",), aten=("clamp",))  # fmt: skip
def clip(x: Tensor, lo: float, hi: float) -> Tensor:
    """x limited to [lo, hi]"""
    return t.minimum(t.maximum(x, lo), hi)


# ---------------------------------------------------------------- reductions and normalisations
@composite("mean", 1, "reduce", {"axes": "dims"}, linear=(0,), onnx=("ReduceMean",), aten=("mean",))
def mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean over axes."""
    return t.sum(x, axes, True) * inverse(count(x.shape, axes))


@composite(
    "softmax",
    1,
    "same",
    {"axis": "int"},
    fused_as="rows",
    several_passes=True,
    flops=14,
    onnx=("Softmax",),
    aten=("_softmax", "softmax"),
)
def softmax(x: Tensor, axis: int) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along an axis"""
    e = t.exp(x - t.max(x, axis, True))
    return e / t.sum(e, axis, True)


@composite(
    "logsumexp",
    1,
    "reduce",
    {"axes": "dims"},
    fused_as="rows",
    several_passes=True,
    flops=12,
    onnx=("ReduceLogSumExp",),
    aten=("logsumexp",),
)
def logsumexp(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """log(sum(exp(x))) over axes, shifted by the largest finite value"""
    top = t.max(x, axes, True)
    top = t.where(t.is_inf(top), t.full((1,) * x.rank, 0.0, x.dtype), top)
    return t.log(t.sum(t.exp(x - top), axes, True)) + top


@composite(
    "log_softmax",
    1,
    "same",
    {"axis": "int"},
    fused_as="rows",
    several_passes=True,
    flops=12,
    onnx=("LogSoftmax",),
    aten=("_log_softmax", "log_softmax"),
)
def log_softmax(x: Tensor, axis: int) -> Tensor:
    """x - logsumexp(x) along an axis"""
    shifted = x - t.max(x, axis, True)
    return shifted - t.log(t.sum(t.exp(shifted), axis, True))


@composite("layer_norm", 3, "norm", {"eps": "float"}, {"eps": 1e-5}, fused_as="rows", several_passes=True, flops=8,
           onnx=("LayerNormalization",),
           aten=("native_layer_norm", "layer_norm"))  # fmt: skip
def layer_norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + shift over the last axis"""
    centred = x - t.mean(x, -1, True)
    scaled = centred * t.rsqrt(t.mean(centred * centred, -1, True) + eps)
    return scaled * _line(x, gain) + _line(x, shift)


@composite(
    "rms_norm",
    2,
    "norm",
    {"eps": "float"},
    {"eps": 1e-6},
    fused_as="rows",
    several_passes=True,
    flops=6,
    onnx=("RMSNormalization",),
    aten=("rms_norm",),
)
def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * gain over the last axis"""
    return x * t.rsqrt(t.mean(x * x, -1, True) + eps) * _line(x, gain)


@composite("batch_norm", 5, "channel_norm", {"eps": "float"}, {"eps": 1e-5}, fused_as="cheap", flops=4, domain="positive", onnx=("BatchNormalization",),
           aten=("_native_batch_norm_legit_no_training",))  # fmt: skip
def batch_norm(x: Tensor, gain: Tensor, shift: Tensor, mean_: Tensor, var_: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + shift per channel (axis 1), with given statistics"""
    scale = gain * t.rsqrt(var_ + eps)
    return x * over_channels(x, scale) + over_channels(x, shift - mean_ * scale)


@composite("group_norm", 3, "channel_norm", {"groups": "int", "eps": "float"}, {"eps": 1e-5}, fused_as="rows",
           several_passes=True, flops=8,
           onnx=("GroupNormalization",), aten=("native_group_norm", "group_norm"))  # fmt: skip
def group_norm(x: Tensor, gain: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
    """Normalised over groups of channels and all positions, then scaled and shifted per channel"""
    flat = by_group(x, groups)
    centred = flat - t.mean(flat, -1, True)
    scaled = t.reshape(centred * t.rsqrt(t.mean(centred * centred, -1, True) + eps), x.shape)
    return scaled * over_channels(x, gain) + over_channels(x, shift)


# ---------------------------------------------------------------- contractions
@composite(
    "linear",
    3,
    "linear",
    fused_as="product",
    work=op_flops.product,
    algebra="ring",
    onnx=("Gemm",),
    aten=("addmm", "linear"),
)
def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x @ w + b"""
    return t.matmul(x, w) + _line(x, b)


_ATTENTION = {"scale": "float", "causal": "bool", "window": "int", "softcap": "float"}
_ATTENTION_DEFAULTS = {"causal": False, "window": 0, "softcap": 0.0}


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool, window: int, softcap: float
) -> Tensor:
    """softmax(scores) @ v, shared by the attention ops.

    Hidden scores are replaced, so that NaN and infinities among them do not reach the result; the summand `mask`
    hides by -inf only finite ones, as in PyTorch and ONNX.
    """
    scores = t.matmul(q, t.transpose(k)) * scale
    if softcap:
        scores = t.tanh(scores * (1.0 / softcap)) * softcap
    if causal or window:
        scores = _without(scores, hidden_positions(q.shape[-2], k.shape[-2], causal, window))
    if mask is not None:
        scores = _without(scores, mask) if mask.dtype == "bool" else scores + mask
    return t.matmul(softmax(scores, axis=scores.rank - 1), v)


def _without(scores: Tensor, hidden: Tensor) -> Tensor:
    """The scores with -inf where `hidden` (bool, of any rank up to theirs) is true."""
    return t.where(t.with_rank(hidden, scores.rank), t.full((1,) * scores.rank, float("-inf"), scores.dtype), scores)


def hidden_positions(rows: Dim, columns: Dim, causal: bool, window: int) -> Tensor:
    """Bool mask [rows, columns]: true where row t may not see column s (aligned at the last position).

    `causal`: a row sees no later columns. `window` counts visible columns; 0 means no window.
    """
    ahead = t.iota((rows, columns), 1) - t.iota((rows, columns), 0) - (columns - rows if columns != rows else 0)
    hidden = t.gt(ahead, 0) if causal else t.lt(ahead, -(1 << 30))
    return t.logical_or(hidden, t.le(ahead, -window)) if window else hidden


def causal_mask(rows: Dim, columns: Dim, causal: bool, window: int, dtype: str) -> Tensor:
    """Additive mask [rows, columns]: -inf at `hidden_positions`, 0 elsewhere."""
    hidden = hidden_positions(rows, columns, causal, window)
    return t.where(hidden, t.full((1, 1), float("-inf"), dtype), t.full((1, 1), 0.0, dtype))


@composite("attention", 3, "attention", _ATTENTION, _ATTENTION_DEFAULTS, fused_as="product", work=op_flops.attention, onnx=("Attention",),
           aten=("scaled_dot_product_attention",))  # fmt: skip
def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int, softcap: float) -> Tensor:
    """softmax(scale * q @ k.T) @ v, optionally soft-capped, causal, windowed; leading axes broadcast (grouped query)

    `causal`: a query sees no later positions. `window`: number of positions that a query sees at most; 0: no limit.
    `softcap`: c turns a score s into c * tanh(s / c); 0 leaves scores as they are.
    """
    return _attend(q, k, v, None, scale, causal, window, softcap)


@composite("masked_attention", 4, "attention", _ATTENTION, _ATTENTION_DEFAULTS, fused_as="product",
           work=op_flops.attention)  # fmt: skip
def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, causal: bool, window: int, softcap: float
) -> Tensor:
    """attention with an additive mask on the scaled scores

    `window`: number of positions that a query sees at most; 0: no limit. `softcap`: c turns a score s into
    c * tanh(s / c); 0 leaves scores as they are.
    """
    return _attend(q, k, v, mask, scale, causal, window, softcap)


@composite("hiding_attention", 4, "attention", _ATTENTION, _ATTENTION_DEFAULTS, fused_as="product",
           work=op_flops.attention, floats_only=False)  # fmt: skip
def hiding_attention(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, scale: float, causal: bool, window: int, softcap: float
) -> Tensor:
    """attention without the scores for which the bool mask `hidden` is true, whatever they are (NaN, too)

    `window`: number of positions that a query sees at most; 0: no limit. `softcap`: c turns a score s into
    c * tanh(s / c); 0 leaves scores as they are.
    """
    return _attend(q, k, v, hidden, scale, causal, window, softcap)


@composite("rope", 3, "rope", fused_as="cheap", flops=3, onnx=("RotaryEmbedding",))  # fmt: skip
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin, with rotate_half(x) = [-second half, first half] of the last axis"""
    half = x.shape[-1] // 2
    rotated = t.concat([-t.slice_axis(x, -1, half, x.shape[-1]), t.slice_axis(x, -1, 0, half)], -1)
    return x * cos + rotated * sin


# ---------------------------------------------------------------- pooling
_POOL = {"kernel": "dims", "strides": "dims", "pads": "dims", "dilations": "dims"}


def _pooled(x: Tensor, kernel: Any, strides: Any, pads: Any, dilations: Any, fill: float) -> Tensor:
    """Pooling windows of x padded with `fill`, window elements in new last axes."""
    n = len(kernel)
    x = t.pad(x, [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))], fill)
    for i in range(n):
        x = t.windows(x, 2 + i, kernel[i], strides[i], dilations[i])
    return x


@composite(
    "max_pool", 1, "pool", _POOL, fused_as="rows", work=op_flops.pooling, algebra="order", onnx=("MaxPool",),
    aten=("max_pool2d_with_indices", "max_pool2d"),
)  # fmt: skip
def max_pool(x: Tensor, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Tensor:
    """Largest value in each window; padding never wins

    x[N, C, *S]; one number per spatial axis, but `pads` = all low sides, then all high sides.
    """
    windows = _pooled(x, kernel, strides, pads, dilations, float("-inf"))
    return t.max(windows, tuple(range(x.rank, windows.rank)))


@composite("avg_pool", 1, "pool", _POOL, fused_as="rows", work=op_flops.pooling, linear=(0,), onnx=("AveragePool",),
           aten=("avg_pool2d",))  # fmt: skip
def avg_pool(x: Tensor, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Tensor:
    """Mean of each window, padding counted as zeros

    x[N, C, *S]; one number per spatial axis, but `pads` = all low sides, then all high sides.
    """
    windows = _pooled(x, kernel, strides, pads, dilations, 0.0)
    return t.sum(windows, tuple(range(x.rank, windows.rank))) * inverse(volume(tuple(kernel)))


@composite("cross_entropy", 2, "cross_entropy", floats_only=False, index_operand=1, aten=("cross_entropy_loss",))
def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-log_softmax(logits)[target] of logits[N, C] and target[N], per row"""
    rows = t.gather_elements(log_softmax(logits, axis=1), t.expand_dims(target, 1), 1)
    return t.squeeze(-rows, 1)
