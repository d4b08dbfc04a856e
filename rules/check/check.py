"""Checks rules by randomized testing: types, exact modular arithmetic, float64, and bitwise comparison.

On random instances (rules/semantics/sample.py) both sides must have the same type. Then:
- Rules within ring and field arithmetic are evaluated exactly modulo two primes (rules/semantics/prime_field.py),
  without rounding.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.tensor import topological
from ...egraph.patterns.pattern import build
from ...egraph.patterns.pattern_attrs import Apply, Attr, holds
from ...egraph.patterns.rule import Rule
from ...errors import RuleError, ShapeError
from ..semantics.exponents import sure
from ..semantics.instance import FAILURES, Instance
from ..semantics.prime_field import BITS, agreement, finite, unrectified
from ..semantics.sample import instances
from ..semantics.sampler import INTS
from .trial import ORDERS, STYLES, Refuted, RuleTrial

Status = Literal["proved", "tested", "refuted", "unknown"]
EACH, EACH_EMPTY = 2, 10  # instances of each dtype that is not floating, and of operands without elements
EACH_ATTEMPTS = 12  # draws for each of them
STATUSES: tuple[Status, ...] = ("proved", "tested", "refuted", "unknown")
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
            trial.at_edges(seed + i, exact=rule.exact)
        except Refuted as refuted:
            return counts, refuted
        except FAILURES:
            continue  # an attribute expression of the right side has no value, so the rule does not match
        counts["instances"] += 1
    return counts, None


def _refuted_at_corners(rule: Rule, seed: int) -> Refuted | None:
    """What refutes a one-way rule for operands without elements, of bool, or of an integer dtype, which random
    instances may not have had: each of these is tried on a few."""
    for dtype in ("", "bool", *INTS):
        draw, count = random.Random(f"{seed} {dtype}"), EACH if dtype else EACH_EMPTY
        few = instances(rule, draw, count, attempts=EACH_ATTEMPTS, dtype=dtype, empty=not dtype)
        counts, refuted = _judge(rule, few, seed)
        if refuted is not None:
            return refuted
        if dtype == INTS[0] and not counts["instances"]:
            break  # a rule of floats
    return None


def check(rule: Rule, *, seed: int = 0, samples: int = 24, attempts: int = 4000) -> Verdict:
    """Result of random tests of a rule (from `seed`): `samples` instances per direction, with up to `attempts` draws
    each.

    Returns "tested" or "refuted"; "unknown" if too few instances were found or none had a value to compare. Raises
    RuleError if the rule is malformed.
    """
    rule.check()
    total: dict[str, int] = {}
    for one in rule.directions:
        counts, refuted = _judge(one, instances(one, random.Random(seed), samples, attempts=attempts), seed)
        if refuted is not None:
            return Verdict("refuted", f"{one.name}: {refuted.detail}", refuted.counterexample)
        if counts["instances"] < min(4, samples) or not counts["float64"] + counts["modular"]:
            none = f"{one.name}: no shapes and attributes were found that fit the left side and its conditions"
            some = f"{one.name}: {counts['instances']} instances, {counts['float64']} with finite values"
            return Verdict("unknown", some if counts["instances"] else none)
        if rule.exact and not counts["bitwise"]:
            return Verdict("unknown", f"{one.name}: no instance could be compared bit by bit")
        if (refuted := _refuted_at_corners(one, seed)) is not None:
            return Verdict("refuted", f"{one.name}: {refuted.detail}", refuted.counterexample)
        total = {k: total.get(k, 0) + v for k, v in counts.items()}
    parts = [f"{total['instances']} instances", f"{total['modular']} modulo primes", f"{total['float64']} in float64"]
    return Verdict("tested", ", ".join(parts + ([f"{total['bitwise']} bitwise"] if rule.exact else [])))


def verdict(rule: Rule, *, seed: int = 0, samples: int = 24) -> Verdict:
    """Result ("proved", "tested", "refuted" or "unknown") of random tests (`check`) of a rule and, if nothing refutes
    it, of a proof attempt.

    A proof is either SMT over all sizes and ranks (smt/prove.py) with random evaluations whose error probability is
    below 2**-60 (rules/semantics/prime_field.py), or bitwise (bits.py). A rule that is not proved stays "tested", and
    the detail says why.
    """
    found = check(rule, seed=seed, samples=samples)
    if found.status != "tested":
        return found
    proofs: dict[str, None] = {}
    for one in rule.directions:
        suspects: list[Instance] = []
        done, why = _proof(one, seed, samples, suspects)
        for suspect in () if done else suspects:
            if (seen := confirmed(one, suspect)) is not None:
                return seen
        if not done:
            return Verdict("tested", f"{found.detail}; not proved: {why}")
        proofs[why] = None
    return Verdict("proved", "; ".join([*proofs, found.detail]))


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
    decided, how = prove_bits(rule)
    return decided, how if decided else why


def _sure(rule: Rule, found: Instance, seed: int) -> float:
    """Confidence in bits (`field.agreement`) that the sides are equal at one instance.

    Evaluated modulo primes as given, else with exponentials, else with redundant rectifiers removed.
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
    """Result of `samples` random tests (`check`) of a rule, drawn from `seed`. Raises RuleError with the counterexample
    if they refute it."""
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
    """Result of testing one instance of a one-way rule, whose guards are not checked.

    Both sides are compared on two sets of random inputs. `style`: index into `trial.STYLES` of the way in which the
    first is drawn; the second is drawn in the next way, cyclically.
    """
    counts, refuted = _judge(rule, iter((instance,)), seed, style)
    if refuted is not None:
        return Verdict("refuted", f"{rule.name}: {refuted.detail}", refuted.counterexample)
    return Verdict("tested" if counts["instances"] else "unknown", f"{counts['float64']} comparisons in float64")


def mutate_guards(rule: Rule, *, seed: int = 0, samples: int = 60) -> list[tuple[str, Verdict]]:
    """Verdicts on a rule without each of its guards on shapes or dtypes, as (guard text, verdict).

    Each verdict is from instances that violate this guard alone: "refuted" means that the guard is needed, "tested"
    that the rule holds without it, and "unknown" that no instance violates it alone (types
    or other guards imply it, or such instances are rare).
    `samples`: instances per guard.
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
        return Verdict(
            "unknown",
            "no instance violates it alone: the op's types or other guards imply it, or such instances are rare",
        )
    return Verdict("tested", f"holds on {tried} instances that violate it")
