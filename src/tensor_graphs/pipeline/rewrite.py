"""Stages "blocks", "saturate" and "glue": equality saturation of a model's unique blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..egraph.ir.blocks import Blocks, find_blocks
from ..egraph.ir.graph import Graph
from ..egraph.ir.rule import Rule
from ..egraph.saturate.union import saturate_in_stages
from ..egraph.view.view import EGraphView, glue
from ..extract.search.preload import SOLVER_MODULES, STORE_MODULES, import_in_background
from .session import Session

REWRITING = 0.5  # fraction of the remaining time that saturation may take
LARGE_SEARCH = 60  # total nodes of unique blocks from which the exact solvers are loaded in advance


@dataclass(frozen=True)
class Rewritten:
    """A saturated model: blocks, their views, and the glued view."""

    view: EGraphView  # e-graph of the whole model
    blocks: Blocks
    block_views: list[EGraphView]  # e-graph of each unique block
    smaller: list[EGraphView]  # e-graphs of the whole model at lower effort levels

    def fired(self, rules: Sequence[Rule]) -> list[Rule]:
        """The rules that matched in any block."""
        matched = {name for v in self.block_views for name, count in v.report.matches.items() if count}
        return [r for r in rules if {r.name, *(d.name for d in r.directions)} & matched]


def rewrite(session: Session, work: Graph) -> Rewritten:
    """Saturate each unique block of a graph within the options' limits and a share of the remaining time."""
    options = session.options
    with session.stage("blocks"):
        blocks = find_blocks(work)
    least = 1.0 if options.deterministic else 0.0  # a wall-clock limit makes results irreproducible
    deadline = max(least, session.left * REWRITING)
    with session.stage("saturate", f"{len(blocks.unique)} unique blocks of {len(blocks.instances)}"):
        limits, began = options.saturation_limits, session.now()
        large = sum(len(b.graph.nodes()) for b in blocks.unique) > LARGE_SEARCH
        import_in_background([*STORE_MODULES, *(SOLVER_MODULES if large else ())])
        rules = [r for r in session.rules if r.exact or not options.exact]
        *less, views = saturate_in_stages(
            options.effort, [b.graph for b in blocks.unique], rules, limits, exact=options.exact,
            deadline=deadline, stop=lambda: session.progress.stopped,
        )  # fmt: skip
    ended = [v.report.stopped for v in views]
    halted = ended.count("interrupted") + (ended.count("seconds") if session.now() - began >= deadline else 0)
    if halted:
        session.omitted.append(f"rewriting of {halted} of {len(views)} blocks")
    died = sorted({v.report.message for v in views if v.report.stopped == "worker-died"})
    session.warnings += [f"rewriting ended early, the saturation worker died: {message}" for message in died]
    with session.stage("glue"):
        smaller = [glue(blocks, stage) for stage in less]
        return Rewritten(glue(blocks, views), blocks, views, smaller)


__all__ = ["Rewritten", "rewrite"]
