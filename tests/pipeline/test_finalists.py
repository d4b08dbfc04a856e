"""Finalists of a search, timed as whole programs by a simulated device on which that time is not the sum of kernel
times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.search.alternatives import finalists
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.reserves import after_finalists_s, after_search_s, launching_s
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.execution import timing
from tensor_graphs.pipeline.stages import time_finalists, time_launching
from tensor_graphs.pipeline.stages.time_finalists import fastest_finalist
from tensor_graphs.report.omissions import Omission, OmittedWork
from tensor_graphs.report.records import FinalistReport
from tensor_graphs.report.report import Report

pytestmark = pytest.mark.usefixtures("real_times")  # of simulated programs

GRAPH = Graph.of(tg.exp(tg.tanh(tg.input("x", (8, 8)))))
US = {"np.exp": 40.0, "np.tanh": 38.0, "both": 79.0, "both, unmeasured": 78.5, "both, slow": 90.0}


def hypergraph() -> Hypergraph:
    """exp(tanh(x)) by two kernels, or by one of three."""
    fused = [
        LibraryKernel(n, "numpy", "exp(tanh(x))", "np.exp(np.tanh({x}), out={out})", version=n)
        for n in US
        if "both" in n
    ]

    class Kernels(BackendBase):
        def __init__(self) -> None:
            self.name, self.templates = "test", (*fused, *(t for t in backend("numpy").templates if t.name in US))

    return candidate_hypergraph(view_of(GRAPH), [Kernels()], view_strides)


class Pricer:
    """All kernels measured but one."""

    def price(self, found: Any) -> list[Priced]:
        names = [c.template.name for c in found]
        return [Priced(US[n], US[n], US[n], "predicted" if "unmeasured" in n else "measured") for n in names]

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class SimulatedProgram:
    """A call takes the sum of the kernels' times and `launch_us` for each, and returns that time."""

    def __init__(self, choice: Choice, launch_us: float, nbytes: int = 1 << 20, fails: bool = False) -> None:
        self.us, self.kernels = choice.cost + launch_us * len(choice.chosen), len(choice.chosen)
        self.manifest, self.tensors, self.input_names = SimpleNamespace(states=()), "", ["x"]
        self.nbytes, self.fails, self.bound = nbytes, fails, True

    def flat_near(self, *_: Any) -> float:
        if self.fails:
            raise RuntimeError("no such kernel")
        return self.us

    def missing_bytes(self) -> int:
        return self.nbytes

    def near(self, values: Any) -> Any:
        return values

    def wait(self, what: str) -> None:
        pass

    def poisoned(self) -> Any:
        return nullcontext()

    def unbind(self) -> None:
        self.bound = False


def names(choice: Choice) -> list[str]:
    return sorted(choice.hypergraph.candidates[i].template.name for i in choice.chosen)


@pytest.fixture
def choice() -> Choice:
    return search(hypergraph(), Pricer(), deterministic=True)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "cold_clock_of", lambda device: lambda call: call())


def timed(
    choice: Choice, build: Callable[[Choice], Any], compile_s: float = 0.0, late: list[float] | None = None,
    verification_s: float = 0.0, **options: Any
) -> tuple[Choice, SimulatedProgram, Session]:  # fmt: skip
    """The fastest finalist. `late`: seconds that passed on the session's clock; compilers add `compile_s`."""
    late = [] if late is None else late
    session = Session(Options(backend="gpu", **{"budget": 60.0, **options}), now=lambda: sum(late))
    session.expected.verification_s = verification_s
    task: Any = SimpleNamespace(on_gpu=True, symbolic=None, model=SimpleNamespace(graph=GRAPH))

    def compiled(calls: Any, seconds: float) -> bool:
        late.append(min(compile_s, seconds))
        return compile_s <= seconds

    best, program = fastest_finalist(session, task, choice, build(choice), build, compiled)
    return best, program, session  # type: ignore[return-value]


def test_finalists_are_distinct_measured_plans_near_the_best(choice: Choice) -> None:
    assert names(choice) == ["np.exp", "np.tanh"] and choice.cost == 78.0
    found = finalists(choice, count=5, max_gap=0.1, seconds=60.0)
    assert [names(c) for c in found] == [["np.exp", "np.tanh"], ["both"]] and [c.cost for c in found] == [78.0, 79.0]
    assert not found[1].extraction.optimal and found[1].extraction.lower_bound <= 78.0
    wider = finalists(choice, count=5, max_gap=0.2, seconds=60.0)
    assert [names(c) for c in wider[2:]] == [["both, slow"]]
    assert len(finalists(choice, count=2, max_gap=0.2, seconds=60.0)) == 2


