"""The Triton emitter: a kernel of the IR and its tiles as the text of one `@triton.jit` function.

Values are tiles over an ordered list of dimensions: rows, reduction axes, columns. A reduction whose axis is whole in a tile is
one call; one that walks its axis is a loop over tiles with accumulators. Reductions of one level share a loop. A sum of
exp(a - max(a)) shares the loop of the maximum it reads (the ROLL rule: the accumulator is rescaled when the maximum moves), which
makes online softmax and, over products, flash attention out of the plain formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from . import short_erf
from .descriptors import Box, box
from .index import Axis, Division, Index, index
from .kir import Expr, Kernel, Store, Unfusable, below_maximum, factors, walk
from .scopes import Block
from .tiling import Dot, Shape, Tiling, is_window, padded, shape_of

COUNTERS = 1 << 16  # tiles whose parts can be counted
LARGEST = 1 << 16  # elements of a tile: beyond, the compiler takes minutes and registers spill
ONE_BY_ONE = 8  # parts that are added one after the other: no sum across threads, and all reads under way at once
FEW = 32  # rows whose sums of products are taken from the diagonal of a matrix product
WIDE = 1 << 31  # elements beyond which positions need 64 bits


@dataclass(frozen=True)
class Tile:
    """A value in the source: its text, the dimensions it spans (positions in the emitter's list), its dtype."""

    text: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def atom(self) -> str:
        """The text, in parentheses unless it is one word or call."""
        plain = self.text.replace("_", "").replace(".", "").replace("e-", "e").isalnum()
        return self.text if plain or _is_call(self.text) else f"({self.text})"


def _is_call(text: str) -> bool:
    """Whether a text is `name(...)` with its only top-level parentheses at the end."""
    head, _, rest = text.partition("(")
    if not head.replace(".", "").replace("_", "").isalnum() or not rest.endswith(")"):
        return False
    depth = 1
    for i, c in enumerate(rest):
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            return i == len(rest) - 1
    return False


@dataclass
class Scope(Block[Tile]):
    """A block with values widened in it."""

    widened: dict[Expr, Tile] = field(default_factory=dict)  # values that several others need in float32


@dataclass(frozen=True)
class Launch:
    """One kernel call: the function's name and text, programs in the grid, argument names, launch options."""

    name: str
    source: str
    grid: int
    args: tuple[str, ...]
    warps: int
    stages: int
    boxes: tuple[tuple[str, Box], ...] = ()  # operands of which descriptors follow the arguments

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches it."""
        described = [f"described({names[o]}, {b.shape}, {b.block})" for o, b in self.boxes]
        given = ", ".join([*(names[a] for a in self.args), *described])
        return f"{self.name}[({self.grid},)]({given}, num_warps={self.warps}, num_stages={self.stages})"


#: pointwise op -> text over float32 operands
_CALLS = {
    "neg": "-{0}", "abs": "tl.abs({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.rsqrt({0})", "recip": "1.0 / {0}", "erf": "tl.erf({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "div": "{0} / {1}", "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "tanh": "2.0 / (1.0 + tl.exp(-2.0 * {0})) - 1.0", "log1p": "tl.log(1.0 + {0})", "expm1": "tl.exp({0}) - 1.0",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "not": "{0} == 0", "is_nan": "{0} != {0}",
    "is_inf": "tl.abs({0}) == float('inf')", "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
    "where": "tl.where({0}, {1}, {2})", "pow": "tl.exp2({1} * tl.log2({0}))",
}  # fmt: skip
_COMBINE = {"sum": "{0} + {1}", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})", "prod": "{0} * {1}"}
_ACROSS = {"sum": "tl.sum({0}, {1})", "max": "tl.max({0}, {1})", "min": "tl.min({0}, {1})"}
_NEUTRAL = {"sum": "0.0", "max": "float('-inf')", "min": "float('inf')", "prod": "1.0"}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}  # of what can be read in boxes
TRITON = {
    "float32": "tl.float32", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float64": "tl.float64", "bool": "tl.int1",
    "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32", "int64": "tl.int64", "uint8": "tl.uint8",
}  # fmt: skip


def emit(kernel: Kernel, tiling: Tiling, name: str, shape: Shape | None = None) -> Launch:
    """The launch of a kernel with given tiles. Unfusable where it has something that Triton's language lacks."""
    return _Emitter(kernel, tiling, name, shape or shape_of(kernel)).launch()


def emit_joined(first: Kernel, second: Kernel, tiling: Tiling, name: str, shape: Shape) -> Launch:
    """One launch of a split kernel: the program that is last to store the states of a tile joins them.

    `shape` is that of the kernel before it was split, whose tiles both halves share. Programs count themselves in the
    buffer `counters` (int32, one for each tile), which is zero before and after.
    """
    own = shape_of(first)
    spread = replace(own, rows=shape.rows, cols=shape.cols, batch=(first.axes[0], *shape.batch))
    parts = first.axes[0].size
    across = max(2, min(parts, (64 * 32 * tiling.warps) // max(tiling.m * tiling.n, 1)))
    joining = replace(shape, joined={}, inner=second_axes(second), outer=second_axes(second), dots={})
    if joining.inner == () or shape.joined:
        raise Unfusable("nothing to join by tiles")
    sums = all(e.value[0] == "sum" for e in second.reductions)
    limit = 1 if sums and parts <= ONE_BY_ONE else 1 << (across.bit_length() - 1)
    k = {a: min(padded(a.size), limit) if a.name == "parts" else padded(a.size) for a in joining.inner}
    # large states go straight to registers: stages of them would not fit into shared memory
    join = replace(tiling, k=k, stages=1 if tiling.m * tiling.n > 4096 else tiling.stages)
    return _Emitter(first, tiling, name, spread).launch(_Emitter(second, join, name, joining))


def second_axes(kernel: Kernel) -> tuple[Axis, ...]:
    """The reduction axes of a kernel without products."""
    return tuple(dict.fromkeys(e.axis for e in kernel.reductions))


class _Emitter:
    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> None:
        self.kernel, self.tiling, self.name, self.shape = kernel, tiling, name, shape
        self.wide = "float64" if any(b.dtype == "float64" for b in kernel.buffers.values()) else "float32"
        self.order = ["m", *(a.name for a in shape.inner), "n"]
        self.extent = {"m": shape.m, "n": shape.n, **{a.name: a.size for a in shape.inner}}
        self.block = {"m": tiling.m, "n": tiling.n, **{a.name: tiling.k[a] for a in shape.inner}}
        self.walked = {a for a in shape.inner if tiling.k[a] < a.size}
        self.single = {a for a in self.walked if tiling.k[a] == 1 and (is_window(a) or a.name == "parts")}  # unrolled
        self.n_loop = shape.walks and tiling.n < shape.n  # columns walked, not spread over programs
        whole = {a for a in shape.inner if a not in self.walked and a not in shape.joined}
        self.top = Scope(1, set(kernel.axes) | whole)
        self.scope = self.top
        self.counter = 0
        self.fresh_loads = False  # whether states are read that other programs have just written
        self.joined: dict[Axis, str] = {}  # reduction axes that share the columns' dimension (whole rows)
        if shape.joined and not self.n_loop:
            for r in shape.joined:
                self.joined[r] = "n"
                self.top.bound.add(r)
            self.walked -= set(shape.joined)
        if self.n_loop:
            self.top.bound -= set(shape.cols)
        self.boxes: dict[tuple[Any, ...], str] = {}
        self.described: dict[str, tuple[str, Box]] = {}
        self.narrow = all(kernel.buffers[x.buffer].dtype in ("bfloat16", "float16") for x in kernel.stores)
        self.uses: dict[Expr, int] = {}
        for e in kernel.exprs:
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        if len(kernel.stores) > 1:  # what is stored may be used as well, and is held
            for s in kernel.stores:
                self.uses[s.value] = self.uses.get(s.value, 0) + 2

    # ------------------------------------------------------------ text
    def line(self, text: str, scope: Scope | None = None) -> None:
        scope = scope or self.scope
        scope.lines.append("    " * scope.indent + text)

    def fresh(self, stem: str = "t") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def spread(self, tile: Tile, dims: Sequence[str]) -> str:
        """The tile's text, with axes inserted so that it broadcasts against tiles over `dims`."""
        if not tile.dims or tuple(dims) == tile.dims:
            return tile.atom
        if len(tile.dims) == len(dims):
            return tile.atom
        places = ", ".join(":" if d in tile.dims else "None" for d in dims)
        return f"{tile.atom}[{places}]"

    def union(self, tiles: Iterable[Tile]) -> tuple[str, ...]:
        found = {d for t in tiles for d in t.dims}
        return tuple(d for d in self.order if d in found)

    def dim_of(self, axis: Axis) -> str:
        if axis in self.shape.rows:
            return "m"
        if axis in self.shape.cols or axis in self.joined:
            return "n"
        return axis.name

    def sizes(self, dims: Sequence[str]) -> str:
        inner = ", ".join(str(self.block[d]) for d in dims)
        return f"({inner},)" if len(dims) == 1 else f"({inner})"

    # ------------------------------------------------------------ scopes
    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        before, self.scope = self.scope, scope
        yield
        self.scope = before

    def home(self, e: Expr) -> Scope:
        """The outermost scope in which the expression can be computed."""
        scope = self.scope
        while scope.outside is not None and e.axes <= scope.outside.bound and not self._needs_inner(e, scope):
            scope = scope.outside
        return scope

    def _needs_inner(self, e: Expr, scope: Scope) -> bool:
        """Whether an operand is known in this scope only (a running value of a loop)."""
        return any(x in scope.known and x.op == "reduce" and x.axis in scope.bound for x in walk([e]))

    # ------------------------------------------------------------ values
    def value(self, e: Expr) -> Tile:
        """The tile of an expression, computed where it is first possible."""
        found = self.scope.find(e)
        if found is not None:
            return found
        if e.op == "const":
            return self.constant(e)
        if e.axes & self.joined.keys() and (column := self.in_columns(e)) is not None:
            return self.value(column)
        home, here = self.home(e), self.scope
        with self.inside(home):
            tile = self._made(e)
            short = self.uses.get(e, 0) <= 1 and len(tile.text) < 50 and e.op not in ("load", "reduce")
            if not short or home is not here:
                tile = self.named(tile)
            home.known[e] = tile
        return tile

    def in_columns(self, e: Expr) -> Expr | None:
        """The value over the columns that a reduction runs over, where it is there: a row that is whole in a tile is loaded
        once, and what is stored of it is computed once."""
        several = len(self.kernel.stores) > 1 and e.op not in ("const", "index")
        if e.op != "load" and not (several and all(x.op != "reduce" for x in walk([e]))):
            return None
        column = {r: index(self.shape.joined[r]) for r in self.joined}
        moved = self.kernel.builder.substituted([e], column)[0]
        return moved if e.op == "load" or moved in self.uses else None

    def named(self, tile: Tile, stem: str = "t") -> Tile:
        if tile.text.isidentifier():
            return tile
        name = self.fresh(stem)
        self.line(f"{name} = {tile.text}")
        return Tile(name, tile.dims, tile.dtype)

    def constant(self, e: Expr) -> Tile:
        v = e.value
        if isinstance(v, float) and not math.isfinite(v):
            return Tile(f"float('{'nan' if v != v else 'inf' if v > 0 else '-inf'}')", (), "const")
        return Tile(repr(v), (), "const" if e.kind == "float" else "bool" if e.kind == "bool" else "int32")

    def floated(self, e: Expr) -> Tile:
        """The value in the width that arithmetic is done in; cast once where several need it."""
        tile = self.value(e)
        if e.kind != "float" or tile.dtype in (self.wide, "const"):
            return tile
        for scope in self.scope.outward():
            if e in scope.widened:
                return scope.widened[e]
        tile = Tile(f"{tile.atom}.to({TRITON[self.wide]})", tile.dims, self.wide)
        if self.uses.get(e, 0) <= 1:
            return tile
        home = self.home(e)
        with self.inside(home):
            home.widened[e] = self.named(tile)
        return home.widened[e]

    def _made(self, e: Expr) -> Tile:
        if e.op == "index":
            return self.position(e.value)
        if e.op == "load":
            return self.load(e)
        if e.op == "reduce":
            return self.reduction(e)
        if e.op == "cast":
            x = self.value(e.args[0])
            target = "int32" if e.value == "int64" else e.value
            if e.args[0].kind == "bool" and target == "float32":
                return Tile(f"tl.where({x.text}, 1.0, 0.0)", x.dims, "float32")
            return Tile(f"{x.atom}.to({TRITON[target]})", x.dims, target)
        if e.op == "erf" and self.narrow and self.wide == "float32":
            return self.short_erf(e)
        if (shifted := below_maximum(e)) is not None and (safe := self._below_maximum(e, *shifted)) is not None:
            return safe
        text = _CALLS.get(e.op)
        if text is None or (e.kind == "int" and e.op in ("div", "pow")):
            raise Unfusable(f"{e.op} has no text")
        tiles = [self.floated(a) for a in e.args]
        if e.op == "add" and "0.0" in (tiles[0].text, tiles[1].text):  # a mask that changes nothing here
            return tiles[tiles[0].text == "0.0"]
        dims = self.union(tiles)
        dtype = "bool" if e.kind == "bool" else self.wide if e.kind == "float" else _widest(t.dtype for t in tiles)
        if dtype == self.wide and all(t.dtype == "const" for t in tiles):
            raise Unfusable("arithmetic on numbers alone")
        if math.prod(self.block[d] for d in dims) > LARGEST:
            raise Unfusable(f"a tile of {' x '.join(str(self.block[d]) for d in dims)}")
        return Tile(text.format(*(self.spread(t, dims) for t in tiles)), dims, dtype)

    def short_erf(self, e: Expr) -> Tile:
        """erf as exact as 16 bits need (short_erf.py)."""
        x = self.floated(e.args[0])
        limit = short_erf.LIMIT
        y = self.named(Tile(f"tl.minimum(tl.maximum({x.text}, {-limit}), {limit})", x.dims, self.wide))
        u = self.named(Tile(f"{y.text} * {y.text} * {short_erf.SCALE!r} - 1.0", x.dims, self.wide))
        return Tile(f"{y.text} * ({short_erf.horner(u.text)})", x.dims, self.wide)

    def _below_maximum(self, e: Expr, a: Expr, m: Expr) -> Tile | None:
        """exp(a - max(a)) where a mask may hide a whole part of a row (see `below_maximum`); None where none can."""
        low, top = self.floated(a), self.value(m)
        if top.text.endswith("_safe") or not _allowed(a):
            return None
        dims = self.union([low, top])
        safe = self.named(Tile(f"tl.where({top.text} == float('-inf'), 0.0, {top.text})", top.dims, top.dtype), "safe")
        return Tile(f"tl.{e.op}({self.spread(low, dims)} - {self.spread(safe, dims)})", dims, self.wide)

    def axis_text(self, axis: Axis) -> str:
        """The variable that holds an axis' values; made at first use."""
        dim = self.dim_of(axis)
        if axis in self.shape.batch:
            return axis.name
        group = self.shape.rows if dim == "m" else self.shape.cols if dim == "n" else (axis,)
        if axis in self.joined or len(group) == 1:
            return dim
        return f"{axis.name}_"

    def _atom(self, atom: Axis | Division) -> tuple[tuple[str, ...], str]:
        """Dimensions and text of a part of an index."""
        if isinstance(atom, Axis):
            return () if atom in self.shape.batch or atom in self.single else (self.dim_of(atom),), self.axis_text(atom)
        for axis in self.walked & atom.index.axes:
            step, others = self.block[axis.name], atom.index - index(axis)
            if step > 1 and atom.by % step == 0 and _multiple(others, step, self.shape.batch):
                # no tile crosses a multiple of the divisor: its quotient is one number
                start = Index(((Axis(f"{axis.name}_", axis.size), 1),)) + others
                whole = Index(((Division(start, atom.by, False), 1),))
                if not atom.rest:
                    return (), whole.text(lambda a: a.name)
                # no remainder: the compiler does not see that it is a multiple of the tile, and would load one by one
                first = "" if atom.by == step else f"{(start - whole * atom.by).text(lambda a: a.name)} + "
                return (axis.name,), f"({first}tl.arange(0, {step}))"
        inner = self.position(atom.index, atom.index.range[1] >= WIDE)
        text = inner.text if len(atom.index.terms) == 1 and not atom.index.const else inner.atom
        return inner.dims, f"({text} {'%' if atom.rest else '//'} {atom.by})"

    def position(self, index: Index, wide: bool = False) -> Tile:
        """The tile of an index."""
        parts: dict[tuple[str, ...], list[str]] = {}
        for atom, c in index.terms:
            dims, text = self._atom(atom)
            text = f"{text}.to(tl.int64)" if wide and (dims or atom in self.shape.batch) else text
            parts.setdefault(dims, []).append(text if c == 1 else f"{text} * {c}")
        if index.const:
            parts.setdefault((), []).append(str(index.const))
        tiles = [Tile(" + ".join(texts), dims, "int32") for dims, texts in parts.items()]
        all_dims = self.union(tiles)
        if len(tiles) == 1:
            return tiles[0]
        text = " + ".join(self.spread(t, all_dims) if t.dims != all_dims else t.text for t in tiles)
        return Tile(text or "0", all_dims, "int32")

    def ragged(self, dim: str) -> bool:
        """Whether the last tile of a dimension is not full."""
        return self.extent[dim] % self.block[dim] != 0

    def mask(self, dims: Sequence[str], over: Sequence[str], more: Sequence[Tile] = ()) -> str:
        """The condition that elements of tiles over `over` exist, as text; empty where they all do."""
        parts = [Tile(f"{d} < {self.extent[d]}", (d,), "bool") for d in dims if self.ragged(d)] + list(more)
        alike: dict[tuple[str, ...], list[str]] = {}
        for p in parts:
            alike.setdefault(p.dims, []).append(p.atom if len(parts) > 1 else p.text)
        joined = [Tile(" & ".join(texts), kept, "bool") for kept, texts in alike.items()]  # lines before they are tiles
        return " & ".join(self.spread(p, over) if p.dims else p.text for p in joined)

    def load(self, e: Expr) -> Tile:
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
            *([self.spread(where, dims) if where.dims != dims else where.text] if where.text != "0" else []),
        ]
        parts += [f"{self.spread(p, dims)}.to(tl.int64) * {s}" for p, s in picks]
        mask = self.mask(dims, dims, guards)
        fresh = ", cache_modifier='.cg'" if self.fresh_loads and operand.startswith("part") else ""
        text = f"tl.load({' + '.join(parts)}{f', mask={mask}, other=0' if mask else ''}{fresh})"
        if dtype == "bool":
            return Tile(f"{text} != 0", dims, "bool")
        return Tile(text, dims, dtype)

    def boxed(self, operand: str, at: Index, dtype: str) -> Tile | None:
        """A tile that the copy unit reads, None where it cannot: it does not see single elements, nor another's mask."""
        if self.fresh_loads or dtype not in ITEMSIZE or not at.axes & self.walked:
            return (
                None  # what no loop reads is needed in registers: by way of shared memory it comes later and takes room
            )
        tiles: dict[Axis, tuple[str, int]] = {}
        for a in at.axes:
            if a in self.shape.batch or a in self.single:
                continue
            dim = self.dim_of(a)
            group = self.shape.rows if dim == "m" else self.shape.cols if dim == "n" else (a,)
            if group != (a,) or self.ragged(dim):
                return None
            tiles[a] = self.origin(a, dim), self.block[dim]
        found = box(at, tiles, ITEMSIZE[dtype], self.axis_text)
        if found is None:
            return None
        name = self.boxes.setdefault((operand, found.shape, found.block), f"{operand}_box{len(self.boxes)}")
        self.described[name] = operand, found
        dims = tuple(self.dim_of(a) for a in found.axes)
        text = f"{name}.load([{found.origin[0]}, {found.origin[1]}])"
        in_order = self.order.index(dims[0]) < self.order.index(dims[1])
        return Tile(text, dims, dtype) if in_order else Tile(f"tl.trans({text})", dims[::-1], dtype)

    def origin(self, axis: Axis, dim: str) -> str:
        """The first position of a tile along an axis."""
        if axis in self.walked:
            return f"{axis.name}_"
        if dim == "n" and self.n_loop:
            return "n_"
        tiled = dim in ("m", "n") and self.extent[dim] > self.block[dim]
        return f"tile_{dim} * {self.block[dim]}" if tiled else "0"

    # ------------------------------------------------------------ reductions
    def reduction(self, e: Expr) -> Tile:
        if e.axis in self.walked:
            self.loop(e)
            found = self.scope.find(e)
            assert found is not None
            return found
        return self.whole(e)

    def neutral(self, e: Expr, body: Tile, dim: str) -> str:
        """The body's text with the neutral element where the axis has no element."""
        if not self.ragged(dim) or (e.value[0] == "sum" and _vanishes(e.args[0], e.axis)):
            return body.text
        mask = self.spread(Tile(f"{dim} < {self.extent[dim]}", (dim,), "bool"), body.dims)
        return f"tl.where({mask}, {body.text}, {_NEUTRAL[e.value[0]]})"

    def whole(self, e: Expr) -> Tile:
        dot = self.shape.dots.get(e)
        if dot is not None and (tile := self.dot(e, dot, None)) is not None:
            return tile
        dim = self.dim_of(e.axis)
        body = self.floated(e.args[0])
        across = _ACROSS.get(e.value[0])
        if across is None or e.kind == "bool":
            raise Unfusable(f"a reduction by {e.value[0]}")
        if dim not in body.dims:
            raise Unfusable("a reduction along an axis that no tile has")
        kept = tuple(d for d in body.dims if d != dim)
        text = across.format(self.neutral(e, body, dim), body.dims.index(dim))
        return Tile(text, kept, body.dtype)

    def dot(self, e: Expr, dot: Dot, acc: str | None) -> Tile | None:
        """A product on the matrix unit, or None where the tiles are too small for it."""
        k = self.dim_of(e.axis)
        a, b = self.side(dot.left), self.side(dot.right)
        if (
            len(a.dims) != 2
            or len(b.dims) != 2
            or k not in a.dims
            or k not in b.dims
            or set(a.dims) & set(b.dims) != {k}
        ):
            return None
        if a.dims[0] == k:
            a, b = b, a
        if a.dims[1] != k or b.dims[0] != k:
            return None
        if min(self.block[d] for d in (*a.dims, *b.dims)) < 16:
            return None
        a, b = self.matched(a, b)
        dims = (a.dims[0], b.dims[1])
        if self.ragged(k) and not (_vanishes(e.args[0], e.axis)):
            return None
        precision = (
            f", input_precision='{self.tiling.options.get('precision', 'ieee')}'" if a.dtype == "float32" else ""
        )
        start = f", {acc}" if acc else ""
        return Tile(f"tl.dot({a.text}, {b.text}{start}{precision})", dims, "float32")

    def side(self, parts: Sequence[Expr]) -> Tile:
        found = self.kernel.builder.product(list(parts), [])
        self.uses.setdefault(found, 2)
        return self.value(found)

    def matched(self, a: Tile, b: Tile) -> tuple[Tile, Tile]:
        """Both operands of one dtype: the narrow one that is in memory, else float32. What is computed is rounded to it, as the
        original did when it stored the value."""
        narrow = [t.dtype for t in (a, b) if t.dtype in ("bfloat16", "float16")]
        want = narrow[0] if narrow else self.narrowest()
        if want == "float64":
            raise Unfusable("a product in float64")
        return tuple(t if t.dtype == want else Tile(f"{t.atom}.to({TRITON[want]})", t.dims, want) for t in (a, b))  # type: ignore[return-value]

    def narrowest(self) -> str:
        """The dtype of products of computed values: that of the narrowest operand in memory."""
        floats = {b.dtype for name, b in self.kernel.buffers.items() if b.dtype in ("bfloat16", "float16")}
        inputs = {e.value[3] for e in self.kernel.exprs if e.op == "load"}
        return next(iter(sorted(floats & inputs)), self.wide)

    # ------------------------------------------------------------ loops
    def loop(self, wanted: Expr) -> None:
        """The loop that computes a reduction, and with it all others of its axis that are ready."""
        axis = wanted.axis
        ready = self.together(wanted)
        self._operands_first(ready, axis)
        outer = self.scope
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        stages = f", num_stages={self.tiling.stages}" if not any(x in self.shape.dots for x in ready) else ""
        start, step = f"{axis.name}_", self.block[axis.name]
        finals: dict[Expr, Callable[[], Tile]] = {}
        for low, high, assumed in self.segments(ready, axis):
            inner = Scope(outer.indent + 1, outer.bound | {axis}, outside=outer)
            with self.inside(inner):
                if axis not in self.single:
                    self.line(f"{axis.name} = {start} + tl.arange(0, {step})")
                for e, kept in assumed.items():
                    inner.known[e] = self.value(kept)
            finals = self._updates(ready, axis, names, inner, None if finals else outer)
            steps = f"tl.range({low}, {high}, {step}{stages})"
            if axis in self.single:
                start, steps = axis.name, f"tl.static_range({axis.size})"
            self.line(f"for {start} in {steps}:")
            outer.lines += inner.lines
        for e in ready:
            outer.known[e] = finals[e]()

    def _updates(
        self, ready: Sequence[Expr], axis: Axis, names: Mapping[Expr, str], inner: Scope, outer: Scope | None
    ) -> dict[Expr, Callable[[], Tile]]:
        """The lines of a loop's body, and before the loop (in `outer`, where given) those that start its accumulators."""
        running = [e for e in ready if e.value[0] == "max" and any(rolled(x, axis) is e for x in ready)]
        scales: dict[Expr, Tile] = {}
        finals: dict[Expr, Callable[[], Tile]] = {}
        for e in running:
            finals[e], scales[e] = self._running_max(e, axis, names[e], inner, outer)
        for e in ready:
            if e not in finals:
                maximum = rolled(e, axis)
                scale = scales.get(maximum) if maximum is not None else None
                finals[e] = self._accumulate(e, axis, names[e], inner, outer, scale)
        return finals

    def _operands_first(self, ready: Sequence[Expr], axis: Axis) -> None:
        """Reductions that the bodies read but that do not run inside this loop come before it."""
        for e in ready:
            for x in walk(e.args):
                if x.op == "reduce" and x not in ready and x.axes <= self.scope.bound and axis not in x.axes:
                    if self.scope.find(x) is None and (x.axis in self.walked or x.axes):
                        self.value(x)

    def together(self, wanted: Expr) -> list[Expr]:
        """Reductions over the same axis, ready in this scope, that can share one loop: inner ones first."""
        axis = wanted.axis
        same = [
            e for e in self.kernel.reductions
            if e.axis == axis and e.axes <= self.scope.bound and self.scope.find(e) is None
        ]  # fmt: skip
        chosen: list[Expr] = []
        for e in same:
            blocking = [x for x in walk(e.args) if x in same and x is not e]
            rolls = (maximum := rolled(e, axis)) is not None and maximum in chosen and set(blocking) <= {maximum}
            if not blocking or rolls:
                chosen.append(e)
        if wanted not in chosen:  # its own operands first
            self.loop(next(x for x in walk(wanted.args) if x in same))
            return self.together(wanted)
        return chosen

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: Scope, outer: Scope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        power = next(x.op for x in self.kernel.exprs if x.op in ("exp", "exp2") and x.args[0].args[1:] == (e,))
        with self.inside(inner):
            a = self.floated(e.args[0])
            dim = self.dim_of(axis)
            if self.ragged(dim):
                a = Tile(self.neutral(e, a, dim), a.dims, a.dtype)
            a = self.named(a)
            inner.known[e.args[0]] = a
            kept = tuple(d for d in a.dims if d != dim)
            self.line(f"{name}_new = tl.maximum({name}, tl.max({a.text}, {a.dims.index(dim)}))")
            self.line(f"{name}_safe = tl.where({name}_new == float('-inf'), 0.0, {name}_new)")
            scale = self.fresh("scale")
            self.line(f"{scale} = tl.{power}({name} - {name}_safe)")
            self.line(f"{name} = {name}_new")
            inner.known[e] = Tile(f"{name}_safe", kept, self.wide)
        if outer is not None:
            self.line(self._started(name, kept, "max"), outer)
        return (lambda: Tile(name, kept, self.wide)), Tile(scale, kept, self.wide)

    def _started(self, name: str, dims: Sequence[str], monoid: str) -> str:
        """The line that starts an accumulator with the neutral element."""
        fill = _NEUTRAL[monoid]
        return f"{name} = tl.full({self.sizes(dims)}, {fill}, {TRITON[self.wide]})" if dims else f"{name} = {fill}"

    def _accumulate(
        self, e: Expr, axis: Axis, name: str, inner: Scope, outer: Scope | None, scale: Tile | None
    ) -> Callable[[], Tile]:
        monoid = e.value[0]
        dot = self.shape.dots.get(e)
        dim = self.dim_of(axis)
        with self.inside(inner):
            if dot is not None:
                dims = tuple(d for d in self.order if d in {self.dim_of(a) for a in dot.rows | dot.cols})
                start = name if scale is None else f"{name} * {self.spread(scale, dims)}"
                tile = self.dot(e, dot, start)
                if tile is not None:
                    self.line(f"{name} = {tile.text}")
                    if outer is not None:
                        self.line(f"{name} = tl.zeros({self.sizes(tile.dims)}, tl.float32)", outer)
                    return lambda: Tile(name, tile.dims, "float32")
            rows = self._row_products(e, axis)
            if rows is not None:
                return self._on_the_diagonal(name, *rows, outer)
            body = self.floated(e.args[0])
            text = self.neutral(e, body, dim)
            kept = tuple(d for d in body.dims if d != dim)
            if monoid not in _ACROSS or e.kind != "float":
                raise Unfusable(f"a walked reduction by {monoid} of {e.kind}")
            if scale is not None or self.tiling.options.get("eager_sums"):
                old = name if scale is None else f"{name} * {self.spread(scale, kept)}"
                self.line(
                    f"{name} = {_COMBINE[monoid].format(old, _ACROSS[monoid].format(text, body.dims.index(dim)))}"
                )
                held = kept
            else:
                self.line(f"{name} = {_COMBINE[monoid].format(name, text)}")
                held = body.dims
        if outer is not None:
            self.line(self._started(name, held, monoid), outer)
        if held == kept:
            return lambda: Tile(name, kept, self.wide)

        def final() -> Tile:
            self.line(f"{name} = {_ACROSS[monoid].format(name, held.index(dim))}")
            return Tile(name, kept, self.wide)

        return final

    def _row_products(self, e: Expr, axis: Axis) -> tuple[Tile, Tile] | None:
        """The two tiles whose rows a sum multiplies, where one of them also goes into a product on the matrix unit: it lies
        there for the unit already, and few rows cost it next to nothing."""
        over, under = factors(e.args[0])
        if e.value[0] != "sum" or under or len(over) != 2 or any(f.op != "load" or f.kind != "float" for f in over):
            return None
        if not any(d.left == (f,) for d in self.shape.dots.values() for f in over):
            return None
        a, b = (self.value(f) for f in over)
        narrow = a.dtype == b.dtype and a.dtype in ("bfloat16", "float16")
        if not narrow or {a.dims, b.dims} != {("m", self.dim_of(axis))}:
            return None
        return (a, b) if 16 <= self.block["m"] <= FEW and self.block[self.dim_of(axis)] >= 16 else None

    def _on_the_diagonal(self, name: str, a: Tile, b: Tile, outer: Scope | None) -> Callable[[], Tile]:
        """Sums over products of rows as the diagonal of a matrix product."""
        size = self.block["m"]
        self.line(f"{name} = tl.dot({a.text}, tl.trans({b.text}), {name})")
        if outer is not None:
            self.line(f"{name} = tl.zeros(({size}, {size}), tl.float32)", outer)

        def final() -> Tile:
            each = f"tl.arange(0, {size})"
            self.line(f"{name} = tl.sum(tl.where({each}[:, None] == {each}[None, :], {name}, 0.0), 1)")
            return Tile(name, ("m",), "float32")

        return final

    def segments(self, ready: Sequence[Expr], axis: Axis) -> list[tuple[str, str, dict[Expr, Expr]]]:
        """(first position, last position, masks that change nothing there) of the loops over an axis. Where a mask makes
        every body neutral beyond a bound, the loop ends there; a causal mask is left out of all tiles but the last ones."""
        maxima = [e for e in ready if e.value[0] == "max" and axis not in self.single]
        if not maxima or any(e not in maxima and rolled(e, axis) not in maxima for e in ready):
            return [("0", str(axis.size), {})]
        found = [self._rooms(e, axis) for e in maxima]
        step = self.block[axis.name]
        lows, highs = (
            set.intersection(*({r.rest for r in rooms if r.side == side} for rooms in found)) for side in (1, -1)
        )
        first = [f"tl.maximum({self._extreme(i * -1, 'min')}, 0) // {step} * {step}" for i in lows][:1] or ["0"]
        last = [f"tl.minimum({self._extreme(i, 'max')} + 1, {axis.size})" for i in highs][:1] or [str(axis.size)]
        masks = {r.mask: r.kept for rooms in found for r in rooms}
        if lows or len(highs) != 1 or len(masks) != len(maxima) or axis.size <= step:
            return [(first[0], last[0], {})]
        (bound,) = highs
        free = self.fresh("free")
        seen = f"tl.minimum({self._extreme(bound, 'min')} + 1, {axis.size})"
        seen = f"tl.maximum({seen}, 0)" if bound.range[0] < -1 else seen  # a part may begin behind all that a row sees
        self.line(f"{free} = {seen} // {step} * {step}")
        return [("0", free, masks), (free, last[0], {})]

    def _rooms(self, e: Expr, axis: Axis) -> list[Room]:
        """The masks on a maximum's body that bound an axis from one side."""
        found = []
        for room, mask, kept in _allowed(e.args[0]):
            side = room.coefficient(axis)
            rest = room - index(axis) * side
            if side in (1, -1) and axis not in rest.axes and rest.axes <= self.scope.bound:
                found.append(Room(rest, side, mask, kept))
        return found

    def _extreme(self, at: Index, side: str) -> str:
        tile = self.position(at)
        for _ in tile.dims[1:]:
            raise Unfusable("a bound over two dimensions")
        return f"tl.{side}({tile.text}, 0)" if tile.dims else f"({tile.text})"

    # ------------------------------------------------------------ the function
    def launch(self, last: _Emitter | None = None) -> Launch:
        """The function's text and its grid. `last` is what the last program of each tile does after its part."""
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // t.m), 1 if self.n_loop else -(-s.n // t.n)
        batch = math.prod(a.size for a in s.batch)
        head = Scope(1, set())
        with self.inside(head):
            self._program(tiles_m, tiles_n)
        if not self.walked and not self.n_loop:  # all loads are under way before the first value is waited for
            for e in self.kernel.exprs:
                if e.op == "load" and e.axes <= self.top.bound and all(a.op != "load" for a in e.args):
                    self.value(e)
        self._stores(self.kernel.stores)
        body = [*head.lines, *self.top.lines]
        names = [*self.kernel.buffers]
        if last is not None:
            body += last.as_last(tiles_m * tiles_n * batch, s.batch[0].size, self.counter)
            names.append("counters")
        args = [n for n in names if any(_names(line, n) for line in body)]
        lines = ["@triton.jit", f"def {self.name}({', '.join([*args, *self.described])}):", *body]
        return Launch(
            self.name,
            "\n".join(lines) + "\n",
            tiles_m * tiles_n * batch,
            tuple(args),
            t.warps,
            t.stages,
            tuple(self.described.values()),
        )

    def as_last(self, programs: int, parts: int, counter: int) -> list[str]:
        """The lines that join a tile's parts, in the program that finds all others done."""
        if programs // parts > COUNTERS:
            raise Unfusable(f"{programs // parts} tiles to be joined")
        self.counter, self.fresh_loads = counter, True
        self.top.indent = 2
        whole = [a for a in self.shape.inner if a not in self.walked]
        for a in whole:
            self.line(f"{a.name} = tl.arange(0, {self.block[a.name]})")
        self._stores(self.kernel.stores)
        tile = f"program % {programs // parts}" if programs > parts else "0"
        return [
            "    tl.debug_barrier()",
            f"    counter = counters + {tile}",
            "    done = tl.atomic_add(counter, 1)",
            f"    if done == {parts - 1}:",
            "        tl.store(counter, 0)",
            *self.top.lines,
        ]

    def _program(self, tiles_m: int, tiles_n: int) -> None:
        s, t = self.shape, self.tiling
        batch = math.prod(a.size for a in s.batch)
        if tiles_m * tiles_n * batch > 1:
            self.line("program = tl.program_id(0)")
        tile = "program"
        with self.inside(self.top):
            descending = self.longest_last()
        if descending and tiles_m * tiles_n > 1:
            self.line(f"tile = {tiles_m * tiles_n - 1} - program // {batch}")
            tile = "tile"
        if batch > 1:
            if tile == "tile":
                self.line(f"batch = program % {batch}")
            elif tiles_m * tiles_n > 1:
                self.line(f"batch = program // {tiles_m * tiles_n}")
                self.line(f"tile = program % {tiles_m * tiles_n}")
                tile = "tile"
            else:
                self.line("batch = program")
            step = 1
            for a in reversed(s.batch):
                outermost = a is s.batch[0]
                text = f"batch // {step}" if step > 1 else "batch"
                self.line(
                    f"{a.name} = {text}" if outermost else f"{a.name} = {f'({text})' if step > 1 else text} % {a.size}"
                )
                step *= a.size
        if tiles_m > 1 and tiles_n > 1:
            if t.group > 1:
                width = t.group * tiles_n
                self.line(f"first = {tile} // {width} * {t.group}")
                self.line(f"height = tl.minimum({tiles_m} - first, {t.group})")
                self.line(f"tile_m = first + {tile} % {width} % height")
                self.line(f"tile_n = {tile} % {width} // height")
            else:
                self.line(f"tile_m = {tile} % {tiles_m}")
                self.line(f"tile_n = {tile} // {tiles_m}")
        elif tiles_m > 1:
            self.line(f"tile_m = {tile}")
        elif tiles_n > 1:
            self.line(f"tile_n = {tile}")
        for dim, count, group in (("m", tiles_m, s.rows), ("n", tiles_n, s.cols)):
            if group and not (dim == "n" and self.n_loop):
                base = f"tile_{dim} * {self.block[dim]} + " if count > 1 else ""
                self.line(f"{dim} = {base}tl.arange(0, {self.block[dim]})")
                self._group(dim, group)
        for a in s.inner:
            if a not in self.walked and a not in self.joined:
                self.line(f"{a.name} = tl.arange(0, {self.block[a.name]})")

    def longest_last(self) -> bool:
        """Whether later rows have more to do, under a causal mask: their programs begin first, so that none is alone at the
        end."""
        if any(a.name == "part" for a in self.shape.batch):
            return False
        rooms = [
            r for e in self.kernel.reductions if e.value[0] == "max" and e.axis in self.walked for r in self._rooms(e, e.axis)
        ]  # fmt: skip
        return any(r.side == -1 and r.rest.coefficient(a) > 0 for r in rooms for a in self.shape.rows)

    def _group(self, dim: str, group: tuple[Axis, ...]) -> None:
        step = 1
        for a in reversed(group):
            if len(group) > 1:
                text = f"{dim} // {step}" if step > 1 else dim
                self.line(f"{a.name}_ = {text}" if a is group[0] else f"{a.name}_ = {text} % {a.size}")
            step *= a.size

    def _stores(self, stores: Sequence[Store]) -> None:
        """All results; those along columns that are walked in one loop."""
        walked = [s for s in stores if self.n_loop and s.value.axes & set(self.shape.cols)]
        for store in stores:
            if store not in walked:
                self._store(store)
        if not walked:
            return
        for e in walk(s.value for s in walked):  # all reductions first: the loop over columns only reads them
            if e.op == "reduce" and e.axes <= self.top.bound and self.scope.find(e) is None:
                self.value(e)
        inner = Scope(2, self.top.bound | set(self.shape.cols), outside=self.top)
        with self.inside(inner):
            self.line(f"n = n_ + tl.arange(0, {self.block['n']})")
            self._group("n", self.shape.cols)
            for store in walked:
                self._store(store)
        self.line(
            f"for n_ in tl.range(0, {self.shape.n}, {self.block['n']}, num_stages={self.tiling.stages}):", self.top
        )
        self.top.lines += inner.lines

    def _store(self, store: Store) -> None:
        buffer, at, value = store.buffer, store.at, store.value
        tile = self.value(value) if value.op == "load" or value.kind != "float" else self.floated(value)
        spot = self.kernel.buffers[buffer]
        where = self.position(at, at.range[1] >= WIDE)
        guards = [self.value(g) for g in store.guards]
        dims = self.union([where, tile, *guards])
        target = f"{buffer} + {self.spread(where, dims)}" if where.text != "0" else buffer
        mask = self.mask(dims, dims, guards)
        extra = [d for d in tile.dims if d not in where.dims]
        if extra:
            raise Unfusable("a result with more axes than its place")
        text = f"{tile.atom}.to({TRITON[spot.dtype]})" if tile.dtype not in ("const", spot.dtype) else tile.text
        if tile.dims != dims and tile.dims:
            text = self.spread(Tile(text, tile.dims, spot.dtype), dims)
        if tile.dims != dims:
            text = (
                f"tl.broadcast_to({text}, {self.sizes(dims)})"
                if tile.dims
                else f"tl.full({self.sizes(dims)}, {text}, {TRITON[spot.dtype]})"
                if dims
                else text
            )
        self.line(f"tl.store({target}, {text}{f', mask={mask}' if mask else ''})")


def _multiple(i: Index, of: int, batch: Sequence[Axis]) -> bool:
    """Whether an index of one value in each program is a multiple of a number."""
    return i.const % of == 0 and all(a in batch and c % of == 0 for a, c in i.terms)


def _names(line: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", line) is not None


def _widest(kinds: Iterable[str]) -> str:
    found = [k for k in kinds if k not in ("const", "bool")]
    return "int64" if "int64" in found else found[0] if found else "int32"


def rolled(e: Expr, axis: Axis) -> Expr | None:
    """The maximum m for which a sum reduces exp(a - m) times factors free of m, where m is the maximum of a itself."""
    if e.value[0] != "sum":
        return None
    found = None
    over, under = factors(e.args[0])
    for f in over:
        inside = [x for x in walk([f]) if x.op == "reduce" and x.axis == axis]
        if not inside:
            continue
        if found is not None or f.op not in ("exp", "exp2") or f.args[0].op != "sub":
            return None
        a, m = f.args[0].args
        if (
            m.op != "reduce"
            or m.value != ("max", axis)
            or m.args[0] is not a
            or any(x.op == "reduce" and x.axis == axis for x in walk([a]))
        ):
            return None
        found = m
    if any(x.op == "reduce" and x.axis == axis for f in under for x in walk([f])):
        return None
    return found


@dataclass(frozen=True)
class Room:
    """A mask keeps the elements of an axis where `rest + side * axis >= 0`; there it is `kept`."""

    rest: Index
    side: int
    mask: Expr
    kept: Expr


def _allowed(e: Expr) -> list[tuple[Index, Expr, Expr]]:
    """(index that is not negative wherever the value can be other than -inf, the `where` that says so, what it is there)."""
    if e.op == "add":
        return [*_allowed(e.args[0]), *_allowed(e.args[1])]
    if e.op == "mul" and e.args[1].op == "const" and e.args[1].value > 0:
        return _allowed(e.args[0])
    if e.op != "where":
        return []
    c, x, y = e.args
    lost = (x.op == "const" and x.value == -math.inf, y.op == "const" and y.value == -math.inf)
    if lost == (True, False):
        return [*((i, e, y) for i in _true(c, False)), *_allowed(y)]
    if lost == (False, True):
        return [*((i, e, x) for i in _true(c, True)), *_allowed(x)]
    return []


def _true(c: Expr, wanted: bool) -> list[Index]:
    """Indices that are not negative where a condition is true (or false, as wanted)."""
    if c.op == "not":
        return _true(c.args[0], not wanted)
    if c.op == ("and" if wanted else "or"):
        return [*_true(c.args[0], wanted), *_true(c.args[1], wanted)]
    if c.op not in ("lt", "le") or any(a.op not in ("index", "const") or a.kind != "int" for a in c.args):
        return []
    a, b = (x.value if x.op == "index" else index(x.value) for x in c.args)
    strict = int(c.op == "lt")
    return [b - a - strict] if wanted else [a - b - (1 - strict)]


def _vanishes(e: Expr, axis: Axis) -> bool:
    """Whether a body is 0 where loads beyond the axis' end give 0: a factor over the bar is such a load."""
    over, _ = factors(e)
    return any(f.op == "load" and axis in f.value[1].axes for f in over)
