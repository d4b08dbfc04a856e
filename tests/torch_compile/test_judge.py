"""The decision between a program and eager calls, with given times."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensor_graphs.torch_compile import compiled_graph, judge, whole_calls  # noqa: E402
from tensor_graphs.torch_compile.options import CompileOptions  # noqa: E402


@pytest.mark.parametrize(
    ("device", "single", "queued", "wins"),
    [
        ("cpu", (2.0, 1.0), (0.0, 9.0), True),  # queued calls are a matter of GPUs
        ("cuda", (2.0, 1.0), (16.0, 8.0), True),
        ("cuda", (2.0, 1.0), (16.0, 24.0), False),  # copies that a single call hides
        ("cuda", (1.0, 2.0), (16.0, 8.0), False),
        ("cuda", (1.0, 0.99), (16.0, 8.0), False),  # within noise
    ],
)
def test_a_program_must_win_singly_and_not_lose_queued(
    device: str, single: tuple[float, float], queued: tuple[float, float], wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = [0]

    def call() -> None:
        called[0] += 1

    def timed(calls: dict[str, Callable[[], Any]], *_: Any) -> dict[str, list[float]]:
        called[0] = 0
        calls["eager"]()
        us = queued if called[0] == judge.QUEUED else single
        return {"eager": [us[0]] * 5, "program": [us[1]] * 5}

    monkeypatch.setattr(judge, "timed", timed)
    assert judge.faster(call, call, device == "cuda", lambda: None).won is wins


@pytest.mark.parametrize(
    ("eager", "program", "queued", "why"),
    [
        ([200.0] * 6, [297.6] * 6, None, ""),  # the times say it
        ([100.0] * 6, [99.0] * 6, None, ": the difference is within the noise of 2 %"),
        ([100.0] * 3, [90.0] * 3, None, ": the difference is within the noise of 25 % of 3 timed calls"),
        ([90.0, *[100.0] * 5], [90.0] * 6, None, ": the fastest calls take 90.0 µs and 90.0 µs"),
        ([2000.0, *[2100.0] * 5], [1990.0] * 6, None,
         ": the fastest calls take 1.99 ms and 2.00 ms: they differ by less than the noise of 2 %"),
        ([80.0, 80.0, 80.0, *[100.0] * 4], [79.9, 79.9, 79.9, 70.0, 70.0, 70.0, 70.0], None,
         ": only 4 of 7 pairs of calls are won by more than the noise of 2 %"),
        ([100.0] * 6, [90.0] * 6, (16 * 40.0, 16 * 50.0),
         ": these are times of 16 calls without waiting between them; singly, 90.0 µs and 100.0 µs"),
    ],
)  # fmt: skip
def test_a_report_says_which_condition_failed(
    eager: list[float],
    program: list[float],
    queued: tuple[float, float] | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = [{"eager": eager, "program": program}]
    if queued is not None:
        samples.append({"eager": [queued[0]] * 5, "program": [queued[1]] * 5})
    monkeypatch.setattr(judge, "timed", lambda *_: samples.pop(0))
    run = lambda: None
    verdict = judge.faster(run, run, queued is not None, run)
    module = torch.nn.Module()
    module.graph = torch.fx.Graph()
    graph = compiled_graph.CompiledGraph(module, CompileOptions.of({}))
    graph.traced = [SimpleNamespace(variants=[SimpleNamespace(state="lost", why="")])]  # type: ignore[list-item]
    graph.report.eager_us, graph.report.program_us, graph._slower = verdict.eager_us, verdict.program_us, verdict.why
    graph._settle()
    times = f"{verdict.program_us:.1f} µs a call, eager {verdict.eager_us:.1f} µs"
    clearly = "clearly " if verdict.program_us < verdict.eager_us else ""
    assert not samples and graph.report.why == f"programs are not {clearly}faster: {times}{why}"


@pytest.mark.parametrize(
    ("compiled", "own", "why"),
    [
        ([9.0] * 13, [8.0] * 13, ""),
        ([8.0] * 13, [9.0] * 13, ""),
        ([8.9] * 13, [9.0] * 13, ": the difference is within the noise of 2 %"),
        ([1.0, *[8.0] * 6, *[10.0] * 6], [1.0, *[9.0] * 12],
         ": only 6 of 12 pairs of calls are won by more than the noise of 2 %"),
    ],
)  # fmt: skip
def test_whole_calls_say_why_they_go_to_the_module(compiled: list[float], own: list[float], why: str) -> None:
    trial = whole_calls.CallTrial(print, print)
    trial.us = compiled, own
    assert trial.why == why and trial.faster is (compiled[1] == 8.0 and not why)
