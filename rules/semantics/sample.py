"""Draws random instances of a rule: concrete types for tensor variables and values for attribute variables.

An instance makes every left side well typed and satisfies every guard. The left sides are traversed from the root down
and left to right. Each subterm is sampled under a `Want`, the sizes per axis that its context allows, so that most
choices fit at once. `sample_ops.py` has, for each type law (rule for an op's result type), the constraints on the
operands and the proposals for attributes. Guards of the form `variable == …` are solved as soon as the other side can
be evaluated, and guards on shapes narrow a variable's sizes before it is drawn. The rest is rejection sampling: a
choice that violates a guard is drawn again, and a dead end restarts the instance. Each instance is built and typed by
the real shape inference, so errors in this file can only lose instances, not produce wrong ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from ...egraph.patterns.pattern import build
from ...egraph.patterns.pattern_attrs import Attr, holds
from ...egraph.patterns.rule import Rule
from ...errors import RuleError, ShapeError
from .instance import FAILURES, Instance
from .sample_ops import HANDLERS
from .sample_parts import result_dtype
from .sampler import NotYet, Reject, Sampler, Want


def attempt(
    rule: Rule, guards: Sequence[Attr], rng: random.Random, dtype: str = "", empty: bool = False
) -> Instance | None:
    """One sampling attempt for a one-way rule under these guards; None if it fails. `dtype` and `empty` as in
    `instances`."""
    s = Sampler(rule, guards, rng, HANDLERS, dtype, empty)
    try:
        for left in rule.lefts:
            s.term(left, Want(None, result_dtype(s, left)))
        found = Instance(dict(s.types), dict(s.attrs), frozenset(s.weights), dict(s.bounds))
        tensors = found.tensors()
        for left in rule.lefts:
            build(left, tensors, found.attrs)
    except (Reject, NotYet, ShapeError, *FAILURES):
        return None
    return found if holds(list(guards), found.env()) else None


def instances(
    rule: Rule,
    rng: random.Random,
    count: int,
    *,
    guards: Sequence[Attr] | None = None,
    accept: Callable[[Instance], bool] | None = None,
    attempts: int = 4000,
    dtype: str = "",
    empty: bool = False,
) -> Iterator[Instance]:
    """Yields `count` random instances of a one-way rule (of `rule.directions`); fewer if `attempts` draws find none.

    `guards` replaces the rule's own guards and `accept` filters instances (both to test whether a guard is needed).
    `dtype`: of the operands that need not be floats ("": any); at least one has it. `empty`: whether at least one
    operand has no elements. Raises RuleError for a two-way or malformed rule.
    """
    if rule.both:
        raise RuleError("instances are drawn of one direction at a time", where=rule.name, hint="use rule.directions")
    rule.check()
    wanted = rule.guards if guards is None else guards
    for _ in range(count):
        for _ in range(attempts):
            found = attempt(rule, wanted, rng, dtype, empty)
            if found is None or (dtype and all(t.dtype != dtype for t in found.types.values())):
                continue
            if empty and all(0 not in t.shape for t in found.types.values()):
                continue
            if accept is None or accept(found):
                yield found
                break
        else:
            return
