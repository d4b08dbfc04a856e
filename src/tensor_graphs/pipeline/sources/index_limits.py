"""Finds the inputs of a model that are indices, or from which indices are computed, and the axes that they index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...backends.runtime.computed_indices import ComputedIndices
from ...backends.runtime.index_limits import MOST_STEPS, IndexLimit, Step, is_step
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ir.weight_data import Data
from ...egraph.simplify.casts import lossless
from ...egraph.simplify.fills import number
from ...egraph.types import dtypes
from .computed_limits import MOST_TABLE, IndexTarget, computed_indices
from .index_ranges import SAME, equal, range_of, uncast, without_views

_PLACED = {"reshape": "shape", "permute": "perm", "flip": "axis"}  # views that are steps before a slice -> attribute
_WITH_NUMBERS = ("add", "sub", "mul", "floordiv", "mod", "maximum", "minimum")
_TURNED = {
    "add": "add",
    "mul": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "sub": "from",
}  # number first -> step

EXPRESSIONS = (Graph, Tensor, dict, list, tuple)  # sources that define `gather` outside of the axis, too


class Indices(NamedTuple):
    """How a call checks indices: by limits of inputs, and by computing them once more; `unchecked` names the inputs
    from which others are computed."""

    limits: tuple[IndexLimit, ...] = ()
    computed: ComputedIndices = ComputedIndices()
    unchecked: tuple[str, ...] = ()


def index_limits(source: Any, graph: Graph, sizes: Mapping[str, int] | None = None) -> Indices:
    """Limits of the inputs of `graph` that a function, module or model file takes slices or elements at, as they are or
    after parts of them and arithmetic with numbers, whose own call refuses indices outside of the axis; and indices
    that are computed from inputs and weights in other ways, with few operations on few elements, at the free `sizes`.

    None for expressions and graphs: their `gather` is defined outside of the axis, too.
    """
    if isinstance(source, EXPRESSIONS):
        return Indices()
    found: dict[tuple[Any, ...], IndexLimit] = {}
    others: list[IndexTarget] = []
    for node in graph.nodes():
        if node.entry.index_operand is None:
            continue
        whole = node.entry.indexed_size(node.args[0].shape, dict(node.attrs))
        for index, size in _parts(node.args[node.entry.index_operand], whole):
            row = _limit(index, node.entry.negative_indices, size, graph)
            if row is not None:
                known = found.setdefault((row.name, row.steps, row.axis_of), row)
                found[row.name, row.steps, row.axis_of] = row._replace(
                    low=max(row.low, known.low), high=min(row.high, known.high)
                )
            elif 0 not in index.shape and not _is_decided(index, size):
                others.append(_valid(index, size, node.entry.negative_indices))
    computed, unchecked = computed_indices(others, graph, sizes or {})
    return Indices(tuple(found.values()), computed, unchecked)


def limits_of_weights(
    graph: Graph, sizes: Mapping[str, int]
) -> Callable[[Mapping[str, Data]], tuple[Sequence[IndexLimit], ComputedIndices]] | None:
    """Function that gives the limits and the computed indices of `index_limits` for other weights of a function's or
    model's graph; None if no index is computed from a weight that may be read (MOST_TABLE). Keeps only such weights."""
    indices = [n.args[n.entry.index_operand] for n in graph.nodes() if n.entry.index_operand is not None]
    names = {str(n.attr("name")) for n in topological(indices) if n.op == "param"}
    small = {n: d for n, d in graph.params.items() if n in names and math.prod(d.shape) <= MOST_TABLE}
    own = replace(graph, params=small)

    def of(weights: Mapping[str, Data]) -> tuple[Sequence[IndexLimit], ComputedIndices]:
        now = {name: weights.get(name, data) for name, data in small.items()}
        return index_limits(None, replace(own, params=now), sizes)[:2]

    return of if small else None


