"""Searches for a program: rewrites the graph, matches and chooses kernels, builds, verifies and times the program.

    rewrite -> match -> choose (price, measure) -> build, verify -> report -> time

On a GPU three background activities run during rewriting: overlapped tuning, the first verification reference, and
encoding of quantized weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from ..backends.program.program import Program
from ..backends.registry import backend
from ..backends.runtime.compile_clock import expected_compile_seconds
from ..costdb.keys import rates
from ..costdb.store.store import Store
from ..errors import NoPlanError, ShapeError
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.gc_pause import gc_frozen
from ..extract.model.pricing import Measurer
from ..extract.model.work import graph_flops
from ..extract.search.search import Choice
from ..processes.switch_interval import threads_alternate
from ..report.omissions import Omission, OmittedWork
from ..report.report import Report
from ..verification.comparison import Verification
from ..verification.reference import expected_run_seconds, expected_seconds, weight_bytes
from ..verification.verify import planned_inputs
from .background_reference import start_reference
from .background_weights import BackgroundWeights, start_weights
from .context.reserves import COMPILING_S, after_search_on_host_s, ending_s
from .context.session import VERIFYING_S, Session, open_store
from .costs.measuring import start_on_host, take_measurer
from .costs.prices import CostPricer
from .forms.choose_form import faster_unoptimized
from .overlapped_tuning import OverlappedTuning, start_tuning
from .short_search import ShortForm, match_short_form, search_short_form, wanted_short_form
from .stages.accept import acceptance
from .stages.choose import Carried, choose_cheapest, nothing_carried
from .stages.make_report import describe_plan, make_report
from .stages.match import begins_in_time, match_all
from .stages.prepare import Task, for_every_size
from .stages.provenance import attach
from .stages.rewrite import Rewritten, found_blocks, rewrite

VERIFYING = 0.5  # most of the budget that a search on the host leaves for verification on one input


@dataclass(frozen=True)
class SearchResult:
    """The program that a search returns, with its report, and the search's `task`. `as_written`: it is the unfused
    baseline."""

    program: Program
    task: Task
    as_written: bool


@dataclass(frozen=True)
class Accepted:
    """Program of a chosen plan, with that choice and its verdict (None if it was not verified)."""

    choice: Choice
    program: Program
    verdict: Verification | None


def search(session: Session, task: Task) -> SearchResult:
    """Result of a search: a size-polymorphic program if the graph has free dimensions and a plan that holds at every
    size is found, else a program of fixed sizes."""
    symbolic = for_every_size(session, task.source, task.model, task.backends)
    if symbolic is not None:
        try:
            return search_task(session, replace(task, symbolic=symbolic))
        except (NoPlanError, ShapeError) as error:
            session.warnings += [*symbolic.notes(), f"the program runs at one size only: {error.message}"]
    return search_task(session, task)


def search_task(session: Session, task: Task) -> SearchResult:
    """Result of searching, building, verifying and timing a program of a prepared graph."""
    with threads_alternate() if task.on_gpu else nullcontext():  # so that measuring goes on beside matching and solving
        return _search_task(session, task)


def _search_task(session: Session, task: Task) -> SearchResult:
    blocks = found_blocks(session, task.work)
    session.expected.repeats = len(blocks.instances) > len(blocks.unique)
    references = start_reference(session, task)
    weights = start_weights(session, task)
    store, measurer = take_measurer(session, task.backends)
    if measurer is not None:
        session.starting = lambda: not measurer.ready
        compile_early(session, task, measurer)
    tuning: OverlappedTuning | None = None
    if measurer is not None and measurer.ahead:
        session.lowerings.pool.begin()  # worker start-up takes as long as rewriting
        tuning = start_tuning(session, task, blocks, store, measurer)
    try:
        if not task.on_gpu:
            _expect(session, task, derived=True)
        kept = 0.0 if task.on_gpu else after_search_on_host_s(session)
        rewritten = rewrite(session, task.work, blocks, kept, late=rewriting_is_late(session, tuning))
        if measurer is not None and not task.on_gpu:
            start_on_host(session.options, task.backends, measurer)
        graphs, carried = _match(session, task, rewritten, tuning, weights, store, measurer)
        with open_store(session, store), gc_frozen() if task.on_gpu else nullcontext():
            pricer, graph, first = CostPricer(store), graphs[-1], None
            if len(graphs) > 1:
                graph, first = choose_cheapest(session, graphs, pricer, measurer)
            graphs.clear()  # frees the memory of the rejected hypergraphs
            fired = rewritten.fired(session)
            loop = acceptance(session, task, pricer, measurer, first, fired, references, weights.end, carried)
            if session.options.verify:
                accepted = Accepted(*loop.run(graph))
            else:
                accepted = Accepted(*loop.build(graph), None)
            report = make_report(session.options, task, rewritten, accepted.choice, store)
            describe_plan(report, accepted.program, accepted.choice, pricer, task.work, session.timeline_start)
    finally:
        if tuning is not None:
            tuning.end()
        weights.end()
        session.lowerings.close()
        with session.stage_clock.running("stop workers"):
            _ended(session, store, measurer)
    return _finished(session, task, accepted, report, measurer, pricer)


def rewriting_is_late(session: Session, tuning: OverlappedTuning | None) -> bool:
    """Whether the unrewritten short form is searched anyway, because no kernels of a rewritten one would be generated
    any more (`match_short_form`)."""
    return tuning is not None and tuning.whole is not None and not begins_in_time(session)


def _ended(session: Session, store: Store, measurer: Measurer | None) -> None:
    """End a search's measuring processes, or leave them to the next search of the session."""
    if measurer is not None and session.keeps_measurer:
        measurer.rest()
        session.started = store, measurer
    elif measurer is not None:
        measurer.close()


