"""Rule synthesis: term enumeration proposes equalities, which become general, tested, independent rewrite rules.

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

Soundness is judged by `check.py` alone: fingerprints only propose.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, count, product
from typing import Any

from ...egraph.ir import builders as api
from ...egraph.ir.graph import Graph, Tensor, topological
from ...egraph.ir.ops import Type
from ...egraph.ir.pattern import (
    Apply,
    Attr,
    AttrConstant,
    Name,
    PatternCall,
    Term,
    Var,
    attr_names,
    build,
    subterms,
    variables,
)
from ...egraph.ir.rule import Growth, Rule
from ...egraph.saturate.saturate import InProcess, Limits, SaturationSession, saturate_block
from ...errors import RuleError, ShapeError
from ..check.check import Verdict, check, verdict
from ..semantics.sample import instances
from ..semantics.sampler import FAILURES, Instance
from .guards import at_rank, candidates, weakest
from .terms import along, outline, rename, render, render_attr, replace_use, slots, substitute
from .universe import Equality, Universe, World, worlds

LIMITS = Limits(nodes=25_000, iterations=6, seconds=20.0)
BATCH = 300  # candidates per e-graph
CHOSEN = 6  # candidates generalized between two saturations
#: Test effort as lists of (seed, instances): while generalizing, again if the first effort accepted a wrong rule, and
#: for the final check.
EFFORTS = (((0, 8),), ((1, 24), (2, 24)), ((0, 24), (1, 24), (2, 24), (3, 36)))
ATTEMPTS = 400  # draws per instance: guards that hold more rarely are rejected
BACK = "-back"  # name suffix of a rule that is another rule's reverse
SHAPES = 2  # instances at which a candidate must be derived to be dropped


@dataclass(frozen=True)
class RuleCandidate:
    """An equality with variables named in order of use. `free`: it holds with elementwise functions uninterpreted."""

    left: Term
    right: Term
    size: int
    free: bool
    world: str

    @property
    def ops(self) -> tuple[list[str], list[str]]:
        """The ops of either side, outermost first."""
        left, right = (
            [t.op for t in reversed(list(subterms(s))) if isinstance(t, PatternCall)] for s in (self.left, self.right)
        )
        return left, right

    @property
    def skeleton(self) -> tuple[str, str]:
        """The ops without axes and variables: candidates with the same skeleton are tried one after the other."""
        return (outline(self.left), outline(self.right))

    @property
    def rank(self) -> tuple[int, int, int, bool, int, str]:
        """Sort key of candidates: small terms over few ops first.

        Then many distinct variables in the same order on both sides.
        """
        names, text = variables(self.left), render(self.left)
        return (
            self.size,
            len({*self.ops[0], *self.ops[1]}),
            -len(names),
            names != variables(self.right),
            len(text),
            text,
        )


@dataclass(frozen=True)
class SynthesizedRules:
    """A synthesized rule with its verdict and origin.

    `known`: whether existing rules derive it (None: not compared).
    """

    rule: Rule
    verdict: Verdict
    size: int
    world: str
    free: bool
    known: bool | None = None


@dataclass
class Synthesis:
    """The result of a synthesis run.

    `counts` counts terms, equalities, candidates and their outcomes; `reached` is the size completed per world.
    """

    ops: tuple[str, ...]
    size: int
    variables: int
    seed: int
    broadcast: bool
    found: list[SynthesizedRules] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reached: dict[str, int] = field(default_factory=dict)
    stopped: str = "complete"
    seconds: float = 0.0

    @property
    def rules(self) -> list[Rule]:
        """The synthesized rules."""
        return [f.rule for f in self.found]

    @property
    def command(self) -> str:
        """The command line that repeats this run."""
        broadcast = " --broadcast" if self.broadcast else ""
        return (f"tensor-graphs rules synthesize --ops {','.join(self.ops)} --size {self.size} --variables {self.variables}"
                f" --seed {self.seed}{broadcast}")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The run's entry in a JSON document."""
        rows = [
            {"name": f.rule.name, "text": line(f.rule), "left": f.rule.left, "right": f.rule.right, "when": list(f.rule.when),
             "both": f.rule.both, "exact": f.rule.exact, "growth": f.rule.growth, "verdict": f.verdict.status,
             "detail": f.verdict.detail, "size": f.size, "world": f.world, "uninterpreted": f.free, "known": f.known}
            for f in self.found
        ]  # fmt: skip
        return {"command": self.command, "rules": rows, "counts": dict(self.counts), "reached": self.reached,
                "stopped": self.stopped, "seconds": self.seconds}  # fmt: skip

    def text(self) -> str:
        """The rules in the rule language, with verdicts and origin in comments; `rules check` reads this format."""
        reached = ", ".join(f"{w} up to size {s}" for w, s in self.reached.items())
        lines = [f"# {self.command}", f"# {len(self.found)} rules; {reached}; {self.stopped}",
                 "# " + ", ".join(f"{n} {k}" for k, n in self.counts.items())]  # fmt: skip
        for one in self.found:
            known = {True: "derived by the rules in force", False: "new", None: "not compared"}[one.known]
            scope = ", for any elementwise functions" if one.free else ""
            lines += ["", f"# {one.verdict.status} ({one.verdict.detail}); size {one.size}, {one.world}{scope}; {known}",
                      line(one.rule)]  # fmt: skip
        return "\n".join(lines) + "\n"


