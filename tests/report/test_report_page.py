"""The report's page: numbers of a small report, hostile names, a browser of phone width."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.pages.browser import Browser, chromium

import tensor_graphs as tg
from tensor_graphs.cli.app import run
from tensor_graphs.errors import BadModelError
from tensor_graphs.report.drawings import weight_names
from tensor_graphs.report.page import advice, share_of_limit
from tensor_graphs.report.records import BucketReport, OperationReport, StepReport, UserKernelReport
from tensor_graphs.report.report import Report
from tensor_graphs.report.timeline import drawn

HOSTILE = "</main><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202e\udc80\0"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    x, w = tg.input(HOSTILE, (32, 64)), tg.param(HOSTILE + "w", (64, 64))
    graph = tg.Graph.of(
        tg.softmax(tg.tanh(x @ w) + x), params={HOSTILE + "w": np.ones((64, 64), np.float32)}, name=HOSTILE
    )
    with tg.settings.override(home=str(tmp_path_factory.mktemp("home"))):
        found = tg.optimize(graph, backend="numpy", measure=False).report
    assert isinstance(found, Report)
    return found


def test_a_report_lists_calls_with_limits_memory_and_operations(report: Report) -> None:
    assert len(report.steps) == report.kernels_after and sum(s.us for s in report.steps) == pytest.approx(
        report.cost_us, abs=0.2
    )
    assert all(s.limit_us and s.us >= s.limit_us * 0.999 for s in report.steps)
    assert [o.op for o in report.operations].count("matmul") == 1 and report.curve[-1][2] == pytest.approx(
        report.cost_us, abs=0.01
    )
    assert report.workspace >= max(b.size for b in report.buffers) > 0
    for a in report.buffers:  # buffers that are live together do not overlap
        for b in report.buffers:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


def test_a_report_is_read_as_saved(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report.to_json()))
    assert Report.read(tmp_path / "report.json") == report
    assert run(["view", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    assert run(["view", str(tmp_path / "report.json"), "-o", str(tmp_path / "same.html")]) == 0
    page, same = ((tmp_path / name).read_text().split("<summary>Rewrites") for name in ("page.html", "same.html"))
    assert page[0] == same[0] and len(page) == len(same) == 2
    for text in ("[]", "{}", '{"steps": 3}', "{", json.dumps({**report.to_json(), "steps": [{"name": 1}]}),
                 json.dumps({**report.to_json(), "curve": [[1.0]]}), json.dumps({**report.to_json(), "timeline": {"x": [[1.0]]}}),
                 json.dumps({**report.to_json(), "verification": {**(report.verification or {}), "failed": [3]}}),
                 json.dumps({**report.to_json(), "operations": [{"op": "x", "name": "", "type": "", "reads": [7]}]})):  # fmt: skip
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(BadModelError, match="not a report"):
            Report.read(tmp_path / "bad.json")


def test_reports_of_earlier_versions_are_read(report: Report, tmp_path: Path) -> None:
    new = {"steps", "buffers", "workspace", "operations", "curve"}
    (tmp_path / "report.json").write_text(json.dumps({k: v for k, v in report.to_json().items() if k not in new}))
    old = Report.read(tmp_path / "report.json")
    assert old.steps == [] and "np.matmul" in old.html()


def test_names_are_escaped(report: Report) -> None:
    page = report.html()
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page
    assert "unicode-bidi: isolate" in page
    assert "default-src 'none'" in page and not re.search(r"<[a-z][^>]*(src|href)=|https?://|@import|url\(", page)
    page.encode("utf-8")


def test_buckets_user_kernels_and_quantization_are_shown() -> None:
    bucket = BucketReport("T", 17, 128, "own plan", 64, {"17": {"all sizes": 9.0, "own plan": 4.0}})
    made = Report("m", "c", buckets=[bucket], user_kernels=[UserKernelReport("user.k", 2, 1, 3.0, "measured")],
                  quantization="int8: 2 weights")  # fmt: skip
    page = made.html()
    assert "17–128" in page and "<b>own plan 4 µs</b>" in page and "<b>all sizes" not in page
    assert "user.k: 1 call in the plan, from 3.0 µs (measured)" in page and "int8: 2 weights" in page


def test_weights_are_named_where_they_are_read() -> None:
    rows = [("param", "w", []), ("permute", "", [0]), ("input", "x", []), ("matmul", "", [2, 1])]
    made = Report("m", "c", operations=[OperationReport(op, name, "float32[4, 4]", reads) for op, name, reads in rows])
    assert weight_names(made) == {0: "w", 1: "w"}
    assert "The model, simplified: 2 operations" in made.html()


def test_names_of_weights_stay_few() -> None:
    """Each operation reads the two before it: joined texts would double every other row."""
    rows = [OperationReport("param", f"w{i}", "float32[4]", []) for i in range(12)]
    rows += [OperationReport("add", "", "float32[4]", [i - 1, i - 2]) for i in range(12, 400)]
    assert max(map(len, weight_names(Report("m", "c", operations=rows)).values())) < 100


@pytest.mark.parametrize(
    "change",
    [
        {"buffers": [{"value": "x", "offset": 10**400, "size": 4, "first": 0, "last": 1}]},
        {"buffers": [{"value": "x", "offset": 0, "size": 4, "first": 0, "last": -1}]},
        {"steps": [{"name": "k", "backend": "c", "computes": "", "us": -1.0, "source": "", "reads": [], "writes": []}]},
        {"cost_us": 1e308},
        {"timeline": {"x": [[-1e12, 1.0]]}},
        {"timeline": {"x": [[2.0, 1.0]]}},
        {"verification": {"error_before": 10**400, "error_after": 0.0, "allowed": 0.0, "passed": True, "seeds": 1}},
    ],
)
def test_numbers_of_a_report_are_bounded(report: Report, tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**report.to_json(), **change}))
    with pytest.raises(BadModelError, match="not a report"):
        Report.read(tmp_path / "report.json")


def test_charts_take_any_number_that_a_report_may_have(report: Report, tmp_path: Path) -> None:
    """Steps up to 2^62, times and flops of almost nothing, spans before the call, and rows without any."""
    buffers = [{"value": "x", "offset": 0, "size": 4, "first": 0, "last": 1 << 62}]
    step = {"name": "k", "backend": "c", "computes": "", "source": "measured", "reads": [], "writes": []}
    steps = [{**step, "us": us, "limit_us": us, "flops": us, "bytes": 5e-324} for us in (0.0, 5e-324, 1e18)]
    change = {"buffers": buffers, "steps": steps, "timeline": {"x": [[-1e8, -1e7]], "y": []}}
    (tmp_path / "report.json").write_text(json.dumps({**report.to_json(), **change}))
    found = Report.read(tmp_path / "report.json")
    assert len(found.html()) + len(found._repr_html_()) + len(drawn(found.timeline)) < 1 << 20


def test_shares_and_advice() -> None:
    step = StepReport("k", "b", "", 10.0, "measured", [], [], limit_us=4.0)
    assert share_of_limit(step) == 0.4
    step.source = "bound"  # the time is the limit itself
    assert share_of_limit(step) is None
    done = Report(
        "m", "b", optimal=True, search_stopped="measured", priced={"measured": 2}, cost_us=2.0, lower_bound_us=2.0
    )
    assert advice(done) == ["Nothing was cut: the e-graph is saturated, its best plan is measured and proven optimal."]
    done.omitted, done.optimal, done.lower_bound_us = ["measuring"], False, 1.0
    assert "measuring were cut short" in advice(done)[0] and "at most 1 µs (50.0 %)" in advice(done)[1]
    assert Report("m", "b").html().startswith("<!doctype html>")


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_a_browser_shows_the_report_at_phone_width(report: Report, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(report.html())
    with Browser() as browser:
        browser.resize(390, 844, dark=True)
        browser.open(tmp_path / "page.html", ready="true")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        color = "getComputedStyle(document.body).backgroundColor"
        dark = browser.run(color)
        browser.run("document.getElementById('theme-light').click()")
        assert browser.run(color) == "rgb(255, 255, 255)" != dark
        assert browser.run("window.hacked") is None and browser.messages() == []
