"""Kernels with scratch memory: no large allocation while a program runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.library.scratch import ALIGNMENT, placed, reduced_shape
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor

IMAGE, ROWS, HEADS = (2, 8, 64, 64), (256, 256), (4, 128, 32)


def ones(*shape: int) -> Tensor:
    return t.input(f"w{shape}", shape)


COMPOSITES: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: c.softmax(t.input("x", ROWS), axis=1),
    "softmax of columns": lambda: c.softmax(t.input("x", ROWS), axis=0),
    "log_softmax": lambda: c.log_softmax(t.input("x", ROWS), axis=1),
    "logsumexp": lambda: c.logsumexp(t.input("x", ROWS), axes=(1,)),
    "layer_norm": lambda: c.layer_norm(t.input("x", ROWS), ones(256), ones(256)),
    "rms_norm": lambda: c.rms_norm(t.input("x", ROWS), ones(256)),
    "group_norm": lambda: c.group_norm(t.input("x", IMAGE), ones(8), ones(8), groups=4),
    "rope": lambda: c.rope(t.input("x", HEADS), t.input("c", HEADS), t.input("s", HEADS)),
    "attention": lambda: c.attention(*(t.input(n, HEADS) for n in "qkv"), scale=0.2, causal=True, window=64),
    "masked": lambda: c.masked_attention(*(t.input(n, HEADS) for n in "qkv"), t.input("m", (1, 128, 128)), scale=0.2),
    "elu": lambda: c.elu(t.input("x", ROWS)),
    "leaky_relu": lambda: c.leaky_relu(t.input("x", ROWS)),
    "max_pool": lambda: c.max_pool(
        t.input("x", IMAGE), kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)
    ),
    "avg_pool": lambda: c.avg_pool(
        t.input("x", IMAGE), kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)
    ),
}
SMALL = 100_000  # bytes: the buffers in which NumPy's functions work, and views


@pytest.mark.parametrize("kind", COMPOSITES)
def test_no_intermediate_is_allocated(kind: str) -> None:
    graph = Graph.of(COMPOSITES[kind]())
    program = Program(direct_plan(graph, [backend("numpy")]), reuse_outputs=True)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(x.shape, np.float32) for x in graph.inputs]
    want = evaluate(graph, dict(zip(program.input_names, values)))[0]
    for _ in range(2):
        np.testing.assert_allclose(program.flat(*values)[0], want, rtol=2e-5, atol=2e-5)
    assert program._run is not None
    tracemalloc.start()
    try:
        program._run(*values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < SMALL < values[0].nbytes + want.nbytes
    if kind not in ("rope", "elu", "leaky_relu"):
        assert program.manifest.workspace > 0


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.tuples(st.lists(st.integers(0, 9), max_size=3), st.sampled_from(["bool", "float32"])),
    )
)
def test_scratch_buffers_do_not_overlap(drawn: dict[str, Any]) -> None:
    buffers = {name: (tuple(shape), dtype) for name, (shape, dtype) in drawn.items()}
    found, size = placed({**buffers, "alias": "out"})
    assert {name: buffer for name, (_, buffer) in found.items()} == buffers
    offsets = {name: offset for name, (offset, _) in found.items()}
    ends = sorted((o, o + int(np.prod(buffers[n][0])) * np.dtype(buffers[n][1]).itemsize) for n, o in offsets.items())
    assert all(a[1] <= b[0] for a, b in pairwise(ends)) and all(o % ALIGNMENT == 0 for o, _ in ends)
    assert all(end <= size for _, end in ends)


def test_what_a_reduction_leaves() -> None:
    assert reduced_shape((2, 3, 4), (1,)) == (2, 1, 4) == reduced_shape((2, 3, 4), (-2,)) and reduced_shape(
        (5,), (-1,)
    ) == (1,)
