"""Assigns roles to the axes of kernels: which are rows and columns of a program's tile, which ones a program iterates
over, and which ones take one value per program (batch axes).

These roles of a kernel's axes (`Shape`) follow from its expressions; tile sizes (`Tiling`) come from the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import gcd, prod
from typing import Any

from .expr import Expr, factors, walk
from .index import WINDOW, Axis, index
from .kernel import Kernel
from .unfusable import Unfusable

VECTOR = 8  # maximum elements of a vector load


@dataclass(frozen=True)
class Dot:
    """A matrix product: a sum of products that tensor cores can compute. `left`, `right`: the factors of its operands
    (sides), the one with the result's rows and the one with its columns; they are contracted along the reduction's
    axis. `rows`, `cols` and `batch` are the axes of the result."""

    left: tuple[Expr, ...]
    right: tuple[Expr, ...]
    rows: frozenset[Axis]
    cols: frozenset[Axis]
    batch: frozenset[Axis]


def is_window(axis: Axis) -> bool:
    """Whether an axis runs over the elements of a window (pooling, depthwise convolution)."""
    return axis.name.startswith(WINDOW)


def as_dot(e: Expr) -> Dot | None:
    """The two operands (sides) of `e` if it is a matrix product, which is a sum of products of two parts; None for
    other expressions.

    The two parts share only batch axes and the reduction axis. The part with the later parallel axis is the right side
    (columns). But a part that contains a product is always the left side, with the rows of that product, whatever the
    result's memory order (such as channels before pixels).
    """
    if e.op != "reduce" or e.value[0] != "sum" or e.kind != "float" or is_window(e.axis):
        return None
    over, under = factors(e.args[0])
    if under:
        return None
    along = [f for f in over if e.axis in f.axes]
    full = {f.axes - {e.axis} for f in along if f.axes - {e.axis}}
    if not full or len(along) < 2:
        return None
    widest = {axes for axes in full if not any(axes < other for other in full)}  # a mask may lack shared axes
    found = (
        _sides(e, over, frozenset.intersection(*sets) if len(sets) > 1 else frozenset()) for sets in (full, widest)
    )
    return next((dot for dot in found if dot is not None), None)


def _sides(e: Expr, over: Sequence[Expr], common: frozenset[Axis]) -> Dot | None:
    """The factors `over` of a sum, divided into two sides that share only the `common` axes; None if that is
    impossible."""
    parts: list[tuple[set[Axis], list[Expr]]] = []
    loose: list[Expr] = []
    for f in over:
        left = set(f.axes - {e.axis} - common)
        if not left:
            loose.append(f)
            continue
        touching = [p for p in parts if p[0] & left]
        parts = [p for p in parts if not p[0] & left]
        parts.append((left.union(*(p[0] for p in touching)), [*(x for p in touching for x in p[1]), f]))
    if len(parts) == 1 and loose:  # matrix-vector product
        return Dot(tuple(loose), tuple(parts[0][1]), frozenset(), frozenset(parts[0][0]), common)
    if len(parts) != 2:
        return None
    if any(all(e.axis not in f.axes for f in p[1]) for p in parts):
        return None
    a, b = sorted(parts, key=lambda p: (not _computed(p[1]), _rank(p[0])))
    return Dot((*a[1], *loose), tuple(b[1]), frozenset(a[0]), frozenset(b[0]), common)


def _computed(side: Sequence[Expr]) -> bool:
    """Whether a side contains a matrix product."""
    return any(e.op == "reduce" and as_dot(e) is not None for e in walk(side))


def _rank(axes: Iterable[Axis]) -> tuple[bool, str]:
    """(whether the last axis by name is a reduction axis, its name): sort key of the sides of a product."""
    names = sorted(a.name for a in axes)
    return names[-1].startswith("r"), names[-1]


# longest axis over which a second product follows the first one instead of being a loop around it; windows up to this
# length are unrolled
SHORT = 64
MIDDLE = 256  # longest axis between two products that is held whole while the first product's axis is iterated over


@dataclass(frozen=True)
class Shape:
    """Roles of a kernel's axes in tiles: rows, columns, batch and reduction axes.

    `rows` and `cols` are tiled by programs; `batch` axes take one value per program. `joined` maps a reduction axis to
    the column axis whose elements it runs over; `inner` lists the reduction axes in the order of tile dimensions;
    `outer` lists the reduction axes that are not nested in another reduction; `dots` has the sides of each reduction
    that is a matrix product. `walks`: whether a program processes columns tile by tile, after its reductions.
    """

    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    joined: Mapping[Axis, Axis]
    inner: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    dots: Mapping[Expr, Dot] = field(repr=False, default_factory=dict)
    walks: bool = False  # columns are processed after reductions in the same program, tile by tile

    @cached_property
    def kind(self) -> str:
        """Kernel class: pointwise, rows, windows, contraction or attention.

        windows: all reductions are over short windows. attention: a product around another product.
        """
        if self.dots:
            return "attention" if any(map(self._around, self.dots)) else "contraction"
        if self.inner and all(is_window(a) and a.size <= SHORT for a in self.inner):
            return "windows"
        return "rows" if self.inner else "pointwise"

    def _around(self, e: Expr) -> bool:
        """Whether the loop of product `e` computes a tile of another product's results in each iteration (attention).

        False if the axis between the two products is short, or shorter than the inner product's: then the inner
        product's results are held whole, and the two loops follow each other.
        """
        inside = [x for x in walk(e.args) if x in self.dots]
        if not inside or any(x.value == ("max", e.axis) for x in walk(e.args)):
            return bool(inside)
        return e.axis.size > SHORT and not e.axis.size <= min(MIDDLE, max(x.axis.size for x in inside) - 1)

    @cached_property
    def m(self) -> int:
        """Number of rows of the kernel's output: product of the sizes of its row axes."""
        return prod(a.size for a in self.rows)

    @cached_property
    def n(self) -> int:
        """Number of columns of the kernel's output: product of the sizes of its column axes."""
        return prod(a.size for a in self.cols)


