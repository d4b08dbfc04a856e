"""Builders of ATen overloads that only AOTAutograd's graphs have: fused attention, and backward operators without a
decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from ...egraph.ir import builders as t
from ...egraph.ir.dims import volume
from ...egraph.ir.graph import Tensor
from ...errors import UnsupportedError
from ..common.sampling import whole_sizes
from . import aten_layout as layout
from . import aten_nn as nn
from . import aten_pointwise as p
from . import aten_reduce as r
from .aten_layout import Missing

_STATISTICS = "the statistics of fused attention"


def _scale_of(q: Tensor, scale: float | None) -> float:
    (size,) = whole_sizes(q.shape[-1:], "the default scale of attention")
    return float(scale) if scale is not None else 1.0 / sqrt(size or 1)


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    """Return scale * q @ k.T + mask in float32, [..., queries, keys]."""
    scores = t.matmul(t.cast(q, "float32"), t.swapaxes(t.cast(k, "float32"), -1, -2)) * scale
    if causal:
        queries, keys = whole_sizes(scores.shape[-2:], "a causal mask")
        seen = layout.tril(t.full((queries, keys), True, "bool"))
        scores = t.where(t.with_rank(seen, scores.rank), scores, t.full((1,) * scores.rank, float("-inf"), "float32"))
    if mask is None:
        return scores
    if mask.dtype == "bool":
        least = t.full((1,) * scores.rank, float("-inf"), "float32")
        return t.where(t.with_rank(mask, scores.rank), scores, least)
    return scores + t.with_rank(t.cast(mask, "float32"), scores.rank)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp of the scores over the keys, float32]."""
    out = nn.attention(q, k, v, attn_mask, dropout, causal, scale=scale)
    scores = _scores(q, k, causal, attn_mask, _scale_of(q, scale))
    top = t.max(scores, -1, True)
    return [out, t.squeeze(top + t.log(t.sum(t.exp(scores - top), -1, True)), -1)]


def flash_cpu_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dropout: float, causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the gradients of query, key and value."""
    if dropout:
        raise UnsupportedError("attention with dropout is random")
    factor, dtype = _scale_of(q, scale), q.dtype
    grad, out, q32, k32, v32 = (t.cast(x, "float32") for x in (grad, out, q, k, v))
    weights = t.exp(_scores(q, k, causal, attn_mask, factor) - t.expand_dims(t.cast(logsumexp, "float32"), -1))
    inner = t.matmul(grad, t.swapaxes(v32, -1, -2)) - t.sum(grad * out, -1, True)
    scores = weights * inner * factor
    grads = (
        t.matmul(scores, k32),
        t.matmul(t.swapaxes(scores, -1, -2), q32),
        t.matmul(t.swapaxes(weights, -1, -2), grad),
    )
    return [t.cast(g, dtype) for g in grads]


def multi_head_attention(
    q: Tensor, k: Tensor, v: Tensor, size: int, heads: int, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> list[Any]:  # fmt: skip
    """Return [multi-head self-attention of [batch, length, size], None]. Not with a mask, weights, or several operands."""
    if mask is not None or need_weights or q is not k or q is not v:
        raise UnsupportedError("fused multi-head attention with a mask, weights, or different operands")
    split = (*q.shape[:-1], 3, heads, size // heads)
    parts = t.permute(t.reshape(r.linear(q, w, b), split), (2, 0, 3, 1, 4))
    made = nn.attention(layout.select(parts, 0, 0), layout.select(parts, 0, 1), layout.select(parts, 0, 2))
    return [r.linear(t.reshape(t.swapaxes(made, 1, 2), q.shape), w_out, b_out), None]


def encoder_layer(
    x: Tensor, size: int, heads: int, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor, gelu: bool, first: bool,
    eps: float, gain_1: Tensor, shift_1: Tensor, gain_2: Tensor, shift_2: Tensor, up: Tensor, up_b: Tensor, down: Tensor,
    down_b: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Return a transformer encoder layer's result, with norms before or after its two blocks."""

    def attend(y: Tensor) -> Tensor:
        found: Tensor = multi_head_attention(y, y, y, size, heads, w, b, w_out, b_out, mask, False)[0]
        return found

    def feed(y: Tensor) -> Tensor:
        wide = r.linear(y, up, up_b)
        return r.linear(p.gelu(wide) if gelu else p.clamp(wide, 0), down, down_b)

    def norm_1(y: Tensor) -> Tensor:
        return nn.layer_norm(y, (size,), gain_1, shift_1, eps)

    def norm_2(y: Tensor) -> Tensor:
        return nn.layer_norm(y, (size,), gain_2, shift_2, eps)

    if first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


