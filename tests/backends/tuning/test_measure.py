"""The measuring process: times, wrong answers, crashes, hangs."""

from __future__ import annotations

import os
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.registry import backend, template
from tensor_graphs.backends.tuning import (
    compiling_queue,
    cpu_worker,
    kernel_strips,
    measured_operands,
    result_check,
    worker_process,
)
from tensor_graphs.backends.tuning.compiling_queue import CompilingQueue
from tensor_graphs.backends.tuning.cpu_timing import BUSY, busy, timed
from tensor_graphs.backends.tuning.cpu_worker import PRELOAD, _checked, _reference, answer, decode, encode
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.measured_operands import drawn, operand_values, shown
from tensor_graphs.backends.tuning.measurement import Failure, SinkBase, Timing
from tensor_graphs.backends.tuning.result_check import Wrong, accuracy
from tensor_graphs.backends.tuning.worker_process import CpuWorkerProcess
from tensor_graphs.backends.verification.input_distributions import InputDistribution
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Vertex, contiguous
from tensor_graphs.extract.model.meaning import output_terms
from tensor_graphs.models.common import quantization

from ..sampled_calls import sample


@pytest.fixture(autouse=True)
def forked_workers() -> None:
    """In place of the fixture of tests/conftest.py: how measuring processes start, fail and end is tested here."""


RNG = np.random.default_rng(0)
KIND = Operand(Type((4, 4), "float32"), (4, 1))
ADD = Call({"x": KIND, "y": KIND}, KIND, {})


class Rows(SinkBase, list):
    def add(self, rows: object) -> None:
        self.extend(rows)


def candidate(name: str, call: Call) -> Candidate:
    found = template("numpy", name)
    return Candidate(found, Vertex(9, (4, 1)), tuple((o, Vertex(i, (4, 1))) for i, o in enumerate(call.operands)), call)


