"""Where tiles of attention by roles lie: queries, keys and values in shared memory, scores and results in registers.

A width that is no power of two may lie in two pieces that are (96 is 64 and 32): products along it are two, and so are results.
Layouts: S scores (rows, keys), O results (rows, columns), Q queries (rows, their width), P weights as an operand, B what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from .descriptors import Box, edged_box
from .gluon_text import GROUP
from .index import Axis, Index, index
from .kir import Expr, Kernel, Unfusable
from .tiling import Shape, Tiling, padded
from .triton_source import Function
from .triton_text import ITEMSIZE, TRITON, Tile

GRAIN = 16  # elements of the least piece of a width
WIDEST = 256  # columns of one instruction
WIDE_RESULT = 128  # columns beyond which a result is turned where its queries lay


def widths(extent: int) -> list[tuple[int, int]]:
    """Where the pieces of a width begin and how wide they are: two powers of two that hold it with less left over than one."""
    large = 1 << (max(extent, GRAIN).bit_length() - 1)
    small = max(GRAIN, padded(extent - large))
    if extent <= large or large + small >= padded(extent):
        return [(0, max(GRAIN, padded(extent)))]
    return [(0, large), (large, small)]


def numbered(stem: str, count: int) -> list[str]:
    """Names of pieces; one alone has the plain name."""
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


class AttentionTiles(Function):
    """The tiles of a program whose warps have roles. `tall`: its rows."""

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape, groups: int) -> None:
        super().__init__(kernel, tiling, name, shape)
        self.groups, self.tall = groups, groups * GROUP
        self.edge = False  # whether the tile of the walked axis may go beyond its end
        if len(self.walked) != 1 or self.n_loop or tiling.n > WIDEST:
            raise Unfusable("roles walk one axis")
        (self.axis,) = self.walked
        self.layouts: dict[tuple[str, ...], str] = {("m", self.axis.name): "S", ("m", "n"): "O"}
        self.away = False  # whether positions are those of what is stored
        self.pieces = bool(tiling.options.get("pieces"))  # whether widths that are no powers of two lie in two that are
        self.first: dict[str, int] = {}  # where a piece begins along a dimension
        self.stored = "B"
        self.bounds: list[str] = []  # which tiles of the walked axis there are, for both roles
        self.rings: list[tuple[str, list[str]]] = []  # keys and values, and names of the descriptors of their pieces
        self.cut = False  # whether tiles beyond the last one are cut by a mask
        self.width = 0
        self.asked: list[str] = []  # the descriptors of queries that are copied too
        self.turn = "0"  # which of a program's tiles it is, as text
        self.slots = 1  # places for the queries of a tile
        self.views: dict[int, str] = {}  # layouts of tiles that are seen as matrices, by columns
        self.factor: Tile | None = None  # of each row's scores, which are known without it

    def ragged(self, dim: str) -> bool:
        """As everywhere; tiles of the walked axis are taken from the last to the first, and only that one may not be full."""
        if dim == "m":
            return self.extent["m"] % self.tall != 0
        return super().ragged(dim) and (self.edge or dim not in {a.name for a in self.walked})

    # ------------------------------------------------------------ registers
    def parent(self, dims: Sequence[str]) -> str:
        """The layout of tiles over two dimensions."""
        return self.stored if self.away else self.layouts.get(tuple(dims), "Q")

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """As everywhere; a row's values lie as those of scores do, and are laid out as the others need them."""
        if tile.dims == ("m",) and len(dims) == 2 and self.parent(dims) not in ("S", self.stored):
            return f"tl.convert_layout({tile.text}, tl.SliceLayout(1, {self.parent(dims)}))[:, None]"
        return super().spread(tile, dims)

    def axis_text(self, axis: Axis) -> str:
        """As everywhere; positions of what is stored have names of their own."""
        text = super().axis_text(axis)
        return f"{text}_stored" if self.away and text in ("m", "n") else text

    def whole(self, e: Expr) -> Tile:
        """As everywhere; one value a row is laid out as those of scores."""
        tile = super().whole(e)
        return (
            replace(tile, text=f"tl.convert_layout({tile.text}, tl.SliceLayout(1, S))") if tile.dims == ("m",) else tile
        )

    def _begin_at(self, name: str, dims: Sequence[str], fill: str, dtype: str) -> str:
        if tuple(dims) != ("m",):
            raise Unfusable("an accumulator that is not one value a row")
        return f"{name} = tl.full({[GROUP]}, {fill}, {TRITON[dtype]}, layout=tl.SliceLayout(1, S))"

    def origin(self, axis: Axis, dim: str) -> str:
        """The first position of a tile along an axis."""
        if dim == "m":
            return "rows"  # of each group in turn, in the role that copies
        if dim in self.first:
            return str(self.first[dim])
        return super().origin(axis, dim)

    def _extreme(self, at: Index, side: str) -> str:
        """The least or greatest value of an index over the rows of a program, as one number."""
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
        """Where the pieces of a width begin, and how wide they are."""
        extent, block = self.extent[dim], self.block[dim]
        return widths(extent) if self.pieces and extent < block else [(0, block)]

    @contextmanager
    def resized(self, dim: str, size: int, begin: int) -> Iterator[None]:
        """A piece of a dimension in place of its tiles; all of a tile where it is no piece."""
        before, self.block[dim] = self.block[dim], size
        if size != before:
            self.first[dim] = begin
        yield
        self.block[dim] = before
        self.first.pop(dim, None)

    @property
    def slot(self) -> str:
        """The place of a turn's queries."""
        return "turn % 2" if self.slots == 2 else "0"

    @property
    def phase(self) -> str:
        """How often, even or odd, that place was used before."""
        return "turn // 2 & 1" if self.slots == 2 else f"{self.turn} & 1"

    def queries(self, group: str) -> list[str]:
        """A group's queries of this turn, in pieces."""
        place = f"{f'turn % 2 * {self.groups} + ' if self.slots == 2 else ''}{group}"
        return [f"{name}.index({place})" for name in numbered("queries", max(1, len(self.asked)))]

    @property
    def mine(self) -> list[str]:
        """The queries of the group that computes."""
        tiles = self.queries("W")
        return [self.seen(tile, name) for tile, name in zip(tiles, self.asked)] if self.asked else tiles

    def shared(self, slots: int) -> int:
        """Bytes of shared memory: queries, rings, and results on their way to other layouts."""
        keys, n, width = self.block[self.axis.name], sum(w for _, w in self.piece("n")), self.width
        if self.pieces and self.asked:
            width = sum(self.described[name][1].tile[1] for name in self.asked)
        turned = 0 if self.through else n
        return 2 * (self.tall * (slots * width + turned) + self.tiling.stages * keys * (width + n))

    @property
    def through(self) -> bool:
        """Whether a result is turned in the place of its queries: there is no room for one beside them."""
        return len(self.asked) == 1 and self.block["n"] > WIDE_RESULT and self.width == self.block["n"]

    def box_of(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """A descriptor of its own for each of queries, keys and values: what one of them reads begins elsewhere, be it the same operand."""
        before = dict(self.described)
        named = self._edged(operand, at, dtype) or super().box_of(operand, at, dtype)
        used = [*self.asked, *(name for _, names in self.rings for name in names)]
        if named is None or named[0] not in used:
            return named
        name, found = f"{named[0]}_{len(used)}", named[1]
        self.described = {**before, name: (operand, found)}
        return name, found

    def _edged(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """A box whose tiles may go beyond the ends of its axes, or that index divides; None where there is no need for one."""
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
        """A tile in shared memory, as the matrix that it is."""
        found = self.described[name][1]
        if not found.strides:
            return tile
        rows, columns = found.tile
        self.views[columns] = f"V{columns}"
        dtype = TRITON[self.kernel.buffers[self.described[name][0]].dtype]
        return f"seen_as({tile}, {dtype}, [{rows}, {columns}], V{columns})"

    def ring(self, parts: Sequence[Expr], dims: tuple[str, str], wide: str) -> tuple[list[str], str]:
        """A tile over two dimensions that the other role copies, in pieces along one of them: the texts of these, for a slot, and
        their dtype."""
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
