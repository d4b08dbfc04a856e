"""Calls NumPy functions other than ufuncs on traced arrays.

A function is replaced by one that builds its graph (its builder), with a supported subset of NumPy's parameters under
NumPy's names. Before the builder runs, NumPy itself is called on stand-in arrays: its exceptions become TraceErrors,
and its result determines the expected shape and dtype.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import TensorGraphsError, TraceError
from .array_memory import Memory
from .complex_array import ComplexArray
from .numpy_array import TracedArray, arrays_in, deep, expression, is_traced, native_name, shared, traced
from .numpy_builders import Build
from .numpy_curves import CURVES
from .numpy_layout import LAYOUT
from .numpy_linear_systems import SYSTEMS
from .numpy_moves import MOVES
from .numpy_own_code import OWN_CODE
from .numpy_partitions import PARTITIONS
from .numpy_products import PRODUCTS
from .numpy_reductions import REDUCTIONS
from .numpy_selection import SELECTION
from .numpy_ufuncs import operand, written

PROBED = 1 << 15  # largest number of argument elements for which NumPy is called on stand-ins
COMPOSED: dict[str, Build] = {
    **REDUCTIONS,
    **PRODUCTS,
    **SELECTION,
    **CURVES,
    **MOVES,
    **OWN_CODE,
    **PARTITIONS,
    **SYSTEMS,
}  # builders over traced arrays
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
    "block",
    "resize",
    "unwrap",
}


#: Functions that are not called on stand-ins, because the result's shape or validity depends on argument values.
UNPROBED = {"where", "bincount", "histogram", "piecewise", "linalg.inv", "linalg.solve"}


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
    variadic = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    for key, value in bound.arguments.items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places += value
        elif variadic and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            places.append(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            found |= value
        elif parameter.default is parameter.empty or not _same(value, parameter.default):
            found[key] = value
    return places, found


def in_places(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Arguments of NumPy's `function`, those that its signature has places for by position; without `out=None`.

    Raises TypeError for arguments that do not fit the signature.
    """
    named = {k: v for k, v in named.items() if k != "out" or v is not None}
    signature = _signature(function)
    if signature is None:
        return args, named
    bound = signature.bind(*args, **named)
    return bound.args, bound.kwargs


def _same(value: Any, default: Any) -> bool:
    simple = (bool, int, float, str, type(None), type(np._NoValue))
    return (
        type(value) is type(default) and isinstance(default, simple) and repr(value) == repr(default)
    )  # -0.0 is not 0.0


_READ_IN_ORDER = {"ravel", "reshape"}  # functions whose `order` is that of elements, not of the result in memory
#: Functions that make an array; with `like=` a traced one, which is traced itself.
CREATED = {"array", "zeros", "ones", "full", "arange", "eye", "identity", "tri"}
_IGNORED = {"subok", "device", "overwrite_input", "like"}  # options without effect on the result


def call(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Trace NumPy's `function(*args, **named)` on traced arrays (the `__array_function__` protocol); returns its
    result, traced.

    Raises TraceError for functions and arguments that cannot be traced.
    """
    name = title(function)
    if name in CREATED and not arrays_in(args, dict(named)):
        return traced(t.constant(function(*args, **named)))
    build = FUNCTIONS.get(name)
    if build is None:
        hint = "write it with other functions of NumPy, or tg.*"
        refuse_value(TraceError(f"np.{name} of a traced array cannot be traced", hint=hint))
    places, given = _by_name(name, function, args, named)
    out = given.pop("out", None)
    reads = name in _READ_IN_ORDER
    given = {
        k: v
        for k, v in given.items()
        if k not in _IGNORED and (reads or k != "order" or v not in ("C", "K", "A", None))
    }
    try:
        inspect.signature(build).bind(*places, **given)
    except TypeError as error:
        raise TraceError(f"np.{name} of a traced array: {error}", hint="leave that argument out") from None
    wanted = probed(name, function, args, named)
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
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TraceError(
            f"np.{name} of a traced array: {error}", hint="other arguments, or other functions of NumPy"
        ) from error
    result = agreeing(name, result, wanted)
    if out is not None:
        out = out[0] if isinstance(out, tuple) else out
        if result.shape != np.shape(out):
            raise TraceError(f"np.{name} makes {result.shape}, and out= has the shape {np.shape(out)}")
        return written(operand(result, out.dtype.name), out)
    arrays = arrays_in(args, dict(named))
    if name == "einsum" and len(args) == 2 and getattr(wanted, "base", args) is not None:
        return _in_memory_of(result, arrays[0])  # without a sum it is a writable view of its operand
    if name not in FRESH:
        result = deep(result, lambda v: _in_memory(v, arrays))
    return result


def _in_memory_of(value: TracedArray, array: TracedArray) -> TracedArray:
    """Return a result as an alias of an array's memory, without a record of which elements of the array it shares."""
    return traced(value._node, memory=array._memory)


def _in_memory(value: Any, arrays: Sequence[TracedArray]) -> Any:
    """Return a result that aliases the memory of an argument, if the result may be a view of the argument."""
    if not is_traced(value) or any(value is a for a in arrays) or value._scalar:
        return value
    memory: Memory | None = shared(value._node, arrays)
    return value if memory is None else traced(value._node, memory=memory)


def probed(name: str, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return NumPy's result for arrays of ones in place of the traced arrays; None if the arguments are too large.

    If NumPy raises, zeros are tried. Raises TraceError if NumPy raises for both.
    """
    arrays = arrays_in(list(args), dict(named))
    deep(list(args), lambda v: arrays.append(v._re) if type(v) is ComplexArray else None)
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
    if type(value) is ComplexArray:
        return np.full(concrete(value._re._node.shape), fill, value.dtype)
    return value.copy() if type(value) is np.ndarray else value


def agreeing(name: str, result: Any, wanted: Any) -> Any:
    """Cast a result to the dtype of NumPy's result `wanted`. Raises TraceError if shape or structure differ."""
    if wanted is None:
        return result
    if isinstance(wanted, list | tuple):
        if not isinstance(result, list | tuple) or len(result) != len(wanted):
            raise TraceError(f"np.{name} of a traced array has another structure than NumPy's")
        parts = [agreeing(name, r, w) for r, w in zip(result, wanted)]
        return parts if type(wanted) is list else tuple(parts)
    if not is_traced(result) or not isinstance(wanted, np.ndarray | np.generic | bool | int | float):
        return result
    dtype = np.asarray(wanted).dtype
    if result.shape != np.shape(wanted):
        raise TraceError(f"np.{name} of a traced array makes {result.shape}, NumPy makes {np.shape(wanted)}")
    if result.dtype == dtype and (result.ndim or result._scalar == (not isinstance(wanted, np.ndarray))):
        return result
    if _narrower(np.dtype(result.dtype), dtype):
        raise TraceError(f"np.{name} of a traced array is computed in {result.dtype}, NumPy's in {dtype}")
    return traced(t.cast(result._node, native_name(dtype)), scalar=not isinstance(wanted, np.ndarray))


def _narrower(computed: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values computed in one dtype may differ from those of NumPy's dtype: other integers wrap elsewhere, and
    shorter floats are rounded."""
    kinds = computed.kind + wanted.kind
    return (kinds in ("ff", "cc") and computed.itemsize < wanted.itemsize) or (
        computed != wanted and not set(kinds) - set("iu")
    )


__all__ = ["COMPOSED", "FUNCTIONS", "LAYOUT", "agreeing", "call", "in_places", "probed", "title"]
