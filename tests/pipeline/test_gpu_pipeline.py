"""The whole way for a GPU: rehearsed on the CPU (tensors there, Triton's interpreter), and for real where there is
one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.models import zoo

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs import settings
from tensor_graphs.backends import gpu as gpu_facts
from tensor_graphs.backends.cuda.backend import Cuda
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program import weights_on_device
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.backends.runtime import upload
from tensor_graphs.backends.triton.backend import Triton
from tensor_graphs.backends.tuning import single_kernel as single
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.cli.explain import explain_steps
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import DeviceMemoryError, DeviceUnavailableError, NoPlanError
from tensor_graphs.extract.model.kernel import Call, Operand
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.search.alternatives import unmeasured_kernels
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.common import quantized_graph
from tensor_graphs.models.load import load
from tensor_graphs.models.torch_export.export import load_module
from tensor_graphs.options import Options
from tensor_graphs.pipeline import background_reference, background_weights, recall
from tensor_graphs.pipeline import optimize as pipeline
from tensor_graphs.pipeline import search as searching
from tensor_graphs.pipeline.cache.plan_file import plan_from_json, plan_to_json
from tensor_graphs.pipeline.context.session import Session, open_store
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.execution import caller_timing, timing
from tensor_graphs.pipeline.forms import choose_form
from tensor_graphs.pipeline.sources.caller import Caller
from tensor_graphs.pipeline.stages import accept as accept_stage
from tensor_graphs.pipeline.stages import choose as choosing
from tensor_graphs.pipeline.stages import time_finalists, time_program
from tensor_graphs.pipeline.stages import verify_or_retry as accept
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.provenance import origin_of, read_origin
from tensor_graphs.private import read_sealed, sealed
from tensor_graphs.report.records import FinalistReport
from tensor_graphs.verification import diagnose, reference, verify
from tensor_graphs.verification import memory_checks as room
from tensor_graphs.verification.comparison import relative_error
from tensor_graphs.verification.reference import sample_inputs
from tensor_graphs.verification.verify import index_bounds

from ..waiting import wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("quick_interpreter")
NO_GPU = backend("torch_cuda").unavailable()
gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "")]


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's backends on the CPU."""
    if not NO_GPU:
        pytest.skip("Triton compiles where there is a GPU")
    for kind in (TorchCudaBackend, Triton):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu_facts, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(accept, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(diagnose, "run_outputs", partial(single.run_outputs, device="cpu"))


def block(dtype: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """A decoder's projection with its cache: norm, product, gate, residual, scatter."""
    x, i = t.input("x", (4, 32), dtype), t.input("i", (4, 32), "int64")
    g, w, k = t.param("g", (32,), dtype), t.param("w", (32, 32), dtype), t.state("k", (6, 32), dtype)
    y = c.silu(t.matmul(c.rms_norm(x, g, eps=1e-6), w)) + x
    graph = Graph.of(
        {"y": y, "p": c.softmax(y, axis=1)}, updates={"k": t.scatter_elements(k, i, y, 0)}, inputs=[x, i], name="block"
    )
    rng = np.random.default_rng(0)
    return graph, {"g": rng.standard_normal(32).astype(numpy_dtype(dtype)),
                   "w": (rng.standard_normal((32, 32)) / 6).astype(numpy_dtype(dtype))}  # fmt: skip


def as_measured(choice: Any) -> Any:
    """The choice with all its prices called measured."""
    return replace(choice, prices=[replace(p, source="measured") for p in choice.prices])


def check(program: Program, graph: Graph, params: dict[str, np.ndarray], dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 32)).astype(numpy_dtype(dtype))
    i = np.tile(np.array([[0], [5], [2], [3]]), (1, 32))
    state = np.zeros((6, 32), numpy_dtype(dtype))
    for _ in range(3):
        found = program(x=x, i=i)
        want = evaluate(graph, {"x": x, "i": i, "k": state}, params=params, float64=True)
        for a, b in zip([*found.values(), program.get_state("k")], want):
            assert a.dtype == numpy_dtype(dtype)
            error = np.linalg.norm(a.astype(float) - b) / np.linalg.norm(b)
            assert error < {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}[dtype]
        x, state = x + x, want[2].astype(numpy_dtype(dtype))
    assert "states" in program.source and program.manifest.device == "cuda"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("choice", ["gpu", "triton-only"])
@pytest.mark.usefixtures("rehearsal")
def test_a_plan_for_a_gpu_is_verified(dtype: str, choice: str) -> None:
    graph, params = block(dtype)
    if choice == "triton-only":
        graph = Graph.of(graph.outputs[0], name="block")
        program = tg.optimize(graph, params=params, backend=choice, measure=False, budget=20)
        assert {s.template.backend for s in program.plan.steps if s.template.family not in ("view", "copy")} == {
            "triton"
        }
        return
    program = tg.optimize(graph, params=params, backend=choice, measure=False, budget=20)
    check(program, graph, params, dtype)
    assert program.report.verification["passed"] and program.report.kernels_before >= program.report.kernels_after


@pytest.mark.usefixtures("rehearsal")
def test_a_bottleneck_runs_through_generated_convolutions() -> None:
    """Convolutions with their norms, activations and the residual, then a pool: three kernels or fewer, and
    verified."""
    rng, params = np.random.default_rng(0), dict[str, np.ndarray]()

    def param(name: str, *shape: int) -> tg.Tensor:
        params[name] = ((rng.random(shape) + 0.5) / np.prod(shape[1:])).astype(np.float16)
        return t.param(name, shape, "float16")

    x = t.input("x", (2, 16, 6, 6), "float16")
    h = x
    for i, (size, inner, outer) in enumerate(((1, 16, 8), (3, 8, 8), (1, 8, 16))):
        h = t.conv(h, param(f"w{i}", outer, inner, size, size), pads=(size // 2,) * 4)
        h = c.batch_norm(h, *(param(f"{part}{i}", outer) for part in ("gain", "shift", "mean", "var")), eps=1e-5)
        h = c.relu(h if i < 2 else x + h)
    pooled = c.max_pool(h, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    program = tg.optimize(Graph.of(pooled), params=params, backend="triton-only", measure=False, budget=600)
    assert program.report.verification["passed"]
    assert {s.template.backend for s in program.plan.steps if not s.is_view} == {"triton"}
    assert program.plan.kernels <= 3


@pytest.mark.usefixtures("rehearsal")
def test_saved_programs_bring_their_kernels(tmp_path: Path) -> None:
    """Triton reads a kernel's source where it was defined: that works for a loaded program and for the file as a
    module."""
    _, params = block("float32")
    only = Graph.of(c.softmax(t.matmul(t.input("x", (4, 32)), t.param("w", (32, 32))), axis=1), name="block")
    tg.optimize(
        only,
        params={"w": params["w"]},
        backend="triton-only",
        measure=False,
        budget=20,
        verify=False,  # the kernel computes logits twice, which the interpreter rounds in two ways
    ).save(tmp_path / "p")
    script = (
        "import sys; sys.path.insert(0, 'p')\n"
        "import program\nfrom tensor_graphs.backends.program.saved_program import load_program\n"
        "from tensor_graphs.backends.program.launch.emission import executed\nfrom triton.runtime.jit import JITFunction\n"
        "for space in (vars(program), executed(load_program('p', device='cpu').source, 'p')):\n"
        "    kernels = [v for v in space.values() if isinstance(v, JITFunction)]\n"
        "    assert kernels and all(f'def {k.__name__}(' in k.src for k in kernels)"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env=environment)


@pytest.mark.usefixtures("rehearsal")
def test_what_a_model_computes_in_more_bits_is_stored_in_them_where_it_shows() -> None:
    """A loss in float32 of logits in 16 bits: rounded on the way to memory, it was a thousand times as far off as the
    model's own, and returned as what no kernel could do better."""
    x, ids = t.input("x", (8, 64), "float16"), t.input("ids", (8,), "int64")
    p = c.log_softmax(t.cast(x, "float32"), axis=1)
    picked = t.gather_elements(p, t.reshape(ids, (8, 1)), 1)
    graph = Graph.of(-t.mean(picked, axis=0) * 0.9 - t.mean(t.sum(p, axis=1), axis=0), inputs=[x, ids])
    program = tg.optimize(graph, backend="cuda", measure=False, budget=20)
    found = program.report.verification
    assert found["passed"] and found["error_after"] < 1e-6 and not found["dropped"], "in the first attempt"
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((8, 64)).astype(np.float16), "ids": rng.integers(64, size=8)}
    (want,) = evaluate(graph, given, float64=True)
    assert relative_error(np.asarray(program(**given)), want) < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.usefixtures("rehearsal")
def test_exact_rounds_where_the_graph_does(dtype: str) -> None:
    """What the graph has in float32 lies in float32, what it has in 16 bits is rounded to them, and where a library's
    product may add in another order there is no plan rather than a wrong one."""
    x, y = t.input("x", (8, 32), dtype), t.input("y", (8, 32), dtype)
    wide = t.cast(x, "float32") * t.cast(y, "float32") + t.cast(y, "float32") * 0.3
    outputs = [t.cast(wide * wide, dtype) + x, (x * y + x) * y, t.max(x * y + x, axis=1, keepdims=True) * y]
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((8, 32)).astype(numpy_dtype(dtype)) for n in "xy"}
    program = tg.optimize(outputs, backend="gpu", tolerance="exact", measure=False, budget=20)
    for found, want in zip(program(**given), evaluate(Graph.of(outputs), given), strict=True):
        np.testing.assert_array_equal(found.view(np.uint16), want.view(np.uint16))
    assert program.report.verification["passed"]
    w = t.input("w", (4096, 24))
    with pytest.raises(NoPlanError, match="within tolerance"):
        tg.optimize(t.matmul(t.permute(w, (1, 0)), w), backend="gpu", tolerance="exact", measure=False, budget=20)


@pytest.mark.usefixtures("rehearsal")
def test_views_do_not_change_the_dtype_in_memory() -> None:
    """A row's statistics lie in float32; as a row of their own they lie in 16 bits, and a copy is between."""
    x, y = t.input("x", (8, 16), "bfloat16"), t.input("y", (1, 8), "bfloat16")
    graph = Graph.of(t.reshape(t.max(x, axis=1, keepdims=True), (1, 8)) * y, name="turned")
    program = tg.optimize(graph, backend="cuda", measure=False, budget=20)
    for step in program.plan.steps:
        if step.is_view:
            assert {o.type.dtype for o in step.call.operands.values()} == {step.call.output.type.dtype}
    given = [np.arange(128).reshape(8, 16).astype(numpy_dtype("bfloat16")), np.ones((1, 8), numpy_dtype("bfloat16"))]
    np.testing.assert_array_equal(program(*given), given[0].max(axis=1)[None])


@pytest.mark.usefixtures("rehearsal")
def test_diagnosis_of_a_plan_that_stores_16_bits() -> None:
    """Nothing is wrong with a plan whose values lie in 16 bits; a kernel that is, is named."""
    from dataclasses import replace

    graph, params = block("bfloat16")
    options = Options(backend="cuda", measure=False)
    session = Session(options)
    work = prepare(session, replace(graph, params=params), None).work
    found = hypergraph(session, view_of(work), [backend("torch_cuda")])
    with open_store(session) as store:
        choice = choose(session, found, CostPricer(store), None)
    plan = plan_of(choice, work)
    seen = diagnose.diagnose(replace(graph, params=params), plan)
    assert not seen.miscompiled and seen.rewrites == 0, seen
    broken = [replace(s, template=replace(s.template, code="{out}.copy_({x} * 2)")) if s.template.name == "cuda.silu" else s
              for s in plan.steps]  # fmt: skip
    seen = diagnose.diagnose(replace(graph, params=params), replace(plan, steps=tuple(broken)))
    assert seen.miscompiled and seen.wrong == ["cuda.silu"]


@pytest.mark.usefixtures("rehearsal")
@pytest.mark.parametrize("kind", ["llama", "unet"])
def test_models_run_as_they_are_written(tmp_path: Path, kind: str) -> None:
    """The unoptimized plan of a 16-bit model: a kernel for every node, and not less accurate than the interpreter."""
    if kind == "llama":
        sizes: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "intermediate": 64, "vocab": 40}
        graph = load(random_checkpoints.write_llama(tmp_path, **sizes, positions=64), dims={"batch": 2, "sequence": 6})
    else:
        graph = zoo.unet(image=16, channels=8, dtype="bfloat16")
    graph = simplify(graph)
    given = sample_inputs(graph.inputs, np.random.default_rng(0), index_bounds(graph))
    found = Program(direct_plan(graph, [backend("torch_cuda")]), device="cpu").flat(**given)
    for a, own, exact in zip(found, evaluate(graph, given), evaluate(graph, given, float64=True)):
        assert relative_error(a, exact) < 1.5 * relative_error(own, exact) + 1e-3


def test_measuring_on_a_gpu_has_its_least_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever loading took; on a CPU, and in a second search, there is only what is left."""
    given: list[float] = []

    def search(graph: Any, pricer: Any, measurer: Any, *, seconds: float, **more: Any) -> Any:
        given.append(seconds)
        return SimpleNamespace(seconds={"measure": 0.5})

    monkeypatch.setattr(choosing, "search", search)
    graph: Any = SimpleNamespace(candidates=[])
    for budget, least in ((5.0, 1.0), (100.0, 2.0)):
        session = Session(Options(backend="gpu", budget=budget), now=iter([0.0, *[3 * budget] * 50]).__next__)
        gpu = SimpleNamespace(ahead=True)
        for measurer in (CpuMeasurer([]), gpu, gpu):
            choose(session, graph, Any, measurer)  # type: ignore[arg-type]
            if measurer.__class__ is CpuMeasurer:
                session.stage_clock.seconds.clear()
        assert given[-3:] == [0.0, least, 0.0]


@pytest.mark.usefixtures("rehearsal")
def test_what_is_compared_with_is_computed_while_rewriting_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first input; and where that fails, verification computes it as ever."""
    seen: list[int] = []
    plain = verify.compute_reference
    monkeypatch.setattr(verify, "compute_reference", lambda *given: seen.append(1) or plain(*given))
    monkeypatch.setattr(background_reference, "gpu_facts", lambda: {"name": "rehearsal"})
    graph, params = block("float16")
    for failing, left in ((False, 2), (True, 3)):
        ahead = lambda graph, device, failing=failing, **more: (
            1 / 0 if failing else reference.first_reference(graph, "cpu", **more)
        )
        monkeypatch.setattr(background_reference, "first_reference", ahead)
        program = tg.optimize(graph, params=params, backend="gpu", measure=False, budget=20, effort=0)
        assert program.report.verification["passed"] and program.report.verification["seeds"] == 3
        assert len(seen) == left
        seen.clear()


@pytest.mark.usefixtures("rehearsal")
def test_quantized_weights_are_encoded_while_rewriting_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, on the device: the program, the references and the search take the tensors that are there."""
    for module in (background_weights, upload, weights_on_device):
        monkeypatch.setattr(module, "GPU_KIND", "cpu")
    monkeypatch.setattr(background_weights, "gpu_facts", lambda: {"name": "rehearsal"})
    monkeypatch.setattr(background_weights, "free_bytes", lambda: 1 << 40)
    started, threads = background_weights.start_weights, list[str]()
    real = quantized_graph.encoded_on
    monkeypatch.setattr(
        quantized_graph, "encoded_on", lambda *a: threads.append(threading.current_thread().name) or real(*a)
    )

    def start(*given: Any) -> Any:
        end = started(*given)
        wait_for(lambda: len(threads) == 2)
        return end

    monkeypatch.setattr(searching, "start_weights", start)
    w, v = np.random.default_rng(0).standard_normal((2, 128, 256)).astype(np.float16)
    x = tg.input("x", (3, 128), "float16")
    graph = t.tanh(x @ tg.param("w", (128, 256), "float16")) @ t.transpose(tg.param("v", (128, 256), "float16"))
    program = tg.optimize(
        graph, params={"w": w, "v": v}, backend="gpu", measure=False, budget=20, effort=0, quantize="int4"
    )
    assert program.report.verification["passed"] and "int4: 2 weights" in program.report.quantization
    assert threads == ["weights"] * 2


def test_time_is_kept_for_weights_that_are_not_on_the_device() -> None:
    """Quantized weights count with the bytes of the original ones, unless they are encoded meanwhile."""
    w = np.zeros((128, 256), np.float16)
    graph = Graph.of(tg.input("x", (3, 128), "float16") @ tg.param("w", (128, 256), "float16"), params={"w": w})
    packed = quantized_graph.quantized(Graph.of(graph.outputs[0], params={"w": w + 1}), "int8")[0]
    assert reference.weight_bytes(graph) == reference.weight_bytes(packed) == w.nbytes
    assert reference.weight_bytes(packed, derived=False) == 0
    assert reference.expected_seconds(packed, 0.0, True, derived=False) < reference.expected_seconds(packed, 0.0, True)
    assert verify.planned_inputs(graph, 0.0) == 3 and verify.planned_inputs(graph, 1e12) == 1


@pytest.mark.parametrize(("before", "over", "kept"), [(5.0, False, True), (10.0, False, False), (5.0, True, True)])
@pytest.mark.usefixtures("rehearsal")
def test_what_is_returned_is_not_slower_than_the_graph_as_it_is_written(
    before: float, over: bool, kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the whole program was slower, the unoptimized one is returned, verified; time or not."""
    for module in (recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(measuring, "measurer_of", lambda *given: None)
    monkeypatch.setattr(
        "tensor_graphs.pipeline.execution.timing.sampled", lambda calls, **more: {"before": [before], "after": [10.0]}
    )
    if over:
        monkeypatch.setattr(Session, "over", property(lambda self: True))
    graph, params = block("float16")
    program = tg.optimize(graph, params=params, backend="gpu", budget=20, effort=0, costdb=tmp_path)
    check(program, graph, params, "float16")
    report = program.report
    assert report.verification["passed"] and report.latency_after_us == min(before, 10.0)
    assert (
        (report.kernels_after == report.kernels_before) is kept is any("as it is written" in w for w in report.warnings)
    )
    program.save(tmp_path / "p")
    assert len(read_origin(tmp_path / "p").chosen) == 3
    assert not kept or read_origin(tmp_path / "p").chosen == read_origin(tmp_path / "p").roots


@pytest.mark.parametrize("fastest", ["as written", "caller"])
@pytest.mark.usefixtures("rehearsal")
def test_the_fastest_form_is_returned_although_the_budget_is_over(
    fastest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whole calls of plan, graph as written and module decide on a GPU, however little a search has measured."""
    for module in (recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(measuring, "measurer_of", lambda *given: None)
    monkeypatch.setattr(Session, "over", property(lambda self: True))
    monkeypatch.setattr(Session, "left", property(lambda self: -1.0))
    monkeypatch.setattr(accept_stage, "choose", lambda session, graph, pricer, measurer, limits, **more: (
        session.finalists.append(FinalistReport(2, 7.0, 7.0, True)),
        as_measured(choose(session, graph, pricer, None, limits=limits)))[1])  # fmt: skip
    monkeypatch.setattr(Caller, "is_on", lambda self, device: True)
    monkeypatch.setattr(Caller, "library", "torch_cuda")
    us = {"program": 20.0, "as written": 20.0, "caller": 20.0, fastest: 10.0}
    ours = min(us["program"], us["as written"])
    taken = {
        "after": us["program"],
        "before": us["as written"],
        "caller": us["caller"],
        "wrapped": us["caller"],
        "program": ours,
    }
    for module in (timing, caller_timing):
        monkeypatch.setattr(module, "sampled", lambda calls, **how: {n: [taken[n]] * 9 for n in calls})
    module, x = (
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)),
        torch.randn(4, 32),
    )
    least = 0.5 * reference.call_seconds(load_module(module, (x,)))  # more than a call on a GPU takes
    monkeypatch.setattr(choose_form, "LEAST_S", least)
    program = tg.optimize(module, (x,), backend="gpu", budget=20, effort=0, costdb=tmp_path)
    assert program.report.runs == fastest, program.report.compared


@pytest.mark.usefixtures("rehearsal")
def test_finalists_are_timed_and_the_fastest_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All prices count as measured, and the program with the fewest kernels as the fastest."""
    monkeypatch.setattr(time_program, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(accept_stage, "choose", lambda session, graph, pricer, measurer, limits, **more: as_measured(
        choose(session, graph, pricer, None, limits=limits)))  # fmt: skip
    monkeypatch.setattr(measuring, "measurer_of", lambda *given: SimpleNamespace(
        ahead=False, ready=True, pause=lambda: None, close=lambda: None))  # fmt: skip
    monkeypatch.setattr(time_finalists, "MAX_GAP", 10.0)
    plans, plain = [], time_finalists.sample_programs

    def samples(programs: list[Program], values: Any, ended: Any) -> Any:
        assert all(len(s) >= 1 for s in plain(programs, values, lambda: True))  # a few: the interpreter takes long
        plans[:] = [p.plan.kernels for p in programs]
        return [[1000.0 - n] * 20 if n == len(programs) - 1 else [1100.0] * 20 for n in range(len(programs))]

    monkeypatch.setattr(time_finalists, "sample_programs", samples)
    graph, params = block("float16")
    program = tg.optimize(graph, params=params, backend="gpu", budget=60, costdb=tmp_path)
    assert len(plans) > 1 and program.report.verification["passed"]
    assert [f.kernels for f in program.report.finalists] == plans and program.report.finalists[-1].chosen
    check(program, graph, params, "float16")


@pytest.mark.usefixtures("rehearsal")
def test_that_the_graph_stays_as_it_is_written_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second search is none, whatever the store has got meanwhile; with other weights it is verified, and a larger
    budget goes on where the first one was cut."""
    for module in (recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(measuring, "measurer_of", lambda *given: None)
    monkeypatch.setattr(
        "tensor_graphs.pipeline.execution.timing.sampled", lambda calls, **more: {"before": [5.0], "after": [10.0]}
    )
    graph, params = block("float16")
    with settings.override(home=str(tmp_path)):
        first = tg.optimize(graph, params=params, backend="gpu", budget=20, effort=0)
        monkeypatch.setattr("tensor_graphs.pipeline.recall.shard_names_digest", lambda root: "more was measured")
        searched: list[float] = []
        plain = pipeline.search
        monkeypatch.setattr(pipeline, "search", lambda s, *a: searched.append(s.options.budget) or plain(s, *a))
        second = tg.optimize(graph, params=params, backend="gpu", budget=20, effort=0)
        check(second, graph, params, "float16")
        assert second.report.from_plan_cache and second.source == first.source and not searched
        assert any("as it is written" in w for w in second.report.warnings)
        assert second.report.verification == first.report.verification
        second.save(tmp_path / "p")
        assert read_origin(tmp_path / "p").chosen == read_origin(tmp_path / "p").roots
        other = {n: (0.5 * v).astype(v.dtype) for n, v in params.items()}
        assert tg.optimize(graph, params=other, backend="gpu", budget=20, effort=0).report.from_plan_cache
        (path,) = (tmp_path / "plans").glob("*.json")
        data = json.loads(read_sealed(path, name=path.name))
        data["report"]["omitted"] = ["measuring"]
        path.write_bytes(sealed(json.dumps(data).encode(), path.name))
        assert (
            tg.optimize(graph, params=other, backend="gpu", budget=20, effort=0).report.from_plan_cache and not searched
        )
        assert not tg.optimize(
            graph, params=other, backend="gpu", budget=21, effort=0
        ).report.from_plan_cache and searched == [21]


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
@pytest.mark.parametrize("choice", ["gpu", "cuda", "triton", "triton-only", "generated"])
def test_without_a_gpu_the_error_has_a_name(choice: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="cannot be used"):
        tg.optimize(t.input("x", (4,)) + 1.0, backend=choice)
    assert {b.device.name for b in select("auto")} == {"cpu"}


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (TorchCudaBackend, Triton, Cuda):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    assert [b.name for b in select("auto")] == [b.name for b in select("gpu")] == ["torch_cuda", "triton", "nvrtc"]
    assert [b.name for b in select("cuda")] == ["torch_cuda", "nvrtc"]
    assert [b.name for b in select("triton")] == ["triton", "torch_cuda"]
    assert {x.family for b in select("triton-only") for x in b.templates} == {"view", "copy"}
    for kind in (Triton, Cuda):
        monkeypatch.setattr(kind, "unavailable", lambda self: "broken")
    assert [b.name for b in select("gpu")] == [b.name for b in select("cuda")] == ["torch_cuda"]
    with pytest.raises(DeviceUnavailableError, match="broken"):
        select("triton")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("choice", ["gpu", "cuda", "triton"])
@pytest.mark.parametrize("_", [pytest.param(0, marks=gpu, id="gpu")])
def test_on_a_gpu(_: int, dtype: str, choice: str) -> None:
    graph, params = block(dtype)
    program = tg.optimize(graph, params=params, backend=choice, budget=8)
    check(program, graph, params, dtype)
    timed = program.report.latency_after_us  # the first one's budget may end before: it starts the device, too
    assert "timing of the whole program" in program.report.omitted if timed is None else timed > 0


@pytest.mark.usefixtures("rehearsal")
def test_what_cannot_fit_into_a_gpu_is_said_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "gpu_facts", lambda: {"memory_bytes": 10_000})
    monkeypatch.setattr(pipeline, "search", lambda *given: pytest.fail("a search began"))
    with pytest.raises(DeviceMemoryError, match=r"take 32 KiB, the GPU has 9\.766 KiB"):
        tg.optimize(tg.exp(tg.input("x", (64, 64))), backend="gpu", measure=False)


@pytest.mark.usefixtures("rehearsal")
def test_a_gpus_program_says_by_which_rules_it_was_found(tmp_path: Path) -> None:
    """In the graph's dtypes, whatever values are stored in; what storing rounds is said beside the steps."""
    x, gain = t.input("x", (16, 32), "bfloat16"), t.param("gain", (32,), "bfloat16")
    up, gate = t.param("up", (32, 48), "bfloat16"), t.param("gate", (32, 48), "bfloat16")
    h = c.rms_norm(x, gain, eps=1e-6)
    graph = Graph.of(t.matmul(c.silu(t.matmul(h, gate)) * t.matmul(h, up), t.transpose(up)), name="gated")
    rng = np.random.default_rng(0)
    params = {
        n.attr("name"): (rng.standard_normal(n.shape) / 6).astype(numpy_dtype("bfloat16")) for n in (gain, up, gate)
    }
    program = tg.optimize(graph, params=params, backend="cuda", measure=False, verify=False, budget=20)
    program.save(tmp_path / "p")
    found, text = explain_steps(tmp_path / "p")
    assert {o["complete"] for b in found["blocks"] for o in b["outputs"]} == {True}
    assert [b["verdict"] for b in found["blocks"]] == ["replayed"]
    assert "merge-matmuls" in text
    assert {s["dtype"] for s in found["stored"]} == {"bfloat16"} and "rounded to bfloat16" in text
    origin = read_origin(tmp_path / "p")
    assert {n.dtype for term in origin.chosen for n in topological([term]) if n.args and n is not term} == {"float32"}
    again = plan_from_json(json.loads(json.dumps(plan_to_json(program.plan))), program.plan.graph)
    work = Graph.of(list(origin.roots))
    assert origin_of(again, work) == origin == origin_of(program.plan, work)


def test_what_was_never_measured_of_a_plan_is_compiled_before_it_runs() -> None:
    """In the schedule that the plan has; not what was measured, nor what libraries have ready."""
    operand = Operand(Type((4,), "float32"), (1,))

    def made(space: Any) -> Any:
        return SimpleNamespace(template=SimpleNamespace(space=space), call=Call({}, operand, {}))

    found = [made(len), made(len), made(None)]
    prices = [
        Priced(1.0, 1.0, 1.0, s, (("m", n),))
        for n, s in enumerate(("predicted", "measured", "bound"))
    ]  # fmt: skip
    choice = SimpleNamespace(chosen=[0, 1, 2], hypergraph=SimpleNamespace(candidates=found), prices=prices)
    assert [(t, c.schedule) for t, c in unmeasured_kernels(choice)] == [(found[0].template, {"m": 0})]  # type: ignore[arg-type]
