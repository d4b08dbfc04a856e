"""Keeps the results of cost-independent steps of solving between solves of one e-graph at changing costs.

A search with measurements solves the same rows (ways to compute a class) again and again. The lists of a problem, the
index of its rows by class and by child, and the first reduction (`detach`) depend on classes, children and roots alone.
So does the order in which the frontier DP resolves classes, but for ties, which costs break so that equal parts of a
problem get equal orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from ...lru_map import LruMap
from .presolve import detach
from .presolver import PresolvedRows
from .problem import Problem, ProblemRows
from .resolution_order import ResolutionOrder, narrow_order

KEPT_STRUCTURES = 4  # optimistic, pessimistic and compiler-free plans differ by rows of infinite cost
KEPT_ORDERS = 16  # of components, of which a problem has a few


class Structures:
    """Cache of the last `KEPT_STRUCTURES` structures of problems (classes, children and roots without costs), each with
    its rows (ways to compute a class) and its first reduction, and of the last `KEPT_ORDERS` orders of components. Not
    thread-safe."""

    def __init__(self) -> None:
        self._kept: LruMap[bytes, tuple[ProblemRows, PresolvedRows | None]] = LruMap(KEPT_STRUCTURES)
        self._key = b""
        self._orders: LruMap[object, ResolutionOrder | None] = LruMap(KEPT_ORDERS)

    def rows(self, problem: Problem) -> ProblemRows:
        """The rows (ways to compute a class) of a problem (`Problem.rows`), which share the lists of an earlier problem
        of the same structure."""
        self._key = _structure_of(problem)
        known = self._kept.get(self._key)
        if known is None:
            self._kept[self._key] = problem.rows, None
            return problem.rows
        cost = problem.cost.tolist()
        return known[0].at([cost[i] for i in problem.live])

    def detached(self, rows: ProblemRows, expired: Callable[[], bool]) -> PresolvedRows | None:
        """The reduction `presolve.detach` of the rows (ways to compute a class) that `Structures.rows` returned last;
        computed once per structure. None if a root has no finite term. `expired`: polled; True ends it early."""
        first, known = self._kept[self._key]
        if known is None:
            known = detach(rows, expired)
            if known is not None and not expired():  # a hurried reduction finds less
                self._kept[self._key] = first, known
            return known
        return PresolvedRows(
            known.rows.at([rows.cost[r] for r in known.origin]), known.origin, list(known.fixed), known.constant
        )

    def order(self, rows: ProblemRows, kind: Callable[[], Sequence[tuple[int, ...]]]) -> ResolutionOrder | None:
        """The order in which the frontier DP resolves the classes of a component (`narrow_order`; None if it finds
        none), computed once for components of the same structure.

        `kind`: returns, for each class, a tuple of integers by which ties are broken; only called for a new structure.
        """
        key = rows.n_classes, rows.roots, tuple(rows.cls), tuple(rows.children)
        if key not in self._orders:
            self._orders[key] = narrow_order(rows, kind())
        return self._orders[key]


def _structure_of(problem: Problem) -> bytes:
    """Hash of everything about a problem's rows but their costs."""
    total = blake2b(repr((problem.n_classes, problem.roots)).encode(), digest_size=16)
    for array in (problem.cls, problem.off, problem.child):
        total.update(array.tobytes() + b"|")
    live = problem.live
    total.update(b"" if len(live) == problem.n_nodes else repr(live).encode())
    total.update(b"" if problem.rank is None else problem.rank.tobytes())
    return total.digest()


__all__ = ["Structures"]
