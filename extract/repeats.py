"""Repeated parts of an e-graph: which classes look alike from near by, and what in one place stands for what in another.

Layers of a model are stamped many times. What was found for a class of one of them holds for the same class of another, with other
operands. Classes are alike if nobody within `RADIUS` e-nodes of them, above and below, can tell them apart (colours are refined as
Weisfeiler and Leman do, 1968). That they are is a guess where e-graphs are large; what is moved from one class to another follows the e-nodes
themselves, so a wrong guess is noticed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..egraph.view import EGraphView

NEAR, RADIUS = 2, 4
JOINED = np.uint64(0x9E3779B97F4A7C15)  # what the values have in common that concatenations read
# The class of an e-node, what can be told of it, which one of those it is, what it reads
Step = tuple[int, Hashable, int, list[int]]
Words = npt.NDArray[np.uint64]


@dataclass
class Repeats:
    """The classes of a view, of which `marks` say what is known of each beside its e-nodes. Below those that are `given` nothing is looked at:
    nobody cares how they came about, nor what else is read from them."""

    view: EGraphView
    marks: Sequence[Hashable]
    given: frozenset[int] = frozenset()

    @cached_property
    def _kinds(self) -> list[int]:
        """A number for each e-node: its operation and attributes."""
        known: dict[Hashable, int] = {}
        return [known.setdefault(kind, len(known)) for kind in zip(self.view.op, self.view.attrs)]

    @property
    def colours(self) -> list[int]:
        """A number for each class; equal where classes are alike."""
        return self._colours[1]

    @cached_property
    def _colours(self) -> tuple[list[int], list[int]]:
        """Those within `NEAR` and within `RADIUS`."""
        view, known = self.view, dict[Hashable, int]()
        colour = _mixed(np.array([known.setdefault(m, len(known)) for m in self.marks], np.uint64))
        bare = np.zeros(view.n_classes, np.bool_)
        bare[list(self.given)] = True
        cls, kid, count = view.cls.astype(np.int64), view.kid.astype(np.int64), np.diff(view.off)
        node = np.repeat(np.arange(len(view)), count)  # of each edge
        place = _mixed(np.arange(len(kid)).astype(np.uint64) - view.off[node].astype(np.uint64) + np.uint64(1 << 20))
        kind = _mixed(np.array(self._kinds, np.uint64) + np.uint64(1 << 32))
        # What is put together of steps tells nothing of one of them: how many there are before it, or which way they are joined
        joins = np.array([op == "concat" for op in view.op], np.bool_)[node]
        joined = np.unique(kid[joins])
        first, found = colour, list[list[int]]()
        for distance in range(1, RADIUS + 1):
            below = kind.copy()
            np.add.at(below, node, _mixed(colour[kid] ^ place))
            below = _mixed(below)
            above = _mixed(below[node] ^ colour[cls[node]] ^ place)
            fresh = first.copy()
            np.add.at(fresh, cls, below)
            np.add.at(fresh, kid[~joins], _mixed(above)[~joins])
            fresh[joined] += JOINED
            colour = np.where(bare, first, _mixed(fresh))
            if distance in (NEAR, RADIUS):
                found.append(colour.tolist())
        near, far = found
        return near, far

    @cached_property
    def _kids(self) -> list[list[int]]:
        off, kid = self.view.off.tolist(), self.view.kid.tolist()
        return [kid[a:b] for a, b in pairwise(off)]

    @cached_property
    def _twins(self) -> list[dict[Hashable, list[int]]]:
        """The e-nodes of each class by what can be told of them, and of what they read."""
        colours, found = self._colours[0], [dict[Hashable, list[int]]() for _ in range(self.view.n_classes)]
        for node, cls in enumerate(self.view.cls.tolist()):
            found[cls].setdefault(self._signature(node, colours), []).append(node)
        return found

    def _signature(self, node: int, colours: Sequence[int]) -> Hashable:
        return self._kinds[node], *[colours[k] for k in self._kids[node]]

    def outline(self, nodes: Iterable[int]) -> list[Step]:
        """E-nodes from above to below, as `image` follows them."""
        colours, cls, found = self._colours[0], self.view.cls, list[Step]()
        for node in nodes:
            here, signature = int(cls[node]), self._signature(node, colours)
            found.append((here, signature, self._twins[here][signature].index(node), self._kids[node]))
        return found

    def image(self, steps: Iterable[Step], cls: int, other: int) -> dict[int, int] | None:
        """What the classes that e-nodes lead to from a class are where another one is in its place. None where there is none."""
        found, twins, kids = {cls: other}, self._twins, self._kids
        for here, signature, number, ours in steps:
            alike = twins[found[here]].get(signature, ())
            if number >= len(alike):
                return None
            for a, b in zip(ours, kids[alike[number]], strict=True):
                if found.setdefault(a, b) != b:
                    return None
        return found


def _mixed(x: Words) -> Words:
    """Words whose every bit depends on every bit of those given (the finisher of splitmix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
