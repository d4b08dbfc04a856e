"""Functions that build the graph of a NumPy call on traced arrays: reductions, running sums, quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.types import dtypes
from ...egraph.types.axes import axis_of
from ...errors import TraceError
from .numpy_array import TracedArray, is_traced, traced
from .numpy_builders import Axes, Build, as_dtype, axes_joined, axes_kept, named_axes
from .numpy_ufunc_methods import reduce
from .numpy_ufuncs import common_dtype


def _reduction(ufunc: np.ufunc, prepare: Build = lambda a: a) -> Build:
    def build(
        a: Any,
        axis: Axes = None,
        dtype: Any = None,
        keepdims: bool = False,
        initial: Any = np._NoValue,
        where: Any = True,
    ) -> TracedArray:
        a = prepare(a)
        return reduce(ufunc, a, axis, dtype, None, keepdims, initial, where)

    return build


def _float_of(a: Any) -> str:
    return a.dtype.name if a.dtype.kind not in "iub" else "float64"


def _mean(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False, where: Any = True) -> Any:
    name = dtypes.name_of(dtype or _float_of(a))
    if where is not True or not dtypes.is_float(name):  # of integers: a sum that wraps, divided in float64 and cut
        wide = "float32" if dtype is None and name in dtypes.HALVES else name
        total = np.sum(a, axis, dtype=wide, keepdims=keepdims, where=where)
        count = np.sum(np.ones_like(a, dtype="int64"), axis, dtype="int64", keepdims=keepdims, where=where)
        return np.divide(total, count).astype(name)
    node = t.mean(t.cast(a._node, "float64" if dtype is None and a.dtype.kind in "iub" else name), axis, keepdims)
    return traced(t.cast(node, name), scalar=True)


def _spread_dtype(a: Any, dtype: Any) -> str:
    """Dtype in which a variance is taken. Raises TraceError for integers: NumPy cuts the mean, but not the
    differences."""
    name = dtypes.name_of(dtype or _float_of(a))
    if not dtypes.is_float(name):
        raise TraceError(f"a variance in {name} cannot be traced", hint="give a dtype of floats, and cast the result")
    return name


def _var(
    a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
) -> Any:
    name = _spread_dtype(a, dtype)
    node = t.cast(a._node, "float32" if name in dtypes.HALVES else name)
    return traced(t.cast(t.var(node, axis, keepdims, ddof if correction is None else correction), name), scalar=True)


def _std(
    a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
) -> Any:
    name = _spread_dtype(a, dtype)
    wide = a.astype("float32" if name in dtypes.HALVES else name)
    return np.sqrt(_var(wide, axis, None, ddof, keepdims, correction)).astype(name)


def _without_nan(fill: Any) -> Callable[[Any], Any]:
    return lambda a: np.where(np.isnan(a), np.asarray(fill, a.dtype), a) if a.dtype.kind not in "iub" else a


def _nan_extreme(ufunc: np.ufunc, fill: float) -> Build:
    def build(a: Any, axis: Axes = None, keepdims: bool = False, initial: Any = np._NoValue, where: Any = True) -> Any:
        found = reduce(ufunc, _without_nan(fill)(a), axis, None, None, keepdims, initial, where)
        if a.dtype.kind in "iub" or (initial is not np._NoValue and initial is not None):
            return found  # at least the initial value
        return np.where(np.all(np.isnan(a), axis=axis, keepdims=keepdims), np.asarray(np.nan, a.dtype), found)

    return build


def _nan_count(a: Any, axis: Axes, keepdims: bool, dtype: str) -> Any:
    return np.sum(~np.isnan(a), axis, keepdims=keepdims).astype(dtype)


def _nanmean(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Any:
    if a.dtype.kind in "iub":
        return _mean(a, axis, dtype, keepdims)
    name = dtypes.name_of(dtype or _float_of(a))
    wide = _without_nan(0)(a).astype("float32" if name in dtypes.HALVES else name)
    return (np.sum(wide, axis, keepdims=keepdims) / _nan_count(a, axis, keepdims, wide.dtype.name)).astype(name)


def _nanvar(a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    if a.dtype.kind in "iub":
        return _var(a, axis, dtype, ddof, keepdims)
    name = _spread_dtype(a, dtype)
    if name != a.dtype.name:
        raise TraceError("np.nanvar and np.nanstd in another dtype cannot be traced", hint="cast the array")
    wide = a.astype("float32" if name in dtypes.HALVES else name)
    gap = np.where(np.isnan(wide), np.asarray(0, wide.dtype), wide - _nanmean(wide, axis, None, True))
    count = _nan_count(a, axis, keepdims, wide.dtype.name) - ddof
    count = np.where(count > 0, count, np.asarray(np.nan, wide.dtype))
    return (np.sum(gap * gap, axis, keepdims=keepdims) / count).astype(name)


def _nanstd(a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    return np.sqrt(_nanvar(a, axis, dtype, ddof, keepdims))


def _running(ufunc: np.ufunc, prepare: Build = lambda a: a) -> Build:
    def build(a: Any, axis: int | None = None, dtype: Any = None) -> Any:
        a = prepare(a)
        a = np.ravel(a) if axis is None or not a.ndim else a
        return ufunc.accumulate(a, axis or 0, dtype)

    return build


def _cumulative(ufunc: np.ufunc) -> Build:
    def build(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
        return ufunc.accumulate(x, 0 if axis is None else axis, dtype)

    return build


def _average(a: Any, axis: Axes = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    if weights is None:
        found = np.mean(a, axis, keepdims=keepdims)
        return (found, np.full_like(found, a.size / found.size)) if returned else found
    dtype = np.dtype(common_dtype(a, weights, *([np.float64(0)] if _integral(a) or _integral(weights) else [])))
    a, weights = a.astype(dtype) if is_traced(a) else np.asarray(a, dtype), as_dtype(weights, dtype)
    if np.shape(weights) != np.shape(a):
        if np.ndim(weights) != 1 or not isinstance(axis, int | np.integer):
            raise TraceError("np.average with weights of another shape along several axes cannot be traced")
        axis = int(axis) % np.ndim(a)
        weights = np.reshape(weights, [-1 if i == axis else 1 for i in range(np.ndim(a))])
    spread = weights * np.ones_like(a)
    total = np.sum(spread, axis, keepdims=keepdims)
    found = np.sum(a * weights, axis, keepdims=keepdims) / total
    return (found, total) if returned else found


def _integral(value: Any) -> bool:
    return np.dtype(common_dtype(value)).kind in "iub"


def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = np._NoValue, append: Any = np._NoValue) -> Any:
    axis = axis_of(axis, a.ndim)
    ends = [v for v in (prepend, append) if v is not np._NoValue]
    if ends:
        shape = tuple(1 if i == axis else d for i, d in enumerate(a.shape))
        prepend, append = (
            v if v is np._NoValue or np.ndim(v) else np.broadcast_to(np.asarray(v), shape) for v in (prepend, append)
        )
        a = np.concatenate([v for v in (prepend, a, append) if v is not np._NoValue], axis)
    lead = (slice(None),) * axis
    for _ in range(n):
        later, earlier = a[(*lead, slice(1, None))], a[(*lead, slice(None, -1))]
        a = later != earlier if a.dtype == np.bool_ else later - earlier
    return a


def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    found = np.diff(np.ravel(ary))
    ends = [None if v is None else np.ravel(as_dtype(v, found.dtype)) for v in (to_begin, to_end)]
    return np.concatenate([v for v in (ends[0], found, ends[1]) if v is not None])


def _quantile(scale: float) -> Build:
    def build(a: Any, q: Any, axis: Axes = None, method: str = "linear", keepdims: bool = False) -> Any:
        if method != "linear" or is_traced(q):
            raise TraceError("quantiles by another method, or at traced places, cannot be traced")
        places = np.asarray(q, np.float64) / scale
        whole = scale == 1.0 and np.asarray(q).dtype.kind in "iub"  # 0 and 1 are elements, without interpolation
        axes = named_axes(axis, a.ndim)
        found = _quantiles(axes_joined(a, axes), places.reshape(-1), np.float64 if places.ndim else float, whole)
        if keepdims:
            found = [axes_kept(v, a.shape, axes) for v in found]
        return np.stack(found, 0).reshape((*places.shape, *found[0].shape)) if places.ndim else found[0]

    return build


def _quantiles(a: Any, places: Any, number: Callable[[float], Any], whole: bool) -> list[Any]:
    """The quantile of `a` along its last axis at each of `places` (0 to 1), interpolated linearly.

    `number`: type of the interpolation weights. `whole`: every place is 0 or 1, an element without interpolation.
    """
    size = a.shape[-1]
    ordered, holes = np.sort(a, -1), np.any(np.isnan(a), -1)
    found = []
    for place in places.tolist():
        low = min(int(place * (size - 1)), size - 1)
        part = number(place * (size - 1) - low)
        below, above = ordered[..., low], ordered[..., min(low + 1, size - 1)]
        gap = above - below  # of integers, it wraps as in NumPy
        value = below + gap * part if part < 0.5 else above - gap * (1 - part)
        value = below if whole else value  # NumPy multiplies infinite gaps by 0
        found.append(value if a.dtype.kind in "iu" else np.where(holes, a.dtype.type(np.nan), value))
    return found


def _median(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    axes = named_axes(axis, a.ndim)
    flat = axes_joined(a.astype(_float_of(a)), axes)
    size, ordered = flat.shape[-1], np.sort(flat, -1)
    if not size:
        raise TraceError("np.median of no elements cannot be traced")
    middle = ordered[..., size // 2] if size % 2 else np.mean(ordered[..., size // 2 - 1 : size // 2 + 1], -1)
    found = np.where(np.any(np.isnan(flat), -1), flat.dtype.type(np.nan), middle)
    return axes_kept(found, a.shape, axes) if keepdims else found


def _ptp(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    return np.max(a, axis, keepdims=keepdims) - np.min(a, axis, keepdims=keepdims)


def _count_nonzero(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    return np.sum(a != 0 if a.dtype != np.bool_ else a, axis, keepdims=keepdims)


#: Builders over traced arrays by qualified name; NumPy operators and functions determine the dtypes.
REDUCTIONS: dict[str, Build] = {
    "sum": _reduction(np.add), "prod": _reduction(np.multiply), "max": _reduction(np.maximum),
    "min": _reduction(np.minimum), "all": _reduction(np.logical_and), "any": _reduction(np.logical_or),
    "nansum": _reduction(np.add, _without_nan(0)), "nanprod": _reduction(np.multiply, _without_nan(1)),
    "nanmax": _nan_extreme(np.maximum, -np.inf), "nanmin": _nan_extreme(np.minimum, np.inf), "nanmean": _nanmean,
    "nanvar": _nanvar, "nanstd": _nanstd, "mean": _mean, "var": _var, "std": _std, "average": _average, "ptp": _ptp,
    "count_nonzero": _count_nonzero, "median": _median, "quantile": _quantile(1.0), "percentile": _quantile(100.0),
    "cumsum": _running(np.add), "cumprod": _running(np.multiply), "nancumsum": _running(np.add, _without_nan(0)),
    "nancumprod": _running(np.multiply, _without_nan(1)), "cumulative_sum": _cumulative(np.add),
    "cumulative_prod": _cumulative(np.multiply), "diff": _diff, "ediff1d": _ediff1d,
}  # fmt: skip
