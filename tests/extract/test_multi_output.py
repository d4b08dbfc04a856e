"""Multi-output kernels in extraction: bundles in the solvers' problem, steps of plans, and which groups are formed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import RuleError
from tensor_graphs.extract.candidates.candidates import _HypergraphBuilder, candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.fusion.growth import MAX_GROUP_LEAVES
from tensor_graphs.extract.fusion.multi_output import MultiOutputFusion
from tensor_graphs.extract.fusion.multi_output_group import MAX_OUTPUTS
from tensor_graphs.extract.fusion.small_values import MAX_SMALL_LEAVES, MAX_SMALL_OUTPUTS
from tensor_graphs.extract.fusion.uses import ChosenConsumers
from tensor_graphs.extract.model.kernel import Candidate, Operand, Vertex
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.scc import strongly_connected_components
from tensor_graphs.extract.search.alternatives import alternatives
from tensor_graphs.extract.search.encoding import EncodedHypergraph
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.extract.solve.budgets import memory_budget
from tensor_graphs.extract.solve.kbest import k_best
from tensor_graphs.extract.solve.solve import solve
from tensor_graphs.rules import ALL

from ..examples import examples
from .test_candidates import Kernels

VIEW = view_of(Graph.of(tg.input("x", (4,)) + 1.0))
PLAIN = LibraryKernel("np.add", "numpy", "x + x", "np.add({x}, {x}, out={out})")


class Made(PricerBase):
    """Hypergraphs of abstract kernels: each makes some of the values 1..n from others; 0 is given."""

    def __init__(self, kernels: Sequence[tuple[tuple[int, ...], tuple[int, ...], float]], roots: Sequence[int]) -> None:
        self.kernels = kernels
        call = next(c.call for c in candidate_hypergraph(VIEW, [backend("numpy")], view_strides).candidates)
        found = []
        for outputs, inputs, _ in kernels:
            first, *more = (Vertex(o, (1,)) for o in outputs)
            reads = tuple((f"x{n}", Vertex(i, (1,))) for n, i in enumerate(inputs))
            own = replace(call, more=tuple(call.output for _ in more))
            found.append(Candidate(PLAIN, first, reads, own, more=tuple(more)))
        self.graph = Hypergraph(VIEW, found, {0: (1,)}, [Vertex(r, (1,)) for r in roots])
        self.cost = [k[2] for k in kernels]
        self.roots = roots

    def cheapest(self) -> float:
        """By trying every set of kernels that can run."""
        best = math.inf
        for n in range(len(self.kernels) + 1):
            for chosen in itertools.combinations(range(len(self.kernels)), n):
                have, todo = {0}, set(chosen)
                while ready := {i for i in todo if set(self.kernels[i][1]) <= have}:
                    have |= {o for i in ready for o in self.kernels[i][0]}
                    todo -= ready
                if not todo and set(self.roots) <= have:
                    best = min(best, sum(self.cost[i] for i in chosen))
        return best

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        """A pricer: the costs given."""
        costs = {id(c): cost for c, cost in zip(self.graph.candidates, self.cost)}
        return [Priced(costs[id(c)], costs[id(c)], costs[id(c)], "bound") for c in found]


@st.composite
def problems(draw: Any) -> Made:
    """Up to five values; every value has a kernel of its own from lower ones, others make two or three of any."""
    n = draw(st.integers(2, 5))
    costs = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 4.5])
    kernels = []
    for v in range(1, n + 1):
        kernels.append(((v,), tuple(draw(st.sets(st.integers(0, v - 1), min_size=1, max_size=2))), draw(costs)))
    for _ in range(draw(st.integers(1, 5))):
        outputs = tuple(draw(st.lists(st.integers(1, n), min_size=1, max_size=3, unique=True)))
        lowest = draw(st.sampled_from([min(outputs) - 1, n]))
        inputs = draw(
            st.sets(st.integers(0, lowest).filter(lambda i, made=outputs: i not in made), min_size=1, max_size=2)
        )
        kernels.append((outputs, tuple(inputs), draw(costs)))
    return Made(kernels, draw(st.lists(st.integers(1, n), min_size=1, max_size=3, unique=True)))


@settings(deadline=None, max_examples=examples(60))
@given(problems())
def test_several_outputs_are_chosen_where_they_are_cheaper(made: Made) -> None:
    """The frontier search, CP-SAT and HiGHS agree with trying every set of kernels, and each kernel is paid once."""
    want = made.cheapest()
    rows = EncodedHypergraph(made.graph, made.cost)
    ordered = all(max(inputs) < min(outputs) for outputs, inputs, _ in made.kernels)
    for method in ("auto", "cp-sat", "highs", *(["frontier"] if ordered else [])):  # cycles are not the frontier's
        found = solve(rows.problem, time_limit=300, method=method)  # type: ignore[arg-type]
        assert found.cost == pytest.approx(want) and found.optimal, method
    order = rows.ordered(found)
    assert sum(made.cost[i] for i in order) == pytest.approx(want) and len(order) == len(set(order))
    have = {0}
    for i in order:
        outputs, inputs, _ = made.kernels[i]
        assert set(inputs) <= have
        have |= set(outputs)
    assert set(made.roots) <= have


@settings(deadline=None, max_examples=15)
@given(problems())
def test_cheapest_plans_in_turn_are_distinct_sets_of_kernels(made: Made) -> None:
    rows = EncodedHypergraph(made.graph, made.cost, every=True)
    found = list(k_best(rows.problem, count=4, max_gap=9.0, time_limit=300))
    costs = [sum(made.cost[i] for i in rows.ordered(f)) for f in found]
    assert costs == sorted(costs) and costs[0] == pytest.approx(made.cheapest())


def test_the_price_decides() -> None:
    """Two values from one input: apart for 1.0 each; together for less than 2.0 is chosen, for more it is not."""
    for together, wanted in ((1.9, [(1, 2)]), (2.1, [(1,), (2,)])):
        made = Made([((1,), (0,), 1.0), ((2,), (0,), 1.0), ((1, 2), (0,), together)], [1, 2])
        choice = search(made.graph, _Token(made))
        assert sorted(tuple(v.cls for v in made.graph.candidates[i].outputs) for i in choice.chosen) == wanted
    only = Made([((1,), (0,), 1.0), ((1, 2), (0,), 1.5)], [1])
    assert EncodedHypergraph(only.graph, only.cost).problem.n_classes == 3
    assert search(only.graph, _Token(only)).cost == 1.0


class _Token(PricerBase):
    """A pricer that knows candidates by what they make and read, as calls are shared."""

    def __init__(self, made: Made) -> None:
        self.made = made

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        costs = {(c.outputs, c.inputs): k for c, k in zip(self.made.graph.candidates, self.made.cost)}
        return [Priced(k, k, k, "bound") for k in (costs[c.outputs, c.inputs] for c in found)]


def test_memory_budgets_count_every_output() -> None:
    made = Made([((1,), (0,), 1.0), ((1, 2), (0,), 1.5)], [1])
    assert memory_budget(1e9).use(made.graph.candidates) == [16.0, 32.0]


def test_kernels_that_turn_the_order_of_values_about_are_left_out() -> None:
    """A table that a chain of values reads is not made together with the chain's end; the end and a value beside it
    are."""
    x = tg.input("x", (4,))
    table = tg.exp(x)
    first = tg.tanh(table + 1.0)
    end = tg.sin(first + table)
    graph = Graph.of([end, tg.cos(first)])
    found = view_of(graph)
    code = "np.copyto({out}, {a}); np.copyto({out1}, {a})"
    late = LibraryKernel("np.late", "numpy", "sin(a + exp(x));exp(x)", code)
    good = LibraryKernel("np.good", "numpy", "sin(a + b);cos(a)", code)
    kernels = candidate_hypergraph(found, [Kernels([late, good]), backend("numpy")], view_strides)
    assert {c.template.name for c in kernels.candidates if c.more} == {"np.good"}
    one = list(_HypergraphBuilder(found, [Kernels([late])], view_strides, None)._matches(late))
    assert [(found.classes[end], found.classes[table])] == [(m.cls, *m.more) for m in one], (
        "it fits, but comes too late"
    )
    with pytest.raises(RuleError, match="reads z"):
        candidate_hypergraph(found, [Kernels([replace(late, pattern="sin(a + b);exp(z)")])], view_strides)
    levels = strongly_connected_components([list(children) for children in _reads(kernels)])[1]
    assert all(len(member) == 1 for member in levels), "the order has no cycle"


def test_results_that_nothing_reads_may_be_made_after_any_value() -> None:
    """A statistic of an early layer together with a value of a late one."""
    x = tg.input("x", (4,))
    h = tg.tanh(x)
    early, end = h * 0.2, tg.sin(tg.exp(h))
    for read in (False, True):
        found = view_of(Graph.of([early, end * 0.1 + h, *([tg.cos(early)] if read else [])]))
        code = "np.copyto({out}, {e}); np.copyto({out1}, {e})"
        both = LibraryKernel("np.both", "numpy", "e * 0.1 + tanh(x);tanh(x) * 0.2", code)
        kernels = candidate_hypergraph(found, [Kernels([both]), backend("numpy")], view_strides)
        assert [c.template.name for c in kernels.candidates if c.more] == ([] if read else ["np.both"])


def _reads(kernels: Hypergraph) -> list[set[int]]:
    """What the classes of the solvers' problem read."""
    rows = EncodedHypergraph(kernels, [1.0] * len(kernels.candidates)).problem.rows
    found: list[set[int]] = [set() for _ in range(rows.n_classes)]
    for c, children in zip(rows.cls, rows.children):
        found[c] |= set(children)
    return found


