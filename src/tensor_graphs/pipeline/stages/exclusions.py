"""Makes the hypergraphs (sets of candidate kernels) from which the next plan is extracted after a plan's program
failed: without some of its kernels or values.

Each method takes the failed plan and what verification found out about it, and returns the next plan's hypergraph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ...errors import NoPlanError, UnusableKernelsError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.kernel import Candidate
from ...extract.search.search import Choice
from ...extract.solve.budgets import Budget, Uses, rounding_budget
from ...verification.comparison import Verification
from ...verification.diagnose import Diagnosis
from .rewritten_values import on_original_values, rewritten_most

TIGHTENINGS = 3  # rounding-error budgets tried per run
GROSS = 8.0  # multiple of the fair error above which a kernel is excluded at once, without trying a budget first
MARGIN = 0.9  # safety factor on an error budget: random errors of another plan add up slightly differently
REWRITES = "all rewrites"
REWRITTEN = "values that only rewriting gives"
STORED = "values stored in fewer bits than an output has"


@dataclass
class Exclusions:
    """Candidates of one search that are excluded from its next plans, because earlier plans with them failed.

    `choose`: extraction, solves a hypergraph within budgets. `errors`: measured relative errors of candidates, 0 where
    unmeasured. `plain`: makes the hypergraph without rewriting, with every value stored in its compute dtype. `say`:
    receives messages. `sized`, for programs with free sizes only: (choice, error text) -> (names of the choice's
    suspect kernels for every size, "" for none; the candidates without them). `dropped`: texts that name what was
    excluded; `wrong`: the kernels among them whose results are wrong.
    """

    choose: Callable[[Hypergraph, Sequence[Budget]], Choice]
    errors: Uses
    plain: Callable[[], Hypergraph]
    say: Callable[[str], None]
    sized: Callable[[Choice, str], tuple[str, list[Candidate]]] | None = None
    dropped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tighter: Choice | None = None  # the next choice, if already solved
    optional: Collection[str] = ()  # backends without which a plan may be made
    lost: set[str] = field(default_factory=set)  # those of them whose kernels cannot run here
    unusable: Callable[[str, str], None] = lambda name, why: None  # told which kernels are left out, and why
    tightened: int = 0  # number of error budgets tried

    def excluded(self, what: str, found: Hypergraph, *kernels: str) -> Hypergraph:
        """The hypergraph `found` without the kernels of the given names; records the text `what` in `dropped`."""
        self.dropped.append(what)
        kept = [c for c in found.candidates if c.template.name not in kernels and c.template.backend not in self.lost]
        return replace(found, candidates=kept)

    def without_unusable(self, choice: Choice, error: UnusableKernelsError) -> Hypergraph:
        """The hypergraph of `choice` without the kernels of the backend that `error` names, which cannot run here.
        Raises `error` if they are required, the choice has none, or the rest does not cover every output."""
        name = error.backend
        has = any(choice.hypergraph.candidates[i].template.backend == name for i in choice.chosen)
        if name not in self.optional or not has:
            raise error
        self.lost.add(name)
        self.say(f"again without kernels of {name}: {error.message}")
        kept = self.excluded(f"kernels of {name}", choice.hypergraph)
        try:
            self.tighter = self.choose(kept, ())
        except NoPlanError:
            raise error from None
        self.unusable(name, error.message)
        return kept

    def without_rewrites(self) -> Hypergraph:
        """The hypergraph without any rewriting, and without the kernels that were excluded by name, unless the rest
        does not cover every output: if time has run out it has library kernels only, one for each operator."""
        plain, known = self.plain(), len(self.dropped)
        plain = replace(plain, candidates=[c for c in plain.candidates if c.template.backend not in self.lost])
        kept = self.excluded(REWRITES, plain, *self.dropped)
        if len(kept.candidates) == len(plain.candidates):
            return plain
        try:
            self.tighter = self.choose(kept, ())
        except NoPlanError:
            self.say(f"the unoptimized graph needs {' and '.join(self.dropped[:known])}")
            return plain
        return kept

    def original(self, found: Hypergraph, choice: Choice) -> Hypergraph | None:
        """The hypergraph `found` without kernels that read or write values that only rewriting gives.

        None if that was tried before, if `choice` has no such kernel, or if the rest does not cover every output.
        """
        original = on_original_values(found.view)
        chosen = [choice.hypergraph.candidates[i] for i in choice.chosen]
        if REWRITTEN in self.dropped or choice.hypergraph.view is not found.view or all(map(original, chosen)):
            return None
        kept = replace(found, candidates=[c for c in found.candidates if original(c)])
        try:
            self.tighter = self.choose(kept, ())
        except NoPlanError:
            return None
        return kept

    def without_unmeasured(self, choice: Choice, error: Exception) -> Hypergraph:
        """The hypergraph without kernels whose schedules were never run, after a plan raised `error`.

        All such kernels are excluded, or, if the rest does not cover every output, those of the plan. If the plan has
        no such kernel and the program is to run at every size, kernels with sizes as arguments are excluded, because
        their source differs from the measured one. Raises `error` if there is nothing to exclude.
        """
        unmeasured = {
            i for i, (c, p) in enumerate(zip(choice.hypergraph.candidates, choice.prices))
            if not c.is_view and c.template.space is not None and p.source != "measured"
        }  # fmt: skip
        chosen = unmeasured.intersection(choice.chosen)
        if not chosen and self.sized is not None:
            first = str(error).partition(chr(10))[0][:200]
            failed = NoPlanError(f"a kernel for every size does not run: {type(error).__name__}: {first}")
            failed.__cause__ = error
            return self.without_sized(choice, failed)
        if not chosen:
            raise error
        reason = f"kernels that were never run ({type(error).__name__}: {str(error).partition(chr(10))[0][:120]})"
        self.say(f"a kernel of the plan does not run, again without {reason}")
        self.dropped.append(reason)
        candidates = choice.hypergraph.candidates
        for left_out in (unmeasured, chosen):
            found = replace(choice.hypergraph, candidates=[c for i, c in enumerate(candidates) if i not in left_out])
            try:
                self.tighter = self.choose(found, ())
                return found
            except NoPlanError:
                continue
        raise error

    def without_sized(self, choice: Choice, error: NoPlanError) -> Hypergraph:
        """The hypergraph of `choice` without some of its generated kernels that take sizes as arguments, and a message
        about that.

        Excluded are those of the choice that the error names, or all of the choice if it names none. Raises `error` if
        the choice has none.
        """
        name, kept = self.sized(choice, f"{error.message} {error.__cause__ or ''}") if self.sized else ("", [])
        if not name:
            raise error
        self.say(f"again without {name}: {error.message}")
        self.dropped.append(f"{name} ({error.message})")
        return replace(choice.hypergraph, candidates=kept)

    def without_cause(
        self, found: Hypergraph, choice: Choice, finding: Diagnosis, verdict: Verification, *, last: bool
    ) -> Hypergraph | None:
        """The hypergraph `found` without the most likely cause of a failed verification of `choice`.

        If a smaller error budget gives another plan, that plan is stored in `tighter` and `found` is returned
        unchanged. With `last` (one attempt is left), the result is the hypergraph without any rewriting. None if
        nothing is left to exclude: rewriting is excluded, and no other kernel takes the place of the least accurate
        one. `verdict`, `finding`: the failed verification and its diagnosis.
        """
        if not last:
            if finding.inaccurate:
                worst = finding.inaccurate[0]
                if finding.kernels[worst] <= GROSS and self._tighten(found, choice, finding, verdict):
                    return found
                if (without := self._without(found, worst)) is not None:
                    return without
                if REWRITES in self.dropped:
                    return None
            if REWRITES not in self.dropped and (family := rewritten_most(choice)) is not None:
                original = on_original_values(found.view)
                kept = [c for c in found.candidates if c.template.family != family or original(c)]
                return self.excluded(f"rewritten {family}", replace(found, candidates=kept))
        return self.without_rewrites()

    def without_wrong(self, found: Hypergraph, kernels: Sequence[str]) -> Hypergraph | None:
        """The hypergraph `found` without the kernels called `kernels`, whose results are wrong. All kernels of a name
        are left out: they come from one emitter, which may be wrong for other terms as well. None if the rest does not
        cover every output."""
        kept = self._without(found, *kernels)
        if kept is not None:
            self.wrong += kernels
        return kept

    def _without(self, found: Hypergraph, *kernels: str) -> Hypergraph | None:
        """The hypergraph without kernels; None if the rest does not cover every output."""
        kept = replace(found, candidates=[c for c in found.candidates if c.template.name not in kernels])
        try:
            self.tighter = self.choose(kept, ())
        except NoPlanError:
            return None
        self.dropped += kernels
        return kept

    def _tighten(self, found: Hypergraph, choice: Choice, finding: Diagnosis, verdict: Verification) -> bool:
        """Solve for a choice within a rounding-error budget and record it; return whether one was found.

        Error model: the plan's error is a constant factor times the root of the sum of squared kernel errors. With the
        same factor, a plan passes whose root is smaller by the excess of the failed plan.
        """
        worst = verdict.worst

        def errors(of: Sequence[Candidate]) -> list[float]:
            seen = [0.0 if c.is_view else finding.errors.get(c.template.name, 0.0) for c in of]
            # kernels that were never measured alone: their error as diagnosed in the plan
            return [e or s for e, s in zip(self.errors(of), seen)]

        spent = math.hypot(*errors([choice.hypergraph.candidates[i] for i in choice.chosen]))
        if self.tightened == TIGHTENINGS or not 0 < spent < math.inf or not math.isfinite(worst.excess):
            return False
        self.tightened += 1
        most = spent * MARGIN / worst.excess
        try:
            self.tighter = self.choose(found, (rounding_budget(most, errors),))
        except NoPlanError:
            return False
        self.dropped.append(f"kernels that round by more than {most:.2g} together")
        return True


__all__ = ["REWRITES", "REWRITTEN", "STORED", "Exclusions"]
