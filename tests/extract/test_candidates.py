"""From views to candidate kernels: what is free, what layouts exist, what is left out, and that a plan always
exists."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c import backend as c_backend
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.candidates.layouts import MAX_LAYOUTS, ClassLayouts
from tensor_graphs.extract.model.kernel import MAX_LAYOUT_COMBINATIONS, Candidate, Operand, Vertex, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.search.plan_solver import LIBRARY_FACTOR, pessimistic_us
from tensor_graphs.models.common import quantization
from tensor_graphs.rules import ALL

NUMPY = [backend("numpy")]


def build(outputs: Any, backends: Any = NUMPY) -> Hypergraph:
    return candidate_hypergraph(view_of(Graph.of(outputs)), backends, view_strides)


def names(found: Hypergraph) -> list[str]:
    return [c.template.name for c in found.candidates]


def made(found: Hypergraph) -> set[Vertex]:
    """Vertices that are given, or that some candidate makes from such."""
    have = {Vertex(c, s) for c, s in found.given.items()}
    size = -1
    while size != len(have):
        size = len(have)
        have |= {c.output for c in found.candidates if all(v in have for _, v in c.inputs)}
    return have


def test_leaves_and_weights_are_given() -> None:
    x, w = tg.input("x", (3, 4)), tg.param("w", (4, 5))
    found = build(x @ (w * 2.0))
    types = {str(found.view.types[c]) for c in found.given}
    assert types == {"float32[3, 4]", "float32[4, 5]", "float32[1, 1]"}
    assert all(s == contiguous(found.view.types[c].shape) for c, s in found.given.items())  # type: ignore[arg-type]
    assert "np.mul" not in names(found), "weights are computed at load, by no kernel of the plan"
    assert all(c.weights == {"w"} for c in found.candidates if c.template.name == "np.matmul")


def test_a_weight_alone_needs_no_kernel() -> None:
    found = build([tg.param("w", (2,)) * 2.0, tg.input("x", (2,))])
    assert found.candidates == [] and all(r.cls in found.given for r in found.roots)


def test_views_add_layouts_and_cost_no_kernel() -> None:
    x = tg.input("x", (3, 4))
    found = build(tg.exp(x.T))
    (view,) = [c for c in found.candidates if c.is_view]
    assert view.output.strides == (1, 4) and view.inputs[0][1].strides == (4, 1)
    kernels = [c for c in found.candidates if c.template.name == "np.exp"]
    assert {c.inputs[0][1].strides for c in kernels} >= {(1, 4)}
    assert all(c.output.strides == (3, 1) for c in kernels)


def test_reshapes_of_what_does_not_lie_so_take_a_copy() -> None:
    found = build(tg.input("x", (3, 4)).T.reshape((12,)))
    flat = [c for c in found.candidates if c.output.cls == found.roots[0].cls and c.is_view]
    assert all(c.inputs[0][1].strides == (3, 1) for c in flat), "of x.T as it lies there is no flat view"
    assert any(c.template.family == "copy" for c in found.candidates)
    assert found.roots[0] in made(found)


def test_layouts_per_class_are_bounded() -> None:
    x = tg.input("x", (2, 2, 2, 2))
    outputs = [tg.exp(tg.permute(x, p)) for p in ((1, 0, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 2, 3, 0))]
    found = build([*outputs, sum(outputs[1:], outputs[0])])
    layouts: dict[int, set[Any]] = {}
    for c in found.candidates:
        for v in (c.output, *(v for _, v in c.inputs)):
            layouts.setdefault(v.cls, set()).add(v.strides)
    assert max(map(len, layouts.values())) <= MAX_LAYOUTS
    per_match: dict[Any, int] = {}
    for c in found.candidates:
        key = (c.template.name, c.output.cls, tuple(v.cls for _, v in c.inputs))
        per_match[key] = per_match.get(key, 0) + 1
    assert max(per_match.values()) <= MAX_LAYOUT_COMBINATIONS


def test_operands_that_are_all_views_of_one_product_are_combined() -> None:
    qkv = tg.input("x", (1, 6, 12)) @ tg.param("w", (12, 36))
    heads = [qkv[..., 12 * i : 12 * i + 12].reshape((1, 6, 2, 6)).permute((0, 2, 1, 3)) for i in range(3)]
    found = build(tg.attention(*heads))
    kernels = [c for c in found.candidates if c.template.name == "np.attention"]
    assert any(all(v.strides != contiguous(found.view.types[v.cls].shape) for _, v in c.inputs) for c in kernels)  # type: ignore[arg-type]


def test_dense_operands_get_no_other_layout() -> None:
    dense = LibraryKernel("t.exp", "numpy", "exp(x)", "np.exp({x}, out={out})", dense=("x",))
    views = [t for t in NUMPY[0].templates if t.family in ("view", "copy")]
    found = build(tg.exp(tg.input("x", (3, 4)).T), [Kernels([dense, *views])])
    assert {c.inputs[0][1].strides for c in found.candidates if c.template is dense} == {(3, 1)}
    assert found.roots[0] in made(found), "a copy makes the row-major operand"


def test_kernels_with_a_layout_of_their_own() -> None:
    column = lambda call: tuple(reversed(contiguous(tuple(reversed(call.output.type.shape)))))
    odd = LibraryKernel("t.exp", "numpy", "exp(x)", "np.exp({x}, out={out})", layout=column)
    rest = [t for t in NUMPY[0].templates if t.family in ("view", "copy") or t.name == "np.tanh"]
    found = build(tg.tanh(tg.exp(tg.input("x", (3, 4)))), [Kernels([odd, *rest])])
    written = {c.output.strides for c in found.candidates if c.template is odd}
    assert written == {(1, 3)}
    assert {c.inputs[0][1].strides for c in found.candidates if c.template.name == "np.tanh"} >= {(1, 3)}
    assert found.roots[0] in made(found)
    found = build(tg.exp(tg.input("x", (3, 4))), [Kernels([odd, *rest])])
    assert found.roots[0] in made(found), "a root in another layout is copied"


def test_prepared_operands_must_be_weights() -> None:
    packed = LibraryKernel(
        "t.matmul", "numpy", "matmul(x, w)", "np.matmul({x}, {w}, out={out})", prep={"w": "np.ascontiguousarray({w})"}
    )
    x, y, w = tg.input("x", (2, 3)), tg.input("y", (3, 4)), tg.param("w", (3, 4))
    assert names(build(x @ w, [Kernels([packed])])) == ["t.matmul"]
    assert names(build(x @ y, [Kernels([packed])])) == []


def test_what_no_root_may_use_is_left_out() -> None:
    x = tg.input("x", (4,))
    lost = LibraryKernel("t.lost", "numpy", "exp(tanh(x))", "{out}", applies=lambda call: False)
    found = build(tg.exp(tg.tanh(x)), [Kernels([lost, *NUMPY[0].templates])])
    assert "t.lost" not in names(found)
    only = [t for t in NUMPY[0].templates if t.name == "np.exp"]
    assert build(tg.exp(tg.tanh(x)), [Kernels(only)]).candidates == [], "nothing makes tanh"


def test_equal_calls_are_one_object() -> None:
    x = tg.input("x", (4, 4))
    y = tg.exp(tg.tanh(tg.exp(x)))
    calls = [c.call for c in build(y).candidates if c.template.name == "np.exp"]
    assert len(calls) == 2 and calls[0] is calls[1]


def test_alike_layers_get_alike_candidates() -> None:
    """Matches whose operands lie alike share what was found for them; each candidate still reads its own operands."""
    x, layers = tg.input("x", (4, 6)), []
    for i in range(3):
        x = tg.exp(x @ tg.param(f"w{i}", (6, 6))).T.T
        layers.append(x)
    found = build(layers)
    classes = [found.view.classes[n] for n in layers]
    for c in found.candidates:
        assert [o for o, _ in c.inputs] == list(c.template.operands)
        assert all(v.strides == c.call.operands[o].strides for o, v in c.inputs)
        assert c.weights == {o for o, v in c.inputs if found.view.weight[v.cls]}
    counts = [sorted(c.template.name for c in found.candidates if c.output.cls == k) for k in classes]
    assert counts[0] == counts[1] == counts[2] != []
    calls, which = found.calls
    assert len(calls) < len(found.candidates) and len(which) == len(found.candidates)
    assert all(found.candidates[calls[k]].call is c.call for k, c in zip(which, found.candidates) if k >= 0)
    assert all(c.is_view for k, c in zip(which, found.candidates) if k < 0)


def test_numbers_stand_for_vertices() -> None:
    found = build(tg.exp(tg.input("x", (3, 4)).T) + 1.0)
    names = list(found.numbered.vertices)
    for c, made, needs in zip(found.candidates, found.numbered.made, found.numbered.needs):
        assert names[made] == c.output
        assert [names[k] for k in needs] == [n for n in names if n in {v for _, v in c.inputs}]
        assert all(found.given.get(names[k].cls) != names[k].strides for k in needs)
    same = {(c.output, frozenset(v for _, v in c.inputs)) for c in found.candidates}
    assert len(set(found.alike)) <= len(same) and [names[r] for r in found.numbered.roots] == found.roots


def test_the_same_view_gives_the_same_candidates() -> None:
    x = tg.input("x", (4, 4))
    once, twice = (build(tg.softmax(x @ x.T) + x) for _ in range(2))
    key = lambda h: [(c.template.name, c.output, c.inputs) for c in h.candidates]
    assert key(once) == key(twice) and once.stats == twice.stats


class Kernels(BackendBase):
    """A backend of some kernels."""

    name = "test"

    def __init__(self, templates: Any) -> None:
        self.templates = templates


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_value_can_be_made_row_major(data: Any) -> None:
    """A plan always exists: every root of a random graph is reached, and the unoptimized plan never costs less kernels
    than there are candidates for."""
    x: Tensor = tg.input("x", data.draw(st.sampled_from([(2, 3), (3, 2, 2), (4,), (1, 4)])))
    for _ in range(data.draw(st.integers(1, 6))):
        axis = data.draw(st.integers(0, x.rank - 1))
        x = data.draw(st.sampled_from([
            tg.exp(x), x.reshape((*x.shape, 1)) if x.rank < 4 else x, tg.permute(x, tuple(reversed(range(x.rank)))),
            tg.flip(x, axis), tg.sum(x, axis, keepdims=True), tg.concat([x, x], axis), x + x, tg.softmax(x, axis),
            tg.broadcast_to(tg.sum(x, axis, keepdims=True), x.shape), x.reshape((int(np.prod(x.shape)),)),  # type: ignore[arg-type]
        ]))  # fmt: skip
    found = build(x)
    assert set(found.roots) <= made(found)
    assert direct_plan(Graph.of(x), NUMPY).kernels <= len([c for c in found.candidates if not c.is_view]) + 1
    for c in found.candidates:
        _check(found, c)


def test_sharing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same candidates in the same order whether or not matches with alike operands share what was found for them,
    over a saturated model of repeated layers, views, merged weights and both backends."""
    x, scale = tg.input("x", (4, 8)), tg.param("scale", (8,))
    for i in range(2):
        q, k, v = (x @ tg.param(f"{n}{i}", (8, 8)) for n in "qkv")
        x = tg.layer_norm(
            x + tg.attention(q.reshape((1, 4, 8)), k.reshape((1, 4, 8)), v.reshape((1, 4, 8)))[0], scale, scale
        )
    view = saturate_block(Graph.of(x), ALL, Limits(iterations=3), session=InProcess())
    both = [backend("numpy"), backend("torch")]
    shared = candidate_hypergraph(view, both, view_strides)
    kind, fresh = ClassLayouts.kind, itertools.count()
    monkeypatch.setattr(ClassLayouts, "kind", lambda self, cls: (kind(self, cls), next(fresh))[1])
    alone = candidate_hypergraph(view, both, view_strides)

    def message(found: Hypergraph) -> list[Any]:
        return [
            (c.template.name, c.output, c.inputs, c.weights, dict(c.call.operands), c.call.output, dict(c.call.attrs))
            for c in found.candidates
        ]

    assert len(shared.candidates) > 300 and message(shared) == message(alone)
    assert next(fresh) > len(view), "nothing was shared the second time"


