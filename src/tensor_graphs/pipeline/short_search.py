"""Searches a deep model by its short form (egraph/blocks/short_form.py), in which each repeated block of layers occurs
once.

Kernels are matched, measured and chosen for the short form. The measured kernels and those of the chosen plan are
carried over to the whole model, whose search starts from that plan. So equal layers are searched once. If kernels
carried over do not cover the whole model, all of its kernels are matched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..costdb.store.store import Store
from ..egraph.blocks.blocks import Blocks
from ..egraph.blocks.short_form import short_form
from ..egraph.view.joined_view import join_blocks
from ..egraph.view.view import EGraphView
from ..errors import NoPlanError
from ..extract.candidates.carried import carried_kernels
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.clock import Halted
from ..extract.model.gc_pause import gc_frozen
from ..extract.model.pricing import Measurer
from ..extract.search.carried_plan import carried_plan, kernels_to_carry
from ..extract.search.search import Choice, search
from ..extract.search.swaps import Swaps
from ..report.omissions import UNREWRITTEN, Omission, OmittedWork
from .context.reserves import holding_s, whole_s
from .context.session import Session, open_store
from .costs.prices import CostPricer
from .stages.choose import choose
from .stages.match import begins_in_time, generation_limit, hypergraph, matched_view, matching_limit
from .stages.measure_prefetching import measure_prefetching
from .stages.prepare import Task
from .stages.rewrite import Rewritten, as_written

SOLVE_S = 1.0  # longest solve of a short form; most are proved in a third of it


@dataclass(frozen=True)
class ShortForm:
    """A short form as the hypergraph of its kernels, and the e-graph of the whole model that it stands for.

    `unrewritten`: those of the unrewritten model, if its kernels were matched as well.
    """

    graph: Hypergraph
    whole: EGraphView
    unrewritten: ShortForm | None = None


@dataclass(frozen=True)
class ShortSearch:
    """A searched short form, and the hypergraph of the whole model with the kernels found for the short form as
    candidates."""

    short: Hypergraph
    choice: Choice
    whole: Hypergraph

    def carried(self, graph: Hypergraph) -> Sequence[int]:
        """The candidates of a hypergraph from which its first solves start."""
        return carried_plan(self.choice.chosen, self.short, graph) if graph is self.whole else ()


def wanted_short_form(session: Session, task: Task, blocks: Blocks) -> Blocks | None:
    """The short form of a model of these blocks if the model is searched by it: if it has one, its sizes are fixed, and
    neither memory nor error of the whole plan is limited. Else None."""
    limited = session.options.memory_limit is not None or session.options.error_budget is not None
    return None if limited or task.symbolic is not None else short_form(blocks)


def match_short_form(
    session: Session, task: Task, rewritten: Rewritten, unrewritten: Hypergraph | None = None
) -> ShortForm | None:  # fmt: skip
    """The model's rewritten short form with its kernels, and the unrewritten one with those in `unrewritten`, which
    were matched before; None if it is not wanted (`wanted_short_form`).

    Without time for the rewritten one that of the unrewritten model; None without its kernels. There is none if no new
    kernels would be generated any more: then measuring the unrewritten one for longer finds better plans.
    """
    short = None if rewritten.smaller else wanted_short_form(session, task, rewritten.blocks)
    if short is None:
        return None
    plain = None if unrewritten is None else ShortForm(unrewritten, as_written(rewritten.blocks))
    view, stop = join_blocks(short, rewritten.block_views), matching_limit(session, task, unrewritten)
    enough = generation_limit(session, task.backends)
    if plain is None or begins_in_time(session):
        with suppress(Halted):
            graph = hypergraph(session, matched_view(session, task, view), task.backends, stop, enough)
            return ShortForm(replace(graph, repeats=_repeats(view, rewritten.view)), rewritten.view, plain)
    session.omitted += [] if plain is None else [UNREWRITTEN]
    return plain


def _repeats(short: EGraphView, whole: EGraphView) -> dict[int, float]:
    """E-class of a short form -> how many instances of its block the whole model has for each one of the short form."""
    ours, theirs = (Counter(block for block, _ in view.instances) for view in (short, whole))
    found: dict[int, float] = {}
    for block, classes in short.instances:
        found |= {c: max(theirs[block] / ours[block], found.get(c, 0.0)) for c in classes.tolist() if c >= 0}
    return found


def _with_prefetching(session: Session, choice: Choice, pricer: CostPricer, measurer: Measurer) -> Choice:
    """The choice with prices of further kernels, measured now, that are tried in the program (time_schedules.py): the
    whole model has only measured ones."""
    seconds = holding_s(session)
    if not (measurer.ahead and seconds) or session.progress.stopped:
        return choice
    found = measure_prefetching(session, choice, Swaps(choice), pricer.measured, measurer.measure, seconds)
    prices, candidates = list(choice.prices), choice.hypergraph.candidates
    for i, price in zip(found, pricer.price([candidates[i] for i in found]), strict=True):
        prices[i] = price
    return replace(choice, prices=prices)


def search_short_form(
    session: Session, task: Task, form: ShortForm, store: Store, measurer: Measurer
) -> ShortSearch | None:  # fmt: skip
    """Search a model's short form, and match the kernels found in the whole model. Returns both; None if the
    short form has no plan, or its kernels do not cover the whole model. Kernels that the clock left out of either are
    reported as omitted.

    If time was left to match only some kernels of the rewritten short form, the plan of the unrewritten one may be
    cheaper; then that one is taken.
    """
    with open_store(session, store), gc_frozen():
        pricer = CostPricer(store)
        try:
            kept = whole_s(session, len(form.whole)) + holding_s(session)
            choice = choose(session, form.graph, pricer, measurer, kept=kept, solve_seconds=SOLVE_S)
            choice = _with_prefetching(session, choice, pricer, measurer)
        except NoPlanError:
            return None
        if form.unrewritten is not None and choice.stopped == "budget":
            plain = search(form.unrewritten.graph, pricer, seconds=SOLVE_S, solve_seconds=SOLVE_S, doubt=True)
            if plain.pessimistic_cost < choice.pessimistic_cost:
                session.omitted.append(UNREWRITTEN)
                form, choice = form.unrewritten, plain
    short = form.graph
    kernels = carried_kernels(short, kernels_to_carry(choice), form.whole)
    whole = hypergraph(session, form.whole, task.backends, carried=kernels)
    made = {v for c in whole.candidates for v in c.outputs}
    covered = all(r in made or whole.given.get(r.cls) == r.strides for r in whole.roots)
    if not covered:
        return None
    if short.stats.get("left_out") or whole.stats.get("left_out"):
        session.omitted.append(Omission(OmittedWork.GENERATING))
    return ShortSearch(short, choice, whole)


__all__ = ["ShortForm", "ShortSearch", "match_short_form", "search_short_form", "wanted_short_form"]