def line(rule: Rule) -> str:
    """A rule on one line as `rules check` reads it: `name: left -> right when guard, guard; exact`."""
    arrow = "<->" if rule.both else "->"
    when = f" when {', '.join(rule.when)}" if rule.when else ""
    return f"{rule.name}: {rule.left} {arrow} {rule.right}{when}{'; exact' if rule.exact else ''}"


# ---------------------------------------------------------------- candidates
def candidate(equality: Equality, world: World) -> RuleCandidate | None:
    """An equality with canonical variable names, oriented so that the left side binds all variables.

    None if neither side binds all variables or is a call.
    """
    left, right = equality.left, equality.right
    if not set(variables(right)) <= set(variables(left)) or not isinstance(left, PatternCall):
        left, right = right, left
    if not set(variables(right)) <= set(variables(left)) or not isinstance(left, PatternCall):
        return None
    kinds: dict[object, list[str]] = {}
    for name in world.types:
        kinds.setdefault(_SORTS.get(name, name), []).append(name)
    names: dict[str, str] = {}
    for name in variables(left):
        kind = next(k for k in kinds.values() if name in k)
        names[name] = kind[sum(n in kind for n in names)]
    size = sum(isinstance(t, PatternCall) for side in (left, right) for t in subterms(side))
    return RuleCandidate(rename(left, names), rename(right, names), size, equality.free, world.name)


def as_rule(left: Term, right: Term, guards: Sequence[Attr] = (), name: str = "candidate") -> Rule:
    """One-way rule from two terms and guards."""
    counts = [sum(isinstance(t, PatternCall) for t in subterms(side)) for side in (left, right)]
    growth: Growth = "collects" if counts[1] < counts[0] else "expands" if counts[1] > counts[0] else "rearranges"
    return Rule(name, render(left), render(right), when=tuple(map(render_attr, guards)), growth=growth)


