"""Computes strips: a slice of a value along one axis, from slices of its operands along their axes.

Where each output element depends on a single index of the axis (pointwise ops, reductions over other axes, rows of a
matmul), part of an output can be computed without the rest. Used to compute reference values of outputs larger than
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.tensor import Tensor, make
from ..types.dims import concrete
from .interpret import expand_all

Axis = int | None  # None: the whole operand is needed
_ALONG = ("slice", "concat", "pad")  # ops that act along their attribute `axis` and leave other axes alone


@dataclass(frozen=True)
class Strip:
    """A slice (strip) of a graph's root as an expression `term` over slices of leaves.

    `reads`: name of the input that stands for each sliced leaf -> (leaf, axis along which it is sliced).
    """

    term: Tensor
    reads: Mapping[str, tuple[Tensor, int]]


@dataclass(frozen=True)
class StripAxes:
    """For each value that a strip of `root` along `axis` depends on, the axis along which that value is sliced.

    Built by `axes_of`.
    """

    root: Tensor
    axis: int
    order: tuple[tuple[Tensor, int], ...]  # (value, sliced axis), operands before users

    @property
    def size(self) -> int:
        """Length of the root's sliced axis."""
        return int(concrete(self.root.shape)[self.axis])

    def strip(self, count: int) -> Strip:
        """Expression of a strip of the root: `count` consecutive indices along its sliced axis. The expression is the
        same for every start index: inputs stand for the slices of leaves (`Strip.reads`)."""
        reads: dict[str, tuple[Tensor, int]] = {}
        made: dict[tuple[int, int], Tensor] = {}
        for node, axis in self.order:
            shape = list(concrete(node.shape))
            shape[axis] = count
            if node.is_leaf:
                name = f"strip {len(reads)}"
                reads[name] = node, axis
                made[id(node), axis] = make("input", (), {"name": name, "shape": tuple(shape), "dtype": node.dtype})
                continue
            below = operand_axes(node, axis)
            assert below is not None
            args = [a if k is None else made[id(a), k] for a, k in zip(node.args, below, strict=True)]
            attrs = dict(node.attrs)
            if "shape" in attrs:
                attrs["shape"] = tuple(shape)
            made[id(node), axis] = make(node.op, args, attrs)
        return Strip(made[id(self.root), self.axis], reads)


def axes_of(root: Tensor) -> StripAxes | None:
    """The axis along which a root can be computed in slices, the longest such axis, with the axes along which its
    operands are sliced; None if there is none.

    Composite ops are expanded with means in float32, as in a reference of the whole output.
    """
    return next(axes_of_expanded(expand_all([root], wide_means=True)[0]), None)


def axes_of_expanded(root: Tensor) -> Iterator[StripAxes]:
    """Yields the ways to compute a root without composite ops in slices, along its longest axis first (`axes_of`)."""
    shape = concrete(root.shape)
    for axis in sorted(range(len(shape)), key=lambda k: (-shape[k], k)):
        if shape[axis] > 1 and (order := _cut(root, axis)) is not None:
            yield StripAxes(root, axis, order)


def _cut(root: Tensor, axis: int) -> tuple[tuple[Tensor, int], ...] | None:
    """All (value, axis) pairs that must be sliced, operands first; None if an op mixes indices of the axis."""
    order: list[tuple[Tensor, int]] = []
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Tensor, int, bool]] = [(root, axis, False)]
    while stack:
        node, cut, ready = stack.pop()
        if ready:
            order.append((node, cut))
            continue
        if (id(node), cut) in seen:
            continue
        seen.add((id(node), cut))
        below = () if node.is_leaf else operand_axes(node, cut)
        if below is None:
            return None
        stack.append((node, cut, True))
        stack += [(a, k, False) for a, k in zip(node.args, below) if k is not None]
    return tuple(order)


def operand_axes(node: Tensor, axis: int) -> list[Axis] | None:
    """Per operand, the axis to slice it along for a slice of `node` along `axis` (None: whole operand).

    Returns None if some operand is needed at other indices of that axis too.
    """
    shapes = [concrete(a.shape) for a in node.args]
    shape, attrs = concrete(node.shape), dict(node.attrs)
    if node.entry.pointwise or node.op == "broadcast_to":
        return [axis if s[axis] == shape[axis] else None for s in shapes]
    if node.op == "full" or (node.op == "iota" and attrs["axis"] != axis):
        return []
    if node.entry.kind == "reduction":
        return [axis] if "axes" in attrs and axis not in attrs["axes"] else None
    if node.op == "matmul":
        return _of_product(axis, len(shape), shapes)
    if node.op == "permute":
        return [attrs["perm"][axis]]
    if node.op == "reshape":
        return _of_reshape(axis, shape, shapes[0])
    if node.op in _ALONG and attrs.get("axis", axis) != axis:
        return [axis] * len(shapes)
    return None


def _of_product(axis: int, rank: int, shapes: Iterable[tuple[int, ...]]) -> list[Axis]:
    """Operand axes for a[..., M, K] @ b[..., K, N] or a @ b[K, N]."""
    _, b = shapes
    if axis == rank - 1:
        return [None, len(b) - 1]
    return [axis, axis if axis < rank - 2 and len(b) == rank else None]


def _of_reshape(axis: int, shape: tuple[int, ...], before: tuple[int, ...]) -> list[Axis] | None:
    """The operand axis that equals this result axis: same length and the same number of elements before it. None if
    there is no such axis."""
    for place, size in enumerate(before):
        if size == shape[axis] and math.prod(before[:place]) == math.prod(shape[:axis]):
            return [place]
    return None


def interval_view(array: Any, axis: int, start: int, stop: int) -> Any:
    """View of a NumPy array or Torch tensor at indices [start, stop) along an axis."""
    return array[(slice(None),) * axis + (slice(start, stop),)]


__all__ = ["Strip", "StripAxes", "axes_of", "axes_of_expanded", "interval_view", "operand_axes"]
