"""The stages from a loaded graph to a plan, timed one by one, without measuring kernels and without verification."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensor_graphs.backends.registry import select
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import Limits
from tensor_graphs.egraph.saturate.union import saturate_in_stages
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.view import EGraphView
from tensor_graphs.extract.model.backend import Backend
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Pricer
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.preload import SOLVER_MODULES, STORE_MODULES, import_in_background
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session, open_store
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare

from ..common import timed


@dataclass
class Run:
    """Results of the pipeline's stages, and the seconds of each stage."""

    view: EGraphView
    views: list[EGraphView]
    choice: Choice
    plan: Plan
    instances: int
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The run as JSON-compatible figures: seconds, sizes, kernels, cost, bound."""
        return {
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "total": round(sum(self.seconds.values()), 3),
            "e_nodes": len(self.view),
            "classes": self.view.n_classes,
            "candidates": len(self.choice.hypergraph.candidates),
            "unique_blocks": len(self.views),
            "instances": self.instances,
            "stopped": [f"{v.report.stopped} after {v.report.iterations}" for v in self.views],
            "kernels": sum(self.choice.sources.values()),
            "priced": self.choice.sources,
            "cost_us": self.choice.cost,
            "lower_bound_us": self.choice.extraction.lower_bound,
            "optimal": self.choice.extraction.optimal,
            "method": self.choice.extraction.method,
        }


def run(
    graph: Graph,
    sizes: Mapping[str, int] | None = None,
    *,
    limits: Limits | None = None,
    effort: int = 1,
    max_nodes: int | None = 96,
    pricer: Pricer | None = None,
    solve_seconds: float = 2.5,
    backends: Sequence[Backend] | None = None,
) -> Run:
    """Run the pipeline's stages on a graph, without measuring and verification.

    `max_nodes`: size of blocks (None: the graph is not cut). `pricer`: default is the store's prices. `backends`:
    default is all that can be used here.
    """
    session = Session(Options(limits=limits or Limits(), measure=False, verify=False, budget=600.0))
    seconds: dict[str, float] = {}
    backends = select("auto") if backends is None else backends
    with timed(seconds, "simplify"):
        work = prepare(session, graph, sizes).work
    with timed(seconds, "blocks"):
        blocks = find_blocks(work, max_nodes=max_nodes) if max_nodes else None
        graphs = [b.graph for b in blocks.unique] if blocks else [work]
    with timed(seconds, "saturate"):
        import_in_background([*STORE_MODULES, *SOLVER_MODULES])
        stages = saturate_in_stages(effort, graphs, session.options.rules, session.options.limits)
    with timed(seconds, "join blocks"):
        whole = [join_blocks(blocks, views) if blocks else views[0] for views in stages]
    found = [hypergraph(session, view, backends) for view in whole]
    seconds["candidates"] = session.stage_clock.seconds["candidates"]
    with open_store(session) as store:
        pricer = pricer or CostPricer(store)
        with timed(seconds, "extract"):
            choices = [search(graph, pricer, solve_seconds=solve_seconds) for graph in found]
        choice = min(choices, key=lambda c: c.cost)  # the first one of equals, as in the pipeline
        for name in ("price", "solve"):
            seconds[name] = sum(c.seconds[name] for c in choices)
            seconds["extract"] -= seconds[name]
    seconds["other extraction"] = seconds.pop("extract")
    with timed(seconds, "plan"):
        plan = plan_of(choice, work)
    return Run(whole[-1], stages[-1], choice, plan, len(blocks.instances) if blocks else 1, seconds)


def stated_prices() -> CostPricer:
    """Prices from the stated roofline alone, the same on every machine."""
    folder = tempfile.TemporaryDirectory(prefix="tensor_graphs-bench-")
    pricer = CostPricer(Store(folder.name))
    weakref.finalize(pricer, folder.cleanup)  # also at the end of the process
    return pricer


_FILL = """
import sys, json
import tensor_graphs as tg
path, dims, budget = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
report = tg.optimize(path, dims=dims, budget=budget, verify=False, again=True).report
print(json.dumps({"priced": report.priced, "stopped": report.search_stopped, "measured": report.measured_now}))
"""


def warm_store(path: Path, sizes: Mapping[str, int], seconds: float) -> str:
    """Measure the kernels of a model's best plans in a process of its own; returns the last 300 characters of its
    output.
    """
    import json

    found = subprocess.run(
        [sys.executable, "-c", _FILL, str(path), json.dumps(dict(sizes)), str(seconds)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (found.stdout if found.returncode == 0 else found.stderr).strip()[-300:]
