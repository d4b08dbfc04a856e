"""Why two terms of one e-class are equal: a chain of named rule applications from the one to the other, and its check.

egglog 13.2 keeps no proofs, so they are rebuilt from the view. Every rule is matched on it once, each match becomes an
equation between terms (each class stands for one term of it), each composite equals its decomposition, and congruence
closure (congruence.py) finds what follows and from which equations. The proof is then unfolded into steps: each rewrites
one subterm, wherever the proof needs it, by one rule in one direction.

Where the equations do not connect two subterms (a pruned form was on the way), that step is a gap: it is listed as one,
checked by value only, and the explanation is not `complete`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from .composite import expand
from .congruence import Congruence, Equation, Link, ShortProofs
from .graph import LEAVES, Graph, Tensor, make, topological
from .instance import FAILURES, bind, is_instance, number_of
from .match import Binding, Matcher
from .pattern import Literal, Term, Var, build, holds
from .rule import Rule
from .saturate import Limits, Session, saturate_block
from .view import EGraphView

MOST_STEPS = 2000
DEEPEST = 60  # nesting at which lazy unfolding is given up
MANY_TERMS = 20_000  # from here on proofs are shortened once, not twice
DEFINITION, CONSTANT, GAP = "definition of ", "rounding of a constant", "no rule found"


@dataclass(frozen=True)
class Step:
    """One application: at `position` (operand numbers from the root down, of the first place) `before` becomes `after`
    in the whole terms `old` and `new`. `forward` is false where a rule is read from right to left."""

    rule: str
    forward: bool
    position: tuple[int, ...]
    before: Tensor
    after: Tensor
    old: Tensor
    new: Tensor

    @property
    def reconstructed(self) -> bool:
        """Whether a rule, a definition or rounding explains the step."""
        return self.rule != GAP

    def __str__(self) -> str:
        arrow = self.rule if self.forward else f"{self.rule}, right to left"
        place = "the whole" if not self.position else "operand " + ".".join(map(str, self.position))
        return f"{arrow}: {place}\n    {spelled(self.before)}\n  = {spelled(self.after)}"


@dataclass(frozen=True)
class Explanation:
    """The steps that turn `original` into `chosen`."""

    original: Tensor
    chosen: Tensor
    steps: tuple[Step, ...]

    @property
    def complete(self) -> bool:
        """Whether every step is reconstructed."""
        return all(s.reconstructed for s in self.steps)

    @property
    def rules(self) -> dict[str, int]:
        """How often each rule was applied."""
        found: dict[str, int] = {}
        for s in self.steps:
            found[s.rule] = found.get(s.rule, 0) + 1
        return found

    def __str__(self) -> str:
        gaps = sum(not s.reconstructed for s in self.steps)
        head = f"{len(self.steps)} steps" + (f", {gaps} of them not reconstructed" if gaps else "")
        return "\n".join([head, *(f"{i:>3}. {s}" for i, s in enumerate(self.steps, 1))])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "complete": self.complete,
            "steps": [
                {"rule": s.rule, "forward": s.forward, "position": list(s.position), "before": spelled(s.before),
                 "after": spelled(s.after)} for s in self.steps
            ],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{i}</td><td>{escape(s.rule)}{'' if s.forward else ' (right to left)'}</td>"
            f"<td><code>{escape(spelled(s.before))}</code></td><td><code>{escape(spelled(s.after))}</code></td></tr>"
            for i, s in enumerate(self.steps, 1)
        )
        return f"<table><tr><th></th><th>rule</th><th>before</th><th>after</th></tr>{rows}</table>"


def spelled(term: Tensor, depth: int = 6) -> str:
    """A term as text; what lies deeper is its type."""
    if term.op in LEAVES[:3]:
        return str(term.attr("name"))
    if term.op == "constant" or depth == 0:
        return f"<{term.type}>"
    if term.op == "full":
        value = term.attrs[0][1]
        return f"{value:g}" if all(d == 1 for d in term.shape) else f"full({value:g}, {list(term.shape)})"
    shown = [f"{k}={list(v) if isinstance(v, tuple) else v}" for k, v in term.attrs if term.entry.defaults.get(k) != v]
    return f"{term.op}({', '.join([*(spelled(a, depth - 1) for a in term.args), *shown])})"


# ---------------------------------------------------------------- terms of classes
class _Terms:
    """One term per class of a view: a preferred one where given, else the one of fewest e-nodes."""

    def __init__(self, view: EGraphView, preferred: Mapping[int, Tensor], cheapest: Sequence[int]) -> None:
        self.view, self.built, self.cheapest = view, dict(preferred), cheapest

    def of(self, cls: int) -> Tensor | None:
        """The term of a class; None where it has no finite one."""
        stack = [cls]
        while stack:
            c = stack[-1]
            node = self.cheapest[c]
            if c in self.built:
                stack.pop()
                continue
            if node < 0:
                return None
            kids = self.view.kids(node).tolist()
            missing = [k for k in kids if k not in self.built]
            if missing:
                stack += missing
                continue
            self.built[c] = self.view.node_tensor(node, [self.built[k] for k in kids])
        return self.built[cls]


def classes_of(view: EGraphView, roots: Iterable[Tensor]) -> dict[Tensor, int]:
    """The classes of all nodes below some terms, where the view holds them."""
    index: dict[tuple[Any, ...], int] = {}
    for i in range(len(view)):
        leaf = view.tensors.get(i)
        own = ("leaf", id(leaf)) if leaf is not None else number_of(view.op[i], view.attrs[i])
        index.setdefault((own, *view.kids(i).tolist()), int(view.cls[i]))
    found: dict[Tensor, int] = dict(view.classes)
    for node in topological(roots):
        if node not in found and all(a in found for a in node.args):
            own = ("leaf", id(node)) if node.op in LEAVES else number_of(node.op, node.attrs)
            cls = index.get((own, *(found[a] for a in node.args)))
            if cls is not None:
                found[node] = cls
    return found


# ---------------------------------------------------------------- equations
def matches(matcher: Matcher, rule: Rule) -> list[Binding]:
    """All bindings of a one-way rule's left sides; several left sides are joined on the variables that they share."""
    if len(rule.lefts) == 1:
        return [b for _, b in matcher.find(rule.lefts[0], rule.guards)]
    found: list[Binding] = [{}]
    for left in rule.lefts:
        more = [b for _, b in matcher.find(left)]
        shared = sorted(found[0].keys() & more[0].keys()) if found and more else []
        index: dict[tuple[Any, ...], list[Binding]] = {}
        for b in more:
            index.setdefault(tuple(b[k] for k in shared), []).append(b)
        found = [{**a, **b} for a in found for b in index.get(tuple(a[k] for k in shared), ())]
    return [b for b in found if holds(rule.guards, matcher.environment(b))]


