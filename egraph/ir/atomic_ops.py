"""The atomic ops: leaves, elementwise, reductions, contractions, views, layout, indexing.

`numpy(attrs, *arrays)` defines the semantics. It accepts every dtype that the op is defined for and returns the dtype
of the type law; low-precision floats may be computed in their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import dtypes
from .ops import Op, register
from .recurrence import recurrent
from .special_functions import erf

Array = np.ndarray[Any, Any]


def leaf(name: str, attrs: Mapping[str, str], doc: str, numpy: Callable[..., Array] | None = None) -> None:
    """Register a leaf."""
    register(Op(name, 0, "leaf", "leaf", attrs, {}, doc, numpy=numpy))


def unary(
    name: str, f: Callable[[Array], Array], doc: str, *, floats: bool = True, flops: float = 1.0, **more: Any
) -> None:
    """Register an elementwise op of one operand."""
    register(
        Op(
            name,
            1,
            "pointwise",
            "pointwise",
            {},
            {},
            doc,
            numpy=lambda a, x: f(x),
            floats_only=floats,
            flops=flops,
            **more,
        )
    )


def binary(name: str, f: Callable[[Array, Array], Array], doc: str, *, law: str = "pointwise", **more: Any) -> None:
    """Register an elementwise op of two operands."""
    register(Op(name, 2, law, "pointwise", {}, {}, doc, numpy=lambda a, x, y: f(x, y), **more))


def reduction(name: str, f: Callable[..., Array], monoid: str, doc: str, **more: Any) -> None:
    """Register a reduction over `axes`, which keep size 1."""
    numpy = lambda a, x: f(x, axis=a["axes"], keepdims=True)
    register(Op(name, 1, "reduce", "reduction", {"axes": "dims"}, {}, doc, numpy=numpy, monoid=monoid, **more))


def _extreme(f: Callable[..., Array], empty: Callable[[str], float | int]) -> Callable[..., Array]:
    """NumPy's max or min, with the identity `empty(dtype)` for a reduction over 0 elements."""

    def reduce(x: Array, axis: Any, keepdims: bool) -> Array:
        if x.size:
            return f(x, axis=axis, keepdims=keepdims)
        shape = [1 if i in axis else d for i, d in enumerate(x.shape)]
        return np.full(shape, empty(dtypes.name_of(x.dtype)), x.dtype)

    return reduce


def _sum(x: Array, axis: Any, keepdims: bool) -> Array:
    wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else None
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=wide or x.dtype)).astype(x.dtype, copy=False)


def _matmul(x: Array, y: Array) -> Array:
    if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":  # accumulate 16-bit floats in float32, as every backend does
        return np.asarray(np.matmul(x.astype(np.float32), y.astype(np.float32))).astype(x.dtype)
    return np.asarray(np.matmul(x, y))


def sliding(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    """A strided view of windows along `axis`, window elements in a new last axis."""
    count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    step = x.strides[axis]
    strides = (*x.strides[:axis], step * stride, *x.strides[axis + 1 :], step * dilation)
    return as_strided(x, shape, strides, writeable=False)


def conv(attrs: Mapping[str, Any], x: Array, w: Array) -> Array:
    """Convolution as windows times weights, group by group; 16-bit floats accumulate in float32."""
    n, groups, pads = x.ndim - 2, attrs["groups"], attrs["pads"]
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    padded = np.pad(x.astype(wide, copy=False), [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))])
    for i in range(n):
        padded = sliding(padded, 2 + i, w.shape[2 + i], attrs["strides"][i], attrs["dilations"][i])
    per_in, per_out = w.shape[1], w.shape[0] // groups
    axes = [1, *range(2 + n, 2 + 2 * n)]
    parts = [
        np.tensordot(
            padded[:, g * per_in : (g + 1) * per_in],
            w[g * per_out : (g + 1) * per_out].astype(wide, copy=False),
            axes=(axes, [1, *range(2, 2 + n)]),
        )
        for g in range(groups)
    ]
    return np.ascontiguousarray(np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)).astype(x.dtype, copy=False)


