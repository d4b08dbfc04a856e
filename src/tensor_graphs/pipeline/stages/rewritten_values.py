"""Determines which values of a rewritten graph also occur in the original graph, and which kernels compute the
others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...egraph.ops.ops import OPS
from ...egraph.view.view import Bools, EGraphView
from ...extract.model.kernel import Candidate
from ...extract.model.work import call_work
from ...extract.search.search import Choice

MOVES = ("view", "copy")  # families of kernels that do no arithmetic


def original_values(view: EGraphView) -> Bools:
    """For each e-class whether its value occurs in the original graph, or is computed from such values by views and
    copies (concatenation) alone."""
    known: Bools = view.original_classes.copy()
    kinds = np.array([OPS[op].kind in ("view", "layout") for op in view.op], np.bool_)
    moves = [(int(view.cls[i]), view.children(i)) for i in np.flatnonzero(kinds).tolist()]
    grown = True
    while grown:
        fresh = [c for c, children in moves if not known[c] and known[children].all()]
        known[fresh] = True
        grown = bool(fresh)
    return known


def on_original_values(view: EGraphView) -> Callable[[Candidate], bool]:
    """Predicate: whether a candidate computes values of the original graph from values of the original graph."""
    known = original_values(view).tolist()
    return lambda c: all(known[v.cls] for v in c.outputs) and all(known[v.cls] for _, v in c.inputs)


def rewritten_most(choice: Choice) -> str | None:
    """The family (contractions, reductions, …) of chosen kernels with the most flops on values that do not occur in the
    original graph; None if there are no such kernels."""
    original = on_original_values(choice.hypergraph.view)
    work: dict[str, float] = {}
    for i in choice.chosen:
        c = choice.hypergraph.candidates[i]
        if c.template.family not in MOVES and not original(c):
            work[c.template.family] = work.get(c.template.family, 0.0) + call_work(c.template, c.call)[0]
    return max(work, key=lambda family: (work[family], family)) if work else None


__all__ = ["on_original_values", "original_values", "rewritten_most"]
