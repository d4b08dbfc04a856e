"""Causal masks in their one spelling: whatever a model writes, the values stay, and rules see one form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.simplify.masks import canonical_masks
from tensor_graphs.egraph.simplify.simplify import simplify
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
    assert found.roots[0] is first.roots[0]


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
    assert graph.roots[0] is not causal.roots[0]
    x = np.random.default_rng(0).standard_normal((2, N, N)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], evaluate(scores(hidden), {"x": x})[0])


WINDOW = t.logical_or(t.gt(COLUMN, ROW), t.le(COLUMN, ROW - 3))
#: Masks that are no causal ones but have a spelling: a window, one to both sides, one of fewer rows than columns, the
#: last columns.
BANDS: dict[str, tuple[Tensor, Tensor]] = {
    "window": (WINDOW, t.logical_not(t.logical_and(t.le(COLUMN, ROW), t.lt(ROW - COLUMN, t.full((1, 1), 3, "int64"))))),
    "both sides": (t.logical_or(t.gt(COLUMN, ROW + 1), t.lt(COLUMN, ROW - 2)), t.logical_not(t.logical_and(t.ge(COLUMN - ROW, -2), t.lt(COLUMN - ROW, t.full((1, 1), 2, "int64"))))),
    "behind": (t.lt(COLUMN, ROW - 1), t.logical_not(t.le(ROW - 1, COLUMN))),
    "last columns": (t.gt(COLUMN + ROW * 0, 3), t.logical_not(t.le(COLUMN, ROW * 0 + 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", BANDS)
def test_bands_have_one_spelling_too(name: str) -> None:
    one, other = (canonical_masks(scores(h)) for h in BANDS[name])
    assert one.roots[0] is other.roots[0]
    assert not any(n.op in ("constant", "not") for n in topological(one.roots))
    x = np.random.default_rng(0).standard_normal((2, N, N)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(one, {"x": x})[0], evaluate(scores(BANDS[name][0]), {"x": x})[0])


def _sunk(scores: Tensor) -> Tensor:
    beside = t.concat([scores, t.input("sink", (2, N, 1))], axis=2)
    return beside - t.max(beside, axis=2, keepdims=True)


LOWEST = float(np.finfo(np.float32).min)
FULL, ZERO = (t.full((1, 1, 1), value) for value in (LOWEST, 0.0))
#: Ways to hide scores by a number.
HIDES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "chosen": lambda x, h: t.where(h, FULL, x),
    "chosen where seen": lambda x, h: t.where(t.logical_not(h), x, FULL),
    "added": lambda x, h: x + t.where(h, FULL, ZERO),
    "a product": lambda x, h: x + t.cast(h, "float32") * -1e9,
    "with a sink": lambda x, h: _sunk(t.where(h, FULL, x)),
    "16 bits": lambda x, h: t.cast(t.cast(x, "float16") + t.where(h, t.full((1, 1, 1), -65504.0, "float16"), t.full((1, 1, 1), 0.0, "float16")), "float32"),
}  # fmt: skip


def infinities(graph: Graph) -> int:
    return sum(n.op == "full" and n.attr("value") == float("-inf") for n in topological(graph.roots))


@pytest.mark.parametrize("name", HIDES)
@pytest.mark.parametrize("mask", ["window", "both sides", "last columns"])
def test_a_number_that_hides_is_infinite_where_every_row_sees_something(name: str, mask: str) -> None:
    x = t.input("x", (2, N, N))
    graph = Graph.of(c.softmax(HIDES[name](x, t.reshape(BANDS[mask][0], (1, N, N))), axis=2))
    found = canonical_masks(graph)
    assert infinities(found) == 1
    assert not infinities(canonical_masks(graph, steady=True))
    given = {
        n: 9 * np.random.default_rng(0).standard_normal((2, N, k)).astype(np.float32)
        for n, k in (("x", N), ("sink", 1))
    }
    given = {n: given[n] for n in (str(x.attr("name")) for x in graph.inputs)}
    np.testing.assert_array_equal(evaluate(found, given)[0], evaluate(graph, given)[0])


@pytest.mark.parametrize("batched", [lambda h: t.broadcast_to(h, (2, N, N)), lambda h: t.logical_and(h, t.le(t.iota((2, 1, 1), 0), t.full((1, 1, 1), 9, "int64")))],
                         ids=["spread", "computed for each"])  # fmt: skip
def test_a_mask_said_for_each_batch_is_one(batched: Callable[[Tensor], Tensor]) -> None:
    x, hidden = t.input("x", (2, N, N)), batched(t.reshape(WINDOW, (1, N, N)))
    for made in (t.where(hidden, FULL, x), x + t.where(hidden, FULL, ZERO)):
        found = canonical_masks(Graph.of(c.softmax(made, axis=2)))
        assert infinities(found) == 1
        assert any(n.op == "or" and n.shape == (N, N) for n in topological(found.roots))


@pytest.mark.parametrize("name", HIDES)
def test_a_number_that_hides_stays_where_a_row_sees_nothing(name: str) -> None:
    x, hidden = t.input("x", (2, N, N)), t.logical_or(t.gt(COLUMN, ROW), t.eq(ROW, 2))
    graph = canonical_masks(Graph.of(c.softmax(HIDES[name](x, t.reshape(hidden, (1, N, N))), axis=2)))
    assert not infinities(graph)


def test_a_small_number_or_one_that_an_input_chooses_hides_nothing() -> None:
    x, given = t.input("x", (2, N, N)), t.input("hidden", (1, N, N), "bool")
    for masked in (t.where(given, FULL, x), t.where(t.reshape(WINDOW, (1, N, N)), t.full((1, 1, 1), -100.0), x)):
        assert not infinities(canonical_masks(Graph.of(c.softmax(masked, axis=2))))


def test_causal_masks_hide_at_every_size_and_windows_do_not() -> None:
    x = t.input("x", (2, N, N))
    for hidden, count in ((t.gt(COLUMN, ROW), 1), (WINDOW, 0)):
        masked = t.where(t.reshape(hidden, (1, N, N)), FULL, x)
        assert infinities(canonical_masks(Graph.of(c.softmax(masked, axis=2)), steady=True)) == count


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
    view = saturate_block(graph, ALL, Limits(nodes=2000, iterations=8, seconds=300), session=InProcess())
    causal = [dict(view.attrs[n]) for n in view.nodes_of(view.roots[0]) if view.op[n] == "attention"]
    assert any(a["causal"] and a["scale"] == pytest.approx(0.5) for a in causal)
