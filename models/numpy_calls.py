"""NumPy's functions on our tensors: `np.exp(x)`, `np.mean(x, axis=0)` and the like build the nodes that `tg.*` would.

NumPy hands such calls over (its `__array_ufunc__` and `__array_function__` protocols), so that code written for arrays can be
traced. Shapes, axes and defaults are NumPy's. Dtypes are `tg`'s: sums of integers are kept in 64 bits as NumPy's are, but where it
would make float64 of integers (`mean`, `/`, an integer with a float32), float32 comes out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..egraph import api as t
from ..egraph import dtypes
from ..egraph.dims import Dim
from ..egraph.graph import Tensor
from ..errors import ShapeError, UsageError
from . import aten_layout as layout
from . import aten_pointwise as pointwise
from .aten_reduce import arg, sort
from .einsum import einsum
from .sampling import running

Axes = int | Sequence[int] | None
Build = Callable[..., Any]

_ID = pointwise.IDENTITIES


def _of_floats(build: Build) -> Build:
    return lambda x: build(pointwise.as_float(t.as_tensor(x)))


#: NumPy's name of a ufunc -> what builds it
UFUNCS: dict[str, Build] = {
    "add": t.add, "subtract": t.sub, "multiply": t.mul, "divide": t.div, "floor_divide": t.floordiv, "remainder": t.mod, "fmod": pointwise.fmod,
    "power": lambda x, y: x**y if isinstance(x, Tensor) else t.pow(x, y), "negative": t.neg, "positive": t.as_tensor,
    "absolute": t.abs, "fabs": t.abs, "sign": t.sign, "square": t.square, "reciprocal": t.recip, "sqrt": t.sqrt,
    "exp": t.exp, "expm1": t.expm1, "log": t.log, "log1p": t.log1p, "log2": pointwise.scaled_log(2.0),
    "log10": pointwise.scaled_log(10.0), "sin": t.sin, "cos": t.cos, "tanh": t.tanh, "arctan": t.atan,
    "floor": pointwise.whole(t.floor), "ceil": pointwise.whole(t.ceil), "rint": pointwise.whole(t.round),
    "trunc": pointwise.trunc, "maximum": t.maximum, "minimum": t.minimum, "fmax": pointwise.fmax, "fmin": pointwise.fmin,
    "arctan2": pointwise.atan2, "hypot": pointwise.hypot, "copysign": pointwise.copysign, "signbit": pointwise.signbit,
    "equal": t.eq, "not_equal": t.ne, "less": t.lt, "less_equal": t.le, "greater": t.gt, "greater_equal": t.ge,
    "logical_and": pointwise.logical(t.logical_and), "logical_or": pointwise.logical(t.logical_or),
    "logical_xor": pointwise.logical(t.logical_xor), "logical_not": t.logical_not,
    "bitwise_and": t.logical_and, "bitwise_or": t.logical_or, "bitwise_xor": t.logical_xor, "invert": pointwise.bitwise_not,
    "left_shift": pointwise.shift(True), "right_shift": pointwise.shift(False),
    "isnan": pointwise.is_nan, "isinf": pointwise.is_inf, "isfinite": pointwise.is_finite, "matmul": t.matmul,
    **{name: _of_floats(_ID[ours]) for name, ours in {
        "tan": "tan", "sinh": "sinh", "cosh": "cosh", "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh",
        "arccosh": "acosh", "arctanh": "atanh", "exp2": "exp2", "deg2rad": "deg2rad", "rad2deg": "rad2deg",
        "radians": "deg2rad", "degrees": "rad2deg"}.items()},
}  # fmt: skip
#: a ufunc whose `reduce` is a reduction
REDUCTIONS: dict[str, Build] = {
    "add": t.sum, "multiply": t.prod, "maximum": t.max, "minimum": t.min, "logical_and": t.all, "logical_or": t.any,
}  # fmt: skip


# ---------------------------------------------------------------- functions, with NumPy's parameters
def _concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Tensor:
    parts = [t.as_tensor(x) for x in arrays]
    return t.concat([t.reshape(x, (-1,)) for x in parts], 0) if axis is None else t.concat(parts, axis)


def _joined(axis: int, rank: int) -> Build:
    """Along an axis, operands of a lower rank made columns (rank 2) or lines (rank 1) first."""

    def build(tup: Sequence[Any]) -> Tensor:
        parts = [t.with_rank(t.as_tensor(x), rank) for x in tup]
        return t.concat(parts, axis if parts[0].rank > 1 else 0)

    return build


def _pieces(x: Tensor, count: int, axis: int, even: bool) -> list[Tensor]:
    size = x.shape[t.axis_of(axis, x.rank)]
    if not isinstance(size, int) or count < 1 or (even and size % count):
        raise ShapeError(f"{size} elements do not make {count} equal pieces")
    larger = size % count
    return t.split(x, [size // count + (i < larger) for i in range(count)], axis)


def _split(even: bool) -> Build:
    def build(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
        if isinstance(indices_or_sections, int):
            return _pieces(ary, indices_or_sections, axis, even)
        size = ary.shape[t.axis_of(axis, ary.rank)]
        places: list[Dim] = [0, *map(int, indices_or_sections), size]
        return t.split(ary, [b - a for a, b in pairwise(places)], axis)

    return build


def _std(a: Tensor, axis: Axes = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    return t.sqrt(t.var(a, axis, keepdims, ddof))


def _norm(x: Tensor, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Tensor:
    if ord not in (None, 2, "fro") or (ord == 2 and (axis is None or not isinstance(axis, int)) and x.rank != 1):
        raise UsageError(f"np.linalg.norm of order {ord} cannot be traced", hint="the root of a sum of squares can")
    return t.sqrt(t.sum(t.square(pointwise.as_float(x)), axis, keepdims))


def _dot(a: Any, b: Any) -> Tensor:
    a, b = t.as_tensor(a), t.as_tensor(b)
    if not a.rank or not b.rank:
        return t.mul(a, b)
    if b.rank < 3:
        return t.matmul(a, b)
    return _tensordot(a, b, ([a.rank - 1], [b.rank - 2]))


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    a, b = t.as_tensor(a), t.as_tensor(b)
    if isinstance(axes, int):
        axes = (list(range(a.rank - axes, a.rank)), list(range(axes)))
    ours, theirs = ([v] if isinstance(v, int) else list(v) for v in axes)
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    left, right = [next(letters) for _ in range(a.rank)], [next(letters) for _ in range(b.rank)]
    for i, j in zip(ours, theirs, strict=True):
        right[t.axis_of(j, b.rank)] = left[t.axis_of(i, a.rank)]
    kept = [v for v in left if v not in right] + [v for v in right if v not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", [a, b])


def _vdot(a: Any, b: Any) -> Tensor:
    product = t.mul(a, b)
    return t.sum(product, dtype=product.dtype)


def _outer(a: Any, b: Any) -> Tensor:
    return t.mul(t.reshape(t.as_tensor(a), (-1, 1)), t.reshape(t.as_tensor(b), (1, -1)))


def _moveaxis(a: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    from_, to = ([v] if isinstance(v, int) else list(v) for v in (source, destination))
    from_, to = [t.axis_of(v, a.rank) for v in from_], [t.axis_of(v, a.rank) for v in to]
    order = [i for i in range(a.rank) if i not in from_]
    for place, axis in sorted(zip(to, from_, strict=True)):
        order.insert(place, axis)
    return t.permute(a, order)


def _expand_dims(a: Tensor, axis: int | Sequence[int]) -> Tensor:
    axes = [axis] if isinstance(axis, int) else list(axis)
    for place in sorted(t.axis_of(v, a.rank + len(axes)) for v in axes):
        a = t.expand_dims(a, place)
    return a


def _flip(m: Tensor, axis: Axes = None) -> Tensor:
    return layout.flip(m, range(m.rank) if axis is None else [axis] if isinstance(axis, int) else axis)


def _roll(a: Tensor, shift: Any, axis: Any = None) -> Tensor:
    return layout.roll(a, shift, () if axis is None else axis)


def _pad(array: Tensor, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Tensor:
    widths = np.broadcast_to(np.asarray(pad_width, dtype=np.int64), (array.rank, 2)).tolist()
    flat = [v for pair in reversed(widths) for v in pair]
    if mode == "constant":
        return layout.constant_pad(array, flat, constant_values)
    if mode not in ("edge", "reflect", "wrap"):
        raise UsageError(f"np.pad with mode={mode!r} cannot be traced", hint="constant, edge, reflect or wrap")
    return layout.edge_pad(mode)(array, flat)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    x = t.as_tensor(a)
    x = x if low is None else t.maximum(x, low)
    return x if high is None else t.minimum(x, high)


def _cumsum(a: Tensor, axis: int | None = None, dtype: Any = None) -> Tensor:
    return t.cumsum(t.reshape(a, (-1,)), 0, dtype) if axis is None else t.cumsum(a, axis, dtype)


def _cumprod(a: Tensor, axis: int | None = None, dtype: Any = None) -> Tensor:
    x = t.cast(a, dtypes.summed(a.dtype) if dtype is None else dtype)
    return running(t.reshape(x, (-1,)), 0, t.mul, 1) if axis is None else running(x, axis, t.mul, 1)


def _diff(a: Tensor, n: int = 1, axis: int = -1) -> Tensor:
    place = t.axis_of(axis, a.rank)
    for _ in range(n):
        size = a.shape[place]
        later, earlier = t.slice_axis(a, place, 1, size), t.slice_axis(a, place, 0, size - 1)
        a = t.ne(later, earlier) if a.dtype == "bool" else t.sub(later, earlier)
    return a


def _take(a: Any, indices: Any, axis: int | None = None) -> Tensor:
    a = t.as_tensor(a) if axis is not None else t.reshape(t.as_tensor(a), (-1,))
    place = t.axis_of(axis or 0, a.rank)
    known = np.asarray(indices) if not isinstance(indices, Tensor) else indices
    return t.getitem(a, (*[slice(None)] * place, known))


def _take_along(arr: Any, indices: Any, axis: int = -1) -> Tensor:
    x = t.as_tensor(arr)
    along = t.axis_of(axis, x.rank)
    index = t.from_end(t.as_tensor(indices), x.shape[along])
    if index.rank != x.rank:
        raise ShapeError(f"np.take_along_axis of rank {x.rank} with indices of rank {index.rank}")
    sides = [i if j == 1 else j for i, j in zip(x.shape, index.shape)]  # those beside the axis broadcast
    wide = t.broadcast_to(x, [d if a == along else s for a, (d, s) in enumerate(zip(x.shape, sides))])
    return t.gather_elements(
        wide, t.broadcast_to(index, [index.shape[along] if a == along else s for a, s in enumerate(sides)]), along
    )


def _where(condition: Any, *values: Any) -> Tensor:
    if len(values) != 2:
        raise UsageError("np.where with a condition alone cannot be traced: its size depends on values",
                         hint="np.where(condition, x, y)")  # fmt: skip
    return t.where(condition, *values)


def _like(value: Any) -> Build:
    def build(a: Tensor, dtype: Any = None, shape: Any = None) -> Tensor:
        return t.full(a.shape if shape is None else shape, value, dtype or a.dtype)

    return build


def _full_like(a: Tensor, fill_value: Any, dtype: Any = None, shape: Any = None) -> Tensor:
    wanted = dtypes.name_of(dtype or a.dtype)
    return t.broadcast_to(t.cast(t.as_tensor(fill_value), wanted), a.shape if shape is None else shape)


def _average(a: Tensor, axis: Axes = None, weights: Any = None, keepdims: bool = False) -> Tensor:
    if weights is None:
        return t.mean(a, axis, keepdims)
    w = t.as_tensor(weights)
    if w.rank != a.rank:
        raise UsageError("np.average with weights of another rank cannot be traced", hint="give them the array's shape")
    return t.div(t.sum(t.mul(a, w), axis, keepdims), t.sum(t.mul(w, t.ones((1,) * a.rank, a.dtype)), axis, keepdims))


def _diagonal(v: Tensor, k: int = 0) -> Tensor:
    if v.rank == 2:
        return layout.diagonal(v, k)
    if v.rank != 1 or k or not isinstance(v.shape[0], int):
        raise UsageError("np.diag makes a matrix of one known main diagonal only")
    return t.mul(layout.eye(v.shape[0], dtype=v.dtype), v)


def _size(a: Tensor, axis: int | None = None) -> Dim:
    return a.size if axis is None else a.shape[t.axis_of(axis, a.rank)]


#: NumPy's name of a function, below its package -> what builds it, with NumPy's names for its parameters
FUNCTIONS: dict[str, Build] = {
    "sum": lambda a, axis=None, dtype=None, keepdims=False: t.sum(a, axis, keepdims, dtype),
    "prod": lambda a, axis=None, dtype=None, keepdims=False: t.prod(a, axis, keepdims, dtype),
    "mean": lambda a, axis=None, dtype=None, keepdims=False: t.mean(a if dtype is None else t.cast(a, dtype), axis, keepdims),
    "nansum": lambda a, axis=None, dtype=None, keepdims=False: t.sum(t.where(pointwise.is_nan(a), 0, a), axis, keepdims, dtype),
    "count_nonzero": lambda a, axis=None, keepdims=False: t.sum(t.cast(a, "bool"), axis, keepdims),
    "ptp": lambda a, axis=None, keepdims=False: t.sub(t.max(a, axis, keepdims), t.min(a, axis, keepdims)),
    "max": lambda a, axis=None, keepdims=False: t.max(a, axis, keepdims),
    "min": lambda a, axis=None, keepdims=False: t.min(a, axis, keepdims),
    "all": lambda a, axis=None, keepdims=False: t.all(a, axis, keepdims),
    "any": lambda a, axis=None, keepdims=False: t.any(a, axis, keepdims),
    "var": lambda a, axis=None, ddof=0, keepdims=False: t.var(a, axis, keepdims, ddof),
    "std": _std, "average": _average, "linalg.norm": _norm, "cumsum": _cumsum, "cumprod": _cumprod, "diff": _diff,
    "argmax": lambda a, axis=None, keepdims=False: arg(t.argmax)(a, axis, keepdims),
    "argmin": lambda a, axis=None, keepdims=False: arg(t.argmin)(a, axis, keepdims),
    "sort": lambda a, axis=-1, kind=None, stable=None: sort(a, axis)[0],
    "argsort": lambda a, axis=-1, kind=None, stable=None: sort(a, axis)[1],
    "dot": _dot, "inner": lambda a, b: _tensordot(a, b, (-1, -1)), "vdot": _vdot,
    "outer": _outer, "tensordot": _tensordot,
    "einsum": lambda subscripts, *operands, optimize=False: einsum(subscripts, [t.as_tensor(x) for x in operands]),
    "reshape": lambda a, shape, order="C": t.reshape(a, (shape,) if isinstance(shape, int) else shape),
    "ravel": lambda a, order="C": t.reshape(a, (-1,)), "copy": lambda a, order="K": a,
    "transpose": lambda a, axes=None: t.permute(a, axes or tuple(reversed(range(a.rank)))),
    "matrix_transpose": t.transpose, "swapaxes": lambda a, axis1, axis2: t.swapaxes(a, axis1, axis2), "moveaxis": _moveaxis,
    "expand_dims": _expand_dims, "squeeze": lambda a, axis=None: t.squeeze(a, axis),
    "broadcast_to": lambda array, shape: t.broadcast_to(array, (shape,) if isinstance(shape, int) else shape),
    "concatenate": _concatenate, "stack": lambda arrays, axis=0: t.stack(arrays, axis),
    "hstack": _joined(1, 1), "vstack": _joined(0, 2), "split": _split(True), "array_split": _split(False),
    "flip": _flip, "fliplr": lambda m: t.flip(m, 1), "flipud": lambda m: t.flip(m, 0), "roll": _roll, "pad": _pad,
    "repeat": lambda a, repeats, axis=None: layout.repeat_interleave(a, repeats, axis),
    "tile": lambda A, reps: layout.repeat(A, (1,) * (A.rank - len(_reps(reps))) + _reps(reps)),
    "tril": lambda m, k=0: layout.tril(m, k), "triu": lambda m, k=0: layout.triu(m, k),
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: layout.diagonal(a, offset, axis1, axis2), "diag": _diagonal,
    "trace": lambda a, offset=0, axis1=0, axis2=1: t.sum(layout.diagonal(a, offset, axis1, axis2), -1),
    "take": _take, "take_along_axis": _take_along, "where": _where, "clip": _clip,
    "zeros_like": _like(0), "ones_like": _like(1), "full_like": _full_like,
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: pointwise.nan_to_num(x, nan, posinf, neginf),
    "sinc": lambda x: t.where(t.eq(x, 0), 1.0, t.div(t.sin(x * np.pi), t.where(t.eq(x, 0), 1.0, x * np.pi))),
    "shape": lambda a: a.shape, "ndim": lambda a: a.rank, "size": _size,
}  # fmt: skip
FUNCTIONS |= {"amax": FUNCTIONS["max"], "amin": FUNCTIONS["min"], "round": lambda a, decimals=0: _rounded(a, decimals)}


def _reps(reps: Any) -> tuple[int, ...]:
    return (reps,) if isinstance(reps, int) else tuple(reps)


def _rounded(a: Tensor, decimals: int) -> Tensor:
    return pointwise.round_decimals(a, decimals) if dtypes.is_float(a.dtype) else a


# ---------------------------------------------------------------- the protocols
def _call(name: str, build: Build | None, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a builder makes of a call; options that it lacks are dropped where they say nothing. UsageError names the others."""
    if build is None:
        raise UsageError(f"np.{name} of a tensor expression cannot be traced", hint="write it with tg.* functions")
    signature = inspect.signature(build)
    given = {k: v for k, v in named.items() if v is not np._NoValue and (v is not None or k in signature.parameters)}
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise UsageError(f"np.{name} of a tensor expression: {error}", hint="write it with tg.* functions") from None
    return build(*args, **given)


