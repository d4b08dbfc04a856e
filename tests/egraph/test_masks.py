"""Causal masks in their one spelling: whatever a model writes, the values stay, and rules see one form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs.egraph.api as t
from tensor_graphs.egraph import composite as c
from tensor_graphs.egraph.graph import Graph, Tensor
from tensor_graphs.egraph.interpret import evaluate
from tensor_graphs.egraph.masks import canonical_masks
from tensor_graphs.egraph.saturate import InProcess, Limits, saturate_block
from tensor_graphs.egraph.simplify import simplify
from tensor_graphs.rules import ALL

N = 6
ROW, COLUMN = t.iota((N, N), 0), t.iota((N, N), 1)

#: Ways to say what lies ahead of the diagonal.
HIDDEN: dict[str, Callable[[], Tensor]] = {
    "column > row": lambda: t.gt(COLUMN, ROW),
    "row < column": lambda: t.lt(ROW, COLUMN),
    "not (column <= row)": lambda: t.logical_not(t.le(COLUMN, ROW)),
    "difference": lambda: t.le(t.full((1, 1), 1, "int64"), COLUMN - ROW),
    "zeros of tril": lambda: t.eq(t.where(t.le(COLUMN, ROW), t.full((1, 1), 1.0), t.full((1, 1), 0.0)), t.full((1, 1), 0.0)),
    "a stored table": lambda: t.constant(np.triu(np.ones((N, N), bool), 1)),
}  # fmt: skip


def scores(hidden: Tensor) -> Graph:
    x = t.input("x", (2, N, N))
    return Graph.of(t.where(t.reshape(hidden, (1, N, N)), t.full((1, 1, 1), float("-inf")), x))


@pytest.mark.parametrize("name", HIDDEN)
def test_every_spelling_becomes_the_same(name: str) -> None:
    first = canonical_masks(simplify(scores(HIDDEN["column > row"]())))
    found = canonical_masks(simplify(scores(HIDDEN[name]())))
    assert found.roots[0].args[0] is first.roots[0].args[0]


@pytest.mark.parametrize("name", HIDDEN)
def test_values_stay(name: str) -> None:
    graph = scores(HIDDEN[name]())
    x = np.random.default_rng(0).standard_normal((2, N, N)).astype(np.float32)
    want, got = (evaluate(g, {"x": x})[0] for g in (graph, canonical_masks(graph)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "hidden",
    [t.gt(ROW, COLUMN), t.gt(COLUMN - ROW, 2), t.le(COLUMN, ROW), t.eq(COLUMN, ROW), t.logical_or(t.gt(COLUMN, ROW), t.eq(COLUMN, 0))],
    ids=["what lies behind", "another diagonal", "the complement", "the diagonal", "more than that"],
)  # fmt: skip
def test_other_masks_are_not_that_one(hidden: Tensor) -> None:
    causal = canonical_masks(scores(HIDDEN["column > row"]()))
    graph = canonical_masks(scores(hidden))
    assert graph.roots[0].args[0] is not causal.roots[0].args[0]
    x = np.random.default_rng(0).standard_normal((2, N, N)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], evaluate(scores(hidden), {"x": x})[0])


def test_masks_that_depend_on_an_input_are_left_alone() -> None:
    hidden = t.gt(COLUMN, t.input("offset", (1, 1), "int64"))
    graph = scores(hidden)
    assert canonical_masks(graph) is graph


@pytest.mark.parametrize("name", ["column > row", "zeros of tril"])
def test_attention_behind_a_written_mask_is_known_to_be_causal(name: str) -> None:
    q, k, v = (t.input(n, (2, 3, N, 4)) for n in "qkv")
    masked = t.where(
        t.reshape(HIDDEN[name](), (1, 1, N, N)),
        t.full((1, 1, 1, 1), float("-inf")),
        t.matmul(q, t.transpose(k)) * 0.5,
    )
    graph = canonical_masks(simplify(Graph.of(t.matmul(c.softmax(masked, axis=3), v))))
    view = saturate_block(graph, ALL, Limits(nodes=2000, iterations=8, seconds=20), session=InProcess())
    causal = [dict(view.attrs[n]) for n in view.nodes_of(view.roots[0]) if view.op[n] == "attention"]
    assert any(a["causal"] and a["scale"] == pytest.approx(0.5) for a in causal)
