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
from ...wording import spelled_us
from ..sources.caller import Caller, CallerProgram
from .timing import (
    FEW,
    FEW_S,
    QUEUED,
    Instant,
    Run,
    call_clock_of,
    device_alone,
    is_surely_faster,
    repeated,
    sampled,
    why_not_faster,
)

#: Seconds of timing: maximum; minimum even if the budget is exhausted, without waits for a core.
SHARE_S, LEAST_S = 1.0, 0.1
NOISE = 0.04  # relative margin by which the caller's function must be faster to win
SHORT_US = 50.0  # calls shorter than this many µs are repeated until a sample is as long


def why_program_runs(
    program: Program, caller: Caller, report: Report, *, left: float, ended: Callable[[], bool],
    clock: Callable[[Run], float] | None = None, first: Mapping[str, float] | None = None,
) -> str | None:  # fmt: skip
    """Time the caller's function against the program. Returns None if the function is faster by more than noise; else
    the reason why the program runs, "" if the program is not slower.

    The function must be faster both as a `CallerProgram` and by itself, and on a GPU not slower for QUEUED calls in a
    row, without waiting for the device between them. Writes the median call times in µs of the program and of the bare
    function to the report. Samples, timed by `clock` (None: that of whole calls on the device), alternate between the
    calls, for `left` seconds bounded to LEAST_S..SHARE_S, for at least FEW rounds if these take less than FEW_S, else
    at least one; `ended` is polled after each. Both must have been called before (warm). `first`: µs of these calls; if
    both together took longer than the sampling may take, they are the samples.
    """
    given, clock = caller.inputs, clock or call_clock_of(caller.device)
    begun, until = Instant(), time.perf_counter() + min(SHARE_S, max(left, LEAST_S))
    polled = itertools.count()  # the first poll comes before the rounds

    def over() -> bool:
        least = LEAST_S if next(polled) >= FEW else FEW_S
        return ended() or (time.perf_counter() >= until and begun.us() >= 1e6 * least)

    wrapped = CallerProgram.around(program, caller)
    calls: dict[str, Run] = {
        "caller": lambda: caller.call(given), "program": lambda: program(*given), "wrapped": lambda: wrapped(*given)
    }  # fmt: skip
    with _inference(caller), device_alone(caller.device):
        known = first or {}
        long = sum(known.values()) > 1e6 * (until - time.perf_counter())
        samples = {name: [known[name] if long else clock(calls[name])] for name in ("caller", "program")}
        samples["wrapped"] = samples["caller"]
        if not (long or over()):
            short = SHORT_US / max(1e-3, min(samples["caller"] + samples["program"]))
            times = max(1, int(short)) if caller.device == "cpu" else 1
            many = {name: repeated(call, times) for name, call in calls.items()}
            samples = sampled(many, seconds=SHARE_S, settled=LEAST_S, clock=clock, ended=over)
            samples = {name: [us / times for us in taken] for name, taken in samples.items()}
        report.caller_us, report.program_us = (median(samples[name]) for name in ("caller", "program"))
        if (why := _reason(samples)) is not None or caller.device == "cpu" or long:
            return why
        return _why_not_queued({name: calls[name] for name in ("wrapped", "program")}, clock, over)


def _why_not_queued(calls: Mapping[str, Run], clock: Callable[[Run], float], ended: Callable[[], bool]) -> str | None:
    """Reason why the program runs although single calls of the caller's function are faster: QUEUED calls in a row are
    not. None if they are not slower either. `calls`: "wrapped", the caller's function, and "program"."""
    queued = {name: repeated(call, QUEUED) for name, call in calls.items()}
    samples = sampled(queued, seconds=SHARE_S, settled=LEAST_S, clock=clock, ended=ended)
    wrapped, program = (median(samples[name]) / QUEUED for name in ("wrapped", "program"))
    if wrapped <= program:
        return None
    return f"its calls take {spelled_us(program)} of {QUEUED} in a row, those of the caller's function {spelled_us(wrapped)}"


def _reason(samples: Mapping[str, Sequence[float]]) -> str | None:
    """Reason why the program runs instead of the caller's function (`why_program_runs`), from µs of calls of "caller",
    "wrapped" and "program"; None if the caller's function is faster, called directly and with its arguments checked."""
    slower = [name for name in ("caller", "wrapped") if not is_surely_faster(samples[name], samples["program"], NOISE)]
    if not slower:
        return None
    if slower == ["wrapped"]:
        return "the caller's function is not faster by more than noise once its arguments are checked"
    return why_not_faster(samples["caller"], samples["program"], NOISE)


def _inference(caller: Caller) -> AbstractContextManager[Any]:
    """Context in which the caller's function is timed: torch.inference_mode for Torch functions."""
    if not caller.torch:
        return nullcontext()
    import torch

    inference: AbstractContextManager[Any] = torch.inference_mode()
    return inference


__all__ = ["why_program_runs"]
