"""Searches a component by the frontier DP in rising beam widths, as far as time allows.

A narrow beam takes a twentieth of the time of an exact search and finds a good solution of any component; a wide beam
most often finds the optimum, but does not prove it. So a narrow beam comes first, then one as wide as there is time
for. On 42 problems of two decode steps as prices change, plans are 2.5 % dearer than the cheapest known with a width of
40, 0.5 % with 100, 0.1 % with 200.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from .frontier_dp import FrontierDP
from .label_setting import LabelSearchResult
from .solve_clock import SolveClock

FIRST_WIDTH, MAX_WIDTH = 40, 400
LEAST_WIDENING = 1.5  # ratio of widths from which the second beam is worth its time
BEAM_SHARE = 0.3  # share of the time for the second beam where an exact search follows
SPARE = 2.0  # a hasty search has an exact one too if there is time for beams this many times as wide as the widest


def best_of_widths(
    frontier_dp: FrontierDP, clock: SolveClock, *, ends: float, labels: float, hasty: bool
) -> LabelSearchResult:  # fmt: skip
    """The frontier DP's best result for a component, with the number of labels of all its searches: of beams and,
    unless `hasty` and without spare time, of an exact search.

    `ends`: time (time.perf_counter()) at which exact searches end, and wide beams should; `clock` says when all must.
    Where limits are counted work, `labels` limits their labels in place of `ends`; the first beam is not limited.
    """
    counted, began = clock.deterministic, time.perf_counter()
    last, ends = (math.inf, math.inf) if counted else (began + clock.left, ends)
    first = frontier_dp.search(FIRST_WIDTH, deadline=last, stop=clock.stop)
    found = [first]
    if first.exact or first.chosen is None:
        return first
    now = time.perf_counter()
    room = (labels - first.labels) / max(first.labels, 1) if counted else (ends - now) / max(now - began, 1e-9)
    width = min(MAX_WIDTH, int(FIRST_WIDTH * room * (1.0 if hasty else BEAM_SHARE)))
    if width >= LEAST_WIDENING * FIRST_WIDTH:
        found.append(frontier_dp.search(width, deadline=last, stop=clock.stop))
    if not found[-1].exact and (not hasty or FIRST_WIDTH * room > SPARE * MAX_WIDTH):
        rest = labels - sum(one.labels for one in found)
        found.append(frontier_dp.search(deadline=ends, stop=clock.stop, drops=False, most_labels=rest))
        if not (found[-1].exact or counted) and width < MAX_WIDTH:
            found.append(frontier_dp.search(MAX_WIDTH, deadline=ends, stop=clock.stop))
    best = min(found, key=lambda one: (not one.exact, one.cost))
    return replace(best, labels=sum(one.labels for one in found))


__all__ = ["best_of_widths"]
