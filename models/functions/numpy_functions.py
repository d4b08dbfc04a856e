"""NumPy functions other than ufuncs on traced arrays.

A builder's parameters are the supported subset of NumPy's, under NumPy's names. Before a builder runs, NumPy itself is
called on stand-in arrays: its exceptions become TraceErrors, and its result determines the expected shape and dtype.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import dtypes
from ...egraph.ir.dims import Dim, concrete, volume
from ...egraph.ir.graph import Tensor
from ...errors import TensorGraphsError, TraceError
from ..common.einsum import einsum
from ..torch_export import aten_layout as layout
from ..torch_export import aten_pointwise as pointwise
from ..torch_export.aten_reduce import arg, bucketize, sort
from .numpy_array import Memory, TracedArray, arrays_in, deep, expression, is_traced, native_name, shared, traced
from .numpy_ufuncs import _written, common_dtype, operand, reduce

Axes = Any
Build = Callable[..., Any]
PROBED = 1 << 15  # largest number of argument elements for which NumPy is called on stand-ins


# ---------------------------------------------------------------- builders over expressions: layout, indices, sorting
def _ints(value: Any) -> Any:
    return [value] if isinstance(value, int | np.integer) else list(value)


def _order(order: Any) -> None:
    if order not in ("C", "K", "A", None):
        raise TraceError(
            f"the memory order {order!r} cannot be traced", hint="order='C', and .T where elements are to move"
        )


def _reshape(a: Tensor, shape: Any, order: str = "C", copy: Any = None) -> Tensor:
    _order(order)
    return t.reshape(a, _ints(shape))


def _ravel(a: Tensor, order: str = "C") -> Tensor:
    _order(order)
    return t.reshape(a, (volume(a.shape),))


def _transpose(a: Tensor, axes: Any = None) -> Tensor:
    return t.permute(a, tuple(reversed(range(a.rank))) if axes is None else _ints(axes))


def _moveaxis(a: Tensor, source: Any, destination: Any) -> Tensor:
    from_, to = ([t.axis_of(v, a.rank) for v in _ints(vs)] for vs in (source, destination))
    order = [i for i in range(a.rank) if i not in from_]
    for place, axis in sorted(zip(to, from_, strict=True)):
        order.insert(place, axis)
    return t.permute(a, order)


def _rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    axis, start = t.axis_of(axis, a.rank), start + a.rank if start < 0 else start
    order = [i for i in range(a.rank) if i != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return t.permute(a, order)


def _expand_dims(a: Tensor, axis: Any) -> Tensor:
    axes = _ints(axis)
    for place in sorted(t.axis_of(v, a.rank + len(axes)) for v in axes):
        a = t.expand_dims(a, place)
    return a


def _flip(m: Tensor, axis: Axes = None) -> Tensor:
    return layout.flip(m, range(m.rank) if axis is None else [t.axis_of(v, m.rank) for v in _ints(axis)])


def _rot90(m: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    a, b = (t.axis_of(v, m.rank) for v in axes)
    turned = {0: lambda: m, 1: lambda: t.swapaxes(t.flip(m, b), a, b), 2: lambda: t.flip(t.flip(m, a), b),
              3: lambda: t.flip(t.swapaxes(m, a, b), b)}  # fmt: skip
    return turned[k % 4]()


def _roll(a: Tensor, shift: Any, axis: Any = None) -> Tensor:
    if axis is None:
        return layout.roll(a, int(np.sum(shift)), ())
    moves, axes = np.broadcast_arrays(_ints(shift), _ints(axis))
    return layout.roll(a, moves.tolist(), [t.axis_of(v, a.rank) for v in axes.tolist()])


def _tile(A: Tensor, reps: Any) -> Tensor:
    factors = _ints(reps)
    return layout.repeat(A, [1] * (A.rank - len(factors)) + factors)


def _repeat(a: Tensor, repeats: Any, axis: Any = None) -> Tensor:
    if axis is None:
        a, axis = t.reshape(a, (volume(a.shape),)), 0
    counts = np.asarray(repeats)
    if counts.ndim == 0 or counts.size == 1:
        return layout.repeat_interleave(a, int(counts.reshape(())), axis)
    return t.gather(a, t.constant(np.repeat(np.arange(int(a.shape[axis])), counts)), axis)


def _pieces(size: Dim, count: int, even: bool) -> list[Dim]:
    if not isinstance(size, int) or count < 1 or (even and size % count):
        raise TraceError(f"{size} elements do not make {count} equal pieces")
    return [size // count + (i < size % count) for i in range(count)]


def _split(even: bool, along: Callable[[int], int] | None = None) -> Build:
    def build(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
        axis = t.axis_of(axis, ary.rank) if along is None else along(ary.rank)
        size = ary.shape[axis]
        if isinstance(indices_or_sections, int | np.integer):
            return t.split(ary, _pieces(size, int(indices_or_sections), even), axis)
        places = [0, *(int(v) for v in indices_or_sections), None]
        return [t.getitem(ary, (*[slice(None)] * axis, slice(a, b))) for a, b in pairwise(places)]

    return build


def _pad(array: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Tensor:
    if isinstance(pad_width, dict) or not isinstance(constant_values, int | float):
        raise TraceError("np.pad with a value for each side cannot be traced", hint="one number for all")
    widths = np.broadcast_to(np.asarray(pad_width, dtype=np.int64), (array.rank, 2)).tolist()
    flat = [v for pair in reversed(widths) for v in pair]
    if mode == "constant":
        return layout.constant_pad(array, flat, constant_values)
    if mode not in ("edge", "reflect", "wrap", "symmetric"):
        raise TraceError(
            f"np.pad with mode={mode!r} cannot be traced", hint="constant, edge, reflect, symmetric or wrap"
        )
    return layout.edge_pad(mode)(array, flat)


def _take_along(arr: Tensor, indices: Any, axis: int | None = -1) -> Tensor:
    x, index = arr, t.as_tensor(indices)
    if axis is None:
        x, axis = t.reshape(x, (volume(x.shape),)), 0
    along = t.axis_of(axis, x.rank)
    index = t.from_end(index, x.shape[along])
    if index.rank != x.rank:
        raise TraceError(f"np.take_along_axis of rank {x.rank} with indices of rank {index.rank}")
    sides = [i if j == 1 else j for i, j in zip(x.shape, index.shape)]  # the axes other than `axis` broadcast
    wide = t.broadcast_to(x, [d if a == along else s for a, (d, s) in enumerate(zip(x.shape, sides))])
    places = t.broadcast_to(index, [index.shape[along] if a == along else s for a, s in enumerate(sides)])
    return t.gather_elements(wide, places, along)


def _extreme_place(build: Build) -> Build:
    find = arg(build)

    def run(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        if axis is not None:
            axis = t.axis_of(axis, a.rank)
        if 0 in (a.shape if axis is None else a.shape[axis : axis + 1]):
            raise TraceError("argmax or argmin of no elements")
        return find(_comparable(a), axis, keepdims)

    return run


def _comparable(a: Tensor) -> Tensor:
    return t.cast(a, "uint8") if a.dtype == "bool" else a


def _sort(position: int) -> Build:
    def build(a: Tensor, axis: int | None = -1, kind: Any = None, stable: Any = None) -> Tensor:
        if position and not stable and kind not in ("stable", "mergesort"):
            kind = "stable"  # NumPy's default order of equal elements is undefined
        x, axis = (t.reshape(a, (volume(a.shape),)), 0) if axis is None else (a, axis)
        return sort(x, t.axis_of(axis, x.rank))[position]

    return build


def _diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return layout.diagonal(a, offset, axis1, axis2)


def _diag(v: Tensor, k: int = 0) -> Tensor:
    if v.rank == 2:
        return layout.diagonal(v, k)
    size = int(v.shape[0]) + abs(k)  # type: ignore[arg-type]
    line = t.pad(v, [(max(k, 0), max(-k, 0))])
    mask = np.eye(size, k=k, dtype=bool)
    rows = t.reshape(line, (1, size))
    return t.where(t.constant(mask), rows, t.full((1, 1), 0, v.dtype))


def _triangle(build: Callable[..., Tensor]) -> Build:
    return lambda m, k=0: build(m, index(k))


def _at_least(rank: int) -> Build:
    def one(x: Any) -> Tensor:
        x = t.as_tensor(x)
        if rank == 3 and x.rank in (1, 2):
            return t.reshape(x, (1, *x.shape, 1) if x.rank == 1 else (*x.shape, 1))
        return t.reshape(x, (1,) * max(rank - x.rank, 0) + x.shape)

    return lambda *arys: one(arys[0]) if len(arys) == 1 else tuple(one(x) for x in arys)


def _broadcast_arrays(*args: Any) -> tuple[Tensor, ...]:
    parts = [t.as_tensor(x) for x in args]
    shape = np.broadcast_shapes(*(p.shape for p in parts))  # type: ignore[arg-type]
    return tuple(t.broadcast_to(p, shape) for p in parts)


def _unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    return tuple(layout.unbind(x, t.axis_of(axis, x.rank)))


#: Builders over expressions. The results have the operand's dtype or are indices.
LAYOUT: dict[str, Build] = {
    "reshape": _reshape, "ravel": _ravel, "transpose": _transpose, "matrix_transpose": t.transpose,
    "linalg.matrix_transpose": t.transpose, "swapaxes": lambda a, axis1, axis2: t.swapaxes(a, axis1, axis2),
    "moveaxis": _moveaxis, "rollaxis": _rollaxis, "expand_dims": _expand_dims,
    "squeeze": lambda a, axis=None: t.squeeze(a, axis), "broadcast_to": lambda array, shape: t.broadcast_to(array, _ints(shape)),
    "broadcast_arrays": _broadcast_arrays, "flip": _flip, "fliplr": lambda m: t.flip(m, 1), "flipud": lambda m: t.flip(m, 0),
    "rot90": _rot90, "roll": _roll, "tile": _tile, "repeat": _repeat, "split": _split(True), "array_split": _split(False),
    "hsplit": _split(True, lambda rank: 1 if rank > 1 else 0), "vsplit": _split(True, lambda rank: 0),
    "dsplit": _split(True, lambda rank: 2), "unstack": _unstack, "pad": _pad, "tril": _triangle(layout.tril),
    "triu": _triangle(layout.triu), "diagonal": _diagonal, "diag": _diag,
    "linalg.diagonal": lambda x, offset=0: layout.diagonal(x, offset, -2, -1), "take_along_axis": _take_along,
    "argmax": _extreme_place(t.argmax), "argmin": _extreme_place(t.argmin), "sort": _sort(0), "argsort": _sort(1),
    "atleast_1d": _at_least(1), "atleast_2d": _at_least(2), "atleast_3d": _at_least(3),
}  # fmt: skip


# ---------------------------------------------------------------- builders over traced arrays, from NumPy's own functions
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
    if where is not True:
        total, count = (np.sum(v, axis, dtype=name, keepdims=keepdims, where=where) for v in (a, np.ones_like(a)))
        return np.divide(total, count).astype(name)
    node = t.mean(t.cast(a._node, "float64" if dtype is None and a.dtype.kind in "iub" else name), axis, keepdims)
    return traced(t.cast(node, name), scalar=True)


def _var(
    a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
) -> Any:
    name = dtypes.name_of(dtype or _float_of(a))
    node = t.cast(a._node, "float32" if name in dtypes.HALVES else name)
    return traced(t.cast(t.var(node, axis, keepdims, ddof if correction is None else correction), name), scalar=True)


def _std(
    a: Any, axis: Axes = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None
) -> Any:
    name = dtypes.name_of(dtype or _float_of(a))
    wide = a.astype("float32" if name in dtypes.HALVES else name)
    return np.sqrt(_var(wide, axis, None, ddof, keepdims, correction)).astype(name)


def _without_nan(fill: Any) -> Callable[[Any], Any]:
    return lambda a: np.where(np.isnan(a), np.asarray(fill, a.dtype), a) if a.dtype.kind not in "iub" else a


def _nan_extreme(ufunc: np.ufunc, fill: float) -> Build:
    def build(a: Any, axis: Axes = None, keepdims: bool = False, initial: Any = np._NoValue, where: Any = True) -> Any:
        found = reduce(ufunc, _without_nan(fill)(a), axis, None, None, keepdims, initial, where)
        if a.dtype.kind in "iub":
            return found
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
    name = dtypes.name_of(dtype or _float_of(a))
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
        if returned:
            raise TraceError("np.average with returned= and without weights cannot be traced")
        return np.mean(a, axis, keepdims=keepdims)
    dtype = np.dtype(common_dtype(a, weights, *([np.float64(0)] if _integral(a) or _integral(weights) else [])))
    a, weights = a.astype(dtype) if is_traced(a) else np.asarray(a, dtype), _as(weights, dtype)
    if np.shape(weights) != np.shape(a):
        if np.ndim(weights) != 1 or not isinstance(axis, int | np.integer):
            raise TraceError("np.average with weights of another shape along several axes cannot be traced")
        axis = int(axis) % np.ndim(a)
        weights = np.reshape(weights, [-1 if i == axis else 1 for i in range(np.ndim(a))])
    spread = weights * np.ones_like(a)
    total = np.sum(spread, axis, keepdims=keepdims)
    found = np.sum(a * weights, axis, keepdims=keepdims) / total
    return (found, total) if returned else found


def _as(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if is_traced(value) else np.asarray(value, dtype)


def _integral(value: Any) -> bool:
    return np.dtype(common_dtype(value)).kind in "iub"


def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = np._NoValue, append: Any = np._NoValue) -> Any:
    axis = t.axis_of(axis, a.ndim)
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


def _ediff1d(ary: Any) -> Any:
    return np.diff(np.ravel(ary))


def _norm(x: Any, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:
    x = x.astype(np.float64) if x.dtype.kind in "iub" else x
    vector = ord is None or x.ndim == 1 if axis is None else isinstance(axis, int | np.integer) or len(axis) == 1
    if ord in (None, "fro") or (ord == 2 and vector):
        return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))
    if not vector:
        rows, columns = (x.ndim - 2, x.ndim - 1) if axis is None else (t.axis_of(a, x.ndim) for a in axis)
        along = {1: rows, -1: rows, np.inf: columns, -np.inf: columns}.get(ord)
        if along is None:
            raise TraceError(
                f"np.linalg.norm of order {ord} of matrices cannot be traced", hint="fro, 1, -1, inf or -inf can"
            )
        sums = np.sum(np.abs(x), along, keepdims=True)
        found = (np.max if ord > 0 else np.min)(sums, (rows, columns), keepdims=True)
        return found if keepdims else np.squeeze(found, (rows, columns))
    return _vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)


def _vector_norm(x: Any, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> Any:
    x = np.abs(x.astype(np.float64) if x.dtype.kind in "iub" else x)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(x, axis, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis, keepdims=keepdims)
    if ord == 1:
        return np.sum(x, axis, keepdims=keepdims)
    if ord == 2:
        return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))
    if not isinstance(ord, int | float):
        raise TraceError(f"a norm of order {ord!r} cannot be traced")
    return np.sum(x ** float(ord), axis, keepdims=keepdims) ** (1.0 / float(ord))


def _nodes(*values: Any) -> tuple[list[Tensor], str]:
    """Return (operands as expressions of their common dtype, that dtype)."""
    dtype = common_dtype(*values)
    return [operand(v, dtype) for v in values], dtype


def _contraction(build: Callable[..., Tensor]) -> Build:
    """Return a builder for contractions over operands of their common dtype.

    Bools are contracted as int32 and the result is cast back to bool.
    """

    def run(a: Any, b: Any, *more: Any, **named: Any) -> Any:
        (x, y), dtype = _nodes(a, b)
        if dtype == "bool":
            x, y = t.cast(x, "int32"), t.cast(y, "int32")
        return traced(t.cast(build(x, y, *more, **named), dtype), scalar=True)

    return run


def _dot(a: Tensor, b: Tensor) -> Tensor:
    if not a.rank or not b.rank:
        return t.mul(a, b)
    return t.matmul(a, b) if b.rank < 3 else _tensordot(a, b, ([a.rank - 1], [b.rank - 2]))


def _tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    if isinstance(axes, int | np.integer):
        axes = (list(range(a.rank - int(axes), a.rank)), list(range(int(axes))))
    ours, theirs = (_ints(v) for v in axes)
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    left, right = [next(letters) for _ in range(a.rank)], [next(letters) for _ in range(b.rank)]
    for i, j in zip(ours, theirs, strict=True):
        right[t.axis_of(j, b.rank)] = left[t.axis_of(i, a.rank)]
    kept = [v for v in left if v not in right] + [v for v in right if v not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", [a, b])


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return _tensordot(a, b, (-1, -1)) if a.rank and b.rank else t.mul(a, b)


def _vdot(a: Tensor, b: Tensor) -> Tensor:
    product = t.mul(t.reshape(a, (volume(a.shape),)), t.reshape(b, (volume(b.shape),)))
    return t.sum(product, dtype=product.dtype)


def _kron(a: Any, b: Any) -> Any:
    rank = max(np.ndim(a), np.ndim(b))
    a, b = (np.reshape(v, (1,) * (rank - np.ndim(v)) + np.shape(v)) for v in (a, b))
    left = np.reshape(a, [s for d in a.shape for s in (d, 1)])
    right = np.reshape(b, [s for d in b.shape for s in (1, d)])
    return np.reshape(left * right, [x * y for x, y in zip(a.shape, b.shape)])


def _cross(a: Any, b: Any, axis: int = -1) -> Any:
    a, b = np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise TraceError("np.cross of vectors that have not three components")
    (a0, a1, a2), (b0, b1, b2) = ([v[..., i] for i in range(3)] for v in (a, b))
    return np.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis)


def _einsum(*operands: Any, optimize: Any = False) -> Any:
    equation, values = operands[0], operands[1:]
    if not isinstance(equation, str):
        raise TraceError("np.einsum with lists of axes cannot be traced", hint='give the equation as text: "ij,jk->ik"')
    nodes, dtype = _nodes(*values)
    if dtype == "bool":
        nodes = [t.cast(n, "int32") for n in nodes]
    return traced(t.cast(einsum(equation, nodes), dtype), scalar=True)


def _multi_dot(arrays: Sequence[Any]) -> Any:
    found = arrays[0]
    for other in arrays[1:]:
        found = np.dot(found, other)
    return found


def _matrix_power(a: Any, n: int) -> Any:
    if n < 1:
        raise TraceError(f"np.linalg.matrix_power to {n} cannot be traced", hint="powers from 1 on can")
    found = a
    for _ in range(n - 1):
        found = np.matmul(found, a)
    return found


def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return np.sum(np.diagonal(a, offset, axis1, axis2), -1, dtype=dtype)


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
    arr, axis = (np.ravel(arr), 0) if axis is None else (arr, t.axis_of(axis, arr.ndim))
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
        raise TraceError(
            "np.where with a condition alone cannot be traced: its size depends on values",
            hint="np.where(condition, x, y)",
        )
    (a, b), _ = _nodes(x, y)
    return traced(t.where(operand(condition, "bool"), a, b))


def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    dtype = np.dtype(common_dtype(*choicelist, default))
    found = default if is_traced(default) else np.asarray(default, dtype)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = np.where(condition, _as(choice, dtype), found)
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
    if mode == "wrap" or (mode == "clip" and is_traced(indices)):
        raise TraceError(f"np.take with mode={mode!r} cannot be traced", hint="% or np.clip on the indices")
    if not is_traced(a):
        a = traced(t.as_tensor(np.asarray(a)))
    a, axis = (np.ravel(a), 0) if axis is None else (a, t.axis_of(axis, a.ndim))
    known = indices if is_traced(indices) else np.asarray(indices)
    if not is_traced(known) and mode == "clip":
        known = np.clip(known, 0, a.shape[axis] - 1)
    if known.ndim == 0 and not is_traced(known):
        known = int(known)
    return a[(*[slice(None)] * axis, known)]


def _full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    name = dtypes.name_of(dtype or a.dtype)
    sizes = a.shape if shape is None else _ints(shape)
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
            raise TraceError("np.round of integers to tens cannot be traced")
        return a.astype(np.float16) if a.dtype.kind == "b" else +a
    if not decimals:
        return np.rint(a)
    scale = a.dtype.type(10.0 ** abs(decimals))
    return np.rint(a * scale) / scale if decimals > 0 else np.rint(a / scale) * scale


def _sinc(x: Any) -> Any:
    x = x * np.pi if x.dtype.kind not in "iub" else x.astype(np.float64) * np.pi
    safe = np.where(x == 0, x.dtype.type(1), x)
    return np.where(x == 0, x.dtype.type(1), np.sin(safe) / safe)


def _quantile(scale: float) -> Build:
    def build(a: Any, q: Any, axis: Axes = None, method: str = "linear", keepdims: bool = False) -> Any:
        if method != "linear" or is_traced(q):
            raise TraceError("quantiles by another method, or at traced places, cannot be traced")
        dtype = _float_of(a)
        places = np.asarray(q, np.float64) / scale
        found = _quantiles(a.astype(dtype), places.reshape(-1), axis, np.float64 if places.ndim else float)
        if keepdims:
            ones = [1 if axis is None or i in [v % a.ndim for v in _ints(axis)] else d for i, d in enumerate(a.shape)]
            found = [np.reshape(v, ones) for v in found]
        return np.stack(found, 0).reshape((*places.shape, *found[0].shape)) if places.ndim else found[0]

    return build


def _quantiles(a: Any, places: Any, axis: Axes, number: Callable[[float], Any]) -> list[Any]:
    if axis is None:
        a = np.ravel(a)
    else:
        axes = [v % a.ndim for v in _ints(axis)]
        rest = [i for i in range(a.ndim) if i not in axes]
        a = np.transpose(a, [*rest, *axes])
        a = np.reshape(a, (*a.shape[: len(rest)], -1))
    size = a.shape[-1]
    ordered, holes = np.sort(a, -1), np.any(np.isnan(a), -1)
    found = []
    for place in places.tolist():
        low = min(int(place * (size - 1)), size - 1)
        part = number(place * (size - 1) - low)
        below, above = ordered[..., low], ordered[..., min(low + 1, size - 1)]
        gap = above - below
        value = below + gap * part if part < 0.5 else above - gap * (1 - part)
        value = below if part == 0 else np.where(above == below, below, value)
        found.append(np.where(holes, a.dtype.type(np.nan), value))
    return found


def _median(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    return _quantile(1.0)(a, 0.5, axis, "linear", keepdims).astype(_float_of(a))


def _ptp(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    return np.max(a, axis, keepdims=keepdims) - np.min(a, axis, keepdims=keepdims)


def _count_nonzero(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    return np.sum(a != 0 if a.dtype != np.bool_ else a, axis, keepdims=keepdims)


def _isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    dtype = np.dtype(common_dtype(b, 1.0)) if np.ndim(b) or is_traced(b) else None
    b = b if dtype is None else _as(b, dtype)
    near = np.abs(a - b) <= atol + rtol * np.abs(b)
    found = (near & np.isfinite(b)) | (a == b)
    return found | (np.isnan(a) & np.isnan(b)) if equal_nan else found


def _allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return np.all(_isclose(a, b, rtol, atol, equal_nan))


def _array_equal(a1: Any, a2: Any) -> Any:
    return np.all(a1 == a2) if np.shape(a1) == np.shape(a2) else False


def _isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    if is_traced(element) and not is_traced(test_elements):
        test_elements = np.asarray(test_elements)
    found = np.any(np.expand_dims(element, -1) == np.ravel(test_elements), -1)
    return ~found if invert else found


def _searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if sorter is not None or is_traced(a) or np.ndim(a) != 1 or not _is_sorted(np.asarray(a)):
        raise TraceError(
            "np.searchsorted in an array that is not known to be sorted", hint="sum the comparisons with its elements"
        )
    if side == "left":  # NaN borders are the last ones, and below nothing
        a = np.asarray(a)[np.equal(a, a)]
    (borders, x), _ = _nodes(a, v)
    return traced(bucketize(x, borders, False, side == "right"), scalar=True)


def _is_sorted(a: Any) -> bool:
    """Whether an array is sorted; NaN comes last."""
    return bool(np.array_equal(a, np.sort(a), equal_nan=a.dtype.kind == "f"))


def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    bins = np.asarray(bins)
    if not _is_sorted(bins):
        raise TraceError("np.digitize with falling bins cannot be traced")
    return np.searchsorted(bins, x, "left" if right else "right")


def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    a, v = (a, v) if np.size(a) >= np.size(v) else (v, a)
    size, width = int(np.size(a)), int(np.size(v))
    dtype = np.dtype(common_dtype(a, v))
    a, v = _as(a, dtype), _as(v, dtype)
    wide = np.pad(a, (width - 1, width - 1))
    rows = np.stack([wide[i : i + size + width - 1] for i in range(width)], 1)
    if mode == "valid" or dtype.kind != "f":
        full = rows @ v[::-1]
    else:  # padding times infinity is not a number
        inside = _windows_inside(size, width)
        full = np.sum(np.where(inside, rows * v[::-1], dtype.type(0)), 1, dtype=dtype)
    cut = {"full": 0, "same": (width - 1) // 2, "valid": width - 1}[mode]
    length = {"full": size + width - 1, "same": size, "valid": size - width + 1}[mode]
    return full[cut : cut + length]


def _windows_inside(size: int, width: int) -> Any:
    """[size + width - 1, width] bool: whether place k of window i, which begins at i - (width - 1), is in range(size)."""
    place = np.arange(size + width - 1)[:, None] + np.arange(width) - (width - 1)
    return (place >= 0) & (place < size)


def _correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    if np.size(v) > np.size(a):
        raise TraceError("np.correlate with the longer array second cannot be traced")
    found = _convolve(a, v[::-1] if is_traced(v) else np.asarray(v)[::-1], mode)
    if mode == "same" and np.size(v) % 2 == 0:
        full = _convolve(a, v[::-1] if is_traced(v) else np.asarray(v)[::-1], "full")
        found = full[np.size(v) // 2 : np.size(v) // 2 + np.size(a)]
    return found


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    y = np.moveaxis(y, axis, -1)
    step = dx if x is None else np.diff(np.moveaxis(x, axis, -1) if np.ndim(x) > 1 else x)
    return np.sum(step * (y[..., 1:] + y[..., :-1]) / 2.0, -1)


def _cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None) -> Any:
    if y is not None or m.ndim > 2:
        raise TraceError("np.cov of two arrays cannot be traced", hint="np.concatenate makes one of them")
    dtype = np.result_type(m.dtype, np.float64)
    x = np.atleast_2d(m).astype(dtype)
    x = x if rowvar or m.ndim == 1 else x.T
    count = x.shape[1] - ((0 if bias else 1) if ddof is None else ddof)
    gap = x - np.mean(x, 1, keepdims=True)
    return np.squeeze(np.matmul(gap, gap.T) / np.float64(count))


def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    width = len(x) if N is None else N
    powers = [x**i if i else np.ones_like(x) for i in range(width)]
    dtype = np.promote_types(x.dtype, np.int64) if x.dtype.kind in "iub" else x.dtype
    return np.stack([p.astype(dtype) for p in (powers if increasing else powers[::-1])], 1)


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    name = common_dtype(src) if kindless(src) else None
    if name and not np.can_cast(name, dst.dtype, casting):  # type: ignore[arg-type]
        raise TraceError(f"{name} cannot be cast to {dst.dtype} by the rule {casting!r}")
    if not is_traced(dst):
        raise TraceError(
            "np.copyto into an array that is not traced, which a program cannot do", hint="np.empty_like(x)"
        )
    _written(operand(src, dst.dtype.name), dst, where)


def kindless(value: Any) -> bool:
    """Whether a value has a dtype of its own, unlike Python numbers."""
    return type(value) not in (int, float, bool)


def _size(a: Any, axis: int | None = None) -> Any:
    return a.size if axis is None else a.shape[t.axis_of(axis, a.ndim)]


def _result_type(*arrays_and_dtypes: Any) -> Any:
    return np.result_type(*(v.dtype if is_traced(v) else v for v in arrays_and_dtypes))


#: Builders over traced arrays, composed of NumPy operators and functions, which determine the dtypes.
COMPOSED: dict[str, Build] = {
    "sum": _reduction(np.add), "prod": _reduction(np.multiply), "max": _reduction(np.maximum), "min": _reduction(np.minimum),
    "all": _reduction(np.logical_and), "any": _reduction(np.logical_or), "nansum": _reduction(np.add, _without_nan(0)),
    "nanprod": _reduction(np.multiply, _without_nan(1)), "nanmax": _nan_extreme(np.maximum, -np.inf),
    "nanmin": _nan_extreme(np.minimum, np.inf), "nanmean": _nanmean, "nanvar": _nanvar, "nanstd": _nanstd, "mean": _mean,
    "var": _var, "std": _std, "average": _average, "ptp": _ptp, "count_nonzero": _count_nonzero, "median": _median,
    "quantile": _quantile(1.0), "percentile": _quantile(100.0), "cumsum": _running(np.add), "cumprod": _running(np.multiply),
    "nancumsum": _running(np.add, _without_nan(0)), "nancumprod": _running(np.multiply, _without_nan(1)),
    "cumulative_sum": _cumulative(np.add), "cumulative_prod": _cumulative(np.multiply), "diff": _diff, "ediff1d": _ediff1d,
    "linalg.norm": _norm, "linalg.vector_norm": _vector_norm, "dot": _contraction(_dot), "inner": _contraction(_inner),
    "vdot": _contraction(_vdot), "tensordot": _contraction(_tensordot), "linalg.tensordot": lambda x1, x2, axes=2: np.tensordot(x1, x2, axes),
    "linalg.matrix_norm": lambda x, ord="fro", keepdims=False: _norm(x, ord, (-2, -1), keepdims),
    "linalg.matmul": lambda x1, x2: np.matmul(x1, x2), "linalg.vecdot": lambda x1, x2, axis=-1: np.vecdot(np.moveaxis(x1, axis, -1), np.moveaxis(x2, axis, -1)),
    "outer": lambda a, b: np.ravel(a)[:, None] * np.ravel(b)[None, :],
    "linalg.outer": lambda x1, x2: np.asanyarray(x1)[:, None] * x2[None, :] if not is_traced(x1) else x1[:, None] * x2[None, :],
    "kron": _kron, "cross": _cross, "linalg.cross": lambda x1, x2, axis=-1: _cross(x1, x2, axis), "einsum": _einsum,
    "linalg.multi_dot": _multi_dot, "linalg.matrix_power": _matrix_power, "trace": _trace,
    "linalg.trace": lambda x, offset=0, dtype=None: _trace(x, offset, -2, -1, dtype),
    "concatenate": _concatenate, "stack": _stack, "vstack": _vstack, "hstack": _hstack, "dstack": _dstack,
    "column_stack": _column_stack, "append": _append, "delete": _delete, "meshgrid": _meshgrid, "where": _where,
    "select": _select, "clip": _clip, "take": _take, "zeros_like": _like(0), "ones_like": _like(1), "full_like": _full_like,
    "empty_like": _empty_like, "copy": lambda a: traced(a._node), "nan_to_num": _nan_to_num, "round": _rounded,
    "sinc": _sinc, "real": lambda val: val, "imag": lambda val: np.zeros_like(val), "astype": lambda x, dtype: x.astype(dtype),
    "isclose": _isclose, "allclose": _allclose, "array_equal": _array_equal, "isin": _isin, "searchsorted": _searchsorted,
    "digitize": _digitize, "convolve": _convolve, "correlate": _correlate, "trapezoid": _trapezoid, "cov": _cov,
    "vander": _vander, "copyto": _copyto, "iscomplexobj": lambda x: False, "isrealobj": lambda x: True,
    "iscomplex": lambda x: np.zeros_like(x, dtype=bool), "isreal": lambda x: np.ones_like(x, dtype=bool),
    "isposinf": lambda x: np.isinf(x) & (x > 0), "isneginf": lambda x: np.isinf(x) & (x < 0),
    "fix": lambda x: np.trunc(x), "shape": lambda a: a.shape, "ndim": lambda a: a.ndim, "size": _size,
    "result_type": _result_type,
}  # fmt: skip
for _alias, _name in (("amax", "max"), ("amin", "min"), ("around", "round")):
    COMPOSED[_alias] = COMPOSED[_name]
FUNCTIONS: dict[str, Build] = LAYOUT | COMPOSED
#: Functions that always return a copy, even if the result could be a view.
FRESH = {
    "copy",
    "astype",
    "repeat",
    "tile",
    "roll",
    "take",
    "pad",
    "concatenate",
    "stack",
    "delete",
    "append",
    "clip",
    "round",
}
#: Functions that are not called on stand-ins, because the result's shape or validity depends on argument values.
UNPROBED = {"where"}


# ---------------------------------------------------------------- calls
def title(function: Any) -> str:
    """Qualified name of a function within the numpy package."""
    module = str(getattr(function, "__module__", ""))
    return f"{module}.{getattr(function, '__name__', function)}".removeprefix("numpy.")


@cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _by_name(
    name: str, function: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Bind arguments to NumPy's signature. Returns (variadic positional arguments, other arguments by name).

    Arguments equal to their defaults are dropped.
    """
    signature = _signature(function)
    if signature is None:
        return list(args), dict(named)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise TraceError(f"np.{name}: {error}") from None
    places: list[Any] = []
    found: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            found |= value
        elif parameter.default is parameter.empty or not _same(value, parameter.default):
            found[key] = value
    return places, found


