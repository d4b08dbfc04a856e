"""Functions that build the graph of a NumPy call on traced arrays: interpolation, counts, histograms, places."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.types.axes import axis_of
from ...errors import TraceError
from .numpy_array import arrays_in, is_traced, traced
from .numpy_builders import OUTSIDE, Build, as_dtype, axes_joined, axes_kept, in_range, named_axes, numbers
from .numpy_ufuncs import LONGEST, common_dtype, operand


def _like(value: Any) -> Any:
    """A traced array of a value."""
    return value if is_traced(value) else traced(t.as_tensor(np.asarray(value)))


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if any(np.asarray(v).dtype.kind == "c" for v in (fp, left, right) if v is not None and not is_traced(v)):
        raise TraceError("np.interp of complex numbers cannot be traced", hint="one call for each part")
    x, xp, fp = (as_dtype(v, np.float64) for v in (x, xp, fp))
    if np.ndim(xp) != 1 or np.shape(xp) != np.shape(fp):
        raise TraceError(
            f"np.interp takes xp and fp of one axis and equal length, not of the shapes {np.shape(xp)} and {np.shape(fp)}"
        )
    if period is not None:
        period, left, right = abs(period), None, None
        x, xp = x % period, xp % period
        order = np.argsort(xp)
        xp, fp = _like(xp)[order], _like(fp)[order]
        xp, fp = np.concatenate((xp[-1:] - period, xp, xp[:1] + period)), np.concatenate((fp[-1:], fp, fp[:1]))
    last = np.shape(xp)[0] - 1
    left, right = (fp[0] if left is None else left), (fp[-1] if right is None else right)
    if not last:
        return np.where(x < xp[0], left, np.where(x > xp[0], right, fp[0]))  # also for NaN
    place = np.searchsorted(xp, x, side="right") - 1
    below = np.clip(place, 0, last - 1)
    xp, fp = _like(xp), _like(fp)
    x0, x1, f0, f1 = xp[below], xp[below + 1], fp[below], fp[below + 1]
    slope = (f1 - f0) / (x1 - x0)
    found = slope * (x - x0) + f0
    found = np.where(np.isnan(found), slope * (x - x1) + f1, found)
    found = np.where(np.isnan(found) & (f0 == f1), f0, found)
    found = np.where(x0 == x, f0, found)
    found = np.where(x == xp[last], fp[last], found)
    found = np.where(place < 0, left, np.where(x > xp[last], right, found))
    return np.where(np.isnan(x), x, found)


def _linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:  # fmt: skip
    kind = np.dtype(common_dtype(start, stop, 1.0))
    steps = num - 1 if endpoint else num
    start, stop = as_dtype(start, kind), as_dtype(stop, kind)
    gap = stop - start
    places = np.arange(num, dtype=kind).reshape((-1,) + (1,) * np.ndim(gap))
    if steps > 0:
        step = gap / steps
        y = np.where(np.any(step == 0), places / steps * gap, places * step)  # of denormal numbers, too
    else:
        step, y = np.nan, places * gap
    y = y + start
    if endpoint and num > 1:
        y[-1, ...] = stop
    y = np.moveaxis(y, 0, axis)
    y = np.floor(y) if dtype is not None and np.dtype(dtype).kind in "iu" else y
    y = y if dtype is None else y.astype(dtype)
    return (y, step) if retstep else y


def _logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:  # fmt: skip
    if np.ndim(base):
        raise TraceError("np.logspace with several bases cannot be traced")
    y = np.power(base, np.linspace(start, stop, num, endpoint, axis=axis))
    return y if dtype is None else y.astype(dtype)


def _bincount(x: Any, weights: Any = None, minlength: Any = 0) -> Any:
    size = 0 if minlength is None or is_traced(minlength) else int(minlength)
    if size < 1:
        raise TraceError("np.bincount without minlength cannot be traced: the result's size depends on values",
                         hint="minlength=n, with n above all values: np.bincount(x, minlength=n)")  # fmt: skip
    if np.ndim(x) != 1 or not np.can_cast(_like(x).dtype, np.int64, "safe"):
        raise TraceError(f"np.bincount takes integers of one axis, not {_like(x)._node.type}", hint="np.ravel(x)")
    places = numbers(size)[_from_zero(x)]  # numbers from `size` on are indices outside of the axis
    if weights is None or 0 in np.shape(x):
        add, total = t.ones(places._node.shape, "int64"), t.zeros((size,), "int64")
    elif np.shape(weights) != np.shape(x):
        raise TraceError(f"np.bincount of {np.shape(x)} with weights of the shape {np.shape(weights)}")
    else:
        add, total = operand(weights, "float64"), t.zeros((size,), "float64")
    return traced(t.scatter_elements(total, places._node, add, 0, "add"))


def _from_zero(x: Any) -> Any:
    """Integers as indices that do not count from the end: negative ones are outside of every axis."""
    x = as_dtype(x, np.int64)
    return np.where(x < 0, OUTSIDE, x)


def _histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    a = np.ravel(a)
    if isinstance(bins, str) or is_traced(bins) or arrays_in(range):
        raise TraceError(
            "np.histogram cannot be traced with borders that depend on values",
            hint="range=(low, high), or known borders",
        )
    fitted = np.ndim(bins) == 0 and range is None and is_traced(a) and a.size != 0
    edges: Any = _fitted_edges(a, int(bins)) if fitted else np.histogram_bin_edges(
        np.zeros(0, a.dtype if is_traced(a) else np.asarray(a).dtype), bins, range
    )  # fmt: skip
    count = len(edges) - 1
    place = np.where(a == edges[-1], count - 1, np.searchsorted(edges, a, "right") - 1)
    inside = (a >= edges[0]) & (a <= edges[-1])
    kind = np.dtype(np.int64 if weights is None else common_dtype(weights))
    if weights is not None and (kind == np.bool_ or np.shape(np.ravel(weights)) != a.shape):
        raise TraceError(f"np.histogram of {np.shape(a)} with weights of {kind} and the shape {np.shape(weights)}")
    add: Any = (
        as_dtype(inside, kind) if weights is None else np.where(inside, as_dtype(np.ravel(weights), kind), kind.type(0))
    )
    spots: Any = np.clip(place, 0, count - 1)
    if fitted:  # NumPy refuses values that are not finite, and more bins than there are numbers between the ends
        valid = np.isfinite(edges[0]) & np.isfinite(edges[-1]) & np.all(edges[:-1] < edges[1:])
        spots = numbers(count)[np.where(valid, spots, OUTSIDE)]
    found = traced(t.scatter_elements(t.zeros((count,), kind.name), spots._node, add._node, 0, "add"))
    if density:
        return found / np.diff(edges) / np.sum(found), edges
    return found, edges


def _fitted_edges(a: Any, count: int) -> Any:
    """The borders of `count` bins from the least to the largest element, which are moved apart if they are equal."""
    kind = np.dtype(common_dtype(a, *([] if a.dtype.kind == "f" else [np.float64(0)])))
    low, high = np.min(a), np.max(a)
    low, high = np.where(low == high, low - 0.5, low), np.where(low == high, high + 0.5, high)
    return np.linspace(low, high, count + 1, dtype=kind)


def _corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    c = np.cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    spread = np.sqrt(np.diagonal(c))
    return np.clip(c / spread[:, None] / spread[None, :], -1, 1)


def _nanmedian(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if a.dtype.kind in "iub":
        return np.median(a, axis, keepdims=keepdims)
    axes = named_axes(axis, a.ndim)
    flat = axes_joined(a, axes)
    if not flat.shape[-1]:
        raise TraceError("np.nanmedian of no elements cannot be traced")
    ordered, count = np.sort(flat, -1), np.sum(~np.isnan(flat), -1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(k, 0), -1) for k in ((count - 1) // 2, count // 2))
    wide = np.float32 if a.dtype == np.float16 else a.dtype
    both = np.where(count % 2 == 1, low, ((low.astype(wide) + high.astype(wide)) / 2).astype(a.dtype))
    found = np.where(count == 0, a.dtype.type(np.nan), both)[..., 0]
    return axes_kept(found, a.shape, axes) if keepdims else found


def _lexsort(keys: Any, axis: int = -1) -> Any:
    parts = [keys[i] for i in range(len(keys))]
    axis = axis_of(axis, np.ndim(parts[0]))
    order = np.argsort(_like(parts[0]), axis, kind="stable")
    for key in parts[1:]:
        again = np.argsort(np.take_along_axis(_like(key), order, axis), axis, kind="stable")
        order = np.take_along_axis(order, again, axis)
    return order


def _choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    parts = list(choices)
    dtype = np.dtype(
        common_dtype(*(p if is_traced(p) or type(p) in (bool, int, float) else np.asarray(p) for p in parts))
    )
    if not np.can_cast(_like(a).dtype, np.int64, "safe"):
        raise TraceError(f"np.choose takes integer indices, not {_like(a)._node.type}")
    a = as_dtype(a, np.int64)
    shape = np.broadcast_shapes(np.shape(a), *(np.shape(p) for p in parts))
    table = np.stack([np.broadcast_to(as_dtype(p, dtype), shape) for p in parts])
    a = _from_zero(a) if mode == "raise" else in_range(a, len(parts), mode)
    return np.take_along_axis(_like(table), np.broadcast_to(a, shape)[None], 0)[0]


def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    sizes = [int(d) for d in np.atleast_1d(dims)]
    if order not in ("C", "F"):
        raise TraceError(f"np.ravel_multi_index with order={order!r} cannot be traced")
    table = np.reshape(numbers(prod(sizes)), sizes if order == "C" else sizes[::-1])
    table = table if order == "C" else table.T
    modes = [mode] * len(sizes) if isinstance(mode, str) else list(mode)
    parts = [
        _from_zero(i) if m == "raise" else in_range(i, d, m) for i, d, m in zip(multi_index, sizes, modes, strict=True)
    ]
    return table[tuple(parts)]


def _unravel_index(indices: Any, shape: Any) -> Any:
    sizes = [int(d) for d in np.atleast_1d(shape)]
    spot = numbers(prod(sizes))[_from_zero(indices)]
    found: list[Any] = []
    for size in reversed(sizes):
        found.append(spot % size)
        spot = spot // size
    return tuple(reversed(found))


def _unpackbits(a: Any, axis: Any = None, count: Any = None, bitorder: str = "big") -> Any:
    a, axis = (np.ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
    shifts = np.arange(8, dtype=np.uint8)[:: -1 if bitorder == "big" else 1]
    bits = (np.moveaxis(a, axis, -1)[..., None] >> shifts) & np.uint8(1)
    bits = np.reshape(bits, (*bits.shape[:-2], bits.shape[-2] * 8))
    if count is not None:
        size = bits.shape[-1]
        bits = bits[..., :count] if count <= size else np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, count - size)])
    return np.moveaxis(bits, -1, axis)


def _packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Any:
    a, axis = (np.ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
    bits: Any = np.moveaxis((a != 0).astype(np.uint8), axis, -1)
    bits = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % 8)])
    bits = np.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    weights: Any = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8)[:: -1 if bitorder == "big" else 1])
    found: Any = np.sum(bits * weights, -1, dtype=np.uint8)
    return np.moveaxis(found, -1, axis)


def _array_equiv(a1: Any, a2: Any) -> Any:
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))
    except ValueError:
        return False
    return np.all(np.equal(a1, a2))


def _apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **named: Any) -> Any:
    axis = axis_of(axis, arr.ndim)
    rest = [d for i, d in enumerate(arr.shape) if i != axis]
    if not 0 < prod(rest) <= LONGEST:
        raise TraceError(
            f"np.apply_along_axis over {prod(rest)} pieces cannot be traced", hint="a function of the whole array"
        )
    rows = np.reshape(np.moveaxis(arr, axis, -1), (prod(rest), arr.shape[axis]))
    found = np.stack([func1d(rows[i], *args, **named) for i in range(prod(rest))])
    own = found.shape[1:]
    found = np.reshape(found, (*rest, *own))
    return np.moveaxis(found, range(len(rest), found.ndim), range(axis, axis + len(own)))


#: Builders over traced arrays by qualified name; NumPy operators and functions determine the dtypes.
CURVES: dict[str, Build] = {
    "interp": _interp, "linspace": _linspace, "logspace": _logspace, "bincount": _bincount, "histogram": _histogram,
    "corrcoef": _corrcoef, "nanmedian": _nanmedian, "lexsort": _lexsort, "choose": _choose, "array_equiv": _array_equiv,
    "ravel_multi_index": _ravel_multi_index, "unravel_index": _unravel_index, "unpackbits": _unpackbits, "packbits": _packbits,
    "apply_along_axis": _apply_along_axis,
}  # fmt: skip

__all__ = ["CURVES"]
