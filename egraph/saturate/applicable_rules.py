"""Decides which rules can match on a graph, from the ops, op shapes and ranks that rules match and create."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ..patterns.pattern import PatternCall, Term, Var, subterms
from ..patterns.pattern_attrs import Apply
from ..patterns.rule import Rule


@lru_cache(maxsize=4096)
def rule_ops(rule: Rule) -> tuple[frozenset[str], frozenset[str]]:
    """The ops of a rule, as (ops that its left sides match, ops that its right sides create); numbers count as
    `full`."""
    return _ops(rule.lefts), _ops(rule.rights)


def _ops(terms: Iterable[Term]) -> frozenset[str]:
    return frozenset(
        t.op if isinstance(t, PatternCall) else "full" for r in terms for t in subterms(r) if not isinstance(t, Var)
    )


Shape = tuple[str, tuple[tuple[int, str], ...]]  # an op, and (operand index, op) of the calls among its operands


@lru_cache(maxsize=4096)
def shapes(rule: Rule) -> tuple[Shape, ...]:
    """Op shapes that must occur in an e-graph for a rule to match: one for each op call in its left sides.

    A shape is (op of the call, (operand index, op) of each operand that is itself a call).
    """
    found: dict[Shape, None] = {}
    for term in (t for side in rule.lefts for t in subterms(side) if isinstance(t, PatternCall)):
        inner = [
            (i, a.op if isinstance(a, PatternCall) else "full")
            for i, a in enumerate(term.args)
            if not isinstance(a, Var)
        ]
        found[term.op, tuple(inner)] = None
    return tuple(found)


def applicable(rules: Iterable[Rule], ops: Iterable[str]) -> tuple[list[Rule], set[str]]:
    """The rules that can ever match on a graph with some ops, as (one-directional rules, ops that may then occur)."""
    waiting = [(d, *rule_ops(d)) for r in rules for d in r.directions]
    have, found = set(ops), list[Rule]()
    while ready := [one for one in waiting if one[1] <= have]:
        waiting = [one for one in waiting if not one[1] <= have]
        found += [rule for rule, _, _ in ready]
        have.update(*(made for _, _, made in ready))
    return found, have


def changes_rank(rule: Rule) -> bool:
    """Whether a rule can create values of other ranks than those of its operands."""
    return bool(rule_ops(rule)[1] & {"reshape", "windows", "gather", "full", "iota"})


@lru_cache(maxsize=4096)
def literal_ranks(rule: Rule) -> frozenset[int]:
    """Ranks of the literal shapes and permutations in a rule's right sides."""
    calls = [t for side in rule.rights for t in subterms(side) if isinstance(t, PatternCall)]
    attrs = [a for t in calls for name, a in t.attrs if name in ("shape", "perm")]
    return frozenset(len(a.args) for a in attrs if isinstance(a, Apply) and a.function == "vec")


__all__ = ["Shape", "applicable", "changes_rank", "literal_ranks", "rule_ops", "shapes"]
