"""Cheapest terms of a view's roots."""

from __future__ import annotations

from collections.abc import Callable

from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.view.view import EGraphView


def best_terms(view: EGraphView, price: Callable[[int], float] | None = None) -> list[Tensor]:
    """The terms of least tree cost of the roots (default cost: number of e-nodes)."""
    cost = [1.0 if price is None else price(i) for i in range(len(view))]
    choice = view.cheapest(cost)[1]
    return [view.term(choice, root) for root in view.roots]
