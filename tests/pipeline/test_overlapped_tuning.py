"""Overlapped tuning: kernels measured while the graph is rewritten."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends import gpu as gpu_facts
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.backends.triton.backend import Triton
from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import NoPlanError
from tensor_graphs.extract.model.clock import Halted
from tensor_graphs.options import Options
from tensor_graphs.pipeline import overlapped_tuning, recall, search
from tensor_graphs.pipeline import short_search as search_stage
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.overlapped_tuning import OverlappedTuning, start_tuning
from tensor_graphs.pipeline.short_search import match_short_form
from tensor_graphs.pipeline.stages import time_program
from tensor_graphs.pipeline.stages import verify_or_retry as accept
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.pipeline.stages.match import match_all
from tensor_graphs.pipeline.stages.prepare import Task, prepare
from tensor_graphs.pipeline.stages.rewrite import Rewritten, rewrite
from tensor_graphs.report.omissions import UNREWRITTEN, Omission, OmittedWork

from ..waiting import WAIT_S, wait_for


def graph(name: str) -> Any:
    return SimpleNamespace(name=name, candidates=[], calls=([], []))


def test_each_is_searched_until_the_next_is_there_and_the_last_one_until_the_end() -> None:
    searched: dict[str, Event] = {"small": Event(), "large": Event()}
    order: list[str] = []

    def search(found: Any, enough: Callable[[], bool], begun: Callable[[], None]) -> None:
        order.append(f"{found.name} begins")
        begun()
        searched[found.name].set()
        wait_for(enough)
        order.append(f"{found.name} ends")

    def large() -> Any:
        order.append("large is made")
        assert searched["small"].wait(WAIT_S)
        return graph("large")

    early = OverlappedTuning([lambda: graph("small"), large], search)
    early.matched()
    assert early.graph is not None and early.graph.name == "large"
    assert searched["large"].wait(WAIT_S)
    early.end()
    assert order == ["small begins", "large is made", "small ends", "large begins", "large ends"]
    assert early.faults == [] and early.graph is None
    early.end()


def test_keys_of_the_next_are_made_while_the_one_before_is_searched_and_the_main_thread_goes_on() -> None:
    go, order = Event(), list[str]()

    def search(found: Any, enough: Callable[[], bool], begun: Callable[[], None]) -> None:
        begun()
        wait_for(enough)
        order.append(f"{found.name} ends")

    def prepare(found: Any, stop: Callable[[], bool]) -> None:
        assert found.name == "small" or (go.wait(WAIT_S) and not stop())
        order.append(f"{found.name} is prepared")

    early = OverlappedTuning([lambda: graph("small"), lambda: graph("large")], search, prepare=prepare)
    early.matched()
    go.set()
    wait_for(lambda: len(order) == 3)
    early.end()
    assert order == ["small is prepared", "large is prepared", "small ends", "large ends"]


def test_no_round_of_measuring_is_begun_while_the_main_thread_matches() -> None:
    """Also if the search begins after that."""
    go, stops = Event(), list[bool]()

    def slow() -> Any:
        assert go.wait(WAIT_S)
        return graph("slow")

    early = OverlappedTuning([slow], lambda found, enough, begun: stops.append(enough()))
    early.quiet()
    go.set()
    early.matched()
    assert early.graph is not None, "it is what is searched without time for more"
    early.end()
    assert stops == [True]


def test_what_fails_is_noted_and_what_was_there_before_stays() -> None:
    def fail(error: Exception) -> Any:
        raise error

    nothing = lambda found, enough, begun: None
    for error, message in ((NoPlanError("none"), ["none"]), (KeyError(1), ["KeyError: 1"]), (Halted(), [])):
        early = OverlappedTuning([lambda: graph("small"), partial(fail, error), lambda: graph("never")], nothing)
        early.matched()
        assert early.faults == message and early.graph is not None and early.graph.name == "small"
        early.end()
    early = OverlappedTuning([lambda: graph("small")], lambda found, enough, begun: fail(NoPlanError("no kernels")))
    early.matched()
    early.end()
    assert early.faults == ["no kernels"]


def test_nothing_is_begun_after_the_end() -> None:
    go, made = Event(), []

    def slow() -> Any:
        assert go.wait(WAIT_S)
        return graph("slow")

    early = OverlappedTuning([slow, lambda: made.append(1)], lambda found, enough, begun: None)
    ending = Thread(target=early.end)
    ending.start()
    wait_for(lambda: early._over)
    go.set()
    ending.join()
    assert made == []


def test_two_threads_make_the_same_tensors() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round_ in range(20):
            ready, found = Barrier(4), []

            def build(ready: Barrier = ready, found: list[Any] = found, round_: int = round_) -> None:
                ready.wait()
                made = [make("input", (), {"name": f"r{round_}", "shape": (4,), "dtype": "float32"})]
                for n in range(60):
                    made.append(make("add" if n % 2 else "mul", (made[-1], made[0])))
                found.append(made)

            threads = [Thread(target=build) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert all(a is b for others in found[1:] for a, b in zip(found[0], others, strict=True))
    finally:
        sys.setswitchinterval(before)


class Device:
    """In place of a process with a GPU: everything is right, after times that are made up. `tried` is set by the first
    try."""

    alive, ended = True, None

    def __init__(self) -> None:
        self.tried = Event()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, job: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        if job["job"] == "try":
            self.tried.set()
        us = 5.0 + random.Random(str(job.get("text", job.get("index")))).random()
        return {"ok": True, "accuracy": {"rel_fro": 0.0}, "cold": [us] * 3, "hot": [us] * 3, "clock_mhz": 0.0}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A GPU's backends on the CPU, with a device that is made up."""
    pytest.importorskip("torch")
    if not backend("torch_cuda").unavailable():
        pytest.skip("there is a GPU")
    found = Device()
    for kind in (TorchCudaBackend, Triton):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu_facts, "hardware", lambda: "rehearsal")
    for module in (accept, recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(
        "tensor_graphs.pipeline.execution.timing.sampled", lambda calls, **more: {"before": [10.0], "after": [10.0]}
    )

    class Made(GpuMeasurer):
        def __init__(self, store: Store, **more: Any) -> None:
            super().__init__(store, device="cpu", worker=found, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "GpuMeasurer", Made)
    return found


X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)