def shape_of(kernel: Kernel, *, products: bool = True) -> Shape:
    """Derive the roles of the axes of `kernel`: rows, columns, batch and reduction axes.

    Raises Unfusable if two-dimensional tiles do not suffice. `products`: whether sums of products count as matrix
    products.
    """
    dots = {e: d for e in kernel.reductions if (d := as_dot(e)) is not None} if products else {}
    outer = _outer(kernel)
    top = [d for e, d in dots.items() if e.axis in outer and d.rows | d.cols <= set(kernel.axes)]
    ordered = [a for s in kernel.stores for a in _order(s.value, dots)]
    held = sorted({a for s in kernel.stores for a in s.value.axes} - set(kernel.axes), key=lambda a: a.name)
    inner = tuple(dict.fromkeys([*ordered, *held]))
    if top:
        rows, cols = (frozenset().union(*(getattr(d, side) for d in top)) for side in ("rows", "cols"))
        if rows & cols:
            raise Unfusable("an axis is a row axis of one matrix product and a column axis of another")
        steady = {a for side in (rows, cols) for a in _outer_as_batch(kernel, _kept(kernel, side), outer)}
        tiled = (rows | cols) - steady
        rest = [a for a in kernel.axes if a not in tiled]
        return Shape(_kept(kernel, rows & tiled), _kept(kernel, cols & tiled), tuple(rest), {}, inner, outer, dots)
    if dots and any(not d.rows <= set(kernel.axes) and not d.cols <= set(kernel.axes) for d in dots.values()):
        raise Unfusable("a matrix product inside a reduction, without output rows or columns of its own")
    joined = _joined(kernel)
    cols = frozenset(joined.values())
    batch = tuple(a for a in kernel.axes if a.name == "part")
    if len(cols) > 1:
        raise Unfusable("row reductions over two different column axes")
    if not kernel.reductions and kernel.axes:
        cols = frozenset(kernel.axes[-1:])
    elif not joined and not dots:  # axes that no reduction depends on are iterated over after them
        needed = frozenset().union(*(e.axes for e in kernel.reductions))
        cols = frozenset(kernel.axes).difference(needed, batch)
    rows_ = [a for a in kernel.axes if a not in cols and a not in batch]
    if not kernel.reductions and not batch:
        batch = _rows_as_batch(kernel, tuple(rows_))
        rows_ = [a for a in rows_ if a not in batch]
    walks = bool(kernel.reductions and cols)
    return Shape(tuple(rows_), _kept(kernel, cols), batch, joined, inner, outer, dots, walks)


MANY = 1024  # least elements of a tiled axis group: tiles waste little at its end


