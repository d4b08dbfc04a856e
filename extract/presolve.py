"""Reductions that keep an optimal extraction for costs >= 0, and the split into independent components.

A *must set* of a class is the set of classes that occur in every acyclic derivation of it. Classes in the must set of a
root are always on: reading them is free, so such reads are dropped (outside cycles) and the problem falls apart.
Solutions map back because every row that survives is one row of the input: see `Reduced.restore`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from .greedy import path_bounds
from .problem import IntArray, Rows

MUST_CLASSES = 50_000
"""Must sets take classes^2 / 8 bytes: above this many classes they are skipped."""

LARGE_ROWS = 50_000
ROUNDS = 6
ENOUGH = 0.99
"""Rounds end when one leaves more than this share of classes, rows and reads."""

SHRUNK = 0.7
"""Classes are renumbered when fewer than this share are left."""

PAIRWISE_ROWS = 1_500
"""Classes with more rows than this get the linear dominance test only."""

SUM_BOUND_CLASSES = 6_000
FILL_IN = 12
"""A free class with one row is replaced by its children if that adds at most this many reads."""


class Item:
    """One row while it is being reduced: what is left of its cost and of the classes it reads."""

    __slots__ = ("cost", "kids", "row")

    def __init__(self, cost: float, kids: frozenset[int], row: int) -> None:
        self.cost, self.kids, self.row = cost, kids, row


Items = list[list[Item]]


@dataclass(frozen=True)
class Reduced:
    """A smaller problem: `origin[r]` is the input row of its row r, `fixed` are input rows chosen already, `constant`
    is the cost that every solution pays on top. Its roots are all classes known to be always on."""

    rows: Rows
    origin: list[int]
    fixed: list[int]
    constant: float

    def restore(self, chosen: Iterable[int]) -> list[int]:
        """Input rows of a solution, at most one per class; may hold rows that the roots do not need."""
        return self.fixed + [self.origin[row] for row in chosen]


@dataclass(frozen=True)
class Part:
    """One independent component and all its identical copies: `copies[i][r]` is the row that r stands for in copy i.

    `key` holds its canonical form: two parts with the same key are the same problem, row by row."""

    key: bytes
    rows: Rows
    copies: list[list[int]]


def components(adjacency: Sequence[Iterable[int]]) -> tuple[list[int], list[list[int]]]:
    """Strongly connected components (Tarjan, iterative), children before parents: component of each vertex, members."""
    n = len(adjacency)
    index, low, of = [-1] * n, [0] * n, [-1] * n
    found: list[list[int]] = []
    open_: list[int] = []
    counter = 0
    for start in range(n):
        if index[start] >= 0:
            continue
        index[start] = low[start] = counter
        counter += 1
        open_.append(start)
        work = [(start, iter(adjacency[start]))]
        while work:
            v, edges = work[-1]
            for w in edges:
                if index[w] < 0:
                    index[w] = low[w] = counter
                    counter += 1
                    open_.append(w)
                    work.append((w, iter(adjacency[w])))
                    break
                if of[w] < 0 and index[w] < low[v]:
                    low[v] = index[w]
            else:
                work.pop()
                if work and low[v] < low[work[-1][0]]:
                    low[work[-1][0]] = low[v]
                if low[v] == index[v]:
                    member: list[int] = []
                    while not member or member[-1] != v:
                        member.append(open_.pop())
                        of[member[-1]] = len(found)
                    found.append(member)
    return of, found


def class_graph(items: Items) -> list[set[int]]:
    """Children of each class over all its rows."""
    return [set().union(*[i.kids for i in row]) if row else set() for row in items]


def must_sets(items: Items, order: list[list[int]], expired: Callable[[], bool] = lambda: False) -> list[int] | None:
    """Bitset per class of the classes in every acyclic derivation of it; 0 for classes without a derivation.

    The greatest fixpoint, reached in one pass in the order of the components (children first), iterating inside each.
    None once `expired` (asked now and then) says so: before the end the sets are too large.
    """
    must = [0] * len(items)
    for n, member in enumerate(order):
        if len(member) == 1:
            _update_must(member[0], items, must)
        elif not _settle(member, items, must, expired):
            return None
        if not n & 1023 and expired():
            return None
    return must


def _update_must(c: int, items: Items, must: list[int]) -> bool:
    common = -1
    for item in items[c]:
        total = 0
        for k in item.kids:
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
    common |= 1 << c
    changed = common != must[c]
    must[c] = common
    return changed


def _settle(member: list[int], items: Items, must: list[int], expired: Callable[[], bool]) -> bool:
    """The fixpoint inside one component; False if the time was up before."""
    inside = set(member)
    readers: dict[int, set[int]] = {c: set() for c in member}
    for c in member:
        for item in items[c]:
            for k in item.kids & inside:
                readers[k].add(c)
    todo, queued = deque(member), set(member)
    turn = 0
    while todo:
        turn += 1
        if not turn & 1023 and expired():
            return False
        c = todo.popleft()
        queued.discard(c)
        if _update_must(c, items, must):
            fresh = readers[c] - queued
            todo.extend(sorted(fresh))
            queued |= fresh
    return True


class Reducer:
    """The reductions, each one method over a mutable copy of the rows."""

    def __init__(self, rows: Rows, pinned: Collection[int] = ()) -> None:
        self.pinned = pinned
        self.items: Items = [[] for _ in range(rows.n_classes)]
        for row, (c, kids, cost) in enumerate(zip(rows.cls, rows.kids, rows.cost)):
            self.items[c].append(Item(cost, frozenset(kids), row))
        self.on = set(rows.roots)
        self.constant = 0.0
        self.fixed: list[int] = []
        self.must: list[int] | None = None
        self.component: list[int] = []
        self.lossy = True  # rows were dropped that could have been the only way to a class

    @property
    def size(self) -> tuple[int, int, int]:
        """Classes, rows and reads left."""
        return (
            sum([1 for row in self.items if row]),
            sum([len(row) for row in self.items]),
            sum([len(i.kids) for row in self.items for i in row]),
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
                for k in item.kids:
                    readers[k].append(len(left))
                left.append(len(item.kids))
                owner.append(c)
                if not item.kids and not known[c]:
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
            keep = [i for n, i in enumerate(row, at) if not left[n] and c not in i.kids]
            at += len(row)
            if len(keep) != len(row):
                self.items[c] = keep

    def keep_reachable(self) -> None:
        """Drop classes that no root can reach."""
        seen = bytearray(len(self.items))
        todo = list(self.on)
        for c in todo:
            seen[c] = 1
        while todo:
            for item in self.items[todo.pop()]:
                for k in item.kids:
                    if not seen[k]:
                        seen[k] = 1
                        todo.append(k)
        for c, flag in enumerate(seen):
            if not flag and self.items[c]:
                self.items[c] = []

    def find_always_on(self, use_must: bool, expired: Callable[[], bool] = lambda: False) -> None:
        """Extend `on`, by must sets or by the children common to all rows; drops rows that must be cyclic."""
        self.component, order = components(class_graph(self.items))
        self.must = must_sets(self.items, order, expired) if use_must else None
        if self.must is not None and self._drop_cyclic(self.must, order):
            self.derive()
            self.component, order = components(class_graph(self.items))
            self.must = must_sets(self.items, order, expired)
        if self.must is not None:
            bits = reduce(or_, (self.must[c] for c in self.on), 0)
            while bits:
                low = bits & -bits
                self.on.add(low.bit_length() - 1)
                bits ^= low
            return
        todo = list(self.on)
        while todo:
            row = self.items[todo.pop()]
            for k in frozenset.intersection(*[i.kids for i in row]) - self.on if row else ():
                self.on.add(k)
                todo.append(k)

    def _drop_cyclic(self, must: list[int], order: list[list[int]]) -> bool:
        found = False
        for member in order:
            for c in member if len(member) > 1 else ():
                keep = [i for i in self.items[c] if not any(must[k] >> c & 1 for k in i.kids)]
                found |= len(keep) != len(self.items[c])
                self.items[c] = keep
        self.lossy |= found
        return found

    def drop_always_on_reads(self) -> None:
        """A read of an always-on class costs nothing and, across components, closes no cycle."""
        component, on = self.component, self.on
        for c, row in enumerate(self.items):
            own = component[c]
            for item in row:
                free = [k for k in item.kids if k in on and component[k] != own]
                if free:
                    item.kids = item.kids.difference(free)

    def drop_dominated(self) -> None:
        """Row A makes row B superfluous if it is not dearer and reads only what B's children bring along anyway."""
        for c, row in enumerate(self.items):
            if len(row) < 2:
                continue
            row.sort(key=lambda i: (i.cost, len(i.kids)))
            if not row[0].kids:
                self.items[c] = row[:1]
            elif self.must is not None and len(row) <= PAIRWISE_ROWS:
                self.items[c] = _undominated(row, self.must)
            else:
                self.items[c] = _without_supersets(row)

    def prune_by_bound(self, upper: float) -> None:
        """Drop rows with which no solution can cost `upper` or less."""
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
                if own + max([bound[k] for k in item.kids], default=0.0) > limit:
                    continue
                if sums is not None and len(row) > 1 and item.kids and own + sums.of(item.kids) > limit:
                    continue
                keep.append(item)
            if len(keep) != len(row):
                self.items[c] = keep
                self.lossy = True

    def _must_sums(self, least: list[float]) -> _MustSums | None:
        weight = [0.0 if c in self.on else cost for c, cost in enumerate(least)]
        return _MustSums(self.must, weight) if self.must is not None and any(weight) else None

    def move_costs(self, keep_all: bool) -> None:
        """The least cost of an always-on class is a constant; that of a class with one reader belongs to the reader."""
        readers = [0] * len(self.items)
        last: dict[int, Item] = {}
        for row in self.items:
            for item in row:
                for k in item.kids:
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
                free = [i for i in row if i.cost <= 0 and not i.kids]
                if free:
                    self.items[c] = free[:1]

    def collapse(self) -> None:
        """Replace a free class with a single row by what that row reads."""
        readers = [0] * len(self.items)
        for row in self.items:
            for item in row:
                for k in item.kids:
                    readers[k] += 1
        gone: dict[int, frozenset[int]] = {}
        for c, row in enumerate(self.items):
            if len(row) == 1 and row[0].cost == 0 and row[0].row not in self.pinned:
                reads = len(row[0].kids)
                if reads <= 1 or readers[c] <= 1 or reads * readers[c] <= FILL_IN:
                    gone[c] = row[0].kids
                    self.fixed.append(row[0].row)
        if not gone:
            return
        expanded = _closure(gone)
        for c, row in enumerate(self.items):
            if c in gone:
                self.items[c] = []
                continue
            for item in row:
                if not gone.keys().isdisjoint(item.kids):
                    item.kids = frozenset().union(*[expanded.get(k, (k,)) for k in item.kids])
            if any(c in i.kids for i in row):
                self.items[c] = [i for i in row if c not in i.kids]
                self.lossy = True
        self.on = set().union(*[expanded.get(c, (c,)) for c in self.on])

    def renumber(self) -> None:
        """Close the gaps between class numbers: bitsets are as wide as the largest number."""
        live = [c for c, row in enumerate(self.items) if row]
        number = {c: n for n, c in enumerate(live)}
        self.items = [self.items[c] for c in live]
        for row in self.items:
            for item in row:
                item.kids = frozenset([number[k] for k in item.kids])
        self.on = {number[c] for c in self.on if c in number}
        self.must = None

    def rows(self) -> Rows:
        """The present state over all classes, always-on classes as roots."""
        cls = [c for c, row in enumerate(self.items) for _ in row]
        flat = [i for row in self.items for i in row]
        return Rows(cls, [tuple(i.kids) for i in flat], [i.cost for i in flat], len(self.items), sorted(self.on))

    def compact(self) -> Reduced:
        """The present state with classes renumbered without gaps."""
        self.renumber()
        rows = self.rows()
        rows.kids = [tuple(sorted(kids)) for kids in rows.kids]
        return Reduced(rows, [i.row for row in self.items for i in row], self.fixed, self.constant)


