"""From anything that can be run to a program: sources, calls, reports, saving, budgets, paths, proofs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.saturate.union import saturate_in_stages
from tensor_graphs.errors import BadModelError, ShapeError, UsageError
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.execution import timing
from tensor_graphs.pipeline.optimize import optimize_graph
from tensor_graphs.pipeline.sources.source import bound
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite
from tensor_graphs.progress import Progress

FAST: dict[str, Any] = {"backend": "numpy", "measure": False}
SMALL = tg.Limits(iterations=4, nodes=3000)


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def fresh(code: str, *args: str) -> str:
    """The output of a Python program of its own."""
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def close(found: Any, want: Any, rtol: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(want, np.float64), rtol, 1e-6)


def example() -> tuple[Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, w = tg.input("x", (16, 32)), tg.param("w", (32, 32))
    return tg.softmax((x * 0.125) @ w), normal(16, 32), normal(32, 32, seed=1)


@pytest.fixture(scope="module")
def program() -> Any:
    expression, _, w = example()
    return tg.optimize(expression, params={"w": w}, **FAST)


# ---------------------------------------------------------------- sources
def test_an_expression_becomes_a_program(program: Any) -> None:
    _, x, w = example()
    scores = np.exp(x.astype(np.float64) * 0.125 @ w)
    close(program(x), scores / scores.sum(-1, keepdims=True))
    assert np.array_equal(program(x), program(x=x))
    assert program(x).dtype == np.float32


@pytest.mark.parametrize("kind", [dict, tuple, list])
def test_outputs_keep_their_structure(kind: Any) -> None:
    x = tg.input("x", (3, 4))
    values = {"a": x + 1.0, "b": tg.sum(x, 1), "same": x, "twice": x + 1.0}
    made = tg.optimize(values if kind is dict else kind(values.values()), **FAST)
    data = normal(3, 4)
    found = made(data)
    assert isinstance(found, dict if kind is dict else tuple)
    named = found if kind is dict else dict(zip(values, found))
    assert list(named) == list(values)
    close(named["a"], data + 1)
    close(named["b"], data.sum(1))
    close(named["twice"], data + 1)
    assert np.array_equal(named["same"], data)
    named["same"][:] = 7.0
    named["a"][:] = 7.0
    again = made(data)
    close(again["a"] if kind is dict else again[0], data + 1)
    assert not (data == 7.0).any(), "an output must never alias an input"


def test_a_function_is_traced() -> None:
    def layer(x: Any, scale: Any) -> Any:
        return {"y": tg.relu(x * scale), "z": (tg.max(x, 1), 2.0 * x)}

    x, scale = normal(4, 5), normal(5, seed=3)
    made = tg.optimize(layer, (x, scale), **FAST)
    found = made(scale=scale, x=x)
    close(found["y"], np.maximum(x * scale, 0))
    close(found["z"][0], x.max(1))
    close(found["z"][1], 2 * x)
    assert made.report.model == "layer"


def test_a_module_is_exported_and_torch_comes_back() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    made = tg.optimize(model, (x,), **FAST)
    found = made(x)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    torch.testing.assert_close(found, model(x).detach(), rtol=1e-5, atol=1e-6)
    assert isinstance(made(x.numpy()), np.ndarray)


def test_bfloat16_goes_in_and_out() -> None:
    torch = pytest.importorskip("torch")
    x = tg.input("x", (4, 8), "bfloat16")
    made = tg.optimize(tg.silu(x) * 2.0, **FAST)
    data = torch.randn(4, 8).bfloat16()
    found = made(data)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, torch.nn.functional.silu(data) * 2, rtol=2e-2, atol=2e-2)


def test_paths_to_models_of_each_kind(tmp_path: Path) -> None:
    expression, x, w = example()
    file = tmp_path / "model.safetensors"
    tg.save_graph(Graph.of(expression, params={"w": w}), file)
    close(tg.optimize(file, **FAST)(x), tg.optimize(expression, params={"w": w}, **FAST)(x))


def test_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    w = normal(6, 5)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", 1, ["batch", "sequence", 6])],
        [helper.make_tensor_value_info("y", 1, ["batch", "sequence", 5])], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    made = tg.optimize(path, dims={"batch": 2}, **FAST)
    assert made.report.dims == {"batch": 2, "sequence": 128}
    x = normal(2, 128, 6)
    close(made(x), np.maximum(x @ w, 0))


def test_a_folder(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 11,
        "n_positions": 16, "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    d, rng = 16, np.random.default_rng(0)
    shapes = {
        "wte.weight": (11, d), "wpe.weight": (16, d), "h.0.ln_1.weight": (d,), "h.0.ln_1.bias": (d,), "ln_f.weight": (d,),
        "ln_f.bias": (d,), "h.0.attn.c_attn.weight": (d, 3 * d), "h.0.attn.c_attn.bias": (3 * d,), "h.0.attn.c_proj.weight": (d, d),
        "h.0.attn.c_proj.bias": (d,), "h.0.ln_2.weight": (d,), "h.0.ln_2.bias": (d,), "h.0.mlp.c_fc.weight": (d, 4 * d),
        "h.0.mlp.c_fc.bias": (4 * d,), "h.0.mlp.c_proj.weight": (4 * d, d), "h.0.mlp.c_proj.bias": (d,),
    }  # fmt: skip
    save_file(
        {f"transformer.{n}": 0.3 * rng.standard_normal(s).astype("f4") for n, s in shapes.items()},
        tmp_path / "model.safetensors",
    )
    sizes = {n: min(8, a.max) for n, a in tg.load(tmp_path).free_dims.items() if "batch" not in n}
    made = tg.optimize(tmp_path, dims=sizes, limits=SMALL, **FAST)
    assert made.report.verification["passed"]
    assert made.report.kernels_after <= made.report.kernels_before + 1  # at predicted prices
    assert not [w for w in made.report.warnings if "not used" in w]


def test_tensors_of_a_folder_that_are_not_used_are_in_the_report(tmp_path: Path) -> None:
    from tensor_graphs.models import random_checkpoints

    folder = random_checkpoints.write_bert(tmp_path, layers=1, hidden=16, heads=2, intermediate=16, vocab=11, positions=8,
                            architectures=["BertForPreTraining"])  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    made = tg.optimize(folder, dims={"sequence": 4}, limits=SMALL, **FAST)
    assert list(made.report.sizes) == ["batch", "sequence"]
    (words,) = [w for w in made.report.warnings if "not used" in w]
    assert "no part of BertForMaskedLM: 'bert.pooler.dense.bias'" in words and words in str(made.report)


@pytest.mark.parametrize("wrong", [3, None, object(), [], {}, [1, 2]])
def test_what_cannot_be_optimized_is_a_usage_error(wrong: Any) -> None:
    with pytest.raises(UsageError, match="cannot optimize"):
        tg.optimize(wrong, **FAST)


def test_params_by_name() -> None:
    expression, x, w = example()
    with pytest.raises(UsageError, match="w"):
        tg.optimize(expression, **FAST)
    with pytest.raises(BadModelError, match="'w'"):
        tg.optimize(expression, params={"w": w[:3]}, **FAST)
    with pytest.raises(UsageError, match="typo"):
        tg.optimize(expression, params={"w": w, "typo": w}, **FAST)
    torch = pytest.importorskip("torch")
    close(tg.optimize(expression, params={"w": torch.from_numpy(w)}, **FAST)(x).sum(-1), np.ones(16))


def test_free_sizes_default_to_batch_1_and_sequence_128() -> None:
    x = tg.input("x", (tg.dim("batch"), tg.dim("n", max=64), tg.dim("s"), 3))
    made = tg.optimize(x + 1.0, **FAST)
    assert made.report.dims == {"batch": 1, "n": 64, "s": 128}
    assert made(normal(1, 64, 128, 3)).shape == (1, 64, 128, 3)
    made = tg.optimize(x + 1.0, dims={"s": 5, "batch": 2, "n": 4}, **FAST)
    assert made(normal(2, 4, 5, 3)).shape == (2, 4, 5, 3)
    assert made.report.dims == {"batch": 2, "n": 4, "s": 5}
    with pytest.raises(UsageError, match="typo"):
        tg.optimize(x + 1.0, dims={"typo": 5}, **FAST)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("N", ("N", 3), 1), ("n", ("n", 3), 1), ("b", ("b", "T"), 1), ("BS", ("BS", 3), 1), ("batch_0", (3, "batch_0"), 1),
        ("unk__12", ("unk__12", 3, 8, 8), 1), ("s0", ("s0", 3, 8, 8), 1), ("H", ("N", 3, "H", 8), 128),
        ("b", ("T", "b", 3), 1), ("N", (3, "N"), 128), ("n", ("n", "n"), 128), ("seq_len", ("seq_len", 3, 4, 4), 128), ("T", ("T", 3, 4, 4), 128),
        ("unk__12", ("unk__12", 3, 8), 128), ("rows", ("rows", 3), 128),
    ],
)  # fmt: skip
def test_a_batch_is_known_by_name_and_axis(name: str, shape: tuple[Any, ...], size: int) -> None:
    x = tg.input("x", tuple(tg.dim(d) if isinstance(d, str) else d for d in shape))
    assert bound(tg.Graph.of(x + 1.0), None)[1][name] == size


# ---------------------------------------------------------------- calling
def test_calls_name_what_is_wrong(program: Any) -> None:
    _, x, _ = example()
    with pytest.raises(ShapeError, match="'x'"):
        program(x[:3])
    with pytest.raises(ShapeError, match="float64"):
        program(x.astype(np.float64))
    with pytest.raises(UsageError, match="missing"):
        program()
    with pytest.raises(UsageError, match="called"):
        program(x=x, y=x)
    with pytest.raises(UsageError, match="twice"):
        program(x, x=x)
    with pytest.raises(UsageError, match="2 inputs"):
        program(x, x)


def test_layouts_of_inputs_do_not_matter(program: Any) -> None:
    _, x, _ = example()
    want = program(x)
    wide = np.zeros((16, 64), np.float32)
    wide[:, ::2] = x
    locked = x.copy()
    locked.setflags(write=False)
    for same in (wide[:, ::2], np.asfortranarray(x), x[::-1].copy()[::-1], locked, x.tolist()):
        assert np.array_equal(program(same), want)


# ---------------------------------------------------------------- report, source, files
def test_the_report_says_everything(program: Any) -> None:
    report = program.report
    assert (report.model, report.backend) == ("graph", "numpy on cpu")
    assert report.nodes == 6 and report.e_nodes >= report.classes > 3
    assert report.instances == len(report.blocks) == 1
    assert "saturated" in report.stopped and report.blocks[0].seconds > 0
    assert sum(m for m, _ in report.rules.values()) > 0
    assert report.candidates >= report.kernels_after > 0 < report.kernels_before
    assert sum(k.count for k in report.kernels) == report.kernels_after == sum(report.priced.values())
    assert sum(k.us for k in report.kernels) == pytest.approx(report.cost_us, abs=0.2)
    assert 0 < report.lower_bound_us <= report.cost_us and 0 <= report.gap < 1
    assert report.search_stopped == "prices only" and report.measured_now == 0 and report.snapshot
    assert report.verification["passed"] and report.verification["seeds"] == 3
    assert {"load", "simplify", "blocks", "saturate", "join blocks", "candidates", "extract", "build", "verify"} <= set(
        report.seconds
    )
    assert all(s >= 0 for s in report.seconds.values())
    document = json.loads(json.dumps(report.to_json()))
    assert document["kernels_after"] == report.kernels_after and document["total_seconds"] > 0
    for text in ("kernels", "plan", "error", "e-graph"):
        assert text in str(report)
    assert report.html().startswith("<!doctype html>") and "<script" not in report.html()


@pytest.mark.usefixtures("even")
def test_measuring_fills_in_times(tmp_path: Path) -> None:
    x, w = tg.input("x", (32, 32)), tg.param("w", (32, 32))
    weights = {"w": normal(32, 32)}
    made = tg.optimize(tg.relu(x @ w), params=weights, backend="numpy", costdb=tmp_path / "db", budget=20.0)
    assert made.report.search_stopped == "measured" and made.report.priced == {"measured": made.report.kernels_after}
    assert made.report.measured_now >= 1 and made.report.optimism_us == 0.0
    assert made.report.latency_before_us > 0 and made.report.latency_after_us > 0 and made.report.speedup
    assert {"measure", "time"} <= set(made.report.seconds)
    again = tg.optimize(tg.relu(x @ w), params=weights, backend="numpy", costdb=tmp_path / "db", budget=20.0)
    assert again.report.measured_now == 0, "what was measured evenly is not measured again"
    assert set(again.report.priced) == {"measured"}


def test_the_source_runs_alone(program: Any, tmp_path: Path) -> None:
    x = example()[1]
    (tmp_path / "alone.py").write_text(program.source)
    np.savez(tmp_path / "data.npz", x=x, want=program(x), **{n: program._weights[n] for n in program._weights})
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy as np, alone\n"
        "d = np.load(sys.argv[1] + '/data.npz')\n"
        "y, = alone.bind(d)(d['x'])\n"
        "assert np.array_equal(y, d['want'])\n"
        "print([m for m in sys.modules if m.startswith('tensor_graphs')])"
    )
    assert fresh(code, str(tmp_path)).strip() == "[]"


def test_a_saved_program_needs_no_search(program: Any, tmp_path: Path) -> None:
    _, x, _ = example()
    folder = program.save(tmp_path / "saved")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "want.npy", program(x))
    code = (
        "import sys, numpy as np, tensor_graphs as tg\n"
        "p = tg.load_program(sys.argv[1] + '/saved')\n"
        "assert np.array_equal(p(np.load(sys.argv[1] + '/x.npy')), np.load(sys.argv[1] + '/want.npy'))\n"
        "print([m for m in ('egglog', 'ortools', 'duckdb', 'torch') if m in sys.modules])"
    )
    assert fresh(code, str(tmp_path)).strip() == "[]"
    assert program.save(folder) == folder
    with pytest.raises(UsageError, match="not a saved program"):
        program.save(tmp_path)


# ---------------------------------------------------------------- tolerance, determinism, limits
def test_exact_is_bitwise() -> None:
    x, y = tg.input("x", (6,)), tg.input("y", (6,))
    p = tg.param("p", (6,))
    outputs = {
        "sum": (x + y) + p, "zero": x * 0.0, "negative": -(x - x), "quotient": x / y, "root": tg.sqrt(x),
        "larger": tg.maximum(x, y), "relu": tg.relu(x), "order": tg.sum(tg.exp(x) * y), "same": (x + 0.0) * 1.0,
    }  # fmt: skip
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42, 3e38], np.float32)
    weights = {"p": normal(6)}
    made = tg.optimize(outputs, params=weights, tolerance="exact", **FAST)
    graph = Graph.of(outputs, params=weights)
    for a, b in ((special, special[::-1].copy()), (normal(6), normal(6, seed=2)), (-special, np.full(6, -0.0, "f4"))):
        with np.errstate(all="ignore"):
            want = evaluate(graph, {"x": a, "y": b})
        for name, found, expected in zip(outputs, made(a, b).values(), want):
            expected = np.asarray(expected)
            assert np.array_equal(found, expected, equal_nan=True), name
            numbers = ~np.isnan(expected)
            assert np.array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers]), name


def test_exact_composites_are_computed_as_the_interpreter_does() -> None:
    x, g = tg.input("x", (4, 6, 6)), tg.param("g", (6,))
    outputs = [
        tg.softmax(x),
        tg.layer_norm(x, g, g),
        tg.gelu(x, "tanh"),
        tg.silu(x),
        tg.attention(x, x, x),
        tg.mean(x, 1),
        tg.var(x, 2),
        tg.gelu(x),
        tg.erf(x * 3.0),
    ]
    weights, data = {"g": normal(6)}, normal(4, 6, 6)
    made = tg.optimize(outputs, params=weights, tolerance="exact", **FAST)
    for found, want in zip(made(data), evaluate(Graph.of(outputs, params=weights), {"x": data})):
        assert np.array_equal(found, want)
    assert tg.optimize(tg.softmax(x @ x), tolerance="exact", measure=False).report.backend == "numpy on cpu"


@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0])
def test_exact_powers_do_not_depend_on_how_an_exponent_lies(exponent: float) -> None:
    """NumPy squares where an exponent is repeated by a stride of 0, and takes powers where it is written out."""
    x = tg.input("x", (400, 3))
    one, each, row = (tg.full(shape, exponent) for shape in ((1, 1), (400, 3), (400, 1)))
    made = tg.optimize([tg.pow(x, one), tg.pow(x, each), tg.pow(x, row)], tolerance="exact", **FAST)
    data = np.concatenate([np.abs(normal(399, 3)), np.full((1, 3), -np.inf, np.float32)])
    with np.errstate(all="ignore"):
        want = np.power(data, np.full_like(data, exponent))
    for found in made(data):
        np.testing.assert_array_equal(found, want)
    single = tg.optimize(tg.pow(tg.input("x", ()), exponent), tolerance="exact", **FAST)
    assert single(data[0, 0]) == want[0, 0]


@pytest.mark.parametrize("tolerance", ["eager", "fast", 1e-3])
def test_tolerances_pass(tolerance: Any) -> None:
    expression, _, w = example()
    verdict = tg.optimize(expression, params={"w": w}, tolerance=tolerance, **FAST).report.verification
    assert verdict["passed"] and verdict["error_after"] <= verdict["allowed"] and verdict["tolerance"] == tolerance


def test_an_unknown_tolerance_is_refused() -> None:
    with pytest.raises(UsageError, match="tolerance"):
        tg.optimize(tg.input("x", (2,)) + 1.0, tolerance="sloppy", **FAST)


def layered() -> Tensor:
    x = tg.input("x", (8, 16))
    for i in range(2):
        x = tg.relu(x @ tg.param(f"w{i}", (16, 16)) + tg.param(f"b{i}", (16,))) + x
    return x


def weights_of(graph: Graph) -> dict[str, Any]:
    return {str(p.attr("name")): normal(*p.shape, seed=i) for i, p in enumerate(graph.leaves("param"))}  # type: ignore[arg-type]


def test_the_same_plan_twice(tmp_path: Path) -> None:
    weights = weights_of(Graph.of(layered()))
    made = [
        tg.optimize(layered(), params=weights, deterministic=True, costdb=tmp_path, limits=SMALL, **FAST)
        for _ in range(2)
    ]
    assert made[0].source == made[1].source
    assert made[0].report.snapshot == made[1].report.snapshot


def test_a_deterministic_rewriting_does_not_end_by_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is so busy that the clock ends rewriting gives no other plan; where it must, the report says
    so."""
    asked: list[tuple[float, float]] = []
    how: dict[str, Any] = {"measure": False, "costdb": tmp_path, "backend": "numpy", "limits": SMALL, "again": True}

    def saturated(effort: int, graphs: Any, rules: Any, limits: tg.Limits, **more: Any) -> Any:
        asked.append((limits.seconds, more["deadline"]))
        return saturate_in_stages(effort, graphs, rules, replace(limits, seconds=min(limits.seconds, short)), **more)

    monkeypatch.setattr("tensor_graphs.pipeline.stages.rewrite.saturate_in_stages", saturated)
    for deterministic, short in ((False, 1e3), (True, 1e3), (True, 1e-6)):
        made = tg.optimize(
            layered(), params=weights_of(Graph.of(layered())), deterministic=deterministic, budget=0.2, **how
        )
        assert any("another plan" in w for w in made.report.warnings) == (short < 1)
    (seconds, deadline), (patient, later), _ = asked
    assert deadline <= 0.2 < seconds < patient <= later


