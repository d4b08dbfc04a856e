"""Translates ONNX Resize: nearest modes as gathers (integer factors as broadcasts), interpolation as weights per axis.

Each output index of an axis maps to an input coordinate; interpolation combines the input elements around the
coordinate. Both depend only on sizes, so an axis is resized by constant indices or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, concrete
from ...errors import ShapeError
from ..common.einsum import positions
from ..common.sampling import weighted
from .node import Node, Result, operator
from .values import Array

#: Coordinate modes in which an integer factor r maps input element i to outputs i*r .. i*r + r - 1 for every size.
_LOCAL = ("asymmetric", "half_pixel", "pytorch_half_pixel")

_TRANSFORMATIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis to resize: input size, output size, scale and region of interest."""

    axis: int
    have: int
    want: int
    scale: float
    roi: tuple[float, float]


def _coordinates(mode: str, a: _Axis) -> Array:
    """Return the input coordinate of each output index (ONNX's coordinate_transformation_mode)."""
    x = np.arange(a.want, dtype=np.float64)
    width = a.scale * a.have
    if mode == "align_corners":
        return x * (a.have - 1) / (width - 1) if width != 1 else x * 0
    if mode == "asymmetric":
        return x / a.scale
    if mode == "tf_crop_and_resize":
        span = (a.roi[1] - a.roi[0]) * (a.have - 1)
        return a.roi[0] * (a.have - 1) + (x * span / (width - 1) if width != 1 else x * 0 + span / 2)
    # the shift is added first, as in ONNX's reference: rounding to a neighbour decides at whole numbers
    shift = a.have / 2 * (1 - a.want / width) if mode == "half_pixel_symmetric" else 0.0
    found = shift + (x + 0.5) / a.scale - 0.5
    return x * 0 - 0.5 if mode == "pytorch_half_pixel" and width == 1 else found


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _kernel(n: Node, scale: float, distance: Array) -> Array:
    """Return interpolation weights at signed distances from the coordinate; stretched by the scale for antialiasing."""
    d = np.abs(distance) * (min(scale, 1.0) if n.attr("antialias", 0) else 1.0)
    if n.attr("mode") == "linear":
        return np.clip(1 - d, 0, 1)
    a = n.attr("cubic_coeff_a", -0.75)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _matrix(n: Node, a: _Axis, x: Array) -> Array:
    """Return the interpolation matrix [want, have].

    Neighbours outside the input are clamped to the edge, or get weight 0 with exclude_outside.
    """
    reach = 1 if n.attr("mode") == "linear" else 2
    shrink = min(a.scale, 1.0) if n.attr("antialias", 0) else 1.0
    first = floor(-reach / shrink) + 1
    base = np.ceil(x) - 1
    out = np.zeros((a.want, a.have))
    weights = [_kernel(n, a.scale, base + i - x) for i in range(first, 2 - first)]
    for i, weight in zip(range(first, 2 - first), weights):
        place = (base + i).astype(np.int64)
        if n.attr("exclude_outside", 0):
            weight = np.where((place >= 0) & (place < a.have), weight, 0.0)
        np.add.at(out, (np.arange(a.want), np.clip(place, 0, a.have - 1)), weight)
    total = out.sum(axis=1, keepdims=True)
    return out / np.where(total == 0, 1.0, total)


def repeat(x: Tensor, axis: int, times: int) -> Tensor:
    """Tensor with each element of an axis repeated `times` times consecutively."""
    wide = t.expand_dims(x, axis + 1)
    wide = t.broadcast_to(wide, (*wide.shape[: axis + 1], times, *wide.shape[axis + 2 :]))
    return t.reshape(wide, (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]))


def _nearest_index(n: Node, a: _Axis) -> Array:
    x = _coordinates(n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS), a)
    rounding = _NEAREST[n.choice("nearest_mode", *_NEAREST)]
    return np.clip(rounding(x), 0, a.have - 1).astype(np.int64)


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


def _plan(n: Node, x: Tensor, axes: Sequence[int]) -> tuple[list[float], list[Dim]]:
    """Return (scales, output sizes) of the axes, from the operand `scales` or `sizes`."""
    have = [x.shape[a] for a in axes]
    scales = n.array(2).astype(np.float64).reshape(-1) if n.has(2) else np.zeros(0)
    if len(scales):
        if len(scales) != len(axes) or (scales <= 0).any():
            raise ShapeError(f"scales {scales.tolist()} for {len(axes)} axes")
        whole = [int(s) if s == int(s) else None for s in scales]
        wanted: list[Dim] = []
        for d, s, w in zip(have, scales, whole):
            if isinstance(d, DimExpr) and w is None:
                raise n.unsupported("fractional scale of a free dimension")
            wanted.append(d * w if w is not None else floor(concrete((d,))[0] * s))
        return scales.tolist(), wanted
    sizes = n.ints(3)
    ratios = [s / d for s, d in zip(sizes, concrete(tuple(have)))]
    policy = n.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    if policy == "stretch":
        return ratios, list(sizes)
    one = min(ratios) if policy == "not_larger" else max(ratios)
    return [one] * len(axes), [floor(one * d + 0.5) for d in concrete(tuple(have))]


@operator("Resize", limits="fractional scales of free dimensions")
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
        if isinstance(have, DimExpr) or isinstance(size, DimExpr):
            y = _resize_free(n, y, axis, scale)
            continue
        a = _Axis(axis, have, size, scale, (roi[i], roi[len(axes) + i]))
        n.context.check(t.zeros((size,), "int64"))
        y = _resize_axis(n, y, a)
        if crop:
            place = _coordinates("tf_crop_and_resize", a)
            beyond = n.context.constant((place < 0) | (place > have - 1))
            line = t.reshape(beyond, [size if j == axis else 1 for j in range(x.rank)])
            outside = line if outside is None else t.logical_or(outside, line)
    y = y if y.dtype == kind else t.cast(t.round(y), kind)
    return y if outside is None else t.where(outside, n.attr("extrapolation_value", 0.0), y)


def _resize_free(n: Node, x: Tensor, axis: int, scale: float) -> Tensor:
    """Resize a free axis by an integer factor, for nearest modes that repeat every element (checked on a sample)."""
    mode = n.choice("coordinate_transformation_mode", *_TRANSFORMATIONS)
    times = int(scale)
    if n.choice("mode", "nearest", "linear", "cubic") == "nearest" and mode in _LOCAL:
        sample = _nearest_index(n, _Axis(axis, 4, 4 * times, scale, (0.0, 1.0)))
        if np.array_equal(sample, np.repeat(np.arange(4), times)):
            return repeat(x, axis, times)
    raise n.unsupported("interpolation along a free dimension")


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
