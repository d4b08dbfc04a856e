"""Verifies the programs of one verify-or-retry loop (verify_or_retry.py): comparison with float64, other sizes, and the
diagnosis of a plan that failed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...backends.program.program import Program
from ...backends.verification.rounding_noise import RoundingSensitivity
from ...egraph.ir.graph import Graph
from ...egraph.types.dtypes import HALVES
from ...errors import VerificationError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.bound_plan import bound_plan
from ...extract.model.clock import Halted
from ...extract.model.plan import Plan
from ...extract.model.work import graph_flops
from ...report.omissions import Omission, OmittedWork
from ...verification.accumulation import summation_error
from ...verification.comparison import FAR, Tolerance, Verification
from ...verification.diagnose import Diagnosis, diagnose
from ...verification.partial_comparison import FAR_OVER, affordable_cuts, takes_too_long
from ...verification.reference import KEPT_BYTES
from ...verification.verify import planned_inputs, verify
from ..execution.run_program import check_order, compiled_beside, run_again, run_first

DIAGNOSING_S = 5.0  # seconds in which a failed plan's term and kernels are compared, whatever time is left
BRIEF_S = 2.0  # seconds of the comparison that still follows a request to stop
NO_DIAGNOSIS = Diagnosis(0.0, {}, {}, ())
NOISE_BYTES = 1 << 26  # most bytes of outputs whose sensitivity to rounding is kept between attempts


@dataclass(frozen=True)
class FailedPlan:
    """A plan that failed verification.

    `wrong`: problem at other sizes, or "". `last`: whether no plan but the unoptimized graph is left. `late`: whether
    another verification as long would end too late. `out_of_time`: whether there is no time for the usual next plan.
    `narrow`: whether a failing output has a wider dtype than an intermediate that the plan stores in 16 bits; `again`:
    whether the same plan with wider intermediates is next. `kept`: if the cheapest plan of the model's own values is
    next, the hypergraph that it is chosen from. `finding`: diagnosis of the kernels (`NO_DIAGNOSIS` if none was made).
    """

    verdict: Verification
    wrong: str
    attempt: int
    last: bool
    late: bool
    out_of_time: bool
    narrow: bool
    again: bool
    kept: Hypergraph | None
    finding: Diagnosis


@dataclass
class AttemptVerifier:
    """Verifies the programs of all attempts against the same references.

    `graph`: the original model. `work`: the simplified, dtype-widened form that is optimized. `seed`: of the inputs.
    `elsewhere`: for a program that passed, returns what is wrong with it at other sizes, or "". `sized`: whether it is
    a size-polymorphic program. `references`: per input, the input and the graph's outputs for it in float64 and in its
    own dtypes. `disturbed`: runs of the references with rounding noise.
    """

    graph: Graph
    work: Graph
    tolerance: Tolerance = "eager"
    seed: int = 0
    sized: bool = False
    elsewhere: Callable[[Program, Callable[[], object]], str] = lambda program, poll: ""
    over: Callable[[], bool] = lambda: False  # whether verification on a further input would end too late
    late: Callable[[float], bool] = lambda seconds: False  # whether work of so many seconds would end too late
    allowed_s: Callable[[], float] = lambda: math.inf  # seconds that verification on one input may take
    now: Callable[[], float] = time.monotonic
    polled: Callable[[], Callable[[], None]] = lambda: lambda: None  # makes a callable that raises Halted after Ctrl-C
    ahead: Callable[[], dict[int, Any]] = dict  # returns references computed before the program was built
    omitted: list[Omission] = field(default_factory=list)  # work skipped for lack of time
    references: dict[int, Any] = field(default_factory=dict)
    disturbed: dict[int, RoundingSensitivity] = field(default_factory=dict)
    compiling: dict[Program, Callable[[float | None], bool]] = field(default_factory=dict)  # of the latest program

    def clear(self) -> None:
        """Free the references and their runs with noise."""
        self.references.clear()
        self.disturbed.clear()
        self.compiling.clear()

    def verdict(self, program: Program) -> tuple[Verification, str]:
        """Return (verdict on the program, problem at other sizes or ""). Raises Halted after Ctrl-C."""
        poll = self.polled()
        program.check_free_memory()  # fail on insufficient memory before references are computed
        check_order(program)
        given, self.ahead = self.ahead(), dict
        self.references |= given
        compiled = compiled_beside(program)
        self.compiling = {program: compiled}

        def run(values: Mapping[str, Any]) -> list[Any]:
            compiled(None)
            return run_first(program, values)

        verdict = verify(
            self.graph, run, tolerance=self.tolerance, seed=self.seed, again=partial(run_again, program),
            flops=graph_flops(list(self.work.roots)), references=self.references, disturbed=self.disturbed,
            device=program.tensors, enough=self.over, poll=poll, allowed_s=self.allowed_s(),
        )  # fmt: skip
        if sum(r.type.nbytes for r in self.graph.roots) > NOISE_BYTES:
            self.disturbed.clear()
        if verdict.passed and (omission := Omission.of(verdict.omitted)):
            self.omitted.append(omission)
        return verdict, self.problem(program, verdict, poll)

    def brief(self, program: Program) -> Verification | None:
        """Verdict on one input after a request to stop, which may be that the program is over tolerance; None if not
        even a part of the outputs can be compared in about BRIEF_S seconds, or if compiling, running or comparing
        fails. Programs on a GPU and of free sizes are not compared. Raises VerificationError if the program writes to
        its inputs."""
        if program.tensors or self.sized or self.tolerance == "exact":
            return None
        until = time.monotonic() + 2 * FAR_OVER * BRIEF_S  # estimates are accurate to a factor of two

        def poll() -> None:
            if time.monotonic() > until:
                raise Halted

        try:
            long = takes_too_long(self.graph, BRIEF_S)
            cuts = affordable_cuts(self.graph, BRIEF_S, poll) if long else None
            if long and cuts is None:
                return None
            compiled = self.compiling.get(program) or compiled_beside(program)
            if not compiled(until - time.monotonic()):
                return None
            verdict = verify(
                self.graph, partial(run_first, program), tolerance=self.tolerance, seed=self.seed, seeds=1,
                references=self.references, disturbed=self.disturbed, enough=lambda: True, poll=poll,
                allowed_s=BRIEF_S, cuts=cuts,
            )  # fmt: skip
        except VerificationError:
            raise
        except Exception:  # no kernel can be excluded any more; whoever gets the program is told that it is unverified
            return None
        if verdict.passed:
            further = planned_inputs(self.graph, graph_flops(list(self.work.roots))) > 1
            left = [Omission(OmittedWork.VERIFICATION, " on further inputs")] if further else []
            self.omitted += [*left, *filter(None, [Omission.of(verdict.omitted)])]
        return verdict

    def problem(self, program: Program, verdict: Verification, poll: Callable[[], object]) -> str:
        """Problem of a size-polymorphic program, or "".

        At other sizes, or at these sizes if lifting to free sizes was wrong.
        """
        if verdict.passed:
            if sum(r.type.nbytes for r in self.graph.roots) > KEPT_BYTES:
                self.references.clear()  # references of other sizes need the memory; a further attempt is rare
            return self.elsewhere(program, poll)
        if not self.sized or not verdict.miscompiled:
            return ""
        return verdict.worst.message

    def unexplained(self, verdict: Verification) -> bool:
        """Whether an output of the unoptimized graph is farther beyond its limits than rounding, or another order of
        sums, moves it. False where no runs with rounding noise are known (large outputs): a warning says so."""
        sums = summation_error(self.graph.roots)
        return bool(self.disturbed) and any(
            o.excess > FAR
            and (o.plan if o.plan > o.allowed else o.worst.relative)
            > sums[k] + max((d.relative(k) for d in self.disturbed.values()), default=0.0)
            for k, o in enumerate(verdict.outputs)
        )

    def stores_narrow(self, program: Program, verdict: Verification) -> bool:
        """Whether a failing output has a wider dtype than some intermediate that the plan stores in 16 bits."""
        assert program.plan is not None
        far = [
            not o.passed and r.type.dtype not in HALVES for o, r in zip(verdict.outputs, self.graph.roots, strict=True)
        ]
        return any(far) and any(v.carried and v.origin == "kernel" for v in program.plan.values)

    def diagnosis(self, program: Program, *, rewritten: bool) -> Diagnosis | None:
        """The diagnosis of a program that failed, None if its term could not be compared in time. It ends early when
        the session is late, but not before DIAGNOSING_S seconds. `rewritten`: whether rules may have changed the
        term."""
        assert program.plan is not None
        began = self.now()
        ended = lambda: self.late(0.0) and self.now() - began > DIAGNOSING_S
        return diagnose(self.graph, fixed(program.plan), rewritten=rewritten, ended=ended, device=program.tensors)


def fixed(plan: Plan) -> Plan:
    """Plan with its free dimensions bound to the sizes that it was chosen for."""
    return bound_plan(plan, plan.sizes)


__all__ = ["NO_DIAGNOSIS", "AttemptVerifier", "FailedPlan", "fixed"]
