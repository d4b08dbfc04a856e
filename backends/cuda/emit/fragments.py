"""Emits a skinny GEMM (few rows) on tensor cores in CUDA C++: mma.sync fragments are loaded from global memory straight
into registers.

A fragment of 16 rows (or 8 columns) by 32 elements along K is distributed over a warp as mma.m16n8k16 requires: threads
4 apart hold neighbouring rows (columns), and each thread holds 8 contiguous elements along K, one 16-byte access. The
order of the K elements within an instruction is the same permutation for both operands, which leaves the sum unchanged.
Matrices are therefore read once, bypassing L1 and without block-wide barriers; rows are read by every warp and hit in
L1. Warps are laid out along N and K (intra-block split-K); their partial sums are added through shared memory. The
epilogue continues in the kernel's thread layout (tensor_cores.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, factors, walk
from ...ir.index import Axis
from ...ir.kernel import Kernel
from ...ir.tiling import Dot
from ...ir.unfusable import Unfusable
from .fragment_frame import CHUNK, HEIGHT, WIDTH, FragmentFrame
from .fragment_loads import FragmentLoads
from .frame import CudaPart, CudaScope, Local
from .loads import WARM
from .nest import ThreadNest
from .reductions import Reductions
from .spelling import all_of, enclosed, sum_of


@dataclass(frozen=True)
class PartialSums:
    """Location of the warps' partial sums in shared memory, in elements.

    `first`: offset of the first sum. `row`: row stride. `apart`: stride between the partial sums of two warps.
    """

    first: int
    row: int
    apart: int


def refusal(kernel: Kernel, axis: Axis) -> str:
    """Why the reductions of `kernel` along `axis` cannot be computed from mma fragments, as a noun phrase for an error
    message; "" if some schedule may do so."""
    ready = [e for e in kernel.reductions if e.axis == axis]
    if any(e.value[0] != "sum" or e.kind != "float" for e in ready):
        return "a reduction other than a sum beside a product"
    if any(x.op == "reduce" for e in ready for x in walk(e.args)):
        return "a product of the result of another reduction"
    return ""


class Fragments(CudaPart):
    """Emitter part for the main loop of skinny GEMM: a kernel's operands as mma fragments, and all its sums along one
    axis.

    The constructor raises Unfusable where fragments do not apply (`refusal`; float64; more than 32 rows).
    """

    frame: FragmentFrame

    def __init__(self, frame: FragmentFrame, axis: Axis) -> None:
        super().__init__(frame)
        self.vectors = FragmentLoads(frame)
        self.accumulators = Reductions(frame, self.vectors.single)
        self._operands(axis)

    def _operands(self, axis: Axis) -> None:
        """Find the products and other sums along the axis, their sides, and their loads.

        Raises Unfusable where fragments do not apply.
        """
        frame = self.frame
        if reason := refusal(self.kernel, axis):
            raise Unfusable(reason)
        if frame.wide != "float32":
            raise Unfusable("a product in float64")
        ready = [e for e in self.kernel.reductions if e.axis == axis]
        if frame.extent["m"] > 2 * HEIGHT or frame.size % 8:
            raise Unfusable(f"more than {2 * HEIGHT} rows, or a K that is no multiple of 8")
        b, dots = self.kernel.builder, self.shape.dots
        self.dots = [e for e in ready if e in dots and self._sides(dots[e])]
        self.sums = [e for e in ready if e not in self.dots]
        self.left, self.right = (
            {e: b.product(getattr(dots[e], side), ()) for e in self.dots} for side in ("left", "right")
        )
        rows = (*self.left.values(), *(e.args[0] for e in self.sums))
        self.lefts = list(dict.fromkeys(x for body in rows for x in self.vectors.sources(body)))
        self.rights = list(dict.fromkeys(x for body in self.right.values() for x in self.vectors.sources(body)))
        if {*self.lefts} & {*self.rights} or any("n" in frame.spans(x) for x in self.lefts):
            raise Unfusable("a load that both operands of a product use, or that varies along columns on the left")
        self.squares = {e: two for e in self.sums if (two := self._rows(e)) is not None}
        self.names: dict[Expr, Local] = {}

    def _sides(self, dot: Dot) -> bool:
        """Whether the left operand of a product varies only along rows and K, and the right one only along K and one
        dimension of columns. A single row is repeated in all rows of a fragment."""
        frame = self.frame
        left, right = ({d for f in side for d in frame.spans(f)} for side in (dot.left, dot.right))
        return (
            left == ({"m", frame.dim} if frame.extent["m"] > 1 else {frame.dim})
            and len(right) == 2
            and frame.dim in right
            and "m" not in right
        )

    def _rows(self, e: Expr) -> tuple[Expr, Expr] | None:
        """The two operands of a sum of elementwise products within a row (such as a sum of squares), if both are vector
        loads. Else None."""
        over, under = factors(e.args[0])
        rows = "m", self.frame.dim
        whole = not under and len(over) == 2 and all(self.vectors.read_whole(f) for f in over)
        if (
            not whole
            or any(self.frame.spans(f) != rows for f in over)
            or len({self.vectors.dtype(f) for f in over}) > 1
        ):
            return None
        return over[0], over[1]

    def stage(self) -> list[str]:
        """Emit coordinates, accumulators, the first loads and the loop over K. Returns the lines of the outermost
        scope.

        The first vectors of weights are loaded before the wait for the previous kernel (programmatic dependent launch).
        """
        frame = self.frame
        self._coordinates()
        for e in (*self.dots, *self.sums):
            self._accumulator(e)
        early = [x for x in self.rights if x.op == "load" and frame.before_wait(x)]
        later = [x for x in (*self.rights, *self.lefts) if x not in early]
        if early:
            with self.inside(frame.ahead):
                self.vectors.hold_all(early)
                self._at_first(lambda: self.vectors.read(early), apart=True)
        self.vectors.hold_all(later)
        frame.top.known |= self.vectors.held
        self._at_first(lambda: self.vectors.read(later))
        self._walk_sum()
        return frame.top.lines

    def _at_first(self, body: Callable[[], None], *, apart: bool = False) -> None:
        """Emit `body` in a block at the position of the first iteration; `apart`: outside the coordinates' scope."""
        self.line("{")
        if apart:
            self._coordinates()
        self.line(f"const int {self.frame.dim}_0 = own;")
        body()
        self.line("}")

    def _coordinates(self) -> None:
        """Declare a thread's first row, column and element along K."""
        frame = self.frame
        warps, chunk = frame.warps, CHUNK * frame.warps.depth
        base = f"{enclosed(frame.place['n'])} * {frame.block} + " if frame.place["n"] else ""
        across = f"thread / 32 % {warps.across} * {warps.tiles * WIDTH} + " if warps.across > 1 else ""
        self.line("const int m_0 = thread / 4 % 8;")
        self.line(f"const int n_0 = {base}{across}thread / 4 % 8;")
        for d in dict.fromkeys(d for x in self.rights for d in frame.spans(x) if d not in ("n", frame.dim)):
            self.line(f"const int {d}_0 = thread / 4 % 8;")
        self.line(f"const int own = thread / {32 * warps.across} * {chunk} + thread % 4 * 8;")

    def warmed(self) -> list[str]:
        """CUDA statements that prefetch the first `WARM` bytes that a block reads of each matrix into L2, to stand
        before the wait for the previous kernel (`ThreadLoads.warm`)."""
        frame, dim = self.frame, self.frame.dim
        scope = CudaScope(1, set(frame.top.bound))
        matrices = [x for x in self.rights if x.op == "load" and not x.args]
        with self.inside(scope):
            self.line("{")
            self._coordinates()
            for e in matrices:
                each = 2 * frame.step * frame.block
                until = min(frame.size, max(1, WARM // each) * frame.step)
                self.line(f"for (int {dim}_block = 0; {dim}_block < {until}; {dim}_block += {frame.step}) {{")
                self.line(f"const int {dim}_0 = {dim}_block + own;")
                nest = ThreadNest(frame, frame.spans(e), dim)
                masks = nest.masks(frame.spans(e))
                where, *_ = self.vectors.source(nest, e)
                nest.line(f"{f'if ({all_of(masks)}) ' if masks else ''}warm<16>({where});")
                nest.close()
                self.line("}")
            self.line("}")
        return scope.lines if matrices else []

    def _accumulator(self, e: Expr) -> None:
        """Declare the accumulator of a product or sum."""
        frame = self.frame
        if e in self.dots:
            dims = "m", next(d for d in frame.spans(self.right[e]) if d != frame.dim)
            count = frame.heights * frame.along[dims[1]].repeat
        else:
            dims = tuple(d for d in frame.spans(e.args[0]) if d != frame.dim)  # type: ignore[assignment]
            count = 2 * frame.heights
        self.names[e] = Local(self.fresh("acc"), dims, "float32")
        if e in self.dots or e in self.squares:
            self.line(f"float {self.names[e].name}[{count}][4] = {{}};")
        else:
            self.accumulators.begin(self.names[e].name, dims, "sum")

    def _walk_sum(self) -> None:
        """The software-pipelined loop over K."""
        frame = self.frame
        whole, at, outer = frame.step >= frame.size, f"{frame.dim}_block", frame.top
        loop = CudaScope(2 if whole else 3, set(outer.bound), outside=outer)
        with self.inside(loop):
            self.line(f"const int {frame.dim}_0 = {'own' if whole else f'{at} + own'};")
            self._iteration(whole)
        if whole:
            outer.lines += loop.lines
            return
        self.line("#pragma unroll 1")
        self.line(f"for (int {at} = 0; {at} < {frame.size}; {at} += {frame.step}) {{")
        outer.lines += loop.lines
        self.line("}")

    def _iteration(self, whole: bool) -> None:
        """Emit one step of the loop over K, or all of K if `whole`.

        Each vector is multiplied and, right after its last use, loaded for the next iteration.
        """
        frame = self.frame
        sides = {self.left[e]: self._pack(self.left[e]) for e in self.dots}
        sides |= {self.right[e]: self._pack(self.right[e], sides[self.left[e]].dtype) for e in self.dots}
        self._accumulate_sums()
        if not whole:
            self._more()
            self.line("{")
            self._next_position()
        left = [] if whole else [*self.rights, *self.lefts]
        for dims in dict.fromkeys(self.names[e].dims for e in self.dots):
            later = [x for x in left if self.vectors.held[x].dims == (frame.dim, dims[1]) and x in self.rights]
            self._multiply([e for e in self.dots if self.names[e].dims == dims], dims[1], sides, later)
            left = [x for x in left if x not in later]
        if not whole:
            self.vectors.read(left, "more")
            self.line("}")

    def _accumulate_sums(self) -> None:
        """Emit the sums that are computed in the same loop as the products."""
        for e in self.sums:
            if e in self.squares:
                self._square(e)
            else:
                self.accumulators.accumulate(e, e.args[0], self.frame.dim, self.names[e])

    def _more(self) -> None:
        """Emit the declaration of `more`: whether there is a next iteration."""
        frame = self.frame
        self.line(f"const bool more = {frame.dim}_block + {frame.step} < {frame.size};")

    def _next_position(self) -> None:
        """Emit the thread's position along K in the next iteration."""
        frame = self.frame
        self.line(f"const int {frame.dim}_0 = {frame.dim}_block + {frame.step} + own;")

    def _pack(self, e: Expr, other: str = "") -> Local:
        """Register value of an operand of a product as 16-bit vectors: as loaded, or computed from loaded vectors.

        An operand computed from bytes only has the dtype `other` of the other operand.
        """
        frame = self.frame
        if e in self.vectors.held and self.vectors.held[e].dtype in HALVES:
            return self.vectors.held[e]
        kinds = {self.vectors.held[x].dtype for x in self.vectors.sources(e)} & {*HALVES} or {other} - {""}
        if len(kinds) != 1:
            raise Unfusable("a product operand of two dtypes")
        (dtype,) = kinds
        local = self.vectors.hold(frame.spans(e), dtype)
        nest = ThreadNest(frame, local.dims)
        value = nest.scalar(e, nest.deepest, dtype=dtype)
        nest.line(f"{self.vectors.spot(local, nest.slot(local))}.at[{frame.dim}_v] = {value};")
        nest.close()
        return local

    def _rows_of(self, local: Local, height: int) -> list[str]:
        """Texts of the vectors of the upper 8 and of the lower 8 rows of an A fragment of 16 rows, inside the loop over
        K chunks."""
        frame = self.frame
        depth = frame.along[frame.dim].repeat
        k = f"{frame.dim}_i" if depth > 1 else "0"
        if "m" not in local.dims:
            return [f"{local.name}[{k}]" if depth > 1 else local.name] * 2
        return [f"{local.name}[{sum_of(k, (2 * height + i) * depth)}]" for i in (0, 1)]

    def _multiply(self, dots: Sequence[Expr], columns: str, sides: dict[Expr, Local], later: Sequence[Expr]) -> None:
        """Emit the loop nest of the products `dots`, whose right operands share a dimension of columns.

        `later` are the loads for the next iteration, each emitted right after its use.
        """
        frame = self.frame
        nest = ThreadNest(frame, (frame.dim, columns), frame.dim)
        tiles = frame.along[columns].repeat
        tile = f"{columns}_i" if tiles > 1 else "0"
        for e in dots:
            a, b = sides[self.left[e]], sides[self.right[e]]
            if a.dtype != b.dtype or a.dims not in (("m", frame.dim), (frame.dim,)):
                raise Unfusable("product operands in a layout or dtype that tensor cores do not support")
            for h in range(frame.heights):
                place = f"{self.names[e].name}[{sum_of(tile, h * tiles)}]"
                nest.line(f"multiply({place}, {', '.join(self._rows_of(a, h))}, {self.vectors.spot(b, nest.slot(b))});")
        for x in later:
            self.vectors.fill(nest, x, "more")
        nest.close()

    def _square(self, e: Expr) -> None:
        """Emit a sum of elementwise products within each row, as the diagonal of A·Bᵀ."""
        frame = self.frame
        nest = ThreadNest(frame, (frame.dim,), frame.dim)
        a, b = (self.vectors.held[x] for x in self.squares[e])
        for h in range(frame.heights):
            for i, other in enumerate(self._rows_of(b, h)):
                nest.line(f"multiply({self.names[e].name}[{2 * h + i}], {', '.join(self._rows_of(a, h))}, {other});")
        nest.close()

    def put(self, e: Expr, first: int) -> PartialSums:
        """Emit the store of a warp's partial sums of the reduction `e` to shared memory, beginning at element `first`;
        returns where they are.

        Raises Unfusable for a sum that is no product but varies over columns.
        """
        frame = self.frame
        warps, rows, local = frame.warps, frame.heights * HEIGHT, self.names[e]
        tiles, across = 0, 1
        if e in self.dots:
            tiles, across = frame.along[local.dims[1]].repeat, warps.across if local.dims[1] == "n" else 1
        elif local.dims not in (("m",), ()):
            raise Unfusable("a reduction with column results beside products")
        row = tiles * WIDTH * across + (8 if tiles * across > 1 else 0) if tiles else 1
        place = f"{sum_of('shared', first)} + thread / {32 * warps.across} * {rows * row}"
        place += f" + thread / 32 % {across} * {tiles * WIDTH}" if across > 1 else ""
        alone = [f"thread / 32 % {warps.across} == 0"] if warps.across > 1 and across == 1 else []
        if not tiles and e not in self.squares:
            self.line(f"across_warp<Sum, 1, 4>({local.name});")
            alone.append("thread % 4 == 0")
        condition = f"if ({all_of(alone)}) " if alone else ""
        if tiles:
            self.line(f"{condition}put_product<{row}, {tiles}>({place}, {local.name});")
        elif e in self.squares:
            self.line(f"{condition}put_diagonal({place}, {local.name});")
        else:
            each = f"for (int i = 0; i < {frame.count(local.dims)}; ++i)"
            self.line(f"{condition}{each} ({place})[thread / 4 % 8 + i * 8] = {local.name}[i];")
        return PartialSums(first, row, rows * row)
