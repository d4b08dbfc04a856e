"""Functions that build the graph of ATen overloads that resample images: nearest neighbour, linear, cubic, antialiased,
at a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr
from ..common.sampling import grid_sample, tapped, weighted
from ..common.sizes import scaled_size, size_vector
from .aten_layout import upsample
from .aten_reduce import refuse_free


def resample(x: Tensor, matrices: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    """Image with each spatial axis of x[N, C, *S] multiplied by a constant matrix [out, in]."""
    for i, matrix in enumerate(matrices):
        x = weighted(x, 2 + i, matrix.astype(dtypes.numpy_dtype(x.dtype)))
    return x


def _targets(x: Tensor, output_size: Any, scales: Sequence[float | None]) -> list[Dim]:
    """Sizes to resample the spatial axes to. Raises UnsupportedError for a free size times a factor that is no multiple
    of 2^-30."""
    if output_size is not None:
        return [v if isinstance(v, DimExpr) else int(v) for v in output_size]
    return [_scaled(size, float(s or 1)) for size, s in zip(x.shape[2:], scales)]


def _scaled(size: Dim, factor: float) -> Dim:
    found = scaled_size(size, factor)
    return refuse_free(size, "resampling by a factor") if found is None else found


def _fixed_targets(x: Tensor, output_size: Any, scales: Sequence[float | None]) -> tuple[list[int], list[int]]:
    """(sizes to resample the spatial axes to, their sizes). Raises UnsupportedError for free sizes."""
    wanted = [refuse_free(v, "the size to resample to") for v in _targets(x, output_size, scales)]
    return wanted, [refuse_free(d, "resampling") for d in x.shape[2:]]


def scales_of(scales: Sequence[Any], n: int) -> list[float | None]:
    """Scale factor of each of n axes (None where not given), from `scales`: the factors themselves, or one list of
    them."""
    if len(scales) == 1 and isinstance(scales[0], list | tuple):
        return list(scales[0])
    return [*scales, *[None] * n][:n]


_GRID_MODES, _GRID_PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def grid_sampler(x: Tensor, grid: Tensor, mode: int = 0, padding: int = 0, align: bool = False) -> Tensor:
    """x[N, C, *S] sampled at grid[N, *O, n]; the result is [N, C, *O].

    `mode`: 0 linear, 1 nearest, 2 cubic. `padding`: 0 zeros, 1 border, 2 reflection. `align`: coordinates -1 and 1 are
    the centres of the outermost elements, not their outer edges.
    """
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
    """Nearest-neighbour resampling (`upsample_nearest`) that compares the centres of positions."""
    return upsample_nearest(x, output_size, *scales, middle=0.5)


def upsample_nearest(x: Tensor, output_size: Any, *scales: Any, middle: float = 0.0) -> Tensor:
    """Nearest-neighbour resampling of x[N, C, *S] to the spatial sizes `output_size`, or by the factors `scales` if
    that is None. `middle`: 0.5 compares the centres of input and output positions, 0 their starts."""
    n = x.rank - 2
    factors = scales_of(scales, n)
    whole = _whole_factors(x, output_size, factors)
    if whole:
        return upsample(x, whole)
    for i, (want, size, factor) in enumerate(zip(_targets(x, output_size, factors), x.shape[2:], factors)):
        if isinstance(want, int) and isinstance(size, int):
            index = t.constant(nearest_positions(size, want, factor, middle))
        else:
            index = _free_positions(size, want, factor, middle)
        x = t.gather(x, index, 2 + i)
    return x


def _free_positions(size: Dim, want: Dim, factor: float | None, middle: float) -> Tensor:
    """`nearest_positions` of free sizes, computed from them by the same steps in float32."""
    step = (
        size_vector(size, "float32") / size_vector(want, "float32") if not factor else float(np.float32(1.0 / factor))
    )
    spots = (t.cast(t.arange(want), "float32") + middle) * step
    return t.minimum(t.cast(t.floor(spots), "int64"), size_vector(size - 1, "int64"))


def nearest_positions(size: int, want: int, factor: float | None, middle: float = 0.0) -> np.ndarray[Any, Any]:
    """Return the input position (int64) of each of `want` outputs along an axis of `size` inputs.

    `factor`: outputs per input, by default want / size. `middle`: 0.5 compares centres of positions, 0 their starts.
    """
    step = np.float32(1.0 / factor) if factor else np.float32(size) / np.float32(want)
    spots = (np.arange(want, dtype=np.float32) + np.float32(middle)) * step
    found: np.ndarray[Any, Any] = np.minimum(np.floor(spots).astype(np.int64), size - 1)
    return found


def _neighbours(size: int, want: int, align: bool, factor: float | None) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the two input positions and weights, [want, 2] each, between which each output of linear interpolation
    lies.

    `align`: the first and last positions coincide. `factor`: outputs per input, by default want / size.
    """
    if align:
        spots = np.arange(want) * ((size - 1) / (want - 1) if want > 1 else 0.0)
    else:
        spots = np.maximum((np.arange(want) + 0.5) * (1.0 / factor if factor else size / want) - 0.5, 0.0)
    low = np.minimum(np.floor(spots).astype(np.int64), size - 1)
    high, share = np.minimum(low + 1, size - 1), spots - low
    return np.stack([low, high], 1), np.stack([1 - share, share], 1)


