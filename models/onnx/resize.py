"""Translates ONNX Resize: nearest modes as gathers (integer factors as broadcasts), interpolation as weights per axis.

Each output index of an axis maps to an input coordinate; interpolation combines the input elements around the
coordinate. Both depend only on sizes, so an axis is resized by constant indices or weights; along a free axis, these
are computed from its sizes, by the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import floor
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, concrete
from ...errors import ShapeError
from ..common.einsum import positions
from ..common.sampling import weighted
from ..common.sizes import scaled_size, size_vector
from .node import Node, Result, operator
from .values import Array

#: Coordinate modes in which an integer factor r maps input element i to outputs i*r .. i*r + r - 1 for every size.
_LOCAL = ("asymmetric", "half_pixel", "pytorch_half_pixel")

_TRANSFORMATIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis to resize. `have`, `want` and `scale`: input size, output size and scale, numbers or float64 [1] where
    the axis is free. `places`: the output indices as float64 [want], an array or a tensor. `roi`: region of
    interest."""

    axis: int
    have: Any
    want: Any
    scale: Any
    places: Any
    roi: tuple[float, float] = (0.0, 1.0)


def _known_axis(axis: int, have: int, want: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)) -> _Axis:
    return _Axis(axis, have, want, scale, np.arange(want, dtype=np.float64), roi)


def _free_axis(axis: int, have: Dim, want: Dim, scale: float | None) -> _Axis:
    """`scale`: None for the quotient of the sizes."""
    a, b = (size_vector(d, "float64") for d in (have, want))
    return _Axis(axis, a, b, b / a if scale is None else scale, t.cast(t.arange(want), "float64"))


def _library(x: Any) -> Any:
    """What computes with x: NumPy, or the builders, which have the same names."""
    return t if isinstance(x, Tensor) else np


def _if_one(width: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`one` where a width is 1, else `other`; only one of them is called for a number."""
    if isinstance(width, Tensor):
        return t.where(t.eq(width, 1.0), one(), other())
    return one() if width == 1 else other()


def _coordinates(mode: str, a: _Axis) -> Any:
    """Return the input coordinate of each output index (ONNX's coordinate_transformation_mode)."""
    x, width = a.places, a.scale * a.have
    if mode == "align_corners":
        return _if_one(width, lambda: x * 0, lambda: x * (a.have - 1) / (width - 1))
    if mode == "asymmetric":
        return x / a.scale
    if mode == "tf_crop_and_resize":
        span = (a.roi[1] - a.roi[0]) * (a.have - 1)
        return a.roi[0] * (a.have - 1) + _if_one(width, lambda: x * 0 + span / 2, lambda: x * span / (width - 1))
    # the shift is added first, as in ONNX's reference: rounding to a neighbour decides at whole numbers
    shift = a.have / 2 * (1 - a.want / width) if mode == "half_pixel_symmetric" else 0.0
    found = shift + (x + 0.5) / a.scale - 0.5
    return _if_one(width, lambda: x * 0 - 0.5, lambda: found) if mode == "pytorch_half_pixel" else found


_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: _library(x).ceil(x - 0.5),
    "round_prefer_ceil": lambda x: _library(x).floor(x + 0.5),
    "floor": lambda x: _library(x).floor(x),
    "ceil": lambda x: _library(x).ceil(x),
}


def _kernel(n: Node, shrink: float, distance: Any) -> Any:
    """Return interpolation weights at signed distances from the coordinate, which are multiplied by `shrink`."""
    lib = _library(distance)
    d = lib.abs(distance) * shrink
    if n.attr("mode") == "linear":
        return lib.maximum(1 - d, 0.0)
    a = n.attr("cubic_coeff_a", -0.75)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return lib.where(d <= 1, near, lib.where(d < 2, far, 0.0))


def _neighbours(n: Node, a: _Axis, x: Any) -> list[tuple[Any, Any]]:
    """Return (place, weight) of each input element around the coordinates x that interpolation reads. Places may lie
    outside of the input, where the weight is 0 with exclude_outside."""
    shrink = 1.0
    if n.attr("antialias", 0):
        if isinstance(a.scale, Tensor):
            raise n.unsupported("antialias along a free dimension without a scale")
        shrink = min(a.scale, 1.0)
    first = floor(-(1 if n.attr("mode") == "linear" else 2) / shrink) + 1
    lib, base, found = _library(x), _library(x).ceil(x) - 1, []
    for i in range(first, 2 - first):
        place, weight = base + i, _kernel(n, shrink, base + i - x)
        if n.attr("exclude_outside", 0):
            weight = lib.where(lib.logical_and(place >= 0, place <= a.have - 1), weight, 0.0)
        found.append((place, weight))
    return found


def _matrix(n: Node, a: _Axis, x: Array) -> Array:
    """Return the interpolation matrix [want, have]. Neighbours outside the input are clamped to the edge."""
    out = np.zeros((a.want, a.have))
    for place, weight in _neighbours(n, a, x):
        np.add.at(out, (np.arange(a.want), np.clip(place, 0, a.have - 1).astype(np.int64)), weight)
    total = out.sum(axis=1, keepdims=True)
    return out / np.where(total == 0, 1.0, total)


def repeat(x: Tensor, axis: int, times: int) -> Tensor:
    """Tensor with each element of an axis repeated `times` times consecutively."""
    wide = t.expand_dims(x, axis + 1)
    wide = t.broadcast_to(wide, (*wide.shape[: axis + 1], times, *wide.shape[axis + 2 :]))
    return t.reshape(wide, (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]))


