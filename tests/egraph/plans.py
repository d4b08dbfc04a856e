"""DAG cost of a choice of e-nodes, computed in a simple way for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.egraph.view.view import EGraphView


def dag_cost(view: EGraphView, price: Sequence[float], choice: Sequence[int]) -> float:
    """Cost of a choice of e-nodes: every class reached from the roots counts once. Weight-only classes are free."""
    seen: set[int] = set()
    stack, total = list(view.roots), 0.0
    while stack:
        c = stack.pop()
        if c in seen or view.weight[c]:
            continue
        seen.add(c)
        total += price[choice[c]]
        stack.extend(view.children(choice[c]).tolist())
    return total
