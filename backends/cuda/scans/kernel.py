"""Emits kernels of running sums (scans) in CUDA C++, with what is computed before and after them.

Threads along the positions of a sum have `x` consecutive ones each, which they add up in registers; the sums of earlier
threads come from other lanes and through shared memory, those of earlier positions from registers, since a block
iterates over the positions of its sums. Positions that are not contiguous in memory are added up by `lanes`
neighbouring threads for as many sums at once, so that a warp reads contiguous memory. Elements are read once: the other
expressions of a position are computed in the same iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...generate.schedule import Domain, Schedule, flag, number
from ...ir.expr import Builder, Expr, below_maximum, walk
from ...ir.index import WIDE, Axis, Index, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.tiling import SHORT
from ...ir.unfusable import Unfusable, if_fusable
from ...ir.unrolling import COMBINING_OP, guarded, moved, unrolled
from ...lowering.running_sums import ALONG, RUNNING, TOTAL, PositionLoop, over_positions
from ..emit.spelling import CudaLaunch
from ..unrolled.thread_text import ThreadText

SCAN_LIBRARY = (Path(__file__).parent / "kernel.cuh").read_text(encoding="utf-8")
MAX_THREAD_EXPRESSIONS = 1 << 12  # limit of expressions per thread
LANES = 32  # neighbouring sums of a warp


@dataclass(frozen=True)
class ScanSchedule(Schedule):
    """Schedule (tuning parameters) of a kernel of running sums: positions of a thread, threads along the positions, and
    neighbouring sums of a block."""

    tag = "scan"

    x: int = number("consecutive positions per thread", Domain(1, 16))
    along: int = number("threads along the positions", Domain(1, 1024, powers=True))
    lanes: int = number(
        "neighbouring sums that as many threads add up, where positions are not contiguous", Domain(1, LANES, powers=True, values=(1, LANES), steps="none"), default=1
    )  # fmt: skip
    sums: int = number("further sums of a block", Domain(1, 32, powers=True), default=1)
    early: bool = flag("programmatic dependent launch", common=True)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.along * self.lanes * self.sums


def scanned(kernel: Kernel) -> PositionLoop | None:
    """The kernel's loop over positions, in a builder of its own, if it can be emitted: no position depends on data, and
    reductions are short; None if not."""
    plain = all(not e.value[2] for e in kernel.exprs if e.op == "load") and all(not s.parts for s in kernel.stores)
    if not plain or not kernel.scans or not kernel.axes or any(map(below_maximum, kernel.exprs)):
        return None
    loop = if_fusable(over_positions, kernel, Builder())
    others = [] if loop is None else [e for e in walk(loop.roots) if e.op == "reduce"]
    return loop if all(e.axis.size <= SHORT and e.value[0] in COMBINING_OP for e in others) else None


def emit_scans(kernel: Kernel, schedule: ScanSchedule, name: str) -> CudaLaunch:
    """Emit the CUDA source of a kernel with running sums (`scanned`), as a function called `name`; returns its launch.

    Raises Unfusable for a kernel that is not `scanned`, or with more than MAX_THREAD_EXPRESSIONS expressions per
    thread.
    """
    return ScanEmitter(kernel, schedule, name).launch()


class ScanEmitter(ThreadText):
    """Emitter of a kernel whose blocks iterate over the positions of running sums; holds the text emitted so far."""

    def __init__(self, kernel: Kernel, schedule: ScanSchedule, name: str) -> None:
        super().__init__(kernel, name, schedule.threads, schedule.early)
        self.schedule = schedule
        loop = scanned(kernel)
        if loop is None:
            raise Unfusable("a kernel without running sums in one order, or with other reductions")
        self.loop = loop

    def launch(self) -> CudaLaunch:
        """Emit the whole CUDA function; returns its launch. Raises Unfusable for more than MAX_THREAD_EXPRESSIONS
        expressions per thread."""
        s, loop = self.schedule, self.loop
        roots, _ = unrolled(self.builder, loop.roots)
        sums = [e for e in walk(roots) if e.op in (RUNNING, TOTAL)]
        stores, steps = self.steps(roots, sums)
        order = walk(e for step in steps for e in step)
        every = walk([*order, *(e for store in stores for e in store.exprs)])
        if len(every) > MAX_THREAD_EXPRESSIONS:
            raise Unfusable(f"{len(every)} expressions per thread, more than {MAX_THREAD_EXPRESSIONS}")
        blocks = self.place()
        self.prepare(every, {e for step in steps for e in step}, stores)
        count = -(-loop.axis.size // (s.x * s.along))
        self.declare(sums)
        self.line(f"for (int turn = 0; turn < {count}; ++turn) {{")
        self.line(f"const int {ALONG}t = turn * {s.along} + threadIdx.x / {s.lanes} % {s.along};")
        for e in order if loop.totals else every:
            if e.op == "load":  # all of them before threads wait for each other
                self.text(e)
        for n, step in enumerate(steps):
            self.add(n, step)
        read = {key[0] for key in self.pointers}
        if loop.totals:
            self.line("}")
            self.after_loop(sums)
        self.line(f"if (there{f' && threadIdx.x / {s.lanes} % {s.along} == 0' if loop.totals else ''}) {{")
        self.write(stores)
        self.lines += ["    }"] if loop.totals else ["    }", "    }"]
        used = [n for n in self.kernel.buffers if n in read or any(key[0] == n for key in self.pointers)]
        return CudaLaunch(self.name, self.function(used), blocks, s.threads, tuple(used), bool(s.early),
                          beside={"CUDA_SCANS": SCAN_LIBRARY})  # fmt: skip

    def after_loop(self, sums: Sequence[Expr]) -> None:
        """Drop the variables of the loop's body, which do not exist behind it; of the `sums`, those over all positions
        stay known by their variable."""
        self.known = {e: f"carried{n}" for n, e in enumerate(sums) if e.op == TOTAL}
        self.read.clear()
        self.pointers.clear()

    def steps(self, roots: Sequence[Expr], sums: Sequence[Expr]) -> tuple[list[OutputStore], list[list[Expr]]]:
        """(stores of all results that a thread computes in an iteration, or after the last one; the values of each of
        the running `sums` at its positions). `roots`: the expressions of the kernel's stores."""
        b, s, axis = self.builder, self.schedule, self.loop.axis
        threads = Axis(f"{ALONG}t", -(-axis.size // s.x))
        padded = Axis(threads.name, -(-threads.size // s.along) * s.along)  # what a thread's number really reaches
        stores, values = list[OutputStore](), list[list[Expr]]()
        for k in range(s.x):
            place = index(threads) * s.x + k
            change = {a: i.replaced({axis: place}) for a, i in self.loop.change.items()}
            if axis.size % s.x:
                there = b.less(index(padded) * s.x + k, index(axis.size))
            else:
                there = b.less(index(padded), index(threads.size))
            guards = (there,) if there.op != "const" else ()
            values.append(guarded(b, moved(b, [self.kept(guards, e) for e in sums], change), guards))
            if not self.loop.totals:
                stores += self.stores_of(guarded(b, moved(b, roots, change), guards), change, guards)
        if self.loop.totals:
            stores = self.stores_of(roots, {}, ())
        return stores, [list(step) for step in zip(*values, strict=True)]

    def kept(self, guards: tuple[Expr, ...], e: Expr) -> Expr:
        """The running sum `e`, rebuilt so that a thread adds zero at positions beyond the last one, where `guards` do
        not hold; an expression without such a sum is returned as it is."""
        b, (value, *_) = self.builder, e.args
        if e.op != TOTAL or not guards:
            return e  # what a running sum is beyond its last position is not stored
        return b.make(TOTAL, (b.pointwise("where", (*guards, value, b.const(0, value.kind))),), e.value, e.kind)

    def stores_of(
        self, roots: Sequence[Expr], change: Mapping[Axis, Index], guards: tuple[Expr, ...]
    ) -> list[OutputStore]:
        """The kernel's stores with the expressions `roots` and axes replaced (`change`), where `guards` hold."""
        new, found = iter(roots), list[OutputStore]()
        for store in self.kernel.stores:
            value, *more = (next(new) for _ in store.exprs)
            if all(g.op != "const" or g.value for g in more):
                kept = (*guards, *(g for g in more if g.op != "const"))
                found.append(OutputStore(store.buffer, store.at.replaced(change), value, kept))
        return found

    def place(self) -> int:
        """Emit variables for the coordinates of this thread's sums; returns the number of blocks.

        Threads without a sum of their own compute the last one again, because all threads of a warp exchange values;
        they store nothing. Raises Unfusable if a 32-bit number cannot count the sums.
        """
        s, axes = self.schedule, self.loop.others
        last = axes[-1].size if s.lanes > 1 else 1
        rows = prod(a.size for a in axes) // last
        across = -(-last // s.lanes)
        if rows * last >= WIDE:
            raise Unfusable("more sums than a 32-bit index counts")
        blocks = -(-rows // s.sums) * across
        self.line(f"const int block = blockIdx.x{f' / {across}' if across > 1 else ''};")
        row = f"block * {s.sums} + threadIdx.x / {s.along * s.lanes}" if s.sums > 1 else "block"
        self.line(f"const int row = least({row}, {rows - 1});")
        conditions = [f"{row} < {rows}"] if rows % s.sums else []
        if s.lanes > 1:
            lane = f"blockIdx.x % {across} * {s.lanes} + threadIdx.x % {s.lanes}"
            self.line(f"const int {axes[-1].name} = least({lane}, {last - 1});")
            conditions += [f"{lane} < {last}"] if last % s.lanes else []
        self.line(f"const bool there = {' && '.join(conditions) or 'true'};")
        self.coordinates(axes[:-1] if s.lanes > 1 else axes, "row")
        return blocks

    def declare(self, sums: Sequence[Expr]) -> None:
        """Emit, for each of the running `sums`, its shared memory and the variable that carries its value from one
        iteration to the next."""
        s = self.schedule
        for n, e in enumerate(sums):
            kind = self.number(e)
            self.line(f"__shared__ {kind} shared{n}[{max(s.threads // (1 if s.lanes > 1 else 32), 1)}];")
            self.line(f"{kind} carried{n} = 0;")

    def number(self, e: Expr) -> str:
        """The C type in which the running sum `e` is computed."""
        return "long long" if e.kind != "float" else "double" if self.wide == "float64" else "float"

    def add(self, n: int, step: Sequence[Expr]) -> None:
        """Emit the n-th running sum at the positions of a thread, whose values there are `step`."""
        s, kind, so_far = self.schedule, self.number(step[0]), ""
        texts = []
        for e in step:
            text = self.text(e.args[0])
            name = self.fresh("s")
            self.line(f"const {kind} {name} = {f'{so_far} + ' if so_far else ''}{text};")
            so_far = name
            texts.append(name)
        before = self.fresh("before")
        self.line(f"const {kind} {before} = earlier<{s.along * s.lanes}, {s.lanes}>({so_far}, shared{n}, carried{n});")
        for e, text in zip(step, texts, strict=True):
            self.known[e] = f"({before} + {text})"


__all__ = ["SCAN_LIBRARY", "ScanEmitter", "ScanSchedule", "emit_scans", "scanned"]
