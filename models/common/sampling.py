"""Builds grid sampling (interpolation at computed coordinates) and running scans (cumulative sums, products, extremes).

Shared by the operators of several formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, concrete
from ...errors import UnsupportedError

#: Coefficient a of the cubic convolution kernel (Keys 1981); PyTorch and ONNX use this value.
_CUBIC = -0.75

Tap = tuple[Tensor, Tensor]  # (integer coordinates stored as floats, interpolation weights) of one neighbour
Kept = tuple[Tensor, Tensor, Tensor]  # (clamped int64 indices, interpolation weights, whether inside the tensor)


def whole_sizes(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Return a shape as ints. Raises UnsupportedError, which names `what`, if a dimension is free."""
    if not all(isinstance(d, int) for d in shape):
        raise UnsupportedError(f"{what} over free dimensions", hint="bind them: dims={...}")
    return concrete(tuple(shape))


# ---------------------------------------------------------------- resampling by constant weights
_FEW = 9  # nonzero weights of a row that are single terms; more are one sum, whose kernel reads along the axis


def weighted(x: Tensor, axis: int, matrix: np.ndarray[Any, Any]) -> Tensor:
    """x with an axis multiplied by a constant matrix [out, in], of x's dtype.

    Only the elements with a weight other than 0 are read, so infinities and NaN reach no other results.
    """
    used = matrix != 0
    width = int(used.sum(1).max(initial=0))
    if used.all():
        last = t.swapaxes(x, axis, x.rank - 1)
        return t.swapaxes(t.matmul(last, t.constant(matrix.T)), axis, x.rank - 1)
    found = tapped(x, axis, *_taps(matrix, used, max(width, 1)))
    filled = used.any(1)
    line = [len(filled) if i == axis else 1 for i in range(x.rank)]
    return found if filled.all() else t.where(t.constant(filled.reshape(line)), found, 0)


