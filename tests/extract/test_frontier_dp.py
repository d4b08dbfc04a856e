"""Frontier DP: against brute force, and equal layers solved once."""

from __future__ import annotations

import itertools
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.extract.solve import frontier_dp as module
from tensor_graphs.extract.solve import frontier_pieces, leaf_search, resolution_order
from tensor_graphs.extract.solve import solve as solving
from tensor_graphs.extract.solve.beam_widths import best_of_widths
from tensor_graphs.extract.solve.cpsat import UNITS_A_SECOND, solve_cpsat, solver
from tensor_graphs.extract.solve.frontier_dp import FrontierDP
from tensor_graphs.extract.solve.frontier_pieces import Label
from tensor_graphs.extract.solve.greedy import best_greedy
from tensor_graphs.extract.solve.label_dominance import undominated
from tensor_graphs.extract.solve.label_setting import LabelSearchResult
from tensor_graphs.extract.solve.problem import NodeSpec, Problem, ProblemRows
from tensor_graphs.extract.solve.solve import solve
from tensor_graphs.extract.solve.solve_clock import LABELS_A_SECOND, SolveClock

from ..examples import examples

COSTS = st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.0, 1.7, 2.0, 5.0, 40.0, 1e9])


def least(rows: ProblemRows) -> float:
    """Cost of the cheapest extraction, by trying all; inf if there is none."""
    best = math.inf
    for picked in itertools.product(*[m or [-1] for m in rows.members]):
        if (chosen := rows.walk(picked)) is not None:
            best = min(best, rows.total(chosen))
    return best


@st.composite
def layered(draw: st.DrawFn, layers: int, most: int = 3, ways: int = 2) -> ProblemRows:
    """Equal layers on top of each other, with cycles inside, values of the layer before and of the first one read; each
    may have a root of its own; some have bundles of which two values are taken."""
    size = draw(st.integers(1, most))
    cyclic, rooted = draw(st.booleans()), draw(st.booleans())
    block = []
    for c in range(size):
        for _ in range(draw(st.integers(1, ways))):
            own = draw(st.lists(st.integers(0, size - 1 if cyclic else c - 1), max_size=2)) if cyclic or c else []
            before = draw(st.lists(st.integers(0, size - 1), max_size=2))
            block.append((c, [k for k in own if k != c], before, draw(st.booleans()), draw(COSTS)))
    bundle = draw(COSTS) if size > 1 and draw(st.booleans()) else None
    nodes: list[NodeSpec] = [(0, (), 1.0)]
    roots, last = [], [0] * size
    count = 1
    for _ in range(layers):
        here = list(range(count, count + size))
        count += size
        for c, own, before, first, cost in block:
            nodes.append(
                (here[c], [*(here[k] for k in own), *(last[k] for k in before), *([0] if first else [])], cost)
            )
        if bundle is not None:
            nodes += [(count, (last[0],), bundle), (here[0], (count,), 0.0), (here[1], (count,), 0.0)]
            count += 1
        if rooted:
            roots.append(here[-1])
        last = here
    return Problem.build(nodes, [*roots, last[0]], n_classes=count).rows


def searched(rows: ProblemRows, width: int = module.MAX_EXACT_WIDTH) -> LabelSearchResult:
    """The search of a problem as it is."""
    found = FrontierDP(rows, best_greedy(rows)[0])
    assert found.fits
    return found.search(width)


def check(rows: ProblemRows, found: LabelSearchResult, best: float) -> None:
    """A proved result is the optimum; any other one is a valid solution."""
    assert found.chosen is not None
    choice = [-1] * rows.n_classes
    for r in found.chosen:
        choice[rows.cls[r]] = r
    walked = rows.walk(choice)
    assert walked is not None and rows.total(walked) == found.cost >= best * (1 - 1e-12)
    assert found.lower <= best
    if found.exact:
        assert found.cost == pytest.approx(best, rel=1e-9) and found.lower == pytest.approx(best, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=150)