def _check(found: Hypergraph, c: Candidate) -> None:
    """A candidate says of its operands what the view says."""
    assert c.call.output == Operand(found.view.types[c.output.cls], c.output.strides)
    for operand, v in c.inputs:
        assert c.call.operands[operand] == Operand(found.view.types[v.cls], v.strides)
        assert (operand in c.weights) == bool(found.view.weight[v.cls])
    assert c.output not in {v for _, v in c.inputs}


@pytest.mark.parametrize("op", sorted(n for n, o in OPS.items() if o.kind == "pointwise" and o.arity in (1, 2)))
def test_every_pointwise_op_has_a_kernel(op: str) -> None:
    from tensor_graphs.egraph.ir.tensor import make

    dtype = "uint8" if op == "from_float8" else "bool" if op in ("and", "or", "xor", "not") else "float32"
    leaves = [tg.input(n, (2, 3), dtype) for n in "xy"[: OPS[op].arity]]
    attrs = {"dtype": "int64"} if "dtype" in OPS[op].attrs else dict.fromkeys(OPS[op].attrs, 1.0)
    root = make(op, leaves, attrs | OPS[op].defaults)
    assert build(root).roots[0] in made(build(root))
    assert isinstance(root.type, Type)


def test_when_enough_was_generated_the_libraries_kernels_are_there() -> None:
    """Generated kernels are left out from when there are enough of them, or looked at in fewer layouts; nothing else
    is."""
    x = tg.input("x", (8, 16))
    view = view_of(Graph.of(tg.softmax(tg.exp(x) * 2.0 + x, axis=1)))
    backends = [backend(name) for name in ("torch_cuda", "triton")]

    def found(enough: Any) -> tuple[dict[str, int], Hypergraph]:
        graph = candidate_hypergraph(view, backends, view_strides, enough=enough)
        names = [c.template.backend for c in graph.candidates]
        return {b: names.count(b) for b in ("torch_cuda", "triton")}, graph

    every, whole = found(lambda bound: False)
    none, cut = found(lambda bound: not bound)
    unbound, unlooked = found(lambda bound: bound)
    assert every["triton"] and not whole.stats["left_out"]
    assert none == unbound == {**every, "triton": 0}
    assert cut.stats["left_out"] and unlooked.stats["left_out"] and cut.roots == whole.roots
    for asked in (True, False):  # what was found until then is there
        counts = []
        for most in range(32):
            looks = itertools.count()

            def enough(bound: bool, looks: Any = looks, most: int = most, asked: bool = asked) -> bool:
                return bound is asked and next(looks) >= most

            counts.append(found(enough)[0]["triton"])
        assert counts == sorted(counts) and counts[0] == 0 and any(0 < n < every["triton"] for n in counts), asked


