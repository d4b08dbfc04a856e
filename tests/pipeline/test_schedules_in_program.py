"""Schedules of repeated kernels, chosen by the time of the whole program on a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Vertex, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.options import Options
from tensor_graphs.pipeline import short_search
from tensor_graphs.pipeline.context import reserves
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.execution import timing
from tensor_graphs.pipeline.stages import measure_prefetching, time_finalists, time_schedules
from tensor_graphs.pipeline.stages.accept import acceptance
from tensor_graphs.pipeline.stages.prepare import Task, prepare
from tensor_graphs.pipeline.stages.time_finalists import fastest_finalist
from tensor_graphs.pipeline.stages.verify_or_retry import IN_PROGRAM
from tensor_graphs.report.omissions import Omission, OmittedWork
from tensor_graphs.report.report import Report

pytestmark = pytest.mark.usefixtures("real_times")  # of simulated programs

GRAPH = Graph.of(tg.exp(tg.tanh(tg.exp(tg.tanh(tg.input("x", (8, 8)))))))
#: kernel -> (µs alone, µs inside the program) by schedule
US = {
    "np.exp": {1: (40.0, 40.0)},
    "np.tanh": {1: (38.0, 38.0), 2: (39.0, 30.0), 3: (44.0, 44.0), 4: (60.0, 1.0)},
    "other tanh": {1: (41.0, 20.0)},
}


def priced(name: str) -> list[Priced]:
    return [Priced(us, us, us, "measured", (("n", n), ("m", n))) for n, (us, _) in US[name].items()]


class Pricer:
    def price(self, found: Any) -> list[Priced]:
        return [priced(c.template.name)[0] for c in found]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Choice:
    monkeypatch.setattr(timing, "cold_clock_of", lambda device: lambda call: call())
    other = LibraryKernel("other tanh", "numpy", "tanh(x)", "np.tanh({x}, out={out})", version="other")

    class Kernels(BackendBase):
        def __init__(self) -> None:
            self.name = "test"
            self.templates = (other, *(t for t in backend("numpy").templates if t.name in US))

    return search(candidate_hypergraph(view_of(GRAPH), [Kernels()], view_strides), Pricer(), deterministic=True)


class Simulated:
    """A program that takes the sum of its kernels' times inside it, and `work` seconds of the clock to run first."""

    made: list[Simulated]
    wrong = ""  # name of kernels with wrong results

    def __init__(self, choice: Choice, late: list[float], work: float = 0.0) -> None:
        kernels = [
            (choice.hypergraph.candidates[i].template.name, dict(choice.prices[i].schedule)["n"]) for i in choice.chosen
        ]
        self.us, self.plan = sum(US[name][n][1] for name, n in kernels), plan_of(choice, GRAPH)
        self.result = 2.0 if self.wrong in dict(kernels) else 1.0
        self.manifest, self.tensors, self.input_names = SimpleNamespace(states=()), "", ["x"]
        self.late, self.work, self.bound = late, work, True
        self.made.append(self)

    def launching_as(self, other: Any) -> Simulated:
        return self

    def flat_near(self, *_: Any) -> float:
        return self.us

    def near(self, values: Any) -> Any:
        return values

    def missing_bytes(self) -> int:
        return 1

    def wait(self, what: str) -> None:
        self.late.append(self.work)

    def unbind(self) -> None:
        self.bound = False


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulated, "made", [], raising=False)
    monkeypatch.setattr(time_finalists, "finalists", lambda choice, **limits: [choice])
    monkeypatch.setattr(time_schedules, "results_of", lambda program, values: [torch.full((3,), program.result)])


def timed(
    choice: Choice, budget: float = 40.0, work: float = 0.0, late_known: str = ""
) -> tuple[Choice, Any, Session, list[Any]]:  # fmt: skip
    """The choice after timing, its program, the session, and the calls that were compiled. `late_known`: a kernel that
    is measured when it is asked for."""
    late, compiled = [0.0], list[Any]()
    session = Session(Options(backend="gpu", budget=budget), now=lambda: sum(late))
    task: Any = SimpleNamespace(on_gpu=True, symbolic=None, model=SimpleNamespace(graph=GRAPH))
    build: Callable[[Choice], Any] = lambda c: Simulated(c, late, work)
    asked = set[str]()

    def compiler(calls: Any, seconds: float) -> bool:
        compiled.extend(calls)
        return True

    def look(candidates: Any, *, worth: Any) -> None:
        assert all(worth(c) < 60.0 for c in candidates) and not worth.ended()
        asked.update(c.template.name for c in candidates)

    def measured(candidate: Any) -> list[Priced]:
        name = candidate.template.name
        return priced(name) if name != late_known or name in asked else []

    best, program = fastest_finalist(session, task, choice, build(choice), build, compiler, measured, look)
    return best, program, session, compiled


