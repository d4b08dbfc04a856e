"""Schedules of generated kernels that are worth measuring in Triton, the best guesses first.

What a schedule is, and which ones are legal, is said in triton_fits.py; each kind of kernel has a grid of numbers here, and a rank
of those on it that are legal. Nothing that is not legal is ever compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from math import log2, prod
from operator import itemgetter

from ..egraph.memo import memo
from .kir import Kernel
from .precision import PRECISIONS
from .tiling import MULTIPROCESSORS, Shape, Tiling, padded
from .triton_fits import LITTLE, SHARED, Facts, Numbers, Schedule, each, facts_of, legal, tiles_fit

COUNT = 16  # schedules of a kernel and shape that are measured
SMALL = 2048  # elements of a program: beginning one takes some 1.2 ns, as long as moving 5 KiB,
THOUSANDS = 4096  # which counts where there are so many
SEGMENT = 64  # rows to be written at once where they lie side by side: a norm took 9.6 us with 64, 20 with 8
Ranked = Iterator[tuple[Schedule, float]]
Key = tuple[tuple[str, int], ...]


def tiling_of(shape: Shape, schedule: Numbers) -> Tiling:
    """The tiling that a schedule means for a kernel of this shape."""
    k = {a: min(schedule.get(f"k{i}", padded(a.size)), padded(a.size)) for i, a in enumerate(shape.inner)}
    m, n = (schedule[x] if group else 1 for x, group in (("m", shape.rows), ("n", shape.cols)))
    options = {
        "precision": PRECISIONS[schedule.get("precision", 0)].name,
        "boxes": bool(schedule.get("boxes", 0)),
        "inside": bool(schedule.get("inside", 0)),
        "walk": bool(schedule.get("walk", 0)),
        "early": bool(schedule.get("early", 0)),
        "beside": bool(schedule.get("beside", 0)),
    }
    return Tiling(m, n, k, schedule["warps"], schedule["stages"], schedule.get("group", 1), options)


def schedules(kernel: Kernel, shape: Shape, count: int = COUNT, *, splits: bool = True) -> list[Schedule]:
    """At most `count` schedules, best guess first; empty where nothing fits. `splits`: whether the reduction can be cut."""
    facts = facts_of(kernel, shape, splits)
    found = _begun([dict(key) for key in _ranked(facts, count)], count)
    together = [s | {"beside": 1} for s in found if facts.beside > 1]
    fitting = [s for s in together if legal(facts, s)]
    return [*fitting[:1], *found[:1], *fitting[1:], *found[1:]][:count] if fitting else found


def _begun(ranked: Sequence[Schedule], count: int) -> list[Schedule]:
    """The guesses started early, but for the first and, at the end, the next best. (On an H200 that saved a split attention over
    few keys or many, and rows in few programs, 5 to 14 %; rows in tens of thousands of programs took twice as long.)"""
    early = [s | {"early": 1} for s in ranked][: count - count // 4]
    return [*ranked[:1], *early, *ranked[1:]][:count]


@memo(4096)
def _ranked(facts: Facts, count: int) -> tuple[Key, ...]:
    found = sorted(_KINDS[facts.kind](facts), key=itemgetter(1))
    return tuple(_varied(_ordered(found), count))


def _ordered(found: Sequence[tuple[Schedule, float]]) -> Iterator[Key]:
    """Schedules in the order of their ranks, those of one rank in that of their numbers; each once. Of the hundreds that are legal
    the first few are wanted, so keys are made one rank at a time."""
    seen: set[Key] = set()
    for _, alike in groupby(found, key=itemgetter(1)):
        for key in sorted({tuple(sorted(schedule.items())) for schedule, _ in alike} - seen):
            seen.add(key)
            yield key


def _varied(ordered: Iterable[Key], count: int) -> Iterator[Key]:
    """The first schedules, at most four that differ in warps, stages and depth alone; then others to fill up."""
    alike: dict[tuple[int, int, int], int] = {}
    taken = 0
    later = []
    for key in ordered:
        if taken >= count:
            return
        s = dict(key)
        tile = s["m"], s["n"], s.get("split", 1)
        alike[tile] = alike.get(tile, 0) + 1
        if alike[tile] > 4:
            later.append(key)
        else:
            taken += 1
            yield key
    yield from later[: count - taken]


def _blocks(size: int, options: Sequence[int], least: int = 1) -> list[int]:
    """Tile sizes that are not larger than the padded size (but at least `least`)."""
    limit = max(padded(size), least)
    kept = [o for o in options if least <= o <= limit]
    return kept or [limit if limit < options[0] else options[0]]


def _cut(schedule: Schedule, parts: int) -> Schedule:
    """The schedule with its reduction cut into parts that the last program joins."""
    return schedule | {"split": parts, "join": 1} if parts > 1 else schedule


def _pointwise(facts: Facts) -> Ranked:
    rows = _blocks(facts.m, (1, 2, 4, 8, 16, 32, 64)) if facts.rows else (1,)
    few = (1,) if facts.heavy else ()
    for n, m, warps in product(_blocks(facts.n, (32, 64, 128, 256, 512, 1024, 2048, 4096)), rows, (*few, 2, 4, 8)):
        schedule = {"m": m, "n": n, "warps": warps, "stages": 1}
        if tiles_fit(facts, schedule):
            programs = -(-facts.m // m) * -(-facts.n // n)
            idle = (programs < MULTIPROCESSORS) * (MULTIPROCESSORS / programs) / 8
            short = max(0.0, log2(SEGMENT / min(m, n))) / 4 if facts.turned else 0.0
            wanted = max(1, min(8, WRITTEN // facts.beside))
            own = _own(facts, each(m * n, schedule), wanted, facts.m * facts.n * facts.batch)
            yield schedule, own + idle + short


WRITTEN = 32  # elements of a thread, of results that lie side by side
THREADS = 512  # of a multiprocessor that hide each other's waiting where much is computed for each element
REGISTERS = 160  # values that a thread can hold


def _own(facts: Facts, own: float, wanted: int, elements: int) -> float:
    """How far the elements of a thread are from what is wanted: where much is computed for each of them, no more than leaves work
    to all threads, and no more than registers hold."""
    if not facts.heavy:
        return abs(own - wanted) / wanted
    most = max(1.0, min(wanted, elements / (MULTIPROCESSORS * THREADS)))
    return abs(log2(own / most)) / 3 + max(0.0, log2(own * facts.held / REGISTERS))


def _windows(facts: Facts) -> Ranked:
    """Short windows: each program holds many results and takes the windows' elements one after the other."""
    ones = {f"k{i}": 1 for i in range(len(facts.inner))}
    for m, warps in product(_blocks(facts.m, (64, 128, 256, 512, 1024, 2048)), (1, 2, 4, 8)):
        schedule = {"m": m, "n": 1, "warps": warps, "stages": 1, **ones}
        if tiles_fit(facts, schedule):
            idle = max(0.0, MULTIPROCESSORS / -(-facts.m // m) - 1) / 8
            held = each(m, schedule) / (4 if facts.single else 6)
            yield schedule, abs(log2(held)) / 4 + idle + abs(warps - 4) / 16


def _rows(facts: Facts) -> Ranked:
    whole = padded(facts.size)
    rows = _blocks(facts.m, (1, 2, 4, 8, 16, 32, 64, 128)) if facts.rows else (1,)
    depths = [b for b in (whole, 4096, 2048, 1024, 512, 256, 128, 64, 32) if b <= whole]
    for m, k, warps in product(rows, depths, (1, 2, 4, 8, 16)):
        schedule = {"m": m, "n": min(k, padded(facts.n)) if facts.cols else 1, "warps": warps, "stages": 2}
        schedule |= {f"k{i}": k for i in range(len(facts.inner))}
        if not tiles_fit(facts, schedule):
            continue
        programs = -(-facts.m // m)
        idle = max(0.0, MULTIPROCESSORS / programs - 1) / 8
        for split in facts.parts(schedule):
            narrow = 0.1 * log2(16 / warps) if programs * split <= MULTIPROCESSORS else 0.0
            rank = (
                _own(facts, each(m * k, schedule), 16, facts.m * facts.size)
                + 0.6 * (k < whole)
                + idle / split
                + 0.2 * (split > 1)
                + narrow
            )
            small = max(0.0, log2(SMALL / (m * k))) / 4 if programs * split > THOUSANDS else 0.0
            short = max(0.0, log2(SEGMENT / m)) / 4 if facts.turned else 0.0
            thin = _thin(facts, m * k, programs * split, warps) / 4 if k < whole else 0.0
            yield _cut(schedule, split), rank + small + short + thin


def _thin(facts: Facts, tile: int, programs: int, warps: int) -> float:
    """How often what programs that walk their rows wait for would have to be doubled to keep the memory busy."""
    flying = min(programs / MULTIPROCESSORS, 64 / warps) * tile * facts.width
    return max(0.0, log2(min(IN_FLIGHT, facts.m * facts.size * facts.width / MULTIPROCESSORS) / flying))


def _contraction(facts: Facts) -> Ranked:
    if facts.middle:
        yield from _behind(facts)
    elif facts.walked:
        yield from _streamed(facts) if facts.few else _squared(facts)  # else each product lies inside another reduction


NEAR = 1.2e5  # bytes a µs that one multiprocessor reads from the L2 cache at most, for ranking only
ROUND = 1.4  # µs of a round of loads for which nothing else is there to wait
LOW = 1.3  # times as long take tiles of fewer than 64 rows, which only the matrix unit of older GPUs multiplies
CROWD = 0.6  # µs for eight warps that share a small tile
OWN = 54  # registers of a thread beside those of tiles
JOIN = 0.7  # µs that the last program takes to join parts of a tile, beside those for each
HELD = 8, 160  # elements of accumulators in a thread: with less the matrix unit waits, with more registers spill


def _squared(facts: Facts) -> Ranked:
    """A product with many rows: what tiles load counts more than what they multiply, and a program's first loads and its
    end are hidden only by other programs on the same multiprocessor. A small one takes as long as a program waits for its rounds of
    loads one after the other, so deep stages. The rank is an estimate of the time in µs."""
    more = {"boxes": 1} if facts.boxed else {}
    work = 1.4 * facts.m * facts.n * facts.size * facts.sums * facts.batch / RATE / MULTIPROCESSORS
    rows = _blocks(facts.m, (32, 64, 128, 256), 16)[-3:]
    for m, n, k in product(rows, _blocks(facts.n, (32, 64, 128, 256), 16), _blocks(facts.size, (32, 64, 128), 16)):
        tiles = -(-facts.m // m), -(-facts.n // n)
        programs, size = prod(tiles) * facts.batch, m * n * facts.sums
        full = programs * m * n / (facts.m * facts.n * facts.batch)  # what is computed for each element that there is
        again = _again(facts, *tiles) + 0.5 * any(by % k for by in facts.periods)
        tile = {"m": m, "n": n, "group": 8 if tiles[0] > 1 else 1, **more, **facts.depths(k)}
        staged = facts.staged(tile)
        if not tiles_fit(facts, tile | {"warps": 8, "stages": 2}):  # more of one or fewer of the other fit even less
            continue
        for warps, stages in product((4, 8), (2, 3, 4, 6, 8)):
            schedule = tile | {"warps": warps, "stages": stages}
            if not HELD[0] <= each(size, schedule) <= HELD[1] or stages * staged > SHARED:
                continue
            resident = max(1, min(SHARED // max(stages * staged, 1), 16 // warps))
            wide = 0.3 if warps * 32 * 64 < size else 0.2 if warps * 32 * 32 >= size else 0
            for split in facts.parts(schedule) if programs < 2 * MULTIPROCESSORS else (1,):
                if split > 1 and (facts.size // split < 4 * k or (facts.periods and facts.size // split % k)):
                    continue
                waves = programs * split / MULTIPROCESSORS
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
                yield _cut(schedule, split), us


def _again(facts: Facts, tiles_m: int, tiles_n: int) -> float:
    """How often products are computed anew: one that does not depend on the columns is, for each tile of them."""
    again = sum(work * (1 if rows else tiles_m) * (1 if cols else tiles_n) for work, rows, cols in facts.dots)
    return again / sum(work for work, *_ in facts.dots) - 1


BANDWIDTH, CACHE = 4.0e6, 2.0e7  # bytes a µs of memory and of the L2 cache, for ranking only
IN_FLIGHT = 40 << 10  # bytes that a multiprocessor must be waiting for to keep its share of the memory busy


def _streamed(facts: Facts) -> Ranked:
    """A product with few rows: bound by reading the right sides once. The rank is an estimate of the time in µs."""
    m = padded(max(facts.m, 16)) if facts.rows else 1
    columns = (16, 32, 64, 128, 256) if facts.rows else (4, 8, 16, 32, 64, 128, 256)
    depths = _blocks(facts.size, (16, 32, 64, 128, 256, 512, 1024), 16 if facts.rows else 1)
    for n, k in product(_blocks(facts.n, columns), depths):
        tile = n * k * facts.sums
        for warps, stages in product((2, 4, 8), (2, 3, 4, 5, 6, 8) if facts.rows else (3,)):
            schedule = {"m": m, "n": n, "warps": warps, "stages": stages, **facts.depths(k)}
            if tile < 512 or each(tile, schedule) < (4 if facts.rows else 8) or not tiles_fit(facts, schedule):
                continue
            for split in facts.parts(schedule):
                yield _cut(schedule, split), _streaming(facts, schedule, tile, k, split) + 0.3 * (n * facts.width < 64)


def _streaming(facts: Facts, s: Schedule, tile: int, k: int, split: int) -> float:
    """An estimate of the µs in which a product with few rows reads its right sides, in tiles of so many elements."""
    size, width = facts.size, facts.width
    tiles = -(-facts.n // s["n"]) * facts.batch
    shared = s["stages"] * (s["m"] * k + tile) * width if facts.rows else 0
    resident = max(1, min(SHARED // shared if shared else 16, 64 // s["warps"]))
    share = tiles * split / MULTIPROCESSORS  # programs of a multiprocessor
    ahead = max(1, min(s["stages"] - 1, size // split // k)) if facts.rows else 1
    waiting = min(share, resident) * tile * width * ahead
    busy = -(-share // resident) * resident / share if share > resident else -(-share // 1) / share
    dense = width * size * facts.n * facts.sums * facts.batch
    reread = tiles * s["m"] * size * width
    joining = (0.3 + 0.2 * split if facts.rows else 1.0 + 0.03 * split) * (split > 1)
    read = dense / BANDWIDTH * busy / min(1.0, waiting / IN_FLIGHT) ** 0.7
    return float(read + reread / CACHE + joining + 0.1 * abs(s["warps"] - 4))


RATE, FROM_CACHE, LATENCY = (
    5e6,
    3.5e4,
    0.7,
)  # of a multiprocessor: operations a µs, bytes a µs; µs until a load is there


def _behind(facts: Facts) -> Ranked:
    """A product behind another one. The rank is an estimate of the time in µs: what a multiprocessor multiplies and loads, but
    no less than what one program after the other waits."""
    more = {"boxes": 1} if facts.boxed else {}
    rows, columns = _blocks(facts.m, (16, 32, 64, 128), 16), _blocks(facts.n, (32, 64, 128, 256), 16)
    for m, n, k in product(rows, columns, _blocks(facts.size, (32, 64, 128, 256), 16)):
        tiles = -(-facts.n // n)
        tile = {"m": m, "n": n, **more, **facts.depths(k)}
        first = sum(
            prod(facts.inner[i] for i in x.inner) * (m if x.rows else 1) * x.itemsize for x in facts.loads if not x.cols
        )
        after = facts.middle * n * facts.width
        for warps, stages, walk in product((4, 8), (2, 3, 4), (0, 1) if tiles > 1 else (0,)):
            schedule = tile | {"warps": warps, "stages": stages, **({"walk": 1} if walk else {})}
            if not walk and tiles > 1:
                schedule["group"] = 8
            if not tiles_fit(facts, schedule):
                continue
            each_walks = tiles if walk else 1
            share = -(-facts.m // m) * facts.batch * tiles / each_walks / MULTIPROCESSORS
            shared = max(stages * facts.staged(tile), after * (stages if walk else 1))
            resident = max(1, min(SHARED // max(shared, 1), 16 // warps))
            loaded = first + each_walks * (after + 2 * m * n * facts.width)
            worked = 2 * m * facts.middle * (facts.size + each_walks * n)
            waits = 2 * LATENCY + (-(-facts.size // k) + (each_walks if walk else 0)) * LATENCY / stages
            tight = 0.1 * share if each(m * (n * facts.sums + facts.middle), schedule) > HELD[1] else 0
            busy = max(1.0, share) * max(worked / RATE * (1 if m >= 64 else 2), loaded / FROM_CACHE)
            yield schedule, max(busy, -(-share // resident) * waits) + waits / 4 + tight


def _attention(facts: Facts) -> Ranked:
    n = facts.columns
    many = facts.m > 16
    own = facts.rest | ({"boxes": 1} if facts.boxed else {})
    rows = _blocks(facts.m, (16, 32, 64, 128), 16) if facts.rows else (1,)
    for m, k, warps, stages in product(rows, _blocks(facts.size, (32, 64, 128, 256), 16), (4, 8), (2, 3, 4)):
        schedule = {"m": m, "n": n, "warps": warps, "stages": stages, f"k{facts.main}": k, **own}
        if not tiles_fit(facts, schedule):
            continue
        programs, stage = facts.programs(schedule), 2 * k * facts.head * facts.width
        shared = m * facts.head * facts.width + stages * stage
        resident = min(SHARED // (shared - stage), 64 // warps)  # all stages but one are held
        for split in facts.parts(schedule) if programs < 2 * MULTIPROCESSORS else (1,):
            busy = programs * split / MULTIPROCESSORS
            later = 0 if many else -(-busy // resident) - 1  # waves whose first loads nothing hides
            registers = OWN + each(m * (n + k + facts.head // 2), schedule)
            together = min(SHARED // shared, int(65536 / (32 * warps * registers)))  # programs of a multiprocessor
            waves = busy / max(1, together) if many else 0.0
            uneven = -(-waves // 1) / waves - 1 if waves > 1 else 0.0  # the last wave's programs are alone
            rank = (
                (1 / busy if busy < 1 else 1 + 0.1 / busy) + 8 / max(m, 16) * many
                + 0.1 * abs(log2(k / (64 if many else 128))) + 0.1 * abs(stages - 3) + 0.12 * later + 0.5 * uneven
                + (0.3 if each(m * n, schedule) > 64 else 0) + 0.1 * (split > 1)
                + (0.4 if many and min(SHARED // shared, 2) * warps < 8 else 0)
            )  # fmt: skip
            beside = {"inside": 1} if facts.boxed and m <= LITTLE and k * split < facts.size else {}
            yield schedule | beside | ({"split": split} if split > 1 else {}), rank
            if split > 1:
                yield _cut(schedule | beside, split), rank + 0.05 * split


_KINDS: Mapping[str, Callable[[Facts], Ranked]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
