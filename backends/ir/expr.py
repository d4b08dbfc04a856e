"""Defines the expressions of the kernel IR, hash-consed (one object per equal expression) scalar expressions over named
axes, and traverses them.

An expression gives the value of one element at symbolic indices: loads at affine positions, elementwise operations, and
reductions that bind an axis. Views (reshape, permute, slice, broadcast, concat, pad) become index arithmetic and cost
nothing inside a kernel.

Expressions are hash-consed within one `Builder`. A reduction reuses the axis of another one of equal size where
possible, so that loads shared between the maximum and the sum of a softmax are one node. Factors that do not depend on
a sum's axis are moved out of the sum (the DEFER rule): the row scale of a normalization follows the product, and so
does the denominator of a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from .index import Axis, Index
from .simplify import folded, simplified

T = TypeVar("T")
DECODED = {"from_float8": "float"}  # elementwise operations whose results have another kind than their operands


class Expr:
    """A scalar expression of the kernel IR.

    `op` is its operation, `args` its operands. `value` is the op's attribute:
    - const: a number
    - index: an Index
    - load: (operand, Index, strides of the data-dependent index terms, dtype)
    - reduce: (monoid, Axis)
    - scan: (monoid, Axis)
    - cast: a dtype

    The args of a load are the data-dependent index terms, then guards: where a guard is false nothing is read and the
    value is 0. Those of a scan are the value that it combines along its axis, and a position (an index): the result is
    that of the elements up to the position, which is included (a running sum). `kind` is float, int or bool; `axes` are
    the free axes; `number` is the creation order within the builder.
    """

    __slots__ = ("args", "axes", "kind", "number", "op", "value")

    def __init__(
        self, op: str, args: tuple[Expr, ...], value: Any, kind: str, axes: frozenset[Axis], number: int
    ) -> None:
        self.op, self.args, self.value, self.kind, self.axes, self.number = op, args, value, kind, axes, number

    @property
    def axis(self) -> Axis:
        """The axis that this expression, a reduction or a scan, combines along."""
        found: Axis = self.value[1]
        return found

    def __repr__(self) -> str:
        return f"<{self.op} {self.value}>" if self.value is not None else f"<{self.op}>"


def walk(roots: Iterable[Expr], known: Iterable[Expr] = ()) -> list[Expr]:
    """All expressions that `roots` depend on, and the roots, each after its operands.

    Expressions in `known`, and those that only they depend on, are left out.
    """
    order: list[Expr] = []
    seen: set[Expr] = {*known}
    stack: list[Any] = [*roots]  # None: the operands of the expression below it are done
    while stack:
        e = stack.pop()
        if e is None:
            order.append(stack.pop())
        elif e not in seen:
            seen.add(e)
            if e.args:
                stack += (e, None)
                stack += e.args[::-1]
            else:
                order.append(e)
    return order


#: Arithmetic op -> the logical op that it is on bools.
ON_BOOLS = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


class Builder:
    """Maker of expressions, which returns the same object for equal ones (hash-consing), and simplifies some."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Expr] = {}
        self.transformations: set[str] = set()  # names of transformations that changed the kernel

    def make(self, op: str, args: Sequence[Expr] = (), value: Any = None, kind: str = "float") -> Expr:
        """The expression of the operation `op` on the operands `args`, without simplification; `value`: its attribute
        (`Expr`); `kind`: float, int or bool."""
        key = (op, tuple(a.number for a in args), value, kind)
        found = self._known.get(key)
        if found is None:
            free: frozenset[Axis] = frozenset().union(*(a.axes for a in args))
            if op == "index":
                free = value.axes
            elif op == "load":
                free |= value[1].axes
            elif op == "reduce":
                free -= {value[1]}
            elif op == "scan":
                free = args[0].axes - {value[1]} | args[1].axes
            found = self._known[key] = Expr(op, tuple(args), value, kind, free, len(self._known))
        return found

    # ------------------------------------------------------------ simplifying makers
    def const(self, value: float, kind: str = "float") -> Expr:
        """The expression of the constant `value`, of a kind: "float", "int" or "bool"."""
        return self.make("const", (), {"float": float, "int": int, "bool": bool}[kind](value), kind)

    def index(self, value: Index) -> Expr:
        """The integer expression whose value is that of the index `value`."""
        return self.make("index", (), value, "int") if value.terms else self.const(value.const, "int")

    def load(
        self, operand: str, at: Index, dtype: str, parts: Sequence[tuple[Expr, int]], guards: Sequence[Expr]
    ) -> Expr:
        """The expression that loads an element of `operand` where all `guards` hold; its value is 0 where one does not.

        The element's position is the index `at` plus `parts`: data-dependent terms, each an expression and the stride
        by which it is multiplied. `dtype`: of the operand.
        """
        kind = dtypes.category(dtype)
        steps = tuple(c for _, c in parts)
        return self.make("load", (*(e for e, _ in parts), *guards), (operand, at, steps, dtype), kind)

    def less(self, a: Index, b: Index) -> Expr:
        """The comparison a < b as an expression; a constant if the ranges of the indices decide it."""
        low, high = (a - b).range
        if high < 0 or low >= 0:
            return self.const(high < 0, "bool")
        return self.make("lt", (self.index(a), self.index(b)), None, "bool")

    def pointwise(self, op: str, args: Sequence[Expr]) -> Expr:
        """The expression of the elementwise operation `op` on `args`, after constant folding and removal of neutral
        elements.

        Arithmetic on bools becomes logic operations, because languages disagree on 1 + 1 (2, or 0 in one bit).
        """
        if all(a.kind == "bool" for a in args):
            op = ON_BOOLS.get(op, op)
        known = OPS.get(op)
        kind = "bool" if known is not None and known.law == "compare" else DECODED.get(op, args[-1].kind)
        found = simplified(self, op, args) or folded(self, op, args, kind)
        return found if found is not None else self.make(op, args, None, kind)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """The product a * b as an expression, simplified."""
        return self.pointwise("mul", (a, b))

    def reduce(self, monoid: str, axis: Axis, body: Expr) -> Expr:
        """The reduction of `body` along `axis` by `monoid` ("sum", "max", ...), as an expression.

        Factors that do not depend on the axis are moved out of a sum; a reduction along an axis on which `body` does
        not depend is simplified.
        """
        if axis not in body.axes:
            return (
                self.mul(body, self.const(axis.size))
                if monoid == "sum"
                else body
                if monoid in ("max", "min")
                else self._raw(monoid, axis, body)
            )
        if monoid != "sum" or body.kind != "float":
            return self._raw(monoid, axis, body)
        over, under = factors(body)
        if not (_fits(over) and _fits(under)):
            return self._raw("sum", axis, body)
        inside = [f for f in over if axis in f.axes], [f for f in under if axis in f.axes]
        found = self._raw("sum", axis, self.product(*inside))
        rest = [f for f in over if axis not in f.axes], [f for f in under if axis not in f.axes]
        if any(f.op != "const" for f in (*rest[0], *rest[1])):
            self.transformations.add("DEFER")
        return self.product([found, *rest[0]], rest[1])

    def _raw(self, monoid: str, axis: Axis, body: Expr) -> Expr:
        return self.make("reduce", (body,), (monoid, axis), body.kind)

    def product(self, over: Sequence[Expr], under: Sequence[Expr]) -> Expr:
        """The product of the factors `over`, divided by the product of `under`, as an expression."""
        found: Expr | None = None
        for f in over:
            found = f if found is None else self.mul(found, f)
        if found is None:
            found = self.const(1.0)
        if under:
            below = under[0]
            for f in under[1:]:
                below = self.mul(below, f)
            found = self.pointwise("div", (found, below))
        return found

    def rebuilt(self, roots: Sequence[Expr], change: Callable[[Expr, tuple[Expr, ...]], Expr | None]) -> list[Expr]:
        """Rebuild `roots` bottom-up; returns the new expressions in their order.

        `change` is called with each expression and its rebuilt operands, and returns a replacement, or None to keep the
        operation on these operands.
        """
        done: dict[Expr, Expr] = {}
        for e in walk(roots):
            args = tuple(done[a] for a in e.args)
            new = change(e, args)
            done[e] = new if new is not None else e if args == e.args else self.make(e.op, args, e.value, e.kind)
        return [done[r] for r in roots]

    def substituted(self, roots: Sequence[Expr], change: Mapping[Axis, Index]) -> list[Expr]:
        """The expressions `roots` with free axes replaced: `change` maps an axis to the index in its place."""

        def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op == "index":
                return self.index(e.value.replaced(change))
            if e.op == "load":
                operand, at, steps, dtype = e.value
                return self.make("load", args, (operand, at.replaced(change), steps, dtype), e.kind)
            return None

        return self.rebuilt(roots, one)


