"""Emits warp-specialized attention for Hopper as the text of Gluon functions (Triton's language with explicit layouts).

One producer warp loads tiles of keys and values by TMA into shared-memory rings (ir/tensor_maps.py); consumer groups of
four warps compute 64 rows each. Both sides synchronize through mbarriers, tile by tile. Programs are persistent: there
is one per SM, and it starts the next tile of rows while the previous tile is being written.

Computation is emitted from the same expressions as by the Triton emitter (emit/kernel.py), whose parts for positions,
loads, reductions and stores are replaced: tiles.py places tiles in shared memory, attention_loop.py emits a consumer's
loop over keys, attention_stores.py its results. This module connects the parts, and emits one function per role and the
kernel that assigns roles to warps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.kernel import Kernel
from ...ir.source_text import words
from ...ir.tiling import Shape, Tiling
from ...ir.unfusable import Unfusable
from ...machine import target
from ..emit.frame import TritonPart, TritonScope
from ..emit.grid import Grid
from ..emit.loop_bounds import LoopBounds
from ..emit.products import Products
from ..emit.spelling import TRITON, TritonLaunch
from ..emit.values import TileValues
from .attention_frame import AttentionFrame, numbered
from .attention_loop import AttentionLoops
from .attention_stores import AttentionStores
from .spelling import GROUP, IMPORTS, REGISTERS, SEEING, in_gluon, matrix_layout, shared_layout, swizzle
from .tiles import AttentionLoads, AttentionPositions, SharedTiles


@dataclass(frozen=True)
class RoleLaunch(TritonLaunch):
    """One emitted warp-specialized Gluon kernel and its launch. The kernel's default partition (the first consumer warp
    group) has 4 warps, and its tensor maps include the shared-memory swizzle."""

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that launches the kernel; `names` maps its buffers to Python variables."""
        described = [
            f"described({names[o]}, {b.shape}, {b.block}, {swizzle(b.block[-1])}{f', {b.strides}' if b.strides else ''})"
            for o, b in self.boxes
        ]
        return f"{self.name}[({self.grid},)]({', '.join([*(names[a] for a in self.args), *described])}, num_warps=4)"


