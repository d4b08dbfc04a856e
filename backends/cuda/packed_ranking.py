"""Ranking of schedules of skinny GEMM with quantized weights whose codes are converted 16 bytes at a time
(`packed`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log2

from ..machine import target
from .ranking import LATENCY, Fixed, Ranked

BYTES = 16  # of codes in a load
ISSUED = 128 * 1700.0  # instructions of threads that an SM issues in a µs
EACH = {32: 2.2, 16: 2.4}  # instructions of a thread per number, by the numbers of 16 bytes: counted in SASS
GROUPED = 1.4  # the same where offsets and scales are applied to sums of products
BESIDE, RINGED = 50, 90  # further instructions of a thread in a round of loads into registers, and of copies
ROUND, COPIED = (0.6, 0.08), (0.3, 0.06)  # µs of a round for a warp and each of its tiles, with registers and copies
#: Prefetch distances that are tried, with whether codes stay in registers.
AHEAD = ((0, False), (2, True), (2, False), (4, False))
RING = 100 << 10  # limit of a block's ring in bytes: two blocks share a multiprocessor


@dataclass(frozen=True)
class PackedGemmRanking:
    """Description of a skinny GEMM with packed weights, to rank its schedules.

    `rows`, `columns` and `length` are M, N and K, `span` the numbers in 16 bytes of codes, `matrices` the number of
    right-hand matrices, `batch` the batch size, `splits` allows split-K, `own` holds the fixed schedule entries of
    short inner reductions. `grouped`: whether offsets and scales are applied to sums of products.
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
        """Yields (schedule, estimated µs): warps along K and N, tiles of 8 columns per warp, split-K factor, prefetch
        distance, and whether codes stay in registers."""
        for along, wide, tiles, (ahead, direct) in product((1, 2, 4, 8, 16), (1, 2, 4), (2, 4, 8), AHEAD):
            n, warps = 8 * tiles * wide, along * wide
            uneven = self.columns % n and self.columns < 8 * n
            registers = self._registers(tiles, not ahead or direct)
            if not 2 <= warps <= 16 or uneven or registers > min(255, target().registers // (32 * warps)):
                continue
            if self._ring(32 * warps, tiles, ahead, direct) > RING:
                continue
            for split in (1, 2, 4, 8) if self.splits else (1,):
                step = 4 * self.span * along
                if self.length % (self.span * split) or step >= 2 * max(self.length // split, 4 * self.span):
                    continue
                if ahead * step >= self.length // split:
                    continue
                schedule = {"warps": along, "wide": wide, "n": n, "split": split, "um": self.rows}
                more = ({"ahead": ahead} if ahead else {}) | ({"direct": 1} if direct else {})
                yield schedule | more | dict(self.own), self.us(along, wide, tiles, split, ahead, direct)

    def _registers(self, tiles: int, held: bool) -> int:
        """Estimated registers per thread: codes if they are `held`, converted numbers of two tiles, rows, accumulators
        and about 40 others."""
        octets = -(-self.rows // 8)
        codes = 4 * tiles if held else 0
        return self.matrices * (codes + self.span + 2 * tiles * octets) + octets * self.span // 2 + 40

    def _ring(self, threads: int, tiles: int, ahead: int, direct: bool) -> int:
        """Bytes of a block's ring in shared memory: codes, and the rows of each warp."""
        codes = 0 if direct else threads * tiles * BYTES * self.matrices
        rows = threads // 32 * 4 * self.span * 2 * (-(-self.rows // 8) * 8 if self.rows > 1 else 1)
        return (ahead + 1) * (codes + rows) if ahead else 0

    def us(
        self, along: int, wide: int, tiles: int, split: int, ahead: int = 0, direct: bool = False
    ) -> float:  # fmt: skip
        """Estimated time in µs: the larger of DRAM time, instruction time of the busiest SM, and latency of a warp.

        `along`, `wide`: warps along K and N; `tiles`: column fragments per warp; `split`: split-K factor; `ahead`:
        prefetch distance of copies into shared memory, 0 for registers; `direct`: codes are in registers nevertheless.
        DRAM time has a penalty for too few bytes in flight.
        """
        machine, threads, n = target(), 32 * along * wide, 8 * tiles * wide
        blocks = ceil(self.columns / n) * self.batch * split
        held = threads * self._registers(tiles, not ahead or direct)
        resident = max(1, min(machine.threads // threads, machine.registers // held))
        if ahead:
            ring = self._ring(threads, tiles, ahead, direct)
            resident = max(1, min(resident, machine.shared_per_block // ring))
        busy = blocks / machine.multiprocessors
        share = ceil(busy)
        rounds = ceil(self.length / split / (4 * self.span * along))
        numbers = self.length * n * self.matrices / split  # of a block
        padded = 4.0 * self.span * along * rounds * n * self.matrices
        dram = self.length * self.columns * self.matrices * self.batch * BYTES / self.span / machine.bytes_per_us
        flying = min(max(1.0, busy), resident) * threads * tiles * BYTES * self.matrices * min(1.0, numbers / padded)
        starved = 0.4 * max(0.0, log2((40 << 10) / (flying * (1 if direct else max(1, ahead)))))
        octets = -(-self.rows // 8)
        each = self.span * (GROUPED if self.grouped else EACH[self.span]) + 4 * (octets - 1)
        issued = share * threads * rounds * (self.matrices * tiles * each + (RINGED if ahead else BESIDE)) / ISSUED
        base, more = COPIED if ahead else ROUND
        latency = (LATENCY + (base + more * tiles * self.matrices) * rounds) * max(1.0, busy / resident)
        joined = (1.0 + 0.3 * split) * (split > 1) + 0.1 * log2(along) + 0.05 * tiles
        return 1.6 + max(dram * share / busy * exp(min(2.0, starved)), issued, latency) + joined


__all__ = ["PackedGemmRanking"]
