"""Computes the properties of a kernel that legality (legality.py) and ranking (candidates.py) of Triton schedules
depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ....egraph.types import dtypes
from ...cuda.emit.thread_layout import stride_in_runs
from ...ir.expr import Expr
from ...ir.index import Axis, index
from ...ir.kernel import Kernel
from ...ir.tensor_maps import describable
from ...ir.tiling import Shape, divisors, padded
from ...machine import target
from ..emit.row_stores import rows as rows_of
from .parameters import TileSchedule

FEW = 32  # maximum rows of a skinny GEMM, which is bound by reading its right side once
PARTS = (2, 3, 4, 8, 16, 32, 64)
MIN_PART_ELEMENTS, MIN_PART_POSITIONS = 64, 16  # of a part of a split reduction; of a part of attention
HEAVY = 64  # operations per element beyond which small programs may pay


@dataclass(frozen=True)
class Load:
    """Footprint of a load in a tile: whether it varies along `rows` and along `cols`, which reduction axes it varies
    along (`inner`: their indices in `Shape.inner`), and its bytes per element."""

    rows: bool
    cols: bool
    inner: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True)
class KernelFacts:
    """Properties of a kernel that its schedules depend on. Kernels with equal facts share one ranking.

    `kind`: `Shape.kind`; `loads`: footprints of all loads. `m`, `n`, `batch`: sizes; `rows`, `cols`: whether the kernel
    has such axes. `inner`: sizes of the reduction axes; `main`: index in `inner` of K, the longest reduction axis of a
    product that is in no other reduction; `walked`: whether there is such a product. `middle`: elements per row of the
    intermediate result of back-to-back products (`main` is then K of the inner product), else 0. `sums`: number of
    accumulators; `single`: no 16-bit operands; `boxed`: TMA can load at least one operand's
    tiles (ir/tensor_maps.py), in attention or in a product with more than 16 rows. `dots`: (work, varies
    along rows, varies along columns) of each product. `periods`: divisors in index expressions of reduction axes.
    `splits`: whether the longest reduction may be split. `transposed`: whether large operands or results are contiguous
    along rows instead of columns. `beside`: maximum number of interleaved results per element (emit/row_stores.py), 1
    without any. `held`: live values per element (register pressure). `heavy`: whether there are more than `HEAVY`
    operations per element.
    """

    kind: str
    m: int
    n: int
    batch: int
    rows: bool
    cols: bool
    inner: tuple[int, ...]
    main: int
    walked: bool
    middle: int
    sums: int
    single: bool
    boxed: bool
    loads: tuple[Load, ...]
    dots: tuple[tuple[int, bool, bool], ...]
    periods: frozenset[int]
    splits: bool
    transposed: bool
    beside: int
    held: int
    heavy: bool

    @property
    def width(self) -> int:
        """Bytes of an element of the narrowest float dtype in memory: 2 or 4."""
        return 4 if self.single else 2

    @cached_property
    def size(self) -> int:
        """Length of the reduction that may be split: K of a product, else the longest axis."""
        return self.inner[self.main] if self.product else max(self.inner, default=1)

    @property
    def product(self) -> bool:
        """Whether the kernel has matrix products."""
        return self.kind in ("contraction", "attention")

    @property
    def few(self) -> bool:
        """Whether the kernel has few rows: its product is then a skinny GEMM, whose time is that of reading the right
        operand."""
        return self.m <= FEW

    @cached_property
    def columns(self) -> int:
        """Columns of a program's tile in attention: all columns, rounded up to a power of two, if at most 512; else
        128."""
        return max(16, padded(self.n)) if self.n <= 512 else 128

    @cached_property
    def whole_tiles(self) -> Mapping[int, int]:
        """For attention: tile size of each reduction axis that one tile covers whole, without a loop, which is the
        axis's size rounded up to a power of two, at least 16. Keys: positions of the axes in `inner`. The remaining
        axis (`main`) is looped over."""
        return {i: max(16, padded(size)) for i, size in enumerate(self.inner) if i != self.main}

    @cached_property
    def head(self) -> int:
        """Largest tile size of attention along any axis but rows and the looped one (head sizes, columns)."""
        return max([self.columns, *self.whole_tiles.values()])

    def programs(self, s: TileSchedule) -> int:
        """Number of programs that the schedule `s` launches, split-K not counted."""
        return -(-self.m // s.m) * -(-self.n // s.n) * self.batch

    def depths(self, k: int) -> tuple[int, ...]:
        """Tile size of each reduction axis of a matrix product: `k` for the main axis and axes longer than 256; the
        other axes are covered whole."""
        return tuple(
            min(k, padded(size)) if i == self.main or size > 256 else max(16 if self.rows else 1, padded(size))
            for i, size in enumerate(self.inner)
        )

    def staged(self, s: TileSchedule) -> int:
        """Bytes of shared memory per pipeline stage with the schedule `s`: the loads of the loop that needs most."""
        tiles = self._tiles(s)
        walked = [i for i, size in enumerate(self.inner) if s.k[i] < size]
        return max((sum(nbytes for nbytes, x in tiles if i in x.inner) for i in walked), default=0)

    def unstaged(self, s: TileSchedule) -> int:
        """Bytes of shared memory, with the schedule `s`, of product operands outside of loops, which are all live at
        once."""
        whole = {i for i, size in enumerate(self.inner) if s.k[i] >= size}
        return sum(nbytes for nbytes, x in self._tiles(s) if x.inner and whole.issuperset(x.inner))

    def _tiles(self, s: TileSchedule) -> list[tuple[int, Load]]:
        """(bytes of the tile, load) for each load."""
        return [
            (prod(s.k[i] for i in x.inner) * (s.m if x.rows else 1) * (s.n if x.cols else 1) * x.itemsize, x)
            for x in self.loads
        ]

    @property
    def short(self) -> bool:
        """Whether the kernel is attention with so few rows and positions that parts of `MIN_PART_ELEMENTS` positions
        occupy at most a quarter of the multiprocessors."""
        parts = self.batch * self.size // MIN_PART_ELEMENTS
        return self.kind == "attention" and self.m <= 16 and 4 * parts <= target().multiprocessors

    def parts(self, s: TileSchedule) -> Iterator[int]:
        """Yields the legal numbers of parts into which the schedule `s` may split the reduction, 1 (no split) first.

        There are at most 8 programs per SM in total, and each part is at least one tile long.
        """
        yield 1
        rows = self.kind == "rows" and not self.cols
        if not self.splits or not (rows or self.product):
            return
        k, programs = s.k[self.main], self.programs(s) if self.product else -(-self.m // s.m)
        if rows and k >= padded(self.size):
            return
        whole = self.size // k  # parts of one tile each: fills more programs where the size has few factors of two
        counts = (*PARTS, *([whole] if self.kind == "attention" and self.size % k == 0 and whole not in PARTS else []))
        least = MIN_PART_POSITIONS if self.short else MIN_PART_ELEMENTS
        for count in divisors(self.size, PARTS) if rows else counts:
            fine = (
                self.size % count == 0
                and self.size // count >= least
                and programs * count <= 8 * target().multiprocessors
            )
            if fine and (rows or self.size // count >= k):
                yield count


def facts_of(kernel: Kernel, shape: Shape, splits: bool = True) -> KernelFacts:
    """The properties of `kernel`, whose axes have the roles `shape` (row, column, batch, reduction), that legality and
    ranking read. `splits`: whether its longest reduction may be split."""
    tops = [a for a in shape.outer if any(e.axis == a for e in shape.dots)]
    main = max(tops, key=lambda a: a.size) if tops else shape.inner[-1] if shape.inner else None
    inside, added = _inside(shape, tops), _added(shape, tops)
    main = (inside or added)[0].axis if inside or added else main
    rows, cols, numbers = {*shape.rows}, {*shape.cols}, {a: i for i, a in enumerate(shape.inner)}
    loads = [e for e in kernel.exprs if e.op == "load"]
    dots = [(e, d.rows | d.cols | d.batch) for e, d in shape.dots.items()]
    return KernelFacts(
        shape.kind, shape.m, shape.n, prod(a.size for a in shape.batch), bool(rows), bool(cols),
        tuple(a.size for a in shape.inner), 0 if main is None else numbers[main], bool(tops),
        sum(prod(padded(a.size) for a in e.axes - {*kernel.axes}) for e in inside),
        sum(prod(padded(a.size) for a in e.axes - {*kernel.axes}) for e in added)
        or max(1, sum(e.axis in shape.outer for e in shape.dots)),
        not any(b.dtype in dtypes.HALVES for b in kernel.buffers.values()),
        (shape.kind == "attention" or (shape.kind == "contraction" and shape.m > 16)) and any(map(_boxed, loads)),
        tuple(
            Load(bool(e.axes & rows), bool(e.axes & cols), tuple(i for a, i in numbers.items() if a in e.axes),
                 dtypes.itemsize(e.value[3]))
            for e in loads
        ),
        tuple((e.axis.size * prod(a.size for a in own), bool(own & rows), bool(own & cols)) for e, own in dots),
        frozenset(
            d.by for e in loads for d in e.value[1].divisions() for a in numbers if d.index == index(a)
        ),
        splits and not (inside or added),
        bool(rows and cols) and any(
            stride_in_runs(at, shape.rows[-1], 1) == 1
            for at in (*(s.at for s in kernel.stores), *(e.value[1] for e in loads if e.axes - rows))
        ),
        max((padded(len(r.stores)) for r in rows_of(kernel)), default=1) if shape.kind in ("pointwise", "rows") else 1,
        kernel.held, kernel.work > HEAVY,
    )  # fmt: skip


def _inside(shape: Shape, tops: Sequence[Axis]) -> list[Expr]:
    """Inner products of back-to-back GEMMs whose results are held whole, longest K first.

    Empty if an outer product has the longer K, if an inner product varies along columns, or if there is only one row.
    """
    if shape.kind != "contraction" or not shape.rows:
        return []
    found = sorted((e for e in shape.dots if e.axis not in tops), key=lambda e: -e.axis.size)
    if any(e.axes.isdisjoint(shape.rows) or not e.axes.isdisjoint(shape.cols) for e in found):
        return []
    return found if found and found[0].axis.size >= max((a.size for a in tops), default=0) else []


def _added(shape: Shape, tops: Sequence[Axis]) -> list[Expr]:
    """Matrix-vector products inside a weighted sum over them (mixture of experts with one token), longest K first.

    Empty if there are none.
    """
    if shape.kind != "contraction" or shape.rows:
        return []
    found = sorted((e for e in shape.dots if e.axis not in tops), key=lambda e: -e.axis.size)
    return [] if any(e.axes.isdisjoint(shape.cols) for e in found) else found


def _boxed(load: Expr) -> bool:
    """Whether a load is 16-bit and TMA can load its tiles, along the two axes with the smallest strides."""
    if load.args or load.value[3] not in dtypes.HALVES:
        return False
    fast, *slow = sorted(dict(load.value[1].terms).values()) or [0]
    return describable((*slow[:1], fast), dtypes.itemsize(load.value[3]))


__all__ = ["FEW", "KernelFacts", "Load", "facts_of"]