def emit_attention(kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> RoleLaunch:
    """Emit warp-specialized attention as Gluon functions; returns the launch. `tiling`: tile sizes, with 64 rows per
    four warps; `name`: of the kernel function; `shape`: roles of the kernel's axes (row, column, batch, reduction).

    Raises Unfusable unless the kernel is one product with keys inside one with values, both operands 16-bit and
    loadable by TMA.
    """
    groups = tiling.warps // 4
    if shape.kind != "attention" or not shape.rows or len(shape.cols) != 1 or tiling.m != groups * GROUP:
        raise Unfusable("not attention over row tiles of one warp group each")
    row = max(shape.rows, key=lambda a: (a.size % tiling.m == 0, a.size))
    alone = replace(shape, rows=(row,), batch=(*shape.batch, *(a for a in shape.rows if a is not row)))
    return AttentionEmitter(AttentionFrame(kernel, replace(tiling, m=GROUP), name, alone, groups)).launch()


class AttentionEmitter(TritonPart):
    """Emitter of a warp-specialized attention kernel: connects the parts that write loads, loops, products and
    stores."""

    frame: AttentionFrame

    def __init__(self, frame: AttentionFrame) -> None:
        super().__init__(frame)
        positions = AttentionPositions(frame)
        values = TileValues(frame, positions)
        loads = AttentionLoads(frame, positions, values)
        products, bounds = Products(frame, values, loads), LoopBounds(frame, positions, values)
        self.tiles = SharedTiles(frame, loads)
        self.loops = AttentionLoops(frame, values, products, bounds, loads, self.tiles)
        self.stores = AttentionStores(frame, positions, values, self.tiles, self.loops)
        self.grid = Grid(frame, positions, bounds)
        values.makers = {"load": loads.load, "reduce": self.loops.reduction}

    def launch(self) -> RoleLaunch:
        """Emit the functions of producer and consumers, and the kernel that assigns these roles to warps; returns its
        launch."""
        frame = self.frame
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // frame.tall), -(-s.n // t.n)
        programs = tiles_m * tiles_n * math.prod(a.size for a in s.batch)
        rounds = -(-programs // target().multiprocessors)
        grid = min(programs, target().multiprocessors)
        place = TritonScope(3 if rounds > 1 else 1, set())
        frame.top.indent = place.indent
        self.tiles.turn = "turn" if rounds > 1 else "0"
        with self.inside(place):
            self.grid.place(tiles_m, tiles_n)
        placed = [*place.lines]
        with self.inside(place):
            self._spans(tiles_m, tiles_n)
        if len(frame.piece("n")) > 1:
            self.stores.in_pieces()
        else:
            self.stores.write_all(self.kernel.stores)
        if len(frame.rings) != 2:
            raise Unfusable("not one ring buffer of keys and one of values")
        compute = self._turns(rounds, grid, programs) + [*place.lines, *frame.top.lines]
        copy = self._turns(rounds, grid, programs) + placed + self._copies("    " * place.indent)
        text = "\n".join(compute)
        mentioned = words(text)
        pointers = [n for n in self.kernel.buffers if n in mentioned]
        rings = [*(["queries"] if frame.asked else []), *(ring for ring, _ in frame.rings)]
        queries = numbered("queries", max(1, len(frame.asked)))
        copied = [tile for ring, names in frame.rings for tile in numbered(ring, len(names))]
        copied += [f"{r}_{part}" for r in rings for part in ("full", "empty")]
        shared = [*queries, *copied]
        copied = shared if frame.asked else copied
        boxes = [*frame.asked, *(name for _, names in frame.rings for name in names)]
        source = [
            IMPORTS, *([SEEING] if self.tiles.views else []), "", "",
            "@gluon.jit", f"def {frame.name}_compute({', '.join([*pointers, *shared])}, W: gl.constexpr):",
            *self._layouts(), f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *compute, "", "",
            "@gluon.jit", f"def {frame.name}_copy({', '.join([*boxes, *copied])}):",
            f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *copy, "", "",
            "@gluon.jit", f"def {frame.name}({', '.join([*pointers, *boxes])}):", *self._kernel(pointers, boxes, shared, copied),
        ]  # fmt: skip
        described = tuple(frame.described[name] for name in boxes)
        return RoleLaunch(frame.name, in_gluon(source), grid, tuple(pointers), 4, t.stages, described)

    def _turns(self, rounds: int, grid: int, programs: int) -> list[str]:
        """The persistent loop over a program's tiles, in alternating order, so that long tiles are paired with short
        ones."""
        if rounds == 1:
            return ["    program = tl.program_id(0)"] if programs > 1 else []
        last = f"turn % 2 * ({grid - 1} - 2 * tl.program_id(0))"
        return [
            f"    for turn in range({rounds}):",
            f"        program = turn * {grid} + tl.program_id(0) + {last}",
            f"        if program < {programs}:",
        ]

    def _spans(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the row and column indices of a tile, in the layouts of scores, results and stores."""
        frame = self.frame
        base = f"tile_m * {frame.tall} + " if tiles_m > 1 else ""
        across = f"tile_n * {frame.block['n']} + " if tiles_n > 1 else ""
        self.line(f"m = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, S))")
        if len(frame.piece("n")) == 1:
            self.stores.column_indices(across, frame.block["n"])
        for a in self.shape.inner:
            if a not in frame.walked:
                self.line(f"{a.name} = tl.arange(0, {frame.block[a.name]}, layout=tl.SliceLayout(0, Q))")

    def _layouts(self) -> list[str]:
        """Constants of the register and shared-memory layouts."""
        frame = self.frame

        def rows(columns: int) -> str:
            lanes = min(32, columns // 8)
            return f"gl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [4, 1], [1, 0])"

        pieces = frame.piece("n")
        names = zip(pieces, *(numbered(x, len(pieces)) for x in "OPB"))
        found = {"S": matrix_layout(frame.block[frame.axis.name])}
        for (_, columns), out, operand, _ in names:
            found |= {out: matrix_layout(columns), operand: f"gl.DotOperandLayout(0, {out}, 2)"}
        found["Q"] = rows(self.tiles.width)
        found |= {name: rows(columns) for (_, columns), name in zip(pieces, numbered("B", len(pieces)))}
        found |= {name: shared_layout(columns) for columns, name in self.tiles.views.items()}
        return [f"    {name}: gl.constexpr = {text}" for name, text in found.items()]

    def _copies(self, pad: str) -> list[str]:
        """The producer's code for one tile."""
        frame = self.frame
        axis, inner = frame.axis.name, pad + "    "
        lines = []
        if frame.asked:
            boxes = [(name, frame.described[name][1]) for name in frame.asked]
            tile = f"tile_m * {frame.tall}" if self.shape.m > frame.tall else "0"
            size = sum(2 * frame.groups * math.prod(found.block) for _, found in boxes)
            lines += [
                f"{pad}mbarrier.wait(queries_empty.index({self.tiles.slot}), {self.tiles.phase} ^ 1)",
                f"{pad}mbarrier.expect(queries_full.index({self.tiles.slot}), {size})",
            ]
            for group in range(frame.groups):
                lines.append(f"{pad}rows = {tile} + {group * GROUP}")
                for (name, found), place in zip(boxes, self.tiles.queries(str(group))):
                    at = f"[{', '.join(found.origin)}], queries_full.index({self.tiles.slot})"
                    lines.append(f"{pad}fetch_box({name}, {at}, {place})")
        lines += [pad + text for text in self.loops.key_range]
        lines += [f"{pad}for block in range(blocks):", f"{inner}slot = step % STAGES"]
        lines.append(f"{inner}{axis}_ = begin + (blocks - 1 - block) * {frame.block[axis]}")
        for ring, names in frame.rings:
            size = sum(2 * math.prod(frame.described[name][1].block) for name in names)
            lines += [
                f"{inner}mbarrier.wait({ring}_empty.index(slot), (step // STAGES) & 1 ^ 1)",
                f"{inner}mbarrier.expect({ring}_full.index(slot), {size})",
            ]
            for name, place in zip(names, numbered(ring, len(names))):
                at = f"[{', '.join(frame.described[name][1].origin)}], {ring}_full.index(slot)"
                lines.append(f"{inner}fetch_box({name}, {at}, {place}.index(slot))")
        return [*lines, f"{inner}step += 1"]

    def _kernel(
        self, pointers: Sequence[str], boxes: Sequence[str], shared: Sequence[str], copied: Sequence[str]
    ) -> list[str]:
        """The kernel's body: shared memory, barriers, assignment of roles."""
        frame = self.frame
        stages, lines = self.tiling.stages, []
        dtype = TRITON[self.kernel.buffers[frame.described[boxes[-1]][0]].dtype]
        for name, queries in zip(frame.asked or [""], numbered("queries", max(1, len(frame.asked)))):
            tile, layout = [GROUP, self.tiles.width], shared_layout(self.tiles.width)
            if name and ((found := frame.described[name][1]).strides or len(frame.asked) > 1):
                tile, layout = [*found.block], f"{name}.layout"
            lines.append(
                f"{queries} = gl.allocate_shared_memory({dtype}, {[self.tiles.slots * frame.groups, *tile]}, {layout})"
            )
        for ring, names in frame.rings:
            for name, place in zip(names, numbered(ring, len(names))):
                block = [stages, *frame.described[name][1].block]
                lines.append(f"{place} = gl.allocate_shared_memory({dtype}, {block}, {name}.layout)")
            for part in ("full", "empty"):
                lines.append(
                    f"{ring}_{part} = gl.allocate_shared_memory(gl.int64, [{stages}, 1], mbarrier.MBarrierLayout())"
                )
        if frame.asked:
            for part, count in (("full", 1), ("empty", frame.groups)):
                lines.append(
                    f"queries_{part} = gl.allocate_shared_memory(gl.int64, [{self.tiles.slots}, 1], mbarrier.MBarrierLayout())"
                )
                lines += [f"mbarrier.init(queries_{part}.index({i}), count={count})" for i in range(self.tiles.slots)]
        lines.append(f"for i in gl.static_range({stages}):")
        for ring, _ in frame.rings:
            lines.append(f"    mbarrier.init({ring}_full.index(i), count=1)")
            lines.append(f"    mbarrier.init({ring}_empty.index(i), count={frame.groups})")
        lines.append("fence_async_shared()")
        lines.append("gl.warp_specialize([")
        for group in range(frame.groups):
            lines.append(f"    ({frame.name}_compute, ({', '.join([*pointers, *shared])}, {group})),")
        lines.append(f"    ({frame.name}_copy, ({', '.join([*boxes, *copied])})),")
        many, few = REGISTERS
        warps, registers = [4] * (frame.groups - 1) + [1], [many] * (frame.groups - 1) + [few]
        lines.append(f"], {warps}, {registers})")
        return ["    " + line for line in lines]
