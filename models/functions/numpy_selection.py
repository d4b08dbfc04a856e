"""Functions that build the graph of a NumPy call on traced arrays: joining, selection, creation, comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.axes import axis_of
from ...egraph.types.dims import volume
from ...errors import TraceError
from ..torch_export import aten_pointwise as pointwise
from ..torch_export.aten_search import bucketize, is_member
from .numpy_array import arrays_in, is_traced, traced
from .numpy_builders import Build, as_dtype, in_range, ints, promoted, refuse_many_pairs
from .numpy_ufuncs import common_dtype, operand, written


def _join(build: Callable[..., Tensor]) -> Build:
    def run(arrays: Any, axis: int | None = 0, dtype: Any = None, casting: str = "same_kind") -> Any:
        parts = list(arrays)
        name = common_dtype(*(np.asarray(p) if not is_traced(p) and not isinstance(p, Tensor) else p for p in parts))
        if dtype is not None:
            if not np.can_cast(name, dtype, casting):  # type: ignore[arg-type]
                raise TraceError(f"{name} cannot be cast to {np.dtype(dtype)} by the rule {casting!r}")
            name = dtypes.name_of(dtype)
        return traced(build([operand(p, name) for p in parts], axis))

    return run


def _concatenated(parts: Sequence[Tensor], axis: int | None) -> Tensor:
    if axis is None:
        return t.concat([t.reshape(p, (volume(p.shape),)) for p in parts], 0)
    return t.concat(parts, axis)


_concatenate, _stack = _join(_concatenated), _join(t.stack)


def _vstack(tup: Any, dtype: Any = None, casting: str = "same_kind") -> Any:
    return _concatenate([np.atleast_2d(v) for v in tup], 0, dtype, casting)


def _hstack(tup: Any, dtype: Any = None, casting: str = "same_kind") -> Any:
    parts = [np.atleast_1d(v) for v in tup]
    return _concatenate(parts, 0 if parts[0].ndim == 1 else 1, dtype, casting)


def _dstack(tup: Any) -> Any:
    return _concatenate([np.atleast_3d(v) for v in tup], 2)


def _column_stack(tup: Any) -> Any:
    return _concatenate([np.reshape(v, (-1, 1)) if np.ndim(v) < 2 else v for v in tup], 1)


def _append(arr: Any, values: Any, axis: int | None = None) -> Any:
    return _concatenate([np.ravel(arr), np.ravel(values)], 0) if axis is None else _concatenate([arr, values], axis)


def _delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    if arrays_in(obj):
        raise TraceError("np.delete at traced places: which elements are left depends on values", hint="np.where")
    arr, axis = (np.ravel(arr), 0) if axis is None else (arr, axis_of(axis, arr.ndim))
    return np.take(arr, np.delete(np.arange(arr.shape[axis]), obj), axis)


def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    rank = len(xi)
    parts = [np.reshape(x, [-1 if i == place else 1 for i in range(rank)]) for place, x in enumerate(xi)]
    if indexing == "xy" and rank > 1:
        parts = [np.swapaxes(p, 0, 1) for p in parts]
    shape = np.broadcast_shapes(*(p.shape for p in parts))
    return tuple(parts if sparse else [np.broadcast_to(p, shape) for p in parts])


def _where(condition: Any, x: Any = np._NoValue, y: Any = np._NoValue) -> Any:
    if x is np._NoValue or y is np._NoValue:
        refuse_value(
            TraceError(
                "np.where with a condition alone cannot be traced: its size depends on values",
                hint="np.where(condition, x, y)",
            )
        )
    (a, b), _ = promoted(x, y)
    return traced(t.where(operand(condition, "bool"), a, b))


def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    dtype = np.dtype(common_dtype(*choicelist, default))
    found = default if is_traced(default) else np.asarray(default, dtype)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = np.where(condition, as_dtype(choice, dtype), found)
    return found


def _clip(a: Any, a_min: Any = None, a_max: Any = None, min: Any = None, max: Any = None) -> Any:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return +a
    bounds = [v for v in (low, high) if v is not None]
    dtype = np.dtype(common_dtype(a, *bounds))
    x = traced(operand(a, dtype.name))
    x = x if low is None else np.maximum(x, traced(operand(low, dtype.name)))  # type: ignore[assignment]
    return x if high is None else np.minimum(x, traced(operand(high, dtype.name)))


def _take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Any:
    if not is_traced(a):
        a = traced(t.as_tensor(np.asarray(a)))
    a, axis = (np.ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
    known = indices if is_traced(indices) else np.asarray(indices)
    known = in_range(known, a.shape[axis], mode)
    if known.ndim == 0 and not is_traced(known):
        known = int(known)
    return a[(*[slice(None)] * axis, known)]


def _full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    name = dtypes.name_of(dtype or a.dtype)
    sizes = a.shape if shape is None else ints(shape)
    return traced(t.broadcast_to(operand(fill_value, name), sizes))


def _like(value: Any) -> Build:
    def build(a: Any, dtype: Any = None, shape: Any = None) -> Any:
        return _full_like(a, value, dtype, shape)

    return build


def _empty_like(prototype: Any, dtype: Any = None, shape: Any = None) -> Any:
    return _full_like(prototype, 0, dtype, shape)


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if not copy:
        raise TraceError("np.nan_to_num with copy=False cannot be traced")
    return traced(pointwise.nan_to_num(x._node, nan, posinf, neginf))


def _rounded(a: Any, decimals: int = 0) -> Any:
    if a.dtype.kind in "iub":
        if decimals < 0:
            raise TraceError("np.round of integers to tens cannot be traced", hint="np.rint(x / 10) * 10")
        return a.astype(np.float16) if a.dtype.kind == "b" else +a
    if not decimals:
        return np.rint(a)
    scale = a.dtype.type(10.0 ** abs(decimals))
    return np.rint(a * scale) / scale if decimals > 0 else np.rint(a / scale) * scale


def _sinc(x: Any) -> Any:
    x = x * np.pi if x.dtype.kind not in "iub" else x.astype(np.float64) * np.pi
    safe = np.where(x == 0, x.dtype.type(1), x)
    return np.where(x == 0, x.dtype.type(1), np.sin(safe) / safe)


def _isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    dtype = np.dtype(common_dtype(b, 1.0)) if np.ndim(b) or is_traced(b) else None
    b = as_dtype(b, dtype) if dtype is not None else float(b) if type(b) in (bool, int) else b
    # the limit of a Python number is one, too, and takes the dtype of the array that it is compared with
    near = abs(a - b) <= atol + rtol * abs(b)
    found = (near & np.isfinite(b)) | (a == b)
    return found | (np.isnan(a) & np.isnan(b)) if equal_nan else found


def _allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return np.all(_isclose(a, b, rtol, atol, equal_nan))


def _array_equal(a1: Any, a2: Any) -> Any:
    return np.all(a1 == a2) if np.shape(a1) == np.shape(a2) else False


def _isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    values = np.ravel(test_elements) if is_traced(test_elements) else np.unique(np.asarray(test_elements))
    (x, among), dtype = promoted(element, values)
    if dtypes.is_float(dtype) and not any(dtypes.is_float(common_dtype(v)) for v in (element, values)):
        refuse_many_pairs(  # int64 and uint64 have no common integer dtype
            f"np.isin of {np.size(element)} elements in {np.size(values)} of another integer dtype",
            np.size(element), np.size(values), "one dtype",
        )  # fmt: skip
        found = np.any(np.expand_dims(element, -1) == values, -1)
    else:
        found = traced(is_member(x, among))
    return ~found if invert else found


def _searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if sorter is not None:
        a = np.take(a, sorter)
    if is_traced(a) and a.ndim == 1 and a._node.op != "input":
        return _searchsorted_in(a, v, side)
    if np.ndim(a) != 1 or is_traced(a) or not _is_sorted(np.asarray(a)):
        raise TraceError(
            "np.searchsorted in an array that is not known to be sorted cannot be traced",
            hint="np.sort(a); arguments have to be sorted inside of the function, since their values are not known yet",
        )
    if side == "left":  # NaN borders are the last ones, and below nothing
        a = np.asarray(a)[np.equal(a, a)]
    (borders, x), _ = promoted(a, v)
    return traced(bucketize(x, borders, False, side == "right"), scalar=True)


def _searchsorted_in(a: Any, v: Any, side: str) -> Any:
    """np.searchsorted in a computed array, whose elements ascend as NumPy requires; NaN come last."""
    (borders, x), dtype = promoted(a, v)
    found = traced(bucketize(x, borders, False, side == "right"), scalar=True)
    if side == "right" or not dtypes.is_float(dtype):
        return found
    return np.where(np.isnan(v), np.sum(~np.isnan(a)), found)


def _is_sorted(a: Any) -> bool:
    """Whether an array is sorted; NaN comes last."""
    return bool(np.array_equal(a, np.sort(a), equal_nan=a.dtype.kind == "f"))


def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    side: Any = "left" if right else "right"
    if is_traced(bins):  # NumPy refuses those that neither rise nor fall
        rises, size = np.searchsorted(bins, x, side), bins.shape[0]
        if size < 2:
            return rises
        first, last = bins[0], bins[-1]
        falls = (first > last) | ((first != first) & (last == last))  # NaN is above all numbers
        return np.where(falls, size - np.searchsorted(bins[::-1], x, side), rises)
    if _is_sorted(np.asarray(bins)):
        return np.searchsorted(bins, x, side)
    rising = np.asarray(bins)[::-1]  # falling bins, or an error
    return len(rising) - np.searchsorted(rising, x, side)


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    name = common_dtype(src) if has_dtype(src) else None
    if name and not np.can_cast(name, dst.dtype, casting):  # type: ignore[arg-type]
        raise TraceError(f"{name} cannot be cast to {dst.dtype} by the rule {casting!r}")
    if not is_traced(dst):
        raise TraceError(
            "np.copyto changes an array that is not traced, which a program cannot do", hint="np.empty_like(x)"
        )
    written(operand(src, dst.dtype.name), dst, where)


def has_dtype(value: Any) -> bool:
    """Whether a value has a dtype of its own, unlike Python numbers."""
    return type(value) not in (int, float, bool)


def _size(a: Any, axis: int | None = None) -> Any:
    return a.size if axis is None else a.shape[axis_of(axis, a.ndim)]


def _result_type(*arrays_and_dtypes: Any) -> Any:
    return np.result_type(*(v.dtype if is_traced(v) else v for v in arrays_and_dtypes))


#: Builders over traced arrays by qualified name; NumPy operators and functions determine the dtypes.
SELECTION: dict[str, Build] = {
    "concatenate": _concatenate, "stack": _stack, "vstack": _vstack, "hstack": _hstack, "dstack": _dstack,
    "column_stack": _column_stack, "append": _append, "delete": _delete, "meshgrid": _meshgrid, "where": _where,
    "select": _select, "clip": _clip, "take": _take, "zeros_like": _like(0), "ones_like": _like(1),
    "full_like": _full_like, "empty_like": _empty_like, "copy": lambda a: traced(a._node), "nan_to_num": _nan_to_num,
    "round": _rounded, "sinc": _sinc, "real": lambda val: val, "imag": lambda val: np.zeros_like(val),
    "astype": lambda x, dtype: x.astype(dtype), "isclose": _isclose, "allclose": _allclose,
    "array_equal": _array_equal, "isin": _isin, "searchsorted": _searchsorted, "digitize": _digitize,
    "copyto": _copyto, "iscomplexobj": lambda x: False, "isrealobj": lambda x: True,
    "iscomplex": lambda x: np.zeros_like(x, dtype=bool), "isreal": lambda x: np.ones_like(x, dtype=bool),
    "isposinf": lambda x: np.isinf(x) & (x > 0), "isneginf": lambda x: np.isinf(x) & (x < 0),
    "fix": lambda x: np.trunc(x), "shape": lambda a: a.shape, "ndim": lambda a: a.ndim, "size": _size,
    "result_type": _result_type,
}  # fmt: skip
