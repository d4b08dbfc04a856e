"""Ranks schedules (tuning parameters) of GEMV and skinny GEMM (few rows) on CUDA cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2

from ...ir.tiling import padded
from ...machine import target
from .model import (
    JOIN,
    LATENCY,
    REGISTERS,
    WHOLE,
    Fixed,
    Ranked,
    RankingModel,
    Schedule,
    powers,
    repeats,
    splits,
    unsplit_beside,
)

SHARED = 11 << 10  # limit of values in one exchange through shared memory
MAX_IN_FLIGHT = 96  # bytes of loads that the compiler keeps in flight in one thread inside a loop
ROUND = 0.6  # µs per round of loads, with vectors along K
AHEAD_OF_K = 80 << 10  # bytes in flight beyond which more do not help, with vectors along K
AHEAD = 3  # prefetch distance of the cp.async pipeline in loop iterations
RING = 47 << 10  # limit of a block's prefetch ring in bytes of shared memory
NORM = 6  # operations per element of a norm, which loads of matrices hide
ISSUED = 1.4e5  # operations of longer prologues that an SM issues in a µs
# µs of staging a row: for each block of an SM, each doubling of a block's threads, each operation of a thread
STAGED, BARRIERS, SERIAL = 0.15, 0.05, 0.0015
WARM = 8 << 20  # bytes of matrices from which an L2 prefetch before the wait was slower than none


@dataclass(frozen=True)
class GemvRanking(RankingModel):
    """Description of a skinny GEMM or GEMV on CUDA cores, from which its schedules are ranked; its time is that of
    reading the matrices once.

    `rows`, `columns` and `length` are M, N and K, `batch` is the batch size, `axis` the index of K in `Shape.inner`,
    `matrices` the number of right-hand matrices that share the loop, `itemsize` their element size in bytes. Vectors
    lie along N (`along_columns`) or along K. `whole`: a block must cover K, because a result lies along it. `vector`:
    elements of a vector. `splits`: whether split-K is possible. `own`: the fixed schedule entries of short inner
    reductions. `prologue`: operations for each element of the left operand, which every group of `tk` threads computes,
    or every block once (`staged`).
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
    staged: bool = False

    def ranked(self) -> Ranked:
        """Yields (schedule, estimated µs) for candidates whose threads are laid out along N and along K."""
        vn, vk = (self.vector, 1) if self.along_columns else (1, self.vector)
        chunks, at = -(-self.length // vk), self.axis
        for threads in (64, 128, 256, 512, 1024):
            for tn in powers(1, min(threads, 32, padded(-(-self.columns // vn)))):
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

    def prefetching(self, early: Sequence[Schedule]) -> Sequence[Schedule]:
        """Those of the schedules `early` that also prefetch matrices into L2 (`RankingModel.prefetching`): every second
        one from the first on; for large matrices along K every fourth one, but not the first."""
        if self.fitted and self.nbytes > WARM:
            return unsplit_beside(early[3::4], self.own)
        return unsplit_beside(early[::2], self.own) if self.columns > 1 else ()

    def _depths(self, tn: int, held_n: int, tk: int, vk: int) -> Iterator[tuple[Schedule, int, float]]:
        """Yields (schedule entries of split-K factor and prefetch distance, repeats along K, rank) of combinations that
        fit registers and shared memory."""
        block, sums = max(32, tk * tn), self.rows * held_n * self.matrices
        lanes = min(tk, max(1, 32 // tn) if self.along_columns else 32)
        tiles = -(-self.columns // (tn * held_n)) * self.batch
        run = (
            tn * held_n if self.along_columns else tk * vk
        ) * self.itemsize  # contiguous bytes that a block reads at once
        for split in splits(self.length, tiles, tk * vk) if self.splits else (1,):
            exchanged = block // lanes * sums * (1 + (split > 1))
            if exchanged > SHARED or self.rows * held_n * -(-split // tk) > WHOLE:
                continue
            for depth in repeats(-(-self.length // (split * vk)), tk):
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
        """Bytes of all right-hand matrices, which the kernel reads once."""
        return self.columns * self.length * self.matrices * self.itemsize * self.batch

    def us_along_k(self, tn: int, held_n: int, tk: int, depth: int, split: int, ahead: int = 0) -> float:
        """Estimated time in µs with vectors along K, fitted to measured kernels of decode steps: the larger of DRAM
        time and of one memory latency per round of loads and wave of blocks.

        `tn` threads along N hold `held_n` columns each, `tk` threads along K hold `depth` vectors each; `split` is the
        split-K factor, `ahead` the prefetch distance of cp.async copies in iterations. DRAM time is increased by
        penalties for uneven distribution of blocks, too few bytes in flight, short contiguous runs, and large matrices
        read by many loads of one thread.
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
        each = max(0, self.prologue - NORM) * threads * vector * depth * rounds
        beyond = self.rows * (self.prologue * self.length if self.staged else each)  # operations of a block
        us += beyond * share / ISSUED
        if self.staged:
            us += STAGED * share + BARRIERS * log2(threads / 32) + SERIAL * self.prologue * self.length / threads
        return us * (1.15 if ahead else 1.0) + (JOIN + 0.03 * split if split > 1 else 0.0)

    def us(self, columns: int, across: int, held: int, threads: int, split: int, ring: int = 0) -> float:
        """Estimated time in µs of a schedule for which `us_along_k`, the model fitted to measurements, does not apply.

        A block of `threads` threads computes `columns` columns with `across` threads along K; each thread holds `held`
        matrix elements per iteration, of which the compiler keeps only some loads in flight; `split` is the split-K
        factor. An iteration takes its bandwidth time or the memory latency, whichever is longer. With a prefetch ring
        of `ring` bytes, `AHEAD` iterations are in flight.
        """
        share = -(-self.columns // columns) * self.batch * split / target().multiprocessors
        sums = self.rows * self.matrices * max(1.0, columns * across / threads)
        of_block = self.length // split * columns * self.matrices * self.itemsize
        rounds = of_block / (threads * held * self.itemsize)
        in_flight = min(held * self.itemsize, MAX_IN_FLIGHT if rounds > 1 else 2 * MAX_IN_FLIGHT)
        rounds = max(1.0, rounds) * held * self.itemsize / in_flight / (AHEAD if ring else 1)
        resident = max(
            1, min(32, target().threads // threads, int(target().registers / (threads * (22 + in_flight / 4 + sums))))
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
