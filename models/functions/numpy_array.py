"""`TracedArray`, the stand-in for NumPy arrays while a function is traced.

Every operation either builds the expression of NumPy's result (values, shape and dtype) or raises TraceError.
Assignments and in-place operators change the array as in NumPy, and its base if it is a view. If another live array
shares the memory in a way that is not tracked, they raise TraceError.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import dtypes
from ...egraph.ir.dims import Dim, volume
from ...egraph.ir.graph import Tensor
from ...errors import TraceAttributeError, TraceError
from ..torch_export import aten_index

#: Ops whose result NumPy may return as a view of the operand.
VIEWS = ("reshape", "permute", "broadcast_to", "slice", "flip")


class Memory:
    """Record of the arrays that share memory: an array and its views.

    `fixed` names the owner of memory that the function must not write to; empty if writing is allowed.
    """

    def __init__(self, fixed: str = "") -> None:
        self.fixed = fixed
        self._holders: list[weakref.ref[TracedArray]] = []

    def hold(self, array: TracedArray) -> None:
        """Register an array as an alias of this memory."""
        self._holders = [r for r in self._holders if r() is not None]
        self._holders.append(weakref.ref(array))

    def alive(self) -> list[TracedArray]:
        """Return the registered arrays that are still alive."""
        return [a for r in self._holders if (a := r()) is not None]


class TracedArray:
    """Array with an expression in place of values. Created by `traced` only."""

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

    # ------------------------------------------------------------ properties
    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of the axes, as ints or dimension expressions."""
        return self._node.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype."""
        return dtypes.numpy_dtype(self._node.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._node.rank

    rank = ndim

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return volume(self._node.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Dim:
        """Bytes of all elements."""
        return self.size * self.itemsize

    device = "cpu"

    @property
    def T(self) -> TracedArray:
        """The array with reversed axes."""
        return self.transpose()

    @property
    def mT(self) -> TracedArray:
        """The array with the last two axes swapped."""
        return _np.matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def real(self) -> TracedArray:
        """The array itself: complex dtypes are not supported."""
        return self

    @property
    def imag(self) -> TracedArray:
        """Zeros: complex dtypes are not supported."""
        return _np.zeros_like(self)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        if not self.ndim:
            raise TraceError("len() of a 0-d array")
        return _static(self._node.shape[:1], "len()")[0]

    def __iter__(self) -> Iterator[TracedArray]:
        if not self.ndim:
            raise TraceError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __reversed__(self) -> Iterator[TracedArray]:
        return (self[i] for i in reversed(range(len(self))))

    def __repr__(self) -> str:
        return f"<traced array: {self._node.type}>"

    def __format__(self, spec: str) -> str:
        if spec:
            _no_value(self)
        return repr(self)

    # ------------------------------------------------------------ methods without a NumPy function
    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> TracedArray:
        """See numpy.ndarray.reshape."""
        return _np.reshape(self, _unpacked(shape), order=order, copy=copy)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> TracedArray:
        """See numpy.ndarray.transpose."""
        return _np.transpose(self, _unpacked(axes) if axes and axes != (None,) else None)  # type: ignore[no-any-return]

    permute = transpose

    def flatten(self, order: str = "C") -> TracedArray:
        """See numpy.ndarray.flatten."""
        return _np.ravel(self, order).copy()  # type: ignore[no-any-return]

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> TracedArray:
        """See numpy.ndarray.astype."""
        target = dtypes.numpy_dtype(native_name(dtype))
        if not np.can_cast(self.dtype, target, casting):  # type: ignore[arg-type]
            raise TraceError(f"{self.dtype} cannot be cast to {target} by the rule {casting!r}")
        if not copy and target == self.dtype:
            return self
        return traced(t.cast(self._node, target.name), scalar=self._scalar)

    def fill(self, value: Any) -> None:
        """See numpy.ndarray.fill."""
        self[...] = value

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None) -> None:
        """See numpy.ndarray.sort."""
        self._store(_np.sort(self, axis, kind, order, stable=stable)._node)

    def to_device(self, device: str, /, *, stream: Any = None) -> TracedArray:
        """See numpy.ndarray.to_device."""
        if device != "cpu":
            raise TraceError(f"an array of NumPy is on the device 'cpu', not {device!r}")
        return self

    def conj(self) -> TracedArray:
        """The array itself: complex dtypes are not supported."""
        return self

    conjugate = conj

    def __copy__(self) -> TracedArray:
        return self.copy()  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):
            _no_value(self)
        if name in _NDARRAY:
            raise TraceError(
                f"the array's {name!r} is not known while a function is traced",
                hint="write it with functions of NumPy, or compute it outside and pass the result",
            )
        raise TraceAttributeError(f"an array of NumPy has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise TraceAttributeError(f"the attribute {name!r} of a traced array cannot be set")

    def __delattr__(self, name: str) -> None:
        raise TraceAttributeError(f"the attribute {name!r} of a traced array cannot be deleted")

    # ------------------------------------------------------------ element access
    def __getitem__(self, key: Any) -> TracedArray:
        node, basic = _picked(self._node, key)
        keys = key if isinstance(key, tuple) else (key,)
        if not basic:
            return traced(node)
        if not node.rank and not any(k is Ellipsis for k in keys):
            return traced(node, scalar=True)
        return traced(node, memory=self._memory, base=self, key=key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if is_traced(value) and value._base is self and value._key is key:
            return  # `x[key] += 1` has already written through the view
        self._store(_assigned(self._node, key, value))

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
            _set(under, "_node", _assigned(under._node, view._key, view))
        for view in sorted(views, key=lambda a: len(_bases(a))):
            if view._base is not None and view is not self:
                _set(view, "_node", _picked(view._base._node, view._key)[0])


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
    made = object.__new__(TracedArray)
    for name, value in (
        ("_node", node), ("_memory", memory or Memory()), ("_base", base), ("_key", key),
        ("_scalar", scalar and not node.rank),
    ):  # fmt: skip
        _set(made, name, value)
    made._memory.hold(made)
    return made


class OwnFunction(Exception):
    """Raised when a function of this package is called while a caller's function runs on plain arrays."""


