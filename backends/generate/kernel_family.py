"""Names the family of a generated kernel in reports, from the ops of its terms."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological


def family_of(roots: Sequence[Tensor]) -> str:
    """Family, in reports, of the kernel that computes the terms `roots`: attention, conv, contraction, reduction or
    pointwise."""
    return _family(tuple(roots))


@memo(4096)
def _family(roots: tuple[Tensor, ...]) -> str:
    nodes = topological(roots)
    ops = {t.op for t in nodes}
    if any(t.entry.law == "attention" for t in nodes):
        return "attention"
    if "conv" in ops:
        return "conv"
    if ops & {"matmul", "linear"}:
        return "contraction"
    plain = (t.is_leaf or t.entry.pointwise or t.entry.kind == "view" or updates_input(t) for t in nodes)
    return "pointwise" if all(plain) else "reduction"


def updates_input(t: Tensor) -> bool:
    """Whether the term `t` replaces some elements of an input (scatter), so that its result is the input updated."""
    return t.op == "scatter_elements" and t.args[0].op == "input"


def fills_constant(t: Tensor) -> bool:
    """Whether the term `t` writes some elements of a constant tensor (scatter), such as zeros that it adds to."""
    return t.op == "scatter_elements" and t.args[0].op == "full"