def _array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
    """NumPy's protocol: ufuncs, and those of their reductions that are ops."""
    name = ufunc.__name__
    if method == "__call__":
        inputs = tuple(t.as_tensor(x) if isinstance(x, np.ndarray | np.integer | np.bool_) else x for x in inputs)
        return _call(name, UFUNCS.get(name), inputs, named)
    if method == "reduce":
        given = {"axis": 0, **named}
        return _call(f"{name}.reduce", REDUCTIONS.get(name), inputs, given | {"keepdims": given.get("keepdims", False)})
    return _call(
        f"{name}.{method}", t.cumsum if (name, method) == ("add", "accumulate") else None, inputs, {"axis": 0, **named}
    )


def _array_function(
    self: Tensor, func: Callable[..., Any], types: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """NumPy's protocol: its other functions."""
    name = f"{func.__module__}.{func.__name__}".removeprefix("numpy.")
    return _call(name, FUNCTIONS.get(name), args, named)


#: The functions that arrays have as methods too, beside those in `egraph/api.py`.
METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "clip", "copy", "cumprod", "cumsum", "diagonal", "dot", "prod", "ravel", "repeat", "round",
    "squeeze", "std", "swapaxes", "take", "trace", "var",
)  # fmt: skip
for _name in METHODS:
    setattr(Tensor, _name, FUNCTIONS[_name])
#: Operators beside those in `egraph/api.py`.
for _name, _ufunc in (("lshift", UFUNCS["left_shift"]), ("rshift", UFUNCS["right_shift"])):
    setattr(Tensor, f"__{_name}__", _ufunc)
    setattr(Tensor, f"__r{_name}__", lambda x, y, _ufunc=_ufunc: _ufunc(y, x))
Tensor.__array_ufunc__ = _array_ufunc
Tensor.__array_function__ = _array_function
__all__ = ["FUNCTIONS", "REDUCTIONS", "UFUNCS"]