def _nearest_index(n: Node, a: _Axis) -> Any:
    """Return the input index (int64) of each output index."""
    x = _coordinates(n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS), a)
    place = _NEAREST[n.choice("nearest_mode", *_NEAREST)](x)
    if isinstance(place, Tensor):
        return t.cast(_inside(place, a), "int64")
    return np.clip(place, 0, a.have - 1).astype(np.int64)


def _inside(place: Tensor, a: _Axis) -> Tensor:
    """Places as those of the nearest elements of the input."""
    return t.minimum(t.maximum(place, 0.0), a.have - 1)


def _resize_axis(n: Node, x: Tensor, a: _Axis) -> Tensor:
    if n.choice("mode", "nearest", "linear", "cubic") == "nearest":
        index = _nearest_index(n, a)
        times = a.want // a.have if a.have and a.want % a.have == 0 else 0
        if times and np.array_equal(index, np.repeat(np.arange(a.have), times)):
            return repeat(x, a.axis, times)
        return t.gather(x, n.context.constant(index), a.axis)
    n.context.check(t.zeros((a.want, a.have), "float64"))
    weights = _matrix(n, a, _coordinates(n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS), a))
    kind = x.dtype if dtypes.is_float(x.dtype) else "float32"
    return weighted(t.cast(x, kind), a.axis, weights.astype(dtypes.numpy_dtype(kind)))


def _resize_free(n: Node, x: Tensor, axis: int, want: Dim, scale: float | None) -> Tensor:
    """Resize an axis whose size before or after is free. Indices and weights are computed from the sizes, except for
    nearest modes that repeat every element a whole number of times at every size (checked on a sample)."""
    mode = n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS)
    if mode == "tf_crop_and_resize":
        raise n.unsupported("tf_crop_and_resize along a free dimension")
    have = x.shape[axis]
    times = int(scale) if scale is not None and want == have * int(scale) else 0
    if n.choice("mode", "nearest", "linear", "cubic") == "nearest":
        if times and mode in _LOCAL:
            sample = _nearest_index(n, _known_axis(axis, 4, 4 * times, float(times)))
            if np.array_equal(sample, np.repeat(np.arange(4), times)):
                return repeat(x, axis, times)
        return t.gather(x, _nearest_index(n, _free_axis(axis, have, want, scale)), axis)
    a = _free_axis(axis, have, want, scale)
    kind = x.dtype if dtypes.is_float(x.dtype) else "float32"
    x, line = t.cast(x, kind), [want if i == axis else 1 for i in range(x.rank)]
    taps = _neighbours(n, a, _coordinates(mode, a))
    if n.attr("exclude_outside", 0) or n.attr("antialias", 0):
        total = reduce(t.add, [weight for _, weight in taps])
        taps = [(place, weight / t.where(t.eq(total, 0.0), 1.0, total)) for place, weight in taps]
    parts = []
    for place, weight in taps:
        share = t.reshape(t.cast(weight, kind), line)
        read = t.gather(x, t.cast(_inside(place, a), "int64"), axis)
        parts.append(t.where(t.eq(share, 0.0), 0.0, t.mul(read, share)))  # infinities without a weight are not read
    return reduce(t.add, parts)


def _scaled(n: Node, size: Dim, scale: float) -> Dim:
    """Return the product of a size and a scale, rounded down (`scaled_size`)."""
    found = scaled_size(size, scale)
    if found is None:
        raise n.unsupported(f"the scale {scale} of a free dimension")
    return found


