"""Functions that build the graph of a NumPy call on traced arrays: partitions, extremes beside NaN, pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.tensor import rebuild, topological
from ...egraph.types.axes import axis_of
from ...errors import TraceError
from .numpy_array import arrays_in, coerced, is_traced, traced
from .numpy_builders import OUTSIDE, Build, as_dtype, ints, numbers

#: Views of an array that leave its elements in order, so that a function with them is still elementwise.
_IN_ORDER = ("reshape", "broadcast_to")


def _partitioned(order: Callable[..., Any]) -> Build:
    """A partition: all elements in order, which is one of the orders that NumPy may give."""

    def build(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect") -> Any:
        if arrays_in(kth):
            raise TraceError("a partition at traced places cannot be traced", hint="np.sort")
        a, axis = (np.ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
        size = a.shape[axis]
        if isinstance(size, int) and any(not -size <= k < size for k in ints(kth)):
            raise TraceError(f"the place {kth} of a partition is outside of an axis of {size} elements")
        return order(a, axis, kind="stable")

    return build


def _place_beside_nan(place: Callable[..., Any], worst: float) -> Build:
    """The place of an extreme that is no NaN. Where all elements are NaN, the program takes an element that is outside
    of a table, which is an error of its call as it is in NumPy."""

    def build(a: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        if a.dtype.kind in "iub":
            return place(a, axis, keepdims=keepdims)
        holes = np.isnan(a)
        found = place(np.where(holes, a.dtype.type(worst), a), axis, keepdims=keepdims)
        none = np.all(holes, axis, keepdims=keepdims)
        size = a.size if axis is None else a.shape[axis_of(axis, a.ndim)]
        return numbers(size)[np.where(none, OUTSIDE, found)]

    return build


def _piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **named: Any) -> Any:
    if not is_traced(x):
        raise TraceError(
            "np.piecewise of an array that is not traced cannot be traced by traced conditions", hint="np.where"
        )
    alone = isinstance(condlist, bool | np.bool_) or (not isinstance(condlist[0], list | np.ndarray) and x.ndim > 0)
    given = [condlist] if alone else list(condlist)
    conditions = [as_dtype(c, np.bool_) for c in given]
    if any(np.shape(c) != x.shape for c in conditions):
        raise TraceError(
            f"np.piecewise takes conditions of the shape {x.shape} of its array, not {[np.shape(c) for c in conditions]}"
        )
    if len(conditions) == len(funclist) - 1:
        other: Any = traced(t.full((), False, "bool"))
        for condition in conditions:
            other = other | condition
        conditions.append(~other)
    found: Any = np.zeros_like(x)
    for condition, function in zip(conditions, funclist, strict=True):
        value = _elementwise(function, x, args, named) if callable(function) else function
        if np.ndim(value) and np.shape(value) != x.shape:
            raise TraceError(
                f"np.piecewise with a piece of the shape {np.shape(value)} cannot be traced", hint="np.where"
            )
        found = np.where(condition, traced(coerced(value, x.dtype.name)), found)
    return found


def _elementwise(function: Callable[..., Any], x: Any, args: Sequence[Any], named: Any) -> Any:
    """Values of the function at all elements of x, where NumPy calls it with a 1-d array of those for which a condition
    holds. Raises TraceError if it is not elementwise."""
    given: Any = np.ravel(x)
    # not x, which the function may know, too; and one element more, to find out whether it reads how many there are
    leaf, longer = (t.input("an element of the piece", (given.shape[0] + i,), x.dtype.name) for i in (0, 1))
    found, other = (function(traced(v), *args, **named) for v in (leaf, longer))
    if _spelled(found) != _spelled(other):
        raise TraceError("np.piecewise with a function of the number of elements cannot be traced", hint="np.where")
    if not is_traced(found):
        return found
    depend = {leaf}
    for node in topological(expand_all([found._node])):
        if node is not leaf and not depend.isdisjoint(node.args):
            depend.add(node)
            if node.entry.kind != "pointwise" and node.op not in _IN_ORDER:
                raise TraceError(
                    f"np.piecewise with {node.op} in a piece, which is not elementwise, cannot be traced",
                    hint="np.where",
                )
    (node,) = rebuild([found._node], lambda node, _: given._node if node is leaf else None)
    return np.reshape(traced(node), x.shape) if found.ndim and found.shape == given.shape else traced(node)


def _spelled(value: Any) -> Any:
    """What a function has computed, without the shapes of its values; other values than traced ones as they are."""
    if not is_traced(value):
        return repr(value)
    return [
        (
            node.op,
            [repr(v) for name, v in node.attrs if dict(node.entry.attrs).get(name) != "dims"],  # NaN is as another NaN
            node.shape if node.op == "iota" else None,
            None if node.data is None else np.asarray(node.data).tobytes(),
        )
        for node in topological(expand_all([value._node]))
    ]


#: Builders over traced arrays by qualified name.
PARTITIONS: dict[str, Build] = {
    "partition": _partitioned(np.sort), "argpartition": _partitioned(np.argsort), "piecewise": _piecewise,
    "nanargmax": _place_beside_nan(np.argmax, -np.inf), "nanargmin": _place_beside_nan(np.argmin, np.inf),
}  # fmt: skip

__all__ = ["PARTITIONS"]
