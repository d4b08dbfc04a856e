"""Extracts such that given nodes are used: the class of each becomes a root, and its consumers are forced if needed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import ExtractionError, NoPlanError
from ..extract.solve.extraction import Extraction
from ..extract.solve.problem import Problem, reachable
from ..extract.solve.solve import solve

MOST_CONSUMERS = 6  # consumers that are forced in turn so that a forced kernel's result is used


def forced(problem: Problem, nodes: Sequence[int], until: float) -> tuple[Extraction, list[bool]]:
    """Cheapest extraction found by the time `until` (time.perf_counter) that uses given nodes, and for each node
    whether no output needs it.

    The class of a forced node becomes a root. If the outputs do not use it, its consumers are forced in turn.
    """
    found, used = _with_roots(problem, nodes, until)
    for i, node in enumerate(nodes):
        if used[i]:
            continue
        best: Extraction | None = None
        for chain in _consumers(problem, node):
            if time.perf_counter() > until:
                break
            try:
                tried, reached = _with_roots(problem, [*nodes, *chain], until)
            except (ExtractionError, NoPlanError):
                continue
            if reached[i] and (best is None or tried.cost < best.cost):
                best = tried
        if best is not None:
            found, used[i] = best, True
    return found, [not u for u in used]


def _with_roots(problem: Problem, nodes: Sequence[int], until: float) -> tuple[Extraction, list[bool]]:
    """The cheapest extraction with these nodes chosen in their classes, and for each node whether an output needs
    it."""
    cost, roots = problem.cost.copy(), list(problem.roots)
    for node in nodes:
        others = problem.cls == problem.cls[node]
        others[node] = False
        cost[others] = math.inf
        roots.append(int(problem.cls[node]))
    changed = replace(problem, cost=cost, roots=tuple(dict.fromkeys(roots)))
    try:
        found = solve(changed, time_limit=max(0.2, until - time.perf_counter()))
    except ExtractionError as error:
        raise NoPlanError(f"no plan is left: {error.message}", where="what_if", hint="forbid or pin less") from None
    needed = set(reachable(replace(changed, roots=problem.roots), found.choice))
    return found, [n in needed for n in nodes]


def _consumers(problem: Problem, node: int) -> Iterable[list[int]]:
    """Chains of one or two consumers of a node's class, cheapest first."""
    owner = np.repeat(np.arange(problem.n_nodes), np.diff(problem.off))

    def readers(cls: int) -> list[int]:
        rows = [int(i) for i in np.unique(owner[problem.child == cls]) if problem.cost[i] < math.inf]
        return sorted(rows, key=lambda i: float(problem.cost[i]))[:MOST_CONSUMERS]

    first = readers(int(problem.cls[node]))
    yield from ([a] for a in first)
    yield from ([a, b] for a in first for b in readers(int(problem.cls[a])))


__all__ = ["forced"]
