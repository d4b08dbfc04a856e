"""Schedules of generated kernels: which tilings are worth measuring, the best guesses first.

A schedule is a mapping of small integers: rows `m` and columns `n` of a program's tile, `k0`, `k1`, … of each reduction axis in
the order of `Shape.inner`, `warps`, `stages`, `group` (rows of tiles that programs take together, for reuse in the L2 cache),
`split` (programs that share one reduction). What cannot fit (shared memory, registers) is left out before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from .index import Axis
from .kir import Kernel
from .tiling import Shape, Tiling, padded

Schedule = dict[str, int]
COUNT = 16  # schedules of a kernel and shape that are measured
PROGRAMS = 132  # multiprocessors to keep busy
SHARED = 227 * 1024  # bytes of shared memory a program can have
TILE = 1 << 15  # elements of the largest tile held in registers
WHOLE = 1 << 14  # longest row held at once


def tiling_of(shape: Shape, schedule: Mapping[str, int]) -> Tiling:
    """The tiling that a schedule means for a kernel of this shape."""
    k = {a: min(schedule.get(f"k{i}", padded(a.size)), padded(a.size)) for i, a in enumerate(shape.inner)}
    m, n = (schedule[x] if group else 1 for x, group in (("m", shape.rows), ("n", shape.cols)))
    options = {"precision": ("ieee", "tf32x3", "tf32")[schedule.get("precision", 0)]}
    return Tiling(m, n, k, schedule["warps"], schedule["stages"], schedule.get("group", 1), options)


def schedules(kernel: Kernel, shape: Shape, count: int = COUNT) -> list[Schedule]:
    """At most `count` schedules, best guess first; empty where nothing fits."""
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for schedule, rank in _KINDS[shape.kind](kernel, shape):
        key = tuple(sorted(schedule.items()))
        found[key] = min(rank, found.get(key, rank))
    return [dict(key) for key in sorted(found, key=lambda k: (found[k], k))[:count]]


Ranked = Iterator[tuple[Schedule, float]]


def _blocks(size: int, options: Sequence[int], least: int = 1) -> list[int]:
    """Tile sizes that are not larger than the padded size (but at least `least`)."""
    limit = max(padded(size), least)
    kept = [o for o in options if least <= o <= limit]
    return kept or [limit if limit < options[0] else options[0]]


def _pointwise(kernel: Kernel, shape: Shape) -> Ranked:
    for n in _blocks(shape.n, (32, 64, 128, 256, 512, 1024, 2048, 4096)):
        for m in _blocks(shape.m, (1, 2, 4, 8, 16, 32, 64)) if shape.rows else (1,):
            for warps in (2, 4, 8):
                size = m * n
                programs = -(-shape.m // m) * -(-shape.n // n)
                if not 256 <= size <= 8192 and not (size < 256 and n >= shape.n and m >= shape.m):
                    continue
                each = size / (32 * warps)
                rank = abs(each - 8) / 8 + (programs < PROGRAMS) * (PROGRAMS / programs) / 8
                yield {"m": m, "n": n, "warps": warps, "stages": 1}, rank


def _rows(kernel: Kernel, shape: Shape) -> Ranked:
    length = max((a.size for a in shape.inner), default=1)
    whole = padded(length)
    for m in _blocks(shape.m, (1, 2, 4, 8, 16, 32, 64, 128)) if shape.rows else (1,):
        for k in [b for b in (whole, 4096, 2048, 1024, 512, 256, 128, 64, 32) if b <= whole]:
            if (k == whole and whole > WHOLE) or m * k > TILE or (m * k < 256 and k < whole):
                continue
            for warps in (1, 2, 4, 8, 16):
                each = m * k / (32 * warps)
                if not 1 <= each <= 128 and not (each < 1 and warps == 1):
                    continue
                programs = -(-shape.m // m)
                walked = 0.0 if k == whole else 0.6
                idle = max(0.0, PROGRAMS / programs - 1) / 8
                for split in _splits(length, programs, shape) if not shape.joined and k < whole else (1,):
                    rank = abs(each - 16) / 16 + walked + idle / split + 0.2 * (split > 1)
                    schedule = {"m": m, "n": k if shape.joined else 1, "warps": warps, "stages": 2}
                    schedule |= {f"k{i}": k for i in range(len(shape.inner))}
                    yield schedule | ({"split": split} if split > 1 else {}), rank


def _splits(length: int, programs: int, shape: Shape) -> list[int]:
    """Into how many parts a reduction can be cut so that all multiprocessors have work."""
    return [
        1,
        *(s for s in (2, 4, 8, 16, 32, 64) if length % s == 0 and length // s >= 64 and programs * s <= 8 * PROGRAMS),
    ]


def _contraction(kernel: Kernel, shape: Shape) -> Ranked:
    accumulators = max(1, sum(e.axis in shape.outer for e in shape.dots))
    width = 4 if _single(kernel) else 2
    main = max((e.axis for e in shape.dots if e.axis in shape.outer), key=lambda a: a.size)
    batch = _product(a.size for a in shape.batch)
    if not shape.rows:
        yield from _vector(shape, main, batch)
        return
    small = shape.m <= 32
    rows = _blocks(shape.m, (16, 32, 64, 128, 256), 16)
    rows = rows[-1:] if small else rows[-3:] if shape.m >= 256 else rows[-2:]
    for m, n, k in product(
        rows, _blocks(shape.n, (16, 32, 64, 128, 256), 16), _blocks(main.size, (32, 64, 128, 256), 16)
    ):
        programs = -(-shape.m // m) * -(-shape.n // n) * batch
        if m * n * accumulators > TILE * 2 or (width == 4 and m * n * accumulators > TILE):
            continue
        for warps, stages in product((4, 8) if m * n > 4096 else (2, 4, 8), (2, 3, 4, 5)):
            shared = stages * (m * k + k * n * accumulators) * width
            if shared > SHARED or m * n * accumulators / (32 * warps) > 160 or m * n / (32 * warps) < 2:
                continue
            for split in _splits(main.size, programs, shape) if programs < 4 * PROGRAMS else (1,):
                waves = programs * split / PROGRAMS
                if split > 1 and main.size // split < k:
                    continue
                flight = min(1.0, shared * min(programs * split, 4 * PROGRAMS) / (PROGRAMS * 48 * 1024))
                intensity = 1 / m + 1 / n
                tail = -(-waves // 1) / waves if waves >= 1 else 1.5 / waves
                rank = (
                    tail + (8 * intensity if not small else 0.0) + (1 - flight) * (2 if small else 1)
                    + 0.15 * (split > 1) + 0.02 * split + (0.3 if not small and warps * 32 * 64 < m * n * accumulators else 0)
                    + 0.05 * abs(stages - (4 if small else 3))
                )  # fmt: skip
                schedule = {"m": m, "n": n, "warps": warps, "stages": stages, "group": 8 if -(-shape.m // m) > 1 else 1}
                schedule |= _inner(shape, main, k)
                yield schedule | ({"split": split} if split > 1 else {}), rank


def _inner(shape: Shape, main: Axis, k: int) -> Schedule:
    """Tile sizes of the reduction axes: the main one as given, others whole where they are short."""
    return {
        f"k{i}": min(k, padded(a.size)) if a is main or a.size > 256 else max(16, padded(a.size))
        for i, a in enumerate(shape.inner)
    }


def _vector(shape: Shape, main: Axis, batch: int) -> Ranked:
    """A vector times a matrix: memory-bound, no matrix unit; many programs with wide loads."""
    for n, k in product(_blocks(shape.n, (16, 32, 64, 128, 256)), _blocks(main.size, (16, 32, 64, 128, 256, 512))):
        if not 512 <= n * k <= 16384:
            continue
        programs = -(-shape.n // n) * batch
        for warps in (2, 4, 8):
            each = n * k / (32 * warps)
            if not 8 <= each <= 128:
                continue
            for split in _splits(main.size, programs, shape):
                if split > 1 and main.size // split < k:
                    continue
                busy = programs * split / (4 * PROGRAMS)
                rank = (
                    abs(each - 32) / 32 + (1 / busy if busy < 1 else busy / 8) / 2 + 0.3 * (split > 1) + 0.3 * (n < 64)
                )
                schedule = {"m": 1, "n": n, "warps": warps, "stages": 3, **_inner(shape, main, k)}
                yield schedule | ({"split": split} if split > 1 else {}), rank


def _attention(kernel: Kernel, shape: Shape) -> Ranked:
    main = max(
        (a for a in shape.outer if any(e.axis == a for e in shape.dots)), key=lambda a: a.size, default=shape.inner[-1]
    )
    width = 4 if _single(kernel) else 2
    n = max(16, padded(shape.n)) if shape.n <= 512 else 128
    head = max([n, *(padded(a.size) for a in shape.inner if a is not main)])
    batch = _product(a.size for a in shape.batch)
    for m, k in product(
        _blocks(shape.m, (16, 32, 64, 128), 16) if shape.rows else (1,), _blocks(main.size, (32, 64, 128, 256), 16)
    ):
        programs = -(-shape.m // m) * -(-shape.n // n) * batch
        for warps, stages in product((4, 8), (2, 3, 4)):
            shared = (m * head + stages * 2 * k * head) * width
            if shared > SHARED or m * n / (32 * warps) > 128:
                continue
            for split in _splits(main.size, programs, shape) if programs < 2 * PROGRAMS else (1,):
                if split > 1 and main.size // split < k:
                    continue
                busy = programs * split / PROGRAMS
                rank = (
                    (1 / busy if busy < 1 else 1 + 0.1 / busy) + 8 / max(m, 16) * (shape.m > 16) + 0.2 * abs(k - 64) / 64
                    + 0.1 * abs(stages - 2) + (0.3 if m * n / (32 * warps) > 64 else 0) + 0.1 * (split > 1)
                )  # fmt: skip
                schedule = {"m": m, "n": n, "warps": warps, "stages": stages}
                schedule |= {f"k{i}": k if a is main else max(16, padded(a.size)) for i, a in enumerate(shape.inner)}
                yield schedule | ({"split": split} if split > 1 else {}), rank


def _single(kernel: Kernel) -> bool:
    return not any(b.dtype in ("bfloat16", "float16") for b in kernel.buffers.values())


def _product(sizes: Iterator[int]) -> int:
    found = 1
    for s in sizes:
        found *= s
    return found


_KINDS: dict[str, Callable[[Kernel, Shape], Ranked]] = {
    "pointwise": _pointwise, "rows": _rows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
