"""Emits short-window reductions in CUDA C++ (depthwise convolution, pooling): fully unrolled threads with register
reuse.

A thread computes a small box of results: `x` along the contiguous axis, `y` and `z` along the two axes before that. The
window elements of a thread become separate expressions whose indices differ by constants. Equal expressions are shared,
so an element that several results need is loaded and converted once and stays in a register: a row of an image for all
taps of a filter row, a filter weight for all results. Loads whose constant offsets lie in one aligned run of memory
become one access of up to 16 bytes. So do guarded loads if the guard's index advances by whole runs, since the guard is
then uniform over a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ...generate.schedule import Domain, Schedule, flag, number
from ...ir.expr import Expr, below_maximum, walk
from ...ir.index import WIDE, Axis, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.tiling import is_window
from ...ir.unfusable import Unfusable
from ...ir.unrolling import COMBINING_OP, moved, unrolled
from ..emit.spelling import CudaLaunch
from ..unrolled.thread_text import ThreadText

MAX_THREAD_EXPRESSIONS = 1 << 14  # limit of expressions per thread
NAMES = ("x", "y", "z")  # sides of a box, from the contiguous axis outwards


@dataclass(frozen=True)
class WindowSchedule(Schedule):
    """Schedule (tuning parameters) of a kernel that reduces over short windows (a pooling or a depthwise convolution):
    the numbers of results that a thread computes along each of three axes, and the threads of a block."""

    x: int = number("results per thread along the contiguous axis", Domain())
    y: int = number("results per thread along the axis before it", Domain(), default=1)
    z: int = number("results per thread along the axis before that", Domain(), default=1)
    threads: int = number("threads of a block", Domain(32, 512), default=128)
    early: bool = flag("programmatic dependent launch", common=True)

    def tiles(self, kernel: Kernel) -> dict[Axis, tuple[Axis, int]]:
        """The axes along which a thread computes several results: axis -> (new axis over the threads' boxes, results
        per thread)."""
        sides = zip(reversed(kernel.axes), (self.x, self.y, self.z))
        return {a: (Axis(f"{a.name}t", -(-a.size // n)), n) for a, n in sides if n > 1}


def is_windowed(kernel: Kernel) -> bool:
    """Whether all reductions of `kernel` (at least one) run over float windows and no position depends on data."""
    reduced = all(is_window(e.axis) and e.kind == "float" and e.value[0] in COMBINING_OP for e in kernel.reductions)
    plain = all(not e.value[2] for e in kernel.exprs if e.op == "load") and all(not s.parts for s in kernel.stores)
    return bool(kernel.reductions) and reduced and plain and not any(map(below_maximum, kernel.exprs))


def emit_windows(kernel: Kernel, schedule: WindowSchedule, name: str) -> CudaLaunch:
    """Emit the CUDA source of a kernel whose reductions are all over short windows (`is_windowed`), as one unrolled
    function called `name`; returns its launch.

    Raises Unfusable for a kernel with any other reduction, or with more than MAX_THREAD_EXPRESSIONS expressions per
    thread.
    """
    if not is_windowed(kernel):
        raise Unfusable("a kernel with reductions other than over short windows")
    return WindowEmitter(kernel, schedule, name).launch()


# ---------------------------------------------------------------- text
class WindowEmitter(ThreadText):
    """Emitter of a kernel in which each thread computes a box of results; holds the text emitted so far."""

    def __init__(self, kernel: Kernel, schedule: WindowSchedule, name: str) -> None:
        super().__init__(kernel, name, schedule.threads, schedule.early)
        self.schedule = schedule

    def launch(self) -> CudaLaunch:
        """Emit the whole CUDA function; returns its launch. Raises Unfusable for more than MAX_THREAD_EXPRESSIONS
        expressions per thread."""
        tiles = self.schedule.tiles(self.kernel)
        axes = [tiles[a][0] if a in tiles else a for a in self.kernel.axes]
        threads = prod(a.size for a in axes)
        self.place(axes, threads)
        stores, partial = self.boxes(tiles)
        roots = [e for step in partial for e in step] + [e for s in stores for e in s.exprs]
        order = walk(reversed(roots))  # begins with the last root
        if len(order) > MAX_THREAD_EXPRESSIONS:
            raise Unfusable(f"{len(order)} expressions per thread, more than {MAX_THREAD_EXPRESSIONS}")
        self.prepare(order, {e for step in partial for e in step}, stores)
        for e in order:
            if e.kind == "float":  # conditions are emitted on use
                self.text(e)
        self.write(stores)
        used = [n for n in self.kernel.buffers if any(key[0] == n for key in self.pointers)]
        return CudaLaunch(self.name, self.function(used), -(-threads // self.schedule.threads), self.schedule.threads,
                          tuple(used), bool(self.schedule.early))  # fmt: skip

    def boxes(self, tiles: Mapping[Axis, tuple[Axis, int]]) -> tuple[list[OutputStore], list[list[Expr]]]:
        """(stores of all results that one thread computes, partial values of its reductions).

        `tiles`: output axis -> (axis over its tiles, results per thread along it). The n-th list of partial values has
        those after n elements of a window, for all results: emitted in this order, all uses of an image row are next to
        its load, so that few registers hold image elements.
        """
        b, stores = self.builder, self.kernel.stores
        roots = [e for s in stores for e in s.exprs]
        roots, steps = unrolled(b, roots)
        flat, found, partial = [e for step in steps for e in step], list[OutputStore](), list[list[Expr]]()
        ragged = any(a.size % n for a, (_, n) in tiles.items())
        for offset in product(*(range(n) for _, n in tiles.values())):
            change = {a: index(t) * n + k for (a, (t, n)), k in zip(tiles.items(), offset)}
            there = [b.less(change[a], index(a.size)) for a in change]
            if any(g.op == "const" and not g.value for g in there):
                continue
            new = moved(b, [*roots, *flat], change)
            if ragged:
                new = self.inside(new)
            values = iter(new)
            for s in stores:
                value, *guards = (next(values) for _ in s.exprs)
                if all(g.op != "const" or g.value for g in guards):
                    kept = tuple(g for g in (*there, *guards) if g.op != "const")
                    found.append(OutputStore(s.buffer, s.at.replaced(change), value, kept))
            partial.append(list(values))
        return found, [list(step) for step in zip(*partial)]

    def inside(self, roots: Sequence[Expr]) -> list[Expr]:
        """The expressions `roots` with bounds checks added to the loads that may lie beyond the end of a buffer."""
        b = self.builder

        def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op != "load":
                return None
            guard = b.less(e.value[1], index(self.kernel.buffers[e.value[0]].span))
            return b.make("load", (*args, guard), e.value, e.kind) if guard.op != "const" else None

        return b.rebuilt(roots, one)

    def place(self, axes: Sequence[Axis], threads: int) -> None:
        """Emit variables for the coordinates of this thread's box along `axes`; `threads` is the number of threads of
        the whole grid.

        Raises Unfusable if a 32-bit number cannot count them.
        """
        self.line(f"const int thread = blockIdx.x * {self.schedule.threads} + threadIdx.x;")
        if threads % self.schedule.threads:
            self.line(f"if (thread >= {threads}) return;")
        if threads >= WIDE:
            raise Unfusable("more threads than a 32-bit index counts")
        step = 1
        for a in reversed(axes):
            if a.size > 1:
                text = f"thread / {step}" if step > 1 else "thread"
                self.line(f"const int {a.name} = {text}{f' % {a.size}' if step * a.size < threads else ''};")
            step *= a.size
