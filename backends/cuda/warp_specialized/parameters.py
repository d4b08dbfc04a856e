"""Schedule (tuning parameters) of a warp-specialized GEMM, and the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...generate.schedule import Domain, Schedule, flag, number
from ...machine import target
from .device_library import COLUMNS, GROUP, GROUPS, PIECE

DEPTH = 64  # K elements per pipeline stage: 128 bytes, the span of the 128B swizzle


@dataclass(frozen=True)
class GemmSchedule(Schedule):
    """Schedule (tuning parameters) of a warp-specialized GEMM: tile sizes, pipeline depth, cluster shape."""

    tag: ClassVar[str] = "roles"
    warp_specialized: ClassVar[bool] = True

    m: int = number("rows of a tile", Domain(64, 256, powers=True))
    n: int = number("columns of a tile, per right-hand matrix", Domain(values=COLUMNS))
    stages: int = number("pipeline depth", Domain(2, 8, steps="step"))
    turns: int = number("2: consumers alternate between tiles (ping-pong), 1: they share one", Domain(1, 2), default=1)
    down: int = number("cluster size along M: multicast of the right operand", Domain(1, 2), default=1)
    across: int = number("cluster size along N: multicast of the left operand", Domain(1, 2), default=1)
    parts: int = number("cluster size along K: split-K through distributed shared memory", Domain(1, 8), default=1)
    group: int = number("rows of tiles rasterized together for L2 reuse", Domain(powers=True), default=8)
    early: bool = flag("programmatic dependent launch", common=True)

    @property
    def beside(self) -> bool:
        """Whether the two consumer warp groups share a tile of 64 rows, each computing half of its columns."""
        return self.turns == 1 and self.m == GROUP

    @property
    def height(self) -> int:
        """Number of rows of the part of a tile that one consumer warp group computes."""
        return self.m if self.turns > 1 or self.beside else self.m // GROUPS

    @property
    def wide(self) -> int:
        """Number of columns of the part of a tile that one consumer warp group computes."""
        return self.n // GROUPS if self.beside else self.n

    @property
    def blocks(self) -> int:
        """Number of thread blocks of a cluster."""
        return self.down * self.across * self.parts

    def held(self, rights: int) -> int:
        """Number of accumulators (registers for sums) per thread of a consumer, for `rights` right-hand matrices."""
        return rights * self.height * self.wide // 128

    def instruction_columns(self, rights: int) -> int:
        """Columns (N) of one wgmma instruction: the columns of all right-hand matrices together if the matrices are
        adjacent in shared memory and have at most 256 columns, else the columns of one matrix."""
        together = not self.beside and rights * self.n <= COLUMNS[-1] and self.n % PIECE == 0
        return rights * self.n if together else self.wide

    def stage(self, rights: int) -> int:
        """Bytes of shared memory of a pipeline stage, with tiles of `rights` right-hand matrices."""
        return 2 * DEPTH * (self.m + rights * -(-self.n // PIECE) * PIECE)

    def joining(self, rights: int) -> int:
        """Bytes of shared memory that receive the partial sums of the other blocks of a cluster (split-K). They are
        taken from the ring buffer of tiles. `rights`: number of right-hand matrices."""
        pieces = -(-self.wide // PIECE)
        return GROUPS * -(-pieces // self.parts) * (self.parts - 1) * rights * self.height * PIECE * 4

    def store_buffers(self, rights: int) -> int:
        """Number of shared-memory buffers, each for 64 columns of results, that each consumer warp group has beside the
        tiles; 0 to 2.

        `rights`: number of right-hand matrices.
        """
        left = target().dynamic_shared - self.stages * (self.stage(rights) + 64)
        return max(0, min(2, left // (GROUPS * self.height * 2 * PIECE)))
