"""Emits C functions from the kernel IR: parallel loops, loop-invariant code motion, reduction loops, vectorizable
innermost loops.

    void softmax(const float *restrict x0, float *restrict out)
    {
        #pragma omp parallel for schedule(static)
        for (long i0 = 0; i0 < 128; i0++) {
            float row0[768];
            float v0 = -INFINITY; ...

Row reductions run along contiguous memory, inside the loops of the parallel axes they depend on. Column reductions,
whose operands are contiguous along a parallel axis instead, iterate over that axis in blocks, each with an array of
accumulators. Expensive values of a row that several loops need are kept in a row buffer (`row0`). Only sums are
reassociated, in vector lanes (`omp simd reduction`). Products and sums round separately (no FMA contraction by the
compiler); NaN, infinities and signed zeros behave as in NumPy.

emit/nest.py builds the loop nest, emit/values.py evaluates expressions, this module assembles the function. Attention
of few rows has loops of its own (emit/attention.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.expr import Expr
from ...ir.index import Axis
from ...ir.kernel import Kernel, OutputStore
from ...ir.op_texts import costly
from ...ir.unfusable import Unfusable
from .attention import AttentionWriter, few_row_attention
from .blocked import LANES
from .lane_loops import in_lanes, stores_in_lanes, whole_lanes
from .nest import LoopScope
from .spelling import TYPES, stored

COSTLY = 8.0  # work of a costly operation, in additions
#: Work of other operations, in additions; 1 for those that are not named.
WEIGHTS = {
    "div": 3.0,
    "sqrt": 4.0,
    "rsqrt": 5.0,
    "recip": 3.0,
    "const": 0.0,
    "index": 0.0,
}
BLOCK, LEAST = 2048, 256  # accumulators in a line: maximum, and minimum if threads share the lines
CONSTANT_ROW = 1024  # elements of an array of values that are computed once for all outer loops
TILE = 16  # tile edge of a transposing copy
PARALLEL = 500_000.0  # work (in additions) from which several threads pay off: about 10 µs


def emit(kernel: Kernel, name: str, doc: str = "", integers: bool = True) -> str:
    """C function of `kernel`: `void name(operands..., out)`. `doc`: text of the comment before it. `integers`: sums
    over packed numbers may be integer dot products (emit/integer_dots.py).

    Raises Unfusable if an operation has no C text.
    """
    return FunctionWriter(kernel, name, integers).function(doc)


def work(kernel: Kernel) -> float:
    """Number of operations that `kernel` computes over all of its axes, weighted by cost in units of one addition."""
    extra = {e: prod(a.size for a in e.axes) for e in kernel.exprs}
    bodies = {e.args[0] for e in kernel.reductions}
    return sum(
        n * (COSTLY if costly(e.op) else WEIGHTS.get(e.op, 1.0)) + (n if e in bodies else 0.0) for e, n in extra.items()
    )


class FunctionWriter(AttentionWriter):
    """Writer of the C function of one kernel: its signature, then its loops."""

    def function(self, doc: str) -> str:
        """C text of the whole function, with the comment `doc` before it ("": none)."""
        top = LoopScope(None, None, [self._signature()])
        top.items += self._carried()
        attention = few_row_attention(self.kernel)
        if attention is not None:
            self.body(attention, top)
        else:
            self.parallel = work(self.kernel) >= PARALLEL and not any(map(self._scattered, self.axes))
            self._loops(top)
        comment = [f"/* {doc.replace('*/', '* /')} */"] if doc else []
        return "\n".join([*comment, *_brace_on_its_own(top.text(0))])

    def _signature(self) -> str:
        results = {s.buffer for s in self.kernel.stores}
        operands = [
            f"{'' if n in results else 'const '}{TYPES[b.dtype]} *restrict {n}" for n, b in self.kernel.buffers.items()
        ]
        return f"void {self.name}({', '.join(operands)})"

    def _carried(self) -> list[str]:
        """C statements that copy an operand of which a scatter overwrites some elements, unless the result is in the
        operand's memory. The operand is the one that no expression loads. Raises Unfusable if it has gaps."""
        known = {e.value[0] for e in self.kernel.exprs if e.op == "load"} | {s.buffer for s in self.kernel.stores}
        unread = {n: b for n, b in self.kernel.buffers.items() if n not in known}
        copies = []
        for base, buffer in unread.items():
            for out in {s.buffer for s in self.kernel.stores if self.kernel.buffers[s.buffer] == buffer}:
                size = prod(buffer.shape)
                if size != buffer.span:
                    raise Unfusable("copying a buffer that is not contiguous")
                copies.append(f"if ({out} != {base}) __builtin_memcpy({out}, {base}, {size} * sizeof *{out});")
        return copies

    def _loops(self, top: LoopScope) -> None:
        scope = top
        outer = self.axes if not self.columns else self.axes[:-1]
        turned = self._turned() if not self.kernel.reductions else None
        if turned is not None:
            scope = self._tiled(top, turned)
        else:
            rows = self._constant_rows()
            scope = self._filled_rows(scope, self.inner, rows) if rows and self.inner is not None else scope
            for axis in outer if self.columns else outer[:-1]:
                scope = self._loop(scope, axis)
        if self.columns:
            scope = self._blocks(scope)
            self._store(scope)
        elif turned is not None or self.inner is None:
            self._store(scope)
        else:
            self._innermost(scope, self.inner)
        while scope.parent is not None:
            scope.close()
            scope = scope.parent

    def _constant_rows(self) -> list[Expr]:
        """Expensive values that depend on the innermost axis only, and are computed once for all outer loops: gates of
        channels, for example. None in kernels with reductions."""
        if len(self.axes) < 2 or self.kernel.reductions or self.wide:
            return []
        found = {e for e in self._costly() if e.axes == {self.inner}}
        users = [(e, a) for e in self.kernel.exprs for a in e.args if a in found and e not in found]
        users += [(s.value, s.value) for s in self.kernel.stores if s.value in found]
        return sorted({a for _, a in users}, key=lambda e: e.number)

    def _filled_rows(self, scope: LoopScope, axis: Axis, values: list[Expr]) -> LoopScope:
        """Open a loop over blocks of the innermost axis, and write loops that fill an array with each of `values`."""
        made = scope.opened(None, f"for (long first = 0; first < {axis.size}; first += {CONSTANT_ROW})")
        made.items.append(
            f"const long past = first + {CONSTANT_ROW} < {axis.size} ? first + {CONSTANT_ROW} : {axis.size};"
        )
        for e in values:
            name, line = self._fresh("row"), self._line(made)
            made.items.append(f"float {name}[{CONSTANT_ROW}];")
            line.items.append(f"{name}[{axis} - first] = {self.value(e, line)};")
            self._vector(line)
            line.close()
            self.lines[e] = name
        return made

    def _innermost(self, scope: LoopScope, axis: Axis) -> None:
        """Write the innermost loop inside `scope`: in vectors of 16 elements if these are faster (emit/lane_loops.py),
        and over single elements for the rest, or for all of them."""
        begin, end = ("first", "past") if self.lines else ("0", str(axis.size))
        whole = whole_lanes(begin, end)
        loop = scope.opened(axis, f"for (long {axis} = {begin}; {axis} < {whole}; {axis} += {LANES})")
        if self._stored_in_lanes(loop):
            self._shared(loop, axis.size // LANES)
            loop.close()
            begin = whole
        rest = scope.opened(axis, f"for (long {axis} = {begin}; {axis} < {end}; {axis}++)")
        if begin != whole:
            self._shared(rest, axis.size)
        self._store(rest)
        rest.close()

    def _stored_in_lanes(self, loop: LoopScope) -> bool:
        """Write the body of a loop over vectors that computes and stores all results; False, and nothing written, if
        that is impossible or not faster."""
        stores, axis = self.kernel.stores, self.inner
        if self.wide or axis is None or not stores_in_lanes(self.kernel, axis):
            return False
        if not in_lanes([s.value for s in stores], axis, lambda e: self._kept_at(e, loop) is not None):
            return False
        for e in self.kernel.reductions:
            if e.axes <= loop.bound:
                self.value(e, loop)
        lanes = self._lanes(axis, loop)
        for store in stores:
            value = lanes.value(store.value)
            lanes.lines.append(f"__builtin_memcpy({store.buffer} + {self._at(store.at)}, &{value}, {4 * LANES});")
        loop.items += lanes.lines
        return True

    def _loop(self, scope: LoopScope, axis: Axis) -> LoopScope:
        made = scope.opened(axis, f"for (long {axis} = 0; {axis} < {axis.size}; {axis}++)")
        self._shared(made, axis.size)
        return made

    def _shared(self, scope: LoopScope, count: int, few: int = 8) -> None:
        """Parallelize a loop of `count` iterations if these are at least `few` and no loop around it is parallel."""
        if self.parallel and count >= few:
            scope.head.insert(0, "#pragma omp parallel for schedule(static)")
            self.parallel = False

    def _blocks(self, scope: LoopScope) -> LoopScope:
        """Open a loop over blocks of the innermost axis."""
        axis = self.inner
        assert axis is not None
        size = min(BLOCK, max(LEAST, -(-axis.size // 8))) if self.parallel else BLOCK
        made = scope.opened(None, f"for (long first = 0; first < {axis.size}; first += {size})")
        self.block = min(size, axis.size)
        made.items.append(f"const long past = first + {size} < {axis.size} ? first + {size} : {axis.size};")
        self._shared(made, -(-axis.size // size), 2)
        return made

    def _turned(self) -> Axis | None:
        """A parallel axis along which some operand is contiguous while strided along the innermost axis; None without
        one."""
        for e in self.kernel.exprs:
            if e.op == "load" and self.inner in e.value[1].axes and abs(e.value[1].coefficient(self.inner)) > 1:
                for axis in self.axes[:-1]:
                    if abs(e.value[1].coefficient(axis)) == 1 and axis.size >= 4:
                        return axis
        return None

    def _tiled(self, scope: LoopScope, turned: Axis) -> LoopScope:
        """Open loops over all axes, tiled over the axis `turned` and the innermost one for cache locality of a
        transposing access."""
        inner = self.inner
        assert inner is not None
        for axis in (a for a in self.axes if a not in (turned, inner)):
            scope = self._loop(scope, axis)
        for axis in (turned, inner):
            scope = scope.opened(None, f"for (long {axis}t = 0; {axis}t < {axis.size}; {axis}t += {TILE})")
            self._shared(scope, -(-axis.size // TILE))
        for axis in (turned, inner):
            end = (
                f"{axis}t + {TILE}"
                if axis.size % TILE == 0
                else f"({axis}t + {TILE} < {axis.size} ? {axis}t + {TILE} : {axis.size})"
            )
            scope = scope.opened(axis, f"for (long {axis} = {axis}t; {axis} < {end}; {axis}++)")
        return scope

    def _store(self, scope: LoopScope) -> None:
        place = self._line(scope) if self.columns else scope
        for e in self.kernel.reductions:  # loops that fill row buffers come before those that read them
            if self.columns and self.inner in e.axes:
                self._accumulated(e, scope)
            elif e.axes <= place.bound:
                self.value(e, place)
        for store in self.kernel.stores:
            value, guards = self.value(store.value, place), [f"({self.value(g, place)})" for g in store.guards]
            here = self._place_of(store, place)
            steps = [f"{self.value(e, place)} * {step}" for e, step in store.parts]  # guards keep them in bounds
            at = " + ".join([self._at(store.at), *steps])
            line = f"{store.buffer}[{at}] = {stored(value, self.kernel.buffers[store.buffer].dtype)};"
            here.items.append(f"if ({' & '.join(guards)}) {line}" if guards else line)
        if not self._scattered(self.inner):
            self._vector(place)
        if self.columns:
            place.close()

    def _scattered(self, axis: Axis | None) -> bool:
        """Whether data-dependent store positions vary along an axis.

        Such a loop is not vectorized, so that of several values for one position the last one remains.
        """
        return any(axis in e.axes for s in self.kernel.stores for e, _ in s.parts)

    @staticmethod
    def _place_of(store: OutputStore, scope: LoopScope) -> LoopScope:
        """The outermost scope where a store's position and value are known."""
        needed = store.at.axes.union(store.value.axes, *(g.axes for g in store.guards))
        while scope.parent is not None and needed <= scope.parent.bound:
            scope = scope.parent
        if not scope.bound <= needed:
            raise Unfusable("an output that does not vary along an outer loop's axis")
        return scope


def _brace_on_its_own(lines: Iterator[str]) -> Iterator[str]:
    """The lines with the function's opening brace on its own line."""
    first = next(lines)
    yield first.removesuffix(" {")
    yield "{"
    yield from lines
