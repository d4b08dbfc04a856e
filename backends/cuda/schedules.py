"""Defines schedules (tuning parameters) of SIMT and skinny-GEMM CUDA kernels: their classes, candidates (best guess
first) and whether one is legal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

from ...egraph.types import dtypes
from ..generate.emitter import split_axis
from ..generate.schedule import Domain, Schedule, SplitSchedule, flag, number, optional, sides
from ..generate.strategy import earlier_first
from ..ir.expr import walk
from ..ir.index import Axis, Index
from ..ir.kernel import Kernel
from ..ir.tiling import Shape, padded, shape_of
from ..ir.unfusable import Unfusable, if_fusable
from ..lowering.split_reduction import split
from .emit.fragments import refusal
from .emit.packed_sides import sides_of, span_of
from .emit.staged_row import staged_row
from .emit.thread_layout import DimensionThreads, ThreadLayout, Warps, is_vectorizable, stride_in_runs
from .ranking.gemv import WARM, GemvRanking
from .ranking.model import ranked
from .ranking.packed_gemm import PackedGemmRanking
from .ranking.rows import ElementwiseRanking, ReductionRanking, RowReductionRanking
from .ranking.skinny_gemm import SkinnyGemmRanking

ROWS = 4  # maximum rows of GEMM on CUDA cores
FEW = 32  # maximum rows of skinny GEMM on tensor cores with register fragments
MOST_AHEAD = 8  # maximum prefetch distance in iterations
HELD = 64  # maximum elements of short reductions nested in another one


POWERS = Domain(powers=True)
PREFETCH = "with `early`: L2 prefetch of matrices before the wait for the previous kernel"
SPLIT = "split-K factor over blocks; the last block of a tile combines the partial results"


def elements_per_block(dimension: str, *numbers: tuple[tuple[str, int], ...]) -> int:
    """Elements that a thread block covers along `dimension`: the product of its entries in `numbers`, lists of
    (dimension, threads or vector width or repeats); 1 where an entry is absent."""
    return prod(dict(n).get(dimension, 1) for n in numbers)


@dataclass(frozen=True)
class SimtSchedule(SplitSchedule):
    """Schedule (tuning parameters) of a SIMT kernel, which uses CUDA cores: threads, vectors and repeats along rows
    ("m"), columns ("n") and each reduction axis, named by its index in `Shape.inner`."""

    threads: tuple[tuple[str, int], ...] = sides("threads along a dimension", POWERS, "t")
    vector: tuple[tuple[str, int], ...] = sides(
        "contiguous elements per thread along a dimension", Domain(1, 8, powers=True), "v"
    )
    repeat: tuple[tuple[str, int], ...] = sides("repeats of a thread along a dimension", Domain(), "u")
    split: int | None = optional(SPLIT, Domain(2), drops=True, common=True)
    ahead: int | None = optional("prefetch distance of cp.async copies in loop iterations", Domain(1, MOST_AHEAD))
    staged: bool = flag("products of one row: the threads of a block compute it once, in shared memory")
    early: bool = flag("programmatic dependent launch", common=True)
    warm: bool = flag(PREFETCH, common=True)

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of the results that a block computes."""
        return elements_per_block("m", self.threads, self.vector, self.repeat), elements_per_block(
            "n", self.threads, self.vector, self.repeat
        )

    def layout(self, kernel: Kernel, shape: Shape) -> ThreadLayout:
        """The thread layout that this schedule gives `kernel`, whose axes have the roles `shape` (row, column, batch,
        reduction)."""
        names = {"m": "m", "n": "n"} | {str(i): a.name for i, a in enumerate(shape.inner) if a not in shape.joined}
        own = [dict(n) for n in (self.threads, self.vector, self.repeat)]
        dims = {name: DimensionThreads(*(n.get(key, 1) for n in own)) for key, name in names.items()}
        first = fastest(kernel, shape)
        order = sorted(dims, key=lambda d: -first.get(d, 0.0))
        return ThreadLayout({d: dims[d] for d in order}, self.early, self.ahead or 0, warm=self.warm)


