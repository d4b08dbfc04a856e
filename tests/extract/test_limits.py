"""Limits, diversity and devices: each against brute force on small instances."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.errors import ExtractionError, UsageError
from tensor_graphs.extract.solve import leaf_search
from tensor_graphs.extract.solve.extraction import Extraction
from tensor_graphs.extract.solve.kbest import k_best
from tensor_graphs.extract.solve.limited import within_limits
from tensor_graphs.extract.solve.placement import place
from tensor_graphs.extract.solve.problem import Limit, Problem, evaluate, reachable
from tensor_graphs.extract.solve.solve import solve

from .test_solve import brute_force

Nodes = list[tuple[int, tuple[int, ...], float]]


def difference(new: Extraction, old: Extraction, kernels: Any) -> float:
    """Share of the flagged nodes of `new` that `old` does not contain; 1 if `new` has none."""
    flags = np.asarray(kernels, bool)
    mine, other = ({int(i) for i in e.choice if i >= 0 and flags[i]} for e in (new, old))
    return len(mine - other) / len(mine) if mine else 1.0


@st.composite
def node_lists(draw: st.DrawFn, most: int = 6) -> tuple[Nodes, list[int]]:
    """Up to `most` classes of up to 3 nodes, cyclic or not; class 0 has a leaf."""
    n = draw(st.integers(2, most))
    costs = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.25, 0.1])
    nodes: Nodes = [(0, (), draw(costs))]
    for c in range(1, n):
        for i in range(draw(st.integers(1, 3))):
            below = st.integers(0, c - 1) if i == 0 else st.integers(0, n - 1)
            nodes.append((c, tuple(draw(st.lists(below, max_size=3))), draw(costs)))
    return nodes, draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2))


@st.composite
def limited(draw: st.DrawFn) -> Problem:
    """A problem with one or two limits, some of them impossible."""
    nodes, roots = draw(node_lists())
    uses = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 4.0, 1e-3])
    limits = []
    for name in draw(st.sampled_from([["error"], ["error", "bytes"]])):
        use = np.array([draw(uses) for _ in nodes])
        limits.append(Limit(name, use, draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.1, 2.0, 5.3]))))
    return Problem.build(nodes, roots, limits=limits)


@settings(deadline=None, max_examples=120)
@given(limited(), st.sampled_from(["auto", "cp-sat", "highs", "greedy"]))
def test_limits_are_kept_at_least_cost(problem: Problem, method: Any) -> None:
    every = brute_force(problem)
    if not every:
        with pytest.raises(ExtractionError, match="satisfies the limits"):
            solve(problem, method=method)
        return
    try:
        found = solve(problem, method=method)
    except ExtractionError:
        assert method == "greedy", "only the greedies may miss what there is"
        return
    assert within_limits(problem, found.choice) and found.cost == evaluate(problem, found.choice)
    assert found.lower_bound <= every[0][0] <= found.cost
    if method != "greedy":
        assert found.optimal and found.cost <= every[0][0] * (1 + 2e-6) + 1e-12


@settings(deadline=None, max_examples=40)
@given(limited())
def test_k_best_under_limits_lists_all(problem: Problem) -> None:
    every = brute_force(problem)
    if not every or len(every) > 30:
        return
    found = list(k_best(problem, count=40, max_gap=math.inf, time_limit=3000))
    assert [e.cost for e in found] == pytest.approx([cost for cost, _ in every], abs=1e-6)
    assert {frozenset(int(i) for i in e.choice if i >= 0) for e in found} == {nodes for _, nodes in every}


@settings(deadline=None, max_examples=60)
@given(node_lists(), st.sampled_from([0.25, 1 / 3, 0.5, 0.75, 1.0]))
def test_diversity_is_a_share_of_new_kernels(spec: tuple[Nodes, list[int]], share: float) -> None:
    """Each is the cheapest of those that differ enough from all before it, as brute force finds them."""
    problem = Problem.build(*spec)
    every = brute_force(problem)
    kernels = problem.cost > 0
    found = list(k_best(problem, count=4, max_gap=math.inf, diversity=share, time_limit=300))
    kept: list[frozenset[int]] = []
    for extraction in found:
        mine = frozenset(int(i) for i in extraction.choice if i >= 0)
        allowed = [cost for cost, nodes in every if all(_apart(nodes, k, kernels, share) for k in kept)]
        assert extraction.cost == pytest.approx(min(allowed), abs=1e-6) and extraction.proven_rank
        kept.append(mine)
    for i, new in enumerate(found):
        assert all(difference(new, old, kernels) >= share - 1e-4 for old in found[:i])
    if len(found) < 4:
        assert not [nodes for _, nodes in every if all(_apart(nodes, k, kernels, share) for k in kept)]


def _apart(new: frozenset[int], old: frozenset[int], kernels: Any, share: float) -> bool:
    mine = {n for n in new if kernels[n]}
    need = math.ceil(share * 10_000 - 1e-9) / 10_000
    return new != old and len(mine - old) >= need * len(mine) - 1e-12


def test_an_error_budget_buys_accuracy_where_it_is_cheapest() -> None:
    # each of three classes has a fast kernel of error 1 and an exact one; being exact costs 1, 2, 3 more
    nodes: Nodes = [(0, (), 1.0), (0, (), 2.0), (1, (0,), 1.0), (1, (0,), 3.0), (2, (1,), 1.0), (2, (1,), 4.0)]
    error = np.array([1.0, 0.0] * 3)
    costs = [solve(Problem.build(nodes, [2], limits=[Limit("error", error, float(t))])).cost for t in (3, 2, 1, 0)]
    assert costs == [3.0, 4.0, 6.0, 9.0]


def test_a_budget_is_kept_without_time_to_search() -> None:
    """One of the cheap kernels fits the budget; those that use nothing cost a thousand times as much."""
    nodes: Nodes = [(c, (), cost) for c in range(40) for cost in (1.0, 1000.0)]
    nodes.append((40, tuple(range(40)), 0.0))
    use = np.array([1.0, 0.0] * 40 + [0.0])
    found = solve(Problem.build(nodes, [40], limits=[Limit("error", use, 1.5)]), time_limit=0.0)
    assert 39_001.0 <= found.cost <= 40_000.0


def test_a_memory_limit_prefers_what_is_fused() -> None:
    # classes 1 and 2 lie in memory, or one kernel of class 3 does both inside
    nodes: Nodes = [(0, (), 0.0), (1, (0,), 1.0), (2, (1,), 1.0), (3, (2,), 1.0), (3, (0,), 5.0)]
    size = np.array([0.0, 8.0, 8.0, 8.0, 8.0])
    roomy, tight = (Problem.build(nodes, [3], limits=[Limit("bytes", size, m)]) for m in (24.0, 23.0))
    assert (solve(roomy).cost, solve(tight).cost) == (3.0, 5.0)
    assert tight.limits[0].of(reachable(tight, solve(tight).choice)) == 8.0
    with pytest.raises(ExtractionError, match="no extraction satisfies the limits") as caught:
        solve(Problem.build(nodes, [3], limits=[Limit("bytes", size, 7.0)]))
    assert "bytes 8 of at most 7" in caught.value.where


def test_what_knows_no_limits_says_so() -> None:
    problem = Problem.build([(0, (), 1.0)], [0], limits=[Limit("error", np.ones(1), 2.0)])
    with pytest.raises(UsageError, match="does not support limits"):
        solve(problem, method="frontier")
    tight = Problem.build([(0, (), 1.0), (0, (), 2.0)], [0], limits=[Limit("error", np.array([1.0, 0.0]), 0.5)])
    assert "no frontier search" in solve(tight).stats["skipped"]


@pytest.mark.parametrize("method", ["auto", "highs", "cp-sat"])
def test_both_solvers_prove_larger_problems_under_limits(method: Any) -> None:
    """Forty classes with a fast coarse and a slow fine kernel each, of which about half can be fine: a knapsack."""
    rng = np.random.default_rng(0)
    cost, error = rng.integers(1, 60, 80).astype(float), rng.integers(1, 60, 80).astype(float)
    nodes: Nodes = [(0, (), 0.0)]
    nodes += [(1 + i // 2, (i // 2,), float(cost[i])) for i in range(80)]
    use = np.concatenate([[0.0], error])
    most = float(np.minimum(error[::2], error[1::2]).sum() * 1.3)
    table = {0.0: 0.0}  # error so far -> least cost
    for a, b in zip(range(0, 80, 2), range(1, 80, 2)):
        new: dict[float, float] = {}
        for e, c in table.items():
            for i in (a, b):
                if e + error[i] <= most:
                    new[e + error[i]] = min(new.get(e + error[i], math.inf), c + cost[i])
        table = new
    found = solve(Problem.build(nodes, [40], limits=[Limit("error", use, most)]), method=method)
    assert found.optimal and found.cost == min(table.values()) and ("cp-sat" in found.method or "highs" in found.method)


def test_what_is_too_large_is_searched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_search, "EXACT_ROWS", 3)
    nodes: Nodes = [(0, (), 1.0), (0, (), 2.0), (1, (0,), 1.0), (1, (0,), 3.0), (2, (1,), 1.0), (2, (1,), 4.0)]
    found = solve(Problem.build(nodes, [2], limits=[Limit("error", np.array([1.0, 0.0] * 3), 1.0)]))
    assert found.cost == 6.0 and found.lower_bound <= 6.0 and not found.optimal


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_error_memory_and_devices_together(data: Any) -> None:
    """An error budget over all kernels, memory on each device and copies, in one problem, against brute force."""
    nodes, roots = data.draw(node_lists(3))
    nodes = nodes[:6]
    use = np.array([data.draw(st.sampled_from([0.0, 0.1, 0.5])) for _ in nodes])
    most = data.draw(st.sampled_from([0.0, 0.2, 0.6, 1.1]))
    root = [0] if max(roots) > max(c for c, _, _ in nodes) else roots
    problem = Problem.build(nodes, root, n_classes=3, limits=[Limit("error", use, most)])
    price = st.sampled_from([0.5, 1.0, 3.0, 9.0, math.inf])
    cost = {d: np.array([data.draw(price) for _ in nodes]) for d in ("cpu", "gpu")}
    move = st.sampled_from([0.25, 1.0, 4.0])
    copy = {pair: np.array([data.draw(move) for _ in range(3)]) for pair in (("cpu", "gpu"), ("gpu", "cpu"))}
    size, room = np.array([1.0, 2.0, 4.0]), {"gpu": data.draw(st.sampled_from([1.0, 3.0])), "cpu": 6.0}
    best = cheapest_placement(problem, cost, copy, "cpu", room, size)
    placed = place(problem, cost, copy, "cpu", memory=room, size=size)
    if best == math.inf:
        with pytest.raises(ExtractionError):
            solve(placed.problem)
        return
    for method in ("auto", "highs"):
        found = solve(placed.problem, method=method)  # type: ignore[arg-type]
        assert found.optimal and found.cost == pytest.approx(best) and within_limits(placed.problem, found.choice)
        assert math.fsum(use[n] for n, _ in placed.kernels(found)) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("use", "most"), [([1.0], 1.0), ([1.0, -1.0], 1.0), ([1.0, math.nan], 1.0), ([1.0, 1.0], math.inf), ([1, 1], -1.0)]
)
def test_bad_limits(use: list[float], most: float) -> None:
    with pytest.raises(ExtractionError, match="uses") as caught:
        Problem.build([(0, (), 1.0), (0, (), 2.0)], [0], limits=[Limit("error", np.array(use), most)])
    assert caught.value.where == "limit error"


def test_limits_too_large_to_prove_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_search, "EXACT_ROWS", 0)
    nodes: Nodes = [(0, (), 1.0), (0, (), 2.0), (1, (0,), 1.0), (1, (0,), 3.0)]
    found = solve(Problem.build(nodes, [1], limits=[Limit("error", np.array([1.0, 0.0, 1.0, 0.0]), 1.0)]))
    assert found.cost == 3.0 and found.lower_bound <= 3.0 and "greedy" in found.method


# ---------------------------------------------------------------- devices
def cheapest_placement(
    problem: Problem,
    cost: dict[str, Any],
    copy: dict[tuple[str, str], Any],
    root: str,
    room: dict[str, float],
    size: Any,
) -> float:
    """Every way to make each class on each device, or to copy it there, or to leave it, priced from the arrays."""
    devices = list(cost)
    n = problem.n_classes
    places = list(itertools.product(range(n), devices))
    ways: list[list[Any]] = []
    for c, d in places:
        kernels = [i for i in range(problem.n_nodes) if problem.cls[i] == c and cost[d][i] < math.inf]
        ways.append([None, *kernels, *(("copy", a) for a in devices if (a, d) in copy)])
    best = math.inf
    for picked in itertools.product(*ways):
        way = dict(zip(places, picked))
        if any(way[r, root] is None for r in problem.roots):
            continue
        total, used, ready = 0.0, dict.fromkeys(devices, 0.0), set()
        for (c, d), w in way.items():
            if w is not None:
                total += copy[w[1], d][c] if isinstance(w, tuple) else cost[d][w]
                used[d] += size[c]
        kernels = [w for w in way.values() if w is not None and not isinstance(w, tuple)]
        if not all(math.fsum(limit.use[kernels]) <= limit.most * (1 + 1e-9) for limit in problem.limits):
            continue
        pending = [p for p in places if way[p] is not None]
        while pending:
            done = [p for p in pending if _reads(problem, way[p], p) <= ready]
            if not done:
                break
            ready |= set(done)
            pending = [p for p in pending if p not in ready]
        if not pending and all(used[d] <= m * (1 + 1e-9) for d, m in room.items()):
            best = min(best, total)
    return best


def _reads(problem: Problem, way: Any, place: tuple[int, str]) -> set[tuple[int, str]]:
    c, d = place
    if isinstance(way, tuple):
        return {(c, way[1])}
    return {(k, d) for k in problem.child[problem.off[way] : problem.off[way + 1]].tolist()}


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_placement_is_the_cheapest(data: Any) -> None:
    nodes, roots = data.draw(node_lists(3))
    problem = Problem.build(nodes[:6], [0] if max(roots) > max(c for c, _, _ in nodes[:6]) else roots, n_classes=3)
    price = st.sampled_from([0.0, 0.5, 1.0, 3.0, 9.0, math.inf])
    cost = {d: np.array([data.draw(price) for _ in range(problem.n_nodes)]) for d in ("cpu", "gpu")}
    move = st.sampled_from([0.25, 1.0, 4.0])
    copy = {pair: np.array([data.draw(move) for _ in range(3)]) for pair in (("cpu", "gpu"), ("gpu", "cpu"))}
    size = np.array([1.0, 2.0, 4.0])
    room = {"gpu": data.draw(st.sampled_from([1.0, 3.0, 7.0]))}
    best = cheapest_placement(problem, cost, copy, "cpu", room, size)
    placed = place(problem, cost, copy, "cpu", memory=room, size=size)
    if best == math.inf:
        with pytest.raises(ExtractionError):
            solve(placed.problem)
        return
    found = solve(placed.problem)
    assert found.optimal and found.cost == pytest.approx(best)


def test_a_copy_is_paid_once_and_only_where_it_pays() -> None:
    nodes: Nodes = [(0, (), 0.0), (1, (0,), 0.0), (2, (0,), 0.0), (3, (1, 2), 0.0)]
    problem = Problem.build(nodes, [3], class_ids=["x", "a", "b", "y"])
    cost = {"cpu": np.array([0.0, 10.0, 10.0, 1.0]), "gpu": np.array([math.inf, 1.0, 1.0, 1.0])}
    for price, copies in ((2.0, [(0, "cpu", "gpu"), (3, "gpu", "cpu")]), (20.0, [])):
        copy = {("cpu", "gpu"): np.full(4, price), ("gpu", "cpu"): np.full(4, price)}
        placed = place(problem, cost, copy, "cpu")
        found = solve(placed.problem)
        assert sorted(placed.copies(found)) == copies
        assert {d for n, d in placed.kernels(found) if n} == ({"gpu"} if copies else {"cpu"})
        assert placed.problem.class_name(7) == "y@gpu"


def test_the_documents_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs/extraction.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    assert "# " + capsys.readouterr().out.strip() == code.strip().splitlines()[-1]


def test_bad_placements() -> None:
    problem = Problem.build([(0, (), 1.0)], [0])
    with pytest.raises(ExtractionError, match="no device 'tpu'"):
        place(problem, {"cpu": np.ones(1)}, {}, "tpu")
    with pytest.raises(ExtractionError, match="entries"):
        place(problem, {"cpu": np.ones(2)}, {}, "cpu")
    limits = (Limit("error", np.ones(1), 2.0),)
    assert place(replace(problem, limits=limits), {"cpu": np.ones(1)}, {}, "cpu").problem.limits[0].use.tolist() == [
        1.0
    ]


def test_a_step_up_in_cost_is_asked_for_twice() -> None:
    """CP-SAT calls 0.5 the optimum here while extractions of cost 0 are left."""
    use = np.array([1.0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    problem = Problem(
        cls=np.array([0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5], np.int32),
        off=np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 5, 6], np.int32),
        child=np.array([5, 5, 0, 0, 4, 4], np.int32),
        cost=np.array([0, 0, 0, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        n_classes=6, roots=(1, 2), limits=(Limit("error", use, 5.3),),
    )  # fmt: skip
    costs = [e.cost for e in k_best(problem, count=40, max_gap=math.inf, time_limit=3000)]
    assert costs == sorted(costs) and len(costs) == 21
