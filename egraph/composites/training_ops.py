"""Declares composite ops of training steps: gradients of convolutions, norms, softmax, attention, max pooling and
embeddings, and the statistics that they read.

They are what AOTAutograd's graphs contain as single operators, so that libraries' kernels of these are candidates.
`g` is the gradient of the operator's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from ..builders import builders as t
from ..builders.contraction_builders import dilated, transposed_weight
from ..ir.tensor import Tensor
from ..ops import op_flops
from ..ops.laws_training import operands_of_gradient
from ..types.dims import Dim, Shape, concrete, volume
from .composite import composite
from .composite_ops import batch_norm, by_group, causal_mask, inverse, over_channels

training_op = partial(composite, kernels_may_lack=True)

_CONV = {"shape": "dims", "strides": "dims", "pads": "dims", "dilations": "dims", "groups": "int"}


def _conv_work(node: Tensor) -> float:
    """Flops of a convolution's gradient: those of the convolution."""
    g, kernel = (node.args[0], node.args[1].shape) if node.op == "conv_input_gradient" else (node.args[1], node.shape)
    return 2.0 * prod(concrete(g.shape)) * prod(concrete(kernel)[1:])


# ---------------------------------------------------------------- convolutions
@training_op("conv_input_gradient", 2, "conv_input_gradient", _CONV, work=_conv_work, algebra="ring", linear=(0, 1))
def conv_input_gradient(
    g: Tensor, w: Tensor, shape: Shape, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> Tensor:  # fmt: skip
    """Gradient of a convolution's input, which has the shape `shape`: a transposed convolution

    g[N, O, *T] with w[O, C / groups, *K] -> [N, C, *S]; pads = all low sides, then all high sides.
    """
    n = g.rank - 2
    x, turned = dilated(g, strides), transposed_weight(w, groups)
    sides: list[tuple[Dim, Dim]] = []
    for i in range(n):
        reach = dilations[i] * (w.shape[2 + i] - 1)
        low = reach - pads[i]
        sides.append((low, shape[2 + i] + reach - low - x.shape[2 + i]))
    for i, (low, high) in enumerate(sides):  # padding wider than the window: results that lie outside of the input
        size = x.shape[2 + i]
        if _below(low) or _below(high):
            x = t.slice_axis(x, 2 + i, -low if _below(low) else 0, size + high if _below(high) else size)
    wide = [0 if _below(side) else side for side in (*(lo for lo, _ in sides), *(hi for _, hi in sides))]
    return t.conv(x, turned, None, strides=(1,) * n, pads=wide,  # type: ignore[arg-type]  # strided ones have known sizes
                  dilations=dilations, groups=groups)  # fmt: skip


def _below(size: Dim) -> bool:
    """Whether a padding is negative."""
    return isinstance(size, int) and size < 0


@training_op("conv_weight_gradient", 2, "conv_weight_gradient", _CONV, work=_conv_work, algebra="ring", linear=(0, 1))
def conv_weight_gradient(
    x: Tensor, g: Tensor, shape: Shape, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> Tensor:  # fmt: skip
    """Gradient of a convolution's weight, which has the shape `shape`: a convolution that sums over the batch

    x[N, C, *S] with g[N, O, *T] -> [O, C / groups, *K], strides and dilations exchanged.
    """
    batch, channels = x.shape[:2]
    inner = t.permute(t.reshape(x, (batch, groups, channels // groups, *x.shape[2:])), (2, 1, 0, *range(3, x.rank + 1)))
    inner = t.reshape(inner, (channels // groups, groups * batch, *x.shape[2:]))
    made = t.conv(inner, t.swapaxes(g, 0, 1), None, strides=tuple(dilations), pads=tuple(pads), dilations=tuple(strides),
                  groups=groups)  # fmt: skip
    for i, size in enumerate(shape[2:]):
        made = t.slice_axis(made, 2 + i, 0, size)
    return t.swapaxes(made, 0, 1)


# ---------------------------------------------------------------- norms
def but_channels(x: Tensor) -> tuple[int, ...]:
    """All axes but 1."""
    return (0, *range(2, x.rank))


def _normalized(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """(x - mean) / standard deviation; `deviation` is its reciprocal."""
    return (x - mean) * deviation


def _norm_gradient(scaled: Tensor, normalized: Tensor, deviation: Tensor, axes: Sequence[int], total: Dim) -> Tensor:
    """Gradient of a norm's operand: `scaled` is the gradient of the normalized values, `total` their number in each
    norm."""
    share = inverse(total)
    mean = t.sum(scaled, axes, True) * share
    along = t.sum(scaled * normalized, axes, True) * share
    return (scaled - mean - normalized * along) * deviation


@training_op("layer_norm_gradient", 5, "norm_gradient", flops=12)
def layer_norm_gradient(x: Tensor, g: Tensor, gain: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Gradient of a layer norm's operand x[..., C], with the mean and the reciprocal deviation of each row [..., 1]"""
    scaled = g * t.with_rank(gain, x.rank)
    return _norm_gradient(scaled, _normalized(x, mean, deviation), deviation, (x.rank - 1,), x.shape[-1])


@training_op("batch_norm_gradient", 5, "channel_norm_gradient", flops=12)
def batch_norm_gradient(x: Tensor, g: Tensor, gain: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Gradient of the operand x[N, C, ...] of a batch norm in training, with mean and reciprocal deviation [C]"""
    axes = but_channels(x)
    lines = [over_channels(x, v) for v in (gain, mean, deviation)]
    normalized = _normalized(x, lines[1], lines[2])
    return _norm_gradient(g * lines[0], normalized, lines[2], axes, volume((x.shape[0], *x.shape[2:])))


@training_op("batch_norm_training", 3, "channel_norm", {"eps": "float"}, {"eps": 1e-5}, flops=8)
def batch_norm_training(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """batch_norm of x[N, C, ...] with the mean and variance of the batch"""
    return batch_norm(x, gain, shift, channel_mean(x), channel_variance(x), eps=eps)


@training_op("channel_mean", 1, "channel_statistic", linear=(0,))
def channel_mean(x: Tensor) -> Tensor:
    """Mean of each channel (axis 1): [C]"""
    return t.reshape(t.mean(x, but_channels(x), True), x.shape[1:2])


@training_op("channel_variance", 1, "channel_statistic", flops=4, nonnegative=True)
def channel_variance(x: Tensor) -> Tensor:
    """Mean squared distance of each channel (axis 1) from its mean: [C]"""
    axes = but_channels(x)
    return t.reshape(t.mean(t.square(x - t.mean(x, axes, True)), axes, True), x.shape[1:2])


@training_op("channel_deviation", 1, "channel_statistic", {"eps": "float"}, {"eps": 1e-5}, flops=4, nonnegative=True)
def channel_deviation(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(variance + eps) of each channel (axis 1): [C]"""
    return t.rsqrt(channel_variance(x) + eps)


@training_op("group_mean", 1, "group_statistic", {"groups": "int"}, linear=(0,))
def group_mean(x: Tensor, groups: int) -> Tensor:
    """Mean of each group of channels (axis 1) of each example: [N, groups]"""
    return t.mean(by_group(x, groups), -1)


@training_op(
    "group_deviation", 1, "group_statistic", {"groups": "int", "eps": "float"}, {"eps": 1e-5}, flops=4, nonnegative=True
)
def group_deviation(x: Tensor, groups: int, eps: float) -> Tensor:
    """1 / sqrt(variance + eps) of each group of channels (axis 1) of each example: [N, groups]"""
    flat = by_group(x, groups)
    return t.squeeze(t.rsqrt(t.mean(t.square(flat - t.mean(flat, -1, True)), -1, True) + eps), -1)


@training_op("group_norm_gain_gradient", 4, "group_gain_gradient", {"groups": "int"}, flops=4)
def group_norm_gain_gradient(x: Tensor, g: Tensor, mean: Tensor, deviation: Tensor, groups: int) -> Tensor:
    """Gradient of a group norm's gain [C], with mean and reciprocal deviation of each group [N, groups]"""
    normalized = _normalized(by_group(x, groups), t.expand_dims(mean, 2), t.expand_dims(deviation, 2))
    return t.reshape(t.sum(g * t.reshape(normalized, x.shape), but_channels(x), True), x.shape[1:2])


@training_op("group_norm_gradient", 5, "channel_norm_gradient", {"groups": "int"}, flops=12)
def group_norm_gradient(x: Tensor, g: Tensor, gain: Tensor, mean: Tensor, deviation: Tensor, groups: int) -> Tensor:
    """Gradient of a group norm's operand x[N, C, ...], with mean and reciprocal deviation of each group [N, groups]"""
    flat, mean, deviation = by_group(x, groups), t.expand_dims(mean, 2), t.expand_dims(deviation, 2)
    scaled = by_group(g * over_channels(x, gain), groups)
    normalized = _normalized(flat, mean, deviation)
    return t.reshape(_norm_gradient(scaled, normalized, deviation, (2,), flat.shape[2]), x.shape)


# ---------------------------------------------------------------- softmax
@training_op("softmax_gradient", 2, "softmax_gradient", {"axis": "int"}, flops=4)
def softmax_gradient(g: Tensor, y: Tensor, axis: int) -> Tensor:
    """Gradient of a softmax's operand, of its result y"""
    weighed = g * y
    return weighed - y * t.sum(weighed, axis, True)


@training_op("log_softmax_gradient", 2, "softmax_gradient", {"axis": "int"}, flops=12)
def log_softmax_gradient(g: Tensor, y: Tensor, axis: int) -> Tensor:
    """Gradient of a log-softmax's operand, of its result y"""
    return g - t.exp(y) * t.sum(g, axis, True)


# ---------------------------------------------------------------- attention
_ATTENTION = {"scale": "float", "causal": "bool"}
_CAUSAL = {"causal": False}


def _scores(q: Tensor, k: Tensor, mask: Sequence[Tensor], scale: float, causal: bool) -> Tensor:
    """scale * q @ k.T, with the mask added."""
    scores = t.matmul(q, t.transpose(k)) * scale
    if causal:
        scores = scores + t.with_rank(causal_mask(q.shape[-2], k.shape[-2], causal, 0, q.dtype), scores.rank)
    return scores + mask[0] if mask else scores


def _statistics(q: Tensor, k: Tensor, mask: Sequence[Tensor], scale: float, causal: bool) -> Tensor:
    scores = _scores(q, k, mask, scale, causal)
    top = t.max(scores, -1, True)
    return top + t.log(t.sum(t.exp(scores - top), -1, True))


@training_op("attention_statistics", 2, "attention_statistics", _ATTENTION, _CAUSAL, flops=14)
def attention_statistics(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    """logsumexp of attention's scores over the keys: [..., T, 1]"""
    return _statistics(q, k, (), scale, causal)


@training_op("masked_attention_statistics", 3, "attention_statistics", _ATTENTION, _CAUSAL, flops=14)
def masked_attention_statistics(q: Tensor, k: Tensor, mask: Tensor, scale: float, causal: bool) -> Tensor:
    """logsumexp of the scores of attention with an additive mask, over the keys: [..., T, 1]"""
    return _statistics(q, k, (mask,), scale, causal)


def _attention_gradient(operands: Sequence[Tensor], of: str, scale: float, causal: bool) -> Tensor:
    q, k, v, out, g, statistics, *mask = operands_of_gradient(operands, of)
    weights = t.exp(_scores(q, k, mask, scale, causal) - statistics)
    if of == "value":
        return t.matmul(t.swapaxes(weights, -1, -2), g)
    scores = weights * (t.matmul(g, t.swapaxes(v, -1, -2)) - t.sum(g * out, -1, True)) * scale
    return t.matmul(scores, k) if of == "query" else t.matmul(t.swapaxes(scores, -1, -2), q)


_GRADIENT_OF: dict[str, Any] = {"of": "str", **_ATTENTION}


@training_op("attention_gradient", 6, "attention_gradient", _GRADIENT_OF, _CAUSAL)
def attention_gradient(
    first: Tensor, second: Tensor, third: Tensor, out: Tensor, g: Tensor, statistics: Tensor, of: str, scale: float,
    causal: bool,
) -> Tensor:  # fmt: skip
    """Gradient of attention's query, key or value (`of`), which is the first operand; the two others follow

    `statistics`: those of `attention_statistics`; `out`: the attention's result.
    """
    return _attention_gradient((first, second, third, out, g, statistics), of, scale, causal)


@training_op("masked_attention_gradient", 7, "attention_gradient", _GRADIENT_OF, _CAUSAL)
def masked_attention_gradient(
    first: Tensor, second: Tensor, third: Tensor, out: Tensor, g: Tensor, statistics: Tensor, mask: Tensor, of: str,
    scale: float, causal: bool,
) -> Tensor:  # fmt: skip
    """attention_gradient with an additive mask on the scaled scores"""
    return _attention_gradient((first, second, third, out, g, statistics, mask), of, scale, causal)


# ---------------------------------------------------------------- max pooling
@training_op("max_pool_indices", 1, "pool_indices", dict.fromkeys(("kernel", "strides", "pads", "dilations"), "dims"),
           work=op_flops.pooling)  # fmt: skip
def max_pool_indices(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Index of the first maximum of each pooling window into the flattened spatial axes, int64

    x[N, C, *S] of known sizes S; one number per spatial axis, but `pads` = all low sides, then all high sides.
    """
    n, rank, sizes = len(kernel), x.rank, concrete(x.shape)
    wide = t.pad(x, [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))], float("-inf"))
    for i in range(n):
        wide = t.windows(wide, 2 + i, kernel[i], strides[i], dilations[i])
    best = t.argmax(t.reshape(wide, (*wide.shape[:rank], prod(kernel))), rank)
    flat, place, weight = t.full((1,) * rank, 0, "int64"), 1, 1
    for i in reversed(range(n)):
        inside = t.mod(t.floordiv(best, place), kernel[i])
        first = t.iota(best.shape, 2 + i) * strides[i] - pads[i]
        flat = flat + (first + inside * dilations[i]) * weight
        place, weight = place * kernel[i], weight * sizes[2 + i]
    return flat


@training_op("max_pool_gradient", 2, "max_pool_gradient", {"shape": "dims"}, floats_only=False, index_operand=1)
def max_pool_gradient(g: Tensor, indices: Tensor, shape: Shape) -> Tensor:
    """Gradient of max pooling's operand: each element of g added at its index into the flattened spatial axes

    g and indices[N, C, *T] -> [N, C, *S]; all of S are given as `shape`, with N and C.
    """
    flat = (*shape[:2], volume(shape[2:]))
    spots, values = (t.reshape(v, (*shape[:2], volume(g.shape[2:]))) for v in (indices, g))
    return t.reshape(t.scatter_elements(t.zeros(flat, g.dtype), spots, values, 2, "add"), shape)


# ---------------------------------------------------------------- embeddings
@training_op(
    "embedding_gradient", 2, "embedding_gradient", {"shape": "dims", "skipped": "int"}, {"skipped": -1}, floats_only=False,
    index_operand=1,
)  # fmt: skip
def embedding_gradient(g: Tensor, indices: Tensor, shape: Shape, skipped: int) -> Tensor:
    """Gradient of an embedding's table, of the shape `shape`: each row of g added at its index

    g[..., D] and indices[...] -> [rows, D]; rows of g whose index is `skipped` are left out (-1: none).
    """
    count, width = volume(indices.shape), shape[1]
    line = t.reshape(indices, (count, 1))
    values = t.reshape(g, (count, width))
    if skipped >= 0:
        values = t.where(t.eq(line, skipped), 0.0, values)
    return t.scatter_elements(t.zeros(shape, g.dtype), t.broadcast_to(line, (count, width)), values, 0, "add")
