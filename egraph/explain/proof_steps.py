"""Unfolds congruence proofs into linear chains of rewrite steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir.tensor import Tensor, make
from ..patterns.pattern import Literal, Term, Var, build
from ..patterns.rule import Rule
from .congruence import Equation, Link, ShortProofs
from .rule_instance import FAILURES, bind, is_instance

MOST_STEPS = 2000
DEEPEST = 60  # recursion depth at which lazy unfolding is abandoned
CONSTANT, GAP = "rounding of a constant", "no rule found"


@dataclass
class Chain:
    """A chain of equal terms.

    `reasons[i]` = (rule name, forward, before, after) leads from `terms[i]` to `terms[i + 1]`.
    """

    terms: list[Tensor]
    reasons: list[tuple[str, bool, Tensor, Tensor]] = field(default_factory=list)

    def push(self, reason: tuple[str, bool, Tensor, Tensor], term: Tensor) -> None:
        """Append the step to `term`; `reason`: (rule, whether forwards, subterm before, subterm after).

        A step back to an earlier term removes the steps in between. Raises TooDeep beyond MOST_STEPS.
        """
        place = next((i for i, t in enumerate(self.terms) if t is term), None)
        if place is not None:
            del self.terms[place + 1 :], self.reasons[place:]
            return
        if len(self.reasons) >= MOST_STEPS:
            raise TooDeep
        self.reasons.append(reason)
        self.terms.append(term)


class TooDeep(Exception):
    """Raised for a chain of rule applications with too many steps, or one whose steps are unfolded without end."""


@dataclass
class Unfolding:
    """Conversion of congruence proofs to linear chains of rewrite steps.

    `rules`: the rules by name; with them the conversion is lazy, without (empty) it is strict. Strict: before an
    equation is applied, the term is rewritten until it is the equation's own side. Lazy: it is rewritten only until it
    matches the rule's pattern, and the rule is applied to the subterms that it has then. Lazy chains are far shorter,
    but may not end (TooDeep). `depth`: recursion depth at present.
    """

    proofs: ShortProofs
    rules: Mapping[str, Rule]
    depth: int = 0

    def chain(self, a: Tensor, b: Tensor) -> Chain:
        """The chain of rewrite steps from `a` to `b`. Operands that are not proven equal become gaps.

        Raises TooDeep for a chain that is too long.
        """
        chain = Chain([a])
        if a is b:
            return chain
        if not self.proofs.closure.equal(a, b):
            if a.op == b.op and a.attrs == b.attrs and len(a.args) == len(b.args) > 0:
                self.lift(a, b, chain)
            else:
                chain.push((GAP, True, a, b), b)
            return chain
        self.depth += 1
        if self.rules and self.depth > DEEPEST:
            raise TooDeep
        for link in self.proofs.path(a, b):
            now = chain.terms[-1]
            if link.equation is not None:
                self.apply(link, link.equation, chain)
            elif not link.before.args:
                chain.push((CONSTANT, True, link.before, link.after), link.after)
            elif not self.rules:
                self.lift(now, link.after, chain)
        self.become(b, chain)
        self.depth -= 1
        return chain

    def congruent(self, a: Tensor, b: Tensor) -> bool:
        """Whether two terms have the same op and attributes and pairwise equal operands."""
        alike = a.op == b.op and a.attrs == b.attrs and len(a.args) == len(b.args) > 0
        return alike and all(self.proofs.closure.equal(p, q) for p, q in zip(a.args, b.args))

    def become(self, target: Tensor, chain: Chain) -> None:
        """Extend `chain` until it ends in `target`, which equals its last term; operand by operand if only operands
        differ."""
        now = chain.terms[-1]
        if now is target:
            return
        self.proofs.closure.add(now)
        if self.congruent(now, target):
            self.lift(now, target, chain)
            return
        part = self.chain(now, target)
        for reason, term in zip(part.reasons, part.terms[1:]):
            chain.push(reason, term)

    def lift(self, a: Tensor, b: Tensor, chain: Chain) -> None:
        """Extend a chain that ends in `a` to the congruent term `b`, by rewriting the operands one by one.

        A pair of subterms that occurs several times is rewritten at all occurrences in one step.
        """
        self.proofs.closure.add(a)
        inner, order = _parts(self.proofs, a, b)
        now: dict[Pair, Tensor] = {pair: pair[0] for pair in order}
        for pair in order:
            part = self.chain(*pair)
            for reason, term in zip(part.reasons, part.terms[1:]):
                now[pair] = term
                chain.push(reason, _assembled((a, b), inner, now))

    def apply(self, link: Link, equation: Equation, chain: Chain) -> None:
        """Append to `chain` the rewrite by the rule of `equation`, for the proof edge `link`, whose equation it is.

        Before, the last term of `chain` must be proven equal to `link.before`, one side of the equation.
        """
        now, forward = chain.terms[-1], equation.left is link.before
        rule = self.rules.get(equation.name)
        if now is not link.before and rule is not None and len(rule.lefts) == 1:
            sides = (rule.lefts[0], rule.rights[0])
            pattern, other = sides if forward else sides[::-1]
            fitted = self.fit(pattern, now, link.before)
            made = self.instance(rule, forward, pattern, other, fitted.terms[-1])
            if made is not None and self.proofs.closure.equal(made, link.after):
                for reason, term in zip(fitted.reasons, fitted.terms[1:]):
                    chain.push(reason, term)
                chain.push((equation.name, forward, fitted.terms[-1], made), made)
                return
        self.become(link.before, chain)
        chain.push((equation.name, forward, link.before, link.after), link.after)

    def instance(self, rule: Rule, forward: bool, pattern: Term, other: Term, term: Tensor) -> Tensor | None:
        """The other side of a rule (pattern `other`), instantiated from a term that matches the side `pattern`; None if
        the two are not an instance of the rule.

        `forward`: whether `pattern` is the left side.
        """
        binding: dict[str, Tensor] = {}
        attrs: dict[str, Any] = {}
        if not bind(pattern, term, binding, attrs):
            return None
        try:
            made = build(other, binding, attrs)
        except FAILURES:
            return None
        sides = (term, made) if forward else (made, term)
        return made if made.type == term.type and is_instance(rule, 0, *sides) else None

    def fit(self, pattern: Term, now: Tensor, target: Tensor) -> Chain:
        """Chain from the term `now` to an equal one that matches `pattern`; `target` is an equal term that matches the
        pattern.

        Variables of the pattern match any subterm, so the term is rewritten only as far as needed.
        """
        if isinstance(pattern, Var):
            return Chain([now])
        self.proofs.closure.add(now)
        if isinstance(pattern, Literal) or not self.congruent(now, target):
            return self.chain(now, target)
        chain = Chain([now])
        for i, inner in enumerate(pattern.args):
            part = self.fit(inner, now.args[i], target.args[i])
            for reason, term in zip(part.reasons, part.terms[1:]):
                args = [*chain.terms[-1].args]
                args[i] = term
                chain.push(reason, make(now.op, args, dict(now.attrs)))
        return chain


Pair = tuple[Tensor, Tensor]


def _parts(proofs: ShortProofs, a: Tensor, b: Tensor) -> tuple[dict[Pair, list[Pair]], list[Pair]]:
    """Returns (pairs of terms split by congruence -> operand pairs, pairs that need rules)."""
    inner: dict[Pair, list[Pair]] = {}
    outer: dict[Pair, None] = {}
    stack: list[Pair] = [(a, b)]
    while stack:
        s, t = pair = stack.pop()
        if pair in inner or pair in outer or s is t:
            continue
        congruent = s is a and t is b
        if not congruent and s.args and s.op == t.op and s.attrs == t.attrs and proofs.closure.equal(s, t):
            path = proofs.path(s, t)
            congruent = len(path) == 1 and path[0].equation is None
        if congruent:
            inner[pair] = list(zip(s.args, t.args))
            stack += reversed(inner[pair])
        else:
            outer[pair] = None
    return inner, list(outer)


def _assembled(root: Pair, inner: Mapping[Pair, list[Pair]], now: Mapping[Pair, Tensor]) -> Tensor:
    """The root pair's term with the current form of each of its rewritten subterms."""
    built: dict[Pair, Tensor] = {}
    stack = [root]
    while stack:
        pair = stack[-1]
        if pair in built:
            stack.pop()
        elif pair in now:
            built[pair] = now[pair]
        elif pair not in inner:
            built[pair] = pair[0]  # identical on both sides
        elif missing := [p for p in inner[pair] if p not in built]:
            stack += missing
        else:
            old = pair[0]
            built[pair] = make(old.op, [built[p] for p in inner[pair]], dict(old.attrs), data=old.data)
    return built[root]


def unfold(proofs: ShortProofs, rules: Mapping[str, Rule], a: Tensor, b: Tensor) -> Chain:
    """The chain of rewrite steps from `a` to `b`: the lazy or the strict one (`Unfolding`), whichever is shorter.
    `rules`: by name. Raises TooDeep if both are too long."""
    found = []
    for known in (rules, {}):
        try:
            found.append(Unfolding(proofs, known).chain(a, b))
        except TooDeep:
            if not known and not found:
                raise
    return min(found, key=lambda chain: len(chain.reasons))


def position(old: Tensor, new: Tensor, before: Tensor) -> tuple[int, ...]:
    """Operand path to the first occurrence of the rewritten subterm `before` at which `old` and `new` differ."""
    path: list[int] = []
    while old is not before:
        step = next((i for i, (p, q) in enumerate(zip(old.args, new.args)) if p is not q), None)
        if step is None:
            break
        path.append(step)
        old, new = old.args[step], new.args[step]
    return tuple(path)


__all__ = ["CONSTANT", "GAP", "Chain", "position", "unfold"]
