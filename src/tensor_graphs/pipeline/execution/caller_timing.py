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
    is_faster,
    repeated,
    sampled,
)

#: Seconds of timing: maximum; minimum even if the budget is exhausted, without waits for a core.
SHARE_S, LEAST_S = 1.0, 0.1
MORE_S, ROUNDS = 1.0, 2  # most seconds of further samples where the first decide nothing, and least rounds in that time
SEVERAL = 2.0  # ratio of medians from which the slower one never runs, whatever its fastest call takes
NOISE = 0.04  # relative margin by which the caller's function must be faster to win
SHORT_US = 50.0  # calls shorter than this many µs are repeated until a sample is as long


def why_program_runs(
    program: Program, caller: Caller, report: Report, *, left: float, ended: Callable[[], bool],
    clock: Callable[[Run], float] | None = None, first: Mapping[str, float] | None = None,
) -> str | None:  # fmt: skip
    """Time the caller's function against the program. Returns None if the function is faster by more than noise; else
    the reason why the program runs, "" if the program is not slower.

    Compared are the program and the function as a `CallerProgram`, in which it would run; by itself it is timed for the
    report. It is faster if its median and its fastest call are, by more than NOISE, or its median SEVERAL times; on a
    GPU it must not be slower for QUEUED calls in a row, without waiting for the device between them. Writes the median
    call times in µs of the program and of the bare function to the report. Samples, timed by `clock` (None: that of
    whole calls on the device), alternate between the calls, for `left` seconds bounded to LEAST_S..SHARE_S, for at
    least FEW rounds if these take less than FEW_S, else at least one; `ended` is polled after each. If these are fewer
    than FEW, or their medians and minima disagree, more follow if two rounds take less than MORE_S: for `left` seconds,
    bounded to FEW_S..MORE_S. Both must have been called before (warm). `first`: µs of these calls; if both together
    took longer than the sampling may take, they are the samples.
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
        samples["wrapped"] = list(samples["caller"])
        if not (long or over()):
            samples = _sampled(calls, samples, caller, LEAST_S, clock, over)
        seconds = sum(median(taken) for taken in samples.values()) / 1e6
        further = min(MORE_S, max(FEW_S, left - 1e-6 * begun.us()))
        if _is_unclear(samples) and ROUNDS * seconds < MORE_S and not ended():
            last = time.perf_counter() + further
            more = _sampled(calls, samples, caller, further, clock, lambda: ended() or time.perf_counter() >= last)
            samples = {name: (taken if not long else []) + more[name] for name, taken in samples.items()}
        report.caller_us, report.program_us = (median(samples[name]) for name in ("caller", "program"))
        if (why := _reason(samples)) is not None or caller.device == "cpu" or long:
            return why
        return _why_not_queued({name: calls[name] for name in ("wrapped", "program")}, clock, over)


def _sampled(
    calls: Mapping[str, Run], before: Mapping[str, Sequence[float]], caller: Caller, settled: float,
    clock: Callable[[Run], float], ended: Callable[[], bool],
) -> dict[str, list[float]]:  # fmt: skip
    """µs of alternating calls (`sampled`, which explains `settled` and `ended`). `before`: µs of calls so far; on a CPU
    calls shorter than SHORT_US are timed several at a time."""
    short = SHORT_US / max(1e-3, min(min(before[name]) for name in ("caller", "program")))
    times = max(1, int(short)) if caller.device == "cpu" else 1
    many = {name: repeated(call, times) for name, call in calls.items()}
    samples = sampled(many, seconds=SHARE_S, settled=settled, clock=clock, ended=ended)
    return {name: [us / times for us in taken] for name, taken in samples.items()}


def _is_unclear(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether more samples may decide otherwise: they are fewer than FEW, or medians and minima disagree."""
    ours, theirs = samples["program"], samples["wrapped"]
    return min(len(ours), len(theirs)) < FEW or (median(theirs) < median(ours)) != (min(theirs) < min(ours))


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
    "wrapped" and "program"; None if the caller's function is faster. Names each figure that decides, except the medians
    of "caller" and "program"."""
    ours, theirs = samples["program"], samples["wrapped"]
    if is_faster(theirs, ours, NOISE) or median(theirs) * SEVERAL < median(ours):
        return None
    if median(samples["caller"]) >= median(ours):
        return ""
    checked = f"with its arguments checked the caller's function takes {spelled_us(median(theirs))}"
    if median(theirs) * (1 + NOISE) < median(ours):
        return f"{checked}, but the fastest calls take {spelled_us(min(theirs))} and {spelled_us(min(ours))}"
    within = f", within the noise of {100 * NOISE:.0f} %" if median(theirs) < median(ours) else ""
    return checked + within


def _inference(caller: Caller) -> AbstractContextManager[Any]:
    """Context in which the caller's function is timed: torch.inference_mode for Torch functions."""
    if not caller.torch:
        return nullcontext()
    import torch

    inference: AbstractContextManager[Any] = torch.inference_mode()
    return inference


__all__ = ["why_program_runs"]
