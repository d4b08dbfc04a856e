"""Functions that build the graph of ATen backward overloads without a decomposition: convolutions, pools, resampling,
padding, weight norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import training_ops as g
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import volume
from ...errors import UnsupportedError
from ..common.sampling import whole_sizes
from . import aten_conv, aten_pool, aten_resample
from .aten_pointwise import number

Matrix = np.ndarray[Any, Any]


# ---------------------------------------------------------------- convolution
def convolution_backward(
    grad: Tensor, x: Tensor, w: Tensor, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the gradients of input, weight and bias; None where not wanted."""
    n = w.rank - 2
    if x.rank == n + 1:
        made = convolution_backward(t.expand_dims(grad, 0), t.expand_dims(x, 0), w, bias, stride, padding, dilation,
                                    transposed, output_padding, groups, wanted)  # fmt: skip
        return [None if made[0] is None else t.squeeze(made[0], 0), *made[1:]]
    stride, padding, dilation = ((list(v) * n)[:n] for v in (stride, padding, dilation))
    geometry = {"strides": stride, "pads": (*padding, *padding), "dilations": dilation, "groups": groups}
    found: list[Any] = [None, None, None]
    if wanted[0] and transposed:
        found[0] = aten_conv.convolution(grad, w, None, stride, padding, dilation, groups=groups)
    elif wanted[0]:
        if any(step > 1 and not isinstance(size, int) for step, size in zip(stride, x.shape[2:])):
            raise UnsupportedError("the gradient of a strided convolution over free dimensions")
        found[0] = g.conv_input_gradient(grad, w, shape=x.shape, **geometry)
    if wanted[1]:
        inner, outer = (grad, x) if transposed else (x, grad)
        whole_sizes((*w.shape, *outer.shape[2:]), "the gradient of a convolution's weight")
        found[1] = g.conv_weight_gradient(inner, outer, shape=w.shape, **geometry)
    if wanted[2]:
        found[2] = t.sum(grad, (0, *range(2, grad.rank)))
    return found


