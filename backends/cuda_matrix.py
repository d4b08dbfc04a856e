"""Products of few rows on the matrix unit, in CUDA C++: fragments of the operands go from memory to registers, each thread's own.

A fragment of 16 rows (or of 8 columns) and 32 elements of the sum lies in a warp as the instruction wants it: threads that
are 4 apart hold neighbouring rows (columns), and each holds 8 neighbours along the sum, one access of 16 bytes. Which of them
meet in one instruction is the same permutation for both operands, and a sum does not mind. So matrices are read once, past the
first cache, with nothing waited for together; rows are read by every warp and come from that cache. Warps lie along the columns
and along the sum; what they have is added through shared memory, and from there on a kernel goes on in its layout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .cuda_frame import Frame, Local, Scope
from .cuda_layout import Along, Warps, steady
from .cuda_loops import Loops
from .cuda_nest import Nest
from .cuda_reductions import Reductions
from .cuda_text import CTYPES, all_of, enclosed, span
from .kir import Expr, Unfusable, factors, walk
from .tiling import Dot

CHUNK = 32  # elements of the sum in a fragment
WIDTH = 8  # columns of a fragment
HEIGHT = 16  # rows of a fragment


class Fragments(Reductions):
    """A kernel's operands as fragments: another frame over its dimensions, in which rows and columns lie along the same
    threads."""

    def __init__(self, outer: Frame, dim: str, warps: Warps) -> None:
        super().__init__(outer.kernel, outer.layout, outer.name, outer.shape)
        self.param, self.counter, self.dim, self.warps = outer.param, outer.counter, dim, warps
        self.heights = -(-max(1, self.extent["m"]) // HEIGHT)
        self.along = {d: Along(8, 1, -(-self.extent[d] // WIDTH)) for d in self.order}
        self.along |= {"m": Along(8, 1, 2 * self.heights), "n": Along(8, 1, warps.tiles), dim: Along(4, 8, warps.depth)}
        self.walked = {dim}
        bound = {a for d in ("m", "n", dim) for a in self.groups[d]} | {*self.shape.batch, *self.shape.inner}
        self.scope = self.top = Scope(2, bound)

    @property
    def step(self) -> int:
        """Elements of the sum that a block takes at a time."""
        return CHUNK * self.warps.depth * self.warps.along

    def ragged(self, dim: str) -> bool:
        """Whether some of a block's fragments lie beyond the end."""
        whole = {self.dim: self.step, "n": self.warps.tiles * WIDTH * self.warps.across}
        return self.extent[dim] % whole.get(dim, self.along[dim].block) != 0

    def read_whole(self, e: Expr) -> bool:
        """Whether vectors along the sum come from one place each: loads, and choices between loads that vectors do not cross."""
        if e.op == "where":
            c, *ways = e.args
            apart = all(x.op not in ("load", "reduce") for x in walk([c])) and steady(c, self.groups[self.dim][0], 8)
            return apart and all(map(self.read_whole, ways)) and len({self.dtype(w) for w in ways}) == 1
        return e.op == "load" and not e.value[2] and self._vector(e.value[1], self.dim, e.value[3], e.args, ())

    def dtype(self, e: Expr) -> str:
        """The dtype of what is read whole."""
        return str(e.value[3]) if e.op == "load" else self.dtype(e.args[1])

    def sources(self, e: Expr) -> list[Expr]:
        """What of an expression is read whole; all of it must be computed from that."""
        if self.read_whole(e):
            return [e]
        if e.op in ("load", "reduce"):
            raise Unfusable(f"a {e.op} that is no fragment")
        return [x for a in e.args for x in self.sources(a)]

    def declare(self, e: Expr) -> Local:
        """Registers for what is read."""
        dims, dtype = self.spans(e), self.dtype(e)
        if self.dim not in dims or CTYPES[dtype] not in ("bf16", "f16"):
            raise Unfusable("a load that is no fragment")
        local = Local(self.fresh("v"), dims, dtype, self.dim)
        self._check_held(16 * self.count(dims, self.dim))
        self.hold(local)
        return local

    def hold(self, local: Local) -> None:
        """Declare registers for vectors."""
        count = self.count(local.dims, local.lanes)
        self.line(f"Pack<{CTYPES[local.dtype]}, 8> {local.name}{f'[{count}]' if count > 1 else ''};")

    def spot(self, local: Local, at: str) -> str:
        """One of the vectors that a thread holds."""
        return f"{local.name}[{at}]" if self.count(local.dims, local.lanes) > 1 else local.name

    def fill(self, nest: Nest, e: Expr, local: Local, condition: str = "") -> None:
        """Read vectors in a loop nest; those of columns past the first cache, which is for the rows."""
        text, conditions = self._source(nest, e, "n" in local.dims)
        conditions = [*([condition] if condition else []), *nest.masks(local.dims), *conditions]
        target = self.spot(local, nest.slot(local))
        if condition or not conditions:
            nest.line(f"{f'if ({all_of(conditions)}) ' if conditions else ''}{target} = {text};")
        else:
            nest.line(f"{target} = {all_of(conditions)} ? {enclosed(text)} : Pack<{CTYPES[local.dtype]}, 8>{{}};")

    def _source(self, nest: Nest, e: Expr, once: bool, known: frozenset[Expr] = frozenset()) -> tuple[str, list[str]]:
        """The text of a vector, and on what it depends that it is there; `known` holds already."""
        if e.op == "where":
            c, yes, no = e.args
            other = self.kernel.builder.make("not", (c,), None, "bool")
            ways = [self._source(nest, w, once, known | {k}) for w, k in ((yes, c), (no, other))]
            if any(conditions for _, conditions in ways):
                raise Unfusable("a choice between vectors that are not there")
            return f"{enclosed(nest.scalar(c, nest.depth(self.spans(c))))} ? {ways[0][0]} : {enclosed(ways[1][0])}", []
        operand, at, _, _ = e.value
        read = f"{'read_once' if once else 'read'}<8>({self.param[operand]} + {nest.position(at, (), span(at, ()))})"
        return read, [nest.scalar(g, nest.depth(self.spans(g))) for g in e.args if g not in known]


