"""Plans of earlier searches: taken again where all is as it was, and nowhere else."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs import settings
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.measurement import Timing as Measured
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.store.schema import FailureRow, TimingRow
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.composites.composite_ops import rms_norm, softmax
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.pipeline import recall, search
from tensor_graphs.pipeline.cache import cached_kernels
from tensor_graphs.pipeline.cache import plan_cache as remember
from tensor_graphs.pipeline.cache.cached_kernels import read_kernels
from tensor_graphs.pipeline.cache.plan_file import plan_from_json, plan_to_json, priced_steps
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.forms import choose_form
from tensor_graphs.pipeline.stages import time_program, verify_program
from tensor_graphs.pipeline.stages import verify_or_retry as accept
from tensor_graphs.private import read_sealed, sealed
from tensor_graphs.progress import Progress
from tensor_graphs.report.omissions import Omission, OmittedWork
from tensor_graphs.report.report import Report

UNTIMED = str(Omission(OmittedWork.TIMING))

RNG = np.random.default_rng(0)
W = RNG.standard_normal((24, 24)).astype(np.float32)
G = RNG.standard_normal(24).astype(np.float32)


def model() -> Tensor:
    return softmax(
        t.matmul(rms_norm(t.input("x", (8, 24)), t.param("g", (24,)), eps=1e-6), t.param("w", (24, 24))) * 0.5, axis=1
    )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with settings.override(home=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel takes as long as its name is, without a process that measures it; whole programs are not timed."""
    took = lambda self, template, call: Measured((float(len(template.name)),) * 5, {"rel_fro": 0.0})
    monkeypatch.setattr(CpuMeasurer, "time", took)
    whole_programs_take(monkeypatch, lambda *a: None)


def whole_programs_take(monkeypatch: pytest.MonkeyPatch, timed: Callable[..., None]) -> None:
    """Call `timed` in place of the timing of whole programs."""
    for module in (choose_form, recall):
        monkeypatch.setattr(module, "time_program", timed)


def optimized(source: Any = None, **options: Any) -> Any:
    given = {"backend": "numpy", "budget": 30.0, "params": {"w": W, "g": G}, "effort": 0, **options}
    return tg.optimize(model() if source is None else source, **given)


def kept(home: Path) -> list[Path]:
    return sorted((home / remember.FOLDER).glob("*.json"))


@pytest.mark.usefixtures("quick")
def test_a_second_search_is_none_and_its_program_is_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = optimized()
    assert not first.report.from_plan_cache and first.report.measured_now > 0 and len(kept(home)) == 1
    for module, name in ((search, "rewrite"), (verify_program, "verify"), (measuring, "measurer_of")):
        monkeypatch.setattr(module, name, None)  # nothing of the kind happens
    second = optimized()
    assert second.report.from_plan_cache and second.report.measured_now == 0 and second.source == first.source
    assert second.report.verification == first.report.verification and second.report.cost_us == first.report.cost_us
    x = RNG.standard_normal((8, 24)).astype(np.float32)
    np.testing.assert_array_equal(first(x), second(x))
    assert "from the plan cache" in str(second.report) and json.dumps(second.report.to_json())
    assert optimized(verify=False).report.verification is None
    assert optimized(budget=8.0).report.from_plan_cache  # for which processes would start before a model is loaded


def test_in_another_process_too(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        "import tensor_graphs as tg\n"
        "x, w = tg.input('x', (4, 16)), tg.param('w', (16, 16))\n"
        "import numpy as np\n"
        "p = tg.optimize(tg.softmax(x @ w, axis=1), params={'w': np.eye(16, dtype='float32')}, backend='numpy', budget=30, effort=0)\n"
        "print(p.report.from_plan_cache, p.report.measured_now)"
    )
    runpy.run_path(str(script))
    environment = {**os.environ, "TENSOR_GRAPHS_HOME": str(home)}
    again = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment)
    assert capsys.readouterr().out.split()[0] == "False" and again.stdout.split() == ["True", "0"]


@pytest.mark.usefixtures("quick")
def test_a_link_in_a_plan_s_place_is_replaced_and_not_followed(home: Path, tmp_path: Path) -> None:
    optimized()
    (path,) = kept(home)
    other = tmp_path / "other"
    other.write_text("mine")
    path.unlink()
    path.symlink_to(other)
    assert not optimized().report.from_plan_cache and other.read_text() == "mine" and not path.is_symlink()
    assert optimized().report.from_plan_cache