def small() -> Graph:
    return Graph.of(tg.softmax(tg.input("x", (8, 16)) @ tg.param("w", (16, 16)) * 0.5))


def test_kernels_are_measured_before_the_graph_is_rewritten(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = rewrite

    def saturated(*given: Any, **how: Any) -> Any:
        assert device.tried.wait(WAIT_S)
        return plain(*given, **how)

    monkeypatch.setattr(search, "rewrite", saturated)
    program = tg.optimize(small(), params={"w": W}, backend="gpu", budget=120, effort=0, costdb=tmp_path)
    report = program.report
    assert report.verification["passed"] and not any("ended early" in w for w in report.warnings)
    assert report.timeline["overlapped tuning: measure"][0][0] < report.timeline["stage: candidates"][0][0]
    exact = np.exp(0.5 * X @ W)
    assert np.allclose(program(X), exact / exact.sum(axis=1, keepdims=True), rtol=1e-4)


def test_without_time_for_the_rewritten_graph_what_was_matched_of_the_one_that_came_is_used() -> None:
    session = Session(Options(backend="gpu", budget=0.0))
    task = Task(small(), prepare(Session(Options(backend="numpy")), small(), None), select("numpy"))
    own, blocks = object(), find_blocks(task.work)
    rewritten = Rewritten(view_of(task.work), blocks, [], [])
    assert match_all(session, task, rewritten, own) == [own]  # type: ignore[arg-type]
    assert session.omitted == [UNREWRITTEN]


def test_generated_kernels_have_their_least_time_from_when_libraries_were_matched(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[bool, bool]] = []

    def matched(session: Session, view: Any, backends: Any, stop: Any, enough: Callable[[bool], bool], **_: Any) -> Any:
        first, clock.time = enough(False), clock.time + 1000.0
        asked.append((first, enough(False)))
        return graph("no hypergraph")

    clock = SimpleNamespace(time=0.0)
    monkeypatch.setattr(overlapped_tuning, "match_kernels", matched)
    session, store = Session(Options(backend="gpu", budget=10.0), now=lambda: clock.time), Store(tmp_path)
    task = Task(small(), prepare(session, small(), None), select("gpu"))
    blocks = find_blocks(task.work)
    early = start_tuning(session, task, blocks, store, measuring.GpuMeasurer(store))
    early.matched()
    early.end()
    assert asked == [(False, True), (False, True)]
    asked.clear()
    clock.time = 0.0
    alone = replace(task, backends=select("triton-only"))
    early = start_tuning(session, alone, blocks, store, measuring.GpuMeasurer(store))
    early.matched()
    early.end()
    assert asked == [(False, False)], "all that is generated is needed where nothing else computes"


def test_a_deep_model_is_searched_by_its_short_form(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels of a few layers are carried over to all of them; the program computes the whole model."""
    layers, rng = 8, np.random.default_rng(0)
    graphs: list[tuple[str, int]] = []
    plain = search_stage.choose

    def chosen(session: Session, graph: Any, *given: Any, **more: Any) -> Any:
        graphs.append(("carried" if "carried" in more else "short", len(graph.candidates)))
        return plain(session, graph, *given, **more)

    monkeypatch.setattr(search_stage, "choose", chosen)
    monkeypatch.setattr("tensor_graphs.pipeline.stages.accept.choose", chosen)
    x = tg.input("x", (8, 16))
    for i in range(layers):
        h = tg.rms_norm(x, tg.param(f"g{i}", (16,)), eps=1e-6)
        x = x + tg.silu(h @ tg.param(f"a{i}", (16, 32))) @ tg.param(f"b{i}", (32, 16))
    shapes = {"g": (16,), "a": (16, 32), "b": (32, 16)}
    params = {
        f"{n}{i}": rng.standard_normal(s).astype(np.float32) / 4 for i in range(layers) for n, s in shapes.items()
    }
    program = tg.optimize(Graph.of(x), params=params, backend="gpu", budget=10, costdb=tmp_path)
    assert program.report.verification["passed"] and [kind for kind, _ in graphs] == ["short", "carried"]
    assert sum(k.count for k in program.report.kernels) >= layers
    want = X.astype(np.float64)
    for i in range(layers):
        h = want / np.sqrt((want * want).mean(1, keepdims=True) + 1e-6) * params[f"g{i}"]
        h = h @ params[f"a{i}"]
        want = want + h / (1 + np.exp(-h)) @ params[f"b{i}"]
    assert np.allclose(program(X), want, rtol=1e-3, atol=1e-4)


def deep(session: Session) -> tuple[Task, Rewritten]:
    """A model of twelve equal layers, and what rewriting without any rule makes of it."""
    x = tg.input("x", (8, 16))
    for i in range(12):
        x = x + tg.silu(tg.rms_norm(x, tg.param(f"g{i}", (16,)), eps=1e-6) @ tg.param(f"w{i}", (16, 16)))
    task = Task(Graph.of(x), prepare(session, Graph.of(x), None), select("numpy"))
    blocks = find_blocks(task.work)
    views = [view_of(b.graph) for b in blocks.unique]
    return task, Rewritten(join_blocks(blocks, views), blocks, views, [])


@pytest.mark.parametrize("left_out", [0, 1])
def test_kernels_left_out_of_a_short_form_are_reported(
    left_out: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock ends matching on the short form; the whole model's hypergraph, of kernels carried over, is complete."""
    session = Session(Options(backend="numpy", budget=60.0))
    task, rewritten = deep(session)
    form = match_short_form(session, task, rewritten)
    assert form is not None and not form.graph.stats["left_out"]
    assert {*form.graph.repeats.values()} == {4.0}  # three of twelve layers
    form = replace(form, graph=replace(form.graph, stats={**form.graph.stats, "left_out": left_out}))
    monkeypatch.setattr(search_stage, "choose", lambda s, g, pricer, _, **more: choose(s, g, pricer, None, **more))
    found = search_stage.search_short_form(session, task, form, Store(tmp_path), SimpleNamespace(ahead=False))  # type: ignore[arg-type]
    assert found is not None and session.omitted == [Omission(OmittedWork.GENERATING)] * left_out


def test_without_time_for_a_rewritten_short_form_the_unrewritten_one_is_searched() -> None:
    clock = SimpleNamespace(time=0.0)
    session = Session(Options(backend="numpy", budget=10.0), now=lambda: clock.time)
    task, rewritten = deep(session)
    own = match_short_form(session, task, rewritten)
    assert own is not None and own.whole is rewritten.view and session.omitted == []
    clock.time = 9.0
    assert match_short_form(session, task, rewritten) is None and session.omitted == []
    form = match_short_form(session, task, rewritten, own.graph)
    assert form is not None and form.graph is own.graph and form.whole is not rewritten.view
    assert session.omitted == [UNREWRITTEN]
    session.omitted.clear()
    for clock.time in (3.0, 5.0):  # later than at 4.0 no new kernels would be generated for it
        form = match_short_form(session, task, rewritten, own.graph)
        assert form is not None and (form.graph is own.graph) == (clock.time > 4.0)
        assert form.unrewritten is None or form.unrewritten.graph is own.graph
    assert session.omitted == [UNREWRITTEN]


@pytest.mark.parametrize(("dearer", "stopped"), [(10.0, "budget"), (10.0, "measured"), (0.1, "budget")])
def test_the_plan_of_an_unrewritten_short_form_is_taken_if_it_is_cheaper(
    dearer: float, stopped: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock has left out kernels of the rewritten one."""
    session = Session(Options(backend="numpy", budget=60.0))
    task, rewritten = deep(session)
    plain = match_short_form(session, task, rewritten)
    assert plain is not None
    form = replace(plain, graph=replace(plain.graph), unrewritten=plain)

    def chosen(s: Session, g: Any, pricer: Any, measurer: Any, **more: Any) -> Any:
        found = choose(s, g, pricer, None, **more)
        prices = [replace(p, us=dearer * p.us, high=dearer * p.high) for p in found.prices]
        return replace(found, prices=prices, stopped=stopped)

    monkeypatch.setattr(search_stage, "choose", chosen)
    found = search_stage.search_short_form(session, task, form, Store(tmp_path), SimpleNamespace(ahead=False))  # type: ignore[arg-type]
    taken = dearer > 1.0 and stopped == "budget"
    assert found is not None and (found.short is plain.graph) == taken
    assert session.omitted == [UNREWRITTEN] * taken


def test_a_deep_model_is_matched_with_generated_kernels_in_its_short_form_only(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Library kernels of the whole model come first: they are a plan. With a budget for all stages, they are all that
    is matched before the rewritten short form."""
    asked: list[tuple[int, int]] = []

    def matched(session: Session, view: Any, backends: Any, *given: Any, **more: Any) -> Any:
        asked.append((len(view), len(backends)))
        return graph("short" if len(asked) == 2 else "whole")

    monkeypatch.setattr(overlapped_tuning, "match_kernels", matched)
    monkeypatch.setattr(overlapped_tuning, "measure_ahead", lambda *given, progress, **more: progress(""))
    session = Session(Options(backend="gpu", budget=20.0))
    task, rewritten = deep(session)
    task = replace(task, backends=select("gpu"))
    early = start_tuning(session, task, rewritten.blocks, Store(tmp_path), measuring.GpuMeasurer(Store(tmp_path)))
    early.matched()
    assert len(asked) == 1 and early.graph is not None and early.short_graph is early.whole is None
    early.end()
    asked.clear()
    session = Session(Options(backend="gpu", budget=5.0))
    early = start_tuning(session, task, rewritten.blocks, Store(tmp_path), measuring.GpuMeasurer(Store(tmp_path)))
    early.matched()
    assert early.graph.name == "whole" and early.short_graph.name == "short"  # type: ignore[union-attr]
    early.end()
    (whole, libraries), (short, every) = asked
    assert 2 * short < whole and libraries < every
