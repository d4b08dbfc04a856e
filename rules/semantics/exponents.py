"""Evaluates terms with exponentials exactly: values modulo a prime p, and modulo p - 1 where they are used as
exponents.

For g of order p - 1, the map x -> g**x takes residues modulo p - 1 to the nonzero residues modulo p and sums to
products; its inverse takes products to sums. This mirrors exp and log. So every value has up to two components, one
modulo p and one modulo p - 1, which are independent for a variable. Sums and products have both components. exp
computes the first from the second, log the second from the first, and quotients have only the first. A maximum returns
the operand that comes first in a random order, as in prime_field.py; other functions are uninterpreted (random).

In terms of y = g**x, the first component is a quotient of polynomials in the variables x and y, and the second
component is the logarithm of such a quotient, if integer coefficients in exponents are small. y is uniform over the
nonzero residues. By the Schwartz–Zippel lemma a difference is missed with probability at most degree / (p - 1);
collisions among compared values and among arguments of random functions are counted as in prime_field.py. Evaluation
modulo two moduli follows Mirage (https://arxiv.org/abs/2405.05751), which does not bound exponents in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, log2, prod
from typing import Any

import numpy as np

from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from .prime_field import (
    BITS,
    Array,
    Law,
    NotModular,
    _function,
    _mixed,
    extreme_sign,
    field_law,
    is_exact,
    is_function,
    residue,
)

P, G = 65537, 3  # a prime and a generator of its multiplicative group
TRIALS = 40


@dataclass(frozen=True)
class Pair:
    """A value modulo P (`base`) and modulo P - 1 (`exponent`); None for a component that does not exist."""

    base: Array | None
    exponent: Array | None


class Zero(Exception):
    """Raised on a division by zero or a logarithm of zero: the sample is then discarded."""


@cache
def tables() -> tuple[Array, Array]:
    """(powers of the generator modulo P by exponent, discrete logarithm of each nonzero residue), as arrays."""
    powers = np.ones(P - 1, np.int64)
    for i in range(1, P - 1):
        powers[i] = powers[i - 1] * G % P
    logs = np.zeros(P, np.int64)
    logs[powers] = np.arange(P - 1)
    return powers, logs


def pairs(order: Sequence[Tensor], leaves: Mapping[str, Pair], key: int) -> dict[int, Pair]:
    """Values modulo P and P - 1 of nodes without composite ops, by node id.

    `order`: the nodes, operands first. `leaves`: values of leaves by name. `key`: seed of uninterpreted functions.
    Raises NotModular for ops outside of this arithmetic.
    """
    found: dict[int, Pair] = {}
    for node in order:
        found[id(node)] = _node(node, [found[id(a)] for a in node.args], leaves, key)
        if found[id(node)].base is None and found[id(node)].exponent is None:
            raise NotModular
    return found


def _node(node: Tensor, args: list[Pair], leaves: Mapping[str, Pair], key: int) -> Pair:
    attrs, op = dict(node.attrs), node.op
    if op in ("input", "param"):
        return leaves[attrs["name"]]
    if not dtypes.is_float(node.dtype) or any(not dtypes.is_float(a.dtype) for a in node.args):
        raise NotModular
    if op == "full":
        value = attrs["value"]
        whole = np.full(attrs["shape"], int(value) % (P - 1), np.int64) if value == int(value) else None
        return Pair(np.full(attrs["shape"], residue(value, P), np.int64), whole)
    if op == "exp" and args[0].exponent is not None:
        return Pair(tables()[0][args[0].exponent], None)
    if op == "log" and args[0].base is not None:
        if not np.all(args[0].base):
            raise Zero
        return Pair(None, tables()[1][args[0].base])
    law = field_law(op)
    if op in ("div", "recip") and law is not None:
        parts = [a.base for a in args]
        if parts[-1] is not None and not np.all(parts[-1]):
            raise Zero
        return Pair(law(attrs, P, *parts) % P if all(p is not None for p in parts) else None, None)
    if is_function(op):
        (x,) = args
        seen = x.base if x.base is not None else x.exponent
        assert seen is not None
        return Pair(_function(op, seen, P, key), None)
    if extreme_sign(op):
        return _chosen(node, args, key)
    if law is not None:
        return Pair(*(_ring(law, attrs, [a.base if m == P else a.exponent for a in args], m) for m in (P, P - 1)))
    if is_exact(op) and node.entry.numpy is not None:
        both = zip(*((a.base, a.exponent) for a in args))
        law = node.entry.numpy
        return Pair(*(None if any(p is None for p in parts) else np.asarray(law(attrs, *parts)) for parts in both))
    raise NotModular


def _ring(law: Law, attrs: dict[str, Any], parts: Sequence[Array | None], modulus: int) -> Array | None:
    return None if any(p is None for p in parts) else np.asarray(law(attrs, modulus, *parts) % modulus)


def _chosen(node: Tensor, args: list[Pair], key: int) -> Pair:
    """A maximum or minimum: the operand that comes first in a random order; both components follow the same choice."""
    by = next((n for n in ("base", "exponent") if all(getattr(a, n) is not None for a in args)), None)
    if by is None:
        raise NotModular
    sign = extreme_sign(node.op)
    if node.entry.pointwise:
        x, y = np.broadcast_arrays(*(_mixed(getattr(a, by), key) for a in args))
        first = (x >= y) == (sign > 0)
        return Pair(
            *(
                None if a is None or b is None else np.where(first, a, b)
                for a, b in zip(*((v.base, v.exponent) for v in args))
            )
        )
    axes = tuple(sorted(node.attr("axes")))

    def flat(x: Array) -> Array:
        moved = np.moveaxis(x, axes, range(-len(axes), 0))
        return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)

    ranks = _mixed(flat(getattr(args[0], by)), key)
    if not ranks.shape[-1]:
        raise NotModular
    at = (np.argmax(ranks, -1) if sign > 0 else np.argmin(ranks, -1))[..., None]
    parts = (args[0].base, args[0].exponent)
    return Pair(
        *(None if p is None else np.take_along_axis(flat(p), at, -1).reshape(concrete(node.shape)) for p in parts)
    )


# ---------------------------------------------------------------- how likely an error is
def weight(order: Sequence[Tensor]) -> float:
    """Upper bound on P - 1 (P: the prime modulus of values) times the probability that one random evaluation of the
    nodes `order` (operands first) gives unequal terms equal values; infinity if there is no bound."""
    first: dict[int, float] = {}  # degree of the component modulo p in the variables x and y
    second: dict[int, float] = {}  # degree of the expression whose logarithm is the component modulo p - 1
    compared, largest = 0.0, 1.0
    rational = any(n.op in ("div", "recip", "exp") for n in order)  # denominators multiply
    for node in order:
        a, b = ([d[id(x)] for x in node.args] for d in (first, second))
        op, terms = node.op, _terms(node)
        if op == "exp":
            one, two = 2 * b[0], inf
        elif op == "log":
            one, two = inf, 2 * a[0]
        elif is_function(op) or extreme_sign(op):
            size = prod(concrete(node.args[0].shape))
            compared += size * len(node.args)
            largest = max(largest, *(min(x, y) for x, y in zip(a, b)))
            one, two = (max(1.0, *a), max(b)) if extreme_sign(op) else (1.0, inf)
        elif op in ("mul", "matmul", "conv"):
            whole = [abs(float(x.attr("value"))) if x.op == "full" else inf for x in node.args]
            two = min(whole[0] * b[1], whole[1] * b[0]) if op == "mul" and min(whole) < inf else inf
            one = sum(a)
        elif op in ("div", "recip"):
            one, two = 2 * sum(a), inf
        elif op == "full":
            one, two = 0.0, 0.0
        elif op in ("input", "param"):
            one, two = 1.0, 1.0
        else:
            one, two = sum(a) if rational else max(a, default=0.0), sum(b) * terms
        first[id(node)], second[id(node)] = one * terms if rational else one, two
    worst = max(min(first[id(n)], second[id(n)]) for n in order)
    return 2 * (worst + compared * compared / 2 * largest + 1)  # at least half of all samples divide by no zero


def _terms(node: Tensor) -> int:
    """Number of summands per element of a node's result."""
    shape = concrete(node.args[0].shape) if node.args else ()
    if node.op == "sum":
        return prod(shape[i] for i in node.attr("axes"))
    if node.op == "conv":
        return prod(concrete(node.args[1].shape)[1:])
    return shape[-1] if node.op == "matmul" else shape[node.attr("axis")] if node.op == "cumsum" else 1


