"""The plan of a model's short form, carried over to the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.blocks.short_form import short_form
from tensor_graphs.egraph.patterns.pattern import build
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.term_lookup import TermLookup
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.carried import carried_kernels
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.clock import Clock
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.carried_plan import carried_plan, kernels_to_carry
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
    short_graph, whole_graph = (
        candidate_hypergraph(join_blocks(b, views), backends, view_strides) for b in (short, whole)
    )
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


def test_kernels_of_the_short_form_cover_the_model(graphs: tuple[Hypergraph, Hypergraph]) -> None:
    """Library kernels are matched again, generated ones carried over; matching finds them all."""
    lowerings = Lowerings()
    short, whole = (
        candidate_hypergraph(g.view, [backend("numpy"), backend("triton").opened(lowerings)], view_strides)
        for g in graphs
    )
    choice = replace(search(short, ByName(), deterministic=True))
    choice.prices = [replace(p, source="bound") for p in choice.prices]  # only what plans have is carried over
    kernels = carried_kernels(short, kernels_to_carry(choice), whole.view)
    names = {short.candidates[i].template.name for i in choice.chosen if not short.candidates[i].is_view}
    assert names < {c.template.name for c in short.candidates if id(c.template) in kernels.templates}
    few = candidate_hypergraph(
        whole.view, [backend("numpy"), backend("triton").opened(lowerings)], view_strides, carried=kernels
    )
    assert len(few.candidates) < len(whole.candidates) / 3
    place = lambda c: (id(c.template), c.outputs, c.inputs)
    assert {place(c) for c in few.candidates} <= {place(c) for c in whole.candidates}
    best, again = (search(g, ByName(), deterministic=True) for g in (whole, few))
    assert best.cost <= again.cost <= 1.25 * best.cost


def test_kernels_that_do_not_hold_at_another_place_are_left_out() -> None:
    """Each layer reads the one before: with the first layer's input instead of its own, a kernel is another one."""
    whole = find_blocks(transformer(12))
    short = short_form(whole)
    assert short is not None
    views = [view_of(b.graph) for b in whole.unique]
    found, view, lowerings = join_blocks(short, views), join_blocks(whole, views), Lowerings()
    graph = candidate_hypergraph(found, [backend("numpy"), backend("triton").opened(lowerings)], view_strides)
    every = [i for i, c in enumerate(graph.candidates) if not c.is_view and c.template.space is not None]
    kernels, lookup = carried_kernels(graph, every, view), TermLookup(view)
    made = {v.cls for i in every for v in graph.candidates[i].outputs}
    assert len({m.cls for m in kernels.matches}) > 2 * len(made)
    for m in kernels.matches:
        leaves = {
            n: tg.input(n, view.types[c].shape, view.types[c].dtype) for n, c in zip(m.template.operands, m.operands)
        }
        terms = [build(t, leaves, {}) for t in m.template.terms]
        assert lookup.checker(terms, list(leaves.values()))(m.operands, (m.cls, *m.more))
