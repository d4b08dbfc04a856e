"""Checks partially equivalent rewrites: the corrected rule holds, and its stated region is right and tight."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tensor_graphs.egraph.evaluate.interpret import evaluate as values_of
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.patterns.pattern import attr_variables, variables
from tensor_graphs.egraph.patterns.pattern_attrs import holds
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.errors import ShapeError
from tensor_graphs.rules.check.check import Verdict, judge
from tensor_graphs.rules.semantics.instance import Instance
from tensor_graphs.rules.tables.partial import Partial

from .output_regions import Box, wrong_region

Array = np.ndarray[Any, Any]


def drawn(partial: Partial, rng: random.Random, count: int) -> Iterator[Instance]:
    """Random instances that satisfy all guards, with images large enough to contain the regions."""
    rule = partial.rule
    names = {v for t in rule.lefts for v in variables(t)}
    bound = {a for t in rule.lefts for a in attr_variables(t)}
    while count:
        kernel = (rng.randint(1, 4), rng.randint(1, 4))
        groups, depth = rng.choice((1, 1, 2)), rng.choice((1, 2))
        space, spread = [rng.randint(2, 14) for _ in range(2)], [rng.randint(1, 2) for _ in range(2)]
        pads = [rng.randint(0, min(2, spread[i % 2] * (kernel[i % 2] - 1))) for i in range(4)]
        shape = [rng.choice((1, 1, 2)), groups * depth, *space]
        other = [rng.randint(2, 14) if i == partial.axis else d for i, d in enumerate(shape)]
        shapes = {"x": tuple(shape), "y": tuple(other), "w": (groups * 2, depth, *kernel)}
        attrs = {"s": tuple(rng.randint(1, 3) for _ in range(2)), "p": tuple(pads), "d": tuple(spread), "g": groups, "k": kernel,
                 "l": rng.randint(1, 3), "v": rng.choice((1.0, -2.0))}  # fmt: skip
        types = {n: Type(shapes[n], "float32") for n in sorted(names)}
        found = Instance(types, {a: v for a, v in attrs.items() if a in bound}, frozenset())
        if holds(rule.guards, found.env()):
            with suppress(ShapeError):
                found.sides(rule)
                count -= 1
                yield found


def uncorrected(partial: Partial) -> Rule:
    """The rule with the mutants as right sides; checking must refute it."""
    fields = {k: v for k, v in partial.rule.__dict__.items() if k not in ("lefts", "rights", "guards")}
    right = partial.mutants if isinstance(partial.rule.left, tuple) else partial.mutants[0]
    return Rule(**{**fields, "name": f"{partial.rule.name}-uncorrected", "right": right})


def verify(partial: Partial, *, seed: int = 0, samples: int = 24) -> Verdict:
    """Tests the corrected rule, and that its region is correct and tight, on `samples` instances.

    On each instance the rule is judged by `check`. If a mutant is well typed, the region computed from the two programs
    must equal the closed form, the programs must agree outside of it, and every element inside must differ in some
    random draw. "refuted" says what failed and where.
    """
    rng, regions = random.Random(seed), 0
    for one in drawn(partial, rng, samples):
        verdict = judge(partial.rule, one, seed=rng.randrange(1 << 30))
        if verdict.status != "tested":
            return verdict
        try:
            pairs = one.sides(uncorrected(partial))
        except ShapeError:
            continue
        for i, (original, mutant) in enumerate(pairs):
            if original.type == mutant.type:
                regions += 1
                stated = partial.region(i, one.env(), concrete(original.shape))
                if problem := _untrue(stated, original, mutant, rng.randrange(1 << 30)):
                    return Verdict("refuted", f"{partial.rule.name}: {problem}", str(one))
    return Verdict("tested", f"{samples} instances, {regions} regions, right and tight")


def _untrue(stated: Sequence[Box], original: Tensor, mutant: Tensor, seed: int) -> str:
    """Why a stated region is wrong, or ''."""
    found = wrong_region(original, mutant)
    if stated != found:
        return f"the region is {found}, not {stated}"
    inside: Array = np.zeros(concrete(original.shape), np.bool_)
    for box in stated:
        inside[tuple(slice(*part) for part in box)] = True
    differs = difference(original, mutant, inside, seed=seed)
    return "" if np.array_equal(differs, inside) else f"{inside.sum()} elements in the region, {differs.sum()} differ"


def difference(original: Tensor, mutant: Tensor, expected: Array, *, seed: int = 0, draws: int = 200) -> Array:
    """Boolean mask of the elements at which two programs differ in any random draw of small integers, exact in float64.

    Stops after a dozen draws once the mask equals `expected`; a maximum hides most differences in a single draw.
    """
    rng = np.random.default_rng(seed)
    leaves = [n for n in topological([original, mutant]) if n.is_leaf]
    found: Array = np.zeros(concrete(original.shape), np.bool_)
    for i in range(draws):
        data = {n.attr("name"): rng.integers(-999, 999, concrete(n.shape)).astype(np.float64) for n in leaves}
        a, b = values_of([original, mutant], data, params=data, float64=True)
        found = found | (np.abs(a - b) > 1e-6)
        if i >= 11 and np.array_equal(found, expected):
            break
    return found
