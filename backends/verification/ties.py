"""Finds values of a graph's inputs for which operands of rounding and comparisons are ties: halves for `round`, whole
numbers for `floor` and casts, multiples of a divisor, constants that values are compared with.

Followed are affine functions of one input with constant factors and summands, also through views, casts between floats,
clipping and absolute values: for `round(2 * x)` these are multiples of a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes

WHOLE = tuple(map(float, range(-3, 4)))
HALVES = tuple(k + 0.5 for k in range(-4, 4))
SHORT = 2.0**7  # significands of ties are multiples of one part in this: all float dtypes hold them

Affine = tuple[str, Fraction, Fraction]  # (name of an input, a, b): the value is a * input + b


def tied_inputs(nodes: Sequence[Tensor], kinds: Sequence[str], largest: float) -> Mapping[str, set[float]]:
    """Name of each float input -> values of at most `largest` at which an operand below is a tie.

    `nodes`: a graph's atomic nodes, operands first. `kinds`: ops of the leaves that count as inputs.
    """
    known: dict[int, Affine] = {}
    found: dict[str, set[float]] = {}
    for node in nodes:
        if node.op in kinds and dtypes.is_float(node.dtype):
            known[id(node)] = (str(node.attr("name")), Fraction(1), Fraction(0))
            found[str(node.attr("name"))] = set()
            continue
        for at, other in ((0, 1), (1, 0)) if len(node.args) == 2 else ((0, 0),) if node.args else ():
            if (affine := known.get(id(node.args[at]))) is None:
                continue
            constant = _constant_of(node.args[other]) if len(node.args) == 2 else 0.0
            if constant is None:
                continue
            name, a, b = affine
            exact = (_float((Fraction(t) - b) / a) for t in _targets(node, at, constant) if math.isfinite(t))
            found[name] |= {x for x in exact if abs(x) <= largest and _is_short(x)}
            if (made := _through(node, at, constant, affine)) is not None:
                known[id(node)] = made
    return found


def _constant_of(node: Tensor) -> float | None:
    """The number that a value consists of, through views and casts; None if it is no constant."""
    node = behind_views(node)
    return float(node.attr("value")) if node.op == "full" else None


def behind_views(node: Tensor) -> Tensor:
    """The value whose elements a chain of views and casts has."""
    while (node.entry.moves or node.op == "cast") and len(node.args) == 1:
        node = node.args[0]
    return node


def _targets(node: Tensor, at: int, constant: float) -> Iterable[float]:
    """Values of operand `at` of a node at which its result jumps."""
    if node.op == "round":
        return HALVES
    if node.op in ("floor", "ceil", "sign") or (node.op == "cast" and not dtypes.is_float(node.dtype)):
        return WHOLE
    if node.op in ("floordiv", "mod") and at == 0:
        return tuple(k * constant for k in WHOLE)
    return (constant,) if node.op in ("lt", "le", "eq") else ()


def _through(node: Tensor, at: int, c: float, affine: Affine) -> Affine | None:
    """A node's value as a function of an input, where operand `at` is `affine` and the other one, if any, the constant
    `c`; None if it is not affine."""
    name, a, b = affine
    if not dtypes.is_float(node.dtype):
        return None
    if len(node.args) == 1:
        if node.op == "neg":
            return name, -a, -b
        return affine if node.entry.moves or node.op in ("cast", "abs") else None
    if node.op in ("maximum", "minimum"):
        return affine
    if not math.isfinite(c):
        return None
    by, zero = Fraction(c), Fraction(0)
    made = {
        "add": (a, b + by), "sub": (a, b - by) if at == 0 else (-a, by - b), "mul": (a * by, b * by),
        "div": (a / by, b / by) if at == 0 and by else (zero, zero),
    }.get(node.op, (zero, zero))  # fmt: skip
    return (name, *made) if made[0] else None


def _float(exact: Fraction) -> float:
    """The nearest float; infinity beyond all."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def _is_short(x: float) -> bool:
    return math.isfinite(x) and bool(float(np.frexp(x)[0] * SHORT).is_integer())


__all__ = ["behind_views", "tied_inputs"]
