"""Bad, hostile and unsupported ONNX files: each gives its named error, before anything large is allocated."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import BadModelError, TensorGraphsError, TooLargeError, UnsupportedError, UsageError  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402
from tensor_graphs.models.onnx.support_table import support_table  # noqa: E402

F = TensorProto.FLOAT


def info(name: str, shape: Any = (2, 3), kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, **attrs)


def save(folder: Path, nodes: list[Any], weights: Any = (), inputs: Any = None, outputs: Any = None, opset: int = 20, **more: Any) -> Path:  # fmt: skip
    """A model file from nodes; x[2, 3] in and y out unless told otherwise."""
    ins, outs = inputs or [info("x")], outputs or [info("y", ("rows", "columns"))]
    graph = helper.make_graph(nodes, "g", ins, outs, list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("vendor", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, **more)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def refused(file: Path, error: type[Exception], *words: str, **options: Any) -> Exception:
    """The error of loading the file; its text names the file and contains the words."""
    with pytest.raises(error) as caught:
        load_onnx(file, **options)
    assert type(caught.value) is error
    text = str(caught.value)
    for word in (*words, file.name):
        assert word in text, text
    return caught.value


# ---------------------------------------------------------------- 1: not a model
@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "random", "truncated", "other"])
def test_not_a_model(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    good = save(tmp_path, [node("Relu", ["x"], ["y"])]).read_bytes()
    file.unlink()
    contents = {"empty": b"", "text": b"once upon a time\n" * 30, "random": np.random.default_rng(0).bytes(500),
                "truncated": good[: len(good) * 2 // 3], "other": b"\x08\x0a"}  # fmt: skip
    if kind == "folder":
        file.mkdir()
    elif kind != "missing":
        file.write_bytes(contents[kind])
    refused(file, BadModelError)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes(seed: int, tmp_path: Path) -> None:
    """A model with a few bytes changed loads, or gives an error of ours; nothing else escapes."""
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    size = numpy_helper.from_array(np.array([2, -1], np.int64), "s")
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["b"], axis=-1), node("Reshape", ["b", "s"], ["c"]),
             node("Split", ["c"], ["d", "e"], axis=1, num_outputs=2), node("Concat", ["d", "e"], ["y"], axis=0)]  # fmt: skip
    file = save(tmp_path, nodes, [weight, size])
    good, random = file.read_bytes(), np.random.default_rng(seed)
    outcomes = set()
    for _ in range(60):
        bad = bytearray(good)
        for spot in random.integers(0, len(bad), random.integers(1, 4)):
            bad[spot] = random.integers(256)
        file.write_bytes(bad)
        try:
            load_onnx(file, max_bytes=1 << 30)
            outcomes.add("loaded")
        except TensorGraphsError as error:
            assert str(file) in str(error)
            outcomes.add(type(error).__name__)
    assert "BadModelError" in outcomes and len(outcomes) > 1


# ---------------------------------------------------------------- 2: external data
def external(folder: Path, location: str, **more: Any) -> Path:
    """A model whose weight w[4, 3] lies in an external file."""
    weight = TensorProto(name="w", data_type=F, dims=[4, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        weight.external_data.add(key=key, value=str(value))
    return save(folder, [node("MatMul", ["w", "x"], ["y"])], [weight], inputs=[info("x", (3, 2))])


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "link.bin", "linked/secret.bin", "missing.bin", "",
                                      "a/../../secret.bin", "C:\\secret.bin", "..\\secret.bin"])  # fmt: skip
def test_external_data_that_escapes(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(48))
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    os.chmod(secret, 0o000)  # reading it would fail in another way (unless we are root)
    refused(external(folder, location), BadModelError, "'w'")


@pytest.mark.parametrize("more", [{"offset": 8}, {"offset": -8}, {"length": 4}, {"length": 1 << 60}, {"offset": "x"}])
def test_external_data_that_does_not_fit(more: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(48))
    refused(external(tmp_path, "w.bin", **more), BadModelError, "'w'")


def test_external_data_is_read_late(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    (tmp_path / "w.bin").write_bytes(bytes(8) + values.tobytes())
    graph = load_onnx(external(tmp_path, "w.bin", offset=8, length=48))
    assert not isinstance(graph.params["w"], np.ndarray)
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], values @ x)


# ---------------------------------------------------------------- 3: structure
@pytest.mark.parametrize(("nodes", "words"), [
    ([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])], ("'b'", "cycle")),
    ([node("Add", ["x", "ghost"], ["y"])], ("'ghost'", "nothing makes it")),
    ([node("Relu", ["x"], ["y"]), node("Tanh", ["x"], ["y"])], ("'y'", "twice")),
    ([node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])], ("'x'", "twice")),
    ([node("Relu", ["x"], ["z"])], ("'y'", "not computed")),
])  # fmt: skip
def test_broken_structure(nodes: list[Any], words: tuple[str, ...], tmp_path: Path) -> None:
    refused(save(tmp_path, nodes), BadModelError, *words)


def test_checker_and_shape_errors_name_the_node(tmp_path: Path) -> None:
    refused(save(tmp_path, [node("Relu", ["x", "x"], ["y"], name="odd")]), BadModelError, "odd")
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    refused(save(tmp_path, [node("MatMul", ["x", "w"], ["y"], name="bad")], [weight]), BadModelError, "bad", "3 and 4")
    refused(save(tmp_path, [node("Softmax", ["x"], ["y"], axis=7, name="far")]), BadModelError, "far")
    refused(save(tmp_path, [node("Gelu", ["x"], ["y"], approximate="odd", name="new")]), BadModelError, "new", "odd")


# ---------------------------------------------------------------- 4: initializers
@pytest.mark.parametrize("dims", [[-4, 3], [1 << 40, 1 << 40], [1 << 62, 4], [4, 4], [0, 3]])
def test_initializer_dims(dims: list[int], tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=F, dims=dims, raw_data=bytes(48))
    refused(save(tmp_path, [node("MatMul", ["x", "w"], ["y"])], [weight]), BadModelError, "'w'")


def test_initializer_dims_of_typed_data(tmp_path: Path) -> None:
    for dims in ([1 << 40, 1 << 20], [-1, 3], [5, 5]):
        weight = TensorProto(name="w", data_type=F, dims=dims, float_data=[0.0] * 12)
        refused(save(tmp_path, [node("MatMul", ["x", "w"], ["y"])], [weight]), BadModelError)


# ---------------------------------------------------------------- 5: far too large
def big(*values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), "s")


HUGE = 1 << 21
LARGE = {
    "ConstantOfShape": (
        [node("ConstantOfShape", ["s"], ["c"]), node("ReduceSum", ["c"], ["r"]), node("Add", ["x", "r"], ["y"])],
        big(HUGE, HUGE),
    ),
    "Expand": ([node("Expand", ["x", "s"], ["y"])], big(HUGE, HUGE, 2, 3)),
    "Tile": ([node("Tile", ["x", "s"], ["y"])], big(HUGE, HUGE)),
    "Gather": (
        [
            node("ConstantOfShape", ["s"], ["i"], value=helper.make_tensor("v", 7, [1], [0])),
            node("Gather", ["x", "i"], ["y"]),
        ],
        big(HUGE, HUGE),
    ),
    "Pad": ([node("Pad", ["x", "s"], ["y"], mode="edge")], big(0, 0, 1 << 20, 1 << 42)),
    "Resize": ([node("Resize", ["x", "", "", "s"], ["y"], mode="linear")], big(HUGE, HUGE)),
    "OneHot": ([node("Cast", ["x"], ["i"], to=7), node("OneHot", ["i", "s", "v"], ["y"])], big(1 << 45)),
    "Range": ([node("Squeeze", ["s"], ["n"]), node("Range", ["zero", "n", "one"], ["y"])], big(1 << 50)),
}


@pytest.mark.parametrize("case", LARGE)
def test_ten_terabytes(case: str, tmp_path: Path) -> None:
    nodes, size = LARGE[case]
    extra = [numpy_helper.from_array(np.array(v), n) for n, v in (("zero", 0), ("one", 1))]
    values = numpy_helper.from_array(np.array([0, 1], np.float32), "v")
    file = save(tmp_path, nodes, [size, values, *extra])
    load_onnx(save(tmp_path / ".", [node("Relu", ["x"], ["y"])]))  # imports done before memory is watched
    file = save(tmp_path, nodes, [size, values, *extra])
    tracemalloc.start()
    refused(file, TooLargeError, case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_function_bomb(tmp_path: Path) -> None:
    """Functions that call each other twice, forty deep: 2**40 nodes if inlined; and one that calls itself."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("vendor", 1)]

    def function(name: str, inner: str) -> Any:
        body = [node(inner, ["a"], ["m"], domain="vendor"), node(inner, ["m"], ["b"], domain="vendor")]
        return helper.make_function("vendor", name, ["a"], ["b"], body, imports)

    leaf = helper.make_function("vendor", "f0", ["a"], ["b"], [node("Relu", ["a"], ["b"])], imports)
    bomb = [leaf, *(function(f"f{i + 1}", f"f{i}") for i in range(40))]
    call = [node("f40", ["x"], ["y"], domain="vendor")]
    refused(save(tmp_path, call, functions=bomb), TooLargeError, "nodes")
    refused(save(tmp_path, [node("f1", ["x"], ["y"], domain="vendor")], functions=[function("f1", "f1")]), BadModelError, "calls itself")  # fmt: skip
    graph = load_onnx(save(tmp_path, [node("f3", ["x"], ["y"], domain="vendor")], functions=bomb[:4]))
    assert evaluate(graph, {"x": np.full((2, 3), -1, np.float32)})[0].max() == 0


