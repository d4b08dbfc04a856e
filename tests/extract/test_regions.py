"""Regions: which parts of a graph are offered to generators."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.graph import Graph, Tensor
from tensor_graphs.egraph.view import view_of
from tensor_graphs.extract.regions import Regions

X = tg.input("x", (2, 8, 4, 4))
BIAS = tg.input("bias", (1, 8, 1, 1))
GAIN, SHIFT = tg.input("gain", (8,)), tg.input("shift", (8,))


def offered(root: Tensor) -> set[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Operators, from the output on, and first leaf's class of each region of the output."""
    view = view_of(Graph.of(root))
    given = frozenset(c for c, op in zip(view.cls.tolist(), view.op) if op == "input")
    found = [r for r in Regions(view, given) if r.cls == view.roots[0]]
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
