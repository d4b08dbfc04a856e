"""Emits loads of tiles: masked pointer loads, or TMA loads of boxes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import Expr
from ...ir.index import WIDE, Axis, Index
from ...ir.tensor_maps import Box, as_one, box
from .frame import TritonPart
from .index import Positions
from .spelling import ITEMSIZE, Tile
from .values import TileValues


@dataclass(eq=False)
class TileLoads(TritonPart):
    """Emitter part for loads: makes the Triton expression of the tile that a load reads."""

    positions: Positions
    values: TileValues

    def read_inside(self, e: Expr) -> None:
        """Emit the load `e`, which does not depend on the surrounding loop, inside that loop, after the copies that
        fill the loop's pipeline.

        If it were issued before the loop, the copies would wait for it. A term that is 0, but seems to depend on the
        loop, is added to the address, so that the compiler does not hoist the load. (Attention of one query row over
        4096 keys, with 16 sets of 8 heads, on an H200: 7.2 instead of 7.8 µs.)
        """
        frame = self.frame
        around = frame.scope.outside.bound if frame.scope.outside is not None else frame.scope.bound
        for axis in frame.scope.bound - around - frame.single:
            if e not in frame.scope.known and e.axes <= around:
                frame.scope.known[e] = self.values.named(self.load(e, f"{axis.name}_ // {axis.size}"))

    def load(self, e: Expr, moving: str = "") -> Tile:
        """Triton expression (a `Tile`) of the values that the load `e` reads: a TMA box if possible, else a masked
        pointer load.

        `moving`: Triton expression that is 0 but seems to depend on a loop, added to the address so that the load stays
        in the loop (`read_inside`).
        """
        frame = self.frame
        operand, at, steps, dtype = e.value
        if self.tiling.options.get("boxes") and not e.args and (tile := self.boxed(operand, at, dtype)) is not None:
            return tile
        span = at.range[1] + sum(abs(s) for s in steps) * WIDE * bool(steps)
        where = self.positions.position(at, span >= WIDE)
        picks = [(self.values.value(a), s) for a, s in zip(e.args, steps)]
        guards = [self.values.value(g) for g in e.args[len(steps) :]]
        dims = frame.union([where, *(p for p, _ in picks), *guards])
        parts = [
            operand,
            *([moving] if moving else []),
            *([frame.spread(where, dims) if where.dims != dims else where.text] if where.text != "0" else []),
        ]
        parts += [
            str(int(p.text) * s) if p.text.lstrip("-").isdigit() else f"{frame.spread(p, dims)}.to(tl.int64) * {s}"
            for p, s in picks
        ]
        mask = self.positions.mask(dims, dims, guards)
        if mask and dims != frame.union([where, *(p for p, _ in picks)]):
            # pointers must have all dimensions of the mask
            parts.append(f"tl.zeros({frame.sizes(dims)}, tl.int32)")
        fresh = ", cache_modifier='.cg'" if frame.fresh_loads and operand.startswith("part") else ""
        text = f"tl.load({' + '.join(parts)}{f', mask={mask}, other=0' if mask else ''}{fresh})"
        if dtype == "bool":
            return Tile(f"{text} != 0", dims, "bool")
        return Tile(text, dims, dtype)

    def boxed(self, operand: str, at: Index, dtype: str) -> Tile | None:
        """Triton expression (a `Tile`) of a TMA load of `operand`, of `dtype`, at the index `at`. None if TMA cannot
        load it, or outside of loops, where pointer loads are faster."""
        frame = self.frame
        if frame.fresh_loads or not at.axes & (frame.walked.union(self.shape.cols) if frame.n_loop else frame.walked):
            return None  # loads outside of loops go to registers: shared memory takes longer and more space
        named = self.box_of(operand, at, dtype)
        if named is None:
            return None
        name, found = named
        dims = tuple(frame.dim_of(a) for a in found.axes)
        text = f"{name}.load([{found.origin[0]}, {found.origin[1]}])"
        in_order = frame.order.index(dims[0]) < frame.order.index(dims[1])
        return Tile(text, dims, dtype) if in_order else Tile(f"tl.trans({text})", dims[::-1], dtype)

    def box_of(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """(name of the tensor map, TMA box) with which TMA loads `operand` at the index `at`; None if TMA cannot load
        it. The tensor map (TMA descriptor) is added to the kernel's parameters. `dtype`: of the operand."""
        frame = self.frame
        if dtype not in ITEMSIZE:
            return None
        tiles: dict[Axis, tuple[str, int]] = {}
        first: dict[Axis, Axis] = {}
        inside = {a: frame.dim_of(a) for a in at.axes if a not in self.shape.batch and a not in frame.single}
        for dim in dict.fromkeys(inside.values()):
            group = {"m": self.shape.rows, "n": self.shape.cols}.get(dim) or tuple(
                a for a in inside if inside[a] == dim
            )
            one = group[0] if len(group) == 1 else Axis(f"{dim}_all", frame.extent[dim])
            moved = as_one(at, group, one)
            if moved is None or {a for a in inside if inside[a] == dim} != {*group}:
                return None
            if frame.extent[dim] < frame.block[dim]:  # mostly out-of-bounds boxes take longer than their contents
                return None
            at, first[one] = moved, group[0]
            tiles[one] = self.positions.origin(group[0], dim), frame.block[dim]
        ends = {one for one, a in first.items() if frame.ragged(frame.dim_of(a))}
        found = box(at, tiles, ITEMSIZE[dtype], self.positions.axis_text, ends)
        if found is None:
            return None
        slow, fast = found.axes
        found = replace(found, axes=(first[slow], first[fast]))
        key = operand, found.shape, found.block, found.strides
        name = frame.boxes.setdefault(key, f"{operand}_box{len(frame.boxes)}")
        frame.described[name] = operand, found
        return name, found
