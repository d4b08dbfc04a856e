"""Functions that translate ONNX normalizations and losses."""

from __future__ import annotations

from ...egraph.builders import builders as t
from ...egraph.builders.operand_alignment import align_dtypes
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, volume
from ...errors import ShapeError
from .node import Node, Result, operator


def _inner(n: Node, x: Tensor) -> Tensor:
    """Cast x to the compute dtype of the attribute stash_type (default float32); wider dtypes are kept."""
    wide = dtypes.promote(x.dtype, n.dtype("stash_type", 1))
    return t.cast(x, wide)


def _trailing(x: Tensor, axis: int, value: Tensor) -> Tensor | None:
    """Flatten a gain or shift that covers exactly the trailing axes; None if it broadcasts differently."""
    if value.shape == x.shape[axis:]:
        return t.reshape(value, (volume(value.shape),))
    return None


@operator("LayerNormalization")
def _layer_norm(n: Node) -> Result:
    x, axis, eps = _inner(n, n.x()), n.axis(-1, n.x().rank), n.attr("epsilon", 1e-5)
    kind, gain, shift = n.x(1).dtype, t.cast(n.x(1), x.dtype), n.opt(2)
    flat = t.reshape(x, (*x.shape[:axis], volume(x.shape[axis:])))
    width = flat.shape[-1:]
    line = _trailing(x, axis, gain)
    last = t.zeros(width, x.dtype) if shift is None else _trailing(x, axis, t.cast(shift, x.dtype))
    if line is not None and last is not None:
        out = t.reshape(c.layer_norm(flat, line, last, eps=eps), x.shape)
    else:
        plain = c.layer_norm(flat, t.ones(width, x.dtype), t.zeros(width, x.dtype), eps=eps)
        out = t.mul(t.reshape(plain, x.shape), gain)
        out = out if shift is None else t.add(out, t.cast(shift, x.dtype))
    results = [t.cast(out, kind)]
    if n.wanted(1) or n.wanted(2):
        axes = tuple(range(axis, x.rank))
        mean = t.mean(x, axes, True)
        results += [mean, t.rsqrt(t.mean(t.square(x - mean), axes, True) + eps)]
    return results


@operator("RMSNormalization")
def rms_norm(n: Node) -> Result:
    """The result of an RMSNormalization node, and 1 / root mean square [..., 1, ...] if that is used."""
    x, axis, eps = _inner(n, n.x()), n.axis(-1, n.x().rank), n.attr("epsilon", 1e-5)
    gain = t.cast(n.x(1), x.dtype)
    flat = t.reshape(x, (*x.shape[:axis], volume(x.shape[axis:])))
    line = _trailing(x, axis, gain)
    if line is not None:
        out = t.reshape(c.rms_norm(flat, line, eps=eps), x.shape)
    else:
        out = t.mul(t.reshape(c.rms_norm(flat, t.ones(flat.shape[-1:], x.dtype), eps=eps), x.shape), gain)
    results = [t.cast(out, n.x(1).dtype)]
    if n.wanted(1):
        results.append(t.rsqrt(t.mean(t.square(x), tuple(range(axis, x.rank)), True) + eps))
    return results


@operator("BatchNormalization")
def _batch_norm(n: Node) -> Result:
    x, eps = n.x(), n.attr("epsilon", 1e-5)
    parts = align_dtypes(x, *(n.x(i) for i in range(1, 5)))
    if not n.attr("training_mode", 0):
        if n.wanted(1) or n.wanted(2):  # before opset 14, training mode is requested by the number of results
            raise n.unsupported("training mode before opset 14")
        return t.cast(c.batch_norm(*parts, eps=eps), x.dtype)
    wide, gain, shift, mean, var = parts
    axes = tuple(i for i in range(x.rank) if i != 1)
    now = t.mean(wide, axes)
    spread = t.mean(t.square(wide - t.mean(wide, axes, True)), axes)
    keep = n.attr("momentum", 0.9)
    return [t.cast(c.batch_norm(wide, gain, shift, now, spread, eps=eps), x.dtype),
            t.cast(mean * keep + now * (1.0 - keep), n.x(3).dtype),
            t.cast(var * keep + spread * (1.0 - keep), n.x(4).dtype)]  # fmt: skip


