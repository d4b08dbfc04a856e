"""Lists candidate schedules (tuning parameters) of kernels of running sums, best guess first, and decides whether one
is legal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from ....egraph.types.dtypes import itemsize
from ...ir.expr import walk
from ...ir.index import Axis
from ...ir.kernel import Kernel
from ...machine import cached_per_machine, target
from .kernel import LANES, MAX_THREAD_EXPRESSIONS, ScanSchedule, scanned

MAX_THREADS, RESIDENT = 1024, 1536  # threads of a block, and of an SM that hide each other's latency
ISSUED = 5e5  # warp instructions issued per µs, for ranking only
TURN, EXCHANGE, BEGIN = 0.7, 4, 30  # µs of an iteration's latency; instructions per exchange, and per iteration


def scan_schedules(kernel: Kernel, count: int) -> list[ScanSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless its running sums can be emitted.

    Three quarters use programmatic dependent launch (`early`); the others are the best ones without it.
    """
    work = ScanWork.of(kernel)
    return list(_ranked(work, count)) if work is not None else []


def scans_fit(kernel: Kernel, s: ScanSchedule) -> bool:
    """Whether the schedule `s` is legal for `kernel`: whole warps, bounded work per thread, and no more threads than
    positions."""
    work = ScanWork.of(kernel)
    return s.valid and work is not None and _fits(work, s)


@dataclass(frozen=True)
class ScanWork:
    """Amount of work of a kernel of running sums, from which its time is estimated.

    `positions`: of each sum. `rows`: number of sums, those that are neighbours in memory not counted. `across`: number
    of neighbours; 1 if positions are contiguous. `each`: expressions per position. `sums`: running sums. `bytes`: of
    the largest element.
    """

    positions: int
    rows: int
    across: int
    each: int
    sums: int
    bytes: int

    @staticmethod
    def of(kernel: Kernel) -> ScanWork | None:
        """The amount of work of `kernel`; None if its running sums cannot be emitted."""
        loop = scanned(kernel)
        if loop is None:
            return None
        last, along = kernel.axes[-1], next(iter(loop.change))
        across = 1 if last in loop.change or (loop.totals and _contiguous(kernel, along)) else last.size
        unrolled = prod(e.axis.size for e in walk(loop.roots) if e.op == "reduce")
        wide = max(itemsize(b.dtype) for b in kernel.buffers.values())
        rows = prod(a.size for a in loop.others) // across
        return ScanWork(loop.axis.size, rows, across, kernel.work * unrolled, len(kernel.scans) * unrolled, wide)

    def us(self, s: ScanSchedule) -> float:
        """Estimated time in µs of a schedule: instructions issued by all warps, scaled by occupancy, and latencies."""
        turns = ceil(self.positions / (s.x * s.along))
        threads = ceil(self.rows / s.sums) * ceil(self.across / s.lanes) * s.threads
        lanes, warps = (1, s.along) if s.lanes > 1 else (min(s.along, LANES), ceil(s.along / LANES))
        exchanges = lanes.bit_length() - 1 + (2 + warps if warps > 1 else 0)
        apart = (
            1.0 if s.lanes > 1 else max(1.0, s.x * self.bytes / 16) * (min(self.across, 8) if self.across > 1 else 1)
        )
        each = s.x * self.each * apart + self.sums * EXCHANGE * exchanges + BEGIN
        busy = min(1.0, threads / (target().multiprocessors * RESIDENT))
        return float(turns * (threads / 32 * each / ISSUED / busy**0.5 + TURN))


def _contiguous(kernel: Kernel, axis: Axis) -> bool:
    """Whether some operand is read in the order of its memory along an axis."""
    return any(abs(e.value[1].coefficient(axis)) == 1 for e in kernel.exprs if e.op == "load")


def _fits(work: ScanWork, s: ScanSchedule) -> bool:
    whole = s.threads % LANES == 0 and s.threads <= MAX_THREADS
    alone = s.sums == 1 or (s.lanes == 1 and s.along <= LANES)  # sums of a block share no memory
    neighbours = s.lanes == 1 or work.across > 1
    needed = s.along == 1 or s.x * s.along < 2 * max(work.positions, s.x)
    return whole and alone and neighbours and needed and s.x * work.each <= MAX_THREAD_EXPRESSIONS // 2


@cached_per_machine(1024)
def _ranked(work: ScanWork, count: int) -> tuple[ScanSchedule, ...]:
    """Candidate schedules by estimated time."""
    powers = [1 << n for n in range(11)]
    every = (
        ScanSchedule(x, along, lanes, sums)
        for x, along, lanes, sums in product(powers[:5], powers, (1, LANES), powers[:6])
    )
    found = [s for s in every if _fits(work, s) and (s.sums == 1 or s.threads <= 256)]
    ranked = sorted(found, key=lambda s: (work.us(s), s.key))
    plain = ranked[: count // 4]
    return (*(s.but(early=True) for s in ranked[: count - len(plain)]), *plain)


__all__ = ["scan_schedules", "scans_fit"]
