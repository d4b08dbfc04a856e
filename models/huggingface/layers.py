"""Builds layers that several architectures share: linear maps, norms, attention heads, activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim
from ...egraph.types.dtypes import HALVES
from .checkpoint import Weights

#: Limits on graph size, needed because shapes of weights are checked only while the graph is built.
MAX_LAYERS, MAX_HEAD = 10_000, 65_536
#: Activation names in config files -> builders.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": c.gelu, "gelu_python": c.gelu, "gelu_new": c.gelu_tanh, "gelu_pytorch_tanh": c.gelu_tanh,
    "relu": c.relu, "silu": c.silu, "swish": c.silu, "tanh": t.tanh, "mish": c.mish,
}  # fmt: skip


def dense(w: Weights, name: str, x: Tensor, outputs: int, *, bias: bool, dtype: str) -> Tensor:
    """Linear map x @ weight.T (+ bias) with the weights `name.weight` and `name.bias`; the weight is stored as
    [outputs, inputs]."""
    weight = t.transpose(w.take(f"{name}.weight", (outputs, x.shape[-1]), dtype))
    return c.linear(x, weight, w.take(f"{name}.bias", (outputs,), dtype)) if bias else t.matmul(x, weight)


def conv1d(w: Weights, name: str, x: Tensor, outputs: int) -> Tensor:
    """Linear map x @ weight + bias with the weights `name.weight` and `name.bias`; the weight is stored as [inputs,
    outputs]."""
    weight = w.take(f"{name}.weight", (x.shape[-1], outputs), x.dtype)
    return c.linear(x, weight, w.take(f"{name}.bias", (outputs,), x.dtype))


def wide(dtype: str) -> str:
    """Dtype in which norms of a dtype are computed: float32 for 16-bit floats."""
    return "float32" if dtype in HALVES else dtype


def layer_norm(w: Weights, name: str, x: Tensor, eps: float, *, bias: bool = True) -> Tensor:
    """Layer normalization over the last axis, computed in float32 for 16-bit dtypes. `bias`: it adds `name.bias`."""
    size, working = x.shape[-1], wide(x.dtype)
    gain = t.cast(w.take(f"{name}.weight", (size,), x.dtype), working)
    shift = t.cast(w.take(f"{name}.bias", (size,), x.dtype), working) if bias else t.zeros((size,), working)
    return t.cast(c.layer_norm(t.cast(x, working), gain, shift, eps=eps), x.dtype)


def rms_norm(w: Weights, name: str, x: Tensor, eps: float, gain: str) -> Tensor:
    """RMS normalization x / rms(x), computed in float32.

    `gain`: "narrow" multiplies by the weight after the cast back, "wide" before it; "plus one" multiplies by 1 + weight
    before it.
    """
    working = wide(x.dtype)
    weight = w.take(f"{name}.weight", x.shape[-1:], x.dtype)
    if gain != "narrow":
        factor = t.cast(weight, working) + 1.0 if gain == "plus one" else t.cast(weight, working)
        return t.cast(c.rms_norm(t.cast(x, working), factor, eps=eps), x.dtype)
    if working == x.dtype:
        return c.rms_norm(x, weight, eps=eps)
    return t.cast(c.rms_norm(t.cast(x, working), t.ones(weight.shape, working), eps=eps), x.dtype) * weight


def heads(x: Tensor, groups: int, each: int, size: int) -> Tensor:
    """Attention heads of x: [B, T, groups*each*size] -> [B, groups, each, T, size].

    `groups` counts key-value heads, `each` the query heads per group. With each = 0: [B, groups, T, size].
    """
    batch, length = x.shape[:2]
    if each == 0:
        return t.permute(t.reshape(x, (batch, length, groups, size)), (0, 2, 1, 3))
    return t.permute(t.reshape(x, (batch, length, groups, each, size)), (0, 2, 3, 1, 4))


def joined(x: Tensor) -> Tensor:
    """Features of merged attention heads [B, T, features], the inverse of `heads`."""
    perm = (0, 2, 1, 3) if x.rank == 4 else (0, 3, 1, 2, 4)
    x = t.permute(x, perm)
    features: Dim = 1
    for d in x.shape[2:]:
        features = features * d
    return t.reshape(x, (*x.shape[:2], features))
