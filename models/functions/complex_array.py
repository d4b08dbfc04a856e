"""Defines `ComplexArray`, the stand-in for NumPy arrays of complex numbers while a function is traced: two
traced arrays, the real and the imaginary part. Graphs have real values only, so a function's arguments and results are
real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.refused_values import refuse_value
from ...errors import TraceError
from .numpy_array import is_traced, traced
from .numpy_ufuncs import operand
from .refused_protocols import REFUSED

#: dtype of the parts -> dtype of the complex numbers.
OF_PARTS: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.complex64), "float64": np.dtype(np.complex128)}
PARTS = {complex_: part for part, complex_ in OF_PARTS.items()}
HINT = "work with its parts, x.real and x.imag, or put it into a torch.nn.Module"


class ComplexArray:
    """Stand-in for a NumPy array of complex numbers; `re` and `im` are its parts, traced arrays of one shape and dtype
    (float32 or float64). `complex_calls` installs NumPy's protocols and operators."""

    __slots__ = ("_im", "_re")

    _re: Any  # TracedArray, which is untyped here because NumPy's annotations do not know it
    _im: Any
    __array_ufunc__: Callable[..., Any]
    __array_function__: Callable[..., Any]
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, re: Any, im: Any) -> None:
        self._re, self._im = re, im

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """NumPy's array type, so that isinstance(x, np.ndarray) holds."""
        return np.ndarray

    @property
    def real(self) -> Any:
        """The real parts, as a view."""
        return self._re

    @real.setter
    def real(self, value: Any) -> None:
        self._re[...] = value

    @property
    def imag(self) -> Any:
        """The imaginary parts, as a view."""
        return self._im

    @imag.setter
    def imag(self, value: Any) -> None:
        self._im[...] = value

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex64 or complex128."""
        return OF_PARTS[self._re.dtype.name]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the axes."""
        return tuple(self._re.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self._re.ndim)

    @property
    def size(self) -> Any:
        """Number of elements."""
        return self._re.size

    @property
    def T(self) -> ComplexArray:
        """The array with reversed axes."""
        return ComplexArray(self._re.T, self._im.T)

    def __len__(self) -> int:
        return len(self._re)

    def __iter__(self) -> Iterator[ComplexArray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ComplexArray:
        return ComplexArray(self._re[key], self._im[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        re, im = parts_of(value, self._re.dtype.name)
        self._re[key] = re
        self._im[key] = im

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Same as numpy.ndarray.astype: a real dtype drops the imaginary parts."""
        if np.dtype(dtype) in PARTS:
            return ComplexArray(*(v.astype(PARTS[np.dtype(dtype)]) for v in (self._re, self._im)))
        return self._re.astype(dtype)

    def copy(self, order: str = "C") -> ComplexArray:
        """Same as numpy.ndarray.copy."""
        return ComplexArray(traced(self._re._node), traced(self._im._node))

    def reshape(self, *shape: Any) -> ComplexArray:
        """Same as numpy.ndarray.reshape."""
        return ComplexArray(self._re.reshape(*shape), self._im.reshape(*shape))

    def transpose(self, *axes: Any) -> ComplexArray:
        """Same as numpy.ndarray.transpose."""
        return ComplexArray(self._re.transpose(*axes), self._im.transpose(*axes))

    def flatten(self) -> ComplexArray:
        """Same as numpy.ndarray.flatten."""
        return ComplexArray(self._re.flatten(), self._im.flatten())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse_value(TraceError(f"{name!r} of an array of complex numbers cannot be traced", hint=HINT))

    def __repr__(self) -> str:
        return f"<traced complex array: {self._re._node.type}>"


for _name, _refuse in REFUSED.items():
    setattr(ComplexArray, _name, _refuse)


def is_complex(value: Any) -> bool:
    """Whether a value is a complex number, an array of these, a traced one, or a list or tuple with one."""
    if type(value) in (list, tuple):
        return any(map(is_complex, value))
    if isinstance(value, complex) or type(value) is ComplexArray:
        return True
    return isinstance(value, np.ndarray | np.generic) and not is_traced(value) and value.dtype.kind == "c"


def is_complex_kind(dtype: Any) -> bool:
    """Whether an argument `dtype` names complex numbers."""
    return dtype is not None and np.dtype(dtype).kind == "c"


def parts_of(value: Any, dtype: str) -> tuple[Any, Any]:
    """(real part, imaginary part) of any number or array, as traced arrays of a dtype of floats."""
    if type(value) is ComplexArray:
        return value._re.astype(dtype, copy=False), value._im.astype(dtype, copy=False)
    if is_complex(value):
        array = np.asarray(value)
        return traced(operand(array.real.copy(), dtype)), traced(operand(array.imag.copy(), dtype))
    re = traced(operand(value, dtype))
    return re, traced(t.full(re._node.shape, 0.0, dtype))


def kind_of_parts(*values: Any) -> str:
    """dtype of the parts of NumPy's common complex dtype of values. Raises TraceError if it is none of `OF_PARTS`."""
    kinds = [
        v if type(v) in (bool, int, float, complex) else getattr(v, "dtype", None) or np.asarray(v).dtype
        for v in values
    ]
    found = np.result_type(*kinds, 0j)
    if found not in PARTS:
        raise TraceError(f"an array of {found} cannot be traced")
    return PARTS[found]


__all__ = ["HINT", "OF_PARTS", "PARTS", "ComplexArray", "is_complex", "is_complex_kind", "kind_of_parts", "parts_of"]
