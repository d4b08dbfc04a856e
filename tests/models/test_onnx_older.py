"""Operators whose operands or meaning changed with opset 13, in files of opset 11 and 12, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import UnsupportedError  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402

X = np.random.default_rng(0).standard_normal((3, 1, 4, 2)).astype(np.float32)
node = helper.make_node
#: Nodes from x [3, 1, 4, 2] to y.
NODES: dict[str, list[Any]] = {
    **{f"{op} {axis}": [node(op, ["x"], ["y"], axis=axis)] for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (0, 2, -1)},
    **{op: [node(op, ["x"], ["y"])] for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "Squeeze": [node("Squeeze", ["x"], ["y"], axes=[1])],
    "Squeeze all": [node("Squeeze", ["x"], ["y"])],
    "Unsqueeze": [node("Unsqueeze", ["x"], ["y"], axes=[0, -1])],
    "ReduceSum": [node("ReduceSum", ["x"], ["y"], axes=[0, -1], keepdims=0)],
    "ReduceSum all": [node("ReduceSum", ["x"], ["y"])],
    "Split": [node("Split", ["x"], ["a", "b"], axis=2, split=[1, 3]), node("Concat", ["b", "a"], ["y"], axis=2)],
    "Split equally": [node("Split", ["x"], ["a", "b"], axis=2), node("Sub", ["b", "a"], ["y"])],
    "Dropout": [node("Dropout", ["x"], ["y"], ratio=0.3)],
    "shapes": [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Unsqueeze", ["n"], ["line"], axes=[0]),
        node("Squeeze", ["line"], ["back"], axes=[0]), node("Unsqueeze", ["back"], ["again"], axes=[0]),
        node("Concat", ["again", "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"]),
    ],
}  # fmt: skip


def saved(nodes: list[Any], opset: int, file: Path) -> Path:
    """A model of the nodes, in which the first axis of x is free."""
    info = [helper.make_tensor_value_info(*v) for v in (("x", 1, ["n", *X.shape[1:]]), ("y", 1, None))]
    initial = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("zero", 0), ("minus", [-1]))]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize("name", NODES)
def test_nodes_of_older_files(name: str, opset: int, tmp_path: Path) -> None:
    if name == "Dropout" and opset == 12:
        pytest.skip("the ratio is an operand")
    file = saved(NODES[name], opset, tmp_path / "m.onnx")
    (wanted,) = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, {"x": X})
    graph = load_onnx(file, dims={"n": 3} if name == "Squeeze all" else None)
    (found,) = evaluate(graph.bind({"n": 3} if graph.free_dims else {}), {"x": X})
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_files_before_opset_11_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="opset 10"):
        load_onnx(saved(NODES["Squeeze"], 10, tmp_path / "m.onnx"))
