"""Computes the structure of a kernel without its numbers, to compare lowerings of the same terms at different sizes."""

from __future__ import annotations

from typing import Any

from .expr import Expr
from .index import Axis, Index
from .kernel import Kernel


def structure(kernel: Kernel) -> tuple[Any, ...]:
    """The structure of `kernel`, a hashable value: operations, index divisions and decided conditions, but no sizes or
    strides. Kernels that differ in numbers only have equal structures.

    Lowering simplifies index arithmetic and decides comparisons by the ranges of axes. If the structures at two choices
    of sizes differ, neither kernel is correct at the other sizes.
    """
    place = {e: i for i, e in enumerate(kernel.exprs)}
    values = tuple((e.op, e.kind, tuple(place[a] for a in e.args), _attribute(e)) for e in kernel.exprs)
    stores = ((s.buffer, _skeleton(s.at), *(place[e] for e in s.exprs)) for s in kernel.stores)
    return values, tuple(stores)


def _attribute(e: Expr) -> Any:
    if e.op == "const":
        return e.value if e.kind == "bool" else None
    if e.op == "index":
        return _skeleton(e.value)
    if e.op == "load":
        operand, at, steps, dtype = e.value
        return operand, _skeleton(at), len(steps), dtype
    return e.value[0] if e.op == "reduce" else e.value


def _skeleton(at: Index) -> tuple[Any, ...]:
    """Terms of an index: axes (0), quotients and remainders (their operand's terms)."""
    return tuple(
        sorted(
            ((0,) if isinstance(atom, Axis) else (1 + atom.rest, _skeleton(atom.index)) for atom, _ in at.terms),
            key=repr,
        )
    )


__all__ = ["structure"]
