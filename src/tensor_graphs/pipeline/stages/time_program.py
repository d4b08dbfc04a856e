"""Runs the stage "time": measures the end-to-end latency of a program and of the unfused baseline (one kernel per
operation)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from ...backends.program.program import Program
from ...backends.registry import unfused_backends
from ...backends.tuning.unfused import direct_plan
from ...egraph.ir.graph import Graph
from ...extract.model.work import graph_flops
from ...report.omissions import Omission, OmittedWork
from ...report.report import Report
from ...verification.memory_checks import input_output_bytes, memory_shortage
from ...verification.reference import expected_seconds, sampled_near
from ...wording import spelled_us
from ..context.session import Session
from ..costs.measuring import IMPORTING_S
from ..execution import timing
from ..execution.full_states import full_states
from ..execution.run_program import renamed
from .prepare import Task

GAIN = 1.1  # factor of the baseline's time from which the program is faster whatever its estimate was
SLOWER, NEGLIGIBLE_US = 2.0, 100.0  # factor and additive µs over the estimate from which the report warns
CALL_US = 300.0  # overhead in µs of a call from Python on a GPU: copy inputs, launch a graph, copy outputs
# extra seconds of timing if the program's time is doubted; relative difference of times treated as noise
LOOK_S, NOISE = 0.1, 0.03
PREPARING = 0.05  # fraction of the budget for preparing weights and running the baseline once after its end
LARGE = 1 << 30  # combined bytes of two programs above which only one is bound at a time


def time_program(session: Session, task: Task, program: Program, report: Report) -> Program | None:
    """Measure whole calls of the program and of the unfused baseline (one library kernel per node), interleaved, into
    the report.

    Returns the baseline's program if it is faster, else None.

    Ends with the budget. Where the program's time is doubted (`_is_doubted`), it may end LOOK_S later, but not if one
    run of the baseline is expected to take longer than LOOK_S and a share PREPARING of the budget. Omitted if preparing
    the baseline (expanding quantized weights, importing PyTorch if nothing else has) is expected to take longer than
    each of these two and the remaining time.
    """
    graph = task.model.written(task.backends)
    plan = direct_plan(graph, unfused_backends(task.backends))
    report.kernels_before = plan.kernels
    if not (session.options.measure and session.timed):
        return None
    doubted = not session.progress.stopped and _is_doubted(session, task, report)
    if not session.whole or (session.over and not doubted):
        session.omitted.append(Omission(OmittedWork.TIMING))
        return None
    pressed = session.interrupted()
    with session.stage("time"):
        before = Program(replace(plan, graph=renamed(task.model.graph, graph))).pooled(session.weights)
        if omission := _omission(session, task, graph, before, program):
            session.omitted.append(omission)
            return None
        until = session.now() + LOOK_S if doubted else 0.0
        ended = lambda: pressed() or (session.left <= session.expected.ending_s and session.now() >= until)
        samples = _samples(session, task, before, program, ended)
        report.latency_before_us, report.latency_after_us = median(samples["before"]), median(samples["after"])
    besides = CALL_US if task.on_gpu else NEGLIGIBLE_US
    fastest, gains = min(samples["after"]), GAIN * report.latency_after_us < report.latency_before_us
    if report.cost_us and fastest > SLOWER * report.cost_us + besides and not gains:
        report.warnings.append(
            f"even the fastest call takes {spelled_us(fastest)}, though the kernels by themselves take {spelled_us(report.cost_us)}:"
            " other work keeps the machine busy, or the kernels slow each other down, so other kernels may be better"
        )
    if timing.is_surely_faster(samples["before"], samples["after"], NOISE):
        return before
    if why := timing.why_not_faster(samples["before"], samples["after"], NOISE):
        report.warnings.append(f"the graph as written took less time than the program, but {why}")
    return None


def _is_doubted(session: Session, task: Task, report: Report) -> bool:
    """Whether the program is timed although the budget is over: always on a GPU, where the best plan of a search that
    was cut may be slower than the baseline; on a CPU if some of its kernels were never measured, its price is at most
    LOOK_S, and so is the time in which it was built, as the baseline has to be."""
    predicted = any(n for source, n in report.priced.items() if source != "measured")
    short = report.cost_us < 1e6 * LOOK_S and session.stage_clock.seconds.get("build", 0.0) <= LOOK_S
    return task.on_gpu or (predicted and short)


def _omission(session: Session, task: Task, graph: Graph, before: Program, program: Program) -> Omission | None:
    """The omission of timing for lack of time or memory; None if there is none. `graph`: that of the baseline
    `before`."""
    preparing, late = before.preparing_s(), max(LOOK_S, PREPARING * session.options.budget)
    if (
        sys.modules.get("torch") is None
        and before.plan
        and any(s.template.backend == "torch" for s in before.plan.steps)
    ):
        preparing += IMPORTING_S
    once = 0.0 if task.on_gpu else preparing + expected_seconds(graph, graph_flops(list(graph.roots)), on_gpu=False)
    if preparing > max(session.left, late) or (session.over and once > late):
        return Omission(OmittedWork.TIMING)
    most = max(sum(before.memory().values()), sum(program.memory().values()))
    if not task.on_gpu and memory_shortage(input_output_bytes(task.model.graph) + most):
        return Omission(OmittedWork.TIMING, ": too little memory is available")
    return None


def _samples(
    session: Session, task: Task, before: Program, program: Program, ended: Callable[[], bool]
) -> dict[str, list[float]]:
    """Times in µs of calls of the baseline ("before") and of the program ("after"), interleaved if both fit into
    memory; `ended` is polled."""
    inputs = sampled_near(task.model.graph, np.random.default_rng(session.options.seed), program.tensors)
    values = program.near([inputs[n] for n in program.input_names])
    programs = {"before": before, "after": program}

    def timed(*names: str) -> dict[str, list[float]]:
        calls = {n: partial(programs[n].flat, *values) for n in names}
        first, clock = full_states([programs[n] for n in names]), timing.clock_of(program.tensors)
        if not task.on_gpu:
            return timing.sampled(calls, seconds=1.0, settled=0.1, clock=clock, ended=ended, first=first)
        return timing.sampled_alone(
            program.tensors, calls, warm=2, first=first, ended=ended, seconds=1.0, settled=0.1, clock=clock
        )

    if sum(before.memory().values()) + sum(program.memory().values()) < LARGE:
        return timed("before", "after")
    program.unbind()  # sequentially: two copies of the weights would double the peak memory
    samples = timed("before")
    before.unbind()
    return samples | timed("after")


__all__ = ["time_program"]
