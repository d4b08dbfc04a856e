"""Finds small elementwise values of one shape that share one launch, over separate inputs.

Such are results that nothing else reads (running statistics and counters of batch norms), casts of values that are in
memory before any kernel runs (weights under autocast), and embeddings and sums of few of them that are needed for the
same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types.dims import concrete
from .groups import FusionGroups
from .multi_output_group import MultiOutputGroup, inputs_of, is_model_value, operands, ordered, over
from .policy import FusionGroup

# outputs and operands of a kernel, largest number of elements of each of them
MAX_SMALL_OUTPUTS, MAX_SMALL_LEAVES, MAX_SMALL_ELEMENTS = 8, 24, 1 << 18
MAX_BAG = 32  # largest number of rows of a table that are added


@dataclass(frozen=True)
class SmallValues:
    """The groups of small elementwise values among the fusion groups `found`."""

    groups: FusionGroups
    found: Sequence[FusionGroup]

    def __iter__(self) -> Iterator[MultiOutputGroup]:
        view = self.groups.view
        alike: dict[tuple[object, ...], dict[int, FusionGroup]] = {}
        for r in self.found:
            if r.cls not in self.groups.uses or not is_model_value(view, r.cls) or r.term.entry.kind == "view":
                continue
            shape = concrete(view.types[r.cls].shape)
            if prod(shape) <= MAX_SMALL_ELEMENTS and (place := self._place(r)) is not None:
                known = alike.setdefault((shape, place), {})
                if r.cls not in known or operands(view, r) < operands(view, known[r.cls]):
                    known[r.cls] = r
        for known in alike.values():
            joined: list[FusionGroup] = []
            for c in sorted(known):
                leaves = {c for r in (*joined, known[c]) for _, c in r.leaves}
                if len(joined) == MAX_SMALL_OUTPUTS or len(leaves) > MAX_SMALL_LEAVES:
                    yield from self._joined(joined)
                    joined = []
                if known.keys().isdisjoint(self.groups.uses.descendants(c) - {c}):
                    joined.append(known[c])
            yield from self._joined(joined)

    def _place(self, r: FusionGroup) -> int | None:
        """Key of the values that may share a launch with that of a group: the value that they are needed for; -1 for
        results and casts of given values; None if the group's value shares no launch."""
        given = all(c in self.groups.given for _, c in r.leaves)
        if self.groups.uses.readers.get(r.cls) == {-1} or (r.term.op == "cast" and given):
            return -1 if _elementwise(r.term) else None
        return self.groups.uses.dominating(r.cls, ("concat",)) if _looks_up(r.term) else None

    def _joined(self, joined: Sequence[FusionGroup]) -> Iterator[MultiOutputGroup]:
        if len(joined) > 1:
            named = inputs_of(self.groups.view, (c for r in joined for _, c in r.leaves))
            terms = tuple(over(r, named) for r in joined)
            yield MultiOutputGroup(tuple(r.cls for r in joined), terms, ordered(terms, named), joined[0].policy)


def _elementwise(term: Tensor) -> bool:
    """Whether a term consists of elementwise ops and views."""
    return all(not t.args or t.entry.pointwise or t.entry.kind == "view" for t in topological([term]))


def _looks_up(term: Tensor) -> bool:
    """Whether a term reads rows of tables by indices, and apart from that has elementwise ops, views and sums of a few
    elements: an embedding, or a bag of embeddings."""

    def light(t: Tensor) -> bool:
        if t.entry.kind == "reduction":
            return prod(concrete(t.args[0].shape)) <= MAX_BAG * prod(concrete(t.shape))
        return not t.args or t.entry.pointwise or t.entry.kind == "view" or t.op == "gather"

    nodes = topological([term])
    return any(t.op == "gather" for t in nodes) and all(map(light, nodes))
