"""What the mask of attention hides by -inf does not reach results, whatever it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.view.recognized import recognized
from tensor_graphs.rules.tables.fusion import RULES

ROWS, KEYS = 6, 8
LOW = t.full((1,) * 4, -np.inf, "float32")
AHEAD = t.iota((1, 1, ROWS, KEYS), 3) - t.iota((1, 1, ROWS, KEYS), 2)
PLACE = t.iota((1, 1, 1, KEYS), 3)

#: Name -> where scores are hidden; the last key is among these places in every row.
MASKS: dict[str, Callable[[], Tensor]] = {
    "causal": lambda: t.gt(AHEAD, 0),
    "window": lambda: t.logical_or(t.gt(AHEAD, 0), t.le(AHEAD, -3)),
    "padding": lambda: t.input("hidden", (1, 1, 1, KEYS), "bool"),
    "places of a cache": lambda: t.gt(PLACE, t.reshape(t.input("at", (1,), "int64"), (1,) * 4)),
}


@pytest.mark.parametrize("name", MASKS)
def test_hidden_nan_stays_hidden(name: str) -> None:
    """Neither as written nor as one operation, which searches start from."""
    q, k, v = (t.input(n, (1, 2, size, 4)) for n, size in (("q", ROWS), ("k", KEYS), ("v", KEYS)))
    root = t.matmul(c.softmax(t.where(MASKS[name](), LOW, t.matmul(q, t.transpose(k)) * 0.5), axis=3), v)
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((1, 2, size, 4)).astype(np.float32) for n, size in (("q", 6), ("k", 8), ("v", 8))}
    more = {"at": np.array([5]), "hidden": np.arange(KEYS).reshape(1, 1, 1, KEYS) > 5}
    want = evaluate([root], {**given, **more})[0]
    given["k"][..., -1, :], given["k"][..., -1, 2] = np.nan, np.inf
    (composite,) = recognized(Graph.of(root), RULES).roots
    assert "hiding_attention" in {n.op for n in topological([composite])}
    for form in (root, composite):
        np.testing.assert_allclose(evaluate([form], {**given, **more})[0], want, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 3])
def test_causal_attention_hides_nan_too(window: int) -> None:
    q, k, v = (t.input(n, (1, KEYS, 4)) for n in "qkv")
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((1, KEYS, 4)).astype(np.float32) for n in "qkv"}
    root = c.attention(q, k, v, scale=0.5, causal=True, window=window)
    want = evaluate([root], given)[0]
    given["k"][:, -1] = np.nan
    got = evaluate([root], given)[0]
    np.testing.assert_allclose(got[:, :-1], want[:, :-1], rtol=1e-5)
    assert np.isnan(got[:, -1]).all()
