"""Plans by bucket of sizes: their choice by measurement, dispatch, saved programs, and a GPU's backends on the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends import gpu as gpu_facts
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.buckets import Bucket, Buckets
from tensor_graphs.backends.program.manifest_summary import memory_of
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.triton.backend import Triton
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import BadModelError, ShapeError, UsageError
from tensor_graphs.options import Options
from tensor_graphs.pipeline import recall
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.sizes import bucket_forms, size_buckets
from tensor_graphs.pipeline.sizes.bucket_forms import ALL, CALLER, OWN, fastest, winners
from tensor_graphs.pipeline.sizes.size_buckets import buckets_of, middle
from tensor_graphs.pipeline.stages import time_program
from tensor_graphs.pipeline.stages import verify_or_retry as accept
from tensor_graphs.plain import Malformed

torch = pytest.importorskip("torch")
T = tg.dim("T", max=200)
W = (np.random.default_rng(0).standard_normal((16, 16)) / 4).astype(np.float32)


def product() -> Graph:
    return Graph.of(tg.relu(tg.input("x", (T, 16)) @ tg.param("w", (16, 16))), params={"w": W}, name="product")


def found(**options: Any) -> Program:
    given = {"dims": {"T": 64}, "backend": "numpy", "size_buckets": (8, 32), "again": True, "budget": 1}
    return tg.optimize(product(), **{**given, **options})


def right(program: Any, *sizes: int) -> None:
    for n in sizes:
        x = np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)
        for given in (x, torch.from_numpy(x)):
            np.testing.assert_allclose(np.asarray(program(given)), np.maximum(x @ W, 0), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- which form is fastest where
def test_a_form_replaces_those_before_it_only_where_it_is_surely_faster() -> None:
    def samples(**us: float) -> dict[str, Sequence[float]]:
        return {name: [u, u * 1.01, u * 0.99, u, u] for name, u in us.items()}

    assert fastest(samples(all=10, own=9.9, caller=9.9)) == "all"
    assert fastest(samples(all=10, own=8, caller=7.9)) == "own"
    assert fastest(samples(all=10, own=8, caller=5)) == "caller"
    assert fastest(samples(all=float("inf"), own=float("inf"), caller=5)) == "caller"


def test_a_bucket_is_divided_where_another_form_becomes_the_fastest() -> None:
    asked: list[int] = []

    def at(size: int) -> str:
        asked.append(size)
        return CALLER if size >= 600 else OWN

    (low, high) = winners(129, 1024, at)
    assert (low[0], low[2], high[1], high[2]) == (129, OWN, 1024, CALLER)
    assert low[1] + 1 == high[0] and 450 < high[0] < 800
    assert len(asked) <= 2 + bucket_forms.HALVINGS
    assert winners(129, 1024, lambda size: OWN) == [(129, 1024, OWN)]
    assert winners(129, 1024, at, 0) == [(129, 362, OWN), (363, 1024, CALLER)]
    assert winners(1025, 1 << 40, at)[0] == (1025, 1 << 40, CALLER) and max(asked) <= bucket_forms.MAX_TIMED_SIZE


@pytest.mark.parametrize(("row", "at"), [((1, 16), 4), ((17, 128), 64), ((129, 1024), 512), ((1025, 1 << 40), 4096), ((3, 3), 3)])  # fmt: skip
def test_plans_are_searched_in_the_middle_of_their_buckets(row: tuple[int, int], at: int) -> None:
    assert middle(*row) == at


def test_buckets_divide_the_dimension_with_the_most_sizes() -> None:
    on_cpu, x = [backend("numpy")], tg.input("x", (tg.dim("B", max=8), T, 16))
    graph = Graph.of(tg.relu(x))
    assert buckets_of(Options(size_buckets=(16, 128)), graph, on_cpu) == [(1, 16), (17, 128), (129, 200)]
    assert buckets_of(Options(size_buckets=(500,)), graph, on_cpu) == []
    assert buckets_of(Options(), graph, on_cpu) == []  # one plan on a CPU
    for none in ({"measure": False}, {"deterministic": True}, {"memory_limit": 1e9}):
        assert buckets_of(Options(size_buckets=(16,), **none), graph, on_cpu) == []
    with pytest.raises(UsageError, match="no free dimensions"):
        tg.optimize(tg.tanh(tg.input("x", (4,))), size_buckets=(2,), budget=1)
    for bad in ((0,), (16, 8), (4, 4), ("a",), 5):
        with pytest.raises(UsageError, match="size_buckets"):
            Options(size_buckets=bad)  # type: ignore[arg-type]


# ---------------------------------------------------------------- programs
@pytest.fixture
def own_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times by which each bucket's own plan is the fastest."""
    us = {ALL: 10.0, OWN: 8.0, CALLER: 9.0}

    def timed_calls(calls: Any, device: str, ended: Any) -> Any:
        for call in calls.values():
            call()
        return {name: [us[name]] * 5 for name in calls}

    monkeypatch.setattr(bucket_forms, "timed_calls", timed_calls)
    monkeypatch.setattr(size_buckets, "MIN_BUDGET_SHARE", -1e9)  # whatever time is left


