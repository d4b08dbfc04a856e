"""Functions that translate fused operators of ONNX Runtime (domain com.microsoft): activations with biases, matrix
products and convolutions with epilogues, normalizations of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from .contract import convolve, gemm
from .names import MICROSOFT
from .node import OPERATORS, Node, Result, operator
from .norm import rms_norm

microsoft = partial(operator, domain=MICROSOFT)


# ---------------------------------------------------------------- activations and biases
microsoft("Gelu")(lambda n: c.gelu(n.x()))
microsoft("BiasGelu")(lambda n: c.gelu(t.add(n.x(0), n.x(1))))
microsoft("FastGelu")(lambda n: c.gelu_tanh(t.add(n.x(0), n.x(1)) if n.has(1) else n.x(0)))
microsoft("BiasAdd")(lambda n: t.add(t.add(n.x(0), n.x(1)), n.x(2)))


@microsoft("QuickGelu")
def _quick_gelu(n: Node) -> Result:
    x, alpha = n.x(), n.attr("alpha", 1.702)
    return c.silu(x) if alpha == 1.0 else t.mul(x, c.sigmoid(t.mul(x, alpha)))


#: Activations of fused operators -> function of a tensor and its parameters.
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "": lambda x: x,
    "Relu": c.relu,
    "Tanh": t.tanh,
    "Sigmoid": c.sigmoid,
    "LeakyRelu": lambda x, alpha=0.01: c.leaky_relu(x, alpha=alpha),
    "Clip": lambda x, lo, hi: c.clip(x, lo=lo, hi=hi),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: c.hard_sigmoid(x, alpha=alpha, beta=beta),
}


def _activated(n: Node, x: Tensor, parameters: Sequence[float]) -> Tensor:
    """x after the activation that the node names. Raises UnsupportedError for unknown ones."""
    name = n.attr("activation", "")
    if name not in ACTIVATIONS:
        raise n.unsupported(f"activation {name[:40]}")
    return ACTIVATIONS[name](x, *parameters)


# ---------------------------------------------------------------- products
@microsoft("FusedMatMul", limits="transBatchA or transBatchB of operands of rank below 3")
def _fused_matmul(n: Node) -> Result:
    operands = []
    for x, side in ((n.x(0), "A"), (n.x(1), "B")):
        if n.attr(f"transBatch{side}", 0):
            if x.rank < 3:
                raise n.unsupported(f"transBatch{side} of rank {x.rank}")
            x = t.permute(x, (*range(1, x.rank - 1), 0, x.rank - 1))
        if n.attr(f"trans{side}", 0) and x.rank > 1:
            x = t.swapaxes(x, x.rank - 2, x.rank - 1)
        operands.append(x)
    product, alpha = t.matmul(*operands), n.attr("alpha", 1.0)
    return product if alpha == 1.0 else t.mul(product, alpha)


@microsoft("FusedGemm", limits="activations other than Relu, Tanh, Sigmoid, LeakyRelu, HardSigmoid")
def _fused_gemm(n: Node) -> Result:
    if n.attr("activation", "") == "Clip":
        raise n.unsupported("activation Clip")
    names = [name for name in ("activation_alpha", "activation_beta") if name in n.attrs]
    takes = {"LeakyRelu": 1, "HardSigmoid": 2}.get(n.attr("activation", ""), 0)
    return _activated(n, gemm(n), [n.attrs[name] for name in names][:takes])


@microsoft("FusedConv", limits="activations other than Relu, Tanh, Sigmoid, LeakyRelu, Clip, HardSigmoid")
def _fused_conv(n: Node) -> Result:
    out = convolve(n, n.x(0), n.x(1), n.opt(2))
    out = t.add(out, n.x(3)) if n.has(3) else out
    return _activated(n, out, n.attr("activation_params", []))


# ---------------------------------------------------------------- normalizations
operator("SimplifiedLayerNormalization")(rms_norm)  # files have it in ONNX's domain, which does not define it
microsoft("SimplifiedLayerNormalization")(rms_norm)


def _without_statistics(n: Node) -> None:
    """Raise UnsupportedError if mean or deviation are used, which ONNX Runtime computes in training only."""
    for position, name in ((1, "mean"), (2, "inv_std_var")):
        if n.wanted(position):
            raise n.unsupported(f"output {name}")


def _normed(n: Node, x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    wide = t.cast(x, dtypes.promote(x.dtype, "float32"))
    gain = t.cast(gain, wide.dtype)
    shift = t.zeros(gain.shape, wide.dtype) if shift is None else t.cast(shift, wide.dtype)
    return t.cast(c.layer_norm(wide, gain, shift, eps=n.attr("epsilon", 1e-12)), x.dtype)


@microsoft("SkipLayerNormalization", limits="outputs mean and inv_std_var")
def _skip_layer_norm(n: Node) -> Result:
    _without_statistics(n)
    total = t.add(n.x(0), n.x(1))
    total = t.add(total, n.x(4)) if n.has(4) else total
    return [_normed(n, total, n.x(2), n.opt(3)), None, None, total]


@microsoft("SkipSimplifiedLayerNormalization", limits="outputs mean and inv_std_var")
def _skip_rms_norm(n: Node) -> Result:
    _without_statistics(n)
    total = t.add(n.x(0), n.x(1))
    total = t.add(total, n.x(3)) if n.has(3) else total
    wide = t.cast(total, dtypes.promote(total.dtype, "float32"))
    out = c.rms_norm(wide, t.cast(n.x(2), wide.dtype), eps=n.attr("epsilon", 1e-12))
    return [t.cast(out, total.dtype), None, None, total]


@microsoft("EmbedLayerNormalization")
def _embed_layer_norm(n: Node) -> Result:
    ids, words, places = n.x(0), n.x(2), n.x(3)
    total = t.gather(words, ids, 0)
    if n.has(8):
        total = t.add(total, t.gather(places, n.x(8), 0))
    else:
        total = t.add(total, t.expand_dims(t.slice_axis(places, 0, 0, ids.shape[1]), 0))
    if n.has(1) and n.has(4):
        total = t.add(total, t.gather(n.x(4), n.x(1), 0))
    lengths = t.zeros(ids.shape[:1], "int32")
    if n.has(7) and not n.attr("mask_index_type", 0):
        lengths = t.cast(t.sum(n.x(7), 1), "int32")
    elif n.has(7):
        raise n.unsupported("mask_index_type other than 0")
    return [_normed(n, total, n.x(5), n.x(6)), lengths, total]


# ---------------------------------------------------------------- operators of the default domain under another name
for _name in ("QuantizeLinear", "DequantizeLinear", "Trilu"):
    microsoft(_name, limits=OPERATORS[_name].limits)(OPERATORS[_name].build)

__all__ = ["ACTIVATIONS"]
