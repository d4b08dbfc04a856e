"""The SIMT emitter of CUDA C++: a kernel of the IR in a thread layout as the text of one `__global__` function.

A layout gives for each dimension (rows `m`, columns `n`, each reduction axis) the number of threads along it, the
vector width per thread and the number of repeats. All values of a kernel share the layout: a value is distributed over
registers along its own dimensions and replicated in all threads along the others. Contiguous elements move as
vectorized accesses. A reduction accumulates per thread, then across the threads along its axis; a loop covers an axis
that is longer than the block's part of it. Row kernels, column reductions, GEMV, gathers and transposes thus are
different layouts of one emitter.

This module chooses a block's tile, emits stores, and joins the partial results of split reductions. Each of the modules
below depends only on those above it:

    cuda_layout      thread layouts, contiguity analysis
    cuda_text        spelling of dtypes, operations, conditions
    cuda_frame       dimensions, scopes of text, known values
    cuda_nest        loop nests over a thread's elements, expressions
    cuda_loads       vectorized and prefetched loads
    cuda_reductions  accumulators, reductions across threads
    cuda_loops       loops over axes that a block does not cover
    cuda_matrix      skinny GEMM on tensor cores
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ....egraph.ir.dtypes import itemsize
from ...ir.kernel import Buffer, Kernel, OutputStore, Unfusable
from ...ir.tiling import Shape
from ...lowering.split_reduction import counted
from .frame import CudaScope, nest_of
from .nest import Nest
from .spelling import CTYPES, CudaLaunch, all_of, enclosed
from .tensor_cores import Matrix
from .thread_layout import Layout, together

SHARED = 48 << 10  # bytes of static shared memory that a block has without opting in
ROOM = 200 << 10  # limit of dynamic shared memory in bytes


def emit(kernel: Kernel, layout: Layout, name: str, shape: Shape) -> CudaLaunch:
    """The launch of a kernel in a layout. Unfusable if the emitter does not support the kernel."""
    return CudaFunction(kernel, layout, name, shape).launch()


def emit_joined(
    first: Kernel, second: Kernel, layouts: tuple[Layout, Layout], name: str, shapes: tuple[Shape, Shape]
) -> CudaLaunch:
    """One launch of a split reduction: the last block of each tile (by an atomic counter) combines the partial results.

    Both halves cover the same tile with equally many threads. The buffer `counters` is zero before and after the
    kernel.
    """
    return CudaFunction(first, layouts[0], name, shapes[0]).launch(CudaFunction(second, layouts[1], name, shapes[1]))


class CudaFunction(Matrix):
    """Emitter of a whole kernel."""

    def store_all(self) -> None:
        """Emit the computation and the store of every result."""
        stores = self.kernel.stores
        if self.layout.warps is not None:
            self.products()
        if "n" in self.walked:
            late = [s for s in stores if {*s.value.axes, *s.at.axes} & set(self.shape.cols)]
            for s in late:  # all reductions first: the loop over columns only reads their results
                for e in nest_of(s.value):
                    if e.op == "reduce":
                        self.need(e)
            for s in stores:
                if s not in late:
                    self.write(s)
            if late:
                inner = CudaScope(2, self.top.bound | set(self.shape.cols), outside=self.top)
                with self.inside(inner):
                    for s in late:
                        self.write(s)
                self._walk("n", inner, self.top)
            return
        for s in stores:
            self.write(s)

    def write(self, store: OutputStore) -> None:
        """Emit the loads, reductions and the store of one result, vectorized where its elements are contiguous."""
        value, buffer = store.value, self.kernel.buffers[store.buffer]
        for e in store.exprs:
            self.need(e)
        axes = frozenset(store.at.axes).union(*(e.axes for e in store.exprs[1:]))
        dims = self.dims(axes)
        if not set(self.spans(value)) <= set(dims):
            raise Unfusable("a result with more axes than its place")
        guarded = {d for e in store.exprs[1:] for d in self.spans(e)}
        lanes = next((d for d in dims if d not in guarded and self.groups[d] and together(
            store.at, self.groups[d][-1], self.along[d].vector, itemsize(buffer.dtype))
            and all(step % self.along[d].vector == 0 for _, step in store.parts)), "")  # fmt: skip
        nest = Nest(self, dims, lanes, inner=lanes)
        ctype, target = CTYPES[buffer.dtype], self.param[store.buffer]
        place = nest.position(store.at, store.parts, store.at.range[1], True)
        masks = [*nest.masks(dims), *(nest.scalar(g, nest.depth(self.spans(g))) for g in store.guards)]
        masks += [
            f"{enclosed(self._lane(d))} == 0"
            for d in self.layout.dims
            if d not in dims and self.layout.dims[d].threads > 1
        ]
        if self.layout.threads > math.prod(a.threads for a in self.layout.dims.values()):
            masks.append(f"thread < {math.prod(a.threads for a in self.layout.dims.values())}")
        condition = f"if ({all_of(masks)}) " if masks else ""
        text = nest.scalar(value, nest.deepest, dtype=buffer.dtype)
        if lanes:
            name = self.fresh("y")
            nest.before(f"Pack<{ctype}, {self.along[lanes].vector}> {name};")
            nest.line(f"{name}.at[{lanes}_v] = {text};")
            nest.after(f"{condition}write({target} + {place}, {name});")
        else:
            nest.line(f"{condition}{target}[{place}] = {text};")
        nest.close()

    def launch(self, last: CudaFunction | None = None) -> CudaLaunch:
        """The function's text and its grid. `last` emits what the last block of each tile does after its own part."""
        s = self.shape
        tiles = {d: 1 if d in self.walked else -(-self.extent[d] // self.along[d].block) for d in ("m", "n")}
        batch = math.prod(a.size for a in s.batch)
        head = CudaScope(1, set())
        with self.inside(head):
            self._program(tiles["m"], tiles["n"])
        if not self.walked:  # issue all loads before the first use of a value
            for e in self.kernel.exprs:
                if e.op == "load" and all(a.op in ("const", "index") for a in e.args):
                    moved = self.in_column(e)
                    if moved.axes <= self.top.bound:
                        self.need(moved)
        self.store_all()
        body = [*head.lines, *self.top.lines]
        buffers: dict[str, Buffer] = dict(self.kernel.buffers)
        if last is not None:
            body += last.as_last(tiles["m"] * tiles["n"] * batch, s.batch[0].size, self.counter, self.shared)
            self.shared = last.shared
            buffers |= last.kernel.buffers
        blocks, written = tiles["m"] * tiles["n"] * batch, {x.buffer for x in self.kernel.stores}
        if blocks >= 1 << 31:
            raise Unfusable("more blocks than a grid has")
        if last is not None:
            written |= {x.buffer for x in last.kernel.stores}
        used = [n for n in buffers if any(re.search(rf"\b{self.param[n]}\b", line) for line in body)]
        parameters = [self._parameter(n, buffers[n], n in written) for n in used]
        more = [] if last is None else ["counters"]
        room = self._room()
        text = self._function([*parameters, *(f"int* {n}" for n in more)], body, room)
        return CudaLaunch(
            self.name, text, blocks, self.layout.threads, (*used, *more), self.layout.early, room
        )  # fmt: skip

    def _room(self) -> int:
        """Bytes of dynamic shared memory to request; 0 if static shared memory suffices. Unfusable beyond the hardware
        limit."""
        used = self.shared * (8 if self.wide == "float64" else 4) + self.ring_bytes
        asked = used if used + 16 > SHARED and self.layout.warps is not None else 0
        if used > (ROOM if asked else SHARED):
            raise Unfusable(f"{self.shared} values in shared memory")
        return asked

    def _function(self, parameters: Sequence[str], body: Sequence[str], room: int) -> str:
        """The function's text around its body."""
        declared = "ROOM(float, shared);" if room else f"__shared__ {CTYPES[self.wide]} shared[{self.shared}];"
        shared = [f"    {declared}"] if self.shared else []
        early = ["    begin_next();", "    await_previous();"] if self.layout.early else []
        alone = ", 1" if self.layout.warps is not None else ""  # 1 block per SM: registers hold loads in flight
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.layout.threads}{alone})', f"{self.name}({', '.join(parameters)}) {{",
            *early, *shared, *self.rings, *body, "}", "",
        ])  # fmt: skip

    def _parameter(self, name: str, buffer: Buffer, written: bool) -> str:
        """Parameter declaration. `__restrict__` allows the read-only cache, but not under programmatic dependent
        launch, where the previous kernel may still write."""
        plain = self.layout.early or name.startswith("part")
        return (
            f"{'' if written else 'const '}{CTYPES[buffer.dtype]}* {'' if plain else '__restrict__ '}{self.param[name]}"
        )

    def as_last(self, programs: int, parts: int, counter: int, shared: int) -> list[str]:
        """The lines that combine a tile's partial results in its last block."""
        tiles = counted(programs, parts)
        self.counter, self.shared, self.fresh_loads = counter, shared, True
        self.store_all()
        tile = f" + program % {tiles}" if tiles > 1 else ""
        own = [d for d in self.order if d not in ("m", "n", *self.walked) and self.along[d].threads > 1]
        return [
            f"    if (!is_last(counters{tile}, {parts})) return;",
            *(f"    const int {d}_0 = {self._thread(d)};" for d in own), *self.top.lines,
        ]  # fmt: skip

    def _program(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the block's tile, the values of batch axes, and this thread's coordinates."""
        s = self.shape
        batch = math.prod(a.size for a in s.batch)
        self.line("const int thread = threadIdx.x;")
        if tiles_m * tiles_n * batch > 1:
            self.line("const int program = blockIdx.x;")
        tile = "program"
        if batch > 1:
            first = "program"
            if tiles_m * tiles_n > 1:
                self.line(f"const int batch = program / {tiles_m * tiles_n}, tile = program % {tiles_m * tiles_n};")
                first, tile = "batch", "tile"
            step = 1
            for a in reversed(s.batch):
                text = f"{first} / {step}" if step > 1 else first
                self.line(f"const int {a.name} = {text}{'' if a is s.batch[0] else f' % {a.size}'};")
                step *= a.size
        self.place = place = {"m": "", "n": ""}
        if tiles_m > 1:
            place["m"] = f"{tile} / {tiles_n}" if tiles_n > 1 else tile
        if tiles_n > 1:
            place["n"] = f"{tile} % {tiles_n}" if tiles_m > 1 else tile
        for dim in self.order:
            if dim in self.walked or not self.groups[dim]:
                continue
            base = f"({place[dim]}) * {self.along[dim].block}" if place.get(dim, "") else ""
            base = re.sub(r"^\((\w+)\)", r"\1", base)
            own = self._thread(dim)
            text = " + ".join(x for x in (base, own) if x)
            if text:
                self.line(f"const int {dim}_0 = {text};")
