"""Computes how many seconds a search on a GPU leaves for the stages after it, so that `optimize` ends in its budget.

After measuring come the last choices of kernels, the program, timing of the finalists (best few plans) and of launch
overlaps, verification, timing, and storing the plan. With small budgets no time is reserved: measuring gets
it, and stages for which no time is left are omitted.
"""

from __future__ import annotations

from .session import Session

LEAST_BUDGET_S = 20.0  # budget from which time is kept for all stages
LAST_SOLVES_S = 2.5  # the last solves, and measuring what the plan to return lacks
WHOLE_S = 1.5  # matching and solving the whole model with the kernels of its short form
BUILD_S, FIRST_RUN_S = 0.3, 1.5  # the program; compiling its kernels and loading them
FINALISTS_S, LAUNCHING_S = 1.5, 2.5  # timing finalists; compiling and timing launch overlaps
TIMING_S, ENDING_S = 0.7, 1.0  # timing the program; the report, storing the plan, ending processes


def is_kept(session: Session) -> bool:
    """Whether the budget is large enough that time is reserved for every stage after measuring."""
    return session.options.budget >= LEAST_BUDGET_S


def launching_s(session: Session) -> float:
    """Seconds that timing the finalists leaves for comparing launch overlaps (time_launching.py)."""
    return LAUNCHING_S + session.binding_s if is_kept(session) else 0.0


def after_launching_s(session: Session) -> float:
    """Seconds that comparing launch overlaps leaves: for verification on one input, timing and the end of
    `optimize`.

    Verification on further inputs gets the time that is left: another launch overlap saves up to a fifth of a program's
    time, and a call that finds the plan in the plan cache verifies it on the inputs that were left out.
    """
    return session.verification_s + TIMING_S + ENDING_S if is_kept(session) else session.verification_s


def after_finalists_s(session: Session) -> float:
    """Seconds that timing finalists and launch overlaps leaves for verification, timing and the end of `optimize`."""
    return (
        session.verified_inputs * session.verification_s + TIMING_S + ENDING_S
        if is_kept(session)
        else session.verification_s
    )


def after_search_s(session: Session) -> float:
    """Seconds of the budget reserved for the stages after kernel measurement; of a small budget (`is_kept` is False),
    only for verification."""
    if not is_kept(session):
        return session.verification_s
    return LAST_SOLVES_S + BUILD_S + FIRST_RUN_S + FINALISTS_S + launching_s(session) + after_finalists_s(session)


__all__ = [
    "ENDING_S",
    "LEAST_BUDGET_S",
    "WHOLE_S",
    "after_finalists_s",
    "after_launching_s",
    "after_search_s",
    "is_kept",
    "launching_s",
]
