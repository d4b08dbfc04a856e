"""Builders of ATen overloads that only AOTAutograd's graphs have: fused attention and its backward, fused layers."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from ...egraph.ir import builders as t
from ...egraph.ir.tensor import Tensor
from ...errors import UnsupportedError
from ..common.sampling import whole_sizes
from . import aten_attention, aten_create, aten_norm, aten_views
from . import aten_pointwise as p
from . import aten_reduce as r
from .missing import Missing

_STATISTICS = "the statistics of fused attention"


def _scale_of(q: Tensor, scale: float | None) -> float:
    (size,) = whole_sizes(q.shape[-1:], "the default scale of attention")
    return float(scale) if scale is not None else 1.0 / sqrt(size or 1)


def _accumulated(x: Tensor) -> Tensor:
    """Return x in the dtype in which fused attention accumulates: float64 for float64, else float32."""
    return t.cast(x, "float64" if x.dtype == "float64" else "float32")


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    """Return scale * q @ k.T + mask, [..., queries, keys], in the dtype of `_accumulated`."""
    scores = t.matmul(_accumulated(q), t.swapaxes(_accumulated(k), -1, -2)) * scale
    if causal:
        queries, keys = whole_sizes(scores.shape[-2:], "a causal mask")
        seen = aten_create.tril(t.full((queries, keys), True, "bool"))
        scores = t.where(
            t.with_rank(seen, scores.rank), scores, t.full((1,) * scores.rank, float("-inf"), scores.dtype)
        )
    if mask is None:
        return scores
    if mask.dtype == "bool":
        least = t.full((1,) * scores.rank, float("-inf"), scores.dtype)
        return t.where(t.with_rank(mask, scores.rank), scores, least)
    return scores + t.with_rank(t.cast(mask, scores.dtype), scores.rank)


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp of the scores over the keys; 0 for queries that see no key]."""
    out = aten_attention.attention(q, k, v, attn_mask, dropout, causal, scale=scale)
    scores = _scores(q, k, causal, attn_mask, _scale_of(q, scale))
    top = t.max(scores, -1, True)
    if attn_mask is None or aten_attention.some_visible(attn_mask):
        return [out, t.squeeze(top + t.log(t.sum(t.exp(scores - top), -1, True)), -1)]
    hidden = t.eq(top, float("-inf"))
    top = t.where(hidden, 0.0, top)
    total = t.log(t.where(hidden, 1.0, t.sum(t.exp(scores - top), -1, True)))
    return [out, t.squeeze(top + total, -1)]


def flash_cpu_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dropout: float, causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the gradients of query, key and value. Raises UnsupportedError for dropout."""
    if dropout:
        raise UnsupportedError("attention with dropout is random")
    factor, dtype = _scale_of(q, scale), q.dtype
    grad, out, wide_q, wide_k, wide_v = (_accumulated(x) for x in (grad, out, q, k, v))
    weights = t.exp(_scores(q, k, causal, attn_mask, factor) - t.expand_dims(_accumulated(logsumexp), -1))
    inner = t.matmul(grad, t.swapaxes(wide_v, -1, -2)) - t.sum(grad * out, -1, True)
    scores = weights * inner * factor
    grads = (
        t.matmul(scores, wide_k),
        t.matmul(t.swapaxes(scores, -1, -2), wide_q),
        t.matmul(t.swapaxes(weights, -1, -2), grad),
    )
    return [t.cast(g, dtype) for g in grads]


def multi_head_attention(
    q: Tensor, k: Tensor, v: Tensor, size: int, heads: int, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> list[Any]:  # fmt: skip
    """Return [multi-head self-attention of [batch, length, size], None].

    Raises UnsupportedError for a mask, for requested weights, and if query, key and value are not one tensor.
    """
    if mask is not None or need_weights or q is not k or q is not v:
        raise UnsupportedError("fused multi-head attention with a mask, weights, or different operands")
    split = (*q.shape[:-1], 3, heads, size // heads)
    parts = t.permute(t.reshape(r.linear(q, w, b), split), (2, 0, 3, 1, 4))
    made = aten_attention.attention(
        aten_views.select(parts, 0, 0), aten_views.select(parts, 0, 1), aten_views.select(parts, 0, 2)
    )
    return [r.linear(t.reshape(t.swapaxes(made, 1, 2), q.shape), w_out, b_out), None]


def encoder_layer(
    x: Tensor, size: int, heads: int, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor, gelu: bool, first: bool,
    eps: float, gain_1: Tensor, shift_1: Tensor, gain_2: Tensor, shift_2: Tensor, up: Tensor, up_b: Tensor, down: Tensor,
    down_b: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Return a transformer encoder layer's result, with norms before (`first`) or after its two blocks."""

    def attend(y: Tensor) -> Tensor:
        found: Tensor = multi_head_attention(y, y, y, size, heads, w, b, w_out, b_out, mask, False)[0]
        return found

    def feed(y: Tensor) -> Tensor:
        wide = r.linear(y, up, up_b)
        return r.linear(p.gelu(wide) if gelu else p.clamp(wide, 0), down, down_b)

    def norm_1(y: Tensor) -> Tensor:
        return aten_norm.layer_norm(y, (size,), gain_1, shift_1, eps)

    def norm_2(y: Tensor) -> Tensor:
        return aten_norm.layer_norm(y, (size,), gain_2, shift_2, eps)

    if first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


def fused_attention(results: int, biased: bool) -> Callable[..., list[Any]]:
    """Return a builder of a GPU's fused attention with `results` results, of which only the first is computed.

    `biased`: its fourth operand is a bias or None, and a flag follows.
    """

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float | None = None) -> list[Any]:
        bias, rest = (rest[0], rest[2:]) if biased else (None, rest)
        dropout, causal = ([*rest, 0.0, False][i] for i in (0, 1)) if len(rest) > 1 else ((*rest, 0.0)[0], False)
        out = aten_attention.attention(q, k, v, bias, dropout, causal, scale=scale)
        return [out, *[Missing(_STATISTICS)] * (results - 1)]

    return run


TRAINING: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": flash_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": flash_cpu_backward,
    "_scaled_dot_product_flash_attention.default": fused_attention(9, False),
    "_scaled_dot_product_efficient_attention.default": fused_attention(4, True),
    "_scaled_dot_product_cudnn_attention.default": fused_attention(9, True),
    "_scaled_dot_product_fused_attention_overrideable.default": fused_attention(9, False),
    "_native_multi_head_attention.default": multi_head_attention,
    "_transformer_encoder_layer_fwd.default": encoder_layer,
}

__all__ = ["TRAINING"]
