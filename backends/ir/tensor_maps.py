"""Recognizes loads that the Tensor Memory Accelerator (TMA) can make, as boxes of a tensor map.

Hopper's Tensor Memory Accelerator (TMA) copies a box of a matrix into shared memory with one instruction. The host
encodes the matrix as a tensor map (CUDA driver API, cuTensorMapEncodeTiled): up to five axes, strides of multiples of
16 bytes, boxes of at most 256 elements along each axis, any origin. `describable` is the one place that checks these
limits; warp_specialized/convolution.py makes the boxes of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ...egraph.types import dtypes
from .index import Axis, Index, atom_range, index

MOST_AXES = 5
LONGEST = 256  # elements of a box along one axis
BYTES = 16  # required multiple of strides and of the box's innermost size


def padded_row(size: int, dtype: str) -> int:
    """`size`, elements of `dtype` in a row, rounded up to a multiple of 16 bytes, which aligns every row for TMA and
    vector loads."""
    step = max(1, BYTES // dtypes.itemsize(dtype))
    return -(-size // step) * step


def describable(strides: Sequence[int], itemsize: int, block: Sequence[int] = ()) -> bool:
    """Whether a tensor map (TMA descriptor) can encode an operand with these strides and boxes of the shape `block` (if
    given).

    Strides and box shape are in elements of `itemsize` bytes, outermost axis first.
    """
    *slow, fast = strides
    fits = 1 <= len(slow) < MOST_AXES and fast == 1 and all(s > 0 and s * itemsize % BYTES == 0 for s in slow)
    return fits and (not block or (max(block) <= LONGEST and block[-1] * itemsize % BYTES == 0))


@dataclass(frozen=True)
class Box:
    """A tile of an operand as a TMA box (what one copy instruction loads): sizes of the matrix (`shape`) and of the box
    (`block`), the axes along its rows and columns, and the source texts of its origin.

    `strides` (in elements) is set if rows are further apart than they are long, or if there are more than two axes; the
    box has one element along each further axis. Elements beyond the end of an axis are read as zeros.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]
    axes: tuple[Axis, Axis]
    origin: tuple[str, ...]
    strides: tuple[int, ...] = ()

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of the box, the two axes along which it has several elements."""
        rows, columns = (n for n in self.block if n > 1) if len(self.block) > 2 else self.block
        return rows, columns


def box(
    at: Index, tiles: Mapping[Axis, tuple[str, int]], itemsize: int, text: Callable[[Axis], str], ends: Set[Axis] = frozenset()
) -> Box | None:  # fmt: skip
    """The TMA box with which one tile is loaded at the index `at`; None if TMA cannot load it.

    `tiles`: for each axis that the tile spans, (source text of the tile's origin, number of elements); `text` returns
    the source text of any other axis' value. Tiles may reach beyond the end of the axes in `ends`; the matrix must end
    where such an axis does, so that TMA fills zeros there. `itemsize` in bytes.
    """
    steps = dict(at.terms)
    axes = [a for a in steps if isinstance(a, Axis)]
    spanned = sorted((a for a in axes if a in tiles), key=lambda a: steps[a])
    if len(axes) < len(steps) or len(spanned) != 2 or min(steps.values()) < 1 or at.const < 0:
        return None
    fast, slow = spanned
    wide = steps[slow]
    sizes = tiles[slow][1], tiles[fast][1]
    if not describable((wide, steps[fast]), itemsize, sizes):
        return None
    down, across = [tiles[slow][0]], [tiles[fast][0]]
    last_row, last_column = slow.size - 1 + at.const // wide, fast.size - 1 + at.const % wide
    down += [str(at.const // wide)] * (at.const >= wide)
    across += [str(at.const % wide)] * (at.const % wide > 0)
    for a in axes:
        if a in tiles:
            continue
        to, step = (down, steps[a] // wide) if steps[a] % wide == 0 else (across, steps[a])
        to.append(text(a) if step == 1 else f"{text(a)} * {step}")
        if to is down:
            last_row += step * (a.size - 1)
        else:
            last_column += step * (a.size - 1)
    if last_column >= wide or (slow in ends and last_row >= slow.size + at.const // wide):
        return None
    columns = wide
    if fast in ends:
        columns = last_column + 1
        if columns > fast.size + at.const % wide:  # columns of another tensor follow
            return None
    strides = (wide, 1) if columns < wide else ()
    return Box((last_row + 1, columns), sizes, (slow, fast), (_sum(down), _sum(across)), strides)


def edged_box(
    at: Index, tiles: Mapping[Axis, tuple[str, int]], itemsize: int, text: Callable[[Axis], str]
) -> Box | None:
    """The TMA box with one tensor-map axis per index term, so that TMA fills zeros beyond the end of every axis; None
    if TMA cannot load the tile so. `tiles`: for each axis that the tile spans, (source text of the tile's origin,
    number of elements); `text` returns the source text of any other axis' value; `itemsize` in bytes."""
    steps = [(step, atom) for atom, step in at.terms]
    spanned = [atom for _, atom in sorted(steps, key=lambda s: s[0]) if atom in tiles]
    inner = {a for _, atom in steps if not isinstance(atom, Axis) for a in atom.index.axes}
    if len(spanned) != 2 or inner & tiles.keys() or min(step for step, _ in steps) < 1 or at.const < 0:
        return None
    rest, sizes, block, origin = at.const, list[int](), list[int](), list[str]()
    steps.sort(key=lambda s: -s[0])
    for step, atom in steps:
        begin, rest = divmod(rest, step)
        first, count = tiles[atom] if atom in tiles else (Index(((atom, 1),)).text(text), 1)  # type: ignore[index]
        sizes.append(atom_range(atom)[1] + 1 + begin)
        block.append(count)
        origin.append(_sum([first, str(begin)]))
    strides = tuple(step for step, _ in steps)
    fast, slow = (a for a in spanned if isinstance(a, Axis))
    if min(count for _, count in tiles.values()) < 2 or not describable(strides, itemsize, block):
        return None
    return Box(tuple(sizes), tuple(block), (slow, fast), tuple(origin), strides)


def as_one(at: Index, group: Sequence[Axis], one: Axis) -> Index | None:
    """The index `at` with the axes `group` replaced by `one`, an axis that stands for all of them flattened. None if
    the index does not traverse these axes contiguously."""
    step = at.coefficient(group[-1])
    rest, size = at, 1
    for a in reversed(group):
        if at.coefficient(a) != step * size:
            return None
        rest = rest - index(a) * (step * size)
        size *= a.size
    return None if rest.axes & {*group} else rest + index(one) * step


def flattened(at: Index, groups: Iterable[tuple[Sequence[Axis], Axis]]) -> Index | None:
    """The index `at` with each (group of axes, flat axis) replaced as by `as_one`; None if one cannot be."""
    for group, one in groups:
        moved = as_one(at, group, one)
        if moved is None:
            return None
        at = moved
    return at


def _sum(parts: list[str]) -> str:
    return " + ".join(p for p in parts if p != "0") or "0"
