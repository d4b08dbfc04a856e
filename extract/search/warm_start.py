"""Warm start from nested smaller problems, so that a larger e-graph never costs quality.

A larger problem that is not solved to optimality may end dearer than a smaller one that was. Each e-class records the
saturation round of its creation; the kernels over classes of the first rounds form nested problems, each of which
contains everything fewer rounds would have given (and the wider limits of more effort). If the whole problem is not
proved, these are solved in turn, each from the best plan of those before, and the whole problem last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import ExtractionError
from ..candidates.candidates import Hypergraph
from ..solve.problem import Extraction, IntArray, relative_gap
from .encoding import Rows

STEPS = (0, 1, 2, 4, 8)
"""Rounds at which the smaller problems end."""

SMALLER, AGAIN = 0.5, 0.3
"""Time for all smaller problems, and for the final solve of the whole, as shares of the first solve's time."""

PROVED = 1e-6  # relative gap that counts as zero, as in `solve`
Solve = Callable[..., Extraction]


def start_of(rows: Rows, hypergraph: Hypergraph, chosen: Sequence[int]) -> IntArray:
    """The choice array of the given candidates, in a problem that may contain equivalent ones instead; -1 for classes
    without one."""
    problem = rows.problem
    alike, cls = hypergraph.alike, problem.cls.tolist()
    row = {alike[c]: n for n, c in enumerate(rows.candidate) if c >= 0}
    choice = np.full(problem.n_classes, -1, np.int32)
    for i in chosen:
        if (n := row.get(alike[i])) is not None:
            choice[cls[n]] = n
    for n, c in enumerate(rows.candidate):  # given vertices, and projections of multi-output kernels
        if c < 0 and choice[cls[n]] < 0 and (choice[problem.kid[problem.off[n] : problem.off[n + 1]]] >= 0).all():
            choice[cls[n]] = n
    return choice


def ages(hypergraph: Hypergraph) -> list[int]:
    """Per candidate the first round in which all its inputs and outputs exist."""
    of = hypergraph.view.age
    if of is None:
        return [0] * len(hypergraph.candidates)
    age = of.tolist()
    return [
        max([age[v.cls] for v in c.outputs] + [age[v.cls] for _, v in c.inputs], default=0)
        for c in hypergraph.candidates
    ]


def rungs(age: Sequence[int]) -> list[int]:
    """Rounds at which smaller problems end: the members of STEPS before the last round, and the last but one."""
    found = sorted(set(age))[:-1]
    return sorted({*found[-1:], *(step for step in STEPS if step in found)})


def warm_solve(
    make: Callable[[Sequence[float]], Rows], hypergraph: Hypergraph, cost: Sequence[float], solve: Solve, *,
    seconds: float, deterministic: bool = False, known: Sequence[int] = (),
) -> tuple[Rows, Extraction]:  # fmt: skip
    """(problem, the cheapest extraction found in `seconds`), warm-started from the candidates `known`. If `known` is
    empty and there is no proof, also from smaller problems, in less than `seconds` more. The result is never dearer
    than `known`, nor than any smaller problem solved on the way. `make` builds the problem from the candidates' prices
    (inf: left out)."""
    rows = make(cost)
    hint = start_of(rows, hypergraph, known) if known else None
    found = solve(rows.problem, time_limit=seconds, deterministic=deterministic, hint=hint)
    if found.optimal or known or not (steps := rungs(age := ages(hypergraph))):
        return rows, found
    alone, best = found.cost, rows.ordered(found)
    ends = time.perf_counter() + SMALLER * seconds
    for n, step in enumerate(steps):
        left = ends - time.perf_counter()  # small problems usually need little of it
        share = SMALLER * seconds / len(steps) if deterministic else left / min(2, len(steps) - n)
        small = make([c if a <= step else math.inf for c, a in zip(cost, age)])
        start = start_of(small, hypergraph, best)
        try:
            one = solve(small.problem, time_limit=max(0.0, share), deterministic=deterministic, hint=start)
        except ExtractionError:  # the first rounds alone do not cover the outputs, or not within the limits
            continue
        if one.cost < found.cost:
            best = small.ordered(one)
            found = replace(found, choice=start_of(rows, hypergraph, best), cost=one.cost)
    if found.cost >= alone:
        return rows, found
    last = solve(rows.problem, time_limit=AGAIN * seconds, deterministic=deterministic, hint=found.choice)
    lower = min(max(found.lower_bound, last.lower_bound), last.cost)
    return rows, replace(last, lower_bound=lower, optimal=last.optimal or relative_gap(last.cost, lower) <= PROVED)


__all__ = ["ages", "rungs", "start_of", "warm_solve"]
