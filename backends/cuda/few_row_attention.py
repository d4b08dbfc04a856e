"""Ranks schedules (tuning parameters) of attention of few rows (decode steps) in CUDA C++, and decides whether one is
legal.

The rows are the query heads that share keys and values, times the tokens of a step. A group of `lanes` threads shares
the head size of queries, keys and values: each thread holds vectors of `vector` elements of a key, the group sums the
score by shuffles, and the same threads hold the columns of the result, so that scores never leave registers. A block
has `groups` groups for different positions. With `split`, blocks compute parts of the positions, and the last block of
a tile combines their maxima, sums and results (split-KV). `emit/kernel.py` writes the kernel in the thread layout of
the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import log2, prod

from ...egraph.types import dtypes
from ..generate.schedule import Domain, SplitSchedule, flag, number, optional
from ..ir.expr import Expr, walk
from ..ir.index import Axis
from ..ir.kernel import Kernel
from ..ir.loop_fusion import index_bounds
from ..ir.tiling import Shape, divisors
from ..machine import cached_per_machine, target
from .emit.thread_layout import DimensionThreads, ThreadLayout, is_vectorizable, stride_in_runs

ROWS = 16  # maximum rows
WIDE = 8  # maximum rows of which a thread holds the widest vectors
LANES = (8, 16, 32)  # threads along the head size
THREADS = (128, 256, 512)
DEEP = (1, 2, 4, 8)
PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MIN_PART_POSITIONS = 8  # least positions of a part
MAX_HELD_VALUES = 200  # limit of 4-byte values per thread: more would risk spills
VALUE = 128  # limit of one value's elements in a thread
SHARED = 12 << 10  # limit of values that the exchanges of a block hold in shared memory
LAUNCH, ROUND, JOIN = 1.6, 0.8, 1.0  # µs: launch, first loads and results; a dependent round of loads; combining parts
NARROW = 0.3  # µs for accesses of half the width
CACHE = 1.1e5  # bytes/µs that an SM reads from the L2 cache
ISSUED = 6.4e3  # warp instructions per µs of an SM
POWERS = Domain(powers=True)


@dataclass(frozen=True)
class FewRowAttentionSchedule(SplitSchedule):
    """Schedule (tuning parameters) of attention of few query rows. A group of `lanes` threads shares the head size of
    one position at a time; a block has `groups` groups, for different positions."""

    lanes: int = number("threads along the head size of keys and values", Domain(1, 32, powers=True))
    vector: int = number("contiguous elements per thread along the head size", Domain(1, 8, powers=True))
    groups: int = number("groups of lanes of a block, along the positions", POWERS)
    deep: int = number("positions per group and iteration", Domain())
    split: int | None = optional(
        "number of parts of the positions, in blocks of their own; the last block of a tile combines the partial results",
        Domain(2), drops=True, starts=2, common=True,
    )  # fmt: skip
    seen: bool = flag("positions that a mask hides from all rows are not read: the loop ends at a number in memory")
    early: bool = flag("programmatic dependent launch", common=True)

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of the result that a block computes: all rows and columns of a kernel with the axes that
        `shape` describes."""
        return shape.m, shape.n

    def layout(self, kernel: Kernel, shape: Shape) -> ThreadLayout:
        """The thread layout that this schedule gives `kernel`, whose axes have the roles `shape` (row, column, batch,
        reduction).

        The threads along the columns of the result also compute the reductions along the head size of the keys.
        """
        positions = positions_of(shape)
        assert positions is not None
        across = {"n": shape.n} | {a.name: a.size for a in shape.inner if a != positions}
        dims = {
            d: DimensionThreads(self.lanes, self.vector, -(-size // (self.lanes * self.vector)))
            for d, size in across.items()
        }
        dims |= {positions.name: DimensionThreads(self.groups, 1, self.deep), "m": DimensionThreads(1, 1, shape.m)}
        shared = {d: "n" for d in across if d != "n"}
        return ThreadLayout(dims, self.early, shared=shared, seen=positions.name if self.seen else "")


def positions_of(shape: Shape) -> Axis | None:
    """The axis of the positions (keys) of attention: the longest axis along which a matrix product with another product
    as an operand is summed; None if there is no such product. `shape`: roles of the kernel's axes (row, column, batch,
    reduction)."""
    around = [e.axis for e in shape.dots if e.axis in shape.outer and any(x in shape.dots for x in walk(e.args))]
    return max(around, key=lambda a: a.size, default=None)


@dataclass(frozen=True)
class FewRowAttentionRanking:
    """Description of attention of few rows, from which its schedules are ranked.

    `rows`: query rows of a block; `head`, `columns`: head sizes of keys and of values; `positions`: number of
    positions; `batch`: number of sets of keys; `itemsize`: bytes of an element of keys and values; `vector`: elements
    of the widest vector access; `before`: vectors of head size that are read to compute queries (a norm's gain, rotary
    tables), besides one per query; `splits`: whether the positions may be split; `seen`: whether a mask can end the
    loop over positions.
    """

    rows: int
    head: int
    columns: int
    positions: int
    batch: int
    itemsize: int
    vector: int
    before: int
    splits: bool
    seen: bool

    def ranked(self) -> Iterator[tuple[FewRowAttentionSchedule, float]]:
        """Yields (schedule, estimated µs) of every schedule that fits."""
        widths = {self.vector} if self.rows <= WIDE else {self.vector, max(1, self.vector // 2)}
        for vector, lanes, threads, deep in product(widths, LANES, THREADS, DEEP):
            if lanes > LANES[0] and lanes * vector >= 2 * max(self.head, self.columns):
                continue
            for split in (1, *(divisors(self.positions, PARTS) if self.splits else ())):
                s = FewRowAttentionSchedule(lanes, vector, threads // lanes, deep, split if split > 1 else None)
                if self.fits(s):
                    yield s, self.us(s)

    def fits(self, s: FewRowAttentionSchedule) -> bool:
        """Whether the schedule `s` splits the positions into equal parts and leaves no group of threads idle, and its
        values fit into registers and shared memory."""
        part, threads = self.positions // s.scratch_parts, s.lanes * s.groups
        if (
            self.positions % s.scratch_parts
            or part < min(MIN_PART_POSITIONS, self.positions)
            or not 32 <= threads <= 1024
        ):
            return False
        if self.vector % s.vector or s.groups * s.deep >= 2 * max(part, s.groups):
            return False
        head, columns = self._own(s)
        inside = min(s.groups, 32 // s.lanes)  # groups of a warp
        exchanged = threads // inside * self.rows * (columns + 2) if s.groups > inside else 0
        whole = self.rows * max(head, columns) <= VALUE and s.deep * max(head, columns) * self.itemsize <= 4 * VALUE
        return whole and self._registers(s) <= MAX_HELD_VALUES and exchanged <= SHARED

    def _own(self, s: FewRowAttentionSchedule) -> tuple[int, int]:
        """Elements of a thread along the head size of keys and of values."""
        return (-(-self.head // (s.lanes * s.vector)) * s.vector, -(-self.columns // (s.lanes * s.vector)) * s.vector)

    def _registers(self, s: FewRowAttentionSchedule) -> int:
        """Estimated 4-byte values of a thread: queries, accumulators, loads of an iteration, scores."""
        head, columns = self._own(s)
        loads = (s.deep * (head + columns) + self.before * head) * self.itemsize // 4
        return self.rows * (head + columns) + loads + self.rows * s.deep + 20

    def us(self, s: FewRowAttentionSchedule) -> float:
        """Estimated µs of the kernel with the schedule `s`: launch, rounds of loads, instructions and bytes of the
        busiest SM, and the combination of parts."""
        head, columns = self._own(s)
        parts, machine = s.scratch_parts, target()
        part, threads = self.positions // parts, s.lanes * s.groups
        blocks = self.batch * parts
        resident = max(1, min(machine.threads // threads, machine.registers // (threads * (self._registers(s) + 10))))
        share = -(-blocks // machine.multiprocessors)
        rounds = -(-part // (s.groups * s.deep))
        each = (1 + self.rows) * (head + columns) + self.rows * (2 * log2(s.lanes) + 6) + 8
        joined = self.rows * (columns + 2) * log2(max(2, s.groups))
        issued = share * threads / 32 * (rounds * s.deep * each + joined + 100) / ISSUED
        read = (self.head + self.columns) * self.itemsize * part * share / CACHE
        dram = self.batch * self.positions * (self.head + self.columns) * self.itemsize / machine.bytes_per_us
        waves = -(-share // resident)
        narrow = NARROW * (self.vector // s.vector - 1)
        us = LAUNCH + narrow + max(waves * rounds * ROUND, issued, read, dram)
        return us + (JOIN + 4 * parts * self.rows * (self.columns + 2) / CACHE if parts > 1 else 0.0)


def description(kernel: Kernel, shape: Shape, splits: bool) -> FewRowAttentionRanking | None:
    """Description of `kernel` from which its schedules are ranked; None unless it is attention of few rows with keys
    and values contiguous along the head size.

    `shape`: roles of the kernel's axes (row, column, batch, reduction). `splits`: whether the positions may be split
    (split-KV).
    """
    positions = positions_of(shape) if shape.kind == "attention" and not shape.walks and not shape.joined else None
    if positions is None or shape.m > ROWS or any(b.dtype == "float64" for b in kernel.buffers.values()):
        return None
    heads = [a for a in shape.inner if a != positions]
    loads = [e for e in kernel.exprs if e.op == "load" and positions in e.axes and e.axes & {*heads, *shape.cols}]
    if not heads or not shape.cols or not loads:
        return None
    along: list[tuple[Expr, Axis]] = [(e, next(a for a in (*heads, *shape.cols) if a in e.axes)) for e in loads]
    if any(stride_in_runs(e.value[1], a, 1) != 1 for e, a in along):
        return None
    size = max(dtypes.itemsize(str(e.value[3])) for e in loads)
    vector = next(
        v for v in (8, 4, 2, 1)
        if v * size <= 16 and (v == 1 or all(is_vectorizable(e.value[1], a, v, size) for e, a in along))
    )  # fmt: skip
    maxima = [e for e in kernel.reductions if e.value == ("max", positions)]
    seen = bool(maxima) and all(index_bounds(e.args[0], hiding=True) for e in maxima)
    batch = prod(a.size for a in shape.batch)
    head = max(a.size for a in heads)
    first = [e for e in kernel.exprs if e.op == "load" and positions not in e.axes and e.axes & {*heads}]
    rows = max(1, shape.m)
    before = sum(rows if e.axes & {*shape.rows} else 1 for e in first) - rows
    splits = splits and max(shape.outer, key=lambda a: a.size) == positions
    return FewRowAttentionRanking(
        rows, head, shape.n, positions.size, batch, size, vector, max(0, before), splits, seen
    )


@cached_per_machine(1024)
def _ranked(seen: FewRowAttentionRanking, count: int) -> tuple[FewRowAttentionSchedule, ...]:
    """At most `count` schedules, best rank first, beginning with at most two of each split factor.

    About three quarters have programmatic dependent launch; every third of these ends the loop by the mask (`seen`)
    if there is one.
    """
    ordered = [s for s, _ in sorted(seen.ranked(), key=lambda found: (found[1], found[0].key))]
    alike: dict[int, int] = {}
    first: list[FewRowAttentionSchedule] = []
    later: list[FewRowAttentionSchedule] = []
    for s in ordered:
        alike[s.scratch_parts] = alike.get(s.scratch_parts, 0) + 1
        (first if alike[s.scratch_parts] <= 2 else later).append(s)
    varied = [*first, *later]
    plain = varied[: max(1, count // 4)]
    early = [s.but(early=True, seen=seen.seen and i % 3 == 2) for i, s in enumerate(varied[: count - len(plain)])]
    return (*early, *plain)


def applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether `kernel`, whose axes have the roles `shape` (row, column, batch, reduction), is attention of at most
    `ROWS` rows with keys and values contiguous along the head size."""
    return description(kernel, shape, splits=False) is not None


def few_row_schedules(kernel: Kernel, shape: Shape, count: int, splits: bool) -> list[FewRowAttentionSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless it is attention of few rows with keys and
    values contiguous along the head size. `splits`: whether the positions may be split (split-KV)."""
    seen = description(kernel, shape, splits)
    return [] if seen is None else list(_ranked(seen, count))


def few_row_legal(kernel: Kernel, shape: Shape, s: FewRowAttentionSchedule, splits: bool) -> bool:
    """Whether the schedule `s` is legal for `kernel`: its values fit in registers and shared memory, parts of the
    positions are equal, and it splits the positions (`splits`: whether that is allowed) or ends the loop at a mask only
    where the kernel permits that."""
    seen = description(kernel, shape, splits)
    return seen is not None and s.valid and (seen.splits or s.scratch_parts == 1) and (seen.seen or not s.seen) and (
        seen.fits(s))  # fmt: skip


__all__ = ["FewRowAttentionSchedule", "applies", "few_row_legal", "few_row_schedules", "positions_of"]
