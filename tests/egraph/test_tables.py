"""Graphs as e-graph tables and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import LEAVES
from tensor_graphs.egraph.saturate.decoding import decode
from tensor_graphs.egraph.saturate.engine import Engine
from tensor_graphs.egraph.saturate.program import make_program
from tensor_graphs.egraph.saturate.tables import LoweredGraph, lower, with_parts
from tensor_graphs.egraph.saturate.term_cost import Roofline
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.egraph.view.view import EGraphView
from tensor_graphs.errors import ShapeError

from ..examples import examples
from ..fuzz.strategies import ANY, graphs
from .best_terms import best_terms


def _loaded(graph: Graph) -> tuple[LoweredGraph, EGraphView]:
    program = make_program([graph], (), Roofline(), 0)
    lowered, engine = program.lower(graph), Engine()
    engine.declare(program.declaration)
    engine.start(program.job(lowered, 100_000))
    header, arrays = engine.view()
    dims = [*lowered.dims, *map(tuple, header["new_dims"])]
    return lowered, decode(lowered, dims, header["names"], arrays)


@settings(deadline=None, max_examples=examples(30))
@given(graphs(kinds=ANY))
def test_a_graph_comes_back_unchanged(graph: Graph) -> None:
    _, view = _loaded(graph)
    assert best_terms(view) == list(graph.roots)  # hash-consed: equal means the same nodes


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
    back = best_terms(_loaded(graph)[1])
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


def test_every_composite_has_the_type_of_its_parts() -> None:
    x, g = t.input("x", (2, 3, 4)), t.param("g", (4,))
    image = t.input("i", (1, 2, 6, 6))
    window = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    found = [c.softmax(x, axis=1), c.layer_norm(x, g, g, eps=1e-5), c.rms_norm(x, g, eps=1e-6), t.mean(x, 1, True),
             c.attention(x, x, x, scale=0.5), c.max_pool(image, **window), c.linear(x, t.param("w", (4, 5)), t.param("b", (5,)))]  # fmt: skip
    graph = Graph.of([*found, c.gelu(x)])
    nodes, pairs = with_parts(graph)
    assert nodes[: len(graph.nodes())] == graph.nodes() and len(set(nodes)) == len(nodes)
    assert {a for a, _ in pairs} >= set(found) and all(a.type == b.type for a, b in pairs)
    assert all(n.op != "erf" for n in nodes)
    place = {n: i for i, n in enumerate(nodes)}
    assert all(place[a] < place[n] for n in nodes for a in n.args)  # operands first: tree costs rely on it