def _slice(attrs: Mapping[str, Any], x: Array) -> Array:
    found: Array = x[(slice(None),) * attrs["axis"] + (slice(attrs["start"], attrs["stop"], attrs["step"]),)]
    return found


def _pad(attrs: Mapping[str, Any], x: Array) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[attrs["axis"]] = (attrs["lo"], attrs["hi"])
    return np.pad(x, widths, constant_values=np.asarray(attrs["value"]).astype(x.dtype))


def _iota(attrs: Mapping[str, Any]) -> Array:
    shape, axis = attrs["shape"], attrs["axis"]
    line = np.arange(shape[axis]).astype(dtypes.numpy_dtype(attrs["dtype"]))
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _cast(attrs: Mapping[str, Any], x: Array) -> Array:
    target = dtypes.numpy_dtype(attrs["dtype"])
    if target.kind in "iu" and x.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):  # out of range and NaN are unspecified, as in C
            return np.trunc(x.astype(np.float64)).astype(target)
    with np.errstate(over="ignore"):
        return x.astype(target)


def _along(index: Array, axis: int) -> tuple[Array, ...]:
    """NumPy index arrays for entries along one axis; all other axes are indexed by their own position."""
    grid = np.ogrid[tuple(slice(n) for n in index.shape)]
    return tuple(index if d == axis else g for d, g in enumerate(grid))


def _inside(index: Array, size: int) -> Array:
    """Indices made valid: negative ones count from the end, out-of-range ones are clamped."""
    index = index.astype(np.int64, copy=False)  # a narrow index dtype may not be able to hold the size
    return np.clip(np.where(index < 0, index + size, index), 0, size - 1)


