"""Beam and slack in steps, so that more of either only ever adds to what is found.

What is pruned depends on what else was found: a saturation with a wider beam may miss a form that a narrower one had. So a width
between two steps counts as the next one, and a step adds its saturation to those of all steps before it. Below the first
step, which is the default, there is one saturation, the default's, and less of it is kept: the e-nodes that were in some
round among the k cheapest of their class (or the cheapest of their op there), and within the slack of its best. Kept sets
of one saturation, and unions of more and more of them, are nested for any two values, and so for both limits together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, inf

from .narrow import Narrow
from .saturate import BEAM, SLACK_LAUNCHES, Limits

STEPS: tuple[tuple[int, float], ...] = ((BEAM, SLACK_LAUNCHES), (8, 5), (32, 12), (0, 32))
"""(beam, slack) of each step; 0: no beam. Wider than the last counts as the last."""


def step_of(limits: Limits) -> int:
    """The first step that is as wide as the limits in beam and slack."""
    beam = BEAM if limits.beam is None else limits.beam
    wide = (n for n, (b, s) in enumerate(STEPS) if (not b or 0 < beam <= b) and limits.slack <= s)
    return next(wide, len(STEPS) - 1)


def narrowed(limits: Limits, more: int) -> list[Narrow]:
    """What limits below the first step keep of a saturation that is so much wider, after what smaller ones of the same kind
    keep; empty for all of it."""
    beam = BEAM if limits.beam is None else limits.beam
    beams = list(range(1, beam + 1)) if 0 < beam < BEAM else [0]
    slacks = [*range(ceil(limits.slack)), limits.slack] if limits.slack < SLACK_LAUNCHES else [inf]
    pairs = [*((b, slacks[-1]) for b in beams[:-1]), *((beams[-1], s) for s in slacks)]
    narrow = [Narrow(b << more, s + 2 * more) for b, s in pairs]
    return [] if narrow == [Narrow()] else narrow


def parts(limits: Limits, effort: int) -> Iterator[tuple[Limits, list[Narrow]]]:
    """The saturations whose union limits and effort stand for, in order, and what is kept of each. More of anything adds to
    the list or makes its parts hold more. Each step of effort goes as far as the one before, twice as wide."""
    widest = step_of(limits)
    for more in range(effort):
        longer = limits.longer(more)
        for beam, slack in STEPS[: widest + 1]:
            yield replace(longer, beam=beam << more, slack=slack + 2 * more), narrowed(limits, more)


__all__ = ["STEPS", "narrowed", "parts", "step_of"]
