"""Emits the values of a Triton kernel: each expression of the IR is a tile, computed once, in the outermost scope that
is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir.expr import Expr, below_maximum, unknown
from ...ir.index import index
from ...ir.loop_fusion import is_softmax_sum
from ...ir.op_texts import op_text
from ...ir.short_erf import COARSE, FINE
from ...ir.unfusable import Unfusable
from .frame import TritonPart
from .index import Positions
from .spelling import TRITON, Tile, widest

MAX_TILE_ELEMENTS = 1 << 16  # limit of a tile's elements: beyond, compilation takes minutes and registers spill
#: Quotients and remainders by divisors that may be 0, rounded down: 0, as in NumPy. By constants: the op's own text.
BY_ANY = {
    "floordiv": "{1} + ({1} == 0); {0} % {2}; tl.where({1} == 0, 0, {0} // {2}) - (({3} != 0) & (({3} ^ {1}) < 0)).to(tl.int32)",
    "mod": "{1} + ({1} == 0); {0} % {2}; tl.where(({3} != 0) & (({3} ^ {1}) < 0), {3} + {1}, {3})",
}


@dataclass(eq=False)
class TileValues(TritonPart):
    """Emitter part for elementwise expressions.

    `makers` emits loads and reductions: op ("load", "reduce") -> function that emits such an expression and returns its
    tile.
    """

    positions: Positions
    makers: dict[str, Callable[[Expr], Tile]] = field(default_factory=dict, init=False)

    def value(self, e: Expr) -> Tile:
        """Triton expression (a `Tile`) of the value of `e`. Statements that compute its operands are emitted first, in
        the outermost scope that can compute them, unless they have been emitted before."""
        frame = self.frame
        if frame.long and e.op != "const" and frame.scope.find(e) is None:  # without recursion, operands first
            for x in unknown(e, lambda a: frame.scope.find(a) is not None or not a.axes <= frame.scope.bound)[:-1]:
                self._value(x)
        return self._value(e)

    def _value(self, e: Expr) -> Tile:
        frame = self.frame
        found = frame.scope.find(e)
        if found is not None:
            return found
        if e.op == "const":
            return self.constant(e)
        if e.axes & frame.joined.keys() and (column := self.in_columns(e)) is not None:
            return self.value(column)
        home, here = frame.home(e), frame.scope
        with self.inside(home):
            tile = self._made(e)
            short = frame.uses.get(e, 0) <= 1 and len(tile.text) < 50 and e.op not in ("load", "reduce")
            if not short or home is not here:
                tile = self.named(tile)
            home.known[e] = tile
        return tile

    def in_columns(self, e: Expr) -> Expr | None:
        """The expression `e` with each reduction axis that runs over the elements of a column axis (`Shape.joined`)
        replaced by that column axis, if that is a load or a value that the kernel computes anyway; else None.

        A row that one tile holds whole is then loaded and computed once.
        """
        frame = self.frame
        several = len(self.kernel.stores) > 1 and e.op not in ("const", "index")
        if e.op != "load" and not (several and e not in frame.reducing):
            return None
        column = {r: index(self.shape.joined[r]) for r in frame.joined}
        if e not in frame.columns:  # all values at once; later the sides of products, which the kernel does not contain
            exprs = [e] if frame.columns else [*self.kernel.exprs, e]
            frame.columns |= zip(exprs, self.kernel.builder.substituted(exprs, column), strict=True)
        moved = frame.columns[e]
        return moved if e.op == "load" or moved in frame.uses else None

    def named(self, tile: Tile, stem: str = "t") -> Tile:
        """Emit the assignment of `tile` to a new variable, whose name begins with `stem`; returns the variable as a
        tile. A tile that is a variable already is returned as it is."""
        if tile.text.isidentifier():
            return tile
        name = self.fresh(stem)
        self.line(f"{name} = {tile.text}")
        return Tile(name, tile.dims, tile.dtype)

    def constant(self, e: Expr) -> Tile:
        """Triton literal (a `Tile` without dimensions) of the constant `e`."""
        v = e.value
        if isinstance(v, float) and not math.isfinite(v):
            return Tile(f"float('{'nan' if v != v else 'inf' if v > 0 else '-inf'}')", (), "const")
        return Tile(repr(v), (), "const" if e.kind == "float" else "bool" if e.kind == "bool" else "int32")

    def floated(self, e: Expr) -> Tile:
        """Triton expression (a `Tile`) of `e` in the compute dtype; if several uses need it, the conversion is emitted
        once, into a variable."""
        frame = self.frame
        tile = self.value(e)
        if e.kind != "float" or tile.dtype in (frame.wide, "const"):
            return tile
        for scope in frame.scope.outward():
            if e in scope.widened:
                return scope.widened[e]
        tile = Tile(f"{tile.atom}.to({TRITON[frame.wide]})", tile.dims, frame.wide)
        if frame.uses.get(e, 0) <= 1:
            return tile
        home = frame.home(e)
        with self.inside(home):
            home.widened[e] = self.named(tile)
        return home.widened[e]

    def _made(self, e: Expr) -> Tile:
        """The tile of an expression, from the tiles of its operands."""
        frame = self.frame
        if e.op == "index":
            return self.positions.position(e.value)
        if e.op in self.makers:
            return self.makers[e.op](e)
        if e.op == "cast":
            x = self.value(e.args[0])
            if e.args[0].kind == "bool" and e.value == "float32":
                return Tile(f"tl.where({x.text}, 1.0, 0.0)", x.dims, "float32")
            return Tile(f"{x.atom}.to({TRITON[e.value]})", x.dims, e.value)
        if e.op == "erf" and frame.narrow and frame.wide == "float32":
            return self.short_erf(e)
        if (shifted := below_maximum(e)) is not None and (safe := self._below_maximum(e, *shifted)) is not None:
            return safe
        if e.op == "div" and frame.narrow and is_softmax_sum(e.args[1]):
            b = self.kernel.builder  # one division per row instead of one per element
            e = b.make("mul", (e.args[0], b.make("recip", (e.args[1],))))
        text = op_text(e.op, "triton" if e.args[-1].kind == "float" else "triton_whole")
        if not text or (e.kind == "int" and e.op in ("div", "pow")):
            raise Unfusable(f"{e.op} has no Triton form")
        tiles = [self.floated(a) for a in e.args]
        if e.op in BY_ANY and tiles[1].dtype != "const":
            text = BY_ANY[e.op]
        if e.op in ("floordiv", "mod") and _signs_differ(tiles):
            raise Unfusable("a quotient of signed and unsigned integers")
        if e.op == "add" and "0.0" in (tiles[0].text, tiles[1].text):  # a sum with 0.0, as of a mask that hides nothing
            return tiles[tiles[0].text == "0.0"]
        if e.op == "mul" and "1.0" in (tiles[0].text, tiles[1].text):
            return tiles[tiles[0].text == "1.0"]
        if e.op == "pow":
            text = _power(tiles[1])
        dims = frame.union(tiles)
        dtype = "bool" if e.kind == "bool" else frame.wide if e.kind == "float" else widest(t.dtype for t in tiles)
        if dtype == frame.wide and all(t.dtype == "const" for t in tiles):
            raise Unfusable("arithmetic on constants only")
        if math.prod(frame.block[d] for d in dims) > MAX_TILE_ELEMENTS:
            raise Unfusable(
                f"a tile of {' x '.join(str(frame.block[d]) for d in dims)}, more than {MAX_TILE_ELEMENTS} elements"
            )
        *steps, text = text.split("; ")
        if e.op in ("exact_mul", "maximum", "minimum") and frame.wide == "float64":
            tiles = [_as_float64(t) for t in tiles]
        values = [frame.spread(t, dims) for t in tiles]
        if steps:
            values = [self.named(Tile(v, dims, t.dtype)).text for v, t in zip(values, tiles)]
        for step in steps:
            values.append(self.named(Tile(step.format(*values), dims, frame.wide)).text)
        return Tile(text.format(*values), dims, dtype)

    def short_erf(self, e: Expr) -> Tile:
        """Triton expression (a `Tile`) of the erf `e`, only as accurate as 16-bit results need (short_erf.py)."""
        frame = self.frame
        x = self.floated(e.args[0])
        stored = {self.kernel.buffers[s.buffer].dtype for s in self.kernel.stores}
        short = COARSE if stored == {"bfloat16"} else FINE
        y = self.named(Tile(f"tl.minimum(tl.maximum({x.text}, {-short.limit}), {short.limit})", x.dims, frame.wide))
        u = self.named(Tile(f"{y.text} * {y.text} * {short.scale!r} - 1.0", x.dims, frame.wide))
        return Tile(f"{y.text} * ({short.horner(u.text)})", x.dims, frame.wide)

    def _below_maximum(self, e: Expr, a: Expr, m: Expr) -> Tile | None:
        """exp(a - max(a)) where part of a row may be masked out completely (maximum -inf; see `below_maximum`).

        None if the maximum is safe already.
        """
        frame = self.frame
        low, top = self.floated(a), self.value(m)
        if top.text.endswith("_safe"):
            return None
        dims = frame.union([low, top])
        safe = self.named(Tile(f"tl.where({top.text} == float('-inf'), 0.0, {top.text})", top.dims, top.dtype), "safe")
        return Tile(f"tl.{e.op}({frame.spread(low, dims)} - {frame.spread(safe, dims)})", dims, frame.wide)


def _as_float64(tile: Tile) -> Tile:
    """A number that float32 does not hold exactly as a float64 tensor: some versions of Triton round the numbers that
    functions get to float32. Other tiles as they are."""
    if tile.dtype != "const" or "float(" in tile.text or float(np.float32(tile.text)) == float(tile.text):
        return tile
    return Tile(f"tl.full((), {tile.text}, tl.float64)", (), "const")


def _signs_differ(tiles: Sequence[Tile]) -> bool:
    """Whether a dividend and a divisor are signed and unsigned integers, which Triton refuses to divide; a constant has
    the sign of a dividend in its place, not that of a divisor."""
    x, y = (t.dtype.startswith("uint") for t in tiles)
    return x != y and tiles[1].dtype != "const"


def _power(exponent: Tile) -> str:
    """Text of a power of {0}, with NaN for a negative base with a non-integer exponent and a negative result for an odd
    exponent."""
    size = op_text("pow", "triton")
    if exponent.dtype != "const":
        turned = (
            f"tl.where(tl.floor({{1}}) != {{1}}, float('nan'), tl.where(tl.abs({{1}}) % 2.0 == 1.0, -{size}, {size}))"
        )
        return f"tl.where({{1}} == 0.0, 1.0, tl.where({{0}} < 0.0, {turned}, {size}))"
    n = float(exponent.text.replace("float('", "").replace("')", ""))
    if n == 0:
        return "tl.where({0} == {0}, 1.0, 1.0)"
    if not n.is_integer():
        return f"tl.where({{0}} < 0.0, float('nan'), {size})"
    return size if n % 2 == 0 else f"tl.where({{0}} < 0.0, -{size}, {size})"
