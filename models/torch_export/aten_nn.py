"""Builders of ATen layer overloads: convolution, pooling, normalization, attention, resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, prod, sqrt
from typing import Any

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import composite_ops as c
from ...egraph.ir import dtypes
from ...egraph.ir.dims import Dim, DimExpr, concrete, volume
from ...egraph.ir.graph import Graph, Tensor, topological
from ...egraph.ir.interpret import evaluate
from ...errors import UnsupportedError
from ..common.sampling import grid_sample
from .aten_layout import Missing, constant_pad, neutral, upsample
from .aten_pointwise import number
from .aten_reduce import linear, refuse_free

Ints = int | Sequence[int]


def each(value: Ints, n: int) -> tuple[int, ...]:
    """Number for each of n axes, from one number or a list."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * n if len(found) == 1 else found


# ---------------------------------------------------------------- convolution
def convolution(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, transposed: bool = False,
    output_padding: Ints = 0, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution or transposed convolution of x[N, C, *S] or x[C, *S] with w."""
    n = w.rank - 2
    if x.rank == n + 1:
        return t.squeeze(convolution(t.expand_dims(x, 0), w, b, stride, padding, dilation, transposed, output_padding,
                                     groups), 0)  # fmt: skip
    strides, pads, dilations = each(stride, n), each(padding, n), each(dilation, n)
    if transposed:
        x, w = _dilated(x, strides), _turned(w, groups)
        extra = each(output_padding, n)
        reach = [dilations[i] * (refuse_free(w.shape[2 + i], "a kernel size") - 1) for i in range(n)]
        edges = [(reach[i] - pads[i], reach[i] - pads[i] + extra[i]) for i in range(n)]
        x = constant_pad(x, [v for pair in reversed([(min(lo, 0), min(hi, 0)) for lo, hi in edges]) for v in pair])
        sides = [max(lo, 0) for lo, _ in edges] + [max(hi, 0) for _, hi in edges]
        return t.conv(x, w, b, strides=(1,) * n, pads=sides, dilations=dilations, groups=groups)
    return t.conv(x, w, b, strides=strides, pads=(*pads, *pads), dilations=dilations, groups=groups)


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Ints = 1, padding: Ints | str = 0, dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution with string padding: "valid" pads nothing, "same" keeps the sizes (odd excess at the high end)."""
    if not isinstance(padding, str):
        return convolution(x, w, b, stride, padding, dilation, groups=groups)
    n = w.rank - 2
    if padding == "same":
        whole = [d * (refuse_free(w.shape[2 + i], "a kernel size") - 1) for i, d in enumerate(each(dilation, n))]
        x = constant_pad(x, [v for total in reversed(whole) for v in (total // 2, total - total // 2)])
    return convolution(x, w, b, stride, 0, dilation, groups=groups)


def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution."""
    return convolution(x, w, b, stride, padding, dilation, True, output_padding, groups)


def _dilated(x: Tensor, strides: Sequence[int]) -> Tensor:
    """Dilate the spatial axes: insert stride - 1 zeros between neighbours."""
    for i, stride in enumerate(strides):
        if stride > 1:
            axis, size = 2 + i, x.shape[2 + i]
            wide = t.pad(t.expand_dims(x, axis + 1), [(0, stride - 1) if a == axis + 1 else (0, 0)
                                                      for a in range(x.rank + 1)])  # fmt: skip
            flat = t.reshape(wide, (*x.shape[:axis], size * stride, *x.shape[axis + 1 :]))
            x = t.slice_axis(flat, axis, 0, (size - 1) * stride + 1)
    return x


def _turned(w: Tensor, groups: int) -> Tensor:
    """Convert the weight of a transposed convolution to that of a plain one.

    [C_in, C_out/groups, *K] -> [C_out, C_in/groups, *K].
    """
    for axis in range(2, w.rank):
        w = t.flip(w, axis)
    c_in, per_out = w.shape[:2]
    parts = t.reshape(w, (groups, c_in // groups, per_out, *w.shape[2:]))
    parts = t.swapaxes(parts, 1, 2)
    return t.reshape(parts, (per_out * groups, c_in // groups, *w.shape[2:]))


# ---------------------------------------------------------------- pooling
def _pool_attrs(
    x: Tensor, n: int, kernel: Ints, stride: Any, padding: Ints, dilation: Ints, ceil_mode: bool
) -> dict[str, Any]:
    sizes, steps = each(kernel, n), each(stride, n) if stride not in (None, [], ()) else each(kernel, n)
    pads, gaps = each(padding, n), each(dilation, n)
    high = list(pads)
    if ceil_mode:
        for i in range(n):
            size = refuse_free(x.shape[2 + i], "a pool rounded up")
            span = size + 2 * pads[i] - gaps[i] * (sizes[i] - 1) - 1
            count = -(-span // steps[i]) + 1
            # the last window must start inside the input or its low padding
            if (count - 1) * steps[i] >= size + pads[i]:
                count -= 1
            high[i] = pads[i] + max((count - 1) * steps[i] - span, 0)
    return {"kernel": sizes, "strides": steps, "pads": (*pads, *high), "dilations": gaps}


def batched(n: int, build: Callable[..., Any]) -> Callable[..., Any]:
    """Builder over [N, C, *S] that also accepts [C, *S]."""

    def run(x: Tensor, *args: Any, **named: Any) -> Any:
        if x.rank == n + 2:
            return build(x, *args, **named)
        out = build(t.expand_dims(x, 0), *args, **named)
        if isinstance(out, list):
            return [t.squeeze(o, 0) if isinstance(o, Tensor) else o for o in out]
        return t.squeeze(out, 0)

    return run


def max_pool(n: int) -> Callable[..., Tensor]:
    """Return a builder of max pooling over n spatial axes."""

    def build(
        x: Tensor, kernel: Ints, stride: Any = (), padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False
    ) -> Tensor:
        return c.max_pool(x, **_pool_attrs(x, n, kernel, stride, padding, dilation, ceil_mode))

    return batched(n, build)


def max_pool_indices(n: int) -> Callable[..., list[Any]]:
    """Return a builder of max pooling with the flat index of each window's first maximum."""

    def build(
        x: Tensor, kernel: Ints, stride: Any = (), padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False
    ) -> list[Tensor]:
        attrs = _pool_attrs(x, n, kernel, stride, padding, dilation, ceil_mode)
        return [c.max_pool(x, **attrs), _largest_at(x, **attrs)]

    return batched(n, build)


def _largest_at(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Return the index of each window's first maximum into the flattened spatial axes."""
    n = len(kernel)
    wide = t.pad(x, [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))], neutral(True, x.dtype))
    for i in range(n):
        wide = t.windows(wide, 2 + i, kernel[i], strides[i], dilations[i])
    rank = 2 + n
    best = t.argmax(t.reshape(wide, (*wide.shape[:rank], prod(kernel))), rank)
    flat, place = t.full((1,) * rank, 0, "int64"), 1
    weight: Dim = 1
    for i in reversed(range(n)):
        inside = t.mod(t.floordiv(best, place), kernel[i])
        first = t.iota(best.shape, 2 + i) * strides[i] - pads[i]
        flat = flat + (first + inside * dilations[i]) * number(weight)
        place, weight = place * kernel[i], weight * x.shape[2 + i]
    return flat


def max_unpool(n: int) -> Callable[..., Tensor]:
    """Return a builder of max unpooling: values are scattered to the indices of max_pool, zeros elsewhere."""

    def build(x: Tensor, indices: Tensor, output_size: Sequence[Dim], *_: Any) -> Tensor:
        lead, count, room = x.shape[: x.rank - n], volume(x.shape[x.rank - n :]), tuple(output_size)
        zeros = t.zeros((*lead, volume(room)), x.dtype)
        spots, values = t.reshape(indices, (*lead, count)), t.reshape(x, (*lead, count))
        return t.reshape(t.scatter_elements(zeros, spots, values, x.rank - n, "set"), (*lead, *room))

    return build


def avg_pool(n: int) -> Callable[..., Tensor]:
    """Return a builder of average pooling over n spatial axes."""

    def build(
        x: Tensor, kernel: Ints, stride: Any = (), padding: Ints = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        attrs = _pool_attrs(x, n, kernel, stride, padding, 1, ceil_mode)
        out, volume_ = c.avg_pool(x, **attrs), prod(attrs["kernel"])
        if divisor_override:
            return t.mul(out, volume_ / divisor_override)
        pads, plain = attrs["pads"], each(padding, n)
        if (count_include_pad and pads == (*plain, *plain)) or not any(pads):
            return out
        share = np.ones((1, 1, *concrete(x.shape[2:])), dtypes.numpy_dtype(x.dtype))
        inside = t.constant(share)
        if count_include_pad:  # padding counts, the overhang of ceil_mode does not
            inside = t.pad(inside, [(0, 0), (0, 0), *((p, p) for p in plain)], 1.0)
            attrs = attrs | {"pads": (*(0,) * n, *(pads[n + i] - plain[i] for i in range(n)))}
        (counted,) = evaluate([c.avg_pool(inside, **attrs)], {})
        return t.div(out, t.constant(counted))

    return batched(n, build)


def averaging_matrix(size: int, count: int) -> np.ndarray[Any, Any]:
    """Return the matrix [count, size] that averages PyTorch's adaptive windows."""
    matrix = np.zeros((count, size))
    for i in range(count):
        lo, hi = (i * size) // count, -(-(i + 1) * size // count)
        matrix[i, lo:hi] = 1.0 / (hi - lo)
    return matrix


def adaptive_avg_pool(n: int) -> Callable[..., Tensor]:
    """Return a builder of adaptive average pooling: the windows are chosen to yield the requested size."""

    def build(x: Tensor, output_size: Any) -> Tensor:
        wanted = [x.shape[2 + i] if v is None else v for i, v in enumerate(each(output_size, n))]
        if all(v == 1 for v in wanted):
            return t.mean(x, tuple(range(2, 2 + n)), True)
        sizes = [refuse_free(d, "an adaptive pool") for d in x.shape[2:]]
        if all(s % v == 0 for s, v in zip(sizes, wanted)):
            kernel = [s // v for s, v in zip(sizes, wanted)]
            return c.avg_pool(x, kernel=kernel, strides=kernel, pads=(0,) * (2 * n), dilations=(1,) * n)
        return resample(x, [averaging_matrix(s, v) for s, v in zip(sizes, wanted)])

    return batched(n, build)


def adaptive_max_pool(n: int) -> Callable[..., list[Any]]:
    """Return a builder of adaptive max pooling.

    Windows overlap if the requested size does not divide the input size.
    """

    def build(x: Tensor, output_size: Any) -> list[Any]:
        wanted = [x.shape[2 + i] if v is None else v for i, v in enumerate(each(output_size, n))]
        sizes = [refuse_free(d, "an adaptive pool") for d in x.shape[2:]]
        if any(s % v for s, v in zip(sizes, wanted)):
            for i, (size, count) in enumerate(zip(sizes, wanted)):
                x = _largest_of(x, 2 + i, size, count)
            return [x, Missing(f"the indices of adaptive_max_pool{n}d with unequal windows")]
        kernel = [s // v for s, v in zip(sizes, wanted)]
        attrs = {"kernel": kernel, "strides": kernel, "pads": (0,) * (2 * n), "dilations": (1,) * n}
        return [c.max_pool(x, **attrs), _largest_at(x, **attrs)]

    return batched(n, build)


def _largest_of(x: Tensor, axis: int, size: int, count: int) -> Tensor:
    """Return the maximum of each of `count` adaptive windows of an axis. Shorter windows repeat their last element."""
    low = [(i * size) // count for i in range(count)]
    high = [-(-(i + 1) * size // count) for i in range(count)]
    width = max(b - a for a, b in zip(low, high))
    spots = np.minimum(np.array(low)[:, None] + np.arange(width), np.array(high)[:, None] - 1)
    return t.max(t.gather(x, t.constant(spots.astype(np.int64)), axis), axis + 1)


# ---------------------------------------------------------------- normalization
def _affine(x: Tensor, gain: Tensor | None, shift: Tensor | None, size: Dim) -> tuple[Tensor, Tensor]:

    def line(value: Tensor | None, fill: float) -> Tensor:
        return t.full((size,), fill, x.dtype) if value is None else t.cast(t.reshape(value, (size,)), x.dtype)

    return line(gain, 1.0), line(shift, 0.0)


def layer_norm(
    x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, shift: Tensor | None = None, eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Layer normalization over the trailing axes `shape`."""
    size = volume(tuple(shape))
    flat = t.reshape(x, (*x.shape[: x.rank - len(shape)], size))
    return t.reshape(c.layer_norm(flat, *_affine(x, gain, shift, size), eps=eps), x.shape)


def native_layer_norm(x: Tensor, shape: Sequence[Dim], gain: Any, shift: Any, eps: float) -> list[Any]:
    """Return [normalized value, mean, reciprocal standard deviation]."""
    axes = tuple(range(x.rank - len(shape), x.rank))
    spread = t.rsqrt(t.mean(t.square(x - t.mean(x, axes, True)), axes, True) + eps)
    return [layer_norm(x, shape, gain, shift, eps), t.mean(x, axes, True), spread]


def rms_norm(x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, eps: float | None = None) -> Tensor:
    """RMS normalization over the trailing axes `shape`."""
    size = volume(tuple(shape))
    if eps is None:
        import ml_dtypes

        eps = float(ml_dtypes.finfo(dtypes.numpy_dtype(x.dtype)).eps)
    flat = t.reshape(x, (*x.shape[: x.rank - len(shape)], size))
    return t.reshape(c.rms_norm(flat, _affine(x, gain, None, size)[0], eps=eps), x.shape)


def fused_rms_norm(x: Tensor, shape: Sequence[Dim], gain: Tensor | None = None, eps: float | None = None) -> list[Any]:
    """Return [normalized value, placeholder]; the reciprocal root mean square is not computed."""
    return [rms_norm(x, shape, gain, eps), Missing("the second result of _fused_rms_norm")]


def group_norm(
    x: Tensor,
    groups: int,
    gain: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    """Group normalization over groups of channels and all positions."""
    return c.group_norm(x, *_affine(x, gain, shift, x.shape[1]), groups=groups, eps=eps)


def native_group_norm(
    x: Tensor, gain: Any, shift: Any, n: Dim, channels: Dim, space: Dim, groups: int, eps: float
) -> list[Any]:
    """Return [normalized value, mean per group, reciprocal standard deviation per group]."""
    flat = t.reshape(x, (n, groups, volume(x.shape[1:]) // groups))
    spread = t.rsqrt(t.mean(t.square(flat - t.mean(flat, -1, True)), -1) + eps)
    return [group_norm(x, groups, gain, shift, eps), t.mean(flat, -1), spread]


def batch_norm(
    x: Tensor, gain: Any, shift: Any, mean: Tensor | None, var: Tensor | None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Batch normalization with the given statistics, or with the batch statistics in training mode."""
    if training or mean is None or var is None:
        axes = tuple(a for a in range(x.rank) if a != 1)
        mean = t.mean(x, axes)
        var = t.var(x, axes)
    return c.batch_norm(x, *_affine(x, gain, shift, x.shape[1]), t.cast(mean, x.dtype), t.cast(var, x.dtype), eps=eps)


def batch_norm_inference(
    x: Tensor, gain: Any, shift: Any, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> list[Any]:
    """Batch normalization with the given statistics; the saved statistics are empty."""
    empty = t.zeros((0,), x.dtype)
    return [batch_norm(x, gain, shift, mean, var, False, momentum, eps), empty, empty]


def batch_norm_functional(
    x: Tensor, gain: Any, shift: Any, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float
) -> list[Any]:
    """Batch normalization with batch statistics; returns the updated running mean and variance as results 3 and 4."""
    axes = tuple(a for a in range(x.rank) if a != 1)
    new_mean = mean * (1 - momentum) + t.mean(x, axes) * momentum
    new_var = var * (1 - momentum) + t.var(x, axes, correction=1) * momentum
    saved = _saved_statistics(x, axes, eps)
    return [batch_norm(x, gain, shift, mean, var, training, momentum, eps), *saved, new_mean, new_var]


def _saved_statistics(x: Tensor, axes: tuple[int, ...], eps: float) -> list[Any]:
    """Return [mean, reciprocal standard deviation] of a batch over `axes`, in float32 at least."""
    x = t.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x
    return [t.mean(x, axes), t.rsqrt(t.var(x, axes, correction=0) + eps)]


def batch_norm_without_stats(
    x: Tensor, gain: Any, shift: Any, training: bool, momentum: float, eps: float
) -> list[Any]:
    """Batch normalization with batch statistics, without running statistics."""
    return [
        batch_norm(x, gain, shift, None, None, True, momentum, eps),
        *_saved_statistics(x, tuple(a for a in range(x.rank) if a != 1), eps),
    ]


def instance_norm(
    x: Tensor, gain: Any, shift: Any, mean: Tensor | None, var: Tensor | None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = True,
) -> Tensor:  # fmt: skip
    """Instance normalization, per example and channel."""
    if not use_input_stats:
        return batch_norm(x, gain, shift, mean, var, False, momentum, eps)
    return group_norm(x, refuse_free(x.shape[1], "the number of channels"), gain, shift, eps)


def bilinear(x: Tensor, y: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Bilinear layer: sum_ij x[..., i] w[o, i, j] y[..., j] + b[o]."""
    rows, columns = w.shape[1:]
    pairs = t.expand_dims(x, x.rank) * t.expand_dims(y, y.rank - 1)
    flat = t.reshape(pairs, (*x.shape[:-1], volume((rows, columns))))
    return linear(flat, t.reshape(w, (w.shape[0], volume((rows, columns)))), b)


# ---------------------------------------------------------------- attention
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


def _ahead_mask(rows: Dim, columns: Dim, dtype: str) -> Tensor:
    hidden = t.gt(t.iota((rows, columns), 1), t.iota((rows, columns), 0))
    return t.where(hidden, t.full((1, 1), float("-inf"), dtype), t.full((1, 1), 0.0, dtype))


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention: softmax(scale * q @ k.T + mask) @ v. Grouped queries share keys through a broadcast axis.

    For a fully masked row (False or -inf everywhere) PyTorch returns 0. A select implements this, unless the mask is
    known to have no such row.
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
    bias = t.with_rank(_ahead_mask(q.shape[-2], k.shape[-2], q.dtype), rank) if aligned else None
    seen: Tensor | None = None
    if mask is not None:
        mask = t.with_rank(mask, rank)
        if not some_visible(mask):
            seen = t.any(mask if mask.dtype == "bool" else t.ne(mask, float("-inf")), -1, True)
        if mask.dtype == "bool":
            mask = t.where(mask, t.full((1,) * rank, 0.0, q.dtype), t.full((1,) * rank, float("-inf"), q.dtype))
        bias = t.cast(mask, q.dtype)
    attrs = {"scale": float(scale), "causal": causal and not aligned}
    out = c.attention(q, k, v, **attrs) if bias is None else c.masked_attention(q, k, v, bias, **attrs)
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


# ---------------------------------------------------------------- resampling
def resample(x: Tensor, matrices: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    """Image with each spatial axis of x[N, C, *S] multiplied by a constant matrix [out, in]."""
    kind = dtypes.numpy_dtype(x.dtype)
    for i, matrix in enumerate(matrices):
        axis = 2 + i
        weights = t.constant(matrix.T.astype(kind))
        if axis == x.rank - 1:
            x = t.matmul(x, weights)
        else:
            x = t.swapaxes(t.matmul(t.swapaxes(x, axis, x.rank - 1), weights), axis, x.rank - 1)
    return x


def _targets(x: Tensor, output_size: Any, scales: Sequence[float | None]) -> list[int]:
    if output_size is not None:
        return [refuse_free(v, "the size to resample to") for v in output_size]
    sizes = [refuse_free(d, "resampling by a factor") for d in x.shape[2:]]
    return [floor(size * float(s or 1)) for size, s in zip(sizes, scales)]


def scales_of(scales: Sequence[Any], n: int) -> list[float | None]:
    if len(scales) == 1 and isinstance(scales[0], list | tuple):
        return list(scales[0])
    return [*scales, *[None] * n][:n]


_GRID_MODES, _GRID_PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def grid_sampler(x: Tensor, grid: Tensor, mode: int = 0, padding: int = 0, align: bool = False) -> Tensor:
    """Sample x[N, C, *S] at grid[N, *O, n]."""
    return grid_sample(x, grid, _GRID_MODES[mode], _GRID_PADDINGS[padding], bool(align))


def _whole_factors(x: Tensor, output_size: Any, factors: Sequence[float | None]) -> list[int]:
    """Return the integer upsampling factor of each spatial axis; empty if one is not an integer at all sizes."""
    found = []
    for i, factor in enumerate(factors):
        size, times = x.shape[2 + i], factor
        if output_size is not None:
            times = output_size[i] // size if size != 0 else 0
            if output_size[i] != times * size or factor not in (None, times):
                return []
        if not isinstance(times, int | float) or times < 1 or int(times) != times:
            return []
        found.append(int(times))
    return found


def upsample_nearest_exact(x: Tensor, output_size: Any, *scales: Any) -> Tensor:
    """Nearest-neighbour resampling that compares the centres of positions."""
    return upsample_nearest(x, output_size, *scales, middle=0.5)


def upsample_nearest(x: Tensor, output_size: Any, *scales: Any, middle: float = 0.0) -> Tensor:
    """Nearest-neighbour resampling. `middle`: as for `nearest_positions`."""
    n = x.rank - 2
    factors = scales_of(scales, n)
    whole = _whole_factors(x, output_size, factors)
    if whole:
        return upsample(x, whole)
    wanted = _targets(x, output_size, factors)
    sizes = [refuse_free(d, "resampling") for d in x.shape[2:]]
    for i, (want, size, factor) in enumerate(zip(wanted, sizes, factors)):
        x = t.gather(x, t.constant(nearest_positions(size, want, factor, middle)), 2 + i)
    return x


def nearest_positions(size: int, want: int, factor: float | None, middle: float = 0.0) -> np.ndarray[Any, Any]:
    """Return the input position of each of `want` outputs. `middle`: 0.5 compares centres of positions, 0 their starts."""
    step = np.float32(1.0 / factor) if factor else np.float32(size) / np.float32(want)
    spots = (np.arange(want, dtype=np.float32) + np.float32(middle)) * step
    found: np.ndarray[Any, Any] = np.minimum(np.floor(spots).astype(np.int64), size - 1)
    return found


def interpolation_matrix(size: int, want: int, align: bool, factor: float | None) -> np.ndarray[Any, Any]:
    """Return the matrix [want, size] of linear interpolation."""
    if align:
        spots = np.arange(want) * ((size - 1) / (want - 1) if want > 1 else 0.0)
    else:
        spots = np.maximum((np.arange(want) + 0.5) * (1.0 / factor if factor else size / want) - 0.5, 0.0)
    low = np.minimum(np.floor(spots).astype(np.int64), size - 1)
    high, share = np.minimum(low + 1, size - 1), spots - low
    matrix = np.zeros((want, size))
    np.add.at(matrix, (np.arange(want), low), 1 - share)
    np.add.at(matrix, (np.arange(want), high), share)
    return matrix


def triangle_filter(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weight of the triangle filter (linear interpolation) at a distance x."""
    line: np.ndarray[Any, Any] = np.maximum(1 - np.abs(x), 0.0)
    return line


def cubic_filter(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weight of the cubic convolution filter (Keys 1981) with a = -0.5 at a distance x."""
    a, d = -0.5, np.abs(x)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, (((d - 5) * d + 8) * d - 4) * a
    return np.where(d < 1, near, np.where(d < 2, far, 0.0))


def filter_matrix(
    size: int, want: int, align: bool, factor: float | None, reach: int, weigh: Callable[[Any], Any]
) -> np.ndarray[Any, Any]:
    """Return the matrix [want, size] of a filter stretched by the downscaling factor, as in Pillow's resize."""
    step = (size - 1) / max(want - 1, 1) if align else 1.0 / factor if factor else size / want
    wide = max(step, 1.0)
    matrix = np.zeros((want, size))
    for i in range(want):
        center = step * (i + 0.5)
        low, high = max(int(center - reach * wide + 0.5), 0), min(int(center + reach * wide + 0.5), size)
        row = weigh((np.arange(low, high) - center + 0.5) / wide)
        matrix[i, low:high] = row / row.sum()
    return matrix


def upsample_filtered(reach: int, weigh: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """Return a builder of antialiased resizing: each output is a weighted mean of the inputs under the filter."""

    def build(x: Tensor, output_size: Any, align_corners: bool, *scales: Any) -> Tensor:
        factors = scales_of(scales, x.rank - 2)
        wanted = _targets(x, output_size, factors)
        sizes = [refuse_free(d, "resampling") for d in x.shape[2:]]
        return resample(
            x, [filter_matrix(s, w, align_corners, f, reach, weigh) for s, w, f in zip(sizes, wanted, factors)]
        )

    return build


upsample_linear_aa, upsample_cubic_aa = upsample_filtered(1, triangle_filter), upsample_filtered(2, cubic_filter)


def _between(x: Tensor, axis: int, times: int) -> Tensor:
    """Upsample an axis linearly by an integer factor, with clamped edges.

    Each input element yields `times` outputs, with the same weights at every position; the axis may be free.
    """
    size = x.shape[axis]
    before, after = (t.slice_axis(x, axis, i, i + 1) for i in (0, size - 1))
    left = t.concat([before, t.slice_axis(x, axis, 0, size - 1)], axis)
    right = t.concat([t.slice_axis(x, axis, 1, size), after], axis)
    spots = [(k + 0.5) / times - 0.5 for k in range(times)]
    parts = [t.expand_dims(x * (1 - abs(s)) + (left if s < 0 else right) * abs(s), axis + 1) for s in spots]
    return t.reshape(t.concat(parts, axis + 1), (*x.shape[:axis], size * times, *x.shape[axis + 1 :]))


def upsample_linear(x: Tensor, output_size: Any, align_corners: bool, *scales: Any) -> Tensor:
    """Linear interpolation along every spatial axis."""
    n = x.rank - 2
    factors = scales_of(scales, n)
    whole = _whole_factors(x, output_size, factors)
    if not align_corners and whole and any(isinstance(d, DimExpr) for d in x.shape[2:]):
        for i, times in enumerate(whole):
            x = x if times == 1 else _between(x, 2 + i, times)
        return x
    wanted = _targets(x, output_size, factors)
    sizes = [refuse_free(d, "resampling") for d in x.shape[2:]]
    return resample(x, [interpolation_matrix(s, w, align_corners, f) for s, w, f in zip(sizes, wanted, factors)])
