"""Computes verdicts on rules in Tensat's language: proofs and counterexamples, from the rule's text alone.

A rule claims: wherever all its sides are well typed, each left side equals its right side. A scope (text/scopes.py)
says how convolutions may be grouped where the format leaves this open. Under each scope, widest first, members of the
rule's families of shapes are drawn and both sides are evaluated like those of built-in rules (rules/check/check.py):
types, exact arithmetic modulo two primes, float64 on several kinds of values. The rule is claimed for the widest scope
under which nothing refutes it.

- "proved": in every family of a scope both sides have the same canonical form over symbolic sizes (symbolic.py), and
  random evaluations with uninterpreted functions leave a probability below 2**-60 that the sides differ at the
  evaluated shapes (prime_field.py).
- "tested": nothing refutes the rule, but the canonical forms differ, not all parameter values could be enumerated, or
  it holds only if joined kernels have the same shape, which the rule does not state.
- "refuted": with shapes and values, or with shapes at which only one side is well typed or the types differ.
- "unknown": an unknown operator or code, or no shapes were found although there may be some.

A proof covers every size from 1 on and every rank: operators act elementwise along an axis that they do not name, so
the ranks that are drawn stand for all. Variable kernels under "same" padding have odd sizes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...errors import ShapeError
from ..check.check import Verdict
from ..check.trial import STYLES, Refuted, RuleTrial
from ..semantics.prime_field import BITS, PRIMES, agreement, unrectified
from .instance import TextInstance
from .linear_equations import Affine
from .scopes import SCOPES, AxisScope, group_counts, scopes
from .shape_families import Typing
from .shapes import Families, typings
from .signs import Effort, Signs
from .symbolic import proves
from .terms import Typed
from .text_rule import Input, TextApply, TextRule, nodes
from .typer import ATTRIBUTES, SYMBOLIC

SECONDS = 20.0  # per rule
MEMBERS = 10  # members evaluated per scope
MORE = 40  # members in the second, larger test of a rule that is not proved
FINITE = ("act", "pad", "axis", "ndim", "shuffle")  # parameter variables whose values are enumerated
EVERY_VALUE = ("act", "pad", "shuffle")  # parameters with no values beyond the enumerated ones
IMAGES = ("conv2d", "poolmax", "poolavg")
ELEMENTWISE = ("ewadd", "ewmul", "smul", "relu", "tanh", "sigmoid")
LETTERS = 6  # largest number of transposes in a rule with a variable permutation
HUGE = 1 << 60  # only sizes are compared, so any volume is allowed
TEXT_STYLES = (
    *STYLES,
    "signs",
    "signs",
)  # otherwise a maximum over a large window rarely has only negative operands
LITERAL = 48  # number of parameter values at which the types are checked
UNTYPED = "the right side has no type where the left has one"
VAGUE = ("reshape",)  # operators whose shapes are not enumerated completely


@dataclass(frozen=True)
class _At:
    """Adapter from a member of a family of shapes to the protocol `TypedRule`, which `RuleTrial` evaluates."""

    member: TextInstance

    @property
    def types(self) -> Mapping[str, Type]:
        """Type of each tensor variable of the rule: its shape in this member of the family, float32."""
        return {n: Type(s, "float32") for n, s in self.member.shapes.items()}

    @property
    def bounds(self) -> Mapping[str, int]:
        """Empty: no variable is used as an index."""
        return {}

    def sides(self, rule: Any) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides as tensors."""
        return self.member.sides()

    def __str__(self) -> str:
        return str(self.member)


@dataclass
class _Tally:
    """Number of evaluations under one scope."""

    members: int = 0
    modular: int = 0
    float64: int = 0

    def __str__(self) -> str:
        return f"{self.members} shapes, {self.modular} modulo primes, {self.float64} in float64"


@dataclass(frozen=True)
class _Passed:
    """A scope under which nothing refutes a rule; `why` is the reason why there is no proof."""

    scope: AxisScope
    families: Families
    tally: _Tally
    why: str = ""


