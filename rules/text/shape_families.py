"""Represents families of shapes at which a text rule is well typed: unknown sizes with linear equations, and random
members."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, prod
from typing import Any

from .instance import TextInstance
from .linear_equations import Affine, System, quotient
from .terms import Typed

MAX_DRAWN_SIZES = (2, 3, 4, 6, 3, 5)  # upper ends of the ranges from which sizes are drawn
WORK = 1 << 22  # limit on elements of all values and windows of a member
PINNED = 1 << 18  # largest number of elements of a shape that a rule states explicitly


@dataclass(frozen=True, eq=False)
class Typing:
    """A family of shapes at which a rule's sides are well typed.

    Typed terms, and the equations between their unknown sizes (`system`). `inputs`, `attrs`: tensor and parameter
    variables by name. `at_least`: pairs (expression, least value).
    """

    terms: tuple[Typed, ...]  # all sides, left sides first
    pairs: tuple[tuple[Typed, Typed], ...]  # (left, right); empty if only left sides were typed
    inputs: Mapping[str, Typed]
    attrs: Mapping[str, Any]
    system: System
    at_least: tuple[tuple[Affine, int], ...]
    spans: Mapping[tuple[Affine, Affine], Affine]  # (positions - 1) * stride, for unknown strides

    @property
    def ranks(self) -> dict[str, int]:
        """Ranks of the tensor variables."""
        return {n: len(t.axes) for n, t in self.inputs.items()}

    def agrees(self) -> bool:
        """Whether left and right sides have equal shapes in every member of the family."""
        return all(
            len(a.axes) == len(b.axes) and all(self.system.reduce(p - q).number == 0 for p, q in zip(a.sizes, b.sizes))
            for a, b in self.pairs
        )

    @property
    def pinned(self) -> int:
        """Number of elements of the largest tensor among the rule's sides and variables whose sizes are all pinned
        (known numbers); 1 if every one has an unknown size."""
        shapes = [[self.system.reduce(s).number for s in t.sizes] for t in (*self.terms, *self.inputs.values())]
        return max((int(prod(s for s in shape if s is not None)) for shape in shapes if None not in shape), default=1)

    @cached_property
    def ranges(self) -> dict[int, tuple[int, int | None]]:
        """(smallest, largest) value of each free unknown, by interval propagation over single conditions.

        None means unbounded.
        """
        system, low = self.system, dict(self.system.least)
        high: dict[int, int | None] = {u: system.most.get(u) for u in range(system.count)}
        conditions = [(e - system.least[u]) for u, e in system.given.items()]
        conditions += [(e * -1 + system.most[u]) for u, e in system.given.items() if u in system.most]
        conditions += [system.reduce(e) - least for e, least in self.at_least]
        for expr in conditions * 3:  # each asserts expr >= 0
            for u, c in expr.terms:
                largest = [(k, low[v] if k < 0 else high[v]) for v, k in expr.terms if v != u]
                known = [k * n for k, n in largest if n is not None]
                if len(known) < len(largest):
                    continue
                bound = quotient(sum(known, expr.constant) * -1, c)
                if c > 0:
                    low[u] = max(low[u], ceil(bound))
                else:
                    top = high[u]
                    high[u] = floor(bound) if top is None else min(top, floor(bound))
        return {u: (low[u], high[u]) for u in system.free}

    def draw(self, rng: random.Random, largest: int) -> dict[int, int] | None:
        """Random values for all unknowns (unknown -> value), up to about `largest`; None if the drawn values violate a
        condition."""
        least, most = self.system.least, self.system.most
        values: dict[int, int] = {}
        for u, (low, high) in self.ranges.items():
            if high is not None and high < low:
                return None
            top = max(low, largest) if high is None else min(high, max(low, largest))
            if high is not None and rng.random() < 0.5:  # then the dependent size is small
                low, top = max(low, high - largest), high
            values[u] = rng.randint(low, top)
        for u, expr in self.system.given.items():
            value = expr.at(values)
            if value.denominator != 1 or not least[u] <= value <= most.get(u, value):
                return None
            values[u] = int(value)
        fits = all(e.at(values) >= least for e, least in self.at_least)
        return values if fits else None

    def instances(
        self, rng: random.Random, count: int, *, tries: int = 40, volume: int = 5000, work: int = WORK
    ) -> Iterator[TextInstance]:
        """Yields up to `count` distinct members of the family, small ones unless the rule itself states large shapes.

        Each takes up to `tries` draws. `volume`: maximum number of elements of a tensor, `work`: of operations.
        """
        seen = set()
        volume = max(volume, min(self.pinned, PINNED))
        for _ in range(count):
            for attempt in range(tries):
                values = self.draw(rng, rng.choice(MAX_DRAWN_SIZES[attempt % 2 :]))
                if values is None or (key := tuple(sorted(values.items()))) in seen:
                    continue
                seen.add(key)
                found = TextInstance(self, values)
                if found.volume <= volume and found.work <= work:
                    yield found
                    break

    def fits(self, rng: random.Random, *, tries: int = 40) -> bool:
        """Whether any sizes satisfy the family's conditions, however large, as far as `tries` random draws tell."""
        return any(self.draw(rng, MAX_DRAWN_SIZES[i % len(MAX_DRAWN_SIZES)]) is not None for i in range(tries))


__all__ = ["Typing"]
