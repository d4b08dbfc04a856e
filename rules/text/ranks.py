"""Infers the ranks of the terms of a text rule: unification of equal ranks, and choices for free ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plain import as_int
from .terms import Untypable, perm_of
from .text_rule import Input, Number, Term, TextApply

MATRIX = 6  # input_1 … input_6 are matrices in the files of TASO, the others have rank 4


class Ranks:
    """Ranks of all subterms of a rule: equal ranks are unified (union-find), the rest are chosen."""

    def __init__(self, attrs: Mapping[str, Any]) -> None:
        self.attrs = attrs
        self.parent: dict[int, int] = {}
        self.rank: dict[int, int] = {}
        self.above: dict[int, int] = {}  # strict lower bound of a rank
        self.matrix: set[int] = set()  # operands of matmul
        self.bare: set[int] = set()  # concatenated or split along an axis without a stated rank
        self.names: dict[int, list[str]] = {}
        self.inputs: dict[str, int] = {}
        self.ones: dict[int, int] = {}  # rank of each Iewmul by term id

    def new(self) -> int:
        """The number of a new rank variable, which is equal to no other yet."""
        self.parent[len(self.parent)] = len(self.parent)
        return len(self.parent) - 1

    def find(self, i: int) -> int:
        """The representative of a rank variable."""
        while self.parent[i] != i:
            i = self.parent[i]
        return i

    def join(self, *items: int) -> int:
        """Unify rank variables; returns the representative."""
        first = self.find(items[0])
        for item in items[1:]:
            other = self.find(item)
            if other != first:
                self.parent[other] = first
                if other in self.rank:
                    self.set(first, self.rank[other])
                self.above[first] = max(self.above.get(first, -1), self.above.get(other, -1))
                self.names[first] = self.names.get(first, []) + self.names.get(other, [])
                for marks in (self.matrix, self.bare):
                    if other in marks:
                        marks.add(first)
        return first

    def set(self, i: int, rank: int) -> int:
        """Fix a rank variable to `rank` and return its representative. Raises Untypable if it is already fixed to
        another rank."""
        i = self.find(i)
        if self.rank.setdefault(i, rank) != rank:
            raise Untypable(f"a value would have rank {rank} and rank {self.rank[i]}")
        return i

    def value(self, name: str, term: TextApply) -> Any:
        """Value of the parameter `name` of a term; a parameter variable is replaced by its value."""
        found = term.param(name)
        return self.attrs[found] if isinstance(found, str) else found

    def visit(self, term: Term) -> int:
        """The rank variable of a term, with the constraints of its operator added.

        Raises Untypable if no rank satisfies them.
        """
        if isinstance(term, Number):
            return self.set(self.new(), 0)
        if isinstance(term, Input):
            if term.name not in self.inputs:
                self.inputs[term.name] = self.new()
                self.names[self.inputs[term.name]] = [term.name]
            return self.inputs[term.name]
        args = [self.visit(a) for a in term.args]
        op = term.op
        if op in ("conv2d", "poolmax", "poolavg", "enlarge", "merge", "Iconv", "Cpool", "batchnorm"):
            for i, a in enumerate(args):
                self.set(a, 1 if op == "batchnorm" and i else 4)
            return self.set(self.new(), 4)
        if op == "smul":
            self.set(args[1], 0)
            return args[0]
        if op == "transpose":
            given = self.value("perm", term)
            perm = perm_of(given) if given is not None else (1, 0)
            if perm is None:
                raise Untypable(f"{given} is not a permutation")
            return self.set(args[0], len(perm))
        if op == "reshape":
            shape = self.value("shape", term)
            return self.set(self.new(), len(shape) if isinstance(shape, tuple) else 1)
        if op == "Imatmul":
            return self.set(self.new(), 2)
        if op == "Iewmul":
            self.ones[id(term)] = self.new()
            return self.ones[id(term)]
        joined = self.join(*args)
        if op == "matmul":
            self.above[joined] = max(self.above.get(joined, -1), 1)
            self.matrix.add(joined)
        if op in ("concat", "split_0", "split_1"):
            axis, ndim = self.value("axis", term), self.value("ndim", term)
            self.above[joined] = max(self.above.get(joined, -1), axis)
            if ndim is not None:
                self.set(joined, ndim)
            else:
                self.bare.add(joined)
        return joined

    def options(self, i: int) -> list[int]:
        """The ranks that the rank variable `i` may have."""
        i = self.find(i)
        above = self.above.get(i, -1)
        if i in self.rank:
            return [self.rank[i]] if self.rank[i] > above else []
        if i in self.matrix:
            found = [2] if i in self.bare else [2, 3]
        elif i in self.bare:
            named = [as_int(n[6:]) for n in self.names.get(i, ()) if n.startswith("input_")]
            numbers = [n for n in named if n is not None]
            found = [4 if any(n > MATRIX for n in numbers) else 2] if numbers else [2, 4, 3]
        else:
            found = [2, 4, 3]
        return [r for r in found if r > above]


__all__ = ["Ranks"]
