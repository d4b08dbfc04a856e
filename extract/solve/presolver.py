"""Reduces an extraction problem such that an optimal extraction remains, for costs >= 0.

The *must set* of a class is the set of classes in every acyclic derivation of it (its dominators). A class in the must
set of a root is computed in every solution, so a choice that has it as an operand costs nothing more by that: the
operand is dropped, except on cycles, and the problem falls into independent parts. A row is one way to compute a class:
a cost and the operand classes. Every row that remains is one of the input's, so a solution maps back
(`PresolvedRows.restore`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from ..model.scc import strongly_connected_components
from .dominators import Item, always_on, class_graph, items_of, must_sets
from .greedy import path_bounds
from .problem import ProblemRows
from .row_reductions import MustSums, closure, undominated, without_supersets

MANY_ROWS = 100
"""The deadline is checked before classes with more rows than this."""


PAIRWISE_ROWS = 1_500
"""Classes with more rows than this get the linear dominance test only."""


SUM_BOUND_CLASSES = 6_000


@dataclass(frozen=True)
class PresolvedRows:
    """A reduced problem and its relation to the problem it was made from (the input).

    `origin[r]` is the input row of its row r, `fixed` are input rows that every solution contains, `constant` is the
    cost that every solution pays in addition. Its roots are all classes known to be in every solution.
    """

    rows: ProblemRows
    origin: list[int]
    fixed: list[int]
    constant: float

    def restore(self, chosen: Iterable[int]) -> list[int]:
        """Input rows of the solution `chosen` (rows of the reduced problem), at most one per class; may contain rows
        that the roots do not reach."""
        return self.fixed + [self.origin[row] for row in chosen]


class Presolver:
    """The reductions of an extraction problem, one method each. They change a copy of its rows; a row is one way to
    compute a class: a cost and the classes that it reads."""

    def __init__(self, rows: ProblemRows, pinned: Collection[int] = ()) -> None:
        self.pinned = pinned
        self.items = items_of(rows)
        self.on = set(rows.roots)
        self.constant = 0.0
        self.fixed: list[int] = []
        self.must: list[int] | None = None
        self.component: list[int] = []
        self.lossy = True  # whether dropped rows may have been the only derivation of a class

    @property
    def size(self) -> tuple[int, int, int]:
        """Numbers of (classes, rows, reads) of the reduced problem; a row is a way to compute a class, a read one of
        its children."""
        return (
            sum([1 for row in self.items if row]),
            sum([len(row) for row in self.items]),
            sum([len(i.children) for row in self.items for i in row]),
        )

    def derive(self) -> None:
        """Drop rows that read a class without a finite term, or their own class."""
        if not self.lossy:
            return
        self.lossy = False
        readers: list[list[int]] = [[] for _ in self.items]
        left: list[int] = []
        owner: list[int] = []
        todo: list[int] = []
        known = bytearray(len(self.items))
        for c, row in enumerate(self.items):
            for item in row:
                for k in item.children:
                    readers[k].append(len(left))
                left.append(len(item.children))
                owner.append(c)
                if not item.children and not known[c]:
                    known[c] = 1
                    todo.append(c)
        while todo:
            for at in readers[todo.pop()]:
                left[at] -= 1
                if not left[at] and not known[owner[at]]:
                    known[owner[at]] = 1
                    todo.append(owner[at])
        at = 0
        for c, row in enumerate(self.items):
            keep = [i for n, i in enumerate(row, at) if not left[n] and c not in i.children]
            at += len(row)
            if len(keep) != len(row):
                self.items[c] = keep

    def keep_reachable(self) -> None:
        """Drop classes that no root reaches."""
        seen = bytearray(len(self.items))
        todo = list(self.on)
        for c in todo:
            seen[c] = 1
        while todo:
            for item in self.items[todo.pop()]:
                for k in item.children:
                    if not seen[k]:
                        seen[k] = 1
                        todo.append(k)
        for c, flag in enumerate(seen):
            if not flag and self.items[c]:
                self.items[c] = []

    def find_always_on(
        self, use_must: bool, expired: Callable[[], bool] = lambda: False, *, of_roots: bool = False
    ) -> None:
        """Find further always-on classes (in every solution), by must sets (`use_must`) or else by children common to
        all rows; also drop rows that are necessarily cyclic.

        `of_roots`: must sets of the roots only. `expired`: polled; True ends the computation of must sets.
        """
        self.component, order = strongly_connected_components(class_graph(self.items))
        self.must = must_sets(self.items, order, expired) if use_must else None
        if self.must is not None and self._drop_cyclic(self.must, order):
            self.derive()
            self.component, order = strongly_connected_components(class_graph(self.items))
            self.must = must_sets(self.items, order, expired)
        if self.must is not None:
            bits = reduce(or_, (self.must[c] for c in self.on), 0)
            while bits:
                low = bits & -bits
                self.on.add(low.bit_length() - 1)
                bits ^= low
            return
        if of_roots:
            self.on |= always_on(self.items, order, self.on, expired)
        todo = list(self.on)
        while todo:
            row = self.items[todo.pop()]
            for k in frozenset.intersection(*[i.children for i in row]) - self.on if row else ():
                self.on.add(k)
                todo.append(k)

    def _drop_cyclic(self, must: list[int], order: list[list[int]]) -> bool:
        found = False
        for member in order:
            for c in member if len(member) > 1 else ():
                keep = [i for i in self.items[c] if not any(must[k] >> c & 1 for k in i.children)]
                found |= len(keep) != len(self.items[c])
                self.items[c] = keep
        self.lossy |= found
        return found

    def drop_always_on_reads(self) -> None:
        """Drop reads of always-on classes in other components: they cost nothing and close no cycle."""
        component, on = self.component, self.on
        for c, row in enumerate(self.items):
            own = component[c]
            for item in row:
                free = [k for k in item.children if k in on and component[k] != own]
                if free:
                    item.children = item.children.difference(free)

    def drop_dominated(self, expired: Callable[[], bool] = lambda: False) -> None:
        """Drop each row for which another row of its class costs at most as much and reads only classes in the must
        sets of the dropped row's children.

        `expired`: polled at classes with many rows; True ends the pass early.
        """
        for c, row in enumerate(self.items):
            if len(row) < 2:
                continue
            if len(row) > MANY_ROWS and expired():
                return
            row.sort(key=lambda i: (i.cost, len(i.children)))
            if not row[0].children:
                self.items[c] = row[:1]
            elif self.must is not None and len(row) <= PAIRWISE_ROWS:
                self.items[c] = undominated(row, self.must)
            else:
                self.items[c] = without_supersets(row)

    def prune_by_bound(self, upper: float) -> None:
        """Drop rows whose lower bound exceeds `upper`."""
        least = [min([i.cost for i in row]) if row else 0.0 for row in self.items]
        paid = [least[c] if c in self.on else 0.0 for c in range(len(self.items))]
        limit = upper - self.constant - sum(paid) + 1e-9 * abs(upper)
        flat = self.rows()
        owner_of = [c for c, row in enumerate(self.items) for _ in row]
        bound = path_bounds(flat, [cost - paid[c] for c, cost in zip(owner_of, flat.cost)])
        sums = self._must_sums(least) if self.must is not None and len(self.items) <= SUM_BOUND_CLASSES else None
        for c, row in enumerate(self.items):
            keep = []
            for item in row:
                own = item.cost - paid[c]
                if own + max([bound[k] for k in item.children], default=0.0) > limit:
                    continue
                if sums is not None and len(row) > 1 and item.children and own + sums.of(item.children) > limit:
                    continue
                keep.append(item)
            if len(keep) != len(row):
                self.items[c] = keep
                self.lossy = True

    def _must_sums(self, least: list[float]) -> MustSums | None:
        weight = [0.0 if c in self.on else cost for c, cost in enumerate(least)]
        return MustSums(self.must, weight) if self.must is not None and any(weight) else None

    def move_costs(self, keep_all: bool) -> None:
        """Move the least cost of each always-on class (in every solution) to `constant`, and that of a class with one
        reader to the reader. Without `keep_all`, a class with a row that then costs nothing and reads nothing keeps
        only that row."""
        readers = [0] * len(self.items)
        last: dict[int, Item] = {}
        for row in self.items:
            for item in row:
                for k in item.children:
                    readers[k] += 1
                    last[k] = item
        for c, row in enumerate(self.items):
            if not row or not (c in self.on or readers[c] == 1):
                continue
            least = min([i.cost for i in row])
            if least > 0:
                if c in self.on:
                    self.constant += least
                else:
                    last[c].cost += least
                for item in row:
                    item.cost -= least
            if len(row) > 1 and not keep_all:
                free = [i for i in row if i.cost <= 0 and not i.children]
                if free:
                    self.items[c] = free[:1]

    def collapse(self) -> None:
        """Replace each zero-cost class with a single row by that row's children."""
        readers = [0] * len(self.items)
        for row in self.items:
            for item in row:
                for k in item.children:
                    readers[k] += 1
        free = {
            c: row[0].children
            for c, row in enumerate(self.items)
            if len(row) == 1 and row[0].cost == 0 and row[0].row not in self.pinned
        }
        for c in self.on:
            readers[c] += 1
        gone, expanded = closure(free, readers)
        if not gone:
            return
        self.fixed += [self.items[c][0].row for c in free if c in gone]
        for c, row in enumerate(self.items):
            if c in gone:
                self.items[c] = []
                continue
            for item in row:
                if not gone.isdisjoint(item.children):
                    item.children = frozenset().union(*[expanded.get(k, (k,)) for k in item.children])
            if any(c in i.children for i in row):
                self.items[c] = [i for i in row if c not in i.children]
                self.lossy = True
        self.on = set().union(*[expanded.get(c, (c,)) for c in self.on])

    def renumber(self) -> None:
        """Renumber the classes so that their indices are contiguous: bitsets are as wide as the largest index."""
        live = [c for c, row in enumerate(self.items) if row]
        number = {c: n for n, c in enumerate(live)}
        self.items = [self.items[c] for c in live]
        for row in self.items:
            for item in row:
                item.children = frozenset([number[k] for k in item.children])
        self.on = {number[c] for c in self.on if c in number}
        self.must = None

    def rows(self) -> ProblemRows:
        """The reduced problem; classes that are in every solution are among its roots."""
        cls = [c for c, row in enumerate(self.items) for _ in row]
        flat = [i for row in self.items for i in row]
        return ProblemRows(
            cls, [tuple(i.children) for i in flat], [i.cost for i in flat], len(self.items), sorted(self.on)
        )

    def compact(self) -> PresolvedRows:
        """The current state as a reduced problem with contiguous class indices."""
        self.renumber()
        rows = self.rows()
        rows.children = [tuple(sorted(children)) for children in rows.children]
        return PresolvedRows(rows, [i.row for row in self.items for i in row], self.fixed, self.constant)
