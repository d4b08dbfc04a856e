"""Candidate schedules of tiled float32 GEMM (tiled_fp32/kernel.py) by a cost model, and their legality.

`tiles` is 1. `m`, `n`: block tile; `deep`: K elements per stage; `stages`: pipeline depth. `high`, `wide`: tile of a
thread, or of a warp on tensor cores where `precision` is not 0. `group`: rows of tiles rasterized together. `split`:
split-K factor; the last block of a tile combines the partial sums (`join`). `early`: programmatic dependent launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import ceil, prod

from ...ir.kernel import PROBE, Kernel, if_fusable
from ...ir.precision import Precision
from ...ir.tiling import Shape, padded
from ...machine import per_machine, target
from .kernel import Tiles, emit_tiles

NAMES = {"tiles", "m", "n", "deep", "high", "wide", "stages", "group"}
LEAST = 5  # least rows and columns of a GEMM that is worth tiling
THREADS = 64, 512  # least and most threads of a block
HELD, PARTED = 128, 64  # limits of accumulators per thread: CUDA cores, split operands (more spilled)
RATE = {"ieee": 128.0, "tf32x3": 200.0}  # multiply-adds of an SM per cycle, for ranking only
READ = {"ieee": 1.0, "tf32x3": 3.0}  # relative cost of shared-memory reads, for ranking only
BUSY = 8  # warps per SM that hide each other's latency
BEGIN, JOIN, BYTES = (
    1500,
    2000,
    40,
)  # cycles before the first product; cycles to combine split-K; bytes that reach an SM per cycle
PARTS = (2, 4, 8, 16)


def tile_schedules(kernel: Kernel, shape: Shape, count: int, precision: Precision) -> list[dict[str, int]]:
    """At most `count` schedules, best guess first; empty if tiling does not apply to the kernel."""
    if shape.kind != "contraction" or shape.m < LEAST or shape.n < LEAST:
        return []
    size, batch = max(a.size for a in shape.inner), prod(a.size for a in shape.batch)
    chosen: list[dict[str, int]] = []
    for _, schedule in _ranked(shape.m, shape.n, size, batch, len({d.right for d in shape.dots.values()}), precision):
        if len(chosen) == count:
            break
        if tiles_fit(kernel, shape, schedule):
            chosen.append(schedule)
        elif not chosen:
            return []
    return chosen


def tiles_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule is legal: registers and shared memory suffice, and the kernel can be emitted."""
    if not NAMES <= set(schedule) <= NAMES | {"early", "precision", "split", "join"} or schedule["tiles"] != 1:
        return False
    if (schedule.get("split", 1) > 1) != bool(schedule.get("join")):
        return False
    sizes = [v for k, v in schedule.items() if k not in ("stages", "precision")]
    if any(v < 1 or v & (v - 1) for v in sizes) or not 2 <= schedule["stages"] <= 6:
        return False
    tiles = Tiles.of(schedule)
    return _whole(tiles) and if_fusable(emit_tiles, kernel, shape, tiles, PROBE) is not None


def _whole(t: Tiles) -> bool:
    """Whether threads and warps divide the tile evenly and stay within the accumulator limits."""
    high, wide = (16, 8) if t.precision else (4, 4)
    even = t.high % high == t.wide % wide == t.deep % (8 if t.precision else 4) == 0
    shared = t.m % t.high == t.n % t.wide == 0 and t.deep >= 8
    return (
        even
        and shared
        and THREADS[0] <= t.threads <= THREADS[1]
        and t.held <= (PARTED if t.precision else HELD)
        and max(t.m, t.n) <= 256
    )


SHARES = {
    False: ((8, 8), (8, 4), (4, 8), (4, 4), (8, 16), (16, 8)),
    True: ((32, 32), (16, 32), (32, 16), (16, 16)),
}


@per_machine(1024)
def _ranked(
    rows: int, columns: int, size: int, batch: int, rights: int, precision: Precision
) -> tuple[tuple[float, dict[str, int]], ...]:
    """(estimated cycles, schedule), best first."""
    found = _estimates(rows, columns, size, batch, rights, precision)
    return tuple(sorted(found, key=lambda pair: (pair[0], sorted(pair[1].items()))))


def _estimates(
    rows: int, columns: int, size: int, batch: int, rights: int, precision: Precision
) -> Iterator[tuple[float, dict[str, int]]]:
    """(estimated cycles, schedule) of every candidate."""
    own = {"precision": precision.number} if precision.number else {}
    tall, broad = ([x for x in (16, 32, 64, 128, 256) if x < 2 * padded(max(16, n))] for n in (rows, columns))
    for m, n, deep, (high, wide), stages in product(tall, broad, (16, 32), SHARES[bool(precision.number)], (3, 4)):
        schedule = {
            "tiles": 1,
            "m": m,
            "n": n,
            "deep": deep,
            "high": high,
            "wide": wide,
            "stages": stages,
            "group": 8,
            **own,
        }
        t = Tiles.of(schedule)
        if high > m or wide > n or not _whole(t) or t.held * rights > HELD or (deep > 16 and deep >= 2 * size):
            continue
        room = t.room(True, False, rights)
        held = t.held * rights + (t.high + t.wide) * (4 if not precision.number else 1) + 40
        resident = min(
            target().threads // t.threads,
            target().registers // (t.threads * min(held, 255)),
            target().dynamic_shared // room,
        )
        if not resident:
            continue
        blocks = ceil(rows / m) * ceil(columns / n) * batch
        splits = [
            p for p in PARTS if size % p == 0 and size // p >= 8 * deep and blocks * p <= 4 * target().multiprocessors
        ]
        for split in (1, *splits) if blocks < target().multiprocessors else (1,):
            share = ceil(blocks * split / target().multiprocessors)
            parts = {"split": split, "join": 1} if split > 1 else {}
            yield _cycles(replace(t, split=split), size, rights, share, resident, precision), schedule | parts


def _cycles(t: Tiles, size: int, rights: int, share: int, resident: int, precision: Precision) -> float:
    """Estimated cycles of an SM for `share` blocks, of which `resident` run at once."""
    warps = min(share, resident) * t.threads / 32
    slow = (1 + READ[precision.name] * (1 / t.high + 1 / t.wide)) * math.sqrt(max(1.0, BUSY / warps))
    multiplied = t.m * t.n * rights * size / RATE[precision.name] * slow
    brought = (t.m + t.n * rights) * size * 4 / BYTES * (0.2 if share > 1 else 0.4)
    short = bool(t.precision) and t.deep < 32
    joined = JOIN + t.m * t.n * rights * 4 * t.split / BYTES if t.split > 1 else 0.0
    return share * (multiplied + brought) / t.split + joined + BEGIN + 0.02 * (abs(t.stages - 3) + short) * multiplied


__all__ = ["tile_schedules", "tiles_fit"]