def sure(
    order: Sequence[Tensor],
    sides: Sequence[tuple[Tensor, Tensor]],
    rng: np.random.Generator,
    bits: int = BITS,
    orders: int = 1,
) -> float:
    """Test whether the pairs of terms are equal by random evaluation; returns the confidence in bits: -log2 of the
    probability that it errs.

    0 if a side is outside of this arithmetic or empty, or if more than `TRIALS` evaluations would be needed; -1 if a
    difference was found. `bits`: confidence that is wanted. If a maximum occurs, at least `orders` evaluations are run,
    each with another random order.
    """
    if any(0 in n.shape for n in order):
        return 0.0
    inputs = [n for n in order if n.op in ("input", "param")]
    if any(not dtypes.is_float(n.dtype) for n in inputs):
        return 0.0
    try:
        heavy = weight(order)
        each = log2(P - 1) - log2(heavy) if heavy < inf else 0.0
        if each <= 0 or ceil((bits + 1) / each) > TRIALS:
            return 0.0
        tried, needed = 0, ceil((bits + 1) / each)
        needed = max(needed, orders if any(extreme_sign(n.op) for n in order) else 1)
        for _ in range(4 * (TRIALS + orders)):
            if tried == needed:
                return each * tried
            leaves = {n.attr("name"): _leaf(n, rng) for n in inputs}
            try:
                got = pairs(order, leaves, int(rng.integers(1 << 62)))
            except Zero:
                continue
            if any(_comparable(got[id(a)], got[id(b)]) and not _equal(got[id(a)], got[id(b)]) for a, b in sides):
                return -1.0
            if not all(_comparable(got[id(a)], got[id(b)]) for a, b in sides):
                return 0.0
            tried += 1
    except NotModular:
        return 0.0
    return 0.0


def _leaf(node: Tensor, rng: np.random.Generator) -> Pair:
    shape = concrete(node.shape)
    return Pair(np.asarray(rng.integers(0, P, shape)), np.asarray(rng.integers(0, P - 1, shape)))


def _both(a: Pair, b: Pair) -> list[tuple[Array, Array]]:
    return [(x, y) for x, y in ((a.base, b.base), (a.exponent, b.exponent)) if x is not None and y is not None]


def _comparable(a: Pair, b: Pair) -> bool:
    """Whether some component exists in both values."""
    return bool(_both(a, b))


def _equal(a: Pair, b: Pair) -> bool:
    """Whether all components that exist in both values are equal."""
    return all(np.array_equal(x, y) for x, y in _both(a, b))


__all__ = ["Pair", "pairs", "sure", "weight"]
