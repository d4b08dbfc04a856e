"""Functions that translate ONNX attention and rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import sqrt

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, DimExpr
from ...errors import ShapeError
from ..common.sizes import size_tensor
from .layout import two_way
from .node import Node, Result, operator


def heads(x: Tensor, count: int | None) -> Tensor:
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


def joined(x: Tensor) -> Tensor:
    """Merge heads: [B, H, T, D] -> [B, T, H*D], the inverse of `heads`."""
    batch, count, rows, size = x.shape
    return t.reshape(t.permute(x, (0, 2, 1, 3)), (batch, rows, count * size))


def hide(allowed: Tensor, dtype: str) -> Tensor:
    """Return an additive mask: 0 where allowed, -inf elsewhere."""
    one = (1,) * allowed.rank
    return t.where(allowed, t.zeros(one, dtype), t.full(one, float("-inf"), dtype))


def summed(parts: Sequence[Tensor]) -> Tensor | None:
    """The sum of additive masks; None if there are none."""
    return reduce(t.add, parts) if parts else None


def _position_mask(n: Node, rows: Dim, columns: Dim, offset: Tensor) -> Tensor | None:
    """Return the bool mask [1 or B, 1, T, S] of causality and sliding windows; None if unrestricted.

    `offset` (rank 4) is the position of the first query.
    """
    left, right = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    ahead = t.sub(t.sub(t.iota((1, 1, rows, columns), 3), t.iota((1, 1, rows, columns), 2)), offset)
    terms = [t.le(ahead, 0)] if n.attr("is_causal", 0) else []
    terms += [t.ge(ahead, -left)] if left >= 0 else []
    terms += [t.le(ahead, right)] if right >= 0 else []
    return reduce(t.logical_and, terms) if terms else None


def _bias(n: Node, q: Tensor, k: Tensor, past: Dim, plain_causal: bool) -> Tensor | None:
    """Return the rank-4 additive mask; None if there is none. Causality is left out if `plain_causal`."""
    rows, columns, kind = q.shape[2], k.shape[2], q.dtype
    parts: list[Tensor] = []
    mask, lengths = n.opt(3), n.opt(6)
    if mask is not None:
        mask = t.with_rank(hide(mask, kind) if mask.dtype == "bool" else t.cast(mask, kind), 4)
        if isinstance(columns, int) and isinstance(mask.shape[3], int) and 1 < mask.shape[3] < columns:
            mask = t.pad(mask, [(0, 0)] * 3 + [(0, columns - mask.shape[3])], float("-inf"))
        parts.append(mask)
    if not plain_causal:
        offset = t.reshape(size_tensor(past), (1, 1, 1, 1))
        if lengths is not None:
            offset = t.sub(t.reshape(lengths, (lengths.shape[0], 1, 1, 1)), t.reshape(size_tensor(rows), (1,) * 4))
        allowed = _position_mask(n, rows, columns, t.cast(offset, "int64"))
        parts += [] if allowed is None else [hide(allowed, kind)]
    if lengths is not None:
        inside = t.lt(t.iota((1, 1, 1, columns), 3), t.reshape(t.cast(lengths, "int64"), (lengths.shape[0], 1, 1, 1)))
        parts.append(hide(inside, kind))
    return summed(parts)


def grouped(x: Tensor, shared: int) -> Tensor:
    """Group heads: [b, H, ...] -> [b, H/g, g, ...], or [b, 1, 1, ...] if one head is broadcast to all."""
    heads = x.shape[1]
    split = (1, 1) if heads == 1 else (heads // shared, shared)
    return t.reshape(x, (x.shape[0], *split, *x.shape[2:]))


def unmasked(bias: Tensor, out: Tensor) -> Tensor:
    """Zero the rows in which the mask hides every key, since their softmax is undefined."""
    dead = t.eq(t.max(bias, 3, True), float("-inf"))
    return t.where(dead, t.zeros((1,) * 4, out.dtype), out)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float = 0.0,
    causal: bool = False,
    window: int = 0,
) -> Tensor:
    """Attention of q [B, H, T, D] to k [B, G, S, D] and v [B, G, S, E] with an additive mask [B or 1, H or 1, T, S].

    Returns [B, H, T, E]. H / G query heads share a head of k and v. `causal` (the last query sees the last key) and
    `window`: as of the composite `attention`.
    """
    each = int(q.shape[1]) // int(k.shape[1])  # type: ignore[arg-type]
    qs, ks, vs = (q, k, v) if each == 1 else (grouped(q, each), t.expand_dims(k, 2), t.expand_dims(v, 2))
    options = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    if bias is None:
        out = c.attention(qs, ks, vs, **options)
    else:
        out = c.masked_attention(qs, ks, vs, bias if each == 1 else grouped(bias, each), **options)
    return t.reshape(out, (*q.shape[:3], v.shape[3]))


@operator("Attention", limits="softmax_precision is that of the operands")
def _attention(n: Node) -> Result:
    shapes = [n.x(i).shape for i in range(3)]
    if len({len(s) for s in shapes}) > 1 or len({s[0] for s in shapes if isinstance(s[0], int)}) > 1:
        raise ShapeError(f"attention of {n.x(0).type}, {n.x(1).type} and {n.x(2).type}")
    q = heads(n.x(0), n.attr("q_num_heads"))
    k, v = (heads(n.x(i), n.attr("kv_num_heads")) for i in (1, 2))
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
        out, scores = attend(q, k, v, bias, scale, softcap, causal), None
    out = out if bias is None else unmasked(bias, out)
    return [joined(out) if n.x(0).rank == 3 else out, k, v, scores]


def _open_window(n: Node) -> bool:
    return bool(max(n.attr("left_window_size", -1), n.attr("right_window_size", -1)) < 0)


def repeated(x: Tensor, times: int) -> Tensor:
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
        k, v = repeated(k, shared), repeated(v, shared)
    stages = [t.matmul(q, t.transpose(k)) * scale]
    capped = t.tanh(stages[0] * (1.0 / softcap)) * softcap if softcap else stages[0]
    biased = capped if bias is None else t.add(capped, bias)
    weights = c.softmax(biased, axis=3)
    weights = weights if bias is None else unmasked(bias, weights)
    shape = two_way(weights.shape, (*q.shape[:3], k.shape[2]))
    stages += [capped, biased, weights]
    return t.matmul(weights, v), t.broadcast_to(stages[n.attr("qk_matmul_output_mode", 0)], shape)


def rotated(x: Tensor, tables: Sequence[Tensor], interleaved: bool) -> Tensor:
    """Rotary embedding of heads x [B, H, T, D]: pairs of features turn by angles.

    `tables`: cosines and sines of the angles, [B or 1, T, half]. The last D - 2 * half features stay. A pair is (i, i +
    half), or (2 i, 2 i + 1) if `interleaved`.
    """
    half = tables[0].shape[-1]
    size = 2 * half
    wide = []
    for table in tables:
        table = t.expand_dims(table, 1)  # one table for all heads
        if interleaved:
            table = t.reshape(t.stack([table, table], 4), (*table.shape[:3], size))
        else:
            table = t.concat([table, table], 3)
        wide.append(table)
    turned, rest = t.slice_axis(x, 3, 0, size), t.slice_axis(x, 3, size, x.shape[3])
    if interleaved:
        pairs = t.reshape(turned, (*turned.shape[:3], half, 2))
        swapped = t.concat([-t.slice_axis(pairs, 4, 1, 2), t.slice_axis(pairs, 4, 0, 1)], 4)
        out = t.add(t.mul(turned, wide[0]), t.mul(t.reshape(swapped, turned.shape), wide[1]))
    else:
        out = c.rope(turned, *wide)
    return t.concat([out, rest], 3) if size != x.shape[3] else out


@operator("RotaryEmbedding")
def _rotary(n: Node) -> Result:
    x = n.x() if n.x().rank == 4 else heads(n.x(), n.attr("num_heads", 0))
    size = n.attr("rotary_embedding_dim", 0) or x.shape[3]
    if isinstance(size, DimExpr):
        raise n.unsupported("free head size")
    if size % 2 or (isinstance(x.shape[3], int) and size > x.shape[3]):
        raise ShapeError(f"rotary embedding of {size} of {x.shape[3]} elements, which are no pairs")
    tables = [n.shaped(i, n.x(1).shape) for i in (1, 2)]
    tables = [t.gather(table, n.x(3), 0) for table in tables] if n.has(3) else tables
    if any(table.shape[-1] != size // 2 for table in tables):
        raise ShapeError(f"tables of shapes {n.x(1).shape} and {n.x(2).shape} for {size} features that turn")
    out = rotated(x, tables, bool(n.attr("interleaved", 0)))
    return joined(out) if n.x().rank == 3 else out


__all__ = ["attend", "heads", "hide", "joined", "repeated", "rotated", "summed", "unmasked"]
