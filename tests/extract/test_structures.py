"""Solves of one e-graph at changing costs: what does not depend on costs is computed once, and changes no solution."""

from __future__ import annotations

import math
import random

import pytest

from tensor_graphs.extract.candidates.hypergraph import Hypergraph, NumberedHypergraph
from tensor_graphs.extract.model.kernel import Vertex
from tensor_graphs.extract.search.encoding import EncodedHypergraph
from tensor_graphs.extract.solve import structures as module
from tensor_graphs.extract.solve.problem import NodeSpec, Problem
from tensor_graphs.extract.solve.solve import solve
from tensor_graphs.extract.solve.structures import KEPT_ORDERS, KEPT_STRUCTURES, Structures


def layers(costs: list[float], count: int = 6) -> Problem:
    """A chain of equal layers with two ways each, one of which computes a value that both layers around may use."""
    nodes: list[NodeSpec] = [(0, (), 1.0)]
    for n in range(count):
        before, made, side = 2 * n, 2 * n + 2, 2 * n + 1
        a, b, c, d = costs
        nodes += [(side, (before,), a), (made, (side,), b), (made, (before,), c), (made, (side, before), d)]
    return Problem.build(nodes, [2 * count], n_classes=2 * count + 1)


def test_solutions_are_those_of_single_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, rng, reductions = Structures(), random.Random(0), []
    plain = module.detach
    monkeypatch.setattr(module, "detach", lambda *given: reductions.append(0) or plain(*given))
    before = None
    for _ in range(8):
        problem = layers([rng.choice([0.5, 1.0, 3.0]) for _ in range(4)])
        alone, found = solve(problem), solve(problem, hint=before, structures=kept)
        beam_only = solve(problem, hint=before, structures=kept, beam_only=True)
        assert found.cost == alone.cost == beam_only.cost and found.optimal and beam_only.lower_bound <= alone.cost
        before = found.choice
    assert len(reductions) == 8 + 1  # of each solve alone, and of the structure


def test_an_order_is_computed_once_for_each_structure() -> None:
    kept, asked, rows, other = Structures(), [], layers([1.0] * 4).rows, layers([1.0] * 4, count=5).rows
    kind = lambda of: lambda: asked.append(of) or [()] * of.n_classes  # type: ignore[func-returns-value]
    first = kept.order(rows, kind(rows))
    assert kept.order(rows.at([2.0] * len(rows)), kind(rows)) is first and asked == [rows]
    assert kept.order(other, kind(other)) is not first and asked == [rows, other]
    for count in range(7, 7 + KEPT_ORDERS):
        made = layers([1.0] * 4, count=count).rows
        kept.order(made, kind(made))
    assert kept.order(rows, kind(rows)) is not first and len(kept._orders) == KEPT_ORDERS


def test_rows_of_infinite_cost_are_another_structure() -> None:
    kept = Structures()
    for left_out in range(1, 5):
        costs = [math.inf if n == left_out else 1.0 + n for n in range(4)]
        assert solve(layers(costs), structures=kept).cost == solve(layers(costs)).cost
    solve(layers([1.0, 2.0, 3.0, 4.0], count=3), structures=kept)
    assert len(kept._kept) == KEPT_STRUCTURES


def test_a_problem_has_the_first_cheapest_candidate_of_each_group() -> None:
    rng = random.Random(1)
    for size in (0, 1, 2, 40, 200):
        graph = Hypergraph(None, [None] * size, {}, [])  # type: ignore[arg-type, list-item]
        needs = [tuple(sorted({rng.randrange(3) for _ in range(rng.randrange(3))})) for _ in range(size)]
        made = [rng.randrange(3, 6) for _ in range(size)]
        vertices = {Vertex(n, ()): n for n in range(6)}
        graph.__dict__["numbered"] = NumberedHypergraph(vertices, made, needs, [5], [])
        cost = [rng.choice([1.0, 2.0, 0.5, math.inf]) for _ in range(size)]
        best: dict[int, int] = {}
        for i, group in enumerate(graph.alike):
            if cost[i] < cost[best.setdefault(group, i)]:
                best[group] = i
        wanted = [i for i in best.values() if cost[i] < math.inf]
        rows = EncodedHypergraph(graph, cost)
        plain = Problem.build([(made[i], needs[i], cost[i]) for i in wanted], [5], n_classes=6)
        assert rows.candidate == wanted
        for name in ("cls", "off", "child", "cost"):
            assert (getattr(rows.problem, name) == getattr(plain, name)).all(), name
