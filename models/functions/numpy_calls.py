"""Implements NumPy's protocols, operators and methods for traced arrays, and NumPy functions on tensor expressions.

On a traced array, `np.exp(x)`, `x + 1` and `x.mean(axis=0)` either follow NumPy in value, shape and dtype or raise
TraceError. NumPy functions also accept tensor expressions (`tg.input` and values derived from it) and then return
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...egraph.builders.operand_alignment import align
from ...egraph.builders.tensor_operators import refuse_outside
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import TraceError, UsageError
from . import complex_calls, numpy_functions, numpy_ufunc_methods, numpy_ufuncs
from .array_memory import Memory
from .complex_array import ComplexArray, is_complex, is_complex_kind, kind_of_parts, parts_of
from .numpy_array import TracedArray, arrays_in, deep, expression, is_traced, traced
from .numpy_functions import FUNCTIONS
from .numpy_ufuncs import REDUCTIONS, UFUNCS

#: NumPy functions that are also array methods.
METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "clip", "copy", "cumprod", "cumsum", "diagonal", "dot", "max", "mean", "min", "prod",
    "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace", "var",
)  # fmt: skip
#: Python operator name -> ufunc.
OPERATORS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide, "mod": np.remainder,
    "divmod": np.divmod, "pow": np.power, "lshift": np.left_shift, "rshift": np.right_shift, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "matmul": np.matmul,
}  # fmt: skip
COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNARY: dict[str, np.ufunc] = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


def _array_ufunc(self: TracedArray, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
    if is_complex(list(inputs)):
        return complex_calls.ufunc(ufunc, method, inputs, named)
    return numpy_ufunc_methods.method(ufunc, method, inputs, named)


def _array_function(
    self: TracedArray, func: Callable[..., Any], types: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    if is_complex([*args, *named.values()]) or complex_calls.is_traceable(func, args, named):
        return complex_calls.call(func, args, named)
    return numpy_functions.call(func, args, named)


def _binary(ufunc: np.ufunc, reflected: bool = False) -> Callable[..., Any]:
    def operator(x: TracedArray, y: Any, *modulo: Any) -> Any:
        if modulo:
            raise TraceError("pow() with a modulus is not supported for arrays")
        if ufunc is np.power and not reflected and type(y) is int and y == 2:
            # as NumPy does: np.square of bools has another dtype than np.power
            return np.square(x)
        operands = (y, x) if reflected else (x, y)
        if is_complex(list(operands)):
            return complex_calls.ufunc(ufunc, "__call__", operands, {})
        return numpy_ufuncs.call(ufunc, operands, {})

    return operator


def _in_place(ufunc: np.ufunc) -> Callable[..., Any]:
    def operator(x: TracedArray, y: Any, *modulo: Any) -> Any:
        if modulo:
            raise TraceError("pow() with a modulus is not supported for arrays")
        return numpy_ufuncs.in_place(ufunc, x, y)

    return operator


def _unary(ufunc: np.ufunc) -> Callable[..., Any]:
    return lambda x: ufunc(x)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *args, **named: numpy_functions.call(function, (x, *args), named)


for _name, _ufunc in OPERATORS.items():
    setattr(TracedArray, f"__{_name}__", _binary(_ufunc))
    setattr(TracedArray, f"__r{_name}__", _binary(_ufunc, True))
    if _name != "divmod":
        setattr(TracedArray, f"__i{_name}__", _in_place(_ufunc))
for _kind in (TracedArray, ComplexArray):
    for _name, _ufunc in COMPARISONS.items():
        setattr(_kind, f"__{_name}__", _binary(_ufunc))
    for _name, _ufunc in UNARY.items():
        setattr(_kind, f"__{_name}__", _unary(_ufunc))
for _name, _ufunc in OPERATORS.items():
    setattr(ComplexArray, f"__{_name}__", _binary(_ufunc))
    setattr(ComplexArray, f"__r{_name}__", _binary(_ufunc, True))
    setattr(ComplexArray, f"__i{_name}__", complex_calls.in_place(_ufunc))
for _name in METHODS:
    setattr(TracedArray, _name, _method(getattr(np, _name)))


def _clip(x: TracedArray, *bounds: Any, **named: Any) -> Any:
    """Same as numpy.ndarray.clip, which takes one bound; np.clip does not."""
    names = ("min", "max")[len(bounds) :]
    both = (*bounds, *(named.get(n) for n in names))
    return numpy_functions.call(np.clip, (x, *both), {n: v for n, v in named.items() if n not in names})


def _astype(x: TracedArray, dtype: Any, *rest: Any, **named: Any) -> Any:
    """Same as numpy.ndarray.astype, also to complex numbers."""
    if not is_complex_kind(dtype):
        return _real_astype(x, dtype, *rest, **named)
    kind = kind_of_parts(np.dtype(dtype).type(0))
    return ComplexArray(*(traced(part._node, scalar=x._scalar) for part in parts_of(x, kind)))


_real_astype = TracedArray.astype
TracedArray.astype = _astype  # type: ignore[assignment, method-assign]
TracedArray.clip = _clip  # type: ignore[attr-defined]
TracedArray.__array_ufunc__ = _array_ufunc
TracedArray.__array_function__ = _array_function


# ---------------------------------------------------------------- tensor expressions
def _on_expressions(run: Callable[..., Any], args: Any, named: Any) -> Any:
    """Run a NumPy call on tensor expressions by wrapping them in traced arrays.

    The result is unwrapped to expressions, unless an argument was already a traced array.
    """
    fixed = Memory("a tensor expression")
    change = lambda v: traced(v, memory=fixed) if isinstance(v, Tensor) else v
    found = run(deep(tuple(args), change), deep(dict(named), change))
    return found if arrays_in(list(args), dict(named)) else deep(found, expression)


def _expression_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
    return _on_expressions(lambda args, kw: numpy_ufunc_methods.method(ufunc, method, args, kw), inputs, named)


def _expression_function(self: Tensor, func: Callable[..., Any], types: Any, args: Any, named: Any) -> Any:
    return _on_expressions(lambda xs, kw: numpy_functions.call(func, xs, kw), args, named)


def _expression_method(name: str) -> Callable[..., Any]:
    def call(x: Tensor, *args: Any, **named: Any) -> Any:
        return _on_expressions(lambda xs, kw: getattr(xs[0], name)(*xs[1:], **kw), (x, *args), named)

    return call


#: Methods of tensor expressions in addition to those in `egraph/builders/tensor_operators.py`.
for _name in (
    "all", "any", "argmax", "argmin", "argsort", "clip", "copy", "cumprod", "cumsum", "diagonal", "dot", "prod", "ravel", "repeat",
    "round", "squeeze", "std", "swapaxes", "take", "trace", "var",
):  # fmt: skip
    setattr(Tensor, _name, _expression_method(_name))
for _name, _build in (("lshift", UFUNCS["left_shift"]), ("rshift", UFUNCS["right_shift"])):
    setattr(Tensor, f"__{_name}__", lambda x, y, _build=_build: _build(*_shifted(x, y)))
    setattr(Tensor, f"__r{_name}__", lambda x, y, _build=_build: _build(*_shifted(y, x)))


def _shifted(x: Any, y: Any) -> Sequence[Tensor]:
    """Operands of a shift as tensors of one integer dtype. Raises UsageError for floats and ints outside the dtype."""
    refuse_outside((x, y))
    found = align(x, y)
    if dtypes.is_float(found[0].dtype):
        raise UsageError("floats cannot be shifted", hint="multiply by a power of 2, or cast to an integer dtype")
    return found


Tensor.__array_ufunc__ = _expression_ufunc
Tensor.__array_function__ = _expression_function
__all__ = [
    "COMPARISONS",
    "FUNCTIONS",
    "METHODS",
    "OPERATORS",
    "REDUCTIONS",
    "UFUNCS",
    "UNARY",
    "TracedArray",
    "is_traced",
]
