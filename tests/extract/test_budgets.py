"""Budgets of plans: memory and error, from candidates to whole optimizations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.store.schema import AccuracyRow
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import NoPlanError, UsageError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.kernel import Candidate
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.alternatives import alternatives
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.extract.solve import budgets
from tensor_graphs.pipeline.costs.prices import CostPricer

FAST, FINE, FUSED = (
    LibraryKernel("fast", "numpy", "exp(x)", "np.exp({x}, out={out})"),
    LibraryKernel("fine", "numpy", "exp(x)", "np.exp({x}, out={out})", version="2"),
    LibraryKernel("fused", "numpy", "tanh(exp(x))", "np.tanh(np.exp({x}), out={out})"),
)
US = {"fast": 1.0, "fine": 3.0, "np.tanh": 1.0, "fused": 9.0}
ERROR = {"fast": 1e-3, "fine": 1e-7, "fused": 1e-4}


class Backend(BackendBase):
    name = "cpu"
    templates = (FAST, FINE, FUSED, *(t for t in backend("numpy").templates if t.name != "np.exp"))

    def unavailable(self) -> str:
        return ""


class Prices(PricerBase):
    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        return [Priced(us, us, us, "measured") for us in (US.get(c.template.name, 50.0) for c in found)]


def errors(found: Sequence[Candidate]) -> list[float]:
    return [ERROR.get(c.template.name, 0.0) for c in found]


def graph() -> Hypergraph:
    """tanh(exp(x)) of 8 floats, for two inputs: each value takes 32 bytes."""
    outputs = [tg.tanh(tg.exp(tg.input(n, (8,)))) for n in "xy"]
    return candidate_hypergraph(view_of(Graph.of(outputs)), [Backend()], view_strides)


def names(choice: Choice) -> list[str]:
    return sorted(choice.hypergraph.candidates[i].template.name for i in choice.chosen)


@pytest.mark.parametrize(
    ("most", "wanted", "cost"),
    [
        (1.0, ["fast", "fast", "np.tanh", "np.tanh"], 4.0),
        (1.5e-3, ["fast", "fine", "np.tanh", "np.tanh"], 6.0),
        (1e-5, ["fine", "fine", "np.tanh", "np.tanh"], 8.0),
    ],
)
def test_an_error_budget_chooses_finer_kernels(most: float, wanted: list[str], cost: float) -> None:
    choice = search(graph(), Prices(), budgets=[budgets.error_budget(most, errors)])
    assert names(choice) == wanted and choice.cost == cost and choice.extraction.optimal


@pytest.mark.parametrize(("most", "fused", "cost"), [(128, 0, 4.0), (127, 1, 11.0), (64, 2, 18.0)])
def test_a_memory_limit_chooses_fused_kernels(most: int, fused: int, cost: float) -> None:
    choice = search(graph(), Prices(), budgets=[budgets.memory_budget(most)])
    assert names(choice).count("fused") == fused and choice.cost == cost
    assert sum(budgets.memory_budget(0).use([choice.hypergraph.candidates[i] for i in choice.chosen])) <= most


def test_budgets_hold_together_and_for_alternatives() -> None:
    both = [budgets.memory_budget(96), budgets.error_budget(1.2e-4, errors)]
    choice = search(graph(), Prices(), budgets=both)
    assert names(choice) == ["fine", "fused", "np.tanh"]
    found = list(alternatives(choice, 10, max_gap=10.0))
    assert len(found) > 1
    for one in found:
        used = [one.hypergraph.candidates[i] for i in one.chosen]
        assert all(sum(b.use(used)) <= b.most * (1 + 1e-9) for b in both)


def test_alternatives_can_be_asked_to_differ() -> None:
    choice = search(graph(), Prices())
    first, second = list(alternatives(choice, 2, max_gap=10.0, diversity=1.0))
    assert not set(first.chosen) & set(second.chosen)
    first, second = list(alternatives(choice, 2, max_gap=10.0))
    assert set(first.chosen) & set(second.chosen)


@pytest.mark.parametrize("budget", [budgets.memory_budget(63), budgets.error_budget(0.0, errors)])
def test_what_no_plan_keeps_is_said(budget: budgets.Budget) -> None:
    found = graph()
    if budget.name == "error":
        found.candidates = [c for c in found.candidates if c.template.name in ("fast", "np.tanh") or c.is_view]
    with pytest.raises(NoPlanError, match="no extraction satisfies the limits") as caught:
        search(found, Prices(), budgets=[budget])
    assert budget.name in caught.value.where


@pytest.mark.parametrize("wrong", [-1.0, -math.inf, math.nan])
def test_bad_budgets(wrong: float) -> None:
    with pytest.raises(UsageError, match="limit must be"):
        budgets.memory_budget(wrong)


@pytest.mark.parametrize("most", [1e30, 1e308, math.inf])
def test_a_limit_above_every_plan_allows_the_best_one(most: float) -> None:
    found = [search(graph(), Prices(), budgets=b) for b in ([], [budgets.memory_budget(most)])]
    assert found[0].cost == found[1].cost and found[0].chosen == found[1].chosen


def test_stored_accuracies_are_the_errors_of_candidates(tmp_path: Any) -> None:
    found, store = graph(), Store(tmp_path)
    rows = []
    for c in found.candidates:
        if c.template in (FAST, FUSED):
            common: Any = {"key": key_of(c.template, c.call), "work": Work(*call_work(c.template, c.call))}
            rows += [AccuracyRow(rel_fro=e, **common) for e in (ERROR[c.template.name], 1e-9)]
    store.add(rows)
    known = CostPricer(store).errors
    assert known(found.candidates) == [
        ERROR.get(c.template.name, 0.0) if c.template is not FINE else 0.0 for c in found.candidates
    ]
    choice = search(found, Prices(), budgets=[budgets.error_budget(1.5e-3, known)])
    assert names(choice) == ["fast", "fine", "np.tanh", "np.tanh"]


def test_optimizing_within_a_memory_limit(tmp_path: Any) -> None:
    x = tg.input("x", (64, 64))
    y = tg.softmax(tg.tanh(x) * 2.0 + x)
    free = tg.optimize(y, costdb=tmp_path, measure=False)
    tight = tg.optimize(y, costdb=tmp_path, measure=False, memory_limit=4 * 64 * 64 * 4)
    given = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_allclose(tight(given), free(given), rtol=1e-5)
    assert tight.plan is not None
    assert sum(s.call.output.type.nbytes for s in tight.plan.steps if not s.is_view) <= 4 * 64 * 64 * 4
    assert 0 < tight.manifest.workspace + tight.manifest.fresh <= 4 * 64 * 64 * 4 + 64 * tight.manifest.kernels
    with pytest.raises(NoPlanError, match="satisfies the limits"):
        tg.optimize(y, costdb=tmp_path, measure=False, memory_limit=100)
    with pytest.raises(UsageError, match="from 0 on"):
        tg.optimize(y, costdb=tmp_path, measure=False, memory_limit=-1)


def test_optimizing_within_an_error_budget(tmp_path: Any) -> None:
    """A kernel that is stored as coarse is chosen without a budget, and not with one; paths keep it too."""
    x = tg.input("x", (64, 64))
    y = tg.tanh(tg.exp(x))
    store = Store(tmp_path)

    def options(**more: Any) -> dict[str, Any]:
        return {"backend": "numpy", "costdb": tmp_path, **more}

    explorer = tg.saturate(y, **options())
    found = explorer.choice.hypergraph
    coarse = {found.candidates[i].template.name for i in explorer.choice.chosen} - {"np.tanh"}
    assert coarse == {"np.exp"}
    rows: list[Any] = [
        AccuracyRow(rel_fro=1e-2, key=key_of(c.template, c.call), work=Work(*call_work(c.template, c.call)))
        for c in found.candidates if c.template.name in coarse
    ]  # fmt: skip
    store.add(rows)
    store.flush()
    assert tg.optimize(y, **options(measure=False, verify=False, error_budget=0.02)).plan is not None
    with pytest.raises(NoPlanError, match="satisfies the limits"):
        tg.optimize(y, **options(measure=False, verify=False, error_budget=1e-3))
    with pytest.raises(NoPlanError, match="satisfies the limits"):
        list(tg.paths(y, **options(error_budget=1e-3)))
    with pytest.raises(UsageError, match="from 0 on"):
        tg.optimize(y, **options(measure=False, error_budget=-1.0))


def test_paths_can_be_asked_to_differ(tmp_path: Any) -> None:
    x = tg.input("x", (8, 8))
    y = tg.tanh(x @ x) + x
    found = list(tg.paths(y, count=3, max_gap=5.0, diversity=0.5, costdb=tmp_path))
    assert len(found) == 3 and found[0].difference == 1.0 and all(0.5 <= p.difference <= 1.0 for p in found)
    assert "new" in repr(found[1]) and "new" not in repr(found[0])
    close = list(tg.paths(y, count=3, max_gap=5.0, costdb=tmp_path))
    assert min(p.difference for p in close) < 1.0
    choice = tg.saturate(y, costdb=tmp_path).choice
    kernels = []
    for one in alternatives(choice, 3, max_gap=5.0, diversity=0.5):
        found = [one.hypergraph.candidates[i] for i in one.chosen]
        kernels.append({(c.template.name, c.output, frozenset(v for _, v in c.inputs)) for c in found if not c.is_view})
    for i, new in enumerate(kernels):
        assert all(len(new - old) >= 0.5 * len(new) for old in kernels[:i])
