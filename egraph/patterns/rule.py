"""Defines the rewrite rule type. A rule is data: pattern texts, guards and metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Literal as OneOf

from ...errors import RuleError
from .attribute_kinds import refuse_other_kinds
from .pattern import Literal as Number
from .pattern import PatternCall, Term, attr_variables, attributes, subterms, variables
from .pattern_attrs import Attr, Name, attr_names
from .pattern_parser import parse_guard, parse_term

Growth = OneOf["collects", "rearranges", "expands"]
REVERSED = "-reversed"  # end of the name of the right-to-left direction of a rule with `both`


@dataclass(frozen=True)
class Rule:
    """Rewrite rule: `left` may be replaced by `right` wherever all guards in `when` hold.

    pattern_parser.py defines the syntax.

    A rule with several left sides (a merge) has as many right sides: all left sides must match at once, and each left
    side equals its right side. `both` adds the right-to-left rule. `exact` promises bitwise equality for all floats,
    including NaN, infinities and -0.0; other rules hold over the reals, and their rounding error is checked against the
    plan's tolerance. `growth` classifies how the rule changes the number of operations; only rules that are "collects"
    (fewer operations) are applied to terms of weights, which are computed once at load. `keep` exempts the e-nodes that
    the left-to-right direction creates from pruning (for terms that are cheaper only when shared or rewritten further).
    `family` and `phase` name the rule's table and what it is for; rules of the phase "proof" are not applied to models.
    """

    name: str
    left: str | tuple[str, ...]
    right: str | tuple[str, ...]
    when: tuple[str, ...] = ()
    growth: Growth = "rearranges"
    exact: bool = False
    both: bool = False
    phase: str = "algebra"
    family: str = ""
    keep: bool = False
    shortcut: bool = False  # derivable from other rules; saves iterations
    doc: str = ""

    def __post_init__(self) -> None:
        sides = [
            text
            for side in (self.left, self.right, self.when)
            for text in (side if isinstance(side, tuple) else (side,))
        ]
        if odd := [text for text in sides if not isinstance(text, str)]:
            raise RuleError(f"{odd[0]!r} is no text of a pattern", where=str(self.name)[:80])
        if not isinstance(self.name, str) or not self.name.isprintable() or set(self.name) & set('"\\'):
            raise RuleError(f"{self.name!r:.80} cannot be the name of a rule", hint="letters, digits and hyphens")

    @cached_property
    def lefts(self) -> tuple[Term, ...]:
        """The parsed left sides."""
        return tuple(map(parse_term, (self.left,) if isinstance(self.left, str) else self.left))

    @cached_property
    def rights(self) -> tuple[Term, ...]:
        """The parsed right sides."""
        return tuple(map(parse_term, (self.right,) if isinstance(self.right, str) else self.right))

    @cached_property
    def guards(self) -> tuple[Attr, ...]:
        """The side conditions, parsed from `when`; the rule applies only where all of them hold."""
        return tuple(map(parse_guard, self.when))

    @property
    def directions(self) -> tuple[Rule, ...]:
        """The one-directional rules that this rule stands for: itself, and the reverse with `both`."""
        return self._split if self.both else (self,)

    @cached_property
    def _split(self) -> tuple[Rule, Rule]:
        """Both directions of a rule with `both`."""
        forward = replace(self, both=False)
        backward = replace(forward, name=self.name + REVERSED, left=self.right, right=self.left, keep=False)
        return forward, backward

    def __str__(self) -> str:
        sides = [side if isinstance(side, str) else ", ".join(side) for side in (self.left, self.right)]
        text = f"{self.name}: {sides[0]} {'<=>' if self.both else '=>'} {sides[1]}"
        return text + (f" if {', '.join(self.when)}" if self.when else "") + ("; exact" if self.exact else "")

    def _repr_html_(self) -> str:
        return f"<code>{escape(str(self))}</code>"

    def check(self) -> None:
        """Raise RuleError if the rule is malformed.

        That is, for unbound variables, different numbers of left and right sides, a left side that is a bare variable,
        and attribute expressions with operands of another kind, such as the rank of a number.
        """
        if len(self.lefts) != len(self.rights):
            raise RuleError(f"{len(self.lefts)} left sides, {len(self.rights)} right sides", where=self.name)
        for rule in self.directions:
            tensors = {v for t in rule.lefts for v in variables(t)}
            bound = tensors | {a for t in rule.lefts for a in attr_variables(t)}
            if any(not isinstance(t, PatternCall) for t in rule.lefts):
                raise RuleError(
                    "a left side must be an op applied to operands, not a variable or a number", where=rule.name
                )
            terms = [a for t in rule.rights for a in attributes(t)]
            tests = [a for t in rule.lefts for a in attributes(t) if not isinstance(a, Name)]
            read = {n for a in (*rule.guards, *terms, *tests) for n in attr_names(a)}
            for term in rule.rights:
                read |= {*variables(term)} | {t.like for t in subterms(term) if isinstance(t, Number) and t.like}
            if unbound := sorted(read - bound):
                raise RuleError(f"unbound variables {unbound}", where=rule.name)
            for attr in (*rule.guards, *terms, *tests):
                refuse_other_kinds(attr, tensors)
            if bare := [a.name for a in terms if isinstance(a, Name) and a.name in tensors]:
                raise RuleError(
                    f"the tensor {bare[0]} is used as an attribute",
                    where=rule.name,
                    hint="use a number: rank(x), size(x, 0)",
                )


def table(family: str, phase: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, with `family` and `phase` filled in where a rule does not set its own.

    Raises RuleError if one is malformed.
    """
    found = []
    for rule in rules:
        made = replace(rule, family=rule.family or family, phase=rule.phase if rule.phase != "algebra" else phase)
        made.check()
        found.append(made)
    return tuple(found)
