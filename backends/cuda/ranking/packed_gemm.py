"""Ranks schedules (tuning parameters) of skinny GEMM (few rows) with quantized weights whose codes are converted 16
bytes at a time (`packed`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log2

from ...machine import target
from .model import (
    Fixed,
    Ranked,
    RankingModel,
)

BYTES = 16  # of codes in a load
ISSUED = 128 * 1700.0  # instructions of threads that an SM issues in a µs
# What follows was fitted to the grids of benchmarks/decoding/packed_schedules.py, timed on an H200.
START, FIRST = 1.95, 0.43  # µs of a launch, and until a warp's first codes are there
ROUND, COPIED, DIRECT = (1.01, 0.036), (0.53, 0.023), (0.21, 0.095)  # µs of a warp's round, and for each of its tiles:
# all operands in registers, all copied, and codes in registers beside copied rows and scales
# The last two for more than 8 rows, and instructions of a thread per number for each 8 rows more:
MANY_COPIED, MANY_DIRECT, MANY_OCTET = (0.2, 0.068), (0.34, 0.055), 1.4
EACH = {32: 2.6, 16: 2.1}  # instructions of a thread per number, by the numbers of 16 bytes
GROUPED = 2.4  # the same where offsets and scales are applied to sums of products
BESIDE, RINGED = 170, 146  # further instructions of a thread in a round of loads into registers, and of copies
IN_FLIGHT, STARVED = 20 << 10, 0.24  # bytes in flight on an SM below which DRAM is slower, and by how much
FEWER = 0.16  # relative slowdown for each halving of the warps on an SM below 16
REREAD, PAUSED = 1.11, 1.08  # DRAM time beside that of the codes; the same where registers hold codes until their use
#: Prefetch distances that are tried, with whether codes stay in registers.
AHEAD = ((0, False), (2, True), (2, False), (4, False))
SHARED = 4  # tiles of a warp, of all matrices, from which on sums of rows in fewer instructions pay (`joint`)
RING, RING_MANY = 100 << 10, 160 << 10  # limits of a block's ring in bytes (two blocks share an SM), and for many rows


@dataclass(frozen=True)
class PackedGemmRanking(RankingModel):
    """Description of a skinny GEMM with quantized weights, from which its schedules are ranked.

    `rows`, `columns` and `length` are M, N and K, `span` is how many numbers 16 bytes of codes hold, `matrices` the
    number of right-hand matrices, `batch` the batch size, `splits` allows split-K, `own` holds the fixed schedule
    entries of short inner reductions. `grouped`: whether offsets and scales are applied to sums of products.
    """

    rows: int
    columns: int
    length: int
    span: int
    matrices: int
    batch: int
    splits: bool
    own: Fixed
    grouped: bool = False

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs) for combinations of warps along K and N, tiles of 8 columns per warp, split-K
        factor, prefetch distance, and whether codes stay in registers or a block shares its rows."""
        for along, wide, tiles in product((1, 2, 4, 8, 16), (1, 2, 4), (2, 4, 8)):
            yield from self._of_tile(along, wide, tiles)

    def _of_tile(self, along: int, wide: int, tiles: int) -> Ranked:
        """The schedules of `ranked` with given warps and tiles."""
        for ahead, direct in (*AHEAD, *((a, False) for a in self._distances(along))):
            n, warps = 8 * tiles * wide, along * wide
            uneven = self.columns % n and self.columns < 8 * n
            registers = self._registers(tiles, not ahead or direct)
            if (
                not 2 <= warps <= 16
                or (self.rows > 8 and tiles < 4)
                or uneven
                or registers > min(255, target().registers // (32 * warps))
            ):
                continue
            joint = ahead > 0 and not direct and self.grouped and tiles * self.matrices >= SHARED
            if self._ring(32 * warps, tiles, ahead, direct, wide if joint else 1) > (
                RING_MANY if self.rows > 8 else RING
            ):
                continue
            for split in (1, 2, 4, 8) if self.splits and self.rows <= 8 else (1,):
                step = 4 * self.span * along
                if self.length % (self.span * split) or step >= 2 * max(self.length // split, 4 * self.span):
                    continue
                if ahead * step >= self.length // split:
                    continue
                schedule = {"warps": along, "wide": wide, "n": n, "split": split, "um": self.rows}
                more = {"ahead": ahead} if ahead else {}
                more |= {"direct": 1} if direct else {"joint": 1} if joint else {}
                yield schedule | more | dict(self.own), self.us(along, wide, tiles, split, ahead, direct)

    def _distances(self, along: int) -> Iterator[int]:
        """Further prefetch distances: the one with which all of a short K is copied at once; 1 for many rows, whose
        copies fill the ring; 3 for codes of 8 bits."""
        rounds = ceil(self.length / (4 * self.span * along))
        wanted = {1: self.rows > 8, 3: self.span == BYTES}
        return (ahead for ahead, other in wanted.items() if other or ahead == rounds - 1)

    def _registers(self, tiles: int, held: bool) -> int:
        """Estimated registers per thread: codes if they are `held`, converted numbers of two tiles, rows, accumulators
        and about 40 others."""
        octets = -(-self.rows // 8)
        codes = 4 * tiles if held else 0
        return self.matrices * (codes + self.span + 2 * tiles * octets) + octets * self.span // 2 + 40

    def _ring(self, threads: int, tiles: int, ahead: int, direct: bool, sharing: int = 1) -> int:
        """Bytes of a block's ring in shared memory: codes, and the rows of each warp, or of `sharing` warps."""
        codes = 0 if direct else threads * tiles * BYTES * self.matrices
        rows = threads // 32 * 4 * self.span * 2 * (-(-self.rows // 8) * 8 if self.rows > 1 else 1)
        return (ahead + (2 if sharing > 1 else 1)) * (codes + rows // sharing) if ahead else 0

    def us(
        self, along: int, wide: int, tiles: int, split: int, ahead: int = 0, direct: bool = False
    ) -> float:  # fmt: skip
        """Estimated time in µs: the larger of DRAM time, instruction time of the busiest SM, and latency of a warp.

        `along`, `wide`: warps along K and N; `tiles`: column fragments per warp; `split`: split-K factor; `ahead`:
        prefetch distance of copies into shared memory, 0 for registers; `direct`: codes are in registers nevertheless.
        DRAM time is multiplied by a penalty for too few bytes in flight, and the whole estimate by one for few warps.
        """
        machine, threads, n = target(), 32 * along * wide, 8 * tiles * wide
        blocks = ceil(self.columns / n) * self.batch * split
        held = threads * self._registers(tiles, not ahead or direct)
        resident = max(1, min(machine.threads // threads, machine.registers // held))
        if ahead:
            ring = self._ring(threads, tiles, ahead, direct)
            resident = max(1, min(resident, machine.shared_per_block // ring))
        busy = blocks / machine.multiprocessors
        share, here = ceil(busy), min(max(1.0, busy), resident)
        rounds = ceil(self.length / split / (4 * self.span * along))
        numbers = self.length * n * self.matrices / split  # of a block
        padded = 4.0 * self.span * along * rounds * n * self.matrices
        dram = self.length * self.columns * self.matrices * self.batch * BYTES / self.span / machine.bytes_per_us
        in_flight = here * threads * tiles * BYTES * self.matrices * min(1.0, numbers / padded)
        starved = STARVED * max(0.0, log2(IN_FLIGHT / (in_flight * (1 if direct else max(1, ahead)))))
        each = (GROUPED if self.grouped else EACH[self.span]) + MANY_OCTET * (-(-self.rows // 8) - 1)
        issued = threads * rounds * (self.matrices * tiles * self.span * each + (RINGED if ahead else BESIDE)) / ISSUED
        base, more = DIRECT if direct else COPIED if ahead else ROUND
        if ahead and self.rows > 8:
            base, more = MANY_DIRECT if direct else MANY_COPIED
        latency = (FIRST + (base + more * tiles * self.matrices) * rounds) * max(1.0, busy / resident)
        fewer = 1 + FEWER * max(0.0, log2(16 / (here * along * wide)))
        joined = (1.7 + 0.1 * split) * (split > 1) + 0.07 * log2(along)
        dram *= REREAD * (1.0 if ahead and not direct else PAUSED) * share / busy * exp(min(2.0, starved))
        return START + max(dram, share * issued, latency) * fewer + joined


__all__ = ["PackedGemmRanking"]