def interpolation_matrix(size: int, want: int, align: bool, factor: float | None) -> np.ndarray[Any, Any]:
    """Return the matrix [want, size] of linear interpolation; arguments as of `_neighbours`."""
    matrix = np.zeros((want, size))
    places, shares = _neighbours(size, want, align, factor)
    np.add.at(matrix, (np.arange(want)[:, None], places), shares)
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
    """Return the matrix [want, size] of a filter stretched by the downscaling factor, as in Pillow's resize.

    `align`: the first and last positions coincide. `factor`: outputs per input, by default want / size. `reach`: radius
    of the filter in input positions. `weigh`: weight of the filter at a distance.
    """
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
    """Return a function that builds antialiased resizing (ATen's arguments): each output is a weighted mean of the
    inputs under the filter.

    `reach`: radius of the filter in input positions. `weigh`: weight of the filter at a distance.
    """

    def build(x: Tensor, output_size: Any, align_corners: bool, *scales: Any) -> Tensor:
        factors = scales_of(scales, x.rank - 2)
        wanted, sizes = _fixed_targets(x, output_size, factors)
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
    """Linear interpolation of x[N, C, *S] to the spatial sizes `output_size`, or by the factors `scales` if
    `output_size` is None.

    `align_corners`: the first and last positions of input and output coincide.
    """
    n = x.rank - 2
    factors = scales_of(scales, n)
    whole = _whole_factors(x, output_size, factors)
    if not align_corners and whole and any(isinstance(d, DimExpr) for d in x.shape[2:]):
        for i, times in enumerate(whole):
            x = x if times == 1 else _between(x, 2 + i, times)
        return x
    for i, (size, want, factor) in enumerate(zip(x.shape[2:], _targets(x, output_size, factors), factors)):
        if isinstance(size, int) and isinstance(want, int):
            places, shares = _neighbours(size, want, align_corners, factor)
            x = tapped(x, 2 + i, places, shares.astype(dtypes.numpy_dtype(x.dtype)))
        else:
            x = _between_free(x, 2 + i, want, align_corners, factor)
    return x


def _between_free(x: Tensor, axis: int, want: Dim, align: bool, factor: float | None) -> Tensor:
    """Linear interpolation along an axis of free sizes, whose positions and weights (`_neighbours`) are computed from
    them."""
    size, wide = size_vector(x.shape[axis], "float64"), size_vector(want, "float64")
    at = t.cast(t.arange(want), "float64")
    if align:
        spots = at * t.where(t.gt(wide, 1.0), (size - 1) / t.maximum(wide - 1, 1.0), 0.0)
    else:
        spots = t.maximum((at + 0.5) * (1.0 / factor if factor else size / wide) - 0.5, 0.0)
    low = t.minimum(t.floor(spots), size - 1)
    high, share = t.minimum(low + 1, size - 1), spots - low
    line = [want if i == axis else 1 for i in range(x.rank)]
    parts = ((low, 1 - share), (high, share))
    left, right = (
        t.mul(t.gather(x, t.cast(place, "int64"), axis), t.cast(t.reshape(weight, line), x.dtype))
        for place, weight in parts
    )
    return t.add(left, right)
