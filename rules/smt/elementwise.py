"""Defines the meaning in SMT of elementwise ops: uninterpreted functions, or axioms over the reals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

from ...egraph.builders import builders as api
from ...egraph.composites.composite import expand
from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.ops import Op
from ..semantics.solver import OutOfScope
from ..semantics.sums import Extreme, Total, same_size
from .sum_arithmetic import Sums
from .unknowns import BOOL, IllTyped, SizeFacts, Sym

#: Lossless conversions: widening and narrowing back is the identity.
WIDER = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",)}
STAND_INS = (0.59375, 0.71875)  # two concrete values substituted for an unknown attribute


def fixed_points(entry: Op) -> tuple[float, ...]:
    """Constants c with op(c, …, c) == c in every number format: those of the op table; 0 for an odd function."""
    return entry.fixed or ((0.0,) if entry.symmetry == "odd" else ())


class Elements(Sums):
    """SMT semantics of elementwise ops, on symbolic values (`Sym`) and on single elements (z3 terms).

    `composites` is the nesting depth of composites that are being decomposed.
    """

    composites = 0

    @cached_property
    def poles(self) -> dict[int, tuple[Any, Any, Any, Any]]:
        """Quotients by z3 term id: (quotient, numerator, denominator, recorded condition for being undefined)."""
        return {}

    def pointwise(self, entry: Op, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        """The result of an elementwise op on symbolic values: sizes broadcast, dtypes must agree.

        Conditions for being well typed are added to `facts`. Raises OutOfScope if unsupported, IllTyped if ill typed.
        """
        z = self.z
        if len({len(a.shape) for a in args}) != 1:
            raise IllTyped
        values = args[1:] if entry.law == "where" else args
        if entry.law == "where" and not args[0].boolean:
            raise OutOfScope("a condition that is no boolean")
        if len({a.boolean for a in values}) > 1:
            raise IllTyped
        facts.conditions += [values[0].dtype == v.dtype for v in values[1:]]
        shape = []
        for sizes in zip(*(a.shape for a in args)):
            size = sizes[0]
            for other in sizes[1:]:
                facts.conditions.append(
                    z.Or(size == other, size == 1, other == 1) if size is not other else z.BoolVal(True)
                )
                size = (
                    size
                    if size is other
                    else z.If(size == 1, other, size)
                    if z.is_expr(size)
                    else other
                    if size == 1
                    else size
                )
            shape.append(size)
        boolean = entry.law == "compare" or values[0].boolean
        dtype = z.IntVal(BOOL) if entry.law == "compare" else values[0].dtype
        if entry.law == "cast":
            dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
            boolean = False

        def at(i: Sequence[Any]) -> Any:
            kind = dtype if entry.law == "cast" else values[0].dtype
            if entry.law == "cast" and values[0].boolean:
                there = values[0].at(self.narrowed(values[0].shape, i, shape))
                return z.If(there, self.number(1.0, kind), self.number(0.0, kind))
            if entry.law == "cast":
                there = values[0].at(self.narrowed(values[0].shape, i, shape))
                return self.converted(there, values[0].dtype, kind, facts)
            return self.element(
                entry, [a.at(self.narrowed(a.shape, i, shape)) for a in args], attrs, facts, boolean, kind
            )

        return Sym(tuple(shape), dtype, at, boolean)

    def converted(self, x: Any, old: Any, new: Any, facts: SizeFacts) -> Any:
        """The z3 term of an element `x` cast from dtype `old` to `new`; axioms are added to `facts`.

        It is unchanged for the same dtype, and restored when cast back from a wider format.
        """
        z = self.z
        if isinstance(x, Total | Extreme):
            x = self.name(x, facts)
        cast = self.function("cast", self.sort, z.IntSort(), self.sort)
        wider = (z.And(old == self.code(n), new == self.code(w)) for n, many in WIDER.items() for w in many)
        facts.conditions += [
            z.Implies(old == new, cast(x, new) == x),
            z.Implies(z.Or(*wider), cast(cast(x, new), old) == x),
        ]
        return cast(x, new)

    def narrowed(self, shape: Sequence[Any], i: Sequence[Any], whole: Sequence[Any] = ()) -> list[Any]:
        """Index into an operand of this shape for index `i` of an elementwise op's result.

        0 along axes of size 1, unchanged along axes of the result's size (`whole`).
        """
        z = self.z

        def narrow(d: Any, k: Any, size: Any) -> Any:
            if d is k or (size is not None and same_size(d, size)):
                return k
            if z.is_expr(d):
                return z.IntVal(0) if self.one(d) else z.If(d == 1, 0, k)
            return 0 if d == 1 else k

        return [narrow(d, k, size) for d, k, size in zip(shape, i, whole or repeat(None))]

    def one(self, size: Any) -> bool:
        """Whether z3 proves that a size is 1 under the assumptions made so far."""
        if not self.real or not self.given:
            return False
        if size.get_id() not in self.ones:
            self.ones[size.get_id()] = (
                size,
                self.impossible([*self.facts.conditions, *self.given, size != 1]),
            )
        return self.ones[size.get_id()][1]

    def element(
        self, entry: Op, x: list[Any], attrs: Mapping[str, Any], facts: SizeFacts, boolean: bool, dtype: Any
    ) -> Any:
        """z3 term of an elementwise op with attributes applied to single elements `x`; axioms are added to `facts`.

        `boolean`: whether the result is boolean. `dtype`: code of the operands' dtype. Raises OutOfScope if the op is
        not supported.
        """
        z, name = self.z, entry.name
        if name == "where":
            return self.either(*x)
        if any(isinstance(v, Total | Extreme) for v in x):
            if self.real and entry.composite:
                return self.decomposed(entry, x, attrs, facts, dtype)
            if (found := self.inside(name, x, facts)) is not None:
                return found
            x = [self.name(v, facts) for v in x]
        if all(v.sort() == z.BoolSort() for v in x):
            if entry.logic is None:
                raise OutOfScope(f"{name} of booleans")
            return entry.logic(z, *x)
        if entry.composite and (self.real or self.opened):
            return self.decomposed(entry, x, attrs, facts, dtype)
        if self.real and name in ("div", "recip"):
            return self.quotient(x[0] if name == "div" else z.RealVal(1), x[-1], facts)
        if self.real and entry.real is not None:
            return entry.real(z, *x)
        if (
            self.real
            and name == "pow"
            and (power := self.functions.power(x[0], x[1], facts.conditions, facts.undefined)) is not None
        ):
            return power
        if self.real and not attrs and (known := self.functions.of(name)):
            return known(*x, facts.conditions, facts.undefined)
        if self.real and entry.domain:  # a rule over the reals must preserve where the op is undefined
            facts.undefined.append(self.function(f"undefined {name}", *[self.sort] * len(x), z.BoolSort())(*x))
        if name == "cast":
            return self.function("cast", self.sort, z.IntSort(), self.sort)(x[0], dtype)
        if any(z.is_expr(v) for v in attrs.values()):
            raise OutOfScope(f"{name} with unknown attributes")
        label = name + ("" if not attrs else repr(sorted(attrs.items())))
        if entry.commutative and not (self.rule.exact and name in ("maximum", "minimum")):  # of 0.0 and -0.0
            # operands sorted by an uninterpreted order of all values, which encodes commutativity and nothing else
            ordered = self.function("before", self.sort, self.sort, z.BoolSort())
            first, second = z.If(ordered(*x), x[0], x[1]), z.If(ordered(*x), x[1], x[0])
            facts.conditions += [z.Or(x[0] == x[1], ordered(x[0], x[1]) != ordered(x[1], x[0]))]
            x = [first, second]
        function = self.function(label, *[self.sort] * len(x), z.IntSort(), z.BoolSort() if boolean else self.sort)
        for value in fixed_points(entry) if not self.real and not attrs else ():
            one = self.number(value, dtype)
            facts.conditions.append(function(*[one] * len(x), dtype) == one)
        return function(*x, z.IntVal(0) if self.real else dtype)  # rounding depends on the dtype

    def quotient(self, top: Any, bottom: Any, facts: SizeFacts) -> Any:
        """z3 term of top / bottom; the condition for being undefined is added to `facts`.

        c / (a / b) counts as 0 where b is 0 and a is not: only 0/0 is undefined there.
        """
        z = self.z
        pole = self.poles.pop(bottom.get_id(), None)
        if pole is not None and facts.undefined and facts.undefined[-1] is pole[-1]:
            _, above, below, _ = pole
            facts.undefined[-1] = z.Or(z.And(below == 0, above == 0), z.And(below != 0, bottom == 0))
            return z.If(below == 0, z.RealVal(0), top / bottom)
        facts.undefined.append(bottom == 0)
        found = top / bottom
        if not self.composites:  # within a composite an element may be read twice
            self.poles[found.get_id()] = (found, top, bottom, facts.undefined[-1])
        return found

    def decomposed(self, entry: Op, x: list[Any], attrs: Mapping[str, Any], facts: SizeFacts, dtype: Any) -> Any:
        """z3 term of a composite op on elements, decomposed into ops without a decomposition of their own.

        An unknown attribute is replaced by two different numbers (`STAND_INS`) in two expansions: wherever these
        numbers occur, the attribute is inserted, and nothing else may differ. Raises OutOfScope otherwise.
        """
        leaves = [api.input(f"operand{i}", (1,)) for i in range(len(x))]
        unknown = [n for n, v in attrs.items() if self.z.is_expr(v)]
        numbers = [{n: base + k for k, n in enumerate(unknown)} for base in STAND_INS]
        first, second = (expand(make(entry.name, leaves, {**attrs, **n})) for n in numbers)
        done: dict[int, Any] = {id(leaf): v for leaf, v in zip(leaves, x)}
        keep: list[Tensor] = [*leaves, first, second]

        def constant(values: list[float]) -> Any:
            if values[0] == values[1]:
                return values[0]
            if (name := next((n for n in unknown if values == [each[n] for each in numbers]), None)) is None:
                raise OutOfScope(f"{entry.name} computes with an attribute that is unknown")
            return attrs[name]

        def walk(node: Tensor, twin: Tensor) -> Any:
            keep.append(node)
            if node.op != twin.op or len(node.args) != len(twin.args):
                raise OutOfScope(f"{entry.name} depends on an attribute that is unknown")
            if id(node) not in done:
                inner = [walk(a, b) for a, b in zip(node.args, twin.args)]
                if node.op == "full":
                    done[id(node)] = self.number(constant([n.attr("value") for n in (node, twin)]), dtype)
                elif node.op in ("reshape", "broadcast_to", "permute"):
                    done[id(node)] = inner[0]
                elif node.attrs != twin.attrs:
                    raise OutOfScope(f"{entry.name} passes on an attribute that is unknown")
                else:
                    boolean = node.entry.law == "compare"
                    done[id(node)] = self.element(node.entry, inner, dict(node.attrs), facts, boolean, dtype)
            return done[id(node)]

        self.composites += 1
        try:
            return walk(first, second)
        finally:
            self.composites -= 1