@pytest.mark.usefixtures("quick")
def test_a_plan_in_another_s_place_is_not_used(home: Path) -> None:
    """Though it is whole, and has a checksum."""
    optimized()
    (first,) = kept(home)
    optimized(tolerance="fast")
    (second,) = {*kept(home)} - {first}
    content = second.read_bytes()
    second.write_bytes(first.read_bytes())
    first.write_bytes(content)
    assert not optimized().report.from_plan_cache


@pytest.mark.usefixtures("quick")
def test_other_weights_are_verified_and_other_questions_are_searched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized()
    asked: list[int] = []
    plain = verify_program.verify
    monkeypatch.setattr(verify_program, "verify", lambda *a, **k: asked.append(1) or plain(*a, **k))
    other = {"w": W + 1, "g": G}
    assert optimized(params=other).report.from_plan_cache and asked == [1]
    assert optimized(params=other).report.from_plan_cache and asked == [1]
    assert not optimized(again=True).report.from_plan_cache
    assert not optimized(tolerance=0.01).report.from_plan_cache
    assert not optimized(seed=1).report.from_plan_cache
    assert not optimized(limits=tg.Limits(iterations=2)).report.from_plan_cache
    assert not optimized(effort=1).report.from_plan_cache
    assert not optimized(costdb=home / "elsewhere").report.from_plan_cache
    assert not optimized(model() + 1.0).report.from_plan_cache
    monkeypatch.setattr(remember, "package_digest", lambda: "another version")
    assert not optimized().report.from_plan_cache


@pytest.mark.usefixtures("quick")
def test_a_plan_that_is_wrong_for_other_weights_is_searched_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized()
    plain = verify_program.verify

    def failing(*given: Any, **more: Any) -> Any:
        verdict = plain(*given, **more)
        return replace(verdict, outputs=tuple(replace(o, finite=False) for o in verdict.outputs))

    monkeypatch.setattr(verify_program, "verify", failing)
    report = optimized(params={"w": 2 * W, "g": G}).report
    assert not report.from_plan_cache and "accurate" in report.plan_cache_notes[0] and "accurate" in str(report)


@pytest.mark.usefixtures("quick")
def test_what_was_measured_to_be_slower_is_searched_again(home: Path) -> None:
    first = optimized()
    store = Store(home / "costdb")
    slow = [
        TimingRow(key=key_of(s.template, call), work=Work(0, 0), samples=[1e5] * 9)
        for s, call in priced_steps(first.plan)
    ]  # fmt: skip
    store.add(slow)
    message: list[tuple[str, str]] = []
    report = optimized(progress=Progress(lambda *line: message.append(line))).report
    assert (
        not report.from_plan_cache
        and "µs when it was found" in report.plan_cache_notes[0]
        and ("plan cache", report.plan_cache_notes[0]) in message
    )
    assert optimized().report.plan_cache_notes == []


@pytest.mark.usefixtures("quick")
def test_what_is_predicted_otherwise_by_now_says_nothing_against_a_plan(home: Path) -> None:
    """Predictions change with whatever else is measured: a plan of kernels that nobody had time to measure is as good
    as it was."""
    first = optimized()
    plan = first.plan
    guess = lambda cost: replace(cost, source="predicted", us=1e-6)  # far less than what is predicted without any row
    guessed = replace(plan, steps=tuple(replace(s, cost=guess(s.cost)) for s in plan.steps))
    empty = Store(home / "empty")
    remember.refuse_higher_prices(guessed, empty)
    with pytest.raises(remember.StalePlan, match="not in the cost store"):
        remember.refuse_higher_prices(plan, empty)


@pytest.mark.usefixtures("quick")
def test_kernels_that_failed_since_are_not_taken_again(home: Path) -> None:
    first = optimized()
    ((step, call), *_) = priced_steps(first.plan)
    Store(home / "elsewhere").add([FailureRow(key=key_of(step.template, call), work=Work(0, 0), status="fault")])
    with pytest.raises(remember.StalePlan, match=f"{step.template.name}.* has failed since"):
        remember.refuse_higher_prices(first.plan, Store(home / "elsewhere"))


@pytest.mark.usefixtures("quick")
def test_more_rows_that_change_nothing_do_no_harm_but_lost_ones_do(home: Path) -> None:
    first = optimized()
    Store(home / "costdb").add(
        [TimingRow(key=replace(key_of(s.template, c), kernel="other"), work=Work(1, 1), samples=[3.0] * 5)
         for s, c in priced_steps(first.plan)[:1]]
    )  # fmt: skip
    assert optimized().report.from_plan_cache
    for shard in (home / "costdb").rglob("*.parquet"):
        shard.unlink()
    assert not optimized().report.from_plan_cache


