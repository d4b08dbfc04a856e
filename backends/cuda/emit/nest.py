"""Emits loop nests over the elements that one thread holds, and the expressions inside them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, below_maximum, unknown
from ...ir.index import WIDE, Axis, Index
from ...ir.unfusable import Unfusable
from .frame import Local, ThreadFrame, nest_of
from .spelling import CTYPES, enclosed, integer, operation, spelled

_PLAIN = re.compile(r"\w+(\[[\w *+]*\])?(\.at\[\w+\])?|-?[\d.e-]+f?")  # a variable, array element or number


class ThreadNest:
    """Loop nest over the elements that one thread holds along some dimensions; collects CUDA statements per loop until
    `close` writes the nest.

    Values that do not vary along inner loops are hoisted out of them. Along the dimension `lanes` the nest handles
    whole vectors instead of elements; with `inner` (the same dimension), the elements of a vector are the innermost
    loop.
    """

    def __init__(self, emitter: ThreadFrame, dims: Iterable[str], lanes: str = "", inner: str = "") -> None:
        self.emitter, self.lanes = emitter, lanes
        self.dims = tuple(dims)
        self.loops = emitter.loops(self.dims, lanes)
        self.inner = inner
        if inner:
            self.loops.append((f"{inner}_v", inner, emitter.along[inner].vector))
        self.deepest = len(self.loops)
        self.lines: list[list[str]] = [[] for _ in range(self.deepest + 1)]
        self.ends: list[str] = []
        self.known: dict[Expr, str] = {}
        self.places: dict[tuple[str, bool], str] = {}
        self.uses: dict[Expr, int] = {}

    # ------------------------------------------------------------ lines
    def depth(self, dims: Iterable[str]) -> int:
        """Number of loops of the nest inside which a value that varies along `dims` must be computed."""
        there = set(dims)
        return max((i + 1 for i, (_, d, _) in enumerate(self.loops) if d in there), default=0)

    def line(self, text: str) -> None:
        """Add the CUDA statement `text` to the body of the innermost loop."""
        self.lines[self.deepest].append(text)

    def before(self, text: str) -> None:
        """Add the CUDA statement `text` just before the innermost loop, in the loop around it."""
        self.lines[self.deepest - 1].append(text)

    def after(self, text: str) -> None:
        """Add the CUDA statement `text` just after the innermost loop, in the loop around it."""
        self.ends.append(text)

    def close(self) -> None:
        """Write the nest, loops and collected statements, into the emitter's open scope."""
        line = self.emitter.line
        for depth in range(self.deepest + 1):
            if depth:
                name, _, count = self.loops[depth - 1]
                line("    " * (depth - 1) + "#pragma unroll")
                line("    " * (depth - 1) + f"for (int {name} = 0; {name} < {count}; ++{name}) {{")
            for text in self.lines[depth]:
                line("    " * depth + text)
        for depth in range(self.deepest, 0, -1):
            line("    " * (depth - 1) + "}")
            if depth == self.deepest:
                for text in self.ends:
                    line("    " * (depth - 1) + text)

    # ------------------------------------------------------------ coordinates, positions, bounds checks
    def coordinate(self, dim: str, start: bool = False) -> str:
        """CUDA expression of the index along the dimension `dim` of the element that the innermost loop handles; with
        `start`, of the first element of its vector."""
        e, along = self.emitter, self.emitter.along[dim]
        terms = [f"{dim}_0"] if along.threads > 1 or dim in e.walked or self._tiled(dim) else []
        if along.repeat > 1:
            step = along.threads * along.vector
            terms.append(f"{dim}_i * {step}" if step > 1 else f"{dim}_i")
        deep = along.vector > 1 and not start and not (dim == self.lanes and not self.inner)
        if deep:
            terms.append(f"{dim}_v")
        if len(terms) < 2:
            return "".join(terms) or "0"
        if (dim, deep) not in self.places:
            loops = (f"{dim}_i", f"{dim}_v") if deep else (f"{dim}_i",)
            level = max((i + 1 for i, (name, *_) in enumerate(self.loops) if name in loops), default=0)
            name = dim if deep or along.vector == 1 else f"{dim}_1"
            self.lines[level].append(f"const int {name} = {' + '.join(terms)};")
            self.places[dim, deep] = name
        return self.places[dim, deep]

    def _tiled(self, dim: str) -> bool:
        """Whether several blocks cover a dimension."""
        e = self.emitter
        return dim in ("m", "n") and dim not in e.walked and e.extent[dim] > e.along[dim].block

    def axis(self, axis: Axis, start: bool = False) -> str:
        """CUDA expression of the value of `axis` for the element that the innermost loop handles; with `start`, for the
        first element of its vector."""
        e = self.emitter
        if axis in e.shape.batch:
            return axis.name
        if axis in e.columns:
            (axis,) = e.columns[axis].axes
        dim = e.dim_of[axis]
        group = e.groups[dim]
        text = self.coordinate(dim, start and dim == self.lanes)
        if len(group) == 1:
            return text
        step = math.prod(a.size for a in group[group.index(axis) + 1 :])
        text = f"{text} / {step}" if step > 1 else text
        return f"({text})" if axis is group[0] else f"({text} % {axis.size})"

    def position(self, at: Index, picks: Sequence[tuple[Expr, int]], span: int, start: bool = False) -> str:
        """CUDA expression of the index `at` plus the data-dependent terms `picks` (expression, stride), for the element
        that the innermost loop handles; with `start`, for the first element of its vector.

        `span`, the largest possible position, decides between 32-bit and 64-bit arithmetic.
        """
        terms = []
        for atom, c in at.terms:
            inner = self.axis(atom, start) if isinstance(atom, Axis) else (
                f"({self.position(atom.index, (), atom.index.range[1], start)}) {'%' if atom.rest else '/'} {atom.by}")  # fmt: skip
            inner = enclosed(inner)
            factor = f"{c}LL" if span >= WIDE else str(c)
            terms.append(inner if c == 1 and span < WIDE else f"{inner} * {factor}")
        for e, step in picks:
            terms.append(f"(long long){enclosed(self.scalar(e, self.depth(self.emitter.spans(e))))} * {step}")
        if at.const or not terms:
            terms.append(str(at.const))
        return " + ".join(terms).replace("+ -", "- ")

    def mask(self, dim: str) -> str:
        """CUDA expression that is true if a thread's element lies before the end of the dimension `dim`.

        Where vectors divide the axis, one check serves the whole vector.
        """
        e = self.emitter
        whole = e.groups[dim][-1].size % e.along[dim].vector == 0 if e.groups[dim] else True
        return f"{self.coordinate(dim, whole)} < {e.extent[dim]}"

    def masks(self, dims: Iterable[str]) -> list[str]:
        """CUDA expressions of the bounds checks (`mask`) along those of `dims` whose last block is partial."""
        return [self.mask(d) for d in dims if self.emitter.ragged(d)]

    # ------------------------------------------------------------ values
    def at(self, local: Local, whole_vector: bool = False) -> str:
        """CUDA expression of the element of the register variable `local` that the innermost loop handles, or of its
        whole vector (`whole_vector`)."""
        e = self.emitter
        text = local.name
        if e.count(local.dims, local.lanes) > 1 or not (local.lanes or whole_vector or local.name.startswith("v")):
            text = f"{text}[{self.slot(local)}]"
        if local.lanes and not whole_vector:
            text = f"{text}.at[{local.lanes}_v]"
        return text

    def slot(self, local: Local) -> str:
        """CUDA expression of the index, in the per-thread array `local`, of the element or vector that the innermost
        loop handles."""
        loops = self.emitter.loops(local.dims, local.lanes)
        step, terms = math.prod(n for *_, n in loops), []
        for name, _, n in loops:
            step //= n
            terms.append(f"{name} * {step}" if step > 1 else name)
        return " + ".join(terms) or "0"

    def scalar(self, e: Expr, at: int, dtype: str = "") -> str:
        """CUDA expression of the value of `e`, to be used inside the outermost `at` loops of the nest; with `dtype`,
        converted to that storage dtype. Values used several times are first assigned to variables, in the outermost
        loop possible.

        Raises Unfusable for a load or reduction that has not been emitted before.
        """
        if not self.uses:
            self._count(e)
        if dtype:
            return self._stored(e, at, dtype)
        for x in unknown(e, lambda a: a in self.known)[:-1] if self.emitter.long else ():
            if x.op not in ("load", "reduce") or self.emitter.scope.find(x) is not None:
                self._scalar(x, self.depth(self.emitter.spans(x)))
        return self._scalar(e, at)

    def _scalar(self, e: Expr, at: int) -> str:
        if e in self.known:
            return self.known[e]
        own = self.emitter
        local = own.scope.find(e)
        if local is not None:
            text = self.at(local)
            if local.dtype in HALVES:
                text = f"wide({text})"
            if own.wide == "float64" and local.dtype in ("float16", "bfloat16", "float32"):
                text = f"double({text})"
            return self._named(e, text, at)
        if e.op == "const":
            return own.spelling.number(e.value) if e.kind == "float" else integer(e.value)
        if e.op == "index":
            return self.position(e.value, (), e.value.range[1])
        if e.op in ("load", "reduce"):
            raise Unfusable(f"a {e.op} that was not emitted before the loop that uses it")
        depth = self.depth(own.spans(e))
        return self._named(e, self._operation(e, depth), at)

    def _count(self, root: Expr) -> None:
        """Count the uses of each operand in the nest of an expression."""
        for x in nest_of(root):
            for a in x.args:
                self.uses[a] = self.uses.get(a, 0) + 1

    def _stored(self, e: Expr, at: int, dtype: str) -> str:
        """Text of a value converted to a storage dtype."""
        local = self.emitter.scope.find(e)
        if local is not None and local.dtype == dtype:
            return self.at(local)
        text = self.scalar(e, at)
        if e.kind == "float" and self.emitter.wide == "float64" and dtype in HALVES:
            text = f"float({text})"
        if e.kind != "float" and dtype in HALVES:
            text = f"float({text})"
        floats = e.kind == "float" or dtype in HALVES
        return f"stored<{CTYPES[dtype]}>({text})" if floats else f"{spelled(CTYPES[dtype])}({text})"

    def _named(self, e: Expr, text: str, at: int) -> str:
        """The text itself if it is short, used once and needed at this depth.

        Else a variable defined in the outermost possible loop.
        """
        depth = self.depth(self.emitter.spans(e))
        plain = _PLAIN.fullmatch(text) is not None
        if plain or (self.uses.get(e, 0) <= 1 and depth == at and len(text) < 60):
            self.known[e] = text
            return text
        name = self.emitter.fresh("t")
        self.lines[depth].append(f"const auto {name} = {text};")
        self.known[e] = name
        return name

    def _operation(self, e: Expr, depth: int) -> str:
        """Text of an elementwise operation; exp(a - max(a)) is guarded against a maximum of -inf."""
        if (shifted := below_maximum(e)) is not None:
            a, m = shifted
            top = self.scalar(m, self.depth(self.emitter.spans(m)))
            if not self.emitter.is_safe(m):
                top = self._safe(m, top)
            return f"op::{e.op}({enclosed(self.scalar(a, depth))} - {enclosed(top)})"
        own = self.emitter
        return operation(e, lambda a: self.scalar(a, depth), own.wide, own.results)

    def _safe(self, m: Expr, top: str) -> str:
        """Variable with a maximum in which -inf is replaced by 0."""
        level = self.depth(self.emitter.spans(m))
        key = f"op::finite({top})"
        for line in self.lines[level]:
            if line.endswith(f" = {key};"):
                return line.split()[2]
        name = self.emitter.fresh("safe")
        self.lines[level].append(f"const auto {name} = {key};")
        return name