# whether a caller's function is running on plain arrays
on_arrays: ContextVar[bool] = ContextVar("on_arrays", default=False)


def refuse_arrays(name: str) -> None:
    """Raise OwnFunction while a caller's function runs on plain arrays: function `name` works on expressions only."""
    if on_arrays.get():
        raise OwnFunction(name)


def is_traced(value: Any) -> bool:
    """Return whether a value is a traced array."""
    return type(value) is TracedArray


def shared(node: Tensor, arrays: Sequence[TracedArray]) -> Memory | None:
    """Memory that an expression may alias: that of the array it is a view of; None if it is not a view."""
    below = {id(a._node): a for a in arrays}
    while id(node) not in below:
        if node.op not in VIEWS:
            return None
        node = node.args[0]
    return below[id(node)]._memory


def deep(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy of nested lists, tuples and dicts with `change` applied to every leaf."""
    if type(value) in (list, tuple):
        return type(value)([deep(v, change) for v in value])
    if type(value) is dict:
        return {k: deep(v, change) for k, v in value.items()}
    return change(value)


def expression(value: Any) -> Any:
    """Return the expression of a traced array; other values unchanged."""
    return value._node if is_traced(value) else value


def arrays_in(*values: Any) -> list[TracedArray]:
    """Return the traced arrays in nested lists, tuples and dicts."""
    found: list[TracedArray] = []
    deep(list(values), lambda v: found.append(v) if is_traced(v) else None)
    return found


def _unpacked(sizes: tuple[Any, ...]) -> Any:
    return sizes[0] if len(sizes) == 1 else sizes


def _static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Return a shape as ints. Raises TraceError if a dimension is free."""
    if not all(isinstance(d, int) for d in shape):
        raise TraceError(f"{what} of an array with free sizes {tuple(shape)}", hint="give an example with known sizes")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


# ---------------------------------------------------------------- Python and torch protocols
def _no_value(x: Any, *_: Any, **__: Any) -> NoReturn:
    raise TraceError(
        "a traced array has no values yet: Python asks for a truth value, a number or an array of them",
        hint="np.where, np.any and the like decide elementwise; compute values that Python needs outside the function",
    )


def _no_meaning(name: str) -> Callable[..., NoReturn]:
    def refuse(x: Any, *_: Any, **__: Any) -> NoReturn:
        raise TraceError(f"{name} of a traced array is not supported", hint="write it with functions of NumPy")

    return refuse


for _name in ("bool", "int", "float", "index", "complex", "contains", "array", "str", "floor", "ceil", "trunc", "round", "bytes",
              "dlpack", "dlpack_device"):  # fmt: skip
    setattr(TracedArray, f"__{_name}__", _no_value)
for _name in (
    "reduce",
    "reduce_ex",
    "setstate",
    "getstate",
    "array_wrap",
    "array_finalize",
    "enter",
    "exit",
    "call",
    "array_namespace",
):
    setattr(TracedArray, f"__{_name}__", _no_meaning(f"__{_name}__"))


def _torch(cls: Any, function: Any, types: Any, args: Any = (), named: Any = None) -> NoReturn:
    raise TraceError(
        f"torch's {getattr(function, '__name__', function)} of a traced array of NumPy",
        hint="give Torch tensors as examples, or put Torch code into an nn.Module",
    )


TracedArray.__torch_function__ = classmethod(_torch)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- indexing
def _is_array(key: Any) -> bool:
    """Return whether an index triggers NumPy's advanced indexing."""
    return isinstance(key, Tensor | np.ndarray | list | tuple | bool | np.bool_)


def _keys(key: Any) -> list[Any]:
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


def _stand_in(keys: Sequence[Any]) -> tuple[Any, ...]:
    """Replace expressions in an index by zero arrays of the same shapes."""
    return tuple(
        np.zeros(_static(k.shape, "an index"), dtypes.numpy_dtype(k.dtype)) if isinstance(k, Tensor) else k
        for k in keys
    )


def _checked(shape: tuple[int, ...], keys: tuple[Any, ...], array: Any = None) -> Any:
    """Return NumPy's result of `array[keys]`; without `array`, of a dummy of this shape.

    Raises TraceError where NumPy raises.
    """
    try:
        return np.asarray((np.broadcast_to(np.zeros((), np.bool_), shape) if array is None else array)[keys])
    except (IndexError, ValueError, TypeError) as error:
        raise TraceError(f"the index {keys!r} of an array of shape {shape}: {error}") from None


def _picked(x: Tensor, key: Any) -> tuple[Tensor, bool]:
    """Return (elements at an index, whether it is a basic index and the result therefore a view)."""
    keys = _keys(key)
    arrays = [k for k in keys if _is_array(k)]
    basic = not arrays
    if any(isinstance(k, Tensor) and k.dtype == "bool" for k in keys):
        raise TraceError("how many elements a mask picks depends on values", hint="np.where(mask, x, 0)")
    if not all(isinstance(d, int) for d in x.shape):
        if len(arrays) > 1 or (arrays and any(isinstance(k, int | np.integer) for k in keys)):
            raise TraceError("several indices into an array with free sizes", hint="one array as an index at a time")
        return t.getitem(x, tuple(keys)), basic
    shape = _static(x.shape, "an index")
    wanted = _checked(shape, _stand_in(keys)).shape
    alone = len(arrays) == 1 and not any(isinstance(k, int | np.integer) for k in keys)
    if basic or (alone and isinstance(arrays[0], Tensor | np.ndarray | list) and _plain(arrays[0])):
        found = t.getitem(x, tuple(keys))
    elif not any(isinstance(k, Tensor) for k in keys):
        places = _checked(shape, tuple(keys), np.arange(prod(shape)).reshape(shape))
        found = t.gather(t.reshape(x, (-1,)), t.constant(places.astype(np.int64)), 0)
    else:
        found = _paired(x, keys)
    if found.shape != wanted:
        raise TraceError(f"an index that makes {found.shape} of {shape}, where NumPy makes {wanted}")
    return found, basic


def _plain(key: Any) -> bool:
    """Return whether an array index addresses a single axis, that is, is not a mask of several axes."""
    return isinstance(key, Tensor) or np.asarray(key).dtype != np.bool_ or np.asarray(key).ndim == 1


def _paired(x: Tensor, keys: list[Any]) -> Tensor:
    """Lower advanced indexing with several index arrays, some of which are traced."""
    spots = [i for i, k in enumerate(keys) if _is_array(k) or isinstance(k, int | np.integer)]
    between = keys[spots[0] : spots[-1]]
    if any(k is None or k is Ellipsis for k in between) or any(k is None for k in keys):
        raise TraceError("several index arrays with new axes or ... between them", hint="one index after the other")
    used = len(keys) - sum(k is Ellipsis for k in keys)
    full: list[Any] = []
    for k in keys:
        full += [slice(None)] * (x.rank - used) if k is Ellipsis else [k]
    full += [slice(None)] * (x.rank - len(full))
    if any(
        isinstance(k, bool | np.bool_) or np.asarray(k).dtype == np.bool_
        for k in full
        if isinstance(k, np.ndarray | list | bool | np.bool_)
    ):
        raise TraceError("a mask beside traced indices", hint="one index after the other")
    x = t.getitem(x, tuple(k if isinstance(k, slice) else slice(None) for k in full))
    indices = [None if isinstance(k, slice) else t.as_tensor(k) for k in full]
    return aten_index.index(x, indices)


def _assigned(x: Tensor, key: Any, value: Any) -> Tensor:
    """Return x with a value assigned at an index.

    Raises TraceError if the index depends on traced values (except a mask assigned one value) or the shapes do not
    match.
    """
    keys = _keys(key)
    new = coerced(value, x.dtype)
    masks = [k for k in keys if isinstance(k, Tensor)]
    if masks:
        if len(keys) > 1 or masks[0].dtype != "bool":
            raise TraceError("an assignment at traced indices: the order of duplicate writes is undefined",
                             hint="np.where with a mask")  # fmt: skip
        if masks[0].shape != x.shape[: masks[0].rank]:
            raise TraceError(f"a mask of shape {masks[0].shape} for an array of shape {x.shape}")
        if volume(new.shape) != 1:
            raise TraceError(
                "assigning several values at a mask has a data-dependent result", hint="np.where(mask, values, x)"
            )
        mask = t.reshape(masks[0], (*masks[0].shape, *(1,) * (x.rank - masks[0].rank)))
        return t.where(mask, t.reshape(new, (1,) * x.rank), x)
    if len(keys) == 1 and (keys[0] is Ellipsis or (isinstance(keys[0], slice) and keys[0] == slice(None) and x.rank)):
        return t.broadcast_to(_leading_dropped(new, x.rank), x.shape)
    shape = _static(x.shape, "an assignment to a part")
    places = _checked(shape, tuple(keys), np.arange(prod(shape), dtype=np.int64).reshape(shape))
    new = _leading_dropped(new, places.ndim)
    sizes = _static(new.shape, "an assignment")
    if len(sizes) > places.ndim or any(a not in (1, b) for a, b in zip(sizes[::-1], places.shape[::-1])):
        raise TraceError(f"values of shape {sizes} do not fit a place of shape {places.shape}")
    if not places.size:
        return x
    source = np.full(prod(shape), -1, np.int64)
    source[places.reshape(-1)] = np.arange(places.size)  # of duplicate writes the last one wins, as in NumPy
    mask_ = t.constant((source >= 0).reshape(shape))
    if volume(new.shape) == 1:
        return t.where(mask_, t.reshape(new, (1,) * x.rank), x)
    flat = t.reshape(t.broadcast_to(new, places.shape), (-1,))
    return t.where(mask_, t.gather(flat, t.constant(np.maximum(source, 0).reshape(shape)), 0), x)


def _leading_dropped(x: Tensor, rank: int) -> Tensor:
    """Drop leading size-1 axes beyond `rank`, as NumPy assignments do.

    Raises TraceError if the rank is still larger.
    """
    while x.rank > rank and x.shape[0] == 1:
        x = t.reshape(x, x.shape[1:])
    if x.rank > rank:
        raise TraceError(f"values of shape {x.shape} do not fit a place of rank {rank}")
    return x


def native_name(dtype: Any) -> str:
    """Name of a dtype. Raises TraceError for another byte order than this machine's, which a program's results cannot have."""
    name = dtypes.name_of(dtype)
    if name != "bfloat16" and not np.dtype(dtype).isnative:
        raise TraceError(f"an array of {np.dtype(dtype).str} cannot be traced: its byte order is not this machine's")
    return name


def coerced(value: Any, dtype: str) -> Tensor:
    """Convert a value as NumPy does when assigning to an array of this dtype. Raises TraceError where NumPy raises."""
    node = expression(value)
    if isinstance(node, Tensor):
        return t.cast(node, dtype)
    if arrays_in(value):
        raise TraceError("a list with traced arrays is no value", hint="np.stack makes an array of them")
    try:
        found = np.zeros(np.shape(value), dtypes.numpy_dtype(dtype))
        found[...] = value
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"a {type(value).__name__} cannot be written into an array of {dtype}: {error}") from None
    return t.as_tensor(found) if found.ndim else t.full((), found.item(), dtype)


__all__ = ["VIEWS", "Memory", "OwnFunction", "TracedArray", "arrays_in", "coerced", "deep", "expression", "is_traced", "native_name", "on_arrays", "refuse_arrays", "shared",
           "traced"]  # fmt: skip
