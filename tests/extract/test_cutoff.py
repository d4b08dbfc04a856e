"""The cost cutoff of kernels: against every plan, on random hypergraphs."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from tensor_graphs.extract.candidates.hypergraph import NumberedHypergraph
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.search.cutoff import CostCutoff, tree_costs


def hypergraph(
    made: list[int], needs: list[tuple[int, ...]], vertices: int, bundles: tuple[tuple[int, ...], ...] = ()
) -> Any:
    numbered = NumberedHypergraph({i: i for i in range(vertices)}, made, needs, [0], list(bundles))  # type: ignore[misc]
    found = [SimpleNamespace(template=object(), call=object(), number=i) for i in range(len(made))]
    return SimpleNamespace(numbered=numbered, candidates=found)


def priced(*us: float | None) -> list[Priced]:
    return [Priced(1, 0, 9, "predicted") if u is None else Priced(u, u, u, "measured") for u in us]


def test_trees_go_around_cycles_and_through_bundles() -> None:
    graph = hypergraph([0, 1, 0, 1, 3], [(1,), (0,), (2,), (2,), ()], 3, ((1, 2),))
    assert tree_costs(graph, [1.0, 1.0, 9.0, 2.0, 4.0]) == [5.0, 4.0, 4.0, 4.0]
    assert tree_costs(graph, [1.0, 1.0, 9.0, 2.0, math.inf]) == [math.inf] * 4


def test_a_kernel_is_compared_with_the_way_around_it_and_with_those_that_read_no_more() -> None:
    graph = hypergraph([0, 0, 1, 0], [(1,), (), (), (1,)], 2)
    none, whole, part, _ = graph.candidates
    worth = CostCutoff(graph, None, priced(None, 10.0, 4.0, None))  # type: ignore[arg-type]
    assert worth(none) == 10.0
    worth = CostCutoff(graph, None, priced(None, 10.0, 4.0, 5.0))  # type: ignore[arg-type]
    assert worth(none) == 5.0 and worth(whole) == 9.0 and worth(part) == 4.0


def test_what_a_rival_reads_beside_is_paid_for() -> None:
    graph = hypergraph([0, 1, 2, 2], [(), (), (0,), (0, 1)], 3)
    slow = graph.candidates[2]
    assert CostCutoff(graph, None, priced(50.0, 3.0, None, 4.0))(slow) == 7.0  # type: ignore[arg-type]
    assert CostCutoff(graph, None, priced(50.0, None, None, 4.0))(slow) == math.inf  # type: ignore[arg-type]


def test_a_kernel_of_another_graph_is_of_no_use() -> None:
    """What an earlier search has left under way may end in a later one."""
    graph, other = hypergraph([0], [()], 1), hypergraph([0], [()], 1)
    assert CostCutoff(graph, None, priced(10.0))(other.candidates[0]) == 0.0  # type: ignore[arg-type]


def test_bounds_tighten_while_kernels_are_measured() -> None:
    graph = hypergraph([0, 0], [(), ()], 1)
    first, second = graph.candidates
    prices = {0: priced(None)[0], 1: priced(None)[0]}
    pricer = SimpleNamespace(price=lambda found: [prices[c.number] for c in found])
    ended: list[bool] = []
    worth = CostCutoff(graph, pricer, priced(None, None), lambda: bool(ended))  # type: ignore[arg-type]
    worth.register(first)
    assert worth(second) == math.inf
    prices[0] = priced(3.0)[0]
    assert worth(second) == 3.0
    assert CostCutoff(graph, pricer, priced(3.0, None), limited=True)(second) == math.inf  # type: ignore[arg-type]
    ended.append(True)
    assert worth(second) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_no_best_plan_has_a_kernel_above_its_bound(seed: int) -> None:
    """Every plan of a random acyclic hypergraph, by enumeration."""
    rng = random.Random(seed)
    vertices, made, needs = 6, list[int](), list[tuple[int, ...]]()
    for v in range(vertices):
        for _ in range(rng.randint(1, 3)):
            later = range(v + 1, vertices)
            made.append(v)
            needs.append(tuple(sorted(rng.sample(later, min(len(later), rng.randint(0, 2))))))
    cost = [float(rng.randint(1, 20)) for _ in made]
    graph = hypergraph(made, needs, vertices)
    worth = CostCutoff(graph, None, priced(*cost))  # type: ignore[arg-type]
    plans: list[tuple[float, frozenset[int]]] = []

    def grow(todo: frozenset[int], chosen: dict[int, int]) -> None:
        if not todo:
            plans.append((sum(cost[i] for i in chosen.values()), frozenset(chosen.values())))
            return
        v = min(todo)
        for i, m in enumerate(made):
            if m == v:
                grow((todo | set(needs[i])) - {v} - set(chosen), {**chosen, v: i})

    grow(frozenset({0}), {})
    least = min(plans)[0]
    for total, plan in plans:
        if total == least:
            assert all(cost[i] <= worth(graph.candidates[i]) for i in plan)
