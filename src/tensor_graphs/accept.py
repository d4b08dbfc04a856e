"""From a hypergraph to a program that was verified: choose, build, compare, and where a plan is over tolerance, choose
again from less.

The steps from the fastest plan to the unoptimized graph, which always passes:

1. all values stored as they are computed, where the plan stores some in 16 bits and an output that is off has more;
2. within a budget of rounding: the kernels' measured errors, against what the plan was off by;
3. without the kernel that is least accurate by itself, one after the other;
4. kernels of one family (contractions, reductions, …) only on values of the model as it came, so that no sum is taken in
   another order there; the family that rewriting changed most comes first;
5. no rewriting at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from .backends import gpu
from .backends.emit import bind_sizes
from .backends.exchange import is_torch
from .backends.program import Program
from .diagnose import Diagnosis, diagnose
from .egraph.dtypes import HALVES
from .egraph.graph import Graph
from .egraph.ops import OPS
from .egraph.rule import Rule
from .egraph.view import Bools, EGraphView
from .errors import NoPlanError, TensorGraphsError, VerificationError
from .extract.budgets import Budget, Uses, rounding
from .extract.candidates import Hypergraph
from .extract.clock import Halted
from .extract.kernel import Candidate, Plan
from .extract.plan import plan_of
from .extract.search import Choice
from .extract.work import call_work, graph_flops
from .verify import FACTORS, KEPT_BYTES, Tolerance, Verification, verify

MAX_ATTEMPTS = 8
TIGHTENINGS = 3  # budgets of rounding that are tried
GROSS = 8.0  # times its fair error: a kernel that is farther off is not used at all
MARGIN = 0.9  # of what a budget may be: random errors of other plans add up a little differently
REWRITES = "all rewrites"
STORED = "values stored in fewer bits than an output has"
MOVES = ("view", "copy")  # families that compute nothing
NOTHING = Diagnosis(0.0, {}, {}, ())


@dataclass
class Acceptance:
    """How a choice becomes a verified program.

    `graph` is the model as it came, `work` the form that is optimized. `choose` solves a hypergraph within
    budgets, `errors` knows the relative errors of its candidates (0 where nothing does), `plain` makes the one without
    rewriting, `stored` that of a view whose values lie in memory in the dtypes that they are computed in, or, of none, the one without
    rewriting. `fired` are the rules that matched: suspects where something is wrong. `stage` times its block.
    """

    graph: Graph
    work: Graph
    choose: Callable[[Hypergraph, Sequence[Budget]], Choice]
    errors: Uses
    plain: Callable[[], Hypergraph]
    stored: Callable[[EGraphView | None], Hypergraph]
    stage: Callable[[str], AbstractContextManager[None]]
    say: Callable[[str], None]
    tolerance: Tolerance = "eager"
    seed: int = 0
    fired: Sequence[Rule] = ()
    plan: Callable[[Choice], Plan] | None = None  # how a choice becomes a plan, if not at the sizes of `work`
    elsewhere: Callable[[Program, Callable[[], object]], str] = lambda program, poll: ""  # what is wrong at other sizes
    over: Callable[[], bool] = lambda: False  # whether no time is left for more than has to be
    late: Callable[[], bool] = lambda: False  # nor for another plan where one is over tolerance
    polled: Callable[[], Callable[[], None]] = lambda: lambda: None  # makes what raises Halted once Ctrl-C came
    cut: list[str] = field(default_factory=list)  # what is left out for want of time, in words
    dropped: list[str] = field(default_factory=list)  # what is not used any more, in words
    references: dict[int, Any] = field(default_factory=dict)
    ahead: Callable[[], dict[int, Any]] = dict  # gives those that were computed before there was a program
    tighter: Choice | None = None  # the next choice, where it is known: one within a budget of rounding
    tightened: int = 0  # how many budgets of rounding were tried

    def build(self, found: Hypergraph) -> tuple[Choice, Program]:
        """The program of the best choice. NoPlanError if nothing covers the outputs any more."""
        choice, self.tighter = self.tighter, None
        try:
            choice = choice or self.choose(found, ())
        except NoPlanError:
            if self.dropped:
                raise _beyond_tolerance() from None
            raise
        with self.stage("build"):
            if self.plan is not None:
                return choice, Program(self.plan(choice))
            return choice, Program(replace(plan_of(choice, self.work), graph=renamed(self.graph, self.work)))

    def run(self, found: Hypergraph) -> tuple[Choice, Program, Verification | None]:
        """The fastest choice that passes; without a verdict where Ctrl-C ended its verification. When no time is left, a plan is
        verified on one input, and where it does not pass the unoptimized graph comes next.

        VerificationError for an error that is no rounding, NoPlanError where nothing is within a tolerance given as a number
        or "exact"."""
        try:
            return self._run(found)
        finally:
            self.references.clear()

    def _run(self, found: Hypergraph) -> tuple[Choice, Program, Verification | None]:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            choice, program = self.build(found)
            assert program.plan is not None
            with self.stage("verify"):
                try:
                    verdict, wrong = self._judged(program, attempt)
                except Halted:
                    self.cut.append("verification")
                    return choice, program, None
                except TensorGraphsError:
                    raise
                except Exception as error:  # a compiler's, or what running a kernel for the first time raises
                    found = self._without_untried(found, choice, error)
                    continue
                if verdict.passed and not wrong:
                    return choice, program, verdict
                last = REWRITES in self.dropped or attempt == MAX_ATTEMPTS
                hurried = self.late() and not (wrong or last or verdict.miscompiled)
                narrow = not wrong and STORED not in self.dropped and self._stored_narrow(program, verdict)
                again = narrow and not (last or hurried)
                finding = NOTHING if wrong or hurried or again else diagnose(self.graph, fixed(program.plan))
            if wrong and REWRITES in self.dropped:
                raise SizesError(wrong)
            if again:
                found = self._drop(STORED, self.stored(found.view), *self.dropped)
                self.say(f"over tolerance, again without {STORED}")
                continue
            if narrow and hurried:
                self.dropped.append(STORED)
            if wrong or hurried:
                found = self._drop(REWRITES, self._plain(), *self.dropped)
                self.say(f"{'wrong at another size' if wrong else 'over tolerance'}, again without {REWRITES}")
                self.cut += ["other plans within tolerance"] if hurried else []
                continue
            if finding.miscompiled or (last and verdict.miscompiled):
                raise self._miscompiled(verdict, finding)
            if last and not finding.inaccurate:
                if self.tolerance not in FACTORS:
                    break
                return choice, program, verdict.of_unoptimized()
            found = self._less(found, choice, finding, verdict, attempt)
            self.say(f"over tolerance, again without {self.dropped[-1]}")
        raise _beyond_tolerance()

    def _stored_narrow(self, program: Program, verdict: Verification) -> bool:
        """Whether an output that is farther off than is allowed has more bits than what the plan stores on the way."""
        assert program.plan is not None
        far = [
            not o.passed and r.type.dtype not in HALVES for o, r in zip(verdict.outputs, self.graph.roots, strict=True)
        ]
        return any(far) and any(v.carried and v.origin == "kernel" for v in program.plan.values)

    def _plain(self) -> Hypergraph:
        """What there is without rewriting."""
        return self.stored(None) if STORED in self.dropped else self.plain()

    def _without_untried(self, found: Hypergraph, choice: Choice, error: Exception) -> Hypergraph:
        """The hypergraph without kernels with schedules that were never run, or, where the others cover not every output, without
        those of the plan. The error where the plan has none."""
        untried = {
            i for i, (c, p) in enumerate(zip(choice.hypergraph.candidates, choice.prices))
            if not c.is_view and c.template.space is not None and p.source != "measured"
        }  # fmt: skip
        chosen = untried.intersection(choice.chosen)
        if not chosen:
            raise error
        said = f"kernels that were never run ({type(error).__name__}: {str(error).partition(chr(10))[0][:120]})"
        self.say(f"a kernel of the plan does not run, again without {said}")
        self.dropped.append(said)
        candidates = choice.hypergraph.candidates
        for left_out in (untried, chosen):
            found = replace(choice.hypergraph, candidates=[c for i, c in enumerate(candidates) if i not in left_out])
            try:
                self.tighter = self.choose(found, ())
                return found
            except NoPlanError:
                continue
        raise error

    def _judged(self, program: Program, attempt: int) -> tuple[Verification, str]:
        """The verdict on a program, and what is wrong with it at other sizes. Halted by Ctrl-C."""
        poll = self.polled()
        program.check_room()  # before what it is compared with takes time and memory
        given, self.ahead = self.ahead(), dict
        self.references |= given
        verdict = verify(
            self.graph, partial(run_flat, program), tolerance=self.tolerance, seed=self.seed,
            flops=graph_flops(list(self.work.roots)), references=self.references, device=program.tensors, enough=self.over,
            poll=poll,
        )  # fmt: skip
        if verdict.passed and verdict.cut:
            self.cut.append(verdict.cut)
        verdict = replace(verdict, attempts=attempt, dropped=tuple(self.dropped))
        return verdict, self._wrong(program, verdict, poll)

    def _wrong(self, program: Program, verdict: Verification, poll: Callable[[], object]) -> str:
        """What is wrong with a program for every size, in words: at other sizes, or, where it was lifted wrongly, at these."""
        if verdict.passed:
            if sum(r.type.nbytes for r in self.graph.roots) > KEPT_BYTES:
                self.references.clear()  # those of other sizes need the room; seldom is there a next attempt
            return self.elsewhere(program, poll)
        if self.plan is None or not verdict.miscompiled:
            return ""
        return verdict.worst.said

    def _less(
        self, found: Hypergraph, choice: Choice, finding: Diagnosis, verdict: Verification, attempt: int
    ) -> Hypergraph:
        """The hypergraph without what is most likely to blame; notes what that was."""
        if attempt < MAX_ATTEMPTS - 1:
            if finding.inaccurate:
                worst = finding.inaccurate[0]
                if finding.kernels[worst] <= GROSS and self._tighten(found, choice, finding, verdict):
                    return found
                return self._drop(worst, found, worst)
            if REWRITES not in self.dropped and (family := rewritten_most(choice)) is not None:
                original = as_it_came(found.view)
                kept = [c for c in found.candidates if c.template.family != family or original(c)]
                return self._drop(f"rewritten {family}", replace(found, candidates=kept))
        return self._drop(REWRITES, self._plain(), *self.dropped)

    def _tighten(self, found: Hypergraph, choice: Choice, finding: Diagnosis, verdict: Verification) -> bool:
        """Choose within what kernels may round by together, and note it; whether there was such a choice.

        What the plan was off by is a factor times the root of its kernels' squared errors; with that factor another plan
        is within tolerance whose root is smaller by as much as the plan was over it."""
        worst = verdict.worst

        def errors(of: Sequence[Candidate]) -> list[float]:
            seen = [0.0 if c.is_view else finding.errors.get(c.template.name, 0.0) for c in of]
            return [e or s for e, s in zip(self.errors(of), seen)]  # what was not measured alone was seen in the plan

        spent = math.hypot(*errors([choice.hypergraph.candidates[i] for i in choice.chosen]))
        if self.tightened == TIGHTENINGS or not 0 < spent < math.inf or not math.isfinite(worst.excess):
            return False
        self.tightened += 1
        most = spent * MARGIN / worst.excess
        try:
            self.tighter = self.choose(found, (rounding(most, errors),))
        except NoPlanError:
            return False
        self.dropped.append(f"kernels that round by more than {most:.2g} together")
        return True

    def _drop(self, what: str, found: Hypergraph, *kernels: str) -> Hypergraph:
        self.dropped.append(what)
        return replace(found, candidates=[c for c in found.candidates if c.template.name not in kernels])

    def _miscompiled(self, verdict: Verification, finding: Diagnosis) -> VerificationError:
        worst = verdict.worst
        return VerificationError(
            worst.said,
            where=finding.blame(self.fired),
            hint="report this with the model; verify=False runs it regardless",
        )


class SizesError(NoPlanError):
    """No plan holds at every size."""


def fixed(plan: Plan) -> Plan:
    """The plan at the sizes that it was chosen for."""
    return bind_sizes(plan, plan.sizes)


def _beyond_tolerance() -> NoPlanError:
    return NoPlanError("no plan within tolerance was found", hint='relax it: tolerance="fast" or a number')


# ---------------------------------------------------------------- what rewriting changed
def faithful(view: EGraphView) -> Bools:
    """Per class, whether it is a value of the graph as it came, or such values only moved about (views, concatenations)."""
    known: Bools = view.original.copy()
    kinds = np.array([OPS[op].kind in ("view", "layout") for op in view.op], np.bool_)
    moves = [(int(view.cls[i]), view.kids(i)) for i in np.flatnonzero(kinds).tolist()]
    grown = True
    while grown:
        fresh = [c for c, kids in moves if not known[c] and known[kids].all()]
        known[fresh] = True
        grown = bool(fresh)
    return known


def as_it_came(view: EGraphView) -> Callable[[Candidate], bool]:
    """Whether a candidate computes a value of the graph as it came, from such values."""
    known = faithful(view).tolist()
    return lambda c: all(known[v.cls] for v in c.outputs) and all(known[v.cls] for _, v in c.inputs)


def rewritten_most(choice: Choice) -> str | None:
    """The family of the chosen kernels that do most arithmetic on values which the graph did not have; None if none do."""
    original = as_it_came(choice.hypergraph.view)
    work: dict[str, float] = {}
    for i in choice.chosen:
        c = choice.hypergraph.candidates[i]
        if c.template.family not in MOVES and not original(c):
            work[c.template.family] = work.get(c.template.family, 0.0) + call_work(c.template, c.call)[0]
    return max(work, key=lambda family: (work[family], family)) if work else None


# ---------------------------------------------------------------- programs of a graph
def renamed(graph: Graph, work: Graph) -> Graph:
    """The graph that a program's signature comes from: names and structure as the model came, values of the form that was
    optimized."""
    return replace(work, names=graph.names, structure=graph.structure, name=graph.name)


def run_flat(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """A program's outputs, then its updated states, as a flat list, from inputs and states by name: tensors on its device where
    `values` are tensors, else arrays."""
    program.bind()
    for name in program.states:
        program.set_state(name, values[name])
    results = program.flat(*(values[n] for n in program.input_names))
    updated = list(program.plan.updates) if program.plan else []
    if not any(map(is_torch, values.values())):
        return [*results, *map(program.get_state, updated)]
    gpu.wait(program.device, f"running {program.manifest.name}")
    return [*results, *(program.states[n].clone() for n in updated)]


__all__ = ["MAX_ATTEMPTS", "REWRITES", "Acceptance", "SizesError", "as_it_came", "faithful", "renamed", "rewritten_most",
           "run_flat"]  # fmt: skip
