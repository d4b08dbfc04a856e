"""Proves signs of size expressions from the equations of a family of shapes, and defines the exceptions that end a
symbolic proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from .linear_equations import Affine, System, quotient
from .shape_families import Typing


class Unprovable(Exception):
    """Raised when the proof method does not apply; says nothing about the rule."""


class Seam(Unprovable):
    """Raised when an index may be on either side of a position at which an axis is cut (the seam of a
    concatenation)."""


class Open(Unprovable):
    """Raised when an axis is cut at two positions (by slices or concatenations) whose order depends on the sizes.

    `cases`: two expressions, of which one is at least 0; the proof is tried again under each of these assumptions.
    """

    def __init__(self, first: Affine, second: Affine) -> None:
        super().__init__("two cuts of an axis in an order that depends on the sizes")
        self.cases = (second - first, first - second - 1)  # one of them is >= 0


@dataclass
class Effort:
    """Work limit for the symbolic proof of a rule.

    `left`: number of steps that may still be made (a step simplifies an expression, or writes a product as text to
    compare it). `until`: deadline (`perf_counter`).
    """

    left: int = 15_000  # some thousands a second
    until: float = float("inf")

    def spend(self) -> None:
        """Use one unit of the work limit. Raises Unprovable if none is left or after the deadline."""
        self.left -= 1
        if self.left < 0:
            raise Unprovable("too many terms")
        if perf_counter() > self.until:
            raise Unprovable("it takes too long")


class Signs:
    """Decision procedure for signs of affine size expressions, from the equations and the bounds of all sizes.

    `assumed`: expressions taken to be nonnegative.
    """

    def __init__(self, typing: Typing, assumed: Sequence[Affine] = ()) -> None:
        self.system: System = typing.system
        self.facts: dict[Affine, None] = {}  # each is >= 0
        self.known: dict[Affine, bool] = {}
        self.reduced: dict[Affine, Affine] = {}
        for expr in assumed:
            self.fact(expr)
        for u in range(self.system.count):
            self.fact(Affine.unknown(u) - self.system.least[u])
        for u, most in self.system.most.items():
            self.fact(Affine.unknown(u) * -1 + most)
        for expr, least in typing.at_least:
            self.fact(expr - least)

    def fact(self, expr: Affine) -> None:
        """Add the assumption that an expression is nonnegative."""
        expr = self.system.reduce(expr)
        if expr.terms:
            self.facts[expr] = None

    def reduce(self, expr: Affine) -> Affine:
        """The expression with unknowns that the equations determine eliminated, so that only free unknowns remain."""
        if not expr.terms:
            return expr
        found = self.reduced.get(expr)
        if found is None:
            found = self.reduced[expr] = self.system.reduce(expr)
        return found

    def nonnegative(self, expr: Affine, depth: int = 2) -> bool:
        """Whether the expression is provably >= 0: a nonnegative constant plus a nonnegative combination of facts
        (expressions known to be nonnegative).

        `depth`: number of facts at most, less one.
        """
        expr = self.reduce(expr)
        if not expr.terms:
            return expr.constant >= 0
        if depth == 2 and expr in self.known:
            return self.known[expr]
        found = False
        unknown, factor = expr.terms[0]
        for fact in self.facts:
            c = dict(fact.terms).get(unknown)
            if c is not None and c * factor > 0:
                rest = expr - fact * quotient(factor, c)
                if (not rest.terms and rest.constant >= 0) or (depth and self.nonnegative(rest, depth - 1)):
                    found = True
                    break
        if depth == 2:
            self.known[expr] = found
        return found

    def zero(self, expr: Affine) -> bool:
        """Whether the expression is provably 0."""
        return self.reduce(expr).number == 0


__all__ = ["Effort", "Open", "Seam", "Signs", "Unprovable"]
