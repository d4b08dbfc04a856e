"""Finds fusion groups (terms for one kernel) that compute a value and what later steps make of its slices (consumer
fusion).

An example: one GEMM computes queries, keys and values; the same kernel rotates them and writes them into caches.

The kernel that computes a value may store its slices separately (fusion/multi_output.py). The consumers of a slice are
often cheap: another layout, a rotation, a row of a cache. If a slice is needed only for one later value, which
elementwise operations and views make of it, the kernel stores the later value instead.

Limits: at most `MAX_OUTPUTS` outputs, per slice its `MAX_LATER_VALUES` last later values, `MAX_GROUPS_PER_VALUE` groups
per value; of groups with equal outputs, the ones that `MultiOutputFusion.least` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, make, rebuild, topological
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from .multi_output import DerivedClass, MultiOutputFusion
from .multi_output_group import MAX_OUTPUTS, MultiOutputGroup
from .policy import FusionGroup

MAX_LATER_VALUES, MAX_GROUPS_PER_VALUE = 4, 2
MAX_CONSUMER_LEAVES = 16  # operands of a group: biases and norms of each result, tables, caches


class LaterValue(NamedTuple):
    """A value computed from a slice by its consumers.

    `cls`: its e-class. `term`: the computation over leaves. `start`: the leaf that stands for the slice. `leaves`:
    e-class of each leaf.
    """

    cls: int
    term: Tensor
    start: Tensor
    leaves: dict[Tensor, int]

    @property
    def space(self) -> tuple[int, ...]:
        """Shape that a kernel iterates over: that of the written tensor for a scatter, otherwise the shape of the
        term."""
        return concrete((self.term.args[2] if self.term.op == "scatter_elements" else self.term).shape)


@dataclass(frozen=True)
class ConsumerFusion:
    """Consumer fusion groups of an e-graph (`view`): kernels that compute a value also compute what follows from its
    slices.

    `together`: the multi-output fusion of the e-graph, which provides the fusion groups that consumers are added to.
    """

    together: MultiOutputFusion
    _later_values_of: dict[int, list[LaterValue]] = field(default_factory=dict)

    @property
    def view(self) -> EGraphView:
        """The e-graph view whose values are fused."""
        return self.together.view

    def __iter__(self) -> Iterator[MultiOutputGroup]:
        """Yield the groups with the least bytes read, among those with equal outputs (products fused, and products
        stored, are compared separately)."""
        alike: dict[tuple[str, frozenset[int]], dict[frozenset[int], MultiOutputGroup]] = {}
        seen: set[int] = set()
        for whole in self.together.found:
            if not _has_product(whole.term) or whole.term.entry.kind == "view":
                continue
            stored = [] if whole.cls in seen else [self._stored(whole.cls)]
            seen.add(whole.cls)
            for source, axis in product([whole, *stored], range(whole.term.rank)):
                for group in self._of(source, axis):
                    read = frozenset(c for _, c in group.leaves)
                    made = "" if source is whole else source.policy, frozenset(group.classes)
                    alike.setdefault(made, {}).setdefault(read, group)
        for groups in alike.values():
            yield from self.together.least([*groups.values()])

    def _stored(self, cls: int) -> FusionGroup:
        """A class as a trivial fusion group that reads it from memory."""
        leaf = placeholder("whole", self.view.types[cls].shape, self.view.types[cls].dtype)
        return FusionGroup(cls, leaf, ((leaf, cls),), "rows")

    def _of(self, whole: FusionGroup, axis: int) -> Iterator[MultiOutputGroup]:
        """The groups in which the kernel of `whole` also computes the consumers of its slices along an axis."""
        parts = self.together.slices(whole.cls, axis)
        if not 2 <= len(parts) <= MAX_OUTPUTS:
            return
        shown = [self.together.shown(cls) or DerivedClass(cls) for *_, cls in parts]
        options = [[*self._later_values(s.cls), self._slice_itself(s.cls)] for s in shown]
        count = 0
        for first in options[0]:
            others = [
                next((e for e in ends if _share_iteration_space(first.space, e.space)), None) for ends in options[1:]
            ]
            chosen = [first, *(e for e in others if e is not None)]
            if len({e.cls for e in chosen}) == len(parts) and any(e.term is not e.start for e in chosen):
                group = self._group(whole, axis, parts, chosen)
                if group is not None:
                    count += 1
                    yield group
                if count == MAX_GROUPS_PER_VALUE:
                    return

    def _slice_itself(self, cls: int) -> LaterValue:
        kind = self.view.types[cls]
        start = placeholder("slice", kind.shape, kind.dtype)
        return LaterValue(cls, start, start, {start: cls})

    def _later_values(self, cls: int) -> list[LaterValue]:
        """Later values of a class: dominators of all its consumers that a fusion group computes from it, the latest
        first."""
        if cls not in self._later_values_of:
            self._later_values_of[cls] = self._find_later_values(cls)
        return self._later_values_of[cls]

    def _find_later_values(self, cls: int) -> list[LaterValue]:
        uses, found = self.together.groups.uses, dict[int, LaterValue]()
        for group in self._groups_by_class.get(cls, ()):
            if group.cls in found or group.cls not in uses or uses.beside(cls, group.cls):
                continue
            inside = next((t for t, c in (*group.leaves, *group.inner) if c == cls), None)
            if inside is None:
                continue
            start = placeholder("slice", inside.shape, inside.dtype)
            (term,) = rebuild([group.term], partial(_substituted, {inside: start}))
            if any(t is start for t in topological([term])) and not _has_product(term):
                found[group.cls] = LaterValue(group.cls, term, start, {start: cls, **dict(group.leaves)})
        return sorted(found.values(), key=lambda e: self._depth(e.cls))[:MAX_LATER_VALUES]

    @cached_property
    def _groups_by_class(self) -> dict[int, list[FusionGroup]]:
        """Class -> fusion groups in which the class is computed or read."""
        found: dict[int, list[FusionGroup]] = {}
        for group in self.together.found:
            for c in {c for _, c in (*group.leaves, *group.inner)}:
                found.setdefault(c, []).append(group)
        return found

    def _depth(self, cls: int) -> int:
        """Depth of a class in the dominator tree."""
        above, count = self.together.groups.uses.above, 0
        while (cls := above.get(cls, -1)) != -1:
            count += 1
        return count

    def _group(
        self, whole: FusionGroup, axis: int, parts: Sequence[tuple[int, int, int]], ends: Sequence[LaterValue]
    ) -> MultiOutputGroup | None:
        together, classes = self.together, dict.fromkeys(c for _, c in whole.leaves)
        shown = [together.shown(cls) or DerivedClass(cls) for *_, cls in parts]
        for (*_, cls), form, end in zip(parts, shown, ends, strict=True):
            used = topological([end.term])
            classes |= dict.fromkeys(together.beside(cls, form))
            classes |= dict.fromkeys(c for t, c in end.leaves.items() if t in used and t is not end.start)
        if len(classes) > MAX_CONSUMER_LEAVES or not classes.keys().isdisjoint(e.cls for e in ends):
            return None
        types = self.view.types
        named = {c: placeholder(f"x{n}", types[c].shape, types[c].dtype) for n, c in enumerate(classes)}
        (computed,) = rebuild([whole.term], partial(_substituted, {t: named[c] for t, c in whole.leaves}))
        terms = []
        for (start, stop, cls), form, end in zip(parts, shown, ends, strict=True):
            part = make("slice", (computed,), {"axis": axis, "start": start, "stop": stop, "step": 1})
            change = {t: named[c] for t, c in end.leaves.items() if t is not end.start and c in named}
            change[end.start] = together.derived_term(part, cls, form, named)
            terms += rebuild([end.term], partial(_substituted, change))
        order = {leaf: c for c, leaf in named.items()}
        leaves = tuple((t, order[t]) for t in topological(terms) if t in order)
        return MultiOutputGroup(tuple(e.cls for e in ends), tuple(terms), leaves, whole.policy)


def _substituted(change: Mapping[Tensor, Tensor], t: Tensor, args: Sequence[Tensor]) -> Tensor | None:
    return change.get(t)


@memo(1 << 14)
def _has_product(term: Tensor) -> bool:
    return any(t.entry.fusion_role == "product" for t in topological([term]))


def _share_iteration_space(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether results of these shapes can share an iteration space: they differ in at most one axis."""
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) <= 1
