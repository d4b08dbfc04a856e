"""Parses operand specifications of user kernels, such as "float32[*B, N]", and binds them to the types of a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...errors import KernelError

_AXIS = re.compile(r"\d+|\*?[A-Za-z_]\w*")


@dataclass(frozen=True)
class OperandSpec:
    """Permitted types of an operand.

    `dtype`: a dtype, or a name of the kernel's `types`. `axes`: for each axis a size or a name; at most one starred
    name stands for any number of axes.
    """

    dtype: str
    axes: tuple[int | str, ...]

    def shape(self, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape for given sizes; a starred name stands for a tuple."""
        found: list[Any] = []
        for axis in self.axes:
            if isinstance(axis, int):
                found.append(axis)
            elif axis[0] == "*":
                found += sizes[axis[1:]]
            else:
                found.append(sizes[axis])
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.axes))}]"


def operand_spec(name: str, text: str) -> OperandSpec:
    """The specification of the input `name`, parsed from its text. Raises KernelError for a malformed text."""
    found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\[(.*)\]\s*", text)
    axes = [a.strip() for a in found[2].split(",") if a.strip()] if found else []
    if found is None or not all(_AXIS.fullmatch(a) for a in axes) or sum(a[0] == "*" for a in axes) > 1:
        raise KernelError(f"{name}: {text!r} is no operand specification", hint='such as "float32[*B, M, 64]"')
    return OperandSpec(found[1], tuple([int(a) if a.isdigit() else a for a in axes]))


def bound(
    specs: Mapping[str, OperandSpec], types: Mapping[str, tuple[str, ...]], given: Mapping[str, Type]
) -> dict[str, Any] | None:  # fmt: skip
    """Values of the names in specifications, sizes (tuples for starred names) and dtypes, for operands of the types
    `given`. None if an operand's type does not match its specification, or if a size is not a number.

    `types`: name -> dtypes that it may stand for.
    """
    found: dict[str, Any] = {}
    for name, spec in specs.items():
        kind = given.get(name)
        if kind is None or not _bind_dtype(spec.dtype, types, kind.dtype, found):
            return None
        if not _bind_axes(spec.axes, kind.shape, found):
            return None
    return found


def _bind_dtype(wanted: str, types: Mapping[str, tuple[str, ...]], dtype: str, found: dict[str, Any]) -> bool:
    if wanted not in types:
        return dtypes.check(wanted) == dtype
    return dtype in types[wanted] and found.setdefault(wanted, dtype) == dtype


def _bind_axes(axes: tuple[int | str, ...], shape: tuple[Any, ...], found: dict[str, Any]) -> bool:
    star = next((i for i, a in enumerate(axes) if isinstance(a, str) and a[0] == "*"), None)
    more = len(shape) - len(axes) + 1
    if more < 0 or (star is None and more != 1) or any(not isinstance(d, int) for d in shape):
        return False
    if star is not None:
        name = str(axes[star])[1:]
        if found.setdefault(name, shape[star : star + more]) != shape[star : star + more]:
            return False
        axes, shape = (*axes[:star], *axes[star + 1 :]), (*shape[:star], *shape[star + more :])
    return all(d == a if isinstance(a, int) else found.setdefault(a, d) == d for a, d in zip(axes, shape))


__all__ = ["OperandSpec", "bound", "operand_spec"]
