"""Checks that two terms are an instance of a rewrite rule, from the rule and the two terms alone (no e-graph)."""

from __future__ import annotations

from typing import Any

from ...errors import ShapeError
from ..ir.tensor import Tensor, attrs_key
from ..patterns.pattern import Literal, Term, Var, build
from ..patterns.pattern_attrs import Apply, Attr, AttrConstant, Fact, Name, holds
from ..patterns.rule import Rule
from ..view.match import rounded

# exceptions raised while building one side of a rule
FAILURES = (ShapeError, IndexError, ValueError, KeyError, ZeroDivisionError, TypeError)
BOUNDS = (
    "weight",
    "active",
    "chained",
    "original",
    "ordered",
)  # guards that bound the growth of the e-graph; a rule is true without them


def op_key(op: str, attrs: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """Hashable key of an op with its attributes; the value of a fill is first rounded to its dtype."""
    if op == "full":
        known = dict(attrs)
        return (op, known["shape"], known["dtype"], rounded(known["value"], known["dtype"]))
    return (op, attrs_key(attrs))


def is_instance(rule: Rule, side: int, before: Tensor, after: Tensor) -> bool:
    """Whether a rule rewrites `before` to `after` under one binding of its variables.

    Left side number `side` must match `before`, and the right side must then give `after`. For a rule with several left
    sides (a merge), variables that this left side leaves unbound are bound by matching the right side against `after`.
    False when `before` and `after` do not bind all variables.
    """
    binding: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    if not bind(rule.lefts[side], before, binding, attrs):
        return False
    if len(rule.lefts) > 1 and not bind(rule.rights[side], after, binding, attrs):
        return False
    try:
        env = {**attrs, **{n: Fact(t.type, False) for n, t in binding.items()}}
        if not holds([g for g in rule.guards if not _is_bound(g)], env):
            return False
        return _same(build(rule.rights[side], binding, attrs), after)
    except FAILURES:
        return False


def bind(pattern: Term, term: Tensor, binding: dict[str, Any], attrs: dict[str, Any]) -> bool:
    """Whether a term matches a pattern; adds to `binding` (tensor variables) and `attrs` (attribute variables).

    Computed attributes (`Apply`) are not checked here: `is_instance` checks them by rebuilding the right side.
    """
    if isinstance(pattern, Var):
        return binding.setdefault(pattern.name, term) is term
    if isinstance(pattern, Literal):
        return term.op == "full" and rounded(term.attrs[0][1], term.dtype) == rounded(pattern.value, term.dtype)
    if term.op != pattern.op or not all(bind(p, t, binding, attrs) for p, t in zip(pattern.args, term.args)):
        return False
    for (_, want), (_, have) in zip(pattern.attrs, term.attrs):
        if isinstance(want, Name) and attrs.setdefault(want.name, have) != have:
            return False
        if isinstance(want, AttrConstant) and want.value != have:
            return False
    return True


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two terms are structurally equal up to rounding of constants."""
    if a is b:
        return True
    if a.op == b.op == "full":
        return op_key("full", a.attrs) == op_key("full", b.attrs)
    return a.op == b.op and a.attrs == b.attrs and len(a.args) == len(b.args) > 0 and all(map(_same, a.args, b.args))


def _is_bound(guard: Attr) -> bool:
    return isinstance(guard, Apply) and guard.function in BOUNDS


__all__ = ["FAILURES", "bind", "is_instance", "op_key"]
