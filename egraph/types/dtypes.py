"""Describes data types by name: NumPy equivalents, sizes, categories, type promotion."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...errors import ShapeError

#: name -> (category, bytes per element, width rank within the category)
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
HALVES = ("bfloat16", "float16")  # 16-bit floats
_CATEGORY_RANK = {"bool": 0, "int": 1, "float": 2}


def check(dtype: str) -> str:
    """The given name, if it is that of a known dtype. Raises ShapeError, which lists the known dtypes, otherwise."""
    if dtype not in _TABLE:
        imaginary = "; give real and imaginary part as two arrays" if dtype.startswith("complex") else ""
        raise ShapeError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}{imaginary}")
    return dtype


def category(dtype: str) -> str:
    """Category of a dtype: 'bool', 'int' or 'float'."""
    return _TABLE[check(dtype)][0]


def is_float(dtype: str) -> bool:
    """Whether the dtype is a floating-point type."""
    return category(dtype) == "float"


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype."""
    return _TABLE[check(dtype)][1]


@cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype; bfloat16 is provided by ml_dtypes."""
    if check(dtype) == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(dtype)


def torch_dtype(dtype: str) -> Any:
    """The Torch dtype of the same name."""
    import torch

    return getattr(torch, check(dtype))


def least(dtype: str) -> float | int:
    """Identity element of max: -inf for floats, otherwise the smallest value of the dtype."""
    kind = category(dtype)
    return -float("inf") if kind == "float" else 0 if kind == "bool" else int(np.iinfo(numpy_dtype(dtype)).min)


def greatest(dtype: str) -> float | int:
    """Identity element of min: inf for floats, otherwise the largest value of the dtype."""
    kind = category(dtype)
    return float("inf") if kind == "float" else 1 if kind == "bool" else int(np.iinfo(numpy_dtype(dtype)).max)


def summed(dtype: str) -> str:
    """Dtype of a sum: 64 bits for integers and bool, unchanged for floats (the rule of NumPy and the Array API)."""
    return dtype if is_float(dtype) else "uint64" if dtype.startswith("u") else "int64"


def nearest(value: float, dtype: str) -> float:
    """The number of a 16-bit float dtype that is nearest to `value`. Numbers that would become infinite or zero, and
    those of other dtypes, stay as they are."""
    if dtype not in HALVES:
        return value
    with np.errstate(over="ignore", under="ignore"):
        found = float(np.asarray(value).astype(numpy_dtype(dtype)))
    return found if np.isfinite(found) and found else value


@cache
def name_of(dtype: Any) -> str:
    """Canonical dtype name for a name, a NumPy, ml_dtypes or torch dtype, or a Python type.

    Raises ShapeError for anything else.
    """
    text = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if text in _TABLE:
        return text
    try:
        return check(np.dtype(dtype).name)
    except (TypeError, ValueError):
        return check(text)


def promote(a: str, b: str) -> str:
    """Common dtype of two operands: higher category first, then wider type; float16 with bfloat16 gives float32."""
    if a == b:
        return a
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    key = lambda d: (_CATEGORY_RANK[category(d)], _TABLE[d][2])
    low, high = sorted((a, b), key=key)
    if category(high) == "int" and high.startswith("u") != low.startswith("u") and category(low) == "int":
        return str(np.promote_types(numpy_dtype(a), numpy_dtype(b))) if {a, b} != {"uint64", "int64"} else "int64"
    return high
