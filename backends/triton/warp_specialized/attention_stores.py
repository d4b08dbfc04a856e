"""Emits the stores of warp-specialized attention: results are rounded, converted to a layout in which threads write
contiguous memory, and written."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.index import WIDE
from ...ir.kernel import OutputStore
from ...ir.unfusable import Unfusable
from ..emit.frame import TritonScope
from ..emit.spelling import TRITON, Tile
from ..emit.stores import TileStores
from .attention_frame import AttentionFrame, numbered
from .attention_loop import AttentionLoops
from .spelling import GROUP
from .tiles import SharedTiles


@dataclass(eq=False)
class AttentionStores(TileStores):
    """Emitter part for stores of a consumer group's tile of rows, one piece of the columns after the other."""

    frame: AttentionFrame
    tiles: SharedTiles
    loops: AttentionLoops

    def in_pieces(self) -> None:
        """Emit all results, one piece of the columns after the other; values that do not depend on columns are computed
        once.

        Raises Unfusable unless exactly one product has columns.
        """
        frame = self.frame
        products = [e for e, d in self.shape.dots.items() if e.axis == frame.axis and d.cols]
        if len(products) != 1:
            raise Unfusable("column pieces of more than one product")
        (product,) = products
        self.values.value(product)
        columns = {*self.shape.cols}
        frame.top.bound -= columns
        pieces = frame.piece("n")
        for i, (begin, size) in enumerate(pieces):
            inner = TritonScope(frame.top.indent, frame.top.bound | columns, outside=frame.top)
            inner.known[product] = Tile(self.loops.sums[i], ("m", "n"), "float32")
            frame.layouts["m", "n"], frame.stored = (numbered(x, len(pieces))[i] for x in "OB")
            with self.inside(inner), frame.resized("n", size, begin):
                self.column_indices(f"{begin} + " if begin else "", size)
                for store in self.kernel.stores:
                    self.store(store)
            frame.top.lines += inner.lines

    def store(self, store: OutputStore) -> None:
        """Emit the store of a result: it is rounded, converted to a layout in which threads write contiguous memory,
        and written.

        Raises Unfusable for a result that does not vary along both rows and columns.
        """
        frame = self.frame
        spot = self.kernel.buffers[store.buffer]
        tile = self.values.floated(store.value)
        if store.guards or tile.dims != ("m", "n"):
            raise Unfusable("an output that does not vary along both rows and columns")
        text = tile.text if tile.dtype == spot.dtype else f"{tile.atom}.to({TRITON[spot.dtype]})"
        frame.away = True
        where = self.positions.position(store.at, store.at.range[1] >= WIDE)
        frame.away = False
        if where.dims != ("m", "n"):
            raise Unfusable("a store index that does not vary along both rows and columns")
        ends = [f"(m_stored < {frame.extent['m']})[:, None]"] * frame.ragged("m")
        ends += [f"(n_stored < {frame.extent['n']})[None, :]"] * frame.ragged("n")
        mask = f", mask={' & '.join(ends)}" if ends else ""
        turned = f"tl.convert_layout({text}, {frame.stored})"
        if self.tiles.through:
            queries = self.kernel.buffers[frame.described[frame.asked[0]][0]]
            if spot.dtype != queries.dtype or len(self.kernel.stores) > 1:
                raise Unfusable("an output whose layout or dtype differs from that of the queries")
            self.line(f"{self.tiles.mine[0]}.store({text})")
            turned = f"{self.tiles.mine[0]}.load({frame.stored})"
        self.line(f"tl.store({store.buffer} + {where.atom}, {turned}{mask})")
        if self.tiles.through:
            for text in ("fence_async_shared()", *self.tiles.done_with_queries()):
                self.line(text)

    def column_indices(self, across: str, size: int) -> None:
        """Emit variables for the column indices of results in the layout of the products, and for the row and column
        indices in the layout in which results are stored.

        `across`: text put before indices within a piece of the columns ("64 + " for a piece that begins at column 64,
        "" at 0). `size`: number of columns of the piece.
        """
        frame = self.frame
        out, base = frame.layouts["m", "n"], f"tile_m * {frame.tall} + " if self.shape.m > frame.tall else ""
        self.line(f"m_stored = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, {frame.stored}))")
        self.line(f"n = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {out}))")
        self.line(f"n_stored = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {frame.stored}))")
