"""Defines `TracedArray`, the stand-in for NumPy arrays while a function is traced.

Every operation either builds the expression of NumPy's result (values, shape and dtype) or raises TraceError.
Assignments and in-place operators change the array as in NumPy, and its base if it is a view. If another live array
shares the memory in a way that is not tracked, they raise TraceError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.refused_values import refuse_value
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import TraceAttributeError, TraceError
from ...wording import with_article
from ..common.shown_texts import is_shown
from . import trace_bounds
from .array_attributes import ArrayAttributes
from .array_memory import Memory
from .float_errors import refuse_changed
from .free_size import known
from .numpy_indices import assigned, picked, static
from .refused_protocols import REFUSED, no_value

#: Ops whose result NumPy may return as a view of the operand.
VIEWS = ("reshape", "permute", "broadcast_to", "slice", "flip", "windows")


class TracedArray(ArrayAttributes):
    """Stand-in for a NumPy array while a function is traced, with an expression in place of values. Created by `traced`
    only."""

    __slots__ = ("__weakref__", "_base", "_key", "_memory", "_node", "_scalar")

    _node: Tensor
    _memory: Memory
    _base: TracedArray | None  # the array that this array is a view of, at index `_key`
    _key: Any
    _scalar: bool  # whether NumPy would have an (immutable) scalar here

    # numpy_calls.py installs NumPy's protocols and operators.
    __array_ufunc__: Callable[..., Any]
    __array_function__: Callable[..., Any]
    __hash__ = None  # type: ignore[assignment]

    def __tensor__(self) -> Tensor:
        return self._node

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The NumPy type, so that isinstance(x, np.ndarray) holds, and for scalars isinstance(x, np.floating) and the
        like.
        """
        return dtypes.numpy_dtype(self._node.dtype).type if self._scalar else np.ndarray

    def __len__(self) -> int:
        if not self.ndim:
            raise TraceError("a 0-d array has no len()")
        return static(self._node.shape[:1], "len()")[0]

    def __iter__(self) -> Iterator[TracedArray]:
        if not self.ndim:
            raise TraceError("a 0-d array cannot be iterated over")
        return (self[i] for i in range(len(self)))

    def __reversed__(self) -> Iterator[TracedArray]:
        return (self[i] for i in reversed(range(len(self))))

    def __repr__(self) -> str:
        return _text(self, sys._getframe(1))

    def __str__(self) -> str:
        return _text(self, sys._getframe(1))

    def __format__(self, spec: str) -> str:
        if spec:
            no_value("a text")
        return _text(self, sys._getframe(1))

    # ------------------------------------------------------------ methods without a NumPy function
    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> TracedArray:
        """Same as numpy.ndarray.astype. Raises TraceError for a cast that NumPy refuses."""
        target = dtypes.numpy_dtype(native_name(dtype))
        if not np.can_cast(self.dtype, target, casting):  # type: ignore[arg-type]
            raise TraceError(f"{self.dtype} cannot be cast to {target} by the rule {casting!r}")
        if not copy and target == self.dtype:
            return self
        return traced(t.cast(self._node, target.name), scalar=self._scalar)

    def fill(self, value: Any) -> None:
        """Same as numpy.ndarray.fill. Raises TraceError for a 0-d array: on a scalar, fill changes nothing."""
        if not self._node.rank:
            raise TraceError("a 0-d array is filled, which cannot be told from a scalar", hint="x = np.full((), value)")
        self[...] = value

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None) -> None:
        """Same as numpy.ndarray.sort."""
        self._store(_np.sort(self, axis, kind, order, stable=stable)._node)

    def partition(self, kth: Any, axis: int = -1, kind: str = "introselect", order: Any = None) -> None:
        """Same as numpy.ndarray.partition."""
        self._store(_np.partition(self, kth, axis, kind, order)._node)

    def __copy__(self) -> TracedArray:
        return self.copy()  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):
            no_value("an array")
        if name in _NDARRAY:
            refuse_value(
                TraceError(
                    f"the array's {name!r} is not known while a function is traced",
                    hint="write it with functions of NumPy, or compute it outside and pass the result",
                )
            )
        raise TraceAttributeError(f"an array of NumPy has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise TraceAttributeError(f"the attribute {name!r} of a traced array cannot be set")

    def __delattr__(self, name: str) -> None:
        raise TraceAttributeError(f"the attribute {name!r} of a traced array cannot be deleted")

    # ------------------------------------------------------------ element access
    def __getitem__(self, key: Any) -> TracedArray:
        node, basic = picked(self._node, keys_of(key))
        keys = key if isinstance(key, tuple) else (key,)
        if not basic:
            return traced(node)
        if not node.rank and not any(k is Ellipsis for k in keys):
            return traced(node, scalar=True)
        return traced(node, memory=self._memory, base=self, key=key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if is_traced(value) and value._base is self and value._key is key:
            return  # `x[key] += 1` has already written through the view
        self._store(assigned(self._node, keys_of(key), coerced(value, self._node.dtype)))

    def __delitem__(self, key: Any) -> None:
        raise TraceError("elements of an array cannot be deleted")

    def _store(self, node: Tensor) -> None:
        """Replace the array's value, and update its bases and views.

        Raises TraceError if the memory is read-only (an argument's) or is shared with an array that is neither base nor
        view.
        """
        if self._scalar:
            raise TraceError("a scalar of NumPy cannot be changed in place")
        if self._memory.fixed:
            raise TraceError(
                f"the function changes {self._memory.fixed} in place, which a program cannot do",
                hint="change a copy: x = x.copy()",
            )
        chain = _bases(self)
        views = self._memory.alive()
        if any(_bases(a)[-1] is not chain[-1] for a in views):
            raise TraceError(
                "an array is changed in place while another array may share its memory (a view of it, or its base)",
                hint="change a copy: x = x.copy()",
            )
        _set(self, "_node", node)
        for view, under in pairwise(chain):
            _set(under, "_node", assigned(under._node, keys_of(view._key), coerced(view, under._node.dtype)))
        for view in sorted(views, key=lambda a: len(_bases(a))):
            if view._base is not None and view is not self:
                _set(view, "_node", picked(view._base._node, keys_of(view._key))[0])


def _text(array: TracedArray, frame: FrameType) -> str:
    """Text of an array that code in `frame` asks for. Raises TraceError if the function might decide by it."""
    if not is_shown(frame):
        refuse_value(
            TraceError(
                "a text of a traced array has no values, and the function might decide by it",
                hint="give it to print, a logger or an error directly, or make texts outside of the function",
            )
        )
    return f"<traced array: {array._node.type}>"


def _bases(array: TracedArray) -> list[TracedArray]:
    """Return the array followed by its chain of bases."""
    chain = [array]
    while (base := chain[-1]._base) is not None:
        chain.append(base)
    return chain


_set = object.__setattr__
_np: Any = np  # untyped, because NumPy's annotations do not know traced arrays
_NDARRAY = frozenset(dir(np.ndarray)) | {"__cuda_array_interface__"}


def traced(
    node: Tensor, *, scalar: bool = False, memory: Memory | None = None, base: TracedArray | None = None,
    key: Any = None,
) -> TracedArray:  # fmt: skip
    """Return a traced array of an expression.

    `scalar`: NumPy would return a scalar if the rank is 0. `base` and `key`: the array is the view `base[key]`.
    """
    trace_bounds.count()
    refuse_changed()
    made = object.__new__(TracedArray)
    for name, value in (
        ("_node", node), ("_memory", memory or Memory()), ("_base", base), ("_key", key),
        ("_scalar", scalar and not node.rank),
    ):  # fmt: skip
        _set(made, name, value)
    made._memory.hold(made)
    return made


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced array."""
    return type(value) is TracedArray


def shared(node: Tensor, arrays: Sequence[TracedArray]) -> Memory | None:
    """The memory that the result of an expression shares with an array it is a view of (one of `arrays`); None if it is
    not a view."""
    below = {id(a._node): a for a in arrays}
    while id(node) not in below:
        if node.op not in VIEWS:
            return None
        node = node.args[0]
    return below[id(node)]._memory


def deep(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy of `value`, nested lists, tuples and dicts, with `change` applied to every leaf."""
    if type(value) in (list, tuple):
        return type(value)([deep(v, change) for v in value])
    if type(value) is dict:
        return {k: deep(v, change) for k, v in value.items()}
    return change(value)


def expression(value: Any) -> Any:
    """Return the expression of a traced array, a free size as a plain dimension; other values unchanged."""
    return value._node if is_traced(value) else known(value)


def arrays_in(*values: Any) -> list[TracedArray]:
    """Return the traced arrays in nested lists, tuples and dicts."""
    found: list[TracedArray] = []
    deep(list(values), lambda v: found.append(v) if is_traced(v) else None)
    return found


for _name, _refuse in REFUSED.items():
    setattr(TracedArray, _name, _refuse)


def keys_of(key: Any) -> list[Any]:
    """Split an index into its components, with traced arrays as expressions. Raises TraceError for an invalid index."""
    keys = [expression(k) for k in (key if isinstance(key, tuple) else (key,))]
    for k in keys:
        if isinstance(k, Tensor) and k.dtype not in ("bool",) and dtypes.is_float(k.dtype):
            raise TraceError("an array of floats is no index")
        if isinstance(k, list | tuple) and arrays_in(k):
            raise TraceError("a list with traced arrays is no index", hint="np.stack makes an array of them")
        if isinstance(k, slice) and any(is_traced(v) or isinstance(v, Tensor) for v in (k.start, k.stop, k.step)):
            raise TraceError("the bounds of a slice must be known while a function is traced", hint="np.take, np.where")
    return keys


def native_name(dtype: Any) -> str:
    """Name of a dtype. Raises TraceError for another byte order than this machine's, which a program's results cannot
    have."""
    name = dtypes.name_of(dtype)
    if name != "bfloat16" and not np.dtype(dtype).isnative:
        raise TraceError(f"an array of {np.dtype(dtype).str} cannot be traced: its byte order is not this machine's")
    return name


def coerced(value: Any, dtype: str) -> Tensor:
    """The value as a tensor of this dtype, converted as NumPy does in an assignment to an array.

    Raises TraceError where NumPy raises.
    """
    node = expression(value)
    if isinstance(node, Tensor):
        return t.cast(node, dtype)
    if arrays_in(value):
        raise TraceError("a list with traced arrays is no value", hint="np.stack makes an array of them")
    try:
        found = np.zeros(np.shape(value), dtypes.numpy_dtype(dtype))
        found[...] = value
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{with_article(type(value).__name__)} cannot be written into an array of {dtype}: {error}"
        ) from None
    return t.as_tensor(found) if found.ndim else t.full((), found.item(), dtype)


__all__ = [
    "VIEWS",
    "TracedArray",
    "arrays_in",
    "coerced",
    "deep",
    "expression",
    "is_traced",
    "keys_of",
    "native_name",
    "shared",
    "traced",
]
