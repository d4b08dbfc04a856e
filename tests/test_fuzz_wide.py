"""Random graphs over the whole op table and all dtypes (tests/fuzz), a few of each kind.

`python -m tests.fuzz CHECK --seconds 600 --seed N` goes on for as long as one likes.
"""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.dtypes import numpy_dtype
from tensor_graphs.egraph.graph import Graph
from tensor_graphs.egraph.interpret import evaluate

from .fuzz.__main__ import CHECKS, attempted
from .fuzz.graphs import Grower

#: check -> graphs that are tried, and their steps.
COUNTS = {
    "simplified": (60, 8),
    "bitwise": (4, 6),
    "blocks": (5, 6),
    "empty": (3, 6),
    "classes": (6, 6),
    "exact": (4, 6),
    "plans": (3, 6),
    "optimized": (3, 6),
    "sizes": (8, 7),
    "specified": (8, 7),
}


@pytest.mark.parametrize("check", COUNTS)
def test_random_graphs(check: str) -> None:
    pytest.importorskip("torch")
    run, kinds = CHECKS[check]
    count, steps = COUNTS[check]
    for seed in range(count):
        one = Grower(seed, kinds).graph(steps)
        said = attempted(run, one, seed)
        assert not said, f"seed {seed}\n{one.text()}\n{said}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_exact_programs_round_where_the_graph_does(dtype: str) -> None:
    """Rules put composite ops together that are exact themselves; their kernels may round at other places."""
    x = tg.input("x", (64,), dtype)
    graph = Graph.of([tg.clip(tg.erf(x) * (1 / 6) + 0.5, lo=0.0, hi=1.0), tg.sigmoid(x) * x, tg.maximum(x, 0.0) * 0.3])
    values = np.random.default_rng(0).standard_normal(64).astype(numpy_dtype(dtype))
    made = tg.optimize(graph, backend="numpy", tolerance="exact", measure=False, verify=False)
    for found, want in zip(made.flat(values), evaluate(graph, {"x": values}), strict=True):
        assert np.asarray(found).tobytes() == want.tobytes()
