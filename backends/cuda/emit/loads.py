"""Emits loads into registers: vectorized where contiguous, prefetched through shared memory where the layout says
so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from ....egraph.types.dtypes import itemsize
from ...ir.expr import Expr, unknown
from ...ir.index import Index
from ...ir.op_texts import costly
from ...ir.unfusable import Unfusable
from .frame import CudaPart, CudaScope, Local, nest_of
from .nest import ThreadNest
from .spelling import CTYPES, all_of, plus, span
from .thread_layout import is_uniform, is_vectorizable

WARM = 48 << 10  # bytes of a matrix that a block has prefetched: what an SM reads in about two microseconds
MAX_HELD_BYTES = 512  # limit in bytes of one value in a thread's registers


def no_reduction(e: Expr) -> None:
    """Raise Unfusable. This is the default of `ThreadLoads.reduce`, for emitters whose only reductions are matrix
    products, which they emit themselves."""
    raise Unfusable("a reduction beside products")


@dataclass(eq=False)
class ThreadLoads(CudaPart):
    """Emitter part for loads, and for values that are computed before the loop nests that use them. `reduce` is called
    with a reduction that such a value needs, and emits its computation into registers."""

    reduce: Callable[[Expr], None] = field(default=no_reduction, init=False)

    def need(self, e: Expr) -> None:
        """Emit what must be in registers before a loop nest computes `e`: its loads and reductions, and the values that
        several nests share, as far as they have not been emitted yet."""
        frame, few = self.frame, self._few(e)
        for x in unknown(e, lambda a: frame.scope.find(a) is not None or a.op in ("const", "index")):
            if frame.scope.find(x) is not None:  # computed along with another reduction
                continue
            if x.op == "reduce":
                self.reduce(x)
                continue
            if x.op == "load":
                for a in x.args:
                    self.need(a)
            home = frame.home(x)
            if x.op == "load":
                with self.inside(frame.ahead if home is frame.top and frame.before_wait(x) else home):
                    home.known[x] = self.load(x)
            elif home is frame.top and (
                x in few or (costly(x.op) and frame.stages.get(x, 0) > 1 and self._held(x) > 1)
            ):
                with self.inside(home):
                    home.known[x] = self.kept(x)

    def _held(self, e: Expr) -> int:
        """Elements of a value that a thread holds."""
        return self.frame.count(self.frame.spans(e))

    def _few(self, e: Expr) -> frozenset[Expr]:
        """Values in an expression that attention computes once, before its loop over positions: those with fewer
        elements than the values computed from them, such as normalized queries."""
        if not self.layout.shared:
            return frozenset()
        plain = ("load", "reduce", "const", "index")
        pairs = ((x, a) for x in nest_of(e) for a in (x.args if x.op not in plain else ()))
        return frozenset(
            a for x, a in pairs if a.op not in plain and a.kind == "float" and self._held(a) < self._held(x)
        )

    def load(self, e: Expr) -> Local:
        """Emit the load `e` of all elements that a thread holds, vectorized where they are contiguous; returns the
        register variable.

        Raises Unfusable if they need too many registers (`check_held`).
        """
        frame = self.frame
        operand, at, steps, dtype = e.value
        dims = frame.spans(e)
        lanes = next((d for d in dims if self.vectorized(at, d, dtype, e.args, steps)), "")
        width = frame.along[lanes].vector if lanes else 1
        ctype = CTYPES[dtype]
        whole = f"Pack<{ctype}, {width}>" if lanes else ctype
        count = frame.count(dims, lanes)
        self.check_held(
            count * width * (8 if dtype in ("float64", "int64") else 4 if dtype in ("float32", "int32") else 2)
        )
        name = self.fresh("v")
        nest = ThreadNest(frame, dims, lanes)
        place = nest.position(at, [*zip(e.args, steps)], span(at, steps))
        recent = frame.fresh_loads and operand.startswith("part")
        read = f"read{'_recent' if recent else ''}<{width}>({frame.param[operand]} + {place})" if lanes else (
            f"recent({frame.param[operand]} + {place})" if recent else f"{frame.param[operand]}[{place}]")  # fmt: skip
        conditions = [*nest.masks(dims), *(nest.scalar(g, nest.depth(frame.spans(g))) for g in e.args[len(steps) :])]
        if conditions:
            nothing = f"{whole}{{}}" if lanes or ctype in ("bf16", "f16") else "0"
            read = f"{all_of(conditions)} ? {read} : {nothing}"
        local = Local(name, dims, dtype, lanes)
        nest.line(f"{nest.at(local, whole_vector=True)} = {read};")
        self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
        nest.close()
        return local

    def vectorized(self, at: Index, dim: str, dtype: str, args: Sequence[Expr], steps: Sequence[int]) -> bool:
        """Whether a load of an operand of `dtype` at index `at` can be vectorized along the dimension `dim`.

        `args`: data-dependent terms of the position, whose strides are `steps`, then guards (see `Expr`).
        """
        frame = self.frame
        width, group = frame.along[dim].vector, frame.groups[dim]
        picks, guards = args[: len(steps)], args[len(steps) :]
        if width == 1 or not group or any(dim in frame.spans(a) for a in picks):
            return False
        if any(dim in frame.spans(g) and not is_uniform(g, group[-1], width) for g in guards):
            return False
        return is_vectorizable(at, group[-1], width, itemsize(dtype)) and all(s % width == 0 for s in steps)

    def kept(self, e: Expr) -> Local:
        """Emit the computation of `e` into registers, for use in several loop nests; returns the register variable.

        Raises Unfusable for integers and bools, and if it needs too many registers (`check_held`).
        """
        frame = self.frame
        dims = frame.spans(e)
        count = frame.count(dims)
        self.check_held(4 * count)
        local = Local(self.fresh("t"), dims, frame.wide if e.kind == "float" else "")
        if e.kind != "float":
            raise Unfusable("integer values kept in registers")
        nest = ThreadNest(frame, dims)
        nest.line(f"{nest.at(local)} = {nest.scalar(e, nest.deepest)};")
        self.line(f"{CTYPES[frame.wide]} {local.name}[{count}];")
        nest.close()
        return local

    def check_held(self, nbytes: int) -> None:
        """Raise Unfusable if `nbytes`, what one value takes in a thread's registers, is more than `MAX_HELD_BYTES`."""
        if nbytes > MAX_HELD_BYTES:
            raise Unfusable(f"{nbytes} bytes of one value per thread, more than {MAX_HELD_BYTES} bytes of registers")

    def fetch(self, e: Expr, inner: CudaScope, fetched: CudaScope) -> None:
        """Emit a prefetch of the 16-byte vectors of the load `e` by cp.async into a ring buffer in shared memory, in
        which each thread has its own slots. The copies into the ring are written to the scope `fetched`, the reads from
        it to `inner`. Nothing is emitted for loads without such vectors."""
        frame = self.frame
        operand, at, _, dtype = e.value
        dims = frame.spans(e)
        lanes = next((d for d in dims if self.vectorized(at, d, dtype, (), ())), "")
        if not lanes or frame.along[lanes].vector * itemsize(dtype) != 16:
            return
        count, threads = frame.count(dims, lanes), self.layout.threads
        name, whole = self.fresh("v"), f"Pack<{CTYPES[dtype]}, {frame.along[lanes].vector}>"
        ring, local = f"ring{name[1:]}", Local(name, dims, dtype, lanes)
        frame.ring_bytes += 16 * (self.layout.ahead + 1) * count * threads
        frame.rings.append(f"    __shared__ {whole} {ring}[{(self.layout.ahead + 1) * count * threads}];")
        for scope in (fetched, inner):
            with self.inside(scope):
                nest = ThreadNest(frame, dims, lanes)
                own = f"{ring}[(round * {count} + {nest.slot(local)}) * {threads} + thread]"
                masks = all_of(nest.masks(dims)) if nest.masks(dims) else ""
                if scope is fetched:
                    place = nest.position(at, (), span(at, ()))
                    nest.line(f"{f'if ({masks}) ' if masks else ''}fetch({own}, {frame.param[operand]} + {place});")
                else:
                    self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
                    nest.line(
                        f"{nest.at(local, whole_vector=True)} = {f'{masks} ? {own} : {whole}{{}}' if masks else own};"
                    )
                nest.close()
        inner.known[e] = local

    def warm(self, bodies: Iterable[Expr], dim: str) -> None:
        """Emit prefetches into L2 of the first `WARM` bytes that a block reads of each matrix in `bodies`, the
        expressions that are reduced along the dimension `dim`.

        They are placed before the wait for the previous kernel. That is safe even if that kernel still writes the
        memory, since its writes go through the same L2.
        """
        frame = self.frame
        found = dict.fromkeys(x for body in bodies for x in nest_of(body))
        matrices = [x for x in found if x.op == "load" and not x.args and {"n", dim} <= {*frame.spans(x)}]
        if dim not in frame.walked:  # others are in registers by then
            matrices = [x for x in matrices if not frame.before_wait(x)]
        size, step = frame.extent[dim], frame.along[dim].block
        for e in matrices:
            operand, at, _, dtype = e.value
            dims = frame.spans(e)
            lanes = next((d for d in dims if self.vectorized(at, d, dtype, e.args, ())), "")
            width = itemsize(dtype) * (frame.along[lanes].vector if lanes else 1)
            each = itemsize(dtype) * prod(frame.along[d].block for d in dims)
            rounds = min(-(-size // step), max(1, WARM // each))
            scope = CudaScope(1, set(frame.top.bound) | {*frame.groups[dim]}, outside=frame.top)
            with self.inside(scope):
                walked = dim in frame.walked
                if walked:
                    self.line(
                        f"for (int {dim}_block = 0; {dim}_block < {min(size, rounds * step)}; {dim}_block += {step}) {{"
                    )
                    self.line(f"const int {dim}_0 = {dim}_block{plus(frame.thread(dim))};")
                nest = ThreadNest(frame, dims, lanes)
                masks = nest.masks(dims)
                place = f"{frame.param[operand]} + {nest.position(at, (), span(at, ()))}"
                nest.line(f"{f'if ({all_of(masks)}) ' if masks else ''}warm<{width}>({place});")
                nest.close()
                if walked:
                    self.line("}")
            frame.warm += scope.lines

    def early_loads(self) -> None:
        """Emit, before the main loop, those loads of the epilogue whose positions depend on nothing computed or loaded
        and that need few registers (at most 8 values per thread)."""
        frame = self.frame
        for store in self.kernel.stores:
            for e in nest_of(store.value):
                small = e.op == "load" and e.axes <= frame.top.bound and frame.count(frame.spans(e)) <= 8
                if small and all(a.op in ("const", "index") for a in e.args):
                    self.need(e)
