"""Finds which indices that a model computes from its inputs and weights are computed once more before a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...backends.runtime.computed_indices import MOST_CONSTANTS, MOST_ROWS, ComputedIndices, cost, nodes_of, rows_of
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, constant, rebuild, topological
from ...egraph.ir.weight_data import load_data
from ...egraph.simplify.fills import number
from ...egraph.types import dtypes
from ...egraph.types.dims import bounds
from ...errors import TensorGraphsError
from .index_ranges import range_of, selected_from, without_views

#: Most elements of weights from which indices are computed, and which are read: of integers, and of floats.
MOST_TABLE, MOST_FLOATS = 1 << 20, 1 << 10


class IndexTarget(NamedTuple):
    """Values of which an index is computed, valid from `low` on and below `high`, which may have free sizes."""

    value: Tensor
    low: Any
    high: Any


def computed_indices(
    targets: Sequence[IndexTarget], graph: Graph, sizes: Mapping[str, int]
) -> tuple[ComputedIndices, tuple[str, ...]]:
    """(The computation of those indices that are not always in range, as many as cost little together; names of the
    inputs that other such indices are computed from, and of the weights of those that no input decides). `sizes`:
    values of the free sizes, at which costs are counted."""
    kept: list[IndexTarget] = []
    left: list[Tensor] = []
    for target in dict.fromkeys(targets):
        # places of the largest elements, whatever these are computed from; tables of weights
        if _in_range(target) or _has_valid_weights(target, graph):
            continue
        index = _with_weights(target.value, graph)
        if index is None:
            left.append(target.value)
            continue
        (atomic,) = expand_all([index])
        if _in_range(target._replace(value=atomic)):
            continue
        if _costs_little([*(x.value for x in kept), atomic], sizes):
            kept.append(target._replace(value=atomic))
        else:
            left.append(target.value)
    nodes = topological([x.value for x in kept])
    names = dict.fromkeys(name for index in left for name in _decided_by(index))
    if not any(node.op == "input" for node in nodes):
        return ComputedIndices(), tuple(names)
    place = {id(node): i for i, node in enumerate(nodes)}
    rows = tuple((place[id(x)], _size(low), _size(high)) for x, low, high in kept)
    return ComputedIndices(rows_of(nodes), rows), tuple(names)


def _size(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _decided_by(index: Tensor) -> list[str]:
    """Names of the inputs that an index is computed from; of the weights if there are none."""
    leaves = [n for n in topological([index]) if n.op in ("input", "param")]
    inputs = [n for n in leaves if n.op == "input"]
    return [str(n.attr("name")) for n in inputs or leaves]


def _has_valid_weights(target: IndexTarget, graph: Graph) -> bool:
    """Whether an index is a weight of integers, however large, all of which are valid."""
    table = selected_from(target.value)
    data = graph.params.get(str(table.attr("name"))) if table.op == "param" else None
    if data is None or dtypes.category(table.dtype) != "int":
        return False
    found = load_data(data)
    return not found.size or bool(bounds(target.low)[1] <= found.min() and found.max() < bounds(target.high)[0])


def _with_weights(index: Tensor, graph: Graph) -> Tensor | None:
    """An index with the values of weights in their place; None if it is computed in many operations, from large weights
    or from states."""
    values: dict[Tensor, Tensor] = {}
    todo, seen = [index], set[Tensor]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "state" or len(seen) > MOST_ROWS:
            return None
        if node.op == "param":
            data = graph.params.get(str(node.attr("name")))
            most = MOST_FLOATS if dtypes.is_float(node.dtype) else MOST_TABLE
            if data is None or math.prod(data.shape) > most:
                return None
            values[node] = constant(load_data(data))
        todo += node.args
    return rebuild([index], lambda node, _: values.get(node))[0] if values else index


def _in_range(target: IndexTarget) -> bool:
    """Whether an index is valid whatever the inputs are; composite operations have any result."""
    index, low, high = target
    least, most = range_of(index)
    inside = bounds(low)[1] <= least and most < bounds(high)[0]
    return inside or _is_position(selected_from(index), high)


def _is_position(index: Tensor, size: Any) -> bool:
    """Whether an index is a position of an axis of `size` elements, or a remainder by `size`."""
    if index.op == "iota":
        return bool(index.shape[int(index.attr("axis"))] == size)
    if index.op in ("argmax", "argmin", "argsort"):
        return bool(index.args[0].shape[int(index.attr("axis"))] == size)
    return index.op == "mod" and number(without_views(index.args[1])) == size


def _costs_little(indices: Sequence[Tensor], sizes: Mapping[str, int]) -> bool:
    """Whether values are computed in few operations on few elements, at these free sizes."""
    nodes = topological(indices)
    if len(nodes) > MOST_ROWS or any(n.data is not None and n.data.size > MOST_CONSTANTS for n in nodes):
        return False
    if not sizes:
        return cost(nodes) < math.inf
    try:
        return bool(nodes_of(rows_of(nodes), sizes))
    except TensorGraphsError:
        return False


__all__ = ["MOST_TABLE", "IndexTarget", "computed_indices"]
