"""Writes the innermost loop of a kernel without column reductions in explicit vectors, where it computes exponentials:
compilers vectorize the scalar functions of `backends/ir/c_math.py`, with twice as many instructions.

    for (long i1 = 0; i1 < 61 / 16 * 16; i1 += 16) {...}       vectors of 16 elements
    for (long i1 = 61 / 16 * 16; i1 < 61; i1++) {...}          the rest, as scalars

The text has the same shape for all sizes (c/any_size.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...ir.c_expressions import position
from ...ir.expr import Expr, below_maximum
from ...ir.index import Axis
from ...ir.kernel import Kernel
from .blocked import LANES
from .lanes import LOADS, TEXTS, LaneWriter

#: op -> text over vectors, besides those of lanes.py. The operands are vectors.
MATH = {
    "exp": "lanes_exp({0})", "tanh": "lanes_tanh({0})", "div": "{0} / {1}", "recip": "1.0f / {0}",
    "maximum": "lanes_where(({0} > {1}) | ({0} != {0}), {0}, {1})", "minimum": "lanes_where(({0} < {1}) | ({0} != {0}), {0}, {1})",
}  # fmt: skip
WORTH = frozenset({"exp", "tanh"})  # operations that are faster in explicit vectors


@dataclass
class MathLanes(LaneWriter):
    """LaneWriter for a loop in which `lane` counts the first of 16 elements, with elementary functions, quotients and
    limits.

    `kept`: returns the C expression of the first element's place in an array that has the values of an expression, or
    None.
    """

    kept: Callable[[Expr], str | None] = field(default=lambda e: None, kw_only=True)

    def _text(self, e: Expr) -> str:
        place = self.kept(e)
        if place is not None:
            return f"lanes_f32(&{place})"
        if (shifted := below_maximum(e)) is not None:  # a maximum of -infinity: as 0
            x, most = map(self.vector, shifted)
            return MATH[e.op].format(f"{x} - lanes_where({most} == -INFINITY, lanes(0.0f), {most})")
        if e.op in MATH:
            return MATH[e.op].format(*map(self.vector, e.args))
        if e.op == "sub":
            return TEXTS["sub"].format(*map(self.operand, e.args))
        return super()._text(e)

    def _load(self, e: Expr) -> str:
        operand, at, _, dtype = e.value
        return f"{LOADS[dtype]}({operand} + {position(at, str)})"


def stores_in_lanes(kernel: Kernel, inner: Axis) -> bool:
    """Whether a kernel's results are float32 at neighbouring positions along the axis `inner`, without guards and
    scattered positions."""
    return all(
        not s.guards and not s.parts and s.at.coefficient(inner) == 1 and inner in s.value.axes
        and kernel.buffers[s.buffer].dtype == "float32" and all(inner not in d.index.axes for d in s.at.divisions())
        for s in kernel.stores
    )  # fmt: skip


def in_lanes(roots: Iterable[Expr], inner: Axis, known: Callable[[Expr], bool]) -> bool:
    """Whether `MathLanes` can compute the expressions `roots` for 16 consecutive elements of the axis `inner` at a
    time, and computes exponentials for it. `known`: whether an expression's values are in an array."""
    stack, seen, worth = list(roots), set(), False
    while stack:
        e = stack.pop()
        if e in seen or inner not in e.axes or known(e):
            continue
        seen.add(e)
        if not _fits(e, inner) or (below_maximum(e) is not None and e.op not in MATH):
            return False
        worth |= e.op in WORTH
        stack += e.args
    return worth


def _fits(e: Expr, inner: Axis) -> bool:
    """Whether `MathLanes` has a text for one operation whose value depends on the axis `inner`."""
    if e.op == "load":
        _, at, steps, dtype = e.value
        plain = all(inner not in d.index.axes for d in at.divisions())
        return not steps and not e.args and at.coefficient(inner) == 1 and dtype in LOADS and plain
    if e.op == "cast":
        return e.kind == "float" and e.args[0].kind == "int" and inner in e.args[0].axes
    if e.op == "where":
        return e.kind == "float" and inner in e.args[0].axes
    if e.op in ("lt", "le"):
        return e.args[0].kind == "float"
    return (e.op in MATH or e.op in TEXTS) and e.kind == "float"


def whole_lanes(begin: str, end: str) -> str:
    """C text of where the last whole vector of the elements from `begin` to before `end` ends."""
    return f"{end} / {LANES} * {LANES}" if begin == "0" else f"{begin} + ({end} - {begin}) / {LANES} * {LANES}"


__all__ = ["MATH", "MathLanes", "in_lanes", "stores_in_lanes", "whole_lanes"]
