"""The union of views of one graph holds all that each of them does, and nothing unsound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate import union as unions
from tensor_graphs.egraph.saturate.limit_steps import parts
from tensor_graphs.egraph.saturate.pruned_views import CostFilter
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block, saturate_blocks
from tensor_graphs.egraph.saturate.sessions import InProcess, OneSession
from tensor_graphs.egraph.saturate.term_cost import Roofline, node_prices
from tensor_graphs.egraph.saturate.union import saturate_in_stages, union
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.solve.problem import Problem
from tensor_graphs.extract.solve.solve import solve

from ..examples import examples
from ..fuzz.strategies import graphs
from .best_terms import best_terms
from .test_saturate import RULES, SAMPLES, assert_sound, everything, long_sum, qkv

WIDTHS = (Limits(iterations=2, beam=1), Limits(iterations=4, beam=2), Limits(iterations=3, beam=8, slack=9))


def embedding(small: EGraphView, large: EGraphView) -> list[int]:
    """For each class of one view the class of another that holds one of its e-nodes; -1 where none does."""

    def key(view: EGraphView, i: int, children: list[int]) -> tuple[object, ...]:
        return (view.tensors[i] if i in view.tensors else (view.op[i], view.attrs[i]), *children)

    table = {key(large, i, large.children(i).tolist()): c for i, c in enumerate(large.cls.tolist())}
    found = [-1] * small.n_classes
    grown = True
    while grown:
        grown = False
        for i, c in enumerate(small.cls.tolist()):
            children = [found[k] for k in small.children(i).tolist()]
            if found[c] < 0 and -1 not in children:
                found[c] = table.get(key(small, i, children), -1)
                grown |= found[c] >= 0
    return found


def missing(small: EGraphView, large: EGraphView) -> int:
    """E-nodes of one view that another one does not have."""
    of = embedding(small, large)
    have = {
        (large.tensors[i] if i in large.tensors else (large.op[i], large.attrs[i]), c, *large.children(i).tolist())
        for i, c in enumerate(large.cls.tolist())
    }
    return sum(
        (small.tensors[i] if i in small.tensors else (small.op[i], small.attrs[i]), of[c], *[of[k] for k in small.children(i).tolist()])
        not in have
        for i, c in enumerate(small.cls.tolist())
    )  # fmt: skip


@settings(deadline=None, max_examples=12)
@given(graphs())
def test_a_union_holds_every_view_and_is_sound(graph: Graph) -> None:
    views = [view_of(graph), *(saturate_block(graph, RULES, limits, session=InProcess()) for limits in WIDTHS)]
    whole = union(views)
    assert all(missing(v, whole) == 0 for v in views)
    assert len(whole) <= sum(map(len, views)) and whole.n_classes <= sum(v.n_classes for v in views)
    assert [whole.types[c] for c in whole.roots] == [r.type for r in graph.roots]
    assert all(whole.types[c] == t.type for t, c in whole.classes.items())
    assert_sound(graph, whole)


def test_rounds_are_nested_and_ages_say_when_a_class_came_up() -> None:
    views = [saturate_block(long_sum(5), RULES, Limits(iterations=i), session=InProcess()) for i in range(1, 7)]
    for i, small in enumerate(views, 1):
        for large in views[i:]:
            assert missing(small, large) == 0
            assert large.age is not None and small.age is not None
            assert all(large.age[k] <= small.age[c] for c, k in enumerate(embedding(small, large)))
    last = views[-1].age
    assert last is not None and set(last[list(views[-1].classes.values())]) == {0} and len(set(last.tolist())) > 3


def test_what_beams_do_not_share_is_kept() -> None:
    narrow, wide = (saturate_block(long_sum(5), RULES, Limits(beam=k), session=InProcess()) for k in (4, 16))
    assert missing(wide, narrow) > 0
    assert missing(narrow, union([narrow, wide])) == missing(wide, union([narrow, wide])) == 0


@pytest.fixture(scope="module")
def here() -> Iterator[list[Limits]]:
    """`saturate_in_stages` in this process; the limits that it asks for."""
    session, seen = OneSession(InProcess()), list[Limits]()

    def saturate(graphs: list[Graph], rules: object, limits: Limits, **options: Any) -> list[EGraphView]:
        seen.append(limits)
        return saturate_blocks(graphs, RULES, limits, pool=session, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unions, "saturate_blocks", saturate)
        yield seen


def test_more_effort_searches_more_and_keeps_all(here: list[Limits]) -> None:
    graphs = [qkv(), long_sum(5)]
    here.clear()
    stages = [saturate_in_stages(n, graphs, RULES, Limits(iterations=2, beam=1)) for n in range(4)]
    assert [len(s) for s in stages] == [1, 1, 2, 3]
    found = [s[-1] for s in stages]
    assert [limits.beam for limits in here] == [None, 4, 4, 8, 4, 8, 16]
    assert [limits.iterations for limits in here[-3:]] == [2, 6, 10] and here[0].iterations == 0
    for less, more in pairwise(found):
        assert all(missing(a, b) == 0 for a, b in zip(less, more))
    assert len(found[3][1]) > len(found[1][1]) > len(found[0][1])
    with pytest.raises(UsageError, match="effort=6"):
        saturate_in_stages(6, graphs, RULES, Limits())


def test_the_default_is_one_saturation_and_widths_are_steps() -> None:
    assert list(parts(Limits(), 1)) == [(Limits(beam=4), [])]
    assert [limits.beam for limits, _ in parts(Limits(beam=9), 1)] == [4, 8, 32]
    assert [limits.slack for limits, _ in parts(Limits(slack=4.5), 1)] == [3, 5]
    assert [limits.beam for limits, _ in parts(Limits(beam=0), 1)] == [4, 8, 32, 0]
    assert list(parts(Limits(beam=2, slack=1.5), 1)) == [
        (Limits(beam=4), [CostFilter(1, 1.5), CostFilter(2, 0), CostFilter(2, 1), CostFilter(2, 1.5)])
    ]
    assert list(parts(Limits(slack=99), 1)) == list(parts(Limits(beam=0), 1))


WIDER = st.tuples(st.sampled_from((1, 2, 3, 4, 5, 8, 0)), st.sampled_from((0, 0.5, 2, 3, 4)), st.integers(1, 4))


@settings(deadline=None, max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(graphs(steps=6), WIDER, WIDER)
def test_more_beam_slack_and_rounds_never_cost_quality(
    here: list[Limits], graph: Graph, one: tuple[int, float, int], other: tuple[int, float, int]
) -> None:
    beams = sorted((one[0], other[0]), key=lambda k: k or 99)
    less, more = (
        saturate_in_stages(1, [graph], RULES, Limits(beam=k, slack=s, iterations=n))[-1][0]
        for k, s, n in zip(beams, *map(sorted, zip(one[1:], other[1:])))
    )
    assert missing(less, more) == 0 and less.extractable()
    assert_sound(graph, more)
    assert cost(more) <= cost(less) * (1 + 1e-9)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_width_is_part_of_the_next(here: list[Limits], name: str) -> None:
    def found(**limits: Any) -> EGraphView:
        return saturate_in_stages(1, [SAMPLES[name]], RULES, Limits(iterations=3, **limits))[-1][0]

    for widths in ([found(beam=k) for k in (1, 3, 4, 6, 0)], [found(slack=s) for s in (0, 2.9, 3, 4)]):
        assert len(widths[0]) < len(widths[-1])
        for less, more in pairwise(widths):
            assert missing(less, more) == 0 and cost(more) <= cost(less)


def cost(view: EGraphView) -> float:
    """The least cost of a plan at stated prices."""
    rows = zip(view.cls.tolist(), (view.children(i).tolist() for i in range(len(view))), node_prices(view, Roofline()))
    found = solve(Problem.build(rows, view.roots, n_classes=view.n_classes), time_limit=300.0)
    assert found.optimal
    return found.cost


def test_views_know_which_e_nodes_the_graph_has() -> None:
    graph = long_sum(4)
    for view in (
        view_of(graph),
        saturate_block(graph, RULES, Limits(iterations=3), session=InProcess()),
        union([saturate_block(graph, RULES, Limits(iterations=n), session=InProcess()) for n in (1, 2)]),
    ):
        assert view.original_nodes is not None and view.original_nodes.sum() == len(graph.nodes())
        alone = view.only(view.original_nodes)
        assert len(alone) == len(graph.nodes()) and alone.roots == view.roots and alone.n_classes == view.n_classes
        assert [str(t) for t in best_terms(alone)] == [str(r) for r in graph.roots]


def test_slack_is_a_limit() -> None:
    launch = Roofline().launch
    for n in (0, 9):
        one = saturate_block(long_sum(4), RULES, Limits(slack=n), session=InProcess())
        same = saturate_block(long_sum(4), RULES, Limits(), slack=n * launch, session=InProcess())
        assert everything(one) == everything(same)
    with pytest.raises(UsageError, match="slack"):
        Limits(slack=-1)
