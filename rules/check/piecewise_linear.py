"""Decides piecewise linear elementwise rules by evaluation on a finite grid of integer points.

Sums, negations, maxima and minima of a few variables are linear on each cell of an arrangement of hyperplanes through
the origin, on which two operands of a maximum are equal. Two such terms are equal everywhere if they agree on the edges
of all cells, because each point of a cell is a sum of points on its edges. An edge lies on n - 1 hyperplanes, whose
coefficients are bounded by the number h of occurrences of a variable; by Cramer's rule it contains an integer point
with coordinates of at most (n - 1)! h^(n - 1). So evaluation at all points of that grid decides the rule, without
rounding and without an error probability.

The same holds for the elements of a small instance of a rule with maxima over axes or windows. If a rule has only
maxima, minima and layout ops, zeros and ones suffice: an equation of lattice terms that holds in the two-element chain
holds in all chains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import factorial, prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var, subterms, variables
from ...egraph.patterns.rule import Rule
from ...egraph.types.dims import concrete

LINEAR = ("add", "sub", "neg", "maximum", "minimum", "abs", "relu")
MAX_GRID_POINTS = 1 << 22  # grid points
Array = np.ndarray[Any, Any]


def decides(rule: Rule) -> bool:
    """Whether a rule is piecewise linear and its sides agree on the whole grid (then the rule is proved)."""
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    if any(
        t.op not in LINEAR or t.attrs if isinstance(t, PatternCall) else isinstance(t, Literal) and t.value != 0
        for t in terms
    ):
        return False
    names = list(dict.fromkeys(v for side in rule.lefts for v in variables(side)))
    most = max(max(_occurrences(side).values(), default=1) for side in (*rule.lefts, *rule.rights))
    bound = factorial(max(0, len(names) - 1)) * most ** (len(names) - 1) if names else 0
    if not names or (2 * bound + 1) ** len(names) > MAX_GRID_POINTS:
        return False
    axis = np.arange(-bound, bound + 1, dtype=np.float64)
    data = dict(zip(names, (x.reshape(-1) for x in np.meshgrid(*[axis] * len(names), indexing="ij"))))
    shape = (len(axis) ** len(names),)
    sides = [_tensor(side, shape) for pair in zip(rule.lefts, rule.rights) for side in pair]
    values = evaluate(sides, data, float64=True)
    return all(np.array_equal(a, b) for a, b in zip(values[::2], values[1::2]))


def _occurrences(side: Term) -> Counter[str]:
    """Number of occurrences of each variable in a term."""
    if isinstance(side, Var):
        return Counter([side.name])
    return sum(map(_occurrences, side.args), Counter[str]()) if isinstance(side, PatternCall) else Counter()


def _tensor(term: Term, shape: tuple[int, ...]) -> Tensor:
    if isinstance(term, Var):
        return api.input(term.name, shape, "float64")
    if isinstance(term, Literal):
        return api.full(shape, term.value, "float64")
    return make(term.op, [_tensor(a, shape) for a in term.args])


# ---------------------------------------------------------------- instances with several elements
REDUCING = ("max", "min")
MOVING = tuple(op.name for op in OPS.values() if op.moves and op.name != "pad")
POINTS = 1 << 13  # grid points of an instance, one evaluation each


def decides_at(order: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether both sides of an instance are proved equal as piecewise linear functions, on the whole grid.

    `order`: its nodes, operands first. `pairs`: (left, right) sides. At least one maximum must reduce over several
    elements.
    """
    inputs = [n for n in order if n.op == "input"]
    ops = {n.op for n in order} - {"input"}
    known = {*LINEAR, *REDUCING, *MOVING, "pad", "full"}
    if ops - known or any(n.dtype not in ("float32", "float64") or 0 in n.shape for n in order):
        return False
    if any(n.attr("value") not in (0.0, -np.inf) for n in order if n.op in ("full", "pad")):
        return False
    if not any(n.op in REDUCING and n.args[0].shape != n.shape for n in order):
        return False
    sizes = [prod(concrete(n.shape)) for n in inputs]
    total = sum(sizes)
    lattice = not ops - {"maximum", "minimum", *REDUCING, *MOVING, "pad"} and total <= POINTS.bit_length() - 1
    most = 1 if lattice else max(_largest_count(order, pairs, i, inputs) for i in range(total)) if total < 8 else POINTS
    bound = factorial(total - 1) * most ** (total - 1) if total < 8 else POINTS
    values = range(2) if lattice else range(-bound, bound + 1)
    if len(values) ** total > POINTS:
        return False
    sides = [side for pair in pairs for side in pair]
    for point in product(values, repeat=total):
        got = evaluate(sides, _data(inputs, np.array(point, np.float64)), float64=True)
        if not all(np.array_equal(a, b) for a, b in zip(got[::2], got[1::2])):
            return False
    return True


def _data(inputs: Sequence[Tensor], point: Array) -> dict[str, Array]:
    """The coordinates of a grid point, cut into arrays for the inputs."""
    cuts = np.cumsum([prod(concrete(n.shape)) for n in inputs])[:-1]
    return {n.attr("name"): part.reshape(concrete(n.shape)) for n, part in zip(inputs, np.split(point, cuts))}


def _largest_count(
    order: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]], element: int, inputs: Sequence[Tensor]
) -> int:
    """Largest number of times that one input element occurs in an element of a side when written out."""
    point = np.zeros(sum(prod(concrete(n.shape)) for n in inputs))
    point[element] = 1
    at: dict[int, Array] = {id(n): x for n, x in zip(inputs, _data(inputs, point).values())}
    for node in order:
        args = [at[id(a)] for a in node.args]
        if node.op in REDUCING:
            at[id(node)] = np.sum(args[0], axis=node.attr("axes"), keepdims=True).reshape(concrete(node.shape))
        elif node.op in ("neg", "abs", "relu"):
            at[id(node)] = args[0] * (2 if node.op == "abs" else 1)
        elif node.op == "full":
            at[id(node)] = np.zeros(concrete(node.shape))
        elif node.op == "pad":
            at[id(node)] = np.asarray(node.entry.numpy({**dict(node.attrs), "value": 0.0}, *args))  # type: ignore[misc]
        elif node.op in MOVING:
            at[id(node)] = np.asarray(node.entry.numpy(dict(node.attrs), *args))  # type: ignore[misc]
        elif node.op != "input":
            at[id(node)] = np.add(*args)
    return int(max(at[id(side)].max() for pair in pairs for side in pair))


__all__ = ["decides", "decides_at"]