def _plan(n: Node, x: Tensor, axes: Sequence[int]) -> tuple[list[float | None], list[Dim]]:
    """Return (scales, output sizes) of the axes, from the operand `scales` or `sizes`. A scale is None where it is the
    quotient of sizes that are free and no number."""
    have = [x.shape[a] for a in axes]
    scales = n.array(2).astype(np.float64).reshape(-1) if n.has(2) else np.zeros(0)
    if len(scales):
        if len(scales) != len(axes) or not (scales > 0).all() or not np.isfinite(scales).all():
            raise ShapeError(f"scales {scales.tolist()} for {len(axes)} axes")
        return [*map(float, scales)], [_scaled(n, d, float(s)) for d, s in zip(have, scales)]
    sizes = n.dims(3)
    if len(sizes) != len(axes):
        raise ShapeError(f"sizes {sizes} for {len(axes)} axes")
    policy = n.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    if any(isinstance(d, DimExpr) for d in (*sizes, *have)):
        if policy != "stretch":
            raise n.unsupported(f"keep_aspect_ratio_policy {policy} with free dimensions")
        return [_quotient(s, d) for s, d in zip(sizes, have)], list(sizes)
    if 0 in have:
        raise ShapeError(f"sizes {sizes} of {x.type}, which has no elements")
    ratios = [s / d for s, d in zip(concrete(sizes), concrete(tuple(have)))]
    if policy == "stretch":
        return [*ratios], list(sizes)
    one = min(ratios) if policy == "not_larger" else max(ratios)
    return [one] * len(axes), [floor(one * d + 0.5) for d in concrete(tuple(have))]


def _quotient(want: Dim, have: Dim) -> float | None:
    """Return want / have if it is the same number at all sizes; None otherwise."""
    if not isinstance(want, DimExpr) and not isinstance(have, DimExpr):
        return want / have
    times = want // have if have != 0 else 0
    return float(times) if isinstance(times, int) and times * have == want else None


@operator("Resize", limits="antialias, cropping and aspect ratios of free dimensions, in part")
def _resize(n: Node) -> Result:
    x = n.x()
    axes = n.axes(9, x.rank) or tuple(range(x.rank))
    n.choice("mode", "nearest", "linear", "cubic")  # also where no axis changes
    scales, sizes = _plan(n, x, axes)
    whole = [sizes[axes.index(i)] if i in axes else d for i, d in enumerate(x.shape)]
    n.context.check(t.zeros(whole, x.dtype))  # size check before any index or matrix is created
    crop = n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS) == "tf_crop_and_resize"
    roi = n.array(1).reshape(-1).tolist() if crop else [0.0] * len(axes) + [1.0] * len(axes)
    outside: Tensor | None = None
    kind, y = x.dtype, x
    for i, (axis, scale, size) in enumerate(zip(axes, scales, sizes)):
        have = x.shape[axis]
        if scale == 1.0 and have == size and not crop:
            continue
        if scale is None or isinstance(have, DimExpr) or isinstance(size, DimExpr):
            y = _resize_free(n, y, axis, size, scale)
            continue
        a = _known_axis(axis, have, size, scale, (roi[i], roi[len(axes) + i]))
        n.context.check(t.zeros((size,), "int64"))
        y = _resize_axis(n, y, a)
        if crop:
            place = _coordinates("tf_crop_and_resize", a)
            beyond = n.context.constant((place < 0) | (place > have - 1))
            line = t.reshape(beyond, [size if j == axis else 1 for j in range(x.rank)])
            outside = line if outside is None else t.logical_or(outside, line)
    y = y if y.dtype == kind else t.cast(t.round(y), kind)
    return y if outside is None else t.where(outside, n.attr("extrapolation_value", 0.0), y)


@operator("AffineGrid")
def _affine_grid(n: Node) -> Result:
    theta, size = n.x(0), n.ints(1)
    space = size[2:]
    count = len(space)
    shape = tuple(space)
    axes = []
    for i, extent in enumerate(space):
        steps = extent - 1 if n.attr("align_corners", 0) else extent
        shift = -1.0 if n.attr("align_corners", 0) else 1.0 / extent - 1.0
        place = positions(t.zeros(shape, "int64"), i)
        line = t.cast(place, theta.dtype) * (2.0 / max(steps, 1)) + shift
        axes.append(t.reshape(t.broadcast_to(line, shape), (-1, 1)))
    grid = t.concat([*reversed(axes), t.ones((axes[0].shape[0], 1), theta.dtype)], 1)  # coordinate order x, y, z
    out = t.matmul(t.with_rank(grid, 3), t.transpose(theta))
    return t.reshape(out, (theta.shape[0], *space, count))
