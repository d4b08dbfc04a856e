"""Functions that build the graph of ATen normalization overloads. They take the arguments of the ATen schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.composites import training_ops as g
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, volume
from .aten_reduce import refuse_free
from .missing import Missing


def _affine(x: Tensor, gain: Tensor | None, shift: Tensor | None, size: Dim) -> tuple[Tensor, Tensor]:

    def line(value: Tensor | None, fill: float) -> Tensor:
        return t.full((size,), fill, x.dtype) if value is None else t.cast(t.reshape(value, (size,)), x.dtype)

    return line(gain, 1.0), line(shift, 0.0)


def layer_norm(
    x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, shift: Tensor | None = None, eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Layer normalization over the trailing axes, whose sizes are `shape`; then scaled by `gain` and shifted by
    `shift`, if given."""
    size = volume(tuple(shape))
    flat = t.reshape(x, (*x.shape[: x.rank - len(shape)], size))
    return t.reshape(c.layer_norm(flat, *_affine(x, gain, shift, size), eps=eps), x.shape)


def native_layer_norm(x: Tensor, shape: Sequence[Dim], gain: Any, shift: Any, eps: float) -> list[Any]:
    """Return [x normalized over the trailing axes (of sizes `shape`), mean, reciprocal standard deviation]; the last
    two in float32 at least."""
    axes, wide = tuple(range(x.rank - len(shape), x.rank)), _wide(x)
    spread = t.rsqrt(t.mean(t.square(wide - t.mean(wide, axes, True)), axes, True) + eps)
    return [layer_norm(x, shape, gain, shift, eps), t.mean(wide, axes, True), spread]


def rms_norm(x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, eps: float | None = None) -> Tensor:
    """RMS normalization over the trailing axes, whose sizes are `shape`; then scaled by `gain`, if given."""
    size = volume(tuple(shape))
    if eps is None:
        import ml_dtypes

        eps = float(ml_dtypes.finfo(dtypes.numpy_dtype(x.dtype)).eps)
    flat = t.reshape(x, (*x.shape[: x.rank - len(shape)], size))
    return t.reshape(c.rms_norm(flat, _affine(x, gain, None, size)[0], eps=eps), x.shape)


def fused_rms_norm(x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, eps: float | None = None) -> list[Any]:
    """Return [result of `rms_norm`, placeholder]; the reciprocal root mean square is not computed."""
    return [rms_norm(x, shape, gain, eps), Missing("the second result of _fused_rms_norm")]


def group_norm(
    x: Tensor,
    groups: int,
    gain: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    """Group normalization over groups of channels and all positions."""
    return c.group_norm(x, *_affine(x, gain, shift, x.shape[1]), groups=groups, eps=eps)


def native_group_norm(
    x: Tensor, gain: Any, shift: Any, n: Dim, channels: Dim, space: Dim, groups: int, eps: float
) -> list[Any]:
    """Return [result of `group_norm`, mean per group, reciprocal standard deviation per group]; the last two in float32
    at least. `n`, `channels`, `space`: sizes of x."""
    wide = _wide(x)
    statistics = [g.group_mean(wide, groups=groups), g.group_deviation(wide, groups=groups, eps=eps)]
    return [group_norm(x, groups, gain, shift, eps), *statistics]


def batch_norm(
    x: Tensor, gain: Any, shift: Any, mean: Tensor | None, var: Tensor | None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Batch normalization with the given statistics; with those of the batch in training mode, or if none are given."""
    if training or mean is None or var is None:
        return _in_training(x, gain, shift, eps)
    return c.batch_norm(x, *_affine(x, gain, shift, x.shape[1]), t.cast(mean, x.dtype), t.cast(var, x.dtype), eps=eps)


def batch_norm_inference(
    x: Tensor, gain: Any, shift: Any, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> list[Any]:
    """Return [batch normalization with the given statistics, their mean, their reciprocal standard deviation]. The last
    two are those of a GPU; on a CPU PyTorch traces empty tensors in their place."""
    return [batch_norm(x, gain, shift, mean, var, False, momentum, eps), _wide(mean), t.rsqrt(_wide(var) + eps)]


def batch_norm_functional(
    x: Tensor, gain: Any, shift: Any, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float
) -> list[Any]:
    """Return [batch normalization with batch statistics, mean, reciprocal standard deviation, new running mean, new
    running variance]. `momentum`: weight of the batch in the running statistics.
    """
    if not training:
        return [*batch_norm_inference(x, gain, shift, mean, var, momentum, eps), mean, var]
    wide = _wide(x)
    whole = _in_training(x, gain, shift, eps)
    batch_mean, batch_var = g.channel_mean(wide), g.channel_variance(wide)
    saved = [batch_mean, g.channel_deviation(wide, eps=eps)]
    count = volume((x.shape[0], *x.shape[2:]))
    unbiased = (
        batch_var * (count / (count - 1)) if isinstance(count, int) and count > 1
        else t.var(x, g.but_channels(x), correction=1)
    )  # fmt: skip
    new = [
        old * (1 - momentum) + t.cast(seen, old.dtype) * momentum for old, seen in ((mean, batch_mean), (var, unbiased))
    ]
    return [whole, *saved, *new]


def _wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return t.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _in_training(x: Tensor, gain: Any, shift: Any, eps: float) -> Tensor:
    """Batch normalization with the statistics of the batch, computed in float32 at least."""
    wide = _wide(x)
    return t.cast(g.batch_norm_training(wide, *_affine(wide, gain, shift, x.shape[1]), eps=eps), x.dtype)


def batch_norm_without_stats(
    x: Tensor, gain: Any, shift: Any, training: bool, momentum: float, eps: float
) -> list[Any]:
    """Return [batch normalization with batch statistics, mean, reciprocal standard deviation]."""
    return [
        _in_training(x, gain, shift, eps),
        g.channel_mean(_wide(x)),
        g.channel_deviation(_wide(x), eps=eps),
    ]


def instance_norm(
    x: Tensor, gain: Any, shift: Any, mean: Tensor | None, var: Tensor | None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Instance normalization, per example and channel; without `use_input_stats` by the given statistics instead."""
    if not use_input_stats:
        return batch_norm(x, gain, shift, mean, var, False, momentum, eps)
    return group_norm(x, refuse_free(x.shape[1], "the number of channels"), gain, shift, eps)
