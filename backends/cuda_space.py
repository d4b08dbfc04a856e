"""Layouts of generated CUDA kernels worth measuring, the best guesses first.

A schedule is a mapping of small integers. For rows `m`, columns `n` and each reduction axis `0`, `1`, … (in the order of
`Shape.inner`): `t` threads along it, `v` neighbours in one thread, `u` repetitions, each 1 where it is left out. `split` blocks
share one reduction, and the last of them joins; `early` lets a kernel be started before the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from ..egraph import dtypes
from .cuda_source import Along, Layout, slope, together
from .index import Axis, Index
from .kir import Kernel, Unfusable
from .tiling import Shape, padded

Schedule = dict[str, int]
COUNT = 16  # schedules of a kernel and shape that are measured
ALIKE = 2  # of them that differ in one thread's share alone
PROCESSORS, RESIDENT = 132, 2048  # multiprocessors, and threads that one can have
ROWS = 4  # most rows that are multiplied without a matrix unit
REGISTERS = 96  # values of 4 bytes that a thread should not exceed
SHARED = 11 << 10  # values that a block's threads exchange at once
WHOLE = 64  # elements of a row that a thread holds at once
BANDWIDTH = 4.3e6  # bytes a µs, for ranking only
IN_FLIGHT = 40 << 10  # bytes that a multiprocessor must be waiting for to keep its share of the memory busy
JOIN = 1.2  # µs that joining parts takes


def layout_of(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> Layout:
    """The layout that a schedule means for a kernel of this shape."""
    names = {"m": "m", "n": "n"} | {str(i): a.name for i, a in enumerate(shape.inner) if a not in shape.joined}
    dims = {
        name: Along(schedule.get(f"t{key}", 1), schedule.get(f"v{key}", 1), schedule.get(f"u{key}", 1))
        for key, name in names.items()
    }
    first = fastest(kernel, shape)
    order = sorted(dims, key=lambda d: -first.get(d, 0.0))
    return Layout({d: dims[d] for d in order}, bool(schedule.get("early")))


def joining(first: Layout, shape: Shape) -> Layout:
    """The layout in which the last block joins the parts of a tile: what lay along the reduction lies along the parts."""
    dims: dict[str, Along] = {}
    for name, along in first.dims.items():
        if name in ("m", "n"):
            dims[name] = along
        elif along.threads > 1:
            parts = next(a.size for a in shape.inner if a.name == "parts")
            dims["parts"] = Along(along.threads, 1, -(-parts // along.threads))
    for a in shape.inner:
        dims.setdefault(a.name, Along(1, 1, padded(a.size)))
    return Layout(dims, first.early)


# ---------------------------------------------------------------- what lies how in memory
def _accesses(kernel: Kernel) -> Iterator[tuple[str, Index, str, float]]:
    """(buffer, index, dtype, bytes) of each load and store."""
    for e in kernel.exprs:
        if e.op == "load":
            operand, at, _, dtype = e.value
            yield operand, at, dtype, float(dtypes.itemsize(dtype) * prod(kernel.buffers[operand].shape))
    for s in kernel.stores:
        buffer = kernel.buffers[s.buffer]
        yield s.buffer, s.at, buffer.dtype, float(dtypes.itemsize(buffer.dtype) * prod(buffer.shape))


def _groups(shape: Shape) -> dict[str, tuple[Axis, ...]]:
    """The axes of each dimension; reduction axes that run over columns count as these."""
    own = {a.name: (a,) for a in shape.inner if a not in shape.joined}
    return {"m": shape.rows, "n": (*shape.joined, *shape.cols), **own}


def fastest(kernel: Kernel, shape: Shape) -> dict[str, float]:
    """Bytes that lie side by side in memory along each dimension."""
    found: dict[str, float] = {}
    for dim, group in _groups(shape).items():
        ends = [group[-1], *shape.joined] if dim == "n" and group else group[-1:]
        seen = {(b, at, n) for axis in ends for b, at, _, n in _accesses(kernel) if slope(at, axis, 1) == 1}
        found[dim] = sum(n for *_, n in seen)
    return found


def width(kernel: Kernel, shape: Shape, dim: str) -> int:
    """The longest vector along a dimension that the most bytes can move in."""
    group = _groups(shape)[dim]
    if not group:
        return 1
    best, moved = 1, 0.0
    for vector in (2, 4, 8):
        total = 0.0
        for axis in dict.fromkeys([group[-1], *(shape.joined if dim == "n" else ())]):
            for _, at, dtype, nbytes in _accesses(kernel):
                size = dtypes.itemsize(dtype)
                if vector * size <= 32 and together(at, axis, vector, size):
                    total += nbytes
        if total > 0 and total >= moved:
            best, moved = vector, total
    sizes = [dtypes.itemsize(d) for _, at, d, n in _accesses(kernel) if slope(at, group[-1], 1) == 1]
    return min(best, max(1, 16 // min(sizes, default=4)))


# ---------------------------------------------------------------- schedules
def schedules(kernel: Kernel, shape: Shape, count: int = COUNT, *, splits: bool = True) -> list[Schedule]:
    """At most `count` schedules, best guess first; empty for what is left to others: products of many rows, attention."""
    kind = _KINDS.get(shape.kind)
    if kind is None or (shape.kind == "contraction" and shape.m > ROWS) or (shape.walks and not shape.joined):
        return []
    splits = (
        splits and not shape.joined and all(b.dtype != "float64" for b in kernel.buffers.values())
    )  # states are narrower
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for schedule, rank in kind(kernel, shape):
        if schedule.get("split", 1) > 1 and not splits:
            continue
        key = tuple(sorted((k, v) for k, v in schedule.items() if v != 1))
        found[key] = min(rank, found.get(key, rank))
    ordered = _varied([dict(key) for key in sorted(found, key=lambda k: (found[k], k))])
    early = [s | {"early": 1} for s in ordered[: max(1, count // 8)]]
    return [*ordered[: count - len(early)], *early] if ordered else []


def _varied(ordered: Sequence[Schedule]) -> list[Schedule]:
    """Of schedules that differ in how much one thread holds along a reduction alone, the best few first."""
    alike: dict[tuple[int, ...], int] = {}
    first: list[Schedule] = []
    later: list[Schedule] = []
    for s in ordered:
        key = tuple(s.get(k, 1) for k in ("tm", "tn", "un", "t0", "split"))
        alike[key] = alike.get(key, 0) + 1
        (first if alike[key] <= ALIKE else later).append(s)
    return [*first, *later]


Ranked = Iterator[tuple[Schedule, float]]


def _powers(low: int, high: int) -> list[int]:
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length())]


def _busy(programs: int, threads: int) -> float:
    """How much longer the work takes because multiprocessors idle: before the first wave is full, and in the last."""
    resident = max(1, RESIDENT // threads)
    waves = programs / (PROCESSORS * resident)
    return -(-waves // 1) / waves if waves > 1 else max(1.0, PROCESSORS / programs)


def _pointwise(kernel: Kernel, shape: Shape) -> Ranked:
    """One pass: enough bytes under way in each thread; where some memory lies along rows and some along columns, a thread
    turns a square in its registers."""
    side, sizes = fastest(kernel, shape), {"m": shape.m, "n": shape.n}
    fast, slow = ("n", "m") if side["n"] >= side["m"] else ("m", "n")
    widest = {d: width(kernel, shape, d) for d in (fast, slow)}
    crossed = min(widest.values()) > 1
    squares = [(a, b) for a, b in product((8, 4, 2), repeat=2) if a <= widest[fast] and b <= widest[slow]]
    reads = max(1, sum(e.op == "load" for e in kernel.exprs))
    for (v, w), threads, repeat in product(squares if crossed else [(widest[fast], 1)], (64, 128, 256, 512), (1, 2, 4)):
        held = v * w * repeat
        if (held * (reads + 1) > 2 * REGISTERS and held > 4) or (crossed and repeat > 1):
            continue
        whole = padded(-(-sizes[fast] // v))
        for t in _powers(1, min(threads, whole)):
            if not crossed and t < min(threads, whole) and t < 32:
                continue
            rest = min(threads // t, padded(-(-sizes[slow] // w)))
            along = slow if sizes[slow] // w >= rest * repeat and (t == whole or crossed) else fast
            schedule = {f"t{fast}": t, f"v{fast}": v, f"t{slow}": rest, f"v{slow}": w, f"u{along}": repeat}
            block = {d: schedule[f"t{d}"] * schedule[f"v{d}"] * schedule.get(f"u{d}", 1) for d in ("m", "n")}
            programs = -(-shape.m // block["m"]) * -(-shape.n // block["n"])
            lost = prod(-(-sizes[d] // block[d]) * block[d] / max(1, sizes[d]) for d in ("m", "n"))
            narrow = 0.3 * (8 / v + 8 / w - 2) + abs(t - 8) / 16 if crossed else (t < 32 and t < whole) * 0.5
            rank = (
                lost * _busy(programs, threads) + abs(threads - 256) / 1024 + narrow
                + 0.1 * abs(held * reads - 16) / 16 + (0.2 if block[fast] > 2 * sizes[fast] else 0)
            )  # fmt: skip
            yield schedule, rank


def _rows(kernel: Kernel, shape: Shape) -> Ranked:
    yield from _joined(kernel, shape) if shape.joined else _reduced(kernel, shape)


def _joined(kernel: Kernel, shape: Shape) -> Ranked:
    """Rows that are reduced and written again: held in registers where they fit, walked several times where not."""
    vector = width(kernel, shape, "n")
    whole = padded(-(-shape.n // vector))
    reads = len({e.value[0] for e in kernel.exprs if e.op == "load" and e.axes & {*shape.cols, *shape.joined}}) or 1
    own = {f"u{i}": padded(a.size) for i, a in enumerate(shape.inner) if a not in shape.joined}
    for t in _powers(1, min(1024, max(1, whole))):
        for repeat in _powers(1, max(1, min(16, whole // t))):
            held, walked = vector * repeat, t * repeat < whole
            if held > WHOLE or (walked and (t < 128 or repeat > 4)):
                continue
            for rows in _powers(1, max(1, 1024 // t)):
                if rows > padded(max(1, shape.m)) or t * rows > 1024:
                    continue
                if t * rows < 32 and (t < whole or rows < padded(max(1, shape.m))):
                    continue
                for more in (1, 2, 4) if rows * t >= 64 and not walked else (1,):
                    if held * more * reads > REGISTERS or (more > 1 and rows * more > shape.m):
                        continue
                    programs = -(-shape.m // (rows * more)) * prod(a.size for a in shape.batch)
                    under_way = held * more * reads
                    rank = (
                        _busy(programs, t * rows) + abs(t * rows - 256) / 1024 + 0.8 * walked
                        + 0.15 * abs(under_way - 16) / 16 + 0.15 * (t > 32) + 0.1 * (t > 256)
                    )  # fmt: skip
                    yield {"tn": t, "vn": vector, "un": repeat, "tm": rows, "um": more, **own}, rank


def _reduced(kernel: Kernel, shape: Shape) -> Ranked:
    """Reductions whose rows are not written again: the longest axis is walked, in parts where there are few rows."""
    main = max(shape.inner, key=lambda a: a.size)
    side, at = fastest(kernel, shape), shape.inner.index(main)
    along_rows = side["m"] > side[main.name]
    vm, vk = (width(kernel, shape, "m"), 1) if along_rows else (1, width(kernel, shape, main.name))
    own = {f"u{i}": padded(a.size) for i, a in enumerate(shape.inner) if a != main}
    nbytes = sum(n for _, _, _, n in {(b, i, d, n) for b, i, d, n in _accesses(kernel)})
    batch = prod(a.size for a in shape.batch)
    whole = padded(-(-main.size // vk))
    for threads, depth in product((128, 256, 512), (1, 2, 4, 8)):
        for rows in _powers(1, min(threads, padded(-(-max(1, shape.m) // vm)))):
            t = min(threads // rows, whole)
            block = max(32, t * rows)
            if (
                vk * vm * depth > WHOLE
                or (along_rows and rows * vm < 32 < shape.m)
                or (depth > 1 and t * depth > whole)
            ):
                continue
            tiles = -(-max(1, shape.m) // (rows * vm)) * batch
            for split in _splits(main.size, tiles, t * vk * depth):
                waiting = min(RESIDENT, -(-tiles * split // PROCESSORS) * block) * vm * vk * depth * 2
                rank = (
                    nbytes / BANDWIDTH * _busy(tiles * split, block) / min(1.0, waiting / IN_FLIGHT) ** 0.7
                    + (JOIN + 0.01 * split) * (split > 1) + 0.2 * (rows > 1 and not along_rows and t < 32) + abs(block - 256) / 1024
                )  # fmt: skip
                yield {"tm": rows, "vm": vm, f"t{at}": t, f"v{at}": vk, f"u{at}": depth, "split": split, **own}, rank


def _splits(length: int, tiles: int, step: int) -> list[int]:
    """Into how many parts a reduction can be cut so that all multiprocessors have work."""
    most = max(1, 8 * PROCESSORS // tiles)
    return [
        1,
        *(
            s
            for s in _powers(2, 512)
            if s <= most and length % s == 0 and length // s >= max(2, min(step, length // 2))
        ),
    ]


def _contraction(kernel: Kernel, shape: Shape) -> Ranked:
    """A few rows times a matrix: bound by reading the matrix once. The rank is an estimate of the time in µs."""
    main = max((e.axis for e in shape.dots if e.axis in shape.outer), key=lambda a: a.size)
    at, side = shape.inner.index(main), fastest(kernel, shape)
    matrices = max(1, sum(e.axis in shape.outer for e in shape.dots))
    batch = prod(a.size for a in shape.batch)
    narrow = min((dtypes.itemsize(b.dtype) for b in kernel.buffers.values()), default=4)
    nbytes = narrow * main.size * shape.n * matrices * batch
    along_n = side["n"] > side[main.name]
    vn, vk = (width(kernel, shape, "n"), 1) if along_n else (1, width(kernel, shape, main.name))
    rows = padded(max(1, shape.m))
    own = {f"u{i}": padded(a.size) for i, a in enumerate(shape.inner) if a != main}
    if prod(own.values()) > 64:
        raise Unfusable("long reductions inside a product")
    whole = padded(-(-main.size // vk))
    for threads, depth in product((64, 128, 256, 512, 1024), (1, 2, 4, 8, 16)):
        for tn in _powers(1, min(threads, 32, padded(-(-shape.n // vn)))):
            for un in (1,) if along_n else (1, 2, 4):
                tk, held = min(threads // tn, whole), vn * vk * depth * un * matrices
                if (
                    tn * un > padded(shape.n)
                    or (along_n and tn < 4 and shape.n > 32)
                    or (depth > 1 and tk * depth > whole)
                ):
                    continue
                block = max(32, tk * tn)
                registers = held * narrow // 4 + rows * vn * un * matrices + rows * vk * depth
                lanes = min(tk, 32 if not along_n else max(1, 32 // tn))
                exchanged = block // lanes * rows * vn * un * matrices
                if registers > REGISTERS or (not along_n and tk < min(16, whole)) or exchanged > SHARED:
                    continue
                tiles = -(-shape.n // (tn * vn * un)) * batch
                resident = min(RESIDENT // block, max(1, 60000 // (block * (registers + 28))))
                side_by_side = (
                    min(8, depth) if along_n else vk
                )  # rows of the matrix whose factors one thread reads at once
                for split in _splits(main.size, tiles, tk * vk * depth):
                    if split > 1 and 2 * exchanged > SHARED:
                        continue
                    share = tiles * split / PROCESSORS
                    waves = -(-share // resident)
                    busy = -(-share // 1) / share if share <= resident else waves * resident / share
                    waiting = min(share, resident) * block * held * narrow
                    rank = (
                        nbytes / BANDWIDTH * busy / min(1.0, waiting / IN_FLIGHT) ** 0.7 + 0.5 * waves
                        + (JOIN + 0.02 * split) * (split > 1) + 0.4 * (along_n and tn * vn * narrow < 64)
                        + 0.1 * (tk * tn > 256) + 0.1 * (tk > 32) + 0.3 * (block == 1024)
                    )  # fmt: skip
                    schedule = {"tn": tn, "vn": vn, "un": un, f"t{at}": tk, "um": rows, "split": split, **own}
                    yield schedule | {f"v{at}": vk, f"u{at}": depth}, rank
                    if side_by_side > vk:
                        yield schedule | {f"v{at}": side_by_side, f"u{at}": depth // side_by_side}, rank - 0.2


_KINDS: dict[str, Callable[[Kernel, Shape], Ranked]] = {
    "pointwise": _pointwise, "rows": _rows, "contraction": _contraction,
}  # fmt: skip

__all__ = ["Schedule", "fastest", "joining", "layout_of", "schedules"]
