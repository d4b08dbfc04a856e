"""Functions that build the graph of ATen's attention overloads. They take the arguments of the ATen schema."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, concrete
from ...errors import UnsupportedError
from .aten_reduce import refuse_free

_SMALL_MASK = 1 << 22
_MOVES = ("reshape", "permute", "broadcast_to", "slice", "concat", "gather", "where", "flip")
_SUMS = ("add", "sub")


def some_visible(mask: Tensor) -> bool:
    """Whether every row of a mask is known to have a visible position.

    This holds if no element can be -inf, or if the mask is constant and no row is fully masked.
    """
    if mask.dtype != "bool" and _size(mask, {}) <= _largest(mask.dtype):
        return True
    if any(n.op in ("input", "param", "state") for n in topological([mask])):
        return False
    if not all(isinstance(d, int) for d in mask.shape) or prod(concrete(mask.shape)) > _SMALL_MASK:
        return False
    (known,) = evaluate(Graph.of(mask), {})
    shown = known if mask.dtype == "bool" else known != float("-inf")
    return bool(shown.any(axis=-1).all())


def _largest(dtype: str) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtypes.numpy_dtype(dtype)).max)


def _size(x: Tensor, known: dict[Tensor, float]) -> float:
    """Return an upper bound of |x|; infinite if unknown. Covers the ops from which masks are usually built."""
    if x not in known:
        if not dtypes.is_float(x.dtype):
            found = 1.0 if x.dtype == "bool" else 2.0**64
        elif x.op == "full":
            found = abs(float(x.attr("value")))
        elif x.data is not None:
            found = float(np.abs(x.data.astype(np.float64)).max(initial=0.0))
        elif x.op in _MOVES:
            found = max(_size(a, known) for a in x.args if dtypes.is_float(a.dtype))
        elif x.op in ("cast", "neg"):
            found = _size(x.args[0], known)
        elif x.op in (*_SUMS, "mul"):
            left, right = (_size(a, known) for a in x.args)
            found = left + right if x.op in _SUMS else left * right
        else:
            found = float("inf")
        known[x] = found if not dtypes.is_float(x.dtype) or found <= _largest(x.dtype) else float("inf")
    return known[x]


def _ahead(rows: Dim, columns: Dim) -> Tensor:
    return t.gt(t.iota((rows, columns), 1), t.iota((rows, columns), 0))


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention: softmax(scale * q @ k.T + mask) @ v, with `causal` also without the positions after a query's own.

    Grouped queries (`enable_gqa`) share keys through a broadcast axis. For a fully masked row (False or -inf
    everywhere) PyTorch returns 0. A select implements this, unless the mask is known to have no such row. Raises
    UnsupportedError for dropout.
    """
    if dropout:
        raise UnsupportedError("attention with dropout is random", hint="call module.eval(), pass dropout_p=0")
    if enable_gqa and q.rank >= 4 and q.shape[-3] != k.shape[-3]:
        return _grouped(q, k, v, mask, causal, scale)
    rank = max(q.rank, k.rank, v.rank, mask.rank if mask is not None else 0, 3)
    narrow = q.rank == 2 and rank == 3
    q, k, v = (t.with_rank(x, rank) for x in (q, k, v))
    if scale is None:
        scale = 1.0 / sqrt(refuse_free(q.shape[-1], "the default scale of attention") or 1)
    # PyTorch aligns the causal mask at the first position, `attention` at the last
    aligned = causal and q.shape[-2] != k.shape[-2]
    hidden = t.with_rank(_ahead(q.shape[-2], k.shape[-2]), rank) if aligned else None
    bias: Tensor | None = None
    seen: Tensor | None = None
    if mask is not None:
        mask = t.with_rank(mask, rank)
        if not some_visible(mask):
            seen = t.any(mask if mask.dtype == "bool" else t.ne(mask, float("-inf")), -1, True)
        if mask.dtype == "bool":
            mask = t.where(mask, t.full((1,) * rank, 0.0, q.dtype), t.full((1,) * rank, float("-inf"), q.dtype))
        bias = t.cast(mask, q.dtype)
    attrs = {"scale": float(scale), "causal": causal and not aligned}
    if bias is not None:  # PyTorch takes no further mask with `causal`
        out = c.masked_attention(q, k, v, bias, **attrs)
    else:
        out = c.attention(q, k, v, **attrs) if hidden is None else c.hiding_attention(q, k, v, hidden, **attrs)
    if seen is not None:
        out = t.where(seen, out, t.full((1,) * rank, 0.0, q.dtype))
    return t.squeeze(out, 0) if narrow else out


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Grouped-query attention: the query heads of one key head form an axis of their own."""
    heads = k.shape[-3]
    group = q.shape[-3] // heads
    if mask is not None and mask.rank >= 3:
        size = mask.shape[-3]
        inner = (1, 1) if isinstance(size, int) and size == 1 else (heads, group)
        mask = t.reshape(mask, (*mask.shape[:-3], *inner, *mask.shape[-2:]))
    wide = t.reshape(q, (*q.shape[:-3], heads, group, *q.shape[-2:]))
    out = attention(wide, t.expand_dims(k, k.rank - 2), t.expand_dims(v, v.rank - 2), mask, 0.0, causal, scale=scale)
    return t.reshape(out, (*q.shape[:-1], v.shape[-1]))
