"""Ops added at run time, one entry each, in everything that reads the op table; and the documented table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.rules.loop_notation import notation
from tests.rules.output_regions import wrong_region

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends import registry
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.library import numpy
from tensor_graphs.backends.library.numpy import NumpyBackend
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.runtime.views import view_layout
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites.op_markdown import table_markdown
from tensor_graphs.egraph.evaluate.interpret import evaluate, expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.index_maps import AffineMap, AxisIndex
from tensor_graphs.egraph.ops.ops import OPS, Op, OutFunction, TargetText, Type, ViewMethods, register
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.rules.check.check import verdict
from tensor_graphs.rules.smt.prove import prove

DOCS = Path(__file__).parents[2] / "docs" / "ops.md"
ASINH = Op(
    "toy_asinh", 1, "pointwise", "pointwise", {}, {}, "inverse hyperbolic sine", numpy=lambda a, x: np.arcsinh(x),
    floats_only=True, symmetry="odd", monotone=True, rounding="always", flops=12, numpy_function=OutFunction("arcsinh"),
    torch_function=OutFunction("asinh"), onnx=("ToyAsinh",),
    text=TargetText(
        "__builtin_asinhf({0})", "asinh({0})", cuda="asinhf({0})", cuda_double="asinh({0})", jax="jnp.arcsinh({0})",
        triton="tl.abs({0}); tl.log({1} + tl.sqrt({1} * {1} + 1.0)); tl.where({0} < 0.0, -{2}, {2})",
    ),
)  # fmt: skip


def _turned(attrs: Any, shapes: Any) -> AffineMap:
    """Rows in reverse order, from the last one on; other axes as they are."""
    axis = attrs["axis"]
    own = AxisIndex(((axis, -1),), shapes[0][axis] - 1)
    return AffineMap(tuple(own if a == axis else AxisIndex(((a, 1),)) for a in range(len(shapes[0]))))


TURN = Op(
    "toy_turn", 1, "along", "view", {"axis": "int"}, {}, "one axis turned", linear=(0,), index_map=_turned,
    numpy=lambda a, x: np.flip(x, a["axis"]), methods=ViewMethods(torch_copy=("flip", "axis")),
)  # fmt: skip
BOTH = Op(
    "toy_both", 1, "along", "composite", {"axis": "int"}, {}, "twice the inverse hyperbolic sine of a turned value",
    decompose=lambda x, axis: make("toy_asinh", (make("toy_turn", (x,), {"axis": axis}),)) * 2.0, floats_only=True,
)  # fmt: skip
PEAK = Op(
    "toy_peak", 1, "reduce", "reduction", {"axes": "dims"}, {}, "largest over axes", monoid="maximum", rounding="never",
    algebra="order", keeps_positive=True, numpy=lambda a, x: np.max(x, axis=a["axes"], keepdims=True),
    text=TargetText(jax="jnp.max({0}, axis={axes}, keepdims=True)"),
)  # fmt: skip
TAKE = Op(
    "toy_take", 2, "gather", "index", {"axis": "int"}, {}, "slices at the indices", fused_as="cheap", index_operand=1,
    work=lambda node: 3.0, numpy=lambda a, x, i: np.take(x, i, axis=a["axis"], mode="clip"),
)  # fmt: skip
SHRUNK = Op(
    "toy_shrunk", 1, "pointwise", "composite", {"limit": "float"}, {"limit": 0.5}, "0 where |x| is at most a limit",
    decompose=lambda x, limit: t.where(t.le(t.abs(x), limit), 0.0, x), symmetry="odd", floats_only=True, rounding="never",
)  # fmt: skip
TOYS = (ASINH, TURN, PEAK, BOTH, TAKE, SHRUNK)
SHAPE = (6, 5)


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    for op in TOYS:
        register(op)
    yield
    for op in TOYS:
        del OPS[op.name]


def _term() -> Tensor:
    return make("toy_both", (t.input("x", SHAPE),), {"axis": 0})


def _plain() -> Tensor:
    return expand_all([_term()])[0]


def _peak() -> Tensor:
    return make("toy_peak", (_plain(),), {"axes": (1,)})


def _data() -> np.ndarray:
    return (np.random.default_rng(1).standard_normal(SHAPE) * 3).astype(np.float32)


def _want(x: np.ndarray) -> np.ndarray:
    return np.arcsinh(x[::-1]) * 2


def _peaks(x: np.ndarray) -> np.ndarray:
    return _want(x).max(axis=1, keepdims=True)


#: Term and its value for the kernel tests: elementwise ops and a view, and a reduction of these.
TERMS = pytest.mark.parametrize(("term", "want"), [(_plain, _want), (_peak, _peaks)])


def test_the_interpreter_and_the_torch_reference_compute_them() -> None:
    from tensor_graphs.backends.verification.torch_reference import evaluate_graph

    x = _data()
    np.testing.assert_allclose(evaluate([_term()], {"x": x})[0], _want(x), rtol=1e-6)
    for root, want in ((_plain(), _want(x)), (_peak(), _peaks(x))):
        np.testing.assert_allclose(evaluate_graph(Graph.of(root), {"x": x}, device="cpu")[0], want, rtol=1e-5)


@pytest.mark.parametrize("explored", [False, True])
def test_an_elementwise_composite_without_library_kernels_runs_decomposed(explored: bool) -> None:
    term = make("toy_shrunk", (t.input("x", SHAPE) * 2.0,), {"limit": 1.0})
    if explored:
        assert tg.saturate(term, backend="numpy").plan().steps
        return
    program = tg.optimize(term, backend="numpy", budget=1, costdb=None)
    x = _data()
    np.testing.assert_array_equal(program(x), np.where(np.abs(2 * x) <= 1, 0, 2 * x))


def _collect_kernels() -> None:
    """Have the NumPy backend make its kernels from the present op table on the next use."""
    vars(numpy.BACKEND).pop("templates", None)
    registry.forget()


@pytest.fixture
def library() -> Iterator[None]:
    _collect_kernels()
    yield
    _collect_kernels()


def test_a_composite_op_without_kernels_runs_decomposed() -> None:
    x, graph = _data(), Graph.of(_term())
    plan = direct_plan(graph, [NumpyBackend()])
    assert {step.template.name for step in plan.steps} >= {"np.mul"}
    np.testing.assert_allclose(Program(plan)(x), _want(x), rtol=1e-6)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("tolerance", ["eager", "exact"])
def test_a_search_decomposes_composite_ops_without_kernels(tolerance: str) -> None:
    program = tg.optimize(_term(), backend="numpy", budget=60, tolerance=tolerance)  # ends when all is proved
    np.testing.assert_allclose(program(x := _data()), _want(x), rtol=1e-6)


RULES = {
    "twice": Rule("toy-twice", "toy_turn(toy_turn(x, axis=i), axis=i)", "x", growth="collects", exact=True),
    "odd": Rule("toy-odd", "toy_asinh(neg(x))", "neg(toy_asinh(x))"),
    "moves": Rule("toy-moves", "toy_asinh(toy_turn(x, axis=i))", "toy_turn(toy_asinh(x), axis=i)", exact=True),
    "peaks": Rule("toy-peaks", "toy_peak(toy_peak(x, axes=(0,)), axes=(1,))", "toy_peak(x, axes=(0, 1))"),
    "definition": Rule("toy-definition", "toy_asinh(toy_turn(x, axis=i)) * 2.0", "toy_both(x, axis=i)"),
}


def test_saturation_types_them_and_applies_their_rules() -> None:
    x = t.input("x", SHAPE)
    turned = make("toy_turn", (make("toy_turn", (x,), {"axis": 0}),), {"axis": 0})
    rules = [RULES["twice"], RULES["definition"]]
    view = saturate_block(Graph.of([turned, _plain()]), rules, Limits(iterations=3), session=InProcess())
    assert view.roots[0] == view.classes[x] and view.types[view.roots[1]] == Type(SHAPE, "float32")
    assert "toy_both" in {view.op[n] for n in view.nodes_of(view.roots[1]).tolist()}


@pytest.mark.parametrize(
    ("name", "status"),
    [("twice", "proved"), ("odd", "proved"), ("moves", "proved"), ("peaks", "proved"), ("definition", "proved")],
)
def test_rules_are_sampled_and_proved(name: str, status: str) -> None:
    assert verdict(RULES[name], samples=4).status == status


def test_wrong_rules_are_refuted() -> None:
    assert verdict(Rule("toy-once", "toy_turn(x, axis=i)", "x"), samples=6).status == "refuted"
    assert verdict(Rule("toy-lost", "toy_peak(x, axes=a)", "x"), samples=6).status == "refuted"
    assert verdict(Rule("toy-even", "toy_asinh(neg(x))", "toy_asinh(x)"), samples=6).status == "refuted"
    thrice = Rule("toy-thrice", "toy_asinh(toy_turn(x, axis=i)) * 3.0", "toy_both(x, axis=i)")
    assert not prove(thrice)[0] and verdict(thrice, samples=6).status == "refuted"


def test_index_maps_reach_regions_notation_and_layouts() -> None:
    x = t.input("x", SHAPE)
    turned = make("toy_turn", (x,), {"axis": 0})
    assert wrong_region(turned, t.flip(x, 0)) == [] and wrong_region(turned, x) != []
    assert notation(turned) == "[i, j] = x[-i+5, j]"
    assert view_layout("toy_turn", {"axis": 0}, Operand(Type(SHAPE, "float32"), (5, 1))) == ((-5, 1), 25)


def test_facts_reach_fusion_work_and_the_drawing_of_operands() -> None:
    from tensor_graphs.backends.tuning.gpu_operands import operand_roles as gpu_roles
    from tensor_graphs.backends.verification.input_distributions import input_distributions
    from tensor_graphs.egraph.view.view import view_of
    from tensor_graphs.extract.fusion.groups import FusionGroups
    from tensor_graphs.extract.model.work import graph_flops

    x, i = t.input("x", SHAPE), t.input("i", (3,), "int64")
    taken = make("toy_take", (x, i), {"axis": 1})
    root = t.log(make("toy_peak", (taken,), {"axes": (1,)}))
    found = input_distributions(Graph.of(root))
    assert found["x"].positive is False and found["i"].bound == SHAPE[1]
    assert input_distributions(Graph.of(t.log(make("toy_peak", (x,), {"axes": (1,)}))))["x"].positive
    params = make("toy_take", (t.param("x", SHAPE), t.param("i", (3,), "int64")), {"axis": 0})
    assert gpu_roles([params])["i"].bound == SHAPE[0] and graph_flops([taken]) == 3.0
    view = view_of(Graph.of(root))
    groups = FusionGroups(view, frozenset((view.classes[x], view.classes[i])))
    assert any({n.op for n in (g.term, *topological([g.term]))} >= {"log", "toy_peak", "toy_take"} for g in groups)


def test_the_onnx_importer_builds_them_by_the_names_in_their_entries() -> None:
    pytest.importorskip("onnx")
    from tensor_graphs.models.onnx.node import OPERATORS
    from tensor_graphs.models.onnx.ops import register_elementwise

    for op in TOYS:
        register_elementwise(op)
    operand = type("Node", (), {"x": lambda self, i: t.input("x", SHAPE)})()
    assert OPERATORS.pop("ToyAsinh").build(operand).op == "toy_asinh"


def test_numpy_programs_have_them() -> None:
    graph, x = Graph.of(_peak()), _data()
    plan = direct_plan(graph, [NumpyBackend()])
    assert {"np.toy_asinh", "view.toy_turn", "np.toy_peak"} <= {s.template.name for s in plan.steps}
    np.testing.assert_allclose(Program(plan).flat(x)[0], _peaks(x), rtol=1e-6)


def _call(template: Any) -> Call:
    place = Operand(Type(SHAPE, "float32"), contiguous(SHAPE))
    out = template.roots[0].type
    call = Call({"x": place}, Operand(out, contiguous(out.shape)), {})
    return replace(call, schedule=next(iter(template.space(call))) if template.space is not None else {})


@TERMS
def test_c_kernels_have_them(term: Any, want: Any) -> None:
    from tensor_graphs.backends.c.backend import BACKEND, generated
    from tensor_graphs.backends.tuning.single_kernel import run_template

    if why := BACKEND.unavailable():
        pytest.skip(why)
    template, x = generated(term()), _data()
    np.testing.assert_allclose(run_template(template, _call(template), {"x": x}), want(x), rtol=1e-5)


@TERMS
def test_cuda_kernels_have_them(term: Any, want: Any) -> None:
    from tensor_graphs.backends.cuda.backend import generated

    text = kernel_text(template := generated(term()), _call(template)).text
    assert "asinhf(" in text and ("pointwise_" in text) == (term is _plain)


@TERMS
def test_pallas_kernels_have_them(term: Any, want: Any) -> None:
    from tensor_graphs.backends.pallas.backend import generated

    text = kernel_text(template := generated(term()), _call(template)).text
    assert "jnp.arcsinh(" in text and ("jnp.max(" in text) == (term is _peak)


def test_jax_library_functions_have_them() -> None:
    from tensor_graphs.backends.pallas.library import speller

    x = t.input("x", SHAPE)
    nodes = [make("toy_asinh", (x,)), make("toy_turn", (x,), {"axis": 0}), make("toy_peak", (x,), {"axes": (1,)})]
    texts = [spell(n, ["x"]) for n in nodes if (spell := speller(n.entry)) is not None]
    rows, columns = "jnp.arange(6).reshape([-1, 1])", "jnp.arange(5).reshape([1, -1])"
    turned = f"x[5 + -1 * {rows}, 0 + 1 * {columns}]"
    assert texts == ["jnp.arcsinh(x)", turned, "jnp.max(x, axis=(1,), keepdims=True)"]


@TERMS
def test_triton_kernels_have_them(term: Any, want: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends.triton.backend import generated

    template, x = generated(term()), _data()
    out = torch.full(want(x).shape, float("nan"))
    scratch = torch.zeros(template.scratch(_call(template)), dtype=torch.uint8)
    module_of(kernel_text(template, _call(template))).run(torch.from_numpy(x), out, scratch)
    np.testing.assert_allclose(out.numpy(), want(x), rtol=1e-4)


def test_the_documented_table_is_the_op_table() -> None:
    ours = [op for op in OPS.values() if op not in TOYS]
    assert DOCS.read_text(encoding="utf-8") == table_markdown(ours), (
        "python -m tensor_graphs.egraph.composites.op_markdown > docs/ops.md"
    )
    assert all(f"| `{op.name}` | {op.arity} |" in table_markdown(OPS.values()) for op in TOYS)
