"""Finds values of a graph's inputs for which operands of rounding and comparisons are ties: halves for `round`, whole
numbers for `floor` and casts, multiples of a divisor, constants that values are compared with.

Followed are affine functions of one input with constant factors and summands, also through views, casts between floats,
clipping and absolute values: for `round(2 * x)` these are multiples of a quarter. Two inputs that are compared, and
elements of one input, tie where they are equal, or differ by a constant (`alike_inputs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes

WHOLE = tuple(map(float, range(-3, 4)))
HALVES = tuple(k + 0.5 for k in range(-4, 4))
NEAR = 8.0  # largest distance of two inputs that tie
MOST = 8  # ties of an input with others
SHORT = 2.0**7  # significands of ties are multiples of one part in this: all float dtypes hold them

Array = np.ndarray[Any, Any]
MOST_BITS = 256  # of an exact numerator or denominator: a factor of float64 adds 53; longer chains are not followed
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


class Alike(NamedTuple):
    """Values of an input that tie: slope * other + offset, elementwise, for the input `other` (or other elements of the
    input itself)."""

    other: str
    slope: float
    offset: float


def alike_inputs(nodes: Sequence[Tensor], kinds: Sequence[str], largest: int) -> Mapping[str, set[Alike]]:
    """Name of each float input -> its values that make operands of a comparison equal, or the difference of two inputs
    a tie of rounding or of a comparison with a constant. `nodes` and `kinds` as for `tied_inputs`. Inputs of more than
    `largest` elements take no part."""
    known: dict[int, Affine] = {}
    apart: dict[int, tuple[Affine, Affine]] = {}  # differences of two affine values
    found: dict[str, set[Alike]] = {}
    ranks = {str(n.attr("name")): n.rank for n in nodes if n.op in kinds}

    def tie(one: Affine, two: Affine, difference: float) -> None:
        turned = ranks[one[0]] > ranks[two[0]]  # the input with more elements gets values of the other one
        _pair(found, *((two, one, -difference) if turned else (one, two, difference)))

    for node in nodes:
        if node.op in kinds and dtypes.is_float(node.dtype):
            if math.prod(d for d in node.shape if isinstance(d, int)) <= largest:
                known[id(node)] = (str(node.attr("name")), Fraction(1), Fraction(0))
            continue
        constants = [_constant_of(a) for a in node.args]
        for at, argument in enumerate(node.args):
            constant = next((c for i, c in enumerate(constants) if i != at), 0.0)
            if constant is None or not math.isfinite(constant):
                continue
            if (affine := known.get(id(argument))) is not None and (made := _through(node, at, constant, affine)):
                known[id(node)] = made
            if (pair := apart.get(id(argument))) is not None:
                for target in _targets(node, at, constant):
                    tie(*pair, target)
                if len(node.args) == 1 and (node.entry.moves or node.op == "cast"):
                    apart[id(node)] = pair
        one, two = ([known.get(id(a)) for a in node.args] * 2)[:2] if 1 <= len(node.args) <= 2 else (None, None)
        if one is None or two is None:
            continue
        if node.op in ("lt", "le", "eq", "argmax", "argmin", "argsort"):
            tie(one, two, 0.0)
        if node.op in ("sub", "add") and one[0] != two[0]:
            sign = 1 if node.op == "sub" else -1
            apart[id(node)] = one, (two[0], sign * two[1], sign * two[2])
    return found


def _pair(found: dict[str, set[Alike]], one: Affine, two: Affine, difference: float) -> None:
    """Add the values of the input of `two` at which `one` exceeds it by `difference`."""
    (other, a, b), (name, c, d) = one, two
    slope, offset = _float(a / c), _float((b - d - Fraction(difference)) / c)
    if (
        abs(math.frexp(slope)[0]) == 0.5
        and abs(offset) <= NEAR
        and _is_short(offset)
        and len(found.get(name, ())) < MOST
    ):
        found.setdefault(name, set()).add(Alike(other, slope, offset))


def made_alike(
    values: Mapping[str, Array],
    name: str,
    pairs: Sequence[Alike],
    share: float,
    rng: np.random.Generator,
    positive: bool,
) -> Array:
    """The values of input `name` with a share of elements that tie with those of other inputs, or of its own; only with
    positive ones, if `positive`."""
    given = x = values[name]
    for alike in pairs:
        if alike.other == name:
            other = np.roll(x, 1, int(rng.integers(x.ndim))) if x.ndim else x
        elif (found := _of_shape(values[alike.other], x.shape, rng)) is None:
            continue
        else:
            other = found
        with np.errstate(all="ignore"):
            tie = (alike.slope * other.astype(np.float64) + alike.offset).astype(x.dtype)
        x = np.where(rng.random(x.shape) < share / len(pairs), tie, x)
    return np.where(x > 0, x, given) if positive else x


def _of_shape(x: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array | None:
    """Elements of x where it is broadcast with a value of the given shape: at random places along axes that only x has;
    None if the shapes do not broadcast."""
    rank = max(x.ndim, len(shape))
    x = x.reshape((1,) * (rank - x.ndim) + x.shape)
    wanted = (1,) * (rank - len(shape)) + shape
    for axis, (mine, size) in enumerate(zip(x.shape, wanted)):
        if size == 1 and mine > 1:
            x = np.take(x, [int(rng.integers(mine))], axis)
        elif mine not in (1, size):
            return None
    return np.broadcast_to(x, wanted).reshape(shape)


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
    return (name, *made) if made[0] and all(map(_is_small, made)) else None


def _is_small(x: Fraction) -> bool:
    return max(x.numerator.bit_length(), x.denominator.bit_length()) <= MOST_BITS


def _float(exact: Fraction) -> float:
    """The nearest float; infinity beyond all."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def _is_short(x: float) -> bool:
    return math.isfinite(x) and bool(float(np.frexp(x)[0] * SHORT).is_integer())


__all__ = ["Alike", "alike_inputs", "behind_views", "made_alike", "tied_inputs"]
