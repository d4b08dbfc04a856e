"""Simplifies a graph before the search: identities, view folding, bounded constant folding.

One bottom-up pass. Operands are simplified before their user, and nodes that a rule builds pass through the same rules,
so the result is a fixpoint. Hash-consing gives common subexpression elimination, and reachability from the outputs
gives dead code elimination.

`exact` preserves every bit (except NaN payloads): only steps that hold in floating-point arithmetic are taken.
Otherwise steps may change rounding, the sign of a zero, and `pow` of negative zero or infinity. No step copies weights:
expressions of parameters stay and are folded when weights are bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ir.graph import Graph
from ..ir.tensor import Tensor
from ..ops.ops import OPS
from .casts import simplify_cast
from .folding import canonical_fill, empty_as_fill, fold, uniform_constant
from .jumps import before_jumps
from .pointwise import (
    applied_twice,
    equal_operands,
    operand_order,
    simplify_add,
    simplify_clip,
    simplify_div,
    simplify_logic,
    simplify_mul,
    simplify_pow,
    simplify_sub,
    simplify_where,
    without_broadcasts,
)
from .reductions import along_one_element, any_of_positions, mean_of_whole_numbers, simplify_reduction
from .simplifier import FOLD_BYTES, Rule, Simplifier
from .views import (
    simplify_concat,
    simplify_flip,
    simplify_gather,
    simplify_pad,
    simplify_permute,
    simplify_shape,
    simplify_slice,
    simplify_windows,
)


def simplify(graph: Graph, *, exact: bool = False, fold_bytes: int = FOLD_BYTES) -> Graph:
    """An equivalent simplified graph; the same object if nothing changed.

    `exact`: only rules that change no bit of a value. Constant folding is limited to `fold_bytes` per value.
    """
    return simplified(graph, (), exact=exact, fold_bytes=fold_bytes)[0]


def simplified(
    graph: Graph, values: Iterable[Tensor], *, exact: bool = False, fold_bytes: int = FOLD_BYTES
) -> tuple[Graph, list[Tensor]]:
    """(`simplify(graph)`, what became of some of its values)."""
    run = Simplifier(_rules, exact, fold_bytes, sharp=before_jumps(graph.roots))
    roots = [run.visit(r) for r in graph.roots]
    same = all(a is b for a, b in zip(roots, graph.roots, strict=True))
    return graph if same else graph.with_roots(roots), [run.visit(v) for v in values]


_POINTWISE: tuple[Rule, ...] = (operand_order, without_broadcasts)


def _rules(op: str) -> Iterator[Rule]:
    """The simplification rules of an op, in the order in which they are tried."""
    entry = OPS[op]
    yield from (empty_as_fill, fold)
    if entry.twice:
        yield applied_twice
    if entry.monoid:
        yield simplify_reduction
    yield from RULES.get(op, ())
    if entry.pointwise:
        yield from _POINTWISE


#: op -> simplification rules, tried in order after those by the facts of its entry (`_rules`).
RULES: dict[str, tuple[Rule, ...]] = {
    "full": (canonical_fill,),
    "constant": (uniform_constant,),
    "add": (simplify_add,),
    "sub": (simplify_sub,),
    "mul": (simplify_mul,),
    "div": (simplify_div,),
    "pow": (simplify_pow,),
    "maximum": (equal_operands,),
    "minimum": (equal_operands,),
    "and": (simplify_logic,),
    "or": (simplify_logic,),
    "where": (simplify_where,),
    "cast": (simplify_cast,),
    "mean": (simplify_reduction, mean_of_whole_numbers),
    "max": (any_of_positions,),
    "cumsum": (along_one_element,),
    "flip": (along_one_element, simplify_flip),
    "reshape": (simplify_shape,),
    "permute": (simplify_permute,),
    "broadcast_to": (simplify_shape,),
    "slice": (simplify_slice,),
    "concat": (simplify_concat,),
    "pad": (simplify_pad,),
    "windows": (simplify_windows,),
    "gather": (simplify_gather,),
    "clip": (simplify_clip,),
}


__all__ = ["simplified", "simplify"]
