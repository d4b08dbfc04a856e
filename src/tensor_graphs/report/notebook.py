"""Display of a report in a notebook: a short HTML summary with tables that unfold."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from .timeline import html as timeline_html

if TYPE_CHECKING:
    from .report import Report


def notebook_html(report: Report) -> str:
    """HTML of a report for a notebook: the summary, and tables of kernels, blocks, rules and the timeline."""
    body = _table([], report.rows())
    kernels = _table(
        ["kernel", "calls", "µs", "share", "price"],
        [
            (k.name, str(k.count), f"{k.us:.1f}", _bar(k.us / report.cost_us if report.cost_us else 0), k.source)
            for k in report.kernels
        ],
    )
    blocks = _table(
        ["block", "times", "nodes", "e-nodes", "classes", "stopped", "seconds"],
        [(str(i), str(b.instances), str(b.nodes), str(b.e_nodes), str(b.classes), f"{b.stopped} ({b.iterations})", f"{b.seconds:.2f}")
         for i, b in enumerate(report.blocks)],
    )  # fmt: skip
    rules = _table(
        ["rule", "matches", "ms"],
        [(n, str(m), f"{1000 * s:.1f}") for n, (m, s) in sorted(report.rules.items(), key=lambda r: -r[1][1])[:40]],
    )
    when = timeline_html(report.timeline)
    parts = (("Kernels", kernels), ("Blocks", blocks), ("Rules by time", rules), ("Timeline", when))
    return body + "".join(f"<details><summary>{t}</summary>{html}</details>" for t, html in parts)


class _Html(str):
    """Text that is already HTML."""


def _bar(share: float) -> _Html:
    return _Html(
        f'<span class="bar" style="display:inline-block;height:.7em;background:#4a7;width:{120 * share:.0f}px"></span> {100 * share:.0f} %'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        return text if isinstance(text, _Html) else escape(text)

    top = "<tr>" + "".join(f"<th>{escape(h)}</th>" for h in head) + "</tr>" if head else ""
    return (
        "<table>"
        + top
        + "".join("<tr>" + "".join(f"<td>{cell(c)}</td>" for c in r) + "</tr>" for r in rows)
        + "</table>"
    )
