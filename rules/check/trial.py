"""Tries a rule on one random instance: evaluates both sides modulo primes, in float64, and bit by bit.

`RuleTrial` raises Refuted, with the operand values and both results, where the sides differ. check.py explains the
comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...egraph.evaluate.interpret import evaluate, expand_all
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...egraph.patterns.rule import Rule
from ...egraph.types import dtypes
from ...errors import ShapeError
from ..semantics.prime_field import PRIMES, NotModular, modular

if TYPE_CHECKING:
    from ...egraph.patterns.rule import Rule
    from ..text.text_rule import TextRule

Array = np.ndarray[Any, Any]
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 1.0, -1.0, 3.0e38, 2.0, 0.5)
PLAIN_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5)
ORDERS = 64  # evaluations of a rule with a maximum, each with another random order of the residues
STYLES = ("plain", "zeros", "positive", "wide")
SLACK = 512 * np.finfo(np.float64).eps


class Refuted(Exception):
    """Raised when both sides of a rule differ on an instance; the message has the counterexample."""

    def __init__(self, detail: str, counterexample: str) -> None:
        super().__init__(detail)
        self.detail, self.counterexample = detail, counterexample


# ---------------------------------------------------------------- values
def values(found: TypedRule, rng: np.random.Generator, style: str) -> dict[str, Array]:
    """Random arrays for the tensor variables of an instance, in their own dtypes; values used as indices stay in range.

    `style` is one of `STYLES`, "special" (infinities, NaN, denormals) or "signs" (each float tensor has a single
    sign).
    """
    if style == "signs":
        sign = {name: rng.choice((-1.0, 1.0)) for name in found.types}
        return {n: x * sign[n] if x.dtype.kind == "f" else x for n, x in values(found, rng, "positive").items()}
    return {
        name: _array(t.shape, t.dtype, rng, style, found.bounds.get(name)) for name, t in sorted(found.types.items())
    }


def _array(shape: Any, dtype: str, rng: np.random.Generator, style: str, bound: int | None) -> Array:
    kind = dtypes.category(dtype)
    target = dtypes.numpy_dtype(dtype)
    if bound is not None:
        return np.asarray(rng.integers(0, bound, shape), target)
    if kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if kind == "int":
        info = np.iinfo(target)
        small = rng.integers(max(-5, info.min), 6, shape)
        large = rng.integers(info.min, info.max, shape, dtype=target, endpoint=True)
        edges = rng.choice(np.array([info.min, info.max, 0, 1], dtype=target), shape)
        odd = np.where(rng.random(shape) < 0.5, large, edges)
        return np.asarray(np.where(rng.random(shape) < 0.5, small.astype(target), odd))
    x = rng.standard_normal(shape)
    if style == "positive":
        x = np.abs(x) + 0.01
    elif style == "zeros":
        x = np.where(rng.random(shape) < 0.5, rng.choice(PLAIN_SPECIAL, shape), x)
    elif style == "wide":
        x = x * 10.0 ** rng.uniform(-9, 9, shape)
        x = np.where(rng.random(shape) < 0.1, rng.choice((0.0, 5e-310, -1e-300), shape), x)
        return np.asarray(x)  # beyond float16 on purpose: evaluated in float64
    elif style == "special":
        x = np.where(rng.random(shape) < 0.6, rng.choice(SPECIAL, shape), x)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(target)


#: Bits of the fraction of a float format.
_FRACTION = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def _near(numbers: Sequence[float], data: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """The arrays with half of their elements replaced by `numbers` and others close to these, as far as the dtypes have
    them."""
    found = {}
    for name, x in data.items():
        near = rng.choice(np.asarray(numbers), x.shape)
        near = near * rng.choice((1.0, 1.0, 1 - 2.0**-9, 1 + 2.0**-9, 2.0), x.shape) + rng.choice(
            (0, 0, 1, -1), x.shape
        )
        if x.dtype.kind in "iu":
            info = np.iinfo(x.dtype)
            near = np.where((near > info.min) & (near < info.max), near, 0)
        with np.errstate(all="ignore"):
            found[name] = np.where(rng.random(x.shape) < 0.5, near.astype(x.dtype), x) if x.dtype.kind != "b" else x
    return found


def _at_limits(data: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """The arrays with most elements of floats replaced by the smallest and largest denormals and normals, which is
    where an operation on one of them rounds, overflows or underflows."""
    found = dict(data)
    for name, x in data.items():
        if (fraction := _FRACTION.get(dtypes.name_of(x.dtype))) is None:
            continue
        bits = np.dtype(f"u{x.dtype.itemsize}")
        infinite = int(np.asarray(np.inf).astype(x.dtype).view(bits))
        one = 1 << fraction  # the smallest normal
        codes = [1, 3, one - 1, one, one + 1, 2 * one + 1, infinite - 1, infinite - one - 1, infinite]
        edge = rng.choice(np.asarray(codes, bits), x.shape).view(x.dtype) * rng.choice((1, -1), x.shape).astype(x.dtype)
        found[name] = np.where(rng.random(x.shape) < 0.8, edge, x).astype(x.dtype)
    return found


def _often_equal(data: Mapping[str, Array], bounds: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """The arrays with many elements taken from the latest other one of the same shape and dtype."""
    latest, found = dict[Any, Array](), dict[str, Array]()
    for name, x in data.items():
        kind = x.shape, x.dtype, bounds.get(name)
        found[name] = np.where(rng.random(x.shape) < 0.6, latest[kind], x) if kind in latest else x
        latest[kind] = found[name]
    return found


SHOWN = 24  # elements shown in full in a counterexample; of a larger array, the first and last few of each axis


def _show(x: Array) -> str:
    if x.size > SHOWN:
        edge = 3 if x.ndim == 1 else 1
        return np.array2string(x, threshold=SHOWN, edgeitems=edge, precision=6, separator=", ", prefix="      ")
    if not x.ndim:
        return f"{x.item():.7g}" if x.dtype.kind == "f" else str(x.item())
    return f"[{', '.join(map(_show, map(np.asarray, x)))}]"


def _largest_difference(left: Array, right: Array) -> str:
    """Where two arrays differ most, and their elements there; "" for single elements."""
    if left.size < 2 or left.shape != right.shape:
        return ""
    with np.errstate(all="ignore"):
        apart = np.abs(left.astype(np.float64) - right.astype(np.float64))
    same = (left == right) | ((left != left) & (right != right))
    at = np.unravel_index(int(np.argmax(np.where(same, -1.0, np.nan_to_num(apart, nan=np.inf)))), left.shape)
    return f"  at {[int(i) for i in at]}: left {_show(left[at])}, right {_show(right[at])}"


# ---------------------------------------------------------------- one instance
class TypedRule(Protocol):
    """Protocol of a rule with concrete types for its tensor variables.

    Implemented by `Instance` and, for rules in TASO's and Tensat's language, by `TextInstance`.
    """

    @property
    def types(self) -> Mapping[str, Type]:
        """Types of the tensor variables."""
        ...

    @property
    def bounds(self) -> Mapping[str, int]:
        """Exclusive upper bounds of integer tensors that are used as indices."""
        ...

    def sides(self, rule: Any) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides; raises ShapeError if a side is ill typed."""
        ...


