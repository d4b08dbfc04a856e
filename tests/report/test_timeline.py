"""What was done when: spans of clocks, their drawing, and the report that holds them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.extract.model import clock
from tensor_graphs.extract.model.clock import MERGE_SPANS_S, Clock
from tensor_graphs.report.report import Report
from tensor_graphs.report.timeline import MAX_SPANS, drawn, html, timeline


def test_a_clock_notes_when_and_joins_what_follows_at_once() -> None:
    noted = Clock()
    for start, end in ((1.0, 2.0), (2.0 + MERGE_SPANS_S / 2, 3.0), (2.5, 2.75), (4.0, 5.0)):
        noted.spent("try", start, end)
    assert noted.spans == {"try": [(1.0, 3.0), (4.0, 5.0)]}
    noted.add("try", -1.0)
    assert noted.spans["try"][-1] == (4.0, 5.0)
    with noted.running("open"):
        pass
    assert len(noted.spans["open"]) == 1 and noted.seconds["open"] >= 0


def test_rows_keep_the_longest_pauses() -> None:
    first, second = Clock(), Clock()
    for n in range(3 * MAX_SPANS):
        first.spent("try", 10.0 + n, 10.5 + n + (n % 3) * 0.1)
    second.spent("load", 10.0, 11.0)
    second.spent("load", 10.5, 12.0)
    rows = timeline(10.0, [("device", first), ("stage", second)])
    assert rows["stage: load"] == [[0.0, 2.0]]
    found = rows["device: try"]
    assert len(found) == MAX_SPANS and found[0][0] == 0.0 and found[-1][1] == 3 * MAX_SPANS - 0.3
    assert min(b[0] - a[1] for a, b in pairwise(found)) > 0.4  # the shorter ones are gone
    lines = drawn(rows).splitlines()
    assert len(lines) == 3 and lines[2].endswith("|##" + " " * 78 + "|") and "2.00" in lines[2]
    assert drawn({}) == "" and "device: try" in html(rows)


def test_a_report_says_what_was_done_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MERGE_SPANS_S", 0.0)  # pauses count as time of a stage otherwise
    x = tg.input("x", (8, 16))
    program = tg.optimize(tg.softmax(x * 0.5), backend="numpy", budget=10)
    rows, seconds = program.report.timeline, program.report.seconds
    assert {"stage: load", "stage: saturate", "search: solve"} <= rows.keys()
    assert rows["stage: saturate"][0][0] >= rows["stage: load"][-1][1]
    assert all(abs(sum(b - a for a, b in rows[f"stage: {n}"]) - seconds[n]) < 0.1 for n in ("load", "saturate"))
    assert Report.of_json(program.report.fields()).timeline == rows and "Timeline" in program.report.html()
    assert np.allclose(program(np.ones((8, 16), np.float32)), 1 / 16)
