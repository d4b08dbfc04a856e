"""A budget and Ctrl-C end every stage; what comes out is right, and the report names what was left out."""

from __future__ import annotations

import _imp
import gc
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.generate import lowering_pool
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime import compile_clock
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.measurement import Timing as Measured
from tensor_graphs.egraph.composites.composite_ops import layer_norm
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate import saturate, worker
from tensor_graphs.egraph.saturate.term_cost import Roofline, node_prices
from tensor_graphs.errors import NoPlanError, RuleError, VerificationError
from tensor_graphs.extract.model.clock import Halted
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.search import plan_solver
from tensor_graphs.extract.search import search as extract_search
from tensor_graphs.options import Options
from tensor_graphs.pipeline import search as searching
from tensor_graphs.pipeline.cache import plan_cache as remember
from tensor_graphs.pipeline.context import reserves
from tensor_graphs.pipeline.context.expected import ExpectedTimes
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.execution import timing
from tensor_graphs.pipeline.optimize import optimize_graph
from tensor_graphs.pipeline.stages import accept as accept_stage
from tensor_graphs.pipeline.stages import choose as choosing
from tensor_graphs.pipeline.stages import exclusions, verify_attempt
from tensor_graphs.pipeline.stages import match as matching
from tensor_graphs.pipeline.stages import prepare as preparing
from tensor_graphs.pipeline.stages import rewrite as rewriting
from tensor_graphs.pipeline.stages import time_program as timing_program
from tensor_graphs.pipeline.stages.accept import acceptance
from tensor_graphs.pipeline.stages.match import generation_limit, match_all
from tensor_graphs.pipeline.stages.prepare import Task, prepare
from tensor_graphs.progress import Progress
from tensor_graphs.report.omissions import UNREWRITTEN, Omission, OmittedWork
from tensor_graphs.report.report import AS_WRITTEN
from tensor_graphs.verification import reference

from ..only_in import only_in

UNTIMED = str(Omission(OmittedWork.TIMING))

RNG = np.random.default_rng(0)
PARAMS = {n: RNG.standard_normal(s).astype(np.float32) for n, s in {"w": (16, 16), "g": (16,), "b": (16,)}.items()}
X = RNG.standard_normal((8, 16)).astype(np.float32)
WAIT_S = 60.0  # for what must happen
ALL_CUT = ["rewriting", "kernels of", "measuring", "verification on 2 of 3 inputs", "timing of the whole program"]


