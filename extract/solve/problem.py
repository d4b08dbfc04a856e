"""Holds the extraction problem as plain arrays, and `evaluate`, the reference implementation of DAG cost
(each chosen node counts once).

An e-graph is a set of e-classes; each class holds e-nodes; a node has child classes and a cost. An extraction chooses
one node in every class reachable from the roots, without a cycle, and pays for each chosen node once (DAG cost).
A kernel with several outputs is encoded as a class of its own plus one zero-cost projection node per output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ExtractionError

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]

NodeSpec = tuple[int, Sequence[int], float]

LARGEST_COST = 1e290
"""Costs above this count as infinite (some file writers mark forbidden nodes with the largest float); sums of the
remaining costs cannot overflow."""


LIMIT_ROUNDING = 1e-9
"""Relative tolerance of limit checks: a smaller excess over a limit is floating-point rounding."""


class ProblemRows:
    """Problem encoding as Python lists, the form that all solvers use. A row is a live e-node.

    Row r belongs to class `cls[r]`, has the distinct child classes `children[r]` and costs `cost[r]`. Classes have the
    ids 0..n_classes-1; all costs are finite and >= 0."""

    def __init__(
        self, cls: list[int], children: list[tuple[int, ...]], cost: list[float], n_classes: int, roots: Sequence[int]
    ) -> None:
        self.cls, self.children, self.cost, self.n_classes = cls, children, cost, n_classes
        self.roots = tuple(roots)

    def __len__(self) -> int:
        return len(self.cls)

    def at(self, cost: list[float]) -> ProblemRows:
        """Rows (ways to compute a class) with the structure of these and the costs `cost`; lists and indices are
        shared."""
        found = ProblemRows(self.cls, self.children, cost, self.n_classes, self.roots)
        found.__dict__.update(members=self.members, parents=self.parents)
        return found

    @cached_property
    def members(self) -> list[list[int]]:
        """Rows (ways to compute a class) of each class, in row order."""
        found: list[list[int]] = [[] for _ in range(self.n_classes)]
        for row, c in enumerate(self.cls):
            found[c].append(row)
        return found

    @cached_property
    def parents(self) -> list[list[int]]:
        """Rows (ways to compute a class) that have each class as a child, in row order."""
        found: list[list[int]] = [[] for _ in range(self.n_classes)]
        for row, children in enumerate(self.children):
            for k in children:
                found[k].append(row)
        return found

    def walk(self, choice: Sequence[int]) -> list[int] | None:
        """Rows (ways to compute a class) chosen in the classes reachable from the roots, children first.

        None if the choice is incomplete or cyclic.

        `choice[c]` is a row of class c, or -1.
        """
        state = bytearray(self.n_classes)  # 0 new, 1 open, 2 closed
        order: list[int] = []
        for root in self.roots:
            stack = [root]
            while stack:
                c = stack[-1]
                if state[c] == 2:
                    stack.pop()
                    continue
                row = choice[c]
                if row < 0:
                    return None
                if state[c] == 1:
                    state[c] = 2
                    order.append(row)
                    stack.pop()
                    continue
                state[c] = 1
                for k in self.children[row]:
                    if state[k] == 1:
                        return None
                    if state[k] == 0:
                        stack.append(k)
        return order

    def total(self, chosen: Iterable[int]) -> float:
        """Sum of the costs of the rows (ways to compute a class) `chosen`, rounded once (math.fsum)."""
        return math.fsum([self.cost[row] for row in chosen])


@dataclass(frozen=True, eq=False)
class Limit:
    """Side constraint on an extraction, called `name` in messages: the `use` of the chosen nodes, each counted once,
    sums to at most `most`.

    `use`: float64[n] >= 0, one entry per node, in the unit of `most`. Examples: an error budget (errors add up to first
    order), and memory as the total bytes of all values written, which bounds the peak of every execution order.
    """

    name: str
    use: FloatArray
    most: float

    def of(self, nodes: Iterable[int]) -> float:
        """Sum of the limit's `use` over given nodes."""
        return math.fsum([float(self.use[node]) for node in nodes])

    def allows(self, nodes: Iterable[int]) -> bool:
        """Whether the given nodes satisfy the limit, up to LIMIT_ROUNDING."""
        return self.of(nodes) <= self.most * (1 + LIMIT_ROUNDING)