def check_text(rule: TextRule, *, seed: int = 0, seconds: float = SECONDS) -> Verdict:
    """Check whether a rule in Tensat's language is sound; returns the verdict (proved, tested, refuted or unknown: see
    the module) with its evidence.

    `seed`: of the random shapes and values. After `seconds` no further test begins, and the verdict rests on those
    done.
    """
    until = perf_counter() + seconds
    if rule.problem:
        return Verdict("unknown", rule.problem)
    if rule.attributes and (wrong := _instance_without_meaning(rule, seed)):
        return wrong
    refuted: Refuted | None = None
    passed: list[_Passed] = []
    large = False
    for scope in scopes(rule):
        families = _meant(rule, scope, until=until)
        try:
            tally = _evaluate(rule, families, seed, until=until)
        except Refuted as found:
            refuted = found
            continue
        if not tally.members:
            large |= any(f.fits(random.Random(seed)) for f in families.found)
        if not tally.members or (scope.kin and passed):
            continue
        bits, why = _proof(rule, scope, families, seed, until)
        if bits and not scope.kin:
            return _proved(rule, _Passed(scope, families, tally), bits, passed)
        passed.append(_Passed(scope, families, tally, why or "kernels of different shapes have other values"))
    for one in passed:
        try:
            more = _evaluate(rule, one.families, seed + 1, MORE, until)
        except Refuted as found:
            refuted = found
            continue
        return Verdict("tested", "; ".join(filter(None, (str(more), one.scope.description, f"not proved: {one.why}"))))
    if large:
        return Verdict("unknown", "no shapes are small enough to evaluate it")
    if refuted is not None:
        return Verdict("refuted", refuted.detail, refuted.counterexample)
    return _meaningless(rule, seed)


def _meant(rule: TextRule, scope: AxisScope, *, symbolic: bool = False, until: float = inf) -> Families:
    """The families for which a rule is meant under a scope: those in which no axis is forced to have size 1 (`_wide`).

    If there are none, those in which each side by itself forces the same axes: these are the sides' own shapes, not a
    corner case in which two sides of different shapes happen to agree.
    """
    families = typings(rule, scope, symbolic=symbolic, until=until)
    found = _wide(rule, scope, families, until)
    if found.found or not families.found:
        return found
    alone = [
        typings(replace(rule, lefts=side, rights=()), scope, only_left=True, symbolic=symbolic, until=until)
        for side in (rule.lefts, rule.rights)
    ]
    if not all(side.complete for side in alone):
        return found
    narrow = [f for f in families.found if _forced_alone(f, [side.found for side in alone])]
    return Families(narrow, found.why, families.complete)


def _forced_alone(family: Typing, sides: Sequence[Sequence[Typing]]) -> bool:
    """Whether the axes that a family forces to size 1 are also forced in all families of each single side with the same
    parameters and ranks."""
    count, first = len(family.pairs), 0
    ones = {n: _ones(family, t) for n, t in family.inputs.items()}
    for families in sides:
        same = [f for f in families if _chosen(f) <= _chosen(family) and f.ranks.items() <= family.ranks.items()]
        for other in same:
            known = [(ones[n], t) for n, t in other.inputs.items()]
            known += [(_ones(family, t), o) for t, o in zip(family.terms[first : first + count], other.terms)]
            if any(axes - _ones(other, t) for axes, t in known):
                return False
        if not same:
            return False
        first += count
    return True


def _chosen(family: Typing) -> Set[tuple[str, Any]]:
    """The parameters of a family with concrete values; the others are unknowns."""
    return {(n, v) for n, v in family.attrs.items() if not isinstance(v, Affine)}