@dataclass(frozen=True)
class SkinnyGemmSchedule(SplitSchedule):
    """Schedule (tuning parameters) of a GEMM with few rows on tensor cores (emit/fragments.py)."""

    warps: int = number("warps along K", POWERS)
    n: int = number("columns of a block", Domain(8, 256, powers=True))
    wide: int | None = optional("warps along columns", POWERS)
    deep: int | None = optional("chunks of 32 K elements of a warp per iteration", POWERS)
    packed: bool = flag("codes of quantized weights: 16 bytes a load, converted two at a time", fixed=True, form=True)
    ahead: int | None = optional(
        "with `packed`: prefetch distance of cp.async copies in iterations", Domain(1, MOST_AHEAD), starts=2
    )
    direct: bool = flag("with `ahead`: only scales and rows are copied, codes stay in registers")
    joint: bool = flag("with `ahead`: the warps of a block copy rows together, each row once")
    vector: tuple[tuple[str, int], ...] = sides(
        "contiguous elements per thread along a short inner reduction", Domain(1, 8, powers=True), "v"
    )
    repeat: tuple[tuple[str, int], ...] = sides(
        "repeats of a thread along rows or a short inner reduction", Domain(), "u"
    )
    split: int | None = optional(SPLIT, Domain(2), drops=True, common=True)
    early: bool = flag("programmatic dependent launch", common=True)
    warm: bool = flag(PREFETCH, common=True)

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of the results that a block computes."""
        return elements_per_block("m", self.vector, self.repeat), self.n

    def layout(self, kernel: Kernel, shape: Shape) -> ThreadLayout:
        """The thread layout that this schedule gives `kernel`, whose axes have the roles `shape` (row, column, batch,
        reduction): in the epilogue each thread holds two neighbouring columns of the tile."""
        wide, n, vector, repeat = self.wide or 1, self.n, dict(self.vector), dict(self.repeat)
        tiles = n // (8 * wide)
        warps = Warps(self.warps, wide, tiles, self.deep or 1, self.packed, self.ahead or 0, self.direct, self.joint)
        threads = 32 * warps.along * wide
        across = min(n // 2, threads)
        down = min(padded(max(1, shape.m)), threads // across)
        dims = {
            "n": DimensionThreads(across, 2, n // (2 * across)),
            "m": DimensionThreads(down, 1, -(-padded(max(1, shape.m)) // down)),
        }
        dims |= {
            a.name: DimensionThreads(1, vector.get(str(i), 1), repeat[str(i)])
            for i, a in enumerate(shape.inner)
            if str(i) in repeat
        }
        return ThreadLayout(dims, self.early, 0, threads, warps, self.warm)


def simt_legal(shape: Shape, s: SimtSchedule) -> bool:
    """Whether the schedule `s` is legal: at most 1024 threads, and tiles that are not much larger than the matrix,
    namely at most twice its rows and columns, each rounded up to a power of two."""
    sizes = zip(s.tile(shape), (shape.m, shape.n))
    within = all(tile <= (2 * padded(size) if size > 1 else 1) for tile, size in sizes)
    return s.valid and within and prod(t for _, t in s.threads) <= 1024 and (s.early or not s.warm)


def covers_sums(kernel: Kernel, shape: Shape, s: SimtSchedule) -> bool:
    """Whether a block covers all reductions of `kernel` in the schedule `s`, so that it has no loop over one."""
    dims = s.layout(kernel, shape).dims
    return all(a.name in dims and dims[a.name].block >= a.size for a in shape.inner if a not in shape.joined)


def skinny_legal(shape: Shape, s: SkinnyGemmSchedule) -> bool:
    """Whether the schedule `s` is legal: a block's warps share its columns evenly, and a block has at most 32 warps and
    covers all rows."""
    wide = s.wide or 1
    rows = dict(s.repeat).get("m", shape.m) == shape.m
    packed = not s.packed or (s.n % (16 * wide) == 0 and s.deep is None and not s.warm)
    return (
        s.valid
        and s.n % (8 * wide) == 0
        and s.warps * wide <= 32
        and rows
        and packed
        and (s.early or not s.warm)
        and (s.packed or s.ahead is None)
        and (s.ahead is not None or not (s.direct or s.joint))
    )


def combining_layout(first: ThreadLayout, shape: Shape) -> ThreadLayout:
    """Thread layout in which the last block of a tile combines the partial results of a split reduction.

    `first`: layout of the kernel that computes them; `shape`: roles of the axes (row, column, batch, reduction) of the
    combining kernel. Threads along the reduction become threads along the axis over the parts.
    """
    dims: dict[str, DimensionThreads] = {}
    for name, along in first.dims.items():
        if name in ("m", "n"):
            dims[name] = along
        elif name not in first.shared and along.threads > 1:
            parts = next(a.size for a in shape.inner if a.name == "parts")
            repeat = -(-parts // along.threads)
            if first.shared:  # a part has a whole result: a loop, where registers do not hold all of them
                repeat = min(repeat, max(1, HELD * 2 // (first.dims["m"].held * first.dims["n"].held)))
            dims["parts"] = DimensionThreads(along.threads, 1, repeat)
    for a in shape.inner:
        dims.setdefault(a.name, DimensionThreads(1, 1, a.size))
    return ThreadLayout(dims, first.early, 0, first.least)


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
    """For each dimension ("m", "n", reduction axes), the bytes of the kernel's global-memory traffic that are
    contiguous along it."""
    found: dict[str, float] = {}
    for dim, group in _groups(shape).items():
        ends = [group[-1], *shape.joined] if dim == "n" and group else group[-1:]
        seen = {(b, at, n) for axis in ends for b, at, _, n in _accesses(kernel) if stride_in_runs(at, axis, 1) == 1}
        found[dim] = sum(n for *_, n in seen)
    return found


def width(kernel: Kernel, shape: Shape, dim: str) -> int:
    """Elements of the widest useful vector along the dimension `dim`: at most 16 bytes of the narrowest operand that is
    contiguous along it, and 1 if none is."""
    group = _groups(shape)[dim]
    if not group:
        return 1
    best, moved = 1, 0.0
    for vector in (2, 4, 8):
        total = 0.0
        for axis in dict.fromkeys([group[-1], *(shape.joined if dim == "n" else ())]):
            for _, at, dtype, nbytes in _accesses(kernel):
                size = dtypes.itemsize(dtype)
                if vector * size <= 32 and is_vectorizable(at, axis, vector, size):
                    total += nbytes
        if total > 0 and total >= moved:
            best, moved = vector, total
    sizes = [dtypes.itemsize(d) for _, at, d, n in _accesses(kernel) if stride_in_runs(at, group[-1], 1) == 1]
    return min(best, max(1, 16 // min(sizes, default=4)))


# ---------------------------------------------------------------- schedules
def simt_applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether SIMT schedules are offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): not for attention, and for GEMM only with few rows."""
    return _unwalked(shape) and (shape.kind != "contraction" or shape.m <= ROWS)


