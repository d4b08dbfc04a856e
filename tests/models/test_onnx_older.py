"""Operators whose operands or meaning changed, or that were replaced, in older files, against ONNX Runtime."""

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
GRID = np.arange(-7, 5).reshape(1, 6, 1, 2).repeat(3, 0) / 4  # places at halves, outside of the image among them
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
#: The same of operators that changed or were replaced later, and the opsets in which they have this form.
OLDER: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "Clip": ((7, 10), [node("Clip", ["x"], ["y"], min=-0.5, max=0.25)]),
    "Clip above": ((7,), [node("Log", ["x"], ["l"]), node("Clip", ["l"], ["y"], min=-1.0)]),
    "Clip to finite numbers": ((10,), [node("Div", ["x", "none"], ["l"]), node("Clip", ["l"], ["y"])]),
    "Pad": ((7, 10), [node("Pad", ["x"], ["y"], pads=[0, 0, 1, 0, 0, 2, 0, -1], value=2.5)]),
    "Pad edge": ((8,), [node("Pad", ["x"], ["y"], mode="edge", pads=[0, 0, 1, 0, 0, 0, 0, 1])]),
    "Slice": ((7, 9), [node("Slice", ["x"], ["y"], starts=[-3, 0], ends=[100, 1], axes=[2, 3])]),
    "Slice all": ((9,), [node("Slice", ["x"], ["y"], starts=[0, 0, 1], ends=[3, 1, 2147483647])]),
    "TopK": ((7, 9), [node("TopK", ["x"], ["v", "i"], k=2, axis=2), node("Cast", ["i"], ["f"], to=1), node("Add", ["v", "f"], ["y"])]),
    "Upsample": ((7, 8), [node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 1.5])]),
    "Upsample linearly": ((8,), [node("Upsample", ["x"], ["y"], mode="linear", scales=[1.0, 1.0, 2.0, 3.0])]),
    "Upsample 9": ((9,), [node("Upsample", ["x", "scales"], ["y"])]),
    "Resize": ((10,), [node("Resize", ["x", "scales"], ["y"])]),
    "Resize down": ((10,), [node("Resize", ["x", "down"], ["y"])]),
    "Resize linearly": ((10,), [node("Resize", ["x", "down"], ["y"], mode="linear")]),
    "Scatter": ((9, 10), [node("Scatter", ["x", "zeros", "ones"], ["y"], axis=2)]),
    "GroupNormalization": ((18, 20), [node("GroupNormalization", ["x", "one", "one"], ["y"], num_groups=1)]),
    "GridSample": ((16,), [node("GridSample", ["x", "grid"], ["y"], mode="nearest", padding_mode="reflection")]),
    "BatchNormalization": ((7, 9), [node("BatchNormalization", ["x", "one", "one", "one", "one"], ["y"])]),
    "Dropout": ((7, 10), [node("Dropout", ["x"], ["y"], ratio=0.3)]),
    "sizes": ((9,), [node("Shape", ["x"], ["s"]), node("Slice", ["s"], ["n"], starts=[0], ends=[1]), node("Concat", ["n", "minus"], ["t"], axis=0),
                     node("Reshape", ["x", "t"], ["y"])]),
}  # fmt: skip


def saved(nodes: list[Any], opset: int, file: Path) -> Path:
    """A model of the nodes, in which the first axis of x is free."""
    info = [helper.make_tensor_value_info(*v) for v in (("x", 1, ["n", *X.shape[1:]]), ("y", 1, None))]
    whole = (("zero", 0), ("minus", [-1]), ("zeros", np.zeros((3, 1, 1, 2))))
    real = (
        ("none", 0),
        ("one", [1]),
        ("ones", np.ones((3, 1, 1, 2))),
        ("scales", [1, 1, 1.5, 2]),
        ("down", [1, 1, 0.6, 0.5]),
        ("grid", GRID),
    )
    initial = [
        numpy_helper.from_array(np.array(v, t), n) for t, vs in ((np.int64, whole), (np.float32, real)) for n, v in vs
    ]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file.write_bytes(model.SerializeToString())
    return file


def agrees(file: Path, free: bool = True) -> None:
    """The loaded graph gives what ONNX Runtime gives, NaN included."""
    (wanted,) = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, {"x": X})
    graph = load_onnx(file, dims=None if free else {"n": 3})
    with np.errstate(all="ignore"):
        (found,) = evaluate(graph.bind({"n": 3} if graph.free_dims else {}), {"x": X})
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize("name", NODES)
def test_nodes_of_older_files(name: str, opset: int, tmp_path: Path) -> None:
    if name == "Dropout" and opset == 12:
        pytest.skip("the ratio is an operand")
    agrees(saved(NODES[name], opset, tmp_path / "m.onnx"), free=name != "Squeeze all")


@pytest.mark.parametrize("name", OLDER)
def test_forms_of_older_files(name: str, tmp_path: Path) -> None:
    """Attributes that became operands, other defaults, operators that have another name or are deprecated."""
    opsets, nodes = OLDER[name]
    for opset in opsets:
        agrees(saved(nodes, opset, tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("opset", "nodes", "missing"),
    [
        (6, NODES["Squeeze"], "opset 6"),
        (7, [node("BatchNormalization", ["x", *["ones"] * 4], ["y"], spatial=0)], "statistics for each element"),
        (9, [node("Dropout", ["x"], ["d", "y"])], "the mask"),
    ],
)
def test_what_older_files_may_not_have(opset: int, nodes: list[Any], missing: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=missing):
        load_onnx(saved(nodes, opset, tmp_path / "m.onnx"))
