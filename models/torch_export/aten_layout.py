"""Functions that build the graph of ATen overloads that join, repeat, roll, pad or overwrite tensors. They take the
arguments of the ATen schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, volume
from ...errors import UnsupportedError
from .aten_pointwise import number, result_dtype
from .aten_views import bound


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors concatenated along the axis `dim`. Empty vectors are ignored, as in PyTorch."""
    dtype = result_dtype(*tensors)
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    return t.concat([t.cast(x, dtype) for x in kept], dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors stacked along a new axis `dim`."""
    dtype = result_dtype(*tensors)
    return t.stack([t.cast(x, dtype) for x in tensors], dim)


def _spread(x: Tensor, factors: Sequence[Dim], after: bool) -> Tensor:
    """Repeat every axis: element by element if `after`, otherwise as a whole."""
    inner: list[Dim] = []
    wide: list[Dim] = []
    for size, factor in zip(x.shape, factors, strict=True):
        one = isinstance(factor, int) and factor == 1
        inner += [size] if one else [size, 1] if after else [1, size]
        wide += [size] if one else [size, factor] if after else [factor, size]
    final = [size * factor for size, factor in zip(x.shape, factors)]
    return t.reshape(t.broadcast_to(t.reshape(x, inner), wide), final)


def repeat(x: Tensor, repeats: Sequence[Dim]) -> Tensor:
    """x tiled along each axis; leading axes are added."""
    x = t.with_rank(x, len(repeats))
    return _spread(x, [1] * (x.rank - len(repeats)) + list(repeats), after=False)


def repeat_interleave(x: Tensor, repeats: Dim, dim: int | None = None, output_size: Any = None) -> Tensor:
    """x with each element of the axis `dim` repeated `repeats` times, consecutively; None: of the flattened tensor.
    `output_size` is ignored."""
    x, dim = (t.reshape(x, (-1,)), 0) if dim is None else (x, dim % x.rank)
    return _spread(x, [repeats if i == dim else 1 for i in range(x.rank)], after=True)


def upsample(x: Tensor, factors: Sequence[int]) -> Tensor:
    """Nearest-neighbour upsampling of the spatial axes by integer factors."""
    return _spread(x, [1, 1, *factors], after=True)


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    """Return x rotated along axes (NumPy's roll)."""
    if volume(x.shape) == 0:
        return x
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        return t.reshape(roll(t.reshape(x, (-1,)), moves[0], 0), x.shape)
    for shift, axis in zip(moves, axes, strict=True):
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(shift, int):  # the shift may be larger than the size
            places = t.sub(t.iota((size,), 0), number(shift))
            x = t.gather(x, t.mod(places, number(size)), axis)
        elif cut := (-shift) % size:
            x = t.concat([t.slice_axis(x, axis, cut, size), t.slice_axis(x, axis, 0, cut)], axis)
    return x


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x with the axes `dims` reversed."""
    for axis in dims:
        x = t.flip(x, axis) if x.rank else x
    return x


def _cut(width: Dim) -> int:
    """Return the number of elements that a negative padding width removes."""
    return -width if isinstance(width, int) and width < 0 else 0


def constant_pad(x: Tensor, widths: Sequence[Dim], value: float = 0) -> Tensor:
    """x padded with the number `value`. Widths are pairs from the last axis on; negative widths crop.

    Raises UnsupportedError for a number that x's integers cannot have.
    """
    if dtypes.category(x.dtype) == "int" and not dtypes.least(x.dtype) <= value <= dtypes.greatest(x.dtype):
        raise UnsupportedError(f"padding of {x.dtype} with {value}")
    value = dtypes.nearest(value, x.dtype)
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
    for back, (lo, hi) in enumerate(pairs):
        axis = x.rank - 1 - back
        x = t.slice_axis(x, axis, _cut(lo), x.shape[axis] - _cut(hi))
        x = t.pad(x, [(lo + _cut(lo), hi + _cut(hi)) if a == axis else (0, 0) for a in range(x.rank)], value)
    return x


def edge_pad(mode: str) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Return a function (x, widths) that pads with values of x; `mode` is NumPy's, such as 'reflect', 'edge' or 'wrap'.

    Widths are pairs from the last axis on. The function raises UnsupportedError for an axis of free size.
    """

    def build(x: Tensor, widths: Sequence[int]) -> Tensor:
        for back in range(len(widths) // 2):
            axis, lo, hi = x.rank - 1 - back, widths[2 * back], widths[2 * back + 1]
            size = x.shape[axis]
            if not isinstance(size, int):
                raise UnsupportedError(f"{mode} padding of the free dimension {size}", hint="bind it: dims={...}")
            line = np.pad(np.arange(size), (max(lo, 0), max(hi, 0)), mode=mode)  # type: ignore[call-overload]
            line = line[max(-lo, 0) : len(line) - max(-hi, 0)]
            x = t.gather(x, t.constant(line.astype(np.int64)), axis)
        return x

    return build


def slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Tensor:
    """Return x with the slice start..end (by `step`) of the axis `dim` replaced by `source`."""
    axis = dim % x.rank
    size = x.shape[axis]
    lo, hi = bound(start, size, 0), bound(end, size, size)
    source = t.cast(source, x.dtype)
    if step == 1:
        parts = [t.slice_axis(x, axis, 0, lo), source, t.slice_axis(x, axis, hi, size)]
        kept = [p for p in parts if not (isinstance(p.shape[axis], int) and p.shape[axis] == 0)]
        return t.concat(kept or parts[:1], axis)
    index = t.iota(source.shape, axis) * step + number(lo)
    return t.scatter_elements(x, index, source, axis)


def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Return x with the position `index` of the axis `dim` replaced by `source`."""
    at = index + x.shape[dim] if index < 0 else index
    return slice_scatter(x, t.expand_dims(source, dim % x.rank), dim, at, at + 1)
