"""Makes fill nodes (`full`) with canonical values, and reads the value of a fill."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.tensor import Tensor, make
from ..types import dtypes
from ..types.dims import Shape


def fill(shape: Shape, value: Any, dtype: str) -> Tensor:
    """A fill node with its value in canonical form: float, 0/1 for bool, or an int wrapped to the dtype's range."""
    kind = dtypes.category(dtype)
    low = int(dtypes.least(dtype)) if kind == "int" else 0
    written = (
        float(value) if kind == "float"
        else int(bool(value)) if kind == "bool"
        else (int(value) - low) % (1 << 8 * dtypes.itemsize(dtype)) + low
    )  # fmt: skip
    return make("full", (), {"value": written, "shape": shape, "dtype": dtype})


def number(x: Tensor) -> float | None:
    """The value that all elements of a fill node (`full`) have; None for other nodes."""
    return x.attr("value") if x.op == "full" else None


def unit_fill(x: Tensor) -> Tensor:
    """The fill with size 1 along every axis."""
    if x.op != "full" or all(isinstance(d, int) and d == 1 for d in x.shape):
        return x
    return fill((1,) * x.rank, x.attr("value"), x.dtype)


def is_fill_of(x: Tensor, value: float, *, negative_zero: bool = False) -> bool:
    """Whether x is a fill of this value. Zeros must match in sign: -0.0 only with `negative_zero`."""
    found = number(x)
    return found is not None and found == value and (value != 0 or negative_zero == bool(np.signbit(float(found))))


def is_zero(x: Tensor) -> bool:
    """Whether x is a fill of zero, of either sign."""
    return number(x) == 0


def same_fill(x: Tensor, y: Tensor) -> bool:
    """Whether two fills have bitwise equal values; shapes may differ."""
    one = (1,) * x.rank
    return fill(one, x.attr("value"), x.dtype) is fill(one, y.attr("value"), y.dtype)


def is_plus_zero(value: float) -> bool:
    """Whether a number is +0.0."""
    return value == 0 and not np.signbit(float(value))


__all__ = ["fill", "is_fill_of", "is_plus_zero", "is_zero", "number", "same_fill", "unit_fill"]
