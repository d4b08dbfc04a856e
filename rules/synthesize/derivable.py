"""Tests whether rules derive another rule: both sides of the tested rule are saturated at sample shapes and must end in
one e-class."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.patterns.pattern import build
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.saturate import Limits, saturate_block
from ...egraph.saturate.sessions import SaturationSession
from ...errors import RuleError, ShapeError
from ..semantics.instance import FAILURES, Instance
from ..semantics.sample import instances

LIMITS = Limits(nodes=25_000, iterations=6, seconds=20.0)
BATCH = 300  # candidates per e-graph
SHAPES = 2  # instances at which a candidate must be derived to be dropped


def shapes(rule: Rule, count: int, seed: int = 0) -> list[Instance]:
    """Random instances of a rule without empty values: the best `count` of up to 6 * `count` drawn ones; `seed`: of the
    draws.

    The best are those with the fewest axes of size 1 and with usual dtypes; they come first.
    """

    def typed(found: Instance) -> bool:
        try:
            sides = [side for pair in found.sides(rule) for side in pair]
        except (ShapeError, *FAILURES):
            return False
        return all(0 not in n.shape for n in topological(sides)) and all(a.type == b.type for a, b in found.sides(rule))

    def special(found: Instance) -> tuple[int, int]:
        sizes = [d for t in found.types.values() for d in t.shape]
        return (
            sum(t.dtype not in ("float32", "bool") for t in found.types.values()) * 9 + sizes.count(1),
            -len(set(sizes)),
        )

    drawn = list(instances(rule, random.Random(seed), 6 * count, accept=typed, attempts=300))
    return sorted(drawn, key=special)[:count]


Claim = list[tuple[Tensor, Tensor]]


def claim(rule: Rule, count: int = SHAPES) -> Claim:
    """Pairs (left, right) of terms that state a one-way rule, at up to `count` choices of operand shapes.

    Empty if no shapes satisfy its conditions. Variables of the same name and type are one leaf in all claims, so that
    claims share terms.
    """
    try:
        drawn = shapes(rule, count)
    except RuleError:
        return []
    found: Claim = []
    for one in drawn:
        names = {n: f"{n}:{t}" for n, t in one.types.items()}
        leaves = Instance(
            {names[n]: t for n, t in one.types.items()}, {}, frozenset(names[n] for n in one.weights)
        ).tensors()
        found += _sides(rule, one, {n: leaves[m] for n, m in names.items()})
    return found


def derived(
    rules: Sequence[Rule], claims: Sequence[Claim], session: SaturationSession, limits: Limits = LIMITS
) -> list[bool]:
    """For each claim, whether the rules prove all its equalities in an e-graph that contains both sides."""
    found = [bool(c and rules) for c in claims]
    pairs = [(i, a, b) for i, c in enumerate(claims) if found[i] for a, b in c if a is not b]
    for start in range(0, len(pairs), BATCH):
        chunk = [p for p in pairs[start : start + BATCH] if found[p[0]]]
        if chunk:
            for (i, _, _), yes in zip(chunk, _met(rules, [(a, b) for _, a, b in chunk], session, limits)):
                found[i] = found[i] and yes
    return found


def _sides(rule: Rule, one: Instance, tensors: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(build(a, tensors, one.attrs), build(b, tensors, one.attrs)) for a, b in zip(rule.lefts, rule.rights)]


def _met(
    rules: Sequence[Rule], pairs: Sequence[tuple[Tensor, Tensor]], session: SaturationSession, limits: Limits
) -> list[bool]:
    """Whether the sides of each pair end up in one e-class."""
    roots = list(dict.fromkeys(side for pair in pairs for side in pair))
    view = saturate_block(Graph.of(roots), rules, limits, guard=False, session=session)
    at = dict(zip(roots, view.roots, strict=True))
    return [at[a] == at[b] for a, b in pairs]