class Matrix(Loops):
    """Sums of products of a kernel whose layout has warps for the matrix unit."""

    def products(self) -> None:
        """Compute all reductions along the sum of products, in fragments, and have the results in the kernel's layout."""
        warps = self.layout.warps
        assert warps is not None
        shape, b = self.shape, self.kernel.builder
        axis = max((e.axis for e in shape.dots if e.axis in shape.outer), key=lambda a: a.size)
        dim = self.dim_of[axis]
        ready = [e for e in self.kernel.reductions if e.axis == axis]
        frame = Fragments(self, dim, warps)
        if any(e.value[0] != "sum" or e.kind != "float" for e in ready) or self.wide != "float32":
            raise Unfusable("a reduction that is no sum beside a product")
        if self.extent["m"] > 2 * HEIGHT or frame.ragged("n") or self.extent[dim] % 8:
            raise Unfusable("fragments do not cover the columns")
        dots = {e: d for e in ready if (d := shape.dots.get(e)) is not None and _sides(frame, d)}
        sums = [e for e in ready if e not in dots]
        left, right = ({e: b.product(d.left if i else d.right, ()) for e, d in dots.items()} for i in (1, 0))
        lefts = dict.fromkeys(x for body in (*left.values(), *(e.args[0] for e in sums)) for x in frame.sources(body))
        rights = dict.fromkeys(x for body in right.values() for x in frame.sources(body))
        if (
            any(x in lefts for x in rights)
            or any("n" in frame.spans(x) for x in lefts)
            or any(x.op == "reduce" for e in ready for x in walk(e.args))
        ):
            raise Unfusable("one load on both sides of a product")
        self.counter = frame.counter
        self._stage(frame, dots, sums, left, right, list(lefts), list(rights))

    def _stage(
        self, frame: Fragments, dots: dict[Expr, Dot], sums: Sequence[Expr], left: dict[Expr, Expr], right: dict[Expr, Expr],
        lefts: Sequence[Expr], rights: Sequence[Expr],
    ) -> None:  # fmt: skip
        """The stage's text: a block of its own, whose results lie in shared memory behind it."""
        warps, dim, size = frame.warps, frame.dim, frame.extent[frame.dim]
        base = f"{enclosed(self.place['n'])} * {self.along['n'].block} + " if self.place["n"] else ""
        frame.line("const int m_0 = thread / 4 % 8;")
        own = f"thread / 32 % {warps.across} * {warps.tiles * WIDTH} + " if warps.across > 1 else ""
        frame.line(f"const int n_0 = {base}{own}thread / 4 % 8;")
        for d in dict.fromkeys(d for x in rights for d in frame.spans(x) if d not in ("n", dim)):
            frame.line(f"const int {d}_0 = thread / 4 % 8;")
        chunk = CHUNK * warps.depth
        frame.line(f"const int own = thread / {32 * warps.across} * {chunk} + thread % 4 * 8;")
        names: dict[Expr, Local] = {}
        for e in dots:
            columns = next(d for d in frame.spans(right[e]) if d != dim)
            names[e] = Local(frame.fresh("acc"), ("m", columns), "float32")
            frame.line(f"float {names[e].name}[{frame.heights * frame.along[columns].repeat}][4] = {{}};")
        squares = {e: two for e in sums if (two := _rows(frame, e)) is not None}
        for e in sums:
            names[e] = Local(frame.fresh("acc"), tuple(d for d in frame.spans(e.args[0]) if d != dim), "float32")
            if e in squares:
                frame.line(f"float {names[e].name}[{2 * frame.heights}][4] = {{}};")
            else:
                frame._begin(names[e].name, names[e].dims, "sum")
        held = {x: frame.declare(x) for x in (*rights, *lefts)}
        self._read(frame, rights, held, "own")
        whole = frame.step >= size
        at = f"{dim}_block"
        outer = frame.scope
        loop = Scope(2 if whole else 3, set(outer.bound), outside=outer)
        with frame.inside(loop):
            frame.line(f"const int {dim}_0 = {'own' if whole else f'{at} + own'};")
            self._read(frame, lefts, held)
            frame.scope.known |= held
            sides = {x: self._pack(frame, x, held) for x in dict.fromkeys((*left.values(), *right.values()))}
            packs = {e: (sides[left[e]], sides[right[e]]) for e in dots}
            for e in sums:
                if e in squares:
                    self._square(frame, names[e], *(held[x] for x in squares[e]))
                else:
                    frame._accumulate(e, e.args[0], dim, names[e])
            if not whole:
                frame.line(f"const bool more = {at} + {frame.step} < {size};")
                frame.line("{")
                frame.line(f"const int {dim}_0 = {at} + {frame.step} + own;")
            for columns in dict.fromkeys(names[e].dims[1] for e in dots):
                same = [e for e in dots if names[e].dims[1] == columns]
                later = [] if whole else [x for x in rights if held[x].dims == frame.spans(right[same[0]])]
                self._multiply(frame, same, columns, names, packs, {x: held[x] for x in later})
            if not whole:
                frame.line("}")
        if not whole:
            frame.line("#pragma unroll 1", outer)
            frame.line(f"for (int {at} = 0; {at} < {size}; {at} += {frame.step}) {{", outer)
        outer.lines += loop.lines
        if not whole:
            frame.line("}", outer)
        self._gather(frame, dots, sums, names, squares)

    def _read(self, frame: Fragments, loads: Sequence[Expr], held: dict[Expr, Local], start: str = "") -> None:
        """Loops that read loads, at a place of the sum if one is given; matrices past the first cache."""
        if start:
            frame.line("{")
            frame.line(f"const int {frame.dim}_0 = {start};")
        for dims in dict.fromkeys(held[x].dims for x in loads):
            nest = Nest(frame, dims, frame.dim)
            for x in loads:
                if held[x].dims == dims:
                    frame.fill(nest, x, held[x])
            nest.close()
        if start:
            frame.line("}")

    def _pack(self, frame: Fragments, e: Expr, held: dict[Expr, Local]) -> Local:
        """A side of a product in 16 bits: as it was read, or computed from that."""
        if e in held:
            return held[e]
        kinds = {held[x].dtype for x in frame.sources(e)}
        if len(kinds) != 1:
            raise Unfusable("a side of a product in two dtypes")
        (dtype,) = kinds
        local = Local(frame.fresh("v"), frame.spans(e), dtype, frame.dim)
        frame.hold(local)
        nest = Nest(frame, local.dims)
        value = nest.scalar(e, nest.deepest, dtype=dtype)
        nest.line(f"{frame.spot(local, nest.slot(local))}.at[{frame.dim}_v] = {value};")
        nest.close()
        return local

    def _multiply(
        self, frame: Fragments, dots: Sequence[Expr], columns: str, names: dict[Expr, Local],
        packs: dict[Expr, tuple[Local, Local]], later: dict[Expr, Local],
    ) -> None:  # fmt: skip
        """The loop nest of products over the same columns; `later`: what is read for the next round, right behind its use."""
        nest = Nest(frame, (frame.dim, columns), frame.dim)
        depth, tiles = frame.along[frame.dim].repeat, frame.along[columns].repeat
        k, tile = (f"{frame.dim}_i" if depth > 1 else "0"), (f"{columns}_i" if tiles > 1 else "0")
        for e in dots:
            a, b = packs[e]
            if a.dtype != b.dtype or a.dims != ("m", frame.dim):
                raise Unfusable("sides of a product that the matrix unit does not take")
            for h in range(frame.heights):
                above, below = (f"{a.name}[{_sum((2 * h + i) * depth, k)}]" for i in (0, 1))
                place = f"{names[e].name}[{_sum(h * tiles, tile)}]"
                nest.line(f"multiply({place}, {above}, {below}, {frame.spot(b, nest.slot(b))});")
        for x, local in later.items():
            frame.fill(nest, x, local, "more")
        nest.close()

    def _square(self, frame: Fragments, acc: Local, a: Local, b: Local) -> None:
        """Sums of products of equal rows: the diagonal of one operand times the other, whose rows are columns then."""
        nest = Nest(frame, (frame.dim,), frame.dim)
        depth = frame.along[frame.dim].repeat
        k = f"{frame.dim}_i" if depth > 1 else "0"
        for h in range(frame.heights):
            above, below = (f"{a.name}[{_sum((2 * h + i) * depth, k)}]" for i in (0, 1))
            for i in (0, 1):
                place = f"{acc.name}[{2 * h + i}]"
                nest.line(f"multiply({place}, {above}, {below}, {b.name}[{_sum((2 * h + i) * depth, k)}]);")
        nest.close()

    def _gather(
        self, frame: Fragments, dots: dict[Expr, Dot], sums: Sequence[Expr], names: dict[Expr, Local],
        squares: Collection[Expr],
    ) -> None:  # fmt: skip
        """What the warps along the sum have, added through shared memory, in the kernel's layout."""
        warps, rows = frame.warps, frame.heights * HEIGHT
        warp = f"thread / {32 * warps.across}"
        wanted: list[tuple[Expr, int, int, int]] = []  # reduction, first place, places of a row, of a warp
        for e in dots:
            columns = names[e].dims[1]
            tiles, across = frame.along[columns].repeat, warps.across if columns == "n" else 1
            row = tiles * WIDTH * across + (8 if tiles * across > 1 else 0)
            first = f" + thread / 32 % {across} * {tiles * WIDTH}" if across > 1 else ""
            alone = f"if (thread / 32 % {warps.across} == 0) " if warps.across > 1 and across == 1 else ""
            place = f"{_sum(self.shared, 'shared')} + {warp} * {rows * row}{first}"
            frame.line(f"{alone}put_product<{row}, {tiles}>({place}, {names[e].name});")
            wanted.append((e, self.shared, row, rows * row))
            self.shared += rows * row * warps.along
        for e in sums:
            kept = names[e].dims
            if kept not in (("m",), ()):
                raise Unfusable("sums over columns beside products")
            count, place = frame.count(kept), f"{_sum(self.shared, 'shared')} + {warp} * {rows}"
            first_ = f"thread / 32 % {warps.across} == 0" if warps.across > 1 else ""
            if e in squares:
                frame.line(f"{f'if ({first_}) ' if first_ else ''}put_diagonal({place}, {names[e].name});")
            else:
                frame.line(f"across_warp<Sum, 1, 4>({names[e].name});")
                lane = all_of(["thread % 4 == 0", *([first_] if first_ else [])])
                spot = f"({place})[thread / 4 % 8 + i * 8]"
                frame.line(f"if ({lane}) for (int i = 0; i < {count}; ++i) {spot} = {names[e].name}[i];")
            wanted.append((e, self.shared, 1, rows))
            self.shared += rows * warps.along
        self.line("{")
        self.top.lines += frame.top.lines
        self.line("}")
        self.line("__syncthreads();")
        self.counter = max(self.counter, frame.counter)
        for e, begin, row, apart in wanted:
            kept = self.spans(e)
            local = Local(self.fresh("acc"), kept, self.wide)
            count = self.count(kept)
            self._check_held(4 * count)
            self.line(f"float {local.name}[{count}];")
            nest = Nest(self, kept)
            spots = [nest.coordinate("m") + (f" * {row}" if row > 1 else "")] if "m" in kept else []
            if len(kept) > 1:
                column = nest.coordinate(kept[1])
                spots.append(f"{column} % {self.along['n'].block}" if kept[1] == "n" else column)
            place = " + ".join([_sum(begin, "shared"), *spots])
            nest.line(f"{nest.at(local)} = gathered<{warps.along}, {apart}>({place});")
            nest.close()
            self.top.known[e] = local


def _sum(number: int, text: str) -> str:
    """The text of a sum."""
    return str(number) if text == "0" else f"{text} + {number}" if number else text


def _rows(frame: Fragments, e: Expr) -> tuple[Expr, Expr] | None:
    """The two operands of a sum over products of equal rows, where both are read whole."""
    over, under = factors(e.args[0])
    whole = not under and len(over) == 2 and all(frame.read_whole(f) for f in over)
    if not whole or any(frame.spans(f) != ("m", frame.dim) for f in over) or len({frame.dtype(f) for f in over}) > 1:
        return None
    return over[0], over[1]


def _sides(frame: Fragments, dot: Dot) -> bool:
    """Whether a product has rows on one side and other columns on the other, both along the sum."""
    left, right = ({d for f in side for d in frame.spans(f)} for side in (dot.left, dot.right))
    return left == {"m", frame.dim} and len(right) == 2 and frame.dim in right and "m" not in right
