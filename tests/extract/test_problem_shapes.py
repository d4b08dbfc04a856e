"""E-graph files of unusual shapes: each that is read is solved to the optimum of a brute-force search."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensor_graphs.errors import ExtractionError
from tensor_graphs.extract.model.scc import strongly_connected_components
from tensor_graphs.extract.solve import dominators as must
from tensor_graphs.extract.solve import greedy, leaf_search
from tensor_graphs.extract.solve import presolve as presolving
from tensor_graphs.extract.solve.components import split_components
from tensor_graphs.extract.solve.greedy import best_greedy, bottom_up
from tensor_graphs.extract.solve.local_search import local_search, promising_rows
from tensor_graphs.extract.solve.presolve import detach, presolve
from tensor_graphs.extract.solve.problem import Problem, evaluate
from tensor_graphs.extract.solve.serialize import parse_egraph, to_json, write_egraph
from tensor_graphs.extract.solve.solve import solve

from ..examples import examples

COSTS = {
    "zero": [0.0, 0.0, 0.0, 1.0],
    "integral": [0.0, 1.0, 2.0, 3.0, 5.0, 8.0],
    "decimal": [0.1, 0.2, 0.3, 0.1 + 1e-12, 0.7],
    "close": [1.0, 1.0 + 2**-52, 1.0 + 2**-51],
    "huge": [1.0, 1e4, 1e18, 1e100, 1e280, 1.7e308],
    "tiny": [5e-324, 1e-300, 1e-20, 1e-9, 0.0],
    "mixed": [0.0, 1e-12, 0.1, 1.0, 1e12, math.inf],
}


@st.composite
def documents(draw: st.DrawFn, most: int = 7) -> dict[str, Any]:
    """Cyclic and acyclic e-graphs; several and repeated roots, self loops, repeated children, subsumed nodes, classes
    that nothing reaches or builds; children named as nodes of their class, any of them."""
    n = draw(st.integers(1, most))
    costs = st.sampled_from(COSTS[draw(st.sampled_from(sorted(COSTS)))])
    sizes = [draw(st.integers(1, 3)) for _ in range(n)]
    names = [[f"{c}.{i}" for i in range(size)] for c, size in enumerate(sizes)]
    acyclic = draw(st.booleans())
    nodes: dict[str, Any] = {}
    for name in itertools.chain(*names):
        c = int(name.partition(".")[0])
        below = [x for group in (names[:c] if acyclic else names) for x in group]
        children = draw(st.lists(st.sampled_from(below), max_size=4)) if below else []
        nodes[name] = {"op": "f", "cost": draw(costs), "eclass": f"c{c}", "children": children}
        if draw(st.integers(0, 19)) == 0:
            nodes[name]["subsumed"] = True
    roots = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3))
    return {"nodes": nodes, "root_eclasses": [f"c{r}" for r in roots]}


def least(problem: Problem) -> float:
    """Cost of the cheapest extraction, by trying all; inf if there is none."""
    members: list[list[int]] = [[] for _ in range(problem.n_classes)]
    for node, c in enumerate(problem.cls.tolist()):
        members[c].append(node)
    best = math.inf
    for picked in itertools.product(*[m or [-1] for m in members]):
        try:
            best = min(best, evaluate(problem, picked))
        except ExtractionError:
            continue
    return best


@settings(deadline=None, max_examples=examples(150))
@given(documents())
def test_files_of_all_shapes_are_solved_or_refused(document: dict[str, Any]) -> None:
    problem = parse_egraph(document)
    best = least(problem)
    if best == math.inf:
        with pytest.raises(ExtractionError, match="no finite acyclic term"):
            solve(problem)
        return
    found = solve(problem)
    assert found.optimal and found.lower_bound <= best and best <= found.cost <= best * (1 + 2e-6)
    assert evaluate(problem, found.choice) == found.cost <= best_greedy(problem.rows)[0] * (1 + 1e-12)
    text = json.dumps(to_json(problem, found), allow_nan=False)
    by_class = {problem.class_name(c): c for c in range(problem.n_classes)}
    by_name = {problem.node_name(n): n for n in range(problem.n_nodes)}
    choice = [-1] * problem.n_classes
    for name, node in json.loads(text)["choices"].items():
        choice[by_class[name]] = by_name[node]
    assert evaluate(problem, choice) == found.cost


@settings(deadline=None, max_examples=60)
@given(documents(12))
def test_local_search_is_valid_and_never_worse(document: dict[str, Any]) -> None:
    rows = parse_egraph(document).rows
    start = rows.walk(bottom_up(rows))
    if start is None:
        return
    found = local_search(rows, start)
    choice = [-1] * rows.n_classes
    for row in found:
        choice[rows.cls[row]] = row
    assert rows.total(found) <= rows.total(start)
    assert sorted(rows.walk(choice) or []) == sorted(found), "it holds what the roots need, no more"
    kept = promising_rows(rows, found, 2)
    assert set(found) <= set(kept) and len(kept) <= len(found) + 2


#: A greedy that pays one ulp more than what presolve proves.
ULP = {
    "nodes": {
        "0.0": {"op": "f", "cost": 1.0, "eclass": "c0", "children": []},
        "0.1": {"op": "f", "cost": 1.0, "eclass": "c0", "children": ["2.1"]},
        "2.1": {"op": "f", "cost": 1.0, "eclass": "c2", "children": ["0.0"]},
        "2.2": {"op": "f", "cost": 1.0000000000000004, "eclass": "c2", "children": []},
    },
    "root_eclasses": ["c0", "c2"],
}


@settings(deadline=None, max_examples=40)
@example(ULP)
@given(documents())
def test_what_is_too_large_to_prove_is_still_solved_well(document: dict[str, Any]) -> None:
    problem = parse_egraph(document)
    best = least(problem)
    if best == math.inf:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf_search, "EXACT_ROWS", 3)
        patch.setattr(leaf_search, "RESTRICTED_ROWS", 3)
        found = solve(problem, method="cp-sat")
    assert evaluate(problem, found.choice) == found.cost <= best_greedy(problem.rows)[0]
    assert found.lower_bound <= best <= found.cost


def covers(elements: int, sets: int) -> Problem:
    """Each element is in three of the sets; all of a solution's rows are needed at a time."""
    nodes: list[tuple[int, tuple[int, ...], float]] = [(s, (), 1.0 + s % 3) for s in range(sets)]
    nodes += [(sets + e, ((e * k + k) % sets,), 0.0) for e in range(elements) for k in (1, 5, 7)]
    return Problem.build([*nodes, (sets + elements, tuple(range(sets, sets + elements)), 0.0)], [sets + elements])


