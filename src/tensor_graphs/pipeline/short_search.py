"""Searches a deep model by its short form (egraph/blocks/short_form.py), in which each repeated block of layers occurs
once.

Kernels are matched, measured and chosen for the short form. The measured kernels and those of the chosen plan are
carried over to the whole model, whose search starts from that plan. So equal layers are searched once. If kernels
carried over do not cover the whole model, all of its kernels are matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..costdb.store.store import Store
from ..egraph.blocks.blocks import Blocks
from ..egraph.blocks.short_form import short_form
from ..egraph.view.joined_view import join_blocks
from ..errors import NoPlanError
from ..extract.candidates.carried import carried_kernels
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.clock import Halted
from ..extract.model.gc_pause import gc_frozen
from ..extract.model.pricing import Measurer
from ..extract.search.carried_plan import carried_plan, kernels_to_carry
from ..extract.search.search import Choice
from .context.reserves import WHOLE_S, is_kept
from .context.session import Session, open_store
from .costs.prices import CostPricer
from .stages.choose import choose
from .stages.match import SOME_LEFT_OUT, generation_limit, hypergraph, matching_limit
from .stages.prepare import Task
from .stages.rewrite import Rewritten

SOLVE_S = 1.0  # longest solve of a short form; most are proved in a third of it


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


def wants_short_form(session: Session, task: Task, blocks: Blocks) -> bool:
    """Whether a model of these blocks is searched by its short form: if it has one, its sizes are fixed, the budget
    suffices for all stages, and neither memory nor error of the whole plan is limited."""
    return _wanted(session, task) and short_form(blocks) is not None


def _wanted(session: Session, task: Task) -> bool:
    limited = session.options.memory_limit is not None or session.options.error_budget is not None
    return task.symbolic is None and is_kept(session) and not limited


def match_short_form(session: Session, task: Task, rewritten: Rewritten) -> Hypergraph | None:
    """The hypergraph of the model's rewritten short form; None if it is not wanted (`wants_short_form`), or there is no
    time for it."""
    short = short_form(rewritten.blocks) if _wanted(session, task) and not rewritten.smaller else None
    if short is None:
        return None
    view, stop = join_blocks(short, rewritten.block_views), matching_limit(session, task, None)
    try:
        return hypergraph(session, view, task.backends, stop, generation_limit(session, task.backends))
    except Halted:
        return None


def search_short_form(
    session: Session, task: Task, rewritten: Rewritten, short: Hypergraph, store: Store, measurer: Measurer
) -> ShortSearch | None:  # fmt: skip
    """Search a model's short form `short`, and match the kernels found in the whole model. Returns both; None if the
    short form has no plan, or its kernels do not cover the whole model. Kernels that the clock left out of either are
    reported as omitted."""
    with open_store(session, store), gc_frozen():
        try:
            choice = choose(session, short, CostPricer(store), measurer, kept=WHOLE_S, solve_seconds=SOLVE_S)
        except NoPlanError:
            return None
    kernels = carried_kernels(short, kernels_to_carry(choice), rewritten.view)
    whole = hypergraph(session, rewritten.view, task.backends, carried=kernels)
    made = {v for c in whole.candidates for v in c.outputs}
    covered = all(r in made or whole.given.get(r.cls) == r.strides for r in whole.roots)
    if not covered:
        return None
    if short.stats.get("left_out") or whole.stats.get("left_out"):
        session.omitted.append(SOME_LEFT_OUT)
    return ShortSearch(short, choice, whole)


__all__ = ["ShortSearch", "match_short_form", "search_short_form", "wants_short_form"]
