"""Finds the values of a graph whose rounding decides a whole number or a truth value.

`floor(x / 49)` is 1 at 49, and 0 if the quotient is computed as the product with 1 / 49, which is just below 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.graph import Graph
from ..ir.tensor import Tensor, topological
from ..types import dtypes

#: Ops whose result jumps from one whole number to the next. (`round` jumps at halves, where quantization may differ.)
STEPS = frozenset({"floor", "ceil"})
REMAINDERS = frozenset({"mod", "floordiv"})
COMPARISONS = frozenset({"lt", "le", "eq"})
JUMPS = STEPS | REMAINDERS | COMPARISONS | {"round", "sign", "quantize"}
#: Elementwise ops that round nothing, or whose result is a whole number.
PASSING = frozenset({"neg", "abs", "maximum", "minimum", "where"})
UNROUNDED = PASSING | STEPS | {"sign", "cast", "round"}
ORDERING = frozenset({"max", "min"})  # reductions that round nothing


def before_jumps(roots: Sequence[Tensor]) -> frozenset[Tensor]:
    """The floats that reach an operand of rounding, of a comparison or of a cast to integers through elementwise ops
    and views. (Other ops, such as products of matrices, round in an order of their own.)"""
    found: set[Tensor] = set()
    for node in reversed(topological(list(roots))):
        if _jumps(node) or (node in found and (node.entry.pointwise or node.entry.kind == "view")):
            found.update(a for a in node.args if dtypes.is_float(a.dtype))
    return frozenset(found)


def rounding_decides(graph: Graph) -> bool:
    """Whether rounding of elementwise arithmetic decides a whole number or a truth value: `floor(x / 49)`, a remainder,
    a cast of `x * 0.1` to integers, `x / 255 > 0.5`. Rewriting by rules that are true of real numbers would give others
    where the exact result is a whole number or the limit.

    Comparisons count where all of it is elementwise: behind sums and products their order decides anyway.
    """
    nodes = topological(list(graph.roots))
    plain: set[Tensor] = set()
    for node in nodes:
        if not node.args or (
            (node.entry.pointwise or node.entry.kind == "view" or node.op in ORDERING) and plain.issuperset(node.args)
        ):
            plain.add(node)
    found: set[Tensor] = set()
    for node in reversed(nodes):
        floats = [a for a in node.args if dtypes.is_float(a.dtype)]
        if floats and node.op in REMAINDERS:
            return True
        if node.op in STEPS or (node.op == "cast" and dtypes.category(node.dtype) == "int"):
            found.update(floats)
        elif node.op in COMPARISONS and _jumps(node):
            found.update(a for a in floats if a in plain)
        elif node in found:
            if node.entry.pointwise and node.op not in UNROUNDED:
                return True
            if node.entry.kind == "view" or node.op in PASSING:
                found.update(floats)
    return False


def _jumps(node: Tensor) -> bool:
    if node.op == "cast":
        return not dtypes.is_float(node.dtype)
    return node.op in JUMPS and not any(_is_infinite(a) for a in node.args)


def _is_infinite(x: Tensor) -> bool:
    while x.entry.kind == "view" and len(x.args) == 1:
        (x,) = x.args
    return x.op == "full" and math.isinf(x.attr("value"))


__all__ = ["before_jumps", "rounding_decides"]
