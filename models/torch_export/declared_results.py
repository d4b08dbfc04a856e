"""Compares what an operator is imported as with the types that PyTorch declares of its results."""

from __future__ import annotations

from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...errors import BadModelError
from .arrays import dtype_name


def check_shape(found: Tensor, value: Any, overload: str) -> None:
    """Raise BadModelError if a static shape differs from the one that PyTorch declares."""
    shape = tuple(value.shape)
    if all(type(d) is int for d in (*shape, *found.shape)) and shape != found.shape:
        raise BadModelError(f"{overload} gives {found.type}, PyTorch says {list(shape)}", hint="please report this")


def empty_results(value: Any) -> Any:
    """Return the results of an operator as tensors without elements, from their declared types; None unless every
    result has zero elements."""
    if isinstance(value, list | tuple):
        found = [empty_results(v) for v in value]
        return found if found and all(isinstance(v, Tensor) for v in found) else None
    shape = tuple(getattr(value, "shape", ()))
    if not all(type(d) is int for d in shape) or 0 not in shape or value.is_complex():
        return None
    return t.zeros(shape, dtype_name(value.dtype))
