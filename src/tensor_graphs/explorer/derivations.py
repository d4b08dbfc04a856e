"""Finds which rules make which e-nodes, and which kernels compute them, by matching patterns on the view (e-graph as
arrays).

egglog keeps no record of which rule made an e-node. Each rule is therefore matched on the saturated view: the e-nodes
of a match's left side, and those of its right side in the same e-class, are a *derivation*. An e-node may have several
derivations, or none (its left side was pruned, or it is part of a decomposition); then its rule is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..egraph.builders.builders import input as placeholder
from ..egraph.composites.recurrent import parts_of
from ..egraph.explain.explain import DEFINITION, matches
from ..egraph.ir.tensor import Tensor, topological
from ..egraph.patterns.pattern import Literal, PatternCall, Term, Var, variables
from ..egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Env, Name, evaluate
from ..egraph.patterns.rule import Rule
from ..egraph.view.match import Binding, Matcher, rounded
from ..egraph.view.view import EGraphView
from ..extract.model.kernel import Candidate
from ..rules import ALL

MOST_DERIVATIONS = 200_000  # of one e-graph; further ones are not looked for
FAILURES = (KeyError, IndexError, ValueError, ZeroDivisionError, TypeError)


@dataclass(frozen=True)
class Derivation:
    """One match of a rule on the saturated e-graph: the e-nodes of its left sides, and those (`made`) that only its
    right sides contain."""

    rule: str
    left: tuple[int, ...]
    made: tuple[int, ...]


class TermMatcher:
    """Finds where a term occurs in an e-graph, given the e-classes of its variables. A match is the tuple of e-nodes
    that it uses, one for each op of the term."""

    def __init__(self, view: EGraphView) -> None:
        self.view, self.matcher = view, Matcher(view)

    def nodes(self, term: Term, cls: int, classes: Mapping[str, int], attrs: Env) -> tuple[int, ...] | None:
        """The e-nodes of the first match of `term` at e-class `cls`, root first; None without a match.

        `classes`: e-class of each tensor variable; variables not in it match any e-class. `attrs`: values of attribute
        variables.
        """
        memo: dict[tuple[int, int], tuple[int, ...] | None] = {}
        found = self._at(term, cls, classes, attrs, memo)
        return None if found is None else tuple(dict.fromkeys(found))

    def of_candidate(self, candidate: Candidate) -> tuple[int, ...]:
        """The e-nodes that a candidate kernel computes, outputs first. The candidate may be a generated kernel, a
        library kernel or a view.
        """
        classes = {o: v.cls for o, v in candidate.inputs}
        found: dict[int, None] = {}
        for vertex, term in zip(candidate.outputs, candidate.template.terms):
            found |= dict.fromkeys(self.nodes(term, vertex.cls, classes, candidate.call.attrs) or ())
        return tuple(found)

    def _at(
        self, term: Term, cls: int, classes: Mapping[str, int], attrs: Env, memo: dict[tuple[int, int], Any]
    ) -> tuple[int, ...] | None:
        if isinstance(term, Var):
            return () if classes.get(term.name, cls) == cls else None
        if isinstance(term, Literal):
            value = self.matcher.scalars.get(cls)
            return () if value is not None and value == rounded(term.value, self.view.types[cls].dtype) else None
        key = (id(term), cls)
        if key not in memo:
            memo[key] = None  # a term inside itself: no match
            memo[key] = next(self._calls(term, cls, classes, attrs, memo), None)
        found: tuple[int, ...] | None = memo[key]
        return found

    def _calls(
        self, term: PatternCall, cls: int, classes: Mapping[str, int], attrs: Env, memo: dict[tuple[int, int], Any]
    ) -> Iterator[tuple[int, ...]]:
        for node in self.matcher.by_class_op.get((cls, term.op), ()):
            if not _agrees(term.attrs, self.matcher.values[node], attrs):
                continue
            used: list[int] = [node]
            for arg, child in zip(term.args, self.matcher.children(node)):
                inner = self._at(arg, child, classes, attrs, memo)
                if inner is None:
                    break
                used += inner
            else:
                yield tuple(used)


def _agrees(wanted: Sequence[tuple[str, Attr]], have: Sequence[Any], attrs: Env) -> bool:
    """Whether an e-node's attribute values are those of a pattern; unbound attribute variables match anything."""
    for (_, attr), value in zip(wanted, have):
        try:
            if isinstance(attr, AttrConstant):
                expected = attr.value
            elif isinstance(attr, Name):
                expected = attrs.get(attr.name, value)
            else:
                expected = evaluate(attr, attrs)
        except FAILURES:
            if isinstance(attr, Apply):
                continue  # sizes of operands are not known here: any value
            return False
        if expected != value and not (isinstance(value, float) and abs(expected - value) <= 1e-6 * abs(value)):
            return False
    return True


