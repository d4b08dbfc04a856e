"""Kernels of products of few rows that also store the left operand: a residual stream and the products of its norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.split_reduction import split
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton import backend as triton
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.fusion.product_operands import is_product_operand
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.verification.comparison import relative_error

from . import kernel_interpreter
from .cuda.test_cuda_cpp import _compiled_alone, check
from .test_multi_output_kernels import call_of, kernel, names_of, values, x


def gated(rows: int = 1, size: int = 80, columns: int = 48) -> list[Tensor]:
    """A gated layer's first half behind two norms, and the residual stream between them."""
    stream = x("a", rows, size) + c.rms_norm(x("b", rows, size), x("g", size), eps=1e-6)
    normed = c.rms_norm(stream, x("h", size), eps=1e-6)
    return [c.silu(t.matmul(normed, x("v", size, columns))) * t.matmul(normed, x("w", size, columns)), stream]


@pytest.mark.parametrize("rows", [1, 3])
def test_the_stored_operand_is_the_one_that_the_product_reads(rows: int) -> None:
    roots = gated(rows)
    one, given = kernel(roots), values(roots)
    assert {a.name for a in one.stored_sides} == {"r80"} and len(one.reductions) == 4
    memory = {n: v.reshape(-1).astype(np.float64) for n, v in given.items()}
    memory |= {n: np.full(r.type.nbytes // 4, np.nan) for n, r in zip(names_of(roots), roots)}
    kernel_interpreter.run(one, memory)
    for n, want in zip(names_of(roots), evaluate(roots, given, float64=True)):
        np.testing.assert_allclose(memory[n].reshape(want.shape), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("turned", [(), ("v", "w")], ids=["rows", "columns"])
def test_cuda_kernels_store_the_operand_once(turned: tuple[str, ...], tmp_path: Path) -> None:
    template = cuda_cpp.generated(gated(), turned)
    call = call_of(template)
    space = template.space(call)
    assert space and all("split" not in s and "ahead" not in s for s in space)
    launch = _compiled_alone(template, call, tmp_path)
    check(template, call, *launch, "float32")


def test_blocks_that_walk_the_reduction_and_parts_of_it_are_refused() -> None:
    template = cuda_cpp.generated(gated())
    call = call_of(template)
    first = next(dict(s) for s in template.space(call) if not s.get("staged"))
    found = template.lower(call)
    assert found is not None and not found.cuts
    assert template.emitter.fits(found.kernel, found.shape, first, False)
    walked = {**first, "t0": 8, "u0": 1, "v0": 1}
    assert not template.emitter.fits(found.kernel, found.shape, walked, False)
    assert template.emitter.fits(found.kernel, found.shape, {**walked, "staged": 1}, False)  # stored before the walk
    with pytest.raises(Unfusable, match="along the split reduction axis"):
        split(found.kernel, found.shape.outer[0], 2)


def test_other_emitters_have_no_schedule_for_it() -> None:
    template = triton.generated(gated())
    assert template.lower(call_of(template)) is None


def test_what_counts_as_an_operand() -> None:
    root, stream = gated()
    assert is_product_operand(stream, root) and not is_product_operand(root, root)
    assert not is_product_operand(x("a", 1, 80), t.matmul(x("b", 1, 80), x("w", 80, 48)))
    assert not is_product_operand(*reversed(gated(8))) and not is_product_operand(*reversed(gated(1, 64)))


class Cheap(PricerBase):
    """A launch, and less for CUDA C++, so that plans have few kernels."""

    def price(self, found: Any) -> list[Priced]:
        costs = [1.0 + call_work(k.template, k.call)[1] * 1e-6 + (k.template.backend != "nvrtc") for k in found]
        return [Priced(us, us, us, "bound") for us in costs]


@pytest.mark.usefixtures("emulated")
def test_a_plan_stores_the_residual_stream_beside_the_product_of_its_norm() -> None:
    """Two halves of a layer: each product's kernel norms its input and stores the stream for the next sum."""
    size, width = 80, 96
    norm = lambda x, name: c.rms_norm(x, t.param(name, (size,)), eps=1e-6)
    stream, half = t.input("x", (1, size)), t.input("y", (1, size))
    for i in range(2):
        stream = stream + norm(half, f"h{i}")
        inner = t.tanh(t.matmul(norm(stream, f"g{i}"), t.param(f"v{i}", (size, width))))
        half = t.matmul(inner, t.param(f"w{i}", (width, size)))
    last = t.matmul(norm(stream + norm(half, "h2"), "g2"), t.param("v2", (size, width)))
    graph = Graph.of(last, name="stream")
    rng = np.random.default_rng(0)
    found = {str(n.attr("name")): n.shape for n in topological([last]) if n.op == "param"}
    params = {n: (rng.standard_normal(s) / 8).astype(np.float32) for n, s in found.items()}
    graph = replace(graph, params=params)
    given = {n: rng.standard_normal((1, size)).astype(np.float32) for n in "xy"}
    options = candidate_hypergraph(view_of(graph), [backend("nvrtc"), backend("torch_cuda")], view_strides)
    plan = plan_of(search(options, Cheap()), graph)
    steps = [s for s in plan.steps if not s.is_view]
    assert len(steps) == 5 and [len(s.outputs) for s in steps] == [2, 1, 2, 1, 1]
    got = Program(plan, device="cpu")(**given)
    (want,) = evaluate(graph, given, params=params, float64=True)
    assert relative_error(np.asarray(got), want) < 1e-5