@pytest.mark.parametrize("rows", [1, 8])
def test_products_with_packed_weights_are_there_whatever_the_time(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU each product of a row has its kernel on the packed weight though nothing else is generated or bound, and
    a plan without any measurement reads packed weights; on a GPU the clock ends them, too."""
    hidden = tg.input("x", (1, 256))
    for n, columns in enumerate((256, 256, 384)):
        codes, scale = tg.param(f"w{n}", (columns, 128), "uint8"), tg.param(f"s{n}", (columns, 2), "bfloat16")
        hidden = tg.relu(hidden @ t.transpose(t.cast(quantization.dequantized("int4", codes, scale), "float32")))
    view = view_of(Graph.of(hidden))
    products = {int(view.cls[n]) for n, op in enumerate(view.op) if op == "matmul"}
    monkeypatch.setattr(c_backend, "has_byte_dots", lambda: True)

    def reads_codes(names: list[str]) -> list[Candidate]:
        found = candidate_hypergraph(view, [backend(n) for n in names], view_strides, enough=lambda bound: True)
        assert found.stats["left_out"]
        return [c for c in found.candidates if "uint8" in (o.type.dtype for o in c.call.operands.values())]

    kernels = reads_codes(["torch", "c"])
    assert len(kernels) == len(products) == 3 and {c.output.cls for c in kernels} == products
    assert len({id(c.template) for c in kernels}) == 2, "equal products have one kernel"
    assert not reads_codes(["torch_cuda", "triton"])
    predicted = Priced(10.0, 1.0, 90.0, "predicted")
    assert {pessimistic_us(c, predicted) for c in kernels} == {LIBRARY_FACTOR * predicted.us}
    fused = c_backend.generated(tg.relu(kernels[0].template.roots[0]))
    assert not fused.is_packed_product and cuda_cpp.generated(kernels[0].template.roots[0]).is_packed_product is False


def test_kernels_that_were_found_first_are_bound_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time ends while backends look at many kernels in all layouts, those that they looked at before are
    there."""
    backends, sizes = [backend(name) for name in ("torch_cuda", "triton")], itertools.count(17)

    def needed() -> int:
        """How often one must be asked for the time until a generated kernel is there, of kernels that nobody has looked
        at."""
        for most in itertools.count():
            looks, x = itertools.count(), tg.input("x", (8, next(sizes)))
            y = t.permute(tg.exp(x), (1, 0))
            view = view_of(
                Graph.of([tg.softmax(y * 2.0 + t.permute(x, (1, 0)), axis=1), tg.softmax(tg.exp(x), axis=1), y])
            )
            enough = lambda bound, looks=looks, most=most: bound and next(looks) >= most
            graph = candidate_hypergraph(view, backends, view_strides, enough=enough)
            if any(c.template.backend == "triton" for c in graph.candidates):
                return most
        raise AssertionError

    together = needed()
    monkeypatch.setattr("tensor_graphs.extract.candidates.candidates.FIRST_BATCH_MATCHES", 1)
    assert needed() < together
