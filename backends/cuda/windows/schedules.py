"""Lists candidate schedules (tuning parameters) of short-window kernels, best guess first, and decides whether one is
legal.

The schedule class is `WindowSchedule` in windows/kernel.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, gcd, prod

from ....egraph.types.dtypes import itemsize
from ...ir.expr import Expr
from ...ir.index import Axis, Division, Index, index
from ...ir.kernel import Kernel
from ...machine import cached_per_machine, target
from .kernel import WindowSchedule, is_windowed

MAX_WINDOW_ELEMENTS = 800  # limit of window elements that a thread reduces: more means long code and few threads
BOX = 64  # limit of results per thread
THREADS = 128  # threads of a block
RESIDENT = 1536  # resident threads of an SM that hide each other's latency
ISSUED = 5e5  # warp instructions issued per µs, for ranking only
VECTOR = 16  # bytes between neighbouring threads up to which a warp's access stays coalesced
ACCESS, OWN, BEGIN = 3, 6, 20  # instructions per access, per result and per thread besides the reductions


def window_schedules(kernel: Kernel, count: int) -> list[WindowSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless all reductions are over short windows.

    Three quarters use programmatic dependent launch (`early`); the others are the best ones without it.
    """
    return list(_ranked(WindowWork.of(kernel), count)) if is_windowed(kernel) else []


def windows_fit(kernel: Kernel, s: WindowSchedule) -> bool:
    """Whether the schedule `s` is legal for `kernel`: boxes of results no larger than the axes, and bounded work per
    thread."""
    return s.valid and is_windowed(kernel) and _fits(WindowWork.of(kernel), (s.x, s.y, s.z))


def _fits(work: WindowWork, box: tuple[int, ...]) -> bool:
    """Whether a thread's box of results is within the axes and the limits of work."""
    within = all(n == 1 or (n > 0 and n < 2 * size) for n, size in zip(box, (*work.sizes, 1, 1, 1)))
    return within and prod(box) <= BOX and work.taps * prod(box) <= MAX_WINDOW_ELEMENTS


@dataclass(frozen=True)
class LoadPattern:
    """Positions that a load reads.

    `places` are its offsets for all window elements, `steps` its strides along the last axes, last axis first, `others`
    the gcd of the other strides and the buffer's length; all in elements. `itemsize` in bytes.
    """

    places: tuple[int, ...]
    steps: tuple[int, ...]
    others: int
    itemsize: int

    def counted(self, box: tuple[int, ...]) -> tuple[int, int]:
        """Memory accesses of a thread that computes `box` results along each axis (last axis first), as (vector
        accesses, elements)."""
        moves = [range(0, n * s, s) if s else (0,) for n, s in zip(box, self.steps)]
        elements = {p + sum(m) for p in self.places for m in product(*moves)}
        width = gcd(16 // self.itemsize, self.others, *(n * s for n, s in zip(box, self.steps)))
        return len({e // width for e in elements}), len(elements)


@dataclass(frozen=True)
class WindowWork:
    """Amount of work of a kernel over short windows, from which its time is estimated.

    `sizes`: sizes of the last three axes, last axis first. `results`: number of results. `taps`: elements of a
    window. `reads`: access patterns of the loads.
    """

    sizes: tuple[int, ...]
    results: int
    taps: int
    reads: tuple[LoadPattern, ...]

    @staticmethod
    def of(kernel: Kernel) -> WindowWork:
        """The amount of work of `kernel`, all of whose reductions run over short windows."""
        last = tuple(reversed(kernel.axes))[:3]
        reads = tuple(_read(kernel, e, last) for e in kernel.exprs if e.op == "load")
        taps = sum(e.axis.size for e in kernel.reductions)
        return WindowWork(tuple(a.size for a in last), prod(a.size for a in kernel.axes), taps, reads)

    def us(self, box: tuple[int, ...]) -> float:
        """Estimated time in µs if a thread computes `box` results along each axis (last axis first): instructions
        issued by all warps, scaled by occupancy."""
        threads = prod(ceil(s / n) for s, n in zip(self.sizes, box)) * self.results / prod(self.sizes)
        accesses, elements = (sum(n) for n in zip(*(r.counted(box) for r in self.reads)))
        apart = max(1.0, *(box[0] * r.itemsize / VECTOR for r in self.reads))
        each = self.taps * prod(box) + elements + ACCESS * accesses * apart + OWN * prod(box) + BEGIN
        busy = min(1.0, threads / (target().multiprocessors * RESIDENT))
        return float(threads / 32 * each / ISSUED / busy**0.5)


@cached_per_machine(1024)
def _ranked(work: WindowWork, count: int) -> tuple[WindowSchedule, ...]:
    """Candidate schedules by estimated time."""
    boxes = [box for box in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4)) if _fits(work, box)]
    ranked = [WindowSchedule(*box, THREADS) for box in sorted(boxes, key=lambda box: (work.us(box), box))]
    plain = ranked[: count // 4]
    return (*(s.but(early=True) for s in ranked[: count - len(plain)]), *plain)


def _read(kernel: Kernel, e: Expr, last: tuple[Axis, ...]) -> LoadPattern:
    """The access pattern of a load."""
    operand, at, _, dtype = e.value
    buffer = kernel.buffers[operand]
    windows = [a for a in at.axes if a not in kernel.axes]
    places = {
        at.replaced({a: index(k) for a, k in zip(windows, ks)}) for ks in product(*(range(a.size) for a in windows))
    }
    one = next(iter(places))
    others = gcd(buffer.span, *(c for a, c in one.terms if a not in last))
    return LoadPattern(
        tuple(sorted(p.const for p in places)), tuple(_step(one, a) for a in last), others, itemsize(dtype)
    )


def _step(at: Index, axis: Axis) -> int:
    """Stride of an index along an axis; 1 where the stride is not constant."""
    return at.coefficient(axis) or int(any(isinstance(x, Division) and axis in x.index.axes for x, _ in at.terms))


__all__ = ["window_schedules", "windows_fit"]
