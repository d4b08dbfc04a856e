"""Variants of a bound GPU program, in which other kernels compute the same values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.plan import Plan, Step
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.pipeline.execution.exchanged_program import Exchanges, site_of

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
SIZE = 48


class Few(PricerBase):
    """Kernels of one product each are the cheapest, equal ones equally."""

    def price(self, found: Any) -> list[Priced]:
        costs = [1 + k.template.pattern.count("matmul") ** 2 + 1e-9 * int(k.template.identity[:6], 16) for k in found]
        return [Priced(us, us, us, "bound") for us in costs]


def layers(count: int) -> Plan:
    """Plan of layers of a sum over rows and a product with weights of the layer's own, in Triton; the first has another
    epilogue, and a sum is a state."""
    rng, x, params = np.random.default_rng(0), t.input("x", (1, SIZE)), {}
    for n in range(count):
        x = t.matmul(t.tanh(x), t.param(f"w{n}", (SIZE, SIZE)))
        params[f"w{n}"] = rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 8
    graph = Graph.of(x, updates={"s": t.state("s", (1, SIZE)) + x}, name="layers")
    found = candidate_hypergraph(view_of(graph), [backend("triton")], view_strides)
    return plan_of(search(found, Few()), replace(graph, params=params))


def products(plan: Plan) -> list[int]:
    return [n for n, s in enumerate(plan.steps) if s.template.family == "contraction"]


def other(step: Step) -> Step:
    """The step with the schedule that differs most from its own."""
    assert step.template.space is not None
    now = dict(step.call.schedule) or dict(step.template.space(step.call)[0])
    made = max(step.template.space(step.call), key=lambda s: len(set(s.items()) ^ set(now.items())))
    return replace(step, call=replace(step.call, schedule=dict(made)))


def test_all_equal_kernels_are_exchanged_in_the_memory_of_the_program() -> None:
    plan = layers(3)
    program, given = Program(plan, device="cpu"), torch.randn(1, SIZE)
    want = program.flat_near(given)[0].clone()
    state = program.states["s"].clone()
    exchanges, equal = Exchanges(program), products(plan)
    changed = {n: other(plan.steps[n]) for n in equal}
    made = exchanges.program_of(changed)
    assert made is not None and made.plan.steps[equal[0]].call.schedule != plan.steps[equal[0]].call.schedule
    assert len(made.kernels) == len({s.name for n in equal if (s := exchanges.sites[n])})
    program.reset()
    with made.poisoned():
        (found,) = made.flat_near(given)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(made.states["s"], state)
    assert program.flat_near(given)[0].equal(want) and made.missing_bytes() == 0


def test_kernels_that_have_a_name_in_common_are_exchanged_together_or_not_at_all() -> None:
    plan = layers(5)
    program = Program(plan, device="cpu").bind()
    exchanges, equal = Exchanges(program), products(plan)
    names = [s.name for n in equal if (s := exchanges.sites[n])]
    alike = next(n for n, name in zip(equal, names, strict=True) if names.count(name) > 1)
    assert exchanges.program_of({alike: other(plan.steps[alike])}) is None
    assert exchanges.program_of({}) is not None and Exchanges.of(program) is None  # of a GPU only


def test_calls_of_libraries_and_of_several_launches_are_not_exchanged() -> None:
    step = layers(1).steps[products(layers(1))[0]]
    library = next(k for k in backend("torch_cuda").templates if k.name == "torch.matmul" or k.family == "contraction")
    split = [s for s in step.template.space(step.call) if s.get("split", 1) > 1]  # type: ignore[misc]
    assert site_of(library, step.call) is None
    assert all(site_of(step.template, replace(step.call, schedule=dict(s))) is None for s in split)
