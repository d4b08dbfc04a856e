"""Candidate schedules (tuning parameters) of warp-specialized Gluon kernels, and whether one is legal.

Attention (warp_specialized/attention.py): `AttentionSchedule`. Convolution (warp_specialized/convolution.py):
`ConvolutionSchedule`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from ...ir.kernel import PROBE, Kernel
from ...ir.tiling import Shape, padded
from ...ir.unfusable import if_fusable
from ...machine import target
from ..schedules.parameters import AttentionSchedule, ConvolutionSchedule
from .attention import emit_attention
from .attention_frame import WIDEST, widths
from .convolution import DEPTHS, convolution_of
from .spelling import GROUP
from .tiles import WIDE_RESULT

SCORES = 128  # maximum keys per tile: registers of a thread beside as many result columns
MOST_TURNS = 2  # programs per SM up to which shorter programs are tried as well
KEYS_BESIDE = 64  # maximum keys per tile beside the widest result
LONG = 512  # least keys: shorter loops have nothing to overlap
# filters of a tile, as two powers of two
WIDTHS = ((256, 64), (256, 0), (128, 64), (128, 32), (128, 0), (64, 32), (64, 16), (64, 0))
BEHIND = 34 << 10  # bytes of shared memory to transpose results
MOST_STAGES = 6


def attention_schedules(kernel: Kernel, shape: Shape) -> Iterator[AttentionSchedule]:
    """Yields candidate schedules of warp-specialized attention, best guess first: large key tiles, as many stages as
    fit. Yields nothing for kernels that are not attention over enough keys and rows."""
    if shape.kind != "attention" or not shape.rows or shape.n > WIDEST:
        return
    main = max(shape.outer, key=lambda a: a.size)
    if main.size < LONG or max(a.size for a in shape.rows) < GROUP:
        return
    sizes = [shape.n, *(a.size for a in shape.inner if a != main)]
    splits = any(len(widths(size)) > 1 for size in sizes)
    first, second = (64, 32) if padded(shape.n) == WIDEST and not splits else (128, 64)
    found = [(first, 2), (second, 2)]
    rows = prod(a.size for a in (*shape.rows, *shape.batch))
    if (
        rows <= MOST_TURNS * target().multiprocessors * 2 * GROUP
    ):  # few programs, and the longest one dominates: also shorter ones
        found.append((first, 1))
    for (keys, groups), pieces in product(found, (2, None) if splits else (None,)):
        k = tuple(keys if a == main else padded(a.size) for a in shape.inner)
        for stages in (4, 3, 2):
            schedule = AttentionSchedule(groups * GROUP, padded(shape.n), 4 * groups, stages, k, pieces)
            if attention_fits(kernel, shape, schedule):
                yield schedule
                break


def convolution_schedules(kernel: Kernel, shape: Shape, count: int = 3) -> Iterator[ConvolutionSchedule]:
    """Yields at most `count` candidate schedules of a padded convolution, best guess first; none for other kernels.

    They are ranked by waves of programs and by the amount of loads.
    """
    if shape.kind != "contraction" or len(shape.dots) != 1 or not any(e.op == "load" and e.args for e in kernel.exprs):
        return
    ((product_, dot),) = shape.dots.items()
    rows = any(e.args for e in dot.left if e.op == "load")  # positions are rows, else columns
    m, n = (shape.m, shape.n) if rows else (shape.n, shape.m)
    found: list[tuple[float, ConvolutionSchedule]] = []
    for tall, (wide, more), depth in product((2 * GROUP, GROUP), WIDTHS, DEPTHS):
        across = wide + more
        stages = min(
            MOST_STAGES,
            (target().shared_per_block - BEHIND) // (2 * depth * (tall + across)),
            product_.axis.size // depth,
        )
        if m % tall or n % across or product_.axis.size % depth or stages < 2:
            continue
        waves = -(-(m // tall * (n // across)) // target().multiprocessors)
        rank = waves * tall * across * (0.4 + 40 * (1 / tall + 1 / across)) * (1 + 0.2 * (depth == DEPTHS[1]))
        sides = (tall, across) if rows else (across, tall)
        found.append((rank, ConvolutionSchedule(*sides, tall // 16, stages, tall, wide, (depth,), more or None)))
    kept = 0
    for _, schedule in sorted(found, key=lambda pair: pair[0]):
        if kept < count and convolution_fits(kernel, shape, schedule):
            kept += 1
            yield schedule


def convolution_fits(kernel: Kernel, shape: Shape, s: ConvolutionSchedule) -> bool:
    """Whether the schedule `s` of a warp-specialized convolution is legal for `kernel`: tile sizes agree, shared memory
    suffices, and the kernel can be emitted."""
    if shape.kind != "contraction" or len(s.k) != 1 or s.warps != s.tall // 16 or not s.valid:
        return False
    across, (depth,) = s.wide + (s.more or 0), s.k
    if (s.wide, s.more or 0) not in WIDTHS or depth not in DEPTHS or {s.m, s.n} != {s.tall, across}:
        return False
    if 2 * s.stages * depth * (s.tall + across) + BEHIND > target().shared_per_block:
        return False
    found = if_fusable(convolution_of, kernel, s, PROBE, shape)
    if found is None or if_fusable(found.launch) is None:
        return False
    return s.m == (s.tall if found.positions == shape.rows else across)


def attention_fits(kernel: Kernel, shape: Shape, s: AttentionSchedule) -> bool:
    """Whether the schedule `s` of warp-specialized attention is legal for `kernel`: tile sizes suit the axes, registers
    and shared memory suffice, and the kernel can be emitted."""
    if shape.kind != "attention" or len(s.k) != len(shape.inner) or not s.valid:
        return False
    if any(k > padded(a.size) for k, a in zip(s.k, shape.inner)):  # duplicates a smaller schedule
        return False
    tiling = s.tiling(shape)
    keys = max((k for a, k in tiling.k.items() if k < a.size), default=0)
    width = max((k for a, k in tiling.k.items() if k >= a.size), default=0)
    columns = tiling.n
    if s.split_widths:
        width = max((sum(w for _, w in widths(a.size)) for a, k in tiling.k.items() if k >= a.size), default=0)
        columns = sum(w for _, w in widths(shape.n))
    if (
        not 16 <= keys <= SCORES
        or not 16 <= width <= WIDEST
        or columns + keys > WIDEST + (KEYS_BESIDE if columns == WIDEST else 0)
    ):
        return False
    turned = 0 if columns == width > WIDE_RESULT and not s.split_widths else columns // 2
    if 2 * (tiling.m * (width + turned) + s.stages * keys * (width + columns)) > target().shared_per_block:
        return False
    return if_fusable(emit_attention, kernel, tiling, PROBE, shape) is not None
