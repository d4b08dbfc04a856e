"""Shape arithmetic of ONNX models: with free sizes it stays symbolic, with known ones nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tensor_graphs.egraph.builders import builders as t  # noqa: E402
from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.egraph.ir.graph import Graph  # noqa: E402
from tensor_graphs.egraph.types.dims import bind, dim  # noqa: E402
from tensor_graphs.errors import BadModelError, ShapeError, UnsupportedError, UsageError  # noqa: E402
from tensor_graphs.models.common.sizes import scaled_size  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402
from tensor_graphs.models.onnx.shapes import bounds  # noqa: E402
from tensor_graphs.pipeline.sources.source import bound  # noqa: E402

node = helper.make_node
INTS = {"zero": [0], "one": [1], "two": [2], "minus": [-1], "i0": 0, "i1": 1, "big": [2**63 - 1], "axes0": [0]}


def build(folder: Path, nodes: list[Any], shape: tuple[Any, ...] = ("n", "m", 6)) -> Path:
    """A model file from x of a free shape to y, with a few named integer constants."""
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in INTS.items()]
    ins = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows",))]
    graph = helper.make_graph(nodes, "g", ins, outs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return file


SIZES = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Gather", ["s", "one"], ["m"])]
#: name -> (nodes computing y from x, NumPy's view of the same)
PROGRAMS: dict[str, tuple[list[Any], Any]] = {
    "merge": ([*SIZES, node("Mul", ["n", "m"], ["nm"]), node("Concat", ["nm", "minus"], ["t"], axis=0),
               node("Reshape", ["x", "t"], ["y"])], lambda x: x.reshape(x.shape[0] * x.shape[1], -1)),
    "split heads": ([*SIZES, node("Concat", ["n", "m", "two", "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["r"]),
                     node("Transpose", ["r"], ["y"], perm=[0, 2, 1, 3])],
                    lambda x: x.reshape(*x.shape[:2], 2, 3).swapaxes(1, 2)),
    "drop last": ([*SIZES, node("Sub", ["m", "one"], ["e"]), node("Slice", ["x", "zero", "e", "one"], ["y"])],
                  lambda x: x[:, :-1]),
    "negative ends": ([node("Slice", ["x", "minus", "big", "one"], ["y"])], lambda x: x[:, -1:]),
    "positions": ([*SIZES, node("Squeeze", ["m"], ["k"]), node("Range", ["i0", "k", "i1"], ["r"]),
                   node("Cast", ["r"], ["f"], to=1), node("Unsqueeze", ["f", "one"], ["u"]), node("Add", ["x", "u"], ["y"])],
                  lambda x: x + np.arange(x.shape[1], dtype="f4")[:, None]),
    "expand": ([node("Shape", ["x"], ["s"]), node("Equal", ["s", "minus"], ["q"]), node("ConstantOfShape", ["three"], ["o"],
                value=helper.make_tensor("v", 7, [1], [1])), node("Where", ["q", "o", "s"], ["t"]),
                node("ReduceMax", ["x", "one"], ["r"]), node("Expand", ["r", "t"], ["y"])],
               lambda x: np.broadcast_to(x.max(1, keepdims=True), x.shape)),
    "as a number": ([*SIZES, node("Cast", ["m"], ["f"], to=1), node("Div", ["x", "f"], ["y"])], lambda x: x / np.float32(x.shape[1])),
    "halves": ([*SIZES, node("Div", ["m", "two"], ["h"]), node("Slice", ["x", "zero", "h", "one"], ["y"])],
               lambda x: x[:, : x.shape[1] // 2]),
    "count": ([node("Size", ["x"], ["k"]), node("Cast", ["k"], ["f"], to=1), node("Sub", ["x", "f"], ["y"])], lambda x: x - x.size),
    "tiled": ([*SIZES, node("Concat", ["one", "n", "one"], ["t"], axis=0), node("Tile", ["x", "t"], ["y"])],
              lambda x: np.tile(x, (1, x.shape[0], 1))),
}  # fmt: skip
INTS["three"] = [3]


@pytest.mark.parametrize("name", PROGRAMS)
def test_free_and_given_sizes_agree(name: str, tmp_path: Path) -> None:
    """The same file with free sizes, bound later, and with sizes given at load: both are what NumPy says."""
    nodes, wanted = PROGRAMS[name]
    file = build(tmp_path, nodes)
    free = load_onnx(file)
    assert set(free.free_dims) == {"n", "m"}
    for n, m in [(2, 4), (5, 3), (1, 2)]:
        x = np.random.default_rng(0).standard_normal((n, m, 6)).astype(np.float32)
        fixed = load_onnx(file, dims={"n": n, "m": m})
        for graph in (free.bind({"n": n, "m": m}), fixed):
            np.testing.assert_allclose(evaluate(graph, {"x": x})[0], wanted(x), rtol=1e-6)
        assert fixed.outputs[0].shape == wanted(x).shape
        assert not any(v.dtype == "int64" and v.op in ("mul", "add", "sub", "concat", "gather") for v in fixed.nodes())


@pytest.mark.parametrize(("start", "end", "step", "wanted"), [
    (-9, -(2**62), -1, [0]), (-1, -(2**62), -2, [5, 3, 1]), (9, 0, -3, [5, 2]), (-3, 9, 2, [3, 5]), (4, 2, 1, []),
])  # fmt: skip
def test_ends_of_slices(start: int, end: int, step: int, wanted: list[int], tmp_path: Path) -> None:
    """Bounds outside the axis are moved to its ends, which differs from Python for steps below zero."""
    for name, value in (("a", start), ("b", end), ("c", step)):
        INTS[name] = [value]
    graph = load_onnx(build(tmp_path, [node("Slice", ["x", "a", "b", "zero", "c"], ["y"])], (6,)))
    assert evaluate(graph, {"x": np.arange(6, dtype=np.float32)})[0].tolist() == wanted


def test_a_slice_that_is_empty_at_every_size(tmp_path: Path) -> None:
    INTS.update(a=[-1], b=[-9], c=[3])
    graph = load_onnx(build(tmp_path, [node("Slice", ["x", "a", "b", "zero", "c"], ["y"])], ("k",)))
    assert [evaluate(graph.bind({"k": k}), {"x": np.ones(k, "f4")})[0].shape for k in (1, 8, 12)] == [(0,)] * 3


def test_some_sizes_given(tmp_path: Path) -> None:
    """A size that is given is an int everywhere; the other stays free, and is checked when bound."""
    graph = load_onnx(build(tmp_path, PROGRAMS["drop last"][0]), dims={"m": 4})
    assert [str(d) for d in graph.outputs[0].shape] == ["n", "3", "6"]
    with pytest.raises(ShapeError):
        load_onnx(build(tmp_path, [node("Slice", ["x", "zero", "three", "one"], ["y"])])).bind({"n": 1, "m": 2})


def test_unnamed_sizes_get_names(tmp_path: Path) -> None:
    """Sizes without a name, with a name that is no identifier, and names that would collide."""
    graph = load_onnx(build(tmp_path, [node("Relu", ["x"], ["y"])], (None, "a-b", "a b")))
    assert [str(d) for d in graph.inputs[0].shape] == ["x_0", "a_b", "a_b_2"]
    given = load_onnx(build(tmp_path, [node("Relu", ["x"], ["y"])], (None, "a-b", "a b")), dims={"a-b": 3, "x_0": 2})
    assert [str(d) for d in given.inputs[0].shape] == ["2", "3", "a_b_2"]


@pytest.mark.parametrize(
    ("shape", "given", "found"),
    [
        (("past", "past + 1", "new"), {}, "(past, 1 + past, new)"),
        (("past", "new", "past + 2*new"), {"new": 3}, "(past, 3, 6 + past)"),
        (("past", "past + 1", 6), {"past + 1": 9}, "(past, 9, 6)"),
        (("sequence_length", "past_sequence_length", "total_sequence_length"), {"sequence_length": 1},
         "(1, past_sequence_length, 1 + past_sequence_length)"),
        (("total_sequence_length", "past_sequence_length", 6), {}, "(total_sequence_length, past_sequence_length, 6)"),
        (("sequence_length + total_sequence_length", "past_sequence_length", "sequence_length"), {"sequence_length": 1},
         "(sequence_length_total_sequence_length, past_sequence_length, 1)"),
        (("a-b", "a", "rows/2"), {}, "(a_b, a, rows_2)"),
    ],
)  # fmt: skip
def test_names_that_spell_other_sizes(
    shape: tuple[Any, ...], given: dict[str, int], found: str, tmp_path: Path
) -> None:
    """As exporters of decoders name them."""
    graph = load_onnx(build(tmp_path, [node("Relu", ["x"], ["y"])], shape), dims=given)
    assert f"({', '.join(map(str, graph.inputs[0].shape))})" == found


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    """A shape computed from values has no meaning here, and the message says which operand."""
    nodes = [
        node("Cast", ["x"], ["i"], to=7),
        node("Reshape", ["i", "minus"], ["f"]),
        node("Reshape", ["x", "f"], ["y"]),
    ]
    with pytest.raises(UnsupportedError, match=r"Reshape \(operand 1 depends on data\)"):
        load_onnx(build(tmp_path, nodes, (1, 2, 3)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("+-*/%"), st.integers(1, 7), st.booleans()), max_size=5), st.integers(1, 40))
def test_bounds_contain_every_value(steps: list[tuple[str, int, bool]], size: int) -> None:
    """The interval of an expression holds its value at any admitted size."""
    n: Any = dim("n", min=1, max=40)
    value: Any = n
    for op, k, symbolic in steps:
        other = n if symbolic and op in "+-*" else k
        value = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
                 "/": lambda a, b: a // b, "%": lambda a, b: a % b}[op](value, other)  # fmt: skip
    low, high = bounds(value)
    assert low <= bind(value, {"n": size}) <= high


@pytest.mark.parametrize(("size", "kernel", "pad", "stride", "extra"), [(1, 2, 1, 1, 0), (1, 1, 1, 2, 1), (2, 3, 2, 1, 0), (2, 2, 2, 2, 0)])  # fmt: skip
def test_a_transposed_convolution_without_outputs(
    size: int, kernel: int, pad: int, stride: int, extra: int, tmp_path: Path
) -> None:
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((2, 3, kernel, 2)).astype(np.float32), "w")
    how = {"strides": [stride, 1], "pads": [pad, 0, pad, 0], "output_padding": [extra, 0]}
    ins = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, size, 4))]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    turned = [node("ConvTranspose", ["x", "w"], ["y"], **how)]
    model = helper.make_model(helper.make_graph(turned, "g", ins, outs, [weight]))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    x = rng.standard_normal((1, 2, size, 4)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = evaluate(load_onnx(tmp_path / "model.onnx"), {"x": x})
    assert found.shape == wanted.shape == (1, 3, 0, 5) and found.dtype == wanted.dtype


def test_a_size_written_into_the_file_is_named(tmp_path: Path) -> None:
    baked = [*SIZES, node("Concat", ["two", "m", "two"], ["t"], axis=0), node("Reshape", ["x", "t"], ["r"], name="split"),
             node("Relu", ["r"], ["y"])]  # fmt: skip
    graph = load_onnx(build(tmp_path, baked, ("n", "m", 2)))
    with pytest.raises(BadModelError, match=r"^Reshape 'split': cannot reshape .* at n=1, m=128") as refused:
        bound(graph, {})
    assert "n=2" in refused.value.hint and refused.value.exit_code == 3
    assert bound(graph, {"n": 2, "m": 5})[0].outputs[0].shape == (2, 5, 2)
    with pytest.raises(ShapeError, match=r"^dimension n=0 is outside 1\.\.32768$"):
        bound(graph, {"n": 0, "m": 5})


def test_an_expression_that_fits_at_one_size_stays_a_shape_error() -> None:
    graph = Graph.of(t.reshape(t.input("x", (dim("T"), 3)), (4, 3)))
    with pytest.raises(ShapeError, match="at T=128") as refused:
        bound(graph, {})
    assert "T=4" in refused.value.hint
    with pytest.raises(UsageError) as unknown:
        Graph.of(t.input("x", (4, 3))).bind({"T": 3})
    assert unknown.value.hint == "the graph has no free dimensions"


@pytest.mark.parametrize(
    ("op", "index"), [("Gather", [0, 3]), ("Gather", [-1, -4]), ("Compress", [True, False, False, True, False, False])]
)
def test_known_places_need_sizes_that_have_them(op: str, index: list[Any], tmp_path: Path) -> None:
    """Elsewhere they were read from outside of the axis."""
    places = helper.make_tensor("v", 9 if op == "Compress" else 7, [len(index)], index)
    graph = load_onnx(
        build(tmp_path, [node("Constant", [], ["k"], value=places), node(op, ["x", "k"], ["y"], axis=0)], ("n", 2))
    )
    x = np.float32([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    for count in (4, 5):
        want = np.compress(index, x[:count], 0) if op == "Compress" else x[:count][index]
        np.testing.assert_array_equal(evaluate(graph.bind({"n": count}), {"x": x[:count]})[0], want)
    with pytest.raises(ShapeError, match="outside size 3"):
        graph.bind({"n": 3})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_an_axis_without_elements_has_no_largest_one(keepdims: int, tmp_path: Path) -> None:
    largest = [
        node("ArgMax", ["x"], ["i"], axis=1, keepdims=keepdims),
        node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    (empty,) = evaluate(load_onnx(build(tmp_path, largest, (0, 0, 6))), {"x": np.zeros((0, 0, 6), np.float32)})
    assert empty.shape == ((0, 1, 6) if keepdims else (0, 6))
    with pytest.raises(BadModelError, match="no element to choose"):
        load_onnx(build(tmp_path, largest, (2, 0, 6)))


@pytest.mark.parametrize("scales", [None, 1.5, 0.6])
@pytest.mark.parametrize(("mode", "place", "more"), [
    ("nearest", "asymmetric", {"nearest_mode": "floor"}), ("nearest", "align_corners", {}), ("linear", "half_pixel", {}),
    ("linear", "pytorch_half_pixel", {}), ("cubic", "half_pixel_symmetric", {"exclude_outside": 1, "cubic_coeff_a": -0.5}),
])  # fmt: skip
def test_free_axes_are_resized_as_fixed_ones(
    mode: str, place: str, more: dict[str, Any], scales: float | None, tmp_path: Path
) -> None:
    """Axes of free sizes are resized by fractional scales, and to sizes that depend on another one, as axes that
    have these sizes in the file are."""
    attrs = {"mode": mode, "coordinate_transformation_mode": place, **more}
    start: list[Any] = [*SIZES, node("Concat", ["m", "n", "two", "zero"], ["wide"], axis=0),
                        node("Slice", ["wide", "zero", "two"], ["to"])]  # fmt: skip
    value = numpy_helper.from_array(np.array([scales or 1, scales or 1], np.float32))
    start.append(node("Constant", [], ["scales"], value=value))
    operands = ["x", "", "scales"] if scales else ["x", "", "", "to"]
    file = build(tmp_path, [*start, node("Resize", operands, ["y"], axes=[0, 1], **attrs)])
    free = load_onnx(file)
    for n, m in ((4, 7), (1, 1), (2, 9), (6, 3)):
        x = np.random.default_rng(n).standard_normal((n, m, 6)).astype(np.float32)
        (found,) = evaluate(free.bind({"n": n, "m": m}), {"x": x})
        (wanted,) = evaluate(load_onnx(file, dims={"n": n, "m": m}), {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_free_size_times_a_factor_is_computed_in_integers() -> None:
    n = dim("n")
    assert scaled_size(7, 1.3) == 9 and scaled_size(n, 1.5) == n * 3 // 2
    assert scaled_size(n, float(np.float32(0.1))) is not None and scaled_size(n, 1.1) is None, "parts below 2^-30"
