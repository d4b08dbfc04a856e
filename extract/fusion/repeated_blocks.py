"""Finds the instances of a repeated block (subgraph) that have equal surroundings, so that kernels found in one of them
are copied to the others.

A joined view (e-graph joined from saturated blocks, egraph/view/joined_view.py) has the e-classes of a block once per
instance.
Two instances have equal contexts if `CONTEXT_RADIUS` rounds of colour refinement over instances do not distinguish
them. Fusion groups start only in the *active* instances, the first one of each context. A kernel found there is copied
to every other instance of the context, class by class: a class of an instance becomes the class at the same position of
the corresponding instance. The map covers the neighbours of an instance, as far as its classes correspond one to one;
kernels that reach further are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...egraph.view.view import EGraphView

CONTEXT_RADIUS = 2
ATTRIBUTE = "_repeated_blocks"  # of a view, where its `RepeatedBlocks` is cached

Owner = tuple[int, int]  # (instance, index of the class in the block's view)


@dataclass(frozen=True, eq=False)
class RepeatedBlocks:
    """Occurrences (instances) in an e-graph of the subgraphs that its model repeats (blocks).

    `blocks[n]` is the block of instance n, `places[n]` its e-classes in the block's order (-1: not in the e-graph).
    `roots`: the e-graph's root e-classes.
    """

    blocks: Sequence[int]
    places: Sequence[Sequence[int]]
    roots: frozenset[int]

    @classmethod
    def of(cls, view: EGraphView) -> RepeatedBlocks:
        """Constructor: the instances of the blocks (repeated subgraphs) of `view`; computed once per view."""
        found = view.__dict__.get(ATTRIBUTE)
        if found is None:
            places = [classes.tolist() for _, classes in view.instances]
            found = cls([block for block, _ in view.instances], places, frozenset(view.roots))
            view.__dict__[ATTRIBUTE] = found
        return found

    @cached_property
    def owners(self) -> dict[int, list[Owner]]:
        """E-class -> its occurrences in instances, as (instance, position in the block's order)."""
        found: dict[int, list[Owner]] = {}
        for n, classes in enumerate(self.places):
            for x, c in enumerate(classes):
                if c >= 0:
                    found.setdefault(c, []).append((n, x))
        return found

    @cached_property
    def shared(self) -> list[list[tuple[int, int]]]:
        """Per instance: (index, class) of the classes that other instances have, too."""
        several = {c for c, o in self.owners.items() if o[0][0] != o[-1][0]}
        return [[(x, c) for x, c in enumerate(classes) if c in several] for classes in self.places]

    @cached_property
    def of_block(self) -> dict[int, list[int]]:
        """Index of each unique block (repeated subgraph) -> indices of its instances in the model."""
        return _by_value(self.blocks)

    @cached_property
    def contexts(self) -> list[int]:
        """For each instance the id of its surroundings; instances that CONTEXT_RADIUS rounds of colour refinement do
        not distinguish have equal ids."""
        colour = [hash(block) for block in self.blocks]
        for _ in range(CONTEXT_RADIUS):
            mixed = {
                c: sum(hash((colour[n], x)) for n, x in self.owners[c]) for c in {c for s in self.shared for _, c in s}
            }
            colour = [
                hash((
                    colour[n], tuple((x, mixed[c] - hash((colour[n], x))) for x, c in self.shared[n]),
                    tuple(x for x, c in enumerate(classes) if c in self.roots),
                ))
                for n, classes in enumerate(self.places)
            ]  # fmt: skip
        return colour

    @cached_property
    def alike(self) -> dict[int, list[int]]:
        """Id of surroundings (`contexts`) -> the instances that have them, in order."""
        return _by_value(self.contexts)

    @cached_property
    def active(self) -> frozenset[int]:
        """Instances in which fusion groups start: the first one of each context (set of instances with equal
        surroundings).
        """
        return frozenset(those[0] for those in self.alike.values())

    def is_active(self, cls: int) -> bool:
        """Whether fusion groups start at an e-class: it belongs to an active instance (`active`) or to no instance."""
        owners = self.owners.get(cls)
        return owners is None or any(n in self.active for n, _ in owners)

    def copies(self, classes: Sequence[int]) -> Iterator[list[int]]:
        """Yields, for each other instance of the block with equal surroundings (producers and consumers), the e-classes
        there that correspond to `classes`, in the same order. Instances that lack a counterpart of one of them are left
        out.

        `classes`: e-classes of one kernel, the class of its first result first. The kernel was found in an active
        instance, one in which fusion groups are searched.
        """
        sources = {n for n, _ in self.owners.get(classes[0], ()) if n in self.active}
        for source in sorted(sources):
            for n in self.alike[self.contexts[source]]:
                if n != source:
                    to = self._map(source, n)
                    moved = [to.get(c, -1) if c in self.owners else c for c in classes]
                    if -1 not in moved:
                        yield moved

    @cached_property
    def _maps(self) -> dict[tuple[int, int], dict[int, int]]:
        return {}

    def _map(self, source: int, target: int) -> dict[int, int]:
        """Classes of an instance and around it -> the corresponding classes of another instance of its context."""
        if (source, target) not in self._maps:
            self._maps[source, target] = self._mapped(source, target)
        return self._maps[source, target]

    def _mapped(self, source: int, target: int) -> dict[int, int]:
        images, to, front = {source: target}, dict[int, int](), [source]
        self._join(to, source, target)
        for _ in range(CONTEXT_RADIUS):
            following: list[int] = []
            for n in front:
                for x, c in self.shared[n]:
                    for a, b in self._pairs(c, self.places[images[n]][x]):
                        if a not in images and self._join(to, a, b):
                            images[a] = b
                            following.append(a)
            front = following
        return to

    def _join(self, to: dict[int, int], source: int, target: int) -> bool:
        """Extend a map of classes by an instance and its image, unless a class would get two images."""
        pairs = [(a, b) for a, b in zip(self.places[source], self.places[target], strict=True) if a >= 0]
        if any(b < 0 or to.get(a, b) != b for a, b in pairs):
            return False
        to.update(pairs)
        return True

    def _pairs(self, ours: int, theirs: int) -> Iterable[tuple[int, int]]:
        """Pairs of instances that two corresponding classes belong to, with equal block and equal position in it.
        Positions that occur in several instances are left out.
        """
        first, second = (self._once(c) for c in (ours, theirs))
        return [(n, second[key]) for key, n in first.items() if key in second]

    def _once(self, cls: int) -> dict[tuple[int, int], int]:
        """(block, position in the block) -> instance, for the occurrences of a class; pairs that occur in several
        instances are left out.
        """
        found: dict[tuple[int, int], int] = {}
        several = set()
        for n, x in self.owners.get(cls, ()):
            key = self.blocks[n], x
            several |= {key} & found.keys()
            found[key] = n
        return {key: n for key, n in found.items() if key not in several}


def _by_value(values: Iterable[int]) -> dict[int, list[int]]:
    """Value -> its positions in `values`, in order."""
    found: dict[int, list[int]] = {}
    for n, value in enumerate(values):
        found.setdefault(value, []).append(n)
    return found


@dataclass(frozen=True)
class Correspondence:
    """Maps e-classes of one e-graph (`source`) to those of another one (`target`), which is joined from copies of the
    same blocks (repeated subgraphs).

    E-classes of one copy of a block correspond to the same e-classes of every other copy; inputs of a copy correspond
    to the inputs of the other copy if they are computed at the same place of the same block. A kernel need not match at
    corresponding e-classes: its terms are to be looked up there (egraph/view/term_lookup.py). `same`: e-class of
    `source` -> of `target`, for values outside of blocks that are in both, such as leaves.
    """

    source: RepeatedBlocks
    target: RepeatedBlocks
    same: Mapping[int, int]

    @classmethod
    def of(cls, source: EGraphView, target: EGraphView) -> Correspondence:
        """The correspondence of two views."""
        same = {c: target.classes[t] for t, c in source.classes.items() if t in target.classes}
        return cls(RepeatedBlocks.of(source), RepeatedBlocks.of(target), same)

    def copies(self, classes: Sequence[int]) -> Iterator[list[int]]:
        """For each instance of the target, the e-classes that correspond to a kernel's `classes`, its first result
        first, if all do."""
        ours, theirs = self.source, self.target
        for n in sorted({n for n, _ in ours.owners.get(classes[0], ())}):
            for m in theirs.of_block.get(ours.blocks[n], ()):
                to = self._map(n, m)
                moved = [to.get(c, self.same.get(c, -1)) for c in classes]
                if -1 not in moved:
                    yield moved

    @cached_property
    def _maps(self) -> dict[tuple[int, int], dict[int, int]]:
        return {}

    def _map(self, n: int, m: int) -> dict[int, int]:
        """E-classes of instance n and of those that make its inputs -> those of instance m and of those that make its
        inputs."""
        if (n, m) not in self._maps:
            ours, theirs = self.source, self.target
            to = self._maps[n, m] = dict(self._pairs(n, m))
            for x, c in ours.shared[n]:
                (a, at), (b, there) = ours.owners[c][0], theirs.owners[theirs.places[m][x]][0]
                if a != n and at == there and ours.blocks[a] == theirs.blocks[b]:
                    for cls, image in self._pairs(a, b):
                        to.setdefault(cls, image)
        return self._maps[n, m]

    def _pairs(self, n: int, m: int) -> Iterator[tuple[int, int]]:
        """The e-classes of two instances of one block."""
        yield from ((a, b) for a, b in zip(self.source.places[n], self.target.places[m], strict=True) if min(a, b) >= 0)
