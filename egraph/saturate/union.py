"""Computes the union of several saturated e-graphs (views) of one graph, so that a search under wider limits has all
terms of a search under narrower limits.

Two saturations of a graph under different limits (a wider beam, or more slack: added cost up to which an e-node is
kept) are not nested, because which e-nodes are pruned depends on which others were found. Their union contains both: it
has every e-node of both, merges e-classes that hold the same e-node, and is closed under congruence. For given limits,
`saturate/limit_steps.py` lists the saturations whose union is searched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from ...errors import UsageError
from ..ir.graph import Graph
from ..ir.tensor import Tensor
from ..patterns.rule import Rule
from ..view.congruence import MergedClasses
from ..view.joined_view import merged
from ..view.view import EGraphView, Ints
from .engine_bounds import Stop, never
from .limit_steps import parts
from .pruned_views import CostFilter, kept
from .saturate import Limits, saturate_blocks
from .term_cost import Roofline

Key = tuple[object, ...]  # an e-node over e-classes: its op, attributes and operands, or its leaf tensor


def _keys(view: EGraphView) -> list[tuple[object, tuple[int, ...]]]:
    """Returns (label, operand e-classes) of each e-node."""
    off, child = view.off.tolist(), view.child.tolist()
    return [(view.label(i), tuple(child[off[i] : off[i + 1]])) for i in range(len(view))]


def union(views: Sequence[EGraphView]) -> EGraphView:
    """The e-graph that contains every e-node of some e-graphs (views) of one graph, with congruent e-nodes merged.

    E-classes of an earlier e-graph keep their age (the round in which they appeared); ages of a later one are offset by
    the rounds of those before it.
    """
    return _Union(views).view() if len(views) > 1 else views[0]


def congruent(view: EGraphView) -> EGraphView:
    """The e-graph `view` after congruence closure: e-nodes of one op over equal e-classes are merged.

    After `view.joined_view` it only leaves out e-nodes that several copies of blocks (repeated subgraphs) brought.
    """
    return _Union([view]).view()


MOST_EFFORT = 5


def saturate_in_stages(
    effort: int, graphs: Sequence[Graph], rules: Iterable[Rule], limits: Limits, *, exact: bool = False,
    deadline: float = float("inf"), stop: Stop = never, careful: Sequence[Graph] = (),
) -> list[list[EGraphView]]:  # fmt: skip
    """Saturate graphs by `rules` at increasing effort, up to `limits` and `effort` (0: no rewriting); returns for each
    stage one saturated e-graph per graph.

    Each stage is the union of everything found so far. The last stage is the result; earlier stages are the results
    that smaller settings would give. `exact`: use only rules that change no bit, as for the graphs `careful`. After
    `deadline` seconds, or when `stop` returns true, the list ends early (never empty). Raises UsageError if `effort` is
    out of range.
    """
    if not 0 <= effort <= MOST_EFFORT:
        raise UsageError(
            f"invalid argument effort={effort}", hint=f"0 (no rewriting) to {MOST_EFFORT}; 1 is the default"
        )
    end, chosen = time.perf_counter() + deadline, list(rules)
    found: list[list[EGraphView]] = []
    for stage, narrow in parts(limits, effort) if effort else [(Limits(iterations=0), list[CostFilter]())]:
        left = end - time.perf_counter()
        if found and (left <= 0 or stop()):
            break
        seen: list[list[EGraphView]] = [[] for _ in graphs] if narrow else []
        views = saturate_blocks(
            graphs, chosen, stage, exact=exact, deadline=left, seen=seen, stop=stop, careful=careful
        )
        before = found[-1] if found else None
        for some in [[kept(v, s, n, Roofline()) for v, s in zip(views, seen)] for n in narrow] or [views]:
            found.append(some if before is None else [union(pair) for pair in zip(before, some)])
    return found


class _Union:
    """E-classes of all views, merged until closed under congruence."""

    def __init__(self, views: Sequence[EGraphView]) -> None:
        self.views = views
        self.first = np.cumsum([0, *(v.n_classes for v in views)]).tolist()
        self.merged = MergedClasses()
        self.nodes: list[tuple[object, tuple[int, ...], int]] = []  # label, operand e-classes, own e-class
        self.source: list[tuple[int, int]] = []  # view index, e-node index
        self.ages: list[Ints] = []
        past = 0
        for n, view in enumerate(views):
            base = self.first[n]
            self.nodes += [
                (what, tuple([k + base for k in children]), c + base)
                for (what, children), c in zip(_keys(view), view.cls.tolist())
            ]
            self.source += [(n, i) for i in range(len(view))]
            age = view.age if view.age is not None else np.zeros(view.n_classes, np.int32)
            self.ages.append(np.where(age > 0, age + past, 0))
            past += int(age.max(initial=0))
        self._close()

    def _close(self) -> None:
        """Merge roots and shared values of the views, then the e-classes that hold an equal e-node."""
        of: dict[Tensor, int] = {}
        for base, view in zip(self.first, self.views):
            for a, b in zip(self.views[0].roots, view.roots):
                self.merged.join(a, base + b)
            for value, c in view.classes.items():
                self.merged.join(of.setdefault(value, base + c), base + c)
        labels = [what for what, _, _ in self.nodes]
        cls = np.concatenate([v.cls + base for base, v in zip(self.first, self.views)])
        child = np.concatenate([v.child + base for base, v in zip(self.first, self.views)])
        self.merged.close(self.first[-1], labels, cls, np.concatenate([np.diff(v.off) for v in self.views]), child)

    def view(self) -> EGraphView:
        """The merged view. E-classes are ordered by the first view, then by the following ones."""
        root = self.merged.representatives(self.first[-1]).tolist()
        number = {c: n for n, c in enumerate(dict.fromkeys(root))}
        of = [number[c] for c in root]
        kept: dict[Key, int] = {}
        for i, (what, children, c) in enumerate(self.nodes):
            kept.setdefault((what, tuple([of[k] for k in children]), of[c]), i)
        flags = [
            v.original_nodes[i] if v.original_nodes is not None else False for v in self.views for i in range(len(v))
        ]
        own = {
            (what, tuple([of[k] for k in children]), of[c])
            for (what, children, c), flag in zip(self.nodes, flags)
            if flag
        }
        rows = sorted(kept.values(), key=lambda i: of[self.nodes[i][2]])
        place = np.array(of, np.int64)
        types = [t for v in self.views for t in v.types]
        first = {c: i for i, c in reversed(list(enumerate(of)))}
        weight = np.zeros(len(number), np.bool_)
        np.logical_or.at(weight, place, np.concatenate([v.weight for v in self.views]))
        age = np.full(len(number), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(age, place, np.concatenate(self.ages).astype(np.int32))
        from_ = [(self.views[v], i) for v, i in (self.source[r] for r in rows)]
        reads = [[of[k] for k in self.nodes[r][1]] for r in rows]
        return EGraphView(
            op=[v.op[i] for v, i in from_],
            attrs=[v.attrs[i] for v, i in from_],
            cls=np.array([of[self.nodes[r][2]] for r in rows], np.int32),
            off=np.cumsum([0, *map(len, reads)]).astype(np.int32),
            child=np.array([k for row in reads for k in row], np.int32),
            types=[types[first[c]] for c in range(len(number))],
            weight=weight,
            roots=tuple(of[r] for r in self.views[0].roots),
            report=merged(self.views),
            tensors={n: v.tensors[i] for n, (v, i) in enumerate(from_) if i in v.tensors},
            classes={t: of[base + c] for base, v in zip(self.first, self.views) for t, c in v.classes.items()},
            age=age,
            original_nodes=np.array(
                [(self.nodes[r][0], tuple(row), of[self.nodes[r][2]]) in own for r, row in zip(rows, reads)], np.bool_
            ),
        )


__all__ = ["congruent", "saturate_in_stages", "union"]
