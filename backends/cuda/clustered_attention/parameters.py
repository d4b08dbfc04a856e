"""Defines the schedule (tuning parameters) of clustered attention, and the sizes of blocks and shared memory that
follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from ...generate.schedule import Domain, Schedule, flag, number
from ...ir.tiling import Shape

TILE = 16  # positions of an mma tile


@dataclass(frozen=True)
class ClusteredAttentionSchedule(Schedule):
    """Schedule (tuning parameters) of attention of few rows in which a cluster of thread blocks shares the positions of
    keys and values."""

    parts: int = number("cluster size: slices of the positions", Domain(1, 16, powers=True))
    warps: int = number("warps along the positions", Domain(1, 32))
    across: int = number("warps along the head size", Domain(1, 8, powers=True))
    deep: int = number("tiles of 16 positions of a warp in flight", Domain(1, 8))
    seen: bool = flag(
        "positions that a mask hides from all rows are not read: the blocks divide those up to a number in memory"
    )
    early: bool = flag("programmatic dependent launch", common=True)

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return 32 * self.warps * self.across

    @property
    def chunk(self) -> int:
        """Number of positions that a block processes at a time."""
        return TILE * self.warps * self.deep

    def slice(self, positions: int) -> int:
        """Number of positions that one block of a cluster reads, of `positions` in all; a multiple of the tile of
        16."""
        return -(-positions // (self.parts * TILE)) * TILE

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of the result that a block finishes: all query rows, and its share of the columns of a kernel
        with the axes that `shape` describes."""
        return shape.m, max(1, shape.n // self.parts)

    def shared_bytes(self, rows: int, head: int, columns: int) -> int:
        """Bytes of shared memory that a block needs (`ClusteredAttention::SIZE` in kernel.cuh). `rows`: number of query
        rows; `head`, `columns`: head sizes of keys and of values."""

        def aligned(words: int) -> int:
            return (words + 3) // 4 * 4

        def padded(words: int) -> int:
            return words + (36 - words % 32) % 32

        queries = aligned(4 + rows * columns + 2 * self.parts * rows)
        scores = aligned(queries + rows * (head + (0 if head % 64 else 32)) // 2)
        shares = scores + self.across * rows * padded(self.chunk)
        scales = aligned(shares + rows * padded(self.chunk // 2))
        return 4 * (aligned(scales + 2 * rows) + self.warps * rows * (columns + 8))
