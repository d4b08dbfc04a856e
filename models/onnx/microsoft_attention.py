"""Functions that translate attention and rotary embedding of ONNX Runtime (domain com.microsoft)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import sqrt

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, DimExpr
from ...errors import ShapeError
from ..common.sizes import size_tensor
from .attention import attend, heads, hide, joined, repeated, rotated, summed
from .contract import centred, line
from .names import MICROSOFT
from .node import Node, Result, operator

microsoft = partial(operator, domain=MICROSOFT)
MASKED = -10000.0  # what is added to the score of a masked key by default


def _refuse(n: Node, **expected: object) -> None:
    """Raise UnsupportedError for an attribute with another value than the expected one."""
    for name, value in expected.items():
        if n.attr(name, value) != value:
            raise n.unsupported(f"{name}={n.attr(name)!s:.40}")


def _refuse_operands(n: Node, **positions: int) -> None:
    """Raise UnsupportedError if an operand is given. `positions`: name -> position of each refused operand."""
    for name, position in positions.items():
        if n.has(position):
            raise n.unsupported(f"operand {name}")


def _refuse_results(n: Node, **positions: int) -> None:
    """Raise UnsupportedError if a result is used. `positions`: name -> position of each refused result."""
    for name, position in positions.items():
        if n.wanted(position):
            raise n.unsupported(f"output {name}")


def _size(n: Node, size: Dim) -> int:
    """`size`, a number of features, as an int. Raises UnsupportedError if it is a free dimension."""
    if isinstance(size, DimExpr):
        raise n.unsupported("free head size or head count")
    return size


def _count(n: Node, name: str) -> int:
    """The attribute `name`, a positive number. Raises ShapeError for another number."""
    found: int = n.attr(name)
    if found < 1:
        raise ShapeError(f"{name} is {found}, not a positive number")
    return found


def _scale(n: Node, size: int) -> float:
    return float(n.attr("scale", 0.0)) or 1 / sqrt(size)


def _rank4(x: Tensor, batch: Dim) -> Tensor:
    """A value for each row of the batch, int64 [B, 1, 1, 1]."""
    return t.reshape(t.cast(x, "int64"), (batch, 1, 1, 1))


# ---------------------------------------------------------------- rotary embedding
@microsoft("RotaryEmbedding", limits="is_packed_batching, scale")
def _rotary(n: Node) -> Result:
    _refuse(n, is_packed_batching=0, scale=1.0)
    x, places, tables = n.x(0), n.x(1), (n.x(2), n.x(3))
    half = _size(n, tables[0].shape[1])
    if x.rank == 3:
        count, size = n.attr("num_heads", 0), n.attr("rotary_embedding_dim", 0)
        if size and not count:
            raise ShapeError("rotary_embedding_dim without num_heads")
        x = heads(x, count or _size(n, x.shape[2]) // (2 * half))
    batch, _, rows, size = x.shape
    if half * 2 != (n.attr("rotary_embedding_dim", 0) or size):
        raise ShapeError(f"tables of {half} angles for heads of {size} features")
    if places.shape == (1,) and (batch, rows) != (1, 1):  # the position of the first token
        places = t.add(t.reshape(places, (1, 1)), t.iota((1, rows), 1))
    places = t.reshape(places, (batch, rows)) if places.rank == 1 else places
    out = rotated(x, [t.gather(table, places, 0) for table in tables], bool(n.attr("interleaved", 0)))
    return joined(out) if n.x(0).rank == 3 else out


# ---------------------------------------------------------------- grouped queries
@dataclass(frozen=True)
class _Cache:
    """Where the new tokens of each row stand. `start` [B, 1, 1, 1]: position of the first one, None if it is the length
    of the past for all rows; `length`: positions after the call."""

    start: Tensor | None
    past: Dim
    rows: Dim
    length: Dim

    def first(self) -> Tensor:
        """Position of the first new token of each row, int64 [B or 1, 1, 1, 1]."""
        return t.reshape(size_tensor(self.past), (1,) * 4) if self.start is None else self.start

    def written(self, past: Tensor | None, new: Tensor) -> Tensor:
        """Keys or values [B, H, length, D]: those of the past before a row's start, then the new ones, then zeros."""
        if self.start is None:
            return new if past is None else t.concat([past, new], 2)
        place = t.iota((1, 1, self.length, 1), 2)
        own = t.sub(place, self.start)
        if self.rows == 1:
            shown = new
        else:
            index = t.minimum(t.maximum(own, 0), t.reshape(size_tensor(self.rows - 1), (1,) * 4))
            shape = (new.shape[0], new.shape[1], self.length, new.shape[3])
            shown = t.gather_elements(new, t.broadcast_to(index, shape), 2)
        nothing = t.zeros((1,) * 4, new.dtype)
        before = nothing
        if past is not None:
            more = self.length - self.past
            wide = past if more == 0 else t.pad(past, [(0, more) if i == 2 else (0, 0) for i in range(4)])
            before = t.where(t.lt(own, 0), wide, nothing)
        end = t.reshape(size_tensor(self.rows), (1,) * 4)
        return t.where(t.logical_and(t.le(0, own), t.lt(own, end)), shown, before)


