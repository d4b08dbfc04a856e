"""What a GPU's user may do wrong, or meet: no GPU, too little memory, a kernel that faults, a program for another GPU.
Each has a named error or is planned anew, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend, template
from tensor_graphs.backends.tuning.job_measuring import measure_jobs
from tensor_graphs.backends.tuning.jobs import job_of
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.cli import app as cli
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import DeviceMemoryError, DeviceUnavailableError
from tensor_graphs.extract.model.kernel import Call, Operand
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.wording import spelled_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="generated kernels are Triton's")

NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
gpu_only = pytest.mark.parametrize("_", [pytest.param(0, marks=on_gpu, id="gpu")])
HUGE = 1 << 18  # rows and columns of float32: 256 GiB


def mlp() -> Graph:
    x, w = tg.input("x", (32, 256), "bfloat16"), tg.param("w", (256, 256), "bfloat16")
    return Graph.of(c.softmax(tg.matmul(c.silu(x), w), axis=1), name="mlp")


def weight() -> dict[str, np.ndarray[Any, Any]]:
    from tensor_graphs.egraph.types.dtypes import numpy_dtype

    return {"w": (np.random.default_rng(0).standard_normal((256, 256)) / 16).astype(numpy_dtype("bfloat16"))}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of Python without a GPU, or with what `environment` says."""
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=240, env=given, check=False
    )


# ---------------------------------------------------------------- no GPU
def test_without_a_gpu_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where one is asked for by name; `auto` takes the CPU. Where there is a GPU, a process does not see it."""
    model = tmp_path / "model.safetensors"
    save_graph(Graph.of(tg.exp(tg.input("x", (8, 8))) + 1.0), model)
    add = template("torch_cuda", "cuda.add")
    line = Operand(Type((8,), "float32"), (1,))
    job = job_of(add, Call(dict.fromkeys(add.operands, line), line, {}))
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(f"{json.dumps({'tensor_graphs_jobs': 1, 'count': 1})}\n{json.dumps(job)}\n")
    commands = [
        ["optimize", str(model), "--backend", "gpu", "-o", str(tmp_path / "out"), "--json"],
        ["measure", str(jobs), "-o", str(tmp_path / "shards"), "--json"],
        ["optimize", str(model), "-o", str(tmp_path / "out"), "--no-measure", "--json"],
    ]
    if NO_GPU:
        codes = str([cli.run(c) for c in commands])
        documents = capsys.readouterr().out.splitlines()
    else:
        code = (
            "import json, sys\nfrom tensor_graphs.cli.app import run\nprint([run(c) for c in json.loads(sys.argv[1])])"
        )
        *documents, codes = run("-c", code, json.dumps(commands)).stdout.splitlines()
    assert codes == "[4, 4, 0]", documents
    assert [json.loads(d).get("error", {}).get("code") for d in documents] == [DeviceUnavailableError.code] * 2 + [None]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["device"] == "cpu"


@gpu_only
def test_a_program_for_a_gpu_says_that_there_is_none(_: int, tmp_path: Path) -> None:
    folder = Program(direct_plan(mlp(), [backend("torch_cuda")]), weight()).save(tmp_path / "program")
    script = (
        "import sys, tensor_graphs as tg\nfrom tensor_graphs.errors import DeviceUnavailableError\n"
        "try:\n    tg.load_program(sys.argv[1])\nexcept DeviceUnavailableError as error:\n    print(error)"
    )
    done = run("-c", script, str(folder))
    assert "runs on a GPU (NVIDIA" in done.stdout, done.stderr


# ---------------------------------------------------------------- memory
@gpu_only
def test_what_does_not_fit_is_said_before_anything_is_launched(_: int) -> None:
    x = tg.input("x", (HUGE, HUGE))
    program = Program(direct_plan(Graph.of(tg.exp(x) * 2.0, name="huge"), [backend("torch_cuda")]))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    wanted = program.memory()["cuda"]
    assert wanted >= 2 * 4 * HUGE**2
    for call in (program.bind, lambda: program(torch.empty(1, device="cuda").expand(HUGE, HUGE))):
        with pytest.raises(DeviceMemoryError, match=rf"takes {spelled_bytes(wanted)} on cuda, .* of .* are free"):
            call()
    assert torch.cuda.max_memory_allocated() - before < 1 << 20


@gpu_only
def test_a_model_that_does_not_fit_is_said_with_its_bytes(_: int, tmp_path: Path) -> None:
    x = tg.input("x", (HUGE, HUGE))
    with pytest.raises(DeviceMemoryError, match=f"inputs and results take {spelled_bytes(2 * 4 * HUGE**2)}, "):
        tg.optimize(tg.exp(x) * 2.0 + 1.0, backend="gpu", budget=10, costdb=tmp_path)


@gpu_only
def test_a_job_that_does_not_fit_costs_itself(_: int, tmp_path: Path) -> None:
    add = template("torch_cuda", "cuda.add")
    jobs = []
    for size in (1000, 1 << 34, 1001):
        line = Operand(Type((size,), "float32"), (1,))
        jobs.append(job_of(add, Call(dict.fromkeys(add.operands, line), line, {})))
    found = measure_jobs(jobs, tmp_path)
    assert found.measured == 3 and found.rows["failure"] == 1 and found.rows["accuracy"] == 2


# ---------------------------------------------------------------- faults
FAULT = """
import sys
import numpy as np
sys.path.insert(0, {folder!r})
from faulty_kernels import BACKEND
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.tuning.single_kernel import kernel_plan
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import DeviceFaultError, TensorGraphsError
from tensor_graphs.extract.model.kernel import Call, Operand
from tensor_graphs.wording import spelled_bytes
import tensor_graphs.backends.registry as registry
registry.register(BACKEND)
far = next(k for k in BACKEND.templates if k.name == "faulty.far")
line = Operand(Type((1000,), "float32"), (1,))
ones = np.ones(1000, np.float32)
program = Program(kernel_plan(far, Call(dict(x=line, y=line), line, dict())), dict(x=ones, y=ones))
for turn in range(2):
    try:
        print(program())
    except DeviceFaultError as error:
        print("named:", error)
