"""Builds and verifies the program of the extracted plan (choice of kernels); if that fails, extracts another plan under
stricter limits and tries again.

Where kernels or schedules were chosen by the time of the whole program (`Choice.alone`), the plan before that comes
first. The attempts then, from the fastest plan to the unoptimized graph, which always passes:

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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ...backends.program.program import Program
from ...backends.program.weights import SharedWeights
from ...egraph.patterns.rule import Rule
from ...egraph.view.view import EGraphView
from ...errors import NoPlanError, TensorGraphsError, UnusableKernelsError, VerificationError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.clock import Halted
from ...extract.model.plan import Plan
from ...extract.search.plan import plan_of
from ...extract.search.search import Choice
from ...report.omissions import Omission, OmittedWork
from ...verification.comparison import FACTORS, FailedAttempt, Verification
from ...verification.diagnose import Diagnosis
from ..execution.run_program import renamed
from ..sizes.any_size import NoFormError
from .exclusions import REWRITES, REWRITTEN, STORED, Exclusions
from .verify_attempt import NO_DIAGNOSIS, AttemptVerifier, FailedPlan

MAX_ATTEMPTS = 8
IN_PROGRAM = "kernels chosen by the time of the whole program"


@dataclass
class Acceptance:
    """Verify-or-retry loop that turns a choice of kernels into a verified program.

    `verifier`: verifies the programs. `exclusions`: chooses kernels, and excludes some of them after a failure.
    `stored`: gives the hypergraph of candidate kernels, with every value stored in its compute dtype. `stage`: context
    manager that times a named stage. `say`: receives messages about progress. `fired`: rules that matched, named as
    suspects in a miscompile error. `failed`: earlier attempts. `fastest`: times a choice's program against variants and
    returns the fastest with its choice.
    """

    verifier: AttemptVerifier
    exclusions: Exclusions
    stored: Callable[[EGraphView], Hypergraph]
    stage: Callable[[str], AbstractContextManager[None]]
    say: Callable[[str], None]
    fired: Sequence[Rule] = ()
    plan: Callable[[Choice], Plan] | None = (
        None  # converts a choice to a plan; None: `plan_of` at the sizes of `verifier.work`
    )
    patience: float = math.inf  # most seconds that the verification of another plan may take after the deadline
    weights: SharedWeights = field(default_factory=SharedWeights)  # pool of all programs' weights
    failed: list[FailedAttempt] = field(default_factory=list)
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
                raise self._none_within_tolerance() from None
            return self.build(self.exclusions.without_rewrites())
        while self.plan is not None:
            with self.stage("build"):
                try:
                    return choice, Program(self.plan(choice)).pooled(self.weights)
                except NoFormError as error:
                    found = replace(choice.hypergraph, candidates=error.kept)
                    self.say(error.message)
            choice = self.exclusions.choose(found, ())
        try:
            with self.stage("build"):
                program = self.program_of(choice)
        except UnusableKernelsError as error:  # two kernels that cannot be in one program
            return self.build(self.exclusions.without_unusable(choice, error))
        return (choice, program) if self.exclusions.dropped else self.fastest(choice, program, self.program_of)

    def program_of(self, choice: Choice) -> Program:
        """The program of a choice, not bound to weights yet."""
        plan = replace(plan_of(choice, self.verifier.work), graph=renamed(self.verifier.graph, self.verifier.work))
        return Program(plan).pooled(self.weights)

    def run(self, found: Hypergraph) -> tuple[Choice, Program, Verification | None]:
        """Fastest choice that passes verification, its program and its verdict (None if Ctrl-C ended verification and
        not even a part of the outputs could be compared in a short time). After Ctrl-C a plan that failed is followed
        by the unoptimized graph.

        `found`: the hypergraph that the first plan is chosen from.

        When no time is left, a plan is verified on one input, and after a failure a plan without rewritten values is
        next, then the unoptimized graph.

        Raises VerificationError for wrong rewrites, and for wrong results that no other plan avoids; NoPlanError where
        no plan is within a numeric or "exact" tolerance.
        """
        try:
            return self._run(found)
        finally:
            self.verifier.clear()

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
                began = self.verifier.now()
                try:
                    verdict, wrong = self.verifier.verdict(program)
                    verdict = replace(verdict, attempts=attempt, dropped=tuple(self.exclusions.dropped))
                except Halted:
                    brief = self.verifier.brief(program)
                    if brief is None:
                        self.verifier.omitted.append(Omission(OmittedWork.VERIFICATION))
                        return choice, program, None
                    verdict = replace(brief, attempts=attempt, dropped=tuple(self.exclusions.dropped))
                    if verdict.passed or self._is_last(verdict, attempt):
                        accepted = verdict if verdict.passed else verdict.of_unoptimized()
                        return choice, program, self._accepted(accepted)
                    self.verifier.omitted.append(Omission(OmittedWork.OTHER_PLANS))
                    found, known = self.exclusions.without_rewrites(), len(self.exclusions.dropped)
                    continue
                except UnusableKernelsError as error:
                    found = self.exclusions.without_unusable(choice, error)
                    continue
                except TensorGraphsError:
                    raise
                except Exception as error:  # a compiler error, or an error of the first launch of a kernel
                    if self._as_alone(choice):
                        continue
                    found = self.exclusions.without_unmeasured(choice, error)
                    continue
                if verdict.passed and not wrong:
                    return choice, program, self._accepted(verdict)
                took = self.verifier.now() - began
            if self._as_alone(choice):
                self.failed.append(FailedAttempt(verdict.worst, (IN_PROGRAM,), wrong))
                known = len(self.exclusions.dropped)
                continue
            failure = self._failure(found, choice, program, verdict, wrong, attempt, took)
            stricter = self._stricter(found, choice, failure)
            if stricter is not None:
                found = stricter
                continue
            if self.verifier.tolerance not in FACTORS:
                self._record(failure, known)
                break
            if self.verifier.unexplained(verdict):
                raise self._miscompiled(verdict, failure.finding)
            self._record(failure, known)
            return choice, program, self._accepted(verdict.of_unoptimized())
        raise self._none_within_tolerance()

    def _is_last(self, verdict: Verification, attempt: int) -> bool:
        """Whether the program that failed `verdict` after a request to stop is the unoptimized graph. Records the
        failure.

        Raises VerificationError if it is wrong beyond rounding and there is no other program; NoPlanError if no plan is
        within a numeric tolerance.
        """
        last = REWRITES in self.exclusions.dropped
        if (last or attempt == MAX_ATTEMPTS) and (verdict.miscompiled or self.verifier.unexplained(verdict)):
            raise self._miscompiled(verdict, NO_DIAGNOSIS)
        self.failed.append(FailedAttempt(verdict.worst, () if last else (REWRITES,)))
        if last and self.verifier.tolerance not in FACTORS:
            raise self._none_within_tolerance()
        if not last:
            self.say(f"over tolerance, again without {REWRITES}")
        return last

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
        optional, late = not (wrong or last or verdict.miscompiled), self.verifier.late(took)
        fits = not (optional and late)
        narrow = not wrong and STORED not in out.dropped and self.verifier.stores_narrow(program, verdict)
        again = narrow and not last and fits
        kept = None
        if (
            optional
            and not narrow
            and self.verifier.late(2 * took)
            and (fits or (attempt == 1 and took <= self.patience))
        ):
            kept = out.original(found, choice)
        finding: Diagnosis | None = NO_DIAGNOSIS
        if not wrong and not again and kept is None and fits:
            with self.stage("verify"):
                finding = self.verifier.diagnosis(program, rewritten=REWRITES not in out.dropped)
            if finding is None and not narrow and took <= self.patience:  # comparing the term took too long
                kept = out.original(found, choice)
        out_of_time = not fits or finding is None
        return FailedPlan(
            verdict, wrong, attempt, last, late, out_of_time, narrow, again, kept, finding or NO_DIAGNOSIS
        )

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
            self.verifier.omitted.append(Omission(OmittedWork.OTHER_PLANS))
            return out.excluded(REWRITTEN, failure.kept)
        if failure.narrow and failure.out_of_time:
            out.dropped.append(STORED)
        if wrong or failure.out_of_time:
            plain = out.without_rewrites()
            self.say(f"{'wrong at another size' if wrong else 'over tolerance'}, again without {REWRITES}")
            self.verifier.omitted += [Omission(OmittedWork.OTHER_PLANS)] if failure.out_of_time else []
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

    def _record(self, failure: FailedPlan, known: int) -> None:
        """Record a failed attempt, before which `known` texts were in `dropped`."""
        dropped = tuple(self.exclusions.dropped[known:])
        self.failed.append(FailedAttempt(failure.verdict.worst, dropped, failure.wrong))

    def _none_within_tolerance(self) -> NoPlanError:
        """The error if no plan is within tolerance; it names the closest one's worst output."""
        closest = min((attempt.output for attempt in self.failed), key=lambda output: output.excess, default=None)
        found = f"; in the closest one, {closest.message}" if closest else ""
        hint = "a larger tolerance, or the default one, which allows what rounding explains"
        return NoPlanError(f"no plan within tolerance was found{found}", hint=hint)

    def _miscompiled(self, verdict: Verification, finding: Diagnosis) -> VerificationError:
        worst = verdict.worst
        return VerificationError(
            worst.message,
            where=finding.blame(self.fired),
            hint="report this with the model; verify=False runs it regardless",
        )


class SizesError(NoPlanError):
    """Raised when no plan is correct at every size."""


__all__ = ["MAX_ATTEMPTS", "REWRITES", "Acceptance", "SizesError"]
