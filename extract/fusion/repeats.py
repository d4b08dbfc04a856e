"""Finds repeated subgraphs of an e-graph: e-classes with equal surroundings, and the mapping of one occurrence to
another.

Models repeat layers. A result for a class of one layer holds for the corresponding class of another, with other
operands. Two classes have equal colours if colour refinement (Weisfeiler and Leman, 1968) over `COLOUR_RADIUS` e-nodes,
up and down, does not distinguish them. That is a heuristic for large e-graphs; `image` follows the e-nodes themselves,
so a wrong guess is noticed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...egraph.view.view import EGraphView

NEAR_RADIUS, COLOUR_RADIUS = 2, 4
CONCAT_COLOUR = np.uint64(0x9E3779B97F4A7C15)  # constant added to values read by concatenations
# (class of an e-node, its signature, its index among e-nodes with that signature, its child classes)
OutlineStep = tuple[int, Hashable, int, list[int]]
Words = npt.NDArray[np.uint64]


@dataclass
class RepeatedSubgraphs:
    """E-classes of an e-graph that occur in equal surroundings, recognized by colours.

    `marks`: for each e-class further properties that equal ones must share. The surroundings of `given` e-classes (in
    memory before any kernel runs) are not compared: neither their e-nodes nor their readers.
    """

    view: EGraphView
    marks: Sequence[Hashable]
    given: frozenset[int] = frozenset()

    @cached_property
    def _kinds(self) -> list[int]:
        """Id per e-node of its operation and attributes."""
        known: dict[Hashable, int] = {}
        return [known.setdefault(kind, len(known)) for kind in zip(self.view.op, self.view.attrs)]

    @property
    def colours(self) -> list[int]:
        """For each e-class its colour after COLOUR_RADIUS rounds of refinement: e-classes with equal surroundings have
        equal colours."""
        return self._colours[1]

    @cached_property
    def _colours(self) -> tuple[list[int], list[int]]:
        """(colours at `NEAR_RADIUS`, colours at `COLOUR_RADIUS`)."""
        view, known = self.view, dict[Hashable, int]()
        colour = _mixed(np.array([known.setdefault(m, len(known)) for m in self.marks], np.uint64))
        bare = np.zeros(view.n_classes, np.bool_)
        bare[list(self.given)] = True
        cls, child, count = view.cls.astype(np.int64), view.child.astype(np.int64), np.diff(view.off)
        node = np.repeat(np.arange(len(view)), count)  # owner node of each edge
        place = _mixed(np.arange(len(child)).astype(np.uint64) - view.off[node].astype(np.uint64) + np.uint64(1 << 20))
        kind = _mixed(np.array(self._kinds, np.uint64) + np.uint64(1 << 32))
        # A concatenation must not distinguish its operands: neither by their number and position, nor by its direction
        joins = np.array([op == "concat" for op in view.op], np.bool_)[node]
        joined = np.unique(child[joins])
        first, found = colour, list[list[int]]()
        for distance in range(1, COLOUR_RADIUS + 1):
            below = kind.copy()
            np.add.at(below, node, _mixed(colour[child] ^ place))
            below = _mixed(below)
            above = _mixed(below[node] ^ colour[cls[node]] ^ place)
            fresh = first.copy()
            np.add.at(fresh, cls, below)
            np.add.at(fresh, child[~joins], _mixed(above)[~joins])
            fresh[joined] += CONCAT_COLOUR
            colour = np.where(bare, first, _mixed(fresh))
            if distance in (NEAR_RADIUS, COLOUR_RADIUS):
                found.append(colour.tolist())
        near, far = found
        return near, far

    @cached_property
    def _children(self) -> list[list[int]]:
        off, child = self.view.off.tolist(), self.view.child.tolist()
        return [child[a:b] for a, b in pairwise(off)]

    @cached_property
    def _twins(self) -> list[dict[Hashable, list[int]]]:
        """Per class: signature -> its e-nodes with that signature."""
        colours, found = self._colours[0], [dict[Hashable, list[int]]() for _ in range(self.view.n_classes)]
        for node, cls in enumerate(self.view.cls.tolist()):
            found[cls].setdefault(self._signature(node, colours), []).append(node)
        return found

    def _signature(self, node: int, colours: Sequence[int]) -> Hashable:
        return self._kinds[node], *[colours[k] for k in self._children[node]]

    def outline(self, nodes: Iterable[int]) -> list[OutlineStep]:
        """Structure of the subgraph of the e-nodes `nodes` (from output to inputs), as steps that `image` follows
        elsewhere."""
        colours, cls, found = self._colours[0], self.view.cls, list[OutlineStep]()
        for node in nodes:
            here, signature = int(cls[node]), self._signature(node, colours)
            found.append((here, signature, self._twins[here][signature].index(node), self._children[node]))
        return found

    def image(self, steps: Iterable[OutlineStep], cls: int, other: int) -> dict[int, int] | None:
        """Map from the e-classes below `cls` to those below `other`, another occurrence of the same subgraph.

        `steps`: structure of the subgraph (`outline`). None if the e-nodes below `other` do not correspond.
        """
        found, twins, children = {cls: other}, self._twins, self._children
        for here, signature, number, ours in steps:
            alike = twins[found[here]].get(signature, ())
            if number >= len(alike):
                return None
            for a, b in zip(ours, children[alike[number]], strict=True):
                if found.setdefault(a, b) != b:
                    return None
        return found


def _mixed(x: Words) -> Words:
    """The splitmix64 mixing function, elementwise."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
