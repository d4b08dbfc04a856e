"""Functions that build reads and writes at given indices: gather and scatter."""

from __future__ import annotations

from ..ir.tensor import Tensor, make
from ..types.axes import axis_of


def gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """NumPy's take: `axis` is replaced by the axes of the index."""
    return make("gather", (x, index), {"axis": axis_of(axis, x.rank)})


def gather_elements(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """NumPy's take_along_axis: element [.., i, ..] is x[.., index[.., i, ..], ..]. The result has the index's shape."""
    return make("gather_elements", (x, index), {"axis": axis_of(axis, x.rank)})


def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, axis: int, mode: str = "set") -> Tensor:
    """x with updates written at the indices along one axis; `index` and `updates` have one shape, of x's rank.

    `mode`: "set", or how an update is combined with the element there: "add", "mul", "max", "min". Of several elements
    set in one place, any one is kept.
    """
    return make("scatter_elements", (x, index, updates), {"axis": axis_of(axis, x.rank), "mode": mode})


__all__ = ["gather", "gather_elements", "scatter_elements"]
