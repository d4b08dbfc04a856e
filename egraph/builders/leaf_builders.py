"""Functions that build leaves: inputs, weights, states, and tensors filled with a number or an index."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..ir.tensor import Tensor, make
from ..ops import atomic_ops as atomic
from ..types import dtypes
from ..types.axes import axis_of
from ..types.dims import Dim

assert atomic  # registers the atomic ops
Scalar = bool | int | float


def input(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a value that the caller gives at each call; `name` is its argument name."""
    return make("input", (), {"name": name, "shape": shape, "dtype": dtype})


def param(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a weight of a model: its value is bound once by `name`, not per call."""
    return make("param", (), {"name": name, "shape": shape, "dtype": dtype})


def state(name: str, shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Leaf for a value that a program keeps between calls; `Graph.updates` gives its value after a call by `name`."""
    return make("state", (), {"name": name, "shape": shape, "dtype": dtype})


def full(shape: Sequence[Dim], value: Scalar, dtype: str = "float32") -> Tensor:
    """A tensor filled with one number.

    Raises ShapeError if the value is no number of the dtype (NaN as an int, say).
    """
    dtype = dtypes.name_of(dtype)
    kind = dtypes.category(dtype)
    try:
        number = float(value) if kind == "float" else int(bool(value) if kind == "bool" else value)
    except (OverflowError, ValueError) as error:  # an int beyond all floats; int() of NaN or an infinity
        raise ShapeError(f"{value!r} is no {dtype}") from error
    if kind == "int" and not -(2**63) <= number < 2**64:
        raise ShapeError(f"{value} does not fit into 64 bits")
    return make("full", (), {"value": number, "shape": shape, "dtype": dtype})


def zeros(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """A tensor of zeros with the given shape and dtype."""
    return full(shape, 0, dtype)


def ones(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """A tensor of ones with the given shape and dtype."""
    return full(shape, 1, dtype)


def arange(stop: Dim, dtype: str = "int64") -> Tensor:
    """The vector 0, 1, …, stop - 1."""
    return make("iota", (), {"axis": 0, "shape": (stop,), "dtype": dtype})


def iota(shape: Sequence[Dim], axis: int, dtype: str = "int64") -> Tensor:
    """A tensor of the given shape that holds the index along one axis: 0, 1, … along that axis, equal along the
    others."""
    return make("iota", (), {"axis": axis_of(axis, len(shape)), "shape": shape, "dtype": dtype})


__all__ = ["arange", "full", "input", "iota", "ones", "param", "state", "zeros"]
