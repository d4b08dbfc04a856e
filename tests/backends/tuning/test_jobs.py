"""Files of kernels to be measured elsewhere, and the worker that measures them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="GPU kernels work on Torch's tensors")
pytest.importorskip("triton", reason="generated kernels are Triton's")

import tensor_graphs as tg
from tensor_graphs.backends.registry import on_gpu, select, template
from tensor_graphs.backends.triton.backend import generated
from tensor_graphs.backends.tuning import jobs
from tensor_graphs.backends.tuning.job_measuring import measure_jobs
from tensor_graphs.cli.app import run
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import DeviceUnavailableError, UsageError
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Template, Vertex, contiguous
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.pipeline.costs.prices import CostPricer


def operand(*shape: int, dtype: str = "float32") -> Operand:
    return Operand(Type(shape, dtype), contiguous(shape))


def candidate(found: Template, output: Operand, **operands: Operand) -> Candidate:
    inputs = tuple((o, Vertex(i, kind.strides)) for i, (o, kind) in enumerate(operands.items()))
    return Candidate(found, Vertex(9, output.strides), inputs, Call(operands, output, {}))


def fused() -> Candidate:
    """exp(x0) * x1, a statistic in float32 beside values in float16."""
    x, s = tg.input("x0", (8, 32), "float32"), tg.input("x1", (8, 1), "float32")
    return candidate(
        generated(tg.exp(x) * s), operand(8, 32, dtype="float16"),
        x0=operand(8, 32, dtype="float16"), x1=operand(8, 1),
    )  # fmt: skip


def library() -> Candidate:
    return candidate(template("torch_cuda", "cuda.add"), operand(8, 4), x=operand(8, 4), y=operand(8, 4))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_files_keep_kernels_and_calls(suffix: str, tmp_path: Path) -> None:
    path, found = tmp_path / f"jobs.{suffix}", [fused(), library(), fused()]
    assert jobs.write_jobs(path, found) == 2
    for job, c in zip(jobs.read_jobs(path), found, strict=False):
        assert not isinstance(job, str)
        back, (call,) = jobs.read_job(job)
        assert back.identity == c.template.identity and back.name == c.template.name
        assert jobs.key_of(back, call).digest == jobs.key_of(c.template, c.call).digest


def test_the_worker_measures_what_is_not_known_and_prices_follow(tmp_path: Path) -> None:
    broken = {**jobs.job_of(library().template, library().call), "identity": "of another version"}
    todo = [jobs.job_of(c.template, c.call) for c in (fused(), library())]
    outcome = measure_jobs([*todo, broken, "not JSON"], tmp_path / "shards", device="cpu", schedules=2)
    assert outcome.measured == 2 and outcome.known == 0 and set(outcome.bad) == {2, 3}
    assert outcome.rows["accuracy"] == 3 and "failure" not in outcome.rows
    again = measure_jobs(todo, tmp_path / "shards", device="cpu", schedules=2)
    assert (again.measured, again.known) == (0, 2) and not again.rows
    store = Store(tmp_path / "store")
    assert not store.merge(tmp_path / "shards").bad_shards
    assert [p.source for p in CostPricer(store).price([fused(), library()])] == ["measured", "measured"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceUnavailableError):
        measure_jobs([jobs.job_of(library().template, library().call)], tmp_path, device="cuda")


BAD = {
    "no such kernel": {"template": "cuda.nothing"},
    "no such backend": {"backend": "nothing"},
    "another version": {"identity": "x"},
    "no call": {"call": None},
    "an absurd size": {"call": {"operands": {"x": [[1 << 60], "float32", [1]]}, "output": [[1], "float32", [1]],
                                "attrs": {}, "schedule": {}}},
    "a schedule of texts": {"schedules": [{"m": "__import__('os')"}]},
    "an unknown dtype": {"call": {"operands": {"x": [[1], "float3", [1]], "y": [[1], "float32", [1]]},
                                  "output": [[1], "float32", [1]], "attrs": {}, "schedule": {}}},
    "a generator that is none": {"leaves": {"x": "float32"}, "backend": "numpy"},
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_bad_jobs_are_named(fault: str) -> None:
    job = {**jobs.job_of(library().template, library().call), **BAD[fault]}
    with pytest.raises(UsageError):
        jobs.read_job(job)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content in {"a.jsonl": b"", "b.jsonl": b"{}\n", "c.jsonl": b"\xff\xfe", "d.parquet": b"PAR1"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError):
            jobs.read_jobs(tmp_path / name)
    equal = pa.DictionaryArray.from_arrays(pa.array([0] * 300_000, pa.int32()), ["x" * 1000])
    pq.write_table(pa.table({"job": equal}), tmp_path / "e.parquet", store_schema=False)  # 1 KB, 300 MB when decoded
    with pytest.raises(UsageError, match="more than"):
        jobs.read_jobs(tmp_path / "e.parquet")


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egglog", "ortools", "duckdb", "highspy"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Blocked())
from tensor_graphs.cli.app import main
main(sys.argv[1:])
"""


