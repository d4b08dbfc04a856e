"""Tile placement of warp-specialized attention: queries, keys and values in shared memory, scores and results in
registers.

A width that is no power of two may be split in two powers of two (96 is 64 and 32): products along the width then are
two, and so are results. Layouts: S scores (rows, keys), O results (rows, columns), Q queries (rows, head width), P
weights as an mma operand, B stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ...ir.index import Axis, Index, index
from ...ir.kernel import Expr, Kernel, Unfusable
from ...ir.tensor_maps import Box, edged_box
from ...ir.tiling import Shape, Tiling, padded
from ..emit.kernel import TritonFunction
from ..emit.spelling import ITEMSIZE, TRITON, Tile
from .spelling import GROUP

GRAIN = 16  # elements of the smallest width piece
WIDEST = 256  # N of one wgmma instruction
WIDE_RESULT = 128  # columns beyond which a result is transposed through the shared memory of its queries


def widths(extent: int) -> list[tuple[int, int]]:
    """(start, width) of the pieces of a width: two powers of two if they waste less than one."""
    large = 1 << (max(extent, GRAIN).bit_length() - 1)
    small = max(GRAIN, padded(extent - large))
    if extent <= large or large + small >= padded(extent):
        return [(0, max(GRAIN, padded(extent)))]
    return [(0, large), (large, small)]


def numbered(stem: str, count: int) -> list[str]:
    """Variable names of pieces; a single piece has the plain name."""
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


class AttentionTiles(TritonFunction):
    """Tiles of a warp-specialized attention program. `tall` is its number of rows, `groups` its number of consumer warp
    groups."""

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape, groups: int) -> None:
        super().__init__(kernel, tiling, name, shape)
        self.groups, self.tall = groups, groups * GROUP
        self.edge = False  # whether the current tile of the looped axis may go beyond the end
        if len(self.walked) != 1 or self.n_loop or tiling.n > WIDEST:
            raise Unfusable("roles walk one axis")
        (self.axis,) = self.walked
        self.layouts: dict[tuple[str, ...], str] = {("m", self.axis.name): "S", ("m", "n"): "O"}
        self.away = False  # whether positions are those of stores
        self.pieces = bool(tiling.options.get("pieces"))  # whether widths may be split in two powers of two
        self.first: dict[str, int] = {}  # start of the current piece along a dimension
        self.stored = "B"
        self.bounds: list[str] = []  # code of the range of key tiles, for producer and consumers
        self.rings: list[tuple[str, list[str]]] = []  # keys and values, with the tensor-map names of their pieces
        self.cut = False  # whether tiles beyond the last one are masked
        self.width = 0
        self.asked: list[str] = []  # tensor maps of queries loaded by TMA
        self.turn = "0"  # text of the index among a program's tiles
        self.slots = 1  # shared-memory buffers for the queries of a tile
        self.views: dict[int, str] = {}  # layouts of tiles reinterpreted as matrices, by columns
        self.factor: Tile | None = None  # per-row factor of the scores, left out of their product

    def ragged(self, dim: str) -> bool:
        """Whether a tile may be partial. Tiles of the looped axis run from last to first, and only the last may be
        partial."""
        if dim == "m":
            return self.extent["m"] % self.tall != 0
        return super().ragged(dim) and (self.edge or dim not in {a.name for a in self.walked})

    # ------------------------------------------------------------ registers
    def parent(self, dims: Sequence[str]) -> str:
        """Variable of the Gluon register layout of tiles over two dimensions."""
        return self.stored if self.away else self.layouts.get(tuple(dims), "Q")

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """Text of a tile spread to more dimensions; per-row values have the layout of score rows and are converted to other layouts."""
        if tile.dims == ("m",) and len(dims) == 2 and self.parent(dims) not in ("S", self.stored):
            return f"tl.convert_layout({tile.text}, tl.SliceLayout(1, {self.parent(dims)}))[:, None]"
        return super().spread(tile, dims)

    def axis_text(self, axis: Axis) -> str:
        """Variable of the positions along an axis; positions of stores have variables of their own."""
        text = super().axis_text(axis)
        return f"{text}_stored" if self.away and text in ("m", "n") else text

    def whole(self, e: Expr) -> Tile:
        """The tile of an expression; per-row results are converted to the layout of score rows."""
        tile = super().whole(e)
        return (
            replace(tile, text=f"tl.convert_layout({tile.text}, tl.SliceLayout(1, S))") if tile.dims == ("m",) else tile
        )

    def _begin_at(self, name: str, dims: Sequence[str], fill: str, dtype: str) -> str:
        """The line that initializes a per-row accumulator."""
        if tuple(dims) != ("m",):
            raise Unfusable("an accumulator that is not one value a row")
        return f"{name} = tl.full({[GROUP]}, {fill}, {TRITON[dtype]}, layout=tl.SliceLayout(1, S))"

    def origin(self, axis: Axis, dim: str) -> str:
        """Text of the first position of a tile along an axis."""
        if dim == "m":
            return "rows"  # of each group, set by the producer
        if dim in self.first:
            return str(self.first[dim])
        return super().origin(axis, dim)

    def _extreme(self, at: Index, side: str) -> str:
        """Text of the minimum or maximum of an index over the rows of a program, as a scalar."""
        (row,) = self.shape.rows
        step = at.coefficient(row)
        rest = at - index(row) * step
        if rest.axes - {*self.shape.batch}:
            raise Unfusable("a bound that more than the row moves")
        first = f"tile_m * {self.tall}" if row.size > self.tall else "0"
        number = f"{first} + {self.tall - 1}" if (side == "max") == (step > 0) else first
        parts = [f"({number}) * {step}" if step != 1 else number] if step else []
        return f"({' + '.join([*parts, *([self.position(rest).text] if rest.terms or rest.const else [])]) or '0'})"

    # ------------------------------------------------------------ shared memory
    def piece(self, dim: str) -> list[tuple[int, int]]:
        """(start, width) of the pieces of a dimension."""
        extent, block = self.extent[dim], self.block[dim]
        return widths(extent) if self.pieces and extent < block else [(0, block)]

    @contextmanager
    def resized(self, dim: str, size: int, begin: int) -> Iterator[None]:
        """Use a piece of a dimension in place of its whole tile."""
        before, self.block[dim] = self.block[dim], size
        if size != before:
            self.first[dim] = begin
        yield
        self.block[dim] = before
        self.first.pop(dim, None)

    @property
    def slot(self) -> str:
        """Text of the buffer index of the current tile's queries."""
        return "turn % 2" if self.slots == 2 else "0"

    @property
    def phase(self) -> str:
        """Text of the mbarrier phase parity of the shared-memory buffer that `slot` names."""
        return "turn // 2 & 1" if self.slots == 2 else f"{self.turn} & 1"

    def queries(self, group: str) -> list[str]:
        """Texts of a group's query tiles, by width piece."""
        place = f"{f'turn % 2 * {self.groups} + ' if self.slots == 2 else ''}{group}"
        return [f"{name}.index({place})" for name in numbered("queries", max(1, len(self.asked)))]

    @property
    def mine(self) -> list[str]:
        """Query tiles of the current consumer group."""
        tiles = self.queries("W")
        return [self.seen(tile, name) for tile, name in zip(tiles, self.asked)] if self.asked else tiles

    def shared(self, slots: int) -> int:
        """Bytes of shared memory: queries, rings, and results in transposition."""
        keys, n, width = self.block[self.axis.name], sum(w for _, w in self.piece("n")), self.width
        if self.pieces and self.asked:
            width = sum(self.described[name][1].tile[1] for name in self.asked)
        turned = 0 if self.through else n
        return 2 * (self.tall * (slots * width + turned) + self.tiling.stages * keys * (width + n))

    @property
    def through(self) -> bool:
        """Whether a result is transposed through the shared memory of its queries, because there is none besides."""
        return len(self.asked) == 1 and self.block["n"] > WIDE_RESULT and self.width == self.block["n"]

    def box_of(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """(tensor-map name, box) of a load, None if there is none. Queries, keys and values get separate boxes, because
        their origins differ even on the same operand."""
        before = dict(self.described)
        named = self._edged(operand, at, dtype) or super().box_of(operand, at, dtype)
        used = [*self.asked, *(name for _, names in self.rings for name in names)]
        if named is None or named[0] not in used:
            return named
        name, found = f"{named[0]}_{len(used)}", named[1]
        self.described = {**before, name: (operand, found)}
        return name, found

    def _edged(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """A box whose tiles may go beyond the ends of axes, or whose index has divisions; None if a plain box
        suffices."""
        spanned = [a for a in at.axes if a not in self.shape.batch]
        tiles = {a: (self.origin(a, self.dim_of(a)), self.block[self.dim_of(a)]) for a in spanned}
        partial = any(a.size % size for a, (_, size) in tiles.items()) or (
            self.dim_of(max(spanned, key=lambda a: a.size)) == "m" and self.ragged("m")
        )
        if dtype not in ITEMSIZE or not (partial or any(at.divisions())):
            return None
        found = edged_box(at, tiles, ITEMSIZE[dtype], self.axis_text)
        if found is None:
            return None
        name = self.boxes.setdefault(
            (operand, found.shape, found.block, found.strides), f"{operand}_box{len(self.boxes)}"
        )
        self.described[name] = operand, found
        return name, found

    def seen(self, tile: str, name: str) -> str:
        """Text of a shared-memory tile reinterpreted as its matrix."""
        found = self.described[name][1]
        if not found.strides:
            return tile
        rows, columns = found.tile
        self.views[columns] = f"V{columns}"
        dtype = TRITON[self.kernel.buffers[self.described[name][0]].dtype]
        return f"seen_as({tile}, {dtype}, [{rows}, {columns}], V{columns})"

    def ring(self, parts: Sequence[Expr], dims: tuple[str, str], wide: str) -> tuple[list[str], str]:
        """Register a tile that the producer loads, in pieces along `wide`. Returns the pieces' texts for a slot, and
        the dtype."""
        if len(parts) != 1 or parts[0].op != "load" or parts[0].args:
            raise Unfusable("what is computed of keys or values")
        operand, at, _, dtype = parts[0].value
        ring, pieces, texts = "values" if self.rings else "keys", self.piece(wide), []
        names: list[str] = []
        self.rings.append((ring, names))
        for (begin, columns), tile in zip(pieces, numbered(ring, len(pieces))):
            with self.resized(wide, columns, begin):
                named = self.box_of(operand, at, dtype)
            if named is None or ITEMSIZE[dtype] != 2 or not at.axes & self.walked:
                raise Unfusable("keys or values that are no boxes of 16 bits")
            names.append(named[0])
            own = tuple(self.dim_of(a) for a in named[1].axes)
            if {*own} != {*dims}:
                raise Unfusable("keys or values that rows move")
            texts.append(f"{self.seen(f'{tile}.index({{}})', named[0])}{'' if own == dims else '.permute((1, 0))'}")
        return texts, dtype
