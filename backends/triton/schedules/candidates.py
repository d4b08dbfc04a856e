"""Lists candidate Triton schedules (tuning parameters), best guess first: a grid of parameters and an analytical
ranking for each kind of kernel.

schedules/parameters.py declares schedules, schedules/legality.py decides legality; illegal schedules are never
compiled. The constants were fitted to times measured on an H200. Lower ranks are better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import groupby, product
from math import log2, prod
from operator import itemgetter

from ...generate.schedule import Key
from ...generate.strategy import COUNT
from ...ir.kernel import Kernel
from ...ir.precision import TF32, Precision
from ...ir.tiling import Shape, padded
from ...machine import cached_per_machine, target
from .facts import FEW, KernelFacts, facts_of
from .legality import LITTLE, each, legal, tiles_fit
from .parameters import TileSchedule

LINE = 32  # float32 elements in a line of shared memory
SUMS = 64  # accumulators per thread that leave registers for split operands
SMALL = 2048  # elements of a small program: launching one takes about 1.2 ns, as long as moving 5 KiB
THOUSANDS = 4096  # number of programs of a kernel beyond which the cost of launching small ones (`SMALL`) counts
SEGMENT = 64  # contiguous rows to be written at once: a norm took 9.6 us with 64, 20 with 8
Ranked = Iterator[tuple[TileSchedule, float]]


def schedules(kernel: Kernel, shape: Shape, count: int = COUNT, *, splits: bool = True) -> list[TileSchedule]:
    """At most `count` schedules for `kernel`, whose axes have the roles `shape` (row, column, batch, reduction), best
    guess first; empty if none is legal.

    `splits`: whether the reduction may be split (split-K).
    """
    facts = facts_of(kernel, shape, splits)
    found = _begun(_ranked(_read(facts), count), count)
    together = [s.but(beside=True) for s in found if facts.beside > 1]
    fitting = [s for s in together if legal(facts, s)]
    return [*fitting[:1], *found[:1], *fitting[1:], *found[1:]][:count] if fitting else found


def rounding_schedules(
    kernel: Kernel, shape: Shape, count: int, splits: bool, precision: Precision
) -> list[TileSchedule]:
    """At most `count` schedules whose float32 products have the given input `precision`, best guess first. `splits`:
    whether the reduction may be split (split-K).

    On an H200 the best schedules for many rows had K tiles of one line of shared memory (32 floats); with more than 64
    accumulators per thread, split operands did not fit into registers (161 instead of 106 µs).
    """
    found = schedules(kernel, shape, 8 * count, splits=splits)
    if shape.kind == "contraction" and shape.m > FEW:
        main = facts_of(kernel, shape, splits).main
        most = math.inf if precision is TF32 else SUMS
        found.sort(key=lambda s: (s.k[main] > LINE) + (each(s.m * s.n, s.warps) > most))
    return [s.but(precision=precision.number) for s in found[:count]]


def _begun(ranked: Sequence[TileSchedule], count: int) -> list[TileSchedule]:
    """At most `count` schedules: the best ranked one, then the ranked ones with programmatic dependent launch, then the
    others without it.

    On an H200 early launch saved 5 to 14 % for split attention and for row kernels with few programs; row kernels with
    tens of thousands of programs took twice as long.
    """
    early = [s.but(early=True) for s in ranked][: count - count // 4]
    return [*ranked[:1], *early, *ranked[1:]][:count]


def _read(facts: KernelFacts) -> KernelFacts:
    """The facts without those that no ranking of a skinny GEMM reads, so that kernels with other prologues and
    epilogues share it; the facts of other kernels as they are."""
    if facts.kind != "contraction" or facts.middle or not facts.walked or not facts.few:
        return facts
    loads = sorted((x for x in facts.loads if x.inner), key=astuple)
    return replace(
        facts, loads=tuple(loads), boxed=False, dots=(), periods=frozenset(), transposed=False, beside=1, held=0, heavy=False
    )  # fmt: skip


@cached_per_machine(4096)
def _ranked(facts: KernelFacts, count: int) -> tuple[TileSchedule, ...]:
    """Ranked candidate schedules of a kernel's facts, at most `count`."""
    found = sorted(_KINDS[facts.kind](facts), key=itemgetter(1))
    return tuple(_varied(_ordered(found), count))


def _ordered(found: Sequence[tuple[TileSchedule, float]]) -> Iterator[TileSchedule]:
    """The distinct schedules by rank, ties by their stored form.

    Lazy: of hundreds of legal schedules only the first few are wanted.
    """
    seen: set[Key] = set()
    for _, alike in groupby(found, key=itemgetter(1)):
        keys = {schedule.key: schedule for schedule, _ in alike}
        for key in sorted(keys.keys() - seen):
            seen.add(key)
            yield keys[key]


