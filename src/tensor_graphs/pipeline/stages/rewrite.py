"""Runs the stages "blocks", "saturate" and "join blocks": saturates each repeated subgraph (block) of a model once, and
joins the results to one e-graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...egraph.blocks.blocks import Blocks, compute_nodes_of, find_blocks
from ...egraph.ir.graph import Graph
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.union import saturate_in_stages
from ...egraph.simplify.jumps import deciding
from ...egraph.view.joined_view import join_blocks
from ...egraph.view.view import EGraphView, view_of
from ...extract.search.preload import SOLVER_MODULES, STORE_MODULES, import_in_background
from ...report.omissions import Omission, OmittedWork
from ...wording import counted
from ..context.session import Session

# fraction of the remaining time that saturation may take, and its least fraction where later stages need much of it
REWRITING, REWRITING_LEAST = 0.5, 0.25
# with `deterministic` e-nodes and rounds end rewriting, and the clock only after this many times the budget or limit
PATIENCE = 20.0
# total nodes of unique blocks, and budget, from which the exact solvers are loaded in advance: that takes half a second
# of CPU time (one of them loads pandas), and the other threads that run meanwhile wait for the interpreter's lock
LARGE_SEARCH, SOLVERS_S = 60, 10.0


@dataclass(frozen=True)
class Rewritten:
    """Saturated model: its blocks (repeated subgraphs), their saturated e-graphs (views), and the e-graph of the whole
    model joined from them.

    A stage that removes e-nodes has to remove them from `view`, `block_views` and `smaller`, because later stages read
    each of these: the search by short forms joins `block_views` again.
    """

    view: EGraphView  # e-graph of the whole model
    blocks: Blocks
    block_views: list[EGraphView]  # e-graph of each unique block
    smaller: list[EGraphView]  # e-graphs of the whole model at lower effort levels

    def fired(self, session: Session) -> list[Rule]:
        """The session's rules that matched in any block (repeated subgraph)."""
        matched = {name for v in self.block_views for name, count in v.report.matches.items() if count}
        return [r for r in session.rules if {r.name, *(d.name for d in r.directions)} & matched] if matched else []


def rewrite(
    session: Session, work: Graph, blocks: Blocks | None = None, kept: float = 0.0, *, late: bool = False
) -> Rewritten:  # fmt: skip
    """Saturate a graph's unique blocks (repeated subgraphs), within the options' limits and a share of the remaining
    time. `blocks`: those of the graph, if they are found already. `kept`: seconds that are not to be shared.

    Nothing is rewritten if no time is left, or if it is `late`: later stages would have no time to use the result. With
    `deterministic` only the limits of e-nodes and rounds end saturation, unless it takes PATIENCE times the larger of
    the budget and the limit of seconds: then a warning says that the next call may find another plan.
    """
    options, limits = session.options, session.options.saturation_limits
    if blocks is None:
        blocks = found_blocks(session, work)
    if options.deterministic:
        deadline = PATIENCE * max(options.budget, limits.seconds)
        limits = replace(limits, seconds=PATIENCE * limits.seconds)
    else:
        left = max(0.0, session.left)
        deadline = 0.0 if late else max(REWRITING_LEAST * left, REWRITING * (left - kept))
    with session.stage("saturate", f"{counted(len(blocks.unique), 'unique block')} of {len(blocks.instances)}"):
        began = session.now()
        nodes = sum(len(b.graph.nodes()) for b in blocks.unique)
        large = deadline > 0 and nodes > LARGE_SEARCH and options.budget >= SOLVERS_S
        import_in_background([*STORE_MODULES, *(SOLVER_MODULES if large else ())])
        graphs = [b.graph for b in blocks.unique]
        if deadline <= 0:
            less, views = list[list[EGraphView]](), [_unrewritten(g) for g in graphs]
        else:
            rules = [r for r in session.rules if r.exact or not options.exact]
            *less, views = saturate_in_stages(
                options.effort, graphs, rules, limits, exact=options.exact, deadline=deadline,
                stop=lambda: session.progress.stopped, careful=_careful(blocks),
            )  # fmt: skip
    ended = [v.report.stopped for v in views]
    if "interrupted" in ended:  # Ctrl-C that a caller without a signal handler gave: the later stages end as well
        session.progress.stopped = True
    halted = ended.count("interrupted") + (ended.count("seconds") if session.now() - began >= deadline else 0)
    if halted:
        session.omitted.append(Omission(OmittedWork.REWRITING, f"{halted} of {counted(len(views), 'block')}"))
    if options.deterministic and limits.seconds and {"seconds", "bytes"} & set(ended):
        session.warnings.append("the clock or memory ended rewriting: the next call may find another plan")
    died = sorted({v.report.message for v in views if v.report.stopped == "worker-died"})
    session.warnings += [f"rewriting ended early, the saturation worker died: {message}" for message in died]
    with session.stage("join blocks"):
        smaller = [join_blocks(blocks, stage) for stage in less]
        return Rewritten(join_blocks(blocks, views), blocks, views, smaller)


def _unrewritten(graph: Graph) -> EGraphView:
    """The view of a block for whose rewriting there was no time."""
    view = view_of(graph)
    return replace(view, report=replace(view.report, stopped="seconds"))


def _careful(blocks: Blocks) -> list[Graph]:
    """Graphs of the unique blocks (repeated subgraphs) that only exact rules may rewrite, because their rounding
    decides a whole number, a truth value or an order, in the same block or in another one."""
    decides = deciding(blocks.graph)
    if not decides:
        return []
    found = {i.block for i in blocks.instances if not decides.isdisjoint(compute_nodes_of(i))}
    return [blocks.unique[k].graph for k in sorted(found)]


def found_blocks(session: Session, work: Graph) -> Blocks:
    """The blocks (repeated subgraphs) of a graph, found in the stage "blocks"."""
    with session.stage("blocks"):
        return find_blocks(work)


def as_written(blocks: Blocks) -> EGraphView:
    """The view of a graph without any rewriting, joined from its blocks (repeated subgraphs), so that kernels of equal
    blocks are generated once."""
    return join_blocks(blocks, [view_of(b.graph) for b in blocks.unique])


__all__ = ["Rewritten", "as_written", "found_blocks", "rewrite"]