def test_a_job_may_be_timed_by_cpu_time_without_a_check() -> None:
    job = {**encode(template("numpy", "np.add"), ADD), "seconds": 0.001}
    reply = answer({**job, "check": False, "clock": BUSY})
    assert reply["ok"] and reply["accuracy"] == {} and all(us >= 0 for us in reply["samples"])
    start, elapsed = time.perf_counter(), busy()
    time.sleep(0.05)
    assert elapsed() < 1e9 * (time.perf_counter() - start) / 2, "sleep takes no CPU time"


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CpuWorkerProcess:
    """A worker that crashes on np.mul, hangs on np.sub, prints on np.div, and has a wrong np.maximum."""
    (tmp_path / "faulty_worker.py").write_text(
        textwrap.dedent("""
        import os, sys, time
        from dataclasses import replace
        from tensor_graphs.backends import registry; from tensor_graphs.backends.tuning import cpu_worker as measure_worker
        found = registry._by_name("numpy")
        found["np.maximum"] = replace(found["np.maximum"], code="np.minimum({x}, {y}, out={out})")
        def handle(job):
            if job["template"] == "np.mul": os._exit(7)
            if job["template"] == "np.sub": time.sleep(600)
            if job["template"] == "np.div": print("noise"); os.write(1, b"more noise")
            if job["template"] == "np.maximum": job = {**job, "identity": found["np.maximum"].identity}
            return measure_worker.answer(job)
        measure_worker.main(handle)
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = CpuWorkerProcess("faulty_worker", timeout=120.0)
    yield worker
    worker.close()


def test_rows_of_a_measurement() -> None:
    rows = Rows()
    with CpuMeasurer(rows, seconds=0.002) as measurer:
        measurer.measure([candidate("np.add", ADD), candidate("np.add", ADD), candidate("np.sub", ADD)])
        pid = measurer.worker._process.pid
    assert [r.kind for r in rows] == ["timing", "accuracy"] * 2
    assert rows[0].key == key_of(template("numpy", "np.add"), ADD) != rows[2].key
    assert min(rows[0].samples) > 0 and len(rows[0].samples) >= 3
    assert rows[0].work.flops == 16 and rows[0].work.bytes == 3 * 64
    assert rows[1].rel_fro < 1e-6
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_can_start_before_there_is_anything_to_measure() -> None:
    with CpuMeasurer(rows := Rows(), seconds=0.002, preload="torch") as measurer:
        assert measurer.worker.environment == {PRELOAD: "torch"} and not measurer.worker.alive
        measurer.start()
        process = measurer.worker._process
        measurer.measure([candidate("np.mul", ADD)])
        assert measurer.worker._process is process and [r.kind for r in rows] == ["timing", "accuracy"]


def test_a_worker_measures_a_kernel_before_its_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports and first calls of a measurement take place while the model is loaded."""
    replies, plain = list[dict[str, Any]](), cpu_worker.answer
    monkeypatch.setattr(cpu_worker, "answer", lambda job: replies.append(plain(job)))
    cpu_worker.preload()
    assert [r["ok"] for r in replies] == [True]


def test_kernels_are_compiled_before_the_first_measurement_without_waiting(faulty: CpuWorkerProcess) -> None:
    """By a running worker; replies to such jobs are not taken for those of later ones, and a crash costs one job."""
    measurer = CpuMeasurer(rows := Rows(), seconds=0.002, worker=faulty)
    assert measurer.compile([(template("numpy", "np.mul"), ADD)]) and not faulty.alive
    faulty.start()
    process = faulty._process
    measurer.compile([(template("numpy", "np.add"), ADD), (template("numpy", "np.maximum"), ADD)])
    measurer.measure([candidate("np.add", ADD)])
    assert [r.kind for r in rows] == ["timing", "accuracy"] and faulty._process is process
    measurer.compile([(template("numpy", "np.mul"), ADD)])
    assert isinstance(measurer.time(template("numpy", "np.add"), ADD), Failure)
    assert isinstance(measurer.time(template("numpy", "np.add"), ADD), Timing)
    assert answer({**encode(template("numpy", "np.add"), ADD), "compile": True})["samples"] == []


def test_a_compiler_ends_with_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the compiler of the program, or for the next call, it would take a core."""
    (tmp_path / "compiling_worker.py").write_text(
        "import subprocess\nfrom tensor_graphs.backends.tuning import cpu_worker\n"
        "start = lambda job: {'pid': subprocess.Popen(['sleep', '600']).pid}\ncpu_worker.main(start, lambda: None)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = CpuWorkerProcess("compiling_worker", timeout=120.0)
    state = Path("/proc", str(worker.ask({})["pid"]), "stat")
    assert state.exists()
    worker.close()
    until = time.monotonic() + 60.0
    with suppress(FileNotFoundError, ProcessLookupError):
        while state.read_text().split()[2] != "Z":  # a zombie, if the parent of orphans does not wait for them
            assert time.monotonic() < until
            time.sleep(0.01)


def test_c_kernels_wait_for_the_compiler_and_others_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    add, waited = template("numpy", "np.add"), list[float | None]()
    monkeypatch.setattr(cpu_worker._compiling, "wait", lambda seconds=None: waited.append(seconds))
    assert answer({**encode(add, ADD), "seconds": 1e-4})["ok"]
    monkeypatch.setattr(cpu_worker, "decode", lambda job: (SimpleNamespace(backend="c"), ADD))
    answer({})
    assert waited == [cpu_worker.COMPILING_S, None]


def test_kernels_compile_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    going, begun, queue = threading.Event(), list[str](), CompilingQueue()

    def executed(source: str, name: str) -> None:
        begun.append(name)
        assert going.wait(60.0)
        raise ValueError("reported by the job that measures the kernel")

    monkeypatch.setattr(compiling_queue, "executed", executed)
    assert queue.wait(0.0)
    for name in ("np.add", "np.mul"):
        queue.add(template("numpy", name), ADD)
    assert not queue.wait(0.01) and begun in ([], ["np.add"])
    going.set()
    assert queue.wait() and begun == ["np.add", "np.mul"]


def test_one_bad_kernel_costs_one_candidate(faulty: CpuWorkerProcess) -> None:
    measurer = CpuMeasurer(Rows(), seconds=0.002, worker=faulty)
    assert isinstance(measurer.time(template("numpy", "np.add"), ADD), Timing)
    crash = measurer.time(template("numpy", "np.mul"), ADD)
    assert isinstance(crash, Failure) and crash.status == "crash" and "7" in crash.message
    wrong = measurer.time(template("numpy", "np.maximum"), ADD)
    assert isinstance(wrong, Failure) and wrong.status == "wrong"
    assert isinstance(measurer.time(template("numpy", "np.div"), ADD), Timing)
    faulty.timeout = 1.0
    hang = measurer.time(template("numpy", "np.sub"), ADD)
    assert isinstance(hang, Failure) and hang.status == "timeout"
    faulty.timeout = 120.0
    assert isinstance(measurer.time(template("numpy", "np.add"), ADD), Timing)


class Over:
    """Bounds of a search whose time is up from the second question on."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, candidate: Any) -> float:
        return 0.0

    def ended(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_a_kernel_that_nobody_waits_for_is_given_up_and_leaves_no_row(
    faulty: CpuWorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows()
    for most, grace in ((0.05, 1e3), (1e3, 0.05)):  # in general, and of a search with a small budget
        monkeypatch.setattr(worker_process, "GRACE_S", most)
        measurer = CpuMeasurer(rows, seconds=0.002, worker=faulty, grace=grace)
        measurer.measure([candidate("np.sub", ADD)], worth=Over())  # it hangs; the worker's own timeout is 120 s
        assert not rows and not faulty.alive
    measurer.measure([candidate("np.add", ADD)])
    assert [r.kind for r in rows] == ["timing", "accuracy"]


def test_failures_become_rows(faulty: CpuWorkerProcess) -> None:
    rows = Rows()
    CpuMeasurer(rows, seconds=0.002, worker=faulty).measure([candidate("np.mul", ADD)])
    assert [(r.kind, r.status) for r in rows] == [("failure", "crash")]


def test_jobs_survive_the_pipe() -> None:
    for name in ("numpy", "torch"):
        for found in backend(name).templates:
            call = sample(found, 1, "float32", attempts=300)
            if call is not None and found.family != "view":
                back, decoded = decode(encode(found, call))
                assert back is found and dict(decoded.attrs) == dict(call.attrs)
                assert dict(decoded.operands) == dict(call.operands) and decoded.output == call.output
                assert key_of(found, call).digest == key_of(back, decoded).digest


@pytest.mark.parametrize("rows", [3, 50])
def test_kernels_of_one_meaning_are_compared_on_the_same_indices(rows: int) -> None:
    """An axis is an attribute of one of them and part of the other's pattern."""
    pytest.importorskip("torch")
    table, index = Operand(Type((rows, 8), "float32"), (8, 1)), Operand(Type((6,), "int64"), (1,))
    out = Operand(Type((6, 8), "float32"), (8, 1))
    for found, attrs in ((template("numpy", "np.gather"), {"axis": 0}), (template("torch", "torch.embedding"), {})):
        call = Call({"x": table, "i": index}, out, attrs)
        reply = answer({**encode(found, call), "seconds": 0.001})
        assert reply["ok"], reply
        (node,) = output_terms(found, call)
        assert {n: role.bound for n, (_, role, *_) in drawn([node], call).items()} == {"x": 0, "i": rows}


def test_one_reference_for_each_dtype_that_operands_are_stored_in() -> None:
    """The meaning is in the wider dtype: the logarithm of a number near 1 tells apart which of them was rounded."""
    out = Operand(Type((512,), "float32"), (1,))
    narrow, wide = (Operand(Type((512,), d), (1,)) for d in ("float16", "float32"))
    found = template("numpy", "np.sub")
    for x, y in ((wide, wide), (narrow, wide), (wide, narrow)):
        call = Call({"x": x, "y": y}, out, {})
        roots = output_terms(found, call)
        arrays = {n: operand_values(n, *how) for n, how in drawn(roots, call).items()}
        (want,) = _reference(roots, drawn(roots, call), arrays, 0.0)[1]
        np.testing.assert_array_equal(want, arrays["x"].astype(np.float64) - arrays["y"])


def test_one_reference_for_operands_that_are_repeated_and_one_for_others() -> None:
    out, lines = Operand(Type((6, 4), "float32"), (4, 1)), Operand(Type((10, 4), "float32"), (4, 1))
    for strides in ((1, 0), (4, 1)):
        call = Call({"x": lines, "i": Operand(Type((6, 4), "int64"), strides)}, out, {"axis": 0})
        reply = answer({**encode(template("numpy", "np.gather_elements"), call), "seconds": 0.001})
        assert reply["ok"], reply


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_kernels_of_one_number_are_measured(dtype: str) -> None:
    number = Operand(Type((), dtype), ())
    for found in [
        template("numpy", "np.maximum"),
        *([] if backend("torch").unavailable() else [template("torch", "torch.maximum")]),
    ]:
        reply = answer({**encode(found, Call({"x": number, "y": number}, number, {})), "seconds": 0.001})
        assert reply["ok"], reply


def test_an_answer_in_another_layout_is_wrong() -> None:
    turned = Call(ADD.operands, Operand(KIND.type, (1, 4)), {})
    job = {**encode(template("numpy", "np.add"), ADD), "seconds": 0.001}
    assert answer(job)["ok"]
    bad = answer({**job, "identity": "other"})
    assert not bad["ok"] and bad["status"] == "error"
    assert contiguous((4, 4)) != turned.output.strides


def test_error_norms() -> None:
    want = np.array([1.0, 2.0, np.nan, np.inf])
    found = accuracy(np.array([1.0, 2.5, np.nan, np.inf], np.float32), want)
    assert found["max_abs"] == 0.5 and found["max_rel"] == 0.25
    assert np.isclose(found["rel_fro"], 0.5 / np.sqrt(5))
    with pytest.raises(Wrong):
        accuracy(np.array([1.0, 2.0, 3.0, np.inf]), want)


def test_error_norms_are_those_of_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of outputs in any layout; what differs in the last piece alone is seen."""
    want = RNG.standard_normal((6, 50, 7))
    got = np.asfortranarray(want + 1e-3 * RNG.standard_normal(want.shape)).astype(np.float32, order="K")
    whole = accuracy(got, want)
    monkeypatch.setattr(result_check, "PIECE", 100)
    assert accuracy(got, want) == pytest.approx(whole, rel=1e-12)
    error = np.abs(got.astype(np.float64) - want)
    assert whole["rel_fro"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(want), rel=1e-12)
    assert whole["max_abs"] == error.max() and whole["max_rel"] == (error / np.abs(want)).max()
    got[-1, -1, -1] = np.inf
    assert accuracy(got, want)["rel_fro"] == np.inf
    got[-1, -1, -1] = np.nan
    with pytest.raises(Wrong):
        accuracy(got, want)


def test_samples_are_taken_in_turn() -> None:
    calls = []
    used, every = timed([lambda: calls.append(0), lambda: calls.append(1)], 0.001)
    assert 3 <= len(used) <= len(every) and abs(calls.count(0) - calls.count(1)) <= 2


def test_a_packed_weight_beside_operands_in_other_storage_dtypes() -> None:
    """Terms whose floats are unified to float32 are checked against operands stored in bfloat16."""
    x, codes, scale = t.input("x", (1, 256)), t.input("q", (16, 128), "uint8"), t.input("s", (16, 2), "bfloat16")
    weight = t.cast(quantization.dequantized("int4", codes, scale), "float32")
    found = backend("c").template([t.matmul(x, t.transpose(weight))])
    kinds = {"x": ((1, 256), "bfloat16"), "q": ((16, 128), "uint8"), "s": ((16, 2), "bfloat16")}
    operands = {n: Operand(Type(shape, dtype), contiguous(shape)) for n, (shape, dtype) in kinds.items()}
    call = Call(operands, Operand(Type((1, 16), "bfloat16"), (16, 1)), {})
    reply = answer({**encode(found, call), "seconds": 0.01})
    assert reply["ok"], reply


def test_a_kernel_with_a_large_operand_is_checked_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in the first or last strip are found; a result that cannot be divided is compared as a whole."""
    monkeypatch.setattr(kernel_strips, "LARGE", 1 << 12)
    monkeypatch.setattr(kernel_strips, "READ", 1 << 12)
    rng = np.random.default_rng(0)
    operands = {"x": rng.normal(size=(1, 64)), "w": rng.normal(size=(64, 640))}
    x, w = (t.param(n, v.shape, "float64") for n, v in operands.items())
    strips = kernel_strips.strips_of([x @ w], operands)
    assert strips is not None and 2 <= len(strips) <= 8 and sum(s.stop - s.start for s in strips) <= 64
    assert (min(s.start for s in strips), max(s.stop for s in strips)) == (0, 640)
    for s in strips:
        assert np.allclose(s.reference()[0], (operands["x"] @ operands["w"])[:, s.start : s.stop], rtol=1e-12)
    stored = {"x": operands["x"].astype(np.float32), "w": operands["w"].astype(np.float32)}
    narrow = kernel_strips.strips_of([x @ w], stored)
    assert narrow is not None and all(s.params["w"] is stored["w"] and "w" not in s.whole for s in narrow)
    want = stored["x"].astype(np.float64) @ stored["w"].astype(np.float64)
    for s in narrow:
        assert np.allclose(s.reference()[0], want[:, s.start : s.stop], rtol=1e-12), "strips are converted one by one"
    assert kernel_strips.strips_of([t.sum(x @ w, (1,))], operands) is None
    assert kernel_strips.strips_of([x + 1.0], {"x": operands["x"]}) is None

    column = Operand(Type((640, 64), "float32"), (64, 1))
    call = Call({"x": column, "y": column}, column, {})
    roots, given = output_terms(template("numpy", "np.add"), call), rng.normal(size=(2, 640, 64)).astype(np.float32)
    check = lambda y: _checked(roots, {}, {"x": given[0], "y": given[1]}, call, [y], 1.0)
    right = given[0] + given[1]
    assert check(right)[0] == "float64" and check(right)[1]["rel_fro"] < 1e-6
    for row in (0, 639):
        wrong = right.copy()
        wrong[row] += 1
        with pytest.raises(Wrong):
            check(wrong)
    with pytest.raises(Wrong, match="strides"):
        check(np.asfortranarray(right))


def test_a_kernel_that_ends_at_a_number_is_timed_on_all_positions() -> None:
    """The last position, in the layout and within the dtype of the operand; other operands are those that were
    checked."""
    at = t.input("at", (2,), "int64")
    seen = t.le(t.iota((2, 300), 1), t.reshape(at, (2, 1)))
    root = t.where(seen, t.input("x", (2, 300)), t.full((1, 1), 0.0))
    made = backend("c").template([root])
    operand = lambda kind: Operand(kind, contiguous(kind.shape))
    call = Call({"at": operand(at.type), "x": operand(root.type)}, operand(root.type), {})
    given = drawn(output_terms(made, call), call)
    operands = {n: operand_values(n, *given[n]) for n in call.operands}
    found = shown(operands, given, call)
    assert found["at"].tolist() == [299, 299] and found["x"] is operands["x"]
    assert not shown(operands, {"x": given["x"]}, call)


def test_the_last_large_operand_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_operands, "DRAWN", 100)
    first = operand_values("w", Type((20, 20), "float32"), InputDistribution(), False)
    again = operand_values("w", Type((20, 20), "float32"), InputDistribution(), False)
    assert first is again and not first.flags.writeable
    np.testing.assert_array_equal(
        operand_values("w", Type((400,), "float32"), InputDistribution(), False).reshape(20, 20), first
    )
    assert not np.array_equal(operand_values("v", Type((20, 20), "float32"), InputDistribution(), False), first)
    assert operand_values("w", Type((20, 20), "float32"), InputDistribution(), False) is not first
    assert operand_values("w", Type((2, 2), "float32"), InputDistribution(), False).flags.writeable