def _scatter(attrs: Mapping[str, Any], x: Array, index: Array, updates: Array) -> Array:
    out = x.copy()
    spot = _along(index, attrs["axis"])
    if attrs["mode"] == "set":
        out[spot] = updates
    else:
        {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[attrs["mode"]].at(out, spot, updates)
    return out


def _argsort(attrs: Mapping[str, Any], x: Array) -> Array:
    if not attrs["descending"]:
        return np.argsort(x, axis=attrs["axis"], kind="stable")
    # stable descending: sort the flipped array, then flip the result and its indices
    flipped = np.flip(x, attrs["axis"])
    order = np.flip(np.argsort(flipped, axis=attrs["axis"], kind="stable"), attrs["axis"])
    return np.asarray(x.shape[attrs["axis"]] - 1 - order)


def _div(x: Array, y: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.true_divide(x, y).astype(x.dtype, copy=False)


def _power(x: Array, y: Array) -> Array:
    """pow with a materialized exponent for every element.

    For an exponent broadcast with stride 0 NumPy uses squares, roots and quotients, which differ in bits and, for -0
    and -inf, in value.
    """
    shape = np.broadcast_shapes(x.shape, y.shape)
    exponents = np.ascontiguousarray(np.broadcast_to(y, shape))
    return np.asarray(np.power(np.atleast_1d(x), np.atleast_1d(exponents)).reshape(shape))


def _quiet(f: Callable[..., Array]) -> Callable[..., Array]:
    def run(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return f(*arrays).astype(arrays[0].dtype, copy=False)

    return run


def _recip(x: Array) -> Array:
    return _div(np.ones((), x.dtype), x)


_LEAF = {"shape": "dims", "dtype": "dtype"}
leaf("input", {"name": "str", **_LEAF}, "A value given at each call.")
leaf("param", {"name": "str", **_LEAF}, "A weight, bound once; whatever depends on params alone is folded at load.")
leaf("state", {"name": "str", **_LEAF}, "A persistent, mutable value such as a KV cache; read here, see Graph.updates.")
leaf("constant", {"digest": "str", **_LEAF}, "An array known now.")
leaf("full", {"value": "float", **_LEAF}, "One number in every place.",
     lambda a: np.full(a["shape"], np.asarray(a["value"]).astype(dtypes.numpy_dtype(a["dtype"]))))  # fmt: skip
leaf("iota", {"axis": "int", **_LEAF}, "Positions 0, 1, … along one axis.", _iota)

unary("neg", np.negative, "-x", floats=False, linear=(0,), onnx=("Neg",), aten=("neg",))
unary("abs", np.abs, "|x|", floats=False, onnx=("Abs",), aten=("abs",))
unary("sign", np.sign, "-1, 0 or 1", floats=False, onnx=("Sign",), aten=("sign", "sgn"))
unary("exp", _quiet(np.exp), "e**x", flops=8, onnx=("Exp",), aten=("exp",))
unary("log", _quiet(np.log), "natural logarithm", flops=8, onnx=("Log",), aten=("log",))
unary("log1p", _quiet(np.log1p), "log(1 + x) without cancellation", flops=8, aten=("log1p",))
unary("expm1", _quiet(np.expm1), "exp(x) - 1 without cancellation", flops=8, aten=("expm1",))
unary("sqrt", _quiet(np.sqrt), "square root", flops=4, onnx=("Sqrt",), aten=("sqrt",))
unary("rsqrt", _quiet(lambda x: _recip(np.sqrt(x))), "1 / sqrt(x)", flops=4, aten=("rsqrt",))
unary("recip", _quiet(_recip), "1 / x", flops=2, onnx=("Reciprocal",), aten=("reciprocal",))
unary("tanh", np.tanh, "hyperbolic tangent", flops=10, onnx=("Tanh",), aten=("tanh",))
unary("erf", erf, "error function", flops=10, onnx=("Erf",), aten=("erf",))
unary("sin", _quiet(np.sin), "sine", flops=10, onnx=("Sin",), aten=("sin",))
unary("cos", _quiet(np.cos), "cosine", flops=10, onnx=("Cos",), aten=("cos",))
unary("atan", np.arctan, "inverse tangent", flops=10, onnx=("Atan",), aten=("atan",))
unary("floor", np.floor, "largest whole number not above x", onnx=("Floor",), aten=("floor",))
unary("ceil", np.ceil, "smallest whole number not below x", onnx=("Ceil",), aten=("ceil",))
unary("round", np.rint, "nearest whole number, ties to even", onnx=("Round",), aten=("round",))

binary("add", _quiet(np.add), "x + y", commutative=True, associative=True, linear=(0, 1), onnx=("Add",), aten=("add",))
binary("sub", _quiet(np.subtract), "x - y", linear=(0, 1), onnx=("Sub",), aten=("sub",))
binary(
    "mul", _quiet(np.multiply), "x * y", commutative=True, associative=True, linear=(0, 1), onnx=("Mul",), aten=("mul",)
)
binary("div", _div, "x / y of floats", linear=(0,), floats_only=True, flops=2, onnx=("Div",), aten=("div",))
binary("floordiv", _quiet(np.floor_divide), "floor(x / y)", aten=("floor_divide",))
binary("mod", _quiet(np.mod), "x - y * floor(x / y)", onnx=("Mod",), aten=("remainder",))
binary("pow", _quiet(_power), "x ** y", flops=16, onnx=("Pow",), aten=("pow",))
binary(
    "maximum", np.maximum, "the larger; NaN wins", commutative=True, associative=True, onnx=("Max",), aten=("maximum",)
)
binary(
    "minimum", np.minimum, "the smaller; NaN wins", commutative=True, associative=True, onnx=("Min",), aten=("minimum",)
)
binary("and", np.bitwise_and, "bitwise and; logical on bool", commutative=True, associative=True, onnx=("And",),
       aten=("logical_and", "bitwise_and"))  # fmt: skip
binary("or", np.bitwise_or, "bitwise or; logical on bool", commutative=True, associative=True, onnx=("Or",),
       aten=("logical_or", "bitwise_or"))  # fmt: skip
binary("xor", np.bitwise_xor, "bitwise exclusive or", commutative=True, associative=True, onnx=("Xor",),
       aten=("logical_xor", "bitwise_xor"))  # fmt: skip
binary("eq", np.equal, "x == y", law="compare", commutative=True, onnx=("Equal",), aten=("eq",))
binary("lt", np.less, "x < y", law="compare", onnx=("Less",), aten=("lt",))
binary("le", np.less_equal, "x <= y", law="compare", onnx=("LessOrEqual",), aten=("le",))
register(Op("not", 1, "compare", "pointwise", {}, {}, "logical not of a bool", numpy=lambda a, x: np.logical_not(x),
            onnx=("Not",), aten=("logical_not",)))  # fmt: skip
register(Op("is_nan", 1, "compare", "pointwise", {}, {}, "whether NaN", numpy=lambda a, x: np.isnan(x),
            floats_only=True, onnx=("IsNaN",), aten=("isnan",)))  # fmt: skip
register(Op("is_inf", 1, "compare", "pointwise", {}, {}, "whether infinite", numpy=lambda a, x: np.isinf(x),
            floats_only=True, onnx=("IsInf",), aten=("isinf",)))  # fmt: skip
register(Op("where", 3, "where", "pointwise", {}, {}, "x where the condition holds, else y",
            numpy=lambda a, c, x, y: np.where(c, x, y), linear=(1, 2), onnx=("Where",), aten=("where",)))  # fmt: skip
register(Op("cast", 1, "cast", "pointwise", {"dtype": "dtype"}, {}, "another dtype; float to int truncates",
            numpy=_cast, linear=(0,), onnx=("Cast",), aten=("_to_copy",)))  # fmt: skip

reduction("sum", _sum, "add", "sum over axes", linear=(0,), onnx=("ReduceSum",), aten=("sum",))
reduction(
    "max", _extreme(np.max, dtypes.least), "maximum", "largest over axes; NaN wins", onnx=("ReduceMax",), aten=("amax",)
)
reduction(
    "min",
    _extreme(np.min, dtypes.greatest),
    "minimum",
    "smallest over axes; NaN wins",
    onnx=("ReduceMin",),
    aten=("amin",),
)
reduction("prod", lambda x, axis, keepdims: np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype), "mul",
          "product over axes", onnx=("ReduceProd",), aten=("prod",))  # fmt: skip
register(Op("argmax", 1, "arg_reduce", "index", {"axis": "int"}, {}, "position of the first largest along an axis",
            numpy=lambda a, x: np.expand_dims(np.argmax(x, axis=a["axis"]), a["axis"]), onnx=("ArgMax",),
            aten=("argmax",)))  # fmt: skip
register(Op("argmin", 1, "arg_reduce", "index", {"axis": "int"}, {}, "position of the first smallest along an axis",
            numpy=lambda a, x: np.expand_dims(np.argmin(x, axis=a["axis"]), a["axis"]), onnx=("ArgMin",),
            aten=("argmin",)))  # fmt: skip
register(Op("cumsum", 1, "along", "reduction", {"axis": "int"}, {}, "running sums along an axis",
            numpy=lambda a, x: np.cumsum(x, axis=a["axis"], dtype=x.dtype), linear=(0,), onnx=("CumSum",),
            aten=("cumsum",)))  # fmt: skip
register(Op("argsort", 1, "along_index", "index", {"axis": "int", "descending": "bool"}, {"descending": False},
            "positions that sort an axis, stable", numpy=_argsort, aten=("argsort",)))  # fmt: skip

register(Op("matmul", 2, "matmul", "contraction", {}, {}, "a[..., M, K] @ b[..., K, N] or b[K, N]",
            numpy=lambda a, x, y: _matmul(x, y), linear=(0, 1), onnx=("MatMul",),
            aten=("mm", "bmm", "matmul")))  # fmt: skip
register(Op("conv", 2, "conv", "contraction",
            {"strides": "dims", "pads": "dims", "dilations": "dims", "groups": "int"}, {},
            "convolution (cross-correlation) of x[N, C, *S] with w[O, C/groups, *K]", numpy=conv, linear=(0, 1),
            onnx=("Conv",), aten=("convolution",)))  # fmt: skip

register(Op("recurrent", 3, "recurrent", "contraction",
            {"cell": "str", "variant": "str", "activations": "str", "hidden": "int", "width": "int", "layers": "int",
             "directions": "int"}, {},
            "recurrent layers over x[T, B, I], all in one line: hidden values [T, B, directions * width], then the last states; "
            "the first states and the weights of all layers are lines, too (egraph/ir/recurrent.py)",
            numpy=lambda a, x, state, w: recurrent(x, state, w, **a), floats_only=True, onnx=("LSTM", "GRU", "RNN"),
            aten=("lstm", "gru", "rnn_tanh", "rnn_relu")))  # fmt: skip

register(Op("reshape", 1, "reshape", "view", {"shape": "dims"}, {}, "other sizes, same order of elements",
            numpy=lambda a, x: np.reshape(x, a["shape"]), linear=(0,), onnx=("Reshape",),
            aten=("view", "reshape")))  # fmt: skip
register(Op("permute", 1, "permute", "view", {"perm": "dims"}, {}, "axes in another order",
            numpy=lambda a, x: np.transpose(x, a["perm"]), linear=(0,), onnx=("Transpose",),
            aten=("permute",)))  # fmt: skip
register(Op("broadcast_to", 1, "broadcast_to", "view", {"shape": "dims"}, {}, "sizes of 1 repeated",
            numpy=lambda a, x: np.broadcast_to(x, a["shape"]), linear=(0,), onnx=("Expand",),
            aten=("expand",)))  # fmt: skip
register(Op("slice", 1, "slice", "view", {"axis": "int", "start": "int", "stop": "int", "step": "int"}, {"step": 1},
            "elements start, start + step, … below stop along one axis", numpy=_slice, linear=(0,),
            aten=("slice",)))  # fmt: skip
register(Op("flip", 1, "along", "view", {"axis": "int"}, {}, "one axis backwards",
            numpy=lambda a, x: np.flip(x, a["axis"]), linear=(0,), aten=("flip",)))  # fmt: skip
register(Op("windows", 1, "windows", "view", {"axis": "int", "size": "int", "stride": "int", "dilation": "int"},
            {"stride": 1, "dilation": 1}, "sliding windows along an axis, their elements in a new last axis",
            numpy=lambda a, x: sliding(x, a["axis"], a["size"], a["stride"], a["dilation"]), linear=(0,),
            aten=("unfold",)))  # fmt: skip
register(Op("concat", 2, "concat", "layout", {"axis": "int"}, {}, "one after the other along an axis",
            numpy=lambda a, x, y: np.concatenate((x, y), axis=a["axis"]), linear=(), onnx=("Concat",),
            aten=("cat",)))  # fmt: skip
register(Op("pad", 1, "pad", "layout", {"axis": "int", "lo": "int", "hi": "int", "value": "float"}, {"value": 0.0},
            "a constant before and after along an axis", numpy=_pad, onnx=("Pad",),
            aten=("constant_pad_nd",)))  # fmt: skip
register(Op("gather", 2, "gather", "index", {"axis": "int"}, {},
            "x's slices at the indices (0 <= index < size; others clip), their axes in place of `axis`",
            numpy=lambda a, x, i: np.take(x, i, axis=a["axis"], mode="clip"), linear=(0,), onnx=("Gather",),
            aten=("index_select", "embedding")))  # fmt: skip
register(Op("gather_elements", 2, "gather_elements", "index", {"axis": "int"}, {},
            "x at the index along one axis, per position (negative ones count from the end, those beyond clip)",
            numpy=lambda a, x, i: x[_along(_inside(i, x.shape[a["axis"]]), a["axis"])], linear=(0,), onnx=("GatherElements",),
            aten=("gather",)))  # fmt: skip
register(Op("scatter_elements", 3, "scatter_elements", "index", {"axis": "int", "mode": "str"}, {"mode": "set"},
            "x with updates written (set, add, mul, max, min) at the index along one axis; of two set in one place, either",
            numpy=_scatter,
            onnx=("ScatterElements",), aten=("scatter", "scatter_add")))  # fmt: skip
