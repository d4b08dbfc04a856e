"""Traces functions that NumPy itself writes in Python (`np.gradient`, `np.unwrap`) by running NumPy's code on traced
arrays, with functions that pass traced arrays through in place of `asarray` and the like."""

from __future__ import annotations

from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ...errors import TraceError
from .numpy_array import is_traced
from .numpy_builders import Build


def _converting(name: str, copies: bool) -> Build:
    make = getattr(np, name)

    def convert(a: Any, dtype: Any = None, *rest: Any, copy: Any = copies, **named: Any) -> Any:
        if not is_traced(a):
            return make(a, dtype, *rest, copy=copy or None, **named)
        return a.astype(a.dtype if dtype is None else dtype, copy=bool(copy))

    return convert


#: Name of a function that makes an array of anything -> one that passes traced arrays through.
_CONVERT: dict[str, Build] = {
    "asarray": _converting("asarray", False),
    "asanyarray": _converting("asanyarray", False),
    "array": _converting("array", True),
}


class _Module(ModuleType):
    """A module of NumPy in which the functions `_CONVERT` are replaced."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _CONVERT.get(name) or getattr(self._module, name)


@cache
def _traceable(name: str) -> Build:
    """NumPy's code of a function, with its globals replaced. Raises TraceError if NumPy has no such code."""
    function: Any = np
    for part in name.split("."):
        function = getattr(function, part)
    code = getattr(function, "_implementation", None)
    if not isinstance(code, FunctionType):
        raise TraceError(f"np.{name} cannot be traced with NumPy {np.__version__}")
    replaced = {id(getattr(np, key)): value for key, value in _CONVERT.items()}
    names: dict[str, Any] = {}
    for key, value in code.__globals__.items():
        is_module = isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "numpy"
        names[key] = _Module(value) if is_module else replaced.get(id(value), value)
    made = FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    made.__kwdefaults__ = code.__kwdefaults__
    return made


def _own(name: str) -> Build:
    return lambda *args, **named: _traceable(name)(*args, **named)


#: Functions that are traced by running NumPy's own Python code. That works for code whose branches depend on shapes and
#: dtypes, never on values of elements, and which assigns only to arrays that it has made.
OWN_CODE: dict[str, Build] = {
    name: _own(name)
    for name in (
        "gradient", "unwrap", "polyval", "polyadd", "polysub", "polyder", "polyint", "angle", "ix_", "apply_over_axes", "fft.fftshift",
        "fft.ifftshift", "tril_indices_from", "triu_indices_from", "diag_indices_from",
    )
}  # fmt: skip

__all__ = ["OWN_CODE"]
