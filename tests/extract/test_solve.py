"""Every solver against brute force, against each other, and on known e-graphs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.errors import ExtractionError, UsageError
from tensor_graphs.extract.solve import leaf_search
from tensor_graphs.extract.solve.components import split_components
from tensor_graphs.extract.solve.cpsat import solve_cpsat, units
from tensor_graphs.extract.solve.greedy import best_greedy, bottom_up, one_pass, queued
from tensor_graphs.extract.solve.highs import solve_highs
from tensor_graphs.extract.solve.kbest import k_best
from tensor_graphs.extract.solve.label_setting import LabelSetting
from tensor_graphs.extract.solve.presolve import detach, presolve
from tensor_graphs.extract.solve.problem import Problem, evaluate
from tensor_graphs.extract.solve.serialize import read_egraph
from tensor_graphs.extract.solve.solve import METHODS, solve

from ..examples import examples

DATA = Path(__file__).parents[2].parent / "shared/data/extraction"
FUZZ = sorted(DATA.glob("fuzz/*.json.gz"))


@st.composite
def problems(draw: st.DrawFn, acyclic: bool = False) -> Problem:
    """Up to 7 classes of up to 3 nodes; a bottom class always has a leaf, so that most roots have a term."""
    n = draw(st.integers(2, 7))
    costs = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.25, 0.1])
    nodes = [(0, (), draw(costs))]
    for c in range(n):
        for _ in range(draw(st.integers(1, 3))):
            below = st.integers(0, c - 1) if acyclic and c else st.integers(0, n - 1)
            children = () if acyclic and not c else tuple(draw(st.lists(below, max_size=3)))
            nodes.append((c, children, draw(costs)))
    roots = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2))
    return Problem.build(nodes, roots, n_classes=n)


def brute_force(problem: Problem) -> list[tuple[float, frozenset[int]]]:
    """Every extraction that keeps the problem's limits, cheapest first: cost and chosen nodes."""
    members: list[list[int]] = [[] for _ in range(problem.n_classes)]
    for node, c in enumerate(problem.cls.tolist()):
        members[c].append(node)
    found: dict[frozenset[int], float] = {}
    for picked in itertools.product(*[m or [-1] for m in members]):
        try:
            cost = evaluate(problem, picked)
        except ExtractionError:
            continue
        used: set[int] = set()
        todo = list(problem.roots)
        while todo:
            node = picked[todo.pop()]
            if node not in used:
                used.add(node)
                todo += problem.child[problem.off[node] : problem.off[node + 1]].tolist()
        if all(math.fsum(limit.use[list(used)]) <= limit.most * (1 + 1e-9) for limit in problem.limits):
            found[frozenset(used)] = cost
    return sorted(((cost, nodes) for nodes, cost in found.items()), key=lambda e: (e[0], sorted(e[1])))


def block(offset: int, below: int, *, cyclic: bool = False) -> list[tuple[int, tuple[int, ...], float]]:
    """A diamond of 6 classes over `below` in which tree cost and DAG cost disagree."""
    a, b, c, d, e, top = range(offset, offset + 6)
    nodes = [(a, (below,), 5.0), (b, (a,), 1.0), (b, (below,), 4.5), (c, (a,), 1.0), (c, (below,), 4.25)]
    nodes += [(d, (b, c), 1.0), (e, (b,), 2.0), (e, (c,), 2.0), (top, (d, e), 0.5), (top, (d,), 2.75)]
    return [*nodes, (b, (e,), 0.1), (a, (d,), 0.2)] if cyclic else nodes


def chain(copies: int, *, cyclic: bool = False) -> Problem:
    """`copies` blocks on top of each other."""
    nodes: list[tuple[int, tuple[int, ...], float]] = [(0, (), 1.0)]
    for i in range(copies):
        nodes += block(1 + 6 * i, 6 * i, cyclic=cyclic)
    return Problem.build(nodes, [6 * copies])


