"""Listings of earlier optimizers' benchmark models become graphs that compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models.taso import load_field_json

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import BadModelError, TooLargeError, UnsupportedError

FOLDER = Path(__file__).parents[2].parent / "shared/data/models"


def listing(path: Path, *nodes: tuple[Any, ...]) -> Path:
    """A file of (op, inputs, shape[, params]) nodes."""
    listed = [{"id": i, "op": op, "inputs": args, "shape": shape, "params": dict(*more)}
              for i, (op, args, shape, *more) in enumerate(nodes)]  # fmt: skip
    path.write_text(json.dumps({"name": "m", "nodes": listed}))
    return path


CONV = {"stride": [2, 2], "pad": "same", "act": "relu", "groups": 1}


def test_small_listing(tmp_path: Path) -> None:
    path = listing(tmp_path / "m.json", ("input", [], [1, 2, 6, 6]), ("weight", [], [4, 2, 3, 3]),
                   ("weight", [], [7]), ("conv2d", [0, 1], [1, 4, 3, 3], CONV), ("sigmoid", [3], [1, 4, 3, 3]),
                   ("concat", [3, 4], [1, 8, 3, 3], {"axis": 1}), ("reshape", [5], [8, 9]),
                   ("transpose", [6], [9, 8], {"perm": [1, 0], "shuffle": True}))  # fmt: skip
    graph = load_field_json(path)
    assert list(graph.params) == ["weight1"]  # the unused weight is left out
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)
    (found,) = evaluate(graph, {"input0": x})
    w = graph.params["weight1"].load()  # type: ignore[union-attr]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.array([[[(padded[0, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * w[o]).sum() for j in range(3)]
                        for i in range(3)] for o in range(4)])  # fmt: skip
    wanted = np.maximum(wanted, 0)
    both = np.concatenate([wanted, 1 / (1 + np.exp(-wanted))]).reshape(8, 9).T
    np.testing.assert_allclose(found, both, rtol=1e-4, atol=1e-5)


BAD: list[tuple[tuple[tuple[Any, ...], ...], type[Exception], str]] = [
    ((("input", [], [2]), ("relu", [0], [3])), BadModelError, "listed with shape"),
    ((("relu", [0], [3]),), BadModelError, "node 0"),
    ((("input", [], [2]), ("fft", [0], [2]), ("fft", [0], [2])), UnsupportedError, "fft ×2"),
    ((("input", [], [2, 3]), ("transpose", [0], [3, 2])), BadModelError, "perm"),
    ((("input", [], [1 << 50]), ("relu", [0], [1 << 50])), TooLargeError, "bytes"),
]


@pytest.mark.parametrize(("nodes", "error", "words"), BAD)
def test_bad_listings(tmp_path: Path, nodes: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load_field_json(listing(tmp_path / "m.json", *nodes))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": [3]}'])
def test_not_a_listing(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(BadModelError):
        load_field_json(tmp_path / "m.json")


@pytest.mark.parametrize("name", ["bert_tensat", "nasrnn", "resnet50", "squeezenet"])
def test_published_listings(name: str) -> None:
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        pytest.skip("the listings are not here")
    told = json.loads(path.read_text())
    graph = load_field_json(path)
    counts = graph.counts()
    names = {"conv2d": "conv", "ewadd": "add", "ewmul": "mul", "poolmax": "max_pool", "matmul": "matmul"}
    for op, count in told["op_counts"].items():
        if op in names:
            assert counts[names[op]] == count
    rng = np.random.default_rng(0)
    values = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs}
    for output in evaluate(graph, values):
        assert np.isfinite(output).all() and np.std(output) > 0