@pytest.mark.parametrize(("deterministic", "runs"), [(True, "program"), (False, "as written")])
def test_deterministic_choices_do_not_depend_on_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, runs: str
) -> None:
    """A machine that is busy while a program is timed, so that the unfused baseline seems faster."""
    monkeypatch.setattr(timing, "is_surely_faster", lambda *samples: True)
    x = tg.input("x", (8,))
    options: Any = {"deterministic": deterministic, "costdb": tmp_path, "backend": "numpy", "budget": 10.0}
    assert tg.optimize(tg.exp(x) + 1.0, **options).report.runs == runs


def test_deterministic_does_not_measure(tmp_path: Path) -> None:
    x = tg.input("x", (8, 16))
    made = tg.optimize(tg.exp(x) + 1.0, deterministic=True, costdb=tmp_path, backend="numpy", budget=10.0)
    assert made.report.measured_now == 0
    assert Store(tmp_path).snapshot_id() == made.report.snapshot


def test_no_budget_still_gives_a_plan() -> None:
    weights, x = weights_of(Graph.of(layered())), normal(8, 16)
    made = tg.optimize(layered(), params=weights, backend="numpy", budget=0.0)
    close(made(x), evaluate(Graph.of(layered(), params=weights), {"x": x}, float64=True)[0])