def test_a_solution_larger_than_what_is_offered_to_exact_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the solution are offered as well: without them the part would have no solution at all."""
    problem = covers(30, 13)
    best = solve(problem).cost
    monkeypatch.setattr(leaf_search, "EXACT_ROWS", 3)
    monkeypatch.setattr(leaf_search, "RESTRICTED_ROWS", 5)
    found = solve(problem, method="cp-sat", time_limit=2.0)
    assert best <= evaluate(problem, found.choice) == found.cost <= best_greedy(problem.rows)[0]


@settings(deadline=None, max_examples=60)
@given(documents(9))
def test_what_the_roots_need_is_found_window_by_window(document: dict[str, Any]) -> None:
    rows = parse_egraph(document).rows
    items = must.items_of(rows)
    _, order = strongly_connected_components(must.class_graph(items))
    sets = must.must_sets(items, order)
    assert sets is not None
    roots = [c for c in rows.roots if items[c]]
    wanted = {c for c in range(rows.n_classes) if any(sets[r] >> c & 1 for r in roots)} | set(roots)
    for window in (1, 2, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(must, "WINDOW_CLASSES", window)
            assert must.always_on(items, order, rows.roots) == wanted
    assert must.always_on(items, order, rows.roots, lambda: True) <= wanted
    with pytest.MonkeyPatch.context() as patch:  # and reductions by them keep an optimum
        patch.setattr(presolving, "MUST_CLASSES", 0)
        reduced = detach(rows)
    assert (reduced is None) == (least(parse_egraph(document)) == math.inf)


@pytest.mark.parametrize("calls", range(7))
@settings(deadline=None, max_examples=40)
@given(documents(9))
def test_reductions_can_end_anywhere(calls: int, document: dict[str, Any]) -> None:
    """Wherever the time runs out: each piece has a root, and what solves the pieces solves the whole."""
    problem = parse_egraph(document)
    rows = problem.rows
    cost, start, _ = best_greedy(rows)
    if not start:
        return
    left = iter(range(calls))
    reduced = presolve(rows, cost, expired=lambda: next(left, None) is None)
    picked = []
    for part in split_components(reduced.rows):
        assert part.rows.roots
        found = best_greedy(part.rows)[1]
        assert found
        picked += [copy[row] for copy in part.copies for row in found]
    choice = [-1] * rows.n_classes
    for row in reduced.restore(picked):
        choice[rows.cls[row]] = row
    assert rows.walk(choice) is not None


def test_the_queue_greedy_is_asked_of_large_problems_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a share of work for each row there, and ends when the time does."""
    below = [(c, (), 1.0 + c % 3) for c in range(40)]
    nodes = [*below, *((40 + c, (c % 40, (7 * c + i) % 40), 0.5 + i) for c in range(60) for i in range(3))]
    rows = Problem.build([*nodes, (100, tuple(range(40, 100)), 0.0)], [100]).rows
    wanted = best_greedy(rows)
    monkeypatch.setattr(greedy, "QUEUE_ROWS", 0)
    asked: list[int] = []
    whole = greedy.queued
    monkeypatch.setattr(greedy, "queued", lambda rows, **more: asked.append(more["budget"]) or whole(rows, **more))
    assert best_greedy(rows)[0] == wanted[0] and asked == [greedy.SET_UPDATES_PER_ROW * len(rows)]
    assert best_greedy(rows, expired=lambda: True)[0] >= wanted[0] and len(asked) == 1


