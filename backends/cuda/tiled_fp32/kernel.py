"""Emits tiled float32 GEMM in CUDA C++ (kernel.cuh).

FMA on CUDA cores, or tensor cores with 3xTF32 split operands (precision.py).

Tiles of both operands are prefetched into shared memory with cp.async, contiguous along K or across it as they are in
global memory. On CUDA cores each thread computes 4 x 4 squares; on tensor cores each warp computes 16 x 8 mma tiles.
The epilogue is emitted in the accumulators' thread layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import ClassVar

from ...generate.schedule import Domain, SplitSchedule, flag, number, optional
from ...ir.expr import Expr
from ...ir.index import Axis, index
from ...ir.kernel import Kernel
from ...ir.precision import IEEE, PRECISIONS, THREE
from ...ir.source_text import words
from ...ir.tensor_maps import as_one
from ...ir.tiling import Shape, shape_of
from ...ir.unfusable import Unfusable
from ...lowering.split_reduction import split
from ...machine import target
from ..emit.frame import CudaPart, Local, ThreadFrame
from ..emit.kernel import SimtEmitter
from ..emit.loads import ThreadLoads
from ..emit.nest import ThreadNest
from ..emit.spelling import CudaLaunch
from ..emit.stores import ThreadStores
from ..emit.thread_layout import DimensionThreads, ThreadLayout

_TEXT = [Path(__file__).with_name(f"{part}.cuh").read_text(encoding="utf-8") for part in ("intrinsics", "kernel")]
TILE_INTRINSICS, TILE_LIBRARY = _TEXT[0], "".join(_TEXT)
POWERS = Domain(powers=True)
HOW = {IEEE: "FUSED", THREE: "THREE"}


@dataclass(frozen=True)
class TiledSchedule(SplitSchedule):
    """Schedule (tuning parameters) of a float32 GEMM whose tiles are staged in shared memory."""

    tag: ClassVar[str] = "tiles"

    m: int = number("rows of a block's tile", POWERS)
    n: int = number("columns of a block's tile", POWERS)
    deep: int = number("K elements per stage", POWERS)
    high: int = number("rows of a thread's tile, or of a warp's on tensor cores", POWERS)
    wide: int = number("columns of a thread's tile, or of a warp's on tensor cores", POWERS)
    stages: int = number("pipeline depth", Domain(2, 6, steps="step"))
    group: int = number("rows of tiles rasterized together for L2 reuse", POWERS, default=8)
    precision: int | None = optional(
        "input precision of products on tensor cores, an index of `PRECISIONS`; CUDA cores without it",
        Domain(values=(THREE.number,), steps="none"),
    )
    split: int | None = optional(
        "split-K factor over blocks; the last block of a tile combines the partial sums",
        Domain(2, powers=True), drops=True, starts=2, companions=("join",), common=True,
    )  # fmt: skip
    join: bool = flag(
        "set exactly if `split` is; marks kernels that combine the partial sums themselves", fixed=True, common=True
    )
    early: bool = flag("programmatic dependent launch", common=True)

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return self.m // self.high * (self.n // self.wide) * (32 if self.precision else 1)

    @property
    def held(self) -> int:
        """Number of accumulators (registers for sums) that a thread has for each right-hand matrix.

        Twice as many for 3xTF32, where each stage has accumulators of its own.
        """
        return self.high * self.wide // (32 if self.precision else 1) * (2 if self.precision == THREE.number else 1)

    def shared_bytes(self, left: bool, right: bool, rights: int) -> int:
        """Bytes of shared memory of the tiles, with rows padded against bank conflicts.

        `left`, `right`: whether the left and right matrices are contiguous along K; `rights`: number of
        right-hand matrices.
        """
        lines = [
            t * (self.deep + 4) if along else self.deep * (t + 8) for t, along in ((self.m, left), (self.n, right))
        ]
        return 4 * self.stages * (lines[0] + rights * lines[1])


@dataclass(frozen=True)
class TiledOperand:
    """Operand of a tiled GEMM in global memory.

    `place`: CUDA expression of the base address of a block's tile. `step`: stride of the non-contiguous dimension, in
    elements. `along`: whether the operand is contiguous along K. `words`: number of elements in one cp.async copy.
    """

    place: str
    step: int
    along: bool
    words: int


def emit_tiles(kernel: Kernel, shape: Shape, tiles: TiledSchedule, name: str) -> CudaLaunch:
    """Emit the CUDA source of a float32 GEMM with the schedule `tiles`; returns its launch. `name`: of the emitted
    function; `shape`: roles of the kernel's axes (row, column, batch, reduction).

    Raises Unfusable unless its operands are plain float32 matrices.
    """
    if tiles.scratch_parts == 1:
        return TiledGemm(TiledFrame(kernel, shape, tiles, name), tiles).tiles()
    axes = {e.axis for e in shape.dots}
    if len(axes) != 1 or (kernel.reductions and {e.axis for e in kernel.reductions} != axes):
        raise Unfusable("split-K of a kernel with other reductions beside its products")
    first, second = split(kernel, axes.pop(), tiles.scratch_parts)
    own, inner = shape_of(first), tuple(dict.fromkeys(e.axis for e in second.reductions))
    parts = replace(own, rows=shape.rows, cols=shape.cols, batch=(first.axes[0], *shape.batch), joined={})
    after = replace(shape, joined={}, inner=inner, outer=inner, dots={})
    joining = SimtEmitter(ThreadFrame(second, _joining(tiles), name, after))
    return TiledGemm(TiledFrame(first, parts, tiles, name), tiles).tiles(joining)


def _joining(t: TiledSchedule) -> ThreadLayout:
    """The thread layout in which the last block combines a tile's partial sums: contiguous along the columns."""
    across = min(t.n // 4, t.threads)
    down = min(t.m, t.threads // across)
    dims = {"n": DimensionThreads(across, 4, t.n // (4 * across)), "m": DimensionThreads(down, 1, t.m // down)}
    return ThreadLayout({**dims, "parts": DimensionThreads()}, t.early, least=t.threads)


class TiledFrame(ThreadFrame):
    """Emitter state for the epilogue of a tiled GEMM, in the thread layout of its accumulators. `tile`: dimension ("m"
    or "n") -> elements of a block's tile."""

    def __init__(self, kernel: Kernel, shape: Shape, schedule: TiledSchedule, name: str) -> None:
        s = schedule
        dims = {"n": DimensionThreads(4, 2, s.wide // 8), "m": DimensionThreads(8, 1, s.high // 8)}
        if not s.precision:
            dims = {
                "n": DimensionThreads(s.n // s.wide, 4, s.wide // 4),
                "m": DimensionThreads(s.m // s.high, 4, s.high // 4),
            }
        super().__init__(kernel, ThreadLayout(dims, s.early, least=1), name, shape)
        self.tile = {"m": s.m, "n": s.n}

    def ragged(self, dim: str) -> bool:
        """Whether some tiles along the dimension `dim` reach beyond its end, so that bounds are checked."""
        return self.extent[dim] % self.tile[dim] != 0


class TiledGemm(CudaPart):
    """Emitter of a tiled GEMM. `frame` and `stores` are the state and the part that emit its epilogue.

    The constructor raises Unfusable for kernels that it cannot write (`emit_tiles`).
    """

    frame: TiledFrame

    def __init__(self, frame: TiledFrame, schedule: TiledSchedule) -> None:
        super().__init__(frame)
        self.t, shape, kernel = schedule, frame.shape, frame.kernel
        self.stores = ThreadStores(frame, ThreadLoads(frame))
        self.dots = list(shape.dots)
        axes = {e.axis for e in self.dots}
        if shape.kind != "contraction" or len(axes) != 1 or {*kernel.reductions} != {*self.dots} or shape.joined:
            raise Unfusable("not a GEMM over one K axis without other reductions")
        (self.axis,) = axes
        lefts = {shape.dots[e].left for e in self.dots}
        if len(lefts) != 1 or not shape.rows or not shape.cols or frame.wide != "float32":
            raise Unfusable("products with different left operands, or not of float32 matrices")
        self.rights = list(dict.fromkeys(shape.dots[e].right for e in self.dots))
        if any({*s.at.axes}.isdisjoint(side) for s in kernel.stores for side in (shape.rows, shape.cols)):
            raise Unfusable(
                "an output that does not vary along both rows and columns"
            )  # all tiles of a row would write it
        (left,) = lefts
        self.left, self.right = self._side(left, "m"), [self._side(r, "n") for r in self.rights]
        if len({(r.step, r.along) for r in self.right}) > 1:
            raise Unfusable("right operands with different layouts")

    def _side(self, side: Sequence[Expr], dim: str) -> TiledOperand:
        """An operand of a product as a strided matrix, tiled along `dim` ("m" or "n").

        Raises Unfusable if it is no plain float32 matrix.
        """
        frame = self.frame
        e = side[0]
        if len(side) != 1 or e.op != "load" or e.args or e.value[3] != "float32":
            raise Unfusable("a GEMM operand that is not a float32 load")
        one = Axis(f"{dim}_all", frame.extent[dim])
        at = as_one(e.value[1], frame.groups[dim], one)
        if at is None:
            raise Unfusable("a GEMM operand whose row axes have no common stride")
        steps = {a: at.coefficient(a) for a in (one, self.axis)}
        rest = at - index(one) * steps[one] - index(self.axis) * steps[self.axis]
        if rest.axes - {*self.shape.batch} or 1 not in steps.values() or min(steps.values()) < 1:
            raise Unfusable("a GEMM operand without a contiguous axis")
        along = steps[self.axis] == 1
        step = steps[one if along else self.axis]
        base = ThreadNest(frame, ()).position(rest, (), rest.range[1])
        together = math.gcd(step, rest.const, *(c for _, c in rest.terms))
        place = f"{frame.param[e.value[0]]} + {base}" if base != "0" else frame.param[e.value[0]]
        return TiledOperand(place, step, along, math.gcd(together, 4))

    def tiles(self, last: SimtEmitter | None = None) -> CudaLaunch:
        """Emit the whole CUDA function; returns its launch. Raises Unfusable if the tiles are too large for shared
        memory, or too many.

        `last`: emitter of the code that the last block of each tile runs after its own part of split-K; None without
        split-K.
        """
        frame, t, rights = self.frame, self.t, len(self.rights)
        counts = {d: -(-frame.extent[d] // frame.tile[d]) for d in "mn"}
        blocks = prod(counts.values()) * prod(a.size for a in self.shape.batch)
        shared_bytes = t.shared_bytes(self.left.along, self.right[0].along, rights)
        if shared_bytes > target().dynamic_shared or blocks >= 1 << 31:
            raise Unfusable("tiles that exceed shared memory, or a grid of 2**31 blocks or more")
        self._write_tile(counts)
        buffers, written = dict(self.kernel.buffers), {x.buffer for x in self.kernel.stores}
        if last is not None:
            buffers |= last.kernel.buffers
            written |= {x.buffer for x in last.kernel.stores}
            frame.top.lines += self._joined(last, blocks)
        numbers = (
            HOW[PRECISIONS[t.precision or 0]], t.m, t.n, t.deep, t.high, t.wide, t.stages, rights, str(self.left.along).lower(),
            str(self.right[0].along).lower(), self.left.words, min(r.words for r in self.right),
        )  # fmt: skip
        early = ["    begin_next();", "    await_previous();"] if t.early else []
        head = [f"    using Product = Tiles<{', '.join(map(str, numbers))}>;", "    ROOM(float, room);"]
        body = [*early, *head, *frame.top.lines]
        mentioned = words("\n".join(body))
        used = [n for n in buffers if frame.param[n] in mentioned]
        more = ["counters"] if last is not None else []
        parameters = ", ".join(
            [*(frame.parameter(n, buffers[n], n in written) for n in used), *(f"int* {n}" for n in more)]
        )
        text = "\n".join([
            f'extern "C" __global__ void __launch_bounds__({t.threads}, 1)', f"{frame.name}({parameters}) {{", *body, "}", "",
        ])  # fmt: skip
        return CudaLaunch(
            frame.name, text, blocks, t.threads, (*used, *more), t.early, shared_bytes,
            beside={"CUDA_TILES": TILE_LIBRARY},
        )  # fmt: skip

    def _write_tile(self, counts: Mapping[str, int]) -> None:
        """Emit one tile: its coordinates (of `counts` tiles a dimension), the products with their loop over K, and the
        stores of the epilogue. Raises Unfusable for an output that does not vary along rows and columns."""
        frame, t, rights = self.frame, self.t, len(self.rights)
        self._places(counts)
        for d, at in (("m", "row"), ("n", "column")):
            self.line(f"const int {d}_0 = tile_{d} * {frame.tile[d]} + Product::{at}();")
        self.line("Product::Sums sums = {};")
        self.line(f"const float* const right[{rights}] = {{{', '.join(r.place for r in self.right)}}};")
        self.line(
            f"Product::multiply(room, sums, {self.left.place}, {self.left.step}LL, tile_m * {t.m}, {frame.extent['m']}, "
            f"right, {self.right[0].step}LL, tile_n * {t.n}, {frame.extent['n']}, {self.axis.size});"
        )
        for e in self.dots:
            which, name = self.rights.index(self.shape.dots[e].right), self.fresh("acc")
            self.line(f"const auto& {name} = sums[{which}];")
            frame.top.known[e] = Local(name, ("m", "n"), "float32")
        for store in self.kernel.stores:
            if frame.spans(store.value) != ("m", "n"):
                raise Unfusable("an output that does not vary along both rows and columns")
            self.stores.write(store)

    def _joined(self, last: SimtEmitter, blocks: int) -> list[str]:
        """The lines that combine a tile's partial sums, in their own thread layout."""
        places = [
            f"    const int {d}_0 = {' + '.join(x for x in (f'tile_{d} * {self.frame.tile[d]}', last.frame.thread(d)) if x)};"
            for d in "mn"
        ]
        first, *lines = last.as_last(blocks, self.t.scratch_parts, self.frame.counter, 0)
        return [first, "    {", *places, *lines, "    }"]

    def _places(self, counts: Mapping[str, int]) -> None:
        """Emit the block's tile coordinates: tiles are rasterized in groups of rows, whose operands stay in L2."""
        down, across = counts["m"], counts["n"]
        self.line("const int thread = threadIdx.x, program = blockIdx.x;")
        first, step = "program", down * across
        for a in reversed(self.shape.batch):
            self.line(f"const int {a.name} = {first} / {step}{'' if a is self.shape.batch[0] else f' % {a.size}'};")
            step *= a.size
        tile = f"program % {down * across}" if self.shape.batch else "program"
        self.line(f"const int tile = {tile}, group = tile / {self.t.group * across} * {self.t.group};")
        self.line(f"const int height = least({down} - group, {self.t.group});")
        self.line(f"const int tile_m = group + tile % {self.t.group * across} % height;")
        self.line(f"const int tile_n = tile % {self.t.group * across} / height;")


__all__ = ["TILE_INTRINSICS", "TILE_LIBRARY", "TiledSchedule", "emit_tiles"]
