"""Emits CUDA C++ for plain threads (SIMT): a kernel of the IR in a thread layout becomes the text of one `__global__`
function.

A layout gives for each dimension (rows `m`, columns `n`, each reduction axis) the number of threads along it, the
vector width per thread and the number of repeats. All values of a kernel share the layout: a value is distributed over
registers along its own dimensions and replicated in all threads along the others. Contiguous elements move as
vectorized accesses. A reduction accumulates per thread, then across the threads along its axis; a loop covers an axis
that is longer than the block's part of it. Row kernels, column reductions, GEMV, gathers and transposes thus are
different layouts of one emitter.

The emitter is made of parts that share a frame. Each part is given the parts that it calls; there is one callback, from
`ThreadLoads` to the part that computes reductions (`ThreadLoads.reduce`):

    thread_layout  thread layouts, contiguity analysis
    spelling       spelling of dtypes, operations, conditions
    frame          dimensions, scopes of text, known values
    nest           ThreadNest: loop nests over a thread's elements, expressions
    loads          ThreadLoads: vectorized and prefetched loads
    reductions     Reductions: accumulators, reductions across threads
    loops          ThreadLoops: loops over axes that a block does not cover
    fragments      Fragments: skinny GEMM on tensor cores
    packed_fragments  PackedFragments: the same with codes of quantized weights (code_forms: which codes)
    code_tiles     CodeTiles: loops over tiles of columns, addresses of codes
    code_ring      CodeRing: their copies ahead through shared memory
    tensor_cores   TensorCores: sums over its warps
    stores         ThreadStores
    staged_row     two kernels of one: a row computed once by each block, then its products

This module connects the parts, chooses a block's tile, and joins the partial results of split reductions. The tiled and
the warp-specialized GEMM use frame, loads and stores for their epilogues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ...ir.kernel import Buffer, Kernel
from ...ir.source_text import words
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from ...lowering.split_reduction import counted_tiles
from .frame import CudaPart, CudaScope, ThreadFrame, nest_of
from .loads import ThreadLoads
from .loops import ThreadLoops
from .reductions import Reductions
from .spelling import CTYPES, CudaLaunch
from .staged_row import STAGED, staged_row
from .stores import ThreadStores
from .tensor_cores import TensorCores
from .thread_layout import ThreadLayout

SHARED = 48 << 10  # bytes of static shared memory that a block has without opting in
MAX_DYNAMIC_SHARED_BYTES = 200 << 10  # limit of dynamic shared memory in bytes


def emit(
    kernel: Kernel, layout: ThreadLayout, name: str, shape: Shape, constant: frozenset[str] = frozenset()
) -> CudaLaunch:
    """Emit the CUDA source of `kernel`, whose axes have the roles `shape` (row, column, batch, reduction), in a thread
    layout; returns its launch. Raises Unfusable if the emitter does not support the kernel.

    `name`: of the emitted function. With programmatic dependent launch, the operands named in `constant` (weights) are
    read before the wait for the previous kernel.
    """
    return SimtEmitter(ThreadFrame(kernel, layout, name, shape, constant)).launch()


def emit_joined(
    first: Kernel, second: Kernel, layouts: tuple[ThreadLayout, ThreadLayout], name: str, shapes: tuple[Shape, Shape],
    constant: frozenset[str] = frozenset(),
) -> CudaLaunch:  # fmt: skip
    """Emit a split reduction as one CUDA function called `name`; returns its launch. Blocks run `first`, which computes
    partial results; the last block of each tile to finish (known by an atomic counter) runs `second`, which combines
    them.

    `layouts`, `shapes`: thread layout and roles of the axes (row, column, batch, reduction) of both kernels, which use
    the same tiles and numbers of threads. The buffer `counters` is zero before and after the launch. `constant`:
    operands that are read before the wait for the previous kernel.
    """
    last = SimtEmitter(ThreadFrame(second, layouts[1], name, shapes[1]))
    return SimtEmitter(ThreadFrame(first, layouts[0], name, shapes[0], constant)).launch(last)


def emit_staged(
    kernel: Kernel, layout: ThreadLayout, name: str, shape: Shape, constant: frozenset[str] = frozenset()
) -> CudaLaunch:
    """Emit products of one row as `emit` does, but so that the threads of a block compute the row together, into shared
    memory, before they multiply it.

    Raises Unfusable if the kernel is no such product (`staged_row`), or not supported by the emitter.
    """
    found = staged_row(kernel, shape)
    own, after = found.shapes
    first = SimtEmitter(ThreadFrame(found.first, found.layout(layout), name, own, constant))
    second = SimtEmitter(ThreadFrame(found.second, layout, name, after, constant))
    return second.launch(first=first)


class SimtEmitter(CudaPart):
    """Emitter of a whole CUDA kernel in a thread layout: connects the emitter's parts (loads, loops, reductions,
    stores)."""

    def __init__(self, frame: ThreadFrame) -> None:
        super().__init__(frame)
        self.loads = ThreadLoads(frame)
        self.reductions = ThreadLoops(frame, self.loads, Reductions(frame, self.loads))
        self.matrix = TensorCores(frame, self.loads)
        self.stores = ThreadStores(frame, self.loads)
        self.loads.reduce = self.reductions.reduction

    def store_all(self) -> None:
        """Emit the computation and the store of every result of the kernel."""
        frame, stores = self.frame, self.kernel.stores
        if self.layout.warps is not None:
            self.matrix.products()
        if "n" in frame.walked:
            late = [s for s in stores if {*s.value.axes, *s.at.axes} & set(self.shape.cols)]
            for s in late:  # all reductions first: the loop over columns only reads their results
                for e in nest_of(s.value):
                    if e.op == "reduce":
                        self.loads.need(e)
            for s in stores:
                if s not in late:
                    self.stores.write(s)
            if late:
                inner = CudaScope(2, frame.top.bound | set(self.shape.cols), outside=frame.top)
                with self.inside(inner):
                    for s in late:
                        self.stores.write(s)
                self.reductions.walk("n", inner, frame.top)
            return
        for s in stores:
            self.stores.write(s)

    def launch(self, last: SimtEmitter | None = None, first: SimtEmitter | None = None) -> CudaLaunch:
        """Emit the whole CUDA function; returns its launch, with the grid that covers the results.

        `last`: emitter of the code that the last block of each tile runs after its own part of a split reduction; None
        without one. `first`: emitter of the row that every block stages in shared memory before its own part; None
        without one.
        """
        frame, s = self.frame, self.shape
        tiles = {d: 1 if d in frame.walked else -(-frame.extent[d] // frame.along[d].block) for d in ("m", "n")}
        batch = math.prod(a.size for a in s.batch)
        head = CudaScope(1, set())
        with self.inside(head):
            self._program(tiles["m"], tiles["n"])
        if not frame.walked:  # issue all loads before the first use of a value
            self._load_all()
        if first is not None:
            first.as_first(frame, head)
        self.store_all()
        body = [*head.lines, *frame.top.lines]
        if self.layout.warm and not (frame.warm or frame.ahead.lines):
            raise Unfusable("no matrix to prefetch")
        buffers: dict[str, Buffer] = dict(self.kernel.buffers)
        if last is not None:
            start = 0 if self.layout.shared else frame.shared  # attention takes much: its halves use the same memory
            body += last.as_last(tiles["m"] * tiles["n"] * batch, s.batch[0].size, frame.counter, start)
            frame.shared = max(frame.shared, last.frame.shared)
            buffers |= last.kernel.buffers
        buffers.pop(STAGED, None)
        frame.shared = max(frame.shared, 4 * frame.codes)
        blocks, written = tiles["m"] * tiles["n"] * batch, {x.buffer for x in self.kernel.stores}
        if blocks >= 1 << 31:
            raise Unfusable("2**31 blocks or more in the grid")
        if last is not None:
            written |= {x.buffer for x in last.kernel.stores}
        if first is not None:
            written |= {x.buffer for x in first.kernel.stores}
        mentioned = words("\n".join([*body, *frame.ahead.lines]))
        used = [n for n in buffers if frame.param[n] in mentioned]
        parameters = [frame.parameter(n, buffers[n], n in written) for n in used]
        more = [] if last is None else ["counters"]
        shared_bytes = self._shared_bytes()
        text = self._function([*parameters, *(f"int* {n}" for n in more)], body, shared_bytes, len(head.lines))
        return CudaLaunch(
            frame.name, text, blocks, self.layout.threads, (*used, *more), self.layout.early, shared_bytes, beside=frame.beside
        )  # fmt: skip

    def _load_all(self) -> None:
        """Emit all loads from global memory whose positions depend on no data."""
        frame = self.frame
        for e in self.kernel.exprs:
            if e.op == "load" and e.value[0] != STAGED and all(a.op in ("const", "index") for a in e.args):
                moved = frame.in_column(e)
                if moved.axes <= frame.top.bound:
                    self.loads.need(moved)

    def as_first(self, after: ThreadFrame, head: CudaScope) -> None:
        """Write, into the frame `after` of the products, the lines with which every block stages its row; coordinates
        go to the scope `head`."""
        frame = self.frame
        frame.counter, frame.place = after.counter, after.place
        with self.inside(head):
            for dim in frame.order:
                if frame.groups[dim] and (text := frame.thread(dim)):
                    self.line(f"const int own_{dim}_0 = {text};")
        self._load_all()
        self.store_all()
        own = "|".join(f"{d}_0" for d in frame.order)
        lines, ahead = (
            [re.sub(rf"\b({own})\b", r"own_\1", x) for x in scope.lines] for scope in (frame.top, frame.ahead)
        )
        after.top.lines += [*lines, "    __syncthreads();"]
        after.ahead.lines += ahead
        after.counter, after.shared = frame.counter, frame.shared
        count = -(-math.prod(self.kernel.buffers[STAGED].shape) // 4)
        after.rings += [
            f"    __shared__ Pack<float, 4> staged[{count}];",
            f"    float* const {frame.param[STAGED]} = staged[0].at;",
        ]
        after.ring_bytes += 16 * count

    def _shared_bytes(self) -> int:
        """Bytes of dynamic shared memory to request; 0 if static shared memory suffices. A request is more than
        `SHARED`, so that the launch asks for the limit to be raised: a flag may lie in static memory beside it.

        Raises Unfusable beyond the hardware limit.
        """
        frame = self.frame
        used = frame.shared * (8 if frame.wide == "float64" else 4) + frame.ring_bytes
        asked = max(used, SHARED + 16) if used + 16 > SHARED and self.layout.warps is not None else 0
        if used > (MAX_DYNAMIC_SHARED_BYTES if asked else SHARED):
            raise Unfusable(f"{used} bytes of shared memory")
        return asked

    def _function(self, parameters: Sequence[str], body: Sequence[str], shared_bytes: int, head: int) -> str:
        """The function's text around its body, whose first `head` lines are coordinates."""
        frame = self.frame
        declared = (
            "ROOM(float, shared);" if shared_bytes else f"__shared__ {CTYPES[frame.wide]} shared[{frame.shared}];"
        )
        shared = [f"    {declared}"] if frame.shared else []
        rings = frame.rings
        if frame.codes:
            ring = "ROOM(Slot, ring);" if shared_bytes else f"__shared__ Slot ring[{-(-frame.shared // 4)}];"
            rings = [f"    {ring}", "    float* const shared = (float*)ring;"]
            shared = []
        early = ["    begin_next();", "    await_previous();"] if self.layout.early else []
        if frame.warm or frame.ahead.lines:
            first, rings = (rings, []) if frame.ahead.lines else ([], rings)
            early = [early[0], *first, *body[:head], *frame.warm, *frame.ahead.lines, early[1]]
            body = body[head:]
        alone = ", 1" if self.layout.warps is not None else ""  # 1 block per SM: registers hold loads in flight
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.layout.threads}{alone})', f"{frame.name}({', '.join(parameters)}) {{",
            *early, *shared, *rings, *body, "}", "",
        ])  # fmt: skip

    def as_last(self, programs: int, parts: int, counter: int, shared: int) -> list[str]:
        """Lines of CUDA code with which the last block of a tile to finish combines the tile's partial results.

        `programs`: number of blocks in the grid; `parts`: how many of them share a tile. `counter`: number from which
        fresh variable names count. `shared`: offset of free shared memory, in elements of the compute dtype.
        """
        frame = self.frame
        tiles = counted_tiles(programs, parts)
        frame.counter, frame.shared, frame.fresh_loads = counter, shared, True
        self.store_all()
        tile = f" + program % {tiles}" if tiles > 1 else ""
        own = [d for d in frame.order if d not in ("m", "n", *frame.walked) and frame.along[d].threads > 1]
        return [
            f"    if (!is_last(counters{tile}, {parts})) return;",
            *(f"    const int {d}_0 = {frame.thread(d)};" for d in own), *frame.top.lines,
        ]  # fmt: skip

    def _program(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the block's tile, the values of batch axes, and this thread's coordinates."""
        frame, s = self.frame, self.shape
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
        frame.place = place = {"m": "", "n": ""}
        if tiles_m > 1:
            place["m"] = f"{tile} / {tiles_n}" if tiles_n > 1 else tile
        if tiles_n > 1:
            place["n"] = f"{tile} % {tiles_n}" if tiles_m > 1 else tile
        for dim in frame.order:
            if dim in frame.walked or not frame.groups[dim]:
                continue
            base = f"({place[dim]}) * {frame.along[dim].block}" if place.get(dim, "") else ""
            base = re.sub(r"^\((\w+)\)", r"\1", base)
            own = frame.thread(dim)
            text = " + ".join(x for x in (base, own) if x)
            if text:
                self.line(f"const int {dim}_0 = {text};")
