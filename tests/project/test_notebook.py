"""The tour runs from top to bottom, and what is committed has its outputs."""

import json
import os
import re
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.generation.results import Generated
from tensor_graphs.report.report import Report
from tensor_graphs.torch_compile.report import GraphReport, PartReport, TracedReport

BUDGET = re.compile(r"budget=(\d+)")
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
def test_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one kernel, whose names are cleared between them."""
    nbformat = pytest.importorskip("nbformat", reason="the notebook extra is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the notebook extra is not installed")
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    cells = [nbformat.read(path, as_version=4).cells for path in NOTEBOOKS]
    for cell in (c for one in cells for c in one):  # the code is what is tested, not how good the plans are
        cell.source = BUDGET.sub(lambda m: f"budget={int(m[1]) / 16:g}", cell.source)
    every = [c for one in cells for c in (nbformat.v4.new_code_cell("%reset -f"), *one)]
    nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=every), timeout=600, startup_timeout=600, kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    ).execute()  # fmt: skip
    assert len(cells) >= 3 and all(c.outputs for one in cells for c in one[5:] if c.cell_type == "code")
    assert not (tmp_path / "costdb").exists() or os.listdir(tmp_path / "costdb")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_outputs_are_whole_and_name_no_folder_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert not any(o["output_type"] == "error" for c in code for o in c["outputs"])
    assert any("text/html" in o.get("data", {}) for c in code for o in c["outputs"])
    assert not re.search(r"/(home|root|opt|tmp|Users|work)/", text)
    assert "http://" not in text and "https://" not in text and "<script" not in text


def test_results_display_themselves_and_escape_text() -> None:
    rule = tg.Rule("r<s", "x * y", "y * x", when=("floating(x)",), exact=True)
    assert rule._repr_html_() == "<code>r&lt;s: x * y =&gt; y * x if floating(x); exact</code>"
    assert str(tg.Rule("m", ("x", "y"), ("y", "x"), both=True)) == "m: x, y <=> y, x"
    texts = Generated([[1, 2], [3]], ["a<b", "c"], ["stop", "length"], 0.25, 12.0)._repr_html_()
    assert "<td>a&lt;b</td><td>2</td><td>stop</td>" in texts and "12.0 tokens/s, first token after 0.250 s" in texts
    plain = Generated([[1, 2]], None, ["stop"], 0.25, float("nan"))._repr_html_()
    assert "<td>1, 2</td>" in plain and "nan" not in plain
    graph = GraphReport("g<0", ("x",), traced=[TracedReport("inference", 1, 1, [PartReport(1, 4, 8)])])
    assert "g&lt;0(x): searching" in graph._repr_html_() and repr(graph) == str(graph)
    assert "1 operator, 1 in 1 program, 1 frozen weight\n" in str(graph)


def test_one_thing_is_no_plural() -> None:
    report = Report("m", "c", nodes=1, e_nodes=1, classes=1, kernels_after=1)
    text = str(report)
    assert "m, 1 node\n" in text and "1 e-node in 1 class;" in text and "1 call in the program" in text
    assert "2 classes" in str(Report("m", "c", classes=2))
