"""The frame of a Triton kernel: its dimensions, the blocks of its text, what is known in each.

Values are tiles over an ordered list of dimensions: rows, reduction axes, columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..egraph.dtypes import HALVES
from .descriptors import Box
from .index import Axis
from .kir import Expr, Kernel
from .scopes import Block, Writer
from .tiling import Shape, Tiling, is_window
from .triton_text import Tile


@dataclass
class Scope(Block[Tile]):
    """A block with values widened in it."""

    widened: dict[Expr, Tile] = field(default_factory=dict)  # values that several others need in float32
    held: list[str] = field(default_factory=list)  # sums of products that the block ends by waiting for


class Frame(Writer[Scope]):
    """A kernel with its tiles, and the text of it so far."""

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> None:
        self.kernel, self.tiling, self.name, self.shape = kernel, tiling, name, shape
        self.wide = "float64" if any(b.dtype == "float64" for b in kernel.buffers.values()) else "float32"
        self.order = ["m", *(a.name for a in shape.inner), "n"]
        self.extent = {"m": shape.m, "n": shape.n, **{a.name: a.size for a in shape.inner}}
        self.block = {"m": tiling.m, "n": tiling.n, **{a.name: tiling.k[a] for a in shape.inner}}
        self.walked = {a for a in shape.inner if tiling.k[a] < a.size}
        self.single = {a for a in self.walked if tiling.k[a] == 1 and (is_window(a) or a.name == "parts")}  # unrolled
        walks = shape.walks or tiling.options.get("walk", False)
        self.n_loop = walks and tiling.n < shape.n  # columns walked, not spread over programs
        whole = {a for a in shape.inner if a not in self.walked and a not in shape.joined}
        self.top = Scope(1, set(kernel.axes) | whole)
        self.scope = self.top
        self.fresh_loads = False  # whether states are read that other programs have just written
        self.joined: dict[Axis, str] = {}  # reduction axes that share the columns' dimension (whole rows)
        if shape.joined and not self.n_loop:
            for r in shape.joined:
                self.joined[r] = "n"
                self.top.bound.add(r)
            self.walked -= set(shape.joined)
        if self.n_loop:
            self.top.bound -= set(shape.cols)
        self.boxes: dict[tuple[Any, ...], str] = {}
        self.described: dict[str, tuple[str, Box]] = {}
        self.narrow = all(kernel.buffers[x.buffer].dtype in HALVES for x in kernel.stores)
        self.uses: dict[Expr, int] = {}
        self.reducing: set[Expr] = set()  # what has a reduction in it
        self.columns: dict[Expr, Expr] = {}  # values over the columns that their reductions run over
        for e in kernel.exprs:
            if e.op == "reduce" or any(a in self.reducing for a in e.args):
                self.reducing.add(e)
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        self.long = kernel.long
        if len(kernel.stores) > 1:  # what is stored may be used as well, and is held
            for s in kernel.stores:
                self.uses[s.value] = self.uses.get(s.value, 0) + 2

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """The tile's text, with axes inserted so that it broadcasts against tiles over `dims`."""
        if not tile.dims or tuple(dims) == tile.dims:
            return tile.atom
        if len(tile.dims) == len(dims):
            return tile.atom
        places = ", ".join(":" if d in tile.dims else "None" for d in dims)
        return f"{tile.atom}[{places}]"

    def union(self, tiles: Iterable[Tile]) -> tuple[str, ...]:
        """The dimensions that any of some tiles spans."""
        found = {d for t in tiles for d in t.dims}
        return tuple(d for d in self.order if d in found)

    def dim_of(self, axis: Axis) -> str:
        """The dimension that an axis lies in."""
        if axis in self.shape.rows:
            return "m"
        if axis in self.shape.cols or axis in self.joined:
            return "n"
        return axis.name

    def sizes(self, dims: Sequence[str]) -> str:
        """A shape's text."""
        inner = ", ".join(str(self.block[d]) for d in dims)
        return f"({inner},)" if len(dims) == 1 else f"({inner})"

    def ragged(self, dim: str) -> bool:
        """Whether the last tile of a dimension is not full."""
        return self.extent[dim] % self.block[dim] != 0
