"""Inputs of programs that are indices: calls with indices outside of an axis are refused on a CPU, where kernels would
take the element at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import IndexRangeError


class IndexLimit(NamedTuple):
    """An input whose elements are indices of an axis: `low` <= index < `high`; `low` is negative where negative indices
    count from the end of the axis."""

    name: str
    low: int
    high: int


def index_check(limits: Sequence[IndexLimit], names: Sequence[str]) -> Callable[[Sequence[Any]], None]:
    """Function of a call's inputs, arrays or tensors in the order of `names`, that raises IndexRangeError for an index
    outside of its limits.

    Inputs that are no integers and tensors of other devices, for whose values the host would wait, are not looked at.
    """
    rows = [(names.index(limit.name), limit) for limit in limits if limit.name in names]

    def check(inputs: Sequence[Any]) -> None:
        for position, (name, low, high) in rows:
            if (found := _extremes(inputs[position])) is None:
                continue
            least, largest = found
            if least < low or largest >= high:
                wrong = least if least < low else largest
                raise IndexRangeError(
                    f"input {name!r} has the index {wrong}, which is outside of an axis of {high} elements",
                    hint=f"indices from {low} to {high - 1} are valid",
                )

    return check


def _extremes(x: Any) -> tuple[int, int] | None:
    """The least and the largest element of an array or CPU tensor of integers; None for others and without elements."""
    if hasattr(x, "aminmax"):  # a tensor of PyTorch
        if x.device.type != "cpu":
            return None
        try:
            x = x.numpy()
        except (RuntimeError, TypeError):  # a tensor without data in a mode of PyTorch, or a dtype that NumPy lacks
            return None
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or not x.size:
        return None
    return int(np.minimum.reduce(x, axis=None)), int(np.maximum.reduce(x, axis=None))


__all__ = ["IndexLimit", "index_check"]
