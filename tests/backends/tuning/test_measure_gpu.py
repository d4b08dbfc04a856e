"""Measuring on a GPU, with the CPU and Triton's interpreter in its place: what is right, what is wrong, what is
stored."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import fields, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock, Timeout

from tensor_graphs.backends import gpu_context
from tensor_graphs.backends.generate.kernel_text import KernelText, call_json, call_of_json, kernel_text
from tensor_graphs.backends.generate.schedule import Move
from tensor_graphs.backends.tuning import gpu_worker
from tensor_graphs.backends.tuning.compile_pool import CompilePool
from tensor_graphs.backends.tuning.compile_server import NICE
from tensor_graphs.backends.tuning.gpu_process import HANGS_S, START_S, GpuProcess, own_lock
from tensor_graphs.backends.tuning.kernel_searches import AGAIN, ALIKE
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
from tensor_graphs.backends.tuning.measurement import SinkBase, Timing
from tensor_graphs.backends.tuning.schedule_search import key_of_schedule
from tensor_graphs.backends.tuning.trials import Measured, Trial, rows_of
from tensor_graphs.costdb.store.calibrate import calibration_rows
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import WorkerError
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Template, Vertex, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel, identify
from tensor_graphs.pipeline.costs.prices import CostPricer

from ...only_in import only_in

torch = pytest.importorskip("torch", reason="GPU kernels work on Torch's tensors")
pytest.importorskip("triton", reason="generated kernels are Triton's")

SOURCE = {
    "add_kernel": '''@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """x + y"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)'''
}


def schedules_of(template: Template, call: Call) -> list[Call]:
    """The calls of the best guesses, one per schedule."""
    assert template.space is not None
    return [replace(call, schedule=dict(s)) for s in template.space(call)]


def launch(call: Call) -> str:
    n, s = int(call.output.type.shape[0]), call.schedule  # type: ignore[arg-type]
    block = s.get("BLOCK", 64)
    x, y, out = (call.names.get(name, name) for name in ("x", "y", "out"))
    return f"add_kernel[({-(-n // block)},)]({x}, {y}, {out}, {n}, BLOCK={block}, num_warps={s.get('num_warps', 4)})"


