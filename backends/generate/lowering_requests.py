"""Makes the requests to lower the fusion groups (terms that one kernel computes) of an e-graph to the kernel IR."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ...egraph.ir.memo import memo
from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from ...extract.fusion.groups import FusionGroups
from ...extract.fusion.multi_output_group import MultiOutputGroup
from ...extract.fusion.policy import FusionGroup
from ...extract.fusion.sequence_slices import sequence_slice_classes
from ...extract.model.kernel import Call, Operand, contiguous, output_names
from .template import layout_key


class LoweringRequest(NamedTuple):
    """Request to lower a fusion group (terms that one generated kernel computes) to the kernel IR.

    `call`: operands and outputs of the group, all row-major. `weights`: names of operands that are weights. `images`:
    names of operands and outputs that are images, whose channels may be innermost.
    """

    group: FusionGroup | MultiOutputGroup
    call: Call
    weights: tuple[str, ...]
    images: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """Key under which the answer to this request is cached: everything that the group's templates (kernels'
        patterns and code) depend on within one optimization."""
        return self.group.terms, layout_key(self.call), self.weights, self.images


def request_of(
    group: FusionGroup | MultiOutputGroup, view: EGraphView, types: Sequence[Type], images: frozenset[int]
) -> LoweringRequest:
    """The request to lower `group`, a fusion group of the e-graph view. `types`: type of each e-class. `images`:
    e-classes that are images."""
    weights = [str(t.attr("name")) for t, c in group.leaves if view.weight[c] and t.type.rank >= 2]
    first, *more = (_operand(types[c]) for c in group.classes)
    reads = {str(t.attr("name")): _operand(types[c]) for t, c in group.leaves}
    seen = [str(t.attr("name")) for t, c in group.leaves if c in images and not view.weight[c]]
    made = [name for name, c in zip(output_names(1), group.classes) if c in images]
    return LoweringRequest(group, Call(reads, first, {}, more=tuple(more)), tuple(weights), (*seen, *made))


def with_slices_given(groups: FusionGroups, types: Sequence[Type]) -> FusionGroups:
    """Fusion groups that read sequence slices (single positions of a sequence) as inputs, so that every step of a
    recurrence has the same kernel; `groups` itself if the e-graph has no such slices. `types`: type of each e-class."""
    places = sequence_slice_classes(groups.view, groups.given, types)
    if not places:
        return groups
    found = FusionGroups(groups.view, groups.given | places, policies=groups.policies)
    found.settled, found.unstarted, found.unread = groups.settled, groups.unstarted, groups.unread
    return found


def reads_of(group: FusionGroup | MultiOutputGroup) -> tuple[int, ...]:
    """The e-classes that a fusion group reads, sorted."""
    return tuple(sorted({c for _, c in group.leaves}))


def equal_values(group: FusionGroup | MultiOutputGroup, types: Sequence[Type]) -> Iterator[int]:
    """Yields the e-classes inside a fusion group whose value equals the group's result except for reshapes, or casts
    between dtypes that are stored alike. A kernel for such a class computes the result too. `types`: type of each
    e-class."""
    if not isinstance(group, FusionGroup):
        return
    inner, (cls,) = dict(group.inner), group.classes
    term = group.term
    while term.op in ("reshape", "cast") and term.args[0] in inner:
        term = term.args[0]
        if types[inner[term]].dtype != types[cls].dtype:
            return
        yield inner[term]


@memo(4096)
def _operand(kind: Type) -> Operand:
    """A row-major operand of a type."""
    return Operand(kind, contiguous(concrete(kind.shape)))


__all__ = ["LoweringRequest", "equal_values", "reads_of", "request_of", "with_slices_given"]
