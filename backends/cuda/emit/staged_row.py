"""Splits products of one row into two kernels of the IR that every thread block runs one after the other: all its
threads compute the row once (a norm, an activation) into shared memory, then the products read it there.

Without that, every group of threads along the reduction axis computes the row again: a norm of 640 elements takes a
warp about 200 instructions, as many as five of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...ir.expr import Expr, walk
from ...ir.index import Axis, Index, index
from ...ir.kernel import Buffer, Kernel, OutputStore
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from .thread_layout import DimensionThreads, ThreadLayout

STAGED = "staged_row"  # name of the buffer in shared memory
LONGEST = 8192  # longest row, in elements of float32, beside which partial sums fit into static shared memory
PLAIN = ("load", "const", "index")


@dataclass(frozen=True)
class StagedRow:
    """Products of one row as two kernels.

    `first` stores the row's elements, then the sums over the row that results need, in the buffer `STAGED`, and the
    results along the row; `second` reads that buffer and computes the other results. `axis`: the reduction axis;
    `shapes`: roles of the axes of both kernels.
    """

    first: Kernel
    second: Kernel
    axis: Axis
    shapes: tuple[Shape, Shape]

    def layout(self, layout: ThreadLayout) -> ThreadLayout:
        """Thread layout of `first`, for the blocks of `second` in the thread layout `layout`: all threads lie along the
        row, with few elements and few accesses each."""
        threads, size = layout.threads, self.axis.size
        repeats = {v: -(-size // (threads * v)) for v in (8, 4, 2, 1) if size % v == 0}
        vector = min(repeats, key=lambda v: repeats[v] * (v + 1))
        dims = {self.axis.name: DimensionThreads(threads, vector, repeats[vector])}
        return ThreadLayout(dims, layout.early, least=threads)


def staged_row(kernel: Kernel, shape: Shape) -> StagedRow:
    """`kernel`, whose axes have the roles `shape` (row, column, batch, reduction), as two kernels.

    Raises Unfusable unless it consists of products of one row, of which every element takes computation, with matrices.
    """
    axis, row = _row(kernel, shape)
    builder, along = kernel.builder, [s for s in kernel.stores if axis in {*s.at.axes, *s.value.axes}]
    later = [s for s in kernel.stores if s not in along]
    if any({*s.at.axes, *(a for e in s.exprs for a in e.axes)} - {axis, *shape.batch} for s in along):
        raise Unfusable("a result along rows and columns")
    sums: dict[Expr, int] = {}  # sums over the row -> place in the buffer, of those that results need
    own = builder.load(STAGED, index(axis), "float32", (), ())
    wanted = _read_outside([e for s in later for e in s.exprs], set(shape.dots))

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e in shape.dots:
            body = builder.mul(own, builder.product(shape.dots[e].right, ()))
            return builder.make("reduce", (body,), e.value, e.kind)
        if e in wanted:
            at = Index((), sums.setdefault(e, axis.size + len(sums)))
            return builder.load(STAGED, at, "float32", (), ())
        return None

    values = builder.rebuilt([e for s in later for e in s.exprs], change)
    stores = tuple(s.moved(s.at, [values.pop(0) for _ in s.exprs]) for s in later)
    buffers = {**kernel.buffers, STAGED: Buffer("float32", (axis.size + len(sums),), (1,))}
    staged = [OutputStore(STAGED, index(axis), row), *(OutputStore(STAGED, Index((), at), e) for e, at in sums.items())]
    first = Kernel(shape.batch, (*staged, *along), buffers, builder)
    second = Kernel(kernel.axes, stores, buffers, builder)
    dots = {changed: replace(d, left=(own,)) for e, d in shape.dots.items() if (changed := change(e, ())) is not None}
    shapes = replace(shape, rows=(), cols=(), dots={}, walks=False), replace(shape, dots=dots)
    return StagedRow(first, second, axis, shapes)


def _row(kernel: Kernel, shape: Shape) -> tuple[Axis, Expr]:
    """(reduction axis, element of the row that the matrices are multiplied by). Raises Unfusable as `staged_row`."""
    rows = dict.fromkeys(kernel.builder.product(d.left, ()) for d in shape.dots.values())
    if shape.m != 1 or len(shape.inner) != 1 or len(rows) != 1 or STAGED in kernel.buffers:
        raise Unfusable("no products of one row with matrices, or other reductions beside them")
    if any(b.dtype == "float64" for b in kernel.buffers.values()):
        raise Unfusable("a row in float64")
    (axis,), (row,) = shape.inner, rows
    if row.axes - {axis, *shape.batch} or any(not d.cols & {*shape.cols} for d in shape.dots.values()):
        raise Unfusable("a row that depends on columns")
    if axis.size > LONGEST or all(e.op in PLAIN for e in walk([row])):
        raise Unfusable("a long row, or one that takes no computation")
    return axis, row


def _read_outside(roots: Iterable[Expr], products: set[Expr]) -> set[Expr]:
    """The reductions that `roots` read outside of `products` and of other reductions."""
    found, stack, seen = set[Expr](), [*roots], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen or e in products:
            continue
        seen.add(e)
        if e.op == "reduce":
            found.add(e)
        else:
            stack += e.args
    return found