def test_programs_are_timed_with_full_caches() -> None:
    """A state that says how many positions are visible begins each timed call at its limit, others as they are."""
    at, count = t.state("at", (2,), "int64"), t.state("count", (2,), "int64")
    place = t.reshape(t.minimum(at, 5), (2, 1))
    seen = t.where(t.le(t.reshape(t.iota((8,), 0), (1, 8)), place), tg.input("x", (2, 8)), 0.0)
    graph = Graph.of(t.sum(seen, axis=1), updates={"at": at + 1, "count": count + 1})
    program = Program(direct_plan(graph, [backend("numpy")]))
    (samples,) = time_finalists.sample_programs([program], [np.ones((2, 8), np.float32)], lambda: True)
    assert samples[0][0].ravel().tolist() == [6.0, 6.0]  # type: ignore[index]
    assert [program.get_state(n).tolist() for n in ("at", "count")] == [[6, 6], [1, 1]]


def test_the_fastest_program_is_returned_and_all_are_reported(choice: Choice) -> None:
    made: list[SimulatedProgram] = []
    build = lambda c: made.append(SimulatedProgram(c, 4.0)) or made[-1]  # type: ignore[func-returns-value]
    best, program, session = timed(choice, build)
    assert names(best) == ["both"] and program is made[1] and [p.bound for p in made] == [False, True]
    assert session.finalists == [FinalistReport(2, 78.0, 86.0, False), FinalistReport(1, 79.0, 83.0, True)]
    assert "finalists" in session.stage_clock.seconds
    report = Report("m", "gpu", finalists=session.finalists)
    assert Report.of_json(report.fields()).finalists == session.finalists
    assert "86.0 µs (predicted 78.0 µs); 83.0 µs (predicted 79.0 µs), chosen" in str(report)


def test_a_difference_within_noise_keeps_the_predicted_plan(choice: Choice) -> None:
    best, program, session = timed(choice, lambda c: SimulatedProgram(c, 1.5))  # 81 and 80.5 µs
    assert best is choice and program.kernels == 2 and [f.chosen for f in session.finalists] == [True, False]


def test_finalists_that_fail_or_do_not_fit_are_left_out(choice: Choice) -> None:
    fails = lambda c: SimulatedProgram(c, 4.0, fails=len(c.chosen) == 1)
    large = lambda c: SimulatedProgram(c, 4.0, nbytes=9 << 30)
    for build in (fails, large):
        best, _, session = timed(choice, build)
        assert best is choice and not session.finalists and not session.warnings
    best, _, session = timed(choice, lambda c: SimulatedProgram(c, 4.0, fails=True))
    assert best is choice and "no such kernel" in session.warnings[0]


@pytest.mark.parametrize(
    ("predicted", "fails", "taken"),
    [(30.0, False, True), (50.0, False, True), (50.0, True, False), (60.0, False, False)],
)
def test_a_cut_search_tries_a_plan_with_unmeasured_kernels(
    choice: Choice, predicted: float, fails: bool, taken: bool
) -> None:
    """If it is a tenth cheaper with its kernels at their pessimistic times; it is taken if its program is faster."""
    found = choice.hypergraph.candidates
    prices = [
        Priced(predicted, predicted, 3 * predicted, "predicted") if "unmeasured" in c.template.name else p
        for c, p in zip(found, choice.prices, strict=True)
    ]
    cut = replace(choice, prices=prices, stopped="budget")
    best, _, _ = timed(cut, lambda c: SimulatedProgram(c, 1.5, fails=fails and len(c.chosen) == 1))
    assert (names(best) == ["both, unmeasured"]) is taken and (best.alone is cut) is taken
    whole = replace(cut, stopped="measured")
    assert names(timed(whole, lambda c: SimulatedProgram(c, 1.5))[0]) == ["np.exp", "np.tanh"]