@pytest.mark.usefixtures("own_plans")
def test_a_bucket_runs_its_own_plan_and_a_saved_program_has_all_of_them(tmp_path: Path) -> None:
    program = found()
    rows = [(b.least, b.most, b.runs, b.searched) for b in program.report.buckets]
    assert rows == [(1, 8, OWN, 2), (9, 32, OWN, 16), (33, 200, ALL, 0)]
    assert [p.manifest.sizes["T"][:2] for p in program.plans.values()] == [(1, 8), (9, 32)]
    called = []
    for name, plan in {"": program, **program.plans}.items():
        plan._called = lambda taken, name=name, run=plan._called: (called.append(name), run(taken))[1]  # type: ignore[method-assign]
    program._fitting.clear()
    right(program, 1, 8, 9, 32, 33, 200)
    assert list(dict.fromkeys(called)) == ["at_2", "at_16", ""]
    with pytest.raises(ShapeError, match=r"T=201 is outside 1\.\.200"):
        program(np.ones((201, 16), np.float32))
    whole = program.memory_by_kind()
    assert whole["weights"] == memory_of(program.manifest)["weights"]  # one copy
    folder = program.save(tmp_path / "saved")
    assert "bucket  T 1..8: own plan" in str(program.report)
    assert json.loads((folder / "manifest.json").read_text())["buckets"] == {"T": [[1, 8, "at_2"], [9, 32, "at_16"], [33, 200, ""]]}  # fmt: skip
    assert (folder / "plans" / "at_2" / "weights.safetensors").stat().st_size < 64  # they are those of the whole
    loaded = tg.load_program(folder)
    right(loaded, 1, 8, 9, 32, 33, 200)
    assert str(loaded.report) == str(program.report) and loaded.plans["at_2"].report.dims == {"T": 2}
    again = loaded.save(tmp_path / "again")
    right(tg.load_program(again), 8, 33)
    (again / "report.json").write_text("{}")
    with pytest.warns(RuntimeWarning, match="the report of a saved program is not read"):
        assert tg.load_program(again).report is None
    program.bind({"w": 2 * W})
    np.testing.assert_allclose(program(np.eye(16, dtype=np.float32)[:4]), np.maximum(2 * W[:4], 0), rtol=1e-5)


@pytest.mark.parametrize(
    ("left", "searched"), [(30.0, [(33, 200, 20.0), (1, 8, 10.0)]), (9.0, [(33, 200, 6.0)]), (4.0, [])]
)
def test_the_bucket_that_lags_most_has_the_most_time(
    monkeypatch: pytest.MonkeyPatch, left: float, searched: Any
) -> None:  # fmt: skip
    """Shares follow the lag; none is too short for the stages of a search, which took 8 s before."""
    monkeypatch.setattr(size_buckets, "_lag", lambda forms, row: {1: 0.5, 33: 1.0}[row[0]])
    session, seen = Session(Options(budget=20.0, dims={"T": 16})), []
    session.budget_start -= 20.0 - left
    session.stage_clock.seconds |= {"saturate": 2.0, "verify": 6.0, "measure": 100.0}

    def none(
        session: Any, graph: Any, sizes: Any, name: str, row: Any, seconds: float, search: Any
    ) -> tuple[None, str]:
        seen.append((*row, seconds))
        session.budget_start -= seconds  # all of it is used
        return None, "none"

    monkeypatch.setattr(size_buckets, "_searched", none)
    monkeypatch.setattr(size_buckets, "_divided", lambda program, report, *rest: report)
    manifest = SimpleNamespace(sizes={"T": (1, 200, 16)})
    program: Any = SimpleNamespace(manifest=manifest, report=SimpleNamespace(omitted=[], warnings=[]))
    report: Any = size_buckets.with_buckets(session, product(), [(1, 8), (9, 32), (33, 200)], program, [], none)  # type: ignore[arg-type]
    assert seen == [pytest.approx(row, abs=0.1) for row in searched]
    assert len(report.omitted) == 2 - len(searched)


def test_the_callers_function_runs_where_it_is_fastest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    us = {ALL: 10.0, OWN: 8.0, CALLER: 5.0}
    monkeypatch.setattr(bucket_forms, "timed_calls", lambda calls, device, ended: {n: [us[n]] * 5 for n in calls})
    calls = []

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(W))

        def forward(self, x: Any) -> Any:
            calls.append(x.shape[0])
            return torch.relu(x @ self.w)

    shapes = ({0: torch.export.Dim("T", min=1, max=200)},)
    program = tg.optimize(
        Own(), (torch.ones(64, 16),), dynamic_shapes=shapes, dims={"T": 64}, size_buckets=(8,), budget=3, again=True
    )
    assert [b.runs for b in program.report.buckets] == [CALLER] and program.report.buckets[0].most == 200
    calls.clear()
    right(program, 2, 50)
    assert calls == [2, 50]  # arrays go to the compiled plan
    program.save(tmp_path / "saved")
    right(tg.load_program(tmp_path / "saved"), 2, 50)


