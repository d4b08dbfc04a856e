"""Exports tuning jobs: the unmeasured kernels of a model's best plans (choices of kernels), to be measured on another
machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import settings
from ..backends.registry import select
from ..backends.tuning.jobs import write_jobs
from ..extract.model.kernel import Candidate
from ..extract.search.alternatives import alternatives
from ..extract.search.policy import MAX_ALTERNATIVES
from ..extract.search.search import Choice
from ..options import Options
from ..pipeline.context.session import Session, open_store
from ..pipeline.costs.prices import CostPricer
from ..pipeline.sources.source import as_graph
from ..pipeline.stages.choose import choose
from ..pipeline.stages.match import hypergraph
from ..pipeline.stages.prepare import prepare
from ..pipeline.stages.rewrite import rewrite
from ..progress import Progress


def write_unmeasured(
    model: str, path: Path, plans: int, dims: Mapping[str, int], name: str, budget: float, costdb: Path | None,
    progress: Progress, *, trust: bool = False,
) -> int:  # fmt: skip
    """Write tuning jobs for the unmeasured kernels of the best `plans` plans and their unmeasured rivals.

    Returns their number. `name`: the backend. `budget`: seconds of search. `trust`: links in the model's folder may
    lead out of it.

    With the setting `gpu` (a GPU elsewhere), plans are made for that GPU whether or not this machine has one.
    """
    session = Session(Options(backend=name, budget=budget, costdb=costdb, measure=False), progress)
    graph = as_graph(model, dims=dims, trust=trust)
    backends = select("gpu" if name == "auto" and settings.current().gpu else name)
    prepared = prepare(session, graph, dims)
    view = rewrite(session, prepared.work).view
    found = hypergraph(session, view, backends)
    with open_store(session) as store:
        choice = choose(session, found, CostPricer(store), None)
    return write_jobs(path, unmeasured_candidates(choice, plans))


def unmeasured_candidates(choice: Choice, plans: int) -> Iterator[Candidate]:
    """Unmeasured candidates of the best `plans` choices, best choice first. Each is followed by its MAX_ALTERNATIVES
    cheapest unmeasured rivals (candidates that write the same value)."""
    candidates, prices = choice.hypergraph.candidates, choice.prices
    makers: dict[object, list[int]] = {}
    for i, c in enumerate(candidates):
        if not c.is_view and prices[i].origin not in ("measured", "failed"):
            for v in c.outputs:
                makers.setdefault(v, []).append(i)
    for found in [choice, *alternatives(choice, plans)]:
        for i in found.chosen:
            rivals = [
                j
                for v in candidates[i].outputs
                for j in sorted(makers.get(v, ()), key=lambda j: prices[j].low)[:MAX_ALTERNATIVES]
            ]
            wanted = [i] if prices[i].origin not in ("measured", "failed") and not candidates[i].is_view else []
            yield from (candidates[j] for j in dict.fromkeys([*wanted, *rivals]))