@dataclass(frozen=True, eq=False)
class Problem:
    """Extraction problem over an e-graph, in CSR arrays (n nodes, m child references).

    cls int32[n]: class of each node.
    off int32[n+1], child int32[m]: child *classes* of node i are child[off[i]:off[i+1]] (with repeats, which are paid
    once in DAG cost).
    cost float64[n] >= 0, a node above LARGEST_COST is deleted.
    roots: classes to extract.
    node_ids, class_ids: names for messages and files.
    rank int32[n]: among equal costs lower ranks are preferred.
    limits: side constraints on sums over the chosen nodes.
    Raises ExtractionError if the array lengths or indices are inconsistent or a cost is negative or NaN.
    """

    cls: IntArray
    off: IntArray
    child: IntArray
    cost: FloatArray
    n_classes: int
    roots: tuple[int, ...]
    node_ids: tuple[str, ...] | None = None
    class_ids: tuple[str, ...] | None = None
    rank: IntArray | None = None
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        for name, dtype in (("cls", np.int32), ("off", np.int32), ("child", np.int32), ("cost", np.float64)):
            object.__setattr__(self, name, _array(name, getattr(self, name), dtype))
        if self.rank is not None:
            object.__setattr__(self, "rank", _array("rank", self.rank, np.int32))
        object.__setattr__(self, "roots", tuple(int(r) for r in self.roots))
        self._check_lengths()
        self._check_classes()
        self._check_costs()
        self._check_limits()

    @classmethod
    def build(
        cls,
        nodes: Iterable[NodeSpec],
        roots: Iterable[int],
        *,
        n_classes: int | None = None,
        node_ids: Sequence[str] | None = None,
        class_ids: Sequence[str] | None = None,
        rank: Sequence[int] | None = None,
        limits: Sequence[Limit] = (),
    ) -> Problem:
        """Builds a problem from (class, child classes, cost) triples `nodes`; the other arguments are the fields of the
        same name.

        `n_classes`: by default the number of `class_ids`, or without them the largest class index plus one.
        """
        owners: list[int] = []
        flat: list[int] = []
        costs: list[float] = []
        off = [0]
        for owner, children, cost in nodes:
            owners.append(owner)
            flat.extend(children)
            off.append(len(flat))
            costs.append(cost)
        roots = tuple(roots)
        if n_classes is None:
            n_classes = len(class_ids) if class_ids is not None else max([*owners, *flat, *roots], default=-1) + 1
        return cls(
            _array("cls", owners, np.int32),
            _array("off", off, np.int32),
            _array("child", flat, np.int32),
            _array("cost", costs, np.float64),
            n_classes,
            roots,
            tuple(node_ids) if node_ids is not None else None,
            tuple(class_ids) if class_ids is not None else None,
            _array("rank", rank, np.int32) if rank is not None else None,
            tuple(limits),
        )

    @property
    def n_nodes(self) -> int:
        """Number of e-nodes, deleted ones included."""
        return len(self.cls)

    def node_name(self, node: int) -> str:
        """The node's id for messages and files; its index if the problem has no node ids."""
        return self.node_ids[node] if self.node_ids is not None else str(node)

    def class_name(self, c: int) -> str:
        """The class's id for messages and files; its index if the problem has no class ids."""
        return self.class_ids[c] if self.class_ids is not None else str(c)

    @cached_property
    def live(self) -> list[int]:
        """Indices of the nodes that are neither deleted nor children of their own class, best rank first."""
        n = self.n_nodes
        owner = np.repeat(np.arange(n), np.diff(self.off))
        looped = np.zeros(n, bool)
        looped[owner[self.child == self.cls[owner]]] = True
        found = np.flatnonzero((self.cost <= LARGEST_COST) & ~looped)
        if self.rank is not None:
            found = found[np.argsort(self.rank[found], kind="stable")]
        nodes: list[int] = found.tolist()
        return nodes

    @cached_property
    def rows(self) -> ProblemRows:
        """The live nodes as lists: row r (a way to compute a class) is node `live[r]`. Repeated children are left
        out."""
        off, child, cls, cost = self.off.tolist(), self.child.tolist(), self.cls.tolist(), self.cost.tolist()
        live = self.live
        children = [tuple(dict.fromkeys(child[off[i] : off[i + 1]])) for i in live]
        return ProblemRows(
            [cls[i] for i in live], children, [cost[i] for i in live], self.n_classes, list(dict.fromkeys(self.roots))
        )

    def choice_of(self, chosen: Iterable[int]) -> IntArray:
        """Choice array of the rows (ways to compute a class) `chosen`: node per class, int32[n_classes], -1 for classes
        without a row."""
        choice = np.full(self.n_classes, -1, np.int32)
        live = self.live
        nodes = np.fromiter((live[row] for row in chosen), np.int32)
        choice[self.cls[nodes]] = nodes
        return choice

    def _check_lengths(self) -> None:
        n = len(self.cls)
        if len(self.off) != n + 1 or len(self.cost) != n:
            raise ExtractionError(
                f"{n} classes of nodes need {n + 1} offsets and {n} costs, got {len(self.off)} and {len(self.cost)}",
                where="Problem",
            )
        if self.off[0] != 0 or self.off[-1] != len(self.child) or (np.diff(self.off) < 0).any():
            raise ExtractionError("offsets must rise from 0 to the number of children", where="Problem.off")
        for name, wanted in (("node_ids", n), ("class_ids", self.n_classes), ("rank", n)):
            given = getattr(self, name)
            if given is not None and len(given) != wanted:
                raise ExtractionError(f"{len(given)} entries where {wanted} are needed", where=f"Problem.{name}")

    def _check_classes(self) -> None:
        if not self.roots:
            raise ExtractionError("no root class", where="Problem.roots", hint="name at least one class to extract")
        for name, ids in (("cls", self.cls), ("child", self.child), ("roots", np.asarray(self.roots, np.int64))):
            wrong = np.flatnonzero((ids < 0) | (ids >= self.n_classes))
            if len(wrong):
                raise ExtractionError(
                    f"class {int(ids[wrong[0]])} is outside 0..{self.n_classes - 1}",
                    where=f"Problem.{name}[{int(wrong[0])}]",
                )

    def _check_costs(self) -> None:
        for wrong, what in ((np.isnan(self.cost), "NaN"), (self.cost < 0, "negative")):
            at = np.flatnonzero(wrong)
            if len(at):
                i = int(at[0])
                raise ExtractionError(
                    f"the cost of node {self.node_name(i)} is {what}: {float(self.cost[i])}",
                    where=f"class {self.class_name(int(self.cls[i]))}",
                    hint="costs are >= 0; use inf to delete a node",
                )

    def _check_limits(self) -> None:
        checked = []
        for limit in self.limits:
            where = f"limit {limit.name}"
            use = _array(where, limit.use, np.float64)
            if use.shape != (self.n_nodes,):
                raise ExtractionError(f"{use.size} uses for {self.n_nodes} nodes", where=where)
            if not (np.isfinite(use).all() and (use >= 0).all() and 0 <= limit.most <= LARGEST_COST):
                raise ExtractionError("uses and the limit must be finite and >= 0", where=where)
            checked.append(Limit(limit.name, use, float(limit.most)))
        object.__setattr__(self, "limits", tuple(checked))


