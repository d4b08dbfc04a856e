"""Ranking of candidate schedules of SIMT and skinny-GEMM CUDA kernels by an analytical cost model.

The model sees only a small description of the kernel (`RankingModel`), so kernels with equal descriptions share one
cached ranking. The constants were fitted to times measured on an H200. Estimated times are in µs; other ranks are
unitless. Lower is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log2, prod
from typing import Protocol

from ..ir.tiling import divisors, padded
from ..machine import cached_per_machine, target

Schedule = dict[str, int]  # in stored form (generate/schedule.py)
Fixed = tuple[tuple[str, int], ...]
Ranked = Iterator[tuple[Schedule, float]]

REGISTERS = 96  # limit of 4-byte values per thread: more would risk spills
SHARED = 11 << 10  # limit of values in one exchange through shared memory
WHOLE = 64  # limit of elements of a row that a thread holds at once
IN_FLIGHT = 40 << 10  # bytes in flight that an SM needs to saturate its share of the bandwidth (Little's law)
FLYING = 96  # bytes of loads that the compiler keeps in flight in one thread inside a loop
LATENCY = 0.9  # µs per dependent round of loads
ROUND, AHEAD_OF_K = (
    0.6,
    80 << 10,
)  # with vectors along K: µs per round of loads, bytes in flight beyond which more do not help
FASTEST = 5.5e4  # read bandwidth of one SM in bytes/µs
JOIN = 3.0  # µs to combine the partial results of split-K
AHEAD = 3  # prefetch distance of the cp.async pipeline in loop iterations
TOGETHER = 4  # vectors of a row for neighbouring threads to read: 1 took 2.9 times as long as 8, 2 took 1.4 times
SEGMENT = 32  # contiguous elements that a warp should write at once
RING = 47 << 10  # limit of a block's prefetch ring in bytes of shared memory
# operations per element of a norm, which loads of matrices hide, and operations of longer prologues that an SM issues
# in a µs
NORM, ISSUED = 6, 1.4e5
WARM = 8 << 20  # bytes of matrices from which an L2 prefetch before the wait was slower than none


FLAGS = ("direct",)  # parameters whose value 1 is stored


class RankingModel(Protocol):
    """Protocol of kernel descriptions that suffice to rank schedules. They are hashable, as keys of the cache of
    `ranked`.
    """

    def ranked(self) -> Ranked:
        """Yields (schedule in stored form, rank) of candidates; lower ranks are better."""
        ...


@cached_per_machine(4096)
def ranked(seen: RankingModel, count: int) -> tuple[Schedule, ...]:
    """Candidate schedules for a kernel description, in stored form, at most `count`, best rank first.

    About three quarters of them use programmatic dependent launch (`early`); the others are the best schedules without
    it. Of a product's `early` schedules every second one, from the first on, also prefetches matrices into L2 (`warm`);
    if matrices along K are large, every fourth one but not the first. A schedule that splits the reduction of a kernel
    with further reductions has no `warm`.
    """
    found: dict[Fixed, float] = {}
    for schedule, rank in seen.ranked():
        key = tuple(sorted((k, v) for k, v in schedule.items() if v != 1 or k[0] in "tu" or k in FLAGS))
        found[key] = min(rank, found.get(key, rank))
    ordered = _varied([dict(key) for key in sorted(found, key=lambda k: (found[k], k))])
    plain = ordered[: max(1, count // 4)]
    products = isinstance(seen, GemvRanking | SkinnyGemmRanking) and seen.columns > 1
    beside = isinstance(seen, GemvRanking | SkinnyGemmRanking) and bool(seen.own)  # reductions beside the product
    early = [s | {"early": 1} for s in ordered[: count - len(plain)]]
    large = isinstance(seen, GemvRanking) and seen.fitted and seen.nbytes > WARM
    for schedule in early[3::4] if large else early[::2] if products else ():
        if not beside or schedule.get("split", 1) == 1:
            schedule["warm"] = 1
    return (*early, *plain)


def _varied(ordered: Sequence[Schedule]) -> list[Schedule]:
    """The schedules reordered round-robin over kinds, so that measuring a few covers every kind.

    Schedules of one kind differ only in vector widths, in the repeats along the reduction and, with threads along the
    reduction, in the threads along columns. Tensor-core schedules (with `warps`) of one kind have equal column tiles
    `n` and equal prefetch distances.
    """
    alike: dict[tuple[int, ...], int] = {}
    turns: list[tuple[int, Schedule]] = []
    for s in ordered:
        beside = 0 if any(k.startswith("t") and k[1:].isdigit() for k in s) else s.get("tn", 1)
        key = (beside, *(s.get(k, 1) for k in ("tm", "un", "um", "t0", "t1", "split", "ahead")))
        key = (s["n"], s.get("ahead", 0), s.get("direct", 0)) if "warps" in s else key
        turns.append((alike.get(key, 0), s))
        alike[key] = alike.get(key, 0) + 1
    return [s for _, s in sorted(turns, key=lambda pair: pair[0])]


def _powers(low: int, high: int) -> list[int]:
    """Powers of two from `low` to `high`."""
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length())]


def _repeats(chunks: int, threads: int) -> list[int]:
    """Candidate repeat counts per thread.

    Powers of two below full coverage of `chunks` by `threads`, and full coverage if at most 16.
    """
    exact = -(-chunks // threads)
    return [*(r for r in (1, 2, 4, 8) if r < exact), *([exact] if exact <= 16 else [])]


def _busy(programs: int, threads: int) -> float:
    """Slowdown factor of idle SMs: wave quantization, or fewer blocks than SMs. `programs` is the number of blocks."""
    resident = max(1, target().threads // threads)
    waves = programs / (target().multiprocessors * resident)
    return -(-waves // 1) / waves if waves > 1 else max(1.0, target().multiprocessors / programs)


def _splits(length: int, tiles: int, step: int, uneven: bool = False) -> list[int]:
    """Candidate split-K factors, 1 first.

    At most 8 blocks per SM in total, at least `step` elements (or half the axis) per part.

    `tiles` is the number of output tiles. With `uneven`, the nearest divisors of `length` replace powers of two that do
    not divide it.
    """
    most, least = max(1, 8 * target().multiprocessors // tiles), max(2, min(step, length // 2))
    counts = divisors(length, _powers(2, 512)) if uneven else [s for s in _powers(2, 512) if length % s == 0]
    return [1, *(s for s in counts if s <= most and length // s >= least)]


@dataclass(frozen=True)
class ElementwiseRanking:
    """Description of an elementwise kernel or transpose, to rank its schedules: every element is read and written once.

    `fast` and `slow` name the dimensions ("m", "n") with the most and the least contiguous bytes, `length` and
    `breadth` are their sizes, `vector` and `across` the vector widths along them, `reads` the number of loads, `batch`
    the batch size. Where both widths exceed 1 (a transpose), each thread transposes a square of
    elements in its registers.
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
        """Yields (schedule, rank) of pointwise kernels; favours about 16 elements in flight per thread, coalesced
        accesses, and all SMs busy."""
        crossed = min(self.vector, self.across) > 1
        squares = [(a, b) for a, b in product((8, 4, 2), repeat=2) if a <= self.vector and b <= self.across]
        shapes = squares if crossed else [(self.vector, 1)]
        for (v, w), threads, repeat in product(shapes, (64, 128, 256, 512), (1, 2, 4)):
            held, whole = v * w * repeat, padded(-(-self.length // v))
            if (held * (self.reads + 1) > 2 * REGISTERS and held > 4) or (crossed and repeat > 1):
                continue
            for t in _powers(1, min(threads, whole)):
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
                    lost * _busy(prod(tiles) * self.batch, threads) + narrow + 0.1 * abs(held * self.reads - 16) / 16
                    + (abs(threads - 64) / 256 if crossed else abs(threads - 256) / 1024)
                    + 0.2 * (long > 2 * self.length)
                )  # fmt: skip
                yield {
                    f"t{self.fast}": t, f"v{self.fast}": v, f"t{self.slow}": rest, f"v{self.slow}": w,
                    f"u{self.slow if down else self.fast}": repeat,
                }, rank  # fmt: skip


@dataclass(frozen=True)
class RowReductionRanking:
    """Ranking description of kernels with row reductions and elementwise work on the same rows (softmax, layer norm).

    Rows stay in registers where they fit; longer rows are read again in each pass. `count` and `length` are the number
    and the length of rows, `vector` is the width along a row, `across` the width over neighbouring rows where results
    are stored transposed (a thread then transposes squares), `reads` the number of row operands, `batch` the batch
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
        """Yields (schedule, rank) of row reductions; favours about 16 elements in flight per thread and a row within
        one warp."""
        chunks, most = -(-self.length // self.vector), padded(max(1, self.count))
        whole = padded(chunks)
        for t in _powers(1, min(1024, whole)):
            for repeat in _repeats(chunks, t):
                held, walked = self.vector * repeat, repeat * t < chunks
                if held > WHOLE or (walked and (t < 128 or repeat > 4)):
                    continue
                for rows in _powers(1, min(most, 1024 // t)):
                    if t * rows < 32 and (t < whole or rows < most):
                        continue
                    for beside, more in self._rows_of(t, rows, walked):
                        under_way = held * beside * more * self.reads
                        if under_way > REGISTERS or (beside * more > 1 and rows * beside * more > self.count):
                            continue
                        programs = -(-self.count // (rows * beside * more)) * self.batch
                        run = beside * min(rows, max(1, 32 // t)) if self.across > 1 else SEGMENT
                        rank = (
                            _busy(programs, t * rows) + abs(t * rows - 256) / 1024 + 0.8 * walked
                            + 0.15 * abs(under_way - 16) / 16 + 0.15 * (t > 32) + 0.1 * (t > 256)
                            + max(0.0, log2(SEGMENT / run)) / 2
                        )  # fmt: skip
                        own = {"tm": rows, "vm": beside, "um": more, **dict(self.own)}
                        yield {"tn": t, "vn": self.vector, "un": repeat, **own}, rank

    def _rows_of(self, t: int, rows: int, walked: bool) -> list[tuple[int, int]]:
        """Candidate pairs (vector width over neighbouring rows, row repeats) of a thread."""
        if self.across > 1:
            return [(v, 1) for v in _powers(1, self.across)]
        return [(1, more) for more in ((1, 2, 4) if rows * t >= 64 and not walked else (1,))]


@dataclass(frozen=True)
class ReductionRanking:
    """Ranking description of kernels with reductions whose rows are not needed again (row and column sums).

    The longest axis may be split over blocks. `count` is the number of rows, `length` the length of the longest
    reduction axis, `axis` its index in `Shape.inner`. The vector of `vector` elements lies along the rows
    (`along_rows`: column sums of a row-major matrix) or along the reduction. `nbytes` is the memory traffic, `splits`
    allows split reductions, `own` holds the fixed schedule entries of short inner reductions.
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
        """Yields (schedule, estimated µs).

        Bandwidth time, multiplied by penalties for idle SMs, too few bytes in flight and uncoalesced reads, plus the
        cost of combining split parts.
        """
        vm, vk = (self.vector, 1) if self.along_rows else (1, self.vector)
        chunks, at = -(-self.length // vk), self.axis
        for threads in (128, 256, 512):
            for rows in _powers(1, min(threads, padded(-(-self.count // vm)))):
                t = min(threads // rows, padded(chunks))
                block, tiles = max(32, t * rows), -(-self.count // (rows * vm)) * self.batch
                if self.along_rows and rows * vm < 32 < self.count:
                    continue
                for depth, split in product(
                    _repeats(chunks, t), _splits(self.length, tiles, t * vk, True) if self.splits else (1,)
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
                        apart * self.nbytes / target().bytes_per_us * _busy(tiles * split, block) / min(1.0, waiting / IN_FLIGHT) ** 0.7
                        + (JOIN / 2 + 0.01 * split) * (split > 1) + 0.2 * (rows > 1 and not self.along_rows and t < 32)
                        + abs(block - 256) / 1024
                    )  # fmt: skip
                    schedule = {"tm": rows, "vm": vm, f"t{at}": t, f"v{at}": vk, f"u{at}": depth, "split": split}
                    yield schedule | dict(self.own), rank


@dataclass(frozen=True)
class GemvRanking:
    """Description of a skinny GEMM or GEMV on CUDA cores, to rank its schedules: bound by reading the matrices once.

    `rows`, `columns` and `length` are M, N and K, `axis` is the index of K in `Shape.inner`, `matrices` the number of
    right-hand matrices that share the loop, `itemsize` their element size in bytes. Vectors lie along N
    (`along_columns`) or along K. `whole`: a block must cover K, because a result lies along it. `vector`: elements of a
    vector. `splits`: whether split-K is possible. `own`: the fixed schedule entries of short inner reductions.
    `prologue`: operations for each element of the left operand, which every group of `tk` threads computes.
    """

    rows: int
    columns: int
    length: int
    axis: int
    vector: int
    along_columns: bool
    matrices: int
    itemsize: int
    batch: int
    splits: bool
    own: Fixed
    whole: bool = False
    prologue: int = 0

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs by `us`). Threads are laid out along N and along K."""
        vn, vk = (self.vector, 1) if self.along_columns else (1, self.vector)
        chunks, at = -(-self.length // vk), self.axis
        for threads in (64, 128, 256, 512, 1024):
            for tn in _powers(1, min(threads, 32, padded(-(-self.columns // vn)))):
                tk = min(threads // tn, padded(chunks))
                if (self.along_columns and tn < 4 and self.columns > 32) or (
                    not self.along_columns and tk < min(16, chunks)
                ):
                    continue
                for un in (1,) if self.along_columns else (1, 2, 4):
                    if tn * un > padded(self.columns):
                        continue
                    schedule = {"tn": tn, "vn": vn, "un": un, f"t{at}": tk, "um": self.rows, **dict(self.own)}
                    for more, depth, rank in self._depths(tn, vn * un, tk, vk):
                        yield schedule | more | {f"v{at}": vk, f"u{at}": depth}, rank
                        beside = next((v for v in (8, 4, 2) if depth % v == 0), 1) if self.along_columns else 1
                        if beside > 1:  # left-operand elements of a thread are contiguous: vector loads
                            yield schedule | more | {f"v{at}": beside, f"u{at}": depth // beside}, rank - 0.2

    def _depths(self, tn: int, held_n: int, tk: int, vk: int) -> Iterator[tuple[Schedule, int, float]]:
        """Yields (schedule entries of split-K factor and prefetch distance, repeats along K, rank) of combinations that
        fit registers and shared memory."""
        block, sums = max(32, tk * tn), self.rows * held_n * self.matrices
        lanes = min(tk, max(1, 32 // tn) if self.along_columns else 32)
        tiles = -(-self.columns // (tn * held_n)) * self.batch
        run = (
            tn * held_n if self.along_columns else tk * vk
        ) * self.itemsize  # contiguous bytes that a block reads at once
        for split in _splits(self.length, tiles, tk * vk) if self.splits else (1,):
            exchanged = block // lanes * sums * (1 + (split > 1))
            if exchanged > SHARED or self.rows * held_n * -(-split // tk) > WHOLE:
                continue
            for depth in _repeats(-(-self.length // (split * vk)), tk):
                if self.whole and tk * vk * depth < self.length:
                    continue
                held = held_n * vk * depth * self.matrices
                if (held + self.rows * vk * depth) * self.itemsize // 4 + sums > REGISTERS:
                    continue
                longest = 1 + (16 if self.along_columns else 70) / run
                us = self.us_along_k(tn, held_n, tk, depth, split)
                if not self.fitted:
                    stalled = 0.0 if self.along_columns else 0.03 * max(0.0, held * self.itemsize / 16 - 4)
                    us = longest * self.us(tn * held_n, tk, held, block, split) + stalled
                yield {"split": split}, depth, us
                rounds, ring = self.length // split / (tk * vk * depth), held * self.itemsize * block * (AHEAD + 1)
                if rounds > AHEAD and self.vector * self.itemsize == 16 and ring <= RING - 4 * exchanged:
                    us = self.us_along_k(tn, held_n, tk, depth, split, AHEAD)
                    if not self.fitted:
                        us = longest * self.us(tn * held_n, tk, held, block, split, ring)
                    yield {"split": split, "ahead": AHEAD}, depth, us

    @property
    def fitted(self) -> bool:
        """Whether `us_along_k` estimates this product's schedules: its vectors lie along K, and its elements need no
        conversion from bytes."""
        return not self.along_columns and self.itemsize > 1

    @property
    def nbytes(self) -> int:
        """Bytes of all right-hand matrices."""
        return self.columns * self.length * self.matrices * self.itemsize * self.batch

    def us_along_k(self, tn: int, held_n: int, tk: int, depth: int, split: int, ahead: int = 0) -> float:
        """Estimated time in µs with vectors along K, fitted to measured kernels of decode steps.

        `tn` threads along N hold `held_n` columns each, `tk` threads along K hold `depth` vectors each; `split`
        is the split-K factor, `ahead` the prefetch distance of cp.async copies. The larger of DRAM time and of
        one memory latency per round of loads and wave of blocks. DRAM time has penalties for uneven
        distribution of blocks, too few bytes in flight, short contiguous runs, and large matrices read by many
        loads of one thread.
        """
        machine, vector = target(), self.vector
        threads, sums = max(32, tk * tn), self.rows * held_n * self.matrices
        share = -(-self.columns // (tn * held_n)) * self.batch * split / machine.multiprocessors
        loaded = held_n * vector * depth * self.matrices * self.itemsize
        registers = 30 + loaded / 4 + self.rows * vector * depth * self.itemsize / 4 + sums
        resident = max(1, min(32, machine.threads // threads, int(machine.registers / (registers * threads))))
        uneven = ceil(share) / share if share <= resident else 1 + 0.3 * resident / share
        starved: float = max(1.0, AHEAD_OF_K / (min(share, resident) * threads * loaded)) ** 0.2
        short = 1 + 70 / (tk * vector * self.itemsize)
        serial = 1 + 0.08 * max(0.0, log2(loaded / 32)) if self.nbytes > WARM else 1.0
        rounds = ceil(self.length / (split * tk * vector * depth))
        wasted = rounds * tk * vector * depth * split / self.length
        memory = self.nbytes / machine.bytes_per_us * uneven * starved * short * serial
        latency = ROUND * (rounds / 2 if ahead else rounds) * max(1.0, share / resident)
        us = 1.0 + max(memory, latency) * (wasted if wasted > 1.3 else 1.0) + 0.005 * share
        us += (0.06 * sums + 0.1) * (1 + (tk > 32)) + 0.05 * max(0.0, log2(threads / 256))
        us += 0.05 * (vector * self.itemsize < 16) + us * (registers * threads > machine.registers)  # spills
        beyond = self.rows * max(0, self.prologue - NORM) * threads * vector * depth * rounds  # operations of a block
        us += beyond * share / ISSUED
        return us * (1.15 if ahead else 1.0) + (JOIN + 0.03 * split if split > 1 else 0.0)

    def us(self, columns: int, across: int, held: int, threads: int, split: int, ring: int = 0) -> float:
        """Estimated time in µs where `us_along_k` does not apply (not `fitted`).

        A block of `threads` threads computes `columns` columns with `across` threads along K; each thread holds
        `held` matrix elements per iteration, of which the compiler keeps only some loads in flight; `split` is
        the split-K factor. An iteration takes its bandwidth time or the memory latency, whichever is longer.
        With a prefetch ring of `ring` bytes, `AHEAD` iterations are in flight.
        """
        share = -(-self.columns // columns) * self.batch * split / target().multiprocessors
        sums = self.rows * self.matrices * max(1.0, columns * across / threads)
        of_block = self.length // split * columns * self.matrices * self.itemsize
        rounds = of_block / (threads * held * self.itemsize)
        flying = min(held * self.itemsize, FLYING if rounds > 1 else 2 * FLYING)
        rounds = max(1.0, rounds) * held * self.itemsize / flying / (AHEAD if ring else 1)
        resident = max(
            1, min(32, target().threads // threads, int(target().registers / (threads * (22 + flying / 4 + sums))))
        )
        resident = max(1, min(resident, target().shared_per_block // ring)) if ring else resident
        found = 0.0
        while share > 0:
            blocks = -(-min(share, resident) // 1)
            found += max(rounds * LATENCY, blocks * of_block / (target().bytes_per_us / target().multiprocessors))
            share -= resident
        joined = JOIN + 0.03 * split if split > 1 else 0.0
        large = 0.3 * max(0, threads.bit_length() - 9)  # blocks of more than 256 threads start and finish later
        return found + 1.2 + 0.006 * sums * across.bit_length() + 0.15 * (across > 32) + large + joined


FINE = 32  # column counts that are multiples of this must be divided evenly by the tile
WASTED = 8  # others may be divided unevenly, into so many blocks that the partial last one costs little


@dataclass(frozen=True)
class SkinnyGemmRanking:
    """Description of a skinny GEMM of at most 32 rows on tensor cores, to rank its schedules.

    The kernel is bound by reading the matrices once, straight into registers, so as many bytes as possible must be
    in flight from the start. `rows`, `columns` and `length` are M, N and K, `matrices` the number of right-hand
    matrices, `batch` the batch size; `splits` allows split-K; `own` holds the fixed schedule entries of short inner
    reductions.
    """

    rows: int
    columns: int
    length: int
    matrices: int
    batch: int
    splits: bool
    own: Fixed

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs by `us`).

        Warps along K and N, column fragments per warp, K chunks per warp and iteration, split-K factor.
        """
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
        flying = (
            min(max(1.0, blocks / target().multiprocessors), resident) * n * along * deep * self.matrices * 64 * used
        )
        share = min(1.0, total / target().multiprocessors / (96 << 10))  # small problems need fewer bytes in flight
        slower = (
            share * (0.4 * max(0.0, log2((40 << 10) / flying)) + 0.27 * max(0.0, log2((96 << 10) / flying)))
            + 0.12 * (split > 1) * split + 0.12 * (warps > 8) + 0.18 * (warps > 16) + 0.1 * (heights - 1)
            + {1: -0.25, 2: -0.1, 4: 0.0, 8: 0.22, 16: 0.4}[deep] * share
            + {1: 0.25, 2: -0.04, 4: 0.0}.get(tiles * self.matrices, 0.14)
        )  # fmt: skip
        waves = ceil(blocks / (target().multiprocessors * resident))
        return 1.6 + max(max(total / target().bytes_per_us, busiest) * exp(slower), LATENCY * rounds * waves)
