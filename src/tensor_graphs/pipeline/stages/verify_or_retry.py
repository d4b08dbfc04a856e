"""Builds and verifies the program of the extracted plan (choice of kernels); if that fails, extracts another plan under
stricter limits and tries again.

Where schedules were chosen by the time of the whole program (time_schedules.py), the plan before that comes first. The
attempts then, from the fastest plan to the unoptimized graph, which always passes:

0. Exclude kernels that are wrong when run alone, beyond rounding; a warning of the report names them.
1. If the plan stores 16-bit intermediates and a failing output has a wider dtype: store all intermediates in their
   compute dtypes.
2. Bound the sum of the kernels' measured rounding errors (an error budget derived from the error of the failed plan).
3. Exclude the kernel that is least accurate when run alone, one kernel per attempt.
4. Restrict the kernels of one family (contractions, reductions, …) to values of the original model, so that the
   family's sums keep the original order. The family whose rewritten kernels have most flops comes first.
5. Disable rewriting.

Attempts are made as long as a verification that takes as long as the last one would end in time. The last such attempt
is the cheapest plan that computes only values of the original model, from the same kernels at the same prices. If the
first plan's verification already ends too late, that cheapest plan is tried nevertheless, provided that its
verification fits into the time by which the search may exceed its budget. Without time for any of these, rewriting is
disabled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...backends.program.program import Program
from ...backends.program.weights import SharedWeights
from ...backends.verification.rounding_noise import RoundingSensitivity
from ...egraph.ir.graph import Graph
from ...egraph.patterns.rule import Rule
from ...egraph.types.dtypes import HALVES
from ...egraph.view.view import EGraphView
from ...errors import NoPlanError, TensorGraphsError, VerificationError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.bound_plan import bound_plan
from ...extract.model.clock import Halted
from ...extract.model.plan import Plan
from ...extract.model.work import graph_flops
from ...extract.search.plan import plan_of
from ...extract.search.search import Choice
from ...report.omissions import Omission, OmittedWork
from ...verification.accumulation import summation_error
from ...verification.comparison import FACTORS, FAR, FailedAttempt, Tolerance, Verification
from ...verification.diagnose import Diagnosis, diagnose
from ...verification.reference import KEPT_BYTES
from ...verification.verify import verify
from ..execution.run_program import check_order, compiled_beside, renamed, run_again, run_first
from ..sizes.any_size import NoFormError
from .exclusions import REWRITES, REWRITTEN, STORED, Exclusions

MAX_ATTEMPTS = 8
DIAGNOSING_S = 5.0  # seconds in which a failed plan's term and kernels are compared, whatever time is left
NOISE_BYTES = 1 << 26  # most bytes of outputs whose sensitivity to rounding is kept between attempts
IN_PROGRAM = "schedules chosen by the time of the whole program"
NO_DIAGNOSIS = Diagnosis(0.0, {}, {}, ())


@dataclass(frozen=True)
class FailedPlan:
    """A plan that failed verification.

    `wrong`: problem at other sizes, or "". `last`: whether no plan but the unoptimized graph is left. `late`: whether
    another verification as long would end too late. `hurried`: whether there is no time for the usual next plan.
    `narrow`: whether a failing output has a wider dtype than an intermediate that the plan stores in 16 bits; `again`:
    whether the same plan with wider intermediates is next. `kept`: if the cheapest plan of the model's own values is
    next, the hypergraph that it is chosen from. `finding`: diagnosis of the kernels (`NO_DIAGNOSIS` if none was made).
    """

    verdict: Verification
    wrong: str
    attempt: int
    last: bool
    late: bool
    hurried: bool
    narrow: bool
    again: bool
    kept: Hypergraph | None
    finding: Diagnosis


@dataclass
class Acceptance:
    """Verify-or-retry loop that turns a choice of kernels into a verified program.

    `graph`: the original model. `work`: the simplified, dtype-widened form that is optimized. `exclusions`: chooses
    kernels, and excludes some of them after a failure. `stored`: gives the hypergraph of candidate kernels, with every
    value stored in its compute dtype. `fired`: rules that matched, named as suspects in a miscompile error. `stage`:
    context manager that times a named stage. `say`: receives messages about progress. `seed`: of the verification
    inputs. `elsewhere`: for a program that passed, returns what is wrong with it at other sizes, or "". `failed`:
    earlier attempts. `references`: per input, the input and the graph's outputs for it in float64 and in its own
    dtypes. `fastest`: times a choice's program against variants and returns the fastest with its choice.
    """

    graph: Graph
    work: Graph
    exclusions: Exclusions
    stored: Callable[[EGraphView], Hypergraph]
    stage: Callable[[str], AbstractContextManager[None]]
    say: Callable[[str], None]
    tolerance: Tolerance = "eager"
    seed: int = 0
    fired: Sequence[Rule] = ()
    plan: Callable[[Choice], Plan] | None = None  # converts a choice to a plan; None: `plan_of` at the sizes of `work`
    # verifies a size-polymorphic program at other sizes; returns the problem or ""
    elsewhere: Callable[[Program, Callable[[], object]], str] = lambda program, poll: ""
    over: Callable[[], bool] = lambda: False  # whether verification on a further input would end too late
    late: Callable[[float], bool] = lambda seconds: False  # whether work of so many seconds would end too late
    patience: float = math.inf  # most seconds that the verification of another plan may take after the deadline
    now: Callable[[], float] = time.monotonic
    polled: Callable[[], Callable[[], None]] = lambda: lambda: None  # makes a callable that raises Halted after Ctrl-C
    weights: SharedWeights = field(default_factory=SharedWeights)  # pool of all programs' weights
    omitted: list[Omission] = field(default_factory=list)  # work skipped for lack of time
    failed: list[FailedAttempt] = field(default_factory=list)
    references: dict[int, Any] = field(default_factory=dict)
    disturbed: dict[int, RoundingSensitivity] = field(
        default_factory=dict
    )  # runs of the references with rounding noise
    ahead: Callable[[], dict[int, Any]] = dict  # returns references computed before the program was built
    # (first choice, its program, function that builds one) -> the choice to verify instead, with its program
    fastest: Callable[[Choice, Program, Callable[[Choice], Program]], tuple[Choice, Program]] = (
        lambda choice, program, build: (choice, program)
    )

    def build(self, found: Hypergraph) -> tuple[Choice, Program]:
        """Choose kernels of a hypergraph (`exclusions.choose`) and make their program; returns both.

        Raises NoPlanError if the remaining candidates do not cover the outputs.
        """
        choice, self.exclusions.tighter = self.exclusions.tighter, None
        try:
            choice = choice or self.exclusions.choose(found, ())
        except NoPlanError:
            if not self.exclusions.dropped:
                raise
            if REWRITES in self.exclusions.dropped:
                raise _no_plan_within_tolerance() from None
            return self.build(self.exclusions.without_rewrites())
        while self.plan is not None:
            with self.stage("build"):
                try:
                    return choice, Program(self.plan(choice)).pooled(self.weights)
                except NoFormError as error:
                    found = replace(choice.hypergraph, candidates=error.kept)
                    self.say(error.message)
            choice = self.exclusions.choose(found, ())
        with self.stage("build"):
            program = self.program_of(choice)
        return (choice, program) if self.exclusions.dropped else self.fastest(choice, program, self.program_of)

    def program_of(self, choice: Choice) -> Program:
        """The program of a choice, not bound to weights yet."""
        plan = replace(plan_of(choice, self.work), graph=renamed(self.graph, self.work))
        return Program(plan).pooled(self.weights)

    def run(self, found: Hypergraph) -> tuple[Choice, Program, Verification | None]:
        """Fastest choice that passes verification, its program and its verdict (None if Ctrl-C ended verification).

        `found`: the hypergraph that the first plan is chosen from.

        When no time is left, a plan is verified on one input, and after a failure a plan without rewritten values is
        next, then the unoptimized graph.

        Raises VerificationError for wrong rewrites, and for wrong results that no other plan avoids; NoPlanError where
        no plan is within a numeric or "exact" tolerance.
        """
        try:
            return self._run(found)
        finally:
            self.references.clear()
            self.disturbed.clear()

    def _run(self, found: Hypergraph) -> tuple[Choice, Program, Verification | None]:
        failure: FailedPlan | None = None  # of the attempt before
        known = 0  # length of `dropped` at that attempt
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if failure is not None:
                self._record(failure, known)
                failure, known = None, len(self.exclusions.dropped)
            choice, program = self.build(found)
            assert program.plan is not None
            with self.stage("verify"):
                began = self.now()
                try:
                    verdict, wrong = self._verdict(program, attempt)
                except Halted:
                    self.omitted.append(Omission(OmittedWork.VERIFICATION))
                    return choice, program, None
                except TensorGraphsError:
                    raise
                except Exception as error:  # a compiler error, or an error of the first launch of a kernel
                    if self._as_alone(choice):
                        continue
                    found = self.exclusions.without_unmeasured(choice, error)
                    continue
                if verdict.passed and not wrong:
                    return choice, program, self._accepted(verdict)
                took = self.now() - began
            if self._as_alone(choice):
                self.failed.append(FailedAttempt(verdict.worst, (IN_PROGRAM,), wrong))
                known = len(self.exclusions.dropped)
                continue
            failure = self._failure(found, choice, program, verdict, wrong, attempt, took)
            stricter = self._stricter(found, choice, failure)
            if stricter is not None:
                found = stricter
                continue
            if self.tolerance not in FACTORS:
                break
            if self._unexplained(verdict):
                raise self._miscompiled(verdict, failure.finding)
            self._record(failure, known)
            return choice, program, self._accepted(verdict.of_unoptimized())
        raise _no_plan_within_tolerance()

    def _as_alone(self, choice: Choice) -> bool:
        """Whether the next plan is that of the kernels that were the fastest alone, because those of `choice` were
        chosen by the time of its program."""
        if choice.alone is None:
            return False
        self.say(f"again without {IN_PROGRAM}")
        self.exclusions.dropped.append(IN_PROGRAM)
        self.exclusions.tighter = choice.alone
        return True

    def _accepted(self, verdict: Verification) -> Verification:
        """The verdict on the accepted program, with the failed attempts before it and a warning of wrong kernels."""
        wrong = " and ".join(self.exclusions.wrong)
        text = wrong and f"results of {wrong} were wrong, so another plan was made; please report this with the model"
        warning = "; ".join(filter(None, (verdict.warning, text)))
        return replace(verdict, failed=tuple(self.failed), warning=warning)

    def _failure(
        self, found: Hypergraph, choice: Choice, program: Program, verdict: Verification, wrong: str, attempt: int,
        took: float,
    ) -> FailedPlan:  # fmt: skip
        """What is known about a failed attempt, with the diagnosis of its kernels where it decides what is next."""
        out = self.exclusions
        last = REWRITES in out.dropped or attempt == MAX_ATTEMPTS
        optional, late = not (wrong or last or verdict.miscompiled), self.late(took)
        fits = not (optional and late)
        narrow = not wrong and STORED not in out.dropped and self._stored_narrow(program, verdict)
        again = narrow and not last and fits
        kept = None
        if optional and not narrow and self.late(2 * took) and (fits or (attempt == 1 and took <= self.patience)):
            kept = out.original(found, choice)
        finding: Diagnosis | None = NO_DIAGNOSIS
        if not wrong and not again and kept is None and fits:
            with self.stage("verify"):
                finding = self._diagnosed(program)
            if finding is None and not narrow and took <= self.patience:  # comparing the term took too long
                kept = out.original(found, choice)
        hurried = not fits or finding is None
        return FailedPlan(verdict, wrong, attempt, last, late, hurried, narrow, again, kept, finding or NO_DIAGNOSIS)

    def _stricter(self, found: Hypergraph, choice: Choice, failure: FailedPlan) -> Hypergraph | None:
        """The hypergraph that the next plan is chosen from after a failure; None if no stricter one is left.

        Raises VerificationError if rounding does not explain the error and no exclusion can mend it.
        """
        out, verdict, wrong, last = self.exclusions, failure.verdict, failure.wrong, failure.last
        if wrong and REWRITES in out.dropped:
            return out.without_sized(choice, SizesError(wrong))
        if failure.again:
            wider = out.excluded(STORED, self.stored(found.view), *out.dropped)
            self.say(f"over tolerance, again without {STORED}")
            return wider
        if failure.kept is not None:
            self.say(f"over tolerance, again without {REWRITTEN}")
            self.omitted.append(Omission(OmittedWork.OTHER_PLANS))
            return out.excluded(REWRITTEN, failure.kept)
        if failure.narrow and failure.hurried:
            out.dropped.append(STORED)
        if wrong or failure.hurried:
            plain = out.without_rewrites()
            self.say(f"{'wrong at another size' if wrong else 'over tolerance'}, again without {REWRITES}")
            self.omitted += [Omission(OmittedWork.OTHER_PLANS)] if failure.hurried else []
            return plain
        if (right := self._without_wrong(found, failure)) is not None:
            return right
        if failure.finding.miscompiled or (last and verdict.miscompiled):
            raise self._miscompiled(verdict, failure.finding)
        if last and not failure.finding.inaccurate:
            return None
        final = failure.attempt >= MAX_ATTEMPTS - 1
        stricter = out.without_cause(found, choice, failure.finding, verdict, last=final)
        if stricter is not None:
            self.say(f"over tolerance, again without {out.dropped[-1]}")
        return stricter

    def _without_wrong(self, found: Hypergraph, failure: FailedPlan) -> Hypergraph | None:
        """The hypergraph without the kernels that are wrong when run alone, and without rewriting if there is no time;
        None if rewrites are to blame, or if there is no other plan."""
        wrong = failure.finding.wrong
        if not wrong or failure.finding.rewrites or failure.attempt == MAX_ATTEMPTS:
            return None
        kept = self.exclusions.without_wrong(found, wrong)
        if kept is None:
            return None
        self.say(f"wrong results, again without {' and '.join(wrong)}")
        return self.exclusions.without_rewrites() if failure.late and not failure.last else kept

    def _diagnosed(self, program: Program) -> Diagnosis | None:
        """The diagnosis of a program that failed, None if its term could not be compared in time. It ends early when
        the session is late, but not before DIAGNOSING_S seconds."""
        assert program.plan is not None
        began, rewritten = self.now(), REWRITES not in self.exclusions.dropped
        ended = lambda: self.late(0.0) and self.now() - began > DIAGNOSING_S
        return diagnose(self.graph, fixed(program.plan), rewritten=rewritten, ended=ended, device=program.tensors)

    def _record(self, failure: FailedPlan, known: int) -> None:
        """Record a failed attempt, before which `known` texts were in `dropped`."""
        dropped = tuple(self.exclusions.dropped[known:])
        self.failed.append(FailedAttempt(failure.verdict.worst, dropped, failure.wrong))

    def _stored_narrow(self, program: Program, verdict: Verification) -> bool:
        """Whether a failing output has a wider dtype than some intermediate that the plan stores in 16 bits."""
        assert program.plan is not None
        far = [
            not o.passed and r.type.dtype not in HALVES for o, r in zip(verdict.outputs, self.graph.roots, strict=True)
        ]
        return any(far) and any(v.carried and v.origin == "kernel" for v in program.plan.values)

    def _verdict(self, program: Program, attempt: int) -> tuple[Verification, str]:
        """Return (verdict on the program, problem at other sizes or ""). Raises Halted after Ctrl-C."""
        poll = self.polled()
        program.check_room()  # fail on insufficient memory before references are computed
        check_order(program)
        given, self.ahead = self.ahead(), dict
        self.references |= given
        compiled = compiled_beside(program)

        def run(values: Mapping[str, Any]) -> list[Any]:
            compiled()
            return run_first(program, values)

        verdict = verify(
            self.graph, run, tolerance=self.tolerance, seed=self.seed, again=partial(run_again, program),
            flops=graph_flops(list(self.work.roots)), references=self.references, disturbed=self.disturbed,
            device=program.tensors, enough=self.over, poll=poll,
        )  # fmt: skip
        if sum(r.type.nbytes for r in self.graph.roots) > NOISE_BYTES:
            self.disturbed.clear()
        if verdict.passed and (omission := Omission.of(verdict.omitted)):
            self.omitted.append(omission)
        verdict = replace(verdict, attempts=attempt, dropped=tuple(self.exclusions.dropped))
        return verdict, self._problem(program, verdict, poll)

    def _problem(self, program: Program, verdict: Verification, poll: Callable[[], object]) -> str:
        """Problem of a size-polymorphic program, or "".

        At other sizes, or at these sizes if lifting to free sizes was wrong.
        """
        if verdict.passed:
            if sum(r.type.nbytes for r in self.graph.roots) > KEPT_BYTES:
                self.references.clear()  # references of other sizes need the memory; a further attempt is rare
            return self.elsewhere(program, poll)
        if self.plan is None or not verdict.miscompiled:
            return ""
        return verdict.worst.message

    def _unexplained(self, verdict: Verification) -> bool:
        """Whether an output of the unoptimized graph is farther beyond its limits than rounding, or another order of
        sums, moves it. False where no runs with rounding noise are known (large outputs): a warning says so."""
        sums = summation_error(self.graph.roots)
        return bool(self.disturbed) and any(
            o.excess > FAR
            and (o.plan if o.plan > o.allowed else o.worst.relative)
            > sums[k] + max((d.relative(k) for d in self.disturbed.values()), default=0.0)
            for k, o in enumerate(verdict.outputs)
        )

    def _miscompiled(self, verdict: Verification, finding: Diagnosis) -> VerificationError:
        worst = verdict.worst
        return VerificationError(
            worst.message,
            where=finding.blame(self.fired),
            hint="report this with the model; verify=False runs it regardless",
        )


class SizesError(NoPlanError):
    """Raised when no plan is correct at every size."""


def fixed(plan: Plan) -> Plan:
    """Plan with its free dimensions bound to the sizes that it was chosen for."""
    return bound_plan(plan, plan.sizes)


def _no_plan_within_tolerance() -> NoPlanError:
    return NoPlanError("no plan within tolerance was found", hint='relax it: tolerance="fast" or a number')


__all__ = ["MAX_ATTEMPTS", "REWRITES", "Acceptance", "SizesError"]
