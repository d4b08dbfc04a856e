"""Estimates the consumers and dominators of values, taking the cheapest e-node of each e-class.

A fused kernel should store an intermediate value only if another consumer needs it. When kernels are generated, the
plan and so the consumers are not known yet; they are estimated by taking the cheapest e-node of each e-class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from ...egraph.ops.ops import OPS
from ...egraph.view.view import EGraphView


class ChosenConsumers:
    """Consumers and dominators among the e-classes reachable from an e-graph's roots through one chosen e-node per
    e-class.

    `choice[cls]` is the chosen e-node of e-class cls, -1 for none.
    """

    def __init__(self, view: EGraphView, choice: Sequence[int]) -> None:
        self.view = view
        self.choice = choice
        self._off, self._child = view.off.tolist(), view.child.tolist()

    def children(self, cls: int) -> list[int]:
        """E-classes that the chosen e-node of an e-class reads; empty if it has none."""
        node = self.choice[cls]
        return self._child[self._off[node] : self._off[node + 1]] if node >= 0 else []

    def __contains__(self, cls: int) -> bool:
        return cls in self.above

    @cached_property
    def order(self) -> list[int]:
        """The reachable e-classes, operands before their consumers."""
        found: list[int] = []
        closed: dict[int, bool] = {}
        stack = list(reversed(self.view.roots))
        while stack:
            cls = stack[-1]
            if cls not in closed:
                closed[cls] = False
                stack += [k for k in self.children(cls) if k not in closed]
            else:
                stack.pop()
                if not closed[cls]:
                    closed[cls] = True
                    found.append(cls)
        return found

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """The consumers of each e-class, views included; a root has the additional consumer -1."""
        found: dict[int, set[int]] = {cls: {-1} if cls in self.view.roots else set() for cls in self.order}
        for cls in self.order:
            for child in self.children(cls):
                found[child].add(cls)
        return found

    @cached_property
    def above(self) -> dict[int, int]:
        """Immediate dominator of each e-class: the nearest e-class on all paths from the roots (-1: none)."""
        found = dict.fromkeys(self.view.roots, -1)
        depth = {-1: 0}
        for cls in reversed(self.order):
            depth[cls] = depth[found[cls]] + 1
            for child in self.children(cls):
                a, b = cls, found.get(child, cls)
                while a != b:
                    a, b = (found[a], b) if depth[a] >= depth[b] else (a, found[b])
                found[child] = a
        return found

    @cached_property
    def count(self) -> dict[int, int]:
        """Number of consumers of each e-class; a root counts one more.

        The consumers of a view count as consumers of the value that it shows.
        """
        found = {cls: int(cls in self.view.roots) for cls in self.order}
        for cls in reversed(self.order):
            shows = self.choice[cls] >= 0 and OPS[self.view.op[self.choice[cls]]].kind == "view"
            for child in {*self.children(cls)}:
                found[child] += found[cls] if shows else 1
        return found

    def beside(self, cls: int, other: int) -> bool:
        """Whether `cls` has two or more consumers and is needed also on some path from the roots that does not pass
        through `other`."""
        if self.count.get(cls, 0) < 2:
            return False
        while cls not in (-1, other):
            cls = self.above[cls]
        return cls != other

    def dominating(self, cls: int, passed: Collection[str] = ()) -> int:
        """The nearest dominator of an e-class that is neither a view nor one of the ops `passed`; -1: the e-class is
        needed for several results."""
        above = self.above[cls]
        while above != -1 and (OPS[op := self.view.op[self.choice[above]]].kind == "view" or op in passed):
            above = self.above[above]
        return above

    def descendants(self, cls: int) -> set[int]:
        """Descendants of an e-class over the chosen e-nodes, the e-class included."""
        todo, found = [cls], {cls}
        while todo:
            fresh = set(self.children(todo.pop())) - found
            found |= fresh
            todo += fresh
        return found
