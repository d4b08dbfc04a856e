"""How a kernel is cut into tiles: which axes a program holds as rows and columns, which it walks, which are whole.

The shape of a kernel (`Shape`) follows from its expressions; the numbers (`Tiling`) are the schedule's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import gcd, prod
from typing import Any

from .index import Axis, index
from .kir import WINDOW, Expr, Kernel, Unfusable, factors, walk

VECTOR = 8  # elements that are read at once at most
MULTIPROCESSORS = 132  # of the GPU that schedules are ranked for (an H100 or H200)


@dataclass(frozen=True)
class Dot:
    """A sum of products that a matrix unit can do: two sides, joined along the axis."""

    left: tuple[Expr, ...]
    right: tuple[Expr, ...]
    rows: frozenset[Axis]
    cols: frozenset[Axis]
    batch: frozenset[Axis]


def is_window(axis: Axis) -> bool:
    """Whether an axis runs over the elements of a window (of a pool, a depthwise convolution)."""
    return axis.name.startswith(WINDOW)


def as_dot(e: Expr) -> Dot | None:
    """The two sides of a sum reduction, if its body is a product of two parts that share only batch axes and the axis.
    The side with the later parallel axis is the right one (columns), but for a side that is itself computed by a product: its rows
    are those of that product, whatever way the result lies in memory (channels before pixels)."""
    if e.op != "reduce" or e.value[0] != "sum" or e.kind != "float" or is_window(e.axis):
        return None
    over, under = factors(e.args[0])
    if under:
        return None
    along = [f for f in over if e.axis in f.axes]
    full = {f.axes - {e.axis} for f in along if f.axes - {e.axis}}
    if not full or len(along) < 2:
        return None
    widest = {axes for axes in full if not any(axes < other for other in full)}  # a mask may lack what both sides share
    found = (
        _sides(e, over, frozenset.intersection(*sets) if len(sets) > 1 else frozenset()) for sets in (full, widest)
    )
    return next((dot for dot in found if dot is not None), None)


def _sides(e: Expr, over: Sequence[Expr], common: frozenset[Axis]) -> Dot | None:
    """The two sides of a sum's factors that share these axes alone."""
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
    if len(parts) == 1 and loose:  # a vector times a matrix
        return Dot(tuple(loose), tuple(parts[0][1]), frozenset(), frozenset(parts[0][0]), common)
    if len(parts) != 2:
        return None
    if any(all(e.axis not in f.axes for f in p[1]) for p in parts):
        return None
    a, b = sorted(parts, key=lambda p: (not _computed(p[1]), _rank(p[0])))
    return Dot((*a[1], *loose), tuple(b[1]), frozenset(a[0]), frozenset(b[0]), common)


def _computed(side: Sequence[Expr]) -> bool:
    """Whether a side has a product inside it."""
    return any(e.op == "reduce" and as_dot(e) is not None for e in walk(side))


def _rank(axes: Iterable[Axis]) -> tuple[bool, str]:
    """Order of the sides: parallel axes by place, reduction axes after them."""
    names = sorted(a.name for a in axes)
    return names[-1].startswith("r"), names[-1]


SHORT = 64  # a plain product over an axis that is not longer ends another product, it is no loop around it; a window is unrolled
MIDDLE = 256  # longest axis between two products that is held whole while the first one's is walked


@dataclass(frozen=True)
class Shape:
    """Roles of a kernel's axes. `rows` and `cols` are tiled by programs, `batch` axes take one value in each program;
    `joined` maps a reduction axis to the column axis whose elements it runs over; `inner` lists the reduction axes in the
    order in which tile dimensions are laid out; `outer` are those not inside another reduction."""

    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    joined: Mapping[Axis, Axis]
    inner: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    dots: Mapping[Expr, Dot] = field(repr=False, default_factory=dict)
    walks: bool = False  # columns come after reductions in the same program, tile by tile

    @cached_property
    def kind(self) -> str:
        """pointwise | rows | windows (short ones alone) | contraction | attention (a product inside another one)"""
        if self.dots:
            return "attention" if any(map(self._around, self.dots)) else "contraction"
        if self.inner and all(is_window(a) and a.size <= SHORT for a in self.inner):
            return "windows"
        return "rows" if self.inner else "pointwise"

    def _around(self, e: Expr) -> bool:
        """Whether a product is a loop around another one, of whose results it holds a tile at a time. Where what lies between two
        products is short, or shorter than what the first one sums over, it is held whole: the first is walked, the second
        follows."""
        inside = [x for x in walk(e.args) if x in self.dots]
        if not inside or any(x.value == ("max", e.axis) for x in walk(e.args)):
            return bool(inside)
        return e.axis.size > SHORT and not e.axis.size <= min(MIDDLE, max(x.axis.size for x in inside) - 1)

    @cached_property
    def m(self) -> int:
        """Rows in all."""
        return prod(a.size for a in self.rows)

    @cached_property
    def n(self) -> int:
        """Columns in all."""
        return prod(a.size for a in self.cols)


