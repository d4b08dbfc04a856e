"""`tensor-graphs measure` as a command, on a machine that can neither rewrite nor solve: kernels that go wrong in every
way beside right ones; and a plan that was made without a GPU, of what was measured where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="GPU kernels work on Torch's tensors")
pytest.importorskip("triton", reason="generated kernels are Triton's")

import tensor_graphs as tg
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend, template
from tensor_graphs.backends.tuning.jobs import write_jobs
from tensor_graphs.cli import app as cli
from tensor_graphs.costdb.store.shards import find, read
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Template, Vertex, contiguous
from tensor_graphs.models.files.native import save_graph

from . import faulty_kernels
from .faulty_kernels import BACKEND as FAULTY

NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
SOURCES = os.pathsep.join(str(Path(p)) for p in [Path(tg.__file__).parents[1]])

BLOCKED = """import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egglog", "ortools", "duckdb", "highspy"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Blocked())
"""
"""For all Python processes of a worker, those that it starts included."""


def command(*arguments: str, seconds: float = 300, **environment: str) -> dict[str, Any]:
    """The JSON document of a command that goes well, run with these variables."""
    given = {**os.environ, **environment}
    given.pop("TENSOR_GRAPHS_GPU_LOCK", None)
    done = subprocess.run(
        [sys.executable, "-m", "tensor_graphs", *arguments, "--json"], capture_output=True, text=True, timeout=seconds, env=given,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return dict(json.loads(done.stdout))


def worker(folder: Path) -> dict[str, str]:
    """The environment of a worker: the backend of faulty kernels, and neither an e-graph nor a solver."""
    site = folder / "site"
    first = faulty_kernels.installed(site)
    (site / "sitecustomize.py").write_text(BLOCKED)
    return {"PYTHONPATH": first + SOURCES, "TENSOR_GRAPHS_HOME": str(folder / "worker"), "TENSOR_GRAPHS_GPU": ""}


def added(kernel: Template, size: int = 1000) -> Candidate:
    """A kernel that adds two lines."""
    line = Operand(Type((size,), "float32"), contiguous((size,)))
    x, y = kernel.operands
    return Candidate(
        kernel, Vertex(9, (1,)), ((x, Vertex(0, (1,))), (y, Vertex(1, (1,)))), Call({x: line, y: line}, line, {})
    )


def statuses(shards: Path) -> dict[str, Counter[str]]:
    """Of each kernel in shards how many of its calls there are timings and accuracies of, and failures by status."""
    found: dict[str, set[tuple[str, str]]] = {}
    for shard in find(shards):
        for row in read(shard.path).to_pylist():
            found.setdefault(row["name"], set()).add((row["digest"], row["status"] or row["kind"]))
    return {name: Counter(status for _, status in rows) for name, rows in found.items()}


SEEN = {
    "wrong": "wrong", "unfinished": "wrong", "outside": "wrong", "far": "fault", "hanging": "timeout", "broken": "compile-error",
    "refusing": "compile-error", "crashing": "crash",
}  # fmt: skip
"""What each faulty kernel's failure is called, on a GPU."""
REHEARSED = {**SEEN, "far": "crash", "broken": "error", "refusing": "error"}
"""And in Triton's interpreter, where nothing is compiled before."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_faulty_kernel_costs_itself(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right kernels before, between and behind it are measured, its own row says what was the matter, and a second run
    has nothing to do."""
    from tensor_graphs.backends import registry

    monkeypatch.setitem(registry.added(), FAULTY.name, FAULTY)
    monkeypatch.setitem(registry.backends(), FAULTY.name, FAULTY)
    # (without a GPU, a process that a kernel ends itself is a test of tests/backends/tuning/test_measure_gpu.py)
    left_out = () if device == "cuda" else ("faulty.hanging", "faulty.crashing")
    kernels = {t.name: t for t in FAULTY.templates if t.name not in left_out}
    right, library = kernels.pop("faulty.right"), template("torch_cuda", "cuda.add")
    todo: list[Candidate] = [added(right)]
    for i, kernel in enumerate(kernels.values()):
        todo += [added(kernel), added(right, 1001 + i), added(library, 1001 + i)]
    if device == "cuda":
        todo.append(added(library, 1 << 34))  # 192 GiB of operands and result
    jobs, shards, environment = tmp_path / "jobs.jsonl", tmp_path / "shards", worker(tmp_path)
    assert write_jobs(jobs, todo) == len(todo)
    with jobs.open("a") as file:
        file.write("not JSON\n" + json.dumps({"backend": "faulty", "template": "faulty.unheard-of"}) + "\n")
    first = command("measure", str(jobs), "-o", str(shards), "--device", device, **environment)
    assert first["measured"] == len(todo) and len(first["bad"]) == 2
    found, wanted = statuses(shards), SEEN if device == "cuda" else REHEARSED
    assert {n: found.pop(n) for n in kernels} == {n: Counter([wanted[n.partition(".")[2]]]) for n in kernels}
    memory = found["cuda.add"].pop("memory", 0)
    assert memory == (device == "cuda")
    assert found[right.name]["timing"] == found[right.name]["accuracy"] == len(kernels) + 1
    assert found[library.name] == Counter(timing=len(kernels), accuracy=len(kernels))
    capsys.readouterr()
    assert cli.run(["measure", str(jobs), "-o", str(shards), "--device", device, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["measured"], again["known"]) == (0, len(todo)) and not {"failure", "accuracy"} & set(again["rows"])


def head() -> Graph:
    """A product and its softmax."""
    x, w = tg.input("x", (16, 512), HALF), tg.param("w", (512, 256), HALF)
    drawn = np.random.default_rng(0).standard_normal((512, 256)) / 22
    graph = Graph.of(c.softmax(tg.matmul(x, w), axis=1), name="head")
    return replace(graph, params={"w": drawn.astype(numpy_dtype(HALF))})


HALF, TURNS = "bfloat16", 2


@pytest.mark.parametrize("_", [pytest.param(0, marks=on_gpu, id="gpu")])
def test_planned_without_a_gpu_and_measured_on_one(_: int, tmp_path: Path) -> None:
    """Jobs, shards, and again, until a plan lacks nothing (or for some turns). Then the plan is made of them without a
    GPU, its program runs here, and the same search here measures nothing and verifies."""
    from tensor_graphs.costdb.keys.device import gpu_machine

    model, store, environment = tmp_path / "model.safetensors", tmp_path / "store", worker(tmp_path)
    save_graph(graph := head(), model)
    planner = {
        "CUDA_VISIBLE_DEVICES": "", "TENSOR_GRAPHS_GPU": "|".join(gpu_machine()),
        "TENSOR_GRAPHS_HOME": str(tmp_path / "planner"),
    }  # fmt: skip
    given = [str(model), "--backend", "gpu", "--costdb", str(store)]
    counts: list[int] = []
    for turn in range(TURNS):
        jobs, shards = tmp_path / f"jobs{turn}.jsonl", tmp_path / f"shards{turn}"
        counts.append(command("profile", *given, "--jobs", str(jobs), "--paths", "1", **planner)["jobs"])
        if not counts[-1]:
            break
        found = command("measure", str(jobs), "-o", str(shards), "--schedules", "2", "--workers", "4", **environment)
        assert found["measured"] == counts[-1] and not found["bad"] and found["gpu"] == planner["TENSOR_GRAPHS_GPU"]
        command("db", "merge", str(shards), "--costdb", str(store), **planner)
    assert counts[0] > 0
    planned = command("optimize", *given, "--no-measure", "--no-verify", "-o", str(tmp_path / "planned"), **planner)[
        "report"
    ]
    assert "measured" in planned["priced"] and (counts[-1] or len(planned["priced"]) == 1), (counts, planned["priced"])
    x = np.random.default_rng(1).standard_normal((16, 512)).astype(numpy_dtype(HALF))
    want = evaluate(graph, {"x": x}, params=graph.params, float64=True)[0]
    got = load_program(tmp_path / "planned")(x)
    assert np.linalg.norm(got.astype(float) - want) < 2e-2 * np.linalg.norm(want)
    here = command("optimize", *given, "--no-measure", "-o", str(tmp_path / "here"))["report"]
    assert here["measured_now"] == 0 and here["verification"]["passed"] and "measured" in here["priced"]
