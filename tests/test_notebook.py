"""The tour runs from top to bottom, and what is committed has its outputs."""

import json
import os
import re
from pathlib import Path

import pytest

BUDGET = re.compile(r"budget=(\d+)")
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the notebook extra is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the notebook extra is not installed")
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # the code is what is tested, not how good the plans are
        cell.source = BUDGET.sub(lambda m: f"budget={int(m[1]) / 16:g}", cell.source)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert all(c.outputs for c in notebook.cells[5:] if c.cell_type == "code")
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
