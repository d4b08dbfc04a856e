"""Functions that build the graph of ATen pooling overloads. They take the arguments of the ATen schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.composites import training_ops as g
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, concrete, volume
from .aten_conv import Ints, each
from .aten_create import neutral
from .aten_pointwise import number
from .aten_reduce import refuse_free
from .aten_resample import resample
from .missing import Missing


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
    """Return a function for operands [N, C, *S] and [C, *S] with `n` spatial axes, from `build`, which takes [N, C,
    *S]."""

    def run(x: Tensor, *args: Any, **named: Any) -> Any:
        if x.rank == n + 2:
            return build(x, *args, **named)
        out = build(t.expand_dims(x, 0), *args, **named)
        if isinstance(out, list):
            return [t.squeeze(o, 0) if isinstance(o, Tensor) else o for o in out]
        return t.squeeze(out, 0)

    return run


def max_pool(n: int) -> Callable[..., Tensor]:
    """Return a function that builds max pooling over n spatial axes (ATen's arguments)."""

    def build(
        x: Tensor, kernel: Ints, stride: Any = (), padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False
    ) -> Tensor:
        return c.max_pool(x, **_pool_attrs(x, n, kernel, stride, padding, dilation, ceil_mode))

    return batched(n, build)


def max_pool_indices(n: int) -> Callable[..., list[Any]]:
    """Return a function that builds [max pooling over n spatial axes, flat index of each window's first maximum]
    (ATen's arguments)."""

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
    if dtypes.is_float(x.dtype) and all(isinstance(d, int) for d in x.shape):
        return g.max_pool_indices(x, kernel=kernel, strides=strides, pads=pads, dilations=dilations)
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
    """Return a function that builds max unpooling over n spatial axes: the values at the indices that max pooling
    returned, zeros elsewhere (ATen's arguments)."""

    def build(x: Tensor, indices: Tensor, output_size: Sequence[Dim], *_: Any) -> Tensor:
        lead, count, room = x.shape[: x.rank - n], volume(x.shape[x.rank - n :]), tuple(output_size)
        zeros = t.zeros((*lead, volume(room)), x.dtype)
        spots, values = t.reshape(indices, (*lead, count)), t.reshape(x, (*lead, count))
        return t.reshape(t.scatter_elements(zeros, spots, values, x.rank - n, "set"), (*lead, *room))

    return build


def avg_pool(n: int) -> Callable[..., Tensor]:
    """Return a function that builds average pooling over n spatial axes (ATen's arguments)."""

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
    """Return a function that builds adaptive average pooling over n spatial axes (ATen's arguments): the windows are
    chosen to yield the requested size."""

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
    """Return a function that builds [adaptive max pooling over n spatial axes, flat index of each maximum] (ATen's
    arguments).

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
