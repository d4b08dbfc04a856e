"""16-bit models on a CPU that multiplies bfloat16: plans whose values lie in it, beside plans in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session, open_store
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.pipeline.stages.match import stored_narrow
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite
from tensor_graphs.verification.diagnose import diagnose


def supported() -> bool:
    if backend("torch").unavailable():
        return False
    from tensor_graphs.backends.library.torch_rows import multiplies_bfloat16

    return multiplies_bfloat16()


pytestmark = pytest.mark.skipif(not supported(), reason="oneDNN has no products of bfloat16 here")
NARROW = dtypes.numpy_dtype("bfloat16")


def model() -> Graph:
    """A gated feed-forward layer with a norm and a residual, all in bfloat16."""
    rng = np.random.default_rng(0)
    x = tg.input("x", (16, 64), "bfloat16")
    gain, up, down = (
        tg.param("g", (64,), "bfloat16"),
        tg.param("u", (64, 128), "bfloat16"),
        tg.param("d", (128, 64), "bfloat16"),
    )
    inner = tg.gelu(tg.rms_norm(x, gain, eps=1e-6) @ up)
    params = {n: (rng.standard_normal(p.shape) / 8).astype(NARROW) for n, p in (("g", gain), ("u", up), ("d", down))}
    return Graph.of(x + inner @ down, params=params)


def exact(graph: Graph, x: Any) -> Any:
    from math import erf

    g, u, d = (graph.params[n].astype(np.float64) for n in "gud")
    wide = x.astype(np.float64)
    inner = (wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * g) @ u
    return wide + (inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))) @ d


def test_values_and_weights_lie_in_bfloat16() -> None:
    graph = model()
    session = Session(Options(measure=False))
    prepared = prepare(session, graph, None)
    view = rewrite(session, prepared.work).view
    found = stored_narrow(session, view, select("torch"))
    assert found is not None
    with open_store(session) as store:
        choice = choose(session, found, CostPricer(store), None)
    plan = plan_of(choice, prepared.work)
    kinds = {v.type.dtype for v in plan.values if len(v.type.shape) == 2 and v.type.shape[-1] != 1}
    assert kinds == {"bfloat16"}, "all values longer than a statistic are stored in the model's dtype"
    x = np.random.default_rng(1).standard_normal((16, 64)).astype(NARROW)
    got = Program(plan)(x=x)
    want = exact(graph, x)
    assert np.linalg.norm(np.asarray(got, np.float64) - want) < 2e-2 * np.linalg.norm(want)
    finding = diagnose(graph, plan)  # as if it were over tolerance
    assert not finding.miscompiled and finding.steps


def test_the_faster_of_both_plans_is_verified_and_runs() -> None:
    graph = model()
    program = tg.optimize(graph, budget=5)
    x = np.random.default_rng(1).standard_normal((16, 64)).astype(NARROW)
    want = exact(graph, x)
    assert np.linalg.norm(np.asarray(program(x=x), np.float64) - want) < 2e-2 * np.linalg.norm(want)
    assert program.report.verification["passed"]


def test_where_it_makes_no_sense_there_is_no_such_plan() -> None:
    session = Session(Options(measure=False, tolerance="exact"))
    view = view_of(prepare(session, model(), None).work)
    assert stored_narrow(session, view, select("torch")) is None
    session = Session(Options(measure=False))
    assert stored_narrow(session, view, select("numpy")) is None
    wide = view_of(Graph.of(tg.exp(tg.input("x", (4, 4)))))
    with settings.override(threads=1):
        assert stored_narrow(session, wide, select("torch")) is None
