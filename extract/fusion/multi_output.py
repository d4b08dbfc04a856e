"""Finds fusion groups (terms for one kernel) with several output e-classes: multi-output, or horizontal, fusion.

Six kinds. (1) An intermediate value with other consumers is stored as a further output (a residual stream and its
norm, a GEMM and its activation, a residual stream and the products of its norm). (2) Values of one shape over the same
inputs share their reads (a row's mean and mean of squares, two gates). (3) Slices of one value that are read separately
(queries, keys and values of one GEMM) are stored in separate buffers, where a view of the whole would not be row-major.
(4) Small GEMMs of a few rows over separate inputs, needed for the same value (a query and the keys of another
sequence), share one launch. (5) Attention over keys and values into which a row is written (caches of a decode step)
writes the rows itself (written_rows.py). (6) Small elementwise values of one shape share one launch (small_values.py).

Limits: at most `MAX_OUTPUTS` outputs (of kind 6 `MAX_SMALL_OUTPUTS`), and per class at most `MAX_SIDE_CHOICES` choices
of further outputs, those that save the most bytes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from .groups import FusionGroups
from .growth import MAX_GROUP_LEAVES
from .multi_output_group import MAX_OUTPUTS, MultiOutputGroup, inputs_of, is_model_value, operands, ordered, over
from .policy import FUSION_POLICIES, FusionGroup, with_packed
from .product_operands import is_product_operand
from .small_values import SmallValues
from .written_rows import WrittenRows

MAX_STEPS_FROM_SLICE = 2  # largest number of e-nodes between a slice and its consumer
# largest number of rows, and of bytes read, of each of several GEMMs over separate inputs
MAX_SMALL_GEMM_ROWS, MAX_SMALL_GEMM_BYTES = 32, 8 << 20
MAX_SIDE_CHOICES = 3  # choices of further outputs per class and kind
PRODUCT_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if r.products)
POINTWISE_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if not (r.products or r.rows_above))


class DerivedClass(NamedTuple):
    """An e-class computed from another e-class, and otherwise only from values in memory before any kernel runs, by the
    e-nodes of `path` in order."""

    cls: int
    path: tuple[int, ...] = ()


@dataclass
class MultiOutputFusion:
    """All multi-output fusion groups that derive from the single-output fusion groups `found` of an e-graph."""

    groups: FusionGroups
    found: Sequence[FusionGroup]
    launched: bool = True  # whether kernel launches have a cost
    _shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def view(self) -> EGraphView:
        """The e-graph view whose values are fused."""
        return self.groups.view

    def __iter__(self) -> Iterator[MultiOutputGroup]:
        """Yield every group; each set of outputs over the same leaves once."""
        seen = set()
        small = SmallValues(self.groups, self.found)
        strangers = (*self._separate_input_groups(), *small) if self.launched else ()
        beside = (*self._with_side_outputs(), *self._shared_input_groups(), *strangers, *self._slices())
        for group in (*beside, *WrittenRows(self.groups, self.found)):
            key = frozenset(group.classes), frozenset(c for _, c in group.leaves)
            if key not in seen:
                seen.add(key)
                yield group

    @cached_property
    def _smallest(self) -> dict[int, int]:
        """Class -> fewest bytes read by any of its fusion groups."""
        least: dict[int, int] = {}
        for r in self.found:
            read = sum(self._bytes(c) for _, c in r.leaves)
            least[r.cls] = min(read, least.get(r.cls, read))
        return least

    def _bytes(self, cls: int) -> int:
        return self.view.types[cls].nbytes

    def _shape(self, cls: int) -> tuple[int, ...]:
        if cls not in self._shapes:
            self._shapes[cls] = concrete(self.view.types[cls].shape)
        return self._shapes[cls]

    # ------------------------------------------------------------ intermediate values with other consumers
    def _with_side_outputs(self) -> Iterator[MultiOutputGroup]:
        by_class: dict[int, list[MultiOutputGroup]] = {}
        for r in self.found:
            sides = self._side_outputs(r)
            choices = [(s,) for s in sides] + ([tuple(sides)] if len(sides) == MAX_OUTPUTS - 1 else [])
            for chosen in choices:
                terms, classes = zip(*chosen)
                by_class.setdefault(r.cls, []).append(
                    MultiOutputGroup((r.cls, *classes), (r.term, *terms), r.leaves, r.policy)
                )
        for groups in by_class.values():
            yield from self.least(groups)

    def _side_outputs(self, r: FusionGroup) -> list[tuple[Tensor, int]]:
        """(term, class) of at most `MAX_OUTPUTS - 1` intermediate values of a group that a plan may need elsewhere, by
        falling bytes read to compute them."""
        if r.term.entry.kind == "view":  # the viewed value has groups of its own
            return []
        beside, read_beside = self.groups.uses.beside, self.groups.beside.get(r.cls, ())
        wanted = [
            (t, c) for t, c in r.inner
            if t.op != "cast" and t.entry.kind not in ("view", "layout") and c in self._smallest and not self.groups.stored(c)
            and (c in read_beside or beside(c, r.cls))
            and (self._fits(self._shape(c), self._shape(r.cls)) or is_product_operand(t, r.term))
        ]  # fmt: skip
        return sorted(wanted, key=lambda tc: -self._smallest[tc[1]])[: MAX_OUTPUTS - 1]

    def _fits(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Whether results of shape `a` can be written within an iteration over shape `b`."""
        return prod(a) == prod(b) or (len(a) == len(b) and all(x in (1, y) for x, y in zip(a, b)))

    # ------------------------------------------------------------ values over the same inputs
    def _shared_input_groups(self) -> Iterator[MultiOutputGroup]:
        alike: dict[tuple[object, ...], dict[int, FusionGroup]] = {}
        for r in self.found:
            read = [c for _, c in r.leaves if not self.view.weight[c]]
            largest = max((self._bytes(c) for c in read), default=0)
            if (
                r.cls in self.groups.uses
                and is_model_value(self.view, r.cls)
                and largest
                and r.term.entry.kind != "view"
            ):
                product = r.policy in PRODUCT_POLICIES
                for c in read:
                    if self._bytes(c) == largest:
                        known = alike.setdefault((product, self._shape(r.cls), c), {})
                        if r.cls not in known or len(r.leaves) < len(known[r.cls].leaves):
                            known[r.cls] = r
        seen = set()
        for known in alike.values():
            used = {c for r in known.values() for _, c in (*r.leaves, *r.inner)}
            members = [known[c] for c in sorted(known) if c not in used]  # none that another one reads or computes
            for i in range(0, len(members) - 1, MAX_OUTPUTS):
                joined = members[i : i + MAX_OUTPUTS]
                if (key := frozenset(map(id, joined))) not in seen:
                    seen.add(key)
                    yield from self._joined_groups(joined)

    # ------------------------------------------------------------ small GEMMs over separate inputs
    def _separate_input_groups(self) -> Iterator[MultiOutputGroup]:
        alike: dict[tuple[object, ...], dict[int, FusionGroup]] = {}
        for r in self.found:
            rows, reads = self._shape(r.cls)[:-1], sum(self._bytes(c) for _, c in r.leaves)
            asked = r.cls in self.groups.uses and is_model_value(self.view, r.cls) and r.term.entry.kind != "view"
            if (
                asked
                and r.policy in PRODUCT_POLICIES
                and prod(rows) <= MAX_SMALL_GEMM_ROWS
                and reads <= MAX_SMALL_GEMM_BYTES
            ):
                known = alike.setdefault((self.groups.uses.dominating(r.cls), rows), {})
                if r.cls not in known or operands(self.view, r) < operands(self.view, known[r.cls]):
                    known[r.cls] = r
        for known in alike.values():
            members = [
                known[c] for c in sorted(known) if known.keys().isdisjoint(self.groups.uses.descendants(c) - {c})
            ]
            apart: list[FusionGroup] = []
            for r in members:
                if all(_inputs(r, self.view).isdisjoint(_inputs(a, self.view)) for a in apart):
                    apart.append(r)
            if len(apart) > 1:
                yield from self._joined_groups(apart[:MAX_OUTPUTS])

    def _joined_groups(self, apart: Sequence[FusionGroup]) -> Iterator[MultiOutputGroup]:
        """Groups that join the independent fusion groups `apart`; and each with one intermediate value stored, too."""
        classes = list(dict.fromkeys(c for r in apart for _, c in r.leaves))
        if len(classes) > MAX_GROUP_LEAVES:
            return
        named = inputs_of(self.view, classes)
        terms = [over(r, named) for r in apart]
        group = tuple(r.cls for r in apart)
        yield MultiOutputGroup(group, tuple(terms), ordered(terms, named), apart[0].policy)
        sides = (
            {c: over(r, named, t) for r in apart for t, c in self._side_outputs(r)} if len(apart) < MAX_OUTPUTS else {}
        )
        for side in sorted(sides, key=lambda c: -self._smallest[c])[:1]:
            more = [*terms, sides[side]]
            yield MultiOutputGroup((*group, side), tuple(more), ordered(more, named), apart[0].policy)

    # ------------------------------------------------------------ slices of one value
    def _slices(self) -> Iterator[MultiOutputGroup]:
        alike: dict[tuple[int, ...], list[MultiOutputGroup]] = {}
        for r in self.found:
            if (
                r.policy in POINTWISE_POLICIES or r.term.entry.kind == "view"
            ):  # nothing is saved, or the whole is another class
                continue
            for axis in range(len(self._shape(r.cls))):
                if prod(self._shape(r.cls)[:axis]) == 1:  # slices along such an axis are row-major anyway
                    continue
                parts = self.slices(r.cls, axis)
                if 2 <= len(parts) <= MAX_OUTPUTS and all(c in self.groups.uses for *_, c in parts):
                    attrs = [{"axis": axis, "start": start, "stop": stop, "step": 1} for start, stop, _ in parts]
                    terms = tuple(make("slice", (r.term,), a) for a in attrs)
                    classes = tuple(c for *_, c in parts)
                    alike.setdefault(classes, []).append(MultiOutputGroup(classes, terms, r.leaves, r.policy))
        for groups in alike.values():
            yield from self.least(groups)

    def least(self, groups: list[MultiOutputGroup]) -> list[MultiOutputGroup]:
        """The `MAX_SIDE_CHOICES` groups of `groups` that read the fewest bytes, and the one with the cheapest operands.

        The latter is kept because the operands of the former may need a further kernel, for a norm or a statistic.
        """
        kept = sorted(groups, key=lambda g: sum(self._bytes(c) for _, c in g.leaves))
        given, cost = self.groups.given, self.groups.costs
        least = min(kept, key=lambda g: sum(cost[c] for _, c in g.leaves if c not in given), default=None)
        return [g for n, g in enumerate(kept) if n < MAX_SIDE_CHOICES or g is least]

    def slices(self, cls: int, axis: int) -> list[tuple[int, int, int]]:
        """Disjoint slices of an e-class along an axis that the model uses, as (start, stop, e-class of the slice)."""
        return _apart(self._slices_of(cls, axis))

    @cached_property
    def _slice_nodes(self) -> dict[int, list[tuple[int, int, int]]]:
        """Class -> (axis, start, class) of its slices of step 1."""
        view = self.view
        found: dict[int, list[tuple[int, int, int]]] = {}
        for node, op in enumerate(view.op):
            if op == "slice" and (a := dict(view.attrs[node]))["step"] == 1:
                (source,) = view.children(node).tolist()
                found.setdefault(source, []).append((a["axis"], a["start"], int(view.cls[node])))
        return found

    def _slices_of(self, cls: int, axis: int) -> list[tuple[int, int, int]]:
        """(start, stop, class) of all needed slices of a class along an axis, slices of slices included."""
        found: dict[int, tuple[int, int, int]] = {}
        todo = [(cls, 0)]
        while todo:
            source, offset = todo.pop()
            for along, start, made in self._slice_nodes.get(source, ()):
                if along == axis and made not in found and made != cls:
                    found[made] = offset + start, offset + start + self._shape(made)[axis], made
                    todo.append((made, offset + start))
        return sorted(s for s in found.values() if is_model_value(self.view, s[2]) and self.shown(s[2]) is not None)

    def shown(self, cls: int) -> DerivedClass | None:
        """How the nearest e-class that the model uses follows from `cls`: the first used one among `cls`, its views and
        its sum with a bias.

        None if there is none within MAX_STEPS_FROM_SLICE e-nodes.
        """
        todo = [DerivedClass(cls)]
        for found in todo:
            if found.cls in self.groups.uses:
                return found
            if len(found.path) < MAX_STEPS_FROM_SLICE:
                todo += [DerivedClass(int(self.view.cls[n]), (*found.path, n)) for n in self._steps.get(found.cls, ())]
        return None

    def derived_term(self, t: Tensor, cls: int, shown: DerivedClass, leaves: Mapping[int, Tensor]) -> Tensor:
        """Term of the e-class that the derivation `shown` leads to.

        `cls` and `t`: the e-class where it begins and the tensor of that e-class; `leaves`: tensors of the other
        e-classes that its steps read.
        """
        for node in shown.path:
            args = [t if k == cls else leaves[k] for k in self.view.children(node).tolist()]
            t, cls = make(self.view.op[node], args, dict(self.view.attrs[node])), int(self.view.cls[node])
        return t

    def beside(self, cls: int, shown: DerivedClass) -> list[int]:
        """E-classes that the derivation `shown` reads besides `cls`, where it begins; all are in memory before any
        kernel runs."""
        made = {cls, *(int(self.view.cls[n]) for n in shown.path)}
        return [k for n in shown.path for k in self.view.children(n).tolist() if k not in made]

    @cached_property
    def _steps(self) -> dict[int, list[int]]:
        """Class -> e-nodes that reshape or permute it, or combine it elementwise with given classes only."""
        found: dict[int, list[int]] = {}
        for node, op in enumerate(self.view.op):
            if op in ("reshape", "permute") or OPS[op].pointwise:
                children = set(self.view.children(node).tolist())
                for k in {k for k in children if children - {k} <= self.groups.given and k not in self.groups.given}:
                    found.setdefault(k, []).append(node)
        return found


def _inputs(r: FusionGroup, view: EGraphView) -> set[int]:
    return {c for _, c in r.leaves if not view.weight[c]}


def _apart(slices: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(start, stop, class) of the slices without those that begin before an earlier one ends. `slices`: in order of
    their starts, the shortest of each start first."""
    kept: list[tuple[int, int, int]] = []
    for start, stop, cls in slices:
        if not kept or start >= kept[-1][1]:
            kept.append((start, stop, cls))
    return kept
