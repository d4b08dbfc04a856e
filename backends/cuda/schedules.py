"""Candidate schedules of SIMT and skinny-GEMM CUDA kernels, best guess first, and their legality.

A schedule maps names to small integers. For rows `m`, columns `n` and each reduction axis `0`, `1`, … (in the order of
`Shape.inner`): `t` threads, `v` contiguous elements per thread (vector width) and `u` repeats, each 1 if absent.
`split` is the split-K factor over blocks; `early` enables programmatic dependent launch; `ahead` is the prefetch
distance in loop iterations. With `warps`, tensor cores compute the product (emit/tensor_cores.py): so many warps along K and
`wide` along the block's `n` columns, each with `deep` chunks of 32 K elements per iteration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from ...egraph.ir import dtypes
from ..ir.index import Axis, Index
from ..ir.kernel import Kernel, Unfusable, if_fusable, walk
from ..ir.tiling import Shape, padded
from .emit.thread_layout import Along, Layout, Warps, slope, together
from .ranking import COUNT, Few, Pass, Product, Reduced, Rows, Schedule, ranked

ROWS = 4  # maximum rows of GEMM on CUDA cores
FEW = 32  # maximum rows of skinny GEMM on tensor cores with register fragments
MOST_AHEAD = 8  # maximum prefetch distance in iterations
HELD = 64  # maximum elements of short reductions nested in another one


def layout_of(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> Layout:
    """The thread layout of a schedule for a kernel of this shape."""
    if "warps" in schedule:
        return _of_warps(shape, schedule)
    names = {"m": "m", "n": "n"} | {str(i): a.name for i, a in enumerate(shape.inner) if a not in shape.joined}
    dims = {
        name: Along(schedule.get(f"t{key}", 1), schedule.get(f"v{key}", 1), schedule.get(f"u{key}", 1))
        for key, name in names.items()
    }
    first = fastest(kernel, shape)
    order = sorted(dims, key=lambda d: -first.get(d, 0.0))
    return Layout({d: dims[d] for d in order}, bool(schedule.get("early")), schedule.get("ahead", 0))


def _of_warps(shape: Shape, schedule: Mapping[str, int]) -> Layout:
    """Tensor-core layout; in the epilogue each thread holds two neighbouring columns of the tile."""
    wide, n = schedule.get("wide", 1), schedule["n"]
    warps = Warps(schedule["warps"], wide, n // (8 * wide), schedule.get("deep", 1))
    threads = 32 * warps.along * wide
    across = min(n // 2, threads)
    down = min(padded(max(1, shape.m)), threads // across)
    dims = {"n": Along(across, 2, n // (2 * across)), "m": Along(down, 1, -(-padded(max(1, shape.m)) // down))}
    dims |= {
        a.name: Along(1, schedule.get(f"v{i}", 1), schedule[f"u{i}"])
        for i, a in enumerate(shape.inner)
        if f"u{i}" in schedule
    }
    return Layout(dims, bool(schedule.get("early")), 0, threads, warps)


OF_WARPS = {"warps", "wide", "n", "deep", "split", "early", "um"}
OF_THREADS = {"split", "early", "ahead"}
_ALONG = re.compile(r"[tvu](m|n|\d+)")


def legal(schedule: Mapping[str, int], shape: Shape) -> bool:
    """Whether the numbers describe a valid layout in canonical form.

    Thread counts and vector widths must be powers of two within hardware limits, tiles must not exceed twice the rows
    or columns rounded up to a power of two, and switches must be 0 or 1.
    """
    along = {k: v for k, v in schedule.items() if _ALONG.fullmatch(k)}
    named = OF_WARPS if "warps" in schedule else OF_THREADS
    if not set(schedule) <= named | set(along) or schedule.get("early", 0) > 1:
        return False
    if "warps" in schedule:
        wide, n = schedule.get("wide", 1), schedule.get("n", 0)
        sizes = [schedule["warps"], wide, n, schedule.get("deep", 1)]
        return all(v > 0 and v & (v - 1) == 0 for v in sizes) and n % (8 * wide) == 0 and n <= 256 \
            and schedule["warps"] * wide <= 32 and schedule.get("um", shape.m) == shape.m  # fmt: skip
    threads, vectors = ([v for k, v in along.items() if k[0] == x] for x in "tv")
    powers = all(v & (v - 1) == 0 for v in (*threads, *vectors))
    covered = {d: prod(along.get(f"{x}{d}", 1) for x in "tvu") for d in "mn"}
    within = all(covered[d] <= (2 * padded(size) if size > 1 else 1) for d, size in (("m", shape.m), ("n", shape.n)))
    small = max(vectors, default=1) <= 8 and schedule.get("ahead", 0) <= MOST_AHEAD
    return powers and within and small and prod(threads) <= 1024


def joining(first: Layout, shape: Shape) -> Layout:
    """The layout in which the last block combines a tile's partial results: threads along the reduction now lie along
    the parts."""
    dims: dict[str, Along] = {}
    for name, along in first.dims.items():
        if name in ("m", "n"):
            dims[name] = along
        elif along.threads > 1:
            parts = next(a.size for a in shape.inner if a.name == "parts")
            dims["parts"] = Along(along.threads, 1, -(-parts // along.threads))
    for a in shape.inner:
        dims.setdefault(a.name, Along(1, 1, a.size))
    return Layout(dims, first.early, 0, first.least)


# ---------------------------------------------------------------- memory access analysis
def _accesses(kernel: Kernel) -> Iterator[tuple[str, Index, str, float]]:
    """(buffer, index, dtype, bytes of the buffer) of each load and store."""
    for e in kernel.exprs:
        if e.op == "load":
            operand, at, _, dtype = e.value
            yield operand, at, dtype, float(dtypes.itemsize(dtype) * prod(kernel.buffers[operand].shape))
    for s in kernel.stores:
        buffer = kernel.buffers[s.buffer]
        yield s.buffer, s.at, buffer.dtype, float(dtypes.itemsize(buffer.dtype) * prod(buffer.shape))


def _groups(shape: Shape) -> dict[str, tuple[Axis, ...]]:
    """The axes of each dimension; reduction axes over columns belong to the columns."""
    own = {a.name: (a,) for a in shape.inner if a not in shape.joined}
    return {"m": shape.rows, "n": (*shape.joined, *shape.cols), **own}


def fastest(kernel: Kernel, shape: Shape) -> dict[str, float]:
    """Bytes of memory traffic that is contiguous along each dimension."""
    found: dict[str, float] = {}
    for dim, group in _groups(shape).items():
        ends = [group[-1], *shape.joined] if dim == "n" and group else group[-1:]
        seen = {(b, at, n) for axis in ends for b, at, _, n in _accesses(kernel) if slope(at, axis, 1) == 1}
        found[dim] = sum(n for *_, n in seen)
    return found


def width(kernel: Kernel, shape: Shape, dim: str) -> int:
    """The widest vector along a dimension that serves the most bytes, at most 16 bytes of the narrowest operand."""
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
    """At most `count` schedules, best guess first; empty for kernels of other emitters (GEMM with many rows,
    attention)."""
    if shape.kind == "attention" or (shape.walks and not shape.joined):
        return []
    narrow = all(b.dtype != "float64" for b in kernel.buffers.values())  # partial results are float32
    splits = splits and narrow and not shape.joined
    found: list[Schedule] = []
    if shape.kind != "contraction" or shape.m <= ROWS:
        found = [dict(s) for s in ranked(_seen(kernel, shape, splits), count)]
    if shape.kind == "contraction" and (few := _few(kernel, shape, splits)) is not None:
        own = [dict(s) for s in ranked(few, count - (count // 2) * bool(found))]
        found = [*found[: count - len(own)], *own]
    return found


def _few(kernel: Kernel, shape: Shape, splits: bool) -> Few | None:
    """Description of a skinny GEMM for tensor cores, if its operands are 16-bit and contiguous along K; else None."""
    axes = [e.axis for e in shape.dots if e.axis in shape.outer]
    if not axes or not 1 < shape.m <= FEW:
        return None
    main = max(axes, key=lambda a: a.size)
    for d in (d for e, d in shape.dots.items() if e.axis == main):
        for x in (x for f in (*d.left, *d.right) for x in walk([f]) if x.op == "load" and main in x.axes):
            if dtypes.itemsize(x.value[3]) != 2 or not together(x.value[1], main, 8, 2):
                return None
    own = if_fusable(_short, kernel, shape, main)
    if own is None:
        return None
    matrices = sum(e.axis == main and bool(d.cols & {*shape.cols}) for e, d in shape.dots.items())
    batch = prod(a.size for a in shape.batch)
    return Few(shape.m, shape.n, main.size, max(1, matrices), batch, splits, own)


def _seen(kernel: Kernel, shape: Shape, splits: bool) -> Pass | Rows | Reduced | Product:
    """The kernel's description for ranking."""
    batch = prod(a.size for a in shape.batch)
    loads = [e for e in kernel.exprs if e.op == "load"]
    side = fastest(kernel, shape)
    if shape.kind == "pointwise":
        fast, slow = ("n", "m") if side["n"] >= side["m"] else ("m", "n")
        sizes, widths = {"m": shape.m, "n": shape.n}, {d: width(kernel, shape, d) for d in "mn"}
        return Pass(fast, slow, sizes[fast], sizes[slow], widths[fast], widths[slow], max(1, len(loads)), batch)
    if shape.joined:
        rows = len({e.value[0] for e in loads if e.axes & {*shape.cols, *shape.joined}}) or 1
        own = _short(kernel, shape, None)
        return Rows(shape.m, shape.n, width(kernel, shape, "n"), width(kernel, shape, "m"), rows, batch, own)
    matrices = [e.axis for e in shape.dots if e.axis in shape.outer]
    if shape.dots and not matrices:
        raise Unfusable("a product inside another reduction")
    main = max(matrices or shape.inner, key=lambda a: a.size)
    at, own = shape.inner.index(main), _short(kernel, shape, main)
    if not matrices:
        along_rows = side["m"] > side[main.name]
        nbytes = sum(n for *_, n in set(_accesses(kernel)))
        vector = width(kernel, shape, "m" if along_rows else main.name)
        return Reduced(max(1, shape.m), main.size, at, vector, along_rows, nbytes, batch, splits, own)
    along_columns = side["n"] > side[main.name]
    vector = width(kernel, shape, "n" if along_columns else main.name)
    itemsize = min(dtypes.itemsize(b.dtype) for b in kernel.buffers.values())
    return Product(
        padded(max(1, shape.m)),
        shape.n,
        main.size,
        at,
        vector,
        along_columns,
        len(matrices),
        itemsize,
        batch,
        splits,
        own,
    )


def _short(kernel: Kernel, shape: Shape, main: Axis | None) -> tuple[tuple[str, int], ...]:
    """Schedule entries that keep every other reduction axis whole in each thread. Unfusable if those axes are long."""
    found: dict[str, int] = {}
    for i, a in enumerate(shape.inner):
        if a != main and a not in shape.joined:
            vector = width(kernel, shape, a.name)
            found |= {f"v{i}": vector, f"u{i}": -(-a.size // vector)}
    if prod(found.values()) > HELD:
        raise Unfusable("a long reduction inside another one")
    return tuple(found.items())


__all__ = ["Schedule", "fastest", "joining", "layout_of", "legal", "schedules"]