def test_a_bucket_without_a_plan_for_all_of_its_sizes_runs_the_plan_of_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = size_buckets._searched

    def fails(session: Any, graph: Graph, sizes: Any, name: str, row: Any, seconds: float, search: Any) -> Any:
        def none(graph: Graph, sizes: Any) -> Program:
            raise ShapeError("no plan")

        return inner(session, graph, sizes, name, row, seconds, none)

    monkeypatch.setattr(size_buckets, "_searched", fails)
    monkeypatch.setattr(size_buckets, "MIN_BUDGET_SHARE", -1e9)
    program = found()
    assert {b.runs for b in program.report.buckets} == {ALL} and program.plans == {}
    assert any("no plan for T of 1 to 8: ShapeError: no plan" in w for w in program.report.warnings)
    right(program, 1, 9, 33)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"T": [[1, 8, "a"], [10, 200, ""]]}, "without gaps"),
        ({"T": [[1, 8, ""]]}, "without gaps"),
        ({"T": [[1, 200, "../x"]]}, "no name"),
        ({"B": [[1, 200, ""]]}, "one free size"),
        ({"T": []}, "one free size"),
    ],
)
def test_manifests_with_other_buckets_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        Buckets.of_json(rows, {"T": (1, 200, 64)})


@pytest.mark.usefixtures("own_plans")
def test_a_saved_plan_that_is_another_programs_is_refused(tmp_path: Path) -> None:
    folder = found().save(tmp_path / "saved")
    with pytest.raises(BadModelError, match="this file is a part of a saved program"):
        tg.load_program(folder / "plans" / "at_2")
    other = Program(replace(direct_plan(product().bind({"T": 4}), [backend("numpy")])), {"w": W})
    other.save(tmp_path / "other")
    for name in ("manifest.json", "program.py"):
        (folder / "plans" / "at_2" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(BadModelError, match="belongs to another program"):
        tg.load_program(folder)


def test_dispatch_finds_each_size() -> None:
    buckets = Buckets("T", (Bucket(1, 8, "a"), Bucket(9, 32), Bucket(33, 200, "b")))
    assert [buckets.of(n).plan for n in (1, 8, 9, 32, 33, 200)] == ["a", "a", "", "", "b", "b"]


# ---------------------------------------------------------------- a GPU's backends
@pytest.mark.usefixtures("own_plans", "quick_interpreter")
def test_a_gpus_program_has_plans_by_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not backend("torch_cuda").unavailable():
        pytest.skip("there is a GPU: see tests/gpu/test_sizes.py")
    for kind in (TorchCudaBackend, Triton):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu_facts, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(measuring, "measurer_of", lambda options, backends, store: None)
    for module in (accept, recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(size_buckets, "BOUNDS", (16,))
    x = tg.input("x", (T, 32), "float16")
    g, w = tg.param("g", (32,), "float16"), tg.param("w", (32, 32), "float16")
    params = {"g": np.ones(32, np.float16), "w": np.resize(W, (32, 32)).astype(np.float16)}
    graph = Graph.of(c.silu(c.rms_norm(x, g, eps=1e-6) @ w) + x, params=params, name="block")
    program = tg.optimize(graph, dims={"T": 33}, backend="gpu", budget=30, effort=0, again=True)
    assert [(b.least, b.most, b.runs) for b in program.report.buckets] == [(1, 16, OWN), (17, 200, ALL)], program.report
    loaded = tg.load_program(program.save(tmp_path / "saved"), device="cpu")
    for n in (1, 16, 17, 200):
        given = torch.randn((n, 32), generator=torch.Generator().manual_seed(n)).half()
        y = torch.nn.functional.silu(torch.nn.functional.rms_norm(given.float(), (32,), eps=1e-6) @ torch.from_numpy(params["w"]).float())  # fmt: skip
        for one in (program, loaded):
            torch.testing.assert_close(one(given).float(), y + given, rtol=2e-2, atol=2e-2)


def test_a_measurer_stays_for_the_next_search_and_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer

    monkeypatch.setattr(size_buckets, "MIN_BUDGET_SHARE", -1e9)
    events: list[str] = []
    close, rest = CpuMeasurer.close, CpuMeasurer.rest
    monkeypatch.setattr(CpuMeasurer, "close", lambda self: (events.append("close"), close(self))[1])
    monkeypatch.setattr(CpuMeasurer, "rest", lambda self: (events.append("rest"), rest(self))[1])
    found()
    assert events == ["rest"] * 3 + ["close"]
