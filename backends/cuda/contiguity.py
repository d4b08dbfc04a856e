"""Measures how much of a kernel's memory traffic is contiguous along each dimension ("m": rows, "n": columns, reduction
axes by name), and the widest useful vectors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...egraph.types import dtypes
from ..ir.index import Axis, Index
from ..ir.kernel import Kernel
from ..ir.tiling import Shape
from .emit.thread_layout import is_vectorizable, stride_in_runs


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


def contiguous_bytes(kernel: Kernel, shape: Shape) -> dict[str, float]:
    """For each dimension ("m", "n", reduction axes), the bytes of the kernel's global-memory traffic that are
    contiguous along it."""
    found: dict[str, float] = {}
    for dim, group in _groups(shape).items():
        ends = [group[-1], *shape.joined] if dim == "n" and group else group[-1:]
        seen = {(b, at, n) for axis in ends for b, at, _, n in accesses(kernel) if stride_in_runs(at, axis, 1) == 1}
        found[dim] = sum(n for *_, n in seen)
    return found


def vector_width(kernel: Kernel, shape: Shape, dim: str) -> int:
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


__all__ = ["accesses", "contiguous_bytes", "vector_width"]
