"""Verifies a finished program: one from the plan cache, or the unfused baseline (one kernel per operation)."""

from __future__ import annotations

from functools import partial

from ...backends.program.program import Program
from ...extract.model.work import graph_flops
from ...report.omissions import Omission
from ...verification.comparison import Verification
from ...verification.verify import verify
from ..context.session import Session
from ..execution.run_program import check_order, run_again, run_first
from .prepare import Task


def verify_program(session: Session, task: Task, program: Program) -> Verification | None:
    """Verdict on a finished program for the current weights; None if it fails. What it had no time for is added to
    `session.omitted`. Raises Halted after Ctrl-C."""
    options, poll, symbolic = session.options, session.polled(), task.symbolic
    over = lambda: session.over_in(session.expected.input_s)
    with session.stage("verify"):
        check_order(program)
        verdict = verify(
            task.model.graph, partial(run_first, program), tolerance=options.tolerance, seed=options.seed, again=partial(run_again, program),
            flops=graph_flops(list(task.model.work.roots)), device=program.tensors, enough=over, poll=poll,
            allowed_s=session.verifying_s,
        )  # fmt: skip
        if not verdict.passed:
            return None
        known = len(session.omitted)
        session.omitted += filter(None, [Omission.of(verdict.omitted)])
        if symbolic and symbolic.verifier.problem(
            program, options.tolerance, options.seed, over, poll, session.verifying_s, session.omitted
        ):
            del session.omitted[known:]
            return None
    return verdict


__all__ = ["verify_program"]
