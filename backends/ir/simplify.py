"""Simplifies elementwise operations of the kernel IR: constant folding, neutral elements, comparisons decided by index
ranges. There is one function per op, with the builder and the operands as arguments; it returns None if nothing is
simplified."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np

from ...egraph.ops.ops import OPS
from .index import Index, index

if TYPE_CHECKING:
    from .expr import Builder, Expr


def _number(e: Expr) -> Any:
    return e.value if e.op == "const" else None


def folded(b: Builder, op: str, args: Sequence[Expr], kind: str) -> Expr | None:
    """The constant, made by `b`, to which the operation `op` on the float constants `args` evaluates, if it is finite;
    None if it is not, or if an operand is no float constant. `kind`: that of the result."""
    known = OPS.get(op)
    if known is None or known.numpy is None or any(a.op != "const" or a.kind != "float" for a in args):
        return None
    with np.errstate(all="ignore"):
        value = known.numpy({}, *(np.float64(a.value) for a in args))
    return b.const(value, kind) if np.isfinite(value) else None


def _add(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
        return b.index(as_index(x) + as_index(y))
    if _number(x) is not None and _number(y) is not None:
        return b.const(x.value + y.value, x.kind)
    return y if _number(x) == 0 else x if _number(y) == 0 else None


def _sub(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
        return b.index(as_index(x) - as_index(y))
    return x if _number(y) == 0 else None


def _mul(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if _number(x) is not None and _number(y) is not None:
        return b.const(x.value * y.value, x.kind)
    return y if _number(x) == 1 else x if _number(y) == 1 else None


def _div(b: Builder, x: Expr, y: Expr) -> Expr | None:
    n = _number(y)
    if x.kind != "float" or n is None:
        return None
    # Graphs have a quotient with a number only where its rounding decides (egraph/simplify/jumps.py)
    return x if n == 1 else b.mul(x, b.const(1.0 / n)) if abs(frexp(n)[0]) == 0.5 else None


def _divided(x: Expr, y: Expr) -> tuple[Index, Index] | None:
    """Quotient and remainder of an index or integer constant by a positive constant, as indices; else None."""
    by = _number(y)
    if x.op not in ("index", "const") or x.kind != "int" or by is None or by <= 0:
        return None
    return as_index(x).split(int(by))


def _floordiv(b: Builder, x: Expr, y: Expr) -> Expr | None:
    found = _divided(x, y)
    return b.index(found[0]) if found is not None else x if x.kind == "int" and _number(y) == 1 else None


def _mod(b: Builder, x: Expr, y: Expr) -> Expr | None:
    found = _divided(x, y)
    return b.index(found[1]) if found is not None else None


def _compare(test: Callable[[Any, Any], bool]) -> Callable[[Builder, Expr, Expr], Expr | None]:
    def simple(b: Builder, x: Expr, y: Expr) -> Expr | None:
        if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
            low, high = (as_index(x) - as_index(y)).range
            if test(high, 0):
                return b.const(True, "bool")
            if not test(low, 0):
                return b.const(False, "bool")
        return None

    return simple


def _where(b: Builder, c: Expr, x: Expr, y: Expr) -> Expr | None:
    if x.kind == "bool" and x.op == y.op == "const" and x.value != y.value:
        return c if x.value else b.pointwise("not", (c,))
    if y.op == "const" and not y.value and x.op == "load" and set(conjuncts(c)) <= set(x.args[len(x.value[2]) :]):
        return x  # a load's guard already gives 0
    return (x if c.value else y) if c.op == "const" else x if x is y else None


def conjuncts(c: Expr) -> list[Expr]:
    """The conditions that the condition `c` joins by `and`; `c` itself if it is not a conjunction."""
    return [c] if c.op != "and" else [*conjuncts(c.args[0]), *conjuncts(c.args[1])]


def _and(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.kind != "bool":  # bitwise on integers
        return None
    return (y if x.value else x) if x.op == "const" else (x if y.value else y) if y.op == "const" else None


def _or(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.kind != "bool":
        return None
    return (x if x.value else y) if x.op == "const" else (y if y.value else x) if y.op == "const" else None


def _not(b: Builder, x: Expr) -> Expr | None:
    return b.const(not x.value, "bool") if x.op == "const" else x.args[0] if x.op == "not" else None


def _pow(b: Builder, x: Expr, y: Expr) -> Expr | None:
    n = _number(y)
    if n in (1.0, 2.0):  # cubes are left only where one rounding more decides
        return x if n == 1.0 else b.mul(x, x)
    plain = {0.5: "sqrt", -1.0: "recip"}.get(n) if n is not None else None
    return b.pointwise(plain, (x,)) if plain else None


SIGNS = 8  # depth of nested factors to search for a sign


def _unsigned(b: Builder, e: Expr, depth: int = SIGNS) -> Expr | None:
    """The negated value of a negation, a negative constant, or a product or quotient with such a factor; None for other
    expressions."""
    if e.op == "neg":
        return e.args[0]
    if e.op == "const":
        return b.const(-e.value, e.kind) if e.value < 0 else None
    if e.op not in ("mul", "div") or not depth:
        return None
    x, y = e.args
    if (bare := _unsigned(b, x, depth - 1)) is not None:
        return b.pointwise(e.op, (bare, y))
    return None if (bare := _unsigned(b, y, depth - 1)) is None else b.pointwise(e.op, (x, bare))


def _of_negative(b: Builder, op: str, x: Expr, odd: bool) -> Expr | None:
    """For an operand -x, -f(x) if `f` is odd, f(x) if it is even, so that f(x) and f(-x) share one computation; None
    for operands without a minus sign."""
    bare = _unsigned(b, x) if x.kind == "float" else None
    if bare is None:
        return None
    value = b.pointwise(op, (bare,))
    return b.pointwise("neg", (value,)) if odd else value


def _neg(b: Builder, x: Expr) -> Expr | None:
    return x.args[0] if x.op == "neg" and x.kind == "float" else None


def as_index(e: Expr) -> Index:
    """The Index with the value of `e`, which must be an integer constant or an index expression."""
    return e.value if e.op == "index" else index(int(e.value))


SIMPLIFY: dict[str, Callable[..., Expr | None]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "where": _where,
    "lt": _compare(operator.lt), "le": _compare(operator.le),
    "floordiv": _floordiv, "mod": _mod, "and": _and, "or": _or, "not": _not, "pow": _pow, "neg": _neg,
}  # fmt: skip


def simplifies(op: str) -> bool:
    """Whether `simplified` has a rule for the operation `op`."""
    return op in SIMPLIFY or (op in OPS and bool(OPS[op].symmetry))


def simplified(b: Builder, op: str, args: Sequence[Expr]) -> Expr | None:
    """A simpler expression, made by `b`, that equals the operation `op` on `args`; None if no rule applies."""
    if op in SIMPLIFY:
        return SIMPLIFY[op](b, *args)
    symmetry = OPS[op].symmetry if op in OPS else ""
    return _of_negative(b, op, args[0], symmetry == "odd") if symmetry else None
