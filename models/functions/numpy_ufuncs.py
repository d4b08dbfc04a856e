"""Implements NumPy ufuncs and their methods (reduce, accumulate, outer) on traced arrays.

NumPy itself resolves the dtypes (`ufunc.resolve_dtypes`, NEP 50). Operands are cast to the dtypes of the chosen loop
and passed to the function that builds the ufunc's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.builders.elementwise_builders import elementwise, float_functions
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import TraceError
from ...wording import with_article
from ..common.identities import keep_zero_sign
from ..torch_export import aten_pointwise as pointwise
from .numpy_array import TracedArray, arrays_in, expression, is_traced, traced

Build = Callable[..., Any]
_ID = pointwise.IDENTITIES
LONGEST = 64  # longest axis over which a ufunc without a reduction op is unrolled


# ---------------------------------------------------------------- builders over operands of a loop's dtypes
def _masked_power(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Power of integers where the mask holds, 1 elsewhere; x ** y of floats."""
    if dtypes.is_float(x.dtype):
        return _power(x, y)
    return t.pow(x, t.where(mask, y, 0))


def _of_bools(of_bools: Build, other: Build) -> Build:
    """Return a builder that dispatches on bool operands: NumPy's sum of bools, for example, is `or`."""
    return lambda *xs: (of_bools if xs[0].dtype == "bool" else other)(*xs)


def _power(x: Tensor, y: Tensor) -> Tensor:
    known = y.attr("value") if y.op == "full" else None
    if not dtypes.is_float(x.dtype) and known is not None and known < 0:
        raise TraceError("integers to negative integer powers are not allowed", hint="cast one to a float")
    if (
        known == 0.5 and x.rank and dtypes.is_float(x.dtype)
    ):  # NumPy uses sqrt for arrays: sqrt(-inf) is NaN, sqrt(-0.0) is -0.0
        return t.sqrt(x)
    return t.square(x) if known == 2 else t.pow(x, y)


def _reciprocal(x: Tensor) -> Tensor:
    if not dtypes.is_float(x.dtype):
        raise TraceError("np.reciprocal of integers cannot be traced", hint="1 // x")
    return t.recip(x)


def _signbit(x: Tensor) -> Tensor:
    return pointwise.signbit(x)


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    found = pointwise.fmod(x, y)
    return found if dtypes.is_float(x.dtype) else t.where(t.eq(y, 0), 0, found)


