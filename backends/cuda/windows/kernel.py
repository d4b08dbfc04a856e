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

from ....egraph.types.dtypes import HALVES, itemsize
from ...generate.schedule import Domain, Schedule, flag, number
from ...ir.expr import Builder, Expr, below_maximum, walk
from ...ir.index import WIDE, Axis, Index, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.tiling import is_window
from ...ir.unfusable import Unfusable
from ..emit.spelling import CTYPES, SPELLINGS, CudaLaunch, all_of, enclosed, integer, operation
from .aligned_runs import AlignedRun, aligned, aligned_vectors, covering, run_of
from .unrolling import FOLD, moved, unrolled

MAX_THREAD_EXPRESSIONS = 1 << 14  # limit of expressions per thread
INLINE = 60  # characters up to which an expression is inlined instead of named
NAMES = ("x", "y", "z")  # sides of a box, from the contiguous axis outwards


@dataclass(frozen=True)
class WindowSchedule(Schedule):
    """Schedule (tuning parameters) of a short-window kernel: a thread's box of results, and the threads of a block."""

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
    reduced = all(is_window(e.axis) and e.kind == "float" and e.value[0] in FOLD for e in kernel.reductions)
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
class WindowEmitter:
    """Emitter of a kernel in which each thread computes a box of results; holds the text emitted so far."""

    def __init__(self, kernel: Kernel, schedule: WindowSchedule, name: str) -> None:
        self.kernel, self.schedule, self.name, self.builder = kernel, schedule, name, Builder()
        self.wide = "float64" if any(b.dtype == "float64" for b in kernel.buffers.values()) else "float32"
        self.results = frozenset(kernel.buffers[s.buffer].dtype for s in kernel.stores)
        self.param = {b: f"{b}_" for b in kernel.buffers}
        self.lines: list[str] = []
        self.known: dict[Expr, str] = {}
        self.uses: dict[Expr, int] = {}
        self.runs: dict[Expr, tuple[AlignedRun, int]] = {}  # load -> (run, width)
        self.places: dict[tuple[AlignedRun, int], set[int]] = {}  # (run, width) -> constants that are read
        self.read: dict[tuple[AlignedRun, int], tuple[str, int]] = {}  # (run, width) -> (variable, its first element)
        self.pointers: dict[tuple[str, Index], str] = {}
        self.counter = 0

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
            guard = b.less(e.value[1], index(self.elements(e.value[0])))
            return b.make("load", (*args, guard), e.value, e.kind) if guard.op != "const" else None

        return b.rebuilt(roots, one)

    def elements(self, buffer: str) -> int:
        """Number of elements of memory that `buffer` spans, from its first to its last."""
        found = self.kernel.buffers[buffer]
        return 1 + sum((d - 1) * s for d, s in zip(found.shape, found.strides))

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

    def prepare(self, order: Sequence[Expr], named: set[Expr], stores: Sequence[OutputStore]) -> None:
        """Count the uses of the expressions `order` (operands first), and group their loads by aligned run, so that
        each run is loaded once.

        `named`: expressions that get a variable of their own. `stores`: the results of a thread.
        """
        for e in order:
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        for e in (*named, *(x for s in stores for x in s.exprs)):
            self.uses[e] = self.uses.get(e, 0) + 2 * (e in named) + 1
        for e in order:
            if e.op == "load":
                operand, at, _, dtype = e.value
                width = aligned(at, itemsize(dtype), self.elements(operand))
                run = run_of(operand, at, e.args, width)
                self.runs[e] = run, width
                self.places.setdefault((run, width), set()).add(at.const)

    # ------------------------------------------------------------ values
    def line(self, text: str) -> None:
        """Add the line `text` to the body of the emitted function, indented."""
        self.lines.append(f"    {text}")

    def fresh(self, stem: str) -> str:
        """A variable name that is not used yet: `stem` and a number."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def text(self, e: Expr) -> str:
        """CUDA expression of the value of `e`. When first asked for `e`, emits the statements that compute it
        (`value`)."""
        if e not in self.known:
            self.known[e] = self.value(e)
        return self.known[e]

    def value(self, e: Expr) -> str:
        """CUDA expression of the value of `e`, which has not been emitted yet. If the expression is long or used more
        than once, emits the declaration of a variable with its value and returns the variable's name."""
        if e.op == "const":
            return SPELLINGS[self.wide].number(e.value) if e.kind == "float" else integer(e.value)
        if e.op == "index":
            return enclosed(self.position(e.value))
        text = self.loaded(e) if e.op == "load" else operation(e, self.text, self.wide, self.results)
        if self.uses.get(e, 0) < 2 and len(text) < INLINE:
            return enclosed(text)
        name = self.fresh("t")
        self.line(f"const auto {name} = {text};")
        return name

    def loaded(self, e: Expr) -> str:
        """CUDA expression of the element that the load `e` reads, converted to the compute dtype. Emits the vector load
        of the aligned run that contains it, unless that has been emitted for another element."""
        key, dtype, const = self.runs[e], e.value[3], e.value[1].const
        if key not in self.read:
            first, size = covering(sorted(self.places[key]), key[1])
            whole = f"Pack<{CTYPES[dtype]}, {size}>"
            name, text = self.fresh("v"), f"read<{size}>({self.pointer(key[0])}{_offset(first)})"
            condition = all_of(list(map(self.text, e.args))) if e.args else ""
            self.line(f"const {whole} {name} = {f'{condition} ? {text} : {whole}{{}}' if condition else text};")
            self.read[key] = name, first
        name, first = self.read[key]
        text = f"{name}.at[{const - first}]"
        if e.kind != "float":
            return text
        text = f"wide({text})" if dtype in HALVES else text
        return f"double({text})" if self.wide == "float64" and dtype != "float64" else text

    def pointer(self, run: AlignedRun) -> str:
        """Name of the variable with the address of `run`, not counting its constant offset; emits its declaration when
        first asked."""
        key = run.buffer, run.terms
        if key not in self.pointers:
            name = self.pointers[key] = self.fresh("p")
            self.line(f"auto* const {name} = {self.param[run.buffer]} + ({self.position(run.terms)});")
        return self.pointers[key]

    def position(self, at: Index) -> str:
        """CUDA expression of the value of the index `at`, in 64-bit arithmetic if it may exceed 32 bits."""
        wide = max(abs(at.range[0]), at.range[1]) >= WIDE
        parts = []
        for atom, c in at.terms:
            inner = (
                atom.name
                if isinstance(atom, Axis)
                else f"(({self.position(atom.index)}) {'%' if atom.rest else '/'} {atom.by})"
            )
            parts.append(inner if c == 1 and not wide else f"{inner} * {c}{'LL' if wide else ''}")
        parts += [str(at.const)] if at.const or not parts else []
        return " + ".join(parts).replace("+ -", "- ")

    # ------------------------------------------------------------ results
    def write(self, stores: Sequence[OutputStore]) -> None:
        """Emit all stores of a thread; results that are contiguous and aligned are stored as vectors."""
        runs: dict[tuple[AlignedRun, int], dict[int, OutputStore]] = {}
        for s in stores:
            buffer = self.kernel.buffers[s.buffer]
            width = aligned(s.at, itemsize(buffer.dtype), self.elements(s.buffer))
            runs.setdefault((run_of(s.buffer, s.at, s.guards, width), width), {})[s.at.const] = s
        for (run, width), found in runs.items():
            for first, size in aligned_vectors(sorted(found), width):
                dtype, one = self.kernel.buffers[run.buffer].dtype, found[first]
                condition = f"if ({all_of(list(map(self.text, one.guards)))}) " if one.guards else ""
                name = self.fresh("y")
                self.line(f"Pack<{CTYPES[dtype]}, {size}> {name};")
                for k in range(size):
                    self.line(f"{name}.at[{k}] = {self.stored(found[first + k].value, dtype)};")
                self.line(f"{condition}write({self.pointer(run)}{_offset(first)}, {name});")

    def stored(self, e: Expr, dtype: str) -> str:
        """CUDA expression of the value of `e` converted to the storage dtype `dtype`."""
        text = self.text(e)
        if e.kind == "float" and self.wide == "float64" and dtype in HALVES:
            text = f"float({text})"
        return f"stored<{CTYPES[dtype]}>({text})"

    def function(self, used: Sequence[str]) -> str:
        """CUDA source of the whole kernel: its signature with the buffers `used`, and its body."""
        results = {s.buffer for s in self.kernel.stores}
        restrict = "" if self.schedule.early else "__restrict__ "
        parameters = [
            f"{'' if n in results else 'const '}{CTYPES[self.kernel.buffers[n].dtype]}* {restrict}{self.param[n]}"
            for n in used
        ]
        early = ["    begin_next();", "    await_previous();"] if self.schedule.early else []
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.schedule.threads})',
            f"{self.name}({', '.join(parameters)}) {{",
            *early, *self.lines, "}", "",
        ])  # fmt: skip


def _offset(const: int) -> str:
    return f" + {const}" if const > 0 else f" - {-const}" if const else ""
