"""Error against time over tolerances."""

from __future__ import annotations

import json
import math

import pytest

import tensor_graphs as tg
from tensor_graphs.errors import UsageError
from tensor_graphs.explorer.pareto import ParetoPoint, marked


def test_points_that_another_point_beats_are_not_best() -> None:
    found = marked([
        ParetoPoint("exact", 0.0, 9.0), ParetoPoint("eager", 1e-7, 4.0), ParetoPoint("fast", 2e-7, 4.0),
        ParetoPoint(1e-3, 1e-4, 3.0), ParetoPoint(1e-2, math.nan, 1.0), ParetoPoint(1e-1, why="no plan: <b>"),
    ])  # fmt: skip
    assert [p.tolerance for p in found.front] == ["exact", "eager", 1e-3]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))[4]["error"] is None
    assert (
        "no plan: &lt;b&gt;" in found._repr_html_() and "<svg" in found._repr_html_() and str(found).count("best") == 3
    )


def test_each_tolerance_has_a_program_within_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    x = tg.input("x", (16, 32))
    with tg.settings.override(home=str(tmp_path_factory.mktemp("home"))):
        found = tg.pareto(
            tg.softmax(tg.exp(x) + 1.0), tolerances=("eager", 1e-3), backend="numpy", measure=False, budget=20
        )
    assert [p.tolerance for p in found] == ["eager", 1e-3] and found.front
    assert all(p.program is not None and p.error < 1e-5 and p.us > 0 for p in found)
    for wrong in ({"tolerances": ()}, {"tolerance": "eager"}):
        with pytest.raises(UsageError):
            tg.pareto(x, **wrong)
