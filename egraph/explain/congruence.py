"""Congruence closure with a proof forest: equality of terms that follows from given equations, with proofs.

Two terms are equal if a chain of equations connects them, applied at the root or, by congruence, at operands. Every
union adds one edge to a forest over the terms; the path between two terms is the proof of their equality. Paths never
change once they exist, so proofs are well-founded. After Nieuwenhuis and Oliveras, "Proof-producing congruence closure"
(2005).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from ..ir.tensor import Tensor, attrs_key, topological
from ..view.match import rounded

# length of a congruence step in addition to its operands' proofs: separates the bounds of nested proofs
CONGRUENCE = 0.01


@dataclass(frozen=True)
class Equation:
    """Two terms that a rule or a definition states to be equal. `name`: of the rule or definition."""

    name: str
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Link:
    """One proof edge from `before` to `after`: an equation, or None if the operands are pairwise equal (congruence)."""

    before: Tensor
    after: Tensor
    equation: Equation | None


class Congruence:
    """Union-find of terms with congruence closure and the proof forest."""

    def __init__(self) -> None:
        self._above: dict[Tensor, Tensor] = {}  # union-find parent
        self._users: dict[Tensor, list[Tensor]] = {}  # representative -> terms with an operand in its class
        self._table: dict[tuple[Any, ...], Tensor] = {}
        self._why: dict[Tensor, tuple[Tensor, Equation | None]] = {}  # proof forest: child -> (parent, reason)
        self._pending: deque[tuple[Tensor, Tensor, Equation | None]] = deque()
        self._stated: dict[Tensor, list[tuple[Tensor, Equation]]] = {}  # term -> (equal term, equation)
        self._alike: dict[tuple[Any, ...], list[Tensor]] | None = None

    def find(self, term: Tensor) -> Tensor:
        """The representative of an added term: the same for all terms known to be equal."""
        root = term
        while (above := self._above[root]) is not root:
            root = above
        while (above := self._above[term]) is not root:
            self._above[term], term = root, above
        return root

    def add(self, term: Tensor) -> None:
        """Add a term and all its subterms."""
        if term in self._above:
            return
        self._alike = None
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
        """Add an equation and all equalities that follow from it by congruence."""
        self.add(equation.left)
        self.add(equation.right)
        self._stated.setdefault(equation.left, []).append((equation.right, equation))
        self._stated.setdefault(equation.right, []).append((equation.left, equation))
        self._pending.append((equation.left, equation.right, equation))
        self._propagate()

    def equal(self, a: Tensor, b: Tensor) -> bool:
        """Whether two terms are equal by the equations added so far."""
        self.add(a)
        self.add(b)
        return self.find(a) is self.find(b)

    def proof(self, a: Tensor, b: Tensor) -> list[Link]:
        """Path in the proof forest from the term `a` to the term `b`, which must be equal to it."""
        up_a, up_b = self._ancestors(a), self._ancestors(b)
        place = {term: i for i, term in enumerate(up_b)}
        meet = next(i for i, term in enumerate(up_a) if term in place)
        forth = [Link(x, y, self._why[x][1]) for x, y in pairwise(up_a[: meet + 1])]
        down = up_b[: place[up_a[meet]] + 1]
        back = [Link(y, x, self._why[x][1]) for x, y in pairwise(down)]
        return [*forth, *reversed(back)]

    def links(self, term: Tensor) -> Iterator[Link]:
        """All links from a term: equations that name it, and links to congruent terms and to constants equal once
        rounded to their dtype."""
        if self._alike is None:
            self._alike = {}
            for node in self._above:
                self._alike.setdefault(self._signature(node), []).append(node)
        for other, equation in self._stated.get(term, ()):
            yield Link(term, other, equation)
        for other in self._alike[self._signature(term)]:
            if other is not term:
                yield Link(term, other, None)

    @property
    def terms(self) -> int:
        """Number of terms added so far."""
        return len(self._above)

    # ------------------------------------------------------------ inside
    def _ancestors(self, term: Tensor) -> list[Tensor]:
        """The path from a term to the root of its proof tree."""
        found = [term]
        while term in self._why:
            term = self._why[term][0]
            found.append(term)
        return found

    def _signature(self, node: Tensor) -> tuple[Any, ...]:
        """Key under which congruent terms are equal: op, attributes and operand representatives."""
        if node.op == "full":  # a model's constant equals a rule's number after rounding to the dtype
            return ("full", node.shape, node.dtype, rounded(node.attrs[0][1], node.dtype))
        leaf = id(node) if node.is_leaf else 0
        return (node.op, leaf, attrs_key(node.attrs), *(id(self.find(a)) for a in node.args))

    def _propagate(self) -> None:
        """Process pending unions until the relation is closed under congruence."""
        self._alike = None
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
        """Reverse the edges from a term to the root of its tree."""
        path = self._ancestors(term)
        reasons = [self._why[x][1] for x in path[:-1]]
        for child, parent, why in zip(path[1:], path, reasons):
            self._why[child] = (parent, why)
        self._why.pop(term, None)


class ShortProofs:
    """Shortened proofs in a congruence closure.

    The proof forest's proof of two terms bounds the length of a shortest one. With these bounds as weights of
    congruence steps, the shortest path through all links of an equivalence class is again a proof, and its length is a
    tighter bound. This is done `rounds` times. A path contains only congruence steps whose operands' bounds are below
    its own, so unfolding terminates for any number of rounds. After Flatt et al., "Small proofs from congruence
    closure" (FMCAD 2022), without their optimality.
    """

    def __init__(self, closure: Congruence, rounds: int = 2) -> None:
        self.closure, self.rounds = closure, rounds
        self._lengths: dict[tuple[int, Tensor, Tensor], float] = {}
        self._paths: dict[tuple[int, Tensor, Tensor], list[Link]] = {}

    def path(self, a: Tensor, b: Tensor) -> list[Link]:
        """The shortened proof that `a` and `b` are equal, as links from one to the other."""
        return self._path(self.rounds, a, b)

    def length(self, a: Tensor, b: Tensor) -> float:
        """Upper bound on the number of equation applications in the proof that `a` and `b` are equal, counting
        repetitions."""
        return self._length(self.rounds, a, b)

    def _path(self, level: int, a: Tensor, b: Tensor) -> list[Link]:
        found = self._paths.get((level, a, b))
        if found is None:
            found = self.closure.proof(a, b) if level == 0 else self._search(level, a, b)
            self._paths[level, a, b] = found
        return found

    def _length(self, level: int, a: Tensor, b: Tensor) -> float:
        if a is b:
            return 0.0
        found = self._lengths.get((level, a, b))
        if found is None:
            found = sum(self._weight(max(level - 1, 0), link) for link in self._path(level, a, b))
            self._lengths[level, a, b] = self._lengths[level, b, a] = found
        return found

    def _weight(self, level: int, link: Link) -> float:
        if link.equation is not None:
            return 1.0
        pairs = dict.fromkeys(zip(link.before.args, link.after.args))
        return min(CONGRUENCE + sum(self._length(level, *pair) for pair in pairs), 1e300)

    def _search(self, level: int, a: Tensor, b: Tensor) -> list[Link]:
        """Shortest path between two equal terms (Dijkstra) with the bounds of the level below as weights."""
        best: dict[Tensor, float] = {a: 0.0}
        came: dict[Tensor, Link] = {}
        number = count()  # tie-breaker: terms are not ordered
        heap: list[tuple[float, int, Tensor]] = [(0.0, next(number), a)]
        while heap:
            value, _, term = heapq.heappop(heap)
            if term is b:
                break
            if value > best[term]:
                continue
            for link in self.closure.links(term):
                total = value + self._weight(level - 1, link)
                if total < best.get(link.after, float("inf")):
                    best[link.after], came[link.after] = total, link
                    heapq.heappush(heap, (total, next(number), link.after))
        found = []
        while b is not a:
            found.append(came[b])
            b = came[b].before
        return found[::-1]


__all__ = ["Congruence", "Equation", "Link", "ShortProofs"]
