"""Emits a ring buffer in shared memory for the operands of a skinny GEMM (few rows) with quantized weights, filled by
cp.async several loop iterations ahead.

Without it (packed_fragments.py), only the codes of the next iteration are prefetched, into registers; rows and scales
are loaded in the iteration that needs them, and their loads queue behind those of the codes, which saturate the
memory. With it, codes, rows and scales are copied `Warps.ahead` iterations earlier. The ring has one section per
iteration in flight. Codes have a slot for each thread; the rows of a warp's part of K, and the scales of its columns,
are shared by the warp. So a warp waits for its own copies only, and the loop has no barrier of the block. After the
loop, the ring's memory holds the warps' partial sums.

With `Warps.joint` the rows are shared by the block: its threads copy each row once, for all warps along columns, and
meet once per iteration. Sixteen rows are as many bytes as the codes of 64 columns, and each block reads them from L2.

Rows that are computed from other loads than vectors of 16-bit floats, and scales that differ between the numbers that
four neighbouring threads hold, are loaded into registers as without a ring; so are codes with `Warps.direct`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from .code_tiles import CodeTiles
from .fragment_frame import CHUNK, WIDTH, FragmentFrame
from .frame import CudaPart, Local
from .nest import ThreadNest
from .spelling import CTYPES, all_of, span, sum_of

WORDS = 4  # 32-bit words of a slot of 16 bytes


@dataclass(eq=False)
class CodeRing(CudaPart):
    """Emitter part for the copies into the ring buffer, and the reads from it.

    `codes`: loads of quantized codes that go through the ring -> name of the register variable for one tile of columns;
    `values`: likewise the loads of scales and zero points. `rows`: loads of the left operand that go through the ring.
    """

    frame: FragmentFrame
    tile: CodeTiles
    codes: Mapping[Expr, str]
    values: Mapping[Expr, str]
    rows: Sequence[Expr]

    def __post_init__(self) -> None:
        super().__post_init__()
        frame, warps, threads = self.frame, self.layout.threads // 32, self.layout.threads
        self.pieces = CHUNK // WIDTH * frame.span // WIDTH  # vectors of a warp's part of a row
        self.first_value = frame.warps.tiles * len(self.codes) * threads
        self.first_row = self.first_value + len(self.values) * warps * frame.warps.tiles * WIDTH // WORDS
        heights = [self.height(x) for x in self.rows]
        self.joint = frame.warps.joint and frame.warps.across > 1
        self.parts = frame.warps.along if self.joint else warps  # copies of the rows
        self.slots = self.first_row + sum(heights) * self.parts * self.pieces  # of 16 bytes, of a round
        self.before = [sum(heights[:i]) for i in range(len(heights))]
        frame.codes = (frame.warps.ahead + 1) * self.slots

    def height(self, x: Expr) -> int:
        """Number of rows that the ring holds of `x`, a load of the left operand: the number of rows of the product
        rounded up to a multiple of eight, or one if `x` is the same for all rows."""
        return -(-self.frame.extent["m"] // WIDTH) * WIDTH if "m" in self.frame.spans(x) else 1

    def coordinates(self) -> None:
        """Emit declarations of a warp's number, a thread's number in the warp (lane), and the warp's first column and
        first element along K."""
        frame, warps = self.frame, self.frame.warps
        part = f"{frame.first_element} + " if frame.first_element else ""
        self.line("const int warp = thread / 32, lane = thread % 32;")
        self.line(f"const int n_warp = {frame.first_column or '0'} + warp % {warps.across} * {warps.tiles * WIDTH};")
        self.line(f"const int own_warp = {part}warp / {warps.across} * {self.pieces * WIDTH};")
        for x, name in self.codes.items() if warps.joint else ():
            if (apart := self.tile.column_stride(x)) is not None:
                self.line(f"const unsigned char* const from_{name} = {self.tile.own_address(x, apart)};")

    # ------------------------------------------------------------ copies
    def first(self, *, weights: bool, rows: bool) -> None:
        """Emit, before the loop, the copies into the ring buffer for the first `Warps.ahead` iterations: of codes and
        scales if `weights` is set, of rows if `rows` is."""
        if not (weights and (self.codes or self.values)) and not (rows and self.rows):
            return
        self.line("#pragma unroll")
        self.line(f"for (int round = 0; round < {self.frame.warps.ahead}; ++round) {{")
        self.line(f"Slot* const next = ring + round * {self.slots};")
        self._copies(f"round * {self.frame.step}", weights=weights, rows=rows)
        self.line("end_round();")
        self.line("}")

    def next_iteration(self) -> None:
        """Emit, in the loop, the copies into the ring buffer for the iteration `Warps.ahead` later, into the section
        that the previous iteration has read, and the wait for the copies of the present iteration."""
        frame, ahead, joint = self.frame, self.frame.warps.ahead, self.joint
        later = f"{frame.dim}_block + {ahead * frame.step}"
        if joint:  # all warps have read the previous section, and all copies of the present one are there
            self.line(f"await_round<{ahead - 1}>();")
        self.line("__syncthreads();" if joint else "__syncwarp();")
        self.line(f"if ({later} < {frame.size}) {{")
        self.line(f"Slot* const next = ring + (round == 0 ? {ahead} : round - 1) * {self.slots};")
        self._copies(later)
        self.line("}")
        self.line("end_round();")
        if not joint:
            self.line(f"await_round<{ahead}>();")
            self.line("__syncwarp();")
        self.line(f"const Slot* const now = ring + round * {self.slots};")

    def _copies(self, start: str, *, weights: bool = True, rows: bool = True) -> None:
        """Emit the copies of codes and scales (`weights`), and of rows, of the iteration at `start` along K into the
        round `next` of the ring."""
        if weights and self.codes:
            self.line("{")
            self.line(f"const int {self.frame.dim}_0 = {start} + own;")
            self.tile.each(lambda: self._copy_codes(start))
            self.line("}")
        for x in self.values if weights else ():
            self._copy_values(x, start)
        for x in self.rows if rows else ():
            self._copy_rows(x, start)

    def _copy_codes(self, start: str) -> None:
        """Emit the copy of a thread's codes of a tile, in the iteration at `start` along K."""
        nest = self.tile.single()
        when = condition(nest.masks(("n", self.frame.dim)))
        for x, name in self.codes.items():
            apart = self.tile.column_stride(x) if self.frame.warps.joint else None
            place = (
                self.tile.address(nest, x)[0]
                if apart is None
                else f"from_{name} + {self.tile.bytes_of(f'({start})')} + n_i * {apart * WIDTH}"
            )
            nest.line(f"{when}fetch_codes({self._code_slot(x, 'next')}, {place});")
        nest.close()

    def _copy_values(self, x: Expr, start: str) -> None:
        """Emit the copies of the values of a warp's columns, each with its neighbour in an aligned word."""
        dim = self.frame.dim
        self._each("column", self.frame.warps.tiles * WIDTH, "lane", 32)
        self.line(f"const int n_0 = n_warp + column, n_i = 0, {dim}_0 = {start} + own_warp, {dim}_i = 0, {dim}_v = 0;")
        nest = self.tile.single()
        when = condition(nest.masks(("n", dim)))
        nest.line(f"{when}fetch_pair({self._value_slot(x, 'next', 'column')}, {self.tile.place(nest, x)});")
        nest.close()
        self.line("}")

    def _copy_rows(self, x: Expr, start: str) -> None:
        """Emit the copies of a warp's part of the rows, or the block's copies of all parts if they are shared."""
        dim, pieces, height = self.frame.dim, self.pieces, self.height(x)
        row, part, first = f"piece / {pieces}", "warp", "own_warp"
        if self.joint:
            row, part = f"piece / {pieces}", "0"
            if self.parts > 1:
                row, part = f"{row} % {height}", f"piece / {height * pieces}"
            first = f"{self.frame.first_element} + " if self.frame.first_element else ""
            first += f"{part} * {pieces * WIDTH}"
            self._each("piece", height * pieces * self.parts, "thread", self.layout.threads)
        else:
            self._each("piece", height * pieces, "lane", 32)
        self.line(f"const int m_0 = {row}, m_i = 0, {dim}_i = 0, {dim}_v = 0;")
        self.line(f"const int {dim}_0 = {start} + {first} + piece % {pieces} * {WIDTH};")
        nest = self.tile.single()
        when = condition(nest.masks(self.frame.spans(x)))
        slot = self._row_slot(x, "next", "m_0", f"piece % {pieces}", part)
        nest.line(f"{when}fetch_row({slot}, {self.tile.place(nest, x)});")
        nest.close()
        self.line("}")

    def _each(self, name: str, count: int, own: str, among: int) -> None:
        """Open a block in which `name` is each number below `count` that is this thread's: those that equal `own`, its
        number among `among` threads, modulo `among`."""
        turns = -(-count // among)
        if turns > 1:
            self.line("#pragma unroll")
            self.line(f"for (int turn = 0; turn < {turns}; ++turn)")
        last = f"turn < {turns - 1} || " if turns > 1 else ""
        turn = f" + turn * {among}" if turns > 1 else ""
        self.line(f"if ({last}{own}{turn} < {count}) {{" if count % among else "{")
        self.line(f"const int {name} = {own}{turn};")

    # ------------------------------------------------------------ slots
    def _code_slot(self, x: Expr, round_: str) -> str:
        """Text of a thread's slot for the codes of a tile in a round of the ring."""
        own = sum_of(f"n_i * {len(self.codes)}", [*self.codes].index(x))
        return f"{round_}[({own}) * {self.layout.threads} + thread]"

    def _value_slot(self, x: Expr, round_: str, column: str) -> str:
        """Text of the word with a value of a warp's column in a round of the ring."""
        first = [*self.values].index(x) * self.layout.threads // 32
        own = f"({first} + warp) * {self.frame.warps.tiles * WIDTH} + {column}"
        return f"(({'const ' if round_ == 'now' else ''}unsigned*)({round_} + {self.first_value}))[{own}]"

    def _row_slot(self, x: Expr, round_: str, row: str, vector: str, part: str) -> str:
        """Text of the slot of a vector of the rows in a round of the ring, of a warp or, if they are shared, of a part
        of K: that with the number `part`."""
        height, before = self.height(x), self.before[self.rows.index(x)]
        first = self.first_row + before * self.parts * self.pieces
        place = f"row_place<{height}, {self.pieces}>({row}, {vector})"
        return f"{round_}[{first} + {part} * {height * self.pieces} + {place}]"

    # ------------------------------------------------------------ reads
    def read_rows(self, x: Expr, local: Local, spot: str, nest: ThreadNest) -> None:
        """Emit, into the loop nest `nest` over a thread's vectors, the reads of rows of the load `x` from the ring into
        the register variable `local`; zeros beyond the end of a dimension. `spot`: CUDA expression of the vector to
        assign."""
        frame, height = self.frame, self.height(x)
        row = "m_0 + m_i * 8" if height > WIDTH else "m_0" if height > 1 else "0"
        conditions = nest.masks(local.dims)
        if "m" in local.dims and height // WIDTH < 2 * frame.heights:
            conditions.append(f"m_i < {height // WIDTH}")
        if conditions:
            nest.line(f"{spot} = {{}};")
        part = "warp" if not self.joint else f"warp / {frame.warps.across}" if self.parts > 1 else "0"
        slot = self._row_slot(x, "now", row, f"thread % 4 * {frame.span // WIDTH} + {frame.dim}_i", part)
        nest.line(f"{condition(conditions)}read_slot({spot}, {slot});")

    def read_tile(self) -> None:
        """Emit the reads of the codes, scales and zero points of a tile of 8 columns from the ring into register
        variables; zeros beyond the end of a dimension."""
        nest = self.tile.single()
        conditions = nest.masks(("n", self.frame.dim))
        for x, name in self.codes.items():
            nest.line(f"Slot {name}{' = {}' if conditions else ''};")
            nest.line(f"{condition(conditions)}read_slot({name}, {self._code_slot(x, 'now')});")
        for x, name in self.values.items():
            operand, at, _, dtype = x.value
            slot = self._value_slot(x, "now", "n_i * 8 + lane / 4")
            text = f"half_of({slot}, {self.frame.param[operand]}, {nest.position(at, (), span(at, ()))})"
            nest.line(
                f"{name}[n_i] = {f'{all_of(conditions)} ? {text} : {CTYPES[dtype]}{{}}' if conditions else text};"
            )
        nest.close()


def condition(conditions: Sequence[str]) -> str:
    """CUDA text of `if (...)` that makes the statement after it depend on all of `conditions`; "" without
    conditions."""
    return f"if ({all_of(list(conditions))}) " if conditions else ""


__all__ = ["CodeRing"]
