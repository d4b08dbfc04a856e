"""The emitted source of a few graphs, kept as files: `pytest tests/backends --update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph

GOLDEN = Path(__file__).parents[1] / "golden"


def mlp() -> Graph:
    x, w, b = t.input("x", (4, 8)), t.param("dense.weight", (8, 8)), t.param("dense.bias", (8,))
    return Graph.of(c.softmax(c.relu(c.linear(x, w, b)) * 0.5, axis=1), name="mlp")


def attention() -> Graph:
    q, k, v = (t.input(n, (1, 2, 4, 8)) for n in "qkv")
    mixed = c.attention(q, k, v, scale=0.25, causal=True)
    return Graph.of(t.reshape(t.permute(mixed, (0, 2, 1, 3)), (1, 4, 16)), name="attention")


def cache() -> Graph:
    k, i, x = t.state("cache", (6, 4)), t.input("position", (1, 4), "int64"), t.input("x", (1, 4))
    written = t.scatter_elements(k, i, x, 0)
    return Graph.of(t.sum(written, axis=0), updates={"cache": written}, inputs=[x, i], name="cache")


BACKENDS = {"numpy": ["numpy"], "torch": ["torch", "numpy"], "cuda": ["torch_cuda"]}
CASES = [(f, choice) for f in (mlp, attention, cache) for choice in ("numpy", "torch", "cuda")]


@pytest.mark.parametrize(("build", "choice"), CASES, ids=[f"{f.__name__}-{c}" for f, c in CASES])
def test_source_is_the_golden_file(build, choice: str, update_golden: bool) -> None:
    source = emit_for(direct_plan(build(), [backend(name) for name in BACKENDS[choice]])).source
    path = GOLDEN / f"{build.__name__}_{choice}.py"
    if update_golden:
        path.write_text(source, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == source
