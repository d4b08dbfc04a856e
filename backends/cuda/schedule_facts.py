"""Facts that the schedules of SIMT and skinny-GEMM CUDA kernels both depend on: memory accesses, split and short
reductions, and the domains of their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...egraph.types import dtypes
from ..generate.emitter import split_axis
from ..generate.schedule import Domain
from ..ir.index import Axis, Index
from ..ir.kernel import Kernel
from ..ir.tiling import Shape, shape_of
from ..ir.unfusable import Unfusable, if_fusable
from ..lowering.split_reduction import split
from .emit.thread_layout import is_vectorizable, stride_in_runs

MOST_AHEAD = 8  # maximum prefetch distance in iterations
HELD = 64  # maximum elements of short reductions nested in another one
POWERS = Domain(powers=True)
PREFETCH = "with `early`: L2 prefetch of matrices before the wait for the previous kernel"
SPLIT = "split-K factor over blocks; the last block of a tile combines the partial results"


def elements_per_block(dimension: str, *numbers: tuple[tuple[str, int], ...]) -> int:
    """Elements that a thread block covers along `dimension`: the product of its entries in `numbers`, lists of
    (dimension, threads or vector width or repeats); 1 where an entry is absent."""
    return prod(dict(n).get(dimension, 1) for n in numbers)


def accesses(kernel: Kernel) -> Iterator[tuple[str, Index, str, float]]:
    """(buffer, index, dtype, bytes of the buffer) of each load and store."""
    for e in kernel.exprs:
        if e.op == "load":
            operand, at, _, dtype = e.value
            yield operand, at, dtype, float(dtypes.itemsize(dtype) * prod(kernel.buffers[operand].shape))
    for s in kernel.stores:
        buffer = kernel.buffers[s.buffer]
        yield s.buffer, s.at, buffer.dtype, float(dtypes.itemsize(buffer.dtype) * prod(buffer.shape))


def _groups(shape: Shape) -> dict[str, tuple[Axis, ...]]:
    """The axes of each dimension; reduction axes over columns belong to the columns."""
    own = {a.name: (a,) for a in shape.inner if a not in shape.joined}
    return {"m": shape.rows, "n": (*shape.joined, *shape.cols), **own}


def fastest(kernel: Kernel, shape: Shape) -> dict[str, float]:
    """For each dimension ("m", "n", reduction axes), the bytes of the kernel's global-memory traffic that are
    contiguous along it."""
    found: dict[str, float] = {}
    for dim, group in _groups(shape).items():
        ends = [group[-1], *shape.joined] if dim == "n" and group else group[-1:]
        seen = {(b, at, n) for axis in ends for b, at, _, n in accesses(kernel) if stride_in_runs(at, axis, 1) == 1}
        found[dim] = sum(n for *_, n in seen)
    return found


def width(kernel: Kernel, shape: Shape, dim: str) -> int:
    """Elements of the widest useful vector along the dimension `dim`: at most 16 bytes of the narrowest operand that is
    contiguous along it, and 1 if none is."""
    group = _groups(shape)[dim]
    if not group:
        return 1
    best, moved = 1, 0.0
    for vector in (2, 4, 8):
        total = 0.0
        for axis in dict.fromkeys([group[-1], *(shape.joined if dim == "n" else ())]):
            for _, at, dtype, nbytes in accesses(kernel):
                size = dtypes.itemsize(dtype)
                if vector * size <= 32 and is_vectorizable(at, axis, vector, size):
                    total += nbytes
        if total > 0 and total >= moved:
            best, moved = vector, total
    sizes = [dtypes.itemsize(d) for _, at, d, n in accesses(kernel) if stride_in_runs(at, group[-1], 1) == 1]
    return min(best, max(1, 16 // min(sizes, default=4)))


def is_unwalked(shape: Shape) -> bool:
    """Whether a kernel is no attention and processes no columns after a reduction (`Shape.walks`), except reductions
    over its own columns."""
    return shape.kind != "attention" and (not shape.walks or bool(shape.joined))


def is_splittable(kernel: Kernel, shape: Shape) -> bool:
    """Whether a split reduction can be written: partial results are float32, and the kernel that computes them has all
    reduction axes.
    """
    if shape.joined or any(b.dtype == "float64" for b in kernel.buffers.values()):
        return False
    if len(shape.inner) == 1:
        return True
    partial = if_fusable(partial_shape, kernel, shape)
    return partial is not None and len(partial.inner) == len(shape.inner)


def partial_shape(kernel: Kernel, shape: Shape) -> Shape:
    """The shape of the kernel that computes the partial results of a reduction split in two parts."""
    return shape_of(split(kernel, split_axis(shape), 2)[0])


def short_reductions(kernel: Kernel, shape: Shape, main: Axis | None) -> tuple[tuple[str, int], ...]:
    """Schedule entries that keep every reduction axis except `main` whole in each thread.

    Raises Unfusable if such an axis is long.
    """
    found: dict[str, int] = {}
    for i, a in enumerate(shape.inner):
        if a != main and a not in shape.joined:
            vector = width(kernel, shape, a.name)
            found |= {f"v{i}": vector, f"u{i}": -(-a.size // vector)}
    if prod(found.values()) > HELD:
        raise Unfusable("a long reduction nested in another one")
    return tuple(found.items())
