"""Runs the stages "build" and "verify" of a search: the loop of verify_or_retry.py, which replaces a plan (choice of
kernels) whose program fails, set up for the options of `optimize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...egraph.patterns.rule import Rule
from ...egraph.view.view import EGraphView, view_of
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.pricing import Measurer
from ...extract.search.alternatives import unmeasured_kernels
from ...extract.search.search import Choice
from ...extract.solve import budgets
from ...report.omissions import Omission, OmittedWork
from ...verification.reference import Reference
from ..context.session import LATE, Session
from ..costs.prices import CostPricer
from .choose import Carried, choose, nothing_carried
from .exclusions import Exclusions
from .match import hypergraph, only_generated
from .prepare import Task
from .time_finalists import fastest_finalist
from .verify_attempt import AttemptVerifier
from .verify_or_retry import Acceptance


def acceptance(
    session: Session, task: Task, pricer: CostPricer, measurer: Measurer | None, first: Choice | None,
    fired: Sequence[Rule], ahead: Callable[[], dict[int, Reference]],
    encoded: Callable[[], None] = lambda: None, carried: Carried = nothing_carried,
) -> Acceptance:  # fmt: skip
    """The verify-or-retry loop of one search, ready to run (`Acceptance.run`).

    `first`: a choice of kernels that is used for its hypergraph instead of a new extraction (None: there is none).
    `fired`: rules that matched. `ahead`: waits for the verification references computed in the background, and returns
    them by seed. `encoded`: ends the encoding of quantized weights in the background; called before programs are timed.
    """
    parts = _SearchParts(session, task, pricer, measurer, first, encoded, carried)
    options, symbolic = session.options, task.symbolic
    say = partial(session.progress.say, "verify")
    exclusions = Exclusions(
        parts.chosen_of,
        pricer.errors,
        parts.unrewritten,
        say,
        None if symbolic is None else symbolic.without_sized,
        optional=("c",),
        unusable=parts.unusable,
    )
    verifier = AttemptVerifier(
        task.model.graph, task.work, options.tolerance, options.seed, symbolic is not None,
        over=lambda: session.over_in(session.expected.input_s), late=session.late, now=session.now,
        allowed_s=lambda: session.verifying_s, polled=session.polled, ahead=ahead, omitted=session.omitted,
    )  # fmt: skip
    loop = Acceptance(
        verifier, exclusions, parts.stored, session.stage, say, fired,
        patience=LATE * options.budget, weights=session.weights,
    )  # fmt: skip
    if measurer is not None:
        compiler = measurer.compile if measurer.ahead else None
        look = measurer.measure if measurer.ahead else None
        loop.fastest = partial(fastest_finalist, session, task, compiler=compiler, measured=pricer.measured, look=look)
    if symbolic is not None:
        loop.plan = symbolic.plan
        verifier.elsewhere = lambda program, poll: symbolic.verifier.problem(
            program, options.tolerance, options.seed, lambda: session.over, poll, session.verifying_s, session.omitted
        )
    return loop


@dataclass
class _SearchParts:
    """Functions of a search that the loop calls: hypergraphs, and choices of kernels. Fields: parameters of
    `acceptance`."""

    session: Session
    task: Task
    pricer: CostPricer
    measurer: Measurer | None
    first: Choice | None
    encoded: Callable[[], None]
    carried: Carried

    def chosen_of(self, graph: Hypergraph, limits: Sequence[budgets.Budget]) -> Choice:
        """The choice of kernels for a hypergraph under `limits`: `first` if it is of this graph (once), else that of a
        new extraction. The measurer's memory is freed for verification; then the choice's unmeasured kernels are
        compiled, if the measurer compiles ahead."""
        choice, measurer = None, self.measurer
        if self.first is not None and self.first.hypergraph is graph:
            choice, self.first = self.first, None
        choice = choice or choose(self.session, graph, self.pricer, measurer, limits=limits, carried=self.carried)
        if measurer is not None:
            measurer.pause()
        self.encoded()
        if measurer is not None and measurer.ahead:
            with self.session.stage("build"):
                measurer.compile(unmeasured_kernels(choice))
        return choice

    def stored(self, view: EGraphView) -> Hypergraph:
        """The kernels matched on a view whose types are those of storage; fewer once the session is late."""
        late = lambda bound: self.session.late(0.0)
        return hypergraph(
            self.session, view, self.task.backends, enough=late, narrow=False, symbolic=self.task.symbolic
        )

    def unrewritten(self) -> Hypergraph:
        """The kernels matched on the graph without rewrites; fused ones are left out after the session's deadline if
        library kernels cover the graph."""
        task, session = self.task, self.session
        over = lambda bound: session.over and not only_generated(task.backends)
        return hypergraph(session, view_of(task.work), task.backends, enough=over, narrow=False, symbolic=task.symbolic)

    def unusable(self, name: str, why: str) -> None:
        """Report that the kernels of backend `name` were left out."""
        self.session.omitted.append(Omission(OmittedWork.UNUSABLE, name))
        self.session.warnings.append(f"kernels of {name} were left out: {why}")


__all__ = ["acceptance"]
