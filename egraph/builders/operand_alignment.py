"""Brings operands of an op to a common rank and dtype: values of Python as tensors, casts, added axes.

Python numbers are weakly typed: they take the dtype of the tensor they are combined with. Between tensors
`dtypes.promote` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ShapeError, UsageError
from ...wording import with_article
from ..ir.tensor import Tensor, constant, make
from ..ops.ops import dims_of
from ..types import dtypes
from ..types.dims import Dim, volume
from .leaf_builders import Scalar, full

Operand = Tensor | Scalar
_RANK = {"bool": 0, "int": 1, "float": 2}


def as_tensor(value: Any) -> Tensor:
    """The value as a tensor: a tensor, an object with `__tensor__()`, a number, an array or nested lists of numbers.

    Raises UsageError for anything else.
    """
    if isinstance(value, Tensor):
        return value
    if (given := getattr(type(value), "__tensor__", None)) is not None:
        return given(value)  # type: ignore[no-any-return]
    try:
        array = np.asarray(value)
        dtype = dtypes.name_of(array.dtype)
    except (TypeError, ValueError, RuntimeError, ShapeError) as error:
        raise UsageError(f"{with_article(type(value).__name__)} is no tensor, number or array of numbers") from error
    return full((), array.item(), dtype) if array.ndim == 0 else constant(array)


def as_operand(value: Any) -> Any:
    """An operand of an elementwise op: tensors and Python numbers (weakly typed) unchanged, arrays and lists as
    constant tensors."""
    weak = type(value) in (bool, int, float) or (
        isinstance(value, Tensor | bool | int | float | np.generic) and not hasattr(type(value), "__tensor__")
    )
    return value if weak else as_tensor(value)


def cast(x: Tensor, dtype: str) -> Tensor:
    """The tensor converted to a dtype, given by name or as a NumPy dtype."""
    dtype = dtypes.name_of(dtype)
    return x if x.dtype == dtype else make("cast", (x,), {"dtype": dtype})


def reshape(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Another shape with the same elements; one size may be -1. Raises ShapeError if the number of elements differs."""
    shape = dims_of(shape)
    if any(isinstance(d, int) and d == -1 for d in shape):
        known = volume(tuple(d for d in shape if not (isinstance(d, int) and d == -1)))
        total = volume(x.shape)
        if isinstance(known, int) and known == 0:
            raise ShapeError(f"cannot infer -1 in {shape} beside a size of 0")
        shape = tuple(total // known if isinstance(d, int) and d == -1 else d for d in shape)
    return x if shape == x.shape else make("reshape", (x,), {"shape": shape})


def with_rank(x: Tensor, rank: int) -> Tensor:
    """The tensor with leading axes of size 1 added up to the given rank, at most 64 (NumPy's limit)."""
    if not isinstance(rank, int) or rank > 64:
        raise ShapeError(f"{rank!r} is no rank", hint="give an int up to 64")
    return x if x.rank >= rank else reshape(x, (1,) * (rank - x.rank) + x.shape)


def align(*operands: Operand, dtype: str | None = None) -> list[Tensor]:
    """Operands as tensors of common rank and dtype; numbers take the tensors' dtype (floats widen ints).

    `dtype`: the common dtype, if it is not to follow from the operands.
    """
    operands = tuple(map(as_operand, operands))
    tensors = [o for o in operands if isinstance(o, Tensor)]
    common = dtype
    for t in tensors:
        common = t.dtype if common is None else dtypes.promote(common, t.dtype) if dtype is None else common
    for o in operands:
        if not isinstance(o, Tensor) and dtype is None:
            wanted = (
                "bool" if isinstance(o, bool | np.bool_) else "int64" if isinstance(o, int | np.integer) else "float32"
            )
            if common is None or _RANK[dtypes.category(wanted)] > _RANK[dtypes.category(common)]:
                common = wanted
    rank = max((t.rank for t in tensors), default=0)
    assert common is not None
    return [
        with_rank(cast(o, common), rank) if isinstance(o, Tensor) else full((1,) * rank, o, common) for o in operands
    ]


def align_dtypes(*tensors: Tensor) -> list[Tensor]:
    """Tensors cast to their common dtype; shapes unchanged."""
    parts = [as_tensor(t) for t in tensors]
    common = parts[0].dtype if parts else "float32"
    for t in parts:
        common = dtypes.promote(common, t.dtype)
    return [cast(t, common) for t in parts]


__all__ = ["as_tensor", "cast", "reshape", "with_rank"]
