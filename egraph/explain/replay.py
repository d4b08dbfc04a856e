"""Replays an explanation: checks every step against its rule and by evaluating both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..composites.recurrent import parts_of
from ..evaluate.interpret import evaluate
from ..ir.tensor import LEAVES, Tensor, make, topological
from ..patterns.rule import Rule
from ..types import dtypes
from ..types.dims import concrete
from .explain import DEFINITION, Explanation, ProofStep
from .proof_steps import CONSTANT, GAP
from .rule_instance import is_instance, op_key


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay.

    `errors[i]` is the largest relative error (float64) that step i causes in its subterm or in the whole term. `wrong`
    lists the steps that exceed the tolerance, are not an instance of their rule, or do not start at the previous step's
    term; it includes the number of steps if the last term is not the chosen one. `finite`: whether some value of the
    original term was finite.
    """

    errors: tuple[float, ...]
    wrong: tuple[int, ...]
    finite: bool

    @property
    def ok(self) -> bool:
        """Whether no step is wrong and some value of the original term is finite."""
        return not self.wrong and self.finite


def check(
    explanation: Explanation,
    rules: Iterable[Rule],
    *,
    bounds: Mapping[str, int] | None = None,
    whole: bool = True,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> ReplayResult:
    """Result of replaying every step of an explanation.

    Each step must start at the previous step's result, rewrite exactly one subterm, be an instance of its rule (judged
    from the rule alone), and preserve values in float64 on random inputs (drawn from `seed`; relative differences up
    to `tolerance`), once with both signs and once positive.

    `whole` compares the values of the whole terms; otherwise only the rewritten subterms are compared, with random
    inputs in place of the subterms that both terms share, which takes a fraction of the time. The first and last terms
    are always compared whole. `bounds` maps integer inputs to an exclusive upper bound (default 2).
    """
    steps, by_name = explanation.steps, {d.name: d for r in rules for d in r.directions}
    ends = [explanation.original, *(s.new for s in steps)]
    wrong = {
        i for i, s in enumerate(steps) if ends[i] is not s.old or not _is_rewriting(s) or not _is_instance(s, by_name)
    }
    if ends[-1] is not explanation.chosen:
        wrong.add(len(steps))
    pairs = [(explanation.original, ends[-1])]
    for step in steps:
        local = (step.before, step.after) if whole or not step.reconstructed else _local(step)
        pairs += [local, (step.old, step.new) if whole else local]
    differences, finite = _compared(pairs, seed, bounds or {})
    if not differences[0] <= tolerance * max(1, len(steps)):
        wrong.add(len(steps))
    errors = [max(differences[2 * i + 1], differences[2 * i + 2]) for i in range(len(steps))]
    for i, error in enumerate(
        errors
        # Both forms may share a subterm only because of its value; replacing it by a random input then proves nothing,
        # so compare the steps without the replacement.
    ):
        if not error <= tolerance and not whole:
            ((errors[i],), _) = _compared([(steps[i].before, steps[i].after)], seed, bounds or {})
    wrong |= {i for i, e in enumerate(errors) if not e <= tolerance}
    return ReplayResult(tuple(errors), tuple(sorted(wrong)), finite)


def _compared(pairs: Sequence[tuple[Tensor, Tensor]], seed: int, bounds: Mapping[str, int]) -> tuple[list[float], bool]:
    """Returns (largest relative difference of each pair over all inputs, whether the first term had finite values)."""
    terms = [t for pair in pairs for t in pair]
    errors, finite = [0.0] * len(pairs), False
    for positive in (False, True):
        values = _random_leaves(terms, np.random.default_rng(seed), positive, bounds)
        with np.errstate(all="ignore"):
            found = evaluate(terms, values, params=values, float64=True)
        finite |= bool(np.isfinite(np.asarray(found[0], np.float64)).any()) if found[0].size else True
        errors = [max(e, _difference(a, b)) for e, a, b in zip(errors, found[::2], found[1::2])]
    return errors, finite


def _local(step: ProofStep) -> tuple[Tensor, Tensor]:
    """(subterm before a step, subterm after), with inputs in place of the largest float subterms that both contain."""
    shared = set(topological([step.before])) & set(topological([step.after]))
    known: dict[Tensor, Tensor] = {}

    def cut(term: Tensor) -> Tensor:
        if term not in known:
            if term in shared and not term.is_leaf and dtypes.is_float(term.dtype):
                known[term] = make(
                    "input", (), {"name": f"shared {len(known)} {term.type}", "shape": term.shape, "dtype": term.dtype}
                )
            elif term.args:
                known[term] = make(term.op, [cut(a) for a in term.args], dict(term.attrs))
            else:
                known[term] = term
        return known[term]

    return cut(step.before), cut(step.after)


def _is_rewriting(step: ProofStep) -> bool:
    """Whether the whole terms differ only in the rewritten subterm."""
    stack, seen = [(step.old, step.new)], set[tuple[Tensor, Tensor]]()
    while stack:
        pair = a, b = stack.pop()
        if a is b or pair in seen or (a is step.before and b is step.after):
            continue
        seen.add(pair)
        if a.op != b.op or a.attrs != b.attrs or len(a.args) != len(b.args) or not a.args:
            return False
        stack += zip(a.args, b.args)
    return True


def _difference(a: Any, b: Any) -> float:
    """Relative Frobenius distance over the elements where both are finite; infinite if shape or finiteness differs."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) / (size or 1.0)


def _random_leaves(
    terms: Sequence[Tensor], rng: np.random.Generator, positive: bool, bounds: Mapping[str, int]
) -> dict[str, Any]:
    """Random values for the leaves of some terms, by name."""
    found: dict[str, Any] = {}
    for leaf in topological(terms):
        if leaf.op not in LEAVES[:3]:
            continue
        name, shape = str(leaf.attr("name")), concrete(leaf.shape)
        if leaf.dtype == "bool":
            found[name] = rng.random(shape) < 0.5
        elif "int" in leaf.dtype:
            found[name] = rng.integers(0, bounds.get(name, 2), shape).astype(leaf.dtype)
        else:
            x = rng.standard_normal(shape)
            found[name] = np.abs(x) + 0.1 if positive else x
    return {name: np.asarray(value) for name, value in found.items()}  # NumPy returns scalars for rank-0 shapes


def _is_instance(step: ProofStep, rules: Mapping[str, Rule]) -> bool:
    """Whether a step is an instance of its named rule, judged from the two subterms alone."""
    before, after = (step.before, step.after) if step.forward else (step.after, step.before)
    if step.rule == GAP:
        return True  # makes no claim: checked by value only
    if step.rule == CONSTANT:
        return op_key("full", before.attrs) == op_key("full", after.attrs)
    if step.rule.startswith(DEFINITION):
        return before.op == step.rule.removeprefix(DEFINITION) and parts_of(before) is after
    rule = rules.get(step.rule)
    return rule is not None and any(is_instance(rule, i, before, after) for i in range(len(rule.lefts)))


__all__ = ["ReplayResult", "check"]
