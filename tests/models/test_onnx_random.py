"""ONNX operators with random attributes (tests/fuzz/onnx_nodes.py), changed ones (onnx_mutations.py), graphs of several
(onnx_graph_values.py), and functions over the whole range of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402

from ..fuzz import onnx_graph_values, onnx_mutations  # noqa: E402
from ..fuzz.onnx_draws import NODES  # noqa: E402
from ..fuzz.onnx_nodes import tried  # noqa: E402

#: Operators whose reference is wrong in some cases, without another runtime that takes them: never compared here.
OTHERWISE = {
    "MaxPool": "the reference's SAME_LOWER with strides beyond the kernel",
    "LRN": "the reference's even sizes",
    "MatMulInteger": "the reference's zero points per row",
    "ReduceSumSquare": "the reference widens integers",
    "Split": "pieces beyond the end",
    **dict.fromkeys(("Conv", "AveragePool", "LpPool"), "windows that do not fit are refused"),
}


@pytest.mark.parametrize("op", [op for op in NODES if op not in OTHERWISE])
def test_operators_with_random_attributes(op: str, tmp_path: Path) -> None:
    message = [tried(seed, op, tmp_path) for seed in range(7)]
    assert not [s for s in message if s and not s.startswith("-")]
    changed = [onnx_mutations.tried(seed, op, tmp_path, others=False) for seed in range(2)]
    assert not [s for kind, s in changed if kind == "RAW"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("function", [np.sinh, np.cosh, np.arcsinh, np.arccosh], ids=lambda f: str(f.__name__))
def test_functions_do_not_overflow_before_their_values_do(
    function: Callable[..., Any], dtype: str, tmp_path: Path
) -> None:
    op = {"arcsinh": "Asinh", "arccosh": "Acosh"}.get(function.__name__, function.__name__.title())
    last = float(np.log(np.finfo(dtype).max)) if function in (np.sinh, np.cosh) else float(np.finfo(dtype).max)
    line = np.concatenate([np.geomspace(1e-3, last, 400), [np.inf, np.nan, 1.0]])
    x = (line + 1 if function is np.arccosh else np.concatenate([line, -line, [0.0]])).astype(dtype)
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    info = [onnx.helper.make_tensor_value_info(n, kind, x.shape) for n in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"])], "g", info[:1], info[1:])
    file = tmp_path / "m.onnx"
    file.write_bytes(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10
        ).SerializeToString()
    )
    with np.errstate(all="ignore"):
        (got,) = evaluate(load_onnx(file), {"x": x})
        want = function(x.astype(np.float64)).astype(dtype)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, want, rtol=40 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps)


#: Operators of random graphs, beside quantization and control flow; the seeds below are compared by both peers or one.
GROWN = ("Add", "Mul", "Sub", "Div", "Max", "Where", "Clip", "Floor", "Relu", "Cast", "Softmax", "ReduceSum", "ReduceMax", "ReduceMean", "ArgMax", "TopK",
         "CumSum", "Concat", "Slice", "Transpose", "Reshape", "Pad", "MatMul", "Gemm", "Equal", "Less", "Mod", "Pow", "Expand", "Unsqueeze")  # fmt: skip


def test_graphs_of_several_nodes(tmp_path: Path) -> None:
    """A short form of `python -m tests.fuzz.onnx_graph_values`."""
    found = [onnx_graph_values.tried(seed, tmp_path, False, 4, GROWN) for seed in range(40)]
    assert not [message for kind, message in found if kind in ("WRONG", "RAW", "REFUSED")]
    assert sum(kind == "good" for kind, _ in found) > 20


def result(operands: dict[str, Any], inputs: str, file: Path, op: str, **attrs: Any) -> Any:
    """The result of one node of opset 20; operands whose names are not in `inputs` are initializers."""
    kind = onnx.helper.np_dtype_to_tensor_dtype
    infos = [onnx.helper.make_tensor_value_info(n, kind(operands[n].dtype), operands[n].shape) for n in inputs]
    result_kind = kind(operands["x"].dtype)
    initial = [onnx.numpy_helper.from_array(x, n) for n, x in operands.items() if n and n not in inputs]
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, list(operands), ["y"], **attrs)], "g", infos,
                                   [onnx.helper.make_tensor_value_info("y", result_kind, None)], initial)  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    file.write_bytes(model.SerializeToString())
    return evaluate(load_onnx(file), {n: operands[n] for n in inputs})[0]


@pytest.mark.parametrize(("labels", "want"), [([1, 0], np.log(2)), ([1, 1], 0.0)])
def test_a_label_that_is_ignored_costs_nothing(labels: list[int], want: float, tmp_path: Path) -> None:
    """Its logarithm may be infinite."""
    operands = {"x": np.float32([[0, -np.inf], [1, 1]]), "t": np.int64(labels)}
    found = result(operands, "xt", tmp_path / "m.onnx", "SoftmaxCrossEntropyLoss", ignore_index=1, reduction="sum")
    assert found == np.float32(want)


def test_coordinates_that_are_whole_numbers(tmp_path: Path) -> None:
    """The first one is 1 if the shift is added first, else just below."""
    operands = {"x": np.arange(15, dtype=np.float32), "": None, "s": np.float32([0.5])}
    found = result(
        operands,
        "x",
        tmp_path / "m.onnx",
        "Resize",
        nearest_mode="floor",
        coordinate_transformation_mode="half_pixel_symmetric",
    )
    np.testing.assert_array_equal(found, np.arange(1, 15, 2))


def test_exponents_keep_their_bits(tmp_path: Path) -> None:
    """In float16 2501.5 is 2502, a whole number, and 2 ** 32 in int32 is 0."""
    x, y = np.float16([-1, -1]), np.float32([2501.5, 2501])
    np.testing.assert_array_equal(result({"x": x, "e": y}, "xe", tmp_path / "m.onnx", "Pow"), np.float16([np.nan, -1]))
    x, y = np.int32([2, 1]), np.int64([1 << 32, 1 << 33])
    np.testing.assert_array_equal(result({"x": x, "e": y}, "xe", tmp_path / "m.onnx", "Pow"), np.int32([0, 1]))
