"""Decides whether terms over e-classes are in an e-graph: a term is looked up e-node by e-node, from its leaves up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from ..ir.tensor import LEAVES, Tensor, attrs_key, topological
from .view import EGraphView

NOWHERE: frozenset[int] = frozenset()


class TermLookup:
    """Index of the e-nodes of an e-graph (`view`) by op, attributes and operands."""

    def __init__(self, view: EGraphView) -> None:
        self._leaves: dict[Tensor, set[int]] = {}
        self._nodes: dict[tuple[Any, ...], set[int]] = {}
        off, child = view.off.tolist(), view.child.tolist()
        keys = dict[int, Any]()
        for n, (op, attrs, cls) in enumerate(zip(view.op, view.attrs, view.cls.tolist())):
            if (leaf := view.tensors.get(n)) is not None:
                self._leaves.setdefault(leaf, set()).add(cls)
                continue
            key = keys.get(id(attrs)) or keys.setdefault(id(attrs), attrs_key(attrs))
            self._nodes.setdefault((op, key, tuple(child[off[n] : off[n + 1]])), set()).add(cls)

    def checker(
        self, terms: Sequence[Tensor], given: Sequence[Tensor]
    ) -> Callable[[Sequence[int], Iterable[int]], bool]:
        """Function of the e-classes of the leaves `given` and of those of `terms`: whether each term over the leaves is
        in its e-class. For many places of equal terms: what does not depend on the place is computed once."""
        nodes, free = topological(terms), set(given)
        number = {t: n for n, t in enumerate(nodes)}
        places = [number.get(leaf, -1) for leaf in given]
        fixed: list[Iterable[int]] = [
            self._leaves.get(t, NOWHERE) if t.op in LEAVES and t not in free else NOWHERE for t in nodes
        ]
        steps = [
            (number[t], t.op, attrs_key(t.attrs), [number[a] for a in t.args])
            for t in nodes
            if t not in free and t.op not in LEAVES
        ]
        results = [number[t] for t in terms]

        def holds(classes: Sequence[int], made: Iterable[int]) -> bool:
            found = list(fixed)
            for place, c in zip(places, classes, strict=True):
                if place >= 0:
                    found[place] = (c,)
            for n, op, key, children in steps:
                several = product(*(found[k] for k in children))
                found[n] = {c for k in several for c in self._nodes.get((op, key, k), NOWHERE)}
                if not found[n]:
                    return False
            return all(c in found[n] for n, c in zip(results, made, strict=True))

        return holds


__all__ = ["TermLookup"]
