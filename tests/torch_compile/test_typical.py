"""Graphs with gradients are verified on values like those of their first call."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.torch_compile import search, traced_graph, worker

torch = pytest.importorskip("torch")
from tensor_graphs.torch_compile.typical import typical_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
QUICK = {"measure": False, "effort": 0, "budget": 1, "verify": False}


def test_typical_values_of_tensors() -> None:
    found = typical_of({
        "weight": torch.nn.Parameter(3 + 0.1 * torch.randn(1000, 300)), "ones": torch.ones(4),
        "mask": torch.tensor([-math.inf, 2.0, 4.0]), "zeros": torch.zeros(3), "none": torch.zeros(0),
        "ids": torch.arange(3), "nan": torch.tensor([math.nan]), "sparse": torch.eye(3).to_sparse(), "no tensor": 3,
    })  # fmt: skip
    assert set(found) == {"weight", "ones", "mask"}
    assert found["weight"] == pytest.approx((3, 0.1), rel=0.05)
    assert found["ones"] == pytest.approx((1, 0.1)) and found["mask"] == pytest.approx((3, 1))


def far_from_normal() -> Any:
    module = torch.nn.Linear(8, 8)
    with torch.no_grad():
        module.weight.mul_(0.01).add_(5)
    return module


def test_searches_of_both_passes_know_typical_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[search.Search] = []

    def submit(one: search.Search) -> None:
        seen.append(one)
        search.submit(one)

    monkeypatch.setattr(traced_graph, "submit", submit)
    module = torch.nn.Sequential(far_from_normal(), torch.nn.BatchNorm1d(8))
    compiled = tg.compile(module, wait=True, **QUICK)
    for _ in range(3):
        compiled(torch.randn(4, 8, requires_grad=True)).square().sum().backward()
    assert len(seen) == 2
    forward, backward = (one.graph for one in seen)
    (result,) = (name for name in forward.names if name not in forward.inner)
    shapes = {name: tuple(y.shape) for name, y in zip(forward.names, forward.outputs, strict=True)}
    assert shapes[result] == (4, 8) and (8,) in shapes.values()  # running statistics are inside of the step
    assert backward.inner == {*backward.names}
    for one in seen:  # the weight is an input of both graphs
        assert any(mean == pytest.approx(5, abs=0.1) for mean, _ in one.graph.typical.values()), one.graph.typical


def test_a_search_process_is_given_typical_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def optimized(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        return tg.optimize(graph, **options)

    monkeypatch.setattr(worker, "optimize", optimized)
    started: list[list[str]] = []

    class Started:
        returncode = 0

        def __init__(self, command: list[str], **given: Any) -> None:
            started.append(command)
            worker.main(Path(command[-1]))

        def poll(self) -> int:
            return 0

    only_here = SimpleNamespace(Popen=Started, DEVNULL=subprocess.DEVNULL)  # compilers are still run
    monkeypatch.setattr(search, "subprocess", only_here)
    monkeypatch.setattr(search, "adopted", lambda process: process)
    compiled = tg.compile(far_from_normal(), **QUICK)
    for _ in range(3):
        compiled(torch.ones(4, 8, requires_grad=True)).square().sum().backward()
        tg.torch_compile.wait(60)
    assert len(graphs) == len(started) == 2
    assert graphs[1].inner == {*graphs[1].names}
    for graph in graphs:
        assert any(mean == pytest.approx(5, abs=0.1) for mean, _ in graph.typical.values()), graph.typical
