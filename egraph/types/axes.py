"""Axes of a tensor as non-negative numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ...errors import ShapeError


def axis_of(axis: int, rank: int) -> int:
    """The axis of a tensor of this rank as a non-negative number; negative axes count from the end. Raises ShapeError
    if it is out of range."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise ShapeError(f"{axis!r} is no axis", hint="give an int") from None
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis % rank if rank else 0


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes of a tensor of this rank, as sorted non-negative numbers without repetition; all of them for None."""
    if axes is None:
        return tuple(range(rank))
    found = sorted({axis_of(a, rank) for a in ((axes,) if isinstance(axes, int) else axes)})
    return tuple(found)