@pytest.mark.usefixtures("quick")
def test_prices_are_compared_once_for_a_state_of_the_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all while nothing was added but rows of other kernels, for which the store is not opened."""
    plan = optimized().plan
    tg.optimize(t.exp(t.input("x", (9,))), backend="numpy", budget=30.0, effort=0)
    compared: list[Any] = []
    monkeypatch.setattr(recall, "refuse_higher_prices", lambda *a: compared.append(a))
    assert all(optimized().report.from_plan_cache for _ in range(2)) and not compared
    for us in (1.0, 2.0):
        ((step, call), *_) = priced_steps(plan)
        Store(home / "costdb").add([TimingRow(key=key_of(step.template, call), work=Work(1, 1), samples=[us] * 5)])
        assert all(optimized().report.from_plan_cache for _ in range(2)) and len(compared) == us


@pytest.mark.usefixtures("quick")
def test_a_cut_search_goes_on_with_a_larger_budget_only(home: Path) -> None:
    optimized()
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    data["report"]["search_stopped"], data["budget"] = "budget", 30.0
    path.write_bytes(sealed(json.dumps(data).encode(), path.name))
    assert optimized(budget=20.0).report.from_plan_cache
    longer = optimized(budget=40.0).report
    assert not longer.from_plan_cache and "cut short within 30 s" in longer.plan_cache_notes[0]
    assert optimized(budget=90.0).report.from_plan_cache  # that one ended


@pytest.mark.usefixtures("quick")
def test_what_an_earlier_search_had_no_time_for_is_made_up_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized()
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    data["report"]["omitted"] = ["verification on 2 of 3 inputs", UNTIMED]
    data["report"]["verification"]["seeds"] = 1
    path.write_bytes(sealed(json.dumps(data).encode(), path.name))
    timed: list[Any] = []
    whole_programs_take(monkeypatch, lambda *a: timed.append(a))
    report = optimized().report
    assert report.from_plan_cache and report.omitted == [] and report.verification["seeds"] == 3 and len(timed) == 1
    assert optimized().report.omitted == [] and len(timed) == 1  # and that is remembered
    monkeypatch.setattr(verify_program, "verify", lambda *a, **k: pytest.fail("verified again"))
    assert optimized().report.from_plan_cache


@pytest.mark.usefixtures("quick")
def test_checks_that_a_search_had_no_time_for_can_be_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized()
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    data["report"]["omitted"] = omitted = ["verification on 2 of 3 inputs", UNTIMED]
    data["report"]["verification"]["seeds"] = 1
    path.write_bytes(sealed(json.dumps(data).encode(), path.name))
    verified, verify = [], verify_program.verify
    monkeypatch.setattr(verify_program, "verify", lambda *a, **k: verified.append(a) or verify(*a, **k))
    report = optimized(complete_checks=False).report
    assert report.from_plan_cache and report.omitted == omitted and report.verification["seeds"] == 1
    assert not verified and recall.unchecked(report.omitted) == omitted
    optimized(complete_checks=False, params={"w": 2 * W, "g": G})
    assert len(verified) == 1, "other weights are always verified"


@pytest.mark.usefixtures("quick")
def test_timing_that_was_made_up_for_is_not_made_up_for_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized()
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    data["report"]["omitted"] = [UNTIMED]
    path.write_bytes(sealed(json.dumps(data).encode(), path.name))
    timed: list[Any] = []
    whole_programs_take(monkeypatch, lambda *a: timed.append(a))
    assert [optimized().report.omitted for _ in range(3)] == [[]] * 3 and len(timed) == 1


@pytest.mark.usefixtures("quick")
def test_a_plan_slower_than_the_graph_as_written_is_searched_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized()
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    data["report"]["omitted"] = [UNTIMED]
    path.write_bytes(sealed(json.dumps(data).encode(), path.name))
    monkeypatch.setattr(recall, "time_program", lambda session, task, program, report: program)
    found = optimized().report
    assert not found.from_plan_cache and "as it is written is faster" in str(found.plan_cache_notes)


@pytest.mark.usefixtures("quick")
def test_damaged_files_and_other_kernels_are_as_if_there_were_none(home: Path) -> None:
    first = optimized()
    (path,) = kept(home)
    whole = read_sealed(path, name=path.name).decode()
    data = json.loads(whole)

    def told(**changes: Any) -> str:
        return json.dumps({**data, **changes})

    kernels = [{**k, "identity": "0" * 24} for k in data["plan"]["kernels"]]
    steps = [{**s, "output": 10**6} for s in data["plan"]["steps"]]
    for text in (
        "", "[]", whole[:-40], told(format=0), told(source="0"), told(plan={**data["plan"], "kernels": kernels}),
        told(plan={**data["plan"], "steps": steps}), told(report={}), told(plan={}),
    ):  # fmt: skip
        path.write_bytes(sealed(text.encode(), path.name))
        found = optimized()
        assert not found.report.from_plan_cache and found.source == first.source and found.report.plan_cache_notes, (
            text[:80]
        )


@pytest.mark.usefixtures("quick")
def test_searches_that_measure_nothing_are_not_remembered(home: Path) -> None:
    optimized(measure=False)
    optimized(deterministic=True)
    assert not kept(home)


# ---------------------------------------------------------------- files
def plans() -> Iterator[tuple[str, Any]]:
    n = t.dim("n", min=1, max=64)
    y = t.input("y", (n, 24))
    yield "one size", model()
    yield "every size", softmax(t.matmul(y, t.param("w", (24, 24))) + 1.0, axis=1)
    i = t.input("i", (4,), "int64")
    k = t.state("k", (6, 24))
    yield "state", Graph.of({"r": t.gather(k, i, axis=0)}, updates={"k": k * 2.0}, inputs=[i])
    table = t.constant(RNG.standard_normal((300, 24)).astype(np.float32))
    yield "constants", t.matmul(t.input("z", (3, 300)), table * 2.0)
    large = np.linspace(1.0, 2.0, 5000, dtype=np.float32)  # its bytes in two shapes: a table of differences
    column, row = (t.constant(large.reshape(shape)) for shape in ((5000, 1), (1, 5000)))
    yield "constants of equal bytes", t.exp(t.input("c", (5000, 1)) * column) * t.tanh(row) + row


def wanted(source: Any) -> list[str]:
    graph = source if isinstance(source, Graph) else Graph.of(source)
    return [n.attr("name") for n in graph.leaves("param")]


@pytest.mark.parametrize(("name", "source"), plans())
def test_plans_survive_their_files(name: str, source: Any) -> None:
    program = tg.optimize(
        source, params={p: {"w": W, "g": G}[p] for p in wanted(source)}, backend="numpy", measure=False, effort=0
    )
    plan = program.plan
    data = json.loads(json.dumps(plan_to_json(plan)))
    again = plan_from_json(data, plan.graph)
    assert emit_for(again).source == program.source and plan_to_json(again) == plan_to_json(plan)


def test_bad_plans_are_named_errors() -> None:
    program = tg.optimize(model(), params={"w": W, "g": G}, backend="numpy", measure=False, effort=0)
    good = json.dumps(plan_to_json(program.plan))
    rng = np.random.default_rng(1)
    caught = 0
    for _ in range(150):  # any scalar of the file replaced by another
        data = json.loads(good)
        place, key = data, ""
        while isinstance(place, dict | list) and len(place):
            above, key = place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))  # type: ignore[arg-type]
            key = key.item() if hasattr(key, "item") else key
            place = above[key]
        above[key] = [None, -7, "x", 1 << 70, {}, []][rng.integers(6)]
        try:
            plan_from_json(data, program.plan.graph)
        except TensorGraphsError:
            caught += 1
    assert caught > 40


# ---------------------------------------------------------------- generated kernels
FREE = t.dim("n", min=1, max=64)


def free_model() -> Tensor:
    """A chain for every number of rows, which one C kernel computes."""
    x = t.input("x", (FREE, 24))
    return rms_norm(softmax(t.tanh(x) * 0.5 + 1.0, axis=1) * t.exp(x), t.param("g", (24,)), eps=1e-6)


@pytest.fixture
def fast_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in C take 1 µs, all others 50 µs; whole programs are not timed."""
    took = lambda self, template, call: Measured((1.0 if template.backend == "c" else 50.0,) * 5, {"rel_fro": 0.0})
    monkeypatch.setattr(CpuMeasurer, "time", took)
    whole_programs_take(monkeypatch, lambda *a: None)