def kernels(choice: Choice) -> list[tuple[str, int]]:
    """Name and schedule of each kernel."""
    return [
        (choice.hypergraph.candidates[i].template.name, dict(choice.prices[i].schedule)["n"]) for i in choice.chosen
    ]


def test_repeated_kernels_get_the_schedule_that_is_fastest_in_the_program(choice: Choice) -> None:
    """Also another kernel for the same values; those that are much slower alone are not tried."""
    best, program, session, compiled = timed(choice)
    assert kernels(choice) == [("np.tanh", 1), ("np.exp", 1)] * 2
    assert kernels(best) == [("other tanh", 1), ("np.exp", 1)] * 2 and program.us == 120.0
    assert best.alone is choice and [p.bound for p in Simulated.made].count(True) == 1 and program.bound
    assert best.cost == 162.0 == best.extraction.cost and plan_of(best, GRAPH).steps[0].call.schedule == {
        "n": 1,
        "m": 1,
    }
    tried = [f.changed for f in session.finalists]
    assert tried[0] == tried[-1] == "" and "2 x other tanh" in tried[2]
    assert [f.chosen for f in session.finalists] == [False] * (len(tried) - 1) + [True]
    assert not any("n=4" in text for text in tried) and {t.name for t, _ in compiled} == {"np.tanh", "other tanh"}
    report = Report("m", "gpu", finalists=session.finalists)
    assert Report.of_json(report.fields()).finalists == session.finalists and "other schedules timed" in str(report)


def test_schedules_with_other_results_are_left_out(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulated, "wrong", "other tanh")
    best, program, session, _ = timed(choice)
    assert kernels(best)[0] == ("np.tanh", 2) and program.us == 140.0
    assert session.warnings == ["1 other schedule left out in the program: results that differ"]


@pytest.mark.parametrize("holds", [True, False])
def test_a_kernel_that_could_hold_weights_is_measured_first(
    choice: Choice, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_prefetching, "prefetches", lambda c: holds and c.template.name == "other tanh")
    best, _, _, _ = timed(choice, late_known="other tanh")
    assert kernels(best)[0] == (("other tanh", 1) if holds else ("np.tanh", 2))


def test_schedules_that_read_all_weights_before_the_wait_are_measured_and_come_first() -> None:
    """Some of them for each kernel in CUDA C++, those measured before included; of a loop over a sum only the first
    iteration is read early."""
    template = generated(
        t.matmul(t.input("x", (1, 2048), "bfloat16"), t.transpose(t.input("w", (512, 2048), "bfloat16")))
    )
    types = {"x": (1, 2048), "w": (512, 2048), "out": (1, 512)}
    operands = {n: Operand(Type(shape, "bfloat16"), contiguous(shape)) for n, shape in types.items()}
    call = Call({n: operands[n] for n in template.operands}, operands["out"], {})
    kernel = Candidate(template, Vertex(0, operands["out"].strides), (), call)
    whole, loop = ({"early": 1, "t0": threads, "tn": 1, "u0": 1, "um": 1, "un": 1, "v0": 8} for threads in (256, 128))
    of = lambda s: replace(kernel, call=replace(call, schedule=s))
    assert measure_prefetching.reads_whole(of(whole)) and not measure_prefetching.reads_whole(of(loop))
    found = measure_prefetching._further(kernel, lambda c: [])
    assert len(found) == measure_prefetching.EACH and all(map(measure_prefetching.reads_whole, found))
    known = [Priced(1.0, 1.0, 1.0, "measured", tuple(sorted(c.call.schedule.items()))) for c in found[:3]]
    assert len(measure_prefetching._further(kernel, lambda c: known)) == 1
    rank = time_schedules._rank("held")
    prices = [replace(known[0], schedule=tuple(sorted(s.items()))) for s in (whole, loop, {**whole, "early": 0})]
    assert [rank(kernel, p) for p in prices] == [0, 1, 3]


