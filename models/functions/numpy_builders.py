"""Types and helpers of the builders of NumPy functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...egraph.ir.tensor import Tensor
from .numpy_array import is_traced
from .numpy_ufuncs import common_dtype, operand

Axes = Any
Build = Callable[..., Any]


def ints(value: Any) -> Any:
    """An integer or a sequence of integers as a list."""
    return [value] if isinstance(value, int | np.integer) else list(value)


def as_dtype(value: Any, dtype: Any) -> Any:
    """A traced array or other value as an array of a dtype."""
    return value.astype(dtype) if is_traced(value) else np.asarray(value, dtype)


def promoted(*values: Any) -> tuple[list[Tensor], str]:
    """(operands as expressions of their common dtype, that dtype)."""
    dtype = common_dtype(*values)
    return [operand(v, dtype) for v in values], dtype


def promoted_arrays(*values: Any) -> tuple[list[Tensor], str]:
    """The same as NumPy's products promote: Python numbers are arrays there, of 64 bits."""
    return promoted(*(np.asarray(v) if type(v) in (bool, int, float) else v for v in values))
