"""Describes the accesses of a Pallas kernel to its buffers as boxes (one slice per dimension), and chooses the axis
that the grid divides into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..ir.index import Axis, Index, unravelled
from ..ir.kernel import Buffer, Kernel
from ..ir.unfusable import Unfusable


@dataclass(frozen=True)
class DimensionSlice:
    """Indices that an access uses along one dimension of a buffer: `start`, `start + step`, …, one for each index of
    `axis`; only `start` if `axis` is None."""

    axis: Axis | None
    start: int = 0
    step: int = 1

    def text(self, size: int) -> str:
        """Python text of the slice, such as "2:5", of a dimension of `size` elements."""
        count = self.axis.size if self.axis else 1
        if self.start == 0 and self.step == 1 and count == size:
            return ":"
        step = f":{self.step}" if self.step > 1 else ""
        return f"{self.start}:{self.start + self.step * (count - 1) + 1}{step}"


def parts_of(at: Index, buffer: Buffer) -> tuple[DimensionSlice, ...] | None:
    """The part of a row-major buffer that an access at the flat index `at` reads or writes over all iterations, as one
    `DimensionSlice` per dimension.

    None if the accessed elements do not form a box of the buffer.
    """
    found = []
    for place, size in zip(unravelled(at, buffer.shape), buffer.shape, strict=True):
        low, high = place.range
        if low < 0 or high >= size or len(place.terms) > 1:
            return None
        ((atom, step),) = place.terms or ((None, 1),)
        if step < 1 or (atom is not None and not isinstance(atom, Axis)):
            return None
        found.append(DimensionSlice(atom, place.const, step))
    axes = [p.axis for p in found if p.axis is not None]
    low, high = at.range
    inside = low >= 0 and high < prod(buffer.shape)
    return tuple(found) if inside and len(set(axes)) == len(axes) else None


def blocked_dimension(parts: Sequence[DimensionSlice] | None, buffer: Buffer, axis: Axis) -> int | None:
    """Index of the dimension of `buffer` along which an access reads or writes the whole buffer, with element i at
    index i of `axis`; None if there is none. `parts`: start, step and axis of the access in each dimension
    (`parts_of`); None, which gives None, if the access is not a slice along each dimension."""
    for d, part in enumerate(parts or ()):
        if part.axis == axis and part.start == 0 and part.step == 1 and buffer.shape[d] == axis.size:
            return d
    return None


def blocked_axis(kernel: Kernel) -> Axis | None:
    """The outermost parallel axis of `kernel`, if the grid can divide the kernel into blocks along it; else None.

    Every store must write along the axis over one whole dimension of its buffer, and no reduction may bind the axis.
    """
    axis = next((a for a in kernel.axes if a.size > 1), None)
    if axis is None or any(e.axis == axis for e in kernel.reductions):
        return None
    for store in kernel.stores:
        buffer = kernel.buffers[store.buffer]
        if store.guards or store.parts or blocked_dimension(parts_of(store.at, buffer), buffer, axis) is None:
            return None
    return axis


def row_major(buffer: Buffer) -> bool:
    """Whether a buffer is row-major without gaps (strides of axes of size 1 are ignored)."""
    step = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def buffer_shape(buffer: Buffer) -> tuple[int, ...]:
    """The shape under which Pallas sees a buffer, which has at least one dimension: (1,) for a scalar."""
    return tuple(buffer.shape) or (1,)


def last_index(buffer: Buffer, step: int) -> int:
    """Last valid index along the axis of a buffer whose stride is `step` elements; an index read from memory is limited
    to it.

    Raises Unfusable if several axes have this stride.
    """
    sizes = [d for d, s in zip(buffer.shape, buffer.strides) if s == step and d > 1]
    if len(sizes) > 1 or not step:
        raise Unfusable("a data-dependent index into one of several axes with equal strides")
    return sizes[0] - 1 if sizes else 0