def in_c(**options: Any) -> Any:
    found = optimized(free_model(), **{"backend": "c", "params": {"g": G}, "dims": {"n": 8}, **options})
    assert any(s.template.backend == "c" for s in found.plan.steps)
    return found


@pytest.mark.usefixtures("fast_c")
def test_kernels_in_c_for_every_size_are_taken_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = in_c()
    assert first.report.plan_cache_notes == [] and first.plan.sizes
    Store(home / "costdb").add(  # another row: prices are looked up again, under the keys of the sizes searched at
        [TimingRow(key=replace(key_of(s.template, c), kernel="other"), work=Work(1, 1), samples=[3.0] * 5)
         for s, c in priced_steps(first.plan)[:1]]
    )  # fmt: skip
    second = in_c()
    assert second.report.from_plan_cache and second.source == first.source and second.report.plan_cache_notes == []
    other = in_c(params={"g": 2 * G})  # verified for other weights, and written again
    assert other.report.from_plan_cache and in_c(params={"g": 2 * G}).report.plan_cache_notes == []
    for rows in (1, 8, 33):
        x = RNG.standard_normal((rows, 24)).astype(np.float32)
        np.testing.assert_array_equal(first(x), second(x))
    (path,) = kept(home)
    data = json.loads(read_sealed(path, name=path.name))
    assert "#pragma" not in path.read_text() and "void " not in path.read_text(), "the file holds no code"
    for change in ({"identity": "0" * 24}, {"generic": {}}, {"generic": 3}):
        damaged = json.loads(read_sealed(path, name=path.name))
        for kernel in damaged["plan"]["kernels"]:
            if "generic" in kernel:
                kernel |= change
        path.write_bytes(sealed(json.dumps(damaged).encode(), path.name))
        found = in_c()
        assert not found.report.from_plan_cache and found.report.plan_cache_notes and found.source == first.source
    assert data["plan"]["kernels"] == json.loads(read_sealed(path, name=path.name))["plan"]["kernels"]


