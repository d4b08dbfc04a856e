"""Infers the integers of emitted text as expressions in free sizes, from the text at several choices of sizes.

A kernel emitted at several sizes with one schedule has the same text up to integers: extents, strides, tile counts.
Each such integer is one of a few functions of the sizes, `a * n * ceil(k * m / c) + b` with products of sizes `n` and
`m`, or a product of two tile counts, possibly limited by a constant. `fit` finds the function from the values at the
probed sizes. Values beyond those needed to solve for the unknowns check the result: a function with two unknowns has to
agree with at least six values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import gcd, prod

from ...egraph.types.dims import Atom, Dim, DimExpr, bind

Sizes = Mapping[str, int]

DEGREE = 3  # largest number of factors of a product of sizes
DIVISORS = tuple(1 << n for n in range(1, 13))  # tile sizes
FACTORS = 4096  # largest factor before a rounded quotient
CHECKS = 2  # values beyond those that a function is solved from


@dataclass(frozen=True)
class LimitedFit:
    """Function of sizes with a constant limit, found by `fit`: `min(value, limit)` or `max(value, limit)`, as `op`
    says."""

    op: str  # "min" or "max"
    value: Dim
    limit: int

    def at(self, sizes: Sizes) -> int:
        """The function's value at the given sizes (name -> number)."""
        found = bind(self.value, sizes)
        assert isinstance(found, int)
        return min(found, self.limit) if self.op == "min" else max(found, self.limit)


Fitted = Dim | LimitedFit


def value_at(fitted: Fitted, sizes: Sizes) -> int:
    """The value of `fitted`, a number or a function that `fit` has found, at the given sizes (name -> number)."""
    found = fitted.at(sizes) if isinstance(fitted, LimitedFit) else bind(fitted, sizes)
    assert isinstance(found, int)
    return found


def fit(values: Sequence[int], points: Sequence[Sizes]) -> Fitted | None:
    """The function of the sizes that has the given `values` at the choices of sizes `points`: an integer if all values
    are equal; None if no function of the kinds that the module lists has them."""
    return _fit(tuple(values), tuple(tuple(sorted(p.items())) for p in points))


@lru_cache(1 << 14)
def _fit(values: tuple[int, ...], points: tuple[tuple[tuple[str, int], ...], ...]) -> Fitted | None:
    if len(set(values)) == 1:
        return values[0]
    sizes = [dict(p) for p in points]
    found = _unlimited(values, sizes)
    if found is not None:
        return found
    for op, limit in (("min", max(values)), ("max", min(values))):
        inside = [i for i, v in enumerate(values) if v != limit]
        if len(inside) == len(values) or not inside:
            continue
        inner = _unlimited([values[i] for i in inside], [sizes[i] for i in inside])
        if inner is not None and isinstance(inner, DimExpr):
            limited = LimitedFit(op, inner, limit)
            if all(limited.at(s) == v for s, v in zip(sizes, values)):
                return limited
    return None


def _unlimited(values: Sequence[int], points: Sequence[Sizes]) -> Dim | None:
    names = sorted(points[0])
    products = [p for degree in range(1, DEGREE + 1) for p in combinations_with_replacement(names, degree)]
    for candidate in (*_sums(values, points, names), *_affine(values, points, products)):
        if _agrees(candidate, values, points):
            return candidate
    rounded = (*_rounded(values, points, products), *_squares(values, points, names))
    return next((c for c in rounded if _agrees(c, values, points)), None)


def _agrees(candidate: Dim, values: Sequence[int], points: Sequence[Sizes]) -> bool:
    return all(bind(candidate, p) == v for p, v in zip(points, values, strict=True))


def _product(names: Sequence[str]) -> Dim:
    """The product of sizes as an expression."""
    return prod((DimExpr((((Atom("size", n),), 1),)) for n in names), start=1)


def _at(names: Sequence[str], point: Sizes) -> int:
    return prod(point[n] for n in names)


def _ends(names: Sequence[str], points: Sequence[Sizes]) -> tuple[int, int]:
    """Indices of the points at which a product of sizes is smallest and largest."""
    order = sorted(range(len(points)), key=lambda i: _at(names, points[i]))
    return order[0], order[-1]


