"""Lowers tensors to a kernel: its parallel axes, and the memory position of each element of its results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, make, rebuild, topological
from ...egraph.types.dims import concrete
from ...extract.fusion.product_operands import is_product_operand
from ...extract.model.kernel import contiguous
from ..ir.axes import normalized
from ..ir.expr import Builder, Expr
from ..ir.index import Axis, Index, index, linear, unravelled
from ..ir.kernel import Buffer, Kernel, OutputStore
from ..ir.row_update import uses_overwritten
from ..ir.simplify import as_index
from ..ir.unfusable import Unfusable
from .concat_split import SHORT, ResultPiece, pieces, should_unroll
from .gather_rules import from_the_start
from .interleaved_outputs import InterleavedOutputs, side_by_side
from .op_rules import TermLowering
from .rotate_half import halved_kernel, with_split_axes


def kernel_of(
    root: Tensor | Sequence[Tensor], operands: Mapping[Tensor, str], buffers: Mapping[str, Buffer], out: str = "out"
) -> Kernel:
    """Lower the tensor `root`, or several, to one kernel that computes them from the leaves `operands` (leaf -> buffer
    name) into buffers (`buffers`: name -> layout).

    The first result goes into buffer `out`, the others into `out1`, `out2`, …. Several tensors are computed over the
    axes of the largest one. Each tensor must have as many elements as the largest one, or the largest one's shape with
    size 1 along some axes; or be slices of one tensor, which is computed once; or agree in all axes but one, along
    which they are concatenated; or be left operands of the first tensor's products
    (extract/fusion/product_operands.py), which are stored along the reduction axis. For `scatter_elements` into a
    tensor in memory, or into a constant, only the scattered positions are written, or added to; the buffer must already
    hold the other elements. Other
    results may be computed from such a tensor if one row of it is written (ir/row_update.py). Raises Unfusable for
    other results, and for ops without an index expression (sort, argmax).
    """
    roots = rebuild([root] if isinstance(root, Tensor) else list(root), _in_atomic_ops)
    for leaf in topological(roots):
        if leaf.is_leaf and leaf not in operands:
            raise Unfusable(f"{leaf!r} is not an operand")
    names = [f"out{n}" if n else out for n in range(len(roots))]
    apart = pieces(roots)
    if apart is not None:
        return _small(_of_pieces(apart, [names[roots.index(p.root)] for p in apart], operands, buffers))
    factors = [t for t in roots[1:] if is_product_operand(t, roots[0])]
    if factors:
        return _with_operands(
            [t for t in roots if t not in factors], factors, dict(zip(roots, names)), operands, buffers
        )
    spaces = [t.args[2] if t.op == "scatter_elements" else t for t in roots]
    sliced, written = sliced_alike(roots), _written_and_read(roots)
    beside = None if sliced or written else side_by_side(spaces, operands, buffers)
    widest = max(range(len(spaces)), key=lambda n: (math.prod(concrete(spaces[n].shape)), -n))
    shape = concrete(roots[0].args[0].shape if sliced else spaces[widest].shape)
    if beside is not None:
        whole = sum(concrete(x.shape)[beside.axis] for x in spaces)
        shape = (*shape[: beside.axis], whole, *shape[beside.axis + 1 :])
    if 0 in shape:
        raise Unfusable("no elements")
    strides = buffers[out if sliced else names[widest]].strides
    lying = sorted(range(len(shape)), key=lambda n: -strides[n])  # axes in the memory order of the largest result
    axes = tuple(Axis(f"i{lying.index(n)}", d) for n, d in enumerate(shape))
    reader = TermLowering(Builder(), operands, buffers)
    reader.written = written
    if sliced:
        parts = _slices(reader, roots, axes)
    else:
        parts = _alike(reader, spaces, axes) if beside is None else _neighbours(reader, spaces, axes, beside)
    stores: dict[str, tuple[OutputStore, _Part]] = {}
    for t, name, part in zip(roots, names, parts):
        stores[name] = _placed(reader, t, name, part), part
    running = tuple(a for n in lying if (a := axes[n]).size > 1)
    kernel = with_split_axes(Kernel(running, tuple(s for s, _ in stores.values()), buffers, reader.b))
    kernel = replace(kernel, stores=tuple(_joined(reader, s, stores[s.buffer][1]) for s in kernel.stores))
    overwritten = {operands[t.args[0]] for t in roots if t.op == "scatter_elements" and t.args[0] in operands}
    if uses_overwritten(kernel, overwritten, [s for s in kernel.stores if s.parts]):
        raise Unfusable("the kernel uses elements of the buffer that it scatters into")
    return halved_kernel(normalized(_added_once(_small(kernel))))


def _added_once(kernel: Kernel) -> Kernel:
    """The kernel itself. Raises Unfusable if it might add a value to an element of a sum in memory more than once, or
    in parts: if it has other results or reductions, or an axis on which the element's position does not depend."""
    for s in kernel.stores if kernel.adds else ():
        along = s.at.axes.union(*(e.axes for e, _ in s.parts))
        if len(kernel.stores) > 1 or kernel.reductions or not along >= {*kernel.axes}:
            raise Unfusable("a scatter that adds beside other results, sums of products, or several times")
    return kernel


