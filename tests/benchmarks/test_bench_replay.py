"""The replay of schedule searches against measured times, and the search itself on the times that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.backends.generate.schedule import Move
from tensor_graphs.backends.tuning.schedule_search import COUNT, Schedule, ScheduleSearch

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("search.schedule_replay")


def moves(schedule: Schedule) -> Iterator[Move]:
    """Every number halved or doubled."""
    for name, value in schedule.items():
        yield Move(name, 1, {**schedule, name: 2 * value})
        if value > 1:
            yield Move(name, -1, {**schedule, name: value // 2})


def key(**values: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(values.items()))


def test_a_replay_asks_only_for_what_is_there_and_moves_to_the_best(bench: Any) -> None:
    times = {key(m=1 << i, warps=1 << j): 5.0 + abs(i - 4) + abs(j - 1) for i in range(7) for j in range(4)}
    asked = bench.replayed(times, [{"m": 4, "warps": 8}, {"m": 3, "warps": 1}], moves)
    assert asked[0] == times[key(m=4, warps=8)] and min(asked) == 5.0 and len(asked) <= 16
    assert bench.replayed({}, [{"m": 1, "warps": 8}], moves) == []


def test_a_table_is_read_as_it_was_written(bench: Any, tmp_path: Path) -> None:
    tables = {"a": {key(m=16, split=2): 3.25, key(early=1, m=16): 4.5}, "b": {key(tn=8): 1.125}}
    bench.write(tables, tmp_path / "t.json")
    assert bench.read(tmp_path / "t.json") == tables


def test_what_lies_around_the_guesses_is_legal_and_the_same_each_time(bench: Any) -> None:
    fits = lambda s: all(1 <= v <= 64 for v in s.values()) and set(s) == {"m", "n"}
    found = bench.around([{"m": 8, "n": 8}], fits, moves, 20)
    assert found == bench.around([{"m": 8, "n": 8}], fits, moves, 20) and len(found) == 20 and all(map(fits, found))
    assert len(bench.around([{"m": 8, "n": 8}], fits, moves, 1000)) == 49


@pytest.mark.usefixtures("quick_interpreter")
def test_times_are_taken_as_a_search_takes_them(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the interpreter, where they mean nothing: each case's own schedules come back."""
    import tensor_graphs.egraph.builders.builders as t
    from tensor_graphs.backends.triton import backend as triton

    pytest.importorskip("triton")
    cases = {f"rows_{n}": (triton, (), lambda n=n: t.exp(bench.x("x", 4, n))) for n in (64, 32)}
    monkeypatch.setattr(bench, "CASES", cases)
    bench.measure(list(cases), tmp_path / "t.json", device="cpu", count=3)
    found = bench.read(tmp_path / "t.json")
    for case in cases:
        guesses = bench.searched(*bench.kernel(case))[0]
        assert 1 <= len(found[case]) <= 3 and found[case].keys() <= set(map(bench.key_of_schedule, guesses[:3]))


def test_the_search_comes_near_the_best_of_what_was_measured(bench: Any) -> None:
    """16 schedules of each case, against all that an H200 has timed around its guesses; where it goes on, the best of
    them."""
    ratios, tables = {}, bench.read()
    for case, times in tables.items():
        ranked, _, own = bench.searched(*bench.kernel(case))
        asked = bench.replayed(times, ranked, own, partial(ScheduleSearch, count=len(times)))
        assert min(asked) == min(times.values()) and len(asked) < 0.6 * len(times)
        ratios[case] = min(asked[:COUNT]) / min(times.values())
    assert len(ratios) == len(bench.CASES)
    assert max(ratios.values()) < 1.15 and math.prod(ratios.values()) ** (1 / len(ratios)) < 1.02, ratios


def test_what_the_power_limit_leaves_is_told_beside_the_library(benchmark_module: Callable[[str], Any]) -> None:
    power = benchmark_module("gpu.power")
    case = next(iter(power.CASES))
    row = lambda of, burst, us, mhz: {"schedule": of, "burst_us": burst, "us": us, "watts": 500.0, "mhz": mhz}
    rows = [row("cuBLAS", 100.0, 120.0, 1500), row({"m": 1}, 90.0, 130.0, 1400), row({"m": 2}, 95.0, 125.0, 1600)] * 2
    found = power.line(case, {"rows": rows, "flops": 8e10})
    assert found == f"| {case} | 2 | 100 | 120 | 800 / 667 | 90 | 125 | 889 / 640 | 130 | 1400-1600 |"
