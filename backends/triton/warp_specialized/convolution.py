"""Emits warp-specialized implicit-GEMM convolution for Hopper as the text of Gluon functions.

One producer warp loads tiles of images and filters into a shared-memory ring; consumer groups of four warps multiply 64
positions each (of one row, of several, a patch) with all filters of the tile, one pipeline step behind the loads. For
one filter tap the positions read a box of the image shifted by the tap: TMA loads it through a tensor map of four axes
and fills in zeros beyond the image's edge, so that neither addresses nor masks are computed. The filters of a tile may
be two adjacent powers of two (160 is 128 and 32), so that tiles divide the output and a tile can fill an SM.

The epilogue (bias, residual, layout change) is emitted by the Triton emitter for a group's own positions, once per
filter piece.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.kernel import Kernel
from ...ir.source_text import words
from ...ir.tiling import Shape, Tiling
from ...ir.unfusable import Unfusable
from ..emit.frame import TileFrame
from ..emit.kernel import TileEmitter
from ..emit.spelling import TRITON, Tile, TritonLaunch
from ..schedules.parameters import ConvolutionSchedule
from .patches import Patch, axis_extents, patch_of
from .spelling import GROUP, IMPORTS, REGISTERS, SEEING, in_gluon, matrix_layout, shared_layout

DEPTHS = (64, 32)  # elements along K that one loop iteration copies: 64 of 16 bits are one row of shared memory

DESCRIBING = "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor"


@dataclass(frozen=True)
class ConvolutionLaunch(TritonLaunch):
    """Launch of a convolution kernel; `patches` are its tensor maps (TMA descriptors), with any number of axes."""

    patches: tuple[Patch, ...] = ()

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that launches the kernel; `names` maps its buffers to Python variables."""
        described = [
            f"TensorDescriptor({names[p.operand]}, {[*p.sizes]}, {[*p.strides]}, {[*p.block]}, {p.layout})"
            for p in self.patches
        ]
        return f"{self.name}[({self.grid},)]({', '.join([*(names[a] for a in self.args), *described])}, num_warps=4)"


class EpilogueFrame(TileFrame):
    """Emitter state for a convolution's epilogue, for the positions of one consumer warp group and one piece of the
    filters."""

    def ragged(self, dim: str) -> bool:
        """Whether the last tile along `dim` reaches beyond its end, so that masks are needed: never, since tiles divide
        the output."""
        return False


