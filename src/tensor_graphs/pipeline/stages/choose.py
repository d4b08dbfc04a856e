"""Runs the stages "extract" and "measure" of a search: chooses the cheapest kernels from the candidates that a
hypergraph holds, and measures the best plan's kernels that have no measured time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...errors import NoPlanError, WorkerError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.clock import Clock
from ...extract.model.pricing import Measurer
from ...extract.search.search import Choice, search
from ...extract.solve import budgets
from ...options import Options
from ...wording import counted
from ..context.reserves import after_search_on_host_s, after_search_s, closing_left_s
from ..context.session import Session, least_measuring
from ..costs.measuring import SMALL_S
from ..costs.prices import CostPricer

Carried = Callable[[Hypergraph], Sequence[int]]  # candidates from which the first solves of a hypergraph start
# minimum fraction of its time share that a search gets, whatever the stages after it are expected to take: on a GPU,
# where most of what is kept for them is for optional work, and on a CPU
SEARCH_GPU, SEARCH_CPU = 0.5, 0.25
# share of the budget, and seconds, that the solve for the plan to return has on a GPU even if the time is up: with a
# quarter of a second, plans of decode steps were a tenth dearer than the cheapest ones
LAST_SOLVE, LAST_SOLVE_S = 0.02, 0.8


def nothing_carried(graph: Hypergraph) -> Sequence[int]:
    """No candidates: first solves start from nothing."""
    return ()


def choose_cheapest(
    session: Session, graphs: Sequence[Hypergraph], pricer: CostPricer, measurer: Measurer | None
) -> tuple[Hypergraph, Choice]:
    """Search each hypergraph for a share of the time; returns the one with the cheapest plan, and that plan.

    A plan whose search did not measure to the end replaces one whose search did only if it is cheaper with its
    unmeasured kernels at their pessimistic times. Shares are equal, except that if kernels are measured, the
    hypergraph that stores values in 16 bits, which moves half of the bytes, comes first and may take most of the time.
    A later search ends once its plan is dearer at optimistic times than the best plan so far, whose search then has the
    rest of the time. On a GPU no later search begins when only the time of the stages after it (`after_search_s`) is
    left.
    """
    best: tuple[Hypergraph, Choice] | None = None
    beaten = False
    if measurer is not None:
        graphs = sorted(graphs, key=lambda graph: not graph.stores_other_types)
    for n, graph in enumerate(graphs):
        cost = math.inf if best is None else best[1].cost
        first = measurer is not None and graph.stores_other_types
        if best is not None and measurer is not None and measurer.ahead and session.left <= after_search_s(session):
            break
        try:
            choice = choose(
                session, graph, pricer, measurer, share=0.8 / (1 if first else len(graphs) - n), beaten=cost
            )
        except NoPlanError:
            if best is None and n + 1 == len(graphs):
                raise
            continue
        if best is None:
            best = graph, choice
            continue
        if choice.stopped == "beaten":
            beaten = True
            continue
        settled = choice.stopped in ("measured", best[1].stopped)
        if (choice.cost if settled else choice.pessimistic_cost) < best[1].cost:
            best = graph, choice
    assert best is not None
    if beaten and best[1].stopped == "budget":
        best = best[0], choose(session, best[0], pricer, measurer)
    return best


def choose(
    session: Session, graph: Hypergraph, pricer: CostPricer, measurer: Measurer | None,
    share: float = 0.8, limits: Sequence[budgets.Budget] = (), carried: Carried = nothing_carried,
    kept: float = 0.0, solve_seconds: float = 2.5, beaten: float = math.inf,
) -> Choice:  # fmt: skip
    """The cheapest kernels of a hypergraph within the options' budgets and `limits`, measured as far as the best plan
    needs.

    Without a measuring process, or if all kernels that cover an output failed in it, prices are predictions; the report
    says so. `share`: fraction of the remaining time. `carried`: candidates from which the first solves start.
    `kept`: seconds that the search leaves in addition. `solve_seconds`: time limit of one solve. `beaten`: cost in µs
    of a plan from another hypergraph, above which no plan of this one is of use.
    """

    start = carried(graph)

    def attempt(measurer: Measurer | None, doubt: bool = False) -> Choice:
        left = max(0.0, session.left)
        ahead = measurer is not None and measurer.ahead
        later, least_share = (after_search_s, SEARCH_GPU) if ahead else (after_search_on_host_s, SEARCH_CPU)
        # a plan that was carried over has been measured already
        floor = 0.0 if start else least_share * share * left
        seconds = max(floor, min(share * left, left - later(session) - kept))
        again = "measure" in session.stage_clock.seconds  # only the first search has a guaranteed minimum time
        first = ahead and not again
        least = least_search(session) if first else 0.0
        seconds = max(seconds, least)
        clock = Clock()
        session.background_clocks.append(("search", clock))
        return search(
            graph, pricer, measurer, seconds=seconds, least=least, clock=clock, deterministic=session.options.deterministic, doubt=doubt,
            progress=lambda m: session.progress.say("extract", m), stop=lambda: session.progress.stopped,
            budgets=[*_budgets(session.options, pricer, graph), *limits], carried=start, solve_seconds=solve_seconds,
            beaten=beaten, closing=closing_left_s(session, ahead, seconds + kept),
            last_solve=min(LAST_SOLVE_S, LAST_SOLVE * session.options.budget) if ahead else 0.0,
        )  # fmt: skip

    with session.stage("extract", counted(len(graph.candidates), "candidate kernel")):
        try:
            choice = attempt(measurer)
        except WorkerError as error:
            session.warnings.append(f"nothing more was measured: {error.message}")
            choice = attempt(None, doubt=True)
        except NoPlanError:
            if measurer is None or pricer.forgiving or limits:
                raise
            session.warnings.append("kernels that failed when measured are in the plan: no others cover the outputs")
            pricer.forgiving = True
            choice = attempt(None, doubt=True)
    spent = choice.seconds.get("measure", 0.0)
    session.stage_clock.add("extract", -spent)
    session.stage_clock.add("measure", spent)
    return choice


def least_search(session: Session) -> float:
    """Minimum seconds of measuring on a GPU that are left for the first search, what was measured beside rewriting
    (overlapped_tuning.py) included.

    With budgets up to SMALL_S the search has all of them, for kernels of the rewritten graph: overlapped tuning has
    measured library kernels of the unrewritten one, and the plan would have no measured kernel.
    """
    small = session.options.budget <= SMALL_S
    return max(0.0, least_measuring(session.options) - (0.0 if small else session.ready_s))


def _budgets(options: Options, pricer: CostPricer, graph: Hypergraph) -> list[budgets.Budget]:
    """The options' limits on sums over a plan's kernels: memory and rounding error. Memory includes weights if some are
    quantized.
    """
    found = []
    if options.memory_limit is not None:
        found.append(budgets.memory_budget(options.memory_limit, weights="dequantize" in graph.view.op))
    if options.error_budget is not None:
        found.append(budgets.error_budget(options.error_budget, pricer.errors))
    return found


__all__ = ["Carried", "choose", "choose_cheapest", "least_search", "nothing_carried"]
