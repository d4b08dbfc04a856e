"""Emits one C function per kernel, for kernels that a plain loop nest computes efficiently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...egraph.composites.composite import expand
from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ..generate.emitter import Launch, LaunchBase, Lowered
from ..generate.schedule import Schedule
from ..generate.strategy import Strategy, StrategyEmitter
from ..ir.expr import Expr, walk
from ..ir.kernel import PROBE, Kernel
from ..ir.op_texts import costly
from ..ir.tiling import Shape
from .emit.attention import few_row_attention
from .emit.kernel import emit
from .emit.lane_loops import WORTH
from .emit.nest import LoopNest
from .emit.packed_sums import multiplies_few_rows

__all__ = ["EMITTER", "ROWS", "CEmitter", "CLaunch"]

LINE = 8  # elements of a line of sums from which loops are computed in vectors
VECTOR = 128  # most numbers of a weight in a vector of bytes (emit/integer_dots.py): codes of 4 bits
SCALAR = 8.0  # flops in vectors in the time of an operation by itself
ROWS = 1  # maximum rows of a product: few enough that reading the matrix dominates


@dataclass(frozen=True)
class CLaunch(LaunchBase):
    """Call of an emitted C function; `buffers`: names of the operands and results in the order of its parameters."""

    name: str
    source: str
    buffers: tuple[str, ...]

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that calls the function; `names` maps its buffers to the Python variables of their
        addresses."""
        return f"{self.name}({', '.join(names[b] for b in self.buffers)})"


@dataclass(frozen=True)
class NestSchedule(Schedule):
    """Schedule (tuning parameters) of a C loop nest; it has no parameters."""

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of the tile whose common values are computed once: all rows and columns for attention of few
        rows (emit/attention.py), else (1, 1)."""
        return (shape.m, shape.n) if shape.kind == "attention" else (1, 1)

    def again(self, kernel: Kernel) -> float:
        """Flops of expensive values in the passes after the first, where no row buffer keeps them: rows that are too
        long, and reductions along columns; and those in whose time short lines are computed."""
        passes = bool(kernel.reductions) and any(costly(e.op) for e in kernel.exprs)
        short = min((a.size for a in kernel.axes), default=LINE) < LINE
        nest = LoopNest(kernel, "") if passes or short else None
        if nest is None:
            return 0.0
        return (nest.computed_again() if passes else 0.0) + (_by_themselves(nest) if short else 0.0)


def _by_themselves(nest: LoopNest) -> float:
    """Flops in whose time a kernel computes lines of fewer than LINE elements: each operation by itself, also the
    comparisons that choose a part of a concatenation, which count as no flops elsewhere."""
    kernel = nest.kernel
    if nest.inner is None or nest.inner.size >= LINE or not nest.columns:
        return 0.0
    return SCALAR * sum(prod(a.size for a in e.axes) for e in kernel.exprs if e.op not in ("const", "index"))


def _emit_nest(found: Lowered, schedule: NestSchedule, name: str) -> Sequence[Launch]:
    """The single function of a kernel; see emit/kernel.py."""
    doc = "" if name == PROBE else str(found.kernel)
    made = [CLaunch(name, emit(found.kernel, name, doc), tuple(found.kernel.buffers))]
    if name == PROBE:
        found.made[PROBE] = made  # c/any_size.py asks for the text under any name
    return made


def _efficient(kernel: Kernel, shape: Shape) -> bool:
    """Whether the C functions are efficient: attention of few rows, or a plain loop nest without products that read
    operands many times and without reductions inside other reductions."""
    if few_row_attention(kernel, shape) is not None:
        return True
    inside = any(not e.axes <= set(kernel.axes) for e in kernel.reductions)
    return not inside and (multiplies_few_rows(kernel) or all(map(_streams, kernel.reductions)))


def _streams(e: Expr) -> bool:
    """Whether a reduction reads each operand element only a few times, so that it is bound by memory."""
    space = prod(a.size for a in e.axes | {e.axis})
    loads = [prod(a.size for a in x.axes) for x in walk(e.args) if x.op == "load" and e.axis in x.axes]
    return max(loads, default=0) * ROWS >= space


NEST = Strategy(
    "loop nest",
    "C functions: one loop nest, parallel over the outermost axis; attention of few rows in one pass over the visible positions.",
    NestSchedule,
    applies=_efficient,
    ranked=lambda asked, count: [NestSchedule()],
    legal=lambda kernel, shape, schedule, splits: True,
    emit=_emit_nest,
)


PACKED = ".dots4"  # of the version of kernels that read bytes: raise it when only their text changes
SMALL_GROUPS = ".quads1"  # of the version of those that read a scale for each few numbers, which dots_quads applies
EXPONENTIAL = ".lanes1"  # of the version of kernels that compute exponentials (emit/lane_loops.py)
ROWS_KEPT = ".rows1"  # of the version of kernels with expensive values in several loops (emit/nest.py)


def _has_small_groups(t: Tensor) -> bool:
    """Whether a term dequantizes numbers of which fewer than `VECTOR` neighbours have one scale."""
    if t.op != "dequantize":
        return False
    numbers, scales = (concrete(x.shape)[-1] for x in t.args[:2])
    return 1 < scales < numbers < VECTOR * scales


@memo(4096)
def _atomic_ops(t: Tensor) -> frozenset[str]:
    """Names of the atomic ops that compute a term from its operands: its own, or those of its decomposition."""
    if not t.entry.composite:
        return frozenset({t.op})
    operands = {id(x) for x in topological(t.args)}
    return frozenset[str]().union(*(_atomic_ops(x) for x in topological([expand(t)]) if id(x) not in operands))


def _keeps_rows(terms: Sequence[Tensor], several: bool) -> bool:
    """Whether a kernel that computes the `terms`, operands first, may need values that are expensive to compute in
    several loops: it reduces them, or (older versions) has `several` results. A composite op that reduces counts if any
    part of it is expensive."""
    found = set[Tensor]()
    for t in terms:
        ops = _atomic_ops(t)
        if any(map(costly, ops)) or not found.isdisjoint(t.args):
            found.add(t)
            if several or any(OPS[op].kind == "reduction" for op in ops):
                return True
    return False


@dataclass
class CEmitter(StrategyEmitter):
    """Emitter of C source from kernel IR: one function per kernel."""

    name: str = "c"
    version: str = "6"
    carries: bool = True
    arrays: bool = True
    setup: tuple[str, ...] = ("address", "c_function", "c_library")
    needs: tuple[str, ...] = ()
    strategies: tuple[Strategy[Any], ...] = field(default=(NEST,), kw_only=True)

    def version_of(self, roots: Sequence[Tensor]) -> str:
        """Version of the text that the emitter writes for kernels that compute the terms `roots`; part of the key of
        stored measurements.

        Kernels that read bytes have an additional suffix, because their sums are integer dot products, and so have
        those that compute exponentials, which are written in vectors, and those that need expensive values in several
        loops, which are kept in arrays.
        """
        terms = topological(roots)
        bytes_ = any(t.op == "input" and t.dtype in ("uint8", "int8") for t in terms)
        exponential = any(not WORTH.isdisjoint(_atomic_ops(t)) for t in terms)
        rows = _keeps_rows(terms, len(roots) > 1)
        groups = bytes_ and any(map(_has_small_groups, terms))
        return self.version + PACKED * bytes_ + SMALL_GROUPS * groups + EXPONENTIAL * exponential + ROWS_KEPT * rows


EMITTER = CEmitter()
