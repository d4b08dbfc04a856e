"""Indices that a program computes from its inputs in a few operations: they are computed once more in NumPy before a
call on a CPU, which is refused if one is outside of its axis. Kernels would take the element at the end of the axis.

Where sizes are free, rows have them as texts ("n", "2*n - 1"), and are read again for each new set of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...egraph.evaluate.interpret import apply, takes_wide_numbers
from ...egraph.ir.tensor import Tensor, constant, make
from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, parse
from ...errors import BadModelError, TensorGraphsError, TooLargeError
from .index_limits import refuse_outside, values_on_host

#: An operation: op, positions of its operands among the earlier rows, values of its attributes in the op's order. Of a
#: constant the attributes are dtype, shape and elements.
Row = tuple[str, tuple[int, ...], tuple[Any, ...]]
#: Kinds of ops that compute indices here, leaves, and bounds on operations and on elements of all their results.
KINDS = ("pointwise", "reduction", "index", "view", "layout")
LEAVES = ("input", "constant", "full", "iota")
MOST_ROWS, MOST_ELEMENTS, MOST_CONSTANTS = 96, 1 << 16, 1 << 14
#: Most sets of free sizes whose computations are kept.
MOST_SIZES = 16
#: A size of a target: an integer, or a text in the free sizes.
Size = int | str


class ComputedIndices(NamedTuple):
    """`rows` compute values from inputs; `targets` are (position of a row, low, high): its elements are indices,
    `low` <= index < `high`."""

    rows: tuple[Row, ...] = ()
    targets: tuple[tuple[int, Size, Size], ...] = ()


def cost(nodes: Sequence[Tensor]) -> float:
    """Elements that operations compute, or read in reductions; infinity if `rows_of` cannot hold one of them, or there
    are too many."""
    total: float = 0
    constants = 0
    for node in nodes:
        sizes = [d for d in node.shape if isinstance(d, int)]
        if len(sizes) < node.rank or (node.entry.kind not in KINDS and node.op not in LEAVES):
            return math.inf
        count, read = math.prod(sizes), max((_volume(a) for a in node.args), default=0)
        if node.op == "full" or node.entry.kind == "view":
            if count > max(read, MOST_ELEMENTS):  # that repeats elements
                return math.inf
        elif node.op != "input":
            total += max(count, read) if node.entry.kind == "reduction" else count
        constants += count if node.op == "constant" else 0
    return total if len(nodes) <= MOST_ROWS and total <= MOST_ELEMENTS and constants <= MOST_CONSTANTS else math.inf


def _volume(node: Tensor) -> float:
    return math.prod(d if isinstance(d, int) else math.inf for d in node.shape)


def rows_of(nodes: Sequence[Tensor]) -> tuple[Row, ...]:
    """Nodes in topological order as rows."""
    place = {id(node): i for i, node in enumerate(nodes)}

    def attributes(node: Tensor) -> tuple[Any, ...]:
        if node.op == "constant":
            assert node.data is not None
            return node.dtype, node.shape, tuple(map(_out, np.asarray(node.data).reshape(-1).tolist()))
        given = dict(node.attrs)
        return tuple(_out(given[name]) for name in node.entry.attrs)

    return tuple((node.op, tuple(place[id(a)] for a in node.args), attributes(node)) for node in nodes)


def _out(value: Any) -> Any:
    """A number without the infinities and NaN that JSON lacks, and free sizes as texts."""
    if isinstance(value, tuple):
        return tuple(map(_out, value))
    return (
        str(value) if isinstance(value, DimExpr) or (isinstance(value, float) and not math.isfinite(value)) else value
    )


def nodes_of(rows: Sequence[Row], sizes: Mapping[str, int] | None = None) -> list[Tensor]:
    """The nodes of rows, at these values of their free sizes. Raises BadModelError for rows that are malformed,
    TooLargeError for those that are larger than `cost` allows."""
    nodes: list[Tensor] = []
    if len(rows) > MOST_ROWS:
        raise BadModelError("indices are computed in too many operations")
    read = partial(_in, sizes=sizes or {})
    try:
        for op, operands, values in rows:
            if not all(0 <= i < len(nodes) for i in operands):
                raise ValueError("an operand that does not come before")
            if op == "constant":
                dtype, shape, elements = values
                array = np.array([read("float", v) for v in elements], dtypes.numpy_dtype(dtypes.check(dtype)))
                nodes.append(constant(array.reshape([read("int", d) for d in shape])))
                continue
            if op not in OPS or (OPS[op].kind not in KINDS and op not in LEAVES):
                raise ValueError(f"the operation {op!r}")
            kinds = dict(OPS[op].attrs)
            attrs = {name: read(kind, v) for (name, kind), v in zip(kinds.items(), values, strict=True)}
            nodes.append(make(op, [nodes[i] for i in operands], attrs))
            if any(not isinstance(d, int) or d < 0 for d in nodes[-1].shape):
                raise ValueError(f"the shape {nodes[-1].shape}")
    except MALFORMED as error:
        raise _malformed(error) from None
    if cost(nodes) == math.inf:
        raise TooLargeError("the program's manifest computes indices of too many elements")
    return nodes


#: What operations of a damaged file raise, when they are made or computed.
MALFORMED = (TensorGraphsError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, MemoryError)


def _malformed(error: Exception) -> BadModelError:
    return BadModelError(f"the program's manifest computes indices by malformed operations: {error}")


def _in(kind: str, value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute of an op, read from a file. Raises ValueError or ShapeError for values of another kind, and for
    texts in other sizes than `sizes`."""
    if kind == "dims" and isinstance(value, list | tuple):
        return tuple(_in("int", v, sizes) for v in value)
    if kind == "float" and value in ("inf", "-inf", "nan"):
        return float(value)
    if kind in ("int", "float") and isinstance(value, str):
        return parse(value, sizes)
    wanted: Any = {"int": int, "float": int | float, "bool": bool, "str": str, "dtype": str}.get(kind)
    if wanted is None or not isinstance(value, wanted) or (kind == "int" and isinstance(value, bool)):
        raise ValueError(f"{value!r} as {kind}")
    return value


