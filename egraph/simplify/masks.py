"""Rewrites attention masks, recognized by their values, to a canonical form.

Models write causal masks in many ways: `tril` of ones, comparisons of positions, differences of aranges. A bool value
that depends on positions alone is evaluated here. If it hides (or shows) the elements ahead of a diagonal, outside a
band (sliding window), or in the last columns, it is replaced by one canonical formula that rules and kernels recognize.

Models also hide scores by a large negative number instead of -inf (lowest value of a dtype, -1e9), selected by `where`
or added. If every row of such a mask sees some element, softmax gives hidden scores the weight 0 either way:
exp(-30000) underflows to 0 in every dtype, and no model whose values fit into 16 bits has scores that far apart within
one row. The number is then replaced by -inf, so that attention can skip hidden elements. If some row sees nothing, or
that depends on an input, the number stays: softmax then spreads the row evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..builders import builders as t
from ..evaluate.interpret import evaluate
from ..ir.graph import Graph
from ..ir.tensor import LEAVES, Tensor, make, rebuild, topological
from ..types import dtypes
from ..types.dims import concrete

MAX_MASK_ELEMENTS = 1 << 25  # largest number of elements of a mask that is evaluated
LOW = -3e4  # a number at or below this, added to a score or replacing it, hides the score

Matrix = np.ndarray[Any, np.dtype[Any]]


def canonical_masks(graph: Graph, *, steady: bool = False) -> Graph:
    """The graph with its attention masks in canonical form; hidden scores are -inf instead of large negative numbers.

    The canonical conditions hide the elements with `off < column - row` (causal), for a band also those with `column -
    row <= back`, or those with `size <= column`. Conditions are inverted where needed, so that true means hidden.

    `steady`: only masks whose formula contains no number larger than 1, so that a mask that is causal at one size is
    causal at every size. (A window wider than the sequence hides nothing, but it does at a longer sequence.)
    """
    masks, roots = _Masks(steady), graph.roots
    for change in (masks.spelled, masks.hiding):
        masks.formulas.clear()
        roots = tuple(rebuild(roots, change))
    return graph if all(a is b for a, b in zip(roots, graph.roots)) else graph.with_roots(roots)


def _bounded(mask: Tensor) -> bool:
    """Whether a formula contains a constant array or a number larger than 1, which may differ at another size."""
    nodes = topological([mask])
    return any(n.op == "constant" or (n.op == "full" and not abs(n.attr("value")) <= 1) for n in nodes)


def _values(formula: Tensor) -> Matrix | None:
    """Values of a mask formula as a matrix, if equal for all batches and heads.

    None if not, or if there are too many elements.
    """
    while formula.op == "broadcast_to" and formula.args[0].shape[-2:] == formula.shape[-2:]:
        formula = formula.args[0]
    shape = concrete(formula.shape)
    if len(shape) < 2 or min(shape[-2:]) < 2 or not 0 < prod(shape) <= MAX_MASK_ELEMENTS:
        return None
    first, *others = evaluate([formula], {})[0].reshape(-1, *shape[-2:])
    return first if all(np.array_equal(first, other) for other in others) else None


def _spelling(hidden: Matrix) -> Tensor | None:
    """Canonical formula of the mask that hides these elements; None if no known formula fits, or if some row sees
    nothing.
    """
    rows, columns = hidden.shape
    count, first = np.count_nonzero(hidden, axis=1), hidden.argmin(axis=1)
    last = columns - 1 - hidden[:, ::-1].argmin(axis=1)
    if (count == columns).any() or not count.any() or (count != first + columns - 1 - last).any():
        return None  # some row sees nothing, every row sees everything, or some row's visible part is no interval
    if not first.any() and (last == last[0]).all():
        return t.le(t.full((1, 1), int(last[0]) + 1, "int64"), t.iota((1, columns), 1))
    off, back = _edge(last, last < columns - 1), _edge(first, first > 0)
    row, parts = np.arange(rows), list[Tensor]()
    ahead = t.iota((rows, columns), 1) - t.iota((rows, columns), 0)
    if off is not None:
        parts.append(t.lt(t.full((1, 1), off, ahead.dtype), ahead))
    if back is not None:
        parts.append(t.le(ahead, t.full((1, 1), back - 1, ahead.dtype)))
    ends = columns - 1 if off is None else np.minimum(row + off, columns - 1)
    begins = 0 if back is None else np.maximum(row + back, 0)
    if not parts or (last != ends).any() or (first != begins).any():
        return None
    return t.logical_or(*parts) if len(parts) == 2 else parts[0]


def _edge(place: Matrix, inner: Matrix) -> int | None:
    """Column minus row of a mask's edge, at the first row whose edge is inside the matrix; None without such a row.

    `place`: column of the edge in each row. `inner`: whether the edge is inside the matrix.
    """
    row = int(inner.argmax())
    return int(place[row]) - row if inner[row] else None


def _low(x: Tensor) -> bool:
    """Whether a value is a finite number that hides scores."""
    return x.op == "full" and dtypes.is_float(x.dtype) and -math.inf < x.attr("value") <= LOW


@dataclass
class _Masks:
    """The two rewriting passes over a graph.

    `formulas`: nodes that depend on positions alone. `known`: canonical formulas in which every row sees some element.
    """

    steady: bool
    formulas: set[Tensor] = field(default_factory=set)
    known: set[Tensor] = field(default_factory=set)
    spellings: dict[Tensor, tuple[Tensor, bool] | None] = field(default_factory=dict)

    def _formula(self, node: Tensor) -> bool:
        """Whether a node depends on positions alone; the operands must have been visited before."""
        found = node.op == "constant" or (node.op not in LEAVES and all(a in self.formulas for a in node.args))
        if found:
            self.formulas.add(node)
        return found

    # ------------------------------------------------------------ conditions
    def spelled(self, node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        """First pass: the node over masks in canonical form."""
        if self._formula(node) and node.op != "where":
            return None
        found = [self._spelled(a) if a in self.formulas and a.dtype == "bool" else None for a in node.args]
        if all(f is None for f in found):
            return None
        if node.op == "where" and found[0] is not None:
            hidden, seen = found[0]
            new = make("where", (hidden, *(reversed(args[1:]) if seen else args[1:])), {})
            return new if new.type == node.type else None
        operands = [a if f is None else t.logical_not(f[0]) if f[1] else f[0] for f, a in zip(found, args)]
        return make(node.op, operands, dict(node.attrs), data=node.data)

    def _spelled(self, mask: Tensor) -> tuple[Tensor, bool] | None:
        """Returns (canonical formula of the hidden elements, whether the mask is true for visible elements).

        None if not recognized.
        """
        if mask not in self.spellings:
            self.spellings[mask] = self._new_spelling(mask)
        return self.spellings[mask]

    def _new_spelling(self, mask: Tensor) -> tuple[Tensor, bool] | None:
        if self.steady and (_bounded(mask) or mask.rank < 2 or mask.shape[-1] != mask.shape[-2]):
            return None
        values = _values(mask)
        if values is None:
            return None
        for seen in (False, True):
            found = _spelling(~values if seen else values)
            if found is None or (self.steady and (found.op != "lt" or found.args[0].attr("value") < 0)):
                continue
            found = t.reshape(found, (*(1,) * (mask.rank - 2), *found.shape))
            self.known.add(found)
            return (found if mask.shape == found.shape else t.broadcast_to(found, mask.shape)), seen
        return None

    # ------------------------------------------------------------ numbers that hide
    def hiding(self, node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        """Second pass: a softmax or attention whose hidden scores are -inf."""
        if self._formula(node):
            return None
        if node.op == "softmax" and node.attr("axis") == node.rank - 1:
            found = self._hidden(args[0])
            return None if found is None else make("softmax", (found,), dict(node.attrs))
        if node.op == "masked_attention" and args[3] in self.formulas:
            found = self._summand(args[3])
            return None if found is None else make(node.op, (*args[:3], found), dict(node.attrs))
        return None

    def _hidden(self, x: Tensor) -> Tensor | None:
        """Scores with -inf in place of hiding numbers, if every row sees some element; otherwise None."""
        if x in self.formulas:
            return None
        if x.op == "cast":
            inner = self._hidden(x.args[0])
            return None if inner is None else make("cast", (inner,), dict(x.attrs))
        if x.op == "sub":  # softmax is invariant to a constant along its axis
            return self._hidden(x.args[0]) if x.args[1].shape[-1] == 1 else None
        if x.op == "concat" and x.attr("axis") == x.rank - 1:  # attention sinks
            parts = [self._hidden(a) for a in x.args]
            found = [a if part is None else part for a, part in zip(x.args, parts)]
            return None if all(a is b for a, b in zip(found, x.args)) else make("concat", found, dict(x.attrs))
        if x.op == "add":
            for a, b in (x.args, x.args[::-1]):
                part = self._summand(a) if a in self.formulas else self._hidden(a)
                if part is not None and (made := make("add", (part, b), {})).type == x.type:
                    return made
        return self._chosen(x) if x.op == "where" and x.args[0] in self.formulas else None

    def _chosen(self, x: Tensor) -> Tensor | None:
        """`where` with -inf in place of the hiding number, if every row sees some element."""
        condition, *sides = x.args
        low = [_low(side) for side in sides]
        if low[0] == low[1]:
            return None
        if not (low[0] and self._told(condition)):
            values = None if self.steady else _values(condition)
            if values is None or (values if low[0] else ~values).all(axis=1).any():
                return None
        lowest = t.full((1,) * x.rank, -math.inf, x.dtype)
        return make("where", (condition, *(lowest if gone else side for gone, side in zip(low, sides))), {})

    def _told(self, condition: Tensor) -> bool:
        """Whether a condition is a canonical formula of hidden elements."""
        return condition in self.known or (condition.op == "broadcast_to" and condition.args[0] in self.known)

    def _summand(self, x: Tensor) -> Tensor | None:
        """An additive mask as -inf for hidden scores, and as a canonical `where` if it is 0 elsewhere.

        None if not recognized.
        """
        if x.op in ("cast", "broadcast_to"):
            inner = self._summand(x.args[0])
            return None if inner is None else make(x.op, (inner,), dict(x.attrs))
        if x.op == "where" and any(map(_low, x.args[1:])):
            return self._chosen(x)
        values = None if self.steady or x.op == "full" else _values(x)
        if values is None or not np.array_equal(values != 0, values <= LOW):
            return None
        found = _spelling(values <= LOW)
        if found is None:
            return None
        one = (1,) * x.rank
        found = t.where(
            t.reshape(found, (*one[2:], *found.shape)), t.full(one, -math.inf, x.dtype), t.full(one, 0.0, x.dtype)
        )
        return found if found.shape == x.shape else t.broadcast_to(found, x.shape)
