"""Fusion groups: which parts of a graph are offered to generators."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.fusion.multi_output import MultiOutputFusion
from tensor_graphs.extract.fusion.policy import FusionGroup

X = tg.input("x", (2, 8, 4, 4))
BIAS = tg.input("bias", (1, 8, 1, 1))
GAIN, SHIFT = tg.input("gain", (8,)), tg.input("shift", (8,))


def offered(root: Tensor) -> set[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Operators, from the output on, and first leaf's class of each group of the output."""
    view = view_of(Graph.of(root))
    given = frozenset(c for c, op in zip(view.cls.tolist(), view.op) if op == "input")
    found = [r for r in FusionGroups(view, given) if r.cls == view.roots[0]]
    return {(_operators(r.term), tuple(c for _, c in r.leaves if c not in given)) for r in found}


def _operators(term: Tensor) -> tuple[str, ...]:
    found = []
    while term.op != "input":
        found.append(term.op)
        term = term.args[0]
    return tuple(found)


@pytest.mark.parametrize("behind", [False, True])
def test_rows_that_are_walked_again_are_offered_as_they_lie_too(behind: bool) -> None:
    normed = tg.group_norm(X + BIAS, GAIN, SHIFT, groups=4)
    root = tg.relu(normed) if behind else normed
    found = dict(offered(root))
    before = ("relu",) if behind else ()
    assert found[(*before, "group_norm", "add")] == ()
    assert len(found[(*before, "group_norm")]) == 1, "the sum lies in memory"


def groups_of(root: Tensor) -> tuple[FusionGroups, list[FusionGroup], dict[Tensor, int]]:
    """The groups of a graph, and the class of each of its nodes."""
    graph = Graph.of(root)
    view = view_of(graph)
    given = frozenset(c for c, op in zip(view.cls.tolist(), view.op) if op == "input")
    groups = FusionGroups(view, given)
    nodes = {(view.op[n], view.attrs[n], tuple(view.children(n).tolist())): int(view.cls[n]) for n in range(len(view))}
    classes: dict[Tensor, int] = {}
    for node in graph.nodes():
        key = (node.op, node.attrs, tuple(classes[a] for a in node.args))
        classes[node] = nodes[key]
    return groups, list(groups), classes


def test_statistics_may_lie_in_memory_and_are_made_together() -> None:
    rows = tg.reshape(X + BIAS, (2, 4, 32))
    mean = tg.mean(rows, -1, True)
    off = rows - mean
    spread = tg.sqrt(tg.mean(off * off, -1, True) + 1e-5)
    groups, found, classes = groups_of(tg.reshape(off / spread, (2, 8, 4, 4)))
    statistics = {classes[mean], classes[spread]}
    reading = [r for r in found if set(r.statistics) == statistics]
    assert reading and all({"sum", "mean"}.isdisjoint(_operators(r.term)) for r in reading)
    stored = {c for r in reading for _, c in r.leaves}
    assert classes[X + BIAS] in stored, "what they are statistics of may lie in memory"
    assert any(set(g.classes) == statistics for g in MultiOutputFusion(groups, found))


def test_a_scale_of_each_channel_is_no_part_of_a_convolution() -> None:
    scale = tg.reshape(tg.matmul(tg.input("t", (2, 16)), tg.input("wt", (16, 8))), (2, 8, 1, 1))
    root = (
        tg.conv(X, tg.input("w", (8, 8, 3, 3)), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1) + scale
    )
    _, found, classes = groups_of(root)
    (whole,) = [r for r in found if r.cls == classes[root] and r.policy == "product, spread as it lies"]
    assert [c for _, c in whole.leaves].count(classes[scale]) == 1 and len(whole.leaves) == 3


def test_keys_are_normed_by_their_statistics() -> None:
    q, k, v = (tg.input(n, (1, 2, 64, 16)) for n in "qkv")
    norms = [tg.sqrt(tg.mean(a * a, -1, True) + 1e-6) for a in (q, k)]
    root = tg.attention(q / norms[0], k / norms[1], v, scale=0.25)
    _, found, classes = groups_of(root)
    leaves = [{c for _, c in r.leaves} for r in found if r.cls == classes[root]]
    given = {classes[a] for a in (q, k, v)}
    assert given | {classes[norms[1]]} in leaves, "queries' rows are reduced inside, keys' are not"
