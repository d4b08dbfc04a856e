"""Lists candidate schedules (tuning parameters) of tiled float32 GEMM, ranked by a cost model, and decides whether one
is legal.

The schedule class is `TiledSchedule` in tiled_fp32/kernel.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from math import ceil, prod

from ...ir.kernel import PROBE, Kernel
from ...ir.precision import Precision
from ...ir.tiling import Shape, padded
from ...ir.unfusable import if_fusable
from ...machine import cached_per_machine, target
from .kernel import TiledSchedule, emit_tiles

MIN_TILED_SIZE = 5  # least rows and columns of a GEMM that is worth tiling
THREADS = 64, 512  # least and most threads of a block
MAX_ACCUMULATORS, PARTED = 128, 64  # limits of accumulators per thread: CUDA cores, split operands (more spilled)
RATE = {"ieee": 128.0, "tf32x3": 200.0}  # multiply-adds of an SM per cycle, for ranking only
READ = {"ieee": 1.0, "tf32x3": 3.0}  # relative cost of shared-memory reads, for ranking only
BUSY = 8  # warps per SM that hide each other's latency
BEGIN, JOIN, BYTES = (
    1500,
    2000,
    40,
)  # cycles before the first product; cycles to combine split-K; bytes that reach an SM per cycle
PARTS = (2, 4, 8, 16)


def applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether tiled float32 GEMM is offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): a GEMM with at least `MIN_TILED_SIZE` rows and columns. Dtypes are checked later."""
    return shape.kind == "contraction" and shape.m >= MIN_TILED_SIZE and shape.n >= MIN_TILED_SIZE


def tile_schedules(kernel: Kernel, shape: Shape, count: int, precision: Precision) -> list[TiledSchedule]:
    """At most `count` schedules, best guess first; empty for kernels that a tiled float32 GEMM cannot compute.

    `precision`: the input precision of the products (float32, or split TF32 on tensor cores).
    """
    if not applies(kernel, shape):
        return []
    size, batch = max(a.size for a in shape.inner), prod(a.size for a in shape.batch)
    chosen: list[TiledSchedule] = []
    for _, schedule in _ranked(shape.m, shape.n, size, batch, len({d.right for d in shape.dots.values()}), precision):
        if len(chosen) == count:
            break
        if tiles_fit(kernel, shape, schedule):
            chosen.append(schedule)
        elif not chosen:
            return []
    return chosen


def tiles_fit(kernel: Kernel, shape: Shape, s: TiledSchedule) -> bool:
    """Whether the schedule `s` is legal for `kernel`: registers and shared memory suffice, and the kernel can be
    emitted."""
    if not s.valid or s.join != (s.split is not None):
        return False
    return _whole(s) and if_fusable(emit_tiles, kernel, shape, s, PROBE) is not None


def _whole(t: TiledSchedule) -> bool:
    """Whether threads and warps divide the tile evenly and stay within the accumulator limits."""
    high, wide = (16, 8) if t.precision else (4, 4)
    even = t.high % high == t.wide % wide == t.deep % (8 if t.precision else 4) == 0
    shared = t.m % t.high == t.n % t.wide == 0 and t.deep >= 8
    return (
        even
        and shared
        and THREADS[0] <= t.threads <= THREADS[1]
        and t.held <= (PARTED if t.precision else MAX_ACCUMULATORS)
        and max(t.m, t.n) <= 256
    )


SHARES = {
    False: ((8, 8), (8, 4), (4, 8), (4, 4), (8, 16), (16, 8)),
    True: ((32, 32), (16, 32), (32, 16), (16, 16)),
}


@cached_per_machine(1024)
def _ranked(
    rows: int, columns: int, size: int, batch: int, rights: int, precision: Precision
) -> tuple[tuple[float, TiledSchedule], ...]:
    """(estimated cycles, schedule), best first."""
    found = _estimates(rows, columns, size, batch, rights, precision)
    return tuple(sorted(found, key=lambda pair: (pair[0], pair[1].key)))


def _estimates(
    rows: int, columns: int, size: int, batch: int, rights: int, precision: Precision
) -> Iterator[tuple[float, TiledSchedule]]:
    """(estimated cycles, schedule) of every candidate."""
    tall, broad = ([x for x in (16, 32, 64, 128, 256) if x < 2 * padded(max(16, n))] for n in (rows, columns))
    for m, n, deep, (high, wide), stages in product(tall, broad, (16, 32), SHARES[bool(precision.number)], (3, 4)):
        t = TiledSchedule(m, n, deep, high, wide, stages, 8, precision.number or None)
        if (
            high > m
            or wide > n
            or not _whole(t)
            or t.held * rights > MAX_ACCUMULATORS
            or (deep > 16 and deep >= 2 * size)
        ):
            continue
        shared_bytes = t.shared_bytes(left=True, right=False, rights=rights)
        held = t.held * rights + (t.high + t.wide) * (4 if not precision.number else 1) + 40
        resident = min(
            target().threads // t.threads,
            target().registers // (t.threads * min(held, 255)),
            target().dynamic_shared // shared_bytes,
        )
        if not resident:
            continue
        blocks = ceil(rows / m) * ceil(columns / n) * batch
        splits = [
            p for p in PARTS if size % p == 0 and size // p >= 8 * deep and blocks * p <= 4 * target().multiprocessors
        ]
        for split in (1, *splits) if blocks < target().multiprocessors else (1,):
            share = ceil(blocks * split / target().multiprocessors)
            schedule = t.but(split=split, join=True) if split > 1 else t
            yield _cycles(schedule, size, rights, share, resident, precision), schedule


def _cycles(t: TiledSchedule, size: int, rights: int, share: int, resident: int, precision: Precision) -> float:
    """Estimated cycles of an SM for `share` blocks, of which `resident` run at once; `size` is K, `rights` the number
    of right-hand matrices."""
    warps = min(share, resident) * t.threads / 32
    slow = (1 + READ[precision.name] * (1 / t.high + 1 / t.wide)) * math.sqrt(max(1.0, BUSY / warps))
    multiplied = t.m * t.n * rights * size / RATE[precision.name] * slow
    brought = (t.m + t.n * rights) * size * 4 / BYTES * (0.2 if share > 1 else 0.4)
    short = bool(t.precision) and t.deep < 32
    joined = JOIN + t.m * t.n * rights * 4 * t.scratch_parts / BYTES if t.scratch_parts > 1 else 0.0
    return (
        share * (multiplied + brought) / t.scratch_parts
        + joined
        + BEGIN
        + 0.02 * (abs(t.stages - 3) + short) * multiplied
    )


__all__ = ["applies", "tile_schedules", "tiles_fit"]