# ---------------------------------------------------------------- which are made
def view(outputs: Any, rules: bool = False) -> Any:
    graph = Graph.of(outputs)
    return saturate_block(graph, ALL, Limits(nodes=400, iterations=3), session=InProcess()) if rules else view_of(graph)


SMALL = ((64,), (), (1, 1, 64))  # shapes of the small values that share launches in tests


def groups(found: Any, launched: bool = True) -> list[set[int]]:
    """The sets of classes that kernels are made for together."""
    given = frozenset(int(found.cls[n]) for n, op in enumerate(found.op) if op in ("input", "param", "state"))
    groups = FusionGroups(found, given)
    together = list(MultiOutputFusion(groups, list(groups), launched))
    for g in together:
        small = all(concrete(found.types[c].shape) in SMALL for c in g.classes)
        most, leaves = (MAX_SMALL_OUTPUTS, MAX_SMALL_LEAVES) if small else (MAX_OUTPUTS, MAX_GROUP_LEAVES)
        assert 2 <= len(g.classes) <= most and len(g.terms) == len(g.classes) == len({*g.classes})
        assert len(g.leaves) <= leaves and not {c for _, c in g.leaves} & {*g.classes}
        assert all(found.types[c].shape == t.shape for c, t in zip(g.classes, g.terms))
    return [set(g.classes) for g in together]