def _varied(ordered: Iterable[TileSchedule], count: int) -> Iterator[TileSchedule]:
    """`count` schedules in order of rank, at most four for each (m, n, split); if these are fewer than `count`, the
    next best ones follow."""
    alike: dict[tuple[int, int, int], int] = {}
    taken = 0
    later = []
    for s in ordered:
        if taken >= count:
            return
        tile = s.m, s.n, s.scratch_parts
        alike[tile] = alike.get(tile, 0) + 1
        if alike[tile] > 4:
            later.append(s)
        else:
            taken += 1
            yield s
    yield from later[: count - taken]


def _blocks(size: int, options: Sequence[int], least: int = 1) -> list[int]:
    """Options that are at least `least` and at most the padded size; at least one value."""
    limit = max(padded(size), least)
    kept = [o for o in options if least <= o <= limit]
    return kept or [limit if limit < options[0] else options[0]]


def _pointwise(facts: KernelFacts) -> Ranked:
    """Elementwise kernels; ranked by elements per thread, idle SMs and coalescing."""
    rows = _blocks(facts.m, (1, 2, 4, 8, 16, 32, 64)) if facts.rows else (1,)
    few, base = (1,) if facts.heavy else (), TileSchedule(1, 1, 1, 1)
    for n, m, warps in product(_blocks(facts.n, (32, 64, 128, 256, 512, 1024, 2048, 4096)), rows, (*few, 2, 4, 8)):
        schedule = base.but(m=m, n=n, warps=warps)
        if tiles_fit(facts, schedule):
            programs = -(-facts.m // m) * -(-facts.n // n)
            idle = (programs < target().multiprocessors) * (target().multiprocessors / programs) / 8
            short = max(0.0, log2(SEGMENT / min(m, n))) / 4 if facts.transposed else 0.0
            wanted = max(1, min(8, WRITTEN // facts.beside))
            own = _own(facts, each(m * n, warps), wanted, facts.m * facts.n * facts.batch)
            yield schedule, own + idle + short


WRITTEN = 32  # elements per thread of interleaved results
THREADS = 512  # threads per SM that hide latency in compute-heavy kernels
REGISTERS = 160  # values that a thread can hold


def _own(facts: KernelFacts, own: float, wanted: int, elements: int) -> float:
    """Penalty for `own` elements per thread where `wanted` would be best; `elements` is the size of the whole result.

    In compute-heavy kernels it favours enough threads for all SMs and no spills.
    """
    if not facts.heavy:
        return abs(own - wanted) / wanted
    most = max(1.0, min(wanted, elements / (target().multiprocessors * THREADS)))
    return abs(log2(own / most)) / 3 + max(0.0, log2(own * facts.held / REGISTERS))


def _windows(facts: KernelFacts) -> Ranked:
    """Short windows (pooling, depthwise convolution).

    Each program holds many results and iterates over the window elements.
    """
    ones = (1,) * len(facts.inner)
    for m, warps in product(_blocks(facts.m, (64, 128, 256, 512, 1024, 2048)), (1, 2, 4, 8)):
        schedule = TileSchedule(m, 1, warps, 1, ones)
        if tiles_fit(facts, schedule):
            idle = max(0.0, target().multiprocessors / -(-facts.m // m) - 1) / 8
            held = each(m, warps) / (4 if facts.single else 6)
            yield schedule, abs(log2(held)) / 4 + idle + abs(warps - 4) / 16


def _rows(facts: KernelFacts) -> Ranked:
    """Row reductions, optionally split; ranked by elements per thread, idle SMs, long loops and coalescing."""
    whole = padded(facts.size)
    rows = _blocks(facts.m, (1, 2, 4, 8, 16, 32, 64, 128)) if facts.rows else (1,)
    base = TileSchedule(1, 1, 1, 2)
    depths = [b for b in (whole, 4096, 2048, 1024, 512, 256, 128, 64, 32) if b <= whole]
    for m, k, warps in product(rows, depths, (1, 2, 4, 8, 16)):
        n = min(k, padded(facts.n)) if facts.cols else 1
        schedule = base.but(m=m, n=n, warps=warps, k=(k,) * len(facts.inner))
        if not tiles_fit(facts, schedule):
            continue
        programs = -(-facts.m // m)
        idle = max(0.0, target().multiprocessors / programs - 1) / 8
        for split in facts.parts(schedule):
            narrow = 0.1 * log2(16 / warps) if programs * split <= target().multiprocessors else 0.0
            rank = (
                _own(facts, each(m * k, warps), 16, facts.m * facts.size)
                + 0.6 * (k < whole)
                + idle / split
                + 0.2 * (split > 1)
                + narrow
            )
            small = max(0.0, log2(SMALL / (m * k))) / 4 if programs * split > THOUSANDS else 0.0
            short = max(0.0, log2(SEGMENT / m)) / 4 if facts.transposed else 0.0
            thin = _thin(facts, m * k, programs * split, warps) / 4 if k < whole else 0.0
            yield schedule.cut(split), rank + small + short + thin


def _thin(facts: KernelFacts, tile: int, programs: int, warps: int) -> float:
    """Log2 of the factor by which row programs with loops have too few bytes in flight to saturate memory; 0 if they
    have enough."""
    flying = min(programs / target().multiprocessors, 64 / warps) * tile * facts.width
    return max(0.0, log2(min(IN_FLIGHT, facts.m * facts.size * facts.width / target().multiprocessors) / flying))


def _contraction(facts: KernelFacts) -> Ranked:
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
    rows = _blocks(facts.m, (32, 64, 128, 256), 16)[-3:]
    for m, n, k in product(rows, _blocks(facts.n, (32, 64, 128, 256), 16), _blocks(facts.size, (32, 64, 128), 16)):
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
    depths = _blocks(facts.size, (16, 32, 64, 128, 256, 512, 1024), 16 if facts.rows else 1)
    stages, least = ((2, 3, 4, 5, 6, 8), 4) if facts.rows else ((3,), 8)
    for n, k in product(_blocks(facts.n, columns), depths):
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
    rows, columns = _blocks(facts.m, (16, 32, 64, 128), 16), _blocks(facts.n, (32, 64, 128, 256), 16)
    for m, n, k in product(rows, columns, _blocks(facts.size, (32, 64, 128, 256), 16)):
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


def _attention(facts: KernelFacts) -> Ranked:
    """Attention; ranked by SM utilization, tile shape, latency and spills."""
    n = facts.columns
    many = facts.m > 16
    rows = _blocks(facts.m, (16, 32, 64, 128), 16) if facts.rows else (1,)
    short = facts.short
    depths = (16, 32, 64, 128, 256) if short else (32, 64, 128, 256)
    for m, k, warps, stages in product(rows, _blocks(facts.size, depths, 16), (4, 8), (2, 3, 4)):
        own = tuple(facts.whole_tiles.get(i, k) for i in range(len(facts.inner)))
        schedule = TileSchedule(m, n, warps, stages, own, boxes=facts.boxed)
        if not tiles_fit(facts, schedule):
            continue
        programs, stage = facts.programs(schedule), 2 * k * facts.head * facts.width
        shared = m * facts.head * facts.width + stages * stage
        resident = min(
            target().shared_per_block // (shared - stage), target().warps // warps
        )  # all stages but one are live
        for split in facts.parts(schedule) if programs < 2 * target().multiprocessors else (1,):
            busy = programs * split / target().multiprocessors
            later = 0 if many else -(-busy // resident) - 1  # waves whose first loads nothing hides
            registers = OWN + each(m * (n + k + facts.head // 2), warps)
            together = min(
                target().shared_per_block // shared, int(target().registers / (target().warp * warps * registers))
            )  # resident programs per SM
            waves = busy / max(1, together) if many else 0.0
            uneven = -(-waves // 1) / waves - 1 if waves > 1 else 0.0  # the last wave's programs run alone
            idle = 1 / busy
            if short:  # µs of an SM that reads one part, and of joining the parts; parts of 32 were faster than of 16
                part = facts.size // split
                idle = min(idle, part * 2 * facts.head * facts.width / FROM_CACHE + 0.035 * split + 0.5 * (part < 32))
            rank = (
                (idle if busy < 1 else 1 + 0.1 / busy) + 8 / max(m, 16) * many
                + 0.1 * abs(log2(k / (64 if many else 128))) + 0.1 * abs(stages - 3) + 0.12 * later + 0.5 * uneven
                + (0.3 if each(m * n, warps) > 64 else 0) + 0.1 * (split > 1)
                + (0.4 if many and min(target().shared_per_block // shared, 2) * warps < 8 else 0)
            )  # fmt: skip
            inside = schedule.but(inside=facts.boxed and m <= LITTLE and k * split < facts.size)
            yield inside.but(split=split if split > 1 else None), rank
            if split > 1:
                yield inside.cut(split), rank + 0.05 * split


_KINDS: Mapping[str, Callable[[KernelFacts], Ranked]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
