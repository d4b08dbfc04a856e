"""Fuses all elementwise operations, views and reductions of one extent into as few kernels as possible (maximal
fusion).

Ordinary fusion groups (terms for one kernel, groups.py) are small, numerous, and grown from every value. A program of
hundreds of small operations (an unrolled scan, solver steps, an optimizer's update) fits into one or a few kernels,
which are larger than any such group. Here each value that is not a view belongs to exactly one part (set of values for
one kernel; maximal_partition.py). Parts grow from the results towards the inputs, over values with equal numbers of
elements, or reduced over axes of one extent; a part may have several outputs. Values are recomputed only where that is
cheaper than memory traffic: views, index formulas, small operands of large values, and disjoint slices.

A part that is too large for one kernel is cut in two where the fewest values cross, recursively. Time is linear in the
number of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, make, topological
from ...egraph.ops.ops import OPS
from ...egraph.view.view import EGraphView
from .groups import GROUPS_CACHE_ATTRIBUTE, FusionGroups
from .growth import MAX_GROUP_NODES
from .maximal_partition import MaximalPart, MaximalPartition
from .multi_output_group import MultiOutputGroup
from .values import MaximalFusionValues, is_view

MIN_PART_WEIGHT = 16  # least weight of a useful part: smaller ones are ordinary fusion groups
MAX_PART_OPERANDS, MAX_PART_RESULTS = 48, 24  # largest number of operands and results of a part
MAX_OPEN_RESULTS = 4  # largest number of results of a piece from which ordinary groups start
# sizes of the pieces into which a large part is cut as alternatives, in case it is slower than they are
PIECE_WEIGHTS = (400, 32)


@dataclass
class MaximalFusion:
    """Maximal fusion groups (as few kernels as possible) of an e-graph, over the cheapest e-node of each e-class; the
    largest parts first.

    `rows`: whether reductions are fused. `unrolled`: short reductions are unrolled and fused with their operands, which
    may have up to MAX_SIZE_RATIO times as many elements as their results; only parts with a short reduction are
    yielded.
    """

    groups: FusionGroups
    rows: bool = True
    unrolled: bool = False
    known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # results of a group -> its values
    todo: list[list[int]] = field(default_factory=list)

    @property
    def view(self) -> EGraphView:
        """The e-graph view whose values are fused."""
        return self.groups.view

    @cached_property
    def values(self) -> MaximalFusionValues:
        """The e-graph's values, classified for maximal fusion.

        Cached on the view (the arrays of the e-graph) while candidates are built, with their partition: generators of
        one view share both.
        """
        kept: dict[object, MaximalFusionValues] = self.view.__dict__.setdefault(GROUPS_CACHE_ATTRIBUTE, {})
        key = "maximal", self.groups.given, self.rows, self.unrolled
        if key not in kept:
            kept[key] = MaximalFusionValues(self.groups, self.rows, self.unrolled)
        return kept[key]

    @property
    def partition(self) -> MaximalPartition:
        """The values assigned to parts (one kernel each); a value that maximal fusion cannot compute is a part of its
        own."""
        known: MaximalPartition | None = self.values.__dict__.get("partition")
        if known is None:
            known = self.values.__dict__["partition"] = MaximalPartition(self.values)
        return known

    @cached_property
    def parts(self) -> list[MaximalPart]:
        """Parts that one kernel may compute, each as a list of values, operands first."""
        values = self.values
        if self.unrolled and not any(map(values.short, values.order)):
            return []
        found = [p for p in self.partition.parts if p.members and values.fits(p.members[0])]
        return [p for p in found if any(map(values.short, p.members))] if self.unrolled else found

    def __iter__(self) -> Iterator[MultiOutputGroup]:
        """Yield every part of useful size, and the pieces of large parts."""
        parts = [p.members for p in self.parts if len(p.members) > 1 and self.weight(p.members) >= MIN_PART_WEIGHT]
        for size in PIECE_WEIGHTS:
            parts += [piece for p in parts if self.weight(p) > 2 * size for piece in self.pieces(p, size)]
        self.todo = [*reversed(parts)]
        seen: set[frozenset[int]] = set()
        while self.todo:
            members = self.todo.pop()
            key = frozenset(members)
            if key in seen:
                continue
            seen.add(key)
            group = self.group(members)
            if group is None:
                self.todo += self.halves(members)
            else:
                self.known[group.classes] = members
                yield group

    def refused(self, group: MultiOutputGroup) -> None:
        """Report that no kernel can compute `group`, one of the groups yielded; its two halves are yielded next."""
        self.todo += self.halves(self.known[group.classes])

    @cached_property
    def large(self) -> list[list[int]]:
        """Values of each part that is larger than ordinary fusion groups can be."""
        return [p.members for p in self.parts if self.weight(p.members) > MAX_GROUP_NODES]

    @cached_property
    def settled(self) -> set[int]:
        """E-classes that large parts (`large`) compute, including values that each consumer recomputes."""
        found = {c for members in self.large for c in members}
        stack = [*found]
        while stack:
            below = [k for k in self.values.children(stack.pop()) if self.values.recomputed.get(k) and k not in found]
            found.update(below)
            stack += below
        return found

    @cached_property
    def unstarted(self) -> set[int]:
        """E-classes inside the large parts at which no ordinary fusion group (groups.py) starts: all but the results of
        the parts and of the small pieces into which they are cut."""
        pieces = [p for members in self.large for p in self.pieces(members, PIECE_WEIGHTS[-1])]
        cut = [r for p in pieces if len(r := self.results(p)) <= MAX_OPEN_RESULTS]
        made = {c for results in (*map(self.results, self.large), *cut) for c in results}
        return self.settled - made - {*self.view.roots}

    @cached_property
    def unread(self) -> set[int]:
        """E-classes inside large parts that no ordinary fusion group (groups.py) reads: neither stored by a kernel nor
        views of stored ones."""
        found = {c for members in self.large for c in members if c in self.unstarted}
        for c in self.values.order:
            if c in self.unstarted and self.values.recomputed.get(c):
                if not is_view(self.values.op(c)) or any(k in found for k in self.values.children(c)):
                    found.add(c)
        return found

    def weight(self, members: Iterable[int]) -> float:
        """Approximate number of statements in a kernel that computes the values `members`: a composite operation counts
        3, others 1."""
        return sum(3 if OPS[self.values.op(c)].composite else 1 for c in members)

    @cached_property
    def _model_values(self) -> set[int]:
        return {self.values.shown(root) for root in self.view.roots}

    def results(self, members: Sequence[int]) -> list[int]:
        """Values of `members` that are roots or have consumers outside `members`."""
        own, readers = {*members}, self.partition.readers
        return [c for c in members if c in self._model_values or not readers.get(c, set()) <= own]

    def pieces(self, members: list[int], size: int) -> list[list[int]]:
        """`members` cut into runs of about `size` statements each (`weight`), at places where the fewest elements
        cross."""
        if self.weight(members) <= 1.5 * size:
            return [members]
        return [p for half in self.halves(members) for p in self.pieces(half, size)]

    def halves(self, members: list[int]) -> list[list[int]]:
        """`members` cut into two runs, near the middle, where the values that cross the cut have the fewest elements;
        empty for fewer than two members."""
        if len(members) < 2:
            return []
        place = {c: n for n, c in enumerate(members)}
        crossing = [0] * (len(members) + 1)
        for n, c in enumerate(members):
            last = max((place[q] for q in self.partition.readers.get(c, ()) if q in place), default=n)
            crossing[n] += self.groups.facts.elements(c)
            crossing[last] -= self.groups.facts.elements(c)
        crossing = [*accumulate(crossing)]
        third = len(members) // 3
        cut = min(range(third, len(members) - max(third, 1)), key=lambda n: (crossing[n], abs(2 * n - len(members))))
        return [members[: cut + 1], members[cut + 1 :]]

    def group(self, members: list[int]) -> MultiOutputGroup | None:
        """Fusion group that computes the values `members` (e-classes) from their operands; None if there are too many
        operands or results."""
        own, view, values = {*members}, self.view, self.values
        made: dict[int, Tensor] = {}
        leaves: dict[Tensor, int] = {}
        results = self.results(members)
        stack = [(c, False) for c in reversed(results)]
        while stack:
            c, ready = stack.pop()
            node = self.groups.uses.choice[c]
            if c in made:
                continue
            if node < 0 or not (c in own or values.recomputed.get(c) or c in self.groups.facts.formulas):
                made[c] = placeholder(f"x{len(leaves)}", view.types[c].shape, view.types[c].dtype)
                leaves[made[c]] = c
            elif ready:
                leaf = view.tensors.get(node)
                args = [made[k] for k in values.children(c)]
                made[c] = leaf if leaf is not None else make(view.op[node], args, dict(view.attrs[node]))
            else:
                stack.append((c, True))
                stack += [(k, False) for k in reversed(values.children(c)) if k not in made]
        if not results or len(leaves) > MAX_PART_OPERANDS or len(results) > MAX_PART_RESULTS:
            return None
        terms = tuple(made[c] for c in results)
        return MultiOutputGroup(
            tuple(results), terms, tuple((t, leaves[t]) for t in topological(terms) if t in leaves), "whole"
        )


def without_rewrites_in_large_parts(view: EGraphView, given: frozenset[int]) -> EGraphView:
    """The e-graph `view` without rewritten e-nodes in the e-classes that large parts of maximal fusion compute.

    `given`: e-classes in memory before any kernel runs. E-classes in large parts keep their cheapest e-node and those
    of the original graph. This saves time: rewriting finds tens of thousands of forms of hundreds of additions and
    products, none of which saves operations.
    """
    whole = MaximalFusion(FusionGroups(view, given))
    if not whole.large:
        return view
    own = view.original_nodes if view.original_nodes is not None else np.zeros(len(view), np.bool_)
    best, asked = whole.settled, MaximalFusion(FusionGroups(view.only(own), given)).settled if own.any() else set[int]()
    choice, both = whole.groups.uses.choice, best | asked
    nodes: dict[int, list[int]] = {}
    for n, cls in enumerate(view.cls.tolist()):
        if cls not in both or (cls in best and n == choice[cls]) or own[n]:
            nodes.setdefault(cls, []).append(n)
    kept = np.zeros(len(view), np.bool_)
    stack, seen = [*view.roots], {*view.roots}
    while stack:
        own_nodes = nodes.get(stack.pop(), [])
        kept[own_nodes] = True
        fresh = {k for n in own_nodes for k in view.children(n).tolist()} - seen
        seen |= fresh
        stack += fresh
    return view.only(kept)
