"""Budgets of a plan: sums over its kernels that must stay small, beside the time that is minimized."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from .kernel import Candidate
from .problem import Limit

Uses = Callable[[Sequence[Candidate]], Sequence[float]]


@dataclass(frozen=True)
class Budget:
    """At most `most` in sum over the chosen kernels of what `use` says of each candidate (>= 0, in the unit of `most`).
    It is asked again whenever the problem is solved again: what measuring taught counts."""

    name: str
    most: float
    use: Uses

    def __post_init__(self) -> None:
        if not 0 <= self.most < math.inf:
            raise UsageError(f"a budget must be a number >= 0, not {self.most}", where=f"{self.name} limit")

    def limit(self, of: Sequence[float], candidates: Sequence[int]) -> Limit:
        """The budget as a limit on a problem whose node i is candidate `candidates[i]` (-1: no kernel)."""
        return Limit(self.name, np.array([of[i] if i >= 0 else 0.0 for i in candidates], np.float64), self.most)


def memory(most: float) -> Budget:
    """Bytes of all values that kernels write, and of their scratch memory, each counted once; views write none. An upper
    bound (up to alignment) on what a plan's values take in any order of execution: buffers that are used again are counted
    again."""
    return Budget("memory", most, lambda found: [0.0 if c.is_view else _bytes(c) for c in found])


def _bytes(candidate: Candidate) -> float:
    call, scratch = candidate.call, candidate.template.scratch
    return float(sum(o.type.nbytes for o in call.outputs) + (scratch(call) if scratch is not None else 0))


def error(most: float, known: Uses) -> Budget:
    """Relative errors of the kernels' own rounding (Frobenius, against float64), added up: to first order what the plan
    may be off, if no step amplifies. `known` gives each candidate's; what was never measured should count 0 there, so that
    it is tried before it is judged."""
    return Budget("error", most, known)


def rounding(most: float, known: Uses) -> Budget:
    """The same errors as independent ones, whose squares add up: the root of that sum is at most `most` (> 0). What rounds a
    plan's numbers is seldom of one sign, so that this is near what the whole plan is off by, up to one factor that a run of
    it shows."""
    return Budget("rounding", 1.0, lambda found: [(e / most) ** 2 for e in known(found)])


def undominated(group: Sequence[int], cost: Sequence[float], uses: Sequence[Sequence[float]]) -> list[int]:
    """Of candidates that make the same from the same: those that no other one beats in cost and in every budget."""
    kept: list[int] = []
    for i in sorted(group, key=lambda i: (cost[i], *[of[i] for of in uses])):
        if not any(all(of[k] <= of[i] for of in uses) for k in kept):
            kept.append(i)
    return kept
