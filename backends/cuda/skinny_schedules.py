"""Defines schedules (tuning parameters) of skinny-GEMM CUDA kernels, which have few rows, on tensor cores: their class,
candidates (best guess first) and whether one is legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...egraph.types import dtypes
from ..generate.emitter import split_axis
from ..generate.schedule import Domain, Schedule, SplitSchedule, flag, number, optional, sides
from ..generate.strategy import earlier_first
from ..ir.expr import walk
from ..ir.kernel import Kernel
from ..ir.tiling import Shape, padded
from ..ir.unfusable import if_fusable
from .emit.fragments import refusal
from .emit.packed_sides import sides_of, span_of
from .emit.thread_layout import DimensionThreads, ThreadLayout, Warps, is_vectorizable, stride_in_runs
from .ranking.model import ranked
from .ranking.packed_gemm import PackedGemmRanking
from .ranking.skinny_gemm import SkinnyGemmRanking
from .schedules import (
    MOST_AHEAD,
    POWERS,
    PREFETCH,
    SPLIT,
    elements_per_block,
    has_no_walk,
    is_splittable,
    partial_shape,
    short_reductions,
)

FEW = 32  # maximum rows of skinny GEMM on tensor cores with register fragments


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


def skinny_applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether skinny-GEMM schedules are offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): for a GEMM, whose number of rows is checked later."""
    return has_no_walk(shape) and shape.kind == "contraction"


def skinny_schedules(kernel: Kernel, shape: Shape, count: int, splits: bool) -> list[SkinnyGemmSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless it is a GEMM of few rows whose operands
    are 16-bit or bytes and contiguous along K.

    `splits`: whether the reduction may be split (split-K).
    """
    few = _few(kernel, shape, splits and is_splittable(kernel, shape))
    if few is None:
        return []
    packed = _packed(few, kernel, shape)
    first = _parsed(packed, count - count // 4) if packed is not None else []
    return [*(s.but(packed=True) for s in first), *_parsed(few, count - len(first))]


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
    few = _few(kernel, shape, splits and is_splittable(kernel, shape))
    return None if few is None else _packed(few, kernel, shape)


def _packed(few: SkinnyGemmRanking, kernel: Kernel, shape: Shape) -> PackedGemmRanking | None:
    """`packed_ranking` of a kernel with the description `few` as a skinny GEMM for tensor cores."""
    main = max((e.axis for e in shape.dots if e.axis in shape.outer), key=lambda a: a.size)
    span = span_of(kernel, shape, main)
    own = {*shape.batch, *shape.rows}  # axes of a sum along K that does not depend on columns
    if not span or any(e.axis == main and e not in shape.dots and e.axes - own for e in kernel.reductions):
        return None
    grouped = all(s is not None and s.grouped(main) for s in sides_of(kernel, shape, main))
    return PackedGemmRanking(
        few.rows, few.columns, few.length, span, few.matrices, few.batch, few.splits, few.own, grouped
    )


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
    own = if_fusable(short_reductions, kernel, shape, main)
    if own is None or refusal(kernel, main):
        return None
    matrices = sum(e.axis == main and bool(d.cols & {*shape.cols}) for e, d in shape.dots.items())
    batch = prod(a.size for a in shape.batch)
    if splits and split_axis(shape) != main:  # the parts must have a product for tensor cores
        partial = partial_shape(kernel, shape)
        splits = any(e.axis in partial.outer for e in partial.dots)
    return SkinnyGemmRanking(max(1, shape.m), shape.n, main.size, max(1, matrices), batch, splits, own)


__all__ = ["SkinnyGemmSchedule", "merge_packed", "packed_ranking", "skinny_applies", "skinny_legal", "skinny_schedules"]
