"""Reading a tensor between its places, and running products and extremes: what several formats' operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import prod

from ..egraph import api as t
from ..egraph.dims import Dim, concrete
from ..egraph.graph import Tensor
from ..errors import UnsupportedError

#: Steepness of the cubic through four neighbours, which PyTorch and ONNX share.
_CUBIC = -0.75

Tap = tuple[Tensor, Tensor]  # whole coordinates (as floats) and their weights


def whole_sizes(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Sizes as ints; UnsupportedError where one is free."""
    if not all(isinstance(d, int) for d in shape):
        raise UnsupportedError(f"{what} over free dimensions", hint="bind them: dims={...}")
    return concrete(tuple(shape))


# ---------------------------------------------------------------- grids
def _reflected(at: Tensor, low: float, span: float) -> Tensor:
    """Coordinates folded back into [low, low + span]."""
    if span == 0:
        return at * 0.0
    folded = t.mod(t.abs(at - low), 2 * span)
    return t.minimum(folded, 2 * span - folded) + low


def _inside(at: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Coordinates brought into the tensor as `padding` says; with 'zeros' they stay."""
    if padding == "zeros":
        return at
    if padding == "reflection":
        at = _reflected(at, 0.0, size - 1.0) if align else _reflected(at, -0.5, float(size))
    return t.minimum(t.maximum(at, 0.0), size - 1.0)


def _near(distance: Tensor) -> Tensor:
    """The cubic's weight at a distance of at most 1."""
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _far(distance: Tensor) -> Tensor:
    """The cubic's weight at a distance from 1 to 2."""
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


def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align: bool) -> Tensor:
    """x[N, C, *S] read at grid[N, *O, n], whose last axis has coordinates in [-1, 1] from the last spatial axis on.

    `mode` is nearest, linear or cubic, `padding` zeros, border or reflection; with `align` -1 and 1 are the centres of
    the outermost elements, else their outer edges. Gives [N, C, *O] as one gather for each combination of neighbours.
    """
    sizes = whole_sizes(x.shape[2:], "a grid sample")
    if 0 in sizes:
        raise UnsupportedError("a grid sample of a tensor without elements")
    n, out = len(sizes), grid.shape[1:-1]
    grid = t.cast(grid, "float32") if grid.dtype != "float64" else grid
    axes: list[list[Tap]] = []
    for i, size in enumerate(sizes):
        place = t.squeeze(t.slice_axis(grid, -1, n - 1 - i, n - i), -1)
        at = (place + 1) * ((size - 1) / 2) if align else ((place + 1) * size - 1) / 2
        if mode == "cubic":  # each neighbour is brought inside by itself
            axes.append([_kept(_inside(p, size, padding, align), w, size) for p, w in _TAPS[mode](at)])
        else:
            axes.append([_kept(p, w, size) for p, w in _TAPS[mode](_inside(at, size, padding, align))])
    count = prod(concrete(out)) if all(isinstance(d, int) for d in out) else -1
    lead: tuple[Dim, ...] = x.shape[:2]
    flat = t.reshape(x, (*lead, prod(sizes)))
    total: Tensor | None = None
    for taps in product(*axes):
        spot = taps[0][0]
        for (place, _), size in zip(taps[1:], sizes[1:]):
            spot = spot * size + place
        weight = reduce(t.mul, (w for _, w in taps))
        line = t.reshape(t.broadcast_to(spot, grid.shape[:-1]), (x.shape[0], 1, count))
        picked = t.gather_elements(flat, t.broadcast_to(line, (*lead, line.shape[2])), 2)
        share = t.reshape(t.broadcast_to(weight, grid.shape[:-1]), (x.shape[0], 1, count))
        part = picked * t.cast(share, x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return t.reshape(total, (*lead, *out))


def _kept(place: Tensor, weight: Tensor, size: int) -> Tap:
    """A neighbour's index, inside, and its weight, 0 where it was outside."""
    there = t.logical_and(t.ge(place, 0.0), t.le(place, size - 1.0))
    index = t.cast(t.minimum(t.maximum(place, 0.0), size - 1.0), "int64")
    return index, t.where(there, weight, 0.0)


# ---------------------------------------------------------------- running values
def running(x: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor], neutral: float) -> Tensor:
    """Along an axis the combination of all elements up to each, in log2(size) steps of twice the reach.

    `combine` is associative and takes the earlier elements second; `neutral` leaves the other operand as it is.
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
