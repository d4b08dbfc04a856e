"""Ranking of schedules of elementwise kernels, transposes, and row and column reductions on CUDA cores."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import log2, prod

from ...ir.tiling import padded
from ...machine import target
from .model import (
    JOIN,
    REGISTERS,
    WHOLE,
    Fixed,
    Ranked,
    RankingModel,
    busy,
    powers,
    repeats,
    splits,
)

IN_FLIGHT = 40 << 10  # bytes in flight that an SM needs to saturate its share of the bandwidth (Little's law)
TOGETHER = 4  # vectors of a row for neighbouring threads to read: 1 took 2.9 times as long as 8, 2 took 1.4 times
SEGMENT = 32  # contiguous elements that a warp should write at once


@dataclass(frozen=True)
class ElementwiseRanking(RankingModel):
    """Description of an elementwise kernel or transpose, from which its schedules are ranked; every element is read and
    written once.

    `fast` and `slow` name the dimensions ("m", "n") with the most and the least contiguous bytes, `length` and
    `breadth` are their sizes, `vector` and `across` the vector widths along them, `reads` the number of loads, `batch`
    the batch size. Where both widths exceed 1 (a transpose), each thread transposes a square of elements in its
    registers.
    """

    fast: str
    slow: str
    length: int
    breadth: int
    vector: int
    across: int
    reads: int
    batch: int

    def ranked(self) -> Ranked:
        """Yields (schedule, rank); favours about 16 elements in flight per thread, coalesced accesses, and all SMs
        busy."""
        crossed = min(self.vector, self.across) > 1
        squares = [(a, b) for a, b in product((8, 4, 2), repeat=2) if a <= self.vector and b <= self.across]
        shapes = squares if crossed else [(self.vector, 1)]
        for (v, w), threads, repeat in product(shapes, (64, 128, 256, 512), (1, 2, 4)):
            held, whole = v * w * repeat, padded(-(-self.length // v))
            if (held * (self.reads + 1) > 2 * REGISTERS and held > 4) or (crossed and repeat > 1):
                continue
            for t in powers(1, min(threads, whole)):
                if not crossed and t < min(threads, whole, 32):
                    continue
                rest = min(threads // t, padded(-(-self.breadth // w)))
                down = self.breadth // w >= rest * repeat and (t == whole or crossed)
                long, broad = t * v * (1 if down else repeat), rest * w * (repeat if down else 1)
                if long > 2 * padded(self.length):
                    continue
                tiles = -(-self.length // long), -(-self.breadth // broad)
                lost = tiles[0] * long / max(1, self.length) * tiles[1] * broad / max(1, self.breadth)
                narrow = 0.3 * (8 / v + 8 / w - 2) + abs(t - 8) / 16 if crossed else 0.5 * (t < min(32, whole))
                rank = (
                    lost * busy(prod(tiles) * self.batch, threads) + narrow + 0.1 * abs(held * self.reads - 16) / 16
                    + (abs(threads - 64) / 256 if crossed else abs(threads - 256) / 1024)
                    + 0.2 * (long > 2 * self.length)
                )  # fmt: skip
                yield {
                    f"t{self.fast}": t, f"v{self.fast}": v, f"t{self.slow}": rest, f"v{self.slow}": w,
                    f"u{self.slow if down else self.fast}": repeat,
                }, rank  # fmt: skip


@dataclass(frozen=True)
class RowReductionRanking(RankingModel):
    """Description of a kernel with row reductions and elementwise work on the same rows (softmax, layer norm), from
    which its schedules are ranked.

    Rows stay in registers where they fit; longer rows are read again in each pass. `count` and `length` are the number
    and the length of rows, `vector` is the width along a row, `across` the width over neighbouring rows where results
    are stored transposed (each thread transposes square pieces), `reads` the number of row operands, `batch` the batch
    size, `own` the fixed schedule entries of short inner reductions.
    """

    count: int
    length: int
    vector: int
    across: int
    reads: int
    batch: int
    own: Fixed

    def ranked(self) -> Ranked:
        """Yields (schedule, rank); favours about 16 elements in flight per thread and a row within one warp."""
        chunks, most = -(-self.length // self.vector), padded(max(1, self.count))
        whole = padded(chunks)
        for t in powers(1, min(1024, whole)):
            for repeat in repeats(chunks, t):
                held, walked = self.vector * repeat, repeat * t < chunks
                if held > WHOLE or (walked and (t < 128 or repeat > 4)):
                    continue
                for rows in powers(1, min(most, 1024 // t)):
                    if t * rows < 32 and (t < whole or rows < most):
                        continue
                    for beside, more in self._rows_of(t, rows, walked):
                        under_way = held * beside * more * self.reads
                        if under_way > REGISTERS or (beside * more > 1 and rows * beside * more > self.count):
                            continue
                        programs = -(-self.count // (rows * beside * more)) * self.batch
                        run = beside * min(rows, max(1, 32 // t)) if self.across > 1 else SEGMENT
                        rank = (
                            busy(programs, t * rows) + abs(t * rows - 256) / 1024 + 0.8 * walked
                            + 0.15 * abs(under_way - 16) / 16 + 0.15 * (t > 32) + 0.1 * (t > 256)
                            + max(0.0, log2(SEGMENT / run)) / 2
                        )  # fmt: skip
                        own = {"tm": rows, "vm": beside, "um": more, **dict(self.own)}
                        yield {"tn": t, "vn": self.vector, "un": repeat, **own}, rank

    def _rows_of(self, t: int, rows: int, walked: bool) -> list[tuple[int, int]]:
        """Candidate pairs (vector width over neighbouring rows, row repeats) of a thread."""
        if self.across > 1:
            return [(v, 1) for v in powers(1, self.across)]
        return [(1, more) for more in ((1, 2, 4) if rows * t >= 64 and not walked else (1,))]


@dataclass(frozen=True)
class ReductionRanking(RankingModel):
    """Description of a kernel with reductions whose rows are not needed again (row and column sums), from which its
    schedules are ranked.

    The longest axis may be split over blocks. `count` is the number of rows, `length` the length of the longest
    reduction axis, `axis` its index in `Shape.inner`, `batch` the batch size. The vector of `vector` elements lies
    along the rows (`along_rows`: column sums of a row-major matrix) or along the reduction. `nbytes` is the memory
    traffic, `splits` allows split reductions, `own` holds the fixed schedule entries of short inner reductions.
    """

    count: int
    length: int
    axis: int
    vector: int
    along_rows: bool
    nbytes: float
    batch: int
    splits: bool
    own: Fixed

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs): bandwidth time, multiplied by penalties for idle SMs, too few bytes in
        flight and uncoalesced reads, plus the cost of combining split parts."""
        vm, vk = (self.vector, 1) if self.along_rows else (1, self.vector)
        chunks, at = -(-self.length // vk), self.axis
        for threads in (128, 256, 512):
            for rows in powers(1, min(threads, padded(-(-self.count // vm)))):
                t = min(threads // rows, padded(chunks))
                block, tiles = max(32, t * rows), -(-self.count // (rows * vm)) * self.batch
                if self.along_rows and rows * vm < 32 < self.count:
                    continue
                for depth, split in product(
                    repeats(chunks, t), splits(self.length, tiles, t * vk, uneven=True) if self.splits else (1,)
                ):
                    if vk * vm * depth > WHOLE or (split > 1 and t * vk * depth * split > self.length):
                        continue
                    waiting = (
                        min(target().threads, -(-tiles * split // target().multiprocessors) * block)
                        * vm
                        * vk
                        * depth
                        * 2
                    )
                    apart = max(1.0, TOGETHER / t) ** 0.6 if rows > 1 and not self.along_rows else 1.0
                    rank = (
                        apart * self.nbytes / target().bytes_per_us * busy(tiles * split, block) / min(1.0, waiting / IN_FLIGHT) ** 0.7
                        + (JOIN / 2 + 0.01 * split) * (split > 1) + 0.2 * (rows > 1 and not self.along_rows and t < 32)
                        + abs(block - 256) / 1024
                    )  # fmt: skip
                    schedule = {"tm": rows, "vm": vm, f"t{at}": t, f"v{at}": vk, f"u{at}": depth, "split": split}
                    yield schedule | dict(self.own), rank
