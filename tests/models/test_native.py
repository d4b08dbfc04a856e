"""The project's own model file: exact round trips, and refusal of everything that `save_graph` would not write."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.composites import quantized_ops as q
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.file_array import FileArray
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.errors import BadModelError, BadWeightsError, TensorGraphsError, TooLargeError, UsageError
from tensor_graphs.models.files.graph_json import graph_from_json, graph_to_json
from tensor_graphs.models.files.native import KEY, load_graph, save_graph
from tensor_graphs.models.files.safetensors import write_arrays

INF = float("inf")
numbers = st.floats(width=32) | st.sampled_from([INF, -INF, float("nan"), -0.0, 0.0, 1e-45, 0.1])
N = t.dim("n", min=2, max=40)
SIZES = [1, 3, N, N + 1, 2 * N - 1, (N + 3) // 2, N % 3, N * N, 7 // (N + 1)]

UNARY: list[Callable[[Tensor], Tensor]] = [t.neg, t.exp, t.is_nan, c.gelu, lambda x: t.sum(x, 1, True),
                                           lambda x: c.softmax(x, axis=0), lambda x: t.swapaxes(x, 0, 1),
                                           lambda x: t.argmax(x, 0, True), lambda x: t.pad(x, [(0, N), (1, 0)], -0.0),
                                           lambda x: t.reshape(x, (1, *x.shape))[0]]  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of rank-2 values: all kinds of leaves, free dimensions, shared nodes, special floats."""
    shape = (draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES)))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float64"]))
    pool = [t.input("x", shape, dtype), t.state("s", shape, dtype), t.full(shape, draw(numbers), dtype)]
    pool.append(t.param("w/é\n", (1, 1), dtype))
    pool.append(t.cast(t.constant(np.array([[draw(numbers)]], np.float32)), dtype))
    pool.append(t.cast(t.iota(shape, 1), dtype))
    for _ in range(draw(st.integers(0, 8))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if x.dtype != "bool" and draw(st.booleans()):
            pool.append(t.cast(draw(st.sampled_from(UNARY))(t.cast(x, dtype)), dtype))
        elif x.shape == y.shape:
            pool.append(draw(st.sampled_from([t.add, t.mul, t.maximum]))(x, y))
        else:
            pool.append(c.clip(t.cast(x, dtype), lo=draw(numbers), hi=draw(st.sampled_from([1, 2.5, INF]))))
    outs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    data = np.full((1, 1), 2.0).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return Graph.of(
        {f"o{i}": o for i, o in enumerate(outs)} if draw(st.booleans()) else outs,
        params={"w/é\n": data} if draw(st.booleans()) else {},
        inputs=[pool[0], t.input("unused", (N,))],
        updates={"s": t.add(pool[1], 1.0)} if draw(st.booleans()) else {},
        name=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    )


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.mktemp("g") / "g.safetensors"
    save_graph(graph, path)
    found = load_graph(path)
    # Nodes are shared by structure: equal graphs are made of the same objects.
    assert found.outputs == graph.outputs and all(a is b for a, b in zip(found.roots, graph.roots, strict=True))
    assert all(a is b for a, b in zip(found.inputs, graph.inputs, strict=True))
    assert (found.names, found.structure, found.name) == (graph.names, graph.structure, graph.name)
    assert list(found.updates) == list(graph.updates) and set(found.params) == set(graph.params)
    assert found.digest() == graph.digest() and repr(found) == repr(graph)
    for name, data in found.params.items():
        assert isinstance(data, FileArray) and data.load().tobytes() == np.asarray(graph.params[name]).tobytes()
    assert graph_to_json(found)[0] == graph_to_json(graph)[0]


def test_small_weights_outlive_their_file(tmp_path: Path) -> None:
    """A file that is cut short does not end the process that has loaded a small weight; loading again is an error."""
    path = tmp_path / "w"
    path.write_bytes(bytes(range(256)) * 64)
    data = FileArray(path, 256, (64, 60), "float32")
    before = data.load()
    expected = before.copy()
    path.write_bytes(b"")
    assert np.array_equal(before.view(np.uint8), expected.view(np.uint8)) and not before.flags.writeable
    with pytest.raises(BadWeightsError, match="has 0 bytes"):
        data.load()


@pytest.mark.parametrize("structure", [None, 0, (0, 1), [1, {"a": (0,), 2: [1, None]}], {"": ()}, ([],)])
def test_structures_come_back(tmp_path: Path, structure: Any) -> None:
    x = t.input("x", (2,))
    save_graph(Graph((x, t.neg(x)), ("a", "b"), (x,), structure=structure), tmp_path / "g.safetensors")
    found = load_graph(tmp_path / "g.safetensors").structure
    assert found == structure and type(found) is type(structure)


def test_sizes_as_numbers_come_back(tmp_path: Path) -> None:
    n = dim("n", max=9)
    graph = Graph.of(
        make("full", (), {"value": 2 * n + 1, "shape": (n,), "dtype": "int64"}), inputs=[t.input("x", (n,))]
    )
    save_graph(graph, tmp_path / "g.safetensors")
    assert load_graph(tmp_path / "g.safetensors").outputs == graph.outputs


def test_foreign_structures_are_refused_before_writing(tmp_path: Path) -> None:
    x = t.input("x", (2,))
    with pytest.raises(UsageError, match="slice"):
        save_graph(Graph((x,), ("a",), (x,), structure=slice(0)), tmp_path / "g.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_loaded_model_computes_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = t.input("x", (3, 4)), t.param("w", (4, 4))
    y = c.softmax(t.matmul(x, w) * 3.0 + t.constant(rng.standard_normal((1, 4)).astype(np.float32)), axis=1)
    graph = Graph.of(y, params={"w": rng.standard_normal((4, 4)).astype(np.float32)})
    save_graph(graph, tmp_path / "g.safetensors")
    values = {"x": rng.standard_normal((3, 4)).astype(np.float32)}
    assert evaluate(load_graph(tmp_path / "g.safetensors"), values)[0].tobytes() == evaluate(graph, values)[0].tobytes()


# ---------------------------------------------------------------- malformed files
def base() -> dict[str, Any]:
    """A small valid graph as JSON: x, w, x @ w, a fill of size n."""
    x, w = t.input("x", (N, 4)), t.param("w", (4, 4))
    return graph_to_json(Graph.of(c.relu(t.matmul(x, w) + t.full((1, 1), 2.0))))[0]


def node(op: str) -> Callable[[dict[str, Any]], Any]:
    return lambda g: next(n for n in g["nodes"] if n[0] == op)


def assign(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets g[path[0]]…[path[-2]] to path[-1]; a function in the path picks a node."""

    def change(g: dict[str, Any]) -> None:
        at: Any = g
        for step in path[:-2]:
            at = step(at) if callable(step) else at[step]
        at[path[-2]] = path[-1]

    return change


DEEP: Any = 1
for _ in range(100):
    DEEP = {"sum": [[1, [{"//": [DEEP, 2]}]]]}
MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], None], type[Exception], str]] = {
    "version": (assign("version", 99), BadModelError, "version 99"),
    "missing-key": (lambda g: g.pop("updates"), BadModelError, "keys"),
    "extra-key": (assign("code", "import os"), BadModelError, "keys"),
    "self-cycle": (assign(node("matmul"), 1, 0, 2), BadModelError, "cycle"),
    "forward-edge": (assign(node("matmul"), 1, 0, 4), BadModelError, "cycle"),
    "absent-node": (assign(node("matmul"), 1, 0, 10**6), BadModelError, "not there"),
    "negative-node": (assign(node("matmul"), 1, 0, -1), BadModelError, "not there"),
    "bool-node": (assign(node("matmul"), 1, 0, True), BadModelError, "an operand"),
    "unknown-op": (assign(node("matmul"), 0, "os.system"), BadModelError, "'os.system' ×1"),
    "arity": (assign(node("matmul"), 1, [0]), BadModelError, "takes 2 operands"),
    "type-mismatch": (assign(node("param"), 2, "dtype", "float64"), BadModelError, "different dtypes"),
    "shape-mismatch": (assign(node("param"), 2, "shape", [5, 4]), BadModelError, "contracted sizes"),
    "stated-type": (assign("outputs", 0, 2, ["float32", [3, 3]]), BadModelError, "is declared as"),
    "extra-attribute": (assign(node("matmul"), 2, "x", 1), BadModelError, "attributes"),
    "missing-attribute": (assign(node("full"), 2, {}), BadModelError, "attributes"),
    "huge": (assign(node("full"), 2, "shape", [1 << 30, 1 << 30]), TooLargeError, "bytes"),
    "huge-dim": (assign(node("full"), 2, "shape", [1 << 80, 1]), BadModelError, "62 bits"),
    "many-axes": (assign(node("full"), 2, "shape", [1] * 40), TooLargeError, "40 axes"),
    "negative-dim": (assign(node("full"), 2, "shape", [-1, 1]), BadModelError, "negative"),
    "float-dim": (assign(node("full"), 2, "shape", [1.5, 1]), BadModelError, "a dimension"),
    "deep-dim": (assign(node("full"), 2, "shape", [DEEP, 1]), BadModelError, "deeply"),
    "long-dim": (assign(node("full"), 2, "shape", [{"sum": [[1, []]] * 2000}, 1]), BadModelError, "more than 1024"),
    "zero-quotient": (assign(node("full"), 2, "shape", [{"sum": [[1, [{"//": [3, 0]}]]]}, 1]), BadModelError, "//"),
    "dim-name": (assign(node("input"), 2, "shape", [{"sum": [[1, [{"size": "a b", "min": 1, "max": 2}]]]}, 4]),
                 BadModelError, "not a name"),
    "foreign-atom": (assign(node("input"), 2, "shape", [{"sum": [[1, [{"exec": "1"}]]]}, 4]), BadModelError, "keys"),
    "float-attribute": (assign(node("full"), 2, "value", "two"), BadModelError, "a float"),
    "dtype": (assign(node("full"), 2, "dtype", "object"), BadModelError, "a dtype"),
    "constant-elsewhere": (assign(node("full"), slice(0, 3), ["constant", [], {"tensor": "gone"}]), BadModelError,
                           "one tensor of the file"),
    "no-output": (assign("outputs", []), BadModelError, "no output"),
    "output-position": (assign("outputs", 0, 1, 77), BadModelError, "not there"),
    "structure": (assign("structure", {"tuple": [3]}), BadModelError, "output 3 of 1"),
    "structure-kind": (assign("structure", {"set": [0]}), BadModelError, "structure"),
    "input-unlisted": (assign("inputs", []), BadModelError, "not listed"),
    "input-twice": (assign("inputs", [0, 0]), BadModelError, "distinct"),
    "input-kind": (assign("inputs", [1]), BadModelError, "distinct input nodes"),
    "update-twice": (assign("updates", [["s", 0], ["s", 1]]), BadModelError, "twice"),
    "node-form": (assign("nodes", 0, {"op": "input"}), BadModelError, "node 0"),
    "nodes-form": (assign("nodes", "all"), BadModelError, "nodes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_graphs_are_refused(tmp_path: Path, kind: str) -> None:
    change, error, words = MALFORMED[kind]
    value = copy.deepcopy(base())
    change(value)
    path = tmp_path / "g.safetensors"
    write_arrays(path, {}, {KEY: json.dumps(value)})
    with pytest.raises(error) as caught:
        load_graph(path)
    assert type(caught.value) is error and words in str(caught.value) and str(path) in str(caught.value)


def test_the_base_of_these_is_good() -> None:
    assert graph_from_json(base(), {}).outputs[0].op == "relu"


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_json_is_read_or_refused(data: st.DataObject) -> None:
    value = copy.deepcopy(base())
    spots = [(value, k) for k in value]
    for holder, key in spots:  # grows: every place in the nested value
        inner = holder[key]
        spots += [(inner, k) for k in (inner if isinstance(inner, dict) else range(len(inner)))] if isinstance(
            inner, dict | list) else []  # fmt: skip
    holder, key = data.draw(st.sampled_from(spots))
    holder[key] = data.draw(st.sampled_from([None, True, -1, 0, 3, 1 << 70, 1.5, "", "x", [], [[]], {}, {"sum": []}]))
    try:
        found = graph_from_json(value, {})
    except TensorGraphsError as problem:
        assert isinstance(problem, BadModelError)
    else:
        assert graph_to_json(found)[0]["nodes"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"version": 1, "version": 1}', '{"version": NaN}'])
def test_metadata_that_is_no_graph(tmp_path: Path, text: str) -> None:
    write_arrays(tmp_path / "g.safetensors", {}, {KEY: text})
    with pytest.raises(BadModelError, match="graph"):
        load_graph(tmp_path / "g.safetensors")


def test_param_data_must_fit(tmp_path: Path) -> None:
    for data in (np.zeros((4, 5), np.float32), np.zeros((4, 4), np.float16)):
        write_arrays(tmp_path / "g.safetensors", {"param/w": data}, {KEY: json.dumps(base())})
        with pytest.raises(BadModelError, match="'w'"):
            load_graph(tmp_path / "g.safetensors")
    write_arrays(tmp_path / "g.safetensors", {"param/w": np.zeros((4, 4), np.float32)}, {KEY: json.dumps(base())})
    assert set(load_graph(tmp_path / "g.safetensors").params) == {"w"}


def test_a_process_that_built_no_quantized_graph_reads_one(tmp_path: Path) -> None:
    """Reading a file registers all composite ops, also those that `import tensor_graphs` leaves out."""
    codes = t.input("codes", (4, 8), "uint8")
    whole = q.dequantize(codes, t.input("scale", (4, 1), "float32"), t.full((1, 1), 8.0, "float32"))
    save_graph(Graph.of({"y": whole}), tmp_path / "m.safetensors")
    code = "import sys; from tensor_graphs.models.files.native import load_graph; print(load_graph(sys.argv[1]).names)"
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.safetensors")], capture_output=True, text=True, timeout=300
    )
    assert (found.stdout.strip(), found.stderr) == ("('y',)", "")
