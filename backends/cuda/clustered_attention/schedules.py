"""Lists candidate schedules (tuning parameters) of clustered attention, best guess first, and decides whether one is
legal.

The schedule class is `ClusteredAttentionSchedule` in clustered_attention/parameters.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from ...ir.kernel import PROBE, Kernel
from ...ir.loop_fusion import index_bounds
from ...ir.tiling import Shape
from ...ir.unfusable import if_fusable
from ...machine import cached_per_machine, target
from .decode_attention import attention_of
from .kernel import emit_clusters
from .new_rows import row_bytes
from .parameters import TILE, ClusteredAttentionSchedule

HOPPER = 90  # least compute capability: clusters and asynchronous stores to shared memory of other blocks
PARTS = (16, 8, 4, 2, 1)
WARPS = (1, 2, 3, 4, 6, 8, 12, 16)
ACROSS = (1, 2, 4, 8)
DEEP = (1, 2, 4)
THREADS = 1024  # maximum threads of a block
OTHERS, LOOP = 70, 30  # registers of a thread besides fragments, and besides these in a loop over chunks
# Constants for ranking only, in µs: launch and last stores; latency of loads; a chunk's exchanges between warps; the
# exchange in a cluster; a fragment of a warp; a warp. READ: bytes/µs that an SM reads.
LAUNCH, LATENCY, CHUNK, EXCHANGE, FRAGMENT, WARP = 1.0, 0.7, 0.25, 0.3, 0.02, 0.01
READ = 1e5


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of attention of few rows, from which its schedules are ranked: number of query rows (`rows`), head sizes of
    keys (`head`) and values (`columns`), number of positions (`positions`) and of sets of keys and values (`batch`).

    `seen`: whether a mask can end the loop over positions; `written`: bytes of the new rows that the kernel writes into
    keys and values.
    """

    rows: int
    head: int
    columns: int
    positions: int
    batch: int
    seen: bool
    written: int = 0

    def ranked(self) -> Iterator[tuple[float, ClusteredAttentionSchedule]]:
        """Yields (estimated µs, schedule) of every candidate schedule that fits, in no particular order."""
        for parts, warps, across, deep in product(PARTS, WARPS, ACROSS, DEEP):
            s = ClusteredAttentionSchedule(parts, warps, across, deep)
            if self.fits(s):
                yield self.us(s), s

    def _tiles(self, s: ClusteredAttentionSchedule) -> tuple[int, int]:
        """Fragments of a warp and tile of positions: 32 elements of keys, 64 of values."""
        return ceil(self.head / (32 * s.across)), ceil(self.columns / (64 * s.across))

    def fits(self, s: ClusteredAttentionSchedule) -> bool:
        """Whether the schedule `s` leaves no block or warp idle, and its operand fragments fit in registers and its
        shared memory in a block's."""
        keys, values = self._tiles(s)
        if s.threads > THREADS or self.columns % (4 * s.parts) or self.columns // s.parts > 4 * s.threads:
            return False
        part = s.slice(self.positions)
        if (s.parts - 1) * part >= self.positions or TILE * (s.warps - 1) * s.deep >= part:
            return False
        if s.across > 1 and (s.across > ceil(self.head / 32) or s.across > ceil(self.columns / 64)):
            return False
        eights = ceil(self.rows / 8)
        held = s.deep * (8 * keys + 16 * values) + 16 * values * eights + 4 * s.deep * eights * min(keys, 2)
        shared_bytes = s.shared_bytes(self.rows, self.head, self.columns) + self.written
        others = OTHERS + (LOOP if s.chunk < part else 0)
        return held + others <= min(255, target().registers // s.threads) and shared_bytes <= target().dynamic_shared

    def us(self, s: ClusteredAttentionSchedule) -> float:
        """Estimated µs of the kernel with the schedule `s`. Sum of: launch and memory latency; reads of the busiest SM
        or of the whole GPU, whichever takes longer; instructions of the busiest SM; the exchange between the blocks of
        a cluster."""
        keys, values = self._tiles(s)
        share = ceil(self.batch * s.parts / target().multiprocessors)
        part = s.slice(self.positions)
        chunks, position = ceil(part / s.chunk), 2 * (self.head + self.columns)
        read = max(position * part * share / READ, (chunks - 1) * LATENCY)
        whole = position * self.positions * self.batch / target().bytes_per_us
        own = chunks * (CHUNK + s.deep * (keys + values) * FRAGMENT) + s.threads / 32 * share * WARP
        return LAUNCH + LATENCY + max(read, whole) + own + (EXCHANGE if s.parts > 1 else 0.0)


def sizes_of(kernel: Kernel, shape: Shape) -> AttentionSizes | None:
    """Numbers of query rows, positions, head elements and sets of keys of the attention that `kernel` computes, whose
    axes have the roles `shape` (row, column, batch, reduction). None if clustered attention cannot compute it, or the
    GPU has no clusters."""
    found = attention_of(kernel, shape) if target().capability >= HOPPER else None
    if found is None:
        return None
    seen = bool(index_bounds(found.maximum.args[0], hiding=True))
    batch = prod(a.size for a in shape.batch)
    return AttentionSizes(
        shape.m, found.head.size, found.column.size, found.positions.size, batch, seen, row_bytes(found.rows)
    )


def applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether `kernel` is attention of few rows over 16-bit keys and values, and the GPU has thread-block clusters."""
    return sizes_of(kernel, shape) is not None


@cached_per_machine(1024)
def _ranked(sizes: AttentionSizes, count: int) -> tuple[ClusteredAttentionSchedule, ...]:
    """At most `count` schedules, best rank first, beginning with the best of the two largest cluster sizes.

    About three quarters have programmatic dependent launch; every third of these ends the positions by the mask if
    there is one (`seen`).
    """
    ordered = [s for _, s in sorted(sizes.ranked(), key=lambda found: (found[0], found[1].key))]
    first = list({s.parts: s for s in reversed(ordered) if s.parts in PARTS[:2]}.values())
    varied = sorted(ordered, key=lambda s: s not in first)
    plain = varied[: max(1, count // 4)]
    early = [s.but(early=True, seen=sizes.seen and i % 3 == 2) for i, s in enumerate(varied[: count - len(plain)])]
    return (*early, *plain)


def clustered_schedules(kernel: Kernel, shape: Shape, count: int) -> list[ClusteredAttentionSchedule]:
    """At most `count` schedules of clustered attention for a kernel, best guess first; empty if none can be emitted."""
    sizes = sizes_of(kernel, shape)
    found = () if sizes is None else _ranked(sizes, count)
    first = {seen: s for seen in (True, False) if (s := next((s for s in found if s.seen == seen), None)) is not None}
    written = set[bool]()
    for seen, s in first.items():  # others differ in numbers only, and the text that ends the positions has all others
        if True in written or _emitted(kernel, shape, s):
            written.add(seen)
    return [s for s in found if s.seen in written]


def clustered_fits(kernel: Kernel, shape: Shape, s: ClusteredAttentionSchedule) -> bool:
    """Whether the schedule `s` is legal for a kernel: operand fragments fit in registers, shared memory suffices, and
    the kernel can be emitted."""
    sizes = sizes_of(kernel, shape)
    return sizes is not None and s.valid and sizes.fits(s) and _emitted(kernel, shape, s)


def _emitted(kernel: Kernel, shape: Shape, s: ClusteredAttentionSchedule) -> bool:
    """Whether the kernel can be emitted with a schedule."""
    return if_fusable(emit_clusters, kernel, shape, s, PROBE) is not None


__all__ = ["applies", "clustered_fits", "clustered_schedules"]
