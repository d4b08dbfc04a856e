"""Views of one graph put together: each holds what the others found, so that more search never loses a form.

Two saturations of a graph under different limits (a wider beam, more slack) are not nested: what is pruned depends on
what else was found. Their union is, by construction: every e-node of both, and the classes that hold a common value, and
all that follows from that by congruence, are one. Which saturations some limits stand for is said in `nested.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import UsageError
from .engine import Stop, never
from .graph import Graph, Tensor
from .narrow import Narrow, kept
from .nested import parts
from .pricing import Roofline
from .rule import Rule
from .saturate import Limits, saturate_blocks
from .view import EGraphView, Ints, merged

Key = tuple[object, ...]  # an e-node over classes: its op, attributes and operands, or the leaf that it stands for


def _keys(view: EGraphView) -> list[tuple[object, tuple[int, ...]]]:
    """What each e-node is, and the classes it reads."""
    off, kid = view.off.tolist(), view.kid.tolist()
    return [(view.what(i), tuple(kid[off[i] : off[i + 1]])) for i in range(len(view))]


def union(views: Sequence[EGraphView]) -> EGraphView:
    """The e-graph that holds all e-nodes of some views of one graph. A class that an earlier view has keeps its age; the
    rounds of a later view count on from those before it."""
    return _Union(views).view() if len(views) > 1 else views[0]


def congruent(view: EGraphView) -> EGraphView:
    """A view in which equal e-nodes over equal classes are one: instances of blocks that were put together each bring
    constants of their own."""
    return _Union([view]).view()


MOST_EFFORT = 5


def saturate_in_stages(
    effort: int, graphs: Sequence[Graph], rules: Iterable[Rule], limits: Limits, *, exact: bool = False,
    deadline: float = float("inf"), stop: Stop = never,
) -> list[list[EGraphView]]:  # fmt: skip
    """All that `limits` and `effort` stand for (0: no rewriting), saturation by saturation: for each, one view a graph, the union
    of what was found so far. The last is the result; those before are what less would give, and it ends with one of them
    where `deadline` says so."""
    if not 0 <= effort <= MOST_EFFORT:
        raise UsageError(f"effort={effort}", hint=f"0 (no rewriting) to {MOST_EFFORT}; 1 is the default")
    end, chosen = time.perf_counter() + deadline, list(rules)
    found: list[list[EGraphView]] = []
    for stage, narrow in parts(limits, effort) if effort else [(Limits(iterations=0), list[Narrow]())]:
        left = end - time.perf_counter()
        if found and (left <= 0 or stop()):
            break
        seen: list[list[EGraphView]] = [[] for _ in graphs] if narrow else []
        views = saturate_blocks(graphs, chosen, stage, exact=exact, deadline=left, seen=seen, stop=stop)
        before = found[-1] if found else None
        for some in [[kept(v, s, n, Roofline()) for v, s in zip(views, seen)] for n in narrow] or [views]:
            found.append(some if before is None else [union(pair) for pair in zip(before, some)])
    return found


class _Union:
    """All views' classes side by side, joined by union-find until congruent classes are one."""

    def __init__(self, views: Sequence[EGraphView]) -> None:
        self.views = views
        self.first = np.cumsum([0, *(v.n_classes for v in views)]).tolist()
        self.up = list(range(self.first[-1]))
        self.nodes: list[tuple[object, tuple[int, ...], int]] = []  # what, operands, class
        self.source: list[tuple[int, int]] = []  # view, e-node
        self.ages: list[Ints] = []
        past = 0
        for n, view in enumerate(views):
            base = self.first[n]
            self.nodes += [
                (what, tuple([k + base for k in kids]), c + base)
                for (what, kids), c in zip(_keys(view), view.cls.tolist())
            ]
            self.source += [(n, i) for i in range(len(view))]
            age = view.age if view.age is not None else np.zeros(view.n_classes, np.int32)
            self.ages.append(np.where(age > 0, age + past, 0))
            past += int(age.max(initial=0))
        self._close()

    def find(self, c: int) -> int:
        up = self.up
        while up[c] != c:
            up[c] = up[up[c]]
            c = up[c]
        return c

    def _close(self) -> None:
        """Join what the views have in common, then operands' classes until nothing changes."""
        users: list[list[int]] = [[] for _ in self.up]
        for i, (_, kids, _) in enumerate(self.nodes):
            for k in set(kids):
                users[k].append(i)
        known: dict[Key, int] = {}
        todo = list(range(len(self.nodes)))

        def join(a: int, b: int) -> None:
            a, b = self.find(a), self.find(b)
            if a == b:
                return
            a, b = min(a, b), max(a, b)
            self.up[b] = a
            todo.extend(users[b])
            users[a] += users[b]
            users[b] = []

        of: dict[Tensor, int] = {}
        for base, view in zip(self.first, self.views):
            for a, b in zip(self.views[0].roots, view.roots):
                join(a, base + b)
            for value, c in view.classes.items():
                join(of.setdefault(value, base + c), base + c)
        while todo:
            what, kids, c = self.nodes[todo.pop()]
            key = (what, tuple([self.find(k) for k in kids]))
            join(known.setdefault(key, c), c)

    def view(self) -> EGraphView:
        """The classes that are left, in the order of the first view, then of the others."""
        root = [self.find(c) for c in range(len(self.up))]
        number = {c: n for n, c in enumerate(dict.fromkeys(root))}
        of = [number[c] for c in root]
        kept: dict[Key, int] = {}
        for i, (what, kids, c) in enumerate(self.nodes):
            kept.setdefault((what, tuple([of[k] for k in kids]), of[c]), i)
        flags = [v.own[i] if v.own is not None else False for v in self.views for i in range(len(v))]
        own = {(what, tuple([of[k] for k in kids]), of[c]) for (what, kids, c), flag in zip(self.nodes, flags) if flag}
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
            kid=np.array([k for row in reads for k in row], np.int32),
            types=[types[first[c]] for c in range(len(number))],
            weight=weight,
            roots=tuple(of[r] for r in self.views[0].roots),
            report=merged(self.views),
            tensors={n: v.tensors[i] for n, (v, i) in enumerate(from_) if i in v.tensors},
            classes={t: of[base + c] for base, v in zip(self.first, self.views) for t, c in v.classes.items()},
            age=age,
            own=np.array(
                [(self.nodes[r][0], tuple(row), of[self.nodes[r][2]]) in own for r, row in zip(rows, reads)], np.bool_
            ),
        )


__all__ = ["congruent", "saturate_in_stages", "union"]
