"""Skinny GEMM with quantized weights whose operands pass through shared memory: cp.async copies some iterations ahead.

With codes in registers (packed_fragments.py), only those of the next iteration are under way, and rows and scales are
waited for in each iteration, behind the codes that saturate the memory. Here codes, rows and scales are copied
`Warps.ahead` iterations earlier into a ring of rounds in shared memory. Codes have a slot for each thread; the rows of
a warp's part of K, and the scales of its columns, are shared by the warp. So a warp waits for its own copies only, and
the loop has no barrier of the block. After the loop, the warps' partial sums lie in the same memory.

Rows that are computed from several loads, and scales that are not the same for all numbers that four neighbouring
threads hold, are loaded into registers as without a ring; so are codes with `Warps.direct`.
"""

from __future__ import annotations

from ....egraph.ir.dtypes import HALVES
from ...ir.expr import Expr
from ...ir.index import Axis
from ...ir.unfusable import Unfusable
from .fragment_frame import CHUNK, WIDTH
from .fragments import plus
from .frame import Local
from .nest import ThreadNest
from .packed_fragments import PackedFragments
from .spelling import CTYPES, all_of, enclosed, span

WORDS = 4  # 32-bit words of a slot of 16 bytes


class RingFragments(PackedFragments):
    """Emitter part for the main loop of skinny GEMM with quantized weights that are copied into a ring in shared
    memory."""

    chains = 2

    def _operands(self, axis: Axis) -> None:
        super()._operands(axis)
        frame = self.frame
        if frame.warps.ahead * frame.step >= frame.size:
            raise Unfusable("a prefetch distance beyond the end of K")
        whole = all(x.op == "load" and not x.args and self.dtype(x) in HALVES for x in self.lefts)
        self.rows = self.lefts if whole else []
        near = self.grouped == self.dots and all(x.value[3] in HALVES for x in self.values)
        self.near = list(self.values) if near else []
        self.pieces = CHUNK // WIDTH * frame.span // WIDTH  # vectors of a warp's part of a row
        self.height = self.octets * WIDTH if frame.extent["m"] > 1 else 1
        warps, threads = self.layout.threads // 32, self.layout.threads
        self.first_near = 0 if frame.warps.direct else frame.warps.tiles * len(self.codes) * threads
        self.first_row = self.first_near + len(self.near) * warps * frame.warps.tiles * WIDTH // WORDS
        self.slots = self.first_row + len(self.rows) * warps * self.height * self.pieces  # of 16 bytes, of a round
        if not self.slots:
            raise Unfusable("nothing that a ring may hold")
        frame.codes = (frame.warps.ahead + 1) * self.slots

    def _coordinates(self) -> None:
        super()._coordinates()
        frame, warps = self.frame, self.frame.warps
        base = f"{enclosed(frame.place['n'])} * {frame.block}" if frame.place["n"] else "0"
        self.line("const int warp = thread / 32, lane = thread % 32;")
        self.line(f"const int n_warp = {base} + warp % {warps.across} * {warps.tiles * WIDTH};")
        self.line(f"const int own_warp = warp / {warps.across} * {self.pieces * WIDTH};")

    def stage(self) -> list[str]:
        """Emit coordinates, accumulators, the first copies and the loop over K. Returns the lines.

        The first codes and scales are copied before the wait for the previous kernel if they are weights.
        """
        frame = self.frame
        self._coordinates()
        for e in (*self.dots, *self.sums):
            self._accumulator(e)
        early = all(map(frame.before_wait, (*self.codes, *self.values)))
        with self.inside(frame.ahead if early else frame.top):
            for name in self.codes.values() if frame.warps.direct else ():
                self.line(f"Slot {name}[{frame.warps.tiles}];")
            for x, name in self.values.items():
                self.line(f"{CTYPES[x.value[3]]} {name}[{frame.warps.tiles}];")
                frame.top.known[x] = Local(name, ("n",), str(x.value[3]))
            if early:
                self._at_first(lambda: self._first(weights=True, rows=False), apart=True)
        self.held = {x: self.hold(frame.spans(x), self.dtype(x)) for x in self.lefts}
        frame.top.known |= self.held
        self._at_first(lambda: self._first(weights=not early, rows=True))
        self.line("int round = 0;")
        self._walk_sum()
        self.line("__syncthreads();")  # partial sums lie where codes were
        return frame.top.lines

    def _first(self, *, weights: bool, rows: bool) -> None:
        """Emit the copies of the first `Warps.ahead` rounds, and the first loads of what is not copied."""
        if weights:
            self.each_tile(lambda: self._fetch(""))
        if rows and not self.rows:
            self.read(self.lefts)
        if not weights and not self.rows:
            return
        self.line("#pragma unroll")
        self.line(f"for (int round = 0; round < {self.frame.warps.ahead}; ++round) {{")
        self.line(f"Slot* const next = ring + round * {self.slots};")
        self._copies(f"round * {self.frame.step}", weights=weights, rows=rows)
        self.line("end_round();")
        self.line("}")

    def _fetch(self, condition: str) -> None:
        """Emit the loads of a tile's codes, scales and zero points that are not copied."""
        held = self.codes, self.values
        self.codes = self.codes if self.frame.warps.direct else {}
        self.values = {} if self.near else self.values
        super()._fetch(condition)
        self.codes, self.values = held

    # ------------------------------------------------------------ copies
    def _copies(self, start: str, *, weights: bool = True, rows: bool = True) -> None:
        """Emit the copies of codes and scales (`weights`), and of rows, of the iteration at `start` along K into the
        round `next` of the ring."""
        dim = self.frame.dim
        if weights:
            if not self.frame.warps.direct:
                self.line("{")
                self.line(f"const int {dim}_0 = {start} + own;")
                self.each_tile(self._copy_codes)
                self.line("}")
            for x in self.near:
                self._copy_values(x, start)
        for x in self.rows if rows else ():
            self._copy_rows(x, start)

    def _copy_codes(self) -> None:
        """Emit the copy of a thread's codes of a tile."""
        nest = self.single()
        conditions = nest.masks(("n", self.frame.dim))
        when = f"if ({all_of(conditions)}) " if conditions else ""
        for x in self.codes:
            nest.line(f"{when}fetch_codes({self._code_slot(x, 'next')}, {self.address(nest, x)[0]});")
        nest.close()

    def _copy_values(self, x: Expr, start: str) -> None:
        """Emit the copies of the values of a warp's columns, each with its neighbour in an aligned word."""
        frame, count = self.frame, self.frame.warps.tiles * WIDTH
        self._each_lane("column", count)
        self.line(f"const int n_0 = n_warp + column, n_i = 0, {frame.dim}_0 = {start} + own_warp;")
        self.line(f"const int {frame.dim}_i = 0, {frame.dim}_v = 0;")
        nest = self.single()
        conditions = nest.masks(("n", frame.dim))
        when = f"if ({all_of(conditions)}) " if conditions else ""
        nest.line(f"{when}fetch_pair({self._value_slot(x, 'next', 'column')}, {self._place(nest, x)});")
        nest.close()
        self.line("}")

    def _copy_rows(self, x: Expr, start: str) -> None:
        """Emit the copies of a warp's part of the rows."""
        frame, count = self.frame, self.height * self.pieces
        self._each_lane("piece", count)
        self.line(f"const int m_0 = piece / {self.pieces}, m_i = 0, {frame.dim}_i = 0, {frame.dim}_v = 0;")
        self.line(f"const int {frame.dim}_0 = {start} + own_warp + piece % {self.pieces} * {WIDTH};")
        nest = self.single()
        conditions = nest.masks(self.frame.spans(x))
        when = f"if ({all_of(conditions)}) " if conditions else ""
        slot = self._row_slot(x, "next", f"row_place<{self.height}, {self.pieces}>(m_0, piece % {self.pieces})")
        nest.line(f"{when}fetch_row({slot}, {self._place(nest, x)});")
        nest.close()
        self.line("}")

    def _each_lane(self, name: str, count: int) -> None:
        """Open a block in which `name` is each number below `count` that is this lane's (modulo 32)."""
        turns = -(-count // 32)
        if turns > 1:
            self.line("#pragma unroll")
            self.line(f"for (int turn = 0; turn < {turns}; ++turn)")
        last = f"turn < {turns - 1} || " if turns > 1 else ""
        turn = " + turn * 32" if turns > 1 else ""
        self.line(f"if ({last}lane{turn} < {count}) {{" if count % 32 else "{")
        self.line(f"const int {name} = lane{turn};")

    def _place(self, nest: ThreadNest, x: Expr) -> str:
        """Text of the address of a load at this point."""
        operand, at, _, _ = x.value
        return f"{self.frame.param[operand]} + {nest.position(at, (), span(at, ()))}"

    def _code_slot(self, x: Expr, round_: str) -> str:
        """Text of a thread's slot for the codes of a tile in a round of the ring."""
        own = plus(f"n_i * {len(self.codes)}", [*self.codes].index(x))
        return f"{round_}[({own}) * {self.layout.threads} + thread]"

    def _value_slot(self, x: Expr, round_: str, column: str) -> str:
        """Text of the word with a value of a warp's column in a round of the ring."""
        warps = self.layout.threads // 32
        own = f"({self.near.index(x) * warps} + warp) * {self.frame.warps.tiles * WIDTH} + {column}"
        return f"(({'const ' if round_ == 'now' else ''}unsigned*)({round_} + {self.first_near}))[{own}]"

    def _row_slot(self, x: Expr, round_: str, place: str) -> str:
        """Text of the slot of a vector of a warp's rows in a round of the ring."""
        warps = self.layout.threads // 32
        own = f"({self.rows.index(x) * warps} + warp) * {self.height * self.pieces} + {place}"
        return f"{round_}[{self.first_row} + {own}]"

    # ------------------------------------------------------------ the loop
    def _iteration(self, whole: bool) -> None:
        """Emit one step of the loop over K: copies for a later one into the slots that the last one has read, the wait
        for this one's, and the products."""
        frame, ahead = self.frame, self.frame.warps.ahead
        later = f"{frame.dim}_block + {ahead * frame.step}"
        self.line("__syncwarp();")
        self.line(f"if ({later} < {frame.size}) {{")
        self.line(f"Slot* const next = ring + (round == 0 ? {ahead} : round - 1) * {self.slots};")
        self._copies(later)
        self.line("}")
        self.line("end_round();")
        self.line(f"await_round<{ahead}>();")
        self.line("__syncwarp();")
        self.line(f"const Slot* const now = ring + round * {self.slots};")
        for x in self.rows:
            self._read_rows(x)
        self.multiply_all(whole)
        if not self.rows:
            self.line("{")
            self._next_position()
            self.read(self.lefts)
            self.line("}")
        self.line(f"round = round == {ahead} ? 0 : round + 1;")

    def _read_rows(self, x: Expr) -> None:
        """Emit the reads of a thread's vectors of rows from the ring; zeros beyond the end of a dimension."""
        frame, local = self.frame, self.held[x]
        nest = ThreadNest(frame, local.dims, frame.dim)
        row = "m_0 + m_i * 8" if self.height > WIDTH else "m_0" if self.height > 1 else "0"
        conditions = nest.masks(local.dims)
        if "m" in local.dims and self.octets < 2 * frame.heights:
            conditions.append(f"m_i < {self.octets}")
        spot = self.spot(local, nest.slot(local))
        if conditions:
            nest.line(f"{spot} = {{}};")
        vector = f"row_place<{self.height}, {self.pieces}>({row}, thread % 4 * {frame.span // WIDTH} + {frame.dim}_i)"
        when = f"if ({all_of(conditions)}) " if conditions else ""
        nest.line(f"{when}read_slot({spot}, {self._row_slot(x, 'now', vector)});")
        nest.close()

    def begin_tile(self) -> None:
        """Emit the reads of a tile's codes and scales from the ring; zeros beyond the end of a dimension."""
        nest = self.single()
        conditions = nest.masks(("n", self.frame.dim))
        when = f"if ({all_of(conditions)}) " if conditions else ""
        for x, name in () if self.frame.warps.direct else self.codes.items():
            nest.line(f"Slot {name}{' = {}' if conditions else ''};")
            nest.line(f"{when}read_slot({name}, {self._code_slot(x, 'now')});")
        for x in self.near:
            name, ctype = self.values[x], CTYPES[x.value[3]]
            slot = self._value_slot(x, "now", "n_i * 8 + lane / 4")
            operand, at, _, _ = x.value
            text = f"half_of({slot}, {self.frame.param[operand]}, {nest.position(at, (), span(at, ()))})"
            nest.line(f"{name}[n_i] = {f'{all_of(conditions)} ? {text} : {ctype}{{}}' if conditions else text};")
        nest.close()

    def code(self, x: Expr) -> str:
        """Text of the register value with a tile's vector of codes."""
        return super().code(x) if self.frame.warps.direct else self.codes[x]

    def fetch_next(self) -> None:
        """Emit the loads of a tile's codes, scales and zero points of the next iteration that are not copied."""
        if self.frame.warps.direct:
            super().fetch_next()
        elif not self.near and self.values:
            self.line("{")
            self._next_position()
            self._fetch("")
            self.line("}")

    def _next_position(self) -> None:
        """Emit the thread's position along K in the next iteration; the last one loads its own again, because branches
        around loads are slower."""
        frame = self.frame
        self.line(f"const int {frame.dim}_0 = {frame.dim}_block + (more ? {frame.step} : 0) + own;")


__all__ = ["RingFragments"]
