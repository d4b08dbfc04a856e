"""Graphs as tables and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import graphs

from tensor_graphs.egraph import api as t
from tensor_graphs.egraph.dims import dim
from tensor_graphs.egraph.engine import Engine
from tensor_graphs.egraph.graph import LEAVES, Graph
from tensor_graphs.egraph.lower import Lowered, lower
from tensor_graphs.egraph.pricing import Roofline
from tensor_graphs.egraph.program import make_program
from tensor_graphs.egraph.saturate import decode
from tensor_graphs.egraph.view import EGraphView
from tensor_graphs.errors import ShapeError


def _loaded(graph: Graph) -> tuple[Lowered, EGraphView]:
    program = make_program([graph], (), Roofline(), 0)
    lowered, engine = program.lower(graph), Engine()
    engine.declare(program.declaration)
    engine.start(program.job(lowered, 100_000))
    header, arrays = engine.view()
    dims = [*lowered.dims, *map(tuple, header["new_dims"])]
    return lowered, decode(lowered, dims, header["names"], arrays)


@settings(deadline=None, max_examples=30)
@given(graphs())
def test_a_graph_comes_back_unchanged(graph: Graph) -> None:
    _, view = _loaded(graph)
    assert view.best_terms() == list(graph.roots)  # hash-consed: equal means the same nodes


def test_every_node_is_in_one_table() -> None:
    x = t.input("x", (2, 3))
    graph = Graph.of(t.tanh(x) @ t.param("w", (3, 4)) + t.constant(np.ones((1, 4), np.float32)) * 2.0)
    lowered = lower(graph)
    assert sum(map(len, lowered.rows.values())) + len(lowered.leaves) == len(graph.nodes())
    assert all(n.op in LEAVES for n in (lowered.nodes[i] for i in lowered.leaves))
    assert {lowered.nodes[w].op for w in lowered.weights} == {"param", "constant", "full", "mul"}
    assert lowered.roots == (len(graph.nodes()) - 1,)


def test_special_values_survive() -> None:
    x = t.input("x", (2,))
    values = (0.0, -0.0, float("inf"), float("nan"), 1e-300, 3)
    graph = Graph.of([t.maximum(x, t.full((1,), v)) for v in values])
    back = _loaded(graph)[1].best_terms()
    assert [b is g for b, g in zip(back, graph.roots)] == [True] * len(values)


def test_free_and_empty_sizes_are_errors() -> None:
    with pytest.raises(ShapeError, match="free dimensions"):
        lower(Graph.of(t.tanh(t.input("x", (dim("n"), 3)))))
    with pytest.raises(ShapeError, match="empty"):
        lower(Graph.of(t.tanh(t.input("x", (0, 3)))))


def test_ten_thousand_nodes_load() -> None:
    x = t.input("x", (4, 4))
    for i in range(5000):
        x = t.tanh(x) + t.full((1, 1), float(i))
    graph = Graph.of(x)
    view = _loaded(graph)[1]
    assert len(view) == len(graph.nodes()) == 15001
