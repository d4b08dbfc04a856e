"""Selection between the compiled program and the caller's own function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from ..backends.program.program import Program
from ..backends.registry import on_gpu
from ..egraph.ir.graph import Graph
from ..extract.model.clock import Halted
from ..extract.model.kernel import Backend
from ..report.report import CALLER, PROGRAM, Report
from ..verification.comparison import Verification
from ..verification.verify import verify
from .caller import Caller, CallerProgram, compared, decided, note, unlike, values
from .session import Session


def faster_of_both(
    session: Session, graph: Graph, program: Program, backends: Sequence[Backend], report: Report
) -> Program:
    """Return the program, or a CallerProgram if the caller's function is faster by more than noise and within
    tolerance.

    Applies to CPU programs only. The comparison, or the reason for none, is recorded in the report.
    """
    options, caller = session.options, session.caller
    report.caller_us = report.program_us = None
    report.compared, report.runs = "", PROGRAM if report.runs == CALLER else report.runs
    if caller is None or on_gpu(backends):
        return program
    first: dict[str, float] = {}
    limited = options.memory_limit is not None or options.error_budget is not None
    why = (
        "allow_caller=False" if not options.allow_caller
        else "nothing is measured" if not options.measure or options.deterministic
        else "it has no limits of memory or rounding" if limited
        else f"backend={options.backend!r} was asked for" if ("torch" if caller.torch else "numpy") not in {b.name for b in backends}
        else "Ctrl-C came" if session.progress.stopped
        else unlike(program, caller, graph, first)
    )  # fmt: skip
    if why:
        note(report, why)
        return program
    with session.stage("compare"):
        taken = compared(program, caller, report, left=session.left, ended=session.interrupted(), first=first)
    if not taken:
        decided(report, False)
        return program
    if options.verify and (verdict := _verdict(session, graph, caller)) is not None:
        if not verdict.passed:
            decided(report, False, "the caller's own form is over tolerance")
            return program
        report.verification = verdict.to_json()
    return CallerProgram.around(program, caller, decided(report, True))


def _verdict(session: Session, graph: Graph, caller: Caller) -> Verification | None:
    """Verification of the caller's own function; None if interrupted by Ctrl-C."""
    options = session.options
    with session.stage("verify"), suppress(Halted):
        return verify(
            graph, partial(values, caller, graph), tolerance=options.tolerance, seed=options.seed,
            seeds=1, poll=session.polled(),
        )  # fmt: skip
    return None


__all__ = ["faster_of_both"]
