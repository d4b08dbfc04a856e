"""Rule checking by randomized testing: types, exact modular arithmetic, float64, and bitwise comparison.

On random instances (rules/semantics/sample.py) both sides must have the same type. Then:
- Rules within ring and field arithmetic are evaluated exactly modulo two primes (rules/semantics/prime_field.py), without rounding.
- Every rule is evaluated in float64 on well-scaled values, on values with zeros and signs, on positive values, and on
  mixed magnitudes with denormals. Integers must agree exactly, wrap-around included.
- A rule that claims `exact` is evaluated in its own dtypes on infinities, NaN, -0.0 and denormals, and compared bit by
  bit.

Where a side divides by zero or leaves a function's domain, so must the other: both sides are finite at the same
positions. Which of ±inf and NaN stands at the other positions is compared for `exact` rules only. A mixed-magnitude
sample in which an intermediate value overflows or a product underflows is discarded. Testing can refute a rule but not
prove it, so the best verdict of `check` is "tested"; `verdict` also attempts a proof (smt/prove.py, bits.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ...egraph.ir import dtypes
from ...egraph.ir.graph import Tensor, topological
from ...egraph.ir.interpret import evaluate, expand_all
from ...egraph.ir.ops import Type
from ...egraph.ir.pattern import Apply, Attr, build, holds
from ...egraph.ir.rule import Rule
from ...errors import RuleError, ShapeError
from ..semantics.exponents import sure
from ..semantics.prime_field import BITS, PRIMES, Unsaid, agreement, finite, modular, unrectified
from ..semantics.sample import instances
from ..semantics.sampler import FAILURES, Instance

if TYPE_CHECKING:
    from ..text.tensat import TextRule

Array = np.ndarray[Any, Any]
Status = Literal["proved", "tested", "refuted", "unknown"]
STATUSES: tuple[Status, ...] = ("proved", "tested", "refuted", "unknown")
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 1.0, -1.0, 3.0e38, 2.0, 0.5)
PLAIN_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5)
ORDERS = 64  # evaluations of a rule with a maximum, each with another random order of the residues
STYLES = ("plain", "zeros", "positive", "wide")
SLACK = 512 * np.finfo(np.float64).eps
COST_GUARDS = ("weight", "active", "chained", "original", "ordered")  # where a rule pays, not where it is sound
#: Shape guards that bound e-graph growth: the rule is sound without them, but would apply endlessly or gain nothing.
LIMITS = {"product-by-groups": ("1 < size(c, 0)", "size(c, 0) < size(q, 0)"), "enlarge-kernel": ("size(w, 2) == 1", "size(w, 3) == 1"), "strided-pointwise-conv": ("s != (1, 1)",),
          "low-rank-folds": ("rank(b) == 2", "shape(w) == replace(shape(a), -1, size(b, -1))")}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The result of checking a rule: a status and a one-line reason.

    `counterexample` is set for "refuted" only: shapes, operand values and both results.
    """

    status: Status
    detail: str
    counterexample: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}" + (f"\n{self.counterexample}" if self.counterexample else "")


class Refuted(Exception):
    """Raised when a counterexample is found."""

    def __init__(self, detail: str, counterexample: str) -> None:
        super().__init__(detail)
        self.detail, self.counterexample = detail, counterexample


# ---------------------------------------------------------------- values
def values(found: Filled, rng: np.random.Generator, style: str) -> dict[str, Array]:
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


SHOWN = 24  # elements shown in full in a counterexample; of a larger array, the first and last few of each axis


def _show(x: Array) -> str:
    if x.size > SHOWN:
        return np.array2string(x, threshold=SHOWN, precision=6, separator=", ", prefix="      ")
    if not x.ndim:
        return f"{x.item():.7g}" if x.dtype.kind == "f" else str(x.item())
    return f"[{', '.join(map(_show, map(np.asarray, x)))}]"


