"""From a choice to a plan: values, order, weights, signature, updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import topological
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.errors import NoPlanError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.plan import WeightTerms, plan_of
from tensor_graphs.extract.search.search import Choice, search


class Flat(PricerBase):
    """Every kernel costs 1 µs."""

    def price(self, found: Any) -> list[Priced]:
        return [Priced(1.0, 1.0, 1.0, "predicted") for _ in found]


def choose(graph: Graph, view: EGraphView | None = None) -> Choice:
    return search(candidate_hypergraph(view or view_of(graph), [backend("numpy")], view_strides), Flat())


def plan(graph: Graph, view: EGraphView | None = None) -> Plan:
    return plan_of(choose(graph, view), graph)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def check(found: Plan) -> None:
    """Every value has one origin, is made before it is read, and lies as its maker wrote it."""
    assert [v.id for v in found.values] == list(range(len(found.values)))
    ready = {v.id for v in found.values if v.origin in ("input", "state", "weight")}
    for step in found.steps:
        assert {v for _, v in step.inputs} <= ready and step.output not in ready
        value = found.values[step.output]
        assert value.origin == ("view" if step.is_view else "kernel")
        assert (value.type, value.strides) == (step.call.output.type, step.call.output.strides)
        if step.is_view:
            assert value.base == step.inputs[0][1]
        for operand, v in step.inputs:
            assert step.call.operands[operand].type == found.values[v].type
        ready.add(step.output)
    assert {*found.outputs, *found.updates.values()} <= ready
    assert set(found.weights) == {v.id for v in found.values if v.origin == "weight"}


def test_a_plan_is_in_order_and_complete() -> None:
    x, w = tg.input("x", (4, 6)), tg.param("w", (6, 6))
    graph = Graph.of({"y": tg.softmax(x @ w), "z": tg.tanh((x @ w).T)}, params={"w": normal(6, 6)})
    found = plan(graph)
    check(found)
    assert found.kernels == sum(not s.is_view for s in found.steps) == 3
    assert found.cost == pytest.approx(3.0, abs=0.1) and found.lower_bound <= found.cost
    assert found.stats["sources"] == {"predicted": 3}
    for y, want in zip(Program(found)(normal(4, 6)).values(), evaluate(graph, {"x": normal(4, 6)})):
        np.testing.assert_allclose(y, want, rtol=1e-5)


def test_inputs_that_nothing_reads_are_kept() -> None:
    x, y, z = (tg.input(n, (2,)) for n in "xyz")
    graph = Graph.of(tg.exp(y), inputs=(x, y, z))
    found = plan(graph)
    check(found)
    assert {v.name for v in found.values if v.origin == "input"} == {"x", "y", "z"}
    assert np.array_equal(Program(found)(normal(2), normal(2) * 2, normal(2)), np.exp(normal(2) * 2))


def test_outputs_may_be_inputs_weights_and_each_other() -> None:
    x, w = tg.input("x", (2, 3)), tg.param("w", (2, 3))
    graph = Graph.of([x, w, w * 2.0, x, tg.exp(x), tg.exp(x), x.T], params={"w": normal(2, 3)})
    found = plan(graph)
    check(found)
    assert found.outputs[0] == found.outputs[3] and found.outputs[4] == found.outputs[5]
    for y, want in zip(Program(found)(normal(2, 3)), evaluate(graph, {"x": normal(2, 3)})):
        assert np.array_equal(y, want) and y.flags.c_contiguous


def test_a_state_may_be_read_returned_swapped_and_updated() -> None:
    s, r, x = tg.state("s", (3,)), tg.state("r", (3,)), tg.input("x", (3,))
    graph = Graph.of({"s": s, "both": s + r}, inputs=(x,), updates={"s": r, "r": s + x})
    found = plan(graph)
    check(found)
    program = Program(found)
    values = {"s": np.zeros(3, np.float32), "r": np.zeros(3, np.float32)}
    for i in range(4):
        given = np.full(3, i, np.float32)
        want = evaluate(graph, {**values, "x": given})
        got = program(given)
        assert np.array_equal(got["s"], want[0]) and np.array_equal(got["both"], want[1])
        values = {"s": want[2], "r": want[3]}
        assert all(np.array_equal(program.states[n], v) for n, v in values.items())


def test_weights_are_the_smallest_terms() -> None:
    """Both forms of a weight are in its class: the shorter one is evaluated at load."""
    w, v, x = tg.param("w", (2, 3)), tg.param("v", (2, 3)), tg.input("x", (2, 3))
    rule = Rule("factor", "add(mul(x, z), mul(y, z))", "mul(add(x, y), z)", both=True)
    graph = Graph.of(x + (w * v + v * v), params={"w": normal(2, 3), "v": normal(2, 3)})
    view = saturate_block(graph, [rule], Limits(iterations=3), session=InProcess(), guard=False)
    found = plan(graph, view)
    check(found)
    (term,) = [t for t in found.weights.values() if not t.is_leaf]
    assert term.op == "mul" and len(topological([term])) == 4
    np.testing.assert_allclose(Program(found)(normal(2, 3)), evaluate(graph, {"x": normal(2, 3)})[0], rtol=1e-6)


def test_cyclic_weight_classes_have_finite_terms() -> None:
    w = tg.param("w", (2, 2))
    rules = [Rule("twice", "neg(neg(x))", "x"), Rule("back", "exp(x)", "neg(neg(exp(x)))", keep=True)]
    view = saturate_block(Graph.of(tg.neg(tg.neg(tg.exp(w))) + tg.input("x", (2, 2))), rules, Limits(iterations=4),
                          session=InProcess(), guard=False)  # fmt: skip
    terms = WeightTerms(view)
    for cls, weight in enumerate(view.weight):
        if weight:
            assert terms.term(cls).type == view.types[cls]


def test_a_class_without_a_term_is_no_plan() -> None:
    view = view_of(Graph.of(tg.exp(tg.input("x", (2,)))))
    with pytest.raises(NoPlanError, match="no expression"):
        WeightTerms(view).term(0)


def test_a_value_that_nothing_makes_is_no_plan() -> None:
    graph = Graph.of(tg.exp(tg.tanh(tg.input("x", (2,)))))
    choice = choose(graph)
    with pytest.raises(NoPlanError, match="before anything makes it"):
        plan_of(replace(choice, chosen=choice.chosen[1:]), graph)


def test_shared_values_are_made_once() -> None:
    x = tg.input("x", (4, 4))
    y = tg.exp(x)
    found = plan(Graph.of([y + 1.0, y * y, y @ y]))
    check(found)
    assert sum(s.template.name == "np.exp" for s in found.steps) == 1 and found.kernels == 4
