"""Sums and maxima over short windows in CUDA C++ (depthwise convolutions, pools): all that a thread does is unrolled.

A thread makes a small box of results: `x` along the axis that lies side by side in memory, `y` and `z` along the two before it. Its
elements of the windows become expressions of their own, whose indices differ in a constant. Equal ones are one expression, so that
what several results read is read once, converted once, and lies in a register: a row of an image for all taps of a row of the
filter, a filter's weight for all results. Loads whose constants lie in one aligned run of memory become one access of up to
16 bytes, guards included: a condition that moves by whole runs is the same for all of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from ..egraph.dtypes import HALVES, itemsize
from .cuda_text import CTYPES, SPELLINGS, CudaLaunch, all_of, enclosed, integer, operation
from .index import WIDE, Axis, Index, index
from .kir import Builder, Expr, Kernel, Store, Unfusable, below_maximum, walk
from .kir_simplify import SIMPLIFY, as_index
from .tiling import is_window

FOLD = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
MOST = 1 << 14  # expressions of a thread
INLINE = 60  # characters of an expression that is not given a name
NAMES = ("x", "y", "z")  # of a box's sides, from the axis that lies side by side in memory on


@dataclass(frozen=True)
class Strip:
    """The numbers of a schedule: results of a thread along the last three axes, threads of a block, an early start."""

    x: int
    y: int = 1
    z: int = 1
    threads: int = 128
    early: int = 0

    def tiles(self, kernel: Kernel) -> dict[Axis, tuple[Axis, int]]:
        """The axes of which a thread has several elements -> (the axis of its boxes, elements)."""
        sides = zip(reversed(kernel.axes), (self.x, self.y, self.z))
        return {a: (Axis(f"{a.name}t", -(-a.size // n)), n) for a, n in sides if n > 1}


def is_windowed(kernel: Kernel) -> bool:
    """Whether all reductions are over windows of floats, and nothing is read from where data says."""
    reduced = all(is_window(e.axis) and e.kind == "float" and e.value[0] in FOLD for e in kernel.reductions)
    plain = all(not e.value[2] for e in kernel.exprs if e.op == "load") and all(not s.parts for s in kernel.stores)
    return bool(kernel.reductions) and reduced and plain and not any(map(below_maximum, kernel.exprs))


def emit_windows(kernel: Kernel, strip: Strip, name: str) -> CudaLaunch:
    """The launch of a kernel over windows. Unfusable where it is none, or too long."""
    if not is_windowed(kernel):
        raise Unfusable("a kernel not of windows alone")
    return Unrolled(kernel, strip, name).launch()


# ---------------------------------------------------------------- expressions
def moved(b: Builder, roots: Sequence[Expr], change: Mapping[Axis, Index]) -> list[Expr]:
    """The roots as expressions of builder `b` with indices in place of axes; what these decide is decided."""
    known: dict[Index, Index] = {}

    def put(at: Index) -> Index:
        terms = Index(at.terms)  # of many indices that differ in a number
        if terms not in known:
            known[terms] = terms.replaced(change)
        return known[terms] + at.const

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == "index":
            return b.index(put(e.value))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            if any(g.op == "const" and not g.value for g in args):
                return b.const(0, e.kind)
            guards = tuple(g for g in args if g.op != "const")
            return b.make("load", guards, (operand, put(at), steps, dtype), e.kind)
        return b.pointwise(e.op, args) if e.op in SIMPLIFY else b.make(e.op, args, e.value, e.kind)

    return b.rebuilt(roots, one)


def unrolled(b: Builder, roots: Sequence[Expr]) -> tuple[list[Expr], list[list[Expr]]]:
    """The roots in a builder of their own without reductions, and what each reduction is after one element, two, ..."""
    steps: list[list[Expr]] = []

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op != "reduce":
            return b.make(e.op, args, e.value, e.kind)
        found: list[Expr] = []
        for k in range(e.axis.size):
            (term,) = moved(b, args, {e.axis: index(k)})
            found.append(b.pointwise(FOLD[e.value[0]], (found[-1], term)) if found else term)
        steps.append(found)
        return found[-1]

    return b.rebuilt(roots, one), steps


@dataclass(frozen=True)
class Run:
    """An aligned run of memory of which a thread reads or writes some elements: buffer, first element without its constant, where
    the run begins, what must hold."""

    buffer: str
    terms: Index
    start: int
    guards: frozenset[object]


def aligned(at: Index, itemsize: int, elements: int) -> int:
    """Elements of the longest run of 16 bytes at most whose constants alone say where an index lies in it."""
    steps = gcd(elements, *(c for _, c in at.terms))
    return gcd(16 // itemsize, steps) if itemsize <= 16 else 1


def run_of(buffer: str, at: Index, guards: Sequence[Expr], width: int) -> Run:
    """The run of `width` elements in which an index lies; conditions that are the same all over it count as one."""
    return Run(buffer, at - at.const, at.const // width * width, frozenset(_over_run(g, width) for g in guards))


def _over_run(guard: Expr, width: int) -> object:
    """A condition, or what all conditions have in common that agree with it wherever its index moves by whole runs."""
    if guard.op == "lt" and all(a.op in ("index", "const") and a.kind == "int" for a in guard.args):
        below = as_index(guard.args[0]) - as_index(guard.args[1])
        if all(c % width == 0 for _, c in below.terms):
            return below.terms, below.const // width
    return guard


def covering(places: Sequence[int], width: int) -> tuple[int, int]:
    """(first element, elements) of the shortest aligned part of a run that has all of some places."""
    size = 1
    while places[0] // size != places[-1] // size:
        size *= 2
    return places[0] // size * size, min(size, width)


# ---------------------------------------------------------------- text
class Unrolled:
    """A kernel, a box of its results for each thread, and the text so far."""

    def __init__(self, kernel: Kernel, strip: Strip, name: str) -> None:
        self.kernel, self.strip, self.name, self.builder = kernel, strip, name, Builder()
        self.wide = "float64" if any(b.dtype == "float64" for b in kernel.buffers.values()) else "float32"
        self.results = frozenset(kernel.buffers[s.buffer].dtype for s in kernel.stores)
        self.param = {b: f"{b}_" for b in kernel.buffers}
        self.lines: list[str] = []
        self.known: dict[Expr, str] = {}
        self.uses: dict[Expr, int] = {}
        self.runs: dict[Expr, tuple[Run, int]] = {}  # of each load: its run and its width
        self.places: dict[tuple[Run, int], set[int]] = {}  # constants that are read of a run
        self.read: dict[tuple[Run, int], tuple[str, int]] = {}  # name of what was read of it, and where that begins
        self.pointers: dict[tuple[str, Index], str] = {}
        self.counter = 0

    def launch(self) -> CudaLaunch:
        """The function's text and its grid."""
        tiles = self.strip.tiles(self.kernel)
        axes = [tiles[a][0] if a in tiles else a for a in self.kernel.axes]
        threads = prod(a.size for a in axes)
        self.place(axes, threads)
        stores, partial = self.boxes(tiles)
        roots = [e for step in partial for e in step] + [e for s in stores for e in s.exprs]
        order = walk(reversed(roots))  # which begins with the last one
        if len(order) > MOST:
            raise Unfusable(f"{len(order)} expressions in a thread")
        self.prepare(order, {e for step in partial for e in step}, stores)
        for e in order:
            if e.kind == "float":  # conditions when they are asked for
                self.text(e)
        self.write(stores)
        used = [n for n in self.kernel.buffers if any(key[0] == n for key in self.pointers)]
        return CudaLaunch(self.name, self.function(used), -(-threads // self.strip.threads), self.strip.threads,
                          tuple(used), bool(self.strip.early))  # fmt: skip

    def boxes(self, tiles: Mapping[Axis, tuple[Axis, int]]) -> tuple[list[Store], list[list[Expr]]]:
        """The stores of every result of a thread, and the reductions of all of them after one element, two, ...: in this order a
        row of an image is read when all that need it follow."""
        b, stores = self.builder, self.kernel.stores
        roots = [e for s in stores for e in s.exprs]
        roots, steps = unrolled(b, roots)
        flat, found, partial = [e for step in steps for e in step], list[Store](), list[list[Expr]]()
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
                    found.append(Store(s.buffer, s.at.replaced(change), value, kept))
            partial.append(list(values))
        return found, [list(step) for step in zip(*partial)]

    def inside(self, roots: Sequence[Expr]) -> list[Expr]:
        """The roots without loads from beyond a buffer, where a box reaches over the end of an axis."""
        b = self.builder

        def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op != "load":
                return None
            guard = b.less(e.value[1], index(self.elements(e.value[0])))
            return b.make("load", (*args, guard), e.value, e.kind) if guard.op != "const" else None

        return b.rebuilt(roots, one)

    def elements(self, buffer: str) -> int:
        """Elements from the first to the last one of a buffer."""
        found = self.kernel.buffers[buffer]
        return 1 + sum((d - 1) * s for d, s in zip(found.shape, found.strides))

    def place(self, axes: Sequence[Axis], threads: int) -> None:
        """Where this thread's box lies."""
        self.line(f"const int thread = blockIdx.x * {self.strip.threads} + threadIdx.x;")
        if threads % self.strip.threads:
            self.line(f"if (thread >= {threads}) return;")
        if threads >= WIDE:
            raise Unfusable("more threads than a number has")
        step = 1
        for a in reversed(axes):
            if a.size > 1:
                text = f"thread / {step}" if step > 1 else "thread"
                self.line(f"const int {a.name} = {text}{f' % {a.size}' if step * a.size < threads else ''};")
            step *= a.size

    def prepare(self, order: Sequence[Expr], named: set[Expr], stores: Sequence[Store]) -> None:
        """Count uses, and find what loads lie in one run."""
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
        """Write a line of the body."""
        self.lines.append(f"    {text}")

    def fresh(self, stem: str) -> str:
        """A name that was not there before."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def text(self, e: Expr) -> str:
        """The text of an expression."""
        if e not in self.known:
            self.known[e] = self.value(e)
        return self.known[e]

    def value(self, e: Expr) -> str:
        """The text of a new expression: a name for it where it is long or used again."""
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
        """An element of what is read of a run, in the dtype of arithmetic."""
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

    def pointer(self, run: Run) -> str:
        """The name of the address of a run's first element, without its constant."""
        key = run.buffer, run.terms
        if key not in self.pointers:
            name = self.pointers[key] = self.fresh("p")
            self.line(f"auto* const {name} = {self.param[run.buffer]} + ({self.position(run.terms)});")
        return self.pointers[key]

    def position(self, at: Index) -> str:
        """An index as text."""
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
    def write(self, stores: Sequence[Store]) -> None:
        """Every result, whole runs at once."""
        runs: dict[tuple[Run, int], dict[int, Store]] = {}
        for s in stores:
            buffer = self.kernel.buffers[s.buffer]
            width = aligned(s.at, itemsize(buffer.dtype), self.elements(s.buffer))
            runs.setdefault((run_of(s.buffer, s.at, s.guards, width), width), {})[s.at.const] = s
        for (run, width), found in runs.items():
            for first, size in _whole(sorted(found), width):
                dtype, one = self.kernel.buffers[run.buffer].dtype, found[first]
                condition = f"if ({all_of(list(map(self.text, one.guards)))}) " if one.guards else ""
                name = self.fresh("y")
                self.line(f"Pack<{CTYPES[dtype]}, {size}> {name};")
                for k in range(size):
                    self.line(f"{name}.at[{k}] = {self.stored(found[first + k].value, dtype)};")
                self.line(f"{condition}write({self.pointer(run)}{_offset(first)}, {name});")

    def stored(self, e: Expr, dtype: str) -> str:
        """A value as it is stored."""
        text = self.text(e)
        if e.kind == "float" and self.wide == "float64" and dtype in HALVES:
            text = f"float({text})"
        return f"stored<{CTYPES[dtype]}>({text})"

    def function(self, used: Sequence[str]) -> str:
        """The text of the function around its body."""
        results = {s.buffer for s in self.kernel.stores}
        restrict = "" if self.strip.early else "__restrict__ "
        parameters = [
            f"{'' if n in results else 'const '}{CTYPES[self.kernel.buffers[n].dtype]}* {restrict}{self.param[n]}"
            for n in used
        ]
        early = ["    begin_next();", "    await_previous();"] if self.strip.early else []
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.strip.threads})', f"{self.name}({', '.join(parameters)}) {{",
            *early, *self.lines, "}", "",
        ])  # fmt: skip


def _offset(const: int) -> str:
    return f" + {const}" if const > 0 else f" - {-const}" if const else ""


def _whole(places: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Some places of a run in aligned parts without gaps: (first, elements)."""
    left = list(places)
    while left:
        size = width
        while left[0] % size or left[:size] != list(range(left[0], left[0] + size)):
            size //= 2
        yield left[0], size
        left = left[size:]
