"""The file between saturate and extract: what goes in comes out, and a hostile file gets a named error."""

import copy
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs import errors
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.explorer import egraph_file

Document = dict[str, Any]


def attention_graph() -> tg.Graph:
    """Two outputs in a structure, an unused input, a mutated state, bfloat16 weights, a constant."""
    rng = np.random.default_rng(0)
    x, unused, cache = tg.input("x", (1, 4, 16)), tg.input("unused", (3,)), tg.state("cache", (1, 4, 16))
    w = tg.param("w", (16, 16), "bfloat16")
    q = x @ w.astype("float32")
    y = tg.softmax(q @ (x + cache).mT * 0.25) @ x
    bias = tg.constant(np.linspace(0, 1, 16, dtype=np.float32))
    import ml_dtypes

    data = rng.standard_normal((16, 16)).astype(ml_dtypes.bfloat16)
    return tg.Graph.of(
        {"y": y + bias, "half": (q * 2.0).astype("bfloat16")}, inputs=[unused, x], updates={"cache": cache + x},
        params={"w": data}, name="small",
    )  # fmt: skip


def tiny_graph() -> tg.Graph:
    x, w = tg.input("x", (4, 8)), tg.param("w", (8, 8))
    data = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    return tg.Graph.of(tg.softmax((x * 0.125) @ w) + x, params={"w": data})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small e-graph file with its model beside it."""
    folder = tmp_path_factory.mktemp("written")
    with tg.settings.override(home=str(folder / "home")):
        egraph_file.write(folder / "e.json", tg.saturate(tiny_graph(), backend="numpy"))
    return folder / "e.json"


@pytest.fixture
def changed(written: Path, tmp_path: Path) -> Callable[[Callable[[Document], Any]], Path]:
    """Writes a changed copy of the file."""

    def change(edit: Callable[[Document], Any]) -> Path:
        document = json.loads(written.read_text())
        edit(document)
        target = tmp_path / written.name
        target.write_text(json.dumps(document))
        model = egraph_file.model_path(written)
        (tmp_path / model.name).write_bytes(model.read_bytes())
        return target

    return change


def program_of(path: Path) -> tg.Program:
    file = egraph_file.read(path)
    return file.program(tg.extract(file.problem))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_round_trip(tmp_path: Path, backend: str) -> None:
    graph = attention_graph()
    if backend == "torch":
        pytest.importorskip("torch")
    with tg.settings.override(home=str(tmp_path)):
        explorer = tg.saturate(graph, backend=backend)
    egraph_file.write(tmp_path / "e.json.gz", explorer)
    file = egraph_file.read(tmp_path / "e.json.gz")
    found = tg.extract(tmp_path / "e.json.gz")
    assert found.cost == pytest.approx(tg.extract(explorer).cost)
    program = file.program(found)
    rng = np.random.default_rng(1)
    values = {"x": rng.standard_normal((1, 4, 16)).astype(np.float32), "unused": np.zeros(3, np.float32)}
    start = rng.standard_normal((1, 4, 16)).astype(np.float32)
    program.bind().states["cache"][...] = start
    results = program(values["unused"], values["x"])
    y, half, update = evaluate(graph, {**values, "cache": start})
    assert list(results) == ["y", "half"] and results["half"].dtype == half.dtype
    np.testing.assert_allclose(results["y"], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["half"].astype(np.float32), half.astype(np.float32), rtol=2**-6)
    np.testing.assert_array_equal(program.states["cache"], update)


def test_a_program_of_one_size_says_so(tmp_path: Path) -> None:
    x = tg.input("x", (tg.dim("T"), 4))
    with tg.settings.override(home=str(tmp_path)):
        explorer = tg.saturate(tg.tanh(x), backend="numpy", dims={"T": 5})
    egraph_file.write(tmp_path / "e.json", explorer)
    file = egraph_file.read(tmp_path / "e.json")
    assert explorer.sizes == file.sizes == {"T": 5}
    file.program(tg.extract(file.problem)).save(tmp_path / "p")
    program = tg.load_program(tmp_path / "p")
    assert program.report.dims == {"T": 5} and "T=5" in program.report.warnings[0]
    assert program(np.zeros((5, 4), np.float32)).shape == (5, 4)
    with pytest.raises(errors.ShapeError, match="T=5 only"):
        program(np.zeros((6, 4), np.float32))
    with pytest.raises(errors.ShapeError) as wrong:
        program(np.zeros((5, 4), np.float64))
    assert "made for" not in wrong.value.hint
    document = json.loads((tmp_path / "e.json").read_text())
    document["tensor_graphs"]["sizes"] = {"T": -1}
    (tmp_path / "e.json").write_text(json.dumps(document))
    with pytest.raises(errors.ExtractionError, match="a size is '-1'"):
        assert egraph_file.read(tmp_path / "e.json").sizes


def test_the_file_is_plain_egraph_serialize(written: Path) -> None:
    document = json.loads(written.read_text())
    assert set(document) == {"nodes", "root_eclasses", "tensor_graphs"}
    assert any(n["op"].startswith("np.matmul(") for n in document["nodes"].values())
    del document["tensor_graphs"]
    plain = written.with_name("plain.json")
    plain.write_text(json.dumps(document))
    file = egraph_file.read(plain)
    assert not file.describes_program and tg.extract(plain).cost == tg.extract(written).cost
    with pytest.raises(errors.UsageError, match="describes no program"):
        file.program(tg.extract(plain))


def test_the_same_graph_gives_the_same_file(tmp_path: Path) -> None:
    texts = []
    for name in "ab":
        folder = tmp_path / name
        with tg.settings.override(home=str(folder / "home")):
            egraph_file.write(folder / "e.json", tg.saturate(tiny_graph(), backend="numpy"))
        texts.append((folder / "e.json").read_text())
    assert texts[0] == texts[1]


# ---------------------------------------------------------------- hostile files
def test_the_model_is_only_looked_for_beside_the_file(changed: Any, tmp_path: Path) -> None:
    (tmp_path.parent / "elsewhere.safetensors").write_bytes(b"secret")
    for name in (
        "../elsewhere.safetensors",
        "/etc/passwd",
        "..",
        "",
        "a/../b",
        None,
        3,
        ["x"],
        "x" * 5000,
        "\ud800",
        "a\0",
    ):
        path = changed(lambda d, name=name: d["tensor_graphs"]["model"].update(file=name))
        with pytest.raises(errors.BadModelError, match="beside"):
            program_of(path)


def test_a_model_that_was_changed_is_refused(changed: Any) -> None:
    path = changed(lambda d: None)
    model = egraph_file.model_path(path)
    model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(errors.BadModelError, match="was changed"):
        program_of(path)
    model.unlink()
    with pytest.raises(errors.BadModelError, match="missing"):
        program_of(path)


def test_another_model_of_the_right_checksum_is_typed(changed: Any) -> None:
    path = changed(lambda d: None)
    model = egraph_file.model_path(path)
    x = tg.input("x", (2, 2))
    tg.save_graph(tg.Graph.of(x + 1.0), model)
    document = json.loads(path.read_text())
    document["tensor_graphs"]["model"]["sha256"] = sha256(model.read_bytes()).hexdigest()
    path.write_text(json.dumps(document))
    with pytest.raises(errors.ExtractionError, match="the model has no such"):
        program_of(path)


def set_op(document: Document, old: str, new: str) -> None:
    for node in document["nodes"].values():
        node["op"] = node["op"].replace(old, new)


def nodes_of(document: Document, op: str) -> list[list[Any]]:
    return [n for n in document["tensor_graphs"]["nodes"] if n[0] == op]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(tensor_graphs=[]), "must be an object"),
        (lambda d: d["tensor_graphs"].update(version=99), "version 99"),
        (lambda d: d["tensor_graphs"].update(nodes={}), "nodes must be a list"),
        (lambda d: d["tensor_graphs"].pop("roots"), "roots must be a list"),
        (lambda d: d["tensor_graphs"].update(backends=["os"]), "no backend is called 'os'"),
        (lambda d: d["tensor_graphs"]["roots"].append(10**9), "a root is"),
        (lambda d: d["tensor_graphs"].update(own=1), "own must be a list"),
        (lambda d: d["tensor_graphs"]["own"].append(10**9), "an e-node is"),
        (lambda d: d["tensor_graphs"]["original"].append(10**9), "a class is"),
        (lambda d: d["tensor_graphs"].update(roots=[]), "do not fit the model"),
        (lambda d: d["tensor_graphs"]["classes"].__setitem__(0, ["float32", [-1], True]), "a size is"),
        (lambda d: d["tensor_graphs"]["classes"].__setitem__(0, ["object", [], True]), "no dtype"),
        (lambda d: d["tensor_graphs"]["nodes"].append(["system", {}, 0, []]), "no op"),
        (lambda d: d["tensor_graphs"]["nodes"].append(["add", {}, 0, [0, 10**9]]), "a class is"),
        (lambda d: d["tensor_graphs"]["nodes"].append(["add", {"code": "x"}, 0, [0, 0]]), "has the attributes"),
        (lambda d: nodes_of(d, "softmax")[0][1].update(axis="0); import os  #"), "malformed attributes"),
        (lambda d: nodes_of(d, "softmax")[0][1].update(axis=7), "does not fit"),
        (lambda d: nodes_of(d, "matmul")[0][3].reverse(), "matmul"),
        (lambda d: set_op(d, "np.matmul(", "os.system("), "no kernel os.system("),
        (lambda d: set_op(d, "np.matmul(", "np.add("), "no kernel"),
        (lambda d: [n.update(op="given") for n in d["nodes"].values()], "before anything makes it"),
        (lambda d: d.update(root_eclasses=[next(n["eclass"] for n in d["nodes"].values() if not n["children"])]), "is no root"),
        (lambda d: d["tensor_graphs"].update(sources={}), "no source"),
        (lambda d: next(iter(d["nodes"].values())).update(cost="free"), "cost must be a number"),
    ],
)  # fmt: skip
def test_named_errors(changed: Any, edit: Callable[[Document], Any], message: str) -> None:
    with pytest.raises(errors.TensorGraphsError) as caught:
        program_of(changed(edit))
    assert message in str(caught.value)
    assert isinstance(caught.value, errors.ExtractionError | errors.BadModelError | errors.NoPlanError)


def test_a_false_equality_is_found_by_verification(changed: Any) -> None:
    """The file says that x * x lies in the class of the softmax, and that it costs nothing."""

    def lie(document: Document) -> None:
        record = document["tensor_graphs"]
        x = nodes_of(document, "input")[0][2]
        softmax = nodes_of(document, "softmax")[0][2]
        record["nodes"].append(["mul", {}, softmax, [x, x]])
        kernel = {"op": f"np.mul(x=c{x}, y=c{x})", "cost": 0.0, "eclass": f"c{softmax}", "children": []}
        document["nodes"]["lie"] = kernel
        record["sources"]["lie"] = "measured"

    with pytest.raises(errors.VerificationError, match="is off by"):
        program_of(changed(lie))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_file_never_gives_another_program(data: st.DataObject, written: Path) -> None:
    """Any one value replaced: either a named error, or a program that computes what the model says."""
    document = json.loads(written.read_text())
    place: Any = document
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 9)) == 0:
            place[key] = copy.deepcopy(data.draw(VALUES))
            break
        place = place[key]
    path = written.with_name("e.json.damaged.json")
    path.write_text(json.dumps(document))
    try:
        program = program_of(path)
    except errors.TensorGraphsError as error:
        assert error.exit_code in (2, 3, 5, 6), error
        return
    x = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_allclose(program(x), evaluate(tiny_graph(), {"x": x})[0], rtol=1e-4, atol=1e-5)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5), st.sampled_from(["c0", "c1", "k0", "given", "numpy", "float64", "add"]), st.just([]), st.just({}),
    st.lists(st.integers(0, 20), max_size=3),
)  # fmt: skip


def test_kernels_of_several_values_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made for the model's own values: which those are is in the file; a bundle is a class of its own."""
    from dataclasses import replace

    from tensor_graphs.backends import registry

    own, built_in = registry.backend("c"), registry.built_in
    if reason := own.unavailable():
        pytest.skip(reason)
    registry.backends()  # cached without the change
    changed = replace(own, several=True)
    monkeypatch.setattr(registry, "built_in", lambda name: changed if name == "c" else built_in(name))

    x, y, g = tg.input("x", (8, 32)), tg.input("y", (8, 32)), tg.param("g", (32,))
    h = x + y
    graph = tg.Graph.of([tg.rms_norm(h, g, eps=1e-6), h], params={"g": np.ones(32, np.float32)})
    with tg.settings.override(home=str(tmp_path / "home")):
        explorer = tg.saturate(graph, backend="c")
    assert explorer.show(explorer.view.roots[1])._repr_html_().count("c.reduction") and explorer._repr_html_()
    egraph_file.write(tmp_path / "e.json", explorer)
    file = egraph_file.read(tmp_path / "e.json")
    several = [egraph_file.JOINED in file.problem.class_name(c) for c in file.problem.cls.tolist()]
    assert any(several) and file.ops.count(egraph_file.PART) >= 2
    cheap = replace(file.problem, cost=np.where(several, 0.5, file.problem.cost))
    program = replace(file, problem=cheap).program(tg.extract(cheap))
    (only,) = [s for s in program.plan.steps if not s.is_view]  # type: ignore[union-attr]
    assert len(only.outputs) == 2
    a, b = np.random.default_rng(0).standard_normal((2, 8, 32)).astype(np.float32)
    want = evaluate(graph, {"x": a, "y": b}, params=graph.params, float64=True)
    for got, exact in zip(program(a, b), want):
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-6)