def takes_along_free_axis(graph: Graph) -> bool:
    """Whether a graph takes or writes elements at indices along an axis of free size."""
    found = (n for n in graph.nodes() if n.entry.index_operand is not None)
    return any(not isinstance(n.entry.indexed_size(n.args[0].shape, dict(n.attrs)), int) for n in found)


def _parts(index: Tensor, size: Any) -> list[tuple[Tensor, Any]]:
    """(indices, size) of each axis whose indices are merged to i * k + j; j counts from the end of k elements."""
    inner = without_views(index)
    if inner.op == "add" and isinstance(size, int):
        for scaled, last in (inner.args, inner.args[::-1]):
            scaled = without_views(scaled)
            count = number(without_views(scaled.args[1])) if scaled.op == "mul" else None
            if isinstance(count, int) and count > 1 and size % count == 0:
                plain = without_views(last)
                if _counted_from_the_end(plain, count) is not None or _within(plain, count):
                    return [*_parts(scaled.args[0], size // count), (plain, count)]
    return [(index, size)]


def _within(x: Tensor, count: int) -> bool:
    low, high = range_of(x)
    return low >= 0 and high < count


def _is_decided(index: Tensor, size: Any) -> bool:
    """Whether an index is an input, or computed from one in steps, and its axis has a known size: `_limit` has decided
    about it."""
    source, _ = _steps(_indexing(index, False, size)[0])
    return isinstance(size, int) and source.op == "input" and dtypes.category(source.dtype) == "int"


def _valid(index: Tensor, size: Any, negative: bool) -> IndexTarget:
    """The values that decide whether an index is valid."""
    inner, negative = _indexing(index, negative, size)
    return IndexTarget(inner, -size if negative else 0, size)


def _limit(index: Tensor, negative: bool, size: Any, graph: Graph) -> IndexLimit | None:
    """The limit that an axis of `size` elements sets for the input from which the indices `index` are computed; None if
    there is none. `negative`: whether the op takes negative indices from the end."""
    if 0 in index.shape:
        return None
    index, negative = _indexing(index, negative, size)
    source, steps = _steps(index)
    if source.op != "input" or dtypes.category(source.dtype) != "int":
        return None
    axis_of = None if isinstance(size, int) else _axis_of(size, graph)
    if axis_of is not None:
        return IndexLimit(str(source.attr("name")), -int(negative), 0, steps, axis_of)
    if not isinstance(size, int) or size < 1:
        return None
    least, largest = _range(steps)
    if least >= (-size if negative else 0) and largest < size:
        return None
    return IndexLimit(str(source.attr("name")), -size if negative else 0, size, steps)


def _axis_of(size: Any, graph: Graph) -> tuple[str, int] | None:
    """Name of an input and its axis of a free size; None if no input has one."""
    return next(((str(x.attr("name")), i) for x in graph.inputs for i, d in enumerate(x.shape) if d == size), None)


def _steps(index: Tensor) -> tuple[Tensor, tuple[Step, ...]]:
    """The value from which parts and arithmetic with numbers compute `index`, and these steps, the first one first."""
    steps: list[Step] = []
    while len(steps) < MOST_STEPS and index.op != "input" and (found := _step(index, steps)) is not None:
        step, index = found
        steps += [] if step is None else [step]
    return index, tuple(reversed(steps))


def _step(x: Tensor, later: Sequence[Step]) -> tuple[Step | None, Tensor] | None:
    """An operation of integers (None for a view without effect on the extremes) and its operand; None for others.
    `later`: the steps after it."""
    placed = any(step[0] == "slice" for step in later)  # whether shape and order of elements matter
    if x.op == "cast" and lossless(x.args[0].dtype, x.dtype):
        if all(step[0] == "slice" or step[0] in _PLACED for step in later):
            return None, x.args[0]
        return (("cast", 8 * dtypes.itemsize(x.dtype)), x.args[0]) if dtypes.least(x.dtype) else None
    if x.op in SAME:
        if not placed:
            return None, x.args[0]
        found = x.attr(_PLACED[x.op]) if x.op in _PLACED else None
        numbers = found if isinstance(found, tuple) else (found,)
        return ((x.op, *numbers), x.args[0]) if all(isinstance(n, int) for n in numbers) else None
    if dtypes.category(x.dtype) != "int" or not x.args or x.args[0].dtype != x.dtype:
        return None
    if x.op == "slice":
        numbers = tuple(x.attr(name) for name in ("axis", "start", "stop", "step"))
        return (("slice", *numbers), x.args[0]) if all(isinstance(n, int) for n in numbers) else None
    if x.op in ("neg", "abs"):
        return (x.op,), x.args[0]
    if x.op not in _WITH_NUMBERS:
        return None
    first, second = (number(without_views(a)) for a in x.args)
    step: Step
    if second is not None and (second != 0 or x.op not in ("floordiv", "mod")):
        step, operand = (x.op, int(second)), x.args[0]
    elif first is not None and x.op in _TURNED:
        step, operand = (_TURNED[x.op], int(first)), x.args[1]
    else:
        return None
    broadcast = placed and operand.shape != x.shape  # the step has a number in place of the other operand's shape
    return None if broadcast or not is_step(step) else (step, operand)


def _range(steps: tuple[Step, ...]) -> tuple[float, float]:
    """Least and largest index that the last steps allow."""
    low, high = -math.inf, math.inf
    for name, *numbers in steps:
        n = int(numbers[0]) if numbers else 0
        if name == "mod":
            low, high = (0, n - 1) if n > 0 else (n + 1, 0)
        elif name == "maximum":
            low, high = max(low, n), max(high, n)
        elif name == "minimum":
            low, high = min(low, n), min(high, n)
        elif name != "slice":
            low, high = -math.inf, math.inf
    return low, high


def _indexing(index: Tensor, negative: bool, size: Any) -> tuple[Tensor, bool]:
    """(x, whether negative elements of x count from the end of the axis) of an index that is computed from x by
    counting from the end, or by making negative numbers invalid. `negative`: whether the op counts from the end."""
    index = without_views(index)
    if (inner := _counted_from_the_end(index, size)) is not None:
        index, negative = without_views(inner), True
    if (inner := _negative_refused(index, size)) is not None:
        index, negative = without_views(inner), False
    return index, negative


def _negative_refused(index: Tensor, size: Any) -> Tensor | None:
    """x of `where(x < 0, n, x)` for a number n that is outside of the axis; None for other values."""
    if index.op != "where" or not isinstance(size, int):
        return None
    below, outside, x = (uncast(a) for a in index.args)
    if below.op != "lt" or not equal(uncast(below.args[0]), x) or number(without_views(below.args[1])) != 0:
        return None
    put = number(without_views(outside))
    return x if isinstance(put, int) and put < -size else None


def _counted_from_the_end(index: Tensor, size: Any) -> Tensor | None:
    """x of `where(x < 0, x + size, x)`; None for other values."""
    if index.op != "where":
        return None
    below, moved, x = (uncast(a) for a in index.args)
    if below.op != "lt" or moved.op != "add":
        return None
    sides = [uncast(a) for a in (below.args[0], *moved.args)]
    if equal(sides[0], x) and any(equal(a, x) for a in sides[1:]) and number(without_views(below.args[1])) == 0:
        counts = [_count(without_views(a)) for a in sides[1:] if not equal(a, x)]
        return x if counts == [size] else None
    return None


def _count(x: Tensor) -> Any:
    """The number that a fill has, or the size that a sum of ones counts; None for other values."""
    if x.op == "sum" and number(x.args[0]) == 1 and x.args[0].rank == 1:
        return x.args[0].shape[0]
    return number(x)


__all__ = ["Indices", "index_limits", "limits_of_weights", "takes_along_free_axis"]
