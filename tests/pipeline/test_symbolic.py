"""Programs of graphs with free dimensions: searched at one choice of sizes, right at all of them, and refusing the
others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.verification.index_bounds import index_bounds
from tensor_graphs.egraph.builders import builders
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.size_conditions import conditions
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.saturate.lift import Numbers, generic_sizes, lifted
from tensor_graphs.egraph.types.dims import bind, parse
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import BadModelError, ShapeError, UnsupportedError, UsageError
from tensor_graphs.extract.model.sizes import bound_call
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.sizes import verify_sizes
from tensor_graphs.pipeline.sizes.any_size import Symbolic
from tensor_graphs.pipeline.sizes.verify_sizes import SizeVerifier
from tensor_graphs.pipeline.stages.prepare import for_every_size, prepare
from tensor_graphs.report.omissions import Omission
from tensor_graphs.verification.comparison import relative_error
from tensor_graphs.verification.reference import sample_inputs

FAST: dict[str, Any] = {"backend": "numpy", "measure": False, "limits": tg.Limits(iterations=4, nodes=3000)}
B, T, P = tg.dim("B", max=64), tg.dim("T", max=512), tg.dim("P", max=300)
X = tg.input("x", (B, T, 48))
SIZES = ({"B": 1, "T": 1, "P": 1}, {"B": 1, "T": 128, "P": 3}, {"B": 5, "T": 17, "P": 40}, {"B": 3, "T": 200, "P": 2})


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs_at(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, dict[str, Any]]:
    there = graph.bind({n: s for n, s in sizes.items() if n in graph.free_dims})
    return there, sample_inputs(there.inputs, np.random.default_rng(7), index_bounds(there))


def agrees(program: Any, graph: Graph, *choices: Mapping[str, int], tolerance: float = 1e-5) -> None:
    """The program's outputs are the graph's at every choice of sizes, and again at the first one."""
    for sizes in (*choices, choices[0]):
        there, values = inputs_at(graph, sizes)
        for found, exact in zip(program.flat(**values), evaluate(there, values, float64=True), strict=True):
            assert found.shape == exact.shape, (sizes, found.shape, exact.shape)
            assert relative_error(found, exact) < tolerance, sizes


# ---------------------------------------------------------------- from end to end
def heads(x: Tensor) -> Tensor:
    h = x.reshape((B, T, 4, 12)).permute((0, 2, 1, 3))
    return tg.matmul(tg.softmax(tg.matmul(h, h.mT) * 0.3), h).permute((0, 2, 1, 3)).reshape((B, T, 48))


PAST = tg.input("past", (B, P, 48))
LONG = tg.concat([PAST, X], 1)
EXPRESSIONS: dict[str, Callable[[], Tensor]] = {
    "heads": lambda: heads(X),
    "mean over a free axis": lambda: tg.mean(X, 1) * 2.0,
    "flattened": lambda: tg.relu(X.reshape((B * T, 48))) @ tg.param("w", (48, 16)),
    "axes moved and merged": lambda: X.permute((1, 0, 2)).reshape((T, B * 48)) * 3.0,
    "halves": lambda: tg.concat([X[:, 0 : T // 2], X[:, T // 2 : T]], 1) * 3.0,
    "a row repeated": lambda: builders.broadcast_to(tg.reshape(tg.sum(X, (0, 1)), (1, 48)), (T // 2, 48)),  # 0 at T = 1
    "the last position": lambda: tg.exp(X)[:, T - 1],
    "two lengths": lambda: tg.matmul(tg.softmax(tg.matmul(X, LONG.mT)), LONG),
    "a table of positions": lambda: X + tg.reshape(tg.param("table", (256, 48))[0:T], (1, T, 48)),
    "positions": lambda: X * tg.cast(tg.iota((1, T, 1), 1), "float32"),
    "causal": lambda: tg.where(tg.lt(tg.iota((T, T), 0), tg.iota((T, T), 1)), tg.full((1, 1), 0.0), X @ X.mT),
    "window": lambda: tg.where(tg.lt(tg.iota((T, T), 0) - tg.iota((T, T), 1), 150), X @ X.mT, tg.full((1, 1), 0.0)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_program_runs_at_every_size(name: str) -> None:
    data = {"w": normal(48, 16), "table": normal(256, 48)}
    graph = Graph.of(EXPRESSIONS[name]())
    graph = Graph.of(
        graph.outputs[0], params={str(n.attr("name")): data[n.attr("name")] for n in graph.leaves("param")}
    )
    program = tg.optimize(graph, **FAST)
    assert not [w for w in program.report.warnings if "one size only" in w]
    assert set(program.report.sizes) == set(graph.free_dims)
    agrees(program, graph, *SIZES)


def test_torch_kernels_with_packed_weights_run_at_every_size(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    x = X @ tg.param("w", (48, 64)) + tg.param("b", (64,))
    graph = Graph.of(c.gelu(x) @ tg.param("v", (64, 48)) + X, params={"w": normal(48, 64), "b": normal(64), "v": normal(64, 48)})  # fmt: skip
    program = tg.optimize(graph, **{**FAST, "backend": "torch"}, costdb=tmp_path)  # no prices of other tests
    assert any("_prepared" in line for line in program.source.splitlines())
    agrees(program, graph, *SIZES)
    head, _, at = program.source.partition("def at(")
    assert "_pack(" in head and "_pack(" not in at  # weights are packed once, not for each size


def test_c_kernels_take_their_sizes_as_parameters(tmp_path: Path) -> None:

    if backend("c").unavailable():
        pytest.skip(backend("c").unavailable())
    x = c.softmax(tg.tanh(X) * 2.0, axis=2) * tg.reshape(tg.param("g", (48,)), (1, 1, 48))
    graph = Graph.of(x + tg.mean(x, 1, True), params={"g": normal(48)})
    program = tg.optimize(graph, **{**FAST, "backend": "c"}, costdb=tmp_path)
    assert "const long size_B, const long size_T" in program.source and "(size_B*size_T)" in program.source
    agrees(program, graph, *SIZES)


def test_a_c_kernel_of_one_size_has_no_form_for_others() -> None:
    from tensor_graphs.backends.c.any_size import sized
    from tensor_graphs.backends.c.backend import generated
    from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

    numbers, sizes = lifting(Graph.of(X * 1.0), B=1, T=16)
    b, t = sizes["B"], sizes["T"]
    x = tg.input("x", (b, t, 48))
    probes = [{"B": 11, "T": 13}, {"B": 61, "T": 67}]
    cases = {
        "every": (tg.tanh(x) * 2.0, True),
        "a sum over the sequence": (tg.sum(tg.tanh(x), 1, True), True),
        "a mean over it: a number made of its size": (tg.sum(tg.tanh(x), 1, True) * (1.0 / t), False),
        "a row as long as the sequence": (c.softmax(tg.tanh(tg.permute(x, (0, 2, 1))), axis=2), False),
        "a condition that is true at short sequences": (
            tg.where(builders.iota((b, t, 48), 1) < 307, tg.tanh(x), 0.0),
            False,
        ),
        "one that is true at every length": (tg.where(builders.iota((b, t, 48), 1) < 701, tg.tanh(x), 0.0), True),
        "the position modulo 307": (x + tg.cast(builders.iota((b, t, 48), 1) % 307, "float32"), False),
    }
    for name, (root, holds) in cases.items():
        template = generated(root)
        operand = lambda kind: Operand(kind, contiguous(kind.shape))
        call = Call({"x": operand(x.type)}, operand(root.type), {})
        assert template.lower(call) is not None, name
        found = sized(template, call, numbers, {"B": 1, "T": 16}, probes)
        assert (found is not None) is holds, name
        if found is not None:
            assert found.call.output.type.shape == bound_call(found.free_call, {"B": 1, "T": 16}).output.type.shape


def test_a_gpu_kernel_that_is_another_one_at_the_largest_sizes_has_no_form() -> None:
    from tensor_graphs.backends.cuda.backend import generated
    from tensor_graphs.backends.generate.any_size import sized_kernel
    from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

    numbers, sizes = lifting(Graph.of(tg.input("x", (B, tg.dim("T", max=32768), 48)) * 1.0), B=1, T=16)
    x = tg.input("x", (sizes["B"], sizes["T"], 48))
    for least, holds in ((20011, False), (40009, True)):
        root = tg.where(builders.iota((sizes["B"], sizes["T"], 48), 1) < least, tg.tanh(x), 0.0)
        operand = Operand(x.type, contiguous(x.type.shape))  # type: ignore[arg-type]
        template, call = generated(root), Call({"x": operand}, operand, {})
        found = sized_kernel(template, call, numbers)
        assert found is not None and isinstance(found.free_template.forms_of(found.free_call), tuple) is holds  # type: ignore[attr-defined]


LENGTH = tg.dim("T", max=200000)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        (lambda i: i * i, lambda i: i * i),
        (lambda i: i * 100_000, lambda i: i * 100_000),
        (lambda i: tg.cast(tg.cast(i, "int16") * tg.cast(i, "int16"), "int64"),
         lambda i: np.square(i.astype(np.int16)).astype(np.int64)),
        (lambda i: tg.where(i < 1000, i, 7), lambda i: np.where(i < 1000, i, 7)),
        (lambda i: tg.sum(i * i, 0, True), lambda i: np.sum(i * i, keepdims=True)),
    ],
    ids=["squares", "multiples", "narrow squares", "condition", "sum of squares"],
)  # fmt: skip
def test_positions_far_beyond_the_searched_size(
    expression: Callable[[Any], Any], function: Callable[[Any], Any], tmp_path: Path
) -> None:
    """They exceed 32 bits, wrap at the width of their dtype and meet conditions that no searched position meets."""
    if backend("c").unavailable():
        pytest.skip(backend("c").unavailable())
    x, i = tg.input("x", (LENGTH,), "int64"), builders.iota((LENGTH,), 0)
    program = tg.optimize(expression(i) + x, dims={"T": 128}, **{**FAST, "backend": "c"}, verify=False, costdb=tmp_path)
    for n in (1, 999, 1001, 70_000):
        zeros = np.zeros(n, np.int64)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(program(zeros), function(np.arange(n)) + zeros)


@pytest.fixture(scope="module")
def attention() -> tuple[Graph, Any]:
    graph = Graph.of(tg.matmul(tg.softmax(tg.matmul(X, LONG.mT)), LONG), name="attention")
    return graph, tg.optimize(graph, dims={"T": 32, "P": 16}, **FAST)


def test_the_report_and_the_manifest_say_the_ranges(attention: tuple[Graph, Any]) -> None:
    _, program = attention
    want = {"B": "1..64 (searched at 1)", "P": "1..300 (searched at 16)", "T": "1..512 (searched at 32)"}
    assert program.report.sizes == want and program.report.to_json()["sizes"] == want
    assert program.report.dims == {"B": 1, "T": 32, "P": 16}
    assert program.manifest.sizes == {"B": (1, 64, 1), "P": (1, 300, 16), "T": (1, 512, 32)}
    assert "1..512 (searched at 32)" in str(program.report)


def test_sizes_that_do_not_fit_are_named(attention: tuple[Graph, Any]) -> None:
    _, program = attention
    with pytest.raises(ShapeError, match=r"T=513 is outside 1\.\.512"):
        program(normal(1, 513, 48), normal(1, 4, 48))
    with pytest.raises(ShapeError, match="'past'"):
        program(normal(2, 8, 48), normal(3, 4, 48))  # two batch sizes
    with pytest.raises(ShapeError, match="'past'"):
        program(normal(2, 8, 48), normal(2, 4, 47))
    with pytest.raises(ShapeError, match="'x'"):
        program(normal(8, 48), normal(2, 4, 48))
    with pytest.raises(ShapeError, match="T=0"):
        program(normal(2, 0, 48), normal(2, 4, 48))
    with pytest.raises(ShapeError, match="float64"):
        program(normal(2, 8, 48).astype(np.float64), normal(2, 4, 48))


def test_a_saved_program_keeps_its_sizes(attention: tuple[Graph, Any], tmp_path: Path) -> None:
    graph, program = attention
    program.save(tmp_path / "p")
    loaded = tg.load_program(tmp_path / "p")
    assert loaded.manifest.sizes == program.manifest.sizes
    assert [str(d) for d in loaded.manifest.outputs[0][1]] == ["B", "T", "48"]
    agrees(loaded, graph, *SIZES)
    assert loaded.manifest.to_json()["outputs"] == [("output", ["B", "T", 48], "float32")]
    with pytest.raises(ShapeError, match="T=600"):
        loaded(normal(1, 600, 48), normal(1, 4, 48))


def test_the_source_runs_alone_and_checks_sizes_itself(attention: tuple[Graph, Any], tmp_path: Path) -> None:
    _, program = attention
    (tmp_path / "program.py").write_text(program.source)
    code = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); import program; run = program.bind({})\n"
        "for t in (1, 7, 300): print(run(np.ones((2, t, 48), 'f4'), np.ones((2, 5, 48), 'f4'))[0].shape)\n"
        "try: run(np.ones((2, 4, 48), 'f4'), np.ones((3, 5, 48), 'f4'))\n"
        "except program.SizeError: print('refused')\n"
        "assert not any(m.startswith('tensor_graphs') for m in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:4] == ["(2, 1, 48)", "(2, 7, 48)", "(2, 300, 48)", "refused"]


def test_a_damaged_manifest_is_refused(attention: tuple[Graph, Any], tmp_path: Path) -> None:
    _, program = attention
    folder = program.save(tmp_path / "p")
    for wrong in ("__import__('os')", "T**2", "Q", "T +", "1//0"):
        record = json.loads((folder / "manifest.json").read_text())
        record["outputs"][0][1][1] = wrong
        (tmp_path / "p" / "manifest.json").write_text(json.dumps(record))
        with pytest.raises(BadModelError, match="malformed"):
            tg.load_program(folder)


def test_results_of_one_size_survive_calls_at_others(attention: tuple[Graph, Any]) -> None:
    graph, program = attention
    _, values = inputs_at(graph, SIZES[2])
    first = program(**values)
    kept = first.copy()
    for t in range(1, 40):  # more choices than are kept, and a workspace that grows
        program(normal(2, t, 48), normal(2, 3 * t, 48))
    assert np.array_equal(first, kept) and np.array_equal(program(**values), kept)


# ---------------------------------------------------------------- fixing sizes, and what cannot be free
def test_sizes_can_be_fixed() -> None:
    one = tg.optimize(X * 2.0 + 1.0, fixed={"B": 2}, **FAST)
    assert set(one.report.sizes) == {"T"} and one(normal(2, 9, 48)).shape == (2, 9, 48)
    with pytest.raises(ShapeError):
        one(normal(1, 9, 48))
    every = tg.optimize(X * 2.0 + 1.0, dims={"B": 2, "T": 9}, fixed=True, **FAST)
    assert not every.report.sizes and every.report.dims == {"B": 2, "T": 9}
    with pytest.raises(ShapeError, match="'x'"):
        every(normal(2, 8, 48))
    with pytest.raises(UsageError, match="typo"):
        tg.optimize(X, dims={"typo": 2}, **FAST)


def test_a_state_of_a_free_size_keeps_the_program_at_one_size() -> None:
    state = tg.state("s", (B, 4))
    x = tg.input("x", (B, 4))
    graph = Graph.of(x + state, updates={"s": x + state})
    program = tg.optimize(graph, dims={"B": 3}, **FAST)
    assert "one size only: the state 's'" in " ".join(program.report.warnings)
    with pytest.raises(ShapeError):
        program(normal(2, 4))


def test_ranges_are_narrowed_to_what_the_ops_allow() -> None:
    graph = Graph.of(X + tg.reshape(tg.param("table", (256, 48))[0:T], (1, T, 48)), params={"table": normal(256, 48)})
    program = tg.optimize(graph, **FAST)
    assert program.report.sizes["T"] == "1..256 (searched at 128)"
    with pytest.raises(ShapeError, match=r"T=257 is outside 1\.\.256"):
        program(normal(1, 257, 48))


def test_devices_without_kernels_of_every_size_are_named() -> None:
    graph = Graph.of(X * 2.0)
    session = Session(Options(measure=False))
    prepared = prepare(session, graph, {"B": 1, "T": 8})
    assert for_every_size(session, graph, prepared, [backend("torch_cuda")]) is not None and not session.warnings
    other: Any = SimpleNamespace(device=SimpleNamespace(on_gpu=False, any_size=False, name="a TPU"))
    assert for_every_size(session, graph, prepared, [other]) is None
    assert session.warnings == ["the program runs at one size only: programs on a TPU have no free sizes"]


def test_powers_of_positions() -> None:
    """A power with one exponent, of numbers that depend on sizes alone: the kernel for fixed sizes needs memory."""
    x = tg.input("x", (T, 3))
    line = tg.cast(builders.iota((T, 3), 0), "float32")
    graph = Graph.of([x * (line + 1) ** 1.5 + builders.sum(line) ** 0.5])
    program = tg.optimize(graph, dims={"T": 6}, verify=False, **FAST)
    agrees(program, graph, {"T": 6}, {"T": 1}, {"T": 37})


def test_a_plan_that_is_wrong_elsewhere_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """First without rewriting; where that is wrong as well, at one size, which the report says."""
    left: list[str] = []  # what will be said of the next programs

    def wrong(self: Any, program: Any, tolerance: Any, seed: int, *_: Any) -> str:
        return self._failure({"T": 3}, left.pop()) if left else ""

    monkeypatch.setattr(SizeVerifier, "problem", wrong)
    graph = Graph.of(tg.relu(X) * 2.0)
    for count, single in ((1, False), (9, True)):
        left[:] = ["made up"] * count
        program = tg.optimize(graph, dims={"B": 2, "T": 4}, **FAST)
        assert any("at T=3: made up" in w for w in program.report.warnings)
        assert any("one size only" in w for w in program.report.warnings) is single
        agrees(program, graph, {"B": 2, "T": 4})
        assert single is not bool(program.report.sizes)


def test_verification_at_other_sizes_sees_a_wrong_lift() -> None:
    graph = Graph.of(X[:, 0 : T - 1] * 2.0)
    program = tg.optimize(Graph.of(X[:, 0:1] * 2.0), **FAST)
    found = Symbolic.of(graph, {"B": 1, "T": 2}, exact=False)
    assert "at B=" in found.verifier.problem(program, "eager", 0)


def test_what_is_not_compared_at_other_sizes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, omitted = verify_sizes.verify, list[Omission]()
    monkeypatch.setattr(verify_sizes, "verify", lambda *given, **more: replace(plain(*given, **more), compared=0.25))
    graph = Graph.of(tg.relu(X) * 2.0)
    program = tg.optimize(graph, dims={"B": 2, "T": 4}, **FAST)
    assert any(t.startswith("verification of 75 % of the outputs' elements at B=") for t in program.report.omitted)
    verifier = SizeVerifier(graph, {"B": 2, "T": 4})
    assert not verifier.problem(program, "eager", 0, enough=lambda: True, omitted=omitted)
    assert len(omitted) == len({str(o) for o in omitted}) == len(verifier.required())


# ---------------------------------------------------------------- numbers and e-nodes
def lifting(graph: Graph, **sizes: int) -> tuple[Numbers, dict[str, int]]:
    found = generic_sizes(graph, sizes)
    return Numbers(graph, found), found


def test_generic_sizes_are_no_number_of_the_graph() -> None:
    graph = Graph.of(tg.softmax(X.reshape((B, T, 4, 12)))[:, 0 : T // 2] * 5.0)
    numbers, sizes = lifting(graph, B=1, T=128)
    assert 4 <= sizes["B"] <= 16 and 100 <= sizes["T"] <= 160
    for value in (B, T, B * T, 48 * B * T, T // 2, 12 * (T // 2), T * T):
        assert numbers.dim(int(bind(value, sizes))) == value
    for value in (1, 2, 4, 12, 48, 96, 1024):
        assert numbers.dim(value) == value
    assert numbers.fill(float(sizes["T"])) == (T, 1) and numbers.fill(1 / sizes["T"]) == (1.0, T)
    assert numbers.fill(0.5) is None and numbers.fill(float("inf")) is None


def test_what_holds_at_one_size_only_is_left_out() -> None:
    numbers, sizes = lifting(Graph.of(X * 1.0), B=1, T=16)
    b, t = sizes["B"], sizes["T"]
    x = tg.input("x", (b, t, 48))
    table = tg.constant(np.zeros((1, t, 48), np.float32))  # of a fixed length
    view = view_of(Graph.of([x + table, x.reshape((b * t, 48)), tg.pad(x, [(0, 0), (0, 1), (0, 0)]), x * 2.0]))
    with pytest.raises(ShapeError, match="2 outputs"):
        lifted(view, numbers)
    found = lifted(replace(view, roots=(view.roots[1], view.roots[3])), numbers)
    assert found.lost == {"constant": 1, "pad": 1}
    kept = dict(zip(found.symbolic.op, found.symbolic.attrs))
    assert dict(kept["reshape"])["shape"] == (B * T, 48)
    assert len(found.generic) == len(found.symbolic) == len(view) - 3  # the sum with the table has no form either


def test_conditions_of_a_graph() -> None:
    graph = Graph.of(tg.param("table", (256, 48))[0:T] * X[:, 0:T])
    assert conditions(graph) == ["1 <= B <= 64", "1 <= T <= 512", "T <= 256"]


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-5, 5), st.sampled_from(("//", "%")))
def test_dimensions_are_spelled_as_python(a: int, b: int, k: int, op: str) -> None:
    inner = a * B * T + k * T + b
    value = inner // (b * T + a) if op == "//" else inner % (b * T + a)
    known = {"B": B, "T": T}
    for spelled in (inner, value, -inner, value * T + 1):
        assert parse(str(spelled), known) == spelled
        sizes = {"B": 3, "T": 7}
        assert eval(str(spelled), {}, sizes) == bind(spelled, sizes)


# ---------------------------------------------------------------- random graphs
def _steps(x: Tensor) -> Iterator[Callable[[], Tensor]]:
    yield lambda: tg.tanh(x)
    yield lambda: x * 0.5 + 0.25
    yield lambda: c.relu(x) - x
    yield lambda: c.softmax(x, axis=x.rank - 1)
    yield lambda: tg.sum(x, x.rank - 1, True) + x
    yield lambda: x - tg.mean(x, 0, True)
    yield lambda: tg.permute(x, tuple(reversed(range(x.rank))))
    yield lambda: tg.concat([x, x * 2.0], 0)
    yield lambda: tg.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) if x.rank > 2 else tg.reshape(x, (1, *x.shape))
    yield lambda: tg.matmul(x, x.mT) if x.rank > 1 else x
    yield lambda: tg.flip(x, 0)
    yield lambda: x[1 : x.shape[0] + 1] if False else tg.pad(x, [(1, 2), *[(0, 0)] * (x.rank - 1)], 0.5)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 11), min_size=2, max_size=6), st.sampled_from(((1, 8), (4, 8), (2, 3))))
@example(chosen=[7, 9, 6, 11], searched=(1, 8))  # m + 3 is 2n at the generic sizes nearest to these
def test_random_graphs_agree_at_several_sizes(chosen: list[int], searched: tuple[int, int]) -> None:
    x: Tensor = tg.input("x", (tg.dim("n", max=12), tg.dim("m", max=20), 6))
    for number in chosen:
        x = list(_steps(x))[number]()
    graph = Graph.of(x)
    program = tg.optimize(graph, dims=dict(zip("nm", searched)), **FAST)
    assert set(program.report.sizes) == {"n", "m"}, program.report.warnings
    agrees(program, graph, {"n": 1, "m": 1}, {"n": 5, "m": 7}, {"n": 12, "m": 20}, {"n": 2, "m": 9}, tolerance=1e-4)


# ---------------------------------------------------------------- model files
def test_a_decoder_folder(tmp_path: Path) -> None:
    from tensor_graphs.models import random_checkpoints

    path = random_checkpoints.write_gpt2(tmp_path / "m", layers=2, hidden=32, heads=2, vocab=50, positions=40)
    graph = tg.load(path)
    program = tg.optimize(path, dims={"sequence": 8}, **FAST)
    assert program.report.sizes["sequence"] == "1..40 (searched at 8)"
    shapes = ({"batch": 1, "sequence": 1}, {"batch": 2, "sequence": 13}, {"batch": 1, "sequence": 40})
    agrees(program, graph, *shapes)
    with pytest.raises(ShapeError, match="sequence=41"):
        program(np.zeros((1, 41), np.int64))


def encoder() -> Any:
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = torch.nn.Embedding(50, 24), torch.nn.Embedding(32, 24)
            self.qkv, self.out, self.norm = torch.nn.Linear(24, 72), torch.nn.Linear(24, 24), torch.nn.LayerNorm(24)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))[None]
            n, t, d = x.shape
            q, k, v = (y.view(n, t, 3, 8).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, -1))
            scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask[:, None, None, :] == 0, -1e9)
            return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, d))

    torch.manual_seed(0)
    return Encoder().eval(), (torch.randint(0, 50, (2, 12)), torch.ones(2, 12))


ENCODER_SIZES = ({"n": 1, "t": 1}, {"n": 3, "t": 17}, {"n": 2, "t": 32}, {"n": 1, "t": 8})


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_onnx_file_with_dynamic_axes(tmp_path: Path, backend: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    module, example = encoder()
    axes = {0: "n", 1: "t"}
    torch.onnx.export(module, example, str(tmp_path / "m.onnx"), dynamo=False, input_names=["ids", "mask"],
                      output_names=["y"], dynamic_axes={"ids": axes, "mask": axes}, opset_version=17)  # fmt: skip
    program = tg.optimize(tmp_path / "m.onnx", dims={"n": 1, "t": 16}, **{**FAST, "backend": backend})
    assert set(program.report.sizes) == {"n", "t"}
    agrees(program, tg.load(tmp_path / "m.onnx"), *ENCODER_SIZES)


def test_a_module_with_dynamic_shapes() -> None:
    torch = pytest.importorskip("torch")
    module, example = encoder()
    size = {0: torch.export.Dim("n", max=8), 1: torch.export.Dim("t", max=32)}
    program = tg.optimize(module, example, dynamic_shapes=(size, size), dims={"n": 1, "t": 16}, **FAST, effort=0)
    assert program.report.sizes["t"] == "1..32 (searched at 16)"
    for n, t in ((1, 1), (3, 17), (8, 32)):
        ids, mask = torch.randint(0, 50, (n, t)), torch.ones(n, t)
        with torch.no_grad():
            torch.testing.assert_close(program(ids, mask), module(ids, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "rewriting"), [("numpy", {"limits": tg.Limits(iterations=2, nodes=600)}), ("torch", {"effort": 0})]
)
def test_a_residual_network_of_any_batch(backend: str, rewriting: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(3, 8, 3, 2, 1, bias=False), torch.nn.Conv2d(8, 8, 3, 1, 1)
            self.n, self.f, self.p = torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 10), torch.nn.MaxPool2d(3, 2, 1)

        def forward(self, x: Any) -> Any:
            x = self.p(torch.relu(self.n(self.a(x))))
            return self.f(torch.nn.functional.adaptive_avg_pool2d(torch.relu(x + self.b(x)), 1).flatten(1))

    torch.manual_seed(0)
    module, example = Net().eval(), torch.randn(2, 3, 16, 16)
    program = tg.optimize(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch", max=16)},),
                          **{**FAST, "backend": backend, **rewriting})  # fmt: skip
    assert program.report.sizes == {"batch": "1..16 (searched at 1)"}
    for n in (1, 2, 7, 16):
        x = torch.randn(n, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-5)


def small_unet(kind: str) -> Any:
    """Halved twice and doubled again, each time joined with what it was before."""
    torch = pytest.importorskip("torch")
    nn, f = torch.nn, torch.nn.functional

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.d = nn.Conv2d(3, 8, 3, padding=1), nn.ModuleList(nn.Conv2d(8, 8, 3, 2, 1) for _ in (0, 1))
            self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)

        def forward(self, x: Any) -> Any:
            a = torch.relu(self.a(x))
            b = torch.relu(self.d[0](a))
            u = b + (
                self.up(self.d[1](b))
                if kind == "transposed"
                else f.interpolate(self.d[1](b), scale_factor=2, mode=kind)
            )
            return torch.cat(
                [f.interpolate(u, size=a.shape[2:], mode="bilinear" if kind == "bilinear" else "nearest"), a], 1
            )

    torch.manual_seed(0)
    return Net().eval()


def agrees_with(program: Any, module: Any, shapes: list[tuple[int, ...]]) -> None:
    torch = pytest.importorskip("torch")
    for shape in shapes:
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["transposed", "nearest", "bilinear"])
def test_a_network_of_any_height_and_width(kind: str) -> None:
    torch = pytest.importorskip("torch")
    module, of = small_unet(kind), torch.export.Dim
    size = {2: 4 * of("h", min=2, max=64), 3: 4 * of("w", min=2, max=64)}
    program = tg.optimize(
        module, torch.randn(1, 3, 32, 48), dynamic_shapes=(size,), dims={"h": 8, "w": 12}, **FAST, effort=0
    )
    assert not [w for w in program.report.warnings if "one size only" in w]
    assert program.report.sizes == {"h": "2..64 (searched at 8)", "w": "2..64 (searched at 12)"}
    agrees_with(program, module, [(1, 3, 32, 48), (1, 3, 8, 8), (1, 3, 20, 28)])


def test_sizes_that_meet_at_multiples_only_are_found_and_said() -> None:
    torch = pytest.importorskip("torch")
    module, auto = small_unet("nearest"), torch.export.Dim.AUTO
    program = tg.optimize(
        module, torch.randn(2, 3, 32, 24), dynamic_shapes=({0: auto, 2: auto, 3: auto},),
        dims={"x_0": 2, "x_2_by_4": 8, "x_3_by_4": 6}, **FAST, effort=0,
    )  # fmt: skip
    assert set(program.report.sizes) == {"x_0", "x_2_by_4", "x_3_by_4"}
    message = [w for w in program.report.warnings if "multiples" in w]
    assert message == [f"the model's sizes meet at multiples only: {n} is 4*{n}_by_4" for n in ("x_2", "x_3")]
    agrees_with(program, module, [(2, 3, 32, 24), (3, 3, 8, 20)])
    with pytest.raises(UsageError):
        program(torch.randn(1, 3, 30, 24))


@pytest.mark.parametrize("decide", [lambda n: n % 2 == 1, lambda n: n != 5, lambda n: n * n < 100_000])
def test_a_module_that_decides_by_a_free_size_is_refused(decide: Callable[[Any], Any]) -> None:
    """With Dim.AUTO torch.export keeps such conditions as guards of the calls."""
    torch = pytest.importorskip("torch")
    from tensor_graphs.models.torch_export.export import load_module

    auto, x = torch.export.Dim.AUTO, torch.randn(9, 4)
    with pytest.raises(UnsupportedError, match=r"decides by a free size: .* holds for the examples, not at"):
        load_module(lambda a: a * 2 if decide(a.shape[0]) else a * 3, (x,), dynamic_shapes=({0: auto},))


def test_a_module_that_decides_as_at_its_example_for_all_sizes_is_taken() -> None:
    torch = pytest.importorskip("torch")
    from tensor_graphs.models.torch_export.export import load_module

    auto, x = torch.export.Dim.AUTO, torch.randn(9, 4)
    graph = load_module(lambda a: a[: a.shape[0] // 2] if a.shape[0] > 1 else a, (x,), dynamic_shapes=({0: auto},))
    assert len(graph.free_dims) == 1


@pytest.mark.parametrize(("example", "multiple"), [(56, 7), (16, 8)])
def test_pieces_of_an_axis_are_found_by_its_multiples(example: int, multiple: int) -> None:
    torch = pytest.importorskip("torch")
    from tensor_graphs.models.torch_export.export import load_module

    def pieces(x: Any) -> Any:
        n, size, c = x.shape
        parts = x.reshape(n, size // multiple, multiple, c)
        return (parts - parts.mean(2, keepdim=True)).reshape(n, size, c) + x

    auto = torch.export.Dim.AUTO
    with pytest.warns(UserWarning, match=f"x_1 is {multiple}[*]x_1_by_{multiple}$"):
        graph = load_module(pieces, (torch.randn(2, example, 6),), dynamic_shapes=({1: auto},))
    assert [str(d) for d in graph.inputs[0].shape] == ["2", f"{multiple}*x_1_by_{multiple}", "6"]


def test_sizes_that_never_meet_are_an_error_as_before() -> None:
    torch = pytest.importorskip("torch")
    from tensor_graphs.models.torch_export.divisible_sizes import _step

    assert torch is not None
    parts: dict[str, int] = {}
    assert _step(parts, {"a": 12, "b": 9}) and parts == {"a": 2}
    assert _step(parts, {"a": 12, "b": 9}) and parts == {"a": 3, "b": 3}
    assert _step(parts, {"a": 12}) and parts == {"a": 4, "b": 3}
    assert not _step({"a": 12}, {"a": 12}) and not _step({}, {})
