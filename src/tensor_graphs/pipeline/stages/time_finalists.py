"""Chooses between the finalists of a search (the few best plans whose kernels are all measured) by timing each as a
whole program.

The sum of its kernels' times, by which a plan is chosen, is not the time of a program: see `finalists`. Only on a GPU:
on a CPU a program's C code takes as long to compile as its search is allowed to spend here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np

from ...backends.program.program import Program
from ...extract.search.alternatives import finalists, unmeasured_alternative, unmeasured_kernels
from ...extract.search.search import Choice
from ...report.omissions import Omission, OmittedWork
from ...report.records import FinalistReport
from ...verification.reference import sampled_near
from ..context.reserves import after_finalists_s, after_launching_s, launching_s, schedules_s
from ..context.session import Session
from ..execution import timing
from ..execution.full_states import state_resets
from .measure_prefetching import Look
from .prepare import Task
from .time_launching import Compiler, begin_compiling, fastest_launching, other_forms
from .time_schedules import Measured, begin_compiling_schedules, fastest_schedules

COUNT, MAX_GAP = 5, 0.1  # most finalists, the predicted best one included; relative excess of their predicted times
# time limit: share of the budget, and seconds; share of it for finding finalists
SHARE, MAX_S, SOLVING = 0.05, 3.0, 0.4
# share by which a choice with unmeasured kernels has to be cheaper for a trial, share from which it needs none, and
# seconds in which it is sought
GAIN, SURE, GAIN_S = 0.1, 0.25, 0.3
LEAST_S = 0.25  # seconds in any case, if the share of the budget is as much; of timing after programs are bound, too
MAX_BYTES = 8 << 30  # device bytes of the other finalists' programs, without weights that they share
NOISE = 0.01  # relative difference of measured times that is treated as noise
STAGE, FIRST_RUN, SCHEDULES = "finalists", "first run", "schedules"
TIMED = 1 << 20  # number of the input set on which programs are timed; verification counts its own from 0


def fastest_finalist(
    session: Session, task: Task, choice: Choice, program: Program, build: Callable[[Choice], Program],
    compiler: Compiler | None = None, measured: Measured = lambda candidate: (),
    look: Look | None = None,
) -> tuple[Choice, Program]:  # fmt: skip
    """Time the finalists (the few best plans) as whole programs; returns the fastest one with its program.

    That is `choice` with `program`, which are predicted to be the fastest, unless another finalist is faster by more
    than noise. `build` makes the program of a choice. Finalists that the time or memory limit excludes, or that fail to
    run, are left out. The predicted and the measured time of each goes to the session, for the report. All kernels of
    the others were measured alone, hence checked; the program is verified later. Then the launch overlap is
    chosen (time_launching.py); `compiler` compiles the programs for that in advance (None: kernels are launched as they
    were measured). Finally, schedules of repeated kernels are chosen (time_schedules.py) among those that `measured`
    gives; `look` measures further kernels.
    """
    if not (task.on_gpu and session.whole) or task.symbolic is not None or session.progress.stopped:
        return choice, program
    if _seconds(session) <= 0:
        return choice, program
    try:
        with session.stage(FIRST_RUN):  # loads and compiles kernels, binds weights: verification would do it
            rival, first = _with_unmeasured(session, choice, program, build, compiler)
            choice, program = first
            begin_compiling(session, program, compiler)
            begin_compiling_schedules(session, choice, program, compiler, measured)
            values = _inputs(session, task, program)
            program.flat_near(*values)
            program.wait("running a program for the first time")
        if rival is not None and session.left > after_launching_s(session):
            with session.stage(STAGE):
                choice, program = _faster(session, choice, program, rival, values)
        if session.left < after_finalists_s(session):
            session.omitted += [Omission(OmittedWork.TIMING_PLANS), Omission(OmittedWork.TIMING_OVERLAPS)]
            return choice, program
        with session.stage(STAGE):
            choice, program = _fastest(session, choice, program, build, compiler, values)
        sample = lambda made, ended: sample_programs(made, values, ended)
        with session.stage(SCHEDULES):
            return fastest_schedules(session, choice, program, build, compiler, measured, values, sample, fastest, look)
    except Exception as error:  # of a first launch, say; if it is the program's, verification raises it
        session.warnings.append(f"plans were not timed as programs: {type(error).__name__}: {error}")
        return choice, program


def _seconds(session: Session) -> float:
    """Seconds for finding and timing finalists."""
    most = min(MAX_S, SHARE * session.options.budget)
    return min(most, max(session.left - _later_s(session), LEAST_S))


def _later_s(session: Session) -> float:
    """Seconds of the stages after timing finalists."""
    return after_finalists_s(session) + launching_s(session) + schedules_s(session)


def _with_unmeasured(
    session: Session, choice: Choice, program: Program, build: Callable[[Choice], Program], compiler: Compiler | None
) -> tuple[tuple[Choice, Program] | None, tuple[Choice, Program]]:  # fmt: skip
    """(a rival that is worth a trial or None, the plan to run first) of a search that its budget ended: plans with and
    without unmeasured kernels.

    The one with them is first, without a trial if time is up, if it is surely cheaper: verification and the comparison
    with the unfused baseline follow, and the other takes its place if it fails.
    """
    if choice.stopped != "budget" or compiler is None:
        return None, (choice, program)
    found, gain = unmeasured_alternative(choice, seconds=GAIN_S)
    if gain < GAIN:
        return None, (choice, program)
    compiler(unmeasured_kernels(found), MAX_S if gain >= SURE else 0.0)
    pair = found, build(found)
    return ((choice, program), pair) if gain >= SURE else (pair, (choice, program))


def _faster(
    session: Session, choice: Choice, program: Program, rival: tuple[Choice, Program], values: Sequence[Any]
) -> tuple[Choice, Program]:  # fmt: skip
    """A rival of a plan that has run, if its program is faster by more than noise; else that plan."""
    runnable = [(choice, program), *_bound([rival], values, MAX_BYTES, lambda: False)]
    if len(runnable) == 1:
        return choice, program
    until = session.now() + LEAST_S
    ended = lambda: session.now() >= until or session.progress.stopped
    return _chosen(session, runnable, sample_programs([p for _, p in runnable], values, ended))


def _fastest(
    session: Session, choice: Choice, program: Program, build: Callable[[Choice], Program], compiler: Compiler | None,
    values: Sequence[Any],
) -> tuple[Choice, Program]:  # fmt: skip
    """`fastest_finalist` of a program that has run; `values`: inputs on its device."""
    seconds = _seconds(session)
    others = finalists(choice, count=COUNT, max_gap=MAX_GAP, seconds=SOLVING * seconds)[1:]
    runnable = [(choice, program)]
    made = [(c, build(c)) for c in others]
    forms = other_forms(session, choice, program, build, compiler)
    until = session.now() + (1 - SOLVING) * seconds  # compilers have a time of their own
    ended = lambda: session.now() >= until or session.progress.stopped
    if others:
        runnable += _bound(made, values, MAX_BYTES, ended)
        # binding may take all the time, and a single sample of each does not tell a tenth from noise
        until = max(until, session.now() + min(LEAST_S, seconds))
    if len(runnable) > 1:
        first = program
        choice, program = _chosen(session, runnable, sample_programs([p for _, p in runnable], values, ended))
        if program is not first:
            forms = other_forms(session, choice, program, build, compiler)
    room = MAX_BYTES // max(1, *(p.missing_bytes() for _, p in forms)) if forms else 0
    if len(forms) > room:
        session.omitted.append(Omission(OmittedWork.TIMING_OVERLAPS))
    if forms := forms[:room]:
        sample = lambda made: sample_programs(made, values, lambda: session.progress.stopped)
        return fastest_launching(session, choice, program, forms, values, sample, fastest)
    return choice, program


def _chosen(
    session: Session, runnable: Sequence[tuple[Choice, Program]], samples: Sequence[Sequence[float]]
) -> tuple[Choice, Program]:  # fmt: skip
    """The fastest one of the plans that run, by the samples (µs) of each; the programs of the others release their
    weights.
    """
    best = fastest(samples)
    session.finalists = [
        FinalistReport(sum(c.sources.values()), c.cost, median(us), n == best)
        for n, ((c, _), us) in enumerate(zip(runnable, samples, strict=True))
    ]
    for n, (_, other) in enumerate(runnable):
        if n != best:
            other.unbind()
    return runnable[best]


def fastest(samples: Sequence[Sequence[float]], noise: float = NOISE) -> int:
    """Index of the samples (µs) with the least median among those that are surely faster than the first, by more than
    the relative difference `noise`; 0 if none is."""
    faster = [n for n in range(1, len(samples)) if timing.is_surely_faster(samples[n], samples[0], noise)]
    return min(faster, key=lambda n: median(samples[n]), default=0)


def sample_programs(
    programs: Sequence[Program], values: Sequence[Any], ended: Callable[[], bool]
) -> list[Sequence[float]]:  # fmt: skip
    """Times in µs of calls of each program on the same inputs `values`, in turn, until the medians are settled or
    `ended()`, after a few in any case."""
    calls: dict[str, timing.Run] = {str(n): partial(p.flat_near, *values) for n, p in enumerate(programs)}
    clock, resets = timing.cold_clock_of(programs[0].tensors), cycle(state_resets(programs))
    first: Callable[[], None] = lambda: next(resets)()
    samples = timing.sampled_alone(
        programs[0].tensors, calls, warm=1, first=first, ended=ended, seconds=MAX_S, settled=0.1, least=15, clock=clock
    )
    return [samples[n] for n in calls]


def _inputs(session: Session, task: Task, program: Program) -> list[Any]:
    """Random inputs on the program's device, in its order; others than those of verification, which would not see a
    launch that uses memory of the calls here."""
    inputs = sampled_near(task.model.graph, np.random.default_rng((session.options.seed, TIMED)), program.tensors)
    return program.near([inputs[n] for n in program.input_names])


def _bound(
    others: Sequence[tuple[Choice, Program]], values: Sequence[Any], nbytes: int, ended: Callable[[], bool]
) -> list[tuple[Choice, Program]]:  # fmt: skip
    """Those of the other finalists, in order, whose programs run and fit into `nbytes` together, until `ended()`."""
    found = []
    for choice, made in others:
        if ended():
            break
        if (nbytes := nbytes - made.missing_bytes()) < 0:
            break
        with suppress(Exception):  # a compiler error, or too little device memory
            made.flat_near(*values)
            made.wait("running a finalist")
            found.append((choice, made))
    return found


__all__ = ["fastest", "fastest_finalist", "sample_programs"]
