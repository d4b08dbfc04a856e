"""Programs of every size on a GPU: right at all of them, nothing compiled for a new one, saved with their ranges."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.errors import ShapeError

torch = pytest.importorskip("torch")
NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
gpu_only = pytest.mark.parametrize("_", [pytest.param(0, marks=on_gpu, id="gpu")])

T = tg.dim("T", max=1500)
SIZES = (1, 2, 11, 15, 16, 17, 33, 63, 64, 65, 100, 128, 129, 257, 512, 1024, 1499, 1500)
WIDTH, BUDGET = 256, 6.0


def params(*shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"w{i}": (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float16) for i, s in enumerate(shapes)}


def weight(index: int, *shape: int) -> Tensor:
    return t.param(f"w{index}", shape, "float16")


def mlp() -> tuple[Graph, dict[str, Any]]:
    x = t.input("x", (T, WIDTH), "float16")
    y = c.rms_norm(x, weight(0, WIDTH), eps=1e-6)
    y = (c.silu(y @ weight(1, WIDTH, 512)) * (y @ weight(2, WIDTH, 512))) @ weight(3, 512, WIDTH) + x
    return Graph.of(y, name="mlp"), params((WIDTH,), (WIDTH, 512), (WIDTH, 512), (512, WIDTH))


def attention() -> tuple[Graph, dict[str, Any]]:
    x = t.input("x", (T, WIDTH), "float16")
    h = x @ weight(0, WIDTH, 3 * WIDTH)
    q, k, v = (h[:, i * WIDTH : (i + 1) * WIDTH].reshape((T, 4, 64)).permute((1, 0, 2)) for i in range(3))
    hidden = tg.gt(tg.iota((T, T), 1), tg.iota((T, T), 0)).reshape((1, T, T))
    scores = tg.where(hidden, tg.full((1, 1, 1), float("-inf"), "float16"), (q @ k.mT) * 0.125)
    return Graph.of((c.softmax(scores, axis=2) @ v).permute((1, 0, 2)).reshape((T, WIDTH)) + x, name="attention"), params((WIDTH, 3 * WIDTH))  # fmt: skip


def softmax() -> tuple[Graph, dict[str, Any]]:
    x = t.input("x", (64, T), "float16")
    return Graph.of(c.softmax(x * 0.5, axis=1), name="softmax"), {}


CASES = {"mlp": mlp, "attention": attention, "softmax": softmax}


@cache
def searched(case: str, choice: str = "gpu") -> Any:
    """The program of a case, the same one in all tests. With generated kernels only, none is measured: the tests are
    about results, and processes that measure take seconds to start."""
    graph, weights = CASES[case]()
    program = tg.optimize(
        graph, params=weights, dims={"T": 128}, backend=choice, budget=BUDGET, measure=choice == "gpu"
    )
    assert program.report.sizes == {"T": "1..1500 (searched at 128)"}, program.report.warnings
    return program


@cache
def reference(case: str, size: int) -> tuple[Any, Any]:
    """An input of a case, and its result in float64."""
    graph, weights = CASES[case]()
    there = graph.bind({"T": size})
    x = np.random.default_rng(size).standard_normal(there.inputs[0].shape).astype(np.float16)
    return x, evaluate(there, {"x": x}, params=weights, float64=True)[0]


def check(program: Any, case: str, size: int) -> None:
    x, want = reference(case, size)
    for given in (torch.from_numpy(x).cuda(), torch.from_numpy(x).cuda().t().contiguous().t()):
        got = program(given)
        assert got.is_cuda and tuple(got.shape) == want.shape
        error = np.linalg.norm(got.cpu().double().numpy() - want) / np.linalg.norm(want)
        assert error < 3e-3, (size, error, program.report)


@gpu_only
@pytest.mark.parametrize("choice", ["gpu", "cuda", "triton"])
@pytest.mark.parametrize("case", ["mlp", "attention", "softmax"])
def test_it_is_right_at_every_size(case: str, choice: str, tmp_path: Path, _: int) -> None:
    program = searched(case, choice)
    for size in SIZES:
        check(program, case, size)
    for _again in range(4):  # recorded as graphs by now
        check(program, case, 129)
    with pytest.raises(ShapeError, match=r"T=1501 is outside 1\.\.1500"):
        program(torch.zeros((64, 1501) if case == "softmax" else (1501, WIDTH), dtype=torch.float16, device="cuda"))
    program.save(tmp_path / "saved")
    loaded = load_program(tmp_path / "saved")
    for size in (1, 77, 1500):
        check(loaded, case, size)


@gpu_only
@pytest.mark.parametrize("case", ["mlp", "attention", "softmax"])
def test_a_new_size_waits_for_no_compiler(case: str, _: int) -> None:
    """`bind` compiles all forms of all kernels; the first call at any size compiles nothing."""
    from triton import knobs

    program, (graph, _) = searched(case), CASES[case]()
    program.unbind()
    program.bind()
    compiled: list[Any] = []
    knobs.runtime.jit_post_compile_hook = lambda *given, **options: compiled.append(options.get("repr", given))
    seconds = {}
    try:
        for n in (*SIZES, *range(300, 330)):
            x = torch.ones(
                [d if isinstance(d, int) else n for d in graph.inputs[0].shape], dtype=torch.float16, device="cuda"
            )
            torch.cuda.synchronize()
            begun = time.perf_counter()
            program(x)
            torch.cuda.synchronize()
            seconds[n] = time.perf_counter() - begun
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert not compiled
    slowest = sorted(((seconds[n], n) for n in range(300, 330)), reverse=True)[:4]
    assert slowest[0][0] < 0.02, (slowest, [s.template.name for s in program.plan.steps])  # a compiler takes longer


@gpu_only
def test_calls_on_streams_and_in_graphs_of_the_caller(_: int) -> None:
    program = searched("mlp")
    x = torch.randn((70, WIDTH), dtype=torch.float16, device="cuda")
    want = program(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        other = program(x)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(want, other)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        inside = program(x)
    for n in (71, 900, 1500, 71, 71):  # the workspace grows; the graph keeps its own
        program(torch.randn((n, WIDTH), dtype=torch.float16, device="cuda"))
    recorded.replay()
    torch.cuda.synchronize()
    assert torch.equal(want, inside)


# ---------------------------------------------------------------- plans by size, saved kernels
class Gated(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = (torch.nn.Linear(1024, 2816, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2816, 1024, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def us(call: Any, x: Any) -> float:
    """Least µs of a call in a row of calls."""
    taken = []
    for _ in range(12):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(20):
            call(x)
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun) / 20)
    return 1e6 * min(taken)


@gpu_only
def test_no_bucket_of_sizes_is_slower_than_eager(_: int) -> None:
    torch.manual_seed(0)
    module = Gated().half().cuda().eval().requires_grad_(False)
    shapes = ({0: torch.export.Dim("T", min=1, max=4096)},)
    given = torch.randn((128, 1024), dtype=torch.float16, device="cuda")
    program = tg.optimize(module, (given,), dynamic_shapes=shapes, dims={"T": 128}, backend="gpu", budget=24)
    assert program.report.buckets, program.report
    for n in (1, 16, 17, 128, 129, 1024, 1025, 4096):
        x = torch.randn((n, 1024), dtype=torch.float16, device="cuda")
        want = module(x)
        assert (program(x) - want).norm() / want.norm() < 3e-3
        assert us(program, x) < 1.15 * us(module, x), (n, program.report)


SECOND = """
import sys, warnings
warnings.simplefilter("error", RuntimeWarning)
for name in sys.argv[3:]:
    sys.modules[name] = None