def _instances(rule: Rule, bindings: Sequence[Binding], terms: _Terms) -> Iterator[Equation]:
    name = rule.name
    for binding in bindings:
        tensors = {k: terms.of(v) for k, v in binding.items() if k[0] != "@"}
        if any(t is None for t in tensors.values()):
            continue
        known = {k: t for k, t in tensors.items() if t is not None}
        attrs = {k[1:]: v for k, v in binding.items() if k[0] == "@"}
        for left, right in zip(rule.lefts, rule.rights):
            try:
                yield Equation(name, build(left, known, attrs), build(right, known, attrs))
            except FAILURES:  # the right side does not exist at these sizes
                continue


def _definitions(roots: Iterable[Tensor]) -> Iterator[Equation]:
    waiting, done = list(topological(roots)), set[Tensor]()
    while waiting:
        node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        if node.entry.composite:
            parts = expand(node)
            yield Equation(DEFINITION + node.op, node, parts)
            waiting += topological([parts])


def explain(
    view: EGraphView,
    rules: Iterable[Rule],
    original: Sequence[Tensor],
    chosen: Sequence[Tensor],
) -> list[Explanation]:
    """For each pair of terms of one class of the view, the steps from the one to the other.

    The equations are added family by family (over the originals' terms, the chosen ones', the smallest) until all
    pairs are connected; what is not connected then is a gap. UsageError: the lists differ in length or in types.
    """
    if [t.type for t in original] != [t.type for t in chosen]:
        raise UsageError("the terms to be connected have different types")
    pairs, directions = list(zip(original, chosen)), [d for r in rules for d in r.directions]
    closure = Congruence()
    for term in (*original, *chosen):
        closure.add(term)
    if not all(closure.equal(*p) for p in pairs):
        for equation in _definitions([*original, *chosen]):
            closure.equate(equation)
        _connect(closure, view, directions, original, chosen)
    by_name = {r.name: r for r in directions}
    proofs = ShortProofs(closure, rounds=2 if closure.terms < MANY_TERMS else 1)
    return [Explanation(a, b, tuple(_steps(proofs, by_name, a, b))) for a, b in pairs]


