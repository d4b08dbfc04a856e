"""Types and helpers for the functions that build the graph of a NumPy call."""

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
    """One integer as a list of it, a sequence of integers as a list."""
    return [value] if isinstance(value, int | np.integer) else list(value)


def as_dtype(value: Any, dtype: Any) -> Any:
    """Convert a traced array or other value to an array of a dtype."""
    return value.astype(dtype) if is_traced(value) else np.asarray(value, dtype)


def promoted(*values: Any) -> tuple[list[Tensor], str]:
    """(operands as expressions of their common dtype, that dtype)."""
    dtype = common_dtype(*values)
    return [operand(v, dtype) for v in values], dtype


def promoted_arrays(*values: Any) -> tuple[list[Tensor], str]:
    """(operands as expressions of their common dtype, that dtype), by the promotion of NumPy's products, for which
    Python numbers are arrays of 64 bits."""
    return promoted(*(np.asarray(v) if type(v) in (bool, int, float) else v for v in values))
