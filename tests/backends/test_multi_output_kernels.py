"""Kernels with several outputs: the IR's specification and Triton's interpreter against float64 for every output, the
emitted text, measuring, jobs, and programs that run them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c import backend as c_backend
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.kernel_text import call_json, call_of_json
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.ir import index
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.tiling import divisors, shape_of
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.lowering.split_reduction import split
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import generated
from tensor_graphs.backends.tuning.jobs import job_of, read_job
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.single_kernel import run_outputs
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.verification.comparison import relative_error

from . import kernel_interpreter
from .cuda.test_cuda_cpp import _compiled_alone, check

GOLDEN = Path(__file__).parent / "golden"


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _residual() -> list[Tensor]:
    h = x("a", 20, 48) + x("b", 20, 48)
    return [c.rms_norm(h, x("g", 48), eps=1e-6), h]


def _statistics() -> list[Tensor]:
    h = x("a", 20, 48) + x("b", 20, 48)
    return [h, t.rsqrt(t.mean(h * h, axis=1, keepdims=True) + 1e-6), t.sum(h, axis=1, keepdims=True)]


def _distances() -> list[Tensor]:
    """How far rows are spread, and around what: far from zero beside their spread."""
    h = x("a", 12, 64) + 30.0
    mean = t.mean(h, axis=1, keepdims=True)
    return [t.sqrt(t.mean((h - mean) * (h - mean), axis=1, keepdims=True) + 1e-6), mean]


def _cell() -> list[Tensor]:
    """A recurrent cell's new state and output, from gates side by side."""
    gates = x("gates", 6, 4 * 32)
    i, f, o, u = (gates[:, 32 * k : 32 * (k + 1)] for k in range(4))
    new = c.sigmoid(f) * x("c", 6, 32) + c.sigmoid(i) * t.tanh(u)
    return [c.sigmoid(o) * t.tanh(new), new]


def _projections() -> list[Tensor]:
    """Queries, keys and values: three slices of one product behind a norm."""
    whole = t.matmul(c.rms_norm(x("a", 16, 64), x("g", 64), eps=1e-6), x("w", 64, 96))
    return [whole[:, :48], whole[:, 48:72], whole[:, 72:]]


def _gated() -> list[Tensor]:
    gate, up = (t.matmul(x("a", 16, 64), x(n, 64, 48)) for n in "vw")
    return [c.silu(gate) * up, gate, up]


def _turned() -> list[Tensor]:
    h = x("a", 4, 6, 8) * 2.0
    return [h + 1.0, t.reshape(t.tanh(h), (24, 8))]


def _powers() -> list[Tensor]:
    """A product of powers of a product, and the rows that the product reads."""
    rows = x("a", 8, 32) / t.sqrt(x("s", 8, 1) * x("s", 8, 1) + 1.0) * x("g", 1, 32)
    h = t.matmul(rows, x("u", 32, 48))
    return [t.matmul(h * h / (h * h + 1.0), x("v", 48, 32)), rows]


SEVERAL: dict[str, Callable[[], list[Tensor]]] = {
    "residual": _residual, "statistics": _statistics, "cell": _cell, "projections": _projections, "gated": _gated,
    "turned": _turned, "distances": _distances, "powers": _powers,
    "moments": lambda: [t.sum(x("a", 20, 48) * k, axis=1, keepdims=True) for k in (x("a", 20, 48), x("b", 48))],
    "columns": lambda: [t.sum(x("a", 64, 48), axis=0, keepdims=True), t.max(x("a", 64, 48), axis=0, keepdims=True)],
    "two norms": lambda: [c.rms_norm(x(n, 4, 6, 16), x(g, 16), eps=1e-6) for n, g in ("qg", "kh")],
    "strangers": lambda: [c.gelu(t.matmul(x("a", 1, 64), x("v", 64, 48)) + x("b", 48)), t.matmul(x("h", 1, 64), x("w", 64, 80))],
    "other lengths": lambda: [t.matmul(x("a", 16, 64), x("v", 64, 48)), t.matmul(x("h", 16, 32), x("w", 32, 48))],
    "slice of rows": lambda: [(w := t.tanh(x("a", 12, 8)))[:5, :], w[7:, :]],
    "integers": lambda: [t.cast(t.le(x("a", 5, 40), x("b", 5, 40)), "int32"), x("a", 5, 40) + x("b", 5, 40)],
}  # fmt: skip