def test_a_residual_is_stored_beside_its_norm() -> None:
    x, y, g = tg.input("x", (4, 8)), tg.input("y", (4, 8)), tg.param("g", (8,))
    h = x + y
    n = tg.rms_norm(h, g, eps=1e-6)
    found = view([h + tg.cumsum(n, 1)])
    assert {found.classes[h], found.classes[n]} in groups(found)
    alone = view([tg.cumsum(n, 1)])
    assert groups(alone) == [], "what nothing else reads is not stored"


def test_deep_residual_streams_have_regions_in_every_layer() -> None:
    """Each layer's sum is stored with its norm; the work grows with the depth, not with its square."""
    counts = []
    for depth in (4, 8):
        h = tg.input("x", (4, 8))
        sums, norms = [], []
        for i in range(depth):
            norms.append(tg.rms_norm(h, tg.param(f"g{i}", (8,)), eps=1e-6))
            h = h + tg.rms_norm(tg.cumsum(norms[-1], 1), tg.param(f"k{i}", (8,)), eps=1e-6)
            sums.append(h)
        found = view([h * 2.0])
        together = groups(found)
        assert all({found.classes[s], found.classes[n]} in together for s, n in zip(sums, norms[1:]))
        grown = list(
            FusionGroups(
                found, frozenset(int(found.cls[n]) for n, op in enumerate(found.op) if op in ("input", "param"))
            )
        )
        assert max(len(r.leaves) for r in grown) <= 6
        counts.append((len(grown), len(together)))
    assert all(b <= 2.5 * a for a, b in zip(*counts))