import tensor_graphs as tg
try:
    tg.optimize(tg.exp(tg.input("x", (64, 64))) + 1.0, backend="gpu", budget=8)
except TensorGraphsError as error:
    print("named:", error.code, error)
print("alive")
"""


@gpu_only
def test_a_kernel_that_faults_is_named_and_the_process_lives(_: int) -> None:
    """It cannot use the GPU any more, and says so; another one can."""
    done = run(
        "-c",
        FAULT.format(folder=str(Path(__file__).parent)),
        CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("named:", "alive"))]
    assert done.returncode == 0 and lines[-1] == "alive", f"{done.stdout}\n{done.stderr}"
    assert [line.partition(":")[0] for line in lines[:-1]] == ["named"] * 3, done.stdout
    assert torch.ones(4, device="cuda").sum().item() == 4


# ---------------------------------------------------------------- another GPU
@gpu_only
def test_a_program_for_another_gpu_is_refused_and_may_be_run_anyway(_: int, tmp_path: Path) -> None:
    own = Program(direct_plan(mlp(), [backend("torch_cuda")]), weight())
    folder = own.save(tmp_path / "program")
    manifest = json.loads((folder / "manifest.json").read_text())
    here = manifest["hardware"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "hardware": "NVIDIA L4 sm_89"}))
    with pytest.raises(DeviceUnavailableError, match=f"NVIDIA L4 sm_89, here is {here}"):
        load_program(folder)
    x = torch.randn(32, 256).bfloat16()
    assert torch.equal(load_program(folder, device="cuda")(x), own(x))


@gpu_only
def test_a_plan_for_another_gpu_is_made_anew(_: int, tmp_path: Path) -> None:
    """What was planned for a GPU elsewhere is not remembered as this one's, nor are its times."""
    given = {"params": weight(), "backend": "gpu", "costdb": tmp_path, "budget": 10}
    with settings.override(gpu="gpu:NVIDIA L4:sm89:multiprocessors=58|nvidia-550|torch=2.11.0;cuda=13.0;triton=3.6.0"):
        tg.optimize(mlp(), measure=False, **given)
        with pytest.raises(DeviceUnavailableError, match="NVIDIA L4"):
            tg.optimize(mlp(), **given)
    first = tg.optimize(mlp(), **given)
    assert not first.report.from_plan_cache and first.report.measured_now > 0
    assert tg.optimize(mlp(), **given).report.from_plan_cache
