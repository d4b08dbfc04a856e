"""Holds the state of the emitter of one CUDA kernel in a thread layout: its dimensions, the nested scopes of emitted
text, and the values that are already in variables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.expr import Expr
from ...ir.index import Axis, index
from ...ir.kernel import Buffer, Kernel
from ...ir.scopes import SourceScope, Writer
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from .spelling import CTYPES, SPELLINGS
from .thread_layout import DimensionThreads, ThreadLayout

WRITTEN = 2000  # limit of operations over all loop nests: values needed by several nests are emitted in each

_PLAIN = re.compile(r"(x|out|part)\d*")  # names of buffers that are no words of CUDA C++


@dataclass(frozen=True)
class Local:
    """Register variable `name` of the element type `dtype`: an array of the elements that a thread holds along `dims`.

    Elements along `lanes` (one of these dimensions) are packed in vectors; "": no vectors.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    lanes: str = ""


@dataclass
class CudaScope(SourceScope[Local]):
    """Scope of emitted CUDA text. `safe`: maxima that the text in it knows not to be -inf."""

    safe: set[Expr] = field(default_factory=set)  # maxima known not to be -inf


class ThreadFrame(Writer[CudaScope]):
    """State of the emission of one kernel in a thread layout: the text so far, and the values that are in variables.

    Dimensions are "m" (rows), "n" (columns) and one per reduction axis. `walked` holds the dimensions that a block does
    not cover and that are therefore looped over sequentially. `wide` is the compute dtype. `constant` names operands
    that no earlier kernel of the program writes (`Call.constant`): with programmatic dependent launch they are read
    before the wait for the previous kernel.
    """

    def __init__(
        self, kernel: Kernel, layout: ThreadLayout, name: str, shape: Shape, constant: frozenset[str] = frozenset()
    ) -> None:
        self.kernel, self.layout, self.name, self.shape = kernel, layout, name, shape
        self.wide = kernel.compute_dtype
        self.spelling = SPELLINGS[self.wide]
        self.results = frozenset(kernel.buffers[s.buffer].dtype for s in kernel.stores)
        own = [a for a in shape.inner if a not in shape.joined]
        self.order = ["m", *(a.name for a in own), "n"]
        self.groups: dict[str, tuple[Axis, ...]] = {"m": shape.rows, "n": shape.cols, **{a.name: (a,) for a in own}}
        self.extent = {d: math.prod(a.size for a in g) for d, g in self.groups.items()}
        self.along = {d: layout.dims.get(d, DimensionThreads()) for d in self.order}
        self.walked = {a.name for a in own if self.along[a.name].block < a.size}
        self.walked |= {layout.seen} & self.groups.keys()
        if shape.joined and self.along["n"].block < shape.n:
            self.walked.add("n")
        self.dim_of = {a: d for d, g in self.groups.items() for a in g} | dict.fromkeys(shape.joined, "n")
        for owners in ([layout.shared.get(d, d) for d in self.spans(e)] for e in kernel.exprs if layout.shared):
            if len({*owners}) < len(owners):
                raise Unfusable("a value that varies along two dimensions mapped to the same threads")
        bound = {a for d, g in self.groups.items() for a in g if d not in self.walked} | {*shape.batch}
        self.scope = self.top = CudaScope(1, bound)
        self.ahead = CudaScope(1, set(bound))  # statements before the wait for the previous kernel
        self.constant = constant if layout.early else frozenset()
        self.shared = 0
        self.fresh_loads = False  # whether loads read partial results of other blocks (must bypass L1)
        self.long = kernel.long
        self.columns = {r: index(c) for r, c in shape.joined.items()}
        self.stages = self._stages()
        self.counts: dict[str, int] = {}  # elements per accumulator
        self.place: dict[str, str] = {}  # text of the block's tile index along rows and columns
        self.rings: list[str] = []  # declarations of shared-memory prefetch rings
        self.ring_bytes = 0
        self.codes = 0  # vectors of 16 bytes in the ring of a packed skinny GEMM, which partial sums overwrite
        self.warm: list[str] = []  # statements before the wait for the previous kernel
        self.beside: dict[str, str] = {}  # name -> further library text that the kernel needs
        self.param = {b: b if _PLAIN.fullmatch(b) else f"{b}_" for b in kernel.buffers}

    def dims(self, axes: Iterable[Axis]) -> tuple[str, ...]:
        """The dimensions ("m", "n" or a reduction axis) that `axes` belong to, in the layout's order; batch axes have
        none. Raises Unfusable if another axis is in no dimension."""
        found = {self.dim_of.get(a, "") for a in axes if a not in self.shape.batch}
        if "" in found:
            raise Unfusable("an axis that the thread layout does not cover")
        return tuple(d for d in self.order if d in found)

    def spans(self, e: Expr) -> tuple[str, ...]:
        """Dimensions along which the value of the expression `e` varies, in the layout's order."""
        return self.dims(e.axes)

    def loops(self, dims: Iterable[str], lanes: str = "") -> list[tuple[str, str, int]]:
        """Loops over the elements that a thread holds along `dims`, as (loop variable, dimension, number of
        iterations).

        Left out: loops of one iteration, and the loop over the elements of a vector along the dimension `lanes`.
        """
        there = [d for d in self.order if d in set(dims)]
        found = [(f"{d}_i", d, self.along[d].repeat) for d in there]
        found += [(f"{d}_v", d, self.along[d].vector) for d in there if d != lanes]
        return [x for x in found if x[2] > 1]

    def count(self, dims: Iterable[str], lanes: str = "") -> int:
        """Number of elements that a thread holds along `dims`; a vector along the dimension `lanes` counts as one."""
        return math.prod(n for *_, n in self.loops(dims, lanes))

    def ragged(self, dim: str) -> bool:
        """Whether the last block along the dimension `dim` reaches beyond its end, so that bounds are checked."""
        return self.extent[dim] % self.along[dim].block != 0

    def in_column(self, e: Expr) -> Expr:
        """The expression `e` with each reduction axis that runs over the elements of a column axis (`Shape.joined`)
        replaced by that column axis."""
        if not e.axes & self.columns.keys():
            return e
        args = tuple(self.in_column(a) for a in e.args)
        b = self.kernel.builder
        if e.op == "index":
            return b.index(e.value.replaced(self.columns))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            return b.make("load", args, (operand, at.replaced(self.columns), steps, dtype), e.kind)
        return b.make(e.op, args, e.value, e.kind)

    def _stages(self) -> dict[Expr, int]:
        """Number of loop nests (reduction bodies and results) that need each value."""
        found: dict[Expr, int] = {}
        roots = [self.in_column(e.args[0]) for e in self.kernel.reductions]
        roots += [e for s in self.kernel.stores for e in s.exprs]
        for root in dict.fromkeys(roots):
            for e in nest_of(root):
                found[e] = found.get(e, 0) + 1
        if sum(found.values()) > WRITTEN:
            raise Unfusable(f"more than {WRITTEN} operations in all loops together")
        return found

    def before_wait(self, e: Expr) -> bool:
        """Whether the load `e` may be issued before the wait for the previous kernel: it reads an operand that no
        earlier kernel writes, at a position that depends on no data, only on the thread and loop indices."""
        return e.value[0] in self.constant and all(a.op in ("const", "index") for a in e.args)

    def is_safe(self, e: Expr) -> bool:
        """Whether the maximum `e` is known not to be -inf in the open scope, so that exp(a - max) needs no check."""
        return any(e in scope.safe for scope in self.scope.outward())

    def thread(self, dim: str) -> str:
        """CUDA expression of the index, relative to the block, of the first element that a thread holds along `dim`; ""
        if only one thread lies along it, which begins at 0."""
        along, stride = self.along[dim], self.layout.stride(dim)
        if along.threads == 1:
            return ""
        above = self.layout.threads > stride * along.threads
        text = f"thread / {stride}" if stride > 1 else "thread"
        text = f"{text} % {along.threads}" if above else text
        return f"{text} * {along.vector}" if along.vector > 1 and not above else (
            f"({text}) * {along.vector}" if along.vector > 1 else text)  # fmt: skip

    def lane(self, dim: str) -> str:
        """CUDA expression of the thread's number among the threads along `dim`."""
        stride, threads = self.layout.stride(dim), self.layout.dims[dim].threads
        text = f"thread / {stride}" if stride > 1 else "thread"
        return f"{text} % {threads}" if self.layout.threads > stride * threads else text

    def parameter(self, name: str, buffer: Buffer, written: bool) -> str:
        """CUDA declaration of the function parameter for the buffer `name`: a result if `written`, otherwise a `const`
        operand.

        `__restrict__` lets the compiler use the read-only cache. It is left out under programmatic dependent launch,
        where the previous kernel may still write.
        """
        plain = self.layout.early or name.startswith("part")
        return (
            f"{'' if written else 'const '}{CTYPES[buffer.dtype]}* {'' if plain else '__restrict__ '}{self.param[name]}"
        )


@dataclass(eq=False)
class CudaPart:
    """Base of the CUDA emitter's parts, such as loads or stores: they share a frame (the emitter's state) and write
    into its open scope."""

    frame: ThreadFrame

    def __post_init__(self) -> None:
        frame = self.frame
        self.kernel, self.shape, self.layout = frame.kernel, frame.shape, frame.layout
        self.line, self.fresh, self.inside = frame.line, frame.fresh, frame.inside


def nest_of(root: Expr) -> list[Expr]:
    """All expressions that one loop nest computes for the expression `root`: reductions and loads are among them, but
    not what these depend on."""
    order: dict[Expr, None] = {}
    stack = [root]
    while stack:
        e = stack.pop()
        if e not in order:
            order[e] = None
            if e.op not in ("reduce", "load"):
                stack += reversed(e.args)
    return list(order)
