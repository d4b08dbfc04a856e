"""Computes with symbolic sums and maxima: ops that move inside, and names for sums that other ops read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from ...egraph.ops.ops import OPS
from ..semantics.solver import OutOfScope
from ..semantics.sums import Extreme, Total, bodies, factors, product_of, sum_of, summands, unknowns
from .equal_sums import SumEquality
from .unknowns import SizeFacts

NAMED = 24  # limit on named sums and maxima


class Sums(SumEquality):
    """Arithmetic of symbolic values whose elements are sums (`Total`) or maxima (`Extreme`)."""

    def total(self, read: Callable[[], Any], facts: SizeFacts, indices: Sequence[tuple[Any, Any]]) -> Total:
        """The symbolic sum of the term that `read()` returns, over all values of the index variables in it: `indices`,
        as (variable, size) pairs. Formulas about the term are added to `facts`, those collected for the proof.

        Raises OutOfScope unless the terms are finite everywhere.
        """
        if not self.real:
            raise OutOfScope("a sum of uninterpreted elements")
        before = len(facts.undefined)
        found = self.summand(read(), facts).over(*indices)
        self.everywhere(facts, before, indices)
        return found

    def largest(
        self, read: Callable[[], Any], facts: SizeFacts, indices: Sequence[tuple[Any, Any]], most: bool
    ) -> Extreme:
        """The maximum (`most`) or minimum of the term that `read()` gives, over all values of the index variables.

        `indices`: (index variable, size) pairs. `facts`: what is known of sizes. Raises OutOfScope unless the term is
        known to be finite at every index.
        """
        if not self.real:
            raise OutOfScope("a maximum of uninterpreted elements")
        before = len(facts.undefined)
        found = read()
        if self.extreme(found, most) is None:
            found = self.name(found, facts)
        sets = self.extreme(found, most)
        assert sets is not None
        self.everywhere(facts, before, indices)
        return Extreme(most, tuple(((*indices, *bound), c, body) for bound, c, body in sets.terms))

    def everywhere(self, facts: SizeFacts, before: int, indices: Sequence[tuple[Any, Any]]) -> None:
        """Eliminates bound `indices` from the undefinedness conditions of `facts` recorded after the first `before`
        ones.

        A term undefined at one index must be undefined at all indices; raises OutOfScope if z3 does not prove that.
        """
        z = self.z
        inside = z.And(*(n > 0 for _, n in indices), True)
        for at in range(before, len(facts.undefined)):
            condition = facts.undefined[at]
            moved = z.substitute(condition, *((k, z.Int(f"other {k}")) for k, _ in indices))
            if not moved.eq(condition):
                others = [c for k, n in indices for c in (z.Int(f"other {k}") >= 0, z.Int(f"other {k}") < n)]
                if not self.impossible([*self.assumed(facts, condition), *others, condition != moved]):
                    raise OutOfScope("a sum of terms that are not finite everywhere")
                condition = z.substitute(condition, *((k, z.IntVal(0)) for k, _ in indices))
            facts.undefined[at] = z.And(condition, inside)

    def summand(self, value: Any, facts: SizeFacts) -> Total:
        """A value as a sum; a maximum is replaced by an uninterpreted name, with axioms in `facts`."""
        return Total.of(self.name(value, facts) if isinstance(value, Extreme) else value)

    def extreme(self, x: Any, most: bool) -> Extreme | None:
        """A value as a set whose maximum (`most`) or minimum is taken; None for a sum or for the opposite kind."""
        if isinstance(x, Total):
            return None
        found = x if isinstance(x, Extreme) else Extreme(most, (((), self.z.BoolVal(True), x),), True)
        return found if found.most == most else None

    def joined(self, most: bool, *x: Any) -> Extreme | None:
        """The maximum (`most`) or minimum of several values as one set; None if a value is a sum or of the opposite
        kind.
        """
        found = [self.extreme(v, most) for v in x]
        sets = [f for f in found if f is not None]
        terms = tuple(t for f in sets for t in f.terms)
        return Extreme(most, terms, any(f.some for f in sets)) if len(sets) == len(x) else None

    def there(self, value: Extreme, facts: SizeFacts) -> Extreme:
        """The maximum or minimum `value`, marked as over a nonempty set.

        Adds to `facts.undefined` the condition that all its index ranges are empty. Raises OutOfScope if emptiness
        depends on more than sizes.
        """
        z = self.z
        if value.some:
            return value
        if not all(z.is_true(condition) for _, condition, _ in value.terms):
            raise OutOfScope("a function of the maximum of a possibly empty set")
        facts.undefined.append(z.And(*(z.Or(*(n <= 0 for _, n in bound), False) for bound, *_ in value.terms)))
        return replace(value, some=True)

    def alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """(a, b) in a common representation: both as sets whose maximum or minimum is taken, or both as sums; an
        operand that cannot be represented so is unchanged.
        """
        if isinstance(a, Extreme) or isinstance(b, Extreme):
            most = (a if isinstance(a, Extreme) else b).most
            return self.extreme(a, most) or a, self.extreme(b, most) or b
        return Total.of(a), Total.of(b)

    def either(self, condition: Any, x: Any, y: Any) -> Any:
        """The value `x` where a condition holds, else `y`; both may be sums or maxima.

        Raises OutOfScope if they cannot be combined.
        """
        z = self.z
        if isinstance(condition, Total | Extreme):
            raise OutOfScope("a condition on a sum")
        if isinstance(x, Extreme) or isinstance(y, Extreme):
            most = (x if isinstance(x, Extreme) else y).most
            a, b = self.extreme(x, most), self.extreme(y, most)
            if a is None or b is None:
                raise OutOfScope("a choice between a maximum and something else")
            return Extreme(most, a.only(z, condition).terms + b.only(z, z.Not(condition)).terms, a.some and b.some)
        if not isinstance(x, Total) and not isinstance(y, Total):
            return z.If(condition, x, y)
        first = Total.of(x).map(lambda body: z.If(condition, body, z.RealVal(0)))
        return first.plus(Total.of(y).map(lambda body: z.If(condition, z.RealVal(0), body)))

    def linear(self, name: str, x: list[Total]) -> Total | None:
        """A linear op applied to sums; None if the op is not linear."""
        if name in ("add", "sub"):
            return x[0].plus(x[1] if name == "add" else x[1].map(lambda body: -body))
        if name == "neg":
            return x[0].map(lambda body: -body)
        if name == "mul":
            own = [{str(k) for bound, _ in v.terms for k, _ in bound} for v in x]
            return x[0].times(x[1] if not own[0] & own[1] else self.moved(x[1], []))
        return None

    def inside(self, name: str, x: list[Any], facts: SizeFacts) -> Any:
        """The op `name` on elements, moved inside a sum or a maximum; None if that is not valid.

        Axioms, and conditions for being undefined, are added to `facts`.
        """
        if not any(isinstance(v, Extreme) for v in x):
            if name == "div" and not isinstance(x[1], Total):
                facts.undefined.append(x[1] == 0)
                return Total.of(x[0]).map(lambda body: body / x[1])
            return self.linear(name, list(map(Total.of, x)))
        if name in ("maximum", "minimum"):
            return self.joined(name == "maximum", *x)
        if len(x) == 1:
            (one,) = x
            assert isinstance(one, Extreme)
            if name == "neg":
                return one.map(lambda body: -body, turned=True)
            one = self.there(one, facts)
            if name == "recip" and all(
                self.impossible([*self.assumed(facts, c, b), c, b <= 0]) for _, c, b in one.terms
            ):
                return one.map(lambda body: 1 / body, turned=True)
            if name == "exp":
                return self.functions.exp(self.name(one, facts), facts.conditions, facts.undefined)
            law = self.functions.of(name)
            return (
                one.map(lambda body: law(body, facts.conditions, facts.undefined))
                if law and OPS[name].monotone
                else None
            )
        if sum(isinstance(v, Total) for v in x):
            return None
        if sum(isinstance(v, Extreme) for v in x) == 2:
            same = (
                name == "add"
                and x[0].most == x[1].most
                and self.equal_extremes(self.assumed(facts, *bodies(x[0]), *bodies(x[1])), x[0], x[1])
            )
            return x[0].map(lambda body: body + body) if same else None
        one, other = x if isinstance(x[0], Extreme) else x[::-1]
        if name in ("add", "sub"):
            signs = [-1 if name == "sub" and v is x[1] else 1 for v in (one, other)]
            return one.map(lambda body: signs[0] * body + signs[1] * other, turned=signs[0] < 0)
        if name in ("mul", "div") and (name == "mul" or one is x[0]):
            bad = other < 0 if one.some else other <= 0
            if self.impossible([*self.assumed(facts, other), bad]):
                if name == "div":
                    facts.undefined.append(other == 0)
                return one.map(lambda body: body * other if name == "mul" else body / other)
        return None

    def name(self, value: Any, facts: SizeFacts) -> Any:
        """Uninterpreted name for a sum or maximum; factors and summands that do not depend on its indices stay outside.

        Two sums or maxima that are equal wherever they are read get the same name. Sign facts about the name are
        recorded. Raises OutOfScope if that is not supported.
        """
        z = self.z
        if not isinstance(value, Total | Extreme):
            return value
        if isinstance(value, Extreme):
            value = self.there(value, facts)
            exponents = [self.functions.exponent(body) for *_, body in value.terms]
            if all(e is not None for e in exponents):
                terms = tuple((*rest, e) for (*rest, _), e in zip(value.terms, exponents))
                return self.functions.exp(
                    self.name(Extreme(value.most, terms, True), facts), facts.conditions, facts.undefined
                )
            if not value.most:
                return -self.name(value.map(lambda body: -body, turned=True), facts)
        if len(value.terms) == 1 and (outside := self._pulled_out(value, facts)) is not None:
            return outside
        own = {str(k) for bound, *_ in value.terms for k, _ in bound}
        read = dict.fromkeys(n for e in bodies(value) for n in unknowns(z, e) if n in self.ranges and n not in own)
        free = [self.ranges[n][0] for n in read]
        assumed = self.assumed(facts, *free)
        if (known := self._known_name(value, free, assumed, facts)) is not None:
            return known
        if len(self.names) == NAMED:
            raise OutOfScope("too many sums and maxima")
        label, number = f"named {len(self.names)}", z.IntSort()
        function = self.function(label, *[number] * len(free), z.RealSort()) if free else z.Real(label)
        self.names.append((value, free, function))
        found = function(*free) if free else function
        self._record_sign(found, value, assumed, facts)
        return found

    def _pulled_out(self, value: Total | Extreme, facts: SizeFacts) -> Any:
        """A sum or maximum over one term, with factors or summands outside that do not depend on its indices; None if
        there are none."""
        z = self.z
        ((bound, *rest),) = value.terms
        own = {str(k) for k, _ in bound}
        for products in [True] if isinstance(value, Total) else [False, True]:
            parts = factors(z, rest[-1]) if products else summands(z, rest[-1])
            outer = [p for p in parts if not own & set(unknowns(z, p[0]))]
            if not outer or len(outer) == len(parts):
                continue
            join = product_of if products else sum_of
            common, inner = join(z, outer), join(z, [p for p in parts if not any(p is o for o in outer)])
            if isinstance(value, Total):
                return common * self.name(Total(((bound, inner),)), facts)
            if not products:
                return common + self.name(Extreme(value.most, ((bound, rest[0], inner),), True), facts)
            if self.impossible([*self.assumed(facts, common), common <= 0]):
                return common * self.name(Extreme(value.most, ((bound, rest[0], inner),), True), facts)
        return None

    def _known_name(self, value: Total | Extreme, free: Sequence[Any], assumed: Sequence[Any], facts: SizeFacts) -> Any:
        """The name of an equal sum or maximum, applied to the index variables `free` that `value` reads in some order;
        None if there is none. `assumed`: conditions under which they must be equal."""
        for known, places, function in self.names:
            if type(known) is not type(value) or len(places) != len(free):
                continue
            for order in permutations(free):
                swaps: list[tuple[Any, Any]] = []
                there = self.moved(known, list(zip(places, order)), swaps)
                more = self.carried([*self.facts.conditions, *facts.conditions], swaps)
                if self.equal_many([*assumed, *more], there, value):
                    return function(*order) if order else function
        return None

    def _record_sign(self, found: Any, value: Total | Extreme, assumed: Sequence[Any], facts: SizeFacts) -> None:
        """Add to `facts` whether the name `found` of a sum or maximum is nonnegative, positive or negative, where the
        signs of its terms decide that."""
        within = [[c for k, n in bound for c in (k >= 0, k < n)] for bound, *_ in value.terms]
        read_in = [(i, body) for i, (*_, body) in zip(within, value.terms)]

        def never(fails: Callable[[Any], Any]) -> bool:
            return all(self.impossible([*assumed, *i, fails(body)]) for i, body in read_in)

        extreme = isinstance(value, Extreme)
        if never(lambda body: body < 0):
            facts.conditions.append(found >= 0)
            if extreme and never(lambda body: body == 0):
                facts.conditions.append(found > 0)
        elif extreme and never(lambda body: body >= 0):
            facts.conditions.append(found < 0)
