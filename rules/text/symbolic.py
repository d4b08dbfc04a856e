"""Proves text rules symbolically for all sizes.

Both sides become sums of products over symbolic indices in a canonical form.

Under a `Typing` every axis has a symbolic size. Positions where axes are concatenated or split divide an axis into
regions. `Regions` propagates these positions to all aligned axes, so that both sides are divided alike. Within a
region, an element of a value is a sum of monomials. A monomial has a coefficient, summation indices, and factors:

    input[index, …]     an element of a variable
    f(sum)              an uninterpreted elementwise function
    max over indices    of a sum (max pooling)
    [index = 0]         from identity matrices and kernels; solved for a summation index
    [0 <= index < n]    the padding of a window; dropped where it always holds

Indices are affine in index variables and sizes. Concat and split select a region, products distribute over sums, and
contractions sum over one index per region. Two sides are equal for all sizes of the family if, for every region of the
result, their monomials agree up to renaming of summation indices. Laws used for functions: congruence, relu(relu x) =
relu x, increasing functions commute with a maximum, sign-preserving functions commute with relu, and a nonnegative
factor can be pulled out of relu.

The method is sound but incomplete: `proves` returns True or a reason. Axes whose cuts cannot be ordered from the
equations and the signs of sizes, windows across a cut, and reshapes are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import gcd, lcm, prod

from .axis_regions import Regions, enlarged
from .canonical_sums import CanonicalSums
from .linear_equations import Affine, quotient
from .monomials import Factor, IndexPolynomial, Monomial, Sum, never_negative, shared, variables_of, without
from .shape_families import Typing
from .signs import Effort, Open, Seam, Signs, Unprovable
from .symbolic_indices import SymbolicIndices
from .terms import Typed

MONOMIALS = 400
INCREASING = ("relu", "tanh", "sigmoid")
KEEPING_SIGNS = ("tanh",)
ACTS = ("", "sigmoid", "relu", "tanh")


class SymbolicProver:
    """Evaluates typed terms at symbolic indices, for one family of shapes."""

    def __init__(self, typing: Typing, assumed: Sequence[Affine] = (), effort: Effort | None = None) -> None:
        self.typing, self.effort = typing, effort or Effort()
        self.signs = Signs(typing, assumed)
        self.regions = Regions(typing, self.signs)
        self.indices = SymbolicIndices(self.signs, typing.spans)
        self.forms = CanonicalSums(self.indices, self.effort)

    def proves(self) -> bool:
        """Whether all pairs of sides are equal for all sizes of the family."""
        if not self.typing.agrees():
            return False
        for left, right in self.typing.pairs:
            for block in product(*(self.regions.of(axis) for axis in left.axes)):
                at = [self.indices.variable(start, size) for start, size in block]
                names = {i.parts[0][0]: f"i{n}" for n, i in enumerate(at) if i.parts}
                first, second = (self.forms.canonical(self.value(side, at), names) for side in (left, right))
                if first != second:
                    return False
        return True

    # ------------------------------------------------------------ values
    def value(self, term: Typed, at: Sequence[IndexPolynomial]) -> Sum:
        """The element of a term at the symbolic index `at`, as a sum of monomials."""
        found = self.forms.simple(getattr(self, f"_{term.op}", self._opaque)(term, list(at)))
        act = term.params.get("act", 0)
        return self.apply(ACTS[act], found) if act else found

    def _opaque(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        raise Unprovable(f"{term.op} is not supported by this proof method")

    def _input(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return (Monomial(Fraction(1), (Factor("input", term.params["name"], tuple(at)),)),)

    def _number(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return (Monomial(Fraction(term.params["value"])),)

    def _ewadd(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return self.value(term.args[0], at) + self.value(term.args[1], at)

    def _ewmul(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return self.times(self.value(term.args[0], at), self.value(term.args[1], at))

    def _smul(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return self.times(self.value(term.args[0], at), self.value(term.args[1], []))

    def times(self, a: Sum, b: Sum) -> Sum:
        """The product of two sums. Raises Unprovable if there are too many monomials."""
        if len(a) * len(b) > MONOMIALS:
            raise Unprovable("too many products")
        return tuple(x.times(y) for x in a for y in b)

    def apply(self, name: str, *sums: Sum) -> Sum:
        """The elementwise function `name` applied to sums, as a sum simplified by the laws of the function."""
        (first, *others) = sums
        if name in INCREASING and not others:
            if not first:
                return (Monomial(Fraction(1, 2)),) if name == "sigmoid" else ()
            if name == "relu" and never_negative(first):
                return first
            if name != "sigmoid" and (common := shared(first)):  # functions with f(0) = 0 commute with guards
                inner = tuple(Monomial(m.coefficient, without(m.factors, common), m.bound) for m in first)
                return self.guarded(self.apply(name, inner), common)
            if name == "relu" and (found := self.rectified(first := self.forms.together(first))) is not None:
                return found
            alone = first[0].factors[0] if len(first) == 1 and len(first[0].factors) == 1 else None
            if alone is not None and first[0].coefficient == 1 and not first[0].bound:
                if alone.kind == "max":
                    inner = self.apply(name, alone.sums[0])  # windows are never empty
                    return (Monomial(Fraction(1), (Factor("max", sums=(inner, alone.sums[1]), bound=alone.bound),)),)
        return (Monomial(Fraction(1), (Factor("f", name, sums=sums),)),)

    def rectified(self, first: Sum) -> Sum | None:
        """relu of a sum with common nonnegative factors pulled out, or moved past a sign-preserving function.

        None if neither applies.
        """
        one, *others = first
        bound = {v for m in first for v in m.bound}
        left = [list(m.factors) for m in others]
        kept: list[Factor] = []
        for f in one.factors:
            plain = f.kind == "f" and f.name in ("relu", "sigmoid") and not bound & variables_of(f)
            if plain and all(f in rest for rest in left):
                kept.append(f)
                for rest in left:
                    rest.remove(f)
        for f in dict.fromkeys(f for f in one.factors if not bound & variables_of(f)):  # squares are nonnegative
            pairs = (
                min(one.factors.count(f) - kept.count(f), *(rest.count(f) for rest in left), 2 * len(one.factors)) // 2
            )
            kept += [f] * (2 * pairs)
            for rest in left:
                for _ in range(2 * pairs):
                    rest.remove(f)
        scale = Fraction(
            gcd(*(m.coefficient.numerator for m in first)), lcm(*(m.coefficient.denominator for m in first))
        )
        if kept or scale != 1:
            mine = list(one.factors)
            for f in kept:
                mine.remove(f)
            inner = tuple(Monomial(m.coefficient / scale, tuple(fs), m.bound) for m, fs in zip(first, (mine, *left)))
            return tuple(
                Monomial(m.coefficient * scale, (*m.factors, *kept), m.bound) for m in self.apply("relu", inner)
            )
        alone = one.factors[0] if not others and len(one.factors) == 1 and not one.bound else None
        if alone is not None and alone.kind == "f" and alone.name in KEEPING_SIGNS:
            return self.apply(alone.name, self.apply("relu", *alone.sums))
        return None

    def _relu(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return self.apply(term.op, self.value(term.args[0], at))

    _tanh = _sigmoid = _relu

    def _batchnorm(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        x, *others = term.args
        return self.apply(term.op, self.value(x, at), *(self.value(o, [at[1]]) for o in others))

    def _transpose(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        inner = list(at)
        for i, p in enumerate(term.params["perm"]):
            inner[p] = at[i]
        return self.value(term.args[0], inner)

    def _concat(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        axis, (left, right) = term.params["axis"], term.args
        place = left.axes[axis].size
        beyond = [*at[:axis], at[axis].plus(IndexPolynomial(place), -1), *at[axis + 1 :]]
        try:
            return self.value(left, at) if self.indices.before(at[axis], place) else self.value(right, beyond)
        except Seam:  # a window across the seam reads both parts, each under a guard that the index is inside
            parts = ((left, at), (right, beyond))
            return tuple(
                m
                for x, where in parts
                for m in self.guarded(self.value(x, where), [self.there(where[axis], x.axes[axis].size)])
            )

    def there(self, index: IndexPolynomial, size: Affine) -> Factor:
        """The factor that is 1 where the index is within [0, size), else 0 (a guard)."""
        return Factor("guard", indices=(index,), size=self.signs.reduce(size))

    def _split_0(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return self.value(term.args[0], at)

    def _split_1(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        axis = term.params["axis"]
        return self.value(
            term.args[0], [*at[:axis], at[axis].plus(IndexPolynomial(term.numbers["cut"])), *at[axis + 1 :]]
        )

    def _matmul(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        a, b = term.args
        found: Sum = ()
        for start, size in self.regions.of(a.axes[-1]):
            k = self.indices.variable(start, size)
            both = self.times(self.value(a, [*at[:-1], k]), self.value(b, [*at[:-2], k, at[-1]]))
            found += self.summed(both, k)
        return found

    def summed(self, terms: Sum, *over: IndexPolynomial) -> Sum:
        """A sum of monomials, summed over further index variables."""
        more = tuple(v for i in over for v, _ in i.parts)
        return tuple(Monomial(m.coefficient, m.factors, m.bound + more) for m in terms)

    def window(
        self, at: IndexPolynomial, step: int | Affine, low: Affine, k: IndexPolynomial, size: Affine, places: Affine
    ) -> tuple[IndexPolynomial, list[Factor]]:
        """(position that element `k` of window `at` reads along an axis of the image, guards that exclude padding).

        `step`: stride. `low`: padding before the first position. `size`, `places`: numbers of image positions and of
        windows.
        """
        where = IndexPolynomial(low * -1).plus(self.indices.stepped(at, step, places)).plus(k)
        inside = self.indices.within(where, size)
        return where, [] if inside else [Factor("guard", indices=(where,), size=self.signs.reduce(size))]

    def _conv2d(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        x, w = term.args
        p, groups = term.params, term.params["groups"]
        group = self.group(at[1], w.axes[0].size, groups)
        low = [term.numbers["low_" + i] for i in "hw"]
        found: Sum = ()
        for (c0, cn), (r0, rn), (s0, sn) in product(*(self.regions.of(axis) for axis in w.axes[1:])):
            c, r, s = self.indices.variable(c0, cn), self.indices.variable(r0, rn), self.indices.variable(s0, sn)
            h, inside = self.window(at[2], p["stride_h"], low[0], r, x.axes[2].size, term.axes[2].size)
            v, inside_w = self.window(at[3], p["stride_w"], low[1], s, x.axes[3].size, term.axes[3].size)
            weight = self.value(w, [at[1], c, r, s])
            if weight:
                channel = c.plus(IndexPolynomial(w.axes[1].size * group))
                both = self.times(self.value(x, [at[0], channel, h, v]), weight)
                found += self.summed(self.guarded(both, inside + inside_w), c, r, s)
        return found

    def group(self, at: IndexPolynomial, outputs: Affine, groups: int) -> int:
        """Number of the group to which output channel `at` of a grouped convolution with `outputs` channels belongs.
        Raises Seam if it may belong to several."""
        for j in range(groups - 1):
            if self.indices.before(at, outputs * quotient(j + 1, groups)):
                return j
        return groups - 1

    def guarded(self, terms: Sum, guards: Sequence[Factor]) -> Sum:
        """The monomials multiplied by guards (factors that are 1 or 0): zero where a guard does not hold."""
        return tuple(Monomial(m.coefficient, m.factors + tuple(guards), m.bound) for m in terms)

    def pooled(
        self, term: Typed, at: list[IndexPolynomial]
    ) -> tuple[IndexPolynomial, IndexPolynomial, list[Factor], Sum]:
        """For the pooling window at result index `at`: (row and column index in the window, guards, element read).

        The guards hold where the window reads the image and not its padding.
        """
        (x,), p = term.args, term.params
        low = [term.numbers["low_" + i] for i in "hw"]
        r, s = (self.indices.variable(Affine.of(0), Affine.of(p["kernel_" + i])) for i in "hw")
        h, inside = self.window(at[2], p["stride_h"], low[0], r, x.axes[2].size, term.axes[2].size)
        v, inside_w = self.window(at[3], p["stride_w"], low[1], s, x.axes[3].size, term.axes[3].size)
        return r, s, inside + inside_w, self.value(x, [at[0], at[1], h, v])

    def _poolavg(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        r, s, guards, read = self.pooled(term, at)
        return self.summed(self.guarded(self.times((self.share(term),), read), guards), r, s)

    def share(self, term: Typed) -> Monomial:
        """The monomial 1 / (number of positions in the pooling window of `term`). Sizes of the window that are not
        numbers give an uninterpreted factor: it equals only a factor with the same size expression."""
        sizes = [self.signs.reduce(Affine.of(term.params["kernel_" + i])) for i in "hw"]
        numbers = [Fraction(1, int(s.constant)) for s in sizes if not s.terms]
        unknown = tuple(Factor("f", f"1/({self.forms.affine(s)})") for s in sizes if s.terms)
        return Monomial(prod(numbers, start=Fraction(1)), unknown)

    def _poolmax(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        r, s, guards, read = self.pooled(term, at)
        bound = tuple(v for i in (r, s) for v, _ in i.parts)
        read = tuple(Monomial(m.coefficient, without(m.factors, guards), m.bound) for m in self.forms.simple(read))
        if (not bound and not guards) or not any(variables_of(f) for m in read for f in m.factors):
            return read  # one position, or one constant at all positions; windows are never empty
        limits = (Monomial(Fraction(1), tuple(guards)),)  # which positions count; at least one does in every window
        return (Monomial(Fraction(1), (Factor("max", sums=(read, limits), bound=bound),)),)

    def _enlarge(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        (w,) = term.args
        inner, guards = list(at), list[Factor]()
        for i, low in enumerate(enlarged(term)):
            where = at[2 + i].plus(IndexPolynomial(low), -1)
            inside = self.indices.within(where, w.axes[2 + i].size)
            if inside is False:
                return ()
            if inside is None:
                guards.append(Factor("guard", indices=(where,), size=self.signs.reduce(w.axes[2 + i].size)))
            inner[2 + i] = where
        return self.guarded(self.value(w, inner), guards)

    def _merge(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        (w,), n = term.args, term.params["count"]
        group = self.group(at[0], w.axes[0].size, n)
        if self.group(at[1], term.axes[1].size, n) != group:
            return ()
        return self.value(w, [at[0], at[1].plus(IndexPolynomial(w.axes[1].size * group), -1), *at[2:]])

    def equal(self, *pairs: tuple[IndexPolynomial, IndexPolynomial]) -> tuple[Factor, ...]:
        """For each pair of indices the factor that is 1 where the two are equal, else 0."""
        return tuple(Factor("delta", indices=(a.plus(b, -1),)) for a, b in pairs)

    def _Imatmul(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return (Monomial(Fraction(1), self.equal((at[0], at[1]))),)

    def _Iewmul(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        return (Monomial(Fraction(1)),)

    def _Iconv(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        centre = [IndexPolynomial(term.numbers["low_" + i]) for i in "hw"]
        return (Monomial(Fraction(1), self.equal((at[0], at[1]), (at[2], centre[0]), (at[3], centre[1]))),)

    def _Cpool(self, term: Typed, at: list[IndexPolynomial]) -> Sum:
        share = self.share(term)
        return (Monomial(share.coefficient, share.factors + self.equal((at[0], at[1]))),)


CASES = 24  # limit on case splits over the order of cuts


def proves(typing: Typing, effort: Effort | None = None) -> tuple[bool, str]:
    """Whether both sides of a typed rule are proved equal at all sizes that its typing allows, as (proved, reason if
    not).

    Where it depends on the sizes which of two boundaries of concatenated or sliced parts comes first, both cases are
    proved.
    """
    effort = effort or Effort()
    cases: list[tuple[Affine, ...]] = [()]
    for _ in range(CASES):
        assumed = cases.pop()
        try:
            if not SymbolicProver(typing, assumed, effort).proves():
                return False, "the normal forms differ"
        except Open as order:
            cases += [(*assumed, case) for case in order.cases]
        except Unprovable as beyond:
            return False, str(beyond)
        if not cases:
            return True, ""
    return False, "too many orders of cuts"
