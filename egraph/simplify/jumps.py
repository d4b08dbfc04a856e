"""Finds the values of a graph whose rounding decides a whole number, a truth value or an order.

`floor(x / 49)` is 1 at 49, and 0 if the quotient is computed as the product with 1 / 49, which is just below 1.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from ..ir.graph import Graph
from ..ir.tensor import Tensor, topological
from ..types import dtypes

#: Ops whose result jumps from one whole number to the next. (`round` jumps at halves, where quantization may differ.)
STEPS = frozenset({"floor", "ceil"})
REMAINDERS = frozenset({"mod", "floordiv"})
COMPARISONS = frozenset({"lt", "le", "eq"})
JUMPS = STEPS | REMAINDERS | COMPARISONS | {"round", "sign", "quantize"}
#: Elementwise ops that round nothing, or whose result is a whole number.
PASSING = frozenset({"neg", "abs", "maximum", "minimum", "where", "relu", "clip"})
UNROUNDED = PASSING | STEPS | {"sign", "cast", "round", "to_float16", "to_bfloat16"}
ORDERING = frozenset({"max", "min"})  # reductions that round nothing
SORTS = frozenset({"argmax", "argmin", "argsort"})
#: Ops whose result is exact for small whole numbers, and quotients.
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "sum", "mean", "cumsum", "prod", "square", "cast"})
PRODUCTS = frozenset({"matmul", "conv"})


def before_jumps(roots: Sequence[Tensor]) -> frozenset[Tensor]:
    """The floats that reach an operand of rounding, of a comparison, of sorting or of a cast to integers through
    elementwise ops, reductions and ops that move values, and what `before_products` finds."""
    found: set[Tensor] = set()
    nodes = topological(list(roots))
    continuous = _of_activations(nodes)
    for node in reversed(nodes):
        decides = node.op in SORTS or (jumps(node) and node not in continuous)
        if decides or (node in found and (_moves(node) or _is_elementwise(node))):
            found.update(a for a in node.args if dtypes.is_float(a.dtype))
    return frozenset(found | before_products(nodes, continuous))


def before_products(nodes: Sequence[Tensor], continuous: Container[Tensor]) -> set[Tensor]:
    """The floats that reach an operand of rounding, of a comparison or of a cast to integers through products of
    matrices or convolutions, and arithmetic that makes whole numbers of whole numbers.

    `floor((x / 7) @ w)` is decided by the quotient where x are multiples of 7. Behind an exponential, a root or a norm
    no value is whole, so their operands are not found; nor is what computes on weights alone, which are not whole.
    `nodes`: in topological order. `continuous`: comparisons that decide nothing.
    """
    reached: set[Tensor] = set()  # by arithmetic alone
    found: set[Tensor] = set()  # and by a product
    varying: set[Tensor] = set()
    for node in nodes:
        if node.op in ("input", "state") or not varying.isdisjoint(node.args):
            varying.add(node)
    for node in reversed(nodes):
        floats = [a for a in node.args if dtypes.is_float(a.dtype) and a in varying]
        passes = _moves(node) or node.op in PASSING | ARITHMETIC | ORDERING
        if node.op in REMAINDERS | STEPS or (
            jumps(node) and node.op in COMPARISONS | {"cast"} and node not in continuous
        ):
            reached.update(floats)
        elif node in reached and (passes or node.op in PRODUCTS):
            reached.update(floats)
            if node.op in PRODUCTS:
                found.update(floats)
        if node in found and passes:
            found.update(floats)
    return found


def rounded_before_jumps(roots: Sequence[Tensor]) -> frozenset[Tensor]:
    """The float results of arithmetic, reductions and products that reach an operand of rounding, of a comparison, of
    sorting or of a cast to integers through elementwise ops, reductions and ops that move values: all of their
    roundings decide."""
    return frozenset(
        n for n in before_jumps(roots)
        if n.args and not _moves(n) and n.op not in UNROUNDED - {"cast"} and n.op not in ORDERING
    )  # fmt: skip


def deciding(graph: Graph) -> frozenset[Tensor]:
    """The elementwise arithmetic whose rounding decides a whole number, a truth value or an order: `floor(x / 49)`, a
    remainder, a cast of `x * 0.1` to integers, `x / 255 > 0.5`. Rewriting it by rules that are true of real numbers
    would give others where the exact result is a whole number, the limit or a tie.

    Behind sums and products the order of terms decides comparisons, unless all terms are exact, as sums of whole
    numbers are. Then only arithmetic counts that rounds them (`x.sum() / 49 >= 1`; in front of products of matrices
    see `before_products`).
    Sorting counts where all of it is elementwise. Conditions `x > 0` that choose between x and another value do not
    count: activations are continuous there.
    """
    nodes = topological(list(graph.roots))
    plain: set[Tensor] = set()
    for node in nodes:
        if not node.args or (
            (node.entry.pointwise or _moves(node) or node.op in ORDERING or node.op in SORTS)
            and plain.issuperset(node.args)
        ):
            plain.add(node)
    continuous = _of_activations(nodes)
    all_of: set[Tensor] = set()  # values of which all arithmetic counts
    rounded: set[Tensor] = set()  # values of which arithmetic counts that makes inexact values of whole numbers
    deciding = {node for node in before_products(nodes, continuous) if _is_inexact(node)}
    for node in reversed(nodes):
        floats = [a for a in node.args if dtypes.is_float(a.dtype)]
        if floats and node.op in REMAINDERS:
            deciding.add(node)
            all_of.update(floats)
        elif node.op in STEPS or (node.op == "cast" and dtypes.category(node.dtype) == "int"):
            all_of.update(floats)
            rounded.update(floats)
        elif node.op in COMPARISONS and jumps(node) and node not in continuous:
            all_of.update(a for a in floats if a in plain)
            rounded.update(floats)
        elif node.op in SORTS:
            all_of.update(a for a in floats if a in plain)
        else:
            if node in all_of:
                if node.entry.pointwise and node.op not in UNROUNDED:
                    deciding.add(node)
                if (_moves(node) or node.entry.pointwise) and node.op not in STEPS | {"round"}:
                    all_of.update(floats)
            if node in rounded:
                if _is_inexact(node):
                    deciding.add(node)
                if (_moves(node) or _is_elementwise(node)) and node.op not in STEPS | {"round"}:
                    rounded.update(floats)
    return frozenset(deciding)


def _moves(node: Tensor) -> bool:
    """Whether the elements of the result are elements of the operands, or constants."""
    return node.entry.kind in ("view", "layout") or node.op in ("gather", "gather_elements", "scatter_elements")


def _is_elementwise(node: Tensor) -> bool:
    """Whether an op is elementwise or a reduction: exact for small whole numbers, if its arithmetic is."""
    return node.entry.pointwise or node.entry.kind == "reduction" or node.op == "mean"


def _is_inexact(node: Tensor) -> bool:
    """Whether an op makes inexact values of whole numbers: quotients, roots and products with a constant that is no
    power of two."""
    if node.op == "mul":
        values = [a.attr("value") for a in map(behind_views, node.args) if a.op == "full"]
        return any(math.isfinite(v) and abs(math.frexp(v)[0]) not in (0.0, 0.5) for v in values)
    return node.op in ("div", "mean", "recip", "sqrt", "rsqrt", "pow") and dtypes.is_float(node.dtype)


def _of_activations(nodes: Sequence[Tensor]) -> set[Tensor]:
    """The comparisons of a value x with 0 of which each use is a choice between x and another value."""
    chosen: dict[Tensor, bool] = {}
    for node in nodes:
        for a in node.args:
            if a.op in COMPARISONS:
                x = _compared_with_zero(a)
                here = node.op == "where" and x is not None and x in map(behind_views, node.args[1:])
                chosen[a] = chosen.get(a, True) and here
    return {node for node, only in chosen.items() if only}


def _compared_with_zero(comparison: Tensor) -> Tensor | None:
    """The value, behind its views, that is compared with 0; None if neither operand is 0."""
    x, y = map(behind_views, comparison.args)
    zero = [a.op == "full" and not a.attr("value") for a in (x, y)]
    return y if zero[0] else x if zero[1] else None


def jumps(node: Tensor) -> bool:
    """Whether the result of an op jumps from one whole number or truth value to the next."""
    if node.op == "cast":
        return not dtypes.is_float(node.dtype)
    return node.op in JUMPS and not any(_is_infinite(a) for a in node.args)


def behind_views(x: Tensor) -> Tensor:
    """The value whose elements a chain of views has."""
    while x.entry.kind == "view" and len(x.args) == 1:
        (x,) = x.args
    return x


def _is_infinite(x: Tensor) -> bool:
    x = behind_views(x)
    return x.op == "full" and math.isinf(x.attr("value"))


__all__ = ["before_jumps", "before_products", "behind_views", "deciding", "jumps", "rounded_before_jumps"]
