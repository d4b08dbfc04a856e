"""Replaying an explanation: every step is checked by what its rule says and by values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .composite import expand
from .dims import concrete
from .explain import CONSTANT, DEFINITION, GAP, Explanation, Step
from .graph import LEAVES, Tensor, topological
from .instance import is_instance, number_of
from .interpret import evaluate
from .rule import Rule


@dataclass(frozen=True)
class Checked:
    """What replaying an explanation found. `errors[i]` is the largest relative error that step i makes in its subterm or
    in the whole, float64. `wrong` lists the steps over the tolerance, not an instance of their rule, or not joined to the
    step before, and the number of steps if they end elsewhere than they should. `finite`: some value was."""

    errors: tuple[float, ...]
    wrong: tuple[int, ...]
    finite: bool

    @property
    def ok(self) -> bool:
        """Whether every step held, on values of which some were finite."""
        return not self.wrong and self.finite


def check(
    explanation: Explanation,
    rules: Iterable[Rule],
    *,
    bounds: Mapping[str, int] | None = None,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> Checked:
    """Replay every step: each must start where the one before ended, be an instance of its rule (recognised from the
    rule alone), and leave the values of the subterm and of the whole term as they were, in float64 on random inputs of both signs and on
    positive ones. `bounds` gives the size that integer inputs stay below.
    """
    steps, by_name = explanation.steps, {d.name: d for r in rules for d in r.directions}
    ends = [explanation.original, *(s.new for s in steps)]
    wrong = {i for i, s in enumerate(steps) if ends[i] is not s.old or not _is_instance(s, by_name)}
    if ends[-1] is not explanation.chosen:
        wrong.add(len(steps))
    terms = [explanation.original, *(t for s in steps for t in (s.old, s.new, s.before, s.after))]
    errors, finite = [0.0] * len(steps), False
    for positive in (False, True):
        values = _random_leaves(terms, np.random.default_rng(seed), positive, bounds or {})
        with np.errstate(all="ignore"):
            found = evaluate(terms, values, params=values, float64=True)
        finite |= bool(np.isfinite(np.asarray(found[0], np.float64)).any()) if found[0].size else True
        for i in range(len(steps)):
            old, new, before, after = found[4 * i + 1 : 4 * i + 5]
            errors[i] = max(errors[i], _difference(old, new), _difference(before, after))
    wrong |= {i for i, e in enumerate(errors) if not e <= tolerance}
    return Checked(tuple(errors), tuple(sorted(wrong)), finite)


def _difference(a: Any, b: Any) -> float:
    """Relative Frobenius distance over the places where both are finite; infinite where finiteness differs."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) / (size or 1.0)


def _random_leaves(
    terms: Sequence[Tensor], rng: np.random.Generator, positive: bool, bounds: Mapping[str, int]
) -> dict[str, Any]:
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
    return found


def _is_instance(step: Step, rules: Mapping[str, Rule]) -> bool:
    """Whether a step is what its name says, judged from the two subterms alone."""
    before, after = (step.before, step.after) if step.forward else (step.after, step.before)
    if step.rule == GAP:
        return True  # claims nothing: by value only
    if step.rule == CONSTANT:
        return number_of("full", before.attrs) == number_of("full", after.attrs)
    if step.rule.startswith(DEFINITION):
        return before.op == step.rule.removeprefix(DEFINITION) and before.entry.composite and expand(before) is after
    rule = rules.get(step.rule)
    return rule is not None and any(is_instance(rule, i, before, after) for i in range(len(rule.lefts)))


__all__ = ["Checked", "check"]
