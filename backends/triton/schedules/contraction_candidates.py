"""Candidate Triton schedules of contractions with their ranks: skinny, tiled and back-to-back GEMM. Ranks are estimated
times in µs; the constants were fitted to times measured on an H200."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ...ir.tiling import padded
from ...machine import target
from .facts import KernelFacts
from .legality import each, tiles_fit
from .parameters import Ranked, TileSchedule, block_sizes


def contraction_candidates(facts: KernelFacts) -> Ranked:
    """Products of matrices, by form: back-to-back, skinny or tiled GEMM."""
    if facts.middle:
        yield from _behind(facts)
    elif facts.walked:
        yield from _streamed(facts) if facts.few else _squared(facts)  # else products are nested in reductions


NEAR = 1.2e5  # maximum L2 read bandwidth of an SM in bytes/µs, for ranking only
ROUND = 1.4  # µs per exposed load latency
LOW = 1.3  # slowdown of tiles with fewer than 64 rows, which cannot use wgmma
CROWD = 0.6  # µs penalty for eight warps on a small tile
OWN = 54  # registers of a thread besides those of tiles
JOIN = 0.7  # µs for the last program to combine split-K, without the cost per part
HELD_ACCUMULATORS = 8, 160  # accumulators per thread: fewer starve the tensor cores, more spill


def _squared(facts: KernelFacts) -> Ranked:
    """Tiled GEMM with many rows. The rank is the estimated time in µs.

    Loads of tiles cost more than their products; a program's prologue and epilogue are hidden only by other programs on
    the same SM. Small products are bound by the latency of dependent loads, so deep pipelines help.
    """
    work = 1.4 * facts.m * facts.n * facts.size * facts.sums * facts.batch / RATE / target().multiprocessors
    rows = block_sizes(facts.m, (32, 64, 128, 256), 16)[-3:]
    for m, n, k in product(
        rows, block_sizes(facts.n, (32, 64, 128, 256), 16), block_sizes(facts.size, (32, 64, 128), 16)
    ):
        tiles = -(-facts.m // m), -(-facts.n // n)
        programs, size = prod(tiles) * facts.batch, m * n * facts.sums
        full = programs * m * n / (facts.m * facts.n * facts.batch)  # padding overhead: computed per existing element
        again = _again(facts, *tiles) + 0.5 * any(by % k for by in facts.periods)
        tile = TileSchedule(m, n, 8, 2, facts.depths(k), 8 if tiles[0] > 1 else 1, boxes=facts.boxed)
        staged = facts.staged(tile)
        if not tiles_fit(facts, tile):  # fewer warps or more stages fit even less
            continue
        parts = list(facts.parts(tile)) if programs < 2 * target().multiprocessors else [1]
        for warps, stages in product((4, 8), (2, 3, 4, 6, 8)):
            if (
                not HELD_ACCUMULATORS[0] <= each(size, warps) <= HELD_ACCUMULATORS[1]
                or stages * staged > target().shared_per_block
            ):
                continue
            schedule = tile.but(warps=warps, stages=stages)
            resident = max(1, min(target().shared_per_block // max(stages * staged, 1), 16 // warps))
            wide = 0.3 if each(size, warps) > 64 else 0.2 if each(size, warps) <= 32 else 0
            for split in parts:
                if split > 1 and (facts.size // split < 4 * k or (facts.periods and facts.size // split % k)):
                    continue
                waves = programs * split / target().multiprocessors
                tail = -(-waves // 1) / waves
                ends = (128 * stages + 256) * split / facts.size / resident
                rank = (
                    tail * full * (0.4 + 40 * (1 / m + 1 / n)) + again + ends
                    + 0.1 * (split > 1) + 0.02 * split + 0.1 * abs(stages - 3) + 0.4 * (k == 32) + wide
                )  # fmt: skip
                waits = -(-facts.size // split // k) / (stages - 1) * ROUND * -(-waves // resident)
                reads = (m + n * facts.sums) * facts.size * facts.width / split * -(-waves // 1) / NEAR
                us = max(rank * work, waits, reads) * (LOW if m < 64 else 1.0)
                us += (JOIN + 0.25 * split) * (split > 1) + CROWD * (warps == 8 and size <= 64 * 64)
                yield schedule.cut(split), us


def _again(facts: KernelFacts, tiles_m: int, tiles_n: int) -> float:
    """Recomputed work of products, relative to their work without recomputation.

    A product that does not depend on the columns (rows) is computed again for each tile of columns (rows).
    """
    again = sum(work * (1 if rows else tiles_m) * (1 if cols else tiles_n) for work, rows, cols in facts.dots)
    return again / sum(work for work, *_ in facts.dots) - 1


BANDWIDTH, CACHE = 4.0e6, 2.0e7  # bytes/µs of DRAM and of L2, for ranking only


IN_FLIGHT = 40 << 10  # bytes in flight that an SM needs to saturate its share of the bandwidth


def _streamed(facts: KernelFacts) -> Ranked:
    """Skinny GEMM, bound by reading the right-hand matrices once. The rank is the estimated time in µs."""
    m = padded(max(facts.m, 16)) if facts.rows else 1
    columns = (16, 32, 64, 128, 256) if facts.rows else (4, 8, 16, 32, 64, 128, 256)
    depths = block_sizes(facts.size, (16, 32, 64, 128, 256, 512, 1024), 16 if facts.rows else 1)
    stages, least = ((2, 3, 4, 5, 6, 8), 4) if facts.rows else ((3,), 8)
    for n, k in product(block_sizes(facts.n, columns), depths):
        tile, base = n * k * facts.sums, TileSchedule(m, n, 8, stages[0], facts.depths(k))
        large = [w for w in (2, 4, 8) if tile >= 512 and each(tile, w) >= least]
        warps = [w for w in large if tiles_fit(facts, base.but(warps=w))]
        if not warps:
            continue
        # legal numbers of stages do not depend on the warps: one limits shared memory, the other one registers
        own = base.but(warps=warps[-1])
        deep = [stages[0], *(s for s in stages[1:] if tiles_fit(facts, own.but(stages=s)))]
        parts, narrow = [*facts.parts(base)], 0.3 * (n * facts.width < 64)
        for wide, count in product(warps, deep):
            schedule = base.but(warps=wide, stages=count)
            for split, us in zip(parts, _streaming(facts, schedule, tile, k, parts)):
                yield schedule.cut(split), us + narrow


def _streaming(facts: KernelFacts, s: TileSchedule, tile: int, k: int, parts: Sequence[int]) -> Iterator[float]:
    """Estimated µs in which a skinny GEMM reads its right-hand matrices, in tiles of `tile` elements, for each split-K
    factor of `parts`; `k`: K tile."""
    size, width, units = facts.size, facts.width, target().multiprocessors
    tiles = -(-facts.n // s.n) * facts.batch
    shared = s.stages * (s.m * k + tile) * width if facts.rows else 0
    resident = max(1, min(target().shared_per_block // shared if shared else 16, 64 // s.warps))
    dense = width * size * facts.n * facts.sums * facts.batch
    reread = tiles * s.m * size * width / CACHE
    for split in parts:
        share = tiles * split / units  # programs per SM
        ahead = max(1, min(s.stages - 1, size // split // k)) if facts.rows else 1
        waiting = min(share, resident) * tile * width * ahead
        busy = -(-share // resident) * resident / share if share > resident else -(-share // 1) / share
        joining = (0.3 + 0.2 * split if facts.rows else 1.0 + 0.03 * split) * (split > 1)
        read = dense / BANDWIDTH * busy / min(1.0, waiting / IN_FLIGHT) ** 0.7
        yield float(read + reread + joining + 0.1 * abs(s.warps - 4))


RATE, FROM_CACHE, LATENCY = (
    5e6,
    3.5e4,
    0.7,
)  # per SM: flops/µs, L2 bytes/µs; µs of a load's latency


def _behind(facts: KernelFacts) -> Ranked:
    """Back-to-back GEMMs (a product of another product's result).

    The rank is the estimated time in µs, the larger of an SM's throughput time and of its programs' latency.
    """
    rows, columns = block_sizes(facts.m, (16, 32, 64, 128), 16), block_sizes(facts.n, (32, 64, 128, 256), 16)
    for m, n, k in product(rows, columns, block_sizes(facts.size, (32, 64, 128, 256), 16)):
        tiles = -(-facts.n // n)
        tile = TileSchedule(m, n, 8, 2, facts.depths(k), boxes=facts.boxed)
        first = sum(
            prod(facts.inner[i] for i in x.inner) * (m if x.rows else 1) * x.itemsize for x in facts.loads if not x.cols
        )
        after = facts.middle * n * facts.width
        for warps, stages, walk in product((4, 8), (2, 3, 4), (0, 1) if tiles > 1 else (0,)):
            group = 8 if not walk and tiles > 1 else None
            schedule = tile.but(warps=warps, stages=stages, walk=bool(walk), group=group)
            if not tiles_fit(facts, schedule):
                continue
            each_walks = tiles if walk else 1
            share = -(-facts.m // m) * facts.batch * tiles / each_walks / target().multiprocessors
            shared = max(stages * facts.staged(tile), after * (stages if walk else 1))
            resident = max(1, min(target().shared_per_block // max(shared, 1), 16 // warps))
            loaded = first + each_walks * (after + 2 * m * n * facts.width)
            worked = 2 * m * facts.middle * (facts.size + each_walks * n)
            waits = 2 * LATENCY + (-(-facts.size // k) + (each_walks if walk else 0)) * LATENCY / stages
            tight = 0.1 * share if each(m * (n * facts.sums + facts.middle), warps) > HELD_ACCUMULATORS[1] else 0
            busy = max(1.0, share) * max(worked / RATE * (1 if m >= 64 else 2), loaded / FROM_CACHE)
            yield schedule, max(busy, -(-share // resident) * waits) + waits / 4 + tight