def _written_and_read(roots: Sequence[Tensor]) -> frozenset[Tensor]:
    """The scatters among several results that other results are computed from."""
    scatters = {t for t in roots if t.op == "scatter_elements"}
    return frozenset(a for t in topological(roots) for a in t.args if a in scatters) if scatters else frozenset()


def _in_atomic_ops(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    """The decomposition of a composite op on other operands; None for other ops."""
    return _atomic(make(node.op, args, dict(node.attrs))) if node.entry.composite else None


@memo(4096)
def _atomic(composite: Tensor) -> Tensor:
    """A composite op on atomic terms in atomic ops; cached, because many fusion groups have the same one."""
    return expand_all([composite])[0]


def _with_operands(
    roots: Sequence[Tensor], factors: Sequence[Tensor], names: Mapping[Tensor, str], operands: Mapping[Tensor, str],
    buffers: Mapping[str, Buffer],
) -> Kernel:  # fmt: skip
    """The kernel of one product's result that also stores left operands (`factors`) of the product, along its reduction
    axis."""
    if len(roots) > 1 or roots[0].op == "scatter_elements":
        raise Unfusable("storing a product's left operand beside several outputs")
    (root,) = roots
    shape = concrete(root.shape)
    if 0 in shape:
        raise Unfusable("no elements")
    axes = tuple(Axis(f"i{n}", d) for n, d in enumerate(shape))
    if buffers[names[root]].strides != contiguous(shape):
        raise Unfusable("storing a product's left operand beside an output that is not row-major")
    reader, at = TermLowering(Builder(), operands, buffers), tuple(map(index, axes))
    stores = [_placed(reader, root, names[root], _Part(at, reader.value(root, at)))]
    for t in factors:
        own = concrete(t.shape)
        k = index(reader.fresh(own[-1], at, ()))
        here = (*unravelled(linear(at[:-1], shape[:-1]), own[:-1]), k)
        stores.append(_placed(reader, t, names[t], _Part(here, reader.value(t, here))))
    kernel = Kernel(tuple(a for a in axes if a.size > 1), tuple(stores), buffers, reader.b)
    return normalized(_small(kernel))


ADDED = ("float32", "int32", "int64")  # dtypes of sums in memory: with 16 bits each addition would round
MAX_KERNEL_OPERATIONS = 3000  # and loads: compilation takes at least a second per thousand


def _small(kernel: Kernel) -> Kernel:
    """The kernel itself. Raises Unfusable if it is too large to compile."""
    if kernel.work > MAX_KERNEL_OPERATIONS:
        raise Unfusable(f"more than {MAX_KERNEL_OPERATIONS} operations")
    return kernel


def _of_pieces(
    apart: Sequence[ResultPiece], names: Sequence[str], operands: Mapping[Tensor, str], buffers: Mapping[str, Buffer]
) -> Kernel:
    """The kernel that computes equally sized pieces of results, with common subexpressions computed once."""
    widest = max(range(len(apart)), key=lambda n: (math.prod(concrete(apart[n].term.shape)), -n))
    shape, strides = concrete(apart[widest].term.shape), buffers[names[widest]].strides
    if 0 in shape:
        raise Unfusable("no elements")
    lying = sorted(range(len(shape)), key=lambda n: -strides[n])
    axes = tuple(Axis(f"i{lying.index(n)}", d) for n, d in enumerate(shape))
    reader = TermLowering(Builder(), operands, buffers)
    reader.unroll_limit = SHORT if should_unroll(apart) else 0
    stores = []
    for piece, name, part in zip(apart, names, _alike(reader, [p.term for p in apart], axes), strict=True):
        at = tuple(i + start for i, start in zip(part.at, piece.start, strict=True))
        stores.append(_placed(reader, piece.root, name, part._replace(at=at)))
    reader.b.transformations.add("PIECES")
    running = tuple(a for n in lying if (a := axes[n]).size > 1)
    return normalized(Kernel(running, tuple(stores), buffers, reader.b))


# ---------------------------------------------------------------- results over common axes
class _Part(NamedTuple):
    """One result at a point of the kernel's common axes: the index in the result, the value, the guards under which the
    result has an element there, and indices over the common axes that replace the result's own axes."""

    at: tuple[Index, ...]
    value: Expr
    guards: tuple[Expr, ...] = ()
    change: Mapping[Axis, Index] | None = None


def _slices(r: TermLowering, roots: Sequence[Tensor], axes: tuple[Axis, ...]) -> Iterator[_Part]:
    """Slices of one tensor, which is computed once."""
    at = tuple(map(index, axes))
    for t in roots:
        axis = t.attr("axis")
        here, guards = _within(r.b, at, axis, t.attr("start"), int(t.shape[axis]))
        yield _Part(here, r.value(t.args[0], at), guards)


def _neighbours(
    r: TermLowering, spaces: Sequence[Tensor], axes: tuple[Axis, ...], beside: InterleavedOutputs
) -> Iterator[_Part]:
    """Concatenated results.

    Each is lowered over an axis of its own size, so that index ranges are known and no divisions are needed.
    """
    at, along, before = tuple(map(index, axes)), beside.axis, 0
    for x in spaces:
        size = concrete(x.shape)[along]
        (moved,), guards = _within(r.b, (at[along],), 0, before, size)
        r.moved |= beside.moved(x, moved)
        before += size
        local = Axis(f"{axes[along].name}_", size)
        here = (*at[:along], index(local), *at[along + 1 :])
        yield _Part(here, r.value(x, here, guards), guards, {local: moved})


def _alike(r: TermLowering, spaces: Sequence[Tensor], axes: tuple[Axis, ...]) -> Iterator[_Part]:
    """Results with as many elements as the largest result, or with its shape except for size 1 along some axes."""
    at, shape = tuple(map(index, axes)), tuple(a.size for a in axes)
    for x in spaces:
        here = _along(x, at, shape)
        yield _Part(here, r.value(x, here))


def _joined(r: TermLowering, store: OutputStore, part: _Part) -> OutputStore:
    """A store of a concatenated result, over the common axes."""
    if not part.change:
        return store
    moved = r.b.substituted(store.exprs, part.change)
    return store.moved(store.at.replaced(part.change), _loosened(r, moved, part.guards))


def _placed(r: TermLowering, t: Tensor, name: str, part: _Part) -> OutputStore:
    """The store of an element of a root, at its index in the root, or at its scattered position."""
    buffer, place, parts, guards, adds = r.buffers[name], Index(), [], part.guards, False
    axis = t.attr("axis") if t.op == "scatter_elements" else -1
    if axis >= 0:
        base, adds = r.of.get(t.args[0]), t.attr("mode") == "add" and buffer.dtype in ADDED
        held = t.args[0].op == "full" if base is None else r.buffers[base] == buffer
        if not held or not (adds or t.attr("mode") == "set"):
            raise Unfusable("a scatter whose base is not in memory, or is not updated in place")
        size = buffer.shape[axis]
        where = from_the_start(r.b, r.value(t.args[1], part.at, guards), size)
        if where.op in ("index", "const"):
            place = as_index(where) * buffer.strides[axis]
            if not (as_index(where).range[0] >= 0 and as_index(where).range[1] < size):
                raise Unfusable("a scatter index out of bounds")
        else:
            parts.append((where, buffer.strides[axis]))
            ends = (r.b.const(-1, "int"), where), (where, r.b.const(size, "int"))  # skip out-of-bounds writes
            guards = (*guards, *(r.b.pointwise("lt", pair) for pair in ends))
    for n, (i, stride, size) in enumerate(zip(part.at, buffer.strides, buffer.shape, strict=True)):
        place = place + i * stride if size > 1 and n != axis else place
    return OutputStore(name, place, part.value, guards, tuple(parts), adds)


def _within(
    b: Builder, at: tuple[Index, ...], axis: int, before: int, size: int
) -> tuple[tuple[Index, ...], tuple[Expr, ...]]:
    """(index within one of several concatenated results, guards that the index is in the result's range).

    The result has `size` elements from `before` on.
    """
    guards = b.less(index(before - 1), at[axis]), b.less(at[axis], index(before + size))
    return (*at[:axis], at[axis] - before, *at[axis + 1 :]), tuple(g for g in guards if g.op != "const")


def _loosened(r: TermLowering, exprs: Sequence[Expr], guards: tuple[Expr, ...]) -> list[Expr]:
    """Expressions that are stored under `guards`, with these guards removed from loads that are in bounds without them,
    so that results share common values."""

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op != "load":
            return None
        operand, at, steps, _ = e.value
        buffer, (low, high) = r.buffers[operand], at.range
        if low < 0 or high >= buffer.span:
            return None
        kept = (g for g in args[len(steps) :] if g not in guards)
        return r.b.make("load", (*args[: len(steps)], *kept), e.value, e.kind)

    return r.b.rebuilt(exprs, one)


def sliced_alike(roots: Sequence[Tensor]) -> bool:
    """Whether the tensors `roots` are non-overlapping slices, with step 1, of one tensor along one axis."""
    if len(roots) < 2 or any(t.op != "slice" or t.attr("step") != 1 for t in roots):
        return False
    if len({(t.args[0], t.attr("axis")) for t in roots}) > 1:
        return False
    ranges = sorted((t.attr("start"), t.attr("start") + t.shape[t.attr("axis")]) for t in roots)
    return all(a[1] <= b[0] for a, b in pairwise(ranges))


def _along(t: Tensor, at: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The index in result `t` that corresponds to the index `at` in the largest result, of shape `shape`.

    Raises Unfusable if there is none.
    """
    own = concrete(t.shape)
    if math.prod(own) == math.prod(shape):
        return unravelled(linear(at, shape), own)
    if len(own) == len(shape) and all(d in (1, whole) for d, whole in zip(own, shape)):
        return tuple(Index() if d == 1 else i for d, i in zip(own, at))
    raise Unfusable(f"outputs of shapes {shape} and {own} in one iteration space")
