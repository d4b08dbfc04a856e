"""What loops over a kernel's reductions may share and where they may end: questions about expressions that every emitter asks.

A sum of exp(a - max(a)) shares the loop of the maximum it reads (the ROLL rule); a mask that hides all beyond a bound ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .index import Axis, Index, index
from .kir import Expr, Kernel, below_maximum, factors, walk


def rolled(e: Expr, axis: Axis) -> Expr | None:
    """The maximum m for which a sum reduces exp(a - m) times factors free of m, where m is the maximum of a itself."""
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


def sharing(ready: Sequence[Expr], maximum: Callable[[Expr], Expr | None]) -> list[Expr]:
    """Of reductions along one axis that are ready, those that one loop can compute, inner ones first: which wait for no other, or
    for the maximum alone that they are relative to (`maximum` gives it)."""
    chosen: list[Expr] = []
    for e in ready:
        waits = {x for x in walk(e.args) if x in ready and x is not e}
        if not waits or ((top := maximum(e)) in chosen and waits <= {top}):
            chosen.append(e)
    return chosen


def at_least_one(e: Expr) -> bool:
    """Whether a value is the sum of exponentials below their maximum (or 0, where all of them are hidden): its reciprocal does
    not overflow."""
    return e.op == "reduce" and e.value[0] == "sum" and below_maximum(e.args[0]) is not None


def power_of(kernel: Kernel, maximum: Expr) -> str:
    """The exponential (exp or exp2) that is taken of values less this maximum of theirs."""
    return next(x.op for x in kernel.exprs if x.op in ("exp", "exp2") and x.args[0].args[1:] == (maximum,))


@dataclass(frozen=True)
class Room:
    """A mask keeps the elements of an axis where `rest + side * axis >= 0`; there it is `kept`, if it asks for nothing else
    (`alone`)."""

    rest: Index
    side: int
    mask: Expr
    kept: Expr
    alone: bool


Allowed = tuple[Index, Expr, Expr, bool]


def allowed(e: Expr, lost: float = -math.inf) -> list[Allowed]:
    """(index that is not negative wherever the value can be other than `lost`, the `where` that says so, what it is there, whether
    the `where` has no other condition)."""
    if e.op == "add" and lost == -math.inf:
        return [*allowed(e.args[0]), *allowed(e.args[1])]
    if e.op == "mul" and e.args[1].op == "const" and e.args[1].value > 0:
        return allowed(e.args[0], lost)
    if e.op != "where":
        return []
    c, x, y = e.args
    gone = (x.op == "const" and x.value == lost, y.op == "const" and y.value == lost)
    if gone[0] == gone[1]:
        return []
    kept = y if gone[0] else x
    return [*((i, e, kept, _compares(c)) for i in _true(c, gone[1])), *allowed(kept, lost)]


Bound = tuple[Index, Expr, bool]


def up_to(e: Expr) -> list[Bound]:
    """(index, number in memory, whether they must differ): the index is at most the number wherever what a maximum is taken of can
    be other than -inf."""
    if e.op == "add":
        return [*up_to(e.args[0]), *up_to(e.args[1])]
    if e.op == "mul" and e.args[1].op == "const" and e.args[1].value > 0:
        return up_to(e.args[0])
    if e.op != "where" or e.args[2].op != "const" or e.args[2].value != -math.inf:
        return []
    return _at_most(e.args[0], True)


def _at_most(c: Expr, wanted: bool) -> list[Bound]:
    """Bounds of indices by numbers in memory where a condition is true (or false, as wanted)."""
    return [
        (low.value, high, strict)
        for low, high, strict in _orders(c, wanted)
        if low.op == "index" and high.op not in ("index", "const") and high.kind == "int" and not _reduces(high)
    ]


def _orders(c: Expr, wanted: bool) -> list[tuple[Expr, Expr, bool]]:
    """(low, high, whether they must differ): comparisons that all hold where a condition is true (or false, as wanted)."""
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


def seen_by(e: Expr, one: Expr) -> list[Allowed]:
    """The same of what a maximum, or a sum of products, reduces: elements beyond change nothing. A condition may be a factor, which
    is `one` where it holds."""
    if e.value[0] == "max":
        return allowed(e.args[0])
    if e.value[0] != "sum" or e.kind != "float":
        return []
    over, _ = factors(e.args[0])
    conditions = ((f, f.args[0]) for f in over if f.op == "cast" and f.args[0].kind == "bool")
    return [
        *(found for f in over for found in allowed(f, 0.0)),
        *((i, f, one, _compares(c)) for f, c in conditions for i in _true(c, True)),
    ]


def _compares(c: Expr) -> bool:
    """Whether a condition is one comparison."""
    return _compares(c.args[0]) if c.op == "not" else c.op in ("lt", "le")


def _true(c: Expr, wanted: bool) -> list[Index]:
    """Indices that are not negative where a condition is true (or false, as wanted)."""

    def number(e: Expr) -> Index:
        return e.value if e.op == "index" else index(e.value)

    return [
        number(high) - number(low) - strict
        for low, high, strict in _orders(c, wanted)
        if all(e.op in ("index", "const") and e.kind == "int" for e in (low, high))
    ]
