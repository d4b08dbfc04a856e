"""Finds the matches of rule patterns in a read-only e-graph view (e-matching)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import isclose
from typing import Any

import numpy as np

from ..ir.memo import memo
from ..patterns.pattern import Literal, PatternCall, Term
from ..patterns.pattern_attrs import Apply, Attr, AttrConstant, Env, Fact, Name, evaluate, holds
from ..types import dtypes
from .view import EGraphView

Binding = dict[str, Any]  # tensor variable -> e-class, '@' + attribute variable -> value


class Matcher:
    """Finds all matches of patterns in an e-graph, given as arrays (EGraphView). Its indexes are built once and shared
    by all patterns."""

    def __init__(self, view: EGraphView) -> None:
        self.view = view
        self._off: list[int] = view.off.tolist()
        self._child: list[int] = view.child.tolist()
        self._cls: list[int] = view.cls.tolist()
        self._weight: list[bool] = [bool(w) for w in view.weight]

    @cached_property
    def by_op(self) -> dict[str, list[int]]:
        """E-nodes of each op, in ascending order."""
        found: dict[str, list[int]] = {}
        for node, op in enumerate(self.view.op):
            found.setdefault(op, []).append(node)
        return found

    @cached_property
    def by_class_op(self) -> dict[tuple[int, str], list[int]]:
        """(e-class, op) -> its e-nodes of that op, in ascending order."""
        found: dict[tuple[int, str], list[int]] = {}
        for node, op in enumerate(self.view.op):
            found.setdefault((self._cls[node], op), []).append(node)
        return found

    @cached_property
    def scalars(self) -> dict[int, float]:
        """Fill values of e-classes that contain a fill, rounded to the dtype of the e-class."""
        found = {}
        for node in self.by_op.get("full", ()):
            cls = self._cls[node]
            found[cls] = rounded(dict(self.view.attrs[node])["value"], self.view.types[cls].dtype)
        return found

    @cached_property
    def facts(self) -> list[Fact]:
        """Type of each e-class, and whether it depends on weights only."""
        return [Fact(t, w) for t, w in zip(self.view.types, self._weight)]

    def children(self, node: int) -> list[int]:
        """Operand e-classes of an e-node."""
        return self._child[self._off[node] : self._off[node + 1]]

    @cached_property
    def values(self) -> list[tuple[Any, ...]]:
        """Attribute values of each e-node, in the order of its op's attributes."""
        return [tuple([v for _, v in attrs]) for attrs in self.view.attrs]

    def find(self, pattern: Term, guards: Sequence[Attr] = ()) -> Iterator[tuple[int, Binding]]:
        """All matches of a call pattern whose guards hold, as (e-class, binding), without duplicates.

        A binding maps tensor variables to e-classes, and "@" + attribute variable to the attribute's value.
        """
        if not isinstance(pattern, PatternCall) or self._lacks_op(pattern):
            return
        search = _Search(self, pattern)
        seen: set[tuple[Any, ...]] = set()
        for node in self.by_op.get(pattern.op, ()):
            cls = self._cls[node]
            for values in search.at(node):
                key = (cls, values)
                if key in seen:
                    continue
                seen.add(key)
                binding = dict(zip(search.names, values))
                if not guards or holds(guards, self.environment(binding)):
                    yield cls, binding

    def _lacks_op(self, pattern: PatternCall) -> bool:
        """Whether the e-graph has no e-node of some op in a pattern, so that nothing can match it. Most patterns of
        library kernels are of this kind, and preparing their search would take longer than all other matching."""
        left: list[Term] = [pattern]
        while left:
            term = left.pop()
            if isinstance(term, PatternCall):
                if term.op not in self.by_op:
                    return True
                left += term.args
        return False

    def environment(self, binding: Binding) -> Env:
        """Convert a binding to an environment for attribute expressions: each e-class becomes its type and whether it
        depends on weights only, attribute names lose their "@"."""
        return {k[1:] if k[0] == "@" else k: v if k[0] == "@" else self.facts[v] for k, v in binding.items()}


Then = Callable[[], None]