def test_programs_that_take_long_to_bind_are_timed_more_than_once(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, late = finalists(choice, count=5, max_gap=0.1, seconds=60.0), list[float]()
    monkeypatch.setattr(time_finalists, "finalists", lambda *_, **__: found)

    class Bound(SimulatedProgram):
        def wait(self, what: str) -> None:
            late.append(0.12)

    best, _, session = timed(choice, lambda c: Bound(c, 4.0), late=late, budget=2.0)  # a twentieth of it for finalists
    assert names(best) == ["both"] and [f.chosen for f in session.finalists] == [False, True]


def test_nothing_is_timed_without_time(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_finalists, "finalists", lambda *_, **__: pytest.fail("searched"))
    assert timed(choice, lambda c: SimulatedProgram(c, 4.0), budget=0.0)[0] is choice


def test_a_first_run_that_uses_up_the_budget_ends_the_stage(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling and loading take seconds on a busy machine; what is optional must not follow them."""
    monkeypatch.setattr(time_finalists, "finalists", lambda *_, **__: pytest.fail("searched"))
    late = [0.0]

    class Slow(SimulatedProgram):
        def wait(self, what: str) -> None:
            late.append(39.0)

    best, _, session = timed(choice, lambda c: Slow(c, 4.0), late=late, budget=40.0, verification_s=0.1)
    assert best is choice and session.omitted == [
        Omission(OmittedWork.TIMING_PLANS),
        Omission(OmittedWork.TIMING_OVERLAPS),
    ]
    assert "first run" in session.stage_clock.seconds and "finalists" not in session.stage_clock.seconds


# ---------------------------------------------------------------- overlapping kernels
@dataclass
class EmptyPlan:
    """What is asked of a program's plan."""

    steps: tuple[Any, ...] = ()
    launching: str = ""


class Overlapping(SimulatedProgram):
    """A program that takes `saved_us` less if its kernels hold weights, and as much more if all of them overlap."""

    def __init__(self, choice: Choice, saved_us: float) -> None:
        super().__init__(choice, 4.0)
        self.plan, self.source, self.overlap = EmptyPlan(), "", choice.launching
        self.us -= {"": 0.0, "held": saved_us, "overlapping": -saved_us}[choice.launching]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Results of a program by whether its kernels overlap; ways to launch change every plan."""
    found = [torch.tensor([1, 2]), torch.tensor([1, 2])]
    monkeypatch.setattr(time_launching, "changes_schedules", lambda plan, launching: True)
    monkeypatch.setattr(time_launching, "plan_for_launching", lambda plan: plan)
    monkeypatch.setattr(time_launching, "results_of", lambda program, values: [found[bool(program.overlap)]])
    return found


def test_kernels_overlap_where_the_program_is_then_faster(choice: Choice, results: list[Any]) -> None:
    best, program, session = timed(choice, lambda c: Overlapping(c, 10.0))
    assert names(best) == ["both"] and best.launching == "held" and program.us == 73.0
    assert [f.chosen for f in session.finalists] == [False, False, True, False]
    assert session.finalists[2] == FinalistReport(1, 79.0, 73.0, True, "held")
    assert "73.0 µs (predicted 79.0 µs, held), chosen" in str(Report("m", "gpu", finalists=session.finalists))
    best, program, session = timed(choice, lambda c: Overlapping(c, 0.5))
    assert (
        not best.launching
        and program.us == 83.0
        and [f.chosen for f in session.finalists] == [False, True, False, False]
    )


def test_compilers_begin_with_other_ways_to_launch_before_the_first_run(choice: Choice, results: list[Any]) -> None:
    """That run loads the program's kernels in this process, for seconds; the others must not wait for it."""
    events: list[str] = []

    class Told(Overlapping):
        def wait(self, what: str) -> None:
            events.append(what)

    def compiled(calls: Any, seconds: float) -> bool:
        events.append("awaited" if seconds else "begun")
        return True

    session = Session(Options(backend="gpu", budget=60.0))
    task: Any = SimpleNamespace(on_gpu=True, symbolic=None, model=SimpleNamespace(graph=GRAPH))
    build: Any = lambda c: Told(c, 10.0)
    fastest_finalist(session, task, choice, build(choice), build, compiled)
    assert events[:2] == ["begun", "running a program for the first time"] and "awaited" in events[2:]


def test_compilers_take_no_time_from_timing_and_leave_some_for_the_stages_after(
    choice: Choice, results: list[Any]
) -> None:
    best, _, session = timed(choice, lambda c: Overlapping(c, 10.0), compile_s=4.5)
    assert names(best) == ["both"] and best.launching == "held" and session.omitted == []
    best, _, session = timed(choice, lambda c: Overlapping(c, 10.0), compile_s=4.5, budget=20.0)
    assert names(best) == ["both"] and session.omitted == []
    session = Session(Options(backend="gpu", budget=40.0))
    session.expected.verification_s = 0.5
    assert after_search_s(session) > launching_s(session) + after_finalists_s(session) > 0.5 + launching_s(session)
    small = Session(Options(backend="gpu", budget=5.0))
    assert 0.0 == launching_s(small) < after_finalists_s(small) < after_search_s(small) < 2.5


def test_ways_to_launch_that_are_compiled_in_time_are_tried_without_the_others(
    choice: Choice, results: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_launching, "_calls", lambda plan, overlaps: overlaps)
    session: Any = Session(Options(backend="gpu", budget=60.0))
    build: Any = lambda c: Overlapping(c, 10.0)
    compiled: Any = lambda overlaps, seconds: overlaps == ["held"]
    forms = time_launching.other_forms(session, choice, build(choice), build, compiled)
    assert [c.launching for c, _ in forms] == ["held"]
    assert session.omitted == [Omission(OmittedWork.TIMING_OVERLAPS)]


def test_ways_to_launch_take_the_time_of_further_inputs_of_the_verification(choice: Choice, results: list[Any]) -> None:
    best, _, session = timed(choice, lambda c: Overlapping(c, 10.0), 1.0, verification_s=6.0, budget=20.0)
    assert best.launching == "held" and session.omitted == []


def test_other_launches_are_not_tried_without_time_or_with_other_results(choice: Choice, results: list[Any]) -> None:
    best, _, session = timed(choice, lambda c: Overlapping(c, 10.0), budget=1.9)
    assert not best.launching and Omission(OmittedWork.TIMING_OVERLAPS) in session.omitted
    results[:] = torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])
    best, _, session = timed(choice, lambda c: Overlapping(c, 10.0))
    assert (
        not best.launching
        and "kernels are not held: results that differ from those of kernels as measured: 1 of 1" in session.warnings[0]
    )
