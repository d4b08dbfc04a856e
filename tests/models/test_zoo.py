"""The zoo: folders load and compute finite values near 1; graphs have the shapes and sizes of the originals."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models import zoo

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.weight_data import load_data
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.common.random_weights import RandomArray
from tensor_graphs.models.files.native import load_graph, save_graph
from tensor_graphs.models.huggingface.checkpoint import Config, Weights
from tensor_graphs.models.huggingface.load import architecture
from tensor_graphs.models.load import load

TINY: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 3, "hidden": 32, "heads": 4, "tokens": 8},
    "resnet50": {"image": 32, "width": 8, "classes": 10},
    "unet": {"image": 16, "channels": 8},
    "dit_block": {"tokens": 4, "hidden": 32, "heads": 4, "blocks": 2},
    "nasrnn": {"hidden": 16},
}
SMALL: dict[str, Any] = {"layers": 8, "hidden": 32, "heads": 4, "vocab": 40, "positions": 64}
FOLDERS: dict[str, dict[str, Any]] = {
    "gpt2": SMALL,
    "llama": {**SMALL, "kv_heads": 2, "intermediate": 64},
    "qwen3": {**SMALL, "kv_heads": 2, "intermediate": 64, "head_dim": 8},
    "gemma3": {**SMALL, "kv_heads": 1, "intermediate": 64, "head_dim": 16, "window": 4},
    "bert": {**SMALL, "intermediate": 64},
}


def parameters(graph: Graph) -> int:
    return sum(prod(n.shape) for n in graph.leaves("param"))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_load_and_stay_near_one(tmp_path: Path, kind: str, dtype: str) -> None:
    getattr(random_checkpoints, f"write_{kind}")(tmp_path, **FOLDERS[kind], dtype=dtype)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    graph = load(tmp_path, dims={"batch": 2, "sequence": 6})
    ids = np.random.default_rng(1).integers(0, 40, (2, 6))
    values = {str(n.attr("name")): ids if n.attr("name") == "input_ids" else ids % 2 for n in graph.inputs}
    for output in evaluate(graph, values):
        assert np.isfinite(output.astype(np.float32)).all() and 0.1 < np.std(output.astype(np.float32)) < 4


def test_seeds_decide(tmp_path: Path) -> None:
    one, same, other = (
        (random_checkpoints.write_gpt2(tmp_path / str(i), **SMALL, seed=seed) / "model.safetensors").read_bytes()
        for i, seed in enumerate((1, 1, 2))
    )
    assert one == same != other


@pytest.mark.parametrize("kind", TINY)
def test_graphs_compute_finite_values_near_one(kind: str) -> None:
    graph = zoo.GRAPHS[kind](**TINY[kind])
    rng = np.random.default_rng(0)
    values = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs}
    assert {n.attr("name") for n in graph.leaves("param")} == set(graph.params)
    for output in evaluate(graph, values):
        assert np.isfinite(output).all() and 0.01 < np.std(output) < 4


@pytest.mark.parametrize("kind", TINY)
def test_the_batch_may_be_free(kind: str) -> None:
    free = zoo.GRAPHS[kind](**TINY[kind], batch=t.dim("n"))
    assert set(free.free_dims) == {"n"}
    assert free.bind({"n": 2}).digest() == zoo.GRAPHS[kind](**TINY[kind], batch=2).digest()


@pytest.mark.parametrize(
    ("kind", "millions", "ops"),
    [
        ("transformer", 302.3, {"attention": 24, "layer_norm": 49, "linear": 144}),
        ("resnet50", 25.6, {"conv": 53, "batch_norm": 53, "relu": 49, "max_pool": 1}),
        ("dit_block", 23.9, {"linear": 7, "attention": 1}),
        ("nasrnn", 21.0, {"matmul": 80, "tanh": 40, "sigmoid": 25, "relu": 10}),
    ],
)
def test_usual_sizes(kind: str, millions: float, ops: dict[str, int]) -> None:
    graph = zoo.GRAPHS[kind]()  # nothing is drawn before it is read
    assert round(parameters(graph) / 1e6, 1) == millions
    assert {op: graph.counts()[op] for op in ops} == ops


def test_gemma_has_the_published_number_of_parameters() -> None:
    import json

    config = Path(__file__).parents[2].parent / "shared/data/programs/gemma-3-270m.config.json"
    if not config.is_file():
        pytest.skip("the config of gemma-3-270m is not here")
    weights = Weights({}, invented="bfloat16")
    fields = Config(json.loads(config.read_text()))
    outputs, _ = architecture(fields).build(fields, weights)
    assert sum(map(prod, weights.taken.values())) == 268_098_176
    attention = [n for n in Graph.of(outputs).nodes() if n.op == "attention"]
    assert [n.attr("window") for n in attention] == [512, 512, 512, 512, 512, 0] * 3


def test_random_arrays_are_what_they_say() -> None:
    array = RandomArray((200, 300), "float32", 0.5, 2.0, seed=1, name="w")
    drawn = array.load()
    np.testing.assert_array_equal(drawn, array.load())
    assert drawn.dtype == np.float32 and abs(drawn.mean() - 2) < 0.02 and abs(drawn.std() - 0.5) < 0.02
    assert not np.array_equal(drawn, RandomArray((200, 300), "float32", 0.5, 2.0, seed=1, name="v").load())
    assert RandomArray((), "bfloat16").load().dtype.name == "bfloat16"


def test_random_weights_can_be_saved(tmp_path: Path) -> None:
    graph = zoo.nasrnn(steps=1, hidden=4)
    save_graph(graph, tmp_path / "g.safetensors")
    for name, data in load_graph(tmp_path / "g.safetensors").params.items():
        np.testing.assert_array_equal(load_data(data), load_data(graph.params[name]))
