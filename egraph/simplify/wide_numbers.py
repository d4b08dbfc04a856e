"""Products and quotients of 16-bit floats with numbers that 16 bits do not hold, in float32: as the interpreter and
PyTorch's kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..builders.builders import cast
from ..evaluate.interpret import takes_wide_numbers
from ..ir.tensor import Tensor, make, rebuild
from ..types import dtypes


def numbers_kept_wide(roots: Sequence[Tensor]) -> list[Tensor]:
    """`roots` in which such products are float32 products between casts: kernels would round the numbers first."""
    return rebuild(roots, _in_float32)


def _in_float32(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    if not takes_wide_numbers(node) or not any(map(_is_rounded, args)):
        return None
    wide = [_number(a) if a.op == "full" else cast(a, "float32") for a in args]
    return cast(make(node.op, wide), node.dtype)


def _is_rounded(x: Tensor) -> bool:
    """Whether `x` holds a number that its dtype rounds."""
    if x.op != "full":
        return False
    value = np.float32(x.attr("value"))
    return bool(value.astype(dtypes.numpy_dtype(x.dtype)).astype(np.float32) != value)


def _number(x: Tensor) -> Tensor:
    return make("full", [], {**dict(x.attrs), "dtype": "float32"})


__all__ = ["numbers_kept_wide"]