@dataclass
class Convolution:
    """Emitter of a warp-specialized convolution.

    A tile has `tall` positions and the filters of all `pieces` (numbers of filters); a step has `depth` elements of K,
    and the shared-memory ring holds `stages` steps. `name`: of the kernel function.
    """

    kernel: Kernel
    shape: Shape
    name: str
    tall: int
    pieces: tuple[int, ...]
    stages: int
    depth: int

    def __post_init__(self) -> None:
        if (
            self.shape.kind != "contraction"
            or self.shape.batch
            or len(self.shape.dots) != 1
            or len(self.kernel.reductions) != 1
        ):
            raise Unfusable("other reductions than one matrix product")
        ((self.product, dot),) = self.shape.dots.items()
        if len(dot.left) != 1 or len(dot.right) != 1 or any(e.op != "load" for e in (*dot.left, *dot.right)):
            raise Unfusable("product operands that are computed rather than loaded")
        (left,), (right,) = dot.left, dot.right
        sides = [(left, self.shape.rows), (right, self.shape.cols)]
        # the image is the side with guards, or the one with more positions
        sides.sort(key=lambda side: (len(side[0].args) > 0, math.prod(a.size for a in side[1])), reverse=True)
        (self.image, self.positions), (self.filter, self.filters) = sides
        self.axis, self.groups = self.product.axis, self.tall // GROUP
        self.m, self.n = (math.prod(a.size for a in group) for group in (self.positions, self.filters))
        self.wide = sum(self.pieces)
        whole = (
            self.tall % GROUP == 0
            and self.m % self.tall == 0
            and self.n % self.wide == 0
            and self.axis.size % self.depth == 0
        )
        if not whole or len(self.filters) != 1 or self.image.value[3] != self.filter.value[3]:
            raise Unfusable("tiles that do not divide the axes, or operands of different dtypes")
        self.spans = axis_extents(self.positions, GROUP)
        self.image_patch = patch_of(self.image, {**self.spans, self.axis: self.depth})
        (filters,) = self.filters
        self.filter_patches = [patch_of(self.filter, {filters: n, self.axis: self.depth}) for n in self.pieces]
        if any(p.block[-1] != self.depth for p in (self.image_patch, *self.filter_patches)):
            raise Unfusable("a reduction axis that is not innermost in memory")

    def launch(self) -> ConvolutionLaunch:
        """Emit the functions of producer and consumers, and the kernel that assigns these roles to warps; returns its
        launch."""
        rings = ["image", *(f"filters{j}" for j in range(len(self.pieces)))]
        boxes = [f"{ring}_box" for ring in rings]
        compute = self._compute()
        text = "\n".join(compute)
        mentioned = words(text)
        pointers = [n for n in self.kernel.buffers if n in mentioned]
        shared = [*rings, "full", "empty"]
        source = [
            IMPORTS, DESCRIBING, "", SEEING, "", "",
            "@gluon.jit", f"def {self.name}_compute({', '.join([*pointers, *shared])}, W: gl.constexpr):", *compute, "", "",
            "@gluon.jit", f"def {self.name}_copy({', '.join([*boxes, *shared])}):", *self._copy(), "", "",
            "@gluon.jit", f"def {self.name}({', '.join([*pointers, *boxes])}):", *self._kernel(pointers, boxes, rings, shared),
        ]  # fmt: skip
        grid = self.m // self.tall * (self.n // self.wide)
        patches = (self.image_patch, *self.filter_patches)
        return ConvolutionLaunch(self.name, in_gluon(source), grid, tuple(pointers), 4, self.stages, patches=patches)

    def _place(self) -> list[str]:
        """Code of the program's tile coordinates."""
        across = self.n // self.wide
        return [
            "    program = gl.program_id(0)",
            f"    tile_n = program % {across}" if across > 1 else "    tile_n = 0",
            f"    tile_m = program // {across}" if across > 1 else "    tile_m = program",
        ]

    def _compute(self) -> list[str]:
        """The consumers' code: mainloop and epilogue."""
        count, steps = len(self.pieces), self.axis.size // self.depth
        lines = [f"    A{j}: gl.constexpr = {matrix_layout(n)}" for j, n in enumerate(self.pieces)]
        lines += [
            f"    seen: gl.constexpr = {shared_layout(self.depth, 2)}",
            f"    STAGES: gl.constexpr = {self.stages}",
            *self._place(),
        ]
        lines += [f"    acc{j} = gl.zeros([{GROUP}, {n}], gl.float32, layout=A{j})" for j, n in enumerate(self.pieces)]
        dtype = TRITON[self.image.value[3]]
        every = ", ".join(f"acc{j}" for j in range(count))
        deps = f"({every})" if count > 1 else f"[{every}]"
        lines += [
            f"    for step in range({steps}):",
            "        slot = step % STAGES",
            "        mbarrier.wait(full.index(slot), (step // STAGES) & 1)",
            f"        tile = seen_as(image.index(slot * {self.groups} + W), {dtype}, [{GROUP}, {self.depth}], seen)",
            *(
                f"        acc{j} = warpgroup_mma(tile, filters{j}.index(slot).permute((1, 0)), acc{j}, is_async=True)"
                for j in range(count)
            ),
            f"        {every} = warpgroup_mma_wait({count}, deps={deps})",
            "        if step > 0:",
            "            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))",
            f"    {every} = warpgroup_mma_wait(0, deps={deps})",
        ]
        for j in range(count):
            lines += self._behind(j)
        return lines

    def _behind(self, j: int) -> list[str]:
        """The epilogue's code for the filter piece with index `j`."""
        size, layout = self.pieces[j], f"B{j}"
        shape = replace(self.shape, rows=self.positions, cols=self.filters, inner=(), outer=(), dots={})
        frame = EpilogueFrame(self.kernel, Tiling(GROUP, size, {}, 4, 1), self.name, shape)
        piece = TileEmitter(frame)
        frame.top.known[self.product] = Tile("done", ("m", "n"), "float32")
        first = sum(self.pieces[:j])
        frame.line(f"{layout}: gl.constexpr = {self._rows(size)}")
        for text in self._first("W"):
            frame.line(text)
        local, step = f"gl.arange(0, {GROUP}, layout=gl.SliceLayout(1, {layout}))", 1
        if len(self.positions) > 1:
            frame.line(f"m = {local}")
        for a in reversed(self.positions):
            own = local if len(self.positions) == 1 else f"m // {step} % {self.spans[a]}"
            frame.line(f"{piece.positions.axis_text(a)} = {a.name}_first + {own}")
            step *= self.spans[a]
        frame.line(f"n = tile_n * {self.wide} + {first} + gl.arange(0, {size}, layout=gl.SliceLayout(0, {layout}))")
        frame.line(f"done = gl.convert_layout(acc{j}, {layout})")
        piece.stores.write_all(self.kernel.stores)
        return frame.top.lines

    def _first(self, group: str) -> list[str]:
        """Code of a patch's origin along each axis."""
        lines, step = [f"patch = tile_m * {self.groups} + {group}"], 1
        for a in reversed(self.positions):
            count = a.size // self.spans[a]
            lines.append(f"{a.name}_first = patch // {step} % {count} * {self.spans[a]}")
            step *= count
        return lines

    def _rows(self, columns: int) -> str:
        """Text of the register layout of a result tile, in which each thread holds elements that are contiguous in
        memory."""
        store = self.kernel.stores[0]
        if any(store.at.coefficient(a) == 1 for a in self.filters):
            lanes = min(32, columns // 8)
            return f"gl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [4, 1], [1, 0])"
        return "gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])"

    def _copy(self) -> list[str]:
        """The producer's code: the TMA loads of all steps of a tile."""
        nbytes = self.groups * self.image_patch.nbytes + sum(p.nbytes for p in self.filter_patches)
        lines = [f"    STAGES: gl.constexpr = {self.stages}", *self._place()]
        lines += [
            f"    for step in range({self.axis.size // self.depth}):",
            "        slot = step % STAGES",
            f"        {self.axis.name}_first = step * {self.depth}",
            "        mbarrier.wait(empty.index(slot), (step // STAGES) & 1 ^ 1)",
            f"        mbarrier.expect(full.index(slot), {nbytes})",
        ]
        for group in range(self.groups):
            lines += ["        " + text for text in self._first(str(group))]
            lines.append(self._fetch("image", self.image_patch, f"slot * {self.groups} + {group}"))
        (filters,) = self.filters
        for j, p in enumerate(self.filter_patches):
            lines.append(f"        {filters.name}_first = tile_n * {self.wide} + {sum(self.pieces[:j])}")
            lines.append(self._fetch(f"filters{j}", p, "slot"))
        return lines

    @staticmethod
    def _fetch(ring: str, p: Patch, slot: str) -> str:
        """The statement of one TMA load into a slot of a ring."""
        return f"        fetch_box({ring}_box, [{', '.join(p.origin)}], full.index(slot), {ring}.index({slot}))"

    def _kernel(
        self, pointers: Sequence[str], boxes: Sequence[str], rings: Sequence[str], shared: Sequence[str]
    ) -> list[str]:
        """The kernel's body: shared memory, barriers, assignment of roles."""
        dtype = TRITON[self.image.value[3]]
        lines = []
        for ring, p in zip(rings, (self.image_patch, *self.filter_patches), strict=True):
            slots = self.stages * (self.groups if ring == "image" else 1)
            lines.append(f"{ring} = gl.allocate_shared_memory({dtype}, {[slots, *p.block]}, {ring}_box.layout)")
        for part in ("full", "empty"):
            lines.append(f"{part} = gl.allocate_shared_memory(gl.int64, [{self.stages}, 1], mbarrier.MBarrierLayout())")
        lines += [
            f"for i in gl.static_range({self.stages}):",
            "    mbarrier.init(full.index(i), count=1)",
            f"    mbarrier.init(empty.index(i), count={self.groups})",
            "fence_async_shared()",
            "gl.warp_specialize([",
            *(f"    ({self.name}_compute, ({', '.join([*pointers, *shared])}, {g}))," for g in range(self.groups)),
            f"    ({self.name}_copy, ({', '.join([*boxes, *shared])})),",
        ]
        many, few = REGISTERS
        lines.append(f"], {[4] * (self.groups - 1) + [1]}, {[many] * (self.groups - 1) + [few]})")
        return ["    " + line for line in lines]


def emit_convolution(kernel: Kernel, schedule: ConvolutionSchedule, name: str, shape: Shape) -> ConvolutionLaunch:
    """Emit a warp-specialized convolution with the tiles of `schedule` as Gluon functions; returns the launch. `name`:
    of the kernel function; `shape`: roles of the kernel's axes (row, column, batch, reduction).

    Raises Unfusable unless the kernel is one product of images and filters, both 16-bit, in tiles that divide the
    output.
    """
    return convolution_of(kernel, schedule, name, shape).launch()


def convolution_of(kernel: Kernel, schedule: ConvolutionSchedule, name: str, shape: Shape) -> Convolution:
    """The emitter of `kernel` as a convolution with the tiles of `schedule`; `name`: of the kernel function; `shape`:
    roles of the kernel's axes (row, column, batch, reduction).

    Raises Unfusable under the conditions of `emit_convolution`.
    """
    pieces = tuple(n for n in (schedule.wide, schedule.more) if n)
    return Convolution(kernel, shape, name, schedule.tall, pieces, schedule.stages, schedule.k[0])
