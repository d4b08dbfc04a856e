"""Runs the stage "candidates": matches kernels on a saturated e-graph and returns them as hypergraphs (values as
vertices, candidate kernels as edges), from which a plan is extracted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...backends.registry import backends_storing_narrow, on_gpu
from ...backends.runtime.views import view_strides
from ...backends.user.templates import USER_PREFIX
from ...egraph.explain.explain import classes_of
from ...egraph.saturate.pruned_views import cheap_terms
from ...egraph.saturate.term_cost import Roofline
from ...egraph.simplify.jumps import JUMPS, SORTS
from ...egraph.view.view import EGraphView, view_of
from ...extract.candidates.candidates import candidate_hypergraph
from ...extract.candidates.carried import CarriedKernels
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.backend import Backend
from ...extract.model.clock import Halted
from ...extract.model.storage_dtypes import narrow_types
from ...report.omissions import UNREWRITTEN, Omission, OmittedWork
from ...verification.comparison import rounding_allowance
from ...wording import counted
from ..context.reserves import building_s, ending_s
from ..context.session import Session, least_measuring
from ..costs.measuring import SMALL_S
from ..sizes.any_size import Symbolic
from .backend_filter import exact_only, within_loss
from .prepare import Task
from .rewrite import Rewritten

MATCHING = 0.2  # fraction of the budget that must remain when matching ends
MATCHING_LEAST = 0.5  # minimum matching time as a fraction of the minimum measuring time
# fraction of the budget that must remain when kernel generation, and generation for all layouts, ends
GENERATING = 0.6, 0.4
GENERATING_LEAST = 0.1  # minimum generation time as a fraction of the budget, if earlier stages took long
BINDING_LEAST = 0.3  # share of that time that binding the generated kernels has in any case
GENERATING_SMALL = 0.2  # the same for budgets up to SMALL_S: a plan without generated kernels takes up to twice as long
# e-nodes from which only cheap terms are matched within a small budget: kernels of an e-node take 4 to 10 ms of CPU
# time, and of the cheap terms half as much in all (networks of 75 to 195 operations; predicted plans 0 to 1 % dearer)
LARGE_VIEW = 150


def hypergraph(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool] = lambda: False,
    enough: Callable[[bool], bool] = lambda bound: False, narrow: bool = True, symbolic: Symbolic | None = None,
    carried: CarriedKernels | None = None,
) -> Hypergraph:  # fmt: skip
    """Candidate kernels of an e-graph as a hypergraph. With tolerance "exact", an op that has kernels whose results
    equal the unoptimized graph's bit by bit has no other candidates.

    Raises Halted when `stop()` is true. Once `enough(False)` is true, no further fused kernels are generated; once
    `enough(True)` is, generated kernels are bound in no further layouts. `narrow`: values of a 16-bit model may be
    stored in its dtype. `symbolic`: keep the kernels that hold at all sizes. `carried`: only these kernels.
    """
    with session.stage("candidates", counted(len(view), "e-node")):
        return match_kernels(session, view, backends, stop, enough, narrow, symbolic, carried)


def match_kernels(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool],
    enough: Callable[[bool], bool], narrow: bool = True, symbolic: Symbolic | None = None,
    carried: CarriedKernels | None = None,
) -> Hypergraph:  # fmt: skip
    """The hypergraph of candidate kernels of an e-graph, as `hypergraph` with the same parameters, but without being
    timed as a stage: for background threads."""
    limit, opened = rounding_allowance(session.options.tolerance), session.lowerings.opened
    exact = session.options.exact
    decides = not (JUMPS | SORTS).isdisjoint(view.op)
    chosen = [exact_only(opened(b)) if exact else within_loss(opened(b), limit, each_rounds=decides) for b in backends]
    if symbolic is not None:
        lifted = symbolic.view(view)
        types = symbolic.narrow(lifted) if narrow and not exact else ()
        return symbolic.hypergraph(candidate_hypergraph(lifted, chosen, view_strides, types or None, stop, enough))
    narrow = narrow and on_gpu(backends) and not exact  # exact programs keep the model's dtypes
    stored = narrow_types(view, _float32_classes(session, view)) if narrow else None
    return candidate_hypergraph(view, chosen, view_strides, stored, stop, enough, carried)


def _float32_classes(session: Session, view: EGraphView) -> list[int]:
    """The e-classes of values that a 16-bit model computes in float32."""
    terms = session.float32_values
    found = classes_of(view, terms) if terms else {}
    return [found[t] for t in terms if t in found]


def match_all(
    session: Session, task: Task, rewritten: Rewritten, unrewritten: Hypergraph | None = None
) -> list[Hypergraph]:  # fmt: skip
    """Hypergraphs to search, the one with the most candidates last: of lower effort levels (smaller saturations), of
    the rewritten graph, and of the rewritten graph in 16-bit storage; as many as time allows. On a GPU that of the
    unrewritten graph (`unrewritten`) is the first of them if it was made with more generated kernels than time allowed
    for the last. If there is time for none, that of the unrewritten graph alone, which is made if it was not yet.

    Within a small budget only the cheap terms of a large rewritten graph are matched. They are matched to the end if
    rewriting has found any: they contain the unrewritten graph, and generation ends in time."""
    graphs: list[Hypergraph] = []
    backends, stop = task.backends, matching_limit(session, task, unrewritten)
    enough, views, halted = generation_limit(session, backends), [*rewritten.smaller, rewritten.view], stop
    if (cheap := matched_view(session, task, rewritten.view)) is not rewritten.view:
        views = [cheap]
        if unrewritten is None or not np.all(cheap.original_nodes):
            halted = session.interrupted()
        if not task.on_gpu:
            enough = _host_generation_limit(session, backends, stop)
    try:
        for view in views:
            graphs.append(hypergraph(session, view, backends, halted, enough, symbolic=task.symbolic))
        if task.symbolic is None and (narrow := stored_narrow(session, views[-1], backends, stop)) is not None:
            graphs.append(narrow)
    except Halted:
        session.omitted.append(
            UNREWRITTEN if not graphs else Omission(OmittedWork.MATCHING, "the e-graph at the highest effort")
        )
    if any(g.stats.get("left_out") for g in graphs):
        session.omitted.append(Omission(OmittedWork.GENERATING))
        if task.on_gpu and unrewritten is not None and _generated(unrewritten) > _generated(graphs[-1]):
            graphs.insert(0, unrewritten)  # with kernels that were measured while the graph was rewritten
    if graphs:
        return graphs
    if unrewritten is None:  # library kernels always cover the unrewritten graph
        ended = _late_generation_limit(session, backends, enough)
        unrewritten = hypergraph(session, view_of(task.work), backends, enough=ended, symbolic=task.symbolic)
        if unrewritten.stats.get("left_out"):
            session.omitted.append(Omission(OmittedWork.GENERATING))
    return [unrewritten]


def _generated(graph: Hypergraph) -> int:
    """Number of candidates that are generated kernels."""
    return sum(c.template.space is not None for c in graph.candidates)


def matched_view(session: Session, task: Task, view: EGraphView) -> EGraphView:
    """The part of the rewritten graph `view` whose kernels are matched. With a small budget these are the cheap terms
    of a large graph; else all of it. It is also all of it if the caller gave rules or kernels: their terms may not be
    the cheap ones."""
    options, own = session.options, any(t.name.startswith(USER_PREFIX) for b in task.backends for t in b.templates)
    if task.symbolic is not None or options.deterministic or options.exact or options.rules or own:
        return view
    if only_generated(task.backends):  # which may need an expensive term
        return view
    if options.budget > SMALL_S or len(view) < LARGE_VIEW:
        return view
    cheap = cheap_terms(view, Roofline())
    if len(cheap) < len(view):
        session.omitted.append(Omission(OmittedWork.MATCHING, "expensive terms"))
    return cheap


def _host_generation_limit(
    session: Session, backends: Sequence[Backend], stop: Callable[[], bool]
) -> Callable[[bool], bool]:
    """Predicate that ends kernel generation on a CPU at the time of `stop`, after its least time."""
    until, optional = session.now() + GENERATING_LEAST * session.options.budget, not only_generated(backends)
    return lambda bound: optional and (session.progress.stopped or (stop() and session.now() >= until))


def matching_limit(session: Session, task: Task, unrewritten: Hypergraph | None) -> Callable[[], bool]:
    """Predicate that ends matching: the argument `stop` of `hypergraph`. `unrewritten`: the hypergraph used then."""
    pressed, kept = session.interrupted(), MATCHING * session.options.budget
    kept += building_s(session) + ending_s(session) if task.on_gpu else 0.0
    until = session.now() + (_least_matching(session) if task.on_gpu and unrewritten is None else 0.0)
    timed = not session.options.deterministic
    return lambda: pressed() or (timed and session.left <= kept and session.now() >= until and not session.waiting)


def _least_matching(session: Session) -> float:
    """Minimum seconds of matching on a GPU."""
    return MATCHING_LEAST * least_measuring(session.options)


def only_generated(backends: Sequence[Backend]) -> bool:
    """Whether the backends have generated kernels only (besides views, copies and user kernels)."""
    own = (t for b in backends for t in b.templates if not t.name.startswith(USER_PREFIX))
    return all(t.family in ("view", "copy") for t in own)


def begins_in_time(session: Session) -> bool:
    """Whether generation that begins now has more than its least time."""
    return session.options.deterministic or session.left > GENERATING[0] * session.options.budget


def generation_limit(session: Session, backends: Sequence[Backend]) -> Callable[[bool], bool]:
    """Predicate that ends kernel generation: the argument `enough` of `candidate_hypergraph`. On a CPU with a budget
    above SMALL_S, kernels that are generated later would take the time of measuring those that are known.

    Always false without library kernels, since there may then be no plan without generated ones, and on a CPU within a
    small budget or without measuring. The least time of generation counts from the first call, and, as long as layouts
    have time, from when worker processes that lower kernels have started. Binding in layouts, which follows
    generation, has a share of the least time of its own: kernels that are not bound are of no use.
    """
    began, binding, budget = math.inf, math.inf, session.options.budget
    measured = on_gpu(backends) or (session.options.measure and budget > SMALL_S)
    timed = measured and not (only_generated(backends) or session.options.deterministic)
    least = max(_least_matching(session), GENERATING_SMALL * budget if budget <= SMALL_S else 0.0)

    def enough(bound: bool) -> bool:
        nonlocal began, binding
        if not timed:
            return False
        if bound:
            binding = min(binding, session.now())
        if began > session.now() or (session.lowerings.pool.starting and session.left > GENERATING[True] * budget):
            began = session.now()
        spent, waiting = session.now() - began, session.waiting  # which notes when the processes are ready
        kept = GENERATING[bound or spent < GENERATING_LEAST * budget]
        bound_enough = not bound or session.now() - binding >= BINDING_LEAST * least
        return session.left <= kept * budget and spent >= least and bound_enough and not waiting

    return enough


def _late_generation_limit(
    session: Session, backends: Sequence[Backend], enough: Callable[[bool], bool]
) -> Callable[[bool], bool]:
    """Predicate that ends kernel generation for the unrewritten graph: with `enough`, or when the budget is over, on a
    CPU not before generation has had its least time. Library kernels alone may take ten times as long as fused ones."""
    least = 0.0 if on_gpu(backends) else GENERATING_LEAST * session.options.budget
    until, optional = session.now() + least, not only_generated(backends)

    def limit(bound: bool) -> bool:
        over = session.progress.stopped or (session.over and session.now() >= until)
        return enough(bound) or (optional and over)

    return limit


def stored_narrow(
    session: Session, view: EGraphView, backends: Sequence[Backend], stop: Callable[[], bool] = lambda: False
) -> Hypergraph | None:
    """Hypergraph in which the values of a bfloat16 model are stored in bfloat16, on a CPU with bfloat16 multiplication;
    else None.

    Whether 16-bit or float32 storage is faster is decided by comparing the two whole plans. `stop`: polled; raises
    Halted when it returns True.
    """
    if session.options.exact or on_gpu(backends):
        return None
    types = narrow_types(view)
    if all(t.dtype != "bfloat16" for t in types) or not any(b.name == "torch" for b in backends):
        return None
    from ...backends.library.torch_rows import multiplies_bfloat16

    if not multiplies_bfloat16():
        return None
    with session.stage("candidates", "values in bfloat16"):
        opened = [session.lowerings.opened(b) for b in backends]
        return candidate_hypergraph(view, backends_storing_narrow(opened), view_strides, types, stop)


__all__ = ["begins_in_time", "generation_limit", "hypergraph", "match_all", "match_kernels", "matched_view",
           "matching_limit", "only_generated", "stored_narrow"]  # fmt: skip