def test_values_over_the_same_inputs() -> None:
    x, w, v = tg.input("x", (4, 8)), tg.param("w", (8, 6)), tg.param("v", (8, 6))
    a, b = x @ w, x @ v
    found = view([tg.cumsum(a, 1), tg.cumsum(b, 1)])
    assert {found.classes[a], found.classes[b]} in groups(found)
    s, q = tg.sum(x, 1, keepdims=True), tg.sum(x * x, 1, keepdims=True)
    found = view([s, q])
    assert {found.classes[s], found.classes[q]} in groups(found)
    other = view([tg.sum(x, 1, keepdims=True), tg.sum(tg.input("z", (4, 8)), 1, keepdims=True)])
    assert groups(other) == []


def test_small_products_over_inputs_of_their_own() -> None:
    """They share nothing but the cost of beginning: where that is something, they are few rows, and none reads
    another."""
    x, z, w = tg.input("x", (4, 8)), tg.input("z", (4, 8)), tg.param("w", (8, 6))
    for columns in (6, 10):
        a, b = x @ w, z @ tg.param("v", (8, columns))
        found = view([a, b])
        both = {found.classes[a], found.classes[b]}
        assert both in groups(found) and both not in groups(found, launched=False)
    first = x @ w
    second = tg.matmul(tg.cumsum(first, 1), tg.param("u", (6, 8))) + z
    found = view([first, second])
    assert {found.classes[first], found.classes[second]} not in groups(found)
    tall = view([tg.input(n, (64, 8)) @ w for n in "xz"])
    assert groups(tall) == []


def test_small_results_share_a_launch() -> None:
    """Running statistics and counters of norms, in kernels of at most eight of one shape; none reads another, and none
    waits for one that is no result."""
    pairs = [(tg.input(f"a{n}", (64,)), tg.input(f"b{n}", (64,))) for n in range(10)]
    means, counts = [a * 0.9 + b * 0.1 for a, b in pairs], [tg.input(f"c{n}", (), "int64") + 1 for n in range(3)]
    after = means[0] * 2.0
    found = view([*means, *counts, after])
    classes = [found.classes[m] for m in means]
    joined = [g for g in groups(found) if g & {*classes}]
    assert sorted(len(g & {*classes}) for g in joined if len(g) > 2) == [MAX_SMALL_OUTPUTS]
    assert {found.classes[c] for c in counts} in groups(found)
    assert not any(found.classes[after] in g for g in joined if len(g) > 2)
    assert not any(len(g) > MAX_OUTPUTS for g in groups(found, launched=False))
    inner = view([tg.cumsum(tg.cumsum(a, 0) * 0.9, 0) for a, _ in pairs])
    assert groups(inner) == []
    casts = [tg.cast(a, "float16") for a, _ in pairs[:3]]
    found = view([tg.cumsum(x, 0) for x in casts])
    assert {found.classes[x] for x in casts} in groups(found)


def test_bags_of_embeddings_for_one_value_share_a_launch() -> None:
    """Of several tables, concatenated; sums of many rows, and embeddings for different values, do not."""
    tables = [tg.param(f"w{n}", (9, 64)) for n in range(4)]

    def bags(rows: int) -> list[Any]:
        each = [tg.input(f"i{n}", (1, rows), "int64") for n in range(4)]
        return [tg.sum(tg.gather(w, i, axis=0), axis=1, keepdims=True) for w, i in zip(tables, each)]

    few = bags(4)
    found = view([tg.cumsum(tg.concat(few, 1), 2)])
    assert {found.classes[x] for x in few} in groups(found)
    assert not any(len(g) > 2 for g in groups(view([tg.cumsum(tg.concat(bags(40), 1), 2)])))
    found = view([tg.cumsum(x, 2) for x in few[:2]])
    assert {found.classes[x] for x in few[:2]} not in groups(found)


def test_slices_of_one_product_that_the_rules_found() -> None:
    x = tg.input("x", (4, 32))
    parts = [x @ tg.param(n, (32, w)) for n, w in (("q", 64), ("k", 16))]
    found = view([tg.cumsum(p, 1) for p in parts], rules=True)
    assert {found.classes[p] for p in parts} in groups(found)
    row = tg.input("x", (1, 32))
    flat = [row @ tg.param(n, (32, w)) for n, w in (("q", 64), ("k", 16))]
    assert groups(view(flat, rules=True)) == [], "slices of one row lie row-major: views of the product"