def test_a_stop_keeps_the_best() -> None:
    weights, x = weights_of(Graph.of(layered())), normal(8, 16)
    words: list[str] = []
    progress = Progress()

    def say(stage: str, message: str) -> None:
        words.append(stage)
        progress.stopped = progress.stopped or stage == "saturate"

    progress.say = say
    made = tg.optimize(layered(), params=weights, backend="numpy", progress=progress)
    close(made(x), evaluate(Graph.of(layered(), params=weights), {"x": x}, float64=True)[0])
    assert "on request" in made.report.stopped
    assert made.report.measured_now == 0 and made.report.search_stopped in ("budget", "measured")
    assert "the search was stopped: " in str(made.report) and "budget" not in str(made.report)
    assert [stage for stage in words if stage != "plan cache"][:3] == [
        "load",
        "simplify",
        "blocks",
    ]  # of another test's plan


def price(graph: Graph, limits: tg.Limits) -> float:
    """The cheapest plan's cost at roofline prices."""
    return float(tg.saturate(graph, backend="numpy", limits=limits).choice.cost)


def chain() -> Tensor:
    a, b = tg.input("a", (24, 2)), tg.input("b", (2, 24))
    return (a @ b) @ (a @ (b @ tg.input("c", (24, 3))))


def shared() -> Tensor:
    x = tg.input("x", (8, 8))
    y = x @ tg.param("p", (8, 8)) + x @ tg.param("q", (8, 8))
    return tg.softmax(y * 0.5 + y * 0.5) * tg.sum(y, 1, keepdims=True)