def _match(
    session: Session, task: Task, rewritten: Rewritten, tuning: OverlappedTuning | None, weights: BackgroundWeights,
    store: Store, measurer: Measurer | None,
) -> tuple[list[Hypergraph], Carried]:  # fmt: skip
    """The hypergraphs to search, made after overlapped tuning has matched its own, with the candidates from which their
    first solves start; ends the tuning. A deep model's short form is searched here."""
    short: ShortForm | None = None
    if tuning is not None:
        with session.stage("candidates", "of the graph as it is written"):
            tuning.matched()
        if tuning.whole is None and wanted_short_form(session, task, rewritten.blocks) is not None:
            tuning.quiet()
        short = match_short_form(session, task, rewritten, tuning.short_graph)
    match = partial(match_all, session, task, rewritten, tuning.graph if tuning is not None else None)
    graphs, carried = list[Hypergraph](), nothing_carried
    if short is None:
        graphs = match()
        session.lowerings.close()  # frees the worker processes' memory
    if task.on_gpu:
        _expect(session, task, derived=not weights.started)
    if tuning is not None:
        with session.stage("overlapped tuning"):
            tuning.end()
        session.warnings += [f"measuring while the graph was rewritten ended early: {f}" for f in tuning.faults]
    if short is not None:
        assert measurer is not None
        found = search_short_form(session, task, short, store, measurer)
        graphs, carried = ([found.whole], found.carried) if found is not None else (match(), nothing_carried)
        session.lowerings.close()
    return graphs, carried


def _expect(session: Session, task: Task, *, derived: bool) -> None:
    """Estimate the seconds of compiling, binding and verifying a program, the time that measuring leaves.

    `derived`: whether that includes computing derived weights.
    """
    graph, flops = task.model.graph, graph_flops(list(task.work.roots))
    if session.options.verify:
        session.expected.verification_s = expected_seconds(graph, flops, task.on_gpu, derived)
        if not task.on_gpu:  # outputs that take longer than that are compared in part
            most = max(VERIFYING_S, VERIFYING * session.options.budget)
            session.expected.verification_s = min(session.expected.verification_s, most)
        session.expected.input_s = expected_run_seconds(graph, flops, task.on_gpu)
        session.expected.verified_inputs = planned_inputs(graph, flops)
    if not task.on_gpu:
        session.expected.compiling_s = _compiling_s(task)
    else:
        session.expected.ending_s = ending_s(session)
        session.expected.binding_s = weight_bytes(graph, derived) / rates.GPU.weight_bytes_per_s
        session.expected.weight_bytes = sum(leaf.type.nbytes for leaf in graph.leaves("param"))


def compile_early(session: Session, task: Task, measurer: Measurer) -> None:
    """Begin to compile the C functions that kernels of the graph share, in the process that measures kernels.

    Nothing is compiled if that would end after the budget: no kernel would be measured, and the compilation of the
    program itself would wait."""
    early = [kernel for b in task.backends for kernel in backend(b.name).stand_ins(task.work)]
    if early and not session.over_in(_compiling_s(task)):
        measurer.compile(early)


def _compiling_s(task: Task) -> float:
    """Seconds that compiling a program's C kernels is expected to take on this machine now."""
    return expected_compile_seconds(COMPILING_S) if any(b.generates for b in task.backends) else 0.0


def _finished(
    session: Session, task: Task, accepted: Accepted, report: Report, measurer: Measurer | None, pricer: CostPricer
) -> SearchResult:  # fmt: skip
    """Time the program, choose between it and the unfused baseline, and complete its report."""
    choice, program, symbolic = accepted.choice, accepted.program, task.symbolic
    session.verified()
    report.verification = accepted.verdict.to_json() if accepted.verdict else None
    report.warnings += session.warnings
    if accepted.verdict is not None and accepted.verdict.warning:
        report.warnings.append(accepted.verdict.warning)
    if symbolic is not None:
        report.sizes, report.warnings = symbolic.size_ranges(), [*report.warnings, *symbolic.notes()]
    if choice.stopped == "budget":
        session.omitted.append(Omission(OmittedWork.MEASURING))
    unoptimized = faster_unoptimized(session, task, program, report, pricer)
    program = unoptimized or program
    report.seconds, report.omitted = session.stage_clock.seconds, list(dict.fromkeys(map(str, session.omitted)))
    _note_unsearched(session, report)
    if measurer is not None and measurer.ahead:
        report.measuring = {"rounds": choice.rounds, **measurer.spent}
        session.background_clocks += [("lowering", session.lowerings.pool.clock), *measurer.clocks]
    report.timeline, report.finalists = session.timeline, session.finalists
    program.report = report
    attach_provenance(program, task, as_written=unoptimized is not None)
    program.reset()  # verification and timing have changed the states
    return SearchResult(program, task, unoptimized is not None)


def _note_unsearched(session: Session, report: Report) -> None:
    """Record for user kernels without matches that part of the e-graph was left out, and why."""
    left_out = next((o.unsearched for o in session.omitted if o.unsearched), "")
    if left_out:
        for row in report.user_kernels:
            row.unsearched = f"{left_out}: {'the search was stopped' if session.progress.stopped else 'out of time'}"


def attach_provenance(program: Program, task: Task, *, as_written: bool) -> None:
    """Attach the provenance (original graph and chosen terms) to a program. `as_written`: it is the unfused baseline.
    With free sizes, the graph is the one at the generic sizes of the rewriting.
    """
    if task.symbolic is not None:
        attach(program, task.symbolic.work, task.symbolic.generic)
    else:
        attach(program, task.searched(as_written=as_written))


__all__ = ["SearchResult", "attach_provenance", "compile_early", "rewriting_is_late", "search", "search_task"]