def moves(schedule: Mapping[str, int]) -> Iterator[Move]:
    """Every number halved or doubled."""
    for name, value in schedule.items():
        yield Move(name, 1, {**schedule, name: 2 * value})
        yield Move(name, -1, {**schedule, name: max(1, value // 2)})


def template(code: object = launch, **more: object) -> Template:
    space = lambda call: [{"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 64, "num_warps": 8}]
    given = {"source": lambda call: SOURCE, "space": space, "moves": moves, **more}
    named = identify(code, f"test.{code.__qualname__}")  # type: ignore[arg-type, attr-defined]
    return LibraryKernel("generated.add", "triton", "x + y", named, family="pointwise", **given)  # type: ignore[arg-type]


def operand(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> Operand:
    return Operand(Type(shape, dtype), strides or contiguous(shape))


LINE = operand(200)
CALL = Call({"x": LINE, "y": LINE}, LINE, {})


def candidate(found: Template, call: Call = CALL) -> Candidate:
    inputs = tuple((o, Vertex(i, operand.strides)) for i, (o, operand) in enumerate(call.operands.items()))
    return Candidate(found, Vertex(9, call.output.strides), inputs, call)


class Rows(SinkBase, list):
    def add(self, rows: object) -> None:
        self.extend(rows)


@pytest.fixture(scope="module")
def measurer() -> Iterator[GpuMeasurer]:
    with GpuMeasurer(Rows(), device="cpu", timeout=300.0) as found:
        yield found


def label(row: Any) -> str:
    """Name of a row's kernel, without the digest of its form."""
    return str(row.key.name).partition("/")[0]


def rows(measurer: GpuMeasurer, *candidates: Candidate) -> Rows:
    measurer.sink = Rows()
    measurer.measure(iter(candidates))
    return measurer.sink


class Quick:
    """A process with the device that answers at once: the time that a text names behind `#`."""

    alive, ended = True, None

    def start(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
        us = float(job["text"]["text"].rsplit("# ")[-1]) if "text" in job else 1.0
        return {"ok": True, "accuracy": {"rel_fro": 0.0}, "cold": [us], "hot": [us], "clock_mhz": 1.0}


class Compilers:
    """Compilers whose replies the test gives; what was asked of them."""

    workers = 8

    def __init__(self, at_once: Callable[[Call], bool]) -> None:
        self.at_once, self.asked = at_once, list[tuple[Call, Future[dict[str, Any]]]]()

    @property
    def busy(self) -> int:
        return sum(not reply.done() for _, reply in self.asked)

    def start(self) -> None: ...

    def close(self) -> None: ...

    def submit(self, text: KernelText, call: Call) -> Future[dict[str, Any]]:
        self.asked.append((call, Future()))
        self.answer(self.at_once)
        return self.asked[-1][1]

    def answer(self, which: Callable[[Call], bool] = lambda call: True) -> None:
        for call, reply in self.asked:
            if not reply.done() and which(call):
                reply.set_result(
                    {"ok": True, "digest": str((id(call), call.schedule)), "spills": 0, "fits": True, "shared": 0}
                )


def timed(us: Callable[[Call], float], **more: object) -> Template:
    return template(lambda call: f"{launch(call)}  # {us(call)}", **more)


# ---------------------------------------------------------------- what is stored
def test_every_schedule_is_checked_and_the_best_are_timed_cold_and_hot(measurer: GpuMeasurer) -> None:
    found = rows(measurer, candidate(template()), candidate(template()))
    timed = [(r.key.schedule, r.regime) for r in found if r.kind == "timing"]
    space = [(("BLOCK", 64),), (("BLOCK", 128),), (("BLOCK", 64), ("num_warps", 8))]
    assert [schedule for schedule, regime in timed if regime == "cold"] == space  # equal calls once
    assert {schedule for schedule, regime in timed if regime == "hot"} <= set(space)
    assert any(regime == "hot" for _, regime in timed)  # the best; one that seems hopeless is not measured in full
    assert all(min(r.samples) > 0 for r in found if r.kind == "timing")
    errors = [r.rel_fro for r in found if r.kind == "accuracy"]
    assert len(errors) == 3 and max(errors) < 1e-6 and len(found) == len(timed) + 3
    assert all(measurer.spent[f"{step}_s"] > 0 for step in ("draw", "load", "check", "record", "sample"))


def test_library_kernels_need_no_schedule_and_may_return_fresh_tensors(measurer: GpuMeasurer) -> None:
    into = LibraryKernel("torch.add", "torch", "x + y", "torch.add({x}, {y}, out={out})")
    fresh = LibraryKernel("torch.fresh", "torch", "x + y", "torch.add({x}, {y})")
    prepared = LibraryKernel("torch.prepared", "torch", "x + y", "torch.sub({x}, {y})", prep={"y": "-{w}"})
    for found in (into, fresh, prepared):
        assert [r.kind for r in rows(measurer, candidate(found))] == ["timing", "timing", "accuracy"], found.name


def test_the_cheapest_measured_schedule_is_the_price(tmp_path: object) -> None:
    store = Store(tmp_path)  # type: ignore[arg-type]
    pricer, found = CostPricer(store), candidate(template())
    before = pricer.price([found])[0]
    assert before.source == "bound" and before.schedule == (("BLOCK", 64),)
    tries = [
        Trial(c, cold=[us] * 3, hot=[us] * 3, accuracy={"rel_fro": 0.0})
        for c, us in zip(schedules_of(found.template, CALL), (3.0, 2.0))
    ]
    tries.append(Trial(schedules_of(found.template, CALL)[2]))
    measured = Measured(found.template, CALL, tries[:2])
    store.add(rows_of(measured))
    after = pricer.price([found])[0]
    assert (after.us, after.source, after.schedule) == (2.0, "measured", (("BLOCK", 128),))


def test_a_kernel_fails_only_when_all_its_schedules_do(tmp_path: object, measurer: GpuMeasurer) -> None:
    store = Store(tmp_path)  # type: ignore[arg-type]
    refuse = lambda call: "raise ValueError({!r})".format(call.names["out"])
    broken = template(lambda call: launch(call) if call.schedule.get("BLOCK") == 128 else refuse(call))
    store.add(rows(measurer, candidate(broken)))
    price = CostPricer(store).price([candidate(broken)])[0]
    assert price.source == "measured" and price.schedule == (("BLOCK", 128),)
    never = template(refuse)
    store.add(rows(measurer, candidate(replace(never, name="never"))))
    assert CostPricer(store).price([candidate(replace(never, name="never"))])[0].source == "failed"


# ---------------------------------------------------------------- wrong kernels
WRONG = {
    "another value": ("out.copy_(x - y)", "relative error"),
    "some places are not written": ("out[:150].copy_((x + y)[:150])", "not written"),
    "writes before its output": ("out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1); out.copy_(x + y)", "outside"),
    "writes behind its scratch": (
        "out.copy_(x + y); scratch.as_strided((1,), (1,), scratch.storage_offset() + 64).fill_(1)", "outside"),
    "writes to its input": ("out.copy_(x + y); x[0] = 7", "inputs"),
    "reads its scratch": ("out.copy_(x + y + scratch.view(torch.float32)[0])", "not written"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_answers_are_failures(fault: str, measurer: GpuMeasurer) -> None:
    code, message = WRONG[fault]
    wrong = LibraryKernel("wrong", "torch", "x + y", identify(lambda call: code.replace("out", call.names.get("out", "out")), "wrong"),
                     scratch=lambda call: 64)  # fmt: skip
    (row,) = rows(measurer, candidate(wrong))
    assert row.kind == "failure" and row.status == "wrong" and message in row.message


def test_a_kernel_that_is_right_only_once_is_wrong(measurer: GpuMeasurer) -> None:
    counting = "scratch[0] = torch.where(scratch[0] == 255, 0, scratch[0] + 1); out.copy_(x + y * (scratch[0] < 3))"
    once = LibraryKernel("once", "torch", "x + y", identify(lambda call: counting.replace("out", call.names.get("out", "out")), "once"),
                    scratch=lambda call: 4)  # fmt: skip
    (row,) = rows(measurer, candidate(once))
    assert row.kind == "failure" and row.stage == "time" and row.status == "wrong"


def test_a_generated_kernel_that_is_not_the_same_each_time_is_wrong(measurer: GpuMeasurer) -> None:
    """However little its answers differ: another library may round as it likes."""
    text = """calls = [0]


def moving(x, y, out):
    calls[0] += 1
    torch.add(x, y, out=out)
    out.view(-1)[0] += calls[0] * 1e-5"""
    code = lambda call: "moving(x, y, {})".format(call.names.get("out", "out"))
    moving = LibraryKernel("moving", "torch", "x + y", identify(code, "moving"), source=lambda call: {"moving": text})
    (row,) = rows(measurer, candidate(moving))
    assert row.kind == "failure" and row.status == "wrong" and "between runs" in row.message


def test_a_crash_or_a_hang_costs_one_schedule(measurer: GpuMeasurer, monkeypatch: pytest.MonkeyPatch) -> None:
    def code(call: Call) -> str:
        bad = {64: "import os; os._exit(3)", 128: "import time; time.sleep(999)"}
        return bad.get(call.schedule["BLOCK"], "pass") + "; " + launch(call)

    found = template(code, space=lambda call: [{"BLOCK": 64}, {"BLOCK": 256}, {"BLOCK": 128}, {"BLOCK": 32}])
    (process,) = measurer.processes
    ask = process.ask
    hasty = lambda job, seconds=None: ask(job, 1.0 if "sleep(999)" in str(job) else seconds)
    monkeypatch.setattr(process, "ask", hasty)
    made = rows(measurer, candidate(found))
    kinds = {dict(r.key.schedule)["BLOCK"]: getattr(r, "status", r.kind) for r in made}
    assert kinds == {64: "crash", 128: "timeout", 256: "accuracy", 32: "accuracy"}


def test_a_kernel_that_hangs_on_a_gpu_is_ended_soon_by_a_process_that_has_run_others() -> None:
    """The first kernel waits for libraries and compilers; a new process has its time again."""
    found: list[float] = []

    class Noting(Quick):
        def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
            found.append(timeout)
            self.alive = True
            return {"ok": True}

    worker = Noting()
    process, kernel = (
        GpuProcess("cuda", 15.0, worker),
        Measured(LibraryKernel("torch.add", "torch", "x + y", "x + y"), CALL),
    )  # type: ignore[arg-type]
    text = kernel_text(kernel.template, CALL)
    try:
        for alive in (True, True, False, True):
            worker.alive = alive
            process.attempt(kernel.opening, 0, text)
    finally:
        process.close()
    assert [t for t in found if t < START_S] == [15.0, HANGS_S, 15.0, HANGS_S]


def test_whoever_waits_for_a_hanging_kernel_is_not_to_blame() -> None:
    """Two processes with the device: what one waits until the other is ended does not count against its own kernel."""
    torch_add = LibraryKernel("torch.add", "torch", "x + y", "torch.add({x}, {y}, out={out})")
    # its first call only loads code, without the device to itself
    text = "import time; time.sleep(999 * hasattr(torch, 'loaded')); torch.loaded = 1; torch.add({x}, {y}, out={out})"
    hanging = LibraryKernel("hanging", "torch", "x + y", text)
    first, second = (GpuProcess("cpu", seconds, among=2) for seconds in (4.0, 2.0))
    try:
        openings = [Measured(kernel, CALL).opening for kernel in (hanging, torch_add)]
        for process, opening in zip((first, second), openings, strict=True):
            assert process.ask(opening, 120.0)["ok"]
            process.opened[int(opening["kernel"])] = set()
        hangs = first._hand.submit(first.attempt, openings[0], 0, kernel_text(hanging, CALL))
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            try:
                with FileLock(own_lock()).acquire(blocking=False):
                    time.sleep(0.001)
            except Timeout:  # the hanging kernel has the device
                break
            time.sleep(0.01)
        assert second.attempt(openings[1], 0, kernel_text(torch_add, CALL))["ok"]
        assert hangs.result()["status"] == "timeout"
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(("status", "ratio"), [("crash", 1.5), ("wrong", 2.5), ("wrong", 1.05), ("error", math.inf)])
def test_a_kernel_that_always_crashes_or_is_wrong_is_given_up(status: str, ratio: float) -> None:
    """A process that dies at every schedule, told without any process; errors little above what is allowed cost only
    the schedule that has them."""
    asked: list[str] = []

    class Dying:
        alive = True

        def start(self) -> None: ...

        def ask(self, job: dict[str, object], timeout: float) -> dict[str, object]:
            asked.append(str(job["job"]))
            if job["job"] == "open":
                return {"ok": True}
            return {"ok": False, "status": status, "message": "gone", "ratio": ratio}

        def close(self) -> None: ...

    space = lambda call: [{"BLOCK": 2**i} for i in range(3, 10)]
    with GpuMeasurer(Rows(), device="cpu", worker=Dying()) as measurer:  # type: ignore[arg-type]
        found = rows(measurer, candidate(template(space=space)))
    tried = 7 if (status, ratio) == ("wrong", 1.05) else 3
    assert [r.status for r in found] == [status] * tried + ["not-tried"] * (7 - tried)
    assert asked.count("try") == tried


def test_what_a_failed_round_left_is_not_taken_for_the_next_ones() -> None:
    """A device that cannot be used, and then can: what had been written for the first kernel is forgotten."""

    class Late:
        alive, broken = True, True

        def start(self) -> None: ...

        def close(self) -> None: ...

        def ask(self, job: dict[str, object], timeout: float) -> dict[str, object]:
            if self.broken:
                return {"ok": False, "fatal": True, "status": "fault", "message": "gone"}
            return {"ok": True, "accuracy": {"rel_fro": 0.0}, "cold": [1.0], "hot": [1.0], "clock_mhz": 1.0}

    late = Late()
    with GpuMeasurer(Rows(), device="cpu", worker=late) as measurer:  # type: ignore[arg-type]
        with pytest.raises(WorkerError, match="gone"):
            rows(measurer, candidate(template()))
        late.broken = False
        found = rows(measurer, candidate(replace(template(), name="second")))
    assert {label(r) for r in found} == {"second"} and len({r.key.digest for r in found}) == 3


def test_when_the_time_is_up_what_was_tried_is_kept_and_the_rest_is_not_waited_for() -> None:
    class Counting(Quick):
        tried = 0

        def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
            self.tried += job["job"] == "try"
            return super().ask(job, timeout)

    quick, kept = Counting(), Rows()
    worth = lambda candidate: math.inf
    worth.ended = lambda: quick.tried >= 2  # type: ignore[attr-defined]
    space = lambda call: [{"BLOCK": 2**i} for i in range(3, 10)]
    with GpuMeasurer(kept, device="cpu", worker=quick) as measurer:  # type: ignore[arg-type]
        measurer.measure([candidate(timed(lambda call: 1.0, space=space))], worth=worth)
    assert 2 <= quick.tried == len({r.key.digest for r in kept}) < 7, "what the device was handed already is kept too"
    assert {r.kind for r in kept} == {"timing", "accuracy"}


def test_what_is_under_way_is_kept_for_whoever_measures_next() -> None:
    """It ends meanwhile, though its time is up, and nothing more is begun of it."""

    class Held(Quick):
        def __init__(self) -> None:
            self.tried, self.go = Event(), Event()

        def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
            if job["job"] == "try":
                self.tried.set()
                assert self.go.wait(60.0)
            return super().ask(job, timeout)

    held, kept = Held(), Rows()
    worth = lambda candidate: 0.0 if held.tried.is_set() else math.inf
    worth.ended = held.tried.is_set  # type: ignore[attr-defined]
    space = lambda call: [{"BLOCK": 2**i} for i in range(3, 10)]
    one = candidate(timed(lambda call: 1.0, space=space))
    same = replace(one)  # of another hypergraph, where the same kernel is
    with GpuMeasurer(kept, device="cpu", worker=held) as measurer:  # type: ignore[arg-type]
        measurer.keeps = True
        assert measurer.measure([one], worth=worth, look=True) == [one] and not kept
        (left,) = measurer.measure([same], worth=worth, look=True)
        assert left is same, "whoever asks for it is told that it is not measured yet"
        measurer.keeps = False
        held.go.set()
        measurer.measure([])
    assert 1 <= len({r.key.digest for r in kept}) <= 3 and {r.kind for r in kept} == {"timing", "accuracy"}


def test_the_last_kernels_of_a_round_go_on_beside_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose compiler has not ended is left under way, and measured when a later call waits for it."""
    monkeypatch.setattr("tensor_graphs.backends.tuning.measure_gpu.LEAVE", 4)
    compilers, kept = Compilers(lambda call: call.schedule["BLOCK"] < 128), Rows()
    one = lambda i: candidate(
        replace(timed(lambda call: 5.0, space=lambda call: [{"BLOCK": 2**i}]), name=f"block{2**i}")
    )  # fmt: skip
    with GpuMeasurer(kept, device="cpu", worker=Quick()) as measurer:  # type: ignore[arg-type]
        measurer.pool = compilers  # type: ignore[assignment]
        first = [one(i) for i in range(3, 8)]
        (slow,) = measurer.measure(first, leave=True)
        assert slow is first[-1] and {label(r) for r in kept} == {c.template.name for c in first[:-1]}
        assert list(measurer.measure([one(2)], leave=True)) == [slow], "the others are not waited for twice"
        compilers.answer()
        assert not measurer.measure([]) and {label(r) for r in kept} >= {"block4", "block128"}
        assert len(compilers.asked) == 6


def test_what_is_left_under_way_goes_on_before_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device is not idle while a plan is solved for; what happens to it meanwhile is told in the next call."""
    monkeypatch.setattr("tensor_graphs.backends.tuning.measure_gpu.LEAVE", 4)

    class Failing(Quick):
        broken = False

        def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
            if self.broken:
                raise WorkerError("gone")
            return super().ask(job, timeout)

    one = lambda i: candidate(replace(timed(lambda call: 5.0, space=lambda call: [{"BLOCK": i}]), name=f"block{i}"))
    for broken in (False, True):
        compilers, kept, device = Compilers(lambda call: call.schedule["BLOCK"] < 128), Rows(), Failing()
        with GpuMeasurer(kept, device="cpu", worker=device) as measurer:  # type: ignore[arg-type]
            measurer.pool = compilers  # type: ignore[assignment]
            assert len(measurer.measure(map(one, (8, 16, 32, 128)), leave=True)) == 1
            device.broken = broken
            compilers.answer()
            until = time.monotonic() + 120.0
            while (measurer._in_flight if not broken else measurer._fault is None) and time.monotonic() < until:
                time.sleep(0.01)
            assert "block128" not in {label(r) for r in kept}, "rows are added by whoever calls"
            if broken:
                with pytest.raises(WorkerError, match="gone"):
                    measurer.measure([])
                continue
            assert not measurer._in_flight and not measurer.measure([])
            assert "block128" in {label(r) for r in kept}


def test_idle_compilers_get_what_a_search_may_want_next() -> None:
    """While a schedule of the first round still compiles, neighbours of the best known one do; they are asked for
    once."""
    slow, compilers, kept = {"BLOCK": 1024}, Compilers(lambda call: call.schedule != slow), Rows()
    us = lambda call: 5.0 + abs(math.log2(call.schedule["BLOCK"] / 16))
    found = timed(us, space=lambda call: [{"BLOCK": 64}, slow], fits=lambda call: set(call.schedule) == {"BLOCK"})
    later = candidate(replace(timed(us), name="later"))
    with GpuMeasurer(kept, device="cpu", worker=Quick()) as measurer:  # type: ignore[arg-type]
        measurer.pool = compilers  # type: ignore[assignment]
        ended = lambda: compilers.busy == 1 and len(compilers.asked) >= 5 and (compilers.answer() or False)
        worth = lambda candidate: math.inf
        worth.ended = ended  # type: ignore[attr-defined]
        measurer.measure([candidate(found)], worth=worth, later=[(later, True)])
        asked = [dict(call.schedule) for call, _ in compilers.asked]
        assert asked[:2] == [{"BLOCK": 64}, slow] and {32, 128} <= {s["BLOCK"] for s in asked[2:]}
        best = min((r for r in kept if r.kind == "timing"), key=lambda r: r.samples)
        assert dict(best.key.schedule) == {"BLOCK": 16} and measurer.counts["ahead"] >= 3
        again = len(compilers.asked)
        measurer.measure([later], look=True)
        assert len(compilers.asked) == again + 2, "the first of its three guesses was compiled meanwhile"


# ---------------------------------------------------------------- layouts and values
class Alike(LibraryKernel):
    """Templates of one kind."""

    def alike(self, call: Call) -> str:
        """All of them."""
        return "one kind"


def alike(name: str) -> Candidate:
    plain = template(fits=lambda call: True)
    return candidate(Alike(**{**{f.name: getattr(plain, f.name) for f in fields(plain)}, "name": name}))


def test_a_search_begins_with_what_was_best_in_kernels_like_it(measurer: GpuMeasurer) -> None:
    first, second = alike("generated.first"), alike("generated.second")
    assert not measurer.searches.of(first.template, first.call).like  # type: ignore[union-attr]
    measurer.measure([first])
    known = measurer.searches.alike["one kind"]
    search = measurer.searches.of(second.template, second.call)
    assert search is not None and not search.known and 3 < len(known) <= measurer.schedules
    assert [known[key_of_schedule(s)] for s in search.like] == sorted(known.values())[:ALIKE]
    known |= {(("BLOCK", 1 << i),): math.inf for i in range(20, 40)}  # a search ends before where moves lead nowhere
    again = measurer.searches.of(second.template, second.call)
    assert again is not None and again.count == AGAIN, "a kernel like it was searched to the end"
    other = candidate(template())
    assert not measurer.searches.of(other.template, other.call).like  # type: ignore[union-attr]


def test_a_search_that_has_measured_all_it_may_can_go_on(tmp_path: Path) -> None:
    plain = candidate(timed(lambda call: 5.0 if call.schedule["BLOCK"] == 64 else 4.0))
    library = candidate(timed(lambda call: 3.0, space=None))
    with GpuMeasurer(Store(tmp_path), device="cpu", worker=Quick(), schedules=2) as measurer:  # type: ignore[arg-type]
        assert not measurer.further(plain), "nothing was measured"
        measurer.measure([plain, library])
        assert measurer.counts["schedules"] == 3 and not measurer.unfinished(plain)
        assert measurer.further(plain) and measurer.unfinished(plain) and not measurer.further(library)
        measurer.measure([plain])
        assert measurer.counts["schedules"] == 4 and not measurer.further(plain), "there are no more"


def test_kernels_that_are_alike_wait_for_each_other_while_there_is_enough_to_compile(measurer: GpuMeasurer) -> None:
    a, b, c = alike("generated.a"), alike("generated.b"), candidate(template())
    under = Measured(a.template, a.call, pending=4)
    held: deque[Candidate] = deque()
    try:
        measurer._in_flight, measurer.pool = [under], SimpleNamespace(workers=4, close=lambda: None)  # type: ignore[assignment]
        measurer.searches.alike.pop("one kind", None)
        for look in (False, True):
            source = iter([b, c])
            assert measurer._following(source, held, look) is c and list(held) == [b]
            assert measurer._following(source, held, look) is None, "there is enough to compile"
            under.pending = 3
            assert measurer._following(source, held, look) is b and not held
            under.pending = 4
        measurer.searches.alike["one kind"] = {(): 1.0}
        assert measurer._following(iter([b]), held, True) is b, "what a first look begins with is known"
        assert measurer._following(iter([b]), held, False) is None and list(held) == [b]
    finally:
        measurer._in_flight, measurer.pool = [], None


def test_operands_lie_as_the_call_says(measurer: GpuMeasurer) -> None:
    turned = operand(6, 10, strides=(1, 6))
    row = operand(6, 10, strides=(0, 1))
    call = Call({"x": turned, "y": row}, operand(6, 10, strides=(1, 6)), {})
    checks = "assert x.stride() == (1, 6) and y.stride() == (0, 1)"
    found = LibraryKernel(
        "strided",
        "torch",
        "x + y",
        identify(lambda c: f"{checks}; torch.add(x, y, out={c.names.get('out', 'out')})", "strided"),
    )
    assert [r.kind for r in rows(measurer, candidate(found, call))] == ["timing", "timing", "accuracy"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_compared_with_what_their_values_mean(dtype: str, measurer: GpuMeasurer) -> None:
    line = operand(64, dtype=dtype)
    call = Call({"x": line, "y": line}, line, {})
    found = LibraryKernel("halves", "torch", "x + y", "torch.add({x}, {y}, out={out})")
    accuracy = rows(measurer, candidate(found, call))[-1]
    assert 0 < accuracy.rel_fro < 1e-2 and accuracy.max_ulp <= 0.5 + 1e-6


# ---------------------------------------------------------------- compiling
@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        found = CompilePool(1, 90)
        yield found
        found.close()


def test_kernels_compile_without_a_gpu_and_twins_are_found(pool: CompilePool) -> None:
    tries = [Trial(c) for c in schedules_of(template(), CALL)]
    tries.append(replace(tries[0], call=replace(CALL, schedule={"BLOCK": 64, "unused": 1})))
    for one in tries:
        one.text = kernel_text(template(), one.call)
        one.compiled = pool.submit(one.text, one.call)
    replies = [t.compiled.result() for t in tries]
    assert all(r["ok"] and r["kernels"] == 1 and r["fits"] and r["registers"] > 0 for r in replies), replies
    kernel = Measured(template(), CALL, tries)
    assert [kernel.judge(t) for t in tries] == [True, True, True, False]
    assert [t.twin is tries[0] for t in tries] == [False, False, False, True]
    broken = kernel_text(template(lambda call: f"add_kernel[(1,)](x, {call.names['out']})"), CALL)
    assert pool.submit(broken, CALL).result()["status"] == "compile-error"
    dead = kernel_text(template(lambda call: f"import os; os._exit(5); {launch(call)}"), CALL)
    assert pool.submit(dead, CALL).result()["status"] == "crash"
    assert pool._process is not None
    own, theirs = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, pool._process.pid))
    assert theirs == min(19, own + NICE)  # the search and what feeds the device have the cores first


def test_a_binary_says_what_it_uses_as_cuobjdump_does(pool: CompilePool, tmp_path: Path) -> None:
    from tensor_graphs.backends.cuda.cubin import resources

    text = kernel_text(template(), schedules_of(template(), CALL)[1])
    assert pool.submit(text, CALL).result()["registers"] > 0
    binaries = [p.read_bytes() for p in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")]
    tool = Path(pytest.importorskip("triton").__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("there is no cuobjdump here")
    for binary in binaries:
        path = tmp_path / "kernel.cubin"
        path.write_bytes(binary)
        shown = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
        used = [tuple(map(int, pair)) for pair in re.findall(r"REG:(\d+) STACK:(\d+)", shown)]
        assert resources(binary) == (max(r for r, _ in used), max(s for _, s in used))
    for broken in (b"", b"\x7fELF\x02", binaries[0][:200]):
        with pytest.raises(ValueError, match=r"ELF|compiled"):
            resources(broken)


def test_a_compiler_that_hangs_costs_its_text(pool: CompilePool) -> None:
    slow = kernel_text(template(lambda call: f"import time; time.sleep(999); {launch(call)}"), CALL)
    pool.timeout, before = 2.0, pool.timeout
    try:
        hangs = pool.submit(slow, CALL)
    finally:
        pool.timeout = before
    good = pool.submit(kernel_text(template(), CALL), CALL)
    assert hangs.result()["status"] == "timeout" and good.result()["ok"]


class Told:
    """A compiler's reply, known beforehand."""

    def __init__(self, digest: str, spills: int = 0, fits: bool = True) -> None:
        self.reply = {"ok": True, "digest": digest, "spills": spills, "fits": fits, "shared": 1 << 20}

    def result(self) -> dict[str, object]:
        return self.reply


def test_what_spills_is_dropped_where_something_does_not() -> None:
    def judged(*told: Told) -> list[str]:
        tries = [Trial(CALL, compiled=t) for t in told]  # type: ignore[arg-type]
        kernel = Measured(template(), CALL, tries)
        for one in tries:
            if kernel.judge(one):
                one.cold = [1.0]
        kernel.least_spilling()
        return [t.failure.status if t.failure else "kept" for t in tries]

    assert judged(Told("a", spills=8), Told("b", spills=80), Told("c", fits=False)) == ["kept", "spills", "resources"]
    assert judged(Told("a", spills=160), Told("b", spills=80), Told("c", fits=False)) == ["spills", "kept", "resources"]


# ---------------------------------------------------------------- texts, calls, calibration
def test_texts_and_calls_survive_the_pipe() -> None:
    text = kernel_text(template(), CALL)
    assert KernelText.of_json(text.to_json()) == text and text.generated
    call = Call({"x": LINE}, LINE, {"axes": (0, 1), "eps": 1e-5, "to": float("inf")}, {}, {"BLOCK": 64})
    assert call_of_json(call_json(call)) == call


def test_calibration_gives_rows_that_bound_prices(tmp_path: object, measurer: GpuMeasurer) -> None:
    store = Store(tmp_path)  # type: ignore[arg-type]
    measurer.sink = store
    made = measurer.calibrate(seconds=0.1)
    assert {r.key.name for r in made} == {"copy", "read", "cache", "launch", "gemm"}
    assert {r.key.dtypes for r in made if r.key.name == "gemm"} == {("bfloat16",), ("float16",), ("float32",)}
    assert not store.check().bad_shards
    probe = {"name": "gemm", "dtype": "bfloat16", "flops": 8e14 / 1e6, "bytes": 1.0, "samples": [1.0] * 5}
    store.add(rows := calibration_rows([probe]))
    device = rows[0].key.device
    roofline = store.predictor("cold").rooflines.of(device, "triton", "bfloat16")
    assert roofline.flops_per_us == pytest.approx(8e8)
    assert store.predictor("cold").rooflines.of(device, "triton", "float32").flops_per_us < 8e8


def test_a_device_that_was_waited_for_was_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no work of its own to come back to its clock."""
    monkeypatch.setenv("TENSOR_GRAPHS_GPU_LOCK", str(tmp_path / "lock"))
    held, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(gpu_worker, "waiting", lambda begins: waits.set() if begins else None)
    monkeypatch.setattr(gpu_worker, "_last", [0.0])
    monkeypatch.setattr(gpu_worker, "QUIET_S", 0.01)
    with gpu_worker.with_gpu_lock():
        assert gpu_worker._last == [0.0]
    os.utime(tmp_path / "lock", (time.time() - 500.0,) * 2)  # as another process would have left it
    with gpu_worker.with_gpu_lock():
        assert 400.0 < time.monotonic() - gpu_worker._last[0] < 6000.0
    with gpu_worker.with_gpu_lock():
        assert time.monotonic() - gpu_worker._last[0] < 400.0, "used a moment ago, though not waited for"

    def hold() -> None:
        with FileLock(tmp_path / "lock"):
            held.set()
            waits.wait(60.0)

    other, began = threading.Thread(target=hold), time.monotonic()
    other.start()
    assert held.wait(60.0)
    with gpu_worker.with_gpu_lock():
        assert waits.is_set() and gpu_worker._last[0] > began
    other.join()


def test_the_driver_is_initialized_with_and_without_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Any:
            return lambda *given: calls.append(name) or 0

    only_in(monkeypatch, gpu_context, "ctypes", CDLL=lambda name: Driver())
    gpu_context.begin_driver().join()
    assert calls == ["cuInit"]
    gpu_context.begin_context().join()
    assert calls == ["cuInit", "cuInit", "cuDevicePrimaryCtxRetain"]


def test_triton_hashes_itself_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """In advance; a version that keeps its key elsewhere does so when it compiles."""
    made: list[str] = []
    for module in (SimpleNamespace(triton_key=lambda: made.append("key")), SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "triton.runtime.cache", module)
        gpu_context.hash_compiler()
    assert made == ["key"]


def test_a_process_rehearses_before_its_first_job_and_loads_triton_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device of its own; what is generated waits for Triton."""
    order: list[str] = []
    device = gpu_worker.device_of("cpu")
    gpu_worker.rehearse(device)
    monkeypatch.setattr(device, "name", "cuda")
    monkeypatch.setattr(gpu_worker, "_devices", {"cuda": device})
    monkeypatch.setenv("TENSOR_GRAPHS_MEASURE_DEVICE", "cuda")
    monkeypatch.setattr(gpu_worker, "rehearse", lambda device: order.append("rehearsed"))
    monkeypatch.setattr(gpu_worker, "load_kernels", lambda: order.append("its kernels"))
    only_in(monkeypatch, gpu_worker, "gc", freeze=lambda: order.append("frozen"))
    begun = threading.Event()
    monkeypatch.setattr(gpu_context, "_load_compiler", lambda: (begun.wait(60.0), order.append("Triton")))
    gpu_worker.begin()
    assert order == ["rehearsed", "frozen"]
    begun.set()
    gpu_context.compiler_loaded()
    assert order == ["rehearsed", "frozen", "Triton", "its kernels"]


def test_the_device_is_calibrated_after_the_first_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries' kernels come first, and what is remembered of a device is not measured again."""
    jobs: list[str] = []

    class Asked(Quick):
        def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
            jobs.append(job["job"])
            if job["job"] == "calibrate":
                probe = {"name": "gemm", "dtype": "bfloat16", "flops": 8e8, "bytes": 1.0, "samples": [1.0] * 5}
                return {"ok": True, "probes": [probe]}
            return super().ask(job, timeout)

    store = Store(tmp_path)
    for n, expected in enumerate((0, 1, 0)):  # a short search does not, the next one does
        jobs.clear()
        with GpuMeasurer(store, device="cpu", worker=Asked(), calibrates=n > 0) as measurer:  # type: ignore[arg-type]
            measurer.device = "cuda"
            for m in (2, 3):
                add = LibraryKernel(
                    f"torch.add{m}", "torch", "x + y", "torch.add({x}, {y}, out={out})  # 5.0", version=f"{m}{n}"
                )
                measurer.measure([candidate(add)])
                if measurer.calibration.running is not None:
                    measurer.calibration.running.result()
            measurer.measure([])
        assert jobs.count("calibrate") == expected and jobs[0] == "open"
        assert len(store.predictor("cold").rooflines.measured()) == min(n, 1)


def test_without_a_gpu_the_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("TENSOR_GRAPHS_MEASURE_DEVICE", "cuda")
    reply = gpu_worker.answer({"job": "calibrate", "seconds": 0.1})
    assert not reply["ok"] and reply["status"] == "fault" and reply["fatal"]


# ---------------------------------------------------------------- on a GPU
FAR = {
    "far_kernel": '''@triton.jit
def far_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """Writes where there is no memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at + (n.to(tl.int64) << 40), tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)'''
}


@pytest.mark.gpu
def test_on_a_gpu_a_fault_costs_one_kernel(tmp_path: object) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    far = lambda call: launch(call).replace("add_kernel", "far_kernel")
    faulty = replace(template(far, source=lambda call: FAR, space=lambda call: [{"BLOCK": 64}]), name="far")
    store = Store(tmp_path)  # type: ignore[arg-type]
    with GpuMeasurer(store, workers=2) as measurer:
        measurer.measure([candidate(faulty), candidate(template())])
        library = LibraryKernel("torch.add", "torch", "x + y", "torch.add({x}, {y}, out={out})")
        assert isinstance(measurer.time(library, CALL), Timing)
    bad, good = CostPricer(store).price([candidate(faulty), candidate(template())])
    assert bad.source == "failed" and good.source == "measured" and 0.1 < good.us < 100
    (record,) = store.failures([key_of(faulty, schedules_of(faulty, CALL)[0])]).values()
    assert record[0].status == "fault"


def test_what_a_program_runs_for_the_first_time_is_compiled_side_by_side() -> None:
    def unwritable(call: Call) -> str:
        raise ValueError("no text")

    one, other, _ = schedules_of(template(), CALL)
    pool = Compilers(lambda call: call is one)
    with GpuMeasurer(Rows(), device="cpu", worker=Quick()) as measurer:  # type: ignore[arg-type]
        measurer.compile([(template(), one), (template(), other)], seconds=0.0)
        measurer.pool = pool  # type: ignore[assignment]
        assert measurer.compile([(template(), one), (template(unwritable), other)], seconds=300)
        assert [call for call, _ in pool.asked] == [one], "a kernel without a text is left to its first run"
        assert not measurer.compile([(template(), one), (template(), other), (template(), one)], seconds=0.01)
        assert [call for call, _ in pool.asked] == [one, one, other] and pool.busy == 1, "nobody waits for the other"
        measurer.pool = None
