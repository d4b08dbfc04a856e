"""Evaluates shape arithmetic symbolically: Shape -> Gather -> Mul -> Concat -> Reshape stays symbolic.

Each rule takes a node and its operands as object arrays. It returns an object array, or None if the result is not the
same expression for every value of the free dimensions; the node is then built as ordinary computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...egraph.types.dims import Dim, DimExpr, bounds
from ...errors import ShapeError
from .node import Node, resolve
from .values import Array

ShapeRule = Callable[..., "Array | None"]
SHAPE_RULES: dict[str, ShapeRule] = {}


class _Undecided(Exception):
    """Raised for a comparison whose result depends on the values of free dimensions."""


def compare(a: Dim, b: Dim) -> int:
    """Comparison of two sizes: -1, 0 or 1 for a < b, a == b, a > b. Raises _Undecided if it depends on free
    dimensions."""
    low, high = bounds(a - b)
    if low == high == 0:
        return 0
    if low > 0:
        return 1
    if high < 0:
        return -1
    raise _Undecided


def _nonnegative(*values: Dim) -> None:
    if any(bounds(v)[0] < 0 for v in values):
        raise _Undecided


def _div(a: Dim, b: Dim) -> Dim:
    _nonnegative(a, b)
    if compare(b, 0) == 0:
        raise _Undecided
    return a // b


def _mod(a: Dim, b: Dim) -> Dim:
    _nonnegative(a, b)
    if compare(b, 0) == 0:
        raise _Undecided
    return DimExpr.of(a) % b if isinstance(a, DimExpr) or isinstance(b, DimExpr) else a % b


def _differs(a: Dim, b: Dim) -> bool:
    low, high = bounds(a - b)
    if low <= 0 <= high and not low == high == 0:
        raise _Undecided
    return low > 0 or high < 0


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": _div, "Mod": _mod,
    "Neg": lambda a: -a, "Abs": lambda a: a if compare(a, 0) >= 0 else -a,
    "Max": lambda a, b: a if compare(a, b) >= 0 else b, "Min": lambda a, b: b if compare(a, b) >= 0 else a,
    "Equal": lambda a, b: not _differs(a, b), "Less": lambda a, b: compare(a, b) < 0,
    "Greater": lambda a, b: compare(a, b) > 0, "LessOrEqual": lambda a, b: compare(a, b) <= 0,
    "GreaterOrEqual": lambda a, b: compare(a, b) >= 0, "Where": lambda c, a, b: a if c else b,
}  # fmt: skip


#: Operators of SHAPE_RULES whose results are bools.
_COMPARISONS = frozenset(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))


def _rule(name: str) -> Callable[[ShapeRule], ShapeRule]:
    def install(rule: ShapeRule) -> ShapeRule:
        SHAPE_RULES[name] = rule
        return rule

    return install


def _elementwise(function: Callable[..., Any]) -> ShapeRule:
    def rule(node: Node, *arrays: Array) -> Array:
        wide = np.broadcast_arrays(*arrays) if len(arrays) > 1 else list(arrays)
        out = np.empty(wide[0].shape, dtype=object)
        for spot in np.ndindex(*out.shape):
            out[spot] = function(*(w[spot] for w in wide))
        return out

    return rule


SHAPE_RULES |= {name: _elementwise(function) for name, function in _ELEMENTWISE.items()}


@_rule("Identity")
def _identity(node: Node, x: Array) -> Array:
    return x


@_rule("Cast")
def _cast(node: Node, x: Array) -> Array | None:
    return x if node.attr("to") in (6, 7) else None


@_rule("Gather")
def _gather(node: Node, x: Array, index: Array) -> Array:
    return np.asarray(np.take(x, index.astype(np.int64), axis=resolve(node.attr("axis", 0), x.ndim)), dtype=object)


@_rule("Slice")
def _slice(
    node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array | None:
    if x.ndim != 1 or any(isinstance(v, DimExpr) for part in (starts, ends, steps) if part is not None for v in part):
        return None
    if any(part is not None and part.shape != (1,) for part in (starts, ends, axes, steps)):
        raise ShapeError(f"a slice of {len(starts)} axes of a value of one axis")
    if axes is not None:
        resolve(int(axes[0]), 1)
    return x[slice(int(starts[0]), int(ends[0]), int(steps[0]) if steps is not None else 1)]


@_rule("Concat")
def _concat(node: Node, *parts: Array) -> Array:
    return np.concatenate(parts, axis=node.attr("axis"))


def _axes(node: Node, axes: Array | None) -> tuple[int, ...] | None:
    """The axes of a node: an operand, or an attribute before opset 13; None if there are none."""
    found = node.attr("axes") if axes is None else axes.reshape(-1)
    return None if found is None else tuple(int(a) for a in found)


@_rule("Unsqueeze")
def _unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, _axes(node, axes) or ())


@_rule("Squeeze")
def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return np.asarray(np.squeeze(x, _axes(node, axes)), dtype=object)


@_rule("Reshape")
def _reshape(node: Node, x: Array, shape: Array) -> Array | None:
    if any(isinstance(d, DimExpr) for d in shape):
        return None
    return x.reshape([int(d) for d in shape])


def _reduces(node: Node) -> bool:
    """Return whether a reduction of a value of one axis reduces that axis."""
    return bool(node.axes(1, 1)) or not node.attr("noop_with_empty_axes", 0)


@_rule("ReduceProd")
def _product(node: Node, x: Array, axes: Array | None = None) -> Array | None:
    if x.ndim != 1:
        return None
    if not _reduces(node):
        return x
    total: Dim = 1
    for d in x:
        total = total * d
    out = np.empty((1,) if node.attr("keepdims", 1) else (), dtype=object)
    out[...] = total
    return out


@_rule("ReduceSum")
def _total(node: Node, x: Array, axes: Array | None = None) -> Array | None:
    if x.ndim != 1:
        return None
    if not _reduces(node):
        return x
    out = np.empty((1,) if node.attr("keepdims", 1) else (), dtype=object)
    out[...] = sum(x, start=0)
    return out


def shape_value(node: Node) -> Array | None:
    """Compute the node's value by shape arithmetic, if all operands are known and at least one is symbolic; None if it
    must be built as ordinary computation."""
    rule = SHAPE_RULES.get(node.op)
    if rule is None:
        return None
    arrays = [node.known(i) if node.has(i) else None for i in range(len(node.inputs))]
    if not any(a is not None and a.dtype == object for a in arrays):
        return None
    if any(a is None and node.has(i) for i, a in enumerate(arrays)):
        return None
    exact = [None if a is None else a if a.dtype == object else a.astype(object) for a in arrays]
    try:
        return rule(node, *exact)
    except _Undecided:
        return None


def shape_dtype(node: Node) -> str:
    """Return the ONNX dtype of a node's result whose value is one of shape arithmetic (`shape_value`)."""
    if node.op in _COMPARISONS:
        return "bool"
    if node.op == "Cast":
        return node.dtype("to")
    found = node.plain(1 if node.op == "Where" else 0)
    return found.dtype


__all__ = ["SHAPE_RULES", "bounds", "compare", "shape_dtype", "shape_value"]
