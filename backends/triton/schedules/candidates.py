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
from math import log2
from operator import itemgetter

from ...generate.schedule import Key
from ...generate.strategy import COUNT
from ...ir.kernel import Kernel
from ...ir.precision import TF32, Precision
from ...ir.tiling import Shape, padded
from ...machine import cached_per_machine, target
from .contraction_candidates import FROM_CACHE, IN_FLIGHT, OWN, contraction_candidates
from .facts import FEW, KernelFacts, facts_of
from .legality import LITTLE, each, legal, tiles_fit
from .parameters import Ranked, TileSchedule, block_sizes

LINE = 32  # float32 elements in a line of shared memory
SUMS = 64  # accumulators per thread that leave registers for split operands
SMALL = 2048  # elements of a small program: launching one takes about 1.2 ns, as long as moving 5 KiB
THOUSANDS = 4096  # number of programs of a kernel beyond which the cost of launching small ones (`SMALL`) counts
SEGMENT = 64  # contiguous rows to be written at once: a norm took 9.6 us with 64, 20 with 8


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


def _pointwise(facts: KernelFacts) -> Ranked:
    """Elementwise kernels; ranked by elements per thread, idle SMs and coalescing."""
    rows = block_sizes(facts.m, (1, 2, 4, 8, 16, 32, 64)) if facts.rows else (1,)
    few, base = (1,) if facts.heavy else (), TileSchedule(1, 1, 1, 1)
    for n, m, warps in product(block_sizes(facts.n, (32, 64, 128, 256, 512, 1024, 2048, 4096)), rows, (*few, 2, 4, 8)):
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
    for m, warps in product(block_sizes(facts.m, (64, 128, 256, 512, 1024, 2048)), (1, 2, 4, 8)):
        schedule = TileSchedule(m, 1, warps, 1, ones)
        if tiles_fit(facts, schedule):
            idle = max(0.0, target().multiprocessors / -(-facts.m // m) - 1) / 8
            held = each(m, warps) / (4 if facts.single else 6)
            yield schedule, abs(log2(held)) / 4 + idle + abs(warps - 4) / 16


def _rows(facts: KernelFacts) -> Ranked:
    """Row reductions, optionally split; ranked by elements per thread, idle SMs, long loops and coalescing."""
    whole = padded(facts.size)
    rows = block_sizes(facts.m, (1, 2, 4, 8, 16, 32, 64, 128)) if facts.rows else (1,)
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
    in_flight = min(programs / target().multiprocessors, 64 / warps) * tile * facts.width
    return max(0.0, log2(min(IN_FLIGHT, facts.m * facts.size * facts.width / target().multiprocessors) / in_flight))


def _attention(facts: KernelFacts) -> Ranked:
    """Attention; ranked by SM utilization, tile shape, latency and spills."""
    n = facts.columns
    many = facts.m > 16
    rows = block_sizes(facts.m, (16, 32, 64, 128), 16) if facts.rows else (1,)
    short = facts.short
    depths = (16, 32, 64, 128, 256) if short else (32, 64, 128, 256)
    for m, k, warps, stages in product(rows, block_sizes(facts.size, depths, 16), (4, 8), (2, 3, 4)):
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
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": contraction_candidates, "attention": _attention,
}  # fmt: skip