class RuleTrial:
    """Evaluation of both sides of a rule on the instance `found`. Raises Refuted if their types differ."""

    def __init__(self, rule: Rule | TextRule | None, found: TypedRule, rng: np.random.Generator) -> None:
        self.rule, self.found, self.rng = rule, found, rng
        self.pairs = self.typed()
        roots = [side for pair in self.pairs for side in pair]
        self.roots = expand_all(roots)
        self.order = topological(self.roots)
        self.empty = any(0 in node.shape for node in self.order)

    def typed(self) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides, checked to have equal types; raises Refuted otherwise."""
        try:
            pairs = self.found.sides(self.rule)
        except ShapeError as error:
            raise Refuted("the right side is ill typed", f"  {self.found}\n  {error}") from None
        for left, right in pairs:
            if left.type != right.type:
                raise Refuted(
                    "the sides have different types", f"  {self.found}\n  left: {left.type}, right: {right.type}"
                )
        return pairs

    def refute(self, detail: str, data: Mapping[str, Array], left: Array, right: Array) -> Refuted:
        """The exception `Refuted`, to be raised, with the text `detail`, shapes, operand values, both results and the
        element where they differ most."""
        lines = [f"  {self.found}", *(f"  {n} = {_show(x)}" for n, x in data.items())]
        lines += [f"  left  = {_show(left)}", f"  right = {_show(right)}", _largest_difference(left, right)]
        return Refuted(detail, "\n".join(filter(None, lines)))

    def exactly(self) -> bool:
        """Compare both sides modulo each prime; returns False if the rule or the values are outside of field
        arithmetic.

        Raises Refuted for different results.
        """
        if any(dtypes.category(t.dtype) == "int" and n not in self.found.bounds for n, t in self.found.types.items()):
            return False
        for p in PRIMES:
            data = values(self.found, self.rng, "plain")
            data = {
                n: np.asarray(self.rng.integers(0, p, x.shape)) if x.dtype.kind not in "iub" else x
                for n, x in data.items()
            }
            try:
                got = modular(self.order, data, p)
            except NotModular:
                return False
            for left, right in zip(self.roots[::2], self.roots[1::2]):
                if not np.array_equal(got[id(left)], got[id(right)]):
                    raise self.refute(f"the sides differ modulo {p}", data, got[id(left)], got[id(right)])
        return True

    def run(self, data: Mapping[str, Array], *, float64: bool) -> list[Array] | None:
        """Values of all nodes of both sides in evaluation order, in float64 or in the nodes' own dtypes.

        None if the left side cannot be computed (such as the maximum of an empty axis). Raises Refuted if only the
        right side cannot be computed.
        """
        with np.errstate(all="ignore"):
            try:
                return evaluate(self.order, data, params=data, float64=float64)
            except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
                lefts = topological(self.roots[::2])
                try:
                    evaluate(lefts, data, params=data, float64=float64)
                except (ValueError, TypeError, IndexError, ZeroDivisionError):
                    return None
                raise Refuted(f"only the left side can be computed: {error}", f"  {self.found}") from None

    def close(self, style: str) -> bool:
        """Compare both sides in float64 up to rounding; returns False if the sample tells nothing (overflow, no finite
        value).

        `style`: distribution of the values (`values`). Raises Refuted for different results.
        """
        if self.empty and style in ("zeros", "wide"):
            style = "plain"  # 0/0 over an empty axis is the one corner case not tested
        return self._close(values(self.found, self.rng, style), style)

    def _close(self, data: Mapping[str, Array], style: str) -> bool:
        """`close` on the values `data`."""
        got = self.run(data, float64=True)
        if got is None:
            return False
        at = {id(n): x for n, x in zip(self.order, got)}
        floats = [x for n, x in zip(self.order, got) if dtypes.is_float(n.dtype) and x.size]
        if style == "wide" and (not all(np.isfinite(x).all() for x in floats) or self.vanishes(at)):
            return False
        peak = max((float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for x in floats), default=0.0)
        compared = False
        for i in range(0, len(self.roots), 2):
            left, right = at[id(self.roots[i])], at[id(self.roots[i + 1])]
            compared |= not left.size or not dtypes.is_float(self.roots[i].dtype) or bool(np.isfinite(left).any())
            if problem := self.differs(i, data, left, right, peak):
                raise self.refute(f"{problem} on {style} values", data, left, right)
        return compared

    def vanishes(self, at: Mapping[int, Array]) -> bool:
        """Whether a product or quotient of nonzero numbers underflows float64's normal range at some node.

        `at`: values by node id.
        """
        for node in self.order:
            if node.op in ("mul", "div", "recip") and dtypes.is_float(node.dtype):
                there = np.logical_and.reduce(np.broadcast_arrays(*(at[id(a)] != 0 for a in node.args)))
                if np.any(there & (np.abs(at[id(node)]) < np.finfo(np.float64).tiny)):
                    return True
        return False

    def differs(self, i: int, data: Mapping[str, Array], left: Array, right: Array, peak: float) -> str:
        """Description of how the two sides of a rule, roots `i` and `i + 1` of the trial's graph, differ beyond
        rounding; "" if they do not.

        `data`: values of the rule's variables. `left`, `right`: values of both sides. `peak`: largest finite magnitude
        of all values.
        """
        if not dtypes.is_float(self.roots[i].dtype):
            return "" if np.array_equal(left, right) else "the sides differ"
        finite = np.isfinite(left)
        if not np.array_equal(finite, np.isfinite(right)):
            return "only one side is finite somewhere"
        a, b = left[finite], right[finite]
        scale = peak * max(1.0, a.size) ** 0.5
        with np.errstate(over="ignore"):
            gap = float(np.linalg.norm((a - b) / (peak or 1.0))) * (peak or 1.0) if a.size else 0.0
        if gap <= SLACK * scale or gap <= SLACK * (scale + self.condition(i, data, left, finite)):
            return ""
        return f"the sides differ by {gap:.3g}, where rounding explains {SLACK * scale:.3g}"

    def condition(self, i: int, data: Mapping[str, Array], left: Array, finite: Array) -> float:
        """Estimated condition number of root i: norm of its change per unit relative change of the operands `data`.

        Rounding errors of operands are amplified by this factor. `finite`: mask of elements to compare.
        """
        worst = 0.0
        for _ in range(3):
            moved = {
                n: x.astype(np.float64) * (1 + 1e-7 * self.rng.standard_normal(x.shape))
                if x.dtype.kind not in "iub"
                else x
                for n, x in data.items()
            }
            with np.errstate(all="ignore"):
                (other,) = evaluate([self.roots[i]], moved, params=moved, float64=True)
                change = np.where(finite & np.isfinite(other), other - np.where(finite, left, 0), 0.0)
                worst = max(worst, float(np.linalg.norm(change)) / 1e-7)
        return worst

    def bitwise(self, style: str) -> bool:
        """Compare both sides bitwise in their own dtypes (NaN equals NaN); returns False if the left side has no value.

        `style`: distribution of the values (`values`). Raises Refuted for different results.
        """
        return self._bitwise(values(self.found, self.rng, style), style)

    def _bitwise(self, data: Mapping[str, Array], style: str) -> bool:
        """`bitwise` on the values `data`."""
        got = self.run(data, float64=False)
        if got is None:
            return False
        at = {id(n): x for n, x in zip(self.order, got)}
        for left, right in zip(self.roots[::2], self.roots[1::2]):
            a, b = at[id(left)], at[id(right)]
            if a.dtype != b.dtype or a.shape != b.shape or not _same_bits(a, b):
                raise self.refute(f"claimed exact, but the bits differ on {style} values", data, a, b)
        return True

    def at_edges(self, seed: int, *, exact: bool) -> None:
        """Compare both sides where random values hardly ever are: at and beside the rule's own numbers, where operands
        are equal, and for `exact` rules at the limits of the formats. Raises Refuted for different results."""
        rng, bounds = np.random.default_rng(seed), self.found.bounds
        fulls = {float(node.attr("value")) for node in self.order if node.op == "full"}
        numbers = sorted(v for v in fulls if math.isfinite(v) and v not in PLAIN_SPECIAL)
        drawn = values(self.found, rng, "plain")
        free = {n: x for n, x in drawn.items() if n not in bounds}
        if numbers and not self.empty:
            self._close(drawn | _often_equal(_near(numbers, free, rng), bounds, rng), "wide")
        if exact:
            self._bitwise(drawn | _often_equal(_at_limits(free, rng), bounds, rng), "special")
            special = values(self.found, rng, "special")
            self._bitwise(_often_equal(special, bounds, rng), "special")


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a)
    same = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool(np.array_equal(nan, np.isnan(b)) and np.all(same | nan))


__all__ = ["ORDERS", "STYLES", "Refuted", "RuleTrial", "TypedRule", "values"]
