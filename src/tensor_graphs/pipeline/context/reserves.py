"""Computes how many seconds a search leaves for the stages after it, so that `optimize` ends in its budget.

After measuring come the last choices of kernels, the program, verification, timing, and storing the plan; on a GPU also
timing of the finalists (best few plans) and of launch overlaps. Time is reserved for each of them: from a budget of
`FULL_S` on the seconds below, with smaller budgets in proportion. Launch overlaps have none then; they are timed if
time is left.
"""

from __future__ import annotations

from ...extract.search.plan_solver import CLOSING_S
from ...options import CommonOptions
from .session import Session

FULL_S = 20.0  # budget from which all stages have their full time
LAST_SOLVES_S = 2.5  # the last solves, and measuring what the plan to return lacks
CLOSING, CLOSING_LEAST = 0.1, 0.2  # share of the budget for that measuring; share of this time that it gets in any case
HOST_CLOSING = 0.2  # the first share on a CPU: plans of unmeasured kernels are up to twice as slow
# carrying kernels of a short form over to the whole model, matching and solving it: in any case, and per e-node
WHOLE_S, WHOLE_S_PER_NODE = 1.5, 1e-4
BUILD_S, FIRST_RUN_S = 0.3, 1.5  # the program; compiling its kernels and loading them
FINALISTS_S, LAUNCHING_S = 1.5, 2.5  # timing finalists; compiling and timing launch overlaps
SCHEDULES, SCHEDULES_S = 0.1, 4.0  # timing schedules in the program: share of the budget, and seconds at most
# that time is reserved for models with at most so many bytes of weights, as they are stored: larger models have long
# kernels, which gained little by other schedules, and the time of measuring them is short
FEW_WEIGHTS = 8e9
HOLDING = 0.35  # further time, as a share of that: measuring kernels in a short form that are tried in the program
TIMING_S, ENDING_S = 0.7, 1.0  # timing the program; the report, storing the plan, ending processes
COMPILING_S, HOST_ENDING_S = 0.5, 0.5  # on a CPU: compiling the C kernels of a program; comparing and storing it


def scale(session: Session) -> float:
    """Share of the stages' full time that is reserved with the session's budget."""
    return min(1.0, session.options.budget / FULL_S)


def closing_s(options: CommonOptions, on_gpu: bool) -> float:
    """Seconds, at most, in which a search measures unmeasured kernels of the plan to return; on a CPU also those that a
    kernel gets which runs when measuring ends."""
    return min(CLOSING_S, (CLOSING if on_gpu else HOST_CLOSING) * options.budget)


def whole_s(session: Session, nodes: int) -> float:
    """Seconds that the search of a short form leaves for matching and solving the whole model of `nodes` e-nodes."""
    return scale(session) * (WHOLE_S + WHOLE_S_PER_NODE * nodes)


def ending_s(session: Session) -> float:
    """Seconds that optional work leaves for the end of `optimize`."""
    return scale(session) * ENDING_S


def launching_s(session: Session) -> float:
    """Seconds that timing the finalists leaves for comparing launch overlaps (time_launching.py)."""
    return LAUNCHING_S if session.options.budget >= FULL_S else 0.0


def trying_s(session: Session) -> float:
    """Seconds for timing schedules in the program (time_schedules.py) if there are as many left."""
    return min(SCHEDULES_S, SCHEDULES * session.options.budget) if session.options.budget >= FULL_S else 0.0


def holding_s(session: Session) -> float:
    """Seconds in which a search of a short form measures kernels that are tried in the program."""
    return HOLDING * trying_s(session) if _has_few_weights(session) else 0.0


def schedules_s(session: Session) -> float:
    """Seconds that other stages leave for timing schedules in the program: none where no part of the model repeats,
    and for models with many weights."""
    return trying_s(session) if session.expected.repeats and _has_few_weights(session) else 0.0


def _has_few_weights(session: Session) -> bool:
    return session.expected.weight_bytes <= FEW_WEIGHTS


def after_launching_s(session: Session) -> float:
    """Seconds that comparing launch overlaps leaves: for verification on one input, timing and the end of
    `optimize`.

    Verification on further inputs gets the time that is left: another launch overlap saves up to a fifth of a program's
    time, and a call that finds the plan in the plan cache verifies it on the inputs that were left out.
    """
    return session.expected.verification_s + scale(session) * TIMING_S + ending_s(session)


def after_finalists_s(session: Session) -> float:
    """Seconds that timing finalists and launch overlaps leaves for verification, timing and the end of `optimize`."""
    further = max(0, session.expected.verified_inputs - 1)
    return scale(session) * further * session.expected.verification_s + after_launching_s(session)


def building_s(session: Session) -> float:
    """Seconds from a plan to a program that has run, with its weights on the device."""
    return scale(session) * (BUILD_S + FIRST_RUN_S + session.expected.binding_s)


def mandatory_s(session: Session, on_gpu: bool) -> float:
    """Seconds of the stages after measuring that no clock ends: building, verification on one input, the end."""
    if on_gpu:
        return building_s(session) + session.expected.verification_s + ending_s(session)
    return session.expected.verification_s + session.expected.compiling_s + scale(session) * HOST_ENDING_S


def closing_left_s(session: Session, on_gpu: bool, used: float) -> float:
    """Seconds of the closing phase of a search that takes `used` seconds before it: what the mandatory stages leave of
    `closing_s`, but `CLOSING_LEAST` of it in any case while there is time."""
    most, left = closing_s(session.options, on_gpu), max(0.0, session.left)
    least = CLOSING_LEAST * min(most, left)
    return min(most, max(least, left - used - mandatory_s(session, on_gpu)))


def after_search_on_host_s(session: Session) -> float:
    """Seconds of the budget that measuring on a CPU leaves for the stages after it."""
    return closing_s(session.options, on_gpu=False) + mandatory_s(session, on_gpu=False)


def after_search_s(session: Session) -> float:
    """Seconds of the budget that measuring on a GPU leaves for the stages after it."""
    solves = scale(session) * (LAST_SOLVES_S + FINALISTS_S)
    return solves + building_s(session) + launching_s(session) + schedules_s(session) + after_finalists_s(session)


__all__ = [
    "COMPILING_S",
    "FULL_S",
    "after_finalists_s",
    "after_launching_s",
    "after_search_on_host_s",
    "after_search_s",
    "building_s",
    "closing_left_s",
    "closing_s",
    "ending_s",
    "holding_s",
    "launching_s",
    "mandatory_s",
    "scale",
    "schedules_s",
    "trying_s",
    "whole_s",
]
