"""Helper functions of emitted programs that run Torch's gradients on the CPU.

Their source is copied into emitted programs: each may use only `torch` and those that its kernel names in `setup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir.definitions import sources_of

if TYPE_CHECKING:
    import torch


def never_read(like: Any, shape: Any, made: dict[Any, Any] = {}) -> Any:  # noqa: B006  (kept between calls)
    """A tensor of which only the shape counts, with the dtype of `like`; `made`: those of earlier calls. Memory that is
    never touched costs nothing, but asking for it at each call does."""
    key = tuple(shape), like.dtype
    if key not in made:
        made[key] = torch.empty(shape, dtype=like.dtype)
    return made[key]


def conv_input_gradient(g: Any, w: Any, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Gradient of a convolution's input of the shape `shape`, from its result's gradient g and weight w."""
    like = never_read(g, shape)
    return torch.ops.aten.convolution_backward(
        g, like, w, None, strides, pads, dilations, False, [0] * len(pads), groups, [True, False, False]
    )[0].contiguous()


def conv_weight_gradient(x: Any, g: Any, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    """Gradient of a convolution's weight of the shape `shape`, from its input x and its result's gradient g."""
    like = never_read(g, shape)
    return torch.ops.aten.convolution_backward(
        g, x, like, None, strides, pads, dilations, False, [0] * len(pads), groups, [False, True, False]
    )[1].contiguous()


def copied(places: Any, values: Any) -> None:
    """Copy results of a library function to the places of a kernel's results, which have as many elements."""
    for to, value in zip(places, values):
        to.view(value.shape).copy_(value)


def layer_norm_gradient(g: Any, x: Any, gain: Any, mean: Any, deviation: Any, out: Any, *more: Any) -> None:
    """Gradients of a layer norm's operand and, into `more`, of its gain and shift."""
    wanted = [True, bool(more), bool(more)]
    made = torch.ops.aten.native_layer_norm_backward(g, x, gain.shape, mean, deviation, gain, gain, wanted)
    copied((out, *more), made)


def batch_norm_gradient(g: Any, x: Any, gain: Any, mean: Any, deviation: Any, out: Any, *more: Any) -> None:
    """Gradients of a batch norm's operand in training and, into `more`, of its gain and shift."""
    wanted = [True, bool(more), bool(more)]
    made = torch.ops.aten.native_batch_norm_backward(g, x, gain, None, None, mean, deviation, True, 0.0, wanted)
    copied((out, *more), made)


def group_norm_gradient(
    g: Any, x: Any, gain: Any, mean: Any, deviation: Any, groups: int, out: Any, *more: Any
) -> None:
    """Gradients of a group norm's operand and, into `more`, of its gain and shift."""
    n, channels = x.shape[:2]
    wanted = [True, bool(more), bool(more)]
    made = torch.ops.aten.native_group_norm_backward(
        g, x, mean, deviation, gain, n, channels, x[:1, :1].numel(), groups, wanted
    )
    copied((out, *more), made)


def group_norm_statistics(x: Any, gain: Any, shift: Any, groups: int, eps: float, out: Any, *more: Any) -> None:
    """A group norm and, into `more`, mean and reciprocal deviation of each group."""
    n, channels = x.shape[:2]
    made = torch.ops.aten.native_group_norm(x, gain, shift, n, channels, x[:1, :1].numel(), groups, eps)
    copied((out, *more), made)


def attention_statistics(
    q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, out: Any, statistics: Any
) -> None:
    """Attention of [batch, heads, T, D] and the logsumexp of its scores, [batch, heads, T, 1]."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    made, sums = flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    copied((out, statistics), (made, sums))


def attention_gradients(
    g: Any, q: Any, k: Any, v: Any, y: Any, statistics: Any, mask: Any, scale: float, causal: bool, *out: Any
) -> None:
    """Gradients of query, key and value of attention with the result y, from the logsumexp of its scores."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    copied(out, backward(g, q, k, v, y, statistics.squeeze(-1), 0.0, causal, attn_mask=mask, scale=scale))


#: helper name -> source
HELPERS: dict[str, str] = sources_of(__name__)