# ---------------------------------------------------------------- pooling
def max_pool_backward(n: int) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of max pooling over n axes (ATen's arguments).

    Each result's gradient is added at the position of its maximum. The last operand is the indices.
    """

    def build(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
        if x.rank == n + 1:
            return t.squeeze(build(*(t.expand_dims(v, 0) for v in (grad, x, rest[-1]))), 0)
        return g.max_pool_gradient(grad, rest[-1], shape=x.shape)

    return build


def adaptive_avg_pool_backward(n: int) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of adaptive average pooling over n axes (ATen's arguments)."""

    def build(grad: Tensor, x: Tensor) -> Tensor:
        if all(v == 1 for v in grad.shape[-n:]):
            count = number(volume(x.shape[-n:]))
            return t.broadcast_to(grad / (t.cast(count, grad.dtype) if isinstance(count, Tensor) else count), x.shape)
        sizes, made = (whole_sizes(v.shape[-n:], "the gradient of an adaptive pool") for v in (x, grad))
        return _spread(grad, [aten_pool.averaging_matrix(s, v) for s, v in zip(sizes, made)])

    return build


def avg_pool_backward(n: int) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of average pooling over n axes (ATen's arguments)."""

    def build(
        grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, counts_padding: bool,
        divisor: int | None,
    ) -> Tensor:  # fmt: skip
        sizes, made = (whole_sizes(v.shape[-n:], "the gradient of a pool") for v in (x, grad))
        kernel, padding = aten_conv.each(kernel, n), aten_conv.each(padding, n)
        steps = aten_conv.each(stride, n) if stride else kernel
        shares = [_shares(*spot, counts_padding) for spot in zip(sizes, made, kernel, steps, padding)]
        if divisor:
            shares = [(m > 0).astype(m.dtype) for m in shares]
        spread = _spread(grad, shares)
        return spread * (1.0 / divisor) if divisor else spread

    return build


def _shares(size: int, made: int, kernel: int, step: int, padding: int, counts_padding: bool) -> Matrix:
    """Return the matrix [made, size] of average pooling along an axis."""
    first = (np.arange(made) * step - padding)[:, None]
    last = np.minimum(first + kernel, size + padding)
    spots = np.arange(size)[None]
    counts = last - first if counts_padding else np.minimum(last, size) - np.maximum(first, 0)
    shares: Matrix = ((spots >= first) & (spots < last)) / counts
    return shares


def _spread(grad: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Return the gradient of the input of `aten_resample.resample` with these matrices [out, in]; grad[N, C, *S] or [C,
    *S]."""
    if grad.rank == len(matrices) + 1:
        return t.squeeze(_spread(t.expand_dims(grad, 0), matrices), 0)
    return aten_resample.resample(grad, [m.T for m in matrices])


# ---------------------------------------------------------------- resampling
def upsample_backward(matrix: Callable[[int, int, bool, float | None], Matrix]) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of an image that was resized by interpolation, with the arguments of
    ATen's `upsample_*_backward`: (gradient of the result, sizes of the result, shape of the image, ...).

    `matrix`: (size, output size, whether corners are aligned, factor or None) -> matrix [output size, size] by which an
    axis of the image was multiplied.
    """

    def build(
        grad: Tensor, made: Sequence[Any], shape: Sequence[Any], align_corners: bool, *scales: float | None
    ) -> Tensor:
        sizes, wanted = (whole_sizes(v, "the gradient of resampling") for v in (shape[2:], made))
        factors = aten_resample.scales_of(scales, len(sizes))
        return _spread(grad, [matrix(s, w, align_corners, f) for s, w, f in zip(sizes, wanted, factors)])

    return build


def upsample_nearest_backward(middle: float) -> Callable[..., Tensor]:
    """Return a function that builds the gradient of nearest-neighbour resampling (ATen's arguments). `middle`: 0.5
    compares the centres of input and output positions, 0 their starts."""

    def build(grad: Tensor, made: Sequence[Any], shape: Sequence[Any], *scales: float | None) -> Tensor:
        sizes, wanted = (whole_sizes(v, "the gradient of resampling") for v in (shape[2:], made))
        factors = aten_resample.scales_of(scales, len(sizes))
        times = [w // s for s, w in zip(sizes, wanted)]
        if all(w == k * s and f in (None, k) for s, w, k, f in zip(sizes, wanted, times, factors)):
            blocks = t.reshape(grad, (*grad.shape[:2], *(v for pair in zip(sizes, times) for v in pair)))
            return t.sum(blocks, tuple(range(3, blocks.rank, 2)))
        lines = [aten_resample.nearest_positions(s, w, f, middle) for s, w, f in zip(sizes, wanted, factors)]
        return _spread(grad, [np.eye(size)[line] for size, line in zip(sizes, lines)])

    return build


def filtered(reach: int, weigh: Callable[[Any], Any]) -> Callable[[int, int, bool, float | None], Matrix]:
    """Returns a function that gives the interpolation matrix of an antialiasing filter along one axis, for
    `upsample_backward`.

    Its arguments: size of the input and of the output, whether corners are aligned, scale factor (None: from the
    sizes). `reach`: radius of the filter in input positions. `weigh`: weight of the filter at a distance.
    """
    return lambda size, want, align, factor: aten_resample.filter_matrix(size, want, align, factor, reach, weigh)


def replication_pad_backward(grad: Tensor, x: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the gradient of the input of edge padding: gradients of the padding are added to those of the edges.

    Raises UnsupportedError for negative widths.
    """
    for back in range(len(widths) // 2):
        axis, low, high = grad.rank - 1 - back, widths[2 * back], widths[2 * back + 1]
        size = grad.shape[axis]
        (kept,) = whole_sizes(x.shape[axis : axis + 1], "the gradient of padding")
        if low < 0 or high < 0:
            raise UnsupportedError("the gradient of cropping by padding")
        inner = t.slice_axis(grad, axis, low, low + kept)
        for start, stop, at in ((0, low, 0), (low + kept, size, kept - 1)):
            if stop != start:
                edge = t.sum(t.slice_axis(grad, axis, start, stop), axis, True)
                room = [(at, kept - 1 - at) if a == axis else (0, 0) for a in range(grad.rank)]
                inner = inner + t.pad(edge, room)
        grad = inner
    return grad


# ---------------------------------------------------------------- losses, embeddings, elementwise
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Tensor:
    """Return the gradient of `nll_loss`: elementwise along the classes, so that it is fused with the gradient of a
    log-softmax, instead of a scatter into zeros."""
    if x.rank == 1:
        made = nll_loss_backward(
            grad, t.expand_dims(x, 0), t.reshape(target, (1,)), weight, reduction, ignore_index, total
        )
        return t.squeeze(made, 0)
    kept = t.ne(target, ignore_index)
    share = -(t.div(grad, t.cast(total, grad.dtype)) if reduction == 1 else grad)
    if weight is not None:
        share = share * t.gather(weight, t.where(kept, target, 0), 0)
    share = t.where(kept, share, t.full((1,) * target.rank, 0.0, grad.dtype))
    chosen = t.eq(t.iota(x.shape, 1, target.dtype), t.expand_dims(target, 1))
    return t.where(chosen, t.expand_dims(share, 1), t.full((1,) * x.rank, 0.0, grad.dtype))


def embedding_backward(grad: Tensor, indices: Tensor, rows: Any, padding_idx: int, scale: bool) -> Tensor:
    """Return the gradient of an embedding's table of `rows` rows.

    Rows of `grad` whose index is `padding_idx` are left out. Raises UnsupportedError for gradients that are divided by
    the frequencies of indices (`scale`).
    """
    if scale:
        raise UnsupportedError("gradients of an embedding that are scaled by frequency")
    shape = (*whole_sizes((rows,), "the gradient of an embedding"), grad.shape[-1])
    return g.embedding_gradient(grad, indices, shape=shape, skipped=max(padding_idx, -1))


def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> list[Tensor]:
    """Return the gradients of direction v and length g of the weight g * v / |v|, norms over all axes but `dim`."""
    axes = tuple(a for a in range(v.rank) if a != dim % v.rank)
    norms = t.cast(norms, grad.dtype)
    along = t.sum(grad * v, axes, True) / norms
    return [(g / norms) * (grad - v * (along / norms)), along]


def shrink_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    """Return the gradient of hard and soft shrinking: 0 where |x| <= limit, else `grad`."""
    return t.where(t.le(t.abs(x), limit), t.full((1,) * grad.rank, 0.0, grad.dtype), grad)


BACKWARD: dict[str, Callable[..., Any]] = {
    "convolution_backward.default": convolution_backward,
    **{f"max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d_backward.default": max_pool_backward(n) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward.default": adaptive_avg_pool_backward(n) for n in (2, 3)},
    **{f"avg_pool{n}d_backward.default": avg_pool_backward(n) for n in (2, 3)},
    **{f"upsample_nearest{n}d_backward.default": upsample_nearest_backward(0.0) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d_backward.default": upsample_nearest_backward(0.5) for n in (1, 2, 3)},
    **{
        f"upsample_{kind}_backward.default": upsample_backward(aten_resample.interpolation_matrix)
        for kind in ("linear1d", "bilinear2d", "trilinear3d")
    },
    "_upsample_bilinear2d_aa_backward.default": upsample_backward(filtered(1, aten_resample.triangle_filter)),
    "_upsample_bicubic2d_aa_backward.default": upsample_backward(filtered(2, aten_resample.cubic_filter)),
    **{f"replication_pad{n}d_backward.default": replication_pad_backward for n in (1, 2, 3)},
    "_weight_norm_interface_backward.default": weight_norm_backward,
    "embedding_dense_backward.default": embedding_backward,
    **dict.fromkeys(("nll_loss_backward.default", "nll_loss2d_backward.default"), nll_loss_backward),
    **dict.fromkeys(("hardshrink_backward.default", "softshrink_backward.default"), shrink_backward),
}

__all__ = ["BACKWARD"]
