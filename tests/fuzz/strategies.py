"""Random graphs (graphs.py) as strategies of Hypothesis, and random data for graphs whose leaves have none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensor_graphs.backends.verification.index_bounds import index_bounds
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dims import volume
from tensor_graphs.verification.reference import sample_inputs

from .graphs import Grower, Kinds

#: What may be compared without an oracle: floats of two widths, no op that jumps, no rule planted.
SMOOTH = frozenset({
    "neg", "abs", "tanh", "exp", "sigmoid", "relu", "silu", "add", "sub", "mul", "maximum", "minimum", "div", "where",
    "cast", "sum", "max", "min", "cumsum", "flip", "softmax", "matmul", "linear", "layer_norm", "rms_norm", "reshape", "permute",
    "broadcast_to", "slice", "windows", "concat", "pad", "gather",
})  # fmt: skip
PLAIN = Kinds(floats=("float32", "float32", "float64"), ints=(), sizes=(1, 2, 3, 4), rules=0.0, volume=256, ops=SMOOTH)
ANY = Kinds()


def graphs(steps: int = 8, kinds: Kinds = PLAIN, ops: Iterable[str] = ()) -> st.SearchStrategy[Graph]:
    """Graphs by their seeds, without empty values; `ops` are all that there are. What fails is cut down by
    `fuzz/shrink.py`, not by hypothesis."""
    kinds = replace(kinds, ops=frozenset(ops)) if ops else kinds
    return st.integers(0, 1 << 40).map(lambda seed: Grower(seed, kinds).graph(steps).graph).filter(_all_full)


def _all_full(graph: Graph) -> bool:
    return all(volume(n.shape) for n in graph.nodes())


def data(graph: Graph, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs and states, params), indices within their bounds."""
    rng, bounds = np.random.default_rng(seed), index_bounds(graph)
    values = sample_inputs([*graph.leaves("input"), *graph.leaves("state")], rng, bounds)
    return values, sample_inputs(graph.leaves("param"), rng, bounds)