def _wide(rule: TextRule, scope: AxisScope, families: Families, until: float = inf) -> Families:
    """The families without those whose types force an axis to size 1, where almost anything holds.

    A rule that names a kernel of size 1 is exempt, except for its images.
    """
    calls = [n for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, TextApply)]
    meant = any(v == 1 for c in calls for k, v in c.params if k in ("kernel_h", "kernel_w"))
    images = {v.name for c in calls if c.op in IMAGES for v in nodes(c.args[0]) if isinstance(v, Input)}
    shaped = any(c.op == "reshape" for c in calls)

    def kept(family: Typing) -> bool:
        watched = [t for n, t in family.inputs.items() if n in images or not meant]
        return shaped or not any(_ones(family, t) for t in (watched if meant else [*watched, *family.terms]))

    found, complete = [], families.complete
    for family in families.found:
        if kept(family):
            found.append(family)
        if found and perf_counter() > until:
            complete = False
            break
    if scope.constants:  # groups are chosen so that the sides have equal shapes, for each choice of all else
        possible = [(f.attrs, f.ranks) for f in found if f.agrees()]
        found = [f for f in found if f.agrees() or (f.attrs, f.ranks) not in possible]
    return Families(found, families.why or "its types force sizes of 1", complete)


def _ones(family: Typing, value: Typed) -> set[int]:
    """The axes of a value that have size 1 (or 0) in the whole family."""
    signs = Signs(family)
    return {i for i, s in enumerate(value.sizes) if signs.nonnegative(s * -1 + 1)}


def _evaluate(rule: TextRule, families: Families, seed: int, members: int = MEMBERS, until: float = inf) -> _Tally:
    """Evaluates members of the families; raises Refuted with the first counterexample.

    One member is evaluated even after `until`.
    """
    tally = _Tally()
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    chosen = families.found if len(families.found) <= members else draw.sample(families.found, members)
    each = -(-members // max(1, len(chosen)))
    for family in chosen:
        if tally.members and perf_counter() > until:
            break
        if not family.agrees():
            for member in family.instances(draw, 24, volume=HUGE, work=HUGE):
                for left, right in family.pairs:
                    a, b = member.shape(left), member.shape(right)
                    if a != b:
                        raise Refuted(
                            "the sides have different shapes", f"  {member}\n  left: {list(a)}, right: {list(b)}"
                        )
        for member in family.instances(draw, each):
            try:
                trial = RuleTrial(rule, _At(member), rng)
            except ShapeError:  # sizes that the equations do not describe (a reshape)
                continue
            tally.modular += trial.exactly()
            for i in (0, 1):
                tally.float64 += trial.close(TEXT_STYLES[(tally.members + i) % len(TEXT_STYLES)])
            tally.members += 1
    return tally


def _proved(rule: TextRule, one: _Passed, bits: float, wider: Sequence[_Passed]) -> Verdict:
    """The verdict on a rule that is proved under a scope; under the wider scopes it is only tested."""
    scope, families = one.scope, one.families
    calls = [n for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, TextApply)]
    reasons = [f"normal forms are equal for all sizes and ranks in {len(families.found)} families of shapes"]
    if any(c.op == "matmul" for c in calls) and any(c.op == "concat" and c.param("ndim") is None for c in calls):
        reasons.append("axes without a rank are those of matrices")
    groups = group_counts(rule, scope)
    if len(groups) > 1 and any(c.op == "conv2d" for c in calls):
        reasons.append(f"convolutions of up to {max(groups)} groups")
    if scope.description:
        reasons.append(scope.description)
    reasons.append(f"random evaluation modulo {PRIMES[0]} and {PRIMES[1]} errs with a chance below 2^-{int(bits)}")
    reasons += [f"beyond that ({w.scope.description or 'more groups'}) tested only: {w.tally}" for w in wider]
    return Verdict("proved", "; ".join([*reasons, str(one.tally)]))


