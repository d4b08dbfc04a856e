"""Computes the order in which the frontier DP (dynamic programming) resolves the e-classes of a problem: parents first,
with few e-classes needed and not yet resolved at any time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..model.scc import strongly_connected_components
from .problem import ProblemRows

MAX_OPEN_CLASSES = 96
"""Largest number of open classes for which the search is attempted."""


MAX_ORDER_COMPARISONS = 500_000
"""Largest number of comparisons for finding an order."""


@dataclass
class ResolutionOrder:
    """Order in which the strongly connected components of a problem are resolved.

    `groups`: classes of each component, in that order. `open`: for each component, the classes (without roots) that are
    needed but not resolved after it.
    """

    groups: list[list[int]]
    open: list[list[int]]


def narrow_order(rows: ProblemRows, kind: Sequence[tuple[int, ...]]) -> ResolutionOrder | None:
    """Resolution order, parents first, with few open classes (greedy); None if the limit MAX_OPEN_CLASSES is exceeded.

    Ties are broken by the `kind` (colours) of classes, so that equal layers get equal orders.
    """
    return _Ordering(rows, kind).run()


class _Ordering:
    """Greedy ordering of components (groups).

    `fresh`: number of classes that resolving a group would open; `waiting`: number of unresolved groups that read it;
    `opened`: open class -> step at which it was opened.
    """

    def __init__(self, rows: ProblemRows, kind: Sequence[tuple[int, ...]]) -> None:
        below: list[set[int]] = [set() for _ in range(rows.n_classes)]
        for c, children in zip(rows.cls, rows.children):
            below[c].update(children)
        self.of, members = strongly_connected_components(below)
        self.members = [sorted(group, key=lambda c: (kind[c], c)) for group in members]
        self.kinds = [tuple([kind[c] for c in group]) for group in self.members]
        self.roots = set(rows.roots)
        self.reads = [sorted({k for c in group for k in below[c]}.difference(group)) for group in members]
        self.readers: list[list[int]] = [[] for _ in range(rows.n_classes)]
        self.waiting = [0] * len(members)
        self.height = [0] * len(members)
        for g, needs in enumerate(self.reads):
            for k in needs:
                self.readers[k].append(g)
                self.height[g] = max(self.height[g], 1 + self.height[self.of[k]])
            for h in {self.of[k] for k in needs}:
                self.waiting[h] += 1
        self.fresh = [sum([k not in self.roots for k in children]) for children in self.reads]
        self.steps: list[list[int]] = [[] for _ in members]  # steps at which its readers were resolved
        self.known: set[int] = set()
        self.opened: dict[int, int] = {}
        self.ready: set[int] = set()
        self.idle: list[tuple[int, Any, int]] = []  # heap of roots that would open classes
        self.begun: set[int] = set()  # groups that read open classes
        self.looks = 0
        self.done = bytearray(len(members))

    def run(self) -> ResolutionOrder | None:
        """The resolution order; None if more than MAX_OPEN_CLASSES classes would be open (`narrow_order`)."""
        order = ResolutionOrder([], [])
        for g, left in enumerate(self.waiting):
            if not left:
                self._admit(g)
        while (g := self._next()) >= 0:
            self._resolve(g, len(order.groups))
            if len(self.opened) > MAX_OPEN_CLASSES or self.looks > MAX_ORDER_COMPARISONS:
                return None
            order.groups.append(self.members[g])
            order.open.append(list(self.opened))
        return order

    def _admit(self, g: int) -> None:
        if not self.fresh[g] or any(c in self.opened for c in self.members[g]):
            self.ready.add(g)
        else:
            heapq.heappush(self.idle, (-self.height[g], self.kinds[g], g))
            if any(k in self.opened for k in self.reads[g]):
                self.begun.add(g)

    def _next(self) -> int:
        for some in (self.ready, self.begun):
            if some:
                self.looks += len(some)
                g = min(some, key=self._rank)
                some.discard(g)
                return g
        while self.idle:
            g = heapq.heappop(self.idle)[-1]
            if not self.done[g]:
                return g
        return -1

    def _rank(self, g: int) -> tuple[Any, ...]:
        since = [self.opened[c] for c in self.members[g] if c in self.opened]
        more = self.fresh[g] - len(since)
        return more, -self.height[g], -max(since, default=0), self.kinds[g], self.steps[g], g

    def _resolve(self, g: int, step: int) -> None:
        self.done[g] = 1
        for k in self.reads[g]:
            if k in self.known or k in self.roots:
                continue
            self.known.add(k)
            self.opened[k] = step
            for h in self.readers[k]:
                self.fresh[h] -= 1
                if not self.waiting[h] and not self.done[h] and h not in self.ready:
                    self.begun.add(h)
                    if not self.fresh[h]:  # a root that opens no further class
                        self.begun.discard(h)
                        self.ready.add(h)
        for c in self.members[g]:
            self.opened.pop(c, None)
        for h in {self.of[k] for k in self.reads[g]}:
            self.waiting[h] -= 1
            self.steps[h].append(-step)
            if not self.waiting[h]:
                self._admit(h)
