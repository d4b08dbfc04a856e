"""Declares the atomic ops (ops without a decomposition into others): leaves, elementwise, reductions, contractions,
views, layout, indexing.

`numpy(attrs, *arrays)` (functions of `atomic_numpy`) defines the semantics. It accepts every dtype that the op is
defined for and returns the dtype that type inference gives; low-precision floats may be computed in their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..types import dtypes
from . import atomic_numpy as meaning
from . import index_maps, op_flops
from .atomic_numpy import Array
from .ops import Op, OutFunction, TargetText, ViewMethods, register
from .recurrence import recurrent
from .special_functions import erf


def leaf(
    name: str,
    attrs: Mapping[str, str],
    doc: str,
    numpy: Callable[..., Array] | None = None,
    jax: str = "",
    fused_as: str = "",
) -> None:
    """Register a leaf: an op without operands, such as `input`.

    `attrs`: kind of each attribute by name. `doc`: one line for docs/ops.md. `numpy`: its value from its attributes,
    if it has one. `jax`: its text in JAX. `fused_as`: its role in fused kernels (`Op.fused_as`).
    """
    register(Op(name, 0, "leaf", "leaf", attrs, {}, doc, numpy=numpy, text=TargetText(jax=jax), fused_as=fused_as))


def unary(
    name: str, f: Callable[[Array], Array], doc: str, *, law: str = "pointwise", floats: bool = True, **more: Any
) -> None:
    """Register an elementwise op of one operand.

    `f`: its meaning on NumPy arrays. `doc`: one line for docs/ops.md. `law`: name of the type law, the rule for the
    result's shape and dtype. `floats`: only float operands are allowed. `more`: further fields of `Op`.
    """
    register(Op(name, 1, law, "pointwise", {}, {}, doc, numpy=lambda a, x: f(x), floats_only=floats, **more))


def binary(name: str, f: Callable[[Array, Array], Array], doc: str, *, law: str = "pointwise", **more: Any) -> None:
    """Register an elementwise op of two operands.

    `f`: its meaning on NumPy arrays. `doc`: one line for docs/ops.md. `law`: name of the type law, the rule for the
    result's shape and dtype. `more`: further fields of `Op`.
    """
    register(Op(name, 2, law, "pointwise", {}, {}, doc, numpy=lambda a, x, y: f(x, y), **more))


def reduction(name: str, f: Callable[..., Array], monoid: str, doc: str, **more: Any) -> None:
    """Register a reduction over `axes`, which keep size 1.

    `f`: its meaning on NumPy arrays. `monoid`: the combining operation (`Op.monoid`). `doc`: one line for docs/ops.md.
    `more`: further fields of `Op`.
    """
    numpy = lambda a, x: f(x, axis=a["axes"], keepdims=True)
    register(Op(name, 1, "reduce", "reduction", {"axes": "dims"}, {}, doc, numpy=numpy, monoid=monoid, **more))


_LEAF = {"shape": "dims", "dtype": "dtype"}
leaf("input", {"name": "str", **_LEAF}, "A value given at each call.")
leaf("param", {"name": "str", **_LEAF}, "A weight, bound once; whatever depends on params alone is folded at load.")
leaf("state", {"name": "str", **_LEAF}, "A persistent, mutable value such as a KV cache; read here, see Graph.updates.")
leaf("constant", {"digest": "str", **_LEAF}, "An array known now.")
leaf("full", {"value": "float", **_LEAF}, "One number in every place.",
     lambda a: np.full(a["shape"], np.asarray(a["value"]).astype(dtypes.numpy_dtype(a["dtype"]))),
     jax="jnp.full({shape}, {value})", fused_as="cheap")  # fmt: skip
leaf("iota", {"axis": "int", **_LEAF}, "Positions 0, 1, … along one axis.", meaning.iota,
     jax="jax.lax.broadcasted_iota({dtype}, {shape}, {axis})", fused_as="cheap")  # fmt: skip


def _text(text: str, **more: str) -> TargetText:
    """Target text of an op with one text in C, CUDA, Triton and JAX (floats); `more` are fields of `TargetText`."""
    return TargetText(**{"c": text, "cuda": text, "triton": text, "jax": text, **more})


def _call(c: str, cuda: str, triton: str) -> TargetText:
    """Target text of a function of one float.

    `c`: name in the C library. `cuda`: name in cuda_library.cuh and JAX. `triton`: text.
    """
    jax = f"jnp.{cuda}({{0}})"
    return TargetText(f"__builtin_{c}f({{0}})", f"{c}({{0}})", cuda=f"op::{cuda}({{0}})", triton=triton, jax=jax)


def _vectorized(name: str, triton: str, module: str = "jnp") -> TargetText:
    """Target text of a function of one float that backends/ir/c_math.py defines for float32.

    `triton`: text. `module`: JAX module of the function.
    """
    jax = f"{module}.{name}({{0}})"
    return TargetText(f"{name}_f({{0}})", f"{name}({{0}})", cuda=f"op::{name}({{0}})", triton=triton, jax=jax)


def _reduced(name: str, more: str) -> TargetText:
    """Target text of a reduction in JAX; `name`: its function, `more`: text of further arguments."""
    return TargetText(jax=f"jnp.{name}({{0}}, axis={{axes}}, keepdims=True{more})")


def _both(name: str, **more: Any) -> dict[str, Any]:
    """Fields of `Op` for a function with one name in NumPy and Torch; `more` are fields of `OutFunction`."""
    return {"numpy_function": OutFunction(name, **more), "torch_function": OutFunction(name, **more)}


#: tan(a / 4) of the angle a in [0, pi / 4] by halving the angle twice, then the Taylor series.
_TRITON_ATAN = (
    "tl.abs({0}); tl.minimum({1}, 1.0 / {1}); {2} / (1.0 + tl.sqrt(1.0 + {2} * {2})); {3} / (1.0 + tl.sqrt(1.0 + {3} * {3})); "
    "-{4} * {4}; 4.0 * {4} * (1.0 + {5} * (1.0 / 3.0 + {5} * (1.0 / 5.0 + {5} * (1.0 / 7.0 + {5} * (1.0 / 9.0 + {5} * "
    "(1.0 / 11.0 + {5} * (1.0 / 13.0 + {5} * (1.0 / 15.0 + {5} / 17.0)))))))); "
    "tl.where({1} > 1.0, 1.5707963267948966 - {6}, {6}); tl.where({0} < 0.0, -{7}, {7})"
)
#: Ties to even: half of the distance to the next whole number is exact.
_TRITON_ROUND = "tl.floor({0}); {0} - {1}; tl.where({2} < 0.5, {1}, tl.where({2} > 0.5, {1} + 1.0, 2.0 * tl.floor({1} * 0.5 + 0.5)))"
_TRITON_SIGN = "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))"
#: The remainder of C has the sign of the dividend; that of the op table has the sign of the divisor.
_TRITON_FLOORDIV = "{0} % {1}; {0} // {1} - (({2} != 0) & (({2} ^ {1}) < 0)).to(tl.int32)"
_TRITON_MOD = "{0} % {1}; tl.where(({2} != 0) & (({2} ^ {1}) < 0), {2} + {1}, {2})"
_TRITON_MAXIMUM, _TRITON_MINIMUM = (f"tl.{f}({{0}}, {{1}}, tl.PropagateNan.ALL)" for f in ("maximum", "minimum"))

# ---------------------------------------------------------------- elementwise
unary("neg", np.negative, "-x", twice="operand", algebra="ring", real=lambda z, x: -x, floats=False, rounding="never", linear=(0,), onnx=("Neg",), aten=("neg",),
      numpy_function=OutFunction("negative", "number"), torch_function=OutFunction("neg", "number", counted=True),
      text=TargetText("- {0}", c_whole="- {0}", cuda="-{0}", cuda_whole="-{0}", triton="-{0}", jax="-{0}"))  # fmt: skip
unary("abs", np.abs, "|x|", twice="once", real=lambda z, x: z.If(x >= 0, x, -x), floats=False, symmetry="even", nonnegative=True, fixed=(0.0, 1.0), rounding="never", onnx=("Abs",),
      aten=("abs",), numpy_function=OutFunction("absolute"), torch_function=OutFunction("abs", "number", counted=True),
      text=_call("fabs", "abs", "tl.abs({0})")._replace(c_whole="{0} < 0 ? - {0} : {0}", cuda_whole="op::abs({0})"))  # fmt: skip
unary("sign", np.sign, "-1, 0 or 1", twice="once", floats=False, rounding="never", onnx=("Sign",), aten=("sign", "sgn"),
      numpy_function=OutFunction("sign", "number"), torch_function=OutFunction("sign", "none", counted=True),
      text=TargetText("{0} != {0} ? {0} : ({0} > 0) - ({0} < 0)", cuda="op::sign({0})", triton=_TRITON_SIGN,
                      triton_whole="({0} > 0).to(tl.int64) - ({0} < 0).to(tl.int64)", jax="jnp.sign({0})"))  # fmt: skip
unary("exp", meaning.quiet(np.exp), "e**x", flops=8, monotone=True, nonnegative=True, rounding="always", onnx=("Exp",), aten=("exp",),
      **_both("exp"), text=_vectorized("exp", "tl.exp({0})"))  # fmt: skip
unary("log", meaning.quiet(np.log), "natural logarithm", flops=8, domain="positive", rounding="always", onnx=("Log",), aten=("log",),
      **_both("log"), text=_vectorized("log", "tl.log({0})"))  # fmt: skip
unary("log1p", meaning.quiet(np.log1p), "log(1 + x) without cancellation", flops=8, domain="positive", rounding="always",
      aten=("log1p",), **_both("log1p"), text=_vectorized("log1p", "tl.log(1.0 + {0})"))  # fmt: skip
unary("expm1", meaning.quiet(np.expm1), "exp(x) - 1 without cancellation", flops=8, monotone=True, rounding="always",
      aten=("expm1",), **_both("expm1"), text=_vectorized("expm1", "tl.exp({0}) - 1.0"))  # fmt: skip
unary("sqrt", meaning.quiet(np.sqrt), "square root", flops=4, keeps_positive=True, nonnegative=True, domain="positive", rounding="always", onnx=("Sqrt",),
      aten=("sqrt",), **_both("sqrt"), text=_call("sqrt", "sqrt", "tl.sqrt({0})"))  # fmt: skip
unary("rsqrt", meaning.quiet(lambda x: meaning.recip(np.sqrt(x))), "1 / sqrt(x)", flops=4, keeps_positive=True, domain="positive", rounding="always",
      aten=("rsqrt",), torch_function=OutFunction("rsqrt"),
      text=TargetText("1.0f / __builtin_sqrtf({0})", "1.0 / sqrt({0})", cuda="op::rsqrt({0})", triton="tl.rsqrt({0})",
                      jax="1 / jnp.sqrt({0})"))  # fmt: skip
unary("recip", meaning.quiet(meaning.recip), "1 / x", keeps_positive=True, real=lambda z, x: 1 / x, flops=2, domain="nonzero", rounding="always", onnx=("Reciprocal",), aten=("reciprocal",),
      **_both("reciprocal"),
      text=TargetText("1.0f / {0}", "1.0 / {0}", cuda="op::recip({0})", triton="1.0 / {0}", jax="1 / {0}"))  # fmt: skip
unary("tanh", np.tanh, "hyperbolic tangent", flops=10, symmetry="odd", monotone=True, rounding="always", onnx=("Tanh",),
      aten=("tanh",), **_both("tanh"), text=_vectorized("tanh", "2.0 / (1.0 + tl.exp(-2.0 * {0})) - 1.0"))  # fmt: skip
unary("erf", erf, "error function", flops=10, symmetry="odd", monotone=True, rounding="always", onnx=("Erf",), aten=("erf",),
      torch_function=OutFunction("erf"), text=_vectorized("erf", "tl.erf({0})", "jax.lax"))  # fmt: skip
unary("sin", meaning.quiet(np.sin), "sine", flops=10, symmetry="odd", rounding="always", wide_operands=True, onnx=("Sin",), aten=("sin",),
      **_both("sin"),
      text=_call("sin", "sin", "tl.sin({0})"))  # fmt: skip
unary("cos", meaning.quiet(np.cos), "cosine", flops=10, symmetry="even", rounding="always", wide_operands=True, onnx=("Cos",), aten=("cos",),
      **_both("cos"),
      text=_call("cos", "cos", "tl.cos({0})"))  # fmt: skip
unary("atan", np.arctan, "inverse tangent", flops=10, symmetry="odd", monotone=True, rounding="always", onnx=("Atan",),
      aten=("atan",), numpy_function=OutFunction("arctan"), torch_function=OutFunction("atan"),
      text=TargetText("__builtin_atanf({0})", "atan({0})", cuda="atanf({0})", cuda_double="atan({0})", triton=_TRITON_ATAN,
                      jax="jnp.arctan({0})"))  # fmt: skip
unary("floor", np.floor, "largest whole number not above x", twice="once", rounding="never", wide_operands=True, onnx=("Floor",), aten=("floor",),
      **_both("floor"), text=_call("floor", "floor", "tl.floor({0})"))  # fmt: skip
unary("ceil", np.ceil, "smallest whole number not below x", twice="once", rounding="never", wide_operands=True, onnx=("Ceil",), aten=("ceil",),
      **_both("ceil"), text=_call("ceil", "ceil", "tl.ceil({0})"))  # fmt: skip
unary("round", np.rint, "nearest whole number, ties to even", twice="once", rounding="never", wide_operands=True, onnx=("Round",), aten=("round",),
      numpy_function=OutFunction("rint"), torch_function=OutFunction("round"),
      text=TargetText("__builtin_rintf({0})", "rint({0})", cuda="rintf({0})", cuda_double="rint({0})", triton=_TRITON_ROUND,
                      jax="jnp.round({0})"))  # fmt: skip

for _half, _c, _cuda in (
    ("float16", "(float)(_Float16)(float){0}", "f16"),
    ("bfloat16", "widened(narrowed({0}))", "bf16"),
):
    unary(f"to_{_half}", meaning.rounded_to(_half), f"x rounded to {_half}, as a decision by 16-bit floats needs it",
          monotone=True, symmetry="odd", twice="once", flops=2,
          text=TargetText(_c, cuda=f"wide(stored<{_cuda}, float>(float({{0}})))", triton=f"({{0}}).to(tl.{_half}).to(tl.float32)",
                          jax=f"({{0}}).astype(jnp.{_half}).astype(jnp.float32)"))  # fmt: skip

binary("add", meaning.quiet(np.add), "x + y", keeps_positive=True, algebra="ring", real=lambda z, x, y: x + y, commutative=True, associative=True, linear=(0, 1), fixed=(0.0,), onnx=("Add",),
       aten=("add",), numpy_function=OutFunction("add"), torch_function=OutFunction("add", "number", counted=True),
       text=_text("{0} + {1}", c_whole="{0} + {1}"))  # fmt: skip
binary("sub", meaning.quiet(np.subtract), "x - y", algebra="ring", real=lambda z, x, y: x - y, linear=(0, 1), onnx=("Sub",), aten=("sub",),
       numpy_function=OutFunction("subtract", "number"), torch_function=OutFunction("sub", "number", counted=True),
       text=_text("{0} - {1}", c_whole="{0} - {1}"))  # fmt: skip
binary("mul", meaning.quiet(np.multiply), "x * y", keeps_positive=True, algebra="ring", real=lambda z, x, y: x * y, commutative=True, associative=True, linear=(0, 1), fixed=(0.0, 1.0), onnx=("Mul",),
       aten=("mul",), numpy_function=OutFunction("multiply"), torch_function=OutFunction("mul", "number", counted=True),
       text=_text("{0} * {1}", c_whole="{0} * {1}"))  # fmt: skip
binary("div", meaning.div, "x / y of floats", keeps_positive=True, real=lambda z, x, y: x / y, linear=(0,), floats_only=True, flops=2, domain="nonzero", rounding="always",
       onnx=("Div",), aten=("div",), numpy_function=OutFunction("true_divide"), torch_function=OutFunction("div"),
       text=_text("{0} / {1}", cuda="op::div({0}, {1})"))  # fmt: skip
binary("floordiv", meaning.quiet(np.floor_divide), "floor(x / y)", domain="nonzero", aten=("floor_divide",),
       numpy_function=OutFunction("floor_divide", "number"), torch_function=OutFunction("floor_divide", "none"),
       text=TargetText(c_whole="floor_div({0}, {1})", cuda_whole="op::floor_div({0}, {1})", triton_whole=_TRITON_FLOORDIV,
                       jax="jnp.floor_divide({0}, {1})"))  # fmt: skip
binary("mod", meaning.quiet(np.mod), "x - y * floor(x / y)", wide_operands=True, domain="nonzero", onnx=("Mod",), aten=("remainder",),
       numpy_function=OutFunction("remainder", "number"), torch_function=OutFunction("remainder", "none"),
       text=TargetText(c_whole="floor_mod({0}, {1})", cuda_whole="op::floor_mod({0}, {1})", triton_whole=_TRITON_MOD,
                       jax="jnp.mod({0}, {1})"))  # fmt: skip
binary("pow", meaning.quiet(meaning.power), "x ** y", flops=16, domain="positive", rounding="always", onnx=("Pow",), aten=("pow",),
       torch_function=OutFunction("pow", "float", counted=True),
       text=TargetText("__builtin_powf({0}, {1})", "pow({0}, {1})", cuda="op::pow({0}, {1})",
                       jax="jnp.power({0}, {1})", triton="tl.exp2({1} * tl.log2(tl.abs({0})))"))  # for positive x; values.py handles the others  # fmt: skip
binary("maximum", np.maximum, "the larger; NaN wins", keeps_positive=True, algebra="order", real=lambda z, x, y: z.If(x >= y, x, y), commutative=True, associative=True, fixed=(0.0, 1.0), rounding="never",
       onnx=("Max",), aten=("maximum",), numpy_function=OutFunction("maximum"), torch_function=OutFunction("maximum", counted=True),
       text=TargetText("(({0} > {1}) | ({0} != {0})) ? {0} : {1}", c_whole="{0} > {1} ? {0} : {1}", cuda="op::max({0}, {1})",
                       cuda_whole="op::max({0}, {1})", triton=_TRITON_MAXIMUM, jax="jnp.maximum({0}, {1})"))  # fmt: skip
binary("minimum", np.minimum, "the smaller; NaN wins", keeps_positive=True, algebra="order", real=lambda z, x, y: z.If(x <= y, x, y), commutative=True, associative=True, rounding="never",
       onnx=("Min",), aten=("minimum",), numpy_function=OutFunction("minimum"), torch_function=OutFunction("minimum", counted=True),
       text=TargetText("(({0} < {1}) | ({0} != {0})) ? {0} : {1}", c_whole="{0} < {1} ? {0} : {1}", cuda="op::min({0}, {1})",
                       cuda_whole="op::min({0}, {1})", triton=_TRITON_MINIMUM, jax="jnp.minimum({0}, {1})"))  # fmt: skip
binary("and", np.bitwise_and, "bitwise and; logical on bool", logic=lambda z, x, y: z.And(x, y), commutative=True, associative=True, onnx=("And", "BitwiseAnd"),
       aten=("logical_and", "bitwise_and"), **_both("bitwise_and", dtypes="bits"),
       text=TargetText(c_whole="{0} & {1}", cuda_bool="{0} && {1}", triton="{0} & {1}", jax="{0} & {1}"))  # fmt: skip
binary("or", np.bitwise_or, "bitwise or; logical on bool", logic=lambda z, x, y: z.Or(x, y), commutative=True, associative=True, onnx=("Or", "BitwiseOr"),
       aten=("logical_or", "bitwise_or"), **_both("bitwise_or", dtypes="bits"),
       text=TargetText(c_whole="{0} | {1}", cuda_bool="{0} || {1}", triton="{0} | {1}", jax="{0} | {1}"))  # fmt: skip
binary("xor", np.bitwise_xor, "bitwise exclusive or", logic=lambda z, x, y: z.Xor(x, y), commutative=True, associative=True, onnx=("Xor", "BitwiseXor"),
       aten=("logical_xor", "bitwise_xor"), **_both("bitwise_xor", dtypes="bits"),
       text=TargetText(c_whole="{0} ^ {1}", cuda_bool="{0} != {1}", triton="{0} ^ {1}", jax="{0} ^ {1}"))  # fmt: skip
binary("eq", np.equal, "x == y", real=lambda z, x, y: x == y, law="compare", commutative=True, onnx=("Equal",), aten=("eq",),
       numpy_function=OutFunction("equal"), torch_function=OutFunction("eq"), text=_text("{0} == {1}", c_whole="{0} == {1}"))  # fmt: skip
binary("lt", np.less, "x < y", real=lambda z, x, y: x < y, law="compare", onnx=("Less",), aten=("lt",),
       numpy_function=OutFunction("less"), torch_function=OutFunction("lt"), text=_text("{0} < {1}", c_whole="{0} < {1}"))  # fmt: skip
binary("le", np.less_equal, "x <= y", real=lambda z, x, y: x <= y, law="compare", onnx=("LessOrEqual",), aten=("le",),
       numpy_function=OutFunction("less_equal"), torch_function=OutFunction("le"), text=_text("{0} <= {1}", c_whole="{0} <= {1}"))  # fmt: skip
unary("not", np.logical_not, "logical not of a bool", twice="operand", logic=lambda z, x: z.Not(x), law="compare", floats=False, onnx=("Not",), aten=("logical_not",),
      **_both("logical_not"), text=_text("!{0}", c_whole="!{0}", cuda_whole="{0} == 0", triton="{0} == 0", jax="jnp.logical_not({0})"))  # fmt: skip
unary("is_nan", np.isnan, "whether NaN", law="compare", onnx=("IsNaN",), aten=("isnan",),
      numpy_function=OutFunction("isnan"), torch_function=OutFunction("isnan", "none"), text=_text("{0} != {0}", jax="jnp.isnan({0})"))  # fmt: skip
unary("is_inf", np.isinf, "whether infinite", law="compare", onnx=("IsInf",), aten=("isinf",),
      numpy_function=OutFunction("isinf"), torch_function=OutFunction("isinf", "none"),
      text=TargetText("__builtin_fabsf({0}) == INFINITY", "fabs({0}) == INFINITY", cuda="op::is_inf({0})",
                      triton="tl.abs({0}) == float('inf')", jax="jnp.isinf({0})"))  # fmt: skip
register(Op("where", 3, "where", "pointwise", {}, {}, "x where the condition holds, else y",
            numpy=lambda a, c, x, y: np.where(c, x, y), keeps_positive=True, rounding="never", linear=(1, 2), onnx=("Where",), aten=("where",),
            torch_function=OutFunction("where", "none"),
            text=_text("{0} ? {1} : {2}", c_whole="{0} ? {1} : {2}", triton="tl.where({0}, {1}, {2})",
                       jax="jnp.where({0}, {1}, {2})")))  # fmt: skip
register(Op("cast", 1, "cast", "pointwise", {"dtype": "dtype"}, {}, "another dtype; float to int truncates",
            numpy=meaning.cast, keeps_positive=True, linear=(0,), onnx=("Cast",), aten=("_to_copy",)))  # fmt: skip

register(Op("from_float8", 1, "from_float8", "pointwise", {"dtype": "dtype"}, {"dtype": "float32"},
            "value of the 8-bit float e4m3fn whose bits are a uint8", numpy=meaning.from_float8, rounding="never",
            text=TargetText(c_whole="from_float8({0})", cuda_whole="op::from_float8({0})",
                            triton="({0}).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)",
                            jax="jax.lax.bitcast_convert_type({0}.astype(jnp.uint8), jnp.float8_e4m3fn).astype(jnp.float32)")))  # fmt: skip

reduction("sum", meaning.sum_, "add", "sum over axes", keeps_positive=True, linear=(0,), algebra="ring", onnx=("ReduceSum",), aten=("sum",),
          text=_reduced("sum", ", dtype={wide}"))  # fmt: skip
reduction(
    "max",
    meaning.extreme(np.max, dtypes.least),
    "maximum",
    "largest over axes; NaN wins",
    keeps_positive=True,
    algebra="order",
    rounding="never",
    onnx=("ReduceMax",),
    aten=("amax",),
    text=_reduced("max", ", initial={least}"),
)
reduction(
    "min",
    meaning.extreme(np.min, dtypes.greatest),
    "minimum",
    "smallest over axes; NaN wins",
    keeps_positive=True,
    algebra="order",
    rounding="never",
    onnx=("ReduceMin",),
    aten=("amin",),
    text=_reduced("min", ", initial={greatest}"),
)
reduction("prod", lambda x, axis, keepdims: np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype), "mul",
          "product over axes", onnx=("ReduceProd",), aten=("prod",), text=_reduced("prod", ", dtype={wide}"))  # fmt: skip
register(Op("argmax", 1, "arg_reduce", "index", {"axis": "int"}, {}, "position of the first largest along an axis",
            numpy=lambda a, x: np.expand_dims(np.argmax(x, axis=a["axis"]), a["axis"]), onnx=("ArgMax",),
            aten=("argmax",), text=TargetText(jax="jnp.argmax({0}, axis={axis}, keepdims=True)")))  # fmt: skip
register(Op("argmin", 1, "arg_reduce", "index", {"axis": "int"}, {}, "position of the first smallest along an axis",
            numpy=lambda a, x: np.expand_dims(np.argmin(x, axis=a["axis"]), a["axis"]), onnx=("ArgMin",),
            aten=("argmin",), text=TargetText(jax="jnp.argmin({0}, axis={axis}, keepdims=True)")))  # fmt: skip
register(Op("cumsum", 1, "along", "reduction", {"axis": "int"}, {}, "running sums along an axis",
            numpy=lambda a, x: np.cumsum(x, axis=a["axis"], dtype=x.dtype), fused_as="scan", keeps_positive=True, linear=(0,), algebra="ring", onnx=("CumSum",),
            aten=("cumsum",), text=TargetText(jax="jnp.cumsum({0}, axis={axis}, dtype={wide})")))  # fmt: skip
register(Op("argsort", 1, "along_index", "index", {"axis": "int", "descending": "bool"}, {"descending": False},
            "positions that sort an axis, stable", numpy=meaning.argsort, aten=("argsort",),
            text=TargetText(jax="jnp.argsort({0}, axis={axis}, stable=True, descending={descending})")))  # fmt: skip

register(Op("matmul", 2, "matmul", "contraction", {}, {}, "a[..., M, K] @ b[..., K, N] or b[K, N]",
            numpy=lambda a, x, y: meaning.matmul(x, y), fused_as="product", work=op_flops.product, keeps_positive=True, linear=(0, 1), algebra="ring", onnx=("MatMul",),
            aten=("mm", "bmm", "matmul"),
            text=TargetText(jax="jnp.matmul({0}, {1}, precision='highest', preferred_element_type={wide})")))  # fmt: skip
register(Op("conv", 2, "conv", "contraction",
            {"strides": "dims", "pads": "dims", "dilations": "dims", "groups": "int"}, {},
            "convolution (cross-correlation) of x[N, C, *S] with w[O, C/groups, *K]", numpy=meaning.conv, linear=(0, 1), algebra="ring",
            fused_as="product", work=op_flops.convolution,
            onnx=("Conv",), aten=("convolution",)))  # fmt: skip

register(Op("recurrent", 3, "recurrent", "contraction",
            {"cell": "str", "variant": "str", "activations": "str", "hidden": "int", "width": "int", "layers": "int",
             "directions": "int"}, {},
            "recurrent layers over x[T, B, I], all in one line: hidden values [T, B, directions * width], then the last states; "
            "the first states and the weights of all layers are lines, too (egraph/composites/recurrent.py)",
            numpy=lambda a, x, state, w: recurrent(x, state, w, **a), work=op_flops.recurrent_layers, floats_only=True, onnx=("LSTM", "GRU", "RNN"),
            aten=("lstm", "gru", "rnn_tanh", "rnn_relu")))  # fmt: skip

register(Op("reshape", 1, "reshape", "view", {"shape": "dims"}, {}, "other sizes, same order of elements",
            numpy=lambda a, x: np.reshape(x, a["shape"]), linear=(0,), onnx=("Reshape",),
            index_map=index_maps.reshape, methods=ViewMethods(("reshape", "shape"), ("view", "shape")), aten=("view", "reshape"),
            text=TargetText(jax="jnp.reshape({0}, {shape})")))  # fmt: skip
register(Op("permute", 1, "permute", "view", {"perm": "dims"}, {}, "axes in another order",
            numpy=lambda a, x: np.transpose(x, a["perm"]), linear=(0,), onnx=("Transpose",),
            index_map=index_maps.permute, methods=ViewMethods(("transpose", "perm"), ("permute", "perm")), aten=("permute",),
            text=TargetText(jax="jnp.transpose({0}, {perm})")))  # fmt: skip
register(Op("broadcast_to", 1, "broadcast_to", "view", {"shape": "dims"}, {}, "sizes of 1 repeated",
            numpy=lambda a, x: np.broadcast_to(x, a["shape"]), linear=(0,), onnx=("Expand",),
            index_map=index_maps.broadcast_to, methods=ViewMethods(torch=("expand", "shape")), aten=("expand",),
            text=TargetText(jax="jnp.broadcast_to({0}, {shape})")))  # fmt: skip
register(Op("slice", 1, "slice", "view", {"axis": "int", "start": "int", "stop": "int", "step": "int"}, {"step": 1},
            "elements start, start + step, … below stop along one axis", numpy=meaning.slice_, linear=(0,),
            index_map=index_maps.slice_, aten=("slice",)))  # fmt: skip
register(Op("flip", 1, "along", "view", {"axis": "int"}, {}, "one axis backwards",
            numpy=lambda a, x: np.flip(x, a["axis"]), linear=(0,), index_map=index_maps.flip,
            methods=ViewMethods(torch_copy=("flip", "axis")), aten=("flip",),
            text=TargetText(jax="jnp.flip({0}, {axis})")))  # fmt: skip
register(Op("windows", 1, "windows", "view", {"axis": "int", "size": "int", "stride": "int", "dilation": "int"},
            {"stride": 1, "dilation": 1}, "sliding windows along an axis, their elements in a new last axis",
            numpy=lambda a, x: meaning.sliding(x, a["axis"], a["size"], a["stride"], a["dilation"]), linear=(0,),
            index_map=index_maps.windows, aten=("unfold",)))  # fmt: skip
register(Op("concat", 2, "concat", "layout", {"axis": "int"}, {}, "one after the other along an axis",
            numpy=lambda a, x, y: np.concatenate((x, y), axis=a["axis"]), linear=(), onnx=("Concat",),
            index_map=index_maps.concat, aten=("cat",), text=TargetText(jax="jnp.concatenate(({0}, {1}), axis={axis})")))  # fmt: skip
register(Op("pad", 1, "pad", "layout", {"axis": "int", "lo": "int", "hi": "int", "value": "float"}, {"value": 0.0},
            "a constant before and after along an axis", numpy=meaning.pad, onnx=("Pad",),
            index_map=index_maps.pad, aten=("constant_pad_nd",)))  # fmt: skip
register(Op("gather", 2, "gather", "index", {"axis": "int"}, {},
            "x's slices at the indices (0 <= index < size; others clip), their axes in place of `axis`",
            numpy=lambda a, x, i: np.take(x, i, axis=a["axis"], mode="clip"), fused_as="cheap", index_operand=1,
            keeps_positive=True, linear=(0,), onnx=("Gather",),
            aten=("index_select", "embedding"), text=TargetText(jax="jnp.take({0}, {1}, axis={axis}, mode='clip')")))  # fmt: skip
register(Op("gather_elements", 2, "gather_elements", "index", {"axis": "int"}, {},
            "x at the index along one axis, per position (negative ones count from the end, those beyond clip)",
            numpy=lambda a, x, i: x[meaning.along(meaning.inside(i, x.shape[a["axis"]]), a["axis"])], fused_as="cheap", index_operand=1,
            negative_indices=True, keeps_positive=True, linear=(0,), onnx=("GatherElements",),
            aten=("gather",)))  # fmt: skip
register(Op("scatter_elements", 3, "scatter_elements", "index", {"axis": "int", "mode": "str"}, {"mode": "set"},
            "x with updates written (set, add, mul, max, min) at the index along one axis; of two set in one place, either",
            numpy=meaning.scatter, fused_as="written", index_operand=1, negative_indices=True,
            onnx=("ScatterElements",), aten=("scatter", "scatter_add")))  # fmt: skip