@pytest.mark.parametrize("build", [chain, shared, layered])
def test_more_search_never_gives_a_dearer_plan(build: Any) -> None:
    graph = Graph.of(build())
    graph = replace(graph, params=weights_of(graph))
    by_round = [price(graph, tg.Limits(iterations=n, nodes=3000)) for n in (0, 1, 2, 3, 5)]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(by_round)), by_round
    by_beam = [price(graph, tg.Limits(iterations=4, nodes=3000, beam=k)) for k in (1, 3, 8)]
    assert all(wider <= narrow + 1e-6 for narrow, wider in pairwise(by_beam)), by_beam


def test_a_chain_is_multiplied_in_the_cheap_order() -> None:
    graph = Graph.of(chain())
    assert price(graph, tg.Limits()) < price(graph, tg.Limits(iterations=0))


# ---------------------------------------------------------------- states
def counter() -> Graph:
    """Adds its input to a running total; gives the total as it was before."""
    total, x = tg.state("total", (3,)), tg.input("x", (3,))
    return Graph.of({"before": total, "double": total * 2.0}, updates={"total": total + x})


def test_states_are_updated_and_start_as_they_should() -> None:
    one = np.ones(3, np.float32)
    made = tg.optimize(counter(), **FAST)
    for calls in range(3):
        found = made(one)
        assert np.array_equal(found["before"], calls * one) and np.array_equal(found["double"], 2 * calls * one)
    made.reset()
    assert not made(one)["before"].any()
    started = tg.optimize(replace(counter(), params={"total": 5 * one}), **FAST)
    assert np.array_equal(started(one)["before"], 5 * one)
    assert np.array_equal(started(one)["before"], 6 * one)
    started.reset()
    assert np.array_equal(started(one)["before"], 5 * one)


