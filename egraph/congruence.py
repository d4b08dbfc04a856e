"""Equality of terms that follows from given equations, and why: congruence closure with a proof forest.

Two terms are equal if a chain of equations connects them, applied at their roots or, by congruence, at their operands.
Every union leaves one edge in a forest over the terms; the path between two terms is the proof that they are equal, and
it never changes once it is there, so proofs are well founded. After Nieuwenhuis and Oliveras, "Proof-producing congruence
closure" (2005).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .graph import Tensor, attrs_key, topological
from .match import rounded


@dataclass(frozen=True)
class Equation:
    """Two terms that a rule (or a definition) says are equal."""

    name: str
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Link:
    """One edge of a proof, from `before` to `after`: an equation, or None where the operands are equal one by one."""

    before: Tensor
    after: Tensor
    equation: Equation | None


class Congruence:
    """Terms, which of them are equal, and the forest of reasons."""

    def __init__(self) -> None:
        self._above: dict[Tensor, Tensor] = {}  # union-find
        self._users: dict[Tensor, list[Tensor]] = {}  # representative -> terms with an operand in its class
        self._table: dict[tuple[Any, ...], Tensor] = {}
        self._why: dict[Tensor, tuple[Tensor, Equation | None]] = {}  # the forest: child -> (parent, reason)
        self._pending: deque[tuple[Tensor, Tensor, Equation | None]] = deque()

    def find(self, term: Tensor) -> Tensor:
        """The representative of a term that was added."""
        root = term
        while (above := self._above[root]) is not root:
            root = above
        while (above := self._above[term]) is not root:
            self._above[term], term = root, above
        return root

    def add(self, term: Tensor) -> None:
        """Make a term and all below it known."""
        if term in self._above:
            return
        for node in topological([term]):
            if node in self._above:
                continue
            self._above[node] = node
            self._users[node] = []
            for operand in dict.fromkeys(self.find(a) for a in node.args):
                self._users[operand].append(node)
            twin = self._table.setdefault(self._signature(node), node)
            if twin is not node:
                self._pending.append((node, twin, None))
        self._propagate()

    def equate(self, equation: Equation) -> None:
        """State an equation."""
        self.add(equation.left)
        self.add(equation.right)
        self._pending.append((equation.left, equation.right, equation))
        self._propagate()

    def equal(self, a: Tensor, b: Tensor) -> bool:
        """Whether two terms are equal by what was stated."""
        self.add(a)
        self.add(b)
        return self.find(a) is self.find(b)

    def proof(self, a: Tensor, b: Tensor) -> list[Link]:
        """The path from one term to an equal one."""
        up_a, up_b = self._ancestors(a), self._ancestors(b)
        place = {term: i for i, term in enumerate(up_b)}
        meet = next(i for i, term in enumerate(up_a) if term in place)
        forth = [Link(x, y, self._why[x][1]) for x, y in pairwise(up_a[: meet + 1])]
        down = up_b[: place[up_a[meet]] + 1]
        back = [Link(y, x, self._why[x][1]) for x, y in pairwise(down)]
        return [*forth, *reversed(back)]

    # ------------------------------------------------------------ inside
    def _ancestors(self, term: Tensor) -> list[Tensor]:
        found = [term]
        while term in self._why:
            term = self._why[term][0]
            found.append(term)
        return found

    def _signature(self, node: Tensor) -> tuple[Any, ...]:
        if node.op == "full":  # a constant of a model and the number that a rule writes, rounded to one dtype
            return ("full", node.shape, node.dtype, rounded(node.attrs[0][1], node.dtype))
        leaf = id(node) if node.is_leaf else 0
        return (node.op, leaf, attrs_key(node.attrs), *(id(self.find(a)) for a in node.args))

    def _propagate(self) -> None:
        while self._pending:
            a, b, why = self._pending.popleft()
            above_a, above_b = self.find(a), self.find(b)
            if above_a is above_b:
                continue
            if len(self._users[above_a]) > len(self._users[above_b]):
                a, b, above_a, above_b = b, a, above_b, above_a
            self._reroot(a)
            self._why[a] = (b, why)
            self._above[above_a] = above_b
            for user in self._users.pop(above_a):
                twin = self._table.setdefault(self._signature(user), user)
                if twin is not user:
                    self._pending.append((user, twin, None))
                self._users[above_b].append(user)

    def _reroot(self, term: Tensor) -> None:
        """Turn the edges from a term up to its tree's root round."""
        path = self._ancestors(term)
        reasons = [self._why[x][1] for x in path[:-1]]
        for child, parent, why in zip(path[1:], path, reasons):
            self._why[child] = (parent, why)
        self._why.pop(term, None)


def equations_used(closure: Congruence, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Equation]:
    """The equations that the proofs of some pairs rest on, in order of first use."""
    found: dict[Equation, None] = {}
    done: set[tuple[Tensor, Tensor]] = set()
    stack = list(reversed(pairs))
    while stack:
        pair = stack.pop()
        if pair in done or pair[0] is pair[1]:
            continue
        done.add(pair)
        for link in closure.proof(*pair):
            if link.equation is not None:
                found[link.equation] = None
            else:
                stack += zip(link.before.args, link.after.args)
    return list(found)


__all__ = ["Congruence", "Equation", "Link", "equations_used"]