# ---------------------------------------------------------------- 6: unsupported
def test_nested_loops_are_counted_while_they_are_unrolled(tmp_path: Path) -> None:
    """60 iterations, five levels deep, are 777 million operations."""

    def body(levels: int) -> Any:
        inner = (
            node("Loop", ["m", "on", "v"], ["w"], body=body(levels - 1)) if levels else node("Add", ["v", "v"], ["w"])
        )
        given = [info(f"i{levels}", (), TensorProto.INT64), info(f"c{levels}", (), TensorProto.BOOL), info("v")]
        results = [info("go", (), TensorProto.BOOL), info("w")]
        return helper.make_graph([inner, node("Identity", ["on"], ["go"])], "body", given, results)

    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in (("m", np.int64(60)), ("on", np.bool_(True)))]
    file = save(tmp_path, [node("Loop", ["m", "on", "x"], ["y"], body=body(4))], weights)
    with tg.settings.override(max_nodes=500):
        refused(file, TooLargeError, "operations, more than 500")


def test_everything_unsupported_is_listed_at_once(tmp_path: Path) -> None:
    nodes = [node("NonMaxSuppression", ["x", "x"], ["a"]), node("Unique", ["x"], ["b"]), node("Unique", ["x"], ["c"]),
             node("Magic", ["x"], ["d"], domain="vendor"), node("Nonsense", ["x"], ["e"]), node("Relu", ["x"], ["y"])]  # fmt: skip
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"hi"])
    error = refused(save(tmp_path, nodes, [text], opset=6), UnsupportedError, "Unique ×2")
    assert "convert_version(model, 17)" in error.hint
    assert isinstance(error, UnsupportedError)
    assert error.missing == {"NonMaxSuppression": 1, "Unique": 2, "vendor.Magic": 1, "Nonsense": 1, "dtype string": 1,
                             "opset 6 (supported: 7 to 28)": 1}  # fmt: skip