# ---------------------------------------------------------------- one instance
class Filled(Protocol):
    """Protocol of a rule with concrete types for its tensor variables.

    An `Instance`, or its counterpart for text rules.
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
        """(left, right) of each pair of sides; ShapeError if a side is ill typed."""
        ...


class RuleTrial:
    """Evaluation of both sides of a rule on one instance. Raises Refuted if their types differ."""

    def __init__(self, rule: Rule | TextRule | None, found: Filled, rng: np.random.Generator) -> None:
        self.rule, self.found, self.rng = rule, found, rng
        self.pairs = self.typed()
        roots = [side for pair in self.pairs for side in pair]
        self.roots = expand_all(roots)
        self.order = topological(self.roots)
        self.empty = any(0 in node.shape for node in self.order)

    def typed(self) -> list[tuple[Tensor, Tensor]]:
        """The pairs of sides, checked to have equal types; raises Refuted otherwise."""
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
        """The exception `Refuted` with shapes, operand values and both results, to be raised."""
        lines = [f"  {self.found}", *(f"  {n} = {_show(x)}" for n, x in data.items())]
        return Refuted(detail, "\n".join([*lines, f"  left  = {_show(left)}", f"  right = {_show(right)}"]))

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
            except Unsaid:
                return False
            for left, right in zip(self.roots[::2], self.roots[1::2]):
                if not np.array_equal(got[id(left)], got[id(right)]):
                    raise self.refute(f"the sides differ modulo {p}", data, got[id(left)], got[id(right)])
        return True

    def run(self, data: Mapping[str, Array], *, float64: bool) -> list[Array] | None:
        """Values of all nodes of both sides in evaluation order.

        None if the left side cannot be computed (such as the maximum of an empty axis).
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

        Raises Refuted for different results.
        """
        if self.empty and style in ("zeros", "wide"):
            style = "plain"  # 0/0 over an empty axis is the one corner case not tested
        data = values(self.found, self.rng, style)
        got = self.run(data, float64=True)
        if got is None:
            return False
        at = {id(n): x for n, x in zip(self.order, got)}
        floats = [x for n, x in zip(self.order, got) if dtypes.is_float(n.dtype) and x.size]
        if style == "wide" and (not all(np.isfinite(x).all() for x in floats) or self.vanishes(at)):
            return False
        peak = max((float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for x in floats), default=0.0)
        said = False
        for i in range(0, len(self.roots), 2):
            left, right = at[id(self.roots[i])], at[id(self.roots[i + 1])]
            said |= not left.size or not dtypes.is_float(self.roots[i].dtype) or bool(np.isfinite(left).any())
            if problem := self.differs(i, data, left, right, peak):
                raise self.refute(f"{problem} on {style} values", data, left, right)
        return said

    def vanishes(self, at: Mapping[int, Array]) -> bool:
        """Whether a product or quotient of nonzero numbers, at a node, underflows float64's normal range."""
        for node in self.order:
            if node.op in ("mul", "div", "recip") and dtypes.is_float(node.dtype):
                there = np.logical_and.reduce(np.broadcast_arrays(*(at[id(a)] != 0 for a in node.args)))
                if np.any(there & (np.abs(at[id(node)]) < np.finfo(np.float64).tiny)):
                    return True
        return False

    def differs(self, i: int, data: Mapping[str, Array], left: Array, right: Array, peak: float) -> str:
        """Description of a difference between two results beyond rounding; "" if there is none."""
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
        """Estimated condition number of the left side: norm of its change per unit relative change of the operands.

        Rounding errors of operands are amplified by this factor.
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

        Raises Refuted for different results.
        """
        data = values(self.found, self.rng, style)
        got = self.run(data, float64=False)
        if got is None:
            return False
        at = {id(n): x for n, x in zip(self.order, got)}
        for left, right in zip(self.roots[::2], self.roots[1::2]):
            a, b = at[id(left)], at[id(right)]
            if a.dtype != b.dtype or a.shape != b.shape or not _same_bits(a, b):
                raise self.refute(f"claimed exact, but the bits differ on {style} values", data, a, b)
        return True


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a)
    same = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool(np.array_equal(nan, np.isnan(b)) and np.all(same | nan))


