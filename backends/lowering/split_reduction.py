"""Splits a reduction: different programs compute parts of it, and a second kernel combines the partial results (the
SPLIT transformation).

The first kernel stores the partial results of every outermost reduction over the axis (sums and maxima; a sum of exp(a
- max) is relative to the part's own maximum). The second kernel reduces the partial results over the parts and computes
the final values. Both are kernels of the IR, so split-K GEMM, split-KV attention (Flash-Decoding) and two-stage row
reductions are one transformation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ..ir.expr import Expr, walk
from ..ir.index import Axis, Index, index, linear
from ..ir.kernel import Buffer, Kernel, OutputStore
from ..ir.loop_fusion import shared_maximum
from ..ir.unfusable import Unfusable, if_fusable
from .one_pass_variance import in_one_pass

ALIGNMENT = 256  # byte alignment of partial results
COUNTERS = 1 << 16  # maximum tiles per split kernel
MAX_OUTER_REDUCTION = 64  # longest reduction axis around a split one, whose partial results then have that axis as well
REPEATED = 256  # longest reduction that every part computes again: a norm of query heads in attention


def split(kernel: Kernel, axis: Axis, parts: int) -> tuple[Kernel, Kernel]:
    """Split the reductions of `kernel` over `axis` into `parts` parts; returns two kernels: (one of partial results,
    one that combines them).

    The partial kernel has an additional first parallel axis `part`, the combining kernel reduces over `parts`. Partial
    results are float32 buffers `part0`, `part1`, … Raises Unfusable if a reduction over the axis reads another complete
    reduction over it (sums of squared deviations are allowed: lowering/one_pass_variance.py), if a partial result is an
    integer or float64, or if `parts` does not divide the axis.
    """
    kernel, maxima = _split_states(kernel, axis, parts)
    b, states = kernel.builder, list(maxima)
    part, every = Axis("part", parts), Axis("parts", parts)
    short = Axis(f"{axis.name}p", axis.size // parts)
    here = index(part) * short.size + index(short)
    partial = {e: _moved(kernel, e, axis, short, here) for e in states}
    stores, buffers, loads = [], dict(kernel.buffers), {}
    for n, e in enumerate(states):
        own = [a for a in kernel.axes if a in e.axes] + sorted(e.axes - set(kernel.axes), key=lambda a: a.name)
        shape = (parts, *(a.size for a in own))
        at = linear([index(part), *map(index, own)], shape)
        name = f"part{n}"
        buffers[name] = Buffer("float32", shape, ())
        stores.append(OutputStore(name, at, partial[e]))
        loads[e] = b.load(name, at.replaced({part: index(every)}), "float32", (), ())
    first = replace(kernel, axes=(part, *kernel.axes), stores=tuple(stores), buffers=buffers)
    joined: dict[Expr, Expr] = {}
    for e in states:
        body = loads[e]
        m = maxima[e]
        if m is not None:
            power = next(x.op for x in walk(e.args) if x.op in ("exp", "exp2") and x.args[0].args[1:] == (m,))
            body = b.mul(body, b.make(power, (b.pointwise("sub", (loads[m], joined[m])),)))
        joined[e] = b.make("reduce", (body,), (e.value[0], every), "float")
    values = b.rebuilt([s.value for s in kernel.stores], lambda e, args: joined.get(e))
    second = kernel.with_values(values, buffers=buffers)
    return first, second


def splittable(kernel: Kernel, axis: Axis, parts: int) -> bool:
    """Whether `split` can split the reductions of `kernel` over `axis` into `parts` parts."""
    return if_fusable(_split_states, kernel, axis, parts) is not None


def _split_states(kernel: Kernel, axis: Axis, parts: int) -> tuple[Kernel, dict[Expr, Expr | None]]:
    """The kernel with sums of squared deviations in one pass, and its reductions over `axis`, of which parts are
    computed: reduction -> the maximum that a sum of exponentials is relative to, None for others.

    Raises Unfusable if they cannot be split into `parts` parts.
    """
    if axis.size % parts or parts < 2:
        raise Unfusable(f"{axis.size} elements cannot be split into {parts} equal parts")
    if kernel.stored_sides:
        raise Unfusable("an output along the split reduction axis")
    kernel = in_one_pass(kernel, axis)
    states = [e for e in kernel.reductions if e.axis == axis]
    if any(e.kind != "float" for e in states) or any(x.dtype == "float64" for x in kernel.buffers.values()):
        raise Unfusable("partial results that float32 cannot represent")
    maxima: dict[Expr, Expr | None] = {}
    for e in states:
        waits = [x for x in walk(e.args) if x.op == "reduce" and x.axis == axis]
        maximum = shared_maximum(e, axis)
        if waits and (maximum is None or set(waits) != {maximum}):
            raise Unfusable("a reduction that reads a complete reduction over the same axis")
        maxima[e] = maximum
        if any(a.size > MAX_OUTER_REDUCTION for a in e.axes - set(kernel.axes)):
            raise Unfusable("a split reduction nested in another long reduction")
        if any(
            x.op == "reduce"
            and x.axis.size > REPEATED
            and x.axis != axis
            and axis not in x.axes
            and x.axes <= set(kernel.axes)
            for x in walk(e.args)
        ):
            raise Unfusable("a split reduction that reads the result of another long reduction")
    return kernel, maxima


def _moved(kernel: Kernel, e: Expr, axis: Axis, short: Axis, here: Index) -> Expr:
    """A reduction restricted to one part: the part's axis `short` replaces `axis`, also in maxima that the reduction
    reads. `here`: index on `axis` in terms of the part."""
    b = kernel.builder

    def change(x: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if x.op == "index" and axis in x.value.axes:
            return b.index(x.value.replaced({axis: here}))
        if x.op == "load" and axis in x.value[1].axes:
            operand, at, steps, dtype = x.value
            return b.make("load", args, (operand, at.replaced({axis: here}), steps, dtype), x.kind)
        if x.op == "reduce" and x.axis == axis:
            return b.make("reduce", args, (x.value[0], short), x.kind)
        return None

    return b.rebuilt([e], change)[0]


def partial_layout(buffers: Mapping[str, Buffer]) -> tuple[dict[str, tuple[int, int]], int]:
    """Places of the partial results of a split reduction in one scratch buffer, as ({buffer name: (offset, size)},
    total size), in bytes.

    Of `buffers`, those named `part0`, `part1`, … are placed.
    """
    found: dict[str, tuple[int, int]] = {}
    total = 0
    for name, b in buffers.items():
        if name.startswith("part"):
            size = 4 * prod(b.shape)
            found[name] = total, size
            total += -(-size // ALIGNMENT) * ALIGNMENT
    return found, total


def counted_tiles(programs: int, parts: int) -> int:
    """Number of output tiles that a grid of `programs` programs computes, with `parts` programs per tile.

    Raises Unfusable if there are more than `COUNTERS`, the number of counters with which programs find the last one of
    a tile.
    """
    if programs // parts > COUNTERS:
        raise Unfusable(
            f"{programs // parts} output tiles, more than {COUNTERS} counters for combining partial results"
        )
    return programs // parts