def _same(value: Any, default: Any) -> bool:
    simple = (bool, int, float, str, type(None), type(np._NoValue))
    return type(value) is type(default) and isinstance(default, simple) and value == default


_IGNORED = {"subok", "device", "overwrite_input", "like"}  # options without effect on the result


def call(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Result of NumPy's `function(*args, **named)` on traced arrays (the `__array_function__` protocol)."""
    name = title(function)
    build = FUNCTIONS.get(name)
    if build is None:
        raise TraceError(
            f"np.{name} of a traced array cannot be traced", hint="write it with other functions of NumPy, or tg.*"
        )
    places, given = _by_name(name, function, args, named)
    out = given.pop("out", None)
    given = {k: v for k, v in given.items() if k not in _IGNORED and not (k == "order" and v in ("C", "K", "A", None))}
    try:
        inspect.signature(build).bind(*places, **given)
    except TypeError as error:
        raise TraceError(f"np.{name} of a traced array: {error}", hint="leave that argument away") from None
    wanted = _probed(name, function, args, named)
    try:
        if name in LAYOUT:
            places, given = deep(places, expression), deep(given, expression)
            first = next((v for v in [*given.values(), *places] if not isinstance(v, Tensor)), None)
            if first is not None and name in ("take_along_axis", "searchsorted"):
                given = {k: t.as_tensor(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
            result = deep(build(*places, **given), lambda v: traced(v) if isinstance(v, Tensor) else v)
        else:
            result = deep(build(*places, **given), lambda v: v.copy() if type(v) is np.ndarray else v)
    except TensorGraphsError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise TraceError(
            f"np.{name} of a traced array: {error}", hint="other arguments, or other functions of NumPy"
        ) from error
    result = _agreeing(name, result, wanted)
    if out is not None:
        out = out[0] if isinstance(out, tuple) else out
        if result.shape != np.shape(out):
            raise TraceError(f"np.{name} makes {result.shape}, and out= has the shape {np.shape(out)}")
        return _written(operand(result, out.dtype.name), out)
    if name not in FRESH:
        result = deep(result, lambda v: _in_memory(v, arrays_in(args, dict(named))))
    return result


def _in_memory(value: Any, arrays: Sequence[TracedArray]) -> Any:
    """Return a result that aliases the memory of an argument, if the result may be a view of the argument."""
    if not is_traced(value) or any(value is a for a in arrays) or value._scalar:
        return value
    memory: Memory | None = shared(value._node, arrays)
    return value if memory is None else traced(value._node, memory=memory)


def _probed(name: str, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return NumPy's result for arrays of ones in place of the traced arrays; None if the arguments are too large.

    If NumPy raises, zeros are tried. Raises TraceError if NumPy raises for both.
    """
    arrays = arrays_in(list(args), dict(named))
    sizes = [a.size for a in arrays if isinstance(a.size, int)]
    if name in UNPROBED or len(sizes) < len(arrays) or sum(sizes) > PROBED:
        return None
    problem: Exception | None = None
    for fill in (1, 0):
        change = partial(_stand_in, fill=fill)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(*deep(list(args), change), **deep(dict(named), change))
        except Exception as error:
            problem = error
    raise TraceError(f"np.{name}: {problem}") from None


def _stand_in(value: Any, fill: int) -> Any:
    """Return an array filled with `fill` in place of a traced array, and a copy of a plain array (NumPy may write to
    it).
    """
    value = expression(value)
    if isinstance(value, Tensor):
        return np.full(concrete(value.shape), fill, dtypes.numpy_dtype(value.dtype))
    return value.copy() if type(value) is np.ndarray else value


def _agreeing(name: str, result: Any, wanted: Any) -> Any:
    """Cast a result to the dtype of NumPy's result `wanted`. Raises TraceError if shape or structure differ."""
    if wanted is None:
        return result
    if isinstance(wanted, list | tuple):
        if not isinstance(result, list | tuple) or len(result) != len(wanted):
            raise TraceError(f"np.{name} of a traced array has another structure than NumPy's")
        parts = [_agreeing(name, r, w) for r, w in zip(result, wanted)]
        return parts if type(wanted) is list else tuple(parts)
    if not is_traced(result) or not isinstance(wanted, np.ndarray | np.generic | bool | int | float):
        return result
    dtype = np.asarray(wanted).dtype
    if result.shape != np.shape(wanted):
        raise TraceError(f"np.{name} of a traced array makes {result.shape}, NumPy makes {np.shape(wanted)}")
    if result.dtype == dtype and (result.ndim or result._scalar == (not isinstance(wanted, np.ndarray))):
        return result
    return traced(t.cast(result._node, native_name(dtype)), scalar=not isinstance(wanted, np.ndarray))


__all__ = ["COMPOSED", "FUNCTIONS", "LAYOUT", "call", "title"]
