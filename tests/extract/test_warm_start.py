"""Warm start: a larger problem starts from the solution of a smaller one, so more search never costs quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.models import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.saturate.union import union
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.errors import ExtractionError, NoPlanError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.search.encoding import EncodedHypergraph
from tensor_graphs.extract.search.lazy_pricing import LazyPrices
from tensor_graphs.extract.search.search import search
from tensor_graphs.extract.search.warm_start import candidate_rounds, choice_of_candidates, nested_rounds, warm_solve
from tensor_graphs.extract.solve.extraction import Extraction
from tensor_graphs.extract.solve.problem import Limit, Problem
from tensor_graphs.extract.solve.solve import METHODS, solve
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.stages import choose as choosing
from tensor_graphs.pipeline.stages.choose import choose_cheapest
from tensor_graphs.rules import ALL


@st.composite
def nested(draw: st.DrawFn) -> list[Problem]:
    """Three problems, each with all nodes of the one before, over the same classes; with a limit, sometimes."""
    n = draw(st.integers(2, 7))
    costs = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.25, 0.1])
    nodes: list[tuple[int, tuple[int, ...], float]] = []
    for c in range(n):
        nodes.append((c, tuple(draw(st.lists(st.integers(0, c - 1), max_size=3))) if c else (), draw(costs)))
    sizes = []
    for _ in range(3):
        sizes.append(len(nodes))
        for _ in range(draw(st.integers(0, 5))):
            nodes.append(
                (draw(st.integers(0, n - 1)), tuple(draw(st.lists(st.integers(0, n - 1), max_size=3))), draw(costs))
            )
    uses = [draw(st.sampled_from([0.0, 1.0, 2.0])) for _ in nodes] if draw(st.booleans()) else []
    most = sum(uses[:n])  # the first problem has one extraction, which keeps it
    return [
        Problem.build(nodes[:k], [n - 1], n_classes=n, limits=[Limit("room", np.array(uses[:k]), most)] if uses else [])
        for k in sizes
    ]  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(nested(), st.sampled_from([*METHODS]), st.sampled_from([0.0, 5.0]))
def test_a_larger_problem_started_from_a_smaller_one_is_never_dearer(
    problems: list[Problem], method: Any, seconds: float
) -> None:
    if problems[0].limits and method == "frontier":
        return
    found: Extraction | None = None
    for problem in problems:
        one = solve(problem, method=method, time_limit=seconds, hint=None if found is None else found.choice)
        assert found is None or one.cost <= found.cost
        found = one


# ---------------------------------------------------------------- hypergraphs
SESSION = InProcess()


@cache
def view_at(iterations: int, beam: int = 4, slack: float = 3) -> EGraphView:
    """A transformer's layer after some rounds."""
    graph = zoo.transformer(1, hidden=64, heads=2, tokens=16)
    return saturate_block(graph, ALL, Limits(iterations=iterations, beam=beam, slack=slack), session=SESSION)


@cache
def kernels(view: EGraphView) -> Hypergraph:
    return candidate_hypergraph(view, [backend("numpy")], view_strides)


@pytest.fixture(scope="module")
def pricer(tmp_path_factory: pytest.TempPathFactory) -> CostPricer:
    """Stated prices: a roofline."""
    return CostPricer(Store(tmp_path_factory.mktemp("prices")))


