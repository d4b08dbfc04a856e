"""Emits what concerns the positions of a cluster's block: their range, the number that a mask leaves visible, loads of
keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.expr import Expr, walk
from ...ir.index import Axis, Index, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.loop_fusion import index_bounds
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from ..emit.frame import ThreadFrame
from ..emit.kernel import SimtEmitter
from ..emit.nest import ThreadNest
from ..emit.thread_layout import DimensionThreads, ThreadLayout
from .decode_attention import DecodeAttention
from .parameters import TILE, ClusteredAttentionSchedule


class BlockPositions:
    """Emitter part of clustered attention for the positions that a block of a cluster processes, and for their loads.

    `frame` gives emitters of parts of the kernel, each in a thread layout of its own. The constructor raises Unfusable
    if the schedule does not suit the kernel.
    """

    def __init__(
        self, kernel: Kernel, shape: Shape, s: ClusteredAttentionSchedule, found: DecodeAttention, name: str,
        constant: frozenset[str],
    ) -> None:  # fmt: skip
        self.kernel, self.shape, self.s, self.found, self.name, self.constant = kernel, shape, s, found, name, constant
        self.rows, self.head, self.columns = shape.m, found.head.size, found.column.size
        if self.columns % (4 * s.parts):
            raise Unfusable("columns that the blocks of a cluster do not share evenly")
        self.own = self.columns // s.parts
        self.slice = s.slice(found.positions.size)
        self.counter = 0
        self.query_warps = 0  # warps that compute queries: the first ones
        self.places = {p: f"place{n or ''}" for n, p in enumerate(dict.fromkeys(r.update.place for r in found.rows))}

    # ------------------------------------------------------------ frames
    def frame(
        self, layout: ThreadLayout, constant: frozenset[str] = frozenset(), store: OutputStore | None = None
    ) -> SimtEmitter:
        """New emitter for one part of the kernel, whose threads are arranged as `layout` says.

        `constant`: operands that the emitted code may read before it waits for the previous kernel (programmatic
        dependent launch), since that kernel does not write them. `store`: if given, the only output for which code is
        emitted, so that loops contain no reductions of other outputs.
        """
        kernel = self.kernel if store is None else replace(self.kernel, stores=(store,))
        frame = ThreadFrame(kernel, layout, self.name, self.shape, constant)
        frame.counter = self.counter
        return SimtEmitter(frame)

    def _row_threads(self, lanes: int) -> DimensionThreads:
        """Distribution of the query rows over groups of `lanes` threads."""
        groups = self.s.threads // lanes
        threads = max(n for n in range(1, self.rows + 1) if self.rows % n == 0 and n <= groups)
        return DimensionThreads(threads, 1, self.rows // threads)

    def _batch(self) -> list[str]:
        """Lines that derive the values of batch axes from the index of the cluster."""
        lines, step = [], self.s.parts
        for a in reversed(self.shape.batch):
            text = f"blockIdx.x / {step}" if step > 1 else "blockIdx.x"
            lines.append(f"const int {a.name} = {text}{'' if a is self.shape.batch[0] else f' % {a.size}'};")
            step *= a.size
        return lines

    def _slice(self) -> list[str]:
        """Lines that define the block's positions, from `first` up to `end`."""
        s, size = self.s, self.found.positions.size
        block = "attention.block"
        if not s.seen:
            if s.parts == 1:
                return [f"const int first = 0, end = {size};"]
            last = f"{block} * {self.slice} + {self.slice}"
            end = last if self.slice * s.parts == size else f"least({last}, {size})"
            return [f"const int first = {block} * {self.slice}, end = {end};"]
        lines = self._visible()
        share = f"(visible + {s.parts * TILE - 1}) / {s.parts * TILE} * {TILE}" if s.parts > 1 else "visible"
        return [
            *lines, f"const int share = {share}, first = {block} * share, end = least(first + share, visible);",
        ]  # fmt: skip

    def _known(self, exprs: Sequence[Expr]) -> bool:
        """Whether expressions read nothing that an earlier kernel may still be writing (`constant`)."""
        return self.s.early and all(x.value[0] in self.constant for x in walk(exprs) if x.op == "load")

    def _ends(self) -> list[Expr]:
        """The numbers in memory that may end the positions that are read."""
        bounds = index_bounds(self.found.maximum.args[0], hiding=True) if self.s.seen else []
        return [number_ for _, number_, _ in bounds]

    def _visible(self) -> list[str]:
        """Lines that define `visible`, the number of positions that the mask does not hide from all rows.

        Raises Unfusable unless the maximum is masked beyond a number in memory.
        """
        axis = self.found.positions
        emitter = self.frame(ThreadLayout({}, self.s.early))
        frame = emitter.frame
        for at, number_, strict in index_bounds(self.found.maximum.args[0], hiding=True):
            begin: Index = at - index(axis)
            if axis in begin.axes or frame.dims(begin.axes) or frame.spans(number_):
                continue
            emitter.loads.need(number_)
            nest = ThreadNest(frame, ())
            none = f"({nest.position(begin - (not strict), (), begin.range[1])})"
            most = f"op::min((long long){nest.scalar(number_, 0)}, {none} + {axis.size}LL)"
            nest.line(f"const int visible = op::max({most} - {none}, 0LL);")
            nest.close()
            self.counter = frame.counter
            return trimmed(frame.top.lines)
        raise Unfusable("no mask that ends the positions")

    def _place(self, e: Expr, axis: Axis) -> tuple[str, int]:
        """(text of the address of a load's first position and element, elements from a position to the next)."""
        frame = ThreadFrame(self.kernel, ThreadLayout({}), self.name, self.shape)
        operand, at, _, _ = e.value
        step = at.coefficient(self.found.positions)
        rest = at - index(axis) - index(self.found.positions) * step
        span = at.range[1]
        place = ThreadNest(frame, ()).position(rest, (), span)
        return f"{frame.param[operand]}" + (f" + {place}" if place != "0" else ""), step

    def _load(self, what: str, e: Expr, axis: Axis, first: str) -> str:
        """Line that loads a chunk of keys or values from position `first` on."""
        place, step = self._place(e, axis)
        return f"attention.load_{what}({place}, {step}, {first}, end);"

    def _loads(self, first: str) -> list[str]:
        """Lines that load the first chunk."""
        return [
            self._load("keys", self.found.keys, self.found.head, first),
            self._load("values", self.found.values, self.found.column, first),
        ]


def trimmed(lines: list[str]) -> list[str]:
    """Lines without the indentation of a function's body."""
    return [line.removeprefix("    ") for line in lines]


def indented(lines: Sequence[str]) -> list[str]:
    """Lines, four columns further right."""
    return ["    " + line for line in lines]
