"""What the cheapest e-nodes need a value for: its readers, and the values without which it is not needed.

A value that is stored on the way to another one must be wanted for something else. Which plan will be best is not known
when kernels are made, so the cheapest e-node of each class stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..egraph.ops import OPS
from ..egraph.view import EGraphView


class Uses:
    """The classes that one e-node of each class leads to from a view's roots."""

    def __init__(self, view: EGraphView, choice: Sequence[int]) -> None:
        self.view = view
        self.choice = choice
        self._off, self._kid = view.off.tolist(), view.kid.tolist()

    def kids(self, cls: int) -> list[int]:
        """The classes that a class is computed from directly."""
        node = self.choice[cls]
        return self._kid[self._off[node] : self._off[node + 1]] if node >= 0 else []

    def __contains__(self, cls: int) -> bool:
        return cls in self.above

    @cached_property
    def order(self) -> list[int]:
        """The classes, operands first."""
        found: list[int] = []
        closed: dict[int, bool] = {}
        stack = list(reversed(self.view.roots))
        while stack:
            cls = stack[-1]
            if cls not in closed:
                closed[cls] = False
                stack += [k for k in self.kids(cls) if k not in closed]
            else:
                stack.pop()
                if not closed[cls]:
                    closed[cls] = True
                    found.append(cls)
        return found

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """The classes computed from each class, views of it included; a root is read from outside, by -1."""
        found: dict[int, set[int]] = {cls: {-1} if cls in self.view.roots else set() for cls in self.order}
        for cls in self.order:
            for kid in self.kids(cls):
                found[kid].add(cls)
        return found

    @cached_property
    def above(self) -> dict[int, int]:
        """The nearest class that every way from the roots to each class passes (its immediate dominator; -1: none)."""
        found = dict.fromkeys(self.view.roots, -1)
        depth = {-1: 0}
        for cls in reversed(self.order):
            depth[cls] = depth[found[cls]] + 1
            for kid in self.kids(cls):
                a, b = cls, found.get(kid, cls)
                while a != b:
                    a, b = (found[a], b) if depth[a] >= depth[b] else (a, found[b])
                found[kid] = a
        return found

    @cached_property
    def count(self) -> dict[int, int]:
        """How many values are computed from each class; a root counts once more. What reads a view reads what it shows."""
        found = {cls: int(cls in self.view.roots) for cls in self.order}
        for cls in reversed(self.order):
            shows = self.choice[cls] >= 0 and OPS[self.view.op[self.choice[cls]]].kind == "view"
            for kid in {*self.kids(cls)}:
                found[kid] += found[cls] if shows else 1
        return found

    def beside(self, cls: int, other: int) -> bool:
        """Whether a class is needed for something beside another class."""
        if self.count.get(cls, 0) < 2:
            return False
        while cls not in (-1, other):
            cls = self.above[cls]
        return cls != other