def test_uses_and_what_every_way_passes() -> None:
    x = tg.input("x", (4,))
    a = tg.exp(x)
    b = tg.tanh(a)
    c = b * 2.0
    found = view_of(Graph.of([b + c, tg.sin(a)]))
    uses = ChosenConsumers(found, found.cheapest([1.0] * len(found))[1])
    of = found.classes
    assert uses.count[of[b]] == 2 and uses.count[of[c]] == 1 and uses.count[of[a]] == 2
    assert uses.beside(of[b], of[c]) and uses.beside(of[a], of[b]) and not uses.beside(of[c], of[b])
    assert not uses.beside(of[b], of[b + c]) and max(found.classes.values()) + 99 not in uses


def test_a_plan_makes_every_output_once() -> None:
    """A step of several values: other steps and outputs read them by their own numbers."""
    x = tg.input("x", (4, 4))
    h, n = tg.exp(x), tg.tanh(tg.exp(x))
    graph = Graph.of([h, n])
    found = view_of(graph)
    both = LibraryKernel(
        "np.both", "numpy", "exp(x);tanh(exp(x))", "np.exp({x}, out={out}); np.tanh({out}, out={out1})"
    )
    assert both.operands == ("x",) and both.writes_out(_call(found, h))
    kernels = candidate_hypergraph(found, [Kernels([both]), backend("numpy")], view_strides)
    (one,) = [c for c in kernels.candidates if c.more]
    assert [v.cls for v in one.outputs] == [found.classes[h], found.classes[n]] and one.call.outputs == (
        one.call.output,
    ) * 2
    assert EncodedHypergraph(kernels, [1.0] * len(kernels.candidates)).problem.n_classes == 3, (
        "two values and what makes both"
    )
    choice = search(kernels, _Each())
    plan = plan_of(choice, graph)
    assert plan.kernels == 1 and plan.steps[0].outputs == plan.outputs and plan.cost == 1.0
    assert [round(c.cost) for c in alternatives(choice, 3, max_gap=5.0)] == [1, 2, 2]
    value = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    program = Program(plan)
    assert "np.tanh(v1, out=v2)" in program.source
    for a, b in zip(program.flat(value), (np.exp(value), np.tanh(np.exp(value)))):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    other = Graph.of([h, tg.tanh(x)])
    apart = candidate_hypergraph(view_of(other), [Kernels([both]), backend("numpy")], view_strides)
    assert not [c for c in apart.candidates if c.more]


def _call(found: Any, like: Any) -> Any:
    from tensor_graphs.extract.model.kernel import Call

    operand = Operand(found.types[found.classes[like]], (4, 1))
    return Call({"x": operand}, operand, {}, more=(operand,))


class _Each(PricerBase):
    """Every kernel costs 1."""

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        return [Priced(1.0, 1.0, 1.0, "bound")] * len(found)


def test_attention_that_writes_rows_reads_slices_of_a_product_as_such() -> None:
    """Queries, keys and values of one product: another product that contains them will do as well."""
    from tensor_graphs.extract.candidates.candidates import given_classes
    from tensor_graphs.generation.cached_model import caches_of
    from tensor_graphs.generation.programs import step_graph
    from tensor_graphs.models.huggingface.step import Folder
    from tensor_graphs.models.random_checkpoints import random_checkpoint

    config = {
        "model_type": "phi3", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        "original_max_position_embeddings": 64, "torch_dtype": "bfloat16", "architectures": ["Phi3ForCausalLM"],
    }  # fmt: skip
    folder = Folder.of(config, random_checkpoint(config))  # type: ignore[arg-type]
    graph = step_graph(folder, caches_of(folder.config, 1, 32), 1)
    found = view_of(graph)
    together = FusionGroups(found, given_classes(found))
    groups = MultiOutputFusion(together, list(together))
    scattered = {int(found.cls[n]) for n, op in enumerate(found.op) if op == "scatter_elements"}
    writing = [g for g in groups if len(scattered & {*g.classes}) == 2]
    assert writing
    whole = {int(found.children(n)[0]) for n, op in enumerate(found.op) if op == "slice"}
    parts = {int(found.cls[n]) for n, op in enumerate(found.op) if op == "slice"}
    for g in writing:
        read = {c for _, c in g.leaves}
        assert not read & whole and len(read & parts) >= 2
        assert all(found.types[c] == leaf.type for leaf, c in g.leaves)