# ---------------------------------------------------------------- what rules derive
def shapes(rule: Rule, count: int, seed: int = 0) -> list[Instance]:
    """Instances of a rule without empty values: up to `count`, the least special of 6 × `count` draws."""

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
    """Pairs (left, right) of terms that state a one-way rule, for up to `count` choices of operand shapes.

    Empty if no shapes satisfy its conditions. Variables of the same name and type are one leaf throughout, so that
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


# ---------------------------------------------------------------- generalisation
def holds(rule: Rule, effort: int = 0, home: int = 0) -> bool:
    """Whether a rule passes the tests of an effort; False if it is malformed or has no instances. `home`: see `tested`."""
    return tested(rule, effort, home) is not None


def tested(rule: Rule, effort: int, home: int = 0) -> Verdict | None:
    """Last verdict on a rule that passes at all seeds of an effort; None if it fails.

    `home`: a rank of its first variable at which it is tested in addition (0: none).
    """
    found = None
    for seed, samples in EFFORTS[effort]:
        for one, number in ((at_rank(rule, home), samples // 2), (rule, samples)) if home else ((rule, samples),):
            try:
                found = check(one, seed=seed, samples=number, attempts=ATTEMPTS)
            except RuleError:
                return None
            if found.status not in ("proved", "tested"):
                return None
    return found


CUTS = ("start", "stop")
WINDOWED = ("strides", "pads", "dilations", "groups", "kernel")
_SORTS = {n: sort for sort in ("xyzc", "uvwb", "abcd") for n in sort}
_LETTERS = {"axis": "i", "axes": "k", "perm": "p", "start": "s", "stop": "e", "step": "q", "strides": "t", "pads": "h",
            "dilations": "d", "groups": "g", "kernel": "n", "lo": "l", "hi": "j", "value": "f", "eps": "o"}  # fmt: skip


def conditions(left: Term, types: Mapping[str, Type]) -> list[Attr]:
    """Guards that hold for the variables of a left side at the types where the rule was found, and may fail elsewhere.

    Ordered so that the guards that restrict other shapes least come last; these are dropped last.
    """
    names = variables(left)
    floats = [x for x in names if types[x].dtype == "float32"]
    found: list[Attr] = [Apply("floating", (Name(x),)) for x in floats[:1]]
    for x in names:
        found.append(Apply("eq", (Apply("rank", (Name(x),)), AttrConstant(types[x].rank))))
        found += [
            Apply("eq", (Apply("size", (Name(x), AttrConstant(i))), AttrConstant(1)))
            for i, d in enumerate(types[x].shape)
            if d == 1
        ]
    for x, y in combinations(names, 2):
        if types[x].rank == types[y].rank:
            same = "shape" if types[x].shape == types[y].shape else "rank"
            found.append(Apply("eq", (Apply(same, (Name(x),)), Apply(same, (Name(y),)))))
    return found


def _of_shapes(guard: Attr) -> bool:
    """Whether a guard states that two variables have the same shape."""
    return isinstance(guard, Apply) and isinstance(guard.args[0], Apply) and guard.args[0].function == "shape"


def _fixed(slot: tuple[str, Attr], home: int) -> bool:
    """Whether an attribute is still the constant with which it was found.

    A reverse rule that holds only for that constant is not general. Axes of images (`home`) are constants anyway.
    """
    return (
        slot[0] in (CUTS if home else ("axis", *CUTS))
        and isinstance(slot[1], AttrConstant)
        and slot != ("start", AttrConstant(0))
    )


@dataclass
class _Draft:
    """A rule being generalized."""

    left: Term
    right: Term
    guards: list[Attr]
    effort: int = 0
    home: int = 0  # rank at which the rule was found, if few random instances have that rank
    equal: Sequence[Attr] = ()  # shape equalities that hold where the rule was found

    def rule(self) -> Rule:
        """The draft as a rule."""
        return as_rule(self.left, self.right, self.guards)

    def passes(self, other: _Draft) -> bool:
        """Replaces this draft by another one if that passes; returns whether it did."""
        if holds(other.rule(), self.effort, self.home):
            self.left, self.right, self.guards = other.left, other.right, other.guards
            return True
        return False

    def free(self, slot: tuple[str, Attr], taken: set[str]) -> bool:
        """Tries to replace an attribute by a variable, without a guard or under one; returns whether it succeeded."""
        if slot == ("start", AttrConstant(0)) and any(isinstance(stop, AttrConstant) for stop in _stops(self.left)):
            return False  # a slice with a constant end keeps a constant start
        letter = _LETTERS.get(slot[0], "v")
        name = next(n for n in (letter, *(f"{letter}{k}" for k in range(1, 9))) if n not in taken)
        for left, right in dict.fromkeys(self.forms(slot, Name(name))):
            guards = [_apart(g, slot, Name(name)) for g in self.guards]
            options = [[], *([g] for g in _relative(slot, name, self.left))]
            if slot[0] in WINDOWED:  # window attributes may fit by chance at other sizes, so equal shapes are required
                options.append([g for g in self.equal if g not in guards])
            for more in options:
                if self.passes(_Draft(left, right, guards + more)):
                    taken.add(name)
                    return True
        return False

    def split(self, name: str, types: dict[str, Type]) -> None:
        """Tries to rename one use of a variable on the left, and one or none on the right, to a new variable.

        So rules may have more variables than the enumerated terms.
        """
        uses = [sum(v == Var(name) for v in subterms(t)) for t in (self.left, self.right)]
        fresh = next(
            (n for n in _SORTS.get(name, "") if n not in {*variables(self.left), *variables(self.right)}), None
        )
        if uses[0] < 2 or fresh is None:
            return
        types[fresh] = types[name]
        for i, j in product(range(1, uses[0]), range(uses[1] + 1)):
            left, right = (replace_use(t, name, fresh, k) for t, k in ((self.left, i), (self.right, j)))
            options = [conditions(left, types)] if self.guards else [[], conditions(left, types)]
            if any(self.passes(_Draft(left, right, guards)) for guards in options):
                return self.split(name, types)

    def widen(self, types: Mapping[str, Type]) -> None:
        """Replaces the guards by the weakest sufficient ones (`guards.weakest`)."""
        names = variables(self.left)
        axes = [a.name for t in subterms(self.left) if isinstance(t, PatternCall) for n, a in t.attrs if n == "axis" and isinstance(a, Name)]  # fmt: skip
        options = candidates(names, [types[n].rank for n in names], list(dict.fromkeys(axes)))
        first = [g for g in self.guards if not {*attr_names(g)} <= {*names}]  # guards about attributes are the simplest
        found = weakest(
            as_rule(self.left, self.right), self.guards, [*first, *options], EFFORTS[self.effort], self.home
        )
        if found is not None:
            self.guards = found

    def from_behind(self, types: Mapping[str, Type]) -> bool:
        """Tries to count axes that only the right side names from the last axis, so that ranks may differ."""
        first = variables(self.left)[0]
        right = self.right
        for slot in slots(right):
            if slot[0] == "axis" and isinstance(slot[1], AttrConstant) and slot not in slots(self.left):
                back = Apply("sub", (Apply("rank", (Name(first),)), AttrConstant(types[first].rank - slot[1].value)))
                right = substitute(right, slot, back)
        return right != self.right and self.passes(_Draft(self.left, right, self.guards))

    def forms(self, slot: tuple[str, Attr], name: Name) -> Iterator[tuple[Term, Term]]:
        """Yields the sides with an attribute replaced by a variable, in several ways.

        An axis may also occur in sizes, and on the right under a permutation as the axis that it maps from or to.
        """
        left, right = (substitute(t, slot, name) for t in (self.left, self.right))
        if slot[0] == "axis":
            left, right = (along(t, slot[1], name) for t in (left, right))
            others = [s for s in slots(right) if s[0] == "axis" and isinstance(s[1], AttrConstant)]
            perms = [a for t in subterms(left) if isinstance(t, PatternCall) for n, a in t.attrs if n == "perm"]
            for other, perm in ((o, p) for o in others[:1] for p in perms[:1]):
                for place in (Apply("at", (perm, name)), Apply("index", (perm, name))):
                    yield left, along(substitute(right, other, place), other[1], place)
            yield left, right
        left, right = (substitute(t, slot, name) for t in (self.left, self.right))
        yield left, right
        if slot[0] in CUTS and slot[1] != AttrConstant(0):  # the next part may begin where one part ends
            other = (CUTS[CUTS[0] == slot[0]], slot[1])
            yield substitute(left, other, name), substitute(right, other, name)


def _stops(term: Term) -> Iterator[Attr]:
    """The stop attributes of all slices of a term that start at 0."""
    for t in subterms(term):
        if isinstance(t, PatternCall) and dict(t.attrs).get("start") == AttrConstant(0):
            yield dict(t.attrs)["stop"]


def _apart(guard: Attr, slot: tuple[str, Attr], new: Name) -> Attr:
    """A guard `i != axis` restated for an axis that has become a variable."""
    match guard:
        case Apply("ne", (one, other)) if slot == ("axis", other):
            return Apply("ne", (one, new))
    return guard


def _relative(slot: tuple[str, Attr], name: str, left: Term) -> Iterator[Attr]:
    """Guards under which an attribute may be a variable although it is not free."""
    kind, attr = slot
    rank = Apply("rank", (Name(variables(left)[0]),))
    if kind == "axis":
        axes = [
            a for t in subterms(left) if isinstance(t, PatternCall) for n, a in t.attrs if n == "axis" and a != attr
        ]
        yield from (Apply("ne", (Name(name), a)) for a in dict.fromkeys(axes))
        for back in (1, 2):
            yield Apply("eq", (Name(name), Apply("sub", (rank, AttrConstant(back)))))
    elif kind == "axes":
        for back in (1, 2):
            yield Apply("eq", (Name(name), Apply("vec", (Apply("sub", (rank, AttrConstant(back))),))))
    elif kind == "perm":
        yield Apply("eq", (Name(name), Apply("swap_last", (rank,))))
    elif isinstance(attr, Apply) and kind in ("start", "stop"):
        yield Apply("eq", (Name(name), attr))


def generalise(one: RuleCandidate, world: World, effort: int = 0) -> tuple[Term, Term, list[Attr]] | None:
    """Most general form of a candidate that passes the tests, as (left, right, guards).

    None if it fails under all guards.
    """
    draft, types = _Draft(one.left, one.right, [], effort, world.home), dict(world.types)
    if not holds(draft.rule(), effort, world.home):
        draft.guards = conditions(one.left, types)
        if not holds(draft.rule(), effort, world.home):
            return None
    for name in variables(one.left):
        draft.split(name, types)
    draft.equal = [g for g in conditions(draft.left, types) if _of_shapes(g)]
    taken = set(types)
    for slot in sorted(slots(draft.left), key=lambda s: s[0] != "perm"):
        draft.free(slot, taken)
    if draft.guards:
        draft.widen(types)
    draft.equal = ()
    for slot in slots(draft.left):  # an attribute that failed under the old guards may be free now
        draft.free(slot, taken)
    if draft.from_behind(types):
        draft.widen(types)
    return draft.left, draft.right, draft.guards


def _made(left: Term, right: Term, guards: Sequence[Attr], name: str, home: int = 0) -> tuple[Rule, Verdict] | None:
    """The final rule with directions, growth and exactness, and its verdict; None if it fails the final test effort."""
    rule = as_rule(left, right, guards, name)
    forward = _strongest(rule, home)
    if forward is None:
        return None
    exact, found = forward
    both = replace(rule, both=True, growth="rearranges" if rule.growth == "rearranges" else "expands")
    try:
        both.check()
        backward = None if right in subterms(left) or name.endswith(BACK) else _strongest(both.directions[1], home)
    except RuleError:
        backward = None
    if backward is not None:
        rule, exact = both, exact and backward[0]
    return replace(rule, exact=exact), found


def _strongest(rule: Rule, home: int) -> tuple[bool, Verdict] | None:
    """(whether a one-way rule holds bitwise, its verdict); None if it does not hold."""
    for exact in (True, False):
        found = tested(replace(rule, exact=exact), -1, home)
        if found is not None:
            return exact, found
    return None


# ---------------------------------------------------------------- the loop
class _Search:
    """The synthesis loop for one world."""

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
        """Turns candidates into rules until none is left."""
        self.drop(self.result.rules)
        while self.pool and not self.stop():
            fresh: list[Rule] = []
            for one in self.choose():
                if self.stop():
                    return
                for found in self.judge(one, size):
                    self.result.found.append(found)
                    fresh.append(found.rule)
                    self.say(line(found.rule))
            if fresh:
                self.drop(self.result.rules)

    def drop(self, rules: Sequence[Rule]) -> None:
        """Removes candidates that the rules derive."""
        known = derived(rules, [[self.sides(c)] for c in self.pool], self.session)
        self.result.counts["derived"] += sum(known)
        self.pool = [c for c, yes in zip(self.pool, known) if not yes]

    def sides(self, one: RuleCandidate) -> tuple[Tensor, Tensor]:
        """The sides of a candidate at the world's own shapes, where all candidates share leaves."""
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

    def judge(self, one: RuleCandidate, size: int) -> Iterator[SynthesizedRules]:
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
        if returned is not None and not any(_fixed(slot, self.world.home) for slot in slots(returned.rule.lefts[0])):
            yield returned

    def form(self, one: RuleCandidate, size: int, name: str) -> SynthesizedRules | None:
        """The most general rule for a candidate with its verdict, or None."""
        for effort in range(len(EFFORTS)):  # a wrong generalization is retried with more samples
            form = generalise(one, self.world, effort)
            if form is None:
                break
            left, right, guards = form
            key = (render(left), render(right), tuple(map(render_attr, guards)))
            if key in self.tried:
                return None
            made = _made(left, right, guards, name, self.world.home)
            if made is not None:
                self.tried.add(key)
                return SynthesizedRules(made[0], made[1], size, self.world.name, one.free)
        self.result.counts["refuted"] += 1
        return None

    def name(self, one: RuleCandidate) -> str:
        """A name made of the ops, numbered if it is taken."""
        stem = "-".join(dict.fromkeys(op.replace("_", "-") for side in one.ops for op in side))
        taken = {f.rule.name for f in self.result.found}
        return next(n for n in chain([stem], (f"{stem}-{k}" for k in count(2))) if n not in taken)


def minimise(found: Sequence[SynthesizedRules], session: SaturationSession) -> list[SynthesizedRules]:
    """The rules of a set without those that the others derive, trying the last found first.

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
    found: Sequence[SynthesizedRules], base: Sequence[Rule], session: SaturationSession
) -> list[SynthesizedRules]:
    """The rules with `known` set: whether the base derives a rule in every direction."""
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
    """Rules over `ops` found by enumeration.

    Larger sides have at most `size` ops, and no rule is derivable from others.

    `prove`: attempt a proof of every rule that passed all tests. `base`: rules to compare with; each found rule records
    whether they derive it. `time_limit` (seconds) and `stop` end the search early with the rules found so far;
    `Synthesis.stopped` says so. UsageError for ops that cannot be enumerated.
    """
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
