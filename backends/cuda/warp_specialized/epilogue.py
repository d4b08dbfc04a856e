"""Emits the epilogue of a warp-specialized GEMM: the operations on its products, and the stores of the results.

A consumer group's results are written in pieces of 64 columns (`PIECE`). Pieces of 16-bit results are collected in
shared memory and leave by TMA stores, or row by row; threads store others directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....egraph.types.dtypes import itemsize
from ...ir.expr import Expr
from ...ir.index import Axis
from ...ir.kernel import OutputStore
from ...ir.tensor_maps import flattened
from ...ir.unfusable import Unfusable
from ..emit.frame import CudaPart, CudaScope, Local, nest_of
from ..emit.loads import ThreadLoads
from ..emit.nest import ThreadNest
from ..emit.spelling import CTYPES
from ..emit.stores import ThreadStores
from ..emit.thread_layout import DimensionThreads
from .device_library import GROUP, PIECE
from .frame import GemmFrame
from .parameters import GemmSchedule
from .tensor_maps import TensorMaps

EARLY = 176  # register budget per thread of accumulators and epilogue operands prefetched before the mainloop


class GemmEpilogue(CudaPart):
    """Emitter of the epilogue. `products`: each product's index among the accumulators. `axis`: the K axis. `maps`:
    takes the tensor maps of results that TMA stores."""

    frame: GemmFrame

    def __init__(
        self, frame: GemmFrame, schedule: GemmSchedule, products: Mapping[Expr, int], axis: Axis, maps: TensorMaps
    ) -> None:
        super().__init__(frame)
        self.r, self.products, self.axis, self.maps = schedule, products, axis, maps
        self.rights = len({*products.values()})
        self.loads = ThreadLoads(frame)
        self.stores = ThreadStores(frame, self.loads)
        # prefetched epilogue operands: (array over all pieces, layout within a piece)
        self.ahead: dict[Expr, tuple[str, Local]] = {}

    def prefetch(self) -> list[str]:
        """Prefetch of 16-bit epilogue operands before the mainloop, if there are registers for them."""
        r, found = self.r, []
        loads = dict.fromkeys(
            e for s in self.kernel.stores for e in nest_of(s.value)
            if e.op == "load" and not e.args and self.frame.spans(e) == ("m", "n") and itemsize(e.value[3]) == 2
        )  # fmt: skip
        each = r.height * r.wide // 256
        if not loads or r.held(self.rights) + each * len(loads) > EARLY:
            return []
        scope = CudaScope(3, set(self.frame.top.bound))
        for e in loads:
            with self.inside(scope):
                local = self.loads.load(e)
                if not local.lanes:
                    return []
                name = self.fresh("early")
                self.line(f"fill_from({name}[i][c], {local.name});")
                self.ahead[e] = name, local
            found.append(f"    Pack<{CTYPES[local.dtype]}, 2> {name}[{r.height // GROUP}][{r.wide // PIECE}][16];")
        return [*found, *self._pieces(scope.lines)]

    def results(self) -> list[str]:
        """The epilogue: results in pieces of 64 columns; threads store a narrower last piece directly."""
        found = [line for store in self.kernel.stores for line in self._written(store)]
        if rest := self.r.wide % PIECE:
            self.frame.along["n"] = DimensionThreads(4, 2, rest // 8)
            found += [line for store in self.kernel.stores for line in self._written(store, last=True)]
        return found

    def _pieces(
        self, lines: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = (), last: bool = False
    ) -> list[str]:
        """Loops over a tile's pieces of 64 columns (with `last`: the narrower last piece) and its wgmma row blocks."""
        r, pieces = self.r, self.r.wide // PIECE
        side = " + roles.side()" if r.beside else ""
        mine = ["        if (!roles.owns(c)) continue;"] if r.parts > 1 else []
        head = ["    {", f"        constexpr int c = {pieces};"]
        if not last:
            head = ["    #pragma unroll", f"    for (int c = 0; c < {pieces}; ++c) {{"]
        elif mine:
            mine = ["        if (roles.owns(c)) {"]
            after = [*after, "        }"]
        return [
            *head, *mine, *before,
            "        #pragma unroll", f"        for (int i = 0; i < {r.height // GROUP}; ++i) {{",
            f"            const int m_0 = at.m + roles.base() + i * {GROUP} + roles.row();",
            f"            const int n_0 = at.n{side} + c * {PIECE} + roles.column();",
            *lines, "        }", *after, "    }",
        ]  # fmt: skip

    def _written(self, store: OutputStore, last: bool = False) -> list[str]:
        """Code that computes and stores one result, in pieces of 64 columns (with `last`: the narrower last piece)."""
        target = None if last else self._target(store)
        lines = "" if last or target is not None else self._lines(store)
        scope = CudaScope(3, set(self.frame.top.bound) | {self.axis})
        with self.inside(scope):
            for e, which in self.products.items():
                name = self.fresh("acc")
                at = f"{which * -(-self.r.wide // PIECE)} + c" if which else "c"
                self.line(f"const float (&{name})[32] = sums[i][{at}];")
                scope.known[e] = Local(name, ("m", "n"), "float32")
            for e, (early, local) in self.ahead.items() if not last else ():
                name = self.fresh("v")
                self.line(f"const Pack<{CTYPES[local.dtype]}, 2> (&{name})[16] = {early}[i][c];")
                scope.known[e] = replace(local, name=name)
            if target is not None or lines:
                self._keep(store)
            else:
                self.stores.write(store)
        if target is not None:
            name, origin = target
            lines = f"roles.end_piece(piece, {name}, {origin[1]}, {origin[0]});"
        if not lines:
            return self._pieces(scope.lines, last=last)
        return self._pieces(scope.lines, ["        const Address piece = roles.begin_piece();"], [f"        {lines}"])

    def _origins(self) -> dict[str, str]:
        """Texts of the first row and the first column of a consumer group's piece, by dimension."""
        side = " + roles.side()" if self.r.beside else ""
        return {"m": "at.m + roles.base()", "n": f"at.n{side} + c * {PIECE}"}

    def _lines(self, store: OutputStore) -> str:
        """The statement that stores a piece row by row where TMA cannot.

        Empty if rows of the result are not contiguous.
        """
        frame = self.frame
        buffer, begin = self.kernel.buffers[store.buffer], self._origins()
        if store.guards or getattr(store, "parts", ()) or itemsize(buffer.dtype) != 2:
            return ""
        ones = {d: Axis(f"{d}_all", frame.extent[d]) for d in begin}
        at = flattened(store.at, ((frame.groups[d], one) for d, one in ones.items()))
        if at is None:
            return ""
        steps = dict(at.terms)
        if steps[ones["n"]] != 1 or not {*steps} <= {*ones.values(), *self.shape.batch}:
            return ""
        places = [
            f"({next((begin[d] for d, one in ones.items() if a is one), a.name)}) * {step}LL"
            for a, step in steps.items() if isinstance(a, Axis)
        ]  # fmt: skip
        ends = (f"{frame.extent[d]} - ({begin[d]})" for d in "mn")
        where = " + ".join([frame.param[store.buffer], *places, *([str(at.const)] if at.const else [])])
        return f"roles.write_piece(piece, {where}, {steps[ones['m']]}LL, {', '.join(ends)});"

    def _target(self, store: OutputStore) -> tuple[str, tuple[str, ...]] | None:
        """(tensor map, coordinates) of the TMA store of a result's piece; None if threads must store it."""
        dtype = self.kernel.buffers[store.buffer].dtype
        if store.guards or getattr(store, "parts", ()) or itemsize(dtype) != 2:
            return None
        found = self.maps.box(store.at, dtype, self._origins())
        if found is None or found[1] != "n":
            return None
        whole = found[0]
        name = self.maps.parameter(store.buffer, replace(whole, block=(GROUP, PIECE)))
        return name, whole.origin

    def _keep(self, store: OutputStore) -> None:
        """Emit the store of a piece of a result, rounded, into shared memory."""
        self.loads.need(store.value)
        if self.frame.spans(store.value) != ("m", "n"):
            raise Unfusable("an output that does not vary along both rows and columns")
        ctype = CTYPES[self.kernel.buffers[store.buffer].dtype]
        nest = ThreadNest(self.frame, ("m", "n"), "n", inner="n")
        text = nest.scalar(store.value, nest.deepest, dtype=self.kernel.buffers[store.buffer].dtype)
        name = self.fresh("y")
        nest.before(f"Pack<{ctype}, 2> {name};")
        nest.line(f"{name}.at[n_v] = {text};")
        nest.after(f"roles.keep(piece + i * {GROUP * 2 * PIECE}, m_i, n_i, {name});")
        nest.close()
