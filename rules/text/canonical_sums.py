"""Brings sums of monomials to a canonical form: simplification, and a text that is the same for sums that differ only
in the names of summation indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

from .linear_equations import ZERO, Affine
from .monomials import CONDITIONS, Factor, IndexPolynomial, Monomial, Sum, variables_of
from .signs import Effort, Unprovable
from .symbolic_indices import SymbolicIndices

ORDERS = 720  # limit on renamings of indistinguishable summation indices


class CanonicalSums:
    """Simplifier and printer of sums of monomials over the index variables `indices`, within a limit on work."""

    def __init__(self, indices: SymbolicIndices, effort: Effort) -> None:
        self.indices, self.effort = indices, effort
        self.texts: dict[Affine, str] = {}

    def simple(self, terms: Sum) -> Sum:
        """The sum of monomials `terms`, simplified: monomials that are zero are removed, Kronecker deltas are
        eliminated by substituting an index where possible, and guards (factors that are 1 where an index is in bounds,
        else 0) are dropped if they always hold.
        """
        return tuple(m for t in terms if (m := self.solved(t)) is not None)

    def solved(self, term: Monomial) -> Monomial | None:
        """The monomial simplified until nothing applies; None if it is zero."""
        while True:
            step = next((s for f in term.factors if (s := self.step(term, f)) is not None), None)
            if step is None:
                return term
            if step is False:
                return None
            assert isinstance(step, Monomial)
            term = step

    def step(self, term: Monomial, factor: Factor) -> Monomial | bool | None:
        """The monomial after one simplification of its factor `factor`; False if it is zero, None if nothing applies.

        Raises Unprovable for an identity matrix at a strided index.
        """
        if factor.kind not in CONDITIONS:
            return None
        self.effort.spend()
        (index,), rest = factor.indices, tuple(f for f in term.factors if f is not factor)
        if factor.kind == "guard":
            inside = self.indices.within(index, factor.size)
            if inside is None and any(self.implies(f, factor) for f in rest if f.kind in CONDITIONS):
                inside = True
            if inside is None:
                return self.shifted(term, factor, rest)
            return inside and Monomial(term.coefficient, rest, term.bound)
        if not index.parts and self.indices.signs.zero(index.offset):
            return Monomial(term.coefficient, rest, term.bound)
        if self.indices.within(index, Affine.of(1)) is False:
            return False
        self.alone(term.bound)
        for v, c in index.parts:
            if v in term.bound and abs(c) == 1:
                others = IndexPolynomial(index.offset, tuple(p for p in index.parts if p[0] != v))
                value = IndexPolynomial(Affine.of(0)).plus(others, -c)
                inside = self.indices.within(value, self.indices.ranges[v])
                if inside is False:
                    return False
                bound = tuple(b for b in term.bound if b != v)
                kept = () if inside else (Factor("guard", indices=(value,), size=self.indices.ranges[v]),)
                return Monomial(term.coefficient, (*kept, *(f.put(v, value) for f in rest)), bound)
        if any(v in term.bound for v, _ in index.parts):
            raise Unprovable("an identity matrix at a strided index")
        return self.replaced(term, factor, rest)

    def replaced(self, term: Monomial, factor: Factor, rest: tuple[Factor, ...]) -> Monomial | None:
        """The monomial with the last index of an index equation (`factor`) substituted by the equation's other indices;
        None if no index can be.

        `rest`: the monomial's other factors.
        """
        (index,) = factor.indices
        last = max((v for v, c in index.parts if abs(c) == 1), default=None)
        steps = {
            v
            for product in (*self.indices.products.values(), *(b for b, _ in self.indices.products))
            for v in (product,)
        }
        if last is None or last in steps or not any(last in variables_of(f) for f in rest):
            return None
        value = IndexPolynomial(ZERO).plus(
            IndexPolynomial(index.offset, tuple(p for p in index.parts if p[0] != last)), -dict(index.parts)[last]
        )
        return Monomial(term.coefficient, (factor, *(f.put(last, value) for f in rest)), term.bound)

    def implies(self, known: Factor, guard: Factor) -> bool:
        """Whether the condition `known` implies the condition `guard`, both on indices that differ by a constant
        offset."""
        (index,), (other,) = guard.indices, known.indices
        apart = index.plus(other, -1)
        if apart.parts or known == guard:
            return False
        size = known.size if known.kind == "guard" else Affine.of(1)  # the other index is in [0, size)
        return self.indices.signs.nonnegative(apart.offset) and self.indices.signs.nonnegative(
            guard.size - apart.offset - size
        )

    def alone(self, bound: Sequence[int]) -> None:
        """Raise Unprovable if one of the summation indices `bound` is multiplied by an unknown stride, which
        substitution would miss."""
        if any(base in bound for base, _ in self.indices.products):
            raise Unprovable("an unknown stride of a summed index")

    def shifted(self, term: Monomial, guard: Factor, rest: tuple[Factor, ...]) -> Monomial | None:
        """The monomial without `guard`, summed over a restricted range of a summation index, if the guard only
        restricts that range; None where that cannot be shown.

        `rest`: the monomial's other factors. Needed for kernels padded with zeros.
        """
        (index,) = guard.indices
        self.alone(term.bound)
        for v, c in index.parts:
            if v in term.bound and c == 1:
                before = index.plus(IndexPolynomial(Affine.of(0), ((v, 1),)), -1)
                low, high = self.indices.bounds(before)
                if self.indices.signs.nonnegative(high * -1) and self.indices.signs.nonnegative(
                    self.indices.ranges[v] + low - guard.size
                ):
                    inner = self.indices.variable(Affine.of(0), guard.size)
                    bound = (*(b for b in term.bound if b != v), *(u for u, _ in inner.parts))
                    value = inner.plus(before, -1)
                    return Monomial(term.coefficient, tuple(f.put(v, value) for f in rest), bound)
        return None

    def known(self, term: Monomial, given: frozenset[str] = frozenset()) -> Monomial:
        """The monomial in which functions contain no conditions that the monomial has as factors already.

        `given`: texts of further conditions that hold.
        """
        texts = {id(f): self.factor_text(f, {}) for f in term.factors if f.kind in CONDITIONS}
        factors = [f for f in term.factors if id(f) not in texts or texts[id(f)] not in given]
        given |= frozenset(texts.values())
        if given:
            factors = [
                f if f.kind in ("input", *CONDITIONS)
                else replace(f, sums=tuple(tuple(self.known(m, given) for m in s) for s in f.sums))
                for f in factors
            ]  # fmt: skip
        return Monomial(term.coefficient, tuple(factors), term.bound)

    def canonical(self, terms: Sum, names: dict[int, str]) -> dict[str, Fraction]:
        """Simplify a sum; returns the coefficient of each monomial, given as text with canonical names for summation
        indices.

        Monomials with coefficient 0 are dropped. `names`: texts of the index variables that are not summed.
        """
        found: dict[str, Fraction] = {}
        for m in map(self.known, self.simple(terms)):
            text = self.text(m, names)
            found[text] = found.get(text, Fraction(0)) + m.coefficient
        return {t: c for t, c in found.items() if c}

    def sum_text(self, terms: Sum, names: dict[int, str]) -> str:
        """A sum as canonical text: equal sums have equal texts. `names`: texts of the index variables that are not
        summed."""
        found = self.canonical(terms, names)
        return " + ".join(f"{c}*{t}" for t, c in sorted(found.items()))

    def text(self, term: Monomial, names: dict[int, str]) -> str:
        """A monomial as canonical text: the least text over all admissible orders of its summation indices. `names`:
        texts of the index variables that are not summed."""
        return min(self.spelled(term.factors, order, names) for order in self.orders(term.factors, term.bound, names))

    def spelled(self, factors: Sequence[Factor], order: Sequence[int], names: dict[int, str]) -> str:
        """A product of factors as text, with its summation indices named in the order `order`.

        `names`: texts of the other index variables, by variable.
        """
        self.effort.spend()
        depth = len(names)
        inner = {**names, **{v: f"s{depth}.{n}" for n, v in enumerate(order)}}
        limits = ",".join(f"{inner[v]}<{self.affine(self.indices.ranges[v])}" for v in order)
        texts = [(f.kind, self.factor_text(f, inner)) for f in factors]
        once = {text for kind, text in texts if kind in CONDITIONS}  # repeated conditions count once
        return f"[{limits}]" + "·".join(sorted([*once, *(text for kind, text in texts if kind not in CONDITIONS)]))

    def orders(self, factors: Sequence[Factor], bound: Sequence[int], names: dict[int, str]) -> Iterator[Sequence[int]]:
        """Orders of the summation indices `bound` to try, of which the least text is canonical: sorted by range and by
        appearance in the factors with all others anonymous. `names`: texts of the indices that are named already.

        Raises Unprovable if too many are interchangeable.
        """
        if len(bound) < 2:
            yield bound
            return
        looks: dict[int, str] = {}
        for v in bound:
            marked = {**names, **dict.fromkeys(bound, "*"), v: "!"}
            looks[v] = self.affine(self.indices.ranges[v]) + "".join(
                sorted(self.factor_text(f, marked) for f in factors)
            )
        classes = [[v for v in bound if looks[v] == look] for look in sorted(set(looks.values()))]
        total = 1
        for c in classes:
            for i in range(2, len(c) + 1):
                total *= i
        if total > ORDERS:
            raise Unprovable("too many interchangeable summation indices")
        for chosen in product(*(permutations(c) for c in classes)):
            yield [v for part in chosen for v in part]

    def factor_text(self, f: Factor, names: dict[int, str]) -> str:
        """A factor as canonical text; `names`: texts of index variables."""
        if f.kind == "input":
            return f"{f.name}[{','.join(self.index_text(i, names) for i in f.indices)}]"
        if f.kind == "f":
            return f"{f.name}({'; '.join(self.sum_text(s, names) for s in f.sums)})"
        if f.kind == "max":
            texts = []
            for order in self.orders_of_max(f):
                inner = {**names, **{v: f"m{len(names)}.{n}" for n, v in enumerate(order)}}
                limits = ",".join(f"{inner[v]}<{self.affine(self.indices.ranges[v])}" for v in order)
                texts.append(f"max[{limits}]({'; '.join(self.sum_text(s, inner) for s in f.sums)})")
            return min(texts)
        if f.kind == "delta":
            (i,) = f.indices
            return (
                "["
                + min(self.index_text(i, names), self.index_text(IndexPolynomial(Affine.of(0)).plus(i, -1), names))
                + "=0]"
            )
        return f"[0<={self.index_text(f.indices[0], names)}<{self.affine(f.size)}]"

    def orders_of_max(self, f: Factor) -> Iterator[Sequence[int]]:
        """All orders of the index variables over which a maximum is taken."""
        return iter(list(permutations(f.bound)))

    def index_text(self, index: IndexPolynomial, names: dict[int, str]) -> str:
        """An index as canonical text; `names`: texts of index variables."""
        parts = sorted(f"{c}*{self.variable_text(v, names)}" for v, c in index.parts)
        return "+".join([self.affine(index.offset), *parts])

    def variable_text(self, v: int, names: dict[int, str]) -> str:
        """An index variable as canonical text; `names`: texts of index variables."""
        if v in self.indices.factored:
            base, step = self.indices.factored[v]
            return f"({self.affine(step)})*{self.variable_text(base, names)}"
        return names.get(v, f"?{v}")

    def affine(self, expr: Affine) -> str:
        """A size expression as text, over the unknowns that are not eliminated."""
        if expr not in self.texts:
            reduced = self.indices.signs.reduce(expr)
            self.texts[expr] = "+".join([f"{c}n{u}" for u, c in reduced.terms] + [str(reduced.constant)])
        return self.texts[expr]

    def together(self, terms: Sum) -> Sum:
        """The sum with equal monomials merged into one (coefficients added); monomials with coefficient 0 are
        dropped."""
        found: dict[str, Monomial] = {}
        for m in terms if len(terms) > 1 else ():
            same = found.setdefault(text := self.text(m, {}), replace(m, coefficient=Fraction(0)))
            found[text] = replace(same, coefficient=same.coefficient + m.coefficient)
        return tuple(m for m in found.values() if m.coefficient) or terms


__all__ = ["CanonicalSums"]
