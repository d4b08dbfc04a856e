"""Defines thread layouts of CUDA kernels, and analyses contiguity and alignment for vectorized accesses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...ir.expr import Expr
from ...ir.index import Axis, Division, Index, index


@dataclass(frozen=True)
class DimensionThreads:
    """Distribution of one dimension over a thread block.

    `threads` threads hold `vector` contiguous elements each, `repeat` times.
    """

    threads: int = 1
    vector: int = 1
    repeat: int = 1

    @property
    def block(self) -> int:
        """Number of elements along the dimension that a block covers."""
        return self.threads * self.vector * self.repeat

    @property
    def held(self) -> int:
        """Number of elements along the dimension that each thread computes."""
        return self.vector * self.repeat


@dataclass(frozen=True)
class Warps:
    """Warp layout of a tensor-core GEMM (emit/fragments.py).

    `across` warps lie along N, each with `tiles` fragments of 8 columns. `along` warps lie along K (intra-block
    split-K), each with `depth` chunks of 32 elements per iteration. `packed`: codes of quantized weights are loaded and
    converted 16 bytes at a time (emit/packed_fragments.py); `ahead` is the prefetch distance in loop iterations of
    cp.async copies of codes, scales and rows into shared memory (emit/code_ring.py; 0: one iteration, in
    registers), `direct` keeps codes in registers nevertheless. With `joint`, the block's warps copy rows together, each
    row once. `cluster` blocks of a thread-block cluster share K: each computes partial sums of the columns of all of
    them over its part of K, then adds those of its own columns.
    """

    along: int
    across: int = 1
    tiles: int = 1
    depth: int = 1
    packed: bool = False
    ahead: int = 0
    direct: bool = False
    joint: bool = False
    cluster: int = 1


@dataclass(frozen=True)
class ThreadLayout:
    """Thread layout of a kernel: how its dimensions ("m", "n", each reduction axis) are distributed over a block's
    threads.

    `dims` maps each dimension to its distribution, the fastest-varying thread dimension first. `early` enables
    programmatic dependent launch; with `warm`, a block prefetches the first part of its matrices into L2 before it
    waits for the previous kernel. `ahead` is the prefetch distance in loop iterations of cp.async copies into shared
    memory (0: none). `least` is the minimum number of threads of a block. `warps` is the warp layout of a tensor-core
    GEMM, None without one. `shared` maps a dimension to another one whose threads it uses: no value may vary along
    both, or along two dimensions that use the threads of one. `seen` names a dimension whose loop ends where a mask
    excludes all further positions; "" without one.
    """

    dims: Mapping[str, DimensionThreads]
    early: bool = False
    ahead: int = 0
    least: int = 32
    warps: Warps | None = None
    warm: bool = False
    shared: Mapping[str, str] = field(default_factory=dict)
    seen: str = ""

    @cached_property
    def apart(self) -> Mapping[str, DimensionThreads]:
        """The dimensions that have threads of their own, with their distributions: all but those in `shared`."""
        return {d: along for d, along in self.dims.items() if d not in self.shared}

    @cached_property
    def used(self) -> int:
        """Number of threads of a block that hold elements: the product over the dimensions with threads of
        their own."""
        return math.prod(a.threads for a in self.apart.values())

    @property
    def threads(self) -> int:
        """Number of threads of a block: those that hold elements, but at least `least`."""
        return max(self.least, self.used)

    def stride(self, dim: str) -> int:
        """Difference of the thread numbers of neighbours along the dimension `dim`."""
        step = 1
        for name, along in self.apart.items():
            if name == self.shared.get(dim, dim):
                return step
            step *= along.threads
        return step


def stride_in_runs(at: Index, axis: Axis, width: int) -> int | None:
    """Stride, in elements, of the index `at` along `axis` inside each aligned run of `width` elements; None if it is
    not constant there."""
    total = 0
    for atom, c in at.terms:
        if isinstance(atom, Axis):
            total += c * (atom == axis)
        elif axis in atom.index.axes:
            inner = stride_in_runs(atom.index, axis, width)
            if inner is None or (
                inner and (inner != 1 or atom.by % width or known_divisor(atom.index, axis, width) % width)
            ):
                return None
            total += c * inner * atom.rest
    return total


def known_divisor(at: Index, axis: Axis, width: int) -> int:
    """Largest number known to divide the index `at`, in elements, wherever an aligned run of `width` elements along
    `axis` begins."""
    found = at.const
    for atom, c in at.terms:
        factor = width if atom == axis else 1
        if isinstance(atom, Division) and atom.rest:
            factor = math.gcd(atom.by, known_divisor(atom.index, axis, width))
        found = math.gcd(found, c * factor)
    return abs(found) or 1 << 30


def is_vectorizable(at: Index, axis: Axis, width: int, itemsize: int) -> bool:
    """Whether accesses at index `at` can move `width` elements of `itemsize` bytes along `axis` as vectors of at most
    16 bytes: the elements are contiguous and aligned."""
    run = min(width, 16 // itemsize)
    return (
        width > 1
        and axis.size % width == 0
        and stride_in_runs(at, axis, width) == 1
        and known_divisor(at, axis, width) % run == 0
    )


def is_uniform(e: Expr, axis: Axis, width: int) -> bool:
    """Whether the condition `e` has one value for all elements of each aligned run of `width` elements along `axis`.

    Decided for comparisons of indices with multiples of `width`, and for `and`, `or`, `not` of them. False for other
    conditions.
    """
    if axis not in e.axes:
        return True
    if e.op in ("and", "or", "not"):
        return all(is_uniform(a, axis, width) for a in e.args)
    if e.op != "lt" or any(a.op not in ("index", "const") or a.kind != "int" for a in e.args):
        return False
    low, high = (a.value if a.op == "index" else index(a.value) for a in e.args)
    rising, falling = stride_in_runs(low - high, axis, width), stride_in_runs(high - low, axis, width)
    if rising == 1:  # low < high is low - high < 0
        return known_divisor(low - high, axis, width) % width == 0
    return falling == 1 and known_divisor(high - low - 1, axis, width) % width == 0  # high - low - 1 >= 0