def test_a_short_form_measures_such_kernels_for_the_whole_model(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model has only measured ones as candidates."""
    asked: list[str] = []

    class Measured(Pricer):
        def measured(self, candidate: Any) -> list[Priced]:
            return self.price([candidate]) if candidate.template.name in asked else []

        def price(self, found: Any) -> list[Priced]:
            return [replace(p, us=p.us - 5.0) for p in super().price(found)]

    monkeypatch.setattr(measure_prefetching, "prefetches", lambda c: c.template.name == "other tanh")
    measure = lambda candidates, worth: asked.extend(c.template.name for c in candidates)
    measurer: Any = SimpleNamespace(ahead=True, measure=measure)
    pricer: Any = Measured()
    made = short_search._with_prefetching(Session(Options(budget=40.0)), choice, pricer, measurer)
    us = {(c.template.name, p.us) for c, p in zip(made.hypergraph.candidates, made.prices, strict=True)}
    assert asked == ["other tanh"] and us == {("other tanh", 36.0), ("np.tanh", 38.0), ("np.exp", 40.0)}
    assert short_search._with_prefetching(Session(Options(budget=10.0)), choice, pricer, measurer) is choice


@pytest.mark.parametrize(("budget", "work", "omitted"), [(10.0, 0.0, False), (40.0, 36.0, True), (40.0, 37.5, True)])
def test_schedules_stay_without_time(choice: Choice, budget: float, work: float, omitted: bool) -> None:
    """Small budgets have no time for them; a first run that takes long uses it up."""
    best, program, session, _ = timed(choice, budget, work)
    assert best is choice and program.us == 156.0
    assert (Omission(OmittedWork.TIMING_SCHEDULES) in session.omitted) is omitted


def test_time_is_kept_for_models_with_few_weights_only() -> None:
    session = Session(Options(budget=40.0))
    session.expected.repeats = True
    assert reserves.schedules_s(session) == reserves.trying_s(session) > reserves.holding_s(session) > 0
    session.expected.weight_bytes = 2 * int(reserves.FEW_WEIGHTS)
    assert reserves.schedules_s(session) == reserves.holding_s(session) == 0


def test_a_failed_verification_goes_back_to_the_kernels_that_are_the_fastest_alone() -> None:
    graph, wrong = (Graph.of(t.input("x", (4, 4)) * factor) for factor in (2.0, 3.0))
    session = Session(Options(backend="numpy", budget=60.0))
    task = Task(graph, prepare(session, graph, None), [backend("numpy")])
    pricer: Any = SimpleNamespace(errors=lambda found: [0.0] * len(found))
    loop = acceptance(session, task, pricer, None, None, (), dict)
    found = candidate_hypergraph(view_of(task.work), task.backends, view_strides)
    first = search(found, Numbered(), deterministic=True)
    loop.exclusions.tighter = first
    chosen = replace(first)
    loop.fastest = lambda choice, program, build: (
        replace(chosen, alone=first),
        Program(direct_plan(wrong, task.backends)),
    )
    choice, program, verdict = loop.run(found)
    assert choice is first and program(torch.ones(4, 4)).flatten()[0] == 2.0 and verdict is not None
    assert verdict.passed and verdict.attempts == 2 and [f.excluded for f in verdict.failed] == [(IN_PROGRAM,)]


class Numbered(Pricer):
    """All kernels take the same time."""

    def price(self, found: Any) -> list[Priced]:
        return [Priced(1.0, 1.0, 1.0, "measured")] * len(found)


def test_programs_with_other_schedules_have_the_launch_mode_of_the_first() -> None:
    program, other = Program(direct_plan(GRAPH, [backend("numpy")])), Program(direct_plan(GRAPH, [backend("numpy")]))
    assert program.launching_as(other) is program and program.manifest.launch_mode == ""
    other._run = SimpleNamespace(launch_mode="graph", break_even=200)  # type: ignore[assignment]
    assert program.launching_as(other).manifest.launch_mode == "graph"
    assert other.manifest.launch_mode == "" and other.share({}).manifest.launch_mode == "graph"
    assert program.manifest.break_even == other.manifest.break_even == 200
