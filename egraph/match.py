"""Matching patterns on a read-only e-graph view: the same language that rules are written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from math import isclose
from typing import Any

import numpy as np

from . import dtypes
from .pattern import Apply, Attr, Call, Env, Fact, Literal, Name, Term, Value, Var, evaluate, holds
from .view import EGraphView

Binding = dict[str, Any]  # tensor variable -> class, attribute variable -> value


class Matcher:
    """Finds all bindings of a pattern at e-nodes of a view. Indexes are built once and shared by all patterns."""

    def __init__(self, view: EGraphView) -> None:
        self.view = view
        self._off: list[int] = view.off.tolist()
        self._kid: list[int] = view.kid.tolist()
        self._cls: list[int] = view.cls.tolist()
        self._weight: list[bool] = [bool(w) for w in view.weight]

    @cached_property
    def by_op(self) -> dict[str, list[int]]:
        """E-nodes of each op, in order."""
        found: dict[str, list[int]] = {}
        for node, op in enumerate(self.view.op):
            found.setdefault(op, []).append(node)
        return found

    @cached_property
    def by_class_op(self) -> dict[tuple[int, str], list[int]]:
        """E-nodes of each op in each class."""
        found: dict[tuple[int, str], list[int]] = {}
        for node, op in enumerate(self.view.op):
            found.setdefault((self._cls[node], op), []).append(node)
        return found

    @cached_property
    def scalars(self) -> dict[int, float]:
        """Classes that are one known number in every place: the number that their dtype holds."""
        found = {}
        for node in self.by_op.get("full", ()):
            cls = self._cls[node]
            found[cls] = rounded(dict(self.view.attrs[node])["value"], self.view.types[cls].dtype)
        return found

    @cached_property
    def facts(self) -> list[Fact]:
        """Type and weight flag of each class."""
        return [Fact(t, w) for t, w in zip(self.view.types, self._weight)]

    def children(self, node: int) -> list[int]:
        """Child classes of an e-node."""
        return self._kid[self._off[node] : self._off[node + 1]]

    def find(self, pattern: Term, guards: Sequence[Attr] = ()) -> Iterator[tuple[int, Binding]]:
        """(class, binding) of every match of a call pattern whose guards hold, without duplicates."""
        if not isinstance(pattern, Call):
            return
        seen: set[tuple[Any, ...]] = set()
        for node in self.by_op.get(pattern.op, ()):
            for binding in self._node(pattern, node, {}):
                key = (self._cls[node], *binding.items())
                if key in seen:
                    continue
                seen.add(key)
                if not guards or holds(guards, self.environment(binding)):
                    yield self._cls[node], binding

    def environment(self, binding: Binding) -> Env:
        """The binding with facts in place of classes, for attribute expressions."""
        return {k[1:] if k[0] == "@" else k: v if k[0] == "@" else self.facts[v] for k, v in binding.items()}

    def _term(self, term: Term, cls: int, binding: Binding) -> Iterator[Binding]:
        if isinstance(term, Var):
            bound = binding.get(term.name)
            if bound is None:
                yield {**binding, term.name: cls}
            elif bound == cls:
                yield binding
        elif isinstance(term, Literal):
            value = self.scalars.get(cls)
            if value is not None and value == rounded(term.value, self.view.types[cls].dtype):
                yield binding
        else:
            for node in self.by_class_op.get((cls, term.op), ()):
                yield from self._node(term, node, binding)

    def _node(self, term: Call, node: int, binding: Binding) -> Iterator[Binding]:
        bound = self._attrs(term, node, binding)
        if bound is None:
            return
        found = [bound]
        for child_term, child in zip(term.args, self.children(node)):
            found = [b for part in found for b in self._term(child_term, child, part)]
            if not found:
                return
        later = [(n, a) for n, a in term.attrs if isinstance(a, Apply)]
        have = dict(self.view.attrs[node])
        for b in found:
            if all(_evaluates(a, have[n], self.environment(b)) for n, a in later):
                yield b

    def _attrs(self, term: Call, node: int, binding: Binding) -> Binding | None:
        """Attribute variables bound by this e-node ('@name' keys), or None where a constant or an earlier value differs.
        Computed attributes are checked once the operands are bound."""
        found = binding
        for (name, attr), (_, have) in zip(term.attrs, self.view.attrs[node]):
            if isinstance(attr, Value):
                if not _same(attr.value, have):
                    return None
            elif isinstance(attr, Name):
                key = "@" + attr.name
                if key not in found:
                    found = {**found, key: have}
                elif not _same(found[key], have):
                    return None
            assert name
        return found


@cache
def rounded(value: float, dtype: str) -> float:
    """The number that a dtype holds for a value: 0.1 in a model and 0.1 in a pattern are one number in float32, and no
    other number is. NaN for what an integer cannot hold."""
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