def derivations(view: EGraphView, rules: Iterable[Rule] = ALL) -> list[Derivation]:
    """All rule matches on the view that explain e-nodes: decompositions of composite ops, then the rules that matched
    during saturation."""
    terms, present = TermMatcher(view), set(view.op)
    found: dict[Derivation, None] = dict.fromkeys(_definitions(terms))
    counts = view.report.matches
    for rule in (d for r in rules for d in r.directions):
        if counts and not counts.get(rule.name):
            continue
        if all(getattr(left, "op", "") in present for left in rule.lefts):
            for one in _of_rule(terms, rule):
                found[one] = None
                if len(found) >= MOST_DERIVATIONS:
                    return list(found)
    return list(found)


def _of_rule(terms: TermMatcher, rule: Rule) -> Iterator[Derivation]:
    for binding, roots in _rooted(terms.matcher, rule):
        env = terms.matcher.environment(binding)
        classes = {k: v for k, v in binding.items() if k[0] != "@"}
        lefts = [terms.nodes(t, c, classes, env) for t, c in zip(rule.lefts, roots)]
        rights = [terms.nodes(t, c, classes, env) for t, c in zip(rule.rights, roots)]
        left = tuple(dict.fromkeys(n for part in lefts for n in part or ()))
        made = tuple(dict.fromkeys(n for part in rights for n in part or () if n not in left))
        if left and made:
            yield Derivation(rule.name, left, made)


def _definitions(terms: TermMatcher) -> Iterator[Derivation]:
    """The decompositions of the composite e-nodes."""
    view = terms.view
    for node in range(len(view)):
        children = view.children(node).tolist()
        operands = [placeholder(str(i), view.types[k].shape, view.types[k].dtype) for i, k in enumerate(children)]
        parts = parts_of(view.node_tensor(node, operands)) if children else None
        if parts is None:
            continue
        classes = {str(i): k for i, k in enumerate(children)}
        made = terms.nodes(_as_term(parts), int(view.cls[node]), classes, {}) or ()
        if made := tuple(n for n in made if n != node):
            yield Derivation(DEFINITION + view.op[node], (node,), made)


def _as_term(root: Tensor) -> Term:
    """A tensor expression as a pattern: its inputs are the variables."""
    made: dict[Tensor, Term] = {}
    for t in topological([root]):
        attrs = tuple((name, AttrConstant(value)) for name, value in t.attrs)
        made[t] = (
            Var(str(t.attr("name"))) if t.op == "input" else PatternCall(t.op, tuple(made[a] for a in t.args), attrs)
        )
    return made[root]


def _rooted(matcher: Matcher, rule: Rule) -> Iterator[tuple[Binding, list[int]]]:
    """Matches of a rule as (binding, e-class of each left side)."""
    if len(rule.lefts) == 1:
        for cls, binding in matcher.find(rule.lefts[0], rule.guards):
            yield binding, [cls]
        return
    at = []
    for left in rule.lefts:
        names = tuple(variables(left))
        at.append((names, {tuple(b[n] for n in names): c for c, b in matcher.find(left)}))
    for binding in matches(matcher, rule):
        yield binding, [index[tuple(binding[n] for n in names)] for names, index in at]


def without_rules(view: EGraphView, found: Sequence[Derivation], forbidden: frozenset[str]) -> set[int]:
    """The e-nodes that only the forbidden rules make, directly or through other rules that matched on their e-nodes.

    `found`: all derivations of the view (`derivations`). E-nodes of the model and e-nodes without a derivation do not
    count.
    """
    own = view.original_nodes if view.original_nodes is not None else [False] * len(view)
    known = {n for d in found for n in d.made}
    alive = {n for n in range(len(view)) if own[n] or n not in known}
    waiting = [d for d in found if d.rule not in forbidden]
    while True:
        rest = []
        for d in waiting:
            if alive.issuperset(d.left):
                alive.update(d.made)
            else:
                rest.append(d)
        if len(rest) == len(waiting):
            return set(range(len(view))) - alive
        waiting = rest


__all__ = ["Derivation", "TermMatcher", "derivations", "without_rules"]