def _outer_as_batch(kernel: Kernel, side: tuple[Axis, ...], outer: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The outermost axis of the rows or columns as a batch axis, if a reduction loop has a load that varies along this
    axis of them only (such as per-image scales), so that a program loads one value for its whole tile; else ()."""
    first, others = side[:1], {*side[1:]}
    size = prod(a.size for a in others)
    if not others or (size % 128 and size < MANY):
        return ()
    loads = (e.axes for e in kernel.exprs if e.op == "load" and not e.axes.isdisjoint(outer))
    return first if any(axes >= {*first} and axes.isdisjoint(others) for axes in loads) else ()


def _rows_as_batch(kernel: Kernel, rows: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The outermost row axis as a batch axis, if a load varies along this row axis only (such as an image's
    statistics), so that a program loads one value for all its rows; else ()."""
    first, others = rows[:1], {*rows[1:]}
    if not others or prod(a.size for a in others) < MANY:
        return ()
    loads = (e.axes for e in kernel.exprs if e.op == "load" and not e.args)
    return first if any(axes >= {*first} and axes.isdisjoint(others) for axes in loads) else ()


def _kept(kernel: Kernel, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Those of the kernel's axes that are in `axes`, in kernel order."""
    chosen = set(axes)
    return tuple(a for a in kernel.axes if a in chosen)


def _outer(kernel: Kernel) -> tuple[Axis, ...]:
    """Axes of the reductions whose loops are not nested in the loop of another reduction."""
    found: dict[Axis, None] = {}
    stack = [s.value for s in kernel.stores]
    seen = set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.op == "reduce":
            found[e.axis] = None
            inner = [x for x in walk(e.args) if x.op == "reduce" and e.axis not in x.axes]
            stack += inner  # a reduction that the body reads, but that is not nested in it
        else:
            stack += e.args
    return tuple(found)


def _order(e: Expr, dots: Mapping[Expr, Dot], seen: set[Expr] | None = None) -> list[Axis]:
    """Reduction axes in the order of tile dimensions: for a product, first those of its left side, then its own axis,
    then those of its right side."""
    seen = set() if seen is None else seen
    if e in seen:
        return []
    seen.add(e)
    if e.op != "reduce":
        return [x for a in e.args for x in _order(a, dots, seen)]
    dot = dots.get(e)
    if dot is None:
        return [*(x for a in e.args for x in _order(a, dots, seen)), e.axis]
    left = [x for f in dot.left for x in _order(f, dots, seen)]
    return [*left, e.axis, *(x for f in dot.right for x in _order(f, dots, seen))]


def _joined(kernel: Kernel) -> dict[Axis, Axis]:
    """Reduction axis -> parallel axis of equal size over whose elements it runs: some load becomes another load of the
    kernel if the parallel axis replaces the reduction axis."""
    loads = {e for e in kernel.exprs if e.op == "load"}
    found: dict[Axis, Axis] = {}
    for e in kernel.reductions:
        if e.axis in found or is_window(e.axis):
            continue
        own = [x for x in walk(e.args) if x.op == "load" and e.axis in x.axes]
        for axis in reversed(kernel.axes):
            if axis.size == e.axis.size and axis not in found.values():
                moved = kernel.builder.substituted(own, {e.axis: index(axis)})
                if any(m in loads for m in moved):
                    found[e.axis] = axis
                    break
    return found


def repeated(kernel: Kernel, shape: Shape, m: int, n: int) -> float:
    """Number of operations of `kernel` that are computed more than once because its results are computed in tiles of
    `m` rows and `n` columns. `shape`: roles of its axes (row, column, batch, reduction).

    Reductions independent of the columns are computed once per column tile; reductions that depend on some of a tile's
    axes, once per element.
    """
    total = 0.0
    for e in kernel.reductions:
        times = 1.0
        for group, size, tile in ((shape.rows, shape.m, m), (() if shape.walks else shape.cols, shape.n, n)):
            own = prod(a.size for a in group if a in e.axes)
            times *= size / own if own > 1 else -(-size // tile) if group else 1
        total += 2 * (times - 1) * e.axis.size * prod(a.size for a in e.axes)
    return total


@dataclass(frozen=True)
class Tiling:
    """Tile sizes of rows (`m`), columns (`n`) and each reduction axis (`k`), and launch options.

    A tile size that is the padded extent of an axis covers the axis whole. `warps`, `stages`: warps of a program and
    pipeline depth; `group`: rows of tiles rasterized together for L2 reuse; `options`: other schedule parameters by
    name.
    """

    m: int
    n: int
    k: Mapping[Axis, int]
    warps: int = 4
    stages: int = 3
    group: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def divisors(size: int, wanted: Iterable[int]) -> list[int]:
    """Divisors of `size` near the `wanted` numbers, as numbers of parts of an axis.

    For each wanted number n, the largest divisor in (n / 2, n] such that `size` divided by it keeps the vector
    alignment of `size`. Numbers without such a divisor are left out.
    """
    found: dict[int, None] = {}
    whole = gcd(size, VECTOR)
    for count in wanted:
        fits = (n for n in range(count, count // 2, -1) if size % n == 0 and (n == count or size // n % whole == 0))
        found |= dict.fromkeys(islice(fits, 1))
    return list(found)


def padded(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()
