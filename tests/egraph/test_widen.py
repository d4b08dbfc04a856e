"""A 16-bit model becomes a float32 graph of the same meaning, with casts at its edges only."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.simplify.widen import widen
from tensor_graphs.egraph.types.dtypes import HALVES, numpy_dtype


def layer(dtype: str) -> Graph:
    """Embedding, a norm in float32 between 16-bit products, a mask from integers, a cache."""
    ids = t.input("ids", (2, 3), "int64")
    x = t.gather(t.param("embed", (9, 4), dtype), ids) * t.full((1, 1, 1), 2.0, dtype)
    wide = t.cast(x, "float32")
    normed = t.cast(c.rms_norm(wide, t.cast(t.param("g", (4,), dtype), "float32"), eps=1e-6), dtype)
    q = t.cast(normed, "float32") @ t.cast(t.param("w", (4, 4), dtype), "float32")
    mask = t.cast(t.iota((3, 3), 1) <= t.iota((3, 3), 0), dtype)
    scores = c.softmax(t.cast(q, dtype) @ t.transpose(normed) * mask, axis=2)
    cache = t.state("cache", (2, 3, 4), dtype)
    exact = t.cast(t.cast(scores, "float64") * 2.0, "float32")
    whole = t.cast(scores * 10.0, "int32")
    return Graph.of([scores @ normed, exact, whole, cache], updates={"cache": cache + normed})


def data(dtype: str) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    params = {n: rng.uniform(0.5, 1.5, s).astype(kind) for n, s in (("embed", (9, 4)), ("g", (4,)), ("w", (4, 4)))}
    return {"ids": rng.integers(0, 9, (2, 3)), "cache": rng.uniform(0, 1, (2, 3, 4)).astype(kind)}, params


@pytest.mark.parametrize("dtype", HALVES)
def test_the_meaning_in_float64_is_the_same(dtype: str) -> None:
    graph, (inputs, params) = layer(dtype), data(dtype)
    wide = widen(graph)
    assert [r.type for r in wide.roots] == [r.type for r in graph.roots]
    for before, after in zip(evaluate(graph, inputs, params=params, float64=True),
                             evaluate(wide, inputs, params=params, float64=True), strict=True):  # fmt: skip
        np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_are_at_the_edges_only(dtype: str) -> None:
    wide = widen(layer(dtype))
    edge = set(wide.roots)
    for node in wide.nodes():
        if node.op == "cast" and dtype in (node.dtype, node.args[0].dtype):
            assert node in edge or node.args[0].is_leaf or node.args[0].op == "gather"
        elif node.dtype in HALVES:
            assert node.is_leaf or node.op == "gather"
    assert {n.op for n in wide.nodes()} >= {"rms_norm", "softmax", "state"}


def test_a_table_is_gathered_before_it_is_cast() -> None:
    (gather,) = [n for n in widen(layer("bfloat16")).nodes() if n.op == "gather"]
    assert gather.args[0].op == "param" and gather.dtype == "bfloat16"


def test_other_casts_stay() -> None:
    wide = widen(layer("float16"))
    kinds = {(n.args[0].dtype, n.dtype) for n in wide.nodes() if n.op == "cast"}
    assert {("float32", "float64"), ("float64", "float32"), ("float32", "int32"), ("bool", "float32")} <= kinds


def test_a_float32_graph_is_left_alone_and_widening_ends() -> None:
    x = t.input("x", (2,))
    graph = Graph.of(t.cast(t.cast(x, "float64"), "float32"))
    assert widen(graph) is graph
    wide = widen(layer("bfloat16"))
    assert widen(wide).roots == wide.roots
    assert simplify(widen(simplify(wide))).roots == simplify(wide).roots


def test_roundings_of_a_float32_model_stay_where_they_are_asked_for() -> None:
    x, w = t.input("x", (2, 4)), t.param("w", (4, 4))
    product = t.cast(x, "bfloat16") @ t.cast(w, "bfloat16")
    graph = Graph.of([t.cast(product * 2.0, "float32") + x])
    assert not any(n.dtype in HALVES for n in widen(graph).nodes())
    wide = widen(graph, rounds=True)
    assert [n.args[0] for n in wide.nodes() if n.dtype in HALVES] == [x, w] and wide.roots[0].op == "add"
    assert widen(layer("bfloat16"), rounds=True).roots == widen(layer("bfloat16")).roots  # leaves say it already


def test_a_leaf_that_is_returned_is_returned() -> None:
    x = t.input("x", (2,), "bfloat16")
    assert widen(Graph.of([x, x + x])).outputs[0] is x


def test_a_cache_is_written_in_its_own_dtype() -> None:
    """A write of elements computes nothing: the state stays 16-bit, only the new elements are converted."""
    cache, new = t.state("cache", (2, 8, 4), "bfloat16"), t.input("x", (2, 1, 4), "bfloat16") * 2.0
    written = t.scatter_elements(cache, t.input("at", (2, 1, 4), "int64"), new, 1)
    wide = widen(Graph.of([c.softmax(written, axis=2)], updates={"cache": written}), in_place=True)
    assert wide.roots[1].op == "scatter_elements" and wide.roots[1].args[0] is cache
    assert next(n.type.shape for n in wide.nodes() if n.op == "cast" and n.dtype == "bfloat16") == (2, 1, 4)
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=(2, 1, 4)), "at": rng.integers(0, 8, (2, 1, 4)), "cache": rng.normal(size=(2, 8, 4))}
    before = Graph.of([c.softmax(written, axis=2)], updates={"cache": written})
    for a, b in zip(evaluate(before, values, float64=True), evaluate(wide, values, float64=True)):
        assert np.array_equal(a, b)