class _Search:
    """A pattern compiled to a chain of steps.

    Each step calls the next one once per way to succeed (backtracking search).

    Variables and the e-nodes chosen for inner calls have numbered slots, so nothing is copied during the search.
    Matching is a large part of the time to find kernel candidates.
    """

    def __init__(self, matcher: Matcher, pattern: PatternCall) -> None:
        self.matcher = matcher
        self.slots: list[Any] = [None]  # slot 0 is the e-node at the pattern's root
        self.known: dict[str, int] = {}  # variable ('@name' for attributes) -> slot, in binding order
        self.found: list[tuple[Any, ...]] = []
        self.steps: list[Callable[[Then], Then]] = []
        self._call(pattern, 0)
        self.names = tuple(self.known)
        then = self._record(list(self.known.values()))
        for step in reversed(self.steps):
            then = step(then)
        self.begin = then

    def at(self, node: int) -> list[tuple[Any, ...]]:
        """For every match at an e-node of the pattern's op, the values of `names`."""
        self.found.clear()
        self.slots[0] = node
        self.begin()
        return self.found

    def _record(self, order: list[int]) -> Then:
        slots, found = self.slots, self.found
        return lambda: found.append(tuple([slots[i] for i in order]))

    def _slot(self) -> int:
        self.slots.append(None)
        return len(self.slots) - 1

    def _call(self, term: PatternCall, here: int) -> None:
        """Steps that match the e-node in a slot.

        Attributes, then operands from left to right, then computed attributes.
        """
        for i, (_, attr) in enumerate(term.attrs):
            self._attr(attr, here, i)
        for i, arg in enumerate(term.args):
            self._operand(arg, here, i)
        computed = [(i, a) for i, (_, a) in enumerate(term.attrs) if isinstance(a, Apply)]
        if computed:
            self.steps.append(self._computed(computed, here, dict(self.known)))

    def _attr(self, attr: Attr, here: int, i: int) -> None:
        slots, values = self.slots, self.matcher.values
        if isinstance(attr, AttrConstant):
            wanted = attr.value
            self.steps.append(_where(lambda: _same(wanted, values[slots[here]][i])))
        elif isinstance(attr, Name):
            key = "@" + attr.name
            if key in self.known:
                place = self.known[key]
                self.steps.append(_where(lambda: _same(slots[place], values[slots[here]][i])))
            else:
                place = self.known[key] = self._slot()
                self.steps.append(_set(slots, place, lambda: values[slots[here]][i]))

    def _operand(self, term: Term, here: int, i: int) -> None:
        slots, child, off = self.slots, self.matcher._child, self.matcher._off
        if isinstance(term, PatternCall):
            place = self._slot()
            self.steps.append(self._nodes(term.op, here, i, place))
            self._call(term, place)
        elif isinstance(term, Literal):
            self.steps.append(_where(lambda: self._is(term.value, child[off[slots[here]] + i])))
        elif term.name in self.known:
            place = self.known[term.name]
            self.steps.append(_where(lambda: bool(slots[place] == child[off[slots[here]] + i])))
        else:
            place = self.known[term.name] = self._slot()
            self.steps.append(_set(slots, place, lambda: child[off[slots[here]] + i]))

    def _nodes(self, op: str, here: int, i: int, place: int) -> Callable[[Then], Then]:
        """Step: try every e-node of the op in the operand's e-class."""
        slots, child, off, rows = self.slots, self.matcher._child, self.matcher._off, self.matcher.by_class_op

        def step(then: Then) -> Then:
            def run() -> None:
                for node in rows.get((child[off[slots[here]] + i], op), ()):
                    slots[place] = node
                    then()

            return run

        return step

    def _is(self, wanted: float, cls: int) -> bool:
        """Whether an e-class is a fill of this value in its dtype."""
        value = self.matcher.scalars.get(cls)
        return value is not None and value == rounded(wanted, self.matcher.view.types[cls].dtype)

    def _computed(
        self, wanted: Sequence[tuple[int, Attr]], here: int, known: Mapping[str, int]
    ) -> Callable[[Then], Then]:
        slots, matcher = self.slots, self.matcher

        def holds() -> bool:
            env = matcher.environment({name: slots[place] for name, place in known.items()})
            return all(_evaluates(a, matcher.values[slots[here]][i], env) for i, a in wanted)

        return _where(holds)


def _where(holds: Callable[[], bool]) -> Callable[[Then], Then]:
    """Step: continue if a condition holds."""

    def step(then: Then) -> Then:
        def run() -> None:
            if holds():
                then()

        return run

    return step


def _set(slots: list[Any], place: int, value: Callable[[], Any]) -> Callable[[Then], Then]:
    """Step: set a slot and continue."""

    def step(then: Then) -> Then:
        def run() -> None:
            slots[place] = value()
            then()

        return run

    return step


@memo(4096)
def rounded(value: float, dtype: str) -> float:
    """The number `value` rounded to a dtype, so that 0.1 in a model and 0.1 in a pattern are equal in float32. NaN if
    an integer dtype cannot represent the number."""
    if dtypes.category(dtype) != "float":
        return float(value) if float(value).is_integer() else float("nan")
    with np.errstate(all="ignore"):
        return float(dtypes.numpy_dtype(dtype).type(value))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return bool(a == b or isclose(a, b, rel_tol=1e-6) or (a != a and b != b))
    return bool(a == b)


def _evaluates(attr: Attr, have: Any, env: Env) -> bool:
    try:
        return _same(evaluate(attr, env), have)
    except (KeyError, IndexError, ValueError, ZeroDivisionError):
        return False
