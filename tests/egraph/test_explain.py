"""Explanations: named rule applications from one term to another, replayed, complete where rules connect them; a wrong
step is found, a missing one is said to be missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.explain.congruence import Congruence, Equation, ShortProofs
from tensor_graphs.egraph.explain.explain import Explanation, ProofStep, classes_of, derive, explain
from tensor_graphs.egraph.explain.proof_steps import GAP
from tensor_graphs.egraph.explain.replay import check
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import UsageError
from tensor_graphs.rules import ALL

from ..examples import examples
from ..fuzz.strategies import graphs
from .best_terms import best_terms

LIMITS = Limits(nodes=3000, iterations=6, seconds=300)
SESSION = InProcess()


def x(*shape: int, name: str = "x") -> Tensor:
    return t.input(name, shape)


def w(name: str, *shape: int) -> Tensor:
    return t.param(name, shape)


def rules(*names: str) -> list[object]:
    return [r for r in ALL if r.name in names]


def chain() -> tuple[Tensor, Tensor]:
    a, b, d, e = x(6, 5, name="a"), x(5, 4, name="b"), x(4, 3, name="d"), x(3, 2, name="e")
    return ((a @ b) @ d) @ e, a @ (b @ (d @ e))


def merged() -> tuple[Tensor, Tensor]:
    a, b, p, q = w("a", 4, 3), w("b", 4, 5), w("p", 3), w("q", 5)
    both = c.linear(x(2, 4), t.concat([a, b], 1), t.concat([p, q], 0))
    left, right = t.slice_axis(both, 1, 0, 3), t.slice_axis(both, 1, 3, 8)
    return t.concat([t.exp(c.linear(x(2, 4), a, p)), c.linear(x(2, 4), b, q)], 1), t.concat([t.exp(left), right], 1)


def folded() -> tuple[Tensor, Tensor]:
    image, kernel = x(1, 3, 6, 6), w("w", 4, 3, 3, 3)
    gain, shift, mean, var = (w(n, 4) for n in "gbmv")
    conv = lambda k: t.conv(image, k, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    scale = gain * t.rsqrt(var + 1e-5)
    bent = conv(kernel * t.reshape(t.reshape(scale, (1, 4, 1, 1)), (4, 1, 1, 1)))
    return c.batch_norm(conv(kernel), gain, shift, mean, var, eps=1e-5), bent + t.reshape(
        shift - mean * scale, (1, 4, 1, 1)
    )


def deferred() -> tuple[Tensor, Tensor]:
    h, gain, weight = x(3, 8), w("g", 8), w("w", 8, 5)
    r = t.rsqrt(t.mean(h * h, -1, True) + 1e-6)
    return c.rms_norm(h, gain, eps=1e-6) @ weight, (h @ (weight * t.reshape(t.reshape(gain, (1, 8)), (8, 1)))) * r


def attended() -> tuple[Tensor, Tensor]:
    q, k, v = (x(2, 3, 4, 8, name=n) for n in "qkv")
    e = t.exp((q @ t.transpose(k)) * 0.25)
    return (e / t.sum(e, -1, True)) @ v, c.attention(q, k, v, scale=0.25, causal=False, window=0, softcap=0.0)


CASES = {
    "a matrix chain": (chain, {"matmul-associates"}),
    "linear layers merged": (merged, {"merge-linears"}),
    "a batch norm folded into a convolution": (folded, {"fold-conv-gain"}),
    "a norm deferred past a product": (deferred, {"defer-row-scale", "fold-input-gain"}),
    "attention, spelled out": (attended, {"is-softmax-unshifted"}),
}


@pytest.mark.parametrize(("case", "needed"), CASES.values(), ids=CASES)
def test_known_rewrites_are_explained(case: Callable[[], tuple[Tensor, Tensor]], needed: set[str]) -> None:
    found = derive(*case(), ALL, LIMITS, session=SESSION)
    assert found is not None and found.complete
    assert needed <= {r.removesuffix("-reversed") for r in found.rules}
    assert len(found.steps) < 16
    assert check(found, ALL).ok and check(found, ALL, whole=False).ok
    for step in found.steps:
        at_old, at_new = step.old, step.new
        for i in step.position:
            at_old, at_new = at_old.args[i], at_new.args[i]
        assert at_old is step.before and at_new is step.after


def test_every_step_is_one_rule_application() -> None:
    found = derive(*chain(), rules("matmul-associates"), LIMITS, session=SESSION)  # type: ignore[arg-type]
    assert found is not None and found.rules in ({"matmul-associates": len(found.steps)},)
    assert len(found.steps) in (2, 3)


def test_shared_subterms_are_rewritten_in_all_places_at_once() -> None:
    a, b = x(2, 3, name="a"), x(2, 3, name="b")
    term = lambda s: t.exp(s) * t.tanh(s) + s
    found = derive(term(a + b), term(b + a), rules("add-commutes"), LIMITS, session=SESSION)  # type: ignore[arg-type]
    assert found is not None and len(found.steps) == 1


@pytest.mark.parametrize("spoil", ["value", "rule", "direction", "joint", "end"])
def test_wrong_steps_are_found(spoil: str) -> None:
    found = derive(*deferred(), ALL, LIMITS, session=SESSION)
    assert found is not None and check(found, ALL).ok
    steps = list(found.steps)
    i = next(i for i, s in enumerate(steps) if s.rule == "defer-row-scale")
    s = steps[i]
    if spoil == "value":
        steps[i] = replace(s, after=s.after * 1.001, new=s.new)
    elif spoil == "rule":
        steps[i] = replace(s, rule="defer-column-scale")
    elif spoil == "direction":
        steps[i] = replace(s, forward=not s.forward)
    elif spoil == "joint":
        steps[i] = replace(s, old=t.exp(s.old), new=t.exp(s.new))
    else:
        del steps[-1]
    for whole in (True, False):
        assert not check(replace(found, steps=tuple(steps)), ALL, whole=whole).ok


def test_a_step_without_a_rule_must_still_keep_the_value() -> None:
    a, b = x(2, 3, name="a"), x(2, 3, name="b")
    step = lambda old, new: Explanation(old, new, (ProofStep(GAP, True, (), old, new, old, new),))
    assert not step(a + b, b + a).complete and check(step(a + b, b + a), ALL).ok
    assert not check(step(a + b, a - b), ALL).ok


def test_what_no_rule_explains_is_said() -> None:
    start, goal = deferred()
    view = saturate_block(Graph.of([start, goal]), ALL, LIMITS, guard=False, session=SESSION)
    less = [r for r in ALL if not r.name.startswith(("defer", "fold-input", "unscale", "mul", "matmul"))]
    [found] = explain(view, less, [start], [goal])
    assert not found.complete and GAP in found.rules
    assert "not reconstructed" in str(found) and check(found, ALL).ok


def test_terms_that_no_rule_connects() -> None:
    assert derive(x(2, 3) + 1.0, x(2, 3) + 2.0, ALL, LIMITS, session=SESSION) is None
    with pytest.raises(UsageError, match="cannot be equal"):
        derive(x(2, 3), x(3, 2), ALL, session=SESSION)
    with pytest.raises(UsageError):
        explain(saturate_block(Graph.of(x(2, 3) + 1.0), [], LIMITS, session=SESSION), [], [x(2, 3)], [x(3, 2)])


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1 << 30))
def test_any_extraction_of_a_random_graph_is_explained(graph: Graph, seed: int) -> None:
    limits = Limits(nodes=600, iterations=3, seconds=300)
    view = saturate_block(graph, ALL, limits, session=SESSION)
    rng = random.Random(seed)
    prices = [rng.random() for _ in range(len(view))]
    chosen = best_terms(view, lambda i: prices[i])
    bounds = {str(n.attr("name")): 1 for n in graph.leaves("input")}
    for found in explain(view, ALL, list(graph.roots), chosen):
        assert found.complete, str(found)
        assert not check(found, ALL, bounds=bounds).wrong, str(found)
        assert not check(found, ALL, bounds=bounds, whole=False).wrong, str(found)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_congruence_closure_agrees_with_a_partition(pairs: list[tuple[int, int]]) -> None:
    leaves = [x(2, name=f"v{i}") for i in range(6)]
    terms = [*leaves, *(t.exp(v) for v in leaves), *(t.exp(t.exp(v)) for v in leaves)]
    closure = Congruence()
    for v in terms:
        closure.add(v)
    group = list(range(6))
    for a, b in pairs:
        closure.equate(Equation(f"{a}={b}", leaves[a], leaves[b]))
        group = [group[b] if g == group[a] else g for g in group]
    for i, a in enumerate(terms):
        for j, b in enumerate(terms):
            assert closure.equal(a, b) == (i // 6 == j // 6 and group[i % 6] == group[j % 6])
            if closure.equal(a, b):
                links = closure.proof(a, b)
                ends = [a, *(link.after for link in links)]
                assert [link.before for link in links] == ends[:-1] and ends[-1] is b
                assert ShortProofs(closure).length(a, b) <= ShortProofs(closure, 0).length(a, b)


def test_constants_that_are_one_in_their_dtype_connect_both_ways() -> None:
    """A model's 0 and a rule's 0.0, whichever was there first."""
    a, b = (make("full", (), {"value": value, "shape": (1,), "dtype": "int64"}) for value in (0, 0.0))
    assert a is not b
    for first, second in ((a, b), (b, a)):
        closure = Congruence()
        closure.add(first)
        closure.add(second)
        proofs = ShortProofs(closure)
        assert [link.after for link in proofs.path(a, b)] == [b] and [link.after for link in proofs.path(b, a)] == [a]


def test_slices_of_slices_written_as_one_have_a_class() -> None:
    whole = x(4, 12)
    view = view_of(Graph.of(t.exp(t.slice_axis(t.slice_axis(t.slice_axis(whole, 1, 2, 12), 1, 1, 9), 1, 3, 5))))
    part = lambda start, stop: t.slice_axis(whole, 1, start, stop)
    found = classes_of(view, [t.exp(part(6, 8)), t.exp(part(3, 11)), part(6, 9), t.slice_axis(whole, 0, 0, 2)])
    assert found[t.exp(part(6, 8))] == view.roots[0] and part(3, 11) in found
    assert not {t.exp(part(3, 11)), part(6, 9), t.slice_axis(whole, 0, 0, 2)} & found.keys()
