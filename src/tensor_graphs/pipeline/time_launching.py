"""Choice of how the kernels of a program on a GPU follow each other, by timing the program in two ways.

See `backends/program/launching.py`. Kernels are measured one by one, which does not tell how much of one overlaps with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..backends.program.launching import OVERLAPPING, changes, launched
from ..backends.program.program import Program
from ..backends.verification.compare import equal_bits
from ..extract.search.search import Choice
from ..report.report import FinalistReport
from ..wording import counted
from .session import Session

OMITTED = "timing overlapping kernels"  # name in a report's list of omitted work
NEEDED_S, LEAST_BUDGET_S = 1.5, 20.0  # seconds that it takes; budget from which it is done in any case
Compiler = Callable[..., bool]  # `Measurer.compile`


def overlapping_form(
    session: Session, choice: Choice, program: Program, build: Callable[[Choice], Program], compiler: Compiler | None
) -> Program | None:  # fmt: skip
    """The program of a choice with overlapping kernels, compiled beside the given one if there is a `compiler`.

    None if the plan has no kernels that could, or if there is no time: then the session's list of omitted work says so.
    """
    plan = getattr(program, "plan", None)
    if plan is None or session.progress.stopped or not changes(plan, OVERLAPPING):
        return None
    left = session.left - session.verification_s
    if session.options.budget < LEAST_BUDGET_S and left < NEEDED_S:
        session.omitted.append(OMITTED)
        return None
    other = build(replace(choice, launching=OVERLAPPING))
    changed = zip(plan.steps, launched(replace(plan, launching=OVERLAPPING)).steps, strict=True)
    calls = [(b.template, b.call) for a, b in changed if dict(a.call.schedule) != dict(b.call.schedule)]
    if compiler is not None and not compiler(calls, programs=(program.source, other.source)):
        session.omitted.append(OMITTED)
        return None
    return other


def fastest_launching(
    session: Session, choice: Choice, program: Program, other: Program, values: Sequence[Any],
    sample: Callable[[Sequence[Program]], Sequence[Sequence[float]]], fastest: Callable[[Sequence[Sequence[float]]], int],
) -> tuple[Choice, Program]:  # fmt: skip
    """The choice with its program, or with `other`, its overlapping form, if that is faster by more than noise.

    `values`: inputs on the device. If results differ in any bit, the given program is returned, and a warning says so. `sample`
    times programs in turn, `fastest` is the index of the one that is surely faster than the first. The loser is unbound.
    """
    if problem := _difference(program, other, values):
        session.warnings.append(f"kernels do not overlap: {problem}")
        other.unbind()
        return choice, program
    samples = sample([program, other])
    won = fastest(samples) == 1
    before = session.finalists or [_report(choice, samples[0], True)]
    overlapped = replace(choice, launching=OVERLAPPING)
    session.finalists = [
        *(replace(f, chosen=f.chosen and not won) for f in before),
        _report(overlapped, samples[1], won),
    ]
    (program if won else other).unbind()
    return (overlapped, other) if won else (choice, program)


def _report(choice: Choice, us: Sequence[float], chosen: bool) -> FinalistReport:
    return FinalistReport(sum(choice.sources.values()), choice.cost, median(us), chosen, choice.launching)


def _difference(program: Program, other: Program, values: Sequence[Any]) -> str:
    """Why another program's results and states after a call are not those of a program; empty if they are."""
    found = []
    for p in (program, other):
        if p.manifest.states:
            p.reset()
        results = p.flat(*values)
        p.wait("comparing ways to launch kernels")
        found.append([*results, *p.states.values()])
    wrong = sum(not bool(equal_bits(a, b, a.dtype.is_floating_point).all()) for a, b in zip(*found, strict=True))
    return f"{counted(wrong, 'result')} differ from those of kernels one after the other" if wrong else ""


__all__ = ["OMITTED", "Compiler", "fastest_launching", "overlapping_form"]
