"""The record of plans and kernels: its summary, and what comparisons print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RECORD: dict[str, Any] = {
    "rules": {"a": "proved"},
    "workload/x cpu": {"kernels": ["c c.add 1", "c c.mul 2", "torch torch.mm 3"], "plan": ["c.add"], "program": "text"},
    "workload/y gpu": {"error": "none"},
}


@pytest.fixture(scope="module")
def bench(benchmark_module: Callable[[str], Any]) -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    return benchmark_module("fingerprint")


def test_a_summary_has_digests_of_kernels_by_backend_and_of_programs(bench: Any) -> None:
    found = bench.summary(RECORD)
    graph = found["workload/x cpu"]
    assert graph["kernels"].keys() == {"c", "torch"} and graph["kernels"]["c"].startswith("2 ")
    assert graph["program"] == bench.digest("text") and graph["plan"] == ["c.add"]
    assert found["workload/y gpu"] == {"error": "none"} and bench.summary(found) == found
    assert bench.is_summary(found) and not bench.is_summary(RECORD)


def test_a_changed_kernel_is_a_difference_of_its_backend_only(bench: Any) -> None:
    changed = json.loads(json.dumps(RECORD))
    changed["workload/x cpu"]["kernels"][1] = "c c.mul 4"
    (line,) = bench.differences(bench.summary(RECORD), bench.summary(changed))
    assert line.startswith("/workload/x cpu/kernels/c: ")


def test_records_are_read_back(bench: Any, tmp_path: Path) -> None:
    bench.write(tmp_path / "r.json.gz", RECORD)
    assert bench.read(tmp_path / "r.json.gz") == RECORD


def test_the_stored_record_is_a_summary_whose_plans_are_lists_of_kernels(bench: Any) -> None:
    found = bench.read(RESULTS / "fingerprint.json.gz")
    assert bench.is_summary(found) and {"rules", "operators", "library_kernels"} <= found.keys()
    graphs = [value for name, value in found.items() if "/" in name and "error" not in value]
    assert len(graphs) > 40 and all(graph["plan"] and graph["cost"] >= 0 for graph in graphs)