def fused_attention(results: int, biased: bool) -> Callable[..., list[Any]]:
    """Return the builder of a GPU's fused attention with so many results, of which the first is computed.

    `biased`: its fourth operand is a bias or None, and a flag follows.
    """

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float | None = None) -> list[Any]:
        bias, rest = (rest[0], rest[2:]) if biased else (None, rest)
        dropout, causal = ([*rest, 0.0, False][i] for i in (0, 1)) if len(rest) > 1 else ((*rest, 0.0)[0], False)
        out = nn.attention(q, k, v, bias, dropout, causal, scale=scale)
        return [out, *[Missing(_STATISTICS)] * (results - 1)]

    return run


def convolution_backward(
    grad: Tensor, x: Tensor, w: Tensor, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the gradients of input, weight and bias; None where not wanted. Not for transposed convolutions, and with
    groups only for the input and the bias.
    """
    n = w.rank - 2
    stride, padding, dilation = ((list(v) * n)[:n] for v in (stride, padding, dilation))
    if transposed or (wanted[1] and groups != 1):
        raise UnsupportedError("the weight's gradient of a grouped or transposed convolution")
    sizes, kernel, made = (whole_sizes(v.shape[2:], "a convolution's gradient") for v in (x, w, grad))
    found: list[Any] = [None, None, None]
    if wanted[0]:
        reached = [(made[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(n)]
        extra = [sizes[i] - reached[i] for i in range(n)]
        found[0] = nn.convolution(grad, w, None, stride, padding, dilation, True, extra, groups)
    if wanted[1]:  # a convolution of the input by the output's gradient, summed over the batch
        product = t.conv(t.swapaxes(x, 0, 1), t.swapaxes(grad, 0, 1), None, strides=tuple(dilation),
                         pads=(*padding, *padding), dilations=tuple(stride), groups=1)  # fmt: skip
        for i in range(n):
            product = t.slice_axis(product, 2 + i, 0, kernel[i])
        found[1] = t.swapaxes(product, 0, 1)
    if wanted[2]:
        found[2] = t.sum(grad, (0, *range(2, grad.rank)))
    return found


def max_pool_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: Tensor
) -> Tensor:
    """Return the gradient of a pool's input: each result's gradient is added at the position of its maximum."""
    lead = grad.shape[:-2]

    def flat(y: Tensor) -> Tensor:
        return t.reshape(y, (*lead, volume(y.shape[-2:])))

    empty = t.full((*lead, volume(x.shape[-2:])), 0.0, grad.dtype)
    return t.reshape(layout.scatter_add(empty, -1, flat(indices), flat(grad)), x.shape)


def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of an adaptive mean's input, for sizes that are multiples of the result's."""
    sizes, made = (whole_sizes(v.shape[-2:], "an adaptive pool's gradient") for v in (x, grad))
    times = [a // b for a, b in zip(sizes, made)]
    if any(a % b for a, b in zip(sizes, made)):
        raise UnsupportedError("the gradient of an adaptive mean over windows of different sizes")
    for axis, count in zip((grad.rank - 2, grad.rank - 1), times):
        grad = layout.repeat_interleave(grad, count, axis)
    return grad * (1.0 / (times[0] * times[1]))


def avg_pool_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool,
    counts_padding: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of a mean pool's input."""
    kernel, padding = (list(kernel) * 2)[:2], (list(padding) * 2)[:2]
    if ceil or x.rank != 4 or (any(padding) and not counts_padding):
        raise UnsupportedError("the gradient of a mean pool with windows of different sizes")
    (channels,) = whole_sizes(x.shape[1:2], "a pool's gradient")
    ones = t.full((channels, 1, *kernel), 1.0 / (divisor or kernel[0] * kernel[1]), grad.dtype)
    wanted = (True, False, False)
    found: Tensor = convolution_backward(grad, x, ones, None, list(stride) or kernel, padding, [1, 1], False, [0, 0],
                                         channels, wanted)[0]  # fmt: skip
    return found


TRAINING: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": flash_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": flash_cpu_backward,
    "_scaled_dot_product_flash_attention.default": fused_attention(9, False),
    "_scaled_dot_product_efficient_attention.default": fused_attention(4, True),
    "_scaled_dot_product_cudnn_attention.default": fused_attention(9, True),
    "_scaled_dot_product_fused_attention_overrideable.default": fused_attention(9, False),
    "_native_multi_head_attention.default": multi_head_attention,
    "_transformer_encoder_layer_fwd.default": encoder_layer,
    "convolution_backward.default": convolution_backward,
    "max_pool2d_with_indices_backward.default": max_pool_backward,
    "_adaptive_avg_pool2d_backward.default": adaptive_avg_pool_backward,
    "avg_pool2d_backward.default": avg_pool_backward,
}

__all__ = ["TRAINING"]