def _array(name: str, values: Any, dtype: type) -> npt.NDArray[Any]:
    try:
        return np.ascontiguousarray(values, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ExtractionError(f"not an array of {dtype.__name__}: {error}", where=f"Problem.{name}") from None


def reachable(problem: Problem, choice: Sequence[int] | IntArray) -> list[int]:
    """Chosen nodes of the classes reachable from the roots, children first.

    Raises ExtractionError if a reachable class has no chosen node, a deleted one or one of another class, or if the
    choice is cyclic.
    """
    if len(choice) != problem.n_classes:
        raise ExtractionError(f"{len(choice)} choices for {problem.n_classes} classes", where="choice")
    off, child, cls, cost = problem.off, problem.child, problem.cls, problem.cost
    picked = [int(i) for i in choice]
    state = bytearray(problem.n_classes)
    order: list[int] = []
    stack = list(dict.fromkeys(reversed(problem.roots)))
    while stack:
        c = stack[-1]
        node = picked[c]
        if state[c]:
            stack.pop()
            if state[c] == 1:
                state[c] = 2
                order.append(node)
            continue
        where = f"class {problem.class_name(c)}"
        if not 0 <= node < problem.n_nodes:
            raise ExtractionError("no node is chosen in a class that is needed", where=where)
        if cls[node] != c or cost[node] > LARGEST_COST:
            raise ExtractionError(f"node {problem.node_name(node)} is deleted or of another class", where=where)
        state[c] = 1
        for k in child[off[node] : off[node + 1]].tolist():
            if state[k] == 1:
                raise ExtractionError(f"the choice is cyclic through class {problem.class_name(k)}", where=where)
            if not state[k]:
                stack.append(k)
    return order


def evaluate(problem: Problem, choice: Sequence[int] | IntArray) -> float:
    """DAG cost of a choice (node per class, -1 unused).

    The sum over the classes reachable from the roots, rounded once.

    Raises ExtractionError on incomplete or cyclic choices.
    """
    return math.fsum(problem.cost[reachable(problem, choice)].tolist())