def _connect(
    closure: Congruence, view: EGraphView, rules: Sequence[Rule], original: Sequence[Tensor], chosen: Sequence[Tensor]
) -> None:
    """State the instances of the rules, over one term per class at a time, until the pairs are equal."""
    matcher = Matcher(view)
    present = set(view.op)
    bound = [
        (rule, matches(matcher, rule)) for rule in rules if all(getattr(t, "op", "") in present for t in rule.lefts)
    ]
    cheapest = view.cheapest([1.0] * len(view))[1]
    stated: set[tuple[int, int]] = set()
    for family in (original, chosen, ()):
        known = classes_of(view, family)
        preferred: dict[int, Tensor] = {}
        for node in topological(family):
            if node in known:
                preferred.setdefault(known[node], node)
        terms = _Terms(view, preferred, cheapest)
        for rule, bindings in bound:
            for equation in _instances(rule, bindings, terms):
                pair = (id(equation.left), id(equation.right))
                if equation.left is not equation.right and pair not in stated:
                    stated.add(pair)  # the closure keeps the terms alive: ids stay theirs
                    closure.equate(equation)
        if all(closure.equal(a, b) for a, b in zip(original, chosen)):
            return


# ---------------------------------------------------------------- unfolding a proof
@dataclass
class _Chain:
    """Terms from one to an equal one; `reasons[i]` leads from `terms[i]` to `terms[i + 1]`."""

    terms: list[Tensor]
    reasons: list[tuple[str, bool, Tensor, Tensor]] = field(default_factory=list)

    def push(self, reason: tuple[str, bool, Tensor, Tensor], term: Tensor) -> None:
        """Add a step; one that leads back to an earlier term undoes what came between."""
        place = next((i for i, t in enumerate(self.terms) if t is term), None)
        if place is not None:
            del self.terms[place + 1 :], self.reasons[place:]
            return
        if len(self.reasons) >= MOST_STEPS:
            raise UsageError(f"the explanation has more than {MOST_STEPS} steps")
        self.reasons.append(reason)
        self.terms.append(term)


def _steps(proofs: ShortProofs, rules: Mapping[str, Rule], a: Tensor, b: Tensor) -> Iterator[Step]:
    chain = _Unfolding(proofs, {}).chain(a, b)
    try:
        lazy = _Unfolding(proofs, rules).chain(a, b)
        chain = lazy if len(lazy.reasons) < len(chain.reasons) else chain
    except _TooDeep:
        pass
    for (name, forward, before, after), old, new in zip(chain.reasons, chain.terms, chain.terms[1:]):
        yield Step(name, forward, _position(old, new, before), before, after, old, new)


class _TooDeep(Exception):
    """Lazy unfolding went round in circles."""


