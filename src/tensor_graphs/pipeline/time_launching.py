"""Choice of how the kernels of a program on a GPU follow each other, by timing the program in each way.

See `backends/program/launching.py`. Kernels are measured one by one, which does not tell how much of one overlaps with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..backends.program.launching import OVERLAPPING, changes
from ..backends.program.program import Program
from ..extract.search.search import Choice
from ..report.report import FinalistReport
from ..wording import counted
from .session import Session

OMITTED = "timing overlapping kernels"  # name in a report's list of omitted work
AGAIN = 1.25  # most expected ratio of the seconds that another program of the same kernels takes to compile


def fastest_launching(
    session: Session, choice: Choice, program: Program, build: Callable[[Choice], Program], values: Sequence[Any],
    compiled_s: float, sample: Callable[[Sequence[Program]], Sequence[Sequence[float]]],
    fastest: Callable[[Sequence[Sequence[float]]], int],
) -> tuple[Choice, Program]:  # fmt: skip
    """The choice and program with overlapping kernels, if that is faster by more than noise; else the given ones.

    `values`: inputs on the device. `compiled_s`: seconds that the program's first call took: without as much time, nothing is
    tried, and the session's list of omitted work says so. A program whose results are not equal bit for bit is left out, with a
    warning. `sample` times programs in turn, `fastest` is the index of what is surely faster than the first.
    """
    if program.plan is None or not changes(program.plan, OVERLAPPING):
        return choice, program
    if session.left - session.verification_s < AGAIN * compiled_s:
        session.omitted.append(OMITTED)
        return choice, program
    other_choice = replace(choice, launching=OVERLAPPING)
    other = build(other_choice)
    if problem := _difference(program, other, values):
        session.warnings.append(f"kernels do not overlap: {problem}")
        other.unbind()
        return choice, program
    samples = sample([program, other])
    if len(session.finalists) == 0:
        session.finalists = [_report(choice, samples[0], True)]
    won = fastest(samples) == 1
    session.finalists = [replace(f, chosen=f.chosen and not won) for f in session.finalists]
    session.finalists.append(_report(other_choice, samples[1], won))
    (program if won else other).unbind()
    return (other_choice, other) if won else (choice, program)


def _report(choice: Choice, us: Sequence[float], chosen: bool) -> FinalistReport:
    return FinalistReport(sum(choice.sources.values()), choice.cost, median(us), chosen, choice.launching)


def _difference(program: Program, other: Program, values: Sequence[Any]) -> str:
    """Why another program's results and states after a call are not those of a program; empty if they are."""
    from ..backends.verification.compare import equal_bits

    found = []
    for p in (program, other):
        if p.manifest.states:
            p.reset()
        results = p.flat(*values)
        p.wait("comparing ways to launch kernels")
        found.append([*results, *p.states.values()])
    wrong = sum(not bool(equal_bits(a, b, a.dtype.is_floating_point).all()) for a, b in zip(*found, strict=True))
    return f"{counted(wrong, 'result')} differ from those of kernels one after the other" if wrong else ""


__all__ = ["OMITTED", "fastest_launching"]
