"""Plans of the GPU table, found again without a GPU from the kernels that a record lists (names and patterns).

The e-graph of a workload and its candidate kernels are the same on any machine. Only candidates that the record names
are kept, all at one price; the plan is accepted if it consists of the record's kernels, each as often. Of several plans
of the same kernels (for example with merged weights in another order), any one may be found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tensor_graphs.backends.registry import backend
from tensor_graphs.errors import NoPlanError
from tensor_graphs.extract.model.kernel import Candidate, Template
from tensor_graphs.extract.model.plan import Step
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.provenance import Origin, origin_of
from tensor_graphs.pipeline.stages.rewrite import rewrite

NAMES = ("torch_cuda", "triton", "nvrtc")
SPELLED = 400  # characters of a kernel's pattern that a record holds


@dataclass(frozen=True)
class Again:
    """A plan found again: its provenance, the limits of the search, and its kernels with their schedules."""

    origin: Origin
    searched: dict[str, Any]
    steps: list[Step]


class Alike(PricerBase):
    """Pricer with one price for all kernels, and almost none for views."""

    def price(self, candidates: Sequence[Candidate]) -> list[Priced]:
        """The price of each candidate (`Pricer.price`)."""
        return [Priced(us, us, us, "predicted") for us in (1e-3 if c.is_view else 1.0 for c in candidates)]


def kernel(template: Template) -> tuple[str, str]:
    """(name, pattern) by which a record identifies a kernel."""
    return template.name, template.pattern[:SPELLED]


def found_again(module: Any, inputs: Sequence[Any], kernels: Sequence[Mapping[str, Any]]) -> Again | None:
    """The plan of a module that consists of a record's kernels; None if no plan does any more."""
    wanted = Counter((k["kernel"], k["pattern"]) for k in kernels)
    session = Session(Options(measure=False, budget=math.inf))
    work = prepare(session, as_graph(module, tuple(inputs)), None).work
    rewritten = rewrite(session, work)
    view, views = rewritten.view, rewritten.block_views
    found = hypergraph(session, view, [backend(name) for name in NAMES])
    kept = [c for c in found.candidates if c.is_view or kernel(c.template) in wanted]
    try:
        plan = plan_of(search(replace(found, candidates=kept), Alike()), work)
    except NoPlanError:
        return None
    steps = [s for s in plan.steps if not s.is_view]
    if Counter(kernel(s.template) for s in steps) != wanted:
        return None
    chosen = {(k["kernel"], k["pattern"]): k.get("schedule", {}) for k in kernels}
    limits = session.options.saturation_limits
    searched = {"limits": asdict(limits), "effort": 1, "rounds": max(v.report.iterations for v in views)}
    told = [replace(s, call=replace(s.call, schedule=chosen[kernel(s.template)])) for s in steps]
    return Again(origin_of(plan, work), searched, told)
