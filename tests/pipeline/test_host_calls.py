"""Kernels of NumPy and PyTorch cost at least the calls of their functions, unless they were measured."""

from __future__ import annotations

import ast
from dataclasses import replace

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Candidate
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.pipeline.costs.host_calls import CALL_US, _on_path, called, least_us, with_calls


def test_a_norm_of_a_short_row_costs_its_calls() -> None:
    x, line = tg.input("x", (1, 8), "float32"), tg.input("g", (8,), "float32")
    view = view_of(Graph.of(tg.layer_norm(x, line, line, eps=1e-5) + x))
    found = candidate_hypergraph(view, [backend(name) for name in ("numpy", "torch", "c")], view_strides).candidates
    kernels = {c.template.name: c for c in found if not c.is_view}
    assert called(kernels["np.layer_norm"]) == (0, 10)  # 12 where its result is wider than float32
    assert called(kernels["np.add"]) == called(kernels["torch.add"]) == (1, 0)
    assert least_us(kernels["torch.add"]) == CALL_US["torch"] and least_us(kernels["c.layer_norm"]) == 0.0
    norm, low = kernels["np.layer_norm"], Priced(1.0, 0.5, 1.5, "predicted")
    assert with_calls(low, norm) == replace(low, us=least_us(norm), high=least_us(norm))
    for unchanged in (replace(low, source="measured"), Priced(99.0, 50.0, 120.0, "predicted")):
        assert with_calls(unchanged, norm) is unchanged
    assert isinstance(norm, Candidate)


def test_a_method_of_a_result_is_no_call_of_the_library() -> None:
    for text, count in (("np.max(x).astype(t)", 1), ("np.linalg.norm(np.abs(x)).reshape(-1)", 2), ("x.astype(t)", 0)):
        assert _on_path(ast.parse(text).body, {}) == count
