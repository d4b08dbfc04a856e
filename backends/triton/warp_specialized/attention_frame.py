"""Emitter state of warp-specialized attention, in which queries, keys and values are in shared memory, scores and
results in registers.

A head width that is not a power of two may be split into two powers of two (96 into 64 and 32); each product along it,
and each result over it, is then two. Names of register layouts: S scores (rows, keys), O results (rows, columns), Q
queries (rows, head width), P weights as an mma operand, B stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir.kernel import Kernel
from ...ir.tiling import Shape, Tiling, padded
from ...ir.unfusable import Unfusable
from ..emit.frame import TileFrame
from ..emit.spelling import Tile
from .spelling import GROUP

GRAIN = 16  # elements of the smallest width piece
WIDEST = 256  # N of one wgmma instruction


def widths(extent: int) -> list[tuple[int, int]]:
    """Pieces, as (start, width), in which a head width of `extent` elements is computed: two powers of two if these
    have less padding than one, else one."""
    large = 1 << (max(extent, GRAIN).bit_length() - 1)
    small = max(GRAIN, padded(extent - large))
    if extent <= large or large + small >= padded(extent):
        return [(0, max(GRAIN, padded(extent)))]
    return [(0, large), (large, small)]


def numbered(stem: str, count: int) -> list[str]:
    """Variable names of the `count` pieces of a value: `stem` alone for one piece, else `stem_0`, `stem_1`
    and so on."""
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


class AttentionFrame(TileFrame):
    """Emitter state of a warp-specialized attention program: register layouts, pieces of head widths, operands loaded
    by TMA.

    `tall` is its number of rows, `groups` its number of consumer warp groups. The constructor raises Unfusable unless
    exactly one axis is looped over, columns are not, and a tile has at most 256 columns.
    """

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape, groups: int) -> None:
        super().__init__(kernel, tiling, name, shape)
        self.groups, self.tall = groups, groups * GROUP
        self.edge = False  # whether the current tile of the looped axis may go beyond the end
        if len(self.walked) != 1 or self.n_loop or tiling.n > WIDEST:
            raise Unfusable(
                f"warp-specialized attention loops over one axis only, in one column tile of at most {WIDEST}"
            )
        (self.axis,) = self.walked
        self.layouts: dict[tuple[str, ...], str] = {("m", self.axis.name): "S", ("m", "n"): "O"}
        self.away = False  # whether positions are those of stores
        self.pieces = bool(tiling.options.get("pieces"))  # whether widths may be split in two powers of two
        self.first: dict[str, int] = {}  # start of the current piece along a dimension
        self.stored = "B"
        self.rings: list[tuple[str, list[str]]] = []  # keys and values, with the tensor-map names of their pieces
        self.asked: list[str] = []  # tensor maps of queries loaded by TMA

    def ragged(self, dim: str) -> bool:
        """Whether the tile that is being emitted may reach beyond the end of the dimension `dim`, so that masks are
        needed.

        Tiles of the looped axis run from last to first, and only the last may do so.
        """
        if dim == "m":
            return self.extent["m"] % self.tall != 0
        return super().ragged(dim) and (self.edge or dim not in {a.name for a in self.walked})

    def parent(self, dims: Sequence[str]) -> str:
        """Name of the Gluon variable that holds the register layout of tiles over the two dimensions `dims`."""
        return self.stored if self.away else self.layouts.get(tuple(dims), "Q")

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """Gluon expression of the value `tile` broadcast to the dimensions `dims`.

        A value per row has the layout of the rows of scores; for other tiles it is converted to their layout.
        """
        if tile.dims == ("m",) and len(dims) == 2 and self.parent(dims) not in ("S", self.stored):
            return f"tl.convert_layout({tile.text}, tl.SliceLayout(1, {self.parent(dims)}))[:, None]"
        return super().spread(tile, dims)

    def piece(self, dim: str) -> list[tuple[int, int]]:
        """Pieces, as (start, width), in which the extent of the dimension `dim` is computed; one piece if it is not
        split."""
        extent, block = self.extent[dim], self.block[dim]
        return widths(extent) if self.pieces and extent < block else [(0, block)]

    @contextmanager
    def resized(self, dim: str, size: int, begin: int) -> Iterator[None]:
        """Context manager in which the emitted tile along the dimension `dim` is only one piece of it: `size` elements
        from `begin` on."""
        before, self.block[dim] = self.block[dim], size
        if size != before:
            self.first[dim] = begin
        yield
        self.block[dim] = before
        self.first.pop(dim, None)
