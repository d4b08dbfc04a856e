"""Keeps the results of cost-independent steps of solving between solves of one e-graph at changing costs.

A search with measurements solves the same rows (ways to compute a class) again and again. The lists of a problem, the
index of its rows by class and by child, and the first reduction (`detach`) depend on classes, children and roots alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from .presolve import detach
from .presolver import PresolvedRows
from .problem import Problem, ProblemRows

KEPT_STRUCTURES = 4  # optimistic, pessimistic and compiler-free plans differ by rows of infinite cost


class Structures:
    """Cache of the last `KEPT_STRUCTURES` structures of problems (classes, children and roots without costs), each with
    its rows (ways to compute a class) and its first reduction. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[ProblemRows, PresolvedRows | None]] = OrderedDict()
        self._key = b""

    def rows(self, problem: Problem) -> ProblemRows:
        """The rows (ways to compute a class) of a problem (`Problem.rows`), which share the lists of an earlier problem
        of the same structure."""
        self._key = _structure_of(problem)
        known = self._kept.get(self._key)
        if known is None:
            self._kept[self._key] = problem.rows, None
            if len(self._kept) > KEPT_STRUCTURES:
                self._kept.popitem(last=False)
            return problem.rows
        self._kept.move_to_end(self._key)
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


def _structure_of(problem: Problem) -> bytes:
    """Hash of everything about a problem's rows but their costs."""
    total = blake2b(repr((problem.n_classes, problem.roots)).encode(), digest_size=16)
    for array in (problem.cls, problem.off, problem.kid):
        total.update(array.tobytes() + b"|")
    live = problem.live
    total.update(b"" if len(live) == problem.n_nodes else repr(live).encode())
    total.update(b"" if problem.rank is None else problem.rank.tobytes())
    return total.digest()


__all__ = ["Structures"]
