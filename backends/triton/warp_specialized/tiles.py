"""Emits the parts of warp-specialized attention that concern tiles: positions, TMA boxes, and tiles of queries, keys
and values in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...ir.expr import Expr
from ...ir.index import Axis, Index, index
from ...ir.tensor_maps import Box, edged_box
from ...ir.unfusable import Unfusable
from ..emit.frame import TritonPart
from ..emit.index import Positions
from ..emit.loads import TileLoads
from ..emit.spelling import ITEMSIZE, TRITON
from .attention_frame import AttentionFrame, numbered

WIDE_RESULT = 128  # columns beyond which a result is transposed through the shared memory of its queries


@dataclass(eq=False)
class AttentionPositions(Positions):
    """Emitter part for memory positions in attention.

    Stores have index variables of their own, because results are stored in another register layout than the products
    have; the origins of TMA boxes use the producer warp's variables.
    """

    frame: AttentionFrame

    def axis_text(self, axis: Axis) -> str:
        """Name of the variable that holds the values of `axis`; stores have variables of their own, since their layout
        differs."""
        text = super().axis_text(axis)
        return f"{text}_stored" if self.frame.away and text in ("m", "n") else text

    def origin(self, axis: Axis, dim: str) -> str:
        """Gluon expression of the index along `axis`, which belongs to the dimension `dim`, at which the current tile
        begins."""
        if dim == "m":
            return "rows"  # of each group, set by the producer
        if dim in self.frame.first:
            return str(self.frame.first[dim])
        return super().origin(axis, dim)

    def extreme(self, at: Index, side: str) -> str:
        """Gluon expression of the minimum or maximum (`side`: "min" or "max") of the index `at` over the rows of a
        program, as a scalar.

        Raises Unfusable for an index that depends on more than the row.
        """
        frame = self.frame
        (row,) = self.shape.rows
        step = at.coefficient(row)
        rest = at - index(row) * step
        if rest.axes - {*self.shape.batch}:
            raise Unfusable("a mask bound that depends on more than the row")
        first = f"tile_m * {frame.tall}" if row.size > frame.tall else "0"
        number = f"{first} + {frame.tall - 1}" if (side == "max") == (step > 0) else first
        parts = [f"({number}) * {step}" if step != 1 else number] if step else []
        return f"({' + '.join([*parts, *([self.position(rest).text] if rest.terms or rest.const else [])]) or '0'})"


@dataclass(eq=False)
class AttentionLoads(TileLoads):
    """Emitter part for loads in attention; their TMA boxes may reach beyond the ends of axes."""

    frame: AttentionFrame

    def box_of(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """(name of the tensor map, TMA box) with which TMA loads `operand`, of `dtype`, at the index `at`; None if TMA
        cannot load it.

        Queries, keys and values get separate boxes, because their origins differ even on the same operand.
        """
        frame = self.frame
        before = dict(frame.described)
        named = self._edged(operand, at, dtype) or super().box_of(operand, at, dtype)
        used = [*frame.asked, *(name for _, names in frame.rings for name in names)]
        if named is None or named[0] not in used:
            return named
        name, found = f"{named[0]}_{len(used)}", named[1]
        frame.described = {**before, name: (operand, found)}
        return name, found

    def _edged(self, operand: str, at: Index, dtype: str) -> tuple[str, Box] | None:
        """Tensor-map name and TMA box of a load whose tiles may extend beyond the axes or whose index has divisions;
        None if an ordinary box suffices or none exists."""
        frame = self.frame
        spanned = [a for a in at.axes if a not in self.shape.batch]
        tiles = {a: (self.positions.origin(a, frame.dim_of(a)), frame.block[frame.dim_of(a)]) for a in spanned}
        partial = any(a.size % size for a, (_, size) in tiles.items()) or (
            frame.dim_of(max(spanned, key=lambda a: a.size)) == "m" and frame.ragged("m")
        )
        if dtype not in ITEMSIZE or not (partial or any(at.divisions())):
            return None
        found = edged_box(at, tiles, ITEMSIZE[dtype], self.positions.axis_text)
        if found is None:
            return None
        name = frame.boxes.setdefault(
            (operand, found.shape, found.block, found.strides), f"{operand}_box{len(frame.boxes)}"
        )
        frame.described[name] = operand, found
        return name, found


@dataclass(eq=False)
class SharedTiles(TritonPart):
    """Emitter part for the tiles of queries, keys and values in shared memory."""

    frame: AttentionFrame
    loads: AttentionLoads
    width: int = field(default=0, init=False)  # columns of a query tile
    turn: str = field(default="0", init=False)  # text of the index among a program's tiles
    slots: int = field(default=1, init=False)  # shared-memory buffers for the queries of a tile
    views: dict[int, str] = field(default_factory=dict, init=False)  # columns -> layout of a reinterpreted tile

    @property
    def slot(self) -> str:
        """Gluon expression of the index of the shared-memory buffer with the current tile's queries."""
        return "turn % 2" if self.slots == 2 else "0"

    @property
    def phase(self) -> str:
        """Gluon expression of the phase parity of the mbarrier that guards the shared-memory buffer `slot`."""
        return "turn // 2 & 1" if self.slots == 2 else f"{self.turn} & 1"

    def queries(self, group: str) -> list[str]:
        """Gluon expressions of the query tiles of a consumer group, one for each piece of the head width. `group`:
        expression of the group's number."""
        place = f"{f'turn % 2 * {self.frame.groups} + ' if self.slots == 2 else ''}{group}"
        return [f"{name}.index({place})" for name in numbered("queries", max(1, len(self.frame.asked)))]

    @property
    def mine(self) -> list[str]:
        """Gluon expressions of the query tiles of the consumer group that runs the code, one for each piece of the head
        width."""
        tiles = self.queries("W")
        return [self.seen(tile, name) for tile, name in zip(tiles, self.frame.asked)] if self.frame.asked else tiles

    def shared(self, slots: int) -> int:
        """Bytes of shared memory that a kernel needs: `slots` tiles of queries, the rings of keys and values, and the
        buffer through which results are transposed.
        """
        frame = self.frame
        keys, n, width = frame.block[frame.axis.name], sum(w for _, w in frame.piece("n")), self.width
        if frame.pieces and frame.asked:
            width = sum(frame.described[name][1].tile[1] for name in frame.asked)
        turned = 0 if self.through else n
        return 2 * (frame.tall * (slots * width + turned) + self.tiling.stages * keys * (width + n))

    @property
    def through(self) -> bool:
        """Whether a result is transposed through the shared memory of the queries, because no other shared memory is
        left."""
        frame = self.frame
        return len(frame.asked) == 1 and frame.block["n"] > WIDE_RESULT and self.width == frame.block["n"]

    def seen(self, tile: str, name: str) -> str:
        """Gluon expression of the shared-memory tile `tile` (an expression too), reinterpreted as a matrix if its
        tensor map, called `name`, has more than two axes."""
        found = self.frame.described[name][1]
        if not found.strides:
            return tile
        rows, columns = found.tile
        self.views[columns] = f"V{columns}"
        dtype = TRITON[self.kernel.buffers[self.frame.described[name][0]].dtype]
        return f"seen_as({tile}, {dtype}, [{rows}, {columns}], V{columns})"

    def ring(self, parts: Sequence[Expr], dims: tuple[str, str], wide: str) -> tuple[list[str], str]:
        """Register the keys or values as a ring of shared-memory tiles that the producer loads, in pieces along the
        dimension `wide`. The first call is for keys, the second for values.

        `parts`: factors of this operand of the product; `dims`: its dimensions in the order that the product wants.
        Returns (Gluon expressions of the pieces with a placeholder `{}` for the slot, dtype). Raises Unfusable unless
        `parts` is one 16-bit load that TMA can load.
        """
        frame = self.frame
        if len(parts) != 1 or parts[0].op != "load" or parts[0].args:
            raise Unfusable("keys or values that are computed rather than loaded")
        operand, at, _, dtype = parts[0].value
        ring, pieces, texts = "values" if frame.rings else "keys", frame.piece(wide), []
        names: list[str] = []
        frame.rings.append((ring, names))
        for (begin, columns), tile in zip(pieces, numbered(ring, len(pieces))):
            with frame.resized(wide, columns, begin):
                named = self.loads.box_of(operand, at, dtype)
            if named is None or ITEMSIZE[dtype] != 2 or not at.axes & frame.walked:
                raise Unfusable("keys or values that are not 16-bit TMA boxes")
            names.append(named[0])
            own = tuple(frame.dim_of(a) for a in named[1].axes)
            if {*own} != {*dims}:
                raise Unfusable("keys or values that vary along rows")
            texts.append(f"{self.seen(f'{tile}.index({{}})', named[0])}{'' if own == dims else '.permute((1, 0))'}")
        return texts, dtype

    def done_with_queries(self) -> list[str]:
        """Lines that signal to the producer that the current tile's queries may be overwritten; none if TMA does not
        load queries."""
        return [f"mbarrier.arrive(queries_empty.index({self.slot}))"] if self.frame.asked else []
