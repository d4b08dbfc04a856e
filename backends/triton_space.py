"""Schedules of generated kernels: which tilings are worth measuring, the best guesses first.

A schedule is a mapping of small integers: rows `m` and columns `n` of a program's tile, `k0`, `k1`, … of each reduction axis in
the order of `Shape.inner`, `warps`, `stages`, `group` (rows of tiles that programs take together, for reuse in the L2 cache),
`split` (programs that share one reduction). What cannot fit (shared memory, registers) is left out before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import log2, prod

from ..egraph import dtypes
from .index import Axis, index
from .kir import Expr, Kernel
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
    options = {
        "precision": ("ieee", "tf32x3", "tf32")[schedule.get("precision", 0)],
        "boxes": bool(schedule.get("boxes", 0)),
    }
    return Tiling(m, n, k, schedule["warps"], schedule["stages"], schedule.get("group", 1), options)


def schedules(kernel: Kernel, shape: Shape, count: int = COUNT, *, splits: bool = True) -> list[Schedule]:
    """At most `count` schedules, best guess first; empty where nothing fits. `splits`: whether the reduction can be cut."""
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for schedule, rank in _KINDS[shape.kind](kernel, shape):
        if schedule.get("split", 1) > 1 and not splits:
            continue
        key = tuple(sorted(schedule.items()))
        found[key] = min(rank, found.get(key, rank))
    return list(_varied([dict(key) for key in sorted(found, key=lambda k: (found[k], k))], count))


def _varied(ordered: Sequence[Schedule], count: int) -> Iterator[Schedule]:
    """The first schedules, at most four that differ in warps, stages and depth alone; then others to fill up."""
    alike: dict[tuple[int, int, int], int] = {}
    taken = 0
    later = []
    for s in ordered:
        key = s["m"], s["n"], s.get("split", 1)
        alike[key] = alike.get(key, 0) + 1
        if alike[key] > 4:
            later.append(s)
        elif taken < count:
            taken += 1
            yield s
    yield from later[: count - taken]


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


def _windows(kernel: Kernel, shape: Shape) -> Ranked:
    """Short windows: each program holds many results and takes the windows' elements one after the other."""
    for m, warps in product(_blocks(shape.m, (64, 128, 256, 512, 1024, 2048)), (1, 2, 4, 8)):
        each, programs = m / (32 * warps), -(-shape.m // m)
        if 1 <= each <= 16 or m >= shape.m:
            idle = max(0.0, PROGRAMS / programs - 1) / 8
            rank = abs(log2(each / (4 if _single(kernel) else 6))) / 4 + idle + abs(warps - 4) / 16
            ones = {f"k{i}": 1 for i in range(len(shape.inner))}
            yield {"m": m, "n": 1, "warps": warps, "stages": 1} | ones, rank


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
                for split in _splits(length, programs, shape) if not shape.cols and k < whole else (1,):
                    narrow = 0.1 * log2(16 / warps) if programs * split <= PROGRAMS else 0.0
                    rank = abs(each - 16) / 16 + walked + idle / split + 0.2 * (split > 1) + narrow
                    schedule = {"m": m, "n": min(k, padded(shape.n)) if shape.cols else 1, "warps": warps, "stages": 2}
                    schedule |= {f"k{i}": k for i in range(len(shape.inner))}
                    yield schedule | ({"split": split, "join": 1} if split > 1 else {}), rank


def _splits(length: int, programs: int, shape: Shape) -> list[int]:
    """Into how many parts a reduction can be cut so that all multiprocessors have work."""
    return [
        1,
        *(
            s
            for s in (2, 3, 4, 8, 16, 32, 64)
            if length % s == 0 and length // s >= 64 and programs * s <= 8 * PROGRAMS
        ),
    ]


def _contraction(kernel: Kernel, shape: Shape) -> Ranked:
    walked = [e.axis for e in shape.dots if e.axis in shape.outer]
    if not walked:  # each product lies inside another reduction
        return
    main = max(walked, key=lambda a: a.size)
    yield from _streamed(kernel, shape, main) if shape.m <= 32 else _squared(kernel, shape, main)


def _squared(kernel: Kernel, shape: Shape, main: Axis) -> Ranked:
    """A product with many rows: what tiles load counts more than what they multiply, and a program's first loads and its
    end are hidden only by other programs on the same multiprocessor."""
    accumulators, width = _accumulators(shape), 4 if _single(kernel) else 2
    batch = prod(a.size for a in shape.batch)
    channels = [by for a in shape.inner for by in _periods(kernel, a)]
    boxes = _boxes(kernel)
    rows = _blocks(shape.m, (32, 64, 128, 256), 16)[-3:]
    for m, n, k in product(rows, _blocks(shape.n, (32, 64, 128, 256), 16), _blocks(main.size, (32, 64, 128), 16)):
        programs = -(-shape.m // m) * -(-shape.n // n) * batch
        size = m * n * accumulators
        if size > (TILE if width == 4 else 2 * TILE):
            continue
        full = programs * m * n / (shape.m * shape.n * batch)  # what is computed for each element that there is
        more = _again(shape, -(-shape.m // m), -(-shape.n // n)) + 0.5 * any(by % k for by in channels)
        staged = _staged(kernel, shape, {"m": m, "n": n, **_inner(shape, main, k)})
        for warps, stages in product((4, 8), (2, 3, 4)):
            if stages * staged > SHARED or size / (32 * warps) > 160 or size / (32 * warps) < 8:
                continue
            for split in _splits(main.size, programs, shape) if programs < 2 * PROGRAMS else (1,):
                if split > 1 and (main.size // split < 4 * k or (channels and main.size // split % k)):
                    continue
                waves = programs * split / PROGRAMS
                tail = -(-waves // 1) / waves
                resident = max(1, min(SHARED // max(stages * staged, 1), 16 // warps))
                ends = (128 * stages + 256) * split / main.size / resident
                rank = (
                    tail * full * (0.4 + 40 * (1 / m + 1 / n)) + more + ends
                    + 0.1 * (split > 1) + 0.02 * split + 0.1 * abs(stages - 3)
                    + 0.4 * (k == 32) + (0.3 if warps * 32 * 64 < size else 0.2 if warps * 32 * 32 >= size else 0)
                )  # fmt: skip
                schedule = {"m": m, "n": n, "warps": warps, "stages": stages, "group": 8 if -(-shape.m // m) > 1 else 1}
                schedule |= boxes
                schedule |= _inner(shape, main, k)
                yield schedule | ({"split": split, "join": 1} if split > 1 else {}), rank


def _periods(kernel: Kernel, axis: Axis) -> set[int]:
    """What indices divide an axis by: a tile that crosses a multiple needs a quotient for each of its elements."""
    loads = (e.value[1] for e in kernel.exprs if e.op == "load" and axis in e.axes)
    return {d.by for at in loads for d in at.divisions() if d.index == index(axis)}


def _staged(kernel: Kernel, shape: Shape, schedule: Schedule) -> int:
    """Bytes of shared memory that one stage of the hungriest loop takes: all that it loads."""
    tiles = {a: schedule[f"k{i}"] for i, a in enumerate(shape.inner)}
    walked = [a for a, k in tiles.items() if k < a.size]
    rows, cols = {*shape.rows}, {*shape.cols}

    def size(e: Expr) -> int:
        across = prod(k for a, k in tiles.items() if a in e.axes)
        down = (schedule["m"] if e.axes & rows else 1) * (schedule["n"] if e.axes & cols else 1)
        return across * down * dtypes.itemsize(e.value[3])

    loads = [e for e in kernel.exprs if e.op == "load"]
    return max((sum(size(e) for e in loads if a in e.axes) for a in walked), default=0)


def _again(shape: Shape, tiles_m: int, tiles_n: int) -> float:
    """How often products are computed anew: one that does not depend on the columns is, for each tile of them."""
    once = repeated = 0.0
    for e, dot in shape.dots.items():
        own = dot.rows | dot.cols | dot.batch
        work = e.axis.size * prod(a.size for a in own)
        once += work
        repeated += work * (1 if own & {*shape.rows} else tiles_m) * (1 if own & {*shape.cols} else tiles_n)
    return repeated / once - 1


BANDWIDTH, CACHE = 4.0e6, 2.0e7  # bytes a µs of memory and of the L2 cache, for ranking only
IN_FLIGHT = 40 << 10  # bytes that a multiprocessor must be waiting for to keep its share of the memory busy


def _streamed(kernel: Kernel, shape: Shape, main: Axis) -> Ranked:
    """A product with few rows: bound by reading the right sides once. The rank is an estimate of the time in µs."""
    accumulators, width = _accumulators(shape), 4 if _single(kernel) else 2
    batch = prod(a.size for a in shape.batch)
    dense = width * main.size * shape.n * accumulators * batch
    m = padded(max(shape.m, 16)) if shape.rows else 1
    depths = _blocks(main.size, (16, 32, 64, 128, 256, 512, 1024), 16 if shape.rows else 1)
    for n, k in product(
        _blocks(shape.n, (16, 32, 64, 128, 256) if shape.rows else (4, 8, 16, 32, 64, 128, 256)), depths
    ):
        tile = n * k * accumulators
        if not 512 <= tile <= 32768 or m * n * accumulators > TILE:
            continue
        tiles = -(-shape.n // n) * batch
        for warps, stages in product((2, 4, 8), (2, 3, 4, 5, 6, 8) if shape.rows else (3,)):
            shared = stages * (m * k + tile) * width if shape.rows else 0
            if shared > SHARED or (not shape.rows and not 8 <= tile / (32 * warps) <= 128) or tile < 128 * warps:
                continue
            resident = min(SHARED // shared if shared else 16, 64 // warps)
            for split in _splits(main.size, tiles, shape):
                if split > 1 and main.size // split < k:
                    continue
                share = tiles * split / PROGRAMS  # programs of a multiprocessor
                waiting = (
                    min(share, resident)
                    * tile
                    * width
                    * (max(1, min(stages - 1, main.size // split // k)) if shape.rows else 1)
                )
                busy = -(-share // resident) * resident / share if share > resident else -(-share // 1) / share
                reread = tiles * m * main.size * width
                joining = 0.3 + 0.2 * split if shape.rows else 1.0 + 0.03 * split
                rank = (
                    dense / BANDWIDTH * busy / min(1.0, waiting / IN_FLIGHT) ** 0.7 + reread / CACHE
                    + joining * (split > 1) + 0.3 * (n * width < 64) + 0.1 * abs(warps - 4)
                )  # fmt: skip
                schedule = {"m": m, "n": n, "warps": warps, "stages": stages, **_inner(shape, main, k)}
                yield schedule | ({"split": split, "join": 1} if split > 1 else {}), rank


def _accumulators(shape: Shape) -> int:
    return max(1, sum(e.axis in shape.outer for e in shape.dots))


def _inner(shape: Shape, main: Axis, k: int) -> Schedule:
    """Tile sizes of the reduction axes: the main one as given, others whole where they are short."""
    return {
        f"k{i}": min(k, padded(a.size)) if a == main or a.size > 256 else max(16, padded(a.size))
        for i, a in enumerate(shape.inner)
    }


def _attention(kernel: Kernel, shape: Shape) -> Ranked:
    main = max(
        (a for a in shape.outer if any(e.axis == a for e in shape.dots)), key=lambda a: a.size, default=shape.inner[-1]
    )
    width = 4 if _single(kernel) else 2
    n = max(16, padded(shape.n)) if shape.n <= 512 else 128
    head = max([n, *(padded(a.size) for a in shape.inner if a != main)])
    boxes = _boxes(kernel) if shape.m > 16 else {}
    batch = prod(a.size for a in shape.batch)
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
                depth = abs(log2(k / (64 if shape.m > 16 else 128)))
                rank = (
                    (1 / busy if busy < 1 else 1 + 0.1 / busy) + 8 / max(m, 16) * (shape.m > 16) + 0.1 * depth
                    + 0.1 * abs(stages - 3) + (0.3 if m * n / (32 * warps) > 64 else 0) + 0.1 * (split > 1)
                    + (0.4 if shape.m > 16 and min(SHARED // shared, 2) * warps < 8 else 0)
                )  # fmt: skip
                schedule = {"m": m, "n": n, "warps": warps, "stages": stages, **boxes}
                schedule |= {f"k{i}": k if a == main else max(16, padded(a.size)) for i, a in enumerate(shape.inner)}
                yield schedule | ({"split": split} if split > 1 else {}), rank
                if split > 1:
                    yield schedule | {"split": split, "join": 1}, rank + 0.05 * split


def _boxes(kernel: Kernel) -> dict[str, int]:
    """Whether tiles are read in boxes (descriptors.py): where one of 16 bits can be."""
    for e in kernel.exprs:
        if e.op == "load" and not e.args and e.value[3] in ("bfloat16", "float16"):
            steps = sorted(dict(e.value[1].terms).values())
            if len(steps) > 1 and steps[0] == 1 and steps[1] % 8 == 0:
                return {"boxes": 1}
    return {}


def _single(kernel: Kernel) -> bool:
    return not any(b.dtype in ("bfloat16", "float16") for b in kernel.buffers.values())


_KINDS: dict[str, Callable[[Kernel, Shape], Ranked]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