def unknown(root: Expr, known: Callable[[Expr], bool]) -> list[Expr]:
    """The expressions that must be computed before `root` and are not known yet (`known` is false), then `root` itself,
    each after its operands.

    The operands of loads and reductions are left out, since these are computed elsewhere.
    """
    return operands_first(root, known, lambda e: e.args if e.op not in ("load", "reduce") else ())


def operands_first(root: T, known: Callable[[T], bool], reads: Callable[[T], Sequence[T]]) -> list[T]:
    """The nodes of any graph that `root` depends on, then `root`, each after its own operands; nodes for which `known`
    is true are left out.

    `reads` returns a node's operands. Iterative, because chains may have hundreds of nodes.
    """
    order: list[T] = []
    seen: set[T] = set()
    stack = [(root, False)]
    while stack:
        x, ready = stack.pop()
        if ready:
            order.append(x)
        elif x not in seen and not known(x):
            seen.add(x)
            stack.append((x, True))
            stack += [(y, False) for y in reversed(reads(x))]
    return order


def below_maximum(e: Expr) -> tuple[Expr, Expr] | None:
    """(a, m) if `e` is an exponential exp(a - m) where m is the maximum of a; None for other expressions.

    Every emitter treats m = -inf as 0 there, so that a row whose elements are all masked contributes nothing.
    """
    if e.op not in ("exp", "exp2") or e.args[0].op != "sub":
        return None
    a, m = e.args[0].args
    return (a, m) if m.op == "reduce" and m.value[0] == "max" and m.args[0] is a else None


def _fits(found: Sequence[Expr]) -> bool:
    """Whether the product of the constants among some factors is a nonzero float32 with all of its digits: 0 / 0 is NaN
    in each term of a sum, but infinite behind the sum."""
    product = math.prod(abs(float(f.value)) for f in found if f.op == "const")
    return 2.0**-126 <= product < 2.0**128


LONG = 100  # depth of an expression beyond which emitters avoid recursion
FACTORS = 256  # limit of factors of a product: repeated squaring doubles their number each time


def factors(e: Expr) -> tuple[list[Expr], list[Expr]]:
    """(factors of the numerator, factors of the denominator) of the expression `e`, a product or quotient; others are
    their own only factor.

    A product of more than `FACTORS` factors is returned as the only factor.
    """
    sides: tuple[list[Expr], list[Expr]] = [], []
    stack, steps = [(e, 0)], 0
    while stack:
        f, below = stack.pop()
        if f.op not in ("mul", "div"):
            sides[below].append(f)
            continue
        steps += 1
        if steps > FACTORS:
            return [e], []
        stack += [(f.args[1], below ^ (f.op == "div")), (f.args[0], below)]
    return sides
