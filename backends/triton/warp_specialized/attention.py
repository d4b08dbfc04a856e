"""Warp-specialized attention for Hopper as the text of Gluon functions (Triton's language with explicit layouts).

One producer warp loads tiles of keys and values by TMA into shared-memory rings (ir/tensor_maps.py); consumer groups of
four warps compute 64 rows each. Both sides synchronize through mbarriers, tile by tile. Programs are persistent: one
per SM, which starts the next tile of rows while the last one is being written.

Computation is emitted from the same expressions as by the Triton emitter; only products, waits and layouts are added
here. warp_specialized/tiles.py places tiles, warp_specialized/attention_loop.py emits a consumer's loop over keys. This module emits one function per
role, and the kernel that assigns roles to warps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.index import WIDE
from ...ir.kernel import Kernel, OutputStore, Unfusable
from ...ir.tiling import Shape, Tiling
from ...machine import target
from ..emit.frame import TritonScope
from ..emit.spelling import TRITON, Launch, Tile, names_it
from .attention_loop import AttentionLoop
from .spelling import GROUP, IMPORTS, REGISTERS, SEEING, in_gluon, matrix_layout, shared_layout, swizzle
from .tiles import numbered


@dataclass(frozen=True)
class RoleLaunch(Launch):
    """A launch of a warp-specialized kernel (4 warps before specialization), whose tensor maps include the
    shared-memory swizzle."""

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches the kernel; `names` maps arguments to variables."""
        described = [
            f"described({names[o]}, {b.shape}, {b.block}, {swizzle(b.block[-1])}{f', {b.strides}' if b.strides else ''})"
            for o, b in self.boxes
        ]
        return f"{self.name}[({self.grid},)]({', '.join([*(names[a] for a in self.args), *described])}, num_warps=4)"


