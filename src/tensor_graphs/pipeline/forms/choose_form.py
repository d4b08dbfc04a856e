"""Chooses which form of a model runs: compiled program, unfused baseline (one kernel per operation), or the caller's
own function.

The compiled program is the default. Each of the others replaces it only if it is faster by more than noise and passes
verification:

- the unfused baseline ("as written"), on every device; not if the options limit memory or error, since it may exceed
  the limits;
- the caller's own function, called with the examples, if these lie on the program's device; not with
  `allow_caller=False` (see `_not_comparable`).

The report records the decision (`runs`) and why a comparison was not made (`compared`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ...backends.device import HOST
from ...backends.program.program import Program
from ...backends.runtime.marshalling import is_torch
from ...egraph.ir.graph import Graph
from ...egraph.ops.ops import Type
from ...extract.model.clock import Halted
from ...report.omissions import OmittedWork
from ...report.report import AS_WRITTEN, CALLER, PROGRAM, Report
from ...verification.comparison import Verification
from ...verification.memory_checks import eager_bytes, memory_shortage
from ...verification.reference import call_seconds
from ...verification.verify import verify
from ...wording import spelled_us
from ..context.session import Session
from ..costs.prices import CostPricer
from ..execution.caller_timing import why_program_runs
from ..execution.timing import Run, call_clock_of
from ..sources.caller import Caller, CallerProgram, dtype_of, expected_inputs
from ..stages.make_report import describe_as_written
from ..stages.prepare import Task
from ..stages.time_program import time_program
from ..stages.verify_program import verify_program

LEAST_S = 1.0  # estimated seconds of a call of the caller's function up to which it is called without budget left


# ---------------------------------------------------------------- the unfused baseline
def faster_unoptimized(
    session: Session, task: Task, program: Program, report: Report, pricer: CostPricer
) -> Program | None:
    """The unfused baseline if its whole calls are measured to be faster than those of `program`, else None. `pricer`:
    of the search, which has priced most of its kernels already.

    None also if the option `deterministic` is set: measured times then choose nothing.
    """
    unoptimized = time_program(session, task, program, report)
    if unoptimized is None or task.symbolic is not None or session.options.limited or session.options.deterministic:
        return None
    if session.options.verify:
        known = len(session.omitted)
        try:
            verdict = verify_program(session, task, unoptimized)
        except Halted:
            return None
        if verdict is None:
            return None
        report.verification = verdict.to_json()
        session.omitted[:known] = [  # without what was left out for `program`
            o for o in session.omitted[:known] if o.work is not OmittedWork.VERIFICATION
        ]
    assert unoptimized.plan is not None
    before, after = report.latency_before_us, report.latency_after_us
    report.warnings.append(
        f"the graph runs as it is written: its call takes {before:.1f} µs, that of the plan that was found {after:.1f} µs"
    )
    describe_as_written(report, unoptimized, pricer)
    report.cost_us = report.latency_after_us = before or 0.0
    report.lower_bound_us, report.optimal = min(report.lower_bound_us, report.cost_us), False
    report.runs = AS_WRITTEN
    return unoptimized


# ---------------------------------------------------------------- the caller's own function
def faster_form(session: Session, task: Task, program: Program, report: Report) -> Program:
    """Compare the program with the caller's function; returns the program, or a CallerProgram if the function is faster
    and its results are within tolerance.

    The comparison, or the reason for none, is recorded in the report.
    """
    caller, graph = session.caller, task.model.graph
    report.caller_us = report.program_us = None
    report.compared, report.runs = "", PROGRAM if report.runs == CALLER else report.runs
    if caller is None or (task.on_gpu and not caller.is_on(program.device)):
        return program
    first: dict[str, float] = {}
    with session.stage_clock.running("compare"):  # the first call of each takes the longest
        reason = _not_comparable(session, task, program, caller, first)
    if reason:
        report.compared = f"not compared with the caller's own: {reason}"
        return program
    with session.stage("compare"):
        why = why_program_runs(program, caller, report, left=session.left, ended=session.interrupted(), first=first)
    if why is not None:
        _record(report, taken=False, why=why)
        return program
    if session.options.verify and (verdict := _verdict(session, graph, caller)) is not None:
        if not verdict.passed:
            _record(report, taken=False, why="the caller's own function is over tolerance")
            return program
        report.verification = verdict.to_json()
    return CallerProgram.around(program, caller, _record(report, taken=True))


def _not_comparable(session: Session, task: Task, program: Program, caller: Caller, first: dict[str, float]) -> str:
    """Reason why the caller's function is not compared with the program, "" if it is. `first`: see
    `why_not_replaceable`."""
    options = session.options
    return (
        "allow_caller=False" if not options.allow_caller
        else "nothing is measured" if not options.measure or options.deterministic
        else "limits of memory or rounding are set" if options.limited
        else f"backend={options.backend_name!r} was asked for" if caller.library not in {b.name for b in task.backends}
        else "the search was stopped" if session.progress.stopped
        else f"a call takes about {seconds:.1f} s, and the budget is over" if (seconds := call_seconds(task.model.graph, task.on_gpu)) > max(LEAST_S, session.left)
        else why_not_replaceable(program, caller, task.model.graph, first)
    )  # fmt: skip


def why_not_replaceable(
    program: Program, caller: Caller, graph: Graph, first: dict[str, float], clock: Callable[[Run], float] | None = None
) -> str:
    """Reason why the caller's function cannot replace the program; "" if it can.

    Calls both once, timed by `clock` (None: that of whole calls on the device), and writes the µs of these calls to
    `first`, by "caller" and "program".
    """
    if graph.updates or program.manifest.states:
        return "the program has states of its own"
    given, clock = caller.inputs, clock or call_clock_of(caller.device)
    if not caller.is_on(program.device) or [dtype for _, _, dtype in program.manifest.inputs] != [
        dtype_of(x) for x in given
    ]:
        return "the example inputs are not the program's"
    if [tuple(x.shape) for x in given] != [shape for _, shape, _ in expected_inputs(program, given)]:
        return "the example inputs have other sizes"
    needed = max(sum(t.type.nbytes for t in graph.roots), eager_bytes(graph))
    if caller.device == HOST.name and (missing := memory_shortage(needed)):
        return missing
    try:
        found: list[Any] = []
        first["caller"] = clock(lambda: found.extend(caller.outputs(given)))
        types, shared = [_type(x) for x in found], any(_shares_memory(x, y) for x in found for y in given)
        found.clear()  # large outputs of both are not held at once
        first["program"] = clock(lambda: found.extend(program.flat(*given)))
        wanted = [_type(x) for x in found]
    except Exception as error:  # any error of the caller's function
        return f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
    if types != wanted:
        return "it returns other types than the program"
    return "it returns its inputs' memory" if shared else ""


def _type(x: Any) -> Type:
    return Type(tuple(x.shape), dtype_of(x))


def _shares_memory(x: Any, y: Any) -> bool:
    if is_torch(x):
        return bool(x.numel() and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr())
    return bool(np.may_share_memory(x, y))


def _verdict(session: Session, graph: Graph, caller: Caller) -> Verification | None:
    """Verification of the caller's own function; None if interrupted by Ctrl-C."""
    options, run = session.options, partial(caller.run_arrays, [str(n.attr("name")) for n in graph.inputs])
    with session.stage("verify"), suppress(Halted):
        return verify(
            graph, run, tolerance=options.tolerance, seed=options.seed, seeds=1, poll=session.polled(),
            allowed_s=session.verifying_s,
        )  # fmt: skip
    return None


def _record(report: Report, *, taken: bool, why: str = "") -> str:
    """Record the comparison and the winner in the report; return the text."""
    assert report.caller_us is not None and report.program_us is not None
    ours, theirs = (spelled_us(us) for us in (report.program_us, report.caller_us))
    runs = "the caller's own function runs" if taken else "the program runs" + (f", for {why}" if why else "")
    report.compared = f"caller {theirs}, program {ours}: {runs}"
    if taken:
        report.runs = CALLER
    return report.compared


__all__ = ["faster_form", "faster_unoptimized", "why_not_replaceable"]
