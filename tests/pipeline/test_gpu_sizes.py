"""Programs of every size for a GPU, rehearsed on the CPU: Triton's interpreter, and CUDA C++ compiled for the host."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends import gpu as gpu_facts
from tensor_graphs.backends import registry
from tensor_graphs.backends.cuda.backend import Cuda
from tensor_graphs.backends.generate.any_size import SizedKernel
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.triton.backend import Triton
from tensor_graphs.backends.tuning import single_kernel as single
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import ShapeError
from tensor_graphs.pipeline.stages import accept as accept_stage
from tensor_graphs.pipeline.stages import verify_or_retry as accept
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.verification import diagnose

from ..backends.cuda_host import emulate

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("quick_interpreter")
T = tg.dim("T", max=200)
SIZES = (1, 16, 17, 65)


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU's backends on the CPU."""
    if not backend("torch_cuda").unavailable():
        pytest.skip("there is a GPU: see tests/gpu/test_sizes.py")
    for kind in (TorchCudaBackend, Triton):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu_facts, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(accept, "Program", partial(Program, device="cpu"))
    monkeypatch.setattr(diagnose, "run_outputs", partial(single.run_outputs, device="cpu"))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """cuda-core, compiling for and launching on this CPU."""
    emulate(monkeypatch, tmp_path)
    monkeypatch.setattr(Cuda, "unavailable", lambda self: "")
    monkeypatch.setitem(registry.CHOICES, "generated", ("nvrtc", "torch_cuda"))


def mlp() -> tuple[Graph, dict[str, Any]]:
    x = t.input("x", (T, 32), "float16")
    g, w, v = (t.param(n, s, "float16") for n, s in (("g", (32,)), ("w", (32, 64)), ("v", (64, 32))))
    y = c.silu(c.rms_norm(x, g, eps=1e-6) @ w) @ v + x
    rng = np.random.default_rng(0)
    data = {
        n: (rng.standard_normal(s) / 6).astype(np.float16) for n, s in (("g", 32), ("w", (32, 64)), ("v", (64, 32)))
    }
    return Graph.of(y, name="mlp"), data


def softmax() -> tuple[Graph, dict[str, Any]]:
    return Graph.of(c.softmax(t.input("x", (4, T), "float16") * 0.5, axis=1), name="softmax"), {}


def attention() -> tuple[Graph, dict[str, Any]]:
    q, k, v = (t.input(n, (2, T, 16), "float16") for n in "qkv")
    hidden = tg.gt(tg.iota((T, T), 1), tg.iota((T, T), 0)).reshape((1, T, T))
    scores = tg.where(hidden, tg.full((1, 1, 1), float("-inf"), "float16"), (q @ k.mT) * 0.25)
    return Graph.of(c.softmax(scores, axis=2) @ v, name="attention"), {}


def check(program: Any, graph: Graph, params: dict[str, Any], size: int) -> None:
    there = graph.bind({"T": size})
    rng = np.random.default_rng(size)
    given = {str(x.attr("name")): rng.standard_normal(x.shape).astype(np.float16) for x in there.inputs}
    (want,) = evaluate(there, given, params=params, float64=True)
    got = program(**{name: torch.from_numpy(x) for name, x in given.items()})
    assert tuple(got.shape) == want.shape
    assert np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want) < 3e-3, size


@pytest.mark.parametrize(("build", "choice"), [(mlp, "gpu"), (softmax, "gpu"), (attention, "triton-only")])
@pytest.mark.usefixtures("rehearsal")
def test_a_program_runs_at_every_size(build: Any, choice: str, tmp_path: Path) -> None:
    graph, params = build()
    fused = build is attention  # verified below only: the interpreter takes long
    program = tg.optimize(
        graph, params=params, dims={"T": 33}, backend=choice, measure=False, verify=not fused, budget=20
    )
    program = Program(program.plan, params, device="cpu") if fused else program
    if fused:
        assert program.plan.kernels == 1  # scores stay on the chip
    else:
        assert program.report.sizes == {"T": "1..200 (searched at 33)"}, program.report.warnings
        assert program.report.verification["passed"]
    for size in SIZES:
        check(program, graph, params, size)
    with pytest.raises(ShapeError, match=r"T=201 is outside 1\.\.200"):
        program(*(np.zeros([d if isinstance(d, int) else 201 for d in x.shape], np.float16) for x in graph.inputs))
    program.save(tmp_path / "saved")
    loaded = load_program(tmp_path / "saved", device="cpu")
    check(loaded, graph, params, 7)