# ---------------------------------------------------------------- with a GPU's backends
def test_a_gpus_plan_is_remembered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsed on the CPU: measured with Triton's interpreter."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends import gpu
    from tensor_graphs.backends.generate.generator import KernelGenerator
    from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
    from tensor_graphs.backends.program.launch.binaries import Binaries
    from tensor_graphs.backends.program.program import Program
    from tensor_graphs.backends.registry import backend
    from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer

    if not backend("torch_cuda").unavailable():
        pytest.skip("there is a GPU here")
    for kind in (TorchCudaBackend, KernelGenerator):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(accept, "Program", partial(Program, device="cpu"))
    for module in (recall, time_program):
        monkeypatch.setattr(module, "Program", partial(Program, device="cpu"))
    made = partialmethod(GpuMeasurer.__init__, device="cpu", timeout=60.0)
    monkeypatch.setattr(measuring, "GpuMeasurer", type("Here", (GpuMeasurer,), {"__init__": made}))
    whole_programs_take(monkeypatch, lambda *a: None)
    source = t.exp(t.input("x", (40, 6))) * t.input("y", (40, 6))
    stored = Binaries("this GPU", {"0.cubin": b"code"}, [{"binary": "0.cubin", "name": "f"}])
    taken: list[Binaries | None] = []
    monkeypatch.setattr(Program, "binaries", stored)
    monkeypatch.setattr(Program, "launch_mode", "graph")
    monkeypatch.setattr(Program, "break_even", 7)
    monkeypatch.setattr(Program, "take_binaries", lambda self, found: taken.append(found))
    first = tg.optimize(source, backend="triton-only", budget=60)
    assert first.report.search_stopped == "measured" and first.report.measured_now > 0
    spent = first.report.measuring
    assert spent["kernels"] >= first.report.measured_now and 0 < spent["timed"] <= spent["schedules"]
    assert spent["rounds"] >= 2 and spent["try_s"] > 0, "the last round finds nothing to measure"
    begun: list[str] = []
    monkeypatch.setattr(recall, "begin_context", lambda: begun.append("context"))
    second = tg.optimize(source, backend="triton-only", budget=60)
    assert begun == ["context"]
    assert second.report.from_plan_cache and second.source == first.source and second.report.measured_now == 0
    assert second.manifest.device == "cuda" and taken == [stored]  # compiled kernels are stored beside the plan
    launching = [(p.manifest.launch_mode, p.manifest.break_even) for p in (first, second)]
    assert launching == [("", 0), ("graph", 7)], "it is not timed again"
    (file,) = (home / "plans").glob("*.kernels")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    third = tg.optimize(source, backend="triton-only", budget=60)
    assert third.report.from_plan_cache and taken == [stored, None]
    assert any("kernels of a cached plan are compiled again" in w for w in third.report.warnings)
    tg.optimize(source, backend="triton-only", budget=60)
    assert taken[-1] == stored  # they were stored again
    file.unlink()
    with monkeypatch.context() as small:
        small.setattr(cached_kernels, "MAX_KERNEL_FILE_BYTES", 1 << 20)
        notes = tg.optimize(source, backend="triton-only", budget=60).report.plan_cache_notes
    assert not file.exists() and "bytes, more than the 1,048,576 that are read" in notes[0]
    assert tg.optimize(source, backend="triton-only", budget=60).report.plan_cache_notes == []
    damaged = json.loads(read_sealed(file, name=file.name)) | {"files": {"launches.json": "AA"}}
    file.write_bytes(sealed(json.dumps(damaged).encode(), file.name))
    with pytest.raises(ValueError, match="padding"):
        read_kernels(file.with_suffix(".json"), damaged["source"])
    assert read_kernels(file.with_suffix(".json"), "another program") is None


