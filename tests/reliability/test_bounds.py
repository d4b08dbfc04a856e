"""Time and memory keep a bound that the size of the input justifies."""

from __future__ import annotations

import gzip
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.saturation import growth

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.backends.verification import inputs as drawing
from tensor_graphs.cli import app as cli
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.evaluate.strips import axes_of, interval_view
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, constant
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import (
    ExportTimeError,
    ExtractionError,
    TooLargeError,
    TraceError,
    UsageError,
    VerificationError,
)
from tensor_graphs.explorer import profile as sweep
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.fusion.repeats import RepeatedSubgraphs
from tensor_graphs.extract.model.clock import Halted
from tensor_graphs.extract.solve import dominators as must
from tensor_graphs.extract.solve import frontier_dp, row_reductions
from tensor_graphs.extract.solve.label_setting import LabelSetting
from tensor_graphs.extract.solve.problem import Problem, ProblemRows
from tensor_graphs.extract.solve.serialize import read_egraph
from tensor_graphs.models.files import limits
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.models.torch_export import export_bounds
from tensor_graphs.options import Options
from tensor_graphs.pipeline.cache.plan_file import plan_from_json, plan_to_json
from tensor_graphs.pipeline.context.session import VERIFYING_S, Session
from tensor_graphs.pipeline.execution.caller_timing import why_program_runs
from tensor_graphs.pipeline.forms import choose_form
from tensor_graphs.pipeline.forms.choose_form import why_not_replaceable
from tensor_graphs.pipeline.optimize import optimize_graph
from tensor_graphs.pipeline.sources.caller import Caller
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.trace_checks import trace_check as caller_reference
from tensor_graphs.pipeline.trace_checks import trace_check_large, trace_randomness
from tensor_graphs.processes import memory_limits as host
from tensor_graphs.progress import Progress
from tensor_graphs.report.omissions import Omission, OmittedWork
from tensor_graphs.verification import comparison, partial_comparison, reference, strips, verify
from tensor_graphs.verification import memory_checks as room

from ..only_in import only_in

RNG = np.random.default_rng(0)


