"""The plan of a model's short form, carried over to the whole model."""

from __future__ import annotations

from typing import Any

import pytest

from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.blocks import find_blocks
from tensor_graphs.egraph.ir.short_form import short_form
from tensor_graphs.egraph.view.glue import glue
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.clock import Clock
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.carried_plan import carried_plan
from tensor_graphs.extract.search.lazy_pricing import VIEW_US
from tensor_graphs.extract.search.plan_solver import PlanSolver
from tensor_graphs.extract.search.search import search

from ..egraph.test_blocks import transformer


class ByName(PricerBase):
    """A price by the name of the kernel: none is free, and none equal to the others'."""

    def price(self, found: Any) -> list[Priced]:
        """One price per candidate."""
        us = [1.0 + sum(map(ord, c.template.name)) % 7 for c in found]
        return [Priced(u, u, u, "measured") for u in us]


def costs_of(graph: Hypergraph) -> list[float]:
    return [VIEW_US if c.is_view else p.us for c, p in zip(graph.candidates, ByName().price(graph.candidates))]


@pytest.fixture(scope="module")
def graphs() -> tuple[Hypergraph, Hypergraph]:
    whole = find_blocks(transformer(12))
    short = short_form(whole)
    assert short is not None
    views, backends = [view_of(b.graph) for b in whole.unique], [backend("numpy")]
    short_graph, whole_graph = (candidate_hypergraph(glue(b, views), backends, view_strides) for b in (short, whole))
    return short_graph, whole_graph


def test_it_has_the_kernels_of_the_short_form_in_every_layer(graphs: tuple[Hypergraph, Hypergraph]) -> None:
    short, whole = graphs
    plan = search(short, ByName(), deterministic=True).chosen
    best = search(whole, ByName(), deterministic=True)
    carried = carried_plan(plan, short, whole)
    assert {whole.candidates[i].template.name for i in carried} == {short.candidates[i].template.name for i in plan}
    assert len(carried) > 2 * len(plan)
    # nothing else is needed, and it is as good as the best plan
    only, costs = set(carried), costs_of(whole)
    solver = PlanSolver(whole, (), 60.0, (1.0, 1.0), True, lambda: False, Clock())
    solver.start_from(carried, costs)
    assert set(solver.chosen) <= only and solver.pessimistic == solver.chosen
    assert sum(costs[i] for i in solver.chosen) == pytest.approx(best.cost)


def test_kernels_that_it_does_not_have_are_the_cheapest_ones(graphs: tuple[Hypergraph, Hypergraph]) -> None:
    _, whole = graphs
    costs = costs_of(whole)
    solver = PlanSolver(whole, (), 60.0, (1.0, 1.0), True, lambda: False, Clock())
    solver.start_from([0], costs)
    assert solver.chosen
