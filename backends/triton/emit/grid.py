"""The tile of a program: its coordinates in the grid, and the indices of its rows, columns and reduction axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .frame import TritonPart
from .index import Positions
from .loop_bounds import LoopBounds


@dataclass(eq=False)
class Grid(TritonPart):
    """Emitter part that decides which tile of the results each program of the grid computes."""

    positions: Positions
    bounds: LoopBounds

    def program(self, tiles_m: int, tiles_n: int) -> None:
        """Emit variables for the coordinates of the program's tile in the grid, and for the indices of its rows,
        columns and of those reduction axes that a tile covers whole.

        `tiles_m`, `tiles_n`: number of tiles along rows and columns.
        """
        frame, s = self.frame, self.shape
        if tiles_m * tiles_n * math.prod(a.size for a in s.batch) > 1:
            self.line("program = tl.program_id(0)")
        self.place(tiles_m, tiles_n)
        for dim, count, group in (("m", tiles_m, s.rows), ("n", tiles_n, s.cols)):
            if group and not (dim == "n" and frame.n_loop):
                base = f"tile_{dim} * {frame.block[dim]} + " if count > 1 else ""
                self.line(f"{dim} = {base}tl.arange(0, {frame.block[dim]})")
                self.positions.unravel(dim, group)
        for a in s.inner:
            if a not in frame.walked and a not in frame.joined:
                self.line(f"{a.name} = tl.arange(0, {frame.block[a.name]})")

    def place(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the coordinates of the program's tile, among `tiles_m` tiles of rows and `tiles_n` of columns, and the
        values of batch axes.

        Tiles are numbered in groups of rows, so that programs that run at the same time share operands in L2.
        """
        s, t = self.shape, self.tiling
        batch = math.prod(a.size for a in s.batch)
        tile = "program"
        with self.inside(self.frame.top):
            descending = self.longest_last()
        if descending and tiles_m * tiles_n > 1:
            self.line(f"tile = {tiles_m * tiles_n - 1} - program // {batch}")
            tile = "tile"
        if batch > 1:
            if tile == "tile":
                self.line(f"batch = program % {batch}")
            elif tiles_m * tiles_n > 1:
                self.line(f"batch = program // {tiles_m * tiles_n}")
                self.line(f"tile = program % {tiles_m * tiles_n}")
                tile = "tile"
            else:
                self.line("batch = program")
            step = 1
            for a in reversed(s.batch):
                outermost = a is s.batch[0]
                text = f"batch // {step}" if step > 1 else "batch"
                self.line(
                    f"{a.name} = {text}" if outermost else f"{a.name} = {f'({text})' if step > 1 else text} % {a.size}"
                )
                step *= a.size
        if tiles_m > 1 and tiles_n > 1:
            if t.group > 1:
                width = t.group * tiles_n
                self.line(f"first = {tile} // {width} * {t.group}")
                self.line(f"height = tl.minimum({tiles_m} - first, {t.group})")
                self.line(f"tile_m = first + {tile} % {width} % height")
                self.line(f"tile_n = {tile} % {width} // height")
            else:
                self.line(f"tile_m = {tile} % {tiles_m}")
                self.line(f"tile_n = {tile} // {tiles_m}")
        elif tiles_m > 1:
            self.line(f"tile_m = {tile}")
        elif tiles_n > 1:
            self.line(f"tile_n = {tile}")

    def longest_last(self) -> bool:
        """Whether the programs of later rows have more work, as under a causal mask.

        They are then launched first, so that long ones do not run alone at the end.
        """
        if any(a.name == "part" for a in self.shape.batch):
            return False
        axis_masks = [
            r for e in self.kernel.reductions if e.axis in self.frame.walked for r in self.bounds.axis_masks(e, e.axis)
        ]  # fmt: skip
        return any(r.side == -1 and r.rest.coefficient(a) > 0 for r in axis_masks for a in self.shape.rows)
