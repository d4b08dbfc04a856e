"""Draws the simplified model beside the kernels of the program, for the report page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..wording import counted
from . import charts
from .charts import us

if TYPE_CHECKING:
    from .report import Report

MOST_BOXES = 220  # nodes of a drawn graph
MOST_NAMES = 8  # names of weights beside an operation


def drawings(report: Report) -> str:
    """HTML of the drawings of the model and of the kernels; each is left out if it is empty or has more than MOST_BOXES
    boxes."""
    weights = weight_names(report)
    kept = [i for i in range(len(report.operations)) if i not in weights]
    number = {i: n for n, i in enumerate(kept)}
    sides = []
    if 0 < len(kept) <= MOST_BOXES:
        reads = [[number[r] for r in report.operations[i].reads if r in number] for i in kept]
        labels = {
            n: (f"{o.op} {o.name}", " ".join([o.type, *(weights[r] for r in o.reads if r in weights)]),
                "given" if o.op in ("input", "state") else "op")
            for n, i in enumerate(kept) for o in [report.operations[i]]
        }  # fmt: skip
        sides.append(
            f"<div><h3>The model, simplified: {len(kept)} operations</h3>{charts.layered(len(kept), reads, labels, 480)}</div>"
        )
    if 0 < len(report.steps) <= MOST_BOXES:
        makers = {v: i for i, s in enumerate(report.steps) for v in s.writes}
        reads = [
            sorted({makers[v] for v in s.reads if v in makers and makers[v] < i}) for i, s in enumerate(report.steps)
        ]
        hot = 0.2 * math.fsum(s.us for s in report.steps)
        labels = {
            i: (s.name, " ".join([us(s.us), s.type, *(v[3:] for v in s.reads if v.startswith("in "))]), "hot" if s.us > hot else "kernel")
            for i, s in enumerate(report.steps)
        }  # fmt: skip
        sides.append(
            f"<div><h3>The program: {counted(len(report.steps), 'kernel')}</h3>{charts.layered(len(report.steps), reads, labels, 480)}</div>"
        )
    if not sides:
        return (
            "<p class=soft>Too large to draw; tensor-graphs view shows e-graphs of any size.</p>"
            if report.steps
            else ""
        )
    return f'<div class="pairs">{"".join(sides)}</div>'


def weight_names(report: Report) -> dict[int, str]:
    """Index of each operation of the model that depends on weights and constants alone -> names of its first weights,
    joined."""
    found: dict[int, list[str]] = {}
    for i, o in enumerate(report.operations):
        if o.op in ("param", "constant", "full"):
            found[i] = [o.name] if o.name else []
        elif o.reads and all(r in found for r in o.reads):
            found[i] = list(dict.fromkeys(n for r in o.reads for n in found[r]))[:MOST_NAMES]
    return {i: " ".join(names) for i, names in found.items()}


__all__ = ["drawings", "weight_names"]
