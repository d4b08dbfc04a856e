"""Loop analyses of kernel reductions that all emitters share: loop fusion and loop bounds.

A sum of exp(a - max(a)) shares the loop of its maximum (the ROLL rule: online softmax); a loop over positions ends at
the bound beyond which a mask excludes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .expr import Expr, below_maximum, factors, walk
from .index import Axis, Index, index
from .kernel import Kernel


def shared_maximum(e: Expr, axis: Axis) -> Expr | None:
    """The maximum m, along `axis`, with which the reduction `e` can share its loop (online softmax); None for other
    reductions.

    That is so for a sum of exp(a - m) times factors free of m, where m is the maximum of a along the same axis.
    """
    if e.value[0] != "sum":
        return None
    found = None
    over, under = factors(e.args[0])
    for f in over:
        inside = [x for x in walk([f]) if x.op == "reduce" and x.axis == axis]
        if not inside:
            continue
        if found is not None or f.op not in ("exp", "exp2") or f.args[0].op != "sub":
            return None
        a, m = f.args[0].args
        if (
            m.op != "reduce"
            or m.value != ("max", axis)
            or m.args[0] is not a
            or any(x.op == "reduce" and x.axis == axis for x in walk([a]))
        ):
            return None
        found = m
    if any(x.op == "reduce" and x.axis == axis for f in under for x in walk([f])):
        return None
    return found


def loop_sharing(ready: Sequence[Expr], maximum: Callable[[Expr], Expr | None]) -> list[Expr]:
    """Those of the reductions `ready`, all along one axis, that one loop can compute, in the same order (inner ones
    first).

    `maximum` returns the running maximum that a sum is relative to (online softmax), None for other reductions. A
    reduction that depends on others in `ready` is left out, unless it is a sum that depends only on its running
    maximum.
    """
    chosen: list[Expr] = []
    for e in ready:
        waits = {x for x in walk(e.args) if x in ready and x is not e}
        if not waits or ((top := maximum(e)) in chosen and waits <= {top}):
            chosen.append(e)
    return chosen


def is_softmax_sum(e: Expr) -> bool:
    """Whether the expression `e` is a sum of exp(a - max(a)), hence at least 1 (or 0 if everything is masked), so that
    its reciprocal does not overflow."""
    return e.op == "reduce" and e.value[0] == "sum" and below_maximum(e.args[0]) is not None


def exponential_of(kernel: Kernel, maximum: Expr) -> str:
    """Name of the operation (exp or exp2) that `kernel` applies to differences from the maximum `maximum`."""
    return next(x.op for x in kernel.exprs if x.op in ("exp", "exp2") and x.args[0].args[1:] == (maximum,))


@dataclass(frozen=True)
class AxisMask:
    """Mask in the expression that a reduction reduces (its body), which bounds an axis from one side: where `rest +
    side * axis >= 0` the value is `kept`, elsewhere it is the reduction's neutral element. `side` is 1 or -1. `mask`:
    the `where` node that selects. `alone`: whether the inequality is the mask's only condition."""

    rest: Index
    side: int
    mask: Expr
    kept: Expr
    alone: bool


Allowed = tuple[Index, Expr, Expr, bool]


def masks_of(e: Expr, lost: float = -math.inf) -> list[Allowed]:
    """Masks of the value `e`: parts that are the constant `lost` unless a condition holds. Each is (index, `where`
    node, unmasked value, whether the `where` has no other condition); the value may differ from `lost` only where the
    index is nonnegative."""
    if e.op == "add" and lost == -math.inf:
        return [*masks_of(e.args[0]), *masks_of(e.args[1])]
    if e.op == "mul" and e.args[1].op == "const" and e.args[1].value > 0:
        return masks_of(e.args[0], lost)
    if e.op != "where":
        return []
    c, x, y = e.args
    gone = (x.op == "const" and x.value == lost, y.op == "const" and y.value == lost)
    if gone[0] == gone[1]:
        return []
    kept = y if gone[0] else x
    return [*((i, e, kept, _compares(c)) for i in _true(c, gone[1])), *masks_of(kept, lost)]


Bound = tuple[Index, Expr, bool]


def index_bounds(e: Expr, *, hiding: bool = False) -> list[Bound]:
    """Upper bounds on indices, implied by masks: beyond them `e`, the operand of a maximum, is -inf. A list of (index,
    number, strict).

    The index is at most (`strict`: less than) the number, an integer read from memory such as a sequence's length. The
    masks are selects of -inf where a condition is false; with `hiding`, also where one is true.
    """
    if e.op == "add":
        return [*index_bounds(e.args[0], hiding=hiding), *index_bounds(e.args[1], hiding=hiding)]
    if e.op == "mul" and e.args[1].op == "const" and e.args[1].value > 0:
        return index_bounds(e.args[0], hiding=hiding)
    if e.op != "where":
        return []
    lost = [x.op == "const" and x.value == -math.inf for x in e.args[1:]]
    if lost == [True, False] and hiding:
        return _at_most(e.args[0], wanted=False)
    return _at_most(e.args[0], wanted=True) if lost[1] else []


def _at_most(c: Expr, wanted: bool) -> list[Bound]:
    """Bounds of indices by numbers in memory, implied by a condition that is true (or false, as `wanted`)."""
    return [
        (low.value, high, strict)
        for low, high, strict in _orders(c, wanted)
        if low.op == "index" and high.op not in ("index", "const") and high.kind == "int" and not _reduces(high)
    ]


def _orders(c: Expr, wanted: bool) -> list[tuple[Expr, Expr, bool]]:
    """Comparisons (low, high, strict) implied by a condition that is true (or false, as `wanted`)."""
    if c.op == "not":
        return _orders(c.args[0], not wanted)
    if c.op == ("and" if wanted else "or"):
        return [*_orders(c.args[0], wanted), *_orders(c.args[1], wanted)]
    if c.op not in ("lt", "le"):
        return []
    a, b = c.args
    return [(a, b, c.op == "lt") if wanted else (b, a, c.op == "le")]


def _reduces(e: Expr) -> bool:
    return any(x.op == "reduce" for x in walk([e]))


def body_masks(e: Expr, one: Expr) -> list[Allowed]:
    """Masks of the expression that the reduction `e` reduces (its body), as `masks_of` gives them; excluded elements do
    not contribute. Empty unless `e` is a maximum or a float sum.

    In a sum of products, a factor that is a condition cast to a number is a mask too; `one` is given as its unmasked
    value.
    """
    if e.value[0] == "max":
        return masks_of(e.args[0])
    if e.value[0] != "sum" or e.kind != "float":
        return []
    over, _ = factors(e.args[0])
    conditions = ((f, f.args[0]) for f in over if f.op == "cast" and f.args[0].kind == "bool")
    return [
        *(found for f in over for found in masks_of(f, 0.0)),
        *((i, f, one, _compares(c)) for f, c in conditions for i in _true(c, wanted=True)),
    ]


def _compares(c: Expr) -> bool:
    """Whether a condition is a single comparison."""
    return _compares(c.args[0]) if c.op == "not" else c.op in ("lt", "le")


def _true(c: Expr, wanted: bool) -> list[Index]:
    """Indices that are nonnegative where a condition is true (or false, as `wanted`)."""

    def number(e: Expr) -> Index:
        return e.value if e.op == "index" else index(e.value)

    return [
        number(high) - number(low) - strict
        for low, high, strict in _orders(c, wanted)
        if all(e.op in ("index", "const") and e.kind == "int" for e in (low, high))
    ]
