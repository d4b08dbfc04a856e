"""QuantizeLinear and DequantizeLinear in their forms, against their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import ml_dtypes  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402

INT4, UINT4 = ml_dtypes.int4, ml_dtypes.uint4
RNG = np.random.default_rng(0)


def result(op: str, operands: dict[str, Any], inputs: str, file: Path, opset: int = 23, **attrs: Any) -> Any:
    """The result of one node; operands with the names in `inputs` are inputs, others initializers."""
    kind = helper.np_dtype_to_tensor_dtype
    infos = [helper.make_tensor_value_info(n, kind(operands[n].dtype), operands[n].shape) for n in inputs]
    dtype = operands["z"].dtype if op == "QuantizeLinear" else operands["s"].dtype
    initial = [numpy_helper.from_array(x, n) for n, x in operands.items() if n not in inputs]
    graph = helper.make_graph([helper.make_node(op, list(operands), ["y"], **attrs)], "g", infos,
                              [helper.make_tensor_value_info("y", kind(dtype), None)], initial)  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    file.write_bytes(model.SerializeToString())
    return evaluate(load_onnx(file), {n: operands[n] for n in inputs})[0]


@pytest.mark.parametrize("inputs", ["", "s"])
@pytest.mark.parametrize(
    ("shape", "scales", "attrs"),
    [((), (), {}), ((3,), (1,), {}), ((3, 5), (), {}), ((2, 3, 5), (), {}), ((2, 4, 3), (1,), {}), ((4, 6), (6,), {"axis": -1}), ((3, 5), (3,), {"axis": 0}),
     ((2, 3, 5), (3,), {"axis": 1}), ((5,), (3,), {"axis": -1, "block_size": 2}), ((2, 5, 3), (2, 2, 3), {"axis": 1, "block_size": 4})],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [INT4, UINT4, np.uint8, np.int16])
def test_initializers_of_any_shape_are_dequantized(
    dtype: Any, shape: tuple[int, ...], scales: tuple[int, ...], attrs: dict[str, int], inputs: str, tmp_path: Path
) -> None:
    low, high = (-8, 8) if dtype in (INT4, np.int16) else (0, 16)
    x, z = (RNG.integers(low, high, s).astype(dtype) for s in (shape, scales))
    s = (RNG.integers(1, 9, scales) / 8).astype(np.float32)

    def wide(v: Any) -> Any:
        axis = attrs.get("axis", 0)
        if "block_size" in attrs:
            return np.take(np.repeat(v, attrs["block_size"], axis), range(shape[axis]), axis)
        return v if v.size == 1 else v.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])

    found = result("DequantizeLinear", {"x": x, "s": s, "z": z}, inputs, tmp_path / "m.onnx", **attrs)
    want = (x.astype(np.float32) - wide(z.astype(np.float32))) * wide(s)
    np.testing.assert_array_equal(found, want.astype(np.float32).reshape(shape), strict=True)


@pytest.mark.parametrize("axis", [-1, 0])
def test_a_scale_for_each_element_of_a_vector(axis: int, tmp_path: Path) -> None:
    operands = {"x": np.float32([1, 2, 3]), "s": np.float32([0.5, 1, 2]), "z": np.uint8([0, 1, 2])}
    np.testing.assert_array_equal(result("QuantizeLinear", operands, "x", tmp_path / "m.onnx", axis=axis), [2, 3, 4])
    operands["x"] = np.uint8([2, 3, 4])
    np.testing.assert_array_equal(result("DequantizeLinear", operands, "x", tmp_path / "m.onnx", axis=axis), [1, 2, 4])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_since_opset_23_the_scale_gives_the_precision_of_the_quotient(dtype: Any, tmp_path: Path) -> None:
    scale, zero = np.asarray([0.06, 0.06], dtype), np.int8([3, 3])
    operands = {"x": (3 * RNG.standard_normal((2, 999))).astype(dtype), "s": scale[:1], "z": zero[:1]}
    sharp, narrow = operands["x"].astype("f4") / operands["s"].astype("f4"), operands["x"] / operands["s"]
    sharp, narrow = (np.clip(np.rint(q.astype("f4")) + 3, -128, 127).astype(np.int8) for q in (sharp, narrow))
    assert (sharp != narrow).any()
    each = operands | {"s": scale, "z": zero}
    for opset, want, attrs in (
        (21, sharp, {}),
        (23, narrow, {}),
        (23, narrow, {"axis": 0}),
        (23, sharp, {"precision": 1}),
    ):
        found = result(
            "QuantizeLinear", each if "axis" in attrs else operands, "x", tmp_path / "m.onnx", opset, **attrs
        )
        np.testing.assert_array_equal(found, want, strict=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_a_scale_for_each_block_of_an_axis(dtype: Any, tmp_path: Path) -> None:
    operands = {"x": np.float32([[8, 8, 8, 8, 8]]), "s": np.float32([[1, 2, 4]]), "z": np.array([[1, 2, 3]], dtype)}
    found = result("QuantizeLinear", operands, "x", tmp_path / "m.onnx", axis=1, block_size=2)
    np.testing.assert_array_equal(found, np.array([[9, 9, 6, 6, 5]], dtype), strict=True)
