"""Ranks schedules (tuning parameters) of skinny GEMM (few rows) on tensor cores whose weights need no unpacking of
codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log2

from ...machine import target
from .model import (
    LATENCY,
    Fixed,
    Ranked,
    RankingModel,
    Schedule,
    unsplit_beside,
)

FASTEST = 5.5e4  # read bandwidth of one SM in bytes/µs
FINE = 32  # column counts that are multiples of this must be divided evenly by the tile
WASTED = 8  # others may be divided unevenly, into so many blocks that the partial last one costs little


@dataclass(frozen=True)
class SkinnyGemmRanking(RankingModel):
    """Description of a skinny GEMM of at most 32 rows on tensor cores, from which its schedules are ranked.

    The kernel is bound by reading the matrices once, straight into registers, so as many bytes as possible must be in
    flight from the start. `rows`, `columns` and `length` are M, N and K, `matrices` the number of right-hand matrices,
    `batch` the batch size; `splits` allows split-K; `own` holds the fixed schedule entries of short inner reductions.
    """

    rows: int
    columns: int
    length: int
    matrices: int
    batch: int
    splits: bool
    own: Fixed

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs by `us`) for combinations of warps along K and N, column fragments per warp, K
        chunks per warp and iteration, and split-K factor."""
        for along, wide, tiles, deep in product((2, 4, 8, 16, 32), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16)):
            if along * wide > 32:
                continue
            n, step = 8 * tiles * wide, 32 * along * deep
            uneven = self.columns % n and (self.columns % FINE == 0 or self.columns < WASTED * n)
            if uneven or self._registers(tiles, deep) > min(255, target().registers // (32 * along * wide)):
                continue
            for split in (1, 2, 4) if self.splits else (1,):
                many = split > 1 and ceil(self.columns / n) * self.batch > 2 * target().multiprocessors
                part = self.length // split
                if self.length % (8 * split) or step >= 2 * max(part, 32 * along) or many:
                    continue
                schedule = {"warps": along, "wide": wide, "n": n, "deep": deep, "split": split, "um": self.rows}
                yield schedule | dict(self.own), self.us(along, wide, tiles, deep, split)

    def prefetching(self, early: Sequence[Schedule]) -> Sequence[Schedule]:
        """Those of the schedules `early` that also prefetch matrices into L2 (`RankingModel.prefetching`): every second
        one from the first on."""
        return unsplit_beside(early[::2], self.own) if self.columns > 1 else ()

    def _registers(self, tiles: int, deep: int) -> int:
        """Estimated registers per thread: right and left fragments, accumulators and about 30 others."""
        heights = -(-self.rows // 16)
        return 4 * tiles * (deep + heights) * self.matrices + 8 * deep * heights + 30

    def us(self, along: int, wide: int, tiles: int, deep: int, split: int) -> float:
        """Estimated time in µs, fitted to measured kernels of this kind.

        `along`, `wide`: warps of a block along K and N. `tiles`: column fragments per warp. `deep`: K chunks per warp
        and iteration. `split`: split-K factor. The larger of DRAM time and the time of the busiest SM, times penalties
        for too few bytes in flight, for split-K and for re-reading rows; at least one memory latency per iteration and
        wave.
        """
        warps, n, heights = along * wide, 8 * tiles * wide, -(-self.rows // 16)
        part, step = self.length / split, 32 * along * deep
        rounds = ceil(part / step)
        registers = 32 * warps * min(255, self._registers(tiles, deep))
        exchanged = along * 64 * heights * (n + 8) * self.matrices
        resident = max(
            1,
            min(
                target().threads // (32 * warps),
                target().registers // registers,
                target().shared_per_block // (exchanged + 1024),
            ),
        )
        blocks = ceil(self.columns / n) * self.batch * split
        total = self.length * self.columns * self.matrices * 2.0 * self.batch
        each = -(-blocks // target().multiprocessors)
        rows = 2.0 * self.rows * min(each * part, self.length)  # re-read from the L1 cache
        busiest = (each * total / blocks + rows) / FASTEST
        used = part / (rounds * step)  # useful fraction of the loads of its iterations
        in_flight = (
            min(max(1.0, blocks / target().multiprocessors), resident) * n * along * deep * self.matrices * 64 * used
        )
        share = min(1.0, total / target().multiprocessors / (96 << 10))  # small problems need fewer bytes in flight
        slower = (
            share * (0.4 * max(0.0, log2((40 << 10) / in_flight)) + 0.27 * max(0.0, log2((96 << 10) / in_flight)))
            + 0.12 * (split > 1) * split + 0.12 * (warps > 8) + 0.18 * (warps > 16) + 0.1 * (heights - 1)
            + {1: -0.25, 2: -0.1, 4: 0.0, 8: 0.22, 16: 0.4}[deep] * share
            + {1: 0.25, 2: -0.04, 4: 0.0}.get(tiles * self.matrices, 0.14)
        )  # fmt: skip
        waves = ceil(blocks / (target().multiprocessors * resident))
        return 1.6 + max(max(total / target().bytes_per_us, busiest) * exp(slower), LATENCY * rounds * waves)
