"""Computes must sets (dominators): for each e-class, the e-classes that occur in every acyclic derivation of it, as
bitsets."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

from ..model.scc import strongly_connected_components
from .problem import ProblemRows


class Item:
    """A row (a way to compute a class) during presolve, with its child classes and its current cost: presolve moves
    costs between rows."""

    __slots__ = ("children", "cost", "row")

    def __init__(self, cost: float, children: frozenset[int], row: int) -> None:
        self.cost, self.children, self.row = cost, children, row


Items = list[list[Item]]

WINDOW_CLASSES, WINDOW_BYTES = 1 << 14, 256 << 20
"""Number of classes per window when only the roots' must sets are computed: 2 KiB per class of the problem; smaller if
all bitsets together would exceed WINDOW_BYTES."""

MAX_IMPLICATIONS = 2_000_000
"""Total size of all must sets above which no implications are listed: listing takes one step per member."""


def items_of(rows: ProblemRows) -> Items:
    """The rows (ways to compute it) of each class of an extraction problem, each with cost, child classes and index."""
    items: Items = [[] for _ in range(rows.n_classes)]
    for row, (c, children, cost) in enumerate(zip(rows.cls, rows.children, rows.cost)):
        items[c].append(Item(cost, frozenset(children), row))
    return items


def class_graph(items: Items) -> list[set[int]]:
    """For each class its child classes, over all its rows (ways to compute a class)."""
    return [set().union(*[i.children for i in row]) if row else set() for row in items]


def must_sets(items: Items, order: list[list[int]], expired: Callable[[], bool] = lambda: False) -> list[int] | None:
    """Must set of each class as a bitset: the classes in every acyclic derivation of it.

    0 for classes without a derivation.

    The greatest fixpoint, computed in one pass over `order` (strongly connected components as lists of classes,
    children first), with iteration inside each component. None if `expired` (polled) returns True, because unfinished
    sets contain classes that do not belong to them.
    """
    must = [0] * len(items)
    return must if _fixpoint(items, order, must, lambda c: 1 << c, expired) else None


def always_on(
    items: Items, order: list[list[int]], roots: Iterable[int], expired: Callable[[], bool] = lambda: False
) -> set[int]:
    """Classes in every acyclic derivation of some root: the union of the roots' must sets.

    Computed for WINDOW_CLASSES classes at a time, so that memory is linear. `order`: strongly connected components as
    lists of classes, children first. If `expired` (polled) returns True, the result has only the classes found so far,
    roots included.
    """
    roots = [c for c in roots if items[c]]
    found = set(roots)
    line = [c for member in order for c in member if items[c]]
    width = max(64, min(WINDOW_CLASSES, 8 * WINDOW_BYTES // max(1, len(items))))
    for first in range(0, len(line), width):
        window = line[first : first + width]
        if expired():
            break
        must, bits = [0] * len(items), [1] * len(items)  # bit 0: a derivation exists
        for n, c in enumerate(window, start=1):
            bits[c] |= 1 << n
        if not _fixpoint(items, order, must, bits.__getitem__, expired):
            break
        common = reduce(or_, [must[c] for c in roots], 0)
        found.update(c for n, c in enumerate(window, start=1) if common >> n & 1)
    return found


Bit = Callable[[int], int]


def _fixpoint(items: Items, order: list[list[int]], must: list[int], bit: Bit, expired: Callable[[], bool]) -> bool:
    """Compute the must sets in place; False if `expired` returned True first."""
    for n, member in enumerate(order):
        if len(member) == 1:
            _update_must(member[0], items, must, bit)
        elif not _settle(member, items, must, bit, expired):
            return False
        if not n & 1023 and expired():
            return False
    return True


def _update_must(c: int, items: Items, must: list[int], bit: Bit) -> bool:
    common = -1
    for item in items[c]:
        total = 0
        for k in item.children:
            known = must[k]
            if not known:
                break
            total |= known
        else:
            common &= total
            if not common:
                break
    if common == -1:
        return False
    common |= bit(c)
    changed = common != must[c]
    must[c] = common
    return changed


def _settle(member: list[int], items: Items, must: list[int], bit: Bit, expired: Callable[[], bool]) -> bool:
    """Compute the fixpoint inside one component; False if `expired` returned True first."""
    inside = set(member)
    readers: dict[int, set[int]] = {c: set() for c in member}
    for c in member:
        for item in items[c]:
            for k in item.children & inside:
                readers[k].add(c)
    todo, queued = deque(member), set(member)
    turn = 0
    while todo:
        turn += 1
        if not turn & 1023 and expired():
            return False
        c = todo.popleft()
        queued.discard(c)
        if _update_must(c, items, must, bit):
            fresh = readers[c] - queued
            todo.extend(sorted(fresh))
            queued |= fresh
    return True


def must_implications(rows: ProblemRows) -> list[tuple[int, int]]:
    """Implications of the must sets as pairs (c, x): every acyclic derivation of class c contains class x.

    Pairs that follow from others are left out, and so are those where x is a child of c or a root (roots are chosen in
    any case). Empty if the must sets are very large (MAX_IMPLICATIONS); nothing is lost then but speed, since the
    implications only strengthen an integer program.
    """
    items = items_of(rows)
    must = must_sets(items, strongly_connected_components(class_graph(items))[1])
    assert must is not None  # without a clock
    if sum([m.bit_count() for m in must]) > MAX_IMPLICATIONS:
        return []
    on = reduce(or_, [1 << c for c in rows.roots], 0)
    pairs: list[tuple[int, int]] = []
    for c, row in enumerate(items):
        if on >> c & 1 or not row:
            continue
        best = rest = must[c] & ~(1 << c) & ~on
        while rest:
            low = rest & -rest
            rest ^= low
            best &= ~(must[low.bit_length() - 1] & ~low)
        direct = frozenset.intersection(*[i.children for i in row])
        while best:
            low = best & -best
            best ^= low
            if (k := low.bit_length() - 1) not in direct:
                pairs.append((c, k))
    return pairs


def rows_by_child(rows: ProblemRows) -> dict[tuple[int, int], list[int]]:
    """(class c, child class k) -> indices of the rows (ways to compute a class) of c that have the child k, for every
    pair that occurs."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (c, children) in enumerate(zip(rows.cls, rows.children)):
        for k in children:
            pairs[c, k].append(row)
    return pairs
