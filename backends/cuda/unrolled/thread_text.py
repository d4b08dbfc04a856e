"""Writes the CUDA C++ text of what one thread computes, fully unrolled: expressions that differ by constants in their
indices share loads.

Equal expressions are computed once. Loads whose constant offsets lie in one aligned run of memory become one access of
up to 16 bytes, and so do stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....egraph.types.dtypes import HALVES, itemsize
from ...ir.expr import Builder, Expr
from ...ir.index import WIDE, Axis, Index
from ...ir.kernel import Kernel, OutputStore
from ..emit.spelling import CTYPES, SPELLINGS, all_of, enclosed, integer, operation, span
from .aligned_runs import AlignedRun, aligned, aligned_vectors, covering, run_of

INLINE = 60  # characters up to which an expression is inlined instead of named


class ThreadText:
    """Text of the expressions of one thread of `kernel`, emitted as they are asked for. `name`: of the CUDA function;
    `threads`: of a block; `early`: programmatic dependent launch."""

    def __init__(self, kernel: Kernel, name: str, threads: int, early: bool) -> None:
        self.kernel, self.name, self.threads, self.early, self.builder = kernel, name, threads, early, Builder()
        self.wide = kernel.compute_dtype
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

    def prepare(self, order: Sequence[Expr], named: set[Expr], stores: Sequence[OutputStore]) -> None:
        """Count the uses of the expressions `order` (operands first), and group their loads by aligned run (contiguous
        elements within one aligned access of up to 16 bytes), so that each run is loaded once.

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
                width = aligned(at, itemsize(dtype), self.kernel.buffers[operand].span)
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

    def coordinates(self, axes: Sequence[Axis], number: str) -> None:
        """Emit variables for the coordinates along `axes` of the element with this number in row-major order; `number`:
        a variable."""
        step = 1
        for a in reversed(axes):
            self.line(f"const int {a.name} = {number} / {step} % {a.size};")
            step *= a.size

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
        wide = span(at, ()) >= WIDE
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
            width = aligned(s.at, itemsize(buffer.dtype), buffer.span)
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
        restrict = "" if self.early else "__restrict__ "
        parameters = [
            f"{'' if n in results else 'const '}{CTYPES[self.kernel.buffers[n].dtype]}* {restrict}{self.param[n]}"
            for n in used
        ]
        early = ["    begin_next();", "    await_previous();"] if self.early else []
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.threads})',
            f"{self.name}({', '.join(parameters)}) {{",
            *early, *self.lines, "}", "",
        ])  # fmt: skip


def _offset(const: int) -> str:
    return f" + {const}" if const > 0 else f" - {-const}" if const else ""


__all__ = ["ThreadText"]