@pytest.mark.usefixtures("rehearsal")
def test_products_of_many_rows_have_a_multiple_of_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rows are in the workspace, hold any values, and change nothing."""
    names = {"w": (32, 64), "v": (64, 32)}
    x, w, v = t.input("x", (T, 2, 32), "float16"), *(t.param(n, s, "float16") for n, s in names.items())
    u, h = t.param("u", (64, 64), "float16"), tg.exp(tg.exp(x * 0.25) @ w * 0.25)
    graph = Graph.of(tg.exp((h + h @ u) * 0.25) @ v, name="products")
    params = {n: mlp()[1][n] for n in names} | {"u": np.eye(64, dtype=np.float16)}
    program = tg.optimize(graph, params=params, dims={"T": 33}, backend="torch_cuda", measure=False, budget=20)
    assert "product_rows = (2*T) + -(2*T) % 64 * min(1, (2*T) // 65)" in program.source
    assert re.search(r"torch\.mm\(\w+_rows, \w+, out=\w+_rows\)", program.source)
    assert re.search(r"torch\.addmm\((\w+_rows), \1, \w+, out=\w+_rows\)", program.source)
    asked: list[int] = []
    for size in (1, 64, 65, 96, 97, 200, 66, 3):
        check(program, graph, params, size)
        workspace = program._run.workspace
        take = partial(type(workspace).take, workspace)
        monkeypatch.setattr(workspace, "take", lambda n, take=take: (asked.append(n), take(n))[1])
        workspace.views[torch.float16].fill_(float("nan"))
    assert asked[0] < asked[1] == asked[2] < asked[3]  # 128, 192, 192, 256 rows
    del params["u"]
    narrow = Graph.of(tg.exp(t.input("x", (tg.dim("T", max=64), 32), "float16")) @ w @ v)
    few = tg.optimize(narrow, params=params, dims={"T": 33}, backend="torch_cuda", measure=False)
    assert "product_rows" not in few.source


def column_sums() -> tuple[Graph, dict[str, Any]]:
    return Graph.of(tg.sum(tg.exp(t.input("x", (T, 8), "float16") * 0.25), 0), name="sums"), {}


@pytest.mark.parametrize("build", [softmax, column_sums])
@pytest.mark.usefixtures("rehearsal")
def test_tritons_reductions_along_a_free_axis_mask_by_the_size(build: Any) -> None:
    graph, params = build()
    program = tg.optimize(graph, dims={"T": 33}, backend="triton-only", measure=False, budget=20, effort=0, again=True)
    assert program.report.sizes == {"T": "1..200 (searched at 33)"}, program.report.warnings
    assert {s.template.backend for s in program.plan.steps if not s.is_view} == {"triton"}
    for size in (1, 16, 31, 32, 33, 63, 64, 65, 128, 129, 199, 200):
        check(program, graph, params, size)


@pytest.mark.usefixtures("rehearsal")
def test_a_model_without_forms_for_every_size_runs_at_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SizedKernel, "forms_of", lambda self, call: "no form")
    graph, _ = softmax()
    program = tg.optimize(graph, dims={"T": 33}, backend="triton-only", measure=False, budget=20, effort=0, again=True)
    assert program.report.sizes == {} and any("one size only" in w for w in program.report.warnings)
    check(program, graph, {}, 33)


@pytest.mark.usefixtures("rehearsal")
def test_a_kernel_that_fails_for_every_size_is_left_out_of_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library kernels are next: the program still runs at every size, and the report names the kernel."""
    bind = Program.bind

    def failing(self: Program, params: Any = None) -> Program:
        if "_sized_" in self.source:
            raise RuntimeError("error: expression must have a constant value")
        return bind(self, params)

    def measured(*given: Any, **options: Any) -> Any:
        found = choose(*given, **options)
        return replace(found, prices=[replace(p, source="measured") for p in found.prices])

    monkeypatch.setattr(accept_stage, "choose", measured)  # kernels that were measured at one size
    monkeypatch.setattr(Program, "bind", failing)
    graph, params = attention()
    program = tg.optimize(graph, params=params, dims={"T": 33}, backend="gpu", measure=False, budget=20, again=True)
    assert program.report.sizes == {"T": "1..200 (searched at 33)"}, program.report.warnings
    assert any("was left out" in w and "constant value" in w for w in program.report.warnings)
    check(program, graph, params, 65)


@pytest.mark.usefixtures("rehearsal", "emulated")
def test_cuda_kernels_get_their_grid_and_sizes_at_each_call() -> None:
    graph = Graph.of(c.softmax(t.input("x", (T, 24), "float16") * 0.5, axis=1) * 2.0, name="softmax")
    params: dict[str, Any] = {}
    program = tg.optimize(graph, params=params, dims={"T": 33}, backend="generated", measure=False, budget=20, effort=0)
    assert program.report.sizes == {"T": "1..200 (searched at 33)"}, program.report.warnings
    assert "SizedCudaKernel(" in program.source and "sizes=(T,), grid=" in program.source
    assert re.search(r"grid=\(?[^)]*\bT\b", program.source)
    for size in (1, 33, 64, 130):
        check(program, graph, params, size)
