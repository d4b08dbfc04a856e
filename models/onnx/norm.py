"""Functions that translate ONNX normalizations, attention, rotary embedding and losses."""

from __future__ import annotations

from math import sqrt

from ...egraph.builders import builders as t
from ...egraph.builders.operand_alignment import align_dtypes
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, volume
from ...errors import ShapeError
from ..common.sizes import size_tensor
from .layout import two_way
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
    kind, gain, shift = n.x().dtype, t.cast(n.x(1), x.dtype), n.opt(2)
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
def _rms_norm(n: Node) -> Result:
    x, axis, eps = _inner(n, n.x()), n.axis(-1, n.x().rank), n.attr("epsilon", 1e-5)
    gain = t.cast(n.x(1), x.dtype)
    flat = t.reshape(x, (*x.shape[:axis], volume(x.shape[axis:])))
    line = _trailing(x, axis, gain)
    if line is not None:
        out = t.reshape(c.rms_norm(flat, line, eps=eps), x.shape)
    else:
        out = t.mul(t.reshape(c.rms_norm(flat, t.ones(flat.shape[-1:], x.dtype), eps=eps), x.shape), gain)
    return t.cast(out, n.x(1).dtype)


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


# ---------------------------------------------------------------- attention
def _heads(x: Tensor, count: int | None) -> Tensor:
    """Split heads: [B, T, H*D] -> [B, H, T, D]. Rank-4 operands are returned unchanged."""
    if x.rank == 4:
        if count not in (None, 0, x.shape[1]):
            raise ShapeError(f"{x.type} does not have {count} heads")
        return x
    if not count:
        raise ShapeError("attention of rank-3 operands needs q_num_heads and kv_num_heads")
    batch, rows, width = x.shape
    if isinstance(width, int) and width % count:
        raise ShapeError(f"{width} elements do not make {count} heads")
    return t.permute(t.reshape(x, (batch, rows, count, width // count)), (0, 2, 1, 3))


def _hide(allowed: Tensor, dtype: str) -> Tensor:
    """Return an additive mask: 0 where allowed, -inf elsewhere."""
    one = (1,) * allowed.rank
    return t.where(allowed, t.zeros(one, dtype), t.full(one, float("-inf"), dtype))


def _position_mask(n: Node, rows: Dim, columns: Dim, offset: Tensor) -> Tensor | None:
    """Return the bool mask [1 or B, 1, T, S] of causality and sliding windows; None if unrestricted.

    `offset` (rank 4) is the position of the first query.
    """
    left, right = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    ahead = t.sub(t.sub(t.iota((1, 1, rows, columns), 3), t.iota((1, 1, rows, columns), 2)), offset)
    terms = [t.le(ahead, 0)] if n.attr("is_causal", 0) else []
    terms += [t.ge(ahead, -left)] if left >= 0 else []
    terms += [t.le(ahead, right)] if right >= 0 else []
    found: Tensor | None = None
    for term in terms:
        found = term if found is None else t.logical_and(found, term)
    return found


def _bias(n: Node, q: Tensor, k: Tensor, past: Dim, plain_causal: bool) -> Tensor | None:
    """Return the rank-4 additive mask; None if there is none. Causality is left out if `plain_causal`."""
    rows, columns, kind = q.shape[2], k.shape[2], q.dtype
    parts: list[Tensor] = []
    mask, lengths = n.opt(3), n.opt(6)
    if mask is not None:
        mask = t.with_rank(_hide(mask, kind) if mask.dtype == "bool" else t.cast(mask, kind), 4)
        if isinstance(columns, int) and isinstance(mask.shape[3], int) and 1 < mask.shape[3] < columns:
            mask = t.pad(mask, [(0, 0)] * 3 + [(0, columns - mask.shape[3])], float("-inf"))
        parts.append(mask)
    if not plain_causal:
        offset = t.reshape(size_tensor(past), (1, 1, 1, 1))
        if lengths is not None:
            offset = t.sub(t.reshape(lengths, (lengths.shape[0], 1, 1, 1)), t.reshape(size_tensor(rows), (1,) * 4))
        allowed = _position_mask(n, rows, columns, t.cast(offset, "int64"))
        parts += [] if allowed is None else [_hide(allowed, kind)]
    if lengths is not None:
        inside = t.lt(t.iota((1, 1, 1, columns), 3), t.reshape(t.cast(lengths, "int64"), (lengths.shape[0], 1, 1, 1)))
        parts.append(_hide(inside, kind))
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else t.add(total, part)
    return total


def _grouped(x: Tensor, shared: int) -> Tensor:
    """Group heads: [b, H, ...] -> [b, H/g, g, ...], or [b, 1, 1, ...] if one head is broadcast to all."""
    heads = x.shape[1]
    split = (1, 1) if heads == 1 else (heads // shared, shared)
    return t.reshape(x, (x.shape[0], *split, *x.shape[2:]))


def _unmasked(bias: Tensor, out: Tensor) -> Tensor:
    """Zero the rows in which the mask hides every key, since their softmax is undefined."""
    dead = t.eq(t.max(bias, 3, True), float("-inf"))
    return t.where(dead, t.zeros((1,) * 4, out.dtype), out)


@operator("Attention", limits="softmax_precision is that of the operands")
def _attention(n: Node) -> Result:
    shapes = [n.x(i).shape for i in range(3)]
    if len({len(s) for s in shapes}) > 1 or len({s[0] for s in shapes if isinstance(s[0], int)}) > 1:
        raise ShapeError(f"attention of {n.x(0).type}, {n.x(1).type} and {n.x(2).type}")
    q = _heads(n.x(0), n.attr("q_num_heads"))
    k, v = (_heads(n.x(i), n.attr("kv_num_heads")) for i in (1, 2))
    past: Dim = 0
    if n.has(4) != n.has(5):
        raise ShapeError("past keys without past values, or the other way round")
    if n.has(4):
        past = n.x(4).shape[2]
        k, v = t.concat([n.x(4), k], 2), t.concat([n.x(5), v], 2)
    if isinstance(q.shape[3], DimExpr) or isinstance(q.shape[1], DimExpr) or isinstance(k.shape[1], DimExpr):
        raise n.unsupported("free head size or head count")
    scale = n.attr("scale", 1 / sqrt(q.shape[3]))
    if not q.shape[3] or not k.shape[1] or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ShapeError(f"attention of {q.shape[1]} query heads with {k.shape[1]} and {v.shape[1]} of keys and values")
    shared = q.shape[1] // k.shape[1]
    # The causal mask of `attention` aligns the last query with the last key; ONNX counts from the first new query.
    aligned = k.shape[2] - q.shape[2] == past
    simple = aligned and not any(n.has(i) for i in (3, 6)) and _open_window(n)
    bias = _bias(n, q, k, past, simple)
    causal = simple and bool(n.attr("is_causal", 0))
    softcap = n.attr("softcap", 0.0)
    if n.wanted(3):
        bias = bias if not causal else _bias(n, q, k, past, False)
        out, scores = _spelled_out(n, q, k, v, bias, scale, softcap, shared)
    else:
        scores = None
        qs, ks, vs = (q, k, v) if shared == 1 else (_grouped(q, shared), t.expand_dims(k, 2), t.expand_dims(v, 2))
        options = {"scale": scale, "causal": causal, "window": 0, "softcap": softcap}
        if bias is None:
            out = c.attention(qs, ks, vs, **options)
        else:
            out = c.masked_attention(qs, ks, vs, bias if shared == 1 else _grouped(bias, shared), **options)
        out = t.reshape(out, (*q.shape[:3], v.shape[3]))
    out = out if bias is None else _unmasked(bias, out)
    if n.x(0).rank == 3:
        out = t.reshape(t.permute(out, (0, 2, 1, 3)), (q.shape[0], q.shape[2], q.shape[1] * v.shape[3]))
    return [out, k, v, scores]


def _open_window(n: Node) -> bool:
    return bool(max(n.attr("left_window_size", -1), n.attr("right_window_size", -1)) < 0)


def _repeated(x: Tensor, times: int) -> Tensor:
    """Repeat each head `times` times consecutively."""
    wide = t.broadcast_to(t.expand_dims(x, 2), (*x.shape[:2], times, *x.shape[2:]))
    return t.reshape(wide, (x.shape[0], x.shape[1] * times, *x.shape[2:]))


def _spelled_out(
    n: Node, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float, shared: int
) -> tuple[Tensor, Tensor]:
    """Lower attention step by step, for models that use the scores output.

    Returns (result, scores of the requested stage).
    """
    if shared > 1:
        k, v = _repeated(k, shared), _repeated(v, shared)
    stages = [t.matmul(q, t.transpose(k)) * scale]
    capped = t.tanh(stages[0] * (1.0 / softcap)) * softcap if softcap else stages[0]
    biased = capped if bias is None else t.add(capped, bias)
    weights = c.softmax(biased, axis=3)
    weights = weights if bias is None else _unmasked(bias, weights)
    shape = two_way(weights.shape, (*q.shape[:3], k.shape[2]))
    stages += [capped, biased, weights]
    return t.matmul(weights, v), t.broadcast_to(stages[n.attr("qk_matmul_output_mode", 0)], shape)


@operator("RotaryEmbedding")
def _rotary(n: Node) -> Result:
    x = n.x()
    rank3 = x.rank == 3
    if rank3:
        x = _heads(x, n.attr("num_heads", 0))
    size = n.attr("rotary_embedding_dim", 0) or x.shape[3]
    if isinstance(size, DimExpr):
        raise n.unsupported("free head size")
    half = size // 2
    tables = []
    for i in (1, 2):
        table = n.shaped(i, n.x(1).shape)
        table = t.gather(table, n.x(3), 0) if n.has(3) else table
        table = t.expand_dims(table, 1)  # one table for all heads: [B, 1, T, D/2]
        if n.attr("interleaved", 0):
            table = t.reshape(t.stack([table, table], 4), (*table.shape[:3], size))
        else:
            table = t.concat([table, table], 3)
        tables.append(table)
    turned, rest = t.slice_axis(x, 3, 0, size), t.slice_axis(x, 3, size, x.shape[3])
    if n.attr("interleaved", 0):
        pairs = t.reshape(turned, (*turned.shape[:3], half, 2))
        swapped = t.concat([-t.slice_axis(pairs, 4, 1, 2), t.slice_axis(pairs, 4, 0, 1)], 4)
        out = t.add(t.mul(turned, tables[0]), t.mul(t.reshape(swapped, turned.shape), tables[1]))
    else:
        out = c.rope(turned, *tables)
    out = t.concat([out, rest], 3) if size != x.shape[3] else out
    return t.reshape(t.permute(out, (0, 2, 1, 3)), n.x().shape) if rank3 else out


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
        share = t.where(dead, t.zeros((1,) * target.rank, logs.dtype), share)
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