def tapped(x: Tensor, axis: int, places: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> Tensor:
    """x with an axis replaced by sums of elements: at `places` [out, n] of the axis, times `shares` [out, n], of x's
    dtype."""
    count, width = places.shape
    line = [count if i == axis else 1 for i in range(x.rank)]
    if width <= _FEW:
        alike: dict[bytes, list[int]] = {}  # columns of equal weights, which multiply one sum
        for k in range(width):
            alike.setdefault(shares[:, k].tobytes(), []).append(k)
        picked = lambda k: t.gather(x, t.constant(places[:, k].copy()), axis)
        parts = [(reduce(t.add, map(picked, found)), shares[:, found[0]]) for found in alike.values()]
        return reduce(t.add, [t.mul(total, t.constant(share.reshape(line))) for total, share in parts])
    shape = (*x.shape[:axis], count, width, *x.shape[axis + 1 :])
    spread = t.reshape(t.gather(x, t.constant(places.reshape(-1)), axis), shape)
    weights = shares.reshape((*line[: axis + 1], width, *line[axis + 1 :]))
    return t.sum(t.mul(spread, t.constant(weights)), axis + 1)


def _taps(
    matrix: np.ndarray[Any, Any], used: np.ndarray[Any, Any], width: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return places and weights [out, width] of the nonzero elements of each row. A row with fewer repeats its last
    element, whose weight is divided among the copies."""
    order = np.argsort(~used, axis=1, kind="stable")
    at, count = np.arange(width), np.maximum(used.sum(1, keepdims=True), 1)
    places = np.take_along_axis(order, np.minimum(at, count - 1), 1)
    copies = np.where(at >= count - 1, width - count + 1, 1)
    return places, (np.take_along_axis(matrix, places, 1) / copies).astype(matrix.dtype)


# ---------------------------------------------------------------- grid sampling
def _reflected(at: Tensor, low: float, span: float) -> Tensor:
    """Reflect coordinates back into [low, low + span]."""
    if span == 0:
        return at * 0.0
    folded = t.mod(t.abs(at - low), 2 * span)
    return t.minimum(folded, 2 * span - folded) + low


def _inside(at: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Map coordinates into the tensor according to the padding mode, NaN to 0; 'zeros' leaves them unchanged."""
    if padding == "zeros":
        return at
    if padding == "reflection":
        at = _reflected(at, 0.0, size - 1.0) if align else _reflected(at, -0.5, float(size))
    return t.minimum(t.where(t.gt(at, 0.0), at, 0.0), size - 1.0)


def _near(distance: Tensor) -> Tensor:
    """Cubic convolution kernel at a distance in [0, 1]."""
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _far(distance: Tensor) -> Tensor:
    """Cubic convolution kernel at a distance in [1, 2]."""
    return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC


def _nearest_taps(at: Tensor) -> list[Tap]:
    return [(t.round(at), t.ones((1,) * at.rank, at.dtype))]


def _linear_taps(at: Tensor) -> list[Tap]:
    low = t.floor(at)
    part = at - low
    return [(low, 1 - part), (low + 1, part)]


def _cubic_taps(at: Tensor) -> list[Tap]:
    low = t.floor(at)
    part = at - low
    return [(low - 1, _far(part + 1)), (low, _near(part)), (low + 1, _near(1 - part)), (low + 2, _far(2 - part))]


_TAPS: dict[str, Callable[[Tensor], list[Tap]]] = {
    "nearest": _nearest_taps, "linear": _linear_taps, "cubic": _cubic_taps,
}  # fmt: skip


def grid_sample(
    x: Tensor, grid: Tensor, mode: str, padding: str, align: bool, *, rounded_first: bool = False
) -> Tensor:
    """Return x[N, C, *S] sampled at grid[N, *O, n]; the result has shape [N, C, *O].

    The grid's last axis holds coordinates in [-1, 1], last spatial axis first. `mode` is nearest, linear or cubic;
    `padding` is zeros, border or reflection. With `align`, -1 and 1 are the centres of the outermost elements,
    otherwise their outer edges. `rounded_first`: with mode nearest, a coordinate is rounded before it is reflected
    (ONNX), not after (PyTorch), which differ at halves. The lowering has one gather for each combination of neighbours;
    those outside of x add 0, also where the element that is read in their place is infinite or NaN.
    Raises UnsupportedError for x without elements.
    """
    sizes = whole_sizes(x.shape[2:], "a grid sample")
    if 0 in sizes:
        raise UnsupportedError("a grid sample of a tensor without elements")
    n, out = len(sizes), grid.shape[1:-1]
    grid = t.cast(grid, "float32") if grid.dtype != "float64" else grid
    axes: list[list[Kept]] = []
    for i, size in enumerate(sizes):
        place = t.squeeze(t.slice_axis(grid, -1, n - 1 - i, n - i), -1)
        at = (place + 1) * ((size - 1) / 2) if align else ((place + 1) * size - 1) / 2
        at = t.round(at) if rounded_first and mode == "nearest" else at
        if mode == "cubic":  # each of the four neighbours is padded separately
            axes.append([_kept(_inside(p, size, padding, align), w, size) for p, w in _TAPS[mode](at)])
        else:
            axes.append([_kept(p, w, size) for p, w in _TAPS[mode](_inside(at, size, padding, align))])
    count = prod(concrete(out)) if all(isinstance(d, int) for d in out) else -1
    lead: tuple[Dim, ...] = x.shape[:2]
    flat = t.reshape(x, (*lead, prod(sizes)))
    total: Tensor | None = None

    def in_line(value: Tensor) -> Tensor:
        return t.reshape(t.broadcast_to(value, grid.shape[:-1]), (x.shape[0], 1, count))

    for taps in product(*axes):
        spot = taps[0][0]
        for (place, _, _), size in zip(taps[1:], sizes[1:]):
            spot = spot * size + place
        line, share = in_line(spot), in_line(reduce(t.mul, (w for _, w, _ in taps)))
        there = in_line(reduce(t.logical_and, (found for _, _, found in taps)))
        picked = t.gather_elements(flat, t.broadcast_to(line, (*lead, line.shape[2])), 2)
        part = t.where(there, picked * t.cast(share, x.dtype), 0)
        total = part if total is None else total + part
    assert total is not None
    return t.reshape(total, (*lead, *out))


def _kept(place: Tensor, weight: Tensor, size: int) -> Kept:
    """Return (clamped int64 index, weight, whether it is inside the tensor) of a neighbour."""
    there = t.logical_and(t.ge(place, 0.0), t.le(place, size - 1.0))
    return t.cast(t.minimum(t.maximum(place, 0.0), size - 1.0), "int64"), weight, there


# ---------------------------------------------------------------- scans
def running(x: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor], neutral: float) -> Tensor:
    """Return the inclusive scan of x along an axis, in log2(size) steps (Hillis-Steele scan).

    `combine` is associative and takes the earlier elements as its second operand; `neutral` is its identity element.
    """
    axis %= x.rank
    (size,) = whole_sizes((x.shape[axis],), "running values")
    reach = 1
    while reach < size:
        ahead = t.full((*x.shape[:axis], reach, *x.shape[axis + 1 :]), neutral, x.dtype)
        x = combine(x, t.concat([ahead, t.slice_axis(x, axis, 0, size - reach)], axis))
        reach *= 2
    return x


__all__ = ["grid_sample", "running", "whole_sizes"]
