"""Chooses how the kernels of a GPU program are launched, one after another or partly overlapping, by timing the program
with each launch overlap.

See `backends/program/launch/launching.py`. Kernels are measured one by one, which does not tell how much of one
overlaps with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ...backends.program.launch.launching import OVERLAPS, changes_schedules, plan_for_launching
from ...backends.program.program import Program
from ...backends.verification.compare import equal_bits
from ...extract.model.kernel import Call, Template
from ...extract.model.plan import Plan
from ...extract.search.search import Choice
from ...report.omissions import Omission, OmittedWork
from ...report.records import FinalistReport
from ..context.reserves import after_launching_s
from ..context.session import Session
from ..execution.exchanged_program import ExchangedProgram

SHORTEST_S, LONGEST_S = 1.0, 5.0  # seconds that compilers get at least, and may take
SAMPLING_S = 1.0  # seconds for comparing and timing programs, which compilers leave
Compiler = Callable[..., bool]  # `Measurer.compile`


def begin_compiling(session: Session, program: Program, compiler: Compiler | None) -> None:
    """Start compiling the kernels of the programs of `other_forms` in the compile processes, without waiting for the
    result.

    They work while `program` runs for the first time, which compiles those of its kernels in this process that were not
    measured. `compiler` None: nothing is started.
    """
    plan: Plan | None = getattr(program, "plan", None)
    if plan is None or compiler is None or session.progress.stopped or _seconds_left(session) < SHORTEST_S:
        return
    compiler(_calls(plan, _other_overlaps(plan)), 0.0)


def other_forms(
    session: Session, choice: Choice, program: Program, build: Callable[[Choice], Program], compiler: Compiler | None
) -> list[tuple[Choice, Program]]:  # fmt: skip
    """For each launch overlap of the kernels of `choice` other than that of `program`: the choice with it, and its
    program.

    `build` returns the program of a choice of kernels. `compiler` compiles these programs' kernels in advance; an
    overlap whose kernels are not compiled in time is left out. Empty without a compiler, and if there is no time. The
    session's list of omitted work says so in either case.
    """
    plan: Plan | None = getattr(program, "plan", None)
    if plan is None or compiler is None or session.progress.stopped:
        return []
    overlaps = _other_overlaps(plan)
    if not overlaps:
        return []
    if _seconds_left(session) < SHORTEST_S:
        session.omitted.append(Omission(OmittedWork.TIMING_OVERLAPS))
        return []
    if not compiler(_calls(plan, overlaps), max(0.0, _seconds_left(session))):
        session.omitted.append(Omission(OmittedWork.TIMING_OVERLAPS))
        overlaps = [one for one in overlaps if compiler(_calls(plan, [one]), 0.0)]
    choices = [replace(choice, launching=one) for one in overlaps]
    return [(c, build(c)) for c in choices]


def _other_overlaps(plan: Plan) -> list[str]:
    """The launch overlaps that change a plan's kernels, without its own."""
    return [one for one in OVERLAPS if one != plan.launching and changes_schedules(plan, one)]


def _calls(plan: Plan, overlaps: Sequence[str]) -> list[tuple[Template, Call]]:
    """The kernels of a plan that some launch overlaps change."""
    return [call for one in overlaps for call in _changed(plan, plan_for_launching(replace(plan, launching=one)))]


def _seconds_left(session: Session) -> float:
    """Seconds that compilers may take; the programs share the weights of the one that has run."""
    return min(LONGEST_S, session.left - after_launching_s(session) - SAMPLING_S)


def fastest_launching(
    session: Session, choice: Choice, program: Program, forms: Sequence[tuple[Choice, Program]], values: Sequence[Any],
    sample: Callable[[Sequence[Program]], Sequence[Sequence[float]]], fastest: Callable[[Sequence[Sequence[float]]], int],
) -> tuple[Choice, Program]:  # fmt: skip
    """The choice with its program, or with the program of the fastest other launch overlap of its kernels if that
    is faster by more than noise.

    `forms`: programs with other launch overlaps (`other_forms`). `values`: inputs on the device. Programs whose results
    differ in any bit are left out, with a warning. `sample` times programs in turn, `fastest` returns the index of the
    fastest one that is surely faster than the first, or 0. All other programs release their weights.
    """
    runnable, want = [(choice, program)], results_of(program, values)
    for made, other in forms:
        wrong = sum(not _equal(a, b) for a, b in zip(want, results_of(other, values), strict=True))
        if wrong:
            problem = f"results that differ from those of kernels as measured: {wrong} of {len(want)}"
            session.warnings.append(f"kernels are not {made.launching}: {problem}")
            other.unbind()
        else:
            runnable.append((made, other))
    if len(runnable) == 1:
        return choice, program
    samples = sample([p for _, p in runnable])
    best = fastest(samples)
    before = session.finalists or [_report(choice, samples[0], chosen=True)]
    session.finalists = [replace(f, chosen=f.chosen and not best) for f in before]
    session.finalists += [_report(c, samples[n], n == best) for n, (c, _) in enumerate(runnable) if n]
    for n, (_, other) in enumerate(runnable):
        if n != best:
            other.unbind()
    return runnable[best]


def _changed(plan: Plan, changed: Plan) -> list[tuple[Template, Call]]:
    """The kernels of a changed plan that have another schedule, or operands that they read before they wait."""
    pairs = zip(plan.steps, changed.steps, strict=True)
    steps = [b for a, b in pairs if b.call.constant or dict(a.call.schedule) != dict(b.call.schedule)]
    return [(s.template, s.call) for s in steps]


def _report(choice: Choice, us: Sequence[float], chosen: bool) -> FinalistReport:
    return FinalistReport(sum(choice.sources.values()), choice.cost, median(us), chosen, choice.launching)


def results_of(program: Program | ExchangedProgram, values: Sequence[Any]) -> list[Any]:
    """Results and states, as tensors on the device, after a call of a program on poisoned memory, whose states are
    reset."""
    if program.manifest.states:
        program.reset()
    with program.poisoned():
        results = program.flat_near(*values)
    program.wait("comparing launch overlaps")
    return [*results, *(x.clone() for x in program.states.values())]


def _equal(a: Any, b: Any) -> bool:
    """Whether two tensors on the device have equal bits."""
    return bool(equal_bits(a, b, a.dtype.is_floating_point).all())


__all__ = ["Compiler", "begin_compiling", "fastest_launching", "other_forms", "results_of"]
