"""Data types by name: NumPy equivalents, sizes, categories, promotion."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..errors import ShapeError

#: name -> (category, bytes an element, width rank within the category)
_TABLE: dict[str, tuple[str, int, int]] = {
    "bool": ("bool", 1, 0),
    "uint8": ("int", 1, 1),
    "int8": ("int", 1, 2),
    "uint16": ("int", 2, 3),
    "int16": ("int", 2, 4),
    "uint32": ("int", 4, 5),
    "int32": ("int", 4, 6),
    "uint64": ("int", 8, 7),
    "int64": ("int", 8, 8),
    "float16": ("float", 2, 1),
    "bfloat16": ("float", 2, 1),
    "float32": ("float", 4, 2),
    "float64": ("float", 8, 3),
}
DTYPES: tuple[str, ...] = tuple(_TABLE)
HALVES = ("bfloat16", "float16")  # floats of 16 bits
_CATEGORY_RANK = {"bool": 0, "int": 1, "float": 2}


def check(dtype: str) -> str:
    """The dtype's name, or a ShapeError listing the known ones."""
    if dtype not in _TABLE:
        raise ShapeError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    return dtype


def category(dtype: str) -> str:
    """'bool', 'int' or 'float'."""
    return _TABLE[check(dtype)][0]


def is_float(dtype: str) -> bool:
    """Whether the dtype is a floating-point one."""
    return category(dtype) == "float"


def itemsize(dtype: str) -> int:
    """Bytes an element."""
    return _TABLE[check(dtype)][1]


@cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype; bfloat16 comes from ml_dtypes."""
    if check(dtype) == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(dtype)


def least(dtype: str) -> float | int:
    """The largest of no values: minus infinity, or the smallest integer."""
    kind = category(dtype)
    return -float("inf") if kind == "float" else 0 if kind == "bool" else int(np.iinfo(numpy_dtype(dtype)).min)


def greatest(dtype: str) -> float | int:
    """The smallest of no values: infinity, or the largest integer."""
    kind = category(dtype)
    return float("inf") if kind == "float" else 1 if kind == "bool" else int(np.iinfo(numpy_dtype(dtype)).max)


def summed(dtype: str) -> str:
    """The dtype that sums are kept in: 64 bits for integers and bools, floats as they are (NumPy's and the Array API's rule)."""
    return dtype if is_float(dtype) else "uint64" if dtype.startswith("u") else "int64"


@cache
def name_of(dtype: Any) -> str:
    """The name of a dtype: as it is, or of NumPy's, ml_dtypes' or torch's, or a Python type. ShapeError for others."""
    text = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if text in _TABLE:
        return text
    try:
        return check(np.dtype(dtype).name)
    except TypeError:
        return check(text)


def promote(a: str, b: str) -> str:
    """The common dtype of two operands: the higher category wins, then the wider; float16 with bfloat16 is float32."""
    if a == b:
        return a
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    key = lambda d: (_CATEGORY_RANK[category(d)], _TABLE[d][2])
    low, high = sorted((a, b), key=key)
    if category(high) == "int" and high.startswith("u") != low.startswith("u") and category(low) == "int":
        return str(np.promote_types(numpy_dtype(a), numpy_dtype(b))) if {a, b} != {"uint64", "int64"} else "int64"
    return high
