"""Makes the viewer of an e-graph as one HTML file, and as data for a notebook widget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TensorGraphsError
from ..report.shell import asset, page, theme
from ..wording import rewriting_end
from .columns import encode
from .tables import (
    Columns,
    kernel_tables,
    model_tables,
    question_columns,
    rewrite_tables,
    rule_texts,
    rules_of_nodes,
    source_column,
    view_tables,
)

if TYPE_CHECKING:
    from ..egraph.explain.explain import Explanation
    from .explorer import Explorer

WEB = Path(__file__).with_name("web")
SCRIPTS = (
    "data.js", "board.js", "elements.js", "graph.js", "search.js", "panel.js", "egraph_tab.js", "tabs.js", "viewer.js",
)  # fmt: skip
QUESTION_SECONDS = 5.0  # for what-if answers that are stored in a page
EXPLAINED_NODES = 2_500  # e-nodes above which the rewriting steps are not reconstructed for a page

_START = """
const bytes = bytesOfBase64(document.getElementById("data").textContent);
readColumns(bytes).then((data) => { window.viewer = mount(document.getElementById("app"), data); document.body.dataset.ready = "1"; });
"""


def columns(explorer: Explorer) -> Columns:
    """All tables of an explorer except answers to what-if questions: e-graph, kernels, sources, model, rewriting."""
    rules, start = rules_of_nodes(explorer)
    found = view_tables(explorer.view, rules, start) | kernel_tables(explorer) | source_column(explorer)
    found |= rule_texts(name for names in rules.values() for name in names)
    return found | model_tables(explorer.work, explorer.view, explorer.modules)


def explorer_data(explorer: Explorer, *, seconds: float = QUESTION_SECONDS) -> bytes:
    """Data of an explorer for the HTML viewer, in the format of columns.py. `seconds`: time for answering what-if
    questions in advance.
    """
    found = columns(explorer)
    steps, notes = rewrite_columns(len(explorer.view), explorer.explain)
    found |= steps
    asked = question_columns(explorer, seconds)
    found |= asked
    notes.append("What-if answers beside kernels were computed in advance; a notebook asks live: explorer.widget().")
    return encode(found, _meta(explorer, notes))


def rewrite_columns(e_nodes: int, explain: Callable[[], list[Explanation]]) -> tuple[Columns, list[str]]:
    """(tables of the rule applications that `explain` returns, notes for the page). For more than EXPLAINED_NODES
    e-nodes, or if `explain` fails, there are no tables, and a note says why."""
    if e_nodes > EXPLAINED_NODES:
        why = f"the e-graph has more than {EXPLAINED_NODES:,} e-nodes (explain_rewrites goes block by block)"
        return {}, [f"The rewriting is not shown: {why}."]
    try:
        return rewrite_tables(explain()), []
    except TensorGraphsError as error:
        return {}, [f"The rewriting is not shown: {error.message}."]


def _meta(explorer: Explorer, notes: list[str]) -> dict[str, Any]:
    extraction, report = explorer.choice.extraction, explorer.view.report
    bound = "proven optimal" if extraction.optimal else f"proven bound {extraction.lower_bound:.1f} µs"
    facts = [
        f"{len(explorer.view):,} e-nodes", f"{explorer.view.n_classes:,} e-classes", f"rewriting {rewriting_end(report.stopped)}",
        f"{len(explorer.choice.hypergraph.candidates):,} kernels", f"best {explorer.choice.cost:.1f} µs", bound,
    ]  # fmt: skip
    return {"title": _text(explorer.graph.name), "facts": facts, "notes": notes, "sizes": list(report.sizes)}


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode()[:200]


def viewer_page(data: bytes, title: str) -> str:
    """The viewer with its data as one self-contained HTML document, without network access."""
    style = asset(WEB, "viewer.css")
    return page(title, style=style, script=asset(WEB, *SCRIPTS) + _START, data=data)


def problem_page(columns: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """The viewer of an e-graph, given as columns (tables.py) and metadata, as one HTML document. Its title is
    `meta["title"]`.
    """
    return viewer_page(encode(dict(columns), meta), str(meta.get("title", "e-graph")))


def widget_parts() -> tuple[str, str]:
    """(JavaScript module, style sheet) of the notebook widget that shows an e-graph."""
    return asset(WEB, *SCRIPTS) + "\nexport default { render };\n", theme() + asset(WEB, "viewer.css")


__all__ = ["columns", "explorer_data", "problem_page", "rewrite_columns", "viewer_page", "widget_parts"]
