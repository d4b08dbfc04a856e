"""Functions that build the graph of ATen overloads that only AOTAutograd's graphs have: fused attention and its
backward, fused layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites import training_ops as g
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.laws_training import ATTENTION_ORDER
from ...errors import UnsupportedError
from ..common.sampling import whole_sizes
from . import aten_activations as act
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


def _composite_mask(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor] | None:
    """The additive mask of the composite ops of attention's gradients, if any; None where these ops do not apply:
    causal attention of unequal lengths, and masks that may hide all keys of a query."""
    if (causal and q.shape[-2] != k.shape[-2]) or q.rank != 4 or q.shape[:-2] != k.shape[:-2]:
        return None
    if mask is None:
        return []
    if not aten_attention.some_visible(mask):
        return None
    mask = t.with_rank(mask, q.rank)
    if mask.dtype != "bool":
        return [mask]
    shown, hidden = (t.full((1,) * q.rank, v, "float32") for v in (0.0, float("-inf")))
    return [t.where(mask, shown, hidden)]


def _for_each_head(x: Tensor, q: Tensor) -> Tensor:
    """Return keys or values with one head for each head of q: each of theirs repeated for its group of q's."""
    if x.rank < 4 or x.shape[-3] == q.shape[-3]:
        return x
    heads, wanted = whole_sizes((x.shape[-3], q.shape[-3]), "the heads of grouped attention")
    wide = t.broadcast_to(t.expand_dims(x, x.rank - 2), (*x.shape[:-2], wanted // heads, *x.shape[-2:]))
    return t.reshape(wide, (*x.shape[:-3], wanted, *x.shape[-2:]))


def _of_each_group(x: Tensor, like: Tensor) -> Tensor:
    """Return a gradient with one head for each head of q, summed to the heads of `like`, keys or values."""
    if x.rank < 4 or x.shape[-3] == like.shape[-3]:
        return x
    heads, given = whole_sizes((like.shape[-3], x.shape[-3]), "the heads of grouped attention")
    return t.sum(t.reshape(x, (*like.shape[:-2], given // heads, *x.shape[-2:])), x.rank - 2)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return (attention, logsumexp of the scores over the keys; 0 for queries that see no key)."""
    out = aten_attention.attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=True)
    k = _for_each_head(k, q)
    if (added := _composite_mask(q, k, mask, causal)) is not None:
        operands = [_accumulated(x) for x in (q, k, *added)]
        build = g.masked_attention_statistics if added else g.attention_statistics
        return out, t.squeeze(build(*operands, scale=_scale_of(q, scale), causal=causal), -1)
    scores = _scores(q, k, causal, mask, _scale_of(q, scale))
    top = t.max(scores, -1, True)
    if mask is None or aten_attention.some_visible(mask):
        return out, t.squeeze(top + t.log(t.sum(t.exp(scores - top), -1, True)), -1)
    hidden = t.eq(top, float("-inf"))
    top = t.where(hidden, 0.0, top)
    total = t.log(t.where(hidden, 1.0, t.sum(t.exp(scores - top), -1, True)))
    return out, t.squeeze(top + total, -1)


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None, dropout: float,
    causal: bool, scale: float | None,
    biased: bool = False,
) -> tuple[list[Tensor], Tensor | None]:  # fmt: skip
    """Return ([gradients of query, key and value], gradient of the scaled scores; None unless `biased`).

    Raises UnsupportedError for dropout.
    """
    if dropout:
        raise UnsupportedError("attention with dropout is random")
    factor, dtype, given = _scale_of(q, scale), q.dtype, (q, k, v)
    k, v = _for_each_head(k, q), _for_each_head(v, q)
    added = _composite_mask(q, k, mask, causal)
    grad, out, wide_q, wide_k, wide_v = (_accumulated(x) for x in (grad, out, q, k, v))
    if added is not None and not biased:
        build, known = (g.masked_attention_gradient if added else g.attention_gradient), (wide_q, wide_k, wide_v)
        rest = (out, grad, t.expand_dims(_accumulated(logsumexp), -1), *map(_accumulated, added))
        orders = [(of, [known[i] for i in order]) for of, order in ATTENTION_ORDER.items()]
        found = [build(*first, *rest, of=of, scale=factor, causal=causal) for of, first in orders]
        return [t.cast(_of_each_group(g, x), dtype) for g, x in zip(found, given, strict=True)], None
    weights = t.exp(_scores(q, k, causal, mask, factor) - t.expand_dims(_accumulated(logsumexp), -1))
    scores = weights * (t.matmul(grad, t.swapaxes(wide_v, -1, -2)) - t.sum(grad * out, -1, True))
    grads = (
        t.matmul(scores * factor, wide_k),
        t.matmul(t.swapaxes(scores * factor, -1, -2), wide_q),
        t.matmul(t.swapaxes(weights, -1, -2), grad),
    )
    return [t.cast(_of_each_group(g, x), dtype) for g, x in zip(grads, given, strict=True)], scores


def flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp of the scores], as the fused attention of CPUs does."""
    return [*_attention(q, k, v, attn_mask, dropout, causal, scale)]


def flash_cpu_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dropout: float, causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the gradients of query, key and value. Raises UnsupportedError for dropout."""
    return [*_gradients(grad, q, k, v, out, logsumexp, attn_mask, dropout, causal, scale)[0]]


_LSE_ROWS = 32  # memory-efficient attention stores its logsumexp for a multiple of as many queries


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, statistics: bool, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp, seed, offset]; the last two, for dropout's random numbers, are 0.

    The logsumexp is infinite for the queries that PyTorch adds to make their number a multiple of 32.
    """
    out, logsumexp = _attention(q, k, v, bias, dropout, causal, scale)
    (queries,) = whole_sizes(q.shape[-2:-1], "the statistics of attention")
    rows = ((0, 0),) * (logsumexp.rank - 1)
    padded = t.pad(logsumexp, (*rows, (0, -queries % _LSE_ROWS)), float("inf"))
    zero = t.full((), 0, "int64")
    return [out, padded if statistics else Missing(_STATISTICS), zero, zero]


def efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor, seed: Tensor,
    offset: Tensor, dropout: float, wanted: Sequence[bool], causal: bool = False, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the gradients of query, key, value and bias (None unless `wanted`).

    Raises UnsupportedError for dropout.
    """
    known = t.slice_axis(logsumexp, logsumexp.rank - 1, 0, q.shape[-2])
    biased = bias is not None and wanted[3]
    grads, scores = _gradients(grad, q, k, v, out, known, bias, dropout, causal, scale, biased)
    if bias is None or scores is None:
        return [*grads, None]
    return [*grads, t.cast(_summed_to(scores, bias), bias.dtype)]


def _summed_to(x: Tensor, like: Tensor) -> Tensor:
    """Return x summed over the axes along which `like` is broadcast to it."""
    for axis, size in enumerate(t.with_rank(like, x.rank).shape):
        if isinstance(size, int) and size == 1:
            x = t.sum(x, axis, True)
    return t.reshape(x, like.shape)


def flash(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp of the scores, None, None, queries, keys, state of the random numbers (zeros), 0,
    placeholder], the results of ATen's flash attention."""
    out, logsumexp = _attention(q, k, v, None, dropout, causal, scale)
    state, unused = t.full((2,), 0, "uint64"), t.full((), 0, "uint64")
    return [out, logsumexp, None, None, q.shape[-2], k.shape[-2], state, unused, Missing(_STATISTICS)]


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, first_q: Any, first_k: Any,
    queries: Any, keys: Any, dropout: float, causal: bool, seed: Tensor, offset: Tensor, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the gradients of query, key and value. Raises UnsupportedError for dropout."""
    return [*_gradients(grad, q, k, v, out, logsumexp, None, dropout, causal, scale)[0]]


def cudnn(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, statistics: bool, dropout: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return [attention, logsumexp [..., queries, 1], None, None, queries, keys, seed, offset, placeholder], the
    results of cuDNN's attention."""
    out, logsumexp = _attention(q, k, v, bias, dropout, causal, scale)
    found = t.expand_dims(logsumexp, -1) if statistics else Missing(_STATISTICS)
    zero = t.full((), 0, "int64")
    return [out, found, None, None, q.shape[-2], k.shape[-2], zero, zero, Missing(_STATISTICS)]


def cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, seed: Tensor, offset: Tensor,
    bias: Tensor | None, first_q: Any, first_k: Any, queries: Any, keys: Any, dropout: float, causal: bool, *,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return attention's gradients of query, key and value (cuDNN's overload). Raises UnsupportedError for dropout.

    `first_q`, `first_k`: first rows of packed sequences; `queries`, `keys`: their largest lengths.
    """
    return [*_gradients(grad, q, k, v, out, t.squeeze(logsumexp, -1), bias, dropout, causal, scale)[0]]


def multi_head_attention(
    q: Tensor, k: Tensor, v: Tensor, size: int, heads: int, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> list[Any]:  # fmt: skip
    """Return [multi-head self-attention of [batch, length, size], None]. `w`, `b`: joint projection to queries, keys
    and values.

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
        return r.linear(act.gelu(wide) if gelu else p.clamp(wide, 0), down, down_b)

    def norm_1(y: Tensor) -> Tensor:
        return aten_norm.layer_norm(y, (size,), gain_1, shift_1, eps)

    def norm_2(y: Tensor) -> Tensor:
        return aten_norm.layer_norm(y, (size,), gain_2, shift_2, eps)

    if first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


def overrideable(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Return the results of `_scaled_dot_product_fused_attention_overrideable`, PyTorch's fused attention of devices
    outside of PyTorch: the attention, then placeholders for statistics, which are not computed."""
    out = aten_attention.attention(q, k, v, bias, dropout, causal, scale=scale, enable_gqa=True)
    return [out, *[Missing(_STATISTICS)] * 8]


TRAINING: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": flash_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": flash_cpu_backward,
    "_scaled_dot_product_flash_attention.default": flash,
    "_scaled_dot_product_flash_attention_backward.default": flash_backward,
    "_scaled_dot_product_efficient_attention.default": efficient,
    "_scaled_dot_product_efficient_attention_backward.default": efficient_backward,
    "_scaled_dot_product_cudnn_attention.default": cudnn,
    "_scaled_dot_product_cudnn_attention_backward.default": cudnn_backward,
    "_scaled_dot_product_fused_attention_overrideable.default": overrideable,
    "_native_multi_head_attention.default": multi_head_attention,
    "_transformer_encoder_layer_fwd.default": encoder_layer,
}

__all__ = ["TRAINING"]