def test_the_worker_needs_no_egraph_no_solver_no_database(tmp_path: Path) -> None:
    jobs.write_jobs(tmp_path / "jobs.jsonl", [library()])
    command = ["measure", str(tmp_path / "jobs.jsonl"), "-o", str(tmp_path / "out"), "--device", "cpu", "--json"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["measured"] == 1 and document["rows"] == {"timing": 16, "accuracy": 1}


def test_jobs_are_written_for_a_gpu_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning here, measuring there: what the best plans lack is written, measured, merged, and then known."""
    from tensor_graphs.costdb.keys.device import gpu_machine

    monkeypatch.setenv("TENSOR_GRAPHS_GPU", "|".join(gpu_machine()))  # as if this machine, interpreting, were another
    x = tg.input("x", (8, 16))
    model = tmp_path / "model.safetensors"
    save_graph(Graph.of(tg.exp(x) * 2.0 + 1.0), model)
    lacking = ["profile", str(model), "--backend", "triton", "--costdb", str(tmp_path / "store")]
    assert run([*lacking, "--jobs", str(tmp_path / "jobs.jsonl")]) == 0
    found = [job for job in jobs.read_jobs(tmp_path / "jobs.jsonl") if not isinstance(job, str)]
    assert any(job["backend"] == "triton" for job in found)
    outcome = measure_jobs(found, tmp_path / "shards", device="cpu", schedules=1)
    assert outcome.measured == len(found) and not outcome.bad
    Store(tmp_path / "store").merge(tmp_path / "shards")
    assert run([*lacking, "--jobs", str(tmp_path / "more.jsonl")]) == 0
    more = [job for job in jobs.read_jobs(tmp_path / "more.jsonl") if not isinstance(job, str)]
    assert not {json.dumps(job) for job in more} & {json.dumps(job) for job in found}


def test_a_program_is_planned_for_a_gpu_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is known of that GPU, neither measured nor verified here; it says which GPU it is for. What would need
    that GPU is refused by name, and kernels of one here are not measured as its own."""
    from tensor_graphs.backends.program.saved_program import load_program
    from tensor_graphs.backends.tuning import measure_gpu

    if not select("auto") or on_gpu(select("auto")):
        pytest.skip("there is a GPU here")
    monkeypatch.setenv(
        "TENSOR_GRAPHS_GPU", "gpu:NVIDIA H200:sm90:multiprocessors=132|nvidia-580|torch=2;cuda=13;triton=3"
    )
    given = {"backend": "gpu", "costdb": tmp_path / "store", "budget": 20.0}
    y = tg.exp(tg.input("x", (8, 16))) * 2.0 + 1.0
    program = tg.optimize(y, **given, measure=False, verify=False)
    assert program.manifest.hardware == "NVIDIA H200 sm_90" and program.report.verification is None
    folder = program.save(tmp_path / "program")
    assert load_program(folder, device="cpu").manifest.device == "cuda"
    with pytest.raises(DeviceUnavailableError, match="none can be used here"):
        load_program(folder)
    for more in ({"measure": False}, {"verify": False}):
        with pytest.raises(DeviceUnavailableError, match=r"NVIDIA H200.*not measured or verified"):
            tg.optimize(y, **given, **more)
    with pytest.raises(DeviceUnavailableError, match=r"NVIDIA H200.*cannot be measured on"):
        measure_gpu.GpuMeasurer(Store(tmp_path / "store"))
