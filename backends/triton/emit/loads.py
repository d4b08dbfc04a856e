"""Loads of tiles: masked pointer loads, or TMA loads of boxes."""

from __future__ import annotations

from dataclasses import replace

from ...ir.index import WIDE, Axis, Index
from ...ir.kernel import Expr
from ...ir.tensor_maps import Box, as_one, box
from .spelling import ITEMSIZE, Tile
from .values import Values


class Loads(Values):
    """Emitter of loads."""

    def read_inside(self, e: Expr) -> None:
        """Emit a loop-invariant load inside the surrounding loop, after the loop's prologue copies, which would
        otherwise wait for the load.

        Its address is made to look loop-dependent, so that the compiler does not hoist the load. (One row in 16 of 8
        heads of 4096 keys: 7.8 to 7.2 µs on an H200.)
        """
        around = self.scope.outside.bound if self.scope.outside is not None else self.scope.bound
        for axis in self.scope.bound - around - self.single:
            if e not in self.scope.known and e.axes <= around:
                self.scope.known[e] = self.named(self.load(e, f"{axis.name}_ // {axis.size}"))

    def load(self, e: Expr, moving: str = "") -> Tile:
        """The tile of a load: a TMA box if possible, else a masked pointer load. `moving` is the text of a 0 to be
        added to the address."""
        operand, at, steps, dtype = e.value
        if self.tiling.options.get("boxes") and not e.args and (tile := self.boxed(operand, at, dtype)) is not None:
            return tile
        span = at.range[1] + sum(abs(s) for s in steps) * WIDE * bool(steps)
        where = self.position(at, span >= WIDE)
        picks = [(self.value(a), s) for a, s in zip(e.args, steps)]
        guards = [self.value(g) for g in e.args[len(steps) :]]
        dims = self.union([where, *(p for p, _ in picks), *guards])
        parts = [
            operand,
            *([moving] if moving else []),
            *([self.spread(where, dims) if where.dims != dims else where.text] if where.text != "0" else []),
        ]
        parts += [
            str(int(p.text) * s) if p.text.lstrip("-").isdigit() else f"{self.spread(p, dims)}.to(tl.int64) * {s}"
            for p, s in picks
        ]
        mask = self.mask(dims, dims, guards)
        if mask and dims != self.union(
            [where, *(p for p, _ in picks)]
        ):  # pointers must have all dimensions of the mask
            parts.append(f"tl.zeros({self.sizes(dims)}, tl.int32)")
        fresh = ", cache_modifier='.cg'" if self.fresh_loads and operand.startswith("part") else ""
        text = f"tl.load({' + '.join(parts)}{f', mask={mask}, other=0' if mask else ''}{fresh})"
        if dtype == "bool":
            return Tile(f"{text} != 0", dims, "bool")
        return Tile(text, dims, dtype)

    def boxed(self, operand: str, at: Index, dtype: str) -> Tile | None:
        """The tile of a TMA load, or None: TMA supports neither gathers nor masks."""
        if self.fresh_loads or not at.axes & (self.walked.union(self.shape.cols) if self.n_loop else self.walked):
            return None  # loads outside of loops go to registers: shared memory takes longer and more space
        named = self.box_of(operand, at, dtype)
        if named is None:
            return None
        name, found = named
        dims = tuple(self.dim_of(a) for a in found.axes)
        text = f"{name}.load([{found.origin[0]}, {found.origin[1]}])"
        in_order = self.order.index(dims[0]) < self.order.index(dims[1])
        return Tile(text, dims, dtype) if in_order else Tile(f"tl.trans({text})", dims[::-1], dtype)

    def box_of(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """(tensor-map name, box) of a load, or None."""
        if dtype not in ITEMSIZE:
            return None
        tiles: dict[Axis, tuple[str, int]] = {}
        first: dict[Axis, Axis] = {}
        inside = {a: self.dim_of(a) for a in at.axes if a not in self.shape.batch and a not in self.single}
        for dim in dict.fromkeys(inside.values()):
            group = {"m": self.shape.rows, "n": self.shape.cols}.get(dim) or tuple(
                a for a in inside if inside[a] == dim
            )
            one = group[0] if len(group) == 1 else Axis(f"{dim}_all", self.extent[dim])
            moved = as_one(at, group, one)
            if moved is None or {a for a in inside if inside[a] == dim} != {*group}:
                return None
            if self.extent[dim] < self.block[dim]:  # mostly out-of-bounds boxes take longer than their contents
                return None
            at, first[one] = moved, group[0]
            tiles[one] = self.origin(group[0], dim), self.block[dim]
        ends = {one for one, a in first.items() if self.ragged(self.dim_of(a))}
        found = box(at, tiles, ITEMSIZE[dtype], self.axis_text, ends)
        if found is None:
            return None
        slow, fast = found.axes
        found = replace(found, axes=(first[slow], first[fast]))
        key = operand, found.shape, found.block, found.strides
        name = self.boxes.setdefault(key, f"{operand}_box{len(self.boxes)}")
        self.described[name] = operand, found
        return name, found