def _channels(n: Node, x: Tensor) -> int:
    if isinstance(x.shape[1], DimExpr):
        raise n.unsupported("free channel count")
    return x.shape[1]


@operator("InstanceNormalization")
def _instance_norm(n: Node) -> Result:
    x = n.x()
    return c.group_norm(x, n.x(1), n.x(2), groups=_channels(n, x), eps=n.attr("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(n: Node) -> Result:
    x, groups = _inner(n, n.x()), n.attr("num_groups")
    channels = _channels(n, x)
    if groups < 1 or channels % groups:
        raise ShapeError(f"{channels} channels do not make {groups} groups")
    values = []
    for i in (1, 2):
        value = t.cast(n.shaped(i, (groups if n.opset < 21 else channels,)), x.dtype)
        if n.opset < 21:  # one per group
            value = t.reshape(t.broadcast_to(t.reshape(value, (groups, 1)), (groups, channels // groups)), (channels,))
        values.append(value)
    return t.cast(c.group_norm(x, *values, groups=groups, eps=n.attr("epsilon", 1e-5)), n.x().dtype)


@operator("LpNormalization")
def _lp_norm(n: Node) -> Result:
    x = n.x()
    axis = n.axis(-1, x.rank)
    size = t.sum(t.abs(x), axis, True) if n.attr("p", 2) == 1 else t.sqrt(t.sum(t.square(x), axis, True))
    return t.where(t.eq(size, 0.0), t.zeros((1,) * x.rank, x.dtype), t.div(x, size))


@operator("MeanVarianceNormalization")
def _mean_variance(n: Node) -> Result:
    x = n.x()
    axes = n.axes(1, x.rank) or (0, 2, 3)
    centred = x - t.mean(x, axes, True)
    return centred / (t.sqrt(t.mean(t.square(centred), axes, True)) + 1e-9)


@operator("LRN")
def _lrn(n: Node) -> Result:
    x, size = n.x(), n.attr("size")
    low = (size - 1) // 2
    squares = t.pad(t.square(x), [(low, size - 1 - low) if i == 1 else (0, 0) for i in range(x.rank)])
    total = t.sum(t.windows(squares, 1, size), x.rank)
    return x / t.pow(total * (n.attr("alpha", 1e-4) / size) + n.attr("bias", 1.0), n.attr("beta", 0.75))


# ---------------------------------------------------------------- losses
def _likelihood(n: Node, logs: Tensor) -> Tensor:
    """Return the weighted, reduced negative log-likelihood of targets [N, ...] under log-probabilities [N, C, ...]."""
    target = t.cast(n.shaped(1, (logs.shape[0], *logs.shape[2:])), "int64")
    weights = n.shaped(2, (logs.shape[1],)) if n.has(2) else None
    ignored = n.attr("ignore_index")
    dead = None if ignored is None else t.eq(target, ignored)
    index = target if dead is None else t.where(dead, 0, target)
    picked = t.squeeze(t.gather_elements(logs, t.expand_dims(index, 1), 1), 1)
    share = t.ones((1,) * target.rank, logs.dtype) if weights is None else t.gather(weights, index, 0)
    if dead is not None:
        nothing = t.zeros((1,) * target.rank, logs.dtype)
        share, picked = t.where(dead, nothing, share), t.where(dead, nothing, picked)
    loss = t.mul(t.neg(picked), share)
    mode = n.choice("reduction", "mean", "sum", "none")
    if mode == "none":
        return loss
    if mode == "sum":
        return t.sum(loss)
    return t.div(t.sum(loss), t.sum(t.broadcast_to(share, target.shape)))


@operator("NegativeLogLikelihoodLoss")
def _nll(n: Node) -> Result:
    return _likelihood(n, n.x())


@operator("SoftmaxCrossEntropyLoss")
def _cross_entropy(n: Node) -> Result:
    logs = c.log_softmax(n.x(), axis=1)
    return [_likelihood(n, logs), logs]


__all__ = ["rms_norm"]