class Greedy:
    """A solver that cannot do more than the greedies: it ends dearer on larger problems, as any does that is cut
    short."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def __call__(self, problem: Problem, *, hint: Any = None, **options: Any) -> Extraction:
        self.nodes.append(problem.n_nodes)
        found = solve(problem, method="greedy", hint=hint)
        return replace(found, optimal=False, lower_bound=0.0)


def test_a_choice_can_start_any_problem_that_has_its_kernels(pricer: CostPricer) -> None:
    graph = kernels(view_at(3))
    prices = [p.us for p in LazyPrices(graph, pricer)()]
    best = search(graph, pricer)
    rows = EncodedHypergraph(graph, prices)
    assert solve(
        rows.problem, method="greedy", hint=choice_of_candidates(rows, graph, best.chosen)
    ).cost <= best.extraction.cost * (1 + 1e-9)
    few = EncodedHypergraph(graph, [p if i in best.chosen[:3] else float("inf") for i, p in enumerate(prices)])
    assert (choice_of_candidates(few, graph, best.chosen) >= 0).sum() == 3


def test_the_first_rounds_make_nested_problems(pricer: CostPricer) -> None:
    graph = kernels(view_at(4))
    age = candidate_rounds(graph)
    steps = nested_rounds(age)
    assert steps and steps == sorted(set(steps)) and steps[-1] < max(age)
    costs = []
    for step in (*steps, max(age)):
        prices = [p.us if a <= step else float("inf") for p, a in zip(LazyPrices(graph, pricer)(), age)]
        costs.append(solve(EncodedHypergraph(graph, prices).problem).cost)
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(costs))
    alone = solve(
        EncodedHypergraph(kernels(view_at(1)), [p.us for p in LazyPrices(kernels(view_at(1)), pricer)()]).problem
    ).cost
    first = [p.us if a <= 1 else float("inf") for p, a in zip(LazyPrices(graph, pricer)(), age)]
    assert solve(EncodedHypergraph(graph, first).problem).cost <= alone * (1 + 1e-6), (
        "it holds what one round alone gives"
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_is_not_proved_is_no_dearer_than_any_smaller_problem(pricer: CostPricer, deterministic: bool) -> None:
    graph = kernels(view_at(4))
    prices = [p.us for p in LazyPrices(graph, pricer)()]
    weak = Greedy()
    rows, found = warm_solve(
        lambda cost: EncodedHypergraph(graph, cost), graph, prices, weak, seconds=60.0, deterministic=deterministic
    )
    tried = weak.nodes[1 : 1 + len(nested_rounds(candidate_rounds(graph)))]
    assert weak.nodes[0] == rows.problem.n_nodes > tried[-1] > tried[0] and tried == sorted(tried)
    for step in nested_rounds(candidate_rounds(graph)):
        small = EncodedHypergraph(
            graph, [p if a <= step else float("inf") for p, a in zip(prices, candidate_rounds(graph))]
        )
        assert found.cost <= solve(small.problem, method="greedy").cost * (1 + 1e-9)


def test_a_known_plan_is_where_the_next_search_starts(pricer: CostPricer) -> None:
    graph = kernels(view_at(3))
    prices = [p.us for p in LazyPrices(graph, pricer)()]
    best = search(graph, pricer)
    _, found = warm_solve(
        lambda cost: EncodedHypergraph(graph, cost), graph, prices, Greedy(), seconds=300, known=best.chosen
    )
    assert found.cost <= best.extraction.cost * (1 + 1e-9)


def test_kernels_that_only_later_rounds_have_are_no_obstacle(pricer: CostPricer) -> None:
    """Where nothing covers the outputs in the first rounds, these are passed over."""
    graph = kernels(view_at(2))
    age = candidate_rounds(graph)
    prices = [p.us for p in LazyPrices(graph, pricer)()]
    made = {c.output.cls for c, a in zip(graph.candidates, age) if a > 0}
    roots = [r for r in graph.roots if r.cls in made]
    later = [p if a > 0 or c.output not in roots else float("inf") for p, a, c in zip(prices, age, graph.candidates)]
    try:
        solve(EncodedHypergraph(graph, later).problem)
    except ExtractionError:
        pytest.skip("no rewritten form of an output")
    assert warm_solve(lambda cost: EncodedHypergraph(graph, cost), graph, later, Greedy(), seconds=300)[1].cost > 0


def cost_of(view: EGraphView, pricer: CostPricer, **options: Any) -> float:
    found = search(kernels(view), pricer, **options)
    assert found.extraction.optimal
    return found.cost


def falling(costs: Sequence[float]) -> bool:
    return all(b <= a * (1 + 1e-6) for a, b in pairwise(costs))


def test_rounds_and_effort_never_make_the_plan_dearer(pricer: CostPricer) -> None:
    assert falling([cost_of(view_at(n), pricer) for n in (1, 2, 3, 4)])
    stages = [view_at(1), view_at(2, beam=1, slack=0), view_at(2, beam=8, slack=5), view_at(4, beam=2)]
    assert falling([cost_of(union(stages[:n]), pricer) for n in range(1, 5)])
    assert falling([cost_of(view_at(4), pricer, solve_seconds=s) for s in (2.0, 8.0)])


def test_generated_kernels_of_the_graph_as_written_stay(pricer: CostPricer) -> None:
    """Regions are picked by what is cheapest around: rewriting must not take away those of the original."""
    if reason := backend("c").unavailable():
        pytest.skip(reason)
    graph = zoo.nasrnn(steps=1)
    costs = []
    for view in (view_of(graph), saturate_block(graph, ALL, Limits(iterations=1), session=SESSION)):
        found = candidate_hypergraph(view, [backend("numpy"), backend("c")], view_strides)
        costs.append(search(found, pricer).cost)
    assert falling(costs)


def test_effort_is_an_argument(tmp_path: Any) -> None:
    x, w = tg.input("x", (8, 16)), tg.param("w", (16, 16))
    y = (x @ w) * 2.0 + (x @ w) * 3.0
    found = [tg.saturate(y, costdb=tmp_path, effort=n, limits=Limits(iterations=1, beam=1)) for n in range(3)]
    assert falling([e.choice.cost for e in found]) and found[0].view.n_classes == len(Graph.of(y).nodes())
    assert len(found[0].view) < len(found[1].view) and found[2].view is found[2].choice.hypergraph.view
    program = tg.optimize(y, params={"w": np.eye(16, dtype=np.float32)}, costdb=tmp_path, effort=2, measure=False)
    np.testing.assert_allclose(program(np.ones((8, 16), np.float32)), np.full((8, 16), 5.0), rtol=1e-5)


def test_values_in_16_bits_are_searched_first_and_longest_if_kernels_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, float, float]] = []
    ends: dict[int, tuple[float, str]] = {}

    def choose(session: Any, graph: Any, pricer: Any, measurer: Any, share: float = 0.8, beaten: float = np.inf) -> Any:
        asked.append((graph.number, round(share, 3), beaten))
        cost, stopped = ends[graph.number]
        return SimpleNamespace(cost=cost, stopped=stopped, pessimistic_cost=cost)

    monkeypatch.setattr(choosing, "choose", choose)
    monkeypatch.setattr(choosing, "after_search_s", lambda session: 3.0)
    session = SimpleNamespace(left=2.0)  # of which the later stages take more
    made: Any = [SimpleNamespace(number=n, stores_other_types=n == 2) for n in range(3)]

    def cheapest(measurer: Any, *found: tuple[float, str]) -> tuple[int, list[tuple[int, float, float]]]:
        asked.clear()
        ends.update(enumerate(found))
        return choose_cheapest(session, made, None, measurer)[0].number, list(asked)  # type: ignore[arg-type]

    host, gpu = SimpleNamespace(ahead=False), SimpleNamespace(ahead=True)
    given = (5.0, "beaten"), (6.0, "beaten"), (4.0, "budget")
    searched = [(2, 0.8, np.inf), (0, 0.4, 4.0), (1, 0.8, 4.0)]
    assert cheapest(host, *given) == (2, [*searched, (2, 0.8, np.inf)]), "the best has the rest of the time"
    assert cheapest(host, *given[:2], (4.0, "measured")) == (2, searched), "if that is of use"
    assert cheapest(host, (3.0, "budget"), *given[1:])[0] == 0
    assert [n for n, *_ in cheapest(None, *given)[1]][:3] == [0, 1, 2]
    assert cheapest(gpu, *given)[1] == searched[:1], "no time is left for another"


def test_less_effort_is_searched_first_and_kept_where_it_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Session:
        smaller: tuple[Any, ...] = ()

    def choose(session: Any, graph: Any, pricer: Any, measurer: Any, share: float, beaten: float) -> Any:
        asked.append(graph.number)
        if graph.number == 0:
            raise NoPlanError("nothing covers it")
        return SimpleNamespace(cost=graph.cost, stopped=graph.stopped, pessimistic_cost=graph.pessimistic)

    monkeypatch.setattr(choosing, "choose", choose)

    def cheapest(*graphs: tuple[float, str], unmeasured: float = 1.5) -> int:
        made = [
            SimpleNamespace(number=n, cost=c, stopped=s, pessimistic=c + unmeasured) for n, (c, s) in enumerate(graphs)
        ]
        return int(choose_cheapest(Session(), made, None, None)[0].number)  # type: ignore[arg-type]

    assert cheapest((0.0, ""), (5.0, "measured"), (6.0, "measured")) == 1
    assert cheapest((0.0, ""), (5.0, "measured"), (4.0, "measured")) == 2
    assert cheapest((0.0, ""), (5.0, "measured"), (4.0, "budget")) == 1, "hopes do not win over what was measured"
    unfinished = (0.0, ""), (5.0, "measured"), (4.0, "budget")
    assert cheapest(*unfinished, unmeasured=0.0) == 2, (
        "a plan of measured kernels is known, although its search was not done"
    )
    assert cheapest((0.0, ""), (5.0, "budget"), (4.0, "measured")) == 2
    assert asked == [0, 1, 2] * 5
    with pytest.raises(NoPlanError):
        cheapest((0.0, ""))
