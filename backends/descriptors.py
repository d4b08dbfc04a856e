"""Tiles that hardware copies by itself: which loads can name a box of a matrix in memory instead of an address per element.

Hopper's copy unit (TMA) reads a box of rows and columns of a matrix into shared memory by one instruction, from a descriptor
that the host makes (CUDA driver API, cuTensorMapEncodeTiled): strides of 16 bytes, boxes of at most 256 by 256, origin
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .index import Axis, Index

LONGEST = 256  # elements of a box along one dimension
BYTES = 16  # that strides and the box's rows are multiples of


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
    if steps[fast] != 1 or wide * itemsize % BYTES or sizes[1] * itemsize % BYTES or max(sizes) > LONGEST:
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
