"""Loops, scans and sequences of ONNX, unrolled at load time, against ONNX's reference evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import BadModelError, UnsupportedError  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402

node = helper.make_node
X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7 - 0.6


def info(name: str, shape: Any = (3, 4), kind: int = 1) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save(folder: Path, nodes: list[Any], outputs: list[Any], consts: dict[str, Any], inputs: Any = None) -> Path:
    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()]
    graph = helper.make_graph(nodes, "g", inputs or [info("x")], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def agree(file: Path) -> Any:
    from onnx.reference import ReferenceEvaluator

    graph = load_onnx(file)
    for found, wanted in zip(evaluate(graph, {"x": X}), ReferenceEvaluator(str(file)).run(None, {"x": X}), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    return graph


def loop(stop: int | None = None) -> Any:
    """v -> v * w + i, collecting v; going on for ever, or while the next round's number is below `stop`."""
    going = [node("Identity", ["c"], ["c2"])] if stop is None else [
        node("Constant", [], ["one"], value_int=1), node("Add", ["i", "one"], ["next"]),
        node("Constant", [], ["stop"], value_int=stop), node("Less", ["next", "stop"], ["c2"]),
    ]  # fmt: skip
    nodes = [*going, node("Cast", ["i"], ["f"], to=1), node("Mul", ["v", "w"], ["vw"]), node("Add", ["vw", "f"], ["v2"]),
             node("Identity", ["v"], ["kept"])]  # fmt: skip
    weights = [numpy_helper.from_array(np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4), "w")]
    return helper.make_graph(nodes, "body", [info("i", (), 7), info("c", (), 9), info("v")],
                             [info("c2", (), 9), info("v2"), info("kept")], weights)  # fmt: skip


@pytest.mark.parametrize(("rounds", "stop"), [(4, None), (1, None), (9, 3)])
def test_loops_with_known_rounds(rounds: int, stop: int | None, tmp_path: Path) -> None:
    nodes = [node("Loop", ["m", "c0", "x"], ["y", "all"], body=loop(stop))]
    outputs = [info("y"), info("all", (min(rounds, stop or rounds), 3, 4))]
    graph = load_onnx(save(tmp_path, nodes, outputs, {"m": np.int64(rounds), "c0": np.bool_(True)}))
    value, kept = X, []
    for number in range(min(rounds, stop or rounds)):
        kept.append(value)
        value = value * np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4) + np.float32(number)
    found = evaluate(graph, {"x": X})
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1], np.stack(kept), rtol=1e-5)  # ONNX's reference evaluator appends to axis 0
    assert len(graph.params) == 1  # the body's weight is one, however often the body runs


def test_loops_that_cannot_be_unrolled(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Cast", ["s"], ["m"], to=7),
             node("Loop", ["m", "", "x"], ["y", "all"], body=loop())]  # fmt: skip
    with pytest.raises(UnsupportedError, match="trip count depends on data"):
        load_onnx(save(tmp_path, nodes, [info("y")], {}))
    endless = [node("Loop", ["", "", "x"], ["y", "all"], body=loop())]
    with pytest.raises(UnsupportedError, match="more than 512 iterations"):
        load_onnx(save(tmp_path, endless, [info("y")], {}))
    with pytest.raises(BadModelError, match="takes 3 values, not 2"):
        load_onnx(
            save(tmp_path, [node("Loop", ["m", ""], ["all"], body=loop())], [info("all", None)], {"m": np.int64(2)})
        )


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans(axis: int, back: int, tmp_path: Path) -> None:
    size = 4 if axis == 0 else 3
    body = helper.make_graph(
        [node("Add", ["s", "part"], ["s2"]), node("Mul", ["s2", "part"], ["kept"])], "body",
        [info("s", (size,)), info("part", (size,))], [info("s2", (size,)), info("kept", (size,))],
    )  # fmt: skip
    scan = node("Scan", ["s0", "x"], ["s", "y"], body=body, num_scan_inputs=1, scan_input_axes=[axis],
                scan_input_directions=[back], scan_output_axes=[axis], scan_output_directions=[back])  # fmt: skip
    file = save(tmp_path, [scan], [info("s", (size,)), info("y")], {"s0": np.zeros(size, np.float32)})
    lines = X if axis == 0 else X.T
    lines = lines[::-1] if back else lines
    sums = np.cumsum(lines, 0)
    kept = (sums * lines)[::-1] if back else sums * lines
    found = evaluate(load_onnx(file), {"x": X})
    np.testing.assert_allclose(found[0], sums[-1], rtol=1e-5)
    np.testing.assert_allclose(found[1], kept if axis == 0 else kept.T, rtol=1e-5)


def test_sequences(tmp_path: Path) -> None:
    nodes = [
        node("SplitToSequence", ["x", "two"], ["s"], axis=1), node("SequenceAt", ["s", "last"], ["a"]),
        node("SequenceEmpty", [], ["e"]), node("SequenceInsert", ["e", "a"], ["e1"]),
        node("SequenceInsert", ["e1", "x", "zero"], ["e2"]), node("SequenceErase", ["s", "zero"], ["s1"]),
        node("ConcatFromSequence", ["e2"], ["b"], axis=1), node("ConcatFromSequence", ["s"], ["d"], axis=0, new_axis=1),
        node("SequenceConstruct", ["x", "a", "x"], ["t"]), node("SequenceLength", ["t"], ["n"]),
        node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0), node("SequenceAt", ["rows", "one"], ["row"]),
        node("SequenceAt", ["s1", "zero"], ["f"]),
    ]  # fmt: skip
    consts = {"two": np.int64(2), "last": np.int64(-1), "zero": np.int64(0), "one": np.int64(1)}
    outputs = [info("a", None), info("b", None), info("d", None), info("n", (), 7), info("row", None), info("f", None)]
    agree(save(tmp_path, nodes, outputs, consts))


def test_sequences_that_leave_the_graph_or_end_early(tmp_path: Path) -> None:
    split = node("SplitToSequence", ["x"], ["s"], axis=1)
    outside = helper.make_tensor_sequence_value_info("s", 1, None)
    with pytest.raises(UnsupportedError, match=r"made by SplitToSequence .*, is a sequence"):
        load_onnx(save(tmp_path, [split], [outside], {}))
    beyond = [split, node("SequenceAt", ["s", "four"], ["y"])]
    with pytest.raises(BadModelError, match="position 4 is outside of a sequence of 4"):
        load_onnx(save(tmp_path, beyond, [info("y", None)], {"four": np.int64(4)}))
    with pytest.raises(UnsupportedError, match="of a sequence"):
        load_onnx(save(tmp_path, [split, node("Relu", ["s"], ["y"])], [info("y", None)], {}))
