"""Patterns on views: every match, no other, none twice."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.patterns.pattern import build
from tensor_graphs.egraph.patterns.pattern_parser import parse_guard, parse_term
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.match import Matcher
from tensor_graphs.egraph.view.view import EGraphView, view_of

from ..fuzz.strategies import graphs


def find(view: EGraphView, pattern: str, *guards: str) -> list[tuple[int, dict[str, Any]]]:
    return list(Matcher(view).find(parse_term(pattern), [parse_guard(g) for g in guards]))


X, Y = t.input("x", (2, 3)), t.input("y", (2, 3))


def test_variables_bind_operands_in_order() -> None:
    graph = Graph.of(t.sub(X, Y))
    view = view_of(graph)
    ((cls, binding),) = find(view, "sub(a, b)")
    assert cls == view.roots[0] == view.classes[graph.outputs[0]]
    assert binding == {"a": view.classes[X], "b": view.classes[Y]}
    assert find(view, "add(a, b)") == [] and find(view, "a") == []


def test_a_repeated_variable_is_one_class() -> None:
    view = view_of(Graph.of([X * X, X * Y]))
    ((cls, binding),) = find(view, "mul(a, a)")
    assert (cls, binding) == (view.roots[0], {"a": view.classes[X]})
    assert len(find(view, "mul(a, b)")) == 2


def test_inner_patterns_look_into_classes() -> None:
    view = view_of(Graph.of(t.exp(X * Y) + t.tanh(X)))
    assert len(find(view, "add(exp(mul(a, b)), c)")) == 1
    assert find(view, "add(tanh(a), c)") == []
    assert find(view, "add(exp(mul(a, a)), c)") == []


def test_attributes_are_bound_compared_and_computed() -> None:
    view = view_of(
        Graph.of(
            [t.sum(X, 0, True), t.sum(X, 1, True), t.permute(t.permute(t.input("z", (2, 3, 4)), (2, 0, 1)), (2, 0, 1))]
        )
    )
    assert {b["@k"] for _, b in find(view, "sum(a, axes=k)")} == {(0,), (1,)}
    assert len(find(view, "sum(a, axes=(1,))")) == 1 and find(view, "sum(a, axes=(2,))") == []
    assert len(find(view, "permute(permute(a, perm=p), perm=p)")) == 1
    view = view_of(Graph.of(t.permute(t.permute(t.input("z", (2, 3, 4)), (2, 0, 1)), (0, 2, 1))))
    assert find(view, "permute(permute(a, perm=p), perm=p)") == []
    assert len(find(view, "permute(permute(a, perm=p), perm=q)")) == 1


def test_guards_see_types_and_weights() -> None:
    w = t.param("w", (2, 3))
    view = view_of(Graph.of([X + w, X + Y]))
    assert len(find(view, "add(a, b)", "weight(b)")) == 1
    assert find(view, "add(a, b)", "weight(a)") == []
    assert len(find(view, "add(a, b)", "rank(a) == 2")) == 2 and find(view, "add(a, b)", "rank(a) == 3") == []


@pytest.mark.parametrize(
    ("value", "dtype", "literal", "matches"),
    [(2.0, "float32", "2.0", True), (1.0000005, "float32", "1.0", False), (float(np.float32(0.044715)), "float32", "0.044715", True),
     (0.044715, "float32", "0.044715", True), (0.1, "float64", "0.1", True), (float(np.float32(0.1)), "float64", "0.1", False),
     (1.0009, "float16", "1.0", False), (1.0001, "float16", "1.0", True), (3, "int64", "3.0", True)],
)  # fmt: skip
def test_numbers_match_if_they_are_one_number_in_the_dtype(
    value: float, dtype: str, literal: str, matches: bool
) -> None:
    x = t.input("v", (2,), dtype)
    view = view_of(Graph.of(x * t.full((1,), value, dtype)))
    assert bool(find(view, f"mul(a, {literal})")) is matches


def test_matches_in_a_saturated_class_are_found_once() -> None:
    rules = [
        Rule("commute", "add(x, y)", "add(y, x)"),
        Rule("associate", "add(add(x, y), z)", "add(x, add(y, z))", both=True),
    ]
    z = t.input("z", (2, 3))
    view = saturate_block(Graph.of((X + Y) + z), rules, Limits(iterations=6), session=InProcess(), guard=False)
    found = [(c, *sorted(b.items())) for c, b in find(view, "add(a, add(b, c))")]
    assert len(found) == len(set(found)) == 6  # every order of three operands
    assert {c for c, *_ in found} == {view.roots[0]}


def naive(view: EGraphView, op: str) -> set[tuple[int, ...]]:
    """Matches of op(op2(a, b), c) over all pairs of binary e-nodes, the slow way."""
    rows = [(view.op[i], int(view.cls[i]), view.children(i).tolist()) for i in range(len(view))]
    outer = [r for r in rows if r[0] == op and len(r[2]) == 2]
    inner = [r for r in rows if r[0] == "mul"]
    return {(o[1], *i[2], o[2][1]) for o, i in product(outer, inner) if i[1] == o[2][0]}


@settings(deadline=None, max_examples=30)
@given(graphs(10, ops=("add", "mul", "sub", "maximum", "tanh")))
def test_all_matches_are_found(graph: Graph) -> None:
    view = view_of(graph)
    for op in ("add", "mul", "sub", "maximum"):
        found = find(view, f"{op}(mul(a, b), c)")
        assert {(c, b["a"], b["b"], b["c"]) for c, b in found} == naive(view, op)
        assert len(found) == len(naive(view, op))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 1e-45])
def test_numbers_come_back_from_the_text_of_a_kernel(value: float) -> None:
    x = t.input("x", (2,))
    term = parse_term(
        f"maximum(pad(x, axis=0, lo=0, hi=1, value={value}), full(value={value}, shape=(3,), dtype='float32'))"
    )
    for made in build(term, {"x": x}, {}).args:
        assert np.array_equal(made.attr("value"), value, equal_nan=True)
        assert np.signbit(made.attr("value")) == np.signbit(value)
    assert not np.isnan(value) or np.isnan(build(parse_term("x + nan"), {"x": x}, {}).args[1].attr("value"))
