"""Finds the inputs of a model that are indices as they are, and the axes that they index."""

from __future__ import annotations

from typing import Any

from ...backends.runtime.index_limits import IndexLimit
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.simplify.fills import number
from ...egraph.types import dtypes

_SAME = ("reshape", "permute", "broadcast_to", "flip")  # views that have all elements of their operand


def index_limits(source: Any, graph: Graph) -> tuple[IndexLimit, ...]:
    """Limits of the inputs of `graph` that a function, module or model file takes slices or elements at, whose own call
    refuses indices outside of the axis.

    () for expressions and graphs: their `gather` is defined outside of the axis, too. Indices that are computed, and
    those of an axis of a free size, have no limits.
    """
    if isinstance(source, Graph | Tensor | dict | list | tuple):
        return ()
    found: dict[str, IndexLimit] = {}
    for node in graph.nodes():
        if node.entry.index_operand is None:
            continue
        size = node.entry.indexed_size(node.args[0].shape, dict(node.attrs))
        row = _limit(node.args[node.entry.index_operand], node.entry.negative_indices, size)
        if row is not None:
            known = found.get(row.name, row)
            found[row.name] = IndexLimit(row.name, max(row.low, known.low), min(row.high, known.high))
    return tuple(found.values())


def _limit(index: Tensor, negative: bool, size: Any) -> IndexLimit | None:
    """The limit that an axis of `size` elements sets for the input whose elements are the indices `index`; None if
    there is none. `negative`: whether the op takes negative indices from the end."""
    index = _without_views(index)
    if (inner := _counted_from_the_end(index, size)) is not None:
        index, negative = _without_views(inner), True
    if index.op != "input" or not isinstance(size, int) or size < 1 or dtypes.category(index.dtype) != "int":
        return None
    return IndexLimit(str(index.attr("name")), -size if negative else 0, size)


def _without_views(x: Tensor) -> Tensor:
    """The value of which `x` has all elements, with the same numbers."""
    while x.op in _SAME or (x.op == "cast" and dtypes.itemsize(x.args[0].dtype) <= dtypes.itemsize(x.dtype)):
        x = x.args[0]
    return x


def _counted_from_the_end(index: Tensor, size: Any) -> Tensor | None:
    """x of `where(x < 0, x + size, x)`; None for other values."""
    if index.op != "where":
        return None
    below, moved, x = (_without_views(a) for a in index.args)
    if below.op != "lt" or moved.op != "add":
        return None
    sides = [_without_views(a) for a in (below.args[0], *moved.args)]
    same = _without_views(x)
    if sides[0] is same and any(a is same for a in sides[1:]) and number(_without_views(below.args[1])) == 0:
        steps = [number(a) for a in sides[1:] if a is not same]
        return same if steps == [size] else None
    return None


__all__ = ["index_limits"]