def graph() -> Graph:
    x, w = tg.input("x", (8, 16)), tg.param("w", (16, 16))
    return Graph.of(
        tg.softmax(layer_norm(x @ w, tg.param("g", (16,)), tg.param("b", (16,)), eps=1e-5) * 0.5) + x, params=PARAMS
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of its own, kernels that take no time to measure, and programs that are as fast as their baselines."""
    took = lambda self, template, call: Measured((float(len(template.name)),) * 5, {"rel_fro": 0.0})
    monkeypatch.setattr(CpuMeasurer, "time", took)
    monkeypatch.setattr(timing, "is_surely_faster", lambda *samples: False)
    with settings.override(home=str(tmp_path)):
        yield tmp_path


class Clock:
    """Time that stands still but where a stage begins."""

    def __init__(self, stage: str, seconds: float) -> None:
        self.stage, self.seconds, self.time = stage, seconds, 0.0

    def __call__(self) -> float:
        return self.time

    def say(self, stage: str, message: str) -> None:
        if stage == self.stage:
            self.time += self.seconds


def right(program: Any) -> bool:
    want = evaluate(graph(), {"x": X}, float64=True)[0]
    return bool(np.allclose(program(X), want, rtol=1e-4, atol=1e-5))


def run(progress: Progress, now: Any = None, **options: Any) -> Any:
    chosen = Options(backend="numpy", **{"budget": 600.0, **options})
    session = Session(chosen, progress) if now is None else Session(chosen, progress, now=now)
    return optimize_graph(session, graph())


def cut(report: Any) -> list[str]:
    """Which of ALL_CUT the report names."""
    return [c for c in ALL_CUT if any(c in text for text in report.omitted)]


STAGES = {"simplify": 0, "saturate": 1, "join blocks": 1, "candidates": 1, "extract": 2, "verify": 3, "time": 5}


@pytest.mark.parametrize("stage", STAGES)
def test_a_budget_that_ends_in_a_stage_cuts_what_comes_after_it(stage: str) -> None:
    clock = Clock(stage, 1000.0)
    made = run(Progress(clock.say), clock)
    assert right(made) and made.report.verification["passed"]
    looked = STAGES[stage] < 3  # a program of kernels that were never measured is timed for a moment
    assert cut(made.report) == [c for c in ALL_CUT[STAGES[stage] :] if not (looked and c == UNTIMED)]
    assert made.report.verification["seeds"] == (1 if STAGES[stage] < 4 else 3)
    assert made.report.measured_now == 0 or STAGES[stage] > 2
    assert ("out of time" in str(made.report)) == bool(made.report.omitted)


def test_a_faster_baseline_that_is_verified_late_names_the_inputs_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "is_surely_faster", lambda *samples: True)
    clock = Clock("time", 1000.0)
    made = run(Progress(clock.say), clock)
    assert right(made) and made.report.runs == AS_WRITTEN and made.report.verification["seeds"] == 1
    assert cut(made.report) == ["verification on 2 of 3 inputs"] and "out of time" in str(made.report)


def test_time_that_suffices_cuts_nothing() -> None:
    made = run(Progress(), Clock("", 0.0))
    assert right(made) and made.report.omitted == [] and made.report.verification["seeds"] == 3


def test_rules_that_are_not_tested_in_half_of_the_budget_take_no_part() -> None:
    """300 rules took 17 s before the clock of a call with any budget began. Malformed ones are errors in any case."""
    rules = [tg.Rule(f"mine-{i}", f"abs(mul(x, {i}.5))", f"mul(abs(x), {i}.5)") for i in range(5)]
    clock = SimpleNamespace(t=-3.0)

    def now() -> float:
        clock.t += 3.0
        return clock.t

    session = Session(Options(budget=10.0, rules=rules), now=now)
    assert [r.name for r in session.rules if r.name.startswith("mine")] == ["mine-0"]
    assert session.omitted == [Omission(OmittedWork.TESTING_RULES, "4 of 5, which take no part")]
    session = Session(Options(budget=10.0, rules=rules[:3], deterministic=True), now=now)
    assert len([r for r in session.rules if r.name.startswith("mine")]) == 3 and not session.omitted
    with pytest.raises(RuleError, match="bad"):
        Session(Options(budget=10.0, rules=[*rules, tg.Rule("bad", "x", "neg(x)")]), now=now)


def test_without_time_nothing_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading may use up the budget: no worker is waited for, neither rules nor solvers are loaded."""
    imported: list[str] = []
    monkeypatch.setattr(rewriting, "import_in_background", imported.extend)
    monkeypatch.setattr(rewriting, "LARGE_SEARCH", 0)
    monkeypatch.setattr(rewriting, "saturate_in_stages", lambda *given, **options: pytest.fail("no time is left"))
    session, graph = Session(Options(backend="numpy", budget=1.0)), Graph.of(tg.tanh(tg.input("x", (4,))) * 2.0)
    session.budget_start -= 2.0
    found = rewriting.rewrite(session, graph)
    assert len(found.view) == len(graph.nodes()) and [o.work for o in session.omitted] == [OmittedWork.REWRITING]
    assert not found.fired(session) and "rules" not in vars(session) and imported == [*rewriting.STORE_MODULES]


@pytest.mark.parametrize(("left", "late"), [(59.0, True), (61.0, False)])
def test_what_no_stage_has_time_to_use_is_not_rewritten(
    left: float, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deep model on a GPU: kernels of its unrewritten short form are matched meanwhile."""
    session, graph = Session(Options(backend="numpy", budget=100.0)), Graph.of(tg.tanh(tg.input("x", (4,))) * 2.0)
    moment = session.budget_start + 100.0 - left
    session.now = lambda: moment
    deep, shallow = SimpleNamespace(whole=object()), SimpleNamespace(whole=None)
    assert [searching.rewriting_is_late(session, tuning) for tuning in (deep, shallow, None)] == [late, False, False]  # type: ignore[arg-type]
    monkeypatch.setattr(rewriting, "saturate_in_stages", lambda *given, **options: pytest.fail("it is late"))
    found = rewriting.rewrite(session, graph, late=True)
    assert len(found.view) == len(graph.nodes()) and [o.work for o in session.omitted] == [OmittedWork.REWRITING]


@pytest.mark.parametrize(("budget", "solvers"), [(9.0, []), (10.0, [*rewriting.SOLVER_MODULES])])
def test_small_budgets_load_solvers_only_when_needed(
    budget: float, solvers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(rewriting, "import_in_background", imported.extend)
    monkeypatch.setattr(rewriting, "LARGE_SEARCH", 0)
    monkeypatch.setattr(rewriting, "saturate_in_stages", lambda *given, **how: [[*map(rewriting.view_of, given[1])]])
    rewriting.rewrite(Session(Options(backend="numpy", budget=budget)), Graph.of(tg.tanh(tg.input("x", (4,)))))
    assert imported == [*rewriting.STORE_MODULES, *solvers]


def test_what_is_needed_after_loading_begins_with_the_measuring_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    cuda = SimpleNamespace(is_initialized=lambda: False)
    torch = SimpleNamespace(cuda=cuda, zeros=lambda size, device: begun.append(device))
    monkeypatch.setitem(measuring.sys.modules, "torch", torch)
    monkeypatch.setattr(measuring, "import_in_background", lambda modules, *first: begun.append(modules))
    monkeypatch.setattr(measuring, "measurer_of", lambda *given: object())
    monkeypatch.setattr(measuring, "on_gpu", lambda backends: True)
    monkeypatch.setattr(measuring, "Thread", lambda target, args, **more: SimpleNamespace(start=lambda: target(*args)))
    for initialized in (False, True):
        cuda.is_initialized = lambda known=initialized: known  # type: ignore[misc]
        measuring.start_measurer(Session(Options(budget=5.0)), [])
    assert begun == [measuring.STORE_MODULES, "cuda", measuring.STORE_MODULES]


def test_no_process_begins_that_could_not_measure_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(CpuMeasurer, "start", lambda self: begun.append(self))
    for budget, name, late in ((1.0, "torch", True), (1.0, "numpy", False), (2.0, "torch", False)):
        session = Session(Options(backend=name, budget=budget))
        _, measurer = measuring.take_measurer(session, [SimpleNamespace(name=name, measured="host")])  # type: ignore[list-item]
        assert (measurer is None) == late == bool(session.omitted) and len(begun) == (measurer is not None)
        begun.clear()


def test_a_small_budget_imports_no_torch_for_its_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [backend(name) for name in ("numpy", "torch", "c")]
    for there in (None, object()):
        monkeypatch.setitem(sys.modules, "torch", there)  # type: ignore[arg-type]
        for chosen in (
            {"budget": 1.0},
            {"budget": 2.0},
            {"budget": 5.0},
            {"budget": 1.0, "deterministic": True},
            {"budget": 1.0, "backend": "torch"},
        ):
            session = Session(Options(**chosen))  # type: ignore[arg-type]
            found = measuring.backends_in_time(session, whole)
            without = there is None and chosen in ({"budget": 1.0}, {"budget": 2.0})
            assert {b.name for b in found} == {"numpy", "c"} | ({"torch"} if not without else set())
            assert without == bool(session.omitted) and (without or found is whole)


def test_no_process_begins_to_import_torch_where_its_kernels_take_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that measures starts before the model is loaded, from which its backends are known."""
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    monkeypatch.setattr(measuring, "backends_of", lambda options: [backend(name) for name in ("numpy", "torch", "c")])
    monkeypatch.setattr(measuring, "default_pool", lambda: SimpleNamespace(begin=lambda: None))
    began: list[set[str]] = []
    monkeypatch.setattr(measuring, "start_measurer", lambda session, found: began.append({b.name for b in found}))
    for budget in (2.0, 5.0):
        with measuring.measurer_started(Session(Options(budget=budget))):
            pass
    assert began == [{"numpy", "c"}, {"numpy", "torch", "c"}]


def test_no_baseline_is_timed_that_would_import_torch_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [SimpleNamespace(steps=[SimpleNamespace(template=SimpleNamespace(backend=b))]) for b in ("numpy", "torch")]
    programs = [SimpleNamespace(plan=p, preparing_s=lambda: 0.0, memory=dict) for p in plans]
    session, task = (
        Session(Options(budget=0.0)),
        SimpleNamespace(on_gpu=False, model=prepare(Session(Options()), graph(), None)),
    )
    for there in (None, object()):
        monkeypatch.setitem(sys.modules, "torch", there)  # type: ignore[arg-type]
        found = [timing_program._omission(session, task, graph(), p, programs[0]) for p in programs]  # type: ignore[arg-type]
        assert [f is not None for f in found] == [False, there is None]


def test_a_graph_that_nothing_changes_is_simplified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "simplified", lambda *given: pytest.fail("simplified again"))
    assert prepare(Session(Options()), graph(), None).work


def test_without_time_a_baseline_that_takes_long_to_build_is_not_timed() -> None:
    session, task = Session(Options(budget=0.0)), SimpleNamespace(on_gpu=False)
    report = SimpleNamespace(priced={"predicted": 1}, cost_us=1.0)
    for seconds, doubted in ((0.01, True), (1.0, False)):
        session.stage_clock.add("build", seconds - session.stage_clock.seconds.get("build", 0.0))
        assert timing_program._is_doubted(session, task, report) == doubted  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget", "gpu", "begun"), [(5.0, True, 1), (60.0, True, 0), (5.0, False, 0)])
def test_processes_that_lower_start_before_loading_in_small_budgets(
    budget: float, gpu: bool, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(measuring, "backends_of", lambda options: [SimpleNamespace(generates=True)])
    monkeypatch.setattr(measuring, "on_gpu", lambda backends: gpu)
    monkeypatch.setattr(measuring, "start_measurer", lambda *given: None)
    monkeypatch.setattr(measuring, "default_pool", lambda: SimpleNamespace(begin=lambda: None))
    session = Session(Options(budget=budget))
    session.lowerings.pool = SimpleNamespace(begin=lambda: counted.append(1))  # type: ignore[assignment]
    with measuring.measurer_started(session):
        assert len(counted) == begun


def test_ctrl_c_uses_up_the_time() -> None:
    """Whatever is left of the budget, and also where no clock decides."""
    for deterministic in (False, True):
        session = Session(Options(budget=600.0, deterministic=deterministic), Progress())
        assert not session.over and not session.late(0.0)
        session.progress.stopped = True
        assert session.over and session.late(0.0)


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_in_a_stage_keeps_the_best(stage: str, home: Path) -> None:
    progress = Progress()

    def say(now: str, message: str) -> None:
        progress.stopped = progress.stopped or now == stage

    progress.say = say
    made = run(progress)
    assert right(made) and made.report.verification["passed"]
    assert bool(made.report.omitted) == (stage != "time") or made.report.latency_after_us
    assert not list((home / remember.FOLDER).glob("*.json")), "a plan that was cut by hand is not remembered"
    if stage in ("join blocks", "extract"):  # what rewriting has found is not thrown away
        assert cut(made.report)[:1] != ["kernels of"]


def test_ctrl_c_without_a_handler_in_rewriting_ends_the_later_stages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt where a caller has no signal handler that sets `Progress.stopped`."""

    def interrupted(*given: Any) -> str:
        _imp.acquire_lock()  # it may come inside of an import
        raise KeyboardInterrupt

    monkeypatch.setattr(saturate._Saturation, "rounds", interrupted)
    progress = Progress()
    made = run(progress)
    assert (
        right(made)
        and progress.stopped
        and cut(made.report)[:1] == ["rewriting"]
        and "measuring" in made.report.omitted
        and not _imp.lock_held()
    )


@pytest.mark.parametrize(("at", "brief"), [(1, False), (2, True), (3, True)])
def test_ctrl_c_in_a_verification_ends_it(
    at: int, brief: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pressed in the first run of the reference, in the second, and in the first for another input. One input is
    compared all the same, if that is short (`brief`); else whoever loads the program is told."""
    progress, plain, calls = Progress(), reference.evaluate, []

    def evaluated(*given: Any, **more: Any) -> Any:
        calls.append(1)
        progress.stopped = progress.stopped or len(calls) == at
        return plain(*given, **more)

    monkeypatch.setattr(reference, "evaluate", evaluated)
    monkeypatch.setattr(verify_attempt, "BRIEF_S", 2.0 if brief else 0.0)
    made = run(progress)
    assert right(made)
    if brief:
        omitted = {2: "verification on further inputs", 3: "verification on 2 of 3 inputs"}[at]
        assert made.report.verification["seeds"] == 1 and omitted in made.report.omitted
    else:
        assert len(calls) == at and made.report.verification is None and "verification" in made.report.omitted
        assert "not verified: the search was stopped" in str(made.report)
        with pytest.warns(RuntimeWarning, match="never verified"):
            tg.load_program(made.save(tmp_path / "p"))


@pytest.mark.parametrize("fault", ["wrong once", "always wrong", "fails", "compiles for long"])
def test_after_ctrl_c_no_program_known_to_be_wrong_is_returned(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph as written comes in its place, or an error; a program that cannot be compared is unverified."""
    progress, plain, wrong = Progress(), verify_attempt.run_first, []

    def halted(*given: Any) -> Any:
        progress.stopped = True
        raise Halted

    def run_first(program: Program, values: Any) -> Any:
        if fault == "fails":
            raise RuntimeError("launch")
        if not wrong or wrong[0] is program or fault == "always wrong":
            wrong.append(program)
            return [1.5 * y for y in plain(program, values)]
        return plain(program, values)

    monkeypatch.setattr(verify_attempt.AttemptVerifier, "verdict", halted)
    monkeypatch.setattr(verify_attempt, "run_first", run_first)
    if fault == "compiles for long":
        monkeypatch.setattr(verify_attempt, "compiled_beside", lambda program: lambda seconds: False)
    if fault == "always wrong":
        with pytest.raises(VerificationError, match="is off by"):
            run(progress)
        assert len(wrong) == 2
        return
    made = run(progress)
    found = made.report.verification
    assert right(made) and (found["passed"] if fault == "wrong once" else found is None)
    assert found is None or found["dropped"] == ["all rewrites"]
    assert ("verification" in made.report.omitted) == (found is None)
    assert ("verification on further inputs" in made.report.omitted) == (found is not None)


def test_ctrl_c_while_a_remembered_plan_is_verified_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tg.optimize(graph(), backend="numpy").report.from_plan_cache
    progress, plain = Progress(), reference.evaluate

    def evaluated(*given: Any, **more: Any) -> Any:
        progress.stopped = True
        return plain(*given, **more)

    other = {**PARAMS, "g": PARAMS["g"] + 1}
    with monkeypatch.context() as patch:
        patch.setattr(reference, "evaluate", evaluated)
        made = tg.optimize(graph(), params=other, backend="numpy", progress=progress)
    assert made.report.from_plan_cache and made.report.verification is None and "verification" in made.report.omitted
    again = tg.optimize(graph(), params=other, backend="numpy")
    assert again.report.from_plan_cache and again.report.verification["passed"] and again.report.omitted == []


def test_without_time_a_rough_plan_makes_room_for_the_graph_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """With time its rough kernel is found and left out; without, nothing of the rewritten graph is kept."""
    numpy = backend("numpy")
    rough = LibraryKernel("np.rough_exp", "numpy", "exp(x)", "np.multiply(np.exp({x}), np.float32(1.001), out={out})")

    changed = numpy.with_templates((rough, *numpy.templates))
    monkeypatch.setattr(measuring, "select", lambda choice: [changed])
    monkeypatch.setattr(
        CpuMeasurer, "time", lambda self, t, c: Measured((0.01 if t is rough else 9.0,) * 5, {"rel_fro": 0.0})
    )
    for stage, dropped in (("", ["np.rough_exp"]), ("verify", ["all rewrites", "np.rough_exp"])):
        clock = Clock(stage, 1000.0)
        made = optimize_graph(
            Session(Options(backend="numpy", budget=600.0, again=True), Progress(clock.say), now=clock),
            Graph.of(tg.exp(tg.input("x", (8, 16)))),
        )
        found = made.report.verification
        assert found["passed"] and [d for d in found["dropped"] if "round" not in d] == dropped
        assert ("other plans within tolerance" in made.report.omitted) == bool(stage)


def test_without_time_a_plan_without_rewritten_values_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of a rewritten value is too rough; the others stay, although no time is left to match kernels again."""
    numpy = backend("numpy")
    rough = LibraryKernel(
        "np.rough_gemm", "numpy", "matmul(x, w)", "np.multiply(np.matmul({x}, {w}), np.float32(1.001), out={out})",
        applies=lambda c: c.operands["w"].type.shape == (16, 16),
    )  # fmt: skip
    fused = LibraryKernel("np.exp_tanh", "numpy", "exp(tanh(x))", "np.exp(np.tanh({x}), out={out})")
    changed = numpy.with_templates((rough, fused, *numpy.templates))
    cheap = {rough: 0.01, fused: 0.5}
    monkeypatch.setattr(measuring, "select", lambda choice: [changed])
    monkeypatch.setattr(CpuMeasurer, "time", lambda self, t, c: Measured((cheap.get(t, 9.0),) * 5, {"rel_fro": 0.0}))
    x, y = tg.input("x", (8, 16)), tg.input("y", (8, 16))
    v, w = tg.param("v", (16, 64)), tg.param("w", (64, 16))
    params = {n: RNG.standard_normal(s).astype(np.float32) for n, s in {"v": (16, 64), "w": (64, 16)}.items()}
    model = Graph.of({"a": (x @ v) @ w, "c": tg.exp(tg.tanh(y))}, params=params)  # rewritten: x @ (v @ w)
    for share, dropped in ((0.25, [exclusions.REWRITTEN]), (-1.0, [exclusions.REWRITES])):
        monkeypatch.setattr(accept_stage, "LATE", share)  # of the budget: what another verification may take
        clock = Clock("verify", 1000.0)
        made = optimize_graph(
            Session(Options(backend="numpy", budget=600.0, again=True), Progress(clock.say), now=clock), model
        )
        found = made.report.verification
        assert found["passed"] and found["dropped"] == dropped and len(found["failed"]) == 1
        assert found["failed"][0]["excluded"] == dropped and found["failed"][0]["error"] > found["failed"][0]["allowed"]
        assert "other plans within tolerance" in made.report.omitted
        assert "np.exp_tanh" in {k.name for k in made.report.kernels}


@pytest.mark.parametrize(
    ("begins", "dropped"), [(0.0, ["rough_0", "rough_1", "rough_2"]), (500.0, ["rough_0"]), (560.0, [])]
)
def test_another_plan_is_sought_only_if_its_verification_ends_in_time(
    begins: float, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each verification takes 100 s; the budget is 600 s, and other plans may take a quarter more."""
    numpy = backend("numpy")
    rough = [
        LibraryKernel(f"rough_{i}", "numpy", "exp(x)", f"np.multiply(np.exp({{x}}), np.float32({1.0005 + i / 10000}), out={{out}})")
        for i in range(3)
    ]  # fmt: skip
    monkeypatch.setattr(measuring, "select", lambda choice: [numpy.with_templates((*rough, *numpy.templates))])
    cheap = {k: 1.0 + i for i, k in enumerate(rough)}
    monkeypatch.setattr(CpuMeasurer, "time", lambda self, t, c: Measured((cheap.get(t, 9.0),) * 5, {"rel_fro": 0.0}))
    clock, began, verify = Clock("build", begins), list[float](), verify_attempt.verify

    def slow(*args: Any, **named: Any) -> Any:
        began.append(clock.time)
        clock.time, clock.seconds = clock.time + 100.0, 0.0
        return verify(*args, **named)

    monkeypatch.setattr(verify_attempt, "verify", slow)
    made = optimize_graph(
        Session(Options(backend="numpy", budget=600.0, again=True), Progress(clock.say), now=clock),
        Graph.of(tg.exp(tg.input("x", (8, 16)))),
    )
    found = made.report.verification
    before = (
        found["dropped"][: found["dropped"].index("all rewrites")]
        if "all rewrites" in found["dropped"]
        else found["dropped"]
    )
    assert found["passed"] and before == dropped, (began, found)


@pytest.mark.parametrize("late", [False, True])
def test_no_kernels_are_generated_for_the_graph_as_it_came_once_the_time_is_up(late: bool) -> None:
    """The last resort of a plan over tolerance: matched anew, after the budget."""
    clock = Clock("", 0.0)
    session = Session(Options(backend="auto", budget=10.0), Progress(clock.say), now=clock)
    source = graph()
    task = Task(source, prepare(session, source, None), [backend("numpy"), backend("c")])
    pricer: Any = SimpleNamespace(errors={})
    loop = acceptance(session, task, pricer, None, None, (), dict)
    clock.time = 11.0 if late else 1.0
    generated = [c for c in loop.exclusions.plain().candidates if c.template.space is not None]
    assert bool(generated) != late


def test_a_plan_that_a_budget_cut_is_searched_again_with_a_larger_one(home: Path) -> None:
    made = tg.optimize(graph(), backend="numpy", budget=0.0)
    assert right(made) and "measuring" in made.report.omitted
    assert tg.optimize(graph(), backend="numpy", budget=0.0).report.from_plan_cache
    again = tg.optimize(graph(), backend="numpy", budget=60.0)
    assert not again.report.from_plan_cache and again.report.omitted == [] and right(again)


@pytest.mark.parametrize("budget", [2.0, 5.0, 15.0, 40.0])
@pytest.mark.parametrize("ahead", [False, True], ids=["cpu", "gpu"])
def test_measuring_leaves_the_stages_after_it_their_time(
    ahead: bool, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was used before it, measuring, its closing phase and what is expected after them end in the budget,
    but for a least share of what was left."""
    given: list[tuple[float, float]] = []

    def searched(*values: Any, seconds: float, closing: float, **more: Any) -> Any:
        given.append((seconds, closing))
        return SimpleNamespace(seconds={})

    monkeypatch.setattr(choosing, "search", searched)
    now, measurer = [0.0], SimpleNamespace(ahead=ahead)
    nothing: Any = SimpleNamespace(candidates=())
    session = Session(Options(budget=budget), now=lambda: now[0])
    session.expected = ExpectedTimes(verification_s=0.02 * budget, input_s=0.01 * budget, compiling_s=0.05 * budget)
    session.stage_clock.add("measure", 1.0)  # a GPU's first search has a least time, because processes start meanwhile
    after = 0.07 * budget if not ahead else 0.02 * budget + reserves.building_s(session) + reserves.ending_s(session)
    shares = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    for share in shares:
        now[0] = share * budget
        choosing.choose(session, nothing, nothing, measurer)  # type: ignore[arg-type]
    for share, (seconds, closing) in zip(shares, given, strict=True):
        left = max(0.0, 1 - share) * budget
        least = 0.8 * left * (choosing.SEARCH_GPU if ahead else choosing.SEARCH_CPU)
        assert seconds == pytest.approx(least) or share * budget + seconds + closing + after <= budget + 1e-9
        assert closing <= (0.1 if ahead else 0.2) * budget + 1e-9 and seconds <= 0.8 * left + 1e-9
    assert given[0][0] > 0.3 * budget, "an early search has more than its least share"


@pytest.mark.parametrize("slowed", [1.0, 6.0])
def test_c_functions_are_compiled_early_where_they_end_in_the_budget(
    slowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long that is expected to take was learned from compilations of this process, which are slower on a busy
    machine."""
    monkeypatch.setattr(compile_clock, "_slowed", 1.0)
    now, begun = [0.0], list[float]()
    watch = compile_clock.CompileWatch(lambda: now[0])
    watch.ended()
    assert compile_clock.expected_compile_seconds(0.5) == 0.5, "nothing was compiled: nothing is learned"
    watch.seconds(0)  # asks the compiler for its version
    now[0] = 100.0
    for characters in (20_000, 40_000):  # at the same time
        watch.seconds(characters)
    now[0] += slowed * 2.1
    watch.ended()
    assert compile_clock.expected_compile_seconds(0.5) == pytest.approx(0.5 * slowed)
    x = tg.input("x", (6, 8)) @ tg.param("w", (8, 8))
    measurer: Any = SimpleNamespace(compile=lambda kernels: begun.append(now[0]))
    task: Any = SimpleNamespace(backends=[SimpleNamespace(name="c", generates=True)], work=Graph.of(x))
    session = Session(Options(budget=5.0), now=lambda: now[0])
    for second in (0.0, 1.9, 2.1, 4.4, 4.6, 6.0):
        now[0] = session.budget_start + second
        searching.compile_early(session, task, measurer)
    assert len(begun) == (4 if slowed == 1.0 else 2)


#: Seconds of stages of a first call on a CPU (`benchmarks.cpu.first_budget`), beside 1.5 s of loading. Verification has
#: the compiler's second.
FIRST_CALL = {
    "saturate": 0.2,
    "candidates": 0.2,
    "extract": 0.3,
    "build": 0.1,
    "verify": 1.1,
    "time": 0.1,
    "compare": 0.3,
}
KERNEL_S = 0.2  # measuring a kernel


@pytest.mark.parametrize("budget", [2.0, 5.0, 15.0, 40.0])
def test_a_call_ends_in_its_budget(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tenth and half a second more; if stages that no clock ends take longer, at most a second after them."""
    clock, measured = Clock("", 0.0), list[float]()

    def text(stage: str, message: str) -> None:
        clock.time += FIRST_CALL.get(stage, 0.0) if not message.startswith(("round", "at last")) else 0.0

    def took(self: Any, template: Any, call: Any) -> Measured:
        clock.time += KERNEL_S
        measured.append(clock.time)
        return Measured((float(len(template.name)),) * 5, {"rel_fro": 0.0})

    monkeypatch.setattr(CpuMeasurer, "time", took)
    monkeypatch.setattr(searching, "expected_seconds", lambda *given: FIRST_CALL["verify"])
    for module in (plan_solver, extract_search):
        only_in(monkeypatch, module, "time", monotonic=clock)
    x = tg.input("x", (8, 16))
    for i in range(1, 9):  # more kernels of their own shapes than 5 s suffice for
        x = tg.concat([tg.tanh(x) * 0.5, tg.input(f"x{i}", (i, 16))], 0)
    session = Session(Options(backend="numpy", budget=budget, effort=0), Progress(text), now=clock)
    clock.time = 1.5
    made = optimize_graph(session, Graph.of(x))
    assert made.report.verification["passed"] and ("measuring" in made.report.omitted) == (budget < 15.0)
    mandatory = 1.5 + sum(FIRST_CALL.values())
    assert clock.time <= max(1.1 * budget + 0.5, mandatory + 1.0), (clock.time, mandatory)
    assert budget < 5.0 or len(measured) * KERNEL_S > 0.2 * budget or "measuring" not in made.report.omitted


def test_the_least_time_of_measuring_counts_from_when_the_processes_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if measuring began before the search, and only for the first search; with small budgets, whose kernels of
    the rewritten graph were not measured yet, all of it counts from the search's begin."""
    given: list[float] = []

    def searched(*values: Any, least: float, **more: Any) -> Any:
        given.append(least)
        return SimpleNamespace(seconds={"measure": 1.0})

    monkeypatch.setattr(choosing, "search", searched)
    now, starting, nothing = [0.0], [True], SimpleNamespace(candidates=(), ahead=True)
    for budget, ready, asked in (
        (20.0, None, 5.0),
        (20.0, 4.5, 6.0),
        (20.0, 1.0, 5.0),
        (5.0, None, 5.0),
        (5.0, 1.0, 5.0),
    ):
        now[0], starting[0] = 0.0, True
        session = Session(Options(budget=budget), now=lambda: now[0])
        session.starting = lambda: starting[0]
        assert session.waiting
        if ready is not None:
            now[0], starting[0] = ready, False
            assert not session.waiting
        now[0] = asked
        choosing.choose(session, nothing, nothing, nothing)  # type: ignore[arg-type]
        choosing.choose(session, nothing, nothing, nothing)  # type: ignore[arg-type]
    assert given == [2.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(("used", "kept", "most"), [(0.0, 0.0, 10.0), (0.0, 6.0, 7.0), (4.0, 14.0, 4.0)])
def test_rewriting_leaves_the_stages_after_it_their_time(
    used: float, kept: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what they leave of 20 s, but a quarter of what is left in any case."""
    now, given = [0.0], []

    def saturated(*values: Any, deadline: float, **more: Any) -> Any:
        given.append(deadline)
        raise Halted

    monkeypatch.setattr(rewriting, "saturate_in_stages", saturated)
    session = Session(Options(budget=20.0), now=lambda: now[0])
    now[0] = used
    with pytest.raises(Halted):
        rewriting.rewrite(session, graph(), None, kept)
    assert given == [most]


def test_a_further_input_is_verified_only_if_that_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input takes 100 s of 600 s, the first verification of a program begins after 350 s."""
    clock = Clock("build", 350.0)
    plain = verify_attempt.run_first

    def slow(program: Any, values: Any) -> Any:
        clock.time += 100.0
        return plain(program, values)

    monkeypatch.setattr(verify_attempt, "run_first", slow)
    monkeypatch.setattr(searching, "expected_run_seconds", lambda *given: 100.0)
    made = run(Progress(clock.say), clock)
    assert right(made) and made.report.verification["seeds"] == 2
    assert "verification on 1 of 3 inputs" in " ".join(made.report.omitted)


def test_c_kernels_are_compiled_while_the_reference_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the program runs after both."""
    plain, run_first = reference.evaluate, verify_attempt.run_first
    compiling, computed, ended = (threading.Event() for _ in range(3))

    def compiled(program: Any) -> None:
        compiling.set()
        assert computed.wait(WAIT_S)
        ended.set()

    def evaluated(*given: Any, **more: Any) -> Any:
        assert compiling.wait(WAIT_S)
        found = plain(*given, **more)
        computed.set()
        return found

    def ran(program: Any, values: Any) -> Any:
        assert ended.is_set()
        return run_first(program, values)

    monkeypatch.setattr(Program, "compile", compiled)
    monkeypatch.setattr(reference, "evaluate", evaluated)
    monkeypatch.setattr(verify_attempt, "run_first", ran)
    assert right(run(Progress()))


def test_generating_kernels_has_a_tenth_of_the_budget_however_late_it_begins() -> None:
    """As long as that leaves as much as looking at layouts is to leave."""
    moment = [0.0]

    def ends(began: float) -> float:
        moment[0] = 0.0
        session = Session(Options(budget=40.0), now=lambda: moment[0])
        moment[0] = began
        enough = generation_limit(session, [backend("torch_cuda")])
        while not enough(False):
            moment[0] += 0.25
        return moment[0]

    assert ends(5.0) == 16.0, "60 % are left"
    assert ends(18.0) == 22.0 and ends(21.0) == 24.0
    assert ends(29.0) == 30.0 and ends(35.0) == 36.0, "a second at least"


@pytest.mark.parametrize(("seconds", "generates"), [(0.0, True), (2.0, False)])
def test_fused_kernels_are_generated_even_if_loading_used_the_budget_up(seconds: float, generates: bool) -> None:
    """For a tenth of the budget; on a CPU."""
    moment = [0.0]

    def now() -> float:
        moment[0] += seconds  # between two looks at the clock
        return moment[0]

    session = Session(Options(backend="auto", budget=10.0), now=now)
    source = graph()
    task = Task(source, prepare(session, source, None), [backend("numpy"), backend("c")])
    blocks, moment[0] = rewriting.found_blocks(session, task.work), 20.0
    (found,) = match_all(session, task, rewriting.Rewritten(rewriting.as_written(blocks), blocks, [], []))
    assert any(c.template.space is not None for c in found.candidates) == generates


@pytest.mark.parametrize(("budget", "narrow"), [(5.0, True), (60.0, False)])
def test_small_budgets_match_cheap_terms_and_what_was_written(
    budget: float, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when no time is left: then library kernels cover the graph, as the unrewritten one."""
    monkeypatch.setattr(matching, "LARGE_VIEW", 1)
    source, limits = graph(), tg.Limits(iterations=3, seconds=WAIT_S)
    patient = Session(Options(backend="auto", budget=10 * WAIT_S, limits=limits))
    session = Session(Options(backend="auto", budget=budget), now=lambda: 0.0)
    task = Task(source, prepare(session, source, None), [backend("numpy"), backend("c")])
    rewritten = rewriting.rewrite(patient, task.work)
    for late in (False, True):
        session.omitted, session.budget_start = [], -budget * late
        found = match_all(session, task, rewritten)[-1].view
        assert (len(found) < len(rewritten.view)) == (narrow or late)
        assert narrow == (Omission(OmittedWork.MATCHING, "expensive terms") in session.omitted)
        assert (UNREWRITTEN in session.omitted) == (late and not narrow)
        assert {t.op for t in task.work.nodes()} <= {*found.op}
    if narrow:
        price = node_prices(rewritten.view, Roofline())
        root = rewritten.view.roots[0]
        assert found.cheapest(node_prices(found, Roofline()))[0][root] == rewritten.view.cheapest(price)[0][root]


def test_kernels_are_generated_until_the_measuring_processes_have_started() -> None:
    """Nothing else could use that time; but not for longer than processes take to start."""
    moment, ready = [0.0], [False]
    session = Session(Options(budget=5.0), now=lambda: moment[0])
    session.starting = lambda: not ready[0]
    enough = generation_limit(session, [backend("torch_cuda")])
    assert not enough(False)
    moment[0] = 4.5
    assert not enough(False) and not enough(True)
    ready[0] = True
    assert enough(False) and not enough(True), "what is generated is bound"
    moment[0] = 5.0
    assert enough(True)
    ready[0], moment[0] = False, 9.0
    assert enough(False)


def test_generation_on_a_cpu_leaves_time_for_measuring() -> None:
    """Kernels were matched until a fifth of the budget was left, and none of them was measured on a busy machine."""
    moment = [0.0]
    host = [backend("numpy"), backend("c")]
    options = ({}, {"budget": 9.0}, {"measure": False})
    limits = [generation_limit(Session(Options(**{"budget": 60.0, **o}), now=lambda: moment[0]), host) for o in options]
    assert not any(enough(False) for enough in limits)
    moment[0] = 25.0
    assert limits[0](False) and not limits[0](True), "what is generated is bound"
    moment[0] = 50.0
    assert [enough(False) for enough in limits] == [True, False, False] and limits[0](True)


def test_the_least_time_of_generation_counts_from_the_start_of_the_processes_that_lower() -> None:
    """Else a small budget, in which they start late, had plans of library kernels only."""
    moment, pool = [0.0], SimpleNamespace(starting=True)
    session = Session(Options(budget=5.0), now=lambda: moment[0])
    session.lowerings.pool = pool  # type: ignore[assignment]
    enough = generation_limit(session, [backend("torch_cuda")])
    moment[0] = 2.75
    assert not enough(False)
    pool.starting, moment[0] = False, 3.0
    assert not enough(False)
    moment[0] = 3.5
    assert not enough(False)
    moment[0] = 3.75
    assert enough(False) and not enough(True), "what is generated is bound"
    assert session.ready_s == 1.0, "the time of measuring counts from when generation saw its processes"
    moment[0] = 4.25
    assert enough(True)
    pool.starting = True
    assert enough(False), "they may never start"


def test_an_interrupt_while_processes_start_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process that nobody ends, nor a worker that later calls would wait for for ever."""
    started, begin = [], worker.start_worker
    monkeypatch.setattr(worker, "start_worker", lambda *a, **k: started.append(begin(*a, **k)) or started[-1])

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    pool = worker.Pool(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        only_in(patch, worker, "threading", Thread=Interrupted)
        pool.begin()
    assert [p.poll() is None for p in started] == [False]
    with pool.session() as one, pool.session() as other:  # both are free
        assert one is not other
        one.prepare()
    pool.close()


def test_an_interrupt_while_lowering_workers_start_keeps_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    pool = lowering_pool.LowerPool(1)
    with monkeypatch.context() as patch:
        patch.setattr(lowering_pool, "start_worker", interrupted)
        for _ in range(lowering_pool.MAX_WORKERS):
            with pytest.raises(KeyboardInterrupt):
                pool.begin()
    pool.begin()
    assert len(pool._processes) == 1
    pool.close()


@pytest.mark.parametrize(
    ("plain", "kept", "known"),
    [(["conv", "mm"], ["conv", "mm"], 0), (["conv", "other conv", "mm"], ["other conv", "mm"], 1)],
)
def test_excluded_kernels_come_back_where_the_unrewritten_graph_needs_them(
    plain: list[str], kept: list[str], known: int
) -> None:
    """When time has run out, that graph is matched with library kernels only: one for each operator."""
    said: list[str] = []

    def choose(found: Any, limits: Any) -> Any:
        if not any("conv" in c.template.name for c in found.candidates):
            raise NoPlanError("no kernels cover the outputs")
        return found

    graph: Any = FakeGraph([SimpleNamespace(template=SimpleNamespace(name=n, backend="torch")) for n in plain])
    out = exclusions.Exclusions(choose, lambda of: [], lambda: graph, said.append, dropped=["conv"])
    assert [c.template.name for c in out.without_rewrites().candidates] == kept
    assert out.dropped == ["conv", exclusions.REWRITES] and bool(out.tighter) == bool(known)
    assert said == [] if known else said == ["the unoptimized graph needs conv"]


@dataclass(frozen=True)
class FakeGraph:
    """A hypergraph that has candidates only."""

    candidates: list[Any]


def test_no_garbage_collection_of_a_search_traverses_what_was_there_before() -> None:
    """With PyTorch imported, each full collection took 0.35 s, a quarter of a call with a small budget."""
    frozen: list[int] = []
    say = lambda *texts: frozen.append(gc.get_freeze_count())
    x = np.ones((4, 4), np.float32)
    tg.optimize(lambda a: a + 1, (x,), backend="numpy", budget=1, measure=False, progress=tg.Progress(say=say))
    assert frozen and min(frozen) > 10_000
    assert gc.get_freeze_count() < 10_000


def test_the_first_run_of_a_program_copies_its_weights_and_launch_overlaps_share_them() -> None:
    """Decode steps of 8B had no time left to compare launch overlaps, which save up to a tenth of their time."""
    session = Session(Options(budget=40.0), now=lambda: 0.0)
    session.expected = ExpectedTimes(binding_s=4.0)
    assert reserves.building_s(session) == reserves.BUILD_S + reserves.FIRST_RUN_S + 4.0
    assert reserves.launching_s(session) == reserves.LAUNCHING_S
    assert reserves.whole_s(session, 20_000) > reserves.whole_s(session, 10_000) > reserves.WHOLE_S