@pytest.mark.usefixtures("real_times")
def test_a_position_that_counts_on_is_timed_from_where_it_starts() -> None:
    """A cache of four rows that each call fills one more of: timing calls more often than that."""
    cache, place, x = tg.state("cache", (4, 3)), tg.state("place", (1, 3), "int64"), tg.input("x", (1, 3))
    written = tg.scatter_elements(cache, place, x, 0)
    graph = Graph.of([written * 2.0], updates={"cache": written, "place": place + 1})
    program = tg.optimize(graph, backend="numpy", budget=10.0)
    assert program.report.latency_after_us
    assert not program.states["place"].any() and not program.states["cache"].any()
    row = np.ones((1, 3), np.float32)
    close(program(row)[0], np.array([2.0, 0, 0, 0])[:, None] * np.ones((1, 3)))
    close(program(row)[0], np.array([2.0, 2.0, 0, 0])[:, None] * np.ones((1, 3)))


def test_initial_states_are_saved(tmp_path: Path) -> None:
    one = np.ones(3, np.float32)
    made = tg.optimize(replace(counter(), params={"total": 5 * one}), **FAST)
    made(one)
    loaded = tg.load_program(made.save(tmp_path / "saved"))
    assert np.array_equal(loaded(one)["before"], 5 * one)
    assert np.array_equal(loaded(one)["before"], 6 * one)


