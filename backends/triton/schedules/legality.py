"""Legality of Triton schedules (`TileSchedule`): tile sizes within the axes, register and shared-memory limits.

This is the only module that decides legality: schedules/candidates.py ranks legal schedules, schedule_search.py searches
among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ....egraph.ir import dtypes
from ...cuda.emit.thread_layout import slope
from ...ir.index import Axis, index
from ...ir.kernel import Expr, Kernel
from ...ir.tensor_maps import describable
from ...ir.tiling import Shape, divisors, padded
from ...machine import target
from ..emit.row_stores import rows as rows_of
from .parameters import TileSchedule

TILE = 1 << 15  # elements of the largest tile in registers
WHOLE = 1 << 14  # longest row that a tile holds whole
EACH = 256  # maximum accumulator elements per thread
FEW = 32  # maximum rows of a skinny GEMM, which is bound by reading its right side once
LITTLE = 16  # maximum rows of a tile that can be read again in every loop iteration at no cost
PARTS = (2, 3, 4, 8, 16, 32, 64)
LEAST, LEAST_POSITIONS = 64, 16  # least elements of a part of a split reduction, and of attention's positions
ABREAST = 64  # maximum elements per thread of interleaved results
HEAVY = 64  # operations per element beyond which small programs may pay


def each(elements: float, warps: int) -> float:
    """Elements per thread of a tile of `elements` elements in a program of `warps` warps."""
    return elements / (32 * warps)


def within(value: int, size: int, least: int = 1) -> bool:
    """Whether a tile size is at least `least` and at most the padded axis (or `least`, if larger)."""
    return least <= value <= max(padded(size), least)


@dataclass(frozen=True)
class Load:
    """Footprint of a load in a tile: whether it varies along rows and along columns, the indices (in `Shape.inner`) of
    the reduction axes that it varies along, bytes per element."""

    rows: bool
    cols: bool
    inner: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True)
class KernelFacts:
    """Properties of a kernel that its schedules depend on. Kernels with equal facts share one ranking.

    `m`, `n`, `batch`: sizes; `rows`, `cols`: whether the kernel has such axes. `inner`: sizes of the reduction axes;
    `main`: index in `inner` of K, the longest reduction axis of a product that is in no other reduction; `walked`:
    whether there is such a product. `middle`: elements per row of the intermediate result of back-to-back products
    (`main` is then K of the inner product), else 0. `sums`: number of accumulators; `single`: no 16-bit operands;
    `boxed`: TMA can load tiles (ir/tensor_maps.py). `dots`: (work, varies along rows, varies along columns) of each
    product. `periods`: divisors in index expressions of reduction axes. `splits`: whether the longest reduction may be
    split. `turned`: whether large operands or results are contiguous along rows instead of columns. `beside`: maximum
    number of interleaved results per element (emit/row_stores.py), 1 without any. `held`: live values per element
    (register pressure). `heavy`: whether there are more than `HEAVY` operations per element.
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
    turned: bool
    beside: int
    held: int
    heavy: bool

    @property
    def width(self) -> int:
        """Bytes of the narrowest float in memory."""
        return 4 if self.single else 2

    @cached_property
    def size(self) -> int:
        """Length of the reduction that may be split: K of a product, else the longest axis."""
        return self.inner[self.main] if self.product else max(self.inner, default=1)

    @property
    def product(self) -> bool:
        """Whether there are matrix products."""
        return self.kind in ("contraction", "attention")

    @property
    def few(self) -> bool:
        """Whether the product is a skinny GEMM, bound by reading its right side."""
        return self.m <= FEW

    @cached_property
    def columns(self) -> int:
        """Column tile of attention: all columns if at most 512, else 128."""
        return max(16, padded(self.n)) if self.n <= 512 else 128

    @cached_property
    def rest(self) -> Mapping[int, int]:
        """Tile sizes of attention's reduction axes besides the looped one, by index in `inner`: the whole padded axes."""
        return {i: max(16, padded(size)) for i, size in enumerate(self.inner) if i != self.main}

    @cached_property
    def head(self) -> int:
        """Width of the widest side of attention's tiles, except along the loop."""
        return max([self.columns, *self.rest.values()])

    def programs(self, s: TileSchedule) -> int:
        """Number of programs without split-K."""
        return -(-self.m // s.m) * -(-self.n // s.n) * self.batch

    def depths(self, k: int) -> tuple[int, ...]:
        """Tile size of each reduction axis of a product: `k` for the main axis, the whole axis for the short ones."""
        return tuple(
            min(k, padded(size)) if i == self.main or size > 256 else max(16 if self.rows else 1, padded(size))
            for i, size in enumerate(self.inner)
        )

    def staged(self, s: TileSchedule) -> int:
        """Bytes of shared memory per pipeline stage, of the loop that needs most."""
        tiles = self._tiles(s)
        walked = [i for i, size in enumerate(self.inner) if s.k[i] < size]
        return max((sum(nbytes for nbytes, x in tiles if i in x.inner) for i in walked), default=0)

    def unstaged(self, s: TileSchedule) -> int:
        """Bytes of shared memory of product operands outside of loops, which are all live at once."""
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
        """Whether the kernel is attention with so few rows and positions that parts of `LEAST` positions occupy at most
        a quarter of the multiprocessors."""
        parts = self.batch * self.size // LEAST
        return self.kind == "attention" and self.m <= 16 and 4 * parts <= target().multiprocessors

    def parts(self, s: TileSchedule) -> Iterator[int]:
        """Legal split factors for a schedule, 1 (no split) first.

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
        least = LEAST_POSITIONS if self.short else LEAST
        for count in divisors(self.size, PARTS) if rows else counts:
            fine = (
                self.size % count == 0
                and self.size // count >= least
                and programs * count <= 8 * target().multiprocessors
            )
            if fine and (rows or self.size // count >= k):
                yield count


def facts_of(kernel: Kernel, shape: Shape, splits: bool = True) -> KernelFacts:
    """Properties of a kernel that legality and ranking read. `splits`: whether its longest reduction may be split."""
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
            slope(at, shape.rows[-1], 1) == 1
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


def legal(facts: KernelFacts, s: TileSchedule) -> bool:
    """Whether a schedule is legal: its values are in their domains, it sets only options that apply to the kernel, and its
    tiles and split-K factor suit the kernel's sizes.
    """
    if not s.valid or len(s.k) != len(facts.inner) or (s.boxes and not facts.boxed):
        return False
    if (s.inside and facts.kind != "attention") or (s.walk and not facts.middle) or (s.join and s.split is None):
        return False
    if s.beside and (facts.beside == 1 or each(s.m * s.n * facts.beside, s.warps) > ABREAST):
        return False
    return tiles_fit(facts, s) and s.scratch_parts in facts.parts(s)


def tiles_fit(facts: KernelFacts, s: TileSchedule) -> bool:
    """Whether the tiles of a schedule with valid parameters fit a kernel of this kind (a part of `legal`)."""
    return _KINDS[facts.kind](facts, s)


def _pointwise(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of elementwise kernels."""
    size = s.m * s.n
    fine = within(s.n, facts.n, min(32, padded(facts.n))) and (within(s.m, facts.m) if facts.rows else s.m == 1)
    plain = s.stages == 1 and not (s.group or s.split or s.precision or s.boxes or s.inside or s.walk)
    least = 32 * s.warps if facts.heavy else 256
    return fine and plain and (least <= size <= TILE // 2 or (s.n >= facts.n and s.m >= facts.m and size < 256)) \
        and each(size, s.warps) <= 64  # fmt: skip


def _windows(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of short-window reductions."""
    ones = all(v == 1 for v in (*s.k, s.n, s.stages))
    return ones and s.split is None and s.group is None and within(s.m, facts.m, min(64, padded(facts.m))) \
        and (1 <= each(s.m, s.warps) <= 32 or s.m >= facts.m)  # fmt: skip


def _rows(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of row reductions."""
    depths = {*s.k}
    if len(depths) > 1 or s.group is not None or s.stages != 2:
        return False
    k = depths.pop() if depths else 1
    whole = k >= padded(facts.size)
    if not within(k, facts.size) or (whole and k > WHOLE) or s.n != (min(k, padded(facts.n)) if facts.cols else 1):
        return False
    rows = within(s.m, facts.m) if facts.rows else s.m == 1
    held = each(s.m * k, s.warps)
    return rows and s.m * k <= TILE and (1 <= held <= 128 or (held < 1 and s.warps == 1)) \
        and (whole or s.m * k >= 256)  # fmt: skip


def _contraction(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of GEMM, skinny GEMM and GEMV."""
    k = s.k[facts.main]
    if facts.depths(k) != s.k or (s.scratch_parts > 1 and not s.join):
        return False
    if not within(k, facts.size, min(16, padded(facts.size)) if facts.rows else 1):
        return False
    if not facts.rows:  # GEMV: no tensor cores
        return s.m == 1 and s.stages == 3 and s.group is None and within(s.n, facts.n, 4) \
            and 4 <= each(s.n * k * facts.sums, s.warps) <= 128  # fmt: skip
    size, right = s.m * s.n * facts.sums, s.n * k * facts.sums
    if facts.middle:
        return _behind(facts, s)
    if facts.few and (s.m != padded(max(facts.m, 16)) or s.group is not None or right > TILE):
        return False
    if facts.few and (s.stages - 1) * facts.staged(s) > target().shared_per_block:  # another loop inside the product's
        return False
    staged = (s.m * k + right) * facts.width if facts.few else facts.staged(s)
    tiles = within(s.m, facts.m, 16) and within(s.n, facts.n, 16) and s.n <= 256
    return tiles and s.stages * staged <= target().shared_per_block and size <= (TILE if facts.single else 2 * TILE) \
        and each(size, s.warps) <= EACH and 2 <= s.warps <= 8  # fmt: skip


def _behind(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of back-to-back GEMMs whose intermediate result stays in registers."""
    held, after = s.m * (s.n * facts.sums + facts.middle), s.n * facts.middle * facts.width
    if s.walk and (s.group is not None or s.n >= facts.n):
        return False
    shared = max(s.stages * facts.staged(s), after * (s.stages if s.walk else 1), facts.unstaged(s))
    tiles = within(s.m, facts.m, 16) and within(s.n, facts.n, 16) and s.n <= 256
    return (
        tiles
        and shared <= target().shared_per_block
        and each(held, s.warps) <= EACH
        and s.m * s.n <= TILE
        and 2 <= s.warps <= 8
    )


def _attention(facts: KernelFacts, s: TileSchedule) -> bool:
    """Legality of attention."""
    k = s.k[facts.main]
    if any(s.k[i] != size for i, size in facts.rest.items()) or s.n != facts.columns or s.group is not None:
        return False
    if s.inside and (not s.boxes or s.m > LITTLE or k * s.scratch_parts >= facts.size):
        return False
    if not within(k, facts.size, 16) or k > 256 or not (within(s.m, facts.m, 16) if facts.rows else s.m == 1):
        return False
    shared = (s.m + s.stages * 2 * k) * facts.head * facts.width
    return shared <= target().shared_per_block and each(s.m * s.n, s.warps) <= 128 and 2 <= s.warps <= 8


_KINDS: dict[str, Callable[[KernelFacts, TileSchedule], bool]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