def test_unsupported_variants_are_listed_together(tmp_path: Path) -> None:
    """Found while building: two operators with operands that depend on data, and one with a training mode."""
    nodes = [node("Cast", ["x"], ["i"], to=7), node("Shape", ["x"], ["s0"]), node("Reshape", ["i", "s0"], ["j"]),
             node("Gather", ["j", "z"], ["row"]), node("Reshape", ["x", "row"], ["a"]), node("Expand", ["x", "row"], ["b"]),
             node("Relu", ["a"], ["a2"]), node("Add", ["a2", "b"], ["y"])]  # fmt: skip
    zero = numpy_helper.from_array(np.array(0), "z")
    error = refused(save(tmp_path, nodes, [zero]), UnsupportedError, "depends on data")
    assert isinstance(error, UnsupportedError) and len(error.missing) == 2


def test_unknown_rank_and_loops(tmp_path: Path) -> None:
    refused(save(tmp_path, [node("Relu", ["x"], ["y"])], inputs=[info("x", None)]), UnsupportedError, "unknown rank")
    body = helper.make_graph([node("Identity", ["c"], ["c2"]), node("Identity", ["v"], ["v2"])], "body",
                             [info("i", (), 7), info("c", (), 9), info("v")], [info("c2", (), 9), info("v2")])  # fmt: skip
    refused(save(tmp_path, [node("Loop", ["", "", "x"], ["y"], body=body)]), UnsupportedError, "Loop")


