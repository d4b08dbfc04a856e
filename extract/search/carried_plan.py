"""Carries a plan of a model's short form (egraph/blocks/short_form.py: the model with few of its repeated layers) over
to the whole model.

Both e-graphs are joined from copies of the same blocks (repeated subgraphs), so that a value has the same place in a
block wherever it occurs. A kernel of the short form's plan stands for the kernels at the same places in all copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from functools import cache

from ...errors import ExtractionError
from ..candidates.hypergraph import Hypergraph
from ..fusion.repeated_blocks import RepeatedBlocks
from ..model.kernel import Candidate
from ..solve.solve import solve
from .encoding import EncodedHypergraph
from .search import Choice

LIBRARY_SOLVE_S = 0.25  # seconds of a solve for a plan of library kernels


def kernels_to_carry(choice: Choice) -> list[int]:
    """Indices of the candidate kernels of a short form (the model with few of its repeated layers) with which the whole
    model is searched: those of the chosen plan, all measured ones, and those of the cheapest plan of library kernels.
    Views are left out."""
    short, prices = choice.hypergraph, choice.prices
    chosen = [*choice.chosen, *(i for i, p in enumerate(prices) if p.source == "measured" and p.us < math.inf)]
    costs = [p.us if c.template.space is None else math.inf for c, p in zip(short.candidates, prices)]
    with suppress(ExtractionError):  # not all backends have such a plan
        rows = EncodedHypergraph(short, costs)
        chosen += rows.ordered(solve(rows.problem, time_limit=LIBRARY_SOLVE_S, beam_only=True))
    return [i for i in dict.fromkeys(chosen) if not short.candidates[i].is_view]


def carried_plan(plan: Collection[int], short: Hypergraph, whole: Hypergraph) -> list[int]:
    """The candidates of `whole` at the places of those of a `plan` of `short`.

    They need not be a plan: copies of a block (repeated subgraph) may have several kernels for a value, or none.
    """
    place = _places(short)
    wanted = {place(short.candidates[i]) for i in plan}
    place = _places(whole)
    return [i for i, c in enumerate(whole.candidates) if place(c) in wanted]


def _places(graph: Hypergraph) -> Callable[[Candidate], Hashable]:
    """Function that returns a candidate's kernel with the places of its operands and results in their blocks."""
    blocks = RepeatedBlocks.of(graph.view)

    @cache
    def in_blocks(cls: int) -> frozenset[tuple[int, int]]:
        return frozenset((blocks.blocks[n], x) for n, x in blocks.owners.get(cls, ()))

    def place(c: Candidate) -> Hashable:
        read = tuple([(in_blocks(v.cls), v.strides) for _, v in c.inputs if v.cls not in graph.given])
        return id(c.template), read, tuple([(in_blocks(v.cls), v.strides) for v in c.outputs])

    return place


__all__ = ["carried_plan", "kernels_to_carry"]