def skinny_applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether skinny-GEMM schedules are offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): for a GEMM, whose number of rows is checked later."""
    return _unwalked(shape) and shape.kind == "contraction"


def _unwalked(shape: Shape) -> bool:
    """Whether a kernel is no attention and processes no columns after a reduction (`Shape.walks`), except reductions
    over its own columns."""
    return shape.kind != "attention" and (not shape.walks or bool(shape.joined))


def simt_schedules(kernel: Kernel, shape: Shape, count: int, splits: bool) -> list[SimtSchedule]:
    """At most `count` SIMT schedules for `kernel`, whose axes have the roles `shape` (row, column, batch, reduction),
    best guess first.

    `splits`: whether the longest reduction may be split (split-K). Raises Unfusable if there is a product or a long
    reduction inside another reduction.
    """
    seen = _seen(kernel, shape, splits and _splittable(kernel, shape))
    numbers = ranked(seen, count)
    if isinstance(seen, GemvRanking) and if_fusable(staged_row, kernel, shape) is not None:
        staged = ranked(replace(seen, staged=True, whole=seen.nbytes <= WARM, splits=False), count)
        pairs = zip_longest(({**s, "staged": 1} for s in staged), numbers)
        numbers = tuple(s for pair in pairs for s in pair if s is not None)[:count]
    found = [s for one in numbers if (s := SimtSchedule.parse(one)) is not None]
    if not shape.dots or split_axis(shape) in {e.axis for e in shape.dots}:
        return found
    return [s.but(warm=False) if s.split else s for s in found]  # parts of another sum read no matrix first


def skinny_schedules(kernel: Kernel, shape: Shape, count: int, splits: bool) -> list[SkinnyGemmSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless it is a GEMM of few rows whose operands
    are 16-bit or bytes and contiguous along K.

    `splits`: whether the reduction may be split (split-K).
    """
    few = _few(kernel, shape, splits and _splittable(kernel, shape))
    packed = packed_ranking(kernel, shape, splits)
    first = _parsed(packed, count - count // 4) if packed is not None else []
    return [*(s.but(packed=True) for s in first), *(_parsed(few, count - len(first)) if few is not None else [])]


def _parsed(seen: SkinnyGemmRanking | PackedGemmRanking, count: int) -> list[SkinnyGemmSchedule]:
    """At most `count` schedules of a skinny GEMM, best rank first."""
    return [s for one in ranked(seen, count) if (s := SkinnyGemmSchedule.parse(one)) is not None]


def merge_packed(found: Sequence[Schedule], own: Sequence[Schedule], count: int) -> Sequence[Schedule]:
    """Merge two lists of candidate schedules: `found`, from the kinds of kernel tried before, and `own`, of skinny
    GEMM.

    First come the schedules of skinny GEMM that convert quantized weights 16 bytes at a time (`packed`), then `found`,
    then the other schedules of skinny GEMM. The last of `found` are dropped so that at most `count` schedules remain.
    """
    first = [s for s in own if isinstance(s, SkinnyGemmSchedule) and s.packed]
    return [*first, *earlier_first(found, [s for s in own if s not in first], count - len(first))]


def packed_ranking(kernel: Kernel, shape: Shape, splits: bool) -> PackedGemmRanking | None:
    """Description, from which schedules are ranked, of a skinny GEMM whose quantized weights are converted 16 bytes of
    codes at a time; None if `kernel` is another kernel, or its weights have no known encoding (`code_forms`).

    `splits`: whether the reduction may be split (split-K).
    """
    few = _few(kernel, shape, splits and _splittable(kernel, shape))
    if few is None:
        return None
    main = max((e.axis for e in shape.dots if e.axis in shape.outer), key=lambda a: a.size)
    span = span_of(kernel, shape, main)
    own = {*shape.batch, *shape.rows}  # axes of a sum along K that does not depend on columns
    if not span or any(e.axis == main and e not in shape.dots and e.axes - own for e in kernel.reductions):
        return None
    grouped = all(s is not None and s.grouped(main) for s in sides_of(kernel, shape, main))
    return PackedGemmRanking(
        few.rows, few.columns, few.length, span, few.matrices, few.batch, few.splits, few.own, grouped
    )


def _splittable(kernel: Kernel, shape: Shape) -> bool:
    """Whether a split reduction can be written: partial results are float32, and the kernel that computes them has all
    reduction axes.
    """
    if shape.joined or any(b.dtype == "float64" for b in kernel.buffers.values()):
        return False
    if len(shape.inner) == 1:
        return True
    partial = if_fusable(_partial_shape, kernel, shape)
    return partial is not None and len(partial.inner) == len(shape.inner)


def _partial_shape(kernel: Kernel, shape: Shape) -> Shape:
    """The shape of the kernel that computes the partial results of a reduction split in two parts."""
    return shape_of(split(kernel, split_axis(shape), 2)[0])


def _few(kernel: Kernel, shape: Shape, splits: bool) -> SkinnyGemmRanking | None:
    """Description of a skinny GEMM for tensor cores, if its operands are 16-bit or bytes, and contiguous along K; else
    None.

    One row is a skinny GEMM if a weight is computed from bytes: conversions then take more time than loads. A load with
    one value for 8 elements is a scale."""
    axes = [e.axis for e in shape.dots if e.axis in shape.outer]
    packed = any(e.op == "load" and dtypes.itemsize(e.value[3]) == 1 for e in kernel.exprs)
    if not axes or shape.m > FEW or (shape.m <= 1 and not packed):
        return None
    main = max(axes, key=lambda a: a.size)
    for d in (d for e, d in shape.dots.items() if e.axis == main):
        for x in (x for f in (*d.left, *d.right) for x in walk([f]) if x.op == "load" and main in x.axes):
            scale = packed and x.value[3] in dtypes.HALVES and stride_in_runs(x.value[1], main, 8) == 0
            if not scale and not (dtypes.itemsize(x.value[3]) <= 2 and is_vectorizable(x.value[1], main, 8, 2)):
                return None
    own = if_fusable(_short, kernel, shape, main)
    if own is None or refusal(kernel, main):
        return None
    matrices = sum(e.axis == main and bool(d.cols & {*shape.cols}) for e, d in shape.dots.items())
    batch = prod(a.size for a in shape.batch)
    if splits and split_axis(shape) != main:  # the parts must have a product for tensor cores
        partial = _partial_shape(kernel, shape)
        splits = any(e.axis in partial.outer for e in partial.dots)
    return SkinnyGemmRanking(max(1, shape.m), shape.n, main.size, max(1, matrices), batch, splits, own)


def _seen(
    kernel: Kernel, shape: Shape, splits: bool
) -> ElementwiseRanking | RowReductionRanking | ReductionRanking | GemvRanking:
    """The kernel's description for ranking."""
    batch = prod(a.size for a in shape.batch)
    loads = [e for e in kernel.exprs if e.op == "load"]
    side = fastest(kernel, shape)
    if shape.kind == "pointwise":
        fast, slow = ("n", "m") if side["n"] >= side["m"] else ("m", "n")
        sizes, widths = {"m": shape.m, "n": shape.n}, {d: width(kernel, shape, d) for d in "mn"}
        return ElementwiseRanking(
            fast, slow, sizes[fast], sizes[slow], widths[fast], widths[slow], max(1, len(loads)), batch
        )
    if shape.joined:
        rows = len({e.value[0] for e in loads if e.axes & {*shape.cols, *shape.joined}}) or 1
        own = _short(kernel, shape, None)
        return RowReductionRanking(
            shape.m, shape.n, width(kernel, shape, "n"), width(kernel, shape, "m"), rows, batch, own
        )
    matrices = [e.axis for e in shape.dots if e.axis in shape.outer]
    if shape.dots and not matrices:
        raise Unfusable("a matrix product inside another reduction")
    main = max(matrices or shape.inner, key=lambda a: a.size)
    if kernel.stored_sides - {main}:
        raise Unfusable("an output along the axis of a smaller reduction")
    at, own = shape.inner.index(main), _short(kernel, shape, main)
    if not matrices:
        along_rows = side["m"] > side[main.name]
        nbytes = sum(n for *_, n in set(_accesses(kernel)))
        vector = width(kernel, shape, "m" if along_rows else main.name)
        return ReductionRanking(max(1, shape.m), main.size, at, vector, along_rows, nbytes, batch, splits, own)
    along_columns = side["n"] > side[main.name]
    vector = width(kernel, shape, "n" if along_columns else main.name)
    itemsize = min(dtypes.itemsize(b.dtype) for b in kernel.buffers.values())
    return GemvRanking(
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
        main in kernel.stored_sides,
        sum(main in e.axes and e.axes.isdisjoint(shape.cols) for e in kernel.exprs if e.op not in ("const", "index")),
    )


def _short(kernel: Kernel, shape: Shape, main: Axis | None) -> tuple[tuple[str, int], ...]:
    """Schedule entries that keep every reduction axis except `main` whole in each thread.

    Raises Unfusable if such an axis is long.
    """
    found: dict[str, int] = {}
    for i, a in enumerate(shape.inner):
        if a != main and a not in shape.joined:
            vector = width(kernel, shape, a.name)
            found |= {f"v{i}": vector, f"u{i}": -(-a.size // vector)}
    if prod(found.values()) > HELD:
        raise Unfusable("a long reduction nested in another one")
    return tuple(found.items())


__all__ = [
    "SimtSchedule",
    "SkinnyGemmSchedule",
    "combining_layout",
    "fastest",
    "merge_packed",
    "packed_ranking",
    "simt_applies",
    "simt_legal",
    "simt_schedules",
    "skinny_applies",
    "skinny_legal",
    "skinny_schedules",
]