def test_local_search_finds_what_the_greedies_miss() -> None:
    # both 1 and 2 are cheaper apart, but together they share class 0
    nodes = [(0, (), 3.0), (1, (), 2.5), (1, (0,), 0.0), (2, (0,), 1.0), (3, (1, 2), 0.0)]
    rows = Problem.build(nodes, [3]).rows
    start = rows.walk(bottom_up(rows))
    assert start is not None and (rows.total(start), rows.total(local_search(rows, start))) == (6.5, 4.0)


@pytest.mark.parametrize("depth", [1500, 5000])
def test_tree_costs_that_overflow_are_no_obstacle(depth: int) -> None:
    """Tree costs double with every level here; DAG cost is linear."""
    nodes: list[tuple[int, tuple[int, ...], float]] = [(0, (), 1.0), (1, (0,), 1.0)]
    nodes += [(c, (c - 1, c - 2), 1.0) for c in range(2, depth)]
    problem = Problem.build(nodes, [depth - 1])
    assert problem.rows.walk(bottom_up(problem.rows)) is not None
    found = solve(problem)
    assert found.optimal and found.cost == depth


def test_the_largest_float_means_never(tmp_path: Any) -> None:
    problem = Problem.build([(0, (), 1.7e308), (0, (), 2.0), (1, (0,), math.inf), (1, (0, 0), 1.0)], [1])
    assert solve(problem).cost == 3.0
    write_egraph(tmp_path / "e.json", problem)
    text = (tmp_path / "e.json").read_text()
    assert "Infinity" not in text and solve(parse_egraph(json.loads(text))).cost == 3.0
