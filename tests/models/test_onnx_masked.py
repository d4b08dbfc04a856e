"""ONNX models that pick and write by a mask: computed everywhere, written where the mask holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import BadModelError, UnsupportedError  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402

RNG = np.random.default_rng(5)
VALUES = {"x": RNG.standard_normal((3, 4)).astype(np.float32), "y": RNG.standard_normal((3, 4)).astype(np.float32),
          "z": RNG.standard_normal(4).astype(np.float32)}  # fmt: skip
#: y > 0, the places where it holds as [count, 2], and their number
MASK = [("Greater", ["y", "zero"], ["m"]), ("NonZero", ["m"], ["p"]), ("Transpose", ["p"], ["q"], {"perm": [1, 0]}),
        ("Reshape", ["m", "flat"], ["f"]), ("Cast", ["f"], ["i"], {"to": TensorProto.INT64}), ("ReduceSum", ["i"], ["n"])]  # fmt: skip


def model(folder: Path, nodes: list[Any]) -> Path:
    """A model of x[3, 4], y[3, 4] and z[4] that gives `out`."""
    numbers = {"zero": np.float32(0), "half": np.float32(0.5), "flat": np.array([-1], np.int64)}
    graph = helper.make_graph(
        [helper.make_node(op, given, made, **(rest[0] if rest else {})) for op, given, made, *rest in nodes], "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in VALUES.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()],
    )  # fmt: skip
    file = folder / "masked.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)
    return file


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
@pytest.mark.parametrize(
    "updates",
    [
        [("Expand", ["half", "n"], ["e"]), ("Reshape", ["e", "flat"], ["u"])],
        [("GatherND", ["y", "q"], ["g"]), ("Mul", ["g", "half"], ["h"]), ("Expand", ["h", "n"], ["e"]), ("Add", ["e", "g"], ["u"])],
        [("GatherND", ["y", "q"], ["g"]), ("Exp", ["g"], ["h"]), ("Cast", ["h"], ["u"], {"to": TensorProto.FLOAT})],
        [("GatherND", ["y", "q"], ["g"]), ("GatherND", ["x", "q"], ["h"]), ("Max", ["g", "h", "half"], ["u"])],
    ],
    ids=["a number", "arithmetic", "functions", "two values"],
)  # fmt: skip
def test_what_is_written_by_a_mask(tmp_path: Path, updates: list[Any], reduction: str) -> None:
    file = model(tmp_path, [*MASK, *updates, ("ScatterND", ["x", "q", "u"], ["out"], {"reduction": reduction})])
    graph = load_onnx(file)
    (found,) = evaluate(graph, VALUES)
    (wanted,) = ReferenceEvaluator(str(file)).run(None, VALUES)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [*MASK, ("GatherND", ["y", "q"], ["out"])],
        [*MASK, ("GatherND", ["y", "q"], ["g"]), ("ReduceMean", ["g"], ["out"])],
        [*MASK, ("GatherND", ["y", "q"], ["g"]), ("Add", ["g", "z"], ["out"])],
        [*MASK, ("Expand", ["z", "n"], ["u"]), ("ScatterND", ["x", "q", "u"], ["out"])],
        [*MASK, ("ScatterND", ["x", "p", "z"], ["out"])],
        [*MASK, ("Less", ["y", "zero"], ["l"]), ("NonZero", ["l"], ["a"]), ("Transpose", ["a"], ["b"]),
         ("GatherND", ["y", "b"], ["g"]), ("ScatterND", ["x", "q", "g"], ["out"])],
    ],
    ids=["an output", "a mean", "beside a vector", "vectors spread", "not turned", "another mask"],
)  # fmt: skip
def test_what_else_depends_on_how_many_there_are_is_refused(tmp_path: Path, nodes: list[Any]) -> None:
    with pytest.raises((UnsupportedError, BadModelError)) as caught:
        load_onnx(model(tmp_path, nodes))
    assert "data" in str(caught.value)
