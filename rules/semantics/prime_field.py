"""Evaluates terms exactly modulo a prime: ring and field ops are computed, other functions are uninterpreted.

There is no rounding, so two sides with different results are different, except where they differ only in uninterpreted
functions. Two sides that agree on random residues are equal as polynomials over their elements, except with the
probability that a polynomial of degree d vanishes at a random point of Z_p, which is at most d / p (Schwartz–Zippel
lemma; the finite-field test of Mirage, https://arxiv.org/abs/2405.05751). Elementwise functions of one operand are
random functions (a keyed hash of the residue). A maximum is taken in a random total order of the residues with -inf
below every residue, which satisfies the laws of a lattice. Two different arguments may collide; the error bound counts
that too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, log2, prod
from typing import Any

import numpy as np

from ...egraph.ir.tensor import Tensor, make, rebuild
from ...egraph.ops import atomic_numpy as atomic
from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete

Array = np.ndarray[Any, Any]
PRIMES = (67108859, 67108837)  # sums of 2**11 products of two residues stay below 2**63
BELOW = -1  # -inf: the neutral element of a maximum, invalid elsewhere
BITS = 60  # a proof's random evaluations err with a probability below 2**-BITS
TRIALS = 24
INDICES = 8  # exclusive upper bound of random index values


class NotModular(Exception):
    """Raised for ops and constants outside of exact arithmetic, and for a division by zero."""


def residue(value: Any, p: int) -> int:
    """The constant `value` modulo p; a float that equals 1.0 / n for an integer n stands for the exact fraction. Raises
    NotModular for other fractions and infinities."""
    try:
        exact = Fraction(value)
    except (ValueError, OverflowError) as error:
        raise NotModular from error
    if exact and exact.denominator > 1:
        n = round(1 / exact)
        if n and 1.0 / n == value:
            exact = Fraction(1, n)
    if exact.denominator % p == 0:
        raise NotModular
    return int(exact.numerator * pow(exact.denominator, -1, p)) % p


def _inverse(x: Array, p: int) -> Array:
    if not np.all(x % p):
        raise NotModular
    found, power, base = np.ones_like(x), p - 2, x % p
    while power:
        found = found * base % p if power & 1 else found
        base, power = base * base % p, power >> 1
    return found


def _constant(x: Array, p: int) -> Array:
    different, at = np.unique(x, return_inverse=True)
    if different.size > 64:
        raise NotModular
    return np.array([residue(float(v), p) for v in different], np.int64)[at].reshape(x.shape)


Law = Callable[..., Array]  # function of attributes, modulus and operands
_MODULAR: dict[str, Law] = {  # other laws than those of integers
    "full": lambda a, p: np.full(a["shape"], residue(a["value"], p), np.int64),
    "div": lambda a, p, x, y: x * _inverse(y, p),
    "recip": lambda a, p, x: _inverse(x, p),
}


def field_law(op: str) -> Law | None:
    """Function (attributes, modulus, *operands) that computes an op on residues; its result is reduced modulo p by the
    caller. None for ops outside of field arithmetic."""
    entry = OPS[op]
    if entry.algebra != "ring" or entry.numpy is None:
        return _MODULAR.get(op)
    law = entry.numpy
    return lambda attrs, p, *args: law(attrs, *args)


def is_exact(op: str) -> bool:
    """Whether an op selects elements, so that its NumPy meaning holds for residues, too."""
    return op in ("gather", "gather_elements", "where") or (OPS[op].moves and op != "pad")


def extreme_sign(op: str) -> int:
    """1 for a maximum of two operands or over axes, -1 for a minimum, 0 for other ops."""
    return {"maximum": 1, "minimum": -1}.get(OPS[op].folded, 0)


def is_function(op: str) -> bool:
    """Whether an op is a function of one float that is uninterpreted here."""
    entry = OPS[op]
    return entry.law == "pointwise" and entry.arity == 1 and not entry.composite and field_law(op) is None


def _mixed(x: Array, key: int) -> Array:
    """A keyed bijection of 64-bit numbers (the finalizer of MurmurHash3)."""
    with np.errstate(over="ignore"):  # NumPy warns where a single number wraps around
        h = (x.astype(np.int64).view(np.uint64) + np.uint64(key & (2**64 - 1))) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(h ^ (h >> np.uint64(33)))


def _function(name: str, x: Array, p: int, key: int) -> Array:
    """A random function of residues that has the symmetry of the named function: odd, even, or even and zero at
    zero."""

    def at(y: Array) -> Array:
        return (
            (_mixed(np.atleast_1d(y % p), key + zlib.crc32(name.encode())) % np.uint64(p))
            .astype(np.int64)
            .reshape(y.shape)
        )

    if name == "rsqrt":
        return _inverse(_function("sqrt", x, p, key), p)
    if OPS[name].symmetry == "odd":
        return (at(x) - at(-x)) % p
    if OPS[name].symmetry == "even":
        return (at(x) + at(-x) - (2 * at(np.zeros_like(x)) if name == "abs" else 0)) % p
    return at(x)


def _power(node: Tensor, x: Array, p: int, key: int | None) -> Array:
    """A power with a constant exponent, as products, a reciprocal or an uninterpreted root."""
    exponent = node.args[1]
    value = exponent.attr("value") if exponent.op == "full" else None
    if value in (0.5, -0.5) and key is not None:
        return _function("sqrt" if value > 0 else "rsqrt", x, p, key)
    if value is None or value != int(value) or abs(value) > 8:
        raise NotModular
    base, found = x if value >= 0 else _inverse(x, p), np.ones_like(x)
    for _ in range(abs(int(value))):
        found = found * base % p
    return found


def _rank(x: Array, key: int) -> Array:
    """Positions of residues in the random order; -inf comes first."""
    return np.where(x == BELOW, np.uint64(0), _mixed(x, key) | np.uint64(1))


def _extreme(node: Tensor, args: Sequence[Array], key: int) -> Array:
    """A maximum or minimum with respect to the random order."""
    most = extreme_sign(node.op) > 0
    if node.entry.pointwise:
        x, y = np.broadcast_arrays(*args)
        higher = _rank(x, key) >= _rank(y, key)
        return np.where(higher == most, x, y)
    axes = tuple(sorted(node.attr("axes")))
    x = np.moveaxis(args[0], axes, range(-len(axes), 0))
    flat = x.reshape(*x.shape[: x.ndim - len(axes)], -1)
    if not flat.shape[-1]:
        raise NotModular
    ranks = _rank(flat, key)
    at = np.argmax(ranks, -1) if most else np.argmin(ranks, -1)
    return np.take_along_axis(flat, at[..., None], -1).reshape(node.shape)


def _truth(node: Tensor, args: Sequence[Array], key: int) -> Array:
    """Comparisons with respect to the random order, and boolean ops."""
    if node.op in ("lt", "le", "eq") and all(dtypes.is_float(a.dtype) for a in node.args):
        x, y = (_rank(a, key) for a in args)
        return np.asarray({"lt": x < y, "le": x <= y, "eq": args[0] == args[1]}[node.op])
    if node.op == "eq" and all(a.dtype.kind == "i" and not dtypes.is_float(n.dtype) for a, n in zip(args, node.args)):
        return np.asarray(args[0] == args[1])
    if node.entry.logic is not None and node.entry.numpy is not None and all(a.dtype == "bool" for a in node.args):
        return np.asarray(node.entry.numpy({}, *args))
    raise NotModular


def modular(order: Sequence[Tensor], leaves: Mapping[str, Array], p: int, key: int | None = None) -> dict[int, Array]:
    """Evaluate nodes without composite ops modulo p; returns their values by node id. `order`: the nodes, operands
    first. `leaves`: values by name, residues for floats.

    With a key, functions outside of field arithmetic are uninterpreted: random functions, the same for the same key.
    Raises NotModular for anything else.
    """
    found: dict[int, Array] = {}
    for node in order:
        attrs, args = dict(node.attrs), [found[id(a)] for a in node.args]
        found[id(node)] = _node(node, attrs, args, leaves, p, key)
    return found


def _node(
    node: Tensor, attrs: dict[str, Any], args: list[Array], leaves: Mapping[str, Array], p: int, key: int | None
) -> Array:
    if node.is_leaf:
        if node.op in ("input", "param"):
            return leaves[attrs["name"]]
        if node.op == "constant" and dtypes.is_float(node.dtype) and node.data is not None:
            return _constant(node.data, p)
        raise NotModular
    if (is_exact(node.op) and node.entry.numpy is not None) or node.op == "iota":
        assert node.entry.numpy is not None
        return np.asarray(node.entry.numpy(attrs, *args))
    if node.op == "cast" and node.args[0].dtype == "bool" and dtypes.is_float(node.dtype):
        return np.asarray(args[0], np.int64)
    if key is not None and node.dtype == "bool":
        return _truth(node, args, key)
    if not dtypes.is_float(node.dtype) or any(not dtypes.is_float(a.dtype) for a in node.args):
        raise NotModular
    if node.op == "pad":
        low = key is not None and attrs["value"] == float("-inf")
        return atomic.pad({**attrs, "value": BELOW if low else residue(attrs["value"], p)}, *args)
    if key is not None and extreme_sign(node.op):
        return _extreme(node, args, key)
    if any(a.dtype.kind == "i" and np.any(a == BELOW) for a in args):
        raise NotModular
    if (law := field_law(node.op)) is not None:
        return np.asarray(law(attrs, p, *args) % p)
    if key is not None and node.op == "cast":
        return (_mixed(args[0], key + zlib.crc32(node.dtype.encode())) % np.uint64(p)).astype(np.int64)
    if node.op == "pow":
        return _power(node, args[0], p, key)
    if key is not None and is_function(node.op):
        return _function(node.op, args[0], p, key)
    raise NotModular


# ---------------------------------------------------------------- signs, which residues do not have
_KEEPING = ("add", "mul", "matmul", "conv", "avg_pool", "max_pool", "sum", "max", "maximum", "concat", "pad", "slice", "permute",
            "reshape", "broadcast_to", "div")  # fmt: skip


def unrectified(roots: Sequence[Tensor]) -> list[Tensor]:
    """Terms without rectifiers (relu, abs) of provably nonnegative values: arithmetic modulo a prime has no signs."""
    known: dict[int, bool] = {}
    keep: list[Tensor] = []

    def sure(node: Tensor) -> bool:
        if id(node) not in known:
            keep.append(node)
            known[id(node)] = _never_negative(node, sure)
        return known[id(node)]

    def rectified(node: Tensor) -> Tensor:
        if sure(node):
            return node
        if node.entry.monotone and node.entry.symmetry == "odd":
            return make(node.op, (rectified(node.args[0]),))
        if node.op == "mul" and any(map(sure, node.args)):
            return make("mul", tuple(a if sure(a) else rectified(a) for a in node.args))
        if node.op == "add" and node.args[0] is node.args[1]:
            return make("add", (rectified(node.args[0]),) * 2)
        moved = node.op in ("concat", "slice", "permute", "reshape")
        return make(node.op, tuple(map(rectified, node.args)), dict(node.attrs)) if moved else make("relu", (node,))

    def changed(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op == "max_pool" and args[0].entry.monotone:  # an increasing function commutes with a maximum
            return make(args[0].op, (make("max_pool", args[0].args, dict(node.attrs)),))
        return rectified(args[0]) if node.op == "relu" else None

    return rebuild(roots, changed)


def finite(roots: Sequence[Tensor]) -> list[Tensor]:
    """The terms without branches for infinite operands, which are never taken because residues are finite."""

    def changed(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        return args[2] if node.op == "where" and args[0].op == "is_inf" else None

    return rebuild(roots, changed)


def _never_negative(node: Tensor, sure: Callable[[Tensor], bool]) -> bool:
    if node.op == "constant":
        return node.data is not None and node.data.dtype.kind == "f" and bool(np.all(node.data >= 0))
    if node.op == "full":
        return bool(node.attr("value") >= 0)
    if node.op == "cast" and node.args[0].dtype == "bool":
        return True
    if node.op == "mul" and node.args[0] is node.args[1]:
        return True
    if node.op == "pad" and not node.attr("value") >= 0:
        return False
    return node.entry.nonnegative or (node.op in _KEEPING and all(map(sure, node.args)))


# ---------------------------------------------------------------- error probability
_PRODUCTS = ("mul", "matmul", "conv", "div")


def weight(order: Sequence[Tensor]) -> int:
    """Upper bound on p times the probability that one evaluation of the nodes `order` (operands first) modulo a prime p
    misses a difference.

    The bound is the polynomial degree plus, for uninterpreted functions, the number of argument pairs times the degree
    at which two arguments may collide.
    """
    degree: dict[int, int] = {}
    arguments, largest = 0, 1
    for node in order:
        below = [degree[id(a)] for a in node.args]
        if is_function(node.op) or extreme_sign(node.op) or node.op in ("cast", "lt", "le", "eq"):
            size = prod(concrete(node.args[0].shape))
            arguments += size * len(node.args) * (2 if node.entry.symmetry else 1)
            largest = max(largest, *below)
            degree[id(node)] = max(1, *below) if extreme_sign(node.op) else 1
        elif node.op == "recip":
            degree[id(node)] = 2 * below[0]
        elif node.op == "pow":
            degree[id(node)] = 16 * below[0]
            arguments, largest = arguments + prod(concrete(node.args[0].shape)), max(largest, *below)
        elif node.op in _PRODUCTS:
            degree[id(node)] = sum(below) * (2 if node.op == "div" else 1)
        else:
            degree[id(node)] = max(below, default=int(node.is_leaf and node.op != "constant"))
    return max(degree.values(), default=1) + arguments * arguments // 2 * largest + 1


def _evaluable(order: Sequence[Tensor]) -> bool:
    """Whether all variables are floats, booleans, or integers that are used only as gather indices.

    Such indices are drawn at random.
    """

    def plain(node: Tensor) -> bool:
        return dtypes.is_float(node.dtype) or node.dtype == "bool"

    read = {id(a) for n in order if n.op == "gather" for k, a in enumerate(n.args) if k == 1 or not plain(n)}
    other = {id(a) for n in order if n.op != "gather" for a in n.args}
    return all(plain(n) or (id(n) in read and id(n) not in other) for n in order if n.op in ("input", "param"))


def _leaf(node: Tensor, p: int, rng: np.random.Generator) -> Array:
    """Random residues, random booleans, or random indices (some out of bounds, which gather clips)."""
    shape = concrete(node.shape)
    if not dtypes.is_float(node.dtype) and node.dtype != "bool":
        return np.asarray(rng.integers(0, INDICES, shape))
    return np.asarray(rng.random(shape) < 0.5) if node.dtype == "bool" else np.asarray(rng.integers(0, p, shape))


def agreement(
    order: Sequence[Tensor],
    pairs: Sequence[tuple[Tensor, Tensor]],
    rng: np.random.Generator,
    bits: int = BITS,
    orders: int = 1,
) -> float:
    """Test whether the pairs of terms are equal by random evaluation modulo primes; returns the confidence in bits:
    -log2 of the probability that it errs.

    Runs as many evaluations as `bits` requires, alternating between the primes, each with fresh residues and fresh
    uninterpreted functions; at least `orders` evaluations if a maximum occurs. Returns 0 if a side is outside of this
    arithmetic or empty, or if more than `TRIALS` evaluations would be needed; -1 if a difference was found.
    """
    each = log2(min(PRIMES)) - log2(weight(order))
    if each <= 0 or ceil((bits + 1) / each) > TRIALS:
        return 0.0
    inputs = [n for n in order if n.op in ("input", "param")]
    if not _evaluable(order):
        return 0.0
    if any(0 in n.shape for n in order):
        return 0.0
    least = orders if any(extreme_sign(n.op) for n in order) else 1
    for trial in range(max(least, ceil((bits + 1) / each))):
        p = PRIMES[trial % 2]
        leaves = {n.attr("name"): _leaf(n, p, rng) for n in inputs}
        try:
            got = modular(order, leaves, p, int(rng.integers(1 << 62)))
        except NotModular:
            return 0.0
        if not all(np.array_equal(got[id(a)], got[id(b)]) for a, b in pairs):
            return -1.0
    return each * ceil((bits + 1) / each)
