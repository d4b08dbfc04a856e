"""The anytime benchmark: points are kept, a slice goes on where the one before ended, rises are told from rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..only_in import only_in


@pytest.fixture
def bench(benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found = benchmark_module("saturation.anytime")
    calls: list[tuple[Any, int]] = []

    def run(graph: Any, *, limits: Any, effort: int, **options: Any) -> Any:
        calls.append((limits, effort))
        summary = {"cost_us": 100.0 / (1 + limits.iterations) + effort, "optimal": True, "e_nodes": limits.nodes}
        return SimpleNamespace(summary=lambda: summary)

    monkeypatch.setattr(found, "run", run)
    monkeypatch.setattr(found, "graphs", lambda: {"one": lambda: None, "two": lambda: None})
    monkeypatch.setattr(found, "RESULTS", tmp_path)
    monkeypatch.setattr(found, "POINTS", tmp_path / "raw/points.json")
    monkeypatch.setattr(found, "sources", lambda: "these")
    return SimpleNamespace(module=found, calls=calls)


def test_slices_go_on_where_they_ended(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = bench.module
    assert module.main(seconds=-1.0) == {"rows": [], "details": {}} and not bench.calls
    clock = iter(range(1000))
    only_in(monkeypatch, module, "time", monotonic=lambda: float(next(clock)))
    assert not module.main(seconds=7.0)["rows"]
    first = len(bench.calls)
    assert 0 < first < 12 and len(json.loads(module.POINTS.read_text())["points"]) == first
    rows = module.main(seconds=1e9)["rows"]
    distinct = {module.named("", s) for points in module.SWEEPS.values() for s in points.values()}
    assert len(rows) == 2 * len(module.SWEEPS) and len(bench.calls) == 2 * len(distinct)
    assert "| one |" in (tmp_path / "anytime.md").read_text()
    monkeypatch.setattr(module, "sources", lambda: "others")
    assert module.kept() == {}


def test_rises_are_named(bench: Any) -> None:
    point = lambda cost, optimal=True: {"cost_us": cost, "optimal": optimal}
    found = bench.module.rises({"1": point(5.0), "2": point(5.0 * (1 + 1e-7)), "4": point(6.0, False), "8": point(4.0)})
    assert found == ["2 to 4: 5.00 to 6.00 (not solved to the end)"]


def test_quick_measures_little_and_writes_nothing(bench: Any, tmp_path: Path) -> None:
    rows = bench.module.main(quick=True)["rows"]
    assert len(rows) == len(bench.module.SWEEPS) and len(bench.calls) < 10 and not list(tmp_path.iterdir())