@pytest.mark.usefixtures("quick")
def test_plans_that_could_not_be_read_are_not_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a plan that another process removed meanwhile go with the next plan that is stored."""
    (home / remember.FOLDER).mkdir(mode=0o700)
    left = home / remember.FOLDER / "0123.kernels"
    left.write_bytes(b"")
    with monkeypatch.context() as small:
        small.setattr(remember, "MAX_PLAN_BYTES", 1000)
        first = optimized()
    assert not kept(home) and "more than the 1,000 that are read" in first.report.plan_cache_notes[0]
    optimized()
    assert len(kept(home)) == 1 and not left.exists()


def test_renamed_report_fields_are_readable_under_their_old_names() -> None:
    report = Report("m", "numpy", omitted=["measuring"], from_plan_cache=True, plan_cache_notes=["none"])
    assert (report.cut, report.remembered, report.memory) == (["measuring"], True, ["none"])
    told = report.to_json()
    assert (told["cut"], told["remembered"], told["memory"]) == (["measuring"], True, ["none"])
    old = {n: told[n] for n in ("cut", "remembered", "memory")}
    fields = {n: v for n, v in report.fields().items() if n not in ("omitted", "from_plan_cache", "plan_cache_notes")}
    assert Report.of_json({**fields, **old}) == report
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = report.other


def test_reports_with_old_names_of_stages_and_failed_plans_load() -> None:
    spans = {name: [[0.0, 1.0]] for name in ("stage: glue", "stage: solve", "ahead: match", "readers: read")}
    old = {**Report("m", "numpy").fields(), "seconds": {"glue": 1.0, "keep": 2.0, "build": 3.0}, "timeline": spans}
    old["verification"] = {"failed": [{"output": "y", "said": "off by 2"}]}
    found = Report.of_json(old)
    assert found.verification == {"failed": [{"output": "y", "message": "off by 2"}]}
    assert found.seconds == {"join blocks": 1.0, "store plan": 2.0, "build": 3.0}
    assert list(found.timeline) == ["stage: join blocks", "stage: solve", "overlapped tuning: match", "lowering: read"]


@pytest.mark.usefixtures("quick")
def test_a_plan_that_takes_long_to_build_is_stored_unchecked_once_the_time_is_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What parses it back and emits it again is the next call, which does not use a plan that reads otherwise."""
    monkeypatch.setattr(recall, "CHECK_S", -1.0)
    read: list[Any] = []
    monkeypatch.setattr(remember, "plan_from_json", lambda *a: read.append(a) or plan_from_json(*a))
    optimized(budget=0.0)
    assert kept(home) and not read
    assert optimized(budget=0.0).report.from_plan_cache and len(read) == 1
    optimized(again=True)
    assert len(read) == 2, "with time left it is checked at once"


def test_a_store_at_a_loop_of_links_ends_in_no_error_without_a_name(home: Path) -> None:
    loop = home / "loop"
    loop.symlink_to(loop)
    options: dict[str, Any] = {
        "params": {"w": W, "g": G},
        "backend": "numpy",
        "costdb": loop,
        "measure": False,
        "budget": 1,
    }
    try:
        program = tg.optimize(model(), **options)
    except TensorGraphsError:
        return
    assert program(np.ones((8, 24), np.float32)).shape == (8, 24)