def names_of(roots: list[Tensor]) -> list[str]:
    return [f"out{n}" if n else "out" for n in range(len(roots))]


def kernel(roots: list[Tensor]) -> kir.Kernel:
    found = {n: str(n.attr("name")) for n in topological(roots) if n.op == "input"}
    kinds = {**{name: n for n, name in found.items()}, **dict(zip(names_of(roots), roots))}
    buffers = {name: kir.Buffer(n.dtype, tuple(n.shape), contiguous(n.shape)) for name, n in kinds.items()}  # type: ignore[arg-type]
    return kernel_of(roots, found, buffers)


def values(roots: list[Tensor], dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = [n for n in topological(roots) if n.op == "input"]
    return {str(n.attr("name")): rng.standard_normal(n.shape).astype(dtype) for n in found}


def call_of(template: GeneratedKernel, dtype: str = "float32") -> Call:
    def operand(n: Tensor) -> Operand:
        kind = dtype if n.dtype == "float32" else n.dtype
        return Operand(Type(n.shape, kind), contiguous(n.shape))  # type: ignore[arg-type]

    kinds = {str(n.attr("name")): operand(n) for n in topological(template.roots) if n.op == "input"}
    first, *more = map(operand, template.roots)
    return Call({o: kinds[o] for o in template.operands}, first, {}, more=tuple(more))


# ---------------------------------------------------------------- the IR
@pytest.mark.parametrize("name", SEVERAL)
def test_every_output_means_what_its_term_means(name: str) -> None:
    roots = SEVERAL[name]()
    one, given = kernel(roots), values(roots)
    assert [s.buffer for s in one.stores] == names_of(roots)
    memory = {n: v.reshape(-1).astype(np.float64) for n, v in given.items()}
    memory |= {n: np.full(r.type.nbytes // 4, np.nan) for n, r in zip(names_of(roots), roots)}
    kernel_interpreter.run(one, memory)
    for n, want in zip(names_of(roots), evaluate(roots, given, float64=True)):
        np.testing.assert_allclose(memory[n].reshape(want.shape), want, rtol=1e-12, atol=1e-12)


def test_shared_values_are_there_once() -> None:
    """A stored residual is the value that the norm reads, a product's slices are one product."""
    text = str(kernel(_projections()))
    assert text.count("sum(mul(mul(") == 1 and text.count("out") == 3 and " if lt(i1, 48)" in text
    (only,) = launches(*_scheduled("residual", None))
    assert len(re.findall(r"tl\.load", only.source)) == 3 and only.source.count("t1 + t2") == 1


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", ["projections", "gated", "moments", "columns", "distances"])
def test_split_reductions_store_every_output(name: str, parts: int) -> None:
    roots = SEVERAL[name]()
    one, given = kernel(roots), values(roots)
    first, second = split(one, max(shape_of(one).outer, key=lambda a: a.size), parts)
    memory = {n: v.reshape(-1).astype(np.float64) for n, v in given.items()}
    memory |= {n: np.full(int(np.prod(b.shape)), np.nan) for n, b in first.buffers.items() if n not in memory}
    kernel_interpreter.run(first, memory)
    kernel_interpreter.run(second, memory)
    for n, want in zip(names_of(roots), evaluate(roots, given, float64=True)):
        np.testing.assert_allclose(memory[n].reshape(want.shape), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("roots", [
    [x("a", 4, 6) + 1.0, x("b", 5, 7) + 1.0],
    [t.matmul(x("a", 4, 6), x("w", 6, 6)), t.sum(x("a", 4, 6), axis=0)],
], ids=["other sizes", "other rank"])  # fmt: skip
def test_results_over_other_axes_are_refused(roots: list[Tensor]) -> None:
    with pytest.raises(Unfusable, match="outputs of shapes"):
        kernel(roots)


# ---------------------------------------------------------------- Triton
def _scheduled(name: str, schedule: dict[str, int] | None, dtype: str = "float32") -> tuple[GeneratedKernel, Call]:
    template = generated(SEVERAL[name]())
    call = call_of(template, dtype)
    return template, replace(call, schedule=template.space(call)[0] if schedule is None else schedule)  # type: ignore[misc]


def interpreted(name: str, schedule: dict[str, int] | None, dtype: str = "float32") -> float:
    """The largest relative error of any output in Triton's interpreter; outputs and scratch begin as NaN."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of

    template, call = _scheduled(name, schedule, dtype)
    given = {n: v.astype(dtype) for n, v in values(template.roots).items()}
    want = evaluate(template.roots, {n: v.astype(np.float32) for n, v in given.items()}, float64=True)
    outs = [
        torch.full(tuple(o.type.shape), float("nan") if "float" in o.type.dtype else -7, dtype=getattr(torch, o.type.dtype))
        for o in call.outputs
    ]  # fmt: skip
    scratch = torch.full((template.scratch(call),), 255, dtype=torch.uint8)  # type: ignore[misc]
    module_of(kernel_text(template, call)).run(*(torch.from_numpy(given[o]) for o in template.operands), *outs, scratch)
    return max(relative_error(o.double().numpy(), w) for o, w in zip(outs, want))


@pytest.mark.parametrize("name", SEVERAL)
def test_schedules_compute_the_same_in_the_interpreter(name: str) -> None:
    template, call = _scheduled(name, None)
    space = list(template.space(call))  # type: ignore[misc]
    for schedule in (space[0], space[-1]):
        assert interpreted(name, dict(schedule)) < 2e-6, schedule


@pytest.mark.parametrize("name", ["residual", "projections", "gated", "strangers", "other lengths"])
def test_sixteen_bits_in_memory(name: str) -> None:
    assert interpreted(name, None, "float16") < 2e-3


TILES = {"m": 16, "n": 16, "k0": 16, "warps": 4, "stages": 2}
GOLDEN_TILES = {"projections": TILES, "strangers": TILES | {"m": 1, "k0": 64}}


@pytest.mark.parametrize("more", [{"split": 2}, {"split": 2, "join": 1}], ids=["split", "joined by the last"])
@pytest.mark.parametrize("name", ["projections", "gated"])
def test_ways_to_split_agree(name: str, more: dict[str, int]) -> None:
    assert interpreted(name, TILES | more) < 2e-6


def test_strangers_have_programs_of_their_own() -> None:
    """Where no tile belongs to two results side by side, each program makes one of them; else both, behind masks."""
    own, both = ({"m": 1, "n": n, "k0": 64, "warps": 2, "stages": 3} for n in (16, 32))
    text, masked = (launches(*_scheduled("strangers", s))[0].source for s in (own, both))
    assert "if tile_n * 16 < 48:" in text and "mask=" not in text and "mask=" in masked
    assert interpreted("strangers", own) < 2e-6 and interpreted("strangers", both) < 2e-6
    shared = launches(*_scheduled("projections", TILES))[0].source
    assert "if " not in shared and shared.count("tl.dot(") == 1


def test_distances_from_a_mean_lose_nothing_to_it_in_one_walk() -> None:
    assert interpreted("distances", {"m": 2, "n": 1, "k0": 16, "warps": 1, "stages": 2, "split": 2, "join": 1}) < 2e-6
    _, second = split(kernel(_distances()), index.Axis("r64", 64), 2)
    assert [e.value[0] for e in second.reductions] == ["sum", "sum"]


def test_rows_that_are_walked_are_stored_in_one_loop() -> None:
    schedule = {"m": 4, "n": 16, "k0": 16, "warps": 4, "stages": 2}
    assert interpreted("residual", schedule) < 2e-6
    (only,) = launches(*_scheduled("residual", schedule))
    assert only.source.count("for n_ in") == 1 and only.source.count("tl.store") == 2


@pytest.mark.parametrize("name", ["residual", "projections", "strangers"])
def test_the_source_is_the_golden_file(name: str, update_golden: bool) -> None:
    template, call = _scheduled(name, GOLDEN_TILES.get(name))
    text = "\n\n".join(re.sub(r"_[0-9a-f]{10}\b", "", one.source) for one in launches(template, call))
    path = GOLDEN / f"triton_several_{name}.py"
    if update_golden:
        path.write_text(f"# Generated; see test_multi_output_kernels.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


# ---------------------------------------------------------------- C and CUDA C++
@pytest.mark.parametrize("name", [n for n in SEVERAL if n not in ("projections", "gated", "other lengths", "powers")])
def test_c_functions_write_every_output(name: str) -> None:
    if backend("c").unavailable():
        pytest.skip("no C compiler")
    roots = SEVERAL[name]()
    template, given = c_backend.generated(roots), values(roots)
    found = run_outputs(template, call_of(template), given)
    for got, want in zip(found, evaluate(roots, given, float64=True)):
        assert relative_error(got, want) < 2e-6


def test_rows_of_any_length_are_cut_into_parts(tmp_path: Path) -> None:
    """Losses over 8732 anchors of 21 classes: powers of two divide them by four, other numbers by what keeps all
    multiprocessors at work; both languages compute them."""
    assert divisors(8732 * 21, (2, 4, 16, 64, 128)) == [2, 4, 59, 111] and divisors(4096, (2, 64)) == [2, 64]
    assert divisors(97, (2, 64)) == [] and divisors(90, (64,)) == [45]

    def loss(classes: int) -> Tensor:
        a = x("a", 2, 8732, classes)
        return t.sum(t.exp(-a * a) * x("b", 2, 8732, classes), axis=(1, 2))

    for emit in (generated, cuda_cpp.generated):
        template = emit([loss(21)])
        assert {s.get("split", 1) for s in template.space(call_of(template))} & {37, 59, 111, 118, 177, 259, 413}  # type: ignore[misc]
        template = emit([loss(3)])  # 26196 = 4 * 3 * 37 * 59
        cut = [s for s in template.space(call_of(template)) if s.get("split", 1) not in (1, 2, 4)]  # type: ignore[misc]
        assert cut
        call, given = replace(call_of(template), schedule=cut[0]), values([template.root])
        if emit is generated:
            pytest.importorskip("triton")
            want = evaluate([template.root], given, float64=True)[0]
            assert relative_error(run_outputs(template, call, given, device="cpu")[0], want) < 1e-5
        else:
            check(template, call, *_compiled_alone(template, call, tmp_path), "float32")


@pytest.mark.parametrize("name", ["slice of rows", "statistics"])
def test_cuda_kernels_write_every_output(name: str, tmp_path: Path) -> None:
    template = cuda_cpp.generated(SEVERAL[name]())
    call = call_of(template)
    check(template, call, *_compiled_alone(template, call, tmp_path), "float32")


# ---------------------------------------------------------------- calls, keys, jobs, measuring
def test_keys_jobs_and_work_know_every_output() -> None:
    template, call = _scheduled("projections", TILES)
    assert call_of_json(call_json(call)) == call and "more" not in call_json(replace(call, more=()))
    swapped = replace(call, more=call.more[::-1])
    taller = replace(call, more=(Operand(Type((16, 24), "float16"), (24, 1)), call.more[1]))
    assert key_of(template, call).digest == key_of(template, swapped).digest != key_of(template, taller).digest
    assert call_work(template, call)[1] == 4 * (16 * 64 + 64 + 64 * 96 + 16 * 96)
    again, calls = read_job(job_of(template, call))
    assert again.identity == template.identity and calls == [call]
    with pytest.raises(UsageError, match="3 values"):
        read_job({**job_of(template, call), "call": call_json(replace(call, more=()))})


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_measuring_checks_every_output(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from tensor_graphs.backends.generate.kernel_text import kernel_text
    from tensor_graphs.backends.tuning import gpu_bench, result_check
    from tensor_graphs.backends.tuning.gpu_device import device_of

    template, call = _scheduled("gated", TILES)
    bench = gpu_bench.Bench(device_of("cpu"), template.pattern, call)
    text = kernel_text(template, call)
    assert bench.attempt(0, bench.loaded(text))["accuracy"]["rel_fro"] < 1e-5
    out = ("out_", "out1_", "out2_")[wrong]
    spoiled = text.text.replace("num_stages=2)", f"num_stages=2)\n    {out}[3, 5] = 100.0")
    with pytest.raises(result_check.Wrong, match="relative error"):
        bench.attempt(1, bench.loaded(replace(text, text=spoiled)))


def test_what_is_too_large_for_the_term_itself_is_drawn_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quotient of powers that overflow for the largest of many numbers: kernels are right where float32 can hold
    them, and one that is wrong is not tried for ever."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from tensor_graphs.backends.generate.kernel_text import kernel_text
    from tensor_graphs.backends.tuning import gpu_bench, result_check
    from tensor_graphs.backends.tuning.gpu_device import device_of

    e = t.exp(x("a", 4, 512) * 40.0)
    template = generated([e / (e + 1.0)])
    call = Call({"a": Operand(Type((4, 512), "float32"), (512, 1))}, Operand(Type((4, 512), "float32"), (512, 1)), {})
    text = kernel_text(template, replace(call, schedule=template.space(call)[0]))  # type: ignore[misc]
    for spoiled, right in (
        (text.text, True),
        (text.text.replace("tl.store(out + n, ", "tl.store(out + n, float('inf') * "), False),
    ):
        assert right or spoiled != text.text
        bench = gpu_bench.Bench(device_of("cpu"), template.pattern, call)
        run = partial(bench.attempt, 0, bench.loaded(replace(text, text=spoiled)))
        if right:
            assert run()["accuracy"]["rel_fro"] < 1e-5 and 1 / 16 <= bench.size < 1
        else:
            with pytest.raises(result_check.Wrong):
                run()


# ---------------------------------------------------------------- programs
class Cheap(PricerBase):
    """Bytes and a launch, so that fewer kernels are cheaper."""

    def price(self, found: Any) -> list[Priced]:
        costs = [call_work(k.template, k.call)[1] * 1e-6 + 1.0 for k in found]
        return [Priced(us, us, us, "bound") for us in costs]


def planned(graph: Graph) -> Plan:
    view = view_of(graph)
    return plan_of(
        search(candidate_hypergraph(view, [backend("triton"), backend("torch_cuda")], view_strides), Cheap()), graph
    )


def stream() -> tuple[Graph, dict[str, np.ndarray]]:
    """Two steps of a residual stream whose sums are read twice, and a state that one of the values becomes."""
    a, b, s = t.input("a", (16, 32)), t.input("b", (16, 32)), t.state("s", (16, 32))
    g, w = t.param("g", (32,)), t.param("w", (32, 32))
    h = a + b
    y = t.cumsum(t.matmul(c.rms_norm(h, g, eps=1e-6), w), 1)  # what no generated kernel holds
    z = h + y
    graph = Graph.of(
        {"z": z, "n": c.rms_norm(z, g, eps=1e-6)}, updates={"s": t.tanh(z) + s}, inputs=[a, b], name="stream"
    )
    rng = np.random.default_rng(0)
    params = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in (g, w)}
    return replace(graph, params=params), {n: rng.standard_normal((16, 32)).astype(np.float32) for n in "ab"}


def test_a_program_stores_what_is_needed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen, planned in a workspace full of NaN, saved and loaded, and right at every call."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    graph, given = stream()
    plan = planned(graph)
    assert [len({*s.outputs}) for s in plan.steps if not s.is_view] == [2, 1, 3]
    program = Program(plan, device="cpu")
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: (e := empty(*a, **k)).view(torch.uint8).fill_(255) is None or e)
    program.save(tmp_path / "p")
    for one in (program, load_program(tmp_path / "p", device="cpu")):
        state = np.zeros((16, 32), np.float32)
        for _ in range(2):
            found = one(**given)
            want = evaluate(graph, {**given, "s": state}, params=graph.params, float64=True)
            for got, exact in zip([*found.values(), one.get_state("s")], want):
                assert relative_error(got, exact) < 1e-5
            state = one.get_state("s")
    assert "def rows_" in program.source and ", out, out1, out2)" in program.source


def test_values_that_are_alive_together_lie_apart() -> None:
    from tensor_graphs.backends.program.emit import memory_plan as memory

    plan = planned(stream()[0])
    layout = memory.layout(plan)
    made = {v: i for i, s in enumerate(plan.steps) if not s.is_view for v in s.outputs}
    spans = {
        v: (layout.offsets[layout.buffer[v]], memory.nbytes(plan.values[v].type), i, layout.last.get(v, i))
        for v, i in made.items() if v in layout.buffer
    }  # fmt: skip
    assert any(set(s.outputs) <= spans.keys() for s in plan.steps if s.more)
    for v, (start, size, first, last) in spans.items():
        for w, (other, length, begin, end) in spans.items():
            if v != w and layout.buffer[v] != layout.buffer[w] and first <= end and begin <= last:
                assert start + size <= other or other + length <= start


def test_a_result_read_nowhere_still_has_its_place() -> None:
    """A plan may run a kernel for one of its values alone."""
    from tensor_graphs.backends.program.emit import memory_plan as memory

    plan = planned(stream()[0])
    kept = next(i for i, s in enumerate(plan.steps) if s.more)
    alone = replace(plan, steps=plan.steps[: kept + 1], outputs=(plan.steps[kept].output,), updates={})
    layout = memory.layout(alone)
    places = {layout.offsets[layout.buffer[v]] for v in plan.steps[kept].outputs}
    assert len(places) == len(plan.steps[kept].outputs)
    assert partial(memory.layout, alone)() == layout


def test_diagnosis_names_a_kernel_with_one_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from tensor_graphs.backends.tuning import single_kernel as single
    from tensor_graphs.verification import diagnose

    monkeypatch.setattr(diagnose, "run_outputs", partial(single.run_outputs, device="cpu"))
    graph, _ = stream()
    plan = planned(graph)
    assert not diagnose.diagnose(graph, plan).miscompiled
    step = next(s for s in plan.steps if s.more)
    *others, last = step.template.pattern.split(";")
    claims = replace(step.template, name="triton.claims", pattern=";".join([*others, f"mul({last}, 2.0)"]))
    broken = replace(plan, steps=tuple(replace(s, template=claims) if s is step else s for s in plan.steps))
    seen = diagnose.diagnose(graph, broken)
    assert seen.rewrites > 0 and seen.wrong == ["triton.claims"]


# ---------------------------------------------------------------- which are offered
@pytest.mark.parametrize("narrow", [False, True])
def test_what_is_a_view_of_another_kernels_result_is_no_kernel(narrow: bool) -> None:
    """Memory looked at in other sizes, or as a type that it lies in already, where it is computed on the way."""
    base = t.exp(x("a", 4, 6)) + 1.0
    roots = [t.reshape(base, (2, 12)), t.transpose(base), t.cast(base, "float16")]
    view = view_of(Graph.of(roots))
    types = [replace(k, dtype="float32") if narrow else k for k in view.types]
    given = frozenset(c for c, op in zip(view.cls.tolist(), view.op) if op == "input")
    found = backend("triton").generated(view, given, types)
    computed = {k.root.op for k, made, _ in found if len(made) == 1 and k.root.args[0].op == "add"}
    assert computed == ({"permute"} if narrow else {"permute", "cast"})
