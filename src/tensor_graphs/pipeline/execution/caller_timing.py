"""Times the caller's own function against the compiled program, for choose_form.py."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

from ...backends.program.program import Program
from ...report.report import Report
from ..sources.caller import Caller, CallerProgram
from .timing import FEW, Instant, Run, is_surely_faster, sampled, wall_us, why_not_faster

#: Seconds of timing: maximum; minimum even if the budget is exhausted, without waits for a core; minimum for FEW
#: samples.
SHARE_S, LEAST_S, FEW_S = 1.0, 0.1, 0.4
NOISE = 0.04  # relative margin by which the caller's function must be faster to win
SHORT_US = 50.0  # calls shorter than this many µs are repeated until a sample is as long


def why_program_runs(
    program: Program, caller: Caller, report: Report, *, left: float, ended: Callable[[], bool],
    clock: Callable[[Run], float] = wall_us, first: Mapping[str, float] | None = None,
) -> str | None:  # fmt: skip
    """Time the caller's function against the program. Returns None if the function is faster by more than noise; else
    the reason why the program runs, "" if the program is not slower.

    The function must be faster both as a `CallerProgram` and by itself. Writes the median call times in µs of the
    program and of the bare function to the report. Samples, timed by `clock`, alternate between the calls, for `left`
    seconds bounded to LEAST_S..SHARE_S, for at least FEW rounds if these take less than FEW_S, else at least one;
    `ended` is polled after each. Both must have been called before (warm). `first`: µs of these calls; if both together
    took longer than the sampling may take, they are the samples.
    """
    given = caller.inputs
    begun, until = Instant(), time.perf_counter() + min(SHARE_S, max(left, LEAST_S))
    polled = itertools.count()  # the first poll comes before the rounds

    def over() -> bool:
        least = LEAST_S if next(polled) >= FEW else FEW_S
        return ended() or (time.perf_counter() >= until and begun.us() >= 1e6 * least)

    wrapped = CallerProgram.around(program, caller)
    calls: dict[str, Run] = {
        "caller": lambda: caller.call(given), "program": lambda: program(*given), "wrapped": lambda: wrapped(*given)
    }  # fmt: skip
    with _inference(caller):
        known = first or {}
        long = sum(known.values()) > 1e6 * (until - time.perf_counter())
        samples = {name: [known[name] if long else clock(calls[name])] for name in ("caller", "program")}
        samples["wrapped"] = samples["caller"]
        if not (long or over()):
            times = max(1, int(SHORT_US / max(1e-3, min(samples["caller"] + samples["program"]))))
            many = {name: _repeated(call, times) for name, call in calls.items()}
            samples = sampled(many, seconds=SHARE_S, settled=LEAST_S, clock=clock, ended=over)
            samples = {name: [us / times for us in taken] for name, taken in samples.items()}
    report.caller_us, report.program_us = (median(samples[name]) for name in ("caller", "program"))
    return _reason(samples)


def _reason(samples: Mapping[str, Sequence[float]]) -> str | None:
    """Reason why the program runs instead of the caller's function (`why_program_runs`), from µs of calls of "caller",
    "wrapped" and "program"; None if the caller's function is faster, called directly and with its arguments checked."""
    slower = [name for name in ("caller", "wrapped") if not is_surely_faster(samples[name], samples["program"], NOISE)]
    if not slower:
        return None
    if slower == ["wrapped"]:
        return "the caller's function is not faster by more than noise once its arguments are checked"
    return why_not_faster(samples["caller"], samples["program"], NOISE)


def _repeated(call: Run, times: int) -> Run:
    def run() -> None:
        for _ in range(times):
            call()

    return call if times == 1 else run


def _inference(caller: Caller) -> AbstractContextManager[Any]:
    """Context in which the caller's function is timed: torch.inference_mode for Torch functions."""
    if not caller.torch:
        return nullcontext()
    import torch

    inference: AbstractContextManager[Any] = torch.inference_mode()
    return inference


__all__ = ["why_program_runs"]