def test_a_module_with_a_cache() -> None:
    torch = pytest.importorskip("torch")

    class Cache(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.full((4, 3), 0.5))
            self.register_buffer("used", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            self.keys.copy_(torch.cat([self.keys[1:], x], 0))
            self.used.add_(1)
            return torch.softmax(self.keys @ x.T, 0), self.used + 0

    model, twin = Cache(), Cache()
    made = tg.optimize(model, (torch.randn(1, 3),), **FAST)
    for i in range(5):
        x = torch.randn(1, 3, generator=torch.Generator().manual_seed(i))
        found, want = made(x), twin(x)
        torch.testing.assert_close(found[0], want[0])
        assert int(found[1]) == int(want[1]) == i + 1


# ---------------------------------------------------------------- other entry points
def test_paths_are_distinct_rising_and_right() -> None:
    expression, x, w = example()
    found = list(tg.paths(expression, params={"w": w}, backend="numpy", count=4, max_gap=5.0))
    want = evaluate(Graph.of(expression, params={"w": w}), {"x": x}, float64=True)[0]
    assert len(found) >= 3
    costs = [p.cost for p in found]
    assert costs == sorted(costs)
    assert len({tuple((s.template.name, s.inputs) for s in p.plan.steps) for p in found}) == len(found)
    for rank, path in enumerate(found):
        assert path.rank == rank and path.graph.names == ("output",)
        close(path.program()(x), want)


def test_equivalent_expressions_are_proved() -> None:
    a, b, c = (tg.input(n, (4, 4)) for n in "abc")
    assert tg.equivalent(a + b, b + a)
    assert tg.equivalent((a + b) + c, a + (b + c))
    assert tg.equivalent(a * (b + c), a * b + a * c)
    assert tg.equivalent((a @ b) @ c, a @ (b @ c))
    assert tg.equivalent(a @ (b + c), a @ b + a @ c)
    assert tg.equivalent((a @ b).T, b.T @ a.T)
    for other in (a - b, a + c, a + b + 1e-3, tg.maximum(a, b)):
        assert not tg.equivalent(a + b, other)
    assert not tg.equivalent(a @ b, b @ a)
    assert not tg.equivalent(a, tg.input("a", (4,)))


def test_an_explorer_shows_classes_and_the_choice() -> None:
    expression, x, w = example()
    explorer = tg.saturate(expression, params={"w": w}, backend="numpy")
    assert "candidate kernels" in repr(explorer)
    page = explorer._repr_html_()
    assert page.startswith("<") and "softmax" in page and "np.matmul" in page
    assert explorer.view.roots[0] == explorer.order[0]
    assert f"c{explorer.order[0]}" in explorer.show(explorer.order[0])
    assert explorer.page(10_000).count("<tr>") == 1
    chosen = [k for rows in explorer.kernels.values() for k in rows if k[2]]
    assert len(chosen) == len(explorer.choice.chosen)
    from tensor_graphs.backends.program.program import Program

    close(Program(explorer.plan())(x), tg.optimize(expression, params={"w": w}, **FAST)(x))


# ---------------------------------------------------------------- 16-bit models
def test_rules_fire_through_the_casts_of_a_bfloat16_model() -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(16, 16, bias=False) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))

    torch.manual_seed(0)
    model = Attention().bfloat16()
    x = torch.randn(1, 6, 16).bfloat16()
    session = Session(Options(backend="numpy", measure=False))
    from tensor_graphs.backends.registry import select
    from tensor_graphs.models.torch_export.export import load_module

    graph = load_module(model, (x,))
    prepared = prepare(session, graph, None)
    view = rewrite(session, prepared.work).view
    widths = {int(view.types[c].shape[-1]) for n, c in enumerate(view.cls) if view.op[n] in ("matmul", "linear")}  # type: ignore[arg-type]
    assert widths & {32, 48}, f"no products of the same input were merged: widths {sorted(widths)}"
    assert hypergraph(session, view, select("numpy")).candidates
    made = optimize_graph(session, graph)
    assert made.report.verification["passed"]
    torch.testing.assert_close(made(x), model(x).detach(), rtol=5e-2, atol=5e-2)