import cuda.core
cuda.core.Program = None  # which calls NVRTC; the package imports it in any case
import numpy as np, torch
from tensor_graphs.backends.program.saved_program import load_program
program = load_program(sys.argv[1])
for x, want in zip(*[iter(np.load(sys.argv[2]).values())] * 2):
    got = program(torch.from_numpy(x).cuda())
    assert torch.equal(got.cpu(), torch.from_numpy(want)), len(x)
print("equal")
"""


@gpu_only
@pytest.mark.parametrize(("choice", "blocked"), [("cuda", ["triton"]), ("triton", ["triton"])])
def test_a_second_process_needs_no_compiler_at_any_size(
    choice: str, blocked: list[str], tmp_path: Path, _: int
) -> None:
    program = searched("mlp", choice)
    program.bind()
    values = []
    for n in (1, 33, 64, 129, 1500):
        x = torch.randn((n, WIDTH), generator=torch.Generator().manual_seed(n)).half()
        values += [x.numpy(), program(x.cuda()).cpu().numpy()]
    np.savez(tmp_path / "values.npz", *values)
    folder = program.save(tmp_path / "saved")
    assert (folder / "binaries" / "launches.json").is_file()
    given = [str(folder), str(tmp_path / "values.npz"), *blocked]
    done = subprocess.run([sys.executable, "-c", SECOND, *given], capture_output=True, text=True, timeout=120)
    assert not done.returncode and "equal" in done.stdout, done.stderr[-3000:]
