"""Evaluates enumerated terms: in float64, and modulo two primes with other functions uninterpreted.

Within ring arithmetic, values modulo primes are exact, so they distinguish terms that differ by less than rounding.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.evaluate.interpret import apply, expand_all
from ...egraph.ir.tensor import make, topological
from ...egraph.ops import atomic_numpy as atomic
from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern import Term
from ...egraph.patterns.pattern_attrs import Attr
from ...egraph.types.dims import concrete

Array = np.ndarray[Any, Any]
Sizes = tuple[tuple[Attr, ...], ...]  # per axis, parts whose sum is the size
PRIMES = (268435399, 268435367)  # below 2**28, so that sums of 64 products of residues fit an int64
DRAWS = ("positive", "mixed")


@dataclass(frozen=True, slots=True)
class UniverseEntry:
    """An enumerated term with its type, symbolic sizes and fingerprint.

    `exact` holds the values modulo the primes (None outside exact arithmetic), `floats` those in float64. `pure` means
    that `exact` involves no uninterpreted function.
    """

    term: Term
    type: Type
    sizes: Sizes
    exact: tuple[Array, ...] | None
    floats: tuple[Array, ...]
    pure: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the term's value, as ints."""
        return concrete(self.type.shape)


def _inverse(x: Array, p: int) -> Array:
    found, power, base = np.ones_like(x), p - 2, x % p
    while power:
        found = found * base % p if power & 1 else found
        base, power = base * base % p, power >> 1
    return found  # 1 / 0 is 0 here; the float64 values distinguish this


_RING: dict[str, Callable[..., Array]] = {
    "add": lambda a, x, y: x + y,
    "sub": lambda a, x, y: x - y,
    "mul": lambda a, x, y: x * y,
    "neg": lambda a, x: -x,
    "matmul": lambda a, x, y: np.matmul(x, y),
    "conv": lambda a, x, w: atomic.conv(a, x, w),
    "sum": lambda a, x: np.sum(x, axis=a["axes"], keepdims=True),
    "cumsum": lambda a, x: np.cumsum(x, axis=a["axis"]),
}
_MOVES = tuple(op.name for op in OPS.values() if op.moves and op.name != "pad")


def residue(value: float, p: int) -> int:
    """The constant `value` modulo p; a float equal to the reciprocal of an integer stands for the exact fraction."""
    exact = Fraction(value)
    if exact.denominator > 1 and 1.0 / round(1 / exact) == value:
        exact = Fraction(1, round(1 / exact))
    return int(exact.numerator * pow(exact.denominator, -1, p)) % p


def _hashed(op: str, arrays: Sequence[Array], p: int) -> Array:
    """An uninterpreted function of the operands' elements: a hash below p."""
    mixed: Array = np.full((), zlib.crc32(op.encode()) | 1, np.uint64)
    with np.errstate(over="ignore"):
        for x in arrays:
            mixed = (mixed ^ x.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(20)) % np.uint64(p)).astype(np.int64)


def _exactly(op: str, attrs: Mapping[str, Any], arrays: Sequence[Array], p: int) -> tuple[Array | None, bool]:
    """(value of an atomic op modulo p, whether the op was interpreted); None for an unsupported op."""
    if op in _RING:
        return _RING[op](attrs, *arrays) % p, True
    if op == "div":
        return arrays[0] * _inverse(arrays[1], p) % p, True
    if op == "recip":
        return _inverse(arrays[0], p), True
    if op == "full":
        return (
            (np.full(attrs["shape"], residue(attrs["value"], p)), True) if np.isfinite(attrs["value"]) else (None, True)
        )
    if op == "pad" and np.isfinite(attrs["value"]):
        widths = [(attrs["lo"], attrs["hi"]) if i == attrs["axis"] else (0, 0) for i in range(arrays[0].ndim)]
        return np.pad(arrays[0], widths, constant_values=residue(attrs["value"], p)), True
    if op in _MOVES:
        numpy = OPS[op].numpy
        assert numpy is not None
        return np.asarray(numpy(attrs, *arrays)), True
    return (_hashed(op, arrays, p), False) if OPS[op].pointwise and op != "cast" else (None, False)


@dataclass
class TermValues:
    """Evaluator of ops on the values of enumerated terms.

    Composites are decomposed; each decomposition is built once per type and kept in `plans`.
    """

    plans: dict[Any, list[Any]] = field(default_factory=dict)

    def plan(self, op: str, attrs: Mapping[str, Any], types: Sequence[Type]) -> list[Any]:
        """The nodes, without composite ops, that compute the op with attributes `attrs`, operands first, over leaves
        named 0, 1, … for its operands of these types."""
        key = (op, tuple(attrs.items()), tuple(types))
        if key not in self.plans:
            leaves = [api.input(str(i), t.shape, t.dtype) for i, t in enumerate(types)]
            self.plans[key] = topological(expand_all([make(op, leaves, attrs)]))
        return self.plans[key]

    def of(self, op: str, attrs: Mapping[str, Any], args: Sequence[UniverseEntry]) -> tuple[Any, Any, bool]:
        """Values of an op applied to entries, on every drawn assignment.

        Returns (values modulo each prime, or None if an operand or the result has none; float64 values; whether the
        result was computed without uninterpreted functions).
        """
        plan = self.plan(op, attrs, [a.type for a in args])
        floats = tuple(self.run(plan, [a.floats[k] for a in args], None)[0] for k in range(len(DRAWS)))
        if any(a.exact is None for a in args):
            return None, floats, False
        exact, pure = [], all(a.pure for a in args)
        for k, p in enumerate(PRIMES):
            value, interpreted = self.run(plan, [a.exact[k] for a in args if a.exact is not None], p)
            if value is None:
                return None, floats, False
            exact.append(value)
            pure = pure and interpreted
        return tuple(exact), floats, pure

    def run(self, plan: Sequence[Any], arrays: Sequence[Array], p: int | None) -> tuple[Any, bool]:
        """Evaluate a plan (nodes without composite ops) on `arrays`; returns (its value modulo p, or in float64 if p is
        None; whether no function was left uninterpreted)."""
        live: dict[int, Any] = {}
        pure = True
        for node in plan:
            if node.is_leaf:
                live[id(node)] = arrays[int(node.attr("name"))]
                continue
            given = [live[id(a)] for a in node.args]
            if p is None:
                with np.errstate(all="ignore"):
                    live[id(node)] = apply(node, given, float64=True)
            else:
                live[id(node)], interpreted = _exactly(node.op, dict(node.attrs), given, p)
                pure = pure and interpreted
                if live[id(node)] is None:
                    return None, False
        return live[id(plan[-1])], pure


def rounded(x: Array) -> bytes:
    """A byte string of an array, equal for arrays that are equal up to rounding."""
    if x.dtype.kind != "f":
        return x.tobytes()
    finite = np.isfinite(x)
    top = float(np.max(np.abs(x), where=finite, initial=0.0))
    scaled = np.where(finite, x / top if top else 0.0, 0.0)
    marks = np.where(finite, np.round(scaled, 7) + 0.0, np.where(np.isnan(x), 3.0, np.sign(x) * 2))
    return np.float32(top).tobytes()[1:] + marks.tobytes() if top < 1e-30 else _magnitude(top) + marks.tobytes()


def _magnitude(top: float) -> bytes:
    return repr(float(f"{top:.7g}")).encode()


__all__ = ["DRAWS", "PRIMES", "Sizes", "TermValues", "UniverseEntry", "residue", "rounded"]
