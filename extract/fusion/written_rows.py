"""Finds groups of attention that writes rows into the keys and values that it reads, as caches of decode steps need.

The attention's group is joined with those that write the rows, each computed inside the kernel. It reads queries, keys
and values as such, whichever product they are slices of. If groups read whole products instead, a plan might need two
products with columns in common and compute these twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types.dims import concrete
from .groups import FusionGroups
from .multi_output_group import MAX_OUTPUTS, MultiOutputGroup, inputs_of, is_model_value, ordered, over
from .policy import FUSION_POLICIES, FusionGroup, with_packed

# operands of attention that writes rows (those of the queries and of both rows), and such groups of a class
MAX_WRITING_LEAVES, MAX_WRITING_CHOICES = 16, 6
ATTENTION_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if r.products == 2 and not r.layers)
ROW_POLICIES = frozenset(r.name for r in FUSION_POLICIES if not r.products)


@dataclass(frozen=True)
class WrittenRows:
    """The groups of attention with written rows among the fusion groups `found`."""

    groups: FusionGroups
    found: Sequence[FusionGroup]

    def __iter__(self) -> Iterator[MultiOutputGroup]:
        """Attention with the kernels that write a row into its keys and values, each computed inside the group."""
        writers: dict[int, list[FusionGroup]] = {}
        for r in self.found:
            if r.policy in ROW_POLICIES and _writes_row(r.term):
                writers.setdefault(r.cls, []).append(self._over_slices(r))
        alike: dict[tuple[int, ...], dict[frozenset[int], MultiOutputGroup]] = {}
        for r in self.found if writers else ():
            written = [c for _, c in r.leaves if c in writers]
            if 0 < len(written) < MAX_OUTPUTS and r.term.entry.kind != "view" and _attends(r):
                r = self._over_slices(r)
                beside = partial(self._further_operands, {c for _, c in r.leaves})
                chosen = [min(writers[c], key=beside) for c in written]
                read = {c for one in (r, *chosen) for _, c in one.leaves} - {*written}
                known = alike.setdefault((r.cls, *written), {})
                if (computed := frozenset(read - self.groups.given)) not in known and len(read) <= MAX_WRITING_LEAVES:
                    known[computed] = self._writing(r, chosen)
        for groups in alike.values():
            yield from sorted(groups.values(), key=self._operand_cost)[:MAX_WRITING_CHOICES]

    def _over_slices(self, r: FusionGroup) -> FusionGroup:
        """The group with slices of its operands that the model needs as operands, in place of what they are slices of.

        A slice costs nothing, and any value that contains it will do.
        """
        slices = {leaf for leaf, c in r.leaves if c not in self.groups.given}
        classes, parts = dict(r.inner), dict[Tensor, int]()
        for t in topological([r.term]):
            if t.op == "slice" and t.args[0] in slices:
                slices.add(t)
                if is_model_value(self.groups.view, classes[t]):
                    parts[t] = classes[t]
        if not parts:
            return r
        read = {**dict(r.leaves), **parts}
        above = topological([r.term], {*parts})
        return replace(r, leaves=tuple({a: (a, read[a]) for t in above for a in t.args if a in read}.values()))

    def _operand_cost(self, group: MultiOutputGroup) -> float:
        """Tree cost of the operands of a group that are not in memory before any kernel runs."""
        return sum(self.groups.costs[c] for _, c in group.leaves if c not in self.groups.given)

    def _further_operands(self, known: Collection[int], r: FusionGroup) -> tuple[float, int, int]:
        """(tree cost, number) of the operands of a group that are not `known`, number of all of them."""
        further = {c for _, c in r.leaves} - {*known}
        return sum(self.groups.costs[c] for c in further - self.groups.given), len(further), len(r.leaves)

    def _writing(self, r: FusionGroup, writers: Sequence[FusionGroup]) -> MultiOutputGroup:
        """The group of `r` and of `writers`, whose values `r` reads."""
        made = {w.cls for w in writers}
        named = inputs_of(self.groups.view, (c for one in (r, *writers) for _, c in one.leaves if c not in made))
        known = dict(named)
        for w in writers:
            known[w.cls] = over(w, known)
        terms = (over(r, known), *(known[w.cls] for w in writers))
        return MultiOutputGroup((r.cls, *(w.cls for w in writers)), terms, ordered(terms, named), r.policy)


def _writes_row(term: Tensor) -> bool:
    """Whether a term writes one row into an operand: its place and the row may be computed."""
    if term.entry.fusion_role != "written" or term.args[0].op != "input" or term.attr("mode") != "set":
        return False
    axis, whole, row = term.attr("axis"), concrete(term.shape), concrete(term.args[2].shape)
    return row == (*whole[:axis], 1, *whole[axis + 1 :])


def _attends(r: FusionGroup) -> bool:
    """Whether a group has a product around another one, or the two as one operation."""
    return r.policy in ATTENTION_POLICIES or any(t.entry.law == "attention" for t in topological([r.term]))