def computed_check(
    indices: ComputedIndices,
    names: Sequence[str],
    sizes_of: Callable[[Sequence[Any]], Mapping[str, int] | None] | None = None,
) -> Callable[[Sequence[Any]], None]:
    """Function of a call's inputs, in the order of `names`, that raises IndexRangeError for an index outside of its
    axis. Inputs of other types than the program's, and of other devices, are not looked at.

    `sizes_of`: the values that a call's inputs give to the free sizes, None if they fit no size; computations that have
    become longer than `cost` allows at a call's sizes are not made. Raises BadModelError if the rows are malformed; so
    does the function, if they do not fit its inputs.
    """
    if sizes_of is None:
        try:
            return _check_at(indices, names, {})
        except TooLargeError as error:
            raise BadModelError(error.message) from None
    known: dict[tuple[tuple[str, int], ...], Callable[[Sequence[Any]], None]] = {}

    def check(inputs: Sequence[Any]) -> None:
        if (sizes := sizes_of(inputs)) is None:
            return
        key = tuple(sizes.items())
        if (found := known.get(key)) is None:
            if len(known) >= MOST_SIZES:
                known.clear()
            try:
                found = _check_at(indices, names, sizes)
            except TooLargeError:
                found = _nothing
            known[key] = found
        found(inputs)

    return check


def _nothing(inputs: Sequence[Any]) -> None:
    """The check of indices that are not looked at."""


def _check_at(
    indices: ComputedIndices, names: Sequence[str], sizes: Mapping[str, int]
) -> Callable[[Sequence[Any]], None]:
    """The function of `computed_check` at given free sizes."""
    nodes = nodes_of(indices.rows, sizes)
    used = [n for n in nodes if n.op == "input"]
    if any(not 0 <= i < len(nodes) for i, _, _ in indices.targets) or any(n.attr("name") not in names for n in used):
        raise BadModelError("the program's manifest computes indices from inputs that it lacks")
    if any(dtypes.category(nodes[i].dtype) != "int" for i, _, _ in indices.targets):
        raise BadModelError("the program's manifest computes indices that are no integers")
    shown = ", ".join(repr(n.attr("name")) for n in used)
    try:
        targets = [(i, _in("int", low, sizes), _in("int", high, sizes)) for i, low, high in indices.targets]
        given, steps, known = _compiled(nodes, names)
    except MALFORMED as error:
        raise _malformed(error) from None

    def check(inputs: Sequence[Any]) -> None:
        found = list(known)
        for i, position, node in given:
            if (array := _array(inputs[position], node)) is None:
                return
            found[i] = array
        try:
            with np.errstate(all="ignore"):
                for i, function, operands in steps:
                    found[i] = function(*[found[k] for k in operands])
        except MALFORMED as error:
            raise _malformed(error) from None
        for i, low, high in targets:
            refuse_outside(found[i], low, high, f"an index computed from {shown} is")

    return check


_Steps = list[tuple[int, Callable[..., Any], list[int]]]


def _compiled(nodes: Sequence[Tensor], names: Sequence[str]) -> tuple[list[tuple[int, int, Tensor]], _Steps, list[Any]]:
    """((place among the nodes, position among the names, node) of each input, (place, function, places of the operands)
    of each operation that depends on them, values of the other nodes by place)."""
    place = {id(node): i for i, node in enumerate(nodes)}
    given = [(i, names.index(str(n.attr("name"))), n) for i, n in enumerate(nodes) if n.op == "input"]
    steps: _Steps = []
    values: list[Any] = [None] * len(nodes)
    depends = {i for i, _, _ in given}
    for i, node in enumerate(nodes):
        operands = [place[id(a)] for a in node.args]
        if depends.intersection(operands):
            depends.add(i)
            function = node.entry.numpy
            if function is None or takes_wide_numbers(node):
                steps.append((i, partial(_applied, node), operands))
            else:
                steps.append((i, partial(function, dict(node.attrs)), operands))
        elif node.op != "input":
            values[i] = node.data if node.op == "constant" else apply(node, [values[k] for k in operands])
    return given, steps, values


def _applied(node: Tensor, *operands: Any) -> Any:
    return apply(node, operands)


def _array(x: Any, node: Tensor) -> np.ndarray[Any, Any] | None:
    """An array or CPU tensor as an array of an input's type; None for others."""
    found = values_on_host(x, "iufb")
    return (
        None if found is None or found.shape != node.shape else found.astype(dtypes.numpy_dtype(node.dtype), copy=False)
    )


__all__ = ["MOST_ROWS", "ComputedIndices", "computed_check", "cost", "nodes_of", "rows_of"]
