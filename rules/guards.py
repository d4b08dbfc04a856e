"""Conditions learned from instances: of those that tell where a rule holds from where it fails, the weakest.

A pool holds instances of the left side, some drawn at large, some where a candidate condition holds, each judged once: are the
sides equal there? What is looked for is a conjunction of candidate conditions that no failing instance satisfies and as
many of the others as possible: branch and bound over which condition is to exclude a failing instance. The rule is then tried
on fresh instances under that conjunction; one at which it fails joins the pool (counterexample-guided, as in Solar-Lezama et
al., ASPLOS 2006, https://doi.org/10.1145/1168857.1168907). So a condition is as weak as the candidates allow, and an instance
that a condition was tried on is never drawn again for the next one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from ..egraph.pattern import Apply, Attr, Name, Value, holds, variables
from ..egraph.rule import Rule
from .check import confirmed, judge
from .sample import Instance, attempt, instances
from .smt import typed
from .solver import Beyond
from .terms import render_attr

Array = np.ndarray[Any, Any]
AT_LARGE, UNDER_ALL, UNDER_MOST, UNDER_ONE = 40, 8, 6, 3
"""Instances drawn without conditions, under those known to suffice, under all but one of them, and for each condition that few
satisfy."""
ATTEMPTS = 25  # tries for each instance
FRESH = 20  # counterexamples before a rule is given up
MOST = 4  # conditions of a rule
PATTERNS = 250  # of ranks and axes at which types are asked for
NODES = 3000  # partial conjunctions looked at


def candidates(names: Sequence[str], ranks: Sequence[int], axes: Sequence[str]) -> list[Attr]:
    """Conditions between tensor variables of a left side, the plainest first: how their ranks compare, in which sizes they agree. `axes`
    are its variables for axes."""
    found: list[Attr] = []
    last = [Value(-1), Value(-2)]
    places: list[Attr] = [*last, Value(0), Value(1), *map(Name, axes)]
    spatial = max(ranks) > 2
    ends = [Value(0), Value(1)] if spatial else last
    for axis, x, back in product(axes, names, () if spatial else (1, 2)):
        found += [Apply("eq", (Name(axis), Apply("sub", (Apply("rank", (Name(x),)), Value(back)))))]
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
class Pool:
    """Judged instances of a rule's left side, and which of the candidate conditions hold of each."""

    bare: Rule
    options: list[Attr]
    found: list[Instance] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    rows: list[list[bool]] = field(default_factory=list)

    def add(self, one: Instance, right: bool | None = None) -> None:
        """Judge an instance and keep it, unless nothing can be said of it."""
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
        """Up to `count` instances under some conditions."""
        rng, missing = random.Random(len(self.found)), count
        for _ in range(ATTEMPTS * count):
            if (one := attempt(self.bare, guards, rng)) is None:
                continue
            self.add(one)
            missing -= 1
            if not missing:
                break

    def weakest(self) -> list[Attr] | None:
        """The conjunction that no failing instance satisfies and most others do; None if there is none."""
        truth, right = np.array(self.rows, bool).T, np.array(self.right)
        distinct = list({row.tobytes(): i for i, row in reversed(list(enumerate(truth)))}.values())
        useful = sorted(i for i in distinct if not truth[i][~right].all() and truth[i][right].any())
        best = _cover(truth[useful][:, right], ~truth[useful][:, ~right], len(useful))
        return None if best is None else [self.options[useful[i]] for i in best]


def _cover(keeps: Array, excludes: Array, count: int) -> list[int] | None:
    """Which conditions exclude every failing instance and keep the most others: fewer conditions, then earlier ones, on a tie."""
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
        if len(chosen) == MOST or looked > NODES:
            return
        hardest = np.flatnonzero(left)[np.argmin(excludes[:, left].sum(0))]
        ways = [i for i in range(count) if excludes[i, hardest] and i not in chosen]
        for i in sorted(ways, key=lambda i: -int((kept & keeps[i]).sum())):
            walk([*chosen, i], kept & keeps[i], left & ~excludes[i])

    walk([], np.ones(keeps.shape[1], bool), np.ones(excludes.shape[1], bool))
    return None if best is None else sorted(best[1])


def at_rank(rule: Rule, rank: int) -> Rule:
    """The rule where its first variable has this rank."""
    return replace(rule, when=(*rule.when, f"rank({variables(rule.lefts[0])[0]}) == {rank}"))


def tried(rule: Rule, draws: Sequence[tuple[int, int]]) -> tuple[bool, Instance | None]:
    """Whether a one-way rule holds on instances, as (seed, how many); an instance at which it fails."""
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
    """Sizes that sampling hardly meets (axes of 0 and 1 side by side) at which z3 finds that the right side has another type."""
    suspects: list[Instance] = []
    with suppress(Beyond):
        typed(rule, suspects, PATTERNS)
    return next((one for one in suspects if confirmed(rule, one) is not None), None)


def weakest(
    bare: Rule, enough: Sequence[Attr], options: Sequence[Attr], draws: Sequence[tuple[int, int]], home: int = 0
) -> list[Attr] | None:
    """The weakest conjunction found under which a rule without conditions holds on fresh instances; None if none does.

    `enough`: conditions under which it is known to hold; `options`: those to choose from, in order of preference; `draws`: see
    `tried`; `home`: a rank at which it is tried too.
    """
    pool = Pool(bare, list(dict.fromkeys([*options, *enough])))
    pool.draw((), AT_LARGE)
    if home:
        pool.draw(at_rank(bare, home).guards, AT_LARGE)
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
        holds_now, wrong = tried(at_rank(rule, home), draws) if home else (True, None)
        if holds_now:
            holds_now, wrong = tried(rule, draws)
        if holds_now and (wrong := corner(rule)) is not None:
            holds_now = False
        if holds_now:
            sound = guards
            for guard in guards:  # what a condition keeps out may show a weaker one
                pool.draw([g for g in guards if g is not guard], UNDER_MOST)
        elif wrong is None:
            return sound
        else:
            pool.add(wrong, False)
    return sound