def _modf(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = pointwise.trunc(x)
    part = t.where(t.is_inf(x), 0.0, t.sub(x, whole))
    return pointwise.copysign(part, x), whole


def _logaddexp(base: float) -> Build:
    def build(x: Tensor, y: Tensor) -> Tensor:
        gap = t.where(t.eq(x, y), 0.0, t.abs(t.sub(x, y)))  # equal infinities would give NaN
        scale = float(np.log(base))
        return t.add(t.maximum(x, y), t.log1p(t.exp(gap * -scale)) * (1 / scale))

    return build


def _heaviside(x: Tensor, h: Tensor) -> Tensor:
    return t.where(t.is_nan(x), x, t.where(t.eq(x, 0), h, t.cast(t.gt(x, 0), x.dtype)))


def _matvec(a: Tensor, v: Tensor) -> Tensor:
    return t.squeeze(t.matmul(a, t.expand_dims(v, -1)), -1)


def _vecmat(v: Tensor, a: Tensor) -> Tensor:
    return t.squeeze(t.matmul(t.expand_dims(v, -2), a), -2)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == "bool":
        return t.cast(t.matmul(t.cast(a, "int32"), t.cast(b, "int32")), "bool")
    return t.matmul(a, b)


def _shift(left: bool) -> Build:
    """Return a builder of bit shifts. A shift count below 0 or beyond the width shifts out every bit, as in NumPy."""
    build = pointwise.shift(left)

    def shifted(x: Tensor, y: Tensor) -> Tensor:
        if y.dtype.startswith("u"):
            return build(x, y)
        below = t.lt(y, 0)
        gone = t.full((), 0, x.dtype) if left else t.cast(t.lt(x, 0), x.dtype) * -1
        return t.where(below, gone, build(x, t.where(below, 0, y)))

    return shifted


def _cube_root(x: Tensor) -> Tensor:
    """Return the cube root of x from 0 on, whole for cubes of whole numbers."""
    found = t.pow(x, 1 / 3)
    near = t.round(found)
    return t.where(t.eq(near * near * near, x), near, found)


def _degrees(x: Tensor) -> Tensor:
    """Return x times NumPy's factor, which is computed in float32 for float32."""
    return x * float(np.degrees(np.ones((), dtypes.numpy_dtype(x.dtype))))


_FLOATS = {
    "tan": "tan", "sinh": "sinh", "cosh": "cosh", "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "exp2": "exp2", "deg2rad": "deg2rad",
    "radians": "deg2rad",
}  # fmt: skip
#: Builders: ufunc name -> function of operands in a loop's dtypes; returns the result or a tuple of results.
UFUNCS: dict[str, Build] = {
    **{op.numpy_function.name: elementwise(op.name) for op in float_functions() if op.numpy_function},
    "add": _of_bools(t.logical_or, t.add), "subtract": t.sub, "multiply": _of_bools(t.logical_and, t.mul), "divide": t.div,
    "floor_divide": t.floordiv, "remainder": t.mod, "fmod": _fmod, "divmod": lambda x, y: (t.floordiv(x, y), t.mod(x, y)),
    "power": _power, "float_power": _power, "negative": t.neg, "positive": lambda x: x, "conjugate": lambda x: x,
    "absolute": _of_bools(lambda x: x, t.abs), "fabs": t.abs, "sign": t.sign, "square": t.square, "reciprocal": _reciprocal,
    "degrees": _degrees, "rad2deg": _degrees, "cbrt": lambda x: keep_zero_sign(x, _cube_root(t.abs(x))),
    "log2": pointwise.scaled_log(2.0), "log10": pointwise.scaled_log(10.0), "logaddexp": _logaddexp(np.e),
    "logaddexp2": _logaddexp(2.0),
    "floor": pointwise.whole(t.floor), "ceil": pointwise.whole(t.ceil), "rint": t.round, "trunc": pointwise.trunc, "modf": _modf,
    "maximum": _of_bools(t.logical_or, t.maximum), "minimum": _of_bools(t.logical_and, t.minimum),
    "fmax": _of_bools(t.logical_or, pointwise.fmax), "fmin": _of_bools(t.logical_and, pointwise.fmin),
    "arctan2": pointwise.atan2, "hypot": pointwise.hypot, "copysign": pointwise.copysign, "signbit": _signbit, "heaviside": _heaviside,
    "equal": t.eq, "not_equal": t.ne, "less": t.lt, "less_equal": t.le, "greater": t.gt, "greater_equal": t.ge,
    "logical_and": pointwise.logical(t.logical_and), "logical_or": pointwise.logical(t.logical_or),
    "logical_xor": pointwise.logical(t.logical_xor), "logical_not": t.logical_not,
    "bitwise_and": t.logical_and, "bitwise_or": t.logical_or, "bitwise_xor": t.logical_xor, "invert": pointwise.bitwise_not,
    "left_shift": _shift(True), "right_shift": _shift(False), "isnan": pointwise.is_nan, "isinf": pointwise.is_inf,
    "isfinite": pointwise.is_finite, "matmul": _matmul, "matvec": _matvec, "vecmat": _vecmat,
    "vecdot": lambda x, y: t.sum(t.mul(x, y), -1, dtype=x.dtype),
    **{name: _ID[ours] for name, ours in _FLOATS.items()},
}  # fmt: skip
#: Ufuncs lowered to several rounding operations: for 16-bit floats they are computed in float32, as NumPy does.
ROUNDING = {
    *_FLOATS, "log2", "log10", "logaddexp", "logaddexp2", "cbrt", "arctan2", "hypot", "modf", "fmod", "vecdot", "float_power",
}  # fmt: skip
#: Builders of `ufunc.reduce`, for ufuncs with a reduction op.
REDUCTIONS: dict[str, Build] = {
    "add": lambda x, axes, keep: t.any(x, axes, keep) if x.dtype == "bool" else t.sum(x, axes, keep, dtype=x.dtype),
    "multiply": lambda x, axes, keep: t.all(x, axes, keep) if x.dtype == "bool" else t.prod(x, axes, keep, dtype=x.dtype),
    "maximum": t.max, "minimum": t.min, "logical_and": t.all, "logical_or": t.any,
}  # fmt: skip
BUILDERS: dict[np.ufunc, Build] = {getattr(np, name): build for name, build in UFUNCS.items()}
_CORE = ("matmul", "matvec", "vecmat", "vecdot")  # not elementwise (generalized ufuncs)


# ---------------------------------------------------------------- dtypes
def kind_of(value: Any) -> Any:
    """Input of NumPy's dtype resolution: a NumPy dtype, or the Python type of a (weakly typed) Python number.

    Raises TraceError for other kinds of values.
    """
    if is_traced(value):
        return value.dtype
    if isinstance(value, Tensor):
        return dtypes.numpy_dtype(value.dtype)
    if type(value) in (int, float, complex):
        return type(value)
    array = _array(value)
    if array.dtype == object:
        raise TraceError(f"{with_article(type(value).__name__)} beside a traced array is no number or array of numbers")
    return array.dtype


def _array(value: Any) -> np.ndarray[Any, Any]:
    if arrays_in(value):
        raise TraceError("a list with traced arrays is no array", hint="np.stack makes an array of them")
    if type(value).__module__.partition(".")[0] == "torch":
        raise TraceError(
            "a Torch tensor cannot be combined with a traced array of NumPy", hint="give Torch tensors as examples"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TraceError(f"{with_article(type(value).__name__)} is no array of numbers: {error}") from None


def common_dtype(*values: Any) -> str:
    """Return the name of NumPy's common dtype of operands. Python numbers are weakly typed (NEP 50).

    Raises TraceError if there is none.
    """
    kinds = [kind_of(v) for v in values]
    numbers = {int: 0, float: 0.0, complex: 0j}
    try:
        return dtypes.name_of(np.result_type(*(numbers.get(k, k) for k in kinds)))
    except TypeError as error:
        raise TraceError(f"the operands have no common dtype: {error}") from None


def operand(value: Any, dtype: str) -> Tensor:
    """Return the operand `value` as a tensor of a dtype. Raises TraceError if a Python integer is out of range."""
    value = expression(value)
    if isinstance(value, Tensor):
        return t.cast(value, dtype)
    if type(value) in (bool, int, float):
        if type(value) is int and dtypes.category(dtype) == "int":
            try:
                np.dtype(dtype).type(value)
            except OverflowError as error:
                raise TraceError(str(error)) from None
        return t.full((), dtypes.nearest(value, dtype) if type(value) is float else value, dtype)
    return t.cast(t.as_tensor(_array(value)), dtype)


def resolved(ufunc: np.ufunc, kinds: Sequence[Any], signature: Sequence[Any] | None, **named: Any) -> list[str]:
    """Return the dtypes of the ufunc loop that NumPy chooses: inputs, then outputs.

    Raises TraceError if there is none.
    """
    if signature is not None:
        named["signature"] = tuple(None if d is None else type(np.dtype(d)) for d in signature)
    if named.get("casting") == "equiv" and int in kinds:  # NumPy refuses it, but resolve_dtypes would end the process
        raise TraceError(f"np.{ufunc.__name__}: a Python int cannot be cast by the rule 'equiv'")
    try:
        return [dtypes.name_of(d) for d in ufunc.resolve_dtypes(tuple(kinds), **named)]
    except (TypeError, ValueError) as error:
        raise TraceError(f"np.{ufunc.__name__}: {error}") from None


def reduction_dtypes(ufunc: np.ufunc, dtype: str, wanted: Any) -> list[str]:
    """Return the dtypes of a reduction's loop over operands of `dtype`: (accumulator, element, result). `wanted`: the
    caller's `dtype=`, or None."""
    signature = None if wanted is None else (wanted, None, None)
    return resolved(ufunc, (None, dtypes.numpy_dtype(dtype), None), signature, reduction=True)


# ---------------------------------------------------------------- calls
def call(ufunc: np.ufunc, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Trace `ufunc(*inputs, **named)` on traced arrays; returns the result, traced. Raises TraceError for options that
    cannot be traced."""
    options = dict(named)
    outs = options.pop("out", None) or (None,) * ufunc.nout
    where, dtype = options.pop("where", True), options.pop("dtype", None)
    casting = options.pop("casting", "same_kind")
    options.pop("subok", None), options.pop("order", None)
    build = BUILDERS.get(ufunc)
    if build is None:
        refuse_value(
            TraceError(
                f"np.{ufunc.__name__} of a traced array cannot be traced", hint="write it with other functions of NumPy"
            )
        )
    if any(v is not None for v in options.values()):
        raise TraceError(f"np.{ufunc.__name__} with {sorted(options)} cannot be traced")
    if where is not True and any(o is None for o in outs):
        raise TraceError(f"np.{ufunc.__name__} with where= and without out= leaves elements undefined", hint="np.where")
    kinds = [kind_of(v) for v in inputs]
    if ufunc is np.power and where is not True:  # NumPy computes no power where the mask is false: none is negative
        build = partial(_masked_power, operand(where, "bool"))
    found = _built(ufunc, build, inputs, kinds, outs, dtype, casting)
    results = [
        traced(node, scalar=True) if out is None else written(node, out, where) for node, out in zip(found, outs)
    ]
    return results[0] if len(results) == 1 else tuple(results)


def _built(
    ufunc: np.ufunc, build: Build, inputs: Sequence[Any], kinds: Sequence[Any], outs: Sequence[Any], dtype: Any, casting: str
) -> list[Tensor]:  # fmt: skip
    signature = None if dtype is None else (*[None] * ufunc.nin, *[dtype] * ufunc.nout)
    names = resolved(ufunc, (*kinds, *(None if o is None else kind_of(o) for o in outs)), signature, casting=casting)
    try:
        nodes = [operand(v, n) for v, n in zip(inputs, names)]
    except TraceError:
        if ufunc not in _COMPARE or not any(type(v) is int for v in inputs):
            raise
        return [_beyond(ufunc, inputs, names)]
    name, wide = ufunc.__name__, names[-1] in dtypes.HALVES and ufunc.__name__ in ROUNDING
    result = build(*(t.cast(n, "float32") for n in nodes) if wide else nodes)
    parts = list(result) if isinstance(result, tuple) else [result]
    assert name in _CORE or len(parts) == ufunc.nout
    return [t.cast(p, n) for p, n in zip(parts, names[ufunc.nin :], strict=True)]


_COMPARE = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _beyond(ufunc: np.ufunc, inputs: Sequence[Any], names: Sequence[str]) -> Tensor:
    """Lower a comparison with a Python integer outside the dtype's range: a constant result."""
    x = next(expression(v) for v in inputs if type(v) is not int)
    zero = np.zeros((), names[0])
    answer = ufunc(*(v if type(v) is int else zero for v in inputs))
    return t.full(t.as_tensor(x).shape, bool(answer), "bool")


def written(node: Tensor, out: Any, where: Any = True) -> TracedArray:
    """Write the result `node` into the array `out` where the mask `where` holds, and return `out`. Raises TraceError if
    `out` is not a traced array."""
    if not is_traced(out):
        raise TraceError("a result is written into an array that is not traced, which a program cannot do",
                         hint="leave `out` out, or make the array of traced ones: np.empty_like(x)")  # fmt: skip
    array: TracedArray = out
    if where is not True:
        node = t.where(operand(where, "bool"), t.cast(node, array._node.dtype), array._node)
    if t.with_rank(node, array.ndim).shape != array.shape:
        node = t.broadcast_to(node, array.shape)
    array._store(t.cast(t.reshape(node, array.shape), array._node.dtype))
    return array


def in_place(ufunc: np.ufunc, x: TracedArray, y: Any) -> TracedArray:
    """Trace `x += y` and similar operators: x gets the new value and is returned. If x is a scalar (immutable), a new
    one is returned.

    Raises TraceError for a 0-d array.
    """
    if x._scalar:
        return call(ufunc, (x, y), {})  # type: ignore[no-any-return]
    if not x.ndim:
        raise TraceError("a 0-d array is changed in place, which cannot be told from a scalar", hint="x = x + y")
    return call(ufunc, (x, y), {"out": (x,)})  # type: ignore[no-any-return]


__all__ = [
    "REDUCTIONS",
    "UFUNCS",
    "call",
    "common_dtype",
    "in_place",
    "kind_of",
    "operand",
    "reduction_dtypes",
    "resolved",
    "written",
]
