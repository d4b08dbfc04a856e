"""Emits stores of results: with masks, in one loop where a program iterates over columns, and several at once where
results are interleaved in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr, walk
from ...ir.index import WIDE
from ...ir.kernel import OutputStore
from ...ir.tiling import padded
from ...ir.unfusable import Unfusable
from ...machine import target
from .frame import TritonPart, TritonScope
from .index import Positions
from .row_stores import RowStore, joined_tiles, rows
from .spelling import TRITON, Tile
from .values import TileValues

EARLY = 32  # number of loads up to which all are issued at once
AHEAD = 96  # elements per thread in flight if there are more: no load is moved across a store, which might alias


@dataclass(eq=False)
class TileStores(TritonPart):
    """Emitter part for stores of results, and the order in which loads are issued before them."""

    positions: Positions
    values: TileValues

    def results(self) -> None:
        """Emit the computation and the stores of all results of the program's tile."""
        if self.frame.walked or self.frame.n_loop:
            self.write_all(self.kernel.stores)
            return
        abreast = {s: r for r in rows(self.kernel) for s in r.stores} if self.tiling.options.get("beside") else {}
        waiting = Counter(id(r) for r in abreast.values())
        for store, loads in zip(self.kernel.stores, self._ahead(), strict=True):
            for e in loads:
                self.values.value(e)
            row = abreast.get(store)
            if row is None:
                self.store(store)
                continue
            self._written(store)
            waiting[id(row)] -= 1
            if not waiting[id(row)]:
                self._store_row(row)

    def _ahead(self) -> Iterator[list[Expr]]:
        """For each store, the loads to issue before it.

        Few loads are all issued before the first store; of many, as many upcoming ones as registers can hold.
        """
        fresh = [[e for e in exprs if self._loads(e)] for exprs in fresh_in(self.kernel.stores)]
        sizes = [sum(map(self._each, loads)) for loads in fresh]
        room = math.inf if sum(map(len, fresh)) <= EARLY else AHEAD
        begun, waiting = 0, 0.0
        for n in range(len(fresh)):
            loads: list[Expr] = []
            while begun < len(fresh) and (begun <= n or waiting + sizes[begun] <= room):
                loads += fresh[begun]
                waiting += sizes[begun]
                begun += 1
            yield loads
            waiting -= sizes[n]

    def _loads(self, e: Expr) -> bool:
        """Whether a load can be issued at the start of the kernel."""
        return e.op == "load" and e.axes <= self.frame.top.bound and all(a.op != "load" for a in e.args)

    def _each(self, load: Expr) -> float:
        """Elements of a load per thread."""
        dims = {self.frame.dim_of(a) for a in load.axes if a not in self.shape.batch}
        return max(1.0, math.prod(self.frame.block[d] for d in dims) / (target().warp * self.tiling.warps))

    def write_all(self, stores: Sequence[OutputStore]) -> None:
        """Emit the given stores; those of columns that a program processes tile by tile share one loop."""
        frame = self.frame
        cols = {*self.shape.cols}  # a value that is constant along the columns is written to each of them
        walked = [s for s in stores if frame.n_loop and cols & (s.value.axes | s.at.axes)]
        for store in stores:
            if store not in walked:
                self.store(store)
        if not walked:
            return
        for e in walk(s.value for s in walked):  # all reductions first: the loop over columns only reads their results
            if e.op == "reduce" and e.axes <= frame.top.bound and frame.scope.find(e) is None:
                self.values.value(e)
        inner = TritonScope(2, frame.top.bound | set(self.shape.cols), outside=frame.top)
        with self.inside(inner):
            self.line(f"n = n_ + tl.arange(0, {frame.block['n']})")
            self.positions.unravel("n", self.shape.cols)
            for store in walked:
                self.store(store)
        self.line(
            f"for n_ in tl.range(0, {self.shape.n}, {frame.block['n']}, num_stages={self.tiling.stages}):", frame.top
        )
        frame.top.lines += inner.lines

    def _store_row(self, row: RowStore) -> None:
        """Emit interleaved results as one store, joined along an additional axis."""
        frame = self.frame
        buffer, count = row.stores[0].buffer, len(row.stores)
        where = self.positions.position(row.at, row.at.range[1] + count >= WIDE)
        texts = [self._written(s, where.dims) for s in row.stores]
        width, dims = padded(count), (*where.dims, "beside")
        column = Tile(f"tl.arange(0, {width})", ("beside",), "int32")
        inside = [Tile(f"{column.text} < {count}", column.dims, "bool")] if width > count else []
        mask = self.positions.mask(where.dims, dims, inside)
        target = f"{buffer} + {frame.spread(where, dims)} + {frame.spread(column, dims)}"
        whole = f"({', '.join(str(frame.block[d]) for d in where.dims)}, {width})"
        self.line(f"tl.store({target}, tl.reshape({joined_tiles(texts)}, {whole}){f', mask={mask}' if mask else ''})")

    def _written(self, store: OutputStore, dims: tuple[str, ...] = ()) -> str:
        """Text of a result in its storage dtype; with `dims`, broadcast over these dimensions."""
        frame = self.frame
        value, spot = store.value, self.kernel.buffers[store.buffer]
        tile = self.values.value(value) if value.op == "load" or value.kind != "float" else self.values.floated(value)
        if not dims:
            return tile.text
        if any(d not in dims for d in tile.dims):
            raise Unfusable("an output that varies along an axis that its store index lacks")
        text = _converted(value, tile, spot.dtype)
        if not tile.dims:
            return f"tl.full({frame.sizes(dims)}, {text}, {TRITON[spot.dtype]})"
        spread = frame.spread(Tile(text, tile.dims, spot.dtype), dims)
        return spread if tile.dims == dims else f"tl.broadcast_to({spread}, {frame.sizes(dims)})"

    def store(self, store: OutputStore) -> None:
        """Emit the value of one result and its masked store."""
        frame = self.frame
        buffer, at, value = store.buffer, store.at, store.value
        tile = self.values.value(value) if value.op == "load" or value.kind != "float" else self.values.floated(value)
        spot = self.kernel.buffers[buffer]
        where = self.positions.position(at, at.range[1] >= WIDE)
        guards = [self.values.value(g) for g in store.guards]
        picks = [(self.values.value(e), step) for e, step in store.parts]
        placed = frame.union([where, *(p for p, _ in picks)])
        dims = frame.union([Tile("", placed, ""), tile, *guards])
        target = f"{buffer} + {frame.spread(where, dims)}" if where.text != "0" else buffer
        target += "".join(f" + {frame.spread(p, dims)}.to(tl.int64) * {step}" for p, step in picks)
        target = target if {*placed} == {*dims} else f"tl.broadcast_to({target}, {frame.sizes(dims)})"
        mask = self.positions.mask(dims, dims, [g for g in guards if g.dims])
        if alone := " & ".join(g.atom for g in guards if not g.dims):  # Python `and` would make the mask an integer
            every = mask or f"tl.full({frame.sizes(dims)}, True, tl.int1)"
            mask = f"tl.where({alone}, {every}, False)" if dims else alone
        guarded = {d for g in guards for d in g.dims}  # exactly one element along them passes the guard
        if any(d not in placed and d not in guarded for d in tile.dims):
            raise Unfusable("an output that varies along an axis that its store index lacks")
        text = _converted(value, tile, spot.dtype)
        if tile.dims != dims and tile.dims:
            text = frame.spread(Tile(text, tile.dims, spot.dtype), dims)
        if tile.dims != dims:
            text = (
                f"tl.broadcast_to({text}, {frame.sizes(dims)})"
                if tile.dims
                else f"tl.full({frame.sizes(dims)}, {text}, {TRITON[spot.dtype]})"
                if dims
                else text
            )
        masked = f", mask={mask}" if mask else ""
        if store.adds:
            self.line(f'tl.atomic_add({target}, {text}{masked}, sem="relaxed")')
        else:
            self.line(f"tl.store({target}, {text}{masked})")


def _converted(value: Expr, tile: Tile, dtype: str) -> str:
    """Text of a value, whose tile is `tile`, in a dtype; constants get it where they are used."""
    kept = tile.dtype in ("const", dtype) or value.op == "const"
    return tile.text if kept else f"{tile.atom}.to({TRITON[dtype]})"


def fresh_in(stores: Sequence[OutputStore]) -> list[list[Expr]]:
    """For each store, the expressions that none of the stores before it contains, operands first."""
    seen: set[Expr] = set()
    found: list[list[Expr]] = []
    for s in stores:
        found.append(walk(s.exprs, seen))
        seen.update(found[-1])
    return found
