"""Whole programs are timed until their medians are known, not longer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tensor_graphs.pipeline.execution import timing
from tensor_graphs.pipeline.execution.timing import interleaved, is_faster, is_settled, sampled

from ..only_in import only_in

pytestmark = pytest.mark.usefixtures("real_times")


def test_a_median_is_settled_by_its_spread_and_count() -> None:
    assert is_settled([100.0] * 5) and is_settled([100.0, 101.0, 99.0, 100.5, 100.0] * 20)
    wild = [100.0, 140.0, 70.0, 120.0, 85.0]
    assert not is_settled(wild) and is_settled(wild * 3000)


@pytest.mark.parametrize(
    ("steps", "settled", "rounds"), [((1.0,), 0.2, 8), ((1.0, 1.6, 0.5), 0.2, 41), ((1.0,), float("inf"), 41)]
)
def test_rounds_end_once_all_is_known(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[float, ...], settled: float, rounds: int
) -> None:
    """Two calls of 25 ms each round: steady times need the least number of rounds, others those of the whole time."""
    now = 0.0
    calls = {"a": 0, "b": 0}

    def clock(call: object) -> float:
        nonlocal now
        now += 0.025
        call()  # type: ignore[operator]
        return 1000.0 * steps[sum(calls.values()) % len(steps)]

    def count(name: str) -> Iterator[None]:
        calls[name] += 1
        yield

    only_in(monkeypatch, timing, "time", perf_counter=lambda: now)
    found = interleaved({n: lambda n=n: next(count(n)) for n in calls}, seconds=2.0, settled=settled, clock=clock)  # type: ignore[misc]
    assert calls == {"a": rounds, "b": rounds} and found["a"] in [1000.0 * s for s in steps]


def test_what_others_at_work_add_makes_nothing_faster() -> None:
    quiet, disturbed = [10.0, 10.1, 10.2, 10.1], [10.0, 14.0, 15.0, 16.0]
    assert not is_faster(quiet, disturbed, 0.03), "its fastest sample was as fast"
    assert is_faster(quiet, [11.0, 14.0, 15.0, 16.0], 0.03)
    assert not is_faster(quiet, [10.2, 10.3, 10.2], 0.03), "within the noise"
    assert not is_faster([9.0, 12.0, 12.0], quiet, 0.03), "one lucky sample"


def test_pairs_are_won_significantly_or_not_at_all() -> None:
    wins = lambda won, of: timing.wins_pairs([1.0] * of, [1.1] * won + [1.01] * (of - won), 0.02)
    assert wins(3, 3) and wins(9, 12) and wins(30, 48)
    assert not wins(0, 0) and not wins(2, 2) and not wins(8, 12) and not wins(29, 48)


def test_time_without_a_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, wall, cpu = iter([0, 20_000_000, 0, 10**12]), iter([0, 30_000_000] * 2), iter([0, 250_000] * 2)
    monkeypatch.setattr(timing, "_waited_ns", lambda: next(waited))
    only_in(monkeypatch, timing, "time", perf_counter_ns=lambda: next(wall), thread_time_ns=lambda: next(cpu))
    assert timing.wall_us(lambda: None) == 10e3  # 20 of 30 ms without a core
    assert timing.wall_us(lambda: None) == 250.0  # a wait outside of the two clocks: at least the CPU time


def test_a_call_takes_at_least_its_cpu_time() -> None:
    assert timing.wall_us(lambda: time.sleep(0.01)) > 0 and timing.wall_us(lambda: sum(range(10_000))) > 0


@pytest.mark.parametrize(("over_from", "rounds", "counted"), [(0, 2, 1), (2, 2, 1), (3, 3, 1), (4, 4, 2)])
def test_without_time_left_the_second_round_counts(over_from: int, rounds: int, counted: int) -> None:
    """Calls may take seconds each on a busy machine: the first one prepares the call, and no further one does."""
    called = list[str]()
    calls = {name: lambda name=name: called.append(name) for name in "ab"}  # type: ignore[misc]
    found = sampled(calls, ended=lambda: len(called) >= 2 * over_from)
    assert called == ["a", "b"] * rounds and [len(us) for us in found.values()] == [counted] * 2


def test_a_few_rounds_are_counted_although_time_is_up() -> None:
    """Unless they take longer than they may: one sample of each does not tell a tenth from noise."""
    clock = iter(range(100, 200))
    taken = lambda seconds: timing.sampled(
        {"a": int, "b": int}, clock=lambda call: next(clock), ended=timing.after_few(lambda: True, seconds)
    )
    assert [len(us) for us in taken(60.0).values()] == [timing.FEW] * 2
    assert [len(us) for us in taken(0.0).values()] == [1] * 2
