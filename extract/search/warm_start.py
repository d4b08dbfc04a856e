"""Solves nested smaller problems first and starts from their plans (warm start), so that a larger e-graph never leads
to a worse plan.

A large problem that is not solved to optimality may end with a worse plan than a smaller one that is. Each e-class
records the saturation round of its creation; the kernels over e-classes of the first n rounds form a problem that
contains all plans of an e-graph saturated for n rounds. If the whole problem is not solved to proven optimality, such
nested problems are solved in rising order of n, each warm-started from the best plan so far, and the whole problem
last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import ExtractionError
from ..candidates.hypergraph import Hypergraph
from ..solve.extraction import Extraction, relative_gap
from ..solve.problem import IntArray
from .encoding import EncodedHypergraph

NESTED_ROUNDS = (0, 1, 2, 4, 8)
"""Rounds at which the smaller problems end."""

NESTED_TIME_SHARE, FINAL_TIME_SHARE = 0.5, 0.3
"""Time for all smaller problems, and for the final solve of the whole, as shares of the first solve's time."""

PROVED_GAP = 1e-6  # relative gap that counts as zero, as in `solve`
Solve = Callable[..., Extraction]


def choice_of_candidates(rows: EncodedHypergraph, hypergraph: Hypergraph, chosen: Sequence[int]) -> IntArray:
    """Choice array (node per class, -1: none) of the extraction problem `rows` for the candidates `chosen`. A candidate
    that the problem does not contain is replaced by the one with the same inputs and outputs that it contains."""
    problem = rows.problem
    alike, cls = hypergraph.alike, problem.cls.tolist()
    row = {alike[c]: n for n, c in enumerate(rows.candidate) if c >= 0}
    choice = np.full(problem.n_classes, -1, np.int32)
    for i in chosen:
        if (n := row.get(alike[i])) is not None:
            choice[cls[n]] = n
    for n, c in enumerate(rows.candidate):  # given vertices, and projections of multi-output kernels
        if c < 0 and choice[cls[n]] < 0 and (choice[problem.child[problem.off[n] : problem.off[n + 1]]] >= 0).all():
            choice[cls[n]] = n
    return choice


def candidate_rounds(hypergraph: Hypergraph) -> list[int]:
    """For each candidate the first saturation round after which all e-classes that it reads and writes exist."""
    of = hypergraph.view.age
    if of is None:
        return [0] * len(hypergraph.candidates)
    age = of.tolist()
    return [
        max([age[v.cls] for v in c.outputs] + [age[v.cls] for _, v in c.inputs], default=0)
        for c in hypergraph.candidates
    ]


def nested_rounds(age: Sequence[int]) -> list[int]:
    """Rounds of saturation after which smaller extraction problems are made: those of NESTED_ROUNDS before the last
    round, and the last but one. `age`: round in which each candidate appeared.
    """
    found = sorted(set(age))[:-1]
    return sorted({*found[-1:], *(step for step in NESTED_ROUNDS if step in found)})


def warm_solve(
    make: Callable[[Sequence[float]], EncodedHypergraph], hypergraph: Hypergraph, cost: Sequence[float], solve: Solve, *,
    seconds: float, deterministic: bool = False, known: Sequence[int] = (), nested: bool = True,
    beam_only: bool = False,
) -> tuple[EncodedHypergraph, Extraction]:  # fmt: skip
    """Build an extraction problem with `make` and solve it by the function `solve`, starting from the plan `known`.

    Returns (problem, cheapest extraction found); it costs at most as much as `known` (indices of candidates; empty: no
    plan).

    `cost`: µs of each candidate; `make` builds the problem from such costs and leaves out those that are inf.
    `seconds`: time limit of the first solve. If `known` is empty, `nested` is set and that solve proves no optimum,
    smaller problems (e-classes of the first saturation rounds) are solved as well, and the whole one again from the
    best of their plans, in less than `seconds` more. `deterministic`: reproducible, limited by counted work instead of
    time. `beam_only`: the first solve of a large problem ends after a beam search.
    """
    rows = make(cost)
    hint = choice_of_candidates(rows, hypergraph, known) if known else None
    found = solve(rows.problem, time_limit=seconds, deterministic=deterministic, hint=hint, beam_only=beam_only)
    if found.optimal or known or not nested or not (steps := nested_rounds(age := candidate_rounds(hypergraph))):
        return rows, found
    alone, best = found.cost, rows.ordered(found)
    ends = time.perf_counter() + NESTED_TIME_SHARE * seconds
    for n, step in enumerate(steps):
        left = ends - time.perf_counter()  # small problems usually need little of it
        share = NESTED_TIME_SHARE * seconds / len(steps) if deterministic else left / min(2, len(steps) - n)
        small = make([c if a <= step else math.inf for c, a in zip(cost, age)])
        start = choice_of_candidates(small, hypergraph, best)
        try:
            one = solve(small.problem, time_limit=max(0.0, share), deterministic=deterministic, hint=start)
        except ExtractionError:  # the first rounds alone do not cover the outputs, or not within the limits
            continue
        if one.cost < found.cost:
            best = small.ordered(one)
            found = replace(found, choice=choice_of_candidates(rows, hypergraph, best), cost=one.cost)
    if found.cost >= alone:
        return rows, found
    last = solve(rows.problem, time_limit=FINAL_TIME_SHARE * seconds, deterministic=deterministic, hint=found.choice)
    lower = min(max(found.lower_bound, last.lower_bound), last.cost)
    return rows, replace(last, lower_bound=lower, optimal=last.optimal or relative_gap(last.cost, lower) <= PROVED_GAP)


__all__ = ["candidate_rounds", "choice_of_candidates", "nested_rounds", "warm_solve"]
