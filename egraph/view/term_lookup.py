"""Whether terms over e-classes are in an e-graph: a term is looked up e-node by e-node, from its leaves up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        off, kid = view.off.tolist(), view.kid.tolist()
        keys = dict[int, Any]()
        for n, (op, attrs, cls) in enumerate(zip(view.op, view.attrs, view.cls.tolist())):
            if (leaf := view.tensors.get(n)) is not None:
                self._leaves.setdefault(leaf, set()).add(cls)
                continue
            key = keys.get(id(attrs)) or keys.setdefault(id(attrs), attrs_key(attrs))
            self._nodes.setdefault((op, key, tuple(kid[off[n] : off[n + 1]])), set()).add(cls)

    def holds(self, terms: Sequence[Tensor], classes: Mapping[Tensor, int], made: Iterable[int]) -> bool:
        """Whether each term over leaves of the given e-classes is in the e-class that it has in `made`."""
        found: dict[Tensor, Iterable[int]] = {}
        for t in topological(terms):
            if t in classes:
                found[t] = (classes[t],)
            elif t.op in LEAVES:
                found[t] = self._leaves.get(t, NOWHERE)
            else:
                key = attrs_key(t.attrs)
                kids = product(*(found[a] for a in t.args))
                found[t] = {c for k in kids for c in self._nodes.get((t.op, key, k), NOWHERE)}
        return all(c in found[t] for t, c in zip(terms, made, strict=True))


__all__ = ["TermLookup"]