class _MustSums:
    """Sum of the least costs of all classes that some children bring along for sure."""

    def __init__(self, must: list[int], weight: list[float]) -> None:
        self.must, self.bytes = must, (len(must) + 7) // 8
        self.weight = np.zeros(self.bytes * 8)
        self.weight[: len(weight)] = weight
        self.mask = sum(1 << c for c, w in enumerate(weight) if w > 0)
        self.memo: dict[int, float] = {}

    def of(self, kids: Iterable[int]) -> float:
        bits = self.mask & reduce(or_, [self.must[k] for k in kids], 0)
        found = self.memo.get(bits)
        if found is None:
            packed = np.frombuffer(bits.to_bytes(self.bytes, "little"), np.uint8)
            found = self.memo[bits] = float(np.unpackbits(packed, bitorder="little") @ self.weight)
        return found


def _undominated(row: list[Item], must: list[int]) -> list[Item]:
    """Rows (sorted by cost) that no other one dominates modulo closure; one of each group of equals stays."""
    own = [reduce(or_, [1 << k for k in i.kids], 0) for i in row]
    beyond = [~reduce(or_, [must[k] for k in i.kids], 0) for i in row]  # what the children do not bring along
    kept: list[int] = []
    for i, outside in enumerate(beyond):
        if not any(not own[j] & outside for j in kept):
            kept.append(i)
    if len(kept) == 1:
        return [row[kept[0]]]
    return [
        row[i]
        for n, i in enumerate(kept)
        if not any(row[j].cost == row[i].cost and not own[j] & beyond[i] and own[i] & beyond[j] for j in kept[n + 1 :])
    ]


