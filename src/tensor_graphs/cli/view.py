"""Implements the command `view`: an e-graph file, a saved program or a report as one HTML page."""

from __future__ import annotations

import json
import tempfile
import webbrowser
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TensorGraphsError, UsageError
from ..plain import is_file, read_bytes
from ..writing.files import write_text

if TYPE_CHECKING:
    from ..explorer.explain_rewrites import BlockRewrites

LARGEST_REPORT = 1 << 28  # bytes
DERIVED_NODES = 300  # nodes of a saved program's terms above which its rewriting is not repeated for a page
DERIVED_S = 10.0  # seconds for repeating the rewriting, and for each block's saturation


def page_of(target: Path, roots: Sequence[str] = ()) -> str:
    """The HTML page of a file or folder. `roots`: classes of an e-graph file to extract instead of its own.

    Raises UsageError if it is neither an e-graph, a saved program nor a report.
    """
    if roots and target.is_dir():
        raise UsageError("--root names classes of an e-graph file", where=str(target), hint="leave it out")
    if target.is_dir():
        if not is_file(target / "report.json"):
            raise UsageError("the folder has no report.json", where=str(target), hint="give a folder made by optimize")
        return report_page(target / "report.json", rewrites_section(target))
    if not is_file(target):
        raise UsageError("there is no such file or folder", where=str(target))
    if target.suffix == ".json" and b'"cost_us"' in read_bytes(target, LARGEST_REPORT) and _is_report(target):
        note = "The rule applications are not in this file: view the program's folder, or the e-graph file of saturate."
        return report_page(target, f"<p class=soft>{note}</p>")
    from ..explorer.file_page import file_page

    return file_page(target, roots)


def _is_report(path: Path) -> bool:
    try:
        found = json.loads(read_bytes(path, LARGEST_REPORT))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "cost_us" in found and "nodes" in found and not isinstance(found["nodes"], dict)


def report_page(path: Path, rewrites: str = "") -> str:
    """The page of a report.json.

    `rewrites`: HTML of its section "Rewrites". Raises BadModelError if it is malformed.
    """
    from ..report.report import Report

    return Report.read(path).html({"Rewrites": rewrites} if rewrites else {})


def rewrites_section(folder: Path) -> str:
    """HTML of the rule applications that lead from a saved program's model to its kernels, or why it has none."""
    from ..pipeline.stages.provenance import read_origin
    from .explain import steps_of

    command = f"tensor-graphs explain {folder} --steps"
    try:
        if (size := len(read_origin(folder).graph.nodes())) > DERIVED_NODES:
            return f"<p class=soft>{size} nodes: too many to derive them for this page. In a terminal: <code>{escape(command)}</code></p>"
        blocks = steps_of(folder, seconds=DERIVED_S, saturation_s=DERIVED_S, replay=False)
    except TensorGraphsError as error:
        return f"<p class=soft>Not derived: {escape(error.message)}. In a terminal: <code>{escape(command)}</code></p>"
    note = "Repeated for this page, block by block (in0, w0, s0: inputs, weights, states of a block); not evaluated numerically, which the command does: "
    return f"<p class=soft>{note}<code>{escape(command)}</code></p>" + "".join(map(_block, blocks))


def _block(block: BlockRewrites) -> str:
    none = (
        ""
        if block.steps or block.given_up
        else "<p class=soft>The chosen form is the model's own: no rule was needed.</p>"
    )
    shown = [e._repr_html_() for e in block.explanations if e.steps]
    return f'<p>{escape(str(block).partition(chr(10))[0])}</p>{none}<div class="wide">{"".join(shown)}</div>'


def show(target: Path, output: Path | None, *, launch: bool, roots: Sequence[str] = ()) -> dict[str, Any]:
    """Write the page of `target`, open it in a browser if `launch`, and return the command's document."""
    text = page_of(target, roots)
    path = output
    if path is None:
        folder = Path(tempfile.mkdtemp(prefix="tensor-graphs-view-"))
        path = folder / f"{target.name}.html"
    write_text(path, text)
    opened = launch and webbrowser.open(path.resolve().as_uri())
    return {"output": str(path), "bytes": len(text.encode("utf-8", "surrogateescape")), "opened": bool(opened)}


__all__ = ["page_of", "show"]
