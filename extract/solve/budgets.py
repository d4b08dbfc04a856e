"""Budgets of a plan: upper limits on sums over its kernels (bytes, rounding errors), in addition to the minimized
time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UsageError
from ..model.kernel import Candidate
from .problem import LARGEST_COST, Limit

Uses = Callable[[Sequence[Candidate]], Sequence[float]]


@dataclass(frozen=True)
class Budget:
    """Limit on a plan: the `use` of the chosen kernels (>= 0, in the unit of `most`) sums to at most `most`. `name`: of
    the limited quantity, for messages.

    `use` is evaluated again before every solve, so that new measurements count. Infinity allows every plan. Raises
    UsageError if `most` is negative or NaN.
    """

    name: str
    most: float
    use: Uses

    def __post_init__(self) -> None:
        if not self.most >= 0:
            raise UsageError(f"a limit must be a number from 0 on, not {self.most}", where=f"{self.name} limit")

    def limit(self, of: Sequence[float], candidates: Sequence[int]) -> Limit:
        """The budget as a `Limit` (side constraint) of a problem whose node i is candidate `candidates[i]` (-1: no
        kernel).

        `of`: use of each candidate.
        """
        return Limit(self.name, np.array([of[i] if i >= 0 else 0.0 for i in candidates], np.float64),
                     min(self.most, LARGEST_COST))  # fmt: skip


def memory_budget(most: float, weights: bool = False) -> Budget:
    """Budget of `most` bytes for all values written by kernels and their workspaces, each counted once; views count 0.

    The sum is an upper bound (up to alignment) on the memory of a plan's values in any execution order, since it
    ignores that buffers are reused. `weights`: also count the weights that each kernel reads, in the size in which they
    are stored (packed or expanded); weights that several kernels read count once per kernel.
    """
    return Budget("memory", most, lambda found: [0.0 if c.is_view else _bytes(c, weights) for c in found])


def _bytes(candidate: Candidate, weights: bool) -> float:
    call, scratch = candidate.call, candidate.template.scratch
    read = sum(call.operands[o].type.nbytes for o in candidate.weights) if weights else 0
    return float(read + sum(o.type.nbytes for o in call.outputs) + (scratch(call) if scratch is not None else 0))


def error_budget(most: float, known: Uses) -> Budget:
    """Limit on the sum of the kernels' relative rounding errors (Frobenius norm, against float64): at most `most`.

    The sum bounds the plan's error to first order if no step amplifies. `known` returns the error of each candidate; it
    should return 0 for unmeasured kernels, so that they are tried before they are rejected.
    """
    return Budget("error", most, known)


def rounding_budget(most: float, known: Uses) -> Budget:
    """Error budget in quadrature: sqrt(sum(error²)) of a plan's kernels is at most `most` (relative, > 0).

    `known` gives the relative error of each candidate. Rounding errors rarely all have the same sign, so that this root
    is roughly proportional to the error of the whole plan; the factor is found by running the plan.
    """
    return Budget("rounding", 1.0, lambda found: [(e / most) ** 2 for e in known(found)])


def undominated(group: Sequence[int], cost: Sequence[float], uses: Sequence[Sequence[float]]) -> list[int]:
    """Pareto-optimal candidates of a group with equal inputs and outputs: for each of the others, one of these is at
    least as good in cost and in the use of every budget.

    `group`: candidate indices. `cost`: µs of each candidate. `uses`: per budget, the use of each candidate.
    """
    kept: list[int] = []
    for i in sorted(group, key=lambda i: (cost[i], *[of[i] for of in uses])):
        if not any(all(of[k] <= of[i] for of in uses) for k in kept):
            kept.append(i)
    return kept
