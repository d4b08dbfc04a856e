"""Attention whose warps have roles, as the text of Gluon functions (Triton's language with explicit layouts) for Hopper.

One warp copies tiles of keys and values into rings in shared memory (the copy unit, descriptors.py); groups of four warps compute,
each 64 rows. Both sides wait for each other by barriers in memory, tile by tile, and programs stay: one for each multiprocessor,
which goes on to the next tile of rows while the last one is written. Within a group the product of the queries with the next
keys and that of the present weights with their values are under way together, and the exponentials of the next scores run
beside the latter (the schedule of FlashAttention-3, Shah et al. 2024, without its turns between groups).

A row's own factor of its scores (the norm of a query, the scale) is no part of the product: it is computed while that is under
way, and joins the difference from the maximum in one instruction.

What is computed follows from the same expressions as in the files before: only products, waiting and layouts are said here.
A width that is no power of two may lie in two pieces that are (96 is 64 and 32): products along it are two, and so are results.

Layouts: S scores (rows, keys), O results (rows, columns), Q queries (rows, their width), P weights as an operand, B what is stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .descriptors import Box, edged_box
from .index import WIDE, Axis, Index, index
from .kir import Expr, Kernel, Store, Unfusable, walk
from .kir_loops import power_of, rolled
from .tiling import MULTIPROCESSORS, Shape, Tiling, padded
from .triton_fits import SHARED
from .triton_frame import Scope
from .triton_source import Function
from .triton_text import ACROSS, COMBINE, ITEMSIZE, NEUTRAL, TRITON, Launch, Tile, names_it

GROUP = 64  # rows of four warps: what one instruction of the matrix unit takes
GRAIN = 16  # elements of the least piece of a width
WIDEST = 256  # columns of one instruction
WIDE_RESULT = 128  # columns beyond which a result is turned where its queries lay
REGISTERS = 240, 24  # of a thread that computes, of one that copies

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

fetch_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # renamed after Triton 3.6"""
SEEING = (
    'seen_as = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret'
)


