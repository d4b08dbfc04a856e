"""Layouts of threads over a kernel's dimensions, and what lies side by side in memory along them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .index import Axis, Division, Index, index
from .kir import Expr


@dataclass(frozen=True)
class Along:
    """How a dimension is laid over a block: `threads` side by side, each with `vector` neighbours, `repeat` times."""

    threads: int = 1
    vector: int = 1
    repeat: int = 1

    @property
    def block(self) -> int:
        """Elements that a block covers."""
        return self.threads * self.vector * self.repeat

    @property
    def held(self) -> int:
        """Elements that a thread holds."""
        return self.vector * self.repeat


@dataclass(frozen=True)
class Warps:
    """How warps share a sum of products on the matrix unit (cuda_matrix.py): `across` of them lie along the columns, each with
    `tiles` times 8 of these; `along` lie along the sum, each with `depth` times 32 elements of it at a time."""

    along: int
    across: int = 1
    tiles: int = 1
    depth: int = 1


@dataclass(frozen=True)
class Layout:
    """The dimensions of a block, the one along which neighbouring threads lie first; whether the kernel may be started before
    the one before it has ended; how many rounds of a loop are fetched ahead, by way of shared memory; how many threads a
    block has at least, and how its warps share a product."""

    dims: Mapping[str, Along]
    early: bool = False
    ahead: int = 0
    least: int = 32
    warps: Warps | None = None

    @cached_property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return max(self.least, math.prod(a.threads for a in self.dims.values()))

    def stride(self, dim: str) -> int:
        """How far apart in a block threads are that neighbour each other along a dimension."""
        step = 1
        for name, along in self.dims.items():
            if name == dim:
                return step
            step *= along.threads
        return step


def slope(at: Index, axis: Axis, width: int) -> int | None:
    """How far an index moves with an axis inside each aligned run of `width` elements; None where that is not one number."""
    total = 0
    for atom, c in at.terms:
        if isinstance(atom, Axis):
            total += c * (atom == axis)
        elif axis in atom.index.axes:
            inner = slope(atom.index, axis, width)
            if inner is None or (inner and (inner != 1 or atom.by % width or divisor(atom.index, axis, width) % width)):
                return None
            total += c * inner * atom.rest
    return total


def divisor(at: Index, axis: Axis, width: int) -> int:
    """A number by which an index is divisible at the beginning of each aligned run of an axis."""
    found = at.const
    for atom, c in at.terms:
        factor = width if atom == axis else 1
        if isinstance(atom, Division) and atom.rest:
            factor = math.gcd(atom.by, divisor(atom.index, axis, width))
        found = math.gcd(found, c * factor)
    return abs(found) or 1 << 30


def together(at: Index, axis: Axis, width: int, itemsize: int) -> bool:
    """Whether `width` elements along an axis are neighbours in memory that a vector can move."""
    run = min(width, 16 // itemsize)
    return width > 1 and axis.size % width == 0 and slope(at, axis, width) == 1 and divisor(at, axis, width) % run == 0


def steady(e: Expr, axis: Axis, width: int) -> bool:
    """Whether a condition is the same for each aligned run of `width` elements along an axis: its bounds lie between runs."""
    if axis not in e.axes:
        return True
    if e.op in ("and", "or", "not"):
        return all(steady(a, axis, width) for a in e.args)
    if e.op != "lt" or any(a.op not in ("index", "const") or a.kind != "int" for a in e.args):
        return False
    low, high = (a.value if a.op == "index" else index(a.value) for a in e.args)
    rising, falling = slope(low - high, axis, width), slope(high - low, axis, width)
    if rising == 1:  # low < high where low - high < 0
        return divisor(low - high, axis, width) % width == 0
    return falling == 1 and divisor(high - low - 1, axis, width) % width == 0  # high - low - 1 >= 0
