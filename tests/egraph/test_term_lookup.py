"""Terms over e-classes are found in an e-graph if, and only if, their e-nodes are there."""

from __future__ import annotations

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.term_lookup import TermLookup
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.rules import ALL


def holds(lookup: TermLookup, terms: list[tg.Tensor], classes: dict[tg.Tensor, int], made: list[int]) -> bool:
    return lookup.checker(terms, list(classes))(list(classes.values()), made)


def test_a_term_holds_where_its_nodes_are() -> None:
    x, y = tg.input("x", (4, 4)), tg.input("y", (4, 4))
    h = tg.exp(x) * 2.0
    found = view_of(Graph.of([h + y, tg.tanh(y) + tg.constant(np.arange(16.0, dtype=np.float32).reshape(4, 4))]))
    lookup, of = TermLookup(found), found.classes
    a, b = tg.input("a", (4, 4)), tg.input("b", (4, 4))
    assert holds(lookup, [tg.exp(a) * 2.0], {a: of[x]}, [of[h]])
    assert holds(lookup, [tg.exp(a) * 2.0 + b, b + tg.exp(a)], {a: of[x], b: of[y]}, [of[h + y], -1]) is False
    assert holds(lookup, [a + b], {a: of[h], b: of[y]}, [of[h + y]])
    assert not holds(lookup, [tg.exp(a) * 2.0], {a: of[y]}, [of[h]]), "another operand"
    assert not holds(lookup, [tg.exp(a) * 3.0], {a: of[x]}, [of[h]]), "another constant"
    assert not holds(lookup, [tg.exp(a) * 2.0], {a: of[x]}, [of[h + y]]), "another result"
    fixed = tg.constant(np.arange(16.0, dtype=np.float32).reshape(4, 4))
    assert holds(lookup, [tg.tanh(a) + fixed], {a: of[y]}, [of[tg.tanh(y) + fixed]])
    assert not holds(
        lookup, [tg.tanh(a) + tg.constant(np.ones((4, 4), np.float32))], {a: of[y]}, [of[tg.tanh(y) + fixed]]
    )


def test_every_way_that_rules_found_is_there() -> None:
    x, y, z = (tg.input(n, (8, 8)) for n in "xyz")
    view = saturate_block(Graph.of((x @ y) @ z), ALL, Limits(nodes=400, iterations=3), session=InProcess())
    lookup = TermLookup(view)
    of = {leaf.attr("name"): int(view.cls[n]) for n, leaf in view.tensors.items()}
    a, b, c = (tg.input(n, (8, 8)) for n in "abc")
    for term in ((a @ b) @ c, a @ (b @ c)):
        assert holds(lookup, [term], {a: of["x"], b: of["y"], c: of["z"]}, [view.roots[0]])
        assert not holds(lookup, [term], {a: of["y"], b: of["x"], c: of["z"]}, [view.roots[0]])