def _proof(rule: TextRule, scope: AxisScope, families: Families, seed: int, until: float) -> tuple[float, str]:
    """(confidence in bits of the random evaluations, or 0 if there is no proof; the reason).

    Variable strides and kernels stay symbolic in the families for which equality is proved; evaluations use some of
    their values.
    """
    kinds = set(rule.attributes.values())
    general_kinds = {*SYMBOLIC, "perm"} if _words(rule) else {*SYMBOLIC}
    if open_ := sorted(kinds - {*FINITE, *general_kinds}):
        return 0, f"not every {', '.join(open_)} was tried"
    general = _meant(rule, scope, symbolic=True, until=until) if kinds & general_kinds else families
    if not general.complete:
        return 0, "the choices of ranks and parameters were not all tried"
    effort = Effort(until=until)
    for family in general.found:
        done, why = proves(family, effort)
        if not done:
            return 0, why
    rng, least = np.random.default_rng(seed), float("inf")
    for family in families.found[:2]:
        small = sorted(
            family.instances(random.Random(seed), 8), key=lambda m: (m.volume < 4, m.volume)
        )  # few collisions
        bits = [_agreed(m, rng) for m in small[:2]]
        least = min(least, min(bits) if min(bits, default=0.0) < 0 else max(bits, default=least))
    if not BITS < least < float("inf"):
        return 0, "exact evaluation does not apply"
    return least, ""


def _words(rule: TextRule) -> bool:
    """Whether the rule has one variable permutation that only occurs in transposes between elementwise operators."""
    calls = [n for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, TextApply)]
    moved = [c for c in calls if c.op == "transpose"]
    return (
        list(rule.attributes.values()).count("perm") == 1
        and len(moved) <= LETTERS
        and all(c.op in (*ELEMENTWISE, "transpose") for c in calls)
    )


def _agreed(member: TextInstance, rng: np.random.Generator) -> float:
    """Confidence in bits that random evaluations of a member agree: as given, or with redundant rectifiers removed."""
    sides, bits = [side for pair in member.sides() for side in pair], 0.0
    for form in (list, unrectified):
        roots = expand_all(form(sides))
        bits = agreement(topological(roots), list(zip(roots[::2], roots[1::2])), rng)
        if bits > 0:
            break
    return bits


def _instance_without_meaning(rule: TextRule, seed: int) -> Verdict | None:
    """The refutation of a rule that has parameter values at which the left side is well typed and the right side is
    not; else None."""
    options = [ATTRIBUTES[kind] for kind in rule.attributes.values()]
    every = list(product(*options))
    for values in every if len(every) <= LITERAL else random.Random(seed).sample(every, LITERAL):
        one = rule.at(dict(zip(rule.attributes, values)))
        if any(_meant(one, scope).found for scope in scopes(one)):
            continue
        found = _meaningless(one, seed)
        if found.status == "refuted" and found.detail.startswith(UNTYPED):
            reasons = ", ".join(f"?{n} = {v}" for n, v in zip(rule.attributes, values))
            return Verdict("refuted", f"at {reasons}: {found.detail}", found.counterexample)
    return None


def _meaningless(rule: TextRule, seed: int) -> Verdict:
    """The verdict if no shapes make every side well typed."""
    families = typings(rule, symbolic=bool(rule.attributes))
    both = [n for side in (*rule.lefts, *rule.rights) for n in nodes(side)]
    few = not {*rule.attributes.values()} <= {*EVERY_VALUE, *SYMBOLIC} or bool(rule.attributes and families.found)
    if few or not families.complete or any(isinstance(n, TextApply) and n.op in VAGUE for n in both):
        return Verdict("unknown", f"no shapes were found at which all sides have types: {families.why}")
    left = _wide(rule, SCOPES[0], typings(rule, only_left=True))
    for family in left.found:
        for member in family.instances(random.Random(seed), 1, tries=200):
            shapes = ", ".join(str(list(t.shape)) for t in member.lefts())
            return Verdict("refuted", f"{UNTYPED}: {families.why or 'sizes do not fit'}",
                           f"  {member}\n  left: {shapes}, right: no type")  # fmt: skip
    why = left.why or "no sizes fit"
    return Verdict(
        "refuted",
        f"the left side has no type but where sizes are 1: {why}",
        f"  left: {'; '.join(map(str, rule.lefts))}",
    )
