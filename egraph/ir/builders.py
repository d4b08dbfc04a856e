"""Functions that build nodes, under the names of the Array API; they insert the casts, reshapes and broadcasts that
operands need.

Python numbers are weakly typed: they take the dtype of the tensor they are combined with. Between tensors
`dtypes.promote` decides.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ShapeError, UsageError
from . import atomic_ops as atomic
from . import dtypes
from .dims import Dim, DimExpr, Shape, dim, volume
from .ops import OPS, Op, dims_of
from .tensor import Tensor, constant, make

assert atomic  # registers the atomic ops
Scalar = bool | int | float
Operand = Tensor | Scalar


# ---------------------------------------------------------------- leaves
def input(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a value that the caller gives at each call; `name` is its argument name."""
    return make("input", (), {"name": name, "shape": shape, "dtype": dtype})


def param(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a weight of a model: its value is bound once by `name`, not per call."""
    return make("param", (), {"name": name, "shape": shape, "dtype": dtype})


def state(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a value that a program keeps between calls; `Graph.updates` gives its value after a call by `name`."""
    return make("state", (), {"name": name, "shape": shape, "dtype": dtype})


def full(shape: Sequence[Dim], value: Scalar, dtype: str = "float32") -> Tensor:
    """A tensor filled with one number.

    Raises UsageError if the value is no number of the dtype (NaN as an int, say).
    """
    dtype = dtypes.name_of(dtype)
    kind = dtypes.category(dtype)
    try:
        number = float(value) if kind == "float" else int(bool(value) if kind == "bool" else value)
    except (OverflowError, ValueError) as error:  # an int beyond all floats; int() of NaN or an infinity
        raise UsageError(f"{value!r} is no {dtype}") from error
    if kind == "int" and not -(2**63) <= number < 2**64:
        raise UsageError(f"{value} does not fit into 64 bits")
    return make("full", (), {"value": number, "shape": shape, "dtype": dtype})


def zeros(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """A tensor of zeros with the given shape and dtype."""
    return full(shape, 0, dtype)


def ones(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """A tensor of ones with the given shape and dtype."""
    return full(shape, 1, dtype)


def arange(stop: Dim, dtype: str = "int64") -> Tensor:
    """The vector 0, 1, …, stop - 1."""
    return make("iota", (), {"axis": 0, "shape": (stop,), "dtype": dtype})


def iota(shape: Sequence[Dim], axis: int, dtype: str = "int64") -> Tensor:
    """A tensor of the given shape that holds the index along one axis: 0, 1, … along that axis, equal along the
    others."""
    return make("iota", (), {"axis": axis_of(axis, len(shape)), "shape": shape, "dtype": dtype})


def as_tensor(value: Any) -> Tensor:
    """The value as a tensor: a tensor, an object with `__tensor__()`, a number, an array or nested lists of numbers.

    Raises UsageError for anything else.
    """
    if isinstance(value, Tensor):
        return value
    if (given := getattr(type(value), "__tensor__", None)) is not None:
        return given(value)  # type: ignore[no-any-return]
    try:
        array = np.asarray(value)
        dtype = dtypes.name_of(array.dtype)
    except (TypeError, ValueError, RuntimeError, ShapeError) as error:
        raise UsageError(f"a {type(value).__name__} is no tensor, number or array of numbers") from error
    return full((), array.item(), dtype) if array.ndim == 0 else constant(array)


def as_operand(value: Any) -> Any:
    """An operand of an elementwise op: tensors and Python numbers (weakly typed) unchanged, arrays and lists as
    constant tensors."""
    weak = type(value) in (bool, int, float) or (
        isinstance(value, Tensor | bool | int | float | np.generic) and not hasattr(type(value), "__tensor__")
    )
    return value if weak else as_tensor(value)


# ---------------------------------------------------------------- operand alignment
def axis_of(axis: int, rank: int) -> int:
    """The axis of a tensor of this rank as a non-negative number; negative axes count from the end. Raises ShapeError
    if it is out of range."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise ShapeError(f"{axis!r} is no axis", hint="give an int") from None
    if not -rank <= axis < builtins.max(rank, 1):
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis % rank if rank else 0


def _axes(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(rank))
    found = sorted({axis_of(a, rank) for a in ((axes,) if isinstance(axes, int) else axes)})
    return tuple(found)


def with_rank(x: Tensor, rank: int) -> Tensor:
    """The tensor with leading axes of size 1 added up to the given rank, at most 64 (NumPy's limit)."""
    if not isinstance(rank, int) or rank > 64:
        raise ShapeError(f"{rank!r} is no rank", hint="give an int up to 64")
    return x if x.rank >= rank else reshape(x, (1,) * (rank - x.rank) + x.shape)


def align(*operands: Operand, dtype: str | None = None) -> list[Tensor]:
    """Operands as tensors of common rank and dtype; numbers take the tensors' dtype (floats widen ints).

    `dtype`: the common dtype, if it is not to follow from the operands.
    """
    operands = tuple(map(as_operand, operands))
    tensors = [o for o in operands if isinstance(o, Tensor)]
    common = dtype
    for t in tensors:
        common = t.dtype if common is None else dtypes.promote(common, t.dtype) if dtype is None else common
    for o in operands:
        if not isinstance(o, Tensor) and dtype is None:
            wanted = (
                "bool" if isinstance(o, bool | np.bool_) else "int64" if isinstance(o, int | np.integer) else "float32"
            )
            if common is None or _RANK[dtypes.category(wanted)] > _RANK[dtypes.category(common)]:
                common = wanted
    rank = builtins.max((t.rank for t in tensors), default=0)
    assert common is not None
    return [
        with_rank(cast(o, common), rank) if isinstance(o, Tensor) else full((1,) * rank, o, common) for o in operands
    ]


_RANK = {"bool": 0, "int": 1, "float": 2}


def elementwise(name: str) -> Callable[..., Tensor]:
    """The function that builds nodes of the elementwise op `name`, which has no attributes.

    Of one operand: integers and bools of an op for floats are cast to float32 first. Of two: ranks and dtypes are
    aligned.
    """
    if OPS[name].arity == 2:
        return _binary(name)

    def build(x: Tensor) -> Tensor:
        x = as_tensor(x)
        if OPS[name].floats_only and not dtypes.is_float(x.dtype):
            x = cast(x, "float32")
        return make(name, (x,))

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


def float_functions() -> list[Op]:
    """The elementwise ops of one float operand, without attributes, that round their result: exp, sqrt, silu, ..."""
    return [
        o for o in OPS.values()
        if o.law == "pointwise" and o.arity == 1 and o.floats_only and not o.attrs and o.rounding != "never"
    ]  # fmt: skip


def _binary(name: str) -> Callable[[Operand, Operand], Tensor]:
    def build(x: Operand, y: Operand) -> Tensor:
        return make(name, align(x, y))

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


neg, abs, sign, exp, log, log1p, expm1 = map(elementwise, ("neg", "abs", "sign", "exp", "log", "log1p", "expm1"))
sqrt, rsqrt, recip, tanh, erf, sin, cos = map(elementwise, ("sqrt", "rsqrt", "recip", "tanh", "erf", "sin", "cos"))
atan, floor, ceil, round, is_nan, is_inf = map(elementwise, ("atan", "floor", "ceil", "round", "is_nan", "is_inf"))
add, sub, mul, mod, pow = map(_binary, ("add", "sub", "mul", "mod", "pow"))
floordiv, maximum, minimum = map(_binary, ("floordiv", "maximum", "minimum"))
logical_and, logical_or, logical_xor = map(_binary, ("and", "or", "xor"))


def _comparison(name: str) -> Callable[[Operand, Operand], Tensor]:
    plain = _binary(name)

    def build(x: Operand, y: Operand) -> Tensor:
        kinds = [o.dtype if isinstance(o, Tensor) else "" for o in (x, y)]
        signed = [k.startswith("int") for k in kinds]
        if "uint64" not in kinds or not builtins.any(signed):
            return plain(x, y)
        low = make("lt", align(x if signed[0] else y, 0))  # negative numbers are below all unsigned ones
        found = plain(*align(x, y, dtype="uint64"))
        return logical_or(low, found) if signed[0] and name != "eq" else logical_and(logical_not(low), found)

    build.__name__, build.__doc__ = name, f"{OPS[name].doc}; exact between uint64 and signed integers"
    return build


eq, lt, le = map(_comparison, ("eq", "lt", "le"))


def div(x: Operand, y: Operand) -> Tensor:
    """x / y; integers and bools are cast to floating point first."""
    x, y = as_operand(x), as_operand(y)
    whole = not builtins.any(
        dtypes.is_float(o.dtype) if isinstance(o, Tensor) else isinstance(o, float) for o in (x, y)
    )
    return make("div", align(x, y, dtype="float32" if whole else None))


def gt(x: Operand, y: Operand) -> Tensor:
    """Elementwise x > y as bool, with broadcasting."""
    return lt(y, x)


def ge(x: Operand, y: Operand) -> Tensor:
    """Elementwise x >= y as bool, with broadcasting."""
    return le(y, x)


def logical_not(x: Tensor) -> Tensor:
    """Elementwise negation of truth values."""
    return make("not", (cast(x, "bool"),))


def ne(x: Operand, y: Operand) -> Tensor:
    """Elementwise x != y as bool, with broadcasting."""
    return logical_not(eq(x, y))


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Elementwise choice: x where the condition holds, else y."""
    (a, b), condition = align(x, y), as_tensor(condition)
    rank = builtins.max(condition.rank, a.rank)
    return make("where", (with_rank(cast(condition, "bool"), rank), with_rank(a, rank), with_rank(b, rank)))


def square(x: Tensor) -> Tensor:
    """x * x, elementwise."""
    return mul(x, x)


def cast(x: Tensor, dtype: str) -> Tensor:
    """The tensor converted to a dtype, given by name or as a NumPy dtype."""
    dtype = dtypes.name_of(dtype)
    return x if x.dtype == dtype else make("cast", (x,), {"dtype": dtype})


# ---------------------------------------------------------------- reductions
def _squeezed(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return x if keepdims else reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def _reduction(name: str) -> Callable[..., Tensor]:
    def build(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        x = as_tensor(x)
        axes = _axes(axis, x.rank)
        return _squeezed(make(name, (x,), {"axes": axes}) if axes else x, axes, keepdims)

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


def _total(name: str) -> Callable[..., Tensor]:
    fold = _reduction(name)

    def build(
        x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: Any = None
    ) -> Tensor:  # fmt: skip
        x = as_tensor(x)
        return fold(cast(x, dtypes.summed(x.dtype) if dtype is None else dtype), axis, keepdims)

    build.__name__ = name
    build.__doc__ = f"{OPS[name].doc}; of integers and bools in 64 bits unless `dtype` names another"
    return build


sum, prod = _total("sum"), _total("prod")
max, min = _reduction("max"), _reduction("min")


def all(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether all elements are true (logical and over axes)."""
    return min(cast(as_tensor(x), "bool"), axis, keepdims)


def any(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether any element is true (logical or over axes)."""
    return max(cast(as_tensor(x), "bool"), axis, keepdims)


def count(shape: Shape, axes: Sequence[int]) -> Dim:
    """Number of elements that a reduction over some axes of a shape combines into one result."""
    return volume(tuple(shape[a] for a in axes))


def mean(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Mean over axes (all without `axis`), which are removed unless `keepdims`. Integers are averaged as float32."""
    x = as_tensor(x)
    axes = _axes(axis, x.rank)
    x = x if dtypes.is_float(x.dtype) else cast(x, "float32")
    return _squeezed(make("mean", (x,), {"axes": axes}) if axes else x, axes, keepdims)


def var(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Variance over axes; divides by n - correction, or by 0 if that is negative."""
    axes = _axes(axis, x.rank) if x.rank else ()
    n = count(x.shape, axes)
    centred = sub(x, mean(x, axes, True))
    if isinstance(n, DimExpr):
        if not correction:
            return mean(square(centred), axes, keepdims)
        left = maximum(sub(cast(sum(ones((n,), "int64")), x.dtype), correction), 0.0)
        return div(sum(square(centred), axes, keepdims), left)
    scale = 1.0 / (n - correction) if n > correction else math.inf
    return _squeezed(mul(sum(square(centred), axes, True), scale), axes, keepdims)


def argmax(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first maximum along `axis`, which is removed unless `keepdims`."""
    a = axis_of(axis, x.rank)
    return _squeezed(make("argmax", (x,), {"axis": a}), (a,), keepdims)


def argmin(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first minimum along `axis`, which is removed unless `keepdims`."""
    a = axis_of(axis, x.rank)
    return _squeezed(make("argmin", (x,), {"axis": a}), (a,), keepdims)


def cumsum(x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Cumulative sum. Integers and bools are summed in 64 bits unless `dtype` is given."""
    x = cast(x, dtypes.summed(x.dtype) if dtype is None else dtype)
    return make("cumsum", (x,), {"axis": axis_of(axis, x.rank)})


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort an axis (stable)."""
    return make("argsort", (x,), {"axis": axis_of(axis, x.rank), "descending": descending})


# ---------------------------------------------------------------- contractions
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matmul for operands of rank >= 1. Raises ShapeError for rank 0 and for sizes that do not fit."""
    a, b = as_tensor(a), as_tensor(b)
    dtype = dtypes.promote(a.dtype, b.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    if a.rank == 0 or b.rank == 0:
        raise ShapeError("matmul needs operands of rank >= 1")
    row, column = a.rank == 1, b.rank == 1
    a = reshape(a, (1, *a.shape)) if row else a
    b = reshape(b, (*b.shape, 1)) if column else b
    if b.rank != 2 or a.rank < 2:
        rank = builtins.max(a.rank, b.rank)
        a, b = with_rank(a, rank), with_rank(b, rank)
    out = make("matmul", (a, b))
    keep = [d for i, d in enumerate(out.shape) if not ((row and i == out.rank - 2) or (column and i == out.rank - 1))]
    return reshape(out, keep) if row or column else out


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, dilations: Sequence[int] | None = None, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of x[N, C, *S] with w[O, C/groups, *K], plus b[O]; pads = all low sides, then all high sides.

    `dilations`: distances of the window's elements. Default: strides and dilations 1, no padding.
    """
    n = x.rank - 2
    attrs = {"strides": strides or (1,) * n, "pads": pads or (0,) * (2 * n), "dilations": dilations or (1,) * n}
    out = make("conv", (x, w), {**attrs, "groups": groups})
    return out if b is None else add(out, reshape(b, (1, b.shape[0]) + (1,) * n))


# ---------------------------------------------------------------- views and layout
def reshape(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Another shape with the same elements; one size may be -1. Raises ShapeError if the number of elements differs."""
    shape = dims_of(shape)
    if builtins.any(isinstance(d, int) and d == -1 for d in shape):
        known = volume(tuple(d for d in shape if not (isinstance(d, int) and d == -1)))
        total = volume(x.shape)
        if isinstance(known, int) and known == 0:
            raise ShapeError(f"cannot infer -1 in {shape} beside a size of 0")
        shape = tuple(total // known if isinstance(d, int) and d == -1 else d for d in shape)
    return x if shape == x.shape else make("reshape", (x,), {"shape": shape})


def permute(x: Tensor, perm: Sequence[int]) -> Tensor:
    """x with permuted axes: axis i of the result is axis perm[i] of x."""
    perm = tuple(axis_of(p, x.rank) for p in perm)
    return x if perm == tuple(range(x.rank)) else make("permute", (x,), {"perm": perm})


def swapaxes(x: Tensor, a: int, b: int) -> Tensor:
    """x with the axes `a` and `b` exchanged."""
    perm = list(range(x.rank))
    a, b = axis_of(a, x.rank), axis_of(b, x.rank)
    perm[a], perm[b] = perm[b], perm[a]
    return permute(x, perm)


def transpose(x: Tensor) -> Tensor:
    """x with its last two axes exchanged."""
    return swapaxes(x, -1, -2)


def broadcast_to(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """x broadcast to a shape: sizes of 1 stretch, leading axes are added."""
    shape = dims_of(shape)
    x = with_rank(x, len(shape))
    return x if x.shape == shape else make("broadcast_to", (x,), {"shape": shape})


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """x with an axis of size 1 inserted before `axis`; negative axes count from the end of the result."""
    a = axis_of(axis, x.rank + 1)
    return reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """x without axes of size 1 (the given ones, or all)."""
    axes = _axes(axis, x.rank) if axis is not None else tuple(i for i, d in enumerate(x.shape) if d == 1)
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def slice_axis(x: Tensor, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tensor:
    """Elements start, start + step, … below stop along one axis."""
    axis = axis_of(axis, x.rank)
    if not x.rank:
        raise ShapeError("a value of rank 0 has no axis to slice")
    if start == 0 and stop == x.shape[axis] and step == 1:
        return x
    return make("slice", (x,), {"axis": axis, "start": start, "stop": stop, "step": step})


def flip(x: Tensor, axis: int) -> Tensor:
    """x with the elements along an axis in reverse order."""
    return make("flip", (x,), {"axis": axis_of(axis, x.rank)})


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors joined along an existing axis; the other sizes must be equal. Dtypes are promoted.

    Raises UsageError without tensors.
    """
    parts = align_dtypes(*tensors)
    if not parts:
        raise UsageError("concat needs at least one tensor")
    found = parts[0]
    for part in parts[1:]:
        found = make("concat", (found, part), {"axis": axis_of(axis, found.rank)})
    return found


def align_dtypes(*tensors: Tensor) -> list[Tensor]:
    """Tensors cast to their common dtype; shapes unchanged."""
    parts = [as_tensor(t) for t in tensors]
    common = parts[0].dtype if parts else "float32"
    for t in parts:
        common = dtypes.promote(common, t.dtype)
    return [cast(t, common) for t in parts]


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    return concat([expand_dims(as_tensor(t), axis) for t in tensors], axis)


def split(x: Tensor, sizes: Sequence[Dim], axis: int = 0) -> list[Tensor]:
    """The consecutive pieces of x with the given sizes along an axis. Raises UsageError if `sizes` is an int."""
    if isinstance(sizes, int):
        raise UsageError(f"split takes the sizes of the pieces, not {sizes}", hint=f"[{sizes}, {sizes}, ...]")
    found: list[Tensor] = []
    start: Dim = 0
    for size in dims_of(sizes):
        found.append(slice_axis(x, axis, start, start + size))
        start = start + size
    return found


def pad(x: Tensor, widths: Sequence[tuple[Dim, Dim]], value: float = 0.0) -> Tensor:
    """x padded with a constant `value`; `widths`: (elements before, elements after) for each axis."""
    try:
        pairs = [(lo, hi) for lo, hi in widths]
    except (TypeError, ValueError):
        raise ShapeError(
            f"{widths!r} are no widths of a pad", hint="give a pair (before, after) for each axis"
        ) from None
    for axis, (lo, hi) in enumerate(pairs):
        if (lo, hi) != (0, 0):
            x = make("pad", (x,), {"axis": axis, "lo": lo, "hi": hi, "value": value})
    return x


def windows(x: Tensor, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Tensor:
    """Sliding windows along an axis; the elements of a window are a new last axis of `size` elements.

    `stride`: distance of neighbouring windows. `dilation`: distance of neighbouring elements in a window.
    """
    return make("windows", (x,), {"axis": axis_of(axis, x.rank), "size": size, "stride": stride, "dilation": dilation})


# ---------------------------------------------------------------- indexing
def gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """NumPy's take: `axis` is replaced by the axes of the index."""
    return make("gather", (x, index), {"axis": axis_of(axis, x.rank)})


def gather_elements(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """NumPy's take_along_axis: element [.., i, ..] is x[.., index[.., i, ..], ..]. The result has the index's shape."""
    return make("gather_elements", (x, index), {"axis": axis_of(axis, x.rank)})


def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, axis: int, mode: str = "set") -> Tensor:
    """x with updates written at the indices along one axis; `index` and `updates` have one shape, of x's rank.

    `mode`: "set", or how an update is combined with the element there: "add", "mul", "max", "min". Of several elements
    set in one place, any one is kept.
    """
    return make("scatter_elements", (x, index, updates), {"axis": axis_of(axis, x.rank), "mode": mode})


__all__ = [
    "abs", "add", "all", "any", "arange", "argmax", "argmin", "argsort", "as_tensor", "atan", "broadcast_to", "cast",
    "ceil", "concat", "constant", "conv", "cos", "cumsum", "dim", "div", "eq", "erf", "exp", "expand_dims", "expm1",
    "flip", "floor", "floordiv", "full", "gather", "gather_elements", "ge", "gt", "input", "iota", "is_inf", "is_nan",
    "le", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "matmul", "max", "maximum",
    "mean", "min", "minimum", "mod", "mul", "ne", "neg", "ones", "pad", "param", "permute", "pow", "prod", "recip",
    "reshape", "round", "rsqrt", "scatter_elements", "sign", "sin", "slice_axis", "split", "sqrt", "square", "squeeze",
    "stack", "state", "sub", "sum", "swapaxes", "tanh", "transpose", "var", "where", "windows", "with_rank", "zeros",
]  # fmt: skip
