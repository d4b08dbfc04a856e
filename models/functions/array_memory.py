"""Records which traced arrays share memory, as an array and its views do."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .numpy_array import TracedArray


class Memory:
    """Record of the arrays that share memory: an array and its views.

    `fixed` names the owner of memory that the function must not write to; empty if writing is allowed.
    """

    def __init__(self, fixed: str = "") -> None:
        self.fixed = fixed
        self._holders: dict[int, weakref.ref[TracedArray]] = {}  # by identity: traced arrays have no hash

    def hold(self, array: TracedArray) -> None:
        """Register an array as an alias of this memory, while it is alive."""
        holders, place = self._holders, id(array)
        holders[place] = weakref.ref(array, lambda gone: _drop(holders, place, gone))

    def alive(self) -> list[TracedArray]:
        """Return the registered arrays that are still alive."""
        return [a for r in list(self._holders.values()) if (a := r()) is not None]


def _drop(holders: dict[int, weakref.ref[TracedArray]], place: int, gone: weakref.ref[TracedArray]) -> None:
    """Remove the record of an array that is gone, unless another array has its identity by now."""
    if holders.get(place) is gone:
        del holders[place]


__all__ = ["Memory"]
