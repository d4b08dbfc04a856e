"""Reconstructs the terms that chosen kernels compute, from the e-nodes that each of them covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..egraph.ir.tensor import Tensor
from ..egraph.view.view import EGraphView
from ..errors import ExtractionError


def chosen_terms(view: EGraphView, kernels: Iterable[Sequence[int]]) -> list[Tensor]:
    """The term that the plan computes for each root of the e-graph `view`. `kernels`: covered e-nodes of each kernel of
    the plan, operands first.

    E-classes that no kernel computes are the model's leaves and terms of weights. Raises ExtractionError if the kernels
    do not make up a term of a root.
    """
    own = view.original_nodes if view.original_nodes is not None else [False] * len(view)
    chosen: dict[int, list[int]] = {}
    for nodes in kernels:
        inside: dict[int, list[int]] = {}
        for n in nodes:
            inside.setdefault(int(view.cls[n]), []).append(n)
        for c, forms in inside.items():
            chosen.setdefault(c, forms)
    for n in sorted(range(len(view)), key=lambda n: (bool(len(view.children(n))), not own[n], n)):
        c = int(view.cls[n])
        if view.weight[c] or not len(view.children(n)):
            chosen.setdefault(c, []).append(n)
    made: dict[int, Tensor] = {}
    return [_term(view, root, chosen, made) for root in view.roots]


def _term(view: EGraphView, root: int, chosen: dict[int, list[int]], made: dict[int, Tensor]) -> Tensor:
    """Build the term of an e-class and those of its operands, into `made`; of several chosen forms, the first without a
    cycle.
    """
    stack, open_ = [root], {root: 0}  # e-class -> position among its forms
    while stack:
        c = stack[-1]
        forms = chosen.get(c, [])
        if c in made:
            stack.pop()
            continue
        if open_[c] >= len(forms):
            raise ExtractionError(f"the chosen kernels do not compute the e-class c{c}")
        node = forms[open_[c]]
        children = view.children(node).tolist()
        if any(k in open_ and k not in made for k in children):
            open_[c] += 1  # the form contains itself
        elif missing := [k for k in children if k not in made]:
            stack += missing[:1]
            open_[missing[0]] = 0
        else:
            made[c] = view.node_tensor(node, [made[k] for k in children])
            stack.pop()
    return made[root]


__all__ = ["chosen_terms"]
