"""`tg.paths`: distinct plans timed end to end within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.explorer import profile as sweep
from tensor_graphs.explorer.saturate import RunnablePlan, runnable
from tensor_graphs.extract.search.alternatives import variants
from tensor_graphs.progress import Progress


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with settings.override(home=str(tmp_path_factory.mktemp("home"))):
        x, y = tg.input("x", (64, 64)), tg.input("y", (64, 64))
        yield tg.saturate(tg.softmax(tg.tanh(x @ y) + x, axis=1) @ y, backend="numpy", budget=10.0)


def found(explorer: Any) -> list[RunnablePlan]:
    return list(runnable(explorer, islice(variants(explorer.choice, max_gap=20.0, seconds=300.0), 12)))


def test_variants_are_other_kernels_and_none_is_cheaper(explorer: Any) -> None:
    plans = found(explorer)
    assert len(plans) > 3 and plans[0].cost == pytest.approx(explorer.choice.cost)
    assert all(plans[0].cost * (1 - 1e-9) <= p.cost <= 21 * plans[0].cost for p in plans)
    first = sweep.kernels_of(plans[0].plan)
    assert all(set(sweep.kernels_of(p.plan)) != set(first) for p in plans[1:])


def test_plans_that_are_alike_are_skipped(explorer: Any) -> None:
    plans = found(explorer)
    twice = [p for plan in plans for p in (plan, plan)]
    chosen, alike = sweep.distinct(twice, 3, 0.0)
    assert len(chosen) == 3 and alike >= 2 and [p.rank for p in chosen] == [0, 1, 2]
    for share in (0.05, 0.5, 1.0):
        chosen, _ = sweep.distinct(plans, 12, share)
        known = [sweep.kernels_of(p.plan) for p in chosen]
        for i, one in enumerate(known):
            for other in known[:i]:
                assert max(sweep.extra_calls(one, other)[0], sweep.extra_calls(other, one)[0]) >= share


def test_the_share_of_other_kernels_is_one_of_time() -> None:
    cheap, dear, new = sweep.Called(2, 2.0, "a"), sweep.Called(1, 8.0, "b"), sweep.Called(3, 3.0, "a")
    assert sweep.extra_calls({"x": cheap, "y": dear}, {"x": cheap}) == (0.8, {"b": 1})
    assert sweep.extra_calls({"x": new}, {"x": cheap}) == (pytest.approx(1 / 3), {"a": 1})
    assert sweep.extra_calls({"x": cheap}, {"x": new, "y": dear}) == (0.0, {})
    assert sweep.extra_calls({}, {"x": cheap}) == (0.0, {})


def test_timing_ends_with_the_budget(explorer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans, _ = sweep.distinct(found(explorer), 12, 0.0)
    assert len(plans) > 3
    now = [0.0]
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(pair: Any, **given: Any) -> dict[str, float]:
        now[0] += 0.2
        return dict.fromkeys(pair, 1e5)  # µs: three rounds of two calls take longer than what is left

    monkeypatch.setattr(sweep, "interleaved", slow)
    times = sweep.KernelTimes(tmp_path / "times.json")
    sweep._time(plans, times, 0.3, "cpu", Progress())
    assert now[0] < 0.5 and 1 <= len(times.us) < len(plans)
    text = sweep._text([sweep._row(p, plans[0], times, ()) for p in plans[: len(times.us)]], 0, 2, 5)
    assert "2 further plans not timed" in text


def test_each_row_says_how_it_differs_from_the_best(explorer: Any, tmp_path: Path) -> None:
    plans, _ = sweep.distinct(found(explorer), 3, 0.0)
    times = sweep.KernelTimes(tmp_path / "times.json", {sweep.plan_digest(p.plan): 5.0 for p in plans})
    rows = [sweep._row(p, plans[0], times, ()) for p in plans]
    assert rows[0]["other_kernels"] == 0.0 and not rows[0]["more"] and not rows[0]["less"]
    assert all(r["more"] or r["less"] for r in rows[1:])
    text = sweep._text(rows, 4, 0, 2)
    assert text.count("that path 0 lacks: ") == len(rows) - 1 and "4 further plans with nearly the same" in text
