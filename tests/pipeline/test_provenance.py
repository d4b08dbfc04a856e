"""Provenance of a program: enough to explain it, whether searched, cached or size-polymorphic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.cli.explain import explain_steps
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.errors import BadModelError, UsageError
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.pipeline.stages.provenance import FILE, Origin, _rounds, read_origin, write_origin

PARAMS = {n: np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32) for n in "uv"}


def gated(rows: Any) -> Tensor:
    x, u, v = tg.input("x", (rows, 24)), tg.param("u", (24, 32)), tg.param("v", (24, 32))
    return tg.silu(x @ u) * (x @ v)


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_a_program_for_every_size_is_explained_where_the_rules_saw_it(tmp_path: Path, backend: str) -> None:
    from tensor_graphs.backends.registry import backend as named

    if named(backend).unavailable():
        pytest.skip(named(backend).unavailable())
    rows = tg.dim("rows", min=1, max=64)
    program = tg.optimize(gated(rows), params=PARAMS, backend=backend, measure=False, budget=20)
    assert program.plan.sizes and not program.report.warnings
    program.save(tmp_path / "p")
    found, text = explain_steps(tmp_path / "p")
    assert [b["verdict"] for b in found["blocks"]] == ["replayed"] and "merge-matmuls" in text
    assert found["stored"] == [] and found["inputs"][0].startswith("x: float32[")


def test_blocks_that_time_does_not_reach_are_listed(tmp_path: Path) -> None:
    tg.optimize(gated(8), params=PARAMS, backend="numpy", measure=False, budget=20).save(tmp_path / "p")
    found, text = explain_steps(tmp_path / "p", seconds=0.0)
    assert [b["verdict"] for b in found["blocks"]] == ["not explained: out of time"] and not found["blocks"][0][
        "outputs"
    ]
    assert "out of time" in text


def test_what_is_moved_is_not_rounded() -> None:
    x, w = tg.cast(tg.input("x", (4, 6), "bfloat16"), "float32"), tg.input("w", (6, 4))
    moved = tg.concat([tg.reshape(x, (6, 4)), tg.transpose(x)], 1)
    assert not _rounds(moved, "bfloat16") and _rounds(moved, "float16")
    assert not _rounds(tg.gather(x, tg.input("i", (2,), "int64"), axis=0), "bfloat16")
    assert _rounds(tg.concat([tg.transpose(x), w], 1), "bfloat16") and _rounds(moved + moved, "bfloat16")


def test_files_that_say_something_else_are_named_errors(tmp_path: Path) -> None:
    x = tg.input("x", (2, 2))
    with pytest.raises(UsageError, match="does not say"):
        read_origin(tmp_path)
    good = Origin((tg.exp(x), x + x), (tg.exp(x), x * 2.0), (tg.cast(x * 2.0, "bfloat16"),))
    write_origin(tmp_path, good)
    assert read_origin(tmp_path) == good
    for bad in (
        {"root 0": x, "chosen 0": tg.sum(x)}, {"root 0": x}, {"chosen 0": x}, {"other": x, "root 0": x, "chosen 0": x},
        {"root 0": x, "chosen 0": x, "stored 0": x},
    ):  # fmt: skip
        save_graph(Graph.of(bad), tmp_path / FILE)
        with pytest.raises(BadModelError):
            read_origin(tmp_path)
