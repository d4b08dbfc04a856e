"""Fuses several results into one kernel, which computes them side by side along an axis (horizontal fusion).

The results must agree in all other axes, and none may have size 1 along that axis, since it would be constant over the
other results' elements. Results computed from disjoint slices of one tensor (queries, keys and values of one product)
also qualify if they have one element along an axis, or equal sizes; equal results are placed side by side along the
axis with the largest stride in a slice (the heads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types.dims import concrete
from ..ir.expr import Builder
from ..ir.index import Axis, Index, index
from ..ir.kernel import Buffer
from ..ir.unfusable import if_fusable
from .op_rules import TermLowering


class InterleavedOutputs(NamedTuple):
    """How a kernel's results are arranged side by side along `axis`, so that they are computed together.

    If the results are computed from slices of one tensor, `whole` is the tensor and `columns` its sliced axis; else
    None and -1.
    """

    axis: int
    whole: Tensor | None = None
    columns: int = -1

    def moved(self, space: Tensor, by: Index) -> dict[Tensor, Index]:
        """Offsets to add to the slices of `whole` that `space`, one of the results, reads: slice -> offset. Empty
        unless the result has size 1 along the axis.

        `by`: index along the axis relative to the result's own position. With the offsets added, `space` at another
        result's index reads the slice of that result, so that both share the load.
        """
        slices = [t for t in topological([space]) if t.op == "slice"]
        own = [t for t in slices if t.args[0] is self.whole and t.attr("axis") == self.columns]
        width = max((t.attr("stop") for t in own), default=0) - min((t.attr("start") for t in own), default=0)
        return dict.fromkeys(own, by * width) if concrete(space.shape)[self.axis] == 1 else {}


def side_by_side(
    spaces: Sequence[Tensor], operands: Mapping[Tensor, str], buffers: Mapping[str, Buffer]
) -> InterleavedOutputs | None:
    """How a kernel's results are arranged side by side along a common axis; None if they cannot be.

    `spaces`: the tensor that is computed for each result (the updates, if the result is a scatter). `operands`: buffer
    name of each operand, `buffers`: its layout.
    """
    shapes = [concrete(x.shape) for x in spaces]
    if len(shapes) < 2 or len({len(s) for s in shapes}) > 1:
        return None
    found = [a for a, sizes in enumerate(zip(*shapes)) if len({*sizes}) > 1]
    if len(found) > 1:
        return None
    if found and all(s[found[0]] > 1 for s in shapes):
        return InterleavedOutputs(found[0])
    whole = _of_slices(spaces)
    if whole is None:
        return None
    axis = found[0] if found else _slowest(spaces[0], *whole, operands, buffers)
    return None if axis is None else InterleavedOutputs(axis, *whole)


def _of_slices(roots: Sequence[Tensor]) -> tuple[Tensor, int] | None:
    """(tensor, axis) of which every root reads slices that do not overlap the slices of other roots; else None."""
    found: list[dict[tuple[Tensor, int], tuple[int, int]]] = []
    for root in roots:
        ends: dict[tuple[Tensor, int], tuple[int, int]] = {}
        for t in topological([root]):
            if t.op == "slice" and t.attr("step") == 1:
                key, start, stop = (t.args[0], t.attr("axis")), t.attr("start"), t.attr("stop")
                low, high = ends.get(key, (start, stop))
                ends[key] = min(low, start), max(high, stop)
        found.append(ends)
    for key in found[0]:
        ranges = sorted(e[key] for e in found if key in e)
        if len(ranges) == len(roots) and all(a[1] <= b[0] for a, b in pairwise(ranges)):
            return key
    return None


def _slowest(
    space: Tensor, whole: Tensor, axis: int, operands: Mapping[Tensor, str], buffers: Mapping[str, Buffer]
) -> int | None:
    """The axis of the result `space` with the largest stride along axis `axis` of the tensor `whole` that it reads.

    If that stride is 1, an axis of size 1 before it is chosen, so that rows stay contiguous. None if there is none.
    """
    at = [Axis(f"i{n}", d) for n, d in enumerate(concrete(space.shape))]
    strides = tuple(int(n == axis) for n in range(whole.rank))
    view = Buffer(whole.dtype, concrete(whole.shape), strides)
    reader = TermLowering(Builder(), {**operands, whole: WHOLE}, {**buffers, WHOLE: view})
    if if_fusable(reader.value, space, tuple(index(a) if a.size > 1 else index(0) for a in at)) is None:
        return None
    steps = {
        (abs(step) * atom.size, abs(step), at.index(atom))
        for known in reader.memo.values() for e in known.values() if e.op == "load" and e.value[0] == WHOLE
        for atom, step in e.value[1].terms if atom in at
    }  # fmt: skip
    if not steps:
        return None
    _, step, found = max(steps)
    ones = [n for n in range(found) if at[n].size == 1]
    return ones[-1] if step == 1 and ones else found


WHOLE = "*whole"  # buffer name of the sliced tensor; no operand has this name
