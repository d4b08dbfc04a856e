"""Makes the short form of a deep model: a smaller graph in which each block (repeated subgraph) occurs between the same
neighbours as in the model, but as few times as possible.

A deep model is a chain of instances of few blocks. Where two instances are of the same block, the short form omits the
second one and all between them, as long as every sequence of `RUN` successive blocks of the model still occurs. Readers
of the omitted second instance read the outputs of the first one. The short form computes something else than the model,
but from the same parts. So the kernels that are the fastest in it are the fastest in the model, and a search over it
takes a fraction of the time. `RUN` is three, because a layer between two others may have other kernels than the first
and the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..ir.tensor import Tensor
from .blocks import BlockInstance, Blocks

RUN = 3  # blocks that follow each other
LARGEST_SHARE = 0.6  # largest share of a model's instances that its short form may have: else it saves too little


def short_form(blocks: Blocks) -> Blocks | None:
    """The short form of a model given by its blocks (repeated subgraphs), with the outputs that are left.

    None for a model without enough repeats, or whose repeats depend on each other otherwise than as a chain.
    """
    chain = _Chain(blocks)
    while any(chain.cut(first, last) for first, last in chain.repeats()):
        pass
    instances = chain.instances(chain.kept)
    if instances is None or len(instances) > LARGEST_SHARE * len(blocks.instances):
        return None
    computed = {v for i in blocks.instances for v in i.outputs} - {v for i in instances for v in i.outputs}
    graph = blocks.graph
    outputs = {n: v for n, v in zip(graph.names, graph.outputs) if v not in computed}
    updates = {n: v for n, v in graph.updates.items() if v not in computed}
    if not outputs:
        return None
    left = replace(graph, outputs=tuple(outputs.values()), names=tuple(outputs), updates=updates)
    return replace(blocks, graph=left, instances=tuple(instances))


@dataclass
class _Chain:
    """A model's instances in order, and those kept so far. `stands`: instance left out -> the one read instead."""

    blocks: Blocks
    kept: list[int] = field(default_factory=list)
    stands: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instances = self.blocks.instances
        self.kept = list(range(len(instances)))
        self.kinds = [i.block for i in instances]
        self.maker = {v: (n, k) for n, i in enumerate(instances) for k, v in enumerate(i.outputs)}
        self.runs = self._runs(self.kept)

    def _runs(self, kept: Sequence[int]) -> set[tuple[int, ...]]:
        """Runs of blocks that follow each other, shorter ones at the ends included."""
        kinds = [self.kinds[n] for n in kept]
        return {tuple(kinds[max(0, n - RUN) : n]) for n in range(1, len(kinds) + RUN)}

    def repeats(self) -> list[tuple[int, int]]:
        """Pairs of places in `kept` with the same block, those farthest apart first."""
        kinds = [self.kinds[n] for n in self.kept]
        found = [(a, b) for b, kind in enumerate(kinds) for a in range(b) if kinds[a] == kind]
        return sorted(found, key=lambda pair: pair[0] - pair[1])

    def cut(self, first: int, last: int) -> bool:
        """Leave out the instances after place `first` of `kept` up to place `last`, if that is possible."""
        kept = [*self.kept[: first + 1], *self.kept[last + 1 :]]
        if self._runs(kept) != self.runs:
            return False
        stands, before = {}, 0
        while before <= min(first, last - first - 1):
            ours, theirs = self.kept[last - before], self.kept[first - before]
            if self.kinds[ours] != self.kinds[theirs]:
                break
            stands[ours] = theirs
            before += 1
        known, self.stands = self.stands, {**self.stands, **stands}
        if self.instances(kept) is None:
            self.stands = known
            return False
        self.kept = kept
        return True

    def instances(self, kept: Sequence[int]) -> list[BlockInstance] | None:
        """The instances in `kept`, reading what stands for values left out; None if something has no such value."""
        there, found = {*kept}, list[BlockInstance]()
        for n in kept:
            one = self.blocks.instances[n]
            inputs = [self._read(v, there, n) for v in one.inputs]
            if None in inputs:
                return None
            found.append(replace(one, inputs=tuple(v for v in inputs if v is not None)))
        return found

    def _read(self, value: Tensor, there: set[int], reader: int) -> Tensor | None:
        """The value that an instance reads in the place of a value of the model; None if there is none."""
        if value not in self.maker:
            return value
        n, k = self.maker[value]
        while n not in there:
            if n not in self.stands:
                return None
            n = self.stands[n]
        return self.blocks.instances[n].outputs[k] if n < reader else None


__all__ = ["short_form"]
