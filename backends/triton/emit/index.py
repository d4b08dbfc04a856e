"""Memory positions as tiles of integers in emitted Triton text, and masks of out-of-bounds elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.index import WIDE, Axis, Division, Index, index
from ...ir.unfusable import Unfusable
from .frame import TritonPart
from .spelling import Tile


@dataclass(eq=False)
class Positions(TritonPart):
    """Emitter part for index expressions of a kernel, each as a tile of integers, and for bounds masks."""

    def axis_text(self, axis: Axis) -> str:
        """Name of the Triton variable that holds the values of `axis` in the current tile."""
        dim = self.frame.dim_of(axis)
        if axis in self.shape.batch:
            return axis.name
        group = self.shape.rows if dim == "m" else self.shape.cols if dim == "n" else (axis,)
        if axis in self.frame.joined or len(group) == 1:
            return dim
        return f"{axis.name}_"

    def _atom(self, atom: Axis | Division) -> tuple[tuple[str, ...], str]:
        """(dimensions, text) of an atom of an index: the value of an axis, or a quotient or remainder."""
        frame = self.frame
        if isinstance(atom, Axis):
            alone = atom in self.shape.batch or atom in frame.single
            return () if alone else (frame.dim_of(atom),), self.axis_text(atom)
        for axis in frame.walked & atom.index.axes:
            step, others = frame.block[axis.name], atom.index - index(axis)
            if step > 1 and atom.by % step == 0 and _multiple(others, step, self.shape.batch):
                # no tile crosses a multiple of the divisor: the quotient is a scalar
                start = Index(((Axis(f"{axis.name}_", axis.size), 1),)) + others
                whole = Index(((Division(start, atom.by, rest=False), 1),))
                if not atom.rest:
                    return (), whole.text(lambda a: a.name)
                # emitted without `%`: the compiler would not see the alignment and would not vectorize the load
                first = "" if atom.by == step else f"{(start - whole * atom.by).text(lambda a: a.name)} + "
                return (axis.name,), f"({first}tl.arange(0, {step}))"
        inner = self.position(atom.index, atom.index.range[1] >= WIDE)
        text = inner.text if len(atom.index.terms) == 1 and not atom.index.const else inner.atom
        return inner.dims, f"({text} {'%' if atom.rest else '//'} {atom.by})"

    def position(self, index: Index, wide: bool = False) -> Tile:
        """Triton expression (a `Tile`) of the values of `index` over the current tile; `wide` computes them
        in 64 bits."""
        parts: dict[tuple[str, ...], list[str]] = {}
        for atom, c in index.terms:
            dims, text = self._atom(atom)
            text = f"{text}.to(tl.int64)" if wide and (dims or atom in self.shape.batch) else text
            parts.setdefault(dims, []).append(text if c == 1 else f"{text} * {c}")
        if index.const:
            parts.setdefault((), []).append(str(index.const))
        tiles = [Tile(" + ".join(texts), dims, "int32") for dims, texts in parts.items()]
        all_dims = self.frame.union(tiles)
        if len(tiles) == 1:
            return tiles[0]
        text = " + ".join(self.frame.spread(t, all_dims) if t.dims != all_dims else t.text for t in tiles)
        return Tile(text or "0", all_dims, "int32")

    def mask(self, dims: Sequence[str], over: Sequence[str], more: Sequence[Tile] = ()) -> str:
        """Triton expression of the bounds mask of a tile over the dimensions `over`; "" if no check is needed.

        It combines checks along those of `dims` whose last tile is partial, and the conditions `more`.
        """
        frame = self.frame
        parts = [Tile(f"{d} < {frame.extent[d]}", (d,), "bool") for d in dims if frame.ragged(d)] + list(more)
        alike: dict[tuple[str, ...], list[str]] = {}
        for p in parts:
            alike.setdefault(p.dims, []).append(p.atom if len(parts) > 1 else p.text)
        joined = [Tile(" & ".join(texts), kept, "bool") for kept, texts in alike.items()]  # before broadcasting
        return " & ".join(frame.spread(p, over) if p.dims else p.text for p in joined)

    def origin(self, axis: Axis, dim: str) -> str:
        """Triton expression of the index along `axis`, which belongs to the dimension `dim`, at which the current tile
        begins."""
        frame = self.frame
        if axis in frame.walked:
            return f"{axis.name}_"
        if dim == "n" and frame.n_loop:
            return "n_"
        tiled = dim in ("m", "n") and frame.extent[dim] > frame.block[dim]
        return f"tile_{dim} * {frame.block[dim]}" if tiled else "0"

    def extreme(self, at: Index, side: str) -> str:
        """Triton expression of the minimum or maximum (`side`: "min" or "max") of the index `at` over the current tile.

        Raises Unfusable for an index that varies along two dimensions.
        """
        tile = self.position(at)
        for _ in tile.dims[1:]:
            raise Unfusable("an index that varies along two dimensions")
        return f"tl.{side}({tile.text}, 0)" if tile.dims else f"({tile.text})"

    def unravel(self, dim: str, group: tuple[Axis, ...]) -> None:
        """Emit a variable with the index along each axis of the dimension `dim`, computed from the dimension's own
        index. `group`: its axes, outermost first; nothing is emitted for one axis."""
        step = 1
        for a in reversed(group):
            if len(group) > 1:
                text = f"{dim} // {step}" if step > 1 else dim
                self.line(f"{a.name}_ = {text}" if a is group[0] else f"{a.name}_ = {text} % {a.size}")
            step *= a.size


def _multiple(i: Index, of: int, batch: Sequence[Axis]) -> bool:
    """Whether an index is a multiple of `of` and constant in each program (its axes are batch axes)."""
    return i.const % of == 0 and all(a in batch and c % of == 0 for a, c in i.terms)
