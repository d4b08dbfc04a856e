"""The command `view`: an e-graph file, a saved program or a report as one HTML page."""

from __future__ import annotations

import json
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..plain import is_file, read_bytes
from ..writing import write_text

LARGEST_REPORT = 1 << 28  # bytes


def page_of(target: Path) -> str:
    """The HTML page of a file or folder. UsageError if it is neither an e-graph, a saved program nor a report."""
    if target.is_dir():
        if not is_file(target / "report.json"):
            raise UsageError("the folder has no report.json", where=str(target), hint="give a folder made by optimize")
        return report_page(target / "report.json")
    if not is_file(target):
        raise UsageError("there is no such file or folder", where=str(target))
    if target.suffix == ".json" and b'"cost_us"' in read_bytes(target, LARGEST_REPORT) and _is_report(target):
        return report_page(target)
    from ..explorer.file_page import file_page

    return file_page(target)


def _is_report(path: Path) -> bool:
    try:
        found = json.loads(read_bytes(path, LARGEST_REPORT))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "cost_us" in found and "nodes" in found and not isinstance(found["nodes"], dict)


def report_page(path: Path) -> str:
    """The page of a report.json. BadModelError if it is malformed."""
    from ..report.report import Report

    return Report.read(path).html()


def show(target: Path, output: Path | None, *, launch: bool) -> dict[str, Any]:
    """Write the page of `target`, open it in a browser if `launch`, and return the command's document."""
    text = page_of(target)
    path = output
    if path is None:
        folder = Path(tempfile.mkdtemp(prefix="tensor-graphs-view-"))
        path = folder / f"{target.name}.html"
    write_text(path, text)
    opened = launch and webbrowser.open(path.resolve().as_uri())
    return {"output": str(path), "bytes": len(text.encode("utf-8", "surrogateescape")), "opened": bool(opened)}


__all__ = ["page_of", "show"]
