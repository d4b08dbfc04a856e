"""Implements `saturate` and `paths`: a saturated e-graph to explore, and the best few plans (choices of kernels) as
programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..backends.program.program import Program
from ..egraph.ir.graph import Graph
from ..extract.model.plan import Plan
from ..extract.search.alternatives import alternatives
from ..extract.search.plan import plan_of
from ..extract.search.search import Choice
from ..options import Options, PathOptions, SaturateOptions
from ..pipeline.context.session import Session, open_store
from ..pipeline.costs.measuring import chosen_backends
from ..pipeline.costs.prices import CostPricer
from ..pipeline.sources.source import as_graph
from ..pipeline.stages.backend_filter import with_kernels
from ..pipeline.stages.choose import choose_cheapest
from ..pipeline.stages.match import hypergraph
from ..pipeline.stages.prepare import prepare
from ..pipeline.stages.provenance import attach
from ..pipeline.stages.rewrite import rewrite
from ..progress import Progress
from ..public_functions import takes_options
from ..report.report import Report
from ..wording import counted
from .explorer import Explorer
from .layers import modules_of


@takes_options(SaturateOptions)
def saturate(source: Any, example_inputs: Any, options: SaturateOptions) -> Explorer:
    """Explorer of the saturated e-graph of anything that `optimize` takes. Nothing is measured.

    The Explorer holds the saturated e-graph with candidate kernels and their current prices and shows its e-classes in
    a notebook; `.view` is the bare EGraphView. The e-graph is made at one size of each free dimension, `.sizes`.
    Arguments and errors as for `optimize`.
    """
    session = Session(Options.of(options, measure=False), options.progress or Progress())
    with session.running():
        with session.stage("load", str(source) if isinstance(source, str | Path) else ""):
            graph = as_graph(
                source, example_inputs, params=options.params, dims=options.dims, example_kwargs=options.example_kwargs,
                trust=options.trust, budget=options.budget,
            )  # fmt: skip
        backends = chosen_backends(options)
        graph = with_kernels(graph, backends)
        prepared = prepare(session, graph, options.dims)
        modules = modules_of(session, graph, options.dims)
        rewritten = rewrite(session, prepared.work)
        graphs = [hypergraph(session, v, backends) for v in (*rewritten.smaller, rewritten.view)]
        with open_store(session) as store:
            pricer = CostPricer(store)
            _, choice = choose_cheapest(session, graphs, pricer, None)
            facts = pricer.facts(choice.hypergraph.candidates)
    known = {i: f for i, f in enumerate(facts) if f is not None}
    sizes = {n: s for n, s in prepared.sizes.items() if n in graph.free_dims}
    return Explorer(prepared.graph, prepared.work, choice.hypergraph.view, choice, known, modules, sizes)


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
        return f"path {self.rank}: {counted(self.plan.kernels, 'kernel')}{new}, {self.cost:.1f} µs estimated"


@takes_options(PathOptions)
def paths(source: Any, example_inputs: Any, options: PathOptions) -> Iterator[RunnablePlan]:
    """The best complete plans of a source, up to `count` distinct ones in order of estimated cost; an iterator.

    All plans satisfy `memory_limit` and `error_budget`. Other arguments as for `optimize`.

        for plan in tg.paths(f, [x], count=3):
            print(plan, plan.program()(x))
    """
    explorer = saturate(source, example_inputs, **options.common())
    choices = alternatives(explorer.choice, options.count, max_gap=options.max_gap, diversity=options.diversity)
    yield from runnable(explorer, choices)


def runnable(explorer: Explorer, choices: Iterable[Choice]) -> Iterator[RunnablePlan]:
    """Runnable plans of some choices on an explorer's e-graph."""
    graph = replace(explorer.work, names=explorer.graph.names, structure=explorer.graph.structure)
    seen: list[set[Any]] = []
    for rank, choice in enumerate(choices):
        found = [choice.hypergraph.candidates[i] for i in choice.chosen]
        kernels = {(c.template.name, c.outputs, frozenset(v for _, v in c.inputs)) for c in found if not c.is_view}
        new = min([len(kernels - old) / len(kernels) for old in seen if kernels], default=1.0)
        seen.append(kernels)
        yield RunnablePlan(replace(plan_of(choice, explorer.work), graph=graph), graph, rank, new)
