"""Describes which operand element each element of a view reads, as data (index maps).

A map is built from an op's attributes and operand shapes, whose sizes may be integers, dimension expressions or solver
terms. Lowering, fusion, proofs, loop rules and memory layouts evaluate it on their own kinds of indices. Ops whose
reads depend on data (gather, scatter) have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Attrs = Mapping[str, Any]


class AxisIndex(NamedTuple):
    """Index along one operand axis.

    `offset` plus the sum of factor * (result index) over `terms`, pairs (result axis, factor).
    """

    terms: tuple[tuple[int, Any], ...]
    offset: Any = 0

    def at(self, index: Sequence[Any]) -> Any:
        """Index along the operand axis that the result element at `index` reads.

        Entries of `index` may be of any type that can be multiplied by and added to sizes.
        """
        found: Any = None
        for axis, factor in self.terms:
            term = index[axis] if _is(factor, 1) else index[axis] * factor
            found = term if found is None else found + term
        return found if _is(self.offset, 0) else found + self.offset


class AffineMap(NamedTuple):
    """Says that the result reads operand 0 at an affine index: `axes` has one `AxisIndex` per operand axis."""

    axes: tuple[AxisIndex, ...]


class BroadcastMap:
    """Index map of a broadcast: a result element reads operand 0 at its own index, but at 0 along operand axes of size
    1."""


class ReshapeMap:
    """Index map of a reshape: a result element reads operand 0 at the same position in row-major order."""


class ConcatMap(NamedTuple):
    """Index map of a concatenation or padding along `axis`.

    Result indices start <= i < stop of a part (operand, start, stop) read that operand at i - start; all others have
    the value `fill`. Parts are in ascending order; if `fill` is None, they cover the whole axis.
    """

    axis: int
    parts: tuple[tuple[int, Any, Any], ...]
    fill: Any = None


IndexMap = AffineMap | BroadcastMap | ReshapeMap | ConcatMap
#: Function of (attributes, operand shapes) to an op's index map.
MapOf = Callable[[Attrs, Sequence[Sequence[Any]]], IndexMap]


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number


def _along_axis(rank: int, axis: int, along: AxisIndex) -> AffineMap:
    """The identity except along one axis."""
    return AffineMap(tuple(along if a == axis else AxisIndex(((a, 1),)) for a in range(rank)))


def permute(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a transpose: axis i of the result is axis perm[i] of the operand."""
    back = {p: i for i, p in enumerate(attrs["perm"])}
    return AffineMap(tuple(AxisIndex(((back[a], 1),)) for a in range(len(back))))


def slice_(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a slice: result index i reads operand index start + step * i along the axis."""
    return _along_axis(len(shapes[0]), attrs["axis"], AxisIndex(((attrs["axis"], attrs["step"]),), attrs["start"]))


def flip(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a reversed axis: result index i reads operand index size - 1 - i."""
    axis = attrs["axis"]
    return _along_axis(len(shapes[0]), axis, AxisIndex(((axis, -1),), shapes[0][axis] - 1))


def windows(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of sliding windows.

    Position i, element j (index along the new last axis) reads stride * i + dilation * j.
    """
    rank, axis = len(shapes[0]), attrs["axis"]
    return _along_axis(rank, axis, AxisIndex(((axis, attrs["stride"]), (rank, attrs["dilation"]))))


def broadcast_to(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a broadcast: axes of size 1 are repeated."""
    return BroadcastMap()


def reshape(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a reshape: the result has the operand's elements in the same row-major order."""
    return ReshapeMap()


def concat(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of a concatenation of two operands along an axis."""
    axis = attrs["axis"]
    first, second = (shape[axis] for shape in shapes)
    return ConcatMap(axis, ((0, 0, first), (1, first, first + second)))


def pad(attrs: Attrs, shapes: Sequence[Sequence[Any]]) -> IndexMap:
    """Index map of padding: the operand begins at index `lo` of the result; elements outside are `value`."""
    axis, lo = attrs["axis"], attrs["lo"]
    return ConcatMap(axis, ((0, lo, lo + shapes[0][axis]),), attrs["value"])


__all__ = [
    "AffineMap",
    "AxisIndex",
    "BroadcastMap",
    "ConcatMap",
    "IndexMap",
    "MapOf",
    "ReshapeMap",
    "broadcast_to",
    "concat",
    "flip",
    "pad",
    "permute",
    "reshape",
    "slice_",
    "windows",
]  # fmt: skip
