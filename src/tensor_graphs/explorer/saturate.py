"""`saturate` and `paths`: a saturated e-graph to explore, and the best few plans as programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import settings
from ..backends.program.program import Program
from ..backends.registry import select
from ..egraph.ir.graph import Graph
from ..egraph.ir.rule import Rule
from ..egraph.saturate.saturate import Limits
from ..extract.model.kernel import Plan
from ..extract.search.plan import plan_of
from ..extract.search.search import Choice, alternatives
from ..pipeline.optimize import _cheapest, hypergraph, prepare, saturated
from ..pipeline.prices import CostPricer
from ..pipeline.provenance import attach
from ..pipeline.session import Options, Session, beside_ours, open_store
from ..pipeline.source import as_graph
from ..progress import Progress
from ..report.report import Report
from ..verification.comparison import Tolerance
from .explorer import Explorer


def saturate(source: Any, example_inputs: Any = None, *, params: Mapping[str, Any] | None = None,
             dims: Mapping[str, int] | None = None, backend: str | None = None, limits: Limits | None = None,
             tolerance: Tolerance = "eager", budget: float = 60.0, costdb: str | Path | None = None,
             memory_limit: float | None = None, error_budget: float | None = None, effort: int = 1,
             rules: Sequence[Rule] = (), progress: Progress | None = None, example_kwargs: Mapping[str, Any] | None = None,
             trust: bool = False) -> Explorer:  # fmt: skip
    """Rewrite anything that `optimize` takes, without measuring; return an `Explorer`.

    The Explorer holds the saturated e-graph with candidate kernels and their current prices and shows its e-classes in
    a notebook; `.view` is the bare EGraphView. Arguments and errors as for `optimize`; `budget`: seconds for rewriting.
    """
    options = Options(
        backend or settings.current().backend, tolerance, budget, limits or Limits(), costdb, measure=False,
        memory_limit=memory_limit, error_budget=error_budget, effort=effort, rules=beside_ours(rules),
    )  # fmt: skip
    session = Session(options, progress or Progress())
    with session.running():
        with session.stage("load", str(source) if isinstance(source, str | Path) else ""):
            graph = as_graph(
                source,
                example_inputs,
                params=params,
                dims=dims,
                example_kwargs=example_kwargs,
                trust=trust,
                budget=budget,
            )
        prepared = prepare(session, graph, dims)
        view, _, _ = saturated(session, prepared.work)
        backends = select(options.backend)
        graphs = [hypergraph(session, v, backends) for v in (*session.smaller, view)]
        with open_store(session) as store:
            _, choice = _cheapest(session, graphs, CostPricer(store), None)
    return Explorer(prepared.graph, prepared.work, choice.hypergraph.view, choice)


@dataclass(frozen=True)
class RunnablePlan:
    """One complete plan of a graph with its estimated cost. `program()` builds the runnable program.

    `rank`: position by estimated cost, 0 is cheapest. `difference`: smallest fraction of its kernels that any single
    earlier plan lacks (1 for the first plan).
    """

    plan: Plan
    graph: Graph
    rank: int
    difference: float = 1.0

    @property
    def cost(self) -> float:
        """Estimated cost in µs."""
        return self.plan.cost

    def program(self) -> Program:
        """Build the runnable program of this plan (not verified)."""
        program = Program(self.plan)
        program.report = Report.of_plan(self.plan)
        attach(program, self.graph)
        return program

    def __repr__(self) -> str:
        new = f", {100 * self.difference:.0f} % of them new" if self.rank else ""
        return f"path {self.rank}: {self.plan.kernels} kernels{new}, {self.cost:.1f} µs estimated"


def paths(source: Any, example_inputs: Any = None, *, count: int = 10, params: Mapping[str, Any] | None = None,
          dims: Mapping[str, int] | None = None, backend: str | None = None, max_gap: float = 0.5,
          diversity: float = 0.0, costdb: str | Path | None = None, limits: Limits | None = None,
          memory_limit: float | None = None, error_budget: float | None = None,
          effort: int = 1, rules: Sequence[Rule] = (), budget: float = 60.0) -> Iterator[RunnablePlan]:  # fmt: skip
    """Iterate over up to `count` distinct complete plans in order of estimated cost, up to (1 + `max_gap`) times the
    cheapest.

    `diversity`: minimum fraction of a plan's kernels that every earlier plan lacks. `budget`: seconds for rewriting.
    Other arguments as for `optimize`; all plans satisfy `memory_limit` and `error_budget`.

        for plan in tg.paths(f, [x], count=3):
            print(plan, plan.program()(x))
    """
    explorer = saturate(
        source, example_inputs, params=params, dims=dims, backend=backend, costdb=costdb, limits=limits,
        memory_limit=memory_limit, error_budget=error_budget, effort=effort, rules=rules, budget=budget,
    )  # fmt: skip
    yield from runnable(explorer, alternatives(explorer.choice, count, max_gap=max_gap, diversity=diversity))


def runnable(explorer: Explorer, choices: Iterable[Choice]) -> Iterator[RunnablePlan]:
    """Convert choices on an explorer's e-graph to runnable plans."""
    graph = replace(explorer.work, names=explorer.graph.names, structure=explorer.graph.structure)
    seen: list[set[Any]] = []
    for rank, choice in enumerate(choices):
        found = [choice.hypergraph.candidates[i] for i in choice.chosen]
        kernels = {(c.template.name, c.outputs, frozenset(v for _, v in c.inputs)) for c in found if not c.is_view}
        new = min([len(kernels - old) / len(kernels) for old in seen if kernels], default=1.0)
        seen.append(kernels)
        yield RunnablePlan(replace(plan_of(choice, explorer.work), graph=graph), graph, rank, new)
