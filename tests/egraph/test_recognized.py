"""Forms that are recognized without an e-graph: composite ops that are spelled out, batch norms behind convolutions."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.view.recognized import recognized
from tensor_graphs.rules import ALL

X = t.input("x", (2, 4, 6, 6))
Q, K = t.input("q", (1, 2, 5, 8)), t.input("k", (1, 2, 5, 8))
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def norm(x: Tensor, mean: Tensor | None = None) -> Tensor:
    gain, shift, own, variance = (t.param(n, (8,)) for n in ("gain", "shift", "mean", "variance"))
    return c.batch_norm(x, gain, shift, own if mean is None else mean, t.abs(variance), eps=1e-3)


def convolution(bias: bool = False) -> Tensor:
    y = t.conv(X, t.param("w", (8, 4, 3, 3)), **WINDOW)
    return y + t.reshape(t.param("b", (8,)), (1, 8, 1, 1)) if bias else y


SPELLED = X * (1.0 / (1.0 + t.exp(-X)))
CASES: dict[str, tuple[list[Tensor], set[str], set[str]]] = {  # roots, ops that are found, ops that are gone
    "silu of a spelled sigmoid": ([SPELLED], {"silu"}, {"sigmoid", "exp"}),
    "attention": ([c.softmax(Q @ t.swapaxes(K, 2, 3) * 0.5, axis=3) @ K], {"attention"}, {"softmax", "matmul"}),
    "norm": ([norm(convolution())], {"conv"}, {"batch_norm"}),
    "norm of a biased convolution, silu": ([c.silu(norm(convolution(bias=True)))], {"conv", "silu"}, {"batch_norm"}),
    "a sigmoid with other uses": ([X * c.sigmoid(X), c.sigmoid(X)], {"sigmoid"}, {"silu"}),
    "a convolution with other uses": ([norm(convolution()), convolution()], {"batch_norm"}, set()),
    "statistics of the input": ([norm(convolution(), t.mean(t.reshape(X, (8, 36)), 1))], {"batch_norm"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forms_are_recognized_and_values_stay(name: str) -> None:
    roots, present, gone = CASES[name]
    graph = simplify(Graph.of(roots))
    found = recognized(graph, ALL)
    ops = {n.op for n in found.nodes()}
    assert present <= ops and not gone & ops
    rng = np.random.default_rng(0)
    values = {
        str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32)
        for n in graph.nodes()
        if n.op in ("input", "param")
    }
    for want, got in zip(*(evaluate(g, values, params=values) for g in (graph, found)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
