"""The replay of searches on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


def test_two_replays_of_one_search_are_equal(
    benchmark_module: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the search ends shortly after its virtual time, with a measured plan. Longer solves leave fewer rounds."""
    bench = benchmark_module("search.replay")
    monkeypatch.setenv("TENSOR_GRAPHS_GPU", bench.GPU)
    graph = bench.hypergraph_of("lora_b1", "gpu")
    pricer, schedules = bench.CostPricer(bench.Store(tmp_path)), bench.Schedules()
    first, again = (bench.replay(graph, 1.0, 1, pricer, schedules) for _ in range(2))
    assert first == again and 0 < first["us"] < 100 and first["rounds"] > 1 and first["unmeasured"] == 0
    assert first["virtual_s"] < 3.0
    slower = bench.replay(graph, 4.0, 1, pricer, schedules)
    assert slower["us"] <= first["us"] and slower["schedules"] > first["schedules"]
    monkeypatch.setattr(bench, "LABELS_A_SECOND", 10.0)
    assert bench.replay(graph, 1.0, 1, pricer, schedules)["rounds"] < first["rounds"]
