"""Defines schedules (tuning parameters) of SIMT CUDA kernels, which use CUDA cores: their class, candidates (best guess
first) and whether one is legal; and what skinny-GEMM kernels (skinny_schedules.py) have in common with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

from ...egraph.types import dtypes
from ..generate.emitter import split_axis
from ..generate.schedule import Domain, SplitSchedule, flag, optional, sides
from ..ir.index import Axis
from ..ir.kernel import Kernel
from ..ir.tiling import Shape, padded, shape_of
from ..ir.unfusable import Unfusable, if_fusable
from ..lowering.split_reduction import split
from .contiguity import accesses, contiguous_bytes, vector_width
from .emit.staged_row import staged_row
from .emit.thread_layout import DimensionThreads, ThreadLayout
from .ranking.gemv import WARM, GemvRanking
from .ranking.model import ranked
from .ranking.rows import ElementwiseRanking, ReductionRanking, RowReductionRanking

ROWS = 4  # maximum rows of GEMM on CUDA cores
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
        first = contiguous_bytes(kernel, shape)
        order = sorted(dims, key=lambda d: -first.get(d, 0.0))
        return ThreadLayout({d: dims[d] for d in order}, self.early, self.ahead or 0, warm=self.warm)


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


# ---------------------------------------------------------------- schedules
def simt_applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether SIMT schedules are offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): not for attention, and for GEMM only with few rows."""
    return has_no_walk(shape) and (shape.kind != "contraction" or shape.m <= ROWS)


def has_no_walk(shape: Shape) -> bool:
    """Whether a kernel is no attention and processes no columns after a reduction (`Shape.walks`), except reductions
    over its own columns."""
    return shape.kind != "attention" and (not shape.walks or bool(shape.joined))


def simt_schedules(kernel: Kernel, shape: Shape, count: int, splits: bool) -> list[SimtSchedule]:
    """At most `count` SIMT schedules for `kernel`, whose axes have the roles `shape` (row, column, batch, reduction),
    best guess first.

    `splits`: whether the longest reduction may be split (split-K). Raises Unfusable if there is a product or a long
    reduction inside another reduction.
    """
    seen = _seen(kernel, shape, splits and is_splittable(kernel, shape))
    numbers = ranked(seen, count)
    if isinstance(seen, GemvRanking) and if_fusable(staged_row, kernel, shape) is not None:
        staged = ranked(replace(seen, staged=True, whole=seen.nbytes <= WARM, splits=False), count)
        pairs = zip_longest(({**s, "staged": 1} for s in staged), numbers)
        numbers = tuple(s for pair in pairs for s in pair if s is not None)[:count]
    found = [s for one in numbers if (s := SimtSchedule.parse(one)) is not None]
    if not shape.dots or split_axis(shape) in {e.axis for e in shape.dots}:
        return found
    return [s.but(warm=False) if s.split else s for s in found]  # parts of another sum read no matrix first


def is_splittable(kernel: Kernel, shape: Shape) -> bool:
    """Whether a split reduction can be written: partial results are float32, and the kernel that computes them has all
    reduction axes.
    """
    if shape.joined or any(b.dtype == "float64" for b in kernel.buffers.values()):
        return False
    if len(shape.inner) == 1:
        return True
    partial = if_fusable(partial_shape, kernel, shape)
    return partial is not None and len(partial.inner) == len(shape.inner)


def partial_shape(kernel: Kernel, shape: Shape) -> Shape:
    """The shape of the kernel that computes the partial results of a reduction split in two parts."""
    return shape_of(split(kernel, split_axis(shape), 2)[0])


def _seen(
    kernel: Kernel, shape: Shape, splits: bool
) -> ElementwiseRanking | RowReductionRanking | ReductionRanking | GemvRanking:
    """The kernel's description for ranking."""
    batch = prod(a.size for a in shape.batch)
    loads = [e for e in kernel.exprs if e.op == "load"]
    side = contiguous_bytes(kernel, shape)
    if shape.kind == "pointwise":
        fast, slow = ("n", "m") if side["n"] >= side["m"] else ("m", "n")
        sizes, widths = {"m": shape.m, "n": shape.n}, {d: vector_width(kernel, shape, d) for d in "mn"}
        return ElementwiseRanking(
            fast, slow, sizes[fast], sizes[slow], widths[fast], widths[slow], max(1, len(loads)), batch
        )
    if shape.joined:
        rows = len({e.value[0] for e in loads if e.axes & {*shape.cols, *shape.joined}}) or 1
        own = short_reductions(kernel, shape, None)
        return RowReductionRanking(
            shape.m, shape.n, vector_width(kernel, shape, "n"), vector_width(kernel, shape, "m"), rows, batch, own
        )
    matrices = [e.axis for e in shape.dots if e.axis in shape.outer]
    if shape.dots and not matrices:
        raise Unfusable("a matrix product inside another reduction")
    main = max(matrices or shape.inner, key=lambda a: a.size)
    if kernel.stored_sides - {main}:
        raise Unfusable("an output along the axis of a smaller reduction")
    at, own = shape.inner.index(main), short_reductions(kernel, shape, main)
    if not matrices:
        along_rows = side["m"] > side[main.name]
        nbytes = sum(n for *_, n in set(accesses(kernel)))
        vector = vector_width(kernel, shape, "m" if along_rows else main.name)
        return ReductionRanking(max(1, shape.m), main.size, at, vector, along_rows, nbytes, batch, splits, own)
    along_columns = side["n"] > side[main.name]
    vector = vector_width(kernel, shape, "n" if along_columns else main.name)
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


def short_reductions(kernel: Kernel, shape: Shape, main: Axis | None) -> tuple[tuple[str, int], ...]:
    """Schedule entries that keep every reduction axis except `main` whole in each thread.

    Raises Unfusable if such an axis is long.
    """
    found: dict[str, int] = {}
    for i, a in enumerate(shape.inner):
        if a != main and a not in shape.joined:
            vector = vector_width(kernel, shape, a.name)
            found |= {f"v{i}": vector, f"u{i}": -(-a.size // vector)}
    if prod(found.values()) > HELD:
        raise Unfusable("a long reduction nested in another one")
    return tuple(found.items())


__all__ = ["SimtSchedule", "combining_layout", "simt_applies", "simt_legal", "simt_schedules"]
