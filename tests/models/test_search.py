"""Searches in sorted values (np.isin, np.searchsorted, torch.searchsorted), compared with all of them and binary."""

import tracemalloc

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.models.functions.trace import trace
from tensor_graphs.models.torch_export import aten_search
from tensor_graphs.models.torch_export.aten_search import searchsorted


def run(function, *arrays):
    graph = trace(function, arrays)
    return evaluate(graph, {n.attr("name"): a for n, a in zip(graph.inputs, arrays)})[0]


def drawn(rng, dtype, count):
    if np.dtype(dtype).kind == "f":
        odd = rng.choice([np.nan, np.inf, -np.inf, -0.0], count)
        return np.where(rng.random(count) < 0.1, odd, rng.integers(-20, 20, count) / 2).astype(dtype)
    limits = np.iinfo(dtype)
    values = rng.integers(max(limits.min, -40), min(limits.max, 40), count, dtype=dtype)
    return np.where(
        rng.random(count) < 0.1, np.array([limits.min, limits.max], dtype)[rng.integers(0, 2, count)], values
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64", "uint64"])
def test_binary_searches_find_what_numpy_finds(monkeypatch, dtype):
    monkeypatch.setattr(aten_search, "FEW", 0)
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 7, 8, 9, 50):
        values, x = drawn(rng, dtype, count), drawn(rng, dtype, 60).reshape(3, 20)
        ordered = np.sort(values)
        for function in (
            lambda x, v: np.isin(x, v), lambda x, v: np.isin(x, np.sort(v), invert=True),
            lambda x, v, known=values: np.isin(x, known) if v is not None else None,
            lambda x, v, known=ordered: np.searchsorted(known, x),
            lambda x, v, known=ordered: np.digitize(x, known),
        ):  # fmt: skip
            np.testing.assert_array_equal(run(function, x, values), function(x, values))


def test_binary_searches_in_rows_are_torchs(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(aten_search, "FEW", 0)
    rng = np.random.default_rng(1)
    for right in (False, True):
        borders, x = np.sort(rng.integers(0, 30, (2, 3, 13)), -1).astype(np.float32), rng.integers(0, 30, (2, 3, 5))
        x = x.astype(np.float32)

        def function(b, x, right=right):
            return searchsorted(b, x, right=right)

        graph = trace(function, [borders, x], arrays=False)
        (found,) = evaluate(graph, {"b": borders, "x": x})
        wanted = torch.searchsorted(torch.tensor(borders), torch.tensor(x), right=right)
        np.testing.assert_array_equal(found, wanted.numpy())


def test_searches_in_many_values_take_little_memory():
    many = np.random.default_rng(2).permutation(40_000).astype(np.int32)
    tracemalloc.start()
    for function in (lambda x: np.isin(x, many[::2]), lambda x: np.searchsorted(np.sort(many), x)):
        np.testing.assert_array_equal(run(function, many), function(many))
    assert tracemalloc.get_traced_memory()[1] < 1 << 24  # a table of all pairs: 800 MB of bools
    tracemalloc.stop()
