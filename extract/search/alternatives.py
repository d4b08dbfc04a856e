"""Finds plans (choices of kernels that compute a graph) other than the cheapest of a finished search: the next ones in
rising cost, the cheapest that avoid certain kernels, and the finalists, whose programs are timed as a whole, with one
that has unmeasured kernels."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from ...errors import ExtractionError
from ..model.gc_pause import gc_paused
from ..model.kernel import Call, Candidate, Template
from ..model.pricing import Priced
from ..solve.kbest import k_best
from ..solve.solve import solve
from .encoding import EncodedHypergraph
from .plan_solver import SIMPLE_FAMILIES, is_predictable, pessimistic_us
from .search import Choice


def alternatives(
    choice: Choice, count: int, *, max_gap: float = 0.2, seconds: float = 10.0, diversity: float = 0.0
) -> Iterator[Choice]:
    """Yields distinct choices of kernels from the hypergraph of `choice`, in rising estimated cost, the cheapest first,
    within its budgets.

    At most `count`, none more expensive than (1 + `max_gap`) times the first, found within `seconds`. `diversity`:
    least share of a choice's kernels (without views) that are not in any one earlier choice.
    """
    rows = EncodedHypergraph(choice.hypergraph, [p.us for p in choice.prices], choice.budgets, every=diversity > 0)
    kernels = [i >= 0 and not choice.hypergraph.candidates[i].is_view for i in rows.candidate]
    for found in k_best(
        rows.problem, count=count, max_gap=max_gap, time_limit=seconds, diversity=diversity, kernels=kernels
    ):
        yield replace(choice, chosen=rows.ordered(found), extraction=found, rounds=0, measured=0)


VARIANT_S, VARIANT_GAP = 1.0, 0.01  # time limit and optimality gap of one solve
MAX_EXCLUDED_KERNELS = 12  # number of kernels of a choice, by time, that are excluded in turn


def variants(choice: Choice, *, max_gap: float = 0.5, seconds: float = 10.0) -> Iterator[Choice]:
    """Yields the given choice, then choices that avoid some of its kernels, best first.

    First come the cheapest choices found without one of its kernels, the kernel with the longest time first; then
    without a further kernel of the cheapest variant, and so on. A kernel means a template (a kernel's pattern and code)
    called on operands of certain types and strides, at every place in the plan. Costs mostly rise, up to (1 +
    `max_gap`) times the first. Within the choice's budgets; ends after `seconds`.
    """
    until = time.monotonic() + seconds
    candidates, limit = choice.hypergraph.candidates, choice.cost * (1 + max_gap)
    queue: list[tuple[float, int, frozenset[Any], Choice]] = [(choice.cost, 0, frozenset(), choice)]
    tried: set[frozenset[Any]] = set()
    yield choice
    while queue:
        _, _, banned, parent = heappop(queue)
        took: dict[Any, float] = {}
        for i in parent.chosen:
            if not candidates[i].is_view:
                took[_position_free_key(candidates[i])] = (
                    took.get(_position_free_key(candidates[i]), 0.0) + parent.prices[i].us
                )
        for kernel in sorted(took, key=lambda k: -took[k])[:MAX_EXCLUDED_KERNELS]:
            fewer = banned | {kernel}
            if fewer in tried:
                continue
            tried.add(fewer)
            if (left := until - time.monotonic()) <= 0:
                return
            found = _without(choice, fewer, min(left, VARIANT_S))
            if found is not None and found.cost <= limit:
                heappush(queue, (found.cost, len(tried), fewer, found))
                yield found


def _position_free_key(candidate: Candidate) -> Any:
    """Key of a kernel call independent of its position in the graph."""
    call = candidate.call
    return candidate.template.name, tuple((o.type, o.strides) for o in call.buffers.values()), repr(call.attrs)


def _without(choice: Choice, kernels: Collection[Any], seconds: float) -> Choice | None:
    """The cheapest choice found without the given kernels; None if there is none."""
    prices = zip(choice.hypergraph.candidates, choice.prices, strict=True)
    return _solved(choice, [math.inf if _position_free_key(c) in kernels else p.us for c, p in prices], seconds)


def _solved(choice: Choice, us: Sequence[float], seconds: float) -> Choice | None:
    """The cheapest choice found at other costs of the candidates, with the prices of `choice`. None if there is
    none."""
    rows = EncodedHypergraph(choice.hypergraph, us, choice.budgets)
    try:
        found = solve(rows.problem, time_limit=seconds, gap=VARIANT_GAP)
    except ExtractionError:
        return None
    return replace(choice, chosen=rows.ordered(found), extraction=found, rounds=0, measured=0)


LAUNCH_US = (
    1.0,
    2.0,
    4.0,
)  # costs in µs of a kernel launch that prices may lack; plans optimal under each are finalists


@gc_paused()
def finalists(choice: Choice, *, count: int, max_gap: float, seconds: float) -> list[Choice]:
    """Choices to be timed as whole programs: the given one, then at most `count` - 1 others.

    The others cost at most (1 + `max_gap`) times the given one, use other kernels, and no unmeasured kernels beyond
    those of the given one: first the plans that are optimal if each launch costs some µs more, then `variants` of the
    choice. Ends after `seconds`.

    They may be faster, because the time of a program is not the sum of its kernels' times: gaps between launches may or
    may not overlap with kernels, and operands may or may not be in the cache.
    """
    until, own = time.monotonic() + seconds, set(choice.chosen)
    candidates = choice.hypergraph.candidates
    known = [
        p if c.is_view or p.source == "measured" or i in own else replace(p, us=math.inf)
        for i, (c, p) in enumerate(zip(candidates, choice.prices, strict=True))
    ]
    measured = replace(choice, prices=known)

    def others() -> Iterator[Choice | None]:
        for launch_us in LAUNCH_US:
            costs = [p.us if c.is_view else p.us + launch_us for c, p in zip(candidates, known, strict=True)]
            yield _solved(measured, costs, min(VARIANT_S, max(until - time.monotonic(), 0.0)))
        yield from variants(measured, max_gap=max_gap, seconds=until - time.monotonic())

    found = {_kernels(choice): choice}
    limit = choice.cost * (1 + max_gap)
    for other in others():
        if other is not None and other.cost <= limit and _kernels(other) not in found:
            extraction = replace(
                other.extraction, cost=other.cost, lower_bound=choice.extraction.lower_bound, optimal=False
            )
            found[_kernels(other)] = replace(choice, chosen=other.chosen, extraction=extraction)
        if len(found) >= count or time.monotonic() > until:
            break
    return list(found.values())


@gc_paused()
def unmeasured_alternative(choice: Choice, *, seconds: float) -> tuple[Choice, float]:
    """The cheapest choice found in which library kernels, and generated packed products, pointwise and reduction
    kernels, may be unmeasured, and the share by which it is cheaper than the given one even if they take as long as
    they may (`pessimistic_us`). It has the given choice as `Choice.alone`; the given one itself, and 0.0, if none is
    cheaper.

    A search that the budget cut short has many good kernels that it could not measure: whether such a choice is faster
    is found by timing its program.
    """

    def us(candidate: Candidate, price: Priced) -> float:
        known = price.source == "measured" or is_predictable(candidate)
        return pessimistic_us(candidate, price) if known or candidate.template.family in SIMPLE_FAMILIES else math.inf

    own = set(choice.chosen)
    pairs = enumerate(zip(choice.hypergraph.candidates, choice.prices, strict=True))
    costs = [pessimistic_us(c, p) if i in own else us(c, p) for i, (c, p) in pairs]
    found = _solved(choice, costs, seconds)
    gain = 0.0 if found is None else 1 - sum(costs[i] for i in found.chosen) / sum(costs[i] for i in own)
    if found is None or gain <= 0:
        return choice, 0.0
    extraction = replace(found.extraction, cost=found.cost, lower_bound=choice.extraction.lower_bound, optimal=False)
    return replace(choice, chosen=found.chosen, extraction=extraction, alone=choice), gain


def unmeasured_kernels(choice: Choice) -> Iterator[tuple[Template, Call]]:
    """Generated kernels of a choice that were never measured on this machine, each with the schedule that the plan
    uses.

    The caller compiles them in advance.
    """
    for i in choice.chosen:
        candidate, price = choice.hypergraph.candidates[i], choice.prices[i]
        if candidate.template.space is not None and price.origin != "measured":
            yield candidate.template, replace(candidate.call, schedule=dict(price.schedule))


def _kernels(choice: Choice) -> frozenset[Any]:
    """The kernels of a choice with the number of calls of each."""
    candidates = choice.hypergraph.candidates
    return frozenset(
        Counter(_position_free_key(candidates[i]) for i in choice.chosen if not candidates[i].is_view).items()
    )


__all__ = ["alternatives", "finalists", "unmeasured_alternative", "unmeasured_kernels", "variants"]
