"""Legality of Triton schedules: tile sizes within the axes, register and shared-memory limits.

A schedule maps names to small integers: rows `m` and columns `n` of a program's tile; `k0`, `k1`, … tile size of each
reduction axis in the order of `Shape.inner`; `warps`; `stages` (software pipelining); `group` (rows of tiles rasterized
together for L2 reuse); `split` (split-K factor over programs; with `join` the last program combines the parts, without
it a second kernel does); `precision` of float32 products; `boxes` (loads use TMA tensor maps); `inside` (with boxes:
loop-invariant loads are issued inside the loop, after its prologue copies); `walk` (one program iterates over all
columns of the second product of a chain); `early` (programmatic dependent launch); `beside` (interleaved results are
joined in registers and written at once).

This is the only module that decides legality: schedules/candidates.py ranks legal schedules, schedule_search.py searches among
them.
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

Schedule = dict[str, int]
Numbers = Mapping[str, int]

TILE = 1 << 15  # elements of the largest tile in registers
WHOLE = 1 << 14  # longest row that a tile holds whole
WARPS, STAGES, GROUP = 16, 8, 32  # maxima: warps of a program, pipeline stages, rows of tiles in a rasterization group
EACH = 256  # maximum accumulator elements per thread
FEW = 32  # maximum rows of a skinny GEMM, which is bound by reading its right side once
LITTLE = 16  # maximum rows of a tile that can be read again in every loop iteration at no cost
PARTS = (2, 3, 4, 8, 16, 32, 64)
LEAST = 64  # least elements of a part of a split reduction
ABREAST = 64  # maximum elements per thread of interleaved results
HEAVY = 64  # operations per element beyond which small programs may pay
OPTIONAL = {"group", "split", "join", "precision", "boxes", "inside", "walk", "early", "beside"}
COUNTS = {
    "stages",
    "split",
    "join",
    "precision",
    "boxes",
    "inside",
    "walk",
    "early",
    "beside",
}  # all others are powers of two


def each(elements: float, schedule: Numbers) -> float:
    """Elements per thread of a tile of `elements`."""
    return elements / (32 * schedule["warps"])


def within(value: int, size: int, least: int = 1) -> bool:
    """Whether a tile size is at least `least` and at most the padded axis (or `least`, if larger)."""
    return least <= value <= max(padded(size), least)


@dataclass(frozen=True)
class Load:
    """Footprint of a load in a tile: whether it varies along rows and columns, the indices of its reduction axes, bytes
    per element."""

    rows: bool
    cols: bool
    inner: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True)
class Facts:
    """The properties of a kernel that its schedules depend on. Kernels with equal facts share one ranking.

    `m`, `n`, `batch`: sizes; `rows`, `cols`: whether the kernel has such axes. `inner`: sizes of the reduction axes;
    `main`: index of the longest axis of a product outside all other reductions (K); `walked`: whether there is such a
    product. `middle`: for back-to-back products (`main` is then K of the inner one), elements of the intermediate
    result per row, else 0. `sums`: number of accumulators; `single`: no 16-bit operands; `boxed`: TMA can load tiles
    (ir/tensor_maps.py). `dots`: (work, varies along rows, varies along columns) of each product. `periods`: divisors in
    index expressions of reduction axes. `splits`: whether the longest reduction may be split. `turned`: whether large
    operands or results are contiguous along rows instead of columns. `beside`: maximum number of interleaved results
    per element (emit/row_stores.py), 1 without any. `held`: live values per element (register pressure). `heavy`: whether
    there are more than `HEAVY` operations per element.
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
    def rest(self) -> Schedule:
        """Tile sizes of attention's reduction axes except that of its loop: whole."""
        return {f"k{i}": max(16, padded(size)) for i, size in enumerate(self.inner) if i != self.main}

    @cached_property
    def head(self) -> int:
        """The widest side of attention's tiles, except along the loop."""
        return max([self.columns, *self.rest.values()])

    def programs(self, s: Numbers) -> int:
        """Number of programs without split-K."""
        return -(-self.m // s["m"]) * -(-self.n // s["n"]) * self.batch

    def depths(self, k: int) -> Schedule:
        """Tile sizes of a product's reduction axes: `k` for the main one, short others whole."""
        return {
            f"k{i}": min(k, padded(size)) if i == self.main or size > 256 else max(16 if self.rows else 1, padded(size))
            for i, size in enumerate(self.inner)
        }

    def staged(self, s: Numbers) -> int:
        """Bytes of shared memory per pipeline stage, of the loop that needs most."""
        tiles = self._tiles(s)
        walked = [i for i, size in enumerate(self.inner) if s[f"k{i}"] < size]
        return max((sum(nbytes for nbytes, x in tiles if i in x.inner) for i in walked), default=0)

    def unstaged(self, s: Numbers) -> int:
        """Bytes of shared memory of product operands outside of loops, all live at once."""
        whole = {i for i, size in enumerate(self.inner) if s[f"k{i}"] >= size}
        return sum(nbytes for nbytes, x in self._tiles(s) if x.inner and whole.issuperset(x.inner))

    def _tiles(self, s: Numbers) -> list[tuple[int, Load]]:
        """(bytes of the tile, load) for each load."""
        return [
            (prod(s[f"k{i}"] for i in x.inner) * (s["m"] if x.rows else 1) * (s["n"] if x.cols else 1) * x.itemsize, x)
            for x in self.loads
        ]

    def parts(self, s: Numbers) -> Iterator[int]:
        """Legal split factors, 1 (no split) first: at most 8 programs per SM in total, and each part at least one tile
        long."""
        yield 1
        rows = self.kind == "rows" and not self.cols
        if not self.splits or not (rows or self.product):
            return
        k, programs = s[f"k{self.main}"], self.programs(s) if self.product else -(-self.m // s["m"])
        if rows and k >= padded(self.size):
            return
        for count in divisors(self.size, PARTS) if rows else PARTS:
            fine = (
                self.size % count == 0
                and self.size // count >= LEAST
                and programs * count <= 8 * target().multiprocessors
            )
            if fine and (rows or self.size // count >= k):
                yield count


def facts_of(kernel: Kernel, shape: Shape, splits: bool = True) -> Facts:
    """The facts of a kernel. `splits`: whether its longest reduction may be split."""
    tops = [a for a in shape.outer if any(e.axis == a for e in shape.dots)]
    main = max(tops, key=lambda a: a.size) if tops else shape.inner[-1] if shape.inner else None
    inside, added = _inside(shape, tops), _added(shape, tops)
    main = (inside or added)[0].axis if inside or added else main
    rows, cols, numbers = {*shape.rows}, {*shape.cols}, {a: i for i, a in enumerate(shape.inner)}
    loads = [e for e in kernel.exprs if e.op == "load"]
    dots = [(e, d.rows | d.cols | d.batch) for e, d in shape.dots.items()]
    return Facts(
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
    """Matrix-vector products that are added with weights (mixture of experts with one token), longest K first; else
    empty."""
    if shape.kind != "contraction" or shape.rows:
        return []
    found = sorted((e for e in shape.dots if e.axis not in tops), key=lambda e: -e.axis.size)
    return [] if any(e.axes.isdisjoint(shape.cols) for e in found) else found


def _boxed(load: Expr) -> bool:
    """Whether TMA can load boxes of a 16-bit load, along its two axes with the smallest strides."""
    if load.args or load.value[3] not in dtypes.HALVES:
        return False
    fast, *slow = sorted(dict(load.value[1].terms).values()) or [0]
    return describable((*slow[:1], fast), dtypes.itemsize(load.value[3]))


def legal(facts: Facts, schedule: Numbers) -> bool:
    """Whether a schedule is legal: exactly the kernel's parameters, in range, and tiles that fit."""
    wanted = {"m", "n", "warps", "stages", *(f"k{i}" for i in range(len(facts.inner)))}
    if not wanted <= set(schedule) <= wanted | OPTIONAL or ("boxes" in schedule and not facts.boxed):
        return False
    if ("inside" in schedule and facts.kind != "attention") or ("walk" in schedule and not facts.middle):
        return False
    if "beside" in schedule and (
        facts.beside == 1 or each(schedule["m"] * schedule["n"] * facts.beside, schedule) > ABREAST
    ):
        return False
    sizes = [v for name, v in schedule.items() if name not in COUNTS]
    if any(v < 1 or v & (v - 1) for v in sizes) or not 1 <= schedule["stages"] <= STAGES or schedule["warps"] > WARPS:
        return False
    parts = schedule.get("split", 1)
    if parts == 1 and "join" in schedule:
        return False
    return tiles_fit(facts, schedule) and parts in facts.parts(schedule)


def tiles_fit(facts: Facts, schedule: Numbers) -> bool:
    """Whether the tiles of a schedule with valid parameters fit: the part of `legal` that depends on the kernel's
    kind."""
    return _KINDS[facts.kind](facts, schedule)


def _pointwise(facts: Facts, s: Numbers) -> bool:
    """Legality of elementwise kernels."""
    size = s["m"] * s["n"]
    fine = within(s["n"], facts.n, min(32, padded(facts.n))) and (
        within(s["m"], facts.m) if facts.rows else s["m"] == 1
    )
    alone = not OPTIONAL & s.keys() - {"early", "beside"} and s["stages"] == 1
    least = 32 * s["warps"] if facts.heavy else 256
    return fine and alone and (least <= size <= TILE // 2 or (s["n"] >= facts.n and s["m"] >= facts.m and size < 256)) \
        and each(size, s) <= 64  # fmt: skip


def _windows(facts: Facts, s: Numbers) -> bool:
    """Legality of short-window reductions."""
    ones = all(v == 1 for name, v in s.items() if name[0] == "k" or name in ("n", "stages"))
    return ones and not {"split", "group"} & s.keys() and within(s["m"], facts.m, min(64, padded(facts.m))) \
        and (1 <= each(s["m"], s) <= 32 or s["m"] >= facts.m)  # fmt: skip


def _rows(facts: Facts, s: Numbers) -> bool:
    """Legality of row reductions."""
    depths = {v for name, v in s.items() if name[0] == "k"}
    if len(depths) > 1 or "group" in s or s["stages"] != 2:
        return False
    k = depths.pop() if depths else 1
    whole = k >= padded(facts.size)
    if not within(k, facts.size) or (whole and k > WHOLE) or s["n"] != (min(k, padded(facts.n)) if facts.cols else 1):
        return False
    rows = within(s["m"], facts.m) if facts.rows else s["m"] == 1
    held = each(s["m"] * k, s)
    return rows and s["m"] * k <= TILE and (1 <= held <= 128 or (held < 1 and s["warps"] == 1)) \
        and (whole or s["m"] * k >= 256)  # fmt: skip


def _contraction(facts: Facts, s: Numbers) -> bool:
    """Legality of GEMM, skinny GEMM and GEMV."""
    k = s[f"k{facts.main}"]
    if facts.depths(k).items() - s.items() or (s.get("split", 1) > 1 and not s.get("join")):
        return False
    if not within(k, facts.size, min(16, padded(facts.size)) if facts.rows else 1):
        return False
    if not facts.rows:  # GEMV: no tensor cores
        return s["m"] == 1 and s["stages"] == 3 and "group" not in s and within(s["n"], facts.n, 4) \
            and 4 <= each(s["n"] * k * facts.sums, s) <= 128  # fmt: skip
    size, right = s["m"] * s["n"] * facts.sums, s["n"] * k * facts.sums
    if facts.middle:
        return _behind(facts, s)
    if facts.few and (s["m"] != padded(max(facts.m, 16)) or "group" in s or right > TILE):
        return False
    if (
        facts.few and (s["stages"] - 1) * facts.staged(s) > target().shared_per_block
    ):  # another loop inside the product's
        return False
    staged = (s["m"] * k + right) * facts.width if facts.few else facts.staged(s)
    tiles = within(s["m"], facts.m, 16) and within(s["n"], facts.n, 16) and s["n"] <= 256 and s.get("group", 1) <= GROUP
    return tiles and s["stages"] * staged <= target().shared_per_block and size <= (TILE if facts.single else 2 * TILE) \
        and each(size, s) <= EACH and 2 <= s["warps"] <= 8  # fmt: skip


def _behind(facts: Facts, s: Numbers) -> bool:
    """Legality of back-to-back GEMMs whose intermediate result stays in registers."""
    held, after = s["m"] * (s["n"] * facts.sums + facts.middle), s["n"] * facts.middle * facts.width
    if "walk" in s and ("group" in s or s["n"] >= facts.n):
        return False
    shared = max(s["stages"] * facts.staged(s), after * (s["stages"] if "walk" in s else 1), facts.unstaged(s))
    tiles = within(s["m"], facts.m, 16) and within(s["n"], facts.n, 16) and s["n"] <= 256 and s.get("group", 1) <= GROUP
    return (
        tiles
        and shared <= target().shared_per_block
        and each(held, s) <= EACH
        and s["m"] * s["n"] <= TILE
        and 2 <= s["warps"] <= 8
    )


def _attention(facts: Facts, s: Numbers) -> bool:
    """Legality of attention."""
    k = s[f"k{facts.main}"]
    if facts.rest.items() - s.items() or s["n"] != facts.columns or "group" in s:
        return False
    if "inside" in s and ("boxes" not in s or s["m"] > LITTLE or k * s.get("split", 1) >= facts.size):
        return False
    if not within(k, facts.size, 16) or k > 256 or not (within(s["m"], facts.m, 16) if facts.rows else s["m"] == 1):
        return False
    shared = (s["m"] + s["stages"] * 2 * k) * facts.head * facts.width
    return shared <= target().shared_per_block and each(s["m"] * s["n"], s) <= 128 and 2 <= s["warps"] <= 8


_KINDS: dict[str, Callable[[Facts, Numbers], bool]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
