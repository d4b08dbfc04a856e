"""The read-only view: terms, costs, forms of output, and one view of the whole model."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block, saturate_blocks
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.joined_view import join_blocks, merged
from tensor_graphs.egraph.view.saturation_report import SaturationReport
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.errors import ExtractionError

from ..examples import examples
from ..fuzz.strategies import ANY, data, graphs
from .best_terms import best_terms
from .plans import dag_cost

RULES = (
    Rule("add-commutes", "x + y", "y + x", exact=True),
    Rule("matmul-sum", "x @ y + x @ z", "x @ (y + z)", both=True, when=("shape(y) == shape(z)",)),
    Rule(
        "softmax", "softmax(x, axis=i)", "div(exp(x - max(x, axes=(i,))), sum(exp(x - max(x, axes=(i,))), axes=(i,)))"
    ),
    Rule("one", "x * 1.0", "x", exact=True),
)


class _Inline:
    """A pool of one session in this process."""

    size = 1

    def __init__(self) -> None:
        self.one = InProcess()

    def session(self) -> AbstractContextManager[InProcess]:
        return nullcontext(self.one)


def model(layers: int = 4, width: int = 8) -> Graph:
    """A residual stack that shares a mask, a scaled weight and a constant between its layers."""
    x, mask = t.input("x", (6, width)), t.input("mask", (6, 6))
    shared = t.param("shared", (width, width)) * 0.5
    table = t.constant(np.linspace(0, 1, 6 * width, dtype=np.float32).reshape(6, width))
    for i in range(layers):
        q, k = x @ t.param(f"q{i}", (width, width)), x @ shared
        scores = c.softmax(q @ t.transpose(k) + mask, axis=1)
        x = x + scores @ (x @ t.param(f"v{i}", (width, width)))
        x = x + t.tanh(x * table) @ t.param(f"m{i}", (width, width))
    return Graph.of({"y": x, "side": x * 1.0})


def joined(graph: Graph) -> EGraphView:
    blocks = find_blocks(graph, max_nodes=24)
    views = saturate_blocks([b.graph for b in blocks.unique], RULES, Limits(iterations=4), pool=_Inline())
    return join_blocks(blocks, views)


# ---------------------------------------------------------------- one view
@settings(deadline=None, max_examples=40)
@given(graphs(kinds=ANY))
def test_a_graph_is_its_own_view(graph: Graph) -> None:
    view = view_of(graph)
    assert best_terms(view) == list(graph.roots) and view.extractable()
    assert len(view) == view.n_classes == len(graph.nodes())
    assert [view.types[view.classes[n]] for n in graph.nodes()] == [n.type for n in graph.nodes()]


def test_nodes_of_a_class_partition_the_nodes() -> None:
    view = saturate_block(model(1), RULES, Limits(iterations=3), session=InProcess())
    found = sorted(i for k in range(view.n_classes) for i in view.nodes_of(k).tolist())
    assert found == list(range(len(view)))
    assert all(view.cls[i] == k for k in range(view.n_classes) for i in view.nodes_of(k).tolist())


def test_cheapest_takes_the_cheaper_form_and_counts_shared_work_once() -> None:
    x, a, b = t.input("x", (2, 3)), t.param("a", (3, 4)), t.param("b", (3, 4))
    graph = Graph.of(x @ a + x @ b)
    view = saturate_block(graph, RULES, session=InProcess())
    price = [10.0 if op == "matmul" else 1.0 for op in view.op]
    cost, choice = view.cheapest(price)
    best = view.term(choice, view.roots[0])
    assert best is x @ (a + b) or best is x @ (b + a)
    assert cost[view.roots[0]] == 10 + 1 + (1 + 1 + 1)  # the product, x, and the sum of two weights
    assert dag_cost(view, price, choice) == 10 + 1  # weights are folded at load
    twice = view_of(Graph.of(t.tanh(x) + t.tanh(x)))
    assert dag_cost(twice, [1.0] * len(twice), twice.cheapest([1.0] * len(twice))[1]) == 3


def test_a_choice_with_a_cycle_or_a_gap_is_an_error() -> None:
    view = saturate_block(Graph.of(t.input("x", (2,)) * 1.0), RULES, session=InProcess())
    root = view.roots[0]
    loop = next(i for i in view.nodes_of(root).tolist() if view.op[i] == "mul")
    with pytest.raises(ExtractionError, match="cycle"):
        view.term(
            {root: loop, **{int(k): int(view.nodes_of(int(k))[0]) for k in view.children(loop) if k != root}}, root
        )
    with pytest.raises(ExtractionError, match="no chosen"):
        view.term({}, root)


def test_json_names_every_child_and_root() -> None:
    view = saturate_block(model(1), RULES, Limits(iterations=2), session=InProcess())
    data = json.loads(view.dumps([2.5] * len(view)))
    nodes = data["nodes"]
    assert len(nodes) == len(view)
    classes = {n["eclass"] for n in nodes.values()}
    assert set(data["root_eclasses"]) <= classes == set(data["class_data"])
    for i, node in enumerate(nodes.values()):
        assert set(node) == {"op", "children", "eclass", "cost"} and node["cost"] == 2.5
        assert [nodes[k]["eclass"] for k in node["children"]] == [f"c{k}" for k in view.children(i).tolist()]


def test_html_is_paged_and_escaped() -> None:
    x = t.input("<b>", (2,))
    view = view_of(Graph.of(t.tanh(t.exp(x))))
    first, last = view.html(0, per_page=2), view.html(1, per_page=2)
    assert "page 1 of 2" in first and "page 2 of 2" in last and "root" in first
    assert "<b>" not in first + last and "&lt;b&gt;" in first + last
    assert view._repr_html_() == view.html()


# ---------------------------------------------------------------- the whole model
def test_values_inside_repeated_blocks_are_the_models_own() -> None:
    x = t.input("x", (4, 8))
    for i in range(6):
        x = t.tanh(t.exp(x @ t.param(f"w{i}", (8, 8))) + 1.0) + x
    blocks = find_blocks(Graph.of(x))
    assert len(blocks.instances) > len(blocks.unique)
    plain = join_blocks(blocks, [view_of(b.graph) for b in blocks.unique])
    assert plain.original_classes.all()
    rules = [Rule("commute", "add(x, y)", "add(y, x)"), Rule("shift", "tanh(x)", "neg(tanh(neg(x)))")]
    view = join_blocks(
        blocks, saturate_blocks([b.graph for b in blocks.unique], rules, Limits(iterations=3), guard=False)
    )
    assert view.n_classes > view.original_classes.sum() == plain.n_classes


def test_the_glued_view_computes_the_model() -> None:
    graph = model()
    view = joined(graph)
    assert len(find_blocks(graph, max_nodes=24).instances) > 1
    values, params = data(graph)
    expected = evaluate(graph, values, params=params, float64=True)
    rng = np.random.default_rng(0)
    for _ in range(5):  # other prices, other forms
        weights = rng.uniform(0.5, 2.0, len(view))
        found = best_terms(view, lambda i, w=weights: float(w[i]))  # type: ignore[misc]
        for a, b in zip(expected, evaluate(found, values, params=params, float64=True)):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=examples(25))
@given(graphs(steps=14))
def test_joining_random_graphs_keeps_roots_types_and_values(graph: Graph) -> None:
    blocks = find_blocks(graph, max_nodes=4)
    views = saturate_blocks([b.graph for b in blocks.unique], RULES, Limits(iterations=2), pool=_Inline())
    view = join_blocks(blocks, views)
    assert view.extractable()
    assert [view.types[r] for r in view.roots] == [r.type for r in graph.roots]
    assert [view.classes[r] for r in graph.roots] == list(view.roots)
    assert view.off[-1] == len(view.child) and len(view.off) == len(view) + 1
    of: dict[tuple[object, ...], int] = {}  # e-node -> its only e-class, also where two blocks have it
    for i, own in enumerate(view.cls.tolist()):
        assert of.setdefault((view.label(i), *view.children(i).tolist()), own) == own
    values, params = data(graph)
    with np.errstate(all="ignore"):
        a = evaluate(graph, values, params=params, float64=True)
        b = evaluate(best_terms(view), values, params=params, float64=True)
    for p, q in zip(a, b):
        np.testing.assert_allclose(q, p, rtol=1e-9, atol=1e-9)


def test_equal_leaves_are_one_class_and_weights_stay_weights() -> None:
    graph = model()
    view = joined(graph)
    leaves = list(view.tensors.values())
    assert len(leaves) == len(set(leaves)) or all(n.op == "constant" for n in leaves if sum(n is m for m in leaves) > 1)
    for node, place in view.classes.items():
        weight = not any(n.op == "input" for n in Graph.of(node).nodes())
        assert bool(view.weight[place]) == weight
    by_value: dict[Tensor, set[int]] = {}
    for i, leaf in view.tensors.items():
        by_value.setdefault(leaf, set()).add(int(view.cls[i]))
    assert all(len(places) == 1 for places in by_value.values())


def test_rewrites_of_a_block_reach_every_instance() -> None:
    graph = model(4)
    sums = sum(n.op == "add" for n in graph.nodes())
    view = joined(graph)
    assert sum(op == "add" for op in view.op) == 2 * sums  # every sum also with its operands swapped
    assert sum(op == "div" for op in view.op) == sum(op == "softmax" for op in view.op) == 4  # softmax and its parts


def test_joining_unsaturated_blocks_is_the_graph() -> None:
    graph = model(3)
    blocks = find_blocks(graph, max_nodes=24)
    view = join_blocks(blocks, [view_of(b.graph) for b in blocks.unique])
    assert best_terms(view) == list(graph.roots)


def test_the_worst_reason_wins_when_reports_are_merged() -> None:
    view = view_of(Graph.of(t.input("x", (1,))))
    one = SaturationReport("nodes", 3, (1, 5, 9), {"a": 2}, {"a": 0.5}, 1.0, 2)
    two = SaturationReport("worker-died", 1, (2, 4), {"a": 1, "b": 7}, {"b": 0.25}, 2.0, 1, True, "gone")
    both = merged([replace(view, report=one), replace(view, report=two)])
    assert (both.stopped, both.iterations, both.sizes) == ("worker-died", 3, (3, 9, 13))
    assert (both.matches, both.seconds, both.message) == ({"a": 3, "b": 7}, 3.0, "gone")
    assert merged([]).stopped == "saturated"
