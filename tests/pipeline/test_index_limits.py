"""Indices outside of an axis are refused where the model's own call refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import IndexRangeError, UsageError

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
    [
        lambda t, i: t[i[:1]],
        lambda t, i: t[np.clip(i, 0, 9)],
        lambda t, i: t[i % 10],
        lambda t, i: t[np.where(i > 9, 0, i)],
    ],
    ids=["part", "clip", "remainder", "where"],
)
def test_computed_indices_and_parts_have_no_limits(function: Callable[..., Any]) -> None:
    made, far = program(function, TABLE, INDEX), np.array([4, 2, 99])
    assert not made.manifest.index_limits
    assert np.array_equal(made(TABLE, far), function(TABLE, far))


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
