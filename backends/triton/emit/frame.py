"""Holds the state of the emitter of one Triton kernel: the kernel's dimensions, the nested scopes of emitted text, and
the values that are already in variables.

A value is a tile over an ordered list of dimensions: rows, reduction axes, columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr
from ...ir.index import Axis
from ...ir.kernel import Kernel
from ...ir.scopes import SourceScope, Writer
from ...ir.tensor_maps import Box
from ...ir.tiling import Shape, Tiling, is_window
from .spelling import Tile


@dataclass
class TritonScope(SourceScope[Tile]):
    """Scope of emitted Triton text; it also records the values that the text in it has converted to float32."""

    widened: dict[Expr, Tile] = field(default_factory=dict)  # values converted to float32 for several uses
    held: list[str] = field(default_factory=list)  # accumulators of products to wait for at the end of the scope


class TileFrame(Writer[TritonScope]):
    """State of the emission of one kernel: its tiling, and the text emitted so far. Dimensions are "m" (rows), "n"
    (columns) and one per reduction axis.

    `walked` holds the reduction axes that are iterated over tile by tile; `n_loop` is whether a program iterates over
    the columns.
    """

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> None:
        self.kernel, self.tiling, self.name, self.shape = kernel, tiling, name, shape
        self.wide = kernel.compute_dtype
        self.order = ["m", *(a.name for a in shape.inner), "n"]
        self.extent = {"m": shape.m, "n": shape.n, **{a.name: a.size for a in shape.inner}}
        self.block = {"m": tiling.m, "n": tiling.n, **{a.name: tiling.k[a] for a in shape.inner}}
        self.walked = {a for a in shape.inner if tiling.k[a] < a.size}
        self.single = {a for a in self.walked if tiling.k[a] == 1 and (is_window(a) or a.name == "parts")}  # unrolled
        walks = shape.walks or tiling.options.get("walk", False)
        self.n_loop = walks and tiling.n < shape.n  # one program iterates over the columns
        whole = {a for a in shape.inner if a not in self.walked and a not in shape.joined}
        self.top = TritonScope(1, set(kernel.axes) | whole)
        self.scope = self.top
        self.fresh_loads = False  # whether loads read partial results that other programs have just written
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
        self.reducing: set[Expr] = set()  # expressions that contain a reduction
        self.columns: dict[Expr, Expr] = {}  # value -> the same value over the columns that reductions run over
        for e in kernel.exprs:
            if e.op == "reduce" or any(a in self.reducing for a in e.args):
                self.reducing.add(e)
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        self.long = kernel.long
        if len(kernel.stores) > 1:  # stored values may be used as well, and stay live
            for s in kernel.stores:
                self.uses[s.value] = self.uses.get(s.value, 0) + 2

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """Triton expression of the value `tile` with axes of length one inserted so that it broadcasts against tiles
        over `dims`."""
        if not tile.dims or tuple(dims) == tile.dims:
            return tile.atom
        if len(tile.dims) == len(dims):
            return tile.atom
        places = ", ".join(":" if d in tile.dims else "None" for d in dims)
        return f"{tile.atom}[{places}]"

    def union(self, tiles: Iterable[Tile]) -> tuple[str, ...]:
        """Dimensions along which at least one of `tiles` varies, in the frame's order."""
        found = {d for t in tiles for d in t.dims}
        return tuple(d for d in self.order if d in found)

    def dim_of(self, axis: Axis) -> str:
        """Name of the dimension that `axis` belongs to: "m" for rows, "n" for columns, else the axis's own name."""
        if axis in self.shape.rows:
            return "m"
        if axis in self.shape.cols or axis in self.joined:
            return "n"
        return axis.name

    def sizes(self, dims: Sequence[str]) -> str:
        """Python text of the shape of a tile over `dims`, a tuple of numbers such as "(64, 32)"."""
        inner = ", ".join(str(self.block[d]) for d in dims)
        return f"({inner},)" if len(dims) == 1 else f"({inner})"

    def ragged(self, dim: str) -> bool:
        """Whether the last tile along the dimension `dim` reaches beyond its end, so that masks are needed."""
        return self.extent[dim] % self.block[dim] != 0


@dataclass(eq=False)
class TritonPart:
    """Base of the Triton emitter's parts, such as loads or stores: they share a frame (the emitter's state) and write
    into its open scope."""

    frame: TileFrame

    def __post_init__(self) -> None:
        frame = self.frame
        self.kernel, self.shape, self.tiling = frame.kernel, frame.shape, frame.tiling
        self.line, self.fresh, self.inside = frame.line, frame.fresh, frame.inside