# ---------------------------------------------------------------- verdicts
def _judge(rule: Rule, found: Iterator[Instance], seed: int, first: int = 0) -> tuple[dict[str, int], Refuted | None]:
    counts = dict.fromkeys(("instances", "modular", "float64", "bitwise"), 0)
    rng = np.random.default_rng(seed)
    for i, instance in enumerate(found, first):
        try:
            trial = RuleTrial(rule, instance, rng)
            counts["modular"] += trial.exactly()
            for style in (STYLES[i % 4], STYLES[(i + 1) % 4]):
                counts["float64"] += trial.close(style)
            if rule.exact:
                counts["bitwise"] += sum(map(trial.bitwise, ("special", "plain")))
        except Refuted as refuted:
            return counts, refuted
        except FAILURES:
            continue  # an attribute expression of the right side has no value, so the rule does not match
        counts["instances"] += 1
    return counts, None


def check(rule: Rule, *, seed: int = 0, samples: int = 24, attempts: int = 4000) -> Verdict:
    """Verdict of random tests on a rule: `samples` instances per direction, with up to `attempts` draws each.

    Returns "tested" or "refuted"; "unknown" if too few instances were found or none had a value to compare. RuleError
    if the rule is malformed.
    """
    rule.check()
    total: dict[str, int] = {}
    for one in rule.directions:
        counts, refuted = _judge(one, instances(one, random.Random(seed), samples, attempts=attempts), seed)
        if refuted is not None:
            return Verdict("refuted", f"{one.name}: {refuted.detail}", refuted.counterexample)
        if counts["instances"] < min(4, samples) or not counts["float64"] + counts["modular"]:
            return Verdict(
                "unknown", f"{one.name}: {counts['instances']} instances, {counts['float64']} with finite values"
            )
        if rule.exact and not counts["bitwise"]:
            return Verdict("unknown", f"{one.name}: no instance could be compared bit by bit")
        total = {k: total.get(k, 0) + v for k, v in counts.items()}
    said = [f"{total['instances']} instances", f"{total['modular']} modulo primes", f"{total['float64']} in float64"]
    return Verdict("tested", ", ".join(said + ([f"{total['bitwise']} bitwise"] if rule.exact else [])))


def verdict(rule: Rule, *, seed: int = 0, samples: int = 24) -> Verdict:
    """Verdict of random tests (`check`) on a rule and, if nothing refutes it, of a proof attempt.

    A proof is either SMT over all sizes and ranks (smt/prove.py) with random evaluations whose error probability is
    below 2**-60 (rules/semantics/prime_field.py), or bitwise (bits.py). A rule that is not proved stays "tested", and
    the detail says why.
    """
    found = check(rule, seed=seed, samples=samples)
    if found.status != "tested":
        return found
    said: dict[str, None] = {}
    for one in rule.directions:
        suspects: list[Instance] = []
        done, why = _proof(one, seed, samples, suspects)
        for suspect in () if done else suspects:
            if (seen := confirmed(one, suspect)) is not None:
                return seen
        if not done:
            return Verdict("tested", f"{found.detail}; not proved: {why}")
        said[why] = None
    return Verdict("proved", "; ".join([*said, found.detail]))


def confirmed(rule: Rule, suspect: Instance) -> Verdict | None:
    """Verdict "refuted" at an instance suggested by a failed proof.

    None if the rule does not match there or evaluation agrees.
    """
    try:
        tensors = suspect.tensors()
        for left in rule.lefts:
            build(left, tensors, suspect.attrs)
    except (ShapeError, *FAILURES):
        return None
    found = judge(rule, suspect) if holds(list(rule.guards), suspect.env()) else None
    return found if found is not None and found.status == "refuted" else None


def _proof(rule: Rule, seed: int, samples: int, suspects: list[Instance]) -> tuple[bool, str]:
    """Tries to prove a one-way rule. Returns (proved, how or why not).

    Appends instances at which the rule may fail to `suspects`. A bitwise proof covers every case; an SMT proof also
    needs random evaluations with a small error probability, or finitely many evaluations that decide the rule
    (check/piecewise_linear.py).
    """
    from ..smt.prove import prove
    from .bits import prove_bits
    from .piecewise_linear import decides

    done, why = prove(rule, suspects)
    if done:
        bits = [_sure(rule, x, seed) for x in instances(rule, random.Random(seed), samples)]
        least = min((b for b in bits if b), default=0.0)  # negative if an evaluation differs
        if least >= BITS:
            return True, f"{why}; random evaluation errs with a chance below 2^-{int(least)}"
        if decides(rule) or any(_decided(rule, x, seed) for x in instances(rule, random.Random(seed), 16 * samples)):
            return True, f"{why}; equal at all points that decide terms that are linear piece by piece"
        why = "exact evaluation does not apply"
    decided, said = prove_bits(rule)
    return decided, said if decided else why


