"""Parts of presolving that see the rows of one class, or one table, at a time: dominated rows, sums of costs over must
sets, and which zero-cost classes are replaced by their children."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

import numpy as np

from .dominators import Item

MAX_FILL_IN_READS = 12
"""A zero-cost class with one row is replaced by its children if that adds at most this number of reads."""


class MustSums:
    """Sums of the least costs of all classes in the must sets of given children."""

    def __init__(self, must: list[int], weight: list[float]) -> None:
        self.must, self.bytes = must, (len(must) + 7) // 8
        self.weight = np.zeros(self.bytes * 8)
        self.weight[: len(weight)] = weight
        self.mask = sum(1 << c for c, w in enumerate(weight) if w > 0)
        self.memo: dict[int, float] = {}

    def of(self, children: Iterable[int]) -> float:
        bits = self.mask & reduce(or_, [self.must[k] for k in children], 0)
        found = self.memo.get(bits)
        if found is None:
            packed = np.frombuffer(bits.to_bytes(self.bytes, "little"), np.uint8)
            found = self.memo[bits] = float(np.unpackbits(packed, bitorder="little") @ self.weight)
        return found


def undominated(row: list[Item], must: list[int]) -> list[Item]:
    """Rows (sorted by cost) that no other row dominates modulo must sets; one of each group of equal rows stays."""
    own = [reduce(or_, [1 << k for k in i.children], 0) for i in row]
    beyond = [~reduce(or_, [must[k] for k in i.children], 0) for i in row]  # complement of the children's must sets
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


def without_supersets(row: list[Item]) -> list[Item]:
    """Rows (sorted by cost) that read no superset of what a cheaper one reads: all of them for up to 200 rows, else
    equal sets and supersets of one class."""
    keep: list[Item] = []
    seen: set[frozenset[int]] = set()
    single: set[int] = set()
    for item in row:
        if item.children in seen or not single.isdisjoint(item.children):
            continue
        if len(row) <= 200 and any(other.children <= item.children for other in keep):
            continue
        seen.add(item.children)
        keep.append(item)
        if len(item.children) == 1:
            single |= item.children
    return keep


def closure(free: dict[int, frozenset[int]], readers: list[int]) -> tuple[set[int], dict[int, set[int]]]:
    """(classes replaced by their children, expansion of each replaced class through other replaced ones).

    `free`: zero-cost classes with one row, without cycles because all have finite terms; `readers`: rows that read each
    class, plus 1 for a root.

    A class with several readers is replaced if its expansion adds at most MAX_FILL_IN_READS reads. The expansion of a
    replaced class with one reader that is replaced too is merged into the reader's and has no entry: all expansions
    together are no larger than the rows were.
    """
    gone: set[int] = set()
    expanded: dict[int, set[int]] = {}
    seen: set[int] = set()
    for start in free:
        stack = [(start, False)]
        while stack:
            c, ready = stack.pop()
            if not ready:
                if c not in seen:
                    seen.add(c)
                    stack.append((c, True))
                    stack += [(k, False) for k in free[c] if k in free and k not in seen]
                continue
            reads = sum([len(expanded[k]) if k in gone else 1 for k in free[c]])
            if not (reads <= 1 or readers[c] <= 1 or reads * readers[c] <= MAX_FILL_IN_READS):
                continue
            own = [expanded.pop(k) for k in free[c] if k in gone and readers[k] <= 1]
            whole = max(own, key=len, default=set[int]())
            for part in own:
                whole |= part
            for k in free[c] - gone:
                whole.add(k)
            for k in free[c] & gone:
                whole |= expanded.get(k, set())
            gone.add(c)
            expanded[c] = whole
    return gone, expanded
