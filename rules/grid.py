"""Elementwise rules that are linear piece by piece, decided by finitely many values.

Sums, signs, maxima and minima of a few variables are linear on each cell of an arrangement of planes through the origin, on which
two operands of a maximum are equal. Two such terms are equal everywhere if they are on the edges of all cells: each point of a cell
is a sum of points on its edges. An edge lies on n - 1 planes, whose coefficients are no larger than the number h of times that a
variable occurs; by Cramer's rule a point with whole coordinates of at most (n - 1)! h^(n - 1) lies on it. So all points of that grid
decide, without rounding, and no chance of an error is left.
"""

from __future__ import annotations

from collections import Counter
from math import factorial

import numpy as np

from ..egraph import api
from ..egraph.graph import Tensor, make
from ..egraph.interpret import evaluate
from ..egraph.pattern import Call, Literal, Term, Var, subterms, variables
from ..egraph.rule import Rule

LINEAR = ("add", "sub", "neg", "maximum", "minimum", "abs", "relu")
LARGEST = 1 << 22  # points of a grid


def decides(rule: Rule) -> bool:
    """Whether a rule is linear piece by piece and its sides are equal at all points that decide."""
    terms = [t for side in (*rule.lefts, *rule.rights) for t in subterms(side)]
    if any(
        t.op not in LINEAR or t.attrs if isinstance(t, Call) else isinstance(t, Literal) and t.value != 0 for t in terms
    ):
        return False
    names = list(dict.fromkeys(v for side in rule.lefts for v in variables(side)))
    most = max(max(_occurrences(side).values(), default=1) for side in (*rule.lefts, *rule.rights))
    bound = factorial(max(0, len(names) - 1)) * most ** (len(names) - 1) if names else 0
    if not names or (2 * bound + 1) ** len(names) > LARGEST:
        return False
    axis = np.arange(-bound, bound + 1, dtype=np.float64)
    data = dict(zip(names, (x.reshape(-1) for x in np.meshgrid(*[axis] * len(names), indexing="ij"))))
    shape = (len(axis) ** len(names),)
    sides = [_tensor(side, shape) for pair in zip(rule.lefts, rule.rights) for side in pair]
    values = evaluate(sides, data, float64=True)
    return all(np.array_equal(a, b) for a, b in zip(values[::2], values[1::2]))


def _occurrences(side: Term) -> Counter[str]:
    """How often each variable occurs, where it is written."""
    if isinstance(side, Var):
        return Counter([side.name])
    return sum(map(_occurrences, side.args), Counter[str]()) if isinstance(side, Call) else Counter()


def _tensor(term: Term, shape: tuple[int, ...]) -> Tensor:
    if isinstance(term, Var):
        return api.input(term.name, shape, "float64")
    if isinstance(term, Literal):
        return api.full(shape, term.value, "float64")
    return make(term.op, [_tensor(a, shape) for a in term.args])


__all__ = ["decides"]
