"""Emitter of C: one function per kernel, for kernels that a plain loop nest computes efficiently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from ..generate.schedule import Schedule
from ..generate.strategy import Strategy, StrategyEmitter
from ..generate.template import Launch, LaunchBase, Lowered
from ..ir.kernel import PROBE, Expr, Kernel, walk
from ..ir.tiling import Shape
from .emit.blocked import blocked
from .emit.integer_dots import integer_dots
from .emit.kernel import emit

__all__ = ["EMITTER", "ROWS", "CEmitter", "CLaunch"]

ROWS = 1  # maximum rows of a product: few enough that reading the matrix dominates


@dataclass(frozen=True)
class CLaunch(LaunchBase):
    """Call of an emitted C function; `buffers` in the order of its parameters."""

    name: str
    source: str
    buffers: tuple[str, ...]

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that calls the function with the buffers' addresses."""
        return f"{self.name}({', '.join(names[b] for b in self.buffers)})"


@dataclass(frozen=True)
class NestSchedule(Schedule):
    """Schedule of a C loop nest: no parameters."""


@dataclass(frozen=True)
class DotSchedule(Schedule):
    """Schedule of a C loop nest with integer dot products: no parameters."""

    tag: ClassVar[str] = "dots"


def _emit_nest(found: Lowered, schedule: NestSchedule | DotSchedule, name: str) -> Sequence[Launch]:
    """The single function of a kernel; see emit/kernel.py."""
    doc = "" if name == PROBE else str(found.kernel)
    text = emit(found.kernel, name, doc, isinstance(schedule, DotSchedule))
    made = [CLaunch(name, text, tuple(found.kernel.buffers))]
    if name == PROBE:
        found.made[PROBE] = made  # c/any_size.py asks for the text under any name
    return made


def _efficient(kernel: Kernel, shape: Shape) -> bool:
    """Whether a plain loop nest is efficient.

    Excluded are products that read operands many times, and reductions inside other reductions.
    """
    inside = any(not e.axes <= set(kernel.axes) for e in kernel.reductions)
    return not inside and all(map(_streams, kernel.reductions))


def _streams(e: Expr) -> bool:
    """Whether a reduction reads each operand element only a few times."""
    space = prod(a.size for a in e.axes | {e.axis})
    loads = [prod(a.size for a in x.axes) for x in walk(e.args) if x.op == "load" and e.axis in x.axes]
    return max(loads, default=0) * ROWS >= space


NEST = Strategy(
    "loop nest",
    "C functions: one loop nest, parallel over the outermost axis.",
    NestSchedule,
    applies=_efficient,
    ranked=lambda asked, count: [NestSchedule()],
    legal=lambda kernel, shape, schedule, splits: True,
    emit=_emit_nest,
)


def _has_dots(kernel: Kernel, shape: Shape) -> bool:
    """Whether a loop nest is efficient and some sum of it can be integer dot products."""
    b = kernel.builder
    if not _efficient(kernel, shape) or any(x.dtype == "float64" for x in kernel.buffers.values()):
        return False
    sums = [(e, parts) for e in kernel.reductions if (parts := blocked(b, e)) is not None]
    return any(integer_dots(b, e, parts) is not None for e, parts in sums)


DOTS = Strategy(
    "integer dots",
    "Loop nests in which sums over packed numbers are dot products of bytes; the other factor has 16 or 24 bits.",
    DotSchedule,
    applies=_has_dots,
    ranked=lambda asked, count: [DotSchedule()],
    legal=lambda kernel, shape, schedule, splits: _has_dots(kernel, shape),
    emit=_emit_nest,
)


@dataclass
class CEmitter(StrategyEmitter):
    """Emitter of C: one function per kernel."""

    name: str = "c"
    version: str = "6"
    setup: tuple[str, ...] = ("address", "c_function", "c_library")
    needs: tuple[str, ...] = ()
    strategies: tuple[Strategy[Any], ...] = field(default=(NEST, DOTS), kw_only=True)


EMITTER = CEmitter()