def test_outputs_need_no_shape(tmp_path: Path) -> None:
    """Tools that cut models leave such outputs; weights may lie beside the model."""
    weight = numpy_helper.from_array(np.ones(4096, np.float32), "w")
    file = save(
        tmp_path, [node("Add", ["x", "w"], ["y"])], [weight], inputs=[info("x", (4096,))], outputs=[info("y", None)]
    )
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, location="w.bin")
    assert load_onnx(file).outputs[0].shape == (4096,)


def test_unknown_dimension(tmp_path: Path) -> None:
    file = save(tmp_path, [node("Relu", ["x"], ["y"])], inputs=[info("x", ("n", 3))])
    refused(file, UsageError, "'m'", dims={"m": 2})
    refused(file, UsageError, "-1", dims={"n": -1})


# ---------------------------------------------------------------- 10, 11: odd names and shapes
NAMES = [
    "'; DROP TABLE costs; --",
    "<script>alert(1)</script>",
    "new\nline\r\0",
    "\u202etxt",
    "__import__('os')",
    "a" * 10**6,
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names(name: str, tmp_path: Path) -> None:
    """Names are data: the model loads and computes, and messages show them escaped and cut."""
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), f"w{name}")
    nodes = [node("MatMul", [name, f"w{name}"], [f"m{name}"], name=name), node("Relu", [f"m{name}"], [f"y{name}"], name=name)]  # fmt: skip
    file = save(tmp_path, nodes, [weight], inputs=[info(name, (f"n{name}", 3))], outputs=[info(f"y{name}", (2, 4))])
    graph = load_onnx(file)
    (free,) = graph.free_dims
    assert free.isidentifier() and len(free) < 100
    found = evaluate(graph.bind({free: 2}), {name: np.ones((2, 3), np.float32)})[0]
    np.testing.assert_array_equal(found, [[12, 15, 18, 21]] * 2)
    nodes[1].input[0] = f"ghost{name}"
    broken = save(tmp_path, nodes, [weight], inputs=[info(name, (2, 3))], outputs=[info(f"y{name}", (2, 4))])
    text = str(refused(broken, BadModelError, "ghost"))
    assert len(text) < 2000 and "\u202e" not in text and "\0" not in text


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 4), (1,) * 9, (2, 1) * 4 + (2,)])
def test_odd_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Rank 0, no elements, rank 9, sizes of 1; reversed and strided inputs."""
    nodes = [node("Add", ["x", "one"], ["a"]), node("Shape", ["a"], ["s"]), node("Reshape", ["a", "s"], ["b"], allowzero=1),
             node("Concat", ["s", "s"], ["s2"], axis=0), node("ReduceSum", ["b"], ["t"], keepdims=0), node("Mul", ["b", "t"], ["y"])]  # fmt: skip
    one = numpy_helper.from_array(np.float32(1), "one")
    graph = load_onnx(save(tmp_path, nodes, [one], inputs=[info("x", shape)]))
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for value in (x, np.array(x, order="F"), np.flip(x)):
        found = evaluate(graph, {"x": value})[0]
        np.testing.assert_allclose(found, (value + 1) * (value + 1).sum())


def test_same_value_returned_twice_and_unused_inputs(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])]
    file = save(
        tmp_path, nodes, inputs=[info("x"), info("unused", ("k",))], outputs=[info("y"), info("z"), info("x2")][:2]
    )
    graph = load_onnx(file)
    assert graph.names == ("y", "z") and graph.outputs[0] is graph.outputs[1]
    assert [i.attr("name") for i in graph.inputs] == ["x", "unused"]
    assert graph.structure == {"y": 0, "z": 1}


def test_branches_with_known_condition(tmp_path: Path) -> None:
    """If follows the branch that the sizes choose, which sees the names around it."""
    then = helper.make_graph([node("Add", ["x", "x"], ["r"])], "then", [], [info("r")])
    other = helper.make_graph([node("Neg", ["x"], ["q"])], "else", [], [info("q")])
    nodes = [node("Shape", ["x"], ["s"]), node("Size", ["s"], ["n"]), node("Equal", ["n", "two"], ["c"]),
             node("If", ["c"], ["y"], then_branch=then, else_branch=other)]  # fmt: skip
    two = numpy_helper.from_array(np.array(2), "two")
    graph = load_onnx(save(tmp_path, nodes, [two]))
    assert graph.counts() == {"input": 1, "add": 1}


def test_branches_that_repeat_names(tmp_path: Path) -> None:
    """Two If nodes whose branches use the same names for different weights."""
    nodes = []
    for i, (source, target) in enumerate([("x", "a"), ("a", "y")]):
        weight = numpy_helper.from_array(np.full((3, 3), i + 1, np.float32), "w")
        body = helper.make_graph([node("MatMul", [source, "w"], ["r"])], "body", [], [info("r")], [weight])
        nodes.append(node("If", ["yes"], [target], then_branch=body, else_branch=body))
    graph = load_onnx(save(tmp_path, nodes, [numpy_helper.from_array(np.array(True), "yes")]))
    found = evaluate(graph, {"x": np.ones((2, 3), np.float32)})[0]
    np.testing.assert_array_equal(found, np.full((2, 3), 18))


def test_support_table_is_the_published_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "onnx-support.md"
    assert page.read_text() == support_table(), (
        "run: python -m tensor_graphs.models.onnx.support_table > docs/onnx-support.md"
    )
    assert support_table().count("\n| ") > 120


@pytest.mark.parametrize(("size", "pieces"), [(5, 4), (2, 4), (7, 5)])
def test_pieces_that_a_size_does_not_have_are_said(tmp_path: Path, size: int, pieces: int) -> None:
    names = [f"y{i}" for i in range(pieces)]
    file = save(tmp_path, [node("Split", ["x"], names, axis=0, num_outputs=pieces)],
                inputs=[info("x", (size,))], outputs=[info(n, ("n",)) for n in names])  # fmt: skip
    with pytest.raises(BadModelError, match=f"{size} elements do not make {pieces} pieces"):
        load_onnx(file)


def test_sizes_that_depend_on_values_have_a_hint(tmp_path: Path) -> None:
    file = save(tmp_path, [node("NonZero", ["x"], ["y"])], outputs=[info("y", (2, "n"), TensorProto.INT64)])
    with pytest.raises(UnsupportedError, match="depends on data") as caught:
        load_onnx(file)
    assert "Where" in caught.value.hint


def test_a_condition_that_is_longer_than_its_axis_selects_nothing_beyond(tmp_path: Path) -> None:
    """`Compress` of two rows by three conditions: what the third one selects does not exist."""
    keep = numpy_helper.from_array(np.array([True, False, True]), "keep")
    with pytest.raises(TensorGraphsError, match="outside size 2"):
        load_onnx(save(tmp_path, [node("Compress", ["x", "keep"], ["y"], axis=0)], [keep]))
    load_onnx(save(tmp_path, [node("Compress", ["x", "keep"], ["y"], axis=1)], [keep]))


# ---------------------------------------------------------------- signatures: what ONNX's checker does not compare
def ints(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def floats(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


X4 = [info("x", (1, 2, 4, 4))]


@pytest.mark.parametrize(("bad", "weights", "inputs", "word"), [
    # dtypes: not the operator's, or not that of the other operand
    (node("Add", ["x", "n"], ["y"]), [ints("n", [1, 2, 3])], None, "takes one dtype"),
    (node("Exp", ["n"], ["y"]), [ints("n", [1, 2, 3])], None, "does not take"),
    (node("And", ["x", "x"], ["y"]), [], None, "does not take"),
    (node("DequantizeLinear", ["n", "s", "z"], ["y"]), [numpy_helper.from_array(np.ones(3, np.uint8), "n"), floats("s"),
     numpy_helper.from_array(np.array(1, np.int8), "z")], None, "takes one dtype"),
    (node("Tile", ["x", "r"], ["y"]), [numpy_helper.from_array(np.array([1, 2], np.float32), "r")], None, "does not take"),
    # numbers outside of an attribute's range, which counted as another value
    (node("ReduceSum", ["x"], ["y"], keepdims=-5), [], None, "keepdims is -5"),
    (node("LpNormalization", ["x"], ["y"], p=3), [], None, "p is 3"),
    (node("MeanVarianceNormalization", ["x"], ["y"], axes=[7]), [], X4, "axis 7"),
    (node("Resize", ["x", "", "", "s"], ["y"], axes=[7]), [ints("s", [8])], X4, "axis 7"),
    (node("Resize", ["x", "", "", "s"], ["y"], axes=[2, 2]), [ints("s", [8, 8])], X4, "repeat"),
    (node("ReverseSequence", ["x", "n"], ["y"], batch_axis=9), [ints("n", [1])], [info("x", (1, 3))], "batch_axis"),
    (node("Attention", ["x", "x", "x"], ["y"], softcap=-1.0), [], X4, "softcap"),
    # lists of another length, which were cut
    (node("CenterCropPad", ["x", "s"], ["y"], axes=[2, 3]), [ints("s", [2])], X4, "sizes"),
    (node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1]), [], X4, "pads"),
    (node("ConvTranspose", ["x", "w"], ["y"], kernel_shape=[3, 3]), [floats("w", 2, 1, 2, 2)], X4, "kernel_shape"),
    (node("ConvTranspose", ["x", "w"], ["y"], output_padding=[1, 1, 1]), [floats("w", 2, 1, 2, 2)], X4, "output_padding"),
    # operands that made the result larger, or were broadcast
    (node("PRelu", ["x", "w"], ["y"]), [floats("w", 4, 2, 3)], None, "broadcast"),
    (node("Gemm", ["x", "w", "b"], ["y"]), [floats("w", 3, 1), floats("b", 2, 4)], None, "broadcast"),
    (node("Gemm", ["x", "x"], ["y"]), [], [info("x", (2, 2, 2))], "matrices"),
    (node("QuantizeLinear", ["x", "s"], ["y"]), [floats("s", 4)], [info("x", (2, 1))], "axis 1"),
    (node("NegativeLogLikelihoodLoss", ["x", "n"], ["y"]), [ints("n", [1])], None, "shape [2]"),
    (node("GatherElements", ["x", "n"], ["y"]), [ints("n", np.zeros((2, 5)))], None, "positions"),
    (node("GatherND", ["x", "n"], ["y"]), [ints("n", [[0, 0, 1]])], None, "index tuples"),
    (node("Einsum", ["x"], ["y"], equation="ii->i"), [], None, "axes of size"),
    (node("GlobalMaxPool", ["x"], ["y"]), [], None, "spatial"),
    (node("GRU", ["x", "w", "r"], ["y"], hidden_size=7), [floats("w", 1, 6, 4), floats("r", 1, 6, 2)], [info("x", (1, 2, 4))], "hidden_size"),
    (node("LSTM", ["x", "w", "r"], ["y"]), [floats("w", 3, 8, 4), floats("r", 1, 8, 2)], [info("x", (1, 2, 4))], "operand 1"),
    (node("ConstantOfShape", ["n"], ["y"], value=ints("v", [1, 2])), [ints("n", [2, 3])], None, "2 values"),
    (node("Constant", [], ["y"], value_int=1, value_float=2.0), [], None, "2 values"),
    (node("RotaryEmbedding", ["x", "c", "c"], ["y"]), [floats("c", 1, 3, 1)], [info("x", (1, 2, 3, 3))], "no pairs"),
    (node("ArgMax", ["x"], ["y"]), [], [info("x", (0, 3))], "no element to choose"),
], ids=lambda v: v.op_type if hasattr(v, "op_type") else "")  # fmt: skip
def test_nodes_against_their_operator(bad: Any, weights: list[Any], inputs: Any, word: str, tmp_path: Path) -> None:
    outputs = [helper.make_tensor_value_info("y", F, None)]
    refused(save(tmp_path, [bad], weights, inputs, outputs, opset=23), BadModelError, word)


def test_default_values_of_function_attributes(tmp_path: Path) -> None:
    """ONNX's inliner leaves them out."""
    body = helper.make_function(
        "vendor", "F", ["a"], ["b"], [node("LeakyRelu", ["a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    body.node[0].attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    body.attribute_proto.append(helper.make_attribute("alpha", 0.25))
    outer = helper.make_function("vendor", "G", ["a"], ["b"], [node("F", ["a"], ["b"], domain="vendor")],
                                 [helper.make_opsetid("", 20), helper.make_opsetid("vendor", 1)])  # fmt: skip
    x = np.array([[-4, 0, 4]] * 2, np.float32)
    for op, more, slope in (("F", {}, 0.25), ("F", {"alpha": 0.5}, 0.5), ("G", {}, 0.25)):
        file = save(tmp_path, [node(op, ["x"], ["y"], domain="vendor", **more)], functions=[body, outer])
        np.testing.assert_array_equal(evaluate(load_onnx(file), {"x": x})[0], np.where(x < 0, slope * x, x))


def test_overloaded_functions(tmp_path: Path) -> None:
    """A function may call another one of its name."""
    bodies = [
        helper.make_function(
            "vendor", "F", ["a"], ["b"], [made], [helper.make_opsetid("", 20), helper.make_opsetid("vendor", 1)]
        )
        for made in (node("Neg", ["a"], ["b"]), node("F", ["a"], ["b"], domain="vendor", overload="one"))
    ]
    bodies[0].overload, bodies[1].overload = "one", "two"
    file = save(tmp_path, [node("F", ["x"], ["y"], domain="vendor", overload="two")], functions=bodies)
    assert evaluate(load_onnx(file), {"x": np.ones((2, 3), np.float32)})[0][0, 0] == -1
    body = helper.make_function("", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 20)])
    refused(save(tmp_path, [node("Relu", ["x"], ["y"])], functions=[body]), BadModelError, "'Relu'")
    refused(
        save(tmp_path, [node("F", ["x"], ["y"], domain="vendor")], functions=[bodies[0]] * 2), BadModelError, "inlined"
    )


def test_declarations_that_contradict(tmp_path: Path) -> None:
    relu, add = node("Relu", ["x"], ["y"]), node("Add", ["x", "w"], ["y"])
    refused(save(tmp_path, [relu], outputs=[info("y", (2, 3), TensorProto.INT64)]), BadModelError, "'y'", "declared")
    for declared in (info("w", (2, 3)), info("w", (3,), TensorProto.INT64)):
        refused(save(tmp_path, [add], [floats("w", 3)], [info("x"), declared]), BadModelError, "'w'", "declared")


def branch(outputs: int) -> Any:
    names = ["p", "q"][:outputs]
    return helper.make_graph([node("Neg", ["x"], [n]) for n in names], "branch", [], [info(n) for n in names])


def test_subgraphs_of_other_numbers_of_values(tmp_path: Path) -> None:
    yes = numpy_helper.from_array(np.array(True), "c")
    for inside, outside in ((1, 2), (2, 1)):
        made = node("If", ["c"], ["y", "z"][:outside], then_branch=branch(inside), else_branch=branch(inside))
        refused(save(tmp_path, [made], [yes], outputs=[info("y"), info("z")][:outside]), BadModelError, "branch")
    carried = helper.make_graph([node("Add", ["v", "x"], ["o"]), node("Identity", ["k"], ["g"])], "body",
                                [info("i", (), TensorProto.INT64), info("k", (), TensorProto.BOOL), info("v")],
                                [info("g", (), TensorProto.BOOL), info("o")])  # fmt: skip
    many = [ints("m", 2), yes]
    refused(save(tmp_path, [node("Loop", ["m", "c", "x"], ["y", "z"], body=carried)], many), BadModelError, "body")
    carried.initializer.append(floats("v", 2, 3))
    refused(save(tmp_path, [node("Loop", ["m", "c", "x"], ["y"], body=carried)], many), BadModelError, "initializer")


def test_sizes_keep_their_dtype(tmp_path: Path) -> None:
    """int32 arithmetic on free sizes meets int32 constants, and comparisons of sizes are bools."""
    one = numpy_helper.from_array(np.array([1], np.int32), "one")
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["i"], to=TensorProto.INT32), node("Gather", ["i", "at"], ["d"]),
             node("Mul", ["d", "one"], ["e"]), node("Cast", ["e"], ["f"], to=TensorProto.INT64),
             node("Concat", ["f", "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])]  # fmt: skip
    for at in (0, 1):
        file = save(tmp_path, nodes, [one, ints("at", [at]), ints("minus", [-1])], [info("x", ("n", 3))])
        assert evaluate(load_onnx(file, dims={"n": 2}), {"x": np.ones((2, 3), np.float32)})[0].shape == (2 + at, 3 - at)
        assert load_onnx(file)
    total = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["p"], noop_with_empty_axes=1),
        node("Reshape", ["x", "p"], ["y"]),
    ]
    assert load_onnx(save(tmp_path, total, inputs=[info("x", ("n", 3))])).outputs[0].rank == 2