def test_a_linear_layer_is_recognised_between_casts() -> None:
    x, w, b = tg.input("x", (4, 8), "bfloat16"), tg.param("w", (8, 8), "bfloat16"), tg.param("b", (8,), "bfloat16")
    product = (x.astype("float32") @ w.astype("float32")).astype("bfloat16")
    explorer = tg.saturate((product.astype("float32") + b.astype("float32")).astype("bfloat16"), backend="numpy")
    assert "linear" in explorer.view.op


@pytest.mark.parametrize("name", ["torch", "c", "numpy"])
def test_products_over_nothing_are_zero(name: str) -> None:
    """MKL and oneDNN cannot pack weights without elements: a bias was lost, or the call raised an error."""
    if name == "torch":
        pytest.importorskip("torch")
    w, b, x = tg.param("w", (0, 5)), tg.param("b", (5,)), tg.input("x", (3, 0))
    params = {"w": normal(0, 5), "b": normal(5)}
    sums = {
        "linear": tg.relu(x @ w + b),
        "residual": x @ w + tg.input("r", (3, 5)),
        "sum": x.sum(axis=1),
        "prod": tg.prod(x, 1),
    }
    made = tg.optimize(sums, params=params, backend=name, budget=2, measure=False, verify=False)
    found = made(normal(3, 0), np.full((3, 5), 2.0, np.float32))
    want = {
        "linear": np.tile(np.maximum(params["b"], 0), (3, 1)),
        "residual": np.full((3, 5), 2.0),
        "sum": np.zeros(3),
        "prod": np.ones(3),
    }
    for output, value in want.items():
        np.testing.assert_allclose(found[output], value)


def test_packed_products_take_no_empty_operands() -> None:
    pytest.importorskip("torch")
    mkl = next(k for k in backend("torch").templates if k.name == "torch.mkl")
    for inner, taken in ((4, True), (0, False)):
        types = {"x": Type((3, inner), "float32"), "w": Type((inner, 5), "float32")}
        operands = {n: Operand(kind, contiguous(kind.shape)) for n, kind in types.items()}
        assert mkl.applies is not None
        assert mkl.applies(Call(operands, Operand(Type((3, 5), "float32"), (5, 1)), {})) == taken
