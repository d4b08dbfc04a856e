"""Implements the methods of NumPy ufuncs on traced arrays: reduce, accumulate, outer, at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.axes import axis_of
from ...errors import TraceError
from ..common.sampling import running
from .numpy_array import TracedArray, expression, is_traced, keys_of, traced
from .numpy_indices import written_at
from .numpy_ufuncs import (
    BUILDERS,
    LONGEST,
    REDUCTIONS,
    Build,
    call,
    kind_of,
    operand,
    reduction_dtypes,
    resolved,
    written,
)


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    if axis is None or (not rank and type(axis) is int and axis in (0, -1)):  # NumPy accepts both axes of a 0-d array
        return tuple(range(rank))
    found = [_axis(a, rank) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    if len(set(found)) < len(found):
        raise TraceError(f"an axis is named twice: {axis}")
    return tuple(found)


def _axis(axis: Any, rank: int) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or is_traced(axis):
        raise TraceError(f"{axis!r} is no axis")
    return axis_of(int(axis), rank)


def reduce(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
    initial: Any = np._NoValue, where: Any = True,
) -> TracedArray:  # fmt: skip
    """Result of `ufunc.reduce(array, …)` on a traced array. Raises TraceError for options that cannot be traced."""
    x = t.as_tensor(expression(array))
    axes, names = _axes(axis, x.rank), reduction_dtypes(ufunc, x.dtype, dtype)
    x = t.cast(x, names[1])
    start = None if initial is np._NoValue or initial is None else initial
    if ufunc is np.hypot:  # its identity 0 makes -1 positive, but not a negative initial value of nothing
        if where is not True:
            raise TraceError("np.hypot.reduce with where= cannot be traced", hint="np.where on the array")
        x = t.abs(x)
    if where is not True:
        neutral = start if ufunc.identity is None and ufunc in _IDEMPOTENT else ufunc.identity
        if neutral is None:
            raise TraceError(f"np.{ufunc.__name__}.reduce with where= cannot be traced", hint="np.where on the array")
        x = t.where(operand(where, "bool"), x, operand(neutral, x.dtype))
        if x.shape != t.as_tensor(expression(array)).shape:
            raise TraceError("where= has more elements than the array")
    if ufunc.identity is None and start is None and any(x.shape[a] == 0 for a in axes):
        raise TraceError(f"np.{ufunc.__name__}.reduce of no elements is not defined: the function has no identity")
    build = REDUCTIONS.get(ufunc.__name__) if ufunc in BUILDERS else None
    first = None if start is None else operand(start, x.dtype)
    if build is None or not axes:
        node = _folded(ufunc, x, axes, first)
    else:
        node = build(x, axes, True)
        if first is not None:
            node = call(ufunc, (traced(first), traced(node)), {})._node
    node = t.cast(node, names[2])
    if not keepdims:
        node = t.reshape(node, [d for i, d in enumerate(node.shape) if i not in axes])
    out = out[0] if isinstance(out, tuple) else out
    return traced(node, scalar=True) if out is None else written(node, out)


_IDEMPOTENT = (np.maximum, np.minimum, np.fmax, np.fmin)


#: Ufuncs that may be unrolled in reductions and scans. For others NumPy's result depends on the memory layout, or their
#: use is rare.
_FOLDED = (
    np.add, np.multiply, np.maximum, np.minimum, np.subtract, np.divide, np.fmax, np.fmin, np.bitwise_and, np.bitwise_or, np.bitwise_xor,
    np.logical_and, np.logical_or, np.logical_xor, np.hypot, np.logaddexp, np.logaddexp2,
)  # fmt: skip


def _folded(ufunc: np.ufunc, x: Tensor, axes: tuple[int, ...], first: Tensor | None) -> Tensor:
    """Unroll a reduction into calls of the ufunc along the axis, starting with `first` if given."""
    if len(axes) > 1 and ufunc.identity is None and ufunc not in (np.fmax, np.fmin):
        raise TraceError(
            f"np.{ufunc.__name__}.reduce over several axes is not defined: its result would depend on their order"
        )
    if len(axes) != 1 and first is not None:
        return call(ufunc, (traced(first), traced(_folded(ufunc, x, axes, None))), {})._node  # type: ignore[no-any-return]
    for axis in axes:
        parts = _positions(ufunc, x, axis)
        if first is not None:
            parts, first = [t.reshape(first, (1,) * x.rank), *parts], None
        x = fold(lambda a, b: call(ufunc, (traced(a), traced(b)), {})._node, parts)
    return x


def _positions(ufunc: np.ufunc, x: Tensor, axis: int) -> list[Tensor]:
    size = x.shape[axis]
    if ufunc not in _FOLDED:
        raise TraceError(
            f"np.{ufunc.__name__} cannot be folded along an axis while it is traced", hint="a loop over x[i]"
        )
    if not isinstance(size, int) or not 0 < size <= LONGEST:
        raise TraceError(
            f"np.{ufunc.__name__} over an axis of {size} elements cannot be traced", hint=f"1 to {LONGEST} can"
        )
    return [t.slice_axis(x, axis, i, i + 1) for i in range(size)]


_RUNNING: dict[str, Build] = {"multiply": t.mul, "maximum": t.maximum, "minimum": t.minimum}


def accumulate(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> TracedArray:
    """Result of `ufunc.accumulate(array, …)` on a traced array. Raises TraceError for options that cannot be traced."""
    x = t.as_tensor(expression(array))
    if not x.rank:
        raise TraceError(f"np.{ufunc.__name__}.accumulate of a 0-d array is not defined")
    place = _axis(axis, x.rank)
    names = reduction_dtypes(ufunc, x.dtype, dtype)
    x = t.cast(x, names[1])
    name = ufunc.__name__
    if name == "add" and x.dtype != "bool":
        node = t.cumsum(x, place, x.dtype)
    elif name in _RUNNING and x.dtype != "bool" and isinstance(x.shape[place], int) and x.shape[place]:
        neutral = 1 if name == "multiply" else dtypes.least(x.dtype) if name == "maximum" else dtypes.greatest(x.dtype)
        node = running(x, place, _RUNNING[name], neutral)
    elif x.shape[place] == 0:
        node = x
    else:
        parts = _positions(ufunc, x, place)
        found = [parts[0]]
        for part in parts[1:]:
            found.append(call(ufunc, (traced(found[-1]), traced(part)), {})._node)
        node = t.concat(found, place)
    node = t.cast(node, names[2])
    out = out[0] if isinstance(out, tuple) else out
    return traced(node) if out is None else written(node, out)


def outer(ufunc: np.ufunc, a: Any, b: Any, **named: Any) -> Any:
    """Result of `ufunc.outer(a, b, …)` on traced arrays."""
    x, y = (t.as_tensor(expression(v)) for v in (a, b))  # Python numbers are strongly typed here, as arrays
    return call(ufunc, (traced(t.reshape(x, (*x.shape, *(1,) * y.rank))), traced(y)), named)


#: Ufunc -> mode of a scatter that applies it, and what is done to the values first.
_AT: dict[np.ufunc, tuple[str, Build]] = {
    np.add: ("add", lambda v: v), np.subtract: ("add", lambda v: -v), np.multiply: ("mul", lambda v: v),
    np.maximum: ("max", lambda v: v), np.minimum: ("min", lambda v: v),
}  # fmt: skip


def at(ufunc: np.ufunc, array: Any, indices: Any, *values: Any) -> None:
    """Trace `ufunc.at(array, indices, values)`, which changes a traced array in place. Raises TraceError for other
    ufuncs than `_AT` has, masks, bools and arrays that are not traced."""
    if not is_traced(array):
        raise TraceError(
            f"np.{ufunc.__name__}.at changes an array that is not traced, which a program cannot do",
            hint="make it a traced one: np.zeros(n, like=x)",
        )
    if ufunc not in _AT or len(values) != 1 or array.dtype == np.bool_:
        raise TraceError(f"np.{ufunc.__name__}.at of {array.dtype} cannot be traced",
                         hint=f"np.{', np.'.join(f.__name__ for f in _AT)} can, of numbers")  # fmt: skip
    mode, prepared = _AT[ufunc]
    names = resolved(ufunc, (array.dtype, kind_of(values[0]), None), None)
    wraps = mode in ("add", "mul") or names[2] == array.dtype.name or dtypes.is_float(names[2])
    if len(set(names)) > 1 or not wraps or not np.can_cast(names[2], array.dtype, "same_kind"):
        raise TraceError(f"np.{ufunc.__name__}.at computes in {names[2]} beside {array.dtype}", hint="cast the values")
    new = prepared(traced(operand(values[0], names[1])))._node
    index = keys_of(indices)
    if any(getattr(k, "dtype", None) in ("bool", np.bool_) for k in index):
        raise TraceError(f"np.{ufunc.__name__}.at at a mask cannot be traced", hint="np.where")
    found = written_at(t.cast(array._node, names[2]), index, new, mode)
    array._store(t.cast(found, array.dtype.name))


def method(ufunc: np.ufunc, name: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Trace a ufunc call (`name` "__call__") or a method such as "reduce" on traced arrays (the `__array_ufunc__`
    protocol); returns the result, traced. Raises TraceError for calls that cannot be traced."""
    if name == "__call__":
        return call(ufunc, inputs, named)
    methods: dict[str, Build] = {"reduce": reduce, "accumulate": accumulate, "outer": outer, "at": at}
    run = methods.get(name)
    if run is None:
        refuse_value(
            TraceError(
                f"np.{ufunc.__name__}.{name} of a traced array cannot be traced", hint="np.where, or a loop over parts"
            )
        )
    try:
        return run(ufunc, *inputs, **named)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise TraceError(f"np.{ufunc.__name__}.{name}: {error}") from None
