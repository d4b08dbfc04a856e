"""Loads into registers: vectorized where elements are contiguous, prefetched through shared memory where the layout
says so."""

from __future__ import annotations

from collections.abc import Sequence

from ....egraph.ir.dtypes import itemsize
from ...ir.index import Index
from ...ir.kernel import Expr, Unfusable, unknown
from ...ir.op_texts import costly
from .frame import CudaScope, Frame, Local, nest_of
from .nest import Nest
from .spelling import CTYPES, all_of, span
from .thread_layout import steady, together

HELD = 512  # limit in bytes of one value in a thread's registers


class Loads(Frame):
    """Loads and hoisted values of a kernel; reductions are added by subclasses."""

    def reduction(self, e: Expr) -> None:
        """Compute a reduction into registers."""
        raise NotImplementedError

    def need(self, e: Expr) -> None:
        """Load or compute everything that the loop nest of an expression reads."""
        for x in unknown(e, lambda a: self.scope.find(a) is not None or a.op in ("const", "index")):
            if self.scope.find(x) is not None:  # computed along with another reduction
                continue
            if x.op == "reduce":
                self.reduction(x)
                continue
            if x.op == "load":
                for a in x.args:
                    self.need(a)
            home = self.home(x)
            if x.op == "load":
                with self.inside(home):
                    home.known[x] = self.load(x)
            elif costly(x.op) and home is self.top and self.stages.get(x, 0) > 1 and self.count(self.spans(x)) > 1:
                with self.inside(home):
                    home.known[x] = self.kept(x)

    def load(self, e: Expr) -> Local:
        """Emit a load of this thread's elements, vectorized where they are contiguous."""
        operand, at, steps, dtype = e.value
        dims = self.spans(e)
        lanes = next((d for d in dims if self._vector(at, d, dtype, e.args, steps)), "")
        width = self.along[lanes].vector if lanes else 1
        ctype = CTYPES[dtype]
        whole = f"Pack<{ctype}, {width}>" if lanes else ctype
        count = self.count(dims, lanes)
        self._check_held(
            count * width * (8 if dtype in ("float64", "int64") else 4 if dtype in ("float32", "int32") else 2)
        )
        name = self.fresh("v")
        nest = Nest(self, dims, lanes)
        place = nest.position(at, [*zip(e.args, steps)], span(at, steps))
        recent = self.fresh_loads and operand.startswith("part")
        read = f"read{'_recent' if recent else ''}<{width}>({self.param[operand]} + {place})" if lanes else (
            f"recent({self.param[operand]} + {place})" if recent else f"{self.param[operand]}[{place}]")  # fmt: skip
        conditions = [*nest.masks(dims), *(nest.scalar(g, nest.depth(self.spans(g))) for g in e.args[len(steps) :])]
        if conditions:
            nothing = f"{whole}{{}}" if lanes or ctype in ("bf16", "f16") else "0"
            read = f"{all_of(conditions)} ? {read} : {nothing}"
        local = Local(name, dims, dtype, lanes)
        nest.line(f"{nest.at(local, whole_vector=True)} = {read};")
        self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
        nest.close()
        return local

    def _vector(self, at: Index, dim: str, dtype: str, args: Sequence[Expr], steps: Sequence[int]) -> bool:
        """Whether a load can be vectorized along a dimension."""
        width, group = self.along[dim].vector, self.groups[dim]
        picks, guards = args[: len(steps)], args[len(steps) :]
        if width == 1 or not group or any(dim in self.spans(a) for a in picks):
            return False
        if any(dim in self.spans(g) and not steady(g, group[-1], width) for g in guards):
            return False
        return together(at, group[-1], width, itemsize(dtype)) and all(s % width == 0 for s in steps)

    def kept(self, e: Expr) -> Local:
        """Compute an expression into registers once, for use in several loop nests."""
        dims = self.spans(e)
        count = self.count(dims)
        self._check_held(4 * count)
        local = Local(self.fresh("t"), dims, self.wide if e.kind == "float" else "")
        if e.kind != "float":
            raise Unfusable("integers kept in registers")
        nest = Nest(self, dims)
        nest.line(f"{nest.at(local)} = {nest.scalar(e, nest.deepest)};")
        self.line(f"{CTYPES[self.wide]} {local.name}[{count}];")
        nest.close()
        return local

    def _check_held(self, nbytes: int) -> None:
        """Unfusable if one value needs more than `HELD` bytes of registers per thread."""
        if nbytes > HELD:
            raise Unfusable(f"{nbytes} bytes of one value in a thread")

    def _fetch(self, e: Expr, inner: CudaScope, fetched: CudaScope) -> None:
        """Prefetch a load's 16-byte vectors with cp.async into a ring in shared memory, private slots per thread; other
        loads are left alone."""
        operand, at, _, dtype = e.value
        dims = self.spans(e)
        lanes = next((d for d in dims if self._vector(at, d, dtype, (), ())), "")
        if not lanes or self.along[lanes].vector * itemsize(dtype) != 16:
            return
        count, threads = self.count(dims, lanes), self.layout.threads
        name, whole = self.fresh("v"), f"Pack<{CTYPES[dtype]}, {self.along[lanes].vector}>"
        ring, local = f"ring{name[1:]}", Local(name, dims, dtype, lanes)
        self.ring_bytes += 16 * (self.layout.ahead + 1) * count * threads
        self.rings.append(f"    __shared__ {whole} {ring}[{(self.layout.ahead + 1) * count * threads}];")
        for scope in (fetched, inner):
            with self.inside(scope):
                nest = Nest(self, dims, lanes)
                own = f"{ring}[(round * {count} + {nest.slot(local)}) * {threads} + thread]"
                masks = all_of(nest.masks(dims)) if nest.masks(dims) else ""
                if scope is fetched:
                    place = nest.position(at, (), span(at, ()))
                    nest.line(f"{f'if ({masks}) ' if masks else ''}fetch({own}, {self.param[operand]} + {place});")
                else:
                    self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
                    nest.line(
                        f"{nest.at(local, whole_vector=True)} = {f'{masks} ? {own} : {whole}{{}}' if masks else own};"
                    )
                nest.close()
        inner.known[e] = local

    def _early_loads(self) -> None:
        """Issue independent loads of the epilogue before the main loop, where they need few registers (at most 8
        values)."""
        for store in self.kernel.stores:
            for e in nest_of(store.value):
                small = e.op == "load" and e.axes <= self.top.bound and self.count(self.spans(e)) <= 8
                if small and all(a.op in ("const", "index") for a in e.args):
                    self.need(e)