def emit_attention(kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> RoleLaunch:
    """The launch of attention with given tiles (64 rows per four warps). Unfusable unless the kernel is one product
    with keys inside one with values, both operands 16-bit and loadable by TMA."""
    groups = tiling.warps // 4
    if shape.kind != "attention" or not shape.rows or len(shape.cols) != 1 or tiling.m != groups * GROUP:
        raise Unfusable("roles are for attention over whole groups of rows")
    row = max(shape.rows, key=lambda a: (a.size % tiling.m == 0, a.size))
    alone = replace(shape, rows=(row,), batch=(*shape.batch, *(a for a in shape.rows if a is not row)))
    return Roles(kernel, replace(tiling, m=GROUP), name, alone, groups).roles()


class Roles(AttentionLoop):
    """Emitter of a warp-specialized attention kernel."""

    def roles(self) -> RoleLaunch:
        """The functions of producer and consumers, and the kernel that assigns roles to warps."""
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // self.tall), -(-s.n // t.n)
        programs = tiles_m * tiles_n * math.prod(a.size for a in s.batch)
        rounds = -(-programs // target().multiprocessors)
        grid = min(programs, target().multiprocessors)
        place = TritonScope(3 if rounds > 1 else 1, set())
        self.top.indent = place.indent
        self.turn = "turn" if rounds > 1 else "0"
        with self.inside(place):
            self.place(tiles_m, tiles_n)
        placed = [*place.lines]
        with self.inside(place):
            self._spans(tiles_m, tiles_n)
        if len(self.piece("n")) > 1:
            self._in_pieces()
        else:
            self._stores(self.kernel.stores)
        if len(self.rings) != 2:
            raise Unfusable("no loop over keys")
        compute = self._turns(rounds, grid, programs) + [*place.lines, *self.top.lines]
        copy = self._turns(rounds, grid, programs) + placed + self._copies("    " * place.indent)
        pointers = [n for n in self.kernel.buffers if any(names_it(line, n) for line in compute)]
        rings = [*(["queries"] if self.asked else []), *(ring for ring, _ in self.rings)]
        queries = numbered("queries", max(1, len(self.asked)))
        copied = [tile for ring, names in self.rings for tile in numbered(ring, len(names))]
        copied += [f"{r}_{part}" for r in rings for part in ("full", "empty")]
        shared = [*queries, *copied]
        copied = shared if self.asked else copied
        boxes = [*self.asked, *(name for _, names in self.rings for name in names)]
        source = [
            IMPORTS, *([SEEING] if self.views else []), "", "",
            "@gluon.jit", f"def {self.name}_compute({', '.join([*pointers, *shared])}, W: gl.constexpr):",
            *self._layouts(), f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *compute, "", "",
            "@gluon.jit", f"def {self.name}_copy({', '.join([*boxes, *copied])}):",
            f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *copy, "", "",
            "@gluon.jit", f"def {self.name}({', '.join([*pointers, *boxes])}):", *self._kernel(pointers, boxes, shared, copied),
        ]  # fmt: skip
        described = tuple(self.described[name] for name in boxes)
        return RoleLaunch(self.name, in_gluon(source), grid, tuple(pointers), 4, t.stages, described)

    def _in_pieces(self) -> None:
        """Emit all results by column piece; values that do not depend on columns are computed once."""
        products = [e for e, d in self.shape.dots.items() if e.axis == self.axis and d.cols]
        if len(products) != 1:
            raise Unfusable("several products whose columns are in pieces")
        (product,) = products
        self.value(product)
        columns = {*self.shape.cols}
        self.top.bound -= columns
        pieces = self.piece("n")
        for i, (begin, size) in enumerate(pieces):
            inner = TritonScope(self.top.indent, self.top.bound | columns, outside=self.top)
            inner.known[product] = Tile(self.sums[i], ("m", "n"), "float32")
            self.layouts["m", "n"], self.stored = (numbered(x, len(pieces))[i] for x in "OB")
            with self.inside(inner), self.resized("n", size, begin):
                self._columns(f"{begin} + " if begin else "", size)
                for store in self.kernel.stores:
                    self._store(store)
            self.top.lines += inner.lines

    def _store(self, store: OutputStore) -> None:
        """Emit the store of a result: rounded, converted to a memory-friendly layout, written."""
        spot = self.kernel.buffers[store.buffer]
        tile = self.floated(store.value)
        if store.guards or tile.dims != ("m", "n"):
            raise Unfusable("a result that is no tile of rows and columns")
        text = tile.text if tile.dtype == spot.dtype else f"{tile.atom}.to({TRITON[spot.dtype]})"
        self.away = True
        where = self.position(store.at, store.at.range[1] >= WIDE)
        self.away = False
        if where.dims != ("m", "n"):
            raise Unfusable("a place that is no tile of rows and columns")
        ends = [f"(m_stored < {self.extent['m']})[:, None]"] * self.ragged("m")
        ends += [f"(n_stored < {self.extent['n']})[None, :]"] * self.ragged("n")
        mask = f", mask={' & '.join(ends)}" if ends else ""
        turned = f"tl.convert_layout({text}, {self.stored})"
        if self.through:
            if spot.dtype != self.kernel.buffers[self.described[self.asked[0]][0]].dtype or len(self.kernel.stores) > 1:
                raise Unfusable("a result that does not lie as queries do")
            self.line(f"{self.mine[0]}.store({text})")
            turned = f"{self.mine[0]}.load({self.stored})"
        self.line(f"tl.store({store.buffer} + {where.atom}, {turned}{mask})")
        if self.through:
            for text in ("fence_async_shared()", *self._done_with_queries()):
                self.line(text)

    def _columns(self, across: str, size: int) -> None:
        """Emit the column indices of results, and the row and column indices of stores."""
        out, base = self.layouts["m", "n"], f"tile_m * {self.tall} + " if self.shape.m > self.tall else ""
        self.line(f"m_stored = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, {self.stored}))")
        self.line(f"n = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {out}))")
        self.line(f"n_stored = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {self.stored}))")

    def _turns(self, rounds: int, grid: int, programs: int) -> list[str]:
        """The persistent loop over a program's tiles: in alternating order, so that long tiles are paired with short
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
        base = f"tile_m * {self.tall} + " if tiles_m > 1 else ""
        across = f"tile_n * {self.block['n']} + " if tiles_n > 1 else ""
        self.line(f"m = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, S))")
        if len(self.piece("n")) == 1:
            self._columns(across, self.block["n"])
        for a in self.shape.inner:
            if a not in self.walked:
                self.line(f"{a.name} = tl.arange(0, {self.block[a.name]}, layout=tl.SliceLayout(0, Q))")

    def _layouts(self) -> list[str]:
        """Constants of the register and shared-memory layouts."""

        def rows(columns: int) -> str:
            lanes = min(32, columns // 8)
            return f"gl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [4, 1], [1, 0])"

        pieces = self.piece("n")
        names = zip(pieces, *(numbered(x, len(pieces)) for x in "OPB"))
        found = {"S": matrix_layout(self.block[self.axis.name])}
        for (_, columns), out, operand, _ in names:
            found |= {out: matrix_layout(columns), operand: f"gl.DotOperandLayout(0, {out}, 2)"}
        found["Q"] = rows(self.width)
        found |= {name: rows(columns) for (_, columns), name in zip(pieces, numbered("B", len(pieces)))}
        found |= {name: shared_layout(columns) for columns, name in self.views.items()}
        return [f"    {name}: gl.constexpr = {text}" for name, text in found.items()]

    def _copies(self, pad: str) -> list[str]:
        """The producer's code for one tile."""
        axis, inner = self.axis.name, pad + "    "
        lines = []
        if self.asked:
            boxes = [(name, self.described[name][1]) for name in self.asked]
            tile = f"tile_m * {self.tall}" if self.shape.m > self.tall else "0"
            size = sum(2 * self.groups * math.prod(found.block) for _, found in boxes)
            lines += [
                f"{pad}mbarrier.wait(queries_empty.index({self.slot}), {self.phase} ^ 1)",
                f"{pad}mbarrier.expect(queries_full.index({self.slot}), {size})",
            ]
            for group in range(self.groups):
                lines.append(f"{pad}rows = {tile} + {group * GROUP}")
                for (name, found), place in zip(boxes, self.queries(str(group))):
                    at = f"[{', '.join(found.origin)}], queries_full.index({self.slot})"
                    lines.append(f"{pad}fetch_box({name}, {at}, {place})")
        lines += [pad + text for text in self.bounds]
        lines += [f"{pad}for block in range(blocks):", f"{inner}slot = step % STAGES"]
        lines.append(f"{inner}{axis}_ = begin + (blocks - 1 - block) * {self.block[axis]}")
        for ring, names in self.rings:
            size = sum(2 * math.prod(self.described[name][1].block) for name in names)
            lines += [
                f"{inner}mbarrier.wait({ring}_empty.index(slot), (step // STAGES) & 1 ^ 1)",
                f"{inner}mbarrier.expect({ring}_full.index(slot), {size})",
            ]
            for name, place in zip(names, numbered(ring, len(names))):
                at = f"[{', '.join(self.described[name][1].origin)}], {ring}_full.index(slot)"
                lines.append(f"{inner}fetch_box({name}, {at}, {place}.index(slot))")
        return [*lines, f"{inner}step += 1"]

    def _kernel(
        self, pointers: Sequence[str], boxes: Sequence[str], shared: Sequence[str], copied: Sequence[str]
    ) -> list[str]:
        """The kernel's body: shared memory, barriers, assignment of roles."""
        stages, lines = self.tiling.stages, []
        dtype = TRITON[self.kernel.buffers[self.described[boxes[-1]][0]].dtype]
        for name, queries in zip(self.asked or [""], numbered("queries", max(1, len(self.asked)))):
            tile, layout = [GROUP, self.width], shared_layout(self.width)
            if name and ((found := self.described[name][1]).strides or len(self.asked) > 1):
                tile, layout = [*found.block], f"{name}.layout"
            lines.append(
                f"{queries} = gl.allocate_shared_memory({dtype}, {[self.slots * self.groups, *tile]}, {layout})"
            )
        for ring, names in self.rings:
            for name, place in zip(names, numbered(ring, len(names))):
                block = [stages, *self.described[name][1].block]
                lines.append(f"{place} = gl.allocate_shared_memory({dtype}, {block}, {name}.layout)")
            for part in ("full", "empty"):
                lines.append(
                    f"{ring}_{part} = gl.allocate_shared_memory(gl.int64, [{stages}, 1], mbarrier.MBarrierLayout())"
                )
        if self.asked:
            for part, count in (("full", 1), ("empty", self.groups)):
                lines.append(
                    f"queries_{part} = gl.allocate_shared_memory(gl.int64, [{self.slots}, 1], mbarrier.MBarrierLayout())"
                )
                lines += [f"mbarrier.init(queries_{part}.index({i}), count={count})" for i in range(self.slots)]
        lines.append(f"for i in gl.static_range({stages}):")
        for ring, _ in self.rings:
            lines.append(f"    mbarrier.init({ring}_full.index(i), count=1)")
            lines.append(f"    mbarrier.init({ring}_empty.index(i), count={self.groups})")
        lines.append("fence_async_shared()")
        lines.append("gl.warp_specialize([")
        for group in range(self.groups):
            lines.append(f"    ({self.name}_compute, ({', '.join([*pointers, *shared])}, {group})),")
        lines.append(f"    ({self.name}_copy, ({', '.join([*boxes, *copied])})),")
        many, few = REGISTERS
        warps, registers = [4] * (self.groups - 1) + [1], [many] * (self.groups - 1) + [few]
        lines.append(f"], {warps}, {registers})")
        return ["    " + line for line in lines]
