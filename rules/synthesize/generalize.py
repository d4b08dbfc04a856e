"""Generalizes a candidate to a rule about all shapes, with the weakest guards under which the rule passes its tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import PatternCall, Term, Var, subterms, variables
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name, attr_names
from ...egraph.patterns.rule import Rule
from ...errors import RuleError
from ..check.check import Verdict, check
from .guards import at_rank, candidates, weakest
from .rule_candidates import LETTERS, SORTS, RuleCandidate, as_rule
from .terms import along, replace_use, slots, substitute
from .universe import World

#: Test effort as lists of (seed, instances): while generalizing, again if the first effort accepted a wrong rule, and
#: for the final check.
EFFORTS = (((0, 8),), ((1, 24), (2, 24)), ((0, 24), (1, 24), (2, 24), (3, 36)))
ATTEMPTS = 400  # draws per instance: guards that hold more rarely are rejected
BACK = "-back"  # name suffix of a rule that is another rule's reverse


def holds(rule: Rule, effort: int = 0, extra_rank: int = 0) -> bool:
    """Whether a rule passes the random tests of `tested`; False if it is malformed or has no instances.

    `effort`: index into `EFFORTS`. `extra_rank`: a further rank of its first variable at which it is tested (0: none).
    """
    return tested(rule, effort, extra_rank) is not None


def tested(rule: Rule, effort: int, extra_rank: int = 0) -> Verdict | None:
    """Test a rule; returns the last verdict if it passes at all seeds of the test effort, None if it fails.

    `effort`: index into `EFFORTS`. `extra_rank`: a rank of its first variable at which it is tested in addition (0:
    none).
    """
    found = None
    for seed, samples in EFFORTS[effort]:
        for one, number in (
            ((at_rank(rule, extra_rank), samples // 2), (rule, samples)) if extra_rank else ((rule, samples),)
        ):
            try:
                found = check(one, seed=seed, samples=number, attempts=ATTEMPTS)
            except RuleError:
                return None
            if found.status not in ("proved", "tested"):
                return None
    return found


CUTS = ("start", "stop")
WINDOWED = ("strides", "pads", "dilations", "groups", "kernel")


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


def fixed(slot: tuple[str, Attr], extra_rank: int) -> bool:
    """Whether an attribute `slot`, given as (name, value), is an axis or bound that is still the constant with which
    the rule was found.

    If so, the reverse rule holds for that constant only and is not added. `extra_rank`: rank of images, for which a
    constant axis is allowed; 0 for other variables.
    """
    return (
        slot[0] in (CUTS if extra_rank else ("axis", *CUTS))
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
    extra_rank: int = 0  # rank at which the rule was found, if few random instances have that rank
    equal: Sequence[Attr] = ()  # shape equalities that hold where the rule was found

    def rule(self) -> Rule:
        """The draft as a rule."""
        return as_rule(self.left, self.right, self.guards)

    def passes(self, other: _Draft) -> bool:
        """Whether another draft passes the tests (`holds`); it then replaces this one."""
        if holds(other.rule(), self.effort, self.extra_rank):
            self.left, self.right, self.guards = other.left, other.right, other.guards
            return True
        return False

    def free(self, slot: tuple[str, Attr], taken: set[str]) -> bool:
        """Tries to replace an attribute by a variable, without a guard or under one; returns whether it succeeded."""
        if slot == ("start", AttrConstant(0)) and any(isinstance(stop, AttrConstant) for stop in _stops(self.left)):
            return False  # a slice with a constant end keeps a constant start
        letter = LETTERS.get(slot[0], "v")
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
        fresh = next((n for n in SORTS.get(name, "") if n not in {*variables(self.left), *variables(self.right)}), None)
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
            as_rule(self.left, self.right), self.guards, [*first, *options], EFFORTS[self.effort], self.extra_rank
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
        """Yields (left, right) with an attribute replaced by a variable, in several ways. An axis may also occur in
        sizes, and on the right under a permutation as the axis that it maps from or to."""
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
    """The most general rule found for a candidate that passes the tests, as (left, right, guards).

    None if the candidate fails under all guards. `world`: the variables and types at which it was found. `effort`:
    index into `EFFORTS`.
    """
    draft, types = _Draft(one.left, one.right, [], effort, world.extra_rank), dict(world.types)
    if not holds(draft.rule(), effort, world.extra_rank):
        draft.guards = conditions(one.left, types)
        if not holds(draft.rule(), effort, world.extra_rank):
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


def tested_rule(
    left: Term, right: Term, guards: Sequence[Attr], name: str, extra_rank: int = 0
) -> tuple[Rule, Verdict] | None:
    """The final rule `name` with directions, growth and exactness, and its verdict.

    Returns None if it fails the final test effort. `extra_rank`: a rank of its first variable at which it is tested in
    addition (0: none).
    """
    rule = as_rule(left, right, guards, name)
    forward = _strongest(rule, extra_rank)
    if forward is None:
        return None
    exact, found = forward
    both = replace(rule, both=True, growth="rearranges" if rule.growth == "rearranges" else "expands")
    try:
        both.check()
        backward = (
            None if right in subterms(left) or name.endswith(BACK) else _strongest(both.directions[1], extra_rank)
        )
    except RuleError:
        backward = None
    if backward is not None:
        rule, exact = both, exact and backward[0]
    return replace(rule, exact=exact), found


def _strongest(rule: Rule, extra_rank: int) -> tuple[bool, Verdict] | None:
    """(whether a one-way rule holds bitwise, its verdict); None if it does not hold."""
    for exact in (True, False):
        found = tested(replace(rule, exact=exact), -1, extra_rank)
        if found is not None:
            return exact, found
    return None
