"""Symbolic indices of a family of shapes: index variables with their ranges, and what is provable about their
values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from .linear_equations import Affine
from .monomials import IndexPolynomial
from .signs import Seam, Signs, Unprovable


class SymbolicIndices:
    """Index variables of one proof, numbered in order of creation.

    `spans` maps (number of positions, unknown stride) to an unknown that stands for (positions - 1) * stride.
    """

    def __init__(self, signs: Signs, spans: Mapping[tuple[Affine, Affine], Affine]) -> None:
        self.signs, self.spans = signs, spans
        self.ranges: dict[int, Affine] = {}  # index variable -> its number of values, from 0 on
        self.products: dict[tuple[int, Affine], int] = {}  # (index variable, unknown stride) -> variable of the product
        self.factored: dict[int, tuple[int, Affine]] = {}  # the inverse of `products`
        self.numbers = count()
        self._inside: dict[tuple[IndexPolynomial, Affine], bool | None] = {}

    def variable(self, start: Affine, size: Affine) -> IndexPolynomial:
        """The index start + v, where v is a fresh index variable with `size` values from 0 on; the start alone if
        `size` is 1."""
        if self.signs.reduce(size).number == 1:
            return IndexPolynomial(start)
        number = next(self.numbers)
        self.ranges[number] = self.signs.reduce(size)
        return IndexPolynomial(start, ((number, 1),))

    def bounds(self, index: IndexPolynomial) -> tuple[Affine, Affine]:
        """(smallest value, largest value) of an index, as size expressions."""
        low = high = index.offset
        for v, c in index.parts:
            end = self.ranges[v] - 1
            low, high = (low, high.plus(end, c)) if c > 0 else (low.plus(end, c), high)
        return low, high

    def within(self, index: IndexPolynomial, size: Affine) -> bool | None:
        """Whether an index is always in [0, size) (True), never (False), or neither can be proved (None)."""
        key = (index, size)
        if key not in self._inside:
            self._inside[key] = self._within(index, size)
        return self._inside[key]

    def _within(self, index: IndexPolynomial, size: Affine) -> bool | None:
        low, high = self.bounds(index)
        if self.signs.nonnegative(low) and self.signs.nonnegative(size - high - 1):
            return True
        return False if self.signs.nonnegative(high * -1 - 1) or self.signs.nonnegative(low - size) else None

    def before(self, index: IndexPolynomial, place: Affine) -> bool:
        """Whether an index is always below a position; raises Seam unless it is provably always below or always at or
        above."""
        low, high = self.bounds(index)
        if self.signs.nonnegative(place - high - 1):
            return True
        if self.signs.nonnegative(low - place):
            return False
        raise Seam("a window across the seam of a concat")

    def stepped(self, at: IndexPolynomial, step: int | Affine, places: Affine) -> IndexPolynomial:
        """The index step × `at`, where `at` has `places` positions.

        For an unknown step, the product is an index variable of its own. Raises Unprovable if the index is only a part
        of an axis.
        """
        if not isinstance(step, Affine):
            return IndexPolynomial(Affine.of(0)).plus(at, step)
        whole = [v for v, c in at.parts if c == 1 and self.signs.zero(self.ranges[v] - places)]
        span = next((s for (n, d), s in self.spans.items() if d == step and self.signs.zero(n - places)), None)
        if span is None or len(at.parts) != 1 or not whole or not self.signs.zero(at.offset):
            raise Unprovable("an unknown stride along a part of an axis")
        (v,) = whole
        if (v, step) not in self.products:
            self.products[v, step] = next(self.numbers)
            self.ranges[self.products[v, step]] = self.signs.reduce(span + 1)
            self.factored[self.products[v, step]] = (v, step)
        return IndexPolynomial(Affine.of(0), ((self.products[v, step], 1),))


__all__ = ["SymbolicIndices"]
