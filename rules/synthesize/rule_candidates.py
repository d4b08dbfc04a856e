"""Represents candidates of rule synthesis, equalities with canonical variable names, and the rules that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...egraph.patterns.pattern import PatternCall, Term, subterms, variables
from ...egraph.patterns.pattern_attrs import Attr
from ...egraph.patterns.rule import Growth, Rule
from .terms import outline, rename, render, render_attr
from .universe import Equality, World


@dataclass(frozen=True)
class RuleCandidate:
    """An equality with variables named in order of use. `free`: whether it holds with elementwise functions
    uninterpreted.

    `size`: number of ops on both sides. `world`: name of the set of typed variables and ops (`World`) in which it was
    found.
    """

    left: Term
    right: Term
    size: int
    free: bool
    world: str

    @property
    def ops(self) -> tuple[list[str], list[str]]:
        """(ops of the left side, ops of the right side), outermost first."""
        left, right = (
            [t.op for t in reversed(list(subterms(s))) if isinstance(t, PatternCall)] for s in (self.left, self.right)
        )
        return left, right

    @property
    def skeleton(self) -> tuple[str, str]:
        """(left, right) as ops without axes and variables: candidates with the same skeleton are tried one after the
        other."""
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


def candidate(equality: Equality, world: World) -> RuleCandidate | None:
    """The equality as a candidate, with canonical variable names, oriented so that the left side binds all variables.

    None if no side that is a call binds all variables.
    """
    left, right = equality.left, equality.right
    if not set(variables(right)) <= set(variables(left)) or not isinstance(left, PatternCall):
        left, right = right, left
    if not set(variables(right)) <= set(variables(left)) or not isinstance(left, PatternCall):
        return None
    kinds: dict[object, list[str]] = {}
    for name in world.types:
        kinds.setdefault(SORTS.get(name, name), []).append(name)
    names: dict[str, str] = {}
    for name in variables(left):
        kind = next(k for k in kinds.values() if name in k)
        names[name] = kind[sum(n in kind for n in names)]
    size = sum(isinstance(t, PatternCall) for side in (left, right) for t in subterms(side))
    return RuleCandidate(rename(left, names), rename(right, names), size, equality.free, world.name)


def as_rule(left: Term, right: Term, guards: Sequence[Attr] = (), name: str = "candidate") -> Rule:
    """Makes a one-way rule `name` from two terms and guards."""
    counts = [sum(isinstance(t, PatternCall) for t in subterms(side)) for side in (left, right)]
    growth: Growth = "collects" if counts[1] < counts[0] else "expands" if counts[1] > counts[0] else "rearranges"
    return Rule(name, render(left), render(right), when=tuple(map(render_attr, guards)), growth=growth)


SORTS = {n: sort for sort in ("xyzc", "uvwb", "abcd") for n in sort}
LETTERS = {"axis": "i", "axes": "k", "perm": "p", "start": "s", "stop": "e", "step": "q", "strides": "t", "pads": "h",
            "dilations": "d", "groups": "g", "kernel": "n", "lo": "l", "hi": "j", "value": "f", "eps": "o"}  # fmt: skip
