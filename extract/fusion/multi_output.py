"""Finds fusion groups (terms for one kernel) with several output e-classes: multi-output, or horizontal, fusion.

Six kinds. (1) An intermediate value with other consumers is stored as a further output (a residual stream and its
norm, a GEMM and its activation, a residual stream and the products of its norm). (2) Values of one shape over the same
inputs share their reads (a row's mean and mean of squares, two gates). (3) Slices of one value that are read separately
(queries, keys and values of one GEMM) are stored in separate buffers, where a view of the whole would not be row-major.
(4) Small GEMMs of a few rows over separate inputs, needed for the same value (a query and the keys of another
sequence), share one launch. (5) Attention over keys and values into which a row is written (caches of a decode step)
writes the rows itself. It reads queries, keys and values as such, whichever product they are slices of. If groups read
whole products instead, a plan might need two products with columns in common and compute these twice.
(6) Small elementwise results of one shape that nothing else reads (running statistics, counters of batch norms) and
casts of values that are in memory before any kernel runs (weights under autocast) share one launch.

Limits: at most `MAX_OUTPUTS` outputs (of kind 6 `MAX_SMALL_OUTPUTS`), and per class at most `MAX_SIDE_CHOICES` choices
of further outputs, those that save the most bytes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import NamedTuple

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, make, rebuild, topological
from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from .groups import FusionGroups
from .growth import MAX_GROUP_LEAVES
from .policy import FUSION_POLICIES, FusionGroup, with_packed
from .product_operands import is_product_operand

MAX_OUTPUTS = 3  # outputs of a kernel
MAX_STEPS_FROM_SLICE = 2  # largest number of e-nodes between a slice and its consumer
MAX_SMALL_GEMM_ROWS, MAX_SMALL_GEMM_BYTES = (
    32,
    8 << 20,
)  # largest number of rows, and of bytes read, of each of several GEMMs over separate inputs
# outputs and operands of a kernel of small elementwise values, largest number of elements of each of them
MAX_SMALL_OUTPUTS, MAX_SMALL_LEAVES, MAX_SMALL_ELEMENTS = 8, 24, 1 << 18
# operands of attention that writes rows (those of the queries and of both rows), and such groups of a class
MAX_WRITING_LEAVES, MAX_WRITING_CHOICES = 16, 6
MAX_SIDE_CHOICES = 3  # choices of further outputs per class and kind
ATTENTION_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if r.products == 2 and not r.layers)
ROW_POLICIES = frozenset(r.name for r in FUSION_POLICIES if not r.products)
PRODUCT_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if r.products)
POINTWISE_POLICIES = frozenset(r.name for r in with_packed(FUSION_POLICIES) if not (r.products or r.rows_above))


@dataclass(frozen=True)
class MultiOutputGroup:
    """A multi-output fusion group: output e-classes `classes` with their `terms`, over shared `leaves` as (input of the
    terms, e-class) pairs.

    `policy` is the name of the fusion policy of the first output's group.
    """

    classes: tuple[int, ...]
    terms: tuple[Tensor, ...]
    leaves: tuple[tuple[Tensor, int], ...]
    policy: str


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
        strangers = (*self._separate_input_groups(), *self._small_values()) if self.launched else ()
        beside = (*self._with_side_outputs(), *self._shared_input_groups(), *strangers, *self._slices())
        for group in (*beside, *self._with_written_rows()):
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

    def _is_model_value(self, cls: int) -> bool:
        """Whether a class is a value of the original model or a root."""
        return bool(self.view.original_classes[cls]) or cls in self.view.roots

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
            if r.cls in self.groups.uses and self._is_model_value(r.cls) and largest and r.term.entry.kind != "view":
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
            asked = r.cls in self.groups.uses and self._is_model_value(r.cls) and r.term.entry.kind != "view"
            if (
                asked
                and r.policy in PRODUCT_POLICIES
                and prod(rows) <= MAX_SMALL_GEMM_ROWS
                and reads <= MAX_SMALL_GEMM_BYTES
            ):
                known = alike.setdefault((self._dominating_consumer(r.cls), rows), {})
                if r.cls not in known or self._reading(r) < self._reading(known[r.cls]):
                    known[r.cls] = r
        for known in alike.values():
            members = [known[c] for c in sorted(known) if known.keys().isdisjoint(self._descendants(c) - {c})]
            apart: list[FusionGroup] = []
            for r in members:
                if all(_inputs(r, self.view).isdisjoint(_inputs(a, self.view)) for a in apart):
                    apart.append(r)
            if len(apart) > 1:
                yield from self._joined_groups(apart[:MAX_OUTPUTS])

    # ------------------------------------------------------------ small elementwise values over separate inputs
    def _small_values(self) -> Iterator[MultiOutputGroup]:
        alike: dict[tuple[int, ...], dict[int, FusionGroup]] = {}
        for r in self.found:
            asked = r.cls in self.groups.uses and self._is_model_value(r.cls) and r.term.entry.kind != "view"
            given = all(c in self.groups.given for _, c in r.leaves)
            free = self.groups.uses.readers.get(r.cls) == {-1} or (r.term.op == "cast" and given)
            if asked and free and prod(self._shape(r.cls)) <= MAX_SMALL_ELEMENTS and _elementwise(r.term):
                known = alike.setdefault(self._shape(r.cls), {})
                if r.cls not in known or self._reading(r) < self._reading(known[r.cls]):
                    known[r.cls] = r
        for known in alike.values():
            joined: list[FusionGroup] = []
            for c in sorted(known):
                leaves = {c for r in (*joined, known[c]) for _, c in r.leaves}
                if len(joined) == MAX_SMALL_OUTPUTS or len(leaves) > MAX_SMALL_LEAVES:
                    yield from self._of_small(joined)
                    joined = []
                if known.keys().isdisjoint(self._descendants(c) - {c}):
                    joined.append(known[c])
            yield from self._of_small(joined)

    def _of_small(self, joined: Sequence[FusionGroup]) -> Iterator[MultiOutputGroup]:
        if len(joined) > 1:
            types = self.view.types
            read = dict.fromkeys(c for r in joined for _, c in r.leaves)
            named = {c: placeholder(f"x{n}", types[c].shape, types[c].dtype) for n, c in enumerate(read)}
            terms = tuple(_over(r, named) for r in joined)
            yield MultiOutputGroup(tuple(r.cls for r in joined), terms, _ordered(terms, named), joined[0].policy)

    def _reading(self, r: FusionGroup) -> tuple[int, int]:
        return sum(self._bytes(c) for _, c in r.leaves), len(r.leaves)

    def _dominating_consumer(self, cls: int) -> int:
        """The nearest dominator of a class that is not a view; -1: the class is needed for several results."""
        uses = self.groups.uses
        above = uses.above[cls]
        while above != -1 and OPS[self.view.op[uses.choice[above]]].kind == "view":
            above = uses.above[above]
        return above

    def _descendants(self, cls: int) -> set[int]:
        """Descendants of a class over the cheapest e-nodes, the class included."""
        uses, todo, found = self.groups.uses, [cls], {cls}
        while todo:
            fresh = set(uses.kids(todo.pop())) - found
            found |= fresh
            todo += fresh
        return found

    def _joined_groups(self, apart: Sequence[FusionGroup]) -> Iterator[MultiOutputGroup]:
        """Groups that join the independent fusion groups `apart`; and each with one intermediate value stored, too."""
        classes = list(dict.fromkeys(c for r in apart for _, c in r.leaves))
        if len(classes) > MAX_GROUP_LEAVES:
            return
        types = self.view.types
        named = {c: placeholder(f"x{n}", types[c].shape, types[c].dtype) for n, c in enumerate(classes)}

        def over(r: FusionGroup, term: Tensor) -> Tensor:
            change = {leaf: named[c] for leaf, c in r.leaves}
            return rebuild([term], lambda t, args: change.get(t))[0]

        terms = [over(r, r.term) for r in apart]
        group = tuple(r.cls for r in apart)
        yield MultiOutputGroup(group, tuple(terms), _ordered(terms, named), apart[0].policy)
        sides = {c: over(r, t) for r in apart for t, c in self._side_outputs(r)} if len(apart) < MAX_OUTPUTS else {}
        for side in sorted(sides, key=lambda c: -self._smallest[c])[:1]:
            more = [*terms, sides[side]]
            yield MultiOutputGroup((*group, side), tuple(more), _ordered(more, named), apart[0].policy)

    # ------------------------------------------------------------ rows written into operands
    def _with_written_rows(self) -> Iterator[MultiOutputGroup]:
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
                if self._is_model_value(classes[t]):
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
        classes = list(dict.fromkeys(c for one in (r, *writers) for _, c in one.leaves if c not in made))
        types = self.view.types
        named = {c: placeholder(f"x{n}", types[c].shape, types[c].dtype) for n, c in enumerate(classes)}
        known = dict(named)
        for w in writers:
            known[w.cls] = _over(w, known)
        terms = (_over(r, known), *(known[w.cls] for w in writers))
        return MultiOutputGroup((r.cls, *(w.cls for w in writers)), terms, _ordered(terms, named), r.policy)

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
                (source,) = view.kids(node).tolist()
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
        return sorted(s for s in found.values() if self._is_model_value(s[2]) and self.shown(s[2]) is not None)

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
            args = [t if k == cls else leaves[k] for k in self.view.kids(node).tolist()]
            t, cls = make(self.view.op[node], args, dict(self.view.attrs[node])), int(self.view.cls[node])
        return t

    def beside(self, cls: int, shown: DerivedClass) -> list[int]:
        """E-classes that the derivation `shown` reads besides `cls`, where it begins; all are in memory before any
        kernel runs."""
        made = {cls, *(int(self.view.cls[n]) for n in shown.path)}
        return [k for n in shown.path for k in self.view.kids(n).tolist() if k not in made]

    @cached_property
    def _steps(self) -> dict[int, list[int]]:
        """Class -> e-nodes that reshape or permute it, or combine it elementwise with given classes only."""
        found: dict[int, list[int]] = {}
        for node, op in enumerate(self.view.op):
            if op in ("reshape", "permute") or OPS[op].pointwise:
                kids = set(self.view.kids(node).tolist())
                for k in {k for k in kids if kids - {k} <= self.groups.given and k not in self.groups.given}:
                    found.setdefault(k, []).append(node)
        return found


def _elementwise(term: Tensor) -> bool:
    """Whether a term consists of elementwise ops and views."""
    return all(not t.args or t.entry.pointwise or t.entry.kind == "view" for t in topological([term]))


def _writes_row(term: Tensor) -> bool:
    """Whether a term writes one row into an operand: its place and the row may be computed."""
    if term.entry.fusion_role != "written" or term.args[0].op != "input" or term.attr("mode") != "set":
        return False
    axis, whole, row = term.attr("axis"), concrete(term.shape), concrete(term.args[2].shape)
    return row == (*whole[:axis], 1, *whole[axis + 1 :])


def _attends(r: FusionGroup) -> bool:
    """Whether a group has a product around another one, or the two as one operation."""
    return r.policy in ATTENTION_POLICIES or any(t.entry.law == "attention" for t in topological([r.term]))


def _over(r: FusionGroup, known: Mapping[int, Tensor]) -> Tensor:
    """The term of a group over other tensors of its leaf classes."""
    change = {leaf: known[c] for leaf, c in r.leaves}
    return rebuild([r.term], lambda t, args: change.get(t))[0]


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


def _ordered(terms: Sequence[Tensor], named: dict[int, Tensor]) -> tuple[tuple[Tensor, int], ...]:
    """(leaf, class) pairs in order of first use."""
    classes = {leaf: c for c, leaf in named.items()}
    return tuple((t, classes[t]) for t in topological(terms) if t in classes)
