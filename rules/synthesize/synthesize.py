"""Synthesizes rules: term enumeration proposes equalities, which become general, tested, independent rewrite rules.

The loop is that of Ruler (Nandi et al., "Rewrite rule inference using equality saturation", OOPSLA 2021,
https://doi.org/10.1145/3485496), on typed tensor terms as in TASO's generator (SOSP 2019,
https://doi.org/10.1145/3341301.3359630): terms are enumerated by size (universe.py), terms with equal fingerprints are
candidates, the smallest candidate is generalized to a rule, candidates that the rules so far derive by saturation are
dropped, and so on until no candidate is left. The addition is generalization from terms over square matrices to a rule
about all shapes:

- an attribute (an axis, a stride, an offset) becomes a variable if the rule still holds, else a variable with a guard
  relative to the rank, else it stays a constant;
- a rule that fails without guards is tried under everything that holds where it was found (equal shapes, ranks, a
  floating dtype); then the weakest sufficient guards are searched (guards.py).

Soundness is decided by `check.py` alone; fingerprints only propose candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count

from ...egraph.builders import builders as api
from ...egraph.ir.tensor import Tensor
from ...egraph.patterns.pattern import Term, build, subterms, variables
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.sessions import InProcess, SaturationSession
from ...errors import UsageError
from ..check.check import verdict
from .derivable import claim, derived
from .generalize import BACK, EFFORTS, fixed, generalise, tested_rule
from .rule_candidates import RuleCandidate, candidate
from .synthesis_result import Synthesis, SynthesizedRule, rule_line
from .terms import render, render_attr, slots
from .universe import Universe, World, worlds

CHOSEN = 6  # candidates generalized between two saturations


class _Search:
    """The synthesis loop over the terms of one `World`, a choice of ops and of typed variables."""

    def __init__(
        self,
        result: Synthesis,
        world: World,
        session: SaturationSession,
        say: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self.result, self.world, self.session, self.say, self.stop = result, world, session, say, stop
        self.pool: list[RuleCandidate] = []
        self.seen: set[tuple[Term, Term]] = set()
        self.tried: set[tuple[str, str, tuple[str, ...]]] = set()

    def run(self, universe: Universe) -> None:
        """For each size: enumerates terms, drops derivable candidates, and makes rules of the rest."""
        for size in range(1, self.result.size + 1):
            for equality in universe.grow(self.stop):
                self.result.counts["equalities"] += 1
                one = candidate(equality, self.world)
                if one is not None and (one.left, one.right) not in self.seen:
                    self.seen.add((one.left, one.right))
                    self.pool.append(one)
                    self.result.counts["candidates"] += 1
            self.result.counts["terms"] += universe.terms
            universe.terms = 0
            self.say(f"{self.world.name}, size {size}: {len(self.pool)} candidates, {len(self.result.found)} rules")
            self.settle(size)
            if self.stop():
                return
            self.result.reached[self.world.name] = size

    def settle(self, size: int) -> None:
        """Turns candidates into rules until none is left. `size`: largest size of the terms enumerated so far."""
        self.drop(self.result.rules)
        while self.pool and not self.stop():
            fresh: list[Rule] = []
            for one in self.choose():
                if self.stop():
                    return
                for found in self.judge(one, size):
                    self.result.found.append(found)
                    fresh.append(found.rule)
                    self.say(rule_line(found.rule))
            if fresh:
                self.drop(self.result.rules)

    def drop(self, rules: Sequence[Rule]) -> None:
        """Removes candidates that the rules derive."""
        known = derived(rules, [[self.sides(c)] for c in self.pool], self.session)
        self.result.counts["derived"] += sum(known)
        self.pool = [c for c, yes in zip(self.pool, known) if not yes]

    def sides(self, one: RuleCandidate) -> tuple[Tensor, Tensor]:
        """(left, right) of a candidate as tensors at the world's own shapes, where all candidates share leaves."""
        leaves = {n: api.input(n, t.shape, t.dtype) for n, t in self.world.types.items()}
        return build(one.left, leaves, {}), build(one.right, leaves, {})

    def choose(self) -> list[RuleCandidate]:
        """Takes the next few candidates from the pool, one per skeleton."""
        picked: dict[tuple[str, str], RuleCandidate] = {}
        for one in sorted(self.pool, key=lambda c: c.rank):
            if len(picked) < CHOSEN:
                picked.setdefault(one.skeleton, one)
        chosen = list(picked.values())
        self.pool = [c for c in self.pool if c not in chosen]
        return chosen

    def judge(self, one: RuleCandidate, size: int) -> Iterator[SynthesizedRule]:
        """Yields the rule for a candidate, and its reverse with its own guards if the rule is one-way.

        Yields nothing if the candidate is false in general, or if its general form was tried before.
        """
        found = self.form(one, size, self.name(one))
        if found is None:
            return
        yield found
        back = replace(one, left=one.right, right=one.left)
        if found.rule.both or set(variables(one.left)) != set(variables(one.right)):
            return
        if back.left in subterms(back.right) or back.right in subterms(back.left):
            return
        returned = self.form(back, size, found.rule.name + BACK)
        if returned is not None and not any(
            fixed(slot, self.world.extra_rank) for slot in slots(returned.rule.lefts[0])
        ):
            yield returned

    def form(self, one: RuleCandidate, size: int, name: str) -> SynthesizedRule | None:
        """The most general rule for a candidate with its verdict, or None."""
        for effort in range(len(EFFORTS)):  # a wrong generalization is retried with more samples
            form = generalise(one, self.world, effort)
            if form is None:
                break
            left, right, guards = form
            key = (render(left), render(right), tuple(map(render_attr, guards)))
            if key in self.tried:
                return None
            made = tested_rule(left, right, guards, name, self.world.extra_rank)
            if made is not None:
                self.tried.add(key)
                return SynthesizedRule(made[0], made[1], size, self.world.name, one.free)
        self.result.counts["refuted"] += 1
        return None

    def name(self, one: RuleCandidate) -> str:
        """A name made of the ops, numbered if it is taken."""
        stem = "-".join(dict.fromkeys(op.replace("_", "-") for side in one.ops for op in side))
        taken = {f.rule.name for f in self.result.found}
        return next(n for n in chain([stem], (f"{stem}-{k}" for k in count(2))) if n not in taken)


