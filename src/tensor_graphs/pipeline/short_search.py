"""Search of a deep model's short form (the model with few of its repeated layers), before that of the whole model."""

from __future__ import annotations

from ..egraph.ir.blocks import find_blocks
from ..egraph.ir.short_form import short_form
from ..egraph.view.glue import glue
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.clock import Halted
from .match import generation_limit, hypergraph, matching_limit
from .prepare import Task
from .reserves import after_search_s, is_kept
from .rewrite import Rewritten
from .session import Session

SHARE = 0.6  # share of the time for measuring that is left when the whole model is matched


def wants_short_form(session: Session, task: Task) -> bool:
    """Whether a model's short form (the model with few of its repeated layers) is to be searched first: with fixed
    sizes and time for all stages, if it has one."""
    return task.symbolic is None and is_kept(session) and short_form(find_blocks(task.work)) is not None


def match_short_form(session: Session, task: Task, rewritten: Rewritten) -> Hypergraph | None:
    """The hypergraph of the model's rewritten short form (the model with few of its repeated layers); None if it is not
    wanted, or there is no time for it."""
    short = short_form(rewritten.blocks) if task.symbolic is None and is_kept(session) else None
    if short is None:
        return None
    backends, enough = task.backends, generation_limit(session, task.backends)
    try:
        return hypergraph(
            session, glue(short, rewritten.block_views), backends, matching_limit(session, task, None), enough
        )
    except Halted:
        return None


def short_search_s(session: Session) -> float:
    """Seconds that the search of the short form (the model with few of its repeated layers) may go on when the whole
    model is matched."""
    return SHARE * (session.left - after_search_s(session))


__all__ = ["match_short_form", "short_search_s", "wants_short_form"]
