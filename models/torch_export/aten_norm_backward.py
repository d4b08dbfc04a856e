"""Functions that build the graph of ATen backward overloads of normalizations and softmax. They take the arguments of
the ATen schema; gradients are computed in float32 at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites import training_ops as g
from ...egraph.composites.composite_ops import over_channels
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, volume


def _wide(x: Tensor) -> str:
    """The dtype in which gradients of x are computed."""
    return "float64" if x.dtype == "float64" else "float32"


def _gain(gain: Tensor | None, size: Dim, dtype: str) -> Tensor:
    return t.ones((size,), dtype) if gain is None else t.cast(t.reshape(gain, (size,)), dtype)


def _results(x: Tensor, gain: Tensor | None, made: Sequence[Tensor], wanted: Sequence[bool]) -> list[Any]:
    """Gradients of operand, gain and shift in their dtypes; None where not wanted."""
    dtypes = (x.dtype, *[(x if gain is None else gain).dtype] * 2)
    return [t.cast(m, d) if w else None for m, d, w in zip(made, dtypes, wanted)]


def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[Dim], mean: Tensor, deviation: Tensor, gain: Tensor | None,
    shift: Tensor | None, wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the gradients of operand, gain and shift of a layer norm; None where not wanted."""
    wide, size, lead = _wide(x), volume(tuple(shape)), x.shape[: x.rank - len(shape)]
    flat, out = (t.reshape(t.cast(v, wide), (*lead, size)) for v in (x, grad))
    mean, deviation = (t.reshape(t.cast(s, wide), (*lead, 1)) for s in (mean, deviation))
    rows = tuple(range(len(lead)))
    made = [
        t.reshape(g.layer_norm_gradient(flat, out, _gain(gain, size, wide), mean, deviation), x.shape),
        *(t.reshape(t.sum(v, rows, True), tuple(shape)) for v in (out * ((flat - mean) * deviation), out)),
    ]
    return _results(x, gain, made, wanted)


def batch_norm_backward(
    grad: Tensor, x: Tensor, gain: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, deviation: Tensor | None, train: bool, eps: float, wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the gradients of operand, gain and shift of a batch norm; None where not wanted.

    Without `train` the norm's statistics were the running ones.
    """
    wide, channels = _wide(x), x.shape[1]
    if not train:
        assert running_mean is not None and running_var is not None  # as in ATen
        mean, deviation = running_mean, t.rsqrt(t.cast(running_var, wide) + eps)
    assert mean is not None and deviation is not None
    lines = [_gain(v, channels, wide) for v in (gain, mean, deviation)]
    flat, out = t.cast(x, wide), t.cast(grad, wide)
    scale, centre, spread = (over_channels(x, v) for v in lines)
    axes = g.but_channels(x)
    made = [
        g.batch_norm_gradient(flat, out, *lines) if train else out * (scale * spread),
        *(t.reshape(t.sum(v, axes, True), (channels,)) for v in (out * ((flat - centre) * spread), out)),
    ]
    return _results(x, gain, made, wanted)


def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, gain: Tensor | None, n: Dim, channels: Dim, space: Dim,
    groups: int, wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the gradients of operand, gain and shift of a group norm; None where not wanted. `n`, `channels`,
    `space`: sizes of x."""
    wide = _wide(x)
    values, out = t.cast(x, wide), t.cast(grad, wide)
    mean, deviation = (t.reshape(t.cast(s, wide), (n, groups)) for s in (mean, deviation))
    axes = g.but_channels(x)
    made = [
        g.group_norm_gradient(values, out, _gain(gain, channels, wide), mean, deviation, groups=groups),
        g.group_norm_gain_gradient(values, out, mean, deviation, groups=groups),
        t.reshape(t.sum(out, axes, True), (channels,)),
    ]
    return _results(x, gain, made, wanted)


def softmax_backward(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of softmax or log-softmax from ATen's arguments: (gradient of the
    result, result, axis, dtype of the input). `build`: builder of the op for it, from (gradient, result, axis)."""

    def made(grad: Tensor, y: Tensor, dim: int, dtype: str) -> Tensor:
        if not y.rank:
            return t.reshape(made(t.reshape(grad, (1,)), t.reshape(y, (1,)), 0, dtype), ())
        return t.cast(build(*(t.cast(v, _wide(y)) for v in (grad, y)), axis=dim % y.rank), dtype)

    return made


NORM_BACKWARD: dict[str, Callable[..., Any]] = {
    "native_layer_norm_backward.default": layer_norm_backward,
    "native_batch_norm_backward.default": batch_norm_backward,
    "native_group_norm_backward.default": group_norm_backward,
    "_softmax_backward_data.default": softmax_backward(g.softmax_gradient),
    "_log_softmax_backward_data.default": softmax_backward(g.log_softmax_gradient),
}

__all__ = ["NORM_BACKWARD"]
