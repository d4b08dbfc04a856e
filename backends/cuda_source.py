"""The CUDA C++ emitter: a kernel of the IR and a layout of threads as the text of one `__global__` function.

A layout says for each dimension (rows `m`, columns `n`, each reduction axis) how many threads lie along it, how many
neighbouring elements each of them holds, and how often that repeats. All values of a kernel share it: a value lies in registers
along the dimensions that it has and is the same in all threads along the others. Whatever is contiguous in memory along a
dimension of neighbours moves as one vector. A reduction is each thread's own, then an exchange between the threads that lie
along its axis; where a block does not cover the axis, a loop walks it. So rows, columns, vectors times matrices, gathers and
transpositions are one emitter in different layouts.

What is here: which tile a block has, what it stores, and who joins the parts of a split reduction. Each of the files below knows
of those before it only:

    cuda_layout      layouts, and what lies side by side in memory
    cuda_text        the spelling of dtypes, operations, conditions
    cuda_frame       dimensions, blocks of text, what is known in them
    cuda_nest        loops over what a thread holds, and expressions
    cuda_loads       reading
    cuda_reductions  accumulators, exchanges between threads
    cuda_loops       axes that a block does not cover
    cuda_matrix      products of few rows on the matrix unit
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..egraph.dtypes import itemsize
from .cuda_frame import Scope, nest_of
from .cuda_layout import Layout, together
from .cuda_matrix import Matrix
from .cuda_nest import Nest
from .cuda_text import CTYPES, CudaLaunch, all_of, enclosed
from .kir import Buffer, Kernel, Store, Unfusable
from .kir_split import counted
from .tiling import Shape

SHARED = 48 << 10  # bytes of shared memory that a block has without asking
ROOM = 200 << 10  # bytes that it can ask for


def emit(kernel: Kernel, layout: Layout, name: str, shape: Shape) -> CudaLaunch:
    """The launch of a kernel in a layout. Unfusable where it has something that this emitter does not write."""
    return Function(kernel, layout, name, shape).launch()


def emit_joined(
    first: Kernel, second: Kernel, layouts: tuple[Layout, Layout], name: str, shapes: tuple[Shape, Shape]
) -> CudaLaunch:
    """One launch of a split kernel: the block that is last to store the states of a tile joins them. Both halves cover the
    same tile with as many threads. Blocks count themselves in the buffer `counters`, which is zero before and after."""
    return Function(first, layouts[0], name, shapes[0]).launch(Function(second, layouts[1], name, shapes[1]))


class Function(Matrix):
    """A whole kernel."""

    def store_all(self) -> None:
        """Every result, computed and written."""
        stores = self.kernel.stores
        if self.layout.warps is not None:
            self.products()
        if "n" in self.walked:
            late = [s for s in stores if {*s.value.axes, *s.at.axes} & set(self.shape.cols)]
            for s in late:  # all reductions first: the loop over columns only reads them
                for e in nest_of(s.value):
                    if e.op == "reduce":
                        self.need(e)
            for s in stores:
                if s not in late:
                    self.write(s)
            if late:
                inner = Scope(2, self.top.bound | set(self.shape.cols), outside=self.top)
                with self.inside(inner):
                    for s in late:
                        self.write(s)
                self._walk("n", inner, self.top)
            return
        for s in stores:
            self.write(s)

    def write(self, store: Store) -> None:
        """One result."""
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

    def launch(self, last: Function | None = None) -> CudaLaunch:
        """The function's text and its grid. `last` is what the last block of each tile does after its part."""
        s = self.shape
        tiles = {d: 1 if d in self.walked else -(-self.extent[d] // self.along[d].block) for d in ("m", "n")}
        batch = math.prod(a.size for a in s.batch)
        head = Scope(1, set())
        with self.inside(head):
            self._program(tiles["m"], tiles["n"])
        if not self.walked:  # all loads are under way before the first value is waited for
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
        """Bytes of shared memory that must be asked for; 0 where a block has enough. Unfusable where there is not so much."""
        used = self.shared * (8 if self.wide == "float64" else 4) + self.ring_bytes
        asked = used if used + 16 > SHARED and self.layout.warps is not None else 0
        if used > (ROOM if asked else SHARED):
            raise Unfusable(f"{self.shared} values in shared memory")
        return asked

    def _function(self, parameters: Sequence[str], body: Sequence[str], room: int) -> str:
        """The text of the function around its body."""
        declared = "ROOM(float, shared);" if room else f"__shared__ {CTYPES[self.wide]} shared[{self.shared}];"
        shared = [f"    {declared}"] if self.shared else []
        early = ["    begin_next();", "    await_previous();"] if self.layout.early else []
        alone = ", 1" if self.layout.warps is not None else ""  # registers are there for what is under way
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.layout.threads}{alone})', f"{self.name}({', '.join(parameters)}) {{",
            *early, *shared, *self.rings, *body, "}", "",
        ])  # fmt: skip

    def _parameter(self, name: str, buffer: Buffer, written: bool) -> str:
        """Read-only memory may be cached where nothing tells of changes: not in a kernel that starts before they end."""
        plain = self.layout.early or name.startswith("part")
        return (
            f"{'' if written else 'const '}{CTYPES[buffer.dtype]}* {'' if plain else '__restrict__ '}{self.param[name]}"
        )

    def as_last(self, programs: int, parts: int, counter: int, shared: int) -> list[str]:
        """The lines that join a tile's parts, in the block that finds all others done."""
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