@given(layered(2), st.sampled_from([1, 2, module.MAX_EXACT_WIDTH]))
def test_proved_is_the_optimum(rows: ProblemRows, width: int) -> None:
    best = least(rows)
    if best == math.inf:
        return
    found = searched(rows, width)
    assert found.exact or width < module.MAX_EXACT_WIDTH
    check(rows, found, best)


@settings(deadline=None, max_examples=60)
@given(layered(3, 2), st.sampled_from([1, 3, 6]), st.sampled_from([0, 1, 4]))
def test_wherever_it_is_cut(rows: ProblemRows, apart: int, crowd: int) -> None:
    best = least(rows)
    if best == math.inf:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_CUT_DISTANCE", apart)
        patch.setattr(module, "MIN_LABELS_TO_FILTER", crowd)
        found = searched(rows)
    assert found.exact
    check(rows, found, best)


@settings(deadline=None, max_examples=examples(15))
@given(layered(7, 4, 3))
def test_it_agrees_with_cp_sat_on_deep_problems(rows: ProblemRows) -> None:
    cost, start, _ = best_greedy(rows)
    if cost == math.inf:
        return
    other = solve_cpsat(rows, start, seconds=300)
    found = searched(rows)
    assert found.exact and other.proven
    check(rows, found, other.cost)


def deep(layers: int) -> ProblemRows:
    """Layers of a residual value in two layouts, and of three ways to get on."""
    nodes: list[NodeSpec] = [(0, (), 1.0), (1, (0,), 0.3)]
    for n in range(0, 4 * layers, 4):
        a, b, inner, bundle = n + 2, n + 3, n + 4, n + 5
        plain, turned = (n - 2, n - 1) if n else (0, 1)
        nodes += [
            (inner, (plain,), 1.1), (inner, (turned,), 0.9), (bundle, (plain, inner), 1.3), (a, (bundle,), 0.0),
            (b, (bundle,), 0.0), (a, (plain, inner), 0.8), (b, (turned, inner), 0.7), (a, (b,), 0.3), (b, (a,), 0.3),
        ]  # fmt: skip
    top = 4 * layers - 2
    return Problem.build(nodes, [top, top + 1]).rows


def test_equal_layers_are_searched_once() -> None:
    few, many = searched(deep(10)), searched(deep(100))
    assert few.exact and many.exact
    assert many.labels < 2 * few.labels
    assert len({id(p) for p in FrontierDP(deep(100), 1e3).pieces}) < 8


def test_what_it_leaves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = deep(10)
    assert FrontierDP(rows, 1e3).search(stop=lambda: True).chosen is None
    assert FrontierDP(rows, 1e3).search(deadline=time.perf_counter() - 1).chosen is None
    narrow = FrontierDP(rows, 1e3).search(1)
    assert narrow.chosen is not None and not narrow.exact and narrow.lower == 0.0
    monkeypatch.setattr(frontier_pieces, "MAX_DERIVATIONS", 1)
    assert FrontierDP(rows, 1e3).search().chosen is None
    monkeypatch.setattr(resolution_order, "MAX_OPEN_CLASSES", 1)
    assert not FrontierDP(rows, 1e3).fits


@settings(deadline=None, max_examples=25)
@given(layered(2, 2))
def test_where_it_is_a_beam_the_others_prove(rows: ProblemRows) -> None:
    best = least(rows)
    if best == math.inf:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_EXACT_LABELS", 0)
        patch.setattr(module, "BEAM_WIDTH", 1)
        found = solve(Problem.build(zip(rows.cls, rows.children, rows.cost), rows.roots, n_classes=rows.n_classes))
    assert found.optimal and found.lower_bound <= best * (1 + 1e-9)
    assert found.cost == pytest.approx(best, rel=1e-6)


def test_a_beam_that_would_not_end_gives_up() -> None:
    """After 60 of 100 classes in 6 s the other 40 take 4 s more."""
    run = module._Run(1, 1, math.inf, 8.0, None, 100)
    run._keep_pace(0.0)
    run.left = 40
    run._keep_pace(5.0)
    with pytest.raises(TimeoutError):
        run._keep_pace(6.0)
    run.deadline = math.inf
    run._keep_pace(6.0)


