"""Decides which Triton schedules (`TileSchedule`) are legal: tile sizes within the axes, limits on registers and shared
memory.

This is the only module that decides that: schedules/candidates.py ranks legal schedules, schedule_search.py searches
among them.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.tiling import padded
from ...machine import target, using_machine
from .facts import KernelFacts
from .parameters import TileSchedule

TILE = 1 << 15  # elements of the largest tile in registers
WHOLE = 1 << 14  # longest row that a tile holds whole
EACH = 256  # maximum accumulator elements per thread
LITTLE = 16  # maximum rows of a tile that can be read again in every loop iteration at no cost
ABREAST = 64  # maximum elements per thread of interleaved results


def each(elements: float, warps: int) -> float:
    """Elements per thread of a tile of `elements` elements, in a program of `warps` warps."""
    return elements / (target().warp * warps)


def within(value: int, size: int, least: int = 1) -> bool:
    """Whether the tile size `value` is legal along an axis of `size` elements: at least `least`, and at most `size`
    rounded up to a power of two, or `least` if that is larger."""
    return least <= value <= max(padded(size), least)


def legal(facts: KernelFacts, s: TileSchedule) -> bool:
    """Whether the schedule `s` is legal for a kernel with these facts: its values are in their domains, it sets only
    options that apply to the kernel, and its tiles and split-K factor suit the kernel's sizes."""
    with using_machine(target()):  # finding the machine takes microseconds, and it is needed several times
        return _legal(facts, s)


def _legal(facts: KernelFacts, s: TileSchedule) -> bool:
    if not s.valid or len(s.k) != len(facts.inner) or (s.boxes and not facts.boxed):
        return False
    if (s.inside and facts.kind != "attention") or (s.walk and not facts.middle) or (s.join and s.split is None):
        return False
    if s.beside and (facts.beside == 1 or each(s.m * s.n * facts.beside, s.warps) > ABREAST):
        return False
    return tiles_fit(facts, s) and s.scratch_parts in facts.parts(s)


def tiles_fit(facts: KernelFacts, s: TileSchedule) -> bool:
    """Whether the tile sizes of the schedule `s`, whose parameters are valid one by one, suit a kernel with these facts
    (a part of `legal`)."""
    return _KINDS[facts.kind](facts, s)


def _pointwise(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of elementwise kernels."""
    size = s.m * s.n
    fine = within(s.n, facts.n, min(32, padded(facts.n))) and (within(s.m, facts.m) if facts.rows else s.m == 1)
    plain = s.stages == 1 and not (s.group or s.split or s.precision or s.boxes or s.inside or s.walk)
    least = target().warp * s.warps if facts.heavy else 256
    return fine and plain and (least <= size <= TILE // 2 or (s.n >= facts.n and s.m >= facts.m and size < 256)) \
        and each(size, s.warps) <= 64  # fmt: skip


def _windows(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of short-window reductions."""
    ones = all(v == 1 for v in (*s.k, s.n, s.stages))
    return ones and s.split is None and s.group is None and within(s.m, facts.m, min(64, padded(facts.m))) \
        and (1 <= each(s.m, s.warps) <= 32 or s.m >= facts.m)  # fmt: skip


def _rows(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of row reductions."""
    depths = {*s.k}
    if len(depths) > 1 or s.group is not None or s.stages != 2:
        return False
    k = depths.pop() if depths else 1
    whole = k >= padded(facts.size)
    if not within(k, facts.size) or (whole and k > WHOLE) or s.n != (min(k, padded(facts.n)) if facts.cols else 1):
        return False
    rows = within(s.m, facts.m) if facts.rows else s.m == 1
    held = each(s.m * k, s.warps)
    return rows and s.m * k <= TILE and (1 <= held <= 128 or (held < 1 and s.warps == 1)) \
        and (whole or s.m * k >= 256)  # fmt: skip


def _contraction(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of GEMM, skinny GEMM and GEMV."""
    k = s.k[facts.main]
    if facts.depths(k) != s.k or (s.scratch_parts > 1 and not s.join):
        return False
    if not within(k, facts.size, min(16, padded(facts.size)) if facts.rows else 1):
        return False
    if not facts.rows:  # GEMV: no tensor cores
        return s.m == 1 and s.stages == 3 and s.group is None and within(s.n, facts.n, 4) \
            and 4 <= each(s.n * k * facts.sums, s.warps) <= 128  # fmt: skip
    size, right = s.m * s.n * facts.sums, s.n * k * facts.sums
    if facts.middle:
        return _behind(facts, s)
    if facts.few and (s.m != padded(max(facts.m, 16)) or s.group is not None or right > TILE):
        return False
    if facts.few and (s.stages - 1) * facts.staged(s) > target().shared_per_block:  # another loop inside the product's
        return False
    staged = (s.m * k + right) * facts.width if facts.few else facts.staged(s)
    tiles = within(s.m, facts.m, 16) and within(s.n, facts.n, 16) and s.n <= 256
    return tiles and s.stages * staged <= target().shared_per_block and size <= (TILE if facts.single else 2 * TILE) \
        and each(size, s.warps) <= EACH and 2 <= s.warps <= 8  # fmt: skip


def _behind(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of back-to-back GEMMs whose intermediate result stays in registers."""
    held, after = s.m * (s.n * facts.sums + facts.middle), s.n * facts.middle * facts.width
    if s.walk and (s.group is not None or s.n >= facts.n):
        return False
    shared = max(s.stages * facts.staged(s), after * (s.stages if s.walk else 1), facts.unstaged(s))
    tiles = within(s.m, facts.m, 16) and within(s.n, facts.n, 16) and s.n <= 256
    return (
        tiles
        and shared <= target().shared_per_block
        and each(held, s.warps) <= EACH
        and s.m * s.n <= TILE
        and 2 <= s.warps <= 8
    )


def _attention(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of attention."""
    k = s.k[facts.main]
    if any(s.k[i] != size for i, size in facts.whole_tiles.items()) or s.n != facts.columns or s.group is not None:
        return False
    if s.inside and (not s.boxes or s.m > LITTLE or k * s.scratch_parts >= facts.size):
        return False
    if not within(k, facts.size, 16) or k > 256 or not (within(s.m, facts.m, 16) if facts.rows else s.m == 1):
        return False
    shared = (s.m + s.stages * 2 * k) * facts.head * facts.width
    return shared <= target().shared_per_block and each(s.m * s.n, s.warps) <= 128 and 2 <= s.warps <= 8


_KINDS: dict[str, Callable[[KernelFacts, TileSchedule], bool]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
