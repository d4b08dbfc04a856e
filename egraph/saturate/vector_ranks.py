"""Infers which vector lengths and ranks in the left side of a rule are equal (union-find)."""

from __future__ import annotations

from collections.abc import Iterable

from ..ops.ops import OPS
from ..patterns.pattern import Literal, Term, Var
from ..patterns.pattern_attrs import Name

Key = tuple[str, str]  # ("len", attribute variable) or ("rank", tensor variable)


class VectorRanks:
    """Union-find of the vector lengths and tensor ranks in the left sides of a rule that must be equal for the ops'
    shapes to be valid."""

    def __init__(self, lefts: Iterable[Term]) -> None:
        self.up: dict[Key, Key] = {}
        for term in lefts:
            self.of(term)

    def find(self, key: Key) -> Key:
        """The key that represents all lengths known to be equal to `key`."""
        while key in self.up:
            key = self.up[key]
        return key

    def join(self, a: Key | None, b: Key | None) -> Key | None:
        """Record that two lengths are equal (None: unknown); returns the key that represents both, None if both are
        unknown."""
        if a is None or b is None:
            return a or b
        a, b = self.find(a), self.find(b)
        if a != b:
            low, high = sorted((a, b))
            self.up[high] = low
        return self.find(a)

    def of(self, term: Term) -> Key | None:
        """The rank of a term, as the key of an equal length or rank; None if no variable determines it."""
        if isinstance(term, Var):
            return self.find(("rank", term.name))
        if isinstance(term, Literal):
            return None
        children = [self.of(a) for a in term.args]
        attrs = dict(term.attrs)

        def length(name: str) -> Key | None:
            attr = attrs[name]
            return ("len", attr.name) if isinstance(attr, Name) else None

        entry = OPS[term.op]
        if entry.law in ("leaf", "reshape"):
            return length("shape")
        if entry.law in ("gather", "windows", "cross_entropy"):
            return None
        found = children[0] if children else None
        if entry.pointwise or entry.law in ("concat", "rope", "attention", "conv", "gather_elements"):
            for child in children[1:] if entry.law != "attention" else children[1:3]:
                found = self.join(found, child)
        if entry.law == "permute":
            found = self.join(found, length("perm"))
        if entry.law == "broadcast_to":
            found = self.join(found, length("shape"))
        return found


__all__ = ["VectorRanks"]
