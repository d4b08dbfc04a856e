"""Holds the emitter's state for a warp-specialized GEMM: its epilogue in the thread layout of the wgmma
accumulators."""

from __future__ import annotations

from copy import copy

from ...ir.kernel import Kernel
from ...ir.tiling import Shape
from ..emit.frame import ThreadFrame
from ..emit.thread_layout import DimensionThreads, ThreadLayout
from .device_library import PIECE
from .parameters import DEPTH, GemmSchedule


class GemmFrame(ThreadFrame):
    """Emitter state for the epilogue of a warp-specialized GEMM.

    `tile` is the tile's size by dimension ("m", "n"), `tiles` the numbers of tiles along rows and columns, `last` the
    index of the first row or column of the last tile by dimension.
    """

    def __init__(self, kernel: Kernel, shape: Shape, schedule: GemmSchedule, name: str) -> None:
        layout = ThreadLayout({"n": DimensionThreads(4, 2, PIECE // 8), "m": DimensionThreads(8, 1, 2)}, schedule.early)
        super().__init__(kernel, layout, name, shape)
        self._set_tiles(schedule)

    def with_tiles(self, schedule: GemmSchedule) -> GemmFrame:
        """A copy of this state, in which nothing has been emitted yet, with the tiles of another schedule."""
        made = copy(self)
        made._set_tiles(schedule)
        return made

    def _set_tiles(self, schedule: GemmSchedule) -> None:
        kernel, shape = self.kernel, self.shape
        self.tile = {"m": schedule.m, "n": schedule.n}
        self.tiles = -(-shape.m // schedule.m), -(-shape.n // schedule.n)
        # the last tiles are shifted back to end at the edge, and recompute elements of their neighbours
        again = not any(s.guards or getattr(s, "parts", ()) for s in kernel.stores)
        self.last = {
            d: max(0, self.extent[d] - size) if again else count * size
            for (d, size), count in zip(self.tile.items(), self.tiles, strict=True)
        }

    def ragged(self, dim: str) -> bool:
        """Whether some tiles along the dimension `dim` reach beyond its end, so that bounds are checked."""
        if dim in self.tile and self.last[dim] + self.tile[dim] == self.extent[dim]:
            return False
        return self.extent[dim] % self.tile.get(dim, DEPTH) != 0
