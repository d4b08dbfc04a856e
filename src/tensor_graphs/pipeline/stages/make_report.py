"""Makes the report of a search: e-graph sizes, rules used, prices of the chosen kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...backends.program.emit.memory_plan import nbytes
from ...backends.program.program import Program
from ...backends.registry import describe
from ...backends.user.templates import USER_PREFIX, UserKernel
from ...costdb.store.store import Store
from ...egraph.ir.graph import Graph
from ...extract.model.kernel import Candidate
from ...extract.model.plan import Plan
from ...extract.search.search import Choice
from ...options import Options
from ...report.records import BlockReport, BufferReport, OperationReport, UserKernelReport, kernel_rows, step_rows
from ...report.report import Report
from ...wording import counted, rewriting_end
from ..costs.prices import CostPricer, at_stored_prices, calls_of
from .prepare import Task
from .rewrite import Rewritten

MOST_OPERATIONS = 2000  # of a model whose operations the report lists


def make_report(options: Options, task: Task, rewritten: Rewritten, choice: Choice, store: Store) -> Report:
    """The report of a search, without end-to-end times and verdict (whether outputs are within tolerance)."""
    blocks, views, graph, view = rewritten.blocks, rewritten.block_views, task.model.graph, rewritten.view
    uses = Counter(i.block for i in blocks.instances)
    rows = [
        BlockReport(
            uses[k], len(b.graph.nodes()), len(v), v.n_classes, v.report.stopped, v.report.iterations, v.report.seconds
        )
        for k, (b, v) in enumerate(zip(blocks.unique, views))
    ]
    rules: dict[str, tuple[int, float]] = {}
    for v in views:
        for name, matches in v.report.matches.items():
            old = rules.get(name, (0, 0.0))
            rules[name] = (old[0] + matches, old[1] + v.report.rule_seconds.get(name, 0.0))
    reasons: dict[str, int] = {}
    for row in rows:
        reasons[row.stopped] = reasons.get(row.stopped, 0) + 1
    return Report(
        graph.name, describe(task.backends), task.model.sizes, len(graph.nodes()), len(view), view.n_classes,
        rows, ", ".join(f"{counted(n, 'block')} {rewriting_end(r)}" for r, n in reasons.items()), rules, len(choice.hypergraph.candidates),
        kernels=kernel_rows((choice.hypergraph.candidates[i].template, choice.prices[i]) for i in choice.chosen),
        kernels_after=sum(choice.sources.values()), cost_us=choice.cost,
        lower_bound_us=min(choice.extraction.lower_bound, choice.cost), optimal=choice.extraction.optimal,
        method=choice.extraction.method, priced=choice.sources, measured_now=choice.measured,
        optimism_us=choice.optimism_us, search_stopped=choice.stopped, snapshot=store.snapshot_id(),
        searched=_searched_with(options, rows), user_kernels=_user_kernels(task, choice),
    )  # fmt: skip


def describe_plan(
    report: Report, program: Program, choice: Choice, pricer: CostPricer, work: Graph, began: float
) -> None:
    """Add a plan to a report: calls with their lower bounds, the memory map, the simplified model, the plan's cost over
    time.

    `work`: the simplified model. `began`: monotonic time at which the optimization began.
    """
    chosen = [c for i in choice.chosen if not (c := choice.hypergraph.candidates[i]).is_view]
    if program.plan is not None:
        _describe_calls(report, program, program.plan, pricer, chosen)
    nodes = work.nodes()
    if len(nodes) <= MOST_OPERATIONS:
        number = {n: i for i, n in enumerate(nodes)}
        report.operations = [
            OperationReport(n.op, str(dict(n.attrs).get("name", ""))[:200], str(n.type), [number[a] for a in n.args])
            for n in nodes
        ]
    report.curve = [(round(t - began, 3), round(low, 3), round(us, 3)) for t, low, us in choice.curve]


def describe_as_written(report: Report, program: Program, pricer: CostPricer) -> None:
    """Replace the plan of a report by that of the unfused baseline, with the prices that its kernels have in the
    store."""
    assert program.plan is not None
    plan = at_stored_prices(program.plan, pricer)
    own = Report.of_plan(plan)
    report.kernels, report.kernels_after, report.priced = own.kernels, own.kernels_after, own.priced
    report.workspace, report.buffers, report.optimism_us = 0, [], 0.0
    for row in report.user_kernels:
        row.calls, row.note = 0, row.note or "the graph runs as it is written"
    _describe_calls(report, program, plan, pricer, calls_of(plan.steps))


def _describe_calls(
    report: Report, program: Program, plan: Plan, pricer: CostPricer, kernels: Sequence[Candidate]
) -> None:
    """Add to `report` a program's kernel calls with their roofline limits, and its memory map. `kernels`: those of the
    calls, without views."""
    report.steps, layout = step_rows(plan), program.layout
    for row, facts in zip(report.steps, pricer.facts(kernels)):
        if facts is not None:
            row.flops, row.bytes, row.limit_us, row.error = facts.flops, facts.bytes, facts.limit_us, facts.error
    if layout is not None:
        report.workspace = layout.size
        report.buffers = [
            BufferReport(f"%{v}", layout.offsets[int(v)], nbytes(plan.values[int(v)].type, plan.sizes), first, last)
            for v, (_, first, last) in layout.record.items()
        ]


def _user_kernels(task: Task, choice: Choice) -> list[UserKernelReport]:
    """The user kernels among the backends of a search; forms and choices of one kernel are one row."""
    found: dict[str, UserKernelReport] = {}
    note = "sizes are free, and a kernel with sizes in its source is for one size" if task.symbolic is not None else ""
    for template in (t for b in task.backends for t in b.templates if isinstance(t, UserKernel)):
        found.setdefault(template.kernel.name, UserKernelReport(USER_PREFIX + template.kernel.name, 0, 0, note=note))
    chosen = set(choice.chosen)
    for i, c in enumerate(choice.hypergraph.candidates):
        if isinstance(c.template, UserKernel) and (row := found.get(c.template.kernel.name)) is not None:
            row.matches, row.calls, price = row.matches + 1, row.calls + (i in chosen), choice.prices[i]
            if price.us < (math.inf if row.us is None else row.us):
                row.us, row.source = price.us, price.origin
    return list(found.values())


def _searched_with(options: Options, blocks: Sequence[BlockReport]) -> dict[str, Any]:
    """Options needed to repeat the rewriting of the blocks."""
    return {
        "limits": asdict(options.saturation_limits), "effort": options.effort, "exact": options.exact,
        "rounds": max([b.iterations for b in blocks], default=0), "rules": [asdict(r) for r in options.rules],
    }  # fmt: skip


__all__ = ["describe_as_written", "describe_plan", "make_report"]