def _affine(values: Sequence[int], points: Sequence[Sizes], products: Sequence[Sequence[str]]) -> Iterator[Dim]:
    """Candidate functions a * m + b, for each product of sizes m."""
    if len(values) < 2 + CHECKS:
        return
    for names in products:
        low, high = _ends(names, points)
        run = _at(names, points[high]) - _at(names, points[low])
        if run and (values[high] - values[low]) % run == 0:
            factor = (values[high] - values[low]) // run
            yield factor * _product(names) + (values[low] - factor * _at(names, points[low]))


def _sums(values: Sequence[int], points: Sequence[Sizes], names: Sequence[str]) -> Iterator[Dim]:
    """Candidate functions a * m + b * n + c, for two sizes m and n."""
    if len(values) < 3 + CHECKS:
        return
    for i, m in enumerate(names):
        for n in names[i + 1 :]:
            rows = [(p[m], p[n]) for p in points]
            (x0, y0), (x1, y1), (x2, y2) = rows[0], rows[1], rows[2]
            det = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
            if not det:
                continue
            a = (values[1] - values[0]) * (y2 - y0) - (values[2] - values[0]) * (y1 - y0)
            b = (x1 - x0) * (values[2] - values[0]) - (x2 - x0) * (values[1] - values[0])
            if a % det == 0 and b % det == 0 and a and b:
                a, b = a // det, b // det
                yield a * _product([m]) + b * _product([n]) + (values[0] - a * x0 - b * y0)


def _rounded(values: Sequence[int], points: Sequence[Sizes], products: Sequence[Sequence[str]]) -> Iterator[Dim]:
    """Candidate functions n * (a * ceil(k * m / c) + b), with b >= 0, or with b = -a for the index of the last tile.

    No tile divides a point's sizes, so the points do not tell `ceil(x) - 1` from `floor(x)`. Where a text means
    `floor(x)` whole tiles, it computes the last tile with masks, so that `ceil(x) - 1` is right as well. Other
    negative b are refused.
    """
    if len(values) < 2 + CHECKS:
        return
    for outer in ((), *products):
        scale = [_at(outer, p) for p in points]
        if any(v % s for v, s in zip(values, scale)):
            continue
        inner = [v // s for v, s in zip(values, scale)]
        steps = gcd(*(v - inner[0] for v in inner))
        for names in products:
            if set(outer) & set(names) or len(outer) + len(names) > DEGREE:
                continue
            low, high = _ends(names, points)
            run, rise = _at(names, points[high]) - _at(names, points[low]), inner[high] - inner[low]
            if run <= 0 or rise <= 0:
                continue
            for factor in (f for f in range(1, min(steps, FACTORS) + 1) if steps % f == 0):
                for divisor in DIVISORS:
                    times = round(rise * divisor / (factor * run))
                    if times < 1 or gcd(times, divisor) > 1 or times * factor > FACTORS:
                        continue
                    tiles = [-(-times * _at(names, p) // divisor) for p in points]
                    shift = inner[low] - factor * tiles[low]
                    if (shift >= 0 or (shift == -factor and times == 1)) and all(
                        factor * t + shift == v for t, v in zip(tiles, inner)
                    ):
                        rounded = (times * _product(names) + (divisor - 1)) // divisor
                        yield (factor * rounded + shift) * _product(outer)


def _squares(values: Sequence[int], points: Sequence[Sizes], names: Sequence[str]) -> Iterator[Dim]:
    """Candidate functions a * l * ceil(m / c) * ceil(n / d): tiles of a matrix with two free extents, in a batch of l
    or of a constant."""
    if len(values) < 3 + CHECKS:
        return
    counts = {(n, d): [-(-p[n] // d) for p in points] for n in names for d in DIVISORS}
    for outer in ((), *((n,) for n in names)):
        scale = [_at(outer, p) for p in points]
        for (m, c), first in counts.items():
            part = [a * b for a, b in zip(scale, first)]
            if any(v % a for v, a in zip(values, part)):
                continue
            for (n, d), second in counts.items():
                factor, rest = divmod(values[0], part[0] * second[0])
                if (m, c) <= (n, d) and not rest and all(v == factor * a * b for v, a, b in zip(values, part, second)):
                    tiles = ((_product([x]) + (y - 1)) // y for x, y in ((m, c), (n, d)))
                    yield factor * _product(outer) * next(tiles) * next(tiles)


__all__ = ["Fitted", "LimitedFit", "Sizes", "fit", "value_at"]