def _without_supersets(row: list[Item]) -> list[Item]:
    keep: list[Item] = []
    seen: set[frozenset[int]] = set()
    single: set[int] = set()
    for item in row:
        if item.kids in seen or not single.isdisjoint(item.kids):
            continue
        if len(row) <= 200 and any(other.kids <= item.kids for other in keep):
            continue
        seen.add(item.kids)
        keep.append(item)
        if len(item.kids) == 1:
            single |= item.kids
    return keep


def _closure(gone: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    """What each replaced class expands to, through other replaced ones (they form no cycle: all have finite terms)."""
    done: dict[int, frozenset[int]] = {}
    for start in gone:
        stack = [start]
        while stack:
            c = stack[-1]
            missing = [k for k in gone[c] if k in gone and k not in done]
            if missing and c not in done:
                stack.extend(missing)
                continue
            stack.pop()
            done[c] = frozenset().union(*[done.get(k, (k,)) for k in gone[c]])
    return done


def detach(rows: Rows, expired: Callable[[], bool] = lambda: False) -> Reduced | None:
    """The light first step for whole e-graphs: derivable, reachable, always-on classes; no row of an acyclic solution
    is lost. None if some root has no finite term. Once `expired`, always-on classes are found by a weaker test."""
    work = Reducer(rows)
    work.keep_reachable()
    work.derive()
    if not all(work.items[c] for c in work.on):
        return None
    work.keep_reachable()
    work.find_always_on(sum(map(bool, work.items)) <= MUST_CLASSES, expired)
    work.drop_always_on_reads()
    work.keep_reachable()
    return work.compact()


def presolve(
    rows: Rows,
    upper: float = np.inf,
    *,
    rounds: int = ROUNDS,
    keep_all: bool = False,
    pinned: Collection[int] = (),
    expired: Callable[[], bool] = lambda: False,
) -> Reduced:
    """All reductions until nothing changes. Needs roots with finite terms and a solution of cost `upper` (or inf).

    keep_all: keep every solution of cost <= `upper` instead of one optimal one (for k-best and under limits); then
    `pinned` rows stay rows of the answer, in exactly the solutions that use them. expired: asked now and then; True ends
    the reductions early. Above LARGE_ROWS there is one round, without must sets.
    """
    work = Reducer(rows, pinned)
    work.derive()
    work.keep_reachable()
    large = len(rows) > LARGE_ROWS
    for turn in range(1 if large else rounds):
        if expired():
            break
        if sum([1 for row in work.items if row]) < SHRUNK * len(work.items):
            work.renumber()
        before = work.size
        work.find_always_on(not large and before[0] <= (MUST_CLASSES if turn < 2 else MUST_CLASSES // 4), expired)
        work.drop_always_on_reads()
        if expired():
            break
        if not keep_all:
            work.drop_dominated()
        if expired():
            break
        if upper < np.inf:
            work.prune_by_bound(upper)
            work.derive()
        work.move_costs(keep_all)
        work.collapse()
        work.derive()
        work.keep_reachable()
        if work.constant >= upper * (1 - 1e-12) or sum(work.size) >= ENOUGH * sum(before):
            break
    if not large:
        work.component, _ = components(class_graph(work.items))
        work.drop_always_on_reads()
    work.keep_reachable()  # reads were dropped last, also where the time ended in the middle of a round
    return work.compact()


def split(rows: Rows) -> list[Part]:
    """Independent components of a problem, identical ones (same structure and costs after renumbering) joined.

    Renumbering orders classes by a colour that only depends on structure and costs (a few rounds of Weisfeiler-Lehman
    hashing), then by number; a wrong guess there costs a reuse, never correctness, because whole arrays are compared.
    """
    if not len(rows):
        return []
    flat = _Flat(rows)
    label = flat.labels()
    parts: dict[bytes, Part] = {}
    for key, build, members in flat.forms(label):
        part = parts.get(key)
        if part is None:
            parts[key] = Part(key, build(), [members])
        else:
            part.copies.append(members)
    return list(parts.values())


def colours(rows: Rows, costs: Sequence[float], rounds: int = 5) -> list[tuple[int, ...]]:
    """Numbers for each class that say what it looks like, then what is next to it, and so on outwards, at such costs: equal
    for classes that play the same part in equal surroundings, and hardly ever for others."""
    flat = _Flat(rows)
    flat.cost = np.array(costs, np.float64)
    return list(zip(*[flat.colours(n)[0].tolist() for n in range(1, rounds + 1)]))


class _Flat:
    """Rows as arrays, for hashing and splitting all components at once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.n = rows.n_classes
        self.cls: IntArray = np.array(rows.cls, np.int32)
        self.count = np.fromiter(map(len, rows.kids), np.int64, len(rows))
        self.owner = np.repeat(np.arange(len(rows)), self.count)
        self.kid: IntArray = np.fromiter((k for kids in rows.kids for k in kids), np.int32, len(self.owner))
        self.cost = np.array(rows.cost)
        self.root = np.zeros(self.n, np.uint64)
        self.root[list(rows.roots)] = 1

    def labels(self) -> npt.NDArray[np.int64]:
        """Connected component of each class: its least class number (label propagation with pointer jumping)."""
        label = np.arange(self.n)
        a, b = self.cls[self.owner], self.kid
        while True:
            new = label.copy()
            low = np.minimum(label[a], label[b])
            np.minimum.at(new, label[a], low)
            np.minimum.at(new, label[b], low)
            while True:
                jumped = new[new]
                if (jumped == new).all():
                    break
                new = jumped
            if (new == label).all():
                return label
            label = new

    def colours(self, rounds: int = 4) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Structure hashes of classes and rows."""
        colour = _mix(self.root)
        cost = _mix(self.cost.view(np.uint64))
        for _ in range(rounds):
            row = cost.copy()
            np.add.at(row, self.owner, _mix(colour[self.kid]))
            row = _mix(row)
            fresh = _mix(colour)
            np.add.at(fresh, self.cls, row)
            np.add.at(fresh, self.kid, _mix(row[self.owner] ^ colour[self.cls[self.owner]]))
            colour = _mix(fresh)
        return colour, row

    def forms(self, label: npt.NDArray[np.int64]) -> list[tuple[bytes, _Build, list[int]]]:
        """Per component: canonical bytes, a function that builds its rows, and its row numbers in canonical order."""
        colour, row_colour = self.colours()
        order = np.lexsort((np.arange(self.n), colour, label))
        start = np.flatnonzero(np.r_[True, np.diff(label[order]) != 0])
        size = np.diff(np.r_[start, self.n])
        rank = np.empty(self.n, np.int64)
        rank[order] = np.arange(self.n) - np.repeat(start, size)
        row_label = label[self.cls]
        row_order = np.lexsort((np.arange(len(self.cls)), row_colour, rank[self.cls], row_label))
        row_place = np.empty(len(self.cls), np.int64)
        row_place[row_order] = np.arange(len(self.cls))
        edge_order = np.lexsort((rank[self.kid], row_place[self.owner]))
        kid = rank[self.kid[edge_order]]
        count = self.count[row_order]
        off = np.r_[0, np.cumsum(count)]
        owner, cost = rank[self.cls[row_order]], self.cost[row_order]
        edges = np.append(label[order[start]], self.n)
        bounds = np.searchsorted(row_label[row_order], edges)
        found: list[tuple[bytes, _Build, list[int]]] = []
        firsts: list[int] = start.tolist()
        for i, first in enumerate(firsts):
            a, b = int(bounds[i]), int(bounds[i + 1])
            if a == b:
                continue
            n = int(size[i])
            here = order[first : first + n]
            roots = np.flatnonzero(self.root[here] == 1)
            piece = (owner[a:b], count[a:b], kid[off[a] : off[b]], cost[a:b], roots)
            found.append(
                (b"|".join([b"%d" % n, *(p.tobytes() for p in piece)]), _Build(piece, n), row_order[a:b].tolist())
            )
        return found


class _Build:
    """Makes the rows of a component when they are wanted: copies never are."""

    def __init__(self, source: tuple[npt.NDArray[Any], ...], n: int) -> None:
        self.source, self.n = source, n

    def __call__(self) -> Rows:
        owner, count, kid, cost, roots = (p.tolist() for p in self.source)
        kids, at = [], 0
        for length in count:
            kids.append(tuple(kid[at : at + length]))
            at += length
        return Rows(owner, kids, cost, self.n, roots)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit finaliser (the constants of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)


def must_implications(rows: Rows) -> list[tuple[int, int]]:
    """Pairs (c, x): choosing c needs x, in every acyclic derivation; transitively reduced, without the direct reads.

    Roots are left out as targets (they are on anyway).
    """
    items: Items = [[] for _ in range(rows.n_classes)]
    for c, kids in zip(rows.cls, rows.kids):
        items[c].append(Item(0.0, frozenset(kids), 0))
    must = must_sets(items, components(class_graph(items))[1])
    assert must is not None  # without a clock
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
        direct = frozenset.intersection(*[i.kids for i in row])
        while best:
            low = best & -best
            best ^= low
            if (k := low.bit_length() - 1) not in direct:
                pairs.append((c, k))
    return pairs


def always_read(rows: Rows) -> dict[tuple[int, int], list[int]]:
    """Rows of class c that read class k, for each such pair."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (c, kids) in enumerate(zip(rows.cls, rows.kids)):
        for k in kids:
            pairs[c, k].append(row)
    return pairs