@settings(deadline=None, max_examples=80)
@given(problems())
def test_auto_is_optimal(problem: Problem) -> None:
    every = brute_force(problem)
    if not every:
        with pytest.raises(ExtractionError, match="no finite acyclic term"):
            solve(problem)
        return
    found = solve(problem)
    assert found.cost == pytest.approx(every[0][0], rel=1e-9, abs=1e-12)
    assert found.optimal and found.lower_bound <= every[0][0] * (1 + 1e-9) + 1e-12
    assert evaluate(problem, found.choice) == found.cost


@settings(deadline=None, max_examples=25)
@given(problems(), st.sampled_from(METHODS), st.booleans())
def test_every_method_is_valid_and_bounded(problem: Problem, method: str, deterministic: bool) -> None:
    every = brute_force(problem)
    if not every:
        return
    best = every[0][0]
    found = solve(problem, method=method, deterministic=deterministic)  # type: ignore[arg-type]
    assert found.lower_bound <= best * (1 + 1e-9) + 1e-12 <= found.cost * (1 + 2e-9) + 2e-12
    if method in ("cp-sat", "highs"):
        assert found.optimal


@settings(deadline=None, max_examples=40)
@given(problems(acyclic=True))
def test_frontier_is_exact_on_acyclic_problems(problem: Problem) -> None:
    every = brute_force(problem)
    found = LabelSetting(problem.rows).search()
    assert found.exact
    assert found.cost == pytest.approx(every[0][0], abs=1e-9)
    assert LabelSetting(problem.rows).search(1).lower <= every[0][0] + 1e-9
    assert found.chosen is not None and evaluate(problem, problem.choice_of(found.chosen)) == pytest.approx(found.cost)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_presolve_keeps_an_optimum_and_maps_it_back(problem: Problem) -> None:
    every = brute_force(problem)
    light = detach(problem.rows)
    if not every:
        assert light is None
        return
    assert light is not None
    reduced = presolve(light.rows, every[0][0])
    rows: list[int] = []
    total = reduced.constant
    for part in split_components(reduced.rows):
        answer = solve_cpsat(part.rows, best_greedy(part.rows)[1], seconds=300)
        assert answer.chosen is not None
        rows += [copy[r] for copy in part.copies for r in answer.chosen]
        total += answer.cost * len(part.copies)
    assert total == pytest.approx(every[0][0], abs=1e-9)
    choice = problem.choice_of([light.origin[r] for r in reduced.restore(rows)])
    assert evaluate(problem, choice) == pytest.approx(every[0][0], abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(problems())
def test_greedies_are_valid(problem: Problem) -> None:
    every = brute_force(problem)
    for choice in (
        bottom_up(problem.rows),
        one_pass(problem.rows),
        queued(problem.rows),
        queued(problem.rows, budget=3),
    ):
        chosen = problem.rows.walk(choice) if choice is not None else None
        if chosen is not None:
            assert evaluate(problem, problem.choice_of(chosen)) >= every[0][0]
    assert bool(every) == (best_greedy(problem.rows)[0] < math.inf)


@pytest.mark.parametrize("cyclic", [False, True])
def test_solvers_agree_on_blocks(cyclic: bool) -> None:
    problem = chain(3, cyclic=cyclic)
    costs = {m: solve(problem, method=m).cost for m in ("auto", "cp-sat", "highs", "frontier")}  # type: ignore[arg-type]
    assert len({round(c, 9) for c in costs.values()}) == 1, costs
    rows = problem.rows
    start = best_greedy(rows)[1]
    direct = [solve_cpsat(rows, start, seconds=300), solve_highs(rows, start, seconds=300)]
    assert [a.proven for a in direct] == [True, True]
    assert {round(a.cost, 9) for a in direct} == {round(costs["auto"], 9)}


@pytest.mark.parametrize("path", FUZZ or [pytest.param(None, marks=pytest.mark.skip(reason="no extraction data here"))])
def test_solvers_agree_on_fuzz_files(path: Path) -> None:
    problem = read_egraph(path)
    best = solve(problem)
    assert best.optimal
    rows = problem.rows
    start = best_greedy(rows)[1]
    for answer in (solve_cpsat(rows, start, seconds=300), solve_highs(rows, start, seconds=300)):
        assert answer.proven and answer.cost == pytest.approx(best.cost, rel=1e-7)
    assert LabelSetting(rows).search().lower <= best.cost * (1 + 1e-9)


@pytest.mark.parametrize("name", ["tensat/resnet50_acyclic", "tensat/vgg", "egg/math_associate_adds"])
def test_known_optima(name: str) -> None:
    path = DATA / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("no extraction data here")
    problem = read_egraph(path)
    found = solve(problem)
    known = {"tensat/resnet50_acyclic": 4.41599, "tensat/vgg": 4.85076, "egg/math_associate_adds": 13.0}
    assert found.optimal and found.cost == pytest.approx(known[name], abs=1e-5)


def test_identical_components_are_solved_once() -> None:
    one, many = solve(chain(1)), solve(chain(100))
    assert many.optimal
    assert many.cost - 1.0 == pytest.approx(100 * (one.cost - 1.0))
    assert many.stats["components"] >= 100 and many.stats["distinct_components"] <= 4
    rows = chain(100).rows
    light = detach(rows)
    assert light is not None
    assert max(len(p.copies) for p in split_components(light.rows)) >= 98


def test_split_sees_through_renumbering() -> None:
    rng = np.random.default_rng(0)
    nodes: list[tuple[int, tuple[int, ...], float]] = []
    for i in range(8):
        names = 6 * i + rng.permutation(6)
        piece = [
            (int(names[c - 1]), tuple(int(names[k - 1]) for k in children if k), p) for c, children, p in block(1, 0)
        ]
        nodes += [piece[j] for j in rng.permutation(len(piece))]
    problem = Problem.build(nodes, [c for c, children, p in nodes if p == 2.75])
    light = detach(problem.rows)
    assert light is not None
    assert {len(p.copies) for p in split_components(light.rows) if len(p.rows) > 1} == {8}


def test_hint_stop_and_time_limit() -> None:
    problem = chain(5, cyclic=True)
    best = solve(problem)
    assert solve(problem, method="greedy", hint=best.choice).cost == best.cost
    assert solve(problem, hint=best.choice).stats["hint"] == "used"
    assert solve(problem, hint=[-1] * problem.n_classes).stats["hint"].startswith("ignored")
    for early in (solve(problem, stop=lambda: True), solve(problem, time_limit=0)):
        assert early.cost >= best.cost >= early.lower_bound
        evaluate(problem, early.choice)


def test_a_solution_found_in_a_hurry_computes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with two results, one of which has a cheap kernel of its own: greedy solutions take both."""
    monkeypatch.setattr("tensor_graphs.extract.solve.solve.LAST_POLISH_S", 60.0)  # the machine may be busy
    layers, nodes, roots = 40, list[tuple[int, tuple[int, ...], float]](), list[int]()
    for n in range(layers):
        both, first, second = 3 * n, 3 * n + 1, 3 * n + 2
        nodes += [(both, (first - 3,) if n else (), 5.0), (first, (both,), 0.0), (first, (), 999.0)]
        nodes += [(second, (both,), 0.0), (second, (), 1.0)]
        roots.append(second)
    problem = Problem.build(nodes, [*roots, 3 * layers - 2], n_classes=3 * layers)
    own = [*range(len(nodes))]
    twice = [
        next(i for i in own if nodes[i][0] == c and nodes[i][2] != 999.0 and (c % 3 != 2 or nodes[i][2]))
        for c in range(3 * layers)
    ]
    assert evaluate(problem, twice) == 6.0 * layers
    for found in (
        solve(problem, time_limit=0.0, hint=twice),
        solve(problem, time_limit=0.0, hint=twice, beam_only=True),
    ):
        assert found.cost == 5.0 * layers


def test_deterministic_repeats() -> None:
    problem = chain(4, cyclic=True)
    first, second = (solve(problem, deterministic=True) for _ in range(2))
    assert first.optimal and (first.choice == second.choice).all()


def test_rank_decides_ties() -> None:
    nodes = [(0, (), 1.0), (0, (), 1.0), (1, (0,), 1.0), (1, (0,), 1.0)]
    for rank, wanted in (([0, 1, 2, 3], [0, 2]), ([1, 0, 3, 2], [1, 3])):
        assert solve(Problem.build(nodes, [1], rank=rank)).choice.tolist() == wanted


def test_multi_output_kernels_are_classes_with_projections() -> None:
    # class 2 is a kernel that gives classes 0 and 1; apart they cost more
    nodes = [(0, (), 3.0), (1, (), 3.0), (2, (), 4.0), (0, (2,), 0.0), (1, (2,), 0.0), (3, (0, 1), 0.0)]
    found = solve(Problem.build(nodes, [3]))
    assert found.cost == 4.0 and found.choice.tolist() == [3, 4, 2, 5]


def test_usage_errors() -> None:
    problem = chain(1)
    with pytest.raises(UsageError, match="unknown method"):
        solve(problem, method="guess")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="time_limit"):
        solve(problem, time_limit=-1)


def test_units_are_exact_for_decimal_costs() -> None:
    assert units([1.0, 2.0], 10) == (1.0, True)
    assert units([0.25, 13.51], 20) == (100.0, True)
    assert not units([math.pi], 10)[1]


def test_representations() -> None:
    found = solve(chain(2))
    assert "proven optimal" in repr(found) and found.gap <= 1e-6
    assert "<table>" in found._repr_html_() and f"{found.cost:.6g}" in found._repr_html_()


@settings(deadline=None, max_examples=examples(25))
@given(problems())
def test_k_best_lists_all_extractions_in_order(problem: Problem) -> None:
    every = brute_force(problem)
    if not every or len(every) > 40:
        return
    found = list(k_best(problem, count=50, max_gap=math.inf, time_limit=300))
    assert [e.cost for e in found] == pytest.approx([cost for cost, _ in every], abs=1e-6)
    assert {frozenset(int(i) for i in e.choice if i >= 0) for e in found} == {nodes for _, nodes in every}
    assert all(e.proven_rank for e in found)


def test_k_best_window_and_count() -> None:
    problem = chain(2, cyclic=True)
    found = list(k_best(problem, count=5, max_gap=0.2))
    assert 1 < len(found) <= 5
    costs = [e.cost for e in found]
    assert costs == sorted(costs) and costs[-1] <= costs[0] * 1.2 * (1 + 1e-9)
    assert len({e.choice.tobytes() for e in found}) == len(found)
    assert all(evaluate(problem, e.choice) == e.cost for e in found)
    assert len(list(k_best(problem, count=1))) == 1


def test_k_best_min_distance() -> None:
    problem = chain(3)
    found = list(k_best(problem, count=4, max_gap=1.0, min_distance=3))
    assert len(found) > 1
    for i, a in enumerate(found):
        for b in found[:i]:
            assert int(((b.choice != a.choice) & (b.choice >= 0)).sum()) >= 3


def test_k_best_bad_arguments() -> None:
    for wrong in ({"count": 0}, {"count": 1, "max_gap": -0.1}, {"count": 1, "min_distance": 0}):
        with pytest.raises(UsageError):
            k_best(chain(1), **wrong)  # type: ignore[arg-type]


def test_a_beam_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that read each other at random are too wide to keep every set of needed classes. Limits are counted work:
    whether a search ends by itself in some time depends on the machine."""
    monkeypatch.setattr(leaf_search, "BEAM_WIDTHS", (10, 20))
    monkeypatch.setattr(leaf_search, "MAX_UNBOUNDED_LABELS", 200)
    rng = np.random.default_rng(0)
    nodes: list[tuple[int, tuple[int, ...], float]] = [(c, (), float(rng.integers(1, 9))) for c in range(20)]
    for c in range(20, 120):
        low = (c // 20 - 1) * 20
        nodes += [(c, tuple(low + rng.integers(0, 20, 3)), float(rng.integers(1, 9))) for _ in range(4)]
    problem = Problem.build(nodes, range(100, 120))
    found = solve(problem, method="frontier", time_limit=0.01, deterministic=True)
    assert "frontier beam of" in found.method and not found.optimal
    assert evaluate(problem, found.choice) == found.cost >= found.lower_bound > 0
