"""Emits matrix products on tensor cores (`tl.dot`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, factors, walk
from ...ir.index import Axis
from ...ir.tiling import Dot
from ...ir.unfusable import Unfusable
from .frame import TritonPart, TritonScope
from .loads import TileLoads
from .spelling import TRITON, Tile
from .values import TileValues

FEW = 32  # maximum rows of sums of products that are taken from the diagonal of a matrix product
TALL = 64  # rows from which a product is asynchronous (wgmma)


@dataclass(eq=False)
class Products(TritonPart):
    """Emitter part for matrix products on tensor cores, and for the waits in loops over them."""

    values: TileValues
    loads: TileLoads

    def dot(self, e: Expr, dot: Dot, acc: str | None) -> Tile | None:
        """Triton expression (a `Tile`) of the matrix product `e`, with the sides `dot`, on tensor cores; None if its
        tiles are too small or not matrices.

        `acc`: variable of the accumulator that the product is added to; None for a product that starts at zero.
        """
        frame = self.frame
        k = frame.dim_of(e.axis)
        a, b = self.side(dot.left), self.side(dot.right)
        if len(a.dims) != 2 or len(b.dims) != 2 or {*a.dims} & {*b.dims} != {k}:
            return None
        if min(frame.block[d] for d in (*a.dims, *b.dims)) < 16:
            return None
        ends = [next(d for d in side.dims if d != k) for side in (a, b)]
        if frame.order.index(ends[0]) > frame.order.index(ends[1]):
            (a, b), ends = (b, a), ends[::-1]
        a, b = self.matched(a, b)
        a, b = _transposed(a, (ends[0], k)), _transposed(b, (k, ends[1]))
        dims = (ends[0], ends[1])
        # both sides are masked: one may be infinite where the other is 0
        if frame.ragged(k) and not is_zero_out_of_bounds(e.args[0], e.axis):
            a, b = (self._ended(side, k) for side in (a, b))
        precision = (
            f", input_precision='{self.tiling.options.get('precision', 'ieee')}'" if a.dtype == "float32" else ""
        )
        start = f", {acc}" if acc else ""
        return Tile(f"tl.dot({a.text}, {b.text}{start}{precision})", dims, "float32")

    def _ended(self, side: Tile, k: str) -> Tile:
        """Tile of an operand of a product, with zeros beyond the end of K."""
        there = self.frame.spread(Tile(f"({k} < {self.frame.extent[k]})", (k,), "bool"), side.dims)
        return Tile(f"tl.where({there}, {side.text}, 0.0)", side.dims, side.dtype)

    def must_wait(self, dot: Dot, rows: str, scaled: bool) -> bool:
        """Whether the loop that adds up the matrix product `dot` must wait for it in each iteration, to avoid an
        async-copy race.

        `rows` is the dimension of the product's rows. `scaled`: the accumulator is rescaled in each iteration, which
        waits for the product too, but only in the next iteration. There are two races. A computed left operand is in
        registers: Triton's loop continues while wgmma reads them, and writes the next tile into the same registers (9 %
        of the elements of a product after a ReLU came out wrong on an H200, different ones at each run;
        triton-lang/triton issue 9433; ptxas before 13.3). A loaded tile is in shared memory: if something besides
        products reads it as well, as the statistics of a norm do, Triton 3.6 allocates one buffer too few, and the copy
        for a later iteration overwrites the tile that wgmma still reads.
        """
        left, right = (
            (dot.left, dot.right) if rows in {self.frame.dim_of(a) for a in dot.rows} else (dot.right, dot.left)
        )
        tall = self.frame.block[rows] >= TALL and self.tiling.warps >= 4 and self.tiling.stages > 1
        tall &= (
            self.narrowest() != "float32" or self.tiling.options.get("precision", "ieee") != "ieee"
        )  # on CUDA cores: synchronous
        computed = not scaled and not self._plain(left)
        return tall and (computed or any(map(self._read_besides, (*left, *right))))

    def _plain(self, side: Sequence[Expr]) -> bool:
        """Whether one side of a product is a plain load."""
        return len(side) == 1 and side[0].op == "load" and side[0].value[3] == self.narrowest()

    def _read_besides(self, e: Expr) -> bool:
        """Whether some operation other than a product reads the value of a load."""
        products = {d.args[0] for d in self.shape.dots}
        return e.op == "load" and any(e in x.args for x in self.kernel.exprs if x not in products)

    def side(self, parts: Sequence[Expr]) -> Tile:
        """Triton expression (a `Tile`) of one operand of a matrix product: the elementwise product of its factors
        `parts`."""
        found = self.kernel.builder.product(list(parts), [])
        self.frame.uses.setdefault(found, 2)
        if self.tiling.options.get("inside") and found.op == "load":
            self.loads.read_inside(found)
        return self.values.value(found)

    def matched(self, a: Tile, b: Tile) -> tuple[Tile, Tile]:
        """The operands `a` and `b` of a matrix product converted to one dtype: that of the first 16-bit float operand,
        or, if there is none, the dtype that `narrowest` returns.

        Rounding computed values to 16 bits is what the unfused program does when it stores them. Raises Unfusable for
        float64.
        """
        narrow = [t.dtype for t in (a, b) if t.dtype in HALVES]
        want = narrow[0] if narrow else self.narrowest()
        if want == "float64":
            raise Unfusable("a product in float64")
        return tuple(t if t.dtype == want else Tile(f"{t.atom}.to({TRITON[want]})", t.dims, want) for t in (a, b))  # type: ignore[return-value]

    def narrowest(self) -> str:
        """Dtype in which products of computed values are made: the 16-bit float dtype that the kernel loads, if there
        is one, else the compute dtype."""
        floats = {b.dtype for name, b in self.kernel.buffers.items() if b.dtype in HALVES}
        inputs = {e.value[3] for e in self.kernel.exprs if e.op == "load"}
        return next(iter(sorted(floats & inputs)), self.frame.wide)

    def row_products(self, e: Expr, axis: Axis) -> tuple[Tile, Tile] | None:
        """Tiles of the two factors of `e`, a sum of products along `axis` for each row, if it should be computed on
        tensor cores as the diagonal of a matrix product of the two; else None.

        That pays if one factor is also the left operand of another matrix product, so that its tile is in shared memory
        already, and a tile has few rows, so that the extra matrix product is cheap. Both factors must be 16-bit loads
        over rows and `axis`.
        """
        frame = self.frame
        over, under = factors(e.args[0])
        if e.value[0] != "sum" or under or len(over) != 2 or any(f.op != "load" or f.kind != "float" for f in over):
            return None
        if not any(d.left == (f,) for d in self.shape.dots.values() for f in over):
            return None
        a, b = (self.values.value(f) for f in over)
        narrow = a.dtype == b.dtype and a.dtype in HALVES
        if not narrow or {a.dims, b.dims} != {("m", frame.dim_of(axis))}:
            return None
        return (a, b) if 16 <= frame.block["m"] <= FEW and frame.block[frame.dim_of(axis)] >= 16 else None

    def on_the_diagonal(self, name: str, a: Tile, b: Tile, outer: TritonScope | None) -> Callable[[], Tile]:
        """Emit the sums of products of the tiles `a` and `b` for each row as the diagonal of their matrix product,
        accumulated in the variable `name`.

        `outer`: scope in which the variable is initialized; None if it is initialized already. Returns a function that,
        after the loop, emits the extraction of the diagonal and returns its tile.
        """
        size = self.frame.block["m"]
        self.line(f"{name} = tl.dot({a.text}, tl.trans({b.text}), {name})")
        if outer is not None:
            self.line(f"{name} = tl.zeros(({size}, {size}), tl.float32)", outer)

        def final() -> Tile:
            each = f"tl.arange(0, {size})"
            self.line(f"{name} = tl.sum(tl.where({each}[:, None] == {each}[None, :], {name}, 0.0), 1)")
            return Tile(name, ("m",), "float32")

        return final


def _transposed(tile: Tile, dims: tuple[str, str]) -> Tile:
    """A tile of two dimensions in the order `dims`, transposed if necessary."""
    return tile if tile.dims == dims else Tile(f"tl.trans({tile.text})", dims, tile.dtype)


def is_zero_out_of_bounds(e: Expr, axis: Axis) -> bool:
    """Whether `e`, the body of a reduction along `axis`, is 0 beyond the end of the axis (where loads give 0), so that
    no mask is needed: a factor of its numerator is such a load, and no other factor is infinite there."""
    over, under = factors(e)
    zero = any(f.op == "load" and axis in f.value[1].axes for f in over)
    return zero and not any(axis in f.axes for f in under) and all(map(partial(_finite, axis), over))


POLES = {"log": 0, "log2": 0, "rsqrt": 0, "recip": 0, "div": 1, "pow": 0}  # index of the operand that must not be 0


def _finite(axis: Axis, e: Expr) -> bool:
    """Whether a value is certainly finite where its loads along an axis are 0. Sums are assumed not to be 0."""
    return not any(
        axis in x.axes and x.op in POLES and axis in (at := x.args[POLES[x.op]]).axes and at.op != "add"
        for x in walk([e])
    )
