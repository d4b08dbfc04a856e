"""Searches a component by the frontier DP in rising beam widths, as far as time allows.

A narrow beam finds a good solution of any component, an exact search takes 12 to 40 times as long (in decode steps),
and a wide beam most often finds the optimum, but does not prove it. So a narrow beam comes first, then an exact search
if it may end in time, and then a beam as wide as there is time for. On 42 problems of two decode steps as prices
change, plans are 2.5 % dearer than the cheapest known with a width of 40, 0.5 % with 100, 0.1 % with 200.
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
# an exact search begins if there is time for beams this many times as wide as the widest; it ends after this share
SPARE, EXACT_SHARE = 2.0, 0.7


def best_of_widths(
    frontier_dp: FrontierDP, clock: SolveClock, *, ends: float, labels: float
) -> LabelSearchResult:  # fmt: skip
    """The frontier DP's best result for a component, with the number of labels of all its searches.

    `ends`: time (time.perf_counter()) at which wide beams should end; `clock` says when all searches must. Where limits
    are counted work, `labels` limits their labels in place of `ends`; the first beam is not limited.
    """
    counted, began = clock.deterministic, time.perf_counter()
    last = math.inf if counted else began + clock.left
    first = frontier_dp.search(FIRST_WIDTH, deadline=last, stop=clock.stop)
    found, took = [first], time.perf_counter() - began
    if first.exact or first.chosen is None:
        return first

    def widest() -> float:
        """Width of a beam for which there is time."""
        done = sum(one.labels for one in found)
        left = (labels - done) / max(first.labels, 1) if counted else (ends - time.perf_counter()) / max(took, 1e-9)
        return FIRST_WIDTH * left

    if widest() > SPARE * MAX_WIDTH:
        now = time.perf_counter()
        until = math.inf if counted else now + EXACT_SHARE * (ends - now)
        most = EXACT_SHARE * (labels - first.labels)
        found.append(frontier_dp.search(deadline=until, stop=clock.stop, drops=False, most_labels=most))
    if not found[-1].exact and (width := int(min(MAX_WIDTH, widest()))) >= LEAST_WIDENING * FIRST_WIDTH:
        found.append(frontier_dp.search(width, deadline=last, stop=clock.stop))
    best = min(found, key=lambda one: (not one.exact, one.cost))
    return replace(best, labels=sum(one.labels for one in found))


__all__ = ["best_of_widths"]
