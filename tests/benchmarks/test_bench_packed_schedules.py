"""The grids of schedules of packed products, and how their times are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("decoding.packed_schedules")


def test_a_grid_has_legal_schedules_of_every_prefetch_distance(bench: Any) -> None:
    template, call = bench.kernel("o x 1 fp8")
    found = bench.grid(template, call, 3)
    schedules = [json.loads(text) for text in found]
    forms = {(s.get("ahead", 0), s.get("direct", 0)) for s in schedules}
    assert forms == {(0, 0), (2, 1), (2, 0), (3, 0), (4, 0)} and len(schedules) == 15
    assert all(template.fits(replace(call, schedule=s)) for s in schedules)
    kinds = [(s.get("ahead"), s.get("direct"), s["n"], s["warps"], s.get("wide")) for s in schedules]
    assert len(set(kinds)) == len(kinds)


def test_a_row_shows_the_best_schedules_first_and_those_that_were_timed_in_overlap(bench: Any) -> None:
    class Timer:
        """Times that grow with the place in the grid; weights that are read early save half a µs."""

        def timed(self, template: Any, call: Any, wanted: Any) -> dict[str, float]:
            assert call.constant in (frozenset(), {"w", "s"})
            return {json.dumps(s, sort_keys=True): n + 2.0 - bool(call.constant) / 2 for n, s in enumerate(wanted)}

    row = bench.figures("o x 1 int4", Timer(), 4, 2)
    assert row["apart"] == sorted(row["apart"]) and len(row["apart"]) == row["grid"] == 21 and len(row["held"]) == 2
    lines = bench.shown(row).splitlines()
    assert lines[0].startswith("o x 1 int4: limit 2.") and "held   1.50" in lines[1] and "held    nan" in lines[3]
