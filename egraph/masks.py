"""Causal masks by what they say, however they are written.

Models write the mask of causal attention in many ways: `tril` of ones, comparisons of positions, differences of aranges. A bool
value that depends on positions alone is evaluated here, and where it hides (or shows) what lies ahead of a diagonal it is
replaced by one spelling, which rules and kernels know.
"""

from __future__ import annotations

from math import prod

import numpy as np

from . import api as t
from .dims import concrete
from .graph import LEAVES, Graph, Tensor, make, rebuild, topological
from .interpret import evaluate

LARGEST = 1 << 25  # elements of a mask that is evaluated


def canonical_masks(graph: Graph, *, steady: bool = False) -> Graph:
    """The graph with its causal masks in one spelling: `off < column - row` is hidden, `column - row <= off` is seen.

    `steady`: only masks whose formula has no number larger than 1, so that they are causal at every size if they are at one:
    a window wider than the sequence hides nothing, but does at a longer one.
    """
    formulas: set[Tensor] = set()

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op == "constant" or (node.op not in LEAVES and all(a in formulas for a in node.args)):
            formulas.add(node)
            return None
        masks = [a in formulas and a.dtype == "bool" and not (steady and _bounded(a)) for a in node.args]
        found = [_canonical(a) if mask else None for a, mask in zip(node.args, masks)]
        if steady:
            found = [f if f is not None and a.shape[-1] == a.shape[-2] else None for f, a in zip(found, node.args)]
        if all(f is None for f in found):
            return None
        return make(node.op, [a if f is None else f for f, a in zip(found, args)], dict(node.attrs), data=node.data)

    roots = rebuild(graph.roots, change)
    return graph if all(a is b for a, b in zip(roots, graph.roots)) else graph.with_roots(roots)


def _bounded(mask: Tensor) -> bool:
    """Whether a formula has a table or a number beyond 1, at which it may change its mind."""
    nodes = topological([mask])
    return any(n.op == "constant" or (n.op == "full" and not abs(n.attr("value")) <= 1) for n in nodes)


def _canonical(mask: Tensor) -> Tensor | None:
    """The one spelling of a causal mask; None if it is none."""
    shape = concrete(mask.shape)
    if len(shape) < 2 or min(shape[-2:]) < 2 or prod(shape[:-2]) != 1 or prod(shape) > LARGEST:
        return None
    rows, columns = shape[-2:]
    values = evaluate([mask], {})[0].reshape(rows, columns)
    seen = not bool(values[-1, 0] if values[-1, 0] == values[0, 0] else values[0, 0])  # whether True hides
    hidden = values if seen else ~values
    off = int(np.count_nonzero(~hidden[0])) - 1
    if (
        hidden.all()
        or not hidden.any()
        or not np.array_equal(hidden, np.arange(columns) - np.arange(rows)[:, None] > off)
    ):
        return None
    ahead = t.iota((rows, columns), 1) - t.iota((rows, columns), 0)
    found = t.lt(t.full((1, 1), off, ahead.dtype), ahead)
    return t.reshape(found if seen else t.logical_not(found), shape)
