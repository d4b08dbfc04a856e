"""Decides whether two sums or maxima over index ranges are equal: z3 is queried at an arbitrary index, range by
range."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import combinations, permutations, product
from typing import Any

from ..semantics.sums import Extreme, Many, Total, same_size, subterms, unknowns
from .unknowns import SizeFacts, Unknowns

QUESTIONS = 4000


class SumEquality(Unknowns):
    """Equality proofs of symbolic sums and maxima, which have bound index variables."""

    def index(self, size: Any) -> tuple[Any, Any]:
        """(fresh z3 integer, `size`): a summation index from 0 to `size` - 1, whose bounds are recorded in `ranges`."""
        found = self.z.Int(f"sum.{next(self.summed)}")
        self.ranges[str(found)] = (found, size)
        return found, size

    def assumed(self, facts: SizeFacts, *read: Any) -> list[Any]:
        """SMT formulas that hold where the expressions `read` are evaluated: the assumptions about sizes (`facts`, and
        those of the rule) and about tensor elements, and the bounds of the summation indices in `read`."""
        found = dict.fromkeys(n for e in read for n in unknowns(self.z, e) if n in self.ranges)
        inside = [c for n in found for c in (self.ranges[n][0] >= 0, self.ranges[n][0] < self.ranges[n][1])]
        return [*self.facts.conditions, *self.given, *facts.conditions, *inside]

    def moved(self, value: Any, places: list[tuple[Any, Any]], swaps: list[tuple[Any, Any]] | None = None) -> Any:
        """A sum or maximum `value` with free indices substituted and bound indices renamed.

        `places`: pairs (free index, its replacement). Appends all substitutions to `swaps`.
        """
        z, terms = self.z, []
        for bound, *rest in value.terms:
            sizes = [z.substitute(n, *places) if places and z.is_expr(n) else n for _, n in bound]
            fresh = [self.index(n) for n in sizes]
            swap = [*places, *((k, f) for (k, _), (f, _) in zip(bound, fresh))]
            if swaps is not None:
                swaps += swap
            terms.append((tuple(fresh), *(z.substitute(e, *swap) if swap else e for e in rest)))
        return Total(tuple(terms)) if isinstance(value, Total) else Extreme(value.most, tuple(terms), value.some)

    def carried(self, assumed: list[Any], swap: list[tuple[Any, Any]]) -> list[Any]:
        """The assumptions that mention an index in `swap` (pairs of index and replacement), restated for the
        replacements.
        """
        own = {str(k) for k, _ in swap}
        return [self.z.substitute(f, *swap) for f in assumed if own & self.names_in(f)] if swap else []

    def names_in(self, fact: Any) -> frozenset[str]:
        """Names of the unknowns in a formula."""
        if not self.z.is_expr(fact):
            return frozenset()
        if fact.get_id() not in self.mentioned:
            self.mentioned[fact.get_id()] = (fact, frozenset(unknowns(self.z, fact)))
        return self.mentioned[fact.get_id()][1]

    def equal_many(self, assumed: list[Any], a: Many, b: Many) -> bool:
        """Whether z3 proves under the assumptions `assumed` that two sums, or two maxima, are equal."""
        if isinstance(a, Total) and isinstance(b, Total):
            return self.equal_totals(assumed, a, b)
        return isinstance(a, Extreme) and isinstance(b, Extreme) and self.equal_extremes(assumed, a, b)

    def equal_totals(self, assumed: list[Any], left: Total, right: Total) -> bool:
        """Whether z3 proves, under the assumptions `assumed`, that two sums are equal.

        Over each index range, the difference of the terms must vanish. The ranges are those of the sums; if these do
        not suffice, also the subranges on which conditionals in the terms are constant.
        """
        ranges = list({size: None for t in (left, right) for b, _ in t.terms for _, size in b})
        if self.equal_within(assumed, left, right, ranges):
            return True
        cut = [(p, size) for t in (left, right) for b, body in t.terms for k, size in b for p in self.seams(k, body)]
        more = [self.z.simplify(part) for p, size in cut for part in (p, size - p)]
        return bool(more) and self.equal_within(assumed, left, right, [*ranges, *dict.fromkeys(more)])

    def equal_within(self, assumed: list[Any], left: Total, right: Total, ranges: list[Any]) -> bool:
        """Whether z3 proves that two sums are equal.

        `assumed`: conditions that hold. `ranges`: sizes at which the index ranges of the sums are split before they
        are compared.
        """
        z = self.z

        def holds(claim: Any, *more: Any) -> bool:
            return self.impossible([*assumed, *more, z.Not(claim)])

        for k, size in (pair for t in (left, right) for bound, _ in t.terms for pair in bound):
            if any(str(k) in self.names_in(f) for f in assumed) and holds(size == 1):  # `parts` substitutes 0
                assumed = [*assumed, *self.carried(assumed, [(k, z.IntVal(0))])]
        groups: list[tuple[tuple[tuple[Any, Any], ...], list[Any], list[Any]]] = []
        for sign, side in ((1, left), (-1, right)):
            for bound, body in (part for term in side.terms for part in self.parts(term, ranges, holds)):
                for known, together, facts in groups:
                    if len(known) != len(bound):
                        continue
                    order = next((o for o in permutations(bound) if holds(z.And(*(p[1] == q[1] for p, q in zip(o, known)), True))),
                                 None)  # fmt: skip
                    if order is not None:
                        swap = [(p[0], q[0]) for p, q in zip(order, known)]
                        together.append(sign * z.substitute(body, *swap))
                        facts += self.carried(assumed, swap)
                        break
                else:
                    groups.append((bound, [sign * body], []))

        def cancel(bound: Any, together: list[Any], facts: list[Any]) -> bool:
            inside = [*facts, *(f for k, n in bound for f in (k >= 0, k < n))]
            whole = reduce(lambda a, b: a + b, together)
            return holds(whole == 0, *inside) or holds(self.merged(whole, [*assumed, *inside]) == 0, *inside)

        return all(cancel(*group) for group in groups)

    def equal_extremes(self, assumed: list[Any], a: Extreme, b: Extreme) -> bool:
        """Whether two maxima are over the same set of values, under the assumptions `assumed`.

        Range by range, each must contain the other's terms.
        """
        z = self.z
        if a.most != b.most:
            return False

        def holds(claim: Any, *more: Any) -> bool:
            return self.impossible([*assumed, *more, z.Not(claim)])

        ranges = list(
            {n.get_id() if z.is_expr(n) else n: n for t in (a, b) for bound, *_ in t.terms for _, n in bound}.values()
        )
        first, second = (
            [p for bound, *rest in t.terms for p in self.parts((bound, tuple(rest)), ranges, holds)] for t in (a, b)
        )

        def contained(one: Any, others: list[Any]) -> bool:
            bound, (condition, body) = one
            inside = [c for k, n in bound for c in (k >= 0, k < n)]
            if holds(z.Not(condition), *inside):
                return True
            found = []
            for known, (where, there) in others:
                for order in permutations(bound) if len(known) == len(bound) else ():
                    if holds(z.And(*(p[1] == q[1] for p, q in zip(order, known)), True)):
                        swap = [(q[0], p[0]) for p, q in zip(order, known)]
                        w, t = (z.substitute(e, *swap) if swap else e for e in (where, there))
                        found.append(z.And(w, t == body))
                        inside += self.carried(assumed, swap)
            return bool(found) and holds(z.Implies(condition, z.Or(*found)), *inside)

        return all(contained(t, second) for t in first) and all(contained(t, first) for t in second)

    def merged(self, expr: Any, assumed: list[Any]) -> Any:
        """An expression with equal reads unified and decided conditionals resolved, under the assumptions `assumed`.

        z3 fails on products of unknowns whose equality it would have to find first.
        """
        z = self.z
        for _ in range(QUESTIONS):
            calls: dict[Any, list[Any]] = {}
            choices = []
            for e in subterms(expr):
                if z.is_app(e) and e.num_args() and e.decl().kind() == z.Z3_OP_UNINTERPRETED:
                    calls.setdefault(e.decl().get_id(), []).append(e)
                elif z.is_app_of(e, z.Z3_OP_ITE):
                    choices.append(e)
            change = next(((e, e.arg(1 if yes else 2)) for e in choices for yes in (True, False)
                           if self.impossible([*assumed, z.Not(e.arg(0)) if yes else e.arg(0)])), None)  # fmt: skip
            pairs = [pair for group in calls.values() for pair in combinations(group, 2)]
            change = change or next(
                (
                    (b, a)
                    for a, b in pairs
                    if self.impossible([*assumed, z.Or(*(p != q for p, q in zip(a.children(), b.children())))])
                ),
                None,
            )
            if change is None:
                return z.simplify(expr, som=True)
            expr = z.substitute(expr, change)
        return expr

    def parts(self, term: Any, ranges: list[Any], holds: Callable[..., bool]) -> list[Any]:
        """A term (bound indices, body) as a list of simpler terms with the same sum. The body may be a tuple.

        Indices of range 1 are substituted, a sum whose terms vanish at all indices but one becomes that term, and a
        range that is the sum of two of the sizes `ranges` is split. `holds`: whether z3 proves a formula.
        """
        z, (bound, body) = self.z, term

        def put(k: Any, value: Any) -> Any:
            return (
                tuple(z.substitute(e, (k, value)) for e in body)
                if isinstance(body, tuple)
                else z.substitute(body, (k, value))
            )

        for k, size in bound:
            if holds(size == 1):
                bound, body = tuple(p for p in bound if p[0] is not k), put(k, z.IntVal(0))
        for k, size in bound if not isinstance(body, tuple) else ():
            if (place := self.only_place(k, body, holds)) is not None:
                bound = tuple(p for p in bound if p[0] is not k)
                body = z.If(z.And(place >= 0, place < size), put(k, place), z.RealVal(0))
        for at, (k, size) in enumerate(bound):
            own = () if isinstance(body, tuple) else self.seams(k, body)
            pairs = sorted(product(ranges, repeat=2), key=lambda pair: not any(same_size(pair[0], p) for p in own))
            for first, second in pairs:
                proper = not same_size(first, size) and not same_size(second, size) and holds(size == first + second)
                if proper and not holds(first == size) and not holds(second == size):  # else a part is empty
                    halves = (first, body), (second, put(k, k + first))
                    split = [((*bound[:at], (k, part), *bound[at + 1 :]), each) for part, each in halves]
                    return [found for each in split for found in self.parts(each, ranges, holds)]
        return [(bound, body)]

    def seams(self, k: Any, body: Any) -> list[Any]:
        """Values of the index `k`, as expressions of sizes only, at which comparisons with `k` in the summand `body`
        change."""
        z, found = self.z, {}
        for e in subterms(body):
            if (z.is_lt(e) or z.is_le(e) or z.is_gt(e) or z.is_ge(e)) and z.is_int(e.arg(0)):
                a, b = e.children()
                for place in (z.simplify(k - a + b), z.simplify(k + a - b)):
                    if not any(n in self.ranges or n == str(k) for n in unknowns(z, place)) and not z.is_int_value(
                        place
                    ):
                        found[place.get_id()] = place
        return list(found.values())

    def only_place(self, k: Any, body: Any, holds: Callable[..., bool]) -> Any:
        """The only value of the index `k` at which a body can be nonzero; None if z3 does not prove that there is at
        most one.

        `holds`: whether z3 proves a formula.
        """
        z = self.z
        for e in subterms(body):
            if z.is_eq(e) and z.is_arith(e.arg(0)):
                a, b = (x.arg(0) if z.is_app_of(x, z.Z3_OP_TO_REAL) else x for x in e.children())
                if z.is_int(a) and z.is_int(b):
                    place = next(
                        (
                            p
                            for p in (z.simplify(k - a + b), z.simplify(k + a - b))
                            if z.substitute(p, (k, k + 1)).eq(p)
                        ),
                        None,
                    )
                    if place is not None and holds(z.Implies(k != place, body == 0)):
                        return place
        return None
