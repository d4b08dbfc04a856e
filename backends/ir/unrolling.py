"""Unrolls reductions of the kernel IR into separate expressions, and replaces axes by indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .expr import Builder, Expr
from .index import Axis, Index, index
from .simplify import simplifies

#: Reduction -> op that combines two values.
COMBINING_OP = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


def moved(b: Builder, roots: Sequence[Expr], change: Mapping[Axis, Index]) -> list[Expr]:
    """The expressions `roots` rebuilt in builder `b` with each axis in `change` replaced by its index; conditions that
    become constant are folded."""
    known: dict[Index, Index] = {}

    def put(at: Index) -> Index:
        terms = Index(at.terms)  # cached: many indices differ in the constant only
        if terms not in known:
            known[terms] = terms.replaced(change)
        return known[terms] + at.const

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == "index":
            return b.index(put(e.value))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            if any(g.op == "const" and not g.value for g in args):
                return b.const(0, e.kind)
            guards = tuple(g for g in args if g.op != "const")
            return b.make("load", guards, (operand, put(at), steps, dtype), e.kind)
        return b.pointwise(e.op, args) if simplifies(e.op) else b.make(e.op, args, e.value, e.kind)

    return b.rebuilt(roots, one)


def guarded(b: Builder, roots: Sequence[Expr], guards: Sequence[Expr]) -> list[Expr]:
    """The expressions `roots` rebuilt in builder `b`, whose loads are read where the conditions `guards` hold, too."""

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        return b.make("load", (*args, *guards), e.value, e.kind) if e.op == "load" else None

    return b.rebuilt(roots, one) if guards else list(roots)


def unrolled(b: Builder, roots: Sequence[Expr]) -> tuple[list[Expr], list[list[Expr]]]:
    """(`roots` rebuilt in builder `b` without reductions, the partial values of each reduction). Each element of a
    reduction becomes an expression of its own; the partial values are those after one element, two elements and so on.
    """
    steps: list[list[Expr]] = []

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op != "reduce":
            return b.make(e.op, args, e.value, e.kind)
        found: list[Expr] = []
        for k in range(e.axis.size):
            (term,) = moved(b, args, {e.axis: index(k)})
            found.append(b.pointwise(COMBINING_OP[e.value[0]], (found[-1], term)) if found else term)
        steps.append(found)
        return found[-1]

    return b.rebuilt(roots, one), steps


__all__ = ["COMBINING_OP", "guarded", "moved", "unrolled"]
