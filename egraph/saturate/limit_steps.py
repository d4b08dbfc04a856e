"""Defines discrete steps of beam width (e-nodes kept per e-class) and slack (added cost up to which an e-node is kept),
chosen so that a larger beam or slack only ever adds e-nodes to the result.

Single saturations are not monotone: which e-nodes are pruned depends on which others were found, so that a saturation
with a wider beam may lack a term that one with a narrower beam has. Therefore a limit between two steps is rounded up
to the next step, and the result of a step is the union of its saturation with those of all earlier steps. Limits below
the first step (the default) run the default saturation and then filter it: kept are the e-nodes that in some round were
among the k cheapest of their e-class (or the cheapest of their op in it) and within the slack of the e-class's best
cost. Filtered sets of one saturation and unions of a growing list of saturations are both nested, in beam and in slack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, inf

from .pruned_views import CostFilter
from .saturate import BEAM, SLACK_LAUNCHES, Limits

STEPS: tuple[tuple[int, float], ...] = ((BEAM, SLACK_LAUNCHES), (8, 5), (32, 12), (0, 32))
"""(beam, slack in launches) of each step. Beam 0 means no beam. Limits wider than the last step use the last step."""


def step_of(limits: Limits) -> int:
    """Index of the first step whose beam and slack are at least those of the limits; else of the last step."""
    beam = BEAM if limits.beam is None else limits.beam
    wide = (n for n, (b, s) in enumerate(STEPS) if (not b or 0 < beam <= b) and limits.slack <= s)
    return next(wide, len(STEPS) - 1)


def narrowed(limits: Limits, effort: int) -> list[CostFilter]:
    """Filters of the result of the default saturation, for limits tighter than its own (`STEPS[0]`), tightest first.

    Empty if the limits are not tighter: the whole result is kept.

    `effort`: the filters' beam is multiplied by 2**effort, and their slack grows by 2*effort.
    """
    beam = BEAM if limits.beam is None else limits.beam
    beams = list(range(1, beam + 1)) if 0 < beam < BEAM else [0]
    slacks = [*range(ceil(limits.slack)), limits.slack] if limits.slack < SLACK_LAUNCHES else [inf]
    pairs = [*((b, slacks[-1]) for b in beams[:-1]), *((beams[-1], s) for s in slacks)]
    narrow = [CostFilter(b << effort, s + 2 * effort) for b, s in pairs]
    return [] if narrow == [CostFilter()] else narrow


def parts(limits: Limits, effort: int) -> Iterator[tuple[Limits, list[CostFilter]]]:
    """Saturations whose results are united for `limits` and `effort`: yields (limits of a saturation, cost filters of
    its result), in order.

    Larger limits or effort append to this sequence or loosen its filters. Effort step n repeats all steps with
    `limits.longer(n)`, the beam (e-nodes per e-class) multiplied by 2**n and the slack (kernel launches) increased by
    2*n.
    """
    widest = step_of(limits)
    for more in range(effort):
        longer = limits.longer(more)
        for beam, slack in STEPS[: widest + 1]:
            yield replace(longer, beam=beam << more, slack=slack + 2 * more), narrowed(limits, more)


__all__ = ["STEPS", "narrowed", "parts", "step_of"]
