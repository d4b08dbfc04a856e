"""Finds the weakest conjunction of candidate guards under which a rule holds.

A pool holds instances of the left side, some drawn without conditions and some under a candidate guard. Each is
labelled once: do both sides agree there? The search (branch and bound over which guard excludes a failing instance)
looks for a conjunction that no failing instance satisfies and that keeps as many passing instances as possible. The
rule is then tested on fresh instances under that conjunction; a counterexample joins the pool (counterexample-guided
inductive synthesis, Solar-Lezama et al., ASPLOS 2006, https://doi.org/10.1145/1168857.1168907). So the resulting guard
is as weak as the candidates allow, and instances used for testing are not reused for learning, except as
counterexamples.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from ...egraph.patterns.pattern import variables
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name, holds
from ...egraph.patterns.rule import Rule
from ..check.check import confirmed, judge
from ..semantics.instance import Instance
from ..semantics.sample import attempt, instances
from ..semantics.solver import OutOfScope
from ..smt.prove import typed
from .terms import render_attr

Array = np.ndarray[Any, Any]
AT_LARGE, UNDER_ALL, UNDER_MOST, UNDER_ONE = 40, 8, 6, 3
"""Numbers of instances to draw: without guards, under the guards known to suffice, under all but one of these, and per
candidate that few instances satisfy."""
ATTEMPTS = 25  # draws per instance
FRESH = 20  # counterexamples before the search for a guard stops
MAX_GUARDS = 4  # guards per rule
PATTERNS = 250  # patterns of ranks and axes at which types are checked by SMT
NODES = 3000  # partial conjunctions to consider


def candidates(names: Sequence[str], ranks: Sequence[int], axes: Sequence[str]) -> list[Attr]:
    """Candidate guards about the tensor variables of a left side, simplest first: comparisons of ranks, equal sizes.

    `names` are the tensor variables, `ranks` their ranks at the original instance, `axes` the attribute variables that
    hold axes.
    """
    found: list[Attr] = []
    last = [AttrConstant(-1), AttrConstant(-2)]
    places: list[Attr] = [*last, AttrConstant(0), AttrConstant(1), *map(Name, axes)]
    spatial = max(ranks) > 2
    ends = [AttrConstant(0), AttrConstant(1)] if spatial else last
    for axis, x, back in product(axes, names, () if spatial else (1, 2)):
        found += [Apply("eq", (Name(axis), Apply("sub", (Apply("rank", (Name(x),)), AttrConstant(back)))))]
    for x, y in combinations(names, 2):
        a, b = Name(x), Name(y)
        found += [Apply("eq", (Apply("rank", (a,)), Apply("rank", (b,))))]
        found += [Apply("le", (Apply("rank", (v,)), Apply("rank", (w,)))) for v, w in ((a, b), (b, a))]
        found += [_same("size", a, b, i, i) for i in places[0 if spatial else 2 :]]
        found += [_same("size", a, b, i, j) for i in ends for j in ends if (i != j or not spatial)]
        found += [_same("drop", Apply("shape", (a,)), Apply("shape", (b,)), i, i) for i in places]
        found += [
            Apply("fits", (a, b)),
            Apply("fits", (b, a)),
            Apply("eq", (Apply("shape", (a,)), Apply("shape", (b,)))),
        ]
    return found


def _same(function: str, a: Attr, b: Attr, i: Attr, j: Attr) -> Attr:
    return Apply("eq", (Apply(function, (a, i)), Apply(function, (b, j))))


@dataclass
class InstancePool:
    """Labelled instances of the left side of `bare`, a rule without guards, and the truth values of candidate guards:
    examples from which a guard is learnt.

    `found`: instances (types and attributes of the pattern's variables). `right[k]`: whether both sides of the rule
    have equal values at instance k. `options`: candidate guards. `rows[k][i]`: whether guard i holds at instance k.
    """

    bare: Rule
    options: list[Attr]
    found: list[Instance] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    rows: list[list[bool]] = field(default_factory=list)

    def add(self, one: Instance, right: bool | None = None) -> None:
        """Add an instance, labelled by evaluation unless `right` is given; without effect if evaluation is
        inconclusive.
        """
        if right is None:
            status = judge(self.bare, one, seed=len(self.found)).status
            if status not in ("tested", "refuted"):
                return
            right = status == "tested"
        env = one.env()
        self.found.append(one)
        self.right.append(right)
        self.rows.append([holds([g], env) for g in self.options])

    def draw(self, guards: Sequence[Attr], count: int) -> None:
        """Draws and labels up to `count` instances that satisfy the guards."""
        rng, missing = random.Random(len(self.found)), count
        for _ in range(ATTEMPTS * count):
            if (one := attempt(self.bare, guards, rng)) is None:
                continue
            self.add(one)
            missing -= 1
            if not missing:
                break

    def weakest(self) -> list[Attr] | None:
        """The conjunction of candidate guards that excludes all failing instances and keeps the most passing ones; None
        if there is none."""
        truth, right = np.array(self.rows, bool).T, np.array(self.right)
        distinct = list({row.tobytes(): i for i, row in reversed(list(enumerate(truth)))}.values())
        useful = sorted(i for i in distinct if not truth[i][~right].all() and truth[i][right].any())
        best = _cover(truth[useful][:, right], ~truth[useful][:, ~right], len(useful))
        return None if best is None else [self.options[useful[i]] for i in best]


def _cover(keeps: Array, excludes: Array, count: int) -> list[int] | None:
    """Indices of guards that exclude every failing instance and keep the most others.

    Ties go to fewer, then to earlier guards.
    """
    best: tuple[tuple[int, int, int], list[int]] | None = None
    looked = 0

    def walk(chosen: list[int], kept: Array, left: Array) -> None:
        nonlocal best, looked
        looked += 1
        score = (-int(kept.sum()), len(chosen), sum(chosen))
        if not score[0] or (best is not None and score >= best[0]):
            return
        if not left.any():
            best = score, chosen
            return
        if len(chosen) == MAX_GUARDS or looked > NODES:
            return
        hardest = np.flatnonzero(left)[np.argmin(excludes[:, left].sum(0))]
        useful = [i for i in range(count) if excludes[i, hardest] and i not in chosen]
        for i in sorted(useful, key=lambda i: -int((kept & keeps[i]).sum())):
            walk([*chosen, i], kept & keeps[i], left & ~excludes[i])

    walk([], np.ones(keeps.shape[1], bool), np.ones(excludes.shape[1], bool))
    return None if best is None else sorted(best[1])


def at_rank(rule: Rule, rank: int) -> Rule:
    """The rule restricted to this rank of its first variable."""
    return replace(rule, when=(*rule.when, f"rank({variables(rule.lefts[0])[0]}) == {rank}"))


def tried(rule: Rule, draws: Sequence[tuple[int, int]]) -> tuple[bool, Instance | None]:
    """Result of testing a one-way rule: (whether it holds, an instance at which it fails or None).

    `draws` lists (seed, number of instances). Too few matching instances count as a failure without counterexample.
    """
    for seed, count in draws:
        drawn = instances(rule, random.Random(seed), count, attempts=ATTEMPTS * count)
        seen = 0
        for i, one in enumerate(drawn):
            status = judge(rule, one, seed=count * seed + i, style=i).status
            if status == "refuted":
                return False, one
            seen += status == "tested"
        if seen < min(4, count):
            return False, None
    return True, None


def corner(rule: Rule) -> Instance | None:
    """An instance of a rule at which its right side has another type than its left side, found by z3; None if there is
    none.

    The sizes of such instances are rarely drawn by sampling (axes of size 0 next to axes of size 1).
    """
    suspects: list[Instance] = []
    with suppress(OutOfScope):
        typed(rule, suspects, PATTERNS)
    return next((one for one in suspects if confirmed(rule, one) is not None), None)


def weakest(
    bare: Rule, enough: Sequence[Attr], options: Sequence[Attr], draws: Sequence[tuple[int, int]], extra_rank: int = 0
) -> list[Attr] | None:
    """The weakest conjunction of guards found under which a rule holds on fresh instances; None if none was found.

    `bare` is the rule without guards, `enough` guards under which it is known to hold, `options` the candidates in
    order of preference, `draws`: (seed, number of instances) pairs of the tests, `extra_rank` a rank at which the rule
    is tested in addition (0: none).
    """
    pool = InstancePool(bare, list(dict.fromkeys([*options, *enough])))
    pool.draw((), AT_LARGE)
    if extra_rank:
        pool.draw(at_rank(bare, extra_rank).guards, AT_LARGE)
    pool.draw(enough, UNDER_ALL)
    for guard in enough:
        pool.draw([g for g in enough if g is not guard], UNDER_MOST)
    for i, option in enumerate(pool.options):
        pool.draw((option,), max(0, UNDER_ONE - sum(row[i] for row in pool.rows)))
    sound: list[Attr] | None = None
    for _ in range(FRESH):
        guards = pool.weakest() if any(pool.right) else None
        if guards is None or guards == sound:
            return sound
        rule = replace(bare, when=tuple(map(render_attr, guards)))
        holds_now, wrong = tried(at_rank(rule, extra_rank), draws) if extra_rank else (True, None)
        if holds_now:
            holds_now, wrong = tried(rule, draws)
        if holds_now and (wrong := corner(rule)) is not None:
            holds_now = False
        if holds_now:
            sound = guards
            for guard in guards:  # instances that this guard excludes may allow a weaker one
                pool.draw([g for g in guards if g is not guard], UNDER_MOST)
        elif wrong is None:
            return sound
        else:
            pool.add(wrong, False)
    return sound