@dataclass(frozen=True)
class RoleLaunch(Launch):
    """A launch whose first four warps are one role of several, and whose descriptors say how tiles lie in shared memory."""

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches it."""
        described = [
            f"described({names[o]}, {b.shape}, {b.block}, {_swizzle(b.block[-1])}{f', {b.strides}' if b.strides else ''})"
            for o, b in self.boxes
        ]
        return f"{self.name}[({self.grid},)]({', '.join([*(names[a] for a in self.args), *described])}, num_warps=4)"


def _swizzle(columns: int) -> int:
    """Bytes of a row between which lines of shared memory are exchanged: 16-bit columns."""
    return min(128, 2 * columns)


def _shared_layout(columns: int) -> str:
    """How a tile of 16 bits lies in shared memory."""
    return f"gl.NVMMASharedLayout(swizzle_byte_width={_swizzle(columns)}, element_bitwidth=16, rank=2)"


def emit_roles(kernel: Kernel, tiling: Tiling, name: str, shape: Shape) -> RoleLaunch:
    """The launch of attention with given tiles (rows of a program: 64 for each four warps). Unfusable where it is not one
    product with keys inside one with values, both of 16 bits and read in boxes."""
    groups = tiling.warps // 4
    if shape.kind != "attention" or not shape.rows or len(shape.cols) != 1 or tiling.m != groups * GROUP:
        raise Unfusable("roles are for attention over whole groups of rows")
    row = max(shape.rows, key=lambda a: (a.size % tiling.m == 0, a.size))
    alone = replace(shape, rows=(row,), batch=(*shape.batch, *(a for a in shape.rows if a is not row)))
    return Roles(kernel, replace(tiling, m=GROUP), name, alone, groups).roles()


def widths(extent: int) -> list[tuple[int, int]]:
    """Where the pieces of a width begin and how wide they are: two powers of two that hold it with less left over than one."""
    large = 1 << (max(extent, GRAIN).bit_length() - 1)
    small = max(GRAIN, padded(extent - large))
    if extent <= large or large + small >= padded(extent):
        return [(0, max(GRAIN, padded(extent)))]
    return [(0, large), (large, small)]


def _numbered(stem: str, count: int) -> list[str]:
    """Names of pieces; one alone has the plain name."""
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


def _positive(e: Expr) -> bool:
    """Whether a value is certainly not negative, so that a maximum may be taken before it is a factor."""
    if e.op in ("mul", "div"):
        return all(map(_positive, e.args))
    return e.op in ("rsqrt", "sqrt", "exp", "exp2") or (e.op == "const" and e.value > 0)


def _scales(e: Expr, score: Expr) -> bool:
    """Whether what softmax sees is a score that may be masked: a factor of the score is one of it."""
    if e is score:
        return True
    hidden = (-math.inf, 0.0)
    if e.op == "add":
        masks = [
            x for x in e.args if x.op == "where" and all(a.op == "const" and a.value in hidden for a in x.args[1:])
        ]
        return len(masks) == 1 and any(_scales(x, score) for x in e.args if x is not masks[0])
    if e.op == "where":
        kept = [x for x in e.args[1:] if not (x.op == "const" and x.value == -math.inf)]
        return len(kept) == 1 and _scales(kept[0], score)
    return False


class Roles(Function):
    """A kernel of two roles. `tall`: rows of a program."""

    def __init__(self, kernel: Kernel, tiling: Tiling, name: str, shape: Shape, groups: int) -> None:
        super().__init__(kernel, tiling, name, shape)
        self.groups, self.tall = groups, groups * GROUP
        self.edge = False  # whether the tile of the walked axis may go beyond its end
        if len(self.walked) != 1 or self.n_loop or tiling.n > WIDEST:
            raise Unfusable("roles walk one axis")
        (self.axis,) = self.walked
        self.layouts: dict[tuple[str, ...], str] = {("m", self.axis.name): "S", ("m", "n"): "O"}
        self.away = False  # whether positions are those of what is stored
        self.pieces = bool(
            tiling.options.get("pieces")
        )  # whether widths lie in two pieces where they are no powers of two
        self.first: dict[str, int] = {}  # where a piece begins along a dimension
        self.stored = "B"
        self.bounds: list[str] = []  # which tiles of the walked axis there are, for both roles
        self.rings: list[tuple[str, list[str]]] = []  # keys and values, and names of the descriptors of their pieces
        self.cut = False  # whether tiles beyond the last one are cut by a mask
        self.width = 0
        self.asked: list[str] = []  # the descriptors of queries that are copied too
        self.slots = 1  # places for the queries of a tile
        self.views: dict[int, str] = {}  # layouts of tiles that are seen as matrices, by columns
        self.factor: Tile | None = None  # of each row's scores, which are known without it

    def ragged(self, dim: str) -> bool:
        """As everywhere; tiles of the walked axis are taken from the last to the first, and only that one may not be full."""
        if dim == "m":
            return self.extent["m"] % self.tall != 0
        return super().ragged(dim) and (self.edge or dim not in {a.name for a in self.walked})

    # ------------------------------------------------------------ layouts
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

    # ------------------------------------------------------------ the loop over keys
    def loop(self, wanted: Expr) -> None:
        """The loop that computes a maximum, sums below it and a product with the values."""
        ready, dots, axis = self.together(wanted), self.shape.dots, self.axis
        products = [e for e in ready if e in dots]
        scores = [e for e in walk(x for r in ready for x in r.args) if e in dots and axis in e.axes]
        maxima = [e for e in ready if e.value[0] == "max"]
        if self.rings or len(products) != 1 or len(scores) != 1 or len(maxima) != 1:
            raise Unfusable("not one product inside another one")
        (product,), (score,), (top,) = products, scores, maxima
        if any(rolled(e, axis) is not top for e in ready if e is not top) or score.axis in self.walked:
            raise Unfusable("sums that do not follow a maximum")
        if any(e.op == "reduce" and e not in (score, *ready) and axis in e.axes for r in ready for e in walk(r.args)):
            raise Unfusable("statistics of keys in the loop")
        outer, deep = self.scope, self.dim_of(score.axis)
        self.width = self.block[deep]
        own = (
            [f for f in dots[score].left if score.axis not in f.axes and _positive(f)]
            if _scales(top.args[0], score)
            else []
        )
        own = own if any(f.axes for f in own) else []
        sides = tuple(f for f in dots[score].left if f not in own)
        raw = self._copied_queries(sides, own, deep)
        self._operands_first([e for e in ready if not own], axis)
        left = self.side(sides)
        keys, dtype = self.ring(dots[score].right, (deep, axis.name), deep)
        values, other = self.ring(dots[product].right, (axis.name, "n"), "n")
        if left.dims != ("m", deep) or dtype != other:
            raise Unfusable("queries that are no rows, or two dtypes")
        narrow = TRITON[dtype]
        if left.text != raw:
            if len(keys) > 1:
                raise Unfusable("queries in pieces that are computed")
            self.line(f"{self.mine[0]}.store({left.text if left.dtype == dtype else f'{left.atom}.to({narrow})'})")
            self.line("fence_async_shared()")
        split = self._bounds(ready, top)
        names = {e: self.fresh("max" if e is top else "acc") for e in ready}
        score_name = self.fresh("score")
        self.sums = _numbered(names[product], len(values))
        self.weights = _numbered("weights", len(values))
        pending = _numbered("pending", len(values))
        followed = [
            f"{p} = warpgroup_mma({w}, {v.format('slot')}, {acc}, is_async=True)"
            for p, w, v, acc in zip(pending, self.weights, values, self.sums)
        ]
        arrived = f"{', '.join(self.sums)} = warpgroup_mma_wait(0, deps=[{', '.join(pending)}])"

        first = Scope(outer.indent, outer.bound | {axis}, outside=outer)
        for text in (
            "slot = step % STAGES",
            "mbarrier.wait(keys_full.index(slot), (step // STAGES) & 1)",
            *self._scores(keys, "slot"),
            f"{axis.name}_ = begin + (blocks - 1) * {self.block[axis.name]}",
        ):
            self.line(text, first)
        self.edge = True
        self._read_beside(first, ready)
        if own:
            before = len(outer.lines)
            factor = self.floated(self.kernel.builder.product(own, []))
            first.lines += outer.lines[before:]  # now, not before the product
            del outer.lines[before:]
            self.line(f"factor = {factor.text}", first)
            self.factor = Tile("factor", ("m",), "float32")
        self.line(f"{score_name} = warpgroup_mma_wait(0, deps=[coming])", first)
        self.line("mbarrier.arrive(keys_empty.index(slot))", first)
        first.known[score] = Tile(score_name, ("m", axis.name), "float32")
        self._body(first, outer, ready, top, product, names, {}, narrow)
        self.edge = False
        for acc, (_, columns), layout in zip(self.sums, self.piece("n"), _numbered("O", len(values))):
            self.line(f"{acc} = tl.zeros([{GROUP}, {columns}], tl.float32, layout={layout})", outer)
        outer.lines += first.lines

        inner = Scope(outer.indent + 1, outer.bound | {axis}, outside=outer)
        inner.known[score] = Tile(score_name, ("m", axis.name), "float32")
        for text in (
            "ahead = (step + 1) % STAGES",
            "mbarrier.wait(keys_full.index(ahead), ((step + 1) // STAGES) & 1)",
            *self._scores(keys, "ahead"),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *followed,
            f"{axis.name}_ = begin + (blocks - 1 - block) * {self.block[axis.name]}",
        ):
            self.line(text, inner)
        self._read_beside(inner, ready)
        self.line(f"{score_name} = warpgroup_mma_wait({len(values)}, deps=[coming])", inner)
        self.line("mbarrier.arrive(keys_empty.index(ahead))", inner)
        self._body(inner, None, ready, top, product, names, split or {}, narrow, arrived)
        self.line("slot = ahead", inner)
        self.line("step += 1", inner)
        self.line("for block in range(1, blocks):", outer)
        outer.lines += inner.lines
        for text in (
            *([] if self.through else self._done_with_queries()),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *followed,
            arrived,
            "mbarrier.arrive(values_empty.index(slot))",
            "step += 1",
        ):
            self.line(text, outer)
        for e in ready:
            outer.known[e] = Tile(names[e], ("m", "n") if e is product else ("m",), "float32")

    def piece(self, dim: str) -> list[tuple[int, int]]:
        """Where the pieces of a width begin, and how wide they are."""
        extent, block = self.extent[dim], self.block[dim]
        return widths(extent) if self.pieces and extent < block else [(0, block)]

    def _scores(self, keys: Sequence[str], slot: str) -> list[str]:
        """The product of queries with keys, piece by piece."""
        first, *others = [(q, k.format(slot)) for q, k in zip(self.mine, keys, strict=True)]
        return [
            f"coming = warpgroup_mma({first[0]}, {first[1]}, {self._zeros()}, use_acc=False, is_async=True)",
            *(f"coming = warpgroup_mma({q}, {k}, coming, is_async=True)" for q, k in others),
        ]

    def _copied_queries(self, left: Sequence[Expr], own: Sequence[Expr], deep: str) -> str:
        """Queries come through the copy unit as well, before their turn, where they are one box of 16 bits in memory; the name
        of that tile, empty where there is none."""
        (row,) = self.shape.rows
        loads = [e for e in walk([*left, *own]) if e.op == "load" and row in e.axes and not e.args]
        if len(loads) != 1 or ITEMSIZE.get(loads[0].value[3]) != 2:
            return ""
        for begin, columns in self.piece(deep):
            with self.resized(deep, columns, begin):
                named = self.box_of(loads[0].value[0], loads[0].value[1], loads[0].value[3])
            if named is None or tuple(self.dim_of(a) for a in named[1].axes) != ("m", deep):
                return ""
            self.asked.append(named[0])
        for e in walk(left):  # what else is read for them is under way while they are waited for
            if e.op == "load" and e is not loads[0] and e.axes <= self.top.bound:
                self.value(e)
        self.slots = 2 if self.turn != "0" and self.shared(2) <= SHARED else 1
        self.line(f"mbarrier.wait(queries_full.index({self.slot}), {self.phase})")
        if left != (loads[0],) or own:
            if len(self.asked) > 1:
                raise Unfusable("queries in pieces that are computed")
            self.line(f"raw = {self.mine[0]}.load(Q)")
        self.top.known[loads[0]] = Tile("raw", ("m", deep), loads[0].value[3])
        return "raw"

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
        return [f"{name}.index({place})" for name in _numbered("queries", max(1, len(self.asked)))]

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

    def _done_with_queries(self) -> list[str]:
        return [f"mbarrier.arrive(queries_empty.index({self.slot}))"] if self.asked else []

    def _zeros(self) -> str:
        return f"tl.zeros([{GROUP}, {self.block[self.axis.name]}], tl.float32, layout=S)"

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
        for (begin, columns), tile in zip(pieces, _numbered(ring, len(pieces))):
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

    @contextmanager
    def resized(self, dim: str, size: int, begin: int) -> Iterator[None]:
        """A piece of a dimension in place of its tiles; all of a tile where it is no piece."""
        before, self.block[dim] = self.block[dim], size
        if size != before:
            self.first[dim] = begin
        yield
        self.block[dim] = before
        self.first.pop(dim, None)

    def _bounds(self, ready: Sequence[Expr], top: Expr) -> dict[Expr, Expr] | None:
        """Which tiles there are, from the last to the first: those that a mask cuts come first. The masks that change nothing
        in the others (empty: in all but the very first); None where a mask may cut any tile."""
        here, step = Scope(1, set(self.scope.bound)), self.block[self.axis.name]
        with self.inside(here):
            parts = self.segments(ready, self.axis)
        begin, end = parts[0][0], parts[-1][1]
        texts = [line.strip() for line in here.lines]
        texts += [f"begin = {begin}", f"blocks = tl.maximum(({end} - begin + {step - 1}) // {step}, 1)"]
        if len(parts) == 2 and not self._one_cut(top):
            texts.append(f"cut = blocks - {parts[1][0]} // {step}")
        self.bounds = texts
        for text in texts:
            self.line(text)
        self.cut = texts[-1].startswith("cut")
        return parts[0][2] if len(parts) == 2 else None

    def _one_cut(self, top: Expr) -> bool:
        """Whether the mask cuts the last tile alone: rows of a program begin where a tile does, and see no further than
        themselves."""
        (row,) = self.shape.rows
        rooms = [r.rest for r in self._rooms(top, self.axis) if r.side == -1]
        return self.block[self.axis.name] % self.tall == 0 and rooms == [index(row)]

    def _read_beside(self, scope: Scope, ready: Sequence[Expr]) -> None:
        """The keys of a tile, and what is read for each beside the products: under way while these are waited for."""
        axis, seen, stack = self.axis, set[Expr](), [a for e in ready for a in e.args]
        keys = f"tl.arange(0, {self.block[axis.name]}, layout=tl.SliceLayout(0, S))"
        self.line(f"{axis.name} = {axis.name}_ + {keys}", scope)
        while stack:
            e = stack.pop()
            if e in seen or e.op == "reduce":
                continue
            seen.add(e)
            stack += e.args
            if e.op == "load" and not e.args and axis in e.axes <= {*self.shape.batch, axis}:
                with self.inside(scope):
                    self.value(e)

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: Scope, outer: Scope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        """As everywhere, but where rows have a factor of their own, of scores without it."""
        if self.factor is None:
            return super()._running_max(e, axis, name, inner, outer)
        power, scale = power_of(self.kernel, e), self.fresh("scale")
        with self.inside(inner):
            body, _ = self._factored(e.args[0], inner)
            a = self.floated(body)
            a = self.named(replace(a, text=self.neutral(e, a, self.dim_of(axis))))
            peak = f"{ACROSS['max'].format(a.text, a.dims.index(self.dim_of(axis)))} * {self.factor.text}"
            for text in (
                f"{name}_new = {COMBINE['max'].format(name, peak)}",
                f"{name}_safe = tl.where({name}_new == float('-inf'), 0.0, {name}_new)",
                f"{scale} = tl.{power}({name} - {name}_safe)",
                f"{name} = {name}_new",
            ):
                self.line(text)
            inner.known[e.args[0]] = Tile(f"{a.text} * {self.spread(self.factor, a.dims)}", a.dims, a.dtype)
            inner.known[e] = Tile(f"{name}_safe", ("m",), self.wide)
        if outer is not None:
            self.line(self._begin_at(name, ("m",), NEUTRAL["max"], self.wide), outer)
        return (lambda: Tile(name, ("m",), self.wide)), Tile(scale, ("m",), self.wide)

    def _body(
        self, inner: Scope, outer: Scope | None, ready: Sequence[Expr], top: Expr, product: Expr, names: dict[Expr, str],
        masks: dict[Expr, Expr], narrow: str, arrived: str = "",
    ) -> None:  # fmt: skip
        """From scores to weights: the maximum, the sums, and where a product `arrived`, its scale."""
        axis = self.axis
        body = top.args[0]
        if masks and self.cut:
            inner.bound.discard(axis)  # what a mask needs stays where it is needed
            for head, known in (("if block < cut:", {}), ("else:", masks)):
                branch = Scope(inner.indent + 1, inner.bound | {axis}, outside=inner)
                with self.inside(branch):
                    branch.known.update({e: self.value(kept) for e, kept in known.items()})
                    self.line(f"logits = {self.floated(body).text}")
                self.line(head, inner)
                inner.lines += branch.lines
            inner.bound.add(axis)
            inner.known[body] = Tile("logits", ("m", axis.name), "float32")
        elif masks:
            with self.inside(inner):
                inner.known.update({e: self.value(kept) for e, kept in masks.items()})
        _, scale = self._running_max(top, axis, names[top], inner, outer)
        for e in ready:
            if e not in (top, product):
                self._accumulate(e, axis, names[e], inner, outer, scale)
        with self.inside(inner):
            weights = self.side(self.shape.dots[product].left)
            if weights.dims != ("m", axis.name):
                raise Unfusable("weights that are not those of scores")
            if arrived:
                self.line(arrived)
                self.line("mbarrier.arrive(values_empty.index(slot))")
            for i, (acc, taken) in enumerate(zip(self.sums, self.weights)):
                self.layouts["m", "n"], operand = (_numbered(x, len(self.sums))[i] for x in "OP")
                if arrived:
                    self.line(f"{acc} = {acc} * {self.spread(scale, ('m', 'n'))}")
                self.line(f"{taken} = tl.convert_layout({weights.atom}.to({narrow}), {operand})")

    # ------------------------------------------------------------ the functions
    def _store(self, store: Store) -> None:
        """A result: rounded, laid out as memory is, and written."""
        spot = self.kernel.buffers[store.buffer]
        tile = self.floated(store.value)
        if store.guards or tile.dims != ("m", "n"):
            raise Unfusable("a result that is no tile of rows and columns")
        text = tile.text if tile.dtype == spot.dtype else f"{tile.atom}.to({TRITON[spot.dtype]})"
        self.away = True
        where = self.position(store.at, store.at.range[1] >= WIDE)
        self.away = False
        if where.dims != ("m", "n"):
            raise Unfusable("a place that is no tile of rows and columns")
        ends = [f"(m_stored < {self.extent['m']})[:, None]"] * self.ragged("m")
        ends += [f"(n_stored < {self.extent['n']})[None, :]"] * self.ragged("n")
        mask = f", mask={' & '.join(ends)}" if ends else ""
        turned = f"tl.convert_layout({text}, {self.stored})"
        if self.through:
            if spot.dtype != self.kernel.buffers[self.described[self.asked[0]][0]].dtype or len(self.kernel.stores) > 1:
                raise Unfusable("a result that does not lie as queries do")
            self.line(f"{self.mine[0]}.store({text})")
            turned = f"{self.mine[0]}.load({self.stored})"
        self.line(f"tl.store({store.buffer} + {where.atom}, {turned}{mask})")
        if self.through:
            for text in ("fence_async_shared()", *self._done_with_queries()):
                self.line(text)

    def roles(self) -> RoleLaunch:
        """The functions: what each role does, and the kernel that gives warps their roles."""
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // self.tall), -(-s.n // t.n)
        programs = tiles_m * tiles_n * math.prod(a.size for a in s.batch)
        rounds = -(-programs // MULTIPROCESSORS)
        grid = min(programs, MULTIPROCESSORS)
        place = Scope(3 if rounds > 1 else 1, set())
        self.top.indent = place.indent
        self.turn = "turn" if rounds > 1 else "0"
        with self.inside(place):
            self.place(tiles_m, tiles_n)
        placed = [*place.lines]
        with self.inside(place):
            self._spans(tiles_m, tiles_n)
        if len(self.piece("n")) > 1:
            self._in_pieces()
        else:
            self._stores(self.kernel.stores)
        if len(self.rings) != 2:
            raise Unfusable("no loop over keys")
        compute = self._turns(rounds, grid, programs) + [*place.lines, *self.top.lines]
        copy = self._turns(rounds, grid, programs) + placed + self._copies("    " * place.indent)
        pointers = [n for n in self.kernel.buffers if any(names_it(line, n) for line in compute)]
        rings = [*(["queries"] if self.asked else []), *(ring for ring, _ in self.rings)]
        queries = _numbered("queries", max(1, len(self.asked)))
        copied = [tile for ring, names in self.rings for tile in _numbered(ring, len(names))]
        copied += [f"{r}_{part}" for r in rings for part in ("full", "empty")]
        shared = [*queries, *copied]
        copied = shared if self.asked else copied
        boxes = [*self.asked, *(name for _, names in self.rings for name in names)]
        source = [
            IMPORTS, *([SEEING] if self.views else []), "", "",
            "@gluon.jit", f"def {self.name}_compute({', '.join([*pointers, *shared])}, W: gl.constexpr):",
            *self._layouts(), f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *compute, "", "",
            "@gluon.jit", f"def {self.name}_copy({', '.join([*boxes, *copied])}):",
            f"    STAGES: gl.constexpr = {t.stages}", "    step = 0", *copy, "", "",
            "@gluon.jit", f"def {self.name}({', '.join([*pointers, *boxes])}):", *self._kernel(pointers, boxes, shared, copied),
        ]  # fmt: skip
        text = re.sub(r"\btl\.(?!PropagateNan)", "gl.", "\n".join(source)) + "\n"
        described = tuple(self.described[name] for name in boxes)
        return RoleLaunch(self.name, text, grid, tuple(pointers), 4, t.stages, described)

    def _in_pieces(self) -> None:
        """All results, piece by piece: what does not depend on columns is computed once."""
        products = [e for e, d in self.shape.dots.items() if e.axis == self.axis and d.cols]
        if len(products) != 1:
            raise Unfusable("several products whose columns are in pieces")
        (product,) = products
        self.value(product)
        columns = {*self.shape.cols}
        self.top.bound -= columns
        pieces = self.piece("n")
        for i, (begin, size) in enumerate(pieces):
            inner = Scope(self.top.indent, self.top.bound | columns, outside=self.top)
            inner.known[product] = Tile(self.sums[i], ("m", "n"), "float32")
            self.layouts["m", "n"], self.stored = (_numbered(x, len(pieces))[i] for x in "OB")
            with self.inside(inner), self.resized("n", size, begin):
                self._columns(f"{begin} + " if begin else "", size)
                for store in self.kernel.stores:
                    self._store(store)
            self.top.lines += inner.lines

    def _columns(self, across: str, size: int) -> None:
        """The columns of results, and rows and columns of what is stored."""
        out, base = self.layouts["m", "n"], f"tile_m * {self.tall} + " if self.shape.m > self.tall else ""
        self.line(f"m_stored = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, {self.stored}))")
        self.line(f"n = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {out}))")
        self.line(f"n_stored = {across}tl.arange(0, {size}, layout=tl.SliceLayout(0, {self.stored}))")

    def _turns(self, rounds: int, grid: int, programs: int) -> list[str]:
        """The loop over a program's tiles: forth and back, so that those with much to do come to ones with little."""
        if rounds == 1:
            return ["    program = tl.program_id(0)"] if programs > 1 else []
        last = f"turn % 2 * ({grid - 1} - 2 * tl.program_id(0))"
        return [
            f"    for turn in range({rounds}):",
            f"        program = turn * {grid} + tl.program_id(0) + {last}",
            f"        if program < {programs}:",
        ]

    def _spans(self, tiles_m: int, tiles_n: int) -> None:
        """The rows and columns of a tile, as they lie for scores and results, and for what is stored."""
        base = f"tile_m * {self.tall} + " if tiles_m > 1 else ""
        across = f"tile_n * {self.block['n']} + " if tiles_n > 1 else ""
        self.line(f"m = {base}W * {GROUP} + tl.arange(0, {GROUP}, layout=tl.SliceLayout(1, S))")
        if len(self.piece("n")) == 1:
            self._columns(across, self.block["n"])
        for a in self.shape.inner:
            if a not in self.walked:
                self.line(f"{a.name} = tl.arange(0, {self.block[a.name]}, layout=tl.SliceLayout(0, Q))")

    def _layouts(self) -> list[str]:
        def matrix(columns: int) -> str:
            return f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, {columns}, 16])"

        def rows(columns: int) -> str:
            lanes = min(32, columns // 8)
            return f"gl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [4, 1], [1, 0])"

        pieces = self.piece("n")
        names = zip(pieces, *(_numbered(x, len(pieces)) for x in "OPB"))
        found = {"S": matrix(self.block[self.axis.name])}
        for (_, columns), out, operand, _ in names:
            found |= {out: matrix(columns), operand: f"gl.DotOperandLayout(0, {out}, 2)"}
        found["Q"] = rows(self.width)
        found |= {name: rows(columns) for (_, columns), name in zip(pieces, _numbered("B", len(pieces)))}
        found |= {name: _shared_layout(columns) for columns, name in self.views.items()}
        return [f"    {name}: gl.constexpr = {text}" for name, text in found.items()]

    def _copies(self, pad: str) -> list[str]:
        """What the copying role does for one tile."""
        axis, inner = self.axis.name, pad + "    "
        lines = []
        if self.asked:
            boxes = [(name, self.described[name][1]) for name in self.asked]
            tile = f"tile_m * {self.tall}" if self.shape.m > self.tall else "0"
            size = sum(2 * self.groups * math.prod(found.block) for _, found in boxes)
            lines += [
                f"{pad}mbarrier.wait(queries_empty.index({self.slot}), {self.phase} ^ 1)",
                f"{pad}mbarrier.expect(queries_full.index({self.slot}), {size})",
            ]
            for group in range(self.groups):
                lines.append(f"{pad}rows = {tile} + {group * GROUP}")
                for (name, found), place in zip(boxes, self.queries(str(group))):
                    at = f"[{', '.join(found.origin)}], queries_full.index({self.slot})"
                    lines.append(f"{pad}fetch_box({name}, {at}, {place})")
        lines += [pad + text for text in self.bounds]
        lines += [f"{pad}for block in range(blocks):", f"{inner}slot = step % STAGES"]
        lines.append(f"{inner}{axis}_ = begin + (blocks - 1 - block) * {self.block[axis]}")
        for ring, names in self.rings:
            size = sum(2 * math.prod(self.described[name][1].block) for name in names)
            lines += [
                f"{inner}mbarrier.wait({ring}_empty.index(slot), (step // STAGES) & 1 ^ 1)",
                f"{inner}mbarrier.expect({ring}_full.index(slot), {size})",
            ]
            for name, place in zip(names, _numbered(ring, len(names))):
                at = f"[{', '.join(self.described[name][1].origin)}], {ring}_full.index(slot)"
                lines.append(f"{inner}fetch_box({name}, {at}, {place}.index(slot))")
        return [*lines, f"{inner}step += 1"]

    def _kernel(
        self, pointers: Sequence[str], boxes: Sequence[str], shared: Sequence[str], copied: Sequence[str]
    ) -> list[str]:
        """Shared memory, barriers, roles."""
        stages, lines = self.tiling.stages, []
        dtype = TRITON[self.kernel.buffers[self.described[boxes[-1]][0]].dtype]
        for name, queries in zip(self.asked or [""], _numbered("queries", max(1, len(self.asked)))):
            tile, layout = [GROUP, self.width], _shared_layout(self.width)
            if name and ((found := self.described[name][1]).strides or len(self.asked) > 1):
                tile, layout = [*found.block], f"{name}.layout"
            lines.append(
                f"{queries} = gl.allocate_shared_memory({dtype}, {[self.slots * self.groups, *tile]}, {layout})"
            )
        for ring, names in self.rings:
            for name, place in zip(names, _numbered(ring, len(names))):
                block = [stages, *self.described[name][1].block]
                lines.append(f"{place} = gl.allocate_shared_memory({dtype}, {block}, {name}.layout)")
            for part in ("full", "empty"):
                lines.append(
                    f"{ring}_{part} = gl.allocate_shared_memory(gl.int64, [{stages}, 1], mbarrier.MBarrierLayout())"
                )
        if self.asked:
            for part, count in (("full", 1), ("empty", self.groups)):
                lines.append(
                    f"queries_{part} = gl.allocate_shared_memory(gl.int64, [{self.slots}, 1], mbarrier.MBarrierLayout())"
                )
                lines += [f"mbarrier.init(queries_{part}.index({i}), count={count})" for i in range(self.slots)]
        lines.append(f"for i in gl.static_range({stages}):")
        for ring, _ in self.rings:
            lines.append(f"    mbarrier.init({ring}_full.index(i), count=1)")
            lines.append(f"    mbarrier.init({ring}_empty.index(i), count={self.groups})")
        lines.append("fence_async_shared()")
        lines.append("gl.warp_specialize([")
        for group in range(self.groups):
            lines.append(f"    ({self.name}_compute, ({', '.join([*pointers, *shared])}, {group})),")
        lines.append(f"    ({self.name}_copy, ({', '.join([*boxes, *copied])})),")
        many, few = REGISTERS
        warps, registers = [4] * (self.groups - 1) + [1], [many] * (self.groups - 1) + [few]
        lines.append(f"], {warps}, {registers})")
        return ["    " + line for line in lines]