def _cache(n: Node, batch: Dim, rows: Dim) -> _Cache:
    """The places of the new tokens of a GroupQueryAttention node.

    Raises UnsupportedError if the total length is neither that of past and new tokens nor within a shared buffer.
    """
    past = n.x(3).shape[2] if n.has(3) else 0
    length = past + rows
    known = n.known(6)
    total = length if known is None else known.reshape(-1)[0]
    if isinstance(total, int | np.integer) and isinstance(length, int) and total != length:
        if not isinstance(past, int) or total > past:
            raise n.unsupported(f"total_sequence_length={total} of {past} past and {rows} new tokens")
        length = past  # past and present are one buffer
    ends = n.known(5)
    if ends is not None and length == past + rows and all(end + 1 - length == 0 for end in ends.reshape(-1)):
        return _Cache(None, past, rows, length)
    last = _rank4(n.x(5), batch)
    start = t.maximum(t.sub(last, t.reshape(size_tensor(rows - 1), (1,) * 4)), 0)
    return _Cache(start, past, rows, length)


def _packed_heads(n: Node, count: int, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of query, key and value [B, H, T, D], which may be stored together in `query`."""
    x = n.x(0)
    if n.has(1) != n.has(2):
        raise n.unsupported("key or value alone")
    if n.has(1):
        return heads(x, count), heads(n.x(1), shared), heads(n.x(2), shared)
    whole = heads(x, count + 2 * shared)
    parts = t.split(whole, [count, shared, shared], 1)
    return parts[0], parts[1], parts[2]


def _seen(n: Node, cache: _Cache, window: int) -> Tensor:
    """Whether a query sees a position [B or 1, 1, T, length]: none after its own, `window` latest ones (0: all)."""
    shape = (1, 1, cache.rows, cache.length)
    ahead = t.sub(t.iota(shape, 3), t.add(cache.first(), t.iota((1, 1, cache.rows, 1), 2)))
    seen = t.le(ahead, 0)
    return seen if not window else t.logical_and(seen, t.gt(ahead, -window))


def _grouped_scores(n: Node, cache: _Cache, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
    """Attention of a GroupQueryAttention node to the keys and values after the call."""
    scale, softcap, window = (
        _scale(n, _size(n, q.shape[3])),
        n.attr("softcap", 0.0),
        max(n.attr("local_window_size", -1), 0),
    )
    plain = cache.start is None and not n.has(10) and sink is None
    if plain:
        return attend(q, k, v, None, scale, softcap, causal=True, window=window)
    bias = hide(_seen(n, cache, window), q.dtype)
    bias = t.add(bias, n.x(10)) if n.has(10) else bias
    if sink is None:
        return attend(q, k, v, bias, scale, softcap)
    each = _size(n, q.shape[1]) // _size(n, k.shape[1])
    k, v = (x if each == 1 else repeated(x, each) for x in (k, v))
    scores = t.matmul(q, t.transpose(k)) * scale
    scores = t.tanh(scores * (1.0 / softcap)) * softcap if softcap else scores
    scores = t.add(scores, bias)
    shares = c.softmax(t.concat([scores, t.broadcast_to(sink, (*scores.shape[:3], 1))], 3), axis=3)
    return t.matmul(t.slice_axis(shares, 3, 0, scores.shape[3]), v)


@microsoft(
    "GroupQueryAttention",
    limits="causal=0, quantized caches, sliding_window_cache, qk_output, q_norm_weight, k_norm_weight, query_seqlens; present is past and new tokens, "
    "unless total_sequence_length is known to lie within the past",
)  # fmt: skip
def _group_query(n: Node) -> Result:
    _refuse(
        n, causal=1, k_quant_type="NONE", v_quant_type="NONE", qk_output=0, sliding_window_cache=0, kv_cache_bit_width=0
    )
    _refuse_operands(n, k_scale=12, v_scale=13, q_norm_weight=14, k_norm_weight=15, query_seqlens=16)
    _refuse_results(n, output_qk=3)
    if (n.attr("local_window_size", -1) < 1 and n.attr("local_window_size", -1) != -1) or n.attr("softcap", 0.0) < 0:
        raise n.unsupported("local_window_size or softcap below its range")
    count, shared = _count(n, "num_heads"), _count(n, "kv_num_heads")
    if count % shared:
        raise ShapeError(f"{count} query heads do not share {shared} heads of keys")
    q, k, v = _packed_heads(n, count, shared)
    batch, _, rows, _ = q.shape
    cache = _cache(n, batch, rows)
    if n.attr("do_rotary", 0):
        places = n.x(9) if n.has(9) else t.reshape(
            t.add(cache.first(), t.iota((1, 1, 1, rows), 3)), (batch if cache.start is not None else 1, rows)
        )  # fmt: skip
        tables = [t.gather(n.x(i), places, 0) for i in (7, 8)]
        q, k = (rotated(x, tables, bool(n.attr("rotary_interleaved", 0))) for x in (q, k))
    elif n.has(9):
        raise n.unsupported("position_ids without do_rotary")
    keys, values = (cache.written(n.opt(i), x) for i, x in ((3, k), (4, v)))
    sink: Tensor | None = None
    if n.has(11):
        sink = t.reshape(n.x(11), (1, count, 1, 1))
    elif n.attr("smooth_softmax", -1) == 1:
        sink = t.zeros((1,) * 4, q.dtype)
    return [joined(_grouped_scores(n, cache, q, keys, values, sink)), keys, values]


# ---------------------------------------------------------------- masks of Attention and MultiHeadAttention
def _padding_mask(n: Node, position: int, batch: Dim, rows: Dim, length: Dim, kind: str) -> Tensor | None:
    """The additive mask, of the dtype `kind`, of the operand at `position` (mask_index or key_padding_mask).

    None if there is none. Forms: [B] lengths; [2 B] ends and starts (not of MultiHeadAttention); [B, S], [B, T, S] 0 or
    1 for each key.
    """
    mask = n.opt(position)
    if mask is None:
        return None
    if mask.rank == 1:
        place = t.iota((1, 1, 1, length), 3)
        if mask.shape[0] == batch:
            seen = t.lt(place, _rank4(mask, batch))
        elif mask.shape[0] == 2 * batch and not n.op.endswith("MultiHeadAttention"):
            ends, starts = (t.slice_axis(mask, 0, i * batch, (i + 1) * batch) for i in (0, 1))
            seen = t.logical_and(t.lt(place, _rank4(ends, batch)), t.le(_rank4(starts, batch), place))
        else:
            raise n.unsupported(f"mask of shape {list(mask.shape)} for a batch of {batch}")
    elif mask.rank in (2, 3):
        shape = (batch, 1, 1, length) if mask.rank == 2 else (batch, 1, rows, length)
        if mask.shape != (shape[0], *shape[4 - mask.rank + 1 :]):
            raise n.unsupported(f"mask of shape {list(mask.shape)} for {length} keys")
        seen = t.gt(t.reshape(mask, shape), 0)
    else:
        raise n.unsupported(f"mask of rank {mask.rank}")
    one = (1,) * 4
    return t.where(seen, t.zeros(one, kind), t.full(one, n.attr("mask_filter_value", MASKED), kind))


def _masked(n: Node, q: Tensor, k: Tensor, v: Tensor, past: Dim, mask: int, bias: int) -> Tensor:
    """Attention with the mask and the additive bias of the operands at these positions; [B, T, H * D]."""
    batch, rows, length = q.shape[0], q.shape[2], k.shape[2]
    padding = _padding_mask(n, mask, batch, rows, length, q.dtype)
    parts = [] if padding is None else [padding]
    parts += [n.x(bias)] if n.has(bias) else []
    causal = bool(n.attr("unidirectional", 0))
    if causal and length - rows != past:
        raise n.unsupported("unidirectional with keys of other tokens than those of the queries")
    return joined(attend(q, k, v, summed(parts), _scale(n, _size(n, q.shape[3])), causal=causal))


# ---------------------------------------------------------------- multi-head attention
def _split_heads(n: Node, count: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """(query, key, value as heads [B, H, T, D]; whether keys and values are heads of another pass and get no bias)."""
    q, k, v = n.x(0), n.opt(1), n.opt(2)
    if q.rank == 5:
        parts = [t.permute(t.squeeze(part, (3,)), (0, 2, 1, 3)) for part in t.split(q, [1, 1, 1], 3)]
        return parts[0], parts[1], parts[2], False
    if k is None:
        raise n.unsupported("no key")
    if k.rank == 5:
        pair = [t.permute(t.squeeze(part, (3,)), (0, 2, 1, 3)) for part in t.split(k, [1, 1], 3)]
        return heads(q, count), pair[0], pair[1], False
    if v is None:
        raise n.unsupported("no value")
    return heads(q, count), heads(k, count), heads(v, count), k.rank == 4


@microsoft(
    "MultiHeadAttention",
    limits="past_sequence_length, cache_indirection, output qk, masks of packed sequences [3 * batch + 2]",
)
def _multi_head(n: Node) -> Result:
    _refuse_operands(n, past_sequence_length=8, cache_indirection=9)
    _refuse_results(n, qk=3)
    count = _count(n, "num_heads")
    q, k, v, other = _split_heads(n, count)
    if n.has(3) and (n.x(0).rank == 5 or n.x(1).rank == 5):
        raise n.unsupported("bias of packed operands")
    if n.has(3):
        wide = count * _size(n, q.shape[3])
        sizes = [wide, wide, count * _size(n, v.shape[3])]
        q, k, v = (
            x if other and i else t.add(x, t.reshape(part, (1, count, 1, x.shape[3])))
            for i, (x, part) in enumerate(zip((q, k, v), t.split(n.x(3), sizes, 0)))
        )
    past: Dim = 0
    if n.has(6) != n.has(7):
        raise n.unsupported("past_key or past_value alone")
    if n.has(6):
        if other:
            raise n.unsupported("past_key with keys of rank 4")
        past = n.x(6).shape[2]
        k, v = t.concat([n.x(6), k], 2), t.concat([n.x(7), v], 2)
    return [_masked(n, q, k, v, past, 4, 5), k, v]


def _self_attention(n: Node, product: Tensor, mask: int, past: int, bias: int) -> Result:
    """Attention of queries, keys and values [B, T, columns] that one product gives together, and the keys and values
    [2, B, H, S, D] of past and new tokens. `mask`, `past`, `bias`: positions of the operands."""
    count, width = _count(n, "num_heads"), _size(n, product.shape[2])
    sizes = list(n.attr("qkv_hidden_sizes", [width // 3] * 3))
    if len(sizes) != 3 or sum(sizes) != width or any(s < 1 or s % count for s in sizes) or sizes[0] != sizes[1]:
        raise ShapeError(f"qkv_hidden_sizes {sizes} of {width} columns and {count} heads")
    q, k, v = (heads(part, count) for part in t.split(product, sizes, 2))
    length: Dim = 0
    if n.has(past):
        length = n.x(past).shape[3]
        before = [t.squeeze(part, (0,)) for part in t.split(n.x(past), [1, 1], 0)]
        k, v = t.concat([before[0], k], 2), t.concat([before[1], v], 2)
    if n.wanted(1) and sizes[0] != sizes[2]:
        raise n.unsupported("output present of keys and values of different sizes")
    present = t.stack([k, v], 0) if n.wanted(1) else None
    return [_masked(n, q, k, v, length, mask, bias), present]


@microsoft(
    "Attention",
    limits="do_rotary, past_present_share_buffer, past_sequence_length, masks of rank 4 and of packed sequences [3 * batch + 2]",
)
def _attention(n: Node) -> Result:
    _refuse(n, do_rotary=0, past_present_share_buffer=0)
    _refuse_operands(n, past_sequence_length=6)
    product = t.matmul(n.x(0), n.x(1))
    return _self_attention(n, t.add(product, n.x(2)) if n.has(2) else product, 3, 4, 5)


@microsoft("QAttention", limits="do_rotary, past_present_share_buffer, masks as those of Attention")
def _quantized_attention(n: Node) -> Result:
    _refuse(n, do_rotary=0, past_present_share_buffer=0)
    total = t.matmul(centred(n.x(0), n.opt(6), -2), centred(n.x(1), n.opt(7), -1))
    product = t.cast(total, "float32") * (line(n.x(3), 3, -2) * line(n.x(4), 3, -1))
    return _self_attention(n, t.cast(product + t.cast(n.x(2), "float32"), n.x(2).dtype), 5, 8, 9)
