"""Defines the tensor functions of the public namespace: Array API names, and composite ops with default arguments.

All raise ShapeError for operands and axes that do not fit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .egraph.builders import builders as api
from .egraph.builders.builders import *  # noqa: F403
from .egraph.builders.tensor_operators import PUBLIC
from .egraph.composites import composite_ops as composite
from .egraph.ir.tensor import Tensor, constant
from .egraph.types.axes import axis_of
from .errors import ShapeError, UsageError
from .models.common.einsum import einsum as _einsum
from .models.functions import numpy_calls
from .models.functions.numpy_array import arrays_in, deep, expression, traced
from .models.functions.plain_runs import refuse_arrays

elu, leaky_relu, hard_sigmoid, hard_swish = (
    composite.elu,
    composite.leaky_relu,
    composite.hard_sigmoid,
    composite.hard_swish,
)
relu, sigmoid, silu = composite.relu, composite.sigmoid, composite.silu
softplus, mish = composite.softplus, composite.mish
batch_norm, group_norm, max_pool, avg_pool = (
    composite.batch_norm,
    composite.group_norm,
    composite.max_pool,
    composite.avg_pool,
)
linear, rope, cross_entropy = composite.linear, composite.rope, composite.cross_entropy


assert numpy_calls  # importing it makes NumPy's functions accept tensor expressions


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Einstein summation with NumPy's equation syntax, for example einsum("bhtd,bhsd->bhts", q, k).

    Raises ShapeError if labels and shapes do not match.
    """
    if not isinstance(equation, str):
        raise UsageError(f"einsum takes an equation such as 'ij,jk->ik' first, not a {type(equation).__name__}")
    return _einsum(equation, operands)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit. `approximate`: "none" (erf) or "tanh"; raises UsageError for anything else."""
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise UsageError(f"gelu has no approximation {approximate!r}", hint='"none" or "tanh"')
    return composite.gelu_tanh(x) if approximate == "tanh" else composite.gelu(x)


def clip(x: Tensor, lo: float = float("-inf"), hi: float = float("inf")) -> Tensor:
    """x limited elementwise to [lo, hi]."""
    return composite.clip(x, lo=lo, hi=hi)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Softmax along an axis."""
    return composite.softmax(x, axis=axis_of(axis, x.rank))


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Logarithm of the softmax along an axis."""
    return composite.log_softmax(x, axis=axis_of(axis, x.rank))


def logsumexp(x: Tensor, axis: int | Sequence[int] = -1, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over one or more axes."""
    axes = tuple(sorted(axis_of(a, x.rank) for a in ((axis,) if isinstance(axis, int) else axis)))
    out = composite.logsumexp(x, axes=axes)
    return out if keepdims else api.squeeze(out, axes)


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalization over the last axis; `gain` and `shift` have the size of that axis."""
    return composite.layer_norm(x, gain, shift, eps=eps)


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """Root-mean-square normalization over the last axis; `gain` has the size of that axis."""
    return composite.rms_norm(x, gain, eps=eps)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None, causal: bool = False,
    window: int = 0, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return scaled dot-product attention: softmax(scale * q @ k.T + mask) @ v.

    q[..., T, D], k[..., S, D], v[..., S, E] -> [..., T, E].

    `window` and `softcap`: 0 disables them. `scale` defaults to 1/sqrt(D); raises UsageError if D is a free dimension
    and `scale` is None. `mask` is additive. A row that the mask hides completely (by -inf) is NaN, as its softmax is;
    `scaled_dot_product_attention` in a Torch module gives 0, as in PyTorch.
    """
    if q.rank < 2:
        raise ShapeError(f"attention needs q[..., T, D], not rank {q.rank}")
    width = q.shape[-1]
    if scale is None and not isinstance(width, int):
        raise UsageError("the head size is free, so attention has no default scale", hint="give scale=")
    attrs = {
        "scale": float(scale if scale is not None else int(width) ** -0.5),  # type: ignore[arg-type]
        "causal": causal, "window": window, "softcap": softcap,
    }  # fmt: skip
    if mask is None:
        return composite.attention(q, k, v, **attrs)
    return composite.masked_attention(q, k, v, api.with_rank(mask, q.rank), **attrs)


__all__ = [
    *api.__all__, "attention", "avg_pool", "batch_norm", "clip", "constant", "cross_entropy", "einsum", "elu", "gelu", "group_norm",
    "hard_sigmoid", "hard_swish", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsumexp", "max_pool", "mish",
    "relu", "rms_norm", "rope", "sigmoid", "silu", "softmax", "softplus",
]  # fmt: skip


#: How a parameter's value becomes tensors, by the parameter's annotation.
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Tensor": api.as_tensor,
    "Tensor | None": lambda value: None if value is None else api.as_tensor(value),
    "Sequence[Tensor]": lambda values: [api.as_tensor(v) for v in values],
    "*Tensor": lambda values: tuple(map(api.as_tensor, values)),
}


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of expressions to also take arrays and numbers in place of tensors, and traced arrays, for which
    it returns traced arrays.

    Raises OwnFunction if a caller's function runs on plain arrays for comparison; TypeError for arguments that the
    function does not have.
    """
    signature = inspect.signature(function)
    kinds = {n: "*" * (p.kind is p.VAR_POSITIONAL) + str(p.annotation) for n, p in signature.parameters.items()}
    conversions = {name: _CONVERSIONS[kind] for name, kind in kinds.items() if kind in _CONVERSIONS}

    def converted(args: Any, named: Any) -> Any:
        given = signature.bind(*args, **named)
        for name in conversions.keys() & given.arguments.keys():
            given.arguments[name] = conversions[name](given.arguments[name])
        return function(*given.args, **given.kwargs)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        refuse_arrays(function.__name__)
        if not arrays_in(list(args), named):
            return converted(args, named)
        found = converted(deep(args, expression), deep(named, expression))
        return deep(found, lambda v: traced(v) if isinstance(v, Tensor) else v)

    return call


for _name in __all__:
    globals()[_name] = _public(PUBLIC.get(_name, globals()[_name]))