# ---------------------------------------------------------------- growth of the stages
def looked_at(kind: str, n: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a class is compared with another one while regions grow."""
    count = [0]
    image = RepeatedSubgraphs.image

    def counted(self: RepeatedSubgraphs, *args: Any) -> Any:
        count[0] += 1
        return image(self, *args)

    view = view_of(growth.graph(kind, n))
    with monkeypatch.context() as patch:
        patch.setattr(RepeatedSubgraphs, "image", counted)
        given = frozenset(int(view.cls[i]) for i, op in enumerate(view.op) if op in ("input", "param", "constant"))
        assert list(FusionGroups(view, given | {c for c, w in enumerate(view.weight) if w}))
    return count[0]


def test_regions_of_many_unlike_classes_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (looked_at("wide", n, monkeypatch) for n in (160, 320))
    assert 0 < many < 2.6 * few


@pytest.mark.parametrize("kind", growth.KINDS)
def test_every_kind_of_graph_is_what_it_says(kind: str) -> None:
    small, large = (len(growth.graph(kind, n).nodes()) for n in (60, 120))
    assert 1.5 < large / small < 2.5


def test_the_graph_as_it_came_is_not_matched_for_ever(tmp_path: Path) -> None:
    if backend("c").unavailable():
        pytest.skip("no C compiler")
    with settings.override(home=str(tmp_path)):
        session = Session(Options(backend="auto", budget=1e-6, measure=False, verify=False))
        program = optimize_graph(session, growth.graph("wide", 60))
    assert program.report is not None and str(Omission(OmittedWork.GENERATING)) in program.report.omitted


# ---------------------------------------------------------------- loading
def test_models_of_too_many_operations_are_refused(tmp_path: Path) -> None:
    x = tg.input("x", (4,))
    with settings.override(max_nodes=3):
        as_graph(tg.tanh(x))
        with pytest.raises(TooLargeError, match="operations, more than 3"):
            as_graph(tg.tanh(tg.exp(tg.tanh(tg.exp(x)))))


def test_onnx_files_and_modules_of_too_many_operations_are_refused(tmp_path: Path) -> None:
    onnx, torch = pytest.importorskip("onnx"), pytest.importorskip("torch")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [make.make_node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    ends = [make.make_tensor_value_info(n, kind, [2]) for n in ("v0", "v20")]
    onnx.save(make.make_model(make.make_graph(nodes, "g", ends[:1], ends[1:])), str(tmp_path / "m.onnx"))
    with settings.override(max_nodes=10):
        with pytest.raises(TooLargeError, match="20 operations, more than 10"):
            as_graph(tmp_path / "m.onnx")
        with pytest.raises(TooLargeError, match="operations, more than 10"):
            as_graph(torch.nn.Sequential(*[torch.nn.Tanh()] * 20), (torch.ones(2),))


def looped(steps: int, wait: Callable[[], Any] = lambda: None, swallow: bool = False) -> Any:
    """A module whose Python loop torch.export traces step by step."""
    torch = pytest.importorskip("torch")

    class Looped(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(steps):
                wait()
                try:
                    x = x.sin() + 1
                except Exception:
                    if not swallow:
                        raise
            return x

    return Looped().eval(), (torch.ones(3),)


@pytest.mark.parametrize("swallow", [False, True])
def test_tracing_ends_at_the_bound_on_operations(swallow: bool) -> None:
    module, args = looped(10**9, swallow=swallow)
    with settings.override(max_nodes=40):
        assert len(as_graph(*looped(10)).nodes()) > 10
        with pytest.raises(TooLargeError, match="41 operations, more than 40"):
            as_graph(module, args)
    assert len(as_graph(*looped(60)).nodes()) > 60


WAITS: dict[str, Callable[[], Any]] = {
    "steps": lambda: None,
    "slow steps": lambda: time.sleep(1e-3),
    "no steps": lambda: all(True for _ in iter(int, 1)),  # a loop without an end
}


@pytest.mark.parametrize("name", WAITS)
def test_tracing_ends_at_the_time_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two operations, or, if none is traced any more, by an interruption."""
    as_graph(*looped(1))  # loads torch.export
    monkeypatch.setattr(limits, "MIN_EXPORT_S", 0.5)
    module, args = looped(10**9, WAITS[name])
    began = time.monotonic()
    with pytest.raises(ExportTimeError, match=r"more than 0\.5 s") as error:
        as_graph(module, args, budget=0.1)
    assert time.monotonic() - began < 120 and "torch.export.export" in str(error.value)
    assert len(as_graph(*looped(10)).nodes()) > 10  # nothing of the ended export is left


def test_an_export_that_traces_nothing_ends_before_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget of few seconds the time limit of an export is not the limit of a pause."""
    as_graph(*looped(1))
    monkeypatch.setattr(limits, "IDLE", 0.5)
    module, args = looped(10**9, WAITS["no steps"])
    began = time.monotonic()
    with pytest.raises(ExportTimeError, match=r"traced no operation for 0\.50"):
        as_graph(module, args, budget=0.1)
    assert time.monotonic() - began < 120
    with settings.override(export_seconds=1), pytest.raises(ExportTimeError, match=r"more than 1 s"):
        as_graph(module, args, budget=0.1)


def test_an_export_that_pauses_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pauses, each shorter than the limit of one; time is what the test makes of it."""
    now, due = [0.0], list[Callable[[], Any]]()

    def timer(seconds: float, run: Callable[..., Any], arguments: Any) -> Any:
        return SimpleNamespace(start=lambda: due.append(partial(run, *arguments)), cancel=lambda: None)

    def pause() -> None:
        now[0] += 0.4
        due.pop()()

    monkeypatch.setattr(limits, "IDLE", 0.5)
    monkeypatch.setattr(export_bounds, "Timer", timer)
    only_in(monkeypatch, export_bounds, "time", monotonic=lambda: now[0])
    assert len(as_graph(*looped(4, pause), budget=0.1).nodes()) > 4


def test_the_first_exports_imports_do_not_count_as_tracing() -> None:
    """On a busy machine they took longer than an export may go on without an operation."""
    text = """
import sys
from contextlib import contextmanager
import torch
from tensor_graphs.models.torch_export import export

@contextmanager
def bounded(title, budget):
    before = {name for name in sys.modules if name.startswith("torch.")}
    yield
    late = sorted(name for name in sys.modules if name.startswith("torch.") and name not in before)
    print("IMPORTED", len(before), len(late))

export.bounded = bounded
export.load_module(torch.nn.Linear(3, 2), (torch.ones(1, 3),), budget=5.0)
"""
    done = subprocess.run([sys.executable, "-c", text], timeout=300, check=True, capture_output=True, text=True)
    first = next(line for line in done.stdout.splitlines() if line.startswith("IMPORTED"))
    assert int(first.split()[2]) < 40, first


def test_the_bounds_of_one_export_leave_other_threads_alone() -> None:
    torch = pytest.importorskip("torch")
    from torch.fx import Graph as Fx

    before, counted = Fx.create_node, []

    def other() -> None:
        graph = Fx()
        for _ in range(50):
            graph.placeholder("x")
        counted.append(len(graph.nodes))

    with settings.override(max_nodes=5), export_bounds.bounded("m", 15.0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        torch.fx.Graph().placeholder("x")
    assert counted == [50] and Fx.create_node is before


def test_the_time_limit_of_an_export_follows_the_budget() -> None:
    assert [limits.seconds_of(b) for b in (1, 100, None)] == [60, 400, 600]
    with settings.override(export_seconds=7):
        assert limits.seconds_of(100) == limits.idle_seconds_of(1, 0) == 7
    assert [limits.idle_seconds_of(b, 0) for b in (1, 10, 100, None)] == [20, 40, 400, 600]
    assert [limits.idle_seconds_of(1, n) for n in (10_000, 100_000)] == [30, 60]


def test_tracing_a_numpy_function_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over single operations, by the clock and by the number of arrays."""

    def looped(x: np.ndarray) -> np.ndarray:
        while True:
            x = x + 1

    x = np.ones(4, np.float32)
    monkeypatch.setattr(limits, "MIN_EXPORT_S", 0.5)
    with pytest.raises(ExportTimeError, match=r"more than 0\.5 s"):
        as_graph(looped, (x,), budget=0.1)
    with settings.override(max_nodes=100), pytest.raises(TooLargeError, match="401 operations"):
        as_graph(looped, (x,))


def test_traced_functions_that_need_too_much_memory_are_named() -> None:
    """Tables of all pairs of elements, and arrays of the function's own."""

    def exhausted(x: np.ndarray) -> np.ndarray:
        raise MemoryError("Unable to allocate 1.68 GiB")

    long, began = np.ones(30000, np.float32), peak_of(lambda: None)
    pairs = (
        lambda x: np.convolve(x, x),
        lambda x: np.correlate(x, long),
        lambda x: np.isin(x.astype(np.int64), x.astype(np.uint64)),
    )
    for function in (*pairs, exhausted):
        with pytest.raises(TooLargeError, match=r"table of|Unable to allocate"):
            as_graph(function, (long,))
    assert peak_of(lambda: as_graph(lambda x: np.convolve(x, x[:9]), (long,))) < began + (1 << 24)


@pytest.mark.usefixtures("new_garbage_only")
def test_views_of_one_array_are_traced_in_linear_time() -> None:
    def seconds(count: int) -> float:
        began = time.thread_time()
        as_graph(lambda x: [x[i:] for i in range(count)].pop(), (np.ones(count, np.float32),))
        return time.thread_time() - began

    seconds(500)
    # 4 times as many; quadratic: 16 times, in every attempt
    assert any(seconds(12000) < 12 * seconds(3000) + 0.5 for _ in range(5))


def test_large_settings_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_MAX_NODES", "300000")
    monkeypatch.setenv("TENSOR_GRAPHS_FILE_MEMORY", str(1 << 33))
    assert (settings.current().max_nodes, settings.current().file_memory) == (300_000, 1 << 33)
    monkeypatch.setenv("TENSOR_GRAPHS_THREADS", "5000")
    with pytest.raises(UsageError, match=r"within 0\.\.4096"):
        settings.current()


@pytest.mark.parametrize(
    "text",
    ["H200", "a|b|c", "gpu:x:sm90:multiprocessors=132", "gpu:x:sm90:multiprocessors=0|a|b", "gpu:x:sm90|a|b", "|||"],
)
def test_a_gpu_of_another_form_is_refused_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for an H200, and before anything is searched."""
    began: list[str] = []
    with pytest.raises(UsageError, match="the setting gpu is"), settings.override(gpu=text):
        pass
    monkeypatch.setenv("TENSOR_GRAPHS_GPU", text)
    progress = Progress(lambda stage, message: began.append(stage))
    for backend_name in ("numpy", "gpu"):
        with pytest.raises(UsageError, match=r"(?s)the setting gpu is .*multiprocessors=132"):
            tg.optimize(tg.input("x", (4,)) + 1.0, backend=backend_name, progress=progress)
    assert began == []


# ---------------------------------------------------------------- worker processes
def test_a_worker_gets_a_part_of_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "host_bytes", lambda: 100 << 30)
    monkeypatch.setattr(host, "available_bytes", lambda: 80 << 30)
    assert [host.worker_bytes(n) >> 30 for n in (1, 4, 1000)] == [60, 15, 4]
    for available, most in ((20, [20, 15, 4]), (2, [2, 2, 2]), (0, [1, 1, 1])):
        monkeypatch.setattr(host, "available_bytes", lambda available=available: available << 30)
        assert [host.worker_bytes(n) >> 30 for n in (1, 4, 1000)] == most
    with settings.override(worker_memory=5):
        assert host.worker_bytes(4) == 5


def test_a_kernel_that_takes_too_much_memory_fails_alone(tmp_path: Path) -> None:
    """The process answers, and measures the next kernel."""
    from tensor_graphs.backends.registry import template
    from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
    from tensor_graphs.backends.tuning.measurement import Failure, Timing
    from tensor_graphs.egraph.ops.ops import Type
    from tensor_graphs.extract.model.kernel import Call, Operand

    def call(n: int) -> Call:
        one = Operand(Type((n, 1 << 20), "float32"), (1 << 20, 1))
        return Call({"x": one, "y": one}, one, {})

    with settings.override(worker_memory=1 << 30), CpuMeasurer([]) as measurer:  # type: ignore[arg-type]
        large = measurer.time(template("numpy", "np.add"), call(150))
        process = measurer.worker._process
        small = measurer.time(template("numpy", "np.add"), call(1))
        assert process is not None and measurer.worker._process is process
    assert isinstance(large, Failure) and large.status == "memory" and isinstance(small, Timing)


@pytest.mark.parametrize("device, code", [(False, 5), (True, host.MEMORY_EXIT)])
def test_a_process_over_its_memory_limit_stops(device: bool, code: int) -> None:
    """With a MemoryError; a process that uses a GPU ends."""
    text = f"""
import sys, time
from tensor_graphs.processes import memory_limits as host
host.limit_own_memory(device={device})
try:
    held = []
    for _ in range(100):
        held.append(b"x" * (10 << 20))
        time.sleep(0.01)
    time.sleep(60)  # a thread that looks at the memory ends the process
except MemoryError:
    sys.exit(5)
"""
    known = {**os.environ, host.VARIABLE: str(400 << 20)}
    done = subprocess.run([sys.executable, "-c", text], env=known, timeout=300, check=False, capture_output=True)
    assert done.returncode == code, done.stderr


def test_loading_beyond_the_budget_is_told() -> None:
    moments = iter([0.0, 5.0, 5.0])
    session = Session(Options(budget=3.0), now=lambda: next(moments))
    session.loaded()
    assert session.warnings == ["loading took 5.0 s, more than the budget of 3 s"]


# ---------------------------------------------------------------- verification of large outputs
def large(expression: Callable[[Tensor], Tensor], shape: tuple[int, ...] = (6000, 40)) -> Graph:
    return Graph.of(expression(tg.input("x", shape)))


def verdict(graph: Graph, run: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> comparison.Verification:
    for module in (reference, verify):
        monkeypatch.setattr(module, "LARGE_BYTES", 1 << 16)
    monkeypatch.setattr("tensor_graphs.verification.strips.PIECE", 1 << 12)
    return verify.verify(graph, run, **options)


def right(graph: Graph) -> Callable[[Mapping[str, Any]], list[Any]]:
    return lambda values: evaluate(graph, values)


def test_large_outputs_are_compared_strip_by_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: tg.softmax(x * 2.0) + x.max(axis=1, keepdims=True))
    found = verdict(graph, right(graph), monkeypatch)
    assert found.passed and found.compared == 1.0 and not found.omitted and "all elements" in found.note


def test_what_was_not_compared_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: x + x)
    found = verdict(graph, right(graph), monkeypatch, enough=lambda: True)
    assert found.passed and 0.05 < found.compared < 0.2
    assert found.omitted == f"verification of {100 * (1 - found.compared):.3g} % of the outputs' elements"
    assert found.to_json()["compared"] == found.compared


def test_references_that_take_far_too_long_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tg.input("x", (400, 8))
    attended = tg.softmax(x @ x.T) @ x
    graph = Graph.of([attended, attended.mean(axis=0)])
    found = verify.verify(graph, right(graph), allowed_s=2e-3)
    assert found.passed and 0 < found.compared < 1 and found.uncompared == ("output1",)
    assert found.omitted.endswith("of the outputs' elements and 'output1'") and "'output1'" in found.warning
    wrong = verify.verify(graph, lambda values: [y + 1e-2 for y in right(graph)(values)], allowed_s=2e-3)
    assert wrong.miscompiled
    (alone,) = [Graph.of(graph.roots[1])]
    assert not verify.verify(alone, right(alone), allowed_s=2e-3).uncompared  # something is always compared


@pytest.mark.parametrize(("allowed_s", "rows"), [(1e-12, 1), (5.0, 8)])
def test_an_error_in_the_last_rows_is_found_without_time(
    allowed_s: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large outputs, the strips of which are cheap (8 are compared), and of those of which only one is."""
    graph = large(lambda x: x + x)

    def tail(values: Mapping[str, Any]) -> list[Any]:
        (y,) = evaluate(graph, values)
        y[-1] = 7.0
        return [y]

    options: dict[str, Any] = {"enough": lambda: True, "allowed_s": allowed_s}
    assert not verdict(graph, tail, monkeypatch, **options).passed
    found = verdict(graph, right(graph), monkeypatch, **options)
    assert found.passed and rows / 6000 <= found.compared < 0.2


def test_affordable_strips_are_not_sought_beyond_what_may_be_compared() -> None:
    """Of a chain of outputs the first few are compared; the others' strips are not estimated. Ctrl-C ends it."""
    x, asked = tg.input("x", (64, 32, 16)), []
    y, ends = x, []
    for _ in range(40):
        y = tg.tanh(y) * 1.5 + x
        ends.append(y)
    one = partial_comparison.affordable_cuts(Graph.of(ends[0]), 1.0) or [None]
    assert one[0] is not None
    allowed_s = 10 * partial_comparison.strip_seconds(one[0], 1)
    cuts = partial_comparison.affordable_cuts(Graph.of(ends), allowed_s, lambda: asked.append(1))
    assert [cut is not None for cut in cuts or ()] == [True] * 4 + [False] * 36 and len(asked) <= 12

    def halt() -> None:
        raise Halted

    with pytest.raises(Halted):
        verify.verify(Graph.of(ends), right(Graph.of(ends)), allowed_s=1e-3, poll=halt)


def test_expensive_strips_are_compared_at_both_ends_and_in_between() -> None:
    places: Any = [SimpleNamespace(seconds=s) for s in (1.5, 0.5)]  # one strip of each takes 2 s
    assert [strips.least_strips(places, s) for s in (math.inf, 16.0, 10.1, 4.0, 3.0, 2.9, 0.0)] == [8, 8, 5, 3, 3, 1, 1]


def test_verifying_beyond_the_budget_is_told() -> None:
    moments = iter([0.0, 5.0, 5.0, 5.0])
    session = Session(Options(budget=3.0), now=lambda: next(moments))
    assert session.verifying_s == VERIFYING_S
    session.stage_clock.seconds["verify"] = 7.0
    session.verified()
    assert session.warnings == ["verifying took 7.0 s, more than the budget of 3 s"]


def test_memory_of_the_reference_is_estimated_from_below() -> None:
    def peak(run: Callable[[], Any]) -> int:
        tracemalloc.start()
        run()
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    shape, values = (400, 500), {"x": RNG.standard_normal((400, 500)).astype(np.float32)}
    for expression in (
        lambda x: tg.cumsum(tg.cumsum(x, 0), 1),
        lambda x: tg.softmax(x) + x,
        lambda x: (x.reshape((400, 1, 500)) - x[:40].reshape((1, 40, 500))).sum(axis=(1, 2)),
    ):
        graph = large(expression, shape)
        for wide in (False, True):
            estimate = room.run_bytes(graph, float64=wide)
            taken = peak(lambda graph=graph, wide=wide: evaluate(graph, values, float64=wide))
            assert 0.2 * taken < estimate <= 1.01 * taken


@pytest.mark.parametrize("tolerance", ["eager", "exact"])
def test_references_that_do_not_fit_are_refused_before_they_are_computed(
    tolerance: comparison.Tolerance, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = large(lambda x: tg.cumsum(tg.cumsum(x, 0), 1))
    monkeypatch.setattr(room, "available_bytes", lambda: 8 << 20)
    assert verdict(whole, right(whole), monkeypatch, seeds=1, tolerance=tolerance).passed
    monkeypatch.setattr(room, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(reference, "evaluate", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(TooLargeError, match=r"verification takes at least [\d.]+ .iB of memory, 1 MiB are available"):
        verdict(whole, right(whole), monkeypatch, seeds=1, tolerance=tolerance)
    monkeypatch.setattr(room, "available_bytes", lambda: 4 << 20)
    stripped = large(lambda x: x + x)
    assert verdict(stripped, right(stripped), monkeypatch).passed


def test_strips_that_do_not_fit_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: x + x)
    monkeypatch.setattr(room, "available_bytes", lambda: room.input_output_bytes(graph) // 2)
    monkeypatch.setattr(drawing, "inputs", lambda *_, **__: pytest.fail("drawn"))
    with pytest.raises(TooLargeError, match="verification takes at least"):
        verdict(graph, right(graph), monkeypatch)


def test_intermediates_of_a_strip_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: (x.reshape((6000, 1, 40)) - x[:50].reshape((1, 50, 40))).sum(axis=(1, 2)))
    (axes,) = strips.strips_of(graph) or ()
    monkeypatch.setattr(strips, "MAX_STRIP_BYTES", 1 << 22)
    place = strips.OutputStrips(graph, graph.roots[0], axes, np.random.default_rng(0))
    assert place.taken <= 1 << 22 and 50 < place.count < 1000
    assert verdict(graph, right(graph), monkeypatch, enough=lambda: True).compared > 0.1
    monkeypatch.setattr(strips, "MAX_STRIP_BYTES", 1)
    assert strips.OutputStrips(graph, graph.roots[0], axes, np.random.default_rng(0)).count == 1


# ---------------------------------------------------------------- the caller's own function on large inputs
MANY = 1 << 20  # elements of an input


def peak_of(run: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def large_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_check_large, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(strips, "PIECE", 1 << 12)
    monkeypatch.setattr(drawing, "DRAWN", 1 << 12)
    monkeypatch.setattr(drawing, "PERIOD", 4099)


def twice(x: Any) -> Any:
    return x + x


@pytest.mark.parametrize("torch", [False, True])
def test_a_large_function_is_compared_within_one_set_of_inputs_and_outputs(
    torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x: Any = np.ones((MANY,), np.float32)
    if torch:
        x = pytest.importorskip("torch").from_numpy(x)
    graph, words = as_graph(twice, (x,)), []
    large_from_here(monkeypatch)
    peak = peak_of(lambda: words.append(caller_reference.compare(twice, (x,), graph)))
    assert "itself, on one input, 3.12 % of the elements" in words[0]
    assert peak < 2.5 * 4 * MANY


def test_a_slow_function_is_called_once_if_no_time_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = np.ones((2, 3), np.float32), []

    def slow(x: Any) -> Any:
        calls.append(type(x))
        time.sleep(0.02 * isinstance(x, np.ndarray))
        return x * 2

    graph = as_graph(slow, (x,))
    monkeypatch.setattr(trace_randomness, "LEAST_S", 0.01)
    calls.clear()
    words = caller_reference.compare(slow, (x,), graph, spare=lambda: 0.0)
    assert calls == [np.ndarray]
    assert words.startswith("compared with the function itself, on 1 inputs; left out for lack of time: a second call")
    with pytest.raises(TraceError):  # what is not left out still decides
        caller_reference.compare(lambda x: slow(x) + 1, (x,), graph, spare=lambda: 0.0)


def test_a_sweep_whose_time_is_up_runs_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search in it times none, and the rest of the sweep the best plan alone."""
    x, bound = tg.input("x", (4, 8)), []
    save_graph(Graph.of(tg.softmax(x @ tg.param("w", (8, 8))) + x, params={"w": np.eye(8, dtype=np.float32)}), tmp_path / "m.safetensors")  # fmt: skip
    bind = Program._bind
    monkeypatch.setattr(Program, "_bind", lambda program: bound.append(program) or bind(program))
    with settings.override(home=str(tmp_path)):
        found, _ = sweep.profile(str(tmp_path / "m.safetensors"), 3, {}, "numpy", 0.01, None, Progress())
    assert len(bound) == len(found["paths"]) == 1 and found["paths"][0]["measured_us"] > 0


def test_a_large_constant_is_held_once_and_not_read_again_from_a_stored_plan(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((1 << 20,), np.float32)
    kept = constant(w)
    assert peak_of(lambda: constant(w)) < 1 << 16  # hashed where it lies, and found
    graph = Graph.of(tg.input("x", (1 << 20,)) * kept + 1)
    plan = direct_plan(graph, [backend("numpy")])
    written = json.loads(json.dumps(plan_to_json(plan)))
    assert peak_of(lambda: plan_from_json(written, graph)) < 1 << 20
    assert plan_from_json(written, graph).weights == plan.weights


@pytest.mark.usefixtures("new_garbage_only")
def test_programs_of_many_inputs_and_outputs_are_written_in_linear_time() -> None:
    def seconds(count: int) -> float:
        graph = Graph.of([tg.tanh(tg.input(f"x{i}", (3, 4))) for i in range(count)])
        plan, began = direct_plan(graph, [backend("numpy")]), time.thread_time()
        Program(plan)
        return time.thread_time() - began

    seconds(100)
    # 4 times as many; quadratic: 16 times, in every attempt
    assert any(seconds(1200) < 8 * seconds(300) + 0.1 for _ in range(5))


@pytest.mark.parametrize("torch", [False, True])
def test_a_large_function_that_is_not_its_graph_is_refused(torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x: Any = np.ones((MANY,), np.float32)
    if torch:
        x = pytest.importorskip("torch").from_numpy(x)
    graph = as_graph(twice, (x,))
    large_from_here(monkeypatch)
    for other in (lambda x: x + 1.5 * x, lambda x: (x + x)[:5], lambda x: (x > 0) + 0):
        with pytest.raises(TraceError):
            caller_reference.compare(other, (x,), graph)
    assert "writes" in caller_reference.compare(lambda x: x.__iadd__(x), (x,), graph) or not torch


def test_a_large_call_that_does_not_fit_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((MANY,), np.float32)
    graph = as_graph(twice, (x,))
    monkeypatch.setattr(room, "available_bytes", lambda: 7 << 20)
    called = lambda x: pytest.fail("called")
    for _ in range(2):
        assert "it may take" in caller_reference.compare(called, (x,), graph)
        large_from_here(monkeypatch)
    assert np.all(x == 1)


def test_timing_against_the_caller_is_left_out_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((64, 64), np.float32)
    program = tg.optimize(twice, (x,), budget=0.1, measure=False, backend="numpy")
    rival = Caller.of(twice, (x,), {})
    assert rival is not None and not why_not_replaceable(program, rival, as_graph(twice, (x,)), {})
    monkeypatch.setattr(room, "available_bytes", lambda: 100)
    assert "iB of memory, 100 bytes are available" in why_not_replaceable(program, rival, as_graph(twice, (x,)), {})


def test_long_calls_are_not_repeated_for_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = np.ones((64, 64), np.float32), []
    program = tg.optimize(twice, (x,), budget=0.1, measure=False, backend="numpy")
    rival = Caller.of(lambda x: (calls.append(1), twice(x))[1], (x,), {})
    assert rival is not None and program.report is not None
    for first, count in (({"caller": 2e6, "program": 3e6}, 0), ({"caller": 2.0, "program": 3.0}, 1)):
        why = why_program_runs(program, rival, program.report, left=0.0, ended=lambda: True, first=first)
        assert (len(calls) > 0) == bool(count) and (why is None or count)


@pytest.mark.parametrize("place", [0, 3137, 5999])
def test_one_wrong_row_of_a_large_output_is_found(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: x + x)

    def wrong(values: Mapping[str, Any]) -> list[Any]:
        (y,) = evaluate(graph, values)
        y[place] = 7.0
        return [y]

    assert not verdict(graph, wrong, monkeypatch).passed


def test_a_program_that_writes_to_large_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: x + x)

    def writes(values: Mapping[str, Any]) -> list[Any]:
        values["x"][5, 5] = 1.0
        return evaluate(graph, values)

    with pytest.raises(VerificationError, match="writes to its inputs"):
        verdict(graph, writes, monkeypatch)


def test_outputs_that_mix_all_places_are_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = large(lambda x: tg.cumsum(tg.cumsum(x, 0), 1))
    found = verdict(graph, right(graph), monkeypatch, seeds=1)
    assert found.passed and found.compared == 1.0 and "strips" not in found.note


STRIPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "pointwise": lambda x: tg.tanh(x) * 2.0 + x,
    "reduced": lambda x: x - x.sum(axis=2, keepdims=True),
    "product": lambda x: x @ tg.param("w", (5, 3)),
    "products": lambda x: x @ x.mT,
    "permuted": lambda x: x.permute((2, 0, 1)),
    "reshaped": lambda x: tg.exp(x.reshape((9, 20))),
    "joined": lambda x: tg.concat([x, x * 2.0], axis=2),
    "cut": lambda x: x[:, 1:3],
    "broadcast": lambda x: x + x.max(axis=0, keepdims=True),
    "positions": lambda x: x + tg.iota((9, 4, 5), 1, "float32"),
}


@pytest.mark.parametrize("name", STRIPPED)
def test_a_strip_is_part_of_the_whole(name: str) -> None:
    weights = {"w": RNG.standard_normal((5, 3)).astype(np.float32)}
    graph = Graph.of(STRIPPED[name](tg.input("x", (9, 4, 5))))
    x = RNG.standard_normal((9, 4, 5)).astype(np.float32)
    (whole,) = evaluate(graph, {"x": x}, params=weights)
    axes = axes_of(graph.roots[0])
    assert axes is not None and axes.size == whole.shape[axes.axis] > 1
    data = {"x": x, **weights}
    for start, stop in ((0, 1), (1, axes.size)):
        strip = axes.strip(stop - start)
        values = {
            n: interval_view(data[str(leaf.attr("name"))], k, start, stop) for n, (leaf, k) in strip.reads.items()
        }
        (part,) = evaluate([strip.term], {**data, **values}, params=weights)
        np.testing.assert_allclose(part, interval_view(whole, axes.axis, start, stop), rtol=1e-5, atol=1e-6)


def test_large_random_inputs_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "DRAWN", 100)
    monkeypatch.setattr(drawing, "PERIOD", 53)
    graph = Graph.of(tg.where(tg.input("b", (20, 7), "bool"), tg.input("x", (20, 7)), 0.0))
    found = drawing.inputs(graph, np.random.default_rng(0))
    for drawn in found.values():
        flat = drawn.reshape(-1)
        assert drawn.shape == (20, 7) and np.array_equal(flat[:53], flat[53:106]) and len(set(flat[:53].tolist())) > 1


# ---------------------------------------------------------------- e-graph files and solvers
def node(eclass: str, children: Sequence[str], cost: float = 1.0) -> dict[str, Any]:
    return {"op": "f", "cost": cost, "eclass": eclass, "children": list(children)}


def ladder(n: int) -> dict[str, Any]:
    """Two chains of one-row classes that read shared classes of two rows: written out, each class would be as long as
    its chain."""
    nodes = {"r0": node("r", ["a0"]), "r1": node("r", ["b0"])}
    for i in range(n):
        for chain, other in (("a", i), ("b", 7 * i % n)):
            below = [f"{chain}{i + 1}"] if i < n - 1 else []
            nodes[f"{chain}{i}"] = node(f"{chain}{i}", [*below, f"x{other}.0"], 0.1)
        for form in range(2):
            nodes[f"x{i}.{form}"] = node(f"x{i}", [], 1.0 + 0.1 * form)
    return nodes


def tangle(n: int) -> dict[str, Any]:
    """One component of `n` classes that read each other."""
    rng = np.random.default_rng(1)
    nodes = {f"n{i}.l": node(f"c{i}", [], 5.0) for i in range(n)}
    for i in range(n):
        for form in range(3):
            reads = [f"n{k}.l" for k in rng.integers(0, n, 3).tolist()]
            nodes[f"n{i}.{form}"] = node(f"c{i}", reads, float(rng.random()))
    return nodes


CHILD = """
import json, sys, time
from tensor_graphs.extract.solve.serialize import read_egraph
from tensor_graphs.extract.solve.solve import solve
began = time.process_time()
try:
    problem = read_egraph(sys.argv[1])
    method = solve(problem, time_limit=2.0).method
except Exception as error:
    method = type(error).__name__
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss begins with the parent's
print(json.dumps([method, int(peak.split()[1]) >> 10, time.process_time() - began]))
"""


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty lists": (lambda: b'{"x":[' + b"[]," * 40_000_000 + b'[]],"nodes":{},"root_eclasses":[]}', "ExtractionError"),
    "children": (
        lambda: json.dumps({
            "nodes": {f"n{i}": node(f"c{i}", [f"n{i + 1}"] * 400 if i < 19_999 else []) for i in range(20_000)},
            "root_eclasses": ["c0"],
        }).encode(),
        "ExtractionError",
    ),
    "ladder": (lambda: json.dumps({"nodes": ladder(8000), "root_eclasses": ["r"]}).encode(), ""),
    "tangle": (lambda: json.dumps({"nodes": tangle(6000), "root_eclasses": ["c0", "c1"]}).encode(), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_egraph_files_are_solved_or_refused_within_a_gibibyte(name: str, tmp_path: Path) -> None:
    make, expected = HOSTILE[name]
    path = tmp_path / "e.json.gz"
    path.write_bytes(gzip.compress(make(), 1, mtime=0))
    assert path.stat().st_size < 1 << 20
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, preexec_fn=limit, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    words, mib, seconds = json.loads(done.stdout)
    assert (words == expected) if expected else ("Error" not in words)
    assert mib < 1024 and seconds < 100


def test_what_an_egraph_file_may_take_is_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"nodes": ladder(50), "root_eclasses": ["r"]}))
    assert read_egraph(path).n_nodes == 202
    with (
        settings.override(file_memory=100_000),
        pytest.raises(ExtractionError, match="bytes of memory, more than 100000"),
    ):
        read_egraph(path)


def chained(n: int) -> tuple[dict[int, frozenset[int]], list[int]]:
    """Free classes 0..n-1, each of which reads the next one and a class of its own that is not free."""
    free = {i: frozenset([n + i, *([i + 1] if i < n - 1 else [])]) for i in range(n)}
    return free, [1] * n + [2] * n


def test_expansions_of_replaced_classes_are_no_larger_than_the_rows() -> None:
    free, readers = chained(400)
    gone, expanded = row_reductions.closure(free, readers)
    assert gone == set(free) and expanded == {0: set(range(400, 800))}


def test_classes_with_several_readers_are_not_copied_into_all_of_them() -> None:
    free, readers = chained(400)
    gone, expanded = row_reductions.closure(free, [2] * 400 + readers[400:])
    assert sum(map(len, expanded.values())) < 12 * 400 and gone < set(free)


def problem_of(nodes: Mapping[str, Any], *roots: str) -> ProblemRows:
    place = {name: n for n, name in enumerate(dict.fromkeys(v["eclass"] for v in nodes.values()))}
    rows = [(place[v["eclass"]], [place[nodes[k]["eclass"]] for k in v["children"]], v["cost"]) for v in nodes.values()]
    return Problem.build(rows, [place[r] for r in roots]).rows


def test_searches_that_would_take_too_much_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = problem_of(ladder(40), "r")
    assert frontier_dp.FrontierDP(rows, 100.0).fits
    assert LabelSetting(rows).search(30).chosen is not None
    monkeypatch.setattr(frontier_dp, "MAX_LABEL_BYTES", 1000)
    monkeypatch.setattr("tensor_graphs.extract.solve.label_setting.MAX_LABEL_BYTES", 1000)
    assert not frontier_dp.FrontierDP(rows, 100.0).fits
    assert LabelSetting(rows).search(30).chosen is None


def test_always_on_classes_are_the_same_in_narrow_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = problem_of({f"n{i}": node(f"c{i}", [f"n{i + 1}"] if i < 299 else []) for i in range(300)}, "c0")
    items = must.items_of(rows)
    order = must.strongly_connected_components(must.class_graph(items))[1]
    whole = must.always_on(items, order, [0])
    monkeypatch.setattr(must, "WINDOW_BYTES", 8)
    assert must.always_on(items, order, [0]) == whole == set(range(300))


def test_implications_are_left_out_where_must_sets_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = problem_of(ladder(6), "r")
    monkeypatch.setattr(must, "MAX_IMPLICATIONS", 3)
    assert must.must_implications(rows) == []


def test_memory_that_runs_out_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("cannot allocate")

    monkeypatch.setattr(cli, "_commands", lambda: fails)
    assert cli.run(["extract", "x.json"]) == 3
    assert "memory ran out" in capsys.readouterr().err


def test_a_function_whose_call_takes_longer_than_the_budget_is_not_called(monkeypatch):
    """A table of all pairs, estimated from the trace's sizes: neither compared nor timed, which the report says."""
    called = []

    def distances(x, y):
        called.append(type(x) is np.ndarray)
        return np.abs(x[:, None] - y).sum(1)

    x = np.linspace(0, 1, 300, dtype=np.float32)
    assert any(called) or "itself" in tg.optimize(distances, (x, x), budget=0).report.verification["caller"]
    assert any(called)
    monkeypatch.setattr(trace_randomness, "CALL_S", 1e-6)
    monkeypatch.setattr(choose_form, "LEAST_S", 1e-6)
    called.clear()
    report = tg.optimize(distances, (x, x), budget=0).report
    assert called == [False]  # the trace
    assert "a call of the function is left out, it would take about" in report.verification["caller"]
    assert "not compared with the caller's own: a call takes about" in report.compared
    torch = pytest.importorskip("torch")
    x = torch.linspace(0, 1, 300)
    report = tg.optimize(lambda x: (x[:, None] - x).abs().sum(1), (x,), budget=0).report
    assert "a call of the module is left out, it would take about" in report.verification["caller"]


def test_large_values_of_small_outputs_are_verified_in_strips(monkeypatch):
    monkeypatch.setattr(verify, "LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(trace_check_large, "LARGE_BYTES", 1 << 16)
    x = np.linspace(0, 1, 300, dtype=np.float32)
    report = tg.optimize(lambda x: np.abs(x[:, None] - x).sum(1), (x,), measure=False, budget=60).report
    assert "in strips" in report.verification["note"] and report.verification["passed"]
    assert "itself, on one input, 100 %" in report.verification["caller"]
    monkeypatch.setattr(strips, "PIECE", 30)  # ten strips
    pairs, w = tg.input("x", (300, 1)) - tg.input("x", (300, 1)).T, np.ones((300, 4), np.float32)
    assert strips.has_large_values(Graph.of(tg.sum(pairs, 1)), 1 << 16)
    mixed = tg.tanh(pairs) @ w @ w.T  # each row needs all rows of the layer below
    assert not strips.has_large_values(Graph.of(tg.sum(tg.tanh(pairs) @ mixed, 1)), 1 << 16)
    assert not strips.has_large_values(Graph.of(tg.input("y", (1, 300)) @ tg.tanh(tg.param("w", (300, 300)))), 1 << 16)
