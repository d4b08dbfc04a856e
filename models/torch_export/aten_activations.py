"""Functions that build the graph of activations among the ATen overloads. They take the arguments of the ATen schema,
with tensors as tensor expressions."""

from __future__ import annotations

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import UnsupportedError


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """GELU: by erf, or by tanh if `approximate` is "tanh"."""
    return c.gelu_tanh(x) if approximate == "tanh" else c.gelu(x)


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x where beta x > threshold.

    From a threshold of 20 on the two differ only by rounding, so the select is omitted.
    """
    out = c.softplus(x) if beta == 1 else t.div(c.softplus(x * float(beta)), float(beta))
    return out if threshold >= 20 else t.where(t.gt(x * float(beta), float(threshold)), x, out)


def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Return scale * (x if x > 0 else alpha * (exp(input_scale x) - 1))."""
    if input_scale == 1:
        out = c.elu(x, alpha=float(alpha))
    else:
        out = t.where(t.gt(x, 0.0), x, t.expm1(t.minimum(x, 0.0) * float(input_scale)) * float(alpha))
    return out if scale == 1 else out * float(scale)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    return elu(x, alpha, 1, 1 / alpha)


def selu(x: Tensor) -> Tensor:
    """Scaled ELU with the constants of self-normalizing networks (Klambauer et al. 2017)."""
    return elu(x, 1.6732632423543772, 1.0507009873554805)


def log_sigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x))."""
    return t.neg(c.softplus(t.neg(x)))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return x where positive, else weight * x (weight per channel, axis 1)."""
    if weight.rank == 1 and x.rank > 1:
        weight = c.over_channels(x, weight)
    return t.where(t.gt(x, 0.0), x, x * weight)


def threshold(x: Tensor, limit: float, value: float) -> Tensor:
    """Return x where x > limit, else `value`. For integers PyTorch truncates both numbers."""
    if not dtypes.is_float(x.dtype):
        limit, value = int(limit), int(value)
    return t.where(t.le(x, limit), value, x)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Return first half * sigmoid(second half) of x along the axis `dim`."""
    half = x.shape[dim] // 2
    return t.slice_axis(x, dim, 0, half) * c.sigmoid(t.slice_axis(x, dim, half, x.shape[dim]))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Soft shrinkage: x moved towards 0 by lambd."""
    return x - t.minimum(t.maximum(x, -float(lambd)), float(lambd))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Hard shrinkage: x outside [-lambd, lambd], else 0."""
    return t.where(t.le(t.abs(x), float(lambd)), 0.0, x)


def dropout(x: Tensor, p: float, train: bool | None = False) -> Tensor:
    """Return x, the value of dropout at inference. Raises UnsupportedError in training mode."""
    if train and p:
        raise UnsupportedError("dropout in training mode is random", hint="call module.eval() first")
    return x


def native_dropout(x: Tensor, p: float, train: bool | None = False) -> list[Tensor]:
    """Return [x, mask of ones]: nothing is dropped. Raises UnsupportedError in training mode."""
    return [dropout(x, p, train), t.full(x.shape, True, "bool")]


def log_sigmoid_forward(x: Tensor) -> list[Tensor]:
    """Return [log(sigmoid(x)), exp(-|x|)]; the second is for the gradient on a CPU, empty in traces of a GPU."""
    return [log_sigmoid(x), t.exp(t.neg(t.abs(x)))]