@dataclass
class _Unfolding:
    """A proof as a chain of terms. With rules it is lazy: a term is rewritten only as far as the next rule's pattern
    demands, and the rule is then applied to what the term holds, not to the terms that the equation was stated over.
    That makes far shorter chains, but nothing bounds them."""

    proofs: ShortProofs
    rules: Mapping[str, Rule]
    depth: int = 0

    def chain(self, a: Tensor, b: Tensor) -> _Chain:
        """From one term to another. Operands that are not proved equal to their counterparts become gaps."""
        chain = _Chain([a])
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
            raise _TooDeep
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
        """Whether two terms are equal operand by operand."""
        alike = a.op == b.op and a.attrs == b.attrs and len(a.args) == len(b.args) > 0
        return alike and all(self.proofs.closure.equal(p, q) for p, q in zip(a.args, b.args))

    def become(self, target: Tensor, chain: _Chain) -> None:
        """Go on to an equal term: operand by operand if that is all that differs."""
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

    def lift(self, a: Tensor, b: Tensor, chain: _Chain) -> None:
        """Rewrite the operands of a term one by one; a pair of subterms that occurs in several places in all of them."""
        self.proofs.closure.add(a)
        inner, order = _parts(self.proofs, a, b)
        now: dict[Pair, Tensor] = {pair: pair[0] for pair in order}
        for pair in order:
            part = self.chain(*pair)
            for reason, term in zip(part.reasons, part.terms[1:]):
                now[pair] = term
                chain.push(reason, _assembled((a, b), inner, now))

    def apply(self, link: Link, equation: Equation, chain: _Chain) -> None:
        """Apply an equation's rule to the chain's end, which equals the equation's side by congruence."""
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
        """The other side of a rule over the subterms of a term that has the shape of its one side."""
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

    def fit(self, pattern: Term, now: Tensor, target: Tensor) -> _Chain:
        """Give a term the shape of a pattern that an equal term, the target, has; variables take what is there."""
        if isinstance(pattern, Var):
            return _Chain([now])
        self.proofs.closure.add(now)
        if isinstance(pattern, Literal) or not self.congruent(now, target):
            return self.chain(now, target)
        chain = _Chain([now])
        for i, inner in enumerate(pattern.args):
            part = self.fit(inner, now.args[i], target.args[i])
            for reason, term in zip(part.reasons, part.terms[1:]):
                args = [*chain.terms[-1].args]
                args[i] = term
                chain.push(reason, make(now.op, args, dict(now.attrs)))
        return chain


Pair = tuple[Tensor, Tensor]


def _parts(proofs: ShortProofs, a: Tensor, b: Tensor) -> tuple[dict[Pair, list[Pair]], list[Pair]]:
    """Pairs of terms that congruence takes apart, with their operands' pairs, and the pairs that rules connect."""
    inner: dict[Pair, list[Pair]] = {}
    outer: dict[Pair, None] = {}
    stack: list[Pair] = [(a, b)]
    while stack:
        s, t = pair = stack.pop()
        if pair in inner or pair in outer or s is t:
            continue
        congruent = pair == (a, b)
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
    built: dict[Pair, Tensor] = {}
    stack = [root]
    while stack:
        pair = stack[-1]
        if pair in built:
            stack.pop()
        elif pair in now:
            built[pair] = now[pair]
        elif pair not in inner:
            built[pair] = pair[0]  # the same on both sides
        elif missing := [p for p in inner[pair] if p not in built]:
            stack += missing
        else:
            old = pair[0]
            built[pair] = make(old.op, [built[p] for p in inner[pair]], dict(old.attrs), data=old.data)
    return built[root]


def _position(old: Tensor, new: Tensor, before: Tensor) -> tuple[int, ...]:
    """The way down to the first place where two terms differ and the old one holds the rewritten subterm."""
    path: list[int] = []
    while old is not before:
        step = next((i for i, (p, q) in enumerate(zip(old.args, new.args)) if p is not q), None)
        if step is None:
            break
        path.append(step)
        old, new = old.args[step], new.args[step]
    return tuple(path)


# ---------------------------------------------------------------- deriving
def derive(
    start: Tensor,
    goal: Tensor,
    rules: Sequence[Rule],
    limits: Limits | None = None,
    *,
    session: Session | None = None,
) -> Explanation | None:
    """The steps from one term to another, found by saturating both in one e-graph without pruning; None where the rules
    do not connect them within the limits."""
    if start.type != goal.type:
        raise UsageError(f"{start.type} and {goal.type} cannot be equal")
    view = saturate_block(Graph.of([start, goal]), rules, limits, guard=False, session=session)
    if view.roots[0] != view.roots[1]:
        return None
    return explain(view, rules, [start], [goal])[0]


__all__ = ["Explanation", "Step", "classes_of", "derive", "explain", "matches", "spelled"]