def _sure(rule: Rule, found: Instance, seed: int) -> float:
    """Confidence in bits (`field.agreement`) that one instance holds.

    Evaluated as given, then with exponentials, then with redundant rectifiers removed.
    """
    try:
        trial = RuleTrial(rule, found, np.random.default_rng(seed))
    except (Refuted, *FAILURES):
        return 0.0
    roots = finite(trial.roots)
    order, sides = topological(roots), list(zip(roots[::2], roots[1::2]))
    if (bits := agreement(order, sides, trial.rng, orders=ORDERS)) > 0:
        return bits
    if any(n.op in ("exp", "log") for n in order):
        return sure(order, sides, trial.rng, orders=ORDERS)
    plain = expand_all(unrectified([side for pair in trial.pairs for side in pair]))
    return agreement(topological(plain), list(zip(plain[::2], plain[1::2])), trial.rng, orders=ORDERS)


def _decided(rule: Rule, found: Instance, seed: int) -> bool:
    """Whether finitely many operand values decide an instance, and all of them agree (check/piecewise_linear.py)."""
    from .piecewise_linear import decides_at

    try:
        trial = RuleTrial(rule, found, np.random.default_rng(seed))
    except (Refuted, *FAILURES):
        return False
    return decides_at(trial.order, list(zip(trial.roots[::2], trial.roots[1::2])))


def require(rule: Rule, *, seed: int = 0, samples: int = 24) -> Verdict:
    """Verdict of random tests (`check`) on a rule; RuleError with the counterexample if they refute it."""
    verdict = check(rule, seed=seed, samples=samples)
    if verdict.status == "refuted":
        raise RuleError(
            f"the rule is wrong: {verdict.detail}\n{verdict.counterexample}",
            where=rule.name,
            hint="add the missing condition to `when`, or drop `exact` if only rounding differs",
        )
    return verdict


def about_cost(guard: Attr) -> bool:
    """Whether a guard states where a rule is profitable rather than where it is sound."""
    return isinstance(guard, Apply) and guard.function in COST_GUARDS


def judge(rule: Rule, instance: Instance, *, seed: int = 0, style: int = 0) -> Verdict:
    """Verdict on one instance of a one-way rule, on values of styles `style` and `style + 1`.

    The rule's guards are not checked.
    """
    counts, refuted = _judge(rule, iter((instance,)), seed, style)
    if refuted is not None:
        return Verdict("refuted", f"{rule.name}: {refuted.detail}", refuted.counterexample)
    return Verdict("tested" if counts["instances"] else "unknown", f"{counts['float64']} comparisons in float64")


def mutate_guards(rule: Rule, *, seed: int = 0, samples: int = 60) -> list[tuple[str, Verdict]]:
    """Verdicts on a rule without each of its guards on shapes or dtypes, as (guard text, verdict).

    Each verdict is from instances that violate this guard alone: "refuted" means that the guard is needed, "tested"
    that the rule holds without it, and "unknown" that no instance violates it alone (the other guards imply it).
    """
    rule.check()
    found = []
    for i, (text, guard) in enumerate(zip(rule.when, rule.guards)):
        if not about_cost(guard) and text not in LIMITS.get(rule.name, ()):
            rest = [g for j, g in enumerate(rule.guards) if j != i]
            found.append((text, _without(rule, guard, rest, seed, samples)))
    return found


def _without(rule: Rule, guard: Attr, rest: Sequence[Attr], seed: int, samples: int) -> Verdict:
    tried = 0
    for one in rule.directions:
        violating = instances(
            one, random.Random(seed), samples, guards=rest, accept=lambda x: not holds([guard], x.env()), attempts=1500
        )
        counts, refuted = _judge(one, violating, seed)
        if refuted is not None:
            return Verdict("refuted", f"{one.name}: {refuted.detail}", refuted.counterexample)
        tried += counts["instances"]
    if not tried:
        return Verdict("unknown", "no instance violates it alone")
    return Verdict("tested", f"holds on {tried} instances that violate it")
