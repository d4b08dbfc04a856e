"""Derives the TMA boxes (the tiles that one copy loads) of a convolution's operands from the index expressions of its
loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr
from ...ir.index import Axis, Division, Index, atom_range, index
from ...ir.tensor_maps import describable
from ...ir.unfusable import Unfusable
from ..emit.spelling import ITEMSIZE
from .spelling import shared_layout


@dataclass(frozen=True)
class Patch:
    """TMA box (the tile that one copy loads) of an operand: sizes and strides of its tensor map in elements, outermost
    axis first, shape of the box (`block`), and Gluon expressions of the box's origin."""

    operand: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    origin: tuple[str, ...]

    @property
    def layout(self) -> str:
        """Gluon expression of the tile's shared-memory layout."""
        return shared_layout(self.block[-1], len(self.block))

    @property
    def nbytes(self) -> int:
        """Bytes of a tile of this box, whose elements have 16 bits."""
        return 2 * math.prod(self.block)


def patch_of(load: Expr, spans: Mapping[Axis, int]) -> Patch:
    """The TMA box that `load` reads for one tile.

    Along each axis the tile has `spans[axis]` elements and begins at a multiple of that number. Raises Unfusable if the
    tile is not a TMA box with axes in this order, or if a guard of the load is not a bounds check of an image
    coordinate.
    """
    operand, at, steps, dtype = load.value
    if steps or dtype not in HALVES:
        raise Unfusable("a load with data-dependent indices, or of a dtype that is not 16-bit")
    parts: list[tuple[int, int, Index]] = []  # (stride, size, coordinate)
    rest = at
    for coordinate, size in bounded_sizes(load.args).items():
        atom, c = coordinate.terms[0]
        stride, odd = divmod(dict(at.terms).get(atom, 0), c)
        rest = rest - coordinate * stride
        if odd or stride < 1 or {a for a, _ in coordinate.terms} & {a for a, _ in rest.terms}:
            raise Unfusable("a coordinate that is not along one axis of the image")
        parts.append((stride, size, coordinate))
    if rest.const:
        raise Unfusable("an image at an offset of its buffer")
    parts += [(c, atom_range(atom)[1] + 1, Index(((atom, 1),))) for atom, c in rest.terms]
    parts.sort(key=lambda p: -p[0])
    strides, sizes, coordinates = (tuple(column) for column in zip(*parts))
    along = [_along(c, spans) for c in coordinates]
    block = tuple(spans[a] if a is not None else 1 for a in along)
    moving = [a for a in along if a is not None and spans[a] > 1]
    if (
        not describable(strides, ITEMSIZE[dtype], block)
        or moving != [a for a in spans if a in moving]
        or {a for a in spans if spans[a] > 1} != {*moving}
    ):
        raise Unfusable("a tile that is not a TMA box")
    return Patch(operand, sizes, strides, block, tuple(c.text(lambda a: f"{a.name}_first") for c in coordinates))


def bounded_sizes(guards: Sequence[Expr]) -> dict[Index, int]:
    """Size of an image along each coordinate that guards keep inside of the image.

    Raises Unfusable for other guards.
    """
    found: dict[Index, int] = {}
    for g in guards:
        if g.op != "lt":
            raise Unfusable("a guard other than the bounds check of an image")
        low, high = g.args
        if low.op == "const" and low.value == -1 and high.op == "index":
            found.setdefault(high.value, high.value.range[1] + 1)
        elif low.op == "index" and high.op == "const":
            found[low.value] = int(high.value)
        else:
            raise Unfusable("a guard other than the bounds check of an image")
    return found


def _along(coordinate: Index, spans: Mapping[Axis, int]) -> Axis | None:
    """The axis along which a coordinate increases by one per element within a tile; None if the coordinate is constant
    in the tile. Raises Unfusable otherwise."""
    found = None
    for atom, c in coordinate.terms:
        for axis in {atom} if isinstance(atom, Axis) else atom.index.axes:
            if spans.get(axis, 1) == 1:
                continue
            if isinstance(atom, Division) and not _counts(atom, axis, spans[axis]):
                if not _is_constant_in_tile(atom, axis, spans[axis]):
                    raise Unfusable("a tile that crosses a boundary of an index division")
                continue
            if found is not None or c != 1:
                raise Unfusable("a coordinate that varies along a tile other than by steps of one")
            found = axis
    return found


def _counts(d: Division, axis: Axis, span: int) -> bool:
    """Whether a division is a remainder that increases by one per element of an axis within a tile."""
    return d.rest and d.index == index(axis) and d.by % span == 0


def _is_constant_in_tile(d: Division, axis: Axis, span: int) -> bool:
    """Whether a division is constant within a tile."""
    if d.index == index(axis):
        return not d.rest and d.by % span == 0
    inner = [a for a, _ in d.index.terms if isinstance(a, Division) and axis in a.index.axes]
    plain = any(a == axis for a, _ in d.index.terms)
    return not plain and all(_is_constant_in_tile(a, axis, span) for a in inner)


def axis_extents(group: Sequence[Axis], count: int) -> dict[Axis, int]:
    """Extent along each axis of a patch of `count` positions (a power of two).

    Used where `count` is neither a divisor nor a multiple of a row. Raises Unfusable if there is no such patch.
    """
    found, left = dict.fromkeys(group, 1), count
    for axis in reversed(group):
        found[axis] = min(axis.size & -axis.size, left)
        left //= found[axis]
    if left > 1:
        raise Unfusable(f"{count} positions do not form a rectangle over axes of sizes {[a.size for a in group]}")
    return found