def shape_of(kernel: Kernel, *, products: bool = True) -> Shape:
    """Roles of the axes; Unfusable where tiles of two dimensions do not suffice. `products`: whether sums of products are
    taken for matrix products."""
    dots = {e: d for e in kernel.reductions if (d := as_dot(e)) is not None} if products else {}
    outer = _outer(kernel)
    top = [d for e, d in dots.items() if e.axis in outer and d.rows | d.cols <= set(kernel.axes)]
    ordered = [a for s in kernel.stores for a in _order(s.value, dots)]
    held = sorted({a for s in kernel.stores for a in s.value.axes} - set(kernel.axes), key=lambda a: a.name)
    inner = tuple(dict.fromkeys([*ordered, *held]))
    if top:
        rows, cols = (frozenset().union(*(getattr(d, side) for d in top)) for side in ("rows", "cols"))
        if rows & cols:
            raise Unfusable("an axis is a row of one product and a column of another")
        steady = {a for side in (rows, cols) for a in _steady(kernel, _kept(kernel, side), outer)}
        tiled = (rows | cols) - steady
        rest = [a for a in kernel.axes if a not in tiled]
        return Shape(_kept(kernel, rows & tiled), _kept(kernel, cols & tiled), tuple(rest), {}, inner, outer, dots)
    if dots and any(not d.rows <= set(kernel.axes) and not d.cols <= set(kernel.axes) for d in dots.values()):
        raise Unfusable("a product inside a reduction without rows of its own")
    joined = _joined(kernel)
    cols = frozenset(joined.values())
    batch = tuple(a for a in kernel.axes if a.name == "part")
    if len(cols) > 1:
        raise Unfusable("reductions over two different column axes")
    if not kernel.reductions and kernel.axes:
        cols = frozenset(kernel.axes[-1:])
    elif not joined and not dots:  # what no reduction depends on is walked after them
        needed = frozenset().union(*(e.axes for e in kernel.reductions))
        cols = frozenset(kernel.axes).difference(needed, batch)
    rows_ = [a for a in kernel.axes if a not in cols and a not in batch]
    if not kernel.reductions and not batch:
        batch = _apart(kernel, tuple(rows_))
        rows_ = [a for a in rows_ if a not in batch]
    walks = bool(kernel.reductions and cols)
    return Shape(tuple(rows_), _kept(kernel, cols), batch, joined, inner, outer, dots, walks)


MANY = 1024  # elements of which tiles waste few at the end


def _steady(kernel: Kernel, side: tuple[Axis, ...], outer: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The outermost axis of a side, if a loop loads what changes with it alone, as an image's own scales: programs that
    stay within one of its elements load that once for all their rows."""
    first, others = side[:1], {*side[1:]}
    size = prod(a.size for a in others)
    if not others or (size % 128 and size < MANY):
        return ()
    loads = (e.axes for e in kernel.exprs if e.op == "load" and not e.axes.isdisjoint(outer))
    return first if any(axes >= {*first} and axes.isdisjoint(others) for axes in loads) else ()


def _apart(kernel: Kernel, rows: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The outermost of the rows' axes, if something is read that is the same for all others (an image's statistics): programs
    that stay within one of its elements read that once for all their rows."""
    first, others = rows[:1], {*rows[1:]}
    if not others or prod(a.size for a in others) < MANY:
        return ()
    loads = (e.axes for e in kernel.exprs if e.op == "load" and not e.args)
    return first if any(axes >= {*first} and axes.isdisjoint(others) for axes in loads) else ()


def _kept(kernel: Kernel, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    chosen = set(axes)
    return tuple(a for a in kernel.axes if a in chosen)


def _outer(kernel: Kernel) -> tuple[Axis, ...]:
    """Axes of reductions that are not needed within another reduction alone."""
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
            stack += inner  # a reduction that the body reads but that does not run inside it
        else:
            stack += e.args
    return tuple(found)


def _order(e: Expr, dots: Mapping[Expr, Dot], seen: set[Expr] | None = None) -> list[Axis]:
    """Reduction axes as tile dimensions: those of a product's left side before its own, those of the right side after."""
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
    """Reduction axes that run over the elements of a parallel axis: some load is the same for both."""
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
    """Operations that tiles of m rows and n columns make reductions do anew: what does not depend on the columns is
    computed for each tile of them, and what depends on some of a tile's axes for all of its elements."""
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
    """The numbers: tile sizes of rows and columns, of each reduction axis (its padded size: whole), and launch options."""

    m: int
    n: int
    k: Mapping[Axis, int]
    warps: int = 4
    stages: int = 3
    group: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def divisors(size: int, wanted: Iterable[int]) -> list[int]:
    """Into how many equal parts something can be cut, as near as may be to each wanted number and at most a half less; pieces are
    multiples of what vectors want, where the whole is."""
    found: dict[int, None] = {}
    whole = gcd(size, VECTOR)
    for count in wanted:
        fits = (n for n in range(count, count // 2, -1) if size % n == 0 and (n == count or size // n % whole == 0))
        found |= dict.fromkeys(islice(fits, 1))
    return list(found)


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()