def test_a_search_that_must_not_drop_labels_ends_instead() -> None:
    found = FrontierDP(deep(10), 1e3)
    beam, exact = found.search(1), found.search(drops=False)
    assert beam.chosen is not None and not beam.exact
    assert found.search(1, drops=False).chosen is None
    assert exact.exact and exact.cost <= beam.cost


def test_where_limits_are_counted_work_labels_end_an_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call with `deterministic=True` and a budget of 5 s, extraction alone took 38 s."""
    monkeypatch.setattr(module, "BEAM_WIDTH", 1)
    found = FrontierDP(deep(12), 1e3)
    whole = found.search()
    cut = found.search(most_labels=whole.labels / 4)
    assert whole.exact and not cut.exact and cut.chosen is not None and cut.labels < whole.labels
    assert solver(2.0, 8, True).parameters.max_deterministic_time == 2 * UNITS_A_SECOND
    assert SolveClock(2.0, True, None).labels == 2 * LABELS_A_SECOND and SolveClock(2.0, False, None).labels == math.inf


def test_a_search_takes_the_widest_beam_there_is_time_for() -> None:
    """Where limits are counted work. Beams of 10 and 40, whatever the time, found plans 2.5 % dearer than the cheapest
    in the short forms of decode steps."""
    widths: list[object] = []

    class Recorded(FrontierDP):
        def search(self, width: int = 20_000, **more: object) -> LabelSearchResult:  # type: ignore[override]
            if width == 20_000:
                widths.append(labels := int(more["most_labels"]))  # type: ignore[call-overload]
                return LabelSearchResult(None, math.inf, 0.0, labels > 9_000, labels)
            widths.append(width)
            return LabelSearchResult([0], 2.0 - width / 1e4, 0.0, False, 10 * width)

    dp, counted = Recorded(deep(2), 1e3), SolveClock(1.0, True, None)

    def look(labels: int) -> LabelSearchResult:
        widths.clear()
        return best_of_widths(dp, counted, ends=0.0, labels=labels)

    assert look(500).labels == 400 and widths == [40]  # time for one
    assert look(2_400).cost == 2.0 - 200 / 1e4 and widths == [40, 200]
    assert look(8_000).labels == 4_400 and widths == [40, 400]
    assert look(10_400).labels == 400 + 7_000 + 3_000 and widths == [40, 7_000, 300]  # and an exact search
    assert look(20_400).exact and widths == [40, 14_000]


def test_a_search_in_rising_widths_ends_once_one_is_exact() -> None:
    dp = FrontierDP(deep(12), 1e3)
    once = dp.search(40)
    assert once.exact
    found = best_of_widths(dp, SolveClock(9.0, False, None), ends=math.inf, labels=math.inf)
    assert (found.cost, found.labels, found.exact) == (once.cost, once.labels, True)


def test_what_was_given_up_as_a_whole_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class GivesUp(FrontierDP):
        def search(self, *args: object, **more: object) -> LabelSearchResult:
            sizes.append(len(self.rows))
            return LabelSearchResult(None, math.inf, 0.0, False, 0)

    monkeypatch.setattr(solving, "FrontierDP", GivesUp)
    monkeypatch.setattr(leaf_search, "FrontierDP", GivesUp)
    nodes: list[NodeSpec] = [(c, (), 1.0 + c % 2) for c in range(8)]
    nodes += [(8 + e, ((e * k + k) % 8,), 0.0) for e in range(14) for k in (1, 3, 5)]
    problem = Problem.build([*nodes, (22, tuple(range(8, 22)), 0.0)], [22])
    assert solve(problem).optimal and len(sizes) == len(set(sizes)) and sizes


@pytest.mark.parametrize("most", [1, 3, 11, 64, 65, 100])
def test_a_beam_finds_only_the_undominated_labels_that_it_keeps(most: int) -> None:
    rng = random.Random(most)
    for bits in (4, 8, 20):
        bucket: dict[int, Label] = {
            sum({1 << rng.randrange(bits) for _ in range(6)}): (rng.randrange(20), 0, None) for _ in range(300)
        }
        whole = list(undominated(bucket, module.MAX_EXACT_WIDTH).items())
        assert list(undominated(bucket, most).items()) == whole[:most]