def minimise(found: Sequence[SynthesizedRule], session: SaturationSession) -> list[SynthesizedRule]:
    """Drop the rules that the others derive, trying the last found first; returns the rest.

    A reverse is dropped together with its rule: with both sides in the e-graph, one always derives the other.
    """
    kept = list(found)
    order = {f.rule.name: i for i, f in enumerate(found)}
    for one in sorted(found, key=lambda f: (-len(f.rule.when), -order[f.rule.name])):
        if not one.rule.name.endswith(BACK):
            pair = (one.rule.name, one.rule.name + BACK)
            rest = [f.rule for f in kept if f.rule.name not in pair]
            if rest and all(derived(rest, [claim(d, 3) for d in one.rule.directions], session)):
                kept = [f for f in kept if f.rule.name not in pair]
    return kept


def compare(
    found: Sequence[SynthesizedRule], base: Sequence[Rule], session: SaturationSession
) -> list[SynthesizedRule]:
    """The rules with `known` set: whether the rules `base` derive a rule in every direction."""
    claims = [claim(d, 4) for f in found for d in f.rule.directions]
    yes = iter(derived(base, claims, session))
    answers = [[next(yes) for _ in f.rule.directions] for f in found]
    return [replace(f, known=all(a)) for f, a in zip(found, answers)]


def synthesize(
    ops: Sequence[str],
    size: int,
    *,
    variables: int = 3,
    seed: int = 0,
    broadcast: bool = False,
    base: Iterable[Rule] | None = None,
    prove: bool = True,
    time_limit: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Find rules over `ops` by enumeration of terms; none of them is derivable from the others.

    The larger side of a rule has at most `size` ops. `variables`: number of matrix variables, 1 to 4. `broadcast`: also
    a row, a column and a scalar. `prove`: attempt a proof of every rule that passed all tests. `base`: rules to compare
    with; each found rule records whether they derive it. `say` gets lines on the progress. `time_limit` (seconds) and
    `stop` (returns whether to stop) end the search early with the rules found so far; `Synthesis.stopped` says so.
    Raises UsageError for ops that cannot be enumerated, and for a size below 1.
    """
    if size < 1:
        raise UsageError(f"size {size}: a side of a rule has at least one op", hint="give a size from 1 on")
    begin = time.perf_counter()
    result = Synthesis(tuple(ops), size, variables, seed, broadcast)
    todo = worlds(ops, variables, broadcast=broadcast)
    session = InProcess()

    def ended() -> bool:
        return stop() or time.perf_counter() - begin > time_limit

    for world in todo:
        _Search(result, world, session, say, ended).run(Universe(world, seed))
    complete = all(result.reached.get(w.name) == size for w in todo)
    say(f"{len(result.found)} rules; dropping what the others derive")
    if not stop():
        before = len(result.found)
        result.found = minimise(result.found, session)
        result.counts["redundant"] = before - len(result.found)
    proofs = []
    for one in result.found if prove else ():
        if stop():
            break
        say(f"trying to prove {one.rule.name}")
        proofs.append(replace(one, verdict=verdict(one.rule, seed=seed)))
    result.found[: len(proofs)] = [f for f in proofs if f.verdict.status != "refuted"]
    result.counts["refuted"] += sum(f.verdict.status == "refuted" for f in proofs)
    if base is not None and not stop():
        say("comparing with the rules in force")
        result.found = compare(result.found, list(base), session)
    result.stopped = "complete" if complete else "interrupted" if stop() else "out of time"
    result.seconds = time.perf_counter() - begin
    return result
