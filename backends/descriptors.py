"""Tiles that hardware copies by itself: which loads can name a box of a matrix in memory instead of an address per element.

Hopper's copy unit (TMA) reads a box of rows and columns of a matrix into shared memory by one instruction, from a descriptor
that the host makes (CUDA driver API, cuTensorMapEncodeTiled): up to five axes, strides of 16 bytes, boxes of at most 256 along
each, origin anywhere. `describable` is the one place that says so; images have their boxes in gluon_images.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .index import Axis, Index

MOST_AXES = 5
LONGEST = 256  # elements of a box along one dimension
BYTES = 16  # that strides and the box's rows are multiples of


def describable(strides: Sequence[int], itemsize: int, block: Sequence[int] = ()) -> bool:
    """Whether a descriptor can say how an operand lies, strides in elements from the outermost axis to the innermost, and, where
    it is given, the box that is read of it."""
    *slow, fast = strides
    fits = 1 <= len(slow) < MOST_AXES and fast == 1 and all(s > 0 and s * itemsize % BYTES == 0 for s in slow)
    return fits and (not block or (max(block) <= LONGEST and block[-1] * itemsize % BYTES == 0))


@dataclass(frozen=True)
class Box:
    """A tile of an operand seen as a matrix: the matrix' and the tile's (rows, columns), the axes along them, and the text
    of the tile's origin."""

    shape: tuple[int, int]
    block: tuple[int, int]
    axes: tuple[Axis, Axis]
    origin: tuple[str, str]


def box(at: Index, tiles: Mapping[Axis, tuple[str, int]], itemsize: int, text: Callable[[Axis], str]) -> Box | None:
    """The box that a load at an index reads, None where it is none. `tiles`: origin and size of each axis that the tile
    spans; `text`: the value of every other axis."""
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
    if last_column >= wide:
        return None
    return Box((last_row + 1, wide), sizes, (slow, fast), (_sum(down), _sum(across)))


def _sum(parts: list[str]) -> str:
    return " + ".join(p for p in parts if p != "0") or "0"
