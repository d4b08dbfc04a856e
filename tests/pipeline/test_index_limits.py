"""Indices outside of an axis are refused where the model's own call refuses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.runtime.computed_indices import ComputedIndices, computed_check
from tensor_graphs.backends.runtime.index_limits import IndexLimit, index_check
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import BadModelError, IndexRangeError, UsageError
from tensor_graphs.models.functions.trace import trace
from tensor_graphs.pipeline.sources.index_limits import index_limits

TABLE = np.arange(20.0, dtype=np.float32).reshape(10, 2)
INDEX = np.array([1, 7, 3])


def program(source: Any, *examples: Any) -> Any:
    return tg.optimize(source, examples, budget=1.0, backend="numpy", measure=False, allow_caller=False)


@pytest.mark.parametrize("wrong", [10, -11])
def test_an_index_outside_of_the_axis_is_an_error(tmp_path: Path, wrong: int) -> None:
    made = program(lambda t, i: t[i] * 2, TABLE, INDEX)
    made.save(tmp_path / "saved")
    for called in (made, tg.load_program(tmp_path / "saved")):
        assert np.array_equal(called(TABLE, [1, -10, 9]), TABLE[[1, -10, 9]] * 2)
        with pytest.raises(IndexRangeError, match=rf"'i' has the index {wrong}, .* 10 elements"):
            called(TABLE, np.array([0, wrong, 1]))
        with pytest.raises(IndexError):
            called(TABLE, i=np.array([0, wrong, 1]))


def test_lists_and_fixed_arguments_are_no_indices_of_another_input() -> None:
    made = program(lambda n, i, t: t[i] * n, 100, INDEX, TABLE)
    assert np.array_equal(made(100, INDEX, TABLE), TABLE[INDEX] * 100)
    with pytest.raises(IndexRangeError):
        made(100, [1, 2, 10], TABLE)
    with pytest.raises(UsageError):
        made([[1, 2], [3]], TABLE)


def test_a_token_outside_of_the_vocabulary_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    made = program(torch.nn.Embedding(10, 4), torch.tensor([[1, 2]]))
    for wrong in (10, -1):
        with pytest.raises(IndexRangeError):
            made(torch.tensor([[3, wrong]]))


@pytest.mark.parametrize(
    "function",
    [lambda t, i: t[np.clip(i, 0, 9)], lambda t, i: t[i % 10], lambda t, i: t[np.where(i > 9, 0, i)]],
    ids=["clip", "remainder", "where"],
)
def test_indices_that_a_function_keeps_in_range_have_no_limits(function: Callable[..., Any]) -> None:
    made, far = program(function, TABLE, INDEX), np.array([4, 2, 99])
    assert not made.manifest.index_limits
    assert np.array_equal(made(TABLE, far), function(TABLE, far))


COMPUTED: list[Callable[..., Any]] = [
    lambda t, e: t[e[0]] * t[e[1]], lambda t, e: t[e.T[:, 0]], lambda t, e: t[e[:, ::-1].ravel()[:4]], lambda t, e: t[5 - e],
    lambda t, e: t[e // 2 - 1], lambda t, e: t[np.abs(-e)], lambda t, e: t[np.minimum(e, 20)], lambda t, e: t[e.astype(np.int64) * 3 - 2],
    lambda t, e: t[e * 3], lambda t, e: t[e.reshape(3, 2)[1:, 0] + 1],
]  # fmt: skip


@pytest.mark.parametrize("function", COMPUTED)
def test_computed_indices_are_errors_where_the_function_raises(function: Callable[..., Any]) -> None:
    """Parts of inputs and arithmetic with numbers, which wraps as in the function."""
    random, edges = np.random.default_rng(0), np.zeros((2, 3), np.int8)
    graph = trace(function, [TABLE, edges])
    check = index_check(index_limits(function, graph)[0], [str(x.attr("name")) for x in graph.inputs])
    raised = 0
    for _ in range(200):
        edges = random.integers(-14, 30, (2, 3)).astype(np.int8)
        try:
            function(TABLE, edges)
        except IndexError:
            raised += 1
            with pytest.raises(IndexRangeError, match="gives the index"):
                check([TABLE, edges])
        else:
            check([TABLE, edges])
    assert raised > 0


def write_at(x: Any, key: Any) -> Any:
    y = x.copy()
    y[key] = 7
    return y


#: functions of a table [10, 2] of floats and integers [2, 3]
OTHERS: list[Callable[..., Any]] = [
    lambda t, e: t[e[0] + e[1]], lambda t, e: t[np.where(e < 3, e + 1, e * 2)], lambda t, e: t[e[0], e[1]], lambda t, e: t[e * 2, 1], lambda t, e: t[e[0] * e[1] % 12],
    lambda t, e: t[(t[:3, 0] * 1.5 + e[0]).astype(np.int64)], lambda t, e: t[np.where(e[0] < 0, e[0] + 10, e[0])] + t[np.where(e[0] < 0, e[0] + 14, e[1])],
    lambda t, e: np.take(t, e.sum(1), axis=0), lambda t, e: t[:, np.argmax(e[0]) - np.argmin(e[1])], lambda t, e: write_at(t, (np.arange(3), e[0] - e[1])),
    lambda t, e: np.take_along_axis(t, e[:, :2].repeat(5, 0) + e[0, 0], 0), lambda t, e: np.bincount(np.abs(e[0] - 2), minlength=5), lambda t, e: np.bincount(e[1], minlength=15),
    lambda t, e: t.reshape(5, 2, 2)[e[0] % 5, e[1], [0, 1, 0]],
]  # fmt: skip


@pytest.mark.parametrize("function", OTHERS)
def test_indices_of_several_inputs_and_floats_are_errors_where_the_function_raises(
    function: Callable[..., Any],
) -> None:
    random, edges = np.random.default_rng(1), np.zeros((2, 3), np.int16)
    graph = trace(function, [TABLE, edges])
    names = [str(x.attr("name")) for x in graph.inputs]
    limits, computed, _ = index_limits(function, graph)
    checks = [index_check(limits, names), computed_check(computed, names)]
    raised = 0
    for i in range(100):
        table = TABLE if i % 2 else random.uniform(-3, 4, TABLE.shape).astype(np.float32)
        edges = random.integers(-4, 7, (2, 3)).astype(np.int16)
        try:
            wanted = function(table, edges)
            failed = np.shape(wanted) != graph.outputs[0].shape  # np.bincount of a number beyond minlength
        except (IndexError, ValueError):
            failed = True
        raised += failed
        try:
            for check in checks:
                check([table, edges])
            found = False
        except IndexRangeError:
            found = True
        assert found == failed, (table, edges)
    assert raised > 0


def test_a_saved_program_checks_computed_indices(tmp_path: Path) -> None:
    made = program(
        lambda t, e, w: t[np.floor(w * e[0]).astype(int), e[1]], TABLE, np.zeros((2, 3), int), np.float64(0.5)
    )
    made.save(tmp_path)
    for called in (made, tg.load_program(tmp_path)):
        edges = np.array([[3, -20, 19], [0, 1, -2]])
        assert np.array_equal(called(TABLE, edges, np.float64(0.5)), TABLE[[1, -10, 9], edges[1]])
        for wrong, factor in ((edges, 0.6), (edges + 1, 0.5), (edges, np.nan)):
            with pytest.raises(IndexRangeError, match=r"outside of an axis of (10|2) elements"):
                called(TABLE, wrong, np.float64(factor))


def test_numbers_that_are_counted_have_limits_however_many_they_are() -> None:
    def count(x: Any) -> Any:
        return np.bincount(x, minlength=10)

    many = np.arange(200_000) % 10
    limits, computed, _ = index_limits(count, trace(count, [many]))
    check = index_check(limits, ["x"])
    check([many])
    assert not computed.targets
    for wrong in (-1, 10, -(1 << 63)):
        with pytest.raises(IndexRangeError):
            check([np.where(many == 3, wrong, many)])


@pytest.mark.parametrize(
    "function",
    [
        lambda t, e: t[np.where(e[0][:, None] < 0, 1, e[0][None, :].astype(np.int8))],
        lambda t, e: t[np.where(e[0][:, None] < 0, 1, e[0][None, :] + 1 - 1)],
        lambda t, e: t[:8][np.where(e[0] < 0.5, e[0] + 8, e[0] % 8)],
    ],
    ids=["narrowed", "other places", "below a fraction"],
)
def test_conditions_on_other_numbers_keep_no_index_in_range(function: Callable[..., Any]) -> None:
    """The tested number is not the index, or it is the last one below a number that is not whole."""
    graph = trace(function, [TABLE, np.zeros((2, 3), np.int16)])
    _, computed, _ = index_limits(function, graph)
    check = computed_check(computed, [str(x.attr("name")) for x in graph.inputs])
    for wrong in ([0, -20, 3], [0, 200, 3]):
        edges = np.array([wrong, wrong], np.int16)
        with pytest.raises(IndexError):
            function(TABLE, edges)
        with pytest.raises(IndexRangeError):
            check([TABLE, edges])


def test_long_and_safe_computations_are_not_made_twice() -> None:
    safe: list[Any] = [
        lambda t, e: t[np.argmax(e)],
        lambda t, e: t[np.clip(e[0] * e[1], -10, 9)],
        lambda t, e: t[e % 5 + e % 3],
    ]
    for function in [
        *safe,
        lambda t, e: t[np.tile(e[0], 40_000) + np.arange(120_000)],
        lambda t, e: t[np.sum(np.broadcast_to(e[0], (40_000, 3)))],
        lambda t, e: t[sum([e * i for i in range(99)], e)],
    ]:
        assert index_limits(function, trace(function, [TABLE, np.zeros((2, 3), np.int64)]))[:2] == (
            (),
            ComputedIndices(),
        )


MALFORMED: list[list[Any]] = [
    ["os", [], []], ["add", [0, 9], []], ["iota", [], [0, [1 << 40], "int64"]], ["add", [0], []], ["constant", [], ["float32", [2], [1]]], ["matmul", [0, 0], []],
    ["param", [], ["w", [1], "int64"]], ["full", [], [1, [1 << 40], "int64"]], ["full", [], [1, [-3], "int64"]], ["cast", [0], ["float32"]], ["cast", [0], ["int7"]], ["input", [], ["e", [3], 5]], ["iota", [], [0, "22", "int64"]],
]  # fmt: skip


@pytest.mark.parametrize("row", MALFORMED)
def test_malformed_computations_of_a_file_are_named(row: Any) -> None:
    start = ("input", (), ("e", (3,), "int64"))
    with pytest.raises(BadModelError, match=r"malformed|too many|no integers"):
        computed_check(ComputedIndices((start, row), ((1, 0, 10),)), ["e"])


def test_a_file_cannot_ask_for_long_reductions() -> None:
    start = ("input", (), ("e", (3,), "int64"))
    rows = [start, ("reshape", (0,), ((1, 3),)), ("broadcast_to", (1,), ((1 << 36, 3),)), ("sum", (2,), ((0,),))]
    with pytest.raises(BadModelError, match="too many elements"):
        computed_check(ComputedIndices(tuple(rows), ((3, 0, 10),)), ["e"])


def pair(function: Callable[[Any], Any]) -> Graph:
    """Elements of a table of ten rows at the indices that `function` computes from int8[3]."""
    return Graph.of(t.gather(t.input("t", (10, 2)), function(t.input("e", (3,), "int8"))))


def column(x: Any) -> Any:
    return t.reshape(x, (3, 1))


def ones(*shape: int, value: int = 1) -> Any:
    return t.full(shape, value, "int8")


UNKNOWN: list[Callable[[Any], Any]] = [
    lambda e: t.slice_axis(t.reshape(column(e) + ones(3, 4), (12,)), 0, 2, 5), lambda e: t.slice_axis(ones(5, 1) - e, 0, 2, 5),
    lambda e: t.slice_axis(t.permute(t.maximum(e, ones(4, 1, value=-9)), (1, 0)), 1, 2, 4), lambda e: column(e) + ones(1, 0),
    lambda e: t.cast(t.cast(e, "uint8"), "int64"), lambda e: t.cast(t.cast(e, "bool"), "int64"),
    lambda e: t.where(e < ones(3, value=0), t.flip(e, 0) + ones(3, value=10), e),
    lambda e: t.maximum(t.cast(e, "int64"), t.full((1,), -1 << 63, "int64")),
]  # fmt: skip


@pytest.mark.parametrize("function", UNKNOWN)
def test_indices_that_steps_do_not_compute_have_no_limits(function: Callable[[Any], Any]) -> None:
    """Broadcasts before parts, casts that change numbers, other elements of the input, numbers that no file holds."""
    assert not index_limits(function, pair(function))[0]


def test_broadcast_indices_have_the_limits_of_their_numbers() -> None:
    for function in (lambda e: column(e) + ones(3, 4), lambda e: t.slice_axis(e + ones(3), 0, 0, 2)):
        (found,), *_ = index_limits(function, pair(function))
        assert found.high == 10 and ("add", 1) in found.steps


def test_a_step_that_the_dtype_does_not_allow_is_a_damaged_file() -> None:
    for step in (("add", 1000), ("slice", 1 << 61, 0, 1, 1)):
        with pytest.raises(BadModelError, match="dtype"):
            index_check([IndexLimit("e", 0, 10, (step,))], ["e"])([np.zeros((2, 3), np.int8)])


def test_limits_of_a_free_axis_are_those_of_the_call(tmp_path: Path) -> None:
    rows = tg.dim("rows", max=50)
    examples = ((rows, 2), "float32"), ((2, 3), "int64")
    made = program(lambda t, e: t[e[1] + 1], *examples)
    made.save(tmp_path / "saved")
    for called in (made, tg.load_program(tmp_path / "saved")):
        for count in (10, 4):
            table, edges = TABLE[:count], np.array([[99] * 3, [0, -2 - count + 1, count - 2]])
            assert np.array_equal(called(table, edges), table[edges[1] + 1])
            with pytest.raises(IndexRangeError, match=f"gives the index {count}, .* of {count} elements"):
                called(table, edges + 1)


#: functions of a table [rows, 2] and integers [2, columns], both of free sizes
FREE: list[Callable[..., Any]] = [
    lambda t, e: t[e[0] + e[1]], lambda t, e: t[(e[0] * 0.5 + e[1]).astype(np.int64)], lambda t, e: t.reshape(-1)[e[0] * 2 + e[1]],
    lambda t, e: t[np.where(e[0] < 3, e[0], e[1])] + t[np.argmax(t[:, 0])],
]  # fmt: skip


@pytest.mark.parametrize("function", FREE)
def test_computed_indices_of_free_sizes_are_checked_at_the_sizes_of_a_call(function: Callable[..., Any]) -> None:
    graph = trace(function, [((tg.dim("rows", max=50), 2), "float32"), ((2, tg.dim("columns", max=9)), "int64")])
    _, computed, unchecked = index_limits(function, graph, {"rows": 10, "columns": 3})
    assert len(computed.targets) == 1 and not unchecked
    random, raised = np.random.default_rng(2), 0
    check = computed_check(computed, ["t", "e"], lambda args: {"rows": args[0].shape[0], "columns": args[1].shape[1]})
    for i in range(60):
        table, edges = TABLE[: 10 if i % 2 else 4], random.integers(-4, 7, (2, 1 + i % 3))
        try:
            function(table, edges)
        except IndexError:
            raised += 1
            with pytest.raises(IndexRangeError):
                check([table, edges])
        else:
            check([table, edges])
    assert 0 < raised < 60


@pytest.mark.parametrize("rows", [20, tg.dim("rows", max=50)])
def test_places_of_the_largest_need_no_check(rows: Any) -> None:
    """Neither a check nor a warning, though the scores are computed from large weights."""
    x, w = t.input("x", (rows, 300)), t.param("w", (300, 300))
    best = t.slice_axis(t.argsort(t.sum(t.matmul(x, w), 1), 0, True), 0, 0, 3)
    graph = Graph.of(t.gather(x, t.reshape(best, (3,))), params={"w": np.ones((300, 300), np.float32)})
    assert index_limits(len, graph, {"rows": 10}) == ((), ComputedIndices(), ())


def test_a_saved_program_of_free_sizes_checks_computed_indices(tmp_path: Path) -> None:
    made = program(FREE[0], ((tg.dim("rows", max=50), 2), "float32"), ((2, 3), "int64"))
    made.save(tmp_path)
    for called in (made, tg.load_program(tmp_path)):
        assert np.array_equal(called(TABLE[:4], np.array([[2, 1, -4]] * 2) // 2), TABLE[[2, 0, 0]])
        with pytest.raises(IndexRangeError, match=r"is 4, .* of 4 elements"):
            called(TABLE[:4], np.full((2, 3), 2))
        with pytest.raises(BadModelError, match="computes indices"):
            called.manifest = replace(called.manifest, computed_indices=ComputedIndices((("input", (), ("t", ("x", 2), "float32")),)
                                                                                        , ((0, 0, 1),)))  # fmt: skip
            called(TABLE[:4], np.full((2, 3), 1))


def test_indices_that_weights_give_are_checked_or_named_in_the_report() -> None:
    """A small table of indices is part of the check, a large one if all of its numbers are valid."""
    large = np.arange(100_000) % 10
    for table, wrong, rows in (
        (np.array([3, 0, -2, 99]), [3], 6),
        (large, [], 0),
        (np.where(large == 7, 99, large), [], 0),
    ):
        graph = Graph.of(t.gather(t.input("t", (10, 2)), t.gather(t.param("w", table.shape, "int64"), t.input("i", (1,), "int64"))),
                         params={"w": table})  # fmt: skip
        _, computed, unchecked = index_limits(len, graph)
        assert unchecked == (("i",) if rows == 0 and table.max() > 9 else ()) and bool(computed.targets) == bool(rows)
        for i in wrong:
            with pytest.raises(IndexRangeError, match="is 99"):
                computed_check(computed, ["t", "i"])([TABLE, np.array([i])])
    for table in (np.arange(1 << 21) % 10, np.arange(1 << 21) % 11):  # no input decides: the weight is named
        graph = Graph.of(t.gather(t.input("t", (10, 2)), t.param("w", table.shape, "int64")), params={"w": table})
        assert index_limits(len, graph).unchecked == (("w",) if table.max() == 10 else ())
    made = program(lambda t, e: t[sum([e * i for i in range(99)], e)], TABLE, np.zeros((2, 3), int))
    assert any("computed from 'e' are not checked" in w for w in made.report.warnings)


def test_other_weights_change_the_indices_that_are_checked() -> None:
    """Those of the search decided about each call: rows were given for new indices outside of the axis, and right ones
    refused."""
    torch = pytest.importorskip("torch")

    class Picked(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("order", torch.tensor([3, 0, 2, 1]))

        def forward(self, table: Any, i: Any) -> Any:
            return table[self.order[i]]

    made = program(Picked(), torch.tensor(TABLE), torch.tensor([0]))
    given = torch.tensor(TABLE), torch.tensor([1])
    (name,) = made._params
    for order, right in ([3, 99, 2, 1], False), ([99, 5, 2, 1], True), ([3, -11, 2, 1], False), ([3, 5, 2, 1], True):
        made.bind({name: np.array(order)})
        if right:
            assert np.array_equal(made(*given), TABLE[order[1]][None])
        else:
            with pytest.raises(IndexRangeError):
                made(*given)


def test_malformed_steps_of_a_file_are_named(tmp_path: Path) -> None:
    program(lambda t, e: t[e[1]], TABLE, np.zeros((2, 3), int)).save(tmp_path)
    file = tmp_path / "manifest.json"
    record = json.loads(file.read_text())
    wrong: list[Any] = [
        [["slice", 0, 0, 1]],
        [["os"]],
        [["cast", 7]],
        [["neg"]] * 99,
        [["add", "1"]],
        [["slice", 3, 0, 1, 1]],
    ]
    for steps in wrong:
        record["index_limits"][0][3] = steps
        file.write_text(json.dumps(record))
        with pytest.raises(BadModelError):
            tg.load_program(tmp_path)(TABLE, np.zeros((2, 3), int))


def test_expressions_take_the_last_element() -> None:
    made = program(tg.gather(tg.input("x", (10, 2)), tg.input("i", (3,), "int64")))
    assert np.array_equal(made(TABLE, np.array([0, 99, 1])), TABLE[[0, 9, 1]])


def test_an_onnx_index_outside_of_the_axis_is_an_error(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Gather", ["x", "i"], ["y"], axis=0)
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto
    ends = [value("x", kind.FLOAT, [10, 2]), value("i", kind.INT64, [3])]
    graph = onnx.helper.make_graph([node], "g", ends, [value("y", kind.FLOAT, [3, 2])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), tmp_path / "g.onnx")
    made = program(tmp_path / "g.onnx")
    assert np.array_equal(made(TABLE, np.array([-1, 0, 3])), TABLE[[-1, 0, 3]])
    with pytest.raises(IndexRangeError):
        made(TABLE, np.array([-1, 0, 10]))
